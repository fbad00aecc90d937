//! What one core tells the others of a pool's members and hears from them, and the tokens that they share.
//!
//! While a core keeps up with what comes it tells every change after each burst; while it does not, only what is off by several
//! tasks, so that the lines that move between cores stay few for each packet. What is not told is told once it keeps up.

use std::sync::Arc;
use std::sync::atomic::AtomicU16;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use arrayvec::ArrayVec;

use super::broadcast::{Sender, Subject, Topic};
use super::layout::Layout;
use super::member::{Load, Member};
use super::region::{Region, Slice};
use super::tokens::Tokens;
use super::words::{Own, Words};
use crate::limits::BURST;

/// Sixteenths of a task, in which loads are told.
const SIXTEENTHS: u32 = 16;
/// Members that a burst may touch before all are looked at: tasks and replies, and as many that follow.
const TOUCHED_MOST: usize = 8 * BURST;
/// While a core does not keep up, and there are so many cores at most, what is off by so many tasks is told. The more cores there
/// are, the more read each message, and the more a member's load moves between two of a core's bursts.
const COARSE: [(usize, u16); 4] = [(2, 2), (4, 3), (8, 4), (usize::MAX, 8)];

/// What a policy has its core tell the others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sharing {
    /// On what it tells of members; none: nothing.
    pub topic: Option<Topic>,
    /// Members that are idle belong to one core at a time: the others take them to have a task. So do their places, where no
    /// topic is told of.
    pub idle: bool,
    /// What it sent a member since that reported counts, too, in what it tells.
    pub drift: bool,
}

impl Sharing {
    /// Nothing: it decides without looking.
    pub const NOTHING: Self = Self { topic: None, idle: false, drift: true };
    /// What each core has outstanding at a member.
    pub const COUNTS: Self = Self { topic: Some(Topic::Counts), ..Self::NOTHING };
    /// What members are believed to have.
    pub const LOADS: Self = Self { topic: Some(Topic::Loads), ..Self::NOTHING };
    /// What members reported.
    pub const REPORTS: Self = Self { drift: false, ..Self::LOADS };

    /// The same where idle members belong to one core at a time.
    #[must_use]
    pub const fn with_idle(self) -> Self {
        Self { idle: true, ..self }
    }
}

/// One core's part, in cache lines of its own.
#[derive(Debug)]
#[repr(align(128))]
pub struct Peers {
    sharing: Sharing,
    /// Off by so much is told while the core does not keep up.
    coarse: u16,
    /// What this core told last of each member.
    told: Slice<AtomicU16>,
    /// What the others tell, and each of them told of each member's count last, as far as heard.
    others: Vec<Other>,
    /// Sums of that, as a core's own.
    elsewhere: Slice<Own>,
    /// Members that may be off since the last exchange; all, when there are too many.
    touched: ArrayVec<Member, TOUCHED_MOST>,
    all_touched: bool,
    /// Members that are off by less than is told.
    late: Vec<Member>,
    is_late: Box<[bool]>,
    tokens: Tokens,
    /// Tokens of a member at most.
    rows: usize,
    /// Where this core begins to look for tokens.
    first_word: usize,
    /// Since when this core's first task waits, and since when those of the others do.
    oldest: Slice<AtomicU64>,
    /// Bounds on a member's tasks that the cores have found, in their order; 0: none yet.
    bounds: Box<[Slice<AtomicU64>]>,
    core: usize,
}

/// Another core.
#[derive(Debug)]
struct Other {
    told: Slice<AtomicU16>,
    heard: Box<[u16]>,
    oldest: Slice<AtomicU64>,
}

