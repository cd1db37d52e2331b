//! Q8: after `pause()` has returned no attempt starts.
#![cfg(feature = "queue")]

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Mutex, mpsc};

use tower::{Layer, Service, service_fn};
use tower_sluice::BoxError;
use tower_sluice::queue::{Handle, QueueLayer};
use tower_sluice::reject::Rejection;
use tower_sluice_test::{Failure, Script, Step, by_hand};

mod queue_kit;
use queue_kit::*;

#[tokio::test(start_paused = true)]
async fn q8_nothing_starts_and_all_starts_in_order_within_the_limit_afterwards() {
    let script = Script::new();
    let (inner, served) = served(&script, |request, _| Step::answer(request).after(ms(10)));
    let queue = QueueLayer::new(2);
    let (handle, service) = (queue.handle(), queue.layer(inner));
    handle.pause();
    let calls: Vec<_> = (0..5).map(|n| spawn(&service, n)).collect();
    tokio::time::sleep(secs(60)).await;
    let stats = handle.stats();
    assert_eq!((served.requests().len(), stats.queued, stats.running, stats.paused), (0, 5, 0, true));
    handle.resume();
    for call in calls {
        call.await.unwrap().unwrap();
    }
    let start = 60_000;
    assert_eq!(served.entries(), [(0, start), (1, start), (2, start + 10), (3, start + 10), (4, start + 20)]);
    assert_eq!((script.peak(), handle.is_paused()), (2, false));
}

#[tokio::test(start_paused = true)]
async fn q8_running_attempts_go_on() {
    let script = Script::new().answer(7).delay(ms(10));
    let queue = QueueLayer::new(2);
    let service = queue.layer(script.service::<u32>());
    let running = spawn(&service, 0);
    settle().await;
    queue.handle().pause();
    assert_eq!(running.await.unwrap().unwrap(), 7);
    assert!(queue.handle().stats().is_idle());
}

#[tokio::test(start_paused = true)]
async fn q8_delays_go_on_and_those_that_fall_due_stay_in_the_line() {
    let script = Script::new();
    let (inner, served) = served(&script, |request, before| match before {
        0 => Step::fail("down"),
        _ => Step::answer(request),
    });
    let queue = QueueLayer::new(2).retry(retries(2, ms(100)));
    let (handle, service) = (queue.handle(), queue.layer(inner));
    let call = spawn(&service, 0);
    settle().await;
    handle.pause();
    let since = Since::start();
    since.at(99).await;
    assert_eq!((handle.stats().deferred, handle.stats().queued), (1, 0));
    since.at(500).await;
    assert_eq!((handle.stats().deferred, handle.stats().queued), (0, 1));
    handle.resume();
    call.await.unwrap().unwrap();
    // At once: its delay went on.
    assert_eq!(served.entries(), [(0, 0), (0, 500)]);
}

#[tokio::test(start_paused = true)]
async fn q8_case_h11_a_call_that_was_granted_a_slot_and_not_polled_does_not_start() {
    let script = Script::new();
    let (inner, served) = served(&script, |request, _| Step::answer(request).held());
    let queue = QueueLayer::new(1);
    let (handle, mut service) = (queue.handle(), queue.layer(inner));
    let (mut a, mut b, mut c) =
        (by_hand(service.call(0)), by_hand(service.call(1)), by_hand(service.call(2)));
    assert!(a.poll().is_pending() && b.poll().is_pending() && c.poll().is_pending());
    script.release_all();
    assert!(a.poll().is_ready() && b.is_woken());
    assert_eq!(handle.stats().granted, 1);
    handle.pause();
    assert!(b.poll().is_pending());
    assert_eq!(served.requests(), [0]);
    let stats = handle.stats();
    assert_eq!((stats.running, stats.queued, stats.granted), (0, 2, 0));
    handle.resume();
    // It is still the first.
    assert!(b.is_woken() && !c.is_woken());
    assert!(c.poll().is_pending() && b.poll().is_pending());
    assert_eq!(served.requests(), [0, 1]);
}

#[tokio::test(start_paused = true)]
async fn q8_case_h11_a_service_that_was_polled_ready_starts_nothing() {
    let script = Script::new().answer(0);
    for queue in [QueueLayer::new(1), QueueLayer::new(1).wait_when_full()] {
        let mut service = queue.layer(script.service::<u32>());
        tower::ServiceExt::<u32>::ready(&mut service).await.unwrap();
        queue.handle().pause();
        let mut call = by_hand(service.call(0));
        assert!(call.poll().is_pending());
        assert_eq!(script.calls(), 0);
        assert_eq!((queue.handle().stats().queued, queue.handle().stats().reserved), (1, 0));
    }
}

