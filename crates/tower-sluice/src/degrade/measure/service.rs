use std::fmt;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tower_service::Service;

use super::counters::Counters;
use super::future::{Attempt, ResponseFuture};
use crate::verdict::Classify;

/// What the services and futures of one `layer()` call share.
#[derive(Debug)]
pub(super) struct Shared<C> {
    pub(super) counters: Arc<Counters>,
    pub(super) classifier: C,
    pub(super) timeout: Duration,
}

/// Measures each attempt. Made by [`MeasureLayer`](super::MeasureLayer).
///
/// An error of the inner service's readiness is an outcome too, without a latency.
pub struct Measure<S, C> {
    inner: S,
    shared: Arc<Shared<C>>,
}

impl<S, C> Measure<S, C> {
    pub(super) fn new(inner: S, shared: Shared<C>) -> Self {
        Self { inner, shared: Arc::new(shared) }
    }

    /// The service that is measured.
    pub fn get_ref(&self) -> &S {
        &self.inner
    }
}

impl<S, C, Req> Service<Req> for Measure<S, C>
where
    S: Service<Req>,
    C: Classify<S::Response, S::Error>,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = ResponseFuture<S::Future, C>;

    #[inline]
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        let Err(error) = ready!(self.inner.poll_ready(cx)) else { return Poll::Ready(Ok(())) };
        // The result of an attempt that will not be made.
        let result: Result<S::Response, S::Error> = Err(error);
        if self.shared.counters.wanted() {
            self.shared.counters.unready(&self.shared.classifier.classify(&result));
        }
        Poll::Ready(result.map(drop))
    }

    #[inline]
    fn call(&mut self, request: Req) -> Self::Future {
        let attempt = Attempt::start(&self.shared);
        ResponseFuture::new(self.inner.call(request), attempt)
    }
}

impl<S: Clone, C> Clone for Measure<S, C> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone(), shared: Arc::clone(&self.shared) }
    }
}

impl<S: fmt::Debug, C> fmt::Debug for Measure<S, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Measure")
            .field("inner", &self.inner)
            .field("counters", &self.shared.counters)
            .finish_non_exhaustive()
    }
}
