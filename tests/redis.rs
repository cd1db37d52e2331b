//! The example `redis`: a peer that no one here wrote, killed and started again while messages flow.

#[allow(dead_code)]
#[path = "../examples/redis.rs"]
mod redis_example;

/// C1: the subscription comes back with each connection; C4: the end of the stream is a loss.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c1_a_subscription_comes_back_each_time_the_server_does() {
    let Some(received) = redis_example::run(3).await.unwrap() else {
        println!("skipped: there is no redis-server on this machine");
        return;
    };
    assert_eq!(received.keys().copied().collect::<Vec<_>>(), [1, 2, 3, 4], "a connection after each kill");
    for (generation, numbers) in &received {
        assert!(numbers.len() > 10, "connection {generation} received {numbers:?}");
        assert!(numbers.windows(2).all(|pair| pair[1] == pair[0] + 1), "{generation}: {numbers:?}");
    }
    let all: Vec<_> = received.into_values().flatten().collect();
    assert!(all.is_sorted_by(|a, b| a < b), "nothing twice, nothing out of order");
}
