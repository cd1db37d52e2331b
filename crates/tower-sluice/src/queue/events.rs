//! The queue's events (E1): fields of fixed names, and the only place that emits them.
//!
//! With no subscriber each costs one load and a compare: no clock, no string, no allocation.

use std::time::Duration;

use tracing::Level;
use tracing::level_filters::LevelFilter;

use super::shared::Shared;
use super::slots::End;
use super::time::Tick;
use crate::retry::{GaveUp, Progress};
use crate::verdict::Failure;

/// Whether per-call events may go anywhere: one load and a compare.
#[inline]
pub(super) fn enabled() -> bool {
    LevelFilter::current() >= LevelFilter::DEBUG
}

pub(super) fn attempt_started(shared: &Shared, call: u64, attempt: u32) {
    if enabled() {
        tracing::debug!(target: "tower_sluice::queue", queue = &*shared.name(), call, attempt, "attempt started");
    }
}

pub(super) fn retry_scheduled(
    shared: &Shared,
    call: u64,
    progress: &Progress,
    failure: &Failure,
    delay: Duration,
) {
    if enabled() {
        tracing::debug!(
            target: "tower_sluice::queue",
            queue = &*shared.name(),
            call,
            attempt = progress.attempts(),
            kind = failure.kind.as_str(),
            delay = ?delay,
            retry_after = failure.retry_after.map(tracing::field::debug),
            "retry scheduled"
        );
    }
}

pub(super) fn retry_not_made(
    shared: &Shared,
    call: u64,
    progress: &Progress,
    failure: &Failure,
    reason: GaveUp,
) {
    if enabled() {
        tracing::debug!(
            target: "tower_sluice::queue",
            queue = &*shared.name(),
            call,
            attempt = progress.attempts(),
            kind = failure.kind.as_str(),
            reason = reason.as_str(),
            "retry not made"
        );
    }
}

/// How a call ended, for its last event.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ended<'a> {
    /// `None` where it was not admitted.
    pub(super) call: Option<u64>,
    pub(super) outcome: &'a str,
    pub(super) attempts: u32,
    pub(super) waited: Duration,
    /// When it was called, if that is known.
    pub(super) called: Tick,
}

pub(super) fn call_ended(shared: &Shared, ended: &Ended<'_>) {
    // One that failed for good after retries is a warning.
    let warns = ended.outcome == outcome(Some(End::Failed)) && ended.attempts > 1;
    let elapsed = || {
        let elapsed = (ended.called != Tick::NEVER).then(|| shared.slots.clock.now().since(ended.called));
        elapsed.map(tracing::field::debug)
    };
    if warns {
        if tracing::enabled!(target: "tower_sluice::queue", Level::WARN) {
            tracing::warn!(
                target: "tower_sluice::queue",
                queue = &*shared.name(),
                call = ended.call,
                outcome = ended.outcome,
                attempts = ended.attempts,
                waited = ?ended.waited,
                elapsed = elapsed(),
                "call ended"
            );
        }
    } else if enabled() {
        tracing::debug!(
            target: "tower_sluice::queue",
            queue = &*shared.name(),
            call = ended.call,
            outcome = ended.outcome,
            attempts = ended.attempts,
            waited = ?ended.waited,
            elapsed = elapsed(),
            "call ended"
        );
    }
}

pub(super) const fn outcome(end: Option<End>) -> &'static str {
    match end {
        None => "succeeded",
        Some(End::Failed) => "failed",
        Some(End::Cancelled) => "cancelled",
        Some(End::Deadline) => "deadline",
        Some(End::QueueTimeout) => "queue_timeout",
    }
}

/// Something that an operator did.
pub(super) fn act(
    shared: &Shared,
    act: &str,
    calls: Option<usize>,
    limit: Option<usize>,
    reason: Option<&str>,
) {
    if tracing::enabled!(target: "tower_sluice::queue", Level::INFO) {
        tracing::info!(target: "tower_sluice::queue", queue = &*shared.name(), act, calls, limit, reason, "operator");
    }
}
