use std::fmt;

use tower_layer::Layer;

use super::gate::{ByClass, Class, ClassStats};
use super::service::Shed;
use crate::error::ConfigError;
use crate::reject::{Admit, Boxed, RespondWith, Typed};

/// Turns requests away while their gate is shut, with [`Rejection::Shed`](crate::reject::Rejection::Shed).
///
/// A gate is a level that has to hold ([`Signal::at_least`](crate::degrade::Signal::at_least)) or any
/// `Fn() -> bool`. It is asked once, when a request arrives. Counters belong to the layer value.
///
/// How a rejection reaches the caller is chosen as on every layer of this workspace: as a boxed error (the default),
/// [`typed`](Self::typed), or [answered](Self::respond_with).
///
/// ```
/// use std::convert::Infallible;
/// use tower::{Layer, ServiceExt, service_fn};
/// use tower_sluice::degrade::{Ladder, ShedLayer};
/// use tower_sluice::reject::Rejection;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Infallible> {
/// let signal = Ladder::new(["all", "most", "vital"]).spawn();
/// let shed = ShedLayer::by_class(|path: &&str| path.split('/').nth(1).unwrap_or("").to_owned())
///     .class("feed".to_owned(), signal.at_least("all"))
///     .class("search".to_owned(), signal.at_least("most"))
///     .respond_with(|rejection: &Rejection| rejection.to_string());
/// let service = shed.layer(service_fn(|path: &'static str| async move {
///     Ok::<_, Infallible>(path.to_owned())
/// }));
///
/// signal.force(&"most");
/// assert_eq!(service.clone().oneshot("/feed/1").await?, "not served at level most");
/// assert_eq!(service.clone().oneshot("/search").await?, "/search");
/// assert_eq!(service.clone().oneshot("/pay").await?, "/pay");
/// assert_eq!(shed.stats()[0].shed, 1);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct ShedLayer<G, A = Boxed> {
    gate: G,
    answer: A,
}

impl ShedLayer<Class> {
    /// All requests have the same gate.
    pub fn new(gate: impl Admit + Send + Sync + 'static) -> Self {
        Self { gate: Class::new("all", gate), answer: Boxed }
    }
}

impl<F, K: PartialEq + fmt::Debug> ShedLayer<ByClass<F, K>> {
    /// Requests are told apart by `class_of`. Classes get their gate by [`class`](Self::class); those without one are
    /// always taken on.
    pub fn by_class<Req>(class_of: F) -> Self
    where
        F: Fn(&Req) -> K,
    {
        Self { gate: ByClass::new(class_of), answer: Boxed }
    }
}

impl<F, K: PartialEq + fmt::Debug, A> ShedLayer<ByClass<F, K>, A> {
    /// The gate of one class.
    ///
    /// # Panics
    ///
    /// If the class has one already; [`try_class`](Self::try_class) returns that as an error.
    #[must_use]
    pub fn class(self, class: K, gate: impl Admit + Send + Sync + 'static) -> Self {
        self.try_class(class, gate).unwrap_or_else(|error| panic!("{error}"))
    }

    /// [`class`](Self::class), for classes that come from configuration.
    pub fn try_class(
        mut self,
        class: K,
        gate: impl Admit + Send + Sync + 'static,
    ) -> Result<Self, ConfigError> {
        self.gate.add(class, gate)?;
        Ok(self)
    }

    /// What became of the requests of each class that has a gate, in the order in which they were given.
    pub fn stats(&self) -> Vec<ClassStats> {
        self.gate.stats()
    }
}

impl<A> ShedLayer<Class, A> {
    /// What became of the requests.
    pub fn stats(&self) -> ClassStats {
        self.gate.stats()
    }
}

impl<G, A> ShedLayer<G, A> {
    /// Rejections become the service's own error, which is `From<Rejection>`.
    pub fn typed(self) -> ShedLayer<G, Typed> {
        ShedLayer { gate: self.gate, answer: Typed }
    }

    /// Rejections become responses, made by `respond`, a `Fn(&Rejection) -> Response`.
    pub fn respond_with<R>(self, respond: R) -> ShedLayer<G, RespondWith<R>> {
        self.answer(RespondWith::new(respond))
    }

    /// Rejections reach the caller by any [`Answer`](crate::reject::Answer).
    pub fn answer<B>(self, answer: B) -> ShedLayer<G, B> {
        ShedLayer { gate: self.gate, answer }
    }
}

impl<G: Clone, A: Clone, S> Layer<S> for ShedLayer<G, A> {
    type Service = Shed<S, G, A>;

    fn layer(&self, inner: S) -> Self::Service {
        Shed::new(inner, self.gate.clone(), self.answer.clone())
    }
}

impl<G: fmt::Debug, A> fmt::Debug for ShedLayer<G, A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ShedLayer").field("gate", &self.gate).finish_non_exhaustive()
    }
}
