//! The slots and the line: who runs, who waits, and who is woken.
//!
//! This part knows sync types, wakers and numbers, and nothing of tower or of futures. A call that finds a free slot
//! and nobody before it takes one with a single atomic step ([`Slots::try_start`]); everything else happens under one
//! lock, in a section ([`Slots::section`]) that ends by granting slots, letting knockers in and telling observers.
//!
//! While the word's flag is set, every call that comes and every success takes the lock. The flag is set on entry to a
//! section and cleared at its end if nobody waits or watches. So within a section the number of running attempts can
//! only fall, and whoever lets it fall sees the flag and makes a section of its own: no wake-up is lost.

use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use slab::Slab;

use super::gate::{Gate, Opens};
use super::line::{Key, Line};
use super::observers::{Figures, Observers, Until};
use super::sync::{AtomicU64, Condvar, Mutex, Ordering, lock, wait};
use super::time::{Clock, Tick};
use super::wakers::Wakers;
use super::word::{UNLIMITED, Word};

/// Where a call goes that comes back from its delay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Requeue {
    /// To the place of its original arrival, before all that came later: its own wait is about halved, and first
    /// attempts wait about a quarter longer.
    #[default]
    Arrival,
    /// To the end of the line.
    Back,
}

/// What a waiting call is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// In the line. The waker is gone once it was woken to look for itself.
    Queued,
    /// Has a slot and was woken; its attempt has not started.
    Granted,
    /// Has a slot; its inner service is not ready.
    Readying,
    /// Out of slot, until its delay is over.
    Deferred,
    /// Will never start: cleared for a reason, or closed.
    Settled,
}

impl Stage {
    fn holds_slot(self) -> bool {
        matches!(self, Self::Granted | Self::Readying)
    }
}

/// Small, since each call that waits has one: 32 bytes, and 16 for its place in the line.
#[derive(Debug)]
struct Call {
    waker: Option<Waker>,
    /// When it joined the line, on the clock that stands still while paused. Once settled: the key of the reason.
    since: Tick,
    ticket: Ticket,
    stage: Stage,
    /// Its queue timeout stands still while the queue is paused: to be woken on resume.
    stalled: bool,
}

/// Why calls were settled, kept until the last of them has been told.
#[derive(Debug)]
struct Reason {
    reason: Option<Arc<str>>,
    calls: usize,
}

/// What stays the same of a call.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Ticket {
    pub(super) class: ClassKey,
    /// It has a deadline: it has to look whether it can outlast a hold.
    pub(super) bounded: bool,
}

/// Which class a call counts for.
pub(super) type ClassKey = u16;

/// The class of calls that came through none. They need not take the lock.
pub(super) const NO_CLASS: ClassKey = 0;

/// Between the orders of two arrivals in a row lies room for those who join the end of the line meanwhile.
const ORDERS_AN_ARRIVAL: u64 = 1 << 16;

/// The place of an arrival. Beyond 2^48 of them, years of a million a second, all share the last.
fn order(arrival: u64) -> u64 {
    arrival.saturating_mul(ORDERS_AN_ARRIVAL)
}

/// What is counted for each class.
#[derive(Clone, Copy, Debug)]
pub(super) struct Class {
    pub(super) max_waiting: usize,
    pub(super) waiting: usize,
    pub(super) admitted: u64,
    pub(super) succeeded: u64,
    pub(super) failed: u64,
    /// Cancelled, cleared, or ended by a deadline or a timeout.
    pub(super) given_up: u64,
    pub(super) turned_away: u64,
    pub(super) shed: u64,
}

impl Class {
    const fn new() -> Self {
        Self {
            max_waiting: usize::MAX,
            waiting: 0,
            admitted: 0,
            succeeded: 0,
            failed: 0,
            given_up: 0,
            turned_away: 0,
            shed: 0,
        }
    }

    pub(super) fn running(&self) -> u64 {
        self.admitted.saturating_sub(self.succeeded + self.failed + self.given_up + self.waiting as u64)
    }
}

/// A service handle that waits for room.
#[derive(Debug)]
struct Knock {
    waker: Option<Waker>,
    /// It has been given a place.
    given: bool,
}

/// How a call ended that had been admitted, and did not succeed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    Failed,
    Cancelled,
    Deadline,
    QueueTimeout,
}

/// Counters that only grow. Success is not among them: it follows from the others.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    pub(super) failed: u64,
    pub(super) cancelled: u64,
    pub(super) cleared: u64,
    pub(super) deadline: u64,
    pub(super) queue_timeout: u64,
    pub(super) full: u64,
    pub(super) closed: u64,
    pub(super) shed: u64,
    pub(super) too_late: u64,
    pub(super) retries: u64,
    /// Attempts that ended otherwise than in their call's success.
    ended: u64,
}

impl Counts {
    /// Admitted calls that ended without success.
    fn unsuccessful(&self) -> u64 {
        self.failed + self.cancelled + self.cleared + self.deadline + self.queue_timeout
    }
}

