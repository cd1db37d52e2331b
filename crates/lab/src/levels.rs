//! How a ladder moves when what it measures flaps, fails, declines or falls silent, in virtual time.
//!
//! The real layers all the way: attempts through a `MeasureLayer`, a spawned `Ladder` with its defaults on tokio's
//! paused clock, and an upstream that fails by script.

use crate::chart::{Chart, Scale};
use crate::report::{Bar, Report, Row, Table, number};
use crate::service::{Fail, paused};
use crate::stats::Random;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::time::{Instant, sleep, sleep_until};
use tower::{Layer, Service, ServiceExt, service_fn};
use tower_sluice::degrade::{Ladder, MeasureLayer, Signal, rule};

const RUNGS: [&str; 4] = ["high", "medium", "low", "audio only"];
const BOTTOM: usize = RUNGS.len() - 1;
/// Attempts a second, where a case says nothing else.
const RATE: u64 = 50;
/// The seeds of cases with a true failure ratio.
const SEEDS: u64 = 8;

/// What happens at a time and a rung: attempts a second, and which of them fail.
type Script = dyn Fn(f64, usize) -> (u64, Failing);

/// Which of the attempts fail.
#[derive(Clone, Copy)]
enum Failing {
    /// All or none.
    All(bool),
    /// Each by chance.
    Ratio(f64),
    /// Those beyond so many a second: 429.
    Beyond(u64),
}

/// When the level changed, in seconds, and to which rung.
struct Trace {
    seconds: u64,
    moves: Vec<(f64, usize)>,
}

impl Trace {
    fn between(&self, from: f64, to: f64) -> usize {
        self.moves.iter().filter(|&&(at, _)| at > from && at <= to).count()
    }

    /// The most changes in any 60 s.
    fn most_a_minute(&self) -> usize {
        self.moves
            .iter()
            .map(|&(from, _)| self.moves.iter().filter(|&&(at, _)| at >= from && at < from + 60.0).count())
            .max()
            .unwrap_or(0)
    }

    /// The most rungs between one level and the next. The level is looked at far more often than facts are read.
    fn most_rungs(&self) -> usize {
        let rungs = std::iter::once(0).chain(self.moves.iter().map(|&(_, rung)| rung));
        rungs.zip(self.moves.iter()).map(|(from, &(_, to))| from.abs_diff(to)).max().unwrap_or(0)
    }

    fn rung_at(&self, time: f64) -> usize {
        self.moves.iter().take_while(|&&(at, _)| at <= time).last().map_or(0, |&(_, rung)| rung)
    }

    /// When `rung` is reached for the last time, counted from `from`, if it holds at the end.
    fn settled_at(&self, rung: usize, from: f64) -> Option<f64> {
        (self.rung_at(self.seconds as f64) == rung)
            .then(|| self.moves.last().map_or(0.0, |&(at, _)| (at - from).max(0.0)))
    }

    /// When `rung` is first held from `from` on, counted from there.
    fn reached(&self, rung: usize, from: f64) -> Option<f64> {
        if self.rung_at(from) == rung {
            return Some(0.0);
        }
        self.moves.iter().find(|&&(at, to)| at > from && to == rung).map(|&(at, _)| at - from)
    }

    fn mean_rung(&self, from: f64) -> f64 {
        let end = self.seconds as f64;
        let mut sum = 0.0;
        let (mut since, mut rung) = (from, self.rung_at(from));
        for &(at, to) in self.moves.iter().filter(|&&(at, _)| at > from) {
            sum += (at - since) * rung as f64;
            (since, rung) = (at, to);
        }
        (sum + (end - since) * rung as f64) / (end - from)
    }

    fn steps(&self) -> Vec<(f64, f64)> {
        let mut points = vec![(0.0, 0.0)];
        for &(at, rung) in &self.moves {
            let before = points.last().map_or(0.0, |&(_, rung)| rung);
            points.extend([(at, before), (at, rung as f64)]);
        }
        let last = points.last().map_or(0.0, |&(_, rung)| rung);
        points.push((self.seconds as f64, last));
        points
    }
}

