//! R2: how delays are spread.

use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use tower_sluice_backoff::{Backoff, Draw, Jitter};

const DRAWS: u64 = 20_000;

fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

/// The delays of step `n` of so many calls, in order.
fn delays(backoff: Backoff, n: u32, previous: Duration) -> Vec<Duration> {
    let mut delays: Vec<_> = (0..DRAWS)
        .map(|call| backoff.delay(n, previous, Draw { seed: 11, call }.sample(u64::from(n))))
        .collect();
    delays.sort_unstable();
    delays
}

/// Within the range, reaching its ends, and every tenth of it equally often (by 5 standard deviations).
#[track_caller]
fn assert_uniform(sorted: &[Duration], low: Duration, high: Duration) {
    let (first, last) = (sorted[0], sorted[sorted.len() - 1]);
    assert!(low <= first && last <= high, "{first:?} to {last:?}");
    let width = high - low;
    assert!(first <= low + width / 1_000 && last >= high - width / 1_000, "{first:?} to {last:?}");
    for tenth in 0..10 {
        let to = low + width * (tenth + 1) / 10;
        let from = low + width * tenth / 10;
        let count = sorted.iter().filter(|delay| from < **delay && **delay <= to).count();
        assert!((1_788..=2_212).contains(&count), "{count} in tenth {tenth}");
    }
}

#[test]
fn r2_full_is_uniform_from_above_zero_to_the_value() {
    let backoff = Backoff::exponential(ms(100), secs(5));
    assert_uniform(&delays(backoff, 3, ms(100)), Duration::from_nanos(1), ms(800));
}

#[test]
fn r2_equal_is_uniform_on_the_upper_half() {
    let backoff = Backoff::exponential(ms(100), secs(5)).jitter(Jitter::Equal);
    assert_uniform(&delays(backoff, 3, ms(100)), ms(400), ms(800));
}

#[test]
fn r2_proportional_is_uniform_on_both_sides() {
    let backoff = Backoff::exponential(ms(100), secs(5));
    assert_uniform(&delays(backoff.jitter(Jitter::PROPORTIONAL), 3, ms(100)), ms(600), ms(1_000));
    assert_uniform(&delays(backoff.jitter(Jitter::Proportional(0.5)), 3, ms(100)), ms(400), ms(1_200));
}

#[test]
fn r2_decorrelated_is_uniform_up_to_three_times_the_previous() {
    let backoff = Backoff::exponential(ms(100), secs(5)).jitter(Jitter::Decorrelated);
    assert_uniform(&delays(backoff, 0, backoff.base()), ms(100), ms(300));
    assert_uniform(&delays(backoff, 7, ms(1_000)), ms(100), ms(3_000));
    assert_uniform(&delays(backoff, 7, ms(4_000)), ms(100), ms(5_000));
    // Nothing less than base counts as the previous one.
    assert_uniform(&delays(backoff, 7, ms(1)), ms(100), ms(300));
}

#[test]
fn r2_decorrelated_starts_at_base_and_follows_its_own_draws() {
    let backoff = Backoff::exponential(ms(100), secs(60)).jitter(Jitter::Decorrelated);
    for call in 0..200 {
        let mut previous = backoff.base();
        for delay in backoff.delays(3, call).take(30) {
            assert!(backoff.base() <= delay && delay <= (previous * 3).min(secs(60)));
            previous = delay;
        }
    }
}

#[test]
fn r2_none_is_the_value() {
    let backoff = Backoff::exponential(ms(100), secs(5)).jitter(Jitter::None);
    assert!(delays(backoff, 3, ms(100)).iter().all(|delay| *delay == ms(800)));
}

#[test]
fn case_c8_a_quarter_up_does_not_exceed_the_cap() {
    let backoff = Backoff::exponential(ms(100), ms(500)).jitter(Jitter::PROPORTIONAL);
    assert_uniform(&delays(backoff, 2, ms(100)), ms(300), ms(500));
    assert!(backoff.delays(5, 0).take(10_000).all(|delay| delay <= ms(500)));
}

#[test]
fn case_c9_delays_at_the_cap_are_spread_by_a_quarter_of_it_at_least() {
    for jitter in [Jitter::Full, Jitter::Equal, Jitter::PROPORTIONAL, Jitter::Decorrelated] {
        let backoff = Backoff::exponential(ms(100), secs(30)).jitter(jitter);
        let sorted = delays(backoff, 40, secs(30));
        assert!(sorted[sorted.len() - 1] - sorted[0] >= ms(7_490), "{jitter:?}");
    }
}

#[test]
fn case_c10_jitter_as_wide_as_the_delay_leaves_some_of_it() {
    let backoff = Backoff::exponential(ms(100), secs(5)).jitter(Jitter::Proportional(1.0));
    assert_uniform(&delays(backoff, 0, ms(100)), Duration::from_nanos(1), ms(200));
}

fn jitter() -> impl Strategy<Value = Jitter> {
    prop_oneof![
        Just(Jitter::None),
        Just(Jitter::Full),
        Just(Jitter::Equal),
        (0.0..=1.0).prop_map(Jitter::Proportional),
        Just(Jitter::Decorrelated),
    ]
}

fn duration() -> impl Strategy<Value = Duration> {
    prop_oneof![
        Just(Duration::from_nanos(1)),
        Just(Duration::MAX),
        (1..20_000_u64).prop_map(Duration::from_millis),
        (any::<u64>(), 1..1_000_000_000_u32).prop_map(|(s, n)| Duration::new(s, n)),
        (1..u64::MAX).prop_map(Duration::from_nanos),
    ]
}

fn config() -> ProptestConfig {
    ProptestConfig {
        cases: 4_096,
        rng_seed: RngSeed::Fixed(1),
        failure_persistence: None,
        ..Default::default()
    }
}

proptest! {
    #![proptest_config(config())]

    // R2, case_c6
    #[test]
    fn no_draw_is_zero_or_leaves_its_range(
        (a, b, previous) in (duration(), duration(), duration()),
        jitter in jitter(),
        factor in prop_oneof![Just(1.0), Just(2.0), Just(f64::MAX), 1.0..9.0],
        n in prop_oneof![0..100_u32, any::<u32>()],
        (seed, call) in (any::<u64>(), any::<u64>()),
    ) {
        let (base, max) = (a.min(b), a.max(b));
        let backoff = Backoff::exponential(base, max).factor(factor).jitter(jitter);
        let delay = backoff.delay(n, previous, Draw { seed, call }.sample(u64::from(n)));
        let v = backoff.value(n);
        prop_assert!(!delay.is_zero() && delay <= max);
        match jitter {
            Jitter::None => prop_assert_eq!(delay, v),
            Jitter::Full => prop_assert!(delay <= v),
            Jitter::Equal => prop_assert!(v - delay <= v / 2 && delay <= v),
            Jitter::Proportional(share) => {
                // A nanosecond for rounding, and what a float cannot tell.
                let width = (v.as_secs_f64() * share).mul_add(1.0 + 1e-12, 2e-9);
                prop_assert!(delay.abs_diff(v).as_secs_f64() <= width);
            }
            Jitter::Decorrelated => {
                prop_assert!(base <= delay && delay <= previous.max(base).saturating_mul(3));
            }
        }
    }
}
