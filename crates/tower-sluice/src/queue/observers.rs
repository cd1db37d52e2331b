//! Who waits for the queue to come to a certain state.

use std::task::Waker;

use slab::Slab;

use super::wakers::Wakers;

/// What an observer waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Until {
    /// Nothing queued, running or deferred.
    Idle,
    /// Fewer than so many queued and deferred.
    WaitingBelow(usize),
    /// Any figure differs from these.
    Differs(Figures),
}

/// The figures whose change is published.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Figures {
    pub(super) admitted: u64,
    pub(super) running: usize,
    pub(super) queued: usize,
    pub(super) deferred: usize,
    pub(super) turned_away: u64,
    pub(super) limit: usize,
    pub(super) paused: bool,
    pub(super) closed: bool,
}

impl Figures {
    pub(super) fn is_idle(&self) -> bool {
        self.running == 0 && self.queued == 0 && self.deferred == 0
    }

    pub(super) fn satisfy(&self, until: Until) -> bool {
        match until {
            Until::Idle => self.is_idle(),
            Until::WaitingBelow(n) => self.queued + self.deferred < n,
            Until::Differs(seen) => *self != seen,
        }
    }
}

#[derive(Debug)]
struct Observer {
    until: Until,
    /// `None` once it has been reached: that it was so at some instant is what counts.
    waker: Option<Waker>,
}

/// A fixed amount of memory for each that waits, none for those that came and went.
#[derive(Debug, Default)]
pub(super) struct Observers {
    observers: Slab<Observer>,
    waiting: usize,
}

/// Slots of memory that are kept when the last observer leaves.
const KEPT: usize = 64;

impl Observers {
    /// Whether somebody still waits.
    pub(super) fn is_waiting(&self) -> bool {
        self.waiting > 0
    }

    pub(super) fn add(&mut self, until: Until, waker: Waker) -> usize {
        self.waiting += 1;
        self.observers.insert(Observer { until, waker: Some(waker) })
    }

    /// `None` if it has been reached, else whether the waker is the one that will be woken.
    pub(super) fn will_wake(&self, key: usize, waker: &Waker) -> Option<bool> {
        self.observers[key].waker.as_ref().map(|old| old.will_wake(waker))
    }

    /// Replaces the waker of one that waits; the old one is to be dropped after the lock.
    pub(super) fn replace(&mut self, key: usize, waker: Waker) -> Option<Waker> {
        let old = &mut self.observers[key].waker;
        if old.is_some() { old.replace(waker) } else { Some(waker) }
    }

    /// The waker is to be dropped after the lock.
    pub(super) fn remove(&mut self, key: usize) -> Option<Waker> {
        let waker = self.observers.remove(key).waker;
        self.waiting -= usize::from(waker.is_some());
        if self.observers.is_empty() && self.observers.capacity() > KEPT {
            // Each look goes through all of it.
            self.observers = Slab::new();
        }
        waker
    }

    /// Releases those whose time has come.
    pub(super) fn see(&mut self, figures: Figures, wakers: &mut Wakers) {
        if self.waiting == 0 {
            return;
        }
        for (_, observer) in &mut self.observers {
            if observer.waker.is_some() && figures.satisfy(observer.until) {
                wakers.push(observer.waker.take());
                self.waiting -= 1;
            }
        }
    }
}

#[cfg(all(test, not(sluice_loom)))]
mod tests {
    use super::*;

    #[test]
    fn q11_many_who_waited_at_once_cost_those_who_wait_later_nothing() {
        let mut observers = Observers::default();
        let keys: Vec<_> = (0..10_000).map(|_| observers.add(Until::Idle, Waker::noop().clone())).collect();
        for key in keys {
            observers.remove(key);
        }
        assert!(!observers.is_waiting());
        assert!(observers.observers.capacity() <= KEPT);
        // A few come and go without an allocation each.
        let key = observers.add(Until::Idle, Waker::noop().clone());
        observers.remove(key);
        assert!(observers.observers.capacity() > 0);
    }
}
