//! How a queue answers HTTP, and what it reads from a request.

use http::Request;
use tower_sluice::queue::{CallOptions, Mode, Wrap};
use tower_sluice::reject::{Answer, Rejection};

use crate::answer::HttpAnswer;
use crate::deadline::Deadline;

/// An answer mode for HTTP: answers as `A` does, and takes a call's own [`CallOptions`] from the request's extensions,
/// and the [`Deadline`] of a call that it is made for.
///
/// The [clients' stacks](crate::http_client) have `HttpMode<Boxed>`, and `typed` and `respond_with` put another answer
/// into it. [`HttpAnswer`] is such a mode by itself.
///
/// ```
/// # use std::time::Duration;
/// use http::Request;
/// use tower_sluice_http::http_client;
/// use tower_sluice_http::queue::CallOptions;
///
/// let queue = http_client(16).call_timeout(Duration::from_secs(30));
/// let mut upload = Request::put("https://example.com/video").body("..").unwrap();
/// upload.extensions_mut().insert(CallOptions::timeout(Duration::from_secs(300)));
/// # let _ = queue;
/// ```
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
    type With<A2> = HttpMode<A2>;

    fn wrap<S>(&self, service: S) -> S {
        service
    }

    fn with<A2>(self, answer: A2) -> HttpMode<A2> {
        HttpMode::new(answer)
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
        call_options(request)
    }
}

/// reqwest keeps a request's extensions to itself: such a call has no options of its own. A timeout set on the request
/// is reqwest's, and bounds one attempt with its body.
#[cfg(feature = "reqwest")]
impl<Res, E, A: Answer<Res, E>> Mode<reqwest::Request, Res, E> for HttpMode<A> {}

impl Wrap for HttpAnswer {
    type Inner<S> = S;
    type With<A> = HttpMode<A>;

    fn wrap<S>(&self, service: S) -> S {
        service
    }

    fn with<A>(self, answer: A) -> HttpMode<A> {
        HttpMode::new(answer)
    }
}

impl<B, Res, E> Mode<Request<B>, Res, E> for HttpAnswer
where
    Self: Answer<Res, E>,
{
    fn options(&self, request: &Request<B>) -> CallOptions {
        call_options(request)
    }
}

/// What the request's extensions say: its [`CallOptions`], and the [`Deadline`] of a call that it is made for.
pub(crate) fn call_options<B>(request: &Request<B>) -> CallOptions {
    let mut options: CallOptions = request.extensions().get().cloned().unwrap_or_default();
    let deadline = request.extensions().get().copied().map(Deadline::instant);
    options.deadline = options.deadline.into_iter().chain(deadline).min();
    options
}
