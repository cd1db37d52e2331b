//! The ready-made stacks over a scripted service (H1, H5, H6, H7, R5, R8, R10), on the paused clock.

use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, Response};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full};
use tokio::time::Instant;
use tower::{Layer, Service, ServiceExt};
use tower_sluice_http::queue::CallOptions;
use tower_sluice_http::reject::Rejection;
use tower_sluice_http::verdict::Verdict;
use tower_sluice_http::{
    AttemptNumber, BoxError, HttpAnswer, HttpRetry, attempts, http_batch, http_client, http_retry,
    http_server, try_http_batch, try_http_client, try_http_server,
};
use tower_sluice_test::script::reply;
use tower_sluice_test::{Script, Step};

const fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

fn request(method: Method) -> Request<Full<Bytes>> {
    Request::builder().method(method).uri("/item").body(Full::from("content")).unwrap()
}

fn get() -> Request<Full<Bytes>> {
    request(Method::GET)
}

fn rejection(error: &BoxError) -> &Rejection {
    Rejection::find(&**error).expect("a rejection")
}

async fn text<B>(response: Response<B>) -> String
where
    B: http_body::Body,
    B::Error: std::fmt::Debug,
{
    String::from_utf8(response.into_body().collect().await.unwrap().to_bytes().to_vec()).unwrap()
}

/// Starts so many calls, and lets each go as far as it can.
async fn start<S>(service: &S, calls: usize) -> Vec<tokio::task::JoinHandle<Result<S::Response, S::Error>>>
where
    S: Service<Request<Full<Bytes>>> + Clone + Send + 'static,
    S::Response: Send,
    S::Error: Send,
    S::Future: Send,
{
    let calls = (0..calls).map(|_| tokio::spawn(service.clone().oneshot(get()))).collect();
    tokio::time::sleep(Duration::from_millis(1)).await;
    calls
}

#[tokio::test(start_paused = true)]
async fn h7_http_client_takes_on_16_times_the_limit_and_boxes_the_rejection() {
    let script = Script::new().answer(200).held();
    let queue = http_client(2);
    let calls = start(&queue.layer(script.http()), 2 + 32).await;
    let stats = queue.handle().stats();
    assert_eq!((stats.running, stats.queued), (2, 32));
    let error = queue.layer(script.http()).oneshot(get()).await.unwrap_err();
    assert!(matches!(rejection(&error), Rejection::Full { limit: 2, waiting: 32, .. }), "{error}");
    drop(calls);
}

#[tokio::test(start_paused = true)]
async fn h7_h5_http_server_takes_on_4_times_the_limit_and_answers_the_rest() {
    let script: Script<u16, Infallible> = Script::typed().answer(200).held();
    let queue = http_server(2);
    let calls = start(&queue.layer(script.http()), 2 + 8).await;
    let stats = queue.handle().stats();
    assert_eq!((stats.running, stats.queued), (2, 8));
    let Ok(response) = queue.layer(script.http()).oneshot(get()).await;
    assert_eq!(response.status(), 503);
    assert!(response.headers()["retry-after"].to_str().unwrap().parse::<u64>().unwrap() >= 1);
    assert!(matches!(response.extensions().get(), Some(Rejection::Full { .. })));
    drop(calls);
}

