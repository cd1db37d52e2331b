use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::sync::futures::OwnedNotified;
use tower_service::Service;

use super::get::Get;
use super::lease::Lease;
use super::link::Link;
use super::state::{Cause, CauseKind};
use crate::BoxError;
use crate::reject::Rejection;

/// The way of one caller to a service that is ready: waits for a connection, clones its service, polls the clone
/// ready, and starts anew where the link falls in between.
///
/// It allocates where it has to wait, and only there.
pub(super) struct Readiness<S> {
    stage: Stage<S>,
    /// Tells of the loss of the connection whose service is being polled: a service that belongs to a peer that is
    /// gone without a word may stay pending for ever.
    moved: Option<Pin<Box<OwnedNotified>>>,
}

enum Stage<S> {
    /// Nothing is known yet.
    Start,
    /// The link is down.
    Down(Pin<Box<Get<S>>>),
    /// The link is up, the service not yet ready.
    Polling(Lease<S>, S),
    Ready(Lease<S>, S),
    Rejected(Rejection),
}

/// What a caller got.
pub(super) enum Readied<S> {
    Ready(Lease<S>, S),
    Rejected(Rejection),
}

impl<S> Readiness<S> {
    pub(super) const fn new() -> Self {
        Self { stage: Stage::Start, moved: None }
    }

    /// Takes what was got, and leaves the start. `None` if nothing was.
    pub(super) fn take(&mut self) -> Option<Readied<S>> {
        self.moved = None;
        match std::mem::replace(&mut self.stage, Stage::Start) {
            Stage::Ready(lease, service) => Some(Readied::Ready(lease, service)),
            Stage::Rejected(rejection) => Some(Readied::Rejected(rejection)),
            Stage::Start | Stage::Down(_) | Stage::Polling(..) => None,
        }
    }

    /// Ready once there is something to take; it then stays ready.
    pub(super) fn poll<Req>(&mut self, link: &Link<S>, cx: &mut Context<'_>) -> Poll<()>
    where
        S: Service<Req> + Clone,
        S::Error: Into<BoxError>,
    {
        loop {
            self.stage = match &mut self.stage {
                Stage::Ready(..) | Stage::Rejected(_) => return Poll::Ready(()),
                Stage::Start => match link.connected() {
                    Some(lease) => Self::polling(lease),
                    None => Stage::Down(Box::pin(link.get())),
                },
                Stage::Down(get) => match get.as_mut().poll(cx) {
                    Poll::Pending => return Poll::Pending,
                    Poll::Ready(Ok(lease)) => Self::polling(lease),
                    Poll::Ready(Err(rejection)) => Stage::Rejected(rejection),
                },
                Stage::Polling(lease, service) => match service.poll_ready(cx) {
                    Poll::Ready(Ok(())) => match std::mem::replace(&mut self.stage, Stage::Start) {
                        Stage::Polling(lease, service) => Stage::Ready(lease, service),
                        other => other,
                    },
                    // The error is the link's to know, not this caller's: its request has not been sent.
                    Poll::Ready(Err(error)) => {
                        lease.end(Cause::new(CauseKind::NotReady, error.into()));
                        Stage::Start
                    }
                    Poll::Pending => {
                        let moved =
                            self.moved.get_or_insert_with(|| Box::pin(lease.moved().notified_owned()));
                        // Looked at after the notification was made, so that no loss falls between the two.
                        if lease.is_current() && moved.as_mut().poll(cx).is_pending() {
                            return Poll::Pending;
                        }
                        self.moved = None;
                        if lease.is_current() {
                            continue;
                        }
                        Stage::Start
                    }
                },
            };
        }
    }

    fn polling(lease: Lease<S>) -> Stage<S>
    where
        S: Clone,
    {
        let service = S::clone(&lease);
        Stage::Polling(lease, service)
    }
}

impl<S> fmt::Debug for Readiness<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.stage {
            Stage::Start => "Start",
            Stage::Down(_) => "Down",
            Stage::Polling(..) => "Polling",
            Stage::Ready(..) => "Ready",
            Stage::Rejected(_) => "Rejected",
        })
    }
}
