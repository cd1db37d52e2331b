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
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is {}, but must be {}", self.field, self.given, self.bound)
    }
}

impl std::error::Error for ConfigError {}
