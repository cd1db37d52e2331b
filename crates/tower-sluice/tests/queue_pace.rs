//! Q18: at most so many attempt starts in any window.
#![cfg(feature = "queue")]

use std::time::Duration;

use tower::{Layer, Service};
use tower_sluice::queue::QueueLayer;
use tower_sluice_test::{Failure, Script, Step, by_hand};

mod queue_kit;
use queue_kit::*;

/// No window of this length, wherever it begins, has more than so many starts.
#[track_caller]
fn within(starts: &[Duration], most: usize, per: Duration) {
    for (n, &start) in starts.iter().enumerate() {
        if let Some(&later) = starts.get(n + most) {
            assert!(later - start >= per, "{most} and one more from {start:?} to {later:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn q18_a_burst_after_a_quiet_time_and_never_more_in_a_window() {
    let script = Script::new().answer(7);
    let queue = QueueLayer::new(100).rate(3, secs(1));
    let service = queue.layer(script.service::<u32>());
    let calls: Vec<_> = (0..8).map(|n| spawn(&service, n)).collect();
    for call in calls {
        call.await.unwrap().unwrap();
    }
    assert_eq!(script.starts(), [0, 0, 0, 1_000, 1_000, 1_000, 2_000, 2_000].map(ms));
    within(&script.starts(), 3, secs(1));
    // Quiet for long: three at once again, not more.
    tokio::time::sleep(secs(60)).await;
    let calls: Vec<_> = (0..4).map(|n| spawn(&service, n)).collect();
    for call in calls {
        call.await.unwrap().unwrap();
    }
    assert_eq!(script.starts()[8..], [62_000, 62_000, 62_000, 63_000].map(ms));
    nothing_left(&queue.handle());
}

#[tokio::test(start_paused = true)]
async fn q18_starts_that_came_one_by_one_are_waited_for_one_by_one() {
    let script = Script::new().answer(7);
    let queue = QueueLayer::new(100).rate(3, secs(1));
    let service = queue.layer(script.service::<u32>());
    let since = Since::start();
    for at in [0, 300, 900] {
        since.at(at).await;
        spawn(&service, 0).await.unwrap().unwrap();
    }
    let calls: Vec<_> = (0..3).map(|n| spawn(&service, n)).collect();
    for call in calls {
        call.await.unwrap().unwrap();
    }
    assert_eq!(script.starts(), [0, 300, 900, 1_000, 1_300, 1_900].map(ms));
}

#[tokio::test(start_paused = true)]
async fn q18_retries_count_as_starts_and_waiting_is_in_the_line() {
    let script = Script::new();
    let (inner, served) =
        served(
            &script,
            |request, before| {
                if before == 0 { Step::fail("down") } else { Step::answer(request) }
            },
        );
    let queue = QueueLayer::new(100).rate(2, secs(1)).retry(retries(2, ms(10)));
    let (handle, service) = (queue.handle(), queue.layer(inner));
    let calls: Vec<_> = (0..3).map(|n| spawn(&service, n)).collect();
    tokio::time::sleep(ms(20)).await;
    let stats = handle.stats();
    assert_eq!((stats.queued, stats.deferred, stats.running, stats.granted), (3, 0, 0, 0));
    for call in calls {
        call.await.unwrap().unwrap();
    }
    // Q4: those that came back have the earlier arrival.
    assert_eq!(served.entries(), [(0, 0), (1, 0), (0, 1_000), (1, 1_000), (2, 2_000), (2, 2_010)]);
    within(&script.starts(), 2, secs(1));
}

#[tokio::test(start_paused = true)]
async fn q18_q13_those_that_leave_before_they_start_use_up_no_start() {
    let script = Script::new().answer(7);
    let queue = QueueLayer::new(1).rate(1, secs(1));
    let (handle, mut service) = (queue.handle(), queue.layer(script.service::<u32>()));
    assert!(by_hand(service.call(0)).poll().is_ready());
    let mut calls: Vec<_> = (0..6).map(|n| by_hand(service.call(n))).collect();
    for call in &mut calls {
        assert!(call.poll().is_pending());
    }
    tokio::time::advance(secs(1)).await;
    // The head kept the timer; it is woken, and leaves.
    assert!(calls[0].is_woken());
    drop(calls.remove(0));
    assert!(calls[0].is_woken());
    // So does the next: granted, and never polled.
    drop(calls.remove(0));
    assert!(calls[0].is_woken() && calls[0].poll().is_ready());
    assert_eq!(script.starts(), [ms(0), secs(1)]);
    drop(calls.remove(0));
    // The next may in a second, and not before.
    assert!(calls[0].is_woken() && calls[0].poll().is_pending());
    tokio::time::advance(ms(999)).await;
    assert!(!calls[0].is_woken());
    tokio::time::advance(ms(1)).await;
    assert!(calls[0].is_woken() && calls[0].poll().is_ready());
    assert_eq!(handle.stats().cancelled, 2);
}

#[tokio::test(start_paused = true)]
async fn q18_q3_a_service_that_is_not_ready_uses_up_no_start() {
    let script = Script::new().answer(7).ready_after(ms(300)).ready();
    let queue = QueueLayer::new(2).rate(1, secs(1));
    let service = queue.layer(script.service::<u32>());
    let calls: Vec<_> = (0..2).map(|n| spawn(&service, n)).collect();
    for call in calls {
        call.await.unwrap().unwrap();
    }
    // Counted when the inner `call` is made, not when the slot is had.
    within(&script.starts(), 1, secs(1));
    assert_eq!(script.starts(), [ms(300), ms(1_300)]);
    nothing_left(&queue.handle());
}

#[tokio::test(start_paused = true)]
async fn q18_an_error_of_the_inner_readiness_is_no_start() {
    let script = Script::new().answer(7).fail_ready("no connection").ready();
    let queue = QueueLayer::new(2).rate(1, secs(1));
    let service = queue.layer(script.service::<u32>());
    let since = Since::start();
    assert_eq!(spawn(&service, 0).await.unwrap().unwrap_err().to_string(), "no connection");
    spawn(&service, 1).await.unwrap().unwrap();
    assert_eq!(since.ms(), 0);
}

#[tokio::test(start_paused = true)]
async fn q18_q8_a_pause_saves_up_no_more_than_a_burst() {
    let script = Script::new().answer(7);
    let queue = QueueLayer::new(100).rate(2, secs(1));
    let (handle, service) = (queue.handle(), queue.layer(script.service::<u32>()));
    handle.pause();
    let calls: Vec<_> = (0..5).map(|n| spawn(&service, n)).collect();
    tokio::time::sleep(secs(60)).await;
    handle.resume();
    for call in calls {
        call.await.unwrap().unwrap();
    }
    assert_eq!(script.starts(), [60_000, 60_000, 61_000, 61_000, 62_000].map(ms));
}

#[tokio::test(start_paused = true)]
async fn q18_queue_timeout_and_deadline_end_a_wait_for_the_pace() {
    let script = Script::new().answer(7);
    let queue = QueueLayer::new(100).rate(1, secs(10));
    let since = Since::start();
    spawn(&queue.layer(script.service::<u32>()), 0).await.unwrap().unwrap();
    let late = spawn(&queue.clone().queue_timeout(secs(2)).layer(script.service::<u32>()), 0);
    settle().await;
    let later = spawn(&queue.clone().call_timeout(secs(3)).layer(script.service::<u32>()), 0);
    settle().await;
    let last = spawn(&queue.layer(script.service::<u32>()), 0);
    assert_eq!(rejection(late.await.unwrap()).as_str(), "queue_timeout");
    assert_eq!(since.ms(), 2_000);
    assert_eq!(rejection(later.await.unwrap()).as_str(), "deadline");
    assert_eq!(since.ms(), 3_000);
    // The timer was handed on.
    last.await.unwrap().unwrap();
    assert_eq!(since.ms(), 10_000);
}

#[tokio::test(start_paused = true)]
async fn q18_shorter_than_the_timer_can_tell_and_longer_than_time() {
    // One in a nanosecond: nothing waits for longer than the timer's millisecond.
    let script = Script::new().answer(7);
    let queue = QueueLayer::new(1).rate(1, Duration::from_nanos(1));
    let service = queue.layer(script.service::<u32>());
    let since = Since::start();
    let calls: Vec<_> = (0..100).map(|n| spawn(&service, n)).collect();
    for call in calls {
        call.await.unwrap().unwrap();
    }
    assert!(since.ms() <= 100, "{}", since.ms());
    assert_eq!(script.calls(), 100);
    nothing_left(&queue.handle());

    // Two for ever.
    let script = Script::new().answer(7);
    let queue = QueueLayer::new(1).rate(2, Duration::MAX);
    let (handle, service) = (queue.handle(), queue.layer(script.service::<u32>()));
    let calls: Vec<_> = (0..3).map(|n| spawn(&service, n)).collect();
    tokio::time::sleep(secs(10_000_000)).await;
    assert_eq!((script.calls(), handle.stats().queued), (2, 1));
    assert_eq!(handle.clear("x"), 1);
    drop(calls);
}

#[test]
fn q18_a_rate_that_cannot_work_is_refused_by_name() {
    for (starts, per, given) in
        [(0, secs(1), "0"), (1_000_001, secs(1), "1000001"), (1, Duration::ZERO, "a window of 0 s")]
    {
        let error = QueueLayer::new(1).try_rate(starts, per).unwrap_err();
        assert_eq!(error.field(), "rate");
        assert!(error.to_string().starts_with(&format!("rate is {given}, but must be ")), "{error}");
    }
    assert!(QueueLayer::new(1).try_rate(1_000_000, Duration::MAX).is_ok());
    assert!(std::panic::catch_unwind(|| QueueLayer::new(1).rate(0, secs(1))).is_err());
}

#[tokio::test(start_paused = true)]
async fn q18_routes_of_one_layer_value_share_the_pace() {
    let script = Script::new().answer(7);
    let queue = QueueLayer::unlimited().rate(2, secs(1));
    let one = queue.layer(script.service::<u32>());
    let other = queue.clone().retry(retries(2, ms(1))).layer(script.service::<u32>());
    let calls: Vec<_> = (0..6).map(|n| if n % 2 == 0 { spawn(&one, n) } else { spawn(&other, n) }).collect();
    for call in calls {
        call.await.unwrap().unwrap();
    }
    assert_eq!(script.starts(), [0, 0, 1_000, 1_000, 2_000, 2_000].map(ms));
    let _: Failure = "no failure was made".into();
}

/// At random: whatever comes, goes, fails and is dropped, no window is exceeded, and no start that may be is missing.
#[tokio::test(start_paused = true)]
async fn q18_case_b1_at_random() {
    use rand::rngs::StdRng;
    use rand::{RngExt, SeedableRng};
    let mut rng = StdRng::seed_from_u64(tower_sluice_test::seed("q18_at_random"));
    for _ in 0..20 {
        let script = Script::new();
        let (inner, _) = served(&script, |request, before| match request % 4 {
            0 if before == 0 => Step::fail("down"),
            1 => Step::answer(request).after(ms(37)),
            _ => Step::answer(request),
        });
        let most = rng.random_range(1..6);
        let queue = QueueLayer::new(3).rate(most, ms(100)).retry(retries(2, ms(13)));
        let (handle, service) = (queue.handle(), queue.layer(inner));
        let mut calls = Vec::new();
        for n in 0..300 {
            calls.push(spawn(&service, n));
            match rng.random_range(0..10) {
                0 => calls.swap_remove(rng.random_range(0..calls.len())).abort(),
                1 => handle.pause(),
                2..4 => handle.resume(),
                _ => {}
            }
            tokio::time::sleep(ms(rng.random_range(0..30))).await;
        }
        handle.resume();
        for call in calls {
            let _ = call.await;
        }
        within(&script.starts(), most, ms(100));
        assert!(script.peak() <= 3);
        nothing_left(&handle);
    }
}
