//! Where a ladder stands and when it moves: a plain value, without clock, task or rungs' names.

use std::time::Duration;

use tokio::time::Instant;

use super::reading::{Cause, Reading};

/// Relapses double `hold` up to this multiple of what was set: 10 s to 40 s.
const HOLD_GROWTH: u32 = 4;
/// So many times the `hold` that was set without strain bring it back: 60 s for 10 s.
const CALM: u32 = 6;

/// How fast a ladder moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pace {
    pub(super) settle: Duration,
    pub(super) hold: Duration,
    pub(super) idle_hold: Duration,
}

impl Default for Pace {
    fn default() -> Self {
        Self {
            settle: Duration::from_secs(3),
            hold: Duration::from_secs(10),
            idle_hold: Duration::from_secs(40),
        }
    }
}

/// From one rung to another, counted from the best, 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Move {
    pub(super) from: usize,
    pub(super) to: usize,
    pub(super) cause: Cause,
}

/// The rung that holds, and what decides when it changes.
#[derive(Clone, Debug)]
pub(super) struct Position {
    rung: usize,
    bottom: usize,
    pace: Pace,
    /// How long slack has to hold now; more than was set after relapses.
    hold: Duration,
    /// How long slack has held: the time covered by readings of slack since the last strain, steady or move.
    slack: Duration,
    last_reading: Option<Instant>,
    last_strain: Option<Instant>,
    last_fall: Option<Instant>,
    /// The last rise, until strain follows it.
    last_rise: Option<Instant>,
    /// Silence counts from here: the last strain, steady or move.
    quiet_since: Option<Instant>,
}

impl Position {
    /// At the best of `rungs` rungs, of which there is at least one.
    pub(super) fn top_of(rungs: usize, pace: Pace) -> Self {
        Self {
            rung: 0,
            bottom: rungs.saturating_sub(1),
            pace,
            hold: pace.hold,
            slack: Duration::ZERO,
            last_reading: None,
            last_strain: None,
            last_fall: None,
            last_rise: None,
            quiet_since: None,
        }
    }

    pub(super) fn rung(&self) -> usize {
        self.rung
    }

    pub(super) fn pace(&self) -> Pace {
        self.pace
    }

    /// Another pace, from now on.
    pub(super) fn set_pace(&mut self, pace: Pace) {
        self.pace = pace;
        self.hold = pace.hold;
    }

    /// Takes in the reading of the window that ended at `now`. A `now` before the last one counts as the last.
    pub(super) fn step(&mut self, reading: Reading, now: Instant) -> Option<Move> {
        let now = self.last_reading.map_or(now, |last| last.max(now));
        let covered = self.last_reading.map_or(Duration::ZERO, |last| now - last);
        self.last_reading = Some(now);
        let quiet_since = *self.quiet_since.get_or_insert(now);
        // Strain gone for long: slack need not hold longer than was set any more.
        if self.last_strain.is_some_and(|last| now - last >= self.pace.hold.saturating_mul(CALM)) {
            self.hold = self.pace.hold;
        }
        match reading {
            Reading::Strain => {
                // A relapse: the rise was too early, so the next one has to wait longer.
                if self.last_rise.take().is_some_and(|rise| now - rise <= self.hold.saturating_mul(2)) {
                    self.hold = self.hold.saturating_mul(2).min(self.pace.hold.saturating_mul(HOLD_GROWTH));
                }
                self.slack = Duration::ZERO;
                self.last_strain = Some(now);
                self.quiet_since = Some(now);
                // Down at once; but a rung that was just taken is a guess to be tried before the next.
                let settled = self.last_fall.is_none_or(|fall| now - fall >= self.pace.settle);
                (settled && self.rung < self.bottom).then(|| {
                    self.last_fall = Some(now);
                    self.go_to(self.rung + 1, Cause::Strain)
                })
            }
            Reading::Steady => {
                self.slack = Duration::ZERO;
                self.quiet_since = Some(now);
                None
            }
            Reading::Slack => {
                self.slack = self.slack.saturating_add(covered);
                (self.slack >= self.hold).then(|| self.rise(now, Cause::Slack)).flatten()
            }
            // No traffic is not slack: it says nothing about the rung above. But nothing would ever say more of it
            // than a try, so after long silence one is made.
            Reading::Unknown => {
                (now - quiet_since >= self.pace.idle_hold).then(|| self.rise(now, Cause::Silence)).flatten()
            }
        }
    }

    fn rise(&mut self, now: Instant, cause: Cause) -> Option<Move> {
        (self.rung > 0).then(|| {
            self.slack = Duration::ZERO;
            self.last_rise = Some(now);
            self.quiet_since = Some(now);
            self.go_to(self.rung - 1, cause)
        })
    }

    /// Moves to `rung`, however far, and begins there as if nothing had been read: no slack yet, and the next strain
    /// moves down at once.
    pub(super) fn jump(&mut self, rung: usize, now: Instant) -> Option<Move> {
        self.slack = Duration::ZERO;
        self.last_reading = Some(self.last_reading.map_or(now, |last| last.max(now)));
        self.last_fall = None;
        self.last_rise = None;
        self.quiet_since = self.last_reading;
        let rung = rung.min(self.bottom);
        (rung != self.rung).then(|| self.go_to(rung, Cause::Forced))
    }

    fn go_to(&mut self, rung: usize, cause: Cause) -> Move {
        let from = std::mem::replace(&mut self.rung, rung);
        Move { from, to: rung, cause }
    }
}

#[cfg(test)]
mod tests;
