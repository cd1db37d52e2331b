//! The server that fails on purpose: latency, 500, 502, 503, connections dropped before and in the middle of an
//! answer, and now and then a rate limiter's 429 with `Retry-After: 1`. It counts what it sees.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use futures_util::stream::{self, StreamExt};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use tower::ServiceExt;

use crate::gauge::Gauge;

/// How often a run meets the rate limiter, and for how long it then turns away all that comes.
const THROTTLES: u64 = 3;
const THROTTLE_LASTS: Duration = Duration::from_millis(50);
const RETRY_AFTER: Duration = Duration::from_secs(1);
const MIN_LATENCY: Duration = Duration::from_millis(5);
const LATENCY_SPREAD: Duration = Duration::from_millis(15);

/// Serves on a free loopback port until dropped.
pub(crate) struct Upstream {
    address: SocketAddr,
    seen: Arc<Seen>,
    // Aborts the server, and with it all connections, when dropped.
    _server: JoinSet<()>,
}

impl Upstream {
    pub(crate) async fn start(calls: usize, fail_rate: f64, seed: u64) -> std::io::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let address = listener.local_addr()?;
        let seen = Arc::new(Seen {
            calls: calls as u64,
            fail_rate,
            seed,
            requests: AtomicU64::new(0),
            running: Gauge::default(),
            early_returns: AtomicUsize::new(0),
            throttle: Mutex::default(),
            items: Mutex::default(),
        });
        let router = Router::new().route("/item/{number}", get(item)).with_state(seen.clone());
        let mut server = JoinSet::new();
        server.spawn(serve(listener, router));
        Ok(Self { address, seen, _server: server })
    }

    pub(crate) fn url(&self, number: usize) -> http::Uri {
        format!("http://{}/item/{number}", self.address).parse().expect("an address and a number make a URL")
    }

    /// The most requests it handled at once.
    pub(crate) fn peak(&self) -> usize {
        self.seen.running.peak()
    }

    /// How many retries came before the Retry-After that their call had been given.
    pub(crate) fn early_returns(&self) -> usize {
        self.seen.early_returns.load(Relaxed)
    }
}

/// What the server counts and decides by.
struct Seen {
    calls: u64,
    fail_rate: f64,
    seed: u64,
    requests: AtomicU64,
    running: Gauge,
    early_returns: AtomicUsize,
    throttle: Mutex<Throttle>,
    items: Mutex<HashMap<u64, Item>>,
}

#[derive(Default)]
struct Throttle {
    begun: u64,
    last: Option<Instant>,
}

#[derive(Default)]
struct Item {
    requests: u64,
    not_before: Option<Instant>,
}

/// What becomes of a request.
#[derive(Clone, Copy, PartialEq)]
enum Fate {
    Throttled,
    Fails(StatusCode),
    DroppedBeforeTheAnswer,
    DroppedWithinTheAnswer,
    Answered,
}

impl Seen {
    /// Notes a request for `number` and decides what becomes of it.
    fn meet(&self, number: u64, now: Instant) -> (Fate, Duration) {
        let nth = self.requests.fetch_add(1, Relaxed);
        let throttled = self.throttled(nth, now);
        let mut items = self.items.lock().unwrap();
        let item = items.entry(number).or_default();
        if item.not_before.is_some_and(|earliest| now < earliest) {
            self.early_returns.fetch_add(1, Relaxed);
        }
        item.not_before = throttled.then(|| now + RETRY_AFTER);
        item.requests += 1;
        let draw = |salt| unit(self.seed, [number, item.requests, salt]);
        let latency = MIN_LATENCY + LATENCY_SPREAD.mul_f64(draw(0));
        let fate = if throttled {
            Fate::Throttled
        } else if draw(1) >= self.fail_rate {
            Fate::Answered
        } else {
            // A fifth each.
            match (draw(2) * 5.0) as u32 {
                0 => Fate::Fails(StatusCode::INTERNAL_SERVER_ERROR),
                1 => Fate::Fails(StatusCode::BAD_GATEWAY),
                2 => Fate::Fails(StatusCode::SERVICE_UNAVAILABLE),
                3 => Fate::DroppedBeforeTheAnswer,
                _ => Fate::DroppedWithinTheAnswer,
            }
        };
        (fate, latency)
    }

