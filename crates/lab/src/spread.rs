//! How far the retries of calls that failed in the same instant are spread, in virtual time.

use crate::chart::{Chart, Scale};
use crate::report::{Bar, Report, Row, Table, number};
use crate::service::{Fail, Inner, paused};
use crate::stats;
use std::future::{Ready, ready};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::time::{Instant, Sleep};
use tower::retry::backoff::{Backoff as _, ExponentialBackoff, ExponentialBackoffMaker, MakeBackoff};
use tower::retry::{Policy, Retry, RetryLayer};
use tower::util::rng::HasherRng;
use tower::{Layer, Service, ServiceExt, service_fn};
use tower_resilience::retry::ExponentialRandomBackoff;
use tower_sluice::backoff::Backoff;
use tower_sluice::queue::QueueLayer;
use tower_sluice::retry::RetryPolicy;
use tower_sluice::verdict::{FailureKind, Verdict};

/// Calls that fail at the same instant.
const CALLS: u64 = 2_000;
const BASE: Duration = Duration::from_secs(1);
const CAP: Duration = Duration::from_secs(30);
/// Of the policies of ours: every run gives the same delays.
const SEED: u64 = 7;
/// The width of the window that is looked at, in milliseconds: tokio's timers have a tick of one.
const WINDOW: u64 = 10;
/// The retry that is the first to be drawn on the cap: 1, 2, 4, 8, 16 seconds come before it.
const AT_CAP: usize = 6;

/// What the upstream does: fails each call so many times, at once, and writes down when it was asked.
#[derive(Clone)]
struct Upstream {
    failures: usize,
    asked: Arc<Mutex<Vec<Vec<Instant>>>>,
}

impl Upstream {
    fn new(failures: usize) -> Self {
        Self { failures, asked: Arc::new(Mutex::new(vec![Vec::new(); CALLS as usize])) }
    }

    fn service(self) -> impl Inner<Future = Ready<Result<u64, Fail>>> {
        service_fn(move |call: u64| {
            let mut asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
            let times = &mut asked[call as usize];
            times.push(Instant::now());
            ready(if times.len() > self.failures { Ok(call) } else { Err(Fail) })
        })
    }

    /// How long after its failure each call came back for the `retry`-th time, from 1.
    fn delays(&self, retry: usize) -> Vec<Duration> {
        let asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        let delays: Vec<_> =
            asked.iter().filter_map(|times| Some(*times.get(retry)? - times[retry - 1])).collect();
        assert_eq!(delays.len(), CALLS as usize, "a call was not retried");
        delays
    }
}

/// Makes all calls at once through what `stack` builds; the delays of the last retry.
fn spread<S>(failures: usize, stack: impl FnOnce(Upstream) -> S) -> Vec<Duration>
where
    S: Service<u64, Response = u64, Future: Send + 'static, Error: Send + 'static> + Clone + Send + 'static,
{
    paused().block_on(async {
        let upstream = Upstream::new(failures);
        let service = stack(upstream.clone());
        let calls: Vec<_> = (0..CALLS).map(|call| tokio::spawn(service.clone().oneshot(call))).collect();
        for call in calls {
            assert!(call.await.is_ok_and(|answer| answer.is_ok()), "a call was given up");
        }
        upstream.delays(failures)
    })
}

fn policy() -> RetryPolicy {
    RetryPolicy::new(8, Backoff::exponential(BASE, CAP)).seed(SEED)
}

/// Every failure is a 429 with `Retry-After: 1`.
fn told_one_second(result: &Result<u64, Fail>) -> Verdict {
    match result {
        Ok(_) => Verdict::Success,
        Err(Fail) => Verdict::retry(FailureKind::Throttled).after(Some(Duration::from_secs(1))),
    }
}

fn in_queue(failures: usize) -> Vec<Duration> {
    spread(failures, |upstream| queue().retry(policy()).layer(upstream.service()))
}

/// Without a limit: what comes back at once starts at once.
fn queue() -> QueueLayer {
    QueueLayer::unlimited().max_waiting(CALLS as usize).seed(SEED)
}

fn in_tower(failures: usize) -> Vec<Duration> {
    spread(failures, |upstream| RetryLayer::new(policy()).layer(upstream.service()))
}

/// tower's backoff in a policy of the shape that its documentation shows.
#[derive(Clone)]
struct TowerPolicy {
    backoff: ExponentialBackoff<HasherRng>,
}

impl<Req: Clone, Res, E> Policy<Req, Res, E> for TowerPolicy {
    type Future = Sleep;

    fn retry(&mut self, _: &mut Req, result: &mut Result<Res, E>) -> Option<Sleep> {
        result.is_err().then(|| self.backoff.next_backoff())
    }

