//! gRPC over scripted services (H4, H5, H6, H7), on the paused clock: statuses peeked, push-back, deadlines, answers.
#![cfg(feature = "grpc")]

use std::convert::Infallible;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Body as AxumBody;
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response};
use http_body::{Body, Frame};
use http_body_util::{BodyExt, Full};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep};
use tower::{Layer, Service, ServiceExt, service_fn};
use tower_sluice_http::grpc::{
    GrpcAnswer, GrpcClientMode, GrpcRetry, GrpcStatus, GrpcStatusLayer, PushBack, grpc_client, grpc_retry,
    grpc_server, grpc_timeout, try_grpc_client, try_grpc_server,
};
use tower_sluice_http::queue::{CallOptions, QueueLayer};
use tower_sluice_http::reject::{Boxed, Rejection};
use tower_sluice_http::verdict::Verdict;
use tower_sluice_http::{BoxError, attempts};
use tower_sluice_test::{by_hand, spied};

type Item = Result<Frame<Bytes>, io::Error>;

/// A body of what is sent to it.
struct Piped(mpsc::UnboundedReceiver<Item>);

fn piped() -> (mpsc::UnboundedSender<Item>, Piped) {
    let (sender, receiver) = mpsc::unbounded_channel();
    (sender, Piped(receiver))
}

impl Body for Piped {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Item>> {
        self.0.poll_recv(cx)
    }
}

fn data(bytes: &'static str) -> Item {
    Ok(Frame::data(Bytes::from_static(bytes.as_bytes())))
}

fn trailers(status: &'static str) -> Item {
    let name = HeaderName::from_static("grpc-status");
    Ok(Frame::trailers(HeaderMap::from_iter([(name, HeaderValue::from_static(status))])))
}

/// What the layer makes of a response with this body.
fn peek(
    layer: GrpcStatusLayer,
    body: Piped,
) -> impl Future<Output = Result<Response<impl Body<Data = Bytes, Error = io::Error> + Unpin>, BoxError>> {
    let body = Arc::new(Mutex::new(Some(body)));
    let service = service_fn(move |_: Request<()>| {
        let body = body.lock().unwrap().take().expect("one call");
        async move { Ok::<_, io::Error>(Response::new(body)) }
    });
    layer.layer(service).oneshot(Request::new(()))
}

fn code<B>(response: &Response<B>) -> Option<i32> {
    GrpcStatus::of(response).map(GrpcStatus::code)
}

async fn frame<B: Body + Unpin>(body: &mut B) -> Option<Result<Frame<B::Data>, B::Error>> {
    poll_fn(|cx| Pin::new(&mut *body).poll_frame(cx)).await
}

#[tokio::test(start_paused = true)]
async fn h4_case_e9_trailers_after_an_empty_body_are_a_status_and_stay_in_the_body() {
    let (sender, body) = piped();
    sender.send(trailers("14")).unwrap();
    let response = peek(GrpcStatusLayer::new(), body).await.unwrap();
    assert_eq!(code(&response), Some(14));
    let mut body = response.into_body();
    assert!(!body.is_end_stream());
    let passed_on = frame(&mut body).await.unwrap().unwrap().into_trailers().unwrap();
    assert_eq!(passed_on["grpc-status"], "14");
    assert!(body.is_end_stream() && frame(&mut body).await.is_none());
}

#[tokio::test(start_paused = true)]
async fn h4_case_e9_a_message_first_is_passed_on_and_all_that_follows() {
    let (sender, body) = piped();
    for item in [data("one"), data("two"), trailers("14")] {
        sender.send(item).unwrap();
    }
    drop(sender);
    let started = Instant::now();
    let response = peek(GrpcStatusLayer::new(), body).await.unwrap();
    assert_eq!((code(&response), started.elapsed()), (None, Duration::ZERO));
    assert_eq!(response.body().size_hint().lower(), 3, "what was looked at counts");
    let collected = response.into_body().collect().await.unwrap();
    assert_eq!(collected.trailers().unwrap()["grpc-status"], "14");
    assert_eq!(collected.to_bytes(), "onetwo");
}

