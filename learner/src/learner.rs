//! Critic and two actors of one node, updated once per beat (learning step).
//!
//! An actor (policy) gives the probability of each node, from which the caller draws. The migration actor covers
//! the destinations of a fresh task, the stealing actor the nodes that this node asks for a task when idle. The
//! critic estimates the value of a state of loads. Its temporal-difference error is positive if a beat was better
//! than expected. All three learn from that error along their eligibility traces: decaying sums of the past
//! features, for the actors times their draws.

use pulp::{Arch, Scalar, Simd, WithSimd};
use rand::Rng;

use crate::features::{self, Features, NODES_MAX, Order};
use crate::history::History;
use crate::optimizer::{AdamW, Optimizer, Parameters, Step, Steps};
use crate::vec8::{VEC8_LEN, Vec8, dots, exp, floats, product, vec8, zeros};

/// Logit of an absent node, below that of every live node.
const NEVER: f32 = -1e30;

/// Parameters of a learner.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// Number of nodes: 1 to [`NODES_MAX`].
    pub nodes: usize,
    /// Factor by which a beat decays the eligibility traces.
    pub lambda: f32,
    /// Learning rate of the critic.
    pub critic_rate: f32,
    /// Learning rate of the migration policy.
    pub migration_rate: f32,
    /// Learning rate of the stealing policy.
    pub stealing_rate: f32,
    /// Fraction of the temporal-difference error that each beat adds to the estimate of the mean reward.
    pub average_rate: f32,
    /// Factor applied to logits. A higher factor gives the best nodes a higher probability.
    pub sharpness: f32,
    /// Optimizer of all parameters.
    pub optimizer: Optimizer,
}

impl Settings {
    /// Returns the settings of Malcolm's released program.
    #[must_use]
    pub fn new(nodes: usize) -> Self {
        Self {
            nodes,
            lambda: 0.6,
            critic_rate: 2e-3,
            migration_rate: 1e-3,
            stealing_rate: 1e-3,
            average_rate: 1e-3,
            sharpness: 1.0,
            optimizer: Optimizer::AdamW(AdamW::default()),
        }
    }
}

/// Number of draws of each node in one beat. This node's own entry counts the tasks that it kept, or the times that it
/// asked no node.
#[derive(Clone, Copy, Debug)]
pub struct Counts<'a> {
    /// Draws for fresh tasks.
    pub migrations: &'a [u32],
    /// Draws for stealing.
    pub steals: &'a [u32],
}

/// Result of a beat, in the unit of the reward.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Beat {
    /// Temporal-difference error of the critic.
    pub td_error: f32,
    /// Estimate of the mean reward after the beat.
    pub average_reward: f32,
}

/// Reason why input is refused. The learner is unchanged.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum BeatError {
    /// The number of values differs from the number of nodes or parameters.
    #[error("{found} {what}, expected {wanted}")]
    Count {
        /// Kind of value.
        what: &'static str,
        /// Number of values given.
        found: usize,
        /// Number of values expected.
        wanted: usize,
    },
    /// A value is not a number, is infinite, or is a negative load.
    #[error("{what} {index} is {value}; allowed: {allowed}")]
    Value {
        /// Kind of value.
        what: &'static str,
        /// Index of the value.
        index: usize,
        /// The value.
        value: f32,
        /// Allowed values.
        allowed: &'static str,
    },
}

/// One of the two policies: a matrix with one column per node.
#[derive(Clone, Debug)]
struct Actor {
    /// The matrix, with one row per feature, and its traces and gradient.
    parameters: Parameters,
    /// Current probability of each node.
    probabilities: Box<[Vec8]>,
    /// Beats that traces and gradient do not include yet.
    history: History,
    /// Learning rate.
    rate: f32,
}

impl Actor {
    /// Creates an actor with parameters of 0.
    fn new(settings: &Settings, rate: f32) -> Self {
        let probabilities = zeros(settings.nodes);
        let rows = features::actor_len(settings.nodes);
        let parameters = Parameters::new(rows * probabilities.len() * VEC8_LEN);
        let history = History::new(rows, probabilities.len());
        Self { parameters, probabilities, history, rate }
    }

