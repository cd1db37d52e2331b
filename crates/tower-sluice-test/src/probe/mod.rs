//! Checks that any tower layer should pass.
//!
//! [`Probe`] puts a layer over a scripted service and checks the contract of [`tower::Service`] from both sides: what
//! the layer does to the service below, and what it does to its caller.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread", start_paused = true)]
//! # async fn main() {
//! use std::time::Duration;
//! use tower::ServiceBuilder;
//! use tower_sluice_test::Probe;
//!
//! let stack = ServiceBuilder::new().timeout(Duration::from_secs(10)).concurrency_limit(2);
//! Probe::new().check(|inner| stack.service(inner)).await;
//! # }
//! ```
//!
//! That what is probed is `Clone + Send + Sync`, and its future `Send`, is checked by the compiler. The rest:
//!
//! | [`Check`] | holds if |
//! |---|---|
//! | [`Readiness`](Check::Readiness) | the service below is never called, in first and later attempts, unless that very clone was polled ready; and no future is polled after its end |
//! | [`ReadyStays`](Check::ReadyStays) | once ready, it is ready in every further poll until `call` |
//! | [`Wakeup`](Check::Wakeup) | every pending readiness or call is woken when what it waits for is there: the task that polled last, at once |
//! | [`Spin`](Check::Spin) | nothing is polled over and over while there is nothing to do |
//! | [`Cancel`](Check::Cancel) | a call dropped in any state stops, and gives back what it held: the next one is served, waiters are not stranded, and nothing of the service below outlives the last clone |
//! | [`Panic`](Check::Panic) | a panic in the service below, in `call` or later, leaves calls that end |
//! | [`ReadyError`](Check::ReadyError) | after an error of the readiness below the call ends, in that error or by another try, and so do later ones |
//! | [`IdleReadiness`](Check::IdleReadiness) | clones that were polled ready and left idle hold no readiness of the service below. Only if asked for: most of tower's own layers pass readiness through and do hold it |
//!
//! Of tower's own layers `ConcurrencyLimit`, `Buffer`, `Retry`, `Timeout` and `LoadShed` pass all that is on by
//! default; of these, only `Buffer` passes `IdleReadiness`. `RateLimit` is not `Clone`, and cannot be probed.
//!
//! A limit of 1 or 2 finds more than one of 64: with more slots than calls nobody waits in line.
//!
//! [`tower::Service`]: https://docs.rs/tower/latest/tower/trait.Service.html

mod checks;
mod drive;
#[cfg(feature = "http")]
mod http;
mod report;
mod runner;

pub use self::report::{Check, Report, Violation};
pub use self::runner::Probe;
