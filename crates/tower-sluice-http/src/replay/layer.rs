use tower_layer::Layer;

use super::body::ReplayBody;
use super::service::Replay;

/// Makes the bodies of requests repeatable for tower's `RetryLayer`, around which it lies.
///
/// Below it a request's body is a [`ReplayBody`], which is `Clone`, so that a policy of tower's can copy the request
/// whole. A policy with [`HttpRepeat`](crate::HttpRepeat) also sees when a body has become too long to replay, and lets
/// the first attempt be the last; one of your own asks [`ReplayBody::is_intact`] before it decides on a retry.
///
/// In our queue there is no need for it: see [`replay_bodies`](crate::HttpRetry::replay_bodies).
///
/// ```
/// use http::Request;
/// use http_body_util::combinators::BoxBody;
/// use bytes::Bytes;
/// use tower::retry::RetryLayer;
/// use tower::{ServiceBuilder, service_fn};
/// use tower_sluice_http::http_retry;
/// use tower_sluice_http::replay::{ReplayBody, ReplayLayer};
///
/// # async fn send(_: Request<ReplayBody<BoxBody<Bytes, std::io::Error>>>) -> Result<http::Response<String>, std::io::Error> {
/// #     Ok(Default::default())
/// # }
/// let service = ServiceBuilder::new()
///     .layer(ReplayLayer::new())
///     .layer(RetryLayer::new(http_retry()))
///     .service(service_fn(send));
/// # fn is_service<S: tower::Service<Request<BoxBody<Bytes, std::io::Error>>>>(_: S) {}
/// # is_service(service);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct ReplayLayer {
    cap: usize,
}

impl ReplayLayer {
    /// Keeps up to 64 KiB of a body.
    pub const fn new() -> Self {
        Self { cap: ReplayBody::<()>::DEFAULT_CAP }
    }

    /// Keeps up to so many bytes of a body; a frame counts for at least 64.
    #[must_use]
    pub const fn cap(self, cap: usize) -> Self {
        Self { cap }
    }
}

impl Default for ReplayLayer {
    fn default() -> Self {
        Self::new()
    }
}

impl<S> Layer<S> for ReplayLayer {
    type Service = Replay<S>;

    fn layer(&self, inner: S) -> Replay<S> {
        Replay::new(inner, self.cap)
    }
}
