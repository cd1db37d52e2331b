//! `batch::run`: many calls through one service, each result with its item.
#![cfg(feature = "queue")]

use std::pin::pin;
use std::task::{Context, Poll, Waker};

use futures_util::{Stream, StreamExt};
use tower::Layer;
use tower_sluice::queue::{QueueLayer, batch};
use tower_sluice::reject::Rejection;
use tower_sluice_test::{Script, SpyWaker, Step};

mod queue_kit;
use queue_kit::*;

#[tokio::test(start_paused = true)]
async fn results_come_in_the_order_in_which_they_are_there_with_their_items() {
    let script = Script::new();
    let (inner, _) =
        served(&script, |request, _| Step::answer(request + 100).after(ms(u64::from(50 - request))));
    let queue = QueueLayer::new(3).max_waiting(0).wait_when_full();
    let results: Vec<_> = batch::run(queue.layer(inner), vec!["1", "20", "40"], |item| item.parse().unwrap())
        .map(|(item, result)| (item, result.unwrap()))
        .collect()
        .await;
    assert_eq!(results, [("40", 140), ("20", 120), ("1", 101)]);
}

#[tokio::test(start_paused = true)]
async fn deferred_calls_do_not_keep_others_from_running() {
    let script = Script::new();
    // Half fail once.
    let (inner, served) = served(&script, |request, before| {
        let step = if request % 2 == 0 && before == 0 { Step::fail("down") } else { Step::answer(request) };
        step.after(ms(10))
    });
    let queue = QueueLayer::new(2).max_waiting(100).wait_when_full().retry(retries(2, secs(1)));
    let handle = queue.handle();
    let mut results = pin!(batch::run(queue.layer(inner), 0..20_u32, |n| *n));
    let mut got = Vec::new();
    while let Some((item, result)) = results.next().await {
        assert_eq!(result.unwrap(), item);
        got.push(item);
    }
    // The odd ones first: as `buffer_unordered(2)` none would have been through before two that sleep.
    assert!(got[..10].iter().all(|n| n % 2 == 1), "{got:?}");
    assert_eq!((script.peak(), served.requests().len()), (2, 30));
    assert_eq!(script.ends().last(), Some(&ms(1_110)));
    nothing_left(&handle);
}

#[tokio::test(start_paused = true)]
async fn memory_is_bounded_by_the_queue_and_items_are_taken_as_there_is_room() {
    let script = Script::new().answer(7).delay(ms(10));
    let queue = QueueLayer::new(4).max_waiting(4).wait_when_full();
    let (handle, service) = (queue.handle(), queue.layer(script.service::<u32>()));
    let taken = std::cell::Cell::new(0);
    let items = (0..1_000_u32).inspect(|_| taken.set(taken.get() + 1));
    let mut results = pin!(batch::run(service, items, |n| *n));
    let mut done = 0;
    while let Some((_, result)) = results.next().await {
        result.unwrap();
        done += 1;
        let stats = handle.stats();
        assert!(stats.queued + stats.running + stats.deferred + stats.reserved <= 8, "{stats:?}");
        // One more than there is room for is at hand.
        assert!(taken.get() <= done + 9, "{} taken, {done} done", taken.get());
    }
    assert_eq!((done, script.peak()), (1_000, 4));
    assert_eq!(handle.stats().rejected.turned_away(), 0);
    nothing_left(&handle);
}

#[tokio::test(start_paused = true)]
async fn q17_dropping_the_stream_drops_all_calls() {
    let script = Script::<u32>::new().never();
    let queue = QueueLayer::new(2).max_waiting(10).wait_when_full();
    let handle = queue.handle();
    let mut results = Box::pin(batch::run(queue.layer(script.service::<u32>()), 0..100, |n| *n));
    let (waker, _) = SpyWaker::new().build();
    assert!(results.as_mut().poll_next(&mut Context::from_waker(&waker)).is_pending());
    assert_eq!((handle.stats().running, handle.stats().queued), (2, 10));
    drop(results);
    assert_eq!((handle.stats().cancelled, script.running()), (12, 0));
    nothing_left(&handle);
}

#[tokio::test(start_paused = true)]
async fn a_close_ends_it_item_by_item() {
    let script = Script::new().answer(7).delay(ms(10));
    let queue = QueueLayer::new(1).max_waiting(1).wait_when_full();
    let handle = queue.handle();
    let mut results = pin!(batch::run(queue.layer(script.service::<u32>()), 0..5_u32, |n| *n));
    let mut closed = Vec::new();
    let mut answered = Vec::new();
    while let Some((item, result)) = results.next().await {
        handle.close();
        match result {
            Ok(_) => answered.push(item),
            result => {
                assert_eq!(rejection(result), Rejection::Closed);
                closed.push(item);
            }
        }
    }
    closed.sort_unstable();
    // Two were in when it closed.
    assert_eq!((answered, closed), (vec![0, 1], vec![2, 3, 4]));
}

#[tokio::test(start_paused = true)]
async fn it_ends_once_and_stays_ended_also_with_nothing_to_do() {
    let script = Script::new().answer(7);
    let queue = QueueLayer::new(1).wait_when_full();
    let mut results = pin!(batch::run(queue.layer(script.service::<u32>()), 0..3_u32, |n| *n));
    assert_eq!(results.size_hint(), (3, Some(3)));
    for left in (0..3).rev() {
        results.next().await.unwrap().1.unwrap();
        assert_eq!(results.size_hint(), (left, Some(left)));
    }
    assert!(results.next().await.is_none() && results.next().await.is_none());
    // The place that was reserved for a call that never came is given up with the stream; nothing else is held.
    let mut nothing = pin!(batch::run(queue.layer(script.service::<u32>()), 0..0_u32, |n| *n));
    let polled = nothing.as_mut().poll_next(&mut Context::from_waker(Waker::noop()));
    assert!(matches!(polled, Poll::Ready(None)));
    nothing_left(&queue.handle());
}

#[tokio::test(start_paused = true)]
async fn an_item_whose_call_is_turned_away_comes_back_with_the_rejection() {
    let script = Script::new().answer(7).delay(ms(10));
    // Rejects when full: then all items are called at once.
    let queue = QueueLayer::new(1).max_waiting(1);
    let results: Vec<_> =
        batch::run(queue.layer(script.service::<u32>()), 0..5_u32, |n| *n).collect::<Vec<_>>().await;
    let turned_away = results.iter().filter(|(_, result)| result.is_err()).count();
    assert_eq!((results.len(), turned_away, script.calls()), (5, 3, 2));
}
