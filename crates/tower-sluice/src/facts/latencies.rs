//! How long attempts took, as counts in buckets of bounded relative width.

use std::time::Duration;

/// Each power of two is cut into this many buckets, so a bucket is at most a sixteenth of its value wide.
const PARTS: u64 = 16;
const PART_BITS: u32 = PARTS.trailing_zeros();
/// A bucket's unit is 2^10 ns = 1.024 µs: a shift instead of a division on the way of every attempt.
const UNIT_BITS: u32 = 10;
/// The largest value told apart has this many bits in units: 2^44 ns, or 4 h 53 min.
const VALUE_BITS: u32 = 34;

/// Latencies, counted in buckets: exact counts, values known to 3.2 %.
///
/// Every value reported is the middle of its bucket and lies within 1/32 (3.125 %) of a latency that was counted;
/// below 16.4 µs, where buckets are 1.024 µs wide, within 0.512 µs. Latencies of more than 4 h 53 min count as that.
/// The buckets are those of a log-linear histogram: sixteen to each power of two.
///
/// ```
/// use std::time::Duration;
/// use tower_sluice::facts::Latencies;
///
/// let mut latencies = Latencies::default();
/// for ms in 1..=100 {
///     latencies.record(Duration::from_millis(ms));
/// }
/// assert_eq!(latencies.count(), 100);
/// let p95 = latencies.quantile(0.95).unwrap().as_secs_f64();
/// assert!((p95 / 0.095 - 1.0).abs() <= 1.0 / 32.0);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(from = "Vec<(u64, u64)>", into = "Vec<(u64, u64)>"))]
pub struct Latencies {
    /// Bucket and count, of those that hold any, by bucket.
    counts: Vec<(u16, u64)>,
}

impl Latencies {
    /// How many buckets there are.
    pub const BUCKETS: usize = ((VALUE_BITS - PART_BITS + 1) as usize) << PART_BITS;

    /// The bucket that `latency` belongs to, below [`BUCKETS`](Self::BUCKETS). For sources that keep counts of
    /// their own, such as an array of atomics.
    #[inline]
    pub const fn bucket(latency: Duration) -> usize {
        let seconds = latency.as_secs();
        // 2^44 ns is less than 17 593 s: beyond it, and safely below overflow, all is the last bucket.
        if seconds >= 17_593 {
            return Self::BUCKETS - 1;
        }
        let units = (seconds * 1_000_000_000 + latency.subsec_nanos() as u64) >> UNIT_BITS;
        if units < PARTS {
            return units as usize;
        }
        let shift = units.ilog2() - PART_BITS;
        let bucket = (((shift as u64) << PART_BITS) + (units >> shift)) as usize;
        if bucket < Self::BUCKETS { bucket } else { Self::BUCKETS - 1 }
    }

    /// The middle of a bucket.
    const fn middle(bucket: u16) -> Duration {
        let bucket = bucket as u64;
        let half_unit = 1 << (UNIT_BITS - 1);
        if bucket < PARTS {
            return Duration::from_nanos((bucket << UNIT_BITS) + half_unit);
        }
        let shift = (bucket >> PART_BITS) - 1;
        let units = (PARTS + (bucket & (PARTS - 1))) << shift;
        Duration::from_nanos((units << UNIT_BITS) + (half_unit << shift))
    }

    /// Latencies from the counts of buckets 0, 1, 2 and so on.
    pub fn from_buckets(counts: impl IntoIterator<Item = u64>) -> Self {
        let counts = (0..Self::BUCKETS as u16).zip(counts).filter(|&(_, count)| count > 0).collect();
        Self { counts }
    }

    /// Counts one latency.
    pub fn record(&mut self, latency: Duration) {
        self.record_bucket(Self::bucket(latency) as u16, 1);
    }

    fn record_bucket(&mut self, bucket: u16, count: u64) {
        match self.counts.binary_search_by_key(&bucket, |&(bucket, _)| bucket) {
            Ok(at) => self.counts[at].1 = self.counts[at].1.saturating_add(count),
            Err(at) => self.counts.insert(at, (bucket, count)),
        }
    }

    /// How many latencies were counted.
    pub fn count(&self) -> u64 {
        self.counts.iter().fold(0, |sum, &(_, count)| sum.saturating_add(count))
    }

    /// The latency that a share `q` of those counted did not exceed; `None` where none was counted.
    ///
    /// That is the latency of rank ⌈q · count⌉, counted from 1; a `q` outside 0 to 1 is taken as the nearer end.
    pub fn quantile(&self, q: f64) -> Option<Duration> {
        let count = self.count();
        // A NaN becomes rank 0 and so the first.
        let rank = ((q * count as f64).ceil() as u64).clamp(1, count.max(1));
        let mut seen = 0_u64;
        self.counts
            .iter()
            .find(|&&(_, count)| {
                seen = seen.saturating_add(count);
                seen >= rank
            })
            .map(|&(bucket, _)| Self::middle(bucket))
    }

