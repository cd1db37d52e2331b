//! Q8, and the other rules with it, where threads do to each other what they can: in real time, with real threads.
//!
//! How many calls the stress makes is `SLUICE_STRESS_CALLS`; without it as many as a debug build makes in a few
//! seconds. `scripts/ci-stress.sh` makes millions, in release.
#![cfg(feature = "queue")]

use std::future::{Ready, poll_fn, ready};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tower::{Layer, Service, ServiceExt};
use tower_sluice::queue::{Handle, QueueLayer};
use tower_sluice_test::{Failure, seed};

mod queue_kit;
use queue_kit::*;

fn calls(unless_set: u64) -> u64 {
    match std::env::var("SLUICE_STRESS_CALLS") {
        Ok(calls) => calls.parse().expect("SLUICE_STRESS_CALLS is to be a number"),
        Err(_) => unless_set,
    }
}

/// A service that knows whether it may be called at all.
#[derive(Clone)]
struct Watched {
    /// Between a pause that has returned and the resume that follows.
    forbidden: Arc<AtomicBool>,
    started: Arc<AtomicU64>,
    early: Arc<AtomicU64>,
    running: Arc<AtomicUsize>,
    peak: Arc<AtomicUsize>,
    /// A clone's own: each attempt asks for it anew.
    ready: bool,
}

impl Watched {
    fn new() -> Self {
        Self {
            forbidden: Arc::default(),
            started: Arc::default(),
            early: Arc::default(),
            running: Arc::default(),
            peak: Arc::default(),
            ready: false,
        }
    }
}

/// An attempt, which ends when it has been polled so many times.
struct Attempt {
    running: Arc<AtomicUsize>,
    polls: u64,
    result: Ready<Result<u64, Failure>>,
}

