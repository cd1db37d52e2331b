//! Shedding: classes, and the three ways in which rejections reach the caller.
#![cfg(feature = "degrade")]

use std::convert::Infallible;
use std::future::{Future, ready};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};

use tower::{Layer, Service, ServiceExt, service_fn};
use tower_sluice::degrade::{Ladder, LevelLayer, ShedLayer};
use tower_sluice::reject::{Admit, Rejection};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Class {
    Pay,
    Feed,
    Export,
}

struct Request(Class);

fn shed(level: &str) -> Rejection {
    Rejection::Shed { level: Some(level.into()) }
}

/// L7: boxed, the default; what is shed never reaches the inner service, and other errors pass.
#[tokio::test]
async fn l7_boxed_rejections_are_found_in_the_error() {
    let signal = Ladder::new(["all", "vital"]).spawn();
    let calls = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&calls);
    let service = ShedLayer::new(signal.at_least("all")).layer(service_fn(move |_: ()| {
        counter.fetch_add(1, Ordering::Relaxed);
        ready(Err::<(), _>(std::io::Error::other("inner")))
    }));
    assert_eq!(service.clone().oneshot(()).await.unwrap_err().to_string(), "inner");
    signal.force(&"vital");
    let error = service.clone().oneshot(()).await.unwrap_err();
    assert_eq!(Rejection::find(&*error), Some(&shed("vital")));
    assert_eq!(calls.load(Ordering::Relaxed), 1);
}

#[derive(Debug, PartialEq)]
enum Failure {
    Inner,
    Turned(Rejection),
}

impl From<Rejection> for Failure {
    fn from(rejection: Rejection) -> Self {
        Self::Turned(rejection)
    }
}

/// L7, case_m5: typed, the inner error keeps its type.
#[tokio::test]
async fn l7_typed_rejections_are_the_services_own_error() {
    let signal = Ladder::new(["all", "vital"]).spawn();
    let service = ShedLayer::new(signal.at_least("all"))
        .typed()
        .layer(service_fn(|_: ()| ready(Err::<(), _>(Failure::Inner))));
    assert_eq!(service.clone().oneshot(()).await, Err(Failure::Inner));
    signal.force(&"vital");
    assert_eq!(service.oneshot(()).await, Err(Failure::Turned(shed("vital"))));
}

