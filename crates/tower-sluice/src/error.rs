//! What is wrong with a configuration.

use std::fmt;

/// A setting that can never work: names the field, what was given, and the bound.
///
/// Returned by every `try_*` path; the infallible twin panics with the same text.
///
/// ```
/// use tower_sluice::error::ConfigError;
///
/// let error = ConfigError::new("limit", 0, "1 to 16777214 (to stop all calls, pause)");
/// assert_eq!(error.to_string(), "limit is 0, but must be 1 to 16777214 (to stop all calls, pause)");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    field: &'static str,
    given: String,
    bound: &'static str,
}

impl ConfigError {
    /// `field` was `given`, and must be `bound`, which reads on after "must be".
    pub fn new(field: &'static str, given: impl fmt::Display, bound: &'static str) -> Self {
        Self { field, given: given.to_string(), bound }
    }

    /// The name of the setting.
    pub fn field(&self) -> &'static str {
        self.field
    }

    /// What the setting must be.
    pub fn bound(&self) -> &'static str {
        self.bound
    }

    /// The infallible twin of a `try_*` path: panics with the error's text.
    #[cfg(feature = "retry")]
    #[track_caller]
    pub(crate) fn or_panic<T>(checked: Result<T, Self>) -> T {
        match checked {
            Ok(value) => value,
            Err(error) => panic!("{error}"),
        }
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is {}, but must be {}", self.field, self.given, self.bound)
    }
}

impl std::error::Error for ConfigError {}

#[cfg(any(feature = "retry", feature = "reconnect"))]
impl From<crate::backoff::InvalidBackoff> for ConfigError {
    fn from(invalid: crate::backoff::InvalidBackoff) -> Self {
        Self::new(invalid.field(), invalid.given(), invalid.bound())
    }
}
