//! What a person sees while it runs: a bar on a terminal, a line now and then elsewhere.

use std::fmt;
use std::io::IsTerminal;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use tokio::time::Instant;

/// How often a line is printed where there is no terminal.
const LINE_EVERY: Duration = Duration::from_secs(1);

/// The figures of one moment, over all hosts.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Moment {
    pub(crate) done: usize,
    pub(crate) failed: usize,
    pub(crate) queued: usize,
    pub(crate) running: usize,
    pub(crate) deferred: usize,
    pub(crate) retried: u64,
    pub(crate) paused: bool,
    pub(crate) held: bool,
}

impl fmt::Display for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { queued, running, deferred, retried, failed, .. } = self;
        write!(
            f,
            "queued {queued}, running {running}, deferred {deferred}, retried {retried}, failed {failed}"
        )?;
        if self.paused {
            f.write_str(", paused")?;
        }
        if self.held {
            f.write_str(", held by Retry-After")?;
        }
        Ok(())
    }
}

pub(crate) enum Progress {
    Bar(ProgressBar),
    Lines { calls: usize, begun: Instant, last: Instant },
}

impl Progress {
    pub(crate) fn new(calls: usize) -> Self {
        if !std::io::stderr().is_terminal() {
            let now = Instant::now();
            return Self::Lines { calls, begun: now, last: now };
        }
        let bar = ProgressBar::with_draw_target(Some(calls as u64), ProgressDrawTarget::stderr());
        let style = ProgressStyle::with_template("{bar:24} {pos}/{len} {per_sec:.0} {msg}");
        bar.set_style(style.expect("the template is well formed"));
        Self::Bar(bar)
    }

    pub(crate) fn show(&mut self, moment: &Moment) {
        match self {
            Self::Bar(bar) => {
                bar.set_position(moment.done as u64);
                bar.set_message(moment.to_string());
            }
            Self::Lines { calls, begun, last } => {
                if last.elapsed() >= LINE_EVERY {
                    *last = Instant::now();
                    let rate = moment.done as f64 / begun.elapsed().as_secs_f64();
                    eprintln!("{}/{calls} {rate:.0}/s {moment}", moment.done);
                }
            }
        }
    }

    /// A line that stays.
    pub(crate) fn say(&self, text: &str) {
        match self {
            // Raw mode does not turn a line's end into a return to its start; the bar's own printing does.
            Self::Bar(bar) => bar.println(text),
            Self::Lines { .. } => eprintln!("{text}"),
        }
    }

    pub(crate) fn end(&self) {
        if let Self::Bar(bar) = self {
            bar.finish_and_clear();
        }
    }
}
