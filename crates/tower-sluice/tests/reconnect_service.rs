//! The link as a tower service: readiness, rejections, signs of loss.
#![cfg(feature = "reconnect")]

use std::convert::Infallible;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};
use tower::limit::ConcurrencyLimit;
use tower::{Layer, Service, ServiceExt, service_fn};
use tower_sluice::BoxError;
use tower_sluice::reconnect::{CauseKind, Link, LinkState, NeverBroken, Reconnect, ReconnectLayer};
use tower_sluice::reject::{Boxed, Rejection};
use tower_sluice_test::{Failure, Probe, Script, by_hand};

type Conn = tower_sluice_test::script::Scripted<&'static str, &'static str, Failure>;

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

const fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

/// A connector: try `n` gets the `n`-th script's service, or is refused where there is none; the last one is for
/// every later try.
#[derive(Clone)]
struct Scripts {
    scripts: Arc<[Option<Script<&'static str>>]>,
    tries: Arc<AtomicUsize>,
}

impl Scripts {
    fn new(scripts: impl IntoIterator<Item = Option<Script<&'static str>>>) -> Self {
        Self { scripts: scripts.into_iter().collect(), tries: Arc::default() }
    }

    fn maker(
        &self,
    ) -> impl Service<(), Response = Conn, Error = &'static str, Future: Send + 'static> + Clone + Send + 'static
    {
        let Self { scripts, tries } = self.clone();
        service_fn(move |()| {
            let n = tries.fetch_add(1, Ordering::Relaxed).min(scripts.len() - 1);
            let made = scripts[n].as_ref().map(Script::service).ok_or("refused");
            async move { made }
        })
    }

    fn tries(&self) -> usize {
        self.tries.load(Ordering::Relaxed)
    }

    fn service(&self) -> Reconnect<Conn> {
        ReconnectLayer::new(()).seed(7).layer(self.maker())
    }

    fn script(&self, n: usize) -> &Script<&'static str> {
        self.scripts[n].as_ref().unwrap()
    }
}

