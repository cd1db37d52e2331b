//! Q14: no wake-up is lost, and none is for nothing; Q17: nothing is spawned.
#![cfg(feature = "queue")]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tower::{Layer, Service, ServiceExt};
use tower_sluice::queue::QueueLayer;
use tower_sluice_test::{Script, SpyWaker, Step, by_hand, spied};

mod queue_kit;
use queue_kit::*;

#[tokio::test(start_paused = true)]
async fn q14_a_full_queue_causes_no_polls_and_each_admission_wakes_exactly_one() {
    const CALLS: usize = 500;
    let script = Script::new().answer(7).hold();
    let queue = QueueLayer::new(2);
    let service = queue.layer(script.service::<u32>());
    let (calls, spies): (Vec<_>, Vec<_>) = (0..CALLS)
        .map(|n| {
            let (call, spy) = spied(service.clone().oneshot(n as u32));
            (tokio::spawn(call), spy)
        })
        .unzip();
    settle().await;
    let polls = || spies.iter().map(|spy| spy.polls()).sum::<usize>();
    let wakes = || spies.iter().map(|spy| spy.wakes()).sum::<usize>();
    assert_eq!((polls(), wakes()), (CALLS, 0));
    tokio::time::sleep(secs(3_600)).await;
    assert_eq!((polls(), wakes()), (CALLS, 0));
    for n in 1..=100 {
        script.release(1);
        settle().await;
        // The one that ends, and the one that takes its slot.
        assert_eq!((polls(), wakes()), (CALLS + 2 * n, 2 * n));
    }
    script.open();
    for call in calls {
        call.await.unwrap().unwrap();
    }
    // Once to arrive, and once to start and end; 100 that started were held once more.
    assert_eq!(polls(), 2 * CALLS + 100);
    nothing_left(&queue.handle());
}

#[tokio::test(start_paused = true)]
async fn q14_with_timeouts_each_call_is_polled_no_more_often() {
    let script = Script::new().answer(7).hold();
    let queue = QueueLayer::new(1).queue_timeout(secs(60)).call_timeout(secs(600)).attempt_timeout(secs(60));
    let service = queue.layer(script.service::<u32>());
    let (calls, spies): (Vec<_>, Vec<_>) = (0..100)
        .map(|n| {
            let (call, spy) = spied(service.clone().oneshot(n));
            (tokio::spawn(call), spy)
        })
        .unzip();
    tokio::time::sleep(secs(59)).await;
    assert_eq!(spies.iter().map(|spy| spy.polls()).sum::<usize>(), 100);
    script.release(1);
    settle().await;
    assert_eq!(spies.iter().map(|spy| spy.polls()).sum::<usize>(), 102);
    tokio::time::sleep(secs(2)).await;
    // Those that still wait: told once that their stay was too long. One runs on, until its own timeout.
    assert_eq!(spies.iter().map(|spy| spy.polls()).sum::<usize>(), 102 + 98);
    script.open();
    let ends = calls.into_iter().map(|call| async { call.await.unwrap().is_ok() });
    let mut answered = 0;
    for end in ends {
        answered += usize::from(end.await);
    }
    assert_eq!(answered, 2);
}

#[tokio::test(start_paused = true)]
async fn q14_a_deferred_call_is_woken_once_when_it_is_due() {
    let script = Script::new().fail("down").answer(7).after(secs(1));
    let queue = QueueLayer::new(1).retry(retries(2, secs(100)));
    let (call, spy) = spied(queue.layer(script.service::<u32>()).oneshot(0));
    let call = tokio::spawn(call);
    tokio::time::sleep(secs(99)).await;
    assert_eq!((spy.polls(), spy.wakes()), (1, 0));
    // Not once more for the slot that it found free.
    tokio::time::sleep(ms(1_500)).await;
    assert_eq!((script.running(), spy.polls(), spy.wakes()), (1, 2, 1));
    call.await.unwrap().unwrap();
    assert_eq!((spy.polls(), spy.wakes()), (3, 2));
}

