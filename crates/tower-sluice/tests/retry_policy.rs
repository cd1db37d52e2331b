//! The retry policy as a layer sees it: one decision after each failed attempt.
#![cfg(feature = "retry")]

use std::time::Duration;

use tokio::time::Instant;
use tower_sluice::backoff::{Backoff, Jitter};
use tower_sluice::retry::{BudgetTerms, Draw, GaveUp, Progress, Retry, RetryBudget, RetryPolicy};
use tower_sluice::verdict::{AnyError, CloneRequest, Failure, FailureKind};

const CALLS: u64 = 20_000;

fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

fn failure(kind: FailureKind) -> Failure {
    Failure { kind, retry_after: None, processed: true }
}

fn transient() -> Failure {
    failure(FailureKind::Transient)
}

/// A failure with the server's wish to be left alone for so long.
fn told(wish: Duration) -> Failure {
    Failure { retry_after: Some(wish), ..failure(FailureKind::Throttled) }
}

/// One call: its attempts begin here, and fail as they are told to.
struct Call<'a> {
    policy: &'a RetryPolicy<AnyError, CloneRequest>,
    progress: Progress,
    draw: Draw,
    left: Option<Duration>,
    may_repeat: bool,
}

impl<'a> Call<'a> {
    fn new(policy: &'a RetryPolicy<AnyError, CloneRequest>, call: u64) -> Self {
        let draw = Draw { seed: 17, call };
        Self { policy, progress: Progress::default(), draw, left: None, may_repeat: true }
    }

    /// The next attempt begins and fails; the payment is kept back.
    fn decide(&mut self, failure: Failure) -> Result<Retry, GaveUp> {
        self.progress.begin();
        let now = Instant::now();
        self.policy.decide(&failure, self.may_repeat, &mut self.progress, self.draw, self.left, now)
    }

    /// The next attempt begins and fails; what a retry costs is spent.
    fn fail(&mut self, failure: Failure) -> Result<Duration, GaveUp> {
        let retry = self.decide(failure)?;
        retry.payment.spend(&mut self.progress);
        Ok(retry.delay)
    }
}

/// The delays after the failures that `fail` makes of new calls, in order.
fn delays(
    policy: &RetryPolicy<AnyError, CloneRequest>,
    fail: impl Fn(&mut Call<'_>) -> Result<Duration, GaveUp>,
) -> Vec<Duration> {
    let mut delays: Vec<_> = (0..CALLS).map(|n| fail(&mut Call::new(policy, n)).unwrap()).collect();
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
        let (from, to) = (low + width * tenth / 10, low + width * (tenth + 1) / 10);
        let count = sorted.iter().filter(|delay| from < **delay && **delay <= to).count();
        assert!((1_788..=2_212).contains(&count), "{count} in tenth {tenth}");
    }
}

const NANO: Duration = Duration::from_nanos(1);

#[test]
fn r3_a_calls_delays_are_those_of_its_backoff_and_number() {
    for jitter in [Jitter::Full, Jitter::Equal, Jitter::PROPORTIONAL, Jitter::Decorrelated, Jitter::None] {
        let backoff = Backoff::rpc().jitter(jitter);
        let policy = RetryPolicy::new(9, backoff);
        for call in [0, 1, u64::MAX] {
            let mut a_call = Call::new(&policy, call);
            let drawn: Vec<_> = std::iter::from_fn(|| a_call.fail(transient()).ok()).collect();
            assert_eq!(drawn, backoff.delays(17, call).take(8).collect::<Vec<_>>(), "{jitter:?}");
        }
    }
}

#[test]
fn case_c12_two_calls_of_one_policy_have_two_series() {
    let policy = RetryPolicy::new(9, Backoff::rpc());
    let series = |n| {
        let mut call = Call::new(&policy, n);
        std::iter::from_fn(|| call.fail(transient()).ok()).collect::<Vec<_>>()
    };
    assert_ne!(series(1), series(2));
    assert_eq!(series(1), series(1));
}

#[test]
fn r5_a_wish_is_never_undercut_and_spread_by_half_of_it() {
    let policy = RetryPolicy::new(3, Backoff::rpc());
    assert_uniform(&delays(&policy, |call| call.fail(told(ms(100)))), ms(100), ms(150));
    assert_uniform(&delays(&policy, |call| call.fail(told(secs(1)))), secs(1), ms(1_500));
    assert_uniform(&delays(&policy, |call| call.fail(told(secs(10)))), secs(10), secs(15));
}

