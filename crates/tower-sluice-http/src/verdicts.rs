//! What the outcome of an HTTP attempt means.

use std::any::Any;
use std::error::Error;
use std::fmt;
use std::marker::PhantomData;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::SystemTime;

use bytes::Buf;
use http::{Extensions, HeaderMap, Response, StatusCode};
use http_body::Body;
use tower_sluice::error::ConfigError;
use tower_sluice::reject::Rejection;
use tower_sluice::verdict::{Classify, Failure, FailureKind, Totals, Verdict};

use crate::client_error::{chain, client_error_verdict, known};
use crate::config::or_panic;
use crate::retry_after::retry_after;

/// The most that is read of a failed response's body before it is dropped.
const DISCARD_BYTES: usize = 64 << 10;
/// The most frames read of it: a body of empty frames must end too.
const DISCARD_FRAMES: usize = 1_024;

/// The verdict on an HTTP attempt: a table of status codes, and a reading of the client's error.
///
/// | outcome | verdict |
/// |---|---|
/// | 1xx, 2xx, 3xx | success |
/// | 429 | throttled, with `Retry-After` if any; surely not processed |
/// | 503 | unavailable, with `Retry-After` if any |
/// | 500, 502, 504, other 5xx, 6xx to 9xx | transient |
/// | 501, 505, 508, 511, any other 4xx (408 and 425 too) | fatal: the same request fails the same way |
/// | one of these failures that carries a [`Rejection`] as extension, as our answers do | fatal: the stack's own answer is no attempt's failure |
/// | an error | see [`client_error_verdict`] |
///
/// Rows are replaced one by one. "Perhaps processed" is repeated only where the request allows it, which
/// [`HttpRepeat`](crate::HttpRepeat) knows.
///
/// ```
/// use http::{Response, StatusCode};
/// use std::convert::Infallible;
/// use tower_sluice_http::HttpVerdicts;
/// use tower_sluice_http::verdict::{Classify, Verdict};
///
/// let verdicts = HttpVerdicts::new()
///     .on_status(529, Verdict::throttled())
///     .on_status(StatusCode::REQUEST_TIMEOUT, Verdict::transient());
/// let verdict = |status: u16| {
///     let response = Response::builder().status(status).body(http_body_util::Empty::<&[u8]>::new()).unwrap();
///     verdicts.classify(&Ok::<_, Infallible>(response))
/// };
/// assert_eq!(verdict(204), Verdict::Success);
/// assert_eq!(verdict(408), Verdict::transient());
/// assert_eq!(verdict(529), Verdict::throttled());
/// assert_eq!(verdict(501), Verdict::Fatal);
/// ```
///
/// Works for every error type. One that is neither hyper's, hyper-util's, reqwest's, [`std::io::Error`] nor a box
/// of an error is a closed book, and so "transient, perhaps processed", until [`on_error`](Self::on_error) opens it.
///
/// The classifier also does its part at the ends of an attempt: what is ready of a failed response's body is read
/// at once, up to 64 KiB and never waited for, so that the connection can serve the next attempt; and a response
/// that took several attempts carries [`Totals`] in its extensions, see [`attempts`].
#[derive(Clone)]
pub struct HttpVerdicts {
    /// `None` where no row was replaced: the common case costs no allocation.
    statuses: Option<Arc<Vec<(StatusCode, Verdict)>>>,
    errors: Option<Arc<Vec<Arc<dyn ErrorRow>>>>,
    wall_clock: fn() -> SystemTime,
    at_the_server: bool,
}

impl HttpVerdicts {
    /// The table as it stands above.
    pub const fn new() -> Self {
        Self { statuses: None, errors: None, wall_clock: SystemTime::now, at_the_server: false }
    }

    /// The table as a server sees its own answers: a 4xx is the client's mistake, and so a success of the service
    /// that found it. For counting failures; a server repeats nothing.
    pub const fn server() -> Self {
        let mut this = Self::new();
        this.at_the_server = true;
        this
    }

    /// Replaces the row of one status code, given as number or as [`StatusCode`].
    ///
    /// For a row of kind throttled or unavailable the response's `Retry-After`, if it has one that can be read,
    /// replaces the row's own.
    ///
    /// # Panics
    ///
    /// If the number is none from 100 to 999.
    #[must_use]
    #[track_caller]
    pub fn on_status(self, status: impl StatusRow, verdict: Verdict) -> Self {
        or_panic(self.try_on_status(status, verdict))
    }

