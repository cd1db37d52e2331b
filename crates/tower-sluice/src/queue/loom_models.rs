//! Models of the races of the slot and waker protocol (T4), run by loom at preemption bound 3:
//!
//! ```text
//! RUSTFLAGS="--cfg sluice_loom" cargo test -p tower-sluice --release --lib loom_models
//! ```
//!
//! Each model lets the threads race and then asserts what must hold in every interleaving: no wake-up lost, no slot
//! lost or doubled, no start after `pause` has returned, counts that add up.
//!
//! Each was seen to fail for a bug of the kind that it is there for, planted for a moment. Whoever changes a model
//! plants its bug again:
//!
//! | model of | planted |
//! |---|---|
//! | two starts | `try_start` looks for a free slot once, not again after a lost race |
//! | release, enqueue | a section sets the flag at its end instead of at its start |
//! | a granted call dropped | `leave` reads the stage under one lock and acts on it under the next |
//! | the head cancelled, a grant | `leave` does not give a granted slot back |
//! | pause, fast start | slot and start are counted in two steps; the start's end is told without the lock |
//! | pause, granted start | `poll` counts the start after its section; `pause` leaves granted slots where they are |
//! | two pausers | the end of starts is told to one of them |
//! | two pausers inside calls | they wait like others |
//! | a start that panics | the start's guard does nothing; a call that ends without success keeps its slot |
//! | pause, not ready | `unready` does not look for a pause; `recall` forgets those that ready |
//! | clear, not ready | `clear` skips those that ready |
//! | clear, grant | `clear` does not give a granted slot back |
//! | clear, granted start | `poll` looks at the stage under one lock and starts under the next |
//! | clear, due deferral | `due` does not look whether the call was settled |
//! | clear, cancel | a settled call is counted again; `clear` lists under one lock and settles under the next |
//! | last release, `idle` that registers | a queue with observers counts as quiet |
//! | last release, next arrival, `idle` | an arrival does not tell observers what was before it |
//! | defer and re-enter, `idle` | `due` uncounts under one lock and joins under the next; `defer` releases first |
//! | growing limit | `set_limit` sets it after its section has granted |
//! | shrinking limit | `set_limit` loads and stores the word; it leaves granted slots where they are |
//! | resume, enqueue | `resume` grants nothing; `enter` looks for a pause under one lock and joins under the next |
//! | close, enqueue; close, defer | the look whether it is closed comes before the section |
//! | a waker replaced | `poll` keeps the first waker; it stores the new one after its section |
//! | a reserved place, a knocker dropped | the place is given up without a section; it is not given up |
//! | pause without a limit | no start is counted |
//! | hold | the head is not told the time; a held queue counts as quiet |
//! | snapshots | the word is read before the arrivals; figures are shown without those shown before |

use std::sync::Arc as StdArc;
use std::task::{Wake, Waker};
use std::time::Duration;

use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use loom::thread;

use super::line::Key;
use super::observers::Until;
use super::shared::Shared;
use super::slots::{End, Entered, Knocked, NO_CLASS, Polled, Slots, Ticket};
use super::starting::Starting;
use super::time::Tick;
use super::word::UNLIMITED;

const NOW: Tick = Tick(1);

fn model(races: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = builder.preemption_bound.or(Some(3));
    builder.check(races);
}

/// A waker that counts.
struct Counter(AtomicUsize);

impl Wake for Counter {
    fn wake(self: StdArc<Self>) {
        self.0.fetch_add(1, SeqCst);
    }
}

fn counter() -> (StdArc<Counter>, Waker) {
    let counter = StdArc::new(Counter(AtomicUsize::new(0)));
    (StdArc::clone(&counter), Waker::from(counter))
}

fn wakes(counter: &StdArc<Counter>) -> usize {
    counter.0.load(SeqCst)
}

fn slots(limit: usize) -> Arc<Slots> {
    Arc::new(Slots::new(limit, 16))
}

/// A running attempt.
fn run(slots: &Slots) {
    slots.try_start().expect("a free slot");
    slots.started();
}