    /// Whether the rate limiter turns the nth request away. It does so for a moment after a quarter, a half and three
    /// quarters of the calls, each moment once the one before has let everybody back in.
    fn throttled(&self, nth: u64, now: Instant) -> bool {
        if self.fail_rate == 0.0 {
            return false;
        }
        let mut throttle = self.throttle.lock().unwrap();
        let since = throttle.last.map(|last| now.duration_since(last));
        if since.is_some_and(|since| since < THROTTLE_LASTS) {
            return true;
        }
        let due = nth >= self.calls * (throttle.begun + 1) / (THROTTLES + 1);
        let over = since.is_none_or(|since| since >= THROTTLE_LASTS + RETRY_AFTER);
        if throttle.begun < THROTTLES && due && over {
            throttle.begun += 1;
            throttle.last = Some(now);
            return true;
        }
        false
    }
}

/// A number in [0, 1) that seed and key alone decide, so that runs repeat however their requests interleave.
fn unit(seed: u64, key: [u64; 3]) -> f64 {
    // SplitMix64's finalizer (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, 2014).
    let mix = |state: u64, word: u64| {
        let z = (state ^ word).wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    };
    let bits = key.into_iter().fold(mix(seed, 0), mix);
    (bits >> 11) as f64 / (1u64 << 53) as f64
}

/// Marks a response whose connection is dropped in its stead.
#[derive(Clone, Debug)]
struct Dropped;

async fn item(State(seen): State<Arc<Seen>>, Path(number): Path<u64>) -> Response {
    // Given up before the answer leaves: the client cannot start its next attempt while this one still counts.
    let _running = seen.running.enter();
    let (fate, latency) = seen.meet(number, Instant::now());
    if fate == Fate::Throttled {
        // A rate limiter answers at once.
        let seconds = RETRY_AFTER.as_secs().to_string();
        return (StatusCode::TOO_MANY_REQUESTS, [(header::RETRY_AFTER, seconds)]).into_response();
    }
    sleep(latency).await;
    match fate {
        Fate::Answered => format!("item {number}\n").into_response(),
        Fate::Fails(status) => status.into_response(),
        Fate::DroppedWithinTheAnswer => {
            // One byte of the two that were announced. The pause lets hyper send it; what it has not sent by the
            // time of the error it drops.
            let lost = async {
                sleep(MIN_LATENCY).await;
                Err(std::io::Error::other("dropped on purpose"))
            };
            let body = Body::from_stream(stream::iter([Ok("i")]).chain(stream::once(lost)));
            ([(header::CONTENT_LENGTH, "2")], body).into_response()
        }
        Fate::DroppedBeforeTheAnswer | Fate::Throttled => {
            let mut response = StatusCode::OK.into_response();
            response.extensions_mut().insert(Dropped);
            response
        }
    }
}

/// axum's own `serve` cannot drop a connection on demand; a hyper service can, by failing.
async fn serve(listener: TcpListener, router: Router) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            Ok((stream, _)) = listener.accept() => {
                connections.spawn(connection(stream, router.clone()));
            }
            Some(_) = connections.join_next() => {}
        }
    }
}

async fn connection(stream: TcpStream, router: Router) {
    let service = service_fn(move |request: hyper::Request<hyper::body::Incoming>| {
        let router = router.clone();
        async move {
            let response = match router.oneshot(request).await {
                Ok(response) => response,
                Err(never) => match never {},
            };
            let dropped = response.extensions().get::<Dropped>().is_some();
            if dropped { Err(std::io::Error::other("dropped on purpose")) } else { Ok(response) }
        }
    });
    // What fails here was made to fail, or its client has gone.
    let _ = hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
}
