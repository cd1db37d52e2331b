//! Test kit for tower layers and stacks: a scripted service, a contract probe, counted futures and wakers, seeds.

pub mod script;

mod by_hand;
mod spy;
mod waker;

pub use by_hand::{ByHand, by_hand};
pub use script::{Failure, Script, Step};
pub use spy::{Spied, Spy, spied};
pub use waker::{SpyWaker, Wakes};
