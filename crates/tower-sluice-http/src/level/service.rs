use std::fmt;
use std::task::{Context, Poll};

use http::{HeaderName, HeaderValue, Request, Response};
use tower_service::Service;
use tower_sluice::degrade::Signal;

use super::Level;
use super::future::HttpLevelFuture;

/// Shows the level to requests, and to clients where asked. Made by [`level_layer`](super::level_layer).
#[derive(Clone)]
pub struct HttpTellLevel<S, L> {
    inner: S,
    signal: Signal<L>,
    header: Option<HeaderName>,
}

impl<S, L> HttpTellLevel<S, L> {
    pub(super) fn new(inner: S, signal: Signal<L>, header: Option<HeaderName>) -> Self {
        Self { inner, signal, header }
    }
}

impl<S, L, B, ResB> Service<Request<B>> for HttpTellLevel<S, L>
where
    S: Service<Request<B>, Response = Response<ResB>>,
    L: Clone + PartialEq + fmt::Debug + Send + Sync + 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = HttpLevelFuture<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request<B>) -> Self::Future {
        let rung = self.signal.rung();
        request.extensions_mut().insert(Level(rung.level().clone()));
        let header = self.header.clone().map(|name| (name, header_value(rung.name())));
        HttpLevelFuture::new(self.inner.call(request), header)
    }
}

/// What a header may hold of a rung's name: visible ASCII and spaces.
fn header_value(name: &str) -> HeaderValue {
    let told: String = name.chars().map(|c| if matches!(c, ' '..='~') { c } else { '?' }).collect();
    HeaderValue::try_from(told).unwrap_or_else(|_| HeaderValue::from_static("?"))
}

impl<S: fmt::Debug, L: Clone + PartialEq + fmt::Debug> fmt::Debug for HttpTellLevel<S, L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpTellLevel")
            .field("inner", &self.inner)
            .field("signal", &self.signal)
            .field("header", &self.header)
            .finish()
    }
}