#[tokio::test(start_paused = true)]
async fn h4_the_first_frame_is_waited_for_and_not_for_long() {
    let (sender, body) = piped();
    let started = Instant::now();
    let (peeking, spy) = spied(peek(GrpcStatusLayer::new(), body));
    tokio::spawn(async move {
        sleep(Duration::from_millis(9)).await;
        sender.send(trailers("14")).unwrap();
    });
    assert_eq!(code(&peeking.await.unwrap()), Some(14));
    assert_eq!(started.elapsed(), Duration::from_millis(9));
    assert_eq!(spy.polls(), 2);

    let (sender, body) = piped();
    let started = Instant::now();
    let response = peek(GrpcStatusLayer::new(), body).await.unwrap();
    assert_eq!((code(&response), started.elapsed()), (None, Duration::from_millis(10)));
    // The stream goes on, and wakes whoever reads it now.
    let mut body = response.into_body();
    let mut waiting = by_hand(frame(&mut body));
    assert!(waiting.poll().is_pending());
    sender.send(data("late")).unwrap();
    assert!(waiting.is_woken());
    assert!(matches!(waiting.poll(), Poll::Ready(Some(Ok(frame))) if frame.data_ref().unwrap() == "late"));
}

#[tokio::test(start_paused = true)]
async fn h4_patience_is_the_users() {
    let (_sender, body) = piped();
    let mut peeking = by_hand(peek(GrpcStatusLayer::new().patience(Duration::ZERO), body));
    assert!(peeking.poll().is_ready());

    let (sender, body) = piped();
    let mut peeking = by_hand(peek(GrpcStatusLayer::new().patience(Duration::MAX), body));
    assert!(peeking.poll().is_pending());
    sleep(Duration::from_secs(100_000)).await;
    assert!(!peeking.is_woken() && peeking.poll().is_pending());
    sender.send(trailers("0")).unwrap();
    assert!(peeking.is_woken());
    let Poll::Ready(Ok(response)) = peeking.poll() else { panic!("trailers are there") };
    assert_eq!(code(&response), Some(0));
}

#[tokio::test(start_paused = true)]
async fn h4_a_body_that_fails_before_its_first_frame_is_a_failed_attempt() {
    let (sender, body) = piped();
    sender.send(Err(io::ErrorKind::ConnectionReset.into())).unwrap();
    let error = peek(GrpcStatusLayer::new(), body).await.map(drop).unwrap_err();
    assert_eq!(error.downcast_ref::<io::Error>().unwrap().kind(), io::ErrorKind::ConnectionReset);

    let (sender, body) = piped();
    drop(sender);
    let response = peek(GrpcStatusLayer::new(), body).await.unwrap();
    assert_eq!(code(&response), None);
    assert!(response.body().is_end_stream());
    assert!(frame(&mut response.into_body()).await.is_none());
}

/// A server that answers each attempt as `answer` says, and records what it got.
#[derive(Clone)]
struct Server {
    got: Arc<Mutex<Vec<(Duration, HeaderMap, Bytes)>>>,
    started: Instant,
    answer: fn(usize) -> Response<Full<Bytes>>,
}

impl Server {
    fn new(answer: fn(usize) -> Response<Full<Bytes>>) -> Self {
        Self { got: Arc::default(), started: Instant::now(), answer }
    }

    fn starts(&self) -> Vec<Duration> {
        self.got.lock().unwrap().iter().map(|(start, ..)| *start).collect()
    }

    fn header(&self, name: &str) -> Vec<Option<String>> {
        let got = self.got.lock().unwrap();
        got.iter()
            .map(|(_, headers, _)| headers.get(name).map(|value| value.to_str().unwrap().into()))
            .collect()
    }
}

