//! Whole stacks in axum, over TCP: one queue under routers, as handlers and clients see it.

mod connection;
mod work;

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{StatusCode, Version};
use axum::middleware::map_request;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use bytes::Bytes;
use futures_util::StreamExt;
use http_body_util::{BodyExt, Empty};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tower::Service;
use tower_sluice_http::queue::{CallOptions, Drained};
use tower_sluice_http::reject::Rejection;
use tower_sluice_http::{HoldSlots, HttpAnswer, http_server};

use crate::connection::{Answer, Connection, start};
use crate::work::{Work, until};

const SOON: Duration = Duration::from_secs(10);

async fn work(State(work): State<Work>) -> &'static str {
    work.run().await;
    "done"
}

async fn listen() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let server = listener.local_addr().unwrap();
    (listener, server)
}

async fn serve(app: Router) -> SocketAddr {
    let (listener, server) = listen().await;
    tokio::spawn(async move { axum::serve(listener, app).await });
    server
}

async fn done(calls: Vec<JoinHandle<Answer>>) -> Vec<Answer> {
    let mut answers = Vec::new();
    for call in calls {
        answers.push(timeout(SOON, call).await.expect("an answer").unwrap());
    }
    answers
}

fn statuses(answers: &[Answer]) -> Vec<u16> {
    answers.iter().map(|answer| answer.status).collect()
}

/// Q1, Q2, case_g1: one layer value is one limit, over routes, routers and connections.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn q1_q2_one_layer_value_is_one_limit_for_all_routes_and_connections() {
    const PATHS: [&str; 4] = ["/a", "/b/7", "/c", "/merged"];
    let queue = http_server(4);
    let handle = queue.handle();
    let held = Work::held();
    let merged = Router::new().route("/merged", get(work)).layer(queue.clone());
    let app = Router::new()
        .route("/a", get(work))
        .route("/b/{id}", get(work))
        .route("/c", get(work))
        .layer(queue)
        .merge(merged)
        .with_state(held.clone());
    let server = serve(app).await;

    let clients: Vec<_> = (0..20)
        .map(|n| {
            tokio::spawn(async move {
                let mut connection = Connection::open(server).await;
                for request in 0..50 {
                    let answer = connection.get(PATHS[(n + request) % PATHS.len()]).await;
                    assert_eq!((answer.status, answer.text.as_str()), (200, "done"));
                }
            })
        })
        .collect();
    until(|| handle.stats().queued == 16 && held.running() == 4).await;
    for released in 1..=100 {
        held.release(1);
        until(|| held.started() == 4 + released).await;
    }
    held.open();
    for client in clients {
        client.await.unwrap();
    }
    assert_eq!((held.peak(), held.started()), (4, 1_000));
    handle.idle().await;
    let stats = handle.stats();
    assert_eq!((stats.admitted, stats.succeeded, stats.finished()), (1_000, 1_000, 1_000));
}

/// case_m1: no `HandleErrorLayer`, whatever the answers and the slots.
#[test]
fn case_m1_the_stacks_are_infallible_as_they_are() {
    fn routed<L>(layer: L)
    where
        L: tower::Layer<axum::routing::Route> + Clone + Send + Sync + 'static,
        L::Service: Service<Request, Error = Infallible, Response: IntoResponse, Future: Send>
            + Clone
            + Send
            + Sync
            + 'static,
    {
        let _: Router = Router::new().route("/", get(|| async {})).layer(layer);
    }
    routed(http_server(1));
    routed(http_server(1).hold_until_body_end());
    routed(http_server(1).answer(HttpAnswer::new().too_many_requests()));
    routed(http_server(1).respond_with(|_: &Rejection| StatusCode::SERVICE_UNAVAILABLE.into_response()));
    routed(http_server(1).class("feed").max_waiting(4));
}

