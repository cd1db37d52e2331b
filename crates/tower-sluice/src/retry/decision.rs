use std::fmt;
use std::time::Duration;

use super::budget::Payment;

/// Another attempt is to be made.
#[derive(Debug)]
#[must_use = "a retry that is dropped gives its payment back"]
pub struct Retry {
    /// How long to wait before it. Zero is no wait at all.
    pub delay: Duration,
    /// What it cost, to be spent when it starts.
    pub payment: Payment,
}

/// Why no other attempt is made: the caller gets the last attempt's own result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum GaveUp {
    /// As many attempts were made as may be, in all or for this kind of failure.
    Attempts,
    /// The request cannot be copied, or may not be sent again after this failure.
    NotRepeatable,
    /// The server asked to be left alone for longer than a call waits.
    RetryAfter,
    /// The delay leaves no time for another attempt.
    Deadline,
    /// The budget has too few tokens.
    Budget,
}

impl GaveUp {
    /// The name used in events: `attempts`, `not_repeatable`, `retry_after`, `deadline`, `budget`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Attempts => "attempts",
            Self::NotRepeatable => "not_repeatable",
            Self::RetryAfter => "retry_after",
            Self::Deadline => "deadline",
            Self::Budget => "budget",
        }
    }
}

impl fmt::Display for GaveUp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
