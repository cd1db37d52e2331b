//! The scripted service, as a test sees it (T2).

use std::convert::Infallible;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tokio::time::advance;
use tower::{Service, ServiceExt};
use tower_sluice_test::script::{Outcome, Scripted};
use tower_sluice_test::{Failure, Script, Step, by_hand};

fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

fn ready<Req, A, E, Res>(service: &mut Scripted<Req, A, E, Res>) -> Poll<Result<(), E>> {
    service.poll_ready(&mut Context::from_waker(Waker::noop()))
}

#[tokio::test(start_paused = true)]
async fn steps_come_in_order_and_the_last_one_repeats() {
    let script = Script::new().answer(1).times(2).fail("no").answer(3);
    let mut service = script.service();
    let mut results = Vec::new();
    for _ in 0..5 {
        results.push(service.ready().await.unwrap().call(()).await);
    }
    assert_eq!(results, [Ok(1), Ok(1), Err(Failure::from("no")), Ok(3), Ok(3)]);
}

#[tokio::test(start_paused = true)]
async fn times_are_exact_and_counted_from_the_making_of_the_script() {
    let script = Script::new().answer(1).after(ms(20)).answer(2).delay(ms(7));
    advance(ms(100)).await;
    for _ in 0..2 {
        script.service().oneshot(()).await.unwrap();
    }
    assert_eq!(script.starts(), [ms(100), ms(120)]);
    assert_eq!(script.ends(), [ms(120), ms(127)]);
}

#[tokio::test(start_paused = true)]
async fn the_peak_counts_what_runs_at_once_and_a_drop_ends_it() {
    let script: Script<()> = Script::new().never();
    let mut service = script.service();
    let mut attempts = Vec::new();
    for _ in 0..3 {
        attempts.push(service.ready().await.unwrap().call(()));
        advance(ms(10)).await;
    }
    assert_eq!((script.running(), script.futures(), script.peak()), (3, 3, 3));
    drop(attempts.remove(1));
    assert_eq!((script.running(), script.futures(), script.peak()), (2, 2, 3));
    let attempt = &script.attempts()[1];
    assert_eq!((attempt.start, attempt.end, attempt.outcome), (ms(10), Some(ms(30)), Outcome::Dropped));
    assert_eq!(script.attempts()[0].outcome, Outcome::Running);
}

#[tokio::test(start_paused = true)]
async fn an_ended_future_that_is_kept_does_not_run_but_is_seen() {
    let script = Script::new().answer(1);
    let mut service = script.service();
    let mut attempt = by_hand(service.ready().await.unwrap().call(()));
    assert!(matches!(attempt.poll(), Poll::Ready(Ok(_))));
    assert_eq!((script.running(), script.futures()), (0, 1));
    let again = catch_unwind(AssertUnwindSafe(|| attempt.poll())).unwrap_err();
    assert_eq!(*again.downcast::<String>().unwrap(), "attempt 0 was polled after it had ended");
    assert_eq!(script.violations(), ["attempt 0 was polled after it had ended"]);
    drop(attempt);
    assert_eq!(script.futures(), 0);
    assert_eq!(script.attempts()[0].outcome, Outcome::Answered);
}

/// F1: the panic of a service whose readiness was never polled, with a script instead of a Buffer.
#[tokio::test(start_paused = true)]
async fn case_f1_readiness_is_lost_on_clone_and_spent_by_a_call() {
    let script = Script::new().answer(1);
    let mut service = script.service();
    assert!(matches!(ready(&mut service), Poll::Ready(Ok(_))));
    let unready = |mut service: Scripted<(), i32, Failure>| {
        let panic = catch_unwind(AssertUnwindSafe(|| drop(service.call(())))).unwrap_err();
        panic.downcast::<String>().unwrap()
    };
    assert!(unready(service.clone()).starts_with("called without readiness: clone 1 was not"));
    service.call(()).await.unwrap();
    assert!(unready(service).starts_with("called without readiness: clone 0 was not"));
    assert_eq!(script.violations().len(), 2);
    assert_eq!(script.calls(), 1);
}

