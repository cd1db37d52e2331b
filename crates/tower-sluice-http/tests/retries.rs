//! Retries end to end: a real client, a real server, and the policy between.
#![cfg(feature = "client")]

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::time::Instant;
use tower::retry::RetryLayer;
use tower::{Layer, Service, ServiceExt};
use tower_sluice_http::backoff::Backoff;
use tower_sluice_http::queue::QueueLayer;
use tower_sluice_http::reject::Boxed;
use tower_sluice_http::{HttpMode, HttpRetry, HttpRetryPolicy, attempts, http_client, http_retry};

fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// What the server saw of a request: when its head came, on which connection, and the head.
struct Seen {
    at: Instant,
    connection: usize,
    head: String,
}

/// Answers the first two requests with 429 and `Retry-After: 1`, then with 200; keeps connections open.
async fn rate_limited() -> (SocketAddr, Arc<Mutex<Vec<Seen>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let seen = Arc::<Mutex<Vec<Seen>>>::default();
    let log = seen.clone();
    tokio::spawn(async move {
        for connection in 0.. {
            let (mut stream, _) = listener.accept().await.unwrap();
            let log = log.clone();
            tokio::spawn(async move {
                loop {
                    let mut head = Vec::new();
                    while !head.ends_with(b"\r\n\r\n") {
                        let Ok(byte) = stream.read_u8().await else { return };
                        head.push(byte);
                    }
                    let head = String::from_utf8(head).unwrap().to_lowercase();
                    let mut body = [0; 4];
                    stream.read_exact(&mut body).await.unwrap();
                    assert_eq!(&body, b"4EUR");
                    let count = {
                        let mut log = log.lock().unwrap();
                        log.push(Seen { at: Instant::now(), connection, head });
                        log.len()
                    };
                    let answer: &[u8] = if count < 3 {
                        b"HTTP/1.1 429 Slow Down\r\nretry-after: 1\r\ncontent-length: 4\r\n\r\nwait"
                    } else {
                        b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\ndone"
                    };
                    stream.write_all(answer).await.unwrap();
                }
            });
        }
    });
    (address, seen)
}

type HyperClient = Client<HttpConnector, Full<Bytes>>;

fn hyper_client() -> HyperClient {
    Client::builder(TokioExecutor::new()).build_http()
}

fn charge(server: SocketAddr) -> Request<Full<Bytes>> {
    Request::post(format!("http://{server}/charge")).body(Full::from("4EUR")).unwrap()
}

/// A POST without a key: on a 429 it may be repeated all the same (H1).
async fn waits_as_told<S, E>(service: S, (server, seen): (SocketAddr, Arc<Mutex<Vec<Seen>>>))
where
    S: Service<Request<Full<Bytes>>, Response = Response<Incoming>, Error = E>,
    E: std::fmt::Debug,
{
    let response = service.oneshot(charge(server)).await.unwrap();
    assert_eq!((response.status().as_u16(), attempts(&response)), (200, 3));
    assert_eq!(response.into_body().collect().await.unwrap().to_bytes(), "done");

    let seen = seen.lock().unwrap();
    assert_eq!(seen.len(), 3);
    for pair in seen.windows(2) {
        // From d to d + d/2; the server's own clock, so that more than the draw may pass, but never less.
        assert!(pair[1].at - pair[0].at >= Duration::from_secs(1), "R5, case D13: never early");
        assert_eq!(pair[0].head, pair[1].head, "the same request each time");
        assert_eq!(pair[0].connection, pair[1].connection, "H3: the connection is used again");
    }
}

#[tokio::test]
async fn case_d15_a_real_servers_retry_after_is_waited_for_in_the_queue() {
    waits_as_told(http_client(4).layer(hyper_client()), rate_limited().await).await;
}

#[tokio::test]
async fn case_d15_a_real_servers_retry_after_is_waited_for_in_towers_retry() {
    waits_as_told(RetryLayer::new(http_retry()).layer(hyper_client()), rate_limited().await).await;
}

/// How many attempts the stack makes of a charge that fails each time.
async fn attempts_of(queue: QueueLayer<HttpRetryPolicy, HttpMode<Boxed>>, server: SocketAddr) -> u64 {
    queue.layer(hyper_client()).oneshot(charge(server)).await.expect_err("the server fails on purpose");
    queue.handle().stats().attempts
}

#[tokio::test]
async fn h1_case_e12_an_unkeyed_post_is_repeated_where_surely_not_processed_and_a_keyed_one_also_where_perhaps()
 {
    let queue = || http_client(1).retry(http_retry().backoff(Backoff::exponential(ms(1), ms(2))));
    let keyed = || queue().map_retry(|retry| retry.idempotency_key("idempotency-key"));

    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let refusing = listener.local_addr().unwrap();
    drop(listener);
    assert_eq!(attempts_of(queue(), refusing).await, 3);

    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let closing = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            // Reads the request, and closes without a word.
            let mut request = Vec::new();
            while !request.ends_with(b"4EUR") && stream.read_buf(&mut request).await.is_ok_and(|n| n > 0) {}
        }
    });
    assert_eq!(attempts_of(queue(), closing).await, 1);
    assert_eq!(attempts_of(keyed(), closing).await, 3);
}
