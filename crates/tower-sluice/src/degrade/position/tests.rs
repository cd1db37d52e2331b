use std::collections::HashMap;

use proptest::prelude::*;

use super::*;
use Reading::{Slack, Steady, Strain, Unknown};

const READINGS: [Reading; 4] = [Slack, Unknown, Steady, Strain];

fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// Times that fit into short sequences: a relapse doubles 2 s up to 8 s, 12 s of calm bring it back.
fn short_pace() -> Pace {
    Pace { settle: secs(2), hold: secs(2), idle_hold: secs(4) }
}

/// A ladder read once a second, from second 1 on.
struct Walk {
    position: Position,
    start: Instant,
    second: u64,
    moves: Vec<(u64, usize, Cause)>,
}

impl Walk {
    fn new(rungs: usize, pace: Pace) -> Self {
        let position = Position::top_of(rungs, pace);
        Self { position, start: Instant::now(), second: 0, moves: Vec::new() }
    }

    fn read(&mut self, reading: Reading, times: u64) -> &mut Self {
        for _ in 0..times {
            self.second += 1;
            if let Some(moved) = self.position.step(reading, self.start + secs(self.second)) {
                assert_eq!(moved.from.abs_diff(moved.to), 1, "never more than one rung a reading");
                self.moves.push((self.second, moved.to, moved.cause));
            }
        }
        self
    }

    fn rung(&self) -> usize {
        self.position.rung()
    }
}

/// L3: at once, and then one rung each `settle`.
#[test]
fn l3_strain_moves_down_at_once_and_then_only_after_settling() {
    let mut walk = Walk::new(4, Pace::default());
    walk.read(Strain, 20);
    let falls = [(1, 1), (4, 2), (7, 3)].map(|(second, rung)| (second, rung, Cause::Strain));
    assert_eq!(walk.moves, falls);
}

/// L3: a reading between two falls changes nothing about the second one's time.
#[test]
fn l3_settling_runs_on_whatever_is_read_meanwhile() {
    let mut walk = Walk::new(4, Pace::default());
    walk.read(Strain, 1).read(Slack, 2).read(Strain, 1);
    assert_eq!(walk.moves, [(1, 1, Cause::Strain), (4, 2, Cause::Strain)]);
}

/// L3: `settle` separates two falls; a relapse right after a rise is answered at once.
#[test]
fn l3_a_fall_after_a_rise_is_not_held_up() {
    let mut walk = Walk::new(4, Pace { settle: secs(60), ..Pace::default() });
    walk.read(Strain, 1).read(Slack, 59).read(Strain, 1);
    assert_eq!(walk.moves.last(), Some(&(61, 1, Cause::Strain)));
}

/// L4: slack has to hold for ten seconds, for each rung anew.
#[test]
fn l4_slack_moves_up_one_rung_each_hold() {
    let mut walk = Walk::new(4, Pace::default());
    walk.read(Strain, 7).read(Slack, 40);
    let rises = [(17, 2), (27, 1), (37, 0)].map(|(second, rung)| (second, rung, Cause::Slack));
    assert_eq!(walk.moves[3..], rises);
}

/// L4, case_p1: strain or steady restarts the hold; one good window readmits nothing.
#[test]
fn l4_strain_and_steady_restart_the_hold() {
    for other in [Steady, Strain] {
        let mut walk = Walk::new(2, Pace::default());
        walk.read(Strain, 1).read(Slack, 9).read(other, 1).read(Slack, 9);
        assert_eq!(walk.rung(), 1, "{other}");
        walk.read(Slack, 1);
        assert_eq!(walk.rung(), 0, "{other}");
    }
}

/// L4: the time of an unknown window neither breaks the hold nor counts for it.
#[test]
fn l4_unknown_neither_breaks_nor_counts() {
    let mut walk = Walk::new(2, Pace::default());
    walk.read(Strain, 1).read(Slack, 6).read(Unknown, 10).read(Slack, 3);
    assert_eq!(walk.rung(), 1);
    walk.read(Slack, 1);
    assert_eq!(walk.moves.last(), Some(&(21, 0, Cause::Slack)));
}

/// case_p1: alternating good and bad stays down.
#[test]
fn case_p1_alternating_readings_stay_at_the_bottom() {
    let mut walk = Walk::new(3, Pace::default());
    for _ in 0..300 {
        walk.read(Strain, 1).read(Slack, 1);
    }
    assert_eq!(walk.moves.len(), 2);
    assert_eq!(walk.rung(), 2);
}

