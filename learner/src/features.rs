//! Feature vectors of the actor and the critic (actor-critic reinforcement learning), from the loads of all nodes. The
//! actor draws the nodes for tasks, and the critic estimates the value of a state.
//!
//! The actor sees three things: each node's rank by load on a logarithmic scale from -1 to 1, each node's
//! load, and the constant 1. The critic sees the first four powers of each node's load, the product of each
//! pair of loads, and the constant 1. Features of absent nodes are 0.
//!
//! The critic's features are stored by kind, not by node: one vector operation then covers all nodes. The
//! four powers come first. The products follow, by the distance of two nodes, modulo the number of nodes. Each distance
//! below half the number of nodes has one product for each node. At exactly half, each pair would occur twice, so only
//! the first half is stored. The constant 1 comes last. Each kind begins a new [`Vec8`], after padding. Exported
//! parameters use the order of Malcolm's released program, node by node ([`Order`]).

use std::cmp::Ordering;

use pulp::Simd;

use crate::vec8::{VEC8_LEN, Vec8, multiply, zeros};

/// Maximum number of nodes that learn together.
pub const NODES_MAX: usize = 64;
/// Number of entries for ranks: at least [`NODES_MAX`], and a power of two. `% RANKS_MAX` then needs no division, and
/// an index by its result no bounds check.
const RANKS_MAX: usize = NODES_MAX.next_power_of_two();

/// Returns the number of the actor's features for `nodes` nodes: rank and load of each, and the constant.
pub fn actor_len(nodes: usize) -> usize {
    2 * nodes + 1
}

/// Returns the number of the critic's features for `nodes` nodes: `4 * nodes` powers, `nodes * (nodes - 1) / 2`
/// products, and the constant.
pub fn critic_len(nodes: usize) -> usize {
    nodes * (nodes + 7) / 2 + 1
}

/// Loads of all nodes, and the features of actor and critic derived from them.
#[derive(Clone, Debug)]
pub struct Features {
    /// Number of nodes.
    nodes: usize,
    /// 1 for each live node, else 0.
    live: Box<[Vec8]>,
    /// Actor's feature of each rank, from the highest load on; 0 for ranks beyond the number of live nodes.
    rank_features: Box<[f32; RANKS_MAX]>,
    /// Loads; 0 for absent nodes and for padding.
    loads: Box<[Vec8]>,
    /// All loads, stored two times in a row, so that products need no modulo. Padding allows vectors at any node.
    loads_repeated: Box<[f32]>,
    /// Sort key of each node: its stored load, minus 1 if it is absent.
    rank_keys: Box<[Vec8]>,
    /// Number of nodes that rank before each node.
    before: Box<[Vec8]>,
    /// Features of the actor: all ranks, all loads, and the constant.
    actor: Box<[f32]>,
    /// Features of the critic, in the order of the module's documentation.
    pub critic: Box<[Vec8]>,
}

impl Features {
    /// Creates the features of `nodes` live nodes without load. `nodes` is 1 to [`NODES_MAX`]. All features are 0, the
    /// constants too, until the first `rank` and `set_loads`.
    pub fn new(nodes: usize) -> Self {
        let mut features = Self {
            nodes,
            live: zeros(nodes),
            rank_features: Box::new([0.0; RANKS_MAX]),
            loads: zeros(nodes),
            loads_repeated: vec![0.0; 2 * nodes + 2 * VEC8_LEN].into(),
            rank_keys: zeros(nodes),
            before: zeros(nodes),
            actor: vec![0.0; actor_len(nodes)].into(),
            critic: zeros(Order::vec8s(nodes) * VEC8_LEN),
        };
        features.live.as_flattened_mut()[..nodes].fill(1.0);
        features.set_rank_features();
        features
    }

    /// Returns the actor's features.
    pub fn actor(&self) -> &[f32] {
        &self.actor
    }

    /// Returns a value for each node: 1 for a live one, else 0. Padding is 0.
    pub fn live(&self) -> &[Vec8] {
        &self.live
    }

