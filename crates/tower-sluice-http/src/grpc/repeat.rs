//! Which gRPC calls may be sent again, and what each attempt carries.

use std::sync::Arc;

use http::Request;
use http::header::{HeaderName, HeaderValue};
use tower_sluice::verdict::{Attempt, Failure, Repeat};

use super::timeout::{TIMEOUT, grpc_timeout, grpc_timeout_value, handed_on};
use crate::repeat::{CloneBody, CopyBody, HttpRepeat};

const PREVIOUS_ATTEMPTS: HeaderName = HeaderName::from_static("grpc-previous-rpc-attempts");

/// Knows a gRPC call: whether it may be sent again, and what each attempt carries.
///
/// As [`HttpRepeat`], of which it is built. All methods are POSTs, so that a call which was perhaps processed is sent
/// again only where its method is [listed](Self::idempotent) as idempotent, or where it carries an idempotency key.
///
/// Each attempt carries
/// - `grpc-timeout`: what is left of the call's deadline, where it has one, and 5 ms, so that we notice first; never more
///   than the call itself brought;
/// - `grpc-previous-rpc-attempts`, from the second on (gRPC's proposal A6).
///
/// ```
/// use http::Request;
/// use tower_sluice_http::grpc::GrpcRepeat;
/// use tower_sluice_http::verdict::{Repeat, Verdict};
///
/// let perhaps_processed = *Verdict::transient().failure().unwrap();
/// let repeat = GrpcRepeat::new().idempotent(["/shop.Stock/Get"]);
/// let may_repeat = |path: &str| repeat.may_repeat(&Request::post(path).body("").unwrap(), &perhaps_processed);
/// assert!(may_repeat("/shop.Stock/Get"));
/// assert!(!may_repeat("/shop.Stock/Take"));
/// ```
#[derive(Clone, Debug)]
pub struct GrpcRepeat<C = CloneBody> {
    http: HttpRepeat<C>,
    idempotent: Option<Arc<Vec<Box<str>>>>,
}

impl GrpcRepeat {
    /// Repeats calls that were surely not processed; copies bodies by `Clone`.
    pub fn new() -> Self {
        Self { http: HttpRepeat::new(), idempotent: None }
    }
}

impl Default for GrpcRepeat {
    fn default() -> Self {
        Self::new()
    }
}

impl<C> GrpcRepeat<C> {
    /// Lists methods, by their paths (`/package.Service/Method`), whose calls may be sent again although they may have
    /// been processed.
    #[must_use]
    pub fn idempotent<T: Into<String>>(mut self, paths: impl IntoIterator<Item = T>) -> Self {
        let paths = paths.into_iter().map(|path| path.into().into_boxed_str());
        Arc::make_mut(self.idempotent.get_or_insert_default()).extend(paths);
        self
    }

    /// Builds what knows of the request beneath on the present one: idempotency keys, how bodies are copied.
    #[must_use]
    pub fn map_http<C2>(self, map: impl FnOnce(HttpRepeat<C>) -> HttpRepeat<C2>) -> GrpcRepeat<C2> {
        GrpcRepeat { http: map(self.http), idempotent: self.idempotent }
    }

    fn is_idempotent<B>(&self, request: &Request<B>) -> bool {
        let path = request.uri().path();
        self.idempotent.as_ref().is_some_and(|paths| paths.iter().any(|known| **known == *path))
    }
}

impl<B, C: CopyBody<B>> Repeat<Request<B>> for GrpcRepeat<C> {
    fn copy(&self, request: &Request<B>) -> Option<Request<B>> {
        self.http.copy(request)
    }

    fn may_repeat(&self, request: &Request<B>, failure: &Failure) -> bool {
        if self.is_idempotent(request) {
            self.http.may_repeat(request, &Failure { processed: false, ..*failure })
        } else {
            self.http.may_repeat(request, failure)
        }
    }

    fn prepare(&self, request: &mut Request<B>, attempt: &Attempt) {
        self.http.prepare(request, attempt);
        let headers = request.headers_mut();
        if let Some(left) = attempt.left() {
            let own = grpc_timeout(headers);
            let left = handed_on(left);
            if own.is_none_or(|own| left < own) {
                headers.insert(TIMEOUT, grpc_timeout_value(left));
            }
        }
        if attempt.number > 1 {
            headers.insert(PREVIOUS_ATTEMPTS, HeaderValue::from(attempt.number - 1));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use tokio::time::Instant;
    use tower_sluice::verdict::Verdict;

    fn call() -> Request<&'static str> {
        Request::post("http://shop/shop.Stock/Get").body("").unwrap()
    }

    #[test]
    fn h4_perhaps_processed_is_repeated_for_listed_methods_alone() {
        let listed = GrpcRepeat::new().idempotent(["/shop.Stock/Get"]);
        for (verdict, plain, as_listed) in [
            (Verdict::transient(), false, true),
            (Verdict::timeout(), false, true),
            (Verdict::unavailable().not_processed(), true, true),
            (Verdict::throttled(), true, true),
        ] {
            let failure = *verdict.failure().unwrap();
            assert_eq!(GrpcRepeat::new().may_repeat(&call(), &failure), plain, "{verdict:?}");
            assert_eq!(listed.may_repeat(&call(), &failure), as_listed, "{verdict:?}");
        }
        let failure = *Verdict::transient().failure().unwrap();
        let other = Request::post("/shop.Stock/GetAll").body("").unwrap();
        assert!(!listed.may_repeat(&other, &failure));
    }

    #[tokio::test(start_paused = true)]
    async fn h4_what_is_left_is_sent_on_and_never_more_than_the_call_brought() {
        let repeat = GrpcRepeat::new();
        let deadline = Some(Instant::now() + Duration::from_secs(5));
        let mut request = call();
        repeat.prepare(&mut request, &Attempt::new(1, deadline));
        assert_eq!(request.headers()["grpc-timeout"], "5005000u");
        assert!(!request.headers().contains_key("grpc-previous-rpc-attempts"));

        tokio::time::advance(Duration::from_secs(2)).await;
        let mut second = repeat.copy(&request).unwrap();
        repeat.prepare(&mut second, &Attempt::new(2, deadline));
        assert_eq!(second.headers()["grpc-timeout"], "3005000u");
        assert_eq!(second.headers()["grpc-previous-rpc-attempts"], "1");

        let mut short = call();
        short.headers_mut().insert("grpc-timeout", HeaderValue::from_static("1S"));
        repeat.prepare(&mut short, &Attempt::new(1, deadline));
        assert_eq!(short.headers()["grpc-timeout"], "1S");
        repeat.prepare(&mut short, &Attempt::new(1, None));
        assert_eq!(short.headers()["grpc-timeout"], "1S");
        let mut none = call();
        repeat.prepare(&mut none, &Attempt::new(1, None));
        assert!(!none.headers().contains_key("grpc-timeout"));
    }
}
