//! The level that holds now, for those who react to it.

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;
use tokio::time::Instant;

use super::position::{Move, Position};
use super::reading::{Cause, Reading};
use crate::error::ConfigError;
use crate::facts::Facts;
use crate::reject::{Admit, Rejection};

/// What the signals, the gates and the driver of one ladder share.
pub(super) struct Shared<L> {
    name: Option<Arc<str>>,
    rungs: Rungs<L>,
    state: Mutex<State>,
    /// The rung of `state`, for reading without its lock. Written under it.
    current: AtomicUsize,
    levels: watch::Sender<L>,
}

struct State {
    position: Position,
    /// Somebody has the last word: readings move nothing.
    forced: bool,
}

/// The rungs, best first, and their names.
#[derive(Debug)]
pub(super) struct Rungs<L> {
    levels: Box<[L]>,
    names: Box<[Arc<str>]>,
}

impl<L: PartialEq + fmt::Debug> Rungs<L> {
    pub(super) fn new(rungs: impl IntoIterator<Item = L>) -> Result<Self, ConfigError> {
        let levels: Box<[L]> = rungs.into_iter().collect();
        if levels.is_empty() {
            return Err(ConfigError::new("rungs", "empty", "one at least"));
        }
        if let Some((_, twice)) =
            levels.iter().enumerate().find(|&(i, rung)| levels[..i].iter().any(|other| other == rung))
        {
            return Err(ConfigError::new(
                "rungs",
                format_args!("{twice:?} twice"),
                "different from each other",
            ));
        }
        // A string prints with quotes, an enum's variant without.
        let names = levels.iter().map(|rung| Arc::from(format!("{rung:?}").trim_matches('"'))).collect();
        Ok(Self { levels, names })
    }

    pub(super) fn find(&self, level: &L) -> Result<usize, ConfigError> {
        let found = self.levels.iter().position(|rung| rung == level);
        found.ok_or_else(|| ConfigError::new("level", format_args!("{level:?}"), "a rung of this ladder"))
    }
}

impl<L> Rungs<L> {
    pub(super) fn len(&self) -> usize {
        self.levels.len()
    }

    pub(super) fn level(&self, rung: usize) -> &L {
        &self.levels[rung]
    }
}

impl<L: Clone> Shared<L> {
    pub(super) fn new(name: Option<Arc<str>>, rungs: Rungs<L>, position: Position) -> Self {
        let rung = position.rung();
        let levels = watch::Sender::new(rungs.level(rung).clone());
        let state = Mutex::new(State { position, forced: false });
        Self { name, rungs, state, current: AtomicUsize::new(rung), levels }
    }

    /// Resolves once nobody listens: no signal, no gate, no receiver.
    pub(super) async fn closed(&self) {
        self.levels.closed().await;
    }

    /// Takes in a reading, and the facts behind it.
    pub(super) fn step(&self, reading: Reading, now: Instant, facts: &Facts) {
        let moved = self.update(|state| if state.forced { None } else { state.position.step(reading, now) });
        if let Some(moved) = moved {
            self.tell(moved, Some(facts));
        }
    }

    fn force(&self, rung: usize) {
        let moved = self.update(|state| {
            state.forced = true;
            state.position.jump(rung, Instant::now())
        });
        match moved {
            Some(moved) => self.tell(moved, None),
            None => tracing::info!(
                ladder = self.name.as_deref(),
                level = &*self.rungs.names[rung],
                "level forced, which it was already"
            ),
        }
    }

    fn release(&self) {
        let mut was_forced = false;
        self.update(|state| {
            was_forced = std::mem::take(&mut state.forced);
            // The time for which it was forced counts for nothing.
            let rung = state.position.rung();
            if was_forced { state.position.jump(rung, Instant::now()) } else { None }
        });
        if was_forced {
            tracing::info!(ladder = self.name.as_deref(), "level released");
        }
    }

