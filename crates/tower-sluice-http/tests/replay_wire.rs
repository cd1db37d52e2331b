//! Repeated requests as a real server sees them, over HTTP/1 and HTTP/2 (H1, H2, H3, R8, R9).

mod recorder;

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, Request, Response};
use http_body::Frame;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tower::retry::RetryLayer;
use tower::{Layer, ServiceBuilder, ServiceExt};
use tower_sluice_http::backoff::Backoff;
use tower_sluice_http::replay::{ReplayBody, ReplayLayer};
use tower_sluice_http::{
    AttemptNumber, BoxError, HttpRetry, HttpRetryPolicy, attempts, http_client, http_retry,
};

use recorder::{Act, Recorder, http1, http2};

/// Real time, so short delays.
fn policy() -> HttpRetryPolicy {
    http_retry().backoff(Backoff::exponential(Duration::from_millis(5), Duration::from_millis(20)))
}

async fn send_over(
    client: Client<HttpConnector, Body>,
    request: Request<Body>,
) -> Result<Response<Incoming>, BoxError> {
    let queue = http_client(4)
        .retry(policy().idempotency_key("idempotency-key").replay_bodies(64 << 10, Body::new))
        .call_timeout(Duration::from_secs(20));
    queue.layer(client).oneshot(request).await
}

/// A body of these frames, of unknown length.
struct Frames(mpsc::UnboundedReceiver<Result<Frame<Bytes>, io::Error>>);

impl http_body::Body for Frames {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        self.0.poll_recv(cx)
    }
}

fn frames(frames: impl IntoIterator<Item = Result<Frame<Bytes>, io::Error>>) -> Body {
    let (sender, receiver) = mpsc::unbounded_channel();
    for frame in frames {
        sender.send(frame).unwrap();
    }
    Body::new(Frames(receiver))
}

fn ten_kilobytes() -> Bytes {
    (0..10_240_u32).map(|n| (n * 7 % 251) as u8).collect()
}

fn data(bytes: impl Into<Bytes>) -> Result<Frame<Bytes>, io::Error> {
    Ok(Frame::data(bytes.into()))
}

#[tokio::test]
async fn h2_case_e1_three_attempts_are_the_same_request_to_the_last_byte_and_header() {
    for client in [http1, http2] {
        for method in [Method::POST, Method::PUT, Method::PATCH] {
            for known_length in [true, false] {
                let server = Recorder::start(|n| Act::Answer(if n < 3 { 500 } else { 200 })).await;
                let body = ten_kilobytes();
                let request = Request::builder()
                    .method(method.clone())
                    .uri(server.uri())
                    .header("x-twice", "1")
                    .header("x-twice", "2")
                    .body(if known_length {
                        Body::from(body.clone())
                    } else {
                        frames(body.chunks(1_000).map(|chunk| data(chunk.to_vec())))
                    })
                    .unwrap();
                let response = send_over(client(), request).await.unwrap();
                assert_eq!((response.status().as_u16(), attempts(&response)), (200, 3));
                let seen = server.attempts();
                assert_eq!(seen.len(), 3);
                assert_eq!(seen[0].body.as_ref(), Some(&body));
                let length = seen[0].headers.get("content-length").map(HeaderValue::as_bytes);
                assert_eq!(length, known_length.then_some(b"10240".as_slice()));
                assert_eq!(seen[0], seen[1]);
                assert_eq!(seen[0], seen[2]);
                let keyed = seen[0].headers.contains_key("idempotency-key");
                assert_eq!(keyed, method != Method::PUT, "H1");
            }
        }
    }
}

#[tokio::test]
async fn h2_an_empty_body_stays_one() {
    let server = Recorder::start(|n| Act::Answer(if n == 1 { 500 } else { 200 })).await;
    let request = Request::post(server.uri()).body(Body::empty()).unwrap();
    send_over(http1(), request).await.unwrap();
    let seen = server.attempts();
    assert_eq!((seen.len(), seen[0].body.as_deref()), (2, Some(&b""[..])));
    assert_eq!(seen[0], seen[1]);
}

#[tokio::test]
async fn h2_trailers_are_sent_again() {
    let server = Recorder::start(|n| Act::Answer(if n == 1 { 500 } else { 200 })).await;
    let trailers = HeaderMap::from_iter([(http::header::ETAG, HeaderValue::from_static("sum"))]);
    let body = frames([data("a"), data("b"), Ok(Frame::trailers(trailers.clone()))]);
    send_over(http2(), Request::put(server.uri()).body(body).unwrap()).await.unwrap();
    let seen = server.attempts();
    assert_eq!(seen[0].trailers, Some(trailers));
    assert_eq!(seen[0], seen[1]);
}

