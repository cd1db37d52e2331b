//! What an attempt's result means, and what may be repeated.
//!
//! Two questions, two traits, since a 503 means the same whoever asked, but a `POST` and a `GET` differ in
//! whether asking again is safe:
//!
//! - [`Classify`] turns a result into a [`Verdict`]: success, fatal, or worth another attempt.
//! - [`Repeat`] knows the request: whether it can be copied, and whether it may be sent again.
//!
//! Both are synchronous and neither holds state about a call. Closures are accepted as classifiers:
//!
//! ```
//! use tower_sluice::verdict::{Classify, Verdict};
//!
//! let classify = |result: &Result<u16, std::io::Error>| match result {
//!     Ok(429) => Verdict::throttled(),
//!     Ok(500..) => Verdict::transient(),
//!     Ok(_) => Verdict::Success,
//!     Err(_) => Verdict::transient(),
//! };
//! assert_eq!(classify.classify(&Ok(204)), Verdict::Success);
//! assert_eq!(classify.classify(&Ok(429)), Verdict::throttled());
//! ```

use std::any::Any;
use std::fmt;
use std::time::Duration;

use tokio::time::Instant;

use crate::BoxError;
use crate::reject::Rejection;

/// Why an attempt failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum FailureKind {
    /// The service asks for fewer requests (HTTP 429).
    Throttled,
    /// The service cannot answer for now (HTTP 503).
    Unavailable,
    /// A failure that another attempt may not meet (HTTP 500, 502, 504, a broken connection).
    Transient,
    /// The attempt took longer than it may.
    Timeout,
}

impl FailureKind {
    /// Every kind, in the order of [`index`](Self::index).
    pub const ALL: [Self; 4] = [Self::Throttled, Self::Unavailable, Self::Transient, Self::Timeout];

    /// The place of this kind in [`ALL`](Self::ALL), for a table with a row per kind.
    pub const fn index(self) -> usize {
        self as usize
    }

    /// The name used in events and figures: `throttled`, `unavailable`, `transient`, `timeout`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Throttled => "throttled",
            Self::Unavailable => "unavailable",
            Self::Transient => "transient",
            Self::Timeout => "timeout",
        }
    }
}

impl fmt::Display for FailureKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What a failed attempt that another one may mend tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Why the attempt failed.
    pub kind: FailureKind,
    /// How long the service asked to be left alone, if it did.
    pub retry_after: Option<Duration>,
    /// `false` where the request was surely not processed: it never reached the service, or the service says
    /// that it turned it away. `true` where it may have been, which only requests that may be repeated survive.
    pub processed: bool,
}

/// What an attempt's result means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The service did its work.
    Success,
    /// The same request will fail the same way, or the stack itself turned it away: not repeated.
    Fatal,
    /// Another attempt may succeed.
    Retry(Failure),
}

impl Verdict {
    /// Another attempt may succeed: it failed for `kind`, and may have been processed.
    pub const fn retry(kind: FailureKind) -> Self {
        Self::Retry(Failure { kind, retry_after: None, processed: true })
    }

    /// The service asks for fewer requests. It turned this one away, so it was surely not processed.
    pub const fn throttled() -> Self {
        Self::Retry(Failure { kind: FailureKind::Throttled, retry_after: None, processed: false })
    }

    /// The service cannot answer for now; it may have begun to.
    pub const fn unavailable() -> Self {
        Self::retry(FailureKind::Unavailable)
    }

    /// A failure that another attempt may not meet; the request may have been processed.
    pub const fn transient() -> Self {
        Self::retry(FailureKind::Transient)
    }

    /// The attempt took too long; the request may have been processed.
    pub const fn timeout() -> Self {
        Self::retry(FailureKind::Timeout)
    }

    /// The same verdict with the service's wish to be left alone for `delay`. No effect on success and fatal.
    #[must_use]
    pub const fn after(self, delay: Option<Duration>) -> Self {
        match self {
            Self::Retry(failure) => Self::Retry(Failure { retry_after: delay, ..failure }),
            other => other,
        }
    }

    /// The same verdict for a request that was surely not processed. No effect on success and fatal.
    #[must_use]
    pub const fn not_processed(self) -> Self {
        match self {
            Self::Retry(failure) => Self::Retry(Failure { processed: false, ..failure }),
            other => other,
        }
    }

    /// What is known of the failure, where another attempt may mend it.
    pub const fn failure(&self) -> Option<&Failure> {
        match self {
            Self::Retry(failure) => Some(failure),
            Self::Success | Self::Fatal => None,
        }
    }
}

/// What one call came to, handed to [`Classify::finish`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Totals {
    /// Attempts made, the first included; at least 1.
    pub attempts: u32,
}

impl Totals {
    /// The totals of a call that made so many attempts.
    pub const fn new(attempts: u32) -> Self {
        Self { attempts }
    }
}

/// Turns a result into a [`Verdict`].
///
/// Synchronous, and called once an attempt. Closures `Fn(&Result<Res, E>) -> Verdict` implement it.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot classify a `Result<{Res}, {E}>`",
    note = "a closure needs its argument's type written out: `|result: &Result<_, _>| ..`"
)]
pub trait Classify<Res, E> {
    /// What `result` means.
    fn classify(&self, result: &Result<Res, E>) -> Verdict;

