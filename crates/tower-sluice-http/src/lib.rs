#![doc = include_str!("../README.md")]
//!
//! ## Where things are
//!
//! [`guide`] has a page for each user: axum, tonic, clients, batch jobs, testing, and whoever comes from tower's own layers.
//!
//! | item | what it is for |
//! |---|---|
//! | [`http_server`], [`http_client`], [`http_batch`], [`http_retry`] | the ready-made stacks and their retry policy |
//! | [`HttpVerdicts`] | what a response or a client's error means: a table whose rows can be replaced |
//! | [`client_error_verdict`] | the same for errors alone: was the request surely not processed, or perhaps? |
//! | [`retry_after`] | the `Retry-After` header, read strictly |
//! | [`HttpRepeat`] | which requests may be sent again, and what attempts carry: keys, [`AttemptNumber`] |
//! | [`HttpRetry`] | the settings of those two on a policy |
//! | [`replay`] | bodies that can be sent again |
//! | [`HttpAnswer`] | the stack's own decisions as responses: 503, 429, 504 |
//! | [`HoldSlots`] | slots that last until the response body has ended |
//! | [`DeadlineHeader`], [`deadline`] | deadlines across hops, by a header |
//! | [`HttpMode`] | lets a request bring its own [`CallOptions`](queue::CallOptions) |
//! | [`http_measure`] | counts how attempts end, for a ladder |
//! | [`level_layer`], [`Level`] | the level that holds, in a request's extensions and for axum's handlers |
//! | [`attempts`] | how many attempts a response took |

mod answer;
mod client_error;
mod config;
mod hold;
mod level;
mod measure;
mod mode;
mod repeat;
#[cfg(feature = "reqwest")]
mod reqwest_client;
mod retry_after;
mod retry_policy;
mod stacks;
mod verdicts;

pub mod deadline;
#[cfg(feature = "grpc")]
pub mod grpc;
#[cfg(doc)]
pub mod guide;
pub mod replay;

pub use tower_sluice::*;

pub use crate::answer::HttpAnswer;
pub use crate::client_error::client_error_verdict;
pub use crate::deadline::{Deadline, DeadlineHeader};
pub use crate::hold::{HeldBody, HoldSlots, HoldUntilBodyEnd};
#[cfg(feature = "axum")]
pub use crate::level::NoLevel;
pub use crate::level::{HttpLevelFuture, HttpLevelLayer, HttpTellLevel, Level, level_layer};
pub use crate::measure::http_measure;
pub use crate::mode::HttpMode;
pub use crate::repeat::{AttemptNumber, CloneBody, CopyBody, EmptyBody, HttpRepeat};
#[cfg(feature = "reqwest")]
pub use crate::reqwest_client::{ReqwestClient, ReqwestFuture};
pub use crate::retry_after::retry_after;
pub use crate::retry_policy::{HttpRetry, HttpRetryPolicy, http_retry};
pub use crate::stacks::{
    http_batch, http_client, http_server, try_http_batch, try_http_client, try_http_server,
};
pub use crate::verdicts::{HttpVerdicts, StatusRow, attempts};

/// The code blocks of the repository's README, compiled with the tests.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct RepositoryReadme;
