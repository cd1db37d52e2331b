use std::task::{Context, Poll};

use http::Request;
use http_body::Body;
use tower_service::Service;

use super::body::ReplayBody;
use super::tape::Intact;

/// A service whose requests' bodies are [`ReplayBody`]s; see [`ReplayLayer`](super::ReplayLayer).
#[derive(Clone, Copy, Debug)]
pub struct Replay<S> {
    inner: S,
    cap: usize,
}

impl<S> Replay<S> {
    pub(super) const fn new(inner: S, cap: usize) -> Self {
        Self { inner, cap }
    }
}

impl<S, B> Service<Request<B>> for Replay<S>
where
    S: Service<Request<ReplayBody<B>>>,
    B: Body + Send + 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> S::Future {
        let mut request = request.map(|body| ReplayBody::with_cap(body, self.cap));
        match request.body().tape().map(Intact::new) {
            Some(intact) => {
                request.extensions_mut().insert(intact);
            }
            // What the request brings along is of some other body.
            None => {
                request.extensions_mut().remove::<Intact>();
            }
        }
        self.inner.call(request)
    }
}
