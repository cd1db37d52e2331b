use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tower_layer::Layer;

use super::class::{Class, ClassLayer};
use super::handle::Handle;
use super::mode::{DeadlineFrom, Wrap};
use super::service::Queue;
use super::shared::Shared;
use super::slots::{ClassKey, NO_CLASS, Requeue, Slots};
use super::time::nanos;
use super::word;
use crate::error::ConfigError;
use crate::reject::{Boxed, RespondWith, Typed};
use crate::retry::RetryPolicy;
use crate::verdict::{AnyError, Once};

/// Reads a call's deadline from its request; see [`QueueLayer::deadline_from`].
pub type ReadDeadline<Req> = fn(&Req) -> Option<Instant>;

/// The policy of a queue that does not retry.
pub type NoRetry = RetryPolicy<AnyError, Once>;

/// The settings of a layer value. Routes may differ in them over one limit.
#[derive(Clone, Debug)]
pub(super) struct Settings<P, A> {
    pub(super) shared: Arc<Shared>,
    pub(super) policy: P,
    pub(super) mode: A,
    pub(super) queue_timeout: Option<Duration>,
    pub(super) call_timeout: Option<Duration>,
    pub(super) attempt_timeout: Option<Duration>,
    pub(super) slack: u32,
    pub(super) wait_when_full: bool,
    pub(super) class: Option<Arc<Class>>,
    /// One of the timeouts is set: calls need to know when they were called.
    pub(super) timed: bool,
    /// The call timeout in nanoseconds; `u64::MAX` for never.
    pub(super) allowance: u64,
}

impl<P, A> Settings<P, A> {
    #[inline]
    pub(super) fn class_key(&self) -> ClassKey {
        self.class.as_ref().map_or(NO_CLASS, |class| class.key)
    }

    /// The class of this name, if there is one, else the layer's own.
    #[cold]
    pub(super) fn class_named(&self, name: &str) -> ClassKey {
        self.shared.find_class(name).map_or_else(|| self.class_key(), |class| class.key)
    }
}

/// A limit on the attempts that run at once (a concurrency limit, a bulkhead), whose failed calls wait for their
/// retry out of slot.
///
/// Everything built from one layer value, and from its clones, shares one limit and one line: all routes of a
/// router, all connections, all clones of a client. A new `QueueLayer` is a new limit. Rule of thumb: one layer per
/// upstream.
///
/// ```
/// # use std::time::Duration;
/// use tower::{ServiceBuilder, service_fn};
/// use tower_sluice::backoff::Backoff;
/// use tower_sluice::queue::QueueLayer;
/// use tower_sluice::retry::RetryPolicy;
///
/// let queue = QueueLayer::new(16)
///     .max_waiting(1_000)
///     .queue_timeout(Duration::from_secs(5))
///     .call_timeout(Duration::from_secs(30))
///     .attempt_timeout(Duration::from_secs(10))
///     .rate(100, Duration::from_secs(60))
///     .retry(RetryPolicy::new(3, Backoff::rpc()));
/// let handle = queue.handle();
/// let service = ServiceBuilder::new()
///     .layer(queue)
///     .service(service_fn(|id: u64| async move { Ok::<_, std::io::Error>(id) }));
/// # fn is_service<S: tower::Service<u64>>(_: S) {}
/// # is_service(service);
/// assert_eq!(handle.stats().limit, 16);
/// ```
///
/// | setting | default | shared by all that is built from the layer value |
/// |---|---|---|
/// | [`max_waiting`](Self::max_waiting) | 1 024 | yes |
/// | [`rate`](Self::rate) | none | yes |
/// | [`requeue`](Self::requeue) | [`Requeue::Arrival`] | yes |
/// | [`hold_on_retry_after`](Self::hold_on_retry_after) | off | yes |
/// | [`name`](Self::name), [`seed`](Self::seed) | empty, from entropy | yes |
/// | [`queue_timeout`](Self::queue_timeout) | never | |
/// | [`call_timeout`](Self::call_timeout) | never | |
/// | [`attempt_timeout`](Self::attempt_timeout) | never | |
/// | [`slack`](Self::slack) | 2 | |
/// | [`wait_when_full`](Self::wait_when_full) | off: reject | |
/// | [`retry`](Self::retry) | one attempt a call | |
/// | [`typed`](Self::typed), [`respond_with`](Self::respond_with), [`answer`](Self::answer) | boxed | |
#[derive(Clone, Debug)]
pub struct QueueLayer<P = NoRetry, A = Boxed> {
    settings: Settings<P, A>,
}