#[tokio::test]
async fn h2_case_e2_a_connection_refused_before_the_body_was_read() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let request =
        Request::post(format!("http://{address}/item")).body(frames([data(ten_kilobytes())])).unwrap();
    let sending = tokio::spawn({
        let policy = http_retry()
            .backoff(Backoff::exponential(Duration::from_millis(50), Duration::from_millis(200)))
            .max_attempts(100)
            .replay_bodies(64 << 10, Body::new);
        http_client(4).retry(policy).layer(http1()).oneshot(request)
    });
    tokio::time::sleep(Duration::from_millis(50)).await;
    let server = Recorder::on(TcpListener::bind(address).await.unwrap(), |_| Act::Answer(200));
    let response = tokio::time::timeout(Duration::from_secs(10), sending).await;
    let response = response.expect("no stall").unwrap().unwrap();
    assert!(attempts(&response) > 1);
    assert_eq!(server.attempts()[0].body, Some(ten_kilobytes()));
}

#[tokio::test]
async fn h2_a_connection_closed_in_mid_body() {
    let server = Recorder::start(|n| if n == 1 { Act::Close } else { Act::Answer(200) }).await;
    let (sender, receiver) = mpsc::unbounded_channel();
    sender.send(data(vec![1; 1_000])).unwrap();
    let request = Request::put(server.uri()).body(Body::new(Frames(receiver))).unwrap();
    let sending = tokio::spawn(send_over(http1(), request));
    while server.attempts().len() < 2 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    sender.send(data(vec![2; 1_000])).unwrap();
    drop(sender);
    let response = sending.await.unwrap().unwrap();
    assert_eq!((response.status().as_u16(), attempts(&response)), (200, 2));
    let whole = [vec![1; 1_000], vec![2; 1_000]].concat();
    assert_eq!(server.attempts()[1].body, Some(whole.into()));
}

#[tokio::test]
async fn h2_an_answer_before_the_body_has_ended() {
    // HTTP/2 goes on sending the first attempt's body while the second one replays it: the first lets go.
    for client in [http1, http2] {
        for act in
            [(|n| if n == 1 { Act::AnswerAtOnce(503) } else { Act::Answer(200) }) as fn(usize) -> Act, |n| {
                if n == 1 { Act::AnswerAfterAFrame(503) } else { Act::Answer(200) }
            }]
        {
            let server = Recorder::start(act).await;
            let (sender, receiver) = mpsc::unbounded_channel();
            sender.send(data("one ")).unwrap();
            let request = Request::put(server.uri()).body(Body::new(Frames(receiver))).unwrap();
            let sending = tokio::spawn(send_over(client(), request));
            while server.attempts().len() < 2 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            sender.send(data("two ")).unwrap();
            tokio::time::sleep(Duration::from_millis(5)).await;
            sender.send(data("three")).unwrap();
            drop(sender);
            let response = tokio::time::timeout(Duration::from_secs(10), sending).await;
            let response = response.expect("no lost wake-up").unwrap().unwrap();
            assert_eq!((response.status().as_u16(), attempts(&response)), (200, 2));
            assert_eq!(server.attempts()[1].body.as_deref(), Some(&b"one two three"[..]));
        }
    }
}

#[tokio::test]
async fn h2_case_e5_a_body_beyond_the_cap_is_sent_whole_and_once() {
    for client in [http1, http2] {
        for known_length in [true, false] {
            let server = Recorder::start(|_| Act::Answer(503)).await;
            let body = vec![7; 200 << 10];
            let sent = if known_length {
                Body::from(body.clone())
            } else {
                frames(body.chunks(10_000).map(|chunk| data(chunk.to_vec())))
            };
            let response = send_over(client(), Request::put(server.uri()).body(sent).unwrap()).await.unwrap();
            // R8: the real answer.
            assert_eq!((response.status().as_u16(), attempts(&response)), (503, 1));
            let all = response.into_body().collect().await.unwrap().to_bytes();
            assert_eq!(all.len(), 100, "the answer's body is whole");
            let seen = server.attempts();
            assert_eq!(seen.len(), 1);
            assert_eq!(seen[0].body.as_deref(), Some(&body[..]));
        }
    }
}

