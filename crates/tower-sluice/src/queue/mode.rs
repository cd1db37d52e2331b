//! How a queue answers: response, error, slot scope, and what it reads from a request.

use std::fmt;

use tokio::time::Instant;

use super::options::CallOptions;
use super::slot::Slot;
use crate::BoxError;
use crate::reject::{Answer, Boxed, Rejection, RespondWith, Typed};

/// What a mode is before the request's type is known: what it puts between the queue and the service, and how another
/// answer takes its place.
pub trait Wrap {
    /// The service that the queue calls.
    type Inner<S>;

    /// Wraps the service that the layer was given.
    fn wrap<S>(&self, service: S) -> Self::Inner<S>;

    /// This mode with another way for rejections to reach the caller.
    type With<A>;

    /// Answers as `answer` does, and keeps all else: what is read from requests, what is put around the service.
    fn with<A>(self, answer: A) -> Self::With<A>;
}

/// The answer mode of a queue.
///
/// [`Boxed`], [`Typed`] and [`RespondWith`] end the slot when the service answers. A mode that
/// [`HOLDS`](Self::HOLDS) gets the slot with the response, and says by dropping it when it ends.
pub trait Mode<Req, Res, E>: Answer<Res, E> {
    /// Whether the slot goes with the response.
    const HOLDS: bool = false;

    /// What the call asks for itself.
    #[inline]
    fn options(&self, request: &Req) -> CallOptions {
        let _ = request;
        CallOptions::none()
    }

    /// The response, which now holds its slot. Only called if [`HOLDS`](Self::HOLDS).
    fn hold(&self, response: Res, slot: Slot) -> Self::Response {
        drop(slot);
        self.response(response)
    }
}

impl Wrap for Boxed {
    type Inner<S> = S;
    type With<A> = A;

    fn wrap<S>(&self, service: S) -> S {
        service
    }

    fn with<A>(self, answer: A) -> A {
        answer
    }
}

impl<Req, Res, E: Into<BoxError>> Mode<Req, Res, E> for Boxed {}

impl Wrap for Typed {
    type Inner<S> = S;
    type With<A> = A;

    fn wrap<S>(&self, service: S) -> S {
        service
    }

    fn with<A>(self, answer: A) -> A {
        answer
    }
}

impl<Req, Res, E: From<Rejection>> Mode<Req, Res, E> for Typed {}

impl<F> Wrap for RespondWith<F> {
    type Inner<S> = S;
    type With<A> = A;

    fn wrap<S>(&self, service: S) -> S {
        service
    }

    fn with<A>(self, answer: A) -> A {
        answer
    }
}

impl<Req, Res, E, F: Fn(&Rejection) -> Res> Mode<Req, Res, E> for RespondWith<F> {}

/// A mode that reads each call's deadline from its request; see
/// [`QueueLayer::deadline_from`](super::QueueLayer::deadline_from).
#[derive(Clone, Copy)]
pub struct DeadlineFrom<A, F> {
    mode: A,
    deadline: F,
}

impl<A, F> DeadlineFrom<A, F> {
    /// `mode`, with the deadline that `deadline` reads.
    pub const fn new(mode: A, deadline: F) -> Self {
        Self { mode, deadline }
    }
}

impl<A: fmt::Debug, F> fmt::Debug for DeadlineFrom<A, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeadlineFrom").field("mode", &self.mode).finish_non_exhaustive()
    }
}

impl<A: Wrap, F> Wrap for DeadlineFrom<A, F> {
    type Inner<S> = A::Inner<S>;
    type With<A2> = DeadlineFrom<A::With<A2>, F>;

    fn wrap<S>(&self, service: S) -> A::Inner<S> {
        self.mode.wrap(service)
    }

    fn with<A2>(self, answer: A2) -> DeadlineFrom<A::With<A2>, F> {
        DeadlineFrom { mode: self.mode.with(answer), deadline: self.deadline }
    }
}

impl<A: Answer<Res, E>, F, Res, E> Answer<Res, E> for DeadlineFrom<A, F> {
    type Response = A::Response;
    type Error = A::Error;
    type Kept = A::Kept;

    fn response(&self, response: Res) -> A::Response {
        self.mode.response(response)
    }

    fn error(&self, error: E) -> A::Error {
        self.mode.error(error)
    }

    fn keep(&self, error: E) -> A::Kept {
        self.mode.keep(error)
    }

    fn reject(&self, rejection: Rejection, last: Option<A::Kept>) -> Result<A::Response, A::Error> {
        self.mode.reject(rejection, last)
    }
}

impl<Req, Res, E, A, F> Mode<Req, Res, E> for DeadlineFrom<A, F>
where
    A: Mode<Req, Res, E>,
    F: Fn(&Req) -> Option<Instant>,
{
    const HOLDS: bool = A::HOLDS;

    fn options(&self, request: &Req) -> CallOptions {
        let mut options = self.mode.options(request);
        let own = (self.deadline)(request);
        options.deadline = match (options.deadline, own) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
        options
    }

    fn hold(&self, response: Res, slot: Slot) -> A::Response {
        self.mode.hold(response, slot)
    }
}
