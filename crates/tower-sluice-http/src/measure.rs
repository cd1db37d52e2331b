//! Measuring HTTP attempts.

use tower_sluice::degrade::MeasureLayer;

use crate::verdicts::HttpVerdicts;

/// Measures each attempt, judged by [`HttpVerdicts`]: 429, 5xx and broken connections are failures, other 4xx are the
/// request's own fault.
///
/// For a server's routes and for clients alike. It stands where every attempt passes: below a queue, or around a
/// route's handler.
///
/// ```
/// use axum::{Router, routing::get};
/// use tower_sluice_http::degrade::{Ladder, rule};
/// use tower_sluice_http::{http_measure, http_server};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let (queue, measure) = (http_server(64), http_measure());
/// let level = Ladder::new(["full", "text"])
///     .rule(rule::queue_wait())
///     .rule(rule::failure_ratio())
///     .source(queue.handle())
///     .source(measure.facts())
///     .spawn();
/// let home = get(|| async { "home" }).layer((queue, measure)); // the first one is the outer one
/// let app: Router = Router::new().route("/", home);
/// # let _ = (app, level);
/// # }
/// ```
pub fn http_measure() -> MeasureLayer<HttpVerdicts> {
    MeasureLayer::new().classify(HttpVerdicts::new())
}
