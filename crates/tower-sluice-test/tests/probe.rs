//! The contract probe (T2): what it accepts, and that it finds each of its bugs in a layer that has it.

use std::collections::VecDeque;
use std::future::pending;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tower::buffer::Buffer;
use tower::limit::ConcurrencyLimit;
use tower::load_shed::LoadShed;
use tower::retry::Retry;
use tower::timeout::Timeout;
use tower::util::{MapRequest, MapResponse};
use tower::{Service, ServiceBuilder, ServiceExt};
use tower_sluice_test::probe::Report;
use tower_sluice_test::script::Scripted;
use tower_sluice_test::{Check, Failure, Probe};

type Inner = Scripted<(), (), Failure>;
type Boxed = Pin<Box<dyn Future<Output = Result<(), Failure>> + Send>>;

async fn probe<S>(layer: impl Fn(Inner) -> S) -> Report
where
    S: Service<()> + Clone + Send + Sync + 'static,
    S::Future: Send,
{
    Probe::new().run(layer).await
}

fn found(report: &Report) -> Vec<Check> {
    let mut found: Vec<_> = report.violations().iter().map(|violation| violation.check).collect();
    found.dedup();
    found
}

// What passes.

#[derive(Clone)]
struct Twice;

impl<E> tower::retry::Policy<(), (), E> for Twice {
    type Future = tokio::time::Sleep;

    fn retry(&mut self, (): &mut (), result: &mut Result<(), E>) -> Option<Self::Future> {
        result.is_err().then(|| tokio::time::sleep(Duration::from_millis(100)))
    }

    fn clone_request(&mut self, (): &()) -> Option<()> {
        Some(())
    }
}

#[tokio::test(start_paused = true)]
async fn a_bare_service_passes() {
    Probe::new().check(|inner| inner).await;
}

