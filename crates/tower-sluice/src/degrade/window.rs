//! Windows: sources sampled at even times, and the facts between two samples.

use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, Sleep, sleep_until};

use crate::error::ConfigError;
use crate::facts::{Facts, Source};

/// How long a window is, where not set.
pub(super) const DEFAULT_WINDOW: Duration = Duration::from_secs(1);

pub(super) fn check_window(every: Duration) -> Result<Duration, ConfigError> {
    if every >= Duration::from_millis(1) {
        Ok(every)
    } else {
        Err(ConfigError::new("window", format_args!("{every:?}"), "at least 1ms"))
    }
}

/// Publishes the facts of its sources once a window.
///
/// A [ladder](super::Ladder) has a window of its own; this one is for those who read facts themselves, and for
/// several ladders that are to read the same.
///
/// The window is a future: [`spawn`](Self::spawn) runs it on the current runtime, [`build`](Self::build) hands it
/// out. It runs with or without traffic, and ends when the last [`FactsWatch`] is dropped. What is measured for
/// it is then measured no longer.
///
/// ```
/// use std::time::Duration;
/// use tower_sluice::degrade::{MeasureLayer, Window};
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() {
/// let measure = MeasureLayer::new();
/// let mut facts = Window::new().every(Duration::from_secs(5)).source(measure.facts()).spawn();
/// let told = facts.changed().await.unwrap();
/// assert_eq!(told.window, Duration::from_secs(5));
/// assert_eq!(told.attempts.as_ref().unwrap().outcomes(), 0);
/// # }
/// ```
#[must_use = "a window does nothing until it is spawned"]
#[derive(Debug)]
pub struct Window {
    every: Duration,
    sources: Sources,
}

impl Default for Window {
    fn default() -> Self {
        Self::new()
    }
}

impl Window {
    /// Windows of 1 s, without a source yet.
    pub fn new() -> Self {
        Self { every: DEFAULT_WINDOW, sources: Sources::default() }
    }

    /// How long a window is. 1 s where not set; `Duration::MAX` never ends.
    ///
    /// # Panics
    ///
    /// If it is shorter than 1 ms; [`try_every`](Self::try_every) returns that as an error.
    pub fn every(self, every: Duration) -> Self {
        self.try_every(every).unwrap_or_else(|error| panic!("{error}"))
    }

    /// [`every`](Self::every), for values that come from configuration.
    pub fn try_every(self, every: Duration) -> Result<Self, ConfigError> {
        Ok(Self { every: check_window(every)?, ..self })
    }

    /// One more source; what several tell is [joined](Facts::join).
    pub fn source(mut self, source: impl Source + 'static) -> Self {
        self.sources.push(source);
        self
    }

    /// The facts, and the future that publishes them.
    pub fn build(self) -> (FactsWatch, WindowDriver) {
        let none = Told { at: None, facts: Arc::default() };
        let (sender, receiver) = watch::channel(none);
        let Self { every, mut sources } = self;
        sources.start();
        let future = async move {
            let mut ticker = Ticker::start(every);
            let mut closed = pin!(sender.closed());
            while let Some(at) = unless(closed.as_mut(), ticker.tick()).await {
                let facts = Arc::new(sources.take());
                sender.send_replace(Told { at: Some(at), facts });
            }
        };
        (FactsWatch { receiver }, WindowDriver(Driver::new(future)))
    }

    /// Spawns the future on the current runtime, and returns the facts.
    ///
    /// # Panics
    ///
    /// Outside a runtime.
    pub fn spawn(self) -> FactsWatch {
        let (facts, driver) = self.build();
        tokio::spawn(driver);
        facts
    }
}

/// Publishes facts until nobody listens. Must be polled on a tokio runtime with time.
#[must_use = "futures do nothing unless polled or spawned"]
#[derive(Debug)]
pub struct WindowDriver(Driver);

impl Future for WindowDriver {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        Pin::new(&mut self.0).poll(cx)
    }
}

/// The facts of the last window. Cheap to clone; the window runs as long as one is left.
#[derive(Clone)]
pub struct FactsWatch {
    receiver: watch::Receiver<Told>,
}

/// The facts of a window, and when it ended by its own even count.
#[derive(Clone)]
struct Told {
    at: Option<Instant>,
    facts: Arc<Facts>,
}

