//! What a slot covers: a response's head, or its body, too.
//!
//! ```text
//! cargo run --release --example streaming
//! ```
//!
//! Eight clients read a stream each from a server with a limit of two, first with slots that end with the head (the
//! default), then with slots that last until the body has ended. With `--json` the last line is one JSON object:
//! `peak` (streams at once, where bodies hold slots), `peak_by_head` (where they do not), `attempts`, `rejected`,
//! `bytes`, `open_when_drained`.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::routing::get;
use futures_util::future::try_join_all;
use futures_util::stream;
use http::Uri;
use http_body_util::{BodyExt, Empty};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use serde_json::json;
use tokio::net::TcpListener;
use tokio::time::sleep;
use tower_sluice_http::{BoxError, HoldSlots, http_server};

/// How many streams are open, and the most that were.
#[derive(Clone, Default)]
struct Streams {
    open: Arc<AtomicUsize>,
    peak: Arc<AtomicUsize>,
}

/// One stream that is open.
struct Open(Arc<AtomicUsize>);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.fetch_sub(1, SeqCst);
    }
}

/// Ten pieces, 10 ms apart.
async fn ticks(State(streams): State<Streams>) -> Body {
    let open = streams.open.fetch_add(1, SeqCst) + 1;
    streams.peak.fetch_max(open, SeqCst);
    Body::from_stream(stream::unfold((0, Open(streams.open)), |(n, open)| async move {
        if n == 10 {
            return None;
        }
        sleep(Duration::from_millis(10)).await;
        Some((Ok::<_, Infallible>(Bytes::from(format!("tick {n}\n"))), (n + 1, open)))
    }))
}

/// Eight readers at once; how many bytes they got.
async fn read(app: Router) -> Result<usize, BoxError> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let url: Uri = format!("http://{}/ticks", listener.local_addr()?).parse()?;
    tokio::spawn(async move { axum::serve(listener, app).await });
    let client: Client<_, Empty<Bytes>> = Client::builder(TokioExecutor::new()).build_http();
    let bodies = try_join_all((0..8).map(|_| async {
        let response = client.get(url.clone()).await?;
        Ok::<_, BoxError>(response.into_body().collect().await?.to_bytes())
    }));
    Ok(bodies.await?.iter().map(Bytes::len).sum())
}

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    let by_head = Streams::default();
    let app = Router::new().route("/ticks", get(ticks)).layer(http_server(2)).with_state(by_head.clone());
    read(app).await?;
    println!("limit 2, a slot ends with the head: {} streams at once", by_head.peak.load(SeqCst));

    let by_body = Streams::default();
    let queue = http_server(2).hold_until_body_end();
    let handle = queue.handle();
    let app = Router::new().route("/ticks", get(ticks)).layer(queue).with_state(by_body.clone());
    let bytes = read(app).await?;
    println!("limit 2, a slot ends with the body: {} streams at once", by_body.peak.load(SeqCst));

    let left = handle.drain(Duration::from_secs(5)).await; // would wait for a body, too
    let open = by_body.open.load(SeqCst);
    println!("drained: {} still running, {open} streams open", left.still_running);
    if std::env::args().any(|arg| arg == "--json") {
        let stats = handle.stats();
        let summary = json!({
            "peak": by_body.peak.load(SeqCst),
            "peak_by_head": by_head.peak.load(SeqCst),
            "attempts": stats.attempts,
            "rejected": stats.rejected.turned_away(),
            "bytes": bytes,
            "open_when_drained": open,
        });
        println!("{summary}");
    }
    Ok(())
}
