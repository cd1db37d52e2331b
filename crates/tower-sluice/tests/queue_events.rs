//! E1: what the queue tells.
//!
//! Apart from the other tests, none of which has a subscriber: which of them meets an event first would decide
//! whether tracing takes it for one that nobody listens to.
#![cfg(feature = "queue")]

use std::cell::RefCell;
use std::io;
use std::sync::Once;

use tower::{Layer, ServiceExt};
use tower_sluice::queue::QueueLayer;
use tower_sluice::retry::{BudgetTerms, RetryBudget};
use tower_sluice::verdict::Verdict;
use tower_sluice_test::{Failure, Script};

mod queue_kit;
use queue_kit::*;

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
            .with_ansi(false)
            .with_writer(|| ToThread)
            .init();
    });
    LOG.take();
}

/// The lines since the last time, without their target.
#[track_caller]
fn logged() -> Vec<String> {
    let bytes = LOG.take();
    let lines = String::from_utf8(bytes).unwrap();
    lines
        .lines()
        .map(|line| {
            let (level, rest) = line.trim().split_once(' ').unwrap();
            format!("{level} {}", rest.trim().strip_prefix("tower_sluice::queue: ").expect("its target"))
        })
        .collect()
}

#[tokio::test(start_paused = true)]
async fn e1_case_h17_case_n1_case_n6_a_call_that_is_retried_tells_each_step_when_it_happens() {
    listen();
    let script = Script::new().answer(503).after(ms(10)).answer(200).after(ms(20));
    let policy = retries(3, ms(100)).classify(|result: &Result<u32, Failure>| match result {
        Ok(503) => Verdict::transient(),
        _ => Verdict::Success,
    });
    let queue = QueueLayer::new(1).name("stripe").retry(policy);
    let call = spawn(&queue.layer(script.service::<u32>()), 0);
    let since = Since::start();
    since.at(50).await;
    assert_eq!(
        logged(),
        [
            "DEBUG attempt started queue=\"stripe\" call=0 attempt=1",
            "DEBUG retry scheduled queue=\"stripe\" call=0 attempt=1 kind=\"transient\" delay=100ms",
        ]
    );
    call.await.unwrap().unwrap();
    assert_eq!(
        logged(),
        [
            "DEBUG attempt started queue=\"stripe\" call=0 attempt=2",
            "DEBUG call ended queue=\"stripe\" call=0 outcome=\"succeeded\" attempts=2 waited=0ns elapsed=130ms",
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn e1_a_servers_wish_is_told_with_the_retry() {
    listen();
    let script = Script::new().answer(429).answer(200);
    let policy = retries(3, ms(100)).classify(|result: &Result<u32, Failure>| match result {
        Ok(429) => Verdict::throttled().after(Some(secs(2))),
        _ => Verdict::Success,
    });
    let queue = QueueLayer::new(1).seed(7).retry(policy);
    queue.layer(script.service::<u32>()).oneshot(0).await.unwrap();
    let lines = logged();
    assert!(lines[1].contains("kind=\"throttled\"") && lines[1].contains("retry_after=2s"), "{lines:?}");
}

#[tokio::test(start_paused = true)]
async fn e1_case_i14_a_retry_that_is_not_made_says_why_and_a_lost_call_warns() {
    listen();
    let script = Script::<u32>::new().fail("down");
    let tight = RetryBudget::on_terms(BudgetTerms::default().capacity(10));
    let service = |queue: QueueLayer<_>| queue.layer(script.service::<u32>());
    let lost = service(QueueLayer::new(1).name("q").retry(retries(2, ms(1))));
    lost.oneshot(0).await.unwrap_err();
    let lines = logged();
    assert_eq!(
        lines[3..],
        [
            "DEBUG retry not made queue=\"q\" call=0 attempt=2 kind=\"transient\" reason=\"attempts\"",
            "WARN call ended queue=\"q\" call=0 outcome=\"failed\" attempts=2 waited=0ns elapsed=1ms",
        ]
    );
    for (queue, reason) in [
        (QueueLayer::new(1).retry(retries(9, ms(1)).budget(tight)), "budget"),
        (QueueLayer::new(1).call_timeout(ms(5)).retry(retries(9, ms(10))), "deadline"),
    ] {
        service(queue).oneshot(0).await.unwrap_err();
        let lines = logged();
        let said: Vec<_> = lines.iter().filter(|line| line.contains("retry not made")).collect();
        assert_eq!(said.len(), 1, "{lines:?}");
        assert!(said[0].ends_with(&format!("reason=\"{reason}\"")), "{}", said[0]);
    }
    let uncopied = retries(9, ms(1)).repeat(tower_sluice::verdict::Once);
    QueueLayer::new(1).retry(uncopied).layer(script.service::<u32>()).oneshot(0).await.unwrap_err();
    let lines = logged();
    assert!(lines[1].ends_with("reason=\"not_repeatable\""), "{lines:?}");
    // One attempt is no retry that was lost: not a warning.
    assert!(lines[2].starts_with("DEBUG call ended"), "{lines:?}");
    let asks =
        retries(9, ms(1)).classify(|_: &Result<u32, Failure>| Verdict::throttled().after(Some(secs(3_600))));
    QueueLayer::new(1).retry(asks).layer(script.service::<u32>()).oneshot(0).await.unwrap_err();
    let lines = logged();
    assert!(lines[1].ends_with("reason=\"retry_after\""), "{lines:?}");
}

#[tokio::test(start_paused = true)]
async fn e1_every_end_of_a_call_is_told_once() {
    listen();
    let script = Script::new().answer(7).hold();
    let queue = QueueLayer::new(1).max_waiting(2);
    let handle = queue.handle();
    let service = queue.layer(script.service::<u32>());
    let timed = queue.clone().queue_timeout(ms(20)).layer(script.service::<u32>());
    let late = queue.clone().call_timeout(ms(30)).layer(script.service::<u32>());
    let running = spawn(&service, 0);
    settle().await;
    let (timed, late) = (spawn(&timed, 0), spawn(&late, 0));
    settle().await;
    let full = service.clone().oneshot(0).await;
    assert!(full.is_err() && timed.await.unwrap().is_err() && late.await.unwrap().is_err());
    let dropped = spawn(&service, 0);
    let cleared = spawn(&service, 0);
    settle().await;
    dropped.abort();
    settle().await;
    handle.clear("x");
    cleared.await.unwrap().unwrap_err();
    handle.close();
    service.oneshot(0).await.unwrap_err();
    script.open();
    running.await.unwrap().unwrap();
    let ends: Vec<_> = logged()
        .into_iter()
        .filter(|line| line.contains("call ended"))
        .map(|line| line.split("outcome=").nth(1).unwrap().split(' ').next().unwrap().to_owned())
        .collect();
    assert_eq!(
        ends,
        [
            "\"full\"",
            "\"queue_timeout\"",
            "\"deadline\"",
            "\"cancelled\"",
            "\"cleared\"",
            "\"closed\"",
            "\"succeeded\""
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn e1_how_long_a_call_waited_and_how_long_it_took() {
    listen();
    let script = Script::new().answer(7).delay(ms(40));
    let queue = QueueLayer::new(1).name("q");
    let service = queue.layer(script.service::<u32>());
    let calls = [spawn(&service, 0), spawn(&service, 1)];
    for call in calls {
        call.await.unwrap().unwrap();
    }
    let lines = logged();
    assert_eq!(
        lines.last().unwrap(),
        "DEBUG call ended queue=\"q\" call=1 outcome=\"succeeded\" attempts=1 waited=40ms elapsed=80ms"
    );
}

#[tokio::test(start_paused = true)]
async fn e1_what_an_operator_does_is_told() {
    listen();
    let queue = QueueLayer::new(1).name("q");
    let handle = queue.handle();
    handle.pause();
    handle.resume();
    handle.set_limit(9).unwrap();
    assert!(handle.set_limit(0).is_err());
    handle.clear("deploy");
    handle.drain(secs(1)).await;
    handle.close();
    assert_eq!(
        logged(),
        [
            "INFO operator queue=\"q\" act=\"pause\"",
            "INFO operator queue=\"q\" act=\"resume\"",
            "INFO operator queue=\"q\" act=\"set_limit\" limit=9",
            "INFO operator queue=\"q\" act=\"clear\" calls=0 reason=\"deploy\"",
            "INFO operator queue=\"q\" act=\"close\"",
            "INFO operator queue=\"q\" act=\"drain\" calls=0",
        ]
    );
}
