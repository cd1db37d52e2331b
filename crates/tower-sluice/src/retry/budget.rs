use std::fmt;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::time::Instant;

use super::progress::Progress;
use crate::error::ConfigError;
use crate::verdict::FailureKind;

/// What retries cost, and where the tokens for them come from.
///
/// | setting | default | bounds |
/// |---|---|---|
/// | [`capacity`](Self::capacity) | 500 tokens | 1 to [`MOST_TOKENS`](Self::MOST_TOKENS) |
/// | [`retry_cost`](Self::retry_cost) | 5 | 1 to the capacity |
/// | [`timeout_cost`](Self::timeout_cost) | 10 | 1 to the capacity |
/// | [`success_return`](Self::success_return) | 1 | 0 to [`MOST_TOKENS`](Self::MOST_TOKENS) |
/// | [`token_every`](Self::token_every) | 1 s | at least 1 ms |
///
/// The numbers are those of the AWS SDKs' standard retry mode (500, 5, 10, 1); the token that comes with time is
/// ours, so that a quiet client is not locked out for good.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BudgetTerms {
    capacity: u32,
    retry_cost: u32,
    timeout_cost: u32,
    success_return: u32,
    token_every: Duration,
}

impl Default for BudgetTerms {
    fn default() -> Self {
        Self::new()
    }
}

impl BudgetTerms {
    /// The largest number of tokens, for any setting: 16 777 215.
    pub const MOST_TOKENS: u32 = (1 << TOKEN_BITS) - 1;

    /// The defaults.
    pub const fn new() -> Self {
        Self {
            capacity: 500,
            retry_cost: 5,
            timeout_cost: 10,
            success_return: 1,
            token_every: Duration::from_secs(1),
        }
    }

    /// The most tokens there can be, and those there are at the start.
    ///
    /// # Panics
    ///
    /// If `tokens` is 0 or more than [`MOST_TOKENS`](Self::MOST_TOKENS).
    #[must_use]
    #[track_caller]
    pub fn capacity(self, tokens: u32) -> Self {
        ConfigError::or_panic(self.try_capacity(tokens))
    }

    /// [`capacity`](Self::capacity) for a value from a configuration.
    ///
    /// # Errors
    ///
    /// If `tokens` is 0 or more than [`MOST_TOKENS`](Self::MOST_TOKENS).
    pub fn try_capacity(self, tokens: u32) -> Result<Self, ConfigError> {
        Ok(Self { capacity: within_one_and_most("capacity", tokens)?, ..self })
    }

    /// What a retry costs, unless the attempt before it timed out.
    ///
    /// # Panics
    ///
    /// If `tokens` is 0 or more than [`MOST_TOKENS`](Self::MOST_TOKENS).
    #[must_use]
    #[track_caller]
    pub fn retry_cost(self, tokens: u32) -> Self {
        ConfigError::or_panic(self.try_retry_cost(tokens))
    }

    /// [`retry_cost`](Self::retry_cost) for a value from a configuration.
    ///
    /// # Errors
    ///
    /// If `tokens` is 0 or more than [`MOST_TOKENS`](Self::MOST_TOKENS).
    pub fn try_retry_cost(self, tokens: u32) -> Result<Self, ConfigError> {
        Ok(Self { retry_cost: within_one_and_most("retry_cost", tokens)?, ..self })
    }

    /// What a retry costs after an attempt that timed out: those have kept the server busy the longest.
    ///
    /// # Panics
    ///
    /// If `tokens` is 0 or more than [`MOST_TOKENS`](Self::MOST_TOKENS).
    #[must_use]
    #[track_caller]
    pub fn timeout_cost(self, tokens: u32) -> Self {
        ConfigError::or_panic(self.try_timeout_cost(tokens))
    }

    /// [`timeout_cost`](Self::timeout_cost) for a value from a configuration.
    ///
    /// # Errors
    ///
    /// If `tokens` is 0 or more than [`MOST_TOKENS`](Self::MOST_TOKENS).
    pub fn try_timeout_cost(self, tokens: u32) -> Result<Self, ConfigError> {
        Ok(Self { timeout_cost: within_one_and_most("timeout_cost", tokens)?, ..self })
    }

