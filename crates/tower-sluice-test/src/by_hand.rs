use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use crate::waker::{SpyWaker, Wakes};

/// A future that the test polls by hand, with a waker that counts.
///
/// ```
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() {
/// use std::time::Duration;
/// use tower_sluice_test::by_hand;
///
/// let mut sleep = by_hand(tokio::time::sleep(Duration::from_secs(1)));
/// assert!(sleep.poll().is_pending());
/// assert!(!sleep.is_woken());
/// tokio::time::advance(Duration::from_secs(1)).await;
/// assert!(sleep.is_woken());
/// assert!(sleep.poll().is_ready());
/// # }
/// ```
pub fn by_hand<F: Future>(future: F) -> ByHand<F> {
    let (waker, wakes) = SpyWaker::new().build();
    ByHand { future: Box::pin(future), waker, wakes, wakes_before: 0, polls: 0 }
}

/// A future that is polled by hand: see [`by_hand`].
#[derive(Debug)]
pub struct ByHand<F> {
    future: Pin<Box<F>>,
    waker: Waker,
    wakes: Wakes,
    wakes_before: usize,
    polls: usize,
}

impl<F: Future> ByHand<F> {
    /// Polls the future once.
    pub fn poll(&mut self) -> Poll<F::Output> {
        let waker = self.waker.clone();
        self.poll_with(&waker)
    }

    /// Polls the future once with another waker, as if it had moved to another task.
    pub fn poll_with(&mut self, waker: &Waker) -> Poll<F::Output> {
        self.polls += 1;
        // Before the poll: a wake during it asks for another poll.
        self.wakes_before = self.wakes.wakes();
        self.future.as_mut().poll(&mut Context::from_waker(waker))
    }
}

impl<F> ByHand<F> {
    /// Whether its own waker was woken since the beginning of the last poll.
    pub fn is_woken(&self) -> bool {
        self.wakes() > self.wakes_before
    }

    /// How often its own waker was woken.
    pub fn wakes(&self) -> usize {
        self.wakes.wakes()
    }

    /// How often it was polled.
    pub fn polls(&self) -> usize {
        self.polls
    }
}
