use std::time::Duration;

use tokio::time::Instant;

/// One consistent reading of a queue.
///
/// `admitted` is always the sum of `queued`, `running`, `deferred` and what has [finished](Self::finished). A reading
/// may lag by calls that change their state just then; it is exact while the queue is paused or idle.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Attempts that may run at once, as enforced now: after a hold fewer than configured. 16 777 215 where there is no limit.
    pub limit: usize,
    /// Calls that wait for a slot.
    pub queued: usize,
    /// Calls that hold a slot.
    pub running: usize,
    /// Calls that wait for their next attempt, out of slot.
    pub deferred: usize,
    /// Of those running: were given a slot and woken, and have yet to start.
    pub granted: usize,
    /// Places that ready handles keep for their next call.
    pub reserved: usize,
    /// No attempt starts until it is resumed.
    pub paused: bool,
    /// No call is admitted any more.
    pub closed: bool,
    /// No attempt starts before then, since a server asked for it.
    pub held_until: Option<Instant>,
    /// How long the call that has stood in the line the longest has done so, time spent paused not counted.
    pub oldest_waiting: Option<Duration>,
    /// How long the attempt has run that has run the longest, body included where bodies hold slots. Of attempts that
    /// were not over when first polled: a future that nobody polls shows here.
    pub oldest_running: Option<Duration>,
    /// Calls admitted. This and the following only grow.
    pub admitted: u64,
    /// Attempts begun.
    pub attempts: u64,
    /// Attempts scheduled after the first of a call.
    pub retries: u64,
    /// Calls answered with a success.
    pub succeeded: u64,
    /// Calls answered with their last attempt's failure.
    pub failed: u64,
    /// Calls dropped before they were answered.
    pub cancelled: u64,
    /// Calls settled by `clear`, or at the end of a `drain`.
    pub cleared: u64,
    /// Calls answered with a rejection, by reason.
    pub rejected: RejectedStats,
}

/// How many calls were rejected, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RejectedStats {
    /// Not admitted: no room.
    pub full: u64,
    /// Not admitted: closed.
    pub closed: u64,
    /// Not admitted: of a class that is not served at the present level.
    pub shed: u64,
    /// Not admitted: the deadline had passed, or lay within a hold.
    pub too_late: u64,
    /// Admitted, and ended by its deadline.
    pub deadline: u64,
    /// Admitted, and stood in the line for longer than it may.
    pub queue_timeout: u64,
}

impl RejectedStats {
    /// Calls that were never admitted.
    pub const fn turned_away(&self) -> u64 {
        self.full + self.closed + self.shed + self.too_late
    }
}

impl Stats {
    /// Calls that were admitted and have ended.
    pub const fn finished(&self) -> u64 {
        self.succeeded
            + self.failed
            + self.cancelled
            + self.cleared
            + self.rejected.deadline
            + self.rejected.queue_timeout
    }

    /// Queued and deferred.
    pub const fn waiting(&self) -> usize {
        self.queued + self.deferred
    }

    /// Nothing is queued, running or deferred.
    pub const fn is_idle(&self) -> bool {
        self.queued == 0 && self.running == 0 && self.deferred == 0
    }
}
