//! The inner service: one attempt is one request with its whole body, over a hyper-util client.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response, Uri};
use http_body_util::{BodyExt, Empty};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use rustls::{ClientConfig, RootCertStore};
use tokio::time::Instant;
use tower::Service;
use tower_sluice_http::BoxError;

use crate::gauge::Gauge;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

pub(crate) type HttpClient = Client<HttpsConnector<HttpConnector>, Empty<Bytes>>;

/// One line of the input, and what is known of it while it is worked on.
#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) url: Uri,
    attempts: Arc<AtomicU32>,
    begun: OnceLock<Instant>,
}

impl Call {
    pub(crate) fn new(url: Uri) -> Self {
        Self { url, attempts: Arc::default(), begun: OnceLock::new() }
    }

    /// The request; from here on its time counts.
    pub(crate) fn request(&self) -> Request<Empty<Bytes>> {
        self.begun.get_or_init(Instant::now);
        let mut request = Request::new(Empty::new());
        *request.uri_mut() = self.url.clone();
        // Copies of the request, one an attempt, share the counter: an error has no extensions to carry a total.
        request.extensions_mut().insert(Attempts(self.attempts.clone()));
        request
    }

    pub(crate) fn attempts(&self) -> u32 {
        self.attempts.load(Relaxed)
    }

    /// Zero for a call that was never begun.
    pub(crate) fn elapsed(&self) -> Duration {
        self.begun.get().map(Instant::elapsed).unwrap_or_default()
    }
}

#[derive(Clone, Debug)]
struct Attempts(Arc<AtomicU32>);

/// A client for http and https. With `roots`, servers are trusted by these certificates alone.
pub(crate) fn client(roots: Option<RootCertStore>) -> HttpClient {
    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    tcp.set_connect_timeout(Some(CONNECT_TIMEOUT));
    let builder = HttpsConnectorBuilder::new();
    let builder = match roots {
        None => builder.with_webpki_roots(),
        Some(roots) => builder
            .with_tls_config(ClientConfig::builder().with_root_certificates(roots).with_no_client_auth()),
    };
    let https = builder.https_or_http().enable_http1().enable_http2().wrap_connector(tcp);
    // Retrying is the queue's: a client that retries by itself makes attempts that nobody counts.
    Client::builder(TokioExecutor::new()).retry_canceled_requests(false).build(https)
}

/// Fetches with `client` and counts, in `running`, how many fetches are under way.
///
/// The body belongs to the attempt: a slot is held until it has ended, and a connection lost half-way is a failure
/// that is retried. What the body says is of no interest here.
pub(crate) fn service(
    client: HttpClient,
    running: Gauge,
) -> impl Service<
    Request<Empty<Bytes>>,
    Response = Response<Empty<Bytes>>,
    Error = BoxError,
    Future: Future<Output = Result<Response<Empty<Bytes>>, BoxError>> + Send,
> + Clone
+ Send {
    tower::service_fn(move |request: Request<Empty<Bytes>>| {
        let inside = running.enter();
        if let Some(Attempts(counter)) = request.extensions().get() {
            counter.fetch_add(1, Relaxed);
        }
        let response = client.request(request);
        async move {
            let _inside = inside;
            let (head, mut body) = response.await?.into_parts();
            while let Some(frame) = body.frame().await {
                frame?;
            }
            Ok(Response::from_parts(head, Empty::new()))
        }
    })
}
