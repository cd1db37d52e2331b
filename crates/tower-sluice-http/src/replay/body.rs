//! One reader of a body that can be read again.

use std::error::Error;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use bytes::{Buf, Bytes};
use http_body::{Body, Frame, SizeHint};
use tower_sluice::BoxError;

use super::tape::{Kept, Source, Tape};

/// A body that can be read again: a clone replays what was read of it, byte for byte, and then reads on.
///
/// Take the clone before the body is read. While there is one that has not begun, what is read is kept, up to
/// the cap: 64 KiB unless said, where a frame counts for at least 64 bytes. Beyond it the reader goes on without
/// keeping anything, and the clone is [intact](Self::is_intact) no longer. A body whose length is known to be above the
/// cap is not kept at all; it can be sent again as long as it was not read.
///
/// A clone is for a later attempt than what it was cloned from. The latest one that has begun to read has the turn, see
/// [the module](crate::replay); earlier ones get [`NotReplayed`].
/// Size hint, `is_end_stream` and trailers are the body's own, and a clone that has not been read says what the body
/// said before it was: each attempt has the same length headers.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// use bytes::Bytes;
/// use http_body_util::{BodyExt, Full};
/// use tower_sluice_http::replay::ReplayBody;
///
/// let first = ReplayBody::new(Full::<Bytes>::from("charge 4 EUR"));
/// let again = first.clone();
/// assert_eq!(first.collect().await.unwrap().to_bytes(), "charge 4 EUR");
/// assert_eq!(again.collect().await.unwrap().to_bytes(), "charge 4 EUR");
/// # }
/// ```
pub struct ReplayBody<B> {
    /// `None`: a body without content, of which every reader is the same.
    tape: Option<Arc<Tape<B>>>,
    /// By order of making.
    number: u64,
    place: Place,
}

/// Where a reader is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Fresh,
    /// At this one of the frames that are kept.
    Reading(usize),
    Done,
}

impl<B> ReplayBody<B> {
    /// The most that is kept unless said otherwise: 64 KiB.
    pub const DEFAULT_CAP: usize = 64 << 10;

    /// Whether it can be read from its beginning: what was read of it was kept, and the body has not failed.
    ///
    /// Where it can, it stays so until it begins to be read: an earlier reader that is still under way waits at the
    /// cap. So a retry policy of one's own may ask, and then decide.
    pub fn is_intact(&self) -> bool {
        let Some(tape) = &self.tape else { return true };
        self.place == Place::Fresh && tape.lock().pledge(self.number)
    }

    /// A body without content.
    pub(super) const fn empty() -> Self {
        Self { tape: None, number: 0, place: Place::Done }
    }

    pub(super) fn reader(tape: &Arc<Tape<B>>) -> Self {
        let number = tape.lock().make_reader();
        Self { tape: Some(Arc::clone(tape)), number, place: Place::Fresh }
    }

    pub(super) fn tape(&self) -> Option<&Arc<Tape<B>>> {
        self.tape.as_ref()
    }
}

impl<B: Body> ReplayBody<B> {
    /// `body`, of which up to [`DEFAULT_CAP`](Self::DEFAULT_CAP) bytes are kept.
    pub fn new(body: B) -> Self {
        Self::with_cap(body, Self::DEFAULT_CAP)
    }

    /// `body`, of which up to `cap` bytes are kept.
    pub fn with_cap(body: B, cap: usize) -> Self {
        if is_empty(&body) {
            return Self::empty();
        }
        let tape = Tape::of(&body, cap);
        tape.begin(body);
        Self::reader(&Arc::new(tape))
    }
}

/// Without content, for certain.
pub(super) fn is_empty(body: &impl Body) -> bool {
    body.is_end_stream() && body.size_hint().exact() == Some(0)
}

/// What a reader does next.
enum Step<B> {
    Frame(Kept),
    End,
    Fail(NotReplayed),
    Poll(Pin<Box<B>>),
    /// Until it is woken.
    Wait,
    /// The same, once there is a waker to leave: none is cloned under the lock.
    NeedsWaker,
}

