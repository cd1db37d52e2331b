//! What a call costs that waits: instructions, bytes, time, and how these grow.

use crate::chart::{Chart, Scale};
use crate::count::{self, Case};
use crate::floor::Floor;
use crate::gate::{self, gated};
use crate::peers::{self, Stack};
use crate::report::{Bar, Report, Row, Table, number};
use crate::service::{Built, Fail, current_thread, failing};
use crate::{alloc, clock, ours, stats};
use pin_project_lite::pin_project;
use std::collections::HashMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::runtime::Runtime;
use tokio::sync::{Notify, Semaphore};
use tokio::task::{JoinHandle, unconstrained, yield_now};
use tower::retry::{Policy, Retry};
use tower::{Layer, ServiceExt};
use tower_sluice::backoff::Backoff;
use tower_sluice::retry::RetryPolicy;

/// Attempts that run at once.
const LIMIT: usize = 16;
/// N of callgrind's N against 2 N.
const COUNTED: u64 = 10_000;
/// Calls that are weighed: a power of two, so that blocks which grow by doubling are exactly full.
const WEIGHED: u64 = 16_384;

static STARTED: AtomicU64 = AtomicU64::new(0);
static LEFT: AtomicU64 = AtomicU64::new(0);
static DONE: Notify = Notify::const_new();

/// A contender: how it is run with so many calls.
struct Contender {
    id: &'static str,
    /// Nanoseconds a call of one run of this many.
    time: fn(&Runtime, u64) -> f64,
    /// Weighs this many waiting calls.
    weigh: fn(&Runtime, u64) -> Weight,
    /// The same run, to be counted.
    build: fn() -> Built,
}

/// One waiting call: its future, what it owns on the heap, how many allocations that took.
#[derive(Clone, Copy, Debug)]
struct Weight {
    future: f64,
    heap: f64,
    allocations: f64,
}

impl Weight {
    fn bytes(self) -> f64 {
        self.future + self.heap
    }
}

macro_rules! contenders {
    ($($id:expr => $service:expr;)*) => {
        vec![$(Contender {
            id: $id,
            time: |runtime, calls| {
                let service = $service;
                time(runtime, calls, move |value| service.clone().oneshot(value))
            },
            weigh: |runtime, calls| {
                let service = $service;
                weigh(runtime, calls, move |value| service.clone().oneshot(value))
            },
            build: || Built::driven(|runtime, calls| {
                let service = $service;
                time(runtime, calls, move |value| service.clone().oneshot(value));
            }),
        }),*]
    };
}

fn contenders() -> Vec<Contender> {
    contenders! {
        TASK => gated();
        "hand-written floor" => Floor::new(gated(), LIMIT);
        "tokio Semaphore" => semaphore();
        QUEUE => ours::queue(LIMIT).layer(gated());
        RETRYING => ours::retrying(LIMIT).layer(gated());
        WHOLE => ours::whole(LIMIT).layer(gated());
        LIMIT_ALONE => peers::limit(gated(), LIMIT);
        TOWER_RETRYING => peers::retry_limit(gated(), LIMIT);
        TOWER_WHOLE => peers::timeout_retry_limit(gated(), LIMIT);
        BULKHEAD => peers::bulkhead(LIMIT).layer(gated());
        "tower-resilience TimeLimiter > Retry > Bulkhead" => peers::resilient_stack(gated(), LIMIT);
    }
}

/// The names of the rows that others are compared with.
const TASK: &str = "no limit (the task alone)";
const QUEUE: &str = "queue";
const RETRYING: &str = "queue + retry + budget";
const WHOLE: &str = "queue + retry + budget + call timeout";
const LIMIT_ALONE: &str = "tower ConcurrencyLimit";
const BULKHEAD: &str = "tower-resilience Bulkhead";
const TOWER_RETRYING: &str = "tower Retry > ConcurrencyLimit";
const TOWER_WHOLE: &str = "tower Timeout > Retry > ConcurrencyLimit";

/// tokio's semaphore, used by hand.
fn semaphore() -> impl Stack {
    let semaphore = Arc::new(Semaphore::new(LIMIT));
    tower::service_fn(move |value: u64| {
        let semaphore = Arc::clone(&semaphore);
        async move {
            let _permit = semaphore.acquire_owned().await.map_err(|_| Fail)?;
            gated().oneshot(value).await
        }
    })
}

/// What callgrind runs.
pub fn cases() -> Vec<Case> {
    contenders().into_iter().map(|contender| Case { id: contender.id, build: contender.build }).collect()
}

