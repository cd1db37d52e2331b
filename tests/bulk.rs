//! The main job, `examples/bulk`, as a person runs it: a process, real sockets, real signals.
//!
//! `cargo test` builds the example; by itself: `cargo test --test bulk --example bulk`.

// The server of its own is looked at alone, too: what it counts is what the job is judged by.
#[path = "../examples/bulk/gauge.rs"]
mod gauge;
#[path = "../examples/bulk/upstream.rs"]
mod upstream;

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use axum::Router;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::routing::get;
use bytes::Bytes;
use futures_util::future::join_all;
use http_body_util::{BodyExt, Empty};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use serde_json::Value;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpListener;
use tokio::process::{Child, Command};
use tokio::sync::watch;
use tokio::time::{Instant, timeout};

/// No run below takes nearly as long.
const PATIENCE: Duration = Duration::from_secs(60);

fn bulk() -> Command {
    // target/debug/deps/bulk-0123 -> target/debug/examples/bulk
    let deps = std::env::current_exe().unwrap();
    let path = deps.parent().unwrap().parent().unwrap().join("examples").join("bulk");
    assert!(path.exists(), "{} is missing: cargo test --test bulk --example bulk", path.display());
    let mut command = Command::new(path);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    command
}

async fn run(args: &[&str]) -> Output {
    timeout(PATIENCE, bulk().args(args).output()).await.expect("bulk does not end").unwrap()
}

/// Runs with `urls` as the input file.
async fn run_with(urls: &[String], args: &[&str]) -> Output {
    let input = Scratch::new(&urls.join("\n"));
    run(&[&["--input", input.as_str()], args].concat()).await
}

