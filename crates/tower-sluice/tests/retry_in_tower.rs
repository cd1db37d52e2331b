//! The retry policy inside tower's own `RetryLayer`.
#![cfg(feature = "retry")]

use std::future::Future;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::{Instant, advance};
use tower::retry::{Policy, RetryLayer};
use tower::{Layer, Service, ServiceExt, service_fn};
use tower_sluice::backoff::{Backoff, Jitter};
use tower_sluice::reject::Rejection;
use tower_sluice::retry::{BudgetTerms, RetryBudget, RetryPolicy};
use tower_sluice::verdict::{Attempt, Classify, Once, Repeat, Totals, Verdict};

fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

type Answer = Result<u16, &'static str>;

/// When each attempt came, and with which request.
#[derive(Clone)]
struct Seen<Req>(Arc<Mutex<Vec<(Duration, Req)>>>);

impl<Req: Clone> Seen<Req> {
    fn times(&self) -> Vec<Duration> {
        self.0.lock().unwrap().iter().map(|(at, _)| *at).collect()
    }

    fn requests(&self) -> Vec<Req> {
        self.0.lock().unwrap().iter().map(|(_, request)| request.clone()).collect()
    }

    fn attempts(&self) -> usize {
        self.0.lock().unwrap().len()
    }
}

/// Gives these answers in turn, the last one for good.
fn scripted<Req: Clone>(
    answers: &'static [Answer],
) -> (
    impl Service<Req, Response = u16, Error = &'static str, Future = impl Future<Output = Answer>> + Clone,
    Seen<Req>,
) {
    let seen = Seen(Arc::default());
    let start = Instant::now();
    let service = service_fn({
        let seen = seen.clone();
        move |request: Req| {
            let mut seen = seen.0.lock().unwrap();
            let answer = answers[seen.len().min(answers.len() - 1)];
            seen.push((start.elapsed(), request));
            std::future::ready(answer)
        }
    });
    (service, seen)
}

/// By status, as HTTP does.
fn by_status(result: &Answer) -> Verdict {
    match result {
        Ok(429) => Verdict::throttled().after(Some(secs(2))),
        Ok(503) => Verdict::unavailable(),
        Ok(500) | Err(_) => Verdict::transient(),
        Ok(400) => Verdict::Fatal,
        Ok(_) => Verdict::Success,
    }
}

/// 1 s, 2 s, 4 s and so on, not spread.
fn seconds() -> Backoff {
    Backoff::exponential(secs(1), secs(60)).jitter(Jitter::None)
}

#[tokio::test(start_paused = true)]
async fn r4_the_kth_retry_waits_for_step_k_minus_1() {
    let (service, seen) = scripted(&[Err("down"), Ok(500), Err("down"), Ok(200)]);
    let policy = RetryPolicy::new(9, seconds()).classify(by_status);
    assert_eq!(RetryLayer::new(policy).layer(service).oneshot("a").await, Ok(200));
    assert_eq!(seen.times(), [0, 1, 3, 7].map(secs));
    assert_eq!(seen.requests(), ["a"; 4]);
}

