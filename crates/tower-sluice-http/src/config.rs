//! The two ways in which a setting can be wrong.

use tower_sluice::error::ConfigError;

/// The infallible twin of a `try_*` path: panics with the error's text.
#[track_caller]
pub(crate) fn or_panic<T>(checked: Result<T, ConfigError>) -> T {
    match checked {
        Ok(value) => value,
        Err(error) => panic!("{error}"),
    }
}