impl Peers {
    /// Of `core` on `pool`, in a region of several cores.
    pub(super) fn new(region: &Arc<Region>, layout: &Layout, core: usize, pool: usize) -> Self {
        let (first, members) = (layout.pools[pool].first_member, layout.pools[pool].members);
        let told = |core: usize| region.slice(layout.cores[core].told + 2 * first, members);
        let oldest = |core: usize| region.slice(layout.pools[pool].oldest + 8 * core, 1);
        let others = (0..layout.cores.len()).filter(|&other| other != core);
        let other =
            |core| Other { told: told(core), heard: vec![0; members].into(), oldest: oldest(core) };
        let coarse = COARSE.iter().find(|(cores, _)| layout.cores.len() <= *cores);
        Self {
            sharing: Sharing::default(),
            coarse: coarse.map_or(1, |(_, tasks)| *tasks),
            told: told(core),
            others: others.map(other).collect(),
            elsewhere: region
                .slice(layout.cores[core].elsewhere + size_of::<Own>() * first, members),
            touched: ArrayVec::new(),
            all_touched: false,
            late: Vec::with_capacity(members),
            is_late: vec![false; members].into(),
            tokens: Tokens::new(
                region.slice(layout.pools[pool].tokens, Tokens::words(members)),
                members,
            ),
            rows: 1,
            first_word: core,
            oldest: oldest(core),
            bounds: (0..layout.cores.len())
                .map(|core| region.slice(layout.cores[core].bounds + 8 * pool, 1))
                .collect(),
            core,
        }
    }

    /// The bound on a member's tasks for all cores, this one having found another or none so far: that of the first who has.
    #[must_use]
    pub fn bound(&self, own: Option<usize>) -> Option<usize> {
        let word = &self.bounds[self.core][0];
        let own = own.unwrap_or(0) as u64;
        if word.load(Relaxed) != own {
            word.store(own, Relaxed);
        }
        let mut found = self.bounds.iter().map(|bound| bound[0].load(Relaxed));
        found.find(|bound| *bound > 0).map(|bound| bound as usize)
    }

    /// What the others told of members, summed up.
    pub(super) fn elsewhere(&self) -> Slice<Own> {
        self.elsewhere.clone()
    }

    /// What is told.
    #[must_use]
    pub fn sharing(&self) -> Sharing {
        self.sharing
    }

    /// Another policy has other things told; what was told on another topic is forgotten. Members have one token each at most
    /// until the policy says otherwise.
    pub(super) fn set_sharing(&mut self, sharing: Sharing) {
        self.rows = 1;
        if self.sharing.topic != sharing.topic {
            for own in &*self.elsewhere {
                own.outstanding.store(0, Relaxed);
            }
            self.others.iter_mut().for_each(|other| other.heard.fill(0));
            // What everybody takes a member to have of which nothing was told.
            let nothing = match sharing {
                Sharing { topic: Some(Topic::Loads), idle: true, .. } => SIXTEENTHS as u16,
                _ => 0,
            };
            self.told.iter().for_each(|told| told.store(nothing, Relaxed));
            self.all_touched = true;
        }
        self.sharing = sharing;
    }

    /// What is believed of a member may have changed.
    #[inline]
    pub fn touch(&mut self, member: Member) {
        if self.touched.try_push(member).is_err() {
            self.all_touched = true;
        }
    }

    /// The value to be told of a member.
    #[inline]
    fn value(&self, topic: Topic, words: Words<'_>, member: Member) -> u16 {
        match topic {
            Topic::Counts => words.of(member).own_outstanding() as u16,
            Topic::Loads => {
                let belief = words.of(member).belief();
                let load = if self.sharing.drift { belief.total() } else { belief.load().0.into() };
                let load = (load * u64::from(SIXTEENTHS)) >> 16;
                let least = if self.sharing.idle { SIXTEENTHS as u16 } else { 0 };
                (load.min(u64::from(u16::MAX)) as u16).max(least)
            }
        }
    }

    /// Tells what has changed, all of it if this core keeps up.
    #[inline]
    pub(super) fn tell(
        &mut self,
        pool: usize,
        words: Words<'_>,
        sender: &mut Sender,
        keeps_up: bool,
    ) {
        let Some(topic) = self.sharing.topic else { return self.touched.clear() };
        let subject = Subject { pool: pool as u16, topic };
        if std::mem::take(&mut self.all_touched) {
            self.touched.clear();
            for member in 0..self.told.len() {
                self.tell_of(subject, Member(member as u16), words, sender, keeps_up);
            }
        }
        for at in 0..self.touched.len() {
            self.tell_of(subject, self.touched[at], words, sender, keeps_up);
        }
        self.touched.clear();
        if keeps_up {
            while let Some(member) = self.late.pop() {
                self.is_late[member.index()] = false;
                self.tell_of(subject, member, words, sender, true);
            }
        }
    }

