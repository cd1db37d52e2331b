//! The header: whole milliseconds, digits only.

use std::time::Duration;

use http::header::{HeaderMap, HeaderName, HeaderValue};

/// How long the sender waits, if it says so. Of several values the shortest.
pub(super) fn read(headers: &HeaderMap, name: &HeaderName) -> Option<Duration> {
    headers.get_all(name).iter().filter_map(millis).min()
}

fn millis(value: &HeaderValue) -> Option<Duration> {
    let digits = value.as_bytes();
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let millis = digits
        .iter()
        .fold(0_u64, |millis, digit| millis.saturating_mul(10).saturating_add(u64::from(digit - b'0')));
    Some(Duration::from_millis(millis))
}

/// Says that `left` is left: never more than that, but for the shortest, 1 ms. Without a deadline, says nothing.
pub(super) fn tell(headers: &mut HeaderMap, name: &HeaderName, left: Option<Duration>) {
    match left {
        Some(left) => {
            let millis = u64::try_from(left.as_millis()).unwrap_or(u64::MAX).max(1);
            headers.insert(name.clone(), HeaderValue::from(millis));
        }
        None => {
            headers.remove(name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAME: HeaderName = HeaderName::from_static("request-timeout-ms");

    fn headers(values: &[&'static str]) -> HeaderMap {
        values.iter().map(|value| (NAME, HeaderValue::from_static(value))).collect()
    }

    #[test]
    fn h6_a_timeout_is_whole_milliseconds_and_anything_else_is_absent() {
        for (text, expected) in [
            ("0", Some(Duration::ZERO)),
            ("1", Some(Duration::from_millis(1))),
            ("007", Some(Duration::from_millis(7))),
            ("2000", Some(Duration::from_secs(2))),
            ("99999999999999999999999", Some(Duration::from_millis(u64::MAX))),
            ("", None),
            ("-1", None),
            ("+1", None),
            ("1.5", None),
            ("1e3", None),
            ("0x10", None),
            ("2s", None),
            ("2 000", None),
            ("1,2", None),
        ] {
            assert_eq!(read(&headers(&[text]), &NAME), expected, "{text:?}");
        }
        assert_eq!(read(&HeaderMap::new(), &NAME), None);
    }

    #[test]
    fn h6_of_several_the_shortest_counts() {
        assert_eq!(read(&headers(&["300", "200", "no"]), &NAME), Some(Duration::from_millis(200)));
    }

    #[test]
    fn h6_what_is_left_is_never_rounded_up() {
        for (left, text) in [
            (Duration::ZERO, "1"),
            (Duration::from_micros(999), "1"),
            (Duration::from_micros(1_999), "1"),
            (Duration::from_secs(2), "2000"),
            (Duration::MAX, "18446744073709551615"),
        ] {
            let mut told = headers(&["5", "6"]);
            tell(&mut told, &NAME, Some(left));
            assert_eq!(told.get_all(NAME).iter().collect::<Vec<_>>(), [text], "{left:?}");
        }
        let mut told = headers(&["5"]);
        tell(&mut told, &NAME, None);
        assert!(told.is_empty());
    }
}