#[tokio::test(start_paused = true)]
async fn q8_q9_a_slot_holder_whose_service_is_not_ready_gives_up_slot_and_readiness() {
    let script = Script::new().answer(7).hold().ready_held();
    let queue = QueueLayer::new(1);
    let (handle, mut service) = (queue.handle(), queue.layer(script.service::<u32>()));
    let (mut first, mut second) = (by_hand(service.call(0)), by_hand(service.call(1)));
    assert!(first.poll().is_pending() && second.poll().is_pending());
    // Running, for limit and stats.
    let stats = handle.stats();
    assert_eq!((stats.running, stats.queued, script.waiting_ready()), (1, 1, 1));
    handle.pause();
    let stats = handle.stats();
    assert_eq!((stats.running, stats.queued), (0, 2));
    // It is woken, to let go of what it holds below.
    assert!(first.is_woken() && first.poll().is_pending());
    assert_eq!((script.waiting_ready(), script.reserved()), (0, 0));
    script.open();
    assert!(first.poll().is_pending());
    assert_eq!(script.calls(), 0);
    handle.resume();
    // At its arrival: before the other.
    assert!(first.is_woken() && !second.is_woken());
    assert!(first.poll().is_ready());
    assert!(second.is_woken() && second.poll().is_ready());
    nothing_left(&handle);
}

#[tokio::test(start_paused = true)]
async fn q8_time_spent_paused_does_not_count_as_a_stay_in_the_line() {
    let script = Script::<u32>::new().never();
    let queue = QueueLayer::new(1).queue_timeout(ms(100));
    let (handle, service) = (queue.handle(), queue.layer(script.service::<u32>()));
    let _running = spawn(&service, 0);
    settle().await;
    let since = Since::start();
    let waits = spawn(&service, 1);
    since.at(60).await;
    handle.pause();
    since.at(1_000).await;
    assert_eq!(handle.stats().oldest_waiting, Some(ms(60)));
    // One that comes while paused.
    let later = spawn(&service, 2);
    since.at(5_000).await;
    handle.resume();
    settle().await;
    let Rejection::QueueTimeout { waited, .. } = rejection(waits.await.unwrap()) else {
        panic!("no timeout")
    };
    assert_eq!((since.ms(), waited), (5_040, ms(100)));
    let Rejection::QueueTimeout { waited, .. } = rejection(later.await.unwrap()) else {
        panic!("no timeout")
    };
    assert_eq!((since.ms(), waited), (5_100, ms(100)));
}

#[tokio::test(start_paused = true)]
async fn q8_deadlines_run_on() {
    let script = Script::new().answer(0);
    let queue = QueueLayer::new(1).call_timeout(secs(1));
    queue.handle().pause();
    let since = Since::start();
    let call = spawn(&queue.layer(script.service::<u32>()), 0);
    let Rejection::Deadline { attempts: 0, .. } = rejection(call.await.unwrap()) else {
        panic!("no deadline")
    };
    assert_eq!((since.ms(), script.calls()), (1_000, 0));
    nothing_left(&queue.handle());
}

#[tokio::test(start_paused = true)]
async fn q8_q12_a_limit_set_while_paused_stays_paused() {
    let script = Script::new().answer(0).hold();
    let queue = QueueLayer::new(1);
    let (handle, service) = (queue.handle(), queue.layer(script.service::<u32>()));
    handle.pause();
    drop((0..5).map(|n| spawn(&service, n)).collect::<Vec<_>>());
    settle().await;
    for limit in [3, 100, 2] {
        handle.set_limit(limit).unwrap();
        settle().await;
        assert_eq!((script.calls(), handle.stats().limit, handle.is_paused()), (0, limit, true));
    }
    handle.resume();
    settle().await;
    assert_eq!(script.running(), 2);
}

#[tokio::test(start_paused = true)]
async fn q8_pauses_do_not_add_up() {
    let script = Script::new().answer(0);
    let queue = QueueLayer::new(1);
    let handle = queue.handle();
    handle.resume();
    handle.pause();
    handle.pause();
    let call = spawn(&queue.layer(script.service::<u32>()), 0);
    settle().await;
    assert_eq!(script.calls(), 0);
    handle.resume();
    handle.resume();
    call.await.unwrap().unwrap();
    assert!(handle.toggle() && handle.is_paused());
    assert!(!handle.toggle() && !handle.is_paused());
}

#[tokio::test(start_paused = true)]
async fn q8_no_burst_when_slots_were_given_back_while_paused() {
    let script = Script::new().answer(0).hold();
    let queue = QueueLayer::new(3);
    let (handle, service) = (queue.handle(), queue.layer(script.service::<u32>()));
    drop((0..20).map(|n| spawn(&service, n)).collect::<Vec<_>>());
    settle().await;
    for _ in 0..4 {
        handle.pause();
        script.release(1);
        settle().await;
        assert_eq!(handle.stats().running, 2);
        handle.resume();
        settle().await;
        assert_eq!((script.running(), handle.stats().running), (3, 3));
    }
    assert_eq!((script.peak(), script.calls()), (3, 7));
    assert_eq!(handle.clear("end"), 13);
    script.open();
    handle.idle().await;
    nothing_left(&handle);
}

