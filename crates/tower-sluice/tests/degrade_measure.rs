//! Measuring attempts and publishing windows, as a stack and a reader see them.
#![cfg(feature = "degrade")]

use std::convert::Infallible;
use std::future::{Future, pending, ready};
use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tokio::time::{Instant, advance, sleep, timeout};
use tower::retry::{Policy, RetryLayer};
use tower::{Layer, Service, ServiceBuilder, ServiceExt, service_fn};
use tower_sluice::degrade::{Measure, MeasureLayer, Meter, Window};
use tower_sluice::facts::{AttemptFacts, Facts, QueueFacts, Source};
use tower_sluice::verdict::{AnyError, Verdict};

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn told(meter: &Meter) -> AttemptFacts {
    meter.sample().attempts.expect("a meter tells of attempts")
}

type Status = Result<u16, Infallible>;

fn by_status(result: &Status) -> Verdict {
    match result {
        Ok(200) => Verdict::Success,
        Ok(429) => Verdict::throttled(),
        Ok(503) => Verdict::unavailable(),
        Ok(504) => Verdict::timeout(),
        Ok(500..) => Verdict::transient(),
        Ok(_) => Verdict::Fatal,
        Err(never) => match *never {},
    }
}

/// L1: each outcome in its own count, by the same classifier as retrying; latencies of all.
#[tokio::test(start_paused = true)]
async fn l1_attempts_are_counted_by_verdict() {
    let measure = MeasureLayer::new().classify(by_status);
    let meter = measure.facts();
    let mut service = measure.layer(service_fn(|status: u16| async move {
        sleep(ms(u64::from(status))).await;
        Status::Ok(status)
    }));
    for status in [200, 200, 200, 429, 503, 503, 504, 500, 404] {
        service.ready().await.unwrap().call(status).await.unwrap();
    }
    let facts = told(&meter);
    assert_eq!((facts.succeeded, facts.throttled, facts.unavailable), (3, 1, 2));
    assert_eq!((facts.timeout, facts.transient, facts.fatal, facts.cancelled), (1, 1, 1, 0));
    assert_eq!((facts.failed(), facts.outcomes(), facts.latency.count()), (5, 9, 9));
    let slowest = facts.latency.quantile(1.0).unwrap().as_secs_f64();
    assert!((slowest / 0.504 - 1.0).abs() <= 1.0 / 32.0, "{slowest}");
    let fastest = facts.latency.quantile(0.0).unwrap().as_secs_f64();
    assert!((fastest / 0.2 - 1.0).abs() <= 1.0 / 32.0, "{fastest}");
}

#[derive(Clone)]
struct UntilOk;

impl Policy<u16, u16, Infallible> for UntilOk {
    type Future = std::future::Ready<()>;

    fn retry(&mut self, _: &mut u16, result: &mut Status) -> Option<Self::Future> {
        matches!(result, Ok(503)).then(|| ready(()))
    }

    fn clone_request(&mut self, request: &u16) -> Option<u16> {
        Some(*request)
    }
}

/// L1, case_l3: 503, 503, 200 below a retry layer are two failures and a success of 10 ms each, not one slow success.
#[tokio::test(start_paused = true)]
async fn case_l3_attempts_are_measured_and_not_the_retry_cycle() {
    let measure = MeasureLayer::new().classify(by_status);
    let meter = measure.facts();
    let attempts = Arc::new(AtomicUsize::new(0));
    let service =
        ServiceBuilder::new().layer(RetryLayer::new(UntilOk)).layer(measure).service_fn(move |_: u16| {
            let attempts = Arc::clone(&attempts);
            async move {
                sleep(ms(10)).await;
                Status::Ok(if attempts.fetch_add(1, Ordering::Relaxed) < 2 { 503 } else { 200 })
            }
        });
    assert_eq!(service.oneshot(0).await, Ok(200));
    let facts = told(&meter);
    assert_eq!((facts.unavailable, facts.succeeded), (2, 1));
    let slowest = facts.latency.quantile(1.0).unwrap();
    assert!(slowest < ms(11), "{slowest:?}");
}

/// L1, case_a13: a dropped attempt is cancelled, which is no outcome; so is one that panicked.
#[tokio::test(start_paused = true)]
async fn case_a13_dropped_attempts_are_cancelled() {
    let measure = MeasureLayer::new();
    let meter = measure.facts();
    let service = measure.layer(service_fn(|_: ()| pending::<Result<(), Infallible>>()));
    assert!(timeout(secs(5), service.clone().oneshot(())).await.is_err());
    drop(service.oneshot(())); // never polled, so never called
    let panics =
        measure.layer(service_fn(|(): ()| async { panic!("by the test") as Result<(), Infallible> }));
    let mut call = Box::pin(panics.oneshot(()));
    let mut cx = Context::from_waker(Waker::noop());
    assert!(std::panic::catch_unwind(AssertUnwindSafe(|| call.as_mut().poll(&mut cx))).is_err());
    drop(call);
    let facts = told(&meter);
    assert_eq!((facts.cancelled, facts.outcomes(), facts.latency.count()), (2, 0, 0));
}

