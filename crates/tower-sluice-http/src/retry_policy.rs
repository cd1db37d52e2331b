//! The retry policy for HTTP.

use std::error::Error;
use std::time::Duration;

use http::{HeaderName, Method};
use tower_sluice::backoff::Backoff;
use tower_sluice::retry::{RetryBudget, RetryPolicy};
use tower_sluice::verdict::Verdict;

use crate::repeat::{CloneBody, EmptyBody, HttpRepeat};
use crate::replay::{ReplayBodies, ReplayBody};
use crate::verdicts::{HttpVerdicts, StatusRow};

/// A retry policy that judges by [`HttpVerdicts`] and repeats by [`HttpRepeat`].
pub type HttpRetryPolicy<C = CloneBody> = RetryPolicy<HttpVerdicts, HttpRepeat<C>>;

/// The retry policy of a client of an interactive service: 3 attempts, [`Backoff::rpc`] (100 ms to 5 s, full jitter),
/// with a [budget](RetryBudget::new) of its own.
///
/// A `Retry-After` is waited for as long as the call's timeout leaves; where there is no timeout, such as in tower's
/// own `RetryLayer`, set [`max_retry_after`](RetryPolicy::max_retry_after).
///
/// ```
/// use tower_sluice_http::verdict::Verdict;
/// use tower_sluice_http::{HttpRetry, http_retry};
///
/// let policy = http_retry()
///     .idempotency_key("idempotency-key")
///     .on_status(529, Verdict::throttled())
///     .max_attempts(5);
/// # let _ = policy;
/// ```
pub fn http_retry() -> HttpRetryPolicy {
    of(3, Backoff::rpc()).budget(RetryBudget::new()).max_retry_after(Duration::MAX)
}

/// [`http_batch`](crate::http_batch)'s: 10 attempts, [`Backoff::external`] (1 s to 30 s, full jitter), a `Retry-After`
/// of up to 15 minutes, and no budget, since the limit bounds a batch's load already.
pub(crate) fn batch_retry() -> HttpRetryPolicy {
    of(10, Backoff::external()).max_retry_after(LONGEST_BATCH_WAIT)
}

/// The longest `Retry-After` that a batch waits for.
pub(crate) const LONGEST_BATCH_WAIT: Duration = Duration::from_secs(15 * 60);

fn of(max_attempts: u32, backoff: Backoff) -> HttpRetryPolicy {
    RetryPolicy::new(max_attempts, backoff).classify(HttpVerdicts::new()).repeat(HttpRepeat::new())
}

/// The settings of [`HttpVerdicts`] and [`HttpRepeat`] on the policy that has them, beside the policy's own.
pub trait HttpRetry: Sized {
    /// The policy once its bodies are copied as [`EmptyBody`] says.
    type OfEmptyBodies;

    /// See [`HttpVerdicts::on_status`].
    ///
    /// # Panics
    ///
    /// If the number is none from 100 to 999.
    #[must_use]
    fn on_status(self, status: impl StatusRow, verdict: Verdict) -> Self;

    /// See [`HttpVerdicts::on_error`].
    #[must_use]
    fn on_error<T, F>(self, judge: F) -> Self
    where
        T: Error + 'static,
        F: Fn(&T) -> Option<Verdict> + Send + Sync + 'static;

    /// See [`HttpRepeat::idempotency_key`].
    ///
    /// # Panics
    ///
    /// If `header` is no header name.
    #[must_use]
    fn idempotency_key(self, header: impl TryInto<HeaderName>) -> Self;

    /// See [`HttpRepeat::idempotency_header`].
    ///
    /// # Panics
    ///
    /// If `header` is no header name.
    #[must_use]
    fn idempotency_header(self, header: impl TryInto<HeaderName>) -> Self;

    /// See [`HttpRepeat::also_repeat`].
    #[must_use]
    fn also_repeat(self, method: Method) -> Self;

    /// See [`HttpRepeat::empty_bodies`].
    #[must_use]
    fn empty_bodies(self) -> Self::OfEmptyBodies;

    /// See [`HttpRepeat::replay_bodies`].
    #[must_use]
    fn replay_bodies<B, F>(self, cap: usize, into_body: F) -> HttpRetryPolicy<ReplayBodies<F>>
    where
        F: Fn(ReplayBody<B>) -> B;
}

impl<C> HttpRetry for HttpRetryPolicy<C> {
    type OfEmptyBodies = HttpRetryPolicy<EmptyBody>;

    fn on_status(self, status: impl StatusRow, verdict: Verdict) -> Self {
        self.map_classifier(|verdicts| verdicts.on_status(status, verdict))
    }

    fn on_error<T, F>(self, judge: F) -> Self
    where
        T: Error + 'static,
        F: Fn(&T) -> Option<Verdict> + Send + Sync + 'static,
    {
        self.map_classifier(|verdicts| verdicts.on_error(judge))
    }

    fn idempotency_key(self, header: impl TryInto<HeaderName>) -> Self {
        self.map_repeater(|repeat| repeat.idempotency_key(header))
    }

    fn idempotency_header(self, header: impl TryInto<HeaderName>) -> Self {
        self.map_repeater(|repeat| repeat.idempotency_header(header))
    }

    fn also_repeat(self, method: Method) -> Self {
        self.map_repeater(|repeat| repeat.also_repeat(method))
    }

    fn empty_bodies(self) -> HttpRetryPolicy<EmptyBody> {
        self.map_repeater(HttpRepeat::empty_bodies)
    }

    fn replay_bodies<B, F>(self, cap: usize, into_body: F) -> HttpRetryPolicy<ReplayBodies<F>>
    where
        F: Fn(ReplayBody<B>) -> B,
    {
        self.map_repeater(|repeat| repeat.replay_bodies(cap, into_body))
    }
}
