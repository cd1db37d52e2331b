//! Slots that last until the response body has ended (Q16).

use std::convert::Infallible;
use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, Response};
use http_body::{Body, Frame, SizeHint};
use http_body_util::{BodyExt, Empty, Full};
use tokio::sync::mpsc;
use tokio::time::Instant;
use tower::{Layer, ServiceExt, service_fn};
use tower_sluice_http::queue::QueueLayer;
use tower_sluice_http::reject::Rejection;
use tower_sluice_http::{HeldBody, HoldSlots, http_client, http_server};
use tower_sluice_test::by_hand;

type Item = Result<Frame<Bytes>, &'static str>;

/// A body of what is sent to it, with a hint that no other body has.
struct Piped(mpsc::UnboundedReceiver<Item>);

impl Body for Piped {
    type Data = Bytes;
    type Error = &'static str;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Item>> {
        self.0.poll_recv(cx)
    }

    fn size_hint(&self) -> SizeHint {
        let mut hint = SizeHint::new();
        hint.set_lower(3);
        hint.set_upper(77);
        hint
    }
}

/// A service whose n-th answer is the n-th of these bodies.
fn streams(
    bodies: Vec<Piped>,
) -> impl tower::Service<Request<()>, Response = Response<Piped>, Error = Infallible, Future: Send> + Clone {
    let bodies = std::sync::Arc::new(std::sync::Mutex::new(bodies.into_iter()));
    service_fn(move |_| {
        let body = bodies.lock().unwrap().next().expect("as many bodies as calls");
        async move { Ok(Response::new(body)) }
    })
}

fn pipes(n: usize) -> (Vec<mpsc::UnboundedSender<Item>>, Vec<Piped>) {
    (0..n)
        .map(|_| {
            let (sender, receiver) = mpsc::unbounded_channel();
            (sender, Piped(receiver))
        })
        .unzip()
}

async fn frame<B: Body + Unpin>(body: &mut B) -> Option<Result<Frame<B::Data>, B::Error>> {
    poll_fn(|cx| Pin::new(&mut *body).poll_frame(cx)).await
}

#[derive(Clone, Copy, Debug)]
enum Ending {
    EndOfStream,
    Trailers,
    Error,
    Drop,
}

#[tokio::test(start_paused = true)]
async fn q16_case_a6_the_slot_ends_when_the_body_ends_fails_or_is_dropped() {
    for ending in [Ending::EndOfStream, Ending::Trailers, Ending::Error, Ending::Drop] {
        let (mut senders, bodies) = pipes(2);
        let queue = QueueLayer::new(1).hold_until_body_end();
        let service = queue.layer(streams(bodies));
        let handle = queue.handle();

        let mut body = service.clone().oneshot(Request::new(())).await.unwrap().into_body();
        let mut second = by_hand(service.clone().oneshot(Request::new(())));
        assert!(second.poll().is_pending());
        let stats = handle.stats();
        assert_eq!((stats.running, stats.queued), (1, 1), "{ending:?}");

        let sender = senders.remove(0);
        sender.send(Ok(Frame::data("part".into()))).unwrap();
        assert!(frame(&mut body).await.unwrap().is_ok());
        assert!(!second.is_woken() && body.holds_slot(), "{ending:?}: a part is not the end");
        match ending {
            Ending::EndOfStream => {
                drop(sender);
                assert!(frame(&mut body).await.is_none());
            }
            Ending::Trailers => {
                sender.send(Ok(Frame::trailers(HeaderMap::new()))).unwrap();
                assert!(frame(&mut body).await.unwrap().unwrap().is_trailers());
            }
            Ending::Error => {
                sender.send(Err("reset")).unwrap();
                assert_eq!(frame(&mut body).await.unwrap().unwrap_err(), "reset");
            }
            Ending::Drop => drop(body),
        }
        assert!(second.is_woken(), "{ending:?}");
        assert!(second.poll().is_ready(), "{ending:?}");
        drop(second);
        assert_eq!(handle.stats().running, 0, "{ending:?}: the second response was dropped");
    }
}

#[tokio::test(start_paused = true)]
async fn q16_case_a7_without_the_setting_the_slot_ends_at_the_head() {
    let (_senders, bodies) = pipes(2);
    let queue = QueueLayer::new(1);
    let service = queue.layer(streams(bodies));
    let first = service.clone().oneshot(Request::new(())).await.unwrap();
    assert_eq!(queue.handle().stats().running, 0);
    let _second = service.oneshot(Request::new(())).await.unwrap();
    drop(first);
}

#[tokio::test(start_paused = true)]
async fn q16_a_response_without_content_ends_its_slot_at_once() {
    let queue = QueueLayer::new(1).hold_until_body_end();
    let service = queue.layer(service_fn(|_: Request<()>| async {
        Ok::<_, Infallible>(Response::new(Empty::<Bytes>::new()))
    }));
    let response = service.oneshot(Request::new(())).await.unwrap();
    assert!(!response.body().holds_slot());
    assert_eq!(queue.handle().stats().running, 0);
}

