//! The example `broker`, over real sockets: C1, C4 and C7 together.

#[allow(dead_code)]
#[path = "../examples/broker.rs"]
mod broker;

/// C7: nothing lost, nothing reordered, through every kind of loss twice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c7_nothing_is_lost_or_reordered_through_losses_of_every_kind() {
    let summary = broker::run(1_000, 8).await.unwrap();
    assert_eq!((summary.sent, summary.acknowledged, summary.received), (1_000, 1_000, 1_000));
    assert_eq!((summary.lost, summary.reordered, summary.losses), (0, 0, 8));
    // The losses were such that messages had to be sent again.
    assert!(summary.repeats > 0);
}
