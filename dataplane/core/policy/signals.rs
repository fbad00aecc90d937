//! Signals from a leaf to its spine: idleness and average load (Horus 3.3, A.1). A spine schedules tasks over racks;
//! each rack's leaf schedules them over its workers. The signal IDLE_ADD puts the rack on the spine's idle list, and
//! IDLE_REMOVE takes it off. [`Signals`] is the leaf's side, and [`Latest`] the spine's.
//!
//! A spine has an idle list of racks, and the header of each task says whether the spine took the rack from that
//! list (`idle_selected`). A task *contradicts* the leaf's last signal if its header says otherwise: the signal was
//! lost, or still in flight.
//!
//! [`Protocol::Paper`] follows the paper's text, made idempotent: later tasks that contradict a lost message
//! repair it. [`Protocol::Text`] is the literal text. [`Protocol::Simulator`] is the authors' released
//! simulator including its thresholds; their published curves come from it.
//!
//! Deviation: the paper compares the average load with the one sent last. But the spine adds 1/workers for
//! every task in between. For a rack with a steady average the spine's estimate grows without end, and a rack
//! that signals looks empty in comparison. With 4 racks of 8 workers, 70% load and 5 us hops the mean response
//! time nearly doubles. Here a leaf compares with the spine's current estimate.
//!
//! A rack without idle workers returns to the spine's list at the third idle worker, or if all are idle, rather
//! than at the first. At high load the next task takes a single idle worker, so its two messages are useless.
//! A threshold of two costs a third more messages for the same response times. A large rack returns at two,
//! because it signals less often per task. If a spine chooses uniformly among racks of different sizes, the
//! small ones are overloaded unless the large one is offered whenever possible.
//!
//! Signals overtake each other on different paths. An IDLE_ADD that overtakes the preceding IDLE_REMOVE would
//! starve an idle rack for ever, because without tasks no contradiction occurs. So signals are numbered
//! (the header's `seq`), a spine ignores signals older than the latest ([`Latest`]), and a leaf repeats its
//! state from time to time ([`Signals::repeat`]).

use super::{LeafReports, PolicySpec};
use crate::state::{Load, Member, View};

/// Idle workers at or below which the authors' simulator removes a rack from the spine's idle list.
const SIMULATOR_IDLE_FLOOR: usize = 4;

/// Idle workers at which a rack returns to the spine's list (or all of them): for racks up to [`SMALL_RACK`] workers,
/// and for larger ones.
const IDLE_AGAIN: (usize, usize) = (3, 2);
/// Largest number of workers of a small rack.
const SMALL_RACK: usize = 16;

/// Maximum number of contradicting tasks that may have been in flight when the rack's state changed. The next
/// one makes the leaf repeat its signal.
const IN_FLIGHT_MAX: usize = 8;

/// Signalling rules of a leaf.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// The paper's text with the repairs that the module's documentation describes.
    Paper,
    /// The paper's literal text: one idle worker suffices for IDLE_ADD, every contradicting task repeats the
    /// message, and the average load is compared with the value sent last.
    Text,
    /// The released simulator.
    Simulator,
    /// The average of the workers' last reported loads with every reply (on devices, once per poll with replies),
    /// without idle signals: hierarchical RackSched, which adds nothing for tasks sent since. On devices, replies on
    /// cores other than the signalling one count each millisecond, if the cores exchange loads.
    EveryReply,
    /// No signals: the spine needs no loads.
    Silent,
}

/// Names of the rules that a leaf on devices may use.
pub const SIGNAL_RULES: &str = "horus, every-reply, none";

impl Protocol {
    /// Returns the rules with this name, if it is one of [`SIGNAL_RULES`].
    #[must_use]
    pub fn of_rules(name: &str) -> Option<Self> {
        [Self::Paper, Self::EveryReply, Self::Silent]
            .into_iter()
            .find(|protocol| protocol.rules() == name)
    }

    /// Returns the rules for leaves below a spine with this policy.
    #[must_use]
    pub fn below(policy: &PolicySpec) -> Self {
        match policy.entry().over_racks.map(|over| over.reports) {
            Some(LeafReports::Signals) => Self::Paper,
            Some(LeafReports::EveryReply) => Self::EveryReply,
            Some(LeafReports::Nothing) | None => Self::Silent,
        }
    }

