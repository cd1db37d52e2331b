//! What the stack's own decisions look like to an HTTP client.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONNECTION, CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode};
use http_body_util::{Either, Full};
use tower_sluice::error::ConfigError;
use tower_sluice::reject::{Answer, Rejection};

use crate::config::or_panic;

type MakeBody = dyn Fn(&Rejection) -> Bytes + Send + Sync;

/// Answers a [`Rejection`] with an HTTP response; the service's own error type stays what it is.
///
/// | rejection | status |
/// |---|---|
/// | full, shed | 503, or 429 with [`too_many_requests`](Self::too_many_requests) |
/// | queue timeout, cleared, closed, disconnected | 503 |
/// | deadline, attempt timeout | 504 |
///
/// Each answer carries
/// - `Retry-After`, whole seconds, rounded up from what the stack knows, 1 where it knows nothing, and
///   [bounded](Self::retry_after_within) to 1 to 60 s;
/// - `Connection: close` where the queue is closed, so that a client's next request goes elsewhere;
/// - a short text that tells outsiders no figures, or [one's own](Self::body);
/// - the [`Rejection`] as an extension, by which the layers of this workspace know the answer for what it is.
///
/// ```
/// use std::convert::Infallible;
/// use std::time::Duration;
/// use bytes::Bytes;
/// use http::Response;
/// use http_body_util::Empty;
/// use tower_sluice_http::HttpAnswer;
/// use tower_sluice_http::reject::{Answer, Rejection};
///
/// let full = Rejection::Full { limit: 64, waiting: 256, retry_after: Some(Duration::from_millis(2_100)) };
/// let answer = HttpAnswer::new().too_many_requests();
/// let response = Answer::<Response<Empty<Bytes>>, Infallible>::reject(&answer, full, None).unwrap();
/// assert_eq!(response.status(), 429);
/// assert_eq!(response.headers()["retry-after"], "3");
/// ```
#[derive(Clone)]
pub struct HttpAnswer {
    turned_away: StatusCode,
    least: u64,
    most: u64,
    headers: Option<Arc<HeaderMap>>,
    content_type: HeaderValue,
    body: Option<Arc<MakeBody>>,
}

impl HttpAnswer {
    /// The answers as they stand above.
    pub const fn new() -> Self {
        Self {
            turned_away: StatusCode::SERVICE_UNAVAILABLE,
            least: 1,
            most: 60,
            headers: None,
            content_type: HeaderValue::from_static("text/plain; charset=utf-8"),
            body: None,
        }
    }

    /// Answers full and shed with 429 instead of 503: for clients that slow down on a 429 alone.
    #[must_use]
    pub fn too_many_requests(mut self) -> Self {
        self.turned_away = StatusCode::TOO_MANY_REQUESTS;
        self
    }

    /// The bounds of `Retry-After`, in whole seconds; `least` is also said where the stack knows no time.
    /// From 1 to 60 s where not said. A `most` of [`Duration::MAX`] is no bound.
    ///
    /// # Panics
    ///
    /// If `least` is under a second, or over `most`.
    #[must_use]
    #[track_caller]
    pub fn retry_after_within(self, least: Duration, most: Duration) -> Self {
        or_panic(self.try_retry_after_within(least, most))
    }

    /// [`retry_after_within`](Self::retry_after_within) for values that come from a configuration.
    ///
    /// # Errors
    ///
    /// If `least` is under a second, or over `most`.
    pub fn try_retry_after_within(mut self, least: Duration, most: Duration) -> Result<Self, ConfigError> {
        if least < Duration::from_secs(1) || least > most {
            return Err(ConfigError::new(
                "least retry-after",
                format_args!("{least:?}"),
                "at least 1 s and no more than the most",
            ));
        }
        // Rounded so that both ends stay within what was asked for, unless no whole second lies there.
        self.least = whole_seconds(least);
        self.most = most.as_secs().max(self.least);
        Ok(self)
    }

    /// Adds a header to every answer. It replaces one of the same name that the answer would have.
    #[must_use]
    pub fn header(mut self, name: HeaderName, value: HeaderValue) -> Self {
        Arc::make_mut(self.headers.get_or_insert_default()).insert(name, value);
        self
    }

