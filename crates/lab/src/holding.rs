//! Holding a slot while waiting for a retry, against leaving it; and where in the line a call goes that comes back
//! (virtual time).

use crate::chart::{Chart, Scale};
use crate::peers;
use crate::report::{Bar, Report, Row};
use crate::service::{Fail, paused};
use crate::stats::{self, Random, unit};
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::{Instant, Sleep, sleep, sleep_until};
use tower::retry::{Policy, Retry};
use tower::{Layer, Service, ServiceExt, service_fn};
use tower_sluice::backoff::{Backoff, Jitter};
use tower_sluice::queue::{QueueLayer, Requeue};
use tower_sluice::retry::RetryPolicy;

/// Slots, time of an attempt, share of attempts that fail, mean delay.
#[derive(Clone, Copy)]
struct Load {
    slots: usize,
    service: f64,
    fails: f64,
    backoff: f64,
}

const LOADS: [Load; 3] = [
    Load { slots: 10, service: 0.1, fails: 0.2, backoff: 1.0 },
    Load { slots: 10, service: 0.1, fails: 0.5, backoff: 1.0 },
    Load { slots: 4, service: 1.0, fails: 0.3, backoff: 30.0 },
];

impl Load {
    /// Calls a second, if a waiting call holds its slot.
    fn held(self) -> f64 {
        self.slots as f64 * (1.0 - self.fails) / (self.fails * self.backoff + self.service)
    }

    /// Calls a second, if it does not.
    fn free(self) -> f64 {
        self.slots as f64 * (1.0 - self.fails) / self.service
    }

    fn name(self) -> String {
        format!("{} slots, {} s, {} fail, delay {} s", self.slots, self.service, self.fails, self.backoff)
    }

    /// The longest delay of a uniform one with this mean.
    fn longest(self) -> Duration {
        Duration::from_secs_f64(2.0 * self.backoff)
    }
}

/// Callers at any time: enough that the line is never empty, however many wait for their retry.
const CALLERS: u64 = 400;
const SEED: u64 = 7;

/// What a run looks at.
#[derive(Default)]
struct Seen {
    running: usize,
    peak: usize,
    attempts: u64,
    succeeded: u64,
}

type Answer = Pin<Box<dyn Future<Output = Result<u64, Fail>> + Send>>;

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Takes its time, fails as often as the load says, and counts.
fn upstream(
    load: Load,
    seen: Arc<Mutex<Seen>>,
) -> impl Service<u64, Response = u64, Error = Fail, Future = Answer> + Clone + Send + Sync + 'static {
    service_fn(move |call: u64| -> Answer {
        let seen = Arc::clone(&seen);
        Box::pin(async move {
            let fails = {
                let mut seen = locked(&seen);
                seen.attempts += 1;
                seen.running += 1;
                seen.peak = seen.peak.max(seen.running);
                unit(&[SEED, seen.attempts]) < load.fails
            };
            sleep(Duration::from_secs_f64(load.service)).await;
            let mut seen = locked(&seen);
            seen.running -= 1;
            if fails {
                return Err(Fail);
            }
            seen.succeeded += 1;
            Ok(call)
        })
    })
}

/// Successes a second under saturation, and the most attempts at once.
fn rate<S>(load: Load, stack: impl FnOnce(Arc<Mutex<Seen>>) -> S) -> (f64, usize)
where
    S: Service<u64, Future: Send, Error: Send> + Clone + Send + 'static,
{
    // Long enough for ten thousand calls where slots are left.
    let (warm_up, measured) = (10.0 * load.backoff, 10_000.0 / load.free());
    paused().block_on(async {
        let seen = Arc::default();
        let service = stack(Arc::clone(&seen));
        let callers: Vec<_> = (0..CALLERS)
            .map(|caller| {
                let service = service.clone();
                tokio::spawn(async move {
                    loop {
                        assert!(service.clone().oneshot(caller).await.is_ok(), "a call was given up");
                    }
                })
            })
            .collect();
        sleep(Duration::from_secs_f64(warm_up)).await;
        let before = locked(&seen).succeeded;
        sleep(Duration::from_secs_f64(measured)).await;
        let (after, peak) = {
            let seen = locked(&seen);
            (seen.succeeded, seen.peak)
        };
        for caller in callers {
            assert!(!caller.is_finished(), "a caller stopped");
            caller.abort();
        }
        ((after - before) as f64 / measured, peak)
    })
}

