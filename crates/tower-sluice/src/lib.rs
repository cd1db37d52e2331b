//! Composable [`tower`](https://docs.rs/tower) layers that keep a service useful while what it depends on is
//! slow, failing, rate-limited or gone.
//!
//! | module | what it is for |
//! |---|---|
#![cfg_attr(
    feature = "queue",
    doc = "| [`queue`] | a concurrency limit (bulkhead) whose failed calls wait for their retry out of slot, with a handle to pause, clear and drain |"
)]
#![cfg_attr(
    feature = "retry",
    doc = "| [`retry`] | the retry policy: attempts, jittered delays, hints, budget; in the queue or in tower's `RetryLayer` |"
)]
#![cfg_attr(
    feature = "degrade",
    doc = "| [`degrade`] | facts, ladders and the level that the parts of a service react to |"
)]
#![cfg_attr(
    feature = "reconnect",
    doc = "| [`reconnect`] | a long-lived resource that is connected, restored and lost |"
)]
//! | [`verdict`] | what an attempt's result means, and what may be repeated |
//! | [`reject`] | what the stack answers by itself, and how that reaches the caller |
//! | [`facts`] | the numbers of one window |
//! | [`error`] | what is wrong with a configuration |

pub mod error;
pub mod facts;
pub mod reject;
pub mod verdict;

#[cfg(feature = "degrade")]
pub mod degrade;
#[cfg(feature = "queue")]
pub mod queue;
#[cfg(feature = "reconnect")]
pub mod reconnect;
#[cfg(feature = "retry")]
pub mod retry;

#[cfg(any(feature = "retry", feature = "reconnect"))]
pub use tower_sluice_backoff as backoff;

/// An error of any type, as tower's own layers return it.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// The code blocks of the README, compiled with the tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
