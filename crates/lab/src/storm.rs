//! The storm that does not end: an overload that outlives its cause, because clients try again (virtual time).
//!
//! A server of ten workers loses seven of them for twenty seconds. Its clients give up after a second and try again;
//! the server does not notice that they gave up. What happens once the workers are back is decided by the layers.

use crate::chart::{Chart, Scale};
use crate::report::{Bar, Report, Row, Table, number};
use crate::service::paused;
use crate::stats::{self, Random};
use crate::workers::Workers;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::{Instant, Sleep, sleep, sleep_until};
use tower::retry::budget::{Budget as _, TpsBudget};
use tower::retry::{Policy, Retry};
use tower::timeout::Timeout;
use tower::util::BoxCloneService;
use tower::{BoxError, Layer, ServiceExt, service_fn};
use tower_sluice::backoff::Backoff;
use tower_sluice::queue::QueueLayer;
use tower_sluice::reject::Rejection;
use tower_sluice::retry::{RetryBudget, RetryPolicy};
use tower_sluice::verdict::Verdict;

/// Workers of the server.
const WORKERS: usize = 10;
/// Mean time of one call: the server does 100 calls a second.
const MEAN: f64 = 0.1;
/// The longest that a client waits for one attempt.
const PATIENCE: Duration = Duration::from_secs(1);
const ATTEMPTS: u32 = 4;
const BASE: Duration = Duration::from_millis(100);
const CAP: Duration = Duration::from_secs(5);
/// Virtual seconds: the trigger, and the end of arrivals.
const TRIGGER: std::ops::Range<f64> = 60.0..80.0;
const END: f64 = 420.0;
/// Attempts that are under way at [`END`] are waited for.
const AFTERWARDS: f64 = 30.0;
const SEEDS: u64 = 12;
/// The seconds of a cohort, in which calls are counted by arrival.
const COHORT: f64 = 5.0;
/// The share of a cohort that succeeds in a healthy system.
const HEALTHY: f64 = 0.9;
/// How many calls wait at our server.
const BOUND: usize = 50;

/// What a server says instead of an answer, as it would cross a network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Status {
    /// 503.
    Unavailable,
    /// 504.
    TooLate,
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unavailable => "503",
            Self::TooLate => "504",
        })
    }
}

impl std::error::Error for Status {}

impl From<Rejection> for Status {
    fn from(rejection: Rejection) -> Self {
        match rejection {
            Rejection::Deadline { .. } => Self::TooLate,
            _ => Self::Unavailable,
        }
    }
}

/// A request as the server sees it: with the time until which its sender waits.
#[derive(Clone, Copy, Debug)]
struct Ask {
    deadline: Instant,
}

type Server = BoxCloneService<Ask, (), Status>;
/// Calls by their number.
type Client = BoxCloneService<usize, (), BoxError>;
type Network = BoxCloneService<usize, (), Status>;

/// How the time of one call is distributed, about [`MEAN`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Times {
    Exponential,
    /// The sum of four: calls differ less.
    Erlang4,
}

/// What is wrong from 60 s to 80 s.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trigger {
    /// Three workers are left of ten.
    FewerWorkers,
    /// A call takes ten times as long.
    Slower,
}

/// One world: how much comes in, what goes wrong, and which layers both sides have.
#[derive(Clone, Copy)]
struct World {
    load: f64,
    times: Times,
    trigger: Trigger,
    server: fn(Server) -> Server,
    client: fn(Network, u64) -> Client,
}

/// What became of one call.
#[derive(Clone, Copy, Debug, Default)]
struct Call {
    /// In seconds.
    arrived: f64,
    attempts: u32,
    succeeded: bool,
}

/// The server's workers as a service without layers.
fn workers(world: World, workers: Workers, begun: Instant, random: Arc<Mutex<Random>>) -> Server {
    BoxCloneService::new(service_fn(move |_: Ask| {
        let slow = world.trigger == Trigger::Slower && TRIGGER.contains(&begun.elapsed().as_secs_f64());
        let mean = if slow { 10.0 * MEAN } else { MEAN };
        let took = {
            let mut random = random.lock().unwrap_or_else(PoisonError::into_inner);
            match world.times {
                Times::Exponential => random.exponential(mean),
                Times::Erlang4 => (0..4).map(|_| random.exponential(mean / 4.0)).sum(),
            }
        };
        let workers = workers.clone();
        async move {
            workers.work(Duration::from_secs_f64(took)).await;
            Ok(())
        }
    }))
}

