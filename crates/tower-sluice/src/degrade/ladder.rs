//! The ladder: rungs, rules and sources, and the future that reads them.

use std::fmt;
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::Instant;

use super::combine::Combined;
use super::position::{Pace, Position};
use super::reading::Reading;
use super::rule::Rule;
use super::signal::{Rungs, Shared, Signal, Step};
use super::window::{DEFAULT_WINDOW, Driver, FactsWatch, Sources, Ticker, check_window, unless};
use crate::error::ConfigError;
use crate::facts::{Facts, Source};

/// An ordered list of rungs, best first, and when to move between them.
///
/// Once a window, the [rules](super::rule) read the facts of the sources:
///
/// - **Strain** moves down one rung at once. The next rung down needs [`settle`](Self::settle) (3 s) more time,
///   since each rung is a guess about what is left, to be tried before the next.
/// - **Slack** moves up one rung once it has held for [`hold`](Self::hold) (10 s); strain or steady restarts it.
///   A relapse, which is strain within twice `hold` of a rise, doubles `hold` for this ladder, up to four times what
///   was set (40 s); six times what was set (60 s) without strain bring it back.
/// - **Silence** is not slack, but [`idle_hold`](Self::idle_hold) (40 s) after the last reading of strain or steady
///   it moves up one rung, to see.
///
/// A ladder starts at the best rung and never moves more than one rung a reading. The rungs are any type that can
/// be compared, cloned and printed: names, or your own enum, whose `Debug` output names the rung in events.
///
/// ```
/// use std::time::Duration;
/// use tower_sluice::degrade::{Ladder, MeasureLayer, rule};
///
/// #[derive(Clone, Copy, Debug, PartialEq, Eq)]
/// enum Quality { High, Medium, Low, AudioOnly }
/// use Quality::*;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let measure = MeasureLayer::new();
/// let quality = Ladder::new([High, Medium, Low, AudioOnly])
///     .name("video")
///     .rule(rule::failure_ratio())
///     .rule(rule::latency(0.95).strain(Duration::from_millis(400)).slack(Duration::from_millis(150)))
///     .source(measure.facts())
///     .spawn();
/// assert_eq!(quality.level(), High);
/// # }
/// ```
///
/// # Testing a ladder
///
/// What it would do can be asked without a runtime: [`read`](Self::read) says what facts mean to its rules, and
/// [`step`](Self::step) what a reading leads to.
///
/// ```
/// use std::time::Duration;
/// use tokio::time::Instant;
/// use tower_sluice::degrade::{Ladder, Reading};
///
/// let mut ladder = Ladder::new(["high", "medium", "low"]);
/// let start = Instant::now();
/// let at = |seconds| start + Duration::from_secs(seconds);
/// assert_eq!(ladder.step(Reading::Strain, at(1)).unwrap().to, "medium");
/// assert_eq!(ladder.step(Reading::Strain, at(2)), None); // not settled yet
/// assert_eq!(ladder.step(Reading::Strain, at(4)).unwrap().to, "low");
/// ```
#[must_use = "a ladder does nothing until it is spawned"]
pub struct Ladder<L> {
    name: Option<Arc<str>>,
    rungs: Rungs<L>,
    position: Position,
    rules: Combined,
    sources: Sources,
    shared_facts: Option<FactsWatch>,
    window: Duration,
}

impl<L: Clone + PartialEq + fmt::Debug> Ladder<L> {
    /// A ladder of these rungs, best first, without rule or source yet.
    ///
    /// # Panics
    ///
    /// If there is no rung, or one twice; [`try_new`](Self::try_new) returns that as an error.
    pub fn new(rungs: impl IntoIterator<Item = L>) -> Self {
        Self::try_new(rungs).unwrap_or_else(|error| panic!("{error}"))
    }

    /// [`new`](Self::new), for rungs that come from configuration.
    pub fn try_new(rungs: impl IntoIterator<Item = L>) -> Result<Self, ConfigError> {
        let rungs = Rungs::new(rungs)?;
        Ok(Self {
            name: None,
            position: Position::top_of(rungs.len(), Pace::default()),
            rungs,
            rules: Combined::default(),
            sources: Sources::default(),
            shared_facts: None,
            window: DEFAULT_WINDOW,
        })
    }

    /// A name for its events.
    pub fn name(self, name: impl Into<Arc<str>>) -> Self {
        Self { name: Some(name.into()), ..self }
    }

    /// One more rule. The worst of what the rules read counts: strain where any reads it, slack where all do.
    ///
    /// # Panics
    ///
    /// If the rule can never work, such as with a slack threshold that is not on the healthy side of strain;
    /// [`try_rule`](Self::try_rule) returns that as an error.
    pub fn rule(self, rule: impl Rule + Send + 'static) -> Self {
        self.try_rule(rule).unwrap_or_else(|error| panic!("{error}"))
    }

    /// [`rule`](Self::rule), for thresholds that come from configuration.
    pub fn try_rule(mut self, rule: impl Rule + Send + 'static) -> Result<Self, ConfigError> {
        rule.check()?;
        self.rules.push(Box::new(rule));
        Ok(self)
    }

    /// One more source of facts; what several tell is [joined](Facts::join).
    pub fn source(mut self, source: impl Source + 'static) -> Self {
        self.sources.push(source);
        self
    }

