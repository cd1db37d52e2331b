//! The one atomic word that a call without a wait touches: limit, running, starting, and a flag for the rest.

use super::sync::{AtomicU64, Ordering};

const BITS: u32 = 24;
const FIELD: u64 = (1 << BITS) - 1;

/// One attempt that runs.
const RUNNING: u64 = 1;
/// One attempt that is being started: it has its slot, and the inner service's `call` has not returned.
const STARTING: u64 = 1 << BITS;
/// Fourteen bits: more threads at once inside the inner service's `call` than a system has.
const STARTING_FIELD: u64 = (1 << 14) - 1;
const LIMIT_SHIFT: u32 = BITS + 14;
/// Calls that come, and successes, have to take the lock.
const SLOW: u64 = 1 << 63;

/// The largest limit. `running` never exceeds it, and so never leaves its field.
pub(super) const MAX_LIMIT: usize = FIELD as usize - 1;
/// In the limit's field: no limit. (Then no more than 16 777 215 attempts run at once.)
pub(super) const UNLIMITED: usize = FIELD as usize;

/// One reading of the word.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reading(u64);

impl Reading {
    #[inline]
    pub(super) fn running(self) -> usize {
        (self.0 & FIELD) as usize
    }

    #[inline]
    pub(super) fn starting(self) -> usize {
        ((self.0 >> BITS) & STARTING_FIELD) as usize
    }

    #[inline]
    pub(super) fn limit(self) -> usize {
        ((self.0 >> LIMIT_SHIFT) & FIELD) as usize
    }

    #[inline]
    pub(super) fn has_free_slot(self) -> bool {
        self.running() < self.limit()
    }

    #[inline]
    pub(super) fn is_slow(self) -> bool {
        self.0 & SLOW != 0
    }
}

/// Every change is one atomic step on one location, so all threads agree on their order. That is what pause rests
/// on: a start either comes before the flag, and is seen as starting, or after it, and does not happen.
///
/// While the flag is set, `running`, `starting` and `limit` grow only under the lock.
#[derive(Debug)]
pub(super) struct Word(AtomicU64);

impl Word {
    pub(super) fn new(limit: usize) -> Self {
        Self(AtomicU64::new((limit as u64) << LIMIT_SHIFT))
    }

    pub(super) fn read(&self) -> Reading {
        Reading(self.0.load(Ordering::Acquire))
    }

    /// Takes a slot and counts a start, unless the flag is set or all slots are taken.
    #[inline]
    pub(super) fn try_start(&self) -> bool {
        let mut now = self.0.load(Ordering::Relaxed);
        loop {
            let reading = Reading(now);
            if reading.is_slow() || !reading.has_free_slot() {
                return false;
            }
            let next = now + RUNNING + STARTING;
            match self.0.compare_exchange_weak(now, next, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return true,
                Err(changed) => now = changed,
            }
        }
    }

    /// The inner service's `call` has returned; `true` where it was the last to, and a pauser may wait for that.
    #[inline]
    pub(super) fn started(&self) -> bool {
        let before = Reading(self.0.fetch_sub(STARTING, Ordering::AcqRel));
        before.is_slow() && before.starting() == 1
    }

    /// Gives the slot back; `true` where the lock has to be taken now, since others wait or watch.
    #[inline]
    pub(super) fn release(&self) -> bool {
        Reading(self.0.fetch_sub(RUNNING, Ordering::AcqRel)).is_slow()
    }

    /// Sends every call that comes, and every success, to the lock. Under the lock only.
    pub(super) fn slow(&self) {
        self.0.fetch_or(SLOW, Ordering::AcqRel);
    }

    /// Undoes [`slow`](Self::slow). Under the lock only.
    pub(super) fn fast(&self) {
        self.0.fetch_and(!SLOW, Ordering::AcqRel);
    }

    /// Takes a slot. Under the lock only, with the flag set, after seeing a free one: nobody else takes any.
    pub(super) fn take(&self) {
        self.0.fetch_add(RUNNING, Ordering::AcqRel);
    }

    /// Counts a start for a slot that is held. Under the lock only, with the flag set.
    pub(super) fn starts(&self) {
        self.0.fetch_add(STARTING, Ordering::AcqRel);
    }

    /// Under the lock only, with the flag set.
    pub(super) fn set_limit(&self, limit: usize) {
        let old = self.read().limit() as u64;
        // One step for both directions: other fields move meanwhile, this one does not.
        self.0.fetch_add(((limit as u64).wrapping_sub(old)) << LIMIT_SHIFT, Ordering::AcqRel);
    }
}

#[cfg(all(test, not(sluice_loom)))]
mod tests {
    use super::*;

    #[test]
    fn fields_do_not_touch_each_other() {
        let word = Word::new(2);
        assert!(word.try_start() && word.try_start() && !word.try_start());
        word.slow();
        for limit in [1, MAX_LIMIT, UNLIMITED, 3] {
            word.set_limit(limit);
            let now = word.read();
            assert_eq!((now.limit(), now.running(), now.starting(), now.is_slow()), (limit, 2, 2, true));
        }
        assert!(!word.started(), "another one starts");
        assert!(word.release());
        word.fast();
        let now = word.read();
        assert_eq!((now.limit(), now.running(), now.starting(), now.is_slow()), (3, 1, 1, false));
        assert!(!word.release());
    }
}
