//! Q7: deadlines and timeouts.
#![cfg(feature = "queue")]

use std::time::Duration;

use tokio::time::Instant;
use tower::{Layer, Service, ServiceExt};
use tower_sluice::queue::QueueLayer;
use tower_sluice::reject::Rejection;
use tower_sluice::verdict::{FailureKind, Verdict};
use tower_sluice_test::{Failure, Script, Step, by_hand};

mod queue_kit;
use queue_kit::*;

fn deadline(attempts: u32, elapsed: Duration, last_failure: Option<FailureKind>) -> Rejection {
    Rejection::Deadline { attempts, elapsed, last_failure }
}

#[tokio::test(start_paused = true)]
async fn q7_case_k2_a_call_timeout_covers_the_wait_in_the_line() {
    let script = Script::<u32>::new().never();
    let queue = QueueLayer::new(1);
    let endless = spawn(&queue.layer(script.service::<u32>()), 0);
    settle().await;
    let since = Since::start();
    let service = queue.clone().call_timeout(secs(2)).layer(script.service::<u32>());
    assert_eq!(rejection(service.oneshot(1).await), deadline(0, secs(2), None));
    assert_eq!((since.ms(), script.calls()), (2_000, 1));
    let stats = queue.handle().stats();
    assert_eq!((stats.rejected.deadline, stats.queued, stats.running), (1, 0, 1));
    endless.abort();
}

#[tokio::test(start_paused = true)]
async fn q7_case_k5_at_the_deadline_a_running_attempt_is_dropped() {
    let script = Script::<u32>::new().never();
    let queue = QueueLayer::new(1).call_timeout(secs(2));
    let since = Since::start();
    let result = queue.layer(script.service::<u32>()).oneshot(0).await;
    assert_eq!(rejection(result), deadline(1, secs(2), None));
    assert_eq!((since.ms(), script.running(), script.futures()), (2_000, 0, 0));
    nothing_left(&queue.handle());
}

#[tokio::test(start_paused = true)]
async fn q7_it_is_counted_from_call_not_from_the_first_poll() {
    let script = Script::<u32>::new().never();
    let queue = QueueLayer::new(1).call_timeout(secs(1));
    let call = queue.layer(script.service::<u32>()).call(0);
    tokio::time::sleep(ms(600)).await;
    let since = Since::start();
    assert_eq!(rejection(call.await), deadline(1, secs(1), None));
    assert_eq!(since.ms(), 400);
}

#[tokio::test(start_paused = true)]
async fn q7_case_h2_a_call_that_is_first_polled_after_its_deadline_is_answered_at_once() {
    let script = Script::<u32>::new().never();
    let queue = QueueLayer::new(1).max_waiting(0).call_timeout(secs(1));
    let mut service = queue.layer(script.service::<u32>());
    let late = service.call(0);
    tokio::time::sleep(secs(1)).await;
    let _running = spawn(&service, 1);
    settle().await;
    // Full, too; but the deadline is what is wrong with it.
    assert_eq!(rejection(now(late)), deadline(0, secs(1), None));
    let stats = queue.handle().stats();
    assert_eq!((stats.admitted, stats.rejected.too_late, stats.rejected.full), (1, 1, 0));
}

#[tokio::test(start_paused = true)]
async fn q7_it_ends_with_the_answer() {
    let script = Script::new().answer(7).delay(secs(1));
    let queue = QueueLayer::new(1).call_timeout(secs(1) + ms(1));
    assert_eq!(queue.layer(script.service::<u32>()).oneshot(0).await.unwrap(), 7);
}

