//! What the user asked for. Everything is checked before anything starts: clap's errors, ours and the library's all
//! leave with status 2 and name what is wrong and why.

use std::fmt::Display;
use std::fs::File;
use std::io::{BufWriter, Read};
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Parser;
use http::Uri;
use rustls::RootCertStore;
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;

/// Every call is known from the start, so that a list is checked before anything is sent; this keeps that in memory.
const MAX_CALLS: usize = 10_000_000;

/// Fetches a list of URLs through flaky, rate-limited servers: bounded, retried, paused, drained.
///
/// Without --input it fetches from a server of its own that fails on purpose. Space pauses and resumes, Ctrl-C
/// finishes what was taken on and stops, a second Ctrl-C clears it.
#[derive(Clone, Debug, Parser)]
#[command(name = "bulk")]
pub(crate) struct Options {
    /// The URLs, one a line; - for standard input
    #[arg(long, value_name = "FILE")]
    pub(crate) input: Option<PathBuf>,

    /// How many calls to make to the server of its own
    #[arg(long, value_name = "N", default_value = "1000", value_parser = calls, conflicts_with = "input")]
    pub(crate) calls: usize,

    /// Attempts at once, for each host
    #[arg(long, value_name = "N", default_value = "16", value_parser = at_least_one)]
    pub(crate) concurrency: usize,

    /// Attempt starts in a time, for each host: 100 (a second), 100/1m
    #[arg(long, value_name = "N[/TIME]", value_parser = rate)]
    pub(crate) rate: Option<Rate>,

    /// Attempts a call may have, the first included
    #[arg(long, value_name = "N", default_value = "10", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) max_attempts: u32,

    /// The first delay before a retry; each later one is twice as long
    #[arg(long, value_name = "TIME", default_value = "200ms", value_parser = duration)]
    pub(crate) base: Duration,

    /// The longest delay before a retry (a server's Retry-After may be longer)
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = duration)]
    pub(crate) max_delay: Duration,

    /// The longest a call may take, with its delays and retries [default: as long as it takes]
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub(crate) call_timeout: Option<Duration>,

    /// The share of requests that the server of its own fails; 0 makes it flawless
    #[arg(long, value_name = "P", default_value = "0.2", value_parser = probability, conflicts_with = "input")]
    pub(crate) fail_rate: f64,

    /// Makes the delays, and the failures of the server of its own, the same in every run
    #[arg(long, value_name = "N")]
    pub(crate) seed: Option<u64>,

    /// Trust the certificates in this PEM file instead of the public ones
    #[arg(long, value_name = "FILE")]
    pub(crate) ca: Option<PathBuf>,

    /// Write one JSON line a call: url, status or error, attempts, elapsed_ms
    #[arg(long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,

    /// Print one JSON object as the last line instead of the table
    #[arg(long)]
    pub(crate) json: bool,

    /// How long Ctrl-C lets the calls that were taken on finish
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = duration)]
    pub(crate) grace: Duration,

    /// Leave with status 0 even where calls failed or were not done
    #[arg(long)]
    pub(crate) allow_failures: bool,
}

/// So many attempt starts in such a time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Rate {
    pub(crate) starts: usize,
    pub(crate) per: Duration,
}

impl Options {
    /// Whether the URLs come from standard input, which then is no keyboard.
    pub(crate) fn reads_stdin(&self) -> bool {
        self.input.as_deref() == Some(Path::new("-"))
    }

    /// The URLs of `--input`, each of them usable. `None` without `--input`.
    pub(crate) fn urls(&self) -> Result<Option<Vec<Uri>>, String> {
        let Some(path) = &self.input else { return Ok(None) };
        let read = if self.reads_stdin() {
            let mut text = String::new();
            std::io::stdin().read_to_string(&mut text).map(|_| text)
        } else {
            std::fs::read_to_string(path)
        };
        let text = read.map_err(|e| file("--input", path, &e))?;
        let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
        let urls = lines.map(|(n, line)| {
            url(line.trim())
                .map_err(|why| format!("--input {}, line {}: {line:?} {why}", path.display(), n + 1))
        });
        let urls: Vec<Uri> = urls.collect::<Result<_, _>>()?;
        if urls.is_empty() {
            return Err(format!("--input {} has no URL in it", path.display()));
        }
        Ok(Some(urls))
    }

