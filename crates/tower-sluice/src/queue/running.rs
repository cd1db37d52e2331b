//! Since when each attempt runs that was not over at once.

use std::time::Duration;

use slab::Slab;

use super::sync::{Mutex, lock};
use super::time::Tick;

/// Makes a future visible that is no longer polled. A lock of its own, so that the line's is not taken for it.
#[derive(Debug, Default)]
pub(super) struct RunningSince {
    since: Mutex<Slab<Tick>>,
}

impl RunningSince {
    pub(super) fn insert(&self, since: Tick) -> u32 {
        // As many as run at once: fits.
        lock(&self.since).insert(since) as u32
    }

    pub(super) fn remove(&self, key: u32) {
        lock(&self.since).remove(key as usize);
    }

    pub(super) fn oldest(&self, now: Tick) -> Option<Duration> {
        lock(&self.since).iter().map(|(_, since)| now.since(*since)).max()
    }
}
