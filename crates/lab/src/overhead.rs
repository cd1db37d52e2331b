//! What one call costs that meets no contention: instructions, allocations, time.

use crate::count::{self, Case};
use crate::report::{Bar, Report, Row, Table, number};
use crate::service::{Built, Fail, current_thread, pending_once, ready_at_once};
use crate::{alloc, clock, ours, peers, stats};
use futures_util::FutureExt;
use std::collections::HashMap;
use std::future::poll_fn;
use std::sync::{Arc, Barrier};
use tokio::runtime::Builder;
use tokio::time::Instant;
use tower::{Layer, Service, ServiceExt, service_fn};
use tower_sluice::degrade::MeasureLayer;
use tower_sluice::reject::Rejection;

/// Of every limiter here: never reached.
const LIMIT: usize = 1024;
/// N of callgrind's N against 2 N.
const COUNTED: u64 = 10_000;
/// Interleaved rounds behind a median.
const ROUNDS: usize = 41;

const QUEUE: &str = "queue";
/// tracing is compiled in and has no subscriber, so that the events are in every case of ours.
const WHOLE: &str = "queue + retry + budget + call timeout";
const WHOLE_PENDING: &str = "queue + retry + budget + call timeout, pending once";
const FULL: &str = "queue, full, answered";
const MEASURED: &str = "MeasureLayer";
const BARE: &str = "bare service";
const SHED: &str = "tower LoadShed > ConcurrencyLimit, full";

/// Every contender, by the name that rows and tables use.
pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    let mut case = |id, build| cases.push(Case { id, build });
    case(BARE, || Built::reused(ready_at_once()));
    case("bare service, pending once", || Built::reused(pending_once()));
    case(QUEUE, || Built::reused(ours::queue(LIMIT).layer(ready_at_once())));
    case("queue, clone per call", || Built::cloned(ours::queue(LIMIT).layer(ready_at_once())));
    case("queue + retry + budget", || Built::reused(ours::retrying(LIMIT).layer(ready_at_once())));
    case(WHOLE, || Built::reused(ours::whole(LIMIT).layer(ready_at_once())));
    case("queue + retry + budget + call timeout, clone per call", || {
        Built::cloned(ours::whole(LIMIT).layer(ready_at_once()))
    });
    case(WHOLE_PENDING, || Built::reused(ours::whole(LIMIT).layer(pending_once())));
    case(FULL, || {
        let queue = ours::queue(1).max_waiting(0).respond_with(|_: &Rejection| u64::MAX);
        let service = queue.layer(service_fn(|_: u64| std::future::pending::<Result<u64, Fail>>()));
        let mut running = Box::pin(service.clone().oneshot(0));
        assert!(running.as_mut().now_or_never().is_none());
        Built::rejected(service, running, |answer| matches!(answer, Ok(u64::MAX)))
    });
    case(MEASURED, || {
        let measure = MeasureLayer::new();
        // Somebody listens for as long as the program runs.
        Box::leak(Box::new(measure.facts()));
        Built::reused(measure.layer(ready_at_once()))
    });
    case("tower ConcurrencyLimit", || Built::reused(peers::limit(ready_at_once(), LIMIT)));
    case("tower ConcurrencyLimit, clone per call", || Built::cloned(peers::limit(ready_at_once(), LIMIT)));
    case("tower Retry > ConcurrencyLimit", || Built::reused(peers::retry_limit(ready_at_once(), LIMIT)));
    case("tower Timeout > Retry > ConcurrencyLimit", || {
        Built::reused(peers::timeout_retry_limit(ready_at_once(), LIMIT))
    });
    case("tower Timeout > Retry > ConcurrencyLimit, clone per call", || {
        Built::cloned(peers::timeout_retry_limit(ready_at_once(), LIMIT))
    });
    case("tower Timeout > Retry > ConcurrencyLimit, pending once", || {
        Built::reused(peers::timeout_retry_limit(pending_once(), LIMIT))
    });
    case(SHED, || {
        let mut holder = peers::shed_limit(ready_at_once(), 1);
        let shed = holder.clone();
        // A handle that is ready and not called keeps the only permit.
        assert!(holder.ready().now_or_never().is_some_and(|ready| ready.is_ok()));
        Built::rejected(shed, holder, |answer| answer.is_err())
    });
    case("tower-resilience Bulkhead", || Built::reused(peers::bulkhead(LIMIT).layer(ready_at_once())));
    case("tower-resilience TimeLimiter > Retry > Bulkhead", || {
        Built::reused(peers::resilient_stack(ready_at_once(), LIMIT))
    });
    case("tower-resilience TimeLimiter > Retry > CircuitBreaker > Bulkhead", || {
        Built::reused(peers::resilient_stack_with_breaker(ready_at_once(), LIMIT))
    });
    cases
}