#[derive(Debug)]
struct State {
    line: Line<Call>,
    door: Line<Knock>,
    gate: Gate,
    observers: Observers,
    limit: usize,
    max_waiting: usize,
    requeue: Requeue,
    paused_at: Option<Tick>,
    paused_for: Duration,
    closed: bool,
    granted: usize,
    readying: usize,
    deferred: usize,
    reserved: usize,
    stalled: usize,
    /// The order of the last call that came back to the end of the line.
    last_back: u64,
    /// Who stands at the head and has been told to watch the time.
    watcher: Option<Key>,
    classes: Vec<Class>,
    reasons: Slab<Reason>,
    counts: Counts,
    /// The largest counters ever shown: they never seem to fall.
    shown: Shown,
}

#[derive(Clone, Copy, Debug, Default)]
struct Shown {
    admitted: u64,
    succeeded: u64,
}

/// What came of a call that arrived.
#[derive(Debug)]
pub(super) enum Entered {
    /// It has a slot, and counts as starting. `paced`: [`Slots::record_start`] comes next.
    Started {
        arrival: u64,
        paced: bool,
    },
    /// It stands in the line.
    Queued {
        key: Key,
        arrival: u64,
        since: Tick,
        look_at: Tick,
    },
    Full {
        limit: usize,
        waiting: usize,
        retry_after: Option<Duration>,
    },
    Closed,
}

/// What came of looking at a waiting call again.
#[derive(Debug)]
pub(super) enum Polled {
    /// It has a slot, and counts as starting. `paced`: [`Slots::record_start`] comes next.
    Started { paced: bool },
    /// It waits; look again at `look_at`, even if nobody wakes it. No attempt starts before `held_until`.
    Waits { look_at: Tick, held_until: Option<Tick> },
    /// As `Waits`, but its waker has to be replaced: look again with a clone.
    NeedsWaker,
    /// It stood in the line for longer than it may, and is out of it.
    TimedOut { waited: Duration },
    /// It was settled: cleared for a reason, or closed.
    Settled(Option<Arc<str>>),
}

/// What came of asking for a place.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Knocked {
    /// One place is held.
    Place,
    /// There will never be one.
    Closed,
    Waits(Key),
}

/// One consistent reading of everything.
#[derive(Clone, Debug)]
pub(super) struct Snapshot {
    pub(super) figures: Figures,
    pub(super) counts: Counts,
    pub(super) succeeded: u64,
    pub(super) attempts: u64,
    pub(super) granted: usize,
    pub(super) reserved: usize,
    pub(super) held_until: Option<Tick>,
    pub(super) oldest_waiting: Option<Duration>,
}

/// The state that everything built from one layer value shares.
#[derive(Debug)]
pub(super) struct Slots {
    word: Word,
    /// How many calls were admitted; a call's number is the count before it.
    arrivals: AtomicU64,
    state: Mutex<State>,
    /// Notified when the last start is over, and on resume: what pausers wait for.
    starts_over: Condvar,
    pub(super) clock: Clock,
}

impl Slots {
    pub(super) fn new(limit: usize, max_waiting: usize) -> Self {
        Self {
            word: Word::new(limit),
            arrivals: AtomicU64::new(0),
            state: Mutex::new(State {
                line: Line::default(),
                door: Line::default(),
                gate: Gate::default(),
                observers: Observers::default(),
                limit,
                max_waiting,
                requeue: Requeue::default(),
                paused_at: None,
                paused_for: Duration::ZERO,
                closed: false,
                granted: 0,
                readying: 0,
                deferred: 0,
                reserved: 0,
                stalled: 0,
                last_back: 0,
                watcher: None,
                classes: vec![Class::new()],
                reasons: Slab::new(),
                counts: Counts::default(),
                shown: Shown::default(),
            }),
            starts_over: Condvar::new(),
            clock: Clock::new(),
        }
    }

    // ---- Configuration ----------------------------------------------------------------------------------------

    pub(super) fn set_max_waiting(&self, max_waiting: usize) {
        self.section(|state, _| state.max_waiting = max_waiting);
    }

    pub(super) fn set_requeue(&self, requeue: Requeue) {
        self.section(|state, _| state.requeue = requeue);
    }

    pub(super) fn set_pace(&self, most: usize, per: Duration) {
        self.section(|state, _| state.gate.set_pace(most, per));
    }

    pub(super) fn set_hold(&self, longest: Option<Duration>) {
        self.section(|state, _| state.gate.set_hold(longest));
    }

    /// A new class; `None` where there are as many as can be.
    pub(super) fn add_class(&self) -> Option<ClassKey> {
        self.section(|state, _| {
            let key = ClassKey::try_from(state.classes.len()).ok()?;
            state.classes.push(Class::new());
            Some(key)
        })
    }

