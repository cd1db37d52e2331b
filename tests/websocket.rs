//! The example `websocket`, over real sockets.

#[allow(dead_code)]
#[path = "../examples/websocket.rs"]
mod websocket;

/// C1: what was subscribed to comes back, also what was added on an earlier connection.
#[tokio::test]
async fn c1_subscriptions_come_back_with_each_connection() {
    let received = websocket::run(std::time::Duration::from_millis(300)).await.unwrap();
    assert_eq!(received.keys().copied().collect::<Vec<_>>(), [1, 2, 3]);
    for topics in received.values() {
        assert_eq!(topics.iter().collect::<Vec<_>>(), ["trains", "weather"]);
    }
}