#[tokio::test(start_paused = true)]
async fn h7_http_batch_takes_on_4_times_the_limit_and_then_waits() {
    let script = Script::new().answer(200).held();
    let queue = http_batch(2);
    let calls = start(&queue.layer(script.http()), 2 + 8).await;
    let mut next = queue.layer(script.http::<Full<Bytes>>());
    assert!(tokio::time::timeout(secs(29), next.ready()).await.is_err(), "no room, and no rejection");
    drop(calls);
    next.ready().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn h7_timeouts_are_those_of_the_table() {
    let never = Script::<u16>::new().never();
    let started = Instant::now();
    // Two attempts of 10 s; a third would not end within the call's 30 s and is not begun (Q7).
    let error = http_client(1).layer(never.http()).oneshot(get()).await.unwrap_err();
    assert!(matches!(rejection(&error), Rejection::AttemptTimeout { attempts: 2, .. }), "{error}");
    assert!((secs(20)..secs(21)).contains(&started.elapsed()), "{:?}", started.elapsed());
    assert!((secs(10)..secs(11)).contains(&never.starts()[1]), "{:?}", never.starts());

    let never = Script::<u16>::new().never();
    let started = Instant::now();
    let queue = http_client(1).attempt_timeout(Duration::MAX);
    let error = queue.layer(never.http()).oneshot(get()).await.unwrap_err();
    assert!(matches!(rejection(&error), Rejection::Deadline { attempts: 1, .. }), "{error}");
    assert_eq!(started.elapsed(), secs(30));

    let never = Script::<u16, Infallible>::typed().never();
    let started = Instant::now();
    let Ok(response) = http_server(1).layer(never.http()).oneshot(get()).await;
    assert_eq!(response.status(), 504);
    assert_eq!((started.elapsed(), never.calls()), (secs(30), 1));

    let never = Script::<u16>::new().never();
    let error = http_batch(1).layer(never.http()).oneshot(get()).await.unwrap_err();
    assert!(matches!(rejection(&error), Rejection::AttemptTimeout { attempts: 10, .. }), "{error}");
    for pair in never.starts().windows(2) {
        assert!(pair[1] - pair[0] > secs(30), "30 s an attempt and a delay");
    }
}

#[tokio::test(start_paused = true)]
async fn h7_http_client_makes_3_attempts_and_r8_gives_the_last_answer_as_it_came() {
    let script = Script::new()
        .answer(reply(500, &[], "first"))
        .answer(reply(502, &[], "second"))
        .answer(reply(503, &[("x", "y")], "third"));
    let response = http_client(1).layer(script.http()).oneshot(get()).await.unwrap();
    assert_eq!((response.status().as_u16(), &response.headers()["x"]), (503, &"y".parse().unwrap()));
    assert_eq!(attempts(&response), 3);
    assert_eq!(text(response).await, "third");
    assert_eq!(script.calls(), 3);
}

#[tokio::test(start_paused = true)]
async fn h7_http_batch_makes_10_attempts_and_http_server_one() {
    let script = Script::new().answer(500);
    let response = http_batch(1).layer(script.http()).oneshot(get()).await.unwrap();
    assert_eq!((response.status().as_u16(), attempts(&response), script.calls()), (500, 10, 10));
    let script = Script::new().answer(500);
    let response = http_server(1).layer(script.http()).oneshot(get()).await.unwrap();
    assert_eq!((response.status().as_u16(), attempts(&response), script.calls()), (500, 1, 1));
}

#[tokio::test(start_paused = true)]
async fn h7_http_client_has_a_budget_and_http_batch_none() {
    // 500 tokens, 5 a retry: of 200 calls that fail in the same instant 100 are retried, and their retries not again.
    let script = Script::new().answer(500);
    for call in start(&http_client(200).layer(script.http()), 200).await {
        assert_eq!(call.await.unwrap().unwrap().status(), 500);
    }
    assert_eq!(script.calls(), 300);
    let script = Script::new().answer(500);
    for call in start(&http_batch(200).layer(script.http()), 200).await {
        assert_eq!(call.await.unwrap().unwrap().status(), 500);
    }
    assert_eq!(script.calls(), 2_000);
}

#[tokio::test(start_paused = true)]
async fn h7_r5_http_client_waits_as_long_as_the_timeout_leaves() {
    let after =
        |value| Script::new().answer(reply(429, &[("retry-after", value)], "")).answer(reply(200, &[], ""));
    let script = after("20");
    let response = http_client(1).layer(script.http()).oneshot(get()).await.unwrap();
    assert_eq!(response.status(), 200);
    assert!((secs(20)..=secs(25)).contains(&script.starts()[1]), "{:?}", script.starts());

    let script = after("200");
    let queue = http_client(1).call_timeout(secs(300));
    assert_eq!(queue.layer(script.http()).oneshot(get()).await.unwrap().status(), 200);
    assert!((secs(200)..=secs(205)).contains(&script.starts()[1]), "{:?}", script.starts());

    let script = after("31");
    let started = Instant::now();
    let response = http_client(1).layer(script.http()).oneshot(get()).await.unwrap();
    assert_eq!((response.status().as_u16(), started.elapsed()), (429, Duration::ZERO));
}

#[tokio::test(start_paused = true)]
async fn h7_r5_http_batch_waits_up_to_15_minutes_and_holds_the_line() {
    let after =
        |value| Script::new().answer(reply(429, &[("retry-after", value)], "")).answer(reply(200, &[], ""));
    let script = after("900");
    let queue = http_batch(4);
    let service = queue.layer(script.http());
    let first = start(&service, 1).await;
    assert!(queue.handle().stats().held_until.is_some());
    let second = start(&service, 1).await;
    for call in first.into_iter().chain(second) {
        assert_eq!(call.await.unwrap().unwrap().status(), 200);
    }
    assert!(script.starts()[1..].iter().all(|start| *start >= secs(900)), "{:?}", script.starts());

    let script = after("901");
    let response = http_batch(1).layer(script.http()).oneshot(get()).await.unwrap();
    assert_eq!((response.status().as_u16(), script.calls()), (429, 1));
}

#[tokio::test(start_paused = true)]
async fn h1_a_post_without_a_key_is_repeated_on_429_alone() {
    for (status, calls) in [(429, 3), (500, 1), (502, 1), (503, 1), (504, 1), (404, 1)] {
        let script = Script::new().answer(status);
        let response = http_client(1).layer(script.http()).oneshot(request(Method::POST)).await.unwrap();
        assert_eq!((response.status().as_u16(), script.calls()), (status, calls));
    }
    let script = Script::<u16>::new().fail("reset").answer(200);
    assert!(http_client(1).layer(script.http()).oneshot(request(Method::POST)).await.is_err());
    assert_eq!(script.calls(), 1, "perhaps processed");
    let script = Script::<u16>::new().never();
    let error = http_client(1).layer(script.http()).oneshot(request(Method::POST)).await.unwrap_err();
    assert!(matches!(rejection(&error), Rejection::AttemptTimeout { attempts: 1, .. }), "{error}");
}

#[tokio::test(start_paused = true)]
async fn h1_a_keyed_post_is_repeated_with_the_same_key_body_and_number() {
    type Seen = (String, String, u32);
    let seen = Arc::<Mutex<Vec<Seen>>>::default();
    let log = seen.clone();
    let script = Script::new();
    let service = script.http_by(move |request: &Request<Full<Bytes>>, n| {
        let key = request.headers()["x-key"].to_str().unwrap().to_owned();
        let body = format!("{:?}", request.body());
        let number = request.extensions().get::<AttemptNumber>().unwrap().get();
        log.lock().unwrap().push((key, body, number));
        if n % 3 < 2 { Step::answer(500) } else { Step::answer(200) }
    });
    let queue = http_client(1).retry(http_retry().idempotency_key("x-key"));
    for _ in 0..2 {
        let response = queue.layer(service.clone()).oneshot(request(Method::POST)).await.unwrap();
        assert_eq!((response.status().as_u16(), attempts(&response)), (200, 3));
    }
    let seen = seen.lock().unwrap();
    let [(first, body, _), .., (second, _, _)] = &seen[..] else { panic!("six attempts") };
    assert_ne!(first, second, "a key a call");
    let expected: Vec<Seen> = [first, second]
        .into_iter()
        .flat_map(|key| (1..=3).map(move |number| (key.clone(), body.clone(), number)))
        .collect();
    assert_eq!(*seen, expected);
}

#[tokio::test(start_paused = true)]
async fn r9_bodies_of_any_type_are_repeated_where_empty() {
    type Boxed = BoxBody<Bytes, Infallible>;
    let queue = || http_client(1).retry(http_retry().empty_bodies());
    let script = Script::new().answer(500);
    let response = queue().layer(script.http()).oneshot(Request::new(Boxed::default())).await.unwrap();
    assert_eq!((response.status().as_u16(), script.calls()), (500, 3));
    let script = Script::new().answer(500);
    let content = Request::new(Full::new(Bytes::from("content")).boxed());
    let response = queue().layer(script.http()).oneshot(content).await.unwrap();
    assert_eq!((response.status().as_u16(), script.calls()), (500, 1), "one attempt and the normal result");
}

#[tokio::test(start_paused = true)]
async fn r10_nested_layers_do_not_multiply() {
    let script = Script::new().answer(500);
    let (outer, inner) = (http_client(4), http_client(4));
    let response = outer.layer(inner.layer(script.http())).oneshot(get()).await.unwrap();
    assert_eq!((response.status().as_u16(), attempts(&response)), (500, 3));
    assert_eq!(script.calls(), 3, "not 9");
    assert_eq!(inner.handle().stats().retries, 0);
    // Also where both have the same policy value.
    let script = Script::new().answer(500);
    let policy = http_retry();
    let (outer, inner) = (http_client(4).retry(policy.clone()), http_client(4).retry(policy));
    outer.layer(inner.layer(script.http())).oneshot(get()).await.unwrap();
    assert_eq!(script.calls(), 3);
}

#[tokio::test(start_paused = true)]
async fn our_own_answer_below_is_not_retried() {
    let script = Script::<u16, Infallible>::typed().answer(200);
    let server = http_server(1);
    server.handle().close();
    let client = http_client(1);
    let response = client.layer(server.layer(script.http())).oneshot(get()).await.unwrap();
    assert_eq!(
        (response.status().as_u16(), &response.headers()["connection"]),
        (503, &"close".parse().unwrap())
    );
    assert_eq!((script.calls(), client.handle().stats().retries), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn h6_a_calls_own_timeout_replaces_both_longer_or_shorter() {
    for timeout in [secs(2), secs(300)] {
        let script = Script::<u16>::new().never();
        let mut call = get();
        call.extensions_mut().insert(CallOptions::timeout(timeout));
        let started = Instant::now();
        let error = http_client(1).layer(script.http()).oneshot(call).await.unwrap_err();
        assert!(matches!(rejection(&error), Rejection::Deadline { attempts: 1, .. }), "{error}");
        assert_eq!((started.elapsed(), script.calls()), (timeout, 1));
    }
    let script = Script::<u16, Infallible>::typed().answer(200).after(secs(100));
    let mut call = get();
    call.extensions_mut().insert(CallOptions::timeout(secs(101)));
    let Ok(response) = http_server(1).layer(script.http()).oneshot(call).await;
    assert_eq!(response.status(), 200);
}

#[tokio::test(start_paused = true)]
async fn h6_a_calls_own_timeout_holds_whatever_the_answers() {
    let respond = |_: &Rejection| Response::builder().status(418).body(Full::<Bytes>::default()).unwrap();
    let late = || {
        let mut call = get();
        call.extensions_mut().insert(CallOptions::timeout(secs(2)));
        call
    };
    let started = Instant::now();
    let never: Script<u16, Infallible> = Script::typed().never();
    let Ok(response) = http_server(1).respond_with(respond).layer(never.http()).oneshot(late()).await;
    assert_eq!((response.status().as_u16(), started.elapsed()), (418, secs(2)));
    let Ok(response) = http_client(1).respond_with(respond).layer(never.http()).oneshot(late()).await;
    assert_eq!((response.status().as_u16(), started.elapsed()), (418, secs(4)));
    let never: Script<u16, BoxError> = Script::typed().never();
    let answer = HttpAnswer::new().too_many_requests();
    let response = http_client(1).answer(answer).layer(never.http()).oneshot(late()).await.unwrap();
    assert_eq!((response.status().as_u16(), started.elapsed()), (504, secs(6)));
    let never: Script<u16, Typed> = Script::typed().never();
    let error = http_client(1).typed().layer(never.http()).oneshot(late()).await.unwrap_err();
    assert!(matches!(error, Typed(Rejection::Deadline { .. })));
    assert_eq!(started.elapsed(), secs(8));
}

#[derive(Clone, Debug)]
struct Typed(Rejection);

impl From<Rejection> for Typed {
    fn from(rejection: Rejection) -> Self {
        Self(rejection)
    }
}

#[tokio::test(start_paused = true)]
async fn h6_a_deadline_read_from_a_header_only_shortens_and_a_calls_own_timeout_replaces_it() {
    fn header(request: &Request<Full<Bytes>>) -> Option<Instant> {
        let ms = request.headers().get("x-ms-left")?.to_str().ok()?.parse().ok()?;
        Instant::now().checked_add(Duration::from_millis(ms))
    }
    let respond = |r: &Rejection| Response::new(Full::new(Bytes::from(r.as_str())));
    let never: Script<u16, Infallible> = Script::typed().never();
    for (header_ms, own, expected) in
        [("2000", None, 2), ("60000", None, 30), ("2000", Some(300), 300), ("2000", Some(1), 1)]
    {
        // Either order of the setters.
        let queues = (
            http_server(1).deadline_from(header),
            http_server(1).deadline_from(header).respond_with(respond),
        );
        let mut call = Request::get("/").header("x-ms-left", header_ms).body(Full::default()).unwrap();
        if let Some(own) = own {
            call.extensions_mut().insert(CallOptions::timeout(secs(own)));
        }
        let started = Instant::now();
        let Ok(response) = queues.0.layer(never.http()).oneshot(call.clone()).await;
        assert_eq!(
            (response.status().as_u16(), started.elapsed()),
            (504, secs(expected)),
            "{header_ms} {own:?}"
        );
        let started = Instant::now();
        let Ok(response) = queues.1.layer(never.http()).oneshot(call).await;
        assert_eq!(started.elapsed(), secs(expected), "{header_ms} {own:?}");
        assert_eq!(text(response).await, "deadline");
    }
}

#[tokio::test(start_paused = true)]
async fn h6_a_call_that_wants_no_retry_has_none() {
    let script = Script::new().answer(500);
    let mut call = get();
    call.extensions_mut().insert(CallOptions::default().no_retry());
    let response = http_client(1).layer(script.http()).oneshot(call).await.unwrap();
    assert_eq!((response.status().as_u16(), script.calls()), (500, 1));
}

#[tokio::test(start_paused = true)]
async fn h7_every_knob_is_open() {
    // The call sites that users want: order and number of setters, no turbofish.
    let script = Script::new().answer(529).answer(200);
    let queue = http_client(16)
        .name("stripe")
        .call_timeout(secs(30))
        .attempt_timeout(secs(10))
        .retry(http_retry().idempotency_key("idempotency-key").on_status(529, Verdict::throttled()));
    let mut stripe = queue.layer(script.http());
    let response = stripe.ready().await.unwrap().call(request(Method::POST)).await.unwrap();
    assert_eq!((response.status().as_u16(), script.calls()), (200, 2));

    let script: Script<u16, Infallible> = Script::typed().answer(200);
    let queue = http_server(1).respond_with(|r: &Rejection| {
        Response::builder().status(418).body(Full::new(Bytes::from(r.to_string()))).unwrap()
    });
    queue.handle().close();
    let Ok(response) = queue.layer(script.http()).oneshot(get()).await;
    assert_eq!(response.status(), 418);
    assert_eq!(text(response).await, "the queue is closed");
}

#[test]
fn a_limit_of_zero_is_named_or_panics() {
    let bound = "limit is 0, but must be";
    assert!(try_http_server(0).unwrap_err().to_string().starts_with(bound));
    assert!(try_http_client(0).unwrap_err().to_string().starts_with(bound));
    assert!(try_http_batch(0).unwrap_err().to_string().starts_with(bound));
    assert!(std::panic::catch_unwind(|| http_client(0)).is_err());
}
