//! A queue's handle as a source of facts.

use super::handle::Handle;
use super::word::UNLIMITED;
use crate::facts::{Facts, QueueFacts, Source};

impl Source for Handle {
    fn sample(&self) -> Facts {
        let stats = self.stats();
        let queue = QueueFacts {
            limit: (stats.limit != UNLIMITED).then_some(stats.limit),
            queued: stats.queued,
            running: stats.running,
            deferred: stats.deferred,
            oldest_waiting: stats.oldest_waiting,
            admitted: stats.admitted,
            refused: stats.rejected.full,
            expired: stats.rejected.too_late + stats.rejected.deadline + stats.rejected.queue_timeout,
        };
        Facts { queue: Some(queue), ..Facts::default() }
    }
}