/// The last line, as `--json` promises it.
fn summary(output: &Output) -> Value {
    let text = String::from_utf8_lossy(&output.stdout);
    let last = text.lines().last().unwrap_or_else(|| panic!("no output, but {}", said(output)));
    serde_json::from_str(last).unwrap_or_else(|e| panic!("{last:?}: {e}"))
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// A file that goes when dropped.
struct Scratch(PathBuf);

impl Scratch {
    fn new(text: &str) -> Self {
        let scratch = Self::vacant();
        std::fs::write(&scratch.0, text).unwrap();
        scratch
    }

    /// A path with no file at it yet.
    fn vacant() -> Self {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let name = format!("sluice-bulk-{}-{}", std::process::id(), NEXT.fetch_add(1, SeqCst));
        Self(std::env::temp_dir().join(name))
    }

    fn as_str(&self) -> &str {
        self.0.to_str().unwrap()
    }

    fn lines(&self) -> Vec<Value> {
        let text = std::fs::read_to_string(&self.0).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// What the server below sees.
#[derive(Clone)]
struct Seen {
    requests: Arc<AtomicUsize>,
    running: Arc<AtomicUsize>,
    peak: Arc<AtomicUsize>,
    arrived: watch::Sender<usize>,
}

impl Seen {
    fn requests(&self) -> usize {
        self.requests.load(SeqCst)
    }

    /// Until so many requests have arrived.
    async fn wait_for(&self, requests: usize) {
        timeout(PATIENCE, self.arrived.subscribe().wait_for(|n| *n >= requests)).await.unwrap().unwrap();
    }
}

/// `/status/{code}` answers with that status after 20 ms, `/hang` never answers.
async fn server() -> (SocketAddr, Seen) {
    let seen = Seen {
        requests: Arc::default(),
        running: Arc::default(),
        peak: Arc::default(),
        arrived: watch::Sender::new(0),
    };
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let router = router(seen.clone());
    tokio::spawn(async move { axum::serve(listener, router).await });
    (address, seen)
}

fn router(seen: Seen) -> Router {
    async fn status(State(seen): State<Seen>, Path(code): Path<u16>) -> StatusCode {
        let running = seen.running.fetch_add(1, SeqCst) + 1;
        seen.peak.fetch_max(running, SeqCst);
        let n = seen.requests.fetch_add(1, SeqCst) + 1;
        seen.arrived.send_modify(|arrived| *arrived = n.max(*arrived));
        tokio::time::sleep(Duration::from_millis(20)).await;
        seen.running.fetch_sub(1, SeqCst);
        StatusCode::from_u16(code).unwrap()
    }
    async fn hang(State(seen): State<Seen>) {
        let n = seen.requests.fetch_add(1, SeqCst) + 1;
        seen.arrived.send_modify(|arrived| *arrived = n.max(*arrived));
        std::future::pending().await
    }
    Router::new().route("/status/{code}", get(status)).route("/hang", get(hang)).with_state(seen)
}

async fn interrupt(child: &Child) {
    let kill = format!("kill -INT {}", child.id().expect("it still runs"));
    assert!(Command::new("sh").args(["-c", &kill]).status().await.unwrap().success());
}

// ---- against the server of its own

#[tokio::test]
async fn every_call_succeeds_at_the_limit_and_sleeps_out_of_slot() {
    let output = run(&[
        "--calls",
        "400",
        "--concurrency",
        "16",
        "--max-attempts",
        "12",
        "--base",
        "300ms",
        "--max-delay",
        "2s",
        "--fail-rate",
        "0.3",
        "--seed",
        "7",
        "--json",
    ])
    .await;
    let summary = summary(&output);
    assert_eq!(output.status.code(), Some(0), "{summary}");
    // Q1: the limit, retries included, as our side and the other side count it.
    assert_eq!(summary["peak_running"], 16);
    assert_eq!(summary["peak_seen_by_upstream"], 16);
    // Q5: a call that sleeps holds no slot.
    assert!(summary["max_deferred"].as_u64() > Some(16), "{summary}");
    // R5, Q15, case_d13, case_d15: nobody is back before the Retry-After it was given.
    assert_eq!(summary["early_returns"], 0);
    assert_eq!(summary["succeeded"], 400);
    assert_eq!(summary["limit"], 16);
    let count = |key: &str| summary[key].as_u64().unwrap();
    assert_eq!(count("attempts"), count("calls") + count("retries"));
    // At a failure rate of 0.3 a call needs 1.43 attempts; a run whose failures never happened would pass otherwise.
    assert!(count("retries") > 100, "{summary}");
}

#[tokio::test]
async fn json_has_exactly_the_promised_keys() {
    let output = run(&["--calls", "5", "--fail-rate", "0", "--json"]).await;
    let summary = summary(&output);
    let keys: BTreeSet<_> = summary.as_object().unwrap().keys().map(String::as_str).collect();
    let promised = [
        "calls",
        "succeeded",
        "failed",
        "cleared",
        "attempts",
        "retries",
        "limit",
        "peak_running",
        "peak_seen_by_upstream",
        "max_deferred",
        "elapsed_ms",
        "early_returns",
    ];
    assert_eq!(keys, BTreeSet::from(promised));
    assert_eq!((&summary["calls"], &summary["attempts"]), (&5.into(), &5.into()));
}

#[tokio::test]
async fn people_get_a_table_and_plain_lines_where_there_is_no_terminal() {
    let output = run(&["--calls", "200", "--concurrency", "2", "--fail-rate", "0"]).await;
    let table = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(table.contains("succeeded          200\n"), "{table}");
    let lines = said(&output);
    assert!(lines.contains("/200 ") && lines.contains("queued") && !lines.contains('\x1b'), "{lines}");
}

#[tokio::test]
async fn the_server_of_its_own_sees_who_comes_back_too_early_and_how_many_are_there_at_once() {
    let client = Client::builder(TokioExecutor::new()).build_http::<Empty<Bytes>>();
    let upstream = upstream::Upstream::start(4, 0.001, 7).await.unwrap();
    // A quarter of its calls in, the rate limiter wakes: at the second of four.
    let statuses = [client.get(upstream.url(0)).await, client.get(upstream.url(1)).await];
    let statuses = statuses.map(|response| response.unwrap().status().as_u16());
    assert_eq!((statuses, upstream.early_returns()), ([200, 429], 0));
    let _ = client.get(upstream.url(1)).await;
    assert_eq!(upstream.early_returns(), 1, "it was told to stay away for a second");

    // Too few to be throttled, and none fails.
    let upstream = upstream::Upstream::start(1_000, 0.0, 7).await.unwrap();
    join_all((0..5).map(|n| client.get(upstream.url(n)))).await;
    assert_eq!(upstream.peak(), 5);
}

#[tokio::test]
async fn the_server_of_its_own_fails_in_every_way_it_promises() {
    let client = Client::builder(TokioExecutor::new()).build_http::<Empty<Bytes>>();
    let upstream = upstream::Upstream::start(1_000, 1.0, 7).await.unwrap();
    let fetch = async |n| match client.get(upstream.url(n)).await {
        Err(_) => "dropped before the answer".to_owned(),
        Ok(response) => match (response.status(), response.into_body().collect().await) {
            (_, Err(_)) => "dropped within the answer".to_owned(),
            (status, Ok(_)) => status.as_str().to_owned(),
        },
    };
    let ways: BTreeSet<_> = join_all((0..50).map(fetch)).await.into_iter().collect();
    let promised = ["500", "502", "503", "dropped before the answer", "dropped within the answer"];
    assert_eq!(ways, BTreeSet::from(promised.map(String::from)));
}

// ---- with a list of URLs

#[tokio::test]
async fn each_host_has_a_limit_of_its_own_and_every_call_leaves_a_line() {
    let (one, seen_one) = server().await;
    let (two, seen_two) = server().await;
    let mut urls = vec![format!("http://{one}/status/200"); 20];
    urls.extend(vec![format!("http://{two}/status/200"); 20]);
    urls.push(format!("http://{two}/status/404"));
    let lines = Scratch::vacant();
    let output = run_with(&urls, &["--concurrency", "3", "--output", lines.as_str(), "--json"]).await;

    let summary = summary(&output);
    assert_eq!((seen_one.peak.load(SeqCst), seen_two.peak.load(SeqCst)), (3, 3));
    assert_eq!(summary["peak_running"], 3);
    assert_eq!((&summary["succeeded"], &summary["failed"]), (&40.into(), &1.into()));
    assert_eq!((&summary["peak_seen_by_upstream"], &summary["early_returns"]), (&Value::Null, &Value::Null));
    // A call that failed for good makes the whole run a failure.
    assert_eq!(output.status.code(), Some(1));
    let mut written = lines.lines();
    assert_eq!(written.len(), 41);
    written.retain(|line| line["status"] == 404);
    assert_eq!(written.len(), 1);
    assert_eq!(written[0]["url"], format!("http://{two}/status/404"));
    // A 404 fails the same way each time: it is not repeated.
    assert_eq!(written[0]["attempts"], 1);
    assert!(written[0]["elapsed_ms"].as_f64() >= Some(20.0), "{}", written[0]);
}

#[tokio::test]
async fn a_failure_is_tolerated_where_the_user_says_so_and_its_attempts_are_told() {
    let (address, seen) = server().await;
    let lines = Scratch::vacant();
    let options =
        ["--max-attempts", "3", "--base", "1ms", "--allow-failures", "--output", lines.as_str(), "--json"];
    let output = run_with(&[format!("http://{address}/status/500")], &options).await;
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(summary(&output)["failed"], 1);
    assert_eq!(seen.requests(), 3);
    let line = &lines.lines()[0];
    assert_eq!((&line["status"], &line["attempts"]), (&500.into(), &3.into()));
}

#[tokio::test]
async fn an_unreachable_host_is_an_error_that_says_why() {
    // Bound and let go: nobody listens there.
    let address = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let lines = Scratch::vacant();
    let options = ["--max-attempts", "2", "--base", "1ms", "--output", lines.as_str(), "--json"];
    let output = run_with(&[format!("http://{address}/")], &options).await;
    assert_eq!(output.status.code(), Some(1));
    let line = &lines.lines()[0];
    assert!(line["error"].as_str().unwrap().contains("refused"), "{line}");
    assert_eq!((line.get("status"), &line["attempts"]), (None, &2.into()));
}

#[tokio::test]
async fn the_list_can_come_from_standard_input() {
    let (address, seen) = server().await;
    let mut child = bulk().args(["--input", "-", "--json"]).stdin(Stdio::piped()).spawn().unwrap();
    let urls = format!("http://{address}/status/200\n\nhttp://{address}/status/204\n");
    child.stdin.take().unwrap().write_all(urls.as_bytes()).await.unwrap();
    let output = timeout(PATIENCE, child.wait_with_output()).await.unwrap().unwrap();
    assert_eq!((output.status.code(), &summary(&output)["succeeded"]), (Some(0), &2.into()));
    assert_eq!(seen.requests(), 2);
}

#[tokio::test]
async fn the_rate_is_kept() {
    // Q18: 41 starts at 20 in any second need two whole seconds between the first and the last.
    let (address, _) = server().await;
    let output =
        run_with(&vec![format!("http://{address}/status/200"); 41], &["--rate", "20", "--json"]).await;
    let summary = summary(&output);
    assert_eq!(summary["succeeded"], 41);
    assert!(summary["elapsed_ms"].as_u64() >= Some(2_000), "{summary}");
}

#[tokio::test]
async fn a_call_ends_at_its_timeout() {
    // Q7
    let (address, _) = server().await;
    let lines = Scratch::vacant();
    let options = ["--call-timeout", "300ms", "--output", lines.as_str(), "--json"];
    let output = run_with(&[format!("http://{address}/hang")], &options).await;
    assert_eq!((output.status.code(), &summary(&output)["failed"]), (Some(1), &1.into()));
    assert!(lines.lines()[0]["error"].as_str().unwrap().contains("deadline"), "{:?}", lines.lines());
}

// ---- https

struct Tls {
    address: SocketAddr,
    ca: Scratch,
    _server: tokio::task::JoinSet<()>,
}

/// A TLS server for `localhost`, with a certificate of its own making.
async fn tls_server() -> Tls {
    let made = rcgen::generate_simple_self_signed(vec!["localhost".into()]).unwrap();
    let ca = Scratch::new(&made.cert.pem());
    let key = rustls_pki_types::PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
    let config = rustls::ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.der().clone()], key)
        .unwrap();
    let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let app = Router::new().route("/", get(|| async { "over TLS" }));
    let mut server = tokio::task::JoinSet::new();
    server.spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let (acceptor, app) = (acceptor.clone(), app.clone());
            tokio::spawn(async move {
                let Ok(stream) = acceptor.accept(stream).await else { return };
                let service = hyper_util::service::TowerToHyperService::new(app);
                let io = hyper_util::rt::TokioIo::new(stream);
                let _ = hyper::server::conn::http1::Builder::new().serve_connection(io, service).await;
            });
        }
    });
    Tls { address, ca, _server: server }
}

