//! What the README's table says of tower's own parts, each line a test, so that the table is true of the tower that
//! is in the lock file. Where the table says what ours do instead, that stands beside it.

use std::convert::Infallible;
use std::future::{Ready, poll_fn, ready};
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::task::JoinHandle;
use tokio::time::{Instant, Sleep, advance, sleep, timeout};
use tower::limit::ConcurrencyLimit;
use tower::load_shed::LoadShed;
use tower::retry::backoff::{Backoff as _, ExponentialBackoffMaker, MakeBackoff};
use tower::retry::{Policy, Retry};
use tower::timeout::Timeout;
use tower::util::rng::HasherRng;
use tower::{BoxError, Layer, Service, ServiceExt, service_fn};
use tower_sluice::backoff::{Backoff, Jitter};
use tower_sluice::queue::QueueLayer;
use tower_sluice::reject::Rejection;
use tower_sluice::retry::RetryPolicy;

const WORK: Duration = Duration::from_millis(10);
const HOUR: Duration = Duration::from_secs(3600);

/// Retries an error after a delay, so many times.
#[derive(Clone)]
struct After {
    delay: Duration,
    left: u32,
    retries: Arc<AtomicU32>,
}

impl After {
    fn new(delay: Duration) -> Self {
        Self { delay, left: 3, retries: Arc::default() }
    }
}

impl<Req: Clone, Res, E> Policy<Req, Res, E> for After {
    type Future = Sleep;

    fn retry(&mut self, _: &mut Req, result: &mut Result<Res, E>) -> Option<Sleep> {
        if result.is_ok() || self.left == 0 {
            return None;
        }
        self.left -= 1;
        self.retries.fetch_add(1, SeqCst);
        Some(sleep(self.delay))
    }

    fn clone_request(&mut self, request: &Req) -> Option<Req> {
        Some(request.clone())
    }
}

/// Job 0 fails its first attempt; every attempt takes `WORK`; starts are noted in order.
#[derive(Clone, Default)]
struct Jobs {
    starts: Arc<Mutex<Vec<u32>>>,
}

impl Service<u32> for Jobs {
    type Response = u32;
    type Error = BoxError;
    type Future = std::pin::Pin<Box<dyn Future<Output = Result<u32, BoxError>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, job: u32) -> Self::Future {
        let mut starts = self.starts.lock().unwrap();
        let fails = job == 0 && !starts.contains(&0);
        starts.push(job);
        Box::pin(async move {
            sleep(WORK).await;
            if fails { Err("the first attempt".into()) } else { Ok(job) }
        })
    }
}

/// The policy of `After`, for our queue: three retries, each after exactly this delay.
fn after(delay: Duration) -> RetryPolicy {
    RetryPolicy::new(4, Backoff::exponential(delay, delay).jitter(Jitter::None))
}

async fn settle() {
    for _ in 0..20 {
        tokio::task::yield_now().await;
    }
}

/// Starts job 0 and lets it fail, so that it sleeps until its retry.
async fn failed_once<S>(service: &S) -> JoinHandle<Result<u32, BoxError>>
where
    S: Service<u32, Response = u32, Error = BoxError, Future: Send> + Clone + Send + 'static,
{
    let job = tokio::spawn(service.clone().oneshot(0));
    settle().await;
    advance(WORK).await;
    settle().await;
    assert!(!job.is_finished(), "job 0 sleeps until its retry");
    job
}

/// Five jobs at once over one slot; the first is due again long before the others have run.
async fn five_jobs<S>(service: S)
where
    S: Service<u32, Response = u32, Error = BoxError, Future: Send> + Clone + Send + 'static,
{
    let jobs: Vec<_> = (0..5).map(|job| tokio::spawn(service.clone().oneshot(job))).collect();
    for job in jobs {
        job.await.unwrap().unwrap();
    }
}

// ---- which order holds the slot

#[tokio::test(start_paused = true)]
async fn towers_limit_outside_its_retry_keeps_the_slot_through_the_delay() {
    let slots = Arc::new(Semaphore::new(1));
    let stack =
        ConcurrencyLimit::with_semaphore(Retry::new(After::new(HOUR), Jobs::default()), slots.clone());
    let sleeping = failed_once(&stack).await;
    assert_eq!(slots.available_permits(), 0);
    assert!(timeout(HOUR / 2, stack.clone().oneshot(1)).await.is_err(), "nobody else can run");
    sleeping.abort();
}

#[tokio::test(start_paused = true)]
async fn towers_limit_inside_its_retry_frees_the_slot_and_sends_the_retry_to_the_end_of_the_line() {
    let slots = Arc::new(Semaphore::new(1));
    let stack =
        Retry::new(After::new(HOUR), ConcurrencyLimit::with_semaphore(Jobs::default(), slots.clone()));
    let sleeping = failed_once(&stack).await;
    assert_eq!(slots.available_permits(), 1);
    sleeping.abort();

    let jobs = Jobs::default();
    let soon = After::new(Duration::from_millis(1));
    five_jobs(Retry::new(soon, ConcurrencyLimit::new(jobs.clone(), 1))).await;
    assert_eq!(*jobs.starts.lock().unwrap(), [0, 1, 2, 3, 4, 0]);
}

