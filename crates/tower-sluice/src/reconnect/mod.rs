//! A long-lived resource that is connected, restored and lost: a session with a broker, a websocket, a database.
//!
//! Repeating a request repeats a function; reconnecting restores a context. A broker's client that is connected again
//! has no subscriptions, does not know where it was, and cannot tell which of its messages arrived. So a [`Link`] counts
//! as connected only when its `restore` has put all of that back, and a `restore` that fails is a try that failed.
//!
//! ```
//! use tower_sluice::backoff::Backoff;
//! use tower_sluice::reconnect::{Link, LinkState, Unacked};
//! # use tower_sluice::BoxError;
//! # #[derive(Clone)] struct Conn;
//! # impl Conn {
//! #     async fn dial(_: &str) -> Result<Self, BoxError> { Ok(Self) }
//! #     async fn subscribe(&self, _: &str) -> Result<(), BoxError> { Ok(()) }
//! #     async fn send(&self, _: u64, _: &str) -> Result<(), BoxError> { Ok(()) }
//! #     async fn ping(&self) -> Result<(), BoxError> { Ok(()) }
//! #     async fn closed(&self) { std::future::pending().await }
//! # }
//! # use std::time::Duration;
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), BoxError> {
//! let unacked = Unacked::<String>::new(1_000);
//! let resend = unacked.clone();
//! let link = Link::connect(|| Conn::dial("wss://broker")) // called anew for every try
//!     .restore(move |conn: Conn| {
//!         let resend = resend.clone();
//!         async move {
//!             conn.subscribe("orders").await?;
//!             for (n, message) in resend.iter() {
//!                 conn.send(n, &message).await?;
//!             }
//!             Ok::<_, BoxError>(conn)
//!         }
//!     })
//!     .closed(Conn::closed)
//!     .heartbeat(Duration::from_secs(15), Conn::ping)
//!     .backoff(Backoff::connection()) // 500 ms to 30 s, no attempt limit: the default
//!     .spawn();
//!
//! let state = link.state(); // a `watch`; `Waiting { until, .. }` is the countdown
//! let n = unacked.push("hello".into()).await?;
//! let conn = link.get().await?; // waits while the link is down, within bounds
//! if let Err(error) = conn.send(n, "hello").await {
//!     conn.broken(error); // nobody is given this connection again; `restore` will send the message
//! }
//! assert!(matches!(*state.borrow(), LinkState::Connected { generation: 1, .. }));
//! # Ok(()) }
//! ```
//!
//! # What a caller sees
//!
//! | [`LinkState`] | [`Link::get`], and a [`Reconnect`]'s `poll_ready` | [`Link::try_get`] |
//! |---|---|---|
//! | `Connecting`, `Restoring`, `Waiting` | wait, at most [`max_wait`](LinkBuilder::max_wait) (30 s) and [`max_waiting`](LinkBuilder::max_waiting) (1 024) callers; or [turned away](LinkBuilder::turn_away) | [`Rejection::Disconnected`] |
//! | `Connected` | the connection | the connection |
//! | `Disconnected` | turned away, since no try is planned; a [lazy](LinkBuilder::lazy) link starts with the first caller | [`Rejection::Disconnected`] |
//!
//! The rejection says when the next try is, and why the link is down. A call that was under way when the link fell gets
//! its own error, and is not sent again by the link: a queue or a retry above it decides that, and since the link is not
//! ready while it is down, they burn no attempts on it.
//!
//! # Tries
//!
//! There is one counter of tries that failed, one place where a try starts, and no path around the wait before it:
//! a connect that fails, a restore that fails, either of them taking too long or panicking, and a link that is lost
//! before [`min_uptime`](LinkBuilder::min_uptime) (10 s) all count alike. A peer that accepts and closes is therefore not
//! called more often than one that refuses. The first wait after a stable link is lost is drawn from up to
//! [`first_wait`](LinkBuilder::first_wait) (2 s), since all clients of a server lose it in the same instant.
//!
//! # Signs of loss
//!
//! | sign | setter |
//! |---|---|
//! | the connection's own future that ends when it is closed | [`LinkBuilder::closed`] |
//! | a heartbeat that fails or is not answered | [`LinkBuilder::heartbeat`] |
//! | whoever uses the connection reports it | [`Lease::broken`], [`Lease::exchange`] |
//! | a service's `poll_ready` fails | [`Reconnect`], always |
//! | a service's error that a classifier recognises | [`Reconnect::broken_if`] |
//!
//! Each is about its own generation of the connection: a late error of the first does not end the second.
//!
//! # As a service
//!
//! Where the connection is a tower service, [`Reconnect`] is one over its link; [`ReconnectLayer`] makes it of a
//! connector, tower's `MakeService`.
//!
//! # One driver
//!
//! Each link is driven by one future, [`Driver`], that `spawn` spawns. It ends when the last [`Link`], [`Lease`] and
//! [`Reconnect`] is gone. All that decides is a value without a clock and without I/O; the state is a `watch`.
//!
//! [`Rejection::Disconnected`]: crate::reject::Rejection::Disconnected

mod broken;
mod builder;
mod caught;
mod connect;
mod driver;
mod future;
mod get;
mod layer;
mod lease;
mod link;
mod machine;
mod readiness;
mod service;
mod settings;
mod shared;
mod state;
mod unacked;
mod watch;

pub use broken::{Broken, BrokenIf, NeverBroken};
pub use builder::LinkBuilder;
pub use connect::{Connect, MakeConnection, Making, NoRestore, Restore};
pub use driver::Driver;
pub use future::ResponseFuture;
pub use get::Get;
pub use layer::ReconnectLayer;
pub use lease::{Exchange, Lease};
pub use link::Link;
pub use service::Reconnect;
pub use state::{Cause, CauseKind, LinkState};
pub use unacked::{Iter, PushError, Unacked};
pub use watch::{ClosedReason, ConnectionFn};

/// The guide's code blocks, as doctests.
#[cfg(doctest)]
#[doc = include_str!("../../../../docs/reconnecting.md")]
struct Guide;
