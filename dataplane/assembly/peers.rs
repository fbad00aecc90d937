//! From a checked configuration to what an agent of a rack without a leaf decides by.

use std::time::SystemTime;

use rand::{Rng as _, SeedableRng as _};

use crate::config::{AgentConfig, AgentPool, v4_bits};
use crate::peers::Settings;
use crate::policy::{Rng, stream_seed};
use crate::role::agent::PeerGroup;
use crate::state::Table;

/// What passes tasks between the configured agent and its peers, when it has any.
#[must_use]
pub fn peers(config: &AgentConfig, table: &Table) -> Option<PeerGroup> {
    peer_group(config, peer_settings(config, table)?, table)
}

/// What the configured agent decides by among its peers, when it has any; it is told apart from its earlier lives by the time.
#[must_use]
pub fn peer_settings(config: &AgentConfig, table: &Table) -> Option<Settings> {
    let peers = config.peers.as_ref()?;
    let pool = config.host.pools.first()?;
    let (own, beat_ns) = (peers.own, peers.beat_ns());
    // Beside those of the only core and of its reports.
    let mut rng = Rng::seed_from_u64(stream_seed(table.seed(), 2, own));
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    Some(Settings {
        nodes: peers.nodes.len(),
        own,
        policy: peers.policy,
        slots: pool.workers.len() as u32 * tasks_of_each(pool),
        beat_ns,
        // Beats are out of step: anywhere within one.
        first_beat_ns: rng.next_u64() % beat_ns,
        born: since.map_or(0, |since| since.as_nanos() as u64),
        seed: table.seed(),
    })
}

/// What passes tasks between the configured agent and its peers, by these settings.
#[must_use]
pub fn peer_group(config: &AgentConfig, settings: Settings, table: &Table) -> Option<PeerGroup> {
    let (peers, pool) = (config.peers.as_ref()?, config.host.pools.first()?);
    let addresses: Vec<_> = peers.nodes.iter().filter_map(|node| v4_bits(*node)).collect();
    Some(PeerGroup::new(settings, pool.id, &addresses, tasks_of_each(pool)).shown_in(table.peers()))
}

/// Tasks that a worker of the pool may have at once; one where the policy finds its bound itself.
fn tasks_of_each(pool: &AgentPool) -> u32 {
    pool.policy.bound().unwrap_or(1)
}
