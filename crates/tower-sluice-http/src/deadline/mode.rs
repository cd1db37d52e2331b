//! Reads a call's deadline from its request.

use http::Request;
use http::header::{HeaderMap, HeaderName};
use tokio::time::Instant;
use tower_sluice::queue::{CallOptions, Mode, Slot, Wrap};
use tower_sluice::reject::{Answer, Rejection};

use super::header;

/// An answer mode that reads each call's deadline from a header; see
/// [`deadline_header`](super::DeadlineHeader::deadline_header). Answers as `A` does.
#[derive(Clone, Debug)]
pub struct DeadlineFromHeader<A> {
    mode: A,
    name: HeaderName,
}

impl<A> DeadlineFromHeader<A> {
    pub(super) const fn new(mode: A, name: HeaderName) -> Self {
        Self { mode, name }
    }

    fn shorten(&self, mut options: CallOptions, headers: &HeaderMap) -> CallOptions {
        let told = header::read(headers, &self.name).and_then(|timeout| Instant::now().checked_add(timeout));
        options.deadline = options.deadline.into_iter().chain(told).min();
        options
    }
}

impl<A: Wrap> Wrap for DeadlineFromHeader<A> {
    type Inner<S> = A::Inner<S>;
    type With<A2> = DeadlineFromHeader<A::With<A2>>;

    fn wrap<S>(&self, service: S) -> A::Inner<S> {
        self.mode.wrap(service)
    }

    fn with<A2>(self, answer: A2) -> Self::With<A2> {
        DeadlineFromHeader { mode: self.mode.with(answer), name: self.name }
    }
}

impl<A: Answer<Res, E>, Res, E> Answer<Res, E> for DeadlineFromHeader<A> {
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

impl<A, B, Res, E> Mode<Request<B>, Res, E> for DeadlineFromHeader<A>
where
    A: Mode<Request<B>, Res, E>,
{
    const HOLDS: bool = A::HOLDS;

    fn options(&self, request: &Request<B>) -> CallOptions {
        self.shorten(self.mode.options(request), request.headers())
    }

    fn hold(&self, response: Res, slot: Slot) -> A::Response {
        self.mode.hold(response, slot)
    }
}

#[cfg(feature = "reqwest")]
impl<A, Res, E> Mode<reqwest::Request, Res, E> for DeadlineFromHeader<A>
where
    A: Mode<reqwest::Request, Res, E>,
{
    const HOLDS: bool = A::HOLDS;

    fn options(&self, request: &reqwest::Request) -> CallOptions {
        self.shorten(self.mode.options(request), request.headers())
    }

    fn hold(&self, response: Res, slot: Slot) -> A::Response {
        self.mode.hold(response, slot)
    }
}
