//! R7: what retries are paid from.
#![cfg(feature = "retry")]

use std::collections::VecDeque;
use std::thread;
use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use tokio::time::{Instant, advance};
use tower_sluice::backoff::Backoff;
use tower_sluice::retry::{BudgetTerms, Draw, GaveUp, Payment, Progress, RetryBudget, RetryPolicy};
use tower_sluice::verdict::{Failure, FailureKind};

fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

/// Default terms, with no tokens from time.
fn timeless() -> BudgetTerms {
    BudgetTerms::new().token_every(Duration::MAX)
}

fn policy(budget: &RetryBudget) -> RetryPolicy {
    RetryPolicy::new(u32::MAX, Backoff::rpc()).budget(budget.clone())
}

/// An attempt of the call has failed.
fn fail(policy: &RetryPolicy, progress: &mut Progress, kind: FailureKind) -> Result<Payment, GaveUp> {
    let failure = Failure { kind, retry_after: None, processed: true };
    let draw = Draw { seed: 1, call: 1 };
    policy.decide(&failure, true, progress, draw, None, Instant::now()).map(|retry| retry.payment)
}

/// The first attempt of a new call has failed.
fn pay(budget: &RetryBudget, kind: FailureKind) -> Result<Payment, GaveUp> {
    let mut progress = Progress::default();
    progress.begin();
    fail(&policy(budget), &mut progress, kind)
}

/// A call has succeeded at its first attempt.
fn succeed(budget: &RetryBudget) {
    let mut progress = Progress::default();
    progress.begin();
    policy(budget).succeeded(&progress);
}

fn spend(payment: Payment) {
    payment.spend(&mut Progress::default());
}

#[tokio::test(start_paused = true)]
async fn r7_has_500_tokens_at_first_a_retry_costs_5_and_10_after_a_timeout() {
    let budget = RetryBudget::new();
    assert_eq!(budget.available(), Some(500));
    for (kind, left) in [
        (FailureKind::Transient, 495),
        (FailureKind::Unavailable, 490),
        (FailureKind::Throttled, 485),
        (FailureKind::Timeout, 475),
    ] {
        spend(pay(&budget, kind).unwrap());
        assert_eq!(budget.available(), Some(left), "{kind}");
    }
    assert_eq!(RetryBudget::default().available(), Some(500));
}

#[tokio::test(start_paused = true)]
async fn r7_a_first_success_returns_1_and_never_more_than_was_missing() {
    let budget = RetryBudget::on_terms(timeless());
    succeed(&budget);
    assert_eq!(budget.available(), Some(500));
    spend(pay(&budget, FailureKind::Transient).unwrap());
    for tokens in [496, 497, 498, 499, 500, 500] {
        succeed(&budget);
        assert_eq!(budget.available(), Some(tokens));
    }
}

#[tokio::test(start_paused = true)]
async fn case_i8_a_retried_success_refunds_what_its_call_paid_and_no_more() {
    let budget = RetryBudget::on_terms(timeless());
    let policy = policy(&budget);
    for _ in 0..20 {
        spend(pay(&budget, FailureKind::Transient).unwrap());
    }
    let mut progress = Progress::default();
    for kind in [FailureKind::Transient, FailureKind::Timeout] {
        progress.begin();
        fail(&policy, &mut progress, kind).unwrap().spend(&mut progress);
    }
    progress.begin();
    assert_eq!(budget.available(), Some(385));
    policy.succeeded(&progress);
    assert_eq!(budget.available(), Some(400));
}

#[tokio::test(start_paused = true)]
async fn r7_a_retried_success_that_paid_nothing_returns_nothing() {
    let budget = RetryBudget::on_terms(timeless());
    spend(pay(&budget, FailureKind::Transient).unwrap());
    let mut progress = Progress::default();
    progress.begin();
    progress.begin();
    policy(&budget).succeeded(&progress);
    assert_eq!(budget.available(), Some(495));
}

