use std::time::Duration;

use tokio::time::Instant;
use tower_sluice_backoff::{Backoff, Draw};

use super::state::{Cause, CauseKind, LinkState};

/// The numbers that a machine goes by.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plan {
    pub(super) backoff: Backoff,
    /// The longest first wait after the loss of a stable link; zero for none.
    pub(super) first_wait: Duration,
    /// Tries before the link gives up by itself, the first included.
    pub(super) max_attempts: Option<u32>,
    pub(super) min_uptime: Duration,
    pub(super) seed: u64,
}

/// What can happen to a link.
#[derive(Clone, Debug)]
pub(super) enum Event {
    /// Somebody wants the link.
    Wanted,
    /// The time of a wait is over.
    Due,
    /// The connector succeeded.
    Opened,
    /// The connection's context is restored.
    Restored,
    /// The try that is under way failed.
    Failed(Cause),
    /// The connection of this generation is lost.
    Lost { generation: u64, cause: Cause },
    /// An operator wants no more waiting.
    RetryNow,
    /// An operator wants no more tries.
    GiveUp,
    /// The driver is gone, and with it whatever could connect.
    NotDriven,
}

/// The states of a link and the ways between them, without a clock and without I/O.
///
/// What the shell does follows from the state alone: in `Connecting` it runs the connector, in `Restoring` the
/// restoring, in `Connected` the watches over the connection, in `Waiting` one timer. It drops the old when the state
/// changes, so that no timer outlives its wait and no try its cause.
#[derive(Debug)]
pub(super) struct Machine {
    plan: Plan,
    state: LinkState,
    /// Tries that failed since the link last was stable.
    attempt: u32,
    /// Connections that were restored.
    generation: u64,
    /// The last wait, which decorrelated jitter builds on.
    previous: Duration,
    /// Waits drawn: each has its own number of the series.
    waits: u64,
    /// What last brought the link down, also while it connects again.
    last: Option<Cause>,
}

/// What a transition left behind.
///
/// It is handed out rather than dropped: it may own the last reference to an error of the user, whose drop is not
/// ours to run under a lock.
#[derive(Debug)]
pub(super) struct Left {
    _state: LinkState,
    _cause: Option<Cause>,
}

impl Machine {
    pub(super) fn new(plan: Plan) -> Self {
        Self {
            plan,
            state: LinkState::Disconnected { cause: CauseKind::NotStarted.into() },
            attempt: 0,
            generation: 0,
            previous: plan.backoff.base(),
            waits: 0,
            last: None,
        }
    }

    pub(super) fn state(&self) -> &LinkState {
        &self.state
    }

    /// What last brought the link down, if anything has.
    pub(super) fn last_cause(&self) -> Option<&Cause> {
        self.last.as_ref()
    }

