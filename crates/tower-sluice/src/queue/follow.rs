//! A limit that follows a level.

use std::fmt;
use std::pin::pin;
use std::sync::{Arc, Weak};

use futures_util::future::{Either, select};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::handle::Handle;
use super::layer::nearest_limit;
use super::shared::Shared;

/// Lets a queue's limit follow a level: see [`Handle::follow`].
#[must_use = "nothing follows until it is spawned or run"]
pub struct Follow<L, F> {
    queue: Weak<Shared>,
    /// Changes no more once the queue is gone.
    alive: watch::Receiver<()>,
    level: watch::Receiver<L>,
    limit: F,
}

impl<L, F> Follow<L, F>
where
    L: Clone,
    F: Fn(&L) -> usize,
{
    pub(super) fn new(shared: &Arc<Shared>, level: watch::Receiver<L>, limit: F) -> Self {
        Self { queue: Arc::downgrade(shared), alive: shared.alive(), level, limit }
    }

    /// Follows until the level's sender, or the last handle, layer and service of the queue, is gone.
    pub async fn run(mut self) {
        loop {
            // A clone: the level's lock is not held over the closure.
            let level = self.level.borrow_and_update().clone();
            let limit = nearest_limit((self.limit)(&level));
            let Some(shared) = self.queue.upgrade() else { return };
            Handle::new(shared).set_nearest_limit(limit);
            match select(pin!(self.level.changed()), pin!(self.alive.changed())).await {
                Either::Left((Ok(()), _)) => {}
                Either::Left((Err(_), _)) | Either::Right(_) => return,
            }
        }
    }

    /// [Runs](Self::run) on the current runtime.
    ///
    /// # Panics
    ///
    /// Outside a tokio runtime.
    pub fn spawn(self) -> JoinHandle<()>
    where
        L: Send + Sync + 'static,
        F: Send + 'static,
    {
        tokio::spawn(self.run())
    }
}

impl<L, F> fmt::Debug for Follow<L, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Follow").finish_non_exhaustive()
    }
}
