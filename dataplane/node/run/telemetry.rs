//! Nodes of this process in DPDK's telemetry, by role: `/wedjat/leaf/...`, `/wedjat/spine/...` and
//! `/wedjat/agent/...`. The answers come from the table in which the cores publish their state, so requests cost the
//! cores nothing.
//!
//! A member is a worker of a pool. Outstanding tasks are sent to a member and not yet answered. The epoch is the number
//! of the current set of pools, servers and workers.

use std::sync::{Arc, Mutex, PoisonError, Weak};

use wedjat_core::state::MemberPresence;
use wedjat_core::state::counters::METRICS;
use wedjat_core::state::table::{MemberSnapshot, PoolSnapshot, Role};
use wedjat_core::state::{Snapshot, Table};
use wedjat_dpdk::Eal;
use wedjat_dpdk::telemetry::{Answer, LIST_MAX, Value, register};

/// Nodes that run in this process: a leaf or spine, an agent, or a leaf with an agent.
/// Telemetry cannot remove a command, so the references are weak: the commands of an ended node find no table.
static NODES: Mutex<Vec<(Role, Weak<Table>)>> = Mutex::new(Vec::new());

/// First part of every command.
const ROOT: &str = "/wedjat";

/// Commands of each node, with their help.
const COMMANDS: [(&str, &str); 7] = [
    ("info", "Returns id, process, epoch and size of the node"),
    (
        "counters",
        "Returns its counters, gauges and drops, of all cores or one. Parameters: [int core]",
    ),
    ("pools", "Returns the ids of its pools"),
    ("pool", "Returns policy and sums of a pool. Parameters: int pool"),
    (
        "workers",
        "Returns the ids of a pool's workers, 512 at most. Parameters: int pool[, int how many to leave out]",
    ),
    ("worker", "Returns the state of a worker. Parameters: int pool, int worker"),
    ("drops", "Returns dropped packets by reason"),
];

/// Shows a node in telemetry for the lifetime of its state. The first node of the process also registers the command
/// `/wedjat/nodes`, which lists all nodes.
pub(super) fn show(eal: &Eal, role: Role, table: &Arc<Table>) {
    let mut nodes = NODES.lock().unwrap_or_else(PoisonError::into_inner);
    let is_first = nodes.is_empty();
    nodes.push((role, Arc::downgrade(table)));
    drop(nodes);
    let command = |(name, help)| (format!("{ROOT}/{}/{name}", role.name()), help);
    let mut commands: Vec<_> = COMMANDS.into_iter().map(command).collect();
    if is_first {
        commands.push((format!("{ROOT}/nodes"), "Returns the nodes of this process"));
    }
    register(eal, &commands, answer);
}

/// Returns the nodes that still exist.
fn nodes() -> Vec<(Role, Arc<Table>)> {
    let nodes = NODES.lock().unwrap_or_else(PoisonError::into_inner);
    nodes.iter().filter_map(|(role, table)| Some((*role, table.upgrade()?))).collect()
}

/// Handler of all commands, which DPDK's telemetry thread calls. Answers a command with its full path,
/// `/wedjat/ROLE/COMMAND` or `/wedjat/nodes`. `None` for an unknown one.
fn answer(command: &str, parameters: &str) -> Option<Answer> {
    let path = command.strip_prefix(ROOT)?.strip_prefix('/')?;
    let Some((node, name)) = path.split_once('/') else {
        let names = nodes().into_iter().map(|(role, _)| role.name().to_owned());
        return (path == "nodes").then(|| Answer::Texts(names.collect()));
    };
    let (_, table) = nodes().into_iter().find(|(role, _)| role.name() == node)?;
    answer_of(&table.snapshot(), name, parameters)
}

/// Returns a node's answer to the command `name`; `None` for an unknown name, and for a parameter that is
/// missing, superfluous or unknown.
fn answer_of(node: &Snapshot, name: &str, parameters: &str) -> Option<Answer> {
    let numbers = parameters.split(',').map(str::trim).filter(|text| !text.is_empty());
    let numbers: Vec<usize> = numbers.map(str::parse).collect::<Result<_, _>>().ok()?;
    let pool = |id: usize| node.pools.iter().find(|pool| usize::from(pool.id) == id);
    Some(match (name, &numbers[..]) {
        ("info", []) => info(node),
        ("counters", []) => counters(node, 0..node.cores.len()),
        ("counters", &[core]) if core < node.cores.len() => counters(node, core..core + 1),
        ("drops", []) => drops(node),
        ("pools", []) => Answer::Numbers(node.pools.iter().map(|pool| pool.id.into()).collect()),
        ("pool", &[id]) => pool_table(pool(id)?),
        ("workers", &[id]) => workers(pool(id)?, 0),
        ("workers", &[id, first]) => workers(pool(id)?, first),
        ("worker", &[id, worker]) => {
            let mut members = pool(id)?.members.iter();
            member_table(members.find(|member| usize::from(member.worker) == worker)?)
        }
        _ => return None,
    })
}

