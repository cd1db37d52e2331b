//! Marks which queues' inner services this thread is calling just now.
//!
//! `pause` waits until no attempt is being started. From inside such a start it would wait for itself.

use std::cell::{Cell, RefCell};

use super::shared::Shared;

thread_local! {
    /// The innermost.
    static INSIDE: Cell<usize> = const { Cell::new(0) };
    /// Those around it: one queue's inner service may be another queue.
    static AROUND: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

fn name(shared: &Shared) -> usize {
    std::ptr::from_ref(shared).addr()
}

/// Whether this thread is inside a start on behalf of this queue.
pub(super) fn is_inside(shared: &Shared) -> bool {
    let name = name(shared);
    INSIDE.get() == name || AROUND.with_borrow(|around| around.contains(&name))
}

#[cold]
fn push_around(name: usize) {
    AROUND.with_borrow_mut(|around| around.push(name));
}

#[cold]
fn pop_around() {
    AROUND.with_borrow_mut(|around| around.pop());
}

/// An attempt that counts as starting, until this is dropped, also by a panic.
#[derive(Debug)]
pub(super) struct Starting<'a> {
    shared: &'a Shared,
    /// The pace has to be told before the inner service's `call`.
    pub(super) paced: bool,
    before: usize,
    /// The queue has taken the start back by itself.
    over: bool,
}

impl<'a> Starting<'a> {
    #[inline(always)]
    pub(super) fn new(shared: &'a Shared, paced: bool) -> Self {
        let before = INSIDE.replace(name(shared));
        if before != 0 {
            push_around(before);
        }
        Self { shared, paced, before, over: false }
    }

    /// The attempt begins now: the inner service's `call` comes next.
    #[inline]
    pub(super) fn record(&mut self) {
        if std::mem::take(&mut self.paced) {
            self.shared.slots.record_start();
        }
    }

    /// The queue takes the start back by itself.
    pub(super) fn hand_back(mut self) {
        self.over = true;
    }
}

impl Drop for Starting<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        INSIDE.set(self.before);
        if self.before != 0 {
            pop_around();
        }
        if self.over {
            return;
        }
        if self.paced {
            self.shared.slots.abandon_start();
        }
        self.shared.slots.started();
    }
}
