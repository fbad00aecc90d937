//! What a state of the nodes looks like to actors and critic.
//!
//! The actor sees each node's place by load, on a logarithmic scale from -1 to 1, each node's load, and 1. The critic sees the powers
//! of each node's load up to the fourth, the products of each two, and 1. Nodes that are not live are 0 everywhere.
//!
//! In memory the critic's features stand by kind and not by node, so that vectors of all nodes are multiplied: the four powers; then
//! for each distance below half the nodes, all nodes' loads times those of the nodes so far behind them, round about; for half the
//! nodes, of which each pair is met twice, the first half of them; and 1. Each kind begins a lane. Who is told of the critic's
//! parameters has them in the order of the released program, node by node ([`Order`]).

use std::cmp::Ordering;

use pulp::Simd;

use crate::lanes::{LANES, Lane, multiply, zeros};
use crate::learner::NODES_MAX;

/// What the actor of `nodes` nodes sees.
pub fn of_actor(nodes: usize) -> usize {
    2 * nodes + 1
}

/// What their critic sees.
pub fn of_critic(nodes: usize) -> usize {
    nodes * (nodes + 7) / 2 + 1
}

/// Loads, and the features of actor and critic that they make.
#[derive(Clone, Debug)]
pub struct Features {
    nodes: usize,
    /// 1 for each node that is there, 0 for others.
    live: Box<[Lane]>,
    /// The feature of each place in the order of loads.
    places: Box<[f32; PLACES]>,
    /// Loads, those of nodes that are not live 0, and zeros behind them.
    loads: Box<[Lane]>,
    /// The same twice, one behind the other.
    twice: Box<[f32]>,
    /// Loads, those of nodes that are not live -1.
    ranked: Box<[Lane]>,
    /// How many nodes come before each.
    before: Box<[Lane]>,
    actor: Box<[f32]>,
    pub critic: Box<[Lane]>,
}

impl Features {
    pub fn new(nodes: usize) -> Self {
        let mut features = Self {
            nodes,
            live: zeros(nodes),
            places: Box::new([0.0; PLACES]),
            loads: zeros(nodes),
            twice: vec![0.0; 2 * nodes + 2 * LANES].into(),
            ranked: zeros(nodes),
            before: zeros(nodes),
            actor: vec![0.0; of_actor(nodes)].into(),
            critic: zeros(Order::lanes(nodes) * LANES),
        };
        features.live.as_flattened_mut()[..nodes].fill(1.0);
        features.place();
        features
    }

    /// What the actor sees.
    pub fn actor(&self) -> &[f32] {
        &self.actor
    }

    /// 1 for each node that is there, 0 for others.
    pub fn live(&self) -> &[Lane] {
        &self.live
    }

    /// A node is there, or not.
    pub fn set_live(&mut self, node: usize, is_live: bool) {
        assert!(node < self.nodes, "there is no node {node}");
        self.live.as_flattened_mut()[node] = f32::from(u8::from(is_live));
        self.place();
    }

    /// The features of the places that there are.
    fn place(&mut self) {
        let live = self.live.as_flattened().iter().filter(|live| **live > 0.0).count();
        let half = (live as f32).ln() / 2.0;
        for (place, feature) in self.places[..self.nodes].iter_mut().enumerate() {
            // One node alone is first and last.
            let is_some = live > 1 && place < live;
            *feature = if is_some { ((place as f32 + 1.0).ln() - half) / half } else { 0.0 };
        }
    }

    /// Takes the loads of all nodes, and makes the critic's features of them.
    #[inline(always)]
    pub fn take<S: Simd>(&mut self, simd: S, loads: &[f32]) {
        self.loads.as_flattened_mut()[..self.nodes].copy_from_slice(&loads[..self.nodes]);
        let (own, _) = S::as_mut_simd_f32s(self.loads.as_flattened_mut());
        for (own, live) in own.iter_mut().zip(S::as_simd_f32s(self.live.as_flattened()).0) {
            *own = simd.mul_f32s(*own, *live);
        }
        let own = &self.loads.as_flattened()[..self.nodes];
        let (first, second) = self.twice.split_at_mut(self.nodes);
        first.copy_from_slice(own);
        second[..self.nodes].copy_from_slice(own);

        let (loads, twice) = (&self.loads, &self.twice);
        let (powers, rest) = self.critic.split_at_mut(4 * loads.len());
        let (load, powers) = powers.split_at_mut(loads.len());
        let (square, powers) = powers.split_at_mut(loads.len());
        let (cube, fourth) = powers.split_at_mut(loads.len());
        load.copy_from_slice(loads);
        multiply(simd, square, loads, twice);
        multiply(simd, cube, square, twice);
        multiply(simd, fourth, square, square.as_flattened());
        let (pairs, rest) = rest.split_at_mut(Order::distances(self.nodes) * loads.len());
        for (at, to) in pairs.chunks_exact_mut(loads.len()).enumerate() {
            multiply(simd, to, loads, &twice[at + 1..]);
        }
        let half = self.nodes / 2;
        let (opposite, rest) = rest.split_at_mut(rest.len() - 1);
        if !opposite.is_empty() {
            multiply(simd, opposite, loads, &twice[half..]);
            opposite.as_flattened_mut()[half..].fill(0.0);
        }
        rest[0][0] = 1.0;
    }