    /// Calls of this class may wait while fewer than `max_waiting` of them do.
    pub(super) fn set_class_max_waiting(&self, class: ClassKey, max_waiting: usize) {
        self.section(|state, _| state.class(class).max_waiting = max_waiting);
    }

    pub(super) fn class(&self, class: ClassKey) -> Class {
        *lock(&self.state).class(class)
    }

    // ---- The life of a call ------------------------------------------------------------------------------------

    /// New -> starting: a slot is free and nobody waits or watches. For calls of no class.
    #[inline]
    pub(super) fn try_start(&self) -> Option<u64> {
        // The slot first: a snapshot that sees the arrival then sees the slot, too.
        self.word.try_start().then(|| self.arrivals.fetch_add(1, Ordering::AcqRel))
    }

    /// New -> starting, queued, or turned away.
    ///
    /// `reserved` is a place that a knock gave; it is used up. `longest` is the longest stay in the line.
    pub(super) fn enter(
        &self,
        waker: Waker,
        reserved: bool,
        ticket: Ticket,
        longest: Option<Duration>,
    ) -> Entered {
        // Where it is not kept, the waker is dropped here, after the lock.
        let mut waker = Some(waker);
        self.section(|state, wakers| {
            state.reserved -= usize::from(reserved);
            if state.closed {
                state.counts.closed += 1;
                state.class(ticket.class).turned_away += 1;
                return Entered::Closed;
            }
            // A call that is turned away at once does not pay for the clock.
            let timed = state.gate.is_timed();
            let now = if timed { self.clock.now() } else { Tick(0) };
            let starts = state.line.is_empty()
                && state.paused_at.is_none()
                && self.word.read().has_free_slot()
                && state.gate.opens(now) == Opens::Now;
            let room = reserved || self.has_room(state) && (starts || state.lets_wait());
            let class = state.class(ticket.class);
            if !room || !(starts || class.waiting < class.max_waiting) {
                class.turned_away += 1;
                state.counts.full += 1;
                return Entered::Full {
                    limit: state.limit,
                    waiting: state.waiting(),
                    retry_after: state.gate.held_until(now).map(|until| until.since(now)),
                };
            }
            class.admitted += 1;
            if state.observers.is_waiting() {
                // Whoever gave the last slot back may not have come for the lock yet, and would find this call: that the
                // queue was idle in between is seen here or never.
                let figures = self.figures(state);
                state.observers.see(figures, wakers);
            }
            let arrival = self.arrivals.fetch_add(1, Ordering::AcqRel);
            if starts {
                self.word.take();
                self.word.starts();
                state.gate.granted();
                return Entered::Started { arrival, paced: state.gate.is_paced() };
            }
            let now = if timed { now } else { self.clock.now() };
            let key = state.queue(arrival, waker.take(), ticket, now);
            state.line.join(key, order(arrival));
            let timeout = state.timeout(key, longest, now).unwrap_or(now);
            Entered::Queued { key, arrival, since: now, look_at: timeout.min(state.watch(key, now)) }
        })
    }

    /// A call that was not served at the present level.
    pub(super) fn shed(&self, class: ClassKey) {
        self.section(|state, _| {
            state.counts.shed += 1;
            state.class(class).shed += 1;
        });
    }

    /// A call that came too late to be admitted: its deadline had passed, or it could not outlast a hold.
    pub(super) fn too_late(&self, class: ClassKey) {
        self.section(|state, _| {
            state.counts.too_late += 1;
            state.class(class).turned_away += 1;
        });
    }

    /// Looks at a waiting call: its task was woken, or the time came that it was told.
    ///
    /// `clone` is a clone of `waker`, once [`Polled::NeedsWaker`] has asked for one.
    pub(super) fn poll(
        &self,
        key: Key,
        waker: &Waker,
        clone: Option<Waker>,
        longest: Option<Duration>,
    ) -> Polled {
        // Wakers that are not kept are dropped here, after the lock.
        let mut clone = clone;
        let mut _old = None;
        self.section(|state, wakers| {
            let timed = longest.is_some() || state.gate.is_timed();
            let now = if timed { self.clock.now() } else { Tick(0) };
            // It is awake already: what this very look grants need not wake it.
            let own = state.line.get_mut(key).waker.take();
            self.grant(state, wakers);
            match state.line.get(key).stage {
                // Granted, readying -> starting
                Stage::Granted | Stage::Readying => {
                    _old = own;
                    state.take_out(key);
                    self.word.starts();
                    return Polled::Started { paced: state.gate.is_paced() };
                }
                Stage::Settled => {
                    _old = own;
                    return Polled::Settled(state.tell(key));
                }
                Stage::Queued | Stage::Deferred => {}
            }
            let timeout = match state.timeout(key, longest, now) {
                Ok(timeout) => timeout,
                Err(waited) => {
                    _old = own;
                    let class = state.line.get(key).ticket.class;
                    state.count(class, End::QueueTimeout);
                    state.take_out(key);
                    return Polled::TimedOut { waited };
                }
            };
            let keep = match own {
                Some(own) if own.will_wake(waker) => Some(own),
                own => {
                    _old = own;
                    clone.take()
                }
            };
            let kept = keep.is_some();
            state.line.get_mut(key).waker = keep;
            if !kept {
                return Polled::NeedsWaker;
            }
            let look_at = timeout.min(state.watch(key, now));
            Polled::Waits { look_at, held_until: state.gate.held_until(now) }
        })
    }

