//! A long run on several threads in real time: everything that can happen to a queue, at random, and its rules checked
//! all along.

use crate::alloc;
use crate::report::{Bar, Report, Row, Table};
use crate::stats::Random;
use futures_util::FutureExt;
use std::fmt;
use std::future::Future;
use std::panic::{self, AssertUnwindSafe};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::runtime::Builder;
use tokio::task::yield_now;
use tokio::time::{Instant, Sleep, sleep};
use tower::{Layer, Service, ServiceExt, service_fn};
use tower_sluice::backoff::Backoff;
use tower_sluice::queue::{Handle, QueueLayer, Stats};
use tower_sluice::reject::Rejection;
use tower_sluice::retry::RetryPolicy;

const CALLS: u64 = 10_000_000;
/// A few more than find room at most times, so that some are turned away.
const CALLERS: u64 = 160;
const SEED: u64 = 7;
const MAX_WAITING: usize = 128;
/// The operator sets limits up to here.
const MAX_LIMIT: usize = 32;
/// Nothing ends for so long: a wake-up was lost.
const STUCK: Duration = Duration::from_secs(20);

/// What one attempt does, decided by its caller.
#[derive(Clone, Copy, Debug)]
enum Attempt {
    Answers,
    AnswersLater,
    Sleeps,
    Fails,
    Panics,
    /// Ended by the attempt timeout, or by its caller.
    Hangs,
}

#[derive(Debug)]
struct Failed;

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("failed on purpose")
    }
}

impl std::error::Error for Failed {}

/// Rules that were seen broken, and what the callers saw.
#[derive(Debug, Default)]
struct Seen {
    /// Q1: attempts at once.
    running: AtomicUsize,
    /// The most there may be at this moment, below how often that has changed: see [`Seen::allow`].
    allowed: AtomicU64,
    peak: AtomicUsize,
    starts: AtomicU64,
    /// Set while no attempt may start.
    shut: AtomicBool,

    over_limit: AtomicU64,
    /// Starts during which the limit changed.
    unjudged: AtomicU64,
    while_paused: AtomicU64,
    unbalanced: AtomicU64,
    over_bound: AtomicU64,

    begun: AtomicU64,
    ended: AtomicU64,
    succeeded: AtomicU64,
    failed: AtomicU64,
    full: AtomicU64,
    cleared: AtomicU64,
    rejected: AtomicU64,
    dropped: AtomicU64,
    panicked: AtomicU64,
    unknown: AtomicU64,
}

impl Seen {
    /// The operator's: from now on there are at most so many.
    fn allow(&self, limit: usize) {
        let changes = self.allowed.load(SeqCst) >> 32;
        self.allowed.store((changes + 1) << 32 | limit as u64, SeqCst);
    }

    fn most(allowed: u64) -> usize {
        (allowed & u64::from(u32::MAX)) as usize
    }
}

fn one(counter: &AtomicU64) {
    counter.fetch_add(1, SeqCst);
}

/// An attempt; counts as running from the call to its answer, or to its drop.
struct Running {
    seen: Option<Arc<Seen>>,
    attempt: Attempt,
    polled: bool,
    sleep: Option<Pin<Box<Sleep>>>,
}

impl Running {
    fn start(seen: &Arc<Seen>, attempt: Attempt) -> Self {
        one(&seen.starts);
        if seen.shut.load(SeqCst) {
            one(&seen.while_paused);
        }
        // Judged only if the limit stood still: a thread that is held up between would compare what ran under one
        // limit with another.
        let before = seen.allowed.load(SeqCst);
        let running = seen.running.fetch_add(1, SeqCst) + 1;
        let after = seen.allowed.load(SeqCst);
        seen.peak.fetch_max(running, SeqCst);
        if before != after {
            one(&seen.unjudged);
        } else if running > Seen::most(before) {
            one(&seen.over_limit);
        }
        Self { seen: Some(Arc::clone(seen)), attempt, polled: false, sleep: None }
    }

    fn end(&mut self) {
        if let Some(seen) = self.seen.take() {
            seen.running.fetch_sub(1, SeqCst);
        }
    }
}

impl Future for Running {
    type Output = Result<(), Failed>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let again = std::mem::replace(&mut self.polled, true);
        match self.attempt {
            Attempt::Answers => {}
            Attempt::AnswersLater | Attempt::Fails | Attempt::Panics if !again => {
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            Attempt::AnswersLater => {}
            Attempt::Fails => {
                self.end();
                return Poll::Ready(Err(Failed));
            }
            Attempt::Panics => panic::resume_unwind(Box::new("on purpose")),
            Attempt::Hangs => return Poll::Pending,
            Attempt::Sleeps => {
                let sleep = self.sleep.get_or_insert_with(|| Box::pin(sleep(Duration::from_millis(1))));
                std::task::ready!(sleep.as_mut().poll(cx));
            }
        }
        self.end();
        Poll::Ready(Ok(()))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.end();
    }
}

