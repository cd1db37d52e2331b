//! Wakers gathered under a lock and run after it.

use std::task::Waker;

/// Wakers to run once no lock is held: waking or dropping one may run a task, which may lock again.
///
/// Most sections wake one call, so the first needs no allocation.
#[derive(Debug, Default)]
pub(super) struct Wakers {
    first: Option<Waker>,
    more: Vec<Waker>,
}

impl Wakers {
    pub(super) fn push(&mut self, waker: Option<Waker>) {
        if self.first.is_none() {
            self.first = waker;
        } else {
            self.more.extend(waker);
        }
    }

    pub(super) fn wake(self) {
        if let Some(waker) = self.first {
            waker.wake();
        }
        for waker in self.more {
            waker.wake();
        }
    }
}
