#![doc = include_str!("../README.md")]

mod backoff;
mod draw;
mod invalid;

pub use backoff::{Backoff, Delays, Jitter};
pub use draw::{Draw, Sample, random_seed};
pub use invalid::InvalidBackoff;