/// What lies between: the server goes on with a call whose client has given up.
fn network(server: Server, calls: Arc<Mutex<Vec<Call>>>) -> Network {
    BoxCloneService::new(service_fn(move |call: usize| {
        calls.lock().unwrap_or_else(PoisonError::into_inner)[call].attempts += 1;
        let answer = server.clone().oneshot(Ask { deadline: Instant::now() + PATIENCE });
        let (sender, receiver) = oneshot::channel();
        tokio::spawn(async move {
            let _ = sender.send(answer.await);
        });
        async move { receiver.await.unwrap_or(Err(Status::Unavailable)) }
    }))
}

fn simulate(world: World, seed: u64) -> Vec<Call> {
    paused().block_on(async {
        let begun = Instant::now();
        let at = |seconds: f64| begun + Duration::from_secs_f64(seconds);
        let pool = Workers::new(WORKERS);
        let times = Arc::new(Mutex::new(Random::new(&[seed, 1])));
        let server = (world.server)(workers(world, pool.clone(), begun, times));
        let calls = Arc::new(Mutex::new(Vec::<Call>::new()));
        let client = (world.client)(network(server, Arc::clone(&calls)), seed);

        let trigger = async {
            if world.trigger == Trigger::FewerWorkers {
                sleep_until(at(TRIGGER.start)).await;
                pool.set(3);
                sleep_until(at(TRIGGER.end)).await;
                pool.set(WORKERS);
            }
        };
        let arrivals = async {
            let mut random = Random::new(&[seed, 2]);
            let mut now = random.exponential(1.0 / world.load);
            let mut number = 0;
            while now < END {
                sleep_until(at(now)).await;
                calls
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .push(Call { arrived: now, ..Call::default() });
                let (answer, calls) = (client.clone().oneshot(number), Arc::clone(&calls));
                tokio::spawn(async move {
                    let succeeded = answer.await.is_ok();
                    calls.lock().unwrap_or_else(PoisonError::into_inner)[number].succeeded = succeeded;
                });
                number += 1;
                now += random.exponential(1.0 / world.load);
            }
        };
        tokio::join!(trigger, arrivals);
        sleep(Duration::from_secs_f64(AFTERWARDS)).await;
        std::mem::take(&mut *calls.lock().unwrap_or_else(PoisonError::into_inner))
    })
}

/// What the seeds of one world came to.
struct Outcome {
    /// Seconds after the trigger until all is well for good; `None`: never. One of each seed.
    recoveries: Vec<Option<f64>>,
    /// The share of the calls from 60 s on that succeeded.
    goodput: f64,
    /// The same of the calls that came during the trigger, over the share that three workers could have answered.
    during: f64,
    /// Attempts a call during the trigger.
    attempts: f64,
    /// The most attempts a call in any cohort.
    most: f64,
    /// The share that succeeded, cohort by cohort.
    cohorts: Vec<f64>,
}

/// Sums over calls of one cohort, or of one span.
#[derive(Clone, Copy, Debug, Default)]
struct Sum {
    calls: f64,
    attempts: f64,
    succeeded: f64,
}

impl Sum {
    fn over<'a>(calls: impl Iterator<Item = &'a Call>) -> Self {
        calls.fold(Self::default(), |mut sum, call| {
            sum.add(call);
            sum
        })
    }

    fn add(&mut self, call: &Call) {
        self.calls += 1.0;
        self.attempts += f64::from(call.attempts);
        self.succeeded += f64::from(u8::from(call.succeeded));
    }

    fn success(self) -> f64 {
        self.succeeded / self.calls.max(1.0)
    }

    fn attempts(self) -> f64 {
        self.attempts / self.calls.max(1.0)
    }
}

/// Sums of consecutive cohorts of [`COHORT`] seconds.
fn cohorts(calls: &[Call]) -> Vec<Sum> {
    let mut sums = vec![Sum::default(); (END / COHORT) as usize];
    for call in calls {
        if let Some(sum) = sums.get_mut((call.arrived / COHORT) as usize) {
            sum.add(call);
        }
    }
    sums
}

/// The start of the first cohort after the trigger from which on all are healthy, in seconds after the trigger.
fn recovery(cohorts: &[Sum]) -> Option<f64> {
    let first = (TRIGGER.end / COHORT) as usize;
    match cohorts.iter().rposition(|sum| sum.success() < HEALTHY) {
        Some(last) if last + 1 == cohorts.len() => None,
        Some(last) if last >= first => Some((last + 1 - first) as f64 * COHORT),
        _ => Some(0.0),
    }
}

