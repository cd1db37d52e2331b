//! Our stacks that are measured.

use crate::peers::TIMEOUT;
use std::time::Duration;
use tower_sluice::backoff::Backoff;
use tower_sluice::queue::QueueLayer;
use tower_sluice::retry::{RetryBudget, RetryPolicy};

/// The queue alone, with room for every call of the measurements.
pub fn queue(limit: usize) -> QueueLayer {
    QueueLayer::new(limit).max_waiting(usize::MAX)
}

/// With retries and their budget.
pub fn retrying(limit: usize) -> QueueLayer<RetryPolicy> {
    let backoff = Backoff::exponential(Duration::from_millis(100), Duration::from_secs(2));
    queue(limit).retry(RetryPolicy::new(3, backoff).budget(RetryBudget::new()))
}

/// With retries, budget and call timeout.
pub fn whole(limit: usize) -> QueueLayer<RetryPolicy> {
    retrying(limit).call_timeout(TIMEOUT)
}