    /// Makes the actor's features of the loads taken: whoever has more comes first, of those that have as much who has the smaller
    /// number, and last who is not live. Each node is compared with all: that takes less than sorting, and has no branches that the
    /// processor could mispredict.
    #[inline(always)]
    pub fn rank<S: Simd>(&mut self, simd: S) {
        let (zero, one) = (simd.splat_f32s(0.0), simd.splat_f32s(1.0));
        let (own, _) = S::as_simd_f32s(self.loads.as_flattened());
        let (live, _) = S::as_simd_f32s(self.live.as_flattened());
        let (ranked, _) = S::as_mut_simd_f32s(self.ranked.as_flattened_mut());
        for (ranked, (own, live)) in ranked.iter_mut().zip(own.iter().zip(live)) {
            *ranked = simd.add_f32s(*own, simd.sub_f32s(*live, one));
        }
        let all = &self.ranked.as_flattened()[..self.nodes];
        let (ranked, _) = S::as_simd_f32s(self.ranked.as_flattened());
        let (before, _) = S::as_mut_simd_f32s(self.before.as_flattened_mut());
        let numbers = S::as_simd_f32s(&NUMBERS).0[0];
        for (at, (before, own)) in before.iter_mut().zip(ranked).enumerate() {
            // Of equals those in vectors before this one come first, and those behind it last.
            let (smaller, rest) = all.split_at((at * S::F32_LANES).min(all.len()));
            let (these, greater) = rest.split_at(S::F32_LANES.min(rest.len()));
            let mut more = zero;
            for other in smaller {
                let is_before = simd.greater_than_or_equal_f32s(simd.splat_f32s(*other), *own);
                more = simd.add_f32s(more, simd.select_f32s_m32s(is_before, one, zero));
            }
            for (other, number) in these.iter().zip(NUMBERS) {
                let other = simd.splat_f32s(*other);
                let is_more = simd.greater_than_f32s(other, *own);
                more = simd.add_f32s(more, simd.select_f32s_m32s(is_more, one, zero));
                let is_behind = simd.greater_than_f32s(numbers, simd.splat_f32s(number));
                let is_before = simd.and_m32s(simd.equal_f32s(other, *own), is_behind);
                more = simd.add_f32s(more, simd.select_f32s_m32s(is_before, one, zero));
            }
            for other in greater {
                let is_more = simd.greater_than_f32s(simd.splat_f32s(*other), *own);
                more = simd.add_f32s(more, simd.select_f32s_m32s(is_more, one, zero));
            }
            *before = more;
        }
        let loads = &self.loads.as_flattened()[..self.nodes];
        for (feature, before) in
            self.actor.iter_mut().zip(&self.before.as_flattened()[..self.nodes])
        {
            *feature = self.places[*before as i32 as usize % PLACES];
        }
        self.actor[self.nodes..2 * self.nodes].copy_from_slice(loads);
        self.actor[2 * self.nodes] = 1.0;
    }
}

/// Places that there may be.
const PLACES: usize = NODES_MAX.next_power_of_two();
/// The lanes' numbers.
const NUMBERS: [f32; LANES] = [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0];

/// Where the critic's features stand, in the order of the released program: for each node the four powers of its load, and its
/// products with those of the nodes behind it; and 1.
#[derive(Clone, Debug)]
pub struct Order(Box<[u16]>);

impl Order {
    /// Of so many nodes.
    pub fn new(nodes: usize) -> Self {
        let width = nodes.div_ceil(LANES) * LANES;
        let mut order = Vec::with_capacity(of_critic(nodes));
        let pairs = 4 * width;
        let opposite = pairs + Self::distances(nodes) * width;
        for node in 0..nodes {
            order.extend((0..4).map(|power| power * width + node));
            for other in node + 1..nodes {
                let distance = other - node;
                order.push(match (2 * distance).cmp(&nodes) {
                    Ordering::Less => pairs + (distance - 1) * width + node,
                    Ordering::Equal => opposite + node,
                    Ordering::Greater => pairs + (nodes - distance - 1) * width + other,
                });
            }
        }
        order.push((Self::lanes(nodes) - 1) * LANES);
        Self(order.into_iter().map(|at| at as u16).collect())
    }

