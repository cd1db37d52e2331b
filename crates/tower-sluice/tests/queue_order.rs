//! Q4: slots go to calls in order of arrival.
#![cfg(feature = "queue")]

use tower::{Layer, Service};
use tower_sluice::queue::{QueueLayer, Requeue};
use tower_sluice_test::{Script, Step, by_hand};

mod queue_kit;
use queue_kit::*;

#[tokio::test(start_paused = true)]
async fn q4_slots_go_in_order_of_arrival() {
    let script = Script::new();
    let (inner, served) = served(&script, |request, _| Step::answer(request).after(ms(10)));
    let service = QueueLayer::new(2).layer(inner);
    let calls: Vec<_> = (0..6).map(|n| spawn(&service, n)).collect();
    for call in calls {
        call.await.unwrap().unwrap();
    }
    assert_eq!(served.entries(), [(0, 0), (1, 0), (2, 10), (3, 10), (4, 20), (5, 20)]);
}

#[tokio::test(start_paused = true)]
async fn q4_q14_a_call_arrives_when_it_is_first_polled_not_when_it_is_made() {
    let script = Script::new().hold();
    let (inner, served) = served(&script, |request, _| Step::answer(request));
    let queue = QueueLayer::new(1);
    let mut service = queue.layer(inner);
    let early = service.call(1);
    let mut late = by_hand(service.call(2));
    assert_eq!(queue.handle().stats().admitted, 0);
    assert!(late.poll().is_pending());
    let mut early = by_hand(early);
    assert!(early.poll().is_pending());
    assert_eq!((served.requests(), queue.handle().stats().queued), (vec![2], 1));
}

#[tokio::test(start_paused = true)]
async fn q4_case_b6_a_retried_call_comes_back_to_its_place_by_arrival() {
    let script = Script::new();
    let (inner, served) = served(&script, |request, before| {
        let step = if request == 0 && before == 0 { Step::fail("down") } else { Step::answer(request) };
        step.after(ms(10))
    });
    let service = QueueLayer::new(1).retry(retries(2, ms(15))).layer(inner);
    let calls: Vec<_> = (0..5).map(|n| spawn(&service, n)).collect();
    for call in calls {
        call.await.unwrap().unwrap();
    }
    // Due at 25, while 2 runs: before 3 and 4, which came later than it.
    assert_eq!(served.entries(), [(0, 0), (1, 10), (2, 20), (0, 30), (3, 40), (4, 50)]);
}

#[tokio::test(start_paused = true)]
async fn q4_case_b6_a_retried_call_goes_to_the_end_if_so_set() {
    let script = Script::new();
    let (inner, served) = served(&script, |request, before| {
        let step = if request == 0 && before == 0 { Step::fail("down") } else { Step::answer(request) };
        step.after(ms(10))
    });
    let service = QueueLayer::new(1).requeue(Requeue::Back).retry(retries(2, ms(15))).layer(inner);
    let calls: Vec<_> = (0..5).map(|n| spawn(&service, n)).collect();
    for call in calls {
        call.await.unwrap().unwrap();
    }
    assert_eq!(served.entries(), [(0, 0), (1, 10), (2, 20), (3, 30), (4, 40), (0, 50)]);
}

#[tokio::test(start_paused = true)]
async fn q4_of_two_that_come_back_the_one_that_arrived_first_goes_first() {
    let script = Script::new();
    // 0 fails at 10 and 1 at 20; both are due while 2 runs, 1 before 0.
    let (inner, served) = served(&script, |request, before| match (request, before) {
        (0, 0) => Step::fail("down").after(ms(10)),
        (1, 0) => Step::fail("soon").after(ms(10)),
        (2, _) => Step::answer(2).after(ms(100)),
        _ => Step::answer(request).after(ms(10)),
    });
    let soon = |result: &Result<u32, tower_sluice_test::Failure>| {
        use tower_sluice::verdict::Verdict;
        match result {
            Err(error) if error.to_string() == "soon" => Verdict::transient().after(Some(ms(20))),
            Err(_) => Verdict::transient(),
            Ok(_) => Verdict::Success,
        }
    };
    let service = QueueLayer::new(1).retry(retries(2, ms(50)).classify(soon)).layer(inner);
    let calls: Vec<_> = (0..4).map(|n| spawn(&service, n)).collect();
    for call in calls {
        call.await.unwrap().unwrap();
    }
    assert_eq!(served.entries(), [(0, 0), (1, 10), (2, 20), (0, 120), (1, 130), (3, 140)]);
}