/// Runs `script` for so long. The ladder's windows begin `phase` before the script does.
fn run_script(seconds: u64, phase: Duration, seed: u64, script: &Script) -> Trace {
    paused().block_on(async {
        let fails = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&fails);
        let measure = MeasureLayer::new();
        let mut upstream = measure.layer(service_fn(move |_: u64| {
            let fails = told.load(Ordering::Relaxed);
            async move { if fails { Err(Fail) } else { Ok(0) } }
        }));
        let signal = Ladder::new(RUNGS).rule(rule::failure_ratio()).source(measure.facts()).spawn();
        tokio::task::yield_now().await;
        sleep(phase).await;

        let mut random = Random::new(&[seed]);
        let begun = Instant::now();
        let mut trace = Trace { seconds, moves: Vec::new() };
        let mut next = begun;
        while begun.elapsed() < Duration::from_secs(seconds) {
            let now = begun.elapsed().as_secs_f64();
            look(&signal, now, &mut trace);
            let (rate, failing) = script(now, signal.rung().position());
            if rate == 0 {
                next += Duration::from_millis(20);
                sleep_until(next).await;
                continue;
            }
            let nth = (now.fract() * rate as f64).round() as u64;
            fails.store(
                match failing {
                    Failing::All(all) => all,
                    Failing::Ratio(ratio) => random.unit() < ratio,
                    Failing::Beyond(most) => nth >= most,
                },
                Ordering::Relaxed,
            );
            // The answer is at hand: how it ended is counted by the layer.
            let _ = upstream.ready().await.expect("always ready").call(0).await;
            next += Duration::from_secs(1) / rate as u32;
            sleep_until(next).await;
        }
        look(&signal, seconds as f64, &mut trace);
        trace
    })
}

fn look(signal: &Signal<&'static str>, now: f64, trace: &mut Trace) {
    let rung = signal.rung().position();
    if rung != trace.moves.last().map_or(0, |&(_, rung)| rung) {
        trace.moves.push((now, rung));
    }
}

fn flapping(half: f64, seconds: u64) -> Trace {
    run_script(seconds, Duration::ZERO, 0, &move |now, _| (RATE, Failing::All((now / half % 2.0) < 1.0)))
}

/// Over all places of the begin of a change within a window: the worst, in seconds. `None` if one never got there.
fn worst(figure: impl Fn(Duration) -> Option<f64>) -> Option<f64> {
    (0..10)
        .map(|tenth| figure(Duration::from_millis(100 * tenth + 3)))
        .try_fold(0.0, |most: f64, one| Some(most.max(one?)))
}

