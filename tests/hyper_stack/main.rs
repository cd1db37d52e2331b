//! Whole stacks around hyper's client, over TCP, against a server that fails on purpose.

#[allow(dead_code)]
#[path = "../axum_stack/work.rs"]
mod work;

mod faults;

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::extract::State;
use axum::response::IntoResponse;
use axum::routing::{any, get};
use axum::{Extension, Router};
use bytes::Bytes;
use http::{HeaderMap, Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use tokio::net::TcpListener;
use tokio::time::{Instant, timeout};
use tower::timeout::error::Elapsed;
use tower::util::BoxCloneSyncService;
use tower::{Layer, Service, ServiceBuilder, ServiceExt};
use tower_sluice_http::backoff::{Backoff, Jitter};
use tower_sluice_http::queue::Handle;
use tower_sluice_http::reject::Rejection;
use tower_sluice_http::{
    BoxError, Deadline, DeadlineHeader, HttpRetry, HttpRetryPolicy, attempts, http_client, http_retry,
    http_server,
};

use crate::faults::{Fault, Protocol, Server};
use crate::work::{Work, until};

const HEADER: &str = "request-timeout-ms";
const ATTEMPT: Duration = Duration::from_millis(150);
const SOON: Duration = Duration::from_secs(10);

type HyperClient = Client<HttpConnector, Full<Bytes>>;

fn hyper_client(protocol: Protocol) -> HyperClient {
    Client::builder(TokioExecutor::new()).http2_only(protocol == Protocol::Http2).build_http()
}

/// One that asks a silent connection for a sign of life, and gives it up without.
fn watchful_client() -> HyperClient {
    Client::builder(TokioExecutor::new())
        .http2_only(true)
        .timer(TokioTimer::new())
        .http2_keep_alive_interval(ATTEMPT / 5)
        .http2_keep_alive_timeout(ATTEMPT / 5)
        .build_http()
}

fn retry() -> HttpRetryPolicy {
    http_retry().backoff(Backoff::exponential(Duration::from_millis(1), Duration::from_millis(10)))
}

fn body() -> Bytes {
    Bytes::from(vec![b'x'; 10_000])
}

fn request(server: SocketAddr, method: Method) -> Request<Full<Bytes>> {
    let body = if method == Method::GET { Bytes::new() } else { body() };
    Request::builder().method(method).uri(format!("http://{server}/charge")).body(Full::new(body)).unwrap()
}

/// What one call against a fault came to.
#[derive(Debug, PartialEq, Eq)]
enum End {
    /// Answered, after so many attempts.
    Answered(u32),
    /// Answered, after so many attempts, and the body broke off.
    BrokenBody(u32),
    /// The client's own error, after so many attempts.
    Failed(u64),
    /// So many attempts took too long, the last of them, too.
    TimedOut(u32),
}

async fn call(fault: Fault, protocol: Protocol, method: Method, keyed: bool) -> (End, Vec<faults::Served>) {
    call_by(hyper_client(protocol), fault, protocol, method, keyed).await
}

async fn call_by(
    client: HyperClient,
    fault: Fault,
    protocol: Protocol,
    method: Method,
    keyed: bool,
) -> (End, Vec<faults::Served>) {
    let mut server = Server::start(fault, protocol).await;
    let policy = if keyed { retry().idempotency_key("idempotency-key") } else { retry() };
    // Long enough for the server to be back, where it has to be.
    let delay = Duration::from_millis(if fault == Fault::Refuse { 300 } else { 1 });
    let policy = policy.backoff(Backoff::exponential(delay, delay).jitter(Jitter::None));
    let queue = http_client(1).attempt_timeout(ATTEMPT).retry(policy);
    let handle = queue.handle();
    let service = queue.layer(client);
    let address = server.address;
    let called = tokio::spawn(service.oneshot(request(address, method)));
    if fault == Fault::Refuse {
        until(|| handle.stats().retries == 1).await;
        server.come_back().await;
    }
    let end = match timeout(SOON, called).await.expect("an end").unwrap() {
        Ok(response) => {
            assert_eq!(response.status(), 200);
            let attempts = attempts(&response);
            match response.into_body().collect().await {
                Ok(body) => {
                    assert_eq!(body.to_bytes(), "done");
                    End::Answered(attempts)
                }
                Err(_) => End::BrokenBody(attempts),
            }
        }
        Err(error) => match Rejection::find(&*error) {
            None => End::Failed(handle.stats().attempts),
            Some(Rejection::AttemptTimeout { attempts, .. }) => End::TimedOut(*attempts),
            Some(rejection) => panic!("{rejection}"),
        },
    };
    assert_eq!((handle.stats().running, handle.stats().is_idle()), (0, true));
    (end, server.served())
}

const HTTP1: [Fault; 6] =
    [Fault::Refuse, Fault::CloseAfterRequest, Fault::HalfHead, Fault::HalfBody, Fault::Reset, Fault::Slow];
const HTTP2: [Fault; 9] = [
    Fault::Refuse,
    Fault::CloseAfterRequest,
    Fault::HalfHead,
    Fault::HalfBody,
    Fault::Reset,
    Fault::Slow,
    Fault::RefusedStream,
    Fault::ResetStream,
    Fault::GoAway,
];

fn everywhere() -> impl Iterator<Item = (Protocol, Fault)> {
    let http1 = HTTP1.into_iter().map(|fault| (Protocol::Http1, fault));
    http1.chain(HTTP2.into_iter().map(|fault| (Protocol::Http2, fault)))
}

/// H1: what may be repeated is, after every fault that comes before the response's head.
#[tokio::test]
async fn h1_a_get_and_a_keyed_post_get_through_every_fault_with_one_key() {
    // Over HTTP/2 every attempt would go to the same silent connection; see below.
    let silent = (Protocol::Http2, Fault::Slow);
    for (protocol, fault) in everywhere().filter(|case| *case != silent) {
        for (method, keyed) in [(Method::GET, false), (Method::POST, true)] {
            let (end, served) = call(fault, protocol, method.clone(), keyed).await;
            if fault == Fault::HalfBody {
                // The head is the answer: what comes after it is its reader's affair.
                assert_eq!((end, served.len()), (End::BrokenBody(1), 0), "{protocol:?} {fault:?}");
                continue;
            }
            assert_eq!(end, End::Answered(2), "{protocol:?} {fault:?} {method}");
            let [(_, key, sent)] = &served[..] else { panic!("{protocol:?} {fault:?}: {}", served.len()) };
            assert_eq!(key.is_some(), keyed);
            assert_eq!(
                *sent,
                if keyed { body() } else { Bytes::new() },
                "the second attempt's body is whole"
            );
        }
    }
}

/// H1, cases e11 and e12: a POST without a key is sent again only where it was surely not processed.
#[tokio::test]
async fn h1_case_e12_a_post_without_a_key_is_repeated_where_it_was_surely_not_processed() {
    for (protocol, fault) in everywhere() {
        let (end, served) = call(fault, protocol, Method::POST, false).await;
        let expected = match fault {
            Fault::Refuse | Fault::RefusedStream | Fault::GoAway => (End::Answered(2), 1),
            Fault::HalfBody => (End::BrokenBody(1), 0),
            Fault::Slow => (End::TimedOut(1), 0),
            _ => (End::Failed(1), 0),
        };
        assert_eq!((end, served.len()), expected, "{protocol:?} {fault:?}");
    }
}

/// HTTP/2 has one connection for all: once it is silent, an attempt's timeout alone does not lead away from it. Pings do.
#[tokio::test]
async fn a_silent_http2_connection_is_left_where_the_client_asks_for_a_sign_of_life() {
    let (end, served) = call(Fault::Slow, Protocol::Http2, Method::GET, false).await;
    assert_eq!((end, served.len()), (End::TimedOut(3), 0));
    let (end, served) = call_by(watchful_client(), Fault::Slow, Protocol::Http2, Method::GET, false).await;
    assert_eq!((end, served.len()), (End::Answered(2), 1));
}

/// Whether the client sees the end before it writes or after is a race; a POST is served at most once either way.
#[tokio::test]
async fn h1_accepted_and_closed_at_once() {
    for protocol in [Protocol::Http1, Protocol::Http2] {
        for (method, keyed) in [(Method::GET, false), (Method::POST, true)] {
            let (end, served) = call(Fault::CloseAtOnce, protocol, method, keyed).await;
            assert_eq!((end, served.len()), (End::Answered(2), 1), "{protocol:?}");
        }
        let (end, served) = call(Fault::CloseAtOnce, protocol, Method::POST, false).await;
        assert!(
            (&end, served.len()) == (&End::Answered(2), 1) || (&end, served.len()) == (&End::Failed(1), 0),
            "{protocol:?} {end:?}"
        );
    }
}

async fn serve(app: Router) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let server = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, app).await });
    server
}