#[tokio::test]
async fn h5_what_does_not_fit_is_told_503_and_when_to_come_back_on_a_connection_that_stays() {
    let queue = http_server(1).max_waiting(1);
    let handle = queue.handle();
    let held = Work::held();
    let server = serve(Router::new().route("/", get(work)).layer(queue).with_state(held.clone())).await;

    let calls = vec![start(server, "/"), start(server, "/")];
    until(|| handle.stats().queued == 1).await;
    let mut third = Connection::open(server).await;
    let answer = third.get("/").await;
    assert_eq!((answer.status, answer.text.as_str()), (503, "too busy, try again later\n"));
    assert!(answer.header("retry-after").unwrap().parse::<u64>().unwrap() >= 1);
    assert_eq!(answer.header("connection"), None);
    assert_eq!(handle.stats().rejected.full, 1);

    held.open();
    assert_eq!(statuses(&done(calls).await), [200, 200]);
    assert_eq!(third.get("/").await.status, 200, "the same connection");
    assert_eq!(held.started(), 3);
}

#[tokio::test]
async fn h5_respond_with_is_the_users_own_answer() {
    let queue = http_server(1).max_waiting(0).respond_with(|rejection: &Rejection| {
        (StatusCode::TOO_MANY_REQUESTS, format!("ours: {}", rejection.as_str())).into_response()
    });
    let handle = queue.handle();
    let held = Work::held();
    let server = serve(Router::new().route("/", get(work)).layer(queue).with_state(held.clone())).await;
    let first = start(server, "/");
    until(|| handle.stats().running == 1).await;
    let answer = connection::get(server, "/").await;
    assert_eq!((answer.status, answer.text.as_str()), (429, "ours: full"));
    held.open();
    assert_eq!(first.await.unwrap().status, 200);
}

/// Q8, case_h11: as the handlers see it, under load of twenty connections.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn q8_after_pause_has_returned_no_handler_starts_until_resume() {
    let queue = http_server(4).max_waiting(100);
    let handle = queue.handle();
    let held = Work::held();
    let server = serve(Router::new().route("/", get(work)).layer(queue).with_state(held.clone())).await;
    let before: Vec<_> = (0..20).map(|_| start(server, "/")).collect();
    until(|| handle.stats().queued == 16 && held.started() == 4).await;

    handle.pause();
    let during: Vec<_> = (0..10).map(|_| start(server, "/")).collect();
    held.open();
    until(|| handle.stats().queued == 26 && handle.stats().running == 0).await;
    assert_eq!(held.started(), 4, "those that ran have ended, and none has started");

    handle.resume();
    let answers = done(before.into_iter().chain(during).collect()).await;
    assert!(answers.iter().all(|answer| answer.status == 200));
    assert!(held.peak() <= 4, "{}", held.peak());
}

#[tokio::test]
async fn q9_clear_tells_those_in_line_and_leaves_those_that_run() {
    let queue = http_server(2);
    let handle = queue.handle();
    let held = Work::held();
    let server = serve(Router::new().route("/", get(work)).layer(queue).with_state(held.clone())).await;
    let running = vec![start(server, "/"), start(server, "/")];
    until(|| handle.stats().running == 2).await;
    let queued: Vec<_> = (0..5).map(|_| start(server, "/")).collect();
    until(|| handle.stats().queued == 5).await;

    assert_eq!(handle.clear("deploy"), 5);
    for answer in done(queued).await {
        assert_eq!(
            (answer.status, answer.text.as_str()),
            (503, "withdrawn by the operator, try again later\n")
        );
        assert_eq!(answer.header("retry-after"), Some("1"));
    }
    held.open();
    assert_eq!(statuses(&done(running).await), [200, 200]);
    assert_eq!((held.started(), connection::get(server, "/").await.status), (2, 200));
}

