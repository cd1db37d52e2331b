//! The replayable body by itself (H2): every way in which an attempt can leave it, and who may read when.

use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue};
use http_body::{Body, Frame, SizeHint};
use http_body_util::{BodyExt, Empty, Full};
use proptest::prelude::*;
use tokio::sync::mpsc;
use tower_sluice_http::BoxError;
use tower_sluice_http::replay::{NotReplayed, ReplayBody};
use tower_sluice_test::{ByHand, SpyWaker, by_hand};

type Item = Result<Frame<Bytes>, &'static str>;

/// A body of what is sent to it; says its length if it is told to.
struct Piped {
    items: mpsc::UnboundedReceiver<Item>,
    length: Option<u64>,
    sent: u64,
}

fn piped() -> (mpsc::UnboundedSender<Item>, Piped) {
    let (sender, items) = mpsc::unbounded_channel();
    (sender, Piped { items, length: None, sent: 0 })
}

impl Body for Piped {
    type Data = Bytes;
    type Error = &'static str;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Item>> {
        let polled = self.items.poll_recv(cx);
        if let Poll::Ready(Some(Ok(frame))) = &polled {
            self.sent += frame.data_ref().map_or(0, |data| data.len() as u64);
        }
        polled
    }

    fn size_hint(&self) -> SizeHint {
        self.length.map_or_else(SizeHint::new, |length| SizeHint::with_exact(length - self.sent))
    }

    fn is_end_stream(&self) -> bool {
        self.length == Some(self.sent)
    }
}

fn data(bytes: impl Into<Bytes>) -> Item {
    Ok(Frame::data(bytes.into()))
}

/// The next frame, by hand.
fn next<B>(body: &mut ReplayBody<B>) -> ByHand<impl Future<Output = Option<Result<Frame<Bytes>, BoxError>>>>
where
    B: Body,
    B::Error: Into<BoxError>,
{
    by_hand(poll_fn(move |cx| Pin::new(&mut *body).poll_frame(cx)))
}

fn ready<B>(body: &mut ReplayBody<B>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>>
where
    B: Body,
    B::Error: Into<BoxError>,
{
    Pin::new(body).poll_frame(&mut Context::from_waker(Waker::noop()))
}

fn bytes(polled: Poll<Option<Result<Frame<Bytes>, BoxError>>>) -> Bytes {
    match polled {
        Poll::Ready(Some(Ok(frame))) => frame.into_data().expect("data"),
        other => panic!("no data: {other:?}"),
    }
}

fn why(polled: Poll<Option<Result<Frame<Bytes>, BoxError>>>) -> NotReplayed {
    match polled {
        Poll::Ready(Some(Err(error))) => *error.downcast().expect("NotReplayed"),
        other => panic!("no error: {other:?}"),
    }
}

/// All that a reader gets, and the length headers that its attempt would have had.
async fn read_all<B>(body: ReplayBody<B>) -> (Vec<u8>, Option<HeaderMap>)
where
    B: Body,
    B::Error: Into<BoxError>,
{
    let collected = body.collect().await.unwrap();
    let trailers = collected.trailers().cloned();
    (collected.to_bytes().to_vec(), trailers)
}

fn trailers() -> HeaderMap {
    HeaderMap::from_iter([(http::header::ETAG, HeaderValue::from_static("crc"))])
}

#[tokio::test]
async fn h2_case_e2_a_body_that_was_not_read_is_sent_whole() {
    let (sender, body) = piped();
    let first = ReplayBody::new(body);
    let second = first.clone();
    drop(first);
    sender.send(data("once")).unwrap();
    drop(sender);
    assert!(second.is_intact());
    assert_eq!(read_all(second).await.0, b"once");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// However the body is cut into frames, wherever the attempts before stopped reading, and whether or not it says
    /// its length: the next attempt has the same bytes, trailers and length.
    #[test]
    fn h2_every_attempt_reads_the_same(
        chunks in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 0..12),
        with_trailers: bool,
        says_length: bool,
        stops in prop::collection::vec(0_usize..14, 1..4),
    ) {
        let whole: Vec<u8> = chunks.concat();
        let (sender, mut body) = piped();
        body.length = says_length.then_some(whole.len() as u64);
        for chunk in &chunks {
            sender.send(data(chunk.clone())).unwrap();
        }
        if with_trailers {
            sender.send(Ok(Frame::trailers(trailers()))).unwrap();
        }
        drop(sender);
        let (hint, empty) = (body.size_hint(), body.is_end_stream());
        let mut attempt = ReplayBody::new(body);
        for stop in stops {
            let copy = attempt.clone();
            prop_assert_eq!((attempt.size_hint().lower(), attempt.size_hint().upper()), (hint.lower(), hint.upper()));
            prop_assert_eq!(attempt.is_end_stream(), empty);
            let mut had = Vec::new();
            for _ in 0..stop {
                match ready(&mut attempt) {
                    Poll::Ready(Some(Ok(frame))) => had.extend(frame.into_data().unwrap_or_default()),
                    Poll::Ready(None) => break,
                    other => panic!("{other:?}"),
                }
                if says_length {
                    let left = (whole.len() - had.len()) as u64;
                    // An attempt after one that came to the end knows that nothing follows; else the body's word counts.
                    prop_assert_eq!(attempt.size_hint().exact(), Some(left));
                }
            }
            prop_assert!(whole.starts_with(&had));
            prop_assert!(copy.is_intact());
            attempt = copy;
        }
        let (read, read_trailers) = tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(read_all(attempt));
        prop_assert_eq!(read, whole);
        // A body that says its end before its trailers has none, as its reader sees it.
        if !empty {
            prop_assert_eq!(read_trailers.is_some(), with_trailers && !(says_length && chunks.iter().any(|chunk| !chunk.is_empty())));
        }
    }
}

