//! Published state of a node in a rack without a leaf: last messages of its peers, and probabilities of its
//! decisions. In such a rack the agents pass tasks to each other (migration) or ask each other for tasks
//! (stealing). Under learning policies a critic (a learned function, as in actor-critic methods) estimates the value of
//! states. A *node* here is an agent of the rack. A *slot* of its workers is the capacity to run one task.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use serde::Serialize;

use super::region::{Region, Slice};
use super::words::{address_of, address_words};

/// Number of words before those of the nodes: this node's number, and the loss of its critic.
const HEAD: usize = 2;
/// Number of words of each node: liveness; load (upper half) and waiting tasks; the two probabilities; two words of the
/// address.
const NODE_WORDS: usize = 5;

/// Returns the number of u64 words for `nodes` nodes; 0 without peers.
#[must_use]
pub const fn words(nodes: usize) -> usize {
    if nodes == 0 { 0 } else { HEAD + NODE_WORDS * nodes }
}

/// Words of the nodes. One core writes them.
#[derive(Clone, Debug)]
pub struct Nodes(Slice<AtomicU64>);

/// Published state of a node.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NodeView {
    /// Address of the node.
    pub address: IpAddr,
    /// True if the node is live or is this node itself.
    pub is_live: bool,
    /// Work that waits there, in microseconds for each slot of its workers.
    pub load_us: f32,
    /// Number of tasks that wait there.
    pub waiting: u32,
    /// Probability that a fresh task goes there, and that this node asks it for one. NaN under policies that
    /// draw neither.
    pub probabilities: (f32, f32),
}

/// Packs two numbers of 32 bits into a word.
fn pack(upper: u32, lower: u32) -> u64 {
    u64::from(upper) << 32 | u64::from(lower)
}

impl Nodes {
    /// Creates the view of the [`words`] at this offset in bytes. Expects at least one node.
    #[must_use]
    pub fn new(region: &Arc<Region>, offset: usize, nodes: usize) -> Self {
        Self(region.slice(offset, words(nodes)))
    }

    /// Publishes this node's number and the loss of its critic; NaN if no critic learns.
    pub fn show_own(&self, number: usize, value_loss: f64) {
        self.0[0].store(number as u64, Relaxed);
        self.0[1].store(value_loss.to_bits(), Relaxed);
    }

    /// Publishes the state of a node.
    pub fn show(&self, node: usize, view: &NodeView) {
        let NodeView { address, is_live, load_us, waiting, probabilities: (migration, stealing) } =
            *view;
        let [upper, lower] = address_words(address);
        let words = [
            u64::from(is_live),
            pack(load_us.to_bits(), waiting),
            pack(migration.to_bits(), stealing.to_bits()),
            upper,
            lower,
        ];
        let node_words = &self.0[HEAD + NODE_WORDS * node..][..NODE_WORDS];
        node_words.iter().zip(words).for_each(|(place, word)| place.store(word, Relaxed));
    }

    /// Returns the published state of all nodes.
    #[must_use]
    pub fn snapshot(&self) -> PeersSnapshot {
        let word = |index: usize| self.0[index].load(Relaxed);
        let node = |node: usize| {
            let first = HEAD + NODE_WORDS * node;
            let [is_live, load, probabilities, address @ ..] =
                [0, 1, 2, 3, 4].map(|index| word(first + index));
            let upper = |word: u64| f32::from_bits((word >> 32) as u32);
            let if_finite = |value: f32| value.is_finite().then_some(value);
            PeerSnapshot {
                node: node as u16,
                address: address_of(address),
                live: is_live != 0,
                load_us: upper(load),
                waiting: load as u32,
                migration: if_finite(upper(probabilities)),
                stealing: if_finite(f32::from_bits(probabilities as u32)),
            }
        };
        let loss = f64::from_bits(word(1));
        PeersSnapshot {
            own: word(0) as u16,
            value_loss: loss.is_finite().then_some(loss),
            nodes: (0..(self.0.len() - HEAD) / NODE_WORDS).map(node).collect(),
        }
    }
}

/// Rack without a leaf, as one of its agents sees it.
#[derive(Clone, Debug, Serialize)]
pub struct PeersSnapshot {
    /// Number of the agent itself.
    pub own: u16,
    /// Moving mean of its critic's squared error; none under policies that do not learn.
    pub value_loss: Option<f64>,
    /// All nodes, by number.
    pub nodes: Vec<PeerSnapshot>,
}

/// A node in a [`PeersSnapshot`].
#[derive(Clone, Debug, Serialize)]
pub struct PeerSnapshot {
    /// Number of the node.
    pub node: u16,
    /// Address of the node.
    pub address: IpAddr,
    /// True if live or the agent itself.
    pub live: bool,
    /// Waiting work by its last message, in microseconds for each slot of its workers.
    pub load_us: f32,
    /// Waiting tasks by its last message, plus those passed to it since.
    pub waiting: u32,
    /// Probability that a fresh task goes there, if learned or drawn.
    pub migration: Option<f32>,
    /// Probability that the agent asks it for a task, if learned or drawn.
    pub stealing: Option<f32>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_node_view_reads_back() {
        let region = Region::heap(8 * (words(2) + 1));
        let nodes = Nodes::new(&region, 8, 2);
        nodes.show_own(1, 0.25);
        let own = NodeView {
            address: "10.0.2.12".parse().unwrap(),
            is_live: true,
            load_us: 12.5,
            waiting: u32::MAX,
            probabilities: (0.75, 0.125),
        };
        nodes.show(1, &own);
        let own_address = own.address;
        let silent = NodeView {
            address: "fd00:2::c".parse().unwrap(),
            is_live: false,
            probabilities: (f32::NAN, f32::NAN),
            ..own
        };
        nodes.show(0, &silent);
        let PeersSnapshot { own, value_loss, nodes: read } = nodes.snapshot();
        assert_eq!((own, value_loss, read.len()), (1, Some(0.25), 2));
        assert_eq!((read[1].address, read[1].live), (own_address, true));
        assert_eq!(read[0].address, silent.address);
        assert_eq!((read[1].load_us, read[1].waiting), (12.5, u32::MAX));
        assert_eq!((read[1].migration, read[1].stealing), (Some(0.75), Some(0.125)));
        assert_eq!((read[0].live, read[0].migration, read[0].stealing), (false, None, None));
        nodes.show_own(0, f64::NAN);
        assert_eq!(nodes.snapshot().value_loss, None);
        assert_eq!(words(0), 0);
    }
}
