//! The `Retry-After` header.

use std::time::{Duration, SystemTime};

use http::HeaderMap;
use http::header::RETRY_AFTER;

/// RFC 9110, 5.6.7: a two-digit year that seems to lie further ahead than this belongs to the last century.
const FIFTY_YEARS: Duration = Duration::from_secs(50 * 365 * 86_400 + 12 * 86_400);

/// How long the sender of these headers asked to be left alone, read at `now`.
///
/// `Retry-After` is whole seconds or a date (RFC 9110, 10.2.3), and nothing else: digits only, or one of the three
/// forms of an HTTP-date without a space before or after it. Whatever else stands there is as good as absent, also
/// a number of seconds beyond 64 bits: a hint that cannot be read must not become a wait of its own making.
/// A date that has passed and a zero are `Some(Duration::ZERO)`, which leaves the delay to the policy's backoff.
/// Where several lines say different things, the longest that can be read counts, so that none is undercut.
///
/// ```
/// use std::time::{Duration, SystemTime};
/// use http::{HeaderMap, HeaderValue, header::RETRY_AFTER};
/// use tower_sluice_http::retry_after;
///
/// let now = httpdate::parse_http_date("Sun, 06 Nov 1994 08:49:30 GMT").unwrap();
/// let mut headers = HeaderMap::new();
/// assert_eq!(retry_after(&headers, now), None);
///
/// headers.insert(RETRY_AFTER, HeaderValue::from_static("120"));
/// assert_eq!(retry_after(&headers, now), Some(Duration::from_secs(120)));
///
/// headers.insert(RETRY_AFTER, HeaderValue::from_static("Sun, 06 Nov 1994 08:49:37 GMT"));
/// assert_eq!(retry_after(&headers, now), Some(Duration::from_secs(7)));
///
/// headers.insert(RETRY_AFTER, HeaderValue::from_static("1.5"));
/// assert_eq!(retry_after(&headers, now), None);
/// ```
pub fn retry_after(headers: &HeaderMap, now: SystemTime) -> Option<Duration> {
    headers.get_all(RETRY_AFTER).iter().filter_map(|value| parse(value.as_bytes(), now)).max()
}

