//! What the readers of one body share.

use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::Waker;

use bytes::Bytes;
use http::{Extensions, HeaderMap};
use http_body::{Body, Frame, SizeHint};

/// A frame that was kept.
#[derive(Clone, Debug)]
pub(super) enum Kept {
    Data(Bytes),
    Trailers(HeaderMap),
}

impl Kept {
    /// What it counts for the cap. A frame costs the memory of its record too, however little is in it.
    pub(super) fn weight(&self) -> usize {
        const LEAST: usize = 64;
        let content = match self {
            Self::Data(data) => data.len(),
            Self::Trailers(trailers) => {
                trailers.iter().map(|(name, value)| name.as_str().len() + value.len()).sum()
            }
        };
        content.max(LEAST)
    }

    /// Its bytes that a size hint counts.
    fn data_len(&self) -> u64 {
        match self {
            Self::Data(data) => data.len() as u64,
            Self::Trailers(_) => 0,
        }
    }

    pub(super) fn into_frame(self) -> Frame<Bytes> {
        match self {
            Self::Data(data) => Frame::data(data),
            Self::Trailers(trailers) => Frame::trailers(trailers),
        }
    }

    /// The frame, of which nothing is needed any more.
    pub(super) fn take(&mut self) -> Self {
        match self {
            Self::Data(data) => Self::Data(std::mem::take(data)),
            Self::Trailers(trailers) => Self::Trailers(std::mem::take(trailers)),
        }
    }
}

/// Where the body that is read from is.
pub(super) enum Source<B> {
    Here(Pin<Box<B>>),
    /// With a reader that polls it, outside the lock.
    Lent,
    /// Ended, failed, or lost to a panic.
    Gone,
}

impl<B> Source<B> {
    /// The body, if it is here.
    pub(super) fn lend(&mut self) -> Option<Pin<Box<B>>> {
        match std::mem::replace(self, Self::Lent) {
            Self::Here(source) => Some(source),
            other => {
                *self = other;
                None
            }
        }
    }
}

/// The body and what was read of it.
pub(super) struct Tape<B> {
    state: Mutex<State<B>>,
    pub(super) cap: usize,
    /// The hint before anything was read: what each attempt's length headers are made of.
    pub(super) whole: SizeHint,
    /// Whether it had ended before anything was read.
    pub(super) empty: bool,
}

pub(super) struct State<B> {
    pub(super) source: Source<B>,
    pub(super) frames: Vec<Kept>,
    pub(super) weight: usize,
    /// Every frame read so far is in `frames`.
    pub(super) complete: bool,
    /// The body came to its end, without an error.
    pub(super) ended: bool,
    pub(super) failed: bool,
    /// What the body says is left of it, when last polled.
    pub(super) left: SizeHint,
    /// The number of the reader that was made last. A later one is for a later attempt.
    pub(super) made: u64,
    /// The number of the latest reader that has begun: it has the turn.
    pub(super) turn: u64,
    /// Readers that have not begun: copies for attempts to come.
    pub(super) fresh: usize,
    /// This reader's copy was found intact, and may be about to be sent: earlier ones must leave it so. 0: none.
    pub(super) pledged: u64,
    /// The reader with the turn, to be woken when it loses it, when the source is back, or when it may go beyond the cap.
    pub(super) waiting: Option<Waker>,
}

impl<B: Body> Tape<B> {
    /// For `body`, which [`begin`](Self::begin) then hands over.
    pub(super) fn of(body: &B, cap: usize) -> Self {
        let (whole, empty) = (body.size_hint(), body.is_end_stream());
        // A body that says it is too long is not kept at all; until it is read it can be sent again nevertheless.
        let cap = if whole.lower() > cap as u64 { 0 } else { cap };
        let state = State {
            source: Source::Gone,
            frames: Vec::new(),
            weight: 0,
            complete: true,
            ended: empty,
            failed: false,
            left: whole,
            made: 0,
            turn: 0,
            fresh: 0,
            pledged: 0,
            waiting: None,
        };
        Self { state: Mutex::new(state), cap, whole, empty }
    }

