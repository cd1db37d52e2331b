//! Which HTTP requests may be sent again, and what each attempt carries.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use http::header::{HeaderMap, HeaderName, HeaderValue};
use http::{Method, Request};
use http_body::Body;
use tower_sluice::error::ConfigError;
use tower_sluice::verdict::{Attempt, Failure, Repeat};

use crate::config::or_panic;
use crate::replay::{Intact, ReplayBodies, ReplayBody};

/// The name that the IETF's draft gives the header, and most services use.
const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");

/// Knows an HTTP request: whether it may be sent again, how it is copied, and what each attempt carries.
///
/// | the request | is sent again |
/// |---|---|
/// | its method is idempotent (GET, HEAD, OPTIONS, TRACE, PUT, DELETE, or one [added](Self::also_repeat)) | after every failure that the verdict calls worth another attempt |
/// | it carries an idempotency key | likewise |
/// | any other, such as a plain POST | only where it was surely not processed: could not connect, refused stream, a 429 |
///
/// The key's header is `idempotency-key` unless [`idempotency_header`](Self::idempotency_header) names another; a
/// key that the request brings along counts. [`idempotency_key`](Self::idempotency_key) gives one to each call that
/// needs one.
///
/// Each attempt carries its [`AttemptNumber`] in the request's extensions. A retry layer that meets one from an
/// outer layer stays out: it makes one attempt, so that nested layers do not multiply. (In tower's own `RetryLayer`
/// the first attempt carries none, nor is it given a key, since tower lends the first request only by reference.)
///
/// `C` says how the body is copied:
///
/// | `C` | requests that can be repeated | the body must be |
/// |---|---|---|
/// | [`CloneBody`] (default) | all | `Clone`: `Full`, `Empty`, `String`, `Bytes` |
/// | [`ReplayBodies`], by [`replay_bodies`](Self::replay_bodies) | those of which no more than its cap was read | any [`Body`] |
/// | [`EmptyBody`], by [`empty_bodies`](Self::empty_bodies) | those without content | `Default` and [`Body`]: axum's, tonic's, boxed ones |
///
/// ```
/// use http::{Method, Request};
/// use tower_sluice_http::HttpRepeat;
/// use tower_sluice_http::verdict::{Attempt, Repeat, Verdict};
///
/// let may_have_been_processed = *Verdict::transient().failure().unwrap();
/// let mut charge = Request::builder().method(Method::POST).uri("/charge").body("4 EUR").unwrap();
///
/// let repeat = HttpRepeat::new();
/// assert!(!repeat.may_repeat(&charge, &may_have_been_processed));
///
/// let repeat = HttpRepeat::new().idempotency_key("idempotency-key");
/// repeat.prepare(&mut charge, &Attempt::new(1, None));
/// assert!(repeat.may_repeat(&charge, &may_have_been_processed));
/// assert_eq!(charge.headers()["idempotency-key"].len(), 36);
/// ```
#[derive(Clone, Debug)]
pub struct HttpRepeat<C = CloneBody> {
    body: C,
    key: HeaderName,
    stamps: bool,
    also: Option<Arc<Vec<Method>>>,
    layer: LayerId,
}

impl HttpRepeat {
    /// Repeats idempotent methods and requests that bring an idempotency key along; copies bodies by `Clone`.
    pub fn new() -> Self {
        Self { body: CloneBody, key: IDEMPOTENCY_KEY, stamps: false, also: None, layer: LayerId::unique() }
    }
}

impl Default for HttpRepeat {
    fn default() -> Self {
        Self::new()
    }
}