/// Retries until it succeeds, after a uniform delay.
#[derive(Clone)]
struct Patient {
    longest: Duration,
    random: Arc<Mutex<Random>>,
}

impl<Req: Clone, Res, E> Policy<Req, Res, E> for Patient {
    type Future = Sleep;

    fn retry(&mut self, _: &mut Req, result: &mut Result<Res, E>) -> Option<Sleep> {
        result.is_err().then(|| sleep(self.longest.mul_f64(locked(&self.random).unit())))
    }

    fn clone_request(&mut self, request: &Req) -> Option<Req> {
        Some(request.clone())
    }
}

fn patient(load: Load) -> Patient {
    Patient { longest: load.longest(), random: Arc::new(Mutex::new(Random::new(&[SEED]))) }
}

/// Holding the slot against leaving it.
fn rates(report: &mut Report) {
    for load in LOADS {
        let ours = rate(load, |seen| {
            let policy = RetryPolicy::new(u32::MAX, Backoff::exponential(load.longest(), load.longest()));
            QueueLayer::new(load.slots).seed(SEED).retry(policy).layer(upstream(load, seen))
        });
        let inside =
            rate(load, |seen| peers::limit(Retry::new(patient(load), upstream(load, seen)), load.slots));
        let outside =
            rate(load, |seen| Retry::new(patient(load), peers::limit(upstream(load, seen), load.slots)));
        let name = load.name();
        report.row(
            Row::new(format!("{name}: ours, against N(1-p)/s"), "calls/s", ours.0)
                .peer(load.free())
                .bar(Bar::Within(0.05)),
        );
        report.row(
            Row::new(format!("{name}: most attempts at once"), "attempts", ours.1 as f64)
                .bar(Bar::Exactly(load.slots as f64)),
        );
        report.row(
            Row::new(format!("{name}: ours, against tower Retry > ConcurrencyLimit"), "calls/s", ours.0)
                .peer(outside.0),
        );
        report.row(
            Row::new(format!("{name}: ours, against tower ConcurrencyLimit > Retry"), "calls/s", ours.0)
                .peer(inside.0),
        );
        report.row(
            Row::new(format!("{name}: ours, against N(1-p)/(s+pb)"), "calls/s", ours.0).peer(load.held()),
        );
    }
}

// The order of return.

/// Slots of the second part; an attempt takes 100 ms in the mean, exponentially distributed.
const SLOTS: usize = 10;
const MEAN: f64 = 0.1;
const SEEDS: u64 = 24;
/// Virtual seconds, of which the first are not counted.
const SPAN: f64 = 600.0;
const WARM_UP: f64 = 60.0;

/// An open loop of calls.
#[derive(Clone, Copy)]
struct Arrivals {
    /// Calls a second.
    rate: f64,
    /// The share of calls that fail whatever is done.
    hopeless: f64,
    /// The share of the other calls' attempts that fail.
    fails: f64,
    bound: usize,
    call_timeout: Duration,
}

/// One call, as the upstream and its caller saw it.
#[derive(Clone, Default)]
struct Call {
    arrived: f64,
    /// When each attempt started and ended.
    attempts: Vec<(f64, f64)>,
    hopeless: bool,
    succeeded: bool,
}

/// Uniform on (0, 1 s], for every retry.
fn delays() -> Backoff {
    Backoff::exponential(Duration::from_secs(1), Duration::from_secs(1)).jitter(Jitter::Full)
}