fn outcome(world: World) -> Outcome {
    let runs: Vec<Vec<Call>> = (0..SEEDS).map(|seed| simulate(world, seed)).collect();
    let span = |from: f64, to: f64| {
        Sum::over(runs.iter().flatten().filter(|call| (from..to).contains(&call.arrived)))
    };
    let trigger = span(TRIGGER.start, TRIGGER.end);
    let each: Vec<Vec<Sum>> = runs.iter().map(|calls| cohorts(calls)).collect();
    let together = cohorts(&runs.concat());
    Outcome {
        recoveries: each.iter().map(|sums| recovery(sums)).collect(),
        goodput: span(TRIGGER.start, END).success(),
        during: trigger.success() * world.load / 30.0,
        attempts: trigger.attempts(),
        most: together.iter().map(|sum| sum.attempts()).fold(0.0, f64::max),
        cohorts: together.iter().map(|sum| sum.success()).collect(),
    }
}

impl Outcome {
    /// In the middle of the seeds; infinite where more than half never recover.
    fn recovery(&self) -> f64 {
        let all: Vec<f64> = self.recoveries.iter().map(|seconds| seconds.unwrap_or(f64::INFINITY)).collect();
        let mut sorted = all;
        sorted.sort_by(f64::total_cmp);
        sorted[sorted.len() / 2]
    }

    fn recovery_text(&self) -> String {
        let mut all: Vec<f64> =
            self.recoveries.iter().map(|seconds| seconds.unwrap_or(f64::INFINITY)).collect();
        all.sort_by(f64::total_cmp);
        let text = |seconds: f64| if seconds.is_finite() { number(seconds) } else { "never".into() };
        let (first, last) = (text(all[0]), text(all[all.len() - 1]));
        if first == last { first } else { format!("{first} to {last}") }
    }
}

// The servers.

fn no_server_layer(server: Server) -> Server {
    server
}

/// Ours, which knows how long each client waits.
fn our_server(server: Server) -> Server {
    knowing(QueueLayer::new(WORKERS).max_waiting(BOUND), server)
}

fn knowing(queue: QueueLayer, server: Server) -> Server {
    let queue = queue.typed().deadline_from(|ask: &Ask| Some(ask.deadline));
    BoxCloneService::new(queue.layer(server))
}

fn our_server_without_deadline(server: Server) -> Server {
    BoxCloneService::new(QueueLayer::new(WORKERS).max_waiting(BOUND).typed().layer(server))
}

fn our_server_without_bound_and_deadline(server: Server) -> Server {
    BoxCloneService::new(QueueLayer::new(WORKERS).max_waiting(usize::MAX).typed().layer(server))
}

fn our_server_with_slack(slack: u32, server: Server) -> Server {
    knowing(QueueLayer::new(WORKERS).max_waiting(1_000).slack(slack), server)
}

// The clients.

fn one_attempt(network: Network, _: u64) -> Client {
    BoxCloneService::new(Timeout::new(network, PATIENCE))
}

/// A tower policy with full jitter and, perhaps, tower's budget.
#[derive(Clone)]
struct TowerPolicy {
    attempt: u32,
    budget: Option<Arc<TpsBudget>>,
    random: Arc<Mutex<Random>>,
}

impl<Req: Clone, Res, E> Policy<Req, Res, E> for TowerPolicy {
    type Future = Sleep;

    fn retry(&mut self, _: &mut Req, result: &mut Result<Res, E>) -> Option<Sleep> {
        if result.is_ok() {
            if let Some(budget) = &self.budget {
                budget.deposit();
            }
            return None;
        }
        if self.attempt + 1 >= ATTEMPTS || self.budget.as_ref().is_some_and(|budget| !budget.withdraw()) {
            return None;
        }
        let longest = BASE.saturating_mul(1 << self.attempt).min(CAP);
        self.attempt += 1;
        let share = self.random.lock().unwrap_or_else(PoisonError::into_inner).unit();
        Some(sleep(longest.mul_f64(share)))
    }

    fn clone_request(&mut self, request: &Req) -> Option<Req> {
        Some(request.clone())
    }
}

fn tower_retry(network: Network, seed: u64) -> Client {
    let random = Arc::new(Mutex::new(Random::new(&[seed, 3])));
    let policy = TowerPolicy { attempt: 0, budget: None, random };
    BoxCloneService::new(Retry::new(policy, Timeout::new(network, PATIENCE)))
}