/// Returns a table's entry with a number.
fn number(name: &str, value: u64) -> (String, Value) {
    (name.to_owned(), Value::Number(value))
}

/// Returns a table's entry with a text.
fn text(name: &str, value: &str) -> (String, Value) {
    (name.to_owned(), Value::Text(value.to_owned()))
}

/// Returns id, process, epoch and size of a node.
fn info(node: &Snapshot) -> Answer {
    Answer::Table(vec![
        number("node", node.node.into()),
        number("pid", node.pid),
        number("epoch", node.epoch),
        number("started", node.started),
        number("ticks_hz", node.ticks_hz),
        number("cores", node.cores.len() as u64),
        number("pools", node.pools.len() as u64),
        number("workers", node.pools.iter().map(|pool| pool.members.len() as u64).sum()),
    ])
}

/// Returns all counters, gauges and drops, and the number of the cores' pauses, summed over these cores.
fn counters(node: &Snapshot, cores: std::ops::Range<usize>) -> Answer {
    let cores = &node.cores[cores];
    let sum = |name: &str| {
        let values = cores.iter().flat_map(|core| core.counters.get(name).or(core.drops.get(name)));
        values.sum()
    };
    let pauses = number("pauses", cores.iter().map(|core| core.pauses).sum());
    let metrics = METRICS.iter().map(|metric| number(metric.name, sum(metric.name)));
    Answer::Table(metrics.chain([pauses]).collect())
}

/// Returns the dropped packets by reason, summed over the cores.
fn drops(node: &Snapshot) -> Answer {
    let mut sums = std::collections::BTreeMap::new();
    for (reason, count) in node.cores.iter().flat_map(|core| &core.drops) {
        *sums.entry(*reason).or_insert(0) += count;
    }
    Answer::Table(sums.into_iter().map(|(reason, count)| number(reason, count)).collect())
}

/// Returns true if the member is neither configured nor registered, so that it gets no tasks.
fn is_away(member: &MemberSnapshot) -> bool {
    !matches!(member.presence, MemberPresence::Configured | MemberPresence::Registered)
}

/// Returns the sum of the members' loads in tasks, rounded up.
fn load(members: &[MemberSnapshot]) -> u64 {
    members.iter().map(|member| member.load).sum::<f64>().ceil() as u64
}

/// Returns policy and sums of a pool: its workers, those away, their load, and the tasks outstanding and waiting.
/// `idle` counts the entries of the cores' idle lists, and the tokens for workers that any core may take.
fn pool_table(pool: &PoolSnapshot) -> Answer {
    // Each core counts for itself, so a sum that is read while they work may be negative for a moment.
    let outstanding = pool.members.iter().map(|member| member.outstanding.max(0) as u64).sum();
    Answer::Table(vec![
        text("policy", &pool.policy),
        number("workers", pool.members.len() as u64),
        number("away", pool.members.iter().filter(|member| is_away(member)).count() as u64),
        number("load", load(&pool.members)),
        number("outstanding", outstanding),
        number("waiting", pool.queued.iter().sum()),
        number(
            "idle",
            pool.idle.iter().chain([&pool.idle_for_all]).map(|ids| ids.len() as u64).sum(),
        ),
    ])
}

/// Returns the ids of up to [`LIST_MAX`] workers of a pool, from the one with index `first` on. An answer of DPDK's
/// telemetry has a limited length.
fn workers(pool: &PoolSnapshot, first: usize) -> Answer {
    let members = pool.members.iter().skip(first).take(LIST_MAX);
    Answer::Numbers(members.map(|member| member.worker.into()).collect())
}

/// Returns the state of a worker.
fn member_table(member: &MemberSnapshot) -> Answer {
    Answer::Table(vec![
        text("server", &member.server.to_string()),
        text("presence", member.presence.name()),
        number("load", load(std::slice::from_ref(member))),
        number("outstanding", member.outstanding.max(0) as u64),
        number("reports", member.reports.into()),
    ])
}