    /// Returns the number of values per row, including padding.
    fn width(&self) -> usize {
        self.probabilities.len() * VEC8_LEN
    }

    /// Returns the probabilities without padding.
    fn probabilities(&self, nodes: usize) -> &[f32] {
        &self.probabilities.as_flattened()[..nodes]
    }

    /// Computes the probabilities: the softmax of matrix times features over the live nodes. `live` holds 1 for each
    /// live node, 0 for all others and the padding. Without a live node the probabilities are NaN.
    #[inline(always)]
    fn decide<S: Simd>(&mut self, simd: S, features: &[f32], live: &[Vec8], sharpness: f32) {
        product(simd, &self.parameters.values, features, &mut self.probabilities);
        let (weights, _) = S::as_mut_simd_f32s(self.probabilities.as_flattened_mut());
        let (live, _) = S::as_simd_f32s(live.as_flattened());
        let (zero, never) = (simd.splat_f32s(0.0), simd.splat_f32s(NEVER));
        let sharpness = simd.splat_f32s(sharpness);
        let mut largest = never;
        for (weight, live) in weights.iter_mut().zip(live) {
            let is_live = simd.greater_than_f32s(*live, zero);
            let logit = simd.mul_f32s(sharpness, *weight);
            *weight = simd.select_f32s_m32s(is_live, logit, never);
            largest = simd.max_f32s(largest, *weight);
        }
        // Subtracts the largest logit, so that no exponential overflows.
        let largest = simd.splat_f32s(simd.reduce_max_f32s(largest));
        let mut total = zero;
        for (weight, live) in weights.iter_mut().zip(live) {
            *weight = simd.mul_f32s(exp(simd, simd.sub_f32s(*weight, largest)), *live);
            total = simd.add_f32s(total, *weight);
        }
        let scale = simd.splat_f32s(1.0 / simd.reduce_sum_f32s(total));
        for weight in weights {
            *weight = simd.mul_f32s(*weight, scale);
        }
    }

    /// Stores the beat's features, draws and error; without draws, only the error. The stored difference of a node is
    /// its fraction of the draws minus its probability, times the sharpness: the gradient of the draws' mean
    /// log-probability by the logits. Updates traces and gradient when the history is full. The last argument has the
    /// decay factor of the traces, the sharpness, and the error.
    #[inline(always)]
    fn store<S: Simd>(
        &mut self,
        simd: S,
        drawn: &[u32],
        features: &[f32],
        (decay, sharpness, error): (f32, f32, f32),
    ) {
        // Wraps around, because counts of the caller that overflow must not cause a panic.
        let total = drawn.iter().fold(0_u32, |total, count| total.wrapping_add(*count));
        if let Some(differences) = self.history.store(features, error, total > 0) {
            let draw_weight = simd.splat_f32s(sharpness / total as f32);
            let negative_sharpness = simd.splat_f32s(-sharpness);
            let (full_vectors, last_vector) = S::as_simd_u32s(drawn);
            let last_vector = simd.partial_load_u32s(last_vector);
            let (differences, _) = S::as_mut_simd_f32s(differences.as_flattened_mut());
            let (probabilities, _) = S::as_simd_f32s(self.probabilities.as_flattened());
            for (vector, (difference, probability)) in
                differences.iter_mut().zip(probabilities).enumerate()
            {
                // Columns beyond the last node may get the draws of `last_vector` again. They count as absent, so
                // their parameters have no effect.
                let drawn = floats(
                    simd,
                    if vector < full_vectors.len() { full_vectors[vector] } else { last_vector },
                );
                *difference = simd.mul_add_e_f32s(
                    draw_weight,
                    drawn,
                    simd.mul_f32s(negative_sharpness, *probability),
                );
            }
        }
        if self.history.is_full() {
            self.apply(simd, decay);
        }
    }

