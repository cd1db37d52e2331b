//! Bodies that can be sent again.
//!
//! A [`ReplayBody`] streams a body to its first reader while keeping what was read, up to a cap, so that a clone of it
//! replays the same frames, trailers too, and then reads on where the first one stopped. Beyond the cap the reader
//! under way goes on, and what was kept is dropped: the body can no longer be replayed.
//!
//! | | for |
//! |---|---|
//! | [`replay_bodies`](crate::HttpRetry::replay_bodies) on the policy | the queue; the stack's body type stays what it is |
//! | [`ReplayLayer`] | tower's own `RetryLayer`, outside of which it lies; bodies below it are [`ReplayBody`]s |
//!
//! # Who reads
//!
//! The attempts of a call read one after the other: the latest that has begun to read has the turn. An earlier one that
//! still tries (HTTP/2 may go on sending a body after the answer is there) gets an error, which ends its stream.
//! Between an attempt's failure and the next one's start the earlier reader goes on only as far as the cap allows, so
//! that it cannot spoil a retry that has been decided on.

mod body;
mod copy;
mod layer;
mod service;
mod tape;

pub use body::{NotReplayed, ReplayBody};
pub use copy::ReplayBodies;
pub use layer::ReplayLayer;
pub use service::Replay;

pub(crate) use tape::Intact;
