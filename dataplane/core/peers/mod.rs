//! Decisions of one node in a rack without a leaf: the destination of a fresh task, the node to request a task
//! from when idle (a *steal*), and learning from the messages of all nodes (Malcolm, POMACS 2022).
//!
//! Each node has its own queue and workers, and clients send to any node. [`Peers`] contains all decisions of
//! such a node, for agents with peers and for the simulator. Time, seed and messages are arguments, and
//! nothing allocates after the start.
//!
//! Time is divided into *beats*. At the end of each, a node sends its waiting work to all peers ([`Heartbeat`]);
//! the nodes' beats are out of phase. A peer is present from its first heartbeat until it was silent for more than
//! [`SILENT_BEATS`] of this node's beats. Absent peers receive no tasks and no requests, and do not count in
//! learning. Beats are numbered. A starting node adopts the number of the present ones, so that all nodes agree on
//! the time of a *consensus*: the exchange and averaging of their critics' parameters, which takes one beat. The
//! *critic* is the learned estimate of the rack's future load. Invalid message contents are counted by reason and
//! otherwise ignored ([`Refusal`]).
//!
//! Deviations from the released program: the counters in a heartbeat belong to the period that it ends. Loads use the
//! current queues instead of values smoothed over polls. So a node requests a task as soon as none waits. Nodes may
//! leave and return.

mod consensus;
mod learning;
mod load;
mod refusal;
mod spec;
#[cfg(test)]
mod tests;

use rand::{Rng as _, SeedableRng as _};

pub use refusal::{Refusal, Refusals};
pub use spec::{LearnedOptions, PeerPolicy, PeerPolicyError};
pub use wedjat_learner::{NODES_MAX, Utility};

use crate::policy::{Rng, stream_seed};
use crate::wire::peer::{BeatStatistics, Heartbeat, Origin, Parameters, VALUES_MAX, VERSION};
use learning::PeerLearner;
use load::{LOAD_MAX, OwnLoad};

/// Version of the learner's features: an actor with ranks and loads, a critic with powers and products.
pub const FEATURES: u8 = 1;
/// Default length of a beat.
pub const BEAT_NS: u64 = 100_000;
/// Silent beats after which a peer counts as absent at the next one.
pub const SILENT_BEATS: u64 = 10;
/// Beats between two consensus rounds.
pub const CONSENSUS_BEATS: u64 = 2000;
/// Largest accepted number of waiting tasks, or of events per beat.
const COUNT_MAX: u32 = 1 << 20;
/// Maximum number of a heartbeat: 89 years at 10 us a beat. It limits the number that a joining node adopts and counts
/// on from.
const BEAT_MAX: u64 = 1 << 48;
/// Stream of random numbers for a node's decisions.
const DECISIONS: usize = 0;
/// Stream of random numbers for a node's initial parameters.
const PARAMETERS: usize = 1;

/// Parameters of a node.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Number of nodes, at most [`NODES_MAX`].
    pub nodes: usize,
    /// Index of this node.
    pub own: usize,
    /// Policy.
    pub policy: PeerPolicy,
    /// Number of tasks that its workers may have at once.
    pub slots: u32,
    /// Length of a beat.
    pub beat_ns: u64,
    /// End of the first beat.
    pub first_beat_ns: u64,
    /// Start time of the node. It grows with each restart, so that peers tell a restarted node from its predecessor.
    pub born: u64,
    /// Seed of its random decisions and of its initial parameters.
    pub seed: u64,
}

/// State of another node. The entry of this node is unused.
#[derive(Clone, Debug)]
struct RemoteNode {
    /// Start time of the node.
    born: u64,
    /// Number of its last heartbeat.
    number: u64,
    /// Load in its last heartbeat, in microseconds of waiting work per slot; 0 while it is absent.
    load: f32,
    /// Waiting tasks by its last heartbeat, plus tasks forwarded to it since.
    waiting: u32,
    /// Beats of this node since the peer's last heartbeat.
    silent: u64,
    /// True if it is present.
    is_live: bool,
}