fn enter(slots: &Slots, waker: &Waker) -> Entered {
    slots.enter(waker.clone(), false, Ticket::default(), None)
}

/// A call that stands in the line.
fn queued(slots: &Slots, waker: &Waker) -> Key {
    match enter(slots, waker) {
        Entered::Queued { key, .. } => key,
        other => panic!("not queued: {other:?}"),
    }
}

fn poll(slots: &Slots, key: Key, waker: &Waker) -> Polled {
    slots.poll(key, waker, Some(waker.clone()), None)
}

fn defer(slots: &Slots, waker: &Waker) -> Option<Key> {
    slots.defer(0, waker.clone(), true, Ticket::default(), NOW)
}

/// Nothing is held by anybody, and as many as `limit` may run.
fn assert_whole(slots: &Slots, limit: usize) {
    let figures = slots.snapshot().figures;
    assert!(figures.is_idle(), "{figures:?}");
    for _ in 0..limit {
        run(slots);
    }
    assert!(slots.try_start().is_none(), "a slot too many");
}

/// Q1: two starts that take their slot without the lock.
#[test]
fn one_slot_goes_to_one_of_two_that_start_at_once() {
    model(|| {
        let slots = slots(1);
        let other = thread::spawn({
            let slots = slots.clone();
            move || slots.try_start().is_some()
        });
        let mine = slots.try_start().is_some();
        let other = other.join().unwrap();
        assert!(mine ^ other, "two with one slot, or none");
        slots.started();
        slots.succeed(NO_CLASS);
        assert_whole(&slots, 1);
    });
}

/// Q14: release against enqueue.
#[test]
fn a_release_wakes_whoever_queues_at_the_same_time() {
    model(|| {
        let slots = slots(1);
        run(&slots);
        let (woken, waker) = counter();
        let releases = thread::spawn({
            let slots = slots.clone();
            move || slots.succeed(NO_CLASS)
        });
        match enter(&slots, &waker) {
            Entered::Started { .. } => releases.join().unwrap(),
            Entered::Queued { key, .. } => {
                releases.join().unwrap();
                assert_eq!(wakes(&woken), 1, "queued, a slot free, and nobody woken");
                assert!(matches!(poll(&slots, key, &waker), Polled::Started { .. }));
            }
            other => panic!("{other:?}"),
        }
        slots.started();
        slots.succeed(NO_CLASS);
        assert_whole(&slots, 1);
    });
}

/// Q13: a granted call dropped passes its slot on.
#[test]
fn a_granted_call_that_is_dropped_passes_its_slot_on() {
    model(|| {
        let slots = slots(1);
        run(&slots);
        let ((_, first_waker), (woken, second_waker)) = (counter(), counter());
        let first = queued(&slots, &first_waker);
        let second = queued(&slots, &second_waker);
        let drops = thread::spawn({
            let slots = slots.clone();
            move || slots.leave(first, End::Cancelled)
        });
        slots.succeed(NO_CLASS);
        drops.join().unwrap();
        assert_eq!(wakes(&woken), 1);
        assert!(matches!(poll(&slots, second, &second_waker), Polled::Started { .. }));
        slots.started();
        slots.succeed(NO_CLASS);
        assert_whole(&slots, 1);
    });
}

/// Q14: the head is cancelled while a slot is granted: the next gets it, behind it nobody is stranded.
#[test]
fn a_head_that_is_cancelled_during_a_grant_strands_nobody() {
    model(|| {
        let slots = slots(2);
        run(&slots);
        run(&slots);
        let ((_, first_waker), (woken, second_waker)) = (counter(), counter());
        let first = queued(&slots, &first_waker);
        let second = queued(&slots, &second_waker);
        let releases = thread::spawn({
            let slots = slots.clone();
            move || slots.succeed(NO_CLASS)
        });
        slots.leave(first, End::Cancelled);
        releases.join().unwrap();
        assert_eq!(wakes(&woken), 1);
        assert!(matches!(poll(&slots, second, &second_waker), Polled::Started { .. }));
    });
}

