use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Wake, Waker};

/// Makes a waker that counts its wakes, and can run code where it is woken or dropped.
///
/// The code runs wherever the tested code wakes or drops the waker. If it locks what the tested code has locked, the
/// test hangs or panics: so it shows that no lock is held over wakers. In a real program that code is a task: waking
/// may run it, and dropping its last waker drops it, with all that it owns.
///
/// ```
/// use std::task::{Context, Poll};
/// use tower_sluice_test::SpyWaker;
///
/// let (waker, seen) = SpyWaker::new().on_drop(|| println!("the task is gone")).build();
/// let kept = waker.clone();
/// kept.wake_by_ref();
/// assert_eq!((seen.wakes(), seen.references()), (1, 2));
/// drop((waker, kept));
/// assert_eq!(seen.references(), 0);
/// ```
#[derive(Default)]
pub struct SpyWaker {
    on_wake: Option<Box<dyn Fn() + Send + Sync>>,
    on_drop: Option<Box<dyn FnOnce() + Send + Sync>>,
}

impl SpyWaker {
    /// A waker that only counts.
    pub fn new() -> Self {
        Self::default()
    }

    /// Runs `f` at each wake, after it is counted.
    #[must_use]
    pub fn on_wake(mut self, f: impl Fn() + Send + Sync + 'static) -> Self {
        self.on_wake = Some(Box::new(f));
        self
    }

    /// Runs `f` once, where the last clone of the waker is dropped, as a task is dropped with its last waker.
    #[must_use]
    pub fn on_drop(mut self, f: impl FnOnce() + Send + Sync + 'static) -> Self {
        self.on_drop = Some(Box::new(f));
        self
    }

    /// The waker, and what is seen of it.
    pub fn build(self) -> (Waker, Wakes) {
        let count = Arc::new(AtomicUsize::new(0));
        let task = Arc::new(Task { count: count.clone(), on_wake: self.on_wake, on_drop: self.on_drop });
        let wakes = Wakes { count, task: Arc::downgrade(&task) };
        (task.into(), wakes)
    }
}

impl fmt::Debug for SpyWaker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SpyWaker")
            .field("on_wake", &self.on_wake.is_some())
            .field("on_drop", &self.on_drop.is_some())
            .finish()
    }
}

/// What is seen of a waker made by [`SpyWaker`].
#[derive(Clone)]
pub struct Wakes {
    count: Arc<AtomicUsize>,
    task: Weak<Task>,
}

impl Wakes {
    /// How often the waker or a clone of it was woken.
    pub fn wakes(&self) -> usize {
        self.count.load(Ordering::Acquire)
    }

    /// How many clones of the waker exist, the first one included.
    pub fn references(&self) -> usize {
        self.task.strong_count()
    }
}

impl fmt::Debug for Wakes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Wakes").field("wakes", &self.wakes()).field("references", &self.references()).finish()
    }
}

struct Task {
    count: Arc<AtomicUsize>,
    on_wake: Option<Box<dyn Fn() + Send + Sync>>,
    on_drop: Option<Box<dyn FnOnce() + Send + Sync>>,
}

impl Wake for Task {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.count.fetch_add(1, Ordering::AcqRel);
        if let Some(on_wake) = &self.on_wake {
            on_wake();
        }
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        if let Some(on_drop) = self.on_drop.take() {
            on_drop();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    #[test]
    fn wakes_by_value_and_by_reference_count_alike() {
        let (waker, seen) = SpyWaker::new().build();
        waker.wake_by_ref();
        assert_eq!((seen.wakes(), seen.references()), (1, 1));
        waker.wake();
        assert_eq!((seen.wakes(), seen.references()), (2, 0));
    }

    #[test]
    fn the_hooks_run_where_the_waker_is_woken_and_last_dropped() {
        let log = Arc::new(Mutex::new(Vec::new()));
        let (on_wake, on_drop) = (log.clone(), log.clone());
        let (waker, _) = SpyWaker::new()
            .on_wake(move || on_wake.lock().unwrap().push("woken"))
            .on_drop(move || on_drop.lock().unwrap().push("dropped"))
            .build();
        let kept = waker.clone();
        drop(waker);
        kept.wake_by_ref();
        assert_eq!(*log.lock().unwrap(), ["woken"]);
        drop(kept);
        assert_eq!(*log.lock().unwrap(), ["woken", "dropped"]);
    }

    #[test]
    fn a_waker_dropped_under_a_lock_is_caught() {
        let locked = Arc::new(Mutex::new(()));
        let seen = Arc::new(AtomicUsize::new(0));
        let (again, held) = (locked.clone(), seen.clone());
        let (waker, _) = SpyWaker::new()
            .on_drop(move || {
                held.fetch_add(usize::from(again.try_lock().is_err()), Ordering::Relaxed);
            })
            .build();
        let guard = locked.lock().unwrap();
        drop(waker);
        drop(guard);
        assert_eq!(seen.load(Ordering::Relaxed), 1);
    }
}
