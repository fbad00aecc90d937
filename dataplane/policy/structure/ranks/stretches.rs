//! The order of members by queue: stretches of one array.

use super::Member;

/// Lengths told apart: from the last on all count as the same, nobody ranks members by what lies beyond.
const LENGTHS: usize = 1024;
pub const LONGEST: usize = LENGTHS - 1;
const NOWHERE: u16 = u16::MAX;

/// What is known of a member, and who stands at the place of the same number: one array, one check of its
/// bounds for all that is read at a place.
#[derive(Clone, Copy, Debug)]
pub struct Cell {
    /// The member's queue, whether it is ranked or not.
    pub queue: u32,
    /// Where the member stands.
    place: u16,
    /// Who stands here.
    pub holder: u16,
}

impl Cell {
    #[inline]
    fn length(self) -> usize {
        (self.queue as usize).min(LONGEST)
    }
}

/// So many members, nobody ranked.
pub fn resize(cells: &mut Vec<Cell>, members: usize) {
    cells.resize(members, Cell { queue: 0, place: NOWHERE, holder: 0 });
    cells.iter_mut().for_each(|cell| cell.place = NOWHERE);
}

/// Puts `member`, whose place is known, at another, and who stands there at its own.
#[inline(always)]
pub fn exchange(cells: &mut [Cell], member: Member, from: usize, to: usize) {
    let other = std::mem::replace(&mut cells[to].holder, member.0);
    cells[from].holder = other;
    cells[usize::from(other)].place = from as u16;
    cells[member.index()].place = to as u16;
}

/// The stretches of one order.
#[derive(Clone, Debug)]
pub struct Stretches {
    /// For each length, the place behind its stretch.
    ends: [u16; LENGTHS],
    /// Where the order starts.
    pub start: u16,
    /// Length of the shortest queue; [`LONGEST`] when there is none.
    pub least: u16,
}

impl Default for Stretches {
    fn default() -> Self {
        Self { ends: [0; LENGTHS], start: 0, least: LONGEST as u16 }
    }
}

impl Stretches {
    /// Ranks `ranked` from the place `start` on; returns the place behind them.
    pub fn rank(
        &mut self,
        cells: &mut [Cell],
        start: u16,
        ranked: impl Iterator<Item = Member> + Clone,
    ) -> u16 {
        self.start = start;
        self.ends.fill(0);
        for member in ranked.clone() {
            self.ends[cells[member.index()].length()] += 1;
        }
        let mut place = start;
        for end in self.ends.iter_mut() {
            // Where the stretch starts; each member placed moves it on, at last to the end.
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

    /// How many members have the shortest queue.
    #[inline]
    pub fn ties(&self) -> usize {
        usize::from(self.ends[usize::from(self.least) % LENGTHS] - self.start)
    }

    /// The shortest queues are so long that they are not told apart, or there are none.
    #[inline]
    pub fn is_full(&self) -> bool {
        usize::from(self.least) >= LONGEST
    }

    /// Of the members with the shortest queue `ties` are left; the others' are longer by one and lie behind.
    /// True when the shortest queue is another length now.
    #[inline]
    pub fn close(&mut self, ties: u32) -> bool {
        self.ends[usize::from(self.least) % LENGTHS] = self.start + ties as u16;
        ties == 0 && self.raise_least()
    }

    /// A member's queue grows by one task. True when the shortest queue is another length now.
    #[inline]
    pub fn add(&mut self, cells: &mut [Cell], member: Member) -> bool {
        let cell = &mut cells[member.index()];
        let length = cell.queue as usize;
        cell.queue = cell.queue.saturating_add(1);
        let place = cell.place;
        length < LONGEST && place != NOWHERE && self.up(cells, member, place, length)
    }

    /// From `length` to the next: to the last place of its stretch, whose border then passes it. True when
    /// the shortest queue is another length now.
    #[inline(always)]
    fn up(&mut self, cells: &mut [Cell], member: Member, place: u16, length: usize) -> bool {
        let end = &mut self.ends[length % LENGTHS];
        *end -= 1;
        let end = *end;
        exchange(cells, member, place.into(), end.into());
        end == self.start && self.raise_least()
    }

    /// A member's queue is this long. True when the shortest queue is another length now.
    #[inline(always)]
    pub fn set(&mut self, cells: &mut [Cell], member: Member, queue: u32) -> bool {
        let (cell, members) = (cells[member.index()], cells.len());
        let place = cell.place;
        // By far the most often, it is shorter by one; a place beyond all of them is that of who is not ranked.
        if cell.queue == queue.wrapping_add(1)
            && let Some(end) = self.ends[..LONGEST].get_mut(queue as usize)
            && usize::from(place) < members
        {
            cells[member.index()].queue = queue;
            exchange(cells, member, place.into(), (*end).into());
            *end += 1;
            let lower = (queue as u16) < self.least;
            self.least = self.least.min(queue as u16);
            return lower;
        }
        cell.queue != queue && self.set_otherwise(cells, member, queue)
    }

    /// As [`Stretches::set`].
    #[inline(never)]
    fn set_otherwise(&mut self, cells: &mut [Cell], member: Member, queue: u32) -> bool {
        let cell = &mut cells[member.index()];
        let from = cell.length();
        cell.queue = queue;
        let to = cell.length();
        from != to && cell.place != NOWHERE && self.jump(cells, member, from, to)
    }

    /// By some lengths at once.
    fn jump(&mut self, cells: &mut [Cell], member: Member, from: usize, to: usize) -> bool {
        let before = self.least;
        for length in from..to {
            self.up(cells, member, cells[member.index()].place, length);
        }
        for length in (to..from).rev() {
            self.down(cells, member, cells[member.index()].place, length);
        }
        self.least = before.min(to as u16);
        self.raise_least();
        self.least != before
    }

    /// From the next length to `length`: to the first place of its stretch, whose border then passes it.
    #[inline(always)]
    fn down(&mut self, cells: &mut [Cell], member: Member, place: u16, length: usize) {
        let end = &mut self.ends[length % LENGTHS];
        exchange(cells, member, place.into(), (*end).into());
        *end += 1;
    }

    /// The shortest queue's length may be out of date, and too low. True when it was.
    fn raise_least(&mut self) -> bool {
        let before = self.least;
        while usize::from(self.least) < LONGEST && self.ends[usize::from(self.least)] == self.start
        {
            self.least += 1;
        }
        self.least != before
    }
}
