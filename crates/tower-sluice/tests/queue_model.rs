//! The queue against a naive model (T3): random arrivals, results, drops, pauses, clears, resizes, closes and time
//! steps, with tasks that are polled at random moments after they were woken.
//!
//! After every step the gauges, every call's result, and the set of woken calls are compared: Q1, Q4 to Q6, Q8 to Q14.
//! `SLUICE_SEED` sets the seed, `SLUICE_STEPS` the number of steps (120 000 unless set).

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::time::advance;
use tower::{Layer, Service};
use tower_sluice::BoxError;
use tower_sluice::backoff::{Backoff, Jitter};
use tower_sluice::queue::{Handle, Queue, QueueLayer, Requeue};
use tower_sluice::reject::{Boxed, Rejection};
use tower_sluice::retry::RetryPolicy;
use tower_sluice_test::{ByHand, by_hand};

const MOST_ATTEMPTS: u32 = 3;

/// Attempts that the test ends by hand.
#[derive(Clone, Default)]
struct Upstream(Arc<Mutex<BTreeMap<u64, Held>>>);

/// What the test decided of an attempt, and who is to be told.
type Held = (Option<bool>, Option<Waker>);

impl Upstream {
    fn end(&self, call: u64, success: bool) {
        let waker = {
            let mut running = self.0.lock().unwrap();
            let attempt = running.get_mut(&call).expect("a running attempt");
            attempt.0 = Some(success);
            attempt.1.take()
        };
        waker.expect("polled").wake();
    }

    fn running(&self) -> Vec<u64> {
        self.0.lock().unwrap().keys().copied().collect()
    }
}

struct Attempt {
    upstream: Upstream,
    call: u64,
}

impl Future for Attempt {
    type Output = Result<u64, BoxError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut running = self.upstream.0.lock().unwrap();
        let attempt = running.get_mut(&self.call).unwrap();
        match attempt.0 {
            None => {
                attempt.1 = Some(cx.waker().clone());
                Poll::Pending
            }
            Some(true) => Poll::Ready(Ok(self.call)),
            Some(false) => Poll::Ready(Err("failed".into())),
        }
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        let removed = self.upstream.0.lock().unwrap().remove(&self.call);
        drop(removed);
    }
}

impl Service<u64> for Upstream {
    type Response = u64;
    type Error = BoxError;
    type Future = Attempt;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, call: u64) -> Attempt {
        let doubled = self.0.lock().unwrap().insert(call, (None, None));
        assert!(doubled.is_none(), "two attempts of one call at once");
        Attempt { upstream: self.clone(), call }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Queued { since: Duration },
    Granted { since: Duration },
    Running { over: Option<bool> },
    Deferred { due: Duration },
    Cleared,
}

#[derive(Debug)]
struct ModelCall {
    order: (u64, u64),
    arrival: u64,
    attempts: u32,
    state: State,
}

/// What the queue is to do, written as plainly as can be: a list of calls, and searches through it.
#[derive(Debug)]
struct Model {
    calls: BTreeMap<u64, ModelCall>,
    limit: usize,
    max_waiting: usize,
    requeue: Requeue,
    base: Duration,
    queue_timeout: Duration,
    paused_at: Option<Duration>,
    paused_for: Duration,
    closed: bool,
    now: Duration,
    arrivals: u64,
    joins: u64,
    succeeded: u64,
    failed: u64,
    cancelled: u64,
    cleared: u64,
    full: u64,
    timed_out: u64,
}

#[derive(Debug, PartialEq, Eq)]
enum Answer {
    Pending,
    Ok,
    Failed,
    Full,
    Closed,
    Cleared,
    QueueTimeout,
}

impl Model {
    fn count(&self, is: impl Fn(&State) -> bool) -> usize {
        self.calls.values().filter(|call| is(&call.state)).count()
    }

    fn queued(&self) -> usize {
        self.count(|state| matches!(state, State::Queued { .. }))
    }

    fn granted(&self) -> usize {
        self.count(|state| matches!(state, State::Granted { .. }))
    }

    fn running(&self) -> usize {
        self.granted() + self.count(|state| matches!(state, State::Running { .. }))
    }

    fn deferred(&self) -> usize {
        self.count(|state| matches!(state, State::Deferred { .. }))
    }

    fn active(&self) -> Duration {
        self.paused_at.unwrap_or(self.now) - self.paused_for
    }