    /// Reads the facts of a [`Window`](super::Window) that others read too, joined with those of this ladder's own
    /// sources. Its windows take the place of this ladder's [`window`](Self::window).
    pub fn facts(self, facts: FactsWatch) -> Self {
        Self { shared_facts: Some(facts), ..self }
    }

    /// How often facts are read. 1 s where not set; `Duration::MAX` never.
    ///
    /// # Panics
    ///
    /// If it is shorter than 1 ms; [`try_window`](Self::try_window) returns that as an error.
    pub fn window(self, window: Duration) -> Self {
        self.try_window(window).unwrap_or_else(|error| panic!("{error}"))
    }

    /// [`window`](Self::window), for values that come from configuration.
    pub fn try_window(self, window: Duration) -> Result<Self, ConfigError> {
        Ok(Self { window: check_window(window)?, ..self })
    }

    /// The least time between two rungs down. 3 s where not set; zero is one rung each reading, `Duration::MAX` one
    /// rung down and no more.
    pub fn settle(self, settle: Duration) -> Self {
        self.pace(|pace| Pace { settle, ..pace })
    }

    /// How long slack has to hold before each rung up. 10 s where not set; zero is one rung each reading of slack,
    /// `Duration::MAX` never.
    pub fn hold(self, hold: Duration) -> Self {
        self.pace(|pace| Pace { hold, ..pace })
    }

    /// How long after the last reading of strain or steady silence is answered with one rung up. 40 s where not set;
    /// zero is one rung each silent window, `Duration::MAX` never.
    pub fn idle_hold(self, idle_hold: Duration) -> Self {
        self.pace(|pace| Pace { idle_hold, ..pace })
    }

    fn pace(mut self, change: impl FnOnce(Pace) -> Pace) -> Self {
        self.position.set_pace(change(self.position.pace()));
        self
    }

    /// What the facts of one window mean to the rules: the worst of them.
    ///
    /// A rule that has too few samples reads the facts of the next windows together with these.
    pub fn read(&mut self, facts: &Facts) -> Reading {
        self.rules.read(facts)
    }

    /// Takes in the reading of a window that ended at `now`, and moves at most one rung.
    ///
    /// Pure: it looks at no clock, and a `now` before the last one counts as the last.
    pub fn step(&mut self, reading: Reading, now: Instant) -> Option<Step<L>> {
        let moved = self.position.step(reading, now)?;
        let level = |rung| self.rungs.level(rung).clone();
        Some(Step { from: level(moved.from), to: level(moved.to), cause: moved.cause })
    }

    /// The level that holds.
    pub fn level(&self) -> &L {
        self.rungs.level(self.position.rung())
    }
}

impl<L: Clone + PartialEq + fmt::Debug + Send + Sync + 'static> Ladder<L> {
    /// The signal, and the future that drives it.
    ///
    /// The future runs with or without traffic, and ends with the last that listens to the signal.
    pub fn build(self) -> (Signal<L>, LadderDriver) {
        let Self { name, rungs, position, mut rules, mut sources, shared_facts, window } = self;
        sources.start();
        let shared = Arc::new(Shared::new(name, rungs, position));
        let signal = Signal::new(Arc::clone(&shared));
        let future = async move {
            let mut feed = match shared_facts {
                Some(facts) => Feed::Shared(facts),
                None => Feed::Own(Ticker::start(window)),
            };
            let mut closed = pin!(shared.closed());
            while let Some(Some((at, facts))) = unless(closed.as_mut(), feed.next(&mut sources)).await {
                let reading = rules.read(&facts);
                shared.step(reading, at, &facts);
            }
        };
        (signal, LadderDriver(Driver::new(future)))
    }

    /// Spawns the future on the current runtime, and returns the signal.
    ///
    /// # Panics
    ///
    /// Outside a runtime.
    pub fn spawn(self) -> Signal<L> {
        let (signal, driver) = self.build();
        tokio::spawn(driver);
        signal
    }
}

impl<L: Clone + PartialEq + fmt::Debug> fmt::Debug for Ladder<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ladder")
            .field("name", &self.name)
            .field("rungs", &self.rungs)
            .field("level", self.level())
            .field("rules", &self.rules)
            .field("sources", &self.sources)
            .finish_non_exhaustive()
    }
}

/// Where a ladder's windows come from.
enum Feed {
    Own(Ticker),
    Shared(FactsWatch),
}

impl Feed {
    /// The next window's end and facts; `None` if there will be no more.
    async fn next(&mut self, sources: &mut Sources) -> Option<(Instant, Arc<Facts>)> {
        match self {
            Self::Own(ticker) => {
                let at = ticker.tick().await;
                Some((at, Arc::new(sources.take())))
            }
            Self::Shared(facts) => {
                let (at, mut facts) = facts.next().await?;
                if !sources.is_empty() {
                    Arc::make_mut(&mut facts).join(&sources.take());
                }
                Some((at, facts))
            }
        }
    }
}

/// Moves a ladder until nobody listens. Must be polled on a tokio runtime with time.
#[must_use = "futures do nothing unless polled or spawned"]
#[derive(Debug)]
pub struct LadderDriver(Driver);

impl Future for LadderDriver {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        Pin::new(&mut self.0).poll(cx)
    }
}
