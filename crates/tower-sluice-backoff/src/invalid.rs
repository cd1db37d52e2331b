use std::fmt;

/// A setting that can never work: names the field, what was given, and the bound.
///
/// Returned by every `try_*` path; the infallible twin panics with the same text.
///
/// ```
/// use std::time::Duration;
/// use tower_sluice_backoff::Backoff;
///
/// let error = Backoff::try_exponential(Duration::from_secs(2), Duration::from_secs(1)).unwrap_err();
/// assert_eq!(error.field(), "max");
/// assert_eq!(error.to_string(), "max is 1s, but must be at least base");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidBackoff {
    field: &'static str,
    given: String,
    bound: &'static str,
}

impl InvalidBackoff {
    pub(crate) fn new(field: &'static str, given: impl fmt::Debug, bound: &'static str) -> Self {
        Self { field, given: format!("{given:?}"), bound }
    }

    /// The name of the setting.
    pub fn field(&self) -> &'static str {
        self.field
    }

    /// What was given.
    pub fn given(&self) -> &str {
        &self.given
    }

    /// What the setting must be; reads on after "must be".
    pub fn bound(&self) -> &'static str {
        self.bound
    }
}

impl fmt::Display for InvalidBackoff {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is {}, but must be {}", self.field, self.given, self.bound)
    }
}

impl std::error::Error for InvalidBackoff {}
