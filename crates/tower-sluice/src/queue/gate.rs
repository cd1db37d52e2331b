//! When the next attempt may start: the hold that a server's Retry-After puts on the line, and the pace.
//!
//! Pure: every step is told the time.

use std::collections::VecDeque;
use std::time::Duration;

use super::time::Tick;

/// At most `most` starts in any window of length `per`.
///
/// The times of the last `most` starts are kept, so that the window is exact and a burst after a quiet time is
/// possible: a start is free once the one `most` before it is `per` ago.
#[derive(Debug)]
struct Pace {
    most: usize,
    per: Duration,
    starts: VecDeque<Tick>,
    /// Granted, not yet started: each will be a start.
    granted: usize,
}

/// What the gate says of the next start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Opens {
    Now,
    /// Not before then.
    At(Tick),
    /// Not before a granted call has started or given up.
    Later,
}

#[derive(Debug, Default)]
pub(super) struct Gate {
    pace: Option<Pace>,
    /// The longest Retry-After that holds the line; none does where this is `None`.
    hold: Option<Duration>,
    held_until: Option<Tick>,
    /// After a hold: how many attempts may run, growing by one a success.
    ramp: Option<usize>,
}

impl Gate {
    pub(super) fn set_pace(&mut self, most: usize, per: Duration) {
        self.pace = Some(Pace { most, per, starts: VecDeque::new(), granted: 0 });
    }

    pub(super) fn set_hold(&mut self, longest: Option<Duration>) {
        self.hold = longest;
    }

    /// Whether a start has to be asked for.
    pub(super) fn guards(&self) -> bool {
        self.pace.is_some() || self.held_until.is_some() || self.ramp.is_some()
    }

    pub(super) fn is_paced(&self) -> bool {
        self.pace.is_some()
    }

    /// Whether any start depends on the time.
    pub(super) fn is_timed(&self) -> bool {
        self.pace.is_some() || self.held_until.is_some()
    }

    pub(super) fn opens(&mut self, now: Tick) -> Opens {
        if let Some(until) = self.held_until {
            if now < until {
                return Opens::At(until);
            }
            self.held_until = None;
        }
        self.pace.as_mut().map_or(Opens::Now, |pace| pace.opens(now))
    }

    /// A slot was granted to a call that has yet to be polled.
    pub(super) fn granted(&mut self) {
        if let Some(pace) = &mut self.pace {
            pace.granted += 1;
        }
    }

    /// A granted call gave up before it started.
    pub(super) fn returned(&mut self) {
        if let Some(pace) = &mut self.pace {
            pace.granted = pace.granted.saturating_sub(1);
        }
    }

    /// A granted call starts.
    pub(super) fn started(&mut self, now: Tick) {
        if let Some(pace) = &mut self.pace {
            pace.granted = pace.granted.saturating_sub(1);
            if pace.starts.len() == pace.most {
                pace.starts.pop_front();
            }
            pace.starts.push_back(now);
        }
    }

    /// A server asked to be left alone for `delay`. `true` where the line is now held until a later time than it was.
    pub(super) fn hold(&mut self, delay: Duration, now: Tick) -> bool {
        if delay.is_zero() || self.hold.is_none_or(|longest| delay > longest) {
            return false;
        }
        let until = now.after(delay);
        if self.held_until.is_some_and(|held| held >= until) {
            return false;
        }
        self.held_until = Some(until);
        self.ramp = Some(1);
        true
    }

    pub(super) fn held_until(&self, now: Tick) -> Option<Tick> {
        self.held_until.filter(|until| now < *until)
    }

    /// An attempt succeeded: after a hold, one more may run.
    pub(super) fn succeeded(&mut self, limit: usize, now: Tick) {
        if self.held_until(now).is_some() {
            return;
        }
        if let Some(ramp) = &mut self.ramp {
            *ramp += 1;
            if *ramp >= limit {
                self.ramp = None;
            }
        }
    }

    /// How many attempts may run at once, of a limit.
    pub(super) fn limit(&self, limit: usize) -> usize {
        self.ramp.map_or(limit, |ramp| ramp.min(limit))
    }
}

impl Pace {
    fn opens(&mut self, now: Tick) -> Opens {
        let free = self.most.saturating_sub(self.granted);
        if free == 0 {
            return Opens::Later;
        }
        // The start that has to be out of the window before `granted + 1` more may begin.
        match self.starts.len().checked_sub(free) {
            None => Opens::Now,
            Some(i) => {
                let free_at = self.starts[i].after(self.per);
                if now >= free_at { Opens::Now } else { Opens::At(free_at) }
            }
        }
    }
}

#[cfg(all(test, not(sluice_loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn start(gate: &mut Gate, now: Tick) -> bool {
        let open = gate.opens(now) == Opens::Now;
        if open {
            gate.granted();
            gate.started(now);
        }
        open
    }

    proptest! {
        /// Q18: in any window of length `per` there are at most `most` starts, and none is held back without need.
        #[test]
        fn no_window_holds_more_starts_than_may_be(
            most in 1_usize..6,
            gaps in prop::collection::vec(0_u64..7, 1..200),
        ) {
            let mut gate = Gate::default();
            gate.set_pace(most, Duration::from_nanos(10));
            let (mut now, mut starts) = (Tick(0), Vec::<Tick>::new());
            for gap in gaps {
                now = Tick(now.0 + gap);
                let in_window = starts.iter().filter(|t| t.0 + 10 > now.0).count();
                prop_assert_eq!(start(&mut gate, now), in_window < most);
                if in_window < most {
                    starts.push(now);
                }
            }
        }
    }

    #[test]
    fn a_granted_call_counts_before_it_starts_and_not_after_it_gives_up() {
        let mut gate = Gate::default();
        gate.set_pace(2, Duration::from_nanos(10));
        gate.granted();
        gate.granted();
        assert_eq!(gate.opens(Tick(0)), Opens::Later);
        gate.returned();
        assert_eq!(gate.opens(Tick(0)), Opens::Now);
        gate.started(Tick(3));
        gate.granted();
        gate.started(Tick(4));
        assert_eq!(gate.opens(Tick(5)), Opens::At(Tick(13)));
    }

    #[test]
    fn q15_a_hold_is_never_shortened_and_ends_in_a_ramp() {
        let mut gate = Gate::default();
        gate.set_hold(Some(Duration::from_nanos(100)));
        assert!(!gate.hold(Duration::from_nanos(101), Tick(0)), "longer than may be: ignored");
        assert!(!gate.hold(Duration::ZERO, Tick(0)));
        assert!(gate.hold(Duration::from_nanos(50), Tick(0)));
        assert!(!gate.hold(Duration::from_nanos(20), Tick(10)));
        assert_eq!(gate.opens(Tick(49)), Opens::At(Tick(50)));
        gate.succeeded(3, Tick(49));
        assert_eq!((gate.opens(Tick(50)), gate.limit(3)), (Opens::Now, 1));
        gate.succeeded(3, Tick(51));
        assert_eq!(gate.limit(3), 2);
        gate.succeeded(3, Tick(52));
        assert!(!gate.guards());
        assert_eq!(gate.limit(3), 3);
    }
}
