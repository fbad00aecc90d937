//! One node's critic and its two actors, a beat at a time.

use pulp::{Arch, Scalar, Simd, WithSimd};
use rand::Rng;

use crate::features::{self, Features, Order};
use crate::history::History;
use crate::lanes::{LANES, Lane, dots, exp, floats, lane, product, zeros};
use crate::optimizer::{AdamW, Optimizer, Parameters, Step, Steps};

/// Nodes that may learn together.
pub const NODES_MAX: usize = 64;

/// Logits of nodes that are not live, whose probability is 0.
const NEVER: f32 = -1e30;

/// What a learner is made of.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// Nodes in all: 1 to [`NODES_MAX`].
    pub nodes: usize,
    /// What is kept of eligibility traces from beat to beat.
    pub lambda: f32,
    /// Learning rate of the critic.
    pub critic_rate: f32,
    /// Learning rate of the migration policy.
    pub migration_rate: f32,
    /// Learning rate of the stealing policy.
    pub stealing_rate: f32,
    /// Rate of the mean reward.
    pub average_rate: f32,
    /// What logits are multiplied with.
    pub sharpness: f32,
    /// How parameters follow their gradients.
    pub optimizer: Optimizer,
}

impl Settings {
    /// Those of the released program.
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

/// How often this node drew each node in a beat; itself for keeping a task, or for asking nobody.
#[derive(Clone, Copy, Debug)]
pub struct Counts<'a> {
    /// For fresh tasks.
    pub migrations: &'a [u32],
    /// When it ran dry.
    pub steals: &'a [u32],
}

/// What a beat has led to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Beat {
    /// By how much the critic was wrong: the temporal-difference error.
    pub td_error: f32,
    /// The mean reward.
    pub average_reward: f32,
}

/// Why a beat, or parameters, are not learned from; nothing has changed.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum BeatError {
    /// As many values as nodes, or as parameters, are wanted.
    #[error("{found} {what}, where {wanted} are wanted")]
    Count {
        /// Of what.
        what: &'static str,
        /// How many there are.
        found: usize,
        /// How many there should be.
        wanted: usize,
    },
    /// A value is not a number, is infinite, or is a load below 0.
    #[error("{what} {index} is {value}; allowed: {allowed}")]
    Value {
        /// Of what.
        what: &'static str,
        /// Which of them.
        index: usize,
        /// What it is.
        value: f32,
        /// What it may be.
        allowed: &'static str,
    },
}

/// One of the two policies: a matrix, of which a column is a node's.
#[derive(Clone, Debug)]
struct Actor {
    parameters: Parameters,
    probabilities: Box<[Lane]>,
    history: History,
    rate: f32,
}

impl Actor {
    fn new(settings: &Settings, rate: f32) -> Self {
        let logits = zeros(settings.nodes);
        let rows = features::of_actor(settings.nodes);
        let parameters = Parameters::new(rows * logits.len() * LANES);
        let history = History::new(rows, logits.len());
        Self { parameters, probabilities: logits, history, rate }
    }

    /// Values of a row.
    fn width(&self) -> usize {
        self.probabilities.len() * LANES
    }

    fn probabilities(&self, nodes: usize) -> &[f32] {
        &self.probabilities.as_flattened()[..nodes]
    }

    /// Softmax of the matrix times what is seen, over the live nodes.
    #[inline(always)]
    fn decide<S: Simd>(&mut self, simd: S, seen: &[f32], live: &[Lane], sharpness: f32) {
        product(simd, &self.parameters.values, seen, &mut self.probabilities);
        let (weights, _) = S::as_mut_simd_f32s(self.probabilities.as_flattened_mut());
        let (live, _) = S::as_simd_f32s(live.as_flattened());
        let (zero, never) = (simd.splat_f32s(0.0), simd.splat_f32s(NEVER));
        let sharpness = simd.splat_f32s(sharpness);
        let mut most = never;
        for (weight, live) in weights.iter_mut().zip(live) {
            let is_live = simd.greater_than_f32s(*live, zero);
            let logit = simd.mul_f32s(sharpness, *weight);
            *weight = simd.select_f32s_m32s(is_live, logit, never);
            most = simd.max_f32s(most, *weight);
        }
        let most = simd.splat_f32s(simd.reduce_max_f32s(most));
        let mut total = zero;
        for (weight, live) in weights.iter_mut().zip(live) {
            *weight = simd.mul_f32s(exp(simd, simd.sub_f32s(*weight, most)), *live);
            total = simd.add_f32s(total, *weight);
        }
        let share = simd.splat_f32s(1.0 / simd.reduce_sum_f32s(total));
        for weight in weights {
            *weight = simd.mul_f32s(*weight, share);
        }
    }

