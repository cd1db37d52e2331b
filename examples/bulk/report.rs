//! What came of it: a line a call for machines, and at the end a table for people or one JSON object.

use std::collections::BTreeMap;
use std::error::Error;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::time::Duration;

use http::StatusCode;
use serde::Serialize;
use tower_sluice_http::BoxError;
use tower_sluice_http::reject::Rejection;

use crate::fetch::Call;

/// How many kinds of failure the table lists.
const REASONS_LISTED: usize = 8;

/// The last line of `--json`.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Summary {
    pub(crate) calls: usize,
    pub(crate) succeeded: usize,
    pub(crate) failed: usize,
    pub(crate) cleared: usize,
    pub(crate) attempts: u64,
    pub(crate) retries: u64,
    /// Attempts at once, for each host.
    pub(crate) limit: usize,
    /// The most attempts that ran at once on any one host.
    pub(crate) peak_running: usize,
    pub(crate) peak_seen_by_upstream: Option<usize>,
    pub(crate) max_deferred: usize,
    pub(crate) elapsed_ms: u64,
    pub(crate) early_returns: Option<usize>,
}

/// One line of `--output`.
#[derive(Serialize)]
struct Line<'a> {
    url: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<&'a str>,
    attempts: u32,
    elapsed_ms: f64,
}

/// Gathers results as they come.
pub(crate) struct Report {
    output: Option<BufWriter<File>>,
    pub(crate) succeeded: usize,
    pub(crate) failed: usize,
    pub(crate) cleared: usize,
    reasons: BTreeMap<String, usize>,
}

impl Report {
    pub(crate) fn new(output: Option<BufWriter<File>>) -> Self {
        Self { output, succeeded: 0, failed: 0, cleared: 0, reasons: BTreeMap::new() }
    }

    pub(crate) fn done(&self) -> usize {
        self.succeeded + self.failed + self.cleared
    }

    /// Notes what came of `call`.
    pub(crate) fn record(&mut self, call: &Call, result: Result<StatusCode, BoxError>) -> io::Result<()> {
        let url = call.url.to_string();
        let (status, error) = match &result {
            Ok(status) => (Some(status.as_u16()), None),
            Err(error) => (None, Some(chain(&**error))),
        };
        match &result {
            Ok(status) if status.as_u16() < 400 => self.succeeded += 1,
            Ok(status) => self.fail(status.to_string()),
            Err(e) => match Rejection::find(&**e) {
                Some(Rejection::Cleared { .. } | Rejection::Closed) => self.cleared += 1,
                // Its text tells times, which differ from call to call.
                Some(rejection) => self.fail(rejection.as_str().replace('_', " ")),
                None => self.fail(error.clone().unwrap_or_default()),
            },
        }
        let Some(output) = &mut self.output else { return Ok(()) };
        let line = Line {
            url: &url,
            status,
            error: error.as_deref(),
            attempts: call.attempts(),
            elapsed_ms: call.elapsed().as_micros() as f64 / 1e3,
        };
        serde_json::to_writer(&mut *output, &line)?;
        output.write_all(b"\n")
    }

    fn fail(&mut self, reason: String) {
        self.failed += 1;
        *self.reasons.entry(reason).or_default() += 1;
    }

    /// Counts calls that were given up while they ran, or never begun.
    pub(crate) fn leave(&mut self, calls: usize) {
        self.cleared += calls;
    }

    pub(crate) fn flush(&mut self) -> io::Result<()> {
        self.output.as_mut().map_or(Ok(()), BufWriter::flush)
    }

    /// For people.
    pub(crate) fn table(&self, summary: &Summary) -> String {
        let upstream = |figure: Option<usize>| figure.map_or("unknown".into(), |n| n.to_string());
        let rate = (summary.succeeded + summary.failed) as f64 / (summary.elapsed_ms.max(1) as f64 / 1e3);
        let elapsed = Duration::from_millis(summary.elapsed_ms);
        let rows = [
            ("calls", summary.calls.to_string()),
            ("succeeded", summary.succeeded.to_string()),
            ("failed", summary.failed.to_string()),
            ("not done", summary.cleared.to_string()),
            ("attempts", format!("{}, of which {} retries", summary.attempts, summary.retries)),
            ("at once", format!("{} of {} for each host", summary.peak_running, summary.limit)),
            ("at once, upstream", upstream(summary.peak_seen_by_upstream)),
            ("asleep at once", summary.max_deferred.to_string()),
            ("back too early", upstream(summary.early_returns)),
            ("took", format!("{elapsed:.1?}, {rate:.0} calls a second")),
        ];
        let mut text = String::new();
        for (name, value) in rows {
            text.push_str(&format!("{name:<18} {value}\n"));
        }
        let mut reasons: Vec<_> = self.reasons.iter().collect();
        reasons.sort_by_key(|(_, count)| std::cmp::Reverse(**count));
        for (reason, count) in reasons.into_iter().take(REASONS_LISTED) {
            text.push_str(&format!("  {count} failed: {reason}\n"));
        }
        text
    }
}

/// The error and what it came from; a source that its error has already quoted is not said twice.
fn chain(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        let next = error.to_string();
        if !text.ends_with(&next) {
            text = format!("{text}: {next}");
        }
        source = error.source();
    }
    text
}
