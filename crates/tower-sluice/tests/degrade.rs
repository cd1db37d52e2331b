//! Ladders and their signal: driven by scripted facts on the paused clock.
#![cfg(feature = "degrade")]

use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};
use tower_sluice::degrade::{Ladder, MeasureLayer, Reading, Signal, Window, rule};
use tower_sluice::facts::{AttemptFacts, Facts, QueueFacts, Source};
use tower_sluice::reject::{Admit, Rejection};

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Quality {
    High,
    Medium,
    Low,
    AudioOnly,
}
use Quality::{AudioOnly, High, Low, Medium};

const QUALITIES: [Quality; 4] = [High, Medium, Low, AudioOnly];

/// An upstream at so many attempts a window, of which so many fail: it counts as if they had been made.
#[derive(Clone, Default)]
struct Upstream(Arc<Mutex<(AttemptFacts, u64, u64)>>);

impl Upstream {
    fn set(&self, attempts: u64, failures: u64) {
        let mut state = self.0.lock().unwrap();
        (state.1, state.2) = (attempts, failures);
    }
}

impl Source for Upstream {
    fn sample(&self) -> Facts {
        let (totals, attempts, failures) = &mut *self.0.lock().unwrap();
        totals.transient += *failures;
        totals.succeeded += *attempts - *failures;
        totals.clone().into()
    }
}

fn ladder(upstream: &Upstream) -> Ladder<Quality> {
    Ladder::new(QUALITIES).rule(rule::failure_ratio()).source(upstream.clone())
}

/// The levels and when they began, in seconds from now, for so long.
async fn watch<L: Clone + PartialEq + fmt::Debug>(signal: &mut Signal<L>, time: Duration) -> Vec<(u64, L)> {
    let start = Instant::now();
    let mut levels = Vec::new();
    let _ = timeout(time, async {
        loop {
            let level = signal.changed().await;
            levels.push((start.elapsed().as_secs(), level));
        }
    })
    .await;
    levels
}

/// L3, L4, section 7: a total outage of 60 s is at the bottom within 8 s, and back at the top within 35 s of its end.
#[tokio::test(start_paused = true)]
async fn l3_l4_an_outage_walks_down_and_up() {
    let upstream = Upstream::default();
    upstream.set(50, 0);
    let mut signal = ladder(&upstream).spawn();
    assert_eq!(watch(&mut signal, ms(100_500)).await, []);
    upstream.set(50, 50);
    assert_eq!(watch(&mut signal, secs(60)).await, [(0, Medium), (3, Low), (6, AudioOnly)]);
    upstream.set(50, 0);
    assert_eq!(watch(&mut signal, secs(60)).await, [(9, Low), (19, Medium), (29, High)]);
}

/// L4: back at the top within 90 s of an outage's end after any history.
#[tokio::test(start_paused = true)]
async fn l4_a_flapping_history_delays_recovery_by_a_minute_at_most() {
    let upstream = Upstream::default();
    let mut signal = ladder(&upstream).spawn();
    sleep(ms(500)).await; // between two windows
    for (seconds, failures) in [(8, 50), (12, 0), (5, 50), (22, 0), (5, 50), (42, 0), (30, 50)] {
        upstream.set(50, failures);
        sleep(secs(seconds)).await;
    }
    upstream.set(50, 0);
    assert_eq!(watch(&mut signal, Duration::ZERO).await, [(0, AudioOnly)]); // what was seen until now
    assert_eq!(watch(&mut signal, secs(90)).await, [(39, Low), (59, Medium), (69, High)]);
}

/// L4: silence after an outage is at the top after about two minutes.
#[tokio::test(start_paused = true)]
async fn l4_silence_comes_back_by_trying() {
    let upstream = Upstream::default();
    upstream.set(50, 50);
    let mut signal = ladder(&upstream).spawn();
    // Between two windows, so that seconds below are counted from half a second after the last strain.
    sleep(ms(20_500)).await;
    assert_eq!(signal.changed().await, AudioOnly);
    upstream.set(0, 0);
    assert_eq!(watch(&mut signal, secs(200)).await, [(39, Low), (79, Medium), (119, High)]);
}