    /// [`on_status`](Self::on_status) for a number that comes from a configuration.
    ///
    /// # Errors
    ///
    /// If the number is none from 100 to 999.
    pub fn try_on_status(mut self, status: impl StatusRow, verdict: Verdict) -> Result<Self, ConfigError> {
        let status = status.status()?;
        let rows = Arc::make_mut(self.statuses.get_or_insert_default());
        match rows.iter_mut().find(|(known, _)| *known == status) {
            Some(row) => row.1 = verdict,
            None => rows.push((status, verdict)),
        }
        Ok(self)
    }

    /// Says what errors of one type mean, before any other rule has its say.
    ///
    /// The attempt's error and its sources are searched for a `T`; where `judge` has no opinion (`None`) the search
    /// goes on, and ends with the rules of [`client_error_verdict`]. Where `T` is the service's own error type,
    /// its sources become visible to those rules too. Rows are asked in the order in which they were added.
    ///
    /// ```
    /// use tower_sluice_http::HttpVerdicts;
    /// use tower_sluice_http::verdict::Verdict;
    /// use tower::timeout::error::Elapsed;
    ///
    /// // tower's `Timeout`, somewhere below.
    /// let verdicts = HttpVerdicts::new().on_error(|_: &Elapsed| Some(Verdict::timeout()));
    /// # let _ = verdicts;
    /// ```
    #[must_use]
    pub fn on_error<T, F>(mut self, judge: F) -> Self
    where
        T: Error + 'static,
        F: Fn(&T) -> Option<Verdict> + Send + Sync + 'static,
    {
        let row = Arc::new(TypedRow { judge, of: PhantomData });
        Arc::make_mut(self.errors.get_or_insert_default()).push(row);
        self
    }

    /// Reads the wall clock by another function than [`SystemTime::now`]. It is read only where a `Retry-After` is.
    #[must_use]
    pub fn wall_clock(mut self, now: fn() -> SystemTime) -> Self {
        self.wall_clock = now;
        self
    }

    /// The verdict on a response with this head.
    pub(crate) fn of_head(
        &self,
        status: StatusCode,
        headers: &HeaderMap,
        extensions: &Extensions,
    ) -> Verdict {
        let verdict = self
            .statuses
            .as_ref()
            .and_then(|rows| rows.iter().find(|(known, _)| *known == status).map(|(_, verdict)| *verdict));
        let verdict = verdict.unwrap_or_else(|| {
            if self.at_the_server && status.is_client_error() {
                Verdict::Success
            } else {
                default_verdict(status)
            }
        });
        let Verdict::Retry(failure) = verdict else { return verdict };
        if extensions.get::<Rejection>().is_some() {
            return Verdict::Fatal;
        }
        match failure.kind {
            FailureKind::Throttled | FailureKind::Unavailable => {
                let hint = retry_after(headers, (self.wall_clock)());
                Verdict::Retry(Failure { retry_after: hint.or(failure.retry_after), ..failure })
            }
            _ => verdict,
        }
    }

    pub(crate) fn of_error<E: 'static>(&self, error: &E) -> Verdict {
        let rows = self.errors.as_deref().map_or(&[][..], Vec::as_slice);
        let value: &dyn Any = error;
        let Some(error) = known(value).or_else(|| rows.iter().find_map(|row| row.open(value))) else {
            return Verdict::transient();
        };
        for link in chain(error) {
            if let Some(verdict) = rows.iter().find_map(|row| row.judge(link)) {
                return verdict;
            }
        }
        client_error_verdict(error)
    }
}

impl Default for HttpVerdicts {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for HttpVerdicts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpVerdicts")
            .field("statuses", &self.statuses)
            .field("at_the_server", &self.at_the_server)
            .field("errors", &self.errors.as_ref().map_or(0, |rows| rows.len()))
            .finish_non_exhaustive()
    }
}

fn default_verdict(status: StatusCode) -> Verdict {
    match status.as_u16() {
        ..=399 => Verdict::Success,
        429 => Verdict::throttled(),
        503 => Verdict::unavailable(),
        400..=499 | 501 | 505 | 508 | 511 => Verdict::Fatal,
        // RFC 9110, 15: a status code that is no known class is handled as a 5xx.
        _ => Verdict::transient(),
    }
}

impl<B: Body, E: 'static> Classify<Response<B>, E> for HttpVerdicts {
    fn classify(&self, result: &Result<Response<B>, E>) -> Verdict {
        match result {
            Ok(response) => self.of_head(response.status(), response.headers(), response.extensions()),
            Err(error) => self.of_error(error),
        }
    }

    fn discard(&self, response: Response<B>) {
        discard(response.into_body());
    }

    fn finish(&self, response: &mut Response<B>, totals: &Totals) {
        tell_totals(response.extensions_mut(), totals);
    }
}

