//! `google.rpc.RetryInfo` among a status's details: just enough of base64 and of protobuf's wire format to find one
//! duration. What it cannot read it takes for absent.

use std::time::Duration;

const RETRY_INFO: &[u8] = b"google.rpc.RetryInfo";

/// The `retry_delay` in a `grpc-status-details-bin`. Zero or negative ones are no wish.
pub(super) fn retry_delay(header: &[u8]) -> Option<Duration> {
    let status = base64(header)?;
    // google.rpc.Status.details = 3; google.protobuf.Any: type_url = 1, value = 2;
    // RetryInfo.retry_delay = 1; google.protobuf.Duration: seconds = 1, nanos = 2.
    let mut details = Fields(&status);
    while let Some((number, value)) = details.next()? {
        let (3, Value::Bytes(any)) = (number, value) else { continue };
        let (mut is_retry_info, mut retry_info) = (false, None);
        let mut fields = Fields(any);
        while let Some((number, value)) = fields.next()? {
            match (number, value) {
                // Whatever host stands before the name.
                (1, Value::Bytes(url)) => {
                    is_retry_info = url.rsplit(|b| *b == b'/').next() == Some(RETRY_INFO)
                }
                (2, Value::Bytes(value)) => retry_info = Some(value),
                _ => {}
            }
        }
        if let (true, Some(retry_info)) = (is_retry_info, retry_info) {
            return delay(retry_info);
        }
    }
    None
}

fn delay(retry_info: &[u8]) -> Option<Duration> {
    let (mut seconds, mut nanos) = (0, 0);
    let mut fields = Fields(retry_info);
    while let Some((number, value)) = fields.next()? {
        let (1, Value::Bytes(duration)) = (number, value) else { continue };
        let mut fields = Fields(duration);
        while let Some((number, value)) = fields.next()? {
            match (number, value) {
                // Negative numbers are two's complement in 64 bits, and so out of range.
                (1, Value::Number(n)) => seconds = i64::try_from(n).ok()?,
                (2, Value::Number(n)) => {
                    nanos = u32::try_from(n).ok().filter(|nanos| *nanos < 1_000_000_000)?
                }
                _ => {}
            }
        }
    }
    let delay = Duration::new(seconds.unsigned_abs(), nanos);
    (!delay.is_zero()).then_some(delay)
}

enum Value<'a> {
    Number(u64),
    Bytes(&'a [u8]),
    Fixed,
}

/// The fields of a message, in order.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    /// `Some(None)` at the end, `None` where it is no message.
    #[allow(clippy::option_option)]
    fn next(&mut self) -> Option<Option<(u64, Value<'a>)>> {
        if self.0.is_empty() {
            return Some(None);
        }
        let tag = self.number()?;
        let value = match tag & 7 {
            0 => Value::Number(self.number()?),
            1 => self.bytes(8).map(|_| Value::Fixed)?,
            2 => {
                let length = usize::try_from(self.number()?).ok()?;
                Value::Bytes(self.bytes(length)?)
            }
            5 => self.bytes(4).map(|_| Value::Fixed)?,
            _ => return None,
        };
        Some(Some((tag >> 3, value)))
    }

    fn bytes(&mut self, length: usize) -> Option<&'a [u8]> {
        let (bytes, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(bytes)
    }

    fn number(&mut self) -> Option<u64> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let (first, rest) = self.0.split_first()?;
            self.0 = rest;
            number |= u64::from(first & 0x7f) << shift;
            if first & 0x80 == 0 {
                return Some(number);
            }
        }
        None
    }
}

/// Standard base64; padding may be missing (gRPC over HTTP/2, "Binary-Header").
fn base64(text: &[u8]) -> Option<Vec<u8>> {
    let text = text.strip_suffix(b"==").or_else(|| text.strip_suffix(b"=")).unwrap_or(text);
    let mut bytes = Vec::with_capacity(text.len() / 4 * 3 + 2);
    for group in text.chunks(4) {
        let mut bits = 0_u32;
        for (place, character) in group.iter().enumerate() {
            let sextet = match character {
                b'A'..=b'Z' => character - b'A',
                b'a'..=b'z' => character - b'a' + 26,
                b'0'..=b'9' => character - b'0' + 52,
                b'+' => 62,
                b'/' => 63,
                _ => return None,
            };
            bits |= u32::from(sextet) << (26 - 6 * place);
        }
        let whole = match group.len() {
            4 => 3,
            3 => 2,
            2 => 1,
            _ => return None,
        };
        bytes.extend_from_slice(&bits.to_be_bytes()[..whole]);
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
        [&[number << 3 | 2, bytes.len() as u8], bytes].concat()
    }

    fn encoded(bytes: &[u8], padded: bool) -> Vec<u8> {
        const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
        let mut text = Vec::new();
        for group in bytes.chunks(3) {
            let bits = group.iter().fold(0_u32, |bits, byte| bits << 8 | u32::from(*byte))
                << (8 * (3 - group.len()));
            text.extend((0..=group.len()).map(|place| ALPHABET[(bits >> (18 - 6 * place) & 63) as usize]));
            if padded {
                text.extend(std::iter::repeat_n(b'=', 3 - group.len()));
            }
        }
        text
    }

    fn status(duration: &[u8]) -> Vec<u8> {
        let other = [field(1, b"type.googleapis.com/google.rpc.ErrorInfo"), field(2, b"\x0a\x02no")].concat();
        let info =
            [field(1, b"type.googleapis.com/google.rpc.RetryInfo"), field(2, &field(1, duration))].concat();
        [vec![0x08, 8], field(2, b"slow down"), field(3, &other), field(3, &info)].concat()
    }

    #[test]
    fn case_d16_retry_info_is_read() {
        // 2 s and 500 ms = 0x1DCD6500 ns
        let duration = [0x08, 2, 0x10, 0x80, 0xca, 0xb5, 0xee, 0x01];
        for padded in [false, true] {
            assert_eq!(retry_delay(&encoded(&status(&duration), padded)), Some(Duration::from_millis(2_500)));
        }
        assert_eq!(retry_delay(&encoded(&status(&[]), true)), None, "zero is no wish");
        let minus_one = [0x08, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01];
        assert_eq!(retry_delay(&encoded(&status(&minus_one), true)), None);
        assert_eq!(retry_delay(b"%%%"), None);
        assert_eq!(retry_delay(b""), None);
    }

    proptest! {
        #[test]
        fn nothing_that_a_server_sends_panics(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = retry_delay(&bytes);
            let _ = retry_delay(&encoded(&bytes, true));
            prop_assert_eq!(base64(&encoded(&bytes, false)), Some(bytes));
        }

        #[test]
        fn a_message_cut_anywhere_is_absent_or_whole(cut in 0_usize..200) {
            let whole = status(&[0x08, 2]);
            let delay = retry_delay(&encoded(&whole[..cut.min(whole.len())], true));
            prop_assert!(delay.is_none() || delay == Some(Duration::from_secs(2)));
        }
    }
}
