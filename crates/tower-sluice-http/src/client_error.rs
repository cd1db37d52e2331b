//! The errors of clients told apart: was the request surely not processed, or perhaps?

use std::any::Any;
use std::error::Error;
use std::io;

use tower_sluice::BoxError;
use tower_sluice::reject::Rejection;
use tower_sluice::verdict::Verdict;

/// What an error of an HTTP client means, judged by its sources.
///
/// | found in the chain of sources | verdict |
/// |---|---|
/// | a [`Rejection`] by a layer of this workspace | fatal: it is no attempt's failure |
/// | hyper-util's client could not connect; hyper cancelled the request before it was written, or its connection was closed before it took the request | transient, surely not processed |
/// | HTTP/2: the server reset the stream as `REFUSED_STREAM`, or a GOAWAY named it as not processed (feature `http2`) | transient, surely not processed |
/// | the operating system refused the connection, with no HTTP connection around it | transient, surely not processed |
/// | a time-out of tokio, hyper, reqwest or the operating system | timeout, perhaps processed |
/// | the request's own body failed, or the request cannot be sent at all (no host, an unknown version) | fatal: the same request fails the same way |
/// | anything else: reset, closed or half an answer while waiting, an unknown error | transient, perhaps processed |
///
/// [`HttpVerdicts`](crate::HttpVerdicts) uses it for every error that it can look into. It is public for classifiers
/// of one's own, whose error wraps a client's:
///
/// ```
/// use tower_sluice_http::client_error_verdict;
/// use tower_sluice_http::verdict::Verdict;
///
/// let refused = std::io::Error::from(std::io::ErrorKind::ConnectionRefused);
/// assert_eq!(client_error_verdict(&refused), Verdict::transient().not_processed());
///
/// let reset = std::io::Error::from(std::io::ErrorKind::ConnectionReset);
/// assert_eq!(client_error_verdict(&reset), Verdict::transient());
/// ```
pub fn client_error_verdict(error: &(dyn Error + 'static)) -> Verdict {
    if chain(error).any(|link| Rejection::find(link).is_some()) {
        return Verdict::Fatal;
    }
    let mut within_a_connection = false;
    for link in chain(error) {
        if let Some(verdict) = verdict_of(link, within_a_connection) {
            return verdict;
        }
        within_a_connection |= is_a_connections(link);
    }
    Verdict::transient()
}

/// An error and its sources. Unlike [`Error::source`] it does not step over the error inside an [`io::Error`].
pub(crate) fn chain<'a>(
    error: &'a (dyn Error + 'static),
) -> impl Iterator<Item = &'a (dyn Error + 'static)> + use<'a> {
    std::iter::successors(Some(error), |&link| inside_io(link).or_else(|| link.source()))
}