/// case_p2: one reading moves up at most one rung, however long the window that it covers.
#[test]
fn case_p2_a_long_window_of_slack_is_one_rung() {
    let mut walk = Walk::new(3, Pace::default());
    walk.read(Strain, 4);
    assert_eq!(walk.rung(), 2);
    let moved = walk.position.step(Slack, walk.start + secs(100_000));
    assert_eq!(moved.map(|moved| (moved.from, moved.to)), Some((2, 1)));
    assert_eq!(walk.position.step(Slack, walk.start + secs(100_001)), None);
}

/// L4: a relapse doubles the hold up to four times, and a minute without strain brings it back.
#[test]
fn l4_relapses_double_the_hold_and_calm_brings_it_back() {
    let mut walk = Walk::new(2, Pace::default());
    walk.read(Strain, 1);
    for hold in [10, 20, 40, 40] {
        let down = walk.second;
        walk.read(Slack, hold);
        assert_eq!(walk.moves.last(), Some(&(down + hold, 0, Cause::Slack)));
        walk.read(Strain, 1);
        assert_eq!(walk.rung(), 1);
    }
    // 59 s are not enough, and a minute from the last strain is.
    walk.read(Steady, 59);
    assert_eq!(walk.position.hold, secs(40));
    walk.read(Slack, 1);
    assert_eq!(walk.position.hold, secs(10));
    walk.read(Slack, 9);
    assert_eq!(walk.rung(), 0);
}

/// L4: strain later than twice the hold after a rise is news, no relapse; and one rise relapses once.
#[test]
fn l4_late_strain_is_no_relapse() {
    for (quiet, hold) in [(19, 20), (20, 10)] {
        let mut walk = Walk::new(2, Pace::default());
        walk.read(Strain, 1).read(Slack, 10).read(Steady, quiet).read(Strain, 5);
        assert_eq!(walk.position.hold, secs(hold), "{quiet}");
    }
}

/// L4: silence is not slack, but it ends in a try.
#[test]
fn l4_silence_moves_up_one_rung_each_idle_hold() {
    let mut walk = Walk::new(4, Pace::default());
    walk.read(Strain, 7).read(Unknown, 130);
    let rises = [(47, 2), (87, 1), (127, 0)].map(|(second, rung)| (second, rung, Cause::Silence));
    assert_eq!(walk.moves[3..], rises);
    // Steady restarts silence, too.
    let mut walk = Walk::new(2, Pace::default());
    walk.read(Strain, 1).read(Unknown, 39).read(Steady, 1).read(Unknown, 39);
    assert_eq!(walk.rung(), 1);
    assert_eq!(walk.read(Unknown, 1).rung(), 0);
}

/// case_p6: readings that tell nothing do not erase what was known before.
#[test]
fn case_p6_unknown_is_no_recovery() {
    let mut walk = Walk::new(3, Pace::default());
    walk.read(Strain, 4).read(Unknown, 39);
    assert_eq!(walk.rung(), 2);
}

/// L5: a forced level is where the ladder goes on, and nothing from before counts.
#[test]
fn l5_a_jump_begins_anew_on_its_rung() {
    let mut walk = Walk::new(4, Pace::default());
    walk.read(Strain, 4).read(Slack, 9);
    let at = walk.start + secs(walk.second);
    let moved = walk.position.jump(3, at);
    assert_eq!(moved, Some(Move { from: 2, to: 3, cause: Cause::Forced }));
    assert_eq!(walk.position.jump(3, at), None);
    walk.read(Slack, 9);
    assert_eq!(walk.rung(), 3);
    assert_eq!(walk.read(Slack, 1).rung(), 2);
    // Any rung beyond the last is the last.
    assert_eq!(walk.position.jump(usize::MAX, at).map(|moved| moved.to), Some(3));
}

/// Times at their ends overflow nothing.
#[test]
fn endless_holds_never_move_and_zero_ones_move_each_reading() {
    let never = Pace { settle: Duration::MAX, hold: Duration::MAX, idle_hold: Duration::MAX };
    let mut walk = Walk::new(4, never);
    walk.read(Strain, 100).read(Slack, 10_000).read(Unknown, 10_000).read(Strain, 100);
    assert_eq!(walk.moves, [(1, 1, Cause::Strain)]);
    let none = Pace { settle: Duration::ZERO, hold: Duration::ZERO, idle_hold: Duration::ZERO };
    let mut walk = Walk::new(4, none);
    walk.read(Strain, 3);
    assert_eq!(walk.rung(), 3);
    walk.read(Slack, 1).read(Unknown, 1).read(Slack, 1);
    assert_eq!(walk.rung(), 0);
}

/// The rules L3 and L4 once more, asked of the whole history each time instead of kept in state.
struct Naive {
    pace: Pace,
    bottom: usize,
    /// When, what, and the rung after it.
    history: Vec<(Instant, Reading, usize)>,
}

