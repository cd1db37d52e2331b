use std::fmt;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;
use tower_sluice_backoff::{Backoff, Draw, random_seed};

use super::budget::RetryBudget;
use super::decision::{GaveUp, Retry};
use super::progress::Progress;
use super::tower_policy::TowerCall;
use crate::error::ConfigError;
use crate::verdict::{AnyError, CloneRequest, Failure, FailureKind, Once};

/// Whether a failed attempt is followed by another, and after how long.
///
/// `C` ([`Classify`](crate::verdict::Classify)) says what a result means, `R` ([`Repeat`](crate::verdict::Repeat))
/// what may be sent again. A clone is cheap and starts with no call's history; clones share budget and call numbers.
///
/// | setting | default |
/// |---|---|
/// | [`max_attempts_for`](Self::max_attempts_for) | no bound but `max_attempts` |
/// | [`budget`](Self::budget) | [`RetryBudget::unlimited`] |
/// | [`max_retry_after`](Self::max_retry_after) | 60 s |
/// | [`clamp_retry_after`](Self::clamp_retry_after) | off: a longer wish ends the call |
/// | [`seed`](Self::seed) | from the process's entropy |
///
/// ```
/// use std::time::Duration;
/// use tower_sluice::backoff::Backoff;
/// use tower_sluice::retry::{RetryBudget, RetryPolicy};
/// use tower_sluice::verdict::{FailureKind, Verdict};
///
/// let policy = RetryPolicy::new(4, Backoff::rpc())
///     .max_attempts_for(FailureKind::Timeout, 2)
///     .max_retry_after(Duration::from_secs(10))
///     .budget(RetryBudget::new())
///     .classify(|result: &Result<u16, std::io::Error>| match result {
///         Ok(503) => Verdict::unavailable(),
///         Ok(_) => Verdict::Success,
///         Err(_) => Verdict::transient(),
///     });
/// ```
pub struct RetryPolicy<C = AnyError, R = CloneRequest> {
    pub(super) rules: Arc<Rules>,
    pub(super) classifier: C,
    pub(super) repeater: R,
    /// The call that this clone serves inside tower's `Retry`, once its first attempt has failed.
    pub(super) tower_call: Option<Box<TowerCall>>,
}

/// The most that a server's `Retry-After` is spread by.
const WIDEST_SPREAD: Duration = Duration::from_secs(5);

/// The shortest delay that is one.
const SHORTEST: Duration = Duration::from_nanos(1);

#[derive(Clone, Debug)]
pub(super) struct Rules {
    max_attempts: u32,
    max_attempts_for: [Option<NonZeroU32>; FailureKind::ALL.len()],
    backoff: Backoff,
    budget: RetryBudget,
    max_retry_after: Duration,
    clamp_retry_after: bool,
    pub(super) seed: u64,
    /// Numbers the calls inside tower's `Retry`; a queue numbers its own.
    pub(super) calls: Arc<AtomicU64>,
}

impl RetryPolicy<AnyError, CloneRequest> {
    /// At most `max_attempts` attempts a call, the first one included: 4 are the first and 3 retries.
    ///
    /// Repeats every request that is `Clone`, after any error.
    ///
    /// # Panics
    ///
    /// If `max_attempts` is 0; see [`try_new`](Self::try_new).
    #[track_caller]
    pub fn new(max_attempts: u32, backoff: Backoff) -> Self {
        ConfigError::or_panic(Self::try_new(max_attempts, backoff))
    }

    /// [`new`](Self::new) for a value from a configuration.
    ///
    /// # Errors
    ///
    /// If `max_attempts` is 0.
    pub fn try_new(max_attempts: u32, backoff: Backoff) -> Result<Self, ConfigError> {
        Self::of(AnyError, CloneRequest, backoff).try_max_attempts(max_attempts)
    }
}

impl RetryPolicy<AnyError, Once> {
    /// One attempt a call; requests need not be `Clone`.
    pub fn none() -> Self {
        Self::of(AnyError, Once, Backoff::rpc())
    }
}

impl<C, R> RetryPolicy<C, R> {
    fn of(classifier: C, repeater: R, backoff: Backoff) -> Self {
        let rules = Rules {
            max_attempts: 1,
            max_attempts_for: [None; FailureKind::ALL.len()],
            backoff,
            budget: RetryBudget::unlimited(),
            max_retry_after: Duration::from_secs(60),
            clamp_retry_after: false,
            seed: random_seed(),
            calls: Arc::default(),
        };
        Self { rules: Arc::new(rules), classifier, repeater, tower_call: None }
    }

    fn with(mut self, change: impl FnOnce(&mut Rules)) -> Self {
        change(Arc::make_mut(&mut self.rules));
        self
    }

    /// What a result means; [`AnyError`] unless set.
    #[must_use]
    pub fn classify<C2>(self, classifier: C2) -> RetryPolicy<C2, R> {
        self.map_classifier(|_| classifier)
    }

    /// What may be sent again; [`CloneRequest`] unless set.
    #[must_use]
    pub fn repeat<R2>(self, repeater: R2) -> RetryPolicy<C, R2> {
        self.map_repeater(|_| repeater)
    }

