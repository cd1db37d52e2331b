//! A place in the queue that a ready handle keeps for its next call.

use std::fmt;
use std::sync::Arc;
use std::task::{Context, Poll};

use super::line::Key;
use super::shared::Shared;
use super::slots::Knocked;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Hold {
    /// Waits for room.
    Knocking(Key),
    Place,
    /// The queue is closed: ready, without a place, to be told so by the call.
    Closed,
}

/// What a handle holds that was polled ready; most hold nothing. Given up on drop; not cloned.
#[derive(Default)]
pub(super) struct Place {
    held: Option<Held>,
}

struct Held {
    shared: Arc<Shared>,
    hold: Hold,
}

impl Place {
    /// Ready with a place, or since the queue is closed. Stays ready until it is handed over.
    pub(super) fn poll_reserve(&mut self, shared: &Arc<Shared>, cx: &mut Context<'_>) -> Poll<()> {
        let mut clone = None;
        let mut key = match &self.held {
            Some(Held { hold: Hold::Place | Hold::Closed, .. }) => return Poll::Ready(()),
            Some(Held { hold: Hold::Knocking(key), .. }) => Some(*key),
            None => None,
        };
        let hold = loop {
            match shared.slots.knock(key, cx.waker(), clone.take()) {
                Ok(Knocked::Place) => break Hold::Place,
                Ok(Knocked::Closed) => break Hold::Closed,
                Ok(Knocked::Waits(key)) => break Hold::Knocking(key),
                Err(known) => {
                    key = known;
                    clone = Some(cx.waker().clone());
                }
            }
        };
        match &mut self.held {
            Some(held) => held.hold = hold,
            None => self.held = Some(Held { shared: Arc::clone(shared), hold }),
        }
        if matches!(hold, Hold::Knocking(_)) { Poll::Pending } else { Poll::Ready(()) }
    }

    /// Whether there was a place, which the caller now has to give up.
    #[inline]
    pub(super) fn hand_over(&mut self) -> bool {
        match &mut self.held {
            None => false,
            Some(held) => {
                let had = held.hold == Hold::Place;
                if had {
                    // The caller's from here on.
                    held.hold = Hold::Closed;
                }
                self.held = None;
                had
            }
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        match self.hold {
            Hold::Knocking(key) => self.shared.slots.give_up_knock(key),
            Hold::Place => self.shared.slots.give_up_place(),
            Hold::Closed => {}
        }
    }
}

impl fmt::Debug for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Place").field(&self.held.as_ref().map(|held| held.hold)).finish()
    }
}
