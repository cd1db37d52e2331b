//! What the stack answers by itself, and how that reaches the caller.
//!
//! A [`Rejection`] says why a call was turned away or given up, with the figures that explain it, and when to come
//! back. How it reaches the caller is an [`Answer`], the same choice on every layer of this workspace:
//!
//! | mode | the layer's error | a rejection becomes |
//! |---|---|---|
//! | [`Boxed`] (default) | [`BoxError`] | an error; [`Rejection::find`] finds it |
//! | [`Typed`] | the service's own, which is `From<Rejection>` | an error; nothing is boxed |
//! | [`RespondWith`] | the service's own | a response, made by your closure |

use std::error::Error;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::BoxError;
use crate::verdict::FailureKind;

/// Why the stack answered instead of the service.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Rejection {
    /// The queue holds as many calls as it may.
    Full {
        /// Attempts that may run at once.
        limit: usize,
        /// Calls that were waiting: queued and deferred.
        waiting: usize,
        /// A guess of when there is room, from what the layer knows; `None` where it knows nothing.
        retry_after: Option<Duration>,
    },
    /// The call stood in the line for longer than `queue_timeout`.
    QueueTimeout {
        /// How long it stood there, time spent paused not counted.
        waited: Duration,
        /// Attempts made before.
        attempts: u32,
    },
    /// An operator cleared the queue.
    Cleared {
        /// What the operator gave as reason.
        reason: Arc<str>,
    },
    /// The queue is closed: it takes no new calls, and it waits no longer for this one.
    Closed,
    /// The call cannot be, or was not, answered by its deadline.
    Deadline {
        /// Attempts made, the one that was cut short included.
        attempts: u32,
        /// From `call` to this answer.
        elapsed: Duration,
        /// Why the last attempt that ended had failed, if one had.
        last_failure: Option<FailureKind>,
    },
    /// One attempt took longer than `attempt_timeout`, and no other was made.
    AttemptTimeout {
        /// Attempts made, this one included.
        attempts: u32,
        /// From `call` to this answer.
        elapsed: Duration,
    },
    /// Work of this class is not done at the present level.
    Shed {
        /// The name of the rung that holds, where known.
        level: Option<Arc<str>>,
    },
    /// The link is down.
    Disconnected {
        /// The time until the next try to connect, where one is planned.
        retry_after: Option<Duration>,
        /// What brought the link down, in words; `None` where nothing has yet.
        cause: Option<Arc<str>>,
    },
}

impl Rejection {
    /// The rejection in `error` or among its sources, if there is one.
    ///
    /// ```
    /// use tower_sluice::reject::Rejection;
    ///
    /// let error: tower_sluice::BoxError = Box::new(Rejection::Closed);
    /// assert_eq!(Rejection::find(&*error), Some(&Rejection::Closed));
    /// ```
    pub fn find<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a Self> {
        let mut next = Some(error);
        while let Some(error) = next {
            if let Some(rejection) = error.downcast_ref::<Self>() {
                return Some(rejection);
            }
            if let Some(Rejected { rejection, .. }) = error.downcast_ref() {
                return Some(rejection);
            }
            next = error.source();
        }
        None
    }

    /// When to come back, where the stack knows.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Full { retry_after, .. } | Self::Disconnected { retry_after, .. } => *retry_after,
            Self::QueueTimeout { .. }
            | Self::Cleared { .. }
            | Self::Closed
            | Self::Deadline { .. }
            | Self::AttemptTimeout { .. }
            | Self::Shed { .. } => None,
        }
    }

    /// The name used in events and figures: `full`, `queue_timeout`, `cleared`, `closed`, `deadline`,
    /// `attempt_timeout`, `shed`, `disconnected`.
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Full { .. } => "full",
            Self::QueueTimeout { .. } => "queue_timeout",
            Self::Cleared { .. } => "cleared",
            Self::Closed => "closed",
            Self::Deadline { .. } => "deadline",
            Self::AttemptTimeout { .. } => "attempt_timeout",
            Self::Shed { .. } => "shed",
            Self::Disconnected { .. } => "disconnected",
        }
    }
}

impl fmt::Display for Rejection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Full { limit, waiting, .. } => {
                write!(f, "the queue is full: limit {limit}, {waiting} waiting")
            }
            Self::QueueTimeout { waited, .. } => {
                write!(f, "waited {waited:?} for a slot, longer than may be")
            }
            Self::Cleared { reason } => write!(f, "the queue was cleared: {reason}"),
            Self::Closed => f.write_str("the queue is closed"),
            Self::Deadline { attempts, elapsed, last_failure } => {
                write!(f, "the deadline passed after {elapsed:?} and {attempts} attempts")?;
                last_failure.map_or(Ok(()), |kind| write!(f, ", the last of which failed as {kind}"))
            }
            Self::AttemptTimeout { attempts, elapsed } => {
                write!(f, "attempt {attempts} timed out, {elapsed:?} after the call")
            }
            Self::Shed { level: Some(level) } => write!(f, "not served at level {level}"),
            Self::Shed { level: None } => f.write_str("not served at the present level"),
            Self::Disconnected { retry_after, cause } => {
                f.write_str("disconnected")?;
                if let Some(cause) = cause {
                    write!(f, " ({cause})")?;
                }
                retry_after.map_or(Ok(()), |delay| write!(f, "; the next try is in {delay:?}"))
            }
        }
    }
}

impl Error for Rejection {}

