//! A call on its way through the queue.
//!
//! ```text
//!  call ──▶ queued ──slot──▶ running ──answer──▶ done
//!              ▲                │ retryable failure: the slot is freed here
//!              └──── due ─── deferred
//! ```

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use pin_project_lite::pin_project;
use tokio::time::Instant;
use tower_service::Service;

use super::events::{self, Ended};
use super::layer::Settings;
use super::lease::{Lease, Stage};
use super::mode::Mode;
use super::options::CallOptions;
use super::slot::Slot;
use super::slots::{End, Entered, Polled, Ticket};
use super::starting::Starting;
use super::time::{Tick, nanos};
use super::timer::Timer;
use crate::reject::Rejection;
use crate::retry::{Draw, GaveUp, Payment, Progress, RetryPolicy};
use crate::verdict::{Attempt, Classify, Failure, FailureKind, Repeat, Totals, Verdict};

pin_project! {
    /// The future of a [`Queue`](super::Queue)'s answer.
    ///
    /// The call arrives when this is first polled; a future that nobody polls holds nothing. Dropping it in any state
    /// gives back all that it holds.
    #[must_use = "futures do nothing unless polled"]
    pub struct ResponseFuture<S, Req, C, R, A>
    where
        S: Service<Req>,
        A: Mode<Req, S::Response, S::Error>,
    {
        // Before the lease: it is dropped before the slot is given back.
        #[pin]
        attempt: Option<S::Future>,
        service: S,
        // What the next attempt sends: the request, and once that is on its way its copy.
        request: Option<Req>,
        call: Call<RetryPolicy<C, R>, A, A::Kept>,
    }
}

/// Everything of a call but its request, its service and its attempt. A flat record: each field is written when it
/// is needed, and none is moved as the call goes from state to state.
struct Call<P, A, K> {
    lease: Lease<P, A>,
    timer: Timer,
    /// Its number, by order of arrival.
    number: u64,
    /// When it was called, if the clock was read then. An instant, since ticks take longer to come by.
    called: Option<Instant>,
    /// Its deadline, in nanoseconds from then; `NEVER` for none.
    allowance: u64,
    /// Queued: since when. Running: since when. Deferred: until when. Where that is known.
    mark: Tick,
    /// From its first failure on.
    failed: Option<Box<Failed<K>>>,
}

/// In place of an allowance: no deadline.
const NEVER: u64 = u64::MAX;

/// Of a call that has not been admitted.
const NO_NUMBER: u64 = u64::MAX;

/// What is remembered of a call that has failed before.
struct Failed<K> {
    progress: Progress,
    payment: Payment,
    last_error: Option<K>,
    waited_ms: u32,
    last: FailureKind,
}

/// What ends a running attempt, other than its answer.
enum Limit {
    Attempt,
    Deadline,
}

impl<S, Req, C, R, A> ResponseFuture<S, Req, C, R, A>
where
    S: Service<Req>,
    A: Mode<Req, S::Response, S::Error>,
{
    #[inline(always)]
    pub(super) fn new(
        service: S,
        request: Req,
        settings: Arc<Settings<RetryPolicy<C, R>, A>>,
        options: CallOptions,
        reserved: bool,
    ) -> Self {
        let call = Call::new(settings, options, reserved);
        Self { attempt: None, service, request: Some(request), call }
    }
}

