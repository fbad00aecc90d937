//! Order of members by queue. Members with equal queues form a stretch of one array. The stretches are sorted by
//! the length of these queues, so the boundaries between them define the order. A *length* is a queue length. A
//! *place* is an index of the array.
//!
//! A member moves to a neighbouring stretch in two steps: it swaps places with the member at the boundary, and the
//! boundary moves by one place to its other side.

use super::Member;

/// Number of distinct lengths. All longer queues count as equal: their order hardly matters.
const LENGTHS: usize = 1024;
/// The last length, of all queues that are at least this long.
pub const LONGEST: usize = LENGTHS - 1;
/// Number of lengths that a long move checks at once.
const GROUP: usize = 16;
/// Place of a member that is not ranked.
const NOWHERE: u16 = u16::MAX;

/// State of the member with this index, and the member at the place with the same index. With one array for both, one
/// bounds check covers all reads at an index.
#[derive(Clone, Copy, Debug)]
pub struct Cell {
    /// The member's queue. An unranked member has one, too.
    pub queue: u32,
    /// The member's place; [`NOWHERE`] if it is not ranked.
    place: u16,
    /// The member at this place.
    pub holder: u16,
}

impl Cell {
    /// Returns the queue length of the member's stretch.
    #[inline]
    fn length(self) -> usize {
        (self.queue as usize).min(LONGEST)
    }
}

/// Sets the number of members, and unranks all. Members keep their queues.
pub fn resize(cells: &mut Vec<Cell>, members: usize) {
    cells.resize(members, Cell { queue: 0, place: NOWHERE, holder: 0 });
    cells.iter_mut().for_each(|cell| cell.place = NOWHERE);
}

/// Swaps `member`, which is at place `from`, with the member at place `to`.
#[inline(always)]
pub fn exchange(cells: &mut [Cell], member: Member, from: usize, to: usize) {
    let displaced = std::mem::replace(&mut cells[to].holder, member.0);
    cells[from].holder = displaced;
    cells[usize::from(displaced)].place = from as u16;
    cells[member.index()].place = to as u16;
}

/// Boundaries of the stretches of one order. Several orders may share the cells, each from its own first place.
#[derive(Clone, Debug)]
pub struct Stretches {
    /// First place after the stretch of each length.
    ends: [u16; LENGTHS],
    /// First place of the order.
    pub start: u16,
    /// Length of the shortest queue; [`LONGEST`] without members.
    pub least: u16,
}

impl Default for Stretches {
    fn default() -> Self {
        Self { ends: [0; LENGTHS], start: 0, least: LONGEST as u16 }
    }
}

impl Stretches {
    /// Ranks the members in `ranked` from place `start` on. Returns the place after them.
    pub fn rank(
        &mut self,
        cells: &mut [Cell],
        start: u16,
        ranked: impl Iterator<Item = Member> + Clone,
    ) -> u16 {
        self.start = start;
        self.ends.fill(0);
        // A counting sort by queue length. First counts the members of each length.
        for member in ranked.clone() {
            self.ends[cells[member.index()].length()] += 1;
        }
        let mut place = start;
        for end in self.ends.iter_mut() {
            // Turns the number of members into the start of the stretch. Each member placed below advances it by one,
            // so that it becomes the end.
            let members = std::mem::replace(end, place);
            place += members;
        }
        for member in ranked {
            let end = &mut self.ends[cells[member.index()].length()];
            cells[usize::from(*end)].holder = member.0;
            cells[member.index()].place = *end;
            *end += 1;
        }
        self.least = 0;
        self.raise_least();
        place
    }

    /// Returns the number of members with the shortest queue.
    #[inline]
    pub fn ties(&self) -> usize {
        // The remainder changes nothing, but saves the bounds check, here and below.
        usize::from(self.ends[usize::from(self.least) % LENGTHS] - self.start)
    }

    /// Returns the number of members with a queue of at least `length`, which is above 0.
    #[inline]
    pub fn members_from(&self, length: u16) -> usize {
        let below = usize::from(length).clamp(1, LONGEST) - 1;
        usize::from(self.ends[LONGEST] - self.ends[below])
    }

    /// Returns the first place of the members with a queue of this length, and their number.
    #[inline]
    pub fn stretch(&self, length: u16) -> (usize, usize) {
        let length = usize::from(length).min(LONGEST);
        let first = if length == 0 { self.start } else { self.ends[length - 1] };
        (first.into(), usize::from(self.ends[length] - first))
    }

    /// Returns the length of the shortest queues longer than `length`; `None` if there are none.
    #[inline]
    pub fn next_length(&self, length: u16) -> Option<u16> {
        let end = self.ends[usize::from(length).min(LONGEST)];
        if end == self.ends[LONGEST] {
            return None;
        }
        (length + 1..LENGTHS as u16).find(|&next| self.ends[usize::from(next)] != end)
    }

    /// Returns true if the shortest queues have reached the last length, or no member is ranked. The first stretch then
    /// has members with different queues.
    #[inline]
    pub fn is_full(&self) -> bool {
        usize::from(self.least) >= LONGEST
    }

    /// Ends a run of choices, during which only the caller changes the cells: `ties` members keep the shortest queue.
    /// Members that received a task follow, with a queue longer by one. Returns true if the shortest length changed.
    #[inline]
    pub fn close(&mut self, ties: u32) -> bool {
        self.ends[usize::from(self.least) % LENGTHS] = self.start + ties as u16;
        ties == 0 && self.raise_least()
    }