/// Decision rule of a node: its [`PeerPolicy`], with the state of a learned one.
#[derive(Clone, Debug)]
enum DecisionRule {
    /// Both learned policies, learning or frozen.
    Learning(Box<PeerLearner>),
    RandomSteal,
    Shortest,
    TwoChoices,
    Below(u32),
    Keep,
}

/// Counts of a node since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Forwarded tasks.
    pub migrations: u64,
    /// Requests for a task.
    pub steals: u64,
    /// Tasks dropped because of a full queue.
    pub failed_tasks: u64,
    /// Requests received without a task to give.
    pub failed_steals: u64,
    /// Tasks given to other nodes on request.
    pub given: u64,
    /// Beats.
    pub beats: u64,
    /// Accepted heartbeats of other nodes.
    pub heard: u64,
    /// Parts of other nodes' parameters that did not arrive in time.
    pub lost_parts: u64,
    /// Completed consensus rounds.
    pub agreed: u64,
}

/// One node of a rack without a leaf: forwards fresh tasks, asks for tasks, and exchanges state with its
/// peers.
#[derive(Clone, Debug)]
pub struct Peers {
    settings: Settings,
    rng: Rng,
    rule: DecisionRule,
    /// Load of this node.
    own: OwnLoad,
    /// State of the nodes by number.
    nodes: Box<[RemoteNode]>,
    /// Numbers of the present peers, in ascending order.
    live: Vec<u16>,
    /// Number of its last heartbeat.
    number: u64,
    /// End of the current beat.
    next_beat_ns: u64,
    /// True if parameters must be sent for a consensus.
    sends_parameters: bool,
    /// Events of this node since the last beat.
    events: BeatStatistics,
    /// Sum of the peers' events since the last beat.
    peer_events: BeatStatistics,
    totals: Totals,
    refusals: Refusals,
}

