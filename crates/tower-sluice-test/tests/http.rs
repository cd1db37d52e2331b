//! The scripted HTTP service (T2).
#![cfg(feature = "http")]

use std::convert::Infallible;
use std::time::Duration;

use http::{Request, Response, StatusCode};
use http_body_util::BodyExt;
use tower::ServiceExt;
use tower::limit::ConcurrencyLimit;
use tower_sluice_test::script::reply;
use tower_sluice_test::{Script, Step};

fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

#[tokio::test(start_paused = true)]
async fn an_http_answer_has_status_headers_and_body() {
    let script = Script::new().answer(reply(429, &[("retry-after", "1")], "slow down"));
    let response = script.http().oneshot(Request::new(())).await.unwrap();
    assert_eq!(
        (response.status().as_u16(), &response.headers()["retry-after"]),
        (429, &"1".parse().unwrap())
    );
    assert_eq!(response.into_body().collect().await.unwrap().to_bytes(), "slow down");
}

/// T2: the readiness of a real limit below is asked for by each clone.
#[tokio::test(start_paused = true)]
async fn the_peak_under_towers_limit_is_the_limit() {
    let script = Script::new().answer(200).delay(ms(10));
    let service = ConcurrencyLimit::new(script.http(), 3);
    let calls: Vec<_> = (0..9).map(|_| tokio::spawn(service.clone().oneshot(Request::new(())))).collect();
    for call in calls {
        call.await.unwrap().unwrap();
    }
    assert_eq!(script.peak(), 3);
    assert_eq!(script.starts()[8], ms(20));
    assert_eq!((script.reserved(), script.futures(), script.calls()), (0, 0, 9));
}

#[tokio::test(start_paused = true)]
async fn a_status_and_a_response_are_answers() {
    let status = Script::new().answer(StatusCode::NO_CONTENT);
    assert_eq!(status.http().oneshot(Request::new("any body")).await.unwrap().status(), 204);
    let response: Script<_, Infallible> = Script::typed().answer(Response::new("whole"));
    let Ok(response) = response.http().oneshot(Request::new(())).await;
    assert_eq!(response.into_body().collect().await.unwrap().to_bytes(), "whole");
}

#[tokio::test(start_paused = true)]
async fn answers_may_depend_on_the_request() {
    let script = Script::new();
    let service = script.http_by(|request: &Request<()>, n| match request.uri().path() {
        "/missing" => Step::answer(404),
        _ if n == 0 => Step::fail("reset"),
        _ => Step::answer(200),
    });
    let get = |path| Request::get(path).body(()).unwrap();
    assert!(service.clone().oneshot(get("/")).await.is_err());
    assert_eq!(service.clone().oneshot(get("/")).await.unwrap().status(), 200);
    assert_eq!(service.oneshot(get("/missing")).await.unwrap().status(), 404);
}

#[tokio::test(start_paused = true)]
#[should_panic(expected = "status is 99, but must be from 100 to 999")]
async fn a_number_that_is_no_status_panics() {
    let _ = Script::new().answer(99).http().oneshot(Request::new(())).await;
}
