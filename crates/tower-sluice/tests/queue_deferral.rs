//! Q5: a call that waits for its next attempt holds nothing; and what the policy decides, the queue does.
#![cfg(feature = "queue")]

use std::sync::{Arc, Mutex};

use tower::{Layer, Service, ServiceExt};
use tower_sluice::backoff::{Backoff, Jitter};
use tower_sluice::queue::QueueLayer;
use tower_sluice::reject::Rejection;
use tower_sluice::retry::{BudgetTerms, RetryBudget};
use tower_sluice::verdict::{Attempt, Classify, Once, Repeat, Totals, Verdict};
use tower_sluice_test::{Failure, Script, Step, by_hand};

mod queue_kit;
use queue_kit::*;

#[tokio::test(start_paused = true)]
async fn q5_case_a1_a_failed_call_leaves_its_slot_to_the_next_at_once() {
    let script = Script::new();
    let (inner, served) = served(&script, |request, before| match (request, before) {
        (0, 0) => Step::fail("down"),
        _ => Step::answer(request).after(ms(10)),
    });
    let queue = QueueLayer::new(1).retry(retries(2, secs(4)));
    let (handle, service) = (queue.handle(), queue.layer(inner));
    let since = Since::start();
    let (a, b) = (spawn(&service, 0), spawn(&service, 1));
    settle().await;
    let stats = handle.stats();
    assert_eq!((stats.running, stats.deferred, stats.queued), (1, 1, 0));
    since.at(2_000).await;
    let stats = handle.stats();
    assert_eq!((stats.running, stats.deferred, stats.queued), (0, 1, 0));
    b.await.unwrap().unwrap();
    a.await.unwrap().unwrap();
    assert_eq!(served.entries(), [(0, 0), (1, 0), (0, 4_000)]);
    nothing_left(&handle);
}

#[tokio::test(start_paused = true)]
async fn q5_case_a2_case_d1_a_long_retry_after_pins_no_slot() {
    let script = Script::new().answer(429).answer(200);
    let policy =
        retries(2, ms(1)).max_retry_after(secs(600)).classify(|result: &Result<u32, Failure>| match result {
            Ok(429) => Verdict::throttled().after(Some(secs(300))),
            _ => Verdict::Success,
        });
    let queue = QueueLayer::new(1).seed(7).retry(policy);
    let service = queue.layer(script.service::<u32>());
    let since = Since::start();
    let first = spawn(&service, 0);
    settle().await;
    assert_eq!(service.oneshot(1).await.unwrap(), 200);
    assert_eq!((since.ms(), queue.handle().stats().deferred), (0, 1));
    assert_eq!(first.await.unwrap().unwrap(), 200);
    // R5: never early, and spread over at most 5 s.
    assert!((300_000..=305_000).contains(&since.ms()), "{}", since.ms());
}

