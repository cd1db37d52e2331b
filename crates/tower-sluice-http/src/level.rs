//! The level in HTTP: shown to handlers as an extension, and to clients as a header if you like.

mod future;
mod layer;
mod service;

#[cfg(feature = "axum")]
mod extract;

#[cfg(feature = "axum")]
pub use self::extract::NoLevel;
pub use self::future::HttpLevelFuture;
pub use self::layer::{HttpLevelLayer, level_layer};
pub use self::service::HttpTellLevel;

/// The level that held when the request arrived: an extension of requests below a [`level_layer`], and, with the
/// feature `axum`, an extractor.
#[cfg_attr(
    feature = "axum",
    doc = r#"
```
use tower_sluice_http::Level;

#[derive(Clone, Debug, PartialEq)]
enum Quality { High, Low }

async fn video(Level(quality): Level<Quality>) -> &'static str {
    match quality {
        Quality::High => "1080p",
        Quality::Low => "360p",
    }
}
# let _: axum::Router = axum::Router::new().route("/video", axum::routing::get(video));
```"#
)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Level<L>(pub L);