pin_project! {
    /// Counts first polls and ends.
    struct Tracked<F> {
        #[pin]
        future: F,
        started: bool,
    }
}

impl<F: Future<Output = Result<u64, E>>, E> Future for Tracked<F> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = self.project();
        let first = !std::mem::replace(this.started, true);
        let answer = this.future.poll(cx);
        if first {
            STARTED.fetch_add(1, SeqCst);
        }
        match answer {
            Poll::Pending => Poll::Pending,
            Poll::Ready(answer) => {
                assert!(answer.is_ok(), "a queued call failed");
                if LEFT.fetch_sub(1, SeqCst) == 1 {
                    DONE.notify_one();
                }
                Poll::Ready(())
            }
        }
    }
}

/// One task a call, all queued behind a shut gate.
async fn enqueue<F, Fut, E>(calls: u64, make: &F) -> Vec<JoinHandle<()>>
where
    F: Fn(u64) -> Fut,
    Fut: Future<Output = Result<u64, E>> + Send + 'static,
    E: 'static,
{
    STARTED.store(0, SeqCst);
    gate::shut();
    let mut tasks = Vec::with_capacity(calls as usize);
    for value in 0..calls {
        tasks.push(tokio::spawn(Tracked { future: make(value), started: false }));
        if value % 32 == 31 {
            // Keeps the run queue short.
            yield_now().await;
        }
    }
    while STARTED.load(SeqCst) < calls {
        yield_now().await;
    }
    tasks
}

/// Nanoseconds for each of so many calls, until all wait and then until all are done.
fn time<F, Fut, E>(runtime: &Runtime, calls: u64, make: F) -> f64
where
    F: Fn(u64) -> Fut,
    Fut: Future<Output = Result<u64, E>> + Send + 'static,
    E: 'static,
{
    LEFT.store(calls, SeqCst);
    runtime.block_on(async {
        let begun = clock::cpu();
        let tasks = enqueue(calls, &make).await;
        gate::open();
        DONE.notified().await;
        let took = clock::cpu() - begun;
        drop(tasks);
        took.as_nanos() as f64 / calls as f64
    })
}

/// Nanoseconds for each of so many queued calls that are aborted in shuffled order.
fn abandon<F, Fut, E>(runtime: &Runtime, calls: u64, make: F) -> f64
where
    F: Fn(u64) -> Fut,
    Fut: Future<Output = Result<u64, E>> + Send + 'static,
    E: 'static,
{
    LEFT.store(u64::MAX, SeqCst);
    runtime.block_on(async {
        let mut tasks = enqueue(calls, &make).await;
        for last in (1..tasks.len()).rev() {
            tasks.swap(last, (stats::hash(&[last as u64]) % (last as u64 + 1)) as usize);
        }
        let begun = clock::cpu();
        for task in &tasks {
            task.abort();
        }
        for task in tasks {
            let ended = task.await;
            assert!(ended.is_err_and(|error| error.is_cancelled()), "an aborted call went on");
        }
        let nanos = (clock::cpu() - begun).as_nanos() as f64 / calls as f64;
        gate::open();
        nanos
    })
}

/// Weighs the waiting future itself, without the task around it: tokio rounds a task up to 128 bytes, which hides
/// differences.
fn weigh<F, Fut, T>(runtime: &Runtime, calls: u64, make: F) -> Weight
where
    F: Fn(u64) -> Fut,
    Fut: Future<Output = T>,
{
    gate::shut();
    let weight = runtime.block_on(unconstrained(async {
        let mut futures: Vec<Pin<Box<Fut>>> = Vec::with_capacity(calls as usize);
        let (before, made, waiting) = alloc::counting(|| {
            let before = alloc::snapshot();
            futures.extend((0..calls).map(|value| Box::pin(make(value))));
            let made = alloc::snapshot();
            let mut cx = Context::from_waker(std::task::Waker::noop());
            for future in &mut futures {
                assert!(future.as_mut().poll(&mut cx).is_pending(), "a call did not wait");
            }
            (before, made, alloc::snapshot())
        });
        let each = |bytes: i64| bytes as f64 / calls as f64;
        Weight {
            future: size_of::<Fut>() as f64,
            heap: each(waiting.live - before.live) - size_of::<Fut>() as f64,
            allocations: each((waiting.calls - made.calls) as i64) + each((made.calls - before.calls) as i64)
                - 1.0,
        }
    }));
    gate::open();
    weight
}

/// Retries everything once, in an hour.
#[derive(Clone)]
struct InAnHour;