    /// Starting, where starts are paced: the inner service is ready, and its `call` comes next.
    pub(super) fn record_start(&self) {
        self.section(|state, _| state.gate.started(self.clock.now()));
    }

    /// Starting -> running: the inner service's `call` has returned, or panicked.
    #[inline]
    pub(super) fn started(&self) {
        if self.word.started() {
            self.tell_pausers();
        }
    }

    #[cold]
    fn tell_pausers(&self) {
        // With the lock: a pauser has then seen this start's end, or waits already.
        drop(lock(&self.state));
        self.starts_over.notify_all();
    }

    /// A start that came to nothing before [`record_start`](Self::record_start): the pace is not used up.
    pub(super) fn abandon_start(&self) {
        self.section(|state, _| state.gate.returned());
    }

    /// Starting -> done: the slot came too late for the call.
    pub(super) fn give_up_start(&self, paced: bool, class: ClassKey) {
        self.section(|state, _| {
            if self.word.started() {
                self.starts_over.notify_all();
            }
            self.word.release();
            if paced {
                state.gate.returned();
            }
            state.count(class, End::Deadline);
        });
    }

    /// Starting -> readying: the inner service is not ready. On a paused queue, starting -> queued.
    pub(super) fn unready(&self, arrival: u64, waker: Waker, ticket: Ticket, now: Tick) -> Key {
        let mut waker = Some(waker);
        self.section(|state, _| {
            if self.word.started() {
                self.starts_over.notify_all();
            }
            let key = state.queue(arrival, waker.take(), ticket, now);
            if state.paused_at.is_some() {
                self.word.release();
                state.gate.returned();
                state.line.rejoin(key);
            } else {
                state.class(ticket.class).waiting -= 1;
                state.line.get_mut(key).stage = Stage::Readying;
                state.readying += 1;
            }
            key
        })
    }

    /// Running -> done, with a success.
    #[inline]
    pub(super) fn succeed(&self, class: ClassKey) {
        if self.word.release() || class != NO_CLASS {
            self.succeeded_slowly(class);
        }
    }

    #[cold]
    fn succeeded_slowly(&self, class: ClassKey) {
        self.section(|state, _| {
            state.class(class).succeeded += 1;
            if state.gate.guards() {
                state.gate.succeeded(state.limit, self.clock.now());
            }
        });
    }

    /// Running -> done, without success. `attempted`: an attempt had begun.
    pub(super) fn end(&self, class: ClassKey, end: End, attempted: bool) {
        self.section(|state, _| {
            self.word.release();
            state.count(class, end);
            state.counts.ended += u64::from(attempted);
        });
    }

    /// Running -> deferred: the slot is free before the delay starts. With no delay, running -> queued, at the end.
    ///
    /// `None` on a closed queue: there will be no other attempt, and the call still has its slot.
    pub(super) fn defer(
        &self,
        arrival: u64,
        waker: Waker,
        delayed: bool,
        ticket: Ticket,
        now: Tick,
    ) -> Option<Key> {
        let mut waker = Some(waker);
        self.section(|state, wakers| {
            if state.closed {
                return None;
            }
            self.word.release();
            state.counts.retries += 1;
            state.counts.ended += 1;
            let key = state.queue(arrival, None, ticket, now);
            if delayed {
                state.line.get_mut(key).stage = Stage::Deferred;
                state.deferred += 1;
            } else {
                // Behind all that wait now, so that no failing call can spin on a slot.
                self.join_back(state, key);
                // It is awake already, as in `poll`.
                self.grant(state, wakers);
            }
            state.line.get_mut(key).waker = waker.take();
            Some(key)
        })
    }

    /// Deferred -> queued: the delay is over. Nothing where it was settled while it slept.
    pub(super) fn due(&self, key: Key, now: Tick) {
        self.section(|state, wakers| {
            let since = state.active(now);
            let call = state.line.get_mut(key);
            if call.stage != Stage::Deferred {
                return;
            }
            // It is awake already, as in `poll`.
            let own = call.waker.take();
            call.stage = Stage::Queued;
            call.since = since;
            state.deferred -= 1;
            match state.requeue {
                Requeue::Arrival => state.line.rejoin(key),
                Requeue::Back => self.join_back(state, key),
            }
            self.grant(state, wakers);
            state.line.get_mut(key).waker = own;
        });
    }

