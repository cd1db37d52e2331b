//! What the stack's own decisions look like to a gRPC client.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use http::{Request, Response};
use http_body_util::{Either, Empty};
use tower_sluice::error::ConfigError;
use tower_sluice::queue::{CallOptions, Mode, Wrap};
use tower_sluice::reject::{Answer, Rejection};

use super::code;
use super::mode::{GrpcMode, call_options};
use super::status::{PUSH_BACK, STATUS};
use crate::answer::text;
use crate::config::or_panic;

const MESSAGE: HeaderName = HeaderName::from_static("grpc-message");

type MakeMessage = dyn Fn(&Rejection) -> String + Send + Sync;

/// Answers a [`Rejection`] with a gRPC status; the service's own error type stays what it is.
///
/// | rejection | status |
/// |---|---|
/// | full, shed | RESOURCE_EXHAUSTED, with `grpc-retry-pushback-ms` |
/// | deadline, attempt timeout | DEADLINE_EXCEEDED |
/// | queue timeout, cleared, closed, disconnected | UNAVAILABLE |
///
/// The status stands in the response's head ("trailers-only"), HTTP status 200, without a body: a client sees a
/// `Status`, never a broken stream. The push-back is what the stack knows, 1 s where it knows nothing,
/// [bounded](Self::push_back_within) to 1 to 60 s. The message tells outsiders no figures, or is
/// [one's own](Self::message), percent-encoded. The [`Rejection`] is an extension of the response, by which the
/// layers of this workspace know the answer for what it is.
///
/// ```
/// use std::convert::Infallible;
/// use std::time::Duration;
/// use bytes::Bytes;
/// use http::Response;
/// use http_body_util::Empty;
/// use tower_sluice_http::grpc::GrpcAnswer;
/// use tower_sluice_http::reject::{Answer, Rejection};
///
/// let full = Rejection::Full { limit: 64, waiting: 256, retry_after: Some(Duration::from_millis(2_100)) };
/// let response = Answer::<Response<Empty<Bytes>>, Infallible>::reject(&GrpcAnswer::new(), full, None).unwrap();
/// assert_eq!(response.headers()["grpc-status"], "8");
/// assert_eq!(response.headers()["grpc-retry-pushback-ms"], "2100");
/// ```
#[derive(Clone)]
pub struct GrpcAnswer {
    least: u64,
    most: u64,
    headers: Option<Arc<HeaderMap>>,
    message: Option<Arc<MakeMessage>>,
}

impl GrpcAnswer {
    /// The answers as they stand above.
    pub const fn new() -> Self {
        Self { least: 1_000, most: 60_000, headers: None, message: None }
    }

    /// The bounds of the push-back; `least` is also said where the stack knows no time. From 1 to 60 s where not said.
    /// A `most` of [`Duration::MAX`] is no bound.
    ///
    /// # Panics
    ///
    /// If `least` is over `most`.
    #[must_use]
    #[track_caller]
    pub fn push_back_within(self, least: Duration, most: Duration) -> Self {
        or_panic(self.try_push_back_within(least, most))
    }

    /// [`push_back_within`](Self::push_back_within) for values that come from a configuration.
    ///
    /// # Errors
    ///
    /// If `least` is over `most`.
    pub fn try_push_back_within(mut self, least: Duration, most: Duration) -> Result<Self, ConfigError> {
        if least > most {
            return Err(ConfigError::new(
                "least push-back",
                format_args!("{least:?}"),
                "no more than the most",
            ));
        }
        self.least = whole_millis(least);
        self.most = whole_millis(most);
        Ok(self)
    }

    /// Adds metadata to every answer. It replaces what the answer would have under the same name.
    #[must_use]
    pub fn header(mut self, name: HeaderName, value: HeaderValue) -> Self {
        Arc::make_mut(self.headers.get_or_insert_default()).insert(name, value);
        self
    }

    /// Makes the message of an answer. Called once a rejection, on the task of its call.
    #[must_use]
    pub fn message<F>(mut self, message: F) -> Self
    where
        F: Fn(&Rejection) -> String + Send + Sync + 'static,
    {
        self.message = Some(Arc::new(message));
        self
    }

    /// The answer to `rejection`, for a responder of one's own that only differs here and there.
    pub fn respond(&self, rejection: Rejection) -> Response<Empty<Bytes>> {
        let mut response = Response::new(Empty::new());
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
        let code = code_of(&rejection);
        headers.insert(STATUS, HeaderValue::from(code));
        let message = match &self.message {
            Some(message) => Cow::Owned(message(&rejection)),
            None => Cow::Borrowed(text(&rejection).trim_end()),
        };
        headers.insert(MESSAGE, percent_encoded(&message));
        if code == code::RESOURCE_EXHAUSTED {
            let delay = rejection.retry_after().map_or(self.least, whole_millis);
            headers.insert(PUSH_BACK, HeaderValue::from(delay.clamp(self.least, self.most)));
        }
        if let Some(extra) = self.headers.as_deref() {
            for (name, value) in extra {
                headers.insert(name, value.clone());
            }
        }
        response.extensions_mut().insert(rejection);
        response
    }
}

impl Default for GrpcAnswer {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for GrpcAnswer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GrpcAnswer")
            .field("push_back_ms", &(self.least..=self.most))
            .field("headers", &self.headers)
            .finish_non_exhaustive()
    }
}

