use std::iter::FusedIterator;
use std::time::Duration;

use crate::draw::{Draw, Sample};
use crate::invalid::InvalidBackoff;

/// How a delay is spread, so that callers that failed together do not come back together.
///
/// `v` is the backoff's [`value`](Backoff::value) for the step, never more than `max`. Every range is cut off at
/// `max` before a number is drawn from it: no delay exceeds `max`, and those at `max` are still spread.
///
/// The first three and the last are those of Marc Brooker, "Exponential Backoff And Jitter", AWS Architecture Blog,
/// 2015.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Jitter {
    /// `v` itself.
    None,
    /// Uniform on (0, v]. The default: callers that failed together are spread the most.
    #[default]
    Full,
    /// Uniform on [v/2, v].
    Equal,
    /// Uniform on [v(1 - j), v(1 + j)], j from 0 to 1; [`Jitter::PROPORTIONAL`] is this at 0.25.
    Proportional(f64),
    /// Uniform on [base, min(max, 3 × previous)], where `previous` is the delay drawn before, `base` at first.
    /// It grows by its own draws; the factor has no part in it.
    Decorrelated,
}

impl Jitter {
    /// A quarter up and down.
    pub const PROPORTIONAL: Self = Self::Proportional(0.25);
}

/// How delays grow, and how they are spread.
///
/// Step `n`, from 0, has the value `v(n) = min(max, base × factor^n)`; a [`Jitter`] turns it into a delay. There is
/// no clock, no state and no attempt limit in it: a `Backoff` is a plain value, and [`delays`](Self::delays) its
/// delays for one call.
///
/// Defaults: factor 2, [`Jitter::Full`].
///
/// ```
/// use std::time::Duration;
/// use tower_sluice_backoff::{Backoff, Jitter};
///
/// let backoff = Backoff::exponential(Duration::from_millis(100), Duration::from_secs(1)).jitter(Jitter::None);
/// let delays: Vec<_> = backoff.delays(7, 0).take(5).map(|delay| delay.as_millis()).collect();
/// assert_eq!(delays, [100, 200, 400, 800, 1_000]);
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Backoff {
    base: Duration,
    max: Duration,
    factor: f64,
    jitter: Jitter,
}

impl Backoff {
    /// Delays that double from `base` up to `max`, with full jitter.
    ///
    /// A `base` of zero means no delay at all. A `max` of [`Duration::MAX`] means no cap.
    ///
    /// # Panics
    ///
    /// If `max` is less than `base`; see [`try_exponential`](Self::try_exponential).
    #[track_caller]
    pub fn exponential(base: Duration, max: Duration) -> Self {
        or_panic(Self::try_exponential(base, max))
    }

    /// [`exponential`](Self::exponential) for values from a configuration.
    ///
    /// # Errors
    ///
    /// If `max` is less than `base`.
    pub fn try_exponential(base: Duration, max: Duration) -> Result<Self, InvalidBackoff> {
        if max < base {
            return Err(InvalidBackoff::new("max", max, "at least base"));
        }
        Ok(Self { base, max, factor: 2.0, jitter: Jitter::Full })
    }

    /// For calls within a data centre: from 100 ms up to 5 s, full jitter.
    pub const fn rpc() -> Self {
        Self {
            base: Duration::from_millis(100),
            max: Duration::from_secs(5),
            factor: 2.0,
            jitter: Jitter::Full,
        }
    }

    /// For other people's services: from 1 s up to 30 s, full jitter.
    pub const fn external() -> Self {
        Self { base: Duration::from_secs(1), max: Duration::from_secs(30), factor: 2.0, jitter: Jitter::Full }
    }

    /// For what a person waits for: from 1 s up to 16 s, a quarter up and down, so that a wait is about as long as
    /// was said.
    pub const fn web() -> Self {
        Self {
            base: Duration::from_secs(1),
            max: Duration::from_secs(16),
            factor: 2.0,
            jitter: Jitter::PROPORTIONAL,
        }
    }

