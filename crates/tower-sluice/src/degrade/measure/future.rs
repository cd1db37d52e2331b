use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use pin_project_lite::pin_project;
use tokio::time::Instant;

use super::service::Shared;
use crate::verdict::{Classify, Verdict};

/// An attempt that runs; its drop counts it as cancelled.
pub(super) struct Attempt<C> {
    /// `None` where nobody wants to know, and once it is counted.
    running: Option<(Arc<Shared<C>>, Instant)>,
}

impl<C> Attempt<C> {
    #[inline]
    pub(super) fn start(shared: &Arc<Shared<C>>) -> Self {
        let running = shared.counters.wanted().then(|| (Arc::clone(shared), Instant::now()));
        Self { running }
    }

    #[inline]
    fn end<Res, E>(&mut self, result: &Result<Res, E>)
    where
        C: Classify<Res, E>,
    {
        if let Some((shared, started)) = &self.running {
            let latency = started.elapsed();
            let verdict = shared.classifier.classify(result);
            shared.counters.ended(&verdict, latency);
            // Counted: the drop has nothing more to do. After the classifier, whose panic leaves it cancelled.
            self.running = None;
        }
    }
}

impl<C> Drop for Attempt<C> {
    fn drop(&mut self) {
        let Some((shared, started)) = &self.running else { return };
        if shared.timeout < Duration::MAX {
            let age = started.elapsed();
            if age >= shared.timeout {
                shared.counters.ended(&Verdict::timeout(), age);
                return;
            }
        }
        shared.counters.cancelled();
    }
}

pin_project! {
    /// The inner service's future, measured.
    pub struct ResponseFuture<F, C> {
        #[pin]
        inner: F,
        attempt: Attempt<C>,
    }
}

impl<F, C> ResponseFuture<F, C> {
    pub(super) fn new(inner: F, attempt: Attempt<C>) -> Self {
        Self { inner, attempt }
    }
}

impl<F, C, Res, E> Future for ResponseFuture<F, C>
where
    F: Future<Output = Result<Res, E>>,
    C: Classify<Res, E>,
{
    type Output = F::Output;

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let this = self.project();
        let poll = this.inner.poll(cx);
        if let Poll::Ready(result) = &poll {
            this.attempt.end(result);
        }
        poll
    }
}

impl<F, C> fmt::Debug for ResponseFuture<F, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseFuture").finish_non_exhaustive()
    }
}
