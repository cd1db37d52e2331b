//! HTTP and gRPC meaning for [`tower_sluice`], and all of [`tower_sluice`] with it.

mod level;

pub use tower_sluice::*;

#[cfg(feature = "axum")]
pub use crate::level::NoLevel;
pub use crate::level::{HttpLevelFuture, HttpLevelLayer, HttpTellLevel, Level, level_layer};
