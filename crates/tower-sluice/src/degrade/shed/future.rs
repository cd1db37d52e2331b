use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use pin_project_lite::pin_project;

use crate::reject::{Answer, Rejection};

pin_project! {
    /// The inner service's answer, or that of the layer.
    pub struct ResponseFuture<F, A> {
        #[pin]
        inner: Option<F>,
        rejection: Option<Rejection>,
        answer: A,
    }
}

impl<F, A> ResponseFuture<F, A> {
    pub(super) fn admitted(inner: F, answer: A) -> Self {
        Self { inner: Some(inner), rejection: None, answer }
    }

    pub(super) fn shed(rejection: Rejection, answer: A) -> Self {
        Self { inner: None, rejection: Some(rejection), answer }
    }
}

impl<F, A, Res, E> Future for ResponseFuture<F, A>
where
    F: Future<Output = Result<Res, E>>,
    A: Answer<Res, E>,
{
    type Output = Result<A::Response, A::Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        if let Some(inner) = this.inner.as_pin_mut() {
            return Poll::Ready(match ready!(inner.poll(cx)) {
                Ok(response) => Ok(this.answer.response(response)),
                Err(error) => Err(this.answer.error(error)),
            });
        }
        let rejection = this.rejection.take().expect("polled after it was ready");
        Poll::Ready(this.answer.reject(rejection, None))
    }
}

impl<F, A> fmt::Debug for ResponseFuture<F, A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseFuture").field("rejection", &self.rejection).finish_non_exhaustive()
    }
}