#[tokio::test(start_paused = true)]
async fn our_queue_frees_the_slot_and_lets_the_retry_back_to_its_place() {
    // Q4, Q5
    let queue = QueueLayer::new(1).retry(after(HOUR));
    let stack = queue.layer(Jobs::default());
    let sleeping = failed_once(&stack).await;
    let stats = queue.handle().stats();
    assert_eq!((stats.running, stats.deferred), (0, 1));
    assert_eq!(timeout(WORK, stack.clone().oneshot(1)).await.unwrap().unwrap(), 1, "runs during the delay");
    sleeping.abort();

    let jobs = Jobs::default();
    five_jobs(QueueLayer::new(1).retry(after(Duration::from_millis(1))).layer(jobs.clone())).await;
    // Job 1 has the slot while 0 sleeps; 0 arrived before all others and is next.
    assert_eq!(*jobs.starts.lock().unwrap(), [0, 1, 0, 2, 3, 4]);
}

// ---- whose readiness holds permits

#[tokio::test(start_paused = true)]
async fn a_clone_of_towers_limit_that_is_ready_and_idle_holds_a_permit_and_starves_a_due_retry() {
    let slots = Arc::new(Semaphore::new(1));
    let stack =
        Retry::new(After::new(HOUR), ConcurrencyLimit::with_semaphore(Jobs::default(), slots.clone()));
    let sleeping = failed_once(&stack).await;
    let mut idle = stack.clone();
    poll_fn(|cx| Service::<u32>::poll_ready(&mut idle, cx)).await.unwrap();
    assert_eq!(slots.available_permits(), 0);
    advance(24 * HOUR).await;
    settle().await;
    assert!(!sleeping.is_finished(), "due for 23 hours, and cannot start");
    drop(idle);
    sleeping.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn towers_limit_holds_a_permit_while_the_inner_service_is_not_ready() {
    let slots = Arc::new(Semaphore::new(1));
    let mut stack = ConcurrencyLimit::with_semaphore(NeverReady, slots.clone());
    let mut cx = Context::from_waker(Waker::noop());
    assert!(Service::<u32>::poll_ready(&mut stack, &mut cx).is_pending());
    assert_eq!(slots.available_permits(), 0);
}

#[tokio::test(start_paused = true)]
async fn towers_limit_holds_a_permit_for_an_answered_call_until_its_future_is_dropped() {
    let slots = Arc::new(Semaphore::new(1));
    let echo = service_fn(|n: u32| ready(Ok::<_, Infallible>(n)));
    let mut stack = ConcurrencyLimit::with_semaphore(echo, slots.clone());
    let mut answered = Box::pin(stack.ready().await.unwrap().call(1));
    answered.as_mut().await.unwrap();
    assert_eq!(slots.available_permits(), 0);
    drop(answered);
    assert_eq!(slots.available_permits(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_clone_of_our_queue_that_is_ready_and_idle_holds_nothing() {
    // Q3, case_f3
    let queue = QueueLayer::new(1).retry(after(HOUR));
    let stack = queue.layer(Jobs::default());
    let due = failed_once(&stack).await;
    let mut idle = stack.clone();
    poll_fn(|cx| Service::<u32>::poll_ready(&mut idle, cx)).await.unwrap();
    assert_eq!(queue.handle().stats().running, 0);
    advance(HOUR).await;
    assert_eq!(timeout(2 * WORK, due).await.expect("starts when it is due").unwrap().unwrap(), 0);
}

#[tokio::test(start_paused = true)]
async fn our_queue_pauses_and_clears_a_call_whose_inner_service_is_not_ready() {
    // Q8, Q9
    let queue = QueueLayer::new(1);
    let handle = queue.handle();
    let call = tokio::spawn(queue.layer(NeverReady).oneshot(1));
    settle().await;
    assert_eq!(handle.stats().running, 1);
    handle.pause();
    settle().await;
    assert_eq!((handle.stats().running, handle.stats().queued), (0, 1));
    assert_eq!(handle.clear("over"), 1);
    let error = call.await.unwrap().unwrap_err();
    assert!(matches!(Rejection::find(&*error), Some(Rejection::Cleared { .. })));
}

#[tokio::test(start_paused = true)]
async fn our_queue_has_the_slot_back_from_an_answered_call_that_is_not_dropped() {
    // Q16
    let queue = QueueLayer::new(1);
    let mut stack = queue.layer(service_fn(|n: u32| ready(Ok::<_, Infallible>(n))));
    let mut answered = Box::pin(stack.ready().await.unwrap().call(1));
    answered.as_mut().await.unwrap();
    assert_eq!(queue.handle().stats().running, 0);
}

// ---- whose jitter is the same for every call

/// The delay that tower's backoff draws first.
async fn first_delay(maker: &mut ExponentialBackoffMaker) -> Duration {
    let begun = Instant::now();
    maker.make_backoff().next_backoff().await;
    begun.elapsed()
}

#[tokio::test(start_paused = true)]
async fn towers_backoff_draws_the_same_delay_for_every_call() {
    let base = Duration::from_millis(900);
    let mut maker = ExponentialBackoffMaker::new(base, HOUR, 0.99, HasherRng::new()).unwrap();
    let first = first_delay(&mut maker).await;
    for _ in 0..100 {
        assert_eq!(first_delay(&mut maker).await, first);
    }
    // It is a draw all the same: 20 other sources agree on one millisecond of 891 only if nothing is drawn.
    let mut others = Vec::new();
    for _ in 0..20 {
        let mut other = ExponentialBackoffMaker::new(base, HOUR, 0.99, HasherRng::new()).unwrap();
        others.push(first_delay(&mut other).await);
    }
    assert!(others.iter().any(|delay| *delay != others[0]));
}

#[tokio::test(start_paused = true)]
async fn towers_backoff_has_no_jitter_where_its_base_is_a_whole_second() {
    let base = Duration::from_secs(1);
    for _ in 0..100 {
        let mut maker = ExponentialBackoffMaker::new(base, HOUR, 0.99, HasherRng::new()).unwrap();
        // The paused clock ticks in milliseconds and rounds up.
        assert!(first_delay(&mut maker).await <= base + Duration::from_millis(1));
    }
}

#[test]
fn our_backoff_gives_each_call_a_series_of_its_own_and_repeats_it_for_a_seed() {
    // R3
    let backoff = Backoff::exponential(Duration::from_secs(1), HOUR);
    let first = |seed, call| backoff.delays(seed, call).next().unwrap();
    let mut firsts: Vec<_> = (0..100).map(|call| first(7, call)).collect();
    assert_eq!(firsts[3], first(7, 3));
    firsts.sort_unstable();
    firsts.dedup();
    assert_eq!(firsts.len(), 100);
}

// ---- what a full queue does to a retry

#[tokio::test(start_paused = true)]
async fn towers_load_shed_below_its_retry_burns_the_attempts() {
    let policy = After::new(Duration::from_millis(1));
    let retries = policy.retries.clone();
    let stack = Retry::new(policy, LoadShed::new(ConcurrencyLimit::new(Jobs::default(), 1)));
    let busy = tokio::spawn(stack.clone().oneshot(1));
    settle().await;
    assert!(stack.clone().oneshot(2).await.is_err());
    assert_eq!(retries.load(SeqCst), 3, "every retry was spent on being turned away");
    busy.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn our_full_queue_turns_away_the_new_and_keeps_the_admitted() {
    // Q6
    let queue = QueueLayer::new(1).max_waiting(1).retry(after(HOUR));
    let stack = queue.layer(Jobs::default());
    let deferred = failed_once(&stack).await;
    let running = tokio::spawn(stack.clone().oneshot(1));
    settle().await;
    let error = stack.clone().oneshot(2).await.unwrap_err();
    assert!(
        matches!(Rejection::find(&*error), Some(Rejection::Full { limit: 1, waiting: 1, .. })),
        "{error}"
    );
    running.await.unwrap().unwrap();
    advance(HOUR).await;
    assert_eq!(deferred.await.unwrap().unwrap(), 0);
}

// ---- which wait a timeout counts

#[tokio::test(start_paused = true)]
async fn towers_timeout_does_not_count_the_wait_for_a_slot() {
    let slots = Arc::new(Semaphore::new(0));
    let limit = ConcurrencyLimit::with_semaphore(Jobs::default(), slots);
    let mut stack = Timeout::new(limit, Duration::from_secs(1));
    assert!(timeout(HOUR, ServiceExt::<u32>::ready(&mut stack)).await.is_err(), "an hour in line");
}

#[tokio::test(start_paused = true)]
async fn our_call_timeout_counts_the_wait_for_a_slot() {
    // Q7, case_k2
    let queue = QueueLayer::new(1).call_timeout(Duration::from_secs(1));
    let stack = queue.layer(service_fn(|_: u32| std::future::pending::<Result<u32, Infallible>>()));
    let _busy = tokio::spawn(stack.clone().oneshot(1));
    settle().await;
    let begun = Instant::now();
    let error = stack.oneshot(2).await.unwrap_err();
    let Some(Rejection::Deadline { attempts: 0, elapsed, .. }) = Rejection::find(&*error) else {
        panic!("{error}");
    };
    assert_eq!(*elapsed, Duration::from_secs(1));
    assert!(begun.elapsed() <= Duration::from_millis(1_001));
}

/// A service that never becomes ready.
#[derive(Clone)]
struct NeverReady;

impl Service<u32> for NeverReady {
    type Response = u32;
    type Error = Infallible;
    type Future = Ready<Result<u32, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Pending
    }

    fn call(&mut self, n: u32) -> Self::Future {
        ready(Ok(n))
    }
}
