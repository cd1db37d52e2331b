//! Facts, ladders, and the level that the parts of a service react to.
//!
//! Between working and failing lies a ladder, for example high, medium, low, audio only. Walking it down keeps a
//! service alive; walking it up, slowly, brings back what there is room for.
//!
//! ```text
//!  MeasureLayer ─┐  once a window            ┌─ handlers: LevelLayer, Signal::level
//!  a queue ──────┼──▶ facts ─▶ rules ─▶ level┼─ ShedLayer, a queue's classes: Signal::at_least
//!  a link ───────┘          a Ladder         └─ a limit that follows: Signal::watch
//! ```
//!
//! - What measures publishes facts and decides nothing: [`MeasureLayer`] for attempts, and any
//!   [`Source`](crate::facts::Source), such as a queue's handle.
//! - A [`Ladder`] turns them into a level, by its own [rules](rule). Several ladders may read the same facts; they do
//!   not know each other.
//! - A [`Signal`] says which level holds. Who can do less at a lower one reads it, and knows nothing of ladders.
//!
//! ```
//! use std::time::Duration;
//! use tower::{Layer, Service, ServiceExt, service_fn};
//! use tower_sluice::degrade::{Ladder, MeasureLayer, ShedLayer, rule};
//! use tower_sluice::reject::Rejection;
//!
//! # #[tokio::main(flavor = "current_thread", start_paused = true)]
//! # async fn main() {
//! let measure = MeasureLayer::new();
//! let level = Ladder::new(["all", "vital"]).rule(rule::failure_ratio()).source(measure.facts()).spawn();
//!
//! // An upstream that fails, and a class of requests that is not vital.
//! let upstream = measure.layer(service_fn(|_: &str| async { Err::<(), _>("down") }));
//! let mut service = ShedLayer::new(level.at_least("all"))
//!     .layer(tower::util::MapErr::new(upstream, std::io::Error::other));
//! for _ in 0..20 {
//!     assert!(service.ready().await.unwrap().call("news").await.is_err());
//! }
//! tokio::time::sleep(Duration::from_millis(1_001)).await;
//! assert_eq!(level.level(), "vital");
//! let error = service.ready().await.unwrap().call("news").await.unwrap_err();
//! assert_eq!(Rejection::find(&*error).unwrap().to_string(), "not served at level vital");
//! # }
//! ```

mod combine;
mod ladder;
mod level;
pub mod measure;
mod position;
mod reading;
pub mod rule;
pub mod shed;
mod signal;
mod window;

pub use self::ladder::{Ladder, LadderDriver};
pub use self::level::{LevelLayer, TellLevel};
pub use self::measure::{Measure, MeasureLayer, Meter};
pub use self::reading::{Cause, Reading};
pub use self::rule::Rule;
pub use self::shed::{Shed, ShedLayer};
pub use self::signal::{AtLeast, Rung, Signal, Step};
pub use self::window::{FactsWatch, Window, WindowDriver};

/// The code blocks of the guide to levels, compiled with the tests.
#[cfg(doctest)]
#[doc = include_str!("../../../../docs/levels.md")]
mod guide {}
