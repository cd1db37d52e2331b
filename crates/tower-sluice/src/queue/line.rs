//! Who comes next: the order of the line, with no clock, no lock and no waker of its own.

use std::collections::BTreeSet;

use slab::Slab;

/// A member's place in memory for as long as it is a member, in the line or not.
pub(super) type Key = u32;

/// In place of a key: none.
const NONE: Key = Key::MAX;

/// In place of a neighbour before: stands in no line.
const OUT: Key = Key::MAX - 1;
/// In place of a neighbour before: stands among those who came back to an earlier place.
const RETURNED: Key = Key::MAX - 2;

#[derive(Debug)]
struct Member<T> {
    order: u64,
    /// A neighbour's key, `NONE` for the head, `OUT` or `RETURNED`.
    before: Key,
    /// A neighbour's key, or `NONE`.
    behind: Key,
    value: T,
}

/// Members, some of whom stand in a line.
///
/// Those who come in order stand in a list, linked through the slab: joining and leaving is O(1) and allocates
/// nothing once the slab has grown. Those who come back to an earlier place stand in a set: O(log n).
#[derive(Debug)]
pub(super) struct Line<T> {
    members: Slab<Member<T>>,
    head: Key,
    tail: Key,
    returned: BTreeSet<(u64, Key)>,
    standing: usize,
}

impl<T> Default for Line<T> {
    fn default() -> Self {
        Self { members: Slab::new(), head: NONE, tail: NONE, returned: BTreeSet::new(), standing: 0 }
    }
}

/// Slots of memory that are kept when the last member leaves.
const KEPT: usize = 1024;

impl<T> Line<T> {
    /// A new member, who does not stand in the line yet.
    pub(super) fn insert(&mut self, order: u64, value: T) -> Key {
        // A slab index fits: four thousand million members would need 200 GB.
        self.members.insert(Member { order, before: OUT, behind: NONE, value }) as Key
    }

    /// The member goes, from the line too if it stands there.
    pub(super) fn remove(&mut self, key: Key) -> T {
        self.leave(key);
        let value = self.members.remove(key as usize).value;
        if self.members.is_empty() && self.members.capacity() > KEPT {
            self.members = Slab::new();
        }
        value
    }

    pub(super) fn get(&self, key: Key) -> &T {
        &self.members[key as usize].value
    }

    pub(super) fn get_mut(&mut self, key: Key) -> &mut T {
        &mut self.members[key as usize].value
    }

    /// How many stand in the line.
    pub(super) fn len(&self) -> usize {
        self.standing
    }

    pub(super) fn is_empty(&self) -> bool {
        self.standing == 0
    }

    /// Joins at the end, with an order no lower than that of anybody who stands there in order.
    pub(super) fn join(&mut self, key: Key, order: u64) {
        debug_assert!(self.tail == NONE || self.members[self.tail as usize].order <= order);
        let member = &mut self.members[key as usize];
        debug_assert_eq!(member.before, OUT);
        member.order = order;
        member.before = self.tail;
        member.behind = NONE;
        match self.tail {
            NONE => self.head = key,
            tail => self.members[tail as usize].behind = key,
        }
        self.tail = key;
        self.standing += 1;
    }

    /// Joins at the place of its own order.
    pub(super) fn rejoin(&mut self, key: Key) {
        let member = &mut self.members[key as usize];
        debug_assert_eq!(member.before, OUT);
        member.before = RETURNED;
        self.returned.insert((member.order, key));
        self.standing += 1;
    }

    /// Who comes next. At the same order, those who came in order go first.
    pub(super) fn front(&self) -> Option<Key> {
        let listed = (self.head != NONE).then(|| (self.members[self.head as usize].order, self.head));
        match (listed, self.returned.first()) {
            (Some((order, _)), Some(&(earlier, key))) if earlier < order => Some(key),
            (Some((_, key)), _) => Some(key),
            (None, returned) => returned.map(|&(_, key)| key),
        }
    }

    /// Leaves the line, if it stands there; stays a member.
    pub(super) fn leave(&mut self, key: Key) {
        let member = &mut self.members[key as usize];
        let behind = member.behind;
        match std::mem::replace(&mut member.before, OUT) {
            OUT => return,
            RETURNED => {
                self.returned.remove(&(member.order, key));
            }
            before => {
                match before {
                    NONE => self.head = behind,
                    before => self.members[before as usize].behind = behind,
                }
                match behind {
                    NONE => self.tail = before,
                    behind => self.members[behind as usize].before = before,
                }
            }
        }
        self.standing -= 1;
    }

    /// Every member, in no order.
    pub(super) fn members(&self) -> impl Iterator<Item = (Key, &T)> {
        self.members.iter().map(|(key, member)| (key as Key, &member.value))
    }

    /// Every member's key, in the order they arrived.
    pub(super) fn by_order(&self) -> Vec<Key> {
        let mut keys: Vec<_> = self.members.iter().map(|(key, member)| (member.order, key as Key)).collect();
        keys.sort_unstable();
        keys.into_iter().map(|(_, key)| key).collect()
    }
}

#[cfg(all(test, not(sluice_loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(Clone, Debug)]
    enum Step {
        Arrive,
        Take,
        Return(usize),
        Leave(usize),
        Back(usize),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            3 => Just(Step::Arrive),
            2 => Just(Step::Take),
            2 => any::<usize>().prop_map(Step::Return),
            1 => any::<usize>().prop_map(Step::Leave),
            1 => any::<usize>().prop_map(Step::Back),
        ];
        prop::collection::vec(step, 0..200)
    }

    proptest! {
        /// Q4, against a sorted vector.
        #[test]
        fn the_order_is_that_of_a_sorted_list(steps in steps()) {
            let mut line = Line::default();
            let mut model: Vec<(u64, u64, Key)> = Vec::new(); // order, tie, key
            let mut out: Vec<(u64, Key)> = Vec::new();
            let mut next = 0;
            for step in steps {
                match step {
                    Step::Arrive => {
                        let key = line.insert(next, ());
                        line.join(key, next);
                        model.push((next, 2 * next, key));
                        next += 1;
                    }
                    Step::Take => {
                        let front = model.iter().min().copied();
                        prop_assert_eq!(line.front(), front.map(|(_, _, key)| key));
                        if let Some((order, tie, key)) = front {
                            line.leave(key);
                            model.retain(|other| other != &(order, tie, key));
                            out.push((order, key));
                        }
                    }
                    Step::Return(which) if !out.is_empty() => {
                        let (order, key) = out.swap_remove(which % out.len());
                        line.rejoin(key);
                        // Behind those in order at the same number, before the next number.
                        model.push((order, u64::MAX, key));
                    }
                    Step::Back(which) if !out.is_empty() => {
                        let (_, key) = out.swap_remove(which % out.len());
                        line.join(key, next);
                        model.push((next, 2 * next, key));
                        next += 1;
                    }
                    Step::Leave(which) if !model.is_empty() => {
                        let (.., key) = model.swap_remove(which % model.len());
                        line.remove(key);
                    }
                    Step::Return(_) | Step::Back(_) | Step::Leave(_) => {}
                }
                prop_assert_eq!(line.len(), model.len());
                prop_assert_eq!(line.is_empty(), model.is_empty());
            }
        }
    }
}