/// A server with a graceful shutdown as the guide has it; how it ended, and the trigger.
fn serve_until_drained(
    listener: TcpListener,
    app: Router,
    handle: tower_sluice_http::queue::Handle,
    grace: Duration,
) -> (oneshot::Sender<()>, JoinHandle<()>, oneshot::Receiver<Drained>) {
    let (stop, stopped) = oneshot::channel::<()>();
    let (tell, drained) = oneshot::channel();
    let served = tokio::spawn(async move {
        axum::serve(listener, app)
            .with_graceful_shutdown(async move {
                stopped.await.unwrap();
                tell.send(handle.drain(grace).await).unwrap();
            })
            .await
            .unwrap();
    });
    (stop, served, drained)
}

/// Q10, cases q1 and q2: what was admitted is served, what comes is told to go elsewhere, and the server ends.
#[tokio::test]
async fn q10_a_drain_serves_what_was_admitted_and_refuses_what_comes() {
    let queue = http_server(2);
    let handle = queue.handle();
    let held = Work::held();
    let app = Router::new()
        .route("/", get(work))
        .layer(queue)
        .route("/healthz", get(|| async { "ok" }))
        .with_state(held.clone());
    let (listener, server) = listen().await;
    let mut idle = Connection::open(server).await;
    let (stop, served, drained) = serve_until_drained(listener, app, handle.clone(), SOON);
    assert_eq!(idle.get("/healthz").await.status, 200);
    let admitted: Vec<_> = (0..6).map(|_| start(server, "/")).collect();
    until(|| handle.stats().queued == 4).await;

    stop.send(()).unwrap();
    until(|| handle.stats().closed).await;
    let mut late = Connection::open(server).await;
    let answer = late.get("/").await;
    assert_eq!((answer.status, answer.header("connection")), (503, Some("close")));
    assert_eq!(answer.text, "shutting down, try again later\n");
    late.ended().await;
    assert_eq!(idle.get("/healthz").await.status, 200, "not limited, not closed");

    held.open();
    assert_eq!(statuses(&done(admitted).await), [200; 6]);
    let drained = drained.await.unwrap();
    assert_eq!((drained.cleared, drained.still_running), (0, 0));
    // The idle connection is ended by the server; it holds nothing up.
    timeout(SOON, served).await.expect("the server ends").unwrap();
    idle.ended().await;
}

/// H5: there is no `connection` header in HTTP/2, and hyper leaves ours out.
#[tokio::test]
async fn h5_a_closed_queue_answers_http2_without_a_connection_header() {
    let queue = http_server(1);
    queue.handle().close();
    let server = serve(Router::new().route("/", get(|| async { "hello" })).layer(queue)).await;
    let client: Client<_, Empty<Bytes>> = Client::builder(TokioExecutor::new()).http2_only(true).build_http();
    for _ in 0..2 {
        let answer = client.get(format!("http://{server}/").parse().unwrap()).await.unwrap();
        assert_eq!((answer.status().as_u16(), answer.version()), (503, Version::HTTP_2));
        assert_eq!(answer.headers()["retry-after"], "1");
        assert_eq!(answer.headers().get("connection"), None);
    }
}

/// Q10, case_q4: the end of the grace period is the end, whatever the handlers do.
#[tokio::test]
async fn q10_a_drain_ends_with_its_grace_and_tells_those_in_line() {
    let queue = http_server(1);
    let handle = queue.handle();
    let held = Work::held();
    let app = Router::new().route("/", get(work)).layer(queue).with_state(held.clone());
    let (listener, server) = listen().await;
    let (stop, served, drained) =
        serve_until_drained(listener, app, handle.clone(), Duration::from_millis(50));
    let stuck = start(server, "/");
    until(|| handle.stats().running == 1).await;
    let queued = vec![start(server, "/"), start(server, "/")];
    until(|| handle.stats().queued == 2).await;

    stop.send(()).unwrap();
    let drained = timeout(SOON, drained).await.expect("no later than the grace").unwrap();
    assert_eq!((drained.cleared, drained.still_running), (2, 1));
    for answer in done(queued).await {
        assert_eq!((answer.status, answer.header("connection")), (503, Some("close")));
    }
    held.open();
    assert_eq!(stuck.await.unwrap().status, 200);
    timeout(SOON, served).await.expect("the server ends").unwrap();
    assert_eq!(held.started(), 1);
}

