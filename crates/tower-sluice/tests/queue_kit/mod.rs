//! What the tests of the queue share: times, policies, and services that note whom they served when.
#![allow(dead_code)] // Each test file uses its own part.

use std::future::Future;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::Instant;
use tower::{Service, ServiceExt};
use tower_sluice::BoxError;
use tower_sluice::backoff::{Backoff, Jitter};
use tower_sluice::queue::{Handle, Stats};
use tower_sluice::reject::Rejection;
use tower_sluice::retry::RetryPolicy;
use tower_sluice_test::script::Scripted;
use tower_sluice_test::{Failure, Script, Step};

pub(crate) const fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

pub(crate) const fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

/// Every delay is exactly `delay`.
pub(crate) fn fixed(delay: Duration) -> Backoff {
    Backoff::exponential(delay, delay).jitter(Jitter::None)
}

/// Every error is retried after `delay`, up to so many attempts.
pub(crate) fn retries(max_attempts: u32, delay: Duration) -> RetryPolicy {
    RetryPolicy::new(max_attempts, fixed(delay))
}

/// A call in a task of its own, as a server's connection makes it.
pub(crate) fn spawn<S, Req>(service: &S, request: Req) -> JoinHandle<Result<S::Response, S::Error>>
where
    S: Service<Req, Future: Send, Response: Send, Error: Send> + Clone + Send + 'static,
    Req: Send + 'static,
{
    tokio::spawn(service.clone().oneshot(request))
}

/// Lets every task run that can, while the clock stands still.
pub(crate) async fn settle() {
    for _ in 0..200 {
        tokio::task::yield_now().await;
    }
}

/// The rejection that a boxed error is, or hides.
#[track_caller]
pub(crate) fn rejection<T: std::fmt::Debug>(result: Result<T, BoxError>) -> Rejection {
    let error = result.expect_err("an answer instead of a rejection");
    match Rejection::find(&*error) {
        Some(rejection) => rejection.clone(),
        None => panic!("not a rejection: {error}"),
    }
}

#[track_caller]
pub(crate) fn cleared(reason: &str) -> Rejection {
    Rejection::Cleared { reason: Arc::from(reason) }
}

/// The result of a future that ends without time passing.
#[track_caller]
pub(crate) fn now<F: Future>(future: F) -> F::Output {
    let mut future = tower_sluice_test::by_hand(future);
    match future.poll() {
        std::task::Poll::Ready(output) => output,
        std::task::Poll::Pending => panic!("still pending"),
    }
}

/// Milliseconds since it was made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Since(Instant);

impl Since {
    pub(crate) fn start() -> Self {
        Self(Instant::now())
    }

    pub(crate) fn ms(self) -> u64 {
        u64::try_from(self.0.elapsed().as_millis()).unwrap()
    }

    /// Sleeps until so many milliseconds have passed.
    pub(crate) async fn at(self, millis: u64) {
        tokio::time::sleep_until(self.0 + ms(millis)).await;
        settle().await;
    }
}

/// Which requests were served, and when: one entry an attempt.
#[derive(Clone, Debug)]
pub(crate) struct Served {
    entries: Arc<Mutex<Vec<(u32, u64)>>>,
}

impl Served {
    /// The requests, in the order in which their attempts started.
    pub(crate) fn requests(&self) -> Vec<u32> {
        self.entries.lock().unwrap().iter().map(|entry| entry.0).collect()
    }

    /// With the milliseconds at which they did.
    pub(crate) fn entries(&self) -> Vec<(u32, u64)> {
        self.entries.lock().unwrap().clone()
    }
}

/// A service whose attempts do what `step` says, given the request and how many attempts were made for it before.
pub(crate) fn served(
    script: &Script<u32>,
    step: impl Fn(u32, usize) -> Step<u32, Failure> + Send + Sync + 'static,
) -> (Scripted<u32, u32, Failure>, Served) {
    let entries = Arc::new(Mutex::new(Vec::new()));
    let (noted, since) = (entries.clone(), Since::start());
    let service = script.service_by(move |request: &u32, _| {
        let mut noted = noted.lock().unwrap();
        let before = noted.iter().filter(|entry: &&(u32, u64)| entry.0 == *request).count();
        noted.push((*request, since.ms()));
        step(*request, before)
    });
    (service, Served { entries })
}

/// What must hold of any reading: the sum, and the gauges against each other.
#[track_caller]
pub(crate) fn sound(stats: &Stats) {
    let live = (stats.queued + stats.running + stats.deferred) as u64;
    assert_eq!(stats.admitted, live + stats.finished(), "{stats:?}");
    assert!(stats.granted <= stats.running, "{stats:?}");
}

/// Nothing is left behind, and every call that was admitted has ended.
#[track_caller]
pub(crate) fn nothing_left(handle: &Handle) {
    let stats = handle.stats();
    sound(&stats);
    let gauges = [stats.queued, stats.running, stats.deferred, stats.granted, stats.reserved];
    assert_eq!(gauges, [0; 5], "queued, running, deferred, granted, reserved of {stats:?}");
    assert_eq!((stats.oldest_waiting, stats.oldest_running), (None, None), "{stats:?}");
}
