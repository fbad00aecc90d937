//! `wedjat state`: a node's shared state as text or JSON.

use std::fmt::Write as _;
use std::path::Path;

use clap::Args;
use wedjat::policy::Entry;
use wedjat::quantity;
use wedjat::state::nodes::PeersSnapshot;
use wedjat::state::table::{CoreSnapshot, PoolSnapshot};
use wedjat::state::{Counter, Gauge, Snapshot};

use super::Outcome;
use super::node::{Node, has_exited};

/// Help text below the options.
pub const EXAMPLE: &str = "Example:
  wedjat state /dev/shm/wedjat-leaf1 --json";

/// Arguments of `wedjat state`.
#[derive(Debug, Args)]
pub struct Arguments {
    #[command(flatten)]
    node: Node,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Prints the content of the state file, and the state of an agent on the leaf's core if there is one.
pub fn run(arguments: &Arguments) -> Outcome {
    let path = arguments.node.state_file()?;
    let snapshot = Snapshot::open(&path)?;
    if arguments.json {
        return super::print(&format!("{}\n", serde_json::to_string_pretty(&snapshot)?));
    }
    let agent = snapshot.agent.as_deref();
    let nodes = [Some(&snapshot), agent].into_iter().flatten();
    super::print(&nodes.map(|node| text(node, &path)).collect::<String>())
}

/// Formats the state of a node, whose process has the state file `path`.
fn text(snapshot: &Snapshot, path: &Path) -> String {
    let mut out = String::new();
    let end = match snapshot.running {
        true if has_exited(path, snapshot.pid) => ", which ended without an orderly stop",
        true => "",
        false => ", ended",
    };
    let seed = snapshot.seed.map_or_else(String::new, |seed| format!("  seed {seed}"));
    let _ = writeln!(
        out,
        "{} {}  pid {}{end}{seed}  {}",
        snapshot.role.name(),
        snapshot.node,
        snapshot.pid,
        quantity(snapshot.cores.len(), "core")
    );
    for pool in &snapshot.pools {
        pool_text(&mut out, pool);
    }
    if let Some(peers) = &snapshot.peers {
        peers_text(&mut out, peers);
    }
    for (index, core) in snapshot.cores.iter().enumerate() {
        core_text(&mut out, index, core, snapshot.ticks_hz);
    }
    for core in snapshot.idle_cores() {
        let _ = writeln!(
            out,
            "core {core} receives nothing: its devices do not spread packets over their queues"
        );
    }
    for port in &snapshot.ports_without_link {
        let _ = writeln!(out, "port {port} has no link");
    }
    for host in &snapshot.neighbours {
        let mac = host.mac.as_deref().unwrap_or("not resolved");
        let _ = writeln!(out, "neighbour {} on port {}: {mac}", host.address, host.port);
    }
    out
}

/// Formats a pool with its members. A member's drift is the load that a core has sent it since its last report. A
/// core's idle list has the members estimated idle there. The line "any core may take" lists a worker once for each of
/// its free tokens. The cores share the tokens.
fn pool_text(out: &mut String, pool: &PoolSnapshot) {
    let _ = writeln!(
        out,
        "pool {}  policy {}  {}",
        pool.id,
        pool.policy_text(),
        quantity(pool.members.len(), "worker")
    );
    if queues_tasks(&pool.policy) || pool.queued.iter().any(|&tasks| tasks > 0) {
        let queued: Vec<_> = pool.queued.iter().map(u64::to_string).collect();
        let _ = writeln!(out, "  tasks that wait, by core: {}", queued.join(" "));
    }
    let join = |ids: &[u16]| ids.iter().map(u16::to_string).collect::<Vec<_>>().join(" ");
    for (core, idle) in pool.idle.iter().enumerate() {
        let _ = writeln!(out, "  idle list of core {core}: [{}]", join(idle));
    }
    if pool.idle.len() > 1 {
        let _ = writeln!(out, "  any core may take: [{}]", join(&pool.idle_for_all));
    }
    let _ = writeln!(
        out,
        "  worker  server           load  drift by core  outstanding  reports  presence"
    );
    for member in &pool.members {
        let drift: Vec<_> = member.drift.iter().map(f64::to_string).collect();
        let _ = writeln!(
            out,
            "  {:6}  {:15}  {:4}  {:13}  {:11}  {:7}  {}",
            member.worker,
            member.server,
            member.load,
            drift.join(" "),
            member.outstanding,
            member.reports,
            member.presence.name()
        );
    }
}

/// Formats the nodes of a rack without a leaf. The columns migration and stealing are the probabilities with which
/// this node forwards a fresh task to each node, or requests one from it. The value loss is the mean squared error of
/// its critic, if its policy learns.
fn peers_text(out: &mut String, peers: &PeersSnapshot) {
    let loss = peers.value_loss.map_or_else(String::new, |loss| format!("  value loss {loss:.3e}"));
    let _ = writeln!(out, "node {} of {} without a leaf{loss}", peers.own, peers.nodes.len());
    let _ =
        writeln!(out, "  node  address          load us  waiting  migration  stealing  presence");
    for node in &peers.nodes {
        let optional =
            |value: Option<f32>| value.map_or("-".to_owned(), |value| format!("{value:.4}"));
        let presence = match node.live {
            _ if node.node == peers.own => "this one",
            true => "live",
            false => "silent",
        };
        let _ = writeln!(
            out,
            "  {:4}  {:15}  {:7.1}  {:7}  {:>9}  {:>8}  {presence}",
            node.node,
            node.address,
            node.load_us,
            node.waiting,
            optional(node.migration),
            optional(node.stealing)
        );
    }
}

/// Returns true if tasks may be queued under the policy of this name. The name may have parameters.
fn queues_tasks(policy: &str) -> bool {
    Entry::named(policy).is_some_and(Entry::holds)
}

/// Formats the current stall, the counters and the drops of a core. `StallTicks` is the length of a current pause
/// without polls. The line `pauses` counts pauses of more than 20 us.
fn core_text(out: &mut String, index: usize, core: &CoreSnapshot, ticks_hz: u64) {
    let count = |name: &str| core.counters.get(name).copied().unwrap_or(0);
    let polls = count(Counter::BusyPolls.name()) + count(Counter::EmptyPolls.name());
    let seconds = count(Gauge::StallTicks.name()) as f64 / ticks_hz.max(1) as f64;
    let stall = match (polls, seconds) {
        (0, 0.0) => "  has not polled yet".to_owned(),
        (_, 0.0) => String::new(),
        (0, seconds) => format!("  has never polled, for {seconds:.2} s"),
        (_, seconds) => format!("  stalled: no poll for {seconds:.2} s"),
    };
    let _ = writeln!(out, "core {index}{stall}");
    for (name, count) in &core.counters {
        let _ = writeln!(out, "  {name:20} {count}");
    }
    let _ = writeln!(out, "  {:20} {}", "pauses", core.pauses);
    for (name, count) in &core.drops {
        let _ = writeln!(out, "  dropped {name:20} {count}");
    }
}