    /// Queued, granted, readying, deferred, settled -> done: the call gives back what it holds.
    pub(super) fn leave(&self, key: Key, end: End) {
        let _waker = self.section(|state, _| {
            let Call { stage, ticket, .. } = *state.line.get(key);
            if stage == Stage::Settled {
                state.tell(key);
                return None;
            }
            if stage.holds_slot() {
                self.word.release();
                state.gate.returned();
            }
            state.count(ticket.class, end);
            state.take_out(key)
        });
    }

    /// A server asked to be left alone for `delay`: holds the line, where the queue does so.
    pub(super) fn hold(&self, delay: Duration) {
        self.section(|state, wakers| {
            if !state.gate.hold(delay, self.clock.now()) {
                return;
            }
            self.recall(state, wakers);
            // Those with a deadline see for themselves whether they can outlast it.
            for key in state.line.by_order() {
                let call = state.line.get_mut(key);
                if call.ticket.bounded {
                    wakers.push(call.waker.take());
                }
            }
        });
    }

    /// Until when the line is held.
    pub(super) fn held_until(&self) -> Option<Tick> {
        let state = lock(&self.state);
        if state.gate.is_timed() { state.gate.held_until(self.clock.now()) } else { None }
    }

    // ---- The operator ------------------------------------------------------------------------------------------

    /// Once this has returned, no attempt starts until [`resume`](Self::resume).
    ///
    /// `inside`: this thread is inside the inner service's `call` on behalf of this very queue. Then there is no wait
    /// for starts to be over, since this one is not.
    pub(super) fn pause(&self, inside: bool) {
        self.section(|state, wakers| {
            if state.paused_at.is_some() {
                return;
            }
            state.paused_at = Some(self.clock.now());
            self.recall(state, wakers);
        });
        if inside {
            return;
        }
        let mut state = lock(&self.state);
        // If somebody resumes meanwhile, new starts may go on for ever.
        while self.word.read().starting() > 0 && state.paused_at.is_some() {
            state = wait(&self.starts_over, state);
        }
    }

    /// Starts calls again, in order.
    pub(super) fn resume(&self) {
        self.section(|state, wakers| {
            let Some(at) = state.paused_at.take() else { return };
            state.paused_for += self.clock.now().since(at);
            if std::mem::take(&mut state.stalled) > 0 {
                for key in state.line.by_order() {
                    let call = state.line.get_mut(key);
                    if std::mem::take(&mut call.stalled) {
                        wakers.push(call.waker.take());
                    }
                }
            }
            state.watcher = None;
            self.starts_over.notify_all();
        });
    }

    pub(super) fn is_paused(&self) -> bool {
        lock(&self.state).paused_at.is_some()
    }

    /// Settles every call that waits, and every slot holder whose attempt has not started; returns how many.
    ///
    /// `reason` is the operator's; with none, the calls are told that the queue is closed.
    pub(super) fn clear(&self, reason: Option<&Arc<str>>) -> usize {
        self.section(|state, wakers| {
            let told = state.reasons.insert(Reason { reason: reason.cloned(), calls: 0 });
            let mut cleared = 0;
            for key in state.line.by_order() {
                let stage = state.line.get(key).stage;
                if stage == Stage::Settled {
                    continue;
                }
                if stage.holds_slot() {
                    self.word.release();
                    state.gate.returned();
                }
                wakers.push(state.withdraw(key));
                let call = state.line.get_mut(key);
                call.since = Tick(told as u64);
                let class = call.ticket.class;
                state.class(class).given_up += 1;
                cleared += 1;
            }
            match cleared {
                0 => drop(state.reasons.remove(told)),
                cleared => state.reasons[told].calls = cleared,
            }
            state.counts.cleared += cleared as u64;
            cleared
        })
    }

    /// No call is admitted any more. `true` for the first to close.
    pub(super) fn close(&self) -> bool {
        self.section(|state, wakers| {
            // Every knocker is woken, to hear that it is closed.
            while let Some(key) = state.door.front() {
                state.door.leave(key);
                wakers.push(state.door.get_mut(key).waker.take());
            }
            !std::mem::replace(&mut state.closed, true)
        })
    }

    pub(super) fn set_limit(&self, limit: usize) {
        self.section(|state, wakers| {
            state.limit = limit;
            if self.word.read().running() > limit {
                // Shrinking starts nothing until fewer run: who has not started waits, as far as need be.
                self.recall(state, wakers);
            }
        });
    }

    // ---- Room for one more -------------------------------------------------------------------------------------

