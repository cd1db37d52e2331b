//! Medians, quantiles and seeded numbers.

/// The `q`-quantile of `values`, between the two nearest where it falls between; 0 of none.
pub fn quantile(values: &[f64], q: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let Some(last) = sorted.len().checked_sub(1) else { return 0.0 };
    let at = q * last as f64;
    let (low, high) = (at.floor() as usize, at.ceil() as usize);
    sorted[low] + (sorted[high] - sorted[low]) * (at - low as f64)
}

/// The value in the middle.
pub fn median(values: &[f64]) -> f64 {
    quantile(values, 0.5)
}

/// The mean; 0 of none.
pub fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

/// A well-mixed number that depends on `words` alone (the finaliser of splitmix64, once a word): "random" numbers that
/// do not depend on the order in which things run.
pub fn hash(words: &[u64]) -> u64 {
    let mut state = 0x9E37_79B9_7F4A_7C15u64;
    for &word in words {
        state = state.wrapping_add(word).wrapping_add(0x9E37_79B9_7F4A_7C15);
        state = (state ^ (state >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        state = (state ^ (state >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        state ^= state >> 31;
    }
    state
}

/// Uniform on [0, 1), from [`hash`].
pub fn unit(words: &[u64]) -> f64 {
    (hash(words) >> 11) as f64 / (1u64 << 53) as f64
}

/// A stream of seeded numbers.
#[derive(Clone, Debug)]
pub struct Random {
    seed: u64,
    step: u64,
}

impl Random {
    /// The stream of these words.
    pub fn new(words: &[u64]) -> Self {
        Self { seed: hash(words), step: 0 }
    }

    /// Any number.
    pub fn next(&mut self) -> u64 {
        self.step += 1;
        hash(&[self.seed, self.step])
    }

    /// Uniform on [0, 1).
    pub fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Exponentially distributed.
    pub fn exponential(&mut self, mean: f64) -> f64 {
        -mean * (1.0 - self.unit()).ln()
    }

    /// Normally distributed (Box and Muller's transform; its second number is not used).
    pub fn normal(&mut self, mean: f64, deviation: f64) -> f64 {
        let radius = (-2.0 * (1.0 - self.unit()).ln()).sqrt();
        mean + deviation * radius * (std::f64::consts::TAU * self.unit()).cos()
    }
}

/// The most of `times` that fall into any window of `width`, both in the same unit.
pub fn densest(times: &[u64], width: u64) -> usize {
    let mut sorted = times.to_vec();
    sorted.sort_unstable();
    let mut first = 0;
    let mut most = 0;
    for (last, &time) in sorted.iter().enumerate() {
        while time - sorted[first] >= width {
            first += 1;
        }
        most = most.max(last + 1 - first);
    }
    most
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_lie_between_their_neighbours() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(quantile(&[0.0, 10.0], 0.25), 2.5);
        assert_eq!(median(&[]), 0.0);
    }

    #[test]
    fn the_densest_window_leaves_out_its_far_end() {
        assert_eq!(densest(&[0, 9, 10, 30], 10), 2);
        assert_eq!(densest(&[5, 5, 5, 14, 15], 10), 4);
        assert_eq!(densest(&[], 10), 0);
    }
}
