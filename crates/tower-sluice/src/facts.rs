//! The numbers of one window, and who can supply them.
//!
//! Facts decide nothing. What measures them and what reacts to them know each other only by this module: a queue's
//! handle, a link and a measured service are [`Source`]s; a [ladder](crate::degrade) reads what they tell.
//!
//! The same types serve twice. A **sample** holds counters as they have grown since the source was made. The
//! difference of two samples, [`Facts::since`], holds what happened in the window between them.
//!
//! ```
//! use std::time::Duration;
//! use tower_sluice::facts::{Facts, QueueFacts};
//!
//! let sample = |admitted, queued| {
//!     let mut queue = QueueFacts::default();
//!     (queue.admitted, queue.queued) = (admitted, queued);
//!     Facts::from(queue)
//! };
//! let window = sample(150, 7).since(&sample(100, 20), Duration::from_secs(1));
//! let queue = window.queue.unwrap();
//! assert_eq!(queue.admitted, 50); // a counter: what was added
//! assert_eq!(queue.queued, 7); // a gauge: how it stands
//! ```
#![cfg_attr(not(feature = "degrade"), allow(rustdoc::broken_intra_doc_links))]

mod latencies;

use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;

pub use self::latencies::Latencies;

/// Who can supply facts.
///
/// Sampled once a window, from the task that drives the window: it should take no longer than a few locks.
pub trait Source: Send + Sync {
    /// What is known at this instant: counters as they have grown since the source was made, gauges as they
    /// stand. What the source does not know stays `None`; [`Facts::window`] is not looked at.
    fn sample(&self) -> Facts;

    /// Called when the source is given to a window or a ladder, which keeps what this returns: itself, unless said
    /// otherwise.
    ///
    /// A window runs as long as somebody listens, and keeps its sources alive as long. Where what listens may belong to
    /// the source, such as a gate by which a queue turns calls away, that would be for ever: such a source returns one
    /// that holds it weakly, and tells nothing once it is gone.
    fn attach(self) -> Box<dyn Source>
    where
        Self: Sized + 'static,
    {
        Box::new(self)
    }
}

impl<S: Source + ?Sized> Source for Arc<S> {
    fn sample(&self) -> Facts {
        (**self).sample()
    }
}

impl<S: Source + ?Sized> Source for Box<S> {
    fn sample(&self) -> Facts {
        (**self).sample()
    }
}

/// Tells nothing once what it refers to is gone.
impl<S: Source> Source for Weak<S> {
    fn sample(&self) -> Facts {
        self.upgrade().map(|source| source.sample()).unwrap_or_default()
    }
}

/// What was measured over one window.
///
/// Prints as one line; with the feature `serde` it can be serialised.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct Facts {
    /// How long the window was.
    pub window: Duration,
    /// The attempts that ended; `None` where nothing measures them.
    pub attempts: Option<AttemptFacts>,
    /// The queues; `None` where there is none among the sources.
    pub queue: Option<QueueFacts>,
    /// The links; `None` where there is none among the sources.
    pub links: Option<LinkFacts>,
}

/// How attempts ended. All are counters.
///
/// A failure is a failure whether or not its request may be repeated. Cancelled attempts have no outcome.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct AttemptFacts {
    /// Successes.
    pub succeeded: u64,
    /// Failures: the service asked for fewer requests.
    pub throttled: u64,
    /// Failures: the service could not answer for now.
    pub unavailable: u64,
    /// Failures of other kinds that another attempt may not meet.
    pub transient: u64,
    /// Failures: the attempt took too long.
    pub timeout: u64,
    /// The request's own fault: it would fail the same way again. An outcome, but no sign of strain.
    pub fatal: u64,
    /// Dropped before they ended. No outcome.
    pub cancelled: u64,
    /// How long attempts took, from the call of the service to its answer; bodies are not waited for.
    pub latency: Latencies,
}

/// How a queue stands, and what went through it.
///
/// Of several queues counters and gauges are added, and the oldest waiting call is that of all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct QueueFacts {
    /// Gauge: attempts that may run at once; `None` where any number may.
    pub limit: Option<usize>,
    /// Gauge: calls that wait for a slot.
    pub queued: usize,
    /// Gauge: calls that hold a slot.
    pub running: usize,
    /// Gauge: calls that wait for their next attempt, out of slot.
    pub deferred: usize,
    /// Gauge: how long the call that has been in the line the longest has been there, without the time for which an
    /// operator had paused the queue; `None` where none is in it.
    pub oldest_waiting: Option<Duration>,
    /// Counter: calls that were admitted.
    pub admitted: u64,
    /// Counter: calls turned away on arrival for lack of room or of time. What is turned away by decision does not
    /// count (shed, closed): a ladder that sheds must not read its own shedding as strain.
    pub refused: u64,
    /// Counter: admitted calls given up for lack of time (queue timeout, deadline). Cleared ones do not count.
    pub expired: u64,
}