impl Drop for Attempt {
    fn drop(&mut self) {
        self.running.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Future for Attempt {
    type Output = Result<u64, Failure>;

    fn poll(mut self: std::pin::Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if self.polls > 0 {
            self.polls -= 1;
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        std::pin::Pin::new(&mut self.result).poll(cx)
    }
}

impl Service<u64> for Watched {
    type Response = u64;
    type Error = Failure;
    type Future = Attempt;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Failure>> {
        self.ready = true;
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, n: u64) -> Attempt {
        assert!(std::mem::take(&mut self.ready), "called without readiness");
        // Before and after: what is forbidden may have become so while this thread was away.
        self.early.fetch_add(u64::from(self.forbidden.load(Ordering::SeqCst)), Ordering::SeqCst);
        let running = self.running.fetch_add(1, Ordering::SeqCst) + 1;
        self.peak.fetch_max(running, Ordering::SeqCst);
        let started = self.started.fetch_add(1, Ordering::SeqCst);
        self.early.fetch_add(u64::from(self.forbidden.load(Ordering::SeqCst)), Ordering::SeqCst);
        let result = if started.is_multiple_of(11) { Err("now and then".into()) } else { Ok(n) };
        Attempt { running: self.running.clone(), polls: started % 3, result: ready(result) }
    }
}

/// Pauses and resumes until it is told to stop, and says how often.
fn pauser(handle: Handle, watched: Watched, stop: Arc<AtomicBool>, mut rng: StdRng) -> impl FnOnce() -> u64 {
    move || {
        let mut pauses = 0;
        while !stop.load(Ordering::SeqCst) {
            handle.pause();
            watched.forbidden.store(true, Ordering::SeqCst);
            let started = watched.started.load(Ordering::SeqCst);
            for _ in 0..rng.random_range(0..300) {
                std::hint::spin_loop();
            }
            if pauses % 8 == 0 {
                std::thread::yield_now();
            }
            let after = watched.started.load(Ordering::SeqCst);
            // Counted, not asserted: a pauser that is gone would leave its callers waiting.
            watched.early.fetch_add(after - started, Ordering::SeqCst);
            watched.forbidden.store(false, Ordering::SeqCst);
            handle.resume();
            pauses += 1;
            for _ in 0..rng.random_range(0..2_000) {
                std::hint::spin_loop();
            }
            if pauses % 4 == 0 {
                std::thread::sleep(Duration::from_micros(rng.random_range(0..50)));
            }
        }
        pauses
    }
}

/// Calls from several threads, each with a line of its own, so that most calls need no wait; and a pauser.
#[test]
fn q8_no_attempt_starts_between_the_return_of_pause_and_resume_where_calls_do_not_wait() {
    let calls = calls(200_000);
    let watched = Watched::new();
    // More slots than threads: the way of a call that finds the queue quiet.
    let queue = QueueLayer::new(64);
    let handle = queue.handle();
    let stop = Arc::new(AtomicBool::new(false));
    let rng = StdRng::seed_from_u64(seed("q8_where_calls_do_not_wait"));
    let pauses = std::thread::scope(|scope| {
        let pauser = scope.spawn(pauser(handle.clone(), watched.clone(), stop.clone(), rng));
        let callers: Vec<_> = (0..3)
            .map(|_| {
                let service = queue.layer(watched.clone());
                scope.spawn(move || {
                    let runtime =
                        tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
                    runtime.block_on(async {
                        for n in 0..calls / 3 {
                            let _ = service.clone().oneshot(n).await;
                        }
                    });
                })
            })
            .collect();
        for caller in callers {
            caller.join().unwrap();
        }
        stop.store(true, Ordering::SeqCst);
        pauser.join().unwrap()
    });
    assert_eq!(watched.early.load(Ordering::SeqCst), 0);
    assert!(pauses > 100, "{pauses} pauses");
    assert_eq!(watched.started.load(Ordering::SeqCst), calls / 3 * 3);
    nothing_left(&handle);
    eprintln!("{} calls, {pauses} pauses", calls / 3 * 3);
}

/// The same where calls stand in line for two slots, come back from delays, are dropped, and the limit moves.
#[test]
fn q8_no_attempt_starts_between_the_return_of_pause_and_resume_where_calls_wait() {
    const TASKS: u64 = 32;
    let calls = calls(100_000);
    let watched = Watched::new();
    let queue = QueueLayer::new(2).retry(retries(3, Duration::ZERO));
    let handle = queue.handle();
    let stop = Arc::new(AtomicBool::new(false));
    let seed = seed("q8_where_calls_wait");
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(3).enable_time().build().unwrap();
    let pauses = std::thread::scope(|scope| {
        let rng = StdRng::seed_from_u64(seed);
        let pauser = scope.spawn(pauser(handle.clone(), watched.clone(), stop.clone(), rng));
        let resizer = {
            let (handle, stop, mut rng) = (handle.clone(), stop.clone(), StdRng::seed_from_u64(seed + 1));
            scope.spawn(move || {
                while !stop.load(Ordering::SeqCst) {
                    handle.set_limit(rng.random_range(1..=4)).unwrap();
                    sound(&handle.stats());
                    std::thread::sleep(Duration::from_micros(200));
                }
            })
        };
        runtime.block_on(async {
            let tasks: Vec<_> = (0..TASKS)
                .map(|task| {
                    let service = queue.layer(watched.clone());
                    let mut rng = StdRng::seed_from_u64(seed + 2 + task);
                    tokio::spawn(async move {
                        for n in 0..calls / TASKS {
                            let call = service.clone().oneshot(n);
                            if rng.random_range(0..16) == 0 {
                                // Dropped in whatever state it is in after some polls.
                                let mut call = Box::pin(call);
                                for _ in 0..rng.random_range(0..4) {
                                    let once = poll_fn(|cx| Poll::Ready(call.as_mut().poll(cx).is_ready()));
                                    if once.await {
                                        break;
                                    }
                                    tokio::task::yield_now().await;
                                }
                            } else {
                                let _ = call.await;
                            }
                        }
                    })
                })
                .collect();
            for task in tasks {
                task.await.unwrap();
            }
        });
        stop.store(true, Ordering::SeqCst);
        resizer.join().unwrap();
        pauser.join().unwrap()
    });
    assert_eq!(watched.early.load(Ordering::SeqCst), 0);
    assert!(pauses > 100, "{pauses} pauses");
    let peak = watched.peak.load(Ordering::SeqCst);
    assert!(peak <= 4, "{peak} at once");
    assert_eq!(handle.stats().attempts, watched.started.load(Ordering::SeqCst));
    nothing_left(&handle);
    eprintln!("{} attempts, {pauses} pauses", watched.started.load(Ordering::SeqCst));
}

/// Two pausers and one who resumes: whoever's `pause` has returned finds no start until somebody resumes.
#[test]
fn q8_two_pausers_both_find_that_nothing_starts() {
    let calls = calls(60_000) / 3;
    let watched = Watched::new();
    let queue = QueueLayer::new(8);
    let handle = queue.handle();
    let stop = Arc::new(AtomicBool::new(false));
    std::thread::scope(|scope| {
        let callers: Vec<_> = (0..2)
            .map(|_| {
                let mut service = queue.layer(watched.clone());
                scope.spawn(move || {
                    for n in 0..calls {
                        // Paused: it waits and is dropped, and comes again.
                        let mut call = tower_sluice_test::by_hand(service.call(n));
                        for _ in 0..4 {
                            if call.poll().is_ready() {
                                break;
                            }
                        }
                    }
                })
            })
            .collect();
        // Both have paused before either resumes.
        let turn = Arc::new(std::sync::Barrier::new(2));
        let leave = Arc::new(AtomicBool::new(false));
        let pausers: Vec<_> = (0..2)
            .map(|_| {
                let (handle, watched, turn) = (handle.clone(), watched.clone(), turn.clone());
                let (stop, leave) = (stop.clone(), leave.clone());
                scope.spawn(move || {
                    let mut rounds = 0_u64;
                    loop {
                        handle.pause();
                        let started = watched.started.load(Ordering::SeqCst);
                        if turn.wait().is_leader() {
                            // Said by one: both leave in the same round.
                            leave.store(stop.load(Ordering::SeqCst), Ordering::SeqCst);
                        }
                        let after = watched.started.load(Ordering::SeqCst);
                        watched.early.fetch_add(after - started, Ordering::SeqCst);
                        rounds += 1;
                        turn.wait();
                        handle.resume();
                        if leave.load(Ordering::SeqCst) {
                            return rounds;
                        }
                        std::thread::yield_now();
                        // A pause before the other has resumed would be resumed by it.
                        turn.wait();
                    }
                })
            })
            .collect();
        for caller in callers {
            caller.join().unwrap();
        }
        stop.store(true, Ordering::SeqCst);
        for pauser in pausers {
            assert!(pauser.join().unwrap() > 10);
        }
    });
    assert_eq!(watched.early.load(Ordering::SeqCst), 0);
    nothing_left(&handle);
}
