//! Q12: the limit may change at any time.
#![cfg(feature = "queue")]

use tower::{Layer, Service};
use tower_sluice::queue::QueueLayer;
use tower_sluice_test::{Script, Step, by_hand};

mod queue_kit;
use queue_kit::*;

#[tokio::test(start_paused = true)]
async fn q12_growing_grants_slots_at_once_in_order() {
    let script = Script::new();
    let (inner, served) = served(&script, |request, _| Step::answer(request).held());
    let queue = QueueLayer::new(1);
    let (handle, mut service) = (queue.handle(), queue.layer(inner));
    let mut calls: Vec<_> = (0..5).map(|n| by_hand(service.call(n))).collect();
    for call in &mut calls {
        assert!(call.poll().is_pending());
    }
    handle.set_limit(3).unwrap();
    assert_eq!(
        calls.iter().map(|call| call.is_woken()).collect::<Vec<_>>(),
        [false, true, true, false, false]
    );
    let stats = handle.stats();
    assert_eq!((stats.limit, stats.running, stats.granted, stats.queued), (3, 3, 2, 2));
    for call in calls.iter_mut().rev() {
        assert!(call.poll().is_pending());
    }
    assert_eq!(served.requests(), [0, 2, 1]);
}

#[tokio::test(start_paused = true)]
async fn q12_shrinking_lets_running_ones_finish_and_starts_none_until_fewer_run() {
    let script = Script::new().answer(0).hold();
    let queue = QueueLayer::new(4);
    let (handle, service) = (queue.handle(), queue.layer(script.service::<u32>()));
    drop((0..8).map(|n| spawn(&service, n)).collect::<Vec<_>>());
    settle().await;
    handle.set_limit(2).unwrap();
    settle().await;
    // What runs is counted, and is more than may.
    let stats = handle.stats();
    assert_eq!((stats.limit, stats.running, stats.queued), (2, 4, 4));
    for (running, calls) in [(3, 4), (2, 4), (2, 5), (2, 6)] {
        assert_eq!(script.release(1), 1);
        settle().await;
        assert_eq!((script.running(), script.calls()), (running, calls));
        assert_eq!(handle.stats().running, running);
    }
    handle.set_limit(1).unwrap();
    script.open();
    handle.idle().await;
    assert_eq!((script.calls(), script.peak()), (8, 4));
    nothing_left(&handle);
}

#[tokio::test(start_paused = true)]
async fn q12_shrinking_takes_back_slots_that_were_granted_and_not_used() {
    let script = Script::new();
    let (inner, served) = served(&script, |request, _| Step::answer(request).held());
    let queue = QueueLayer::new(3);
    let (handle, mut service) = (queue.handle(), queue.layer(inner));
    let mut calls: Vec<_> = (0..6).map(|n| by_hand(service.call(n))).collect();
    for call in &mut calls {
        assert!(call.poll().is_pending());
    }
    script.release(2);
    assert!(calls[0].poll().is_ready() && calls[1].poll().is_ready());
    // One runs, two are granted.
    assert_eq!((handle.stats().running, handle.stats().granted), (3, 2));
    handle.set_limit(2).unwrap();
    let stats = handle.stats();
    assert_eq!((stats.running, stats.granted, stats.queued), (2, 1, 2));
    for call in &mut calls[3..] {
        assert!(call.poll().is_pending());
    }
    assert_eq!((served.requests(), script.running()), (vec![0, 1, 2, 3], 2));
    handle.set_limit(1).unwrap();
    // In order, once fewer run.
    script.release(1);
    assert!(calls[2].poll().is_ready() && !calls[4].is_woken());
    script.release(1);
    assert!(calls[3].poll().is_ready() && calls[4].is_woken() && !calls[5].is_woken());
    drop(calls);
    nothing_left(&handle);
}

#[tokio::test(start_paused = true)]
async fn q12_zero_and_too_much_are_errors_that_change_nothing() {
    let script = Script::new().answer(0).hold();
    let queue = QueueLayer::new(2);
    let handle = queue.handle();
    for limit in [0, 16_777_215, usize::MAX] {
        let error = handle.set_limit(limit).unwrap_err();
        assert_eq!(error.field(), "limit");
        assert!(error.bound().contains("pause"), "{}", error.bound());
        assert_eq!(handle.stats().limit, 2);
    }
    handle.set_limit(16_777_214).unwrap();
    assert_eq!(handle.stats().limit, 16_777_214);
    let service = queue.layer(script.service::<u32>());
    drop((0..10).map(|n| spawn(&service, n)).collect::<Vec<_>>());
    settle().await;
    assert_eq!(script.running(), 10);
}

#[tokio::test(start_paused = true)]
async fn q12_an_unlimited_queue_may_be_given_a_limit() {
    let script = Script::new().answer(0).hold();
    let queue = QueueLayer::unlimited();
    let (handle, service) = (queue.handle(), queue.layer(script.service::<u32>()));
    drop((0..10).map(|n| spawn(&service, n)).collect::<Vec<_>>());
    settle().await;
    handle.set_limit(3).unwrap();
    drop((0..10).map(|n| spawn(&service, n)).collect::<Vec<_>>());
    settle().await;
    let stats = handle.stats();
    assert_eq!((stats.running, stats.queued, stats.limit), (10, 10, 3));
    script.release(8);
    settle().await;
    assert_eq!((script.running(), handle.stats().queued), (3, 9));
    script.open();
    handle.idle().await;
    nothing_left(&handle);
}

#[tokio::test(start_paused = true)]
async fn q12_case_n4_the_figure_shown_is_the_one_enforced() {
    let script = Script::new().answer(0).hold();
    let queue = QueueLayer::new(5);
    let (handle, service) = (queue.handle(), queue.layer(script.service::<u32>()));
    drop((0..300).map(|n| spawn(&service, n)).collect::<Vec<_>>());
    settle().await;
    for limit in [7, 7, 50, 51, 200] {
        handle.set_limit(limit).unwrap();
        settle().await;
        assert_eq!((handle.stats().limit, script.running()), (limit, limit));
    }
}

/// Real threads: a limit that moves all the time, and calls that come and go.
#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn q12_while_calls_come_and_go_on_other_threads() {
    let script = Script::<u32>::new();
    let (inner, _) = served(&script, |request, _| {
        let step = Step::answer(request);
        if request % 8 == 0 { step.after(ms(1)) } else { step }
    });
    let queue = QueueLayer::new(1);
    let (handle, service) = (queue.handle(), queue.layer(inner));
    let tasks: Vec<_> = (0..64)
        .map(|task| {
            let service = service.clone();
            tokio::spawn(async move {
                for n in 0..30 {
                    spawn(&service, task * 100 + n).await.unwrap().unwrap();
                }
            })
        })
        .collect();
    let resize = {
        let handle = handle.clone();
        tokio::spawn(async move {
            for limit in (1..=8).cycle() {
                handle.set_limit(limit).unwrap();
                tokio::task::yield_now().await;
            }
        })
    };
    for task in tasks {
        task.await.unwrap();
    }
    resize.abort();
    assert!(script.peak() <= 8, "{}", script.peak());
    assert_eq!(script.calls(), 64 * 30);
    nothing_left(&handle);
}
