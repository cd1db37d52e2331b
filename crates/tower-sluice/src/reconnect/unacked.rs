use std::collections::BTreeMap;
use std::error::Error;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{Notify, Semaphore};

use crate::error::ConfigError;

/// Messages that were sent and are not yet acknowledged, in order, for [`restore`](super::LinkBuilder::restore) to send
/// again.
///
/// Push a message before it is sent; send it with the number that [`push`](Self::push) returns; acknowledge it by that
/// number. What a connection took with it when it broke is then still here. The receiver may see a message twice, and
/// tells so by its number.
///
/// At the bound it is the caller's choice what happens: [`push`](Self::push) waits for an acknowledgement, and
/// [`try_push`](Self::try_push) refuses.
///
/// Cheap to clone; all clones are one store.
///
/// ```
/// use tower_sluice::reconnect::Unacked;
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower_sluice::BoxError> {
/// let unacked = Unacked::new(1_000);
/// for message in ["a", "b", "c"] {
///     unacked.push(message).await?;
/// }
/// unacked.ack(2);
/// let again: Vec<_> = unacked.iter().map(|(n, message)| (n, *message)).collect();
/// assert_eq!(again, [(1, "a"), (3, "c")]);
/// # Ok(()) }
/// ```
pub struct Unacked<T> {
    store: Arc<Store<T>>,
}

struct Store<T> {
    messages: Mutex<Messages<T>>,
    /// One permit for each message that still has room. First come, first served.
    room: Semaphore,
    acked: Notify,
    bound: usize,
}

struct Messages<T> {
    /// The number of the last message that was pushed.
    last: u64,
    /// Sorted, as acknowledgements may come in any order. In `Arc`s, so that no clone of a user's type is made under
    /// the lock.
    waiting: BTreeMap<u64, Arc<T>>,
}

impl<T> Unacked<T> {
    /// A store for at most `bound` messages.
    ///
    /// # Panics
    /// If `bound` is 0, or more than tokio's [`Semaphore::MAX_PERMITS`] (2^61 - 1 on 64 bits).
    /// [`try_new`](Self::try_new) returns the error instead.
    #[must_use]
    #[track_caller]
    pub fn new(bound: usize) -> Self {
        match Self::try_new(bound) {
            Ok(this) => this,
            Err(error) => panic!("{error}"),
        }
    }

    /// As [`new`](Self::new), for a bound that comes from configuration.
    ///
    /// # Errors
    /// If `bound` is 0, or more than tokio's [`Semaphore::MAX_PERMITS`].
    pub fn try_new(bound: usize) -> Result<Self, ConfigError> {
        if bound == 0 || bound > Semaphore::MAX_PERMITS {
            return Err(ConfigError::new("bound", bound, "1 to tokio's Semaphore::MAX_PERMITS"));
        }
        Ok(Self {
            store: Arc::new(Store {
                messages: Mutex::new(Messages { last: 0, waiting: BTreeMap::new() }),
                room: Semaphore::new(bound),
                acked: Notify::new(),
                bound,
            }),
        })
    }

    /// No user code runs under this lock, so that nothing can poison it.
    fn lock(&self) -> MutexGuard<'_, Messages<T>> {
        self.store.messages.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps `message`, and returns its number: 1 for the first, then 2, and so on. At the bound it waits until a
    /// message is acknowledged, in order of arrival. Dropped while it waits, nothing is kept.
    ///
    /// # Errors
    /// [`PushError::Closed`], with the message, once the store is [closed](Self::close).
    pub async fn push(&self, message: T) -> Result<u64, PushError<T>> {
        match self.store.room.acquire().await {
            Ok(room) => {
                room.forget();
                Ok(self.insert(message))
            }
            Err(_) => Err(PushError::Closed(message)),
        }
    }

    /// As [`push`](Self::push), but refuses at the bound.
    ///
    /// # Errors
    /// [`PushError::Full`] at the bound, [`PushError::Closed`] once the store is closed; each with the message.
    pub fn try_push(&self, message: T) -> Result<u64, PushError<T>> {
        match self.store.room.try_acquire() {
            Ok(room) => {
                room.forget();
                Ok(self.insert(message))
            }
            Err(tokio::sync::TryAcquireError::NoPermits) => Err(PushError::Full(message)),
            Err(tokio::sync::TryAcquireError::Closed) => Err(PushError::Closed(message)),
        }
    }

    fn insert(&self, message: T) -> u64 {
        let message = Arc::new(message);
        let mut messages = self.lock();
        messages.last += 1;
        let number = messages.last;
        messages.waiting.insert(number, message);
        number
    }

    /// Message `number` was received. Returns it, or `None` if it was acknowledged before or never pushed.
    pub fn ack(&self, number: u64) -> Option<Arc<T>> {
        let message = self.lock().waiting.remove(&number);
        self.free(usize::from(message.is_some()));
        message
    }

    /// Every message up to and including `number` was received. Returns how many of them had not been acknowledged
    /// before.
    pub fn ack_through(&self, number: u64) -> usize {
        let acked = {
            let mut messages = self.lock();
            match number.checked_add(1) {
                Some(next) => {
                    let rest = messages.waiting.split_off(&next);
                    std::mem::replace(&mut messages.waiting, rest)
                }
                None => std::mem::take(&mut messages.waiting),
            }
        };
        self.free(acked.len());
        acked.len()
    }

    fn free(&self, count: usize) {
        if count > 0 {
            self.store.room.add_permits(count);
            self.store.acked.notify_waiters();
        }
    }

    /// The messages that are not acknowledged, in the order of their numbers, up to the last that was pushed before
    /// this call.
    ///
    /// It may be kept over an `await`: it holds no lock, passes over what is acknowledged in the meantime, and ends
    /// also while others push.
    pub fn iter(&self) -> Iter<T> {
        let last = self.lock().last;
        Iter { unacked: self.clone(), next: 1, last }
    }

    /// How many messages are not acknowledged.
    pub fn len(&self) -> usize {
        self.lock().waiting.len()
    }

    /// Whether every message is acknowledged.
    pub fn is_empty(&self) -> bool {
        self.lock().waiting.is_empty()
    }

    /// The most messages that it keeps.
    pub fn bound(&self) -> usize {
        self.store.bound
    }

    /// Waits until every message is acknowledged: for a clean end.
    pub async fn all_acked(&self) {
        loop {
            // Made before the look, so that no acknowledgement falls between the two.
            let acked = self.store.acked.notified();
            if self.is_empty() {
                return;
            }
            acked.await;
        }
    }

    /// Takes no more messages: whoever waits in [`push`](Self::push) gets its message back. What is kept stays.
    pub fn close(&self) {
        self.store.room.close();
    }
}

impl<T> Clone for Unacked<T> {
    fn clone(&self) -> Self {
        Self { store: Arc::clone(&self.store) }
    }
}

impl<T> fmt::Debug for Unacked<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Unacked")
            .field("len", &self.len())
            .field("bound", &self.store.bound)
            .finish_non_exhaustive()
    }
}