/// Q8: pause against a start that takes its slot without the lock.
#[test]
fn nothing_starts_after_pause_has_returned_by_the_fast_way() {
    model(|| {
        let slots = slots(1);
        let returned = Arc::new(AtomicBool::new(false));
        let starts = thread::spawn({
            let (slots, returned) = (slots.clone(), returned.clone());
            move || {
                if slots.try_start().is_some() {
                    assert!(!returned.load(SeqCst), "an attempt started after pause had returned");
                    slots.started();
                    slots.succeed(NO_CLASS);
                }
            }
        });
        slots.pause(false);
        returned.store(true, SeqCst);
        starts.join().unwrap();
        slots.resume();
        assert_whole(&slots, 1);
    });
}

/// Q8: pause against a call that was granted a slot and is polled just now.
#[test]
fn nothing_starts_after_pause_has_returned_from_a_grant() {
    model(|| {
        let slots = slots(1);
        run(&slots);
        let (woken, waker) = counter();
        let key = queued(&slots, &waker);
        slots.succeed(NO_CLASS);
        let returned = Arc::new(AtomicBool::new(false));
        let starts = thread::spawn({
            let (slots, returned, waker) = (slots.clone(), returned.clone(), waker.clone());
            move || match poll(&slots, key, &waker) {
                Polled::Started { .. } => {
                    assert!(!returned.load(SeqCst), "an attempt started after pause had returned");
                    slots.started();
                    slots.succeed(NO_CLASS);
                    true
                }
                Polled::Waits { .. } => false,
                other => panic!("{other:?}"),
            }
        });
        slots.pause(false);
        returned.store(true, SeqCst);
        let started = starts.join().unwrap();
        let before = wakes(&woken);
        slots.resume();
        if !started {
            assert_eq!(wakes(&woken), before + 1, "resumed, a slot free, and the head not woken");
            assert!(matches!(poll(&slots, key, &waker), Polled::Started { .. }));
            slots.started();
            slots.succeed(NO_CLASS);
        }
        assert_whole(&slots, 1);
    });
}

/// Q8: two pausers and a starter; both return, and afterwards nothing starts.
#[test]
fn two_pausers_both_return() {
    model(|| {
        let slots = slots(2);
        let returned = Arc::new(AtomicBool::new(false));
        let other = thread::spawn({
            let (slots, returned) = (slots.clone(), returned.clone());
            move || {
                slots.pause(false);
                returned.store(true, SeqCst);
            }
        });
        let starts = thread::spawn({
            let (slots, returned) = (slots.clone(), returned.clone());
            move || {
                if slots.try_start().is_some() {
                    assert!(!returned.load(SeqCst));
                    slots.started();
                }
            }
        });
        slots.pause(false);
        returned.store(true, SeqCst);
        other.join().unwrap();
        starts.join().unwrap();
        assert_eq!(slots.try_start(), None);
    });
}

/// Q8: two threads pause from inside the inner service's call: neither waits for the other.
#[test]
fn two_pausers_inside_calls_do_not_wait_for_each_other() {
    model(|| {
        let slots = slots(2);
        let inside = |slots: &Slots| {
            if slots.try_start().is_some() {
                slots.pause(true);
                slots.started();
            }
        };
        let other = thread::spawn({
            let slots = slots.clone();
            move || inside(&slots)
        });
        inside(&slots);
        other.join().unwrap();
        assert!(slots.is_paused());
        assert_eq!(slots.try_start(), None);
    });
}

/// Q13: a panic between taking the slot and the return of the inner service's call, as the guards undo it.
#[test]
fn a_start_that_panics_does_not_hold_up_a_pauser_and_loses_no_slot() {
    model(|| {
        let shared = StdArc::new(Shared::new(Slots::new(1, 16)));
        let panics = thread::spawn({
            let shared = StdArc::clone(&shared);
            move || {
                let started = shared.slots.try_start().is_some();
                if started {
                    // What unwinding drops, in its order: the real guard, and what a dropped call does. (A real panic
                    // would poison the locks of loom's other threads, which are all one thread of the system.)
                    drop(Starting::new(&shared, false));
                    shared.slots.end(NO_CLASS, End::Cancelled, true);
                }
                started
            }
        });
        let slots = &shared.slots;
        slots.pause(false);
        slots.resume();
        let panicked = panics.join().unwrap();
        assert_eq!(slots.snapshot().counts.cancelled, u64::from(panicked));
        assert_whole(slots, 1);
    });
}