    /// Asks for a place. `key` is what an earlier knock returned. `Err` asks for a clone of the waker.
    pub(super) fn knock(
        &self,
        key: Option<Key>,
        waker: &Waker,
        clone: Option<Waker>,
    ) -> Result<Knocked, Option<Key>> {
        let mut clone = clone;
        let mut _old = None;
        self.section(|state, _| {
            if state.closed {
                if let Some(key) = key {
                    let knock = state.door.remove(key);
                    state.reserved -= usize::from(knock.given);
                    _old = knock.waker;
                }
                return Ok(Knocked::Closed);
            }
            match key {
                Some(key) if state.door.get(key).given => {
                    state.door.remove(key);
                    Ok(Knocked::Place)
                }
                Some(key) => {
                    let knock = state.door.get_mut(key);
                    if knock.waker.as_ref().is_some_and(|kept| kept.will_wake(waker)) {
                        return Ok(Knocked::Waits(key));
                    }
                    let Some(clone) = clone.take() else { return Err(Some(key)) };
                    _old = knock.waker.replace(clone);
                    Ok(Knocked::Waits(key))
                }
                None if state.door.is_empty() && self.has_room(state) => {
                    state.reserved += 1;
                    Ok(Knocked::Place)
                }
                None => {
                    let Some(clone) = clone.take() else { return Err(None) };
                    let key = state.door.insert(0, Knock { waker: Some(clone), given: false });
                    state.door.join(key, 0);
                    Ok(Knocked::Waits(key))
                }
            }
        })
    }

    /// Gives up a knock that waited, with the place it may have been given meanwhile.
    pub(super) fn give_up_knock(&self, key: Key) {
        let _waker = self.section(|state, _| {
            let knock = state.door.remove(key);
            state.reserved -= usize::from(knock.given);
            knock.waker
        });
    }

    /// Gives up a place.
    pub(super) fn give_up_place(&self) {
        self.section(|state, _| state.reserved -= 1);
    }

    // ---- Seeing it ---------------------------------------------------------------------------------------------

    /// Waits until a state is reached; `None` if it is now.
    pub(super) fn observe(&self, until: Until, waker: Waker) -> Option<usize> {
        let mut waker = Some(waker);
        self.section(|state, _| {
            if self.figures(state).satisfy(until) {
                return None;
            }
            waker.take().map(|waker| state.observers.add(until, waker))
        })
    }

    /// Whether the state was reached since. `Err` asks for a clone of the waker.
    pub(super) fn observed(&self, key: usize, waker: &Waker, clone: Option<Waker>) -> Result<bool, ()> {
        let mut _old = None;
        let mut state = lock(&self.state);
        match (state.observers.will_wake(key, waker), clone) {
            (None, clone) => {
                _old = clone;
                Ok(true)
            }
            (Some(true), clone) => {
                _old = clone;
                Ok(false)
            }
            (Some(false), Some(clone)) => {
                _old = state.observers.replace(key, clone);
                Ok(false)
            }
            (Some(false), None) => Err(()),
        }
    }

    pub(super) fn stop_observing(&self, key: usize) {
        let _waker = self.section(|state, _| state.observers.remove(key));
    }

    pub(super) fn snapshot(&self) -> Snapshot {
        let mut state = lock(&self.state);
        let now = self.clock.now();
        let figures = self.figures(&mut state);
        let reading = self.word.read();
        let active = state.active(now);
        let counts = state.counts;
        let succeeded = state.shown.succeeded;
        let begun = reading.running().saturating_sub(state.granted + state.readying + reading.starting());
        Snapshot {
            figures,
            counts,
            succeeded,
            attempts: succeeded + counts.ended + begun as u64,
            granted: state.granted,
            reserved: state.reserved,
            held_until: state.gate.held_until(now),
            oldest_waiting: state
                .line
                .members()
                .filter(|(_, call)| call.stage == Stage::Queued)
                .map(|(_, call)| active.since(call.since))
                .max(),
        }
    }

    // ---- Sections ----------------------------------------------------------------------------------------------

    /// Runs `act` under the lock, then grants, lets in, tells observers; wakes once the lock is free.
    fn section<R>(&self, act: impl FnOnce(&mut State, &mut Wakers) -> R) -> R {
        let mut wakers = Wakers::default();
        let answer = {
            let mut state = lock(&self.state);
            self.word.slow();
            let answer = act(&mut state, &mut wakers);
            let limit = state.gate.limit(state.limit);
            if self.word.read().limit() != limit {
                self.word.set_limit(limit);
            }
            self.grant(&mut state, &mut wakers);
            self.let_in(&mut state, &mut wakers);
            if state.observers.is_waiting() {
                let figures = self.figures(&mut state);
                state.observers.see(figures, &mut wakers);
            }
            if state.is_quiet() {
                self.word.fast();
            }
            answer
        };
        wakers.wake();
        answer
    }

