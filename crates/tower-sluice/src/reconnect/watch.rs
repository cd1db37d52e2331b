use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::{sleep, timeout};

use super::caught::Caught;
use super::state::{Cause, CauseKind};
use crate::BoxError;

/// An async function that borrows the connection: a method such as `Conn::closed` or `Conn::ping`, or a closure
/// such as `async |conn: &Conn| conn.ping().await`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not an async function that borrows a `{C}`",
    note = "it is a method `async fn closed(&self)` of the connection, or a closure `async |conn: &Conn| ..`, whose future is `Send`"
)]
pub trait ConnectionFn<'a, C: 'a> {
    /// What the future gives.
    type Output;
    /// The future.
    type Future: Future<Output = Self::Output> + Send + 'a;

    /// Runs it.
    fn run(&self, connection: &'a C) -> Self::Future;
}

impl<'a, C: 'a, F, Fut> ConnectionFn<'a, C> for F
where
    F: Fn(&'a C) -> Fut,
    Fut: Future + Send + 'a,
{
    type Output = Fut::Output;
    type Future = Fut;

    fn run(&self, connection: &'a C) -> Fut {
        self(connection)
    }
}

/// What a closed-future can end with: nothing, an error, or a `Result`. The error becomes part of the link's
/// [`Cause`].
pub trait ClosedReason {
    /// The error that closed the connection, if there was one.
    fn into_error(self) -> Option<BoxError>;
}

impl ClosedReason for () {
    fn into_error(self) -> Option<BoxError> {
        None
    }
}

impl ClosedReason for BoxError {
    fn into_error(self) -> Option<BoxError> {
        Some(self)
    }
}

impl<E: Into<BoxError>> ClosedReason for Result<(), E> {
    fn into_error(self) -> Option<BoxError> {
        self.err().map(Into::into)
    }
}

type Watching = Pin<Box<dyn Future<Output = Cause> + Send>>;
type Beat = Pin<Box<dyn Future<Output = Result<(), BoxError>> + Send>>;

/// What is watched over each connection, for as long as it is the link's.
pub(super) struct Watches<C> {
    closed: Option<Box<dyn Fn(Arc<C>) -> Watching + Send>>,
    heartbeat: Option<Heartbeat<C>>,
    heartbeat_timeout: Option<Duration>,
}

struct Heartbeat<C> {
    every: Duration,
    beat: Arc<dyn Fn(Arc<C>) -> Beat + Send + Sync>,
}

impl<C: Send + Sync + 'static> Watches<C> {
    pub(super) fn closed<F, T>(&mut self, closed: F)
    where
        F: for<'a> ConnectionFn<'a, C, Output = T> + Send + Sync + 'static,
        T: ClosedReason,
    {
        let closed = Arc::new(closed);
        self.closed = Some(Box::new(move |connection| {
            let closed = Arc::clone(&closed);
            Box::pin(async move { Cause::new(CauseKind::Closed, closed.run(&connection).await.into_error()) })
        }));
    }

    pub(super) fn heartbeat<F, T, E>(&mut self, every: Duration, beat: F)
    where
        F: for<'a> ConnectionFn<'a, C, Output = Result<T, E>> + Send + Sync + 'static,
        E: Into<BoxError>,
    {
        let beat = Arc::new(beat);
        self.heartbeat = Some(Heartbeat {
            every,
            beat: Arc::new(move |connection| {
                let beat = Arc::clone(&beat);
                Box::pin(async move { beat.run(&connection).await.map(drop).map_err(Into::into) })
            }),
        });
    }
}

impl<C> Watches<C> {
    pub(super) fn heartbeat_timeout(&mut self, timeout: Duration) {
        self.heartbeat_timeout = Some(timeout);
    }
}

impl<C> Default for Watches<C> {
    fn default() -> Self {
        Self { closed: None, heartbeat: None, heartbeat_timeout: None }
    }
}

impl<C> fmt::Debug for Watches<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watches")
            .field("closed", &self.closed.is_some())
            .field("heartbeat", &self.heartbeat.as_ref().map(|heartbeat| heartbeat.every))
            .finish_non_exhaustive()
    }
}

impl<C: Send + Sync + 'static> Watches<C> {
    /// Starts to watch over `connection`.
    pub(super) fn start(&self, connection: &Arc<C>) -> Watch {
        let closed = self.closed.as_ref().map(|closed| {
            let connection = Arc::clone(connection);
            Caught::new(closed(connection))
        });
        let beats = self.heartbeat.as_ref().map(|heartbeat| {
            let (every, beat) = (heartbeat.every, Arc::clone(&heartbeat.beat));
            let longest = self.heartbeat_timeout.unwrap_or(every);
            Caught::new(beat_forever(every, longest, beat, Arc::clone(connection)))
        });
        Watch { closed, beats }
    }
}

fn beat_forever<C: Send + Sync + 'static>(
    every: Duration,
    longest: Duration,
    beat: Arc<dyn Fn(Arc<C>) -> Beat + Send + Sync>,
    connection: Arc<C>,
) -> Watching {
    Box::pin(async move {
        loop {
            sleep(every).await;
            match timeout(longest, beat(Arc::clone(&connection))).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => return Cause::new(CauseKind::Heartbeat, error),
                Err(elapsed) => return Cause::new(CauseKind::Heartbeat, BoxError::from(elapsed)),
            }
        }
    })
}

/// The watch over one connection: ends with why it is lost.
#[derive(Debug)]
pub(super) struct Watch {
    closed: Option<Caught<Watching>>,
    beats: Option<Caught<Watching>>,
}

impl Future for Watch {
    type Output = Cause;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Cause> {
        let Self { closed, beats } = &mut *self;
        for watching in [closed, beats].into_iter().flatten() {
            if let Poll::Ready(result) = Pin::new(watching).poll(cx) {
                return Poll::Ready(result.unwrap_or_else(|panicked| panicked.into()));
            }
        }
        Poll::Pending
    }
}
