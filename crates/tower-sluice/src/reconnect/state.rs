use std::error::Error;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::BoxError;
use crate::reject::Rejection;

/// Where a link stands.
///
/// ```text
///  Connecting ──opened──▶ Restoring ──restored──▶ Connected
///      ▲  │                   │                       │
///      │  └──────failed───────┴─────────lost──────────┤
///      │                                              ▼
///      └───────────────────due───────────────────  Waiting        Disconnected: given up, out of
///                                                                 attempts, or not yet asked for
/// ```
///
/// Read through [`Link::state`](super::Link::state), a `watch`: a reader that is slow sees the newest state, and may
/// miss some in between.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum LinkState {
    /// The connector runs.
    Connecting {
        /// Tries that failed since the link last was stable; 0 for the first.
        attempt: u32,
    },
    /// The connection is open, and its context is being restored: not usable yet.
    Restoring {
        /// As in [`Connecting`](Self::Connecting).
        attempt: u32,
    },
    /// Open and restored: callers are served.
    Connected {
        /// Since when.
        since: Instant,
        /// Which connection this is: 1 for the first that was restored, then 2, and so on.
        generation: u64,
    },
    /// Between two tries.
    Waiting {
        /// The try that comes next.
        attempt: u32,
        /// When it comes.
        until: Instant,
        /// Why the link is down.
        cause: Cause,
    },
    /// No try is planned. [`Link::retry_now`](super::Link::retry_now) starts afresh.
    Disconnected {
        /// Why: the last failure, where the attempts ran out.
        cause: Cause,
    },
}

impl LinkState {
    /// Whether callers are served.
    pub const fn is_connected(&self) -> bool {
        matches!(self, Self::Connected { .. })
    }

    /// How long it is from `now` to the next try, where one is planned: the countdown to show.
    pub fn next_try(&self, now: Instant) -> Option<Duration> {
        match self {
            Self::Waiting { until, .. } => Some(until.saturating_duration_since(now)),
            Self::Connecting { .. }
            | Self::Restoring { .. }
            | Self::Connected { .. }
            | Self::Disconnected { .. } => None,
        }
    }

    /// Why the link is down, while it waits or is disconnected.
    pub const fn cause(&self) -> Option<&Cause> {
        match self {
            Self::Waiting { cause, .. } | Self::Disconnected { cause } => Some(cause),
            Self::Connecting { .. } | Self::Restoring { .. } | Self::Connected { .. } => None,
        }
    }

    /// The name used in events: `connecting`, `restoring`, `connected`, `waiting`, `disconnected`.
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Connecting { .. } => "connecting",
            Self::Restoring { .. } => "restoring",
            Self::Connected { .. } => "connected",
            Self::Waiting { .. } => "waiting",
            Self::Disconnected { .. } => "disconnected",
        }
    }
}

impl fmt::Display for LinkState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())?;
        self.cause().map_or(Ok(()), |cause| write!(f, ": {cause}"))
    }
}

/// What kind of thing a [`Cause`] is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum CauseKind {
    /// A lazy link that nobody has asked for yet.
    NotStarted,
    /// The connector returned an error.
    ConnectFailed,
    /// The connector took longer than `connect_timeout`.
    ConnectTimeout,
    /// Restoring returned an error.
    RestoreFailed,
    /// Restoring took longer than `restore_timeout`.
    RestoreTimeout,
    /// The connector, the restoring or a watch over the connection panicked.
    Panicked,
    /// The connection's own closed-future ended.
    Closed,
    /// A heartbeat failed, or was not answered in time.
    Heartbeat,
    /// The service's `poll_ready` failed.
    NotReady,
    /// A user of the connection reported it, or the classifier recognised its error.
    Broken,
    /// [`Link::give_up`](super::Link::give_up) was called.
    GaveUp,
    /// The driver was dropped: nothing will connect this link again.
    NotDriven,
}

impl CauseKind {
    /// The name used in events.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::NotStarted => "not_started",
            Self::ConnectFailed => "connect_failed",
            Self::ConnectTimeout => "connect_timeout",
            Self::RestoreFailed => "restore_failed",
            Self::RestoreTimeout => "restore_timeout",
            Self::Panicked => "panicked",
            Self::Closed => "closed",
            Self::Heartbeat => "heartbeat",
            Self::NotReady => "not_ready",
            Self::Broken => "broken",
            Self::GaveUp => "gave_up",
            Self::NotDriven => "not_driven",
        }
    }

    const fn describe(self) -> &'static str {
        match self {
            Self::NotStarted => "not asked for yet",
            Self::ConnectFailed => "could not connect",
            Self::ConnectTimeout => "connecting took too long",
            Self::RestoreFailed => "could not be restored",
            Self::RestoreTimeout => "restoring took too long",
            Self::Panicked => "panicked",
            Self::Closed => "the connection closed",
            Self::Heartbeat => "the heartbeat failed",
            Self::NotReady => "the connection is no longer ready",
            Self::Broken => "the connection broke",
            Self::GaveUp => "given up",
            Self::NotDriven => "its driver was dropped",
        }
    }
}

/// Why a link is down: a kind, and the error that told, where there was one.
///
/// Cheap to clone. As an [`Error`], its source is that error.
#[derive(Clone, Debug)]
pub struct Cause {
    kind: CauseKind,
    error: Option<Arc<dyn Error + Send + Sync>>,
}

impl Cause {
    pub(super) fn new(kind: CauseKind, error: impl Into<Option<BoxError>>) -> Self {
        Self { kind, error: error.into().map(Arc::from) }
    }

    /// What kind of cause this is.
    pub const fn kind(&self) -> CauseKind {
        self.kind
    }

    /// The error that told, where there was one.
    pub fn error(&self) -> Option<&(dyn Error + Send + Sync + 'static)> {
        self.error.as_deref()
    }
}

impl From<CauseKind> for Cause {
    fn from(kind: CauseKind) -> Self {
        Self { kind, error: None }
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.kind.describe())?;
        self.error.as_ref().map_or(Ok(()), |error| write!(f, ": {error}"))
    }
}

impl Error for Cause {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.error.as_deref().map(|error| error as _)
    }
}

/// The rejection of a caller that finds the link in `state`. `last` is what brought it down, once something has.
pub(super) fn rejection(state: &LinkState, last: Option<&Cause>, now: Instant) -> Rejection {
    let cause = state.cause().or(last);
    Rejection::Disconnected {
        retry_after: state.next_try(now),
        cause: cause.map(|cause| Arc::from(cause.to_string())),
    }
}