/// L2: nine healthy attempts a window are enough to rise, since short windows are read together.
#[tokio::test(start_paused = true)]
async fn l2_little_traffic_still_rises() {
    let upstream = Upstream::default();
    upstream.set(9, 9);
    let mut signal = ladder(&upstream).spawn();
    // The third window has 27 samples; then a reading each third second.
    assert_eq!(watch(&mut signal, secs(15)).await, [(3, Medium), (6, Low), (9, AudioOnly)]);
    upstream.set(9, 0);
    sleep(secs(120)).await;
    assert_eq!(signal.level(), High);
}

/// L2: a dependency with 2 % failures, in small windows, stays at the best rung.
#[tokio::test(start_paused = true)]
async fn l2_a_healthy_service_of_few_calls_is_left_alone() {
    let upstream = Upstream::default();
    let mut signal = ladder(&upstream).spawn();
    for i in 0..600_u64 {
        upstream.set(10, u64::from(i % 5 == 0)); // 1 of 50: a window of 10 % among four of 0 %
        sleep(secs(1)).await;
    }
    assert_eq!(watch(&mut signal, secs(1)).await, []);
    assert_eq!(signal.level(), High);
}

/// case_p8: an upstream that takes ten calls a second answers 429 beyond. Each rung offers less: the level settles
/// instead of swinging.
#[tokio::test(start_paused = true)]
async fn case_p8_back_pressure_settles_instead_of_swinging() {
    let upstream = Upstream::default();
    let signal = ladder(&upstream).spawn();
    let mut changes = Vec::new();
    let mut last = signal.level();
    for second in 0..600 {
        let offered = [24, 18, 12, 6][signal.rung().position()];
        upstream.set(offered, offered.saturating_sub(10));
        sleep(secs(1)).await;
        if signal.level() != last {
            last = signal.level();
            changes.push(second);
        }
    }
    assert!(changes.iter().filter(|&&second| second < 60).count() <= 7, "{changes:?}");
    // Once it knows: one try of the rung above each 40 s, and back.
    let late = changes.iter().filter(|&&second| second >= 540).count();
    assert!(late <= 4, "{changes:?}");
}

/// L5: several ladders read the same facts, each by its own rules, and do not know each other.
#[tokio::test(start_paused = true)]
async fn l5_ladders_on_the_same_facts_are_independent() {
    let upstream = Upstream::default();
    upstream.set(100, 15);
    let window = Window::new().every(secs(2)).source(upstream.clone());
    let (facts, driver) = window.build();
    let strict =
        Ladder::new(["a", "b", "c"]).rule(rule::failure_ratio().strain(0.1)).facts(facts.clone()).spawn();
    let lenient = Ladder::new(QUALITIES).rule(rule::failure_ratio()).facts(facts).spawn();
    let driver = tokio::spawn(driver);
    sleep(ms(4_001)).await;
    assert_eq!((strict.level(), lenient.level()), ("b", High));
    sleep(secs(2)).await;
    assert_eq!((strict.level(), lenient.level()), ("c", High));
    strict.force(&"a");
    lenient.force(&Low);
    assert_eq!((strict.level(), lenient.level()), ("a", Low));
    // The window goes with the last ladder that reads it.
    drop(strict);
    sleep(secs(1)).await;
    assert!(!driver.is_finished());
    drop(lenient);
    driver.await.unwrap();
}

/// L5: facts of a shared window are joined with those of the ladder's own sources.
#[tokio::test(start_paused = true)]
async fn l5_a_ladder_joins_shared_facts_with_its_own_sources() {
    struct Stuck;
    impl Source for Stuck {
        fn sample(&self) -> Facts {
            let mut queue = QueueFacts::default();
            queue.oldest_waiting = Some(Duration::from_secs(9));
            queue.into()
        }
    }
    let upstream = Upstream::default();
    upstream.set(100, 0);
    let facts = Window::new().source(upstream).spawn();
    let healthy =
        Ladder::new(["a", "b"]).rule(rule::failure_ratio()).rule(rule::queue_wait()).facts(facts.clone());
    let strained = Ladder::new(["a", "b"])
        .rule(rule::failure_ratio())
        .rule(rule::queue_wait())
        .facts(facts)
        .source(Stuck);
    let (healthy, strained) = (healthy.spawn(), strained.spawn());
    sleep(ms(1_001)).await;
    assert_eq!((healthy.level(), strained.level()), ("a", "b"));
}

