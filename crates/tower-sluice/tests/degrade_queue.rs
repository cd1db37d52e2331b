//! A ladder that reads a queue, and a queue that sheds by the ladder.
#![cfg(all(feature = "degrade", feature = "queue"))]

use std::convert::Infallible;
use std::time::Duration;

use tokio::time::sleep;
use tower::{Layer, ServiceExt, service_fn};
use tower_sluice::degrade::{Ladder, MeasureLayer, rule};
use tower_sluice::facts::{QueueFacts, Source};
use tower_sluice::queue::QueueLayer;
use tower_sluice::reject::Rejection;

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn told(source: &impl Source) -> QueueFacts {
    source.sample().queue.expect("a handle tells of a queue")
}

/// L1: a queue's handle is a source: how it stands, and what went through it.
#[tokio::test(start_paused = true)]
async fn l1_a_handle_tells_of_its_queue() {
    let queue = QueueLayer::new(1).max_waiting(1).queue_timeout(ms(500));
    let handle = queue.handle();
    let service = queue.layer(service_fn(|_: ()| async {
        sleep(ms(1_000)).await;
        Ok::<_, Infallible>(())
    }));
    assert_eq!(told(&handle).limit, Some(1));
    let calls: Vec<_> = (0..3).map(|_| tokio::spawn(service.clone().oneshot(()))).collect();
    sleep(ms(200)).await;
    let facts = told(&handle);
    assert_eq!((facts.running, facts.queued, facts.deferred), (1, 1, 0));
    assert_eq!((facts.admitted, facts.refused, facts.expired), (2, 1, 0));
    assert_eq!(facts.oldest_waiting, Some(ms(200)));
    for call in calls {
        let _ = call.await.unwrap();
    }
    let facts = told(&handle);
    assert_eq!((facts.admitted, facts.refused, facts.expired), (2, 1, 1));
    assert_eq!((facts.running, facts.queued, facts.oldest_waiting), (0, 0, None));
    assert_eq!(told(&QueueLayer::unlimited().handle()).limit, None);
}

/// L7: an overloaded queue walks its ladder down, and then sheds the class that needs a better level; what it sheds is
/// no strain. Once the load has gone it comes back.
#[tokio::test(start_paused = true)]
async fn l7_a_queue_sheds_a_class_by_its_own_ladder() {
    let queue = QueueLayer::new(4).max_waiting(1_000);
    let level = Ladder::new(["all", "vital"]).rule(rule::queue_wait()).source(queue.handle()).spawn();
    let inner = || {
        service_fn(|_: ()| async {
            sleep(ms(100)).await;
            Ok::<_, Infallible>(())
        })
    };
    let feed_class = queue.class("feed").admit_while(level.at_least("all"));
    let (pay, feed) = (queue.class("pay").layer(inner()), feed_class.layer(inner()));
    // 40 calls a second are served, and 30 of each class asked for.
    let ask = |seconds: u64, feeds: bool| {
        let (pay, feed) = (pay.clone(), feed.clone());
        async move {
            for _ in 0..30 * seconds {
                tokio::spawn(pay.clone().oneshot(()));
                if feeds {
                    tokio::spawn(feed.clone().oneshot(()));
                }
                sleep(Duration::from_secs(1) / 30).await;
            }
        }
    };
    ask(8, true).await;
    assert_eq!(level.level(), "vital");
    let error = feed.clone().oneshot(()).await.unwrap_err();
    assert_eq!(Rejection::find(&*error), Some(&Rejection::Shed { level: Some("vital".into()) }));
    assert!(pay.clone().oneshot(()).await.is_ok());
    assert!(feed_class.stats().shed > 100);
    // Without the feed there is room: slack for ten seconds.
    ask(8, false).await;
    assert_eq!(level.level(), "all");
}

/// L6: a queue whose class holds the gate of a ladder that reads that queue goes when its owners let go, and the
/// ladder with it.
#[tokio::test(start_paused = true)]
async fn l6_a_queue_and_its_own_ladder_let_each_other_go() {
    let measure = MeasureLayer::new();
    let queue = QueueLayer::new(4);
    let (level, driver) =
        Ladder::new(["all", "vital"]).source(queue.handle()).source(measure.facts()).build();
    let driver = tokio::spawn(driver);
    let feed = queue.class("feed").admit_while(level.at_least("all"));
    drop(level);
    drop(feed);
    sleep(ms(5_000)).await;
    assert!(!driver.is_finished(), "the class still asks its gate");
    drop(queue);
    sleep(ms(1_500)).await;
    assert!(driver.is_finished());
}