#[test]
fn r5_the_spread_is_5_s_at_most() {
    let policy = RetryPolicy::new(3, Backoff::rpc());
    assert_uniform(&delays(&policy, |call| call.fail(told(secs(60)))), secs(60), secs(65));
}

#[test]
fn case_d6_a_wish_for_an_hour_ends_the_call_at_once() {
    let policy = RetryPolicy::new(3, Backoff::rpc());
    assert_eq!(Call::new(&policy, 0).fail(told(secs(3_600))), Err(GaveUp::RetryAfter));
    assert_eq!(Call::new(&policy, 0).fail(told(secs(60) + NANO)), Err(GaveUp::RetryAfter));
}

#[test]
fn case_d6_a_clamped_wish_never_waits_longer_than_may_be() {
    let policy = RetryPolicy::new(3, Backoff::rpc()).clamp_retry_after(true);
    assert_uniform(&delays(&policy, |call| call.fail(told(secs(3_600)))), secs(55), secs(60));
    let short = policy.max_retry_after(secs(9));
    assert_uniform(&delays(&short, |call| call.fail(told(Duration::MAX))), secs(6), secs(9));
}

#[test]
fn case_d7_a_wish_is_not_cut_by_the_backoffs_max() {
    let policy = RetryPolicy::new(3, Backoff::exponential(ms(1), ms(10)));
    assert!(Call::new(&policy, 0).fail(told(secs(30))).unwrap() >= secs(30));
    let any = policy.max_retry_after(Duration::MAX);
    assert!(Call::new(&any, 0).fail(told(secs(3_600))).unwrap() >= secs(3_600));
    assert_eq!(Call::new(&any, 0).fail(told(Duration::MAX)), Ok(Duration::MAX));
}

#[test]
fn case_d8_a_clamped_wish_never_waits_less_than_without_one() {
    let backoff = Backoff::exponential(secs(10), secs(10)).jitter(Jitter::None);
    let policy = RetryPolicy::new(3, backoff).max_retry_after(secs(2)).clamp_retry_after(true);
    assert_eq!(Call::new(&policy, 0).fail(told(secs(300))), Ok(secs(10)));
}

#[test]
fn case_d9_a_wish_of_zero_leaves_it_to_the_backoff() {
    let backoff = Backoff::rpc().jitter(Jitter::None);
    let policy = RetryPolicy::new(3, backoff).max_retry_after(Duration::ZERO);
    let zero = Failure { retry_after: Some(Duration::ZERO), ..transient() };
    assert_eq!(Call::new(&policy, 0).fail(zero), Ok(ms(100)));
    // It is no `Retry-After`: R6 holds as without one.
    assert_eq!(Call::new(&policy, 0).fail(told(Duration::ZERO)), Ok(ms(200)));
}

#[test]
fn case_d10_a_wish_goes_before_the_kinds_own_rule() {
    let policy = RetryPolicy::new(3, Backoff::rpc());
    let unavailable = Failure { retry_after: Some(secs(2)), ..failure(FailureKind::Unavailable) };
    assert_uniform(&delays(&policy, |call| call.fail(unavailable)), secs(2), secs(3));
}

#[test]
fn case_d11_a_thousand_clients_told_the_same_second_come_back_apart() {
    let policy = RetryPolicy::new(3, Backoff::rpc());
    let mut delays: Vec<_> = (0..2_000).map(|n| Call::new(&policy, n).fail(told(secs(1))).unwrap()).collect();
    delays.sort_unstable();
    assert!(delays[0] >= secs(1));
    let most = (0..delays.len())
        .map(|i| delays[i..].iter().take_while(|delay| **delay - delays[i] < ms(10)).count())
        .max();
    assert!(most <= Some(75), "{most:?}");
}

// R2, R5: the next own delay grows from the last own one, not from what a server wished.
#[test]
fn a_wish_is_not_the_previous_delay_of_decorrelated_jitter() {
    let policy = RetryPolicy::new(9, Backoff::rpc().jitter(Jitter::Decorrelated));
    let sorted = delays(&policy, |call| {
        call.fail(told(secs(50)))?;
        call.fail(transient())
    });
    assert_uniform(&sorted, ms(100), ms(300));
}