    /// Grants slots to those first in order.
    fn grant(&mut self) {
        while self.paused_at.is_none() && self.running() < self.limit {
            let queued = self.calls.values_mut().filter_map(|call| match call.state {
                State::Queued { since } => Some((call, since)),
                _ => None,
            });
            let Some((first, since)) = queued.min_by_key(|(call, _)| call.order) else { return };
            first.state = State::Granted { since };
        }
    }

    fn join(&mut self) -> (u64, u64) {
        self.joins += 1;
        (self.arrivals, self.joins)
    }

    fn arrive(&mut self, id: u64) -> Answer {
        if self.closed {
            return Answer::Closed;
        }
        if self.running() + self.queued() + self.deferred() >= self.limit + self.max_waiting {
            self.full += 1;
            return Answer::Full;
        }
        let starts = self.queued() == 0 && self.paused_at.is_none() && self.running() < self.limit;
        let state =
            if starts { State::Running { over: None } } else { State::Queued { since: self.active() } };
        let order = self.join();
        self.calls.insert(id, ModelCall { order, arrival: self.arrivals, attempts: 1, state });
        self.arrivals += 1;
        Answer::Pending
    }

    /// What a poll of the call's future does.
    fn poll(&mut self, id: u64) -> Answer {
        let active = self.active();
        let call = self.calls.get_mut(&id).unwrap();
        if let State::Deferred { due } = call.state {
            if due > self.now {
                return Answer::Pending;
            }
            call.state = State::Queued { since: active };
            // By arrival: among those of the same number, last.
            call.order = (call.arrival, u64::MAX);
            if self.requeue == Requeue::Back {
                let order = self.join();
                self.calls.get_mut(&id).unwrap().order = order;
            }
            self.grant();
        }
        let call = self.calls.get_mut(&id).unwrap();
        match call.state {
            State::Granted { .. } => {
                call.state = State::Running { over: None };
                Answer::Pending
            }
            State::Queued { since } if active - since >= self.queue_timeout => {
                self.calls.remove(&id);
                self.timed_out += 1;
                Answer::QueueTimeout
            }
            State::Queued { .. } | State::Deferred { .. } | State::Running { over: None } => Answer::Pending,
            State::Cleared => {
                self.calls.remove(&id);
                Answer::Cleared
            }
            State::Running { over: Some(true) } => {
                self.calls.remove(&id);
                self.succeeded += 1;
                self.grant();
                Answer::Ok
            }
            State::Running { over: Some(false) } => {
                if call.attempts >= MOST_ATTEMPTS || self.closed {
                    self.calls.remove(&id);
                    self.failed += 1;
                    self.grant();
                    return Answer::Failed;
                }
                let delay = self.base * 2_u32.pow(call.attempts - 1);
                call.attempts += 1;
                if delay.is_zero() {
                    call.state = State::Queued { since: active };
                    let order = self.join();
                    self.calls.get_mut(&id).unwrap().order = order;
                    self.grant();
                    // Others have their turn before it looks at the line.
                    return Answer::Pending;
                }
                call.state = State::Deferred { due: self.now + delay };
                self.grant();
                Answer::Pending
            }
        }
    }

    fn end(&mut self, id: u64, success: bool) {
        self.calls.get_mut(&id).unwrap().state = State::Running { over: Some(success) };
    }

    fn drop_call(&mut self, id: u64) {
        if self.calls.remove(&id).unwrap().state != State::Cleared {
            self.cancelled += 1;
        }
        self.grant();
    }

    /// Granted slots are taken back.
    fn recall(&mut self) {
        for call in self.calls.values_mut() {
            if let State::Granted { since } = call.state {
                call.state = State::Queued { since };
            }
        }
    }

    fn set_limit(&mut self, limit: usize) {
        self.limit = limit;
        if self.running() > limit {
            self.recall();
        }
    }

    fn pause(&mut self) {
        self.paused_at = self.paused_at.or(Some(self.now));
        self.recall();
    }

    fn resume(&mut self) {
        if let Some(at) = self.paused_at.take() {
            self.paused_for += self.now - at;
        }
        self.grant();
    }

    fn clear(&mut self) -> usize {
        let mut cleared = 0;
        for call in self.calls.values_mut() {
            if !matches!(call.state, State::Running { .. } | State::Cleared) {
                call.state = State::Cleared;
                cleared += 1;
            }
        }
        self.cleared += cleared as u64;
        cleared
    }
}

type Stack = Queue<Upstream, RetryPolicy, Boxed>;

