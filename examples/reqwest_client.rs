//! reqwest as it is, under a queue: a server that asks for peace gets it.
//!
//! ```text
//! cargo run --release --example reqwest_client
//! ```
//!
//! The server answers 429 with `Retry-After: 1` once it has served twenty requests, for one second. One such answer
//! holds the whole line, so that the calls that wait do not each spend an attempt to learn the same. With `--json` the
//! last line is one JSON object: `peak` (as the server sees it), `attempts`, `rejected`, `succeeded`, `throttled`
//! (answers 429), `early` (requests that came before the second was over).

use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use futures_util::future::join_all;
use http::StatusCode;
use serde_json::json;
use tokio::net::TcpListener;
use tokio::time::{Instant, sleep};
use tower::{Layer, ServiceExt};
use tower_sluice_http::{BoxError, http_client};

#[derive(Default)]
struct Desk {
    served: usize,
    running: usize,
    peak: usize,
    throttled: usize,
    early: usize,
    closed_until: Option<Instant>,
}

async fn item(State(desk): State<Arc<Mutex<Desk>>>) -> Response {
    {
        let mut desk = desk.lock().unwrap();
        desk.running += 1;
        desk.peak = desk.peak.max(desk.running);
    }
    sleep(Duration::from_millis(5)).await;
    let mut desk = desk.lock().unwrap();
    desk.running -= 1;
    desk.served += 1;
    if desk.served > 20 {
        let now = Instant::now();
        let first = desk.closed_until.is_none();
        let until = *desk.closed_until.get_or_insert(now + Duration::from_secs(1));
        if now < until {
            desk.throttled += 1;
            // Those that were under way with the first could not know.
            desk.early += usize::from(!first && until - now < Duration::from_millis(900));
            return (StatusCode::TOO_MANY_REQUESTS, [("retry-after", "1")]).into_response();
        }
    }
    "an item".into_response()
}

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    let desk = Arc::<Mutex<Desk>>::default();
    let app = Router::new().route("/item", get(item)).with_state(desk.clone());
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("http://{}/item", listener.local_addr()?);
    tokio::spawn(async move { axum::serve(listener, app).await });

    let client = reqwest::Client::new();
    let queue = http_client(4).name("desk").hold_on_retry_after(Duration::from_secs(5));
    let handle = queue.handle();
    let service = queue.layer(client.clone());

    let calls = (0..60).map(|_| service.clone().oneshot(client.get(&url).build().unwrap()));
    let mut succeeded = 0;
    for result in join_all(calls).await {
        succeeded += usize::from(result?.status().is_success());
    }

    let (stats, desk) = (handle.stats(), desk.lock().unwrap());
    println!("{succeeded} of 60 succeeded in {} attempts, at most {} at once", stats.attempts, desk.peak);
    println!("{} were told 429; {} came back before the second was over", desk.throttled, desk.early);
    if std::env::args().any(|arg| arg == "--json") {
        let summary = json!({
            "peak": desk.peak,
            "attempts": stats.attempts,
            "rejected": stats.rejected.turned_away(),
            "succeeded": succeeded,
            "throttled": desk.throttled,
            "early": desk.early,
        });
        println!("{summary}");
    }
    Ok(())
}
