//! Instructions, counted by callgrind in a child process that runs this program on one case.
//!
//! The child makes N calls, then 2 N: the difference is what N calls take, whatever start and end take.

use crate::service::{Built, current_thread};
use crate::{overhead, waiting};
use std::process::{Command, ExitCode, Stdio};

/// The hidden argument that makes this program a child: `__count <experiment> <case> <calls>`.
pub const CHILD: &str = "__count";

/// Something whose instructions can be counted.
pub struct Case {
    /// Unique within its experiment.
    pub id: &'static str,
    /// Builds it, inside the runtime it is going to run on.
    pub build: fn() -> Built,
}

fn cases(experiment: &str) -> Vec<Case> {
    match experiment {
        "overhead" => overhead::cases(),
        "waiting" => waiting::cases(),
        _ => Vec::new(),
    }
}

/// Runs one case so many times.
pub fn child(mut args: impl Iterator<Item = String>) -> ExitCode {
    let (Some(experiment), Some(id), Some(calls)) = (args.next(), args.next(), args.next()) else {
        eprintln!("lab: {CHILD} needs an experiment, a case and a number of calls");
        return ExitCode::FAILURE;
    };
    let (Some(case), Ok(calls)) = (cases(&experiment).into_iter().find(|case| case.id == id), calls.parse())
    else {
        eprintln!("lab: there is no case {id} in {experiment}, or {calls} is no number");
        return ExitCode::FAILURE;
    };
    let runtime = current_thread();
    let mut built = {
        let _inside = runtime.enter();
        (case.build)()
    };
    (built.run)(&runtime, calls);
    ExitCode::SUCCESS
}

/// Why there may be no count.
pub const MISSING: &str = "not counted: valgrind is missing";

/// Whether instructions can be counted here.
pub fn available() -> bool {
    let version =
        Command::new("valgrind").arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    version.is_ok_and(|status| status.success())
}

/// Instructions a call of the case `id` of `experiment`; `None` where callgrind cannot be had.
///
/// # Panics
///
/// If callgrind runs and the case fails in it: a contender that does not do what is measured is a bug here.
pub fn instructions(experiment: &str, id: &str, calls: u64) -> Option<f64> {
    if !available() {
        return None;
    }
    let start = |calls: u64| {
        Command::new("valgrind")
            .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
            .arg(std::env::current_exe().expect("this program has a path"))
            .args([CHILD, experiment, id, &calls.to_string()])
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("valgrind has just run")
    };
    // Both at once: counts do not mind the company.
    let children = [start(calls), start(2 * calls)];
    let [once, twice] = children.map(|child| {
        let output = child.wait_with_output().expect("a child can be awaited");
        let text = String::from_utf8_lossy(&output.stderr);
        let counted =
            text.lines().find_map(|line| line.split_once("Collected : ")?.1.trim().parse::<f64>().ok());
        match counted {
            Some(counted) if output.status.success() => counted,
            _ => panic!("callgrind failed on {id}:\n{text}"),
        }
    });
    Some((twice - once) / calls as f64)
}
