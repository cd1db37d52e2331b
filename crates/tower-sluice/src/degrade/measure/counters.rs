//! Counting attempts without a lock or an allocation.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use crate::facts::{AttemptFacts, Facts, Latencies, Source};
use crate::verdict::{FailureKind, Verdict};

/// What was counted since the layer was made. A success is one addition; the number of successes is what the
/// others leave.
pub(super) struct Counters {
    /// How many meters there are; with none, nothing is counted.
    meters: AtomicUsize,
    latencies: [AtomicU64; Latencies::BUCKETS],
    failed: [AtomicU64; FailureKind::ALL.len()],
    fatal: AtomicU64,
    /// Of the failed and fatal ones, those whose service was not ready, so that they have no latency.
    unready: AtomicU64,
    cancelled: AtomicU64,
}

impl Counters {
    pub(super) fn new() -> Self {
        Self {
            meters: AtomicUsize::new(0),
            latencies: [const { AtomicU64::new(0) }; Latencies::BUCKETS],
            failed: [const { AtomicU64::new(0) }; FailureKind::ALL.len()],
            fatal: AtomicU64::new(0),
            unready: AtomicU64::new(0),
            cancelled: AtomicU64::new(0),
        }
    }

    #[inline]
    pub(super) fn wanted(&self) -> bool {
        self.meters.load(Ordering::Relaxed) > 0
    }

    #[inline]
    pub(super) fn ended(&self, verdict: &Verdict, latency: Duration) {
        self.not_succeeded(verdict);
        self.latencies[Latencies::bucket(latency)].fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn unready(&self, verdict: &Verdict) {
        // A readiness error is none of the outcomes that have a latency, so a success would be derived from it.
        if self.not_succeeded(verdict) {
            self.unready.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(super) fn cancelled(&self) {
        self.cancelled.fetch_add(1, Ordering::Relaxed);
    }

    #[inline]
    fn not_succeeded(&self, verdict: &Verdict) -> bool {
        let counter = match verdict {
            Verdict::Success => return false,
            Verdict::Fatal => &self.fatal,
            Verdict::Retry(failure) => &self.failed[failure.kind.index()],
        };
        counter.fetch_add(1, Ordering::Relaxed);
        true
    }

    fn sample(&self) -> AttemptFacts {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        // Before the failures, so that one which ends meanwhile takes a success from this sample, to be given back by
        // the next, and is not taken for one.
        let latency = Latencies::from_buckets(self.latencies.iter().map(read));
        let unready = read(&self.unready);
        let [throttled, unavailable, transient, timeout] =
            FailureKind::ALL.map(|kind| read(&self.failed[kind.index()]));
        let (fatal, cancelled) = (read(&self.fatal), read(&self.cancelled));
        let mut facts = AttemptFacts {
            succeeded: 0,
            throttled,
            unavailable,
            transient,
            timeout,
            fatal,
            cancelled,
            latency,
        };
        let others = facts.failed().saturating_add(facts.fatal);
        facts.succeeded = facts.latency.count().saturating_add(unready).saturating_sub(others);
        facts
    }
}

impl fmt::Debug for Counters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Counters").field(&self.sample()).finish()
    }
}

/// What a [`MeasureLayer`](super::MeasureLayer) has counted, as a [`Source`] of facts.
///
/// As long as there is one, attempts are counted; with none they pass without a look at the clock.
pub struct Meter {
    counters: Arc<Counters>,
}

impl Meter {
    pub(super) fn new(counters: &Arc<Counters>) -> Self {
        counters.meters.fetch_add(1, Ordering::Relaxed);
        Self { counters: Arc::clone(counters) }
    }
}

impl Source for Meter {
    fn sample(&self) -> Facts {
        self.counters.sample().into()
    }
}

impl Clone for Meter {
    fn clone(&self) -> Self {
        Self::new(&self.counters)
    }
}

impl Drop for Meter {
    fn drop(&mut self) {
        self.counters.meters.fetch_sub(1, Ordering::Relaxed);
    }
}

impl fmt::Debug for Meter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Meter").field(&self.counters.sample()).finish()
    }
}
