use std::time::Duration;

use crate::verdict::FailureKind;

/// How far one call has come: its attempts, its failures, what it has paid.
///
/// Kept by the layer for each call, and told to the [`RetryPolicy`](super::RetryPolicy), which keeps nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct Progress {
    /// The delay before the attempt that was begun last, in nanoseconds (584 years at most).
    previous: u64,
    attempts: u32,
    paid: u32,
    failures: [u16; FailureKind::ALL.len()],
}

/// A call that waits keeps this: it is not to grow.
const _: () = assert!(size_of::<Progress>() <= 24);

impl Progress {
    /// The largest number of failures of one kind that is told apart.
    pub(super) const MOST_FAILURES: u32 = u16::MAX as u32;

    /// Attempts begun.
    #[inline]
    pub const fn attempts(&self) -> u32 {
        self.attempts
    }

    /// An attempt begins.
    #[inline]
    pub const fn begin(&mut self) {
        self.attempts = self.attempts.saturating_add(1);
    }

    /// An attempt failed. Returns how many have failed for this kind, this one included.
    pub(super) const fn failed(&mut self, kind: FailureKind) -> u32 {
        let failures = &mut self.failures[kind.index()];
        *failures = failures.saturating_add(1);
        *failures as u32
    }

    pub(super) const fn previous_delay(&self) -> Duration {
        Duration::from_nanos(self.previous)
    }

    pub(super) fn delayed(&mut self, delay: Duration) {
        self.previous = u64::try_from(delay.as_nanos()).unwrap_or(u64::MAX);
    }

    /// Tokens spent on attempts that were begun.
    pub(super) const fn paid(&self) -> u32 {
        self.paid
    }

    pub(super) const fn spent(&mut self, tokens: u32) {
        self.paid = self.paid.saturating_add(tokens);
    }
}