    /// Queued -> granted, in order, while slots are free and the gate is open.
    fn grant(&self, state: &mut State, wakers: &mut Wakers) {
        while let Some(key) = state.line.front() {
            if state.paused_at.is_some() || !self.word.read().has_free_slot() {
                return;
            }
            if state.gate.is_timed() {
                match state.gate.opens(self.clock.now()) {
                    Opens::Now => {}
                    Opens::Later => return,
                    Opens::At(_) => {
                        // The head keeps the timer; a new head is woken to take over.
                        if state.watcher != Some(key) {
                            state.watcher = Some(key);
                            wakers.push(state.line.get_mut(key).waker.take());
                        }
                        return;
                    }
                }
            }
            self.word.take();
            state.gate.granted();
            wakers.push(state.withdraw(key));
            state.line.get_mut(key).stage = Stage::Granted;
            state.granted += 1;
        }
    }

    /// Joins the end of the line: behind all that have arrived, before the next that will.
    fn join_back(&self, state: &mut State, key: Key) {
        let next = order(self.arrivals.load(Ordering::Acquire));
        let first = next.saturating_sub(ORDERS_AN_ARRIVAL) + 1;
        // Beyond 65 535 since the last arrival they share a number, and stand as they came.
        state.last_back = match next {
            u64::MAX => next,
            _ => (state.last_back + 1).clamp(first, next.saturating_sub(1).max(first)),
        };
        state.line.join(key, state.last_back);
    }

    /// Granted, readying -> queued: those that hold a slot and have not started, since no attempt may start now.
    ///
    /// One that readies is woken, to give up what the inner service holds for it.
    fn recall(&self, state: &mut State, wakers: &mut Wakers) {
        if state.granted + state.readying == 0 {
            return;
        }
        for key in state.line.by_order() {
            if !state.line.get(key).stage.holds_slot() {
                continue;
            }
            self.word.release();
            state.gate.returned();
            wakers.push(state.withdraw(key));
            state.stand(key);
            state.line.rejoin(key);
        }
    }

    /// Gives places to those who knock, in order, while there is room.
    fn let_in(&self, state: &mut State, wakers: &mut Wakers) {
        while let Some(key) = state.door.front() {
            if !self.has_room(state) {
                return;
            }
            state.door.leave(key);
            let knock = state.door.get_mut(key);
            knock.given = true;
            wakers.push(knock.waker.take());
            state.reserved += 1;
        }
    }

    fn has_room(&self, state: &State) -> bool {
        let waiting = state.waiting() + state.reserved;
        if state.limit == UNLIMITED {
            // With a bound of zero, for those that need not wait.
            waiting == 0 || waiting < state.max_waiting
        } else {
            waiting + self.word.read().running() < state.limit.saturating_add(state.max_waiting)
        }
    }

    fn figures(&self, state: &mut State) -> Figures {
        // Arrivals before the word: who is counted as arrived is then seen as running, or has succeeded.
        let arrived = self.arrivals.load(Ordering::Acquire);
        let reading = self.word.read();
        let (running, waiting) = (reading.running() as u64, state.waiting() as u64);
        let counts = state.counts;
        let unsuccessful = counts.unsuccessful();
        // Calls between taking a slot and being counted as arrived would make this fall short for a moment.
        let shown = &mut state.shown;
        let succeeded = arrived.saturating_sub(running + waiting + unsuccessful).max(shown.succeeded);
        let admitted = succeeded + running + waiting + unsuccessful;
        let missing = shown.admitted.saturating_sub(admitted);
        *shown = Shown { admitted: admitted + missing, succeeded: succeeded + missing };
        Figures {
            admitted: shown.admitted,
            running: reading.running(),
            queued: state.line.len(),
            deferred: state.deferred,
            turned_away: counts.full + counts.closed + counts.shed + counts.too_late,
            limit: reading.limit(),
            paused: state.paused_at.is_some(),
            closed: state.closed,
        }
    }
}

impl State {
    fn class(&mut self, class: ClassKey) -> &mut Class {
        &mut self.classes[usize::from(class)]
    }

    /// An admitted call ends without success.
    fn count(&mut self, class: ClassKey, end: End) {
        let class = &mut self.classes[usize::from(class)];
        match end {
            End::Failed => class.failed += 1,
            End::Cancelled | End::Deadline | End::QueueTimeout => class.given_up += 1,
        }
        let counts = &mut self.counts;
        match end {
            End::Failed => counts.failed += 1,
            End::Cancelled => counts.cancelled += 1,
            End::Deadline => counts.deadline += 1,
            End::QueueTimeout => counts.queue_timeout += 1,
        }
    }

    fn waiting(&self) -> usize {
        self.line.len() + self.deferred
    }

    /// `now` on the clock that stands still while the queue is paused.
    fn active(&self, now: Tick) -> Tick {
        Tick(self.paused_at.unwrap_or(now).since(Tick(0)).saturating_sub(self.paused_for).as_nanos() as u64)
    }

    /// A new member that is queued, and has yet to join the line.
    fn queue(&mut self, arrival: u64, waker: Option<Waker>, ticket: Ticket, now: Tick) -> Key {
        let since = self.active(now);
        self.class(ticket.class).waiting += 1;
        self.line.insert(order(arrival), Call { waker, since, ticket, stage: Stage::Queued, stalled: false })
    }

