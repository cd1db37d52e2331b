//! The lab: what this workspace costs and does, measured beside its peers.
//!
//! `cargo run --release -p lab -- <experiment> [--json]` runs one experiment and prints its tables. With `--json` the
//! last line is one JSON object. The exit status is 1 where a judged row misses its bar.
//! `all` runs every experiment and rewrites `docs/measurements.md` and its pictures.
//!
//! To add an experiment: a module with `pub fn run() -> Report` (see [`report`]) and one line in [`EXPERIMENTS`].
//!
//! What is exact and what is not:
//!
//! - instructions (callgrind, N against 2 N calls), allocations, bytes and virtual time repeat from run to run;
//! - times are ratios of medians over interleaved rounds in one process, and none below 30 ns is judged.

mod alloc;
mod aws;
mod chart;
mod clock;
mod count;
mod floor;
mod gate;
mod holding;
mod levels;
mod link;
mod ours;
mod overhead;
mod peers;
mod report;
mod service;
mod soak;
mod spread;
mod stats;
mod storm;
mod waiting;
mod workers;

use clap::Parser;
use clap::builder::PossibleValuesParser;
use report::Experiment;
use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: alloc::Counting = alloc::Counting;

/// Every experiment, in the order in which `all` runs them: times first, while the heap is still small.
const EXPERIMENTS: &[Experiment] = &[
    ("overhead", overhead::run),
    ("waiting", waiting::run),
    ("spread", spread::run),
    ("aws", aws::run),
    ("holding", holding::run),
    ("storm", storm::run),
    ("levels", levels::run),
    ("link", link::run),
    ("soak", soak::run),
];

#[derive(Parser)]
#[command(name = "lab", about = "Benchmarks against peers and the experiments of tower-sluice")]
struct Args {
    /// What to run; `all` also rewrites docs/measurements.md.
    #[arg(value_parser = PossibleValuesParser::new(EXPERIMENTS.iter().map(|(name, _)| *name).chain(["all"])))]
    experiment: String,
    /// Print one JSON object as the last line.
    #[arg(long)]
    json: bool,
}

fn main() -> ExitCode {
    // What callgrind runs in a child process: kept ahead of the argument parser, whose cost is not the same for
    // every number of calls.
    let mut args = std::env::args().skip(1);
    if args.next().as_deref() == Some(count::CHILD) {
        return count::child(args);
    }

    let args = Args::parse();
    let report = match EXPERIMENTS.iter().find(|(name, _)| *name == args.experiment) {
        Some((_, run)) => run(),
        None => match report::all(EXPERIMENTS) {
            Ok(report) => report,
            Err(error) => {
                eprintln!("lab: cannot write the measurements: {error}");
                return ExitCode::FAILURE;
            }
        },
    };
    print!("{}", report.text());
    if args.json {
        println!("{}", report.json());
    }
    if report.ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
