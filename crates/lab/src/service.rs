//! The inner services of the measurements, and how they are driven.

use std::fmt;
use std::future::{Future, Ready, poll_fn, ready};
use std::hint::black_box;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use tokio::runtime::{Builder, Runtime};
use tokio::task::unconstrained;
use tower::{Service, ServiceExt, service_fn};

/// What the services fail with, where they fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fail;

impl fmt::Display for Fail {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the attempt failed")
    }
}

impl std::error::Error for Fail {}

/// A service over `u64`s, as every contender wraps it.
pub trait Inner:
    Service<u64, Response = u64, Error = Fail, Future: Send + 'static> + Clone + Send + Sync + 'static
{
}

impl<S> Inner for S where
    S: Service<u64, Response = u64, Error = Fail, Future: Send + 'static> + Clone + Send + Sync + 'static
{
}

/// Answers at once. A type without size whose call can be inlined: what is left is the contender.
pub fn ready_at_once() -> impl Inner<Future = Ready<Result<u64, Fail>>> {
    service_fn(|value: u64| ready(Ok(value)))
}

/// Fails at once.
pub fn failing() -> impl Inner<Future = Ready<Result<u64, Fail>>> {
    service_fn(|_: u64| ready(Err(Fail)))
}

/// Answers when polled for the second time.
pub fn pending_once() -> impl Inner<Future = PendingOnce> {
    service_fn(|value: u64| PendingOnce { value, polled: false })
}

/// See [`pending_once`]. It wakes nobody: [`repoll`] asks again by itself, so that no part of a runtime is counted.
#[derive(Debug)]
pub struct PendingOnce {
    value: u64,
    polled: bool,
}

impl Future for PendingOnce {
    type Output = Result<u64, Fail>;

    fn poll(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Self::Output> {
        if std::mem::replace(&mut self.polled, true) { Poll::Ready(Ok(self.value)) } else { Poll::Pending }
    }
}

/// Polls `future` until it is ready, within one poll of its own. By reference: a contender's future is not to be
/// charged for being moved about.
async fn repoll<F: Future>(mut future: Pin<&mut F>) -> F::Output {
    poll_fn(|cx| {
        loop {
            if let Poll::Ready(output) = future.as_mut().poll(cx) {
                return Poll::Ready(output);
            }
        }
    })
    .await
}

/// Makes so many calls, one after another.
pub type Run = Box<dyn FnMut(&Runtime, u64)>;

/// A contender that is ready to be measured.
pub struct Built {
    /// Makes the calls, on the runtime that it was built in.
    pub run: Run,
    /// Bytes of the service, and of the future that its `call` returns.
    pub sizes: (usize, usize),
}

impl Built {
    /// Whatever `run` does with the runtime and the number of calls.
    pub fn driven(run: fn(&Runtime, u64)) -> Self {
        Self { run: Box::new(run), sizes: (0, 0) }
    }

    /// Calls on one handle: readied, called, answered.
    pub fn reused<S>(mut service: S) -> Self
    where
        S: Service<u64, Response = u64> + 'static,
    {
        let sizes = (size_of::<S>(), size_of::<S::Future>());
        let run = move |runtime: &Runtime, calls| {
            runtime.block_on(unconstrained(async {
                for value in 0..calls {
                    let answer = match poll_fn(|cx| service.poll_ready(cx)).await {
                        Ok(()) => repoll(pin!(service.call(black_box(value)))).await,
                        Err(error) => Err(error),
                    };
                    assert!(answer.is_ok_and(|got| black_box(got) == value), "the contender did not answer");
                }
            }));
        };
        Self { run: Box::new(run), sizes }
    }

    /// Calls on a fresh clone each, as servers and shared clients make them.
    pub fn cloned<S>(service: S) -> Self
    where
        S: Service<u64, Response = u64> + Clone + 'static,
    {
        let sizes = (size_of::<S>(), size_of::<S::Future>());
        let run = move |runtime: &Runtime, calls| {
            runtime.block_on(unconstrained(async {
                for value in 0..calls {
                    let answer = repoll(pin!(service.clone().oneshot(black_box(value)))).await;
                    assert!(answer.is_ok_and(|got| black_box(got) == value), "the contender did not answer");
                }
            }));
        };
        Self { run: Box::new(run), sizes }
    }

    /// Calls on one handle that are all turned away. `rejected` tells an answer that means so; `keep` is what makes
    /// the stack full, and lives as long as the run.
    pub fn rejected<S, K: 'static>(
        mut service: S,
        keep: K,
        rejected: fn(&Result<u64, S::Error>) -> bool,
    ) -> Self
    where
        S: Service<u64, Response = u64> + 'static,
    {
        let sizes = (size_of::<S>(), size_of::<S::Future>());
        let run = move |runtime: &Runtime, calls| {
            let _full = &keep;
            runtime.block_on(unconstrained(async {
                for value in 0..calls {
                    let answer = match poll_fn(|cx| service.poll_ready(cx)).await {
                        Ok(()) => repoll(pin!(service.call(black_box(value)))).await,
                        Err(error) => Err(error),
                    };
                    assert!(rejected(&black_box(answer)), "the contender was not full");
                }
            }));
        };
        Self { run: Box::new(run), sizes }
    }
}

/// The runtime of everything that is counted or timed on one thread. Calls run in `unconstrained` there: tokio's
/// budget of 128 steps would send a tight loop to the I/O driver, which no contender is to blame for.
pub fn current_thread() -> Runtime {
    Builder::new_current_thread().enable_all().build().expect("a runtime")
}

/// The runtime of everything in virtual time: the clock moves when nothing else can.
pub fn paused() -> Runtime {
    Builder::new_current_thread().enable_time().start_paused(true).build().expect("a runtime")
}
