//! Q15: a server's Retry-After holds the whole line.
#![cfg(feature = "queue")]

use std::time::Duration;

use tokio::time::Instant;
use tower::{Layer, Service, ServiceExt};
use tower_sluice::queue::QueueLayer;
use tower_sluice::reject::Rejection;
use tower_sluice::retry::RetryPolicy;
use tower_sluice::verdict::{AnyError, Classify, CloneRequest, FailureKind, Verdict};
use tower_sluice_test::{Failure, Script, Step, by_hand};

mod queue_kit;
use queue_kit::*;

/// An answer of at least 1 000 is a 429 that asks for so many milliseconds less 1 000, or, from 100 000 on, a 503 in
/// the same way; one of 900 a transient failure that asks for a second.
#[derive(Clone, Copy)]
struct Asks;

impl Classify<u32, Failure> for Asks {
    fn classify(&self, result: &Result<u32, Failure>) -> Verdict {
        match *result {
            Ok(0..900) => Verdict::Success,
            Ok(900) => Verdict::transient().after(Some(secs(1))),
            Ok(asks @ 1_000..100_000) => Verdict::throttled().after(Some(ms(u64::from(asks) - 1_000))),
            Ok(asks) => Verdict::unavailable().after(Some(ms(u64::from(asks) - 100_000))),
            Err(_) => Verdict::transient(),
        }
    }
}

fn asks(max_attempts: u32) -> RetryPolicy<Asks, CloneRequest> {
    let policy: RetryPolicy<AnyError, CloneRequest> = retries(max_attempts, ms(1));
    policy.classify(Asks)
}

#[tokio::test(start_paused = true)]
async fn q15_case_h16_queued_calls_spend_no_attempt_while_the_line_is_held() {
    let script = Script::new();
    let (inner, served) = served(&script, |request, before| match (request, before) {
        (0, 0) => Step::answer(1_000 + 2_000),
        _ => Step::answer(7).after(ms(10)),
    });
    let queue = QueueLayer::new(2).hold_on_retry_after(secs(60)).retry(asks(2));
    let (handle, service) = (queue.handle(), queue.layer(inner));
    let until = Instant::now() + secs(2);
    let calls: Vec<_> = (0..6).map(|n| spawn(&service, n)).collect();
    settle().await;
    let stats = handle.stats();
    // The second had a slot of its own before the first was answered, or waits like all others.
    assert_eq!(stats.held_until, Some(until));
    let before = served.requests().len();
    tokio::time::sleep_until(until - ms(1)).await;
    assert_eq!(served.requests().len(), before);
    for call in calls {
        assert_eq!(call.await.unwrap().unwrap(), 7);
    }
    assert_eq!(served.requests().len(), 7);
    assert_eq!(handle.stats().held_until, None);
    nothing_left(&handle);
}

#[tokio::test(start_paused = true)]
async fn q15_afterwards_the_limit_is_one_and_grows_by_one_a_success() {
    let script = Script::new();
    let (inner, served) = served(&script, |request, before| match (request, before) {
        (0, 0) => Step::answer(1_000 + 500),
        _ => Step::answer(7).after(ms(10)),
    });
    let queue = QueueLayer::new(4).hold_on_retry_after(secs(60)).retry(asks(1));
    let (handle, service) = (queue.handle(), queue.layer(inner));
    // R8: it has its real answer, and holds the line all the same.
    assert_eq!(service.clone().oneshot(0).await.unwrap(), 1_500);
    assert_eq!(handle.stats().limit, 1);
    let calls: Vec<_> = (1..=12).map(|n| spawn(&service, n)).collect();
    let since = Since::start();
    for (at, limit) in [(505, 1), (515, 2), (525, 4), (535, 4)] {
        since.at(at).await;
        assert_eq!((handle.stats().limit, handle.stats().running), (limit, limit), "at {at}");
    }
    for call in calls {
        call.await.unwrap().unwrap();
    }
    let at: Vec<_> = served.entries().iter().skip(1).map(|entry| entry.1).collect();
    assert_eq!(at, [500, 510, 510, 520, 520, 520, 520, 530, 530, 530, 530, 540]);
    nothing_left(&handle);
}