    /// Notes what was drawn, and how wrong the critic was.
    #[inline(always)]
    fn note<S: Simd>(
        &mut self,
        simd: S,
        drawn: &[u32],
        seen: &[f32],
        (decay, sharpness, error): (f32, f32, f32),
    ) {
        let all = drawn.iter().fold(0_u32, |all, one| all.wrapping_add(*one));
        if let Some(did) = self.history.note(seen, error, all > 0) {
            let by = simd.splat_f32s(sharpness / all as f32);
            let less = simd.splat_f32s(-sharpness);
            let (whole, rest) = S::as_simd_u32s(drawn);
            let rest = simd.partial_load_u32s(rest);
            let (did, _) = S::as_mut_simd_f32s(did.as_flattened_mut());
            let (probabilities, _) = S::as_simd_f32s(self.probabilities.as_flattened());
            for (at, (did, probability)) in did.iter_mut().zip(probabilities).enumerate() {
                // What is behind the last node has no probability, and a weight that is never read.
                let drawn = floats(simd, if at < whole.len() { whole[at] } else { rest });
                *did = simd.mul_add_e_f32s(by, drawn, simd.mul_f32s(less, *probability));
            }
        }
        if self.history.is_full() {
            self.take_in(simd, decay);
        }
    }

    /// Brings traces and gradient up to date.
    #[inline(always)]
    fn take_in<S: Simd>(&mut self, simd: S, decay: f32) {
        let (traces, gradient) = self.parameters.sums();
        self.history.take_in(simd, decay, traces, gradient);
    }
}

/// See the crate's text.
#[derive(Clone, Debug)]
pub struct Learner {
    settings: Settings,
    vectors: Arch,
    features: Features,
    order: Order,
    /// What the critic saw at the last beat; nothing before the first.
    seen: Box<[Lane]>,
    critic: Parameters,
    migration: Actor,
    stealing: Actor,
    average_reward: f32,
    /// Under AdamW.
    steps: Option<Steps>,
    /// Sum of what other nodes' critics told, and how many did.
    told: Box<[Lane]>,
    tellers: u32,
}

impl Learner {
    /// With parameters drawn at random, uniform within one over the root of their number each way, before any load is known.
    ///
    /// # Panics
    /// When there are no nodes, or more than [`NODES_MAX`].
    #[must_use]
    pub fn new(settings: Settings, rng: &mut impl Rng) -> Self {
        let nodes = settings.nodes;
        assert!((1..=NODES_MAX).contains(&nodes), "1 to {NODES_MAX} nodes");
        let features = Features::new(nodes);
        let steps = match settings.optimizer {
            Optimizer::AdamW(constants) => Some(Steps::new(constants)),
            Optimizer::Sgd => None,
        };
        let critic = Parameters::new(features.critic.len() * LANES);
        let order = Order::new(nodes);
        let mut learner = Self {
            vectors: Arch::new(),
            seen: zeros(features.critic.len() * LANES),
            told: zeros(features.critic.len() * LANES),
            tellers: 0,
            migration: Actor::new(&settings, settings.migration_rate),
            stealing: Actor::new(&settings, settings.stealing_rate),
            critic,
            order,
            features,
            average_reward: 0.0,
            steps,
            settings,
        };
        let (actor, critic) = (features::of_actor(nodes), features::of_critic(nodes));
        let mut values = vec![0.0; critic];
        uniform(&mut values, critic, rng);
        let to = learner.critic.values.as_flattened_mut();
        learner.order.place(&values, |at, value| to[at] = value);
        for which in [&mut learner.migration, &mut learner.stealing] {
            let width = which.width();
            for row in which.parameters.values.as_flattened_mut().chunks_exact_mut(width) {
                uniform(&mut row[..nodes], actor, rng);
            }
        }
        learner.decide();
        learner
    }

