use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;

use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use super::machine::{Event, Machine};
use super::settings::Settings;
use super::state::{self, Cause, CauseKind, LinkState};
use crate::facts::LinkFacts;
use crate::reject::Rejection;

/// What the handles, the callers and the driver of one link share.
///
/// Whoever has an event steps the machine, under the lock, so that it holds by the time the caller goes on: after
/// `broken` nobody is given that connection, after `give_up` no try starts. The driver is woken, and does what the new
/// state asks for.
pub(super) struct Shared<C> {
    core: Mutex<Core<C>>,
    /// What readers of the state see. Always brought up from `core`, never the other way.
    state: watch::Sender<LinkState>,
    /// Callers that wait for a connection, or for the loss of theirs.
    moved: Arc<Notify>,
    pub(super) settings: Settings,
}

struct Core<C> {
    machine: Machine,
    /// There in `Connected`, and only there.
    connection: Option<Arc<C>>,
    /// Transitions made, and how many of them the readers of the state have been shown.
    transitions: u64,
    shown: u64,
    /// Times that a connection was lost.
    lost: u64,
    /// Callers that hold a [`Seat`].
    waiting: usize,
    driver: Option<Waker>,
    /// No handle, lease or service is left.
    abandoned: bool,
}

/// What a caller finds.
pub(super) enum Look<C> {
    Connected(Arc<C>, u64),
    /// A lazy link that has to be started first.
    NotStarted,
    /// A connection may come.
    Down,
    /// None will come by itself.
    Disconnected,
}

/// What the driver is to do.
pub(super) enum Task<C> {
    /// What it did so far: the state has not changed.
    GoOn,
    /// Nobody needs the link any more.
    End,
    Nothing,
    Connect,
    Restore,
    Watch {
        generation: u64,
        connection: Arc<C>,
    },
    Wait {
        until: Instant,
    },
}

impl<C> Shared<C> {
    pub(super) fn new(settings: Settings) -> Self {
        let machine = Machine::new(settings.plan());
        let state = watch::Sender::new(machine.state().clone());
        Self {
            core: Mutex::new(Core {
                machine,
                connection: None,
                transitions: 0,
                shown: 0,
                lost: 0,
                waiting: 0,
                driver: None,
                abandoned: false,
            }),
            state,
            moved: Arc::new(Notify::new()),
            settings,
        }
    }

    /// No user code runs under this lock, so that nothing can poison it.
    fn lock(&self) -> MutexGuard<'_, Core<C>> {
        self.core.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn subscribe(&self) -> watch::Receiver<LinkState> {
        self.state.subscribe()
    }

    pub(super) fn moved(&self) -> Arc<Notify> {
        Arc::clone(&self.moved)
    }

    /// Takes an event from outside the driver.
    pub(super) fn step(&self, event: &Event) -> bool {
        let stepped = self.step_as_driver(event, None, None);
        if stepped {
            let driver = self.lock().driver.take();
            if let Some(driver) = driver {
                driver.wake();
            }
        }
        stepped
    }

    /// Takes what came of the work that the driver began for transition `seen`, if any; means nothing if the state
    /// has moved on since, even to a like one. `opened` is the connection that an `Event::Restored` is about.
    pub(super) fn step_as_driver(&self, event: &Event, opened: Option<Arc<C>>, seen: Option<u64>) -> bool {
        let now = Instant::now();
        let mut core = self.lock();
        if seen.is_some_and(|seen| seen != core.transitions) {
            drop(core);
            return false;
        }
        let Some(left) = core.machine.step(event, now) else {
            drop(core);
            return false;
        };
        core.transitions = core.transitions.wrapping_add(1);
        if matches!(event, Event::Lost { .. }) {
            core.lost = core.lost.saturating_add(1);
        }
        let opened = if core.machine.state().is_connected() { opened } else { None };
        let lost = std::mem::replace(&mut core.connection, opened);
        // Who waits for a connection waits on through the states between two of them.
        let callers_care = lost.is_some()
            || matches!(core.machine.state(), LinkState::Connected { .. } | LinkState::Disconnected { .. });
        let entered = core.machine.state().clone();
        drop(core);

        self.show();
        if callers_care {
            self.moved.notify_waiters();
        }
        self.tell(event, &entered, now);
        // What was left may own the last reference to a connection or an error of the user.
        drop((left, lost));
        true
    }

    /// Shows readers the newest state.
    ///
    /// Two transitions on two threads may get here in either order. Each brings up whatever is the newest by then,
    /// so that the older one cannot overwrite the newer one; and as the `watch` is locked first and the core inside,
    /// its readers are woken under no lock of ours.
    fn show(&self) {
        let mut old = None;
        self.state.send_if_modified(|shown| {
            let mut core = self.lock();
            if core.shown == core.transitions {
                return false;
            }
            core.shown = core.transitions;
            old = Some(std::mem::replace(shown, core.machine.state().clone()));
            true
        });
        drop(old);
    }

    /// The one place that emits events: each state that was entered, and the operator's act that led to it.
    fn tell(&self, event: &Event, state: &LinkState, now: Instant) {
        let link = self.settings.name.as_deref();
        let act = match event {
            Event::RetryNow => Some("retry_now"),
            Event::GiveUp => Some("give_up"),
            _ => None,
        };
        match state {
            LinkState::Connecting { attempt } => {
                tracing::info!(link, state = "connecting", attempt, act);
            }
            LinkState::Restoring { attempt } => {
                tracing::info!(link, state = "restoring", attempt);
            }
            LinkState::Connected { generation, .. } => {
                tracing::info!(link, state = "connected", generation);
            }
            LinkState::Waiting { attempt, until, cause } => {
                let delay = until.saturating_duration_since(now);
                tracing::info!(link, state = "waiting", attempt, ?delay, kind = cause.kind().as_str(), %cause);
            }
            LinkState::Disconnected { cause } => {
                tracing::info!(link, state = "disconnected", kind = cause.kind().as_str(), %cause, act);
            }
        }
    }

