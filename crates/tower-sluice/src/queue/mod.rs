//! A concurrency limit (bulkhead) whose failed calls wait for their retry out of slot.
mod class;
mod events;
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
pub use future::ResponseFuture;
pub use handle::{Closed, Drained, Handle, StatsWatch};
pub use layer::{NoRetry, QueueLayer};
pub use mode::{DeadlineFrom, Mode, Wrap};
pub use options::CallOptions;
pub use service::Queue;
pub use slot::Slot;
pub use slots::Requeue;
pub use stats::{RejectedStats, Stats};