    /// For long-lived connections: from 500 ms up to 30 s, equal jitter, so that no wait is next to nothing.
    pub const fn connection() -> Self {
        Self {
            base: Duration::from_millis(500),
            max: Duration::from_secs(30),
            factor: 2.0,
            jitter: Jitter::Equal,
        }
    }

    /// What a value is multiplied by to give the next; 2 unless set.
    ///
    /// # Panics
    ///
    /// If `factor` is not a finite number of at least 1; see [`try_factor`](Self::try_factor).
    #[must_use]
    #[track_caller]
    pub fn factor(self, factor: f64) -> Self {
        or_panic(self.try_factor(factor))
    }

    /// [`factor`](Self::factor) for a value from a configuration.
    ///
    /// # Errors
    ///
    /// If `factor` is not a finite number of at least 1.
    pub fn try_factor(self, factor: f64) -> Result<Self, InvalidBackoff> {
        if factor.is_finite() && factor >= 1.0 {
            Ok(Self { factor, ..self })
        } else {
            Err(InvalidBackoff::new("factor", factor, "a finite number of at least 1"))
        }
    }

    /// How delays are spread; [`Jitter::Full`] unless set.
    ///
    /// # Panics
    ///
    /// If the share of [`Jitter::Proportional`] is not within 0 to 1; see [`try_jitter`](Self::try_jitter).
    #[must_use]
    #[track_caller]
    pub fn jitter(self, jitter: Jitter) -> Self {
        or_panic(self.try_jitter(jitter))
    }

    /// [`jitter`](Self::jitter) for a value from a configuration.
    ///
    /// # Errors
    ///
    /// If the share of [`Jitter::Proportional`] is not within 0 to 1.
    pub fn try_jitter(self, jitter: Jitter) -> Result<Self, InvalidBackoff> {
        match jitter {
            Jitter::Proportional(share) if !(0.0..=1.0).contains(&share) => {
                Err(InvalidBackoff::new("jitter", share, "a share from 0 to 1"))
            }
            _ => Ok(Self { jitter, ..self }),
        }
    }

    /// The value of step 0.
    pub const fn base(&self) -> Duration {
        self.base
    }

    /// The cap: no value and no delay is longer.
    pub const fn max(&self) -> Duration {
        self.max
    }

    /// `v(n) = min(max, base × factor^n)`: the value of step `n` before it is spread.
    ///
    /// Exact for whole factors, else rounded to a nanosecond as far as an `f64` can tell. It saturates at `max` for
    /// every `n`, and is zero only where `base` is.
    pub fn value(&self, n: u32) -> Duration {
        from_nanos(self.nanos(n))
    }

    /// The delay of step `n`: its [`value`](Self::value), spread by `sample`.
    ///
    /// `previous` is the delay before this one, or [`base`](Self::base) where there was none; only
    /// [`Jitter::Decorrelated`] looks at it, and at nothing less than `base`. Steps are the caller's to count, from
    /// 0; each wants a sample of its own.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_sluice_backoff::{Backoff, Draw};
    ///
    /// let backoff = Backoff::connection();
    /// let delay = backoff.delay(4, backoff.base(), Draw { seed: 7, call: 0 }.sample(4));
    /// assert!(Duration::from_secs(4) <= delay && delay <= Duration::from_secs(8));
    /// ```
    pub fn delay(&self, n: u32, previous: Duration, sample: Sample) -> Duration {
        let (low, high) = self.range(n, previous.as_nanos());
        from_nanos(sample.nanos_within(low, high))
    }

    /// The delays of one call: an endless iterator, its own for each call number.
    ///
    /// The same seed and call give the same delays. Without a seed to keep, take [`random_seed`](crate::random_seed).
    pub const fn delays(self, seed: u64, call: u64) -> Delays {
        Delays { backoff: self, draw: Draw { seed, call }, step: 0, previous: self.base }
    }

