//! How a queue's rejections reach the caller, and what calls ask for themselves.
#![cfg(feature = "queue")]

use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::Instant;
use tower::{BoxError, Layer, Service, ServiceExt, service_fn};
use tower_sluice::queue::{CallOptions, Mode, QueueLayer, Slot, Wrap};
use tower_sluice::reject::{Answer, Boxed, Rejection};
use tower_sluice_test::{Script, Step, by_hand};

mod queue_kit;
use queue_kit::*;

/// An error of the user's own, which can be a rejection.
#[derive(Clone, Debug, PartialEq)]
enum Error {
    Rejected(Rejection),
    Upstream(u32),
}

impl From<Rejection> for Error {
    fn from(rejection: Rejection) -> Self {
        Self::Rejected(rejection)
    }
}

#[tokio::test(start_paused = true)]
async fn case_m5_typed_keeps_the_inner_error_and_boxes_nothing() {
    let script = Script::<u32, Error>::typed().step(Step::fail_with(|| Error::Upstream(3)).held()).hold();
    let queue = QueueLayer::new(1).max_waiting(0).typed();
    let mut service = queue.layer(script.service::<u32>());
    let running = spawn(&service, 0);
    settle().await;
    let full = Rejection::Full { limit: 1, waiting: 0, retry_after: None };
    assert_eq!(now(service.call(1)), Err(Error::Rejected(full)));
    script.open();
    assert_eq!(running.await.unwrap(), Err(Error::Upstream(3)));
    queue.handle().close();
    assert_eq!(now(service.call(1)), Err(Error::Rejected(Rejection::Closed)));
}

#[tokio::test(start_paused = true)]
async fn case_m1_answered_the_error_stays_infallible() {
    let script = Script::<String, Infallible>::typed().answer("served".to_owned()).hold();
    let queue = QueueLayer::new(1)
        .max_waiting(1)
        .queue_timeout(ms(100))
        .respond_with(|rejection: &Rejection| format!("503 {}", rejection.as_str()));
    let handle = queue.handle();
    let service = queue.layer(script.service::<u32>());
    let running = spawn(&service, 0);
    settle().await;
    let (timed_out, cleared) = (spawn(&service, 1), async {
        tokio::time::sleep(ms(100)).await;
        let call = spawn(&service, 2);
        settle().await;
        handle.clear("x");
        call.await.unwrap()
    });
    settle().await;
    let Ok(full) = service.clone().oneshot(3).await;
    let Ok(cleared) = cleared.await;
    let Ok(timed_out) = timed_out.await.unwrap();
    handle.close();
    let Ok(closed) = service.clone().oneshot(4).await;
    script.open();
    let Ok(served) = running.await.unwrap();
    assert_eq!(
        [full, timed_out, cleared, closed, served],
        ["503 full", "503 queue_timeout", "503 cleared", "503 closed", "served"]
    );
}

#[derive(Debug)]
struct Behind(BoxError);

impl std::fmt::Display for Behind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("behind it lies another")
    }
}

impl std::error::Error for Behind {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&*self.0)
    }
}

#[tokio::test(start_paused = true)]
async fn boxed_rejections_are_found_and_say_what_happened() {
    let script = Script::new().answer(7).hold();
    let queue = QueueLayer::new(1).max_waiting(0);
    let service = queue.layer(script.service::<u32>());
    let running = spawn(&service, 0);
    settle().await;
    let error: BoxError = service.clone().oneshot(1).await.unwrap_err();
    assert_eq!(error.to_string(), "the queue is full: limit 1, 0 waiting");
    assert!(error.downcast_ref::<Rejection>().is_some());
    // Also behind an error of somebody else.
    let service = tower::buffer::Buffer::new(queue.layer(script.service::<u32>()), 1);
    let behind = service.map_err(Behind).oneshot(1).await.unwrap_err();
    assert!(matches!(Rejection::find(&behind), Some(Rejection::Full { .. })), "{behind:?}");
    script.open();
    running.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn r8_a_failure_that_is_also_a_response_is_not_answered_instead() {
    // A 500 that cannot be retried in time comes back as it is, whatever `respond_with` would have said.
    let script = Script::<u32, Infallible>::typed().answer(500);
    let queue = QueueLayer::new(1)
        .call_timeout(secs(1))
        .retry(retries(3, secs(5)).classify(|result: &Result<u32, Infallible>| match result {
            Ok(500) => tower_sluice::verdict::Verdict::transient(),
            _ => tower_sluice::verdict::Verdict::Success,
        }))
        .respond_with(|_: &Rejection| 503);
    let Ok(answer) = queue.layer(script.service::<u32>()).oneshot(0).await;
    assert_eq!(answer, 500);
}

#[tokio::test(start_paused = true)]
async fn q7_a_deadline_is_read_before_and_after_the_answer_is_chosen() {
    let script = Script::<u32, Infallible>::typed().never();
    let reads: fn(&u32) -> Option<Instant> = |after| Some(Instant::now() + ms(u64::from(*after)));
    let early = QueueLayer::new(1).deadline_from(reads).respond_with(|_: &Rejection| 504);
    let late = QueueLayer::new(1).respond_with(|_: &Rejection| 504).deadline_from(reads);
    let since = Since::start();
    let Ok(answer) = early.layer(script.service::<u32>()).oneshot(30).await;
    assert_eq!((answer, since.ms()), (504, 30));
    let Ok(answer) = late.layer(script.service::<u32>()).oneshot(30).await;
    assert_eq!((answer, since.ms()), (504, 60));
}

/// A request with options of its own.
#[derive(Clone, Debug)]
struct Request {
    options: CallOptions,
}

impl From<CallOptions> for Request {
    fn from(options: CallOptions) -> Self {
        Self { options }
    }
}

/// Boxed, with the options of the request; and, if so set, with slots that go with the response.
#[derive(Clone, Copy)]
struct Reads<const HOLDS: bool>;

impl<const HOLDS: bool> Wrap for Reads<HOLDS> {
    type Inner<S> = S;
    type With<A> = A;

    fn wrap<S>(&self, service: S) -> S {
        service
    }

    fn with<A>(self, answer: A) -> A {
        answer
    }
}

/// An answer with the slot that it holds, if it does.
struct Body(u32, Option<Slot>);

impl std::fmt::Debug for Body {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Body").field(&self.0).field(&self.1.is_some()).finish()
    }
}

