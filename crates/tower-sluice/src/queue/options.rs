//! What one call asks of the queue for itself.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

/// A call's own options, which its [`Mode`](super::Mode) reads from the request.
///
/// `tower-sluice-http`'s answer modes take them from the request's extensions:
///
/// ```
/// # use std::time::Duration;
/// use tower_sluice::queue::CallOptions;
///
/// let options = CallOptions::timeout(Duration::from_secs(300)).no_retry();
/// assert_eq!(options.timeout, Some(Duration::from_secs(300)));
/// assert!(options.no_retry);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CallOptions {
    /// Replaces this call's call timeout and attempt timeout, longer or shorter; the deadline below, too.
    pub timeout: Option<Duration>,
    /// When the call has to be answered at the latest, as its sender sees it. Never later than the layer's own
    /// call timeout allows.
    pub deadline: Option<Instant>,
    /// One attempt, whatever the policy says.
    pub no_retry: bool,
    /// The class that the call counts for; see [`QueueLayer::class`](super::QueueLayer::class). A name that no class
    /// has is ignored.
    pub class: Option<Arc<str>>,
}

impl CallOptions {
    /// Nothing of its own.
    #[inline]
    pub const fn none() -> Self {
        Self { timeout: None, deadline: None, no_retry: false, class: None }
    }

    /// With a timeout of its own.
    pub fn timeout(timeout: Duration) -> Self {
        Self { timeout: Some(timeout), ..Self::default() }
    }

    /// With a deadline of its own.
    pub fn deadline(deadline: Instant) -> Self {
        Self { deadline: Some(deadline), ..Self::default() }
    }

    /// For a class.
    pub fn class(class: impl Into<Arc<str>>) -> Self {
        Self { class: Some(class.into()), ..Self::default() }
    }

    /// With one attempt, whatever the policy says.
    #[must_use]
    pub fn no_retry(self) -> Self {
        Self { no_retry: true, ..self }
    }
}