#[tokio::test(start_paused = true)]
async fn readiness_is_a_reservation_that_a_call_or_a_drop_gives_back() {
    let script: Script<()> = Script::new().never().reservations(2);
    let mut services: Vec<_> = (0..3).map(|_| script.service::<()>()).collect();
    assert!(matches!(ready(&mut services[0]), Poll::Ready(Ok(_))));
    assert_eq!(ready(&mut services[0]), Poll::Ready(Ok(())), "ready stays ready");
    assert!(matches!(ready(&mut services[1]), Poll::Ready(Ok(_))));
    assert_eq!((script.reserved(), script.ready_polls()), (2, 3));

    let mut third = services.pop().unwrap();
    let mut third = by_hand(third.ready());
    assert!(third.poll().is_pending());
    assert_eq!(script.waiting_ready(), 1);
    services.pop();
    assert!(third.is_woken());
    assert!(matches!(third.poll(), Poll::Ready(Ok(_))));
    assert_eq!((script.reserved(), script.waiting_ready()), (2, 0));

    let mut fourth = script.service::<()>();
    let mut fourth = by_hand(fourth.ready());
    assert!(fourth.poll().is_pending());
    let _running = services[0].call(());
    assert!(fourth.is_woken());
    assert!(matches!(fourth.poll(), Poll::Ready(Ok(_))));
}

#[tokio::test(start_paused = true)]
async fn readiness_follows_its_own_track() {
    let script = Script::new().answer(1).fail_ready("gone").ready_after(ms(50)).ready_held().ready();
    let mut service = script.service::<()>();
    assert_eq!(ready(&mut service), Poll::Ready(Err(Failure::from("gone"))));

    let mut polled = by_hand(service.ready());
    assert!(polled.poll().is_pending());
    advance(ms(50)).await;
    assert!(polled.is_woken());
    assert!(matches!(polled.poll(), Poll::Ready(Ok(_))));
    drop(polled);
    drop(service.call(()));

    let mut polled = by_hand(service.ready());
    assert!(polled.poll().is_pending());
    advance(Duration::from_secs(3600)).await;
    assert!(!polled.is_woken());
    assert_eq!((script.release_ready(5), script.release_ready(5)), (1, 0));
    assert!(polled.is_woken());
    assert!(matches!(polled.poll(), Poll::Ready(Ok(_))));
    drop(polled);
    drop(service.call(()));

    assert!(matches!(ready(&mut service), Poll::Ready(Ok(_))));
}

#[tokio::test(start_paused = true)]
async fn a_dropped_clone_that_waited_is_forgotten() {
    let script = Script::new().answer(1).ready_held().ready();
    let mut service = script.service::<()>();
    assert!(ready(&mut service).is_pending());
    assert_eq!((script.waiting_ready(), script.instances()), (1, 1));
    drop(service);
    assert_eq!((script.waiting_ready(), script.instances()), (0, 0));
    assert_eq!(script.release_ready(1), 0);
}

#[tokio::test(start_paused = true)]
async fn held_attempts_wait_for_the_test_oldest_first() {
    let script = Script::new().answer("early").answer("late").after(ms(5)).hold();
    let mut service = script.service::<()>();
    let mut first = by_hand(service.ready().await.unwrap().call(()));
    let mut second = by_hand(service.ready().await.unwrap().call(()));
    assert!(first.poll().is_pending());
    assert!(second.poll().is_pending());
    advance(Duration::from_secs(60)).await;
    assert!(!first.is_woken() && !second.is_woken());
    assert_eq!(script.held_attempts(), 2);

    assert_eq!(script.release(1), 1);
    assert!(first.is_woken() && !second.is_woken());
    assert_eq!(first.poll(), Poll::Ready(Ok("early")));

    assert!(script.release_attempt(1) && !script.release_attempt(1) && !script.release_attempt(9));
    assert!(second.poll().is_pending(), "its time runs from the release");
    advance(ms(5)).await;
    assert_eq!(second.poll(), Poll::Ready(Ok("late")));
    assert_eq!(script.release_all(), 0);
}

#[tokio::test(start_paused = true)]
async fn an_attempt_released_before_its_first_poll_does_not_wait() {
    let script = Script::new().answer(1).held();
    let mut attempt = by_hand(script.service().ready_oneshot().await.unwrap().call(()));
    assert_eq!(script.release_all(), 1);
    assert!(matches!(attempt.poll(), Poll::Ready(Ok(_))));
}

#[tokio::test(start_paused = true)]
async fn open_holds_nothing_now_and_later() {
    let script = Script::new().answer(1).hold().ready_held();
    let waiting = tokio::spawn(script.service().oneshot(()));
    tokio::task::yield_now().await;
    assert_eq!(script.waiting_ready(), 1);
    script.open();
    assert_eq!(waiting.await.unwrap(), Ok(1));
    assert_eq!(script.service().oneshot(()).await, Ok(1));
}