    /// What it is made of.
    #[must_use]
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Parameters of the critic, in the order of the released program: for each node of its load, its square, cube and fourth power,
    /// and the products with the nodes behind it; and of 1.
    pub fn critic(&self) -> impl ExactSizeIterator<Item = &f32> {
        self.order.of(&self.critic.values)
    }

    /// The migration policy's parameters, those of each node one after the other.
    pub fn migration_parameters(&self) -> impl Iterator<Item = &f32> {
        self.by_node(&self.migration)
    }

    /// The stealing policy's.
    pub fn stealing_parameters(&self) -> impl Iterator<Item = &f32> {
        self.by_node(&self.stealing)
    }

    fn by_node<'a>(&self, actor: &'a Actor) -> impl Iterator<Item = &'a f32> {
        let (width, nodes) = (actor.width(), self.settings.nodes);
        let values = actor.parameters.values.as_flattened();
        (0..nodes).flat_map(move |node| values[node..].iter().step_by(width))
    }

    /// Probabilities that a fresh task goes to each node; this node's own is that it stays.
    #[must_use]
    pub fn migration(&self) -> &[f32] {
        self.migration.probabilities(self.settings.nodes)
    }

    /// Probabilities that each node is asked for a task when this one runs dry; its own is that nobody is.
    #[must_use]
    pub fn stealing(&self) -> &[f32] {
        self.stealing.probabilities(self.settings.nodes)
    }

    /// Gives it other parameters; as many as it has: the critic's, and rows of the policies' one after the other.
    ///
    /// # Errors
    /// When they are not as many, or not finite.
    pub fn set_parameters(
        &mut self,
        critic: &[f32],
        migration: &[f32],
        stealing: &[f32],
    ) -> Result<(), BeatError> {
        let nodes = self.settings.nodes;
        let row = features::of_actor(nodes);
        check("critic's parameters", critic, features::of_critic(nodes))?;
        check("migration's parameters", migration, nodes * row)?;
        check("stealing's parameters", stealing, nodes * row)?;
        let to = self.critic.values.as_flattened_mut();
        self.order.place(critic, |at, value| to[at] = value);
        for (actor, values) in [(&mut self.migration, migration), (&mut self.stealing, stealing)] {
            let width = actor.width();
            let to = actor.parameters.values.as_flattened_mut();
            for (node, values) in values.chunks_exact(row).enumerate() {
                let column = to[node..].iter_mut().step_by(width);
                column.zip(values).for_each(|(to, value)| *to = *value);
            }
        }
        self.decide();
        Ok(())
    }

    /// A node is there, or not: who is not is left out of features and never drawn, and its parameters wait for it.
    pub fn set_live(&mut self, node: usize, is_live: bool) {
        self.features.set_live(node, is_live);
        self.decide();
    }

    /// Before the first beat: policies go by these loads.
    ///
    /// # Errors
    /// When they are not as many as nodes, or not finite and at least 0.
    pub fn start(&mut self, loads: &[f32]) -> Result<(), BeatError> {
        self.check_loads(loads)?;
        self.features.take(Scalar::new(), loads);
        self.decide();
        Ok(())
    }

    fn decide(&mut self) {
        let vectors = self.vectors;
        vectors.dispatch(Decide(self));
    }

    #[inline(always)]
    fn decide_inlined<S: Simd>(&mut self, simd: S) {
        self.features.rank(simd);
        let (features, sharpness) = (&self.features, self.settings.sharpness);
        for actor in [&mut self.migration, &mut self.stealing] {
            actor.decide(simd, features.actor(), features.live(), sharpness);
        }
    }

    fn check_loads(&self, loads: &[f32]) -> Result<(), BeatError> {
        check("loads", loads, self.settings.nodes)?;
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

    /// Learns from a beat, at whose end nodes have these loads, which was worth `reward`, and in which this node drew `drawn`. The
    /// loads of nodes that are not live are not looked at but must be numbers.
    ///
    /// # Errors
    /// When there are not as many loads or counts as nodes, or a load or the reward is not finite.
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

    #[inline(always)]
    fn learn<S: Simd>(&mut self, simd: S, loads: &[f32], reward: f32, drawn: Counts<'_>) -> f32 {
        let Settings { lambda, sharpness, average_rate, .. } = self.settings;
        self.features.take(simd, loads);
        let states = [&self.seen[..], &self.features.critic];
        let [before, after] = dots(simd, &self.critic.values, states);
        let td_error = reward - self.average_reward - before + after;
        self.average_reward += average_rate * td_error;

        let error = td_error * self.steps.as_ref().map_or(1.0, Steps::share);
        self.critic.trace(simd, lambda, &self.seen, error);
        let by = (lambda, sharpness, error);
        self.migration.note(simd, drawn.migrations, self.features.actor(), by);
        self.stealing.note(simd, drawn.steals, self.features.actor(), by);
        self.ascend(simd);

        std::mem::swap(&mut self.seen, &mut self.features.critic);
        self.decide_inlined(simd);
        td_error
    }

    /// Moves the parameters, if it is time.
    #[inline(always)]
    fn ascend<S: Simd>(&mut self, simd: S) {
        if self.steps.as_mut().is_some_and(|steps| !steps.is_due()) {
            return;
        }
        self.migration.take_in(simd, self.settings.lambda);
        self.stealing.take_in(simd, self.settings.lambda);
        self.critic.flush_traces();
        let rates = [self.settings.critic_rate, self.migration.rate, self.stealing.rate];
        let all = [&mut self.critic, &mut self.migration.parameters, &mut self.stealing.parameters];
        let all = all.into_iter().zip(rates);
        let Some(steps) = &mut self.steps else {
            return all.into_iter().for_each(|(parameters, rate)| parameters.follow(rate));
        };
        let critics = steps.multiplier();
        let actors = steps.multiplier();
        for ((parameters, rate), multiplier) in all.zip([critics, actors, actors]) {
            let step: Step = steps.step(rate, multiplier);
            parameters.step(&step);
        }
    }

    /// Another node told all of its critic's parameters.
    ///
    /// # Errors
    /// When they are not as many as this one's, or not finite.
    pub fn hear(&mut self, critic: &[f32]) -> Result<(), BeatError> {
        check("critic's parameters", critic, features::of_critic(self.settings.nodes))?;
        let told = self.told.as_flattened_mut();
        self.order.place(critic, |at, parameter| told[at] += parameter);
        self.tellers += 1;
        Ok(())
    }

    /// The critic becomes the mean of this one and those of the others that were heard since; says how many those were.
    pub fn agree(&mut self) -> u32 {
        let tellers = std::mem::take(&mut self.tellers);
        let share = 1.0 / (tellers + 1) as f32;
        for (own, told) in self.critic.values.iter_mut().zip(&mut self.told) {
            if tellers > 0 {
                let before = (*own, *told);
                *own = lane(|at| (before.0[at] + before.1[at]) * share);
            }
            *told = [0.0; LANES];
        }
        tellers
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

fn uniform(values: &mut [f32], count: usize, rng: &mut impl Rng) {
    let most = 1.0 / (count as f32).sqrt();
    for value in values {
        let unit = (rng.next_u32() >> 8) as f32 / 16_777_216.0;
        *value = most * (2.0 * unit - 1.0);
    }
}

/// There are so many, and all are numbers.
fn check(what: &'static str, values: &[f32], wanted: usize) -> Result<(), BeatError> {
    let found = values.len();
    if found != wanted {
        return Err(BeatError::Count { what, found, wanted });
    }
    // Without an early end it goes by vectors.
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
            learners[1].vectors = Arch::Scalar;
            for _ in 0..200 {
                let load = |_| (rng.next_u32() % 1000) as f32 * 1e-5;
                let loads: Vec<_> = (0..nodes).map(load).collect();
                let counts: Vec<_> = (0..nodes as u32).collect();
                let drawn = Counts { migrations: &counts, steals: &counts };
                let beats = learners.each_mut().map(|one| one.beat(&loads, 1e-4, drawn).unwrap());
                assert!((beats[0].td_error - beats[1].td_error).abs() < 1e-5, "{nodes}: {beats:?}");
            }
            let [one, other] = learners.each_ref().map(Learner::stealing);
            let off = one.iter().zip(other).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            assert!(off < 1e-5, "{nodes}: {off}");
        }
    }
}