/// A response that knows whether it still exists.
#[derive(Clone, Debug)]
struct Response(#[expect(dead_code, reason = "its count is looked at")] Arc<()>);

#[tokio::test(start_paused = true)]
async fn q5_a_deferred_call_holds_no_slot_no_readiness_no_attempt_and_no_response() {
    let kept = Arc::new(());
    let answer = kept.clone();
    let script = Script::new().answer(Response(Arc::new(()))).reservations(1);
    let inner = script.service_by(move |_: &u32, _| {
        let answer = answer.clone();
        Step::answer_with(move || Response(answer.clone()))
    });
    let policy = retries(2, secs(1)).classify(|_: &Result<Response, Failure>| Verdict::unavailable());
    let queue = QueueLayer::new(1).retry(policy);
    let mut service = queue.layer(inner);
    let services = script.instances();
    let mut call = by_hand(service.call(0));
    assert!(call.poll().is_pending());
    let stats = queue.handle().stats();
    assert_eq!((stats.running, stats.deferred), (0, 1));
    assert_eq!((script.calls(), script.futures(), script.reserved()), (1, 0, 0));
    // The test, and the step that the service's closure keeps.
    assert_eq!(Arc::strong_count(&kept), 2);
    // What remains is at most the clone that attempts are made on, unready.
    assert!(script.instances() <= services + 1);
}

#[tokio::test(start_paused = true)]
async fn q5_delays_are_those_of_the_backoff_to_the_millisecond() {
    let script = Script::<u32>::new().fail("down").delay(ms(7));
    let backoff = Backoff::exponential(ms(100), ms(250)).jitter(Jitter::None);
    let queue = QueueLayer::new(1).retry(tower_sluice::retry::RetryPolicy::new(4, backoff));
    let error = queue.layer(script.service::<u32>()).oneshot(0).await.unwrap_err();
    // R8: the last real error, as it came.
    assert_eq!(error.downcast_ref::<Failure>(), Some(&Failure::from("down")));
    assert_eq!(script.starts(), [0, 107, 314, 571].map(ms));
    let stats = queue.handle().stats();
    assert_eq!((stats.attempts, stats.retries, stats.failed, stats.succeeded), (4, 3, 1, 0));
}

#[tokio::test(start_paused = true)]
async fn r3_case_c12_calls_have_delays_of_their_own_and_a_seed_gives_them_again() {
    async fn starts(seed: u64) -> Vec<(u32, u64)> {
        let script = Script::new();
        let (inner, served) = served(&script, |_, _| Step::fail("down"));
        let policy = tower_sluice::retry::RetryPolicy::new(3, Backoff::external());
        let service = QueueLayer::new(4).seed(seed).retry(policy).layer(inner);
        let calls: Vec<_> = (0..4).map(|n| spawn(&service, n)).collect();
        for call in calls {
            call.await.unwrap().unwrap_err();
        }
        served.entries()
    }
    let seven = starts(7).await;
    assert_eq!(seven, starts(7).await);
    assert_ne!(seven, starts(8).await);
    let mut second: Vec<_> =
        (0..4).map(|n| seven.iter().filter(|entry| entry.0 == n).nth(1).unwrap().1).collect();
    second.dedup();
    assert_eq!(second.len(), 4, "{seven:?}");
}

/// What a policy was asked and told, in order.
#[derive(Clone, Default)]
struct Noted(Arc<Mutex<Vec<String>>>);

impl Noted {
    fn note(&self, what: impl Into<String>) {
        self.0.lock().unwrap().push(what.into());
    }
}

impl Classify<u32, Failure> for Noted {
    fn classify(&self, result: &Result<u32, Failure>) -> Verdict {
        self.note(format!("classify {result:?}"));
        match result {
            Ok(200) => Verdict::Success,
            Ok(400) => Verdict::Fatal,
            _ => Verdict::transient(),
        }
    }

    fn discard(&self, response: u32) {
        self.note(format!("discard {response}"));
    }

    fn finish(&self, response: &mut u32, totals: &Totals) {
        self.note(format!("finish {response} after {}", totals.attempts));
    }
}

impl Repeat<u32> for Noted {
    fn copy(&self, request: &u32) -> Option<u32> {
        self.note(format!("copy {request}"));
        Some(*request)
    }

    fn prepare(&self, request: &mut u32, attempt: &Attempt) {
        self.note(format!("prepare {request} for {}, {:?} left", attempt.number, attempt.left()));
        // Each attempt adds to what the one before left behind.
        *request += 1;
    }
}

#[tokio::test(start_paused = true)]
async fn q5_r9_the_policy_is_asked_in_order_and_prepares_before_it_copies() {
    let script = Script::new().answer(500).answer(200);
    let noted = Noted::default();
    let policy = retries(3, ms(100)).classify(noted.clone()).repeat(noted.clone());
    let queue = QueueLayer::new(1).call_timeout(secs(1)).retry(policy);
    let mut service = queue.layer(script.service::<u32>());
    let mut call = by_hand(service.call(10));
    assert!(call.poll().is_pending());
    // The failed response was taken before the delay began.
    assert_eq!(
        noted.0.lock().unwrap().drain(..).collect::<Vec<_>>(),
        ["prepare 10 for 1, Some(1s) left", "copy 11", "classify Ok(500)", "discard 500"]
    );
    tokio::time::advance(ms(100)).await;
    assert_eq!(call.poll().map(Result::unwrap), std::task::Poll::Ready(200));
    assert_eq!(
        noted.0.lock().unwrap().drain(..).collect::<Vec<_>>(),
        ["prepare 11 for 2, Some(900ms) left", "copy 12", "classify Ok(200)", "finish 200 after 2"]
    );
}

#[tokio::test(start_paused = true)]
async fn r8_a_failure_that_is_not_retried_comes_back_as_it_is_and_finished() {
    let noted = Noted::default();
    let policy = retries(3, ms(100)).classify(noted.clone()).repeat(noted.clone());
    let queue = QueueLayer::new(1).retry(policy);
    let script = Script::new().answer(400);
    assert_eq!(queue.layer(script.service::<u32>()).oneshot(0).await.unwrap(), 400);
    let script = Script::new().answer(500);
    assert_eq!(queue.layer(script.service::<u32>()).oneshot(0).await.unwrap(), 500);
    let finished: Vec<_> =
        noted.0.lock().unwrap().iter().filter(|note| note.starts_with("finish")).cloned().collect();
    assert_eq!(finished, ["finish 400 after 1", "finish 500 after 3"]);
    assert_eq!(queue.handle().stats().failed, 2);
}

#[tokio::test(start_paused = true)]
async fn r9_case_e7_a_request_that_cannot_be_copied_has_one_attempt_and_its_normal_result() {
    let script = Script::new().fail("down").answer(7);
    let policy = retries(3, ms(1)).repeat(Once);
    let queue = QueueLayer::new(1).retry(policy);
    let service = queue.layer(script.service::<u32>());
    assert_eq!(service.clone().oneshot(0).await.unwrap_err().to_string(), "down");
    assert_eq!(service.oneshot(0).await.unwrap(), 7);
    assert_eq!((script.calls(), queue.handle().stats().retries), (2, 0));
}

fn budget(tokens: u32) -> RetryBudget {
    RetryBudget::on_terms(BudgetTerms::default().capacity(tokens).token_every(secs(3_600)))
}

#[tokio::test(start_paused = true)]
async fn r7_case_i5_retries_are_paid_when_they_are_scheduled() {
    let budget = budget(500);
    let script = Script::<u32>::new().fail("down");
    let queue = QueueLayer::new(1_000).retry(retries(3, secs(1)).budget(budget.clone()));
    let service = queue.layer(script.service::<u32>());
    let calls: Vec<_> = (0..300).map(|n| spawn(&service, n)).collect();
    settle().await;
    // 500 tokens at 5 each.
    assert_eq!((queue.handle().stats().deferred, budget.available()), (100, Some(0)));
    for call in calls {
        assert_eq!(call.await.unwrap().unwrap_err().to_string(), "down");
    }
    assert_eq!(script.calls(), 400);
}

#[tokio::test(start_paused = true)]
async fn r7_q13_a_paid_retry_that_is_not_made_gives_its_tokens_back() {
    let budget = budget(50);
    let script = Script::<u32>::new().fail("down");
    let queue = QueueLayer::new(1).retry(retries(2, secs(1)).budget(budget.clone()));
    let mut service = queue.layer(script.service::<u32>());
    let mut ways: Vec<Box<dyn FnMut()>> =
        vec![Box::new(|| {}), Box::new(|| assert_eq!(queue.handle().clear("x"), 1))];
    for way in &mut ways {
        let mut call = by_hand(service.call(0));
        assert!(call.poll().is_pending());
        assert_eq!(budget.available(), Some(45));
        way();
        // Polled or dropped, whichever comes.
        drop(call);
        assert_eq!(budget.available(), Some(50));
    }
    // Due, and waiting in the line for the slot: not made yet, not spent.
    let mut deferred = by_hand(service.call(1));
    assert!(deferred.poll().is_pending());
    queue.handle().pause();
    tokio::time::advance(secs(2)).await;
    assert!(deferred.poll().is_pending());
    assert_eq!((queue.handle().stats().queued, budget.available()), (1, Some(45)));
    drop(deferred);
    assert_eq!(budget.available(), Some(50));
    nothing_left(&queue.handle());
}

#[tokio::test(start_paused = true)]
async fn q5_case_l3_every_attempt_is_classified_and_counted_once() {
    let script = Script::new().answer(503).times(2).answer(200);
    let policy = retries(5, ms(1)).classify(|result: &Result<u32, Failure>| match result {
        Ok(503) => Verdict::transient(),
        _ => Verdict::Success,
    });
    let queue = QueueLayer::new(1).retry(policy);
    assert_eq!(queue.layer(script.service::<u32>()).oneshot(0).await.unwrap(), 200);
    let stats = queue.handle().stats();
    assert_eq!((stats.attempts, stats.retries, stats.succeeded, stats.failed), (3, 2, 1, 0));
}

/// A rejection by a queue below is not an attempt's failure.
#[tokio::test(start_paused = true)]
async fn q5_a_rejection_by_a_layer_below_is_not_retried() {
    let script = Script::new().answer(0).hold();
    let below = QueueLayer::new(1).max_waiting(0);
    let above = QueueLayer::new(5).retry(retries(5, ms(1)));
    let service = above.layer(below.layer(script.service::<u32>()));
    let running = spawn(&service, 0);
    settle().await;
    let Rejection::Full { .. } = rejection(service.oneshot(1).await) else { panic!("not full") };
    assert_eq!((above.handle().stats().retries, below.handle().stats().rejected.full), (0, 1));
    script.open();
    running.await.unwrap().unwrap();
}
