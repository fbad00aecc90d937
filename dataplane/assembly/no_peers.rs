//! Replacement for `peers.rs` in a build without the feature `peers`. Peers are other agents of a rack without a leaf.

use wedjat_core::role::agent::PeerGroup;
use wedjat_core::state::Table;
use wedjat_desired::config::AgentConfig;

/// Returns `None`, because no agent has peers in this build: the check of its file refuses `[peers]`. The caller then
/// builds an agent without them.
#[must_use]
pub fn peers(_: &AgentConfig, _: &Table) -> Option<PeerGroup> {
    None
}