/// L5, case_p9: who forces has the last word until release; the ladder goes on from the rung that was forced, by its
/// rules.
#[tokio::test(start_paused = true)]
async fn l5_force_has_the_last_word_until_release() {
    let upstream = Upstream::default();
    upstream.set(50, 0);
    let mut signal = ladder(&upstream).spawn();
    signal.force(&AudioOnly);
    assert!(signal.is_forced());
    assert_eq!((signal.level(), signal.changed().await), (AudioOnly, AudioOnly));
    assert_eq!(watch(&mut signal, secs(300)).await, []);
    signal.force(&High);
    assert_eq!(signal.changed().await, High);
    upstream.set(50, 50);
    assert_eq!(watch(&mut signal, ms(60_500)).await, []);
    signal.release();
    assert!(!signal.is_forced());
    assert_eq!(signal.level(), High);
    assert_eq!(watch(&mut signal, secs(8)).await, [(0, Medium), (3, Low), (6, AudioOnly)]);
    signal.force(&AudioOnly);
    upstream.set(50, 0);
    sleep(secs(100)).await;
    signal.release();
    // Slack that was read while forced does not count.
    assert_eq!(watch(&mut signal, secs(31)).await, [(10, Low), (20, Medium), (30, High)]);
}

/// L5: a rung that is none is an error, or a panic in the form for literals.
#[tokio::test]
async fn l5_levels_have_to_be_rungs() {
    let signal = Ladder::new(["high", "low"]).spawn();
    let error = signal.try_force(&"medium").unwrap_err();
    assert_eq!(error.to_string(), "level is \"medium\", but must be a rung of this ladder");
    assert_eq!(signal.try_at_least(&"medium").unwrap_err().field(), "level");
    assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| signal.at_least("medium"))).is_err());
    assert_eq!(signal.level(), "high");
    assert!(!signal.is_forced());
}

/// L6: a level prints its rung's name, and a gate is open at its level and better ones.
#[tokio::test]
async fn l6_at_least_holds_at_the_level_and_above() {
    let signal = Ladder::new(QUALITIES).spawn();
    let gates = QUALITIES.map(|quality| signal.at_least(quality));
    for (i, quality) in QUALITIES.into_iter().enumerate() {
        signal.force(&quality);
        assert_eq!(signal.to_string(), format!("{quality:?}"));
        let rung = signal.rung();
        assert_eq!((rung.position(), *rung.level(), signal.rungs()[i]), (i, quality, quality));
        assert_eq!(gates.each_ref().map(|gate| gate.holds()), [i == 0, i <= 1, i <= 2, true]);
        for gate in &gates {
            let answer = gate.admit();
            assert_eq!(answer.is_ok(), gate.holds());
            if let Err(rejection) = answer {
                assert_eq!(rejection, Rejection::Shed { level: Some(format!("{quality:?}").into()) });
            }
        }
    }
}

/// L6: names print without quotes, whatever type they are of.
#[tokio::test]
async fn l6_rungs_of_strings_print_their_names() {
    let signal = Ladder::new(["full".to_owned(), "text only".to_owned()]).spawn();
    assert_eq!((signal.rung().name(), signal.level().as_str()), ("full", "full"));
    signal.force(&"text only".to_owned());
    assert_eq!(signal.to_string(), "text only");
}

/// L6: what follows a level by tokio's `watch` sees it too.
#[tokio::test]
async fn l6_a_level_can_be_followed_by_a_watch() {
    let signal = Ladder::new(QUALITIES).spawn();
    let mut receiver = signal.watch();
    assert_eq!(*receiver.borrow_and_update(), High);
    signal.force(&Low);
    receiver.changed().await.unwrap();
    assert_eq!(*receiver.borrow_and_update(), Low);
    signal.force(&Low);
    assert!(!receiver.has_changed().unwrap());
}

