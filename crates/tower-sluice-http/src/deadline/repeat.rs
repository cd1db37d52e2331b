//! Tells what is below the queue when the call has to be answered.

use http::Request;
use http::header::HeaderName;
use tower_sluice::verdict::{Attempt, Failure, Repeat};

use super::extension::Deadline;
use super::header;

/// Tells each attempt, in a header and in the request's extensions, what is left of the call's time; see
/// [`deadline_header`](super::DeadlineHeader::deadline_header). Repeats as `R` does.
#[derive(Clone, Debug)]
pub struct TellDeadline<R> {
    repeat: R,
    name: HeaderName,
}

impl<R> TellDeadline<R> {
    pub(super) const fn new(repeat: R, name: HeaderName) -> Self {
        Self { repeat, name }
    }
}

impl<B, R: Repeat<Request<B>>> Repeat<Request<B>> for TellDeadline<R> {
    fn copy(&self, request: &Request<B>) -> Option<Request<B>> {
        self.repeat.copy(request)
    }

    fn may_repeat(&self, request: &Request<B>, failure: &Failure) -> bool {
        self.repeat.may_repeat(request, failure)
    }

    fn prepare(&self, request: &mut Request<B>, attempt: &Attempt) {
        self.repeat.prepare(request, attempt);
        // Whatever the header said until now is part of the deadline, unless the call's own timeout replaces it.
        header::tell(request.headers_mut(), &self.name, attempt.left());
        match attempt.deadline() {
            Some(deadline) => request.extensions_mut().insert(Deadline::at(deadline)),
            None => request.extensions_mut().remove(),
        };
    }
}

#[cfg(feature = "reqwest")]
impl<R: Repeat<reqwest::Request>> Repeat<reqwest::Request> for TellDeadline<R> {
    fn copy(&self, request: &reqwest::Request) -> Option<reqwest::Request> {
        self.repeat.copy(request)
    }

    fn may_repeat(&self, request: &reqwest::Request, failure: &Failure) -> bool {
        self.repeat.may_repeat(request, failure)
    }

    fn prepare(&self, request: &mut reqwest::Request, attempt: &Attempt) {
        self.repeat.prepare(request, attempt);
        header::tell(request.headers_mut(), &self.name, attempt.left());
    }
}