    /// The file of `--output`, empty.
    pub(crate) fn output(&self) -> Result<Option<BufWriter<File>>, String> {
        let create =
            |path: &PathBuf| File::create(path).map(BufWriter::new).map_err(|e| file("--output", path, &e));
        self.output.as_ref().map(create).transpose()
    }

    /// The certificates of `--ca`.
    pub(crate) fn roots(&self) -> Result<Option<RootCertStore>, String> {
        let Some(path) = &self.ca else { return Ok(None) };
        let pem = std::fs::read(path).map_err(|e| file("--ca", path, &e))?;
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(&pem) {
            let certificate = certificate.map_err(|e| file("--ca", path, &e))?;
            roots.add(certificate).map_err(|e| file("--ca", path, &e))?;
        }
        if roots.is_empty() { Err(file("--ca", path, &"no certificate in it")) } else { Ok(Some(roots)) }
    }
}

fn file(option: &str, path: &Path, why: &dyn Display) -> String {
    format!("{option} {}: {why}", path.display())
}

fn url(text: &str) -> Result<Uri, String> {
    let uri: Uri = text.parse().map_err(|e| format!("is no URL: {e}"))?;
    match uri.scheme_str() {
        None => return Err("has no scheme: it must begin with http:// or https://".into()),
        Some("http" | "https") => {}
        Some(other) => return Err(format!("has the scheme {other}, but must have http or https")),
    }
    let authority = uri.authority().map(|a| a.as_str()).unwrap_or_default();
    if authority.contains('@') {
        return Err("has a user name in it, which would not be sent".into());
    }
    let host = uri.host().unwrap_or_default();
    if host.is_empty() {
        return Err("has no host".into());
    }
    if authority.len() > host.len() && uri.port_u16().is_none() {
        return Err("has a port that is no number from 0 to 65535".into());
    }
    Ok(uri)
}

fn at_least_one(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) => Err("it is 0, but must be at least 1".into()),
        Ok(n) => Ok(n),
        Err(e) => Err(format!("{e}")),
    }
}

fn calls(text: &str) -> Result<usize, String> {
    let calls = at_least_one(text)?;
    if calls <= MAX_CALLS { Ok(calls) } else { Err(format!("it must be at most {MAX_CALLS}")) }
}

fn probability(text: &str) -> Result<f64, String> {
    let p: f64 = text.parse().map_err(|e| format!("{e}"))?;
    if (0.0..=1.0).contains(&p) { Ok(p) } else { Err("it must be between 0 and 1".into()) }
}

fn rate(text: &str) -> Result<Rate, String> {
    let (starts, per) = match text.split_once('/') {
        Some((starts, per)) => (starts, duration(per)?),
        None => (text, Duration::from_secs(1)),
    };
    let rate = Rate { starts: at_least_one(starts)?, per };
    if rate.per.is_zero() { Err("its time is 0, but must be longer".into()) } else { Ok(rate) }
}

/// `100ms`, `2s`, `1.5s`, `5m`, `1h`.
fn duration(text: &str) -> Result<Duration, String> {
    let unit_at = text.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(text.len());
    let (number, unit) = text.split_at(unit_at);
    let seconds = match unit {
        "ms" => 0.001,
        "s" => 1.0,
        "m" => 60.0,
        "h" => 3600.0,
        "" => return Err("it has no unit: ms, s, m or h".into()),
        other => return Err(format!("its unit is {other}, but must be ms, s, m or h")),
    };
    let number: f64 = number.parse().map_err(|_| format!("{number:?} is no number"))?;
    // Refuses what is negative, not a number, or beyond what a Duration holds.
    Duration::try_from_secs_f64(number * seconds).map_err(|e| format!("{e}"))
}
