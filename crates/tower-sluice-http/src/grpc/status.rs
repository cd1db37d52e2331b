//! The status of a gRPC call, as its headers or trailers tell it.

use std::time::Duration;

use http::Response;
use http::header::{HeaderMap, HeaderName};

use super::code;
use super::retry_info::retry_delay;

pub(super) const STATUS: HeaderName = HeaderName::from_static("grpc-status");
pub(super) const PUSH_BACK: HeaderName = HeaderName::from_static("grpc-retry-pushback-ms");
const DETAILS: HeaderName = HeaderName::from_static("grpc-status-details-bin");

/// A call's status, in the extensions of a response whose status is known: from its head ("trailers-only"), or from
/// trailers that came without a message before them. Put there by [`GrpcStatusLayer`](super::GrpcStatusLayer).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GrpcStatus {
    code: i32,
    push_back: PushBack,
}

/// What the server says about trying again: `grpc-retry-pushback-ms`, or else a `google.rpc.RetryInfo` among the
/// status's details.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PushBack {
    /// Nothing.
    Unsaid,
    /// Not before this has passed.
    After(Duration),
    /// Not at all: a negative number, or none that can be read.
    Never,
}

impl GrpcStatus {
    /// The status in a head or in trailers, if there is one. A code that cannot be read is 2, `UNKNOWN`.
    pub fn from_headers(headers: &HeaderMap) -> Option<Self> {
        let status = headers.get(STATUS)?;
        let code =
            digits(status.as_bytes()).and_then(|code| i32::try_from(code).ok()).unwrap_or(code::UNKNOWN);
        Some(Self { code, push_back: PushBack::from_headers(headers) })
    }

    /// The status of a response, if it is known.
    pub fn of<B>(response: &Response<B>) -> Option<Self> {
        response.extensions().get().copied().or_else(|| Self::from_headers(response.headers()))
    }

    /// The code's number, 0 for OK. `tonic::Code::from` takes it.
    pub const fn code(self) -> i32 {
        self.code
    }

    /// What the server says about trying again.
    pub const fn push_back(self) -> PushBack {
        self.push_back
    }
}

impl PushBack {
    fn from_headers(headers: &HeaderMap) -> Self {
        let mut values = headers.get_all(PUSH_BACK).iter();
        match (values.next(), values.next()) {
            (None, _) => headers
                .get(DETAILS)
                .and_then(|details| retry_delay(details.as_bytes()))
                .map_or(Self::Unsaid, Self::After),
            (Some(value), None) => {
                digits(value.as_bytes()).map_or(Self::Never, |ms| Self::After(Duration::from_millis(ms)))
            }
            // Two of them contradict each other.
            (Some(_), Some(_)) => Self::Never,
        }
    }
}

/// A number without sign.
fn digits(text: &[u8]) -> Option<u64> {
    if !text.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(text).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    fn status(headers: &[(&'static str, &'static str)]) -> Option<GrpcStatus> {
        let headers = headers
            .iter()
            .map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)));
        GrpcStatus::from_headers(&headers.fold(HeaderMap::new(), |mut map, (name, value)| {
            map.append(name, value);
            map
        }))
    }

    #[test]
    fn h4_the_status_is_read_and_what_cannot_be_read_is_unknown() {
        assert_eq!(status(&[]), None);
        for (text, code) in
            [("0", 0), ("14", 14), ("99", 99), ("", 2), ("-1", 2), ("x", 2), ("99999999999", 2)]
        {
            assert_eq!(status(&[("grpc-status", text)]).map(GrpcStatus::code), Some(code), "{text:?}");
        }
    }

    #[test]
    fn h4_case_d16_a_push_back_that_is_negative_or_unreadable_forbids() {
        let ms = |ms| PushBack::After(Duration::from_millis(ms));
        for (text, expected) in [
            ("0", ms(0)),
            ("250", ms(250)),
            ("-1", PushBack::Never),
            ("", PushBack::Never),
            ("+5", PushBack::Never),
            ("1.5", PushBack::Never),
            ("soon", PushBack::Never),
            ("99999999999999999999", PushBack::Never),
        ] {
            let status = status(&[("grpc-status", "8"), ("grpc-retry-pushback-ms", text)]).unwrap();
            assert_eq!(status.push_back(), expected, "{text:?}");
        }
        assert_eq!(status(&[("grpc-status", "8")]).unwrap().push_back(), PushBack::Unsaid);
        let twice = [("grpc-status", "8"), ("grpc-retry-pushback-ms", "1"), ("grpc-retry-pushback-ms", "2")];
        assert_eq!(status(&twice).unwrap().push_back(), PushBack::Never);
    }
}