    /// Takes an event. Returns what was left behind, or `None` where the event means nothing in this state.
    pub(super) fn step(&mut self, event: &Event, now: Instant) -> Option<Left> {
        match (&self.state, event) {
            // Anything -> Disconnected, for good: nobody is left to make a try.
            (LinkState::Disconnected { cause }, _) if cause.kind() == CauseKind::NotDriven => None,
            (_, Event::NotDriven) => Some(self.disconnect(CauseKind::NotDriven.into())),

            // Disconnected -> Connecting: the first caller of a lazy link, or the start of an eager one. What was
            // given up stays given up, however many want it.
            (LinkState::Disconnected { cause }, Event::Wanted) if cause.kind() == CauseKind::NotStarted => {
                Some(self.start_try())
            }

            // Disconnected -> Connecting: an operator starts afresh.
            (LinkState::Disconnected { .. }, Event::RetryNow) => {
                self.attempt = 0;
                self.previous = self.plan.backoff.base();
                Some(self.start_try())
            }

            // Connecting -> Restoring: open is not restored.
            (LinkState::Connecting { .. }, Event::Opened) => {
                Some(self.enter(LinkState::Restoring { attempt: self.attempt }))
            }

            // Restoring -> Connected. The counter stays as it is: whether the link is stable only its life will show.
            (LinkState::Restoring { .. }, Event::Restored) => {
                self.generation = self.generation.saturating_add(1);
                let generation = self.generation;
                Some(self.enter(LinkState::Connected { since: now, generation }))
            }

            // Connecting, Restoring -> Waiting or Disconnected.
            (LinkState::Connecting { .. } | LinkState::Restoring { .. }, Event::Failed(cause)) => {
                Some(self.fail(cause.clone(), now))
            }

            // Connected -> Waiting or Disconnected. A late word about an earlier connection does not end this one.
            (LinkState::Connected { since, generation }, Event::Lost { generation: lost, cause })
                if generation == lost =>
            {
                if now.saturating_duration_since(*since) >= self.plan.min_uptime {
                    // A stable link was lost: the first wait is short, the ones after it grow from the start.
                    self.attempt = 0;
                    self.previous = self.plan.backoff.base();
                    let wait = self.draw_first();
                    Some(self.wait(wait, cause.clone(), now))
                } else {
                    // One that did not live is a try that failed, or a peer that accepts and resets would be called
                    // at full speed.
                    Some(self.fail(cause.clone(), now))
                }
            }

            // Waiting -> Connecting: due. A timer of an earlier wait that still fires finds `until` ahead of it.
            (LinkState::Waiting { until, .. }, Event::Due) if now >= *until => Some(self.start_try()),

            // Waiting -> Connecting: an operator ends the wait. The counter goes on.
            (LinkState::Waiting { .. }, Event::RetryNow) => Some(self.start_try()),

            // Anything but an operator's own Disconnected -> Disconnected. A lazy link that was given up does not
            // start by itself either.
            (LinkState::Disconnected { cause }, Event::GiveUp) if cause.kind() != CauseKind::NotStarted => {
                None
            }
            (_, Event::GiveUp) => Some(self.disconnect(CauseKind::GaveUp.into())),

            // What is left comes late, or says what is so already.
            (
                LinkState::Disconnected { .. },
                Event::Wanted
                | Event::Due
                | Event::Opened
                | Event::Restored
                | Event::Failed(_)
                | Event::Lost { .. },
            )
            | (
                LinkState::Connecting { .. },
                Event::Wanted | Event::Due | Event::Restored | Event::Lost { .. } | Event::RetryNow,
            )
            | (
                LinkState::Restoring { .. },
                Event::Wanted | Event::Due | Event::Opened | Event::Lost { .. } | Event::RetryNow,
            )
            | (
                LinkState::Connected { .. },
                Event::Wanted
                | Event::Due
                | Event::Opened
                | Event::Restored
                | Event::Failed(_)
                | Event::Lost { .. }
                | Event::RetryNow,
            )
            | (
                LinkState::Waiting { .. },
                Event::Wanted
                | Event::Due
                | Event::Opened
                | Event::Restored
                | Event::Failed(_)
                | Event::Lost { .. },
            ) => None,
        }
    }

    /// The only place where a try starts.
    fn start_try(&mut self) -> Left {
        self.enter(LinkState::Connecting { attempt: self.attempt })
    }

    /// A try failed, at whatever point: the same counter, the same limit, the same backoff.
    fn fail(&mut self, cause: Cause, now: Instant) -> Left {
        self.attempt = self.attempt.saturating_add(1);
        if self.plan.max_attempts.is_some_and(|most| self.attempt >= most) {
            return self.disconnect(cause);
        }
        let sample = self.draw().sample(self.waits);
        let wait = self.plan.backoff.delay(self.attempt, self.previous, sample);
        self.previous = wait;
        self.wait(wait, cause, now)
    }

    /// Uniform on (0, `first_wait`]: links that lose one server at the same instant do not return in the same one.
    fn draw_first(&self) -> Duration {
        let least = self.plan.first_wait.min(Duration::from_nanos(1));
        self.draw().sample(self.waits).within(least..=self.plan.first_wait)
    }

    fn draw(&self) -> Draw {
        Draw { seed: self.plan.seed, call: 0 }
    }

    fn wait(&mut self, wait: Duration, cause: Cause, now: Instant) -> Left {
        self.waits = self.waits.wrapping_add(1);
        self.enter(LinkState::Waiting { attempt: self.attempt, until: after(now, wait), cause })
    }

    fn disconnect(&mut self, cause: Cause) -> Left {
        self.enter(LinkState::Disconnected { cause })
    }

