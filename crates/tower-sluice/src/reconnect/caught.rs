use std::any::Any;
use std::fmt;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::task::{Context, Poll};

use pin_project_lite::pin_project;

use super::state::{Cause, CauseKind};

/// A panic of the user's code, told as why a try failed.
///
/// What the code was working on is dropped with the try, so that nothing half-done is seen again.
#[derive(Debug)]
pub(super) struct Panicked(String);

impl Panicked {
    fn new(payload: &(dyn Any + Send)) -> Self {
        let message = payload
            .downcast_ref::<&str>()
            .map(|text| (*text).to_owned())
            .or_else(|| payload.downcast_ref::<String>().cloned());
        Self(message.unwrap_or_else(|| "no message".to_owned()))
    }
}

impl From<Panicked> for Cause {
    fn from(panicked: Panicked) -> Self {
        Self::new(CauseKind::Panicked, crate::BoxError::from(panicked.0))
    }
}

/// Runs `f`; a panic is an error.
pub(super) fn catch<T>(f: impl FnOnce() -> T) -> Result<T, Panicked> {
    catch_unwind(AssertUnwindSafe(f)).map_err(|payload| Panicked::new(&*payload))
}

pin_project! {
    /// A future whose panics are errors. Not to be polled again after it has ended.
    pub(super) struct Caught<F> {
        #[pin]
        future: F,
    }
}

impl<F> Caught<F> {
    pub(super) const fn new(future: F) -> Self {
        Self { future }
    }
}

impl<F> fmt::Debug for Caught<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Caught").finish_non_exhaustive()
    }
}

impl<F: Future> Future for Caught<F> {
    type Output = Result<F::Output, Panicked>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let future = self.project().future;
        match catch(|| future.poll(cx)) {
            Ok(Poll::Ready(output)) => Poll::Ready(Ok(output)),
            Ok(Poll::Pending) => Poll::Pending,
            Err(panicked) => Poll::Ready(Err(panicked)),
        }
    }
}