    /// Changes the state, then shows the new level to those who read and those who wait.
    fn update(&self, change: impl FnOnce(&mut State) -> Option<Move>) -> Option<Move> {
        let moved = {
            let mut state = self.state();
            let moved = change(&mut state);
            self.current.store(state.position.rung(), Ordering::Release);
            moved
        }?;
        // Out of the lock, since it runs wakers. Two changes may come here in either order: whoever finds a newer
        // rung leaves the showing to who made it, so that the last level shown is the last one made.
        let mut level = self.rungs.level(moved.to).clone();
        self.levels.send_if_modified(|shown| {
            let newest = self.current.load(Ordering::Acquire) == moved.to;
            if newest {
                std::mem::swap(shown, &mut level);
            }
            newest
        });
        Some(moved)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // No user code runs under the lock, so it is never left half changed.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tell(&self, moved: Move, facts: Option<&Facts>) {
        tracing::info!(
            ladder = self.name.as_deref(),
            from = &*self.rungs.names[moved.from],
            to = &*self.rungs.names[moved.to],
            cause = moved.cause.as_str(),
            facts = facts.map(tracing::field::display),
            "level changed"
        );
    }

    fn rung(&self) -> usize {
        self.current.load(Ordering::Acquire)
    }
}

/// The level of a spawned [`Ladder`](super::Ladder): read, awaited, and overridden by hand.
///
/// Cheap to clone. The ladder runs as long as a signal, a gate ([`at_least`](Self::at_least)) or a receiver
/// ([`watch`](Self::watch)) is left. If its future is dropped before, the level stays where it is, and can still be
/// forced.
///
/// ```
/// use tower_sluice::degrade::Ladder;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let signal = Ladder::new(["high", "low"]).spawn();
/// assert_eq!(signal.level(), "high");
/// let high = signal.at_least("high");
/// signal.force(&"low");
/// assert_eq!(signal.to_string(), "low");
/// assert!(!high.holds());
/// # }
/// ```
pub struct Signal<L> {
    shared: Arc<Shared<L>>,
    seen: watch::Receiver<L>,
}

impl<L: Clone + PartialEq + fmt::Debug> Signal<L> {
    pub(super) fn new(shared: Arc<Shared<L>>) -> Self {
        let seen = shared.levels.subscribe();
        Self { shared, seen }
    }

    /// The level that holds now. One atomic read.
    pub fn level(&self) -> L {
        self.shared.rungs.level(self.shared.rung()).clone()
    }

    /// The rung that holds now: its level, name and place together. One atomic read.
    pub fn rung(&self) -> Rung<'_, L> {
        let (rungs, position) = (&self.shared.rungs, self.shared.rung());
        Rung { position, level: rungs.level(position), name: &rungs.names[position] }
    }

    /// The rungs, best first.
    pub fn rungs(&self) -> &[L] {
        &self.shared.rungs.levels
    }

    /// A gate that is open while the level is `level` or better.
    ///
    /// For a class of work in a queue or a [`ShedLayer`](super::ShedLayer), or to be asked in a handler. It turns
    /// away with the name of the rung that holds.
    ///
    /// # Panics
    ///
    /// If `level` is no rung of this ladder; [`try_at_least`](Self::try_at_least) returns that as an error.
    pub fn at_least(&self, level: L) -> AtLeast<L> {
        self.try_at_least(&level).unwrap_or_else(|error| panic!("{error}"))
    }

    /// [`at_least`](Self::at_least), for levels that come from configuration.
    pub fn try_at_least(&self, level: &L) -> Result<AtLeast<L>, ConfigError> {
        Ok(AtLeast { rung: self.shared.rungs.find(level)?, signal: self.clone() })
    }

    /// Waits for a change that this value has not returned yet, and returns the level that holds then. Levels that
    /// come and go while nobody waits are passed over.
    ///
    /// A new signal has seen the level that holds when it is made; a clone, what its original has. Cancel safe.
    pub async fn changed(&mut self) -> L {
        // The sender lives in what this signal shares, so there is always another change to wait for.
        let _ = self.seen.changed().await;
        self.seen.borrow_and_update().clone()
    }

    /// The level as a receiver of tokio's `watch`, for what follows a level without knowing of ladders.
    pub fn watch(&self) -> watch::Receiver<L> {
        self.shared.levels.subscribe()
    }

    /// Sets the level by hand, however many rungs away. It stays, whatever is read, until it is
    /// [released](Self::release) or forced to another.
    ///
    /// # Panics
    ///
    /// If `level` is no rung of this ladder; [`try_force`](Self::try_force) returns that as an error.
    pub fn force(&self, level: &L) {
        self.try_force(level).unwrap_or_else(|error| panic!("{error}"));
    }

    /// [`force`](Self::force), for levels that come from outside.
    pub fn try_force(&self, level: &L) -> Result<(), ConfigError> {
        self.shared.force(self.shared.rungs.find(level)?);
        Ok(())
    }

    /// Gives the level back to the ladder, which goes on from the rung that was forced, by its rules.
    pub fn release(&self) {
        self.shared.release();
    }

    /// Whether the level was set by hand.
    pub fn is_forced(&self) -> bool {
        self.shared.state().forced
    }
}

