//! Ready-made stacks.

use std::time::Duration;

use tower_sluice::error::ConfigError;
use tower_sluice::queue::QueueLayer;
use tower_sluice::retry::RetryPolicy;
use tower_sluice::verdict::Once;

use super::answer::GrpcAnswer;
use super::mode::GrpcClientMode;
use super::retry_policy::{GrpcRetryPolicy, grpc_retry};
use super::verdicts::GrpcVerdicts;
use crate::replay::{ReplayBodies, ReplayBody};

/// The queue of [`grpc_server`].
type ServerQueue = QueueLayer<RetryPolicy<GrpcVerdicts, Once>, GrpcAnswer>;

/// The queue of [`grpc_client`].
type ClientQueue<F> = QueueLayer<GrpcRetryPolicy<ReplayBodies<F>>, GrpcClientMode>;

/// The queue of a gRPC server: at most `limit` calls at once, 4 × `limit` more in line, 30 s a call, or what its
/// `grpc-timeout` says where that is shorter.
///
/// What does not fit is [answered](GrpcAnswer) with a status: RESOURCE_EXHAUSTED with a push-back,
/// DEADLINE_EXCEEDED, UNAVAILABLE. The error stays the service's own. A slot ends when the response's head is
/// there; for streams see [`hold_until_body_end`](crate::HoldSlots::hold_until_body_end). Every setting of
/// [`QueueLayer`] is open.
///
/// In tonic: `Server::builder().layer(grpc_server(64))`, for all its services together.
///
/// # Panics
///
/// If `limit` is out of bounds; see [`try_grpc_server`].
///
/// ```
/// # use std::time::Duration;
/// use tower_sluice_http::grpc::grpc_server;
///
/// let queue = grpc_server(64).call_timeout(Duration::from_secs(10));
/// let handle = queue.handle();
/// assert_eq!(handle.stats().limit, 64);
/// ```
#[track_caller]
pub fn grpc_server(limit: usize) -> QueueLayer<RetryPolicy<GrpcVerdicts, Once>, GrpcAnswer> {
    server(limit, QueueLayer::new(limit))
}

/// [`grpc_server`] for a limit that comes from a configuration.
///
/// # Errors
///
/// If `limit` is out of bounds.
pub fn try_grpc_server(
    limit: usize,
) -> Result<QueueLayer<RetryPolicy<GrpcVerdicts, Once>, GrpcAnswer>, ConfigError> {
    Ok(server(limit, QueueLayer::try_new(limit)?))
}

/// The queue of a client of one gRPC service: at most `limit` attempts at once, 16 × `limit` more calls waiting, 30 s a
/// call or what its `grpc-timeout` says where that is shorter, 10 s an attempt, retried by [`grpc_retry`].
///
/// `into_body` makes the stack's body type of the one that replays messages: `tonic::body::Body::new`. Rejections are
/// [answered](GrpcAnswer), so that a tonic client sees a status (a boxed one would be `Unknown`); the error is boxed.
/// What is left of a call's deadline is sent on with each attempt. Every setting of [`QueueLayer`] is open;
/// [`retry`](QueueLayer::retry) replaces the policy.
///
/// Timeouts end at the response's head, which for a unary call comes with its message. The service below must be
/// `Clone`, and its response body `Unpin`; tonic's `Channel` is fine.
///
/// # Panics
///
/// If `limit` is out of bounds; see [`try_grpc_client`].
///
/// See [the module](super) for an example.
#[track_caller]
pub fn grpc_client<B, F>(
    limit: usize,
    into_body: F,
) -> QueueLayer<GrpcRetryPolicy<ReplayBodies<F>>, GrpcClientMode>
where
    F: Fn(ReplayBody<B>) -> B,
{
    client(limit, QueueLayer::new(limit), into_body)
}

/// [`grpc_client`] for a limit that comes from a configuration.
///
/// # Errors
///
/// If `limit` is out of bounds.
pub fn try_grpc_client<B, F>(
    limit: usize,
    into_body: F,
) -> Result<QueueLayer<GrpcRetryPolicy<ReplayBodies<F>>, GrpcClientMode>, ConfigError>
where
    F: Fn(ReplayBody<B>) -> B,
{
    Ok(client(limit, QueueLayer::try_new(limit)?, into_body))
}

fn server(limit: usize, queue: QueueLayer) -> ServerQueue {
    queue
        .max_waiting(limit.saturating_mul(4))
        .call_timeout(Duration::from_secs(30))
        .retry(RetryPolicy::none().classify(GrpcVerdicts::server()))
        .answer(GrpcAnswer::new())
}

fn client<B, F>(limit: usize, queue: QueueLayer, into_body: F) -> ClientQueue<F>
where
    F: Fn(ReplayBody<B>) -> B,
{
    queue
        .max_waiting(limit.saturating_mul(16))
        .call_timeout(Duration::from_secs(30))
        .attempt_timeout(Duration::from_secs(10))
        .retry(grpc_retry(into_body))
        .answer(GrpcClientMode::new(GrpcAnswer::new()))
}