/// Reads what is ready of a failed response's body, and drops it.
pub(crate) fn discard(body: impl Body) {
    let mut body = pin!(body);
    let mut context = Context::from_waker(Waker::noop());
    let mut left = DISCARD_BYTES;
    for _ in 0..DISCARD_FRAMES {
        if body.is_end_stream() {
            return;
        }
        let Poll::Ready(Some(Ok(frame))) = body.as_mut().poll_frame(&mut context) else { return };
        let Some(data) = frame.data_ref() else { continue };
        match left.checked_sub(data.remaining()) {
            Some(rest @ 1..) => left = rest,
            _ => return,
        }
    }
}

pub(crate) fn tell_totals(extensions: &mut Extensions, totals: &Totals) {
    // Each extension is an allocation, and one attempt is what a caller assumes.
    if totals.attempts > 1 {
        extensions.insert(*totals);
    }
}

/// How many attempts an answer took, counted by the outermost retry layer of ours that it went through.
///
/// A response that took several carries [`Totals`] in its extensions; one without took one. (The stack's own answers
/// carry a [`Rejection`] instead, which has its own figures.)
///
/// ```
/// let response = http::Response::new(());
/// assert_eq!(tower_sluice_http::attempts(&response), 1);
/// ```
pub fn attempts<B>(response: &Response<B>) -> u32 {
    response.extensions().get::<Totals>().map_or(1, |totals| totals.attempts)
}

/// A status code in [`on_status`](HttpVerdicts::on_status): a number from 100 to 999, or a [`StatusCode`].
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no status code",
    note = "give a `u16` or a `StatusCode`"
)]
pub trait StatusRow: sealed::Sealed {
    #[doc(hidden)]
    fn status(self) -> Result<StatusCode, ConfigError>;
}

impl StatusRow for StatusCode {
    fn status(self) -> Result<StatusCode, ConfigError> {
        Ok(self)
    }
}

impl StatusRow for u16 {
    fn status(self) -> Result<StatusCode, ConfigError> {
        StatusCode::from_u16(self).map_err(|_| ConfigError::new("status", self, "100 to 999"))
    }
}

mod sealed {
    pub trait Sealed {}
    impl Sealed for http::StatusCode {}
    impl Sealed for u16 {}
}

