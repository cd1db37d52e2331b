//! A ladder's events. In a test of their own: `tracing` decides once a process whether an event is wanted, which tests
//! without a subscriber would decide for this one.
#![cfg(feature = "degrade")]

use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::sleep;
use tower_sluice::degrade::{Ladder, rule};
use tower_sluice::facts::{AttemptFacts, Facts, Source};
use tracing::field::{Field, Visit};
use tracing_subscriber::layer::{Context, SubscriberExt};

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

/// Events as lines of their fields.
#[derive(Clone, Default)]
struct Events(Arc<Mutex<Vec<String>>>);

struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.0 += &format!("{}={value:?} ", field.name());
    }
}

impl<S: tracing::Subscriber> tracing_subscriber::Layer<S> for Events {
    fn on_event(&self, event: &tracing::Event<'_>, _: Context<'_, S>) {
        let mut line = Line(format!("{} ", event.metadata().level()));
        event.record(&mut line);
        self.0.lock().unwrap().push(line.0.trim_end().to_owned());
    }
}

/// L6: one event a change, with the facts that caused it; an operator's act is one too.
#[tokio::test(start_paused = true)]
async fn l6_each_change_is_one_event_with_its_facts() {
    let events = Events::default();
    let _guard = tracing::subscriber::set_default(tracing_subscriber::registry().with(events.clone()));
    let upstream = Upstream::default();
    upstream.set(20, 10);
    let signal = Ladder::new(["high", "medium", "low"])
        .name("video")
        .rule(rule::failure_ratio())
        .source(upstream.clone())
        .spawn();
    sleep(Duration::from_millis(1_500)).await;
    upstream.set(20, 0);
    sleep(Duration::from_secs(10)).await;
    signal.force(&"low");
    signal.force(&"low");
    signal.release();
    signal.release();
    drop(signal);
    assert_eq!(
        *events.0.lock().unwrap(),
        [
            "INFO message=level changed ladder=\"video\" from=\"high\" to=\"medium\" cause=\"strain\" \
             facts=in 1s; attempts 20, failed 10 (transient 10)",
            "INFO message=level changed ladder=\"video\" from=\"medium\" to=\"high\" cause=\"slack\" \
             facts=in 1s; attempts 20, failed 0",
            "INFO message=level changed ladder=\"video\" from=\"high\" to=\"low\" cause=\"forced\"",
            "INFO message=level forced, which it was already ladder=\"video\" level=\"low\"",
            "INFO message=level released ladder=\"video\"",
        ]
    );
}
