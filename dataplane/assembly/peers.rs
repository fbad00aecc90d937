//! Assembly of an agent's peers from a checked configuration. Peers are the agents of a rack without a leaf. They
//! forward tasks to each other. At the end of each beat, an interval, each sends its load to all others in a heartbeat.
//! `parts` of an agent calls [`peers`]. The testbed's lockstep runs change the settings first, and call
//! [`peer_settings`] and [`peer_group`].

use std::time::SystemTime;

use rand::{Rng as _, SeedableRng as _};

use wedjat_core::peers::Settings;
use wedjat_core::policy::{Rng, stream_seed};
use wedjat_core::role::agent::PeerGroup;
use wedjat_core::state::Table;
use wedjat_desired::config::AgentConfig;
use wedjat_desired::state::Pool;

/// Creates the exchange of tasks between the configured agent and its peers; `None` if it has none. `table` is the
/// agent's state.
#[must_use]
pub fn peers(config: &AgentConfig, table: &Table) -> Option<PeerGroup> {
    peer_group(config, peer_settings(config, table)?, table)
}

/// Returns the settings of the configured agent among its peers, if it has any. `born`, the start time in nanoseconds
/// since 1970, distinguishes a restarted agent from the earlier one.
#[must_use]
pub fn peer_settings(config: &AgentConfig, table: &Table) -> Option<Settings> {
    let peers = config.peers.as_ref()?;
    // An agent with peers has one pool.
    let (_, pool) = config.host.pools.first()?;
    let (own, beat_ns) = (peers.own, peers.beat_ns());
    // Random stream 2: the only core has stream 0, and its reports have stream 1.
    let mut rng = Rng::seed_from_u64(stream_seed(table.seed(), 2, own));
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    Some(Settings {
        nodes: peers.nodes.len(),
        own,
        policy: peers.policy,
        slots: config.host.workers.len() as u32 * tasks_of_each(pool),
        beat_ns,
        // A random phase of the beats, so that nodes do not send their heartbeats at the same time.
        first_beat_ns: rng.next_u64() % beat_ns,
        born: since.map_or(0, |since| since.as_nanos() as u64),
        // Differs from the node's seed, whose streams its dispatcher uses.
        seed: rng.next_u64(),
    })
}

/// Same as [`peers`], with these settings. The state `table` shows the load and presence of the peers.
#[must_use]
pub fn peer_group(config: &AgentConfig, settings: Settings, table: &Table) -> Option<PeerGroup> {
    let (peers, (id, pool)) = (config.peers.as_ref()?, config.host.pools.first()?);
    let group = PeerGroup::new(settings, *id, &peers.nodes, tasks_of_each(pool));
    Some(group.shown_in(table.peers()))
}

/// Returns the number of tasks that a worker of the pool may have at once: the bound of the pool's policy, or one if
/// the policy determines its bound at run time, such as `cfcfs`.
fn tasks_of_each(pool: &Pool) -> u32 {
    pool.policy.bound().unwrap_or(1)
}