    fn clone_request(&mut self, request: &Req) -> Option<Req> {
        Some(request.clone())
    }
}

fn tower(failures: usize) -> Vec<Duration> {
    spread(failures, |upstream| {
        let maker = ExponentialBackoffMaker::new(BASE, CAP, 1.0, HasherRng::default());
        let backoff = maker.expect("the bounds are in order").make_backoff();
        Retry::new(TowerPolicy { backoff }, upstream.service())
    })
}

fn resilient(failures: usize) -> Vec<Duration> {
    spread(failures, |upstream| {
        let backoff =
            ExponentialRandomBackoff::new(BASE, 0.5).expect("a half is a fraction").max_interval(CAP);
        let retry =
            tower_resilience::retry::RetryLayer::<u64, u64, Fail>::builder().max_attempts(8).backoff(backoff);
        retry.build().layer(upstream.service())
    })
}

fn millis(delays: &[Duration]) -> Vec<u64> {
    delays.iter().map(|delay| delay.as_millis() as u64).collect()
}

fn densest(delays: &[Duration]) -> f64 {
    stats::densest(&millis(delays), WINDOW) as f64
}

/// Runs the experiment.
pub fn run() -> Report {
    let mut report = Report::new("spread", "How retries are spread");
    report.about(format!(
        "{CALLS} calls of one process fail at the same instant; full jitter from 1 s to 30 s. The figure is the largest \
         number that come back within any {WINDOW} consecutive milliseconds of tokio's paused clock. The peer is \
         tower's `ExponentialBackoff` with a jitter of 1, in a policy as its documentation shows: its random source is \
         cloned for each call, not derived."
    ));
    let unit = "most calls in any 10 ms";
    let (tower_first, tower_cap) = (tower(1), tower(AT_CAP));
    let (ours_first, ours_cap) = (in_queue(1), in_queue(AT_CAP));
    let told_policy = || policy().classify(told_one_second);
    let told = spread(1, |upstream| queue().retry(told_policy()).layer(upstream.service()));
    let told_in_tower = spread(1, |upstream| RetryLayer::new(told_policy()).layer(upstream.service()));
    for (place, first, cap, told) in [
        ("in the queue", &ours_first, &ours_cap, &told),
        ("in tower's RetryLayer", &in_tower(1), &in_tower(AT_CAP), &told_in_tower),
    ] {
        let row =
            Row::new(format!("first delays, {place}"), unit, densest(first)).peer(densest(&tower_first));
        report.row(row.bar(Bar::AtMost(50.0)));
        let row = Row::new(format!("delays at a cap of 30 s, {place}"), unit, densest(cap))
            .peer(densest(&tower_cap));
        report.row(row.bar(Bar::AtMost(12.0)));
        let row = Row::new(format!("after Retry-After: 1 told to all, {place}"), unit, densest(told));
        report.row(row.bar(Bar::AtMost(75.0)));
        let early = told.iter().filter(|delay| **delay < Duration::from_secs(1)).count();
        let row = Row::new(format!("retries that came early, {place}"), "calls", early as f64);
        report.row(row.bar(Bar::Exactly(0.0)));
    }

    let mut table =
        Table::new("Milliseconds after the failure:", ["case", "earliest", "median", "latest", unit]);
    let (resilient_first, resilient_cap) = (resilient(1), resilient(AT_CAP));
    for (case, delays) in [
        ("ours, first delays", &ours_first),
        ("ours, at the cap", &ours_cap),
        ("ours, Retry-After: 1", &told),
        ("tower ExponentialBackoff, first delays", &tower_first),
        ("tower ExponentialBackoff, at the cap", &tower_cap),
        ("tower-resilience ExponentialRandomBackoff, first delays", &resilient_first),
        ("tower-resilience ExponentialRandomBackoff, at the cap", &resilient_cap),
    ] {
        let ms: Vec<f64> = millis(delays).into_iter().map(|ms| ms as f64).collect();
        let at = |q| number(stats::quantile(&ms, q).round());
        table.line([case.into(), at(0.0), at(0.5), at(1.0), number(densest(delays))]);
    }
    report.table(table);

    let mut chart = Chart::new(
        "spread.svg",
        "Calls that have come back after all failed at once",
        ("ms after the failure", Scale::Linear),
        ("calls", Scale::Linear),
    );
    for (name, delays) in
        [("ours, full jitter", &ours_first), ("tower", &tower_first), ("tower-resilience", &resilient_first)]
    {
        let mut ms = millis(delays);
        ms.sort_unstable();
        let steps = (0..=160).map(|step| {
            let at = step * 10;
            (at as f64, ms.partition_point(|ms| *ms <= at) as f64)
        });
        chart.series(name, steps.collect::<Vec<_>>());
    }
    report.chart(chart);
    report
}