/// L6: whoever changes the level last is who is seen last, by readers and by those who wait.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn l6_concurrent_changes_end_in_one_level() {
    for _ in 0..200 {
        let (signal, _driver) = Ladder::new([0, 1, 2, 3]).build();
        let receiver = signal.watch();
        std::thread::scope(|scope| {
            for level in 0..4 {
                let signal = signal.clone();
                scope.spawn(move || {
                    for i in 0..50 {
                        signal.force(&((level + i) % 4));
                    }
                });
            }
        });
        assert_eq!(*receiver.borrow(), signal.level());
    }
}

/// L6: the driver ends with the last that listens: signal, gate or receiver.
#[tokio::test(start_paused = true)]
async fn l6_a_ladder_ends_with_its_last_listener() {
    let measure = MeasureLayer::new();
    let (signal, driver) = Ladder::new(QUALITIES).source(measure.facts()).build();
    let driver = tokio::spawn(driver);
    let gate = signal.at_least(Low);
    let receiver = signal.watch();
    drop(signal);
    sleep(secs(5)).await;
    drop(receiver);
    sleep(secs(5)).await;
    assert!(!driver.is_finished());
    let start = Instant::now();
    drop(gate);
    driver.await.unwrap();
    assert_eq!(start.elapsed(), Duration::ZERO);
}

/// L6: without its driver a level stands still, and can be forced.
#[tokio::test(start_paused = true)]
async fn l6_a_signal_outlives_its_driver() {
    let (mut signal, driver) = Ladder::new(QUALITIES).build();
    drop(driver);
    assert!(timeout(secs(3_600), signal.changed()).await.is_err());
    signal.force(&Low);
    assert_eq!(signal.changed().await, Low);
}

/// What can never work says so when it is built.
#[test]
fn ladders_are_checked_when_built() {
    let none: [&str; 0] = [];
    assert_eq!(Ladder::try_new(none).unwrap_err().to_string(), "rungs is empty, but must be one at least");
    let twice = Ladder::try_new(["a", "b", "a"]).unwrap_err();
    assert_eq!(twice.to_string(), "rungs is \"a\" twice, but must be different from each other");
    let ladder = || Ladder::new(["a", "b"]);
    assert_eq!(ladder().try_rule(rule::queue_wait().slack(secs(1))).unwrap_err().field(), "slack");
    assert_eq!(ladder().try_window(Duration::ZERO).unwrap_err().field(), "window");
    let panic = std::panic::catch_unwind(|| Ladder::new(["a"]).rule(rule::latency(1.5))).err().unwrap();
    assert_eq!(panic.downcast_ref::<String>().unwrap(), "quantile is 1.5, but must be above 0 and at most 1");
    // Outside a runtime nothing is spawned, and building works.
    let (signal, driver) = ladder().window(Duration::MAX).hold(Duration::MAX).build();
    assert_eq!(signal.level(), "a");
    drop(driver);
}

/// L8: what a ladder would do can be asked without clock or runtime, its rules included.
#[test]
fn l8_a_ladder_is_asked_without_a_runtime() {
    let mut ladder = Ladder::new(QUALITIES).rule(rule::failure_ratio()).settle(secs(5));
    let facts = |succeeded, transient| {
        let mut attempts = AttemptFacts::default();
        (attempts.succeeded, attempts.transient) = (succeeded, transient);
        Facts::from(attempts)
    };
    let start = Instant::now();
    let reading = ladder.read(&facts(50, 50));
    assert_eq!(reading, Reading::Strain);
    let step = ladder.step(reading, start).unwrap();
    assert_eq!((step.from, step.to), (High, Medium));
    assert_eq!(ladder.step(reading, start + secs(4)), None);
    assert_eq!(ladder.step(reading, start + secs(5)).unwrap().to, Low);
    assert_eq!(ladder.read(&facts(100, 0)), Reading::Slack);
    assert_eq!(*ladder.level(), Low);
}
