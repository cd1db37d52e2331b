//! Deadlines across hops, by a header of HTTP requests.
//!
//! A caller that has given up does not need its answer, and neither does whoever works for it further down. With
//! [`deadline_header`](DeadlineHeader::deadline_header) a queue obeys the time that a request says it has left, and
//! tells the next hop what is left of it:
//!
//! ```text
//!  client ── request-timeout-ms: 2000 ──▶ server ── 0.3 s in line and in the handler ──▶ client of the next hop
//!                                         obeys 2 s                                      │ request-timeout-ms: 1700
//!                                                                                        ▼ obeyed there
//! ```
//!
//! | where | what is read | what is told |
//! |---|---|---|
//! | a server's queue | the header: how long the caller waits from now on | to the handler: [`Deadline`], in the request's extensions, and in the header what is left as the handler starts |
//! | a client's queue | the header, and [`Deadline`], if the request brings them | to the server: in the header what is left as the attempt starts |
//!
//! The call ends by the earliest of these and the layer's own call timeout: a deadline from elsewhere only shortens. A
//! timeout in the request's [`CallOptions`](crate::queue::CallOptions) replaces them all, longer or shorter.
//!
//! The header is a duration and not a point in time, since two machines' clocks differ by more than a deadline: whole
//! milliseconds, digits only, as in Envoy's `x-envoy-expected-rq-timeout-ms`. Anything else is absent. gRPC has a header
//! of its own, which [`grpc`](../grpc/index.html)'s stacks read and write.
//!
//! # A server that asks another
//!
//! ```
//! use axum::{Extension, Router, extract::State, http::StatusCode, routing::get};
//! use bytes::Bytes;
//! use http::Request;
//! use http_body_util::Empty;
//! use hyper_util::client::legacy::{Client, connect::HttpConnector};
//! use hyper_util::rt::TokioExecutor;
//! use tower::util::BoxCloneSyncService;
//! use tower::{Layer, ServiceExt};
//! use tower_sluice_http::{BoxError, Deadline, DeadlineHeader, http_client, http_server};
//!
//! type Stock = BoxCloneSyncService<Request<Empty<Bytes>>, http::Response<hyper::body::Incoming>, BoxError>;
//!
//! async fn page(State(stock): State<Stock>, Extension(deadline): Extension<Deadline>) -> StatusCode {
//!     let mut request = Request::get("http://stock.example/7").body(Empty::new()).unwrap();
//!     request.extensions_mut().insert(deadline); // obeyed, and told to the next hop less what was used
//!     stock.oneshot(request).await.map_or(StatusCode::BAD_GATEWAY, |response| response.status())
//! }
//!
//! let client = Client::builder(TokioExecutor::new()).build_http::<Empty<Bytes>>();
//! let stock = Stock::new(http_client(16).deadline_header("request-timeout-ms").layer(client));
//! let app: Router = Router::new()
//!     .route("/", get(page))
//!     .layer(http_server(64).deadline_header("request-timeout-ms"))
//!     .with_state(stock);
//! # let _ = app;
//! ```

mod extension;
mod header;
mod mode;
mod repeat;
mod setting;

pub use extension::Deadline;
pub use mode::DeadlineFromHeader;
pub use repeat::TellDeadline;
pub use setting::DeadlineHeader;
