use std::task::{Context, Poll};
use std::time::Duration;

use http::{Request, Response};
use http_body::Body;
use tower_service::Service;
use tower_sluice::BoxError;

use super::body::PeekedBody;
use super::future::ResponseFuture;

/// A service whose responses tell their gRPC status; see [`GrpcStatusLayer`](super::GrpcStatusLayer).
#[derive(Clone, Copy, Debug)]
pub struct WithGrpcStatus<S> {
    inner: S,
    patience: Duration,
}

impl<S> WithGrpcStatus<S> {
    pub(super) const fn new(inner: S, patience: Duration) -> Self {
        Self { inner, patience }
    }

    /// The service below.
    pub const fn get_ref(&self) -> &S {
        &self.inner
    }
}

impl<S, ReqB, B> Service<Request<ReqB>> for WithGrpcStatus<S>
where
    S: Service<Request<ReqB>, Response = Response<B>>,
    S::Error: Into<BoxError>,
    B: Body + Unpin,
    B::Error: Into<BoxError>,
{
    type Response = Response<PeekedBody<B>>;
    type Error = BoxError;
    type Future = ResponseFuture<S::Future, B>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, request: Request<ReqB>) -> Self::Future {
        ResponseFuture::new(self.inner.call(request), self.patience)
    }
}
