//! Q9: `clear` settles whatever has not started.
#![cfg(feature = "queue")]

use std::task::Poll;

use tower::{Layer, Service, ServiceExt};
use tower_sluice::queue::QueueLayer;
use tower_sluice_test::{Failure, Script, Step, by_hand};

mod queue_kit;
use queue_kit::*;

#[tokio::test(start_paused = true)]
async fn q9_case_h1_all_that_wait_are_settled_in_the_same_tick() {
    let script = Script::new();
    let (inner, served) = served(&script, |request, _| match request {
        0..3 => Step::fail("down"),
        _ => Step::answer(request).held(),
    });
    let queue = QueueLayer::new(1).retry(retries(2, secs(3_600)));
    let (handle, service) = (queue.handle(), queue.layer(inner));
    let waiting: Vec<_> = (0..3).map(|n| spawn(&service, n)).collect();
    settle().await;
    let running = spawn(&service, 3);
    let queued: Vec<_> = (4..9).map(|n| spawn(&service, n)).collect();
    settle().await;
    let stats = handle.stats();
    assert_eq!((stats.deferred, stats.running, stats.queued), (3, 1, 5));

    let since = Since::start();
    assert_eq!(handle.clear("deploy"), 8);
    // Before any of them was polled.
    let stats = handle.stats();
    assert_eq!((stats.deferred, stats.running, stats.queued, stats.cleared), (0, 1, 0, 8));
    sound(&stats);
    for call in waiting.into_iter().chain(queued) {
        assert_eq!(rejection(call.await.unwrap()), cleared("deploy"));
    }
    assert_eq!(since.ms(), 0);

    // The running one is not touched, new ones are let in, and nothing of the others comes back.
    let next = spawn(&service, 10);
    script.open();
    assert_eq!(running.await.unwrap().unwrap(), 3);
    assert_eq!(next.await.unwrap().unwrap(), 10);
    since.at(10_000_000).await;
    assert_eq!(served.requests(), [0, 1, 2, 3, 10]);
    assert_eq!(handle.clear("nobody"), 0);
    nothing_left(&handle);
}

#[tokio::test(start_paused = true)]
async fn q9_a_call_that_was_granted_a_slot_and_not_polled_is_settled() {
    let script = Script::new().answer(7).hold();
    let queue = QueueLayer::new(1);
    let (handle, mut service) = (queue.handle(), queue.layer(script.service::<u32>()));
    let (mut a, mut b) = (by_hand(service.call(0)), by_hand(service.call(1)));
    assert!(a.poll().is_pending() && b.poll().is_pending());
    script.release_all();
    assert!(a.poll().is_ready() && b.is_woken());
    assert_eq!(handle.stats().granted, 1);
    assert_eq!(handle.clear("x"), 1);
    nothing_left(&handle);
    let Poll::Ready(result) = b.poll() else { panic!("pending") };
    assert_eq!(rejection(result), cleared("x"));
    assert_eq!(script.calls(), 1);
    // The slot is free.
    let mut c = by_hand(service.call(2));
    assert!(c.poll().is_pending());
    assert_eq!(script.running(), 1);
}

