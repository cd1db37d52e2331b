use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use super::records::{Attempt, Outcome};
use super::step::{Readiness, Step, Track};

/// What a script, its services and their attempts share.
///
/// No user code runs and no waker is woken or dropped under the lock: either may lock again.
pub(super) struct Shared<A, E> {
    pub(super) epoch: Instant,
    /// Told of every start and every end.
    pub(super) changed: Notify,
    state: Mutex<State<A, E>>,
}

pub(super) struct State<A, E> {
    pub(super) steps: Track<Step<A, E>>,
    pub(super) readiness: Track<Readiness<E>>,
    /// How long an attempt takes whose step does not say.
    pub(super) delay: Option<Duration>,
    pub(super) hold_all: bool,
    /// Nothing is held any more, whatever the script says.
    pub(super) opened: bool,
    pub(super) max_reserved: usize,

    pub(super) attempts: Vec<Entry<A, E>>,
    pub(super) ends: Vec<Duration>,
    pub(super) running: usize,
    pub(super) peak: usize,
    pub(super) futures: usize,

    pub(super) ready_polls: usize,
    pub(super) reserved: usize,
    pub(super) instances: usize,
    pub(super) instances_made: usize,
    /// Clones that wait for readiness, in order of their first poll.
    pub(super) waiters: BTreeMap<u64, Waiter>,
    pub(super) tickets: u64,

    pub(super) violations: Vec<String>,
}

pub(super) struct Entry<A, E> {
    pub(super) record: Attempt,
    /// Waits for a release.
    pub(super) held: bool,
    /// What `Script::end` put in place of the attempt's own step.
    pub(super) instead: Option<Step<A, E>>,
    pub(super) waker: Option<Waker>,
}

pub(super) struct Waiter {
    pub(super) waker: Waker,
    /// Waits for a release, as opposed to room for another reservation.
    pub(super) held: bool,
}

impl<A, E> Shared<A, E> {
    pub(super) fn new() -> Self {
        Self {
            epoch: Instant::now(),
            changed: Notify::new(),
            state: Mutex::new(State {
                steps: Track::new(),
                readiness: Track::new(),
                delay: None,
                hold_all: false,
                opened: false,
                max_reserved: usize::MAX,
                attempts: Vec::new(),
                ends: Vec::new(),
                running: 0,
                peak: 0,
                futures: 0,
                ready_polls: 0,
                reserved: 0,
                instances: 0,
                instances_made: 0,
                waiters: BTreeMap::new(),
                tickets: 0,
                violations: Vec::new(),
            }),
        }
    }

    /// A test that failed on another thread must not hide behind a poisoned lock: each change is complete before
    /// anything can panic.
    pub(super) fn lock(&self) -> MutexGuard<'_, State<A, E>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn elapsed(&self) -> Duration {
        self.epoch.elapsed()
    }

    pub(super) fn new_instance(&self) -> usize {
        let mut state = self.lock();
        let id = state.instances_made;
        state.instances_made += 1;
        state.instances += 1;
        id
    }

    /// Records the start of an attempt, and returns its id.
    pub(super) fn start(&self, instance: usize) -> usize {
        let start = self.elapsed();
        let id = {
            let mut state = self.lock();
            let id = state.attempts.len();
            state.attempts.push(Entry {
                record: Attempt { id, instance, start, end: None, outcome: Outcome::Running, polls: 0 },
                held: false,
                instead: None,
                waker: None,
            });
            state.running += 1;
            state.futures += 1;
            state.peak = state.peak.max(state.running);
            id
        };
        self.changed.notify_waiters();
        id
    }

    /// Records the end of an attempt. The first end counts.
    pub(super) fn end(&self, id: usize, outcome: Outcome) {
        let now = self.elapsed();
        let gone = {
            let mut state = self.lock();
            let entry = &mut state.attempts[id];
            if entry.record.outcome != Outcome::Running {
                return;
            }
            entry.record.outcome = outcome;
            entry.record.end = Some(now);
            let gone = (entry.waker.take(), entry.instead.take());
            state.running -= 1;
            state.ends.push(now);
            gone
        };
        drop(gone);
        self.changed.notify_waiters();
    }

    /// Gives a reservation back, and tells those that wait for room.
    pub(super) fn give_back(&self) {
        let mut woken = Vec::new();
        {
            let mut state = self.lock();
            state.reserved -= 1;
            state.wake_for_room(&mut woken);
        }
        woken.into_iter().for_each(Waker::wake);
    }

    pub(super) fn violation(&self, what: String) {
        self.lock().violations.push(what);
    }
}

impl<A, E> State<A, E> {
    /// All of them: a woken clone may be dropped or left idle, so that waking one could strand the others.
    pub(super) fn wake_for_room(&self, woken: &mut Vec<Waker>) {
        woken.extend(self.waiters.values().filter(|waiter| !waiter.held).map(|waiter| waiter.waker.clone()));
    }
}