#[tokio::test]
async fn https_works_with_the_root_it_is_given_and_not_without() {
    let tls = tls_server().await;
    let urls = vec![format!("https://localhost:{}/", tls.address.port()); 5];
    let output = run_with(&urls, &["--ca", tls.ca.as_str(), "--json"]).await;
    assert_eq!(
        (output.status.code(), &summary(&output)["succeeded"]),
        (Some(0), &5.into()),
        "{}",
        said(&output)
    );

    let lines = Scratch::vacant();
    let output = run_with(&urls, &["--max-attempts", "1", "--output", lines.as_str(), "--json"]).await;
    assert_eq!((output.status.code(), &summary(&output)["failed"]), (Some(1), &5.into()));
    let error = lines.lines()[0]["error"].as_str().unwrap().to_owned();
    assert!(error.contains("certificate"), "{error}");
}

// ---- bad input: status 2, a message that says which and why, nothing started

#[tokio::test]
async fn bad_options_are_named_and_nothing_is_started() {
    let (address, seen) = server().await;
    let good = Scratch::new(&format!("http://{address}/status/200\n"));
    let not_pem = Scratch::new("not a certificate\n");
    let empty = Scratch::new("\n\n");
    let folder = std::env::temp_dir();
    let input = ["--input", good.as_str()];
    let with_input: &[(&[&str], &[&str])] = &[
        (&["--concurrency", "0"], &["--concurrency", "at least 1"]),
        (&["--concurrency", "99999999999"], &["--concurrency", "limit is 99999999999"]),
        (&["--concurrency", "many"], &["--concurrency", "invalid digit"]),
        (&["--max-attempts", "0"], &["--max-attempts", "0 is not in"]),
        (&["--rate", "0"], &["--rate", "at least 1"]),
        (&["--rate", "5/0s"], &["--rate", "time is 0"]),
        (&["--base", "100"], &["--base", "no unit"]),
        (&["--base", "1.2.3s"], &["--base", "no number"]),
        (&["--base", "10s", "--max-delay", "1s"], &["--max-delay", "at least base"]),
        (&["--rate", "1000001"], &["--rate", "1000000"]),
        (&["--max-delay", "1e300h"], &["--max-delay"]),
        (&["--call-timeout=-1s"], &["--call-timeout"]),
        (&["--call-timeout", "1y"], &["--call-timeout", "ms, s, m or h"]),
        (&["--seed", "-"], &["--seed"]),
        (&["--ca", "/no/such/file"], &["--ca /no/such/file", "No such file"]),
        (&["--ca", not_pem.as_str()], &["--ca", "no certificate"]),
        (&["--output", folder.to_str().unwrap()], &["--output", "directory"]),
        (&["--calls", "5"], &["--calls", "--input"]),
        (&["--fail-rate", "0.5"], &["--fail-rate", "--input"]),
        (&["--no-such-option"], &["--no-such-option"]),
    ];
    for (args, words) in with_input {
        refuses(&[&input, *args].concat(), words).await;
    }
    let without: &[(&[&str], &[&str])] = &[
        (&["--calls", "0"], &["--calls", "at least 1"]),
        (&["--calls", "18446744073709551615"], &["--calls", "at most"]),
        (&["--fail-rate", "1.5"], &["--fail-rate", "between 0 and 1"]),
        (&["--fail-rate", "NaN"], &["--fail-rate", "between 0 and 1"]),
        (&["--input", "/no/such/file"], &["--input /no/such/file", "No such file"]),
        (&["--input", empty.as_str()], &["--input", "no URL"]),
    ];
    for (args, words) in without {
        refuses(args, words).await;
    }
    assert_eq!(seen.requests(), 0);
}

