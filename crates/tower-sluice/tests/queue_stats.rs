//! E2: what an operator asks, in one reading; and the watch on it.
#![cfg(feature = "queue")]

use std::time::Duration;

use tower::{Layer, Service, ServiceExt};
use tower_sluice::queue::{Closed, QueueLayer};
use tower_sluice_test::{Script, SpyWaker, Step, by_hand};

mod queue_kit;
use queue_kit::*;

#[tokio::test(start_paused = true)]
async fn e2_case_n3_queued_running_and_deferred_are_three_figures() {
    let script = Script::new();
    let (inner, _) = served(&script, |request, _| match request {
        0 => Step::fail("down"),
        _ => Step::never(),
    });
    let queue = QueueLayer::new(1).retry(retries(2, secs(60)));
    let (handle, service) = (queue.handle(), queue.layer(inner));
    let _calls = [spawn(&service, 0), spawn(&service, 1), spawn(&service, 2), spawn(&service, 3)];
    settle().await;
    let stats = handle.stats();
    assert_eq!((stats.queued, stats.running, stats.deferred, stats.waiting()), (2, 1, 1, 3));
    assert_eq!((stats.admitted, stats.attempts, stats.retries, stats.finished()), (4, 2, 1, 0));
    assert!(!stats.is_idle());
}

#[tokio::test(start_paused = true)]
async fn e2_case_a14_the_oldest_waiting_and_the_oldest_running_are_seen() {
    let script = Script::<u32>::new().never();
    let queue = QueueLayer::new(1);
    let (handle, mut service) = (queue.handle(), queue.layer(script.service::<u32>()));
    assert_eq!((handle.stats().oldest_waiting, handle.stats().oldest_running), (None, None));
    let mut running = by_hand(service.call(0));
    assert!(running.poll().is_pending());
    tokio::time::advance(secs(2)).await;
    let (mut first, mut second) = (by_hand(service.call(1)), by_hand(service.call(2)));
    assert!(first.poll().is_pending());
    tokio::time::advance(secs(3)).await;
    assert!(second.poll().is_pending());
    // Nobody polls any of them, and that shows.
    tokio::time::advance(secs(5)).await;
    let stats = handle.stats();
    assert_eq!((stats.oldest_waiting, stats.oldest_running), (Some(secs(8)), Some(secs(10))));
    drop(first);
    assert_eq!(handle.stats().oldest_waiting, Some(secs(5)));
    drop((running, second));
    nothing_left(&handle);
}

#[tokio::test(start_paused = true)]
async fn e2_a_stay_in_the_line_is_counted_anew_after_a_delay() {
    let script = Script::new();
    let (inner, _) = served(&script, |request, _| match request {
        0 => Step::fail("down"),
        _ => Step::never(),
    });
    let queue = QueueLayer::new(1).retry(retries(2, secs(10)));
    let (handle, service) = (queue.handle(), queue.layer(inner));
    let _calls = [spawn(&service, 0), spawn(&service, 1)];
    settle().await;
    let since = Since::start();
    since.at(9_000).await;
    // Deferred: out of the line.
    assert_eq!(handle.stats().oldest_waiting, None);
    since.at(14_000).await;
    assert_eq!(handle.stats().oldest_waiting, Some(secs(4)));
}

#[tokio::test(start_paused = true)]
async fn e2_every_reading_adds_up_and_counters_only_grow() {
    let script = Script::new();
    let (inner, _) = served(&script, |request, before| match request % 7 {
        0 => Step::fail("down").after(ms(3)),
        1 if before == 0 => Step::fail("down"),
        2 => Step::never(),
        n => Step::answer(n).after(ms(u64::from(n))),
    });
    let queue = QueueLayer::new(3).max_waiting(20).queue_timeout(ms(40)).retry(retries(3, ms(10)));
    let (handle, service) = (queue.handle(), queue.layer(inner.clone()));
    let timed = queue.clone().call_timeout(ms(30)).layer(inner);
    let mut calls = Vec::new();
    let mut last = handle.stats();
    for n in 0..2_000 {
        calls.push(spawn(if n % 3 == 0 { &service } else { &timed }, n));
        // A call that was never polled never came.
        tokio::task::yield_now().await;
        match n % 50 {
            10 => calls.swap_remove(n as usize % calls.len()).abort(),
            20 => handle.pause(),
            25 => handle.resume(),
            30 => {
                handle.clear("x");
            }
            _ => {}
        }
        tokio::time::sleep(ms(u64::from(n % 4))).await;
        let stats = handle.stats();
        sound(&stats);
        let counters = |stats: &tower_sluice::queue::Stats| {
            [
                stats.admitted,
                stats.attempts,
                stats.retries,
                stats.succeeded,
                stats.failed,
                stats.cancelled,
                stats.cleared,
                stats.rejected.full,
                stats.rejected.deadline,
                stats.rejected.queue_timeout,
            ]
        };
        for (earlier, later) in counters(&last).into_iter().zip(counters(&stats)) {
            assert!(earlier <= later, "{last:?} and then {stats:?}");
        }
        last = stats;
    }
    for call in &calls {
        call.abort();
    }
    for call in calls {
        let _ = call.await;
    }
    let stats = handle.stats();
    // Of each kind there was some.
    let ends = [
        stats.succeeded,
        stats.failed,
        stats.cancelled,
        stats.cleared,
        stats.rejected.full,
        stats.rejected.deadline,
        stats.rejected.queue_timeout,
    ];
    assert!(ends.iter().all(|end| *end > 0), "{stats:?}");
    assert_eq!(stats.admitted + stats.rejected.turned_away(), 2_000);
    assert_eq!(stats.attempts, script.calls() as u64);
    nothing_left(&handle);
}