    /// Marks a node as live or absent. The features follow at the next `set_loads` and `rank`. The load of an absent
    /// node stays stored until `set_loads`.
    ///
    /// # Panics
    /// If there is no such node.
    pub fn set_live(&mut self, node: usize, is_live: bool) {
        assert!(node < self.nodes, "no node {node}");
        self.live.as_flattened_mut()[node] = f32::from(u8::from(is_live));
        self.set_rank_features();
    }

    /// Recomputes the feature of each rank for the current number of live nodes: the logarithm of the rank, counted
    /// from 1, scaled to -1 for the first node and 1 for the last one. So a beat computes no logarithm.
    fn set_rank_features(&mut self) {
        let live = self.live.as_flattened().iter().filter(|live| **live > 0.0).count();
        let half = (live as f32).ln() / 2.0; // half of the last rank's logarithm
        for (rank, feature) in self.rank_features[..self.nodes].iter_mut().enumerate() {
            // A single node is both first and last.
            let has_rank = live > 1 && rank < live;
            *feature = if has_rank { ((rank as f32 + 1.0).ln() - half) / half } else { 0.0 };
        }
    }

    /// Stores the loads of all nodes, absent ones as 0, and computes the critic's features. The actor's features stay
    /// until `rank`: a beat learns from the draws made with them, and by the values of the new loads.
    ///
    /// # Panics
    /// If `loads` has fewer values than there are nodes.
    #[inline(always)]
    pub fn set_loads<S: Simd>(&mut self, simd: S, loads: &[f32]) {
        self.loads.as_flattened_mut()[..self.nodes].copy_from_slice(&loads[..self.nodes]);
        let (stored, _) = S::as_mut_simd_f32s(self.loads.as_flattened_mut());
        for (stored, live) in stored.iter_mut().zip(S::as_simd_f32s(self.live.as_flattened()).0) {
            *stored = simd.mul_f32s(*stored, *live);
        }
        let stored = &self.loads.as_flattened()[..self.nodes];
        let (first, second) = self.loads_repeated.split_at_mut(self.nodes);
        first.copy_from_slice(stored);
        second[..self.nodes].copy_from_slice(stored);

        let (loads, loads_repeated) = (&self.loads, &self.loads_repeated);
        // The four powers. `loads_repeated` begins with the loads of `loads`.
        let (powers, rest) = self.critic.split_at_mut(4 * loads.len());
        let (load, powers) = powers.split_at_mut(loads.len());
        let (square, powers) = powers.split_at_mut(loads.len());
        let (cube, fourth) = powers.split_at_mut(loads.len());
        load.copy_from_slice(loads);
        multiply(simd, square, loads, loads_repeated);
        multiply(simd, cube, square, loads_repeated);
        multiply(simd, fourth, square, square.as_flattened());
        // Products of pairs, by distance: `index` 0 has each node's product with the next one. Padding of `loads` is 0,
        // so that the products' padding is, too.
        let (pairs, rest) = rest.split_at_mut(Order::distances(self.nodes) * loads.len());
        for (index, product) in pairs.chunks_exact_mut(loads.len()).enumerate() {
            multiply(simd, product, loads, &loads_repeated[index + 1..]);
        }
        let half = self.nodes / 2;
        // Pairs at exactly half the number of nodes, if that is even. The rest is the vector of the constant.
        let (opposite, rest) = rest.split_at_mut(rest.len() - 1);
        if !opposite.is_empty() {
            multiply(simd, opposite, loads, &loads_repeated[half..]);
            // The second half would repeat the pairs of the first.
            opposite.as_flattened_mut()[half..].fill(0.0);
        }
        rest[0][0] = 1.0;
    }

