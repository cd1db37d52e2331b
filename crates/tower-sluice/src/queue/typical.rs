//! How long an attempt takes, typically.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// A moving average of attempt times; each sample weighs a sixteenth.
#[derive(Debug, Default)]
pub(super) struct Typical {
    /// Nanoseconds; zero while there is no sample.
    average: AtomicU64,
}

impl Typical {
    pub(super) fn sample(&self, took: Duration) {
        let took = (took.as_nanos().min(u128::from(u64::MAX / 2)) as u64).max(1);
        let fold = |average: u64| match average {
            0 => took,
            average if took >= average => average + (took - average) / 16,
            average => average - (average - took).div_ceil(16),
        };
        // Always `Some`.
        let _ =
            self.average.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |average| Some(fold(average)));
    }

    /// Zero with no sample.
    pub(super) fn get(&self) -> Duration {
        Duration::from_nanos(self.average.load(Ordering::Relaxed))
    }
}

#[cfg(all(test, not(sluice_loom)))]
mod tests {
    use super::*;

    #[test]
    fn q7_the_average_starts_at_the_first_sample_and_moves_by_a_sixteenth() {
        let typical = Typical::default();
        assert_eq!(typical.get(), Duration::ZERO);
        typical.sample(Duration::from_millis(160));
        assert_eq!(typical.get(), Duration::from_millis(160));
        typical.sample(Duration::ZERO);
        assert_eq!(typical.get(), Duration::from_nanos(150_000_000));
        typical.sample(Duration::MAX);
        assert!(typical.get() > Duration::from_secs(1 << 28));
    }
}
