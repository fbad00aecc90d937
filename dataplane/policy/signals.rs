//! What a leaf tells its spine, and when: idleness and average load (Horus 3.3, A.1).
//!
//! [`Protocol::Paper`] follows the paper's text, made idempotent: a lost message is repaired by later
//! tasks that contradict it. [`Protocol::Text`] is the text to the letter. [`Protocol::Simulator`] is what the
//! authors' released simulator does, thresholds included; their published curves come from it.
//!
//! Deviation. The paper compares the average load with the one sent last. But a spine adds 1/workers for
//! every task meanwhile, so its belief runs away from a rack whose average hardly moves, and the
//! rack that does send looks empty beside the others: at 4 racks of 8, 70% load and 5 us hops the mean
//! response nearly doubles. Here a leaf compares with what the spine believes by now.
//!
//! And a rack that had no idle worker is on the spine's list again when it has three, or all, not with the first: at high loads a
//! single one is gone with the next task, and its message and the next are for nothing. With two it is a third more messages, and the
//! same response times. A large rack comes back with two: it says so more seldom for each task, and where racks of unlike size are
//! taken alike, small ones drown unless the large one is offered whenever it can be.
//!
//! Signals overtake each other where paths differ. An IDLE_ADD that is overtaken by the IDLE_REMOVE before
//! it would starve an idle rack for ever, for without tasks nothing contradicts. So signals are numbered
//! (the header's `seq`), a spine passes over what is older than what it has ([`Latest`]), and a
//! leaf repeats its state now and then ([`Signals::repeat`]).

use super::{LeafReports, PolicySpec};
use crate::state::{Load, Member, View};

/// Idle workers at or below which the authors' simulator takes a rack off the spine's idle list.
const SIMULATOR_IDLE_FLOOR: usize = 4;

/// Idle workers that a rack has before it is offered again, or all: one of up to so many workers, and a larger one.
const IDLE_AGAIN: (usize, usize) = (3, 2);
const SMALL_RACK: usize = 16;

/// Tasks that contradict the rack's state before it is told again.
const UNDER_WAY: usize = 8;

/// Which rules a leaf follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// The paper's text with the repairs below.
    Paper,
    /// The paper's text to the letter: one idle worker is enough for IDLE_ADD, every task that contradicts
    /// has the message sent again, and the average load is compared with what was sent last.
    Text,
    /// The released simulator.
    Simulator,
    /// The average of the loads that workers last reported, with every reply, and no idle signals: the hierarchical RackSched,
    /// which adds nothing for tasks that were sent since.
    EveryReply,
    /// Nothing: the spine does not ask for load.
    Silent,
}

/// The names of the rules that a leaf on devices may follow.
pub const SIGNAL_RULES: &str = "horus, every-reply, none";

impl Protocol {
    /// The rules that a leaf on devices follows under this name.
    #[must_use]
    pub fn of_rules(name: &str) -> Option<Self> {
        [Self::Paper, Self::EveryReply, Self::Silent].into_iter().find(|one| one.rules() == name)
    }

    /// What leaves tell spines that decide by this policy.
    #[must_use]
    pub fn below(policy: &PolicySpec) -> Self {
        match policy.entry().over_racks.map(|over| over.reports) {
            Some(LeafReports::Signals) => Self::Paper,
            Some(LeafReports::EveryReply) => Self::EveryReply,
            Some(LeafReports::Nothing) | None => Self::Silent,
        }
    }

    /// The name of its rules.
    #[must_use]
    pub const fn rules(self) -> &'static str {
        match self {
            Self::Paper => "horus",
            Self::Text => "horus-text",
            Self::Simulator => "horus-simulator",
            Self::EveryReply => "every-reply",
            Self::Silent => "none",
        }
    }
}

/// A message from a leaf to its spine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// The rack has idle workers.
    IdleAdd,
    /// The rack has none left.
    IdleRemove,
    /// Its average load.
    Load(Load),
}

/// A leaf's side of the protocol, for one pool.
#[derive(Clone, Debug)]
pub struct Signals {
    protocol: Protocol,
    workers: usize,
    /// The spine has us on its idle list, as far as we know.
    linked: bool,
    /// Tasks since the last change that show the spine to know otherwise.
    contradictions: usize,
    replies: usize,
    /// Sum of the loads by what the spine was told, and in [`Protocol::Paper`] what it sent since.
    believed: u64,
}

impl Signals {
    /// A leaf with `workers` workers, all idle, and known as idle.
    #[must_use]
    pub fn new(protocol: Protocol, workers: usize) -> Self {
        Self { protocol, workers, linked: true, contradictions: 0, replies: 0, believed: 0 }
    }

    /// The rack has so many workers from now on that tasks may be given to.
    pub fn set_workers(&mut self, workers: usize) {
        self.workers = workers;
    }

    /// So many tasks came from the spine to other cores of the leaf.
    pub fn note_tasks(&mut self, tasks: u64) {
        self.believed += tasks * u64::from(Load::ONE.0);
    }

