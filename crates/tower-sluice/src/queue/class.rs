//! Classes: views of one queue with a bound, a condition and counters of their own.

use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};

use tower_layer::Layer;

use super::layer::QueueLayer;
use super::mode::Wrap;
use super::service::Queue;
use super::slots::ClassKey;
use crate::reject::Admit;

/// What all views of one class share.
pub(super) struct Class {
    pub(super) name: Arc<str>,
    pub(super) key: ClassKey,
    admit: RwLock<Option<Arc<dyn Admit + Send + Sync>>>,
}

impl Class {
    pub(super) fn new(name: Arc<str>, key: ClassKey) -> Self {
        Self { name, key, admit: RwLock::new(None) }
    }

    /// The condition, with no lock held while it is asked.
    pub(super) fn admit(&self) -> Option<Arc<dyn Admit + Send + Sync>> {
        self.admit.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set_admit(&self, admit: Arc<dyn Admit + Send + Sync>) {
        *self.admit.write().unwrap_or_else(PoisonError::into_inner) = Some(admit);
    }
}

impl fmt::Debug for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Class").field("name", &self.name).finish_non_exhaustive()
    }
}

/// A view of a queue for one class of calls: its slots and its line are the queue's, its counters are its own.
///
/// Made by [`QueueLayer::class`]; a layer like the queue itself.
///
/// ```
/// use std::sync::atomic::{AtomicBool, Ordering};
/// use tower_sluice::queue::QueueLayer;
///
/// static HEALTHY: AtomicBool = AtomicBool::new(true);
///
/// let queue = QueueLayer::new(64);
/// let feed = queue.class("feed").max_waiting(16).admit_while(|| HEALTHY.load(Ordering::Relaxed));
/// assert_eq!(feed.stats().admitted, 0);
/// ```
#[derive(Clone, Debug)]
pub struct ClassLayer<P, A> {
    queue: QueueLayer<P, A>,
    class: Arc<Class>,
}

impl<P, A> ClassLayer<P, A> {
    pub(super) fn new(queue: QueueLayer<P, A>, class: Arc<Class>) -> Self {
        Self { queue, class }
    }

    /// A second bound beside the queue's: while no slot is free, a call of this class is admitted only if fewer
    /// than so many of the class are queued or deferred. Without it the queue's bound alone holds.
    #[must_use]
    pub fn max_waiting(self, max_waiting: usize) -> Self {
        self.queue.shared().slots.set_class_max_waiting(self.class.key, max_waiting);
        self
    }

    /// Calls of this class are served only while `admit` says so: a closure, or `ladder.at_least(level)`.
    ///
    /// Asked at admission; a call that was admitted is not turned away later. Others get
    /// [`Rejection::Shed`](crate::reject::Rejection::Shed). Replaces a condition set before, for every view of the class.
    #[must_use]
    pub fn admit_while(self, admit: impl Admit + Send + Sync + 'static) -> Self {
        self.class.set_admit(Arc::new(admit));
        self
    }

    /// The class's own figures.
    pub fn stats(&self) -> ClassStats {
        let class = self.queue.shared().slots.class(self.class.key);
        ClassStats {
            waiting: class.waiting,
            running: class.running(),
            admitted: class.admitted,
            succeeded: class.succeeded,
            failed: class.failed,
            given_up: class.given_up,
            turned_away: class.turned_away,
            shed: class.shed,
        }
    }
}

impl<S, P: Clone, A: Wrap + Clone> Layer<S> for ClassLayer<P, A> {
    type Service = Queue<A::Inner<S>, P, A>;

    fn layer(&self, inner: S) -> Self::Service {
        self.queue.service(inner, Some(Arc::clone(&self.class)))
    }
}

/// The figures of one class. `admitted` is the sum of `waiting`, `running`, `succeeded`, `failed` and `given_up`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ClassStats {
    /// Queued or deferred now.
    pub waiting: usize,
    /// Holding a slot now.
    pub running: u64,
    /// Admitted since the queue was made.
    pub admitted: u64,
    /// Of those, answered with a success.
    pub succeeded: u64,
    /// Of those, answered with a failure.
    pub failed: u64,
    /// Of those, cancelled, cleared, or ended by a deadline or a timeout.
    pub given_up: u64,
    /// Turned away: full, closed, or too late.
    pub turned_away: u64,
    /// Turned away since [`admit_while`](ClassLayer::admit_while) said no.
    pub shed: u64,
}