impl<const HOLDS: bool, E: Into<BoxError>> Answer<u32, E> for Reads<HOLDS> {
    type Response = Body;
    type Error = BoxError;
    type Kept = BoxError;

    fn response(&self, response: u32) -> Body {
        Body(response, None)
    }

    fn error(&self, error: E) -> BoxError {
        error.into()
    }

    fn keep(&self, error: E) -> BoxError {
        error.into()
    }

    fn reject(&self, rejection: Rejection, last: Option<BoxError>) -> Result<Body, BoxError> {
        Answer::<u32, E>::reject(&Boxed, rejection, last).map(|answer: u32| Body(answer, None))
    }
}

impl<const HOLDS: bool, E: Into<BoxError>> Mode<Request, u32, E> for Reads<HOLDS> {
    const HOLDS: bool = HOLDS;

    fn options(&self, request: &Request) -> CallOptions {
        request.options.clone()
    }

    fn hold(&self, response: u32, slot: Slot) -> Body {
        Body(response, Some(slot))
    }
}

#[tokio::test(start_paused = true)]
async fn q7_h6_a_timeout_of_the_call_replaces_the_layers_longer_or_shorter() {
    let script = Script::<u32>::new().never();
    let queue = QueueLayer::new(10).call_timeout(secs(5)).attempt_timeout(secs(2)).answer(Reads::<false>);
    let service = queue.layer(script.service::<Request>());
    let at = |after| Instant::now() + after;
    for (options, ends, why) in [
        (CallOptions::default(), 2_000, "attempt_timeout"),
        (CallOptions::timeout(secs(1)), 1_000, "deadline"),
        // Longer than both: neither holds.
        (CallOptions::timeout(secs(60)), 60_000, "deadline"),
        // A deadline only shortens...
        (CallOptions::deadline(at(secs(1))), 1_000, "deadline"),
        // ...and does nothing beside a timeout of the call.
        (
            {
                let mut both = CallOptions::timeout(secs(30));
                both.deadline = Some(at(secs(3)));
                both
            },
            30_000,
            "deadline",
        ),
        (CallOptions::timeout(Duration::ZERO), 0, "deadline"),
    ] {
        let options = match options.deadline {
            // The clock has moved since.
            Some(_) if options.timeout.is_none() => CallOptions::deadline(at(secs(1))),
            _ => options,
        };
        let since = Since::start();
        let result = service.clone().oneshot(options.clone().into()).await;
        assert_eq!((rejection(result).as_str(), since.ms()), (why, ends), "{options:?}");
    }
    // For ever.
    let mut endless = by_hand(service.clone().call(CallOptions::timeout(Duration::MAX).into()));
    assert!(endless.poll().is_pending());
    tokio::time::advance(secs(1_000_000)).await;
    assert!(endless.poll().is_pending());
}

#[tokio::test(start_paused = true)]
async fn h6_a_call_may_do_without_retries() {
    let script = Script::<u32>::new().fail("down");
    let queue = QueueLayer::new(1).retry(retries(3, ms(1))).answer(Reads::<false>);
    let service = queue.layer(script.service::<Request>());
    let error = service.clone().oneshot(CallOptions::default().no_retry().into()).await.unwrap_err();
    assert_eq!((error.to_string().as_str(), script.calls()), ("down", 1));
    service.oneshot(CallOptions::default().into()).await.unwrap_err();
    assert_eq!(script.calls(), 4);
}

