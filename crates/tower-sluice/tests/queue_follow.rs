//! A limit that follows a level, and a queue as a source of facts (L1, L7).

use std::time::Duration;

use tokio::sync::watch;
use tokio::task::yield_now;
use tower::{Layer, ServiceExt};
use tower_sluice::facts::Source;
use tower_sluice::queue::QueueLayer;
use tower_sluice_test::Script;

/// L7.
#[tokio::test(start_paused = true)]
async fn l7_a_limit_follows_a_level_at_once_and_at_every_change() {
    let (level, follows) = watch::channel(4_usize);
    let queue = QueueLayer::new(1);
    let handle = queue.handle();
    let following = handle.follow(follows, |level| *level).spawn();
    yield_now().await;
    assert_eq!(handle.stats().limit, 4);
    for (asked, enforced) in [(9, 9), (0, 1), (usize::MAX, 16_777_214)] {
        level.send(asked).unwrap();
        yield_now().await;
        assert_eq!(handle.stats().limit, enforced);
    }
    drop(level);
    following.await.unwrap();
}

/// L7: it ends with the last handle, layer and service, though the level lives on.
#[tokio::test(start_paused = true)]
async fn l7_what_follows_keeps_no_queue_alive() {
    let (level, follows) = watch::channel(4_usize);
    let queue = QueueLayer::new(1);
    let handle = queue.handle();
    let following = handle.follow(follows, |level| *level).spawn();
    yield_now().await;
    drop(queue);
    yield_now().await;
    assert!(!following.is_finished());
    drop(handle);
    following.await.unwrap();
    drop(level);
}

/// L1: the second source of facts.
#[tokio::test(start_paused = true)]
async fn l1_a_handle_tells_how_its_queue_stands() {
    let script = Script::new().answer(1).after(Duration::from_secs(2));
    let queue = QueueLayer::new(1).max_waiting(1);
    let (service, handle) = (queue.layer(script.service::<()>()), queue.handle());
    assert_eq!(handle.sample().queue.unwrap().limit, Some(1));
    let calls: Vec<_> = (0..3).map(|_| tokio::spawn(service.clone().oneshot(()))).collect();
    tokio::time::sleep(Duration::from_millis(500)).await;
    let facts = handle.sample().queue.unwrap();
    assert_eq!((facts.queued, facts.running, facts.deferred), (1, 1, 0));
    assert_eq!(facts.oldest_waiting, Some(Duration::from_millis(500)));
    assert_eq!((facts.admitted, facts.refused, facts.expired), (2, 1, 0));
    for call in calls {
        let _ = call.await.unwrap();
    }
    assert_eq!(QueueLayer::unlimited().handle().sample().queue.unwrap().limit, None);
}
