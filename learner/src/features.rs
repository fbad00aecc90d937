//! What a state of the nodes looks like to actors and critic.
//!
//! The actor sees each node's place by load, on a logarithmic scale from -1 to 1, each node's load, and 1. The critic sees the powers
//! of each node's load up to the fourth, the products of each two, and 1. Nodes that are not live are 0 everywhere.

use pulp::Simd;

use crate::lanes::{LANES, Lane, scale, zeros};

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
    live: Box<[bool]>,
    /// The feature of each place in the order of loads.
    places: Box<[f32]>,
    /// Loads, those of nodes that are not live 0, and zeros behind them.
    loads: Box<[Lane]>,
    /// Nodes by their loads, in order: whoever has more comes first, and of those that have as much who has the smaller number.
    keys: Box<[u64]>,
    /// All ones where a node is not live, and comes last.
    last: Box<[u32]>,
    actor: Box<[f32]>,
    pub critic: Box<[Lane]>,
}

impl Features {
    pub fn new(nodes: usize) -> Self {
        let mut features = Self {
            nodes,
            live: vec![true; nodes].into(),
            places: vec![0.0; nodes].into(),
            loads: zeros(nodes + LANES),
            keys: (0..nodes as u64).collect(),
            last: vec![0; nodes].into(),
            actor: vec![0.0; of_actor(nodes)].into(),
            critic: zeros(of_critic(nodes) + LANES),
        };
        features.place();
        features
    }

    /// What the actor sees.
    pub fn actor(&self) -> &[f32] {
        &self.actor
    }

    pub fn live(&self) -> &[bool] {
        &self.live
    }

    /// A node is there, or not.
    pub fn set_live(&mut self, node: usize, is_live: bool) {
        self.live[node] = is_live;
        self.last[node] = if is_live { 0 } else { u32::MAX };
        self.place();
    }

    /// The features of the places that there are.
    fn place(&mut self) {
        let live = self.live.iter().filter(|is_live| **is_live).count();
        let half = (live as f32).ln() / 2.0;
        for (place, feature) in self.places.iter_mut().enumerate() {
            // One node alone is first and last.
            let is_some = live > 1 && place < live;
            *feature = if is_some { ((place as f32 + 1.0).ln() - half) / half } else { 0.0 };
        }
    }

    /// Takes the loads of all nodes, and makes the critic's features of them.
    #[inline(always)]
    pub fn take<S: Simd>(&mut self, simd: S, loads: &[f32]) {
        let own = self.loads.as_flattened_mut().iter_mut();
        for (own, (is_live, load)) in own.zip(self.live.iter().zip(loads)) {
            *own = if *is_live { *load } else { 0.0 };
        }
        let (loads, mut rest) = (self.loads.as_flattened(), self.critic.as_flattened_mut());
        for node in 0..self.nodes {
            let (load, others) = (loads[node], &loads[node + 1..]);
            let square = load * load;
            let Some(powers) = rest.first_chunk_mut::<4>() else { return };
            *powers = [load, square, square * load, square * square];
            rest = &mut rest[4..];
            // What is written too far is 0 or written again by the next node.
            let products = self.nodes - node - 1;
            let (to, from) = (&mut rest[..products + LANES], &others[..products + LANES - 1]);
            scale(simd, to, load, from);
            rest = &mut rest[products..];
        }
        rest[0] = 1.0;
    }

    /// Makes the actor's features of the loads taken.
    #[inline(always)]
    pub fn rank(&mut self) {
        let loads = &self.loads.as_flattened()[..self.nodes];
        // From the order of the beat before, which is nearly that of this one.
        for at in 0..self.keys.len() {
            let node = self.keys[at] as u8 as usize;
            // Bits of numbers that are not below 0 are in their order.
            let last = self.last[node];
            let key = u64::from(!loads[node].to_bits() | last) << 32
                | u64::from(last & !0xFF)
                | node as u64;
            let mut place = at;
            while place > 0 && self.keys[place - 1] > key {
                self.keys[place] = self.keys[place - 1];
                place -= 1;
            }
            self.keys[place] = key;
        }
        for (key, feature) in self.keys.iter().zip(&self.places) {
            self.actor[*key as u8 as usize] = *feature;
        }
        self.actor[self.nodes..2 * self.nodes].copy_from_slice(loads);
        self.actor[2 * self.nodes] = 1.0;
    }
}

#[cfg(test)]
mod tests {
    use pulp::Scalar;

    use super::*;

    fn features(loads: &[f32]) -> Features {
        let mut features = Features::new(loads.len());
        features.take(Scalar::new(), loads);
        features.rank();
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
        assert_eq!(features.critic.as_flattened()[..expected.len()], expected);
        assert!(features.critic.as_flattened()[expected.len()..].iter().all(|rest| *rest == 0.0));
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
        some.rank();
        let three = features(&[1.0, 0.0, 9.0]);
        let (some, three) = (some.actor(), three.actor());
        assert_eq!([some[0], some[2], some[3]], three[..3]);
        assert_eq!((some[1], some[5]), (0.0, 0.0));
        let alone = features(&[3.0]);
        assert_eq!(alone.actor()[..3], [0.0, 3.0, 1.0]);
    }
}
