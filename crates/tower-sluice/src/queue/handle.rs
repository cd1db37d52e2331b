use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};

use super::events;
use super::follow::Follow;
use super::layer::check_limit;
use super::observers::{Figures, Until};
use super::shared::Shared;
use super::starting::is_inside;
use super::stats::{RejectedStats, Stats};
use crate::error::ConfigError;

/// Watches and steers everything built from one [`QueueLayer`](super::QueueLayer). A cheap clone.
///
/// ```
/// use tower_sluice::queue::QueueLayer;
///
/// let queue = QueueLayer::new(16);
/// let handle = queue.handle();
/// handle.pause();
/// assert!(handle.stats().paused);
/// handle.resume();
/// handle.set_limit(8)?;
/// assert_eq!(handle.stats().limit, 8);
/// # Ok::<(), tower_sluice::error::ConfigError>(())
/// ```
#[derive(Clone)]
pub struct Handle {
    pub(super) shared: Arc<Shared>,
}

impl Handle {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        Self { shared }
    }

    /// Once this has returned, no attempt starts until [`resume`](Self::resume): not from the line, not after a delay,
    /// not of a call that had been granted a slot.
    ///
    /// Attempts that run go on, and so do delays. The bound on waiting calls holds. Time spent paused does not count
    /// against the queue timeout; deadlines run on.
    ///
    /// Blocks while an attempt is just being started, at most as long as one `poll_ready` and `call` of the inner
    /// service. Called from inside such a `call` of this very queue it does not wait for that one. Two
    /// queues must not be paused each from inside a `call` of the other: they could wait for each other for ever.
    pub fn pause(&self) {
        self.shared.slots.pause(is_inside(&self.shared));
        events::act(&self.shared, "pause", None, None, None);
    }

    /// Starts calls again, in order and within the limit.
    pub fn resume(&self) {
        self.shared.slots.resume();
        events::act(&self.shared, "resume", None, None, None);
    }

    /// Pauses, or resumes if paused. Whether it is paused now.
    pub fn toggle(&self) -> bool {
        let paused = self.is_paused();
        if paused {
            self.resume()
        } else {
            self.pause()
        }
        !paused
    }

    /// Whether it is paused.
    pub fn is_paused(&self) -> bool {
        self.shared.slots.is_paused()
    }

    /// Settles every call that waits with [`Rejection::Cleared`](crate::reject::Rejection::Cleared), and those whose
    /// attempt has not started yet; returns how many.
    ///
    /// Counts settle at once. Running attempts are not touched, and may still be retried; new calls are accepted.
    pub fn clear(&self, reason: impl Into<Arc<str>>) -> usize {
        let reason = reason.into();
        let cleared = self.shared.slots.clear(Some(&reason));
        events::act(&self.shared, "clear", Some(cleared), None, Some(&reason));
        cleared
    }

    /// Admits no call any more: they get [`Rejection::Closed`](crate::reject::Rejection::Closed). Final.
    ///
    /// Admitted calls finish; one whose attempt fails from now on gets its real result, without another attempt.
    pub fn close(&self) {
        if self.shared.slots.close() {
            events::act(&self.shared, "close", None, None, None);
        }
    }

    /// [Closes](Self::close) at once; the future waits until the queue is idle, at most for `grace`, and then settles
    /// what still waits with [`Rejection::Closed`](crate::reject::Rejection::Closed).
    ///
    /// It waits for calls (and for response bodies where they hold slots), never for idle connections. A call that
    /// still runs at the end of `grace` goes on: a stuck handler does not block the exit. `Duration::MAX` waits for
    /// ever. Dropping the future leaves the queue closed.
    pub fn drain(&self, grace: Duration) -> impl Future<Output = Drained> + Send + use<> {
        self.close();
        let handle = self.clone();
        let end = Instant::now().checked_add(grace);
        async move {
            let idle = handle.idle();
            let cleared = match end {
                None => {
                    idle.await;
                    0
                }
                Some(end) => match timeout_at(end, idle).await {
                    Ok(()) => 0,
                    Err(_) => handle.shared.slots.clear(None),
                },
            };
            let drained = Drained { cleared, still_running: handle.stats().running };
            events::act(&handle.shared, "drain", Some(cleared), None, None);
            drained
        }
    }

    /// Resolves once nothing has been queued, running or deferred at some instant since it was first polled.
    ///
    /// At once on an idle queue, also on one that was never used.
    pub fn idle(&self) -> impl Future<Output = ()> + Send + use<> {
        Reached::new(Arc::clone(&self.shared), Until::Idle)
    }

    /// Resolves once fewer than `n` calls have been waiting, queued or deferred, at some instant since it was first
    /// polled. For producers that feed a queue. 0 is taken as 1.
    pub fn waiting_below(&self, n: usize) -> impl Future<Output = ()> + Send + use<> {
        Reached::new(Arc::clone(&self.shared), Until::WaitingBelow(n.max(1)))
    }

    /// How many attempts may run at once: 1 to 16 777 214. Acts at once: growing grants slots, shrinking lets running
    /// attempts finish and starts none until fewer run.
    ///
    /// # Errors
    ///
    /// If `limit` is out of bounds. To stop all calls, [`pause`](Self::pause).
    pub fn set_limit(&self, limit: usize) -> Result<(), ConfigError> {
        self.set_nearest_limit(check_limit(limit)?);
        Ok(())
    }

    pub(super) fn set_nearest_limit(&self, limit: usize) {
        self.shared.slots.set_limit(limit);
        events::act(&self.shared, "set_limit", None, Some(limit), None);
    }

    /// Lets the limit follow a level: whenever `level` changes, and at once, the limit becomes what `limit` makes of it,
    /// held within 1 and 16 777 214.
    ///
    /// Nothing is spawned here: [`spawn`](Follow::spawn) or [`run`](Follow::run) what is returned. It ends with the
    /// level's sender, or with the last handle, layer and service of this queue (it keeps none alive).
    ///
    /// ```
    /// use tokio::sync::watch;
    /// use tower_sluice::queue::QueueLayer;
    ///
    /// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
    /// let (level, follows) = watch::channel("high");
    /// let queue = QueueLayer::new(64);
    /// let handle = queue.handle();
    /// handle.follow(follows, |level| if *level == "high" { 64 } else { 8 }).spawn();
    /// level.send("low").unwrap();
    /// # tokio::task::yield_now().await;
    /// assert_eq!(handle.stats().limit, 8);
    /// # });
    /// ```
    pub fn follow<L, F>(&self, level: watch::Receiver<L>, limit: F) -> Follow<L, F>
    where
        L: Clone,
        F: Fn(&L) -> usize,
    {
        Follow::new(&self.shared, level, limit)
    }

    /// All figures now.
    pub fn stats(&self) -> Stats {
        self.look().1
    }

    /// Waits for figures to change. Nothing is published while nobody waits.
    pub fn watch(&self) -> StatsWatch {
        StatsWatch { handle: self.clone(), seen: None }
    }

    fn look(&self) -> (Figures, Stats) {
        let slots = &self.shared.slots;
        let snapshot = slots.snapshot();
        let (figures, counts) = (snapshot.figures, snapshot.counts);
        let stats = Stats {
            limit: figures.limit,
            queued: figures.queued,
            running: figures.running,
            deferred: figures.deferred,
            granted: snapshot.granted,
            reserved: snapshot.reserved,
            paused: figures.paused,
            closed: figures.closed,
            held_until: snapshot.held_until.and_then(|until| slots.clock.instant(until)),
            oldest_waiting: snapshot.oldest_waiting,
            oldest_running: self.shared.running.oldest(slots.clock.now()),
            admitted: figures.admitted,
            attempts: snapshot.attempts,
            retries: counts.retries,
            succeeded: snapshot.succeeded,
            failed: counts.failed,
            cancelled: counts.cancelled,
            cleared: counts.cleared,
            rejected: RejectedStats {
                full: counts.full,
                closed: counts.closed,
                shed: counts.shed,
                too_late: counts.too_late,
                deadline: counts.deadline,
                queue_timeout: counts.queue_timeout,
            },
        };
        (figures, stats)
    }
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handle").field("name", &self.shared.name()).finish_non_exhaustive()
    }
}

