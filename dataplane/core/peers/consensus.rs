//! Assembly of peers' critic parameters from the parts in which they send them.
//!
//! A node's *critic* is its learned estimate of the rack's future load. In a consensus round, all nodes exchange and
//! average their critics' parameters: each node sends its own once, in one part per message. A *beat* is the interval
//! between two heartbeats of a node; a round lasts one beat.

use super::refusal::Refusal;
use crate::wire::peer::{Parameters, VALUES_MAX};

/// Largest accepted magnitude of a parameter.
const PARAMETER_MAX: f32 = 1e6;

/// Parts of one node's parameters.
#[derive(Clone, Debug)]
struct ParameterParts {
    /// Round of the parts.
    round: u64,
    /// Received parts, one bit each.
    received: u64,
    /// Parameters. Those of missing parts are from an earlier round, or 0.
    values: Box<[f32]>,
}

/// Parameters received from remote nodes, by node number. Rounds count from 1.
#[derive(Clone, Debug)]
pub struct Consensus {
    parts_of_nodes: Box<[ParameterParts]>,
    /// Latest round that this node opened, or adopted when it joined.
    round: u64,
    /// True if the round accepts no more parts.
    is_over: bool,
    /// Number of parameters of each node.
    parameters: usize,
}

impl Consensus {
    /// Creates the state for `nodes` nodes with `parameters` parameters each.
    pub fn new(nodes: usize, parameters: usize) -> Self {
        let parts =
            || ParameterParts { round: 0, received: 0, values: vec![0.0; parameters].into() };
        let parts_of_nodes = (0..nodes).map(|_| parts()).collect();
        Self { parts_of_nodes, round: 0, is_over: true, parameters }
    }

    /// Returns the number of parts.
    pub fn chunks(&self) -> usize {
        self.parameters.div_ceil(VALUES_MAX)
    }

    /// Returns the latest round that this node opened, or adopted when it joined; 0 before the first.
    pub fn round(&self) -> u64 {
        self.round
    }

    /// Opens a round when this node sends its parameters. A node that joins too late for the round only adopts its
    /// number: the round `is_over`.
    pub fn open(&mut self, round: u64, is_over: bool) {
        (self.round, self.is_over) = (round, is_over);
    }

    /// Closes the round. Returns the number of missing parts of these nodes.
    pub fn close(&mut self, nodes: impl Iterator<Item = usize>) -> u64 {
        self.is_over = true;
        let chunks = self.chunks() as u64;
        let missing = |node: usize| {
            let ParameterParts { round, received, .. } = &self.parts_of_nodes[node];
            if *round == self.round { chunks - u64::from(received.count_ones()) } else { chunks }
        };
        nodes.map(missing).sum()
    }

    /// Discards a node's parts, after its restart.
    pub fn forget(&mut self, node: usize) {
        (self.parts_of_nodes[node].round, self.parts_of_nodes[node].received) = (0, 0);
    }

    /// Stores a part. Returns all parameters of the node if it was the last missing one.
    ///
    /// # Errors
    /// Reason why the part is refused.
    pub fn take(
        &mut self,
        head: &Parameters,
        values: impl ExactSizeIterator<Item = f32> + Clone,
    ) -> Result<Option<&[f32]>, Refusal> {
        let (chunk, chunks) = (usize::from(head.chunk), self.chunks());
        let first = chunk * VALUES_MAX;
        let fits = usize::from(head.chunks) == chunks && chunk < chunks;
        if !fits || values.len() != VALUES_MAX.min(self.parameters - first) {
            return Err(Refusal::Length);
        }
        if values.clone().any(|value| !value.is_finite()) {
            return Err(Refusal::NotFinite);
        }
        if values.clone().any(|value| value.abs() > PARAMETER_MAX) {
            return Err(Refusal::OutOfRange);
        }
        // Beats are out of phase, so a peer may be one round ahead for the rest of this node's beat.
        let is_current = head.round == self.round && !self.is_over;
        if !is_current && head.round != self.round + 1 {
            return Err(Refusal::Old);
        }
        let parts = &mut self.parts_of_nodes[usize::from(head.origin.id)];
        if parts.round != head.round {
            if parts.round > head.round {
                return Err(Refusal::Old);
            }
            (parts.round, parts.received) = (head.round, 0);
        }
        if parts.received & 1 << chunk != 0 {
            return Err(Refusal::Doubled);
        }
        parts.received |= 1 << chunk;
        parts.values[first..].iter_mut().zip(values).for_each(|(slot, value)| *slot = value);
        let is_complete = parts.received.count_ones() as usize == chunks;
        Ok(is_complete.then_some(&*parts.values))
    }
}
