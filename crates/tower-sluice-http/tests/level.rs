//! The level in an axum router.
#![cfg(feature = "axum")]

use axum::Router;
use axum::body::Body;
use axum::extract::Path;
use axum::routing::get;
use http::{HeaderName, Request, StatusCode};
use http_body_util::BodyExt;
use tower::ServiceExt;
use tower_sluice_http::degrade::Ladder;
use tower_sluice_http::facts::Source;
use tower_sluice_http::{Level, http_measure, level_layer};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Quality {
    High,
    Low,
}

async fn video(Level(quality): Level<Quality>) -> &'static str {
    match quality {
        Quality::High => "1080p",
        Quality::Low => "360p",
    }
}

async fn page(level: Option<Level<Quality>>) -> String {
    format!("{level:?}")
}

async fn fetch(app: &Router, path: &str) -> (StatusCode, Option<String>, String) {
    let request = Request::builder().uri(path).body(Body::empty()).unwrap();
    let response = app.clone().oneshot(request).await.unwrap();
    let status = response.status();
    let header = response.headers().get("x-quality").map(|value| value.to_str().unwrap().to_owned());
    let body = response.into_body().collect().await.unwrap().to_bytes();
    (status, header, String::from_utf8(body.to_vec()).unwrap())
}

/// L7: the handler gets the level that holds when the request arrives, and the client its name where asked.
#[tokio::test]
async fn l7_a_handler_extracts_the_level() {
    let signal = Ladder::new([Quality::High, Quality::Low]).spawn();
    let layer = level_layer(&signal);
    let app = Router::new()
        .route("/video", get(video).layer(layer.clone().header(HeaderName::from_static("x-quality"))))
        .route("/page", get(page).layer(layer));
    assert_eq!(fetch(&app, "/video").await, (StatusCode::OK, Some("High".into()), "1080p".into()));
    signal.force(&Quality::Low);
    assert_eq!(fetch(&app, "/video").await, (StatusCode::OK, Some("Low".into()), "360p".into()));
    assert_eq!(fetch(&app, "/page").await, (StatusCode::OK, None, "Some(Level(Low))".into()));
}

/// L7: a route without the layer says so instead of guessing.
#[tokio::test]
async fn l7_a_route_without_a_level_is_a_mistake_that_explains_itself() {
    let app = Router::new().route("/video", get(video)).route("/page", get(page));
    let (status, _, body) = fetch(&app, "/video").await;
    assert_eq!(status, StatusCode::INTERNAL_SERVER_ERROR);
    assert!(
        body.starts_with("no level of type") && body.ends_with("is `level_layer` around this route?"),
        "{body}"
    );
    assert_eq!(fetch(&app, "/page").await, (StatusCode::OK, None, "None".into()));
}

/// A rung's name may hold what no header may.
#[tokio::test]
async fn names_are_made_fit_for_a_header() {
    let signal = Ladder::new(["größe\n"]).spawn();
    let layer = level_layer(&signal).header(HeaderName::from_static("x-quality"));
    let app = Router::new().route("/", get(|| async { "" }).layer(layer));
    assert_eq!(fetch(&app, "/").await.1.as_deref(), Some("gr??e\\n"));
}

/// L1: attempts in a route are measured by what their status means.
#[tokio::test]
async fn l1_a_route_is_measured_by_status() {
    let measure = http_measure();
    let meter = measure.facts();
    let status = |Path(status): Path<u16>| async move { StatusCode::from_u16(status).unwrap() };
    let app = Router::new().route("/{status}", get(status).layer(measure));
    for path in ["/200", "/304", "/404", "/429", "/503", "/500", "/504"] {
        fetch(&app, path).await;
    }
    let facts = meter.sample().attempts.unwrap();
    assert_eq!((facts.succeeded, facts.fatal, facts.throttled, facts.unavailable), (2, 1, 1, 1));
    assert_eq!((facts.failed(), facts.outcomes()), (4, 7));
}