fn parse(value: &[u8], now: SystemTime) -> Option<Duration> {
    if !value.is_empty() && value.iter().all(u8::is_ascii_digit) {
        return str::from_utf8(value).ok()?.parse().ok().map(Duration::from_secs);
    }
    // httpdate reads exactly the three forms, but trims them first.
    if !value.first()?.is_ascii_alphabetic() || !value.last()?.is_ascii_alphanumeric() {
        return None;
    }
    let date = httpdate::parse_http_date(str::from_utf8(value).ok()?).ok()?;
    let ahead = date.duration_since(now).unwrap_or(Duration::ZERO);
    // Of the three forms only RFC 850's has a dash.
    let two_digit_year = value.contains(&b'-');
    Some(if two_digit_year && ahead > FIFTY_YEARS { Duration::ZERO } else { ahead })
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;
    use proptest::prelude::*;

    fn now() -> SystemTime {
        // Sun, 06 Nov 1994 08:49:30 GMT
        SystemTime::UNIX_EPOCH + Duration::from_secs(784_111_770)
    }

    fn read(value: &[u8]) -> Option<Duration> {
        let mut headers = HeaderMap::new();
        headers.insert(RETRY_AFTER, HeaderValue::from_bytes(value).expect("a header value"));
        retry_after(&headers, now())
    }

    const fn secs(secs: u64) -> Option<Duration> {
        Some(Duration::from_secs(secs))
    }

    #[test]
    fn r5_whole_seconds_are_read() {
        assert_eq!(read(b"7"), secs(7));
        assert_eq!(read(b"0"), secs(0));
        assert_eq!(read(b"007"), secs(7));
        assert_eq!(read(b"3600"), secs(3600));
        assert_eq!(read(b"18446744073709551615"), secs(u64::MAX));
    }

    #[test]
    fn r5_the_three_forms_of_a_date_are_read() {
        assert_eq!(read(b"Sun, 06 Nov 1994 08:49:37 GMT"), secs(7));
        assert_eq!(read(b"Sunday, 06-Nov-94 08:49:37 GMT"), secs(7));
        assert_eq!(read(b"Sun Nov  6 08:49:37 1994"), secs(7));
        assert_eq!(read(b"Sun Nov 06 08:49:37 1994"), secs(7));
        assert_eq!(read(b"Fri, 31 Dec 9999 23:59:59 GMT"), secs(253_402_300_799 - 784_111_770));
    }

    #[test]
    fn r5_a_past_date_asks_for_nothing() {
        assert_eq!(read(b"Sun, 06 Nov 1994 08:49:30 GMT"), secs(0));
        assert_eq!(read(b"Sun, 06 Nov 1994 08:49:29 GMT"), secs(0));
        assert_eq!(read(b"Thu, 01 Jan 1970 00:00:00 GMT"), secs(0));
    }

    #[test]
    fn r5_a_two_digit_year_more_than_fifty_years_ahead_has_passed() {
        // 2045 seen from 1994 is 51 years away, so 1945 is meant; 2043 is 49 years away.
        assert_eq!(read(b"Monday, 06-Nov-45 08:49:30 GMT"), secs(0));
        assert_eq!(read(b"Friday, 06-Nov-43 08:49:30 GMT"), secs(2_330_412_570 - 784_111_770));
        // A year of four digits means what it says.
        assert_eq!(read(b"Mon, 06 Nov 2045 08:49:30 GMT"), secs(2_393_570_970 - 784_111_770));
    }

    #[test]
    fn case_d2_and_d3_what_is_malformed_is_absent() {
        let malformed: &[&[u8]] = &[
            b"",
            b" ",
            b"\t",
            b"-3",
            b"-5",
            b"-0",
            b"+3",
            b"1.5",
            b"1,5",
            b"1e3",
            b"0x10",
            b"12s",
            b"1 2",
            b"1, 2",
            b" 7",
            b"7 ",
            b"1_000",
            b"NaN",
            b"inf",
            b"null",
            b"\"7\"",
            b"7;q=1",
            b"99999999999999999999",
            b"18446744073709551616",
            "\u{0661}".as_bytes(), // ARABIC-INDIC DIGIT ONE: a digit to Unicode, not to HTTP
            b"\xff\xfe",
            b"7\xc2\xa0",
            // Dates that are nearly right.
            b"Sun, 06 Nov 1994 08:49:37",
            b"Sun, 06 Nov 1994 08:49:37 UTC",
            b"Sun, 06 Nov 1994 08:49:37 +0000",
            b"Sun, 06 Nov 1994 08:49:37 gmt",
            b"sun, 06 nov 1994 08:49:37 GMT",
            b"Sun, 6 Nov 1994 08:49:37 GMT",
            b"Sun,  6 Nov 1994 08:49:37 GMT",
            b"Sun, 06 Nov 94 08:49:37 GMT",
            b"Sun, 06-Nov-1994 08:49:37 GMT",
            b"Sun, 06 Nov 1994 8:49:37 GMT",
            b"Sun, 06 Nov 1994 24:00:00 GMT",
            b"Sun, 06 Nov 1994 08:60:37 GMT",
            b"Sun, 06 Nov 1994 08:49:61 GMT",
            b"Sun, 06 Nov -994 08:49:37 GMT",
            b"Sun, 31 Feb 1994 08:49:37 GMT",
            b"Mon, 06 Nov 1994 08:49:37 GMT", // it was a Sunday
            b"Sunday, 06-Nov-94 08:49:37 GMT ",
            b" Sun, 06 Nov 1994 08:49:37 GMT",
            b"Sun, 06 Nov 1994 08:49:37 GMT ",
            b"Sunday, 06 Nov 94 08:49:37 GMT",
            b"Sun Nov 6 08:49:37 1994",
            b"Sun Nov  6 08:49:37 1994 GMT",
            b"Wed, 31 Dec 1969 23:59:59 GMT",
            b"1994-11-06T08:49:37Z",
            b"784111777.0",
        ];
        for value in malformed {
            assert_eq!(read(value), None, "{:?}", String::from_utf8_lossy(value));
        }
    }

    #[test]
    fn case_d8_a_long_wait_stays_long() {
        assert_eq!(read(b"301"), secs(301));
        assert_eq!(read(b"999999999999"), secs(999_999_999_999));
    }

    #[test]
    fn r5_of_several_lines_the_longest_that_can_be_read_counts() {
        let mut headers = HeaderMap::new();
        for value in ["soon", "3", "Sun, 06 Nov 1994 08:49:37 GMT", "-90", "5"] {
            headers.append(RETRY_AFTER, HeaderValue::from_static(value));
        }
        assert_eq!(retry_after(&headers, now()), secs(7));
    }

    proptest! {
        #[test]
        fn r5_no_value_and_no_clock_is_too_odd(value: Vec<u8>, clock in 0_u64..1 << 40) {
            let now = SystemTime::UNIX_EPOCH + Duration::from_secs(clock);
            parse(&value, now);
        }

        #[test]
        fn r5_what_is_read_is_digits_or_one_of_the_three_forms(
            value in "[0-9A-Za-z,: -]{0,32}|[A-Z][a-z]{2}, [0-3][0-9] [A-Z][a-z]{2} [0-9]{4} [0-2][0-9]:[0-5][0-9]:[0-5][0-9] GMT",
        ) {
            let digits = !value.is_empty() && value.bytes().all(|b| b.is_ascii_digit());
            let date = httpdate::parse_http_date(&value).is_ok() && value.trim() == value;
            let overflow = digits && value.parse::<u64>().is_err();
            prop_assert_eq!(parse(value.as_bytes(), now()).is_some(), (digits && !overflow) || date);
        }

        #[test]
        fn r5_a_date_that_is_written_is_read_back(ahead in 1_u64..1 << 32) {
            let date = httpdate::fmt_http_date(now() + Duration::from_secs(ahead));
            prop_assert_eq!(parse(date.as_bytes(), now()), secs(ahead));
        }
    }
}
