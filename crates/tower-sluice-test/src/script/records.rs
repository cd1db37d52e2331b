use std::time::Duration;

/// How an attempt ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Outcome {
    /// It has not ended.
    Running,
    /// It answered.
    Answered,
    /// It gave its error.
    Failed,
    /// It panicked, as its step says.
    Panicked,
    /// Its future was dropped before it had ended.
    Dropped,
}

/// The record of one attempt. Times are counted from [`Script::new`](crate::Script::new).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Attempt {
    /// The attempt's number, from 0 in order of `call`: its place in [`Script::attempts`](crate::Script::attempts).
    pub id: usize,
    /// Which clone of the service was called, from 0 in order of creation.
    pub instance: usize,
    /// When `call` was called.
    pub start: Duration,
    /// When it ended, in whichever way.
    pub end: Option<Duration>,
    /// How it ended.
    pub outcome: Outcome,
    /// How often its future was polled.
    pub polls: usize,
}