    /// Updates traces and gradient from the stored beats.
    #[inline(always)]
    fn apply<S: Simd>(&mut self, simd: S, decay: f32) {
        let (traces, gradient) = self.parameters.sums();
        self.history.apply(simd, decay, traces, gradient);
    }
}

/// Learner of one node; see the crate's documentation.
#[derive(Clone, Debug)]
pub struct Learner {
    /// Settings of its creation.
    settings: Settings,
    /// Vector instructions of the machine.
    vectors: Arch,
    /// Features of the current loads, for critic and actors.
    features: Features,
    /// Order of the critic's parameters in exports.
    order: Order,
    /// Critic's features at the last beat; zeros before the first.
    last_features: Box<[Vec8]>,
    /// Weights of the critic's features. Their inner product with the features is the value of a state.
    critic: Parameters,
    /// Policy that gives the destination of a fresh task.
    migration: Actor,
    /// Policy that gives the node to ask for a task.
    stealing: Actor,
    /// Estimate of the mean reward.
    average_reward: f32,
    /// Counter of beats and steps; only for AdamW.
    steps: Option<Steps>,
    /// Sum of the critics received from other nodes since the last average.
    sum: Box<[Vec8]>,
    /// Number of critics in `sum`.
    senders: u32,
}

impl Learner {
    /// Creates a learner with random parameters, uniform in +-1/sqrt(number of features). All nodes are live and
    /// without load.
    ///
    /// # Panics
    /// If the number of nodes is 0 or above [`NODES_MAX`].
    #[must_use]
    pub fn new(settings: Settings, rng: &mut impl Rng) -> Self {
        let nodes = settings.nodes;
        assert!((1..=NODES_MAX).contains(&nodes), "1 to {NODES_MAX} nodes");
        let features = Features::new(nodes);
        let steps = match settings.optimizer {
            Optimizer::AdamW(constants) => Some(Steps::new(constants)),
            Optimizer::Sgd => None,
        };
        let critic = Parameters::new(features.critic.len() * VEC8_LEN);
        let order = Order::new(nodes);
        let mut learner = Self {
            vectors: Arch::new(),
            last_features: zeros(features.critic.len() * VEC8_LEN),
            sum: zeros(features.critic.len() * VEC8_LEN),
            senders: 0,
            migration: Actor::new(&settings, settings.migration_rate),
            stealing: Actor::new(&settings, settings.stealing_rate),
            critic,
            order,
            features,
            average_reward: 0.0,
            steps,
            settings,
        };
        let (actor_len, critic_len) = (features::actor_len(nodes), features::critic_len(nodes));
        let mut values = vec![0.0; critic_len];
        uniform(&mut values, critic_len, rng);
        let critic_values = learner.critic.values.as_flattened_mut();
        learner.order.for_each_stored_index(&values, |index, value| critic_values[index] = value);
        for actor in [&mut learner.migration, &mut learner.stealing] {
            let width = actor.width();
            for row in actor.parameters.values.as_flattened_mut().chunks_exact_mut(width) {
                uniform(&mut row[..nodes], actor_len, rng);
            }
        }
        learner.decide();
        learner
    }

    /// Returns the settings.
    #[must_use]
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Iterates over the critic's parameters in the released program's order. Each node has the parameters of its
    /// load's four powers, then those of its products with later nodes. The parameter of the constant 1 is last.
    pub fn critic(&self) -> impl ExactSizeIterator<Item = &f32> {
        self.order.in_order(&self.critic.values)
    }

    /// Iterates over the migration policy's parameters, node by node.
    pub fn migration_parameters(&self) -> impl Iterator<Item = &f32> {
        self.by_node(&self.migration)
    }

    /// Iterates over the stealing policy's parameters, node by node.
    pub fn stealing_parameters(&self) -> impl Iterator<Item = &f32> {
        self.by_node(&self.stealing)
    }

