//! The stack: one queue a host, all under one control, each driving its own batch.

use std::collections::BTreeMap;
use std::time::Duration;

use futures_util::future::join_all;
use futures_util::stream::{BoxStream, SelectAll, StreamExt};
use http::StatusCode;
use tower::Layer;
use tower_sluice_http::backoff::Backoff;
use tower_sluice_http::queue::{Handle, QueueLayer, batch};
use tower_sluice_http::reject::Boxed;
use tower_sluice_http::{BoxError, HttpMode, HttpRetryPolicy, try_http_batch};

use crate::fetch::{self, Call, HttpClient};
use crate::gauge::Gauge;
use crate::options::Options;
use crate::progress::Moment;

/// Results of all hosts, in the order in which they come.
pub(crate) type Results = SelectAll<BoxStream<'static, (Call, Result<StatusCode, BoxError>)>>;

/// The queue of one host.
fn queue(host: &str, options: &Options) -> Result<QueueLayer<HttpRetryPolicy, HttpMode<Boxed>>, String> {
    let backoff = Backoff::try_exponential(options.base, options.max_delay)
        .map_err(|e| format!("--base, --max-delay: {e}"))?;
    let mut queue = try_http_batch(options.concurrency)
        .map_err(|e| format!("--concurrency: {e}"))?
        .name(host)
        .call_timeout(options.call_timeout.unwrap_or(Duration::MAX))
        .map_retry(|policy| policy.max_attempts(options.max_attempts).backoff(backoff));
    if let Some(rate) = options.rate {
        queue = queue.try_rate(rate.starts, rate.per).map_err(|e| format!("--rate: {e}"))?;
    }
    if let Some(seed) = options.seed {
        queue = queue.seed(seed);
    }
    Ok(queue)
}

/// Whether the options make a queue.
pub(crate) fn check(options: &Options) -> Result<(), String> {
    queue("", options).map(drop)
}

/// Queues for `calls`, by host, and the results of working through them, which starts when they are polled.
pub(crate) fn build(
    calls: Vec<Call>,
    client: &HttpClient,
    options: &Options,
) -> Result<(Control, Results), String> {
    let mut by_host: BTreeMap<String, Vec<Call>> = BTreeMap::new();
    for call in calls {
        by_host.entry(host(&call)).or_default().push(call);
    }
    let mut control = Control::default();
    let mut results = Results::new();
    for (host, calls) in by_host {
        let queue = queue(&host, options)?;
        let running = Gauge::default();
        control.queues.push((queue.handle(), running.clone()));
        let service = queue.layer(fetch::service(client.clone(), running));
        let batch = batch::run(service, calls, Call::request);
        results.push(batch.map(|(call, result)| (call, result.map(|response| response.status()))).boxed());
    }
    Ok((control, results))
}

/// Scheme, name and port: where connections go, and what a limit belongs to.
fn host(call: &Call) -> String {
    let scheme = call.url.scheme_str().unwrap_or_default();
    let authority = call.url.authority().map(|a| a.as_str()).unwrap_or_default();
    format!("{scheme}://{}", authority.to_ascii_lowercase())
}

/// All queues as one.
#[derive(Clone, Debug, Default)]
pub(crate) struct Control {
    queues: Vec<(Handle, Gauge)>,
}

impl Control {
    fn handles(&self) -> impl Iterator<Item = &Handle> {
        self.queues.iter().map(|(handle, _)| handle)
    }

    pub(crate) fn is_paused(&self) -> bool {
        self.handles().all(Handle::is_paused)
    }

    /// Pauses all queues, or resumes all.
    pub(crate) fn toggle(&self) {
        let act = if self.is_paused() { Handle::resume } else { Handle::pause };
        self.handles().for_each(act);
    }

    /// Takes nothing new on, and lets what was taken on finish for as long as `grace`. Returns how many attempts
    /// still run then.
    pub(crate) async fn drain(self, grace: Duration) -> usize {
        let drained = join_all(self.handles().map(|handle| handle.drain(grace))).await;
        drained.iter().map(|drained| drained.still_running).sum()
    }

    /// Settles everything that waits. Returns how many calls that were.
    pub(crate) fn clear(&self, reason: &str) -> usize {
        self.handles().map(|handle| handle.clear(reason)).sum()
    }

    /// What all queues do at this moment.
    pub(crate) fn moment(&self) -> Moment {
        let mut moment = Moment { paused: self.is_paused(), ..Moment::default() };
        for stats in self.handles().map(Handle::stats) {
            moment.queued += stats.queued;
            moment.running += stats.running;
            moment.deferred += stats.deferred;
            moment.retried += stats.retries;
            moment.held |= stats.held_until.is_some();
        }
        moment
    }

    /// Attempts begun, and how many of them were retries.
    pub(crate) fn attempts(&self) -> (u64, u64) {
        let both = self.handles().map(Handle::stats).map(|stats| (stats.attempts, stats.retries));
        both.fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1))
    }

    /// The most attempts that ran at once on any one host.
    pub(crate) fn peak_running(&self) -> usize {
        self.queues.iter().map(|(_, running)| running.peak()).max().unwrap_or(0)
    }
}
