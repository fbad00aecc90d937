//! Agents of the benchmarks of worker cores: one port, one pool, one region (the memory shared with the workers). An
//! agent is the process of a worker host that receives tasks and gives them to worker cores.

use std::path::Path;
use std::sync::Arc;

use crossbeam_queue::ArrayQueue;
use wedjat::assembly::agent as assembly;
use wedjat::config::AgentConfig;
use wedjat::io::{Pool, Port, Token};
use wedjat::ring::WorkerRegion;
use wedjat::role::Agent;
use wedjat::role::agent::Death;
use wedjat::wire::ether::Mac;

/// Reason why there is no agent.
type Failure = Box<dyn std::error::Error>;

/// Address of the agent.
pub const IP: u32 = 0x0A00_020B;
/// MAC address of the agent.
const MAC: Mac = Mac([2, 0, 0, 0, 2, 11]);
/// Address of the clients.
pub const CLIENT_IP: u32 = 0x0A00_0201;
/// Maximum number of queued tasks in the pool.
pub const QUEUE: usize = 16_384;

/// Builds the configuration of an agent with `workers` workers, at least one.
///
/// # Errors
/// If the policy is unknown.
pub fn config(policy: &str, workers: u16) -> Result<AgentConfig, Failure> {
    let (ip, last) = (std::net::Ipv4Addr::from_bits(IP), workers - 1);
    let text = format!(
        "[agent]\nname = 'bench-host'\ncore = 0\nseed = 1\npayload = 64\nworker_timeout_ms = 0\n\
         pools_max = 1\nworkers_max = {workers}\n\
         [[port]]\ndevice = 'memory'\nip = '{ip}/24'\n\
         [[pool]]\nid = 1\npolicy = '{policy}'\nworkers = '0-{last}'\nqueue = {QUEUE}\n"
    );
    Ok(AgentConfig::parse(Path::new("bench-host"), &text)?)
}

/// An agent, and the queue through which it learns that worker processes have died.
pub type AssembledAgent<P, A> = (Agent<P, A>, Arc<ArrayQueue<Death>>);

/// Creates the agent for the workers of `region`, on a clock of `ticks_hz` ticks per second.
///
/// # Errors
/// If the agent's state file cannot be created. A configuration of `config` names no such file.
pub fn agent<P, A>(
    config: &AgentConfig,
    port: P,
    pool: A,
    region: &WorkerRegion,
    ticks_hz: u64,
) -> Result<AssembledAgent<P, A>, Failure>
where
    P: Port<Buf: Token>,
    A: Pool<Buf = P::Buf>,
{
    let table = assembly::table(config, ticks_hz)?;
    // Each worker has its channel of the region.
    let parts = assembly::parts(config, &table, |index| region.channel(index).into(), pool);
    let deaths = Arc::clone(&parts.deaths);
    let ports = [port].into_iter().zip(config.addresses([MAC])).collect();
    Ok((Agent::new(parts, ports), deaths))
}