struct Run {
    rng: StdRng,
    model: Model,
    stack: Stack,
    handle: Handle,
    upstream: Upstream,
    futures: BTreeMap<u64, ByHand<<Stack as Service<u64>>::Future>>,
    next: u64,
    log: Vec<String>,
}

impl Run {
    fn new(seed: u64) -> Self {
        let mut rng = StdRng::seed_from_u64(seed);
        let limit = rng.random_range(1..5);
        let max_waiting = rng.random_range(0..12);
        let requeue = if rng.random() { Requeue::Arrival } else { Requeue::Back };
        let base = [Duration::ZERO, Duration::from_millis(10)][usize::from(rng.random_bool(0.7))];
        let queue_timeout = [Duration::MAX, Duration::from_millis(25)][usize::from(rng.random_bool(0.5))];
        let backoff = Backoff::exponential(base, Duration::from_secs(1)).jitter(Jitter::None);
        let layer = QueueLayer::new(limit)
            .max_waiting(max_waiting)
            .requeue(requeue)
            .queue_timeout(queue_timeout)
            .retry(RetryPolicy::new(MOST_ATTEMPTS, backoff));
        let upstream = Upstream::default();
        let model = Model {
            calls: BTreeMap::new(),
            limit,
            max_waiting,
            requeue,
            base,
            queue_timeout,
            paused_at: None,
            paused_for: Duration::ZERO,
            closed: false,
            now: Duration::ZERO,
            arrivals: 0,
            joins: 0,
            succeeded: 0,
            failed: 0,
            cancelled: 0,
            cleared: 0,
            full: 0,
            timed_out: 0,
        };
        let (stack, handle) = (layer.layer(upstream.clone()), layer.handle());
        Self { rng, model, stack, handle, upstream, futures: BTreeMap::new(), next: 0, log: Vec::new() }
    }

    fn any_future(&mut self) -> Option<u64> {
        let n = self.futures.len();
        if n == 0 { None } else { self.futures.keys().nth(self.rng.random_range(0..n)).copied() }
    }

    fn note(&mut self, what: String) {
        self.log.push(what);
    }

    fn poll(&mut self, id: u64) {
        let moved = self.rng.random_bool(0.1);
        let future = self.futures.get_mut(&id).unwrap();
        // As if it had moved to another task, and back: the last waker counts.
        let mut polled = if moved { future.poll_with(Waker::noop()) } else { Poll::Pending };
        if polled.is_pending() {
            polled = future.poll();
        }
        let answer = answer_of(polled);
        let mut expected = self.model.poll(id);
        if moved && expected == Answer::Pending {
            expected = self.model.poll(id);
        }
        self.note(format!("poll {id} -> {answer:?}"));
        assert_eq!(answer, expected);
        if answer != Answer::Pending {
            self.futures.remove(&id);
        }
    }

    async fn step(&mut self) {
        match self.rng.random_range(0..100) {
            0..25 => {
                let id = self.next;
                self.next += 1;
                self.note(format!("arrive {id}"));
                let mut future = by_hand(self.stack.call(id));
                let answer = answer_of(future.poll());
                assert_eq!(answer, self.model.arrive(id));
                if answer == Answer::Pending {
                    self.futures.insert(id, future);
                }
            }
            25..45 => {
                let running: Vec<u64> = self
                    .model
                    .calls
                    .iter()
                    .filter(|(_, call)| call.state == State::Running { over: None })
                    .map(|(id, _)| *id)
                    .collect();
                if !running.is_empty() {
                    let id = running[self.rng.random_range(0..running.len())];
                    let success = self.rng.random_bool(0.5);
                    self.note(format!("end {id} {success}"));
                    self.upstream.end(id, success);
                    self.model.end(id, success);
                }
            }
            45..75 => {
                let woken: Vec<u64> =
                    self.futures.iter().filter(|(_, future)| future.is_woken()).map(|(id, _)| *id).collect();
                if !woken.is_empty() {
                    let id = woken[self.rng.random_range(0..woken.len())];
                    self.poll(id);
                }
            }
            75..78 => {
                // A poll that nobody asked for.
                if let Some(id) = self.any_future() {
                    self.poll(id);
                }
            }
            78..83 => {
                if let Some(id) = self.any_future() {
                    self.note(format!("drop {id}"));
                    self.futures.remove(&id);
                    self.model.drop_call(id);
                }
            }
            83..86 => {
                self.note("pause".into());
                self.handle.pause();
                self.model.pause();
            }
            86..91 => {
                self.note("resume".into());
                self.handle.resume();
                self.model.resume();
            }
            91..92 => {
                self.note("clear".into());
                assert_eq!(self.handle.clear("model"), self.model.clear());
            }
            92..94 => {
                let limit = self.rng.random_range(1..6);
                self.note(format!("limit {limit}"));
                self.handle.set_limit(limit).unwrap();
                self.model.set_limit(limit);
                self.model.grant();
            }
            94..95 if self.rng.random_bool(0.02) => {
                self.note("close".into());
                self.handle.close();
                self.model.closed = true;
            }
            _ => {
                let span = Duration::from_millis(self.rng.random_range(1..20));
                self.note(format!("advance {span:?}"));
                advance(span).await;
                self.model.now += span;
            }
        }
        self.check();
    }