/// What [`Handle::drain`] came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Drained {
    /// Calls that still waited when the grace period ended, and were told that the queue is closed.
    pub cleared: usize,
    /// Attempts that still run.
    pub still_running: usize,
}

/// Waits for a queue's figures to change; see [`Handle::watch`].
#[derive(Debug)]
pub struct StatsWatch {
    handle: Handle,
    seen: Option<Figures>,
}

impl StatsWatch {
    /// The figures, once they differ from those returned last; the first time at once.
    ///
    /// Driven by its reader: however often they change between two calls, the latest are returned once. Cancel-safe.
    ///
    /// # Errors
    ///
    /// Once the queue is closed and idle, and its last figures were returned: they will not change any more.
    pub async fn changed(&mut self) -> Result<Stats, Closed> {
        if let Some(seen) = self.seen {
            if seen.closed && seen.is_idle() {
                return Err(Closed);
            }
            Reached::new(Arc::clone(&self.handle.shared), Until::Differs(seen)).await;
        }
        let (figures, stats) = self.handle.look();
        self.seen = Some(figures);
        Ok(stats)
    }
}

/// The queue is closed and idle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Closed;

impl fmt::Display for Closed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the queue is closed and idle")
    }
}

impl std::error::Error for Closed {}

/// Resolves once a state has been reached.
struct Reached {
    shared: Arc<Shared>,
    until: Until,
    key: Option<usize>,
}

impl Reached {
    fn new(shared: Arc<Shared>, until: Until) -> Self {
        Self { shared, until, key: None }
    }
}

impl Future for Reached {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let slots = &self.shared.slots;
        let reached = match self.key {
            None => {
                let key = slots.observe(self.until, cx.waker().clone());
                self.key = key;
                key.is_none()
            }
            Some(key) => slots
                .observed(key, cx.waker(), None)
                .or_else(|()| slots.observed(key, cx.waker(), Some(cx.waker().clone())))
                .unwrap_or(false),
        };
        if reached { Poll::Ready(()) } else { Poll::Pending }
    }
}

impl Drop for Reached {
    fn drop(&mut self) {
        if let Some(key) = self.key {
            self.shared.slots.stop_observing(key);
        }
    }
}
