//! Guides: for each user the stack, how to open it, and what it does when things go wrong.
//!
//! | page | for |
//! |---|---|
//! | [`axum_server`] | authors of axum servers |
#![cfg_attr(feature = "grpc", doc = "| [`tonic`] | authors of tonic servers and clients |")]
#![cfg_attr(
    not(feature = "grpc"),
    doc = "| `tonic`, with the feature `grpc` | authors of tonic servers and clients |"
)]
//! | [`http_client`] | authors of clients around hyper or reqwest |
//! | [`batch_job`] | authors of jobs with many calls |
//! | [`waits_and_answers`] | whoever sets a timeout, or reads what a rejection looks like on the wire |
//! | [`testing`] | whoever tests a stack of their own |
//! | [`coming_from`] | users of tower's Retry, ConcurrencyLimit, LoadShed, Timeout, and of tower-resilience |

#[doc = include_str!("axum_server.md")]
pub mod axum_server {}

#[cfg(feature = "grpc")]
#[doc = include_str!("tonic.md")]
pub mod tonic {}

#[doc = include_str!("http_client.md")]
pub mod http_client {}

#[doc = include_str!("batch_job.md")]
pub mod batch_job {}

#[doc = include_str!("waits_and_answers.md")]
pub mod waits_and_answers {}

#[doc = include_str!("testing.md")]
pub mod testing {}

#[doc = include_str!("coming_from.md")]
pub mod coming_from {}
