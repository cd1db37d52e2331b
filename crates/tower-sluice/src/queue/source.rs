//! What a queue tells a ladder.

use std::sync::{Arc, Weak};

use super::handle::Handle;
use super::shared::Shared;
use super::word::UNLIMITED;
use crate::facts::{Facts, QueueFacts, Source};

/// Tells of the queue as long as it is there; a window or ladder does not keep it alive.
impl Source for Handle {
    fn sample(&self) -> Facts {
        let stats = self.stats();
        QueueFacts {
            limit: (stats.limit != UNLIMITED).then_some(stats.limit),
            queued: stats.queued,
            running: stats.running,
            deferred: stats.deferred,
            oldest_waiting: stats.oldest_waiting,
            admitted: stats.admitted,
            refused: stats.rejected.full.saturating_add(stats.rejected.too_late),
            expired: stats.rejected.queue_timeout.saturating_add(stats.rejected.deadline),
        }
        .into()
    }

    fn attach(self) -> Box<dyn Source> {
        Box::new(WeakHandle(Arc::downgrade(&self.shared)))
    }
}

/// A class of the queue may hold a gate of the ladder that listens to this: neither would ever end if this held the
/// queue.
struct WeakHandle(Weak<Shared>);

impl Source for WeakHandle {
    fn sample(&self) -> Facts {
        self.0.upgrade().map(|shared| Handle { shared }.sample()).unwrap_or_default()
    }
}