impl<C> HttpRepeat<C> {
    /// Gives each call whose method is not idempotent a key of its own in this header, before its first attempt.
    ///
    /// Every attempt carries the same key. A key that the request brings along stays, so that a rerun of an item
    /// can be known as such by the service. The key is a random UUID (version 4, RFC 9562), 36 characters, from
    /// the thread's cryptographic random source.
    ///
    /// Only for services that honour keys: with a key in it, a request is repeated although it may have been
    /// processed.
    ///
    /// # Panics
    ///
    /// If `header` is no header name.
    #[must_use]
    #[track_caller]
    pub fn idempotency_key(self, header: impl TryInto<HeaderName>) -> Self {
        or_panic(self.try_idempotency_key(header))
    }

    /// [`idempotency_key`](Self::idempotency_key) for a name that comes from a configuration.
    ///
    /// # Errors
    ///
    /// If `header` is no header name.
    pub fn try_idempotency_key(self, header: impl TryInto<HeaderName>) -> Result<Self, ConfigError> {
        Ok(Self { stamps: true, ..self.try_idempotency_header(header)? })
    }

    /// Names the header that marks a request as safe to repeat, without giving keys to calls that bring none.
    /// `idempotency-key` where not said.
    ///
    /// # Panics
    ///
    /// If `header` is no header name.
    #[must_use]
    #[track_caller]
    pub fn idempotency_header(self, header: impl TryInto<HeaderName>) -> Self {
        or_panic(self.try_idempotency_header(header))
    }

    /// [`idempotency_header`](Self::idempotency_header) for a name that comes from a configuration.
    ///
    /// # Errors
    ///
    /// If `header` is no header name.
    pub fn try_idempotency_header(mut self, header: impl TryInto<HeaderName>) -> Result<Self, ConfigError> {
        self.key = header.try_into().map_err(|_| {
            ConfigError::new("idempotency header", "no header name", "a token of RFC 9110, 5.6.2")
        })?;
        Ok(self)
    }

    /// Treats one more method as idempotent: for a service whose POSTs only ask, such as a search.
    #[must_use]
    pub fn also_repeat(mut self, method: Method) -> Self {
        Arc::make_mut(self.also.get_or_insert_default()).push(method);
        self
    }

    /// Repeats requests without content only, of any body type that is `Default`; others have one attempt.
    #[must_use]
    pub fn empty_bodies(self) -> HttpRepeat<EmptyBody> {
        self.copy_body(EmptyBody)
    }

    /// Makes any body repeatable: it is streamed to the first attempt while up to `cap` bytes of it are kept, and
    /// replayed byte for byte, trailers too, to the next. The stack's body type stays what it is: `into_body` makes
    /// it of a [`ReplayBody`], such as `axum::body::Body::new` or `tonic::body::Body::new`.
    ///
    /// Beyond `cap` the first attempt goes on, and no other follows. A frame counts for at least 64 bytes of it. An
    /// empty body costs nothing; any other, two allocations and the box that `into_body` makes.
    ///
    /// ```
    /// use axum::body::Body;
    /// use tower_sluice_http::HttpRepeat;
    ///
    /// let repeat = HttpRepeat::new().replay_bodies(64 << 10, Body::new);
    /// # fn is_repeat<R: tower_sluice_http::verdict::Repeat<http::Request<Body>>>(_: R) {}
    /// # is_repeat(repeat);
    /// ```
    #[must_use]
    pub fn replay_bodies<B, F>(self, cap: usize, into_body: F) -> HttpRepeat<ReplayBodies<F>>
    where
        F: Fn(ReplayBody<B>) -> B,
    {
        self.copy_body(ReplayBodies::new(cap, into_body))
    }

    /// Copies bodies by another rule.
    #[must_use]
    pub fn copy_body<C2>(self, body: C2) -> HttpRepeat<C2> {
        let Self { body: _, key, stamps, also, layer } = self;
        HttpRepeat { body, key, stamps, also, layer }
    }

    fn is_idempotent(&self, method: &Method) -> bool {
        method.is_idempotent() || self.also.as_ref().is_some_and(|also| also.contains(method))
    }