impl<T> IntoIterator for &Unacked<T> {
    type Item = (u64, Arc<T>);
    type IntoIter = Iter<T>;

    fn into_iter(self) -> Iter<T> {
        self.iter()
    }
}

/// Iterates over unacknowledged messages; made by [`Unacked::iter`].
pub struct Iter<T> {
    unacked: Unacked<T>,
    next: u64,
    last: u64,
}

impl<T> Iterator for Iter<T> {
    type Item = (u64, Arc<T>);

    fn next(&mut self) -> Option<Self::Item> {
        if self.next > self.last {
            return None;
        }
        let (number, message) = {
            let messages = self.unacked.lock();
            let (number, message) = messages.waiting.range(self.next..=self.last).next()?;
            (*number, Arc::clone(message))
        };
        self.next = number.saturating_add(1);
        Some((number, message))
    }
}

impl<T> fmt::Debug for Iter<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Iter").field("next", &self.next).field("last", &self.last).finish_non_exhaustive()
    }
}

/// Why a message was not taken; the message comes back.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum PushError<T> {
    /// As many messages as may be wait for their acknowledgement.
    Full(T),
    /// The store is closed.
    Closed(T),
}

impl<T> PushError<T> {
    /// The message.
    pub fn into_message(self) -> T {
        match self {
            Self::Full(message) | Self::Closed(message) => message,
        }
    }
}

impl<T> fmt::Debug for PushError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Full(_) => "Full(..)",
            Self::Closed(_) => "Closed(..)",
        })
    }
}

impl<T> fmt::Display for PushError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Full(_) => "too many messages wait for their acknowledgement",
            Self::Closed(_) => "no more messages are taken",
        })
    }
}