/// How links stand.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct LinkFacts {
    /// Gauge: links that are connected and restored.
    pub up: usize,
    /// Gauge: links that are not.
    pub down: usize,
    /// Counter: times that a link which had been up was lost.
    pub lost: u64,
}

impl Facts {
    /// What happened between two samples, which lie `window` apart: counters as the difference, gauges as they
    /// stand now. A counter that shrank, against the rule, counts as 0.
    #[must_use]
    pub fn since(&self, earlier: &Self, window: Duration) -> Self {
        fn part<T: Default>(now: Option<&T>, earlier: Option<&T>, since: impl Fn(&T, &T) -> T) -> Option<T> {
            now.map(|now| earlier.map_or_else(|| since(now, &T::default()), |earlier| since(now, earlier)))
        }
        Self {
            window,
            attempts: part(self.attempts.as_ref(), earlier.attempts.as_ref(), AttemptFacts::since),
            queue: part(self.queue.as_ref(), earlier.queue.as_ref(), QueueFacts::since),
            links: part(self.links.as_ref(), earlier.links.as_ref(), LinkFacts::since),
        }
    }

    /// Takes in what another source tells of the same time: counters and gauges are added.
    pub fn join(&mut self, other: &Self) {
        self.window = self.window.max(other.window);
        join(&mut self.attempts, other.attempts.as_ref(), AttemptFacts::add_counters);
        join(&mut self.queue, other.queue.as_ref(), |queue, other| {
            let first = queue.clone();
            queue.add_counters(other);
            queue.set_gauges(other);
            // Unlimited and limited together are unlimited.
            queue.limit = first.limit.zip(other.limit).map(|(a, b)| a.saturating_add(b));
            queue.queued = queue.queued.saturating_add(first.queued);
            queue.running = queue.running.saturating_add(first.running);
            queue.deferred = queue.deferred.saturating_add(first.deferred);
            queue.oldest_waiting = first.oldest_waiting.max(other.oldest_waiting);
        });
        join(&mut self.links, other.links.as_ref(), |links, other| {
            links.up = links.up.saturating_add(other.up);
            links.down = links.down.saturating_add(other.down);
            links.lost = links.lost.saturating_add(other.lost);
        });
    }

    /// Takes in the window that followed: counters are added, gauges replaced, and the window grows by the other's.
    pub fn extend(&mut self, next: &Self) {
        self.window = self.window.saturating_add(next.window);
        join(&mut self.attempts, next.attempts.as_ref(), AttemptFacts::add_counters);
        join(&mut self.queue, next.queue.as_ref(), |queue, next| {
            queue.add_counters(next);
            queue.set_gauges(next);
        });
        join(&mut self.links, next.links.as_ref(), |links, next| {
            *links = LinkFacts { lost: links.lost.saturating_add(next.lost), ..*next };
        });
    }
}

fn join<T: Clone>(into: &mut Option<T>, other: Option<&T>, both: impl FnOnce(&mut T, &T)) {
    match (into.as_mut(), other) {
        (Some(into), Some(other)) => both(into, other),
        (None, Some(other)) => *into = Some(other.clone()),
        (_, None) => {}
    }
}

impl AttemptFacts {
    /// Attempts that failed, of whatever kind; fatal ones are the request's fault and do not count.
    pub fn failed(&self) -> u64 {
        [self.throttled, self.unavailable, self.transient, self.timeout]
            .into_iter()
            .fold(0, u64::saturating_add)
    }

    /// Attempts that ended: succeeded, failed or fatal.
    pub fn outcomes(&self) -> u64 {
        self.succeeded.saturating_add(self.failed()).saturating_add(self.fatal)
    }

    /// The share of outcomes that are failures; `None` without an outcome.
    pub fn failure_ratio(&self) -> Option<f64> {
        ratio(self.failed(), self.outcomes())
    }

