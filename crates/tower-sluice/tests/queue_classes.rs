//! Classes: views of one queue with a bound, a condition and counters of their own.
#![cfg(feature = "queue")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use tower::{Layer, ServiceExt};
use tower_sluice::queue::QueueLayer;
use tower_sluice::reject::{Admit, Rejection};
use tower_sluice_test::{Script, Step};

mod queue_kit;
use queue_kit::*;

#[tokio::test(start_paused = true)]
async fn l7_a_class_has_a_second_bound_beside_the_queues() {
    let script = Script::new().answer(7).hold();
    let queue = QueueLayer::new(2).max_waiting(5);
    let feed = queue.class("feed").max_waiting(2);
    let (plain, service) = (queue.layer(script.service::<u32>()), feed.layer(script.service::<u32>()));
    // A free slot is for all.
    let running = [spawn(&service, 0), spawn(&service, 0)];
    settle().await;
    let waiting = [spawn(&service, 0), spawn(&service, 0)];
    settle().await;
    let Rejection::Full { .. } = rejection(service.clone().oneshot(0).await) else { panic!("not full") };
    // The others still have room, as far as the queue has.
    let others: Vec<_> = (0..3).map(|n| spawn(&plain, n)).collect();
    settle().await;
    let stats = queue.handle().stats();
    assert_eq!((stats.running, stats.queued, stats.rejected.full), (2, 5, 1));
    let Rejection::Full { .. } = rejection(plain.oneshot(0).await) else { panic!("not full") };
    let stats = feed.stats();
    assert_eq!((stats.waiting, stats.running, stats.admitted, stats.turned_away), (2, 2, 4, 1));
    script.open();
    for call in running.into_iter().chain(waiting).chain(others) {
        call.await.unwrap().unwrap();
    }
    let stats = feed.stats();
    assert_eq!((stats.waiting, stats.running, stats.succeeded, stats.failed), (0, 0, 4, 0));
    nothing_left(&queue.handle());
}

#[tokio::test(start_paused = true)]
async fn l7_with_no_room_to_wait_a_class_runs_or_is_turned_away() {
    let script = Script::new().answer(7).hold();
    let queue = QueueLayer::new(1);
    let service = queue.class("feed").max_waiting(0).layer(script.service::<u32>());
    let running = spawn(&service, 0);
    settle().await;
    let Rejection::Full { .. } = rejection(service.clone().oneshot(0).await) else { panic!("not full") };
    script.open();
    running.await.unwrap().unwrap();
    service.oneshot(0).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn l7_a_class_is_shed_at_admission_and_never_after_a_stay_in_the_line() {
    let script = Script::new().answer(7).hold();
    let queue = QueueLayer::new(1);
    let (open, asked) = (Arc::new(AtomicBool::new(true)), Arc::new(AtomicUsize::new(0)));
    let (is_open, asks) = (open.clone(), asked.clone());
    let feed = queue.class("feed").admit_while(move || {
        asks.fetch_add(1, Ordering::SeqCst);
        is_open.load(Ordering::SeqCst)
    });
    let service = feed.layer(script.service::<u32>());
    let calls = [spawn(&service, 0), spawn(&service, 1)];
    settle().await;
    open.store(false, Ordering::SeqCst);
    assert_eq!(rejection(service.clone().oneshot(2).await), Rejection::Shed { level: None });
    script.open();
    for call in calls {
        call.await.unwrap().unwrap();
    }
    // Once a call.
    assert_eq!(asked.load(Ordering::SeqCst), 3);
    assert_eq!(
        (feed.stats().shed, queue.handle().stats().rejected.shed, feed.stats().turned_away),
        (1, 1, 0)
    );
    // Others of the queue are not asked about.
    queue.layer(script.service::<u32>()).oneshot(3).await.unwrap();
    open.store(true, Ordering::SeqCst);
    service.oneshot(4).await.unwrap();
}

/// A condition that knows the name of its rung.
struct Below(&'static str);

impl Admit for Below {
    fn admit(&self) -> Result<(), Rejection> {
        Err(Rejection::Shed { level: Some(Arc::from(self.0)) })
    }
}

#[tokio::test(start_paused = true)]
async fn l7_every_view_of_a_class_is_the_same_class() {
    let script = Script::new().answer(7);
    let queue = QueueLayer::new(1);
    let (one, other) = (queue.class("feed"), queue.clone().call_timeout(secs(1)).class("feed"));
    one.layer(script.service::<u32>()).oneshot(0).await.unwrap();
    other.layer(script.service::<u32>()).oneshot(0).await.unwrap();
    assert_eq!((one.stats(), one.stats().succeeded), (other.stats(), 2));
    assert_eq!(queue.class("pay").stats().admitted, 0);
    // A condition set on one holds for all, at once, and replaces the one before.
    let service = one.layer(script.service::<u32>());
    let _same = other.admit_while(Below("low"));
    let shed = rejection(service.clone().oneshot(0).await);
    assert_eq!(shed, Rejection::Shed { level: Some(Arc::from("low")) });
    assert_eq!(shed.to_string(), "not served at level low");
    let _same = one.admit_while(|| true);
    service.oneshot(0).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn l7_q13_every_way_out_is_counted_for_the_class() {
    let script = Script::new();
    let (inner, _) = served(&script, |request, _| match request {
        0 => Step::answer(0),
        1 => Step::fail("down"),
        _ => Step::never(),
    });
    let queue = QueueLayer::new(2).retry(retries(2, secs(10)));
    let feed = queue.class("feed");
    let service = feed.layer(inner.clone());
    let timed = queue.clone().call_timeout(secs(1)).class("feed").layer(inner.clone());
    let quick = queue.clone().queue_timeout(secs(1)).class("feed").layer(inner);
    let handle = queue.handle();
    let sum = || {
        let stats = feed.stats();
        let left = stats.waiting as u64 + stats.running;
        assert_eq!(stats.admitted, left + stats.succeeded + stats.failed + stats.given_up, "{stats:?}");
        stats
    };

    service.clone().oneshot(0).await.unwrap();
    service.clone().oneshot(1).await.unwrap_err();
    assert_eq!((sum().succeeded, sum().failed), (1, 1));
    // Deadline; two that run for ever; a queue timeout; a clear; drops while queued, deferred and running.
    let _ = timed.oneshot(2).await.unwrap_err();
    assert_eq!(sum().given_up, 1);
    let deferred = spawn(&service, 1);
    settle().await;
    let running = [spawn(&service, 2), spawn(&service, 2)];
    settle().await;
    assert_eq!((sum().running, sum().waiting), (2, 1));
    let _ = quick.oneshot(2).await.unwrap_err();
    let queued = spawn(&service, 2);
    settle().await;
    assert_eq!((sum().given_up, sum().waiting), (2, 2));
    queued.abort();
    deferred.abort();
    settle().await;
    assert_eq!((sum().given_up, sum().waiting), (4, 0));
    let cleared = spawn(&service, 2);
    settle().await;
    assert_eq!(handle.clear("x"), 1);
    let _ = cleared.await;
    for call in running {
        call.abort();
    }
    settle().await;
    let stats = sum();
    assert_eq!((stats.given_up, stats.running, stats.waiting, stats.admitted), (7, 0, 0, 9));
    handle.close();
    let _ = service.oneshot(0).await.unwrap_err();
    assert_eq!((sum().turned_away, sum().admitted), (1, 9));
    nothing_left(&handle);
}
