use ::http::{Request, Response};
use bytes::Bytes;
use http_body_util::Full;

use super::runner::Probe;
use crate::script::{Failure, IntoReply, Script};

type Whole = Full<Bytes>;

impl Probe<Request<Whole>, u16, Failure, Response<Whole>> {
    /// A probe for HTTP layers: `GET /`, answered with 200; the error is [`Failure`].
    pub fn http() -> Self {
        Self::http_with(Request::default, || 200, || Failure::from("probe"))
    }
}

impl<B, A: IntoReply, E> Probe<Request<B>, A, E, Response<Whole>> {
    /// A probe for HTTP layers with requests, answers and errors of these makes.
    pub fn http_with(
        request: impl Fn() -> Request<B> + Send + Sync + 'static,
        answer: impl Fn() -> A + Send + Sync + 'static,
        failure: impl Fn() -> E + Send + Sync + 'static,
    ) -> Self {
        Self::over(request, answer, failure, Script::http)
    }
}
