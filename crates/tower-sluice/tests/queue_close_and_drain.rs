//! Q10: `close` is final, `drain` ends in time.
#![cfg(feature = "queue")]

use std::time::Duration;

use tower::{Layer, Service, ServiceExt};
use tower_sluice::queue::QueueLayer;
use tower_sluice::reject::Rejection;
use tower_sluice_test::{Script, Step, by_hand};

mod queue_kit;
use queue_kit::*;

#[tokio::test(start_paused = true)]
async fn q10_case_a10_after_a_close_new_calls_are_turned_away_and_admitted_ones_finish() {
    let script = Script::new().answer(7).delay(ms(10));
    let queue = QueueLayer::new(1);
    let (handle, service) = (queue.handle(), queue.layer(script.service::<u32>()));
    let calls: Vec<_> = (0..3).map(|n| spawn(&service, n)).collect();
    settle().await;
    handle.close();
    handle.close();
    assert!(handle.stats().closed);
    assert_eq!(rejection(service.clone().oneshot(9).await), Rejection::Closed);
    // Everything built from the layer value, before and after.
    assert_eq!(rejection(queue.layer(script.service::<u32>()).oneshot(9).await), Rejection::Closed);
    for call in calls {
        assert_eq!(call.await.unwrap().unwrap(), 7);
    }
    assert_eq!(rejection(service.oneshot(9).await), Rejection::Closed);
    let stats = handle.stats();
    assert_eq!((stats.rejected.closed, stats.succeeded, stats.admitted), (3, 3, 3));
    nothing_left(&handle);
}

#[tokio::test(start_paused = true)]
async fn q10_an_attempt_that_fails_after_the_close_is_the_last() {
    let script = Script::<u32>::new().fail("down").delay(ms(10));
    let queue = QueueLayer::new(1).retry(retries(5, ms(100)));
    let call = spawn(&queue.layer(script.service::<u32>()), 0);
    settle().await;
    let since = Since::start();
    queue.handle().close();
    // R8: the real result.
    assert_eq!(call.await.unwrap().unwrap_err().to_string(), "down");
    assert_eq!((since.ms(), script.calls(), queue.handle().stats().failed), (10, 1, 1));
    nothing_left(&queue.handle());
}

#[tokio::test(start_paused = true)]
async fn q10_a_call_that_was_deferred_at_the_close_still_has_its_attempt() {
    let script = Script::<u32>::new().fail("down");
    let queue = QueueLayer::new(1).retry(retries(5, ms(100)));
    let call = spawn(&queue.layer(script.service::<u32>()), 0);
    settle().await;
    let since = Since::start();
    queue.handle().close();
    assert_eq!(call.await.unwrap().unwrap_err().to_string(), "down");
    assert_eq!((since.ms(), script.calls()), (100, 2));
}

#[tokio::test(start_paused = true)]
async fn q10_case_q1_a_drain_ends_when_the_last_call_has() {
    let script = Script::new().answer(7).delay(ms(10));
    let queue = QueueLayer::new(1);
    let (handle, service) = (queue.handle(), queue.layer(script.service::<u32>()));
    let calls: Vec<_> = (0..3).map(|n| spawn(&service, n)).collect();
    settle().await;
    let since = Since::start();
    let drained = handle.drain(secs(60)).await;
    assert_eq!((drained.cleared, drained.still_running, since.ms()), (0, 0, 30));
    for call in calls {
        call.await.unwrap().unwrap();
    }
    // Again, on what is drained: at once.
    assert_eq!(now(handle.drain(Duration::MAX)), drained);
}

#[tokio::test(start_paused = true)]
async fn q10_at_the_end_of_the_grace_what_waits_is_settled_and_what_runs_is_left() {
    let script = Script::new();
    let (inner, _) = served(&script, |request, _| match request {
        0 => Step::fail("down"),
        _ => Step::never(),
    });
    let queue = QueueLayer::new(1).retry(retries(2, secs(3_600)));
    let (handle, service) = (queue.handle(), queue.layer(inner));
    // Sleeps out an hour.
    let deferred = spawn(&service, 0);
    settle().await;
    let stuck = spawn(&service, 1);
    let queued = spawn(&service, 2);
    settle().await;
    let since = Since::start();
    let drained = handle.drain(secs(5)).await;
    assert_eq!((drained.cleared, drained.still_running, since.ms()), (2, 1, 5_000));
    assert_eq!(rejection(deferred.await.unwrap()), Rejection::Closed);
    assert_eq!(rejection(queued.await.unwrap()), Rejection::Closed);
    assert_eq!(since.ms(), 5_000);
    assert!(!stuck.is_finished());
    assert_eq!((handle.stats().cleared, handle.stats().running), (2, 1));
    stuck.abort();
    handle.idle().await;
    nothing_left(&handle);
}

