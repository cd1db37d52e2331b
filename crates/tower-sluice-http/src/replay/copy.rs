//! Bodies that are copied by replaying them.

use std::fmt;
use std::sync::Arc;

use http::Request;
use http_body::Body;
use tower_sluice::BoxError;
use tower_sluice::verdict::Attempt;

use super::body::{ReplayBody, is_empty};
use super::tape::{IsIntact, Tape, TapeOf};
use crate::repeat::CopyBody;

/// Copies bodies by keeping what the attempt before has read; see [`HttpRepeat::replay_bodies`].
///
/// [`HttpRepeat::replay_bodies`]: crate::HttpRepeat::replay_bodies
#[derive(Clone, Copy)]
pub struct ReplayBodies<F> {
    cap: usize,
    into_body: F,
}

impl<F> ReplayBodies<F> {
    /// Keeps up to `cap` bytes; `into_body` makes the stack's body type of a [`ReplayBody`].
    pub const fn new(cap: usize, into_body: F) -> Self {
        Self { cap, into_body }
    }
}

impl<F> fmt::Debug for ReplayBodies<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReplayBodies").field("cap", &self.cap).finish_non_exhaustive()
    }
}

impl<B, F> CopyBody<B> for ReplayBodies<F>
where
    B: Body + Send + 'static,
    B::Error: Into<BoxError>,
    F: Fn(ReplayBody<B>) -> B,
{
    fn copy(&self, request: &Request<B>) -> Option<B> {
        let reader = match request.extensions().get::<TapeOf<B>>() {
            Some(tape) => ReplayBody::reader(&tape.0.upgrade()?),
            None if is_empty(request.body()) => ReplayBody::empty(),
            // Nobody has prepared it: tower's `RetryLayer`, which has `ReplayLayer` instead.
            None => return None,
        };
        Some((self.into_body)(reader))
    }

    fn is_intact(&self, request: &Request<B>) -> bool {
        let tape = request.extensions().get::<TapeOf<B>>().and_then(|tape| tape.0.upgrade());
        tape.is_none_or(|tape| tape.pledge())
    }

    fn prepare(&self, request: &mut Request<B>, attempt: &Attempt) {
        if attempt.number > 1 {
            return;
        }
        // A tape that the request brings along is of some other body.
        request.extensions_mut().remove::<TapeOf<B>>();
        if is_empty(request.body()) {
            return;
        }
        let tape = Arc::new(Tape::of(request.body(), self.cap));
        request.extensions_mut().insert(TapeOf(Arc::downgrade(&tape)));
        let replayed = (self.into_body)(ReplayBody::reader(&tape));
        tape.begin(std::mem::replace(request.body_mut(), replayed));
    }
}