#[tokio::test(start_paused = true)]
async fn h6_a_call_may_name_its_class() {
    let script = Script::new().answer(7);
    let queue = QueueLayer::new(1).answer(Reads::<false>);
    let feed = queue.class("feed").admit_while(|| false);
    let service = queue.layer(script.service::<Request>());
    let shed = rejection(service.clone().oneshot(CallOptions::class("feed").into()).await);
    assert_eq!(shed, Rejection::Shed { level: None });
    assert_eq!((feed.stats().shed, queue.handle().stats().rejected.shed), (1, 1));
    // A name that no class has is ignored.
    service.oneshot(CallOptions::class("fed").into()).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn q16_case_a6_case_a7_a_slot_may_go_with_the_response() {
    let call = || Request::from(CallOptions::default());
    let script = Script::new().answer(7);
    let queue = QueueLayer::new(1).answer(Reads::<false>);
    let service = queue.layer(script.service::<Request>());
    let (one, other) = (service.clone().oneshot(call()).await, service.oneshot(call()).await);
    assert!(one.unwrap().1.is_none() && other.unwrap().1.is_none());

    let script = Script::new().answer(7);
    let queue = QueueLayer::new(1).answer(Reads::<true>);
    let (handle, service) = (queue.handle(), queue.layer(script.service::<Request>()));
    let body = service.clone().oneshot(call()).await.unwrap();
    assert_eq!((handle.stats().running, handle.stats().succeeded), (1, 0));
    let next = spawn(&service, call());
    settle().await;
    assert_eq!((handle.stats().queued, script.calls()), (1, 1));
    tokio::time::sleep(secs(3)).await;
    // The oldest body is seen.
    assert_eq!(handle.stats().oldest_running, Some(secs(3)));
    drop(body);
    let next = next.await.unwrap().unwrap();
    assert_eq!((handle.stats().running, handle.stats().succeeded), (1, 1));

    // Q10: a drain waits for bodies, too, and no longer than its grace.
    let drained = handle.drain(secs(5)).await;
    assert_eq!((drained.cleared, drained.still_running), (0, 1));
    let mut again = by_hand(handle.drain(secs(5)));
    assert!(again.poll().is_pending());
    drop(next);
    assert!(again.is_woken() && again.poll().is_ready());
    nothing_left(&handle);
    assert_eq!(handle.stats().succeeded, 2);
}

#[tokio::test(start_paused = true)]
async fn q16_q9_a_body_that_is_read_is_not_cleared_nor_stopped_by_a_pause() {
    let script = Script::new().answer(7);
    let queue = QueueLayer::new(1).answer(Reads::<true>);
    let (handle, service) = (queue.handle(), queue.layer(script.service::<Request>()));
    let body = service.oneshot(CallOptions::default().into()).await.unwrap();
    handle.pause();
    assert_eq!(handle.clear("x"), 0);
    assert_eq!((handle.stats().running, body.0), (1, 7));
    // The body may end on another thread, and after all handles and services.
    drop((queue, handle));
    std::thread::spawn(move || drop(body)).join().unwrap();
}

#[tokio::test(start_paused = true)]
async fn q16_a_failed_response_that_is_retried_holds_no_slot() {
    let script = Script::new().answer(500).answer(200);
    let policy =
        retries(2, ms(10)).classify(|result: &Result<u32, tower_sluice_test::Failure>| match result {
            Ok(500) => tower_sluice::verdict::Verdict::transient(),
            _ => tower_sluice::verdict::Verdict::Success,
        });
    let queue = QueueLayer::new(1).retry(policy).answer(Reads::<true>);
    let (handle, service) = (queue.handle(), queue.layer(script.service::<Request>()));
    let call = spawn(&service, CallOptions::default().into());
    settle().await;
    assert_eq!((handle.stats().running, handle.stats().deferred), (0, 1));
    let body = call.await.unwrap().unwrap();
    assert_eq!((body.0, handle.stats().running), (200, 1));
}

/// Below a queue everything else keeps its type, and the queue goes into any stack.
#[tokio::test(start_paused = true)]
async fn a_queue_in_a_stack_of_towers_own_layers() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let notes = seen.clone();
    let service = tower::ServiceBuilder::new()
        .concurrency_limit(10)
        .layer(QueueLayer::new(2).retry(retries(2, ms(10))))
        .timeout(ms(50))
        .map_request(move |n: u32| {
            notes.lock().unwrap().push(n);
            n + 1
        })
        .service(service_fn(|n: u32| async move {
            if n == 1 {
                std::future::pending::<()>().await;
            }
            Ok::<_, Infallible>(n)
        }));
    assert_eq!(service.clone().oneshot(5).await.unwrap(), 6);
    // tower's timeout lies below: an attempt's failure like any other.
    assert!(service.oneshot(0).await.unwrap_err().is::<tower::timeout::error::Elapsed>());
    assert_eq!(*seen.lock().unwrap(), [5, 0, 0]);
}
