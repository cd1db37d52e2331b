use std::fmt;

use http::HeaderName;
use tower_layer::Layer;
use tower_sluice::degrade::Signal;

use super::service::HttpTellLevel;

/// Puts [`Level`](super::Level), as it holds when a request arrives, into the request's extensions.
///
/// ```
/// use http::{Request, Response};
/// use tower::{Layer, ServiceExt, service_fn};
/// use tower_sluice_http::degrade::Ladder;
/// use tower_sluice_http::{Level, level_layer};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), std::convert::Infallible> {
/// let signal = Ladder::new(["full", "text"]).spawn();
/// let service = level_layer(&signal).header(http::HeaderName::from_static("x-level")).layer(service_fn(
///     async |request: Request<()>| {
///         let Level(level) = *request.extensions().get::<Level<&str>>().unwrap();
///         Ok::<_, std::convert::Infallible>(Response::new(level))
///     },
/// ));
/// signal.force(&"text");
/// let response = service.oneshot(Request::new(())).await?;
/// assert_eq!(*response.body(), "text");
/// assert_eq!(response.headers()["x-level"], "text");
/// # Ok(())
/// # }
/// ```
pub fn level_layer<L>(signal: &Signal<L>) -> HttpLevelLayer<L> {
    HttpLevelLayer { signal: signal.clone(), header: None }
}

/// See [`level_layer`].
#[derive(Clone)]
pub struct HttpLevelLayer<L> {
    signal: Signal<L>,
    header: Option<HeaderName>,
}

impl<L> HttpLevelLayer<L> {
    /// Tells clients too: the name of the rung in a header of each response. None where not set.
    ///
    /// Characters of the name that no header may hold are told as `?`. A header of that name which the response
    /// already has is replaced.
    #[must_use]
    pub fn header(self, name: HeaderName) -> Self {
        Self { header: Some(name), ..self }
    }
}

impl<L, S> Layer<S> for HttpLevelLayer<L> {
    type Service = HttpTellLevel<S, L>;

    fn layer(&self, inner: S) -> Self::Service {
        HttpTellLevel::new(inner, self.signal.clone(), self.header.clone())
    }
}

impl<L: Clone + PartialEq + fmt::Debug> fmt::Debug for HttpLevelLayer<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpLevelLayer").field("signal", &self.signal).field("header", &self.header).finish()
    }
}
