use std::borrow::Cow;
use std::error::Error;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// The error of a script that was given no error type of its own: a text.
///
/// ```
/// use tower_sluice_test::Failure;
///
/// assert_eq!(Failure::from("reset").to_string(), "reset");
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Failure(Cow<'static, str>);

impl From<&'static str> for Failure {
    fn from(text: &'static str) -> Self {
        Self(text.into())
    }
}

impl From<String> for Failure {
    fn from(text: String) -> Self {
        Self(text.into())
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Error for Failure {}

/// What one attempt does: how it ends, and when.
///
/// Usually written through [`Script`](crate::Script)'s setters of the same names; by itself it is what
/// [`Script::service_by`](crate::Script::service_by)'s closure returns.
///
/// ```
/// use std::time::Duration;
/// use tower_sluice_test::{Failure, Step};
///
/// let slow: Step<u16, Failure> = Step::answer(200).after(Duration::from_secs(5));
/// let stuck: Step<u16, Failure> = Step::never();
/// ```
pub struct Step<A, E> {
    pub(super) ending: Ending<A, E>,
    pub(super) after: Option<Duration>,
    pub(super) held: bool,
}

pub(super) enum Ending<A, E> {
    Result(Arc<dyn Fn() -> Result<A, E> + Send + Sync>),
    Never,
    Panic(Cow<'static, str>),
    PanicInCall(Cow<'static, str>),
}

impl<A, E> Step<A, E> {
    fn new(ending: Ending<A, E>) -> Self {
        Self { ending, after: None, held: false }
    }

    /// Answers with `answer`.
    pub fn answer(answer: A) -> Self
    where
        A: Clone + Send + Sync + 'static,
    {
        Self::answer_with(move || answer.clone())
    }

    /// Answers with what `make` makes, for answers that are not `Clone`.
    pub fn answer_with(make: impl Fn() -> A + Send + Sync + 'static) -> Self {
        Self::new(Ending::Result(Arc::new(move || Ok(make()))))
    }

    /// Fails with `error`.
    pub fn fail(error: impl Into<E>) -> Self
    where
        E: Clone + Send + Sync + 'static,
    {
        let error = error.into();
        Self::fail_with(move || error.clone())
    }

    /// Fails with what `make` makes, for errors that are not `Clone`.
    pub fn fail_with(make: impl Fn() -> E + Send + Sync + 'static) -> Self {
        Self::new(Ending::Result(Arc::new(move || Err(make()))))
    }

    /// Never ends by itself: only by a drop, or by [`Script::end`](crate::Script::end).
    pub fn never() -> Self {
        Self::new(Ending::Never)
    }

    /// Panics with `message` in the poll in which it would answer.
    pub fn panic(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(Ending::Panic(message.into()))
    }

    /// Panics with `message` in `call`, before there is a future.
    pub fn panic_in_call(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(Ending::PanicInCall(message.into()))
    }

    /// The attempt takes this long: from `call`, or, if it is [`held`](Self::held), from its release.
    /// `Duration::MAX` is never.
    #[must_use]
    pub fn after(mut self, delay: Duration) -> Self {
        self.after = Some(delay);
        self
    }

    /// The attempt waits until the test releases it: see [`Script::release`](crate::Script::release).
    #[must_use]
    pub fn held(mut self) -> Self {
        self.held = true;
        self
    }
}

impl<A, E> Clone for Step<A, E> {
    fn clone(&self) -> Self {
        let ending = match &self.ending {
            Ending::Result(make) => Ending::Result(make.clone()),
            Ending::Never => Ending::Never,
            Ending::Panic(message) => Ending::Panic(message.clone()),
            Ending::PanicInCall(message) => Ending::PanicInCall(message.clone()),
        };
        Self { ending, after: self.after, held: self.held }
    }
}

impl<A, E> fmt::Debug for Step<A, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ending = match &self.ending {
            Ending::Result(_) => "result",
            Ending::Never => "never",
            Ending::Panic(_) => "panic",
            Ending::PanicInCall(_) => "panic in call",
        };
        let Self { ending: _, after, held } = self;
        f.debug_struct("Step")
            .field("ending", &format_args!("{ending}"))
            .field("after", after)
            .field("held", held)
            .finish()
    }
}

/// How a clone becomes ready.
pub(super) enum Readiness<E> {
    AtOnce,
    After(Duration),
    Held,
    Fails(Arc<dyn Fn() -> E + Send + Sync>),
}

impl<E> Clone for Readiness<E> {
    fn clone(&self) -> Self {
        match self {
            Self::AtOnce => Self::AtOnce,
            Self::After(delay) => Self::After(*delay),
            Self::Held => Self::Held,
            Self::Fails(make) => Self::Fails(make.clone()),
        }
    }
}

/// One track of a script: its entries are taken in order, and the last one repeats.
pub(super) struct Track<T> {
    entries: Vec<T>,
    taken: usize,
}

impl<T: Clone> Track<T> {
    pub(super) const fn new() -> Self {
        Self { entries: Vec::new(), taken: 0 }
    }

    pub(super) fn push(&mut self, entry: T) {
        self.entries.push(entry);
    }

    pub(super) fn last_mut(&mut self) -> Option<&mut T> {
        self.entries.last_mut()
    }

    /// The next entry, or the last one again. `taken` stops at the end, so that an entry added later comes next.
    pub(super) fn take(&mut self) -> Option<T> {
        let entry = self.entries.get(self.taken).or_else(|| self.entries.last())?.clone();
        self.taken = self.entries.len().min(self.taken + 1);
        Some(entry)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_entry_repeats_until_another_is_added() {
        let mut track = Track::new();
        assert_eq!(track.take(), None);
        track.push(1);
        track.push(2);
        assert_eq!([track.take(), track.take(), track.take()], [Some(1), Some(2), Some(2)]);
        track.push(3);
        track.push(4);
        assert_eq!([track.take(), track.take(), track.take()], [Some(3), Some(4), Some(4)]);
    }
}