fn answers(answer: &'static str) -> Option<Script<&'static str>> {
    Some(Script::new().answer(answer))
}

async fn settle() {
    for _ in 0..200 {
        tokio::task::yield_now().await;
    }
}

async fn down<S>(link: &Link<S>) -> CauseKind {
    let mut state = link.state();
    let state = state.wait_for(|state| matches!(state, LinkState::Waiting { .. })).await.unwrap();
    state.cause().unwrap().kind()
}

fn rejection(error: &BoxError) -> &Rejection {
    Rejection::find(&**error).unwrap_or_else(|| panic!("{error:?}"))
}

#[tokio::test(start_paused = true)]
async fn c5_readiness_is_pending_while_the_link_is_down_case_f10() {
    let peer = Scripts::new([None, None, answers("served")]);
    let mut service = peer.service();
    {
        let mut ready = by_hand(service.ready());
        assert!(ready.poll().is_pending());
        settle().await;
        // Down and waiting: a balancer sees an endpoint that is not ready.
        assert!(ready.poll().is_pending());
    }
    // case_f6: the link comes back with nobody polling.
    sleep(secs(10)).await;
    assert!(service.link().state().borrow().is_connected());
    assert_eq!(service.ready().await.unwrap().call("x").await.unwrap(), "served");
    assert_eq!(peer.tries(), 3);
}

#[tokio::test(start_paused = true)]
async fn c5_readiness_never_fails_and_the_call_is_turned_away_case_f8() {
    let peer = Scripts::new([None]);
    let mut service = ReconnectLayer::new(()).max_wait(secs(1)).seed(7).layer(peer.maker());
    let start = Instant::now();
    service.ready().await.unwrap();
    assert_eq!(start.elapsed(), secs(1));
    let error = service.call("x").await.unwrap_err();
    let Rejection::Disconnected { retry_after, cause } = rejection(&error) else { panic!("{error}") };
    assert_eq!(*retry_after, service.link().state().borrow().next_try(Instant::now()));
    // case_m8
    assert_eq!(cause.as_deref(), Some("could not connect: refused"));
    // And it is as good as new for the next call.
    assert!(service.ready().await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn c5_turned_away_at_once_where_asked_for_and_served_once_it_is_up() {
    let peer = Scripts::new([None, answers("served")]);
    let mut service = ReconnectLayer::new(()).turn_away().seed(7).layer(peer.maker());
    let start = Instant::now();
    let error = service.ready().await.unwrap().call("x").await.unwrap_err();
    assert!(matches!(rejection(&error), Rejection::Disconnected { .. }));
    assert_eq!(start.elapsed(), Duration::ZERO);
    // Made ready while the link is down, called once it is up: served.
    service.ready().await.unwrap();
    sleep(secs(2)).await;
    assert_eq!(service.call("x").await.unwrap(), "served");
}

#[tokio::test(start_paused = true)]
async fn c5_many_callers_on_tasks_of_their_own_share_one_connect() {
    let peer = Scripts::new([None, Some(Script::new().answer("served").after(ms(10)))]);
    let service = peer.service();
    let mut calls: Vec<_> = (0..100).map(|_| tokio::spawn(service.clone().oneshot("x"))).collect();
    settle().await;
    for dropped in [0, 98] {
        calls.remove(dropped).abort();
    }
    for call in calls {
        assert_eq!(call.await.unwrap().unwrap(), "served");
    }
    assert_eq!(peer.tries(), 2);
}

#[tokio::test(start_paused = true)]
async fn c4_a_failed_readiness_is_a_loss_and_its_caller_waits_for_the_next_connection() {
    let broken = Script::new().answer("first").ready().fail_ready("GOAWAY");
    let peer = Scripts::new([Some(broken), answers("second")]);
    let mut service = peer.service();
    assert_eq!(service.ready().await.unwrap().call("x").await.unwrap(), "first");
    sleep(secs(10)).await;
    assert_eq!(service.ready().await.unwrap().call("x").await.unwrap(), "second");
    let cause = service.link().last_cause().unwrap();
    assert_eq!(cause.to_string(), "the connection is no longer ready: GOAWAY");
    assert_eq!(cause.kind(), CauseKind::NotReady);
}

#[tokio::test(start_paused = true)]
async fn c4_an_error_is_a_loss_where_the_classifier_says_so() {
    let errors = Script::new().fail("bad request").fail("reset");
    let peer = Scripts::new([Some(errors), answers("second")]);
    let mut service = ReconnectLayer::new(())
        .broken_if(|error: &Failure| error.to_string() == "reset")
        .seed(7)
        .layer(peer.maker());
    let error = service.ready().await.unwrap().call("x").await.unwrap_err();
    assert_eq!(error.to_string(), "bad request");
    assert!(service.link().state().borrow().is_connected());
    // C5: the call that was under way gets its own error, and is not sent again.
    let error = service.ready().await.unwrap().call("x").await.unwrap_err();
    assert_eq!(error.to_string(), "reset");
    assert_eq!(down(service.link()).await, CauseKind::Broken);
    assert_eq!(peer.script(0).attempts().len(), 2);
    assert_eq!(service.ready().await.unwrap().call("x").await.unwrap(), "second");
}

#[tokio::test(start_paused = true)]
async fn c4_a_late_error_of_the_first_connection_does_not_end_the_second() {
    let slow = Script::new().fail("reset").after(secs(60));
    let peer = Scripts::new([Some(slow), answers("second")]);
    let service = ReconnectLayer::new(()).broken_if(|_: &Failure| true).seed(7).layer(peer.maker());
    let late = tokio::spawn(service.clone().oneshot("x"));
    settle().await;
    service.link().try_get().unwrap().broken("stalled");
    assert_eq!(service.clone().oneshot("x").await.unwrap(), "second");
    assert_eq!(late.await.unwrap().unwrap_err().to_string(), "reset");
    let now = service.link().try_get().unwrap();
    assert_eq!(now.generation(), 2);
}

#[tokio::test(start_paused = true)]
async fn c5_a_call_made_ready_on_a_lost_connection_waits_for_the_next() {
    let peer = Scripts::new([answers("first"), answers("second")]);
    let mut service = peer.service();
    service.ready().await.unwrap();
    service.link().try_get().unwrap().broken("stalled");
    assert_eq!(service.call("x").await.unwrap(), "second");
    assert_eq!(peer.script(0).attempts().len(), 0);
}

#[tokio::test(start_paused = true)]
async fn c5_a_caller_at_a_connection_that_is_never_ready_moves_on_when_it_is_lost() {
    let stuck = Script::new().answer("first").ready_after(Duration::MAX);
    let peer = Scripts::new([Some(stuck), answers("second")]);
    let service = peer.service();
    let mut call = by_hand(service.clone().oneshot("x"));
    assert!(call.poll().is_pending());
    settle().await;
    assert!(call.poll().is_pending());
    service.link().try_get().unwrap().broken("no pong");
    assert!(call.is_woken());
    let served = timeout(secs(5), std::future::poll_fn(|cx| call.poll_with(cx.waker()))).await.unwrap();
    assert_eq!(served.unwrap(), "second");
}

#[tokio::test(start_paused = true)]
async fn c5_a_call_under_way_runs_on_when_its_link_is_lost() {
    let slow = Script::new().answer("first").after(secs(3));
    let peer = Scripts::new([Some(slow), answers("second")]);
    let service = peer.service();
    let call = tokio::spawn(service.clone().oneshot("x"));
    settle().await;
    service.link().try_get().unwrap().broken("GOAWAY");
    assert_eq!(call.await.unwrap().unwrap(), "first");
}

#[tokio::test(start_paused = true)]
async fn a_connection_is_never_called_unready_case_f1() {
    // `Scripted` loses its readiness on clone and panics in `call` without it; so does a permit of tower's.
    let script = Script::new().answer("served").after(ms(5));
    let limited = ConcurrencyLimit::new(script.service::<&str>(), 2);
    let link = Link::connect(move || {
        let limited = limited.clone();
        async move { Ok::<_, Infallible>(limited) }
    })
    .spawn();
    let service = Reconnect::new(link);
    let calls: Vec<_> = (0..20).map(|_| tokio::spawn(service.clone().oneshot("x"))).collect();
    for call in calls {
        call.await.unwrap().unwrap();
    }
    assert_eq!(script.peak(), 2);
}

#[derive(Debug, PartialEq)]
enum Typed {
    Down(Rejection),
    Other,
}

impl std::fmt::Display for Typed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("typed")
    }
}

impl std::error::Error for Typed {}

impl From<Rejection> for Typed {
    fn from(rejection: Rejection) -> Self {
        Self::Down(rejection)
    }
}

#[tokio::test(start_paused = true)]
async fn rejections_reach_the_caller_as_asked_for() {
    let refused = || service_fn(|()| async { Err::<Inner, _>("refused") });
    type Inner = tower::util::BoxCloneSyncService<(), u16, Typed>;

    let boxed = ReconnectLayer::new(()).turn_away().layer(refused());
    let error = boxed.oneshot(()).await.unwrap_err();
    assert!(matches!(rejection(&error), Rejection::Disconnected { .. }));

    let typed = ReconnectLayer::new(()).turn_away().typed().layer(refused());
    let error: Typed = typed.oneshot(()).await.unwrap_err();
    assert!(matches!(error, Typed::Down(Rejection::Disconnected { .. })));

    let answered = ReconnectLayer::new(()).turn_away().respond_with(|_: &Rejection| 503).layer(refused());
    assert_eq!(answered.oneshot(()).await, Ok::<_, Typed>(503));

    // The service's own error keeps its type.
    let service = service_fn(|()| async { Err::<u16, _>(Typed::Other) });
    let maker = service_fn(move |()| async move { Ok::<_, Infallible>(service) });
    let typed = ReconnectLayer::new(()).typed().layer(maker);
    assert_eq!(typed.oneshot(()).await, Err(Typed::Other));
}

#[tokio::test(start_paused = true)]
async fn c6_services_and_calls_keep_the_link_and_the_last_one_ends_it() {
    let peer = Scripts::new([Some(Script::new().answer("served").after(secs(1)))]);
    let service = peer.service();
    let state = service.link().state();
    let call = service.oneshot("x");
    assert_eq!(call.await.unwrap(), "served");
    settle().await;
    assert!(
        matches!(&*state.borrow(), LinkState::Disconnected { cause } if cause.kind() == CauseKind::NotDriven)
    );
}

#[test]
fn a_stack_is_built_outside_a_runtime_and_used_inside() {
    let peer = Scripts::new([answers("served")]);
    let service = peer.service();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    assert_eq!(runtime.block_on(service.clone().oneshot("x")).unwrap(), "served");
    assert!(service.link().state().borrow().is_connected());
}

#[tokio::test(start_paused = true)]
async fn each_layered_service_is_a_link_and_its_clones_share_it() {
    let peer = Scripts::new([answers("served")]);
    let layer = ReconnectLayer::new(()).seed(7);
    let (a, b) = (layer.layer(peer.maker()), layer.layer(peer.maker()));
    a.clone().oneshot("x").await.unwrap();
    a.clone().oneshot("x").await.unwrap();
    assert_eq!(peer.tries(), 1);
    b.oneshot("x").await.unwrap();
    assert_eq!(peer.tries(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_maker_that_is_not_ready_is_waited_for_and_one_that_fails_is_a_failed_try() {
    #[derive(Clone)]
    struct Maker(Arc<Mutex<Vec<bool>>>);
    impl Service<()> for Maker {
        type Response = Conn;
        type Error = &'static str;
        type Future = std::future::Ready<Result<Conn, &'static str>>;
        fn poll_ready(&mut self, cx: &mut std::task::Context<'_>) -> Poll<Result<(), &'static str>> {
            match self.0.lock().unwrap().pop() {
                Some(true) => Poll::Ready(Err("no sockets")),
                Some(false) => {
                    cx.waker().wake_by_ref();
                    Poll::Pending
                }
                None => Poll::Ready(Ok(())),
            }
        }
        fn call(&mut self, (): ()) -> Self::Future {
            std::future::ready(Ok(Script::new().answer("served").service()))
        }
    }
    let service = ReconnectLayer::new(()).layer(Maker(Arc::new(Mutex::new(vec![false, true]))));
    assert_eq!(service.clone().oneshot("x").await.unwrap(), "served");
    assert_eq!(service.link().last_cause().unwrap().to_string(), "could not connect: no sockets");
}

#[test]
fn services_layers_links_and_leases_are_clone_send_and_sync() {
    fn all<T: Clone + Send + Sync>() {}
    fn both<T: Send + Sync>() {}
    all::<Reconnect<Conn, Boxed, NeverBroken>>();
    all::<ReconnectLayer<String>>();
    all::<Link<Conn>>();
    all::<tower_sluice::reconnect::Lease<Conn>>();
    both::<tower_sluice::reconnect::Get<Conn>>();
    both::<<Reconnect<Conn> as Service<&'static str>>::Future>();
}

#[tokio::test(start_paused = true)]
async fn the_contract_of_towers_services_is_kept() {
    Probe::new()
        .check(|inner| {
            let connector = move || std::future::ready(Ok::<_, Infallible>(inner.clone()));
            Reconnect::new(Link::connect(connector).seed(7).spawn())
        })
        .await;
    Probe::new()
        .check(|inner| {
            let maker = service_fn(move |()| std::future::ready(Ok::<_, Infallible>(inner.clone())));
            ReconnectLayer::new(()).seed(7).layer(maker)
        })
        .await;
}
