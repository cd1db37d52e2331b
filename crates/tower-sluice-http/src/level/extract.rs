use std::any::type_name;
use std::fmt;

use axum_core::extract::{FromRequestParts, OptionalFromRequestParts};
use axum_core::response::{IntoResponse, Response};
use http::StatusCode;
use http::request::Parts;

use super::Level;

/// The request went through no [`level_layer`](super::level_layer) of this type of level: a mistake in the router,
/// answered with 500.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoLevel {
    level: &'static str,
}

impl fmt::Display for NoLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no level of type {} in the request: is `level_layer` around this route?", self.level)
    }
}

impl std::error::Error for NoLevel {}

impl IntoResponse for NoLevel {
    fn into_response(self) -> Response {
        (StatusCode::INTERNAL_SERVER_ERROR, self.to_string()).into_response()
    }
}

impl<S: Sync, L: Clone + Send + Sync + 'static> FromRequestParts<S> for Level<L> {
    type Rejection = NoLevel;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, NoLevel> {
        parts.extensions.get().cloned().ok_or(NoLevel { level: type_name::<L>() })
    }
}

/// `Option<Level<L>>`: `None` where no `level_layer` is around the route.
impl<S: Sync, L: Clone + Send + Sync + 'static> OptionalFromRequestParts<S> for Level<L> {
    type Rejection = std::convert::Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Option<Self>, Self::Rejection> {
        Ok(parts.extensions.get().cloned())
    }
}