#[tokio::test]
async fn one_bad_url_is_named_by_its_line_and_none_is_fetched() {
    let (address, seen) = server().await;
    let cases = [
        ("ftp://127.0.0.1/", "scheme ftp"),
        ("127.0.0.1/status/200", "URL"),
        ("/status/200", "no scheme"),
        ("http://", "URL"),
        ("http://user@127.0.0.1/", "user name"),
        ("http://127.0.0.1/a b", "URL"),
        ("http://127.0.0.1:99999/", "port"),
        ("not a url", "URL"),
    ];
    for (bad, why) in cases {
        let input = Scratch::new(&format!("http://{address}/status/200\n{bad}\n"));
        let never = Scratch::vacant();
        refuses(&["--input", input.as_str(), "--output", never.as_str()], &["line 2", bad, why]).await;
        assert!(!never.0.exists(), "{bad}: nothing is created before the input is known to be good");
    }
    assert_eq!(seen.requests(), 0);
}

async fn refuses(args: &[&str], words: &[&str]) {
    let output = run(args).await;
    let message = said(&output);
    assert_eq!(output.status.code(), Some(2), "{args:?}: {message}");
    for word in words {
        assert!(message.contains(word), "{args:?} should name {word:?}: {message}");
    }
    assert!(output.stdout.is_empty(), "{args:?}");
}