/// Q8, Q9: pause against a slot holder whose inner service turns out not to be ready: it gives up its slot, and has
/// it again after the resume.
#[test]
fn a_call_that_is_not_ready_gives_up_its_slot_to_a_pause() {
    model(|| {
        let slots = slots(1);
        let (woken, waker) = counter();
        let readies = thread::spawn({
            let (slots, waker) = (slots.clone(), waker.clone());
            move || {
                let arrival = slots.try_start()?;
                Some(slots.unready(arrival, waker, Ticket::default(), NOW))
            }
        });
        slots.pause(false);
        let figures = slots.snapshot().figures;
        assert_eq!((figures.running, figures.limit), (0, 1), "holds its slot while paused");
        let key = readies.join().unwrap();
        slots.resume();
        if let Some(key) = key {
            // By the pause, to give up its readiness, or by the resume.
            assert_eq!(wakes(&woken), 1, "resumed, a slot free, and the head not woken");
            assert!(matches!(poll(&slots, key, &waker), Polled::Started { .. }));
            slots.started();
            slots.succeed(NO_CLASS);
        }
        assert_whole(&slots, 1);
    });
}

/// Q9: clear against a slot holder whose inner service is not ready and is looked at again just now.
#[test]
fn a_call_that_is_not_ready_is_cleared_or_starts() {
    model(|| {
        let slots = slots(1);
        let (woken, waker) = counter();
        let arrival = slots.try_start().expect("a free slot");
        let key = slots.unready(arrival, waker.clone(), Ticket::default(), NOW);
        let returned = Arc::new(AtomicBool::new(false));
        let polls = thread::spawn({
            let (slots, returned, waker) = (slots.clone(), returned.clone(), waker.clone());
            move || match (returned.load(SeqCst), poll(&slots, key, &waker)) {
                (was_cleared, Polled::Started { .. }) => {
                    assert!(!was_cleared, "started after clear had returned");
                    slots.started();
                    slots.succeed(NO_CLASS);
                    1
                }
                (_, Polled::Settled(_)) => 0,
                (_, other) => panic!("{other:?}"),
            }
        });
        let cleared = slots.clear(None);
        returned.store(true, SeqCst);
        assert_eq!(cleared + polls.join().unwrap(), 1);
        assert_eq!(wakes(&woken), cleared);
        assert_whole(&slots, 1);
    });
}

/// E2: a snapshot against a call that starts and succeeds without the lock: it adds up, and nothing in it falls.
#[test]
fn snapshots_of_a_call_that_takes_no_lock_add_up() {
    model(|| {
        let slots = slots(1);
        let calls = thread::spawn({
            let slots = slots.clone();
            move || {
                if slots.try_start().is_some() {
                    slots.started();
                    slots.succeed(NO_CLASS);
                    return 1;
                }
                0
            }
        });
        let mut before = (0, 0);
        for _ in 0..2 {
            let now = slots.snapshot();
            assert_eq!(now.figures.admitted, now.succeeded + now.figures.running as u64);
            let shown = (now.figures.admitted, now.succeeded);
            assert!(shown.0 >= before.0 && shown.1 >= before.1, "{shown:?} after {before:?}");
            before = shown;
        }
        let called = calls.join().unwrap();
        let now = slots.snapshot();
        assert_eq!((now.figures.admitted, now.succeeded), (called, called));
    });
}

