//! Levels in a whole axum server: three classes on one queue, a limit that follows, handlers that do less.

use std::net::SocketAddr;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::routing::get;
use http::{Request, StatusCode};
use http_body_util::BodyExt;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tower_sluice_http::degrade::{Ladder, rule};
use tower_sluice_http::facts::Source;
use tower_sluice_http::{Level, http_measure, http_server, level_layer};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Quality {
    High,
    Medium,
    Low,
}
use Quality::{High, Low, Medium};

type Http = Client<HttpConnector, Body>;

async fn serve(app: Router) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(axum::serve(listener, app).into_future());
    address
}

fn client() -> Http {
    Client::builder(TokioExecutor::new()).build_http()
}

async fn fetch(client: &Http, address: SocketAddr, path: &str) -> (StatusCode, String) {
    let request = Request::get(format!("http://{address}{path}")).body(Body::empty()).unwrap();
    let response = client.request(request).await.unwrap();
    let status = response.status();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    (status, String::from_utf8(body.to_vec()).unwrap())
}

/// L7, Q2: three routes share the slots and the line of one queue; each has its own gate, bound and counters.
#[tokio::test]
async fn l7_three_classes_share_one_queue_in_a_router() {
    let queue = http_server(2).max_waiting(16);
    let handle = queue.handle();
    let level = Ladder::new([High, Medium, Low]).spawn();
    let (release, held) = watch::channel(false);
    let wait = || {
        let mut held = held.clone();
        get(async move || {
            held.wait_for(|open| *open).await.unwrap();
            "done"
        })
    };
    let pay = queue.class("pay");
    let feed = queue.class("feed").max_waiting(1).admit_while(level.at_least(Medium));
    let export = queue.class("export").max_waiting(0).admit_while(level.at_least(High));
    let app = Router::new()
        .route("/pay", wait().layer(pay.clone()))
        .route("/feed", wait().layer(feed.clone()))
        .route("/export", wait().layer(export.clone()));
    let address = serve(app).await;
    let client = client();
    let ask = |path: &'static str| {
        let client = client.clone();
        tokio::spawn(async move { fetch(&client, address, path).await.0 })
    };
    let until = async |running: usize, queued: usize| {
        let mut stats = handle.watch();
        while {
            let s = handle.stats();
            (s.running, s.queued) != (running, queued)
        } {
            let _ = stats.changed().await;
        }
    };

    // Two slots, whoever takes them; one call of the feed may wait, none of the exports.
    let mut served = vec![ask("/feed")];
    until(1, 0).await;
    served.push(ask("/export"));
    until(2, 0).await;
    assert_eq!(ask("/export").await.unwrap(), StatusCode::SERVICE_UNAVAILABLE);
    served.push(ask("/feed"));
    until(2, 1).await;
    assert_eq!(ask("/feed").await.unwrap(), StatusCode::SERVICE_UNAVAILABLE);
    served.push(ask("/pay"));
    until(2, 2).await;
    assert_eq!((export.stats().turned_away, feed.stats().turned_away, pay.stats().turned_away), (1, 1, 0));

    // At a lower level new calls of a class are shed, and those that wait are not.
    level.force(&Medium);
    assert_eq!(ask("/export").await.unwrap(), StatusCode::SERVICE_UNAVAILABLE);
    level.force(&Low);
    assert_eq!(ask("/feed").await.unwrap(), StatusCode::SERVICE_UNAVAILABLE);
    served.push(ask("/pay"));
    until(2, 3).await;
    assert_eq!((export.stats().shed, feed.stats().shed, pay.stats().shed), (1, 1, 0));
    release.send(true).unwrap();
    for call in served {
        assert_eq!(call.await.unwrap(), StatusCode::OK);
    }
    assert_eq!((pay.stats().admitted, feed.stats().admitted, export.stats().admitted), (2, 2, 1));
    // What was shed by decision is no sign of strain.
    let facts = handle.sample().queue.unwrap();
    assert_eq!((facts.admitted, facts.refused, facts.expired), (5, 2, 0));
}

/// L7: the limit of a queue follows a ladder's level.
#[tokio::test(start_paused = true)]
async fn l7_a_limit_follows_a_ladder() {
    let level = Ladder::new([High, Medium, Low]).spawn();
    let queue = http_server(64);
    let handle = queue.handle();
    let limit = |level: &Quality| match level {
        High => 64,
        Medium => 32,
        Low => 8,
    };
    let follow = handle.follow(level.watch(), limit).spawn();
    for (quality, limit) in [(Low, 8), (Medium, 32), (High, 64)] {
        level.force(&quality);
        tokio::time::sleep(Duration::from_millis(1)).await;
        assert_eq!(handle.stats().limit, limit);
    }
    drop(follow);
}

/// L1 to L7 in one: an upstream that fails walks the level down, and the handler serves less.
#[tokio::test]
async fn l7_a_failing_route_serves_less() {
    let measure = http_measure();
    let level = Ladder::new([High, Low])
        .rule(rule::failure_ratio())
        .source(measure.facts())
        .window(Duration::from_millis(20))
        .spawn();
    let upstream = get(|| async { StatusCode::BAD_GATEWAY }).layer(measure);
    let video = get(async |Level(quality): Level<Quality>| format!("{quality:?}"));
    let app = Router::new().route("/upstream", upstream).route("/video", video).layer(level_layer(&level));
    let address = serve(app).await;
    let client = client();
    assert_eq!(fetch(&client, address, "/video").await.1, "High");
    let mut change = level.clone();
    let failing = async {
        loop {
            assert_eq!(fetch(&client, address, "/upstream").await.0, StatusCode::BAD_GATEWAY);
        }
    };
    tokio::select! {
        to = change.changed() => assert_eq!(to, Low),
        () = failing => {}
    }
    assert_eq!(fetch(&client, address, "/video").await.1, "Low");
}