#[cfg(test)]
mod tests {
    use wedjat_core::reason::DropReason;
    use wedjat_core::state::table::{PoolSpec, Spec, WorkerSpec};
    use wedjat_core::state::{Counter, Gauge, Member};

    use super::*;

    /// Returns the state of a leaf with two cores and pool 7, whose 1000 workers have the ids 10 to 1009.
    fn node() -> Snapshot {
        let workers = (0..1000).map(|id| WorkerSpec { id: 10 + id, server: 0 }).collect();
        let pools =
            vec![PoolSpec { id: 7, policy: "horus".into(), objective: String::new(), workers }];
        let servers = vec![std::net::Ipv4Addr::new(10, 0, 2, 11).into()];
        let table =
            Table::heap(&Spec { node: 3, cores: 2, ports: 1, servers, pools, ..Spec::default() });
        table.counters(0).add(Counter::Scheduled, 5);
        table.counters(1).add(Counter::Scheduled, 6);
        table.counters(1).set(Gauge::Held, 4);
        table.counters(1).drop(DropReason::Runt, 2);
        table.view(1, 0).sent(Member(2));
        table.view(1, 0).set_presence(Member(3), MemberPresence::Silent);
        table.snapshot()
    }

    /// Returns the table that answers a command.
    fn table(
        node: &Snapshot,
        name: &str,
        parameters: &str,
    ) -> std::collections::BTreeMap<String, Value> {
        match answer_of(node, name, parameters) {
            Some(Answer::Table(values)) => values.into_iter().collect(),
            other => panic!("{name},{parameters}: {other:?}"),
        }
    }

    // promise: control.3
    #[test]
    fn commands_answer_from_the_state() {
        let node = node();
        assert_eq!(table(&node, "info", "")["node"], Value::Number(3));
        let all = table(&node, "counters", "");
        assert_eq!(all.len(), METRICS.len() + 1, "and the pauses");
        assert_eq!(
            (&all["scheduled"], &all["held"], &all["runt"]),
            (&Value::Number(11), &Value::Number(4), &Value::Number(2))
        );
        assert_eq!(table(&node, "counters", "0")["scheduled"], Value::Number(5));
        assert_eq!(table(&node, "drops", ""), [("runt".to_owned(), Value::Number(2))].into());
        assert_eq!(answer_of(&node, "pools", ""), Some(Answer::Numbers(vec![7])));
        let pool = table(&node, "pool", "7");
        assert_eq!(
            (&pool["policy"], &pool["workers"]),
            (&Value::Text("horus".into()), &Value::Number(1000))
        );
        assert_eq!((&pool["away"], &pool["outstanding"]), (&Value::Number(1), &Value::Number(1)));
        let worker = table(&node, "worker", "7, 13");
        assert_eq!(
            (&worker["presence"], &worker["server"]),
            (&Value::Text("silent".into()), &Value::Text("10.0.2.11".into()))
        );
    }

    // promise: control.3
    #[test]
    fn long_lists_come_in_parts() {
        let node = node();
        let part = |parameters: &str| match answer_of(&node, "workers", parameters) {
            Some(Answer::Numbers(ids)) => (ids.len(), ids.first().copied()),
            other => panic!("{other:?}"),
        };
        assert_eq!(
            [part("7"), part("7,512"), part("7,1000")],
            [(512, Some(10)), (488, Some(522)), (0, None)]
        );
    }

    // promise: control.3
    #[test]
    fn unknown_telemetry_path_gets_no_answer() {
        let node = node();
        let wrong = [
            ("counters", "2"),
            ("counters", "-1"),
            ("counters", "0,0"),
            ("pool", ""),
            ("pool", "8"),
            ("pool", "x"),
            ("worker", "7"),
            ("worker", "7,9"),
            ("workers", "7,0,0"),
            ("info", "1"),
            ("nothing", ""),
            ("pool", "99999999999999999999999999"),
        ];
        for (name, parameters) in wrong {
            assert_eq!(answer_of(&node, name, parameters), None, "{name},{parameters}");
        }
        for command in
            ["", "/wedjat", "/wedjat/", "/wedjat/spine/info", "/other/leaf/info", "/wedjat/leaf"]
        {
            assert_eq!(answer(command, ""), None, "{command}");
        }
    }
}
