use std::fmt;
use std::task::{Context, Poll, ready};

use tower_service::Service;

use super::future::ResponseFuture;
use super::gate::Gate;
use crate::reject::Answer;

/// Turns requests away while their gate is shut. Made by [`ShedLayer`](super::ShedLayer).
///
/// Its readiness is the inner service's, since the request, and so its class, is known only in `call`. In front of a
/// queue that is always ready nothing is held back by that.
#[derive(Clone)]
pub struct Shed<S, G, A> {
    inner: S,
    gate: G,
    answer: A,
}

impl<S, G, A> Shed<S, G, A> {
    pub(super) fn new(inner: S, gate: G, answer: A) -> Self {
        Self { inner, gate, answer }
    }
}

impl<S, G, A, Req> Service<Req> for Shed<S, G, A>
where
    S: Service<Req>,
    G: Gate<Req>,
    A: Answer<S::Response, S::Error> + Clone,
{
    type Response = A::Response;
    type Error = A::Error;
    type Future = ResponseFuture<S::Future, A>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), A::Error>> {
        Poll::Ready(ready!(self.inner.poll_ready(cx)).map_err(|error| self.answer.error(error)))
    }

    fn call(&mut self, request: Req) -> Self::Future {
        let answer = self.answer.clone();
        match self.gate.admit(&request) {
            Ok(()) => ResponseFuture::admitted(self.inner.call(request), answer),
            Err(rejection) => ResponseFuture::shed(rejection, answer),
        }
    }
}

impl<S: fmt::Debug, G: fmt::Debug, A> fmt::Debug for Shed<S, G, A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shed").field("inner", &self.inner).field("gate", &self.gate).finish_non_exhaustive()
    }
}