#[tokio::test(start_paused = true)]
async fn towers_concurrency_limit_passes() {
    for limit in [1, 3, 64] {
        Probe::new().check(|inner| ConcurrencyLimit::new(inner, limit)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn towers_buffer_passes() {
    for bound in [1, 4] {
        Probe::new().check(|inner| Buffer::new(inner, bound)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn towers_retry_passes() {
    Probe::new().check(|inner| Retry::new(Twice, inner)).await;
}

#[tokio::test(start_paused = true)]
async fn towers_timeout_passes() {
    Probe::new().check(|inner| Timeout::new(inner, Duration::from_secs(1))).await;
}

#[tokio::test(start_paused = true)]
async fn towers_load_shed_passes() {
    Probe::new().check(LoadShed::new).await;
}

#[tokio::test(start_paused = true)]
async fn a_stack_of_them_passes() {
    let stack = ServiceBuilder::new().buffer(2).timeout(Duration::from_secs(1)).concurrency_limit(1);
    Probe::new().check(|inner| stack.service(inner)).await;
}

#[tokio::test(start_paused = true)]
async fn types_of_ones_own_are_probed() {
    let probe = Probe::with(|| "request", || 200_u16, || "error");
    probe.check(|inner| MapResponse::new(inner, |status| status + 1)).await;
}

#[cfg(feature = "http")]
#[tokio::test(start_paused = true)]
async fn http_layers_are_probed() {
    Probe::http().check(|inner| ConcurrencyLimit::new(inner, 2)).await;
}

/// F3, F4: tower's layers that hold what they reserve while nobody calls.
#[tokio::test(start_paused = true)]
async fn case_f3_readiness_held_by_idle_clones_is_found_where_asked_for() {
    let strict = || Probe::new().also(Check::IdleReadiness);
    strict().check(|inner| Buffer::new(inner, 200)).await;
    for limit in [1, 200] {
        let report = strict().run(|inner| ConcurrencyLimit::new(inner, limit)).await;
        assert_eq!(found(&report), [Check::IdleReadiness], "{report}");
        assert!(
            says(&report, "100 idle clones hold") || limit == 1 && says(&report, "1 of 100 idle clones hold")
        );
    }
    for report in [
        strict().run(LoadShed::new).await,
        strict().run(|inner| Retry::new(Twice, inner)).await,
        strict().run(|inner| Timeout::new(inner, Duration::from_secs(1))).await,
    ] {
        assert_eq!(found(&report), [Check::IdleReadiness], "{report}");
    }
}

// What must not pass. `Broken` is a layer with one bug.

/// In `call`, with what it shares between clones.
#[derive(Clone)]
struct Broken<F, G> {
    inner: Inner,
    poll_ready: F,
    call: G,
}

impl<F, G, Fut> Service<()> for Broken<F, G>
where
    F: FnMut(&mut Inner, &mut Context<'_>) -> Poll<Result<(), Failure>>,
    G: FnMut(&mut Inner) -> Fut,
    Fut: Future<Output = Result<(), Failure>>,
{
    type Response = ();
    type Error = Failure;
    type Future = Fut;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Failure>> {
        (self.poll_ready)(&mut self.inner, cx)
    }

    fn call(&mut self, (): ()) -> Fut {
        (self.call)(&mut self.inner)
    }
}

type PollReady = fn(&mut Inner, &mut Context<'_>) -> Poll<Result<(), Failure>>;

/// The bug is in `call`.
fn in_call<G, Fut>(inner: Inner, call: G) -> Broken<PollReady, G>
where
    G: FnMut(&mut Inner) -> Fut + Clone,
    Fut: Future<Output = Result<(), Failure>>,
{
    Broken { inner, poll_ready: |inner, cx| inner.poll_ready(cx), call }
}

/// The same with the ready service below to keep.
fn with_ready<Fut>(
    inner: Inner,
    mut call: impl FnMut(Inner) -> Fut + Clone + Send + Sync,
) -> Broken<PollReady, impl FnMut(&mut Inner) -> Fut + Clone + Send + Sync>
where
    Fut: Future<Output = Result<(), Failure>>,
{
    in_call(inner, move |inner| {
        let clone = inner.clone();
        call(std::mem::replace(inner, clone))
    })
}

async fn expect<S>(check: Check, layer: impl Fn(Inner) -> S) -> Report
where
    S: Service<()> + Clone + Send + Sync + 'static,
    S::Future: Send,
{
    let report = probe(layer).await;
    assert!(found(&report).contains(&check), "{check} was not found: {report}");
    report
}

/// The report has these checks and no others.
async fn expect_only<S>(checks: &[Check], layer: impl Fn(Inner) -> S) -> Report
where
    S: Service<()> + Clone + Send + Sync + 'static,
    S::Future: Send,
{
    let report = probe(layer).await;
    assert_eq!(found(&report), checks, "{report}");
    report
}

fn says(report: &Report, what: &str) -> bool {
    report.violations().iter().any(|violation| violation.what.contains(what))
}

/// F1
#[tokio::test(start_paused = true)]
async fn case_f1_a_call_on_a_fresh_clone_is_found() {
    expect(Check::Readiness, |inner| in_call(inner, |inner| inner.clone().call(()))).await;
}

/// F2
#[tokio::test(start_paused = true)]
async fn case_f2_a_second_attempt_without_readiness_is_found() {
    expect(Check::Readiness, |inner| {
        with_ready(inner, |mut inner| async move {
            match inner.call(()).await {
                Ok(()) => Ok(()),
                Err(_) => inner.call(()).await,
            }
        })
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_poll_after_the_end_is_found() {
    expect(Check::Readiness, |inner| {
        in_call(inner, |inner| {
            let mut attempt = Box::pin(inner.call(()));
            async move {
                let _ = attempt.as_mut().await;
                attempt.await
            }
        })
    })
    .await;
}

/// A future that polls another one as `poll` says.
struct Polls<P, F> {
    inner: Pin<Box<F>>,
    poll: P,
}

impl<P, F> Future for Polls<P, F>
where
    F: Future,
    P: FnMut(Pin<&mut F>, &mut Context<'_>) -> Poll<F::Output> + Unpin,
{
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let this = self.get_mut();
        (this.poll)(this.inner.as_mut(), cx)
    }
}

#[tokio::test(start_paused = true)]
async fn a_lost_waker_of_a_call_is_found() {
    expect_only(&[Check::Wakeup, Check::Cancel], |inner| {
        in_call(inner, |inner| Polls {
            inner: Box::pin(inner.call(())),
            poll: |inner: Pin<&mut _>, _: &mut Context<'_>| {
                Future::poll(inner, &mut Context::from_waker(Waker::noop()))
            },
        })
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_lost_waker_of_readiness_is_found() {
    let poll_ready =
        |inner: &mut Inner, _: &mut Context<'_>| inner.poll_ready(&mut Context::from_waker(Waker::noop()));
    expect_only(&[Check::Wakeup], |inner| Broken {
        inner,
        poll_ready,
        call: |inner: &mut Inner| inner.call(()),
    })
    .await;
}

/// As in a shared future that keeps the waker of whoever polled it first.
#[tokio::test(start_paused = true)]
async fn a_waker_that_is_not_replaced_is_found() {
    expect_only(&[Check::Wakeup], |inner| {
        in_call(inner, |inner| {
            let mut first = None;
            Polls {
                inner: Box::pin(inner.call(())),
                poll: move |inner: Pin<&mut _>, cx: &mut Context<'_>| {
                    let first = first.get_or_insert_with(|| cx.waker().clone());
                    Future::poll(inner, &mut Context::from_waker(first))
                },
            }
        })
    })
    .await;
}

/// A timeout hides the lost wake-up: the call ends, but late.
#[tokio::test(start_paused = true)]
async fn a_lost_waker_is_found_below_a_timeout() {
    expect_only(&[Check::Wakeup], |inner| {
        let inner = in_call(inner, |inner| Polls {
            inner: Box::pin(inner.call(())),
            poll: |inner: Pin<&mut _>, _: &mut Context<'_>| {
                Future::poll(inner, &mut Context::from_waker(Waker::noop()))
            },
        });
        Timeout::new(inner, Duration::from_secs(1))
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_call_that_wakes_itself_is_found() {
    expect_only(&[Check::Spin], |inner| {
        in_call(inner, |inner| Polls {
            inner: Box::pin(inner.call(())),
            poll: |inner: Pin<&mut _>, cx: &mut Context<'_>| {
                cx.waker().wake_by_ref();
                Future::poll(inner, cx)
            },
        })
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn readiness_that_wakes_itself_is_found() {
    let poll_ready = |inner: &mut Inner, cx: &mut Context<'_>| {
        cx.waker().wake_by_ref();
        inner.poll_ready(cx)
    };
    expect_only(&[Check::Spin], |inner| Broken {
        inner,
        poll_ready,
        call: |inner: &mut Inner| inner.call(()),
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_task_that_spins_is_found() {
    expect(Check::Spin, |inner| {
        in_call(inner, |inner| {
            let mut attempt = Box::pin(inner.call(()));
            let task = tokio::spawn(std::future::poll_fn(move |cx| {
                let polled = attempt.as_mut().poll(cx);
                if polled.is_pending() {
                    cx.waker().wake_by_ref();
                }
                polled
            }));
            async move { task.await.unwrap_or_else(|_| Err(Failure::from("aborted"))) }
        })
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_call_that_wakes_itself_later_is_found() {
    let report = expect_only(&[Check::Spin], |inner| {
        in_call(inner, |inner| {
            let mut timer = Box::pin(tokio::time::sleep(Duration::from_secs(30)));
            Polls {
                inner: Box::pin(inner.call(())),
                poll: move |inner: Pin<&mut _>, cx: &mut Context<'_>| {
                    if timer.is_elapsed() || timer.as_mut().poll(cx).is_ready() {
                        cx.waker().wake_by_ref();
                    }
                    Future::poll(inner, cx)
                },
            }
        })
    })
    .await;
    assert!(says(&report, "later, while an attempt runs"), "{report}");
}

#[tokio::test(start_paused = true)]
async fn readiness_that_is_taken_back_is_found() {
    expect_only(&[Check::ReadyStays], |inner| {
        let mut odd = false;
        let poll_ready = move |inner: &mut Inner, cx: &mut Context<'_>| {
            ready!(inner.poll_ready(cx))?;
            odd = !odd;
            if odd {
                return Poll::Ready(Ok(()));
            }
            cx.waker().wake_by_ref();
            Poll::Pending
        };
        Broken { inner, poll_ready, call: |inner: &mut Inner| inner.call(()) }
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn an_attempt_that_a_task_keeps_running_is_found() {
    expect_only(&[Check::Cancel], |inner| {
        in_call(inner, |inner| {
            let task = tokio::spawn(inner.call(()));
            async move { task.await.unwrap_or_else(|_| Err(Failure::from("panicked"))) }
        })
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn an_inner_future_kept_after_the_drop_is_found() {
    struct Keeps<F> {
        inner: Option<Pin<Box<F>>>,
        graveyard: Arc<Mutex<Vec<Pin<Box<F>>>>>,
    }

    impl<F: Future> Future for Keeps<F> {
        type Output = F::Output;

        fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
            self.inner.as_mut().unwrap().as_mut().poll(cx)
        }
    }

    impl<F> Drop for Keeps<F> {
        fn drop(&mut self) {
            self.graveyard.lock().unwrap().extend(self.inner.take());
        }
    }

    expect_only(&[Check::Cancel, Check::Panic], |inner| {
        let graveyard = Arc::default();
        in_call(inner, move |inner| Keeps {
            inner: Some(Box::pin(inner.call(()))),
            graveyard: Arc::clone(&graveyard),
        })
    })
    .await;
}

/// A limit that never gives its permit back if the call is dropped.
#[tokio::test(start_paused = true)]
async fn a_permit_that_leaks_with_a_dropped_call_is_found() {
    expect_only(&[Check::Cancel, Check::Panic], |inner| {
        let semaphore = Arc::new(Semaphore::new(3));
        with_ready(inner, move |mut inner| {
            let semaphore = semaphore.clone();
            async move {
                semaphore.acquire().await.unwrap().forget();
                let result = inner.call(()).await;
                semaphore.add_permits(1);
                result
            }
        })
    })
    .await;
}

/// The same over a limit that turns calls away instead of holding them.
#[tokio::test(start_paused = true)]
async fn a_count_that_leaks_with_a_dropped_call_is_found() {
    expect_only(&[Check::Cancel], |inner| {
        let running = Arc::new(AtomicUsize::new(0));
        with_ready(inner, move |mut inner| {
            let running = running.clone();
            async move {
                if running.fetch_add(1, Ordering::Relaxed) >= 20 {
                    running.fetch_sub(1, Ordering::Relaxed);
                    return Err(Failure::from("full"));
                }
                let result = inner.call(()).await;
                running.fetch_sub(1, Ordering::Relaxed);
                result
            }
        })
    })
    .await;
}

/// A limit of one with a line of its own, in which a slot is handed to the next who waits.
#[derive(Default)]
struct Line {
    taken: bool,
    waiting: VecDeque<(Waker, Arc<AtomicUsize>)>,
}

struct Slot {
    line: Arc<Mutex<Line>>,
    skip_the_gone: bool,
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut line = self.line.lock().unwrap();
        while let Some((waker, granted)) = line.waiting.pop_front() {
            if Arc::strong_count(&granted) > 1 || !self.skip_the_gone {
                // One bug of it: nobody takes it back from a waiter that is dropped before it is polled.
                granted.store(1, Ordering::Relaxed);
                drop(line);
                return waker.wake();
            }
        }
        line.taken = false;
    }
}

fn one_at_a_time(inner: Inner, skip_the_gone: bool) -> impl Service<(), Future: Send> + Clone + Send + Sync {
    let line = Arc::<Mutex<Line>>::default();
    with_ready(inner, move |mut inner| {
        let line = line.clone();
        async move {
            let granted = Arc::new(AtomicUsize::new(0));
            std::future::poll_fn(|cx| {
                let mut line = line.lock().unwrap();
                if granted.load(Ordering::Relaxed) == 1 || !line.taken {
                    line.taken = true;
                    return Poll::Ready(());
                }
                line.waiting.retain(|(_, other)| !Arc::ptr_eq(other, &granted));
                line.waiting.push_back((cx.waker().clone(), granted.clone()));
                Poll::Pending
            })
            .await;
            let _slot = Slot { line, skip_the_gone };
            inner.call(()).await
        }
    })
}

#[tokio::test(start_paused = true)]
async fn a_granted_waiter_that_is_dropped_and_strands_the_others_is_found() {
    let report = expect_only(&[Check::Cancel], |inner| one_at_a_time(inner, true)).await;
    assert!(says(&report, "a waiting call was woken and dropped before it was polled"), "{report}");
    assert_eq!(report.violations().len(), 1, "{report}");
}

#[tokio::test(start_paused = true)]
async fn a_slot_given_to_a_waiter_that_has_gone_is_found() {
    let report = expect_only(&[Check::Cancel], |inner| one_at_a_time(inner, false)).await;
    assert!(says(&report, "other calls, waiting and running, were dropped"), "{report}");
}

/// What is taken before the readiness below is awaited, and not given back if the wait is dropped.
#[tokio::test(start_paused = true)]
async fn a_permit_that_leaks_while_readiness_is_awaited_is_found() {
    let report = expect_only(&[Check::Cancel], |inner| {
        let semaphore = Arc::new(Semaphore::new(3));
        let call = move |inner: &mut Inner| {
            let (inner, semaphore) = (inner.clone(), semaphore.clone());
            async move {
                let permit = semaphore.acquire_owned().await.unwrap();
                let semaphore = permit.semaphore().clone();
                permit.forget();
                let inner = inner.ready_oneshot().await;
                semaphore.add_permits(1);
                inner?.call(()).await
            }
        };
        Broken { inner, poll_ready: |_: &mut Inner, _: &mut Context<'_>| Poll::Ready(Ok(())), call }
    })
    .await;
    assert_eq!(report.violations().len(), 1, "{report}");
    assert!(says(&report, "while the readiness below was awaited"), "{report}");
}

#[tokio::test(start_paused = true)]
async fn a_future_kept_after_its_end_is_found() {
    let report = expect_only(&[Check::Cancel], |inner| {
        let ended = Arc::<Mutex<Vec<_>>>::default();
        in_call(inner, move |inner| {
            let mut attempt = Some(Box::pin(inner.call(())));
            let ended = ended.clone();
            std::future::poll_fn(move |cx| {
                let result = ready!(attempt.as_mut().unwrap().as_mut().poll(cx));
                ended.lock().unwrap().extend(attempt.take());
                Poll::Ready(result)
            })
        })
    })
    .await;
    assert!(says(&report, "the future of an attempt is kept although its call was dropped (after its end)"));
}

#[tokio::test(start_paused = true)]
async fn readiness_kept_by_clones_that_were_dropped_is_found() {
    struct Kept(Option<Inner>, Arc<Mutex<Vec<Inner>>>);

    impl Clone for Kept {
        fn clone(&self) -> Self {
            Self(self.0.clone(), self.1.clone())
        }
    }

    impl Drop for Kept {
        fn drop(&mut self) {
            self.1.lock().unwrap().extend(self.0.take());
        }
    }

    impl Service<()> for Kept {
        type Response = ();
        type Error = Failure;
        type Future = <Inner as Service<()>>::Future;

        fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Failure>> {
            self.0.as_mut().unwrap().poll_ready(cx)
        }

        fn call(&mut self, (): ()) -> Self::Future {
            self.0.as_mut().unwrap().call(())
        }
    }

    let report = expect(Check::Cancel, |inner| Kept(Some(inner), Arc::default())).await;
    assert!(says(&report, "readiness of the service below is kept"));
    assert!(says(&report, "a clone of the service below is kept"));
}

#[tokio::test(start_paused = true)]
async fn a_service_that_outlives_its_last_clone_is_found() {
    let report = expect(Check::Cancel, |inner| {
        let kept = inner.clone();
        tokio::spawn(async move {
            let _kept = kept;
            pending::<()>().await;
        });
        inner
    })
    .await;
    assert_eq!(found(&report), [Check::Cancel]);
    assert!(says(&report, "outlives the last clone"));
}

#[tokio::test(start_paused = true)]
async fn a_retry_for_a_caller_who_has_gone_is_found() {
    let report = expect(Check::Cancel, |inner| {
        in_call(inner, |inner| -> Boxed {
            let again = inner.clone();
            let attempt = inner.call(());
            Box::pin(async move {
                if attempt.await.is_ok() {
                    return Ok(());
                }
                tokio::spawn(async move {
                    tokio::time::sleep(Duration::from_secs(1)).await;
                    again.oneshot(()).await
                })
                .await
                .unwrap_or_else(|_| Err(Failure::from("panicked")))
            })
        })
    })
    .await;
    assert!(says(&report, "an attempt is made for a call that was dropped"));
}

#[tokio::test(start_paused = true)]
async fn a_permit_that_a_panic_keeps_is_found() {
    let report = expect_only(&[Check::Panic], |inner| {
        let semaphore = Arc::new(Semaphore::new(1));
        with_ready(inner, move |mut inner| {
            struct Guard(Option<OwnedSemaphorePermit>);
            impl Drop for Guard {
                fn drop(&mut self) {
                    if std::thread::panicking() {
                        self.0.take().unwrap().forget();
                    }
                }
            }
            let semaphore = semaphore.clone();
            async move {
                let _guard = Guard(semaphore.acquire_owned().await.ok());
                inner.call(()).await
            }
        })
    })
    .await;
    assert!(says(&report, "the future of the service below had panicked"));
    assert!(says(&report, "`call` of the service below had panicked"));
}

#[tokio::test(start_paused = true)]
async fn an_error_of_readiness_that_is_swallowed_is_found() {
    let poll_ready = |inner: &mut Inner, cx: &mut Context<'_>| match ready!(inner.poll_ready(cx)) {
        Ok(()) => Poll::Ready(Ok(())),
        Err(_) => Poll::Pending,
    };
    expect_only(&[Check::ReadyError], |inner| Broken {
        inner,
        poll_ready,
        call: |inner: &mut Inner| inner.call(()),
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_layer_that_never_calls_is_not_taken_for_a_good_one() {
    expect(Check::Readiness, |inner| in_call(inner, |_| std::future::ready(Ok(())))).await;
}

#[tokio::test(start_paused = true)]
async fn a_call_that_never_ends_is_found() {
    let report = expect(Check::Readiness, |inner| in_call(inner, |_| pending())).await;
    assert!(says(&report, "a call did not end within 600s: attempts succeed"), "{report}");
    assert!(says(&report, "a call waits, and the service below was not called"), "{report}");
}

#[tokio::test(start_paused = true)]
async fn a_panic_of_the_layers_own_is_found() {
    let report = expect(Check::Readiness, |inner| {
        in_call(inner, |inner| {
            let attempt = inner.call(());
            async move {
                attempt.await.unwrap();
                Ok(())
            }
        })
    })
    .await;
    assert!(says(&report, "a call panicked"), "{report}");
}

// The probe itself.

#[tokio::test(start_paused = true)]
#[should_panic(expected = "- Readiness: called without readiness")]
async fn check_panics_with_what_it_found() {
    Probe::new().check(|inner| in_call(inner, |inner| inner.clone().call(()))).await;
}

#[tokio::test(start_paused = true)]
async fn a_check_that_is_excepted_is_not_made() {
    let detached = |inner: Inner| {
        in_call(inner, |inner| {
            let task = tokio::spawn(inner.call(()));
            async move { task.await.unwrap_or_else(|_| Err(Failure::from("panicked"))) }
        })
    };
    Probe::new().except(Check::Cancel).check(detached).await;
}

#[tokio::test]
#[should_panic(expected = "needs a paused clock")]
async fn a_running_clock_is_refused() {
    Probe::new().check(|inner| MapRequest::new(inner, |(): ()| ())).await;
}