/// What was measured of one case.
struct Figures {
    instructions: Option<f64>,
    allocations: f64,
    bytes: f64,
    nanos: f64,
    spread: (f64, f64),
    sizes: (usize, usize),
}

/// Runs the experiment.
pub fn run() -> Report {
    let figures = measure();
    let mut report = Report::new("overhead", "One call that meets no contention");
    report.about(
        "One call after another on one thread, over a service that answers at once (or when it is polled for the second \
         time), with a limit that is never reached. Everything includes the loop around it, which is the row `bare \
         service`. Instructions come from callgrind as the difference of N and 2 N calls; allocations are counted. \
         Times are medians of interleaved rounds. `>` reads \"over\"; peers have the settings their guides recommend.",
    );
    let note = (!count::available()).then_some(count::MISSING);
    let instructions = |id: &str| figures[id].instructions;

    for (ours, peer, most) in [
        (QUEUE, "tower ConcurrencyLimit", 1.0),
        (WHOLE, "tower Timeout > Retry > ConcurrencyLimit", 0.5),
        (WHOLE_PENDING, "tower Timeout > Retry > ConcurrencyLimit, pending once", 1.0),
    ] {
        let row = Row::new(format!("{ours}, against {peer}"), "instructions", instructions(ours));
        report.row(row.peer(instructions(peer)).bar(Bar::RatioAtMost(most)).note(note));
        let row = Row::new(ours, "allocations", figures[ours].allocations);
        let row = row.peer(figures[peer].allocations);
        // A call that has to wait needs a timer for its timeout, which may have an allocation of its own.
        report.row(if ours == WHOLE_PENDING { row } else { row.bar(Bar::AtMost(0.0)) });
    }
    for (ours, peer) in [
        ("queue, clone per call", "tower ConcurrencyLimit, clone per call"),
        (
            "queue + retry + budget + call timeout, clone per call",
            "tower Timeout > Retry > ConcurrencyLimit, clone per call",
        ),
        (QUEUE, "tower-resilience Bulkhead"),
        (WHOLE, "tower-resilience TimeLimiter > Retry > Bulkhead"),
    ] {
        let row = Row::new(format!("{ours}, against {peer}"), "instructions", instructions(ours));
        report.row(row.peer(instructions(peer)).note(note));
    }
    let (two_of_ours, two_of_theirs) = threads();
    let row = Row::new("queue, two threads, never full, against tower ConcurrencyLimit", "ns", two_of_ours);
    report.row(row.peer(two_of_theirs).bar(Bar::RatioAtMost(1.05)));
    let row = Row::new(format!("{FULL}, against {SHED}"), "ns", figures[FULL].nanos);
    report.row(row.peer(figures[SHED].nanos).bar(Bar::AtMost(80.0)));
    let row = Row::new(FULL, "allocations", figures[FULL].allocations);
    report.row(row.peer(figures[SHED].allocations).bar(Bar::AtMost(0.0)));

    let added = instructions(MEASURED).zip(instructions(BARE)).map(|(measured, bare)| measured - bare);
    report.row(
        Row::new("MeasureLayer added to a service", "instructions", added).bar(Bar::AtMost(220.0)).note(note),
    );
    let row = Row::new("MeasureLayer added to a service", "allocations", figures[MEASURED].allocations);
    report.row(row.bar(Bar::AtMost(0.0)));

    let mut table = Table::new(
        "Every contender:",
        ["case", "instructions", "allocations", "bytes", "ns (middle half)", "service B", "future B"],
    );
    for case in cases() {
        let f = &figures[case.id];
        table.line([
            case.id.into(),
            f.instructions.map_or("-".into(), number),
            number(f.allocations),
            number(f.bytes),
            format!("{:.1} ({:.1} to {:.1})", f.nanos, f.spread.0, f.spread.1),
            f.sizes.0.to_string(),
            f.sizes.1.to_string(),
        ]);
    }
    report.table(table);
    report
}

