use std::time::Duration;

use tokio::time::Instant;

/// When the call that a request belongs to has to be answered at the latest.
///
/// In a request's extensions. A queue with a [`deadline_header`](super::DeadlineHeader::deadline_header) puts it there
/// for what is below it; any queue of this crate that finds one obeys it. So a handler that asks another server puts
/// what it was given into its own request; see [the module](super).
///
/// ```
/// # use std::time::Duration;
/// use http::Request;
/// use tokio::time::Instant;
/// use tower_sluice_http::Deadline;
///
/// let deadline = Deadline::at(Instant::now() + Duration::from_secs(2));
/// let mut request = Request::new(());
/// request.extensions_mut().insert(deadline);
/// assert!(deadline.left() <= Duration::from_secs(2));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Deadline(Instant);

impl Deadline {
    /// At `instant`.
    pub const fn at(instant: Instant) -> Self {
        Self(instant)
    }

    /// When it is.
    pub const fn instant(self) -> Instant {
        self.0
    }

    /// How long it is until then; zero if it has passed. Reads the clock.
    pub fn left(self) -> Duration {
        self.0.saturating_duration_since(Instant::now())
    }
}