    /// What a call returns whose first attempt succeeds.
    ///
    /// # Panics
    ///
    /// If `tokens` is more than [`MOST_TOKENS`](Self::MOST_TOKENS).
    #[must_use]
    #[track_caller]
    pub fn success_return(self, tokens: u32) -> Self {
        ConfigError::or_panic(self.try_success_return(tokens))
    }

    /// [`success_return`](Self::success_return) for a value from a configuration.
    ///
    /// # Errors
    ///
    /// If `tokens` is more than [`MOST_TOKENS`](Self::MOST_TOKENS).
    pub fn try_success_return(self, tokens: u32) -> Result<Self, ConfigError> {
        if tokens > Self::MOST_TOKENS {
            return Err(ConfigError::new("success_return", tokens, "0 to 16777215"));
        }
        Ok(Self { success_return: tokens, ..self })
    }

    /// One token comes with each such span of time, counted in whole milliseconds; [`Duration::MAX`] for none.
    ///
    /// # Panics
    ///
    /// If `span` is less than 1 ms.
    #[must_use]
    #[track_caller]
    pub fn token_every(self, span: Duration) -> Self {
        ConfigError::or_panic(self.try_token_every(span))
    }

    /// [`token_every`](Self::token_every) for a value from a configuration.
    ///
    /// # Errors
    ///
    /// If `span` is less than 1 ms.
    pub fn try_token_every(self, span: Duration) -> Result<Self, ConfigError> {
        if span < Duration::from_millis(1) {
            return Err(ConfigError::new("token_every", format_args!("{span:?}"), "at least 1 ms"));
        }
        Ok(Self { token_every: span, ..self })
    }

    /// What only the whole can tell.
    fn check(&self) -> Result<(), ConfigError> {
        for (field, cost) in [("retry_cost", self.retry_cost), ("timeout_cost", self.timeout_cost)] {
            if cost > self.capacity {
                return Err(ConfigError::new(
                    field,
                    cost,
                    "at most the capacity, or nothing could ever be paid",
                ));
            }
        }
        Ok(())
    }
}

fn within_one_and_most(field: &'static str, tokens: u32) -> Result<u32, ConfigError> {
    if (1..=BudgetTerms::MOST_TOKENS).contains(&tokens) {
        Ok(tokens)
    } else {
        Err(ConfigError::new(field, tokens, "1 to 16777215"))
    }
}

/// The tokens that retries are paid from, shared by all calls of a layer, and by all clones of this value.
///
/// What they cost, and what gives them back, are its [`BudgetTerms`]; [the module](super) has what they come to.
///
/// ```
/// use std::time::Duration;
/// use tower_sluice::backoff::Backoff;
/// use tower_sluice::retry::{BudgetTerms, RetryBudget, RetryPolicy};
///
/// let budget = RetryBudget::on_terms(BudgetTerms::new().capacity(100));
/// let policy = RetryPolicy::new(3, Backoff::rpc()).budget(budget.clone());
/// assert_eq!(budget.available(), Some(100));
///
/// // An operator opens it, while calls are under way.
/// budget.set_terms(BudgetTerms::new().token_every(Duration::from_millis(100)))?;
/// # Ok::<_, tower_sluice::error::ConfigError>(())
/// ```
#[derive(Clone)]
pub struct RetryBudget {
    tokens: Option<Arc<Tokens>>,
}

/// The same as [`RetryBudget::new`].
impl Default for RetryBudget {
    fn default() -> Self {
        Self::new()
    }
}

impl RetryBudget {
    /// A full budget on the default [`BudgetTerms`].
    pub fn new() -> Self {
        Self::on_terms(BudgetTerms::new())
    }

    /// A full budget on these terms.
    ///
    /// # Panics
    ///
    /// If a retry costs more than the capacity, since none could ever be paid.
    #[track_caller]
    pub fn on_terms(terms: BudgetTerms) -> Self {
        ConfigError::or_panic(Self::try_on_terms(terms))
    }

    /// [`on_terms`](Self::on_terms) for terms from a configuration.
    ///
    /// # Errors
    ///
    /// If a retry costs more than the capacity, since none could ever be paid.
    pub fn try_on_terms(terms: BudgetTerms) -> Result<Self, ConfigError> {
        terms.check()?;
        Ok(Self { tokens: Some(Arc::new(Tokens::full(terms))) })
    }