/// A row for errors of one type, which its list does not know.
trait ErrorRow: Send + Sync {
    /// The error behind `value`, where it is of the row's type.
    fn open<'a>(&self, value: &'a dyn Any) -> Option<&'a (dyn Error + 'static)>;
    fn judge(&self, link: &(dyn Error + 'static)) -> Option<Verdict>;
}

struct TypedRow<T, F> {
    judge: F,
    of: PhantomData<fn(&T)>,
}

impl<T, F> ErrorRow for TypedRow<T, F>
where
    T: Error + 'static,
    F: Fn(&T) -> Option<Verdict> + Send + Sync,
{
    fn open<'a>(&self, value: &'a dyn Any) -> Option<&'a (dyn Error + 'static)> {
        value.downcast_ref::<T>().map(|error| error as _)
    }

    fn judge(&self, link: &(dyn Error + 'static)) -> Option<Verdict> {
        (self.judge)(link.downcast_ref::<T>()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use http::HeaderValue;
    use http::header::RETRY_AFTER;
    use http_body::Frame;
    use http_body_util::Empty;
    use std::convert::Infallible;
    use std::io;
    use std::pin::Pin;
    use std::time::Duration;
    use tower_sluice::BoxError;

    type NoBody = Empty<Bytes>;

    fn noon() -> SystemTime {
        // Sun, 06 Nov 1994 08:49:30 GMT
        SystemTime::UNIX_EPOCH + Duration::from_secs(784_111_770)
    }

    fn response(status: u16) -> Response<NoBody> {
        Response::builder().status(status).body(Empty::new()).unwrap()
    }

    fn judge(verdicts: &HttpVerdicts, response: Response<NoBody>) -> Verdict {
        verdicts.classify(&Ok::<_, Infallible>(response))
    }

    fn judge_error<E: 'static>(verdicts: &HttpVerdicts, error: E) -> Verdict {
        verdicts.classify(&Err::<Response<NoBody>, E>(error))
    }

    #[test]
    fn every_status_has_the_verdict_of_the_table() {
        for status in 100..=999 {
            let expected = match status {
                100..=399 => Verdict::Success,
                429 => Verdict::throttled(),
                503 => Verdict::unavailable(),
                400..=499 | 501 | 505 | 508 | 511 => Verdict::Fatal,
                _ => Verdict::transient(),
            };
            assert_eq!(judge(&HttpVerdicts::new(), response(status)), expected, "{status}");
        }
    }

    #[test]
    fn to_the_server_itself_a_4xx_is_no_failure() {
        let verdicts = HttpVerdicts::server().on_status(418, Verdict::Fatal);
        for status in (100..=999).filter(|status| *status != 418) {
            let expected = match status {
                400..=499 => Verdict::Success,
                _ => judge(&HttpVerdicts::new(), response(status)),
            };
            assert_eq!(judge(&verdicts, response(status)), expected, "{status}");
        }
        assert_eq!(judge(&verdicts, response(418)), Verdict::Fatal);
    }

    #[test]
    fn a_429_was_surely_not_processed_and_a_503_perhaps() {
        assert!(!judge(&HttpVerdicts::new(), response(429)).failure().unwrap().processed);
        assert!(judge(&HttpVerdicts::new(), response(503)).failure().unwrap().processed);
    }

    #[test]
    fn r5_case_d1_retry_after_is_read_from_throttled_and_unavailable_alone() {
        let verdicts = HttpVerdicts::new().on_status(529, Verdict::throttled()).wall_clock(noon);
        for (value, expected) in [("7", Some(7)), ("Sun, 06 Nov 1994 08:49:37 GMT", Some(7)), ("-7", None)] {
            for (status, reads) in [(429, true), (503, true), (529, true), (500, false), (502, false)] {
                let mut response = response(status);
                response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static(value));
                let hint = judge(&verdicts, response).failure().unwrap().retry_after;
                assert_eq!(hint, expected.filter(|_| reads).map(Duration::from_secs), "{status} {value}");
            }
        }
    }

    #[test]
    fn a_rows_own_wait_holds_where_the_response_names_none() {
        let row = Verdict::throttled().after(Some(Duration::from_secs(9)));
        let verdicts = HttpVerdicts::new().on_status(420, row);
        assert_eq!(judge(&verdicts, response(420)), row);
        let mut hinted = response(420);
        hinted.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("2"));
        assert_eq!(judge(&verdicts, hinted), Verdict::throttled().after(Some(Duration::from_secs(2))));
    }

    #[test]
    fn one_row_is_replaced_and_the_others_stay_in_this_copy_and_in_that() {
        let before = HttpVerdicts::new().on_status(404, Verdict::transient());
        let after =
            before.clone().on_status(StatusCode::NOT_FOUND, Verdict::Success).on_status(200, Verdict::Fatal);
        assert_eq!(judge(&before, response(404)), Verdict::transient());
        assert_eq!(judge(&before, response(200)), Verdict::Success);
        assert_eq!(judge(&after, response(404)), Verdict::Success);
        assert_eq!(judge(&after, response(200)), Verdict::Fatal);
        assert_eq!(judge(&after, response(400)), Verdict::Fatal);
        assert_eq!(judge(&after, response(500)), Verdict::transient());
    }

    #[test]
    fn a_number_that_is_no_status_is_named() {
        let error = HttpVerdicts::new().try_on_status(1_000, Verdict::Fatal).unwrap_err();
        assert_eq!(error.to_string(), "status is 1000, but must be 100 to 999");
    }

    #[test]
    #[should_panic(expected = "status is 99")]
    fn a_literal_that_is_no_status_panics() {
        let _ = HttpVerdicts::new().on_status(99, Verdict::Fatal);
    }

    #[test]
    fn our_own_answer_is_no_attempts_failure() {
        for status in [429, 503, 504] {
            let mut answer = response(status);
            answer.extensions_mut().insert(Rejection::Closed);
            assert_eq!(judge(&HttpVerdicts::new(), answer), Verdict::Fatal, "{status}");
        }
    }

    #[test]
    fn errors_of_every_kind_of_type_are_looked_into() {
        let refused = || io::Error::from(io::ErrorKind::ConnectionRefused);
        let expected = Verdict::transient().not_processed();
        let verdicts = HttpVerdicts::new();
        assert_eq!(judge_error(&verdicts, refused()), expected);
        assert_eq!(judge_error::<BoxError>(&verdicts, refused().into()), expected);
        assert_eq!(judge_error::<Box<dyn Error + Send>>(&verdicts, Box::new(refused())), expected);
        assert_eq!(judge_error::<Box<dyn Error>>(&verdicts, refused().into()), expected);
        assert_eq!(judge_error(&verdicts, Rejection::Closed), Verdict::Fatal);
        assert_eq!(judge_error::<BoxError>(&verdicts, Rejection::Closed.into()), Verdict::Fatal);
    }

    #[derive(Debug)]
    struct Mine(io::Error);

    impl fmt::Display for Mine {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("mine")
        }
    }

    impl Error for Mine {
        fn source(&self) -> Option<&(dyn Error + 'static)> {
            Some(&self.0)
        }
    }

    #[test]
    fn a_row_for_an_error_type_opens_it_and_decides_first() {
        let mine = |kind| Mine(io::Error::from(kind));
        let closed = HttpVerdicts::new();
        assert_eq!(judge_error(&closed, mine(io::ErrorKind::ConnectionRefused)), Verdict::transient());

        let open = HttpVerdicts::new()
            .on_error(|error: &Mine| {
                (error.0.kind() == io::ErrorKind::InvalidInput).then_some(Verdict::Fatal)
            })
            .on_error(|error: &io::Error| {
                (error.kind() == io::ErrorKind::TimedOut).then_some(Verdict::throttled())
            });
        assert_eq!(judge_error(&open, mine(io::ErrorKind::InvalidInput)), Verdict::Fatal);
        assert_eq!(
            judge_error(&open, mine(io::ErrorKind::ConnectionRefused)),
            Verdict::transient().not_processed()
        );
        assert_eq!(judge_error(&open, mine(io::ErrorKind::TimedOut)), Verdict::throttled());
        assert_eq!(judge_error::<BoxError>(&open, mine(io::ErrorKind::InvalidInput).into()), Verdict::Fatal);
    }

    #[test]
    fn r8_totals_are_told_where_there_was_more_than_one_attempt() {
        let finish = |response: &mut Response<NoBody>, attempts| {
            Classify::<_, Infallible>::finish(&HttpVerdicts::new(), response, &Totals::new(attempts));
        };
        let mut answer = response(200);
        finish(&mut answer, 1);
        assert!(answer.extensions().is_empty());
        assert_eq!(attempts(&answer), 1);
        finish(&mut answer, 3);
        assert_eq!(answer.extensions().get(), Some(&Totals::new(3)));
        assert_eq!(attempts(&answer), 3);
    }

    /// Counts its polls; gives `ready` frames of `size` bytes, then waits for ever.
    struct Scripted<'a> {
        ready: usize,
        size: usize,
        polls: &'a std::cell::Cell<usize>,
        dropped: &'a std::cell::Cell<bool>,
    }

    impl Drop for Scripted<'_> {
        fn drop(&mut self) {
            self.dropped.set(true);
        }
    }

    impl Body for Scripted<'_> {
        type Data = Bytes;
        type Error = Infallible;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
            self.polls.set(self.polls.get() + 1);
            if self.ready == 0 {
                return Poll::Pending;
            }
            self.ready -= 1;
            Poll::Ready(Some(Ok(Frame::data(Bytes::from(vec![0; self.size])))))
        }
    }

    #[test]
    fn h3_what_is_ready_is_read_up_to_64_kib_and_the_rest_dropped_unwaited() {
        let polls = |ready, size| {
            let (polls, dropped) = (std::cell::Cell::new(0), std::cell::Cell::new(false));
            let body = Scripted { ready, size, polls: &polls, dropped: &dropped };
            Classify::<_, Infallible>::discard(&HttpVerdicts::new(), Response::new(body));
            assert!(dropped.get());
            polls.get()
        };
        assert_eq!(polls(0, 0), 1, "nothing is ready: asked once, not waited for");
        assert_eq!(polls(3, 1_024), 4, "three frames, then not ready");
        assert_eq!(polls(usize::MAX, 1_024), 64, "64 KiB, no more");
        assert_eq!(polls(usize::MAX, 65_536), 1);
        assert_eq!(polls(usize::MAX, 0), 1_024, "empty frames end too");
    }

    #[test]
    fn h3_a_body_that_has_ended_is_not_polled_again() {
        Classify::<_, Infallible>::discard(&HttpVerdicts::new(), response(500));
        let full = Response::new(http_body_util::Full::new(Bytes::from_static(b"busy")));
        Classify::<_, Infallible>::discard(&HttpVerdicts::new(), full);
    }
}