impl Naive {
    fn rung_before(&self, i: usize) -> usize {
        if i == 0 { 0 } else { self.history[i - 1].2 }
    }

    fn moved(&self, i: usize) -> isize {
        self.history[i].2 as isize - self.rung_before(i) as isize
    }

    /// The hold at `now`, after the strain readings so far.
    fn hold(&self, now: Instant) -> Duration {
        let mut hold = self.pace.hold;
        let mut last_strain = None;
        for (i, &(at, reading, _)) in self.history.iter().enumerate() {
            if reading != Strain {
                continue;
            }
            if last_strain.is_some_and(|last| at - last >= 6 * self.pace.hold) {
                hold = self.pace.hold;
            }
            last_strain = Some(at);
            // The last rise, if no strain lies between.
            let rise = (0..i).rev().take_while(|&j| self.history[j].1 != Strain).find(|&j| self.moved(j) < 0);
            if rise.is_some_and(|j| at - self.history[j].0 <= 2 * hold) {
                hold = (2 * hold).min(4 * self.pace.hold);
            }
        }
        let calm = last_strain.is_some_and(|last| now - last >= 6 * self.pace.hold);
        if calm { self.pace.hold } else { hold }
    }

    fn step(&mut self, reading: Reading, now: Instant) -> usize {
        let (rung, n) = (self.rung_before(self.history.len()), self.history.len());
        let breaks = |i: usize| matches!(self.history[i].1, Strain | Steady) || self.moved(i) != 0;
        let covered = |i: usize| match i {
            0 => Duration::ZERO,
            i => self.history[i].0 - self.history[i - 1].0,
        };
        let rung = match reading {
            Strain => {
                let fall = (0..n).rev().find(|&i| self.moved(i) > 0);
                let settled = fall.is_none_or(|i| now - self.history[i].0 >= self.pace.settle);
                if settled { (rung + 1).min(self.bottom) } else { rung }
            }
            Steady => rung,
            Slack => {
                let this = self.history.last().map_or(Duration::ZERO, |&(last, ..)| now - last);
                let before = (0..n).rev().take_while(|&i| !breaks(i)).filter(|&i| self.history[i].1 == Slack);
                let held = this + before.map(covered).sum::<Duration>();
                if held >= self.hold(now) { rung.saturating_sub(1) } else { rung }
            }
            Unknown => {
                let since = (0..n).rev().find(|&i| breaks(i)).or_else(|| (n > 0).then_some(0));
                let quiet = since.map_or(Duration::ZERO, |i| now - self.history[i].0);
                if quiet >= self.pace.idle_hold { rung.saturating_sub(1) } else { rung }
            }
        };
        self.history.push((now, reading, rung));
        rung
    }
}

/// What holds after every reading: L8.
fn check_step(before: usize, position: &Position, reading: Reading, moved: Option<Move>) {
    let after = position.rung();
    match moved {
        None => assert_eq!(before, after),
        Some(moved) => {
            assert_eq!((moved.from, moved.to), (before, after));
            let expected = match reading {
                Strain => (before + 1, Cause::Strain),
                Slack => (before - 1, Cause::Slack),
                Unknown => (before - 1, Cause::Silence),
                Steady => panic!("steady moves nothing"),
            };
            assert_eq!((moved.to, moved.cause), expected, "no path skips a rung");
        }
    }
    assert!(after <= position.bottom);
    assert!(position.hold >= position.pace.hold && position.hold <= 4 * position.pace.hold);
}

/// A way up exists: slack leads to the best rung within the longest hold a rung, and so does silence.
fn check_way_up(position: &Position, now: Instant) {
    for (reading, each) in [(Slack, 4 * position.pace.hold), (Unknown, position.pace.idle_hold)] {
        let mut position = position.clone();
        let most = each.as_secs() * position.rung() as u64;
        let mut now = now;
        for _ in 0..most {
            now += secs(1);
            position.step(reading, now);
        }
        assert_eq!(position.rung(), 0, "after {most} s of {reading}");
    }
}

