//! The link as its owner sees it: C1 to C6, on a paused clock.
#![cfg(feature = "reconnect")]

use std::collections::VecDeque;
use std::future::{Future, pending};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};
use tower_sluice::backoff::Backoff;
use tower_sluice::facts::Source;
use tower_sluice::reconnect::{CauseKind, Connect, Lease, Link, LinkBuilder, LinkState};
use tower_sluice::reject::Rejection;
use tower_sluice_test::by_hand;

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

const fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

/// What a try meets.
#[derive(Clone, Copy, Debug)]
enum Way {
    Opens,
    OpensAfter(Duration),
    Refuses,
    Hangs,
    Panics,
    PanicsInCall,
}

/// A peer that is connected to by script; after the script it opens.
#[derive(Clone, Default)]
struct Peer {
    inner: Arc<Inner>,
}

#[derive(Default)]
struct Inner {
    script: Mutex<VecDeque<Way>>,
    tries: Mutex<Vec<Instant>>,
    conns: Mutex<Vec<Conn>>,
    live_tries: Arc<()>,
    live_conns: Arc<()>,
}

#[derive(Clone, Debug)]
struct Conn {
    id: usize,
    closed: watch::Sender<bool>,
    stalled: watch::Sender<bool>,
    _live: Option<Arc<()>>,
}

impl Conn {
    async fn closed(&self) -> Result<(), String> {
        let _ = self.closed.subscribe().wait_for(|closed| *closed).await;
        Err("reset by peer".to_owned())
    }

    async fn ping(&self) -> Result<(), String> {
        let stalled = *self.stalled.borrow();
        if stalled { pending().await } else { Ok(()) }
    }
}

impl Peer {
    fn new(script: impl IntoIterator<Item = Way>) -> Self {
        let peer = Self::default();
        peer.inner.script.lock().unwrap().extend(script);
        peer
    }

    /// A link to this peer, with the connection's own closed-future.
    fn link(
        &self,
    ) -> LinkBuilder<
        impl Connect<Connection = Conn, Error = String, Future: Future + Send + 'static> + Send + 'static,
    > {
        let peer = self.clone();
        Link::connect(move || {
            let way = peer.inner.script.lock().unwrap().pop_front().unwrap_or(Way::Opens);
            peer.inner.tries.lock().unwrap().push(Instant::now());
            assert!(!matches!(way, Way::PanicsInCall), "the connector is wrong");
            let peer = peer.clone();
            let live = Arc::clone(&peer.inner.live_tries);
            async move {
                let _live = live;
                match way {
                    Way::OpensAfter(delay) => sleep(delay).await,
                    Way::Refuses => return Err("refused".to_owned()),
                    Way::Hangs => pending().await,
                    Way::Panics => panic!("the try is wrong"),
                    Way::Opens | Way::PanicsInCall => {}
                }
                let mut conns = peer.inner.conns.lock().unwrap();
                let conn = Conn {
                    id: conns.len() + 1,
                    closed: watch::Sender::new(false),
                    stalled: watch::Sender::new(false),
                    _live: Some(Arc::clone(&peer.inner.live_conns)),
                };
                conns.push(Conn { _live: None, ..conn.clone() });
                Ok(conn)
            }
        })
        .closed(Conn::closed)
        .seed(7)
    }

    fn tries(&self) -> Vec<Instant> {
        self.inner.tries.lock().unwrap().clone()
    }

    fn gaps(&self) -> Vec<Duration> {
        self.tries().windows(2).map(|pair| pair[1] - pair[0]).collect()
    }

    fn conn(&self, id: usize) -> Conn {
        self.inner.conns.lock().unwrap()[id - 1].clone()
    }

    fn close(&self, id: usize) {
        self.conn(id).closed.send_replace(true);
    }

    /// Tries that are under way, and connections that are not dropped.
    fn live(&self) -> (usize, usize) {
        let inner = &self.inner;
        (Arc::strong_count(&inner.live_tries) - 1, Arc::strong_count(&inner.live_conns) - 1)
    }
}

