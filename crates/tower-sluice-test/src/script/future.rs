use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::time::{Instant, Sleep};

use super::records::Outcome;
use super::shared::Shared;
use super::step::{Ending, Step};

/// One attempt of a [`Scripted`](super::Scripted) service.
///
/// # Panics
/// If its step says so, or if it is polled after it has ended.
#[must_use = "futures do nothing unless polled"]
pub struct ResponseFuture<A, E, Res = A> {
    shared: Arc<Shared<A, E>>,
    id: usize,
    stage: Stage,
    ending: Ending<A, E>,
    finish: fn(A) -> Res,
    /// While the step's own code runs, so that an unwinding drop is told from any other.
    answering: bool,
}

/// `Held` until released, then `Sleeping` for the step's time, then `Due`.
enum Stage {
    Held { after: Option<Duration> },
    Sleeping(Option<Pin<Box<Sleep>>>),
    Due,
    Ended,
}

/// `None` is never: the instant cannot be told.
pub(super) fn sleep(delay: Duration) -> Option<Pin<Box<Sleep>>> {
    Instant::now().checked_add(delay).map(|at| Box::pin(tokio::time::sleep_until(at)))
}

impl Stage {
    fn after(delay: Option<Duration>) -> Self {
        match delay {
            // No timer: it would end a turn of the runtime later.
            None | Some(Duration::ZERO) => Self::Due,
            Some(delay) => Self::Sleeping(sleep(delay)),
        }
    }
}

impl<A, E, Res> ResponseFuture<A, E, Res> {
    pub(super) fn start(shared: Arc<Shared<A, E>>, instance: usize, finish: fn(A) -> Res) -> Self {
        let id = shared.start(instance);
        Self { shared, id, stage: Stage::Due, ending: Ending::Never, finish, answering: false }
    }

    pub(super) fn id(&self) -> usize {
        self.id
    }

    /// Takes up its step, in `call`.
    pub(super) fn begin(&mut self, step: Step<A, E>) {
        let Step { ending, after, held } = step;
        let (held, after) = {
            let mut state = self.shared.lock();
            let held = (held || state.hold_all) && !state.opened;
            state.attempts[self.id].held = held;
            (held, after.or(state.delay))
        };
        if let Ending::PanicInCall(message) = &ending {
            self.answering = true;
            panic!("{message}");
        }
        self.ending = ending;
        self.stage = if held { Stage::Held { after } } else { Stage::after(after) };
    }

    fn answer(&mut self) -> Poll<Result<Res, E>> {
        self.answering = true;
        let result = match &self.ending {
            Ending::Never => {
                self.answering = false;
                return Poll::Pending;
            }
            Ending::Panic(message) | Ending::PanicInCall(message) => panic!("{message}"),
            Ending::Result(make) => make().map(self.finish),
        };
        self.answering = false;
        self.stage = Stage::Ended;
        self.shared.end(self.id, if result.is_ok() { Outcome::Answered } else { Outcome::Failed });
        Poll::Ready(result)
    }
}

impl<A, E, Res> Future for ResponseFuture<A, E, Res> {
    type Output = Result<Res, E>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        if matches!(this.stage, Stage::Ended) {
            let what = format!("attempt {} was polled after it had ended", this.id);
            this.shared.violation(what.clone());
            panic!("{what}");
        }
        // Kept in every stage, since `Script::end` may come in every stage.
        let waker = cx.waker().clone();
        let (old, instead, mut held) = {
            let mut state = this.shared.lock();
            let entry = &mut state.attempts[this.id];
            entry.record.polls += 1;
            (entry.waker.replace(waker), entry.instead.take(), entry.held)
        };
        drop(old);
        if let Some(Step { ending, after, held: hold }) = instead {
            held = hold;
            this.shared.lock().attempts[this.id].held = hold;
            this.ending = ending;
            this.stage = if hold { Stage::Held { after } } else { Stage::after(after) };
        }
        loop {
            match &mut this.stage {
                Stage::Held { .. } if held => return Poll::Pending,
                &mut Stage::Held { after } => this.stage = Stage::after(after),
                Stage::Sleeping(None) => return Poll::Pending,
                Stage::Sleeping(Some(sleep)) => {
                    ready!(sleep.as_mut().poll(cx));
                    this.stage = Stage::Due;
                }
                Stage::Due | Stage::Ended => return this.answer(),
            }
        }
    }
}

impl<A, E, Res> Drop for ResponseFuture<A, E, Res> {
    fn drop(&mut self) {
        self.shared.end(self.id, if self.answering { Outcome::Panicked } else { Outcome::Dropped });
        self.shared.lock().futures -= 1;
    }
}

impl<A, E, Res> fmt::Debug for ResponseFuture<A, E, Res> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseFuture").field("attempt", &self.id).finish_non_exhaustive()
    }
}