/// The most attempt starts that a [`rate`](QueueLayer::rate) may allow in its window: the times of so many are kept.
const MOST_STARTS: usize = 1_000_000;

impl QueueLayer {
    /// At most `limit` attempts at once: 1 to 16 777 214.
    ///
    /// # Panics
    ///
    /// If `limit` is out of bounds; see [`try_new`](Self::try_new). To stop all calls, [pause](Handle::pause).
    #[track_caller]
    pub fn new(limit: usize) -> Self {
        ConfigError::or_panic(Self::try_new(limit))
    }

    /// [`new`](Self::new) for a value from a configuration.
    ///
    /// # Errors
    ///
    /// If `limit` is out of bounds.
    pub fn try_new(limit: usize) -> Result<Self, ConfigError> {
        Ok(Self::of(check_limit(limit)?))
    }

    /// No limit: a gate around any service. The bound on waiting calls, the pace, deferred retries and the handle work
    /// as ever. (At most 16 777 215 attempts run at once.)
    ///
    /// A call is admitted while fewer than [`max_waiting`](Self::max_waiting) calls are queued or deferred.
    pub fn unlimited() -> Self {
        Self::of(word::UNLIMITED)
    }

    fn of(limit: usize) -> Self {
        let shared = Arc::new(Shared::new(Slots::new(limit, 1_024)));
        Self {
            settings: Settings {
                shared,
                policy: RetryPolicy::none(),
                mode: Boxed,
                queue_timeout: None,
                call_timeout: None,
                attempt_timeout: None,
                slack: 2,
                wait_when_full: false,
                class: None,
                timed: false,
                allowance: u64::MAX,
            },
        }
    }
}

pub(super) fn check_limit(limit: usize) -> Result<usize, ConfigError> {
    if (1..=word::MAX_LIMIT).contains(&limit) {
        Ok(limit)
    } else {
        Err(ConfigError::new("limit", limit, "1 to 16777214 (to stop all calls, pause)"))
    }
}

/// The limit nearest to a number that was computed.
pub(super) fn nearest_limit(limit: usize) -> usize {
    limit.clamp(1, word::MAX_LIMIT)
}

impl<P, A> QueueLayer<P, A> {
    /// How many calls may be waiting, queued or deferred, beside those that run: a new call is turned away once
    /// as many calls are in the queue as `limit` + `max_waiting`.
    ///
    /// 0 is run or reject, as tower's `LoadShed` over a limit. An admitted call keeps its place for life, so that more
    /// may wait than this, by calls that were running.
    #[must_use]
    pub fn max_waiting(self, max_waiting: usize) -> Self {
        self.settings.shared.slots.set_max_waiting(max_waiting);
        self
    }

    /// At most `starts` attempt starts, retries included, in any window of length `per`.
    ///
    /// After a quiet time so many may start at once; a call that has to wait for the pace waits in the line.
    ///
    /// # Panics
    ///
    /// If `starts` is not from 1 to 1 000 000, or `per` is zero; see [`try_rate`](Self::try_rate).
    #[must_use]
    #[track_caller]
    pub fn rate(self, starts: usize, per: Duration) -> Self {
        ConfigError::or_panic(self.try_rate(starts, per))
    }

    /// [`rate`](Self::rate) for values from a configuration.
    ///
    /// # Errors
    ///
    /// If a value is out of bounds.
    pub fn try_rate(self, starts: usize, per: Duration) -> Result<Self, ConfigError> {
        if !(1..=MOST_STARTS).contains(&starts) {
            return Err(ConfigError::new("rate", starts, "1 to 1000000 starts in its window"));
        }
        if per.is_zero() {
            return Err(ConfigError::new(
                "rate",
                "a window of 0 s",
                "so many starts in a window longer than 0 s",
            ));
        }
        self.settings.shared.slots.set_pace(starts, per);
        Ok(self)
    }

