use std::future::poll_fn;
use std::task::Poll;
use std::time::Duration;

use tokio::task::yield_now;
use tower_service::Service;

use super::drive::{Driven, Driver, MOST_POLLS, settle};
use super::report::{Check, Report};
use super::runner::Probe;
use crate::script::{Script, Scripted, Step};

/// Longer than any delay that a layer takes in a call: what is pending still is stuck. On a paused clock it costs
/// nothing.
const PATIENCE: Duration = Duration::from_secs(600);

/// What is woken is polled at once; a timer is a millisecond late at most.
const AT_ONCE: Duration = Duration::from_millis(1);

/// Calls that are made at once, so that some wait in line.
const CROWD: usize = 8;

pub(super) async fn run<Req, A, E, Res, S, L>(
    check: Check,
    probe: &Probe<Req, A, E, Res>,
    layer: &L,
    report: &mut Report,
) where
    Req: 'static,
    A: 'static,
    E: 'static,
    Res: 'static,
    L: Fn(Scripted<Req, A, E, Res>) -> S,
    S: Service<Req> + Clone + Send + Sync + 'static,
{
    let mut case = Case { check, probe, layer, report };
    match check {
        Check::Spin => case.spin().await,
        Check::Readiness => case.readiness().await,
        Check::ReadyStays => case.ready_stays().await,
        Check::Wakeup => case.wakeup().await,
        Check::Cancel => {
            case.cancel().await;
            case.cancel_in_a_crowd().await;
            case.cancel_before_a_retry().await;
        }
        Check::Panic => case.panic().await,
        Check::ReadyError => case.ready_error().await,
        Check::IdleReadiness => case.idle_readiness().await,
    }
}

struct Case<'a, Req, A, E, Res, L> {
    check: Check,
    probe: &'a Probe<Req, A, E, Res>,
    layer: &'a L,
    report: &'a mut Report,
}

/// Where a call is when it is dropped.
#[derive(Clone, Copy)]
enum Stage {
    Ready,
    Called,
    AwaitsReadiness,
    Running,
    Ended,
}

impl Stage {
    const ALL: [Self; 5] = [Self::Ready, Self::Called, Self::AwaitsReadiness, Self::Running, Self::Ended];

    fn as_str(self) -> &'static str {
        match self {
            Self::Ready => "polled ready and not called",
            Self::Called => "called and not polled",
            Self::AwaitsReadiness => "while the readiness below was awaited",
            Self::Running => "while an attempt ran",
            Self::Ended => "after its end",
        }
    }
}