impl<S, Req, C, R, A> Future for ResponseFuture<S, Req, C, R, A>
where
    S: Service<Req> + Clone,
    C: Classify<S::Response, S::Error>,
    R: Repeat<Req>,
    A: Mode<Req, S::Response, S::Error>,
{
    type Output = Result<A::Response, A::Error>;

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        let call = this.call;
        loop {
            let answer = if let Some(attempt) = this.attempt.as_mut().as_pin_mut() {
                // The attempt goes first, before its slot and before anything that follows.
                match attempt.poll(cx) {
                    Poll::Ready(result) => {
                        this.attempt.set(None);
                        call.conclude(cx, result, this.request)
                    }
                    Poll::Pending => match call.poll_limits(cx) {
                        Poll::Pending => return Poll::Pending,
                        Poll::Ready(limit) => {
                            this.attempt.set(None);
                            match limit {
                                Limit::Attempt => call.time_out(cx, this.request),
                                Limit::Deadline => Some(call.reject_late()),
                            }
                        }
                    },
                }
            } else {
                let paced = match call.poll_slot(cx, this.service) {
                    Poll::Pending => return Poll::Pending,
                    Poll::Ready(Ok(paced)) => paced,
                    Poll::Ready(Err(rejection)) => return Poll::Ready(call.reject(rejection)),
                };
                match call.poll_start(cx, this.service, this.request, paced) {
                    Poll::Ready(Ok(attempt)) => {
                        this.attempt.set(Some(attempt));
                        continue;
                    }
                    Poll::Ready(Err(error)) => {
                        *this.service = this.service.clone();
                        call.conclude_unready(cx, error, this.request)
                    }
                    // Not ready: a slot holder whose attempt has not started.
                    Poll::Pending => match call.poll_deadline(cx) {
                        Poll::Pending => return Poll::Pending,
                        Poll::Ready(()) => Some(call.reject_late()),
                    },
                }
            };
            if let Some(answer) = answer {
                return Poll::Ready(answer);
            }
            if call.yields() {
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
        }
    }
}

impl<P, A, K> Call<P, A, K> {
    #[inline]
    fn is_bounded(&self) -> bool {
        self.allowance != NEVER
    }

    /// When it was called; never, if the clock was not read.
    fn called(&self) -> Tick {
        self.called.map_or(Tick::NEVER, |called| self.lease.slots().clock.tick(called))
    }

    fn deadline(&self) -> Tick {
        if self.is_bounded() { Tick(self.called().0.saturating_add(self.allowance)) } else { Tick::NEVER }
    }

    fn attempts(&self) -> u32 {
        self.failed.as_ref().map_or(u32::from(self.lease.begun), |failed| failed.progress.attempts())
    }

    /// Failed, and to be tried again with no delay: first others of the same thread have their turn.
    fn yields(&self) -> bool {
        matches!(self.lease.stage, Stage::Waiting(_))
    }

    /// The call's last event.
    #[inline]
    fn ended(&self, outcome: &str) {
        if self.lease.told || self.failed.is_some() {
            self.tell_ended(outcome);
        }
    }

    #[cold]
    fn tell_ended(&self, outcome: &str) {
        let first_waited =
            if self.mark == Tick::NEVER { Duration::ZERO } else { self.mark.since(self.called()) };
        let waited = self
            .failed
            .as_ref()
            .map_or(first_waited, |failed| Duration::from_millis(failed.waited_ms.into()));
        let number = (self.number != NO_NUMBER).then_some(self.number);
        let ended = Ended { call: number, outcome, attempts: self.attempts(), waited, called: self.called() };
        events::call_ended(&self.lease.settings.shared, &ended);
    }
}

/// Dropped in any state, a call gives back what it holds, and counts as cancelled.
impl<P, A, K> Drop for Call<P, A, K> {
    #[inline]
    fn drop(&mut self) {
        if !self.lease.is_over() {
            self.ended(events::outcome(Some(End::Cancelled)));
            self.lease.give_back();
        }
    }
}

impl<C, R, A, K> Call<RetryPolicy<C, R>, A, K> {
    #[inline(always)]
    fn new(settings: Arc<Settings<RetryPolicy<C, R>, A>>, options: CallOptions, reserved: bool) -> Self {
        let told = events::enabled();
        let timed = settings.timed || options.timeout.is_some() || options.deadline.is_some() || told;
        let (mut called, mut allowance) = (None, NEVER);
        if timed {
            let now = Instant::now();
            called = Some(now);
            allowance = options.timeout.map_or(settings.allowance, nanos);
            if let (Some(own), None) = (options.deadline, options.timeout) {
                allowance = allowance.min(nanos(own.saturating_duration_since(now)));
            }
        }
        let class = match &options.class {
            None => settings.class_key(),
            Some(name) => settings.class_named(name),
        };
        // In one piece: it is not built here to be copied there.
        Self {
            lease: Lease {
                settings,
                stage: Stage::New { reserved },
                class,
                begun: false,
                stood: false,
                readying: false,
                own_timeout: options.timeout.is_some(),
                no_retry: options.no_retry,
                timed: false,
                told,
            },
            timer: Timer::new(),
            number: NO_NUMBER,
            called,
            allowance,
            mark: Tick::NEVER,
            failed: None,
        }
    }

