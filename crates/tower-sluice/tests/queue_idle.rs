//! Q11: `idle` and `waiting_below`.
#![cfg(feature = "queue")]

use tokio::task::JoinHandle;
use tower::{Layer, Service};
use tower_sluice::queue::{Handle, QueueLayer};
use tower_sluice_test::{Script, SpyWaker, Step, by_hand};

mod queue_kit;
use queue_kit::*;

#[tokio::test(start_paused = true)]
async fn q11_case_h8_a_queue_that_was_never_used_is_idle() {
    let queue = QueueLayer::new(1);
    now(queue.handle().idle());
    queue.handle().pause();
    now(queue.handle().idle());
    queue.handle().close();
    now(queue.handle().idle());
    now(QueueLayer::unlimited().handle().idle());
}

#[tokio::test(start_paused = true)]
async fn q11_case_h10_a_call_that_is_deferred_is_not_idle() {
    let script = Script::new().fail("down").answer(7);
    let queue = QueueLayer::new(1).retry(retries(2, secs(10)));
    let since = Since::start();
    let call = spawn(&queue.layer(script.service::<u32>()), 0);
    settle().await;
    assert_eq!(queue.handle().stats().deferred, 1);
    let mut idle = by_hand(queue.handle().idle());
    assert!(idle.poll().is_pending());
    since.at(9_999).await;
    assert!(idle.poll().is_pending());
    call.await.unwrap().unwrap();
    assert!(idle.is_woken() && idle.poll().is_ready());
    assert_eq!(since.ms(), 10_000);
}

#[tokio::test(start_paused = true)]
async fn q11_case_h8_it_resolves_on_every_path_to_idle() {
    let script = Script::new();
    let (inner, _) = served(&script, |request, _| match request {
        0 => Step::answer(0).after(ms(50)),
        1 => Step::fail("down").after(ms(50)),
        2 => Step::panic("on purpose").after(ms(50)),
        4 => Step::fail("down"),
        _ => Step::never(),
    });
    let queue = QueueLayer::new(1);
    let handle = queue.handle();
    let plain = queue.layer(inner.clone());
    let retrying = queue.clone().retry(retries(2, secs(100))).layer(inner.clone());
    let timed = queue.clone().call_timeout(ms(50)).layer(inner.clone());
    let cut = queue.clone().attempt_timeout(ms(50)).layer(inner.clone());
    let late = queue.clone().queue_timeout(ms(20)).layer(inner);
    let nothing = |_: &JoinHandle<_>| {};
    let drops = |call: &JoinHandle<_>| call.abort();
    let clears = |_: &JoinHandle<_>| assert_eq!(handle.clear("x"), 1);

    ends("an answer", &handle, spawn(&plain, 0), nothing, 50).await;
    ends("a failure", &handle, spawn(&plain, 1), nothing, 50).await;
    ends("a panic", &handle, spawn(&plain, 2), nothing, 50).await;
    ends("a deadline", &handle, spawn(&timed, 3), nothing, 50).await;
    ends("an attempt timeout", &handle, spawn(&cut, 3), nothing, 50).await;
    ends("a drop while it runs", &handle, spawn(&plain, 3), drops, 0).await;
    ends("a drop while it is deferred", &handle, spawn(&retrying, 4), drops, 0).await;
    ends("a clear of a deferred call", &handle, spawn(&retrying, 4), clears, 0).await;
    handle.pause();
    ends("a drop while it is queued", &handle, spawn(&plain, 0), drops, 0).await;
    ends("a clear of a queued call", &handle, spawn(&plain, 0), clears, 0).await;
    ends("a deadline in the line", &handle, spawn(&timed, 0), nothing, 50).await;
    handle.resume();
    // Behind one that holds the slot for longer, and ends it.
    let holds = spawn(&plain, 0);
    settle().await;
    ends("a queue timeout", &handle, spawn(&late, 0), nothing, 50).await;
    holds.await.unwrap().unwrap();
}

/// `then` is done to a call that is not idle; after so many milliseconds the queue is.
async fn ends<T>(
    path: &str,
    handle: &Handle,
    call: JoinHandle<T>,
    then: impl Fn(&JoinHandle<T>),
    after: u64,
) {
    settle().await;
    let since = Since::start();
    let idle = tokio::spawn(handle.idle());
    settle().await;
    assert!(!idle.is_finished(), "{path}");
    then(&call);
    idle.await.unwrap();
    assert_eq!(since.ms(), after, "{path}");
    let _ = call.await;
    nothing_left(handle);
}

