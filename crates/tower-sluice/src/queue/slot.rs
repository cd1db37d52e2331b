//! A slot that outlives the attempt's future.

use std::fmt;
use std::sync::Arc;

use super::shared::Shared;
use super::slots::{ClassKey, End};

/// The slot of an attempt that was answered, for as long as its response body runs.
///
/// Dropping it gives the slot back. `stats().running` counts it until then.
pub struct Slot {
    shared: Arc<Shared>,
    running: u32,
    class: ClassKey,
    /// How the attempt ended, if not in success.
    end: Option<End>,
}

impl Slot {
    pub(super) fn new(shared: Arc<Shared>, running: Option<u32>, class: ClassKey, end: Option<End>) -> Self {
        let running = running.unwrap_or_else(|| shared.running.insert(shared.slots.clock.now()));
        Self { shared, running, class, end }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.shared.running.remove(self.running);
        match self.end {
            None => self.shared.slots.succeed(self.class),
            Some(end) => self.shared.slots.end(self.class, end, true),
        }
    }
}

impl fmt::Debug for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Slot").finish_non_exhaustive()
    }
}