    /// Iterates over a policy's parameters, node by node.
    fn by_node<'a>(&self, actor: &'a Actor) -> impl Iterator<Item = &'a f32> {
        let (width, nodes) = (actor.width(), self.settings.nodes);
        let values = actor.parameters.values.as_flattened();
        (0..nodes).flat_map(move |node| values[node..].iter().step_by(width))
    }

    /// Returns the probability that a fresh task goes to each node; this node's own entry means that the task
    /// stays.
    #[must_use]
    pub fn migration(&self) -> &[f32] {
        self.migration.probabilities(self.settings.nodes)
    }

    /// Returns the probability that this node asks each other node for a task when idle; its own entry means
    /// that it asks none.
    #[must_use]
    pub fn stealing(&self) -> &[f32] {
        self.stealing.probabilities(self.settings.nodes)
    }

    /// Replaces all parameters: the critic's in the order of [`Learner::critic`], the policies' node by node. Traces,
    /// optimizer state and mean reward stay.
    ///
    /// # Errors
    /// If a count differs or a value is not finite.
    pub fn set_parameters(
        &mut self,
        critic: &[f32],
        migration: &[f32],
        stealing: &[f32],
    ) -> Result<(), BeatError> {
        let nodes = self.settings.nodes;
        let actor_len = features::actor_len(nodes);
        check("critic's parameters", critic, features::critic_len(nodes))?;
        check("migration's parameters", migration, nodes * actor_len)?;
        check("stealing's parameters", stealing, nodes * actor_len)?;
        let critic_values = self.critic.values.as_flattened_mut();
        self.order.for_each_stored_index(critic, |index, value| critic_values[index] = value);
        for (actor, values) in [(&mut self.migration, migration), (&mut self.stealing, stealing)] {
            let width = actor.width();
            let stored = actor.parameters.values.as_flattened_mut();
            for (node, values) in values.chunks_exact(actor_len).enumerate() {
                let column = stored[node..].iter_mut().step_by(width);
                column.zip(values).for_each(|(stored, value)| *stored = *value);
            }
        }
        self.decide();
        Ok(())
    }

    /// Marks a node as live or absent. An absent node has no features and probability 0, and keeps its parameters.
    /// At least one node must stay live, because the probabilities are NaN otherwise.
    ///
    /// # Panics
    /// If there is no such node.
    pub fn set_live(&mut self, node: usize, is_live: bool) {
        self.features.set_live(node, is_live);
        self.decide();
    }

    /// Sets the loads from which the probabilities follow before the first beat.
    ///
    /// # Errors
    /// If the number of loads differs from the number of nodes, or a load is negative or not finite.
    pub fn start(&mut self, loads: &[f32]) -> Result<(), BeatError> {
        self.check_loads(loads)?;
        self.features.set_loads(Scalar::new(), loads);
        self.decide();
        Ok(())
    }

    /// Calls [`Learner::decide_inlined`] with the machine's vectors.
    fn decide(&mut self) {
        let vectors = self.vectors;
        vectors.dispatch(Decide(self));
    }

    /// Computes the probabilities of both policies from the current loads.
    #[inline(always)]
    fn decide_inlined<S: Simd>(&mut self, simd: S) {
        self.features.rank(simd);
        let (features, sharpness) = (&self.features, self.settings.sharpness);
        for actor in [&mut self.migration, &mut self.stealing] {
            actor.decide(simd, features.actor(), features.live(), sharpness);
        }
    }

    /// Checks the number of loads, and that each is finite and not negative.
    fn check_loads(&self, loads: &[f32]) -> Result<(), BeatError> {
        check("loads", loads, self.settings.nodes)?;
        // The compiler vectorizes this loop only without an early exit.
        if !loads.iter().fold(false, |any, load| any | (*load < 0.0)) {
            return Ok(());
        }
        match loads.iter().position(|load| *load < 0.0) {
            Some(index) => {
                let (what, value, allowed) = ("load", loads[index], "0 and more");
                Err(BeatError::Value { what, index, value, allowed })
            }
            None => Ok(()),
        }
    }

    /// Learns from one beat: loads at its end, its reward, and this node's draws. Loads of absent nodes are
    /// ignored but must be valid.
    ///
    /// # Errors
    /// If the number of loads or counts differs from the number of nodes, a load is negative or not finite, or
    /// the reward is not finite.
    pub fn beat(
        &mut self,
        loads: &[f32],
        reward: f32,
        drawn: Counts<'_>,
    ) -> Result<Beat, BeatError> {
        self.check_loads(loads)?;
        for (what, counts) in [("migrations", drawn.migrations), ("steals", drawn.steals)] {
            if counts.len() != self.settings.nodes {
                let (found, wanted) = (counts.len(), self.settings.nodes);
                return Err(BeatError::Count { what, found, wanted });
            }
        }
        if !reward.is_finite() {
            let (what, allowed) = ("reward", "finite numbers");
            return Err(BeatError::Value { what, index: 0, value: reward, allowed });
        }
        let vectors = self.vectors;
        let td_error = vectors.dispatch(Learn { learner: self, loads, reward, drawn });
        Ok(Beat { td_error, average_reward: self.average_reward })
    }

    /// Updates critic and policies by the temporal-difference error of the beat. Returns that error.
    #[inline(always)]
    fn learn<S: Simd>(&mut self, simd: S, loads: &[f32], reward: f32, drawn: Counts<'_>) -> f32 {
        let Settings { lambda, sharpness, average_rate, .. } = self.settings;
        self.features.set_loads(simd, loads);
        // Values of the states before and after the beat.
        let states = [&self.last_features[..], &self.features.critic];
        let [before, after] = dots(simd, &self.critic.values, states);
        // Average-reward form: rewards count relative to their mean, and there is no discount.
        let td_error = reward - self.average_reward - before + after;
        self.average_reward += average_rate * td_error;

        // AdamW takes the mean gradient of a batch, so that one beat counts by its share.
        let error = td_error * self.steps.as_ref().map_or(1.0, Steps::share);
        self.critic.trace(simd, lambda, &self.last_features, error);
        // The actors' features are still those of the last decision, from which this beat's draws came.
        let factors = (lambda, sharpness, error);
        self.migration.store(simd, drawn.migrations, self.features.actor(), factors);
        self.stealing.store(simd, drawn.steals, self.features.actor(), factors);
        self.ascend(simd);

        std::mem::swap(&mut self.last_features, &mut self.features.critic);
        self.decide_inlined(simd);
        td_error
    }

    /// Updates the parameters at the end of a batch. Without AdamW every beat is a batch.
    #[inline(always)]
    fn ascend<S: Simd>(&mut self, simd: S) {
        if self.steps.as_mut().is_some_and(|steps| !steps.is_due()) {
            return;
        }
        self.migration.apply(simd, self.settings.lambda);
        self.stealing.apply(simd, self.settings.lambda);
        self.critic.flush_traces();
        let rates = [self.settings.critic_rate, self.migration.rate, self.stealing.rate];
        let all = [&mut self.critic, &mut self.migration.parameters, &mut self.stealing.parameters];
        let all = all.into_iter().zip(rates);
        let Some(steps) = &mut self.steps else {
            return all.into_iter().for_each(|(parameters, rate)| parameters.follow(rate));
        };
        // Critic and actors each take a step of the schedule, as in the released program.
        let critics = steps.multiplier();
        let actors = steps.multiplier();
        for ((parameters, rate), multiplier) in all.zip([critics, actors, actors]) {
            let step: Step = steps.step(rate, multiplier);
            parameters.step(&step);
        }
    }

    /// Adds another node's critic parameters to the next average.
    ///
    /// # Errors
    /// If their number differs from this critic's, or a value is not finite.
    pub fn receive_critic(&mut self, critic: &[f32]) -> Result<(), BeatError> {
        check("critic's parameters", critic, features::critic_len(self.settings.nodes))?;
        let sum = self.sum.as_flattened_mut();
        self.order.for_each_stored_index(critic, |index, parameter| sum[index] += parameter);
        self.senders += 1;
        Ok(())
    }

    /// Replaces the critic by the mean of itself and the critics received since the last call. Returns the number of
    /// received critics. A parameter whose mean is not finite keeps its value: peers may send values whose sum
    /// overflows.
    pub fn average_critics(&mut self) -> u32 {
        let senders = std::mem::take(&mut self.senders);
        let share = 1.0 / (senders + 1) as f32;
        for (parameters, sum) in self.critic.values.iter_mut().zip(&mut self.sum) {
            if senders > 0 {
                let before = (*parameters, *sum);
                *parameters = vec8(|index| {
                    let mean = (before.0[index] + before.1[index]) * share;
                    if mean.is_finite() { mean } else { before.0[index] }
                });
            }
            *sum = [0.0; VEC8_LEN];
        }
        senders
    }
}