#[tokio::test(start_paused = true)]
async fn r7_a_payment_dropped_before_its_attempt_is_given_back() {
    let budget = RetryBudget::on_terms(timeless());
    let payment = pay(&budget, FailureKind::Timeout).unwrap();
    assert_eq!((payment.amount(), budget.available()), (10, Some(490)));
    drop(payment);
    assert_eq!(budget.available(), Some(500));
}

#[tokio::test(start_paused = true)]
async fn case_i5_retries_are_paid_for_when_they_are_decided_on() {
    let budget = RetryBudget::on_terms(timeless());
    let deferred: Vec<_> = (0..300).filter_map(|_| pay(&budget, FailureKind::Transient).ok()).collect();
    assert_eq!((deferred.len(), budget.available()), (100, Some(0)));
    assert_eq!(pay(&budget, FailureKind::Transient).unwrap_err(), GaveUp::Budget);
    drop(deferred);
    assert_eq!(budget.available(), Some(500));
}

#[tokio::test(start_paused = true)]
async fn case_i4_a_drained_budget_comes_back_with_successes() {
    let budget = RetryBudget::on_terms(timeless());
    while let Ok(payment) = pay(&budget, FailureKind::Transient) {
        spend(payment);
    }
    for _ in 0..4 {
        succeed(&budget);
        assert!(pay(&budget, FailureKind::Transient).is_err());
    }
    succeed(&budget);
    assert!(pay(&budget, FailureKind::Transient).is_ok());
}

#[tokio::test(start_paused = true)]
async fn r7_a_quiet_client_gets_a_token_each_second() {
    let budget = RetryBudget::new();
    while let Ok(payment) = pay(&budget, FailureKind::Transient) {
        spend(payment);
    }
    advance(ms(999)).await;
    assert_eq!(budget.available(), Some(0));
    advance(ms(1)).await;
    assert_eq!(budget.available(), Some(1));
    // What is left of a second goes on counting over a payment.
    advance(ms(4_700)).await;
    spend(pay(&budget, FailureKind::Transient).unwrap());
    assert_eq!(budget.available(), Some(0));
    advance(ms(299)).await;
    assert_eq!(budget.available(), Some(0));
    advance(ms(1)).await;
    assert_eq!(budget.available(), Some(1));
    // Not beyond the capacity, and a day of quiet is not saved up.
    advance(secs(86_400)).await;
    assert_eq!(budget.available(), Some(500));
    spend(pay(&budget, FailureKind::Transient).unwrap());
    advance(ms(999)).await;
    assert_eq!(budget.available(), Some(495));
}

#[tokio::test(start_paused = true)]
async fn r7_each_term_changes_what_it_says() {
    let terms = timeless().capacity(40).retry_cost(7).timeout_cost(9).success_return(3).token_every(ms(250));
    let budget = RetryBudget::on_terms(terms);
    assert_eq!(budget.available(), Some(40));
    spend(pay(&budget, FailureKind::Transient).unwrap());
    spend(pay(&budget, FailureKind::Timeout).unwrap());
    assert_eq!(budget.available(), Some(24));
    succeed(&budget);
    assert_eq!(budget.available(), Some(27));
    advance(ms(500)).await;
    assert_eq!(budget.available(), Some(29));
}

#[tokio::test(start_paused = true)]
async fn case_i10_new_terms_hold_at_once_for_all_clones() {
    let budget = RetryBudget::new();
    let policy = policy(&budget);
    budget.set_terms(timeless().capacity(20).retry_cost(10).timeout_cost(20).success_return(2)).unwrap();
    assert_eq!(budget.available(), Some(20));
    let mut progress = Progress::default();
    progress.begin();
    fail(&policy, &mut progress, FailureKind::Transient).unwrap().spend(&mut progress);
    assert_eq!(budget.available(), Some(10));
    succeed(&budget);
    assert_eq!(budget.available(), Some(12));
    // Room that is new is not filled by itself.
    budget.set_terms(BudgetTerms::new()).unwrap();
    assert_eq!(budget.available(), Some(12));
    advance(secs(3)).await;
    assert_eq!(budget.available(), Some(15));
}