    /// Where a call goes that comes back from its delay. [`Requeue::Arrival`] unless set.
    #[must_use]
    pub fn requeue(self, requeue: Requeue) -> Self {
        self.settings.shared.slots.set_requeue(requeue);
        self
    }

    /// A server's Retry-After of up to `longest`, on a throttled or unavailable answer, holds the whole line until it
    /// ends, so that queued calls do not each spend an attempt to learn the same. A longer one is ignored.
    ///
    /// Calls that cannot outlast the hold end at once in a deadline. Afterwards one attempt runs at a time, and one
    /// more with each success, up to the limit. Off unless set; zero turns it off.
    #[must_use]
    pub fn hold_on_retry_after(self, longest: Duration) -> Self {
        self.settings.shared.slots.set_hold((!longest.is_zero()).then_some(longest));
        self
    }

    /// A name for events.
    #[must_use]
    pub fn name(self, name: &str) -> Self {
        self.settings.shared.set_name(name);
        self
    }

    /// The seed of every delay that is drawn: the same seed gives the same delays. From the process's entropy unless
    /// set.
    #[must_use]
    pub fn seed(self, seed: u64) -> Self {
        self.settings.shared.set_seed(seed);
        self
    }

    /// The longest stay in the line, each time; time spent paused does not count. Never unless set.
    #[must_use]
    pub fn queue_timeout(mut self, timeout: Duration) -> Self {
        self.settings.queue_timeout = finite(timeout);
        self
    }

    /// The longest that a call may take, counted from `call`: waiting, attempts and delays, up to the response's head.
    ///
    /// A retry that cannot finish in time is not begun: the caller gets the real result. Never unless set.
    #[must_use]
    pub fn call_timeout(mut self, timeout: Duration) -> Self {
        self.settings.call_timeout = finite(timeout);
        self
    }

    /// The longest that one attempt may take. It lies inside the queue: an attempt that is cut may be retried. Never
    /// unless set.
    #[must_use]
    pub fn attempt_timeout(mut self, timeout: Duration) -> Self {
        self.settings.attempt_timeout = finite(timeout);
        self
    }

    /// How many typical attempts must be left until its deadline for a call that has waited to be run; else it is
    /// answered at once. Never more than half of the call's own allowance. 2 unless set.
    ///
    /// With 0, only what has already expired is skipped: an overloaded server then does mostly work that comes too late.
    #[must_use]
    pub fn slack(mut self, attempts: u32) -> Self {
        self.settings.slack = attempts;
        self
    }

    /// When full, `poll_ready` is pending until there is room, instead of the call being turned away.
    ///
    /// Back-pressure for a single driver: `call_all`, [`batch::run`](super::batch::run). Not for servers: waits in
    /// `poll_ready` lie outside every timeout. A handle that is ready keeps a place until `call` or drop.
    #[must_use]
    pub fn wait_when_full(mut self) -> Self {
        self.settings.wait_when_full = true;
        self
    }

    /// When full, calls are turned away. The default; undoes [`wait_when_full`](Self::wait_when_full).
    #[must_use]
    pub fn reject_when_full(mut self) -> Self {
        self.settings.wait_when_full = false;
        self
    }

    /// Retries failed attempts by this policy.
    #[must_use]
    pub fn retry<P2>(self, policy: P2) -> QueueLayer<P2, A> {
        self.map(|_| policy, |mode| mode)
    }

    /// Rejections become the service's own error, by `From<Rejection>`.
    #[must_use]
    pub fn typed(self) -> QueueLayer<P, A::With<Typed>>
    where
        A: Wrap,
    {
        self.map_answer(|mode| mode.with(Typed))
    }

    /// Rejections become responses, which `respond` makes of them.
    #[must_use]
    pub fn respond_with<F>(self, respond: F) -> QueueLayer<P, A::With<RespondWith<F>>>
    where
        A: Wrap,
    {
        self.map_answer(|mode| mode.with(RespondWith::new(respond)))
    }

