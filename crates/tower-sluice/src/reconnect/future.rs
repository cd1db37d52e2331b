use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use pin_project_lite::pin_project;
use tower_service::Service;

use super::broken::Broken;
use super::lease::Lease;
use super::link::Link;
use super::readiness::{Readied, Readiness};
use super::state::{Cause, CauseKind};
use crate::BoxError;
use crate::reject::{Answer, Rejection};

pin_project! {
    /// A call through a [`Reconnect`](super::Reconnect).
    pub struct ResponseFuture<S, Req, A, B>
    where
        S: Service<Req>,
    {
        #[pin]
        state: State<S, Req, S::Future>,
        answer: A,
        broken: B,
    }
}

pin_project! {
    #[project = StateProj]
    enum State<S, Req, F> {
        Acquiring { link: Link<S>, readiness: Readiness<S>, request: Option<Req> },
        Running { lease: Lease<S>, #[pin] future: F },
        Rejected { rejection: Option<Rejection> },
    }
}

impl<S, Req, A, B> ResponseFuture<S, Req, A, B>
where
    S: Service<Req>,
{
    pub(super) fn new(
        readied: Option<Readied<S>>,
        link: &Link<S>,
        request: Req,
        answer: A,
        broken: B,
    ) -> Self {
        let state = match readied {
            Some(Readied::Ready(lease, mut service)) if lease.is_current() => {
                State::Running { future: service.call(request), lease }
            }
            Some(Readied::Rejected(_)) if link.connected().is_none() => {
                State::Rejected { rejection: Some(link.rejection()) }
            }
            // Lost since it was made ready, or come back since it was to be turned away; or called without having been
            // made ready, which costs nothing to serve.
            Some(Readied::Ready(..) | Readied::Rejected(_)) | None => {
                State::Acquiring { link: link.clone(), readiness: Readiness::new(), request: Some(request) }
            }
        };
        Self { state, answer, broken }
    }
}

impl<S, Req, A, B> Future for ResponseFuture<S, Req, A, B>
where
    S: Service<Req> + Clone,
    S::Error: Into<BoxError>,
    A: Answer<S::Response, S::Error>,
    B: Broken<S::Error>,
{
    type Output = Result<A::Response, A::Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        loop {
            match this.state.as_mut().project() {
                StateProj::Acquiring { link, readiness, request } => {
                    ready!(readiness.poll(link, cx));
                    let next = match (readiness.take(), request.take()) {
                        (Some(Readied::Ready(lease, mut service)), Some(request)) => {
                            State::Running { future: service.call(request), lease }
                        }
                        (Some(Readied::Rejected(rejection)), _) => {
                            State::Rejected { rejection: Some(rejection) }
                        }
                        // Polled after its end.
                        (_, _) => return Poll::Pending,
                    };
                    this.state.set(next);
                }
                StateProj::Running { lease, future } => {
                    return Poll::Ready(match ready!(future.poll(cx)) {
                        Ok(response) => Ok(this.answer.response(response)),
                        Err(error) => {
                            if let Some(why) = this.broken.broken(&error) {
                                lease.end(Cause::new(CauseKind::Broken, why));
                            }
                            Err(this.answer.error(error))
                        }
                    });
                }
                StateProj::Rejected { rejection } => {
                    let Some(rejection) = rejection.take() else { return Poll::Pending };
                    return Poll::Ready(this.answer.reject(rejection, None));
                }
            }
        }
    }
}

impl<S, Req, A, B> fmt::Debug for ResponseFuture<S, Req, A, B>
where
    S: Service<Req>,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseFuture").finish_non_exhaustive()
    }
}