    /// Builds a classifier on the present one.
    #[must_use]
    pub fn map_classifier<C2>(self, map: impl FnOnce(C) -> C2) -> RetryPolicy<C2, R> {
        RetryPolicy {
            rules: self.rules,
            classifier: map(self.classifier),
            repeater: self.repeater,
            tower_call: None,
        }
    }

    /// Builds a repeater on the present one.
    #[must_use]
    pub fn map_repeater<R2>(self, map: impl FnOnce(R) -> R2) -> RetryPolicy<C, R2> {
        RetryPolicy {
            rules: self.rules,
            classifier: self.classifier,
            repeater: map(self.repeater),
            tower_call: None,
        }
    }

    /// The most attempts a call makes, the first one included.
    ///
    /// # Panics
    ///
    /// If `max_attempts` is 0.
    #[must_use]
    #[track_caller]
    pub fn max_attempts(self, max_attempts: u32) -> Self {
        ConfigError::or_panic(self.try_max_attempts(max_attempts))
    }

    /// [`max_attempts`](Self::max_attempts) for a value from a configuration.
    ///
    /// # Errors
    ///
    /// If `max_attempts` is 0.
    pub fn try_max_attempts(self, max_attempts: u32) -> Result<Self, ConfigError> {
        if max_attempts == 0 {
            return Err(ConfigError::new("max_attempts", max_attempts, "at least 1, the first attempt"));
        }
        Ok(self.with(|rules| rules.max_attempts = max_attempts))
    }

    /// The most attempts of one call that may fail for this kind. It bounds what `max_attempts` allows, and leaves
    /// the other kinds their own.
    ///
    /// # Panics
    ///
    /// If `max_attempts` is not within 1 to 65 535.
    #[must_use]
    #[track_caller]
    pub fn max_attempts_for(self, kind: FailureKind, max_attempts: u32) -> Self {
        ConfigError::or_panic(self.try_max_attempts_for(kind, max_attempts))
    }

    /// [`max_attempts_for`](Self::max_attempts_for) for a value from a configuration.
    ///
    /// # Errors
    ///
    /// If `max_attempts` is not within 1 to 65 535.
    pub fn try_max_attempts_for(self, kind: FailureKind, max_attempts: u32) -> Result<Self, ConfigError> {
        match NonZeroU32::new(max_attempts) {
            Some(most) if max_attempts <= Progress::MOST_FAILURES => {
                Ok(self.with(|rules| rules.max_attempts_for[kind.index()] = Some(most)))
            }
            _ => Err(ConfigError::new("max_attempts_for", max_attempts, "1 to 65535")),
        }
    }

    /// How long to wait before an attempt, where the server does not say.
    #[must_use]
    pub fn backoff(self, backoff: Backoff) -> Self {
        self.with(|rules| rules.backoff = backoff)
    }

    /// What retries are paid from.
    #[must_use]
    pub fn budget(self, budget: RetryBudget) -> Self {
        self.with(|rules| rules.budget = budget)
    }

    /// The longest `Retry-After` that is waited for; [`Duration::MAX`] for any. Not bounded by the backoff's `max`.
    #[must_use]
    pub fn max_retry_after(self, longest: Duration) -> Self {
        self.with(|rules| rules.max_retry_after = longest)
    }

    /// Whether a longer `Retry-After` is cut to what may be waited for, rather than that the call ends at once.
    #[must_use]
    pub fn clamp_retry_after(self, clamp: bool) -> Self {
        self.with(|rules| rules.clamp_retry_after = clamp)
    }

    /// The seed of all delays inside tower's `Retry`: the same seed gives the same delays.
    #[must_use]
    pub fn seed(self, seed: u64) -> Self {
        self.with(|rules| rules.seed = seed)
    }

    /// What a result means.
    pub const fn classifier(&self) -> &C {
        &self.classifier
    }

    /// What may be sent again.
    pub const fn repeater(&self) -> &R {
        &self.repeater
    }

    /// Whether any attempt can follow the one that was begun last. If not, no copy of the request is needed.
    #[inline]
    pub fn repeats(&self, progress: &Progress) -> bool {
        progress.attempts() < self.rules.max_attempts
    }

    /// Whether every call has one attempt, so that there is nothing to tell about attempts not made.
    #[cfg(feature = "queue")]
    pub(crate) fn is_single(&self) -> bool {
        self.rules.max_attempts == 1
    }

