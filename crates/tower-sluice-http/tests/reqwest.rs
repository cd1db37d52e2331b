//! The same policy over reqwest's client (H1, H2, R8, R9), by its own types and by those of `http`.
#![cfg(feature = "reqwest")]

mod recorder;

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::Request;
use http_body::Frame;
use http_body_util::BodyExt;
use reqwest::{Body, Client, Method};
use tokio::net::TcpListener;
use tower::{Layer, ServiceExt};
use tower_sluice_http::backoff::Backoff;
use tower_sluice_http::queue::CallOptions;
use tower_sluice_http::reject::Rejection;
use tower_sluice_http::verdict::{Classify, Totals, Verdict};
use tower_sluice_http::{
    HttpRetry, HttpRetryPolicy, HttpVerdicts, ReqwestClient, attempts, http_client, http_retry,
};

use recorder::{Act, Recorder};

/// Real time, so short delays.
fn policy() -> HttpRetryPolicy {
    http_retry().backoff(Backoff::exponential(Duration::from_millis(5), Duration::from_millis(20)))
}

/// Two frames, of unknown length.
struct Stream(Vec<&'static str>);

impl http_body::Body for Stream {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        Poll::Ready(self.0.pop().map(|part| Ok(Frame::data(part.into()))))
    }
}

fn stream() -> Body {
    Body::wrap(Stream(vec!["two", "one "]))
}

fn client() -> Client {
    // Ours is the retry that is tested.
    Client::builder().retry(reqwest::retry::never()).build().unwrap()
}

fn fails_twice(n: usize) -> Act {
    Act::Answer(if n < 3 { 500 } else { 200 })
}

#[tokio::test]
async fn h1_h2_reqwests_own_requests_are_repeated_with_the_same_body_and_key() {
    for method in [Method::POST, Method::PUT] {
        let server = Recorder::start(fails_twice).await;
        let queue = http_client(4).retry(policy().idempotency_key("idempotency-key"));
        let request = client().request(method.clone(), server.uri()).body("charge").build().unwrap();
        let response = queue.layer(client()).oneshot(request).await.unwrap();
        assert_eq!(response.status(), 200);
        assert_eq!(response.extensions().get(), Some(&Totals::new(3)), "R8");
        assert_eq!(response.text().await.unwrap().len(), 100);
        let seen = server.attempts();
        assert_eq!(seen[0].body.as_deref(), Some(&b"charge"[..]));
        assert_eq!((&seen[0], &seen[0]), (&seen[1], &seen[2]));
        assert_eq!(seen[0].headers.contains_key("idempotency-key"), method == Method::POST);
    }
    // Without a key a POST is sent once.
    let server = Recorder::start(fails_twice).await;
    let request = client().post(server.uri()).body("charge").build().unwrap();
    let response = http_client(4).retry(policy()).layer(client()).oneshot(request).await.unwrap();
    assert_eq!((response.status().as_u16(), server.attempts().len()), (500, 1));
}

#[tokio::test]
async fn r9_a_stream_in_reqwests_own_request_has_one_attempt_and_the_normal_result() {
    let server = Recorder::start(fails_twice).await;
    let request = client().put(server.uri()).body(stream()).build().unwrap();
    let response = http_client(4).retry(policy()).layer(client()).oneshot(request).await.unwrap();
    assert_eq!(response.status(), 500);
    let seen = server.attempts();
    assert_eq!((seen.len(), seen[0].body.as_deref()), (1, Some(&b"one two"[..])));
}

#[tokio::test]
async fn h2_over_the_http_crates_types_streams_are_replayed_and_a_request_has_its_own_options() {
    let server = Recorder::start(fails_twice).await;
    let queue = http_client(4).retry(policy().replay_bodies(64 << 10, Body::wrap));
    let stack = queue.layer(ReqwestClient::new(client()));
    let put = || Request::put(server.uri()).body(stream()).unwrap();
    let response = stack.clone().oneshot(put()).await.unwrap();
    assert_eq!((response.status().as_u16(), attempts(&response)), (200, 3));
    assert_eq!(response.into_body().collect().await.unwrap().to_bytes().len(), 100);
    let seen = server.attempts();
    assert_eq!(seen[0].body.as_deref(), Some(&b"one two"[..]));
    assert!(!seen[0].headers.contains_key("content-length"));
    assert_eq!((&seen[0], &seen[0]), (&seen[1], &seen[2]));

    let server = Recorder::start(|_| Act::Answer(500)).await;
    let mut once = Request::put(server.uri()).body(stream()).unwrap();
    once.extensions_mut().insert(CallOptions::default().no_retry());
    let response = stack.oneshot(once).await.unwrap();
    assert_eq!((response.status().as_u16(), server.attempts().len()), (500, 1));
}

#[tokio::test]
async fn h3_the_connection_of_a_failed_answer_serves_the_next_attempt() {
    let server =
        Recorder::start(|n| if n < 3 { Act::AnswerLong(503, 1_000) } else { Act::Answer(200) }).await;
    let client = client();
    let request = client.put(server.uri()).body("content").build().unwrap();
    http_client(4).retry(policy()).layer(client).oneshot(request).await.unwrap();
    assert_eq!((server.attempts().len(), server.connections()), (3, 1));
}

#[tokio::test]
async fn case_e12_reqwests_errors_are_told_apart() {
    let verdict = |error: reqwest::Error| HttpVerdicts::new().classify(&Err::<reqwest::Response, _>(error));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let uri = format!("http://{address}/");
    // It takes connections and says nothing.
    let late = client().get(&uri).timeout(Duration::from_millis(20)).send().await.unwrap_err();
    assert_eq!(verdict(late), Verdict::timeout());
    let closed = tokio::spawn(client().get(&uri).send());
    for _ in 0..2 {
        drop(listener.accept().await.unwrap());
    }
    assert_eq!(verdict(closed.await.unwrap().unwrap_err()), Verdict::transient(), "perhaps processed");
    drop(listener);
    let refused = client().get(&uri).send().await.unwrap_err();
    assert_eq!(verdict(refused), Verdict::transient().not_processed());

    // A request that cannot be sent at all.
    let error =
        ReqwestClient::default().oneshot(Request::get("/no-host").body("").unwrap()).await.unwrap_err();
    assert_eq!(verdict(error), Verdict::Fatal);
}

#[tokio::test]
async fn a_rejection_is_found_in_the_boxed_error() {
    let queue = http_client(4);
    queue.handle().close();
    let request = client().get("http://127.0.0.1:1/").build().unwrap();
    let error = queue.layer(client()).oneshot(request).await.unwrap_err();
    assert_eq!(Rejection::find(&*error), Some(&Rejection::Closed));
}
