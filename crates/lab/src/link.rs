//! A thousand links lose one server at the same instant, and a server that accepts and closes (virtual time); then ten
//! thousand losses of one link under threads (real time).

use crate::chart::{Chart, Scale};
use crate::report::{Bar, Report, Row};
use crate::service::paused;
use crate::stats::{Random, densest};
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::runtime::Builder;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};
use tower_sluice::backoff::Backoff;
use tower_sluice::facts::Source;
use tower_sluice::reconnect::{Link, LinkState};

const LINKS: usize = 1_000;
/// Links that each call a server that does not let them stay.
const CALLERS: usize = 200;
const LOSSES: u64 = 10_000;
/// Longer than `min_uptime`: the links are stable when they are lost.
const UPTIME: Duration = Duration::from_secs(20);
const SEED: u64 = 7;
/// Nobody gets a connection for so long: a wake-up was lost.
const STUCK: Duration = Duration::from_secs(20);

/// A server for many links, with the times at which it was called.
#[derive(Clone)]
struct Server {
    /// Whether it lets callers in, and how often it has thrown all of them out.
    state: Arc<watch::Sender<(bool, u64)>>,
    tries: Arc<Mutex<Vec<Instant>>>,
}

/// A connection, which ends when the server throws all out.
struct Conn {
    state: watch::Receiver<(bool, u64)>,
}

impl Conn {
    async fn closed(&self) {
        let mut state = self.state.clone();
        let began = state.borrow().1;
        // The server outlives the run.
        let _ = state.wait_for(|(_, thrown_out)| *thrown_out != began).await;
    }
}

impl Server {
    fn new() -> Self {
        Self { state: Arc::new(watch::Sender::new((true, 0))), tries: Arc::default() }
    }

    fn connect(&self) -> Result<Conn, &'static str> {
        self.tries.lock().unwrap_or_else(PoisonError::into_inner).push(Instant::now());
        let state = self.state.subscribe();
        let lets_in = state.borrow().0;
        if lets_in { Ok(Conn { state }) } else { Err("refused") }
    }

    /// Milliseconds from `start`, of all tries since then.
    fn tries_since(&self, start: Instant) -> Vec<u64> {
        let tries = self.tries.lock().unwrap_or_else(PoisonError::into_inner);
        let millis = |at: &Instant| u64::try_from((*at - start).as_millis()).unwrap_or(u64::MAX);
        tries.iter().filter(|at| **at >= start).map(millis).collect()
    }
}

/// What a return looks like from the server's side.
struct Return {
    /// The most of the links that try within any 100 ms, in percent.
    densest: f64,
    /// Seconds until the last is back.
    back: f64,
    /// Milliseconds of all tries since the return.
    tries: Vec<u64>,
}

/// All links lose their server, which comes back after `outage`.
fn come_back(outage: Duration, first_wait: Option<Duration>) -> Return {
    paused().block_on(async {
        let server = Server::new();
        let links: Vec<_> = (0..LINKS)
            .map(|n| {
                let server = server.clone();
                let link = Link::connect(move || std::future::ready(server.connect()))
                    .closed(Conn::closed)
                    .seed(SEED + n as u64);
                match first_wait {
                    Some(longest) => link.first_wait(longest).spawn(),
                    None => link.spawn(),
                }
            })
            .collect();
        sleep(UPTIME).await;
        server.state.send_replace((outage.is_zero(), 1));
        sleep(outage).await;
        let returned = Instant::now();
        server.state.send_replace((true, 1));
        for link in &links {
            let second = |state: &LinkState| matches!(state, LinkState::Connected { generation: 2, .. });
            assert!(link.state().wait_for(second).await.is_ok(), "a link ended");
        }
        let back = returned.elapsed().as_secs_f64();
        let tries = server.tries_since(returned);
        assert!(tries.len() >= LINKS, "every link came back by a try");
        Return { densest: densest(&tries, 100) as f64 * 100.0 / LINKS as f64, back, tries }
    })
}

