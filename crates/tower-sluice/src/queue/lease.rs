//! What a call holds of the queue, and how it is given back.

use std::sync::Arc;

use super::layer::Settings;
use super::line::Key;
use super::slot::Slot;
use super::slots::{ClassKey, End, NO_CLASS, Slots};
use crate::reject::Rejection;

/// Where a call stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// Has not arrived; may have a place reserved.
    New { reserved: bool },
    /// In the line, or granted, or with a slot and an inner service that is not ready.
    Waiting(Key),
    /// Out of slot, until its delay is over.
    Deferred(Key),
    /// Has a slot. With the key under which it shows as running, unless it is [`UNSEEN`](Self::UNSEEN).
    Running(u32),
    /// Holds nothing.
    Over,
}

impl Stage {
    pub(super) const UNSEEN: u32 = u32::MAX;
}

/// A call's place, slot, or nothing: whatever its stage says it holds.
pub(super) struct Lease<P, A> {
    pub(super) settings: Arc<Settings<P, A>>,
    pub(super) stage: Stage,
    pub(super) class: ClassKey,
    /// Its first attempt has begun.
    pub(super) begun: bool,
    /// Its slot did not come at once: it has waited for it in the line.
    pub(super) stood: bool,
    /// `Waiting` with a slot, for the inner service to be ready.
    pub(super) readying: bool,
    /// The call has a timeout of its own, in place of the attempt timeout.
    pub(super) own_timeout: bool,
    pub(super) no_retry: bool,
    /// How long the attempt takes is measured.
    pub(super) timed: bool,
    /// Somebody may listen to its events.
    pub(super) told: bool,
}

impl<P, A> Lease<P, A> {
    #[inline]
    pub(super) fn slots(&self) -> &Slots {
        &self.settings.shared.slots
    }

    /// Of no class, so that it need not take the lock.
    #[inline]
    pub(super) fn is_plain(&self) -> bool {
        self.class == NO_CLASS
    }

    /// Whether calls of this class are served at present.
    pub(super) fn admit(&self) -> Result<(), Rejection> {
        if self.is_plain() {
            return Ok(());
        }
        let admit = self.settings.shared.class_of(self.class).and_then(|class| class.admit());
        admit.map_or(Ok(()), |admit| admit.admit())
    }

    /// Shows as running no longer; still has its slot.
    #[inline]
    pub(super) fn unsee(&mut self) {
        if let Stage::Running(key) = self.stage
            && key != Stage::UNSEEN
        {
            self.settings.shared.running.remove(key);
            self.stage = Stage::Running(Stage::UNSEEN);
        }
    }

    /// Running -> done.
    #[inline(always)]
    pub(super) fn end(&mut self, end: Option<End>, attempted: bool) {
        self.unsee();
        self.stage = Stage::Over;
        match end {
            None => self.slots().succeed(self.class),
            Some(end) => self.slots().end(self.class, end, attempted),
        }
    }

    /// Running -> done, but for the slot, which goes on.
    pub(super) fn hand_over_slot(&mut self, end: Option<End>) -> Slot {
        let running = match std::mem::replace(&mut self.stage, Stage::Over) {
            Stage::Running(key) if key != Stage::UNSEEN => Some(key),
            _ => None,
        };
        Slot::new(Arc::clone(&self.settings.shared), running, self.class, end)
    }

    /// Holds nothing: there is nothing to give back.
    #[inline]
    pub(super) fn is_over(&self) -> bool {
        matches!(self.stage, Stage::Over | Stage::New { reserved: false })
    }

    /// Gives back whatever it holds: the call was dropped, or turned away.
    #[cold]
    pub(super) fn give_back(&mut self) {
        match self.stage {
            Stage::Over | Stage::New { reserved: false } => {}
            Stage::New { reserved: true } => self.slots().give_up_place(),
            Stage::Waiting(key) | Stage::Deferred(key) => self.slots().leave(key, End::Cancelled),
            Stage::Running(_) => self.end(Some(End::Cancelled), true),
        }
        self.stage = Stage::Over;
    }
}