#[tokio::test(start_paused = true)]
async fn case_i10_time_before_new_terms_counts_on_the_old_ones() {
    let budget = RetryBudget::new();
    spend(pay(&budget, FailureKind::Timeout).unwrap());
    advance(secs(3)).await;
    budget.set_terms(BudgetTerms::new().token_every(ms(10))).unwrap();
    assert_eq!(budget.available(), Some(493));
    advance(ms(20)).await;
    assert_eq!(budget.available(), Some(495));
}

#[test]
fn r7_unlimited_costs_nothing_and_has_no_terms() {
    let budget = RetryBudget::unlimited();
    for _ in 0..10_000 {
        let payment = pay(&budget, FailureKind::Timeout).unwrap();
        assert_eq!(payment.amount(), 0);
        spend(payment);
    }
    assert_eq!(budget.available(), None);
    assert_eq!(budget.set_terms(BudgetTerms::new()).unwrap_err().field(), "budget");
}

#[test]
fn terms_that_can_never_be_right_are_errors_that_name_field_and_bound() {
    let terms = BudgetTerms::new();
    let most = BudgetTerms::MOST_TOKENS;
    for tokens in [0, most + 1, u32::MAX] {
        assert_eq!(terms.try_capacity(tokens).unwrap_err().field(), "capacity");
        assert_eq!(terms.try_retry_cost(tokens).unwrap_err().field(), "retry_cost");
        assert_eq!(terms.try_timeout_cost(tokens).unwrap_err().bound(), "1 to 16777215");
    }
    assert_eq!(terms.try_success_return(most + 1).unwrap_err().bound(), "0 to 16777215");
    let error = terms.try_token_every(Duration::from_micros(999)).unwrap_err();
    assert_eq!(error.to_string(), "token_every is 999µs, but must be at least 1 ms");
    let error = RetryBudget::try_on_terms(terms.capacity(9)).unwrap_err();
    assert_eq!(error.field(), "timeout_cost");
    assert_eq!(RetryBudget::new().set_terms(terms.capacity(4)).unwrap_err().field(), "retry_cost");
    // The order of the setters does not matter.
    assert!(RetryBudget::try_on_terms(terms.retry_cost(1_000).capacity(5_000)).is_ok());
    assert!(RetryBudget::try_on_terms(terms.capacity(most).retry_cost(most).success_return(0)).is_ok());
}

#[test]
#[should_panic(expected = "timeout_cost is 10, but must be at most the capacity")]
fn a_retry_that_nothing_could_pay_panics() {
    let _ = RetryBudget::on_terms(BudgetTerms::new().capacity(9));
}

/// 16 threads, each running `work` with its number.
fn on_16_threads(work: impl Fn(usize) + Sync) {
    thread::scope(|scope| {
        for n in 0..16 {
            let work = &work;
            scope.spawn(move || work(n));
        }
    });
}

#[test]
fn case_i2_16_threads_take_exactly_what_there_is_and_give_all_of_it_back() {
    let budget = RetryBudget::on_terms(timeless().capacity(100_003));
    let paid = std::sync::Mutex::new(Vec::new());
    on_16_threads(|n| {
        let kind = FailureKind::ALL[n % 4];
        let mine: Vec<_> = std::iter::from_fn(|| pay(&budget, kind).ok()).collect();
        paid.lock().unwrap().push(mine);
    });
    let sum: u32 = paid.lock().unwrap().iter().flatten().map(Payment::amount).sum();
    // Those that pay 5 go on to the last 3.
    assert_eq!((sum, budget.available()), (100_000, Some(3)));
    let all = paid.into_inner().unwrap();
    let all = std::sync::Mutex::new(all);
    on_16_threads(|_| {
        let mine = all.lock().unwrap().pop();
        drop(mine);
    });
    assert_eq!(budget.available(), Some(100_003));
}

