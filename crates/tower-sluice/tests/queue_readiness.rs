//! Q3: `poll_ready` promises nothing and holds nothing; the inner service's readiness is asked for inside the call.
#![cfg(feature = "queue")]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use tower::buffer::Buffer;
use tower::limit::ConcurrencyLimit;
use tower::{Layer, Service, ServiceExt};
use tower_sluice::BoxError;
use tower_sluice::queue::{QueueLayer, ReadDeadline};
use tower_sluice::reject::Rejection;
use tower_sluice::verdict::{Failure as Verdicts, Repeat, Verdict};
use tower_sluice_test::{Check, Failure, Probe, Script, SpyWaker, Step, by_hand};

mod queue_kit;
use queue_kit::*;

/// One poll of the readiness.
fn poll_ready<S: Service<u32>>(service: &mut S) -> Poll<bool> {
    let (waker, _) = SpyWaker::new().build();
    service.poll_ready(&mut Context::from_waker(&waker)).map(|ready| ready.is_ok())
}

#[tokio::test(start_paused = true)]
async fn q3_readiness_is_at_once_in_every_state_and_never_asks_the_inner_service() {
    let script = Script::new().answer(0).hold().fail_ready("broken").ready();
    let queue = QueueLayer::new(1).max_waiting(0);
    let handle = queue.handle();
    let mut service = queue.layer(script.service::<u32>());
    let ready = |service: &mut _| assert_eq!(poll_ready(service), Poll::Ready(true));

    ready(&mut service);
    ready(&mut service);
    handle.pause();
    ready(&mut service);
    handle.resume();
    assert_eq!((script.ready_polls(), handle.stats().running), (0, 0));

    assert_eq!(service.call(0).await.unwrap_err().to_string(), "broken");
    let running = spawn(&service, 1);
    settle().await;
    // Full.
    let polls = script.ready_polls();
    ready(&mut service);
    let Rejection::Full { .. } = rejection(service.call(2).await) else { panic!("not full") };
    handle.close();
    ready(&mut service);
    assert_eq!(rejection(service.call(3).await), Rejection::Closed);
    assert_eq!(script.ready_polls(), polls);
    script.open();
    running.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn q3_case_f3_services_that_are_ready_and_idle_hold_no_slot() {
    let script = Script::new().answer(0).delay(ms(10));
    let queue = QueueLayer::new(2);
    let service = queue.layer(script.service::<u32>());
    let mut idle = [service.clone(), service.clone(), service.clone()];
    for service in &mut idle {
        service.ready().await.unwrap();
    }
    assert_eq!((queue.handle().stats().running, queue.handle().stats().reserved), (0, 0));
    let (a, b) = (spawn(&service, 0), spawn(&service, 1));
    a.await.unwrap().unwrap();
    b.await.unwrap().unwrap();
    assert_eq!(script.starts(), [ms(0), ms(0)]);
    drop(idle);
}

#[tokio::test(start_paused = true)]
async fn q3_case_f4_over_a_concurrency_limit_idle_services_do_not_starve_others() {
    let script = Script::new().answer(0).delay(ms(10));
    let service = QueueLayer::new(8).layer(ConcurrencyLimit::new(script.service::<u32>(), 2));
    let mut idle: Vec<_> = (0..50).map(|_| service.clone()).collect();
    for service in &mut idle {
        service.ready().await.unwrap();
    }
    assert_eq!(script.reserved(), 0);
    let calls: Vec<_> = (0..4).map(|n| spawn(&service, n)).collect();
    for call in calls {
        call.await.unwrap().unwrap();
    }
    assert_eq!(script.starts(), [0, 0, 10, 10].map(ms));
    drop(idle);
}

#[tokio::test(start_paused = true)]
async fn q3_case_f4_over_a_buffer_idle_services_do_not_starve_others() {
    let script = Script::new().answer(0).delay(ms(10));
    let service = QueueLayer::new(8).layer(Buffer::new(script.service::<u32>(), 2));
    let mut idle: Vec<_> = (0..50).map(|_| service.clone()).collect();
    for service in &mut idle {
        service.ready().await.unwrap();
    }
    let calls: Vec<_> = (0..8).map(|n| spawn(&service, n)).collect();
    for call in calls {
        call.await.unwrap().unwrap();
    }
    assert_eq!((script.calls(), script.peak()), (8, 8));
    drop(idle);
}

#[tokio::test(start_paused = true)]
async fn q3_case_f1_case_f2_each_attempt_is_made_on_a_service_that_was_polled_ready() {
    let retrying = QueueLayer::new(2).retry(retries(3, ms(5)));

    let script = Script::new().fail("down").times(2).answer(7);
    let plain = retrying.layer(script.service::<u32>());
    assert_eq!(plain.oneshot(0).await.unwrap(), 7);
    assert_eq!(script.violations(), Vec::<String>::new());

    let script = Script::new().fail("down").times(2).answer(7);
    let limited = retrying.layer(ConcurrencyLimit::new(script.service::<u32>(), 1));
    assert_eq!(limited.oneshot(0).await.unwrap(), 7);
    assert_eq!((script.calls(), script.reserved()), (3, 0));
    assert!(script.ready_polls() >= 3);

    let script = Script::new().fail("down").times(2).answer(7);
    let buffered = retrying.layer(Buffer::new(script.service::<u32>(), 1));
    assert_eq!(buffered.oneshot(0).await.unwrap(), 7);
    assert_eq!(script.calls(), 3);
    assert_eq!(script.violations(), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn q3_case_f5_a_retry_asks_for_readiness_only_after_its_delay_and_its_slot() {
    let script = Script::new().fail("down").answer(7);
    let queue = QueueLayer::new(1).retry(retries(2, ms(100)));
    let call = spawn(&queue.layer(script.service::<u32>()), 0);
    let since = Since::start();
    since.at(99).await;
    assert_eq!((script.ready_polls(), script.reserved(), script.calls()), (1, 0, 1));
    assert_eq!(call.await.unwrap().unwrap(), 7);
    assert_eq!((script.ready_polls(), script.calls()), (2, 2));
}

#[tokio::test(start_paused = true)]
async fn q3_an_error_of_the_inner_readiness_is_that_attempts_result_on_a_fresh_clone_next() {
    let script = Script::new().answer(7).fail_ready("no connection").ready();
    let queue = QueueLayer::new(1).retry(retries(2, ms(50)));
    let handle = queue.handle();
    let since = Since::start();
    assert_eq!(queue.layer(script.service::<u32>()).oneshot(0).await.unwrap(), 7);
    assert_eq!((since.ms(), script.calls()), (50, 1));
    // Clone 0 is the service, 1 failed, 2 or later was called.
    assert!(script.attempts()[0].instance >= 2, "{:?}", script.attempts());
    let stats = handle.stats();
    assert_eq!((stats.retries, stats.succeeded, stats.failed), (1, 1, 0));
    nothing_left(&handle);
}

/// Repeats what was surely not processed, and notes what it was asked.
#[derive(Clone, Default)]
struct OnlyUnprocessed(Arc<Mutex<Vec<bool>>>);

impl Repeat<u32> for OnlyUnprocessed {
    fn copy(&self, request: &u32) -> Option<u32> {
        Some(*request)
    }

    fn may_repeat(&self, _: &u32, failure: &Verdicts) -> bool {
        self.0.lock().unwrap().push(failure.processed);
        !failure.processed
    }
}

#[tokio::test(start_paused = true)]
async fn q3_an_error_of_the_inner_readiness_is_surely_not_processed() {
    let script = Script::new().fail("reset").fail_ready("no connection").ready();
    let repeat = OnlyUnprocessed::default();
    let policy = retries(5, ms(1)).repeat(repeat.clone()).classify(|result: &Result<u32, Failure>| {
        result.as_ref().map_or(Verdict::transient(), |_| Verdict::Success)
    });
    let error = QueueLayer::new(1).retry(policy).layer(script.service::<u32>()).oneshot(0).await.unwrap_err();
    // The classifier cannot know: the queue does. The second failure came from a call.
    assert_eq!(error.to_string(), "reset");
    assert_eq!(*repeat.0.lock().unwrap(), [false, true]);
    assert_eq!(script.calls(), 1);
}

#[tokio::test(start_paused = true)]
async fn q3_without_a_policy_the_caller_gets_the_error_of_the_inner_readiness() {
    let script = Script::new().answer(7).fail_ready("no connection").ready();
    let queue = QueueLayer::new(1);
    let service = queue.layer(script.service::<u32>());
    assert_eq!(service.clone().oneshot(0).await.unwrap_err().to_string(), "no connection");
    assert_eq!(service.oneshot(0).await.unwrap(), 7);
    assert_eq!(queue.handle().stats().failed, 1);
    nothing_left(&queue.handle());
}

#[tokio::test(start_paused = true)]
async fn q3_a_place_that_was_waited_for_counts_and_stays_until_the_call() {
    let script = Script::new().answer(0).hold();
    let queue = QueueLayer::new(1).max_waiting(1).wait_when_full();
    let handle = queue.handle();
    let service = queue.layer(script.service::<u32>());
    let (mut a, mut b, mut c) = (service.clone(), service.clone(), service.clone());

    assert_eq!(poll_ready(&mut a), Poll::Ready(true));
    assert_eq!(poll_ready(&mut a), Poll::Ready(true));
    assert_eq!(handle.stats().reserved, 1);
    assert_eq!(poll_ready(&mut b), Poll::Ready(true));
    assert_eq!(handle.stats().reserved, 2);
    assert_eq!(poll_ready(&mut c), Poll::Pending);
    // It has one, whatever happens to the others.
    assert_eq!(poll_ready(&mut a), Poll::Ready(true));
    // Two places: for a call without one there is no room, as in the default mode.
    let Rejection::Full { .. } = rejection(service.clone().call(9).await) else { panic!("not full") };

    // The place moves into the call, which runs though a place is all there was.
    let call = a.call(0);
    assert_eq!(poll_ready(&mut a), Poll::Pending);
    let call = tokio::spawn(call);
    settle().await;
    assert_eq!((handle.stats().running, handle.stats().reserved), (1, 1));
    script.release_all();
    call.await.unwrap().unwrap();
    nothing_but_reserved(&handle, 2);
}

/// Those that waited for a place were given what came free.
#[track_caller]
fn nothing_but_reserved(handle: &tower_sluice::queue::Handle, reserved: usize) {
    let stats = handle.stats();
    assert!(stats.is_idle(), "{stats:?}");
    assert_eq!(stats.reserved, reserved, "{stats:?}");
}

#[tokio::test(start_paused = true)]
async fn q3_a_place_is_given_up_on_drop_and_not_cloned() {
    let queue = QueueLayer::new(1).max_waiting(0).wait_when_full();
    let handle = queue.handle();
    let script = Script::new().answer(0).hold();
    let mut service = queue.layer(script.service::<u32>());

    assert_eq!(poll_ready(&mut service), Poll::Ready(true));
    let mut clone = service.clone();
    let mut waits = by_hand(clone.ready());
    assert!(waits.poll().is_pending());
    assert_eq!(handle.stats().reserved, 1);
    drop(service);
    assert!(waits.is_woken());
    assert!(waits.poll().is_ready());
    drop(waits);
    assert_eq!(handle.stats().reserved, 1);

    // A call that is dropped before its first poll gives its place up too.
    let call = clone.call(0);
    assert_eq!(poll_ready(&mut clone), Poll::Pending);
    drop(call);
    assert_eq!(poll_ready(&mut clone), Poll::Ready(true));
    drop(clone);
    nothing_left(&handle);
}

#[tokio::test(start_paused = true)]
async fn q13_a_panic_while_a_call_is_made_leaves_its_place_with_the_service() {
    let unreadable: ReadDeadline<u32> = |_| panic!("unreadable");
    let queue = QueueLayer::new(1).max_waiting(0).wait_when_full().deadline_from(unreadable);
    let handle = queue.handle();
    let mut service = queue.layer(Script::new().answer(0).service::<u32>());
    assert_eq!(poll_ready(&mut service), Poll::Ready(true));
    assert!(catch_unwind(AssertUnwindSafe(|| drop(service.call(0)))).is_err());
    nothing_but_reserved(&handle, 1);
    drop(service);
    nothing_left(&handle);
}

#[tokio::test(start_paused = true)]
async fn q3_a_call_that_is_turned_away_gives_its_place_up_with_its_answer() {
    let script = Script::new().answer(0);
    let late = QueueLayer::new(1).wait_when_full().call_timeout(ms(0));
    let mut service = late.layer(script.service::<u32>());
    assert_eq!(poll_ready(&mut service), Poll::Ready(true));
    let mut call = by_hand(service.call(0));
    let Poll::Ready(answer) = call.poll() else { panic!("pending") };
    let Rejection::Deadline { .. } = rejection(answer) else { panic!("not late") };
    // The future is still there.
    nothing_left(&late.handle());

    let shed = QueueLayer::new(1).wait_when_full();
    let mut service = shed.class("feed").admit_while(|| false).layer(script.service::<u32>());
    assert_eq!(poll_ready(&mut service), Poll::Ready(true));
    let mut call = by_hand(service.call(0));
    let Poll::Ready(answer) = call.poll() else { panic!("pending") };
    let Rejection::Shed { .. } = rejection(answer) else { panic!("not shed") };
    nothing_left(&shed.handle());
}

#[tokio::test(start_paused = true)]
async fn q3_who_waits_for_a_place_and_leaves_passes_it_on() {
    let queue = QueueLayer::new(1).max_waiting(0).wait_when_full();
    let script = Script::new().answer(0).hold();
    let mut holder = queue.layer(script.service::<u32>());
    let (mut first, mut second) = (holder.clone(), holder.clone());
    assert_eq!(poll_ready(&mut holder), Poll::Ready(true));
    let (waker, seen) = SpyWaker::new().build();
    assert!(first.poll_ready(&mut Context::from_waker(&waker)).is_pending());
    let mut waits = by_hand(second.ready());
    assert!(waits.poll().is_pending());

    drop(holder);
    // One place, one waker: in order.
    assert_eq!((seen.wakes(), waits.is_woken()), (1, false));
    // Woken, not polled, and gone.
    drop(first);
    assert!(waits.is_woken() && waits.poll().is_ready());
}

#[tokio::test(start_paused = true)]
async fn q3_q10_a_close_wakes_all_who_wait_for_a_place_as_ready() {
    let queue = QueueLayer::new(1).max_waiting(0).wait_when_full();
    let script = Script::new().answer(0).hold();
    let service = queue.layer(script.service::<u32>());
    let running = spawn(&service, 0);
    settle().await;
    let waiting: Vec<_> = (0..5).map(|n| spawn(&service, n)).collect();
    settle().await;
    assert_eq!(queue.handle().stats().reserved, 0);
    queue.handle().close();
    for call in waiting {
        assert_eq!(rejection(call.await.unwrap()), Rejection::Closed);
    }
    script.open();
    running.await.unwrap().unwrap();
    nothing_left(&queue.handle());
}

#[tokio::test(start_paused = true)]
async fn q3_a_wider_limit_makes_room_for_those_who_wait_for_a_place() {
    let queue = QueueLayer::new(1).max_waiting(0).wait_when_full();
    let script = Script::new().answer(0).hold();
    let service = queue.layer(script.service::<u32>());
    let calls: Vec<_> = (0..4).map(|n| spawn(&service, n)).collect();
    settle().await;
    assert_eq!(script.running(), 1);
    queue.handle().set_limit(3).unwrap();
    settle().await;
    assert_eq!(script.running(), 3);
    script.open();
    for call in calls {
        call.await.unwrap().unwrap();
    }
    assert_eq!(script.peak(), 3);
    nothing_left(&queue.handle());
}

#[tokio::test(start_paused = true)]
async fn q3_what_a_call_leaves_by_a_rejection_goes_to_who_waits_for_a_place() {
    let queue = QueueLayer::new(1).max_waiting(1).wait_when_full().queue_timeout(ms(20));
    let script = Script::new().answer(0).hold();
    let service = queue.layer(script.service::<u32>());
    let (running, queued, waits) = (spawn(&service, 0), spawn(&service, 1), spawn(&service, 2));
    let since = Since::start();
    let Rejection::QueueTimeout { .. } = rejection(queued.await.unwrap()) else { panic!("not timed out") };
    settle().await;
    assert_eq!((since.ms(), queue.handle().stats().queued), (20, 1));
    assert_eq!(queue.handle().clear("x"), 1);
    assert_eq!(rejection(waits.await.unwrap()), cleared("x"));
    script.open();
    running.await.unwrap().unwrap();
    nothing_left(&queue.handle());
}

#[tokio::test(start_paused = true)]
async fn q3_readiness_of_the_inner_service_is_awaited_within_the_call() {
    let script = Script::new().answer(7).ready_after(ms(30));
    let queue = QueueLayer::new(1);
    let since = Since::start();
    assert_eq!(queue.layer(script.service::<u32>()).oneshot(0).await.unwrap(), 7);
    assert_eq!((since.ms(), script.starts()), (30, vec![ms(30)]));
}

#[tokio::test(start_paused = true)]
async fn t2_the_contract_holds_for_every_kind_of_queue() {
    let probe = || Probe::new().also(Check::IdleReadiness);
    probe().check(|inner| QueueLayer::new(1).layer(inner)).await;
    probe().check(|inner| QueueLayer::new(2).retry(retries(3, ms(10))).layer(inner)).await;
    probe().check(|inner| QueueLayer::unlimited().layer(inner)).await;
    probe()
        .check(|inner| {
            QueueLayer::new(2)
                .rate(50, secs(1))
                .hold_on_retry_after(secs(1))
                .queue_timeout(secs(600))
                .attempt_timeout(secs(600))
                .call_timeout(secs(3_600))
                .retry(retries(2, ms(10)))
                .layer(inner)
        })
        .await;
    probe().check(|inner| QueueLayer::new(2).class("feed").layer(inner)).await;
    // A ready handle keeps its place: 200 places for 100 idle ones and those that call.
    probe().check(|inner| QueueLayer::new(2).max_waiting(198).wait_when_full().layer(inner)).await;
}

/// Errors that a policy must see as they are: `BoxError` has lost nothing.
#[tokio::test(start_paused = true)]
async fn q3_case_m5_over_a_buffer_a_policy_sees_the_real_error() {
    let script = Script::new().step(Step::fail("reset")).answer(7);
    let policy = retries(2, ms(1)).classify(|result: &Result<u32, BoxError>| match result {
        Err(error) if error.downcast_ref::<Failure>() == Some(&Failure::from("reset")) => {
            Verdict::transient()
        }
        Err(_) => Verdict::Fatal,
        Ok(_) => Verdict::Success,
    });
    let service = QueueLayer::new(1).retry(policy).layer(Buffer::new(script.service::<u32>(), 4));
    assert_eq!(service.oneshot(0).await.unwrap(), 7);
}