/// Q10, cases f3 and q4: neither connections that are idle nor clients that went away are waited for.
#[tokio::test]
async fn q10_case_q4_a_drain_that_has_nobody_to_wait_for_is_over_at_once() {
    let queue = http_server(2);
    let handle = queue.handle();
    let held = Work::held();
    let app = Router::new()
        .route("/", get(|| async { "hello" }))
        .route("/held", get(work))
        .layer(queue)
        .with_state(held.clone());
    let server = serve(app).await;
    let mut idle = Connection::open(server).await;
    assert_eq!(idle.get("/").await.status, 200);
    let gone: Vec<_> = (0..4).map(|_| start(server, "/held")).collect();
    until(|| handle.stats().queued == 2).await;
    for call in &gone {
        call.abort();
    }
    until(|| handle.stats().cancelled == 4).await;

    let drained = timeout(SOON, handle.drain(Duration::MAX)).await.expect("at once");
    assert_eq!((drained.cleared, drained.still_running), (0, 0));
    assert_eq!(idle.get("/").await.status, 503);
}

/// A body of two pieces, the second of which comes when the test says so.
async fn stream(State(work): State<Work>) -> Response {
    let running = work.enter();
    let rest = async move {
        work.pass().await;
        drop(running);
        Ok::<_, Infallible>(Bytes::from("end"))
    };
    let first = futures_util::stream::iter([Ok(Bytes::from("begin "))]);
    Body::from_stream(first.chain(futures_util::stream::once(rest))).into_response()
}

/// Q16, cases a6 and a7: the default.
#[tokio::test]
async fn q16_a_slot_ends_with_the_head_unless_told_otherwise() {
    let queue = http_server(1).max_waiting(0);
    let handle = queue.handle();
    let held = Work::held();
    let server = serve(Router::new().route("/", get(stream)).layer(queue).with_state(held.clone())).await;
    let (mut first, mut second) = (Connection::open(server).await, Connection::open(server).await);
    let (one, two) = (first.head("/").await, second.head("/").await);
    assert_eq!((one.status().as_u16(), two.status().as_u16()), (200, 200));
    assert_eq!((held.running(), handle.stats().running), (2, 0), "two bodies under way");
    held.open();
    assert_eq!(one.into_body().collect().await.unwrap().to_bytes(), "begin end");
    assert_eq!(two.into_body().collect().await.unwrap().to_bytes(), "begin end");
}

/// Q16, case_a6: the end of the body, and a client that goes away in its middle.
#[tokio::test]
async fn q16_a_slot_that_is_held_ends_with_the_body_or_with_its_client() {
    let queue = http_server(1).hold_until_body_end();
    let handle = queue.handle();
    let held = Work::held();
    let server = serve(Router::new().route("/", get(stream)).layer(queue).with_state(held.clone())).await;
    let mut first = Connection::open(server).await;
    let body = first.head("/").await.into_body();
    let second = tokio::spawn(async move {
        let mut connection = Connection::open(server).await;
        let response = connection.head("/").await;
        (connection, response)
    });
    until(|| handle.stats().queued == 1).await;
    assert_eq!((held.started(), handle.stats().running), (1, 1));

    held.release(1);
    assert_eq!(body.collect().await.unwrap().to_bytes(), "begin end");
    let (second, response) = second.await.unwrap();
    assert_eq!(
        (response.status().as_u16(), handle.stats().running),
        (200, 1),
        "the second body has the slot"
    );

    let third = start(server, "/");
    until(|| handle.stats().queued == 1).await;
    drop(second);
    until(|| held.started() == 3).await;
    held.open();
    assert_eq!(third.await.unwrap().text, "begin end");
    assert_eq!(held.peak(), 1);
    handle.idle().await;
}