impl<T> Error for PushError<T> {}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use futures_util::FutureExt;
    use proptest::prelude::*;

    use super::*;

    fn numbers<T>(unacked: &Unacked<T>) -> Vec<u64> {
        unacked.iter().map(|(number, _)| number).collect()
    }

    #[tokio::test]
    async fn c7_at_the_bound_push_waits_and_try_push_refuses() {
        let unacked = Unacked::new(2);
        assert_eq!(unacked.push("a").await, Ok(1));
        assert_eq!(unacked.try_push("b"), Ok(2));
        assert_eq!(unacked.try_push("c"), Err(PushError::Full("c")));

        let (mut first, mut second) = (Box::pin(unacked.push("c")), Box::pin(unacked.push("d")));
        assert!(first.as_mut().now_or_never().is_none());
        assert!(second.as_mut().now_or_never().is_none());
        assert_eq!(unacked.ack(2).as_deref(), Some(&"b"));
        // The room is the first one's, whoever asks now.
        assert_eq!(unacked.try_push("e"), Err(PushError::Full("e")));
        assert!(second.as_mut().now_or_never().is_none());
        assert_eq!(first.await, Ok(3));
        assert_eq!(numbers(&unacked), [1, 3]);
    }

    #[tokio::test]
    async fn c7_a_push_that_is_dropped_while_it_waits_passes_its_room_on() {
        let unacked = Unacked::new(1);
        unacked.try_push(1).unwrap();
        let mut dropped = Box::pin(unacked.push(2));
        assert!(dropped.as_mut().now_or_never().is_none());
        let mut waits = Box::pin(unacked.push(3));
        assert!(waits.as_mut().now_or_never().is_none());
        unacked.ack(1);
        drop(dropped);
        assert_eq!(waits.await, Ok(2));
        assert_eq!(unacked.iter().map(|(_, message)| *message).collect::<Vec<_>>(), [3]);
    }

    #[tokio::test]
    async fn c7_close_gives_waiting_messages_back_and_keeps_the_rest() {
        let unacked = Unacked::new(1);
        unacked.try_push("kept").unwrap();
        let mut waits = Box::pin(unacked.push("back"));
        assert!(waits.as_mut().now_or_never().is_none());
        unacked.close();
        assert_eq!(waits.await, Err(PushError::Closed("back")));
        assert_eq!(unacked.try_push("late"), Err(PushError::Closed("late")));
        assert_eq!(numbers(&unacked), [1]);
    }

    #[tokio::test]
    async fn c7_an_iterator_skips_what_is_acked_and_ends_where_it_began() {
        let unacked = Unacked::new(10);
        for message in 0..4 {
            unacked.try_push(message).unwrap();
        }
        let mut iter = unacked.iter();
        assert_eq!(iter.next().map(|(n, _)| n), Some(1));
        unacked.ack(2);
        unacked.try_push(4).unwrap();
        assert_eq!(iter.map(|(n, _)| n).collect::<Vec<_>>(), [3, 4]);
    }

    #[tokio::test]
    async fn c7_all_acked_waits_for_the_last() {
        let unacked = Unacked::new(10);
        unacked.all_acked().await;
        unacked.try_push(()).unwrap();
        unacked.try_push(()).unwrap();
        let mut all = Box::pin(unacked.all_acked());
        assert!(all.as_mut().now_or_never().is_none());
        unacked.ack(1);
        assert!(all.as_mut().now_or_never().is_none());
        unacked.ack_through(u64::MAX);
        assert!(all.now_or_never().is_some());
    }

    #[test]
    fn an_impossible_bound_is_named() {
        let error = Unacked::<()>::try_new(0).unwrap_err();
        assert_eq!(error.field(), "bound");
        assert!(Unacked::<()>::try_new(usize::MAX).is_err());
    }

    #[derive(Clone, Debug)]
    enum Op {
        Push,
        Ack(u64),
        AckThrough(u64),
    }

    fn op() -> impl Strategy<Value = Op> {
        prop_oneof![
            3 => Just(Op::Push),
            2 => (0..40_u64).prop_map(Op::Ack),
            1 => (0..40_u64).prop_map(Op::AckThrough),
        ]
    }

    proptest! {
        #[test]
        fn c7_behaves_as_a_plain_list_does(bound in 1..8_usize, ops in prop::collection::vec(op(), 0..80)) {
            let unacked = Unacked::new(bound);
            let (mut model, mut last) = (VecDeque::<u64>::new(), 0);
            for op in ops {
                match op {
                    Op::Push => {
                        let room = model.len() < bound;
                        prop_assert_eq!(unacked.try_push(last + 1).is_ok(), room);
                        if room {
                            last += 1;
                            model.push_back(last);
                        }
                    }
                    Op::Ack(number) => {
                        let expected = model.contains(&number).then_some(number);
                        model.retain(|n| *n != number);
                        prop_assert_eq!(unacked.ack(number).as_deref().copied(), expected);
                    }
                    Op::AckThrough(number) => {
                        let before = model.len();
                        model.retain(|n| *n > number);
                        prop_assert_eq!(unacked.ack_through(number), before - model.len());
                    }
                }
                prop_assert_eq!(unacked.len(), model.len());
                let kept: Vec<_> = unacked.iter().map(|(n, message)| (n, *message)).collect();
                prop_assert_eq!(kept, model.iter().map(|n| (*n, *n)).collect::<Vec<_>>());
            }
        }
    }
}