/// L1: what is dropped by a timeout above is a failure where the user says from what age on.
#[tokio::test(start_paused = true)]
async fn l1_an_attempt_dropped_at_its_timeout_failed() {
    let measure = MeasureLayer::new().dropped_is_timeout(secs(5));
    let meter = measure.facts();
    let service = measure.layer(service_fn(|_: ()| pending::<Result<(), Infallible>>()));
    for patience in [ms(4_999), secs(5), secs(9)] {
        assert!(timeout(patience, service.clone().oneshot(())).await.is_err());
    }
    let facts = told(&meter);
    assert_eq!((facts.cancelled, facts.timeout, facts.outcomes()), (1, 2, 2));
    assert!(facts.latency.quantile(0.0).unwrap() >= ms(4_900));
}

/// L1: all that is built from one layer value is counted together, clones and threads included, and exactly.
#[test]
fn l1_counts_are_exact_over_clones_and_threads() {
    let measure = MeasureLayer::new().classify(by_status);
    let other = measure.clone();
    let meter = other.facts();
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let service = if thread % 2 == 0 { &measure } else { &other };
            let mut service = service.layer(service_fn(|status: u16| ready(Status::Ok(status))));
            scope.spawn(move || {
                let mut cx = Context::from_waker(Waker::noop());
                for i in 0..10_000 {
                    assert!(service.poll_ready(&mut cx).is_ready());
                    let status = if i % 4 == 0 { 503 } else { 200 };
                    assert!(pin!(service.call(status)).poll(&mut cx).is_ready());
                }
            });
        }
    });
    let facts = told(&meter);
    assert_eq!((facts.succeeded, facts.unavailable, facts.latency.count()), (30_000, 10_000, 40_000));
}

/// L1: a new layer value is a new count.
#[tokio::test]
async fn l1_two_layer_values_share_nothing() {
    let (one, two) = (MeasureLayer::new(), MeasureLayer::new());
    let (first, second) = (one.facts(), two.facts());
    one.layer(service_fn(|_: ()| ready(Ok::<_, Infallible>(())))).oneshot(()).await.unwrap();
    assert_eq!((told(&first).outcomes(), told(&second).outcomes()), (1, 0));
}

/// A service whose readiness fails, once.
#[derive(Clone)]
struct Unready {
    failed: bool,
}

impl Service<()> for Unready {
    type Response = u16;
    type Error = &'static str;
    type Future = std::future::Ready<Result<u16, &'static str>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), &'static str>> {
        Poll::Ready(if std::mem::replace(&mut self.failed, true) { Ok(()) } else { Err("unready") })
    }

    fn call(&mut self, (): ()) -> Self::Future {
        ready(Ok(200))
    }
}

/// L1: an error of the readiness is an outcome without a latency, and is passed on.
#[tokio::test]
async fn l1_a_readiness_error_is_a_failure_without_latency() {
    let measure = MeasureLayer::new();
    let meter = measure.facts();
    let mut service = measure.layer(Unready { failed: false });
    assert_eq!(service.ready().await.err(), Some("unready"));
    assert_eq!(service.ready().await.unwrap().call(()).await, Ok(200));
    let facts = told(&meter);
    assert_eq!((facts.succeeded, facts.transient, facts.latency.count()), (1, 1, 1));
}

/// L1: while nobody listens nothing is measured, and no result is classified.
#[tokio::test(start_paused = true)]
async fn l1_nothing_is_measured_while_nobody_listens() {
    let asked = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&asked);
    let measure = MeasureLayer::new().classify(move |_: &Status| {
        counter.fetch_add(1, Ordering::Relaxed);
        Verdict::Success
    });
    let service = measure.layer(service_fn(|status: u16| ready(Status::Ok(status))));
    service.clone().oneshot(200).await.unwrap();
    assert_eq!(asked.load(Ordering::Relaxed), 0);

    let mut facts = Window::new().source(measure.facts()).spawn();
    service.clone().oneshot(200).await.unwrap();
    assert_eq!(asked.load(Ordering::Relaxed), 1);
    assert_eq!(facts.changed().await.unwrap().attempts.as_ref().unwrap().succeeded, 1);

    drop(facts);
    tokio::task::yield_now().await; // the window ends, and lets its meter go
    service.oneshot(200).await.unwrap();
    assert_eq!(asked.load(Ordering::Relaxed), 1);
}

