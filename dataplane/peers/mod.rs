//! What one node of a rack without a leaf decides about its own tasks and those of its peers: where a fresh task goes, whom to ask for
//! one when it runs dry, and what it learns from what all tell each other (Malcolm, POMACS 2022).
//!
//! Each node has a queue and workers of its own, and clients send to any. [`Peers`] is all that such a node decides, for an agent
//! with peers as for the simulator: time, randomness' seed and messages are arguments, and nothing is allocated after the start.
//!
//! A node tells all others every beat how much waits there ([`Heartbeat`]); beats are out of step. A peer is there from its first
//! heartbeat on, until it was silent for [`SILENT_BEATS`] of this node's own beats: then nobody passes tasks to it, asks it, or
//! learns from it. Beats are numbered; a node that starts takes up the number of those that are there, so that all know when a
//! consensus is due. What of a message can't be is counted by its reason and changes nothing ([`Refusal`]).
//!
//! Deviations from the released program: the counters in a heartbeat are those of the period that it ends; loads are of the queues as
//! they are, and not smoothed over polls, so that a node asks for a task as soon as it has none; and nodes may leave and return.

mod consensus;
mod learning;
mod load;
mod refusal;
mod spec;
#[cfg(test)]
mod tests;

use rand::{Rng as _, SeedableRng as _};

pub use refusal::{Refusal, Refusals};
pub use spec::{Learned, PeerPolicy, PeerPolicyError};
pub use wedjat_learner::{NODES_MAX, Utility};

use crate::policy::{Rng, stream_seed};
use crate::wire::peer::{Done, Heartbeat, Origin, Parameters, VALUES_MAX, VERSION};
use learning::Learning;
use load::{LOAD_MAX, OwnLoad};

/// Of the learner: an actor that sees places and loads, a critic that sees powers and products.
pub const FEATURES: u8 = 1;
/// A beat unless configured otherwise.
pub const BEAT_NS: u64 = 100_000;
/// A peer that was silent for more of this node's beats is left out.
pub const SILENT_BEATS: u64 = 10;
/// Critics agree after so many beats.
pub const CONSENSUS_BEATS: u64 = 2000;
/// Tasks that wait, and what is done in a beat: more is not believed.
const COUNT_MAX: u32 = 1 << 20;
/// Streams of a node's randomness.
const DECISIONS: usize = 0;
const PARAMETERS: usize = 1;

/// What a node is made of.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Nodes in all, [`NODES_MAX`] at most.
    pub nodes: usize,
    /// Which of them this is.
    pub own: usize,
    /// What it goes by.
    pub policy: PeerPolicy,
    /// Tasks that its workers may have at once.
    pub slots: u32,
    /// Its beats' length.
    pub beat_ns: u64,
    /// When its first beat ends.
    pub first_beat_ns: u64,
    /// When it was started: later in each life.
    pub born: u64,
    /// Of its random decisions, and of what it starts to learn from.
    pub seed: u64,
}

/// What is known of another node.
#[derive(Clone, Debug)]
struct Other {
    born: u64,
    number: u64,
    load: f32,
    /// Tasks that wait there as it told last, and those passed to it since.
    waiting: u32,
    /// Beats of this node since it was heard.
    silent: u64,
    is_live: bool,
}

/// How a node decides.
#[derive(Clone, Debug)]
enum Mind {
    Learning(Box<Learning>),
    RandomSteal,
    Shortest,
    TwoChoices,
    Below(u32),
    Keep,
}

/// What a node has done in all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Tasks passed on, and times that another was asked for one; tasks without room, and times that it was asked and had none.
    pub migrations: u64,
    /// See above.
    pub steals: u64,
    /// See above.
    pub failed_tasks: u64,
    /// See above.
    pub failed_steals: u64,
    /// Tasks given to those who asked.
    pub given: u64,
    /// Beats.
    pub beats: u64,
    /// Heartbeats of others that were taken.
    pub heard: u64,
    /// Parts of others' parameters that did not come in time.
    pub lost_chunks: u64,
    /// Times that critics agreed.
    pub agreed: u64,
}

