//! A node's learner, and what it is given at each beat.

use rand::SeedableRng as _;
use wedjat_learner::{AdamW, Choice, Costs, Counts, Events, Learner, Optimizer, Reward, Settings};

use super::consensus::Consensus;
use super::spec::Learned;
use crate::policy::Rng;
use crate::wire::peer::Done;

/// What the learner sees of a load, which is in microseconds for each slot of a worker.
const SCALE: f32 = 1e-3;
/// Loads beyond this are alike to the policies and to the critic, which see them as they are and to the fourth power: a policy that
/// saw a hundred times as much would be certain of what it does, and learn nothing any more. Rewards are of the loads themselves, so
/// that an overloaded rack still tells better from worse.
const SEEN_MAX: f32 = 1.0;
/// Weight of a beat in the mean of what critics are wrong by.
const LOSS_SHARE: f64 = 1e-3;

/// Two policies, how they learn, and what they were drawn for since the last beat.
#[derive(Clone, Debug)]
pub struct Learning {
    pub learner: Learner,
    pub consensus: Consensus,
    reward: Reward,
    migration: Choice,
    stealing: Choice,
    migrations: Box<[u32]>,
    steals: Box<[u32]>,
    /// Loads as the learner sees them.
    seen: Box<[f32]>,
    /// Loads of the nodes that are there, one behind the other.
    present: Vec<f32>,
    /// The critic's parameters as they are told.
    pub told: Box<[f32]>,
    /// What rewards are of, as a multiple of what is seen.
    gain: f32,
    /// It only decides, and never changes its parameters.
    is_frozen: bool,
    pub migrates: bool,
    pub steals_at_all: bool,
    /// Moving mean of the squared temporal-difference error.
    pub value_loss: f64,
}

impl Learning {
    pub fn new(learned: &Learned, is_frozen: bool, nodes: usize, seed: u64) -> Self {
        let settings = Settings::new(nodes);
        let optimizer = match (learned.sgd, settings.optimizer) {
            (true, _) => Optimizer::Sgd,
            (false, Optimizer::AdamW(usual)) => {
                Optimizer::AdamW(AdamW { batch: learned.batch, ..usual })
            }
            (false, other) => other,
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
            told: vec![0.0; parameters].into(),
            learner,
            reward: Reward::new(SCALE, Costs::default(), learned.utility),
            migration: Choice::new(nodes),
            stealing: Choice::new(nodes),
            migrations: vec![0; nodes].into(),
            steals: vec![0; nodes].into(),
            seen: vec![0.0; nodes].into(),
            present: Vec::with_capacity(nodes),
            gain: learned.gain,
            is_frozen,
            migrates: learned.migrates,
            steals_at_all: learned.steals,
            value_loss: 0.0,
        };
        learning.publish();
        learning
    }

    /// Where a fresh task goes.
    #[inline]
    pub fn destination(&mut self, uniform: f32) -> usize {
        let node = self.migration.draw(uniform);
        self.migrations[node] += 1;
        node
    }

    /// Whom to ask.
    #[inline]
    pub fn victim(&mut self, uniform: f32) -> usize {
        let node = self.stealing.draw(uniform);
        self.steals[node] += 1;
        node
    }

    /// A node is there, or not.
    pub fn set_live(&mut self, node: usize, is_live: bool) {
        self.learner.set_live(node, is_live);
        self.publish();
    }

    /// A beat ends with these loads, each with whether its node is there, and all of these did this in it.
    pub fn beat(&mut self, loads: impl Iterator<Item = (f32, bool)>, done: &Done) {
        self.present.clear();
        for (seen, (load, is_live)) in self.seen.iter_mut().zip(loads) {
            let scaled = load * SCALE;
            *seen = scaled.min(SEEN_MAX);
            if is_live {
                self.present.push(scaled * self.gain);
            }
        }
        let taken = if self.is_frozen {
            self.learner.start(&self.seen)
        } else {
            let Done { migrations, steals, failed_tasks, failed_steals } = *done;
            let events = Events { migrations, steals, failed_tasks, failed_steals };
            let reward = self.reward.of(&self.present, &events);
            let drawn = Counts { migrations: &self.migrations, steals: &self.steals };
            self.learner.beat(&self.seen, reward, drawn).map(|beat| {
                let loss = f64::from(beat.td_error).powi(2);
                self.value_loss += LOSS_SHARE * (loss - self.value_loss);
            })
        };
        // What was heard is a number in its range, and rewards are made of such.
        debug_assert!(taken.is_ok(), "{taken:?}");
        self.migrations.fill(0);
        self.steals.fill(0);
        self.publish();
    }

    /// Critics are to agree: this one's parameters are to be told.
    pub fn tell(&mut self, round: u64) {
        self.consensus.open(round, false);
        self.told.iter_mut().zip(self.learner.critic()).for_each(|(told, value)| *told = *value);
    }

    fn publish(&mut self) {
        self.migration.set(self.learner.migration());
        self.stealing.set(self.learner.stealing());
    }
}