    /// Returns the name of the rules.
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

/// A signal from a leaf to its spine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// Puts the rack on the spine's idle list: enough of its workers are idle.
    IdleAdd,
    /// Takes the rack off the list: too few or none are idle.
    IdleRemove,
    /// Average load of the rack.
    Load(Load),
}

/// Leaf's side of the protocol, for one pool.
#[derive(Clone, Debug)]
pub struct Signals {
    protocol: Protocol,
    /// Number of workers that accept tasks.
    workers: usize,
    /// True if the rack is on the spine's idle list, by the leaf's knowledge.
    listed: bool,
    /// Number of tasks whose header contradicts `listed`, since its last change or signal. In [`Protocol::Paper`] a
    /// task that agrees with it resets the number.
    contradictions: usize,
    /// Number of replies since the last load signal.
    replies: usize,
    /// Sum of the loads as the spine estimates it; in [`Protocol::Paper`] including the tasks it sent since.
    spine_estimate: u64,
}

impl Signals {
    /// Creates the state of a leaf with `workers` workers, all idle and known as idle.
    #[must_use]
    pub fn new(protocol: Protocol, workers: usize) -> Self {
        Self { protocol, workers, listed: true, contradictions: 0, replies: 0, spine_estimate: 0 }
    }

    /// Sets the number of workers that accept tasks.
    pub fn set_workers(&mut self, workers: usize) {
        self.workers = workers;
    }

    /// Counts tasks that the spine sent to other cores of the leaf, because its estimate includes them.
    pub fn note_tasks(&mut self, tasks: u64) {
        self.spine_estimate += tasks * u64::from(Load::ONE.0);
    }

    /// Returns the idleness signal again, in case the last one was lost; `None` except in [`Protocol::Paper`]. Takes
    /// the rack off the list if `has_idle` is false: tasks of other cores may have occupied the last idle worker.
    pub fn repeat(&mut self, has_idle: bool) -> Option<Signal> {
        (self.protocol == Protocol::Paper).then(|| match self.listed {
            true if has_idle => Signal::IdleAdd,
            true => self.change(false),
            false => Signal::IdleRemove,
        })
    }

    /// Returns the part of a member in the rack's sum of loads, which the load signal reports: its last reported load
    /// under [`Protocol::EveryReply`]. Otherwise also the tasks sent since.
    #[inline]
    #[must_use]
    pub fn load_of(&self, view: &View, member: Member) -> u64 {
        match self.protocol {
            Protocol::EveryReply => u64::from(view.load(member).0),
            _ => view.estimated_load(member),
        }
    }

    /// Returns the increase of the rack's sum of loads by a task sent to a member. The caller adds it, so that the sum
    /// agrees with [`Signals::load_of`] without a new summation.
    #[inline]
    #[must_use]
    pub fn load_of_task(&self) -> u64 {
        if self.protocol == Protocol::EveryReply { 0 } else { u64::from(Load::ONE.0) }
    }

    /// Handles a task from the spine; `idle` workers are left after the choice. `idle_selected` is the
    /// header's statement that the spine chose the rack as idle. Returns the signal to send, if any.
    #[inline]
    pub fn on_task(&mut self, idle_selected: bool, idle: usize) -> Option<Signal> {
        match self.protocol {
            Protocol::Paper => self.paper_task(idle_selected, idle),
            Protocol::Text => self.text_task(idle_selected, idle),
            Protocol::Simulator => self.simulator_task(idle_selected, idle),
            Protocol::EveryReply | Protocol::Silent => None,
        }
    }

    /// Handles a task under [`Protocol::Paper`].
    fn paper_task(&mut self, idle_selected: bool, idle: usize) -> Option<Signal> {
        self.spine_estimate += u64::from(Load::ONE.0);
        if self.listed && idle == 0 {
            return Some(self.change(false));
        }
        if idle_selected == self.listed {
            self.contradictions = 0;
            return None;
        }
        // Ignores contradictions of tasks that were in flight when the state changed: at most one for each worker, and
        // at most `IN_FLIGHT_MAX`. The next one repeats the last signal.
        self.contradictions += 1;
        (self.contradictions > self.workers.min(IN_FLIGHT_MAX)).then(|| self.change(self.listed))
    }

