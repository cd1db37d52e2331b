//! R4: the presets, with the numbers users know.

use std::time::Duration;

use tower_sluice_backoff::{Backoff, Draw};

/// The shortest and the longest delay of the first steps, in milliseconds, as drawn a great many times.
fn ranges(backoff: Backoff, steps: u32) -> Vec<(u128, u128)> {
    (0..steps)
        .map(|n| {
            let delays = (0..40_000)
                .map(|call| backoff.delay(n, backoff.base(), Draw { seed: 2, call }.sample(u64::from(n))));
            let (low, high) = delays.fold((Duration::MAX, Duration::ZERO), |(low, high), delay| {
                (low.min(delay), high.max(delay))
            });
            // Rounded to the nearest of 500 parts, which so many draws reach.
            let part = backoff.value(n).as_nanos() / 500;
            let round = |delay: Duration| (delay.as_nanos() + part / 2) / part * part / 1_000_000;
            (round(low), round(high))
        })
        .collect()
}

#[test]
fn r4_rpc_is_100_ms_to_5_s_full() {
    assert_eq!(ranges(Backoff::rpc(), 8), [100, 200, 400, 800, 1_600, 3_200, 5_000, 5_000].map(|v| (0, v)));
}

#[test]
fn r4_external_is_1_s_to_30_s_full() {
    assert_eq!(ranges(Backoff::external(), 6), [1, 2, 4, 8, 16, 30].map(|v| (0, v * 1_000)));
}

#[test]
fn r4_web_is_1_s_to_16_s_and_a_quarter() {
    assert_eq!(
        ranges(Backoff::web(), 6),
        [(750, 1_250), (1_500, 2_500), (3_000, 5_000), (6_000, 10_000), (12_000, 16_000), (12_000, 16_000)]
    );
}

#[test]
fn r4_connection_is_500_ms_to_30_s_equal_and_its_step_4_lies_between_4_and_8_s() {
    assert_eq!(
        ranges(Backoff::connection(), 8),
        [
            (250, 500),
            (500, 1_000),
            (1_000, 2_000),
            (2_000, 4_000),
            (4_000, 8_000),
            (8_000, 16_000),
            (15_000, 30_000),
            (15_000, 30_000)
        ]
    );
}