    /// Whether sending such a request again does no harm after this failure.
    fn is_safe(&self, method: &Method, headers: &HeaderMap, failure: &Failure) -> bool {
        !failure.processed || self.is_idempotent(method) || headers.contains_key(&self.key)
    }

    fn needs_key(&self, method: &Method, headers: &HeaderMap) -> bool {
        self.stamps && !headers.contains_key(&self.key) && !self.is_idempotent(method)
    }

    /// Whether an outer retry layer of ours makes attempts with this request.
    fn is_nested<B>(&self, request: &Request<B>) -> bool {
        request.extensions().get::<AttemptNumber>().is_some_and(|attempt| attempt.layer != self.layer)
    }
}

impl<B, C: CopyBody<B>> Repeat<Request<B>> for HttpRepeat<C> {
    fn copy(&self, request: &Request<B>) -> Option<Request<B>> {
        if self.is_nested(request) {
            return None;
        }
        let mut copy = Request::new(self.body.copy(request)?);
        *copy.method_mut() = request.method().clone();
        *copy.uri_mut() = request.uri().clone();
        *copy.version_mut() = request.version();
        *copy.headers_mut() = request.headers().clone();
        *copy.extensions_mut() = request.extensions().clone();
        Some(copy)
    }

    fn may_repeat(&self, request: &Request<B>, failure: &Failure) -> bool {
        self.is_safe(request.method(), request.headers(), failure) && self.body.is_intact(request)
    }

    fn prepare(&self, request: &mut Request<B>, attempt: &Attempt) {
        if attempt.number == 1 {
            // Whose number is on a request that arrives is another layer's, even if the two share one policy.
            if let Some(outer) = request.extensions_mut().get_mut::<AttemptNumber>() {
                outer.layer = LayerId::OTHER;
            }
        }
        if self.is_nested(request) {
            return;
        }
        if self.needs_key(request.method(), request.headers()) {
            request.headers_mut().insert(self.key.clone(), random_key());
        }
        request.extensions_mut().insert(AttemptNumber { number: attempt.number, layer: self.layer });
        self.body.prepare(request, attempt);
    }
}

/// Bodies by reqwest's own `try_clone`, and no [`AttemptNumber`]: reqwest keeps a request's extensions to itself.
#[cfg(feature = "reqwest")]
impl Repeat<reqwest::Request> for HttpRepeat {
    fn copy(&self, request: &reqwest::Request) -> Option<reqwest::Request> {
        request.try_clone()
    }

    fn may_repeat(&self, request: &reqwest::Request, failure: &Failure) -> bool {
        self.is_safe(request.method(), request.headers(), failure)
    }

    fn prepare(&self, request: &mut reqwest::Request, _: &Attempt) {
        if self.needs_key(request.method(), request.headers()) {
            request.headers_mut().insert(self.key.clone(), random_key());
        }
    }
}

/// A random UUID as a header's value.
fn random_key() -> HeaderValue {
    const VERSION_4: u128 = 0x4 << 76;
    const VARIANT: u128 = 0b10 << 62;
    let random = rand::random::<u128>();
    let uuid = random & !(0xf << 76 | 0b11 << 62) | VERSION_4 | VARIANT;
    let mut text = [b'-'; 36];
    let places = (0..36).filter(|place| !matches!(place, 8 | 13 | 18 | 23));
    for (nibble, place) in (0..32).rev().zip(places) {
        text[place] = b"0123456789abcdef"[(uuid >> (4 * nibble) & 0xf) as usize];
    }
    HeaderValue::from_bytes(&text).unwrap_or_else(|_| HeaderValue::from(random as u64))
}

/// The number of the attempt that a request is sent for, in the request's extensions; 1 for the first.
///
/// Put there by the outermost retry layer whose policy has an [`HttpRepeat`]. A service below may read it.
///
/// ```
/// use http::Request;
/// use tower_sluice_http::verdict::{Attempt, Repeat};
/// use tower_sluice_http::{AttemptNumber, HttpRepeat};
///
/// let mut request = Request::new("hello");
/// HttpRepeat::new().prepare(&mut request, &Attempt::new(2, None));
/// assert_eq!(request.extensions().get::<AttemptNumber>().unwrap().get(), 2);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttemptNumber {
    number: u32,
    layer: LayerId,
}

