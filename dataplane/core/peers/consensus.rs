//! Assembly of peers' critic parameters from parts.
//!
//! A node's *critic* is its learned estimate of the rack's future load. In a consensus round, all nodes exchange and
//! average their critics' parameters. Each node sends its own once, in parts of at most 256 values, one part a message.
//! A node of which a part is missing does not count in the average.
//!
//! A *beat* is the interval between two heartbeats of a node. A round opens every 2000 beats and lasts one beat.

use super::refusal::Refusal;
use crate::wire::peer::{Parameters, VALUES_MAX};

/// Largest accepted magnitude of a parameter, so that one faulty node cannot spoil the average. Real parameters are far
/// smaller.
const PARAMETER_MAX: f32 = 1e6;

/// Maximum number of parts: the bits of [`ReceivedParts::received`].
const PARTS_MAX: usize = u64::BITS as usize;

/// Received parts of one node's parameters.
#[derive(Clone, Debug)]
struct ReceivedParts {
    /// Round of the parts.
    round: u64,
    /// One bit for each part, set if the part was received.
    received: u64,
    /// Parameters. Those of missing parts are from an earlier round, or 0.
    values: Box<[f32]>,
}

/// Parameters received from remote nodes, by node number. Rounds count from 1.
#[derive(Clone, Debug)]
pub struct Consensus {
    nodes: Box<[ReceivedParts]>,
    /// Latest round that this node opened, or adopted when it joined.
    round: u64,
    /// True if the round accepts no more parts.
    is_over: bool,
    /// Number of parameters of each node.
    parameters: usize,
}

impl Consensus {
    /// Creates the state for `nodes` nodes with `parameters` parameters each.
    ///
    /// # Panics
    /// If the parameters need more than [`PARTS_MAX`] parts. Those of the largest rack need 9.
    pub fn new(nodes: usize, parameters: usize) -> Self {
        assert!(
            parameters <= PARTS_MAX * VALUES_MAX,
            "{parameters} parameters have too many parts"
        );
        let node = || ReceivedParts { round: 0, received: 0, values: vec![0.0; parameters].into() };
        let nodes = (0..nodes).map(|_| node()).collect();
        Self { nodes, round: 0, is_over: true, parameters }
    }

    /// Returns the number of parts of one node's parameters.
    pub fn parts(&self) -> usize {
        self.parameters.div_ceil(VALUES_MAX)
    }

    /// Returns the latest round that this node opened, or adopted when it joined; 0 before the first.
    pub fn round(&self) -> u64 {
        self.round
    }

    /// Returns true while this node takes part in a round that accepts parts.
    pub fn is_open(&self) -> bool {
        !self.is_over
    }

    /// Opens a round when this node sends its parameters. A starting node that learns the round's number from a peer's
    /// heartbeat joins too late for it. It passes true for `is_over`, and so only adopts the number.
    pub fn open(&mut self, round: u64, is_over: bool) {
        (self.round, self.is_over) = (round, is_over);
    }

    /// Closes the round. Returns the number of missing parts of the live peers `nodes`, for the counter of lost parts.
    /// All parts of a peer whose stored parts belong to another round count as missing. Such a peer may have sent all
    /// parts and be in the next round, but only if this node lags by most of the time between two rounds.
    pub fn close(&mut self, nodes: impl Iterator<Item = usize>) -> u64 {
        self.is_over = true;
        let parts = self.parts() as u64;
        let missing = |node: usize| {
            let ReceivedParts { round, received, .. } = &self.nodes[node];
            if *round == self.round { parts - u64::from(received.count_ones()) } else { parts }
        };
        nodes.map(missing).sum()
    }

    /// Discards a node's parts after its restart. They are its predecessor's and would mix with its own.
    pub fn forget(&mut self, node: usize) {
        (self.nodes[node].round, self.nodes[node].received) = (0, 0);
    }

    /// Stores a part of a node's parameters. Returns all parameters of the node if this part was the last missing one.
    /// The caller has checked that the rack has a node with the sender's number.
    ///
    /// # Errors
    /// Reason why the part is refused. [`Refusal::Old`] means one of three: the round is neither the current nor
    /// the next one, it is the current one and over, or it is earlier than that of the sender's stored parts.
    ///
    /// # Panics
    /// If the rack has no node with the sender's number.
    pub fn store(
        &mut self,
        head: &Parameters,
        values: impl ExactSizeIterator<Item = f32> + Clone,
    ) -> Result<Option<&[f32]>, Refusal> {
        let (part, parts) = (usize::from(head.part), self.parts());
        let first_value = part * VALUES_MAX;
        let fits = usize::from(head.parts) == parts && part < parts;
        if !fits || values.len() != VALUES_MAX.min(self.parameters - first_value) {
            return Err(Refusal::Length);
        }
        if values.clone().any(|value| !value.is_finite()) {
            return Err(Refusal::NotFinite);
        }
        if values.clone().any(|value| value.abs() > PARAMETER_MAX) {
            return Err(Refusal::OutOfRange);
        }
        // The nodes' beats do not begin at the same time. So a peer may open the next round up to one beat before this
        // node.
        let is_current = head.round == self.round && !self.is_over;
        if !is_current && head.round != self.round + 1 {
            return Err(Refusal::Old);
        }
        let node = &mut self.nodes[usize::from(head.origin.id)];
        if node.round != head.round {
            if node.round > head.round {
                return Err(Refusal::Old);
            }
            (node.round, node.received) = (head.round, 0);
        }
        if node.received & 1 << part != 0 {
            return Err(Refusal::Doubled);
        }
        node.received |= 1 << part;
        node.values[first_value..].iter_mut().zip(values).for_each(|(slot, value)| *slot = value);
        let is_complete = node.received.count_ones() as usize == parts;
        Ok(is_complete.then_some(&*node.values))
    }
}