    /// Handles a task under [`Protocol::Text`].
    fn text_task(&mut self, idle_selected: bool, idle: usize) -> Option<Signal> {
        if self.listed && idle == 0 {
            return Some(self.change(false));
        }
        (idle_selected != self.listed).then(|| self.change(self.listed))
    }

    /// Handles a task under [`Protocol::Simulator`].
    fn simulator_task(&mut self, idle_selected: bool, idle: usize) -> Option<Signal> {
        if self.listed && idle <= SIMULATOR_IDLE_FLOOR {
            return Some(self.change(false));
        }
        if !self.listed && idle > SIMULATOR_IDLE_FLOOR {
            return Some(self.change(true));
        }
        if !self.listed && idle_selected {
            self.contradictions += 1;
            if self.contradictions > self.workers {
                self.change(true); // no message: the spine has the rack on its list already
            }
        }
        None
    }

    /// Records whether the rack is on the spine's idle list. Returns the signal for it.
    fn change(&mut self, listed: bool) -> Signal {
        self.listed = listed;
        self.contradictions = 0;
        if listed { Signal::IdleAdd } else { Signal::IdleRemove }
    }

    /// Handles a reply, after which `idle` workers are idle and the loads sum to `total()`. Returns the signals to
    /// send: at most one about idleness and one with the load. `total` is a function because summing takes time.
    ///
    /// Under [`Protocol::Paper`] and [`Protocol::Text`] the load is sent once its average differs from the spine's
    /// estimate by one task.
    #[inline]
    pub fn on_reply(&mut self, idle: usize, total: impl FnOnce() -> u64) -> [Option<Signal>; 2] {
        match self.protocol {
            Protocol::Paper | Protocol::Text => {
                // Several idle workers before the rack is offered again: a single one is gone with the next
                // task, which costs another signal.
                let least = match (self.protocol, self.workers) {
                    (Protocol::Text, _) => 1,
                    (_, ..=SMALL_RACK) => IDLE_AGAIN.0,
                    _ => IDLE_AGAIN.1,
                };
                let idle_needed = least.min(self.workers);
                let add = (!self.listed && idle >= idle_needed).then(|| self.change(true));
                let total = total();
                let one_task_each = self.workers as u64 * u64::from(Load::ONE.0);
                let has_moved = total.abs_diff(self.spine_estimate) >= one_task_each;
                [add, has_moved.then(|| self.report(total))]
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

    /// Records the load that the spine will know. Returns the signal for it.
    fn report(&mut self, total: u64) -> Signal {
        self.replies = 0;
        self.spine_estimate = total;
        Signal::Load(self.average(total))
    }

    /// Returns the rack's average load for this sum of loads.
    #[must_use]
    pub fn average(&self, total: u64) -> Load {
        let average = total / self.workers.max(1) as u64;
        Load(average.min(u64::from(u32::MAX)) as u32)
    }
}

/// Latest signal number of each rack at a spine. A leaf filters its workers' queue reports in the same way.
#[derive(Clone, Debug)]
pub struct Latest {
    /// Number of the latest accepted signal of each rack.
    numbers: Vec<u16>,
    /// Racks whose next signal is accepted regardless of its number.
    forgotten: Vec<bool>,
}

impl Latest {
    /// Creates the state of `racks` racks without any signal.
    #[must_use]
    pub fn new(racks: usize) -> Self {
        Self { numbers: vec![0; racks], forgotten: vec![false; racks] }
    }

    /// Accepts the next signal of `rack` regardless of its number, for instance after its leaf restarted and numbers
    /// from 1 again.
    pub fn forget(&mut self, rack: Member) {
        self.forgotten[rack.index()] = true;
    }

    /// Returns true, and records `number`, if it is not older than the latest signal of `rack`. Accepts a duplicate. A
    /// rack numbers its signals from 1; the numbers wrap around.
    pub fn accepts(&mut self, rack: Member, number: u16) -> bool {
        let newest = &mut self.numbers[rack.index()];
        let is_forgotten = std::mem::take(&mut self.forgotten[rack.index()]);
        // A distance below half the range means a newer number, because numbers wrap around.
        let is_newer = is_forgotten || number.wrapping_sub(*newest) < 1 << 15;
        if is_newer {
            *newest = number;
        }
        is_newer
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // promise: fabric.2
    #[test]
    fn overtaken_signals_are_passed_over() {
        let mut latest = Latest::new(2);
        let rack = Member(1);
        assert!(latest.accepts(rack, 1) && latest.accepts(rack, 3));
        assert!(!latest.accepts(rack, 2) && latest.accepts(Member(0), 2));
        assert!(latest.accepts(rack, 32_000) && latest.accepts(rack, 64_000));
        assert!(latest.accepts(rack, 5) && !latest.accepts(rack, 65_535));
    }

    // promise: measurement.4
    #[test]
    fn leaf_signals_its_last_idle_worker() {
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

    // promise: scheduling.5
    #[test]
    fn lost_idle_messages_are_repaired() {
        // With two workers, two contradicting tasks may have been in flight; the third repeats the signal.
        let mut leaf = Signals::new(Protocol::Paper, 2);
        assert_eq!(leaf.on_task(true, 0), Some(Signal::IdleRemove)); // lost
        assert_eq!(leaf.on_task(true, 0), None);
        assert_eq!(leaf.on_task(true, 0), None);
        assert_eq!(leaf.on_task(true, 0), Some(Signal::IdleRemove));
    }

    #[test]
    fn load_is_signalled_at_one_task_difference() {
        let mut leaf = Signals::new(Protocol::Paper, 2);
        let one = u64::from(Load::ONE.0);
        assert_eq!(leaf.on_reply(0, || 2 * one - 1), [None, None]);
        assert_eq!(leaf.on_reply(0, || 2 * one), [None, Some(Signal::Load(Load::ONE))]);
        assert_eq!(leaf.on_reply(0, || 3 * one), [None, None]);
        // Two more tasks, then two fewer: the spine knows only of the former.
        assert_eq!(leaf.on_task(false, 0), Some(Signal::IdleRemove));
        assert_eq!(leaf.on_task(false, 0), None);
        assert_eq!(leaf.on_reply(0, || 2 * one), [None, Some(Signal::Load(Load::ONE))]);
    }

    // promise: measurement.4
    #[test]
    fn literal_mode_answers_every_contradiction() {
        let mut leaf = Signals::new(Protocol::Text, 2);
        let one = u64::from(Load::ONE.0);
        assert_eq!(leaf.on_task(true, 0), Some(Signal::IdleRemove));
        assert_eq!(leaf.on_task(true, 0), Some(Signal::IdleRemove));
        assert_eq!(leaf.on_task(false, 0), None);
        assert_eq!(leaf.on_reply(1, || one), [Some(Signal::IdleAdd), None]);
        assert_eq!(leaf.on_task(false, 1), Some(Signal::IdleAdd));
        // Four tasks arrived; what counts is two more than the last signal reported.
        assert_eq!(leaf.on_reply(1, || 2 * one), [None, Some(Signal::Load(Load::ONE))]);
        assert_eq!(leaf.repeat(true), None);
    }

    // promise: measurement.4
    #[test]
    fn the_simulators_leaf_has_a_floor_of_four() {
        let mut leaf = Signals::new(Protocol::Simulator, 8);
        assert_eq!(leaf.on_task(true, 5), None);
        assert_eq!(leaf.on_task(true, 4), Some(Signal::IdleRemove));
        assert_eq!(leaf.on_task(true, 5), Some(Signal::IdleAdd));
        // Every eighth reply, one for each worker, signals the load.
        let replies: Vec<_> = (0..16).map(|_| leaf.on_reply(5, || 0)[0]).collect();
        assert_eq!(replies.iter().flatten().count(), 2);
    }
}
