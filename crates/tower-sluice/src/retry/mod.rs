//! The retry policy: whether a failed attempt is followed by another, and after how long.
//!
//! A [`RetryPolicy`] joins what a result means ([`Classify`]), what may be sent again ([`Repeat`]), how many attempts
//! there may be, how long to wait between them ([`Backoff`]), and what retries are paid from ([`RetryBudget`]). It is
//! pure: it has no clock, no timer and no task, and keeps nothing of a call. What it needs to know of one is its
//! [`Progress`], kept by the layer that makes the attempts: our queue, or tower's own `RetryLayer`.
//!
//! ```
//! # use std::time::Duration;
//! use tower::retry::RetryLayer;
//! use tower::{ServiceBuilder, ServiceExt, service_fn};
//! use tower_sluice::backoff::Backoff;
//! use tower_sluice::retry::{RetryBudget, RetryPolicy};
//! # use std::sync::atomic::{AtomicU32, Ordering};
//!
//! # #[tokio::main(flavor = "current_thread", start_paused = true)]
//! # async fn main() {
//! // 3 attempts, which is 2 retries.
//! let policy = RetryPolicy::new(3, Backoff::rpc()).budget(RetryBudget::new());
//!
//! let attempts = AtomicU32::new(0);
//! let service = ServiceBuilder::new().layer(RetryLayer::new(policy)).service(service_fn(|name: String| {
//!     let failed = attempts.fetch_add(1, Ordering::Relaxed) < 2;
//!     async move { if failed { Err("down") } else { Ok(format!("hello {name}")) } }
//! }));
//! assert_eq!(service.oneshot("world".to_owned()).await, Ok("hello world".to_owned()));
//! # assert_eq!(attempts.into_inner(), 3);
//! # }
//! ```
//!
//! # What a retry has to pass
//!
//! In this order; where it does not, the caller gets the last attempt's own response or error, as it came.
//!
//! | | [`GaveUp`] |
//! |---|---|
//! | attempts in all, and for this kind of failure | `attempts` |
//! | the request can be copied, and may be sent again after this failure | `not_repeatable` |
//! | a `Retry-After` no longer than `max_retry_after` | `retry_after` |
//! | the delay ends in time for another attempt | `deadline` |
//! | the budget has the tokens | `budget` |
//!
//! A request that cannot be copied is not an error: it has one attempt and its normal result. `max_attempts` counts
//! the first attempt: 4 attempts are 3 retries.
//!
//! # How long it waits
//!
//! The k-th retry draws on the backoff's step k - 1, so the first one on its base. The draw is derived from the
//! layer's seed, the call's number and the attempt's ([`Draw`]): no two calls share a series, and a seed gives the same
//! delays again. It is made once; what is checked against the deadline is what is waited.
//!
//! | the attempt failed | the delay is |
//! |---|---|
//! | with a `Retry-After` of `d`, up to `max_retry_after` | uniform on [d, d + min(d/2, 5 s)]: never earlier, nor for all at once; the backoff's `max` does not cut it |
//! | with a longer `d`, or longer than the deadline leaves | none, the call ends; or, [clamped](RetryPolicy::clamp_retry_after), as for the hint whose spread ends at the longest that may be waited, but no shorter than the backoff's own |
//! | with a `d` of zero | the backoff's own |
//! | unavailable, first retry | uniform on (0, base], whatever the jitter |
//! | throttled, without `Retry-After` | the backoff's, one step higher |
//! | in any other way | the backoff's |
//!
//! # What it costs
//!
//! Retries multiply load exactly when there is least to spare. A [`RetryBudget`] bounds that: by default it has 500
//! tokens, a retry costs 5, after a timeout 10, a call that succeeds at once returns 1, and one that succeeds after
//! retries gets back what it paid. One token a second comes from time, so that a quiet client is not locked out for
//! good. So while everything fails there are at most 100 retries, and then one in 5 s; at length the retries of calls
//! that fail for good are at most a fifth of the calls that succeed at once, and one in 5 s.
//!
//! It protects per layer: a hundred clients with a budget each still triple the load at first. Give a budget to one
//! layer of a stack: each layer that has it counts a call of its own. A closed loop, such as a batch job, whose limit
//! bounds its load already, needs none ([`RetryBudget::unlimited`], the default of [`RetryPolicy::new`]).
//!
//! A retry is paid for when it is decided on, not when it is sent: 300 calls that fail at once are at most 100
//! that wait. A [`Payment`] that is dropped before its attempt starts gives the tokens back.
//!
//! # In tower's `RetryLayer`
//!
//! tower clones the policy for each call, and a clone keeps that call's progress. Unlike in our queue:
//!
//! - a call that waits for its next attempt keeps what it holds in the layers above;
//! - there is no deadline;
//! - [`Repeat::prepare`] is not called before the first attempt, which tower lends by reference only, and before the
//!   delay of each later one;
//! - [`Classify::discard`] is not called, and neither is [`Classify::finish`] where the request could not be copied.
//!
//! [`Backoff`]: crate::backoff::Backoff
//! [`Classify`]: crate::verdict::Classify
//! [`Classify::discard`]: crate::verdict::Classify::discard
//! [`Classify::finish`]: crate::verdict::Classify::finish
//! [`Repeat`]: crate::verdict::Repeat
//! [`Repeat::prepare`]: crate::verdict::Repeat::prepare

mod budget;
mod decision;
mod policy;
mod progress;
mod tower_policy;

pub use budget::{BudgetTerms, Payment, RetryBudget};
pub use decision::{GaveUp, Retry};
pub use policy::RetryPolicy;
pub use progress::Progress;
pub use tower_policy::Delay;
pub use tower_sluice_backoff::Draw;