impl Service<Request<AxumBody>> for Server {
    type Response = Response<Full<Bytes>>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Response<Full<Bytes>>>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<AxumBody>) -> Self::Future {
        let this = self.clone();
        Box::pin(async move {
            let (head, body) = request.into_parts();
            let start = this.started.elapsed();
            let body = body.collect().await.map_err(io::Error::other)?.to_bytes();
            let mut got = this.got.lock().unwrap();
            got.push((start, head.headers, body));
            Ok((this.answer)(got.len()))
        })
    }
}

fn status(code: i32, push_back: Option<&str>) -> Response<Full<Bytes>> {
    let mut response = Response::builder().header("grpc-status", code);
    if let Some(push_back) = push_back {
        response = response.header("grpc-retry-pushback-ms", push_back);
    }
    response.body(Full::default()).unwrap()
}

fn call() -> Request<AxumBody> {
    Request::post("http://shop/shop.Stock/Get").body(AxumBody::new(Full::from("message"))).unwrap()
}

#[tokio::test(start_paused = true)]
async fn h4_unavailable_is_retried_with_the_same_message_and_the_attempts_told() {
    let server = Server::new(|n| status(if n < 3 { 14 } else { 0 }, None));
    let response = grpc_client(4, AxumBody::new).layer(server.clone()).oneshot(call()).await.unwrap();
    assert_eq!((code(&response), attempts(&response)), (Some(0), 3));
    assert!(server.got.lock().unwrap().iter().all(|(_, _, body)| body == "message"));
    let previous = server.header("grpc-previous-rpc-attempts");
    assert_eq!(previous, [None, Some("1".into()), Some("2".into())]);
}

#[tokio::test(start_paused = true)]
async fn h4_case_d16_push_back_is_waited_for_and_a_refusal_obeyed() {
    let server = Server::new(|n| if n == 1 { status(8, Some("2000")) } else { status(0, None) });
    let client = grpc_client(4, AxumBody::new);
    let response = client.layer(server.clone()).oneshot(call()).await.unwrap();
    assert_eq!(code(&response), Some(0));
    let starts = server.starts();
    // R5: never earlier, spread over half of it.
    assert!((Duration::from_secs(2)..=Duration::from_secs(3)).contains(&starts[1]), "{starts:?}");

    for refusal in [status(8, None), status(8, Some("-1")), status(14, Some("-1")), status(14, Some("soon"))]
    {
        let headers = refusal.headers().clone();
        let calls = Arc::new(Mutex::new(0));
        let counted = Arc::clone(&calls);
        let service = service_fn(move |_: Request<AxumBody>| {
            *counted.lock().unwrap() += 1;
            let mut response = Response::new(Full::<Bytes>::default());
            *response.headers_mut() = headers.clone();
            async move { Ok::<_, io::Error>(response) }
        });
        let response = client.layer(service).oneshot(call()).await.unwrap();
        assert_ne!(code(&response), Some(0));
        assert_eq!(*calls.lock().unwrap(), 1, "{:?}", refusal.headers());
    }
}

#[tokio::test(start_paused = true)]
async fn h4_r5_a_push_back_beyond_the_deadline_ends_the_call_with_the_real_status() {
    let server = Server::new(|_| status(14, Some("31000")));
    let response = grpc_client(4, AxumBody::new).layer(server.clone()).oneshot(call()).await.unwrap();
    assert_eq!((code(&response), server.starts().len()), (Some(14), 1));
    let after = PushBack::After(Duration::from_secs(31));
    assert_eq!(GrpcStatus::of(&response).unwrap().push_back(), after);
}

#[tokio::test(start_paused = true)]
async fn h4_an_error_is_retried_for_idempotent_methods_alone() {
    for (policy, expected) in [
        (grpc_retry(AxumBody::new), 1),
        (grpc_retry(AxumBody::new).idempotent(["/shop.Stock/Get"]), 3),
        (grpc_retry(AxumBody::new).idempotent(["/shop.Stock/Take"]), 1),
    ] {
        let calls = Arc::new(Mutex::new(0));
        let counted = Arc::clone(&calls);
        let reset = service_fn(move |_: Request<AxumBody>| {
            *counted.lock().unwrap() += 1;
            async { Err::<Response<Full<Bytes>>, _>(io::Error::from(io::ErrorKind::ConnectionReset)) }
        });
        let error =
            grpc_client(4, AxumBody::new).retry(policy).layer(reset).oneshot(call()).await.unwrap_err();
        assert!(error.is::<io::Error>(), "R8: the real error");
        assert_eq!(*calls.lock().unwrap(), expected);
    }
}