#[test]
fn r6_the_first_retry_after_unavailable_is_quick_whatever_the_jitter() {
    let unavailable = failure(FailureKind::Unavailable);
    for jitter in [Jitter::None, Jitter::Full, Jitter::Equal, Jitter::PROPORTIONAL, Jitter::Decorrelated] {
        let policy = RetryPolicy::new(3, Backoff::rpc().jitter(jitter));
        assert_uniform(&delays(&policy, |call| call.fail(unavailable)), NANO, ms(100));
    }
}

#[test]
fn r6_the_second_retry_after_unavailable_is_the_backoffs() {
    let unavailable = failure(FailureKind::Unavailable);
    let policy = RetryPolicy::new(3, Backoff::rpc().jitter(Jitter::Equal));
    let second = |call: &mut Call<'_>| {
        call.fail(unavailable)?;
        call.fail(unavailable)
    };
    assert_uniform(&delays(&policy, second), ms(100), ms(200));
}

#[test]
fn r6_throttled_without_a_wish_starts_one_step_higher() {
    let throttled = failure(FailureKind::Throttled);
    let policy = RetryPolicy::new(9, Backoff::rpc().jitter(Jitter::None));
    let mut call = Call::new(&policy, 0);
    let drawn: Vec<_> = std::iter::from_fn(|| call.fail(throttled).ok()).collect();
    assert_eq!(drawn, [200, 400, 800, 1_600, 3_200, 5_000, 5_000, 5_000].map(ms));
    let full = RetryPolicy::new(9, Backoff::rpc());
    assert_uniform(&delays(&full, |call| call.fail(throttled)), NANO, ms(200));
    // Decorrelated jitter has no steps: it grows from the value one step higher.
    let decorrelated = RetryPolicy::new(9, Backoff::rpc().jitter(Jitter::Decorrelated));
    assert_uniform(&delays(&decorrelated, |call| call.fail(throttled)), ms(100), ms(600));
}

#[test]
fn r6_max_attempts_counts_the_first() {
    let policy = RetryPolicy::new(4, Backoff::rpc());
    let mut call = Call::new(&policy, 0);
    for _ in 0..3 {
        assert!(call.fail(transient()).is_ok());
    }
    assert_eq!(call.fail(transient()), Err(GaveUp::Attempts));
    assert_eq!(call.progress.attempts(), 4);
    assert_eq!(Call::new(&policy.max_attempts(1), 0).fail(transient()), Err(GaveUp::Attempts));
}

#[test]
fn case_i12_each_kind_has_attempts_of_its_own() {
    let policy = RetryPolicy::new(10, Backoff::rpc())
        .max_attempts_for(FailureKind::Throttled, 2)
        .max_attempts_for(FailureKind::Timeout, 1);
    let mut call = Call::new(&policy, 0);
    assert!(call.fail(transient()).is_ok());
    assert!(call.fail(failure(FailureKind::Throttled)).is_ok());
    assert!(call.fail(transient()).is_ok());
    assert!(call.fail(transient()).is_ok());
    assert_eq!(call.fail(failure(FailureKind::Throttled)), Err(GaveUp::Attempts));
    assert_eq!(Call::new(&policy, 0).fail(failure(FailureKind::Timeout)), Err(GaveUp::Attempts));
}

#[test]
fn a_copy_is_needed_until_the_last_attempt_has_begun() {
    let policy = RetryPolicy::new(2, Backoff::rpc());
    let mut progress = Progress::default();
    progress.begin();
    assert!(policy.repeats(&progress));
    progress.begin();
    assert!(!policy.repeats(&progress));
    let mut progress = Progress::default();
    progress.begin();
    assert!(!RetryPolicy::none().repeats(&progress));
}

// Q7 (a): what is checked is what is returned; equal is in time.
#[test]
fn case_k1_a_delay_beyond_what_is_left_is_not_begun() {
    let policy = RetryPolicy::new(3, Backoff::exponential(secs(5), secs(5)).jitter(Jitter::None));
    let mut call = Call::new(&policy, 0);
    call.left = Some(secs(5));
    assert_eq!(call.fail(transient()), Ok(secs(5)));
    call.left = Some(secs(5) - NANO);
    assert_eq!(call.fail(transient()), Err(GaveUp::Deadline));
}

