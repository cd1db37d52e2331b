//! Deadlines across hops (H6), on the paused clock: what is obeyed, what is told, and which of several counts.

use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::header::HeaderMap;
use http::{Request, Response};
use http_body_util::Empty;
use tokio::time::{Instant, sleep};
use tower::util::BoxCloneService;
use tower::{Layer, ServiceBuilder, ServiceExt, service_fn};
use tower_sluice_http::queue::{CallOptions, Handle};
use tower_sluice_http::reject::Rejection;
use tower_sluice_http::{
    BoxError, Deadline, DeadlineHeader, HoldSlots, HttpAnswer, HttpRetry, http_client, http_retry,
    http_server,
};
use tower_sluice_test::Script;

const HEADER: &str = "request-timeout-ms";

type Body = Empty<bytes::Bytes>;

const fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

const fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

fn get(timeout: Option<&str>) -> Request<Body> {
    let request = Request::get("http://stock.example/7");
    match timeout {
        Some(timeout) => request.header(HEADER, timeout),
        None => request,
    }
    .body(Body::new())
    .unwrap()
}

/// What each attempt was told: in the header, and until its deadline.
type Told = Arc<Mutex<Vec<(Option<u64>, Option<Duration>)>>>;

fn header(headers: &HeaderMap) -> Option<u64> {
    headers.get(HEADER).map(|value| value.to_str().unwrap().parse().unwrap())
}

fn listen(told: &Told, request: &Request<Body>) {
    let deadline = request.extensions().get::<Deadline>().map(|deadline| deadline.left());
    told.lock().unwrap().push((header(request.headers()), deadline));
}

