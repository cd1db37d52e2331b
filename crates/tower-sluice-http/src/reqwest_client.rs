//! reqwest's client as the service below: by its own types, or by those of `http`.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use http::Request;
use pin_project_lite::pin_project;
use tower_service::Service;
use tower_sluice::verdict::{Classify, Totals, Verdict};

use crate::verdicts::{HttpVerdicts, discard, tell_totals};

/// By the same table, for [`reqwest::Client`] as a service of its own types.
///
/// ```
/// use tower::{Layer, Service, ServiceExt};
/// use tower_sluice_http::{HttpRetry, http_client, http_retry};
///
/// # async fn charge() -> Result<(), tower_sluice_http::BoxError> {
/// let client = reqwest::Client::new();
/// let queue = http_client(16).retry(http_retry().idempotency_key("idempotency-key"));
/// let mut stripe = queue.layer(client.clone());
///
/// let charge = client.post("https://example.com/charge").body("4 EUR").build()?;
/// let response = stripe.ready().await?.call(charge).await?;
/// # drop(response); Ok(()) }
/// ```
impl<E: 'static> Classify<reqwest::Response, E> for HttpVerdicts {
    fn classify(&self, result: &Result<reqwest::Response, E>) -> Verdict {
        match result {
            Ok(response) => self.of_head(response.status(), response.headers(), response.extensions()),
            Err(error) => self.of_error(error),
        }
    }

    fn discard(&self, response: reqwest::Response) {
        discard(reqwest::Body::from(response));
    }

    fn finish(&self, response: &mut reqwest::Response, totals: &Totals) {
        tell_totals(response.extensions_mut(), totals);
    }
}

/// A [`reqwest::Client`] over `http`'s requests and responses.
///
/// As a service of its own types, `reqwest::Client` fits into [`http_client`](crate::http_client) as it is. Its requests
/// keep their extensions to themselves, however, and their bodies can be copied only where they are in memory. With
/// this one a request has [`CallOptions`](crate::queue::CallOptions) and an [`AttemptNumber`](crate::AttemptNumber),
/// and streams are [replayed](crate::replay):
///
/// ```
/// # use std::time::Duration;
/// use http::Request;
/// use reqwest::Body;
/// use tower::{Layer, Service, ServiceExt};
/// use tower_sluice_http::queue::CallOptions;
/// use tower_sluice_http::{HttpRetry, ReqwestClient, http_client, http_retry};
///
/// # async fn upload(stream: Body) -> Result<(), tower_sluice_http::BoxError> {
/// let queue = http_client(16).retry(http_retry().replay_bodies(64 << 10, Body::wrap));
/// let mut store = queue.layer(ReqwestClient::new(reqwest::Client::new()));
///
/// let mut upload = Request::put("https://example.com/video").body(stream)?;
/// upload.extensions_mut().insert(CallOptions::timeout(Duration::from_secs(300)));
/// let response = store.ready().await?.call(upload).await?;
/// # drop(response); Ok(()) }
/// ```
#[derive(Clone, Debug, Default)]
pub struct ReqwestClient {
    client: reqwest::Client,
}

impl ReqwestClient {
    /// Sends by `client`.
    pub const fn new(client: reqwest::Client) -> Self {
        Self { client }
    }
}

impl From<reqwest::Client> for ReqwestClient {
    fn from(client: reqwest::Client) -> Self {
        Self::new(client)
    }
}

impl<B: Into<reqwest::Body>> Service<Request<B>> for ReqwestClient {
    type Response = http::Response<reqwest::Body>;
    type Error = reqwest::Error;
    type Future = ReqwestFuture;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), reqwest::Error>> {
        self.client.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> ReqwestFuture {
        match reqwest::Request::try_from(request) {
            Ok(request) => ReqwestFuture { sent: Some(self.client.call(request)), unfit: None },
            Err(error) => ReqwestFuture { sent: None, unfit: Some(error) },
        }
    }
}

pin_project! {
    /// The future of a [`ReqwestClient`]'s response.
    #[must_use = "futures do nothing unless polled"]
    pub struct ReqwestFuture {
        #[pin]
        sent: Option<<reqwest::Client as Service<reqwest::Request>>::Future>,
        // The request cannot be one of reqwest's: its URI is none that can be sent to.
        unfit: Option<reqwest::Error>,
    }
}

impl Future for ReqwestFuture {
    type Output = Result<http::Response<reqwest::Body>, reqwest::Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        if let Some(error) = this.unfit.take() {
            return Poll::Ready(Err(error));
        }
        match this.sent.as_pin_mut() {
            Some(sent) => Poll::Ready(ready!(sent.poll(cx)).map(http::Response::from)),
            None => Poll::Pending,
        }
    }
}

impl fmt::Debug for ReqwestFuture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReqwestFuture").finish_non_exhaustive()
    }
}
