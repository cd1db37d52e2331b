//! R1: how delays grow.

use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use tower_sluice_backoff::{Backoff, Jitter};

fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

/// Every pair that is accepted, the extremes often among them.
fn base_and_max() -> impl Strategy<Value = (Duration, Duration)> {
    let duration = || {
        prop_oneof![
            Just(Duration::ZERO),
            Just(Duration::from_nanos(1)),
            Just(Duration::MAX),
            (0..20_000_u64).prop_map(Duration::from_millis),
            (any::<u64>(), 0..1_000_000_000_u32).prop_map(|(s, n)| Duration::new(s, n)),
            any::<u64>().prop_map(Duration::from_nanos),
        ]
    };
    (duration(), duration()).prop_map(|(a, b)| (a.min(b), a.max(b)))
}

fn factor() -> impl Strategy<Value = f64> {
    prop_oneof![
        Just(1.0),
        Just(1.0 + f64::EPSILON),
        Just(1.5),
        Just(2.0),
        Just(1e308),
        Just(f64::MAX),
        1.0..10.0,
        1.0..f64::MAX,
    ]
}

fn step() -> impl Strategy<Value = u32> {
    prop_oneof![0..200_u32, any::<u32>(), Just(u32::MAX)]
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

    // R1, case_c3
    #[test]
    fn a_value_lies_between_base_and_max_whatever_the_step(
        (base, max) in base_and_max(), factor in factor(), n in step(),
    ) {
        let value = Backoff::exponential(base, max).factor(factor).value(n);
        prop_assert!(base <= value && value <= max, "{value:?}");
    }

    // R1: whole factors are exact; the reference multiplies step by step.
    #[test]
    fn a_whole_factor_gives_the_exact_product(
        (base, max) in base_and_max(), factor in 1..1_000_u32, n in 0..300_u32,
    ) {
        let mut expected = base.as_nanos();
        for _ in 0..n {
            expected = expected.saturating_mul(u128::from(factor)).min(max.as_nanos());
        }
        let value = Backoff::exponential(base, max).factor(f64::from(factor)).value(n);
        prop_assert_eq!(value.as_nanos(), expected);
    }

    // R1: the reference takes 1.5^n as 3^n / 2^n.
    #[test]
    fn a_broken_factor_is_off_by_no_more_than_a_float_can_tell(base in 1..u64::MAX, n in 0..24_u32) {
        let base = Duration::from_nanos(base);
        let value = Backoff::exponential(base, Duration::MAX).factor(1.5).value(n).as_nanos();
        let expected = base.as_nanos() * 3_u128.pow(n) / 2_u128.pow(n);
        prop_assert!(value.abs_diff(expected) <= 1 + expected / (1 << 51), "{value} for {expected}");
    }
}

#[test]
fn case_c1_growth_saturates_at_max_and_stays_there() {
    let backoff = Backoff::exponential(secs(2), secs(300));
    let values: Vec<_> = (0..10).map(|n| backoff.value(n).as_secs()).collect();
    assert_eq!(values, [2, 4, 8, 16, 32, 64, 128, 256, 300, 300]);
    for n in (8..10_000).chain([1 << 16, 1 << 31, u32::MAX - 1, u32::MAX]) {
        assert_eq!(backoff.value(n), secs(300), "{n}");
    }
}

#[test]
fn case_c2_a_thousand_failures_stay_within_a_cap_of_10_ms() {
    for jitter in [Jitter::None, Jitter::Full, Jitter::Equal, Jitter::PROPORTIONAL, Jitter::Decorrelated] {
        let backoff = Backoff::exponential(ms(1), ms(10)).jitter(jitter);
        for delay in backoff.delays(7, 0).take(1_000) {
            assert!(!delay.is_zero() && delay <= ms(10), "{jitter:?} {delay:?}");
        }
    }
}

#[test]
fn case_c11_no_step_up_to_10_000_is_shorter_than_the_one_before() {
    for factor in [1.0, 1.1, 1.5, 2.0, 3.7, 1e308] {
        let backoff = Backoff::exponential(ms(10), Duration::MAX).factor(factor);
        let mut last = Duration::ZERO;
        for n in 0..10_000 {
            let value = backoff.value(n);
            assert!(value >= last, "{factor} {n}");
            last = value;
        }
    }
}

#[test]
fn case_c15_what_overflows_is_max_and_never_zero() {
    let backoff = Backoff::exponential(ms(1), Duration::MAX);
    assert_eq!(backoff.value(u32::MAX), Duration::MAX);
    assert_eq!(backoff.factor(1.5).value(u32::MAX), Duration::MAX);
    assert_eq!(backoff.factor(f64::MAX).value(2), Duration::MAX);
}

// R1: this base is one more than a float can tell.
#[test]
fn step_0_is_exactly_base_also_with_a_broken_factor() {
    let base = Duration::from_nanos((1 << 60) + 1);
    assert_eq!(Backoff::exponential(base, Duration::MAX).factor(1.5).value(0), base);
}

// R1: no wait at all is what a base of zero asks for.
#[test]
fn a_base_of_zero_stays_zero_whatever_the_factor_and_the_jitter() {
    for jitter in [Jitter::None, Jitter::Full, Jitter::Equal, Jitter::PROPORTIONAL, Jitter::Decorrelated] {
        for factor in [2.0, 1.5, f64::MAX] {
            let backoff = Backoff::exponential(Duration::ZERO, secs(5)).factor(factor).jitter(jitter);
            assert!(backoff.delays(7, 0).take(2_000).all(|delay| delay.is_zero()), "{jitter:?} {factor}");
        }
    }
}

#[test]
fn what_can_never_be_right_is_an_error_that_names_field_and_bound() {
    let error = Backoff::try_exponential(secs(2), secs(1)).unwrap_err();
    assert_eq!((error.field(), error.given(), error.bound()), ("max", "1s", "at least base"));
    for factor in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 0.0, -2.0, 0.5] {
        assert_eq!(Backoff::rpc().try_factor(factor).unwrap_err().field(), "factor", "{factor}");
    }
    for share in [f64::NAN, f64::INFINITY, -0.1, 1.1] {
        let jitter = Jitter::Proportional(share);
        assert_eq!(Backoff::rpc().try_jitter(jitter).unwrap_err().field(), "jitter", "{share}");
    }
}

#[test]
#[should_panic(expected = "factor is NaN, but must be a finite number of at least 1")]
fn a_setter_panics_with_the_text_of_its_twins_error() {
    let _ = Backoff::rpc().factor(f64::NAN);
}