#[tokio::test(start_paused = true)]
async fn q14_a_retry_without_a_delay_needs_no_wake_up_until_it_gives_others_a_turn() {
    // Ten in one poll; of forty, the first 32 in one poll.
    for (failures, polls, wakes) in [(10, 1, 0), (40, 2, 1)] {
        let script = Script::new().fail("down").times(failures).answer(7);
        let queue = QueueLayer::new(1).retry(retries(50, ms(0)));
        let (call, spy) = spied(queue.layer(script.service::<u32>()).oneshot(0));
        tokio::spawn(call).await.unwrap().unwrap();
        assert_eq!((script.calls(), spy.polls(), spy.wakes()), (failures + 1, polls, wakes));
    }
}

#[tokio::test(start_paused = true)]
async fn q14_pausing_wakes_nobody_and_resuming_only_those_that_may_run() {
    let script = Script::new().answer(7).hold();
    let queue = QueueLayer::new(3);
    let (handle, mut service) = (queue.handle(), queue.layer(script.service::<u32>()));
    handle.pause();
    let mut calls: Vec<_> = (0..10).map(|n| by_hand(service.call(n))).collect();
    for call in &mut calls {
        assert!(call.poll().is_pending());
    }
    let woken =
        |calls: &[tower_sluice_test::ByHand<_>]| calls.iter().map(|call| call.wakes()).collect::<Vec<_>>();
    for _ in 0..100 {
        handle.pause();
    }
    assert_eq!(woken(&calls), [0; 10]);
    handle.resume();
    assert_eq!(woken(&calls), [1, 1, 1, 0, 0, 0, 0, 0, 0, 0]);
    // Not again, for being asked again.
    handle.resume();
    assert_eq!(woken(&calls)[..3], [1, 1, 1]);
}

#[tokio::test(start_paused = true)]
async fn q14_the_waker_of_the_last_poll_is_the_one_that_is_woken_and_no_other_is_kept() {
    let script = Script::new().answer(7).hold();
    let queue = QueueLayer::new(1);
    let mut service = queue.layer(script.service::<u32>());
    let mut running = by_hand(service.call(0));
    let mut queued = by_hand(service.call(1));
    let (first, first_seen) = SpyWaker::new().build();
    let (second, second_seen) = SpyWaker::new().build();
    assert!(running.poll().is_pending());
    assert!(queued.poll_with(&first).is_pending());
    assert_eq!(first_seen.references(), 2);
    assert!(queued.poll_with(&first).is_pending());
    assert_eq!(first_seen.references(), 2);
    assert!(queued.poll_with(&second).is_pending());
    assert_eq!((first_seen.references(), second_seen.references()), (1, 2));
    drop(running);
    assert_eq!((first_seen.wakes(), second_seen.wakes()), (0, 1));
    drop(queued);
    assert_eq!(second_seen.references(), 1);
}

#[tokio::test(start_paused = true)]
async fn q14_a_granted_call_that_moves_to_another_task_still_starts() {
    let script = Script::new().answer(7);
    let queue = QueueLayer::new(1);
    let mut service = queue.layer(script.service::<u32>());
    queue.handle().pause();
    let mut call = by_hand(service.call(0));
    let (old, old_seen) = SpyWaker::new().build();
    assert!(call.poll_with(&old).is_pending());
    queue.handle().resume();
    assert_eq!(old_seen.wakes(), 1);
    assert!(call.poll().is_ready());
}