impl<Req: Clone, Res, E> Policy<Req, Res, E> for InAnHour {
    type Future = tokio::time::Sleep;

    fn retry(&mut self, _: &mut Req, result: &mut Result<Res, E>) -> Option<Self::Future> {
        result.is_err().then(|| tokio::time::sleep(Duration::from_secs(3600)))
    }

    fn clone_request(&mut self, request: &Req) -> Option<Req> {
        Some(request.clone())
    }
}

/// Calls that have failed once and sleep until their retry.
fn deferred() -> [(&'static str, Weight); 3] {
    const HOUR: Duration = Duration::from_secs(3600);
    let policy = RetryPolicy::new(3, Backoff::exponential(HOUR, HOUR));
    let queue = ours::queue(LIMIT).retry(policy).layer(failing());
    let tower = Retry::new(InAnHour, peers::limit(failing(), LIMIT));
    let resilient = tower_resilience::retry::RetryLayer::<u64, u64, _>::builder()
        .max_attempts(3)
        .fixed_backoff(HOUR)
        .build()
        .layer(peers::bulkhead(LIMIT).layer(failing()));
    // A new runtime each: one that has grown for the last contender would be for nothing here.
    [
        ("queue + retry", weigh(&current_thread(), WEIGHED, |value| queue.clone().oneshot(value))),
        (TOWER_RETRYING, weigh(&current_thread(), WEIGHED, |value| tower.clone().oneshot(value))),
        (
            "tower-resilience Retry > Bulkhead",
            weigh(&current_thread(), WEIGHED, |value| resilient.clone().oneshot(value)),
        ),
    ]
}

/// Runs the experiment.
pub fn run() -> Report {
    let mut report = Report::new("waiting", "Calls that wait");
    report.about(format!(
        "A limit of {LIMIT}, one task a call, an inner service behind a gate that is shut until all calls wait. \
         Instructions are those of a call's whole life, less those of the same task without a limit. Bytes are those \
         of the future (as `oneshot` makes it) and of what it owns on the heap, for {WEIGHED} calls. A floor is what a \
         hand-written mutex and queue cost that cannot cancel, pause or retry."
    ));
    let contenders = contenders();
    let note = (!count::available()).then_some(count::MISSING);

    let task = count::instructions("waiting", TASK, COUNTED);
    let figures: HashMap<&str, (Option<f64>, Weight)> = contenders
        .iter()
        .filter(|contender| contender.id != TASK)
        .map(|contender| {
            let counted = count::instructions("waiting", contender.id, COUNTED);
            let over_task = counted.zip(task).map(|(counted, task)| counted - task);
            (contender.id, (over_task, (contender.weigh)(&current_thread(), WEIGHED)))
        })
        .collect();
    for (ours, peer, instructions, bytes) in [
        (QUEUE, LIMIT_ALONE, Some(800.0), 200.0),
        (RETRYING, TOWER_RETRYING, Some(1_000.0), 320.0),
        (WHOLE, TOWER_WHOLE, None, 432.0),
    ] {
        let (ours_count, ours_weight) = figures[ours];
        let (peer_count, peer_weight) = figures[peer];
        let case = format!("{ours}, against {peer}");
        let row =
            Row::new(case.clone(), "instructions a queued call", ours_count).peer(peer_count).note(note);
        report.row(match instructions {
            Some(most) => row.bar(Bar::AtMost(most)),
            None => row,
        });
        let row =
            Row::new(case.clone(), "bytes a queued call", ours_weight.bytes()).peer(peer_weight.bytes());
        report.row(row.bar(Bar::AtMost(bytes)));
        let row = Row::new(case, "allocations a queued call", ours_weight.allocations)
            .peer(peer_weight.allocations);
        // The line's own blocks grow by doubling: one allocation in a thousand calls. A timer may have one of its own.
        report.row(if ours == WHOLE { row } else { row.bar(Bar::AtMost(0.01)) });
    }
    let mut table = Table::new(
        "Every contender:",
        ["case", "instructions over the task", "future B", "heap B", "bytes", "allocations"],
    );
    for contender in &contenders {
        let Some((over_task, weight)) = figures.get(contender.id) else { continue };
        table.line([
            contender.id.into(),
            over_task.map_or("-".into(), number),
            number(weight.future),
            number(weight.heap.round()),
            number(weight.bytes().round()),
            number(weight.allocations),
        ]);
    }
    report.table(table);

    let deferred = deferred();
    let mut table = Table::new("Deferred calls:", ["case", "future B", "heap B", "bytes"]);
    for (id, weight) in &deferred {
        table.line([
            (*id).into(),
            number(weight.future),
            number(weight.heap.round()),
            number(weight.bytes().round()),
        ]);
    }
    report.table(table);
    if let [ours, tower, resilient] = deferred.map(|(_, weight)| weight.bytes())[..] {
        let row = Row::new("deferred, against tower Retry > ConcurrencyLimit", "bytes a deferred call", ours)
            .peer(tower);
        report.row(row.bar(Bar::AtMost(336.0)));
        let row =
            Row::new("deferred, against tower-resilience Retry > Bulkhead", "bytes a deferred call", ours);
        report.row(row.peer(resilient));
    }

    growth(&mut report, &contenders);
    dropping(&mut report);
    report
}

/// Time a call against the number of calls that wait.
fn growth(report: &mut Report, contenders: &[Contender]) {
    const SIZES: [(u64, usize); 4] = [(1_000, 41), (10_000, 31), (100_000, 5), (1_000_000, 3)];
    const SHOWN: [&str; 6] = [TASK, QUEUE, RETRYING, LIMIT_ALONE, TOWER_RETRYING, BULKHEAD];
    let contenders: Vec<&Contender> =
        contenders.iter().filter(|contender| SHOWN.contains(&contender.id)).collect();
    let runtime = current_thread();
    let mut nanos: Vec<Vec<f64>> = vec![Vec::new(); contenders.len()];
    for (calls, rounds) in SIZES {
        eprintln!("lab: {calls} waiting calls");
        let mut rows = vec![Vec::new(); contenders.len()];
        for round in 0..rounds {
            for offset in 0..contenders.len() {
                let i = (offset + round) % contenders.len();
                rows[i].push((contenders[i].time)(&runtime, calls));
            }
        }
        for (nanos, rows) in nanos.iter_mut().zip(rows) {
            nanos.push(stats::median(&rows));
        }
    }
    let of = |id: &str| contenders.iter().position(|contender| contender.id == id).map(|i| &nanos[i]);
    if let (Some(ours), Some(tower)) = (of(QUEUE), of(LIMIT_ALONE)) {
        let row =
            Row::new("queue, growth of the time a call from 1 k to 1 M waiting", "times", ours[3] / ours[0]);
        report.row(row.peer(tower[3] / tower[0]).bar(Bar::AtMost(1.7)));
        let row = Row::new("queue, throughput with 10 k queued", "million calls/s", 1e3 / ours[1]);
        report.row(row.peer(1e3 / tower[1]).bar(Bar::RatioAtLeast(1.0)));
    }
    let mut table = Table::new(
        "Nanoseconds a call, queued and drained, by the number of waiting calls:",
        ["case", "1 000", "10 000", "100 000", "1 000 000"],
    );
    let mut chart = Chart::new(
        "waiting.svg",
        "Time a call, queued and drained",
        ("calls that wait", Scale::Log),
        ("ns a call", Scale::Linear),
    );
    for (contender, nanos) in contenders.iter().zip(&nanos) {
        table.line(std::iter::once(contender.id.into()).chain(nanos.iter().map(|ns| number(ns.round()))));
        chart.series(contender.id, SIZES.iter().zip(nanos).map(|((calls, _), ns)| (*calls as f64, *ns)));
    }
    report.table(table);
    report.chart(chart);
}

/// Time to drop queued calls.
fn dropping(report: &mut Report) {
    const CALLS: u64 = 100_000;
    const ROUNDS: usize = 7;
    eprintln!("lab: dropping {CALLS} waiting calls");
    let runtime = current_thread();
    let (mut task, mut ours, mut tower) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let service = gated();
        task.push(abandon(&runtime, CALLS, move |value| service.clone().oneshot(value)));
        let service = ours::queue(LIMIT).layer(gated());
        ours.push(abandon(&runtime, CALLS, move |value| service.clone().oneshot(value)));
        let service = peers::limit(gated(), LIMIT);
        tower.push(abandon(&runtime, CALLS, move |value| service.clone().oneshot(value)));
    }
    let [task, ours, tower] = [task, ours, tower].map(|nanos| stats::median(&nanos));
    // The bar is 700 ns where tower takes 837: as a ratio it holds on any machine.
    let row = Row::new("queue, dropping 100 k queued calls in shuffled order", "ns a call", ours).peer(tower);
    report.row(row.bar(Bar::RatioAtMost(0.84)));
    report.row(Row::new("of which the task", "ns a call", task));
}