/// L7, case_m1: answered, the error stays `Infallible`.
#[tokio::test]
async fn l7_answered_rejections_are_responses() {
    let signal = Ladder::new(["all", "vital"]).spawn();
    let service = ShedLayer::new(signal.at_least("all"))
        .respond_with(|rejection: &Rejection| rejection.to_string())
        .layer(service_fn(|word: &'static str| ready(Ok::<_, Infallible>(word.to_owned()))));
    assert_eq!(service.clone().oneshot("hello").await, Ok("hello".to_owned()));
    signal.force(&"vital");
    assert_eq!(service.oneshot("hello").await, Ok("not served at level vital".to_owned()));
}

/// L7: classes have their own gates and counters; one without a gate is always served.
#[tokio::test]
async fn l7_classes_are_shed_each_at_its_own_level() {
    let signal = Ladder::new(["high", "medium", "low"]).spawn();
    let open = Arc::new(AtomicBool::new(true));
    let switch = Arc::clone(&open);
    let layer = ShedLayer::by_class(|request: &Request| request.0)
        .class(Class::Feed, signal.at_least("medium"))
        .class(Class::Export, move || switch.load(Ordering::Relaxed))
        .respond_with(|rejection: &Rejection| Err(rejection.clone()));
    // Two services of one layer value count together.
    let served = |_: Request| ready(Ok::<Result<(), Rejection>, Infallible>(Ok(())));
    let services = [layer.layer(service_fn(served)), layer.layer(service_fn(served))];
    let ask = async |class| services[class as usize % 2].clone().oneshot(Request(class)).await.unwrap();

    assert_eq!(
        (ask(Class::Pay).await, ask(Class::Feed).await, ask(Class::Export).await),
        (Ok(()), Ok(()), Ok(()))
    );
    signal.force(&"medium");
    assert_eq!(ask(Class::Feed).await, Ok(()));
    signal.force(&"low");
    open.store(false, Ordering::Relaxed);
    assert_eq!(ask(Class::Pay).await, Ok(()));
    assert_eq!(ask(Class::Feed).await, Err(shed("low")));
    assert_eq!(ask(Class::Export).await, Err(Rejection::Shed { level: None }));

    let stats = layer.stats();
    let counts: Vec<_> = stats.iter().map(|class| (&*class.class, class.admitted, class.shed)).collect();
    assert_eq!(counts, [("Feed", 2, 1), ("Export", 1, 1)]);
}

/// A class has one gate.
#[test]
fn a_class_with_two_gates_is_refused() {
    let layer = ShedLayer::by_class(|request: &Request| request.0).class(Class::Feed, || true);
    let error = layer.try_class(Class::Feed, || false).unwrap_err();
    assert_eq!(error.to_string(), "class is Feed, but must be given a gate only once");
}

/// L7: admission is decided on arrival, in `call`, whatever the level was when the service was readied.
#[tokio::test]
async fn l7_the_level_at_arrival_decides() {
    let signal = Ladder::new(["all", "vital"]).spawn();
    let mut service = ShedLayer::new(signal.at_least("all"))
        .typed()
        .layer(service_fn(|_: ()| ready(Ok::<_, Failure>("served"))));
    service.ready().await.unwrap();
    signal.force(&"vital");
    let shed_call = service.call(());
    service.ready().await.unwrap();
    signal.force(&"all");
    let served = service.call(());
    signal.force(&"vital");
    assert_eq!(shed_call.await, Err(Failure::Turned(shed("vital"))));
    assert_eq!(served.await, Ok("served"));
}

/// A service that is never ready, or whose readiness fails.
struct Readiness(Poll<Result<(), Failure>>);

impl Service<()> for Readiness {
    type Response = ();
    type Error = Failure;
    type Future = std::future::Ready<Result<(), Failure>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Failure>> {
        std::mem::replace(&mut self.0, Poll::Pending)
    }

    fn call(&mut self, (): ()) -> Self::Future {
        ready(Ok(()))
    }
}

/// Readiness is the inner service's, its errors included.
#[test]
fn readiness_is_passed_on() {
    let mut cx = Context::from_waker(Waker::noop());
    let mut service = ShedLayer::new(|| false).typed().layer(Readiness(Poll::Ready(Err(Failure::Inner))));
    assert_eq!(service.poll_ready(&mut cx), Poll::Ready(Err(Failure::Inner)));
    assert_eq!(service.poll_ready(&mut cx), Poll::Pending);
}

/// L7: the level reaches the request, whatever its type.
#[tokio::test]
async fn l7_requests_are_told_the_level_at_their_arrival() {
    struct Video {
        quality: Option<u32>,
    }
    let signal = Ladder::new([1080_u32, 720, 360]).spawn();
    let service = LevelLayer::new(&signal, |video: &mut Video, level| video.quality = Some(level))
        .layer(service_fn(|video: Video| ready(Ok::<_, Infallible>(video.quality))));
    assert_eq!(service.clone().oneshot(Video { quality: None }).await, Ok(Some(1080)));
    signal.force(&360);
    assert_eq!(service.oneshot(Video { quality: None }).await, Ok(Some(360)));
}

/// case_m4: `Clone + Send + Sync`, and a gate costs one read.
#[test]
fn case_m4_the_layers_are_clone_send_and_sync() {
    fn all<T: Clone + Send + Sync + 'static>(_: &T) {}
    let (signal, _driver) = Ladder::new(["all", "vital"]).build();
    all(&signal);
    all(&signal.at_least("all"));
    let layer = ShedLayer::new(signal.at_least("all"));
    all(&layer);
    let mut service = layer.typed().layer(service_fn(|_: ()| ready(Ok::<_, Failure>(()))));
    all(&service);
    let mut cx = Context::from_waker(Waker::noop());
    assert!(pin!(service.call(())).poll(&mut cx).is_ready());
    let gate: &(dyn Admit + Send + Sync) = &signal.at_least("all");
    assert_eq!(gate.admit(), Ok(()));
}