#[tokio::test(start_paused = true)]
async fn e2_on_many_threads_readings_add_up_at_any_time() {
    // Real threads below, in a runtime of their own: this test reads from outside.
    let queue = QueueLayer::new(2).max_waiting(10).retry(retries(2, Duration::ZERO));
    let handle = queue.handle();
    let calls = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for _ in 0..3 {
            let calls = calls.clone();
            let mut service = queue.layer(tower::service_fn(move |_: u32| {
                let n = calls.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                std::future::ready(if n.is_multiple_of(3) { Err("down") } else { Ok(n) })
            }));
            scope.spawn(move || {
                for n in 0..5_000 {
                    let mut call = by_hand(service.call(n));
                    for _ in 0..n % 4 {
                        if call.poll().is_ready() {
                            break;
                        }
                    }
                }
            });
        }
        for _ in 0..3_000 {
            let stats = handle.stats();
            sound(&stats);
            assert!(stats.running <= 2, "{stats:?}");
        }
    });
    nothing_left(&handle);
    assert_eq!(handle.stats().attempts, calls.load(std::sync::atomic::Ordering::Relaxed) as u64);
}

#[tokio::test(start_paused = true)]
async fn a_watch_gives_the_latest_figures_once_they_differ() {
    let script = Script::new().answer(7).hold();
    let queue = QueueLayer::new(1);
    let (handle, service) = (queue.handle(), queue.layer(script.service::<u32>()));
    let mut watch = handle.watch();
    // The first time at once.
    assert!(now(watch.changed()).unwrap().is_idle());
    let mut changed = by_hand(async { watch.changed().await });
    assert!(changed.poll().is_pending());
    let calls = [spawn(&service, 0), spawn(&service, 1), spawn(&service, 2)];
    settle().await;
    // However many changes there were.
    assert_eq!(changed.wakes(), 1);
    let std::task::Poll::Ready(Ok(stats)) = changed.poll() else { panic!("pending") };
    assert_eq!((stats.running, stats.queued, stats.admitted), (1, 2, 3));
    drop(changed);
    assert!(by_hand(watch.changed()).poll().is_pending());
    handle.pause();
    assert!(now(watch.changed()).unwrap().paused);
    handle.set_limit(2).unwrap();
    assert_eq!(now(watch.changed()).unwrap().limit, 2);
    handle.resume();
    script.open();
    for call in calls {
        call.await.unwrap().unwrap();
    }
    let stats = now(watch.changed()).unwrap();
    assert_eq!((stats.succeeded, stats.is_idle()), (3, true));
    handle.close();
    assert!(now(watch.changed()).unwrap().closed);
    assert_eq!(now(watch.changed()), Err(Closed));
}

#[tokio::test(start_paused = true)]
async fn a_watch_tells_what_is_turned_away_and_what_is_finished_and_leaves_no_waker() {
    let script = Script::new().answer(7);
    let queue = QueueLayer::new(1).max_waiting(0);
    let (handle, service) = (queue.handle(), queue.layer(script.service::<u32>()));
    let (waker, seen) = SpyWaker::new().build();
    let mut watch = handle.watch();
    now(watch.changed()).unwrap();
    // A call that ends within the poll in which it came.
    let mut changed = by_hand(watch.changed());
    assert!(changed.poll_with(&waker).is_pending());
    service.clone().oneshot(0).await.unwrap();
    assert_eq!(seen.wakes(), 1);
    assert!(changed.poll().is_ready());
    drop(changed);
    handle.pause();
    let _queued = spawn(&service, 0);
    settle().await;
    now(watch.changed()).unwrap();
    let mut changed = by_hand(watch.changed());
    assert!(changed.poll_with(&waker).is_pending());
    assert!(service.oneshot(0).await.is_err());
    assert_eq!(seen.wakes(), 2);
    drop(changed);
    assert_eq!(seen.references(), 1);
}

#[tokio::test(start_paused = true)]
async fn an_endless_reader_of_the_figures_ends_with_the_queue() {
    let script = Script::new().answer(7).delay(ms(10));
    let queue = QueueLayer::new(2);
    let (handle, service) = (queue.handle(), queue.layer(script.service::<u32>()));
    let mut watch = handle.watch();
    let reader = tokio::spawn(async move {
        let mut last = None;
        while let Ok(stats) = watch.changed().await {
            assert_ne!(last, Some((stats.queued, stats.running, stats.succeeded, stats.closed)));
            last = Some((stats.queued, stats.running, stats.succeeded, stats.closed));
        }
        last
    });
    let calls: Vec<_> = (0..10).map(|n| spawn(&service, n)).collect();
    for call in calls {
        call.await.unwrap().unwrap();
    }
    handle.close();
    assert_eq!(reader.await.unwrap(), Some((0, 0, 10, true)));
}