    pub(super) fn look(&self) -> Look<C> {
        let core = self.lock();
        match (core.machine.state(), &core.connection) {
            (LinkState::Connected { generation, .. }, Some(connection)) => {
                Look::Connected(Arc::clone(connection), *generation)
            }
            (LinkState::Disconnected { cause }, _) if cause.kind() == CauseKind::NotStarted => {
                Look::NotStarted
            }
            (LinkState::Disconnected { .. }, _) => Look::Disconnected,
            _ => Look::Down,
        }
    }

    pub(super) fn is_current(&self, of: u64) -> bool {
        matches!(self.lock().machine.state(), LinkState::Connected { generation, .. } if *generation == of)
    }

    pub(super) fn last_cause(&self) -> Option<Cause> {
        self.lock().machine.last_cause().cloned()
    }

    /// What a caller is told that finds the link as it is now.
    pub(super) fn rejection(&self) -> Rejection {
        let (state, last) = {
            let core = self.lock();
            (core.machine.state().clone(), core.machine.last_cause().cloned())
        };
        state::rejection(&state, last.as_ref(), Instant::now())
    }

    /// A place among those that wait, if there is one.
    pub(super) fn take_seat(self: &Arc<Self>) -> Option<Seat<C>> {
        let mut core = self.lock();
        if core.waiting >= self.settings.max_waiting {
            return None;
        }
        core.waiting += 1;
        Some(Seat { shared: Arc::clone(self) })
    }

    pub(super) fn facts(&self) -> LinkFacts {
        let core = self.lock();
        let up = usize::from(core.machine.state().is_connected());
        LinkFacts { up, down: 1 - up, lost: core.lost }
    }

    pub(super) fn waiting(&self) -> usize {
        self.lock().waiting
    }

    /// The driver's look: registers who is to be woken, and says what is to be done since transition `seen`.
    pub(super) fn drive(&self, waker: &Waker, seen: &mut Option<u64>) -> Task<C> {
        let waker = waker.clone();
        let (replaced, task) = {
            let mut core = self.lock();
            let replaced = core.driver.replace(waker);
            let task = if core.abandoned {
                Task::End
            } else if *seen == Some(core.transitions) {
                Task::GoOn
            } else {
                *seen = Some(core.transitions);
                match (core.machine.state(), &core.connection) {
                    (LinkState::Connecting { .. }, _) => Task::Connect,
                    (LinkState::Restoring { .. }, _) => Task::Restore,
                    (LinkState::Connected { generation, .. }, Some(connection)) => {
                        Task::Watch { generation: *generation, connection: Arc::clone(connection) }
                    }
                    (LinkState::Waiting { until, .. }, _) => Task::Wait { until: *until },
                    (LinkState::Connected { .. } | LinkState::Disconnected { .. }, _) => Task::Nothing,
                }
            };
            (replaced, task)
        };
        drop(replaced);
        task
    }

    fn abandon(&self) {
        let driver = {
            let mut core = self.lock();
            core.abandoned = true;
            core.driver.take()
        };
        if let Some(driver) = driver {
            driver.wake();
        }
    }
}

impl<C> fmt::Debug for Shared<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.lock().machine.state().clone();
        f.debug_struct("Shared")
            .field("name", &self.settings.name)
            .field("state", &state)
            .finish_non_exhaustive()
    }
}

/// A place among the callers that wait; given up on drop.
#[derive(Debug)]
pub(super) struct Seat<C> {
    shared: Arc<Shared<C>>,
}

impl<C> Drop for Seat<C> {
    fn drop(&mut self) {
        self.shared.lock().waiting -= 1;
    }
}

/// A driver that has not been spawned yet.
pub(super) type Undriven = Pin<Box<dyn Future<Output = ()> + Send>>;

/// What every handle, lease and service of a link holds. With the last of them the driver ends.
pub(super) struct Owner<C> {
    pub(super) shared: Arc<Shared<C>>,
    undriven: Mutex<Option<Undriven>>,
}

impl<C> Owner<C> {
    pub(super) fn new(shared: Arc<Shared<C>>) -> Self {
        Self { shared, undriven: Mutex::new(None) }
    }

    /// Keeps a driver until somebody wants the link.
    pub(super) fn keep_driver(&self, driver: Undriven) {
        let replaced = self.undriven.lock().unwrap_or_else(PoisonError::into_inner).replace(driver);
        drop(replaced);
    }

    /// The first caller: starts a link that waits for one.
    pub(super) fn want(&self) {
        self.spawn_driver();
        self.shared.step(&Event::Wanted);
    }

    pub(super) fn retry_now(&self) -> bool {
        self.spawn_driver();
        self.shared.step(&Event::RetryNow)
    }

    fn spawn_driver(&self) {
        let driver = self.undriven.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(driver) = driver {
            tokio::spawn(driver);
        }
    }
}

impl<C> Drop for Owner<C> {
    fn drop(&mut self) {
        self.shared.abandon();
    }
}

impl<C> fmt::Debug for Owner<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.shared.fmt(f)
    }
}