/// What the attempts of a call do, one after another: its request.
#[derive(Clone, Debug)]
struct Plan(Arc<(AtomicUsize, [Attempt; 4])>);

impl Plan {
    fn draw(random: &mut Random) -> Self {
        let attempt = |random: &mut Random| match random.next() % 1_000 {
            0..500 => Attempt::Answers,
            500..890 => Attempt::AnswersLater,
            890..990 => Attempt::Fails,
            990..996 => Attempt::Sleeps,
            996..998 => Attempt::Panics,
            _ => Attempt::Hangs,
        };
        Self(Arc::new((AtomicUsize::new(0), std::array::from_fn(|_| attempt(random)))))
    }

    fn next(&self) -> Attempt {
        let (made, attempts) = &*self.0;
        attempts[made.fetch_add(1, SeqCst) % attempts.len()]
    }
}

/// Polls a future so many times, then drops it.
struct Abandoned<F> {
    future: F,
    polls: u64,
}

impl<F: Future + Unpin> Future for Abandoned<F> {
    type Output = Option<F::Output>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if self.polls == 0 {
            return Poll::Ready(None);
        }
        self.polls -= 1;
        self.future.poll_unpin(cx).map(Some)
    }
}

async fn caller<S>(service: S, seen: Arc<Seen>, number: u64)
where
    S: Service<Plan, Response = (), Error = tower::BoxError> + Clone,
{
    let mut random = Random::new(&[SEED, number]);
    while seen.begun.fetch_add(1, SeqCst) < CALLS {
        let call = AssertUnwindSafe(service.clone().oneshot(Plan::draw(&mut random))).catch_unwind();
        // One call in thirty is dropped: before it was polled, or while it waits or runs.
        let dropped = random.next().is_multiple_of(30);
        let polls = if dropped { random.next() % 4 } else { u64::MAX };
        let answer = Abandoned { future: Box::pin(call), polls }.await;
        match answer {
            None => one(&seen.dropped),
            Some(Err(_)) => one(&seen.panicked),
            Some(Ok(Ok(()))) => one(&seen.succeeded),
            Some(Ok(Err(error))) => match Rejection::find(&*error) {
                Some(Rejection::Full { .. }) => {
                    one(&seen.full);
                    // Gives way: else most calls of the run would be of this kind.
                    sleep(Duration::from_millis(1)).await;
                }
                Some(Rejection::Cleared { .. }) => one(&seen.cleared),
                Some(_) => one(&seen.rejected),
                None if error.is::<Failed>() => one(&seen.failed),
                None => one(&seen.unknown),
            },
        }
        one(&seen.ended);
        if random.next().is_multiple_of(64) {
            yield_now().await;
        }
    }
}

/// What only one who steers the queue can check.
async fn operator(handle: Handle, seen: Arc<Seen>) -> (u64, u64) {
    let mut random = Random::new(&[SEED, u64::MAX]);
    let (mut acts, mut cleared) = (0, 0);
    while seen.ended.load(SeqCst) < CALLS {
        acts += 1;
        match random.next() % 4 {
            0 => {
                handle.pause();
                seen.shut.store(true, SeqCst);
                let starts = seen.starts.load(SeqCst);
                for _ in 0..random.next() % 64 {
                    yield_now().await;
                }
                balanced(&handle.stats(), &seen);
                if seen.starts.load(SeqCst) != starts {
                    one(&seen.while_paused);
                }
                seen.shut.store(false, SeqCst);
                handle.resume();
            }
            1 => cleared += handle.clear("soak") as u64,
            2 => {
                let limit = 1 + random.next() as usize % MAX_LIMIT;
                let before = Seen::most(seen.allowed.load(SeqCst));
                if limit > before {
                    seen.allow(limit);
                }
                assert!(handle.set_limit(limit).is_ok(), "a limit within the bounds");
                // Those that run already finish; none starts until there are fewer.
                while limit < before && handle.stats().running > limit {
                    yield_now().await;
                }
                seen.allow(limit);
            }
            _ => {
                let stats = handle.stats();
                if stats.queued + stats.running + stats.deferred > MAX_LIMIT + MAX_WAITING {
                    one(&seen.over_bound);
                }
                balanced(&stats, &seen);
            }
        }
        sleep(Duration::from_micros(random.next() % 2_000)).await;
    }
    (acts, cleared)
}

/// Every admitted call is somewhere.
fn balanced(stats: &Stats, seen: &Seen) {
    let somewhere = (stats.queued + stats.running + stats.deferred) as u64 + stats.finished();
    if stats.admitted != somewhere {
        one(&seen.unbalanced);
    }
}

