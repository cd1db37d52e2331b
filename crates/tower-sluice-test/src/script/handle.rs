use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use super::records::{Attempt, Outcome};
use super::service::Scripted;
use super::shared::Shared;
use super::step::{Failure, Readiness, Step};

/// A script, and the record of how the services that follow it were used.
///
/// Cheap to clone; clones share script and records. `A` is what attempts answer with (for [`http`](Self::http) a
/// status or a response), `E` their error. A script that never answers names its type: `Script<()>`.
///
/// ```
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() {
/// use std::time::Duration;
/// use tower::limit::ConcurrencyLimit;
/// use tower::{Service, ServiceExt};
/// use tower_sluice_test::Script;
///
/// let script = Script::new().answer("done").after(Duration::from_secs(1));
/// let service = ConcurrencyLimit::new(script.service(), 2);
/// let calls: Vec<_> = (0..6).map(|n| tokio::spawn(service.clone().oneshot(n))).collect();
/// for call in calls {
///     assert_eq!(call.await.unwrap().unwrap(), "done");
/// }
/// assert_eq!(script.peak(), 2);
/// assert_eq!(script.starts()[5], Duration::from_secs(2));
/// # }
/// ```
///
/// Times are counted from [`new`](Self::new) on tokio's clock, and are exact where it is paused.
pub struct Script<A, E = Failure> {
    pub(super) shared: Arc<Shared<A, E>>,
}

impl<A> Script<A, Failure> {
    /// An empty script whose errors are [`Failure`]s. Its clock starts now: on a paused clock, call it on the runtime
    /// that the test runs on.
    pub fn new() -> Self {
        Self::typed()
    }
}

/// What attempts do. Each setter adds a step, or says more of the last one.
impl<A, E> Script<A, E> {
    /// An empty script with any error type, also `Infallible` (as axum's services have it).
    ///
    /// ```
    /// use std::convert::Infallible;
    /// use tower_sluice_test::Script;
    ///
    /// let script: Script<u16, Infallible> = Script::typed().answer(200);
    /// ```
    pub fn typed() -> Self {
        Self { shared: Arc::new(Shared::new()) }
    }

    /// An attempt does `step`.
    #[must_use]
    pub fn step(self, step: Step<A, E>) -> Self {
        self.shared.lock().steps.push(step);
        self
    }

    /// An attempt answers with `answer`.
    #[must_use]
    pub fn answer(self, answer: A) -> Self
    where
        A: Clone + Send + Sync + 'static,
    {
        self.step(Step::answer(answer))
    }

    /// An attempt answers with what `make` makes, for answers that are not `Clone`.
    #[must_use]
    pub fn answer_with(self, make: impl Fn() -> A + Send + Sync + 'static) -> Self {
        self.step(Step::answer_with(make))
    }

    /// An attempt fails with `error`.
    #[must_use]
    pub fn fail(self, error: impl Into<E>) -> Self
    where
        E: Clone + Send + Sync + 'static,
    {
        self.step(Step::fail(error))
    }

    /// An attempt fails with what `make` makes, for errors that are not `Clone`.
    #[must_use]
    pub fn fail_with(self, make: impl Fn() -> E + Send + Sync + 'static) -> Self {
        self.step(Step::fail_with(make))
    }

    /// An attempt never ends by itself.
    #[must_use]
    pub fn never(self) -> Self {
        self.step(Step::never())
    }

    /// An attempt panics with `message` in the poll in which it would answer.
    #[must_use]
    pub fn panic(self, message: impl Into<Cow<'static, str>>) -> Self {
        self.step(Step::panic(message))
    }

    /// An attempt panics with `message` in `call`, before there is a future.
    #[must_use]
    pub fn panic_in_call(self, message: impl Into<Cow<'static, str>>) -> Self {
        self.step(Step::panic_in_call(message))
    }

    /// The last step's attempt takes this long, instead of [`delay`](Self::delay): from `call`, or, if it is held,
    /// from its release. `Duration::MAX` is never.
    ///
    /// # Panics
    /// If the script has no step yet.
    #[must_use]
    pub fn after(self, delay: Duration) -> Self {
        self.change_last("after", |step| step.after = Some(delay))
    }

    /// The last step's attempt waits until the test [releases](Self::release) it.
    ///
    /// # Panics
    /// If the script has no step yet.
    #[must_use]
    pub fn held(self) -> Self {
        self.change_last("held", |step| step.held = true)
    }

    /// The last step is taken `n` times in all before the next one.
    ///
    /// # Panics
    /// If the script has no step yet, or `n` is 0.
    #[must_use]
    pub fn times(self, n: usize) -> Self {
        assert!(n > 0, "times is 0, but must be 1 or more: a step is taken at least once");
        {
            let mut state = self.shared.lock();
            let last = state.steps.last_mut().cloned();
            if let Some(step) = last {
                (1..n).for_each(|_| state.steps.push(step.clone()));
                drop(state);
                return self;
            }
        }
        panic!("times must follow a step");
    }

    /// Every attempt whose step has no [`after`](Self::after) of its own takes this long. Default: it answers in its
    /// first poll.
    #[must_use]
    pub fn delay(self, delay: Duration) -> Self {
        self.shared.lock().delay = Some(delay);
        self
    }

    /// Every attempt waits until the test [releases](Self::release) it.
    #[must_use]
    pub fn hold(self) -> Self {
        self.shared.lock().hold_all = true;
        self
    }

    fn change_last(self, setter: &str, change: impl FnOnce(&mut Step<A, E>)) -> Self {
        let changed = self.shared.lock().steps.last_mut().map(change).is_some();
        assert!(changed, "{setter} must follow a step");
        self
    }
}

/// How clones become ready. Each setter but [`reservations`](Self::reservations) adds an entry; an entry is taken by
/// the first poll of a clone that is not ready.
impl<A, E> Script<A, E> {
    /// A clone is ready in its first poll, as where nothing is said.
    #[must_use]
    pub fn ready(self) -> Self {
        self.readiness(Readiness::AtOnce)
    }

    /// A clone is ready this long after its first poll. `Duration::MAX` is never.
    #[must_use]
    pub fn ready_after(self, delay: Duration) -> Self {
        self.readiness(Readiness::After(delay))
    }

    /// A clone is ready once the test [releases](Self::release_ready) it.
    #[must_use]
    pub fn ready_held(self) -> Self {
        self.readiness(Readiness::Held)
    }

    /// A clone's first poll fails with `error`. Polled again, it takes the next entry.
    #[must_use]
    pub fn fail_ready(self, error: impl Into<E>) -> Self
    where
        E: Clone + Send + Sync + 'static,
    {
        let error = error.into();
        self.fail_ready_with(move || error.clone())
    }

    /// A clone's first poll fails with what `make` makes, for errors that are not `Clone`.
    #[must_use]
    pub fn fail_ready_with(self, make: impl Fn() -> E + Send + Sync + 'static) -> Self {
        self.readiness(Readiness::Fails(Arc::new(make)))
    }

    /// At most `n` clones are ready at once: another is pending until one of them is called or dropped. Default: no
    /// limit.
    ///
    /// # Panics
    /// If `n` is 0.
    #[must_use]
    pub fn reservations(self, n: usize) -> Self {
        assert!(n > 0, "reservations is 0, but must be 1 or more: no clone would ever be ready");
        let mut woken = Vec::new();
        {
            let mut state = self.shared.lock();
            state.max_reserved = n;
            state.wake_for_room(&mut woken);
        }
        woken.into_iter().for_each(Waker::wake);
        self
    }

    fn readiness(self, readiness: Readiness<E>) -> Self {
        self.shared.lock().readiness.push(readiness);
        self
    }
}

/// The services that follow the script.
impl<A, E> Script<A, E> {
    /// A service for any request, which it drops in `call`.
    ///
    /// # Panics
    /// `call` panics without readiness, or if the script has no step.
    pub fn service<Req>(&self) -> Scripted<Req, A, E> {
        Scripted::new(self.shared.clone(), None, |answer| answer)
    }

    /// A service that takes its steps from `choose`, given the request and the attempt's number, from 0 over all
    /// attempts of the script. The script's own steps are not used; its readiness, `delay` and `hold` are.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() {
    /// use tower::ServiceExt;
    /// use tower_sluice_test::{Script, Step};
    ///
    /// let script = Script::new();
    /// let echo = script.service_by(|request: &u32, _| match request {
    ///     0 => Step::fail("no zeros"),
    ///     n => Step::answer(*n),
    /// });
    /// assert_eq!(echo.clone().oneshot(7).await.unwrap(), 7);
    /// assert_eq!(echo.oneshot(0).await.unwrap_err().to_string(), "no zeros");
    /// # }
    /// ```
    pub fn service_by<Req>(
        &self,
        choose: impl Fn(&Req, usize) -> Step<A, E> + Send + Sync + 'static,
    ) -> Scripted<Req, A, E> {
        Scripted::new(self.shared.clone(), Some(Arc::new(choose)), |answer| answer)
    }
}

/// What the test does while attempts run.
impl<A, E> Script<A, E> {
    /// Lets the `n` attempts go on that have been held for longest; returns how many there were. One that starts
    /// later is not affected: wait for it with [`started`](Self::started).
    pub fn release(&self, n: usize) -> usize {
        self.release_where(n, |_| true)
    }

    /// Lets every attempt go on that is held now; returns how many.
    pub fn release_all(&self) -> usize {
        self.release(usize::MAX)
    }

    /// Lets attempt `id` go on; returns whether it was held.
    pub fn release_attempt(&self, id: usize) -> bool {
        self.release_where(1, |attempt| attempt.id == id) == 1
    }

    fn release_where(&self, n: usize, which: impl Fn(&Attempt) -> bool) -> usize {
        let mut released = 0;
        let mut woken = Vec::new();
        {
            let mut state = self.shared.lock();
            let held = state.attempts.iter_mut().filter(|entry| entry.held && which(&entry.record));
            for entry in held.take(n) {
                entry.held = false;
                released += 1;
                woken.extend(entry.waker.take());
            }
        }
        woken.into_iter().for_each(Waker::wake);
        released
    }

    /// Holds nothing any more, attempts and readiness, now and later, whatever the script says.
    pub fn open(&self) {
        self.shared.lock().opened = true;
        self.release_all();
        self.release_ready(usize::MAX);
    }

    /// Attempt `id` does `step` from now on, instead of its own; returns whether it was running. If `step` panics in
    /// `call`, it panics in the next poll.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() {
    /// use tower::ServiceExt;
    /// use tower_sluice_test::{Script, Step};
    ///
    /// let script = Script::new().never();
    /// let first = tokio::spawn(script.service().oneshot("a"));
    /// let second = tokio::spawn(script.service().oneshot("b"));
    /// script.started(2).await;
    /// assert!(script.end(1, Step::answer("second")) && script.end(0, Step::fail("reset")));
    /// assert_eq!(second.await.unwrap().unwrap(), "second");
    /// assert_eq!(first.await.unwrap().unwrap_err().to_string(), "reset");
    /// # }
    /// ```
    pub fn end(&self, id: usize, step: Step<A, E>) -> bool {
        let (waker, before) = {
            let mut state = self.shared.lock();
            match state.attempts.get_mut(id) {
                Some(entry) if entry.record.outcome == Outcome::Running => {
                    entry.held = false;
                    (entry.waker.take(), entry.instead.replace(step))
                }
                _ => return false,
            }
        };
        drop(before);
        waker.into_iter().for_each(Waker::wake);
        true
    }

    /// Lets the `n` clones become ready that have been held for longest; returns how many there were.
    pub fn release_ready(&self, n: usize) -> usize {
        let mut woken = Vec::new();
        {
            let mut state = self.shared.lock();
            for waiter in state.waiters.values_mut().filter(|waiter| waiter.held).take(n) {
                waiter.held = false;
                woken.push(waiter.waker.clone());
            }
        }
        let released = woken.len();
        woken.into_iter().for_each(Waker::wake);
        released
    }

    /// Waits until `n` attempts have started, counted from the beginning.
    pub async fn started(&self, n: usize) {
        self.wait_until(|| self.calls() >= n).await;
    }

    /// Waits until `n` attempts have ended, in whichever way, counted from the beginning.
    pub async fn ended(&self, n: usize) {
        self.wait_until(|| self.shared.lock().ends.len() >= n).await;
    }

    async fn wait_until(&self, done: impl Fn() -> bool) {
        loop {
            // Made before the look, so that a change in between is not missed.
            let changed = self.shared.changed.notified();
            if done() {
                return;
            }
            changed.await;
        }
    }
}

/// The records.
impl<A, E> Script<A, E> {
    /// How many attempts were started.
    pub fn calls(&self) -> usize {
        self.shared.lock().attempts.len()
    }

    /// How many attempts run: were started, and have neither ended nor been dropped.
    pub fn running(&self) -> usize {
        self.shared.lock().running
    }

    /// The most attempts that ever ran at once.
    pub fn peak(&self) -> usize {
        self.shared.lock().peak
    }

    /// When each attempt started, in order, counted from [`new`](Self::new).
    pub fn starts(&self) -> Vec<Duration> {
        self.shared.lock().attempts.iter().map(|entry| entry.record.start).collect()
    }

    /// When attempts ended, in whichever way, in the order in which they did, counted from [`new`](Self::new). For
    /// pairs of start and end see [`attempts`](Self::attempts).
    pub fn ends(&self) -> Vec<Duration> {
        self.shared.lock().ends.clone()
    }

    /// All attempts, in order of start.
    pub fn attempts(&self) -> Vec<Attempt> {
        self.shared.lock().attempts.iter().map(|entry| entry.record.clone()).collect()
    }

    /// How many attempts wait to be released.
    pub fn held_attempts(&self) -> usize {
        self.shared.lock().attempts.iter().filter(|entry| entry.held).count()
    }

    /// How many futures of attempts exist: running, or ended and not yet dropped.
    pub fn futures(&self) -> usize {
        self.shared.lock().futures
    }

    /// How often clones were polled for readiness.
    pub fn ready_polls(&self) -> usize {
        self.shared.lock().ready_polls
    }

    /// How many clones are ready and have not been called: each holds what a real service would keep for it.
    pub fn reserved(&self) -> usize {
        self.shared.lock().reserved
    }

    /// How many clones were polled and wait for a release or for room (not: for a time).
    pub fn waiting_ready(&self) -> usize {
        self.shared.lock().waiters.len()
    }

    /// How many clones of the services exist.
    pub fn instances(&self) -> usize {
        self.shared.lock().instances
    }

    /// What callers did that a service must not be asked to do: calls without readiness, polls after the end.
    pub fn violations(&self) -> Vec<String> {
        self.shared.lock().violations.clone()
    }
}

impl<A, E> Clone for Script<A, E> {
    fn clone(&self) -> Self {
        Self { shared: self.shared.clone() }
    }
}

impl<A> Default for Script<A, Failure> {
    fn default() -> Self {
        Self::new()
    }
}

impl<A, E> fmt::Debug for Script<A, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.shared.lock();
        f.debug_struct("Script")
            .field("calls", &state.attempts.len())
            .field("running", &state.running)
            .field("peak", &state.peak)
            .field("reserved", &state.reserved)
            .finish_non_exhaustive()
    }
}
