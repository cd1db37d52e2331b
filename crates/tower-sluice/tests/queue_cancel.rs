//! Q13: a call that is dropped, or in which something panics, gives back exactly what it held.
#![cfg(feature = "queue")]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll};

use tower::{Layer, Service, ServiceExt};
use tower_sluice::BoxError;
use tower_sluice::queue::{CallOptions, Handle, Mode, QueueLayer, Wrap};
use tower_sluice::reject::{Answer, Boxed, Rejection};
use tower_sluice::verdict::{Attempt, Classify, Failure as Verdicts, Repeat, Totals, Verdict};
use tower_sluice_test::{Failure, Script, Step, by_hand};

mod queue_kit;
use queue_kit::*;

/// After all calls are gone: nothing is left, and every slot can be had.
async fn whole(handle: &Handle, queue: &QueueLayer, limit: usize) {
    nothing_left(handle);
    let script = Script::new().answer(7).hold();
    let service = queue.layer(script.service::<u32>());
    let calls: Vec<_> = (0..=limit).map(|n| spawn(&service, n as u32)).collect();
    settle().await;
    assert_eq!((script.running(), handle.stats().queued), (limit, 1));
    script.open();
    for call in calls {
        call.await.unwrap().unwrap();
    }
    nothing_left(handle);
}

#[tokio::test(start_paused = true)]
async fn q13_q14_a_future_that_was_never_polled_holds_nothing() {
    let script = Script::new().answer(7).hold();
    let queue = QueueLayer::new(1).max_waiting(1);
    let mut service = queue.layer(script.service::<u32>());
    let calls: Vec<_> = (0..100).map(|n| service.call(n)).collect();
    assert_eq!(queue.handle().stats().admitted, 0);
    drop(calls);
    assert_eq!((queue.handle().stats().admitted, queue.handle().stats().cancelled), (0, 0));
    whole(&queue.handle(), &queue, 1).await;
}

#[tokio::test(start_paused = true)]
async fn q13_case_h3_dropped_waiters_are_passed_over_and_spend_nothing() {
    let script = Script::new();
    let (inner, served) = served(&script, |request, _| Step::answer(request).held());
    // Two starts in a window: a dropped waiter must not use one.
    let queue = QueueLayer::new(1).rate(2, secs(3_600));
    let (handle, mut service) = (queue.handle(), queue.layer(inner));
    let mut running = by_hand(service.call(0));
    assert!(running.poll().is_pending());
    let mut waiters: Vec<_> = (1..=10).map(|n| by_hand(service.call(n))).collect();
    for waiter in &mut waiters {
        assert!(waiter.poll().is_pending());
    }
    let mut live = by_hand(service.call(11));
    assert!(live.poll().is_pending());
    drop(waiters);
    let stats = handle.stats();
    assert_eq!((stats.queued, stats.cancelled, stats.failed), (1, 10, 0));
    assert_eq!(live.wakes(), 0);
    script.release_all();
    assert!(running.poll().is_ready());
    assert!(live.is_woken() && live.poll().is_pending());
    assert_eq!(served.requests(), [0, 11]);
}

#[tokio::test(start_paused = true)]
async fn q13_a_granted_slot_is_passed_on() {
    let script = Script::new().answer(7).hold();
    let queue = QueueLayer::new(1);
    let (handle, mut service) = (queue.handle(), queue.layer(script.service::<u32>()));
    let mut running = by_hand(service.call(0));
    let (mut granted, mut next) = (by_hand(service.call(1)), by_hand(service.call(2)));
    assert!(running.poll().is_pending() && granted.poll().is_pending() && next.poll().is_pending());
    drop(running);
    assert!(granted.is_woken() && !next.is_woken());
    drop(granted);
    assert!(next.is_woken() && next.poll().is_pending());
    assert_eq!((script.running(), script.calls()), (1, 2));
    drop(next);
    assert_eq!(handle.stats().cancelled, 3);
    whole(&handle, &queue, 1).await;
}