/// Tries a minute and link at a server that refuses, or that accepts and resets after a millisecond.
fn tries_a_minute(accepts: bool) -> f64 {
    const MINUTES: u64 = 10;
    paused().block_on(async {
        let tries = Arc::new(AtomicU64::new(0));
        let links: Vec<_> = (0..CALLERS)
            .map(|n| {
                let tries = Arc::clone(&tries);
                Link::connect(move || {
                    tries.fetch_add(1, SeqCst);
                    std::future::ready(if accepts { Ok(()) } else { Err("refused") })
                })
                .closed(async |(): &()| sleep(Duration::from_millis(1)).await)
                .seed(SEED + n as u64)
                .spawn()
            })
            .collect();
        sleep(Duration::from_secs(60 * MINUTES)).await;
        drop(links);
        tries.load(SeqCst) as f64 / (MINUTES as usize * CALLERS) as f64
    })
}

/// What ten thousand losses under threads left behind.
#[derive(Default)]
struct Soaked {
    losses: u64,
    violations: u64,
    live: usize,
}

/// Connections fail, panic, hang, close and are reported broken at random, while callers on many tasks use them.
fn soak() -> Soaked {
    let runtime = Builder::new_multi_thread().worker_threads(4).enable_time().build().expect("a runtime");
    runtime.block_on(async {
        let (live, trying, broken_rules) =
            (Arc::new(()), Arc::new(AtomicUsize::new(0)), Arc::new(AtomicU64::new(0)));
        let instant = Backoff::exponential(Duration::ZERO, Duration::ZERO);
        let (alive, tries, rules) = (Arc::clone(&live), Arc::clone(&trying), Arc::clone(&broken_rules));
        let mut random = Random::new(&[SEED, 0]);
        let link = Link::connect(move || {
            let (alive, chance) = (Arc::clone(&alive), random.unit());
            // C2: one try at a time.
            let one = One::enter(&tries, &rules);
            async move {
                let _one = one;
                match chance {
                    c if c < 0.1 => Err("refused"),
                    c if c < 0.12 => resume_unwind(Box::new("planted")),
                    c if c < 0.13 => std::future::pending().await,
                    c => Ok((alive, c)),
                }
            }
        })
        .closed(async |(_, chance): &(Arc<()>, f64)| {
            if *chance > 0.5 {
                sleep(Duration::from_micros((chance * 1_000.0) as u64)).await;
            } else {
                std::future::pending().await
            }
        })
        .connect_timeout(Duration::from_millis(2))
        .backoff(instant)
        .first_wait(Duration::ZERO)
        .max_wait(Duration::MAX)
        .spawn();
        let callers: Vec<_> = (0..32)
            .map(|n| {
                let (link, rules) = (link.clone(), Arc::clone(&broken_rules));
                tokio::spawn(async move {
                    let mut random = Random::new(&[SEED, 1 + n]);
                    let mut newest = 0;
                    while link.sample().links.is_some_and(|links| links.lost < LOSSES) {
                        // C5: nobody is stranded.
                        let Ok(got) = timeout(STUCK, link.get()).await else {
                            rules.fetch_add(1, SeqCst);
                            return;
                        };
                        let Ok(lease) = got else {
                            rules.fetch_add(1, SeqCst);
                            return;
                        };
                        // C4: nobody is given an older connection than before.
                        if lease.generation() < newest {
                            rules.fetch_add(1, SeqCst);
                        }
                        newest = lease.generation();
                        match random.unit() {
                            c if c < 0.3 => {
                                lease.broken("enough of it");
                                if lease.is_current() {
                                    rules.fetch_add(1, SeqCst);
                                }
                            }
                            c if c < 0.5 => drop(lease.exchange()),
                            c if c < 0.7 => {
                                // A caller that gives up waiting.
                                let _ = timeout(Duration::from_micros(50), link.get()).await;
                            }
                            _ => tokio::task::yield_now().await,
                        }
                    }
                })
            })
            .collect();
        let mut violations = 0;
        for caller in callers {
            violations += u64::from(caller.await.is_err());
        }
        let losses = link.sample().links.map_or(0, |links| links.lost);
        violations += u64::from(link.waiting() != 0);
        let mut state = link.state();
        drop(link);
        // C6: the driver ends, and with it the reader's view.
        violations +=
            u64::from(timeout(STUCK, async { while state.changed().await.is_ok() {} }).await.is_err());
        Soaked {
            losses,
            violations: violations + broken_rules.load(SeqCst),
            live: Arc::strong_count(&live) - 1,
        }
    })
}