/// Q9: clear against a grant: the call is settled or runs, and is counted once.
#[test]
fn a_call_is_cleared_or_granted_and_never_both() {
    model(|| {
        let slots = slots(1);
        run(&slots);
        let (woken, waker) = counter();
        let key = queued(&slots, &waker);
        let releases = thread::spawn({
            let slots = slots.clone();
            move || slots.succeed(NO_CLASS)
        });
        let cleared = slots.clear(Some(&"test".into()));
        releases.join().unwrap();
        // Granted and not yet polled is cleared, too.
        assert_eq!(cleared, 1);
        assert!(wakes(&woken) >= 1);
        assert!(matches!(poll(&slots, key, &waker), Polled::Settled(Some(_))));
        assert_whole(&slots, 1);
    });
}

/// Q9: clear against a granted call that is polled just now.
#[test]
fn a_granted_call_is_cleared_or_starts() {
    model(|| {
        let slots = slots(1);
        run(&slots);
        let (_, waker) = counter();
        let key = queued(&slots, &waker);
        slots.succeed(NO_CLASS);
        let returned = Arc::new(AtomicBool::new(false));
        let polls = thread::spawn({
            let (slots, returned, waker) = (slots.clone(), returned.clone(), waker.clone());
            move || match (returned.load(SeqCst), poll(&slots, key, &waker)) {
                (was_cleared, Polled::Started { .. }) => {
                    assert!(!was_cleared, "started after clear had returned");
                    slots.started();
                    slots.succeed(NO_CLASS);
                    1
                }
                (_, Polled::Settled(_)) => 0,
                (_, other) => panic!("{other:?}"),
            }
        });
        let cleared = slots.clear(None);
        returned.store(true, SeqCst);
        assert_eq!(cleared + polls.join().unwrap(), 1);
        assert_whole(&slots, 1);
    });
}

/// Q9: clear against a deferral that falls due.
#[test]
fn a_due_deferral_is_cleared_or_queued() {
    model(|| {
        let slots = slots(1);
        run(&slots);
        let (woken, waker) = counter();
        let key = defer(&slots, &waker).unwrap();
        let due = thread::spawn({
            let (slots, waker) = (slots.clone(), waker.clone());
            move || {
                slots.due(key, NOW);
                match poll(&slots, key, &waker) {
                    Polled::Started { .. } => {
                        slots.started();
                        slots.succeed(NO_CLASS);
                        1
                    }
                    Polled::Settled(_) => 0,
                    other => panic!("{other:?}"),
                }
            }
        });
        let cleared = slots.clear(None);
        assert_eq!(cleared + due.join().unwrap(), 1);
        assert!(cleared == 0 || wakes(&woken) >= 1);
        assert_whole(&slots, 1);
    });
}

/// Q9, Q13: clear against cancel: counted once, as one or the other.
#[test]
fn a_call_is_cleared_or_cancelled_and_counted_once() {
    model(|| {
        let slots = slots(1);
        run(&slots);
        let (_, waker) = counter();
        let key = queued(&slots, &waker);
        let drops = thread::spawn({
            let slots = slots.clone();
            move || slots.leave(key, End::Cancelled)
        });
        let cleared = slots.clear(None) as u64;
        drops.join().unwrap();
        let counts = slots.snapshot().counts;
        assert_eq!((counts.cleared, counts.cancelled), (cleared, 1 - cleared));
        slots.succeed(NO_CLASS);
        assert_whole(&slots, 1);
    });
}

/// Q11: the last release against an `idle()` that registers.
#[test]
fn idle_is_seen_by_whoever_registers_during_the_last_release() {
    model(|| {
        let slots = slots(1);
        run(&slots);
        let (woken, waker) = counter();
        let releases = thread::spawn({
            let slots = slots.clone();
            move || slots.succeed(NO_CLASS)
        });
        let key = slots.observe(Until::Idle, waker.clone());
        releases.join().unwrap();
        if let Some(key) = key {
            assert_eq!(wakes(&woken), 1, "idle, and its observer not woken");
            assert_eq!(slots.observed(key, &waker, None), Ok(true));
            slots.stop_observing(key);
        }
        assert_whole(&slots, 1);
    });
}