impl<Req, A, E, Res, S, L> Case<'_, Req, A, E, Res, L>
where
    Req: 'static,
    A: 'static,
    E: 'static,
    Res: 'static,
    L: Fn(Scripted<Req, A, E, Res>) -> S,
    S: Service<Req> + Clone + Send + Sync + 'static,
{
    fn add(&mut self, what: impl Into<String>) {
        self.report.add(self.check, what);
    }

    fn build(&self, script: &Script<A, E>) -> S {
        (self.layer)((self.probe.service)(script))
    }

    fn answer(&self) -> Step<A, E> {
        let answer = self.probe.answer.clone();
        Step::answer_with(move || answer())
    }

    fn failure(&self) -> Step<A, E> {
        let failure = self.probe.failure.clone();
        Step::fail_with(move || failure())
    }

    /// Readiness, call and answer on one clone, which is dropped with the call.
    fn call<'a>(&self, service: S) -> Driver<'a> {
        Driver::new(oneshot(service, (self.probe.request)()))
    }

    /// Takes up calls without readiness, and polls after the end; returns whether there were any.
    fn take_up(&mut self, script: &Script<A, E>) -> bool {
        let violations = script.violations();
        for what in &violations {
            self.report.add(Check::Readiness, what.clone());
        }
        !violations.is_empty()
    }

    /// What `driven` shows of a call that has to end. A panic of the script itself is taken up elsewhere.
    fn must_end(&mut self, driven: &Driven, script: &Script<A, E>, when: &str) -> bool {
        let misused = self.take_up(script);
        match driven {
            Driven::Done { .. } => return true,
            Driven::Pending => self.add(format!("a call did not end within {PATIENCE:?}: {when}")),
            Driven::Spinning => {
                self.report.add(Check::Spin, format!("a call wakes itself over and over: {when}"))
            }
            Driven::Panicked(_) if misused => {}
            Driven::Panicked(message) => self.add(format!("a call panicked ({message}): {when}")),
        }
        false
    }

    async fn spin(&mut self) {
        let never = || Script::typed().step(Step::never());
        let unready = || Script::typed().step(self.answer()).ready_held();
        for (script, when) in [(never(), "an attempt runs"), (unready(), "the service below is not ready")] {
            let mut call = self.call(self.build(&script));
            let driven = call.drive(Duration::ZERO).await;
            self.take_up(&script);
            if driven == Driven::Spinning {
                self.add(format!("a call wakes itself over and over while {when}"));
                return;
            }
            // By tasks, if not by the call.
            let before = polls(&script);
            for _ in 0..MOST_POLLS {
                settle().await;
            }
            if polls(&script) - before > MOST_POLLS {
                self.add(format!("the service below is polled over and over while {when}"));
                return;
            }
            if call.drive(PATIENCE).await == Driven::Spinning {
                self.add(format!("a call wakes itself over and over, later, while {when}"));
                return;
            }
        }
    }

    async fn readiness(&mut self) {
        let answers = || Script::typed().step(self.answer());
        let fails = || Script::typed().step(self.failure()).step(self.failure()).step(self.answer());
        for (script, when) in
            [(answers(), "attempts succeed"), (fails(), "two attempts fail, then they succeed")]
        {
            let request = &self.probe.request;
            let service = &mut self.build(&script);
            // One service, call after call, as a connection has it.
            let mut in_turn = Driver::new(async {
                for _ in 0..3 {
                    if ready(service).await {
                        let _ = service.call(request()).await;
                    }
                }
                true
            });
            let driven = in_turn.drive(PATIENCE).await;
            drop(in_turn);
            if !self.must_end(&driven, &script, when) {
                return;
            }
            // The ready one is called, and its clone kept: the usual way to call from a `'static` future.
            let mut swapped = Driver::new(async {
                for _ in 0..3 {
                    if ready(service).await {
                        let clone = service.clone();
                        let mut ready = std::mem::replace(service, clone);
                        let _ = ready.call(request()).await;
                    }
                }
                true
            });
            let driven = swapped.drive(PATIENCE).await;
            drop(swapped);
            if !self.must_end(&driven, &script, when) {
                return;
            }
            if script.calls() == 0 {
                self.add("the service below was never called: nothing can be checked");
                return;
            }
        }
    }

    async fn ready_stays(&mut self) {
        let script = Script::typed().step(self.answer());
        let mut service = self.build(&script);
        let mut polls = Driver::new(async {
            if !ready(&mut service).await {
                return true;
            }
            for _ in 0..3 {
                yield_now().await;
                let again = poll_fn(|cx| Poll::Ready(service.poll_ready(cx))).await;
                if !matches!(again, Poll::Ready(Ok(()))) {
                    return false;
                }
            }
            true
        });
        let driven = polls.drive(PATIENCE).await;
        if driven == (Driven::Done { ok: false }) {
            self.add("it was ready, and in a further poll before `call` it was not");
        }
        self.must_end(&driven, &script, "its readiness is polled");
    }

    async fn wakeup(&mut self) {
        for moved in [false, true] {
            let task = if moved { ", after it had moved to another task" } else { "" };

            // The readiness below is awaited: in `poll_ready` or in the call, as the layer likes.
            let script = Script::typed().step(self.answer()).ready_held();
            let mut call = self.call(self.build(&script));
            let driven = call.drive_until(PATIENCE, || script.waiting_ready() > 0).await;
            // A layer may answer by itself instead of waiting.
            if driven != Driven::Pending {
                self.must_end(&driven, &script, "the service below is not ready");
            } else if script.waiting_ready() == 0 {
                self.add("a call waits, and the service below was not asked whether it is ready");
            } else {
                let driven =
                    release(&mut call, moved, || script.open(), || script.waiting_ready() == 0).await;
                if script.waiting_ready() > 0 {
                    self.add(format!("a call was not woken when the service below became ready{task}"));
                } else if driven == Driven::Pending {
                    let driven = call.drive(PATIENCE).await;
                    self.must_end(&driven, &script, "the service below became ready");
                }
            }

            let script = Script::typed().step(self.answer().held());
            let mut call = self.call(self.build(&script));
            let driven = call.drive_until(PATIENCE, || script.held_attempts() > 0).await;
            if driven != Driven::Pending {
                self.must_end(&driven, &script, "an attempt runs");
            } else if script.held_attempts() == 0 {
                self.add("a call waits, and the service below was not called");
            } else {
                // It is held from `call` on; its waker is there from its first poll on.
                call.drive(Duration::ZERO).await;
                let driven = release(&mut call, moved, || script.open(), || script.running() == 0).await;
                if script.running() > 0 {
                    self.add(format!("a call was not woken when its attempt could go on{task}"));
                } else if driven == Driven::Pending {
                    let driven = call.drive(PATIENCE).await;
                    self.must_end(&driven, &script, "its attempt ended");
                }
            }
        }
    }

    async fn cancel(&mut self) {
        for stage in Stage::ALL {
            let when = stage.as_str();
            let (mut script, service) = self.at(stage);
            let mut first = None;
            for _ in 0..self.probe.rounds {
                self.drop_at(stage, &script, service.clone()).await;
                settle().await;
                // A layer may keep one instance of its own. What each drop adds is a leak.
                let kept = (script.reserved(), script.instances());
                let first = *first.get_or_insert(kept);
                let leaks = [
                    (script.running() > 0, "an attempt goes on"),
                    (script.futures() > 0, "the future of an attempt is kept"),
                    (kept.0 > first.0, "readiness of the service below is kept"),
                    (kept.1 > first.1, "a clone of the service below is kept"),
                ];
                for (_, leak) in leaks.iter().filter(|(seen, _)| *seen) {
                    self.add(format!("{leak} although its call was dropped ({when})"));
                }
                if leaks.iter().any(|(seen, _)| *seen) {
                    return;
                }
            }
            script = script.step(self.answer());
            script.open();
            let before = script.calls();
            let driven = self.call(service.clone()).drive(PATIENCE).await;
            let after = format!("after {} calls were dropped ({when})", self.probe.rounds);
            if self.must_end(&driven, &script, &after) && script.calls() == before {
                self.add(format!("a call is turned away {after}"));
            }
            drop(service);
            self.all_gone(&script, when).await;
        }
    }

    /// A service over a script that lets calls come to `stage`, and no further.
    fn at(&self, stage: Stage) -> (Script<A, E>, S) {
        let script = Script::typed();
        let script = match stage {
            Stage::Ready | Stage::Called | Stage::Ended => script.step(self.answer()),
            Stage::AwaitsReadiness => script.step(self.answer()).ready_held(),
            Stage::Running => script.step(Step::never()),
        };
        let service = self.build(&script);
        (script, service)
    }

    async fn drop_at(&self, stage: Stage, script: &Script<A, E>, mut service: S) {
        let request = (self.probe.request)();
        match stage {
            Stage::Ready => {
                Driver::new(async { ready(&mut service).await }).drive(PATIENCE).await;
            }
            Stage::Called => {
                let unpolled = Driver::new(async {
                    if ready(&mut service).await {
                        drop(service.call(request));
                    }
                    true
                });
                { unpolled }.drive(PATIENCE).await;
            }
            Stage::AwaitsReadiness => {
                self.call(service).drive_until(PATIENCE, || script.waiting_ready() > 0).await;
            }
            Stage::Running => {
                let mut call = self.call(service);
                call.drive_until(PATIENCE, || script.running() > 0).await;
                call.drive(Duration::ZERO).await;
            }
            Stage::Ended => {
                self.call(service).drive(PATIENCE).await;
            }
        }
    }

    /// Everything of the layer was dropped: nothing of the service below is left.
    async fn all_gone(&mut self, script: &Script<A, E>, when: &str) {
        settle().await;
        tokio::time::sleep(AT_ONCE).await;
        settle().await;
        if script.instances() > 0 {
            self.add(format!("the service below outlives the last clone, after calls were dropped ({when})"));
        }
    }

    /// Calls that wait for each other: dropped while they wait, and when they were woken and not yet polled.
    async fn cancel_in_a_crowd(&mut self) {
        for granted in [false, true] {
            let script = Script::typed().step(self.answer()).hold();
            let service = self.build(&script);
            let mut calls: Vec<_> = (0..CROWD).map(|_| self.call(service.clone())).collect();
            for call in &mut calls {
                call.drive(Duration::ZERO).await;
            }
            let when = if granted {
                // The first to end wakes whoever is next, who is dropped instead of polled.
                script.release(1);
                let ends = calls.iter().position(Driver::is_woken);
                if let Some(ends) = ends {
                    calls.remove(ends).drive(Duration::ZERO).await;
                }
                let next = calls.iter().position(Driver::is_woken);
                next.map(|next| calls.remove(next));
                "a waiting call was woken and dropped before it was polled"
            } else {
                for dropped in [CROWD - 1, CROWD / 2, 1, 0] {
                    drop(calls.remove(dropped));
                }
                "other calls, waiting and running, were dropped"
            };
            script.open();
            let mut pending: Vec<_> = calls.into_iter().collect();
            for _ in 0..CROWD {
                let mut still = Vec::new();
                for mut call in pending {
                    match call.drive(Duration::ZERO).await {
                        Driven::Pending => still.push(call),
                        driven => {
                            self.must_end(&driven, &script, when);
                        }
                    }
                }
                pending = still;
            }
            if let Some(mut call) = pending.into_iter().next() {
                let driven = call.drive(PATIENCE).await;
                self.must_end(&driven, &script, when);
            }
        }
    }

    /// A call that waits before its next attempt, where the layer makes one.
    async fn cancel_before_a_retry(&mut self) {
        let script = Script::typed().step(self.failure());
        let service = self.build(&script);
        let mut call = self.call(service.clone());
        if call.drive(Duration::ZERO).await != Driven::Pending || script.running() > 0 || script.calls() == 0
        {
            return;
        }
        let before = script.calls();
        drop((call, service));
        tokio::time::sleep(PATIENCE).await;
        if script.calls() > before {
            self.add("an attempt is made for a call that was dropped while it waited for it");
        }
        self.all_gone(&script, "before its next attempt").await;
    }

    async fn panic(&mut self) {
        let text = "planted by the probe";
        for (step, when) in [
            (Step::panic(text), "the future of the service below had panicked"),
            (Step::panic_in_call(text), "`call` of the service below had panicked"),
        ] {
            let script = Script::typed().step(step);
            let service = self.build(&script);
            for _ in 0..3 {
                // It may panic, or give an error of its own.
                self.call(service.clone()).drive(PATIENCE).await;
            }
            let script = script.step(self.answer());
            let driven = self.call(service.clone()).drive(PATIENCE).await;
            self.must_end(&driven, &script, &format!("after {when}"));
            if script.running() > 0 {
                self.add(format!("an attempt is counted as running after {when}"));
            }
        }
    }

    async fn ready_error(&mut self) {
        let failure = self.probe.failure.clone();
        let script = Script::typed().step(self.answer()).fail_ready_with(move || failure()).ready();
        let service = self.build(&script);
        for when in ["the readiness below failed", "the readiness below had failed before"] {
            let driven = self.call(service.clone()).drive(PATIENCE).await;
            self.must_end(&driven, &script, when);
        }
    }

    async fn idle_readiness(&mut self) {
        let script = Script::typed().step(self.answer());
        let service = self.build(&script);
        let mut idle = Vec::new();
        for _ in 0..self.probe.rounds {
            let mut clone = service.clone();
            Driver::new(async { ready(&mut clone).await }).drive(Duration::ZERO).await;
            idle.push(clone);
        }
        settle().await;
        let held = script.reserved();
        if held > 0 {
            self.add(format!("{held} of {} idle clones hold readiness of the service below", idle.len()));
        }
        let driven = self.call(service).drive(PATIENCE).await;
        if self.must_end(&driven, &script, "other clones were polled ready and left idle")
            && script.calls() == 0
        {
            self.add("a call is turned away while other clones were polled ready and left idle");
        }
    }
}

/// Lets go on what `call` waits for, and gives it the time in which it must be woken.
async fn release(
    call: &mut Driver<'_>,
    moved: bool,
    open: impl FnOnce(),
    gone_on: impl Fn() -> bool,
) -> Driven {
    if moved {
        call.move_to_another_task();
        call.drive(Duration::ZERO).await;
    }
    open();
    call.drive_until(AT_ONCE, gone_on).await
}

/// Whether `service` became ready, as opposed to failed.
async fn ready<S: Service<Req>, Req>(service: &mut S) -> bool {
    poll_fn(|cx| service.poll_ready(cx)).await.is_ok()
}

fn polls<A, E>(script: &Script<A, E>) -> usize {
    script.ready_polls() + script.attempts().iter().map(|attempt| attempt.polls).sum::<usize>()
}

async fn oneshot<S: Service<Req>, Req>(mut service: S, request: Req) -> bool {
    if !ready(&mut service).await {
        return false;
    }
    let call = service.call(request);
    // As tower's `oneshot`: the call has to go on without it.
    drop(service);
    call.await.is_ok()
}
