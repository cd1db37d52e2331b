//! An upstream that takes charges, over connections that fail before, during and after the charge is taken (H1, E11,
//! E12): each keyed charge is taken exactly once, each unkeyed one at most once.

use std::collections::{HashMap, HashSet};
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::body::Body;
use http::Request;
use http_body_util::BodyExt;
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tower::{Layer, ServiceExt};
use tower_sluice_http::backoff::Backoff;
use tower_sluice_http::retry::RetryBudget;
use tower_sluice_http::{HttpRetry, HttpRetryPolicy, attempts, http_client, http_retry};

const CALLS: u32 = 10_000;

/// Where a request's way ends, or does not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Fault {
    None,
    /// Closed before anything was read.
    CloseUnread,
    /// Reset with the request half read.
    ResetInMidBody,
    /// Read, and closed without taking the charge.
    CloseBefore,
    /// Turned away.
    TooManyRequests,
    Unavailable,
    /// Taken, and closed without an answer.
    CloseAfter,
    /// Taken, and reset.
    ResetAfter,
    /// Taken, and answered with half a head.
    HalfAHead,
    /// Taken, and answered with an error by what lies between.
    BadGateway,
    /// Taken and answered, and then the connection is closed although it said that it would stay.
    CloseIdle,
    /// Taken, and answered with half a body.
    HalfABody,
}

const FAULTS: [Fault; 11] = [
    Fault::CloseUnread,
    Fault::ResetInMidBody,
    Fault::CloseBefore,
    Fault::TooManyRequests,
    Fault::Unavailable,
    Fault::CloseAfter,
    Fault::ResetAfter,
    Fault::HalfAHead,
    Fault::BadGateway,
    Fault::CloseIdle,
    Fault::HalfABody,
];

/// The upstream: it honours keys, and knows what it has taken.
#[derive(Default)]
struct Ledger {
    /// By the charge's own name, which is in the body: how often it was taken.
    taken: HashMap<String, u32>,
    keys: HashSet<String>,
    requests: u32,
    faults: HashMap<Fault, u32>,
}

impl Ledger {
    fn take(&mut self, key: Option<&str>, charge: &str) {
        if key.is_none_or(|key| self.keys.insert(key.to_owned())) {
            *self.taken.entry(charge.to_owned()).or_default() += 1;
        }
    }

    /// One in three requests fails, in a way that its number decides.
    fn next_fault(&mut self) -> Fault {
        self.requests += 1;
        // SplitMix64, so that no two neighbours are alike.
        let mut z = (u64::from(self.requests) + 0x5eed).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^= z >> 31;
        let fault = if z % 3 == 0 { FAULTS[(z >> 32) as usize % FAULTS.len()] } else { Fault::None };
        *self.faults.entry(fault).or_default() += 1;
        fault
    }
}

/// Serves one connection until it is to end.
async fn serve(stream: TcpStream, ledger: Arc<Mutex<Ledger>>) -> io::Result<()> {
    let mut stream = BufReader::new(stream);
    loop {
        let fault = {
            // Nothing is decided for a connection that carries no further request.
            if stream.fill_buf().await?.is_empty() {
                return Ok(());
            }
            ledger.lock().unwrap().next_fault()
        };
        if fault == Fault::CloseUnread {
            return Ok(());
        }
        let (mut key, mut length) = (None, 0);
        loop {
            let mut line = String::new();
            stream.read_line(&mut line).await?;
            let Some((name, value)) = line.trim_end().split_once(": ") else {
                if line == "\r\n" {
                    break;
                }
                assert!(line.starts_with("POST /charge HTTP/1.1"), "{line:?}");
                continue;
            };
            match name {
                "idempotency-key" => key = Some(value.to_owned()),
                "content-length" => length = value.parse().unwrap(),
                _ => {}
            }
        }
        let mut body = vec![0; length];
        if fault == Fault::ResetInMidBody {
            stream.read_exact(&mut body[..length / 2]).await?;
            // Unread bytes make it a reset.
            return Ok(());
        }
        stream.read_exact(&mut body).await?;
        let charge = String::from_utf8(body).unwrap();
        let turned_away = match fault {
            Fault::CloseBefore => return Ok(()),
            Fault::TooManyRequests => Some("429"),
            Fault::Unavailable => Some("503"),
            _ => None,
        };
        if let Some(status) = turned_away {
            stream.write_all(format!("HTTP/1.1 {status} \r\ncontent-length: 0\r\n\r\n").as_bytes()).await?;
            continue;
        }
        ledger.lock().unwrap().take(key.as_deref(), &charge);
        match fault {
            Fault::CloseAfter => return Ok(()),
            Fault::ResetAfter => {
                stream.into_inner().set_zero_linger()?;
                return Ok(());
            }
            Fault::HalfAHead => return stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-le").await,
            Fault::HalfABody => {
                return stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nta").await;
            }
            Fault::BadGateway => stream.write_all(b"HTTP/1.1 502 \r\ncontent-length: 0\r\n\r\n").await?,
            _ => stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\ntaken").await?,
        }
        if fault == Fault::CloseIdle {
            return Ok(());
        }
    }
}