/// [`Learner::decide_inlined`], compiled for the machine's vectors.
struct Decide<'a>(&'a mut Learner);

impl WithSimd for Decide<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        self.0.decide_inlined(simd);
    }
}

/// [`Learner::learn`], compiled for the machine's vectors.
struct Learn<'a> {
    learner: &'a mut Learner,
    loads: &'a [f32],
    reward: f32,
    drawn: Counts<'a>,
}

impl WithSimd for Learn<'_> {
    type Output = f32;

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) -> f32 {
        self.learner.learn(simd, self.loads, self.reward, self.drawn)
    }
}

/// Fills `values` with random numbers, uniform in +-1/sqrt(count), the usual start of a layer with `count` inputs.
fn uniform(values: &mut [f32], count: usize, rng: &mut impl Rng) {
    let bound = 1.0 / (count as f32).sqrt();
    for value in values {
        // Uniform in 0..1, from 24 random bits: the precision of f32.
        let unit = (rng.next_u32() >> 8) as f32 / 16_777_216.0;
        *value = bound * (2.0 * unit - 1.0);
    }
}

/// Checks that `values` has `wanted` finite values.
fn check(what: &'static str, values: &[f32], wanted: usize) -> Result<(), BeatError> {
    let found = values.len();
    if found != wanted {
        return Err(BeatError::Count { what, found, wanted });
    }
    // The compiler vectorizes this loop only without an early exit.
    if values.iter().fold(true, |all, value| all & value.is_finite()) {
        return Ok(());
    }
    match values.iter().position(|value| !value.is_finite()) {
        Some(index) => {
            let (value, allowed) = (values[index], "finite numbers");
            Err(BeatError::Value { what, index, value, allowed })
        }
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;
    use rand_xoshiro::Xoshiro256PlusPlus;

    #[test]
    fn machines_without_vectors_learn_the_same() {
        for nodes in [1, 2, 7, 8, 31, NODES_MAX] {
            let mut rng = Xoshiro256PlusPlus::seed_from_u64(7);
            let mut learners = [(); 2].map(|()| {
                Learner::new(Settings::new(nodes), &mut Xoshiro256PlusPlus::seed_from_u64(1))
            });
            // The second learner computes value by value.
            learners[1].vectors = Arch::Scalar;
            for _ in 0..200 {
                let load = |_| (rng.next_u32() % 1000) as f32 * 1e-5;
                let loads: Vec<_> = (0..nodes).map(load).collect();
                let counts: Vec<_> = (0..nodes as u32).collect();
                let drawn = Counts { migrations: &counts, steals: &counts };
                let beats =
                    learners.each_mut().map(|learner| learner.beat(&loads, 1e-4, drawn).unwrap());
                assert!((beats[0].td_error - beats[1].td_error).abs() < 1e-5, "{nodes}: {beats:?}");
            }
            // Sums in another order differ only by rounding.
            let [vector, scalar] = learners.each_ref().map(Learner::stealing);
            let difference =
                vector.iter().zip(scalar).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            assert!(difference < 1e-5, "{nodes}: {difference}");
        }
    }
}