/// A try that is under way.
struct One(Arc<AtomicUsize>);

impl One {
    fn enter(tries: &Arc<AtomicUsize>, rules: &AtomicU64) -> Self {
        if tries.fetch_add(1, SeqCst) > 0 {
            rules.fetch_add(1, SeqCst);
        }
        Self(Arc::clone(tries))
    }
}

impl Drop for One {
    fn drop(&mut self) {
        self.0.fetch_sub(1, SeqCst);
    }
}

pub fn run() -> Report {
    let mut report = Report::new("link", "Links that come back");
    report.about(format!(
        "{LINKS} links of the preset `Backoff::connection` lose one server at the same instant, after {} s of life. Peer: \
         the same links with no first wait (`first_wait` zero), which is how a client that reconnects at once behaves. \
         Counted from the server's return: the most links that try within any 100 ms, and until when all are back.",
        UPTIME.as_secs(),
    ));
    let mut chart = Chart::new(
        "link.svg",
        "Tries in each 100 ms after the return",
        ("seconds after the return", Scale::Linear),
        ("links", Scale::Linear),
    );
    let cases = [
        ("back at once", 0, 8.5, None),
        ("back after 10 s", 10, 6.0, Some(16.0)),
        ("back after 60 s", 60, 2.5, Some(30.0)),
    ];
    for (case, outage, most, until) in cases {
        let outage = Duration::from_secs(outage);
        let ours = come_back(outage, None);
        let at_once = come_back(outage, Some(Duration::ZERO));
        report.row(
            Row::new(format!("{case}: most in any 100 ms"), "% of the links", ours.densest)
                .peer(at_once.densest)
                .bar(Bar::AtMost(most)),
        );
        let row = Row::new(format!("{case}: all are back"), "s", ours.back).peer(at_once.back);
        report.row(match until {
            Some(until) => row.bar(Bar::AtMost(until)),
            None => row,
        });
        chart.series(case, per_tenth(&ours.tries));
    }
    report.chart(chart);

    let (refuses, resets) = (tries_a_minute(false), tries_a_minute(true));
    report.row(
        Row::new("accepts and resets after 1 ms, against refuses", "tries a minute and link", resets)
            .peer(refuses)
            .bar(Bar::RatioAtMost(1.0)),
    );

    let soaked = soak();
    report.row(
        Row::new("losses under threads", "losses", soaked.losses as f64).bar(Bar::AtLeast(LOSSES as f64)),
    );
    report.row(
        Row::new("rules broken on the way", "violations", soaked.violations as f64).bar(Bar::Exactly(0.0)),
    );
    report.row(Row::new("connections left", "connections", soaked.live as f64).bar(Bar::Exactly(0.0)));
    report
}

/// How many fall into each tenth of a second, at its middle.
fn per_tenth(millis: &[u64]) -> Vec<(f64, f64)> {
    let tenths = millis.iter().max().map_or(0, |last| last / 100 + 1);
    let mut counts = vec![0_u32; usize::try_from(tenths).unwrap_or(0)];
    for at in millis {
        counts[usize::try_from(at / 100).unwrap_or(0)] += 1;
    }
    counts.iter().enumerate().map(|(tenth, count)| (tenth as f64 / 10.0 + 0.05, f64::from(*count))).collect()
}