    /// A member that was withdrawn is queued, and has yet to join the line again.
    fn stand(&mut self, key: Key) {
        let call = self.line.get_mut(key);
        call.stage = Stage::Queued;
        let class = call.ticket.class;
        self.class(class).waiting += 1;
    }

    /// Takes a call that is not settled out of the line and out of all counts, and returns its waker. It stays a
    /// member, settled, for another stage to be set.
    fn withdraw(&mut self, key: Key) -> Option<Waker> {
        let call = self.line.get_mut(key);
        self.stalled -= usize::from(std::mem::take(&mut call.stalled));
        let stage = std::mem::replace(&mut call.stage, Stage::Settled);
        let waker = call.waker.take();
        match stage {
            Stage::Queued | Stage::Deferred => self.classes[usize::from(call.ticket.class)].waiting -= 1,
            Stage::Granted => self.granted -= 1,
            Stage::Readying => self.readying -= 1,
            Stage::Settled => {}
        }
        if stage == Stage::Deferred {
            self.deferred -= 1;
        }
        self.line.leave(key);
        if self.watcher == Some(key) {
            self.watcher = None;
        }
        waker
    }

    /// A settled call is told why, and is no longer a member.
    fn tell(&mut self, key: Key) -> Option<Arc<str>> {
        let told = self.line.remove(key).since.0 as usize;
        let reason = &mut self.reasons[told];
        reason.calls -= 1;
        if reason.calls == 0 { self.reasons.remove(told).reason } else { reason.reason.clone() }
    }

    /// Withdraws a call that is no longer a member. The waker is to be dropped after the lock.
    fn take_out(&mut self, key: Key) -> Option<Waker> {
        let waker = self.withdraw(key);
        self.line.remove(key);
        waker
    }

    /// When a call's stay in the line ends, or how long it has been there if it ended.
    fn timeout(&mut self, key: Key, longest: Option<Duration>, now: Tick) -> Result<Tick, Duration> {
        let active = self.active(now);
        let call = self.line.get_mut(key);
        let (Some(longest), Stage::Queued) = (longest, call.stage) else { return Ok(Tick::NEVER) };
        let waited = active.since(call.since);
        if waited >= longest {
            return Err(waited);
        }
        if self.paused_at.is_some() {
            // Its time stands still; `resume` wakes it to look again.
            self.stalled += usize::from(!std::mem::replace(&mut call.stalled, true));
            return Ok(Tick::NEVER);
        }
        Ok(now.after(longest - waited))
    }

    /// When the head has to look again, since only time holds it back.
    fn watch(&mut self, key: Key, now: Tick) -> Tick {
        if self.paused_at.is_none()
            && self.gate.is_timed()
            && self.line.front() == Some(key)
            && let Opens::At(at) = self.gate.opens(now)
        {
            self.watcher = Some(key);
            return at;
        }
        if self.watcher == Some(key) {
            self.watcher = None;
        }
        Tick::NEVER
    }

    /// Nobody waits, nothing is watched, and nothing forbids a start: calls need not take the lock.
    fn is_quiet(&self) -> bool {
        self.paused_at.is_none()
            && !self.closed
            && self.line.is_empty()
            && self.door.is_empty()
            && !self.gate.guards()
            && !self.observers.is_waiting()
            && !self.is_crowded()
    }

    /// Run or reject, without a limit, leaves a call that cannot start nothing to wait for.
    fn lets_wait(&self) -> bool {
        self.limit != UNLIMITED || self.max_waiting > 0
    }

    /// A free slot alone does not mean that there is room.
    fn is_crowded(&self) -> bool {
        let waiting = self.waiting() + self.reserved;
        if self.limit == UNLIMITED {
            waiting > 0 && waiting >= self.max_waiting
        } else {
            waiting > self.max_waiting
        }
    }
}

#[cfg(all(test, not(sluice_loom)))]
mod tests {
    use super::*;

    #[test]
    fn q4_the_line_goes_on_when_there_are_no_more_numbers_for_its_order() {
        let slots = Slots::new(1, 16);
        slots.arrivals.store((1 << 48) - 1, Ordering::Release);
        let now = Tick(1);
        let waker = || Waker::noop().clone();
        let queue = || match slots.enter(waker(), false, Ticket::default(), None) {
            Entered::Queued { key, .. } => key,
            other => panic!("{other:?}"),
        };
        let first = slots.try_start().unwrap();
        slots.started();
        let (second, third) = (queue(), queue());
        // Failed without a delay: behind both.
        let back = slots.defer(first, waker(), false, Ticket::default(), now).unwrap();
        for key in [second, third, back] {
            let polled = slots.poll(key, Waker::noop(), Some(waker()), None);
            assert!(matches!(polled, Polled::Started { .. }), "{polled:?}");
            slots.started();
            slots.succeed(NO_CLASS);
        }
    }
}