#[tokio::test]
async fn h2_trailers_are_replayed() {
    let (sender, body) = piped();
    sender.send(data("sum")).unwrap();
    sender.send(Ok(Frame::trailers(trailers()))).unwrap();
    let first = ReplayBody::new(body);
    let second = first.clone();
    // Trailers are the end, though the sender is still there.
    assert_eq!(read_all(first).await, (b"sum".to_vec(), Some(trailers())));
    assert_eq!(read_all(second).await, (b"sum".to_vec(), Some(trailers())));
}

#[tokio::test]
async fn h2_a_retry_that_is_decided_on_is_not_spoilt_by_the_attempt_before() {
    let (sender, body) = piped();
    let mut first = ReplayBody::with_cap(body, 200);
    let mut second = first.clone();
    sender.send(data(vec![1; 150])).unwrap();
    sender.send(data(vec![2; 51])).unwrap();
    sender.send(data(vec![3; 9])).unwrap();
    drop(sender);
    assert_eq!(bytes(ready(&mut first)).len(), 150);
    assert!(second.is_intact(), "asked: an attempt has failed, another may follow");
    assert_eq!(bytes(ready(&mut first)).len(), 51, "one frame may cross the cap, and is kept");
    assert!(ready(&mut first).is_pending(), "but no more is read that could not be kept");
    let third = second.clone();
    assert_eq!(bytes(ready(&mut second)).len(), 150);
    assert_eq!(bytes(ready(&mut second)).len(), 51);
    assert_eq!(bytes(ready(&mut second)).len(), 9, "the second attempt goes on beyond the cap");
    assert!(!third.is_intact());
    assert_eq!(why(ready(&mut first)), NotReplayed::Superseded);
}

#[tokio::test]
async fn h2_case_e5_a_body_that_grows_past_the_cap_is_not_intact_and_its_copy_says_so() {
    let (sender, body) = piped();
    let mut long = ReplayBody::with_cap(body, 200);
    let mut copy = long.clone();
    for n in 0..4 {
        sender.send(data(vec![n; 64])).unwrap();
    }
    drop(sender);
    for n in 0..4 {
        assert_eq!(bytes(ready(&mut long)), vec![n; 64], "the first attempt completes");
    }
    assert!(matches!(ready(&mut long), Poll::Ready(None)));
    assert!(!copy.is_intact());
    assert_eq!(why(ready(&mut copy)), NotReplayed::TooLong);
    assert!(matches!(ready(&mut copy), Poll::Ready(None)));
}

#[tokio::test]
async fn h2_case_e5_a_known_length_above_the_cap_keeps_nothing_but_an_unread_body_can_be_sent_again() {
    let mut first = ReplayBody::with_cap(Full::new(Bytes::from(vec![7; 201])), 200);
    let mut second = first.clone();
    assert!(second.is_intact());
    // That promise holds the first one back.
    assert!(ready(&mut first).is_pending());
    assert_eq!(second.size_hint().exact(), Some(201));
    let third = second.clone();
    assert_eq!(bytes(ready(&mut second)).len(), 201);
    assert!(!third.is_intact());
}

#[test]
fn h2_many_small_frames_cost_memory_and_count_for_64_bytes_each() {
    let (sender, body) = piped();
    let mut first = ReplayBody::with_cap(body, 640);
    let copy = first.clone();
    for _ in 0..11 {
        sender.send(data("x")).unwrap();
    }
    for _ in 0..11 {
        assert_eq!(bytes(ready(&mut first)), "x");
    }
    assert!(!copy.is_intact());
}