impl AttemptNumber {
    /// The number, 1 for the first attempt.
    pub const fn get(self) -> u32 {
        self.number
    }
}

/// Tells the numbers that a layer has stamped itself from those of a layer around it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct LayerId(u64);

impl LayerId {
    const OTHER: Self = Self(0);

    fn unique() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

/// How [`HttpRepeat`] copies a request's body. Everything else of the request it copies itself.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot copy a request body of type `{B}`",
    note = "the default needs a body that is `Clone`; for any other take `.replay_bodies(64 << 10, Body::new)`, or `.empty_bodies()`, which repeats requests without content"
)]
pub trait CopyBody<B> {
    /// A body for the copy of `request`, equal to its own; `None` where there can be none.
    fn copy(&self, request: &Request<B>) -> Option<B>;

    /// Whether the body of `request`, a copy, is still what the call brought, now that an attempt has failed.
    fn is_intact(&self, request: &Request<B>) -> bool {
        let _ = request;
        true
    }

    /// Called before each attempt, and before the request is copied for the next.
    fn prepare(&self, request: &mut Request<B>, attempt: &Attempt) {
        let _ = (request, attempt);
    }
}

/// Copies bodies that are `Clone`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CloneBody;

impl<B: Clone> CopyBody<B> for CloneBody {
    fn copy(&self, request: &Request<B>) -> Option<B> {
        Some(request.body().clone())
    }

    fn is_intact(&self, request: &Request<B>) -> bool {
        Intact::pledge(request.extensions())
    }
}

/// Copies bodies that are empty, by `Default`, which for an HTTP body is the empty one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EmptyBody;

impl<B: Body + Default> CopyBody<B> for EmptyBody {
    fn copy(&self, request: &Request<B>) -> Option<B> {
        let empty = |body: &B| body.is_end_stream() && body.size_hint().exact() == Some(0);
        empty(request.body()).then(B::default).filter(empty)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use http::Version;
    use http_body_util::combinators::BoxBody;
    use http_body_util::{BodyExt, Full};
    use std::collections::HashSet;
    use std::convert::Infallible;
    use tower_sluice::verdict::{FailureKind, Verdict};

    const PERHAPS: Failure = Failure { kind: FailureKind::Transient, retry_after: None, processed: true };
    const SURELY_NOT: Failure = Failure { processed: false, ..PERHAPS };

    fn request(method: Method) -> Request<&'static str> {
        Request::builder().method(method).uri("http://example.com/a?b=c").body("body").unwrap()
    }

    fn first(repeat: &HttpRepeat, request: &mut Request<&'static str>) {
        repeat.prepare(request, &Attempt::new(1, None));
    }

    #[test]
    fn h1_case_e11_only_idempotent_methods_are_repeated_when_perhaps_processed() {
        let repeat = HttpRepeat::new();
        let custom = Method::from_bytes(b"PURGE").unwrap();
        for (method, idempotent) in [
            (Method::GET, true),
            (Method::HEAD, true),
            (Method::OPTIONS, true),
            (Method::TRACE, true),
            (Method::PUT, true),
            (Method::DELETE, true),
            (Method::POST, false),
            (Method::PATCH, false),
            (Method::CONNECT, false),
            (custom.clone(), false),
        ] {
            assert_eq!(repeat.may_repeat(&request(method.clone()), &PERHAPS), idempotent, "{method}");
            assert!(repeat.may_repeat(&request(method.clone()), &SURELY_NOT), "{method}");
        }
        let repeat = repeat.also_repeat(custom.clone());
        assert!(repeat.may_repeat(&request(custom), &PERHAPS));
        assert!(!repeat.may_repeat(&request(Method::POST), &PERHAPS));
    }

