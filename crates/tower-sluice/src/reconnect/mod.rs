//! reconnect

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