#[tokio::test(start_paused = true)]
async fn h4_h6_grpc_timeout_is_the_deadline_and_what_is_left_is_sent_on() {
    let server = Server::new(|n| if n == 1 { status(14, Some("500")) } else { status(0, None) });
    let mut request = call();
    request.headers_mut().insert("grpc-timeout", HeaderValue::from_static("5S"));
    let client = grpc_client(4, AxumBody::new);
    client.layer(server.clone()).oneshot(request).await.unwrap();
    let starts = server.starts();
    let sent = server.header("grpc-timeout");
    for (start, sent) in starts.iter().zip(&sent) {
        let headers = HeaderMap::from_iter([(
            HeaderName::from_static("grpc-timeout"),
            sent.as_ref().unwrap().parse().unwrap(),
        )]);
        assert_eq!(grpc_timeout(&headers), Some(Duration::from_secs(5) - *start));
    }
    // Without one, what is left of the layer's own 30 s, and so much more that we notice first.
    let server = Server::new(|_| status(0, None));
    client.layer(server.clone()).oneshot(call()).await.unwrap();
    assert_eq!(server.header("grpc-timeout"), [Some("30005000u".to_owned())]);
}

#[tokio::test(start_paused = true)]
async fn h4_h6_a_remote_deadline_only_shortens_and_call_options_replace_both() {
    let never = || {
        service_fn(|_: Request<AxumBody>| std::future::pending::<Result<Response<Full<Bytes>>, Infallible>>())
    };
    let options = |secs| CallOptions::timeout(Duration::from_secs(secs));
    for (header, options, expected_ms) in [
        // So much sooner that the caller gets the answer before it gives up.
        (Some("2S"), None, 1_995),
        (Some("10m"), None, 9),
        (Some("90S"), None, 30_000),
        (Some("bad"), None, 30_000),
        (None, None, 30_000),
        (Some("2S"), Some(options(60)), 60_000),
        (None, Some(options(1)), 1_000),
    ] {
        let mut request = call();
        if let Some(header) = header {
            request.headers_mut().insert("grpc-timeout", HeaderValue::from_static(header));
        }
        if let Some(options) = options {
            request.extensions_mut().insert(options);
        }
        let started = Instant::now();
        let Ok(response) = grpc_server(4).layer(never()).oneshot(request).await;
        assert_eq!(code(&response), Some(4), "DEADLINE_EXCEEDED");
        assert!(matches!(response.extensions().get(), Some(Rejection::Deadline { .. })));
        assert_eq!(started.elapsed(), Duration::from_millis(expected_ms), "{header:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn h4_we_notice_a_deadline_before_a_channel_that_enforces_the_same_header() {
    // As tonic's channel does, whose error a tonic client takes for CANCELLED.
    let channel = service_fn(|request: Request<AxumBody>| async move {
        sleep(grpc_timeout(request.headers()).unwrap()).await;
        Err::<Response<Full<Bytes>>, _>(io::Error::other("Timeout expired"))
    });
    for header in [Some("1S"), Some("20m"), None] {
        let mut request = call();
        if let Some(header) = header {
            request.headers_mut().insert("grpc-timeout", HeaderValue::from_static(header));
        }
        let client = grpc_client(4, AxumBody::new).attempt_timeout(Duration::MAX);
        let response = client.layer(channel).oneshot(request).await.unwrap();
        assert_eq!(code(&response), Some(4), "{header:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn h5_h7_what_does_not_fit_is_a_status_on_both_sides() {
    let never =
        service_fn(|_: Request<AxumBody>| std::future::pending::<Result<Response<Full<Bytes>>, io::Error>>());
    let server = grpc_server(1);
    let service = server.layer(never);
    let waiting: Vec<_> = (0..5).map(|_| tokio::spawn(service.clone().oneshot(call()))).collect();
    sleep(Duration::from_millis(1)).await;
    let stats = server.handle().stats();
    assert_eq!((stats.running, stats.queued), (1, 4), "4 × the limit");
    let full = service.oneshot(call()).await.unwrap();
    assert_eq!((full.status().as_u16(), code(&full)), (200, Some(8)));
    assert_eq!(full.headers()["grpc-retry-pushback-ms"], "1000");
    assert!(full.body().is_end_stream(), "trailers-only");
    assert_eq!(server.handle().clear("deploy"), 4);
    for call in waiting.into_iter().skip(1) {
        assert_eq!(code(&call.await.unwrap().unwrap()), Some(14));
    }

    let client = grpc_client(1, AxumBody::new);
    let service = client.layer(never);
    let _waiting: Vec<_> = (0..17).map(|_| tokio::spawn(service.clone().oneshot(call()))).collect();
    sleep(Duration::from_millis(1)).await;
    assert_eq!(client.handle().stats().queued, 16, "16 × the limit");
    let full = service.oneshot(call()).await.unwrap();
    assert_eq!(code(&full), Some(8));
    assert!(matches!(full.extensions().get(), Some(Rejection::Full { .. })));
}

#[tokio::test(start_paused = true)]
async fn h7_an_attempt_has_10_seconds_and_its_time_out_is_a_status() {
    let never =
        service_fn(|_: Request<AxumBody>| std::future::pending::<Result<Response<Full<Bytes>>, io::Error>>());
    let started = Instant::now();
    let response = grpc_client(1, AxumBody::new).layer(never).oneshot(call()).await.unwrap();
    assert_eq!((code(&response), started.elapsed()), (Some(4), Duration::from_secs(10)));
}

#[tokio::test(start_paused = true)]
async fn the_stacks_own_status_is_not_retried_by_a_client_in_the_same_process() {
    let server = grpc_server(1).max_waiting(0);
    server.handle().close();
    let inner = server.layer(Server::new(|_| unreachable!("closed")));
    let client = grpc_client(1, AxumBody::new);
    let response = client.layer(inner).oneshot(call()).await.unwrap();
    assert_eq!((code(&response), attempts(&response)), (Some(14), 1));
}

#[tokio::test(start_paused = true)]
async fn rows_answers_and_patience_can_be_changed() {
    let aborted = Server::new(|n| status(if n == 1 { 10 } else { 0 }, None));
    let policy = grpc_retry(AxumBody::new).on_code(10, Verdict::transient().not_processed());
    let client = grpc_client(1, AxumBody::new).retry(policy);
    let response = client.layer(aborted).oneshot(call()).await.unwrap();
    assert_eq!((code(&response), attempts(&response)), (Some(0), 2));

    // Boxed, for one's own client code.
    let boxed = grpc_client(1, AxumBody::new)
        .answer(GrpcClientMode::new(Boxed).statuses(GrpcStatusLayer::new().patience(Duration::ZERO)));
    boxed.handle().close();
    let error = boxed.layer(Server::new(|_| unreachable!("closed"))).oneshot(call()).await.unwrap_err();
    assert_eq!(Rejection::find(&*error), Some(&Rejection::Closed));

    let answered = QueueLayer::new(1).answer(GrpcAnswer::new().message(|_| "100%".into()));
    answered.handle().close();
    let response = answered.layer(Server::new(|_| unreachable!("closed"))).oneshot(call()).await.unwrap();
    assert_eq!(response.headers()["grpc-message"], "100%25");
}

#[test]
fn a_limit_that_cannot_be_is_named() {
    assert_eq!(try_grpc_server(0).unwrap_err().field(), "limit");
    assert_eq!(try_grpc_client(0, AxumBody::new).unwrap_err().field(), "limit");
}
