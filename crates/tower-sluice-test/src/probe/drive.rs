use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::task::yield_now;
use tokio::time::{Instant, timeout_at};

use crate::waker::{SpyWaker, Wakes};

/// So many turns of the runtime let a wake travel through so many tasks.
const TURNS: usize = 32;

/// So many polls at one instant are no progress. A future may yield to others now and then.
pub(super) const MOST_POLLS: usize = 64;

/// A future that is polled only if it was woken.
pub(super) struct Driver<'a> {
    future: Option<Pin<Box<dyn Future<Output = bool> + 'a>>>,
    waker: Waker,
    wakes: Wakes,
    woken: Arc<Notify>,
    seen: usize,
    polls: usize,
    polls_since: Instant,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Driven {
    Done { ok: bool },
    Pending,
    Spinning,
    Panicked(String),
}

impl<'a> Driver<'a> {
    /// `future` tells whether it went well.
    pub(super) fn new(future: impl Future<Output = bool> + 'a) -> Self {
        let (waker, wakes, woken) = task();
        // Not polled yet: as if woken once, without being counted.
        let seen = usize::MAX;
        let polls_since = Instant::now();
        Self { future: Some(Box::pin(future)), waker, wakes, woken, seen, polls: 0, polls_since }
    }

    /// From now on another task polls it. It is polled once by that task, as a move does.
    pub(super) fn move_to_another_task(&mut self) {
        (self.waker, self.wakes, self.woken) = task();
        self.seen = usize::MAX;
    }

    pub(super) fn is_woken(&self) -> bool {
        self.seen != self.wakes.wakes()
    }

    /// Polls it whenever it is woken, until it ends or `enough` holds, and lets at most `patience` pass.
    pub(super) async fn drive_until(&mut self, patience: Duration, enough: impl Fn() -> bool) -> Driven {
        let deadline = Instant::now() + patience;
        'woken: loop {
            if self.is_woken() {
                match self.poll() {
                    Driven::Pending => {}
                    end => return end,
                }
            }
            for _ in 0..TURNS {
                if enough() {
                    return Driven::Pending;
                }
                yield_now().await;
                if self.is_woken() {
                    continue 'woken;
                }
            }
            if Instant::now() >= deadline {
                return Driven::Pending;
            }
            // Ends with the deadline too; then there is one more round.
            let _ = timeout_at(deadline, self.woken.notified()).await;
        }
    }

    pub(super) async fn drive(&mut self, patience: Duration) -> Driven {
        self.drive_until(patience, || false).await
    }

    fn poll(&mut self) -> Driven {
        let Some(future) = &mut self.future else { return Driven::Pending };
        let now = Instant::now();
        if self.polls_since != now {
            (self.polls, self.polls_since) = (0, now);
        }
        self.polls += 1;
        if self.polls > MOST_POLLS {
            return Driven::Spinning;
        }
        self.seen = self.wakes.wakes();
        let mut cx = Context::from_waker(&self.waker);
        let polled = catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(&mut cx)));
        let end = match polled {
            Ok(Poll::Pending) => return Driven::Pending,
            Ok(Poll::Ready(ok)) => Driven::Done { ok },
            Err(panic) => Driven::Panicked(message(&*panic)),
        };
        self.future = None;
        end
    }
}

fn task() -> (Waker, Wakes, Arc<Notify>) {
    let woken = Arc::new(Notify::new());
    let told = woken.clone();
    let (waker, wakes) = SpyWaker::new().on_wake(move || told.notify_one()).build();
    (waker, wakes, woken)
}

fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("a value that is no text").to_owned()
}

/// Lets other tasks run at this instant, for as long as a wake may travel.
pub(super) async fn settle() {
    for _ in 0..TURNS {
        yield_now().await;
    }
}
