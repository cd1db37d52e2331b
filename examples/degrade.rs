//! A video service that does less when it is asked for more.
//!
//! ```text
//! cargo run --release --example degrade
//! ```
//!
//! Eight encoders, four rungs: what a request costs depends on the quality that it is served in. A load that rises and
//! falls walks the service down its ladder and up again; two classes of side work are shed on the way. At the end the
//! level is drawn over time, beside what was served at each. All times of the ladder are a tenth of the defaults, so
//! that it takes half a minute and not five.
//!
//! The status is 0 if no rung was skipped and the best level is back at the end. With `--json` the last line is one JSON
//! object: `levels`, `served`, `rejected`, `shed_by_class`, `skipped_rungs`, `final_level`.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::routing::get;
use clap::Parser;
use http::{HeaderName, Request, StatusCode};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde_json::json;
use tokio::net::TcpListener;
use tokio::time::{Instant, sleep, sleep_until};
use tower_sluice_http::degrade::{Ladder, Signal, rule};
use tower_sluice_http::{BoxError, Level, http_measure, http_server, level_layer};

/// Best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Quality {
    High,
    Medium,
    Low,
    AudioOnly,
}
use Quality::{AudioOnly, High, Low, Medium};

const QUALITIES: [Quality; 4] = [High, Medium, Low, AudioOnly];

/// So many encoders serve 100, 200, 400 or 1000 requests a second.
const ENCODERS: usize = 8;

impl Quality {
    /// How long a request keeps one of the encoders.
    fn cost(self) -> Duration {
        Duration::from_millis(match self {
            High => 80,
            Medium => 40,
            Low => 20,
            AudioOnly => 8,
        })
    }
}

/// Requests a second, and for how many seconds.
const LOAD: [(u32, u64); 4] = [(60, 2), (150, 4), (300, 4), (500, 4)];
/// Requests a second after that, until the best level is back.
const AFTERWARDS: u32 = 40;
/// The longest that may take.
const PATIENCE: Duration = Duration::from_secs(40);

/// How much time a column of the picture stands for.
const COLUMN: Duration = Duration::from_millis(500);

/// Tells clients at which level they were served.
const LEVEL: HeaderName = HeaderName::from_static("x-level");

#[derive(Parser)]
#[command(about = "A video service that does less when it is asked for more")]
struct Options {
    /// Print one JSON object as the last line.
    #[arg(long)]
    json: bool,
}

async fn video(Level(quality): Level<Quality>) -> &'static str {
    sleep(quality.cost()).await;
    match quality {
        High => "1080p",
        Medium => "720p",
        Low => "360p",
        AudioOnly => "audio",
    }
}

async fn side_work() -> &'static str {
    sleep(Duration::from_millis(10)).await;
    "done"
}