#[tokio::test(start_paused = true)]
async fn q7a_case_k1_a_retry_that_cannot_finish_in_time_is_not_begun() {
    let script = Script::<u32>::new().fail("down").delay(secs(9));
    let queue = QueueLayer::new(1).call_timeout(secs(10)).retry(retries(5, secs(5)));
    let since = Since::start();
    let error = queue.layer(script.service::<u32>()).oneshot(0).await.unwrap_err();
    assert_eq!(error.downcast_ref::<Failure>(), Some(&Failure::from("down")));
    assert_eq!((since.ms(), script.calls()), (9_000, 1));
    assert_eq!((queue.handle().stats().failed, queue.handle().stats().rejected.deadline), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn q7a_a_delay_that_ends_with_the_deadline_is_within_it() {
    for (timeout, attempts) in [(ms(1_999), 1), (ms(2_001), 2)] {
        // At once: what is typical is next to nothing.
        let script = Script::<u32>::new().fail("down");
        let queue = QueueLayer::new(1).call_timeout(timeout).retry(retries(2, secs(2)));
        let error = queue.layer(script.service::<u32>()).oneshot(0).await.unwrap_err();
        assert_eq!((error.to_string().as_str(), script.calls()), ("down", attempts), "{timeout:?}");
        nothing_left(&queue.handle());
    }
}

/// Serves so many attempts that have waited in the line and have a deadline, so that they are timed.
async fn typical<S>(queue: &QueueLayer, inner: S, attempts: usize)
where
    S: Service<u32, Response = u32, Error = Failure, Future: Send> + Clone + Send + 'static,
{
    let service = queue.clone().call_timeout(secs(3_600)).layer(inner);
    let calls: Vec<_> = (0..=attempts).map(|_| spawn(&service, 0)).collect();
    for call in calls {
        call.await.unwrap().unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn q7a_a_typical_attempt_has_to_fit_behind_the_delay() {
    // 100 ms are typical, and so 500 + 100 have to fit behind a failure that took 100.
    for (timeout, attempts) in [(ms(699), 1), (ms(700), 2)] {
        let script = Script::new();
        let (inner, _) = served(&script, |request, _| {
            let step = if request == 1 { Step::fail("down") } else { Step::answer(0) };
            step.after(ms(100))
        });
        let queue = QueueLayer::new(1);
        typical(&queue, inner.clone(), 20).await;
        let before = script.calls();
        let service = queue.retry(retries(2, ms(500))).call_timeout(timeout).layer(inner);
        let error = service.oneshot(1).await.unwrap_err();
        assert_eq!(script.calls() - before, attempts, "{timeout:?}");
        if attempts == 1 {
            assert_eq!(error.to_string(), "down");
        }
    }
}

/// Where 100 ms are typical: is a call run that has `left` when its slot comes, of an allowance of `whole`?
async fn runs(slack: u32, whole: u64, left: u64) -> bool {
    let script = Script::new();
    let (inner, served) = served(&script, |request, _| Step::answer(request).after(ms(100)));
    let queue = QueueLayer::new(1).slack(slack);
    typical(&queue, inner.clone(), 40).await;
    let since = Since::start();
    let waits = whole - left;
    let before: Vec<_> = (0..waits.div_ceil(100)).map(|_| spawn(&queue.layer(inner.clone()), 1)).collect();
    let comes = before.len() as u64 * 100;
    since.at(comes - waits).await;
    let call = spawn(&queue.clone().call_timeout(ms(whole)).layer(inner), 2);
    for call in before {
        call.await.unwrap().unwrap();
    }
    let result = call.await.unwrap();
    let ran = served.entries().contains(&(2, 4_100 + comes));
    if !ran {
        // At once, not at the deadline.
        assert_eq!((rejection(result), since.ms()), (deadline(0, ms(waits), None), comes));
        assert_eq!(queue.handle().stats().rejected.deadline, 1);
    }
    nothing_left(&queue.handle());
    ran
}

#[tokio::test(start_paused = true)]
async fn q7b_a_slot_that_comes_too_late_is_not_used() {
    // Two typical attempts are 200 ms.
    assert!(!runs(2, 1_000, 199).await);
    assert!(runs(2, 1_000, 200).await);
    // Three are 300.
    assert!(!runs(3, 1_000, 299).await);
    assert!(runs(3, 1_000, 300).await);
}

#[tokio::test(start_paused = true)]
async fn q7b_never_more_than_half_of_the_allowance_is_asked_for() {
    // Two typical attempts are 200 ms: more than half of 160.
    assert!(!runs(2, 160, 79).await);
    assert!(runs(2, 160, 80).await);
    // As much as there is, it cannot be more than half.
    assert!(!runs(u32::MAX, 1_000, 499).await);
    assert!(runs(u32::MAX, 1_000, 500).await);
}

#[tokio::test(start_paused = true)]
async fn q7b_without_slack_only_what_has_expired_is_skipped() {
    assert!(runs(0, 100, 1).await);
    assert!(!runs(0, 100, 0).await);
}

#[tokio::test(start_paused = true)]
async fn q7b_a_call_that_has_not_waited_is_run_whatever_is_typical() {
    let script = Script::new();
    let (inner, served) = served(&script, |request, _| match request {
        2 => Step::answer(2).after(ms(5)),
        _ => Step::answer(request).after(ms(100)),
    });
    let queue = QueueLayer::new(1);
    typical(&queue, inner.clone(), 20).await;
    assert_eq!(queue.clone().call_timeout(ms(10)).layer(inner).oneshot(2).await.unwrap(), 2);
    assert_eq!(served.requests().last(), Some(&2));
}

/// The trap that the exemptions are for: attempts that are slower than the threshold must not shut the queue for ever.
#[tokio::test(start_paused = true)]
async fn q7b_slow_attempts_do_not_latch_the_queue_shut() {
    let script = Script::new();
    let (inner, _) = served(&script, |request, _| match request {
        0 => Step::answer(0).after(ms(900)),
        _ => Step::answer(1).after(ms(10)),
    });
    let queue = QueueLayer::new(1).call_timeout(secs(1));
    // Typical: 900 ms, against an allowance of 1 000.
    let service = queue.layer(inner.clone());
    for _ in 0..40 {
        drop((spawn(&service, 0), spawn(&service, 0)));
        tokio::time::sleep(secs(2)).await;
    }
    // Fast again: each of a burst of waiting calls is served.
    let calls: Vec<_> = (0..40).map(|_| spawn(&service, 1)).collect();
    let mut served = 0;
    for call in calls {
        served += usize::from(call.await.unwrap().is_ok());
    }
    assert_eq!(served, 40);
}

#[tokio::test(start_paused = true)]
async fn q7c_what_is_known_of_the_last_failure_is_in_the_rejection() {
    let script = Script::<u32>::new().fail("down").never();
    let queue = QueueLayer::new(1).call_timeout(secs(2)).retry(retries(3, ms(500)));
    let error = queue.layer(script.service::<u32>()).oneshot(0).await.unwrap_err();
    assert_eq!(Rejection::find(&*error), Some(&deadline(2, secs(2), Some(FailureKind::Transient))));
    // In boxed mode the last error is its source.
    assert_eq!(error.source().and_then(|source| source.downcast_ref()), Some(&Failure::from("down")));
    nothing_left(&queue.handle());
}

#[tokio::test(start_paused = true)]
async fn q7c_a_call_that_comes_back_to_a_full_line_ends_at_its_deadline() {
    let script = Script::new();
    let (inner, _) = served(&script, |request, _| match request {
        0 => Step::fail("down"),
        _ => Step::never(),
    });
    let queue = QueueLayer::new(1).retry(retries(3, ms(500)));
    let service = queue.clone().call_timeout(secs(2)).layer(inner.clone());
    let call = spawn(&service, 0);
    settle().await;
    let other = spawn(&queue.layer(inner), 1);
    assert_eq!(rejection(call.await.unwrap()), deadline(1, secs(2), Some(FailureKind::Transient)));
    other.abort();
}

/// A request that says by when it wants to be answered.
#[derive(Clone, Copy)]
struct By(Option<Instant>);

#[tokio::test(start_paused = true)]
async fn q7_the_earlier_of_the_two_deadlines_holds() {
    let script = Script::<u32>::new().never();
    let queue = QueueLayer::new(10).call_timeout(secs(2)).deadline_from(|by: &By| by.0);
    let service = queue.layer(script.service::<By>());
    for (by, ends) in [(None, 2_000), (Some(1_000), 1_000), (Some(5_000), 2_000), (Some(0), 0)] {
        let since = Since::start();
        let call = service.clone().oneshot(By(by.map(|by| Instant::now() + ms(by))));
        let Rejection::Deadline { elapsed, .. } = rejection(call.await) else { panic!("no deadline") };
        assert_eq!((since.ms(), elapsed), (ends, ms(ends)), "{by:?}");
    }
    // Long past.
    tokio::time::sleep(secs(10)).await;
    let past = Instant::now() - secs(5);
    assert_eq!(rejection(now(service.oneshot(By(Some(past))))), deadline(0, ms(0), None));
    // The one without, and the two whose deadline lay ahead, ran.
    assert_eq!(script.calls(), 3);
    nothing_left(&queue.handle());
}

#[tokio::test(start_paused = true)]
async fn q7_a_deadline_may_come_from_the_request_alone() {
    let script = Script::<u32>::new().never();
    let queue = QueueLayer::new(1).deadline_from(|by: &By| by.0);
    let since = Since::start();
    let result = queue.layer(script.service::<By>()).oneshot(By(Some(Instant::now() + ms(300)))).await;
    assert_eq!((rejection(result), since.ms()), (deadline(1, ms(300), None), 300));
}

#[tokio::test(start_paused = true)]
async fn q7_case_k9_an_attempt_that_is_cut_may_be_retried() {
    let script = Script::new().never().answer(7);
    let queue = QueueLayer::new(1).attempt_timeout(secs(1)).retry(retries(2, ms(100)));
    let since = Since::start();
    assert_eq!(queue.layer(script.service::<u32>()).oneshot(0).await.unwrap(), 7);
    assert_eq!((since.ms(), script.ends()), (1_100, vec![ms(1_000), ms(1_100)]));
}

#[tokio::test(start_paused = true)]
async fn q7_case_k8_each_attempt_has_the_same_time() {
    let script = Script::<u32>::new().never();
    let queue = QueueLayer::new(1).attempt_timeout(secs(1)).retry(retries(3, ms(100)));
    let result = queue.layer(script.service::<u32>()).oneshot(0).await;
    let Rejection::AttemptTimeout { attempts: 3, elapsed } = rejection(result) else { panic!("no timeout") };
    assert_eq!(elapsed, ms(3_200));
    assert_eq!(script.starts(), [0, 1_100, 2_200].map(ms));
    assert_eq!(script.ends(), [1_000, 2_100, 3_200].map(ms));
    assert_eq!(queue.handle().stats().failed, 1);
}

#[tokio::test(start_paused = true)]
async fn q7a_an_attempt_that_was_cut_is_typical_too() {
    let script = Script::<u32>::new().never();
    let queue =
        QueueLayer::new(1).attempt_timeout(secs(1)).call_timeout(ms(2_099)).retry(retries(3, ms(100)));
    // 1 000 + 100 + 1 000: not within 2 099.
    let result = queue.layer(script.service::<u32>()).oneshot(0).await;
    assert_eq!(rejection(result), Rejection::AttemptTimeout { attempts: 1, elapsed: secs(1) });
}

#[tokio::test(start_paused = true)]
async fn q7_case_k8_unless_the_deadline_is_nearer() {
    // The first failure is quick, so that another attempt seems to fit.
    let script = Script::<u32>::new().fail("down").never();
    let queue =
        QueueLayer::new(1).attempt_timeout(secs(1)).call_timeout(ms(1_500)).retry(retries(3, secs(1)));
    let since = Since::start();
    let result = queue.layer(script.service::<u32>()).oneshot(0).await;
    assert_eq!(rejection(result), deadline(2, ms(1_500), Some(FailureKind::Transient)));
    assert_eq!(since.ms(), 1_500);
}

#[tokio::test(start_paused = true)]
async fn q7_case_b3_case_k10_neither_the_line_nor_readiness_is_charged_to_the_attempt() {
    let script = Script::new().answer(0).delay(ms(900));
    let queue = QueueLayer::new(1).attempt_timeout(secs(1));
    let service = queue.layer(script.service::<u32>());
    let calls: Vec<_> = (0..5).map(|n| spawn(&service, n)).collect();
    for call in calls {
        call.await.unwrap().unwrap();
    }
    assert_eq!(script.ends().last(), Some(&ms(4_500)));
}

#[tokio::test(start_paused = true)]
async fn case_b3_a_stay_in_the_line_may_be_limited_each_time_anew() {
    let script = Script::new();
    let (inner, _) = served(&script, |request, _| match request {
        0 => Step::fail("down").after(ms(400)),
        _ => Step::answer(1).after(ms(800)),
    });
    let queue = QueueLayer::new(1).queue_timeout(ms(500)).retry(retries(3, ms(100)));
    let handle = queue.handle();
    let service = queue.layer(inner);
    let since = Since::start();
    let retried = spawn(&service, 0);
    settle().await;
    // Waits 400, then runs until 1 200.
    let waits = spawn(&service, 1);
    settle().await;
    // Waits 500.
    let Rejection::QueueTimeout { waited, attempts: 0 } = rejection(service.clone().oneshot(2).await) else {
        panic!("no timeout")
    };
    assert_eq!((waited, since.ms()), (ms(500), 500));
    // In the line from 500 on: its first stay was nothing, this one is as long as it may be.
    let Rejection::QueueTimeout { waited, attempts: 1 } = rejection(retried.await.unwrap()) else {
        panic!("no timeout")
    };
    assert_eq!((waited, since.ms()), (ms(500), 1_000));
    waits.await.unwrap().unwrap();
    assert_eq!((since.ms(), handle.stats().rejected.queue_timeout), (1_200, 2));
    nothing_left(&handle);
}

#[tokio::test(start_paused = true)]
async fn never_is_never_everywhere() {
    let never = Duration::MAX;
    let script = Script::new();
    let (inner, _) = served(&script, |request, before| match before {
        0 => Step::fail("down").after(secs(86_400)),
        _ => Step::answer(request),
    });
    let queue = QueueLayer::new(1)
        .queue_timeout(never)
        .attempt_timeout(never)
        .call_timeout(never)
        .rate(1_000, never)
        .hold_on_retry_after(never)
        .slack(u32::MAX)
        .retry(retries(2, secs(86_400)).max_retry_after(never));
    let service = queue.layer(inner);
    let (a, b) = (spawn(&service, 0), spawn(&service, 1));
    a.await.unwrap().unwrap();
    b.await.unwrap().unwrap();
    nothing_left(&queue.handle());

    // Nor is nearly never anything else.
    let nearly = Duration::MAX - Duration::from_nanos(1);
    let script = Script::new().answer(0).delay(ms(10));
    let queue = QueueLayer::new(1).queue_timeout(nearly).attempt_timeout(nearly).call_timeout(nearly);
    let service = queue.layer(script.service::<u32>());
    let (a, b) = (spawn(&service, 0), spawn(&service, 1));
    a.await.unwrap().unwrap();
    b.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_delay_without_end_is_one_that_can_be_cleared() {
    let script = Script::<u32>::new().fail("down");
    let queue = QueueLayer::new(1).retry(retries(2, Duration::MAX));
    let mut call = by_hand(queue.layer(script.service::<u32>()).call(0));
    assert!(call.poll().is_pending());
    tokio::time::advance(secs(100_000_000)).await;
    assert_eq!(queue.handle().stats().deferred, 1);
    assert_eq!(queue.handle().clear("x"), 1);
    assert!(call.is_woken() && call.poll().is_ready());
}

#[tokio::test(start_paused = true)]
async fn no_time_at_all_ends_at_once() {
    let script = Script::new().answer(0).hold();
    let queue = QueueLayer::new(1);
    let since = Since::start();
    let of = |queue: QueueLayer| queue.layer(script.service::<u32>());

    assert_eq!(
        rejection(of(queue.clone().call_timeout(Duration::ZERO)).oneshot(0).await),
        deadline(0, Duration::ZERO, None)
    );
    assert_eq!(script.calls(), 0);
    // A call that need not wait is no longer in the line than it may be.
    let running = spawn(&of(queue.clone().queue_timeout(Duration::ZERO)), 0);
    settle().await;
    assert_eq!(script.running(), 1);
    let Rejection::QueueTimeout { waited: Duration::ZERO, .. } =
        rejection(of(queue.clone().queue_timeout(Duration::ZERO)).oneshot(0).await)
    else {
        panic!("no timeout")
    };
    script.release_all();
    running.await.unwrap().unwrap();
    let result = of(queue.clone().attempt_timeout(Duration::ZERO)).oneshot(0).await;
    let Rejection::AttemptTimeout { attempts: 1, .. } = rejection(result) else { panic!("no timeout") };
    assert_eq!(since.ms(), 0);
    nothing_left(&queue.handle());
}

#[tokio::test(start_paused = true)]
async fn a_retry_after_longer_than_the_deadline_leaves_is_not_waited_for() {
    let script = Script::new().answer(429);
    let policy =
        retries(3, ms(1)).classify(|_: &Result<u32, Failure>| Verdict::throttled().after(Some(secs(7))));
    let queue = QueueLayer::new(1).call_timeout(secs(5)).retry(policy);
    let since = Since::start();
    // R5, R8: the real response, at once.
    assert_eq!(queue.layer(script.service::<u32>()).oneshot(0).await.unwrap(), 429);
    assert_eq!((since.ms(), script.calls()), (0, 1));
}