    fn ticket(&self) -> Ticket {
        Ticket { class: self.lease.class, bounded: self.is_bounded() }
    }

    // ---- New, deferred, queued, readying -> starting ------------------------------------------------------------

    /// Ready with a slot, which counts as starting, and whether starts are paced; or with what the queue decided.
    #[inline(always)]
    fn poll_slot<S: Clone>(
        &mut self,
        cx: &mut Context<'_>,
        service: &mut S,
    ) -> Poll<Result<bool, Rejection>> {
        if let Stage::New { reserved } = self.lease.stage {
            // One that had no time left when it was called takes the longer way, where that is found.
            let expired = self.allowance == 0;
            if !reserved
                && self.lease.is_plain()
                && !expired
                && let Some(number) = self.lease.slots().try_start()
            {
                // New -> starting: nobody waits.
                self.number = number;
                self.lease.stage = Stage::Running(Stage::UNSEEN);
                // One in 16 is timed, so that a quiet queue knows how long an attempt takes.
                if self.is_bounded() && number.is_multiple_of(16) || self.lease.told {
                    self.mark = self.lease.slots().clock.now();
                    self.lease.timed = true;
                }
                return Poll::Ready(Ok(false));
            }
            return self.poll_enter(cx, service, reserved);
        }
        self.poll_wait(cx, service)
    }

    /// New -> starting, queued, or turned away.
    #[cold]
    fn poll_enter<S: Clone>(
        &mut self,
        cx: &mut Context<'_>,
        service: &mut S,
        reserved: bool,
    ) -> Poll<Result<bool, Rejection>> {
        let class = self.lease.class;
        if let Err(rejection) = self.lease.admit() {
            self.lease.give_back();
            self.lease.slots().shed(class);
            return Poll::Ready(Err(rejection));
        }
        let deadline = self.deadline();
        if self.is_bounded() {
            let now = self.lease.slots().clock.now();
            let held = || self.lease.slots().held_until().is_some_and(|until| until > deadline);
            if deadline <= now || held() {
                self.lease.give_back();
                self.lease.slots().too_late(class);
                return Poll::Ready(Err(self.late(now)));
            }
        }
        let longest = self.lease.settings.queue_timeout;
        let entered = self.lease.slots().enter(cx.waker().clone(), reserved, self.ticket(), longest);
        match entered {
            Entered::Started { arrival, paced } => {
                self.number = arrival;
                let clocked = self.is_bounded() || self.lease.told;
                self.slot_came(if clocked { self.lease.slots().clock.now() } else { Tick::NEVER });
                Poll::Ready(Ok(paced))
            }
            Entered::Queued { key, arrival, since, look_at } => {
                self.number = arrival;
                self.lease.stage = Stage::Waiting(key);
                self.lease.stood = true;
                self.mark = since;
                match self.timer.poll_at(look_at.min(deadline), &self.lease.slots().clock, cx) {
                    Poll::Pending => Poll::Pending,
                    Poll::Ready(()) => self.poll_wait(cx, service),
                }
            }
            Entered::Full { limit, waiting, retry_after } => {
                self.lease.stage = Stage::Over;
                Poll::Ready(Err(Rejection::Full { limit, waiting, retry_after }))
            }
            Entered::Closed => {
                self.lease.stage = Stage::Over;
                Poll::Ready(Err(Rejection::Closed))
            }
        }
    }

