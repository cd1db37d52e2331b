use std::ops::RangeInclusive;
use std::time::Duration;

use crate::backoff::from_nanos;

/// A seed from the process's entropy, for those that were given none.
pub fn random_seed() -> u64 {
    rand::random()
}

/// The random series of one call: its numbers are derived from the two fields alone.
///
/// Nothing is stored, and nothing drawn before it is needed: the number for a step is a function of seed, call and
/// step. The same three give the same number; two calls under one seed never share a series.
///
/// ```
/// use tower_sluice_backoff::Draw;
///
/// let first = Draw { seed: 7, call: 0 };
/// assert_eq!(first.sample(3), Draw { seed: 7, call: 0 }.sample(3));
/// assert_ne!(first.sample(3), Draw { seed: 7, call: 1 }.sample(3));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Draw {
    /// Shared by all calls of a layer.
    pub seed: u64,
    /// The number of the call, unlike that of any other call under this seed.
    pub call: u64,
}

impl Draw {
    /// The number of this series for `step`.
    ///
    /// The generator is SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators", OOPSLA
    /// 2014), started where seed and call say. Not for secrets.
    pub const fn sample(self, step: u64) -> Sample {
        // Both the multiplication by an odd number and `mix` map one to one, so that two calls start in two places.
        let start = mix(mix(self.seed).wrapping_add(self.call.wrapping_mul(GOLDEN)));
        let at = start.wrapping_add(step.wrapping_mul(GOLDEN.wrapping_mul(2)));
        let high = mix(at.wrapping_add(GOLDEN));
        let low = mix(at.wrapping_add(GOLDEN.wrapping_mul(2)));
        Sample(((high as u128) << 64) | low as u128)
    }
}

/// One random number, to be laid on a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Sample(u128);

impl Sample {
    /// A duration drawn uniformly from `range`, both ends included, in whole nanoseconds. The start where the range
    /// is empty.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_sluice_backoff::Draw;
    ///
    /// let (low, high) = (Duration::from_secs(2), Duration::from_secs(3));
    /// let drawn = Draw { seed: 7, call: 0 }.sample(0).within(low..=high);
    /// assert!(low <= drawn && drawn <= high);
    /// ```
    pub fn within(self, range: RangeInclusive<Duration>) -> Duration {
        from_nanos(self.nanos_within(range.start().as_nanos(), range.end().as_nanos()))
    }

    pub(crate) const fn nanos_within(self, low: u128, high: u128) -> u128 {
        // A `Duration` has less than 2^94 nanoseconds, so the remainder favours no value by more than 2^-34, and
        // none by more than 2^-93 where the range is shorter than 30 s.
        low.saturating_add(self.0 % high.saturating_sub(low).saturating_add(1))
    }
}

/// 2^64 divided by the golden ratio, the step of SplitMix64.
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// SplitMix64's finalizer.
const fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_generator_is_splitmix64() {
        // Reference: the first outputs for the state 1234567.
        let outputs = [1_u64, 2, 3].map(|i| mix(1_234_567_u64.wrapping_add(GOLDEN.wrapping_mul(i))));
        assert_eq!(
            outputs,
            [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423]
        );
    }

    #[test]
    fn both_ends_of_a_range_are_drawn_and_an_empty_one_gives_its_start() {
        let nanos = |n| Duration::from_nanos(n);
        let drawn: std::collections::BTreeSet<_> =
            (0..200).map(|k| Draw { seed: 1, call: 2 }.sample(k).within(nanos(5)..=nanos(8))).collect();
        assert_eq!(drawn.into_iter().collect::<Vec<_>>(), [5, 6, 7, 8].map(nanos));
        let sample = Draw { seed: 1, call: 2 }.sample(0);
        assert_eq!(sample.within(nanos(5)..=nanos(5)), nanos(5));
        assert_eq!(sample.within(nanos(5)..=nanos(4)), nanos(5));
        assert_eq!(sample.within(Duration::MAX..=Duration::MAX), Duration::MAX);
    }

    #[test]
    fn the_whole_range_of_durations_can_be_drawn_from() {
        let half = Duration::MAX / 2;
        let above = (0..1_000)
            .filter(|&k| Draw { seed: 9, call: 0 }.sample(k).within(Duration::ZERO..=Duration::MAX) > half)
            .count();
        assert!((450..=550).contains(&above), "{above}");
    }
}