impl<B> ReplayBody<B> {
    fn step(&mut self, waker: &mut Option<Waker>) -> Step<B> {
        let Some(tape) = &self.tape else { return Step::End };
        let mut guard = tape.lock();
        let state = &mut *guard;
        let (mut wake, mut stale) = (None, None);
        let step = 'step: {
            let next = match self.place {
                Place::Done => break 'step Step::End,
                Place::Fresh => {
                    state.fresh -= 1;
                    // The copy that was promised is under way.
                    if self.number >= state.pledged {
                        state.pledged = 0;
                    }
                    let why = match state {
                        _ if state.turn > self.number => Some(NotReplayed::Superseded),
                        _ if state.failed => Some(NotReplayed::Failed),
                        _ if !state.complete => Some(NotReplayed::TooLong),
                        _ => None,
                    };
                    if let Some(why) = why {
                        self.place = Place::Done;
                        break 'step Step::Fail(why);
                    }
                    // Fresh -> reading: it takes the turn, of which the reader before is told.
                    state.turn = self.number;
                    wake = state.waiting.take();
                    self.place = Place::Reading(0);
                    0
                }
                Place::Reading(_) if state.turn != self.number => {
                    self.place = Place::Done;
                    break 'step Step::Fail(NotReplayed::Superseded);
                }
                Place::Reading(next) => next,
            };
            if let Some(kept) = state.frames.get_mut(next) {
                self.place = Place::Reading(next + 1);
                if state.fresh > 0 {
                    break 'step Step::Frame(kept.clone());
                }
                // Nobody will need it again.
                state.complete = false;
                break 'step Step::Frame(kept.take());
            }
            if state.failed {
                self.place = Place::Done;
                break 'step Step::Fail(NotReplayed::Failed);
            }
            if state.ended {
                self.place = Place::Done;
                break 'step Step::End;
            }
            if !state.is_at_the_cap(tape.cap)
                && let Some(source) = state.source.lend()
            {
                break 'step Step::Poll(source);
            }
            match waker.take() {
                Some(waker) => {
                    stale = state.waiting.replace(waker);
                    Step::Wait
                }
                None => Step::NeedsWaker,
            }
        };
        drop(guard);
        drop(stale);
        if let Some(wake) = wake {
            wake.wake();
        }
        step
    }
}

impl<B> ReplayBody<B>
where
    B: Body,
    B::Error: Into<BoxError>,
{
    /// Polls the body itself, outside the lock, and shares what came of it. `None`: go on as the state now says.
    fn poll_source(
        &mut self,
        source: Pin<Box<B>>,
        cx: &mut Context<'_>,
    ) -> Option<Poll<Result<Kept, BoxError>>> {
        let tape = self.tape.as_ref()?;
        let mut lent = Lent { tape, source: Some(source) };
        let source = lent.source.as_mut()?;
        let polled = source.as_mut().poll_frame(cx).map(|frame| frame.map(|frame| frame.map(keepable)));
        let left = source.size_hint();
        // After trailers there is nothing, whether or not the body says so.
        let trailers = matches!(&polled, Poll::Ready(Some(Ok(Some(Kept::Trailers(_))))));
        let over = trailers || source.is_end_stream();
        let source = lent.source.take();
        let waker = polled.is_pending().then(|| cx.waker().clone());

        let mut guard = tape.lock();
        let state = &mut *guard;
        let superseded = state.turn != self.number;
        let (mut wake, mut stale, mut dropped, mut gone) = (None, None, Vec::new(), None);
        if superseded {
            // The reader that has the turn now waits for the source.
            wake = state.waiting.take();
        } else {
            stale = state.waiting.take();
        }
        state.left = left;
        let outcome = match polled {
            Poll::Pending => {
                state.source = source.map_or(Source::Gone, Source::Here);
                if !superseded {
                    state.waiting = waker;
                }
                (!superseded).then_some(Poll::Pending)
            }
            Poll::Ready(Some(Ok(kept))) => {
                if over {
                    state.ended = true;
                    state.left = SizeHint::with_exact(0);
                    state.source = Source::Gone;
                    gone = source;
                } else {
                    state.source = source.map_or(Source::Gone, Source::Here);
                }
                match kept {
                    Some(kept) if superseded => {
                        // It belongs to the reader that now has the turn.
                        state.push(kept);
                        None
                    }
                    Some(kept) => {
                        dropped = state.keep(&kept, tape.cap);
                        self.place = Place::Reading(state.frames.len());
                        Some(Poll::Ready(Ok(kept)))
                    }
                    None => None,
                }
            }
            Poll::Ready(Some(Err(error))) => {
                state.failed = true;
                state.source = Source::Gone;
                gone = source;
                dropped = std::mem::take(&mut state.frames);
                (!superseded).then(|| {
                    self.place = Place::Done;
                    Poll::Ready(Err(error.into()))
                })
            }
            Poll::Ready(None) => {
                state.ended = true;
                state.left = SizeHint::with_exact(0);
                state.source = Source::Gone;
                gone = source;
                None
            }
        };
        drop(guard);
        drop((stale, dropped, gone));
        if let Some(wake) = wake {
            wake.wake();
        }
        outcome
    }
}