fn inside_io<'a>(link: &'a (dyn Error + 'static)) -> Option<&'a (dyn Error + 'static)> {
    link.downcast_ref::<io::Error>()?.get_ref().map(|inner| inner as _)
}

/// The error behind a value of an error type that is not known where this is compiled, for the types that it may
/// well be.
pub(crate) fn known(error: &dyn Any) -> Option<&(dyn Error + 'static)> {
    if let Some(boxed) = error.downcast_ref::<BoxError>() {
        return Some(&**boxed);
    }
    #[cfg(feature = "client")]
    if let Some(error) = error.downcast_ref::<hyper_util::client::legacy::Error>() {
        return Some(error);
    }
    #[cfg(feature = "client")]
    if let Some(error) = error.downcast_ref::<hyper::Error>() {
        return Some(error);
    }
    #[cfg(feature = "reqwest")]
    if let Some(error) = error.downcast_ref::<reqwest::Error>() {
        return Some(error);
    }
    if let Some(error) = error.downcast_ref::<io::Error>() {
        return Some(error);
    }
    if let Some(error) = error.downcast_ref::<Box<dyn Error + Send>>() {
        return Some(&**error);
    }
    if let Some(error) = error.downcast_ref::<Box<dyn Error>>() {
        return Some(&**error);
    }
    error.downcast_ref::<Rejection>().map(|rejection| rejection as _)
}

/// What this link alone decides, the outer ones having decided nothing.
fn verdict_of(link: &(dyn Error + 'static), within_a_connection: bool) -> Option<Verdict> {
    #[cfg(feature = "client")]
    if let Some(error) = link.downcast_ref::<hyper_util::client::legacy::Error>() {
        return of_client(error);
    }
    #[cfg(feature = "client")]
    if let Some(error) = link.downcast_ref::<hyper::Error>() {
        return of_connection(error);
    }
    #[cfg(feature = "http2")]
    if let Some(error) = link.downcast_ref::<h2::Error>() {
        return of_stream(error);
    }
    #[cfg(feature = "reqwest")]
    if let Some(error) = link.downcast_ref::<reqwest::Error>() {
        return of_reqwest(error);
    }
    if link.is::<tokio::time::error::Elapsed>() {
        return Some(Verdict::timeout());
    }
    match link.downcast_ref::<io::Error>()?.kind() {
        // Within a connection it is a late report about that connection, which had carried requests before.
        io::ErrorKind::ConnectionRefused if !within_a_connection => {
            Some(Verdict::transient().not_processed())
        }
        io::ErrorKind::TimedOut => Some(Verdict::timeout()),
        _ => None,
    }
}

#[cfg(feature = "client")]
fn of_client(error: &hyper_util::client::legacy::Error) -> Option<Verdict> {
    if error.is_connect() {
        return Some(Verdict::transient().not_processed());
    }
    // What goes wrong on a connection has hyper's error as its source; without one the client would not send the
    // request at all.
    error.source().is_none().then_some(Verdict::Fatal)
}

#[cfg(feature = "client")]
fn of_connection(error: &hyper::Error) -> Option<Verdict> {
    // Cancelled: the request never left the connection's queue. Closed: the connection did not even take it there.
    if error.is_canceled() || error.is_closed() {
        return Some(Verdict::transient().not_processed());
    }
    // The request's own body, or a request that HTTP does not know. Looking further would take the error of some
    // other connection, from which the body is read, for one of this.
    if error.is_user() {
        return Some(Verdict::Fatal);
    }
    error.is_timeout().then_some(Verdict::timeout())
}

#[cfg(feature = "http2")]
fn of_stream(error: &h2::Error) -> Option<Verdict> {
    // RFC 9113, 8.7: a refused stream was not processed, nor one whose number is above the last one that a GOAWAY
    // names. h2 ends no other stream with the peer's GOAWAY; those below run on, and end as closed if they do not
    // finish. Both must come from the peer: h2's own resets and GOAWAYs say nothing of what the peer did.
    let not_processed = error.is_remote()
        && (error.is_go_away() || error.is_reset() && error.reason() == Some(h2::Reason::REFUSED_STREAM));
    not_processed.then_some(Verdict::transient().not_processed())
}

#[cfg(feature = "reqwest")]
fn of_reqwest(error: &reqwest::Error) -> Option<Verdict> {
    if error.is_builder() {
        return Some(Verdict::Fatal);
    }
    // A time-out while connecting is both.
    if error.is_connect() {
        return Some(Verdict::transient().not_processed());
    }
    error.is_timeout().then_some(Verdict::timeout())
}

/// Whether what lies behind this link happened on an HTTP connection that had been made.
fn is_a_connections(link: &(dyn Error + 'static)) -> bool {
    #[cfg(feature = "client")]
    if link.is::<hyper::Error>() {
        return true;
    }
    let _ = link;
    false
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fmt;
    use std::sync::Arc;

    const NOT_PROCESSED: Verdict = Verdict::transient().not_processed();

    #[derive(Debug)]
    struct Outer(BoxError);

    impl fmt::Display for Outer {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("outer")
        }
    }

    impl Error for Outer {
        fn source(&self) -> Option<&(dyn Error + 'static)> {
            Some(&*self.0)
        }
    }

    #[test]
    fn a_rejection_anywhere_is_fatal() {
        let rejection = || Rejection::Cleared { reason: Arc::from("deploy") };
        assert_eq!(client_error_verdict(&rejection()), Verdict::Fatal);
        assert_eq!(client_error_verdict(&Outer(Box::new(rejection()))), Verdict::Fatal);
        let hidden =
            Outer(Box::new(io::Error::new(io::ErrorKind::ConnectionRefused, Outer(Box::new(rejection())))));
        assert_eq!(client_error_verdict(&hidden), Verdict::Fatal);
    }

    #[test]
    fn case_e12_only_a_refused_connection_is_surely_not_processed_among_io_errors() {
        for (kind, verdict) in [
            (io::ErrorKind::ConnectionRefused, NOT_PROCESSED),
            (io::ErrorKind::TimedOut, Verdict::timeout()),
            (io::ErrorKind::ConnectionReset, Verdict::transient()),
            (io::ErrorKind::ConnectionAborted, Verdict::transient()),
            (io::ErrorKind::BrokenPipe, Verdict::transient()),
            (io::ErrorKind::UnexpectedEof, Verdict::transient()),
        ] {
            assert_eq!(client_error_verdict(&io::Error::from(kind)), verdict, "{kind}");
            assert_eq!(client_error_verdict(&Outer(io::Error::from(kind).into())), verdict, "{kind}");
        }
    }

    #[test]
    fn an_error_inside_an_io_error_is_looked_at() {
        let inner = io::Error::from(io::ErrorKind::TimedOut);
        assert_eq!(client_error_verdict(&io::Error::other(Outer(Box::new(inner)))), Verdict::timeout());
    }

    #[test]
    fn an_unknown_error_is_perhaps_processed() {
        assert_eq!(client_error_verdict(&Outer("odd".into())), Verdict::transient());
    }

    #[tokio::test(start_paused = true)]
    async fn tokios_timeout_is_one() {
        let never = std::future::pending::<()>();
        let elapsed = tokio::time::timeout(std::time::Duration::from_secs(1), never).await.unwrap_err();
        assert_eq!(client_error_verdict(&Outer(Box::new(elapsed))), Verdict::timeout());
    }
}