// ---- stopping and pausing

#[tokio::test]
async fn an_interrupt_finishes_what_was_taken_on_and_reports_what_was_not_done() {
    // Q10
    let (address, seen) = server().await;
    let input = Scratch::new(&format!("http://{address}/status/200\n").repeat(5_000));
    let lines = Scratch::vacant();
    let child = bulk()
        .args(["--input", input.as_str(), "--concurrency", "4", "--output", lines.as_str(), "--json"])
        .spawn()
        .unwrap();
    seen.wait_for(20).await;
    interrupt(&child).await;
    let output = timeout(PATIENCE, child.wait_with_output()).await.unwrap().unwrap();
    let summary = summary(&output);
    assert_eq!(output.status.code(), Some(1), "not everything was done");
    let count = |key: &str| summary[key].as_u64().unwrap();
    assert_eq!(count("succeeded") + count("cleared"), 5_000);
    assert_eq!(count("failed"), 0);
    // What was taken on came to its end: nothing that reached the server is reported as not done.
    assert_eq!(count("succeeded"), seen.requests() as u64);
    assert!(count("succeeded") >= 20 && count("cleared") > 0, "{summary}");
    let written = lines.lines();
    assert_eq!(written.iter().filter(|line| line["status"] == 200).count() as u64, count("succeeded"));
}

