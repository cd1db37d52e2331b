//! An axum server that takes on what it can do, tells the rest when to come back, and drains when it is stopped.
//!
//! ```text
//! cargo run --release --example axum_server
//! ```
//!
//! Forty requests arrive at once. Four run, eight wait, the others are told 503 with `Retry-After`; the health check is
//! outside the limit. With `--json` the last line is one JSON object: `peak`, `attempts`, `rejected`, `served`,
//! `healthy_while_full`, `retry_after`, `cleared`, `still_running`.

use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use axum::Router;
use axum::routing::get;
use bytes::Bytes;
use futures_util::future::join_all;
use http::header::RETRY_AFTER;
use http::{HeaderValue, StatusCode, Uri};
use http_body_util::Empty;
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use serde_json::json;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::time::sleep;
use tower_sluice_http::{BoxError, http_server};

static RUNNING: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

async fn report() -> &'static str {
    PEAK.fetch_max(RUNNING.fetch_add(1, SeqCst) + 1, SeqCst);
    sleep(Duration::from_millis(100)).await;
    RUNNING.fetch_sub(1, SeqCst);
    "the report"
}

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    let queue = http_server(4).max_waiting(8).call_timeout(Duration::from_secs(10));
    let handle = queue.handle();
    let app =
        Router::new().route("/report", get(report)).layer(queue).route("/healthz", get(|| async { "ok" })); // after the layer: not limited

    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let server = listener.local_addr()?;
    let (stop, stopped) = oneshot::channel::<()>(); // In earnest, SIGTERM.
    let drained = handle.clone();
    let serving = tokio::spawn(async move {
        let (tell, left) = oneshot::channel();
        let shutdown = async move {
            stopped.await.ok();
            tell.send(drained.drain(Duration::from_secs(20)).await).ok();
        };
        axum::serve(listener, app).with_graceful_shutdown(shutdown).await?;
        Ok::<_, BoxError>(left.await?)
    });

    // Forty clients at once, and a health check in the middle of it.
    let client: Client<_, Empty<Bytes>> = Client::builder(TokioExecutor::new()).build_http();
    let report: Uri = format!("http://{server}/report").parse()?;
    let calls = (0..40).map(|_| client.get(report.clone()));
    let healthz = async {
        sleep(Duration::from_millis(50)).await;
        client.get(format!("http://{server}/healthz").parse()?).await.map_err(BoxError::from)
    };
    let (answers, health) = tokio::join!(join_all(calls), healthz);
    let (mut served, mut turned_away, mut retry_after) = (0, 0, HeaderValue::from(0));
    for answer in answers {
        let answer = answer?;
        match answer.status() {
            StatusCode::OK => served += 1,
            _ => {
                turned_away += 1;
                retry_after = answer.headers()[RETRY_AFTER].clone();
            }
        }
    }
    let (health, retry_after) = (health?.status(), retry_after.to_str()?);
    println!("{served} served, {turned_away} told 503 and to come back after {retry_after} s");
    println!("at most {} handlers at once; the health check meanwhile: {health}", PEAK.load(SeqCst));

    drop(stop);
    let left = serving.await??;
    println!("stopped: {} cleared, {} still running", left.cleared, left.still_running);
    if std::env::args().any(|arg| arg == "--json") {
        let stats = handle.stats();
        let summary = json!({
            "peak": PEAK.load(SeqCst),
            "attempts": stats.attempts,
            "rejected": stats.rejected.turned_away(),
            "served": served,
            "healthy_while_full": health == StatusCode::OK,
            "retry_after": retry_after,
            "cleared": left.cleared,
            "still_running": left.still_running,
        });
        println!("{summary}");
    }
    Ok(())
}
