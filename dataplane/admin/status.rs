//! Content of `/status.json`: the state of a node as in `wedjat state --json`, and facts that only the running
//! process knows.

use std::time::{SystemTime, UNIX_EPOCH};

use serde::Serialize;
use wedjat_core::program::Program;
use wedjat_core::state::table::{MemberSnapshot, PoolSnapshot, Snapshot};
use wedjat_core::stats::PortStats;

use super::follow::ControllerLink;
use super::requests::NodeSnapshot;

/// Status of a node, as the status page reads it once a second.
#[derive(Debug, Serialize)]
pub struct Status {
    /// Revision of the sources.
    pub revision: &'static str,
    /// Time of the reading, in seconds since 1970.
    pub time: f64,
    /// Newest membership that all cores use.
    pub acknowledged: u64,
    /// Controller that the node follows, or null.
    pub controller: Option<ControllerLink>,
    /// More about the members of each pool, in the order of `state.pools[].members[]`.
    pub members: Vec<Vec<MemberStatus>>,
    /// Counts of each device.
    pub ports: Vec<PortStats>,
    /// State in the form of `wedjat state --json`, without seeds.
    pub state: Snapshot,
}

/// Facts about a member besides its [`MemberSnapshot`].
#[derive(Debug, Serialize)]
pub struct MemberStatus {
    /// Seconds since its newest load report, too low by up to the time between two readings: 1 s while a
    /// status page is open, else 10 s. Null before the first.
    pub report_age: Option<f64>,
    /// True if it is absent, unregistered, silent or unreachable.
    pub away: bool,
    /// True if it is drained.
    pub drained: bool,
    /// True if it was removed and gets no new tasks.
    pub leaving: bool,
}

impl Status {
    /// Converts a snapshot. Drops the seeds, which would let clients foresee picks and hash collisions, and
    /// the drivers' own counts of ports.
    pub fn of(node: NodeSnapshot) -> Self {
        let members = node.snapshot.pools.iter().map(|pool| members(&node, pool)).collect();
        let NodeSnapshot { acknowledged, mut snapshot, mut ports, controller, .. } = node;
        snapshot.seed = None;
        if let Some(agent) = &mut snapshot.agent {
            agent.seed = None;
        }
        ports.iter_mut().for_each(|port| port.xstats.clear());
        let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
        let revision = Program::current().revision;
        Self { revision, time, acknowledged, controller, members, ports, state: snapshot }
    }
}

/// Returns the further facts about each member of a pool.
fn members(node: &NodeSnapshot, pool: &PoolSnapshot) -> Vec<MemberStatus> {
    let pool_now = node.membership.pool(pool.id).map(|(_, pool)| pool);
    let status = |member: &MemberSnapshot| {
        let worker =
            pool_now.and_then(|pool| pool.members.get(usize::from(member.member))?.as_ref());
        // The state may be older than the membership: the place may have another worker by now.
        let worker = worker.filter(|worker| worker.id == member.worker);
        let reported = node.tally.worker(pool.id, member.worker).reported;
        MemberStatus {
            report_age: reported.map(|reported| reported.elapsed().as_millis() as f64 / 1e3),
            away: member.presence.is_away(),
            drained: worker.is_some_and(|worker| node.is_drained(worker)),
            leaving: worker.is_some_and(|worker| worker.is_leaving),
        }
    };
    pool.members.iter().map(status).collect()
}