#[tokio::test]
async fn h2_a_body_that_fails_is_not_sent_again() {
    let server = Recorder::start(|_| Act::Answer(200)).await;
    let body = frames([data("begun"), Err(io::Error::other("disk"))]);
    let error = send_over(http1(), Request::put(server.uri()).body(body).unwrap()).await.unwrap_err();
    let mut chain = std::iter::successors(Some(&*error as &dyn std::error::Error), |error| error.source());
    assert!(chain.any(|error| error.to_string() == "disk"), "R8: the real error: {error:?}");
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(server.attempts().len() <= 1);
}

#[tokio::test]
async fn h2_expect_and_upgrade_go_through() {
    let server = Recorder::start(|n| Act::Answer(if n == 1 { 500 } else { 200 })).await;
    let request =
        Request::put(server.uri()).header("expect", "100-continue").body(Body::from("content")).unwrap();
    send_over(http1(), request).await.unwrap();
    let seen = server.attempts();
    assert_eq!(seen[0], seen[1]);
    assert_eq!(seen[1].headers["expect"], "100-continue");
    assert_eq!(seen[1].body.as_deref(), Some(&b"content"[..]));

    // A server that fails once and then switches protocols.
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        for answer in [
            "HTTP/1.1 503 \r\nconnection: close\r\ncontent-length: 0\r\n\r\n",
            "HTTP/1.1 101 \r\nconnection: upgrade\r\nupgrade: echo\r\n\r\n",
        ] {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                head.push(stream.read_u8().await.unwrap());
            }
            assert!(head.windows(13).any(|line| line.eq_ignore_ascii_case(b"upgrade: echo")));
            stream.write_all(answer.as_bytes()).await.unwrap();
            let byte = stream.read_u8().await;
            if let Ok(byte) = byte {
                stream.write_u8(byte).await.unwrap();
            }
        }
    });
    let request = Request::get(format!("http://{address}/"))
        .header("connection", "upgrade")
        .header("upgrade", "echo")
        .body(Body::empty())
        .unwrap();
    let response = send_over(http1(), request).await.unwrap();
    assert_eq!((response.status().as_u16(), attempts(&response)), (101, 2));
    let upgraded = hyper::upgrade::on(response).await.unwrap();
    let mut echo = hyper_util::rt::TokioIo::new(upgraded);
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    echo.write_u8(42).await.unwrap();
    assert_eq!(echo.read_u8().await.unwrap(), 42);
}

#[tokio::test]
async fn h3_case_e10_the_connection_of_a_failed_answer_serves_the_next_attempt() {
    for (status, length, connections) in [(503, 0, 1), (503, 10_000, 1), (503, 10 << 20, 3)] {
        let act: fn(usize) -> Act = match length {
            0 => |n| if n < 3 { Act::AnswerLong(503, 0) } else { Act::Answer(200) },
            10_000 => |n| if n < 3 { Act::AnswerLong(503, 10_000) } else { Act::Answer(200) },
            // Too long to read: it is dropped, and its connection with it.
            _ => |n| if n < 3 { Act::AnswerLong(503, 10 << 20) } else { Act::Answer(200) },
        };
        let server = Recorder::start(act).await;
        let request = Request::put(server.uri()).body(Body::from("content")).unwrap();
        let response = send_over(http1(), request).await.unwrap();
        assert_eq!((response.status().as_u16(), attempts(&response)), (200, 3));
        assert_eq!(server.connections(), connections, "{status} with {length} bytes");
    }
}

#[tokio::test]
async fn r9_case_e13_a_body_that_cannot_be_copied_has_one_attempt_and_the_normal_result() {
    let server = Recorder::start(|_| Act::Answer(503)).await;
    let request = Request::put(server.uri()).body(Body::from("content")).unwrap();
    let queue = http_client(4).retry(policy().empty_bodies());
    let response = queue.layer(http1()).oneshot(request).await.unwrap();
    assert_eq!((response.status().as_u16(), attempts(&response)), (503, 1));
    assert_eq!(server.attempts().len(), 1);
    // The same stack repeats what has no body, and with `replay_bodies` the other too.
    let request = Request::get(server.uri()).body(Body::empty()).unwrap();
    let response = queue.layer(http1()).oneshot(request).await.unwrap();
    assert_eq!(attempts(&response), 3);
    let request = Request::put(server.uri()).body(Body::from("content")).unwrap();
    let response = send_over(http1(), request).await.unwrap();
    assert_eq!(attempts(&response), 3);
}

