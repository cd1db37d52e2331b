use std::convert::Infallible;
use std::fmt;
use std::future::{Future, Ready, ready};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use pin_project_lite::pin_project;
use tower_service::Service;

use crate::BoxError;

/// Opens a connection, anew for every try: what it looks up, such as an address, is looked up again.
///
/// Closures `FnMut() -> impl Future<Output = Result<C, E>>` implement it, and [`MakeConnection`] does for tower's
/// services that make services.
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not open a connection",
    note = "a connector is a closure that returns a future of a `Result<Connection, Error>`, whose error is `Into<BoxError>`"
)]
pub trait Connect {
    /// What is opened.
    type Connection;
    /// Why it could not be.
    type Error: Into<BoxError>;
    /// One try.
    type Future: Future<Output = Result<Self::Connection, Self::Error>>;

    /// Starts a try.
    fn connect(&mut self) -> Self::Future;
}

impl<F, Fut, C, E> Connect for F
where
    F: FnMut() -> Fut,
    Fut: Future<Output = Result<C, E>>,
    E: Into<BoxError>,
{
    type Connection = C;
    type Error = E;
    type Future = Fut;

    fn connect(&mut self) -> Fut {
        self()
    }
}

/// Restores the context of a connection that was just opened: subscribes again, finds its position, sends again what
/// was not acknowledged.
///
/// Closures `FnMut(C) -> impl Future<Output = Result<C, E>>` implement it. It may run many times, and a run that
/// failed may have done half of its work, on a connection that is dropped: write it so that it can be repeated.
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not restore a connection of type `{C}`",
    note = "`restore` is a closure that takes the connection and returns a future of a `Result` with the connection, whose error is `Into<BoxError>`"
)]
pub trait Restore<C> {
    /// Why it could not be restored.
    type Error: Into<BoxError>;
    /// One run.
    type Future: Future<Output = Result<C, Self::Error>>;

    /// Starts to restore.
    fn restore(&mut self, connection: C) -> Self::Future;
}

impl<F, Fut, C, E> Restore<C> for F
where
    F: FnMut(C) -> Fut,
    Fut: Future<Output = Result<C, E>>,
    E: Into<BoxError>,
{
    type Error = E;
    type Future = Fut;

    fn restore(&mut self, connection: C) -> Fut {
        self(connection)
    }
}

/// Nothing to restore: an open connection is all there is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NoRestore;

impl<C> Restore<C> for NoRestore {
    type Error = Infallible;
    type Future = Ready<Result<C, Infallible>>;

    fn restore(&mut self, connection: C) -> Self::Future {
        ready(Ok(connection))
    }
}

/// A [`Connect`] from a service that makes services, tower's `MakeService`, and the target to hand to it.
///
/// Each try takes a clone of the maker, waits until it is ready, and calls it with a clone of the target.
#[derive(Clone)]
pub struct MakeConnection<M, T> {
    make: M,
    target: T,
}

impl<M, T> MakeConnection<M, T> {
    /// Connects by calling `make` with `target`.
    pub const fn new(make: M, target: T) -> Self {
        Self { make, target }
    }
}

impl<M, T> fmt::Debug for MakeConnection<M, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MakeConnection").finish_non_exhaustive()
    }
}

impl<M, T> Connect for MakeConnection<M, T>
where
    M: Service<T> + Clone,
    M::Error: Into<BoxError>,
    T: Clone,
{
    type Connection = M::Response;
    type Error = M::Error;
    type Future = Making<M, T>;

    fn connect(&mut self) -> Self::Future {
        Making { state: Making_::Readying { make: self.make.clone(), target: Some(self.target.clone()) } }
    }
}

pin_project! {
    /// One try of a [`MakeConnection`].
    pub struct Making<M: Service<T>, T> {
        #[pin]
        state: Making_<M, T, M::Future>,
    }
}

pin_project! {
    #[project = MakingProj]
    enum Making_<M, T, F> {
        Readying { make: M, target: Option<T> },
        Calling { #[pin] future: F },
    }
}

impl<M: Service<T>, T> Future for Making<M, T> {
    type Output = Result<M::Response, M::Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.project().state;
        loop {
            match state.as_mut().project() {
                MakingProj::Readying { make, target } => {
                    if let Err(error) = ready!(make.poll_ready(cx)) {
                        return Poll::Ready(Err(error));
                    }
                    // Taken once: the state is left in the same breath.
                    let Some(target) = target.take() else { return Poll::Pending };
                    let future = make.call(target);
                    state.set(Making_::Calling { future });
                }
                MakingProj::Calling { future } => return future.poll(cx),
            }
        }
    }
}

impl<M: Service<T>, T> fmt::Debug for Making<M, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Making").finish_non_exhaustive()
    }
}
