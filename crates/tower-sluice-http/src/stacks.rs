//! Ready-made stacks.

use std::time::Duration;

use tower_sluice::error::ConfigError;
use tower_sluice::queue::QueueLayer;
use tower_sluice::reject::Boxed;
use tower_sluice::retry::RetryPolicy;
use tower_sluice::verdict::Once;

use crate::answer::HttpAnswer;
use crate::mode::HttpMode;
use crate::retry_policy::{HttpRetryPolicy, LONGEST_BATCH_WAIT, batch_retry, http_retry};
use crate::verdicts::HttpVerdicts;

/// The queue of an HTTP server: at most `limit` requests at once, 4 × `limit` more in line, 30 s a call.
///
/// What does not fit is [answered](HttpAnswer): 503 with `Retry-After`, 504 at the deadline. The error stays the
/// service's own, so that in axum the stack is infallible as it is and needs no `HandleErrorLayer`.
/// [`respond_with`](QueueLayer::respond_with) and [`answer`](QueueLayer::answer) take other answers.
///
/// There is no retry; [`HttpVerdicts::server`] counts the handlers' 5xx as failures. Every setting of [`QueueLayer`]
/// is open.
///
/// # Panics
///
/// If `limit` is out of bounds; see [`try_http_server`].
///
/// ```
/// # use std::time::Duration;
/// use axum::{Router, routing::get};
/// use tower_sluice_http::http_server;
///
/// let queue = http_server(64).call_timeout(Duration::from_secs(10));
/// let handle = queue.handle();
/// let app: Router = Router::new()
///     .route("/", get(|| async { "home" }))
///     .layer(queue)
///     .route("/healthz", get(|| async { "ok" })); // after `layer`: not limited
/// assert_eq!(handle.stats().limit, 64);
/// # let _ = app;
/// ```
#[track_caller]
pub fn http_server(limit: usize) -> QueueLayer<RetryPolicy<HttpVerdicts, Once>, HttpAnswer> {
    server(limit, QueueLayer::new(limit))
}

/// [`http_server`] for a limit that comes from a configuration.
///
/// # Errors
///
/// If `limit` is out of bounds.
pub fn try_http_server(
    limit: usize,
) -> Result<QueueLayer<RetryPolicy<HttpVerdicts, Once>, HttpAnswer>, ConfigError> {
    Ok(server(limit, QueueLayer::try_new(limit)?))
}

/// The queue of a client of one HTTP service: at most `limit` attempts at once, 16 × `limit` more calls waiting, 30 s a
/// call, 10 s an attempt, retried by [`http_retry`].
///
/// Errors are boxed, and a rejection is found in one by [`Rejection::find`](crate::reject::Rejection::find). Bodies
/// are repeated by `Clone`; for other body types, or none, see [`HttpRepeat`](crate::HttpRepeat). Every setting of
/// [`QueueLayer`] is open; [`retry`](QueueLayer::retry) replaces the policy.
///
/// # Panics
///
/// If `limit` is out of bounds; see [`try_http_client`].
///
/// ```
/// # use std::time::Duration;
/// use bytes::Bytes;
/// use http_body_util::Full;
/// use hyper_util::client::legacy::Client;
/// use hyper_util::rt::TokioExecutor;
/// use tower::Layer;
/// use tower_sluice_http::{HttpRetry, http_client, http_retry};
///
/// let hyper_client: Client<_, Full<Bytes>> = Client::builder(TokioExecutor::new()).build_http();
/// let queue = http_client(16)
///     .name("stripe")
///     .attempt_timeout(Duration::from_secs(5))
///     .retry(http_retry().idempotency_key("idempotency-key"));
/// let stripe = queue.layer(hyper_client);
/// # fn is_service<S: tower::Service<http::Request<Full<Bytes>>>>(_: S) {}
/// # is_service(stripe);
/// ```
#[track_caller]
pub fn http_client(limit: usize) -> QueueLayer<HttpRetryPolicy, HttpMode<Boxed>> {
    client(limit, QueueLayer::new(limit))
}

/// [`http_client`] for a limit that comes from a configuration.
///
/// # Errors
///
/// If `limit` is out of bounds.
pub fn try_http_client(limit: usize) -> Result<QueueLayer<HttpRetryPolicy, HttpMode<Boxed>>, ConfigError> {
    Ok(client(limit, QueueLayer::try_new(limit)?))
}

/// The queue of a batch job on one HTTP service: at most `limit` attempts at once, 4 × `limit` calls taken on beside
/// them and then none until there is room, 30 s an attempt, no end to a call, 10 attempts with 1 s to 30 s between.
///
/// A `Retry-After` of up to 15 minutes is waited for, and holds the whole line. There is no budget: the limit bounds
/// a batch's load already. Errors are boxed. It waits for room in `poll_ready`
/// ([`wait_when_full`](QueueLayer::wait_when_full)): for one driver, such as
/// [`batch::run`](crate::queue::batch::run), not for servers.
///
/// # Panics
///
/// If `limit` is out of bounds; see [`try_http_batch`].
#[track_caller]
pub fn http_batch(limit: usize) -> QueueLayer<HttpRetryPolicy, HttpMode<Boxed>> {
    batch(limit, QueueLayer::new(limit))
}

/// [`http_batch`] for a limit that comes from a configuration.
///
/// # Errors
///
/// If `limit` is out of bounds.
pub fn try_http_batch(limit: usize) -> Result<QueueLayer<HttpRetryPolicy, HttpMode<Boxed>>, ConfigError> {
    Ok(batch(limit, QueueLayer::try_new(limit)?))
}

fn server(limit: usize, queue: QueueLayer) -> QueueLayer<RetryPolicy<HttpVerdicts, Once>, HttpAnswer> {
    queue
        .max_waiting(limit.saturating_mul(4))
        .call_timeout(Duration::from_secs(30))
        .retry(RetryPolicy::none().classify(HttpVerdicts::server()))
        .answer(HttpAnswer::new())
}

fn client(limit: usize, queue: QueueLayer) -> QueueLayer<HttpRetryPolicy, HttpMode<Boxed>> {
    queue
        .max_waiting(limit.saturating_mul(16))
        .call_timeout(Duration::from_secs(30))
        .attempt_timeout(Duration::from_secs(10))
        .retry(http_retry())
        .answer(HttpMode::new(Boxed))
}

fn batch(limit: usize, queue: QueueLayer) -> QueueLayer<HttpRetryPolicy, HttpMode<Boxed>> {
    queue
        .max_waiting(limit.saturating_mul(4))
        .wait_when_full()
        .attempt_timeout(Duration::from_secs(30))
        .hold_on_retry_after(LONGEST_BATCH_WAIT)
        .retry(batch_retry())
        .answer(HttpMode::new(Boxed))
}
