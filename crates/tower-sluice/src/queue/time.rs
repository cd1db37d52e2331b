//! Points in time as plain numbers, so that what decides needs no clock.

use std::time::Duration;

use tokio::time::Instant;

/// Nanoseconds since a queue was made. 584 years fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Tick(pub(super) u64);

impl Tick {
    /// Later than any other.
    pub(super) const NEVER: Self = Self(u64::MAX);

    /// `NEVER` where it would not fit: `Duration::MAX` means never.
    #[inline]
    pub(super) fn after(self, span: Duration) -> Self {
        Self(self.0.saturating_add(nanos(span)))
    }

    /// Zero where `earlier` is later.
    #[inline]
    pub(super) fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    /// How long until `self`, from `now`; `None` where that is never.
    #[inline]
    pub(super) fn left(self, now: Self) -> Option<Duration> {
        (self != Self::NEVER).then(|| self.since(now))
    }
}

/// A duration in nanoseconds, saturating.
#[inline]
pub(super) fn nanos(span: Duration) -> u64 {
    span.as_secs().saturating_mul(1_000_000_000).saturating_add(u64::from(span.subsec_nanos()))
}

/// Turns instants into ticks and back.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clock {
    start: Instant,
}

impl Clock {
    pub(super) fn new() -> Self {
        Self { start: Instant::now() }
    }

    #[inline]
    pub(super) fn now(&self) -> Tick {
        self.tick(Instant::now())
    }

    #[inline]
    pub(super) fn tick(&self, instant: Instant) -> Tick {
        Tick(nanos(instant.saturating_duration_since(self.start)))
    }

    /// `None` for never, and for what no clock can show.
    pub(super) fn instant(&self, tick: Tick) -> Option<Instant> {
        if tick == Tick::NEVER { None } else { self.start.checked_add(Duration::from_nanos(tick.0)) }
    }
}
