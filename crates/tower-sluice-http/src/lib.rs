//! HTTP and gRPC meaning for [`tower_sluice`], and all of [`tower_sluice`] with it: users of HTTP add this crate alone.
//!
//! | item | what it is for |
//! |---|---|
//! | [`HttpVerdicts`] | what a response or a client's error means: a table whose rows can be replaced |
//! | [`client_error_verdict`] | the same for errors alone: was the request surely not processed, or perhaps? |
//! | [`retry_after`] | the `Retry-After` header, read strictly |
//! | [`HttpRepeat`] | which requests may be sent again; idempotency keys; [`AttemptNumber`] |
//! | [`replay`] | bodies that can be sent again |
//! | [`HttpAnswer`] | the stack's own decisions as responses: 503, 429, 504 |
//! | [`attempts`] | how many attempts a response took |

mod answer;
mod client_error;
mod config;
mod repeat;
mod retry_after;
mod retry_policy;
mod verdicts;

pub mod replay;

pub use tower_sluice::*;

pub use crate::answer::HttpAnswer;
pub use crate::client_error::client_error_verdict;
pub use crate::repeat::{AttemptNumber, CloneBody, CopyBody, EmptyBody, HttpRepeat};
pub use crate::retry_after::retry_after;
pub use crate::retry_policy::{HttpRetry, HttpRetryPolicy, http_retry};
pub use crate::verdicts::{HttpVerdicts, StatusRow, attempts};
