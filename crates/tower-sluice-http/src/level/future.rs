use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use http::{HeaderName, HeaderValue, Response};
use pin_project_lite::pin_project;

pin_project! {
    /// The inner service's response, with the level's header where one was asked for.
    pub struct HttpLevelFuture<F> {
        #[pin]
        inner: F,
        header: Option<(HeaderName, HeaderValue)>,
    }
}

impl<F> HttpLevelFuture<F> {
    pub(super) fn new(inner: F, header: Option<(HeaderName, HeaderValue)>) -> Self {
        Self { inner, header }
    }
}

impl<F, B, E> Future for HttpLevelFuture<F>
where
    F: Future<Output = Result<Response<B>, E>>,
{
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let this = self.project();
        let mut result = ready!(this.inner.poll(cx));
        if let (Ok(response), Some((name, value))) = (&mut result, this.header.take()) {
            response.headers_mut().insert(name, value);
        }
        Poll::Ready(result)
    }
}

impl<F> fmt::Debug for HttpLevelFuture<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpLevelFuture").field("header", &self.header).finish_non_exhaustive()
    }
}
