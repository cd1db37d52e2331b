//! How many of something are under way, and the most there ever were at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

#[derive(Clone, Debug, Default)]
pub(crate) struct Gauge(Arc<Counts>);

#[derive(Debug, Default)]
struct Counts {
    now: AtomicUsize,
    peak: AtomicUsize,
}

impl Gauge {
    /// One more, until the guard is dropped.
    pub(crate) fn enter(&self) -> Inside {
        let now = self.0.now.fetch_add(1, SeqCst) + 1;
        self.0.peak.fetch_max(now, SeqCst);
        Inside(self.0.clone())
    }

    pub(crate) fn peak(&self) -> usize {
        self.0.peak.load(SeqCst)
    }
}

#[derive(Debug)]
pub(crate) struct Inside(Arc<Counts>);

impl Drop for Inside {
    fn drop(&mut self) {
        self.0.now.fetch_sub(1, SeqCst);
    }
}
