//! Q1 and Q2: never more than `limit` attempts at once, over everything that is built from one layer value.
#![cfg(feature = "queue")]

use std::cell::Cell;
use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use tower::limit::ConcurrencyLimit;
use tower::{BoxError, Layer, Service, ServiceBuilder, ServiceExt, service_fn};
use tower_sluice::queue::{Queue, QueueLayer};
use tower_sluice::reject::Rejection;
use tower_sluice_test::{Script, Step};

mod queue_kit;
use queue_kit::*;

#[tokio::test(start_paused = true)]
async fn q1_case_a4_retries_count_too() {
    let script = Script::<u32>::new();
    let (inner, served) = served(&script, |request, before| {
        let step = if before < 2 { Step::fail("down") } else { Step::answer(request) };
        step.after(ms(10))
    });
    let queue = QueueLayer::new(4).retry(retries(3, ms(5)));
    let handle = queue.handle();
    let service = queue.layer(inner);
    let calls: Vec<_> = (0..50).map(|request| spawn(&service, request)).collect();
    for (request, call) in calls.into_iter().enumerate() {
        assert_eq!(call.await.unwrap().unwrap() as usize, request);
    }
    assert_eq!(script.peak(), 4);
    assert_eq!(served.requests().len(), 150);
    // Eight calls take turns on four slots and are through in 60 ms, six times; the last two calls, alone, wait out
    // their two delays: 360 + 10 + 5 + 10 + 5 + 10.
    assert_eq!(script.ends().last(), Some(&ms(400)));
    let stats = handle.stats();
    assert_eq!((stats.admitted, stats.succeeded, stats.attempts, stats.retries), (50, 50, 150, 100));
    nothing_left(&handle);
}

#[tokio::test(start_paused = true)]
async fn q1_a_limit_of_one_runs_one_at_a_time() {
    let script = Script::new().answer(0).delay(ms(10));
    let service = QueueLayer::new(1).layer(script.service::<u32>());
    let calls: Vec<_> = (0..5).map(|request| spawn(&service, request)).collect();
    for call in calls {
        call.await.unwrap().unwrap();
    }
    assert_eq!(script.peak(), 1);
    assert_eq!(script.starts(), [0, 10, 20, 30, 40].map(ms));
}

#[tokio::test(start_paused = true)]
async fn q2_services_of_one_layer_value_share_its_limit_whatever_else_they_are_set_to() {
    let script = Script::new().answer(0).hold();
    let queue = QueueLayer::new(3);
    let handle = queue.handle();
    let plain = queue.layer(script.service::<u32>());
    let again = queue.layer(script.service::<u32>());
    let retrying = queue.clone().retry(retries(3, ms(1))).layer(script.service::<u32>());
    let timed = queue.clone().call_timeout(secs(60)).layer(script.service::<u32>());
    let class = queue.class("feed").layer(script.service::<u32>());
    let answered = queue.clone().respond_with(|_: &Rejection| 1).layer(script.service::<u32>());
    for request in 0..2 {
        drop((spawn(&plain, request), spawn(&again, request), spawn(&retrying, request)));
        drop((spawn(&timed, request), spawn(&class, request), spawn(&answered, request)));
    }
    settle().await;
    assert_eq!((script.running(), handle.stats().running, handle.stats().queued), (3, 3, 9));
    script.open();
    handle.idle().await;
    assert_eq!((script.peak(), script.calls()), (3, 12));
}

#[tokio::test(start_paused = true)]
async fn q2_case_g1_routes_that_are_each_wrapped_share_one_limit() {
    let script = Script::new().answer(0).delay(ms(10));
    let queue = QueueLayer::new(5);
    // As a router does it: the layer is applied to each route, and each request goes through a clone.
    let routes: Vec<_> = (0..10)
        .map(|_| ServiceBuilder::new().layer(queue.clone()).service(script.service::<u32>()))
        .collect();
    let calls: Vec<_> = (0..50).map(|n| spawn(&routes[n % 10], 0)).collect();
    for call in calls {
        call.await.unwrap().unwrap();
    }
    assert_eq!((script.peak(), script.calls()), (5, 50));
}