    /// Makes the body of an answer, of this content type. Called once a rejection, on the task of its call.
    ///
    /// ```
    /// use http::HeaderValue;
    /// use tower_sluice_http::HttpAnswer;
    ///
    /// let answer = HttpAnswer::new().body(HeaderValue::from_static("application/json"), |rejection| {
    ///     format!(r#"{{"error":"{}"}}"#, rejection.as_str())
    /// });
    /// # let _ = answer;
    /// ```
    #[must_use]
    pub fn body<F, T>(mut self, content_type: HeaderValue, body: F) -> Self
    where
        F: Fn(&Rejection) -> T + Send + Sync + 'static,
        T: Into<Bytes>,
    {
        self.content_type = content_type;
        self.body = Some(Arc::new(move |rejection| body(rejection).into()));
        self
    }

    /// The answer to `rejection`, for a responder of one's own that only differs here and there.
    pub fn respond(&self, rejection: Rejection) -> Response<Full<Bytes>> {
        let body = match &self.body {
            Some(body) => body(&rejection),
            None => Bytes::from_static(text(&rejection).as_bytes()),
        };
        let mut response = Response::new(Full::new(body));
        *response.status_mut() = self.status(&rejection);
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, self.content_type.clone());
        let delay = rejection.retry_after().map_or(self.least, whole_seconds);
        headers.insert(RETRY_AFTER, HeaderValue::from(delay.clamp(self.least, self.most)));
        if matches!(rejection, Rejection::Closed) {
            headers.insert(CONNECTION, HeaderValue::from_static("close"));
        }
        if let Some(extra) = self.headers.as_deref() {
            for (name, value) in extra {
                headers.insert(name, value.clone());
            }
        }
        response.extensions_mut().insert(rejection);
        response
    }

    fn status(&self, rejection: &Rejection) -> StatusCode {
        match rejection {
            Rejection::Full { .. } | Rejection::Shed { .. } => self.turned_away,
            Rejection::Deadline { .. } | Rejection::AttemptTimeout { .. } => StatusCode::GATEWAY_TIMEOUT,
            _ => StatusCode::SERVICE_UNAVAILABLE,
        }
    }
}

impl Default for HttpAnswer {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for HttpAnswer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { turned_away, least, most, headers, content_type, body: _ } = self;
        f.debug_struct("HttpAnswer")
            .field("turned_away", turned_away)
            .field("retry_after", &(least..=most))
            .field("headers", headers)
            .field("content_type", content_type)
            .finish_non_exhaustive()
    }
}

impl<B, E> Answer<Response<B>, E> for HttpAnswer {
    type Response = Response<Either<B, Full<Bytes>>>;
    type Error = E;
    type Kept = ();

    fn response(&self, response: Response<B>) -> Self::Response {
        response.map(Either::Left)
    }

    fn error(&self, error: E) -> E {
        error
    }

    fn keep(&self, _: E) {}

    fn reject(&self, rejection: Rejection, _: Option<()>) -> Result<Self::Response, E> {
        Ok(self.respond(rejection).map(Either::Right))
    }
}

/// Rounded up: a client that comes back early is turned away again.
fn whole_seconds(delay: Duration) -> u64 {
    delay.as_secs().saturating_add(u64::from(delay.subsec_nanos() > 0))
}

