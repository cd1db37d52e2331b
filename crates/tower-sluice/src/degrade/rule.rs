//! Rules: what turns facts into a [`Reading`].
//!
//! | rule | reads | strain from | slack up to |
//! |---|---|---|---|
//! | [`latency`] | a quantile of the attempts' latency | 1 s | 500 ms |
//! | [`failure_ratio`] | the share of attempts that failed | 20 %, and 5 failures | 5 % |
//! | [`queue_wait`] | how long the oldest call in the line has been there | 200 ms | 50 ms |
//! | [`rejections`] | the share of calls that found no room or ran out of time | 5 %, and 5 of them | 1.25 % |
//!
//! Between the two thresholds the reading is steady. The slack threshold lies strictly on the healthy side of the
//! other, else one value would be both and the level would swing. Where only strain is set, slack is a quarter of
//! it (half, for latency). Fewer samples than a minimum, 20 where not set, are [`Reading::Unknown`]: a 10 % rule on
//! ten samples sends a healthy service with 2 % failures to the bottom.
//!
//! Closures are rules too:
//!
//! ```
//! use tower_sluice::degrade::{Ladder, Reading};
//! use tower_sluice::facts::Facts;
//!
//! let ladder = Ladder::new(["live", "cached"]).rule(|facts: &Facts| match &facts.links {
//!     Some(links) if links.down > 0 => Reading::Strain,
//!     Some(_) => Reading::Slack,
//!     None => Reading::Unknown,
//! });
//! # drop(ladder);
//! ```

use std::fmt;
use std::time::Duration;

use super::reading::Reading;
use crate::error::ConfigError;
use crate::facts::Facts;

/// Samples below which nothing is read, where not set.
const MIN_SAMPLES: u64 = 20;
/// Failures below which there is no strain, where not set.
const MIN_FAILURES: u64 = 5;

/// Turns facts into a reading.
///
/// Closures `Fn(&Facts) -> Reading` implement it. A rule that reads [`Reading::Unknown`] is shown the same facts
/// again together with those of the next windows, up to 10 s of them.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no rule",
    note = "a closure needs its argument's type written out: `|facts: &Facts| ..`, and returns a `Reading`"
)]
pub trait Rule {
    /// What `facts` mean.
    fn read(&self, facts: &Facts) -> Reading;

    /// Whether the rule can work as it is set; asked once, when it is given to a ladder.
    fn check(&self) -> Result<(), ConfigError> {
        Ok(())
    }
}

impl<F: Fn(&Facts) -> Reading> Rule for F {
    fn read(&self, facts: &Facts) -> Reading {
        self(facts)
    }
}

/// The two thresholds of a rule whose larger values are worse.
#[derive(Clone, Copy, Debug)]
struct Band<T> {
    strain: T,
    slack: T,
}

impl<T: PartialOrd> Band<T> {
    fn read(&self, value: T) -> Reading {
        if value >= self.strain {
            Reading::Strain
        } else if value <= self.slack {
            Reading::Slack
        } else {
            Reading::Steady
        }
    }

    fn check(&self) -> Result<(), ConfigError>
    where
        T: fmt::Debug,
    {
        // Written so that a NaN fails.
        if self.slack < self.strain {
            return Ok(());
        }
        let given = format_args!("{:?} (strain: {:?})", self.slack, self.strain).to_string();
        Err(ConfigError::new("slack", given, "below strain"))
    }
}

fn check_min_samples(min_samples: u64) -> Result<(), ConfigError> {
    if min_samples > 0 { Ok(()) } else { Err(ConfigError::new("min_samples", min_samples, "at least 1")) }
}

/// Reads the latency that a share `quantile` of the attempts does not exceed. Needs a source that measures attempts.
///
/// Strain from 1 s and slack up to 500 ms, where not set: every service has its own, so set them.
///
/// ```
/// use std::time::Duration;
/// use tower_sluice::degrade::rule;
///
/// let rule = rule::latency(0.95).strain(Duration::from_millis(400)).slack(Duration::from_millis(150));
/// # let _ = rule;
/// ```
///
/// The quantile lies above 0 and is at most 1; others are refused when the rule is given to a ladder.
pub fn latency(quantile: f64) -> Latency {
    Latency { quantile, strain: Duration::from_secs(1), slack: None, min_samples: MIN_SAMPLES }
}

