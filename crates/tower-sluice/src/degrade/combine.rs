//! Several rules as one reading: each sees enough samples, and the worst counts.

use std::collections::VecDeque;
use std::fmt;
use std::time::Duration;

use super::reading::Reading;
use super::rule::Rule;
use crate::facts::Facts;

/// Windows with too few samples are read together, up to this long.
const MERGE: Duration = Duration::from_secs(10);
/// Windows shorter than this are kept as one, so that a rule keeps few of them however short they are.
const PIECE: Duration = Duration::from_secs(1);

/// The rules of one ladder.
#[derive(Default)]
pub(super) struct Combined {
    rules: Vec<Merging>,
}

impl Combined {
    pub(super) fn push(&mut self, rule: Box<dyn Rule + Send>) {
        self.rules.push(Merging { rule, unread: VecDeque::new() });
    }

    /// The worst of what the rules read; unknown where there is none. Every rule is asked.
    pub(super) fn read(&mut self, facts: &Facts) -> Reading {
        self.rules.iter_mut().map(|rule| rule.read(facts)).max().unwrap_or(Reading::Unknown)
    }
}

impl fmt::Debug for Combined {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Combined").field("rules", &self.rules.len()).finish()
    }
}

/// A rule, and the windows that were too short to read on their own.
struct Merging {
    rule: Box<dyn Rule + Send>,
    unread: VecDeque<Facts>,
}

impl Merging {
    fn read(&mut self, facts: &Facts) -> Reading {
        let mut span =
            self.unread.iter().map(|piece| piece.window).fold(facts.window, Duration::saturating_add);
        while span > MERGE
            && let Some(oldest) = self.unread.pop_front()
        {
            span = span.saturating_sub(oldest.window);
        }
        let reading = if self.unread.is_empty() {
            self.rule.read(facts)
        } else {
            let mut merged = Facts::default();
            self.unread.iter().chain([facts]).for_each(|piece| merged.extend(piece));
            self.rule.read(&merged)
        };
        if reading != Reading::Unknown {
            // Every sample is judged once.
            self.unread.clear();
        } else if let Some(last) = self.unread.back_mut().filter(|last| last.window < PIECE) {
            last.extend(facts);
        } else {
            self.unread.push_back(facts.clone());
        }
        reading
    }
}

#[cfg(test)]
mod tests {
    use super::super::rule;
    use super::*;
    use crate::facts::AttemptFacts;

    fn window(ms: u64, succeeded: u64, transient: u64) -> Facts {
        let mut facts = Facts::from(AttemptFacts { succeeded, transient, ..AttemptFacts::default() });
        facts.window = Duration::from_millis(ms);
        facts
    }

    fn failure_ratio() -> Combined {
        let mut rules = Combined::default();
        rules.push(Box::new(rule::failure_ratio()));
        rules
    }

    /// L2: the worst counts, and slack is read only where every rule reads it.
    #[test]
    fn l2_rules_combine_to_the_worst() {
        use Reading::{Slack, Steady, Strain, Unknown};
        for (a, b, worst) in [
            (Slack, Slack, Slack),
            (Slack, Unknown, Unknown),
            (Unknown, Steady, Steady),
            (Slack, Steady, Steady),
            (Steady, Strain, Strain),
            (Unknown, Strain, Strain),
        ] {
            for (a, b) in [(a, b), (b, a)] {
                let mut rules = Combined::default();
                rules.push(Box::new(move |_: &Facts| a));
                rules.push(Box::new(move |_: &Facts| b));
                assert_eq!(rules.read(&Facts::default()), worst);
            }
        }
        assert_eq!(Combined::default().read(&window(1_000, 100, 0)), Unknown);
    }

    /// L2: nine samples a window are read every third window, each sample once.
    #[test]
    fn l2_short_windows_merge_until_there_are_enough_samples() {
        let mut rules = failure_ratio();
        let readings: Vec<_> = (0..6).map(|_| rules.read(&window(1_000, 9, 0))).collect();
        use Reading::{Slack, Unknown};
        assert_eq!(readings, [Unknown, Unknown, Slack, Unknown, Unknown, Slack]);
        // Ten failures from before the last reading are gone.
        let mut rules = failure_ratio();
        assert_eq!(rules.read(&window(1_000, 10, 10)), Reading::Strain);
        assert_eq!(rules.read(&window(1_000, 20, 0)), Slack);
    }

    /// L2: what is older than 10 s is not merged.
    #[test]
    fn l2_windows_merge_for_up_to_ten_seconds() {
        let mut rules = failure_ratio();
        // Ten windows of one second reach 20 samples in the tenth.
        for _ in 0..9 {
            assert_eq!(rules.read(&window(1_000, 2, 0)), Reading::Unknown);
        }
        assert_eq!(rules.read(&window(1_000, 2, 0)), Reading::Slack);
        let mut rules = failure_ratio();
        for _ in 0..100 {
            assert_eq!(rules.read(&window(1_000, 1, 0)), Reading::Unknown);
            assert!(rules.rules[0].unread.len() <= 10);
        }
        // A window that is longer than that is read alone.
        assert_eq!(rules.read(&window(60_000, 15, 0)), Reading::Unknown);
        assert_eq!(rules.rules[0].unread.len(), 1);
    }

    #[test]
    fn tiny_windows_are_kept_in_few_pieces() {
        let mut rules = failure_ratio();
        for i in 1..=15_000 {
            let samples = u64::from(i % 1_000 == 0);
            assert_eq!(rules.read(&window(1, samples, 0)), Reading::Unknown);
            assert!(rules.rules[0].unread.len() <= 11);
        }
    }

    #[test]
    fn windows_without_end_overflow_nothing() {
        let mut rules = failure_ratio();
        let mut endless = window(0, 1, 0);
        endless.window = Duration::MAX;
        for _ in 0..3 {
            assert_eq!(rules.read(&endless), Reading::Unknown);
        }
    }
}