impl FactsWatch {
    /// The facts of the last window; empty ones before the first has ended.
    pub fn latest(&self) -> Arc<Facts> {
        Arc::clone(&self.receiver.borrow().facts)
    }

    /// Waits for a window that this value has not returned yet, and returns its facts. `None` if there will be none,
    /// since the window's future was dropped. Windows that end while nobody waits are passed over.
    ///
    /// Cancel safe.
    pub async fn changed(&mut self) -> Option<Arc<Facts>> {
        Some(self.next().await?.1)
    }

    pub(super) async fn next(&mut self) -> Option<(Instant, Arc<Facts>)> {
        loop {
            self.receiver.changed().await.ok()?;
            let Told { at, facts } = self.receiver.borrow_and_update().clone();
            if let Some(at) = at {
                return Some((at, facts));
            }
        }
    }
}

impl fmt::Debug for FactsWatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("FactsWatch").field(&self.latest()).finish()
    }
}

/// Sources, and what they told last.
#[derive(Default)]
pub(super) struct Sources {
    sources: Vec<Box<dyn Source>>,
    last: Facts,
    at: Option<Instant>,
}

impl Sources {
    pub(super) fn push(&mut self, source: impl Source + 'static) {
        self.sources.push(source.attach());
    }

    pub(super) fn is_empty(&self) -> bool {
        self.sources.is_empty()
    }

    /// What went before is no part of the first window.
    pub(super) fn start(&mut self) {
        self.last = self.sample();
        self.at = Some(Instant::now());
    }

    /// The facts since the last call of this or of `start`.
    pub(super) fn take(&mut self) -> Facts {
        let (sample, now) = (self.sample(), Instant::now());
        let window = self.at.map_or(Duration::ZERO, |at| now.saturating_duration_since(at));
        let facts = sample.since(&self.last, window);
        self.last = sample;
        self.at = Some(now);
        facts
    }

    fn sample(&self) -> Facts {
        let mut sample = Facts::default();
        self.sources.iter().for_each(|source| sample.join(&source.sample()));
        sample
    }
}

impl fmt::Debug for Sources {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sources").field("sources", &self.sources.len()).finish()
    }
}

/// Ticks at even times. A tick that comes late is told as the time it was due, so that a few times a window make
/// exactly that; after a tick was missed altogether the count starts anew.
pub(super) struct Ticker {
    every: Duration,
    due: Option<Instant>,
    sleep: Option<Pin<Box<Sleep>>>,
}

impl Ticker {
    pub(super) fn start(every: Duration) -> Self {
        // An instant beyond what can be told is never.
        let due = Instant::now().checked_add(every);
        Self { every, due, sleep: due.map(|due| Box::pin(sleep_until(due))) }
    }

    pub(super) async fn tick(&mut self) -> Instant {
        let (Some(due), Some(sleep)) = (self.due, &mut self.sleep) else {
            return std::future::pending().await;
        };
        sleep.as_mut().await;
        let now = Instant::now();
        let missed = now.saturating_duration_since(due) >= self.every;
        let at = if missed { now } else { due };
        self.due = at.checked_add(self.every);
        match self.due {
            Some(due) => sleep.as_mut().reset(due),
            None => self.sleep = None,
        }
        at
    }
}

/// What `future` gives, or `None` as soon as `ended` is over.
pub(super) async fn unless<T>(
    mut ended: Pin<&mut impl Future<Output = ()>>,
    future: impl Future<Output = T>,
) -> Option<T> {
    let mut future = pin!(future);
    poll_fn(|cx| match ended.as_mut().poll(cx) {
        Poll::Ready(()) => Poll::Ready(None),
        Poll::Pending => future.as_mut().poll(cx).map(Some),
    })
    .await
}

/// The future of a driver: boxed once a window or ladder, never once a call.
pub(super) struct Driver {
    future: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
}

impl Driver {
    pub(super) fn new(future: impl Future<Output = ()> + Send + 'static) -> Self {
        Self { future: Some(Box::pin(future)) }
    }
}

impl Future for Driver {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let Some(future) = &mut self.future else { return Poll::Ready(()) };
        let poll = future.as_mut().poll(cx);
        if poll.is_ready() {
            // The sources go with the last listener, also if the driver itself is kept.
            self.future = None;
        }
        poll
    }
}

impl fmt::Debug for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Driver").field("ended", &self.future.is_none()).finish()
    }
}
