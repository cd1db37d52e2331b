use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::time::Sleep;
use tower_service::Service;

use super::future::{ResponseFuture, sleep};
use super::shared::{Shared, Waiter};
use super::step::{Readiness, Step};

/// A service that follows a [`Script`](crate::Script): made by its `service`, `service_by`, `http` and `http_by`.
///
/// A clone shares the script and is not ready.
pub struct Scripted<Req, A, E, Res = A> {
    shared: Arc<Shared<A, E>>,
    instance: usize,
    state: State<E>,
    choose: Option<Choose<Req, A, E>>,
    finish: fn(A) -> Res,
}

type Choose<Req, A, E> = Arc<dyn Fn(&Req, usize) -> Step<A, E> + Send + Sync>;

/// Readiness of one clone: `Idle` on the first poll takes an entry of the script and becomes one of the next three,
/// then `Room`, then `Reserved`; `call` goes back to `Idle`.
enum State<E> {
    Idle,
    /// Waits for a time.
    Sleeping(Option<Pin<Box<Sleep>>>),
    /// Waits for the test, as this waiter.
    Held(u64),
    Failing(Arc<dyn Fn() -> E + Send + Sync>),
    /// Waits until there may be another reservation; as this waiter, if it has waited.
    Room(Option<u64>),
    /// Ready. What is reserved goes back with the call or the drop.
    Reserved,
}

impl<Req, A, E, Res> Scripted<Req, A, E, Res> {
    pub(super) fn new(
        shared: Arc<Shared<A, E>>,
        choose: Option<Choose<Req, A, E>>,
        finish: fn(A) -> Res,
    ) -> Self {
        let instance = shared.new_instance();
        Self { shared, instance, state: State::Idle, choose, finish }
    }

    /// Takes the next entry of the readiness track.
    fn begin(&self) -> State<E> {
        let (next, opened) = {
            let mut state = self.shared.lock();
            (state.readiness.take(), state.opened)
        };
        match next {
            None | Some(Readiness::AtOnce) => State::Room(None),
            Some(Readiness::Held) if opened => State::Room(None),
            Some(Readiness::After(delay)) => State::Sleeping(sleep(delay)),
            Some(Readiness::Held) => {
                let mut state = self.shared.lock();
                state.tickets += 1;
                State::Held(state.tickets)
            }
            Some(Readiness::Fails(make)) => State::Failing(make),
        }
    }

    /// Puts this clone among the waiters, with `cx`'s waker; returns whether it was there, and no longer held.
    fn wait(&self, ticket: u64, held: bool, cx: &Context<'_>) -> bool {
        let waker = cx.waker().clone();
        let (released, old) = {
            let mut state = self.shared.lock();
            let known = state.waiters.get(&ticket).map(|waiter| waiter.held);
            let released = held && (known == Some(false) || state.opened);
            let waiter = Waiter { waker, held: held && !released };
            (released, state.waiters.insert(ticket, waiter))
        };
        drop(old);
        released
    }

    fn leave(&self, ticket: u64) {
        let waiter = self.shared.lock().waiters.remove(&ticket);
        drop(waiter);
    }

    fn reserve(&self) -> bool {
        let mut state = self.shared.lock();
        let room = state.reserved < state.max_reserved;
        state.reserved += usize::from(room);
        room
    }
}

impl<Req, A, E, Res> Service<Req> for Scripted<Req, A, E, Res> {
    type Response = Res;
    type Error = E;
    type Future = ResponseFuture<A, E, Res>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), E>> {
        self.shared.lock().ready_polls += 1;
        loop {
            match &mut self.state {
                State::Idle => self.state = self.begin(),
                State::Sleeping(None) => return Poll::Pending,
                State::Sleeping(Some(sleep)) => {
                    ready!(sleep.as_mut().poll(cx));
                    self.state = State::Room(None);
                }
                &mut State::Held(ticket) => {
                    if !self.wait(ticket, true, cx) {
                        return Poll::Pending;
                    }
                    self.state = State::Room(Some(ticket));
                }
                State::Failing(make) => {
                    let error = make();
                    self.state = State::Idle;
                    return Poll::Ready(Err(error));
                }
                &mut State::Room(ticket) => {
                    if !self.reserve() {
                        let ticket = ticket.unwrap_or_else(|| {
                            let mut state = self.shared.lock();
                            state.tickets += 1;
                            state.tickets
                        });
                        self.wait(ticket, false, cx);
                        self.state = State::Room(Some(ticket));
                        // Room that came between the look and the wait woke nobody.
                        if !self.reserve() {
                            return Poll::Pending;
                        }
                        self.leave(ticket);
                    } else if let Some(ticket) = ticket {
                        self.leave(ticket);
                    }
                    self.state = State::Reserved;
                }
                State::Reserved => return Poll::Ready(Ok(())),
            }
        }
    }

    fn call(&mut self, request: Req) -> Self::Future {
        if !matches!(self.state, State::Reserved) {
            let what = format!(
                "called without readiness: clone {} was not polled ready since it was made or last called",
                self.instance
            );
            self.shared.violation(what.clone());
            panic!("{what}");
        }
        self.state = State::Idle;
        self.shared.give_back();
        // Before the closure runs, so that the attempt is recorded as dropped if it panics.
        let mut attempt = ResponseFuture::start(self.shared.clone(), self.instance, self.finish);
        let step = match &self.choose {
            Some(choose) => Some(choose(&request, attempt.id())),
            None => self.shared.lock().steps.take(),
        };
        attempt.begin(step.expect("the script has no step: give it one with `answer`, `fail` or the like"));
        attempt
    }
}

impl<Req, A, E, Res> Clone for Scripted<Req, A, E, Res> {
    /// The clone is not ready, whatever the original is: what is reserved belongs to one caller.
    fn clone(&self) -> Self {
        Self::new(self.shared.clone(), self.choose.clone(), self.finish)
    }
}

impl<Req, A, E, Res> Drop for Scripted<Req, A, E, Res> {
    fn drop(&mut self) {
        match self.state {
            State::Reserved => self.shared.give_back(),
            State::Held(ticket) | State::Room(Some(ticket)) => self.leave(ticket),
            State::Idle | State::Sleeping(_) | State::Failing(_) | State::Room(None) => {}
        }
        self.shared.lock().instances -= 1;
    }
}

impl<Req, A, E, Res> fmt::Debug for Scripted<Req, A, E, Res> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scripted")
            .field("instance", &self.instance)
            .field("ready", &matches!(self.state, State::Reserved))
            .finish_non_exhaustive()
    }
}
