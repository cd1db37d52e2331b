//! Measuring attempts.
//!
//! [`MeasureLayer`] counts how each attempt ended and how long it took, and decides nothing. It stands where every
//! attempt passes: below a queue or a retry layer, never above, where a whole cycle of 503, 503, 200 would look like
//! one slow success.
//!
//! Its state belongs to the layer value: whatever is built from one value, and from its clones, is counted together.

mod counters;
mod future;
mod layer;
mod service;

pub use self::counters::Meter;
pub use self::future::ResponseFuture;
pub use self::layer::MeasureLayer;
pub use self::service::Measure;
