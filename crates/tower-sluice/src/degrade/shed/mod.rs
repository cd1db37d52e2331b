//! Turning work away at its arrival.
//!
//! [`ShedLayer`] stands outside a queue: what it turns away has not waited in a line. For classes that share one
//! queue, the queue's own class views do the same with a bound of their own.

mod future;
mod gate;
mod layer;
mod service;

pub use self::future::ResponseFuture;
pub use self::gate::{ByClass, Class, ClassStats, Gate};
pub use self::layer::ShedLayer;
pub use self::service::Shed;