#[tokio::test(start_paused = true)]
async fn q15_a_failure_does_not_let_more_run() {
    let script = Script::new();
    let (inner, served) = served(&script, |request, _| match request {
        0 => Step::answer(1_000 + 500),
        1..4 => Step::fail("down").after(ms(10)),
        _ => Step::answer(7).after(ms(10)),
    });
    let queue = QueueLayer::new(4).hold_on_retry_after(secs(60)).retry(asks(1));
    let service = queue.layer(inner);
    service.clone().oneshot(0).await.unwrap();
    drop((1..=6).map(|n| spawn(&service, n)).collect::<Vec<_>>());
    settle().await;
    queue.handle().idle().await;
    assert_eq!(served.entries()[1..], [(1, 500), (2, 510), (3, 520), (4, 530), (5, 540), (6, 540)]);
}

#[tokio::test(start_paused = true)]
async fn q15_only_a_hint_of_a_throttled_or_unavailable_service_that_is_not_too_long_holds() {
    for (answer, held) in [
        (1_000 + 5_000, Some(5_000)),
        (1_000 + 5_001, None),
        (100_000 + 5_000, Some(5_000)),
        (100_000 + 5_001, None),
        (1_000, None),
        (900, None),
        (7, None),
    ] {
        let script = Script::new().answer(answer);
        let queue = QueueLayer::new(4).hold_on_retry_after(secs(5)).retry(asks(1));
        let since = Instant::now();
        assert_eq!(queue.layer(script.service::<u32>()).oneshot(0).await.unwrap(), answer);
        assert_eq!(queue.handle().stats().held_until, held.map(|held| since + ms(held)), "{answer}");
        assert_eq!(queue.handle().stats().limit, if held.is_some() { 1 } else { 4 }, "{answer}");
    }
}

#[tokio::test(start_paused = true)]
async fn q15_off_unless_set_and_off_by_zero() {
    for queue in
        [QueueLayer::new(4), QueueLayer::new(4).hold_on_retry_after(secs(5)).hold_on_retry_after(ms(0))]
    {
        let script = Script::new().answer(1_000 + 2_000);
        queue.clone().retry(asks(1)).layer(script.service::<u32>()).oneshot(0).await.unwrap();
        assert_eq!(queue.handle().stats().held_until, None);
    }
}

#[tokio::test(start_paused = true)]
async fn q15_a_longer_hint_extends_a_hold_and_a_shorter_one_does_not() {
    let script = Script::new();
    let (inner, _) = served(&script, |request, _| match request {
        0 => Step::answer(1_000 + 3_000),
        1 => Step::answer(1_000 + 100).after(ms(1_000)),
        2 => Step::answer(1_000 + 4_000).after(ms(2_000)),
        _ => Step::answer(7),
    });
    let queue = QueueLayer::new(4).hold_on_retry_after(secs(60)).retry(asks(1));
    let (handle, mut service) = (queue.handle(), queue.layer(inner));
    let start = Instant::now();
    let (mut one, mut two) = (by_hand(service.call(1)), by_hand(service.call(2)));
    assert!(one.poll().is_pending() && two.poll().is_pending());
    service.call(0).await.unwrap();
    assert_eq!(handle.stats().held_until, Some(start + secs(3)));
    tokio::time::advance(ms(1_000)).await;
    assert!(one.poll().is_ready());
    assert_eq!(handle.stats().held_until, Some(start + secs(3)));
    let queued = spawn(&service, 3);
    tokio::time::advance(ms(1_000)).await;
    assert!(two.poll().is_ready());
    assert_eq!(handle.stats().held_until, Some(start + secs(6)));
    queued.await.unwrap().unwrap();
    assert_eq!(Instant::now(), start + secs(6));
}