/// See [`latency`].
#[derive(Clone, Copy, Debug)]
#[must_use]
pub struct Latency {
    quantile: f64,
    strain: Duration,
    slack: Option<Duration>,
    min_samples: u64,
}

impl Latency {
    /// Strain from this latency on. 1 s where not set.
    pub fn strain(self, strain: Duration) -> Self {
        Self { strain, ..self }
    }

    /// Slack up to this latency, which is below that of strain. Half of it where not set.
    pub fn slack(self, slack: Duration) -> Self {
        Self { slack: Some(slack), ..self }
    }

    /// Fewer attempts that ended are [`Reading::Unknown`]. 20 where not set; at least 1.
    pub fn min_samples(self, min_samples: u64) -> Self {
        Self { min_samples, ..self }
    }

    fn band(&self) -> Band<Duration> {
        Band { strain: self.strain, slack: self.slack.unwrap_or(self.strain / 2) }
    }
}

impl Rule for Latency {
    fn read(&self, facts: &Facts) -> Reading {
        let latency = facts.attempts.as_ref().map(|attempts| &attempts.latency);
        latency
            .filter(|latency| latency.count() >= self.min_samples)
            .and_then(|latency| latency.quantile(self.quantile))
            .map_or(Reading::Unknown, |value| self.band().read(value))
    }

    fn check(&self) -> Result<(), ConfigError> {
        if !(self.quantile > 0.0 && self.quantile <= 1.0) {
            return Err(ConfigError::new("quantile", self.quantile, "above 0 and at most 1"));
        }
        check_min_samples(self.min_samples)?;
        self.band().check()
    }
}

/// Reads the share of attempts that failed, of whatever kind. Needs a source that measures attempts.
///
/// Strain from 20 % and at least 5 failures, slack up to 5 %, where not set. Fatal results, which are the request's
/// own fault, are outcomes but no failures.
pub fn failure_ratio() -> Ratio {
    Ratio { of: Of::Failures, strain: 0.2, slack: None, min_samples: MIN_SAMPLES, min_failures: MIN_FAILURES }
}

/// Reads the share of calls that a queue had no room for, or whose time ran out in it. Needs a queue as source.
///
/// Strain from 5 % and at least 5 calls, slack up to 1.25 %, where not set. What was shed, cleared or closed does
/// not count.
pub fn rejections() -> Ratio {
    Ratio { of: Of::Rejections, strain: 0.05, ..failure_ratio() }
}

#[derive(Clone, Copy, Debug)]
enum Of {
    Failures,
    Rejections,
}

/// See [`failure_ratio`] and [`rejections`].
#[derive(Clone, Copy, Debug)]
#[must_use]
pub struct Ratio {
    of: Of,
    strain: f64,
    slack: Option<f64>,
    min_samples: u64,
    min_failures: u64,
}

impl Ratio {
    /// Strain from this share on: above 0, at most 1.
    pub fn strain(self, strain: f64) -> Self {
        Self { strain, ..self }
    }

    /// Slack up to this share: at least 0, and below that of strain. A quarter of it where not set.
    pub fn slack(self, slack: f64) -> Self {
        Self { slack: Some(slack), ..self }
    }

    /// Fewer attempts (calls, for rejections) are [`Reading::Unknown`]. 20 where not set; at least 1.
    pub fn min_samples(self, min_samples: u64) -> Self {
        Self { min_samples, ..self }
    }

    /// Fewer failures (rejections) are no strain, whatever their share. 5 where not set.
    pub fn min_failures(self, min_failures: u64) -> Self {
        Self { min_failures, ..self }
    }

    fn band(&self) -> Band<f64> {
        Band { strain: self.strain, slack: self.slack.unwrap_or(self.strain / 4.0) }
    }
}

impl Rule for Ratio {
    fn read(&self, facts: &Facts) -> Reading {
        let told = match self.of {
            Of::Failures => {
                facts.attempts.as_ref().map(|told| (told.failed(), told.outcomes(), told.failure_ratio()))
            }
            Of::Rejections => facts.queue.as_ref().map(|told| {
                let rejected = told.refused.saturating_add(told.expired);
                (rejected, told.offered().max(rejected), told.rejection_ratio())
            }),
        };
        match told {
            Some((failures, samples, Some(ratio))) if samples >= self.min_samples => {
                match self.band().read(ratio) {
                    Reading::Strain if failures < self.min_failures => Reading::Steady,
                    reading => reading,
                }
            }
            _ => Reading::Unknown,
        }
    }

