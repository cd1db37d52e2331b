use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Buf;
use http_body::{Body, Frame, SizeHint};

/// A response body whose first frame may have been looked at. It is passed on first, and nothing of it is lost.
pub struct PeekedBody<B: Body> {
    first: Option<Frame<B::Data>>,
    /// The body has said that nothing follows.
    ended: bool,
    body: B,
}

impl<B: Body> PeekedBody<B> {
    pub(super) const fn new(first: Option<Frame<B::Data>>, ended: bool, body: B) -> Self {
        Self { first, ended, body }
    }
}

/// The first frame is never pinned.
impl<B: Body + Unpin> Unpin for PeekedBody<B> {}

impl<B: Body + Unpin> Body for PeekedBody<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        if let Some(first) = self.first.take() {
            return Poll::Ready(Some(Ok(first)));
        }
        if self.ended {
            return Poll::Ready(None);
        }
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.first.is_none() && (self.ended || self.body.is_end_stream())
    }

    fn size_hint(&self) -> SizeHint {
        let ahead = self.first.as_ref().and_then(Frame::data_ref).map_or(0, |data| data.remaining() as u64);
        let rest = if self.ended { SizeHint::with_exact(0) } else { self.body.size_hint() };
        let mut hint = SizeHint::new();
        if let Some(upper) = rest.upper().and_then(|upper| upper.checked_add(ahead)) {
            hint.set_upper(upper);
        }
        hint.set_lower(rest.lower().saturating_add(ahead).min(hint.upper().unwrap_or(u64::MAX)));
        hint
    }
}

impl<B: Body> fmt::Debug for PeekedBody<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PeekedBody")
            .field("first", &self.first.is_some())
            .field("ended", &self.ended)
            .finish_non_exhaustive()
    }
}