#[tokio::test(start_paused = true)]
async fn q9_a_slot_holder_whose_service_is_not_ready_is_settled() {
    let script = Script::new().answer(7).ready_held();
    let queue = QueueLayer::new(1);
    let (handle, mut service) = (queue.handle(), queue.layer(script.service::<u32>()));
    let mut call = by_hand(service.call(0));
    assert!(call.poll().is_pending());
    assert_eq!((handle.stats().running, script.waiting_ready()), (1, 1));
    assert_eq!(handle.clear("x"), 1);
    nothing_left(&handle);
    assert!(call.is_woken());
    let Poll::Ready(result) = call.poll() else { panic!("pending") };
    assert_eq!(rejection(result), cleared("x"));
    drop(call);
    assert_eq!((script.waiting_ready(), script.calls()), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn q9_a_running_call_that_fails_later_may_still_be_retried() {
    let script = Script::new().fail("down").after(ms(10)).answer(7);
    let queue = QueueLayer::new(1).retry(retries(2, ms(10)));
    let call = spawn(&queue.layer(script.service::<u32>()), 0);
    settle().await;
    assert_eq!(queue.handle().clear("x"), 0);
    assert_eq!(call.await.unwrap().unwrap(), 7);
}

#[tokio::test(start_paused = true)]
async fn q9_case_h15_a_settled_call_that_nobody_polls_has_no_timer_and_starts_nothing() {
    let script = Script::<u32>::new().fail("down");
    let queue = QueueLayer::new(1).queue_timeout(secs(9)).call_timeout(secs(99)).retry(retries(2, secs(1)));
    let mut service = queue.layer(script.service::<u32>());
    let mut call = by_hand(service.call(0));
    assert!(call.poll().is_pending());
    assert_eq!(queue.handle().clear("x"), 1);
    assert_eq!(call.wakes(), 1);
    let Poll::Ready(result) = call.poll() else { panic!("pending") };
    assert_eq!(rejection(result), cleared("x"));
    // Kept, after its end: nothing wakes it.
    tokio::time::advance(secs(1_000)).await;
    assert_eq!((call.wakes(), script.calls()), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn q9_one_that_was_settled_and_is_dropped_unpolled_counts_once() {
    let script = Script::new().answer(7).hold();
    let queue = QueueLayer::new(1);
    let (handle, mut service) = (queue.handle(), queue.layer(script.service::<u32>()));
    let mut running = by_hand(service.call(0));
    let mut queued = by_hand(service.call(1));
    assert!(running.poll().is_pending() && queued.poll().is_pending());
    assert_eq!(handle.clear("x"), 1);
    drop(queued);
    drop(running);
    let stats = handle.stats();
    assert_eq!((stats.cleared, stats.cancelled), (1, 1));
    nothing_left(&handle);
}

#[tokio::test(start_paused = true)]
async fn q9_the_last_error_is_the_source_of_a_cleared_retry() {
    let script = Script::<u32>::new().fail("down");
    let queue = QueueLayer::new(1).retry(retries(2, secs(1)));
    let call = spawn(&queue.layer(script.service::<u32>()), 0);
    settle().await;
    queue.handle().clear(String::from("x"));
    let error = call.await.unwrap().unwrap_err();
    assert_eq!(error.source().and_then(|source| source.downcast_ref()), Some(&Failure::from("down")));
    assert_eq!(error.to_string(), "the queue was cleared: x");
}

#[tokio::test(start_paused = true)]
async fn q9_those_who_wait_for_a_place_have_it() {
    let script = Script::new().answer(7).hold();
    let queue = QueueLayer::new(1).max_waiting(1).wait_when_full();
    let (handle, service) = (queue.handle(), queue.layer(script.service::<u32>()));
    let calls: Vec<_> = (0..4).map(|n| spawn(&service, n)).collect();
    settle().await;
    assert_eq!((handle.stats().running, handle.stats().queued), (1, 1));
    // Not in the queue yet, and so not cleared.
    assert_eq!(handle.clear("x"), 1);
    settle().await;
    assert_eq!((handle.stats().running, handle.stats().queued), (1, 1));
    script.open();
    let mut answered = 0;
    for call in calls {
        answered += usize::from(call.await.unwrap().is_ok());
    }
    assert_eq!(answered, 3);
    nothing_left(&handle);
}

#[tokio::test(start_paused = true)]
async fn q9_of_ten_thousand_all_are_settled() {
    let script = Script::<u32>::new().never();
    let queue = QueueLayer::new(1).max_waiting(20_000);
    let service = queue.layer(script.service::<u32>());
    let calls: Vec<_> = (0..10_001).map(|n| spawn(&service, n)).collect();
    settle().await;
    assert_eq!(queue.handle().clear("x"), 10_000);
    for call in calls.into_iter().skip(1) {
        assert_eq!(rejection(call.await.unwrap()), cleared("x"));
    }
    assert_eq!(queue.handle().stats().running, 1);
}

#[tokio::test(start_paused = true)]
async fn q9_a_cleared_call_may_be_made_again_at_once() {
    let script = Script::new().answer(7).hold();
    let queue = QueueLayer::new(1).max_waiting(1);
    let service = queue.layer(script.service::<u32>());
    let running = spawn(&service, 0);
    settle().await;
    let waits = {
        let service = service.clone();
        tokio::spawn(async move {
            let first = service.clone().oneshot(1).await;
            (first.is_err(), service.oneshot(2).await)
        })
    };
    settle().await;
    assert_eq!(queue.handle().clear("x"), 1);
    settle().await;
    assert_eq!(queue.handle().stats().queued, 1);
    script.open();
    running.await.unwrap().unwrap();
    let (was_cleared, again) = waits.await.unwrap();
    assert_eq!((was_cleared, again.unwrap()), (true, 7));
}
