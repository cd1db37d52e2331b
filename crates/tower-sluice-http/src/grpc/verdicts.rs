//! What the outcome of a gRPC attempt means.

use std::fmt;
use std::sync::Arc;

use http::{Response, StatusCode};
use http_body::Body;
use tower_sluice::reject::Rejection;
use tower_sluice::verdict::{Classify, Failure, Totals, Verdict};

use super::code;
use super::status::{GrpcStatus, PushBack};
use crate::verdicts::HttpVerdicts;

/// The verdict on a gRPC attempt.
///
/// | outcome | verdict |
/// |---|---|
/// | OK; or a status that is not known, since a message came before it | success |
/// | UNAVAILABLE | unavailable, after the push-back if any; the server turned it away |
/// | RESOURCE_EXHAUSTED with a push-back of zero or more | throttled, after the push-back; the server turned it away |
/// | RESOURCE_EXHAUSTED without one | fatal: it may be a quota, and blind retries make an incident worse |
/// | any status with a push-back that is negative or cannot be read | fatal: the server forbids it |
/// | any other status | fatal, unless [listed](Self::on_code) |
/// | one that carries a [`Rejection`], as our answers do | fatal: the stack's own answer is no attempt's failure |
/// | no status, and an HTTP status that is not 200: a proxy's answer | as in [`HttpVerdicts`] |
/// | an error | see [`client_error_verdict`](crate::client_error_verdict) |
///
/// The push-back is `grpc-retry-pushback-ms`, or else the delay of a `google.rpc.RetryInfo` in
/// `grpc-status-details-bin`. (See gRPC's proposal A6 for the former.)
///
/// All methods of gRPC are POSTs, so that "perhaps processed" is repeated only for methods listed as idempotent; see
/// [`GrpcRepeat`](super::GrpcRepeat). A proxy in between may say UNAVAILABLE of a call that it had passed on; where
/// that matters, let it count as perhaps processed: `.on_code(14, Verdict::unavailable())`.
///
/// Classifying is synchronous. A status in the head is seen at once; one in trailers needs
/// [`GrpcStatusLayer`](super::GrpcStatusLayer) below, which [`grpc_client`](super::grpc_client) has.
///
/// ```
/// use http::Response;
/// use std::convert::Infallible;
/// use tower_sluice_http::grpc::GrpcVerdicts;
/// use tower_sluice_http::verdict::{Classify, Verdict};
///
/// // 10 is ABORTED; `tonic::Code` is taken too.
/// let verdicts = GrpcVerdicts::new().on_code(10, Verdict::transient());
/// let verdict = |code: u16| {
///     let response = Response::builder().header("grpc-status", code).body(http_body_util::Empty::<&[u8]>::new());
///     verdicts.classify(&Ok::<_, Infallible>(response.unwrap()))
/// };
/// assert_eq!(verdict(0), Verdict::Success);
/// assert_eq!(verdict(10), Verdict::transient());
/// assert_eq!(verdict(8), Verdict::Fatal);
/// ```
#[derive(Clone)]
pub struct GrpcVerdicts {
    /// `None` where no row was replaced.
    codes: Option<Arc<Vec<(i32, Verdict)>>>,
    http: HttpVerdicts,
    at_the_server: bool,
}

impl GrpcVerdicts {
    /// The table as it stands above.
    pub const fn new() -> Self {
        Self { codes: None, http: HttpVerdicts::new(), at_the_server: false }
    }

    /// The table as a server sees its own answers, for counting failures: a status by which the service tells the
    /// client of its mistake is a success of the service. Failures are UNKNOWN, DEADLINE_EXCEEDED, UNIMPLEMENTED,
    /// INTERNAL, UNAVAILABLE and DATA_LOSS, the server's errors in OpenTelemetry's conventions for RPC.
    pub const fn server() -> Self {
        Self { codes: None, http: HttpVerdicts::server(), at_the_server: true }
    }

    /// Replaces the row of one status code, given as number or as `tonic::Code`. A push-back replaces the row's own
    /// delay; one that forbids a retry has the last word.
    #[must_use]
    pub fn on_code(mut self, code: impl Into<i32>, verdict: Verdict) -> Self {
        let code = code.into();
        let rows = Arc::make_mut(self.codes.get_or_insert_default());
        match rows.iter_mut().find(|(known, _)| *known == code) {
            Some(row) => row.1 = verdict,
            None => rows.push((code, verdict)),
        }
        self
    }

    /// Builds what judges errors, and answers without a gRPC status, on the present one; see
    /// [`HttpVerdicts::on_error`].
    #[must_use]
    pub fn map_http(mut self, map: impl FnOnce(HttpVerdicts) -> HttpVerdicts) -> Self {
        self.http = map(self.http);
        self
    }

    fn of_status(&self, status: GrpcStatus) -> Verdict {
        let code = status.code();
        let row = self.codes.as_ref().and_then(|rows| rows.iter().find(|(known, _)| *known == code));
        let delay = match status.push_back() {
            PushBack::Unsaid => None,
            PushBack::After(delay) => Some(delay),
            PushBack::Never if code == code::OK => None,
            PushBack::Never => return Verdict::Fatal,
        };
        let verdict = match (row, code) {
            (Some((_, verdict)), _) => *verdict,
            (None, code::OK) => Verdict::Success,
            (None, _) if self.at_the_server => server_verdict(code),
            (None, code::UNAVAILABLE) => Verdict::unavailable().not_processed(),
            (None, code::RESOURCE_EXHAUSTED) if delay.is_some() => Verdict::throttled(),
            (None, _) => Verdict::Fatal,
        };
        match verdict {
            Verdict::Retry(failure) => {
                Verdict::Retry(Failure { retry_after: delay.or(failure.retry_after), ..failure })
            }
            _ => verdict,
        }
    }
}

