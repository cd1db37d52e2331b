use std::sync::Arc;
use std::time::Duration;

use tower_layer::Layer;

use super::counters::{Counters, Meter};
use super::service::{Measure, Shared};
use crate::verdict::AnyError;

/// Measures each attempt that passes: how it ended, as a [`Classify`](crate::verdict::Classify) sees it, and how
/// long it took.
///
/// [`facts`](Self::facts) is the source that a [`Ladder`](crate::degrade::Ladder) or a
/// [`Window`](crate::degrade::Window) reads. While nobody does, nothing is measured.
///
/// Latency runs from the inner service's `call` to its answer; bodies are not waited for. An attempt that was
/// dropped before its answer counts as cancelled, which is no outcome, unless
/// [`dropped_is_timeout`](Self::dropped_is_timeout) says otherwise. A panic counts as cancelled too.
///
/// ```
/// use tower::{Layer, Service, ServiceExt, service_fn};
/// use tower_sluice::degrade::MeasureLayer;
/// use tower_sluice::facts::Source;
/// use tower_sluice::verdict::Verdict;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let measure = MeasureLayer::new().classify(|result: &Result<u16, std::io::Error>| match result {
///     Ok(503) => Verdict::unavailable(),
///     Ok(_) => Verdict::Success,
///     Err(_) => Verdict::transient(),
/// });
/// let meter = measure.facts();
/// let mut service = measure.layer(service_fn(|status: u16| async move { Ok(status) }));
/// for status in [200, 503, 200] {
///     service.ready().await.unwrap().call(status).await.unwrap();
/// }
/// let attempts = meter.sample().attempts.unwrap();
/// assert_eq!((attempts.succeeded, attempts.unavailable), (2, 1));
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct MeasureLayer<C = AnyError> {
    counters: Arc<Counters>,
    classifier: C,
    timeout: Duration,
}

impl MeasureLayer {
    /// Measures; `Ok` is a success and `Err` a failure, as [`AnyError`] has it.
    pub fn new() -> Self {
        Self { counters: Arc::new(Counters::new()), classifier: AnyError, timeout: Duration::MAX }
    }
}

impl Default for MeasureLayer {
    fn default() -> Self {
        Self::new()
    }
}

impl<C> MeasureLayer<C> {
    /// What results mean: the same classifier as that of the retry policy.
    pub fn classify<C2>(self, classifier: C2) -> MeasureLayer<C2> {
        MeasureLayer { counters: self.counters, classifier, timeout: self.timeout }
    }

    /// Counts an attempt that is dropped at this age or above as failed with a timeout, and not as cancelled. Never
    /// where not set.
    ///
    /// What limits attempts from above, such as a queue's attempt timeout or tower's `Timeout`, ends them by
    /// dropping. Set this to the same time, else an upstream that hangs looks like one that nobody asks.
    #[must_use]
    pub fn dropped_is_timeout(self, timeout: Duration) -> Self {
        Self { timeout, ..self }
    }

    /// What was counted, for a ladder or a window.
    pub fn facts(&self) -> Meter {
        Meter::new(&self.counters)
    }
}

impl<C: Clone, S> Layer<S> for MeasureLayer<C> {
    type Service = Measure<S, C>;

    fn layer(&self, inner: S) -> Self::Service {
        let (counters, classifier) = (Arc::clone(&self.counters), self.classifier.clone());
        Measure::new(inner, Shared { counters, classifier, timeout: self.timeout })
    }
}