    /// What follows the attempt that was begun last and ended in `failure`.
    ///
    /// `may_repeat` is the repeater's word: there is a copy of the request, and it may be sent again after this
    /// failure. `left` is how long the delay may take at most, `None` for any time. Checked in this order: attempts,
    /// `may_repeat`, `Retry-After`, `left`, budget. The delay is drawn once, from `draw` and the number of the
    /// attempt: what is checked is what is returned.
    ///
    /// To be called once for each failed attempt.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tokio::time::Instant;
    /// use tower_sluice::backoff::Backoff;
    /// use tower_sluice::retry::{Draw, GaveUp, Progress, RetryPolicy};
    /// use tower_sluice::verdict::{Failure, FailureKind};
    ///
    /// let policy = RetryPolicy::new(2, Backoff::rpc());
    /// let failure = Failure { kind: FailureKind::Transient, retry_after: None, processed: true };
    /// let (mut progress, draw) = (Progress::default(), Draw { seed: 7, call: 0 });
    ///
    /// progress.begin();
    /// let retry = policy.decide(&failure, true, &mut progress, draw, None, Instant::now()).unwrap();
    /// assert!(retry.delay <= Duration::from_millis(100));
    ///
    /// progress.begin();
    /// retry.payment.spend(&mut progress);
    /// let end = policy.decide(&failure, true, &mut progress, draw, None, Instant::now()).unwrap_err();
    /// assert_eq!(end, GaveUp::Attempts);
    /// ```
    ///
    /// # Errors
    ///
    /// Why no attempt follows. The caller is to get the attempt's own result.
    pub fn decide(
        &self,
        failure: &Failure,
        may_repeat: bool,
        progress: &mut Progress,
        draw: Draw,
        left: Option<Duration>,
        now: Instant,
    ) -> Result<Retry, GaveUp> {
        let rules = &*self.rules;
        let failed = progress.failed(failure.kind);
        let most = rules.max_attempts_for[failure.kind.index()];
        if !self.repeats(progress) || most.is_some_and(|most| failed >= most.get()) {
            return Err(GaveUp::Attempts);
        }
        if !may_repeat {
            return Err(GaveUp::NotRepeatable);
        }
        let delay = rules.delay(failure, progress, draw, left)?;
        if left.is_some_and(|left| delay > left) {
            return Err(GaveUp::Deadline);
        }
        let payment = rules.budget.pay(failure.kind, now).ok_or(GaveUp::Budget)?;
        if wish(failure).is_none() {
            // What the server wished says nothing about our own growth.
            progress.delayed(delay);
        }
        Ok(Retry { delay, payment })
    }

    /// The call ended in success: if at its first attempt it gives to the budget, if later it gets back what it paid.
    ///
    /// To be called once for each call that could have been repeated. One whose request had no copy takes no part in
    /// the budget: so a call that passes through two layers with one budget, of which the inner stays out, counts
    /// once.
    #[inline]
    pub fn succeeded(&self, progress: &Progress) {
        self.rules.budget.succeeded(progress);
    }
}

impl Rules {
    /// The delay before the next attempt.
    fn delay(
        &self,
        failure: &Failure,
        progress: &Progress,
        draw: Draw,
        left: Option<Duration>,
    ) -> Result<Duration, GaveUp> {
        // The k-th retry follows the k-th attempt, and draws on step k - 1.
        let step = progress.attempts().saturating_sub(1);
        let sample = draw.sample(u64::from(step));
        let hint = wish(failure);
        let own = || match failure.kind {
            // Such a server is often back at once: the first retry is quick.
            FailureKind::Unavailable if step == 0 => {
                let base = self.backoff.base();
                sample.within(SHORTEST.min(base)..=base)
            }
            // It asked for less without saying when: growth starts one step higher.
            FailureKind::Throttled if hint.is_none() => {
                let step = step.saturating_add(1);
                self.backoff.delay(step, progress.previous_delay().max(self.backoff.value(1)), sample)
            }
            _ => self.backoff.delay(step, progress.previous_delay(), sample),
        };
        let Some(hint) = hint else {
            return Ok(own());
        };
        let longest = left.map_or(self.max_retry_after, |left| left.min(self.max_retry_after));
        if hint <= longest {
            // Never earlier, and not all at once.
            return Ok(sample.within(hint..=hint.saturating_add((hint / 2).min(WIDEST_SPREAD))));
        }
        if self.clamp_retry_after {
            // As after the hint whose spread ends at `longest`, but not sooner than with no hint at all.
            let spread = (longest / 3).min(WIDEST_SPREAD);
            return Ok(sample.within(longest - spread..=longest).max(own()));
        }
        Err(if hint > self.max_retry_after { GaveUp::RetryAfter } else { GaveUp::Deadline })
    }
}

/// How long the server wished to be left alone. One that says zero leaves it to us.
fn wish(failure: &Failure) -> Option<Duration> {
    failure.retry_after.filter(|hint| !hint.is_zero())
}

/// A clone serves another call: it has none of this one's history.
impl<C: Clone, R: Clone> Clone for RetryPolicy<C, R> {
    fn clone(&self) -> Self {
        Self {
            rules: Arc::clone(&self.rules),
            classifier: self.classifier.clone(),
            repeater: self.repeater.clone(),
            tower_call: None,
        }
    }
}

impl<C, R> fmt::Debug for RetryPolicy<C, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Classifiers may be closures.
        f.debug_struct("RetryPolicy").field("rules", &self.rules).finish_non_exhaustive()
    }
}

impl Rules {
    /// The random series of the next call inside tower's `Retry`.
    pub(super) fn next_draw(&self) -> Draw {
        Draw { seed: self.seed, call: self.calls.fetch_add(1, Ordering::Relaxed) }
    }
}
