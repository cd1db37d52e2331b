//! Handing the level to requests.

use std::fmt;
use std::task::{Context, Poll};

use tower_layer::Layer;
use tower_service::Service;

use super::signal::Signal;

/// Shows each request the level that holds when it arrives, by a closure that puts it where the request's type has
/// room for it.
///
/// `tower-sluice-http` has one ready-made for HTTP.
///
/// ```
/// use std::convert::Infallible;
/// use tower::{Layer, ServiceExt, service_fn};
/// use tower_sluice::degrade::{Ladder, LevelLayer};
///
/// struct Render { page: &'static str, images: bool }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Infallible> {
/// let signal = Ladder::new(["full", "text"]).spawn();
/// let tell = LevelLayer::new(&signal, |render: &mut Render, level| render.images = level == "full");
/// let service = tell.layer(service_fn(|render: Render| async move {
///     Ok::<_, Infallible>((render.page, render.images))
/// }));
///
/// signal.force(&"text");
/// assert_eq!(service.oneshot(Render { page: "home", images: true }).await?, ("home", false));
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct LevelLayer<L, F> {
    signal: Signal<L>,
    tell: F,
}

impl<L, F> LevelLayer<L, F> {
    /// Calls `tell` with each request and the level of `signal`.
    pub fn new<Req>(signal: &Signal<L>, tell: F) -> Self
    where
        F: Fn(&mut Req, L),
    {
        Self { signal: signal.clone(), tell }
    }
}

impl<L, F: Clone, S> Layer<S> for LevelLayer<L, F> {
    type Service = TellLevel<S, L, F>;

    fn layer(&self, inner: S) -> Self::Service {
        TellLevel { inner, signal: self.signal.clone(), tell: self.tell.clone() }
    }
}

impl<L: Clone + PartialEq + fmt::Debug, F> fmt::Debug for LevelLayer<L, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LevelLayer").field("signal", &self.signal).finish_non_exhaustive()
    }
}

/// Shows each request the level. Made by [`LevelLayer`].
#[derive(Clone)]
pub struct TellLevel<S, L, F> {
    inner: S,
    signal: Signal<L>,
    tell: F,
}

impl<S, L, F, Req> Service<Req> for TellLevel<S, L, F>
where
    S: Service<Req>,
    L: Clone + PartialEq + fmt::Debug,
    F: Fn(&mut Req, L),
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut request: Req) -> S::Future {
        (self.tell)(&mut request, self.signal.level());
        self.inner.call(request)
    }
}

impl<S: fmt::Debug, L: Clone + PartialEq + fmt::Debug, F> fmt::Debug for TellLevel<S, L, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TellLevel")
            .field("inner", &self.inner)
            .field("signal", &self.signal)
            .finish_non_exhaustive()
    }
}