/// The same calls, times, failures and delays for both orders: each number depends on seed, call and attempt alone.
fn open_loop(load: Arrivals, seed: u64, order: Requeue) -> Vec<Call> {
    paused().block_on(async {
        let begun = Instant::now();
        let calls = Arc::new(Mutex::new(Vec::<Call>::new()));
        let upstream = {
            let calls = Arc::clone(&calls);
            service_fn(move |number: usize| -> Answer {
                let calls = Arc::clone(&calls);
                Box::pin(async move {
                    let (attempt, hopeless) = {
                        let call = &mut locked(&calls)[number];
                        call.attempts.push((begun.elapsed().as_secs_f64(), f64::NAN));
                        (call.attempts.len(), call.hopeless)
                    };
                    let words = [seed, number as u64, attempt as u64];
                    sleep(Duration::from_secs_f64(Random::new(&words).exponential(MEAN))).await;
                    if let Some(last) = locked(&calls)[number].attempts.last_mut() {
                        last.1 = begun.elapsed().as_secs_f64();
                    }
                    let fails = hopeless || unit(&[seed, number as u64, attempt as u64, 1]) < load.fails;
                    if fails { Err(Fail) } else { Ok(0) }
                })
            })
        };
        let policy = RetryPolicy::new(4, delays());
        let service = QueueLayer::new(SLOTS)
            .max_waiting(load.bound)
            .call_timeout(load.call_timeout)
            .requeue(order)
            .seed(seed)
            .retry(policy.seed(seed))
            .layer(upstream);
        let mut random = Random::new(&[seed, 2]);
        let mut now = random.exponential(1.0 / load.rate);
        let mut tasks = Vec::new();
        while now < SPAN {
            sleep_until(begun + Duration::from_secs_f64(now)).await;
            let number = {
                let mut calls = locked(&calls);
                let arrived = begun.elapsed().as_secs_f64();
                calls.push(Call { arrived, hopeless: random.unit() < load.hopeless, ..Call::default() });
                calls.len() - 1
            };
            let (answer, calls) = (service.clone().oneshot(number), Arc::clone(&calls));
            tasks.push(tokio::spawn(async move {
                let succeeded = answer.await.is_ok();
                locked(&calls)[number].succeeded = succeeded;
            }));
            now += random.exponential(1.0 / load.rate);
        }
        for task in tasks {
            assert!(task.await.is_ok(), "a call panicked");
        }
        std::mem::take(&mut *locked(&calls))
    })
}

/// Seconds in the line, of each call of one run.
#[derive(Default)]
struct Waits {
    /// All stays of calls that were retried.
    retried: Vec<f64>,
    /// The first stay of every call.
    first: Vec<f64>,
    /// The stays after a return.
    returned: Vec<f64>,
}

fn waits(calls: &[Call], seed: u64) -> Waits {
    let mut waits = Waits::default();
    for (number, call) in calls.iter().enumerate().filter(|(_, call)| call.arrived >= WARM_UP) {
        let mut drawn = delays().delays(seed, number as u64);
        let mut ready = call.arrived;
        let mut all = 0.0;
        for (attempt, (start, end)) in call.attempts.iter().enumerate() {
            let stay = start - ready;
            // The draws are known from outside by seed and number: were they another call's, some would be later.
            assert!(stay > -1e-6, "call {number} came back before its delay was over");
            all += stay;
            if attempt == 0 {
                waits.first.push(stay);
            } else {
                waits.returned.push(stay);
            }
            ready = end + drawn.next().unwrap_or_default().as_secs_f64();
        }
        if call.attempts.len() > 1 {
            waits.retried.push(all);
        }
    }
    waits
}