    /// Computes the actor's features from the stored loads. Nodes rank by descending load, then by ascending
    /// number; absent nodes come last. Compares each node with all others, which takes less time than sorting and has
    /// no branches to mispredict.
    #[inline(always)]
    pub fn rank<S: Simd>(&mut self, simd: S) {
        let (zero, one) = (simd.splat_f32s(0.0), simd.splat_f32s(1.0));
        let (loads, _) = S::as_simd_f32s(self.loads.as_flattened());
        let (live, _) = S::as_simd_f32s(self.live.as_flattened());
        let (keys, _) = S::as_mut_simd_f32s(self.rank_keys.as_flattened_mut());
        for (key, (load, live)) in keys.iter_mut().zip(loads.iter().zip(live)) {
            // The load of a live node. An absent one has a stored load of 0 after `set_loads`, which gives -1.
            *key = simd.add_f32s(*load, simd.sub_f32s(*live, one));
        }
        let all = &self.rank_keys.as_flattened()[..self.nodes];
        let (keys, _) = S::as_simd_f32s(self.rank_keys.as_flattened());
        let (before, _) = S::as_mut_simd_f32s(self.before.as_flattened_mut());
        let positions = S::as_simd_f32s(&POSITIONS).0[0];
        // Processes one vector of nodes at a time: compares their `keys` with each key of `all`.
        for (vector, (before, keys)) in before.iter_mut().zip(keys).enumerate() {
            // Among equals, nodes in earlier vectors rank first and nodes in later ones last.
            let (earlier, rest) = all.split_at((vector * S::F32_LANES).min(all.len()));
            let (same, later) = rest.split_at(S::F32_LANES.min(rest.len()));
            let mut count = zero;
            for other in earlier {
                let is_before = simd.greater_than_or_equal_f32s(simd.splat_f32s(*other), *keys);
                count = simd.add_f32s(count, simd.select_f32s_m32s(is_before, one, zero));
            }
            // Within the vector the position decides among equals.
            for (other, position) in same.iter().zip(POSITIONS) {
                let other = simd.splat_f32s(*other);
                let is_more = simd.greater_than_f32s(other, *keys);
                count = simd.add_f32s(count, simd.select_f32s_m32s(is_more, one, zero));
                let is_after_other = simd.greater_than_f32s(positions, simd.splat_f32s(position));
                let is_before = simd.and_m32s(simd.equal_f32s(other, *keys), is_after_other);
                count = simd.add_f32s(count, simd.select_f32s_m32s(is_before, one, zero));
            }
            for other in later {
                let is_more = simd.greater_than_f32s(simd.splat_f32s(*other), *keys);
                count = simd.add_f32s(count, simd.select_f32s_m32s(is_more, one, zero));
            }
            *before = count;
        }
        let loads = &self.loads.as_flattened()[..self.nodes];
        for (feature, before) in
            self.actor.iter_mut().zip(&self.before.as_flattened()[..self.nodes])
        {
            // The conversion by way of `i32` is one vector instruction.
            *feature = self.rank_features[*before as i32 as usize % RANKS_MAX];
        }
        self.actor[self.nodes..2 * self.nodes].copy_from_slice(loads);
        self.actor[2 * self.nodes] = 1.0;
    }
}

/// Position of each value in a vector of nodes.
const POSITIONS: [f32; VEC8_LEN] = [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0];

/// Index in [`Features::critic`] of each critic feature, in the order of Malcolm's released program: for each node the
/// four powers of its load and its products with the loads of later nodes; then the constant 1. Nodes exchange the
/// critic's parameters in this order.
#[derive(Clone, Debug)]
pub struct Order(Box<[u16]>);

impl Order {
    /// Creates the order for `nodes` nodes.
    pub fn new(nodes: usize) -> Self {
        // Number of stored values per kind, padding included.
        let width = nodes.div_ceil(VEC8_LEN) * VEC8_LEN;
        let mut order = Vec::with_capacity(critic_len(nodes));
        // Index of the first product, and of the first product at exactly half the number of nodes.
        let pairs = 4 * width;
        let opposite = pairs + Self::distances(nodes) * width;
        for node in 0..nodes {
            order.extend((0..4).map(|power| power * width + node));
            for other in node + 1..nodes {
                let distance = other - node;
                // Beyond half the number of nodes, the pair is stored at the later node, modulo the number of nodes.
                order.push(match (2 * distance).cmp(&nodes) {
                    Ordering::Less => pairs + (distance - 1) * width + node,
                    Ordering::Equal => opposite + node,
                    Ordering::Greater => pairs + (nodes - distance - 1) * width + other,
                });
            }
        }
        // The constant 1 begins the last vector.
        order.push((Self::vec8s(nodes) - 1) * VEC8_LEN);
        Self(order.into_iter().map(|index| index as u16).collect())
    }

