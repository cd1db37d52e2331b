//! How a queue answers gRPC, and what it reads from a request.

use http::Request;
use tokio::time::Instant;
use tower_sluice::queue::{CallOptions, Mode, Wrap};
use tower_sluice::reject::{Answer, Rejection};

use super::answer::GrpcAnswer;
use super::layer::GrpcStatusLayer;
use super::service::WithGrpcStatus;
use super::timeout::{allowance, grpc_timeout};

/// An answer mode for gRPC servers: answers as `A` does, takes a call's own [`CallOptions`] from the request's
/// extensions, and its deadline from `grpc-timeout`.
///
/// The header's deadline never makes the call's time longer than the layer's own call timeout; a timeout in the
/// [`CallOptions`] replaces both. It is taken as 5 ms sooner than it says, or a tenth where that is less, so that the
/// caller gets DEADLINE_EXCEEDED before it gives up, and before tonic, which enforces the same header, cuts the call with
/// CANCELLED.
///
/// [`GrpcAnswer`] is such a mode by itself; `typed` and `respond_with` put another answer into it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GrpcMode<A> {
    answer: A,
}

impl<A> GrpcMode<A> {
    /// Answers as `answer` does.
    pub const fn new(answer: A) -> Self {
        Self { answer }
    }
}

/// An answer mode for gRPC clients: as [`GrpcMode`], with a [`GrpcStatusLayer`] below the queue.
///
/// Answers as [`GrpcAnswer`] does unless told otherwise.
#[derive(Clone, Copy, Debug, Default)]
pub struct GrpcClientMode<A = GrpcAnswer> {
    mode: GrpcMode<A>,
    statuses: GrpcStatusLayer,
}

impl<A> GrpcClientMode<A> {
    /// Answers as `answer` does.
    pub const fn new(answer: A) -> Self {
        Self { mode: GrpcMode::new(answer), statuses: GrpcStatusLayer::new() }
    }

    /// Finds statuses by this layer, in place of one with the usual patience.
    #[must_use]
    pub fn statuses(self, statuses: GrpcStatusLayer) -> Self {
        Self { statuses, ..self }
    }
}

pub(super) fn call_options<B>(request: &Request<B>) -> CallOptions {
    let mut options = crate::mode::call_options(request);
    let timeout = grpc_timeout(request.headers());
    if let Some(deadline) = timeout.and_then(|timeout| Instant::now().checked_add(allowance(timeout))) {
        options.deadline = Some(options.deadline.map_or(deadline, |own| own.min(deadline)));
    }
    options
}

impl<A> Wrap for GrpcMode<A> {
    type Inner<S> = S;
    type With<A2> = GrpcMode<A2>;

    fn wrap<S>(&self, service: S) -> S {
        service
    }

    fn with<A2>(self, answer: A2) -> GrpcMode<A2> {
        GrpcMode::new(answer)
    }
}

impl<A> Wrap for GrpcClientMode<A> {
    type Inner<S> = WithGrpcStatus<S>;
    type With<A2> = GrpcClientMode<A2>;

    fn wrap<S>(&self, service: S) -> WithGrpcStatus<S> {
        self.statuses.wrap(service)
    }

    fn with<A2>(self, answer: A2) -> GrpcClientMode<A2> {
        GrpcClientMode { mode: self.mode.with(answer), statuses: self.statuses }
    }
}

impl<A: Answer<Res, E>, Res, E> Answer<Res, E> for GrpcMode<A> {
    type Response = A::Response;
    type Error = A::Error;
    type Kept = A::Kept;

    fn response(&self, response: Res) -> A::Response {
        self.answer.response(response)
    }

    fn error(&self, error: E) -> A::Error {
        self.answer.error(error)
    }

    fn keep(&self, error: E) -> A::Kept {
        self.answer.keep(error)
    }

    fn reject(&self, rejection: Rejection, last: Option<A::Kept>) -> Result<A::Response, A::Error> {
        self.answer.reject(rejection, last)
    }
}

impl<A: Answer<Res, E>, Res, E> Answer<Res, E> for GrpcClientMode<A> {
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

impl<B, Res, E, A: Answer<Res, E>> Mode<Request<B>, Res, E> for GrpcMode<A> {
    fn options(&self, request: &Request<B>) -> CallOptions {
        call_options(request)
    }
}

impl<B, Res, E, A: Answer<Res, E>> Mode<Request<B>, Res, E> for GrpcClientMode<A> {
    fn options(&self, request: &Request<B>) -> CallOptions {
        call_options(request)
    }
}