#[tokio::test(start_paused = true)]
async fn q8_clear_and_close_act_while_paused() {
    let script = Script::<u32>::new().fail("down");
    let queue = QueueLayer::new(1).retry(retries(2, ms(50)));
    let (handle, service) = (queue.handle(), queue.layer(script.service::<u32>()));
    let deferred = spawn(&service, 0);
    settle().await;
    handle.pause();
    let queued = spawn(&service, 1);
    settle().await;
    assert_eq!(handle.clear("x"), 2);
    assert!(handle.stats().is_idle() && handle.is_paused());
    assert_eq!(rejection(deferred.await.unwrap()), cleared("x"));
    assert_eq!(rejection(queued.await.unwrap()), cleared("x"));
    // Nobody resumes it any more: a drain ends all the same.
    let stuck = spawn(&service, 2);
    settle().await;
    let drained = handle.drain(ms(100)).await;
    assert_eq!((drained.cleared, drained.still_running), (1, 0));
    assert_eq!(rejection(stuck.await.unwrap()), Rejection::Closed);
}

/// Pauses from inside the inner service's `call`: there it sets the flag and does not wait for itself.
#[tokio::test(start_paused = true)]
async fn q8_from_inside_an_inner_call_it_does_not_wait_for_itself() {
    let queue = QueueLayer::new(4);
    let handle = queue.handle();
    let calls = Arc::new(AtomicUsize::new(0));
    let (count, pauses) = (calls.clone(), handle.clone());
    let service = queue.layer(service_fn(move |n: u32| {
        count.fetch_add(1, Ordering::SeqCst);
        pauses.pause();
        std::future::ready(Ok::<_, Failure>(n))
    }));
    let tasks: Vec<_> = (0..3).map(|n| spawn(&service, n)).collect();
    settle().await;
    for started in 1..=3 {
        assert_eq!((calls.load(Ordering::SeqCst), handle.is_paused()), (started, true));
        handle.resume();
        settle().await;
    }
    for task in tasks {
        task.await.unwrap().unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn q8_a_queue_below_may_pause_the_one_above_and_both_ways() {
    let (above, below) = (QueueLayer::new(2), QueueLayer::new(2));
    let handles = (above.handle(), below.handle());
    let (one, other) = handles.clone();
    let service = above.layer(below.layer(service_fn(move |n: u32| {
        one.pause();
        other.pause();
        std::future::ready(Ok::<_, Failure>(n))
    })));
    assert_eq!(spawn(&service, 7).await.unwrap().unwrap(), 7);
    assert!(handles.0.is_paused() && handles.1.is_paused());
}

/// Real threads: two that both pause from inside an inner call must not wait for each other.
#[test]
fn q8_two_that_pause_from_inside_do_not_wait_for_each_other() {
    let queue = QueueLayer::new(2);
    let handle = queue.handle();
    let both = Arc::new(Barrier::new(2));
    let pauses = handle.clone();
    let service = queue.layer(service_fn(move |n: u32| {
        both.wait();
        pauses.pause();
        std::future::ready(Ok::<_, Failure>(n))
    }));
    let (done, ended) = mpsc::channel();
    for n in 0..2 {
        let (mut service, done) = (service.clone(), done.clone());
        std::thread::spawn(move || done.send(now(service.call(n)).unwrap()));
    }
    let mut served = [0, 1].map(|_| ended.recv_timeout(secs(20)).expect("they wait for each other"));
    served.sort_unstable();
    assert_eq!((served, handle.is_paused()), ([0, 1], true));
}

/// Real threads: `pause` returns after an inner call that had begun, not before.
#[test]
fn q8_from_another_thread_it_waits_until_a_start_is_over() {
    let queue = QueueLayer::new(2);
    let handle = queue.handle();
    let (inside, is_inside) = mpsc::channel();
    let (go, may_go) = mpsc::channel::<()>();
    let may_go = Arc::new(Mutex::new(may_go));
    let order = Arc::new(Mutex::new(Vec::new()));
    let noted = order.clone();
    let mut service = queue.layer(service_fn(move |n: u32| {
        inside.send(()).unwrap();
        may_go.lock().unwrap().recv().unwrap();
        noted.lock().unwrap().push("call has returned");
        std::future::ready(Ok::<_, Failure>(n))
    }));
    let caller =
        std::thread::spawn(move || now(service.call(0)).map_err(|error: BoxError| error.to_string()));
    is_inside.recv().unwrap();
    let noted = order.clone();
    let paused = handle.clone();
    let pauser = std::thread::spawn(move || {
        paused.pause();
        noted.lock().unwrap().push("pause has returned");
    });
    // The flag is set before it waits.
    while !handle.is_paused() {
        std::thread::yield_now();
    }
    std::thread::sleep(ms(20));
    assert!(!pauser.is_finished());
    go.send(()).unwrap();
    pauser.join().unwrap();
    assert_eq!(caller.join().unwrap(), Ok(0));
    assert_eq!(*order.lock().unwrap(), ["call has returned", "pause has returned"]);
    assert!(Handle::stats(&handle).is_idle());
}