    /// The rack's idleness once more, in case the last message was lost; for the paper's protocol only.
    pub fn repeat(&mut self) -> Option<Signal> {
        let signal = if self.linked { Signal::IdleAdd } else { Signal::IdleRemove };
        (self.protocol == Protocol::Paper).then_some(signal)
    }

    /// What a member counts for in the rack's load.
    #[inline]
    #[must_use]
    pub fn load_of(&self, view: &View, member: Member) -> u64 {
        match self.protocol {
            Protocol::EveryReply => u64::from(view.load(member).0),
            _ => view.estimate(member),
        }
    }

    /// What a task that was sent to a member adds to the rack's load.
    #[inline]
    #[must_use]
    pub fn load_of_task(&self) -> u64 {
        if self.protocol == Protocol::EveryReply { 0 } else { u64::from(Load::ONE.0) }
    }

    /// A task came from the spine and `idle` workers are left after its own was chosen;
    /// `idle_selected` is the header's word on why it came here.
    #[inline]
    pub fn on_task(&mut self, idle_selected: bool, idle: usize) -> Option<Signal> {
        match self.protocol {
            Protocol::Paper => self.paper_task(idle_selected, idle),
            Protocol::Text => self.text_task(idle_selected, idle),
            Protocol::Simulator => self.simulator_task(idle_selected, idle),
            Protocol::EveryReply | Protocol::Silent => None,
        }
    }

    fn paper_task(&mut self, idle_selected: bool, idle: usize) -> Option<Signal> {
        self.believed += u64::from(Load::ONE.0);
        if self.linked && idle == 0 {
            return Some(self.change(false));
        }
        if idle_selected == self.linked {
            self.contradictions = 0;
            return None;
        }
        // Some tasks were under way when the state changed; so many were not.
        self.contradictions += 1;
        (self.contradictions > self.workers.min(UNDER_WAY)).then(|| self.change(self.linked))
    }

    fn text_task(&mut self, idle_selected: bool, idle: usize) -> Option<Signal> {
        if self.linked && idle == 0 {
            return Some(self.change(false));
        }
        (idle_selected != self.linked).then(|| self.change(self.linked))
    }

    fn simulator_task(&mut self, idle_selected: bool, idle: usize) -> Option<Signal> {
        if self.linked && idle <= SIMULATOR_IDLE_FLOOR {
            return Some(self.change(false));
        }
        if !self.linked && idle > SIMULATOR_IDLE_FLOOR {
            return Some(self.change(true));
        }
        if !self.linked && idle_selected {
            self.contradictions += 1;
            if self.contradictions > self.workers {
                self.change(true); // and no message: the spine believes it already
            }
        }
        None
    }

    fn change(&mut self, linked: bool) -> Signal {
        self.linked = linked;
        self.contradictions = 0;
        if linked { Signal::IdleAdd } else { Signal::IdleRemove }
    }

    /// A reply passed, after which `idle` workers are idle and the loads of all sum to what `total` says.
    /// At most one of each kind.
    #[inline]
    pub fn on_reply(&mut self, idle: usize, total: impl FnOnce() -> u64) -> [Option<Signal>; 2] {
        match self.protocol {
            Protocol::Paper | Protocol::Text => {
                // Some before the rack is offered again: one goes with the next task, and the spine is told of that, too.
                let least = match (self.protocol, self.workers) {
                    (Protocol::Text, _) => 1,
                    (_, ..=SMALL_RACK) => IDLE_AGAIN.0,
                    _ => IDLE_AGAIN.1,
                };
                let enough = least.min(self.workers);
                let add = (!self.linked && idle >= enough).then(|| self.change(true));
                let total = total();
                let one_each = self.workers as u64 * u64::from(Load::ONE.0);
                let moved = total.abs_diff(self.believed) >= one_each;
                [add, moved.then(|| self.report(total))]
            }
            Protocol::Simulator => {
                self.replies += 1;
                let due = self.replies >= self.workers;
                [due.then(|| self.report(total())), None]
            }
            Protocol::EveryReply => [Some(self.report(total())), None],
            Protocol::Silent => [None, None],
        }
    }

    fn report(&mut self, total: u64) -> Signal {
        self.replies = 0;
        self.believed = total;
        Signal::Load(self.average(total))
    }

    /// The rack's average load, when the loads of all sum to what `total` says.
    #[must_use]
    pub fn average(&self, total: u64) -> Load {
        let average = total / self.workers.max(1) as u64;
        Load(average.min(u64::from(u32::MAX)) as u32)
    }
}

/// The newest signal that a spine has of each rack.
#[derive(Clone, Debug)]
pub struct Latest {
    numbers: Vec<u16>,
    /// Of these any number is taken next.
    forgotten: Vec<bool>,
}

impl Latest {
    /// Of so many racks, none heard of yet.
    #[must_use]
    pub fn new(racks: usize) -> Self {
        Self { numbers: vec![0; racks], forgotten: vec![false; racks] }
    }

    /// Whatever comes next from `rack` is new.
    pub fn forget(&mut self, rack: Member) {
        self.forgotten[rack.index()] = true;
    }

