//! E1: what the retry policy tells inside tower's own `RetryLayer`.
//!
//! Apart from the other tests, none of which has a subscriber: which of them meets an event first would decide
//! whether tracing takes it for one that nobody listens to.
#![cfg(feature = "retry")]

use std::cell::RefCell;
use std::io;
use std::sync::Once;
use std::time::Duration;

use tower::retry::RetryLayer;
use tower::{Layer, ServiceExt, service_fn};
use tower_sluice::backoff::{Backoff, Jitter};
use tower_sluice::retry::{BudgetTerms, RetryBudget, RetryPolicy};
use tower_sluice::verdict::{Repeat, Verdict};

thread_local! {
    /// What was logged on this thread, which is this test's.
    static LOG: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

struct ToThread;

impl io::Write for ToThread {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        LOG.with_borrow_mut(|log| log.extend_from_slice(bytes));
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn listen() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        tracing_subscriber::fmt()
            .with_max_level(tracing::Level::DEBUG)
            .without_time()
            .with_target(false)
            .with_ansi(false)
            .with_writer(|| ToThread)
            .init();
    });
}

/// The lines since the last time.
fn logged() -> Vec<String> {
    let bytes = LOG.take();
    String::from_utf8(bytes).unwrap().lines().map(|line| line.trim().to_owned()).collect()
}

/// One second before each retry.
fn second() -> Backoff {
    let second = Duration::from_secs(1);
    Backoff::exponential(second, second).jitter(Jitter::None)
}

/// Runs one call against a service that always fails with this.
async fn call<C, R>(policy: RetryPolicy<C, R>, error: Verdict)
where
    R: Repeat<()> + Clone,
{
    let policy = policy.classify(|result: &Result<(), Verdict>| match result {
        Ok(()) => Verdict::Success,
        Err(verdict) => *verdict,
    });
    let service = service_fn(move |()| std::future::ready(Err(error)));
    assert_eq!(RetryLayer::new(policy).layer(service).oneshot(()).await, Err(error));
}

#[tokio::test(start_paused = true)]
async fn each_retry_and_each_refusal_has_its_event_and_a_lost_call_a_warning() {
    listen();
    call(RetryPolicy::new(2, second()), Verdict::transient()).await;
    assert_eq!(
        logged(),
        [
            r#"DEBUG retry scheduled call=0 attempt=1 kind="transient" delay=1s retry_after=None"#,
            r#"DEBUG retry not made call=0 attempt=2 kind="transient" reason="attempts""#,
            r#"WARN call ended call=0 outcome="failed" attempts=2"#,
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn a_call_that_was_never_retried_is_no_warning() {
    listen();
    let hour = Some(Duration::from_secs(3_600));
    call(RetryPolicy::new(2, second()), Verdict::throttled().after(hour)).await;
    assert_eq!(logged(), [r#"DEBUG retry not made call=0 attempt=1 kind="throttled" reason="retry_after""#]);
    call(RetryPolicy::new(2, second()), Verdict::Fatal).await;
    assert!(logged().is_empty());
}

#[tokio::test(start_paused = true)]
async fn case_i14_a_retry_that_the_budget_refuses_says_so() {
    listen();
    let one_retry = BudgetTerms::new().capacity(10).retry_cost(10).token_every(Duration::MAX);
    let policy = RetryPolicy::new(3, second()).budget(RetryBudget::on_terms(one_retry));
    call(policy, Verdict::unavailable()).await;
    assert_eq!(
        logged()[1..],
        [
            r#"DEBUG retry not made call=0 attempt=2 kind="unavailable" reason="budget""#,
            r#"WARN call ended call=0 outcome="failed" attempts=2"#,
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn r9_case_e7_a_request_that_cannot_be_copied_has_its_normal_result_and_an_event() {
    listen();
    call(RetryPolicy::none().max_attempts(3), Verdict::transient()).await;
    assert_eq!(logged(), [r#"DEBUG no retry can follow attempt=1 reason="not_repeatable""#]);
}