impl Default for GrpcVerdicts {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for GrpcVerdicts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GrpcVerdicts")
            .field("codes", &self.codes)
            .field("http", &self.http)
            .field("at_the_server", &self.at_the_server)
            .finish()
    }
}

const fn server_verdict(code: i32) -> Verdict {
    match code {
        code::UNKNOWN
        | code::DEADLINE_EXCEEDED
        | code::UNIMPLEMENTED
        | code::INTERNAL
        | code::UNAVAILABLE
        | code::DATA_LOSS => Verdict::Fatal,
        _ => Verdict::Success,
    }
}

impl<B: Body, E: 'static> Classify<Response<B>, E> for GrpcVerdicts {
    fn classify(&self, result: &Result<Response<B>, E>) -> Verdict {
        let Ok(response) = result else { return self.http.classify(result) };
        match GrpcStatus::of(response) {
            Some(status) => match self.of_status(status) {
                Verdict::Retry(_) if response.extensions().get::<Rejection>().is_some() => Verdict::Fatal,
                verdict => verdict,
            },
            None if response.status() == StatusCode::OK => Verdict::Success,
            None => self.http.classify(result),
        }
    }

    fn discard(&self, response: Response<B>) {
        Classify::<_, E>::discard(&self.http, response);
    }

    fn finish(&self, response: &mut Response<B>, totals: &Totals) {
        Classify::<_, E>::finish(&self.http, response, totals);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use http_body_util::Empty;
    use std::convert::Infallible;
    use std::io;
    use std::time::Duration;

    type Answer = Response<Empty<Bytes>>;

    fn answer(code: i32, push_back: Option<&str>) -> Answer {
        let mut builder = Response::builder().header("grpc-status", code);
        if let Some(push_back) = push_back {
            builder = builder.header("grpc-retry-pushback-ms", push_back);
        }
        builder.body(Empty::new()).unwrap()
    }

    fn verdict(verdicts: &GrpcVerdicts, answer: Answer) -> Verdict {
        verdicts.classify(&Ok::<_, Infallible>(answer))
    }

    const TURNED_AWAY: Verdict = Verdict::unavailable().not_processed();

    #[test]
    fn h4_unavailable_alone_is_retried_without_being_asked_for() {
        for code in 0..=20 {
            let expected = match code {
                0 => Verdict::Success,
                14 => TURNED_AWAY,
                _ => Verdict::Fatal,
            };
            assert_eq!(verdict(&GrpcVerdicts::new(), answer(code, None)), expected, "{code}");
        }
    }

    #[test]
    fn h4_case_d16_push_back_decides() {
        let verdicts = GrpcVerdicts::new().on_code(10, Verdict::transient());
        let second = Some(Duration::from_secs(1));
        for (code, push_back, expected) in [
            (8, "1000", Verdict::throttled().after(second)),
            (8, "0", Verdict::throttled().after(Some(Duration::ZERO))),
            (8, "-1", Verdict::Fatal),
            (8, "soon", Verdict::Fatal),
            (14, "1000", TURNED_AWAY.after(second)),
            (14, "-1", Verdict::Fatal),
            (10, "1000", Verdict::transient().after(second)),
            (10, "-1", Verdict::Fatal),
            (5, "1000", Verdict::Fatal),
            (0, "-1", Verdict::Success),
        ] {
            assert_eq!(verdict(&verdicts, answer(code, Some(push_back))), expected, "{code} {push_back}");
        }
    }

    #[test]
    fn h4_rows_are_replaced_one_by_one() {
        let verdicts = GrpcVerdicts::new()
            .on_code(14, Verdict::unavailable())
            .on_code(8, Verdict::Fatal)
            .on_code(8, Verdict::throttled());
        assert_eq!(verdict(&verdicts, answer(14, None)), Verdict::unavailable());
        assert_eq!(verdict(&verdicts, answer(8, None)), Verdict::throttled());
    }

    #[test]
    fn the_stacks_own_answer_is_no_attempts_failure() {
        let mut own = answer(14, None);
        own.extensions_mut().insert(Rejection::Closed);
        assert_eq!(verdict(&GrpcVerdicts::new(), own), Verdict::Fatal);
    }

    #[test]
    fn a_proxys_answer_without_a_status_is_judged_as_http() {
        let plain = |status: u16| Response::builder().status(status).body(Empty::new()).unwrap();
        let verdicts = GrpcVerdicts::new();
        assert_eq!(verdict(&verdicts, plain(200)), Verdict::Success);
        assert_eq!(verdict(&verdicts, plain(503)), Verdict::unavailable());
        assert_eq!(verdict(&verdicts, plain(404)), Verdict::Fatal);
        let refused: Result<Answer, _> = Err(io::Error::from(io::ErrorKind::ConnectionRefused));
        assert_eq!(verdicts.classify(&refused), Verdict::transient().not_processed());
    }

    #[test]
    fn a_server_counts_its_own_errors_and_not_its_clients() {
        for code in 0..=16 {
            let failure = matches!(code, 2 | 4 | 12 | 13 | 14 | 15);
            let expected = if failure { Verdict::Fatal } else { Verdict::Success };
            assert_eq!(verdict(&GrpcVerdicts::server(), answer(code, None)), expected, "{code}");
        }
    }
}