/// With tower's budget as its documentation has it: a fifth of the calls, and ten a second.
fn tower_retry_with_budget(network: Network, seed: u64) -> Client {
    let random = Arc::new(Mutex::new(Random::new(&[seed, 3])));
    let budget = TpsBudget::new(Duration::from_secs(10), 10, 0.2);
    let policy = TowerPolicy { attempt: 0, budget: Some(Arc::new(budget)), random };
    BoxCloneService::new(Retry::new(policy, Timeout::new(network, PATIENCE)))
}

fn verdict(result: &Result<(), Status>) -> Verdict {
    match result {
        Ok(()) => Verdict::Success,
        Err(Status::Unavailable) => Verdict::unavailable(),
        Err(Status::TooLate) => Verdict::transient(),
    }
}

fn our_client(network: Network, seed: u64) -> Client {
    retrying(RetryBudget::new(), network, seed)
}

fn our_client_without_budget(network: Network, seed: u64) -> Client {
    retrying(RetryBudget::unlimited(), network, seed)
}

fn retrying(budget: RetryBudget, network: Network, seed: u64) -> Client {
    let policy = RetryPolicy::new(ATTEMPTS, Backoff::exponential(BASE, CAP)).classify(verdict).budget(budget);
    let queue =
        QueueLayer::unlimited().max_waiting(usize::MAX).attempt_timeout(PATIENCE).seed(seed).retry(policy);
    BoxCloneService::new(queue.layer(network))
}

