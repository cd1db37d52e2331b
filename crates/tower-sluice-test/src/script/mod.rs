//! A service that follows a script, and keeps a record of how it was used.
//!
//! [`Script`] is the handle that a test keeps: it writes the script, looks at the records, and releases what is
//! held. [`Script::service`] and [`Script::http`] make the services that follow it.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread", start_paused = true)]
//! # async fn main() {
//! use std::time::Duration;
//! use tower::{Service, ServiceExt};
//! use tower_sluice_test::{Failure, Script};
//!
//! let script = Script::new().fail("reset").answer("pong").after(Duration::from_millis(20));
//! let mut service = script.service();
//!
//! assert_eq!(service.ready().await.unwrap().call("ping").await, Err(Failure::from("reset")));
//! assert_eq!(service.ready().await.unwrap().call("ping").await, Ok("pong"));
//! assert_eq!(script.starts(), [Duration::ZERO, Duration::ZERO]);
//! assert_eq!(script.ends(), [Duration::ZERO, Duration::from_millis(20)]);
//! assert_eq!((script.calls(), script.peak()), (2, 1));
//! # }
//! ```
//!
//! # The two tracks of a script
//! Each attempt, in order of `call`, takes the next *step*: what it answers, after how long. Each time a clone is to
//! become ready, it takes the next *readiness*: at once (where nothing is said), after a time, when released, or
//! never, with an error. On both tracks **the last entry repeats** once the script is used up. A script may be
//! written on while it runs: setters act on what all clones of the handle share.
//!
//! # Readiness is lost on clone
//! A service may be called only if this very clone was polled ready since its last call; a clone of a ready one is
//! not ready. This is what [`tower::limit::ConcurrencyLimit`] and `tower::buffer::Buffer` do, and what a service over
//! a bare function hides. A call without readiness panics with "called without readiness", and is kept in
//! [`Script::violations`], for the case that something catches the panic.
//!
//! [`tower::limit::ConcurrencyLimit`]: https://docs.rs/tower/latest/tower/limit/struct.ConcurrencyLimit.html

mod future;
mod handle;
#[cfg(feature = "http")]
mod http;
mod records;
mod service;
mod shared;
mod step;

pub use self::future::ResponseFuture;
pub use self::handle::Script;
#[cfg(feature = "http")]
pub use self::http::{IntoReply, reply};
pub use self::records::{Attempt, Outcome};
pub use self::service::Scripted;
pub use self::step::{Failure, Step};