/// Q1 as the server sees it: over many connections, and over one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn q1_the_server_never_sees_more_than_the_limit_retries_included() {
    for protocol in [Protocol::Http1, Protocol::Http2] {
        let held = Work::held();
        let answered = Arc::<AtomicUsize>::default();
        let work = move |State(work): State<Work>| async move {
            let _running = work.enter();
            work.pass().await;
            let fails = answered.fetch_add(1, SeqCst) < 50;
            if fails { StatusCode::SERVICE_UNAVAILABLE } else { StatusCode::OK }
        };
        let server = serve(Router::new().route("/charge", get(work)).with_state(held.clone())).await;
        let queue = http_client(8).retry(retry().max_attempts(51));
        let handle = queue.handle();
        let service = queue.layer(hyper_client(protocol));
        let calls: Vec<_> =
            (0..100).map(|_| tokio::spawn(service.clone().oneshot(request(server, Method::GET)))).collect();
        until(|| held.running() == 8 && handle.stats().queued == 92).await;
        held.open();
        for call in calls {
            assert_eq!(call.await.unwrap().unwrap().status(), 200);
        }
        handle.idle().await;
        let stats = handle.stats();
        assert_eq!((held.peak(), held.started()), (8, 150), "{protocol:?}");
        assert_eq!((stats.succeeded, stats.retries, stats.attempts), (100, 50, 150), "{protocol:?}");
    }
}