/// Wakers that use the queue themselves, where they are woken and where they are dropped: no lock is held over them.
#[tokio::test(start_paused = true)]
async fn q14_wakers_that_lock() {
    let script = Script::new().answer(7).hold();
    let queue = QueueLayer::new(1).max_waiting(100).wait_when_full();
    let handle = queue.handle();
    let service = queue.layer(script.service::<u32>());
    let used = Arc::new(AtomicUsize::new(0));
    let user = || {
        // All that takes the lock, and a call that comes and goes.
        let (handle, mut service, used) = (handle.clone(), service.clone(), used.clone());
        move || {
            used.fetch_add(1, Ordering::SeqCst);
            let stats = handle.stats();
            handle.set_limit(stats.limit).unwrap();
            let was_paused = handle.is_paused();
            handle.pause();
            if !was_paused {
                handle.resume();
            }
            let mut call = by_hand(service.call(9));
            let _ = call.poll();
            drop(call);
            let _ = by_hand(handle.idle()).poll();
        }
    };
    let waker = || {
        let (on_wake, on_drop) = (std::sync::Mutex::new(user()), user());
        SpyWaker::new().on_wake(move || on_wake.lock().unwrap()()).on_drop(on_drop).build().0
    };
    let mut call = service.clone();
    let mut fresh = move |n| by_hand(call.call(n));

    // A grant, by a drop.
    let (mut running, mut queued) = (fresh(0), fresh(1));
    assert!(running.poll().is_pending() && queued.poll_with(&waker()).is_pending());
    drop(running);
    assert!(queued.poll_with(&waker()).is_pending());
    // A waker that another replaces; a clear; a drop; a resume; a resize; an idle that comes true; a close.
    let mut waiting = fresh(2);
    assert!(waiting.poll_with(&waker()).is_pending());
    assert!(waiting.poll_with(&waker()).is_pending());
    handle.clear("x");
    assert!(waiting.poll_with(&waker()).is_ready());
    let mut waiting = fresh(3);
    assert!(waiting.poll_with(&waker()).is_pending());
    drop(waiting);
    let mut waiting = fresh(4);
    assert!(waiting.poll_with(&waker()).is_pending());
    handle.set_limit(2).unwrap();
    handle.pause();
    let mut paused = fresh(5);
    assert!(paused.poll_with(&waker()).is_pending());
    handle.resume();
    let mut idle = by_hand(handle.idle());
    let mut below = by_hand(handle.waiting_below(1));
    assert!(idle.poll_with(&waker()).is_pending());
    let _ = below.poll_with(&waker());
    let mut watch = handle.watch();
    now(watch.changed()).unwrap();
    let mut changed = by_hand(async move { watch.changed().await });
    let _ = changed.poll_with(&waker());
    script.open();
    for call in [&mut waiting, &mut queued, &mut paused] {
        let _ = call.poll_with(&waker());
    }
    drop((waiting, queued, paused, idle, below, changed));
    handle.close();
    assert!(used.load(Ordering::SeqCst) > 20, "{}", used.load(Ordering::SeqCst));
    nothing_left(&handle);
}

/// Dropping the last waker of a task drops the task, and with it a call that is in the same queue.
#[tokio::test(start_paused = true)]
async fn q14_a_waker_that_owns_another_call_of_the_queue() {
    let script = Script::new().answer(7).hold();
    let queue = QueueLayer::new(1);
    let (handle, mut service) = (queue.handle(), queue.layer(script.service::<u32>()));
    let mut running = by_hand(service.call(0));
    assert!(running.poll().is_pending());
    for round in 0..3 {
        let mut owned = by_hand(service.call(1));
        assert!(owned.poll().is_pending());
        let (waker, _) = SpyWaker::new().on_drop(move || drop(owned)).build();
        let mut queued = by_hand(service.call(2));
        assert!(queued.poll_with(&waker).is_pending());
        drop(waker);
        assert_eq!(handle.stats().queued, 2);
        match round {
            0 => drop(queued),
            1 => assert!(queued.poll().is_pending()),
            _ => assert_eq!(handle.clear("x"), 2),
        }
        assert!(handle.stats().queued <= 1);
    }
    drop(running);
    nothing_left(&handle);
}