    #[inline]
    fn tell_of(
        &mut self,
        subject: Subject,
        member: Member,
        words: Words<'_>,
        sender: &mut Sender,
        keeps_up: bool,
    ) {
        let (told, value) = (&self.told[member.index()], self.value(subject.topic, words, member));
        let before = told.load(Relaxed);
        if before == value {
            return;
        }
        let off = match subject.topic {
            Topic::Counts => value.wrapping_sub(before).cast_signed().unsigned_abs(),
            Topic::Loads => value.abs_diff(before) / SIXTEENTHS as u16,
        };
        if keeps_up || off >= self.coarse {
            told.store(value, Relaxed);
            sender.tell(subject, member, value);
        } else if !self.is_late[member.index()] {
            self.is_late[member.index()] = true;
            self.late.push(member);
        }
    }

    /// Another core (the `other`th of them) told something; true when what this core believes of the member may have
    /// changed by it.
    pub(super) fn hear(
        &mut self,
        other: usize,
        topic: Topic,
        member: Member,
        value: u16,
        words: Words<'_>,
    ) -> bool {
        if Some(topic) != self.sharing.topic || member.index() >= self.told.len() {
            return false;
        }
        match topic {
            Topic::Counts => {
                let heard = &mut self.others[other].heard[member.index()];
                let more = value.wrapping_sub(*heard).cast_signed();
                *heard = value;
                let sum = &self.elsewhere[member.index()].outstanding;
                sum.store(sum.load(Relaxed).wrapping_add_signed(more.into()), Relaxed);
            }
            Topic::Loads => {
                words.of(member).set_believed(Load(u32::from(value) * (65_536 / SIXTEENTHS)));
                // It is what others believe, too.
                self.told[member.index()].store(value, Relaxed);
            }
        }
        true
    }

    /// What another core told last of a member.
    pub(super) fn told_by(&self, other: usize, member: Member) -> u16 {
        self.others[other].told[member.index()].load(Relaxed)
    }

    /// A member has so many tokens at most; one unless said otherwise.
    pub fn set_rows(&mut self, rows: usize) {
        self.rows = rows;
    }

    /// Lets any core have a token of a member.
    #[inline]
    pub(super) fn let_go(&self, member: Member) {
        self.tokens.put(member, self.rows);
    }

    /// Tokens that any core may take.
    #[inline]
    #[must_use]
    pub fn tokens(&self) -> &Tokens {
        &self.tokens
    }

    /// Takes a token of a member that has most of them here; and in which row it was.
    #[inline]
    #[must_use]
    pub fn take_token(&self) -> Option<(Member, usize)> {
        self.tokens.take(self.rows, self.first_word)
    }

    /// Any core may take a token of this member.
    pub(super) fn has_token_of(&self, member: Member) -> bool {
        self.tokens.has(member, self.rows)
    }

    /// Any core may take a token.
    #[must_use]
    pub fn has_tokens(&self) -> bool {
        self.tokens.has_some(self.rows)
    }

    /// Since when this core's first task waits, in nanoseconds; 0: none does.
    #[inline]
    #[must_use]
    pub fn oldest(&self) -> u64 {
        self.oldest[0].load(Relaxed)
    }

    /// Notes since when this core's first task waits, in nanoseconds; 0: none does.
    #[inline]
    pub fn note_oldest(&self, since_ns: u64) {
        if self.oldest[0].load(Relaxed) != since_ns {
            self.oldest[0].store(since_ns, Relaxed);
        }
    }

    /// Since when the longest waiting task of the other cores waits; all ones when none does.
    #[inline]
    #[must_use]
    pub fn oldest_elsewhere(&self) -> u64 {
        // None, which is 0, comes last.
        let since = |other: &Other| other.oldest[0].load(Relaxed).wrapping_sub(1);
        self.others.iter().map(since).min().map_or(u64::MAX, |least| least.saturating_add(1))
    }
}