    /// Returns the number of distances below half the number of nodes. At each such distance, each pair of nodes occurs
    /// once.
    fn distances(nodes: usize) -> usize {
        (nodes - 1) / 2
    }

    /// Returns the number of [`Vec8`]s of all critic features, as stored, with the padding of each kind.
    pub fn vec8s(nodes: usize) -> usize {
        let opposite = if nodes.is_multiple_of(2) { (nodes / 2).div_ceil(VEC8_LEN) } else { 0 };
        (4 + Self::distances(nodes)) * nodes.div_ceil(VEC8_LEN) + opposite + 1
    }

    /// Iterates in this order over `values`, which are stored like [`Features::critic`].
    pub fn in_order<'a>(&'a self, values: &'a [Vec8]) -> impl ExactSizeIterator<Item = &'a f32> {
        let values = values.as_flattened();
        self.0.iter().map(|&index| &values[usize::from(index)])
    }

    /// Calls `set` for each of `values`, which are in this order, with the index at which it is stored and the value.
    pub fn for_each_stored_index(&self, values: &[f32], mut set: impl FnMut(usize, f32)) {
        self.0.iter().zip(values).for_each(|(&index, &value)| set(usize::from(index), value));
    }
}

#[cfg(test)]
mod tests {
    use pulp::Scalar;

    use super::*;

    /// Returns the features of these loads.
    fn features(loads: &[f32]) -> Features {
        let mut features = Features::new(loads.len());
        features.set_loads(Scalar::new(), loads);
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
        assert_eq!(critic_len(3), expected.len());
        assert!(Order::new(3).in_order(&features.critic).eq(expected.iter()));
    }

    #[test]
    fn every_feature_has_its_own_index() {
        for nodes in 1..=64 {
            let loads: Vec<_> = (1..=nodes).map(|node| node as f32).collect();
            let (features, order) = (features(&loads), Order::new(nodes));
            let values: Vec<_> = order.in_order(&features.critic).copied().collect();
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
            assert_eq!(values, expected, "{nodes}");
            // Equal sums show that all other stored values are 0.
            let stored_sum: f64 =
                features.critic.as_flattened().iter().map(|&one| f64::from(one)).sum();
            let expected_sum: f64 = expected.iter().map(|&one| f64::from(one)).sum();
            assert_eq!(stored_sum, expected_sum, "{nodes}: other stored values are 0");
            let mut indices = std::collections::BTreeSet::new();
            order.for_each_stored_index(&values, |index, _| assert!(indices.insert(index)));
            assert_eq!(indices.len(), critic_len(nodes));
        }
    }

    #[test]
    fn actor_sees_ranks_and_loads() {
        let features = features(&[1.0, 4.0, 1.0, 9.0]);
        let actor = features.actor();
        assert_eq!(
            (actor[3], actor[1]),
            (-1.0, 0.0),
            "ranks 1 and 2 of 4: ln 1 gives -1, and ln 2, half of ln 4, gives 0"
        );
        assert!(
            (actor[2] - 1.0).abs() < 1e-6 && actor[0] < actor[2],
            "of equals the first is ahead"
        );
        assert_eq!(actor[4..9], [1.0, 4.0, 1.0, 9.0, 1.0]);
    }

    #[test]
    fn absent_nodes_are_excluded() {
        let mut some = Features::new(4);
        some.set_live(1, false);
        // The load 7 of the absent node does not count.
        some.set_loads(Scalar::new(), &[1.0, 7.0, 0.0, 9.0]);
        some.rank(Scalar::new());
        let three = features(&[1.0, 0.0, 9.0]);
        let (some, three) = (some.actor(), three.actor());
        assert_eq!([some[0], some[2], some[3]], three[..3]);
        assert_eq!((some[1], some[5]), (0.0, 0.0));
        // Rank, load and constant of a single node.
        let alone = features(&[3.0]);
        assert_eq!(alone.actor()[..3], [0.0, 3.0, 1.0]);
    }
}