#[tokio::test(start_paused = true)]
async fn q16_a_body_that_says_it_has_ended_is_not_asked_again() {
    // A server that knows the length reads no further than it.
    let queue = QueueLayer::new(1).hold_until_body_end();
    let service = queue.layer(service_fn(|_: Request<()>| async {
        Ok::<_, Infallible>(Response::new(Full::<Bytes>::from("all")))
    }));
    let mut body = service.oneshot(Request::new(())).await.unwrap().into_body();
    assert!(body.holds_slot());
    assert_eq!(body.size_hint().exact(), Some(3));
    assert!(frame(&mut body).await.unwrap().unwrap().is_data());
    assert!(body.is_end_stream() && !body.holds_slot());
}

#[tokio::test(start_paused = true)]
async fn q16_frames_hints_and_trailers_are_the_bodys_own() {
    let (mut senders, bodies) = pipes(1);
    let service = QueueLayer::new(1).hold_until_body_end().layer(streams(bodies));
    let body: HeldBody<_> = service.oneshot(Request::new(())).await.unwrap().into_body();
    assert_eq!((body.size_hint().lower(), body.size_hint().upper()), (3, Some(77)));
    assert!(!body.is_end_stream());
    let trailers = HeaderMap::from_iter([(http::header::ETAG, HeaderValue::from_static("sum"))]);
    let sender = senders.remove(0);
    sender.send(Ok(Frame::data("a".into()))).unwrap();
    sender.send(Ok(Frame::data("b".into()))).unwrap();
    sender.send(Ok(Frame::trailers(trailers.clone()))).unwrap();
    drop(sender);
    let collected = body.collect().await.unwrap();
    assert_eq!(collected.trailers(), Some(&trailers));
    assert_eq!(collected.to_bytes(), "ab");
}

#[tokio::test(start_paused = true)]
async fn q16_case_q5_drain_waits_for_the_body_and_turns_new_calls_away() {
    let (mut senders, bodies) = pipes(1);
    let queue = http_server(4).hold_until_body_end();
    let service = queue.layer(streams(bodies));
    let handle = queue.handle();
    let mut body = service.clone().oneshot(Request::new(())).await.unwrap().into_body();
    let started = Instant::now();
    let draining = tokio::spawn(async move { handle.drain(Duration::from_secs(60)).await });
    tokio::time::sleep(Duration::from_secs(20)).await;
    assert!(!draining.is_finished());
    let refused = service.oneshot(Request::new(())).await.unwrap();
    assert_eq!(refused.status(), 503);
    assert_eq!(refused.extensions().get(), Some(&Rejection::Closed));
    assert!(!refused.body().holds_slot());

    senders.clear();
    assert!(frame(&mut body).await.is_none());
    let drained = draining.await.unwrap();
    assert_eq!((drained.cleared, drained.still_running), (0, 0));
    assert_eq!(started.elapsed(), Duration::from_secs(20));
}

#[tokio::test(start_paused = true)]
async fn q16_drain_gives_up_on_a_reader_that_does_not_read() {
    let (_senders, bodies) = pipes(1);
    let queue = QueueLayer::new(4).hold_until_body_end();
    let _response = queue.layer(streams(bodies)).oneshot(Request::new(())).await.unwrap();
    let drained = queue.handle().drain(Duration::from_secs(5)).await;
    assert_eq!((drained.cleared, drained.still_running), (0, 1));
}

#[tokio::test(start_paused = true)]
async fn q16_goes_with_every_answer_and_with_a_deadline_of_the_requests_own() {
    fn deadline(_: &Request<()>) -> Option<Instant> {
        Some(Instant::now() + Duration::from_secs(1))
    }
    let queue = http_client(1).hold_until_body_end().deadline_from(deadline);
    let (_senders, bodies) = pipes(1);
    let service = queue.clone().retry(tower_sluice_http::retry::RetryPolicy::none()).layer(streams(bodies));
    let started = Instant::now();
    let first = service.clone().oneshot(Request::new(())).await.unwrap();
    assert!(first.body().holds_slot());
    let error = service.oneshot(Request::new(())).await.unwrap_err();
    assert!(matches!(Rejection::find(&*error), Some(Rejection::Deadline { .. })), "{error}");
    assert_eq!(started.elapsed(), Duration::from_secs(1));
    // `respond_with` changes the answer alone.
    let queue =
        QueueLayer::new(1).max_waiting(0).hold_until_body_end().respond_with(|rejection: &Rejection| {
            Response::builder().header("why", rejection.as_str()).body(pipes(1).1.remove(0)).unwrap()
        });
    let (_senders, bodies) = pipes(1);
    let service = queue.layer(streams(bodies));
    let first = service.clone().oneshot(Request::new(())).await.unwrap();
    assert!(first.body().holds_slot());
    assert_eq!(service.oneshot(Request::new(())).await.unwrap().headers()["why"], "full");
}