    /// The shortest and the longest delay of step `n`, in nanoseconds.
    fn range(&self, n: u32, previous: u128) -> (u128, u128) {
        let max = self.max.as_nanos();
        match self.jitter {
            Jitter::None => {
                let v = self.nanos(n);
                (v, v)
            }
            Jitter::Full => {
                let v = self.nanos(n);
                (v.min(1), v)
            }
            Jitter::Equal => {
                let v = self.nanos(n);
                (v.div_ceil(2), v)
            }
            Jitter::Proportional(share) => {
                let v = self.nanos(n);
                let width = ((v as f64 * share).round() as u128).min(v);
                // The whole of `v` down would be no delay at all.
                ((v - width).max(v.min(1)), v.saturating_add(width).min(max))
            }
            Jitter::Decorrelated => {
                let base = self.base.as_nanos();
                (base, previous.max(base).saturating_mul(3).min(max))
            }
        }
    }

    fn nanos(&self, n: u32) -> u128 {
        let (base, max) = (self.base.as_nanos(), self.max.as_nanos());
        if base == 0 {
            // Zero times an infinite power would be no number.
            return 0;
        }
        // A cast from a float saturates, and so does each step here: what is too large ends at `max`.
        let grown = if self.factor.fract() == 0.0 {
            (self.factor as u128).saturating_pow(n).saturating_mul(base)
        } else {
            (base as f64 * self.factor.powf(f64::from(n))).round() as u128
        };
        // `base` as a float may have been rounded down.
        grown.max(base).min(max)
    }
}

/// The delays of one call, made by [`Backoff::delays`]: endless, without a clock.
#[derive(Clone, Debug)]
pub struct Delays {
    backoff: Backoff,
    draw: Draw,
    step: u64,
    previous: Duration,
}

impl Iterator for Delays {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        let n = u32::try_from(self.step).unwrap_or(u32::MAX);
        self.previous = self.backoff.delay(n, self.previous, self.draw.sample(self.step));
        // Steps beyond `u32::MAX` are at `max`, or grow no further; each still has a sample of its own.
        self.step = self.step.wrapping_add(1);
        Some(self.previous)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (usize::MAX, None)
    }
}

impl FusedIterator for Delays {}

/// Saturates at [`Duration::MAX`].
pub(crate) fn from_nanos(nanos: u128) -> Duration {
    const SECOND: u128 = 1_000_000_000;
    u64::try_from(nanos / SECOND)
        .map_or(Duration::MAX, |seconds| Duration::new(seconds, (nanos % SECOND) as u32))
}

#[track_caller]
fn or_panic(checked: Result<Backoff, InvalidBackoff>) -> Backoff {
    match checked {
        Ok(backoff) => backoff,
        Err(invalid) => panic!("{invalid}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The ends of a range, in milliseconds.
    fn ends(backoff: Backoff, n: u32, previous: Duration) -> (f64, f64) {
        let (low, high) = backoff.range(n, previous.as_nanos());
        (low as f64 / 1e6, high as f64 / 1e6)
    }

    // R2, R4: to the nanosecond, which no number of draws can show.
    #[test]
    fn the_ends_of_each_range_are_exact() {
        let base = Duration::from_millis(500);
        assert_eq!(ends(Backoff::connection(), 4, base), (4_000.0, 8_000.0));
        assert_eq!(ends(Backoff::rpc(), 0, base), (1e-6, 100.0));
        assert_eq!(ends(Backoff::web(), 0, base), (750.0, 1_250.0));
        assert_eq!(ends(Backoff::web(), 4, base), (12_000.0, 16_000.0));
        let decorrelated = Backoff::connection().jitter(Jitter::Decorrelated);
        assert_eq!(ends(decorrelated, 9, base), (500.0, 1_500.0));
        assert_eq!(ends(decorrelated, 9, Duration::from_secs(20)), (500.0, 30_000.0));
    }

    #[test]
    fn a_nanosecond_is_not_halved_to_nothing() {
        let nano = Duration::from_nanos(1);
        for jitter in [Jitter::None, Jitter::Full, Jitter::Equal, Jitter::Proportional(1.0)] {
            assert_eq!(Backoff::exponential(nano, nano).jitter(jitter).range(0, 1), (1, 1), "{jitter:?}");
        }
    }
}
