//! gRPC: what a status means, deadlines across hops, and the stack's own answers as statuses.
//!
//! | item | what it is for |
//! |---|---|
//! | [`grpc_server`], [`grpc_client`], [`grpc_retry`] | the ready-made stacks and their retry policy |
//! | [`GrpcVerdicts`] | what a status means, and whether the server wishes to be asked again |
//! | [`GrpcRepeat`] | what may be sent again, and what attempts carry: `grpc-timeout`, `grpc-previous-rpc-attempts` |
//! | [`GrpcRetry`] | the settings of those two on a policy |
//! | [`GrpcStatusLayer`] | finds the status where it comes after the response's head |
//! | [`GrpcStatus`] | that status, in the response's extensions |
//! | [`GrpcAnswer`] | the stack's own decisions as statuses |
//! | [`GrpcMode`], [`GrpcClientMode`] | the queue's answer modes: a call's own deadline from `grpc-timeout` |
//!
//! It knows the protocol and no library: [tonic](https://docs.rs/tonic) fits, and so does anything over
//! `http::Request` and `http::Response`.
//!
//! # In tonic
//!
//! ```
//! # use tower_sluice_http::grpc::grpc_client;
//! # use http::{Request, Response};
//! # type Body = http_body_util::combinators::UnsyncBoxBody<bytes::Bytes, tower_sluice_http::BoxError>;
//! # fn stack<S>(channel: S)
//! # where
//! #     S: tower::Service<Request<Body>, Response = Response<Body>> + Clone,
//! #     S::Error: Into<tower_sluice_http::BoxError>,
//! # {
//! use tower::Layer;
//!
//! // With tonic: `grpc_client(64, tonic::body::Body::new)`.
//! let stack = grpc_client(64, Body::new);
//! // With tonic: `HealthClient::new(stack.layer(channel))`.
//! let service = stack.layer(channel);
//! # }
//! ```
//!
//! On the server `Server::builder().layer(grpc_server(64))` limits all services together. To limit one of them, let
//! tonic's own `LayerExt` keep the service's name: `queue.named_layer(EchoServer::new(..))`.
//!
//! Rejections are answered as statuses, with status code 200 and the status in the head ("trailers-only"). A boxed
//! rejection (`.answer(Boxed)`) breaks the stream on a tonic server, and in a client ends up as `Unknown`.

mod answer;
mod body;
mod future;
mod layer;
mod mode;
mod repeat;
mod retry_info;
mod retry_policy;
mod service;
mod stacks;
mod status;
mod timeout;
mod verdicts;

pub use answer::GrpcAnswer;
pub use body::PeekedBody;
pub use future::ResponseFuture;
pub use layer::GrpcStatusLayer;
pub use mode::{GrpcClientMode, GrpcMode};
pub use repeat::GrpcRepeat;
pub use retry_policy::{GrpcRetry, GrpcRetryPolicy, grpc_retry};
pub use service::WithGrpcStatus;
pub use stacks::{grpc_client, grpc_server, try_grpc_client, try_grpc_server};
pub use status::{GrpcStatus, PushBack};
pub use timeout::{grpc_timeout, grpc_timeout_value};
pub use verdicts::GrpcVerdicts;

/// The numbers of the status codes that this module speaks of.
pub(crate) mod code {
    pub(crate) const OK: i32 = 0;
    pub(crate) const UNKNOWN: i32 = 2;
    pub(crate) const DEADLINE_EXCEEDED: i32 = 4;
    pub(crate) const RESOURCE_EXHAUSTED: i32 = 8;
    pub(crate) const UNIMPLEMENTED: i32 = 12;
    pub(crate) const INTERNAL: i32 = 13;
    pub(crate) const UNAVAILABLE: i32 = 14;
    pub(crate) const DATA_LOSS: i32 = 15;
}
