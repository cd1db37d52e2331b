//! Facts as JSON: what a dashboard gets.
#![cfg(feature = "serde")]

use std::time::Duration;

use tower_sluice::facts::{AttemptFacts, Facts, LinkFacts, QueueFacts};

#[test]
fn facts_survive_serialisation() {
    let mut attempts = AttemptFacts::default();
    (attempts.succeeded, attempts.throttled) = (7, 2);
    for ms in [1, 1, 20, 300_000] {
        attempts.latency.record(Duration::from_millis(ms));
    }
    let mut queue = QueueFacts::default();
    (queue.limit, queue.oldest_waiting) = (Some(16), Some(Duration::from_millis(250)));
    let mut facts = Facts::from(attempts);
    facts.join(&queue.into());
    facts.join(&LinkFacts::default().into());
    facts.window = Duration::from_secs(1);

    let json = serde_json::to_string(&facts).unwrap();
    assert_eq!(serde_json::from_str::<Facts>(&json).unwrap(), facts);

    // Latencies are pairs of nanoseconds, the middle of their bucket, and count.
    let value: serde_json::Value = serde_json::from_str(&json).unwrap();
    let pairs = value["attempts"]["latency"].as_array().unwrap();
    assert_eq!(pairs.len(), 3);
    assert_eq!(pairs[0][1], 2);
    let nanos = pairs[0][0].as_f64().unwrap();
    assert!((nanos / 1e6 - 1.0).abs() <= 1.0 / 32.0, "{nanos}");
}