    fn since(&self, earlier: &Self) -> Self {
        Self {
            succeeded: self.succeeded.saturating_sub(earlier.succeeded),
            throttled: self.throttled.saturating_sub(earlier.throttled),
            unavailable: self.unavailable.saturating_sub(earlier.unavailable),
            transient: self.transient.saturating_sub(earlier.transient),
            timeout: self.timeout.saturating_sub(earlier.timeout),
            fatal: self.fatal.saturating_sub(earlier.fatal),
            cancelled: self.cancelled.saturating_sub(earlier.cancelled),
            latency: self.latency.since(&earlier.latency),
        }
    }

    fn add_counters(&mut self, other: &Self) {
        self.succeeded = self.succeeded.saturating_add(other.succeeded);
        self.throttled = self.throttled.saturating_add(other.throttled);
        self.unavailable = self.unavailable.saturating_add(other.unavailable);
        self.transient = self.transient.saturating_add(other.transient);
        self.timeout = self.timeout.saturating_add(other.timeout);
        self.fatal = self.fatal.saturating_add(other.fatal);
        self.cancelled = self.cancelled.saturating_add(other.cancelled);
        self.latency.add(&other.latency);
    }
}

impl QueueFacts {
    /// Calls that asked to be admitted.
    pub fn offered(&self) -> u64 {
        self.admitted.saturating_add(self.refused)
    }

    /// The share of calls that found no room or ran out of time, at most 1; `None` where no call asked.
    ///
    /// A call that ran out of time may have asked in an earlier window.
    pub fn rejection_ratio(&self) -> Option<f64> {
        ratio(self.refused.saturating_add(self.expired), self.offered().max(self.expired))
    }

    fn since(&self, earlier: &Self) -> Self {
        Self {
            admitted: self.admitted.saturating_sub(earlier.admitted),
            refused: self.refused.saturating_sub(earlier.refused),
            expired: self.expired.saturating_sub(earlier.expired),
            ..self.clone()
        }
    }

    fn add_counters(&mut self, other: &Self) {
        self.admitted = self.admitted.saturating_add(other.admitted);
        self.refused = self.refused.saturating_add(other.refused);
        self.expired = self.expired.saturating_add(other.expired);
    }

    fn set_gauges(&mut self, from: &Self) {
        *self =
            Self { admitted: self.admitted, refused: self.refused, expired: self.expired, ..from.clone() };
    }
}

impl LinkFacts {
    fn since(&self, earlier: &Self) -> Self {
        Self { lost: self.lost.saturating_sub(earlier.lost), ..*self }
    }
}

fn ratio(part: u64, whole: u64) -> Option<f64> {
    (whole > 0).then(|| (part as f64 / whole as f64).min(1.0))
}

impl From<AttemptFacts> for Facts {
    fn from(attempts: AttemptFacts) -> Self {
        Self { attempts: Some(attempts), ..Self::default() }
    }
}

impl From<QueueFacts> for Facts {
    fn from(queue: QueueFacts) -> Self {
        Self { queue: Some(queue), ..Self::default() }
    }
}

impl From<LinkFacts> for Facts {
    fn from(links: LinkFacts) -> Self {
        Self { links: Some(links), ..Self::default() }
    }
}

impl fmt::Display for Facts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "in {:?}", self.window)?;
        if let Some(attempts) = &self.attempts {
            write!(f, "; {attempts}")?;
        }
        if let Some(queue) = &self.queue {
            write!(f, "; {queue}")?;
        }
        if let Some(links) = &self.links {
            write!(f, "; {links}")?;
        }
        Ok(())
    }
}

impl fmt::Display for AttemptFacts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "attempts {}, failed {}", self.outcomes(), self.failed())?;
        let kinds = [
            ("throttled", self.throttled),
            ("unavailable", self.unavailable),
            ("transient", self.transient),
            ("timeout", self.timeout),
        ];
        for (i, (kind, count)) in kinds.into_iter().filter(|&(_, count)| count > 0).enumerate() {
            write!(f, "{}{kind} {count}", if i == 0 { " (" } else { ", " })?;
        }
        if self.failed() > 0 {
            f.write_str(")")?;
        }
        for (name, count) in [("fatal", self.fatal), ("cancelled", self.cancelled)] {
            if count > 0 {
                write!(f, ", {name} {count}")?;
            }
        }
        for (name, q) in [("p50", 0.5), ("p95", 0.95), ("p99", 0.99)] {
            if let Some(latency) = self.latency.quantile(q) {
                write!(f, ", {name} {latency:.1?}")?;
            }
        }
        Ok(())
    }
}