/// Q11: the last release against a call that arrives: where that takes the free slot, there was an idle instant before.
#[test]
fn idle_is_seen_although_the_next_call_starts_at_once() {
    model(|| {
        let slots = slots(1);
        run(&slots);
        let (woken, waker) = counter();
        let key = slots.observe(Until::Idle, waker).expect("not idle");
        let releases = thread::spawn({
            let slots = slots.clone();
            move || slots.succeed(NO_CLASS)
        });
        let (_, waker) = counter();
        let entered = enter(&slots, &waker);
        releases.join().unwrap();
        if matches!(entered, Entered::Started { .. }) {
            assert_eq!(wakes(&woken), 1, "an idle instant was missed");
        }
        slots.stop_observing(key);
    });
}

/// Q11: a call that is deferred and comes back is not idle in between.
#[test]
fn a_call_that_is_deferred_and_comes_back_is_never_idle() {
    model(|| {
        let slots = slots(1);
        run(&slots);
        let over = Arc::new(AtomicBool::new(false));
        let (_, waker) = counter();
        let retries = thread::spawn({
            let (slots, over) = (slots.clone(), over.clone());
            move || {
                let key = defer(&slots, &waker).unwrap();
                slots.due(key, NOW);
                assert!(matches!(poll(&slots, key, &waker), Polled::Started { .. }));
                slots.started();
                over.store(true, SeqCst);
                slots.succeed(NO_CLASS);
            }
        });
        let (woken, waker) = counter();
        let key = slots.observe(Until::Idle, waker.clone());
        assert!(key.is_some() || over.load(SeqCst), "idle while a call was deferred");
        assert!(wakes(&woken) == 0 || over.load(SeqCst), "idle while a call was deferred");
        retries.join().unwrap();
        if let Some(key) = key {
            assert_eq!(slots.observed(key, &waker, None), Ok(true));
        }
    });
}

/// Q12: growing against an acquire: the new slot goes to whoever queues.
#[test]
fn a_limit_that_grows_serves_whoever_queues_at_the_same_time() {
    model(|| {
        let slots = slots(1);
        run(&slots);
        let (woken, waker) = counter();
        let grows = thread::spawn({
            let slots = slots.clone();
            move || slots.set_limit(2)
        });
        let entered = enter(&slots, &waker);
        grows.join().unwrap();
        if let Entered::Queued { key, .. } = entered {
            assert_eq!(wakes(&woken), 1);
            assert!(matches!(poll(&slots, key, &waker), Polled::Started { .. }));
        }
        let figures = slots.snapshot().figures;
        assert_eq!((figures.running, figures.limit), (2, 2));
    });
}

/// Q12: shrinking against acquires: none starts above the new limit once it has been set.
#[test]
fn a_limit_that_shrinks_lets_nobody_start_above_it() {
    model(|| {
        let slots = slots(2);
        run(&slots);
        let set = Arc::new(AtomicBool::new(false));
        let starts = thread::spawn({
            let (slots, set) = (slots.clone(), set.clone());
            move || {
                let was_set = set.load(SeqCst);
                if slots.try_start().is_some() {
                    assert!(!was_set, "started above the limit");
                    slots.started();
                    slots.succeed(NO_CLASS);
                }
            }
        });
        slots.set_limit(1);
        set.store(true, SeqCst);
        starts.join().unwrap();
        slots.succeed(NO_CLASS);
        assert_whole(&slots, 1);
    });
}

/// Q12: shrinking against a call that was granted a slot and is polled just now: it starts before, or waits.
#[test]
fn a_limit_that_shrinks_takes_back_what_was_granted_above_it() {
    model(|| {
        let slots = slots(2);
        run(&slots);
        run(&slots);
        let (woken, waker) = counter();
        let key = queued(&slots, &waker);
        slots.succeed(NO_CLASS);
        let set = Arc::new(AtomicBool::new(false));
        let starts = thread::spawn({
            let (slots, set, waker) = (slots.clone(), set.clone(), waker.clone());
            move || {
                let was_set = set.load(SeqCst);
                match poll(&slots, key, &waker) {
                    Polled::Started { .. } => {
                        assert!(!was_set, "started above the limit");
                        slots.started();
                        true
                    }
                    Polled::Waits { .. } => false,
                    other => panic!("{other:?}"),
                }
            }
        });
        slots.set_limit(1);
        set.store(true, SeqCst);
        let started = starts.join().unwrap();
        slots.succeed(NO_CLASS);
        if !started {
            assert_eq!(wakes(&woken), 2, "a slot free, and the head not woken");
            assert!(matches!(poll(&slots, key, &waker), Polled::Started { .. }));
            slots.started();
        }
        slots.succeed(NO_CLASS);
        assert_whole(&slots, 1);
    });
}

