//! The retry policy for gRPC.

use std::time::Duration;

use tower_sluice::backoff::Backoff;
use tower_sluice::retry::{RetryBudget, RetryPolicy};
use tower_sluice::verdict::Verdict;

use super::repeat::GrpcRepeat;
use super::verdicts::GrpcVerdicts;
use crate::repeat::CloneBody;
use crate::replay::{ReplayBodies, ReplayBody};

/// A retry policy that judges by [`GrpcVerdicts`] and repeats by [`GrpcRepeat`].
pub type GrpcRetryPolicy<C = CloneBody> = RetryPolicy<GrpcVerdicts, GrpcRepeat<C>>;

/// The retry policy of [`grpc_client`](super::grpc_client): 3 attempts, [`Backoff::rpc`] (100 ms to 5 s, full jitter),
/// with a [budget](RetryBudget::new) of its own. A push-back is waited for as long as the call's deadline leaves.
///
/// Messages are [replayed](crate::replay) up to 64 KiB; `into_body` makes the stack's body type of the replaying one,
/// such as `tonic::body::Body::new`.
///
/// ```
/// use axum::body::Body;
/// use tower_sluice_http::grpc::{GrpcRetry, grpc_retry};
/// use tower_sluice_http::verdict::Verdict;
///
/// // 10 is ABORTED; `tonic::Code` is taken too.
/// let policy = grpc_retry(Body::new)
///     .on_code(10, Verdict::transient())
///     .idempotent(["/shop.Stock/Get"])
///     .max_attempts(5);
/// # let _ = policy;
/// ```
pub fn grpc_retry<B, F>(into_body: F) -> GrpcRetryPolicy<ReplayBodies<F>>
where
    F: Fn(ReplayBody<B>) -> B,
{
    RetryPolicy::new(3, Backoff::rpc())
        .budget(RetryBudget::new())
        .max_retry_after(Duration::MAX)
        .classify(GrpcVerdicts::new())
        .repeat(GrpcRepeat::new())
        .replay_bodies(ReplayBody::<B>::DEFAULT_CAP, into_body)
}

/// The settings of [`GrpcVerdicts`] and [`GrpcRepeat`] on the policy that has them, beside the policy's own.
pub trait GrpcRetry: Sized {
    /// See [`GrpcVerdicts::on_code`].
    #[must_use]
    fn on_code(self, code: impl Into<i32>, verdict: Verdict) -> Self;

    /// See [`GrpcRepeat::idempotent`].
    #[must_use]
    fn idempotent<T: Into<String>>(self, paths: impl IntoIterator<Item = T>) -> Self;

    /// See [`HttpRepeat::replay_bodies`](crate::HttpRepeat::replay_bodies).
    #[must_use]
    fn replay_bodies<B, F>(self, cap: usize, into_body: F) -> GrpcRetryPolicy<ReplayBodies<F>>
    where
        F: Fn(ReplayBody<B>) -> B;
}

impl<C> GrpcRetry for GrpcRetryPolicy<C> {
    fn on_code(self, code: impl Into<i32>, verdict: Verdict) -> Self {
        self.map_classifier(|verdicts| verdicts.on_code(code, verdict))
    }

    fn idempotent<T: Into<String>>(self, paths: impl IntoIterator<Item = T>) -> Self {
        self.map_repeater(|repeat| repeat.idempotent(paths))
    }

    fn replay_bodies<B, F>(self, cap: usize, into_body: F) -> GrpcRetryPolicy<ReplayBodies<F>>
    where
        F: Fn(ReplayBody<B>) -> B,
    {
        self.map_repeater(|repeat| repeat.map_http(|http| http.replay_bodies(cap, into_body)))
    }
}