impl<L> Clone for Signal<L> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared), seen: self.seen.clone() }
    }
}

/// The name of the rung that holds now.
impl<L: Clone + PartialEq + fmt::Debug> fmt::Display for Signal<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.rung().fmt(f)
    }
}

impl<L: Clone + PartialEq + fmt::Debug> fmt::Debug for Signal<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Signal")
            .field("ladder", &self.shared.name)
            .field("level", &self.level())
            .finish_non_exhaustive()
    }
}

/// A rung of a ladder, as it was read from its [`Signal`]. Prints as its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rung<'a, L> {
    position: usize,
    level: &'a L,
    name: &'a str,
}

impl<'a, L> Rung<'a, L> {
    /// The level.
    pub fn level(&self) -> &'a L {
        self.level
    }

    /// Its name: what it prints with `Debug`, a string without its quotes.
    pub fn name(&self) -> &'a str {
        self.name
    }

    /// How many rungs below the best one it is: 0 is the best.
    pub fn position(&self) -> usize {
        self.position
    }
}

impl<L> fmt::Display for Rung<'_, L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name)
    }
}

/// A gate that is open while a ladder's level is good enough. Made by [`Signal::at_least`].
pub struct AtLeast<L> {
    rung: usize,
    signal: Signal<L>,
}

impl<L: Clone + PartialEq + fmt::Debug> AtLeast<L> {
    /// Whether the level is good enough now. One atomic read.
    pub fn holds(&self) -> bool {
        self.signal.shared.rung() <= self.rung
    }
}

impl<L: Clone + PartialEq + fmt::Debug> Admit for AtLeast<L> {
    fn admit(&self) -> Result<(), Rejection> {
        let shared = &self.signal.shared;
        let rung = shared.rung();
        if rung <= self.rung {
            return Ok(());
        }
        Err(Rejection::Shed { level: Some(Arc::clone(&shared.rungs.names[rung])) })
    }
}

impl<L> Clone for AtLeast<L> {
    fn clone(&self) -> Self {
        Self { rung: self.rung, signal: self.signal.clone() }
    }
}

impl<L: Clone + PartialEq + fmt::Debug> fmt::Debug for AtLeast<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AtLeast")
            .field("level", self.signal.shared.rungs.level(self.rung))
            .field("holds", &self.holds())
            .finish_non_exhaustive()
    }
}

/// A step that a ladder made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Step<L> {
    /// The rung that held.
    pub from: L,
    /// The rung that holds now.
    pub to: L,
    /// Why.
    pub cause: Cause,
}