#[test]
fn r5_a_wish_beyond_what_is_left_ends_the_call_or_is_clamped_to_it() {
    let policy = RetryPolicy::new(3, Backoff::rpc());
    let mut call = Call::new(&policy, 0);
    call.left = Some(secs(9));
    assert_eq!(call.fail(told(secs(10))), Err(GaveUp::Deadline));
    let policy = policy.clamp_retry_after(true);
    let in_time = |call: &mut Call<'_>| {
        call.left = Some(secs(9));
        call.fail(told(secs(10)))
    };
    assert_uniform(&delays(&policy, in_time), secs(6), secs(9));
    // Not even the backoff's own delay would be in time.
    let mut call = Call::new(&policy, 0);
    call.left = Some(Duration::ZERO);
    assert_eq!(call.fail(told(secs(10))), Err(GaveUp::Deadline));
}

#[test]
fn r7_is_checked_in_the_order_attempts_repeat_wish_deadline_budget() {
    let budget = RetryBudget::on_terms(BudgetTerms::new().capacity(10).token_every(Duration::MAX));
    let policy = RetryPolicy::new(1, Backoff::exponential(secs(10), secs(10)).jitter(Jitter::None))
        .budget(budget.clone())
        .max_retry_after(secs(20));
    // Emptied, so that all five speak against it.
    let other = RetryPolicy::new(9, Backoff::rpc()).budget(budget.clone());
    assert!(Call::new(&other, 0).fail(failure(FailureKind::Timeout)).is_ok());
    assert_eq!(budget.available(), Some(0));

    let ends = |policy: &RetryPolicy, may_repeat, wish, left| {
        let mut call = Call::new(policy, 0);
        (call.may_repeat, call.left) = (may_repeat, left);
        let failure = Failure { retry_after: wish, ..transient() };
        call.fail(failure).unwrap_err().as_str()
    };
    let (long, short) = (Some(secs(30)), Some(secs(1)));
    assert_eq!(ends(&policy, false, long, short), "attempts");
    let policy = policy.max_attempts(3);
    assert_eq!(ends(&policy, false, long, short), "not_repeatable");
    assert_eq!(ends(&policy, true, long, short), "retry_after");
    assert_eq!(ends(&policy, true, None, short), "deadline");
    assert_eq!(ends(&policy, true, None, None), "budget");
}

// What is turned down for another reason costs nothing.
#[test]
fn r7_only_a_retry_is_paid_for() {
    let budget = RetryBudget::new();
    let policy = RetryPolicy::new(2, Backoff::rpc()).budget(budget.clone());
    let mut call = Call::new(&policy, 0);
    call.left = Some(Duration::ZERO);
    assert_eq!(call.fail(transient()), Err(GaveUp::Deadline));
    assert_eq!(call.fail(transient()), Err(GaveUp::Attempts));
    assert_eq!(budget.available(), Some(500));
}

#[test]
fn a_delay_of_zero_stays_zero() {
    let policy = RetryPolicy::new(9, Backoff::exponential(Duration::ZERO, secs(1)));
    for kind in FailureKind::ALL {
        assert_eq!(Call::new(&policy, 0).fail(failure(kind)), Ok(Duration::ZERO), "{kind}");
    }
}

#[test]
fn settings_that_can_never_be_right_are_errors_that_name_field_and_bound() {
    let backoff = Backoff::rpc();
    let error = RetryPolicy::try_new(0, backoff).unwrap_err();
    assert_eq!(error.to_string(), "max_attempts is 0, but must be at least 1, the first attempt");
    for n in [0, 65_536, u32::MAX] {
        let error = RetryPolicy::new(2, backoff).try_max_attempts_for(FailureKind::Timeout, n).unwrap_err();
        assert_eq!((error.field(), error.bound()), ("max_attempts_for", "1 to 65535"));
    }
    let invalid = backoff.try_factor(0.0).unwrap_err();
    let error = tower_sluice::error::ConfigError::from(invalid.clone());
    assert_eq!(error.to_string(), invalid.to_string());
}

#[test]
#[should_panic(expected = "max_attempts is 0, but must be at least 1")]
fn a_policy_of_no_attempt_panics() {
    let _ = RetryPolicy::new(0, Backoff::rpc());
}