#[tokio::test]
async fn a_stuck_server_does_not_outlast_the_grace() {
    // Q10
    let (address, seen) = server().await;
    let input = Scratch::new(&format!("http://{address}/hang\n").repeat(10));
    let child = bulk()
        .args(["--input", input.as_str(), "--concurrency", "2", "--grace", "300ms", "--json"])
        .spawn()
        .unwrap();
    seen.wait_for(2).await;
    interrupt(&child).await;
    let begun = Instant::now();
    let output = timeout(PATIENCE, child.wait_with_output()).await.unwrap().unwrap();
    assert!(begun.elapsed() < Duration::from_secs(10), "an attempt may hang for 30 s; the grace is shorter");
    let summary = summary(&output);
    assert_eq!((output.status.code(), &summary["cleared"]), (Some(1), &10.into()), "{summary}");
    assert!(said(&output).contains("2 still running"), "{}", said(&output));
    assert_eq!(seen.requests(), 2, "nothing new was begun");
}

#[tokio::test]
async fn a_second_interrupt_clears_what_waits_and_a_third_leaves() {
    // Q9
    let (address, seen) = server().await;
    let input = Scratch::new(&format!("http://{address}/hang\n").repeat(10));
    let mut child = bulk()
        .args(["--input", input.as_str(), "--concurrency", "2", "--grace", "1h", "--json"])
        .spawn()
        .unwrap();
    let mut heard = tokio::io::BufReader::new(child.stderr.take().unwrap());
    seen.wait_for(2).await;
    interrupt(&child).await;
    hear(&mut heard, "finishing what was taken on").await;
    interrupt(&child).await;
    hear(&mut heard, "cleared").await;
    interrupt(&child).await;
    let output = timeout(PATIENCE, child.wait_with_output()).await.unwrap().unwrap();
    assert_eq!((output.status.code(), &summary(&output)["cleared"]), (Some(1), &10.into()));
}

async fn hear(from: &mut (impl tokio::io::AsyncBufRead + Unpin), words: &str) {
    use tokio::io::AsyncBufReadExt;
    let mut line = String::new();
    loop {
        line.clear();
        let read = timeout(PATIENCE, from.read_line(&mut line)).await.expect("never said").unwrap();
        assert!(read > 0, "ended before it said {words:?}");
        if line.contains(words) {
            return;
        }
    }
}

/// On a terminal of its own, which `script` makes: raw mode, the keys, the bar.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn space_pauses_and_resumes_on_a_terminal() {
    // Q8
    let (address, seen) = server().await;
    let input = Scratch::new(&format!("http://{address}/status/200\n").repeat(300));
    let log = Scratch::vacant();
    let bulk = bulk();
    let path = bulk.as_std().get_program().to_str().unwrap();
    let line = format!("{path} --input {} --concurrency 2 --json", input.as_str());
    let mut terminal = Command::new("script")
        .args(["-qfec", &line, log.as_str()])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .expect("script is part of every Debian (bsdutils)");
    let mut keys = terminal.stdin.take().unwrap();
    seen.wait_for(10).await;
    keys.write_all(b" ").await.unwrap();
    wait_until(|| std::fs::read_to_string(&log.0).is_ok_and(|text| text.contains("paused"))).await;
    // Attempts that ran when the pause came go on; after them nothing reaches the server.
    wait_until(|| seen.running.load(SeqCst) == 0).await;
    let before = seen.requests();
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(seen.requests(), before, "nothing starts while paused");
    assert!(before < 300);
    keys.write_all(b" ").await.unwrap();
    let status = timeout(PATIENCE, terminal.wait()).await.unwrap().unwrap();
    assert!(status.success());
    let text = std::fs::read_to_string(&log.0).unwrap();
    assert!(text.contains("resumed") && text.contains("\"succeeded\":300"), "{text}");
}

#[cfg(target_os = "linux")]
async fn wait_until(mut holds: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < PATIENCE);
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