    /// `number` is not older than what came from `rack` before; racks count from 1 and wrap around.
    pub fn accepts(&mut self, rack: Member, number: u16) -> bool {
        let newest = &mut self.numbers[rack.index()];
        let anew = std::mem::take(&mut self.forgotten[rack.index()]);
        let newer = anew || number.wrapping_sub(*newest) < 1 << 15;
        if newer {
            *newest = number;
        }
        newer
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overtaken_signals_are_passed_over() {
        let mut latest = Latest::new(2);
        let rack = Member(1);
        assert!(latest.accepts(rack, 1) && latest.accepts(rack, 3));
        assert!(!latest.accepts(rack, 2) && latest.accepts(Member(0), 2));
        assert!(latest.accepts(rack, 32_000) && latest.accepts(rack, 64_000));
        assert!(latest.accepts(rack, 5) && !latest.accepts(rack, 65_535));
    }

    #[test]
    fn the_papers_leaf_tells_of_its_last_idle_worker() {
        let mut leaf = Signals::new(Protocol::Paper, 8);
        assert_eq!(leaf.on_task(true, 1), None);
        assert_eq!(leaf.on_task(true, 0), Some(Signal::IdleRemove));
        assert_eq!(leaf.on_task(true, 0), None);
        assert_eq!(leaf.on_reply(1, || 0), [None, None]);
        assert_eq!(leaf.on_reply(2, || 0), [None, None]);
        assert_eq!(leaf.on_reply(3, || 0), [Some(Signal::IdleAdd), None]);
        assert_eq!(leaf.on_reply(4, || 0), [None, None]);
        let mut large = Signals::new(Protocol::Paper, 32);
        assert_eq!(large.on_task(true, 0), Some(Signal::IdleRemove));
        assert_eq!(large.on_reply(1, || 0), [None, None]);
        assert_eq!(large.on_reply(2, || 0), [Some(Signal::IdleAdd), None]);
        let mut small = Signals::new(Protocol::Paper, 2);
        assert_eq!(small.on_task(true, 0), Some(Signal::IdleRemove));
        assert_eq!(small.on_reply(1, || 0), [None, None]);
        assert_eq!(small.on_reply(2, || 0), [Some(Signal::IdleAdd), None]);
    }

    #[test]
    fn lost_idle_messages_are_repaired() {
        let mut leaf = Signals::new(Protocol::Paper, 2);
        assert_eq!(leaf.on_task(true, 0), Some(Signal::IdleRemove)); // lost
        assert_eq!(leaf.on_task(true, 0), None);
        assert_eq!(leaf.on_task(true, 0), None);
        assert_eq!(leaf.on_task(true, 0), Some(Signal::IdleRemove));
    }

    #[test]
    fn loads_are_told_when_the_average_is_one_off_the_spines_belief() {
        let mut leaf = Signals::new(Protocol::Paper, 2);
        let one = u64::from(Load::ONE.0);
        assert_eq!(leaf.on_reply(0, || 2 * one - 1), [None, None]);
        assert_eq!(leaf.on_reply(0, || 2 * one), [None, Some(Signal::Load(Load::ONE))]);
        assert_eq!(leaf.on_reply(0, || 3 * one), [None, None]);
        // Two tasks more, and two less again: the spine only knows of the former.
        assert_eq!(leaf.on_task(false, 0), Some(Signal::IdleRemove));
        assert_eq!(leaf.on_task(false, 0), None);
        assert_eq!(leaf.on_reply(0, || 2 * one), [None, Some(Signal::Load(Load::ONE))]);
    }

    #[test]
    fn to_the_letter_every_contradiction_is_answered_and_loads_are_held_against_the_last() {
        let mut leaf = Signals::new(Protocol::Text, 2);
        let one = u64::from(Load::ONE.0);
        assert_eq!(leaf.on_task(true, 0), Some(Signal::IdleRemove));
        assert_eq!(leaf.on_task(true, 0), Some(Signal::IdleRemove));
        assert_eq!(leaf.on_task(false, 0), None);
        assert_eq!(leaf.on_reply(1, || one), [Some(Signal::IdleAdd), None]);
        assert_eq!(leaf.on_task(false, 1), Some(Signal::IdleAdd));
        // Four tasks came, but two more than were told of last is what counts.
        assert_eq!(leaf.on_reply(1, || 2 * one), [None, Some(Signal::Load(Load::ONE))]);
        assert_eq!(leaf.repeat(), None);
    }

    #[test]
    fn the_simulators_leaf_has_a_floor_of_four() {
        let mut leaf = Signals::new(Protocol::Simulator, 8);
        assert_eq!(leaf.on_task(true, 5), None);
        assert_eq!(leaf.on_task(true, 4), Some(Signal::IdleRemove));
        assert_eq!(leaf.on_task(true, 5), Some(Signal::IdleAdd));
        let replies: Vec<_> = (0..16).map(|_| leaf.on_reply(5, || 0)[0]).collect();
        assert_eq!(replies.iter().flatten().count(), 2);
    }
}