    /// Deferred -> queued; queued, readying -> starting.
    #[inline(never)]
    fn poll_wait<S: Clone>(
        &mut self,
        cx: &mut Context<'_>,
        service: &mut S,
    ) -> Poll<Result<bool, Rejection>> {
        let clock = self.lease.slots().clock;
        let mut clone = None;
        loop {
            let (key, longest) = match self.lease.stage {
                Stage::Deferred(key) => {
                    if self.timer.poll_at(self.mark, &clock, cx).is_ready() {
                        // Deferred -> queued: the delay is over.
                        let now = clock.now();
                        self.lease.slots().due(key, now);
                        self.lease.stage = Stage::Waiting(key);
                        self.mark = now;
                        continue;
                    }
                    (key, None)
                }
                Stage::Waiting(key) => (key, self.lease.settings.queue_timeout),
                Stage::New { .. } | Stage::Running(_) | Stage::Over => {
                    panic!("`queue::ResponseFuture` polled after it had ended")
                }
            };
            match self.lease.slots().poll(key, cx.waker(), clone.take(), longest) {
                Polled::NeedsWaker => clone = Some(cx.waker().clone()),
                Polled::Started { paced } => {
                    let bounded = self.is_bounded();
                    let now = if bounded || self.lease.told { clock.now() } else { Tick::NEVER };
                    let readying = std::mem::take(&mut self.lease.readying);
                    let stood = std::mem::take(&mut self.lease.stood);
                    if bounded && self.is_hopeless(now, stood && !readying) {
                        // Starting -> done: it would be answered too late.
                        self.lease.stage = Stage::Over;
                        self.lease.slots().give_up_start(paced, self.lease.class);
                        return Poll::Ready(Err(self.late(now)));
                    }
                    self.slot_came(now);
                    return Poll::Ready(Ok(paced));
                }
                Polled::Waits { look_at, held_until } => {
                    if std::mem::take(&mut self.lease.readying) {
                        // Readying -> queued, by a pause: what the inner service held for it goes, too.
                        *service = service.clone();
                    }
                    if held_until.is_some_and(|until| until > self.deadline()) {
                        return Poll::Ready(Err(self.leave(key, End::Deadline)));
                    }
                    let at = match self.lease.stage {
                        Stage::Waiting(_) => look_at.min(self.deadline()),
                        _ => return Poll::Pending,
                    };
                    self.lease.stood = true;
                    if self.timer.poll_at(at, &clock, cx).is_pending() {
                        return Poll::Pending;
                    }
                    if clock.now() >= self.deadline() {
                        return Poll::Ready(Err(self.leave(key, End::Deadline)));
                    }
                }
                Polled::TimedOut { waited } => {
                    self.lease.stage = Stage::Over;
                    return Poll::Ready(Err(Rejection::QueueTimeout { waited, attempts: self.attempts() }));
                }
                Polled::Settled(reason) => {
                    self.lease.stage = Stage::Over;
                    return Poll::Ready(Err(match reason {
                        Some(reason) => Rejection::Cleared { reason },
                        None => Rejection::Closed,
                    }));
                }
            }
        }
    }

    /// A slot has come, at `now` if the clock was read.
    fn slot_came(&mut self, now: Tick) {
        if let (Some(failed), Stage::Waiting(_), false) =
            (&mut self.failed, self.lease.stage, now == Tick::NEVER)
        {
            failed.wait(now.since(self.mark));
        }
        self.lease.stage = Stage::Running(Stage::UNSEEN);
        self.lease.timed = now != Tick::NEVER;
        self.mark = now;
    }

    /// Whether too little time is left for an attempt: less than `slack` typical ones, but never asking for more than
    /// half of the call's own allowance. Only of one that has `waited` for its slot; for others the time itself counts:
    /// a retry that found a free one was weighed when its delay was drawn.
    fn is_hopeless(&self, now: Tick, waited: bool) -> bool {
        let left = self.deadline().since(now);
        if left.is_zero() {
            return true;
        }
        let typical = self.lease.settings.shared.typical.get();
        let allowance = Duration::from_nanos(self.allowance);
        waited && left < typical.saturating_mul(self.lease.settings.slack).min(allowance / 2)
    }

    // ---- Starting -> running ------------------------------------------------------------------------------------

    /// Readies the inner service and calls it. Pending: it is not ready, and the call waits for it with its slot.
    #[inline(always)]
    fn poll_start<S, Req>(
        &mut self,
        cx: &mut Context<'_>,
        service: &mut S,
        request: &mut Option<Req>,
        paced: bool,
    ) -> Poll<Result<S::Future, S::Error>>
    where
        S: Service<Req>,
        R: Repeat<Req>,
    {
        let settings = &self.lease.settings;
        let shared = &*settings.shared;
        let mut starting = Starting::new(shared, paced);
        match service.poll_ready(cx) {
            Poll::Ready(Ok(())) => {}
            Poll::Ready(Err(error)) => {
                drop(starting);
                return Poll::Ready(Err(error));
            }
            Poll::Pending => {
                let waker = cx.waker().clone();
                starting.hand_back();
                self.wait_ready(waker);
                return Poll::Pending;
            }
        }
        let policy = &settings.policy;
        let first = self.failed.is_none();
        let progress = match &mut self.failed {
            None => first_attempt(),
            Some(failed) => {
                failed.progress.begin();
                std::mem::take(&mut failed.payment).spend(&mut failed.progress);
                failed.progress
            }
        };
        // There is one: it is put back as a copy whenever another attempt can follow.
        let Some(mut next) = request.take() else { panic!("`queue::ResponseFuture` polled after a panic") };
        let attempt = match self.called {
            Some(called) if self.allowance != NEVER => {
                Attempt::after(progress.attempts(), called, self.allowance)
            }
            _ => Attempt::new(progress.attempts(), None),
        };
        policy.repeater().prepare(&mut next, &attempt);
        if policy.repeats(&progress) && !self.lease.no_retry {
            *request = policy.repeater().copy(&next);
        }
        if self.lease.told {
            events::attempt_started(shared, self.number, progress.attempts());
        }
        starting.record();
        let attempt = service.call(next);
        drop(starting);
        if first {
            self.lease.begun = true;
        }
        Poll::Ready(Ok(attempt))
    }