#[tokio::test(start_paused = true)]
async fn the_test_may_end_an_attempt_in_any_stage() {
    let script = Script::new().answer(0).held().answer(1).after(Duration::MAX).never();
    let mut service = script.service::<()>();
    let mut attempts = Vec::new();
    for _ in 0..3 {
        let mut attempt = by_hand(service.ready().await.unwrap().call(()));
        assert!(attempt.poll().is_pending());
        attempts.push(attempt);
    }
    for (id, attempt) in attempts.iter_mut().enumerate() {
        assert!(script.end(id, Step::fail("reset").after(ms(1))));
        assert!(attempt.is_woken());
        assert!(attempt.poll().is_pending());
        advance(ms(1)).await;
        assert_eq!(attempt.poll(), Poll::Ready(Err(Failure::from("reset"))));
        assert!(!script.end(id, Step::never()));
    }
    assert!(!script.end(3, Step::never()));
}

#[tokio::test(start_paused = true)]
async fn panics_are_recorded_as_such() {
    let script: Script<()> = Script::new().panic("later").panic_in_call("at once");
    let mut service = script.service();
    let mut attempt = by_hand(service.ready().await.unwrap().call(()));
    assert_eq!(script.running(), 1);
    assert!(catch_unwind(AssertUnwindSafe(|| attempt.poll())).is_err());
    drop(attempt);
    service.ready().await.unwrap();
    assert!(catch_unwind(AssertUnwindSafe(|| drop(service.call(())))).is_err());
    let outcomes: Vec<_> = script.attempts().iter().map(|attempt| attempt.outcome).collect();
    assert_eq!(outcomes, [Outcome::Panicked, Outcome::Panicked]);
    assert_eq!((script.running(), script.futures(), script.reserved()), (0, 0, 0));
}

#[tokio::test(start_paused = true)]
async fn started_and_ended_wait_for_counts() {
    let began = tokio::time::Instant::now();
    let script = Script::new().answer(1).delay(ms(10));
    for n in 0..3 {
        let service = script.service();
        tokio::spawn(async move {
            tokio::time::sleep(ms(n)).await;
            service.oneshot(()).await
        });
    }
    script.started(2).await;
    assert_eq!(began.elapsed(), ms(1));
    script.ended(3).await;
    assert_eq!(began.elapsed(), ms(12));
    script.ended(1).await;
    assert_eq!(began.elapsed(), ms(12));
}

#[tokio::test(start_paused = true)]
async fn steps_may_depend_on_the_request() {
    let script = Script::new();
    let service = script.service_by(|request: &&str, n| match *request {
        "bad" => Step::fail(format!("bad, attempt {n}")),
        good => Step::answer(good.len()),
    });
    assert_eq!(service.clone().oneshot("four").await, Ok(4));
    assert_eq!(service.oneshot("bad").await, Err(Failure::from("bad, attempt 1")));
    assert_eq!(script.calls(), 2);
}

#[tokio::test(start_paused = true)]
async fn errors_of_any_type_and_none() {
    let boxed: Script<(), tower::BoxError> = Script::typed().fail_with(|| "boxed".into());
    assert_eq!(boxed.service().oneshot(()).await.unwrap_err().to_string(), "boxed");
    let sure: Script<u16, Infallible> = Script::typed().answer(204);
    assert_eq!(sure.service().oneshot(()).await, Ok(204));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_peak_is_exact_across_threads() {
    let script = Script::new().answer(0).hold();
    let calls: Vec<_> = (0..200).map(|n| tokio::spawn(script.service().oneshot(n))).collect();
    script.started(200).await;
    assert_eq!((script.peak(), script.running()), (200, 200));
    script.open();
    for call in calls {
        call.await.unwrap().unwrap();
    }
    assert_eq!((script.peak(), script.running(), script.calls()), (200, 0, 200));
}

#[test]
fn setters_that_cannot_be_right_panic() {
    let message = |f: fn() -> Script<u16>| {
        let panic = catch_unwind(f).unwrap_err();
        panic
            .downcast_ref::<String>()
            .cloned()
            .unwrap_or_else(|| panic.downcast_ref::<&str>().unwrap().to_string())
    };
    assert_eq!(message(|| Script::new().after(ms(1))), "after must follow a step");
    assert_eq!(message(|| Script::new().held()), "held must follow a step");
    assert_eq!(message(|| Script::new().times(2)), "times must follow a step");
    assert!(message(|| Script::new().answer(200).times(0)).starts_with("times is 0"));
    assert!(message(|| Script::new().reservations(0)).starts_with("reservations is 0"));
}