#[tokio::test]
async fn h2_a_later_attempt_takes_the_turn_and_wakes_the_earlier_one() {
    let (sender, body) = piped();
    let mut first = ReplayBody::new(body);
    let mut second = first.clone();
    sender.send(data("a")).unwrap();
    assert_eq!(bytes(ready(&mut first)), "a");
    let mut stuck = next(&mut first);
    assert!(stuck.poll().is_pending());
    assert!(second.is_intact());

    assert_eq!(bytes(ready(&mut second)), "a");
    assert!(stuck.is_woken());
    let mut waiting = next(&mut second);
    assert!(waiting.poll().is_pending());
    assert_eq!(why(stuck.poll()), NotReplayed::Superseded);
    drop(stuck);
    assert!(!waiting.is_woken());
    sender.send(data("b")).unwrap();
    assert!(waiting.is_woken(), "the body wakes the reader that has the turn");
    assert_eq!(bytes(waiting.poll()), "b");
    drop(waiting);
    drop(first);
    drop(sender);
    assert!(matches!(ready(&mut second), Poll::Ready(None)));
}

#[tokio::test]
async fn h2_an_earlier_reader_that_waits_at_the_cap_goes_on_once_there_is_no_copy() {
    let (sender, body) = piped();
    let mut first = ReplayBody::with_cap(body, 64);
    let second = first.clone();
    sender.send(data(vec![0; 64])).unwrap();
    sender.send(data("more")).unwrap();
    assert_eq!(bytes(ready(&mut first)).len(), 64);
    assert!(second.is_intact());
    let mut held = next(&mut first);
    assert!(held.poll().is_pending(), "the retry that was decided on is not spoilt");
    assert!(!held.is_woken());
    // It is not made after all.
    drop(second);
    assert!(held.is_woken());
    assert_eq!(bytes(held.poll()), "more");
}

#[tokio::test]
async fn h2_a_failed_body_ends_its_reader_with_its_own_error_and_cannot_be_replayed() {
    let (sender, body) = piped();
    let mut first = ReplayBody::new(body);
    let mut second = first.clone();
    sender.send(data("a")).unwrap();
    sender.send(Err("disk")).unwrap();
    assert_eq!(bytes(ready(&mut first)), "a");
    match ready(&mut first) {
        Poll::Ready(Some(Err(error))) => assert_eq!(error.to_string(), "disk"),
        other => panic!("{other:?}"),
    }
    assert!(matches!(ready(&mut first), Poll::Ready(None)));
    assert!(!second.is_intact());
    assert_eq!(why(ready(&mut second)), NotReplayed::Failed);
}

#[test]
fn h2_a_body_that_panics_strands_nobody() {
    struct Panics;
    impl Body for Panics {
        type Data = Bytes;
        type Error = BoxError;
        fn poll_frame(
            self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
            panic!("planted")
        }
    }
    let mut first = ReplayBody::new(Panics);
    let mut second = first.clone();
    assert!(catch_unwind(AssertUnwindSafe(|| ready(&mut first))).is_err());
    assert!(!second.is_intact());
    assert_eq!(why(ready(&mut second)), NotReplayed::Failed);
    assert_eq!(why(ready(&mut first)), NotReplayed::Failed);
}

#[test]
fn h2_an_empty_body_is_empty_each_time() {
    let mut first = ReplayBody::new(Empty::<Bytes>::new().map_err(|never| -> BoxError { match never {} }));
    let mut second = first.clone();
    for body in [&mut first, &mut second] {
        assert!(body.is_end_stream() && body.is_intact());
        assert_eq!(body.size_hint().exact(), Some(0));
        assert!(matches!(ready(body), Poll::Ready(None)));
    }
}

#[test]
fn h2_an_empty_body_of_unknown_length_says_the_same_each_time() {
    let (sender, body) = piped();
    drop(sender);
    let mut first = ReplayBody::new(body);
    let second = first.clone();
    assert!(matches!(ready(&mut first), Poll::Ready(None)));
    assert!(first.is_end_stream());
    assert!(!second.is_end_stream(), "else it would have another length header than the first");
    assert_eq!(second.size_hint().exact(), None);
}