/// A [`Rejection`] in boxed mode, with the last error of the service as its source.
#[derive(Debug)]
pub struct Rejected {
    rejection: Rejection,
    last: BoxError,
}

impl Rejected {
    /// What the stack decided.
    pub fn rejection(&self) -> &Rejection {
        &self.rejection
    }
}

impl fmt::Display for Rejected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.rejection.fmt(f)
    }
}

impl Error for Rejected {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&*self.last)
    }
}

/// Whether work is taken on now.
///
/// Asked once a call, on its arrival. Any `Fn() -> bool` is one, and turns away as [`Rejection::Shed`] without a
/// level's name; a level's `at_least` is one that knows it.
///
/// ```
/// use std::sync::atomic::{AtomicBool, Ordering};
/// use tower_sluice::reject::{Admit, Rejection};
///
/// let open = AtomicBool::new(false);
/// let gate = || open.load(Ordering::Relaxed);
/// assert_eq!(gate.admit(), Err(Rejection::Shed { level: None }));
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not say whether work is taken on",
    note = "a closure `Fn() -> bool` does, and so does `at_least(level)` of a ladder's signal"
)]
pub trait Admit {
    /// `Ok` to take the work on, else the answer to its caller.
    fn admit(&self) -> Result<(), Rejection>;
}

impl<F: Fn() -> bool> Admit for F {
    fn admit(&self) -> Result<(), Rejection> {
        if self() { Ok(()) } else { Err(Rejection::Shed { level: None }) }
    }
}

/// How a layer's answers reach the caller: the service's own, and the layer's [`Rejection`]s.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot answer for a service with response `{Res}` and error `{E}`",
    note = "boxed (the default) needs an error that is `Into<BoxError>`; typed needs one that is `From<Rejection>`; `respond_with` needs a closure `Fn(&Rejection) -> Response`"
)]
pub trait Answer<Res, E> {
    /// The layer's response.
    type Response;
    /// The layer's error.
    type Error;
    /// What is kept of an attempt's error, for the case that the call ends in a rejection later.
    type Kept;

    /// The service's own response.
    fn response(&self, response: Res) -> Self::Response;

    /// The service's own error.
    fn error(&self, error: E) -> Self::Error;

    /// Keeps an attempt's error while the next attempt is awaited.
    fn keep(&self, error: E) -> Self::Kept;

    /// The layer's own answer. `last` is the error of the last attempt, if it ended in one.
    fn reject(&self, rejection: Rejection, last: Option<Self::Kept>) -> Result<Self::Response, Self::Error>;
}

/// Rejections are boxed errors, as tower's own layers return them. The default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Boxed;

impl<Res, E: Into<BoxError>> Answer<Res, E> for Boxed {
    type Response = Res;
    type Error = BoxError;
    type Kept = BoxError;

    fn response(&self, response: Res) -> Res {
        response
    }

    fn error(&self, error: E) -> BoxError {
        error.into()
    }

    fn keep(&self, error: E) -> BoxError {
        error.into()
    }

    fn reject(&self, rejection: Rejection, last: Option<BoxError>) -> Result<Res, BoxError> {
        Err(match last {
            Some(last) => Box::new(Rejected { rejection, last }),
            None => Box::new(rejection),
        })
    }
}

/// Rejections become the service's own error type: nothing is boxed, and the inner error keeps its type.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Typed;

impl<Res, E: From<Rejection>> Answer<Res, E> for Typed {
    type Response = Res;
    type Error = E;
    type Kept = ();

    fn response(&self, response: Res) -> Res {
        response
    }

    fn error(&self, error: E) -> E {
        error
    }

    fn keep(&self, _: E) {}

    fn reject(&self, rejection: Rejection, _: Option<()>) -> Result<Res, E> {
        Err(E::from(rejection))
    }
}

/// Rejections become responses, made by a closure; the error stays the service's own.
///
/// In axum that keeps `Error = Infallible`, so that no `HandleErrorLayer` is needed.
#[derive(Clone, Copy)]
pub struct RespondWith<F> {
    respond: F,
}

impl<F> RespondWith<F> {
    /// Answers with what `respond` makes of a rejection.
    pub const fn new(respond: F) -> Self {
        Self { respond }
    }
}

impl<F> fmt::Debug for RespondWith<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RespondWith").finish_non_exhaustive()
    }
}

impl<F, Res, E> Answer<Res, E> for RespondWith<F>
where
    F: Fn(&Rejection) -> Res,
{
    type Response = Res;
    type Error = E;
    type Kept = ();

    fn response(&self, response: Res) -> Res {
        response
    }

    fn error(&self, error: E) -> E {
        error
    }

    fn keep(&self, _: E) {}

    fn reject(&self, rejection: Rejection, _: Option<()>) -> Result<Res, E> {
        Ok((self.respond)(&rejection))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rejection_is_found_behind_other_errors_and_shows_the_last_error_as_its_source() {
        let answer = Boxed;
        let kept = Answer::<(), BoxError>::keep(&answer, "connection reset".into());
        let rejection = Rejection::Deadline {
            attempts: 2,
            elapsed: Duration::from_secs(3),
            last_failure: Some(FailureKind::Transient),
        };
        let error = Answer::<(), BoxError>::reject(&answer, rejection.clone(), Some(kept)).unwrap_err();
        let wrapped = std::io::Error::other(error);
        let inner = wrapped.get_ref().unwrap();
        assert_eq!(Rejection::find(inner), Some(&rejection));
        assert_eq!(inner.source().unwrap().to_string(), "connection reset");
    }
}