    fn enter(&mut self, next: LinkState) -> Left {
        let cause = next.cause().cloned().and_then(|cause| self.last.replace(cause));
        Left { _state: std::mem::replace(&mut self.state, next), _cause: cause }
    }
}

/// `now + wait`, or an instant that nobody lives to see, where the sum is none: `Duration::MAX` means never.
pub(super) fn after(now: Instant, wait: Duration) -> Instant {
    const THIRTY_YEARS: Duration = Duration::from_secs(30 * 365 * 86_400);
    now.checked_add(wait).unwrap_or(now + THIRTY_YEARS)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIN_UPTIME: Duration = Duration::from_secs(10);

    fn plan() -> Plan {
        Plan {
            backoff: Backoff::connection(),
            first_wait: Duration::from_secs(2),
            max_attempts: None,
            min_uptime: MIN_UPTIME,
            seed: 7,
        }
    }

    fn failed() -> Event {
        Event::Failed(CauseKind::ConnectFailed.into())
    }

    fn lost(generation: u64) -> Event {
        Event::Lost { generation, cause: CauseKind::Closed.into() }
    }

    fn machine(plan: Plan, events: &[Event], now: Instant) -> Machine {
        let mut machine = Machine::new(plan);
        for event in events {
            assert!(machine.step(event, now).is_some(), "{event:?} in {}", machine.state());
        }
        machine
    }

    fn connected(plan: Plan, now: Instant) -> Machine {
        machine(plan, &[Event::Wanted, Event::Opened, Event::Restored], now)
    }

    /// How long the machine waits from `now`, and for which try.
    fn waits(machine: &Machine, now: Instant) -> (u32, Duration) {
        match machine.state() {
            LinkState::Waiting { attempt, until, .. } => (*attempt, *until - now),
            other => panic!("not waiting but {other}"),
        }
    }

    #[test]
    fn c8_every_event_in_every_state() {
        let start = Instant::now();
        let states: [(&str, Vec<Event>); 8] = [
            ("not started", vec![]),
            ("connecting", vec![Event::Wanted]),
            ("restoring", vec![Event::Wanted, Event::Opened]),
            ("connected", vec![Event::Wanted, Event::Opened, Event::Restored]),
            ("waiting", vec![Event::Wanted, failed()]),
            ("waiting after a loss", vec![Event::Wanted, Event::Opened, Event::Restored, lost(1)]),
            ("given up", vec![Event::Wanted, Event::GiveUp]),
            ("not driven", vec![Event::Wanted, Event::NotDriven]),
        ];
        let events = [
            ("wanted", Event::Wanted),
            ("due", Event::Due),
            ("opened", Event::Opened),
            ("restored", Event::Restored),
            ("failed", failed()),
            ("lost", lost(1)),
            ("an older one lost", lost(0)),
            ("retry now", Event::RetryNow),
            ("give up", Event::GiveUp),
            ("not driven", Event::NotDriven),
        ];
        // Rows are states, columns events; `-` is "means nothing here". `due` comes a minute later.
        #[rustfmt::skip]
        let table = [
            // wanted       due           opened       restored     failed     lost       older  retry now     give up         not driven
            ["connecting", "-",          "-",         "-",         "-",       "-",       "-",   "connecting", "disconnected", "disconnected"],
            ["-",          "-",          "restoring", "-",         "waiting", "-",       "-",   "-",          "disconnected", "disconnected"],
            ["-",          "-",          "-",         "connected", "waiting", "-",       "-",   "-",          "disconnected", "disconnected"],
            ["-",          "-",          "-",         "-",         "-",       "waiting", "-",   "-",          "disconnected", "disconnected"],
            ["-",          "connecting", "-",         "-",         "-",       "-",       "-",   "connecting", "disconnected", "disconnected"],
            ["-",          "connecting", "-",         "-",         "-",       "-",       "-",   "connecting", "disconnected", "disconnected"],
            ["-",          "-",          "-",         "-",         "-",       "-",       "-",   "connecting", "-",            "disconnected"],
            ["-",          "-",          "-",         "-",         "-",       "-",       "-",   "-",          "-",            "-"],
        ];
        for ((state, way), row) in states.iter().zip(table) {
            for ((event, step), expected) in events.iter().zip(row) {
                let mut machine = machine(plan(), way, start);
                let before = format!("{:?}", machine.state());
                let left = machine.step(step, start + Duration::from_secs(60));
                let came = left.as_ref().map_or("-", |_| machine.state().as_str());
                assert_eq!(came, expected, "{event} while {state}");
                if left.is_none() {
                    assert_eq!(format!("{:?}", machine.state()), before, "{event} while {state}");
                }
            }
        }
    }

    #[test]
    fn c8_the_waits_of_the_link_preset_lie_between_the_ends_of_their_draws() {
        let now = Instant::now();
        // R4: wait(k) precedes try k and is drawn on v(k): half of it to all of it.
        let ends =
            [(500, 1_000), (1_000, 2_000), (2_000, 4_000), (4_000, 8_000), (8_000, 16_000), (15_000, 30_000)];
        let mut seen = [(Duration::MAX, Duration::ZERO); 7];
        for seed in 0..500 {
            let mut machine = machine(Plan { seed, ..plan() }, &[Event::Wanted], now);
            for k in 1..=7 {
                machine.step(&failed(), now);
                let (attempt, wait) = waits(&machine, now);
                assert_eq!(attempt, k);
                let (low, high) = ends[(k as usize - 1).min(5)];
                let (low, high) = (Duration::from_millis(low), Duration::from_millis(high));
                assert!(low <= wait && wait <= high, "wait({k}) = {wait:?}");
                let seen = &mut seen[k as usize - 1];
                *seen = (seen.0.min(wait), seen.1.max(wait));
                machine.step(&Event::Due, now + wait);
            }
        }
        // And they are spread over all of it: 500 draws come within 2 % of both ends.
        for (k, (least, most)) in seen.into_iter().enumerate() {
            let (low, high) = ends[k.min(5)];
            let slack = Duration::from_millis((high - low) / 50);
            assert!(least < Duration::from_millis(low) + slack, "{k}: {least:?}");
            assert!(most > Duration::from_millis(high) - slack, "{k}: {most:?}");
        }
    }

    #[test]
    fn c2_the_first_wait_after_a_stable_link_is_lost_is_uniform_up_to_two_seconds() {
        let start = Instant::now();
        let mut tenths = [0; 20];
        for seed in 0..2_000 {
            let mut machine = connected(Plan { seed, ..plan() }, start);
            let now = start + MIN_UPTIME;
            machine.step(&lost(1), now);
            let (attempt, wait) = waits(&machine, now);
            assert_eq!(attempt, 0);
            assert!(Duration::ZERO < wait && wait <= Duration::from_secs(2));
            tenths[(wait.as_nanos().saturating_sub(1) / 100_000_000) as usize] += 1;
        }
        // 100 are expected in each, with a deviation of 10.
        assert!(tenths.iter().all(|n| (55..145).contains(n)), "{tenths:?}");
    }

    #[test]
    fn c2_a_first_wait_of_zero_is_none() {
        let start = Instant::now();
        let mut machine = connected(Plan { first_wait: Duration::ZERO, ..plan() }, start);
        machine.step(&lost(1), start + MIN_UPTIME);
        assert_eq!(waits(&machine, start + MIN_UPTIME), (0, Duration::ZERO));
    }

    #[test]
    fn c1_the_counter_returns_to_zero_only_after_min_uptime_case_o4() {
        let mut now = Instant::now();
        let mut machine = machine(plan(), &[Event::Wanted], now);
        for _ in 0..3 {
            machine.step(&failed(), now);
            now += waits(&machine, now).1;
            machine.step(&Event::Due, now);
        }
        machine.step(&Event::Opened, now);
        machine.step(&Event::Restored, now);

        // One nanosecond short of it: the fourth failure in a row.
        now += MIN_UPTIME - Duration::from_nanos(1);
        machine.step(&lost(1), now);
        let (attempt, wait) = waits(&machine, now);
        assert_eq!(attempt, 4);
        assert!(wait >= Duration::from_secs(4));

        // Exactly so long: stable.
        now += wait;
        for event in [Event::Due, Event::Opened, Event::Restored] {
            machine.step(&event, now);
        }
        now += MIN_UPTIME;
        machine.step(&lost(2), now);
        assert_eq!(waits(&machine, now).0, 0);

        // And from there it grows from the start.
        now += waits(&machine, now).1;
        machine.step(&Event::Due, now);
        machine.step(&failed(), now);
        let (attempt, wait) = waits(&machine, now);
        assert_eq!(attempt, 1);
        assert!(wait <= Duration::from_secs(1));
    }

    #[test]
    fn c2_failed_restores_and_short_lives_count_like_failed_connects() {
        let start = Instant::now();
        let ways: [&[Event]; 3] = [
            &[failed()],
            &[Event::Opened, failed()],
            &[Event::Opened, Event::Restored], // and is lost at once
        ];
        let mut series = Vec::new();
        for way in ways {
            let mut now = start;
            let mut machine = machine(Plan { max_attempts: Some(5), ..plan() }, &[Event::Wanted], now);
            let mut waited = Vec::new();
            loop {
                for event in way {
                    machine.step(event, now);
                }
                if let LinkState::Connected { generation, .. } = *machine.state() {
                    machine.step(&lost(generation), now + Duration::from_millis(1));
                    now += Duration::from_millis(1);
                }
                if matches!(machine.state(), LinkState::Disconnected { .. }) {
                    break;
                }
                let (attempt, wait) = waits(&machine, now);
                waited.push((attempt, wait));
                now += wait;
                assert!(machine.step(&Event::Due, now).is_some());
            }
            series.push(waited);
        }
        // The same counter, the same limit (5 tries have 4 waits), the same draws.
        assert_eq!(series[0].iter().map(|(attempt, _)| *attempt).collect::<Vec<_>>(), [1, 2, 3, 4]);
        assert_eq!(series[0], series[1]);
        assert_eq!(series[0], series[2]);
    }

    #[test]
    fn c3_a_timer_of_an_earlier_wait_starts_nothing() {
        let now = Instant::now();
        let mut machine = machine(plan(), &[Event::Wanted, failed()], now);
        let (_, first) = waits(&machine, now);
        machine.step(&Event::RetryNow, now);
        machine.step(&failed(), now);
        let (_, second) = waits(&machine, now);
        assert!(second > first, "seed 7 draws so");
        assert!(machine.step(&Event::Due, now + first).is_none());
        assert!(machine.step(&Event::Due, now + second).is_some());
    }

    #[test]
    fn c3_retry_now_starts_afresh_only_from_disconnected() {
        let now = Instant::now();
        let mut machine = machine(Plan { max_attempts: Some(3), ..plan() }, &[Event::Wanted, failed()], now);
        machine.step(&Event::RetryNow, now);
        assert!(matches!(machine.state(), LinkState::Connecting { attempt: 1 }));
        machine.step(&failed(), now);
        machine.step(&Event::RetryNow, now);
        machine.step(&failed(), now);
        let LinkState::Disconnected { cause } = machine.state() else { panic!("{}", machine.state()) };
        assert_eq!(cause.kind(), CauseKind::ConnectFailed);
        machine.step(&Event::RetryNow, now);
        assert!(matches!(machine.state(), LinkState::Connecting { attempt: 0 }));
    }

    #[test]
    fn nothing_overflows() {
        let now = Instant::now();
        let endless = Plan {
            backoff: Backoff::exponential(Duration::MAX, Duration::MAX),
            first_wait: Duration::MAX,
            min_uptime: Duration::MAX,
            ..plan()
        };
        let mut machine = connected(endless, now);
        machine.attempt = u32::MAX - 1;
        machine.step(&lost(1), now + Duration::from_secs(86_400));
        assert_eq!(waits(&machine, now).0, u32::MAX);
        machine.step(&Event::RetryNow, now);
        machine.step(&failed(), now);
        let (attempt, wait) = waits(&machine, now);
        assert_eq!(attempt, u32::MAX);
        assert!(wait > Duration::from_secs(86_400 * 365));

        let mut machine = connected(Plan { min_uptime: Duration::ZERO, ..endless }, now);
        machine.step(&lost(1), now);
        assert!(waits(&machine, now).1 > Duration::from_secs(86_400 * 365));
    }
}