#[tokio::test(start_paused = true)]
async fn q10_a_drain_closes_when_it_is_made_and_dropping_it_leaves_the_queue_closed() {
    let queue = QueueLayer::new(1);
    let drain = queue.handle().drain(secs(5));
    assert!(queue.handle().stats().closed);
    drop(drain);
    assert!(queue.handle().stats().closed);

    let script = Script::<u32>::new().fail("down");
    let queue = QueueLayer::new(1).retry(retries(2, secs(60)));
    let mut service = queue.layer(script.service::<u32>());
    let mut call = by_hand(service.call(0));
    assert!(call.poll().is_pending());
    let mut drain = by_hand(queue.handle().drain(secs(5)));
    assert!(drain.poll().is_pending());
    drop(drain);
    tokio::time::advance(secs(6)).await;
    // Nobody settled it.
    assert!(call.poll().is_pending());
    assert_eq!(queue.handle().stats().deferred, 1);
}

#[tokio::test(start_paused = true)]
async fn q10_without_grace_it_ends_at_once() {
    let script = Script::<u32>::new().never();
    let queue = QueueLayer::new(1);
    let service = queue.layer(script.service::<u32>());
    let _running = spawn(&service, 0);
    let queued = spawn(&service, 1);
    settle().await;
    let since = Since::start();
    let drained = queue.handle().drain(Duration::ZERO).await;
    assert_eq!((drained.cleared, drained.still_running, since.ms()), (1, 1, 0));
    assert_eq!(rejection(queued.await.unwrap()), Rejection::Closed);
}

#[tokio::test(start_paused = true)]
async fn q10_with_endless_grace_it_waits_for_the_last_one() {
    let script = Script::new().answer(7).delay(secs(100_000));
    let queue = QueueLayer::new(1);
    let call = spawn(&queue.layer(script.service::<u32>()), 0);
    settle().await;
    let since = Since::start();
    let drained = queue.handle().drain(Duration::MAX).await;
    assert_eq!((drained.cleared, drained.still_running, since.ms()), (0, 0, 100_000_000));
    call.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn q10_case_q4_calls_that_were_dropped_do_not_hold_a_drain_up() {
    let script = Script::new();
    let (inner, _) = served(&script, |request, _| match request {
        0 => Step::fail("down"),
        _ => Step::never(),
    });
    let queue = QueueLayer::new(2).retry(retries(2, secs(3_600)));
    let service = queue.layer(inner);
    let calls: Vec<_> = (0..6).map(|n| spawn(&service, n)).collect();
    settle().await;
    let stats = queue.handle().stats();
    assert_eq!((stats.deferred, stats.running, stats.queued), (1, 2, 3));
    for call in &calls {
        call.abort();
    }
    let since = Since::start();
    let drained = queue.handle().drain(secs(60)).await;
    assert_eq!((drained.cleared, drained.still_running, since.ms()), (0, 0, 0));
}

#[tokio::test(start_paused = true)]
async fn q10_it_waits_for_calls_not_for_services_that_are_kept() {
    let script = Script::new().answer(7);
    let queue = QueueLayer::new(1);
    let mut kept = queue.layer(script.service::<u32>());
    kept.ready().await.unwrap();
    let since = Since::start();
    queue.handle().drain(secs(60)).await;
    assert_eq!(since.ms(), 0);

    // Nor for places that ready handles keep.
    let queue = QueueLayer::new(1).wait_when_full();
    let mut kept = queue.layer(script.service::<u32>());
    kept.ready().await.unwrap();
    assert_eq!(queue.handle().stats().reserved, 1);
    queue.handle().drain(secs(60)).await;
    assert_eq!(since.ms(), 0);
    assert_eq!(rejection(kept.call(0).await), Rejection::Closed);
}

#[tokio::test(start_paused = true)]
async fn q10_two_drains_of_different_patience() {
    let script = Script::<u32>::new().fail("down");
    let queue = QueueLayer::new(1).retry(retries(2, secs(60)));
    let service = queue.layer(script.service::<u32>());
    let calls = [spawn(&service, 0), spawn(&service, 1)];
    settle().await;
    let since = Since::start();
    let patient = tokio::spawn(queue.handle().drain(secs(30)));
    let hasty = tokio::spawn(queue.handle().drain(secs(1)));
    assert_eq!(hasty.await.unwrap().cleared, 2);
    assert_eq!(patient.await.unwrap().cleared, 0);
    assert_eq!(since.ms(), 1_000);
    for call in calls {
        assert_eq!(rejection(call.await.unwrap()), Rejection::Closed);
    }
}

#[tokio::test(start_paused = true)]
async fn q10_case_h4_a_close_is_not_a_pause() {
    let script = Script::new().answer(7).hold();
    let queue = QueueLayer::new(1);
    let (handle, service) = (queue.handle(), queue.layer(script.service::<u32>()));
    let calls: Vec<_> = (0..3).map(|n| spawn(&service, n)).collect();
    settle().await;
    handle.close();
    assert!(!handle.is_paused());
    handle.resume();
    assert!(handle.stats().closed);
    script.open();
    for call in calls {
        call.await.unwrap().unwrap();
    }
}
