use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Request, Response, StatusCode};
use http_body_util::Full;

use super::handle::Script;
use super::service::Scripted;
use super::step::Step;

/// What [`Script::http`] can answer with.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not an HTTP answer",
    note = "a status (`503`, `StatusCode`), or an `http::Response` whose body is `Into<Bytes>` (see `reply`)"
)]
pub trait IntoReply {
    /// The response, its body whole.
    fn into_reply(self) -> Response<Bytes>;
}

/// A status and an empty body.
///
/// # Panics
/// If the number is not from 100 to 999.
impl IntoReply for u16 {
    fn into_reply(self) -> Response<Bytes> {
        reply(self, &[], "")
    }
}

/// A status and an empty body.
impl IntoReply for StatusCode {
    fn into_reply(self) -> Response<Bytes> {
        reply(self.as_u16(), &[], "")
    }
}

impl<T: Into<Bytes>> IntoReply for Response<T> {
    fn into_reply(self) -> Response<Bytes> {
        self.map(Into::into)
    }
}

/// A response with these headers and this body.
///
/// ```
/// use tower_sluice_test::script::{Script, reply};
///
/// let script = Script::new().answer(reply(429, &[("retry-after", "1")], "slow down")).answer(reply(200, &[], "ok"));
/// # let _: tower_sluice_test::script::Scripted<http::Request<()>, _, _, _> = script.http();
/// ```
///
/// # Panics
/// If the status is not from 100 to 999, or a header is not one.
pub fn reply(status: u16, headers: &[(&str, &str)], body: impl Into<Bytes>) -> Response<Bytes> {
    let mut reply = Response::new(body.into());
    *reply.status_mut() = match StatusCode::from_u16(status) {
        Ok(status) => status,
        Err(_) => panic!("status is {status}, but must be from 100 to 999"),
    };
    for (name, value) in headers {
        match (HeaderName::try_from(*name), HeaderValue::try_from(*value)) {
            (Ok(name), Ok(value)) => reply.headers_mut().append(name, value),
            _ => panic!("{name:?}: {value:?} is not a header"),
        };
    }
    reply
}

/// The HTTP services that follow the script.
impl<A: IntoReply, E> Script<A, E> {
    /// An HTTP service for requests with any body, which it drops in `call`, unread.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() {
    /// use tower::ServiceExt;
    /// use tower_sluice_test::Script;
    ///
    /// let script = Script::new().answer(503).answer(200);
    /// let response = script.http().oneshot(http::Request::new("body")).await.unwrap();
    /// assert_eq!(response.status(), 503);
    /// # }
    /// ```
    ///
    /// # Panics
    /// `call` panics without readiness, or if the script has no step; an attempt panics if its status is not from
    /// 100 to 999.
    pub fn http<B>(&self) -> Scripted<Request<B>, A, E, Response<Full<Bytes>>> {
        Scripted::new(self.shared.clone(), None, finish)
    }

    /// An HTTP service that takes its steps from `choose`, as [`service_by`](Self::service_by) does.
    pub fn http_by<B>(
        &self,
        choose: impl Fn(&Request<B>, usize) -> Step<A, E> + Send + Sync + 'static,
    ) -> Scripted<Request<B>, A, E, Response<Full<Bytes>>> {
        Scripted::new(self.shared.clone(), Some(Arc::new(choose)), finish)
    }
}

fn finish<A: IntoReply>(answer: A) -> Response<Full<Bytes>> {
    answer.into_reply().map(Full::new)
}