#[tokio::test]
async fn case_e11_a_post_without_key_is_sent_once_after_it_may_have_been_processed() {
    for status in [500, 502, 503, 504] {
        let act: fn(usize) -> Act = match status {
            500 => |_| Act::Answer(500),
            502 => |_| Act::Answer(502),
            503 => |_| Act::Answer(503),
            _ => |_| Act::Answer(504),
        };
        let server = Recorder::start(act).await;
        let request = Request::post(server.uri()).body(Body::from("charge")).unwrap();
        let queue = http_client(4).retry(policy().replay_bodies(64 << 10, Body::new));
        let response = queue.layer(http1()).oneshot(request).await.unwrap();
        assert_eq!((response.status().as_u16(), server.attempts().len()), (status, 1));
    }
}

/// A proxy hands the extensions of one request on to the next, whose body is another.
#[tokio::test]
async fn h2_a_request_that_brings_another_ones_extensions_has_its_own_body() {
    let kept = Arc::new(Mutex::new(Vec::new()));
    let keep = Arc::clone(&kept);
    let fails = tower::service_fn(move |request: Request<Body>| {
        keep.lock().unwrap().push(request);
        async { Ok::<_, io::Error>(Response::builder().status(500).body(Full::<Bytes>::default()).unwrap()) }
    });
    let stack = || http_client(4).retry(policy().replay_bodies(64 << 10, Body::new)).layer(fails.clone());
    stack().oneshot(Request::put("/").body(Body::from("secret")).unwrap()).await.unwrap();
    let first = kept.lock().unwrap().remove(0);
    let mut second = Request::put("/").body(Body::empty()).unwrap();
    *second.extensions_mut() = first.extensions().clone();
    second.extensions_mut().remove::<AttemptNumber>();
    kept.lock().unwrap().clear();
    stack().oneshot(second).await.unwrap();
    let requests = std::mem::take(&mut *kept.lock().unwrap());
    assert_eq!(requests.len(), 3);
    for request in requests {
        assert_eq!(request.into_body().collect().await.unwrap().to_bytes(), "");
    }
    drop(first);

    // The same with `ReplayLayer`: a body that had become too long says nothing about the next one.
    let calls = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&calls);
    let reads = tower::service_fn(move |request: Request<ReplayBody<Full<Bytes>>>| {
        let seen = Arc::clone(&seen);
        async move {
            let (head, body) = request.into_parts();
            let again = body.clone();
            let _ = body.collect().await;
            seen.lock().unwrap().push((head.extensions, again));
            Ok::<_, io::Error>(Response::builder().status(500).body(Full::<Bytes>::default()).unwrap())
        }
    });
    let stack = ServiceBuilder::new()
        .layer(ReplayLayer::new().cap(64))
        .layer(RetryLayer::new(policy()))
        .service(reads);
    let long = Request::put("/").body(Full::from(vec![1; 65])).unwrap();
    stack.clone().oneshot(long).await.unwrap();
    let (extensions, _keeps_the_body) = calls.lock().unwrap().remove(0);
    assert!(calls.lock().unwrap().is_empty());
    let mut short = Request::put("/").body(Full::default()).unwrap();
    *short.extensions_mut() = extensions;
    stack.oneshot(short).await.unwrap();
    assert_eq!(calls.lock().unwrap().len(), 3);
}

#[tokio::test]
async fn h2_the_same_in_towers_retry_layer() {
    let client: Client<HttpConnector, ReplayBody<Full<Bytes>>> =
        Client::builder(TokioExecutor::new()).build_http();
    let stack = ServiceBuilder::new()
        .layer(ReplayLayer::new().cap(20_000))
        .layer(RetryLayer::new(policy()))
        .service(client);

    let server = Recorder::start(|n| Act::Answer(if n < 3 { 500 } else { 200 })).await;
    let request = Request::put(server.uri()).body(Full::new(ten_kilobytes())).unwrap();
    let response = stack.clone().oneshot(request).await.unwrap();
    assert_eq!(response.status(), 200);
    let seen = server.attempts();
    assert_eq!(seen[0].body, Some(ten_kilobytes()));
    assert_eq!((&seen[0], &seen[0]), (&seen[1], &seen[2]));

    // R8: beyond the cap the first answer is the caller's, and no error of ours takes its place.
    let server = Recorder::start(|_| Act::Answer(500)).await;
    let request = Request::put(server.uri()).body(Full::new(vec![1; 20_001].into())).unwrap();
    let response = stack.oneshot(request).await.unwrap();
    assert_eq!((response.status().as_u16(), server.attempts().len()), (500, 1));
}