impl fmt::Display for QueueFacts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "running {}", self.running)?;
        if let Some(limit) = self.limit {
            write!(f, " of {limit}")?;
        }
        write!(f, ", queued {}, deferred {}", self.queued, self.deferred)?;
        if let Some(oldest) = self.oldest_waiting {
            write!(f, ", oldest {oldest:.1?}")?;
        }
        write!(f, ", admitted {}, refused {}, expired {}", self.admitted, self.refused, self.expired)
    }
}

impl fmt::Display for LinkFacts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "links {} up, {} down, {} lost", self.up, self.down, self.lost)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attempts(succeeded: u64, throttled: u64, ms: u64) -> Facts {
        let mut facts = AttemptFacts { succeeded, throttled, ..AttemptFacts::default() };
        facts.latency.record(Duration::from_millis(ms));
        facts.into()
    }

    fn queue(limit: Option<usize>, queued: usize, admitted: u64, oldest: Option<u64>) -> Facts {
        let oldest_waiting = oldest.map(Duration::from_millis);
        QueueFacts { limit, queued, admitted, oldest_waiting, ..QueueFacts::default() }.into()
    }

    #[test]
    fn two_sources_add_up_and_the_oldest_call_is_that_of_all() {
        let mut facts = attempts(5, 1, 10);
        facts.join(&queue(Some(16), 3, 10, Some(20)));
        facts.join(&queue(Some(4), 2, 5, Some(900)));
        facts.join(&attempts(1, 1, 10));
        let told = facts.queue.as_ref().unwrap();
        assert_eq!((told.limit, told.queued, told.admitted), (Some(20), 5, 15));
        assert_eq!(told.oldest_waiting, Some(Duration::from_millis(900)));
        let told = facts.attempts.as_ref().unwrap();
        assert_eq!((told.succeeded, told.throttled, told.latency.count()), (6, 2, 2));
        facts.join(&queue(None, 0, 0, None));
        assert_eq!(facts.queue.unwrap().limit, None);
    }

    #[test]
    fn a_following_window_adds_its_counters_and_replaces_the_gauges() {
        let window = Duration::from_secs(1);
        let mut facts = queue(Some(16), 9, 30, Some(400)).since(&queue(Some(16), 0, 10, None), window);
        facts.extend(&queue(Some(8), 1, 34, None).since(&queue(Some(16), 9, 30, None), window));
        let told = facts.queue.unwrap();
        assert_eq!(facts.window, 2 * window);
        assert_eq!((told.limit, told.queued, told.admitted, told.oldest_waiting), (Some(8), 1, 24, None));
    }

    #[test]
    fn counters_saturate_and_never_run_backwards() {
        let mut full = attempts(u64::MAX, u64::MAX, 1);
        full.join(&attempts(1, 1, 1));
        assert_eq!(full.attempts.as_ref().unwrap().outcomes(), u64::MAX);
        let shrunk = attempts(1, 0, 1).since(&attempts(2, 2, 1), Duration::MAX);
        assert_eq!(shrunk.attempts.as_ref().unwrap().outcomes(), 0);
        let mut long = shrunk.clone();
        long.extend(&shrunk);
        assert_eq!(long.window, Duration::MAX);
    }

    #[test]
    fn ratios_stay_within_one_and_are_absent_without_calls() {
        let mut queue = QueueFacts::default();
        assert_eq!(queue.rejection_ratio(), None);
        queue.expired = 4; // of calls admitted in an earlier window
        assert_eq!(queue.rejection_ratio(), Some(1.0));
        queue.admitted = 12;
        queue.refused = 4;
        assert_eq!(queue.rejection_ratio(), Some(0.5));
        let attempts =
            AttemptFacts { succeeded: 6, throttled: 1, timeout: 1, fatal: 2, ..Default::default() };
        assert_eq!(attempts.failure_ratio(), Some(0.2));
        assert_eq!(AttemptFacts::default().failure_ratio(), None);
    }

    #[test]
    fn facts_print_as_one_line() {
        let mut facts = attempts(5, 1, 10);
        facts.window = Duration::from_secs(1);
        facts.join(&queue(Some(16), 3, 10, Some(20)));
        facts.join(&LinkFacts { up: 1, down: 0, lost: 2 }.into());
        assert_eq!(
            facts.to_string(),
            "in 1s; attempts 6, failed 1 (throttled 1), p50 10.2ms, p95 10.2ms, p99 10.2ms; \
             running 0 of 16, queued 3, deferred 0, oldest 20.0ms, admitted 10, refused 0, expired 0; \
             links 1 up, 0 down, 2 lost"
        );
    }
}