    /// Adds a task to a member. Returns true if the shortest length changed.
    #[inline]
    pub fn add(&mut self, cells: &mut [Cell], member: Member) -> bool {
        let cell = &mut cells[member.index()];
        let length = cell.queue as usize;
        cell.queue = cell.queue.saturating_add(1);
        let place = cell.place;
        length < LONGEST && place != NOWHERE && self.up(cells, member, place, length)
    }

    /// Moves a member from `length` to the next one: to the last place of its stretch, whose boundary then
    /// passes it. Returns true if the shortest length changed.
    #[inline(always)]
    fn up(&mut self, cells: &mut [Cell], member: Member, place: u16, length: usize) -> bool {
        let end = &mut self.ends[length % LENGTHS];
        *end -= 1;
        let end = *end;
        exchange(cells, member, place.into(), end.into());
        end == self.start && self.raise_least()
    }

    /// Sets a member's queue. Returns true if the shortest length changed.
    #[inline(always)]
    pub fn set(&mut self, cells: &mut [Cell], member: Member, queue: u32) -> bool {
        let (cell, members) = (cells[member.index()], cells.len());
        let place = cell.place;
        // The most frequent case: a ranked member has one task less. The place of an unranked one is beyond the array.
        if cell.queue == queue.wrapping_add(1)
            && let Some(end) = self.ends[..LONGEST].get_mut(queue as usize)
            && usize::from(place) < members
        {
            cells[member.index()].queue = queue;
            // The end of the shorter stretch is the first place of the member's own. The member moves there, and the
            // boundary passes it.
            exchange(cells, member, place.into(), (*end).into());
            *end += 1;
            let is_lower = (queue as u16) < self.least;
            self.least = self.least.min(queue as u16);
            return is_lower;
        }
        cell.queue != queue && self.set_slow(cells, member, queue)
    }

    /// Same as [`Stretches::set`], for the less frequent changes.
    #[inline(never)]
    fn set_slow(&mut self, cells: &mut [Cell], member: Member, queue: u32) -> bool {
        let cell = &mut cells[member.index()];
        let from = cell.length();
        cell.queue = queue;
        let (to, place) = (cell.length(), cell.place);
        if from == to || place == NOWHERE {
            return false;
        }
        match from.abs_diff(to) < GROUP {
            true => self.step(cells, (member, place), (from, to)),
            false => self.jump(cells, (member, place), (from, to)),
        }
        let before = self.least;
        self.least = before.min(to as u16);
        self.raise_least();
        self.least != before
    }

    /// Same as [`Stretches::jump`], for a move by a few lengths. Tests no stretch on the way for members, because a
    /// mispredicted branch costs more than a swap of a member with itself.
    #[inline(always)]
    fn step(
        &mut self,
        cells: &mut [Cell],
        (member, mut place): (Member, u16),
        (from, to): (usize, usize),
    ) {
        // Up: to the last place of each stretch, whose boundary then passes it.
        for end in self.ends.get_mut(from..to).unwrap_or_default() {
            *end -= 1;
            exchange(cells, member, place.into(), (*end).into());
            place = *end;
        }
        // Down: to the first place of the stretch above each boundary, which then passes it.
        for end in self.ends.get_mut(to..from).unwrap_or_default().iter_mut().rev() {
            exchange(cells, member, place.into(), (*end).into());
            place = *end;
            *end += 1;
        }
    }

    /// Moves a member from its place by several lengths. Does not change the shortest length.
    fn jump(
        &mut self,
        cells: &mut [Cell],
        (member, mut place): (Member, u16),
        (from, to): (usize, usize),
    ) {
        // Most lengths on the way have no members. There the boundary passes the member, which keeps its place.
        // `move_to` puts the member at a place and returns that place.
        let mut move_to = |end: u16| {
            if place != end {
                exchange(cells, member, place.into(), end.into());
                place = end;
            }
            end
        };
        // Up: to the last place of each stretch, whose boundary then passes it. Boundaries are sorted, so a group
        // without members has equal ones.
        let mut up = |ends: &mut [u16]| ends.iter_mut().for_each(|end| *end = move_to(*end - 1));
        let on_the_way = self.ends.get_mut(from..to).unwrap_or_default(); // empty for a move down
        let (groups, rest) = on_the_way.as_chunks_mut::<GROUP>();
        for group in groups {
            // Moves the first boundary. If the last one was equal, all are: they pass the member without a swap.
            let first = group[0];
            up(&mut group[..1]);
            match group[GROUP - 1] == first {
                true => *group = [first - 1; GROUP],
                false => up(&mut group[1..]),
            }
        }
        up(rest);
        // Down: to the first place of the stretch above each boundary, which then passes it.
        let mut down =
            |ends: &mut [u16]| ends.iter_mut().rev().for_each(|end| *end = move_to(*end) + 1);
        let on_the_way = self.ends.get_mut(to..from).unwrap_or_default();
        let (rest, groups) = on_the_way.as_rchunks_mut::<GROUP>();
        for group in groups.iter_mut().rev() {
            let last = group[GROUP - 1];
            down(&mut group[GROUP - 1..]);
            match group[0] == last {
                true => *group = [last + 1; GROUP],
                false => down(&mut group[..GROUP - 1]),
            }
        }
        down(rest);
    }

    /// Corrects the shortest length, which may be too low: skips lengths without members. Returns true if it changed.
    fn raise_least(&mut self) -> bool {
        let before = self.least;
        while usize::from(self.least) < LONGEST && self.ends[usize::from(self.least)] == self.start
        {
            self.least += 1;
        }
        self.least != before
    }
}
