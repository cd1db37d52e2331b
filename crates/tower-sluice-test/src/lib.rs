//! Test kit for [tower](https://docs.rs/tower) layers and stacks. It knows tower, tokio and (with the feature `http`,
//! on by default) the `http` crate, and none of the layers that it tests.
//!
//! | | |
//! |---|---|
//! | [`Script`] | a service that answers, fails, waits, hangs and panics as the test says; its readiness is lost on clone; it records when each attempt ran, and how many at once |
//! | [`Probe`] | one line that checks any layer against the contract of tower's services |
//! | [`spied`], [`by_hand`], [`SpyWaker`] | futures and wakers whose polls and wakes are counted, or which the test polls by hand |
//! | [`seed`] | the seed of a randomised test, printed and repeatable |
//!
//! # Testing one's own stack
//! Put the stack over a [`Script`] instead of the real service, and pause the clock. Nothing sleeps in real time, and
//! times are exact, so that they can be compared with `==`.
//!
//! ```
//! use std::time::Duration;
//! use tower::{ServiceBuilder, ServiceExt};
//! use tower_sluice_test::Script;
//!
//! # /*
//! #[tokio::test(start_paused = true)]
//! # */
//! # #[tokio::main(flavor = "current_thread", start_paused = true)]
//! # async fn main() { a_slow_answer_is_given_up_and_its_place_is_free().await }
//! async fn a_slow_answer_is_given_up_and_its_place_is_free() {
//!     // The stack under test: one call at a time, each for a second at most.
//!     let stack = ServiceBuilder::new().concurrency_limit(1).timeout(Duration::from_secs(1));
//!
//!     let script = Script::new().answer(200).after(Duration::from_secs(30)).answer(204);
//!     let service = stack.service(script.service());
//!
//!     let first = service.clone().oneshot("request").await;
//!     assert!(first.unwrap_err().is::<tower::timeout::error::Elapsed>());
//!     let second = service.oneshot("request").await.unwrap();
//!     assert_eq!((second, script.peak()), (204, 1));
//!     assert_eq!(script.starts(), [Duration::ZERO, Duration::from_secs(1)]);
//! }
//! ```
//!
//! ## What to look at
//! - **How many at once**: [`Script::peak`]. A test of a limit that counts answers cannot fail.
//! - **When**: [`Script::starts`] and [`Script::ends`]; with names and outcomes, [`Script::attempts`].
//! - **What is still held** after a call has ended or was dropped: [`Script::running`], [`Script::futures`] (of
//!   attempts, not yet dropped), [`Script::reserved`] (clones that are ready and were not called), all 0.
//! - **Whether the contract was kept**: [`Script::violations`], where a spawned task may have swallowed the panic.
//!
//! ## Step by step
//! With [`Script::hold`] attempts wait until the test lets them go on, and [`Script::started`] waits until they are
//! there. So a test can look at the stack while exactly two attempts run, and end the second one first:
//!
//! ```
//! # #[tokio::main(flavor = "current_thread", start_paused = true)]
//! # async fn main() {
//! use tower::limit::ConcurrencyLimit;
//! use tower::ServiceExt;
//! use tower_sluice_test::{Script, Step};
//!
//! let script = Script::new().answer("done").hold();
//! let service = ConcurrencyLimit::new(script.service(), 2);
//! let calls: Vec<_> = (0..3).map(|n| tokio::spawn(service.clone().oneshot(n))).collect();
//!
//! script.started(2).await;
//! assert_eq!((script.running(), script.calls()), (2, 2));
//! script.end(1, Step::fail("reset"));
//! script.started(3).await;
//! script.open();
//! let mut results = Vec::new();
//! for call in calls {
//!     results.push(call.await.unwrap().map_err(|error| error.to_string()));
//! }
//! assert_eq!(results, [Ok("done"), Err("reset".into()), Ok("done")]);
//! # }
//! ```
//!
//! # Testing one's own layer
//! [`Probe`] finds what such tests seldom look for: a call on a fresh clone, a lost wake-up, a permit that leaks when a
//! call is dropped. See [`probe`] for the list.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread", start_paused = true)]
//! # async fn main() {
//! use tower::limit::ConcurrencyLimit;
//! use tower_sluice_test::Probe;
//!
//! Probe::new().check(|inner| ConcurrencyLimit::new(inner, 2)).await;
//! # }
//! ```

pub mod probe;
pub mod script;

mod by_hand;
mod seed;
mod spy;
mod waker;

pub use by_hand::{ByHand, by_hand};
pub use probe::{Check, Probe};
pub use script::{Failure, Script, Step};
pub use seed::seed;
pub use spy::{Spied, Spy, spied};
pub use waker::{SpyWaker, Wakes};

#[cfg(all(doctest, feature = "http"))]
#[doc = include_str!("../README.md")]
struct Readme;
