//! Ten thousand callers, an upstream that is dead and comes back, and an operator who pauses, clears, resizes and
//! drains at random: whatever happens, every caller has one answer, and nothing is left.
#![cfg(feature = "queue")]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tower::{Layer, ServiceExt};
use tower_sluice::queue::QueueLayer;
use tower_sluice::reject::Rejection;
use tower_sluice::verdict::Verdict;
use tower_sluice_test::{Failure, Script, Step, seed};

mod queue_kit;
use queue_kit::*;

/// What the upstream does at present.
const WELL: u8 = 0;
const FAILS: u8 = 1;
const HANGS: u8 = 2;
const THROTTLES: u8 = 3;
const PANICS: u8 = 4;

const CALLERS: usize = 10_000;

async fn chaos(seed: u64) -> BTreeMap<&'static str, u64> {
    let mut rng = StdRng::seed_from_u64(seed);
    let state = Arc::new(AtomicU8::new(FAILS));
    let script = Script::<u32>::new();
    let says = state.clone();
    let inner = script.service_by(move |request: &u32, n| {
        let took = ms(1 + n as u64 % 7);
        match says.load(Ordering::SeqCst) {
            FAILS => Step::fail("down").after(took),
            HANGS => Step::never(),
            THROTTLES if n % 3 == 0 => Step::answer(429).after(took),
            PANICS if n % 5 == 0 => Step::panic("on purpose"),
            _ => Step::answer(*request).after(took),
        }
    });
    let policy = retries(4, ms(20)).classify(|result: &Result<u32, Failure>| match result {
        Ok(429) => Verdict::throttled().after(Some(ms(200))),
        Ok(_) => Verdict::Success,
        Err(_) => Verdict::transient(),
    });
    let queue = QueueLayer::new(16)
        .max_waiting(2_000)
        .queue_timeout(ms(300))
        .call_timeout(ms(500))
        .attempt_timeout(ms(300))
        .hold_on_retry_after(secs(1))
        .seed(seed)
        .retry(policy);
    let (handle, service) = (queue.handle(), queue.layer(inner.clone()));
    // A class of its own over the same slots, with a bound of its own.
    let feed = queue.class("feed").max_waiting(50);
    let feed_service = feed.layer(inner);

    let mut calls = Vec::new();
    let mut limit = 16;
    let mut most = 16;
    let mut cleared = 0;
    while calls.len() < CALLERS {
        for _ in 0..rng.random_range(1..40) {
            let n = 1_000 + u32::try_from(calls.len()).unwrap();
            let to = if rng.random_range(0..10) == 0 { &feed_service } else { &service };
            calls.push(spawn(to, n));
        }
        match rng.random_range(0..40) {
            0 => handle.pause(),
            1..6 => handle.resume(),
            6 if rng.random_range(0..8) == 0 => cleared += handle.clear("operator"),
            7..9 => {
                limit = rng.random_range(1..40);
                most = most.max(limit);
                handle.set_limit(limit).unwrap();
            }
            9..15 => state.store(rng.random_range(WELL..=PANICS), Ordering::SeqCst),
            15..20 => state.store(WELL, Ordering::SeqCst),
            20 => {
                let victim = rng.random_range(0..calls.len());
                calls[victim].abort();
            }
            _ => {}
        }
        tokio::time::sleep(ms(rng.random_range(0..20))).await;
        // Whose time has come may look.
        settle().await;
        let stats = handle.stats();
        sound(&stats);
        assert_eq!(stats.limit.min(limit), stats.limit);
        // Q6: what was admitted is bounded, whatever happens; what was running when the limit shrank may exceed it.
        assert!(stats.waiting() <= 2_000 + most, "{stats:?}");
        if stats.queued > 0 && !stats.paused && stats.held_until.is_none() {
            // Q14.
            assert!(stats.running >= stats.limit, "{stats:?}");
        }
    }
    // At the end it hangs, with more at the door.
    state.store(HANGS, Ordering::SeqCst);
    handle.resume();
    for n in 0..100 {
        calls.push(spawn(&service, n));
    }
    settle().await;
    let drained = handle.drain(ms(100)).await;
    assert!(drained.still_running <= most, "{drained:?}");
    // Those that still run end by their timeouts.
    handle.idle().await;
    let Rejection::Closed = rejection(service.oneshot(0).await) else { panic!("not closed") };

    let callers = calls.len() as u64;
    let mut ends = BTreeMap::<&'static str, u64>::new();
    for call in calls {
        let end = match call.await {
            Ok(Ok(429)) => "throttled",
            Ok(Ok(_)) => "answered",
            Ok(Err(error)) => match Rejection::find(&*error) {
                Some(rejection) => rejection.as_str(),
                None => "failed",
            },
            Err(error) if error.is_panic() => "panicked",
            Err(_) => "dropped",
        };
        *ends.entry(end).or_default() += 1;
    }
    nothing_left(&handle);
    let stats = handle.stats();
    let class = feed.stats();
    assert_eq!((class.waiting, class.running), (0, 0), "{class:?}");
    assert_eq!(class.admitted, class.succeeded + class.failed + class.given_up, "{class:?}");
    let of = |end| ends.get(end).copied().unwrap_or(0);
    assert_eq!(ends.values().sum::<u64>(), callers);
    assert_eq!(stats.succeeded, of("answered"), "{ends:?} {stats:?}");
    assert_eq!(stats.failed, of("failed") + of("throttled") + of("attempt_timeout"), "{ends:?} {stats:?}");
    assert_eq!(stats.rejected.full, of("full"), "{ends:?} {stats:?}");
    assert_eq!(stats.rejected.queue_timeout, of("queue_timeout"), "{ends:?} {stats:?}");
    assert_eq!(stats.rejected.deadline + stats.rejected.too_late, of("deadline"), "{ends:?} {stats:?}");
    assert_eq!(of("cleared"), cleared as u64, "{ends:?} {stats:?}");
    assert_eq!(stats.cleared, of("cleared") + drained.cleared as u64, "{ends:?} {stats:?}");
    assert_eq!(of("closed"), drained.cleared as u64, "{ends:?} {stats:?}");
    assert_eq!(stats.attempts, script.calls() as u64);
    assert!(script.peak() <= most, "{} of {most}", script.peak());
    assert_eq!((script.running(), script.futures()), (0, 0));
    eprintln!("{ends:?}");
    ends
}

#[tokio::test(start_paused = true)]
async fn q13_case_h18_ten_thousand_callers_a_dead_upstream_and_a_busy_operator() {
    // Panics are part of it, and would fill the screen.
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        if info.payload_as_str() != Some("on purpose") {
            hook(info);
        }
    }));
    let seed = seed("q13_case_h18");
    let mut all = BTreeMap::new();
    for round in 0..3 {
        for (end, calls) in chaos(seed.wrapping_add(round)).await {
            *all.entry(end).or_insert(0) += calls;
        }
    }
    // All of it has happened.
    for end in [
        "answered",
        "cleared",
        "closed",
        "deadline",
        "dropped",
        "failed",
        "full",
        "panicked",
        "queue_timeout",
    ] {
        assert!(all.contains_key(end), "{end} is not among {all:?}");
    }
}
