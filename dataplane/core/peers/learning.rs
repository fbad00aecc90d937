//! Learner of a node, and its input at each beat.
//!
//! Two learned policies choose nodes at random with learned probabilities: the destination of a fresh task
//! (migration), and the victim of a request by an idle worker (stealing). The critic estimates the rack's future
//! load, and both policies learn from its error. A *beat* is the interval between two heartbeats of the node.

use rand::SeedableRng as _;
use wedjat_learner::{AdamW, Choice, Costs, Counts, Events, Learner, Optimizer, Reward, Settings};

use super::consensus::Consensus;
use super::spec::LearnedOptions;
use crate::policy::Rng;
use crate::wire::peer::BeatStatistics;

/// Factor from load, in microseconds of waiting work per slot, to the learner's input, in milliseconds.
const SCALE: f32 = 1e-3;
/// Maximum input. The critic uses powers of it up to the fourth. With inputs of 100 a policy would become certain and
/// stop learning. Rewards use the loads without this limit, to compare overloaded states.
const INPUT_MAX: f32 = 1.0;
/// Weight of a beat in the moving mean of the critic's squared error.
const LOSS_SHARE: f64 = 1e-3;

/// Two policies with their learner, and their draws since the last beat.
#[derive(Clone, Debug)]
pub struct PeerLearner {
    /// Critic and both policies, with their parameters.
    pub learner: Learner,
    /// Parameters of the peers' critics in the current consensus round.
    pub consensus: Consensus,
    /// Computes the reward of a beat from loads and events.
    reward: Reward,
    /// Probabilities of the destination of a fresh task.
    migration: Choice,
    /// Probabilities of the node to request a task from.
    stealing: Choice,
    /// Draws of each node from `migration` since the last beat.
    migrations: Box<[u32]>,
    /// Draws of each node from `stealing` since the last beat.
    steals: Box<[u32]>,
    /// Learner's input: load of each node, scaled and limited.
    inputs: Box<[f32]>,
    /// Scaled loads of the present nodes, for rewards.
    present_loads: Vec<f32>,
    /// Critic's parameters as sent to peers in the last consensus round.
    pub published: Box<[f32]>,
    /// Factor on the loads that rewards use.
    gain: f32,
    /// True if the node learns nothing: the parameters of both policies never change.
    is_frozen: bool,
    /// True if the node forwards fresh tasks.
    pub migrates: bool,
    /// True if the node requests tasks.
    pub requests_tasks: bool,
    /// Moving mean of the squared temporal-difference error.
    pub value_loss: f64,
}

impl PeerLearner {
    /// Creates a learner with random initial parameters from `seed`. All nodes count as present.
    pub fn new(learned: &LearnedOptions, is_frozen: bool, nodes: usize, seed: u64) -> Self {
        let settings = Settings::new(nodes);
        let optimizer = match (learned.sgd, settings.optimizer) {
            (true, _) => Optimizer::Sgd,
            (false, Optimizer::AdamW(usual)) => {
                Optimizer::AdamW(AdamW { batch: learned.batch, ..usual })
            }
            (false, optimizer) => optimizer,
        };
        let settings = Settings {
            lambda: learned.lambda,
            critic_rate: learned.critic_rate,
            migration_rate: learned.actor_rate,
            stealing_rate: learned.actor_rate,
            optimizer,
            ..settings
        };
        let learner = Learner::new(settings, &mut Rng::seed_from_u64(seed));
        let parameters = learner.critic().len();
        let mut learning = Self {
            consensus: Consensus::new(nodes, parameters),
            published: vec![0.0; parameters].into(),
            learner,
            reward: Reward::new(SCALE, Costs::default(), learned.utility),
            migration: Choice::new(nodes),
            stealing: Choice::new(nodes),
            migrations: vec![0; nodes].into(),
            steals: vec![0; nodes].into(),
            inputs: vec![0.0; nodes].into(),
            present_loads: Vec::with_capacity(nodes),
            gain: learned.gain,
            is_frozen,
            migrates: learned.migrates,
            requests_tasks: learned.steals,
            value_loss: 0.0,
        };
        learning.update_choices();
        learning
    }

    /// Returns the destination of a fresh task, drawn with a random number in [0, 1). Counts the draw, from which the
    /// next beat learns.
    #[inline]
    pub fn destination(&mut self, uniform: f32) -> usize {
        let node = self.migration.draw(uniform);
        self.migrations[node] += 1;
        node
    }

    /// Returns the node to request a task from, drawn with a random number in [0, 1). Counts the draw, from which the
    /// next beat learns.
    #[inline]
    pub fn victim(&mut self, uniform: f32) -> usize {
        let node = self.stealing.draw(uniform);
        self.steals[node] += 1;
        node
    }

    /// Marks a node as present or absent.
    pub fn set_live(&mut self, node: usize, is_live: bool) {
        self.learner.set_live(node, is_live);
        self.update_choices();
    }

    /// Ends a beat: computes the probabilities for these loads, each with the node's presence. Unless frozen, first
    /// learns from the draws, the loads, and the events of all present nodes.
    pub fn beat(&mut self, loads: impl Iterator<Item = (f32, bool)>, events: &BeatStatistics) {
        self.present_loads.clear();
        for (input, (load, is_live)) in self.inputs.iter_mut().zip(loads) {
            let scaled = load * SCALE;
            *input = scaled.min(INPUT_MAX);
            if is_live {
                self.present_loads.push(scaled * self.gain);
            }
        }
        let result = if self.is_frozen {
            // Computes the probabilities for these loads, and learns nothing.
            self.learner.start(&self.inputs)
        } else {
            let BeatStatistics { migrations, steals, failed_tasks, failed_steals } = *events;
            let events = Events { migrations, steals, failed_tasks, failed_steals };
            let reward = self.reward.of(&self.present_loads, &events);
            let draws = Counts { migrations: &self.migrations, steals: &self.steals };
            self.learner.beat(&self.inputs, reward, draws).map(|beat| {
                let loss = f64::from(beat.td_error).powi(2);
                self.value_loss += LOSS_SHARE * (loss - self.value_loss);
            })
        };
        // Loads of peers were checked on receipt to be finite and in range, so the reward is finite, too.
        debug_assert!(result.is_ok(), "{result:?}");
        self.migrations.fill(0);
        self.steals.fill(0);
        self.update_choices();
    }

    /// Opens a consensus round, and copies this critic's parameters in the order in which messages have them.
    pub fn start_consensus(&mut self, round: u64) {
        let is_over = false;
        self.consensus.open(round, is_over);
        let values = self.learner.critic();
        self.published.iter_mut().zip(values).for_each(|(published, value)| *published = *value);
    }

    /// Copies the learner's probabilities to the choices that draw from them.
    fn update_choices(&mut self) {
        self.migration.set(self.learner.migration());
        self.stealing.set(self.learner.stealing());
    }
}