#[tokio::test(start_paused = true)]
async fn q15_calls_that_cannot_outlast_the_hold_end_at_once() {
    let script = Script::new();
    let (inner, served) = served(&script, |request, _| match request {
        0 => Step::answer(1_000 + 5_000).after(ms(100)),
        _ => Step::answer(7),
    });
    let queue = QueueLayer::new(1).hold_on_retry_after(secs(60)).retry(asks(1));
    let (handle, service) = (queue.handle(), queue.layer(inner.clone()));
    let hasty = queue.clone().call_timeout(secs(2)).layer(inner.clone());
    let patient = queue.clone().call_timeout(secs(20)).layer(inner);
    let since = Since::start();
    let first = spawn(&service, 0);
    settle().await;
    let (queued_hasty, queued_patient) = (spawn(&hasty, 1), spawn(&patient, 2));
    first.await.unwrap().unwrap();
    let late = |attempts, elapsed| Rejection::Deadline { attempts, elapsed, last_failure: None };
    // Queued before the hold.
    assert_eq!(rejection(queued_hasty.await.unwrap()), late(0, ms(100)));
    assert_eq!(since.ms(), 100);
    // Called during it: not admitted.
    assert_eq!(rejection(hasty.clone().oneshot(3).await), late(0, Duration::ZERO));
    assert_eq!((since.ms(), handle.stats().rejected.too_late, handle.stats().rejected.deadline), (100, 1, 1));
    queued_patient.await.unwrap().unwrap();
    assert_eq!(since.ms(), 5_100);
    assert_eq!(served.requests(), [0, 2]);
    nothing_left(&handle);
}

#[tokio::test(start_paused = true)]
async fn q15_q5_a_deferred_call_that_cannot_outlast_the_hold_ends_too() {
    let script = Script::new();
    let (inner, _) = served(&script, |request, _| match request {
        0 => Step::fail("down"),
        _ => Step::answer(1_000 + 5_000).after(ms(100)),
    });
    let policy = retries(2, ms(500)).classify(Asks);
    let queue = QueueLayer::new(2).hold_on_retry_after(secs(60)).retry(policy);
    let since = Since::start();
    let deferred = spawn(&queue.clone().call_timeout(secs(2)).layer(inner.clone()), 0);
    let holds = spawn(&queue.clone().call_timeout(secs(3)).layer(inner), 1);
    let result = deferred.await.unwrap();
    let Rejection::Deadline { attempts: 1, last_failure: Some(FailureKind::Transient), .. } =
        rejection(result)
    else {
        panic!("no deadline")
    };
    assert_eq!(since.ms(), 100);
    assert_eq!(holds.await.unwrap().unwrap(), 6_000);
    nothing_left(&queue.handle());
}

#[tokio::test(start_paused = true)]
async fn q15_a_call_that_was_granted_a_slot_and_not_polled_waits_too() {
    let script = Script::new();
    let (inner, served) = served(&script, |request, _| match request {
        0 => Step::answer(7).after(ms(10)),
        1 => Step::answer(1_000 + 5_000).after(ms(10)),
        _ => Step::answer(7),
    });
    let queue = QueueLayer::new(2).hold_on_retry_after(secs(60)).retry(asks(1));
    let mut service = queue.layer(inner);
    let mut calls: Vec<_> = (0..3).map(|n| by_hand(service.call(n))).collect();
    for call in &mut calls {
        assert!(call.poll().is_pending());
    }
    tokio::time::advance(ms(10)).await;
    assert!(calls[0].poll().is_ready() && calls[2].is_woken());
    assert!(calls[1].poll().is_ready());
    assert!(calls[2].poll().is_pending());
    assert_eq!(served.requests(), [0, 1]);
    tokio::time::advance(secs(5)).await;
    assert!(calls[2].is_woken() && calls[2].poll().is_ready());
    nothing_left(&queue.handle());
}

