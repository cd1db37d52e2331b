use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use pin_project_lite::pin_project;
use tokio::sync::futures::OwnedNotified;
use tokio::time::{Sleep, sleep};

use super::lease::Lease;
use super::shared::{Look, Owner, Seat};
use crate::reject::Rejection;

pin_project! {
    /// Waits for a connection; made by [`Link::get`](super::Link::get).
    ///
    /// Nothing depends on it but its caller: dropping it strands nobody, and the link goes on.
    #[must_use = "futures do nothing unless polled"]
    pub struct Get<C> {
        owner: Arc<Owner<C>>,
        max_wait: Duration,
        #[pin]
        wait: Option<Wait<C>>,
    }
}

pin_project! {
    struct Wait<C> {
        #[pin]
        moved: OwnedNotified,
        #[pin]
        timer: Sleep,
        seat: Seat<C>,
    }
}

impl<C> Get<C> {
    pub(super) fn new(owner: Arc<Owner<C>>, max_wait: Duration) -> Self {
        Self { owner, max_wait, wait: None }
    }
}

impl<C> Future for Get<C> {
    type Output = Result<Lease<C>, Rejection>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        let shared = &this.owner.shared;
        loop {
            match shared.look() {
                Look::Connected(connection, generation) => {
                    return Poll::Ready(Ok(Lease::new(Arc::clone(this.owner), connection, generation)));
                }
                Look::Disconnected => return Poll::Ready(Err(shared.rejection())),
                Look::NotStarted => {
                    this.owner.want();
                    continue;
                }
                Look::Down => {}
            }

            let Some(mut wait) = this.wait.as_mut().as_pin_mut().map(Wait::project) else {
                if this.max_wait.is_zero() {
                    return Poll::Ready(Err(shared.rejection()));
                }
                let Some(seat) = shared.take_seat() else {
                    return Poll::Ready(Err(shared.rejection()));
                };
                // It counts from its making, so that a change between the look above and its first poll is not
                // missed: the look is repeated.
                let moved = shared.moved().notified_owned();
                this.wait.set(Some(Wait { moved, timer: sleep(*this.max_wait), seat }));
                continue;
            };
            if wait.moved.as_mut().poll(cx).is_ready() {
                wait.moved.set(shared.moved().notified_owned());
                continue;
            }
            if wait.timer.poll(cx).is_ready() {
                return Poll::Ready(Err(shared.rejection()));
            }
            return Poll::Pending;
        }
    }
}

impl<C> fmt::Debug for Get<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Get").field("waiting", &self.wait.is_some()).finish_non_exhaustive()
    }
}