    #[test]
    fn h1_a_post_is_repeated_on_429_alone_among_the_statuses() {
        let repeat = HttpRepeat::new();
        let post = request(Method::POST);
        let may = |verdict: Verdict| repeat.may_repeat(&post, verdict.failure().unwrap());
        assert!(may(Verdict::throttled()));
        assert!(!may(Verdict::unavailable()));
        assert!(!may(Verdict::transient()));
        assert!(!may(Verdict::timeout()));
    }

    #[test]
    fn h1_a_key_that_the_request_brings_makes_it_repeatable_and_stays() {
        let repeat = HttpRepeat::new().idempotency_key("X-Request-Key");
        let mut post = request(Method::POST);
        post.headers_mut().insert("x-request-key", HeaderValue::from_static("mine"));
        assert!(repeat.may_repeat(&post, &PERHAPS));
        first(&repeat, &mut post);
        assert_eq!(post.headers()["x-request-key"], "mine");
        assert!(!HttpRepeat::new().may_repeat(&post, &PERHAPS), "another header is no key");
        assert!(HttpRepeat::new().idempotency_header("x-request-key").may_repeat(&post, &PERHAPS));
    }

    #[test]
    fn h1_one_key_a_call_and_every_attempt_carries_it() {
        let repeat = HttpRepeat::new().idempotency_key("idempotency-key");
        let mut keys = HashSet::new();
        for _ in 0..1_000 {
            let mut post = request(Method::POST);
            first(&repeat, &mut post);
            let key = post.headers()["idempotency-key"].clone();
            let mut copy = repeat.copy(&post).unwrap();
            assert!(repeat.may_repeat(&copy, &PERHAPS));
            repeat.prepare(&mut copy, &Attempt::new(2, None));
            let mut copy = repeat.copy(&copy).unwrap();
            repeat.prepare(&mut copy, &Attempt::new(3, None));
            assert_eq!(copy.headers().get_all("idempotency-key").iter().collect::<Vec<_>>(), [&key]);
            assert!(keys.insert(key), "no two calls share a key");
        }
    }

    #[test]
    fn h1_calls_that_need_no_key_get_none() {
        let mut get = request(Method::GET);
        first(&HttpRepeat::new().idempotency_key("idempotency-key"), &mut get);
        assert!(get.headers().is_empty());
        let mut post = request(Method::POST);
        first(&HttpRepeat::new().idempotency_header("idempotency-key"), &mut post);
        assert!(post.headers().is_empty());
    }

    #[test]
    fn a_key_is_a_uuid_of_version_4() {
        for _ in 0..100 {
            let key = random_key();
            let text = key.to_str().unwrap();
            assert_eq!(text.split('-').map(str::len).collect::<Vec<_>>(), [8, 4, 4, 4, 12]);
            assert!(
                text.bytes().all(|b| b == b'-' || b.is_ascii_digit() || (b'a'..=b'f').contains(&b)),
                "{text}"
            );
            assert_eq!(&text[14..15], "4");
            assert!("89ab".contains(&text[19..20]), "{text}");
        }
    }

    #[test]
    fn a_name_that_is_none_is_an_error_or_a_panic() {
        let error = HttpRepeat::new().try_idempotency_key("no name").unwrap_err();
        assert_eq!(error.field(), "idempotency header");
        assert!(std::panic::catch_unwind(|| HttpRepeat::new().idempotency_header("")).is_err());
    }