/// A frame as it is kept. `None` for one that is neither data nor trailers.
fn keepable<D: Buf>(frame: Frame<D>) -> Option<Kept> {
    match frame.into_data() {
        Ok(mut data) => Some(Kept::Data(data.copy_to_bytes(data.remaining()))),
        Err(frame) => frame.into_trailers().ok().map(Kept::Trailers),
    }
}

/// The source while it is polled: if that panics, it is gone, and nobody waits for it.
struct Lent<'a, B> {
    tape: &'a Tape<B>,
    source: Option<Pin<Box<B>>>,
}

impl<B> Drop for Lent<'_, B> {
    fn drop(&mut self) {
        if self.source.is_some() {
            let mut state = self.tape.lock();
            state.failed = true;
            state.source = Source::Gone;
            let waiting = state.waiting.take();
            drop(state);
            if let Some(waiting) = waiting {
                waiting.wake();
            }
        }
    }
}

impl<B> Body for ReplayBody<B>
where
    B: Body,
    B::Error: Into<BoxError>,
{
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let this = &mut *self;
        let mut waker = None;
        loop {
            match this.step(&mut waker) {
                Step::Frame(kept) => return Poll::Ready(Some(Ok(kept.into_frame()))),
                Step::End => return Poll::Ready(None),
                Step::Fail(why) => return Poll::Ready(Some(Err(Box::new(why)))),
                Step::Poll(source) => {
                    if let Some(polled) = this.poll_source(source, cx) {
                        return polled.map(|result| Some(result.map(Kept::into_frame)));
                    }
                }
                Step::Wait => return Poll::Pending,
                Step::NeedsWaker => waker = Some(cx.waker().clone()),
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        let Some(tape) = &self.tape else { return true };
        match self.place {
            Place::Fresh => tape.empty,
            Place::Done => true,
            Place::Reading(next) => {
                let state = tape.lock();
                state.turn == self.number && state.ended && next >= state.frames.len()
            }
        }
    }

    fn size_hint(&self) -> SizeHint {
        match (&self.tape, self.place) {
            (Some(tape), Place::Fresh) => tape.whole,
            (Some(tape), Place::Reading(next)) => tape.lock().hint(next),
            _ => SizeHint::with_exact(0),
        }
    }
}

/// A clone starts at the beginning.
impl<B> Clone for ReplayBody<B> {
    fn clone(&self) -> Self {
        self.tape.as_ref().map_or_else(Self::empty, Self::reader)
    }
}

impl<B> Drop for ReplayBody<B> {
    fn drop(&mut self) {
        let Some(tape) = &self.tape else { return };
        let mut state = tape.lock();
        let waiting = match self.place {
            Place::Fresh => {
                state.fresh -= 1;
                // The retry that it was promised to is not made: a reader that waits at the cap may go on.
                if state.pledged == self.number {
                    state.pledged = 0;
                }
                (state.pledged == 0).then(|| state.waiting.take()).flatten()
            }
            // Its own waker: nobody is to be woken.
            Place::Reading(_) if state.turn == self.number => state.waiting.take(),
            Place::Reading(_) | Place::Done => None,
        };
        drop(state);
        if let (Some(waiting), Place::Fresh) = (waiting, self.place) {
            waiting.wake();
        }
    }
}

impl<B> fmt::Debug for ReplayBody<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReplayBody").field("place", &self.place).finish_non_exhaustive()
    }
}

/// Why a [`ReplayBody`] could not be read, or read on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NotReplayed {
    /// More was read of it than is kept.
    TooLong,
    /// The body itself failed; the reader at that time got its error.
    Failed,
    /// A later attempt is being made with this body.
    Superseded,
}

impl fmt::Display for NotReplayed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::TooLong => "more was read of the body than is kept for another attempt",
            Self::Failed => "the body failed in an earlier attempt",
            Self::Superseded => "a later attempt reads the body now",
        })
    }
}

impl Error for NotReplayed {}
