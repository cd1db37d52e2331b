//! Thousands of HTTP calls through flaky, rate-limited servers, with one command.
//!
//! ```text
//! cargo run --release --example bulk                                   # against a server of its own that fails
//! cargo run --release --example bulk -- --input urls.txt --rate 100/1m --output results.jsonl
//! ```
//!
//! Every host has a queue of its own; all are paused, drained and cleared together. Space pauses and resumes, Ctrl-C
//! lets what was taken on finish for as long as `--grace` and reports what was not done, a second one clears what
//! waits, a third one leaves at once. The status is 0 only if every call succeeded (or with `--allow-failures`), 1 if
//! not, 2 if nothing was started because something about the options is wrong.
//!
//! `stack.rs` is the part to read for how the layers are put together.

mod fetch;
mod gauge;
mod keys;
mod options;
mod progress;
mod report;
mod stack;
mod upstream;

use std::io::Write;
use std::pin::pin;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use futures_util::StreamExt;
use futures_util::future::OptionFuture;
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};

use crate::fetch::Call;
use crate::keys::{Wish, Wishes};
use crate::options::Options;
use crate::progress::Progress;
use crate::report::{Report, Summary};
use crate::stack::{Control, Results};
use crate::upstream::Upstream;

/// How often the figures are read and shown.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// How long to wait for results that are settled already.
const SETTLED: Duration = Duration::from_millis(100);

#[tokio::main]
async fn main() -> ExitCode {
    let options = Options::parse();
    match run(&options).await {
        Ok(summary) if options.allow_failures || summary.succeeded == summary.calls => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(Stopped::BeforeTheStart(why)) => {
            eprintln!("bulk: {why}");
            ExitCode::from(2)
        }
        Err(Stopped::Midway(why)) => {
            eprintln!("bulk: {why}");
            ExitCode::FAILURE
        }
    }
}

/// Why there is no summary.
enum Stopped {
    BeforeTheStart(String),
    Midway(std::io::Error),
}

impl From<String> for Stopped {
    fn from(why: String) -> Self {
        Self::BeforeTheStart(why)
    }
}

impl From<std::io::Error> for Stopped {
    fn from(why: std::io::Error) -> Self {
        Self::Midway(why)
    }
}

async fn run(options: &Options) -> Result<Summary, Stopped> {
    let urls = options.urls()?;
    let client = fetch::client(options.roots()?);
    stack::check(options)?;
    let output = options.output()?;

    let (upstream, urls) = match urls {
        Some(urls) => (None, urls),
        None => {
            let seed = options.seed.unwrap_or_default();
            let upstream = Upstream::start(options.calls, options.fail_rate, seed).await?;
            let urls = (0..options.calls).map(|n| upstream.url(n)).collect();
            (Some(upstream), urls)
        }
    };
    let calls: Vec<Call> = urls.into_iter().map(Call::new).collect();
    let count = calls.len();
    let (control, results) = stack::build(calls, &client, options)?;

    let begun = Instant::now();
    let mut report = Report::new(output);
    let max_deferred = drive(&control, results, count, &mut report, options).await?;
    let (attempts, retries) = control.attempts();
    report.leave(count - report.done());
    report.flush()?;

    let summary = Summary {
        calls: count,
        succeeded: report.succeeded,
        failed: report.failed,
        cleared: report.cleared,
        attempts,
        retries,
        limit: options.concurrency,
        peak_running: control.peak_running(),
        peak_seen_by_upstream: upstream.as_ref().map(Upstream::peak),
        max_deferred,
        elapsed_ms: u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX),
        early_returns: upstream.as_ref().map(Upstream::early_returns),
    };
    let text = if options.json {
        let mut line = serde_json::to_string(&summary).map_err(std::io::Error::from)?;
        line.push('\n');
        line
    } else {
        report.table(&summary)
    };
    std::io::stdout().write_all(text.as_bytes())?;
    Ok(summary)
}

/// Polls the results to their end, or until the user has had enough; returns the most calls seen out of slot at once.
async fn drive(
    control: &Control,
    mut results: Results,
    count: usize,
    report: &mut Report,
    options: &Options,
) -> std::io::Result<usize> {
    let mut wishes = Wishes::listen(!options.reads_stdin());
    let mut progress = Progress::new(count);
    if wishes.has_keyboard() {
        progress.say("space pauses and resumes, Ctrl-C stops");
    }
    let mut look = interval(LOOK_EVERY);
    look.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut max_deferred = 0;
    let mut stops = 0;
    let mut drain = pin!(OptionFuture::from(None));

    loop {
        tokio::select! {
            next = results.next() => match next {
                Some((call, result)) => report.record(&call, result)?,
                None => break,
            },
            _ = look.tick() => {
                let mut moment = control.moment();
                max_deferred = max_deferred.max(moment.deferred);
                (moment.done, moment.failed) = (report.done(), report.failed);
                progress.show(&moment);
            }
            Some(still_running) = &mut drain, if stops > 0 => {
                // What waited has been settled and is gathered; what still runs is not waited for.
                while let Ok(Some((call, result))) = timeout(SETTLED, results.next()).await {
                    report.record(&call, result)?;
                }
                if still_running > 0 {
                    progress.say(&format!("{still_running} still running after {:?}", options.grace));
                }
                break;
            }
            wish = wishes.next() => match wish {
                Wish::Toggle => {
                    control.toggle();
                    progress.say(if control.is_paused() { "paused" } else { "resumed" });
                }
                Wish::Stop => {
                    stops += 1;
                    if stops == 1 {
                        drain.set(Some(control.clone().drain(options.grace)).into());
                        progress.say(&format!(
                            "finishing what was taken on, for {:?} at most; Ctrl-C again clears it", options.grace,
                        ));
                    }
                    // A paused queue would wait for its grace to end and start nothing.
                    if stops == 2 || (stops == 1 && control.is_paused()) {
                        progress.say(&format!("cleared {}", control.clear("stopped by the user")));
                    }
                    if stops > 2 {
                        break;
                    }
                }
            },
        }
    }
    progress.end();
    Ok(max_deferred)
}