/// Runs the experiment.
pub fn run() -> Report {
    let mut report = Report::new("levels", "How a ladder moves");
    report.about(format!(
        "A ladder of four rungs with its defaults reads the failure ratio of {RATE} attempts a second, where not said \
         otherwise, in windows of 1 s, on tokio's paused clock. Times are the worst of ten places of the change within a \
         window. No peer has the like."
    ));
    let mut most_rungs = 0;
    let mut most_a_minute = 0;
    let mut seen = |trace: &Trace| {
        most_rungs = most_rungs.max(trace.most_rungs());
        most_a_minute = most_a_minute.max(trace.most_a_minute());
    };

    let mut chart = Chart::new(
        "levels.svg",
        "The level of a dependency that flaps (0 is the best rung)",
        ("s", Scale::Linear),
        ("rung", Scale::Linear),
    );
    let mut table = Table::new(
        "A dependency that flips between good and bad:",
        [
            "half-period, s",
            "changes in the first minute",
            "a minute in the last five of ten",
            "most in any 60 s",
        ],
    );
    for half in [3.0, 20.0, 30.0, 60.0] {
        let trace = flapping(half, 600);
        seen(&trace);
        let (first, last) = (trace.between(0.0, 60.0), trace.between(300.0, 600.0) as f64 / 5.0);
        let case = format!("flapping every {half} s, first minute");
        report.row(Row::new(case, "changes", first as f64).bar(Bar::AtMost(7.0)));
        let row =
            Row::new(format!("flapping every {half} s, last five of ten minutes"), "changes a minute", last);
        report.row(if half < 60.0 { row.bar(Bar::AtMost(0.1)) } else { row });
        table.line([number(half), number(first as f64), number(last), number(trace.most_a_minute() as f64)]);
        chart.series(format!("every {half} s"), trace.steps());
    }
    report.table(table);

    // Half-periods drawn anew each time, between one window and the time in which all is forgotten.
    for seed in 0..SEEDS {
        let mut random = Random::new(&[seed, 1]);
        let mut flips = vec![0.0];
        while flips.last().is_some_and(|&at| at < 3_600.0) {
            let last = flips.last().copied().unwrap_or(0.0);
            flips.push(last + 1.0 + random.unit() * random.unit() * 60.0);
        }
        let trace = run_script(3_600, Duration::ZERO, seed, &move |now, _| {
            (RATE, Failing::All(flips.partition_point(|&at| at <= now) % 2 == 0))
        });
        seen(&trace);
    }

    let outage =
        |phase| run_script(200, phase, 0, &|now, _| (RATE, Failing::All((60.0..120.0).contains(&now))));
    seen(&outage(Duration::ZERO));
    let down = worst(|phase| outage(phase).reached(BOTTOM, 60.0));
    report.row(Row::new("outage of 60 s: at the bottom", "s", down).bar(Bar::AtMost(8.0)));
    let up = worst(|phase| outage(phase).settled_at(0, 120.0));
    report.row(Row::new("its end: back at the top", "s", up).bar(Bar::AtMost(35.0)));

    // Relapses that drive the hold to its most, then an outage.
    let relapses = |now| matches!(now, ..8.0 | 20.0..25.0 | 47.0..52.0 | 94.0..154.0);
    let history = |phase| run_script(260, phase, 0, &move |now, _| (RATE, Failing::All(relapses(now))));
    seen(&history(Duration::ZERO));
    let up = worst(|phase| history(phase).settled_at(0, 154.0));
    report.row(Row::new("the same after relapses: back at the top", "s", up).bar(Bar::AtMost(90.0)));

    // From the second minute on: the first few windows have to show the ratio at all.
    let mut table = Table::new(
        "A true failure ratio, ten minutes, by attempts a window: mean rung from the second minute on:",
        ["ratio", "20", "50", "100"],
    );
    for (ratio, bar) in [
        (0.02, Some(Bar::Exactly(0.0))),
        (0.05, Some(Bar::AtMost(0.25))),
        (0.1, None),
        (0.15, Some(Bar::AtLeast(2.9))),
        (0.3, Some(Bar::AtLeast(2.9))),
        (1.0, Some(Bar::AtLeast(2.9))),
    ] {
        let mean = |rate: u64| {
            let mut sum = 0.0;
            for seed in 0..SEEDS {
                let trace = run_script(600, Duration::ZERO, seed, &move |_, _| (rate, Failing::Ratio(ratio)));
                seen(&trace);
                sum += trace.mean_rung(60.0);
            }
            sum / SEEDS as f64
        };
        let rates = [20, RATE, 100].map(mean);
        table.line(std::iter::once(number(ratio)).chain(rates.map(number)));
        let row = Row::new(format!("true failure ratio {ratio}: mean rung"), "rung", rates[1]);
        report.row(match bar {
            Some(bar) => row.bar(bar),
            None => row,
        });
    }
    report.table(table);

    // From no failures to half of all, in five minutes.
    let decline = run_script(300, Duration::ZERO, 0, &|now, _| (RATE, Failing::Ratio(now / 600.0)));
    seen(&decline);
    for (rung, name) in RUNGS.iter().enumerate().skip(1) {
        let at = decline.reached(rung, 0.0).map(|at| at / 600.0 * 100.0);
        report.row(Row::new(format!("slow decline: {name} from a ratio of"), "%", at));
    }
    let changes = decline.between(0.0, 300.0) as f64;
    report.row(Row::new("slow decline: changes, three of them needed", "changes", changes));
    chart.series("slow decline", decline.steps());

    let silence =
        |phase| run_script(200, phase, 0, &|now, _| (if now < 20.0 { RATE } else { 0 }, Failing::All(true)));
    seen(&silence(Duration::ZERO));
    let up = worst(|phase| silence(phase).settled_at(0, 20.0));
    report.row(Row::new("silence after an outage: back at the top", "s", up).bar(Bar::AtMost(125.0)));
    let up = silence(Duration::from_millis(503)).settled_at(0, 20.0);
    report.row(Row::new("the same: not before", "s", up).bar(Bar::AtLeast(115.0)));

    let little = |phase| run_script(200, phase, 0, &|now, _| (9, Failing::All(now < 20.0)));
    seen(&little(Duration::ZERO));
    let up = worst(|phase| little(phase).settled_at(0, 20.0));
    report.row(Row::new("9 healthy attempts a window: back at the top", "s", up).bar(Bar::AtMost(125.0)));

    // A rate limiter answers all beyond ten calls a second with 429; each rung asks less of it.
    let limited = run_script(600, Duration::ZERO, 0, &|_, rung| ([24, 18, 12, 6][rung], Failing::Beyond(10)));
    seen(&limited);
    let case = "24, 18, 12 or 6 calls/s where 10 are answered";
    report.row(
        Row::new(format!("{case}: first minute"), "changes", limited.between(0.0, 60.0) as f64)
            .bar(Bar::AtMost(7.0)),
    );
    let changes = limited.between(60.0, 600.0) as f64 / 9.0;
    report.row(Row::new(format!("{case}: then"), "changes a minute", changes).bar(Bar::AtMost(4.0)));
    report.row(Row::new(format!("{case}: mean rung"), "rung", limited.mean_rung(60.0)));

    report.row(
        Row::new("all of the above: most changes in any 60 s", "changes", most_a_minute as f64)
            .bar(Bar::AtMost(9.0)),
    );
    report.row(
        Row::new("all of the above: most rungs in one reading", "rungs", most_rungs as f64)
            .bar(Bar::Exactly(1.0)),
    );
    report.chart(chart);
    report
}