/// R5, cases d13 and d15: a server's `Retry-After` is read on the wire and waited for, to the millisecond.
#[tokio::test]
async fn r5_case_d15_no_attempt_comes_back_before_the_servers_retry_after() {
    for status in [StatusCode::TOO_MANY_REQUESTS, StatusCode::SERVICE_UNAVAILABLE] {
        let arrivals = Arc::<Mutex<Vec<Instant>>>::default();
        let log = arrivals.clone();
        let work = move || async move {
            let mut arrivals = log.lock().unwrap();
            arrivals.push(Instant::now());
            match arrivals.len() {
                1 => (status, [("retry-after", "1")]).into_response(),
                _ => "done".into_response(),
            }
        };
        let server = serve(Router::new().route("/charge", get(work))).await;
        let service = http_client(1).retry(retry()).layer(hyper_client(Protocol::Http1));
        let response = service.oneshot(request(server, Method::GET)).await.unwrap();
        assert_eq!((response.status().as_u16(), attempts(&response)), (200, 2));
        let arrivals = arrivals.lock().unwrap();
        assert!(arrivals[1] - arrivals[0] >= Duration::from_secs(1), "{:?}", arrivals[1] - arrivals[0]);
    }
}

type Boxed = BoxCloneSyncService<Request<Full<Bytes>>, Response<Incoming>, BoxError>;

/// A stack over a server whose first connection never answers.
async fn over_slow(
    build: impl FnOnce(HyperClient) -> (Boxed, Handle),
) -> (SocketAddr, Server, Boxed, Handle) {
    let server = Server::start(Fault::Slow, Protocol::Http1).await;
    let (service, handle) = build(hyper_client(Protocol::Http1));
    (server.address, server, service, handle)
}

/// Q13: tower's timeout above drops the call, which gives back what it holds.
#[tokio::test]
async fn a_tower_timeout_above_is_a_call_that_was_cancelled() {
    let (address, _server, service, handle) = over_slow(|client| {
        let queue = http_client(1).attempt_timeout(Duration::MAX).retry(retry());
        let handle = queue.handle();
        let stack = ServiceBuilder::new().timeout(ATTEMPT).layer(queue).service(client);
        (Boxed::new(stack), handle)
    })
    .await;
    let error = service.clone().oneshot(request(address, Method::GET)).await.unwrap_err();
    assert!(error.is::<Elapsed>(), "{error}");
    handle.idle().await;
    let stats = handle.stats();
    assert_eq!((stats.cancelled, stats.attempts, stats.retries, stats.failed), (1, 1, 0, 0));
    assert_eq!(service.oneshot(request(address, Method::GET)).await.unwrap().status(), 200);
}

