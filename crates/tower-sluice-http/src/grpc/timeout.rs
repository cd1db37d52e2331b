//! `grpc-timeout`: how long the caller waits.

use std::time::Duration;

use http::header::{HeaderMap, HeaderName, HeaderValue};

pub(super) const TIMEOUT: HeaderName = HeaderName::from_static("grpc-timeout");

/// How much sooner than the caller's deadline ours is, at most; a tenth of the timeout where that is less.
///
/// The caller is to get our answer before it gives up, and so is whoever enforces the same header around us and below
/// us: tonic's server and channel both do, and call what they cut CANCELLED.
const MARGIN: Duration = Duration::from_millis(5);

/// How long a call may take whose caller waits for `timeout`.
pub(super) fn allowance(timeout: Duration) -> Duration {
    timeout - MARGIN.min(timeout / 10)
}

/// How long the next hop may take where so much is `left` of ours: by the margin more, so that we notice first.
pub(super) fn handed_on(left: Duration) -> Duration {
    left.saturating_add(MARGIN)
}

/// The most that eight digits hold.
const MOST: u128 = 99_999_999;

/// The units, finest first, in nanoseconds.
const UNITS: [(u8, u128); 6] = [
    (b'n', 1),
    (b'u', 1_000),
    (b'm', 1_000_000),
    (b'S', 1_000_000_000),
    (b'M', 60_000_000_000),
    (b'H', 3_600_000_000_000),
];

/// The `grpc-timeout` of a request: one to eight digits and a unit. Anything else is absent.
///
/// ```
/// use std::time::Duration;
/// use http::Request;
/// use tower_sluice_http::grpc::grpc_timeout;
///
/// let request = Request::post("/echo.Echo/Echo").header("grpc-timeout", "250m").body(()).unwrap();
/// assert_eq!(grpc_timeout(request.headers()), Some(Duration::from_millis(250)));
/// ```
pub fn grpc_timeout(headers: &HeaderMap) -> Option<Duration> {
    let (unit, digits) = headers.get(TIMEOUT)?.as_bytes().split_last()?;
    if !(1..=8).contains(&digits.len()) || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let number = digits.iter().fold(0_u64, |number, digit| number * 10 + u64::from(digit - b'0'));
    Some(match unit {
        b'n' => Duration::from_nanos(number),
        b'u' => Duration::from_micros(number),
        b'm' => Duration::from_millis(number),
        b'S' => Duration::from_secs(number),
        b'M' => Duration::from_secs(number * 60),
        b'H' => Duration::from_secs(number * 3_600),
        _ => return None,
    })
}

/// `left` as a `grpc-timeout`, in the finest unit that holds it: never more than is left, but for the shortest, 1 ns.
///
/// ```
/// use std::time::Duration;
///
/// let value = tower_sluice_http::grpc::grpc_timeout_value(Duration::from_millis(1_500));
/// assert_eq!(value, "1500000u");
/// ```
pub fn grpc_timeout_value(left: Duration) -> HeaderValue {
    let nanos = left.as_nanos().max(1);
    let (unit, number) = UNITS
        .into_iter()
        .map(|(unit, size)| (unit, nanos / size))
        .find(|(_, number)| *number <= MOST)
        .unwrap_or((b'H', MOST));
    let mut text = number.to_string().into_bytes();
    text.push(unit);
    HeaderValue::from_bytes(&text).unwrap_or_else(|_| HeaderValue::from_static("99999999H"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(text: &str) -> Option<Duration> {
        let mut headers = HeaderMap::new();
        headers.insert(TIMEOUT, HeaderValue::from_str(text).unwrap());
        grpc_timeout(&headers)
    }

    #[test]
    fn h4_a_timeout_is_read_strictly() {
        assert_eq!(grpc_timeout(&HeaderMap::new()), None);
        for (text, expected) in [
            ("1n", Some(Duration::from_nanos(1))),
            ("99999999u", Some(Duration::from_micros(99_999_999))),
            ("0m", Some(Duration::ZERO)),
            ("5S", Some(Duration::from_secs(5))),
            ("2M", Some(Duration::from_secs(120))),
            ("99999999H", Some(Duration::from_secs(99_999_999 * 3_600))),
            ("", None),
            ("S", None),
            ("5", None),
            ("5s", None),
            ("-5S", None),
            ("+5S", None),
            ("1.5S", None),
            (" 5S", None),
            ("100000000S", None),
        ] {
            assert_eq!(read(text), expected, "{text:?}");
        }
    }

    #[test]
    fn h4_what_is_left_is_told_in_eight_digits() {
        for (left, text) in [
            (Duration::ZERO, "1n"),
            (Duration::from_nanos(99_999_999), "99999999n"),
            (Duration::from_nanos(100_000_000), "100000u"),
            (Duration::from_secs(100), "100000m"),
            (Duration::MAX, "99999999H"),
        ] {
            assert_eq!(grpc_timeout_value(left), text);
        }
    }

    proptest! {
        #[test]
        fn h4_a_timeout_told_is_read_as_no_more_and_little_less(secs in 0_u64..1_000_000_000, nanos in 0_u32..1_000_000_000) {
            let left = Duration::new(secs, nanos).max(Duration::from_nanos(1));
            let told = read(grpc_timeout_value(left).to_str().unwrap()).unwrap();
            prop_assert!(told <= left && told >= left.mul_f64(0.999_99), "{left:?} {told:?}");
        }
    }
}