    /// Starting -> readying.
    #[cold]
    fn wait_ready(&mut self, waker: Waker) {
        let slots = self.lease.slots();
        let now = slots.clock.now();
        let key = slots.unready(self.number, waker, self.ticket(), now);
        self.lease.stage = Stage::Waiting(key);
        self.lease.readying = true;
        self.mark = now;
    }

    // ---- Running ------------------------------------------------------------------------------------------------

    /// The attempt is pending: ready with the limit that it has reached.
    fn poll_limits(&mut self, cx: &mut Context<'_>) -> Poll<Limit> {
        let settings = &self.lease.settings;
        let clock = settings.shared.slots.clock;
        if let Stage::Running(Stage::UNSEEN) = self.lease.stage {
            let now = clock.now();
            if !self.lease.timed {
                self.mark = now;
            }
            self.lease.stage = Stage::Running(settings.shared.running.insert(now));
        }
        let attempt_timeout = settings.attempt_timeout.filter(|_| !self.lease.own_timeout);
        let ends = attempt_timeout.map_or(Tick::NEVER, |timeout| self.mark.after(timeout));
        match self.timer.poll_at(ends.min(self.deadline()), &clock, cx) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(()) if clock.now() >= self.deadline() => Poll::Ready(Limit::Deadline),
            Poll::Ready(()) => Poll::Ready(Limit::Attempt),
        }
    }

    /// Ready at the deadline.
    fn poll_deadline(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.timer.poll_at(self.deadline(), &self.lease.settings.shared.slots.clock, cx)
    }

    // ---- Running -> done, or deferred ---------------------------------------------------------------------------

    /// The attempt was answered. `None` where another one follows.
    #[inline(always)]
    fn conclude<Req, Res, E>(
        &mut self,
        cx: &mut Context<'_>,
        result: Result<Res, E>,
        request: &mut Option<Req>,
    ) -> Option<Result<A::Response, A::Error>>
    where
        C: Classify<Res, E>,
        R: Repeat<Req>,
        A: Mode<Req, Res, E, Kept = K>,
    {
        if self.lease.timed {
            self.sample();
        }
        let policy = &self.lease.settings.policy;
        match policy.classifier().classify(&result) {
            Verdict::Success => {
                // One whose first request had no copy takes no part in the budget.
                if request.is_some() || self.failed.is_some() {
                    let progress = self.failed.as_ref().map_or_else(first_attempt, |failed| failed.progress);
                    policy.succeeded(&progress);
                }
                Some(self.finish(result, None))
            }
            verdict => self.conclude_failure(cx, result, verdict, request),
        }
    }

    #[cold]
    fn conclude_failure<Req, Res, E>(
        &mut self,
        cx: &mut Context<'_>,
        result: Result<Res, E>,
        verdict: Verdict,
        request: &mut Option<Req>,
    ) -> Option<Result<A::Response, A::Error>>
    where
        C: Classify<Res, E>,
        R: Repeat<Req>,
        A: Mode<Req, Res, E, Kept = K>,
    {
        match verdict {
            Verdict::Success => Some(self.finish(result, None)),
            Verdict::Fatal => Some(self.give_up(Some(result))),
            Verdict::Retry(failure) => self.retry(cx, Some(result), &failure, request),
        }
    }

    /// The inner service said that it will never be ready: surely not processed.
    #[cold]
    fn conclude_unready<Req, Res, E>(
        &mut self,
        cx: &mut Context<'_>,
        error: E,
        request: &mut Option<Req>,
    ) -> Option<Result<A::Response, A::Error>>
    where
        C: Classify<Res, E>,
        R: Repeat<Req>,
        A: Mode<Req, Res, E, Kept = K>,
    {
        self.lease.begun = true;
        self.lease.timed = false;
        if let Some(failed) = &mut self.failed {
            failed.progress.begin();
            std::mem::take(&mut failed.payment).spend(&mut failed.progress);
        }
        let result = Err(error);
        let verdict = self.lease.settings.policy.classifier().classify(&result).not_processed();
        self.conclude_failure(cx, result, verdict, request)
    }

    /// The attempt was cut. `None` where another one follows.
    #[cold]
    fn time_out<Req, Res, E>(
        &mut self,
        cx: &mut Context<'_>,
        request: &mut Option<Req>,
    ) -> Option<Result<A::Response, A::Error>>
    where
        C: Classify<Res, E>,
        R: Repeat<Req>,
        A: Mode<Req, Res, E, Kept = K>,
    {
        // It counts with the time it took.
        self.sample();
        match Verdict::timeout() {
            Verdict::Retry(failure) => self.retry(cx, None, &failure, request),
            Verdict::Success | Verdict::Fatal => None,
        }
    }

    /// The attempt failed. `None` where another one follows.
    #[cold]
    fn retry<Req, Res, E>(
        &mut self,
        cx: &mut Context<'_>,
        result: Option<Result<Res, E>>,
        failure: &Failure,
        request: &mut Option<Req>,
    ) -> Option<Result<A::Response, A::Error>>
    where
        C: Classify<Res, E>,
        R: Repeat<Req>,
        A: Mode<Req, Res, E, Kept = K>,
    {
        let settings = Arc::clone(&self.lease.settings);
        let shared = &*settings.shared;
        let slots = &shared.slots;
        if let (Some(delay), FailureKind::Throttled | FailureKind::Unavailable) =
            (failure.retry_after, failure.kind)
        {
            // Before the slot is free, so that nobody slips through.
            slots.hold(delay);
        }
        let may_repeat =
            request.as_ref().is_some_and(|request| settings.policy.repeater().may_repeat(request, failure));
        let now = Instant::now();
        let tick = slots.clock.tick(now);
        let first_waited =
            if self.mark == Tick::NEVER { Duration::ZERO } else { self.mark.since(self.called()) };
        let ticket = self.ticket();
        let left = self.deadline().left(tick).map(|left| left.saturating_sub(shared.typical.get()));
        let failed = self.failed.get_or_insert_with(|| {
            let mut failed = Box::new(Failed {
                progress: first_attempt(),
                payment: Payment::default(),
                last_error: None,
                waited_ms: 0,
                last: failure.kind,
            });
            failed.wait(first_waited);
            failed
        });
        failed.last = failure.kind;
        failed.last_error = None;
        let decision = if self.lease.no_retry {
            Err(GaveUp::Attempts)
        } else {
            let draw = Draw { seed: shared.seed(), call: self.number };
            settings.policy.decide(failure, may_repeat, &mut failed.progress, draw, left, now)
        };
        let (retry, key) = match decision {
            Err(reason) => {
                if !settings.policy.is_single() {
                    events::retry_not_made(shared, self.number, &failed.progress, failure, reason);
                }
                return Some(self.give_up(result));
            }
            Ok(retry) => {
                let waker = cx.waker().clone();
                match slots.defer(self.number, waker, !retry.delay.is_zero(), ticket, tick) {
                    Some(key) => (retry, key),
                    // Closed: the caller gets the real result.
                    None => return Some(self.give_up(result)),
                }
            }
        };
        self.lease.unsee();
        if retry.delay.is_zero() {
            // Running -> queued, at the end of the line.
            self.lease.stage = Stage::Waiting(key);
            self.mark = tick;
        } else {
            // Running -> deferred.
            self.lease.stage = Stage::Deferred(key);
            self.mark = tick.after(retry.delay);
        }
        events::retry_scheduled(shared, self.number, &failed.progress, failure, retry.delay);
        failed.payment = retry.payment;
        match result {
            Some(Ok(response)) => settings.policy.classifier().discard(response),
            Some(Err(error)) => failed.last_error = Some(settings.mode.keep(error)),
            None => {}
        }
        None
    }

    /// Running -> done, with the attempt's own result, or the word that it was cut.
    fn give_up<Req, Res, E>(&mut self, result: Option<Result<Res, E>>) -> Result<A::Response, A::Error>
    where
        C: Classify<Res, E>,
        A: Mode<Req, Res, E, Kept = K>,
    {
        if let Some(result) = result {
            return self.finish(result, Some(End::Failed));
        }
        self.lease.end(Some(End::Failed), true);
        let now = self.lease.slots().clock.now();
        let elapsed = now.since(self.called());
        self.reject(Rejection::AttemptTimeout { attempts: self.attempts(), elapsed })
    }

    /// Running -> done. `end`: how, if not in success.
    #[inline(always)]
    fn finish<Req, Res, E>(
        &mut self,
        result: Result<Res, E>,
        end: Option<End>,
    ) -> Result<A::Response, A::Error>
    where
        C: Classify<Res, E>,
        A: Mode<Req, Res, E, Kept = K>,
    {
        self.ended(events::outcome(end));
        match result {
            Ok(mut response) => {
                let totals = Totals::new(self.attempts());
                self.lease.settings.policy.classifier().finish(&mut response, &totals);
                if A::HOLDS {
                    let slot: Slot = self.lease.hand_over_slot(end);
                    Ok(self.lease.settings.mode.hold(response, slot))
                } else {
                    self.lease.end(end, true);
                    Ok(self.lease.settings.mode.response(response))
                }
            }
            Err(error) => {
                self.lease.end(end, true);
                Err(self.lease.settings.mode.error(error))
            }
        }
    }

    /// The attempt that was timed is over.
    fn sample(&mut self) {
        self.lease.timed = false;
        let shared = &self.lease.settings.shared;
        shared.typical.sample(shared.slots.clock.now().since(self.mark));
    }

    // ---- Anything -> done, by the queue's own decision ------------------------------------------------------------

    fn reject<Req, Res, E>(&mut self, rejection: Rejection) -> Result<A::Response, A::Error>
    where
        A: Mode<Req, Res, E, Kept = K>,
    {
        self.timer.clear();
        let last = self.failed.as_mut().and_then(|failed| failed.last_error.take());
        self.ended(rejection.as_str());
        self.lease.settings.mode.reject(rejection, last)
    }

    /// Running, readying -> done, by the deadline.
    fn reject_late<Req, Res, E>(&mut self) -> Result<A::Response, A::Error>
    where
        A: Mode<Req, Res, E, Kept = K>,
    {
        let now = self.lease.slots().clock.now();
        match self.lease.stage {
            Stage::Waiting(key) => {
                self.lease.stage = Stage::Over;
                self.lease.slots().leave(key, End::Deadline);
            }
            _ => {
                if self.mark != Tick::NEVER {
                    // A cut attempt counts with the time it took.
                    self.sample();
                }
                self.lease.end(Some(End::Deadline), true);
            }
        }
        let rejection = self.late(now);
        self.reject(rejection)
    }

    /// Queued, deferred -> done.
    fn leave(&mut self, key: super::line::Key, end: End) -> Rejection {
        self.lease.stage = Stage::Over;
        self.lease.slots().leave(key, end);
        self.late(self.lease.slots().clock.now())
    }

    fn late(&self, now: Tick) -> Rejection {
        Rejection::Deadline {
            attempts: self.attempts(),
            elapsed: now.since(self.called()),
            last_failure: self.failed.as_ref().map(|failed| failed.last),
        }
    }
}

impl<K> Failed<K> {
    fn wait(&mut self, span: Duration) {
        let ms = u32::try_from(span.as_millis()).unwrap_or(u32::MAX);
        self.waited_ms = self.waited_ms.saturating_add(ms);
    }
}

/// The progress of a call at its first attempt.
#[inline]
fn first_attempt() -> Progress {
    let mut progress = Progress::default();
    progress.begin();
    progress
}

impl<S, Req, C, R, A> fmt::Debug for ResponseFuture<S, Req, C, R, A>
where
    S: Service<Req>,
    A: Mode<Req, S::Response, S::Error>,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseFuture").field("stage", &self.call.lease.stage).finish_non_exhaustive()
    }
}
