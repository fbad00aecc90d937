//! FIFO list of members, with O(1) removal of any member. Policies with a list of idle members use it for their order
//! ([`crate::policy::ThresholdList`]).

use crate::state::Member;

/// Ring of doubly linked members. The ring also contains a *sentinel*, an element that is no member: it follows the
/// last member and precedes the first. So no link is ever empty.
#[derive(Clone, Debug)]
pub struct Line {
    /// Next member, or the sentinel.
    next: Vec<u16>,
    /// Previous member. A member that is its own predecessor is not in the list.
    previous: Vec<u16>,
}

impl Default for Line {
    fn default() -> Self {
        Self::new(0)
    }
}

impl Line {
    /// Creates an empty list for `members` members.
    pub fn new(members: usize) -> Self {
        let mut line = Self { next: Vec::new(), previous: Vec::new() };
        line.clear(members);
        line
    }

    /// Empties the list and sets the number of members. Allocates nothing if it had as many before.
    pub fn clear(&mut self, members: usize) {
        for links in [&mut self.next, &mut self.previous] {
            links.clear();
            links.extend(0..=members as u16);
        }
    }

    /// Returns the index of the sentinel.
    fn sentinel(&self) -> u16 {
        self.next.len() as u16 - 1
    }

    /// Returns true if the member is in the list.
    #[inline]
    fn contains(&self, member: Member) -> bool {
        self.previous[member.index()] != member.0
    }

    /// Appends a member, unless it is in the list.
    #[inline]
    pub fn join(&mut self, member: Member) {
        if self.contains(member) {
            return;
        }
        let sentinel = self.sentinel();
        let last = self.previous[usize::from(sentinel)];
        self.next[usize::from(last)] = member.0;
        self.previous[member.index()] = last;
        self.next[member.index()] = sentinel;
        self.previous[usize::from(sentinel)] = member.0;
    }

    /// Removes a member, if it is in the list.
    #[inline]
    pub fn leave(&mut self, member: Member) {
        if !self.contains(member) {
            return;
        }
        let (previous, next) = (self.previous[member.index()], self.next[member.index()]);
        self.next[usize::from(previous)] = next;
        self.previous[usize::from(next)] = previous;
        self.previous[member.index()] = member.0;
    }

    /// Returns the first member, if any.
    #[inline]
    pub fn first(&self) -> Option<Member> {
        let sentinel = self.sentinel();
        let first = self.next[usize::from(sentinel)];
        (first != sentinel).then_some(Member(first))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    proptest! {
        /// Behaves like a queue with removal of any member.
        // promise: scheduling.5
        #[test]
        fn behaves_as_a_queue(steps in proptest::collection::vec((0..3_u8, 0..9_u16), 0..200)) {
            let mut line = Line::new(9);
            let mut model = VecDeque::new();
            for (step, number) in steps {
                let member = Member(number);
                match step {
                    0 => {
                        line.join(member);
                        if !model.contains(&member) {
                            model.push_back(member);
                        }
                    }
                    1 => {
                        line.leave(member);
                        model.retain(|&other| other != member);
                    }
                    _ => {
                        if let Some(first) = model.pop_front() {
                            line.leave(first);
                        }
                    }
                }
                prop_assert_eq!(line.first(), model.front().copied());
            }
        }
    }
}