#[tokio::test(start_paused = true)]
async fn q11_every_waiter_is_told_at_once() {
    let script = Script::new().answer(7).delay(ms(10));
    let queue = QueueLayer::new(1);
    let call = spawn(&queue.layer(script.service::<u32>()), 0);
    settle().await;
    let waiters: Vec<_> = (0..100).map(|_| tokio::spawn(queue.handle().idle())).collect();
    settle().await;
    let since = Since::start();
    call.await.unwrap().unwrap();
    for waiter in waiters {
        waiter.await.unwrap();
    }
    assert_eq!(since.ms(), 10);
}

#[tokio::test(start_paused = true)]
async fn q11_an_instant_of_idleness_is_enough() {
    let script = Script::new().answer(7).hold();
    let queue = QueueLayer::new(1);
    let mut service = queue.layer(script.service::<u32>());
    let mut first = by_hand(service.call(0));
    assert!(first.poll().is_pending());
    let (mut idle, mut below) = (by_hand(queue.handle().idle()), by_hand(queue.handle().waiting_below(1)));
    assert!(idle.poll().is_pending() && below.poll().is_ready());
    script.release_all();
    assert!(first.poll().is_ready());
    // Busy again before the waiter is polled.
    let mut second = by_hand(service.call(1));
    assert!(second.poll().is_pending());
    assert!(idle.is_woken() && idle.poll().is_ready());
    // Before it was first polled it does not look.
    let mut late = by_hand(queue.handle().idle());
    assert!(late.poll().is_pending());
}

#[tokio::test(start_paused = true)]
async fn q11_it_counts_from_the_first_poll_not_from_when_it_was_made() {
    let script = Script::new().answer(7).hold();
    let queue = QueueLayer::new(1);
    let mut service = queue.layer(script.service::<u32>());
    let mut idle = by_hand(queue.handle().idle());
    let mut call = by_hand(service.call(0));
    assert!(call.poll().is_pending());
    assert!(idle.poll().is_pending());
    drop(call);
    assert!(idle.poll().is_ready());
}

#[tokio::test(start_paused = true)]
async fn q11_one_who_waits_may_move_to_another_task_and_may_leave() {
    let script = Script::new().answer(7).hold();
    let queue = QueueLayer::new(1);
    let mut service = queue.layer(script.service::<u32>());
    let mut call = by_hand(service.call(0));
    assert!(call.poll().is_pending());
    let (other, seen) = SpyWaker::new().build();
    let mut idle = by_hand(queue.handle().idle());
    assert!(idle.poll().is_pending() && idle.poll_with(&other).is_pending());
    let (gone, gone_seen) = SpyWaker::new().build();
    let mut leaves = by_hand(queue.handle().idle());
    assert!(leaves.poll_with(&gone).is_pending());
    assert_eq!(gone_seen.references(), 2);
    drop(leaves);
    assert_eq!(gone_seen.references(), 1);
    drop(call);
    // The one that polled last.
    assert_eq!((seen.wakes(), idle.wakes(), gone_seen.wakes()), (1, 0, 0));
    assert!(idle.poll().is_ready());
    // Its waker is not kept.
    assert_eq!(seen.references(), 1);
}

#[tokio::test(start_paused = true)]
async fn q11_case_h7_a_million_times_in_turn() {
    let queue = QueueLayer::new(1);
    let handle = queue.handle();
    let script = Script::new().answer(7).hold();
    for _ in 0..1_000_000 {
        now(handle.idle());
    }
    // While busy: each leaves nothing behind, however many there were.
    let mut service = queue.layer(script.service::<u32>());
    let mut call = by_hand(service.call(0));
    assert!(call.poll().is_pending());
    let (waker, seen) = SpyWaker::new().build();
    for _ in 0..100_000 {
        let mut idle = by_hand(handle.idle());
        assert!(idle.poll_with(&waker).is_pending());
    }
    assert_eq!(seen.references(), 1);
    drop(call);
    assert_eq!(seen.wakes(), 0);
}

#[tokio::test(start_paused = true)]
async fn q11_a_producer_may_wait_until_fewer_wait() {
    let script = Script::new();
    let (inner, _) = served(&script, |request, _| match request {
        0 => Step::fail("down"),
        _ => Step::answer(request).after(ms(10)),
    });
    let queue = QueueLayer::new(1).retry(retries(2, ms(25)));
    let (handle, service) = (queue.handle(), queue.layer(inner));
    let since = Since::start();
    drop((0..5).map(|n| spawn(&service, n)).collect::<Vec<_>>());
    settle().await;
    // One deferred, one runs, three queued.
    assert_eq!(handle.stats().waiting(), 4);
    now(handle.waiting_below(5));
    handle.waiting_below(4).await;
    assert_eq!(since.ms(), 10);
    handle.waiting_below(2).await;
    // At 20 one, deferred, is left beside one that is queued; at 30 the first has come back and runs.
    assert_eq!(since.ms(), 30);
    // 0 is taken as 1: nobody waits.
    handle.waiting_below(0).await;
    assert_eq!((handle.stats().waiting(), since.ms()), (0, 30));
}
