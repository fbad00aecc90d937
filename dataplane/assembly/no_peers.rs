//! Replacement for `peers.rs` in a build without the feature `peers`.

use wedjat_core::role::agent::PeerGroup;
use wedjat_core::state::Table;
use wedjat_desired::config::AgentConfig;

/// Returns `None`: no agent has peers in this build.
#[must_use]
pub fn peers(_: &AgentConfig, _: &Table) -> Option<PeerGroup> {
    None
}