#[tokio::test(start_paused = true)]
async fn q2_a_new_layer_is_a_new_limit() {
    let script = Script::new().answer(0).hold();
    let (one, other) = (QueueLayer::new(1), QueueLayer::new(1));
    for queue in [&one, &other] {
        let service = queue.layer(script.service::<u32>());
        drop((spawn(&service, 0), spawn(&service, 1)));
    }
    settle().await;
    assert_eq!((script.running(), one.handle().stats().running), (2, 1));
    other.handle().pause();
    assert!(!one.handle().is_paused());
}

#[tokio::test(start_paused = true)]
async fn q1_an_unlimited_queue_runs_all() {
    let script = Script::new().answer(0).hold();
    let queue = QueueLayer::unlimited();
    let handle = queue.handle();
    let service = queue.layer(script.service::<u32>());
    drop((0..3_000).map(|request| spawn(&service, request)).collect::<Vec<_>>());
    settle().await;
    assert_eq!((script.running(), handle.stats().running), (3_000, 3_000));
    script.open();
    handle.idle().await;
    nothing_left(&handle);
}

#[test]
fn q12_case_r1_a_limit_that_cannot_work_is_refused_by_name() {
    for limit in [0, 16_777_215, usize::MAX] {
        let error = QueueLayer::try_new(limit).unwrap_err();
        assert_eq!(error.field(), "limit");
        assert!(error.to_string().contains(&limit.to_string()), "{error}");
        assert!(error.to_string().contains("1 to 16777214"), "{error}");
    }
    assert_eq!(QueueLayer::try_new(1).unwrap().handle().stats().limit, 1);
    assert_eq!(QueueLayer::try_new(16_777_214).unwrap().handle().stats().limit, 16_777_214);
}

#[test]
#[should_panic(expected = "limit is 0, but must be 1 to 16777214")]
fn q12_case_r1_a_literal_limit_of_zero_panics() {
    let _ = QueueLayer::new(0);
}

#[test]
fn q17_everything_is_built_and_steered_outside_a_runtime() {
    let queue = QueueLayer::new(2).rate(5, secs(1)).call_timeout(secs(1)).hold_on_retry_after(secs(9));
    let handle = queue.handle();
    let service = queue.layer(service_fn(|n: u32| async move { Ok::<_, Infallible>(n) }));
    handle.pause();
    handle.set_limit(3).unwrap();
    assert_eq!((handle.clear("nobody"), handle.toggle(), handle.stats().limit), (0, false, 3));
    handle.close();
    drop(service);
    assert!(handle.stats().is_idle());
}

/// Holds the service that `future` calls to no more than is needed.
fn bounds<S>(service: S) -> S
where
    S: Service<u32, Future: Send> + Clone + Send + Sync + 'static,
{
    service
}

/// A future that is `Send` and not `Sync`.
struct NotSync(Cell<u32>);

impl Future for NotSync {
    type Output = Result<u32, Infallible>;

    fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Self::Output> {
        Poll::Ready(Ok(self.0.get()))
    }
}

#[tokio::test]
async fn case_g3_case_m4_case_m10_a_queue_is_clone_send_and_sync_over_futures_that_are_not_sync() {
    let queue = QueueLayer::new(1).call_timeout(secs(1)).retry(retries(2, ms(1)));
    let service = bounds(queue.layer(service_fn(|n: u32| NotSync(Cell::new(n)))));
    assert_eq!(service.oneshot(7).await.unwrap(), 7);
}

#[tokio::test]
async fn a_queue_asks_neither_send_of_its_service_nor_clone_of_its_requests() {
    struct Request(Rc<u32>);
    let seen = Rc::new(Cell::new(0));
    let inner = service_fn(|request: Request| {
        let seen = seen.clone();
        async move {
            seen.set(*request.0);
            Ok::<_, BoxError>(Rc::new(1))
        }
    });
    assert_eq!(*QueueLayer::new(1).layer(inner).oneshot(Request(Rc::new(5))).await.unwrap(), 1);
    assert_eq!(seen.get(), 5);
}