    /// Takes a failed response for which another attempt will be made, before its delay starts.
    ///
    /// The default drops it. HTTP reads what is ready of the body, so that the connection can be used again.
    fn discard(&self, response: Res) {
        drop(response);
    }

    /// Called with the response that goes to the caller.
    ///
    /// The default does nothing. HTTP puts the totals into the response's extensions.
    fn finish(&self, response: &mut Res, totals: &Totals) {
        let _ = (response, totals);
    }
}

impl<F, Res, E> Classify<Res, E> for F
where
    F: Fn(&Result<Res, E>) -> Verdict,
{
    fn classify(&self, result: &Result<Res, E>) -> Verdict {
        self(result)
    }
}

/// The classifier for services that say all in their result: `Ok` is a success, `Err` is
/// [`Verdict::transient`].
///
/// A [`Rejection`] by a layer of this workspace is [`Verdict::Fatal`]: what the stack itself turned away is not
/// an attempt's failure. It is found where the error is a `Rejection`, or a [`BoxError`] with one among its sources.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AnyError;

impl<Res, E: 'static> Classify<Res, E> for AnyError {
    #[inline]
    fn classify(&self, result: &Result<Res, E>) -> Verdict {
        match result {
            Ok(_) => Verdict::Success,
            Err(error) if is_rejection(error) => Verdict::Fatal,
            Err(_) => Verdict::transient(),
        }
    }
}

/// Whether `error` is a [`Rejection`], or a [`BoxError`] that has one among its sources.
///
/// For classifiers of error types that are generic.
pub fn is_rejection<E: 'static>(error: &E) -> bool {
    let error: &dyn Any = error;
    error.is::<Rejection>()
        || error.downcast_ref::<BoxError>().is_some_and(|boxed| Rejection::find(&**boxed).is_some())
}

/// What [`Repeat::prepare`] is told about the attempt that is about to be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Attempt {
    /// 1 for the first.
    pub number: u32,
    deadline: Deadline,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Deadline {
    Never,
    At(Instant),
    /// So many nanoseconds after an instant: not added before somebody asks.
    After(Instant, u64),
}

impl Attempt {
    /// The attempt of this number, of a call with this deadline.
    pub const fn new(number: u32, deadline: Option<Instant>) -> Self {
        let deadline = match deadline {
            None => Deadline::Never,
            Some(deadline) => Deadline::At(deadline),
        };
        Self { number, deadline }
    }

    /// With a deadline that is counted from `start`.
    #[cfg(feature = "queue")]
    #[inline]
    pub(crate) const fn after(number: u32, start: Instant, nanos: u64) -> Self {
        Self { number, deadline: Deadline::After(start, nanos) }
    }

    /// When the call has to be answered at the latest, if it has a deadline.
    pub fn deadline(&self) -> Option<Instant> {
        match self.deadline {
            Deadline::Never => None,
            Deadline::At(deadline) => Some(deadline),
            Deadline::After(start, nanos) => start.checked_add(Duration::from_nanos(nanos)),
        }
    }

    /// How long the call may still take, if it has a deadline. Reads the clock.
    pub fn left(&self) -> Option<Duration> {
        self.deadline().map(|deadline| deadline.saturating_duration_since(Instant::now()))
    }
}

/// Knows the request: whether it can be copied, whether it may be sent again, and what each attempt adds to it.
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not know how to repeat a request of type `{Req}`",
    note = "`CloneRequest` repeats any request that is `Clone`; `Once` never repeats"
)]
pub trait Repeat<Req> {
    /// A copy that can be sent should the attempt with the original fail. `None` where there can be none: the
    /// call then has one attempt and its normal result.
    fn copy(&self, request: &Req) -> Option<Req>;

    /// Whether `request` may be sent again after an attempt that failed with `failure`.
    fn may_repeat(&self, request: &Req, failure: &Failure) -> bool {
        let _ = (request, failure);
        true
    }

    /// Called before each attempt, and before its copy is taken: to stamp a key, renew a token, tell the time left.
    fn prepare(&self, request: &mut Req, attempt: &Attempt) {
        let _ = (request, attempt);
    }
}

/// Repeats any request that is `Clone`, after any failure.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CloneRequest;

impl<Req: Clone> Repeat<Req> for CloneRequest {
    fn copy(&self, request: &Req) -> Option<Req> {
        Some(request.clone())
    }
}

/// Never repeats: one attempt a call, and requests need not be `Clone`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Once;

impl<Req> Repeat<Req> for Once {
    fn copy(&self, _: &Req) -> Option<Req> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn a_rejection_is_never_an_attempts_failure() {
        let rejection = Rejection::Cleared { reason: Arc::from("deploy") };
        let typed: Result<(), Rejection> = Err(rejection.clone());
        assert_eq!(AnyError.classify(&typed), Verdict::Fatal);
        let boxed: Result<(), BoxError> = Err(Box::new(rejection));
        assert_eq!(AnyError.classify(&boxed), Verdict::Fatal);
        let other: Result<(), BoxError> = Err("down".into());
        assert_eq!(AnyError.classify(&other), Verdict::transient());
    }

    #[test]
    fn every_kind_stands_at_its_index() {
        for (i, kind) in FailureKind::ALL.into_iter().enumerate() {
            assert_eq!(kind.index(), i);
        }
    }
}