/// Lets every task run until it waits for something, without moving the clock.
async fn settle() {
    for _ in 0..200 {
        tokio::task::yield_now().await;
    }
}

async fn until<C>(link: &Link<C>, reached: impl FnMut(&LinkState) -> bool) -> LinkState {
    link.state().wait_for(reached).await.unwrap().clone()
}

fn is_waiting(state: &LinkState) -> bool {
    matches!(state, LinkState::Waiting { .. })
}

fn cause(state: &LinkState) -> CauseKind {
    state.cause().unwrap_or_else(|| panic!("{state:?}")).kind()
}

fn retry_after(result: Result<Lease<Conn>, Rejection>) -> Option<Duration> {
    match result.unwrap_err() {
        Rejection::Disconnected { retry_after, .. } => retry_after,
        other => panic!("{other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn c1_open_is_not_restored() {
    let peer = Peer::new([]);
    let (release, released) = watch::channel(false);
    let link = peer
        .link()
        .restore(move |conn: Conn| {
            let mut released = released.clone();
            async move {
                released.wait_for(|released| *released).await?;
                Ok::<_, watch::error::RecvError>(conn)
            }
        })
        .spawn();
    settle().await;
    assert!(matches!(*link.state().borrow(), LinkState::Restoring { attempt: 0 }));
    let mut get = by_hand(link.get());
    assert!(get.poll().is_pending());
    assert!(link.try_get().is_err());
    release.send(true).unwrap();
    settle().await;
    assert!(get.poll().is_ready());
    assert!(matches!(*link.state().borrow(), LinkState::Connected { generation: 1, .. }));
}

#[tokio::test(start_paused = true)]
async fn c1_restoring_has_its_own_timeout_of_ten_seconds() {
    let peer = Peer::new([]);
    let link = peer.link().restore(|_: Conn| pending::<Result<Conn, String>>()).spawn();
    let start = Instant::now();
    let state = until(&link, is_waiting).await;
    assert_eq!((cause(&state), start.elapsed()), (CauseKind::RestoreTimeout, secs(10)));

    let peer = Peer::new([]);
    let restore = |_: Conn| pending::<Result<Conn, String>>();
    let link = peer.link().restore(restore).restore_timeout(secs(2)).spawn();
    let start = Instant::now();
    until(&link, is_waiting).await;
    assert_eq!(start.elapsed(), secs(2));
}

#[tokio::test(start_paused = true)]
async fn c1_a_connection_that_could_not_be_restored_is_dropped() {
    let peer = Peer::new([]);
    let link = peer
        .link()
        .restore(async |conn: Conn| {
            let _conn = conn;
            pending::<Result<Conn, String>>().await
        })
        .spawn();
    settle().await;
    assert_eq!(peer.live().1, 1);
    until(&link, is_waiting).await;
    assert_eq!(peer.live(), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn a_connector_that_hangs_is_a_failed_try_after_connect_timeout() {
    let peer = Peer::new([Way::Hangs]);
    let link = peer.link().connect_timeout(secs(3)).spawn();
    let start = Instant::now();
    let state = until(&link, is_waiting).await;
    assert_eq!((cause(&state), start.elapsed()), (CauseKind::ConnectTimeout, secs(3)));
    assert_eq!(peer.live().0, 0);
    assert_eq!(link.get().await.unwrap().id, 1);
}

#[tokio::test(start_paused = true)]
async fn c2_a_failed_restore_is_a_failed_try() {
    let peer = Peer::new([]);
    let restores = AtomicUsize::new(0);
    let link = peer
        .link()
        .restore(move |conn: Conn| {
            let n = restores.fetch_add(1, Ordering::Relaxed);
            async move { if n < 3 { Err("no such topic") } else { Ok(conn) } }
        })
        .spawn();
    let lease = link.get().await.unwrap();
    assert_eq!((lease.id, lease.generation()), (4, 1));
    // R4: wait(1) to wait(3) of the link preset.
    for (gap, (low, high)) in peer.gaps().iter().zip([(500, 1_000), (1_000, 2_000), (2_000, 4_000)]) {
        assert!(ms(low) <= *gap && *gap <= ms(high + 1), "{gap:?}");
    }
    assert_eq!(link.last_cause().unwrap().to_string(), "could not be restored: no such topic");
}

#[tokio::test(start_paused = true)]
async fn c2_accepting_and_closing_brings_no_more_tries_than_refusing_case_o2_o13() {
    async fn tries_in_a_minute(peer: &Peer, accepts: bool) -> usize {
        let link = peer.link().spawn();
        let closer = accepts.then(|| {
            let (peer, mut state) = (peer.clone(), link.state());
            tokio::spawn(async move {
                while state.wait_for(LinkState::is_connected).await.is_ok() {
                    sleep(ms(1)).await;
                    let newest = peer.inner.conns.lock().unwrap().len();
                    peer.close(newest);
                    let _ = state.wait_for(|state| !state.is_connected()).await;
                }
            })
        });
        sleep(secs(60)).await;
        drop(link);
        if let Some(closer) = closer {
            closer.await.unwrap();
        }
        // No path around the delay: nothing comes sooner than half of the first value.
        assert!(peer.gaps().iter().all(|gap| *gap >= ms(500)), "{:?}", peer.gaps());
        peer.tries().len()
    }
    let refused = tries_in_a_minute(&Peer::new([Way::Refuses; 100]), false).await;
    let reset = tries_in_a_minute(&Peer::new([]), true).await;
    assert!(4 < reset && reset <= refused, "{reset} against {refused}");
}

#[tokio::test(start_paused = true)]
async fn c2_a_stable_link_that_is_lost_comes_back_promptly_case_o16() {
    let peer = Peer::new([]);
    let link = peer.link().spawn();
    let first = link.get().await.unwrap();
    sleep(secs(10)).await;
    peer.close(1);
    let state = until(&link, |state| !state.is_connected()).await;
    assert!(matches!(state, LinkState::Waiting { attempt: 0, .. }));
    let lost = Instant::now();
    let second = link.get().await.unwrap();
    assert!(lost.elapsed() <= ms(2_001));
    assert_eq!((first.generation(), second.generation()), (1, 2));
    assert!(!first.is_current() && second.is_current());
}

#[tokio::test(start_paused = true)]
async fn c2_there_is_no_attempt_limit_unless_set() {
    let peer = Peer::new([Way::Refuses; 40]);
    let link = peer.link().spawn();
    let lease = link.get_within(Duration::MAX).await.unwrap();
    assert_eq!((lease.id, peer.tries().len()), (1, 41));

    let peer = Peer::new([Way::Refuses; 40]);
    let link = peer.link().max_attempts(8).spawn();
    let rejection = link.get_within(Duration::MAX).await.unwrap_err();
    assert_eq!(peer.tries().len(), 8);
    // case_m8: it says why.
    assert_eq!(rejection.to_string(), "disconnected (could not connect: refused)");
    assert_eq!(cause(&link.state().borrow()), CauseKind::ConnectFailed);
    sleep(secs(3_600)).await;
    assert_eq!(peer.tries().len(), 8);
}

#[tokio::test(start_paused = true)]
async fn c3_waiting_says_until_when() {
    let peer = Peer::new([Way::Refuses]);
    let link = peer.link().spawn();
    let state = until(&link, is_waiting).await;
    let LinkState::Waiting { until, attempt: 1, .. } = state else { panic!("{state:?}") };
    assert_eq!(state.next_try(Instant::now()), Some(until - Instant::now()));
    link.get().await.unwrap();
    // A timer's grain is a millisecond.
    assert!(peer.tries()[1] >= until && peer.tries()[1] <= until + ms(1));
}

#[tokio::test(start_paused = true)]
async fn c3_retry_now_ends_the_wait_and_its_timer() {
    let peer = Peer::new([Way::Refuses, Way::OpensAfter(secs(5))]);
    let link = peer.link().spawn();
    let wait = until(&link, is_waiting).await.next_try(Instant::now()).unwrap();
    sleep(ms(100)).await;
    assert!(link.retry_now());
    assert!(!link.retry_now(), "a try is under way");
    settle().await;
    assert_eq!(peer.tries().len(), 2);
    // The wait's own end passes while the try is under way, and starts nothing.
    sleep(wait + secs(1)).await;
    assert_eq!(peer.tries().len(), 2);
    assert_eq!(link.get().await.unwrap().id, 1);
    assert!(!link.retry_now(), "connected");
}

#[tokio::test(start_paused = true)]
async fn c3_after_give_up_nothing_starts_until_retry_now() {
    let peer = Peer::new([Way::Refuses]);
    let link = peer.link().spawn();
    until(&link, is_waiting).await;
    let mut waits = by_hand(link.get());
    assert!(waits.poll().is_pending());
    assert!(link.give_up());
    assert!(!link.give_up());
    assert_eq!(cause(&link.state().borrow()), CauseKind::GaveUp);
    // Who waited is turned away, and so is who comes.
    assert!(waits.is_woken());
    assert!(matches!(waits.poll(), Poll::Ready(Err(Rejection::Disconnected { retry_after: None, .. }))));
    assert_eq!(retry_after(link.get().await), None);
    sleep(secs(3_600)).await;
    assert_eq!(peer.tries().len(), 1);

    assert!(link.retry_now());
    assert!(matches!(*link.state().borrow(), LinkState::Connecting { attempt: 0 }));

    // From connected: the link lets go of the connection, which is dropped with the last lease.
    let lease = link.get().await.unwrap();
    assert!(link.give_up());
    settle().await;
    assert_eq!(peer.live(), (0, 1));
    drop(lease);
    assert_eq!(peer.live(), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn c3_give_up_drops_the_try_that_is_under_way() {
    let peer = Peer::new([Way::Hangs]);
    let link = peer.link().spawn();
    settle().await;
    assert_eq!(peer.live().0, 1);
    link.give_up();
    settle().await;
    assert_eq!(peer.live().0, 0);
}

#[tokio::test(start_paused = true)]
async fn c4_the_closed_future_ends_its_generation_and_tells_why() {
    let peer = Peer::new([]);
    let link = peer.link().spawn();
    link.get().await.unwrap();
    peer.close(1);
    settle().await;
    assert_eq!(link.state().borrow().cause().unwrap().to_string(), "the connection closed: reset by peer");
    assert_eq!(link.get().await.unwrap().id, 2);
    assert_eq!(link.sample().links.unwrap().lost, 1);
}

#[tokio::test(start_paused = true)]
async fn c4_a_heartbeat_finds_a_peer_that_is_gone_without_a_word() {
    let peer = Peer::new([]);
    let link = peer.link().heartbeat(secs(5), Conn::ping).heartbeat_timeout(secs(2)).spawn();
    link.get().await.unwrap();
    let start = Instant::now();
    sleep(secs(12)).await;
    assert!(link.state().borrow().is_connected());
    peer.conn(1).stalled.send_replace(true);
    let state = until(&link, |state| !state.is_connected()).await;
    // The third beat begins at 15 s and is not answered.
    assert_eq!((cause(&state), start.elapsed()), (CauseKind::Heartbeat, secs(17)));
}

#[tokio::test(start_paused = true)]
async fn c4_a_failed_beat_and_a_panicking_one_are_losses() {
    let peer = Peer::new([]);
    let link = peer.link().heartbeat(secs(1), async |_: &Conn| Err::<(), _>("pong expected")).spawn();
    link.get().await.unwrap();
    let state = until(&link, |state| !state.is_connected()).await;
    assert_eq!(state.to_string(), "waiting: the heartbeat failed: pong expected");

    let peer = Peer::new([]);
    let beat = async |conn: &Conn| if conn.id == 1 { panic!("beat") } else { Ok::<_, String>(()) };
    let link = peer.link().heartbeat(secs(1), beat).spawn();
    link.get().await.unwrap();
    let state = until(&link, |state| !state.is_connected()).await;
    assert_eq!(state.to_string(), "waiting: panicked: beat");
    assert_eq!(link.get().await.unwrap().id, 2);
}

#[tokio::test(start_paused = true)]
async fn c4_a_late_word_of_an_earlier_generation_changes_nothing() {
    let peer = Peer::new([]);
    let link = peer.link().spawn();
    let first = link.get().await.unwrap();
    first.broken("it stalls");
    assert!(link.try_get().is_err(), "from here on nobody gets it");
    let second = link.get().await.unwrap();
    assert_eq!(second.generation(), 2);
    first.broken("it still stalls");
    peer.close(1);
    settle().await;
    assert!(second.is_current());
    assert_eq!(link.try_get().unwrap().generation(), 2);
    let facts = link.sample().links.unwrap();
    assert_eq!((facts.up, facts.down, facts.lost), (1, 0, 1));
}

#[tokio::test(start_paused = true)]
async fn c5_callers_wait_no_longer_than_max_wait_and_learn_when_the_next_try_is() {
    let peer = Peer::new([Way::Refuses; 100]);
    let link = peer.link().max_wait(secs(4)).spawn();
    let start = Instant::now();
    let rejected = retry_after(link.get().await);
    assert_eq!(start.elapsed(), secs(4));
    assert!(rejected.is_some());
    assert_eq!(rejected, link.state().borrow().next_try(Instant::now()));
    assert_eq!(link.waiting(), 0);
    let start = Instant::now();
    assert!(link.get_within(ms(10)).await.is_err());
    assert_eq!(start.elapsed(), ms(10));
}

#[tokio::test(start_paused = true)]
async fn c5_callers_are_turned_away_at_once_where_asked_for() {
    let peer = Peer::new([Way::Refuses]);
    let link = peer.link().turn_away().spawn();
    assert_eq!(retry_after(link.get().await), None, "connecting: no try is planned");
    let state = until(&link, is_waiting).await;
    let start = Instant::now();
    assert_eq!(retry_after(link.get().await), state.next_try(start));
    assert_eq!(start.elapsed(), Duration::ZERO);
    until(&link, LinkState::is_connected).await;
    assert_eq!(link.get().await.unwrap().id, 1);
}

#[tokio::test(start_paused = true)]
async fn c5_no_more_than_max_waiting_wait() {
    let peer = Peer::new([Way::OpensAfter(secs(1))]);
    let link = peer.link().max_waiting(2).spawn();
    let (mut a, mut b, mut c) = (by_hand(link.get()), by_hand(link.get()), by_hand(link.get()));
    assert!(a.poll().is_pending() && b.poll().is_pending());
    assert_eq!(link.waiting(), 2);
    assert!(matches!(c.poll(), Poll::Ready(Err(Rejection::Disconnected { .. }))));
    // A place that is given up is free at once.
    drop(a);
    let mut d = by_hand(link.get());
    assert!(d.poll().is_pending());
    sleep(secs(2)).await;
    assert!(b.poll().is_ready() && d.poll().is_ready());
    drop((b, c, d));
    assert_eq!(link.waiting(), 0);
}

#[tokio::test(start_paused = true)]
async fn c5_every_waiting_caller_is_woken_whichever_poller_is_dropped_case_o9() {
    for dropped in [0, 49, 99] {
        let peer = Peer::new([Way::OpensAfter(secs(1))]);
        let link = peer.link().lazy().spawn();
        let mut callers: Vec<_> = (0..100)
            .map(|_| {
                let link = link.clone();
                tokio::spawn(async move { link.get().await.map(|lease| lease.id) })
            })
            .collect();
        settle().await;
        let start = Instant::now();
        assert_eq!(link.waiting(), 100);
        callers.remove(dropped).abort();
        settle().await;
        assert_eq!(link.waiting(), 99);
        for caller in callers {
            assert_eq!(caller.await.unwrap().unwrap(), 1);
        }
        assert_eq!(start.elapsed(), secs(1));
        assert_eq!(peer.tries().len(), 1, "one connect for all");
    }
}

#[tokio::test(start_paused = true)]
async fn c5_a_waiting_caller_is_woken_for_what_concerns_it_and_for_nothing_else() {
    let peer = Peer::new([Way::Refuses, Way::Refuses, Way::Refuses, Way::OpensAfter(secs(1))]);
    let link = peer.link().spawn();
    let mut get = by_hand(link.get());
    assert!(get.poll().is_pending());
    // Three failed tries and their waits are none of its concern.
    until(&link, |state| matches!(state, LinkState::Connecting { attempt: 3 })).await;
    assert_eq!(get.wakes(), 0);
    until(&link, LinkState::is_connected).await;
    settle().await;
    assert_eq!(get.wakes(), 1);
    assert!(get.poll().is_ready());
}

#[tokio::test(start_paused = true)]
async fn c5_an_exchange_left_half_way_breaks_its_connection_case_o9() {
    let peer = Peer::new([]);
    let link = peer.link().spawn();
    let lease = link.get().await.unwrap();
    lease.exchange().complete();
    assert!(lease.is_current());
    let half = async {
        let exchange = lease.exchange();
        pending::<()>().await;
        exchange.complete();
    };
    assert!(timeout(ms(1), half).await.is_err());
    assert!(!lease.is_current());
    assert_eq!(link.get().await.unwrap().id, 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn c5_no_caller_is_stranded_while_threads_lose_and_restore_the_link() {
    let peer = Peer::new([]);
    let instant = Backoff::exponential(Duration::ZERO, Duration::ZERO);
    let link = peer.link().backoff(instant).first_wait(Duration::ZERO).spawn();
    let callers: Vec<_> = (0..8)
        .map(|n| {
            let link = link.clone();
            tokio::spawn(async move {
                for round in 0..500 {
                    let lease = link.get().await.unwrap();
                    if (n + round) % 3 == 0 {
                        lease.broken("enough of it");
                    }
                }
            })
        })
        .collect();
    for caller in callers {
        timeout(secs(30), caller).await.expect("a caller hangs").unwrap();
    }
    let lost = link.sample().links.unwrap().lost;
    let generation = link.get().await.unwrap().generation();
    assert!(generation == lost + 1, "{generation} connections, {lost} lost");
}

#[tokio::test(start_paused = true)]
async fn c6_the_driver_ends_with_the_last_handle_or_lease_case_o15() {
    for way in [Way::Hangs, Way::Refuses, Way::Opens] {
        let peer = Peer::new([way; 50]);
        let (link, driver) = peer.link().build();
        let mut state = link.state();
        let driver = tokio::spawn(driver);
        settle().await;
        let clone = link.clone();
        let lease = link.try_get().ok();
        drop(link);
        settle().await;
        assert!(!driver.is_finished());
        drop(clone);
        settle().await;
        assert_eq!(driver.is_finished(), lease.is_none());
        drop(lease);
        driver.await.unwrap();
        assert_eq!(peer.live(), (0, 0), "{way:?}: nothing is left of it");
        // The reader of the state sees its end.
        assert_eq!(cause(&state.borrow_and_update()), CauseKind::NotDriven);
        assert!(state.changed().await.is_err());
    }
}

#[tokio::test(start_paused = true)]
async fn c6_a_get_that_waits_keeps_the_link() {
    let peer = Peer::new([Way::OpensAfter(secs(1))]);
    let get = peer.link().spawn().get();
    assert_eq!(get.await.unwrap().id, 1);
}

#[tokio::test(start_paused = true)]
async fn c6_a_dropped_driver_leaves_nobody_waiting() {
    let peer = Peer::new([Way::Hangs]);
    let (link, driver) = peer.link().build();
    let driver = tokio::spawn(driver);
    settle().await;
    let waiting = tokio::spawn({
        let link = link.clone();
        async move { link.get().await.map(|lease| lease.id) }
    });
    settle().await;
    driver.abort();
    let rejection = waiting.await.unwrap().unwrap_err();
    assert_eq!(rejection.to_string(), "disconnected (its driver was dropped)");
    assert!(!link.retry_now(), "nobody is left to try");
    assert!(link.get().await.is_err());
}

#[tokio::test(start_paused = true)]
async fn c6_a_panic_in_connector_or_restore_is_a_failed_try() {
    let peer = Peer::new([Way::PanicsInCall, Way::Panics]);
    let restores = AtomicUsize::new(0);
    let link = peer
        .link()
        .restore(move |conn: Conn| {
            let n = restores.fetch_add(1, Ordering::Relaxed);
            assert!(n != 0, "restore is wrong");
            async move {
                assert!(n != 1, "restoring is wrong");
                Ok::<_, String>(conn)
            }
        })
        .spawn();
    let mut seen = Vec::new();
    let mut state = link.state();
    while !state.borrow_and_update().is_connected() {
        if let Some(cause) = state.borrow().cause() {
            assert_eq!(cause.kind(), CauseKind::Panicked);
            seen.push(cause.error().unwrap().to_string());
        }
        state.changed().await.unwrap();
    }
    let told = ["the connector is wrong", "the try is wrong", "restore is wrong", "restoring is wrong"];
    assert_eq!(seen, told);
    assert_eq!(peer.tries().len(), 5);
}

#[tokio::test(start_paused = true)]
async fn c6_the_connector_is_called_anew_each_time_case_o6_o12() {
    let addresses = Arc::new(Mutex::new(vec!["new", "old", "old"]));
    let look_up = Arc::clone(&addresses);
    let link = Link::connect(move || {
        let address = look_up.lock().unwrap().pop();
        async move { if address == Some("new") { Ok(address) } else { Err("stale") } }
    })
    .spawn();
    assert_eq!(*link.get().await.unwrap(), Some("new"));
    assert!(addresses.lock().unwrap().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_lazy_link_starts_with_its_first_caller_and_tries_again_case_o1_o14() {
    let peer = Peer::new([Way::Refuses]);
    let link = peer.link().lazy().spawn();
    sleep(secs(60)).await;
    assert_eq!(peer.tries().len(), 0);
    assert_eq!(cause(&link.state().borrow()), CauseKind::NotStarted);
    assert!(link.try_get().is_err());
    settle().await;
    assert_eq!(peer.tries().len(), 0, "a look is no demand");
    assert_eq!(link.get().await.unwrap().id, 1);
    assert_eq!(peer.tries().len(), 2);

    // Turned away and lazy: the first caller starts it.
    let link = Peer::new([]).link().lazy().turn_away().spawn();
    assert!(link.get().await.is_err());
    settle().await;
    assert!(link.get().await.is_ok());

    // Given up before anybody asked, it stays so.
    let peer = Peer::new([]);
    let link = peer.link().lazy().spawn();
    assert!(link.give_up());
    assert!(link.get().await.is_err());
    settle().await;
    assert_eq!(peer.tries().len(), 0);
}

#[tokio::test(start_paused = true)]
async fn an_eager_link_tells_how_the_first_try_ended_case_o1_o14() {
    let peer = Peer::new([Way::OpensAfter(secs(1))]);
    let link = peer.link().spawn_connected().await.unwrap();
    assert_eq!(link.try_get().unwrap().id, 1);

    let peer = Peer::new([Way::Refuses]);
    let error = peer.link().spawn_connected().await.unwrap_err();
    assert_eq!(error.to_string(), "could not connect: refused");
    sleep(secs(60)).await;
    assert_eq!(peer.tries().len(), 1, "no second try");

    // Also where the next try follows in the same instant.
    let peer = Peer::new([Way::Refuses]);
    let instant = Backoff::exponential(Duration::ZERO, Duration::ZERO);
    assert!(peer.link().backoff(instant).spawn_connected().await.is_err());
}

#[tokio::test(start_paused = true)]
async fn a_background_link_starts_at_once_and_its_spawn_does_not_wait() {
    let peer = Peer::new([Way::OpensAfter(secs(1))]);
    let link = peer.link().spawn();
    settle().await;
    assert_eq!(peer.tries().len(), 1);
    assert!(link.try_get().is_err());
}

#[test]
fn a_link_is_built_outside_a_runtime() {
    let (link, _driver) = Peer::new([]).link().build();
    assert!(matches!(*link.state().borrow(), LinkState::Connecting { attempt: 0 }));
}

#[test]
fn a_setting_that_can_never_be_right_is_named() {
    let error = Peer::new([]).link().try_max_attempts(0).err().unwrap();
    assert_eq!(error.to_string(), "max_attempts is 0, but must be at least 1, the first try included");
    let error = Peer::new([]).link().try_heartbeat(Duration::ZERO, Conn::ping).err().unwrap();
    assert_eq!(error.field(), "heartbeat");
}

#[tokio::test(start_paused = true)]
async fn never_is_a_duration_like_any_other() {
    let peer = Peer::new([Way::Refuses]);
    let link = peer
        .link()
        .connect_timeout(Duration::MAX)
        .restore_timeout(Duration::MAX)
        .max_wait(Duration::MAX)
        .min_uptime(Duration::MAX)
        .heartbeat(Duration::MAX, Conn::ping)
        .first_wait(Duration::MAX)
        .spawn();
    link.get().await.unwrap();
    sleep(secs(86_400)).await;
    // Never stable: a loss is a failed try, whose wait is the backoff's, not the endless first one.
    peer.close(1);
    settle().await;
    assert_eq!(link.get().await.unwrap().id, 2);
    assert_eq!(peer.tries().len(), 3);
}

#[tokio::test(start_paused = true)]
async fn two_links_of_one_seed_wait_alike_and_of_two_seeds_do_not() {
    async fn gaps(seed: u64) -> Vec<Duration> {
        let peer = Peer::new([Way::Refuses; 5]);
        let link = peer.link().seed(seed).spawn();
        link.get_within(Duration::MAX).await.unwrap();
        peer.gaps()
    }
    assert_eq!(gaps(1).await, gaps(1).await);
    assert_ne!(gaps(1).await, gaps(2).await);
}

#[tokio::test(start_paused = true)]
async fn first_wait_and_min_uptime_are_obeyed() {
    let peer = Peer::new([]);
    let link = peer.link().min_uptime(secs(1)).first_wait(Duration::ZERO).spawn();
    link.get().await.unwrap();
    sleep(secs(1)).await;
    let lost = Instant::now();
    peer.close(1);
    settle().await;
    assert_eq!(link.get().await.unwrap().id, 2);
    assert!(lost.elapsed() <= ms(1));
}

#[tokio::test(start_paused = true)]
async fn c4_who_hangs_on_a_lost_connection_can_be_told() {
    let peer = Peer::new([]);
    let link = peer.link().spawn();
    let lease = link.get().await.unwrap();
    let mut lost = by_hand(lease.lost());
    assert!(lost.poll().is_pending());
    peer.close(1);
    settle().await;
    assert!(lost.poll().is_ready());
    lease.lost().await;
}