#[tokio::test(start_paused = true)]
async fn q13_case_a8_case_a13_case_k3_a_drop_in_each_state() {
    let script = Script::new().reservations(10);
    let (inner, _) = served(&script, |request, before| match (request, before) {
        (0, 0) => Step::fail("down"),
        _ => Step::never(),
    });
    let plain = QueueLayer::new(2);
    let queue = plain.clone().call_timeout(secs(99)).queue_timeout(secs(99)).retry(retries(3, secs(10)));
    let (handle, mut service) = (queue.handle(), queue.layer(inner));

    // Running.
    let mut running = by_hand(service.call(1));
    assert!(running.poll().is_pending());
    assert_eq!(handle.stats().running, 1);
    drop(running);
    assert_eq!((script.running(), script.futures()), (0, 0));
    nothing_left(&handle);

    // Deferred: at once, not at the end of the delay.
    let mut deferred = by_hand(service.call(0));
    assert!(deferred.poll().is_pending());
    tokio::time::advance(ms(50)).await;
    assert_eq!(handle.stats().deferred, 1);
    drop(deferred);
    nothing_left(&handle);

    // Due and back in the line.
    let script = Script::new();
    let (inner, _) = served(&script, |request, before| match (request, before) {
        (0, 0) => Step::fail("down"),
        _ => Step::never(),
    });
    let mut service = queue.layer(inner);
    let mut back = by_hand(service.call(0));
    assert!(back.poll().is_pending());
    let (mut one, mut other) = (by_hand(service.call(1)), by_hand(service.call(1)));
    assert!(one.poll().is_pending() && other.poll().is_pending());
    tokio::time::advance(secs(10)).await;
    assert!(back.is_woken() && back.poll().is_pending());
    assert_eq!(handle.stats().queued, 1);
    drop(back);
    assert_eq!(handle.stats().queued, 0);
    drop((one, other));
    nothing_left(&handle);

    // Its slot granted, after it had been back in the line.
    let script = Script::new();
    let (inner, _) = served(&script, |request, before| match (request, before) {
        (0, 0) => Step::fail("down"),
        _ => Step::never(),
    });
    let mut service = queue.layer(inner);
    let mut back = by_hand(service.call(0));
    let (mut one, mut other) = (by_hand(service.call(1)), by_hand(service.call(1)));
    assert!(back.poll().is_pending() && one.poll().is_pending() && other.poll().is_pending());
    tokio::time::advance(secs(10)).await;
    assert!(back.poll().is_pending());
    drop(one);
    assert!(back.is_woken());
    assert_eq!(handle.stats().granted, 1);
    drop((back, other));
    nothing_left(&handle);

    // With a slot, and an inner service that is not ready.
    let script = Script::<u32>::new().never().ready_held();
    let mut unready = by_hand(queue.layer(script.service::<u32>()).call(1));
    assert!(unready.poll().is_pending());
    assert_eq!((handle.stats().running, script.waiting_ready()), (1, 1));
    drop(unready);
    assert_eq!((script.waiting_ready(), script.instances()), (0, 0));
    nothing_left(&handle);

    // Paused.
    handle.pause();
    let script = Script::<u32>::new().never();
    let mut paused = by_hand(queue.layer(script.service::<u32>()).call(1));
    assert!(paused.poll().is_pending());
    drop(paused);
    handle.resume();

    assert_eq!(handle.stats().failed, 0);
    assert_eq!(handle.stats().cancelled, handle.stats().admitted);
    whole(&handle, &plain, 2).await;
}

#[tokio::test(start_paused = true)]
async fn q13_each_of_many_dropped_in_any_order() {
    let script = Script::<u32>::new().never();
    let queue = QueueLayer::new(1).max_waiting(5_000);
    let (handle, mut service) = (queue.handle(), queue.layer(script.service::<u32>()));
    let mut calls: Vec<_> = (0..4_001).map(|n| Some(by_hand(service.call(n)))).collect();
    for call in calls.iter_mut().flatten() {
        assert!(call.poll().is_pending());
    }
    // 1 597 and 4 001 have no common divisor: each once, all over.
    for n in 0..4_001 {
        calls[n * 1_597 % 4_001] = None;
        assert_eq!(handle.stats().queued + handle.stats().running, 4_000 - n);
    }
    assert_eq!(handle.stats().cancelled, 4_001);
    whole(&handle, &queue, 1).await;
}

/// Where the user's code is made to panic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    Options,
    PollReady,
    Prepare,
    Copy,
    Call,
    Future,
    Classify,
    MayRepeat,
    Discard,
    Finish,
    Keep,
    Response,
    Error,
    Reject,
}

/// The user's code, all of it: service, classifier, repeater and answer mode in one.
#[derive(Clone)]
struct User {
    at: At,
    /// Panics only the first time.
    armed: Arc<AtomicBool>,
    /// What attempts end in, in turn: an answer, an error. Then answers.
    results: Arc<[Result<u32, &'static str>]>,
    attempts: Arc<AtomicUsize>,
}

impl User {
    fn new(at: At, results: &[Result<u32, &'static str>]) -> Self {
        Self { at, armed: Arc::new(AtomicBool::new(true)), results: results.into(), attempts: Arc::default() }
    }

    fn here(&self, at: At) {
        if self.at == at && self.armed.swap(false, Ordering::SeqCst) {
            panic!("on purpose: {at:?}");
        }
    }
}

impl Service<u32> for User {
    type Response = u32;
    type Error = Failure;
    type Future = std::pin::Pin<Box<dyn Future<Output = Result<u32, Failure>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Failure>> {
        self.here(At::PollReady);
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: u32) -> Self::Future {
        self.here(At::Call);
        let n = self.attempts.fetch_add(1, Ordering::SeqCst);
        let user = self.clone();
        Box::pin(async move {
            tokio::time::sleep(ms(5)).await;
            user.here(At::Future);
            user.results.get(n).copied().unwrap_or(Ok(200)).map_err(Failure::from)
        })
    }
}

impl Classify<u32, Failure> for User {
    fn classify(&self, result: &Result<u32, Failure>) -> Verdict {
        self.here(At::Classify);
        match result {
            Ok(200) => Verdict::Success,
            _ => Verdict::transient(),
        }
    }