#[tokio::test(start_paused = true)]
async fn q17_no_task_is_spawned_and_a_dropped_call_does_nothing_more() {
    let script = Script::<u32>::new().fail("down").delay(ms(5));
    let queue = QueueLayer::new(1)
        .rate(1, secs(1))
        .hold_on_retry_after(secs(60))
        .queue_timeout(secs(60))
        .call_timeout(secs(600))
        .attempt_timeout(secs(5))
        .retry(retries(5, secs(1)));
    let mut service = queue.layer(script.service::<u32>());
    let tasks = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
    let before = tasks();
    let mut calls: Vec<_> = (0..5).map(|n| by_hand(service.call(n))).collect();
    for step in 0..30 {
        for call in &mut calls {
            if step == 0 || call.is_woken() {
                assert!(call.poll().is_pending());
            }
        }
        tokio::time::advance(ms(100)).await;
        assert_eq!(tasks(), before);
    }
    assert!(script.calls() > 1);
    let attempts = script.calls();
    drop(calls);
    tokio::time::advance(secs(600)).await;
    settle().await;
    assert_eq!((script.calls(), script.futures(), tasks()), (attempts, 0, before));
    nothing_left(&queue.handle());
}

/// T5, the law itself, at random: while a slot is free and calls are queued, a queued call has been woken.
#[tokio::test(start_paused = true)]
async fn q14_case_h18_where_a_slot_is_free_and_calls_are_queued_one_has_been_woken() {
    use rand::rngs::StdRng;
    use rand::{RngExt, SeedableRng};
    let mut rng = StdRng::seed_from_u64(tower_sluice_test::seed("q14_case_h18"));
    for _ in 0..200 {
        let script = Script::new().answer(7).hold();
        let inner = script.service_by(|_: &u32, n| {
            let step = if n % 5 == 0 { Step::fail("down") } else { Step::answer(7) };
            step.held()
        });
        let queue = QueueLayer::new(2).max_waiting(50).retry(retries(3, ms(3)));
        let (handle, mut service) = (queue.handle(), queue.layer(inner));
        let mut calls = Vec::new();
        for _ in 0..200 {
            match rng.random_range(0..100) {
                0..35 => {
                    let mut call = by_hand(service.call(0));
                    if call.poll().is_pending() {
                        calls.push(call);
                    }
                }
                35..55 => {
                    script.release(1);
                }
                // One task that was woken runs.
                55..75 => {
                    if let Some(n) = calls.iter().position(|call| call.is_woken())
                        && calls[n].poll().is_ready()
                    {
                        calls.swap_remove(n);
                    }
                }
                75..83 if !calls.is_empty() => {
                    let n = rng.random_range(0..calls.len());
                    drop(calls.swap_remove(n));
                }
                83..87 => handle.pause(),
                87..91 => handle.resume(),
                91..94 => handle.set_limit(rng.random_range(1..4)).unwrap(),
                94 => {
                    handle.clear("x");
                }
                _ => tokio::time::advance(ms(rng.random_range(1..5))).await,
            }
            let stats = handle.stats();
            sound(&stats);
            // Those that were granted a slot have been woken and are counted as running: whoever is queued then has
            // no free slot to take.
            if !stats.paused && stats.queued > 0 {
                assert!(stats.running >= stats.limit, "{stats:?}");
            }
            let woken = calls.iter().filter(|call| call.is_woken()).count();
            assert!(woken >= stats.granted, "{woken} woken: {stats:?}");
        }
        handle.resume();
        script.open();
        while let Some(n) = calls.iter().position(|call| call.is_woken()) {
            if calls[n].poll().is_ready() {
                calls.swap_remove(n);
            }
            tokio::time::advance(ms(1)).await;
        }
        let mut left = calls.len();
        for _ in 0..20 {
            tokio::time::advance(ms(5)).await;
            while let Some(n) = calls.iter().position(|call| call.is_woken()) {
                if calls[n].poll().is_ready() {
                    calls.swap_remove(n);
                }
            }
            left = calls.len();
        }
        assert_eq!(left, 0, "{:?}", handle.stats());
        nothing_left(&handle);
    }
}
