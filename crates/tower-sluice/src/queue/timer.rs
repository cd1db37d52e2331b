//! The one timer of a call, made when it first has to wait for time.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::time::{Sleep, sleep_until};

use super::time::{Clock, Tick};

/// Set anew for each wait. Boxed, so that calls without a deadline do not carry its size.
#[derive(Debug)]
pub(super) struct Timer {
    sleep: Option<Pin<Box<Sleep>>>,
}

impl Timer {
    pub(super) const fn new() -> Self {
        Self { sleep: None }
    }

    /// Ready once `at` has come.
    pub(super) fn poll_at(&mut self, at: Tick, clock: &Clock, cx: &mut Context<'_>) -> Poll<()> {
        let Some(instant) = clock.instant(at) else {
            self.clear();
            return Poll::Pending;
        };
        let sleep = self.sleep.get_or_insert_with(|| Box::pin(sleep_until(instant)));
        if sleep.deadline() != instant {
            sleep.as_mut().reset(instant);
        }
        sleep.as_mut().poll(cx)
    }

    /// Nothing fires any more.
    pub(super) fn clear(&mut self) {
        self.sleep = None;
    }
}