#[tokio::test(start_paused = true)]
async fn q17_the_head_keeps_the_timer_and_who_follows_takes_it_over() {
    let script = Script::new().answer(1_000 + 5_000).answer(7);
    let queue = QueueLayer::new(2).hold_on_retry_after(secs(60)).retry(asks(1));
    let (handle, mut service) = (queue.handle(), queue.layer(script.service::<u32>()));
    service.call(0).await.unwrap();
    let mut calls: Vec<_> = (0..4).map(|n| by_hand(service.call(n))).collect();
    for call in &mut calls {
        assert!(call.poll().is_pending());
    }
    // The head goes: the next is woken, and it alone.
    let head = calls.remove(0);
    drop(head);
    assert_eq!(calls.iter().map(|call| call.wakes()).collect::<Vec<_>>(), [1, 0, 0]);
    assert!(calls[0].poll().is_pending());
    // Not the head: nobody need know.
    drop(calls.remove(2));
    assert_eq!(calls.iter().map(|call| call.wakes()).collect::<Vec<_>>(), [1, 0]);
    // Woken and gone before it was polled.
    drop(calls.remove(0));
    assert_eq!(calls[0].wakes(), 1);
    assert!(calls[0].poll().is_pending());
    tokio::time::advance(secs(5)).await;
    assert!(calls[0].is_woken() && calls[0].poll().is_ready());
    nothing_left(&handle);
}

#[tokio::test(start_paused = true)]
async fn q15_q8_a_pause_and_a_hold_both_have_to_end() {
    let script = Script::new().answer(1_000 + 5_000).answer(7);
    let queue = QueueLayer::new(2).hold_on_retry_after(secs(60)).retry(asks(1));
    let (handle, service) = (queue.handle(), queue.layer(script.service::<u32>()));
    let since = Since::start();
    service.clone().oneshot(0).await.unwrap();
    let call = spawn(&service, 1);
    settle().await;
    handle.pause();
    since.at(1_000).await;
    handle.resume();
    since.at(2_000).await;
    assert_eq!(script.calls(), 1);
    handle.pause();
    since.at(6_000).await;
    assert_eq!(script.calls(), 1);
    handle.resume();
    call.await.unwrap().unwrap();
    assert_eq!(script.starts(), [ms(0), ms(6_000)]);
}

#[tokio::test(start_paused = true)]
async fn q15_q9_calls_of_a_held_line_can_be_cleared_and_a_full_one_says_until_when() {
    let script = Script::new().answer(1_000 + 5_000).answer(7);
    let queue = QueueLayer::new(1).max_waiting(1).hold_on_retry_after(secs(60)).retry(asks(1));
    let (handle, service) = (queue.handle(), queue.layer(script.service::<u32>()));
    service.clone().oneshot(0).await.unwrap();
    let calls = [spawn(&service, 1), spawn(&service, 2)];
    settle().await;
    let full = rejection(service.clone().oneshot(3).await);
    assert_eq!(full.retry_after(), Some(secs(5)));
    assert_eq!(handle.clear("x"), 2);
    for call in calls {
        assert_eq!(rejection(call.await.unwrap()), cleared("x"));
    }
    assert!(handle.stats().held_until.is_some());
    nothing_left(&handle);
}

#[tokio::test(start_paused = true)]
async fn q15_q12_a_limit_set_after_a_hold_is_what_it_grows_to() {
    let script = Script::new();
    let (inner, _) = served(&script, |request, _| match request {
        0 => Step::answer(1_000 + 500),
        _ => Step::answer(7).after(ms(10)),
    });
    let queue = QueueLayer::new(100).hold_on_retry_after(secs(60)).retry(asks(1));
    let (handle, service) = (queue.handle(), queue.layer(inner));
    service.clone().oneshot(0).await.unwrap();
    handle.set_limit(2).unwrap();
    assert_eq!(handle.stats().limit, 1);
    drop((1..=8).map(|n| spawn(&service, n)).collect::<Vec<_>>());
    settle().await;
    handle.idle().await;
    assert_eq!((handle.stats().limit, script.peak()), (2, 2));
    nothing_left(&handle);
}