/// Q10 and Q16, case_q5: a drain waits for bodies that hold slots, and none is cut.
#[tokio::test]
async fn q16_case_q5_a_drain_waits_for_bodies_that_hold_slots() {
    let queue = http_server(2).hold_until_body_end();
    let handle = queue.handle();
    let held = Work::held();
    let app = Router::new().route("/", get(stream)).layer(queue).with_state(held.clone());
    let (listener, server) = listen().await;
    let (stop, served, mut drained) = serve_until_drained(listener, app, handle.clone(), SOON);
    let mut connection = Connection::open(server).await;
    let body = connection.head("/").await.into_body();
    stop.send(()).unwrap();
    until(|| handle.stats().closed).await;
    assert_eq!(connection::get(server, "/").await.status, 503, "new calls while it drains");
    assert!(drained.try_recv().is_err(), "the body is still to come");
    held.open();
    assert_eq!(body.collect().await.unwrap().to_bytes(), "begin end");
    let drained = drained.await.unwrap();
    assert_eq!((drained.cleared, drained.still_running), (0, 0));
    timeout(SOON, served).await.expect("the server ends").unwrap();
}

/// Q13, cases a8 and a13: running, and in line.
#[tokio::test]
async fn q13_a_client_that_goes_away_gives_its_slot_and_its_place_back() {
    let queue = http_server(1);
    let handle = queue.handle();
    let held = Work::held();
    let server = serve(Router::new().route("/", get(work)).layer(queue).with_state(held.clone())).await;
    let open = || async {
        let mut connection = Connection::open(server).await;
        let (cut, is_cut) = oneshot::channel::<()>();
        tokio::spawn(async move {
            tokio::select! {
                _ = connection.head("/") => panic!("held"),
                _ = is_cut => {}
            }
        });
        cut
    };
    let running = open().await;
    until(|| held.started() == 1).await;
    let queued = open().await;
    until(|| handle.stats().queued == 1).await;
    let last = start(server, "/");
    until(|| handle.stats().queued == 2).await;

    queued.send(()).unwrap();
    until(|| handle.stats().queued == 1).await;
    assert_eq!((held.started(), handle.stats().cancelled), (1, 1));
    running.send(()).unwrap();
    until(|| held.started() == 2).await;
    held.open();
    assert_eq!(last.await.unwrap().status, 200);
    handle.idle().await;
    let stats = handle.stats();
    assert_eq!((stats.cancelled, stats.succeeded, stats.failed, held.running()), (2, 1, 0, 0));
}

/// Q3, case_f3: with hyper 1, as axum has it.
#[tokio::test]
async fn q3_case_f3_connections_that_are_kept_and_idle_hold_nothing() {
    let queue = http_server(2).max_waiting(0);
    let handle = queue.handle();
    let app = Router::new().route("/", get(|| async { "hello" })).layer(queue);
    let server = serve(app).await;
    let (mut one, mut two) = (Connection::open(server).await, Connection::open(server).await);
    assert_eq!((one.get("/").await.status, two.get("/").await.status), (200, 200));
    let stats = handle.stats();
    assert_eq!((stats.running, stats.granted, stats.reserved), (0, 0, 0));
    // Connected, and nothing sent.
    let _silent = (Connection::open(server).await, Connection::open(server).await);
    assert_eq!(connection::get(server, "/").await.status, 200);
    assert_eq!((one.get("/").await.status, two.get("/").await.status), (200, 200));
}