    /// Distances at which each pair of so many nodes is met once.
    fn distances(nodes: usize) -> usize {
        (nodes - 1) / 2
    }

    /// Lanes of all features.
    pub fn lanes(nodes: usize) -> usize {
        let opposite = if nodes.is_multiple_of(2) { (nodes / 2).div_ceil(LANES) } else { 0 };
        (4 + Self::distances(nodes)) * nodes.div_ceil(LANES) + opposite + 1
    }

    /// Values that stand as the features do, in this order.
    pub fn of<'a>(&'a self, values: &'a [Lane]) -> impl ExactSizeIterator<Item = &'a f32> {
        let values = values.as_flattened();
        self.0.iter().map(|&at| &values[usize::from(at)])
    }

    /// Takes values in this order to where the features stand.
    pub fn place(&self, values: &[f32], mut to: impl FnMut(usize, f32)) {
        self.0.iter().zip(values).for_each(|(&at, &value)| to(usize::from(at), value));
    }
}

#[cfg(test)]
mod tests {
    use pulp::Scalar;

    use super::*;

    fn features(loads: &[f32]) -> Features {
        let mut features = Features::new(loads.len());
        features.take(Scalar::new(), loads);
        features.rank(Scalar::new());
        features
    }

    #[test]
    fn the_critic_sees_powers_and_products() {
        let features = features(&[2.0, 3.0, 5.0]);
        let expected = [
            2.0, 4.0, 8.0, 16.0, 6.0, 10.0, // first, with second and third
            3.0, 9.0, 27.0, 81.0, 15.0, // second, with third
            5.0, 25.0, 125.0, 625.0, 1.0,
        ];
        assert_eq!(of_critic(3), expected.len());
        assert!(Order::new(3).of(&features.critic).eq(expected.iter()));
    }

    #[test]
    fn every_feature_has_a_place_of_its_own_and_the_rest_is_nothing() {
        for nodes in 1..=64 {
            let loads: Vec<_> = (1..=nodes).map(|node| node as f32).collect();
            let (features, order) = (features(&loads), Order::new(nodes));
            let found: Vec<_> = order.of(&features.critic).copied().collect();
            let mut expected = Vec::new();
            for (node, load) in loads.iter().enumerate() {
                expected.extend([
                    *load,
                    load * load,
                    load * load * load,
                    load * load * (load * load),
                ]);
                expected.extend(loads[node + 1..].iter().map(|other| load * other));
            }
            expected.push(1.0);
            assert_eq!(found, expected, "{nodes}");
            let all: f64 = features.critic.as_flattened().iter().map(|&one| f64::from(one)).sum();
            let those: f64 = expected.iter().map(|&one| f64::from(one)).sum();
            assert_eq!(all, those, "{nodes}: nothing else is there");
            let mut places = std::collections::BTreeSet::new();
            order.place(&found, |at, _| assert!(places.insert(at)));
            assert_eq!(places.len(), of_critic(nodes));
        }
    }

    #[test]
    fn the_actor_sees_places_from_minus_one_to_one_and_loads() {
        let features = features(&[1.0, 4.0, 1.0, 9.0]);
        let actor = features.actor();
        assert_eq!(
            (actor[3], actor[1]),
            (-1.0, 0.0),
            "first, and second of four: ln 2 is the half"
        );
        assert!(
            (actor[2] - 1.0).abs() < 1e-6 && actor[0] < actor[2],
            "of equals the first is ahead"
        );
        assert_eq!(actor[4..9], [1.0, 4.0, 1.0, 9.0, 1.0]);
    }

    #[test]
    fn who_is_not_live_is_left_out() {
        let mut some = Features::new(4);
        some.set_live(1, false);
        some.take(Scalar::new(), &[1.0, 7.0, 0.0, 9.0]);
        some.rank(Scalar::new());
        let three = features(&[1.0, 0.0, 9.0]);
        let (some, three) = (some.actor(), three.actor());
        assert_eq!([some[0], some[2], some[3]], three[..3]);
        assert_eq!((some[1], some[5]), (0.0, 0.0));
        let alone = features(&[3.0]);
        assert_eq!(alone.actor()[..3], [0.0, 3.0, 1.0]);
    }
}