    pub(super) fn begin(&self, body: B) {
        self.lock().source = Source::Here(Box::pin(body));
    }
}

impl<B> Tape<B> {
    pub(super) fn lock(&self) -> MutexGuard<'_, State<B>> {
        // Nothing of the user's runs under it, so that a panic leaves no state half changed.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<B> State<B> {
    pub(super) fn make_reader(&mut self) -> u64 {
        self.fresh += 1;
        self.made += 1;
        self.made
    }

    pub(super) fn is_intact(&self) -> bool {
        self.complete && !self.failed
    }

    /// Whether the copy of this number can be sent. If so, it stays so until it begins to be read, or is dropped.
    pub(super) fn pledge(&mut self, number: u64) -> bool {
        let intact = self.is_intact() && self.turn < number;
        if intact {
            self.pledged = number;
        }
        intact
    }

    /// Whether earlier readers may read no further, lest a copy about to be sent be spoilt.
    pub(super) fn is_at_the_cap(&self, cap: usize) -> bool {
        self.pledged > 0 && self.weight >= cap
    }

    /// Keeps what the reader with the turn has read, if it is needed again and there is room. Returns what is
    /// needed no more, to be dropped outside the lock.
    pub(super) fn keep(&mut self, frame: &Kept, cap: usize) -> Vec<Kept> {
        if !self.complete {
            return Vec::new();
        }
        // For a pledged copy one frame may cross the cap: it has been read, and nothing may be lost now.
        let fits = self.weight.saturating_add(frame.weight()) <= cap || self.pledged > 0;
        if self.fresh > 0 && fits {
            self.push(frame.clone());
            return Vec::new();
        }
        self.complete = false;
        std::mem::take(&mut self.frames)
    }

    pub(super) fn push(&mut self, frame: Kept) {
        self.weight = self.weight.saturating_add(frame.weight());
        self.frames.push(frame);
    }

    /// What is left for a reader that has had so many of the kept frames.
    pub(super) fn hint(&self, next: usize) -> SizeHint {
        let kept: u64 = self.frames.iter().skip(next).map(Kept::data_len).sum();
        let mut hint = SizeHint::new();
        if let Some(upper) = self.left.upper().and_then(|upper| upper.checked_add(kept)) {
            hint.set_upper(upper);
        }
        let lower = self.left.lower().saturating_add(kept);
        hint.set_lower(hint.upper().map_or(lower, |upper| lower.min(upper)));
        hint
    }
}

/// Knows whether a body of some type can be sent again.
pub(crate) trait IsIntact: Send + Sync {
    /// Whether it can, now that an attempt has failed. If so, it stays so until the next attempt begins to
    /// read.
    fn pledge(&self) -> bool;
}

impl<B: Send> IsIntact for Tape<B> {
    fn pledge(&self) -> bool {
        let mut state = self.lock();
        // The copy that was made last is the one for the next attempt.
        let copy = state.made;
        state.pledge(copy)
    }
}

/// In a request's extensions: the tape of its body. Weak, so that whoever keeps the extensions does not keep the body.
pub(super) struct TapeOf<B>(pub(super) Weak<Tape<B>>);

impl<B> Clone for TapeOf<B> {
    fn clone(&self) -> Self {
        Self(Weak::clone(&self.0))
    }
}

/// The same, where the body's type is not known.
#[derive(Clone)]
pub(crate) struct Intact(Weak<dyn IsIntact>);

impl Intact {
    pub(super) fn new<B: Send + 'static>(tape: &Arc<Tape<B>>) -> Self {
        let tape: Arc<dyn IsIntact> = Arc::<Tape<B>>::clone(tape);
        Self(Arc::downgrade(&tape))
    }

    /// Whether the body of the request with these extensions can be sent again, as far as replaying it is concerned.
    pub(crate) fn pledge(extensions: &Extensions) -> bool {
        let tape = extensions.get::<Self>().and_then(|intact| intact.0.upgrade());
        tape.is_none_or(|tape| tape.pledge())
    }
}

impl fmt::Debug for Intact {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Intact").finish_non_exhaustive()
    }
}
