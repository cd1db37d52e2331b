//! A concurrency limit (bulkhead) whose failed calls wait for their retry out of slot.
//!
//! Limit and retry are one layer, so that they cannot be stacked in the wrong order: a failed attempt frees its slot at
//! once, the call sleeps out of slot, and comes back to the line.
//!
//! ```text
//!  call ──▶ queued ──slot──▶ running ──answer──▶ done
//!              ▲                │ retryable failure: the slot is freed here
//!              └──── due ─── deferred
//! ```
//!
//! - [`QueueLayer`] is the layer; everything built from one value shares one limit and one line.
//! - [`Handle`] watches and steers it: pause, clear, close, drain, resize, figures.
//! - [`batch::run`] drives many calls through a service and gives each item its result.
//!
//! ```
//! use std::time::Duration;
//! use tower::{Layer, ServiceExt, service_fn};
//! use tower_sluice::backoff::Backoff;
//! use tower_sluice::queue::QueueLayer;
//! use tower_sluice::retry::RetryPolicy;
//!
//! # tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap().block_on(async {
//! let queue = QueueLayer::new(1).retry(RetryPolicy::new(3, Backoff::rpc()));
//! let handle = queue.handle();
//! let service = queue.layer(service_fn(|attempt: u32| async move {
//!     if attempt == 0 { Err("try again") } else { Ok(attempt) }
//! }));
//! // The first call fails, and sleeps out of slot: the second one has the only slot meanwhile.
//! let first = tokio::spawn(service.clone().oneshot(0));
//! tokio::task::yield_now().await;
//! assert_eq!(service.oneshot(1).await.unwrap(), 1);
//! assert_eq!((handle.stats().deferred, handle.stats().running), (1, 0));
//! # first.abort();
//! # });
//! ```
//!
//! # Which wait ends under which timeout
//!
//! | | [`queue_timeout`](QueueLayer::queue_timeout) | [`attempt_timeout`](QueueLayer::attempt_timeout) | [`call_timeout`](QueueLayer::call_timeout) |
//! |---|---|---|---|
//! | in the line | each stay, time spent paused not counted | | yes |
//! | for the inner service to be ready | | | yes |
//! | an attempt, up to the response's head | | each | yes |
//! | between attempts | | | yes |
//! | the response's body | | | |
//!
//! # What the caller gets
//!
//! The service's own answers come as they are. What the queue decides by itself is a
//! [`Rejection`](crate::reject::Rejection), which reaches the caller as the [mode](crate::reject) says: boxed, typed,
//! or as a response.
//!
//! # Differences from the like in tower
//!
//! Of tower's `ConcurrencyLimit`: readiness takes no slot, so that a handle which is ready and idle holds nothing; the
//! line is bounded. Of `Retry` over it: a retry comes back to the place of its arrival, and two calls never share a
//! random series. Of `Timeout`: it covers the wait in the line. Of `LoadShed`: it turns away what does not fit in the
//! line, not what does not run at once (though [`max_waiting(0)`](QueueLayer::max_waiting) does).
mod class;
mod events;
mod follow;
mod future;
mod gate;
mod handle;
mod layer;
mod lease;
mod line;
#[cfg(all(test, sluice_loom))]
mod loom_models;
mod mode;
mod observers;
mod options;
mod place;
mod running;
mod service;
mod shared;
mod slot;
mod slots;
mod source;
mod starting;
mod stats;
mod sync;
mod time;
mod timer;
mod typical;
mod wakers;
mod word;

pub mod batch;

pub use class::{ClassLayer, ClassStats};
pub use follow::Follow;
pub use future::ResponseFuture;
pub use handle::{Closed, Drained, Handle, StatsWatch};
pub use layer::{NoRetry, QueueLayer, ReadDeadline};
pub use mode::{DeadlineFrom, Mode, Wrap};
pub use options::CallOptions;
pub use service::Queue;
pub use slot::Slot;
pub use slots::Requeue;
pub use stats::{RejectedStats, Stats};