impl Peers {
    /// Creates a node without known peers.
    ///
    /// # Panics
    /// If the number of nodes is 0 or above [`NODES_MAX`], or `own` is out of range.
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        let Settings { nodes, own, policy, slots, seed, .. } = settings;
        assert!((1..=NODES_MAX).contains(&nodes) && own < nodes, "node {own} of {nodes}");
        let learning = |learned: &LearnedOptions, is_frozen| {
            let mut learning =
                PeerLearner::new(learned, is_frozen, nodes, stream_seed(seed, own, PARAMETERS));
            (0..nodes).filter(|node| *node != own).for_each(|node| learning.set_live(node, false));
            DecisionRule::Learning(Box::new(learning))
        };
        let rule = match &policy {
            PeerPolicy::Malcolm(learned) => learning(learned, false),
            PeerPolicy::Frozen(learned) => learning(learned, true),
            PeerPolicy::RandomSteal => DecisionRule::RandomSteal,
            PeerPolicy::Shortest => DecisionRule::Shortest,
            PeerPolicy::TwoChoices => DecisionRule::TwoChoices,
            PeerPolicy::Below(below) => DecisionRule::Below(*below),
            PeerPolicy::Keep => DecisionRule::Keep,
        };
        let node =
            RemoteNode { born: 0, number: 0, load: 0.0, waiting: 0, silent: 0, is_live: false };
        Self {
            rng: Rng::seed_from_u64(stream_seed(seed, own, DECISIONS)),
            rule,
            own: OwnLoad::new(slots, policy.slots()),
            nodes: vec![node; nodes].into(),
            live: Vec::with_capacity(nodes),
            number: 0,
            next_beat_ns: settings.first_beat_ns,
            sends_parameters: false,
            events: BeatStatistics::default(),
            peer_events: BeatStatistics::default(),
            totals: Totals::default(),
            refusals: Refusals::default(),
            settings,
        }
    }

    /// Returns its parameters.
    #[must_use]
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Sets the number of waiting tasks.
    #[inline]
    pub fn set_waiting(&mut self, waiting: u32) {
        self.own.set_waiting(waiting);
    }

    /// Sets the number of tasks that its workers may have at once.
    pub fn set_slots(&mut self, slots: u32) {
        self.own.set_tasks(slots);
    }

    /// Draws a random number in [0, 1).
    #[inline]
    fn uniform(&mut self) -> f32 {
        (self.rng.next_u64() >> 40) as f32 / 16_777_216.0 // 24 random bits: the precision of f32
    }

    /// Draws a random number below `count`.
    #[inline]
    fn below(&mut self, count: usize) -> usize {
        (((self.rng.next_u64() >> 32) * count as u64) >> 32) as usize
    }

    /// Returns the present node at an index: the peers first, then this one.
    #[inline]
    fn node_at(&self, index: usize) -> usize {
        self.live.get(index).map_or(self.settings.own, |node| usize::from(*node))
    }

    /// Returns the known number of waiting tasks at a node.
    #[inline]
    fn waiting(&self, node: usize) -> u32 {
        if node == self.settings.own { self.own.waiting() } else { self.nodes[node].waiting }
    }

    /// Returns the destination of a fresh client task and counts the migration, or `None` if the task stays. A task
    /// from a peer always stays: the caller does not ask.
    #[inline]
    pub fn destination(&mut self) -> Option<usize> {
        let own = self.settings.own;
        let node = match &self.rule {
            DecisionRule::Keep | DecisionRule::RandomSteal => own,
            _ if self.live.is_empty() => own,
            DecisionRule::Learning(learning) if !learning.migrates => own,
            DecisionRule::Learning(_) => {
                let uniform = self.uniform();
                // Borrowed again, because the draw needs all of `self`.
                let DecisionRule::Learning(learning) = &mut self.rule else { return None };
                learning.destination(uniform)
            }
            DecisionRule::Shortest => self.shortest(),
            DecisionRule::TwoChoices => self.two_choices(),
            DecisionRule::Below(below) => self.any_below(*below),
        };
        if node == own {
            return None;
        }
        self.nodes[node].waiting = self.nodes[node].waiting.saturating_add(1);
        self.events.migrations = self.events.migrations.saturating_add(1);
        self.totals.migrations += 1;
        Some(node)
    }

    /// Returns the node with the fewest waiting tasks. On a tie, this node if it is among them, else a random one.
    fn shortest(&mut self) -> usize {
        let own = self.settings.own;
        let (mut best, mut least, mut ties) = (own, self.own.waiting(), 0);
        for index in 0..self.live.len() {
            let node = self.node_at(index);
            let waiting = self.nodes[node].waiting;
            if waiting < least {
                (best, least, ties) = (node, waiting, 1);
            } else if waiting == least && best != own {
                // The n-th of equal nodes replaces the choice with probability 1/n, so all are equally likely.
                ties += 1;
                if self.below(ties) == 0 {
                    best = node;
                }
            }
        }
        best
    }

    /// Returns the one of two random nodes with fewer waiting tasks. On a tie, this node, else the first one.
    fn two_choices(&mut self) -> usize {
        let count = self.live.len() + 1;
        let first = self.below(count);
        let second = (first + 1 + self.below(count - 1)) % count; // uniform among the others
        let (first, second) = (self.node_at(first), self.node_at(second));
        let (at_first, at_second) = (self.waiting(first), self.waiting(second));
        let is_tie = at_first == at_second;
        if at_second < at_first || is_tie && second == self.settings.own { second } else { first }
    }

    /// Returns this node if it has fewer than `below` waiting tasks, else a random peer with fewer, else any
    /// present node.
    fn any_below(&mut self, below: u32) -> usize {
        if self.own.waiting() < below {
            return self.settings.own;
        }
        let (mut found, mut count) = (None, 0);
        for index in 0..self.live.len() {
            let node = self.node_at(index);
            if self.nodes[node].waiting < below {
                count += 1;
                // All candidates are equally likely, as in `shortest`.
                if self.below(count) == 0 {
                    found = Some(node);
                }
            }
        }
        found.unwrap_or_else(|| {
            let any = self.below(self.live.len() + 1);
            self.node_at(any)
        })
    }

    /// Records a completed task. Returns the node to ask for another one, if any.
    #[inline]
    pub fn done(&mut self, service_ns: u64) -> Option<usize> {
        self.served(service_ns);
        self.victim()
    }

    /// Records a completed task.
    #[inline]
    pub fn served(&mut self, service_ns: u64) {
        self.own.add_service_time(service_ns);
    }

    /// Handles an idle worker. Returns the node to ask for a task (the *victim* of a steal), if any.
    #[inline]
    pub fn victim(&mut self) -> Option<usize> {
        if self.live.is_empty() || self.own.waiting() > 0 {
            return None;
        }
        let node = match &self.rule {
            DecisionRule::Learning(learning) if learning.requests_tasks => {
                let uniform = self.uniform();
                let DecisionRule::Learning(learning) = &mut self.rule else { return None };
                learning.victim(uniform)
            }
            DecisionRule::RandomSteal => {
                let any = self.below(self.live.len());
                self.node_at(any)
            }
            _ => return None,
        };
        if node == self.settings.own {
            return None;
        }
        self.events.steals = self.events.steals.saturating_add(1);
        self.totals.steals += 1;
        Some(node)
    }

    /// Handles a peer's request for a task. Returns true if the peer gets the first waiting task, which the caller
    /// sends.
    #[inline]
    pub fn handle_steal_request(&mut self) -> bool {
        let has_task = self.own.waiting() > 0;
        if has_task {
            self.totals.given += 1;
        } else {
            self.events.failed_steals = self.events.failed_steals.saturating_add(1);
            self.totals.failed_steals += 1;
        }
        has_task
    }

    /// Counts a task dropped because of a full queue.
    #[inline]
    pub fn count_failed_task(&mut self) {
        self.events.failed_tasks = self.events.failed_tasks.saturating_add(1);
        self.totals.failed_tasks += 1;
    }

    /// Returns the end of the current beat.
    #[inline]
    #[must_use]
    pub fn next_beat_ns(&self) -> u64 {
        self.next_beat_ns
    }

    /// Ends a beat: marks silent peers absent, learns, and starts or ends a consensus when its beat has come.
    /// Returns the heartbeat for all peers. [`Peers::parameters`] may return more to send.
    pub fn beat(&mut self, now_ns: u64) -> Heartbeat {
        self.totals.beats += 1;
        // Skips missed beats: they have no heartbeat. Their numbers are skipped, too, so that this node stays in the
        // same consensus round as its peers. Beats before the first one are not missed: the node had not started.
        let beat_ns = self.settings.beat_ns.max(1);
        let missed = now_ns.saturating_sub(self.next_beat_ns) / beat_ns;
        self.number += if self.totals.beats == 1 { 1 } else { missed + 1 };
        self.next_beat_ns += (missed + 1) * beat_ns;
        for node in 0..self.nodes.len() {
            let peer = &mut self.nodes[node];
            peer.silent += 1;
            if peer.is_live && peer.silent > SILENT_BEATS {
                self.set_live(node, false);
            }
        }
        let events = std::mem::take(&mut self.events);
        let mut all_events = std::mem::take(&mut self.peer_events);
        add(&mut all_events, &events);
        let load = self.own.load();
        if let DecisionRule::Learning(learning) = &mut self.rule {
            let own = self.settings.own;
            let loads = self.nodes.iter().enumerate().map(|(node, peer)| match node {
                _ if node == own => (load, true),
                _ => (peer.load, peer.is_live),
            });
            learning.beat(loads, &all_events);
            self.sends_parameters = false;
            // Nodes send their parameters in one beat and average the received ones at the end of the next.
            let round = self.number / CONSENSUS_BEATS;
            if round > learning.consensus.round() {
                learning.start_consensus(round);
                self.sends_parameters = true;
            } else if learning.consensus.is_open() {
                let live = self.live.iter().map(|node| usize::from(*node));
                self.totals.lost_parts += learning.consensus.close(live);
                learning.learner.average_critics();
                self.totals.agreed += 1;
            }
        }
        let waiting = self.own.waiting().min(COUNT_MAX);
        Heartbeat { origin: self.origin(), number: self.number, load, waiting, done: events }
    }

    /// Returns the sender fields of its messages.
    #[must_use]
    pub fn origin(&self) -> Origin {
        let Settings { nodes, own, born, .. } = self.settings;
        let (nodes, id) = (nodes as u16, own as u16);
        Origin { version: VERSION, features: FEATURES, nodes, id, born }
    }

    /// Returns the parts of the critic's parameters to send after a beat, in a consensus round.
    pub fn parameters(&self) -> impl Iterator<Item = (Parameters, &[f32])> {
        let origin = self.origin();
        let learning = match &self.rule {
            DecisionRule::Learning(learning) if self.sends_parameters => Some(learning),
            _ => None,
        };
        learning.into_iter().flat_map(move |learning| {
            let (round, parts) = (learning.consensus.round(), learning.consensus.parts() as u16);
            let numbered = learning.published.chunks(VALUES_MAX).zip(0..parts);
            numbered.map(move |(values, part)| (Parameters { origin, round, part, parts }, values))
        })
    }

    /// Processes another node's heartbeat.
    ///
    /// # Errors
    /// Reason why it was refused and counted.
    pub fn receive_heartbeat(&mut self, beat: &Heartbeat) -> Result<(), Refusal> {
        let checked = self.check(&beat.origin).and_then(|()| self.check_beat(beat));
        if let Err(refusal) = checked {
            self.refusals.count(refusal);
            return checked;
        }
        let node = usize::from(beat.origin.id);
        if beat.origin.born > self.nodes[node].born
            && let DecisionRule::Learning(learning) = &mut self.rule
        {
            learning.consensus.forget(node); // its predecessor's parts
        }
        let peer = &mut self.nodes[node];
        (peer.born, peer.number) = (beat.origin.born, beat.number);
        (peer.load, peer.waiting, peer.silent) = (beat.load, beat.waiting, 0);
        if !peer.is_live {
            self.set_live(node, true);
        }
        add(&mut self.peer_events, &beat.done);
        self.totals.heard += 1;
        // A joining node adopts the beat number of the present ones. A difference of one is normal, because
        // beats are out of phase.
        if self.totals.beats < SILENT_BEATS && beat.number > self.number + 1 {
            self.number = beat.number;
            if let DecisionRule::Learning(learning) = &mut self.rule {
                // It joins too late for the current round.
                learning.consensus.open(self.number / CONSENSUS_BEATS, true);
            }
        }
        Ok(())
    }

    /// Checks the claimed sender of any peer message and returns its index. The caller checks the addresses.
    ///
    /// # Errors
    /// Reason why the message is refused and counted.
    pub fn admit(&mut self, origin: &Origin) -> Result<usize, Refusal> {
        self.check(origin).inspect_err(|refusal| self.refusals.count(*refusal))?;
        Ok(usize::from(origin.id))
    }

    /// Checks the fields common to all messages.
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

    /// Checks the contents of a heartbeat, and that it is newer than the last one of its sender.
    fn check_beat(&self, beat: &Heartbeat) -> Result<(), Refusal> {
        if !beat.load.is_finite() {
            return Err(Refusal::NotFinite);
        }
        let BeatStatistics { migrations, steals, failed_tasks, failed_steals } = beat.done;
        let counts = [beat.waiting, migrations, steals, failed_tasks, failed_steals];
        // A load above 0 requires waiting tasks.
        let is_possible =
            (0.0..=LOAD_MAX).contains(&beat.load) && (beat.waiting > 0 || beat.load == 0.0);
        if !is_possible
            || counts.into_iter().any(|count| count > COUNT_MAX)
            || beat.number > BEAT_MAX
        {
            return Err(Refusal::OutOfRange);
        }
        let peer = &self.nodes[usize::from(beat.origin.id)];
        match (peer.born, peer.number).cmp(&(beat.origin.born, beat.number)) {
            std::cmp::Ordering::Less => Ok(()),
            std::cmp::Ordering::Equal => Err(Refusal::Doubled),
            std::cmp::Ordering::Greater => Err(Refusal::Old),
        }
    }

    /// Processes a part of another node's parameters.
    ///
    /// # Errors
    /// Reason why it was refused and counted.
    pub fn receive_parameters(
        &mut self,
        head: &Parameters,
        values: impl ExactSizeIterator<Item = f32> + Clone,
    ) -> Result<(), Refusal> {
        let result = self.check(&head.origin).and_then(|()| {
            let peer = &self.nodes[usize::from(head.origin.id)];
            // Only parts from a present node, and not from its predecessor before a restart.
            if !peer.is_live || peer.born != head.origin.born {
                return Err(Refusal::Old);
            }
            match &mut self.rule {
                DecisionRule::Learning(learning) => {
                    let PeerLearner { learner, consensus, .. } = &mut **learning;
                    // The learner gets the values once all parts have arrived.
                    let all_values = consensus.store(head, values)?;
                    all_values.map_or(Ok(()), |values| {
                        learner.receive_critic(values).map_err(|_| Refusal::Length)
                    })
                }
                _ => Err(Refusal::Features),
            }
        });
        result.inspect_err(|refusal| self.refusals.count(*refusal))
    }

    /// Marks a node as present or absent.
    #[cold]
    fn set_live(&mut self, node: usize, is_live: bool) {
        self.nodes[node].is_live = is_live;
        if !is_live {
            self.nodes[node].load = 0.0;
        }
        if let DecisionRule::Learning(learning) = &mut self.rule {
            learning.set_live(node, is_live);
        }
        self.live.clear();
        let live = self.nodes.iter().enumerate().filter(|(_, peer)| peer.is_live);
        self.live.extend(live.map(|(node, _)| node as u16));
    }

    /// Returns the present peers.
    #[must_use]
    pub fn live(&self) -> &[u16] {
        &self.live
    }

    /// Returns presence, last load, and known number of waiting tasks of another node.
    #[must_use]
    pub fn peer_state(&self, node: usize) -> (bool, f32, u32) {
        let RemoteNode { is_live, load, waiting, .. } = self.nodes[node];
        (is_live, load, waiting)
    }

    /// Returns the waiting work here in microseconds per slot.
    #[must_use]
    pub fn load(&self) -> f32 {
        self.own.load()
    }

    /// Returns the probabilities of migration to and stealing from each node, if the policy has them.
    #[must_use]
    pub fn probabilities(&self) -> Option<(&[f32], &[f32])> {
        match &self.rule {
            DecisionRule::Learning(learning) => {
                Some((learning.learner.migration(), learning.learner.stealing()))
            }
            _ => None,
        }
    }

    /// Returns the moving mean of the critic's squared temporal-difference error; `None` for a policy without a
    /// critic.
    #[must_use]
    pub fn value_loss(&self) -> Option<f64> {
        match &self.rule {
            DecisionRule::Learning(learning) => Some(learning.value_loss),
            _ => None,
        }
    }

    /// Returns the counts.
    #[must_use]
    pub fn totals(&self) -> &Totals {
        &self.totals
    }

    /// Returns the counts of refused messages.
    #[must_use]
    pub fn refusals(&self) -> &Refusals {
        &self.refusals
    }
}

/// Adds `events` to `all`.
fn add(all: &mut BeatStatistics, events: &BeatStatistics) {
    all.migrations = all.migrations.saturating_add(events.migrations);
    all.steals = all.steals.saturating_add(events.steals);
    all.failed_tasks = all.failed_tasks.saturating_add(events.failed_tasks);
    all.failed_steals = all.failed_steals.saturating_add(events.failed_steals);
}