    /// Answers by any [`Mode`](super::Mode), which takes the present one's place whole:
    /// [`deadline_from`](Self::deadline_from) comes after it.
    #[must_use]
    pub fn answer<A2>(self, mode: A2) -> QueueLayer<P, A2> {
        self.map(|policy| policy, |_| mode)
    }

    /// Builds an answer mode on the present one.
    #[must_use]
    pub fn map_answer<A2>(self, map: impl FnOnce(A) -> A2) -> QueueLayer<P, A2> {
        self.map(|policy| policy, map)
    }

    /// Builds a policy on the present one.
    #[must_use]
    pub fn map_retry<P2>(self, map: impl FnOnce(P) -> P2) -> QueueLayer<P2, A> {
        self.map(map, |mode| mode)
    }

    /// Each call's own deadline, read from its request; the earlier of this and the call timeout holds.
    #[must_use]
    pub fn deadline_from<Req>(
        self,
        deadline: ReadDeadline<Req>,
    ) -> QueueLayer<P, DeadlineFrom<A, ReadDeadline<Req>>> {
        self.map_answer(|mode| DeadlineFrom::new(mode, deadline))
    }

    /// A view of this queue for one class of calls, made when first asked for: shared slots and line, own bound,
    /// condition and counters. Settings made so far apply to it.
    ///
    /// # Panics
    ///
    /// If there are 65 535 classes already; see [`try_class`](Self::try_class).
    #[track_caller]
    pub fn class(&self, name: &str) -> ClassLayer<P, A>
    where
        Self: Clone,
    {
        ConfigError::or_panic(self.try_class(name))
    }

    /// [`class`](Self::class) for names from a configuration.
    ///
    /// # Errors
    ///
    /// If there are 65 535 classes already.
    pub fn try_class(&self, name: &str) -> Result<ClassLayer<P, A>, ConfigError>
    where
        Self: Clone,
    {
        let class = self.settings.shared.class(name)?;
        Ok(ClassLayer::new(self.clone(), class))
    }

    /// To watch, pause, clear, drain and resize everything built from this layer value.
    pub fn handle(&self) -> Handle {
        Handle::new(Arc::clone(&self.settings.shared))
    }

    pub(super) fn shared(&self) -> &Shared {
        &self.settings.shared
    }

    fn map<P2, A2>(self, policy: impl FnOnce(P) -> P2, mode: impl FnOnce(A) -> A2) -> QueueLayer<P2, A2> {
        let s = self.settings;
        QueueLayer {
            settings: Settings {
                shared: s.shared,
                policy: policy(s.policy),
                mode: mode(s.mode),
                queue_timeout: s.queue_timeout,
                call_timeout: s.call_timeout,
                attempt_timeout: s.attempt_timeout,
                slack: s.slack,
                wait_when_full: s.wait_when_full,
                class: s.class,
                timed: s.timed,
                allowance: s.allowance,
            },
        }
    }

    pub(super) fn service<S>(&self, inner: S, class: Option<Arc<Class>>) -> Queue<A::Inner<S>, P, A>
    where
        P: Clone,
        A: Wrap + Clone,
    {
        let mut settings = Settings { class, ..self.settings.clone() };
        settings.timed = [settings.call_timeout, settings.attempt_timeout, settings.queue_timeout]
            .iter()
            .any(Option::is_some);
        settings.allowance = settings.call_timeout.map_or(u64::MAX, nanos);
        Queue::new(settings.mode.wrap(inner), Arc::new(settings))
    }
}

impl<S, P: Clone, A: Wrap + Clone> Layer<S> for QueueLayer<P, A> {
    type Service = Queue<A::Inner<S>, P, A>;

    fn layer(&self, inner: S) -> Self::Service {
        self.service(inner, None)
    }
}

/// `Duration::MAX` means never.
fn finite(timeout: Duration) -> Option<Duration> {
    (timeout != Duration::MAX).then_some(timeout)
}