    fn check(&self) -> Result<(), ConfigError> {
        let Band { strain, slack } = self.band();
        if !(strain > 0.0 && strain <= 1.0) {
            return Err(ConfigError::new("strain", strain, "above 0 and at most 1"));
        }
        if slack < 0.0 || slack.is_nan() {
            return Err(ConfigError::new("slack", slack, "at least 0"));
        }
        check_min_samples(self.min_samples)?;
        self.band().check()
    }
}

/// Reads how long the call that has been in a queue's line the longest has been there, at the window's end. Needs a
/// queue as source.
///
/// Strain from 200 ms and slack up to 50 ms, where not set. Strain needs no minimum of samples, since the wait of a
/// single call shows that the line does not move; slack does: an empty line through which no call went says nothing.
pub fn queue_wait() -> QueueWait {
    QueueWait { strain: Duration::from_millis(200), slack: None, min_samples: MIN_SAMPLES }
}

/// See [`queue_wait`].
#[derive(Clone, Copy, Debug)]
#[must_use]
pub struct QueueWait {
    strain: Duration,
    slack: Option<Duration>,
    min_samples: u64,
}

impl QueueWait {
    /// Strain from this wait on. 200 ms where not set.
    pub fn strain(self, strain: Duration) -> Self {
        Self { strain, ..self }
    }

    /// Slack up to this wait, which is below that of strain. A quarter of it where not set.
    pub fn slack(self, slack: Duration) -> Self {
        Self { slack: Some(slack), ..self }
    }

    /// Slack is [`Reading::Unknown`] where fewer calls came. 20 where not set; at least 1.
    pub fn min_samples(self, min_samples: u64) -> Self {
        Self { min_samples, ..self }
    }

    fn band(&self) -> Band<Duration> {
        Band { strain: self.strain, slack: self.slack.unwrap_or(self.strain / 4) }
    }
}

impl Rule for QueueWait {
    fn read(&self, facts: &Facts) -> Reading {
        facts.queue.as_ref().map_or(Reading::Unknown, |queue| {
            match self.band().read(queue.oldest_waiting.unwrap_or(Duration::ZERO)) {
                Reading::Slack if queue.offered() < self.min_samples => Reading::Unknown,
                reading => reading,
            }
        })
    }