/// L8, case_p3: every sequence of up to eight readings, on ladders of one to four rungs, does what the naive model
/// does, skips no rung, and leaves a way up.
#[test]
fn l8_every_short_sequence_follows_the_rules() {
    fn walk(position: &Position, naive: &mut Naive, now: Instant, left: u32) {
        check_way_up(position, now);
        if left == 0 {
            return;
        }
        for reading in READINGS {
            let (mut position, before, now) = (position.clone(), position.rung(), now + secs(1));
            let moved = position.step(reading, now);
            check_step(before, &position, reading, moved);
            assert_eq!(position.rung(), naive.step(reading, now), "{:?}", naive.history);
            walk(&position, naive, now, left - 1);
            naive.history.pop();
        }
    }
    for rungs in 1..=4 {
        let mut naive = Naive { pace: short_pace(), bottom: rungs - 1, history: Vec::new() };
        walk(&Position::top_of(rungs, short_pace()), &mut naive, Instant::now(), 8);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// L8: so does every long one, with windows of any length and a clock that stands still at times.
    #[test]
    fn l8_long_sequences_follow_the_rules(
        rungs in 1_usize..6,
        short in any::<bool>(),
        readings in prop::collection::vec(
            (prop::sample::select(READINGS.to_vec()), 1_usize..15, prop_oneof![8 => Just(1_000_u64), 2 => 0..9_000_u64]),
            1..40),
    ) {
        let pace = if short { short_pace() } else { Pace::default() };
        let mut position = Position::top_of(rungs, pace);
        let mut naive = Naive { pace, bottom: rungs - 1, history: Vec::new() };
        let mut now = Instant::now();
        for (reading, times, ms) in readings {
            for _ in 0..times {
                now += Duration::from_millis(ms);
                let before = position.rung();
                let moved = position.step(reading, now);
                check_step(before, &position, reading, moved);
                prop_assert_eq!(position.rung(), naive.step(reading, now));
            }
            check_way_up(&position, now);
        }
    }
}

#[test]
fn a_clock_that_runs_backwards_stands_still() {
    let mut position = Position::top_of(3, Pace::default());
    let start = Instant::now() + secs(100);
    assert!(position.step(Strain, start).is_some());
    assert!(position.step(Strain, start - secs(50)).is_none());
    assert!(position.step(Slack, start - secs(90)).is_none());
    assert!(position.step(Strain, start + secs(3)).is_some());
}

/// What decides the future of a position where silence is not read, with times as ages, and ages that make no
/// difference any more as one.
fn essence(position: &Position, now: Instant) -> (usize, [Option<Duration>; 5]) {
    let age = |at: Option<Instant>, most: Duration| at.map(|at| now - at).filter(|&age| age < most);
    let strain = age(position.last_strain, 6 * position.pace.hold);
    let hold = if strain.is_some() { position.hold } else { position.pace.hold };
    let ages = [
        Some(hold),
        Some(position.slack.min(4 * position.pace.hold)),
        strain,
        age(position.last_fall, position.pace.settle),
        age(position.last_rise, 8 * position.pace.hold + secs(1)),
    ];
    (position.rung(), ages)
}

/// L8: flapping changes the level at most nine times in any 60 s, whatever the order of strain, steady and slack, from
/// any state that can be reached. Exact: every state of the four-rung ladder is walked, and the most changes in the
/// next k seconds found from those in the next k - 1.
#[test]
fn l8_no_input_changes_the_level_more_than_nine_times_a_minute() {
    let inputs = [Slack, Steady, Strain];
    let start = Instant::now();
    let first = Position::top_of(4, Pace::default());
    let mut numbers = HashMap::from([(essence(&first, start), 0_usize)]);
    let mut states = vec![(first, start)];
    let mut next: Vec<[(usize, u32); 3]> = Vec::new();
    while let Some((position, now)) = states.get(next.len()).cloned() {
        next.push(inputs.map(|reading| {
            let (mut position, now) = (position.clone(), now + secs(1));
            let moved = position.step(reading, now).is_some();
            let number = *numbers.entry(essence(&position, now)).or_insert_with(|| {
                states.push((position, now));
                states.len() - 1
            });
            (number, u32::from(moved))
        }));
    }
    assert!(states.len() > 500, "the walk went round: {} states", states.len());
    let mut most = vec![0_u32; states.len()];
    for _ in 0..60 {
        most = next
            .iter()
            .map(|ways| ways.map(|(to, moved)| moved + most[to]).into_iter().max().unwrap())
            .collect();
    }
    assert_eq!(most.into_iter().max(), Some(9));
}

/// Section 7's flapping dependency, read as strain and slack: at most 7 changes in the first minute, and for
/// half-periods up to 30 s none in the last five of ten.
#[test]
fn l8_a_flapping_dependency_is_left_alone() {
    for (half, first_minute, last_five) in [(3, 3, 0), (20, 7, 0), (30, 6, 0), (60, 3, 15)] {
        let mut walk = Walk::new(4, Pace::default());
        while walk.second < 600 {
            walk.read(Strain, half).read(Slack, half);
        }
        let moves = |from, to| walk.moves.iter().filter(|&&(at, ..)| at > from && at <= to).count();
        assert_eq!((moves(0, 60), moves(300, 600)), (first_minute, last_five), "{half}: {:?}", walk.moves);
    }
}