    fn discard(&self, _: u32) {
        self.here(At::Discard);
    }

    fn finish(&self, _: &mut u32, _: &Totals) {
        self.here(At::Finish);
    }
}

impl Repeat<u32> for User {
    fn copy(&self, request: &u32) -> Option<u32> {
        self.here(At::Copy);
        Some(*request)
    }

    fn may_repeat(&self, _: &u32, _: &Verdicts) -> bool {
        self.here(At::MayRepeat);
        true
    }

    fn prepare(&self, _: &mut u32, _: &Attempt) {
        self.here(At::Prepare);
    }
}

impl Wrap for User {
    type Inner<S> = S;
    type With<A> = A;

    fn wrap<S>(&self, service: S) -> S {
        service
    }

    fn with<A>(self, answer: A) -> A {
        answer
    }
}

impl Answer<u32, Failure> for User {
    type Response = u32;
    type Error = BoxError;
    type Kept = BoxError;

    fn response(&self, response: u32) -> u32 {
        self.here(At::Response);
        response
    }

    fn error(&self, error: Failure) -> BoxError {
        self.here(At::Error);
        error.into()
    }

    fn keep(&self, error: Failure) -> BoxError {
        self.here(At::Keep);
        error.into()
    }

    fn reject(&self, rejection: Rejection, last: Option<BoxError>) -> Result<u32, BoxError> {
        self.here(At::Reject);
        Answer::<u32, Failure>::reject(&Boxed, rejection, last)
    }
}

impl Mode<u32, u32, Failure> for User {
    fn options(&self, _: &u32) -> CallOptions {
        self.here(At::Options);
        CallOptions::default()
    }
}

/// Makes one call in whose way something panics, with others before and behind it, and looks at what is left.
async fn panics(at: At, results: &[Result<u32, &'static str>], end: impl Fn(&Handle)) {
    let user = User::new(at, results);
    let plain = QueueLayer::new(1).max_waiting(10);
    let queue = plain
        .clone()
        .call_timeout(secs(60))
        .retry(retries(3, ms(50)).classify(user.clone()).repeat(user.clone()));
    let (handle, service) = (queue.handle(), queue.answer(user.clone()).layer(user.clone()));
    let call = spawn(&service, 0);
    // An attempt takes 5 ms, a delay 50.
    tokio::time::sleep(ms(10)).await;
    end(&handle);
    let error = call.await.expect_err(&format!("{at:?}: nothing panicked"));
    assert!(error.is_panic());
    // What it held is back, once and no more.
    let stats = handle.stats();
    sound(&stats);
    assert!(stats.is_idle(), "{at:?}: {stats:?}");
    assert_eq!(stats.rejected.full, 0);
    // The same service still serves.
    assert_eq!(spawn(&service, 1).await.unwrap().unwrap(), 200, "{at:?}");
    whole(&handle, &plain, 1).await;
    // Nor is `pause` left to wait for a start that never ends.
    handle.pause();
    handle.resume();
    let _ = now(handle.drain(secs(1)));
}

#[tokio::test(start_paused = true)]
async fn q13_case_a8_a_panic_in_any_of_the_users_code() {
    let nothing = |_: &Handle| {};
    for at in [At::Options, At::PollReady, At::Prepare, At::Copy, At::Call, At::Future, At::Classify] {
        panics(at, &[Ok(200)], nothing).await;
    }
    for at in [At::Finish, At::Response] {
        panics(at, &[Ok(200)], nothing).await;
    }
    for at in [At::MayRepeat, At::Discard] {
        panics(at, &[Ok(500)], nothing).await;
    }
    panics(At::MayRepeat, &[Err("down")], nothing).await;
    panics(At::Keep, &[Err("down")], nothing).await;
    panics(At::Error, &[Err("down"), Err("down"), Err("down")], nothing).await;
    // Deferred, and settled: the rejection is made, and panics.
    panics(At::Reject, &[Ok(500)], |handle| {
        assert_eq!(handle.clear("x"), 1);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn q13_a_panic_passes_the_slot_on_to_who_waits() {
    for at in [At::PollReady, At::Prepare, At::Copy, At::Call, At::Future, At::Classify, At::Finish] {
        let user = User::new(at, &[Ok(200)]);
        let policy = retries(3, ms(50)).classify(user.clone()).repeat(user.clone());
        let queue = QueueLayer::new(1).retry(policy);
        let handle = queue.handle();
        let service = queue.layer(user);
        handle.pause();
        let calls: Vec<_> = (0..3).map(|n| spawn(&service, n)).collect();
        settle().await;
        handle.resume();
        let mut panicked = 0;
        for call in calls {
            match call.await {
                Ok(answer) => assert_eq!(answer.unwrap(), 200),
                Err(error) => panicked += usize::from(error.is_panic()),
            }
        }
        assert_eq!(panicked, 1, "{at:?}");
        nothing_left(&handle);
    }
}

#[tokio::test(start_paused = true)]
async fn q13_a_panic_while_a_rejection_is_made_leaves_the_bound_as_it_was() {
    let script = Script::new().answer(7).hold();
    let queue = QueueLayer::new(1).max_waiting(1);
    let handle = queue.handle();
    let service = queue
        .clone()
        .respond_with(|_: &Rejection| -> u32 { panic!("on purpose: respond_with") })
        .layer(script.service::<u32>());
    let admitted = [spawn(&service, 0), spawn(&service, 1)];
    settle().await;
    for _ in 0..5 {
        assert!(spawn(&service, 2).await.unwrap_err().is_panic());
    }
    let stats = handle.stats();
    assert_eq!((stats.running, stats.queued, stats.rejected.full), (1, 1, 5));
    script.open();
    for call in admitted {
        call.await.unwrap().unwrap();
    }
    whole(&handle, &queue, 1).await;
}

#[tokio::test(start_paused = true)]
async fn q13_a_panic_in_the_condition_of_a_class_leaves_nothing() {
    let script = Script::new().answer(7);
    let queue = QueueLayer::new(1);
    let class = queue.class("feed").admit_while(|| -> bool { panic!("on purpose: admit_while") });
    assert!(spawn(&class.layer(script.service::<u32>()), 0).await.unwrap_err().is_panic());
    nothing_left(&queue.handle());
    assert_eq!(queue.layer(script.service::<u32>()).oneshot(1).await.unwrap(), 7);
}

/// A waker whose owner panics when it is told: whoever tells gets the panic, and the queue is whole.
#[tokio::test(start_paused = true)]
async fn q13_a_panic_in_a_waker_leaves_the_queue_whole() {
    use tower_sluice_test::SpyWaker;
    let script = Script::new().answer(7).hold();
    let queue = QueueLayer::new(1);
    let (handle, mut service) = (queue.handle(), queue.layer(script.service::<u32>()));
    let mut running = by_hand(service.call(0));
    let (mut first, mut second) = (by_hand(service.call(1)), by_hand(service.call(2)));
    assert!(running.poll().is_pending());
    let (bad, _) = SpyWaker::new().on_wake(|| panic!("on purpose: wake")).build();
    assert!(first.poll_with(&bad).is_pending() && second.poll().is_pending());
    let dropped = catch_unwind(AssertUnwindSafe(|| drop(running)));
    assert!(dropped.is_err());
    // The slot is the first's, whether it was told or not.
    assert_eq!((handle.stats().granted, handle.stats().running), (1, 1));
    drop(first);
    assert!(second.is_woken() && second.poll().is_pending());
    script.open();
    assert!(second.poll().is_ready());
    whole(&handle, &queue, 1).await;
}

#[tokio::test(start_paused = true)]
async fn q13_a_panic_in_the_drop_of_a_waker_leaves_the_queue_whole() {
    use tower_sluice_test::SpyWaker;
    let script = Script::new().answer(7).hold();
    let queue = QueueLayer::new(1);
    let (handle, mut service) = (queue.handle(), queue.layer(script.service::<u32>()));
    let mut running = by_hand(service.call(0));
    let mut queued = by_hand(service.call(1));
    assert!(running.poll().is_pending());
    let (bad, _) = SpyWaker::new().on_drop(|| panic!("on purpose: drop")).build();
    assert!(queued.poll_with(&bad).is_pending());
    drop(bad);
    // The queue has the last one: another takes its place, or the call goes.
    let dropped = catch_unwind(AssertUnwindSafe(|| queued.poll().is_pending()));
    assert!(dropped.is_err());
    drop(queued);
    assert_eq!((handle.stats().queued, handle.stats().running), (0, 1));
    drop(running);
    whole(&handle, &queue, 1).await;
}