pub(crate) const fn text(rejection: &Rejection) -> &'static str {
    match rejection {
        Rejection::Full { .. } => "too busy, try again later\n",
        Rejection::QueueTimeout { .. } => "waited too long for a turn, try again later\n",
        Rejection::Cleared { .. } => "withdrawn by the operator, try again later\n",
        Rejection::Closed => "shutting down, try again later\n",
        Rejection::Deadline { .. } | Rejection::AttemptTimeout { .. } => "not answered in time\n",
        Rejection::Shed { .. } => "not served for now, try again later\n",
        _ => "not available, try again later\n",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::header::SERVER;
    use http_body_util::{BodyExt, Empty};
    use std::convert::Infallible;
    use tower_sluice::verdict::FailureKind;

    fn every_rejection() -> Vec<(Rejection, u16)> {
        let full = |retry_after| Rejection::Full { limit: 2, waiting: 3, retry_after };
        vec![
            (full(None), 503),
            (Rejection::QueueTimeout { waited: Duration::from_secs(1), attempts: 0 }, 503),
            (Rejection::Cleared { reason: "deploy".into() }, 503),
            (Rejection::Closed, 503),
            (Rejection::Shed { level: Some("low".into()) }, 503),
            (Rejection::Disconnected { retry_after: None, cause: None }, 503),
            (
                Rejection::Deadline {
                    attempts: 2,
                    elapsed: Duration::from_secs(3),
                    last_failure: Some(FailureKind::Transient),
                },
                504,
            ),
            (Rejection::AttemptTimeout { attempts: 1, elapsed: Duration::from_secs(3) }, 504),
        ]
    }

    fn full(retry_after: Option<Duration>) -> Rejection {
        Rejection::Full { limit: 2, waiting: 3, retry_after }
    }

    #[tokio::test]
    async fn h5_every_rejection_has_a_status_a_retry_after_a_text_and_says_what_it_is() {
        for (rejection, status) in every_rejection() {
            let response = HttpAnswer::new().respond(rejection.clone());
            assert_eq!(response.status(), status, "{rejection}");
            assert_eq!(response.headers()[RETRY_AFTER], "1", "{rejection}");
            assert_eq!(response.extensions().get(), Some(&rejection));
            let closes = response.headers().get(CONNECTION).is_some_and(|value| value == "close");
            assert_eq!(closes, rejection == Rejection::Closed, "{rejection}");
            let text = response.into_body().collect().await.unwrap().to_bytes();
            assert!(!text.is_empty() && !text.iter().any(u8::is_ascii_digit), "no figures for outsiders");
            assert!(!text.windows(6).any(|word| word == b"deploy"), "no operator's words for outsiders");
        }
    }

    #[test]
    fn h5_full_and_shed_alone_are_429_where_so_chosen() {
        for (rejection, status) in every_rejection() {
            let turned_away = matches!(rejection, Rejection::Full { .. } | Rejection::Shed { .. });
            let answer = HttpAnswer::new().too_many_requests().respond(rejection);
            assert_eq!(answer.status(), if turned_away { 429 } else { status });
        }
    }

    #[test]
    fn h5_retry_after_is_whole_seconds_rounded_up_and_bounded() {
        let header = |answer: &HttpAnswer, delay| {
            answer.respond(full(delay)).headers()[RETRY_AFTER].to_str().unwrap().to_owned()
        };
        let usual = HttpAnswer::new();
        for (delay, expected) in [
            (Duration::ZERO, "1"),
            (Duration::from_nanos(1), "1"),
            (Duration::from_secs(1), "1"),
            (Duration::from_millis(1_001), "2"),
            (Duration::from_secs(60), "60"),
            (Duration::from_secs(61), "60"),
            (Duration::MAX, "60"),
        ] {
            assert_eq!(header(&usual, Some(delay)), expected, "{delay:?}");
        }
        let unbounded = usual.clone().retry_after_within(Duration::from_millis(2_500), Duration::MAX);
        assert_eq!(header(&unbounded, None), "3");
        assert_eq!(header(&unbounded, Some(Duration::from_secs(86_400))), "86400");
        assert_eq!(header(&unbounded, Some(Duration::MAX)), u64::MAX.to_string());
        let narrow = usual.retry_after_within(Duration::from_millis(1_200), Duration::from_millis(1_800));
        assert_eq!(header(&narrow, None), "2", "no whole second lies between");
    }

    #[test]
    fn bounds_that_cannot_be_are_named() {
        for (least, most) in [(0, 60), (61, 60)] {
            let error = HttpAnswer::new()
                .try_retry_after_within(Duration::from_secs(least), Duration::from_secs(most))
                .unwrap_err();
            assert_eq!(error.field(), "least retry-after");
        }
    }

    #[tokio::test]
    async fn h5_body_and_headers_are_the_users_where_given() {
        let answer = HttpAnswer::new()
            .body(HeaderValue::from_static("application/json"), |r| format!("{{\"why\":\"{}\"}}", r.as_str()))
            .header(SERVER, HeaderValue::from_static("sluice"))
            .header(RETRY_AFTER, HeaderValue::from_static("9"));
        let response = answer.respond(full(None));
        assert_eq!(response.headers()[CONTENT_TYPE], "application/json");
        assert_eq!(response.headers()[SERVER], "sluice");
        assert_eq!(response.headers().get_all(RETRY_AFTER).iter().collect::<Vec<_>>(), ["9"]);
        assert_eq!(response.into_body().collect().await.unwrap().to_bytes(), "{\"why\":\"full\"}");
    }

    #[tokio::test]
    async fn h5_the_services_own_answer_and_error_pass_unchanged() {
        let answer = HttpAnswer::new();
        let own =
            Response::builder().status(201).header("x", "y").body(Full::new(Bytes::from("own"))).unwrap();
        let passed = Answer::<_, Infallible>::response(&answer, own);
        assert_eq!((passed.status().as_u16(), passed.headers().len()), (201, 1));
        assert_eq!(passed.into_body().collect().await.unwrap().to_bytes(), "own");
        let error = Answer::<Response<Empty<Bytes>>, &str>::error(&answer, "typed");
        assert_eq!(error, "typed");
    }
}
