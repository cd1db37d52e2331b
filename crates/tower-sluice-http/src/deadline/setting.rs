use http::HeaderName;
use tower_sluice::error::ConfigError;
use tower_sluice::queue::QueueLayer;
use tower_sluice::retry::RetryPolicy;

use super::mode::DeadlineFromHeader;
use super::repeat::TellDeadline;
use crate::config::or_panic;

/// The setting of a queue over HTTP by which deadlines go from hop to hop; see [the module](super).
pub trait DeadlineHeader: Sized {
    /// The queue with the setting.
    type WithDeadline;

    /// Obeys the time that a request says it has left in this header, in whole milliseconds, and tells what is left of
    /// the call's deadline to what is below, in the same header.
    ///
    /// It builds on the retry policy and the answers that the queue has:
    /// [`retry`](QueueLayer::retry) and [`answer`](QueueLayer::answer) come before it. Off unless set; there is no
    /// standard name.
    ///
    /// # Panics
    ///
    /// If `name` is no header name.
    ///
    /// ```
    /// # use std::time::Duration;
    /// use tower_sluice_http::{DeadlineHeader, HttpRetry, http_client, http_retry, http_server};
    ///
    /// let server = http_server(64).call_timeout(Duration::from_secs(10)).deadline_header("request-timeout-ms");
    /// let client = http_client(16)
    ///     .retry(http_retry().idempotency_key("idempotency-key"))
    ///     .deadline_header("x-envoy-expected-rq-timeout-ms");
    /// # let _ = (server.handle(), client.handle());
    /// ```
    #[must_use]
    #[track_caller]
    fn deadline_header(self, name: impl TryInto<HeaderName>) -> Self::WithDeadline {
        or_panic(self.try_deadline_header(name))
    }

    /// [`deadline_header`](Self::deadline_header) for a name that comes from a configuration.
    ///
    /// # Errors
    ///
    /// If `name` is no header name.
    fn try_deadline_header(self, name: impl TryInto<HeaderName>) -> Result<Self::WithDeadline, ConfigError>;
}

impl<C, R, A> DeadlineHeader for QueueLayer<RetryPolicy<C, R>, A> {
    type WithDeadline = QueueLayer<RetryPolicy<C, TellDeadline<R>>, DeadlineFromHeader<A>>;

    fn try_deadline_header(self, name: impl TryInto<HeaderName>) -> Result<Self::WithDeadline, ConfigError> {
        let name = name.try_into().map_err(|_| {
            ConfigError::new("deadline header", "no header name", "a token of RFC 9110, 5.6.2")
        })?;
        Ok(self
            .map_retry(|policy| policy.map_repeater(|repeat| TellDeadline::new(repeat, name.clone())))
            .map_answer(|mode| DeadlineFromHeader::new(mode, name)))
    }
}