/// Q8, Q14: resume against enqueue.
#[test]
fn a_resume_wakes_whoever_queues_at_the_same_time() {
    model(|| {
        let slots = slots(1);
        slots.pause(false);
        let (woken, waker) = counter();
        let resumes = thread::spawn({
            let slots = slots.clone();
            move || slots.resume()
        });
        let entered = enter(&slots, &waker);
        resumes.join().unwrap();
        if let Entered::Queued { key, .. } = entered {
            assert_eq!(wakes(&woken), 1);
            assert!(matches!(poll(&slots, key, &waker), Polled::Started { .. }));
        }
        slots.started();
        slots.succeed(NO_CLASS);
        assert_whole(&slots, 1);
    });
}

/// Q10: close against an enqueue: told so, or admitted and served; once it was closed and idle, nobody is admitted.
#[test]
fn a_call_that_arrives_during_a_close_is_told_or_served() {
    model(|| {
        let slots = slots(1);
        run(&slots);
        let (woken, waker) = counter();
        let drained = Arc::new(AtomicBool::new(false));
        let closes = thread::spawn({
            let (slots, drained) = (slots.clone(), drained.clone());
            move || {
                slots.close();
                slots.succeed(NO_CLASS);
                drained.store(slots.snapshot().figures.is_idle(), SeqCst);
            }
        });
        let entered = enter(&slots, &waker);
        assert!(matches!(entered, Entered::Closed) || !drained.load(SeqCst), "admitted after it was drained");
        closes.join().unwrap();
        match entered {
            Entered::Closed => {}
            Entered::Started { .. } => {
                slots.started();
                slots.succeed(NO_CLASS);
            }
            Entered::Queued { key, .. } => {
                assert_eq!(wakes(&woken), 1);
                assert!(matches!(poll(&slots, key, &waker), Polled::Started { .. }));
                slots.started();
                slots.succeed(NO_CLASS);
            }
            other @ Entered::Full { .. } => panic!("{other:?}"),
        }
        assert!(slots.snapshot().figures.is_idle());
        assert_eq!(slots.try_start(), None);
    });
}

/// Q10: close against a deferral: it has its next attempt, or keeps its slot for its real result; once it was closed
/// and nobody waited, nobody comes to wait.
#[test]
fn a_call_that_defers_during_a_close_keeps_its_slot_or_its_next_attempt() {
    model(|| {
        let slots = slots(1);
        run(&slots);
        let (_, waker) = counter();
        let nobody_waits = Arc::new(AtomicBool::new(false));
        let closes = thread::spawn({
            let (slots, nobody_waits) = (slots.clone(), nobody_waits.clone());
            move || {
                slots.close();
                nobody_waits.store(slots.snapshot().figures.satisfy(Until::WaitingBelow(1)), SeqCst);
            }
        });
        let key = defer(&slots, &waker);
        assert!(key.is_none() || !nobody_waits.load(SeqCst), "deferred after the close");
        closes.join().unwrap();
        match key {
            None => slots.end(NO_CLASS, End::Failed, true),
            Some(key) => {
                slots.due(key, NOW);
                assert!(matches!(poll(&slots, key, &waker), Polled::Started { .. }));
                slots.started();
                slots.succeed(NO_CLASS);
            }
        }
        assert!(slots.snapshot().figures.is_idle());
    });
}