#[tokio::test(start_paused = true)]
async fn q4_a_call_without_a_delay_goes_behind_those_that_were_waiting_when_it_failed() {
    for requeue in [Requeue::Arrival, Requeue::Back] {
        let script = Script::new();
        let (inner, served) = served(&script, |request, before| {
            let step = if request == 0 && before < 2 { Step::fail("down") } else { Step::answer(request) };
            step.after(ms(10))
        });
        let service = QueueLayer::new(1).requeue(requeue).retry(retries(3, ms(0))).layer(inner);
        let mut calls: Vec<_> = (0..3).map(|n| spawn(&service, n)).collect();
        let since = Since::start();
        // Arrives after the failure, and so behind it.
        since.at(15).await;
        calls.push(spawn(&service, 3));
        for call in calls {
            call.await.unwrap().unwrap();
        }
        let entries = served.entries();
        assert_eq!(entries, [(0, 0), (1, 10), (2, 20), (0, 30), (3, 40), (0, 50)], "{requeue:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn q4_a_call_that_always_fails_without_a_delay_does_not_keep_the_slot() {
    let script = Script::new();
    let (inner, served) = served(&script, |request, _| match request {
        0 => Step::fail("down"),
        _ => Step::answer(request).after(ms(10)),
    });
    let queue = QueueLayer::new(1).retry(retries(1_000, ms(0)));
    let service = queue.layer(inner);
    let calls: Vec<_> = (0..4).map(|n| spawn(&service, n)).collect();
    for (n, call) in calls.into_iter().enumerate().rev() {
        assert_eq!(call.await.unwrap().is_ok(), n > 0);
    }
    // The others ran in time, and it had its thousand attempts.
    let last = served.entries().into_iter().filter(|entry| entry.0 != 0).collect::<Vec<_>>();
    assert_eq!(last, [(1, 0), (2, 10), (3, 20)]);
    assert_eq!(served.requests().len(), 1_003);
    nothing_left(&queue.handle());
}

#[tokio::test(start_paused = true)]
async fn q14_a_call_that_fails_without_a_delay_lets_other_tasks_run_between_its_attempts() {
    let script = Script::<u32>::new().fail("again");
    let queue = QueueLayer::new(1).retry(retries(3, ms(0)));
    let mut call = by_hand(queue.layer(script.service::<u32>()).call(0));
    for attempts in 1..=2 {
        assert!(call.poll().is_pending());
        assert!(call.is_woken());
        assert_eq!(script.calls(), attempts, "an attempt a poll");
    }
    assert!(call.poll().is_ready());
}

#[tokio::test(start_paused = true)]
async fn q4_case_b4_with_steady_arrivals_a_retried_call_is_the_next_to_be_admitted() {
    let script = Script::new();
    let (inner, served) = served(&script, |request, before| {
        let step = if request == 0 && before == 0 { Step::fail("down") } else { Step::answer(request) };
        step.after(ms(10))
    });
    let queue = QueueLayer::new(1).retry(retries(2, ms(95)));
    let service = queue.layer(inner);
    let since = Since::start();
    // One every 10 ms, so that the line is never empty once it holds one.
    drop((spawn(&service, 0), spawn(&service, 1), spawn(&service, 2)));
    for n in 1..30 {
        since.at(n * 10).await;
        drop(spawn(&service, u32::try_from(n + 2).unwrap()));
    }
    queue.handle().idle().await;
    // Due at 105: in the next slot, at 110.
    assert_eq!(served.entries().iter().filter(|entry| entry.0 == 0).nth(1), Some(&(0, 110)));
    assert_eq!(served.requests().len(), 33);
}

#[tokio::test(start_paused = true)]
async fn q4_q14_nobody_barges_past_the_line() {
    let script = Script::new().hold();
    let (inner, served) = served(&script, |request, _| Step::answer(request));
    let queue = QueueLayer::new(1);
    let mut service = queue.layer(inner);
    let mut running = by_hand(service.call(0));
    let mut queued = by_hand(service.call(1));
    assert!(running.poll().is_pending() && queued.poll().is_pending());
    script.release_all();
    assert!(running.poll().is_ready());
    // The slot is free, and the first in line has been woken, not polled: another that is quicker waits.
    let mut quick = by_hand(service.call(2));
    assert!(quick.poll().is_pending());
    assert_eq!(served.requests(), [0]);
    assert!(queued.is_woken() && queued.poll().is_pending());
    assert_eq!(served.requests(), [0, 1]);
    assert!(quick.poll().is_pending());
    assert_eq!((served.requests(), quick.is_woken()), (vec![0, 1], false));
}

/// B7, in the small: retried calls come back before those that arrived later, and still do not starve them.
#[tokio::test(start_paused = true)]
async fn q4_case_b7_under_permanent_overload_fresh_calls_still_succeed() {
    let script = Script::new();
    // Every other call fails for ever.
    let (inner, _) = served(&script, |request, _| {
        let step = if request % 2 == 0 { Step::fail("down") } else { Step::answer(request) };
        step.after(ms(10))
    });
    let queue = QueueLayer::new(2).max_waiting(20).call_timeout(secs(2)).retry(retries(4, ms(50)));
    let (handle, service) = (queue.handle(), queue.layer(inner));
    // Twice as many as can be served, for 20 s.
    let mut calls = Vec::new();
    for n in 0..8_000 {
        calls.push(spawn(&service, n));
        tokio::time::sleep(if n % 2 == 0 { ms(2) } else { ms(3) }).await;
    }
    let mut late = 0;
    for call in calls.drain(4_000..) {
        late += usize::from(call.await.unwrap().is_ok());
    }
    // 4 000 attempts in 20 s; with four attempts a failed call, an even share is 800 successes; in the second half 400.
    assert!(late > 200, "{late} fresh calls succeeded");
    sound(&handle.stats());
}