/// Where a call goes that comes back.
fn orders(report: &mut Report) {
    let load =
        Arrivals { rate: 76.0, hopeless: 0.0, fails: 0.2, bound: usize::MAX, call_timeout: Duration::MAX };
    let both = [Requeue::Back, Requeue::Arrival].map(|order| {
        (0..SEEDS).fold(Waits::default(), |mut all, seed| {
            let waits = waits(&open_loop(load, seed, order), seed);
            all.retried.extend(waits.retried);
            all.first.extend(waits.first);
            all.returned.extend(waits.returned);
            all
        })
    });
    let [back, arrival] = &both;
    let last = |seconds: &[f64]| stats::quantile(seconds, 0.99);
    for (case, pick, bar) in [
        ("retried calls", (|w| &w.retried) as fn(&Waits) -> &Vec<f64>, 0.65),
        ("first attempts", |w| &w.first, 1.4),
        ("stays after a return alone", |w| &w.returned, 0.15),
    ] {
        report.row(
            Row::new(
                format!("99th percentile in the line, Arrival against Back: {case}"),
                "s",
                last(pick(arrival)),
            )
            .peer(last(pick(back)))
            .bar(Bar::RatioAtMost(bar)),
        );
    }
    let mut chart = Chart::new(
        "order.svg",
        "Time in the line by where retried calls return to",
        ("share of the calls, %", Scale::Linear),
        ("s in the line, at most", Scale::Linear),
    );
    for (order, waits) in [("Back", back), ("Arrival", arrival)] {
        for (which, values) in [("retried", &waits.retried), ("first attempts", &waits.first)] {
            let points =
                (0..=200).map(|i| f64::from(i) / 200.0).map(|q| (q * 100.0, stats::quantile(values, q)));
            chart.series(format!("{order}: {which}"), points.collect::<Vec<_>>());
        }
    }
    report.chart(chart);

    // 2.07 attempts a call: half as much again as ten slots can do.
    let load = Arrivals { rate: 72.0, hopeless: 0.3, bound: 1_024, ..load };
    let [back, arrival] = [Requeue::Back, Requeue::Arrival].map(|order| fresh_success(load, order));
    let name = "30 % hopeless calls, 150 % load";
    report.row(
        Row::new(format!("{name}: success of the others, Arrival and Back"), "share", arrival).peer(back),
    );
    report.row(
        Row::new(format!("{name}: how far the orders differ"), "share", (arrival - back).abs())
            .bar(Bar::AtMost(0.02)),
    );
    let load = Arrivals { bound: 256, call_timeout: Duration::from_secs(10), ..load };
    let [back, arrival] = [Requeue::Back, Requeue::Arrival].map(|order| fresh_success(load, order));
    report.row(Row::new(format!("{name}, 10 s a call: the same success"), "share", arrival).peer(back));
}

/// The share of the calls with a chance that succeeded.
fn fresh_success(load: Arrivals, order: Requeue) -> f64 {
    let runs = (0..SEEDS / 3).flat_map(|seed| open_loop(load, seed, order));
    let fresh: Vec<f64> = runs
        .filter(|call| call.arrived >= WARM_UP && !call.hopeless)
        .map(|call| f64::from(u8::from(call.succeeded)))
        .collect();
    stats::mean(&fresh)
}

/// Runs the experiment.
pub fn run() -> Report {
    let mut report = Report::new("holding", "Holding a slot through a delay, or leaving it");
    report.about(format!(
        "{CALLERS} callers that call again at once, so that the line is never empty; every attempt takes s and fails with \
         p, delays are uniform with mean b. With N slots, N(1-p)/(s+pb) calls a second succeed where a call keeps its slot \
         while it waits for its retry, and N(1-p)/s where it does not. tower does either, by the order of its layers (`>` \
         reads \"over\")."
    ));
    report.about(format!(
        "The order of return: an open loop of 76 calls/s, {SLOTS} slots, exponential attempts of 100 ms in the mean, 20 % \
         fail, 3 retries, delays uniform up to 1 s, {SEEDS} seeds, the same random numbers for both orders. Then an \
         overload: 72 calls/s of which 30 % fail whatever is done (150 attempts/s asked of slots for 100), at most 1 024 \
         waiting and no deadline: the bound turns away what is too much. With deadlines about as long as the line (256 \
         waiting, 10 s) the orders do differ: at the back, hopeless calls expire before they have used up their attempts."
    ));
    rates(&mut report);
    orders(&mut report);
    report
}