    fn check(&self) -> Result<(), ConfigError> {
        check_min_samples(self.min_samples)?;
        self.band().check()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::{AttemptFacts, QueueFacts};

    const fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn attempts(succeeded: u64, transient: u64, fatal: u64) -> Facts {
        AttemptFacts { succeeded, transient, fatal, ..AttemptFacts::default() }.into()
    }

    fn took(count: usize, latency: Duration) -> Facts {
        let mut attempts = AttemptFacts::default();
        (0..count).for_each(|_| attempts.latency.record(latency));
        attempts.into()
    }

    fn queue(oldest_waiting: Option<Duration>, admitted: u64, refused: u64, expired: u64) -> Facts {
        QueueFacts { oldest_waiting, admitted, refused, expired, ..QueueFacts::default() }.into()
    }

    /// L2: strain from 20 % and at least 5 failures, slack up to 5 %, unknown below 20 samples.
    #[test]
    fn l2_the_failure_rule_reads_its_thresholds() {
        let rule = failure_ratio();
        for (facts, reading) in [
            (Facts::default(), Reading::Unknown),
            (attempts(0, 0, 0), Reading::Unknown),
            (attempts(0, 19, 0), Reading::Unknown),
            (attempts(16, 4, 0), Reading::Steady), // 20 %, but 4 failures
            (attempts(20, 5, 0), Reading::Strain), // exactly 20 %
            (attempts(21, 5, 0), Reading::Steady),
            (attempts(19, 1, 0), Reading::Slack), // exactly 5 %
            (attempts(18, 1, 0), Reading::Unknown),
            (attempts(37, 2, 0), Reading::Steady),
            (attempts(0, 0, 20), Reading::Slack), // the requests' own fault
        ] {
            assert_eq!(rule.read(&facts), reading, "{facts}");
        }
        assert_eq!(rule.min_samples(25).read(&attempts(0, 24, 0)), Reading::Unknown);
        assert_eq!(rule.min_failures(0).read(&attempts(16, 4, 0)), Reading::Strain);
    }

    /// L2
    #[test]
    fn l2_the_latency_rule_reads_its_quantile() {
        let rule = latency(0.5).strain(ms(100)).slack(ms(50));
        for (facts, reading) in [
            (took(19, ms(500)), Reading::Unknown),
            (took(20, ms(500)), Reading::Strain),
            (took(20, ms(75)), Reading::Steady),
            (took(20, ms(20)), Reading::Slack),
        ] {
            assert_eq!(rule.read(&facts), reading, "{facts}");
        }
        let mut mixed = took(20, ms(20));
        mixed.join(&took(19, ms(500)));
        assert_eq!(rule.read(&mixed), Reading::Slack);
        assert_eq!(latency(1.0).strain(ms(100)).read(&mixed), Reading::Strain);
    }

    /// L2: one call that waits too long is strain; slack needs calls.
    #[test]
    fn l2_the_queue_rule_reads_the_oldest_wait() {
        let rule = queue_wait();
        for (facts, reading) in [
            (queue(Some(ms(200)), 0, 0, 0), Reading::Strain),
            (queue(Some(ms(199)), 0, 0, 0), Reading::Steady),
            (queue(Some(ms(50)), 19, 0, 0), Reading::Unknown),
            (queue(Some(ms(50)), 19, 1, 0), Reading::Slack),
            (queue(None, 20, 0, 0), Reading::Slack),
            (queue(None, 0, 0, 0), Reading::Unknown),
            (attempts(100, 0, 0), Reading::Unknown),
        ] {
            assert_eq!(rule.read(&facts), reading, "{facts}");
        }
    }

    /// L2
    #[test]
    fn l2_the_rejection_rule_reads_lack_of_room_and_of_time() {
        let rule = rejections();
        for (facts, reading) in [
            (queue(None, 19, 0, 0), Reading::Unknown),
            (queue(None, 95, 5, 0), Reading::Strain),
            (queue(None, 100, 0, 5), Reading::Strain),
            (queue(None, 20, 0, 4), Reading::Steady), // 20 %, but 4
            (queue(None, 80, 1, 0), Reading::Slack),
            (queue(None, 0, 0, 20), Reading::Strain), // admitted in an earlier window
        ] {
            assert_eq!(rule.read(&facts), reading, "{facts}");
        }
    }

    /// L2: slack lies strictly on the healthy side of strain, and what can never work names its field.
    #[test]
    fn l2_thresholds_are_checked_against_each_other() {
        fn field(rule: &dyn Rule) -> &'static str {
            rule.check().expect_err("can never work").field()
        }
        assert_eq!(field(&failure_ratio().slack(0.2)), "slack");
        assert_eq!(field(&failure_ratio().slack(-0.1)), "slack");
        assert_eq!(field(&failure_ratio().slack(f64::NAN)), "slack");
        assert_eq!(field(&failure_ratio().strain(f64::NAN)), "strain");
        assert_eq!(field(&failure_ratio().strain(0.0)), "strain");
        assert_eq!(field(&rejections().strain(1.1)), "strain");
        assert_eq!(field(&rejections().min_samples(0)), "min_samples");
        assert_eq!(field(&queue_wait().slack(ms(200))), "slack");
        assert_eq!(field(&queue_wait().strain(Duration::ZERO)), "slack");
        assert_eq!(field(&queue_wait().min_samples(0)), "min_samples");
        assert_eq!(field(&latency(0.9).strain(ms(5)).slack(ms(6))), "slack");
        assert_eq!(field(&latency(0.0)), "quantile");
        assert_eq!(field(&latency(f64::NAN)), "quantile");
        assert_eq!(field(&latency(0.9).min_samples(0)), "min_samples");
        let error = queue_wait().strain(ms(100)).slack(ms(300)).check().unwrap_err();
        assert_eq!(error.to_string(), "slack is 300ms (strain: 100ms), but must be below strain");
        for rule in [failure_ratio().strain(0.1), rejections().strain(1.0)] {
            assert_eq!(rule.check(), Ok(()));
        }
        assert_eq!(queue_wait().strain(Duration::MAX).check(), Ok(()));
        assert_eq!(latency(1.0).strain(ms(1)).check(), Ok(()));
    }

    #[test]
    fn strain_alone_moves_the_other_threshold_along() {
        let rule = queue_wait().strain(ms(40));
        assert_eq!(rule.read(&queue(Some(ms(10)), 20, 0, 0)), Reading::Slack);
        assert_eq!(rule.read(&queue(Some(ms(11)), 20, 0, 0)), Reading::Steady);
    }
}
