//! `[peers]` of an agent's file, refused by a build without the feature `peers`.

use super::faults::FaultCollector;
use super::port::PortConfig;
use super::raw_agent;

/// Rack without a leaf. This build cannot have one: the type has no values, and keeps the callers free of conditional
/// compilation.
#[derive(Clone, Debug, PartialEq)]
pub enum PeersConfig {}

impl PeersConfig {
    /// Returns the number of nodes. Never called, since no value of the type exists.
    #[must_use]
    pub fn count(&self) -> usize {
        match *self {}
    }
}

/// Records a fault if the file has the table. Returns `None`.
pub(super) fn peers(
    faults: &mut FaultCollector,
    raw: &raw_agent::File,
    _: &[PortConfig],
) -> Option<PeersConfig> {
    let entry = raw.peers.as_ref()?;
    let found = "[peers], and this build lacks the feature `peers`";
    faults.note(&entry.nodes, "peers", found, "a build with it (the default)");
    None
}
