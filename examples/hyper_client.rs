//! A client around hyper: at most eight requests at once, retries that do not charge anybody twice.
//!
//! ```text
//! cargo run --release --example hyper_client
//! ```
//!
//! The server takes charges, honours idempotency keys, and fails on purpose: every third request is turned away before
//! it is processed, and every fifth is processed and its answer lost. With `--json` the last line is one JSON object:
//! `peak` (as the server sees it), `attempts`, `rejected`, `retries`, `succeeded`, `charged`, `charged_twice`.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::routing::post;
use bytes::Bytes;
use futures_util::future::join_all;
use http::{HeaderMap, HeaderValue, Request, StatusCode};
use http_body_util::Full;
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use serde_json::json;
use tokio::net::TcpListener;
use tokio::time::sleep;
use tower::{Layer, ServiceExt};
use tower_sluice_http::reject::Rejection;
use tower_sluice_http::{BoxError, HttpRetry, http_client, http_retry};

#[derive(Default)]
struct Books {
    requests: usize,
    running: usize,
    peak: usize,
    keys: HashSet<HeaderValue>,
    /// How often each order was charged.
    charged: HashMap<String, usize>,
}

async fn charge(State(books): State<Arc<Mutex<Books>>>, headers: HeaderMap, order: String) -> StatusCode {
    let number = {
        let mut books = books.lock().unwrap();
        books.requests += 1;
        books.running += 1;
        books.peak = books.peak.max(books.running);
        books.requests
    };
    sleep(Duration::from_millis(5)).await;
    let mut books = books.lock().unwrap();
    books.running -= 1;
    if number.is_multiple_of(3) {
        return StatusCode::SERVICE_UNAVAILABLE;
    }
    // A key that is known was charged already: it is answered, and nothing is done.
    if books.keys.insert(headers["idempotency-key"].clone()) {
        *books.charged.entry(order).or_default() += 1;
    }
    if number.is_multiple_of(5) { StatusCode::BAD_GATEWAY } else { StatusCode::OK }
}

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    let books = Arc::<Mutex<Books>>::default();
    let app = Router::new().route("/charge", post(charge)).with_state(books.clone());
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let server = listener.local_addr()?;
    tokio::spawn(async move { axum::serve(listener, app).await });

    let hyper_client: Client<_, Full<Bytes>> = Client::builder(TokioExecutor::new()).build_http();
    let queue = http_client(8).max_waiting(92).name("shop").seed(7);
    let queue = queue.retry(http_retry().max_attempts(10).idempotency_key("idempotency-key"));
    let (handle, shop) = (queue.handle(), queue.layer(hyper_client));

    // A hundred and twenty charges at once: a hundred fit, the others are turned away before anything is sent.
    let calls = (0..120).map(|n| {
        let body = Full::from(format!("order {n}"));
        let request = Request::post(format!("http://{server}/charge")).body(body).unwrap();
        shop.clone().oneshot(request)
    });
    let (mut succeeded, mut failed, mut rejected) = (0, 0, 0);
    for result in join_all(calls).await {
        match result {
            Ok(response) if response.status().is_success() => succeeded += 1,
            Ok(_) => failed += 1,
            Err(error) => match Rejection::find(&*error) {
                Some(Rejection::Full { .. }) => rejected += 1,
                _ => return Err(error),
            },
        }
    }

    let (stats, books) = (handle.stats(), books.lock().unwrap());
    let charged_twice = books.charged.values().filter(|times| **times > 1).count();
    println!("{succeeded} succeeded, {failed} failed, {rejected} turned away by our own queue");
    println!(
        "{} attempts, {} of them retries; at most {} at once",
        stats.attempts, stats.retries, books.peak
    );
    println!("{} charged, {charged_twice} charged twice", books.charged.len());
    if std::env::args().any(|arg| arg == "--json") {
        let summary = json!({
            "peak": books.peak,
            "attempts": stats.attempts,
            "rejected": rejected,
            "retries": stats.retries,
            "succeeded": succeeded,
            "charged": books.charged.len(),
            "charged_twice": charged_twice,
        });
        println!("{summary}");
    }
    Ok(())
}