fn measure() -> HashMap<&'static str, Figures> {
    let runtime = current_thread();
    let cases = cases();
    let mut built: Vec<Built> = {
        let _inside = runtime.enter();
        cases.iter().map(|case| (case.build)()).collect()
    };
    let counts: Vec<(f64, f64)> =
        built.iter_mut().map(|b| allocations(&mut |calls| (b.run)(&runtime, calls))).collect();

    // Rounds of about a millisecond each, in an order that rotates.
    let mut nanos = vec![Vec::with_capacity(ROUNDS); built.len()];
    let calls: Vec<u64> = built
        .iter_mut()
        .map(|b| {
            let per_call = timed(&mut |calls| (b.run)(&runtime, calls), 10_000);
            (1e6 / per_call.max(1.0)) as u64
        })
        .collect();
    for round in 0..ROUNDS {
        for offset in 0..built.len() {
            let i = (offset + round * 5) % built.len();
            let b = &mut built[i];
            nanos[i].push(timed(&mut |calls| (b.run)(&runtime, calls), calls[i]));
        }
    }

    cases
        .into_iter()
        .enumerate()
        .map(|(i, case)| {
            let figures = Figures {
                instructions: count::instructions("overhead", case.id, COUNTED),
                allocations: counts[i].0,
                bytes: counts[i].1,
                nanos: stats::median(&nanos[i]),
                spread: (stats::quantile(&nanos[i], 0.25), stats::quantile(&nanos[i], 0.75)),
                sizes: built[i].sizes,
            };
            (case.id, figures)
        })
        .collect()
}

/// Nanoseconds a call.
fn timed(run: &mut dyn FnMut(u64), calls: u64) -> f64 {
    let start = clock::cpu();
    run(calls);
    (clock::cpu() - start).as_nanos() as f64 / calls as f64
}

/// Allocations and bytes a call, as the difference of N and 2 N calls.
fn allocations(run: &mut dyn FnMut(u64)) -> (f64, f64) {
    run(COUNTED);
    let mut counted = |calls| {
        alloc::counting(|| {
            let before = alloc::snapshot();
            run(calls);
            let after = alloc::snapshot();
            ((after.calls - before.calls) as f64, (after.bytes - before.bytes) as f64)
        })
    };
    let (once, twice) = (counted(COUNTED), counted(2 * COUNTED));
    let each = |once: f64, twice: f64| (twice - once) / COUNTED as f64;
    (each(once.0, twice.0), each(once.1, twice.1))
}

/// Nanoseconds a call of two threads that share one limiter: ours, tower's. Medians over interleaved rounds.
fn threads() -> (f64, f64) {
    const CALLS: u64 = 100_000;
    let ours = ours::queue(LIMIT).layer(ready_at_once());
    let tower = peers::limit(ready_at_once(), LIMIT);
    let rounds: Vec<(f64, f64)> =
        (0..ROUNDS).map(|_| (together(&ours, 2, CALLS), together(&tower, 2, CALLS))).collect();
    let (ours, tower): (Vec<_>, Vec<_>) = rounds.into_iter().unzip();
    (stats::median(&ours), stats::median(&tower))
}

/// Nanoseconds a call and thread, with a clone for each of `threads` threads.
fn together<S>(service: &S, threads: usize, calls: u64) -> f64
where
    S: Service<u64, Response = u64> + Clone + Send + 'static,
{
    let start = Arc::new(Barrier::new(threads));
    let running: Vec<_> = (0..threads)
        .map(|_| {
            let (mut service, start) = (service.clone(), Arc::clone(&start));
            std::thread::spawn(move || {
                let runtime = Builder::new_current_thread().build().expect("a runtime");
                runtime.block_on(tokio::task::unconstrained(async {
                    start.wait();
                    let begun = Instant::now();
                    for value in 0..calls {
                        let ready = poll_fn(|cx| service.poll_ready(cx)).await;
                        assert!(ready.is_ok());
                        let answer = service.call(std::hint::black_box(value)).await;
                        assert!(answer.is_ok_and(|got| got == value));
                    }
                    begun.elapsed().as_nanos() as f64 / calls as f64
                }))
            })
        })
        .collect();
    let each: Vec<f64> = running.into_iter().map(|thread| thread.join().expect("no thread panics")).collect();
    stats::mean(&each)
}