    fn check(&self) {
        let (stats, model) = (self.handle.stats(), &self.model);
        assert_eq!(
            (stats.queued, stats.running, stats.deferred, stats.granted, stats.limit),
            (model.queued(), model.running(), model.deferred(), model.granted(), model.limit),
            "queued, running, deferred, granted, limit"
        );
        assert_eq!(stats.paused, model.paused_at.is_some());
        let finished =
            (stats.succeeded, stats.failed, stats.cancelled, stats.cleared, stats.rejected.queue_timeout);
        assert_eq!(
            finished,
            (model.succeeded, model.failed, model.cancelled, model.cleared, model.timed_out),
            "succeeded, failed, cancelled, cleared, timed out"
        );
        assert_eq!(
            stats.admitted,
            stats.queued as u64 + stats.running as u64 + stats.deferred as u64 + stats.finished()
        );
        assert_eq!(stats.rejected.full, model.full);
        // Q1: what runs is what the model says, and never more than the limit started.
        let running: Vec<u64> = model
            .calls
            .iter()
            .filter(|(_, call)| matches!(call.state, State::Running { .. }))
            .map(|(id, _)| *id)
            .collect();
        assert_eq!(self.upstream.running(), running);
        // Q14: who can go on has been woken; who waits has not.
        for (id, call) in &model.calls {
            let woken = self.futures[id].is_woken();
            match call.state {
                State::Granted { .. } | State::Cleared | State::Running { over: Some(_) } => {
                    assert!(woken, "call {id} can go on and was not woken: {call:?}");
                }
                State::Deferred { due } => assert_eq!(woken, due <= model.now, "call {id}: {call:?}"),
                State::Running { over: None } => {}
                State::Queued { since } => {
                    if model.active() - since >= model.queue_timeout && model.paused_at.is_none() {
                        assert!(woken, "call {id} is past its queue timeout and was not woken: {call:?}");
                    }
                }
            }
        }
    }
}

/// A failed assertion shows what led to it.
impl Drop for Run {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let from = self.log.len().saturating_sub(40);
            eprintln!("{:#?}\n{:#?}\n{:#?}", self.model, self.handle.stats(), &self.log[from..]);
        }
    }
}

fn answer_of(polled: Poll<Result<u64, BoxError>>) -> Answer {
    match polled {
        Poll::Pending => Answer::Pending,
        Poll::Ready(Ok(_)) => Answer::Ok,
        Poll::Ready(Err(error)) => match Rejection::find(&*error) {
            None => Answer::Failed,
            Some(Rejection::Full { .. }) => Answer::Full,
            Some(Rejection::Closed) => Answer::Closed,
            Some(Rejection::Cleared { .. }) => Answer::Cleared,
            Some(Rejection::QueueTimeout { .. }) => Answer::QueueTimeout,
            Some(other) => panic!("{other}"),
        },
    }
}

/// T3, Q1, Q4, Q5, Q6, Q8, Q9, Q10, Q11, Q12, Q13, Q14.
#[tokio::test(start_paused = true)]
async fn the_queue_does_what_a_naive_model_does() {
    let first = tower_sluice_test::seed("the_queue_does_what_a_naive_model_does");
    let steps: u64 = std::env::var("SLUICE_STEPS").ok().and_then(|n| n.parse().ok()).unwrap_or(120_000);
    const STEPS_A_RUN: u64 = 400;
    for n in 0..steps.div_ceil(STEPS_A_RUN) {
        let mut run = Run::new(first.wrapping_add(n));
        for _ in 0..STEPS_A_RUN {
            run.step().await;
        }
        // Q13: dropping what is left leaves nothing behind.
        run.futures.clear();
        assert!(run.handle.stats().is_idle());
        run.handle.resume();
        run.handle.idle().await;
    }
}
