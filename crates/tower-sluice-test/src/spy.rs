use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use pin_project_lite::pin_project;

/// Wraps a future so that its polls and wakes are counted, wherever it runs.
///
/// ```
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() {
/// use std::time::Duration;
/// use tower_sluice_test::spied;
///
/// let (future, spy) = spied(tokio::time::sleep(Duration::from_secs(1)));
/// let task = tokio::spawn(future);
/// tokio::time::sleep(Duration::from_millis(500)).await;
/// assert_eq!((spy.polls(), spy.wakes()), (1, 0));
/// task.await.unwrap();
/// assert_eq!((spy.polls(), spy.wakes()), (2, 1));
/// assert!(spy.is_done() && spy.is_dropped());
/// # }
/// ```
pub fn spied<F: Future>(future: F) -> (Spied<F>, Spy) {
    let seen = Arc::new(Seen::default());
    (Spied { future, waker: None, dropped: MarkDropped(seen.clone()) }, Spy { seen })
}

pin_project! {
    /// A future that is counted: see [`spied`].
    #[must_use = "futures do nothing unless polled"]
    #[derive(Debug)]
    pub struct Spied<F> {
        // Dropped before `dropped` marks it.
        #[pin]
        future: F,
        // The caller's waker of the last poll, and ours that counts and passes on to it.
        waker: Option<(Waker, Waker)>,
        dropped: MarkDropped,
    }
}

/// What is seen of a future that [`spied`] wraps.
#[derive(Clone, Debug)]
pub struct Spy {
    seen: Arc<Seen>,
}

#[derive(Debug, Default)]
struct Seen {
    polls: AtomicUsize,
    wakes: AtomicUsize,
    done: AtomicBool,
    dropped: AtomicBool,
}

impl Spy {
    /// How often the future was polled.
    pub fn polls(&self) -> usize {
        self.seen.polls.load(Ordering::Acquire)
    }

    /// How often the future, or anything it had given its waker to, asked to be polled.
    pub fn wakes(&self) -> usize {
        self.seen.wakes.load(Ordering::Acquire)
    }

    /// Whether the future has ended.
    pub fn is_done(&self) -> bool {
        self.seen.done.load(Ordering::Acquire)
    }

    /// Whether the future was dropped.
    pub fn is_dropped(&self) -> bool {
        self.seen.dropped.load(Ordering::Acquire)
    }
}

impl<F: Future> Future for Spied<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let seen = &this.dropped.0;
        seen.polls.fetch_add(1, Ordering::AcqRel);
        if !this.waker.as_ref().is_some_and(|(callers, _)| callers.will_wake(cx.waker())) {
            let callers = cx.waker().clone();
            let ours = Waker::from(Arc::new(CountAndWake { seen: seen.clone(), callers: callers.clone() }));
            *this.waker = Some((callers, ours));
        }
        let ours = this.waker.as_ref().map_or(Waker::noop(), |(_, ours)| ours);
        let polled = this.future.poll(&mut Context::from_waker(ours));
        if polled.is_ready() {
            seen.done.store(true, Ordering::Release);
        }
        polled
    }
}

struct CountAndWake {
    seen: Arc<Seen>,
    callers: Waker,
}

impl Wake for CountAndWake {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.seen.wakes.fetch_add(1, Ordering::AcqRel);
        self.callers.wake_by_ref();
    }
}

#[derive(Debug)]
struct MarkDropped(Arc<Seen>);

impl Drop for MarkDropped {
    fn drop(&mut self) {
        self.0.dropped.store(true, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, poll_fn};

    use super::*;
    use crate::by_hand;

    #[test]
    fn a_wake_is_counted_and_reaches_the_caller_of_the_last_poll() {
        let (future, spy) = spied(poll_fn(|cx| {
            cx.waker().wake_by_ref();
            Poll::<()>::Pending
        }));
        let mut future = by_hand(future);
        assert!(future.poll().is_pending());
        assert!(future.is_woken());
        let (other, wakes) = crate::SpyWaker::new().build();
        assert!(future.poll_with(&other).is_pending());
        assert_eq!((wakes.wakes(), future.is_woken()), (1, false));
        assert_eq!((spy.polls(), spy.wakes(), spy.is_done()), (2, 2, false));
    }

    #[test]
    fn a_drop_is_seen() {
        let (future, spy) = spied(pending::<()>());
        assert!(!spy.is_dropped());
        drop(future);
        assert!(spy.is_dropped() && !spy.is_done());
    }
}