/// Runs at most `limit` at once, or says so.
#[derive(Clone)]
struct Crowd {
    running: Arc<AtomicUsize>,
    peak: Arc<AtomicUsize>,
    attempts: Arc<AtomicUsize>,
}

struct Inside(Arc<AtomicUsize>);

impl Drop for Inside {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Crowd {
    fn new() -> Self {
        Self { running: Arc::default(), peak: Arc::default(), attempts: Arc::default() }
    }

    /// Every third attempt fails; some end at once, some after having yielded.
    fn service(
        &self,
    ) -> impl Service<usize, Response = (), Error = &'static str, Future: Send> + Clone + Send + Sync + 'static
    {
        let crowd = self.clone();
        service_fn(move |n: usize| {
            let attempt = crowd.attempts.fetch_add(1, Ordering::SeqCst);
            let now = crowd.running.fetch_add(1, Ordering::SeqCst) + 1;
            crowd.peak.fetch_max(now, Ordering::SeqCst);
            let inside = Inside(crowd.running.clone());
            async move {
                let _inside = inside;
                for _ in 0..(n + attempt) % 4 {
                    tokio::task::yield_now().await;
                }
                if attempt.is_multiple_of(16) {
                    tokio::time::sleep(ms(1)).await;
                }
                if attempt.is_multiple_of(3) { Err("every third") } else { Ok(()) }
            }
        })
    }
}

/// Real time: what is tested is what threads do to each other.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn q1_q2_case_a9_hundreds_of_tasks_on_64_clones_over_threads() {
    const TASKS: usize = 512;
    const CALLS: usize = 20;
    let crowd = Crowd::new();
    let queue = QueueLayer::new(4).max_waiting(100_000).retry(retries(10, ms(1)));
    let handle = queue.handle();
    // Two services of one layer value, each in 32 clones, each clone used by eight tasks.
    let (one, other) = (queue.layer(crowd.service()), queue.layer(crowd.service()));
    let clones: Vec<Queue<_, _, _>> =
        (0..64).map(|n| if n % 2 == 0 { one.clone() } else { other.clone() }).collect();
    let tasks: Vec<_> = (0..TASKS)
        .map(|task| {
            let service = clones[task % 64].clone();
            tokio::spawn(async move {
                let mut failed = 0;
                for n in 0..CALLS {
                    failed += usize::from(service.clone().oneshot(task + n).await.is_err());
                }
                failed
            })
        })
        .collect();
    let mut failed = 0;
    for task in tasks {
        failed += task.await.unwrap();
    }
    assert_eq!(crowd.peak.load(Ordering::SeqCst), 4);
    assert_eq!(crowd.running.load(Ordering::SeqCst), 0);
    let stats = handle.stats();
    assert_eq!(stats.admitted, (TASKS * CALLS) as u64);
    assert_eq!((stats.failed, stats.succeeded), (failed as u64, (TASKS * CALLS - failed) as u64));
    assert_eq!(stats.attempts, crowd.attempts.load(Ordering::SeqCst) as u64);
    assert_eq!(stats.retries, stats.attempts - stats.admitted);
    nothing_left(&handle);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn q1_case_f16_a_thousand_concurrent_calls_over_a_concurrency_limit() {
    let crowd = Crowd::new();
    let queue = QueueLayer::new(64);
    let handle = queue.handle();
    let service = queue.layer(ConcurrencyLimit::new(crowd.service(), 7));
    let calls: Vec<_> = (0..1_000).map(|n| spawn(&service, n)).collect();
    for call in calls {
        let _ = call.await.unwrap();
    }
    assert_eq!(crowd.peak.load(Ordering::SeqCst), 7);
    assert_eq!(crowd.attempts.load(Ordering::SeqCst), 1_000);
    nothing_left(&handle);
}