    /// Retries cost nothing.
    pub const fn unlimited() -> Self {
        Self { tokens: None }
    }

    /// Tokens there are now; `None` where retries cost nothing.
    pub fn available(&self) -> Option<u32> {
        self.tokens.as_ref().map(|tokens| tokens.available(Instant::now()))
    }

    /// Other terms from now on, for all clones. Tokens beyond a smaller capacity are gone; a larger one fills by and
    /// by.
    ///
    /// # Errors
    ///
    /// If a retry costs more than the capacity, or if the budget is unlimited and has no terms.
    pub fn set_terms(&self, terms: BudgetTerms) -> Result<(), ConfigError> {
        terms.check()?;
        let Some(tokens) = &self.tokens else {
            return Err(ConfigError::new("budget", "unlimited", "limited, to have terms"));
        };
        tokens.set(terms, Instant::now());
        Ok(())
    }

    /// Pays for a retry after a failure of `kind`; `None` where there are too few tokens.
    pub(super) fn pay(&self, kind: FailureKind, now: Instant) -> Option<Payment> {
        let Some(tokens) = &self.tokens else {
            return Some(Payment { from: None, amount: 0 });
        };
        let cost = match kind {
            FailureKind::Timeout => tokens.timeout_cost.load(Relaxed),
            _ => tokens.retry_cost.load(Relaxed),
        };
        tokens.take(cost, now).then(|| Payment { from: Some(Arc::clone(tokens)), amount: cost })
    }

    /// A call ended in success.
    #[inline]
    pub(super) fn succeeded(&self, progress: &Progress) {
        if let Some(tokens) = &self.tokens
            && !tokens.is_full()
        {
            tokens.succeeded(progress);
        }
    }
}

impl fmt::Debug for RetryBudget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.tokens {
            Some(tokens) => f.debug_tuple("RetryBudget").field(&**tokens).finish(),
            None => f.write_str("RetryBudget::unlimited()"),
        }
    }
}

/// What a retry has paid, from its decision until its attempt starts.
///
/// Dropped before it was [spent](Self::spend), it gives the tokens back.
#[derive(Debug, Default)]
#[must_use = "a payment that is dropped is given back"]
pub struct Payment {
    from: Option<Arc<Tokens>>,
    amount: u32,
}

/// A call that waits for its next attempt keeps this: it is not to grow.
const _: () = assert!(size_of::<Payment>() <= 16);

impl Payment {
    /// The attempt starts: the tokens are gone, and `progress` remembers them, should the call succeed.
    pub fn spend(mut self, progress: &mut Progress) {
        if self.from.take().is_some() {
            progress.spent(self.amount);
        }
    }

    /// Tokens paid.
    pub const fn amount(&self) -> u32 {
        self.amount
    }
}

impl Drop for Payment {
    fn drop(&mut self) {
        if let Some(tokens) = &self.from {
            tokens.give(self.amount);
        }
    }
}

/// Bits of [`Tokens::word`] that count tokens; the others count milliseconds: 34 years.
const TOKEN_BITS: u32 = 24;

/// Tokens and the time up to which they were given for in one word, so that each change is one exact step.
struct Tokens {
    word: AtomicU64,
    /// The first instant that was seen: milliseconds count from here.
    epoch: OnceLock<Instant>,
    capacity: AtomicU32,
    retry_cost: AtomicU32,
    timeout_cost: AtomicU32,
    success_return: AtomicU32,
    token_every_ms: AtomicU64,
}

/// [`Tokens::word`], taken apart.
#[derive(Clone, Copy)]
struct Fill {
    tokens: u32,
    /// Milliseconds from the epoch for which tokens were given.
    since: u64,
}

impl Fill {
    const fn of(word: u64) -> Self {
        Self { tokens: word as u32 & BudgetTerms::MOST_TOKENS, since: word >> TOKEN_BITS }
    }

    const fn word(self) -> u64 {
        (self.since << TOKEN_BITS) | self.tokens as u64
    }
}