async fn upstream() -> (SocketAddr, Arc<Mutex<Ledger>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let ledger = Arc::<Mutex<Ledger>>::default();
    let shared = Arc::clone(&ledger);
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let ledger = Arc::clone(&shared);
            tokio::spawn(async move { serve(stream, ledger).await.ok() });
        }
    });
    (address, ledger)
}

/// Enough attempts that a keyed call succeeds in the end, soon after one another.
fn policy() -> HttpRetryPolicy {
    http_retry()
        .max_attempts(40)
        .backoff(Backoff::exponential(Duration::from_millis(1), Duration::from_millis(4)))
        .budget(RetryBudget::unlimited())
}

/// Pays a charge: the status, or `None` for an error, and how many attempts it took.
async fn pay<S, B>(stripe: S, address: SocketAddr, charge: String) -> (Option<u16>, u32)
where
    S: tower::Service<Request<Body>, Response = http::Response<B>>,
    B: http_body::Body,
{
    // A name long enough to be cut in the middle.
    let body = Body::from(format!("{charge}, of 4 EUR"));
    let request = Request::post(format!("http://{address}/charge")).body(body).unwrap();
    match stripe.oneshot(request).await {
        Ok(response) => {
            let (status, attempts) = (response.status().as_u16(), attempts(&response));
            // Half a body is the caller's to notice: the charge was taken.
            let _ = response.into_body().collect().await;
            (Some(status), attempts)
        }
        Err(_) => (None, 1),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn h1_case_e11_case_e12_keyed_charges_are_taken_once_and_unkeyed_ones_at_most_once() {
    let (address, ledger) = upstream().await;
    let client: Client<_, Body> = Client::builder(TokioExecutor::new()).build_http();
    let queue = http_client(32).max_waiting(CALLS as usize).call_timeout(Duration::MAX);
    let policy = policy().replay_bodies(64 << 10, Body::new);
    let keyed = queue.clone().retry(policy.clone().idempotency_key("idempotency-key")).layer(client.clone());
    let unkeyed = queue.clone().retry(policy).layer(client);

    let calls: Vec<_> = (0..CALLS)
        .map(|n| {
            if n % 2 == 0 {
                tokio::spawn(pay(keyed.clone(), address, format!("keyed {n}")))
            } else {
                tokio::spawn(pay(unkeyed.clone(), address, format!("unkeyed {n}")))
            }
        })
        .collect();
    let mut results = Vec::new();
    for call in calls {
        results.push(call.await.unwrap());
    }

    let ledger = ledger.lock().unwrap();
    let mut unkeyed_taken = 0;
    for (n, (status, attempts)) in results.iter().enumerate() {
        let kind = if n % 2 == 0 { "keyed" } else { "unkeyed" };
        let charge = format!("{kind} {n}, of 4 EUR");
        let taken = ledger.taken.get(&charge).copied().unwrap_or(0);
        if n % 2 == 0 {
            assert_eq!((taken, *status), (1, Some(200)), "{charge}, {attempts} attempts");
        } else {
            assert!(taken <= 1, "{charge} was taken {taken} times in {attempts} attempts");
            if *status == Some(200) {
                assert_eq!(taken, 1, "{charge}");
            }
            unkeyed_taken += taken;
        }
    }
    // The test has tested something: faults of every kind, and retries of both kinds of charge.
    assert!(FAULTS.iter().all(|fault| ledger.faults[fault] > 100), "{:?}", ledger.faults);
    let retried = |n: usize| results.iter().skip(n).step_by(2).filter(|(_, attempts)| *attempts > 1).count();
    assert!(retried(0) > 500 && retried(1) > 50, "{} keyed, {} unkeyed", retried(0), retried(1));
    // Unkeyed ones that were surely not processed were sent again, the others were left alone.
    assert!((3_000..5_000).contains(&unkeyed_taken), "{unkeyed_taken}");
    let stats = queue.handle().stats();
    assert_eq!((stats.running, stats.queued, stats.deferred), (0, 0, 0));
    assert_eq!(stats.admitted, u64::from(CALLS));
}
