//! How a queue answers HTTP, and what it reads from a request.

use http::Request;
use tower_sluice::queue::{CallOptions, Mode, Wrap};
use tower_sluice::reject::{Answer, Rejection};

/// An answer mode for HTTP: answers as `A` does, and takes a call's own [`CallOptions`] from the request's extensions.
///
/// What the ready-made stacks have; by hand it is
/// `QueueLayer::new(16).answer(HttpMode::new(HttpAnswer::new()))`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HttpMode<A> {
    answer: A,
}

impl<A> HttpMode<A> {
    /// Answers as `answer` does.
    pub const fn new(answer: A) -> Self {
        Self { answer }
    }
}

impl<A> Wrap for HttpMode<A> {
    type Inner<S> = S;

    fn wrap<S>(&self, service: S) -> S {
        service
    }
}

impl<A: Answer<Res, E>, Res, E> Answer<Res, E> for HttpMode<A> {
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

impl<B, Res, E, A: Answer<Res, E>> Mode<Request<B>, Res, E> for HttpMode<A> {
    fn options(&self, request: &Request<B>) -> CallOptions {
        request.extensions().get().cloned().unwrap_or_default()
    }
}
