use std::fmt;
use std::task::{Context, Poll};

use tower_service::Service;

use super::broken::{Broken, BrokenIf, NeverBroken};
use super::future::ResponseFuture;
use super::link::Link;
use super::readiness::Readiness;
use crate::BoxError;
use crate::reject::{Answer, Boxed, RespondWith, Typed};

/// A tower service over a [`Link`] whose connections are services.
///
/// While the link is down `poll_ready` is pending, for as long as the link lets callers wait, so that a balancer
/// looks elsewhere and a retry above does not burn its attempts. It never returns an error: what ends a wait is
/// answered by the call, with [`Rejection::Disconnected`](crate::reject::Rejection::Disconnected). A failure of the
/// connection's own `poll_ready` means the loss of the link, and the caller, whose request was not sent, waits on.
///
/// A call that was made ready on a connection that has been lost since waits for the next connection. A call that is
/// under way when the link falls runs on to its own end and gets its own result; it is not sent again. Bound it with
/// a timeout above, since a peer that is gone without a word answers nothing.
///
/// Clones share the link, and each is made ready for itself.
pub struct Reconnect<S, A = Boxed, B = NeverBroken> {
    link: Link<S>,
    answer: A,
    broken: B,
    readiness: Readiness<S>,
}

impl<S> Reconnect<S> {
    /// A service over `link`.
    pub const fn new(link: Link<S>) -> Self {
        Self::with(link, Boxed, NeverBroken)
    }
}

impl<S, A, B> Reconnect<S, A, B> {
    pub(super) const fn with(link: Link<S>, answer: A, broken: B) -> Self {
        Self { link, answer, broken, readiness: Readiness::new() }
    }

    /// Rejections reach the caller as the service's own error type, which is `From<Rejection>`.
    pub fn typed(self) -> Reconnect<S, Typed, B> {
        self.answer(Typed)
    }

    /// Rejections reach the caller as responses, made by `respond`.
    pub fn respond_with<F>(self, respond: F) -> Reconnect<S, RespondWith<F>, B> {
        self.answer(RespondWith::new(respond))
    }

    /// How rejections reach the caller. Default: [`Boxed`].
    pub fn answer<A2>(self, answer: A2) -> Reconnect<S, A2, B> {
        Reconnect::with(self.link, answer, self.broken)
    }

    /// A sign of loss: an error of a call that `is_broken` recognises. Default: none is.
    pub fn broken_if<F>(self, is_broken: F) -> Reconnect<S, A, BrokenIf<F>> {
        Reconnect::with(self.link, self.answer, BrokenIf::new(is_broken))
    }

    /// The link: its state, and the operator's acts.
    pub const fn link(&self) -> &Link<S> {
        &self.link
    }
}

impl<S, A, B, Req> Service<Req> for Reconnect<S, A, B>
where
    S: Service<Req> + Clone,
    S::Error: Into<BoxError>,
    A: Answer<S::Response, S::Error> + Clone,
    B: Broken<S::Error> + Clone,
{
    type Response = A::Response;
    type Error = A::Error;
    type Future = ResponseFuture<S, Req, A, B>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.readiness.poll(&self.link, cx).map(Ok)
    }

    fn call(&mut self, request: Req) -> Self::Future {
        ResponseFuture::new(
            self.readiness.take(),
            &self.link,
            request,
            self.answer.clone(),
            self.broken.clone(),
        )
    }
}

impl<S, A: Clone, B: Clone> Clone for Reconnect<S, A, B> {
    /// The clone is not ready: readiness belongs to the one that was polled.
    fn clone(&self) -> Self {
        Self::with(self.link.clone(), self.answer.clone(), self.broken.clone())
    }
}

impl<S, A, B> fmt::Debug for Reconnect<S, A, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reconnect")
            .field("link", &self.link)
            .field("readiness", &self.readiness)
            .finish_non_exhaustive()
    }
}