#[tokio::main]
async fn main() -> Result<ExitCode, BoxError> {
    let options = Options::parse();

    // What is measured, and what is made of it.
    let (queue, measure) = (http_server(ENCODERS), http_measure());
    let wait = rule::queue_wait().strain(Duration::from_millis(50)).slack(Duration::from_millis(15));
    let level = Ladder::new(QUALITIES)
        .name("video")
        .rule(wait.min_samples(3))
        .rule(rule::failure_ratio().min_samples(3))
        .source(queue.handle())
        .source(measure.facts())
        .window(Duration::from_millis(100))
        .settle(Duration::from_millis(300))
        .hold(Duration::from_secs(1))
        .idle_hold(Duration::from_secs(4))
        .spawn();

    // Who does less: the handler by itself, and two classes of side work by being shed.
    let thumbnails = queue.class("thumbnails").max_waiting(8).admit_while(level.at_least(Medium));
    let exports = queue.class("exports").max_waiting(8).admit_while(level.at_least(High));
    let app = Router::new()
        .route("/video", get(video).layer((queue, measure)))
        .route("/thumbnail", get(side_work).layer(thumbnails.clone()))
        .route("/export", get(side_work).layer(exports.clone()))
        .layer(level_layer(&level).header(LEVEL));
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let audience = Audience::new(listener.local_addr()?);
    let server = tokio::spawn(axum::serve(listener, app).into_future());

    let history = History::start(&level);
    let writer = tokio::spawn(history.clone().write(level.clone()));
    for (rate, seconds) in LOAD {
        audience.ask(rate, Duration::from_secs(seconds), || false).await;
    }
    audience.ask(AFTERWARDS, PATIENCE, || level.level() == High).await;
    writer.abort();
    server.abort();

    let shed = BTreeMap::from([("thumbnails", thumbnails.stats().shed), ("exports", exports.stats().shed)]);
    let rejected = audience.rejected.load(Ordering::Relaxed);
    history.draw(&audience.served());
    println!("rejected for lack of room or time: {rejected}; shed: {shed:?}");
    let (levels, skipped) = (history.levels(), history.skipped());
    if options.json {
        let names: Vec<_> = levels.iter().map(|level| format!("{level:?}")).collect();
        let result = json!({
            "levels": names,
            "served": audience.served(),
            "rejected": rejected,
            "shed_by_class": shed,
            "skipped_rungs": skipped,
            "final_level": names.last(),
        });
        println!("{result}");
    }
    Ok(if skipped == 0 && levels.last() == Some(&High) { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Those who watch, and what they got.
#[derive(Clone)]
struct Audience {
    client: Client<HttpConnector, Body>,
    address: SocketAddr,
    /// Videos by the level in their response.
    served: Arc<Mutex<BTreeMap<String, u64>>>,
    rejected: Arc<AtomicU64>,
}

impl Audience {
    fn new(address: SocketAddr) -> Self {
        let client = Client::builder(TokioExecutor::new()).build_http();
        Self { client, address, served: Arc::default(), rejected: Arc::default() }
    }

    /// Asks for so many videos a second, and for a thumbnail and an export with each tenth, whether or not earlier
    /// ones were answered. For so long, or until `enough`.
    async fn ask(&self, rate: u32, time: Duration, enough: impl Fn() -> bool) {
        let begun = Instant::now();
        let mut next = begun;
        let mut nth = 0_u32;
        while begun.elapsed() < time && !enough() {
            tokio::spawn(self.clone().video());
            if nth.is_multiple_of(10) {
                tokio::spawn(self.clone().fetch("/thumbnail"));
                tokio::spawn(self.clone().fetch("/export"));
            }
            nth += 1;
            next += Duration::from_secs(1) / rate;
            sleep_until(next).await;
        }
    }

    async fn video(self) {
        match self.clone().fetch("/video").await {
            Some(level) => *lock(&self.served).entry(level).or_default() += 1,
            None => {
                self.rejected.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// The level at which it was served, if it was.
    async fn fetch(self, path: &'static str) -> Option<String> {
        let request = Request::get(format!("http://{}{path}", self.address)).body(Body::empty()).ok()?;
        let response = self.client.request(request).await.ok()?;
        let served = response.status() == StatusCode::OK;
        served.then(|| response.headers().get(LEVEL)?.to_str().ok().map(str::to_owned)).flatten()
    }

    fn served(&self) -> BTreeMap<String, u64> {
        lock(&self.served).clone()
    }
}

/// The levels in the order in which they held, and since when.
#[derive(Clone)]
struct History {
    begun: Instant,
    changes: Arc<Mutex<Vec<(Duration, Quality)>>>,
}

impl History {
    fn start(level: &Signal<Quality>) -> Self {
        let changes = vec![(Duration::ZERO, level.level())];
        Self { begun: Instant::now(), changes: Arc::new(Mutex::new(changes)) }
    }

    /// Waits for the level to change, again and again, and says so.
    async fn write(self, mut level: Signal<Quality>) {
        loop {
            let to = level.changed().await;
            let at = self.begun.elapsed();
            println!("{:5.1} s  {to:?}", at.as_secs_f64());
            lock(&self.changes).push((at, to));
        }
    }

    fn levels(&self) -> Vec<Quality> {
        lock(&self.changes).iter().map(|&(_, level)| level).collect()
    }

    fn skipped(&self) -> usize {
        let rungs: Vec<_> = self.levels().into_iter().map(rung).collect();
        rungs.windows(2).map(|two| two[0].abs_diff(two[1]).saturating_sub(1)).sum()
    }

    /// One line a rung, one column half a second: where the line is drawn, the rung held at that time.
    fn draw(&self, served: &BTreeMap<String, u64>) {
        let changes = lock(&self.changes).clone();
        let columns = self.begun.elapsed().as_millis() / COLUMN.as_millis() + 1;
        println!();
        for quality in QUALITIES {
            let line: String = (0..columns as u32)
                .map(|column| {
                    let (from, to) = (COLUMN * column, COLUMN * (column + 1));
                    let held = changes.iter().enumerate().any(|(i, &(since, level))| {
                        let until = changes.get(i + 1).map_or(Duration::MAX, |&(at, _)| at);
                        level == quality && since < to && until > from
                    });
                    if held { '█' } else { '·' }
                })
                .collect();
            let name = format!("{quality:?}");
            let count = served.get(&name).copied().unwrap_or(0);
            println!("{name:>10} {line} {count:>5} served");
        }
    }
}

fn rung(quality: Quality) -> usize {
    QUALITIES.iter().position(|&other| other == quality).unwrap_or(0)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