/// L1: windows come once a second without any traffic, at even times, and hold what happened in them.
#[tokio::test(start_paused = true)]
async fn l1_windows_are_even_and_need_no_traffic() {
    let start = Instant::now();
    let measure = MeasureLayer::new();
    let service = measure.layer(service_fn(|_: ()| ready(Ok::<_, Infallible>(()))));
    let mut facts = Window::new().source(measure.facts()).spawn();
    assert_eq!(*facts.latest(), Facts::default());
    for (window, calls) in [(1, 0), (2, 3), (3, 0)] {
        for _ in 0..calls {
            service.clone().oneshot(()).await.unwrap();
        }
        let told = facts.changed().await.unwrap();
        assert_eq!(start.elapsed(), secs(window));
        assert_eq!(told.window, secs(1));
        assert_eq!(told.attempts.as_ref().unwrap().succeeded, calls);
        assert_eq!(facts.latest(), told);
    }
    // Two more clones, each with its own place.
    let mut clone = facts.clone();
    assert!(facts.changed().await.is_some());
    assert!(clone.changed().await.is_some());
    assert_eq!(start.elapsed(), secs(4));
}

/// L1: a window that ended late says how long it was, and the next is even again.
#[tokio::test(start_paused = true)]
async fn l1_a_late_window_tells_its_length() {
    let mut facts = Window::new().source(MeasureLayer::new().facts()).spawn();
    tokio::task::yield_now().await;
    advance(ms(5_500)).await;
    assert_eq!(facts.changed().await.unwrap().window, ms(5_500));
    let before = Instant::now();
    assert_eq!(facts.changed().await.unwrap().window, secs(1));
    assert_eq!(before.elapsed(), secs(1));
}

/// L1: the driver ends with its last listener, and the listeners with the driver.
#[tokio::test(start_paused = true)]
async fn l1_a_window_ends_with_its_last_listener() {
    let (facts, driver) = Window::new().every(secs(3_600)).build();
    let driver = tokio::spawn(driver);
    let clone = facts.clone();
    drop(facts);
    tokio::task::yield_now().await;
    assert!(!driver.is_finished());
    let start = Instant::now();
    drop(clone);
    driver.await.unwrap();
    assert_eq!(start.elapsed(), Duration::ZERO);

    let (mut facts, driver) = Window::new().build();
    drop(driver);
    assert_eq!(facts.changed().await, None);
}

/// `Duration::MAX` is never; less than a millisecond cannot be.
#[tokio::test(start_paused = true)]
async fn window_lengths_at_their_ends() {
    let mut facts = Window::new().every(Duration::MAX).spawn();
    assert!(timeout(secs(1_000_000_000), facts.changed()).await.is_err());
    let error = Window::new().try_every(Duration::from_micros(999)).unwrap_err();
    assert_eq!(error.to_string(), "window is 999µs, but must be at least 1ms");
    assert!(Window::new().try_every(ms(1)).is_ok());
}

struct Fixed(QueueFacts);

impl Source for Fixed {
    fn sample(&self) -> Facts {
        self.0.clone().into()
    }
}

/// L1: sources of different kinds, and several of one kind, make one set of facts.
#[tokio::test(start_paused = true)]
async fn l1_sources_are_joined() {
    let queue = |queued| {
        let mut queue = QueueFacts::default();
        (queue.queued, queue.limit) = (queued, Some(8));
        Fixed(queue)
    };
    let shared: Arc<dyn Source> = Arc::new(queue(2));
    let window = Window::new().source(MeasureLayer::new().facts()).source(queue(5)).source(shared);
    let facts = window.spawn().changed().await.unwrap();
    let queue = facts.queue.as_ref().unwrap();
    assert_eq!((queue.queued, queue.limit), (7, Some(16)));
    assert_eq!(facts.attempts, Some(AttemptFacts::default()));
    assert_eq!(facts.links, None);
}

/// case_m4, case_m10: layer, service and future are `Send + Sync` where the inner ones are, and need nothing more.
#[test]
fn case_m4_measuring_adds_no_bounds() {
    fn all<T: Clone + Send + Sync>(_: &T) {}
    fn send<T: Send>(_: &T) {}
    let measure = MeasureLayer::new();
    all(&measure);
    all(&measure.facts());
    let mut service = measure.layer(service_fn(|_: ()| ready(Ok::<_, Infallible>(()))));
    all(&service);
    send(&service.call(()));
    // Neither `Send` nor `'static`.
    let word = std::rc::Rc::new(String::from("local"));
    let mut local: Measure<_, AnyError> = measure.layer(service_fn(|_: ()| {
        let word = &word;
        async move { Ok::<_, Infallible>(word.len()) }
    }));
    let mut cx = Context::from_waker(Waker::noop());
    assert_eq!(pin!(local.call(())).poll(&mut cx), Poll::Ready(Ok(5)));
}
