use std::fmt;

use crate::BoxError;

/// Tells which errors of calls mean that the connection is of no use any more.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot tell which errors of type `{E}` mean a broken connection",
    note = "`broken_if` takes a closure `|error: &Error| -> bool`, and the error has to be `Display`"
)]
pub trait Broken<E> {
    /// Why the connection is broken, if `error` says so.
    fn broken(&self, error: &E) -> Option<BoxError>;
}

/// No error of a call says anything about the connection. The default: losses are noticed by readiness and by the
/// watches over the connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NeverBroken;

impl<E> Broken<E> for NeverBroken {
    fn broken(&self, _: &E) -> Option<BoxError> {
        None
    }
}

/// The connection is broken where a closure says so.
#[derive(Clone, Copy)]
pub struct BrokenIf<F> {
    is_broken: F,
}

impl<F> BrokenIf<F> {
    /// Broken if `is_broken` returns `true` for the error of a call.
    pub const fn new(is_broken: F) -> Self {
        Self { is_broken }
    }
}

impl<F> fmt::Debug for BrokenIf<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BrokenIf").finish_non_exhaustive()
    }
}

impl<E: fmt::Display, F: Fn(&E) -> bool> Broken<E> for BrokenIf<F> {
    fn broken(&self, error: &E) -> Option<BoxError> {
        (self.is_broken)(error).then(|| error.to_string().into())
    }
}
