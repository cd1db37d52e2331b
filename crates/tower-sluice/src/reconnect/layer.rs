use std::fmt;

use tower_layer::Layer;
use tower_service::Service;

use super::broken::{BrokenIf, NeverBroken};
use super::builder::LinkBuilder;
use super::connect::MakeConnection;
use super::service::Reconnect;
use super::settings::{Settings, setters};
use crate::BoxError;
use crate::reject::{Boxed, RespondWith, Typed};

/// Makes a [`Reconnect`] of a service that makes services, tower's `MakeService`: a connector.
///
/// The link starts with its first caller, and its driver is spawned then, on the runtime of that caller, so that a
/// stack can be built outside one. Each service made by `layer` is a link of its own; clones of the service share it.
///
/// A link whose connections need restoring, a heartbeat or a closed-future is described with
/// [`Link::connect`](super::Link::connect), and [`Reconnect::new`] is put over it.
///
/// ```
/// use std::convert::Infallible;
/// use tower::{Layer, ServiceExt, service_fn};
/// use tower_sluice::reconnect::ReconnectLayer;
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower_sluice::BoxError> {
/// // A connector: an address in, a service out.
/// let connector = service_fn(|address: &'static str| async move {
///     let connection = service_fn(move |request: &'static str| async move {
///         Ok::<_, Infallible>(format!("{request} from {address}"))
///     });
///     Ok::<_, std::io::Error>(connection)
/// });
/// let service = ReconnectLayer::new("db:5432").layer(connector);
/// assert_eq!(service.oneshot("hello").await?, "hello from db:5432");
/// # Ok(()) }
/// ```
#[derive(Clone)]
#[must_use = "a layer does nothing until it is put over a connector"]
pub struct ReconnectLayer<T, A = Boxed, B = NeverBroken> {
    target: T,
    settings: Settings,
    answer: A,
    broken: B,
}

impl<T> ReconnectLayer<T> {
    /// Connects to `target`, which is cloned for every try.
    pub fn new(target: T) -> Self {
        Self { target, settings: Settings::default(), answer: Boxed, broken: NeverBroken }
    }
}

impl<T, A, B> ReconnectLayer<T, A, B> {
    setters!();

    /// Rejections reach the caller as the service's own error type, which is `From<Rejection>`.
    pub fn typed(self) -> ReconnectLayer<T, Typed, B> {
        self.answer(Typed)
    }

    /// Rejections reach the caller as responses, made by `respond`.
    pub fn respond_with<F>(self, respond: F) -> ReconnectLayer<T, RespondWith<F>, B> {
        self.answer(RespondWith::new(respond))
    }

    /// How rejections reach the caller. Default: [`Boxed`].
    pub fn answer<A2>(self, answer: A2) -> ReconnectLayer<T, A2, B> {
        ReconnectLayer { target: self.target, settings: self.settings, answer, broken: self.broken }
    }

    /// A sign of loss: an error of a call that `is_broken` recognises. Default: none is.
    pub fn broken_if<F>(self, is_broken: F) -> ReconnectLayer<T, A, BrokenIf<F>> {
        ReconnectLayer {
            target: self.target,
            settings: self.settings,
            answer: self.answer,
            broken: BrokenIf::new(is_broken),
        }
    }
}

impl<M, T, A, B> Layer<M> for ReconnectLayer<T, A, B>
where
    M: Service<T> + Clone + Send + 'static,
    M::Response: Send + Sync + 'static,
    M::Error: Into<BoxError>,
    M::Future: Send + 'static,
    T: Clone + Send + 'static,
    A: Clone,
    B: Clone,
{
    type Service = Reconnect<M::Response, A, B>;

    fn layer(&self, make: M) -> Self::Service {
        let link = LinkBuilder::new(MakeConnection::new(make, self.target.clone()))
            .with_settings(self.settings.clone())
            .spawn_with_first_caller();
        Reconnect::with(link, self.answer.clone(), self.broken.clone())
    }
}

impl<T, A, B> fmt::Debug for ReconnectLayer<T, A, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReconnectLayer").field("settings", &self.settings).finish_non_exhaustive()
    }
}
