//! `Retry-After` end to end: a real client, a real server, and the policy between (case D15).
#![cfg(feature = "client")]

use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt, Full};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::time::Instant;
use tower::retry::RetryLayer;
use tower::{Layer, ServiceExt};
use tower_sluice_http::{attempts, http_retry};

/// What the server saw of a request: when its head came, on which connection, and the head.
struct Seen {
    at: Instant,
    connection: usize,
    head: String,
}

/// Answers the first two requests with 429 and `Retry-After: 1`, then with 200; keeps connections open.
async fn rate_limited() -> (std::net::SocketAddr, Arc<Mutex<Vec<Seen>>>) {
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

#[tokio::test]
async fn case_d15_a_real_servers_retry_after_is_waited_for() {
    let (server, seen) = rate_limited().await;
    let client: Client<_, Full<Bytes>> = Client::builder(TokioExecutor::new()).build_http();
    let service = RetryLayer::new(http_retry().seed(7)).layer(client);

    // A POST without a key: on a 429 it may be repeated all the same (H1).
    let charge = Request::post(format!("http://{server}/charge")).body(Full::from("4EUR")).unwrap();
    let response = service.oneshot(charge).await.unwrap();
    assert_eq!(response.status(), 200);
    assert_eq!(attempts(&response), 3);
    assert_eq!(response.into_body().collect().await.unwrap().to_bytes(), "done");

    let seen = seen.lock().unwrap();
    assert_eq!(seen.len(), 3);
    for pair in seen.windows(2) {
        // From d to d + d/2; the server's own clock, so that more than the draw may pass, but never less.
        assert!(pair[1].at - pair[0].at >= Duration::from_secs(1), "R5: never early");
        assert_eq!(pair[0].head, pair[1].head, "the same request each time");
        assert_eq!(pair[0].connection, pair[1].connection, "H3: the connection is used again");
    }
}