/// Runs the experiment.
pub fn run() -> Report {
    let mut report = Report::new("storm", "The storm that does not end");
    report.about(format!(
        "A server of {WORKERS} workers (exponential, mean 100 ms: 100 calls/s) has 3 of them from 60 s to 80 s. It does \
         not notice that clients gave up. A client's attempt times out after 1 s; 4 attempts, base 100 ms, cap 5 s, full \
         jitter. Calls come in at random, whatever becomes of those before (an open loop), and are counted by their \
         arrival, over {SEEDS} seeds. Recovered is what stays at {} % success from then on, in cohorts of 5 s.",
        HEALTHY * 100.0
    ));
    report.about(format!(
        "Ours: at the server a queue with limit {WORKERS} and bound {BOUND} that has the client's timeout as deadline; at \
         the client a queue that retries on the default budget. The peer is tower's `Retry` with its `TpsBudget` (20 % and \
         10/s) over its `Timeout`; the server has no layer. Every failure is a real one of these layers: nothing here \
         models them."
    ));
    let base = World {
        load: 80.0,
        times: Times::Exponential,
        trigger: Trigger::FewerWorkers,
        server: our_server,
        client: our_client,
    };
    let tower = World { server: no_server_layer, client: tower_retry_with_budget, ..base };

    let mut table = Table::new(
        "Side by side:",
        [
            "calls/s",
            "layers",
            "recovery, s",
            "goodput",
            "in the trigger, of what is possible",
            "attempts a call then",
            "most",
        ],
    );
    let mut line = |load: f64, layers: &str, outcome: &Outcome| {
        table.line([
            // The first column is the text.
            number(load),
            layers.into(),
            outcome.recovery_text(),
            format!("{:.3}", outcome.goodput),
            format!("{:.2}", outcome.during),
            format!("{:.2}", outcome.attempts),
            format!("{:.2}", outcome.most),
        ]);
    };

    for (load, goodput, attempts) in
        [(60.0, 0.960, 1.35), (80.0, 0.956, 1.25), (90.0, 0.955, 1.2), (95.0, 0.952, 1.2)]
    {
        eprintln!("lab: {load} calls/s");
        let ours = outcome(World { load, ..base });
        let theirs = outcome(World { load, ..tower });
        line(load, "ours", &ours);
        line(load, "tower Retry, budget", &theirs);
        let case = |what: &str| format!("{load} calls/s: {what}");
        let finite = |seconds: f64| seconds.is_finite().then_some(seconds);
        if load < 95.0 {
            let row =
                Row::new(case("recovery"), "s", ours.recovery().min(END)).peer(finite(theirs.recovery()));
            report.row(row.bar(Bar::AtMost(2.0)));
        }
        let row = Row::new(case("goodput from 60 s to 420 s"), "share", ours.goodput).peer(theirs.goodput);
        report.row(row.bar(Bar::AtLeast(goodput)));
        let row = Row::new(case("success in the trigger, of what is possible"), "share", ours.during)
            .peer(theirs.during);
        report.row(row.bar(Bar::AtLeast(0.85)));
        let row =
            Row::new(case("attempts a call in the trigger"), "attempts", ours.attempts).peer(theirs.attempts);
        report.row(row.bar(Bar::AtMost(attempts)));
        if load == base.load {
            chart(&mut report, base, &ours, &theirs);
        }
        let row = Row::new(case("most attempts a call in any 5 s"), "attempts", ours.most).peer(theirs.most);
        report.row(row.bar(Bar::AtMost(1.9)));
    }

    eprintln!("lab: what each protection is for");
    let without_deadline = outcome(World { server: our_server_without_deadline, ..base });
    line(base.load, "ours without the deadline", &without_deadline);
    let row = Row::new(
        "80 calls/s, without the deadline: success in the trigger",
        "share",
        without_deadline.during,
    );
    report.row(row.bar(Bar::AtMost(0.25)));

    let without_budget = outcome(World { client: our_client_without_budget, ..base });
    line(base.load, "ours without the budget", &without_budget);
    let row = Row::new(
        "80 calls/s, without the budget: attempts a call in the trigger",
        "attempts",
        without_budget.attempts,
    );
    report.row(row.bar(Bar::AtLeast(2.5)));

    let bare =
        World { server: our_server_without_bound_and_deadline, client: our_client_without_budget, ..base };
    let bare = outcome(bare);
    line(base.load, "ours without bound, deadline and budget", &bare);
    let recovered = bare.recoveries.iter().flatten().count();
    let row = Row::new(
        "80 calls/s, without bound, deadline and budget: seeds that recover",
        "seeds",
        recovered as f64,
    );
    report.row(row.bar(Bar::Exactly(0.0)));

    for (layers, server, client) in [
        (
            "no layer, no retry",
            no_server_layer as fn(Server) -> Server,
            one_attempt as fn(Network, u64) -> Client,
        ),
        ("tower Retry, no budget", no_server_layer, tower_retry),
        ("our server, tower Retry, no budget", our_server, tower_retry),
        ("no layer, our client", no_server_layer, our_client),
    ] {
        line(base.load, layers, &outcome(World { server, client, ..base }));
    }

    eprintln!("lab: the other triggers");
    let slower = outcome(World { trigger: Trigger::Slower, ..base });
    line(base.load, "ours, calls slowed to 1 s instead", &slower);
    let minute = (60.0 / COHORT) as usize;
    let last = stats::mean(&slower.cohorts[slower.cohorts.len() - minute..]);
    let row = Row::new("80 calls/s, slowed to 1 s for 20 s: success in the last minute", "share", last);
    report.row(row.bar(Bar::AtLeast(HEALTHY)));

    let erlang = World { load: 90.0, times: Times::Erlang4, client: our_client_without_budget, ..base };
    let strict = outcome(World { server: |server| our_server_with_slack(2, server), ..erlang });
    let lax = outcome(World { server: |server| our_server_with_slack(0, server), ..erlang });
    line(erlang.load, "Erlang-4, bound 1 000, no budget, slack 2", &strict);
    line(erlang.load, "Erlang-4, bound 1 000, no budget, slack 0", &lax);
    report.row(
        Row::new("90 calls/s, Erlang-4, no budget, bound 1 000, slack 2: goodput", "share", strict.goodput)
            .bar(Bar::AtLeast(0.9)),
    );
    report.row(Row::new("the same with slack 0", "share", lax.goodput).bar(Bar::AtMost(0.5)));

    report.table(table);
    report
}

fn chart(report: &mut Report, base: World, ours: &Outcome, theirs: &Outcome) {
    let mut chart = Chart::new(
        "storm.svg",
        "80 calls/s, and three workers of ten from 60 s to 80 s",
        ("s", Scale::Linear),
        ("calls that succeed, %", Scale::Linear),
    );
    let unlimited = outcome(World { server: no_server_layer, client: tower_retry, ..base });
    let once = outcome(World { server: no_server_layer, client: one_attempt, ..base });
    for (name, outcome) in [
        ("ours", ours),
        ("tower Retry, budget", theirs),
        ("tower Retry, no budget", &unlimited),
        ("no retry", &once),
    ] {
        let points = outcome.cohorts.iter().enumerate();
        chart.series(
            name,
            points.map(|(i, share)| ((i as f64 + 0.5) * COHORT, share * 100.0)).collect::<Vec<_>>(),
        );
    }
    report.chart(chart);
}