/// One node of a rack without a leaf: where its fresh tasks go, whom it asks for one, what it tells its peers and learns from them.
#[derive(Clone, Debug)]
pub struct Peers {
    settings: Settings,
    rng: Rng,
    mind: Mind,
    own: OwnLoad,
    others: Box<[Other]>,
    /// The other nodes that are there.
    live: Vec<u16>,
    /// Of its last heartbeat.
    number: u64,
    next_beat_ns: u64,
    /// The parameters for a consensus are to be told.
    tells: bool,
    done: Done,
    /// What others did, by their heartbeats since the last beat.
    heard: Done,
    totals: Totals,
    refusals: Refusals,
}

impl Peers {
    /// A node that has heard of nobody.
    ///
    /// # Panics
    /// When there are no nodes or more than [`NODES_MAX`], or it is none of them.
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        let Settings { nodes, own, policy, slots, seed, .. } = settings;
        assert!((1..=NODES_MAX).contains(&nodes) && own < nodes, "node {own} of {nodes}");
        let learning = |learned: &Learned, is_frozen| {
            let mut learning =
                Learning::new(learned, is_frozen, nodes, stream_seed(seed, own, PARAMETERS));
            (0..nodes).filter(|node| *node != own).for_each(|node| learning.set_live(node, false));
            Mind::Learning(Box::new(learning))
        };
        let mind = match &policy {
            PeerPolicy::Malcolm(learned) => learning(learned, false),
            PeerPolicy::Frozen(learned) => learning(learned, true),
            PeerPolicy::RandomSteal => Mind::RandomSteal,
            PeerPolicy::Shortest => Mind::Shortest,
            PeerPolicy::TwoChoices => Mind::TwoChoices,
            PeerPolicy::Below(below) => Mind::Below(*below),
            PeerPolicy::Keep => Mind::Keep,
        };
        let other = Other { born: 0, number: 0, load: 0.0, waiting: 0, silent: 0, is_live: false };
        Self {
            rng: Rng::seed_from_u64(stream_seed(seed, own, DECISIONS)),
            mind,
            own: OwnLoad::new(slots, policy.slots()),
            others: vec![other; nodes].into(),
            live: Vec::with_capacity(nodes),
            number: 0,
            next_beat_ns: settings.first_beat_ns,
            tells: false,
            done: Done::default(),
            heard: Done::default(),
            totals: Totals::default(),
            refusals: Refusals::default(),
            settings,
        }
    }

    /// What it is made of.
    #[must_use]
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// So many tasks wait here from now on.
    #[inline]
    pub fn set_waiting(&mut self, waiting: u32) {
        self.own.set_waiting(waiting);
    }

    /// Its workers may have so many tasks at once from now on.
    pub fn set_slots(&mut self, slots: u32) {
        self.own.set_tasks(slots);
    }

    /// A random number from 0 to below 1.
    #[inline]
    fn uniform(&mut self) -> f32 {
        (self.rng.next_u64() >> 40) as f32 / 16_777_216.0
    }

    /// A random number below that.
    #[inline]
    fn below(&mut self, count: usize) -> usize {
        (((self.rng.next_u64() >> 32) * count as u64) >> 32) as usize
    }

    /// A node that is there, any of them: `place` counts the others first, and then this one.
    #[inline]
    fn at(&self, place: usize) -> usize {
        self.live.get(place).map_or(self.settings.own, |node| usize::from(*node))
    }

    /// Tasks that wait at a node, as far as is known here.
    #[inline]
    fn waiting(&self, node: usize) -> u32 {
        if node == self.settings.own { self.own.waiting() } else { self.others[node].waiting }
    }

    /// A fresh task came from a client: the node that it goes to, or none when it stays. A task that came from a peer always stays.
    #[inline]
    pub fn destination(&mut self) -> Option<usize> {
        let own = self.settings.own;
        let node = match &self.mind {
            Mind::Keep | Mind::RandomSteal => own,
            _ if self.live.is_empty() => own,
            Mind::Learning(learning) if !learning.migrates => own,
            Mind::Learning(_) => {
                let uniform = self.uniform();
                let Mind::Learning(learning) = &mut self.mind else { return None };
                learning.destination(uniform)
            }
            Mind::Shortest => self.shortest(),
            Mind::TwoChoices => self.two_choices(),
            Mind::Below(below) => self.any_below(*below),
        };
        if node == own {
            return None;
        }
        self.others[node].waiting = self.others[node].waiting.saturating_add(1);
        self.done.migrations = self.done.migrations.saturating_add(1);
        self.totals.migrations += 1;
        Some(node)
    }

    /// Of the nodes with the fewest tasks this one, or any.
    fn shortest(&mut self) -> usize {
        let own = self.settings.own;
        let (mut best, mut least, mut ties) = (own, self.own.waiting(), 0);
        for place in 0..self.live.len() {
            let node = self.at(place);
            let waiting = self.others[node].waiting;
            if waiting < least {
                (best, least, ties) = (node, waiting, 1);
            } else if waiting == least && best != own {
                ties += 1;
                if self.below(ties) == 0 {
                    best = node;
                }
            }
        }
        best
    }

    /// The one of two different nodes that has fewer tasks; this one, or the first, when both have as many.
    fn two_choices(&mut self) -> usize {
        let count = self.live.len() + 1;
        let first = self.below(count);
        let second = (first + 1 + self.below(count - 1)) % count;
        let (first, second) = (self.at(first), self.at(second));
        let (one, other) = (self.waiting(first), self.waiting(second));
        if other < one || other == one && second == self.settings.own { second } else { first }
    }

    /// This node or any other that has fewer tasks than that, else any.
    fn any_below(&mut self, below: u32) -> usize {
        if self.own.waiting() < below {
            return self.settings.own;
        }
        let (mut found, mut count) = (None, 0);
        for place in 0..self.live.len() {
            let node = self.at(place);
            if self.others[node].waiting < below {
                count += 1;
                if self.below(count) == 0 {
                    found = Some(node);
                }
            }
        }
        found.unwrap_or_else(|| {
            let any = self.below(self.live.len() + 1);
            self.at(any)
        })
    }

    /// A worker is done with a task that took so long: whom to ask for another one, if anybody.
    #[inline]
    pub fn done(&mut self, service_ns: u64) -> Option<usize> {
        self.served(service_ns);
        self.victim()
    }

    /// A worker is done with a task that took so long.
    #[inline]
    pub fn served(&mut self, service_ns: u64) {
        self.own.served(service_ns);
    }

    /// A worker has become free: whom to ask for a task, if anybody.
    #[inline]
    pub fn victim(&mut self) -> Option<usize> {
        if self.live.is_empty() || self.own.waiting() > 0 {
            return None;
        }
        let node = match &self.mind {
            Mind::Learning(learning) if learning.steals_at_all => {
                let uniform = self.uniform();
                let Mind::Learning(learning) = &mut self.mind else { return None };
                learning.victim(uniform)
            }
            Mind::RandomSteal => {
                let any = self.below(self.live.len());
                self.at(any)
            }
            _ => return None,
        };
        if node == self.settings.own {
            return None;
        }
        self.done.steals = self.done.steals.saturating_add(1);
        self.totals.steals += 1;
        Some(node)
    }

    /// Another node asks for a task: it gets the first that waits, if one does.
    #[inline]
    pub fn asked(&mut self) -> bool {
        let gives = self.own.waiting() > 0;
        if gives {
            self.totals.given += 1;
        } else {
            self.done.failed_steals = self.done.failed_steals.saturating_add(1);
            self.totals.failed_steals += 1;
        }
        gives
    }

    /// There was no room for a task.
    #[inline]
    pub fn failed(&mut self) {
        self.done.failed_tasks = self.done.failed_tasks.saturating_add(1);
        self.totals.failed_tasks += 1;
    }

    /// When its next beat ends.
    #[inline]
    #[must_use]
    pub fn next_beat_ns(&self) -> u64 {
        self.next_beat_ns
    }

    /// A beat ends: what all others are to be told. [`Peers::parameters`] may have more.
    pub fn beat(&mut self, now_ns: u64) -> Heartbeat {
        self.number += 1;
        self.totals.beats += 1;
        // Beats that were missed are not made up for.
        let beat_ns = self.settings.beat_ns.max(1);
        let missed = now_ns.saturating_sub(self.next_beat_ns) / beat_ns;
        self.next_beat_ns += (missed + 1) * beat_ns;
        for node in 0..self.others.len() {
            let other = &mut self.others[node];
            other.silent += 1;
            if other.is_live && other.silent > SILENT_BEATS {
                self.set_live(node, false);
            }
        }
        let done = std::mem::take(&mut self.done);
        let mut all = std::mem::take(&mut self.heard);
        add(&mut all, &done);
        let load = self.own.load();
        if let Mind::Learning(learning) = &mut self.mind {
            let own = self.settings.own;
            let loads = self.others.iter().enumerate().map(|(node, other)| match node {
                _ if node == own => (load, true),
                _ => (other.load, other.is_live),
            });
            learning.beat(loads, &all);
            self.tells = false;
            let round = self.number / CONSENSUS_BEATS;
            if round > learning.consensus.round() {
                learning.tell(round);
                self.tells = true;
            } else if self.number == round * CONSENSUS_BEATS + 1 && round > 0 {
                let live = self.live.iter().map(|node| usize::from(*node));
                self.totals.lost_chunks += learning.consensus.close(live);
                learning.learner.agree();
                self.totals.agreed += 1;
            }
        }
        let waiting = self.own.waiting().min(COUNT_MAX);
        Heartbeat { origin: self.origin(), number: self.number, load, waiting, done }
    }

    /// As whom it speaks.
    #[must_use]
    pub fn origin(&self) -> Origin {
        let Settings { nodes, own, born, .. } = self.settings;
        let (nodes, id) = (nodes as u16, own as u16);
        Origin { version: VERSION, features: FEATURES, nodes, id, born }
    }

    /// What is to be told besides since the last beat: the parts of its critic's parameters, when critics are to agree.
    pub fn parameters(&self) -> impl Iterator<Item = (Parameters, &[f32])> {
        let origin = self.origin();
        let learning = match &self.mind {
            Mind::Learning(learning) if self.tells => Some(learning),
            _ => None,
        };
        learning.into_iter().flat_map(move |learning| {
            let (round, chunks) = (learning.consensus.round(), learning.consensus.chunks() as u16);
            let parts = learning.told.chunks(VALUES_MAX).zip(0..chunks);
            parts.map(move |(values, chunk)| (Parameters { origin, round, chunk, chunks }, values))
        })
    }

    /// Takes another node's heartbeat.
    ///
    /// # Errors
    /// Why it is not taken; that was counted.
    pub fn hear(&mut self, beat: &Heartbeat) -> Result<(), Refusal> {
        let taken = self.check(&beat.origin).and_then(|()| self.check_beat(beat));
        if let Err(refusal) = taken {
            self.refusals.count(refusal);
            return taken;
        }
        let node = usize::from(beat.origin.id);
        if beat.origin.born > self.others[node].born
            && let Mind::Learning(learning) = &mut self.mind
        {
            learning.consensus.forget(node);
        }
        let other = &mut self.others[node];
        (other.born, other.number) = (beat.origin.born, beat.number);
        (other.load, other.waiting, other.silent) = (beat.load, beat.waiting, 0);
        if !other.is_live {
            self.set_live(node, true);
        }
        add(&mut self.heard, &beat.done);
        self.totals.heard += 1;
        // Who comes in takes up the count of those who are there; that they are ahead by one is usual, for beats are out of step.
        if self.totals.beats < SILENT_BEATS && beat.number > self.number + 1 {
            self.number = beat.number;
            if let Mind::Learning(learning) = &mut self.mind {
                learning.consensus.open(self.number / CONSENSUS_BEATS, true);
            }
        }
        Ok(())
    }

    /// Checks who says a word: the node's number.
    ///
    /// # Errors
    /// Why nothing that it says is taken; that was counted.
    pub fn admit(&mut self, origin: &Origin) -> Result<usize, Refusal> {
        self.check(origin).inspect_err(|refusal| self.refusals.count(*refusal))?;
        Ok(usize::from(origin.id))
    }

    /// What every message must have.
    fn check(&self, origin: &Origin) -> Result<(), Refusal> {
        let &Origin { version, features, nodes, id, .. } = origin;
        if version != VERSION {
            return Err(Refusal::Version);
        }
        if usize::from(nodes) != self.settings.nodes {
            return Err(Refusal::Nodes);
        }
        if features != FEATURES {
            return Err(Refusal::Features);
        }
        if id >= nodes || usize::from(id) == self.settings.own {
            return Err(Refusal::Stranger);
        }
        Ok(())
    }

    fn check_beat(&self, beat: &Heartbeat) -> Result<(), Refusal> {
        if !beat.load.is_finite() {
            return Err(Refusal::NotFinite);
        }
        let Done { migrations, steals, failed_tasks, failed_steals } = beat.done;
        let counts = [beat.waiting, migrations, steals, failed_tasks, failed_steals];
        // Load is of tasks that wait.
        let can_be =
            (0.0..=LOAD_MAX).contains(&beat.load) && (beat.waiting > 0 || beat.load == 0.0);
        if !can_be || counts.into_iter().any(|count| count > COUNT_MAX) {
            return Err(Refusal::OutOfRange);
        }
        let other = &self.others[usize::from(beat.origin.id)];
        match (other.born, other.number).cmp(&(beat.origin.born, beat.number)) {
            std::cmp::Ordering::Less => Ok(()),
            std::cmp::Ordering::Equal => Err(Refusal::Doubled),
            std::cmp::Ordering::Greater => Err(Refusal::Old),
        }
    }

    /// Takes a part of another node's parameters.
    ///
    /// # Errors
    /// Why it is not taken; that was counted.
    pub fn hear_parameters(
        &mut self,
        head: &Parameters,
        values: impl ExactSizeIterator<Item = f32> + Clone,
    ) -> Result<(), Refusal> {
        let taken = self.check(&head.origin).and_then(|()| {
            let other = &self.others[usize::from(head.origin.id)];
            // Only who is known to live speaks for itself.
            if !other.is_live || other.born != head.origin.born {
                return Err(Refusal::Old);
            }
            match &mut self.mind {
                Mind::Learning(learning) => {
                    let Learning { learner, consensus, .. } = &mut **learning;
                    let whole = consensus.take(head, values)?;
                    whole.map_or(Ok(()), |values| learner.hear(values).map_err(|_| Refusal::Length))
                }
                _ => Err(Refusal::Features),
            }
        });
        taken.inspect_err(|refusal| self.refusals.count(*refusal))
    }

    /// A node is there, or not.
    #[cold]
    fn set_live(&mut self, node: usize, is_live: bool) {
        self.others[node].is_live = is_live;
        if !is_live {
            self.others[node].load = 0.0;
        }
        if let Mind::Learning(learning) = &mut self.mind {
            learning.set_live(node, is_live);
        }
        self.live.clear();
        let live = self.others.iter().enumerate().filter(|(_, other)| other.is_live);
        self.live.extend(live.map(|(node, _)| node as u16));
    }

    /// The other nodes that are there.
    #[must_use]
    pub fn live(&self) -> &[u16] {
        &self.live
    }

    /// What is known of another node: whether it is there, its load as it told last, and the tasks that wait there.
    #[must_use]
    pub fn known_of(&self, node: usize) -> (bool, f32, u32) {
        let Other { is_live, load, waiting, .. } = self.others[node];
        (is_live, load, waiting)
    }

    /// Work that waits here, in microseconds for each slot.
    #[must_use]
    pub fn load(&self) -> f32 {
        self.own.load()
    }

    /// The probabilities that a fresh task goes to each node, and that each is asked, where they are learned or drawn.
    #[must_use]
    pub fn probabilities(&self) -> Option<(&[f32], &[f32])> {
        match &self.mind {
            Mind::Learning(learning) => {
                Some((learning.learner.migration(), learning.learner.stealing()))
            }
            _ => None,
        }
    }

    /// By how much its critic is wrong: the moving mean of the squared temporal-difference error.
    #[must_use]
    pub fn value_loss(&self) -> Option<f64> {
        match &self.mind {
            Mind::Learning(learning) => Some(learning.value_loss),
            _ => None,
        }
    }

    /// What it has done.
    #[must_use]
    pub fn totals(&self) -> &Totals {
        &self.totals
    }

    /// What it has not taken.
    #[must_use]
    pub fn refusals(&self) -> &Refusals {
        &self.refusals
    }
}

/// Adds what somebody did.
fn add(all: &mut Done, done: &Done) {
    all.migrations = all.migrations.saturating_add(done.migrations);
    all.steals = all.steals.saturating_add(done.steals);
    all.failed_tasks = all.failed_tasks.saturating_add(done.failed_tasks);
    all.failed_steals = all.failed_steals.saturating_add(done.failed_steals);
}
