//! The policy inside tower's `RetryLayer`, which clones it for each call.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use pin_project_lite::pin_project;
use tokio::time::{Instant, Sleep, sleep};
use tower_sluice_backoff::Draw;

use super::budget::Payment;
use super::decision::GaveUp;
use super::policy::RetryPolicy;
use super::progress::Progress;
use crate::verdict::{Attempt, Classify, Failure, Repeat, Totals, Verdict};

/// What a clone knows of its call after the first failure. A call that succeeds at once has none.
#[derive(Debug)]
pub(super) struct TowerCall {
    progress: Progress,
    draw: Draw,
    /// From the decision to retry until the attempt starts; given back if the call is dropped between.
    payment: Option<Payment>,
}

impl<C, R> RetryPolicy<C, R> {
    fn progress(&self) -> Progress {
        self.tower_call.as_ref().map_or_else(
            || {
                let mut first = Progress::default();
                first.begin();
                first
            },
            |call| call.progress,
        )
    }

    /// The delay before the next attempt, if there is to be one.
    fn after_failure(&mut self, failure: &Failure, may_repeat: bool) -> Option<Duration> {
        let mut call = self.tower_call.take().unwrap_or_else(|| {
            Box::new(TowerCall { progress: self.progress(), draw: self.rules.next_draw(), payment: None })
        });
        let decision = self.decide(failure, may_repeat, &mut call.progress, call.draw, None, Instant::now());
        let (number, attempt, kind) = (call.draw.call, call.progress.attempts(), failure.kind.as_str());
        let delay = match decision {
            Ok(retry) => {
                call.payment = Some(retry.payment);
                tracing::debug!(
                    call = number,
                    attempt,
                    kind,
                    delay = ?retry.delay,
                    retry_after = ?failure.retry_after,
                    "retry scheduled"
                );
                Some(retry.delay)
            }
            Err(reason) => {
                tracing::debug!(call = number, attempt, kind, reason = reason.as_str(), "retry not made");
                None
            }
        };
        self.tower_call = Some(call);
        delay
    }

    /// The call failed for good.
    fn failed(&self) {
        if let Some(TowerCall { progress, draw, .. }) = self.tower_call.as_deref()
            && progress.attempts() > 1
        {
            tracing::warn!(
                call = draw.call,
                outcome = "failed",
                attempts = progress.attempts(),
                "call ended"
            );
        }
    }
}

impl<Req, Res, E, C, R> tower::retry::Policy<Req, Res, E> for RetryPolicy<C, R>
where
    C: Classify<Res, E>,
    R: Repeat<Req>,
{
    type Future = Delay;

    fn retry(&mut self, request: &mut Req, result: &mut Result<Res, E>) -> Option<Delay> {
        match self.classifier.classify(result) {
            Verdict::Success => self.succeeded(&self.progress()),
            Verdict::Fatal => self.failed(),
            Verdict::Retry(failure) => {
                let may_repeat = self.repeater.may_repeat(request, &failure);
                if let Some(delay) = self.after_failure(&failure, may_repeat) {
                    let next = self.progress().attempts().saturating_add(1);
                    self.repeater.prepare(request, &Attempt::new(next, None));
                    return Some(Delay::of(delay));
                }
                self.failed();
            }
        }
        if let Ok(response) = result {
            self.classifier.finish(response, &Totals::new(self.progress().attempts()));
        }
        None
    }

    /// Called before each attempt. tower hands over the result of an attempt only where there is a copy, so the last
    /// attempt of several is given one too: its success gives back what the call paid.
    fn clone_request(&mut self, request: &Req) -> Option<Req> {
        if let Some(call) = &mut self.tower_call {
            call.progress.begin();
            if let Some(payment) = call.payment.take() {
                payment.spend(&mut call.progress);
            }
        } else if !self.repeats(&self.progress()) {
            return None;
        }
        let copy = self.repeater.copy(request);
        if copy.is_none() {
            // tower will not tell how this attempt ends.
            let attempt = self.progress().attempts();
            tracing::debug!(attempt, reason = GaveUp::NotRepeatable.as_str(), "no retry can follow");
        }
        copy
    }
}

pin_project! {
    /// The delay before an attempt inside tower's `RetryLayer`.
    #[derive(Debug)]
    pub struct Delay {
        // None where there is nothing to wait for: a timer would take up to a millisecond over it.
        #[pin]
        sleep: Option<Sleep>,
    }
}

impl Delay {
    fn of(delay: Duration) -> Self {
        Self { sleep: (!delay.is_zero()).then(|| sleep(delay)) }
    }
}

impl Future for Delay {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        self.project().sleep.as_pin_mut().map_or(Poll::Ready(()), |sleep| sleep.poll(cx))
    }
}