#[tokio::test(start_paused = true)]
async fn h6_a_server_obeys_the_header_and_never_later_than_its_own_timeout() {
    for (timeout, expected) in [
        (Some("2000"), secs(2)),
        (Some("60000"), secs(10)),
        (Some("18446744073709551615"), secs(10)),
        (Some("soon"), secs(10)),
        (None, secs(10)),
    ] {
        let never: Script<u16, Infallible> = Script::typed().never();
        let queue = http_server(1).call_timeout(secs(10)).deadline_header(HEADER);
        let begun = Instant::now();
        let Ok(response) = queue.layer(never.http()).oneshot(get(timeout)).await;
        assert_eq!((response.status().as_u16(), begun.elapsed()), (504, expected), "{timeout:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn h6_a_call_without_time_left_is_answered_without_a_slot() {
    let script: Script<u16, Infallible> = Script::typed().answer(200);
    let queue = http_server(1).deadline_header(HEADER);
    let Ok(response) = queue.layer(script.http()).oneshot(get(Some("0"))).await;
    assert_eq!((response.status().as_u16(), script.calls()), (504, 0));
    assert_eq!(queue.handle().stats().rejected.too_late, 1);
}

#[tokio::test(start_paused = true)]
async fn h6_a_calls_own_timeout_replaces_the_header_longer_or_shorter() {
    for (timeout, expected) in [(secs(1), secs(1)), (secs(60), secs(60))] {
        let told = Told::default();
        let log = told.clone();
        let never: Script<u16, Infallible> = Script::typed();
        let service = never.http_by(move |request: &Request<Body>, _| {
            listen(&log, request);
            tower_sluice_test::Step::never()
        });
        let mut call = get(Some("2000"));
        call.extensions_mut().insert(CallOptions::timeout(timeout));
        let begun = Instant::now();
        let Ok(response) = http_server(1).deadline_header(HEADER).layer(service).oneshot(call).await;
        assert_eq!((response.status().as_u16(), begun.elapsed()), (504, expected));
        let millis = u64::try_from(timeout.as_millis()).unwrap();
        assert_eq!(*told.lock().unwrap(), [(Some(millis), Some(timeout))], "and so is what is told");
    }
}

#[tokio::test(start_paused = true)]
async fn h6_a_call_whose_own_timeout_is_never_tells_no_deadline() {
    let told = Told::default();
    let log = told.clone();
    let service = service_fn(move |request: Request<Body>| {
        listen(&log, &request);
        async { Ok::<_, Infallible>(Response::new(Body::new())) }
    });
    let mut call = get(Some("2000"));
    call.extensions_mut().insert(CallOptions::timeout(Duration::MAX));
    call.extensions_mut().insert(Deadline::at(Instant::now() + secs(1)));
    let Ok(_) = http_server(1).deadline_header(HEADER).layer(service).oneshot(call).await;
    assert_eq!(*told.lock().unwrap(), [(None, None)]);
}

#[tokio::test(start_paused = true)]
async fn h6_each_attempt_of_a_client_is_told_what_is_left() {
    let told = Told::default();
    let log = told.clone();
    let service = service_fn(move |request: Request<Body>| {
        listen(&log, &request);
        async {
            sleep(ms(700)).await;
            Ok::<_, BoxError>(Response::builder().status(500).body(Body::new()).unwrap())
        }
    });
    let queue = http_client(1).seed(7).retry(http_retry().empty_bodies()).deadline_header(HEADER);
    let begun = Instant::now();
    let mut starts = Vec::new();
    let call = queue.layer(service).oneshot(get(Some("5000")));
    let response = call.await.unwrap();
    assert_eq!(response.status(), 500);
    let told = told.lock().unwrap();
    for (header, deadline) in told.iter() {
        let left = deadline.unwrap();
        starts.push(secs(5) - left);
        assert_eq!(u128::from(header.unwrap()), left.as_millis(), "never rounded up");
    }
    assert_eq!((told.len(), starts[0]), (3, Duration::ZERO));
    assert!(starts.windows(2).all(|pair| pair[1] > pair[0] + ms(700)), "{starts:?}");
    assert_eq!(begun.elapsed(), starts[2] + ms(700));
}

#[tokio::test(start_paused = true)]
async fn h6_time_in_line_is_taken_off_what_the_handler_is_told() {
    let told = Told::default();
    let log = told.clone();
    let service = service_fn(move |request: Request<Body>| {
        listen(&log, &request);
        async {
            sleep(ms(400)).await;
            Ok::<_, Infallible>(Response::new(Body::new()))
        }
    });
    let queue = http_server(1).deadline_header(HEADER);
    let service = queue.layer(service);
    let (first, second) =
        tokio::join!(service.clone().oneshot(get(Some("1000"))), service.clone().oneshot(get(Some("3000"))));
    assert_eq!((first.unwrap().status().as_u16(), second.unwrap().status().as_u16()), (200, 200));
    assert_eq!(
        *told.lock().unwrap(),
        [(Some(1_000), Some(secs(1))), (Some(2_600), Some(ms(2_600)))],
        "the second stood in line for 400 ms"
    );
}

/// A service that is reached over a network: what crosses it of a request is its headers, no extension.
type Network = BoxCloneService<Request<Body>, Response<Body>, BoxError>;

/// The server at the end, which takes `work`, behind its own queue; what it was told, and its handle.
fn last_hop(work: Duration) -> (Network, Told, Handle) {
    let told = Told::default();
    let log = told.clone();
    let handler = service_fn(move |request: Request<Body>| {
        listen(&log, &request);
        async move {
            sleep(work).await;
            Ok::<_, BoxError>(Response::new(Body::new()))
        }
    });
    let queue = http_server(4).deadline_header(HEADER);
    let handle = queue.handle();
    let network = ServiceBuilder::new()
        .map_request(|request: Request<Body>| {
            let mut sent = get(None);
            *sent.headers_mut() = request.headers().clone();
            sent
        })
        .map_response(|response: Response<_>| response.map(|_| Body::new()))
        .layer(queue)
        .service(handler);
    (BoxCloneService::new(network), told, handle)
}

/// H6 over two hops, both directions: what is left at the first server is what the second obeys.
#[tokio::test(start_paused = true)]
async fn h6_a_deadline_goes_over_two_hops_less_what_was_used() {
    for (work, status) in [(ms(500), 200), (secs(20), 504)] {
        let (network, told, last) = last_hop(work);
        let upstream = http_client(4).deadline_header(HEADER).layer(network);
        let handler = service_fn(move |request: Request<Body>| {
            let upstream = upstream.clone();
            async move {
                let deadline = *request.extensions().get::<Deadline>().unwrap();
                sleep(ms(300)).await;
                let mut next = get(None);
                next.extensions_mut().insert(deadline);
                let status = match upstream.oneshot(next).await {
                    Ok(response) => response.status().as_u16(),
                    Err(error) => {
                        let late = Rejection::find(&*error);
                        assert!(matches!(late, Some(Rejection::Deadline { .. })), "{error}");
                        504
                    }
                };
                Ok::<_, Infallible>(Response::builder().status(status).body(Body::new()).unwrap())
            }
        });
        let first = http_server(4).deadline_header(HEADER);
        let begun = Instant::now();
        let Ok(response) = first.layer(handler).oneshot(get(Some("2000"))).await;
        assert_eq!(response.status(), status);
        assert_eq!(*told.lock().unwrap(), [(Some(1_700), Some(ms(1_700)))]);
        let expected = if status == 200 { ms(800) } else { secs(2) };
        assert_eq!(begun.elapsed(), expected);
        assert_eq!((last.stats().running, first.handle().stats().running), (0, 0), "nobody works for nobody");
    }
}

/// A request handed on whole, as a proxy does, has the first server's header with what was left when its handler
/// began, and the deadline itself, which counts.
#[tokio::test(start_paused = true)]
async fn h6_a_request_that_is_handed_on_whole_keeps_its_deadline() {
    let (network, told, _) = last_hop(Duration::ZERO);
    let upstream = http_client(4).deadline_header(HEADER).layer(network);
    let proxy = service_fn(move |request: Request<Body>| {
        let upstream = upstream.clone();
        async move {
            sleep(ms(300)).await;
            upstream.oneshot(request).await
        }
    });
    let first = http_server(4).deadline_header(HEADER);
    first.layer(proxy).oneshot(get(Some("2000"))).await.unwrap();
    assert_eq!(*told.lock().unwrap(), [(Some(1_700), Some(ms(1_700)))]);
}

#[tokio::test(start_paused = true)]
async fn h6_any_stack_of_ours_obeys_the_deadline_in_a_requests_extensions() {
    let call = || {
        let mut call = get(None);
        call.extensions_mut().insert(Deadline::at(Instant::now() + secs(2)));
        call
    };
    let begun = Instant::now();
    let error = http_client(1).layer(Script::<u16>::new().never().http()).oneshot(call()).await.unwrap_err();
    assert!(matches!(Rejection::find(&*error), Some(Rejection::Deadline { .. })), "{error}");
    assert_eq!(begun.elapsed(), secs(2));
    let never: Script<u16, Infallible> = Script::typed().never();
    let Ok(response) = http_server(1).layer(never.http()).oneshot(call()).await;
    assert_eq!((response.status().as_u16(), begun.elapsed()), (504, secs(4)));
}

#[tokio::test(start_paused = true)]
async fn h6_the_header_holds_whatever_the_answers_and_slots() {
    let begun = Instant::now();
    let never = || Script::<u16, Infallible>::typed().never().http();
    let respond = |_: &Rejection| Response::builder().status(418).body(Default::default()).unwrap();
    let queue = http_server(1).deadline_header(HEADER).respond_with(respond);
    let Ok(response) = queue.layer(never()).oneshot(get(Some("2000"))).await;
    assert_eq!((response.status().as_u16(), begun.elapsed()), (418, secs(2)));
    let queue = http_server(1).deadline_header(HEADER).hold_until_body_end();
    let Ok(response) = queue.layer(never()).oneshot(get(Some("2000"))).await;
    assert_eq!((response.status().as_u16(), begun.elapsed()), (504, secs(4)));
    let queue = http_server(1)
        .answer(HttpAnswer::new().too_many_requests())
        .hold_until_body_end()
        .deadline_header(HEADER);
    let Ok(response) = queue.layer(never()).oneshot(get(Some("2000"))).await;
    assert_eq!((response.status().as_u16(), begun.elapsed()), (504, secs(6)));
}

/// Q16 and H6 together: the mode that reads the header hands the slot on to the one that holds it.
#[tokio::test(start_paused = true)]
async fn h6_q16_slots_are_held_below_a_deadline_header() {
    let script: Script<Response<&'static str>, Infallible> = Script::typed().answer(Response::new("body"));
    let queue = http_server(1).hold_until_body_end().deadline_header(HEADER);
    let Ok(response) = queue.layer(script.http()).oneshot(get(None)).await;
    assert_eq!(queue.handle().stats().running, 1);
    drop(response);
    assert_eq!(queue.handle().stats().running, 0);
}

#[test]
fn a_name_that_is_none_is_an_error_or_a_panic() {
    let error = http_server(1).try_deadline_header("no name").unwrap_err();
    assert_eq!(error.field(), "deadline header");
    assert!(std::panic::catch_unwind(|| http_client(1).deadline_header("")).is_err());
}