#[test]
fn h2_the_body_goes_with_its_last_reader_and_nothing_is_kept_without_need() {
    let (sender, body) = piped();
    let first = ReplayBody::new(body);
    let mut second = first.clone();
    drop(first);
    assert!(!sender.is_closed());
    assert!(ready(&mut second).is_pending());
    drop(second);
    assert!(sender.is_closed());

    struct Counted {
        _count: Arc<()>,
    }
    impl AsRef<[u8]> for Counted {
        fn as_ref(&self) -> &[u8] {
            b"counted"
        }
    }
    let count = Arc::new(());
    let (sender, body) = piped();
    let mut last = ReplayBody::new(body);
    sender.send(data(Bytes::from_owner(Counted { _count: count.clone() }))).unwrap();
    assert_eq!(bytes(ready(&mut last)), "counted");
    assert_eq!(Arc::strong_count(&count), 1, "no copy, nothing kept");
    let mut first = last;
    let (sender, body) = piped();
    let mut other = ReplayBody::new(body);
    std::mem::swap(&mut first, &mut other);
    let mut last = first.clone();
    sender.send(data(Bytes::from_owner(Counted { _count: count.clone() }))).unwrap();
    assert_eq!(bytes(ready(&mut first)), "counted");
    assert_eq!(Arc::strong_count(&count), 2, "kept for the copy");
    assert_eq!(bytes(ready(&mut last)), "counted");
    assert_eq!(Arc::strong_count(&count), 1, "the last attempt has had it");
}

#[test]
fn h2_what_the_last_attempt_has_taken_cannot_be_replayed() {
    let (sender, body) = piped();
    let mut first = ReplayBody::new(body);
    let mut last = first.clone();
    sender.send(data("a")).unwrap();
    assert_eq!(bytes(ready(&mut first)), "a");
    assert_eq!(bytes(ready(&mut last)), "a");
    let mut too_late = last.clone();
    assert!(!too_late.is_intact());
    assert_eq!(why(ready(&mut too_late)), NotReplayed::TooLong);
}

/// Run once, by whoever comes first.
type Once = Arc<Mutex<Option<Box<dyn FnOnce() + Send>>>>;

/// A body at whose first poll something else happens first.
struct Meanwhile {
    first: Once,
    body: Piped,
}

impl Body for Meanwhile {
    type Data = Bytes;
    type Error = &'static str;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Item>> {
        let first = self.first.lock().unwrap().take();
        if let Some(first) = first {
            first();
        }
        Pin::new(&mut self.body).poll_frame(cx)
    }
}

#[test]
fn h2_an_attempt_that_begins_while_the_one_before_polls_the_body_gets_what_comes_of_it() {
    for (sent, ended) in [(true, false), (false, false), (false, true)] {
        let (sender, body) = piped();
        let hook = Arc::new(Mutex::new(None));
        let mut first = ReplayBody::new(Meanwhile { first: Arc::clone(&hook), body });
        let second = Arc::new(Mutex::new(first.clone()));
        let (waker, wakes) = SpyWaker::new().build();
        let (beginning, begins_with) = (Arc::clone(&second), waker.clone());
        *hook.lock().unwrap() = Some(Box::new(move || {
            let polled =
                Pin::new(&mut *beginning.lock().unwrap()).poll_frame(&mut Context::from_waker(&begins_with));
            assert!(polled.is_pending(), "the body is with the other one");
        }));
        let mut sender = Some(sender);
        if sent {
            sender.as_ref().unwrap().send(data("a")).unwrap();
        }
        if ended {
            sender = None;
        }
        assert_eq!(why(ready(&mut first)), NotReplayed::Superseded);
        assert_eq!(wakes.wakes(), 1);
        let mut second = second.lock().unwrap();
        match ready(&mut second) {
            Poll::Ready(Some(Ok(frame))) => {
                assert_eq!((sent, frame.into_data().unwrap()), (true, "a".into()))
            }
            Poll::Ready(None) => assert!(ended),
            other => assert!(other.is_pending() && !sent && !ended),
        }
        drop(sender);
    }
}

/// Readers on several threads, of which each begins while the one before still reads.
#[test]
fn h2_attempts_that_overlap_on_threads_lose_nothing_and_end() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        for round in 0..300_u32 {
            let (sender, body) = piped();
            let attempts = 4;
            let mut attempt = ReplayBody::new(body);
            let mut earlier = Vec::new();
            let whole: Vec<u8> = (0..40).map(|n| (n + round) as u8).collect();
            let sending = whole.clone();
            let feed = tokio::spawn(async move {
                for byte in sending {
                    sender.send(data(vec![byte])).ok();
                    tokio::task::yield_now().await;
                }
            });
            for _ in 1..attempts {
                let copy = attempt.clone();
                earlier.push(tokio::spawn(attempt.collect()));
                for _ in 0..round % 7 {
                    tokio::task::yield_now().await;
                }
                assert!(copy.is_intact());
                attempt = copy;
            }
            let read = tokio::time::timeout(std::time::Duration::from_secs(20), attempt.collect()).await;
            assert_eq!(read.expect("no stall").unwrap().to_bytes(), whole);
            for earlier in earlier {
                match earlier.await.unwrap() {
                    Ok(read) => assert_eq!(read.to_bytes(), whole),
                    Err(error) => assert_eq!(error.downcast_ref(), Some(&NotReplayed::Superseded)),
                }
            }
            feed.await.unwrap();
        }
    });
}