/// Q14: a waker that is replaced during a grant: the one that was kept is woken, or the look itself is told.
#[test]
fn a_waker_that_is_replaced_during_a_grant_is_woken() {
    model(|| {
        let slots = slots(1);
        run(&slots);
        let ((_, old_waker), (woken, new_waker)) = (counter(), counter());
        let key = queued(&slots, &old_waker);
        let releases = thread::spawn({
            let slots = slots.clone();
            move || slots.succeed(NO_CLASS)
        });
        let polled = poll(&slots, key, &new_waker);
        releases.join().unwrap();
        match polled {
            Polled::Started { .. } => {}
            Polled::Waits { .. } => {
                assert_eq!(wakes(&woken), 1, "the waker of the last poll was not woken");
                assert!(matches!(poll(&slots, key, &new_waker), Polled::Started { .. }));
            }
            other => panic!("{other:?}"),
        }
    });
}

/// Q3: a place that is given up goes to whoever knocks at the same time.
#[test]
fn a_reserved_place_that_is_dropped_goes_to_whoever_knocks() {
    model(|| {
        let slots = slots(1);
        slots.set_max_waiting(0);
        let (woken, waker) = counter();
        assert_eq!(slots.knock(None, &waker, Some(waker.clone())), Ok(Knocked::Place));
        let gives_up = thread::spawn({
            let slots = slots.clone();
            move || slots.give_up_place()
        });
        let knocked = slots.knock(None, &waker, Some(waker.clone()));
        gives_up.join().unwrap();
        match knocked {
            Ok(Knocked::Place) => {}
            Ok(Knocked::Waits(key)) => {
                assert_eq!(wakes(&woken), 1, "room, and the knocker not woken");
                assert_eq!(slots.knock(Some(key), &waker, None), Ok(Knocked::Place));
            }
            other => panic!("{other:?}"),
        }
        assert_eq!(slots.snapshot().reserved, 1);
        slots.give_up_place();
        assert_whole(&slots, 1);
    });
}

/// Q3: a knocker that goes away during a close or a release leaves no place behind.
#[test]
fn a_knocker_that_is_dropped_leaves_no_place_behind() {
    model(|| {
        let slots = slots(1);
        slots.set_max_waiting(0);
        run(&slots);
        let (_, waker) = counter();
        let Ok(Knocked::Waits(key)) = slots.knock(None, &waker, Some(waker.clone())) else { panic!("room") };
        let releases = thread::spawn({
            let slots = slots.clone();
            move || slots.succeed(NO_CLASS)
        });
        slots.give_up_knock(key);
        releases.join().unwrap();
        assert_eq!(slots.snapshot().reserved, 0);
        assert_whole(&slots, 1);
    });
}

/// Q8: pause against a start on a queue that has no limit.
#[test]
fn an_unlimited_queue_counts_starts_for_pause_as_well() {
    model(|| {
        let slots = slots(UNLIMITED);
        let returned = Arc::new(AtomicBool::new(false));
        let starts = thread::spawn({
            let (slots, returned) = (slots.clone(), returned.clone());
            move || {
                if slots.try_start().is_some() {
                    assert!(!returned.load(SeqCst));
                    slots.started();
                    slots.succeed(NO_CLASS);
                }
            }
        });
        slots.pause(false);
        returned.store(true, SeqCst);
        starts.join().unwrap();
        assert!(slots.snapshot().figures.is_idle());
    });
}

/// Q15: a hold against an enqueue: the head is told until when, and nobody starts before.
#[test]
fn a_call_that_queues_during_a_hold_is_told_until_when() {
    model(|| {
        let slots = slots(2);
        let hour = Duration::from_secs(3_600);
        slots.set_hold(Some(hour));
        run(&slots);
        let (_, waker) = counter();
        let holds = thread::spawn({
            let slots = slots.clone();
            move || {
                slots.hold(hour);
                slots.succeed(NO_CLASS);
                assert_eq!(slots.try_start(), None, "a slot free, and the line held");
            }
        });
        let entered = enter(&slots, &waker);
        holds.join().unwrap();
        match entered {
            Entered::Started { .. } => slots.started(),
            Entered::Queued { look_at, .. } => assert!(look_at < Tick::NEVER, "nobody watches the time"),
            other => panic!("{other:?}"),
        }
    });
}