const fn code_of(rejection: &Rejection) -> i32 {
    match rejection {
        Rejection::Full { .. } | Rejection::Shed { .. } => code::RESOURCE_EXHAUSTED,
        Rejection::Deadline { .. } | Rejection::AttemptTimeout { .. } => code::DEADLINE_EXCEEDED,
        _ => code::UNAVAILABLE,
    }
}

/// Rounded up: a client that comes back early is turned away again.
fn whole_millis(delay: Duration) -> u64 {
    u64::try_from(delay.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

/// As gRPC over HTTP/2 asks of `grpc-message`: printable ASCII but `%` stands for itself.
fn percent_encoded(message: &str) -> HeaderValue {
    const HEX: &[u8; 16] = b"0123456789ABCDEF";
    let mut text = Vec::with_capacity(message.len());
    for byte in message.bytes() {
        if matches!(byte, b' '..=b'~') && byte != b'%' {
            text.push(byte);
        } else {
            text.extend([b'%', HEX[usize::from(byte >> 4)], HEX[usize::from(byte & 15)]]);
        }
    }
    HeaderValue::from_bytes(&text).unwrap_or_else(|_| HeaderValue::from_static(""))
}

impl<B, E> Answer<Response<B>, E> for GrpcAnswer {
    type Response = Response<Either<B, Empty<Bytes>>>;
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

/// As in [`GrpcMode`].
impl Wrap for GrpcAnswer {
    type Inner<S> = S;
    type With<A> = GrpcMode<A>;

    fn wrap<S>(&self, service: S) -> S {
        service
    }

    fn with<A>(self, answer: A) -> GrpcMode<A> {
        GrpcMode::new(answer)
    }
}

impl<B, Res, E> Mode<Request<B>, Res, E> for GrpcAnswer
where
    Self: Answer<Res, E>,
{
    fn options(&self, request: &Request<B>) -> CallOptions {
        call_options(request)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tower_sluice::verdict::FailureKind;

    #[test]
    fn h5_every_rejection_has_a_status_a_message_and_says_what_it_is() {
        let elapsed = Duration::from_secs(3);
        let late = Rejection::Deadline { attempts: 2, elapsed, last_failure: Some(FailureKind::Transient) };
        for (rejection, code) in [
            (Rejection::Full { limit: 2, waiting: 3, retry_after: None }, "8"),
            (Rejection::Shed { level: Some("low".into()) }, "8"),
            (late, "4"),
            (Rejection::AttemptTimeout { attempts: 1, elapsed }, "4"),
            (Rejection::QueueTimeout { waited: elapsed, attempts: 0 }, "14"),
            (Rejection::Cleared { reason: "deploy".into() }, "14"),
            (Rejection::Closed, "14"),
            (Rejection::Disconnected { retry_after: None, cause: None }, "14"),
        ] {
            let response = GrpcAnswer::new().respond(rejection.clone());
            assert_eq!(response.status(), 200, "{rejection}");
            let headers = response.headers();
            assert_eq!(headers["grpc-status"], code, "{rejection}");
            assert_eq!(headers["content-type"], "application/grpc");
            let message = headers["grpc-message"].to_str().unwrap();
            assert!(
                !message.is_empty() && !message.contains("deploy") && !message.contains(char::is_numeric)
            );
            let push_back = headers.get("grpc-retry-pushback-ms").map(|value| value.to_str().unwrap());
            assert_eq!(push_back, (code == "8").then_some("1000"), "{rejection}");
            assert_eq!(response.extensions().get(), Some(&rejection));
        }
    }

    #[test]
    fn h4_h5_the_push_back_is_what_the_stack_knows_within_bounds() {
        let told = |answer: &GrpcAnswer, delay| {
            let full = Rejection::Full { limit: 2, waiting: 3, retry_after: Some(delay) };
            answer.respond(full).headers()["grpc-retry-pushback-ms"].to_str().unwrap().to_owned()
        };
        let usual = GrpcAnswer::new();
        for (delay, expected) in [
            (Duration::ZERO, "1000"),
            (Duration::from_micros(1_000_001), "1001"),
            (Duration::from_secs(60), "60000"),
            (Duration::MAX, "60000"),
        ] {
            assert_eq!(told(&usual, delay), expected, "{delay:?}");
        }
        let wide = usual.push_back_within(Duration::ZERO, Duration::MAX);
        assert_eq!(told(&wide, Duration::ZERO), "0");
        assert_eq!(told(&wide, Duration::MAX), u64::MAX.to_string());
        let error = wide.try_push_back_within(Duration::from_secs(2), Duration::from_secs(1)).unwrap_err();
        assert_eq!(error.field(), "least push-back");
    }

    #[test]
    fn h5_a_message_of_ones_own_is_percent_encoded() {
        let answer = GrpcAnswer::new()
            .message(|rejection| format!("{} 100% ✓\n", rejection.as_str()))
            .header(HeaderName::from_static("x-zone"), HeaderValue::from_static("b"));
        let response = answer.respond(Rejection::Closed);
        assert_eq!(response.headers()["grpc-message"], "closed 100%25 %E2%9C%93%0A");
        assert_eq!(response.headers()["x-zone"], "b");
    }
}
