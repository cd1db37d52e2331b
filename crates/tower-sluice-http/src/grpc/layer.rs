use std::time::Duration;

use tower_layer::Layer;

use super::service::WithGrpcStatus;

/// Finds a call's status where it comes after the response's head, and puts it into the response's extensions as
/// [`GrpcStatus`](super::GrpcStatus), so that a layer above can judge the response.
///
/// A failed call's status comes in the head ("trailers-only"), or in trailers right behind it. So the first frame of the
/// body is waited for, but not for long: 10 ms unless set. Trailers in time are a status; a message is passed on, with
/// all that follows it; and where nothing has come in time, so is the body as it is. No frame is lost and none
/// is read that is not passed on.
///
/// The wait delays no message, but the head of a stream whose first message is late. With [`Duration::ZERO`] only
/// what is there already counts; [`Duration::MAX`] waits for as long as it takes, which is for unary calls alone: where
/// the server waits for more messages before it answers, both would wait for ever.
///
/// It lies below retrying layers. [`grpc_client`](super::grpc_client) has one. The error becomes
/// [`BoxError`](crate::BoxError), so that classifiers can look into it.
///
/// ```
/// # use std::time::Duration;
/// use tower::{Layer, ServiceExt, service_fn};
/// use http::{HeaderMap, HeaderValue, Request, Response};
/// use http_body_util::{BodyExt, Empty};
/// use tower_sluice_http::grpc::{GrpcStatus, GrpcStatusLayer};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let unavailable = || async {
///     let trailers = HeaderMap::from_iter([("grpc-status".parse().unwrap(), HeaderValue::from_static("14"))]);
///     Some(Ok::<_, std::io::Error>(trailers))
/// };
/// let server = service_fn(move |_: Request<()>| async move {
///     Ok::<_, std::io::Error>(Response::new(Box::pin(Empty::<bytes::Bytes>::new().map_err(|never| match never {}).with_trailers(unavailable()))))
/// });
/// let response = GrpcStatusLayer::new().layer(server).oneshot(Request::new(())).await.unwrap();
/// assert_eq!(GrpcStatus::of(&response).unwrap().code(), 14);
/// # }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct GrpcStatusLayer {
    patience: Duration,
}

impl GrpcStatusLayer {
    /// Waits for up to 10 ms.
    pub const fn new() -> Self {
        Self { patience: Duration::from_millis(10) }
    }

    /// How long the first frame is waited for.
    #[must_use]
    pub const fn patience(self, patience: Duration) -> Self {
        Self { patience }
    }

    pub(super) const fn wrap<S>(self, service: S) -> WithGrpcStatus<S> {
        WithGrpcStatus::new(service, self.patience)
    }
}

impl Default for GrpcStatusLayer {
    fn default() -> Self {
        Self::new()
    }
}

impl<S> Layer<S> for GrpcStatusLayer {
    type Service = WithGrpcStatus<S>;

    fn layer(&self, inner: S) -> WithGrpcStatus<S> {
        self.wrap(inner)
    }
}