#[tokio::test]
async fn routes_after_the_layer_are_served_while_the_queue_is_full_paused_or_closed() {
    let queue = http_server(1).max_waiting(0);
    let handle = queue.handle();
    let held = Work::held();
    let app = Router::new()
        .route("/", get(work))
        .layer(queue)
        .route("/healthz", get(|| async { "ok" }))
        .with_state(held.clone());
    let server = serve(app).await;
    let first = start(server, "/");
    until(|| handle.stats().running == 1).await;
    let mut probe = Connection::open(server).await;
    assert_eq!((probe.get("/").await.status, probe.get("/healthz").await.status), (503, 200));
    handle.pause();
    assert_eq!(probe.get("/healthz").await.status, 200);
    handle.close();
    assert_eq!(probe.get("/healthz").await.status, 200);
    held.open();
    assert_eq!(first.await.unwrap().status, 200);
    assert_eq!(handle.stats().admitted, 1, "none of the probes is a call");
}

/// H6: options that a layer around the queue gives to calls.
#[tokio::test]
async fn h6_a_request_brings_its_own_timeout_and_class() {
    async fn options(mut request: Request) -> Request {
        let options = match request.uri().path() {
            "/short" => CallOptions::timeout(Duration::from_millis(30)),
            _ => CallOptions::class("batch"),
        };
        request.extensions_mut().insert(options);
        request
    }
    let queue = http_server(4).call_timeout(SOON);
    let (handle, batch) = (queue.handle(), queue.class("batch"));
    let held = Work::held();
    let app = Router::new()
        .route("/short", get(work))
        .route("/batch", get(work))
        .layer(queue)
        .layer(map_request(options))
        .with_state(held.clone());
    let server = serve(app).await;

    let answer = connection::get(server, "/short").await;
    assert_eq!((answer.status, answer.text.as_str()), (504, "not answered in time\n"));
    assert_eq!((handle.stats().rejected.deadline, held.running()), (1, 0), "the handler was dropped");
    assert_eq!(batch.stats().admitted, 0);
    held.open();
    assert_eq!(connection::get(server, "/batch").await.status, 200);
    handle.idle().await;
    assert_eq!((batch.stats().admitted, batch.stats().succeeded), (1, 1));
}

/// Q2 and L7: three routes are three classes of one queue.
#[tokio::test]
async fn l7_classes_share_the_slots_and_have_bounds_and_conditions_of_their_own() {
    let queue = http_server(2).max_waiting(10);
    let handle = queue.handle();
    let serves_ads = Arc::new(AtomicBool::new(true));
    let (pay, feed) = (queue.class("pay"), queue.class("feed").max_waiting(1));
    let condition = serves_ads.clone();
    let ads = queue.class("ads").admit_while(move || condition.load(SeqCst));
    let held = Work::held();
    let app = Router::new()
        .route("/pay", post(work).get(work).layer(pay.clone()))
        .route("/feed", get(work).layer(feed.clone()))
        .route("/ads", get(work).layer(ads.clone()))
        .with_state(held.clone());
    let server = serve(app).await;

    let mut calls = vec![start(server, "/ads"), start(server, "/pay")];
    until(|| handle.stats().running == 2).await;
    calls.push(start(server, "/feed"));
    until(|| feed.stats().waiting == 1).await;
    assert_eq!(connection::get(server, "/feed").await.status, 503, "its own bound");
    calls.push(start(server, "/pay"));
    until(|| pay.stats().waiting == 1).await;
    serves_ads.store(false, SeqCst);
    assert_eq!(connection::get(server, "/ads").await.status, 503, "not served now");
    let stats = (feed.stats(), ads.stats(), handle.stats());
    assert_eq!((stats.0.turned_away, stats.1.shed, stats.2.rejected.full), (1, 1, 1));

    held.open();
    assert_eq!(statuses(&done(calls).await), [200; 4]);
    handle.idle().await;
    assert_eq!((held.peak(), held.started()), (2, 4));
    let succeeded = [pay, feed, ads].map(|class| class.stats().succeeded);
    assert_eq!((succeeded, handle.stats().succeeded), ([2, 1, 1], 4));
}
