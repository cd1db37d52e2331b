use std::fmt;
use std::sync::Arc;

use tokio::time::Instant;
use tower_service::Service;

use super::checks;
use super::report::{Check, Report};
use crate::script::{Failure, Script, Scripted};

/// Checks a layer against the contract of tower's services: see the [module](super).
pub struct Probe<Req, A, E = Failure, Res = A> {
    pub(super) request: Box<dyn Fn() -> Req + Send + Sync>,
    pub(super) answer: Arc<dyn Fn() -> A + Send + Sync>,
    pub(super) failure: Arc<dyn Fn() -> E + Send + Sync>,
    pub(super) service: Follow<Req, A, E, Res>,
    checks: Vec<Check>,
    pub(super) rounds: usize,
}

/// `Script::service` or `Script::http`.
pub(super) type Follow<Req, A, E, Res> = fn(&Script<A, E>) -> Scripted<Req, A, E, Res>;

impl Probe<(), ()> {
    /// A probe for layers over any request and response: both are `()`, and the error is [`Failure`].
    pub fn new() -> Self {
        Self::with(|| (), || (), || Failure::from("probe"))
    }
}

impl Default for Probe<(), ()> {
    fn default() -> Self {
        Self::new()
    }
}

impl<Req, A, E> Probe<Req, A, E> {
    /// A probe with requests, answers and errors of these makes, for layers that need types of their own.
    pub fn with(
        request: impl Fn() -> Req + Send + Sync + 'static,
        answer: impl Fn() -> A + Send + Sync + 'static,
        failure: impl Fn() -> E + Send + Sync + 'static,
    ) -> Self {
        Self::over(request, answer, failure, Script::service)
    }
}

impl<Req, A, E, Res> Probe<Req, A, E, Res> {
    pub(super) fn over(
        request: impl Fn() -> Req + Send + Sync + 'static,
        answer: impl Fn() -> A + Send + Sync + 'static,
        failure: impl Fn() -> E + Send + Sync + 'static,
        service: Follow<Req, A, E, Res>,
    ) -> Self {
        let checks = Check::ALL.into_iter().filter(|check| *check != Check::IdleReadiness).collect();
        Self {
            request: Box::new(request),
            answer: Arc::new(answer),
            failure: Arc::new(failure),
            service,
            checks,
            rounds: 100,
        }
    }

    /// Checks this too: [`Check::IdleReadiness`] is off by default.
    #[must_use]
    pub fn also(mut self, check: Check) -> Self {
        if !self.checks.contains(&check) {
            self.checks.push(check);
        }
        self
    }

    /// Does not check this, for a layer that is meant to be otherwise: one that lets calls go on which nobody awaits
    /// does not pass [`Check::Cancel`].
    #[must_use]
    pub fn except(mut self, check: Check) -> Self {
        self.checks.retain(|on| *on != check);
        self
    }

    /// How often each drop is repeated, and how many clones are left idle. Default: 100; it has to be above the
    /// layer's limit, so that what leaks runs out.
    ///
    /// # Panics
    /// If `rounds` is below 2.
    #[must_use]
    pub fn rounds(mut self, rounds: usize) -> Self {
        assert!(rounds >= 2, "rounds is {rounds}, but must be 2 or more: a leak is seen by its growth");
        self.rounds = rounds;
        self
    }

    /// Runs the checks, each over a fresh service that `layer` makes from the scripted one. The panics that it plants
    /// ("planted by the probe") are printed to standard error.
    ///
    /// # Panics
    /// If a check does not hold, with all that was found; or if the clock is not paused.
    pub async fn check<S>(&self, layer: impl Fn(Scripted<Req, A, E, Res>) -> S)
    where
        Req: 'static,
        A: 'static,
        E: 'static,
        Res: 'static,
        S: Service<Req> + Clone + Send + Sync + 'static,
        S::Future: Send,
    {
        let report = self.run(layer).await;
        assert!(report.is_ok(), "{report}");
    }

    /// Runs the checks as [`check`](Self::check) does, and returns what they found.
    ///
    /// It needs tokio's paused clock (`#[tokio::test(start_paused = true)]`), on which minutes pass at once. If
    /// something spins, the other checks are not made: they might not end.
    ///
    /// # Panics
    /// If the clock is not paused.
    #[must_use = "the report says whether the checks held"]
    pub async fn run<S>(&self, layer: impl Fn(Scripted<Req, A, E, Res>) -> S) -> Report
    where
        Req: 'static,
        A: 'static,
        E: 'static,
        Res: 'static,
        S: Service<Req> + Clone + Send + Sync + 'static,
        S::Future: Send,
    {
        assert!(clock_is_paused(), "the probe needs a paused clock: #[tokio::test(start_paused = true)]");
        let mut report = Report::default();
        // First of all: something that spins keeps a paused clock from ever moving, and the other checks from ending.
        let order = Check::ALL.into_iter().filter(|check| self.checks.contains(check));
        for check in order {
            checks::run(check, self, &layer, &mut report).await;
            if report.found(Check::Spin) {
                break;
            }
        }
        report
    }
}

/// A running clock moves within ten thousand looks at it.
fn clock_is_paused() -> bool {
    let before = Instant::now();
    (0..10_000).all(|_| Instant::now() == before)
}

impl<Req, A, E, Res> fmt::Debug for Probe<Req, A, E, Res> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Probe")
            .field("checks", &self.checks)
            .field("rounds", &self.rounds)
            .finish_non_exhaustive()
    }
}
