//! Runs many calls through one service, and gives each item its result.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use futures_core::Stream;
use futures_util::stream::FuturesUnordered;
use pin_project_lite::pin_project;
use tower_service::Service;

/// A stream of `(item, result)` in the order in which calls complete.
///
/// It calls the service as long as that is ready: over a queue with
/// [`wait_when_full`](super::QueueLayer::wait_when_full) that is as long as there is room, so that calls which wait
/// for a retry do not keep others from running (as `buffer_unordered` would), and memory is bounded. Each result
/// comes with its item (which `call_all` loses). Over a service that is always ready, all items are called at once.
///
/// An error of `poll_ready` goes to the item that was to be called next. Nothing is spawned: dropping the stream
/// drops all calls that are under way.
///
/// ```
/// # use std::pin::pin;
/// use futures_util::StreamExt;
/// use tower::{Layer, service_fn};
/// use tower_sluice::queue::{QueueLayer, batch};
///
/// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
/// let queue = QueueLayer::new(4).wait_when_full();
/// let service = queue.layer(service_fn(|id: u32| async move { Ok::<_, std::io::Error>(id * 2) }));
/// let mut results = pin!(batch::run(service, 0..100, |id| *id));
/// while let Some((id, result)) = results.next().await {
///     assert_eq!(result.unwrap(), id * 2);
/// }
/// # });
/// ```
pub fn run<S, I, F, Req>(service: S, items: I, to_request: F) -> Batch<S, I::IntoIter, F, Req>
where
    S: Service<Req>,
    I: IntoIterator,
    F: FnMut(&I::Item) -> Req,
{
    Batch { calls: FuturesUnordered::new(), service, items: items.into_iter(), next: None, to_request }
}

pin_project! {
    /// The stream of [`run`].
    #[must_use = "streams do nothing unless polled"]
    pub struct Batch<S, I, F, Req>
    where
        S: Service<Req>,
        I: Iterator,
    {
        calls: FuturesUnordered<Item<I::Item, S::Future>>,
        service: S,
        items: I,
        // Taken from the items, and not called yet.
        next: Option<I::Item>,
        to_request: F,
    }
}

pin_project! {
    struct Item<T, F> {
        item: Option<T>,
        #[pin]
        call: F,
    }
}

impl<T, F: Future> Future for Item<T, F> {
    type Output = (Option<T>, F::Output);

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        this.call.poll(cx).map(|output| (this.item.take(), output))
    }
}

impl<S, I, F, Req> Stream for Batch<S, I, F, Req>
where
    S: Service<Req>,
    I: Iterator,
    F: FnMut(&I::Item) -> Req,
{
    type Item = (I::Item, Result<S::Response, S::Error>);

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.project();
        // Calls first: what they give back makes room.
        if let Poll::Ready(Some((Some(item), result))) = Pin::new(&mut *this.calls).poll_next(cx) {
            return Poll::Ready(Some((item, result)));
        }
        let mut called = false;
        while let Some(item) = this.next.take().or_else(|| this.items.next()) {
            match this.service.poll_ready(cx) {
                Poll::Ready(Ok(())) => {
                    let call = this.service.call((this.to_request)(&item));
                    this.calls.push(Item { item: Some(item), call });
                    called = true;
                }
                Poll::Ready(Err(error)) => return Poll::Ready(Some((item, Err(error)))),
                Poll::Pending => {
                    *this.next = Some(item);
                    break;
                }
            }
        }
        if called {
            // They arrive when they are first polled.
            if let Poll::Ready(Some((Some(item), result))) = Pin::new(&mut *this.calls).poll_next(cx) {
                return Poll::Ready(Some((item, result)));
            }
        }
        if this.next.is_none() && this.calls.is_empty() { Poll::Ready(None) } else { Poll::Pending }
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let under_way = self.calls.len() + usize::from(self.next.is_some());
        let (least, most) = self.items.size_hint();
        (least.saturating_add(under_way), most.and_then(|most| most.checked_add(under_way)))
    }
}

impl<S, I, F, Req> fmt::Debug for Batch<S, I, F, Req>
where
    S: Service<Req>,
    I: Iterator,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batch").field("under_way", &self.calls.len()).finish_non_exhaustive()
    }
}
