//! A tonic server that takes on what it can do, and a client that keeps in line.
//!
//! ```text
//! cargo run --release --example tonic_server
//! ```
//!
//! Forty calls at once: straight from a channel most of them are told RESOURCE_EXHAUSTED, with a push-back; through a
//! client's queue all are served. Then the server drains. With `--json` the last line is one JSON object: `peak` (as
//! the handlers see it), `attempts`, `rejected`, `served_straight`, `served_through_a_queue`, `statuses`.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use futures_util::future::join_all;
use futures_util::stream::{self, Stream};
use serde_json::json;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::time::sleep;
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Endpoint, Server};
use tonic::{Request, Response, Status};
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;
use tonic_health::pb::health_server::{Health, HealthServer};
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse};
use tower::Layer;
use tower_sluice_http::BoxError;
use tower_sluice_http::grpc::{grpc_client, grpc_server};

/// A service that takes 20 ms a call.
#[derive(Clone, Default)]
struct Slow {
    running: Arc<AtomicUsize>,
    peak: Arc<AtomicUsize>,
}

#[tonic::async_trait]
impl Health for Slow {
    async fn check(&self, _: Request<HealthCheckRequest>) -> Result<Response<HealthCheckResponse>, Status> {
        self.peak.fetch_max(self.running.fetch_add(1, SeqCst) + 1, SeqCst);
        sleep(Duration::from_millis(20)).await;
        self.running.fetch_sub(1, SeqCst);
        Ok(Response::new(HealthCheckResponse { status: ServingStatus::Serving.into() }))
    }

    type WatchStream = Pin<Box<dyn Stream<Item = Result<HealthCheckResponse, Status>> + Send>>;

    async fn watch(&self, _: Request<HealthCheckRequest>) -> Result<Response<Self::WatchStream>, Status> {
        Ok(Response::new(Box::pin(stream::empty())))
    }
}

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    let slow = Slow::default();
    let queue = grpc_server(4).max_waiting(4).call_timeout(Duration::from_secs(10));
    let handle = queue.handle();

    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let server = listener.local_addr()?;
    let (stop, stopped) = oneshot::channel::<()>(); // In earnest, SIGTERM.
    let (drained, service) = (handle.clone(), HealthServer::new(slow.clone()));
    let serving = tokio::spawn(async move {
        let shutdown = async move {
            stopped.await.ok();
            drained.drain(Duration::from_secs(20)).await;
        };
        let server = Server::builder().layer(queue).add_service(service);
        server.serve_with_incoming_shutdown(TcpIncoming::from(listener), shutdown).await
    });

    // Forty at once, straight.
    let channel = Endpoint::from_shared(format!("http://{server}"))?.connect().await?;
    let calls = (0..40).map(|_| {
        let mut client = HealthClient::new(channel.clone());
        async move { client.check(HealthCheckRequest::default()).await }
    });
    let mut statuses = BTreeMap::new();
    for result in join_all(calls).await {
        let code = result.map_or_else(|status| status.code(), |_| tonic::Code::Ok);
        *statuses.entry(format!("{code:?}")).or_insert(0) += 1;
    }
    println!("straight: {statuses:?}");

    // Forty at once, through a queue of the client's.
    let stack = grpc_client(4, tonic::body::Body::new);
    let upstream = stack.layer(channel);
    let calls = (0..40).map(|_| {
        let mut client = HealthClient::new(upstream.clone());
        async move { client.check(HealthCheckRequest::default()).await }
    });
    let served = join_all(calls).await.into_iter().filter(Result::is_ok).count();
    println!("through a queue: {served} served; at most {} handlers at once", slow.peak.load(SeqCst));

    drop((stop, upstream));
    serving.await??;
    println!("stopped: {}", if handle.stats().is_idle() { "idle" } else { "not idle" });
    if std::env::args().any(|arg| arg == "--json") {
        let stats = handle.stats();
        let summary = json!({
            "peak": slow.peak.load(SeqCst),
            "attempts": stats.attempts,
            "rejected": stats.rejected.turned_away(),
            "served_straight": statuses.get("Ok"),
            "served_through_a_queue": served,
            "statuses": statuses,
        });
        println!("{summary}");
    }
    Ok(())
}
