use std::fmt;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tower_service::Service;

use super::future::ResponseFuture;
use super::layer::Settings;
use super::mode::Mode;
use super::place::Place;
use crate::retry::RetryPolicy;
use crate::verdict::{Classify, Repeat};

/// A service whose attempts run under a [`QueueLayer`](super::QueueLayer)'s limit.
///
/// `poll_ready` never takes a slot and never polls the inner service: that happens in the call's future, so that a
/// handle which is ready and idle holds nothing. Cheap to clone; clones share everything but a reserved place.
pub struct Queue<S, P, A> {
    inner: S,
    settings: Arc<Settings<P, A>>,
    /// With `wait_when_full`.
    place: Place,
}

impl<S, P, A> Queue<S, P, A> {
    pub(super) fn new(inner: S, settings: Arc<Settings<P, A>>) -> Self {
        Self { inner, settings, place: Place::default() }
    }

    /// The service that the attempts run on.
    pub fn get_ref(&self) -> &S {
        &self.inner
    }

    /// To watch, pause, clear, drain and resize everything built from the same layer value.
    pub fn handle(&self) -> super::Handle {
        super::Handle::new(Arc::clone(&self.settings.shared))
    }
}

impl<S: Clone, P, A> Clone for Queue<S, P, A> {
    fn clone(&self) -> Self {
        Self::new(self.inner.clone(), Arc::clone(&self.settings))
    }
}

impl<S: fmt::Debug, P, A> fmt::Debug for Queue<S, P, A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Queue").field("inner", &self.inner).finish_non_exhaustive()
    }
}

impl<S, Req, C, R, A> Service<Req> for Queue<S, RetryPolicy<C, R>, A>
where
    S: Service<Req> + Clone,
    C: Classify<S::Response, S::Error>,
    R: Repeat<Req>,
    A: Mode<Req, S::Response, S::Error>,
{
    type Response = A::Response;
    type Error = A::Error;
    type Future = ResponseFuture<S, Req, C, R, A>;

    /// Never an error. Pending only with [`wait_when_full`](super::QueueLayer::wait_when_full).
    #[inline]
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        if self.settings.wait_when_full {
            ready!(self.place.poll_reserve(&self.settings.shared, cx));
        }
        Poll::Ready(Ok(()))
    }

    #[inline]
    fn call(&mut self, request: Req) -> Self::Future {
        let options = self.settings.mode.options(&request);
        let inner = self.inner.clone();
        // Last, since what runs before may panic, and who holds the place gives it up.
        let reserved = self.place.hand_over();
        ResponseFuture::new(inner, request, Arc::clone(&self.settings), options, reserved)
    }
}