    pub(super) fn add(&mut self, other: &Self) {
        for &(bucket, count) in &other.counts {
            self.record_bucket(bucket, count);
        }
    }

    pub(super) fn since(&self, earlier: &Self) -> Self {
        let mut before = earlier.counts.iter().peekable();
        let counts = self.counts.iter().filter_map(|&(bucket, count)| {
            while before.next_if(|&&(old, _)| old < bucket).is_some() {}
            let old = before.next_if(|&&(old, _)| old == bucket).map_or(0, |&(_, count)| count);
            let new = count.saturating_sub(old);
            (new > 0).then_some((bucket, new))
        });
        Self { counts: counts.collect() }
    }
}

/// Nanoseconds and count of each bucket that holds any: the form in which latencies are serialised.
impl From<Latencies> for Vec<(u64, u64)> {
    fn from(latencies: Latencies) -> Self {
        let nanos = |bucket| u64::try_from(Latencies::middle(bucket).as_nanos()).unwrap_or(u64::MAX);
        latencies.counts.into_iter().map(|(bucket, count)| (nanos(bucket), count)).collect()
    }
}

/// Latencies from pairs of nanoseconds and count, in any order.
impl From<Vec<(u64, u64)>> for Latencies {
    fn from(pairs: Vec<(u64, u64)>) -> Self {
        let mut latencies = Self::default();
        for (nanos, count) in pairs.into_iter().filter(|&(_, count)| count > 0) {
            latencies.record_bucket(Self::bucket(Duration::from_nanos(nanos)) as u16, count);
        }
        latencies
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Half a bucket: 1/32 of the value, or half a unit where buckets are a unit wide.
    fn within_bound(reported: Duration, exact: Duration) -> bool {
        let error = reported.abs_diff(exact).as_nanos();
        error * 32 <= exact.as_nanos() || error <= 512
    }

    #[test]
    fn buckets_follow_each_other_without_gap_or_overlap() {
        for bucket in 1..Latencies::BUCKETS as u16 {
            let (before, middle) = (Latencies::middle(bucket - 1), Latencies::middle(bucket));
            assert!(before < middle);
            assert_eq!(Latencies::bucket(middle), usize::from(bucket));
            // The edge between two buckets is half a width from both middles.
            let parts = u64::from(bucket);
            let edge = if parts < 16 { parts << 10 } else { (16 + parts % 16) << (10 + parts / 16 - 1) };
            assert_eq!(Latencies::bucket(Duration::from_nanos(edge)), usize::from(bucket));
            assert_eq!(Latencies::bucket(Duration::from_nanos(edge - 1)), usize::from(bucket) - 1);
        }
    }

    #[test]
    fn the_longest_latencies_share_the_last_bucket() {
        let last = Latencies::BUCKETS - 1;
        for latency in [Duration::from_nanos((1 << 44) - 1), Duration::from_nanos(1 << 44), Duration::MAX] {
            assert_eq!(Latencies::bucket(latency), last);
        }
    }

    #[test]
    fn nothing_counted_has_no_quantile_and_any_q_is_accepted() {
        let mut latencies = Latencies::default();
        assert_eq!(latencies.quantile(0.5), None);
        latencies.record(Duration::from_millis(8));
        let only = latencies.quantile(0.5);
        assert!(only.is_some());
        for q in [-1.0, 0.0, 1.0, 2.0, f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            assert_eq!(latencies.quantile(q), only);
        }
    }

    proptest! {
        #[test]
        fn a_quantile_is_within_the_stated_error_of_the_exact_one(
            mut nanos in prop::collection::vec(
                prop_oneof![0_u64..100_000, 0_u64..10_000_000_000, 0_u64..(1 << 44)], 1..200),
            q in 0.0_f64..=1.0,
        ) {
            let mut latencies = Latencies::default();
            for &n in &nanos {
                latencies.record(Duration::from_nanos(n));
            }
            nanos.sort_unstable();
            let rank = ((q * nanos.len() as f64).ceil() as usize).clamp(1, nanos.len());
            let exact = Duration::from_nanos(nanos[rank - 1]);
            let reported = latencies.quantile(q).unwrap();
            prop_assert!(within_bound(reported, exact), "{reported:?} for {exact:?}");
        }

        #[test]
        fn what_was_added_since_is_what_is_told(
            before in prop::collection::vec(0_u64..10_000_000, 0..50),
            after in prop::collection::vec(0_u64..10_000_000, 0..50),
        ) {
            let (mut total, mut added) = (Latencies::default(), Latencies::default());
            for n in before {
                total.record(Duration::from_nanos(n));
            }
            let earlier = total.clone();
            for n in after {
                total.record(Duration::from_nanos(n));
                added.record(Duration::from_nanos(n));
            }
            prop_assert_eq!(total.since(&earlier), added.clone());
            let mut sum = earlier;
            sum.add(&added);
            prop_assert_eq!(sum, total.clone());
            prop_assert_eq!(Latencies::from(Vec::from(total.clone())), total);
        }
    }
}
