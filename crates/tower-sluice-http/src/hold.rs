//! Slots that last until the response body has ended.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use http::Response;
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;
use tower_sluice::queue::{CallOptions, Mode, QueueLayer, Slot, Wrap};
use tower_sluice::reject::{Answer, Rejection};

/// The setting of a queue over HTTP responses that a queue over just any service has not.
pub trait HoldSlots {
    /// The queue with the setting.
    type Held;

    /// Ends a slot when the response's body has ended, failed or was dropped, rather than when the service has
    /// answered.
    ///
    /// For streams, and for bodies that cost something until they are sent: the limit then bounds what is being sent
    /// too, `drain` waits for it, and `stats().running` counts it. A client that reads slowly keeps its slot. Timeouts
    /// end at the response's head as ever. A response without content ends its slot at once, a protocol upgrade too.
    ///
    /// ```
    /// use tower_sluice_http::{HoldSlots, http_server};
    ///
    /// let queue = http_server(8).hold_until_body_end();
    /// # let _: tower_sluice_http::queue::Handle = queue.handle();
    /// ```
    #[must_use]
    fn hold_until_body_end(self) -> Self::Held;
}

impl<P, A> HoldSlots for QueueLayer<P, A> {
    type Held = QueueLayer<P, HoldUntilBodyEnd<A>>;

    fn hold_until_body_end(self) -> Self::Held {
        self.map_answer(HoldUntilBodyEnd::new)
    }
}

/// A mode whose slots end with the response body; see [`HoldSlots::hold_until_body_end`]. Answers as `M` does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HoldUntilBodyEnd<M> {
    mode: M,
}

impl<M> HoldUntilBodyEnd<M> {
    /// `mode`, whose slots end with the body.
    pub const fn new(mode: M) -> Self {
        Self { mode }
    }
}

impl<M: Wrap> Wrap for HoldUntilBodyEnd<M> {
    type Inner<S> = M::Inner<S>;
    type With<A> = HoldUntilBodyEnd<M::With<A>>;

    fn wrap<S>(&self, service: S) -> M::Inner<S> {
        self.mode.wrap(service)
    }

    fn with<A>(self, answer: A) -> Self::With<A> {
        HoldUntilBodyEnd::new(self.mode.with(answer))
    }
}

impl<M, Res, E, B> Answer<Res, E> for HoldUntilBodyEnd<M>
where
    M: Answer<Res, E, Response = Response<B>>,
{
    type Response = Response<HeldBody<B>>;
    type Error = M::Error;
    type Kept = M::Kept;

    fn response(&self, response: Res) -> Self::Response {
        self.mode.response(response).map(|body| HeldBody { body, slot: None })
    }

    fn error(&self, error: E) -> M::Error {
        self.mode.error(error)
    }

    fn keep(&self, error: E) -> M::Kept {
        self.mode.keep(error)
    }

    fn reject(&self, rejection: Rejection, last: Option<M::Kept>) -> Result<Self::Response, M::Error> {
        let answer = self.mode.reject(rejection, last)?;
        Ok(answer.map(|body| HeldBody { body, slot: None }))
    }
}

impl<M, Req, Res, E, B> Mode<Req, Res, E> for HoldUntilBodyEnd<M>
where
    M: Mode<Req, Res, E, Response = Response<B>>,
    B: Body,
{
    const HOLDS: bool = true;

    fn options(&self, request: &Req) -> CallOptions {
        self.mode.options(request)
    }

    fn hold(&self, response: Res, slot: Slot) -> Self::Response {
        self.mode.response(response).map(|body| {
            let slot = (!body.is_end_stream()).then_some(slot);
            HeldBody { body, slot }
        })
    }
}

pin_project! {
    /// A response body that has its call's slot until it ends, fails or is dropped.
    ///
    /// Frames, trailers, size hint and `is_end_stream` are the body's own.
    pub struct HeldBody<B> {
        // Before the slot: what the body holds is dropped before the next attempt may start.
        #[pin]
        body: B,
        slot: Option<Slot>,
    }
}

impl<B> HeldBody<B> {
    /// Whether it has a slot at present.
    pub const fn holds_slot(&self) -> bool {
        self.slot.is_some()
    }
}

impl<B: Body> Body for HeldBody<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        let mut this = self.project();
        let polled = ready!(this.body.as_mut().poll_frame(cx));
        let over = match &polled {
            // Not every reader asks again after the last frame.
            Some(Ok(frame)) => frame.is_trailers() || this.body.is_end_stream(),
            Some(Err(_)) | None => true,
        };
        if over {
            *this.slot = None;
        }
        Poll::Ready(polled)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl<B> fmt::Debug for HeldBody<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HeldBody").field("holds_slot", &self.holds_slot()).finish_non_exhaustive()
    }
}