impl Tokens {
    fn full(terms: BudgetTerms) -> Self {
        Self {
            word: AtomicU64::new(Fill { tokens: terms.capacity, since: 0 }.word()),
            epoch: OnceLock::new(),
            capacity: AtomicU32::new(terms.capacity),
            retry_cost: AtomicU32::new(terms.retry_cost),
            timeout_cost: AtomicU32::new(terms.timeout_cost),
            success_return: AtomicU32::new(terms.success_return),
            token_every_ms: AtomicU64::new(whole_millis(terms.token_every)),
        }
    }

    fn set(&self, terms: BudgetTerms, now: Instant) {
        let now = self.millis(now);
        // What time has given up to now, it gave on the old terms.
        self.change(|fill| Some(self.refilled(fill, now)));
        self.retry_cost.store(terms.retry_cost, Relaxed);
        self.timeout_cost.store(terms.timeout_cost, Relaxed);
        self.success_return.store(terms.success_return, Relaxed);
        self.token_every_ms.store(whole_millis(terms.token_every), Relaxed);
        self.capacity.store(terms.capacity, Relaxed);
        // A change that read the capacity before may still be under way: every reader cuts off at it as well.
        self.change(|fill| Some(Fill { tokens: fill.tokens.min(terms.capacity), ..fill }));
    }

    #[inline]
    fn is_full(&self) -> bool {
        Fill::of(self.word.load(Relaxed)).tokens >= self.capacity.load(Relaxed)
    }

    fn available(&self, now: Instant) -> u32 {
        let now = self.millis(now);
        self.refilled(Fill::of(self.word.load(Relaxed)), now).tokens
    }

    fn succeeded(&self, progress: &Progress) {
        match progress.paid() {
            0 if progress.attempts() <= 1 => self.give(self.success_return.load(Relaxed)),
            paid => self.give(paid),
        }
    }

    fn give(&self, tokens: u32) {
        self.change(|fill| {
            let capacity = self.capacity.load(Relaxed);
            (tokens > 0 && fill.tokens < capacity)
                .then(|| Fill { tokens: fill.tokens.saturating_add(tokens).min(capacity), ..fill })
        });
    }

    fn take(&self, cost: u32, now: Instant) -> bool {
        let now = self.millis(now);
        self.change(|fill| {
            let fill = self.refilled(fill, now);
            Some(Fill { tokens: fill.tokens.checked_sub(cost)?, ..fill })
        })
    }

    /// What `fill` has become by `now`, within the capacity.
    fn refilled(&self, fill: Fill, now: u64) -> Fill {
        let capacity = self.capacity.load(Relaxed);
        let every = self.token_every_ms.load(Relaxed);
        // A thread that took its time earlier than another finds `since` after `now`: nothing is due.
        let due = now.saturating_sub(fill.since) / every;
        let tokens = due.saturating_add(u64::from(fill.tokens));
        if tokens >= u64::from(capacity) {
            // Time that passes while nothing is missing is not saved up.
            Fill { tokens: capacity, since: now.max(fill.since) }
        } else {
            // What is left of a span goes on counting.
            Fill { tokens: tokens as u32, since: fill.since + due * every }
        }
    }

    /// Applies `change` in one step. `false` where it says that there is nothing to change.
    fn change(&self, mut change: impl FnMut(Fill) -> Option<Fill>) -> bool {
        // Relaxed: the word is all there is, nothing else is published with it.
        self.word.fetch_update(Relaxed, Relaxed, |word| change(Fill::of(word)).map(Fill::word)).is_ok()
    }

    fn millis(&self, now: Instant) -> u64 {
        const MOST: u64 = (1 << (u64::BITS - TOKEN_BITS)) - 1;
        let epoch = *self.epoch.get_or_init(|| now);
        u64::try_from(now.saturating_duration_since(epoch).as_millis()).unwrap_or(MOST).min(MOST)
    }
}

impl fmt::Debug for Tokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fill = Fill::of(self.word.load(Relaxed));
        f.debug_struct("Tokens")
            .field("tokens", &fill.tokens)
            .field("capacity", &self.capacity)
            .field("retry_cost", &self.retry_cost)
            .field("timeout_cost", &self.timeout_cost)
            .field("success_return", &self.success_return)
            .field("token_every_ms", &self.token_every_ms)
            .finish_non_exhaustive()
    }
}

/// Rounded up, so that tokens never come faster than was said; `u64::MAX`, which no clock reaches, for never.
fn whole_millis(span: Duration) -> u64 {
    u64::try_from(span.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}