#[test]
fn case_i2_no_token_is_lost_or_made_while_16_threads_pay_spend_drop_and_succeed() {
    const ROUNDS: u32 = 2_000;
    // So large that neither end is touched: what comes out is a plain sum.
    let capacity = BudgetTerms::MOST_TOKENS;
    let budget = RetryBudget::on_terms(timeless().capacity(capacity));
    // Room for every success below, paid in advance.
    for _ in 0..ROUNDS * 16 {
        spend(pay(&budget, FailureKind::Transient).unwrap());
    }
    on_16_threads(|_| {
        for _ in 0..ROUNDS {
            spend(pay(&budget, FailureKind::Timeout).unwrap());
            drop(pay(&budget, FailureKind::Transient).unwrap());
            succeed(&budget);
        }
    });
    assert_eq!(budget.available(), Some(capacity - ROUNDS * 16 * (5 + 10 - 1)));
}

/// The same, one millisecond at a time.
struct Naive {
    tokens: u32,
    part_ms: u64,
    capacity: u32,
    every_ms: u64,
}

impl Naive {
    fn wait(&mut self, ms: u64) {
        for _ in 0..ms {
            if self.tokens >= self.capacity {
                continue;
            }
            self.part_ms += 1;
            if self.part_ms == self.every_ms {
                self.part_ms = 0;
                self.tokens += 1;
            }
        }
    }

    fn give(&mut self, tokens: u32) {
        self.tokens = (self.tokens + tokens).min(self.capacity);
        if self.tokens == self.capacity {
            // Time that passes while nothing is missing is not saved up.
            self.part_ms = 0;
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Wait(u64),
    Pay(FailureKind),
    Spend,
    Drop,
    Succeed,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (0..400_u64).prop_map(Step::Wait),
        (0..4_usize).prop_map(|i| Step::Pay(FailureKind::ALL[i])),
        (0..4_usize).prop_map(|i| Step::Pay(FailureKind::ALL[i])),
        Just(Step::Spend),
        Just(Step::Drop),
        Just(Step::Succeed),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 1_000,
        rng_seed: RngSeed::Fixed(1),
        failure_persistence: None,
        ..Default::default()
    })]

    // R7: the tokens are those of a model that counts one millisecond at a time.
    #[test]
    fn the_budget_is_what_a_naive_one_is(
        capacity in 10..40_u32,
        every_ms in 1..300_u64,
        steps in prop::collection::vec(step(), 1..60),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .unwrap();
        runtime.block_on(async {
            let terms = BudgetTerms::new().capacity(capacity).token_every(ms(every_ms));
            let budget = RetryBudget::on_terms(terms);
            let mut naive = Naive { tokens: capacity, part_ms: 0, capacity, every_ms };
            let mut paid = VecDeque::new();
            for step in steps {
                match step {
                    Step::Wait(n) => {
                        advance(ms(n)).await;
                        naive.wait(n);
                    }
                    Step::Pay(kind) => {
                        let cost = if kind == FailureKind::Timeout { 10 } else { 5 };
                        let payment = pay(&budget, kind).ok();
                        prop_assert_eq!(payment.is_some(), naive.tokens >= cost);
                        if let Some(payment) = payment {
                            naive.tokens -= cost;
                            paid.push_back((payment, cost));
                        }
                    }
                    Step::Spend => paid.pop_front().into_iter().for_each(|(payment, _)| spend(payment)),
                    Step::Drop => {
                        if let Some((payment, cost)) = paid.pop_front() {
                            drop(payment);
                            naive.give(cost);
                        }
                    }
                    Step::Succeed => {
                        succeed(&budget);
                        naive.give(1);
                    }
                }
                prop_assert_eq!(budget.available(), Some(naive.tokens));
            }
            Ok(())
        })?;
    }
}
