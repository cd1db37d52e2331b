//! Q6: how many calls may be in the queue, and what the others are told.
#![cfg(feature = "queue")]

use tower::{Layer, Service, ServiceExt};
use tower_sluice::queue::QueueLayer;
use tower_sluice::reject::Rejection;
use tower_sluice_test::{Script, Step, by_hand};

mod queue_kit;
use queue_kit::*;

/// The figures of a `Full`.
#[track_caller]
fn full<T: std::fmt::Debug>(result: Result<T, tower_sluice::BoxError>) -> (usize, usize) {
    match rejection(result) {
        Rejection::Full { limit, waiting, .. } => (limit, waiting),
        other => panic!("not full: {other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn q6_case_b1_deferred_calls_count_whatever_is_offered() {
    let script = Script::<u32>::new().fail("503").delay(ms(10));
    let queue = QueueLayer::new(2).max_waiting(3).retry(retries(20, ms(50)));
    let (handle, service) = (queue.handle(), queue.layer(script.service::<u32>()));
    let calls: Vec<_> = (0..100).map(|n| spawn(&service, n)).collect();
    for _ in 0..200 {
        tokio::time::sleep(ms(3)).await;
        let stats = handle.stats();
        assert!(stats.queued + stats.running + stats.deferred <= 5, "{stats:?}");
    }
    let mut turned_away = 0;
    for call in calls {
        turned_away += usize::from(Rejection::find(&*call.await.unwrap().unwrap_err()).is_some());
    }
    assert_eq!((turned_away, handle.stats().rejected.full, handle.stats().admitted), (95, 95, 5));
    assert_eq!(script.calls(), 100);
    nothing_left(&handle);
}

#[tokio::test(start_paused = true)]
async fn q6_case_m9_a_full_queue_says_how_full() {
    let script = Script::new().answer(0).hold();
    let queue = QueueLayer::new(2).max_waiting(3);
    let service = queue.layer(script.service::<u32>());
    let calls: Vec<_> = (0..5).map(|n| spawn(&service, n)).collect();
    settle().await;
    let since = Since::start();
    assert_eq!(full(service.clone().oneshot(9).await), (2, 3));
    assert_eq!(since.ms(), 0);
    // One that goes makes room for one.
    script.release(1);
    settle().await;
    let late = spawn(&service, 10);
    settle().await;
    assert_eq!(full(service.oneshot(11).await), (2, 3));
    script.open();
    for call in calls {
        call.await.unwrap().unwrap();
    }
    late.await.unwrap().unwrap();
    let stats = queue.handle().stats();
    assert_eq!((stats.admitted, stats.rejected.full, stats.rejected.turned_away()), (6, 2, 2));
}

#[tokio::test(start_paused = true)]
async fn q6_1_024_may_wait_unless_said_otherwise() {
    let script = Script::new().answer(0).hold();
    let queue = QueueLayer::new(1);
    let service = queue.layer(script.service::<u32>());
    drop((0..1_100).map(|n| spawn(&service, n)).collect::<Vec<_>>());
    settle().await;
    let stats = queue.handle().stats();
    assert_eq!((stats.running, stats.queued, stats.rejected.full), (1, 1_024, 75));
}

#[tokio::test(start_paused = true)]
async fn q6_with_no_room_to_wait_a_call_runs_or_is_turned_away() {
    let script = Script::new().answer(0).hold();
    let queue = QueueLayer::new(1).max_waiting(0);
    let service = queue.layer(script.service::<u32>());
    for n in 0..3 {
        let runs = spawn(&service, n);
        settle().await;
        assert_eq!(full(service.clone().oneshot(9).await), (1, 0));
        script.release_all();
        runs.await.unwrap().unwrap();
    }
    assert_eq!((script.calls(), script.peak()), (3, 1));
}

#[tokio::test(start_paused = true)]
async fn q6_an_admitted_call_keeps_its_place_so_more_may_wait_than_the_bound_says() {
    let script = Script::new();
    let (inner, served) = served(&script, |request, before| {
        let step = if before == 0 { Step::fail("down") } else { Step::answer(request) };
        step.after(ms(10))
    });
    let queue = QueueLayer::new(3).max_waiting(0).retry(retries(2, ms(100)));
    let (handle, service) = (queue.handle(), queue.layer(inner));
    let calls: Vec<_> = (0..3).map(|n| spawn(&service, n)).collect();
    let since = Since::start();
    since.at(20).await;
    let stats = handle.stats();
    assert_eq!((stats.running, stats.deferred), (0, 3));
    // No room, though no slot is taken.
    assert_eq!(full(service.clone().oneshot(9).await), (3, 3));
    for call in calls {
        call.await.unwrap().unwrap();
    }
    assert_eq!(served.requests().len(), 6);
    assert_eq!(handle.stats().rejected.full, 1);
}

#[tokio::test(start_paused = true)]
async fn q6_without_a_limit_only_those_that_wait_are_bounded() {
    let script = Script::new();
    let (inner, _) = served(&script, |request, _| match request {
        0..10 => Step::fail("down"),
        _ => Step::never(),
    });
    let queue = QueueLayer::unlimited().max_waiting(5).retry(retries(2, secs(1)));
    let (handle, service) = (queue.handle(), queue.layer(inner));
    drop((10..60).map(|n| spawn(&service, n)).collect::<Vec<_>>());
    settle().await;
    assert_eq!(handle.stats().running, 50);
    let calls: Vec<_> = (0..8).map(|n| spawn(&service, n)).collect();
    settle().await;
    let stats = handle.stats();
    assert_eq!((stats.running, stats.deferred, stats.rejected.full), (50, 5, 3));
    drop(calls);
}

#[tokio::test(start_paused = true)]
async fn q6_case_h4_the_bound_holds_while_paused() {
    let script = Script::new().answer(0).hold();
    let queue = QueueLayer::new(1).max_waiting(10);
    let (handle, service) = (queue.handle(), queue.layer(script.service::<u32>()));
    let running = spawn(&service, 0);
    settle().await;
    handle.pause();
    let calls: Vec<_> = (0..10).map(|n| spawn(&service, n)).collect();
    settle().await;
    assert_eq!(full(service.clone().oneshot(9).await), (1, 10));
    script.open();
    running.await.unwrap().unwrap();
    // The slot is free, and no room has come of it but that call's own.
    let last = spawn(&service, 11);
    settle().await;
    assert_eq!(full(service.oneshot(12).await), (1, 11));
    assert_eq!(script.calls(), 1);
    handle.resume();
    for call in calls {
        call.await.unwrap().unwrap();
    }
    last.await.unwrap().unwrap();
    assert_eq!(script.peak(), 1);
}

#[tokio::test(start_paused = true)]
async fn q6_q12_the_bound_follows_the_limit() {
    let script = Script::new().answer(0).hold();
    let queue = QueueLayer::new(1).max_waiting(1);
    let (handle, service) = (queue.handle(), queue.layer(script.service::<u32>()));
    drop((0..2).map(|n| spawn(&service, n)).collect::<Vec<_>>());
    settle().await;
    assert_eq!(full(service.clone().oneshot(9).await), (1, 1));
    handle.set_limit(3).unwrap();
    drop((0..2).map(|n| spawn(&service, n)).collect::<Vec<_>>());
    settle().await;
    assert_eq!((handle.stats().running, handle.stats().queued), (3, 1));
    assert_eq!(full(service.clone().oneshot(9).await), (3, 1));
    handle.set_limit(1).unwrap();
    // Those that were admitted keep their places.
    assert_eq!((handle.stats().running, handle.stats().queued), (3, 1));
    assert_eq!(full(service.oneshot(9).await), (1, 1));
    script.open();
    handle.idle().await;
    nothing_left(&handle);
}

#[tokio::test(start_paused = true)]
async fn q6_a_queue_may_hold_more_than_any_memory() {
    let script = Script::new().answer(0).hold();
    for queue in [QueueLayer::new(16_777_214), QueueLayer::unlimited(), QueueLayer::new(1)] {
        let queue = queue.max_waiting(usize::MAX);
        let service = queue.layer(script.service::<u32>());
        let calls: Vec<_> = (0..3).map(|n| spawn(&service, n)).collect();
        settle().await;
        assert_eq!(queue.handle().stats().admitted, 3);
        drop(calls);
    }
}

#[tokio::test(start_paused = true)]
async fn q6_a_call_that_is_turned_away_leaves_nothing_behind() {
    let script = Script::new().answer(0).hold();
    let queue = QueueLayer::new(1).max_waiting(0);
    let mut service = queue.layer(script.service::<u32>());
    let mut running = by_hand(service.call(0));
    assert!(running.poll().is_pending());
    for _ in 0..10_000 {
        assert_eq!(full(now(service.call(1))), (1, 0));
    }
    drop(running);
    nothing_left(&queue.handle());
    assert_eq!((queue.handle().stats().rejected.full, script.calls()), (10_000, 1));
}

/// A gate that lets no call wait still lets those through that need not.
#[tokio::test(start_paused = true)]
async fn q6_without_a_limit_and_with_no_room_to_wait_a_call_runs_or_is_turned_away() {
    let script = Script::new().answer(0).hold();
    let queue = QueueLayer::unlimited().max_waiting(0);
    let (handle, service) = (queue.handle(), queue.layer(script.service::<u32>()));
    drop((0..3).map(|n| spawn(&service, n)).collect::<Vec<_>>());
    settle().await;
    assert_eq!((handle.stats().running, handle.stats().rejected.full), (3, 0));
    handle.pause();
    let Rejection::Full { waiting: 0, .. } = rejection(service.clone().oneshot(9).await) else {
        panic!("not full")
    };
    handle.resume();
    drop(spawn(&service, 4));
    settle().await;
    assert_eq!(handle.stats().running, 4);
}