#[tokio::test(start_paused = true)]
async fn r3_calls_through_one_layer_wait_each_their_own_time_and_a_seed_gives_them_again() {
    async fn times(seed: u64) -> Vec<Vec<Duration>> {
        let policy = RetryPolicy::new(4, Backoff::external()).seed(seed);
        let layer = RetryLayer::new(policy);
        let mut all = Vec::new();
        for _ in 0..3 {
            // Each over a service of its own, as routes are.
            let (service, seen) = scripted(&[Err("down")]);
            assert_eq!(layer.layer(service).oneshot(()).await, Err("down"));
            all.push(seen.times());
        }
        all
    }
    let first = times(7).await;
    assert_eq!(first, times(7).await);
    assert_ne!(first, times(8).await);
    assert!(first[0] != first[1] && first[1] != first[2] && first[0] != first[2]);
    // The numbers are those of the backoff, up to the millisecond of a timer.
    for (call, times) in first.iter().enumerate() {
        let mut expected = Duration::ZERO;
        for (at, delay) in times[1..].iter().zip(Backoff::external().delays(7, call as u64)) {
            expected += delay;
            assert!((Duration::ZERO..=ms(4)).contains(&(*at - expected)), "{at:?} for {expected:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn r5_a_retry_after_is_waited_for() {
    let (service, seen) = scripted(&[Ok(429), Ok(200)]);
    let policy = RetryPolicy::new(3, Backoff::rpc()).classify(by_status);
    assert_eq!(RetryLayer::new(policy).layer(service).oneshot(()).await, Ok(200));
    assert!((secs(2)..=secs(3) + ms(1)).contains(&seen.times()[1]));
}

#[tokio::test(start_paused = true)]
async fn a_delay_of_zero_takes_no_time() {
    // Between two ticks of the timer, which would round up to the next.
    advance(Duration::from_micros(300)).await;
    let (service, seen) = scripted(&[Err("down"), Err("down"), Ok(200)]);
    let policy = RetryPolicy::new(3, Backoff::exponential(Duration::ZERO, Duration::ZERO));
    assert_eq!(RetryLayer::new(policy).layer(service).oneshot(()).await, Ok(200));
    assert_eq!(seen.times(), [Duration::ZERO; 3]);
}

#[tokio::test(start_paused = true)]
async fn r8_the_caller_gets_the_last_real_answer() {
    let policy = RetryPolicy::new(3, Backoff::rpc()).classify(by_status);
    let (service, seen) = scripted(&[Err("first"), Err("second"), Ok(503), Ok(200)]);
    assert_eq!(RetryLayer::new(policy.clone()).layer(service).oneshot(()).await, Ok(503));
    assert_eq!(seen.attempts(), 3);

    let (service, seen) = scripted(&[Ok(503), Err("second"), Err("third")]);
    assert_eq!(RetryLayer::new(policy.clone()).layer(service).oneshot(()).await, Err("third"));
    assert_eq!(seen.attempts(), 3);

    let (service, seen) = scripted(&[Ok(429), Ok(200)]);
    let impatient = policy.clone().max_retry_after(secs(1));
    assert_eq!(RetryLayer::new(impatient).layer(service).oneshot(()).await, Ok(429));
    assert_eq!(seen.attempts(), 1);

    let (service, seen) = scripted(&[Ok(503), Ok(400)]);
    assert_eq!(RetryLayer::new(policy).layer(service).oneshot(()).await, Ok(400));
    assert_eq!(seen.attempts(), 2);
}

/// Counts what a classifier is told at the end of a call.
#[derive(Clone)]
struct Finishing(Arc<Mutex<Vec<u32>>>);

impl Classify<u16, &'static str> for Finishing {
    fn classify(&self, result: &Answer) -> Verdict {
        by_status(result)
    }

    fn finish(&self, response: &mut u16, totals: &Totals) {
        *response += 1_000;
        self.0.lock().unwrap().push(totals.attempts);
    }
}

#[tokio::test(start_paused = true)]
async fn r8_a_response_is_finished_with_the_attempts_it_took() {
    let finishing = Finishing(Arc::default());
    let policy = RetryPolicy::new(3, Backoff::rpc()).classify(finishing.clone());
    let cases: [(&[Answer], u16); 4] = [
        (&[Ok(200)], 1_200),
        (&[Err("down"), Ok(200)], 1_200),
        (&[Ok(503)], 1_503),
        (&[Err("down"), Ok(400)], 1_400),
    ];
    for (answers, response) in cases {
        let (service, _) = scripted(answers);
        assert_eq!(RetryLayer::new(policy.clone()).layer(service).oneshot(()).await, Ok(response));
    }
    assert_eq!(*finishing.0.lock().unwrap(), [1, 2, 3, 2]);
}

#[tokio::test(start_paused = true)]
async fn a_rejection_by_a_layer_of_ours_is_no_attempts_failure() {
    let budget = RetryBudget::new();
    let policy = RetryPolicy::new(3, Backoff::rpc()).budget(budget.clone());
    let attempts = Arc::new(Mutex::new(0));
    let service = service_fn({
        let attempts = attempts.clone();
        move |()| {
            *attempts.lock().unwrap() += 1;
            std::future::ready(Err::<(), _>(Rejection::Closed))
        }
    });
    assert_eq!(RetryLayer::new(policy).layer(service).oneshot(()).await, Err(Rejection::Closed));
    assert_eq!((*attempts.lock().unwrap(), budget.available()), (1, Some(500)));
}

#[tokio::test(start_paused = true)]
async fn case_i3_when_all_fails_the_budget_stops_retries_before_the_attempts_do() {
    let budget = RetryBudget::on_terms(BudgetTerms::new().token_every(Duration::MAX));
    let policy = RetryPolicy::new(4, Backoff::rpc()).budget(budget.clone());
    let (service, seen) = scripted(&[Err("down")]);
    let service = RetryLayer::new(policy).layer(service);
    for _ in 0..200 {
        assert_eq!(service.clone().oneshot(()).await, Err("down"));
    }
    assert_eq!((seen.attempts(), budget.available()), (300, Some(0)));
}

#[tokio::test(start_paused = true)]
async fn r7_a_retried_success_refunds_also_where_it_was_the_last_attempt() {
    let budget = RetryBudget::on_terms(BudgetTerms::new().token_every(Duration::MAX));
    let policy = RetryPolicy::new(3, seconds()).budget(budget.clone());
    let (service, _) = scripted(&[Err("down"), Err("down"), Ok(200)]);
    let call = tokio::spawn(RetryLayer::new(policy).layer(service).oneshot(()));
    tokio::task::yield_now().await;
    assert_eq!(budget.available(), Some(495));
    advance(secs(1)).await;
    tokio::task::yield_now().await;
    assert_eq!(budget.available(), Some(490));
    assert_eq!(call.await.unwrap(), Ok(200));
    assert_eq!(budget.available(), Some(500));
}

#[tokio::test(start_paused = true)]
async fn r7_a_first_success_returns_a_token() {
    let budget = RetryBudget::on_terms(BudgetTerms::new().token_every(Duration::MAX));
    let policy = RetryPolicy::new(2, Backoff::rpc()).budget(budget.clone());
    let (service, _) = scripted(&[Err("down"), Err("down"), Ok(200)]);
    let service = RetryLayer::new(policy).layer(service);
    assert_eq!(service.clone().oneshot(()).await, Err("down"));
    assert_eq!(budget.available(), Some(495));
    assert_eq!(service.oneshot(()).await, Ok(200));
    assert_eq!(budget.available(), Some(496));
}

#[tokio::test(start_paused = true)]
async fn r7_a_call_dropped_in_its_delay_gives_its_payment_back_and_one_dropped_later_does_not() {
    let budget = RetryBudget::on_terms(BudgetTerms::new().token_every(Duration::MAX));
    let policy = RetryPolicy::new(3, seconds()).budget(budget.clone());
    let (service, seen) = scripted(&[Err("down")]);
    let service = RetryLayer::new(policy).layer(service);

    let call = tokio::spawn(service.clone().oneshot(()));
    tokio::task::yield_now().await;
    assert_eq!((seen.attempts(), budget.available()), (1, Some(495)));
    call.abort();
    assert!(call.await.unwrap_err().is_cancelled());
    assert_eq!(budget.available(), Some(500));

    // In its second delay: the first retry is spent, the second is not.
    let call = tokio::spawn(service.oneshot(()));
    tokio::task::yield_now().await;
    advance(secs(1)).await;
    tokio::task::yield_now().await;
    assert_eq!((seen.attempts(), budget.available()), (3, Some(490)));
    call.abort();
    assert!(call.await.unwrap_err().is_cancelled());
    assert_eq!(budget.available(), Some(495));
}

/// Stamps the number of the attempt, and repeats but where the request says `once`.
#[derive(Clone, Copy)]
struct Stamping;

impl Repeat<String> for Stamping {
    fn copy(&self, request: &String) -> Option<String> {
        (!request.starts_with("once")).then(|| request.clone())
    }

    fn may_repeat(&self, request: &String, failure: &tower_sluice::verdict::Failure) -> bool {
        !(failure.processed && request.starts_with("unsafe"))
    }

    fn prepare(&self, request: &mut String, attempt: &Attempt) {
        request.push_str(&format!(" {}", attempt.number));
    }
}

#[tokio::test(start_paused = true)]
async fn each_attempt_but_the_first_is_prepared_with_its_number() {
    let (service, seen) = scripted(&[Err("down")]);
    let policy = RetryPolicy::new(3, Backoff::rpc()).repeat(Stamping);
    let call = RetryLayer::new(policy).layer(service).oneshot("get".to_owned());
    assert_eq!(call.await, Err("down"));
    assert_eq!(seen.requests(), ["get", "get 2", "get 2 3"]);
}

#[tokio::test(start_paused = true)]
async fn what_may_not_be_sent_again_is_not_unless_it_was_surely_not_processed() {
    let policy = RetryPolicy::new(3, Backoff::rpc()).repeat(Stamping).classify(by_status);
    let cases: [(&[Answer], usize); 2] = [(&[Ok(500)], 1), (&[Ok(429), Ok(200)], 2)];
    for (answers, attempts) in cases {
        let (service, seen) = scripted(answers);
        let call = RetryLayer::new(policy.clone()).layer(service).oneshot("unsafe".to_owned());
        assert_eq!(call.await, answers[answers.len() - 1]);
        assert_eq!(seen.attempts(), attempts);
    }
}

/// Takes a copy of nothing.
#[derive(Clone, Copy)]
struct Uncopied;

impl Repeat<()> for Uncopied {
    fn copy(&self, (): &()) -> Option<()> {
        panic!("a copy was taken of a request that is never repeated");
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_is_not_copied_where_there_is_but_one_attempt() {
    let (service, _) = scripted(&[Err("down")]);
    let policy = RetryPolicy::new(1, Backoff::rpc()).repeat(Uncopied);
    assert_eq!(RetryLayer::new(policy).layer(service).oneshot(()).await, Err("down"));
}

/// A request that cannot be copied.
#[derive(Debug, PartialEq)]
struct Upload;

#[tokio::test(start_paused = true)]
async fn r9_requests_need_not_be_clone_where_nothing_is_repeated() {
    let service = service_fn(|Upload| std::future::ready(Err::<(), _>("down")));
    let call = RetryLayer::new(RetryPolicy::none()).layer(service).oneshot(Upload);
    assert_eq!(call.await, Err("down"));
    let policy = RetryPolicy::new(3, Backoff::rpc()).repeat(Once);
    assert_eq!(RetryLayer::new(policy).layer(service).oneshot(Upload).await, Err("down"));
}

#[tokio::test(start_paused = true)]
async fn r9_a_request_that_cannot_be_copied_has_one_attempt_and_its_normal_result() {
    let policy = RetryPolicy::new(3, Backoff::rpc()).repeat(Stamping);
    let (service, seen) = scripted(&[Err("down")]);
    let call = RetryLayer::new(policy).layer(service).oneshot("once".to_owned());
    assert_eq!(call.await, Err("down"));
    assert_eq!(seen.attempts(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_clone_has_none_of_its_originals_history() {
    fn may_retry(policy: &mut RetryPolicy) -> bool {
        let copied = Policy::<(), u16, &str>::clone_request(policy, &()).is_some();
        copied && Policy::<(), u16, &str>::retry(policy, &mut (), &mut Err("down")).is_some()
    }
    let mut policy = RetryPolicy::new(2, Backoff::rpc());
    assert!(may_retry(&mut policy));
    assert!(!may_retry(&mut policy));
    assert!(may_retry(&mut policy.clone()));
}

#[test]
fn the_policy_can_go_wherever_its_parts_can() {
    fn everywhere<T: Clone + Send + Sync + 'static>(_: &T) {}
    let policy = RetryPolicy::new(2, Backoff::rpc());
    everywhere(&policy);
    everywhere(&policy.classify(by_status).repeat(Stamping));
    everywhere(&RetryPolicy::none());
    everywhere(&RetryBudget::new());
}