/// case_k9: tower's timeout below is an attempt's failure; perhaps processed, as any error of which nothing is known.
#[tokio::test]
async fn case_k9_a_tower_timeout_below_is_retried_where_the_request_may_be_repeated() {
    for (method, status) in [(Method::GET, Some(200)), (Method::POST, None)] {
        let (address, _server, service, handle) = over_slow(|client| {
            let queue = http_client(1).attempt_timeout(Duration::MAX).retry(retry());
            let handle = queue.handle();
            let stack = ServiceBuilder::new().layer(queue).timeout(ATTEMPT).service(client);
            (Boxed::new(stack), handle)
        })
        .await;
        let result = service.oneshot(request(address, method)).await;
        match (result, status) {
            (Ok(response), Some(status)) => {
                assert_eq!((response.status().as_u16(), attempts(&response)), (status, 2));
            }
            (Err(error), None) => assert!(error.is::<Elapsed>(), "its own error, as it came: {error}"),
            (result, _) => panic!("{result:?}"),
        }
        handle.idle().await;
        assert_eq!(handle.stats().cancelled, 0);
    }
}

/// Timeouts of tower's above and below, and our own between: each ends what it is around.
#[tokio::test]
async fn timeouts_above_and_below_do_not_disturb_each_other() {
    let (address, server, service, handle) = over_slow(|client| {
        let queue = http_client(2).attempt_timeout(ATTEMPT).call_timeout(SOON).retry(retry());
        let handle = queue.handle();
        let stack = ServiceBuilder::new().timeout(2 * SOON).layer(queue).timeout(SOON).service(client);
        (Boxed::new(stack), handle)
    })
    .await;
    let response = service.oneshot(request(address, Method::PUT)).await.unwrap();
    assert_eq!((response.status().as_u16(), attempts(&response)), (200, 2));
    handle.idle().await;
    assert_eq!((server.served().len(), handle.stats().succeeded), (1, 1));
}

/// H6, D15: over two hops of real servers; what the second is told is less than what the first was, and nobody works
/// on once the time is over.
#[tokio::test]
async fn h6_a_deadline_is_handed_on_to_the_next_hop() {
    let told = Arc::<Mutex<Vec<u64>>>::default();
    let held = Work::held();
    let last_queue = http_server(4).deadline_header(HEADER);
    let last_handle = last_queue.handle();
    let last = {
        let (told, held) = (told.clone(), held.clone());
        let work = move |headers: HeaderMap| async move {
            told.lock().unwrap().push(headers[HEADER].to_str().unwrap().parse().unwrap());
            held.run().await;
        };
        serve(Router::new().route("/charge", any(work)).layer(last_queue)).await
    };
    let upstream = http_client(4).retry(retry()).deadline_header(HEADER).layer(hyper_client(Protocol::Http1));
    let first_queue = http_server(4).deadline_header(HEADER);
    let first_handle = first_queue.handle();
    let page = move |Extension(deadline): Extension<Deadline>| async move {
        let mut next = request(last, Method::POST);
        next.extensions_mut().insert(deadline);
        upstream.oneshot(next).await.map_or(StatusCode::GATEWAY_TIMEOUT, |response| response.status())
    };
    let first = serve(Router::new().route("/charge", get(page)).layer(first_queue)).await;
    let mut client = http_client(4).deadline_header(HEADER).layer(hyper_client(Protocol::Http1));

    let mut call = request(first, Method::GET);
    call.headers_mut().insert(HEADER, 400.into());
    let answered = client.ready().await.unwrap().call(call).await;
    // Whichever of the three sees the end first.
    match &answered {
        Ok(response) => assert_eq!(response.status(), 504),
        Err(error) => {
            assert!(matches!(Rejection::find(&**error), Some(Rejection::Deadline { .. })), "{error}")
        }
    }
    until(|| held.running() == 0 && last_handle.stats().is_idle() && first_handle.stats().is_idle()).await;
    let first_told = told.lock().unwrap().clone();
    assert!(first_told.len() == 1 && (1..=400).contains(&first_told[0]), "{first_told:?}");

    held.open();
    let answered = client.ready().await.unwrap().call(request(first, Method::GET)).await.unwrap();
    assert_eq!(answered.status(), 200);
    let second_told = told.lock().unwrap()[1];
    assert!(
        (20_000..=30_000).contains(&second_told),
        "the stacks' own 30 s, less what was used: {second_told}"
    );
}