/// Runs the experiment.
pub fn run() -> Report {
    let mut report = Report::new("soak", "A long run");
    report.about(format!(
        "{CALLS} calls by {CALLERS} callers on two threads, in real time, against one queue that retries (bound \
         {MAX_WAITING}): attempts that answer, fail, sleep, hang and panic; calls dropped in every state; an operator who \
         pauses, clears, resizes and looks. Seed {SEED}; what the threads make of it differs from run to run."
    ));
    // The panics here are on purpose and unwind without the hook: any other is shown as ever.
    let seen = Arc::new(Seen::default());
    seen.allow(MAX_LIMIT);
    let policy =
        RetryPolicy::new(4, Backoff::exponential(Duration::from_micros(100), Duration::from_millis(2)));
    let queue = QueueLayer::new(MAX_LIMIT)
        .max_waiting(MAX_WAITING)
        .attempt_timeout(Duration::from_millis(5))
        .call_timeout(Duration::from_millis(50))
        .seed(SEED)
        .retry(policy);
    let handle = queue.handle();
    let service = queue.layer(service_fn({
        let seen = Arc::clone(&seen);
        move |plan: Plan| Running::start(&seen, plan.next())
    }));

    let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime");
    let (took, stuck, early, late, acts, cleared) = runtime.block_on(async {
        let begun = Instant::now();
        let operator = tokio::spawn(operator(handle.clone(), Arc::clone(&seen)));
        for number in 0..CALLERS {
            tokio::spawn(caller(service.clone(), Arc::clone(&seen), number));
        }
        let (mut stuck, mut early, mut last, mut since) = (false, None, 0, Instant::now());
        loop {
            sleep(Duration::from_millis(100)).await;
            let ended = seen.ended.load(SeqCst);
            if ended >= CALLS {
                break;
            }
            // By a tenth of the calls everything has been grown that grows with use.
            if early.is_none() && ended >= CALLS / 10 {
                early = alloc::resident();
            }
            if ended != last {
                (last, since) = (ended, Instant::now());
            } else if since.elapsed() > STUCK {
                stuck = true;
                break;
            }
        }
        let late = alloc::resident();
        let (acts, cleared) = match stuck {
            true => (0, 0),
            false => operator.await.expect("the operator does not panic"),
        };
        (begun.elapsed(), stuck, early, late, acts, cleared)
    });

    let stats = handle.stats();
    let violation = |report: &mut Report, rule: &str, count: u64| {
        report.row(Row::new(rule, "violations", count as f64).bar(Bar::Exactly(0.0)));
    };
    let count = |counter: &AtomicU64| counter.load(SeqCst);
    violation(&mut report, "Q1, Q12: more attempts at once than the limit", count(&seen.over_limit));
    violation(&mut report, "Q6: more calls than the bound", count(&seen.over_bound));
    violation(&mut report, "Q8: attempts that started while paused", count(&seen.while_paused));
    violation(&mut report, "Q14: nothing ended for 20 s", u64::from(stuck));
    violation(&mut report, "figures of admitted calls that do not add up", count(&seen.unbalanced));
    let end = (stats.queued + stats.running + stats.deferred + stats.granted + stats.reserved) as u64;
    violation(&mut report, "Q13: gauges that are not zero at the end", end);
    violation(&mut report, "attempts that still run at the end", seen.running.load(SeqCst) as u64);
    let differ = |a: u64, b: u64| a.abs_diff(b);
    violation(
        &mut report,
        "successes that callers and figures count differently",
        differ(stats.succeeded, count(&seen.succeeded)),
    );
    violation(
        &mut report,
        "cleared calls that the operator and figures count differently",
        differ(stats.cleared, cleared),
    );
    violation(
        &mut report,
        "full rejections that callers and figures count differently",
        differ(stats.rejected.full, count(&seen.full)),
    );
    violation(&mut report, "answers of no known kind", count(&seen.unknown));
    let grown = late.zip(early).map(|(late, early)| (late.saturating_sub(early)) as f64 / f64::from(1 << 20));
    report.row(
        Row::new("resident memory, from a tenth of the calls to the end", "MiB grown", grown)
            .bar(Bar::AtMost(8.0)),
    );
    report.row(Row::new("time", "s", took.as_secs_f64()));

    let mut table = Table::new("What happened:", ["what", "count"]);
    for (what, count) in [
        ("calls", count(&seen.ended)),
        ("succeeded", stats.succeeded),
        ("failed for good", stats.failed),
        ("dropped by their callers", count(&seen.dropped)),
        ("attempts", stats.attempts),
        ("retries", stats.retries),
        ("panics", count(&seen.panicked)),
        ("turned away, full", stats.rejected.full),
        ("ended by their deadline", stats.rejected.deadline),
        ("cleared", stats.cleared),
        ("acts of the operator", acts),
        ("starts while the limit changed, not judged by it", count(&seen.unjudged)),
        ("most attempts at once", seen.peak.load(SeqCst) as u64),
    ] {
        table.line([what.into(), count.to_string()]);
    }
    report.table(table);
    report
}
