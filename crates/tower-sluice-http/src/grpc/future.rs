use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use http::{HeaderMap, Response, StatusCode};
use http_body::Body;
use pin_project_lite::pin_project;
use tokio::time::{Sleep, sleep};
use tower_sluice::BoxError;

use super::body::PeekedBody;
use super::status::GrpcStatus;

pin_project! {
    /// The future of a response that tells its gRPC status.
    #[must_use = "futures do nothing unless polled"]
    pub struct ResponseFuture<F, B> {
        #[pin]
        head: F,
        // Its first frame is awaited.
        response: Option<Response<B>>,
        patience: Duration,
        #[pin]
        timer: Option<Sleep>,
    }
}

impl<F, B> ResponseFuture<F, B> {
    pub(super) const fn new(head: F, patience: Duration) -> Self {
        Self { head, response: None, patience, timer: None }
    }
}

impl<F, B, E> Future for ResponseFuture<F, B>
where
    F: Future<Output = Result<Response<B>, E>>,
    E: Into<BoxError>,
    B: Body + Unpin,
    B::Error: Into<BoxError>,
{
    type Output = Result<Response<PeekedBody<B>>, BoxError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        if this.response.is_none() {
            let response = ready!(this.head.poll(cx)).map_err(Into::into)?;
            if let Some(status) = GrpcStatus::from_headers(response.headers()) {
                return Poll::Ready(Ok(told(response, Some(status), |body| {
                    PeekedBody::new(None, false, body)
                })));
            }
            if response.status() != StatusCode::OK || response.body().is_end_stream() {
                return Poll::Ready(Ok(told(response, None, |body| PeekedBody::new(None, false, body))));
            }
            *this.response = Some(response);
        }
        let Some(response) = this.response.as_mut() else { return Poll::Pending };
        let first = match Pin::new(response.body_mut()).poll_frame(cx) {
            Poll::Ready(Some(Ok(frame))) => Some(frame),
            // Nothing was answered: the attempt has failed.
            Poll::Ready(Some(Err(error))) => return Poll::Ready(Err(error.into())),
            Poll::Ready(None) => {
                return this.response.take().map_or(Poll::Pending, |response| {
                    Poll::Ready(Ok(told(response, None, |body| PeekedBody::new(None, true, body))))
                });
            }
            Poll::Pending => {
                if *this.patience == Duration::MAX {
                    return Poll::Pending;
                }
                if !this.patience.is_zero() {
                    if this.timer.is_none() {
                        this.timer.set(Some(sleep(*this.patience)));
                    }
                    if let Some(timer) = this.timer.as_mut().as_pin_mut() {
                        ready!(timer.poll(cx));
                    }
                }
                None
            }
        };
        let status = first.as_ref().and_then(|frame| frame.trailers_ref()).and_then(GrpcStatus::from_headers);
        // After trailers nothing comes.
        let ended = first.as_ref().is_some_and(|frame| frame.is_trailers());
        this.response.take().map_or(Poll::Pending, |response| {
            Poll::Ready(Ok(told(response, status, |body| PeekedBody::new(first, ended, body))))
        })
    }
}

fn told<B: Body>(
    response: Response<B>,
    status: Option<GrpcStatus>,
    peeked: impl FnOnce(B) -> PeekedBody<B>,
) -> Response<PeekedBody<B>> {
    let mut response = response.map(peeked);
    if let Some(status) = status {
        response.extensions_mut().insert(status);
    }
    response
}

impl<F, B> fmt::Debug for ResponseFuture<F, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let headers: Option<&HeaderMap> = self.response.as_ref().map(Response::headers);
        f.debug_struct("ResponseFuture").field("head", &headers).finish_non_exhaustive()
    }
}