    #[test]
    fn a_copy_is_the_request() {
        let repeat = HttpRepeat::new();
        let mut original = request(Method::PUT);
        *original.version_mut() = Version::HTTP_2;
        original.headers_mut().append("x", HeaderValue::from_static("1"));
        original.headers_mut().append("x", HeaderValue::from_static("2"));
        original.extensions_mut().insert("extension");
        let copy = repeat.copy(&original).unwrap();
        assert_eq!(copy.method(), Method::PUT);
        assert_eq!(copy.uri(), "http://example.com/a?b=c");
        assert_eq!(copy.version(), Version::HTTP_2);
        assert_eq!(copy.headers(), original.headers());
        assert_eq!(copy.extensions().get::<&str>(), Some(&"extension"));
        assert_eq!(*copy.body(), "body");
    }

    #[test]
    fn r10_an_inner_layer_of_ours_stays_out() {
        let number =
            |request: &Request<&'static str>| request.extensions().get::<AttemptNumber>().unwrap().get();
        let outer = HttpRepeat::new();
        let shared = outer.clone();
        let inner = HttpRepeat::new().idempotency_key("idempotency-key");
        for inner in [&inner, &shared] {
            let mut original = request(Method::POST);
            first(&outer, &mut original);
            let mut copy = outer.copy(&original).unwrap();
            for attempt in 2..4 {
                let mut sent = copy;
                outer.prepare(&mut sent, &Attempt::new(attempt, None));
                copy = outer.copy(&sent).unwrap();
                // What the inner layer does with it.
                first(inner, &mut sent);
                assert!(inner.copy(&sent).is_none(), "one attempt");
                assert_eq!(number(&sent), attempt, "the outer layer's number stays");
                assert!(sent.headers().is_empty(), "no key that the outer layer does not know of");
            }
        }
    }

    #[test]
    fn r10_in_towers_retry_a_layer_knows_its_own_number() {
        // tower copies before the first attempt without `prepare`, and after `prepare` before each further one.
        let repeat = HttpRepeat::new();
        let original = request(Method::GET);
        let mut copy = repeat.copy(&original).unwrap();
        for attempt in 2..5 {
            repeat.prepare(&mut copy, &Attempt::new(attempt, None));
            copy = repeat.copy(&copy).expect("its own number does not keep it out");
        }
        assert!(HttpRepeat::new().copy(&copy).is_none());
    }

    #[tokio::test]
    async fn r9_bodies_that_are_not_clone_are_copied_where_they_are_empty() {
        type Boxed = BoxBody<Bytes, Infallible>;
        let repeat = HttpRepeat::new().empty_bodies();
        let copy = repeat.copy(&Request::new(Boxed::default())).unwrap();
        assert!(copy.into_body().collect().await.unwrap().to_bytes().is_empty());
        let content = Full::new(Bytes::from_static(b"content"));
        assert!(repeat.copy(&Request::new(content.boxed())).is_none());
        let unknown = repeat.copy(&Request::new(PerhapsEmpty.boxed()));
        assert!(unknown.is_none(), "perhaps empty is not empty");
    }

    #[test]
    fn a_body_that_is_no_longer_what_it_was_is_not_repeated() {
        struct Spent;
        impl CopyBody<&'static str> for Spent {
            fn copy(&self, request: &Request<&'static str>) -> Option<&'static str> {
                Some(request.body())
            }

            fn is_intact(&self, request: &Request<&'static str>) -> bool {
                *request.body() != "body"
            }
        }
        let repeat = HttpRepeat::new().copy_body(Spent);
        assert!(!repeat.may_repeat(&request(Method::GET), &PERHAPS));
        assert!(!repeat.may_repeat(&request(Method::GET), &SURELY_NOT));
        assert!(repeat.may_repeat(&request(Method::GET).map(|_| "other"), &PERHAPS));
    }

    /// Says nothing of its length.
    struct PerhapsEmpty;

    impl Body for PerhapsEmpty {
        type Data = Bytes;
        type Error = Infallible;

        fn poll_frame(
            self: std::pin::Pin<&mut Self>,
            _: &mut std::task::Context<'_>,
        ) -> std::task::Poll<Option<Result<http_body::Frame<Bytes>, Infallible>>> {
            std::task::Poll::Ready(None)
        }
    }
}
