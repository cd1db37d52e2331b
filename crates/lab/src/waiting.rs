//! What a call costs that waits: instructions, bytes, time, and how these grow.

use crate::chart::{Chart, Scale};
use crate::count::{self, Case};
use crate::floor::Floor;
use crate::gate::{self, gated};
use crate::peers::{self, Stack};
use crate::report::{Bar, Report, Row, Table, number};
use crate::service::{Built, Fail, current_thread, failing};
use crate::{alloc, stats};
use pin_project_lite::pin_project;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::runtime::Runtime;
use tokio::sync::{Notify, Semaphore};
use tokio::task::{JoinHandle, unconstrained, yield_now};
use tokio::time::Instant;
use tower::retry::{Policy, Retry};
use tower::{Layer, ServiceExt};

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
    /// Times one run of this many calls.
    time: fn(&Runtime, u64) -> Times,
    /// Weighs this many waiting calls.
    weigh: fn(&Runtime, u64) -> Weight,
    /// The same run, to be counted.
    build: fn() -> Built,
}

/// One run: until all wait, and until all are done.
#[derive(Clone, Copy, Debug)]
struct Times {
    enqueue: Duration,
    drain: Duration,
}

impl Times {
    fn nanos(self, calls: u64) -> f64 {
        (self.enqueue + self.drain).as_nanos() as f64 / calls as f64
    }
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
        LIMIT_ALONE => peers::limit(gated(), LIMIT);
        "tower Retry > ConcurrencyLimit" => peers::retry_limit(gated(), LIMIT);
        "tower Timeout > Retry > ConcurrencyLimit" => peers::timeout_retry_limit(gated(), LIMIT);
        "tower-resilience Bulkhead" => peers::bulkhead(LIMIT).layer(gated());
        "tower-resilience TimeLimiter > Retry > Bulkhead" => peers::resilient_stack(gated(), LIMIT);
    }
}

/// The names of the rows that others are compared with.
const TASK: &str = "no limit (the task alone)";
const LIMIT_ALONE: &str = "tower ConcurrencyLimit";

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

fn time<F, Fut, E>(runtime: &Runtime, calls: u64, make: F) -> Times
where
    F: Fn(u64) -> Fut,
    Fut: Future<Output = Result<u64, E>> + Send + 'static,
    E: 'static,
{
    LEFT.store(calls, SeqCst);
    runtime.block_on(async {
        let begun = Instant::now();
        let tasks = enqueue(calls, &make).await;
        let queued = Instant::now();
        gate::open();
        DONE.notified().await;
        let done = Instant::now();
        drop(tasks);
        Times { enqueue: queued - begun, drain: done - queued }
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
        let begun = Instant::now();
        for task in &tasks {
            task.abort();
        }
        for task in tasks {
            let ended = task.await;
            assert!(ended.is_err_and(|error| error.is_cancelled()), "an aborted call went on");
        }
        let nanos = begun.elapsed().as_nanos() as f64 / calls as f64;
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
            allocations: each((waiting.calls - made.calls) as i64) + each((made.calls - before.calls) as i64) - 1.0,
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
fn deferred() -> Vec<(&'static str, Weight)> {
    // A new runtime each: one that has grown for the last contender would be for nothing here.
    let tower = Retry::new(InAnHour, peers::limit(failing(), LIMIT));
    let resilient = tower_resilience::retry::RetryLayer::<u64, u64, _>::builder()
        .max_attempts(3)
        .fixed_backoff(Duration::from_secs(3600))
        .build()
        .layer(peers::bulkhead(LIMIT).layer(failing()));
    vec![
        (
            "tower Retry > ConcurrencyLimit",
            weigh(&current_thread(), WEIGHED, |value| tower.clone().oneshot(value)),
        ),
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

    let mut table = Table::new(
        "Every contender:",
        ["case", "instructions over the task", "future B", "heap B", "bytes", "allocations"],
    );
    let task = count::instructions("waiting", TASK, COUNTED);
    for contender in &contenders {
        let over_task = count::instructions("waiting", contender.id, COUNTED).zip(task).map(|(all, task)| all - task);
        let weight = (contender.weigh)(&current_thread(), WEIGHED);
        table.line([
            contender.id.into(),
            over_task.map_or("-".into(), number),
            number(weight.future),
            number(weight.heap),
            number(weight.bytes()),
            number(weight.allocations),
        ]);
    }
    report.table(table);
    let _ = note;

    let mut table = Table::new("Deferred calls:", ["case", "future B", "heap B", "bytes"]);
    for (id, weight) in deferred() {
        table.line([id.into(), number(weight.future), number(weight.heap), number(weight.bytes())]);
    }
    report.table(table);

    growth(&mut report, &contenders);
    dropping(&mut report);
    report
}

/// Time a call against the number of calls that wait.
fn growth(report: &mut Report, contenders: &[Contender]) {
    const SIZES: [(u64, usize); 4] = [(1_000, 31), (10_000, 31), (100_000, 7), (1_000_000, 3)];
    let runtime = current_thread();
    let mut nanos: Vec<Vec<f64>> = vec![Vec::new(); contenders.len()];
    for (calls, rounds) in SIZES {
        eprintln!("lab: {calls} waiting calls");
        let mut rows = vec![Vec::new(); contenders.len()];
        // One more round than is kept: the first warms up.
        for round in 0..=rounds {
            for offset in 0..contenders.len() {
                let i = (offset + round * 3) % contenders.len();
                let times = (contenders[i].time)(&runtime, calls);
                if round > 0 {
                    rows[i].push(times.nanos(calls));
                }
            }
        }
        for (nanos, rows) in nanos.iter_mut().zip(rows) {
            nanos.push(stats::median(&rows));
        }
    }
    let mut table =
        Table::new("Nanoseconds a call, queued and drained, by the number of waiting calls:", ["case", "1 000", "10 000", "100 000", "1 000 000"]);
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
    let (mut task, mut tower) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let service = gated();
        task.push(abandon(&runtime, CALLS, move |value| service.clone().oneshot(value)));
        let service = peers::limit(gated(), LIMIT);
        tower.push(abandon(&runtime, CALLS, move |value| service.clone().oneshot(value)));
    }
    report.row(
        Row::new("dropping 100 k queued calls in shuffled order", "ns a call", None)
            .peer(stats::median(&tower))
            .bar(Bar::AtMost(700.0)),
    );
    report.row(Row::new("the same, the task alone", "ns a call", None).peer(stats::median(&task)));
}
