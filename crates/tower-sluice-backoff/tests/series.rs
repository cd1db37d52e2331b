//! R3: every call has a series of its own, and a seed gives it again.

use std::collections::HashSet;
use std::time::Duration;

use tower_sluice_backoff::{Backoff, Draw, Jitter, random_seed};

fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

/// The most delays within any 10 consecutive milliseconds.
fn most_within_10_ms(mut delays: Vec<Duration>) -> usize {
    delays.sort_unstable();
    (0..delays.len())
        .map(|i| {
            delays[i..].iter().take_while(|delay| **delay - delays[i] < Duration::from_millis(10)).count()
        })
        .max()
        .unwrap_or_default()
}

#[test]
fn case_c12_no_two_calls_share_a_series_and_a_seed_gives_each_again() {
    let backoff = Backoff::external();
    let series = |call| backoff.delays(7, call).take(8).collect::<Vec<_>>();
    let all: HashSet<_> = (0..5_000).map(series).collect();
    assert_eq!(all.len(), 5_000);
    assert_eq!(series(42), series(42));
    assert_ne!(series(42), backoff.delays(8, 42).take(8).collect::<Vec<_>>());
}

#[test]
fn r3_a_delay_can_be_asked_for_without_those_before_it() {
    let backoff = Backoff::external();
    let third = backoff.delays(7, 42).nth(3).unwrap();
    assert_eq!(third, backoff.delay(3, backoff.base(), Draw { seed: 7, call: 42 }.sample(3)));
}

// Fixed for good: a seed from a bug report must give the same delays in any later version.
#[test]
fn r3_the_delays_of_a_seed_are_known() {
    let delays: Vec<_> = Backoff::rpc().delays(7, 42).take(4).map(|delay| delay.as_nanos()).collect();
    assert_eq!(delays, [26_862_972, 92_697_991, 278_161_131, 416_357_408]);
}

#[test]
fn r3_without_a_seed_the_process_gives_one() {
    let seeds: HashSet<_> = (0..100).map(|_| random_seed()).collect();
    assert_eq!(seeds.len(), 100);
}

// The first and the second draw of a call, and those of neighbouring calls, have nothing to do with each other.
#[test]
fn r3_draws_are_independent_across_steps_and_calls() {
    let (low, high) = (Duration::ZERO, Duration::from_nanos(u64::MAX));
    let unit = |call, step| {
        Draw { seed: 3, call }.sample(step).within(low..=high).as_nanos() as f64 / u64::MAX as f64 - 0.5
    };
    let correlation = |pairs: &mut dyn Iterator<Item = (f64, f64)>| {
        let (n, sum) = pairs.fold((0.0, 0.0), |(n, sum), (a, b)| (n + 1.0, a.mul_add(b, sum)));
        12.0 * sum / n
    };
    // 5 standard deviations of 20 000 pairs.
    let bound = 5.0 / 20_000_f64.sqrt();
    let steps = correlation(&mut (0..20_000).map(|call| (unit(call, 0), unit(call, 1))));
    let calls = correlation(&mut (0..20_000).map(|call| (unit(call, 0), unit(call + 1, 0))));
    assert!(steps.abs() < bound && calls.abs() < bound, "{steps} {calls}");
}

#[test]
fn r3_calls_that_fail_together_do_not_come_back_together() {
    let first = |backoff: Backoff| (0..2_000).map(|call| backoff.delays(5, call).next().unwrap()).collect();
    assert!(most_within_10_ms(first(Backoff::exponential(secs(1), secs(30)))) <= 50);
    assert!(most_within_10_ms(first(Backoff::exponential(secs(30), secs(30)))) <= 12);
    // So does the bar see jitter that is too narrow.
    let equal = Backoff::exponential(secs(1), secs(30)).jitter(Jitter::Equal);
    assert!(most_within_10_ms(first(equal)) > 50);
}

#[test]
fn delays_never_end() {
    let mut delays = Backoff::rpc().delays(1, 1);
    assert_eq!(delays.size_hint(), (usize::MAX, None));
    assert!(delays.nth(100_000).is_some_and(|delay| delay <= secs(5)));
}
