//! A node's metrics in the formats of Prometheus: counters and gauges of the metrics table, drop reasons,
//! histograms, pools, workers, peers, ports and batch jobs. The metrics listener serves them at /metrics.

use std::fmt::{Display, Write as _};

use wedjat_batch::Note;
use wedjat_core::program::Program;
use wedjat_core::reason::DropReason;
use wedjat_core::state::counters::CounterKind::{self, Counter, Gauge, Histogram};
use wedjat_core::state::counters::{METRICS, Metric};
use wedjat_core::state::histogram::HistogramSnapshot;
use wedjat_core::state::table::{CoreSnapshot, PoolSnapshot};

use super::requests::NodeSnapshot;

/// Format of metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Prometheus text format, version 0.0.4.
    Text,
    /// OpenMetrics 1.0.
    OpenMetrics,
}

impl Format {
    /// Returns the format that a client accepts by its `Accept` header.
    #[must_use]
    pub fn accepted(accept: &str) -> Self {
        if accept.contains("application/openmetrics-text") { Self::OpenMetrics } else { Self::Text }
    }

    /// Returns the format's `Content-Type`.
    #[must_use]
    pub const fn content_type(self) -> &'static str {
        match self {
            Self::Text => "text/plain; version=0.0.4; charset=utf-8",
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }
}

/// Metric family: a metric with all of its samples.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Family {
    /// Name. It ends in the unit, if there is one. Samples of counters add `_total`.
    pub name: String,
    /// Counter, gauge or histogram.
    pub kind: CounterKind,
    /// Unit; empty if there is none.
    pub unit: &'static str,
    /// Labels of its samples.
    pub labels: &'static str,
    /// Description in one sentence.
    pub help: &'static str,
}

impl Family {
    /// Returns the name under which it is documented: that of its samples; of a histogram the part that these share.
    #[must_use]
    pub fn sample(&self) -> String {
        match self.kind {
            Counter => format!("{}_total", self.name),
            Gauge | Histogram => self.name.clone(),
        }
    }

    /// Returns the names of its samples.
    #[must_use]
    pub fn samples(&self) -> Vec<String> {
        match self.kind {
            Counter | Gauge => vec![self.sample()],
            Histogram => {
                ["bucket", "sum", "count"].map(|end| format!("{}_{end}", self.name)).into()
            }
        }
    }

    /// Returns the family of a per-core number. Ticks become seconds. The name gets the unit at its end, unless it
    /// contains the unit already.
    fn of_core(metric: &Metric) -> Self {
        let Metric { name, kind, unit, help } = *metric;
        let (name, unit) = match name.strip_suffix("_ticks") {
            Some(name) => (name, "seconds"),
            None => (name, unit),
        };
        let (unit_suffix, unit) = match name.split('_').any(|word| word == unit) {
            true if name.ends_with(unit) => (String::new(), unit),
            true => (String::new(), ""), // OpenMetrics requires the unit at the end
            false => (format!("_{unit}"), unit),
        };
        Self { name: format!("wedjat_{name}{unit_suffix}"), kind, unit, labels: CORE, help }
    }
}

/// Labels of samples.
const CORE: &str = "core";
const POOL: &str = "pool";
const WORKER: &str = "pool, worker, server";
/// Labels of peers. Only an agent with peers has samples.
const PEER: &str = "peer, address";
const PORT: &str = "port, device, driver";

/// Name, kind, unit, labels and help of a metric outside the table.
type Row = (&'static str, CounterKind, &'static str, &'static str, &'static str);

// Rows of metrics outside the table, by their objects. The last text of each row describes it.

const CONTROLLER: Row = (
    "wedjat_controller_connected",
    Gauge,
    "",
    "",
    "1 while the node is connected to its controller; none without a controller.",
);
const NODE_ROWS: [Row; 4] = [
    ("wedjat_node_info", Gauge, "", "role, node, revision", "Always 1."),
    ("wedjat_start_time_seconds", Gauge, "seconds", "", "Start time of the node, since 1970."),
    ("wedjat_membership_version", Gauge, "", "", "Newest version of the node's membership."),
    (
        "wedjat_membership_acknowledged_version",
        Gauge,
        "",
        "",
        "Newest version of the membership that all cores use.",
    ),
];
const DROPPED: Row = (
    "wedjat_dropped_packets",
    Counter,
    "packets",
    "core, reason",
    "Packets received and dropped, by reason (docs/reference/drop-reasons.md).",
);
const PAUSES: Row =
    ("wedjat_core_pauses", Counter, "", CORE, "Pauses of the core of more than 20 us.");
/// Row of a histogram, and its value in a snapshot of a core or pool.
type HistogramRow<T> = (Row, fn(&T) -> &HistogramSnapshot);

const CORE_HISTOGRAMS: [HistogramRow<CoreSnapshot>; 1] = [(
    (
        "wedjat_decision_time_seconds",
        Histogram,
        "seconds",
        CORE,
        "Time of a task's decision: that of a burst divided by its packets, for one burst in 1024.",
    ),
    |core| &core.decision_time,
)];
const POOL_HISTOGRAMS: [HistogramRow<PoolSnapshot>; 2] = [
    (
        (
            "wedjat_report_age_seconds",
            Histogram,
            "seconds",
            POOL,
            "Age of a worker's last load report at decisions for it: one worker at a time, between two of its reports.",
        ),
        |pool| &pool.report_age,
    ),
    (
        (
            "wedjat_queue_wait_seconds",
            Histogram,
            "seconds",
            POOL,
            "Time in the pool's queue, for tasks that waited for a worker.",
        ),
        |pool| &pool.queue_wait,
    ),
];
const POOL_ROWS: [Row; 7] = [
    ("wedjat_pool_info", Gauge, "", "pool, policy", "Always 1."),
    ("wedjat_pool_workers", Gauge, "workers", POOL, "Workers of the pool."),
    (
        "wedjat_pool_active_workers",
        Gauge,
        "workers",
        POOL,
        "Workers of the pool that are neither drained nor leaving.",
    ),
    (
        "wedjat_pool_queued_tasks",
        Gauge,
        "tasks",
        POOL,
        "Tasks that wait for a worker, of all cores.",
    ),
    (
        "wedjat_pool_scheduled_tasks",
        Counter,
        "tasks",
        POOL,
        "Tasks sent to the pool's workers, also those that left.",
    ),
    (
        "wedjat_pool_auto_info",
        Gauge,
        "",
        "pool, objective, decision",
        "1 for a pool whose node chooses the policy. `decision` is the last one: `best` (no policy is better), `confirming` (a \
         second choice must confirm a better one), `mispredicted`, `unmeasured`, `switch`, `fallback` (to `eft`), or `none`.",
    ),
    (
        "wedjat_pool_auto_switches",
        Counter,
        "switches",
        POOL,
        "Switches of the policy by the node, since it began to choose.",
    ),
];
const WORKER_ROWS: [Row; 6] = [
    (
        "wedjat_worker_info",
        Gauge,
        "",
        "pool, worker, server, presence",
        "Always 1; presence: configured, registered, unregistered, silent, ...",
    ),
    ("wedjat_worker_active", Gauge, "", WORKER, "1 unless it is drained or leaving."),
    ("wedjat_worker_load_tasks", Gauge, "tasks", WORKER, "Tasks in the worker's last load report."),
    (
        "wedjat_worker_outstanding_tasks",
        Gauge,
        "tasks",
        WORKER,
        "Tasks sent to the worker and not yet answered.",
    ),
    (
        "wedjat_worker_sent_tasks",
        Counter,
        "tasks",
        WORKER,
        "Tasks answered and outstanding, without those written off.",
    ),
    (
        "wedjat_worker_answered_tasks",
        Counter,
        "tasks",
        WORKER,
        "Reports of the worker: replies, and messages such as keep-alives.",
    ),
];
const PEER_ROWS: [Row; 5] = [
    ("wedjat_peer_live", Gauge, "", PEER, "1 if the peer is live (rack without a leaf)."),
    (
        "wedjat_peer_told_load_seconds",
        Gauge,
        "seconds",
        PEER,
        "Waiting work per slot, by the peer's last message.",
    ),
    (
        "wedjat_peer_migration_probability",
        Gauge,
        "",
        PEER,
        "Probability that a new task migrates to the peer.",
    ),
    (
        "wedjat_peer_stealing_probability",
        Gauge,
        "",
        PEER,
        "Probability that the peer is asked for a task.",
    ),
    (
        "wedjat_peer_value_loss",
        Gauge,
        "",
        "",
        "Moving mean of the critic's squared error, under policies with a critic.",
    ),
];
const PORT_ROWS: [Row; 10] = [
    (
        "wedjat_port_rx_missed_packets",
        Counter,
        "packets",
        PORT,
        "Packets lost in a full receive queue, or the kernel's.",
    ),
    (
        "wedjat_port_rx_no_mbuf_packets",
        Counter,
        "packets",
        PORT,
        "Packets lost because no buffer was free.",
    ),
    ("wedjat_port_rx_errors_packets", Counter, "packets", PORT, "Packets received damaged."),
    (
        "wedjat_port_tx_errors_packets",
        Counter,
        "packets",
        PORT,
        "Packets that the device failed to send.",
    ),
    ("wedjat_port_peers_refused", Counter, "", PORT, "Peers that a memif socket refused."),
    ("wedjat_port_peers_left", Counter, "", PORT, "Connections with memif peers that ended."),
    (
        "wedjat_port_rx_partial_packets",
        Counter,
        "packets",
        PORT,
        "Packets with a checksum that the kernel left to a device; the port completed it.",
    ),
    (
        "wedjat_port_rx_other_vlan_packets",
        Counter,
        "packets",
        PORT,
        "Packets of other VLANs, or untagged.",
    ),
    (
        "wedjat_port_interfaces_removed",
        Counter,
        "",
        PORT,
        "1 if the kernel removed the device's interface.",
    ),
    ("wedjat_port_unplugged", Counter, "", PORT, "Times that the device was unplugged."),
];

const XSTATS: Row = (
    "wedjat_port_xstats",
    Counter,
    "",
    "port, device, driver, name",
    "Further counters of the port's driver, by DPDK's names (xstats).",
);

/// Labels of the batch jobs beside an agent's workers, which have samples only while they run.
const BATCH: &str = "job, policy";
const BATCH_ROWS: [Row; 6] = [
    (
        "wedjat_batch_share_ratio",
        Gauge,
        "ratio",
        BATCH,
        "Share of the workers' cores that the batch job may use.",
    ),
    ("wedjat_batch_allowed_ratio", Gauge, "ratio", BATCH, "Share that the guard allows the job."),
    ("wedjat_batch_elapsed_seconds", Gauge, "seconds", BATCH, "Time for which the job has run."),
    ("wedjat_batch_cpu_seconds", Counter, "seconds", BATCH, "CPU time of the job."),
    (
        "wedjat_batch_looks",
        Counter,
        "",
        BATCH,
        "Samples of the workers' tasks with at least one completed task.",
    ),
    ("wedjat_batch_missed_looks", Counter, "looks", BATCH, "Samples that missed the objective."),
];

/// Returns the family of a row.
fn family(row: &Row) -> Family {
    let &(name, kind, unit, labels, help) = row;
    Family { name: name.to_owned(), kind, unit, labels, help }
}

/// Returns the per-core metrics without drop reasons, which are samples of [`DROPPED`].
fn core_metrics() -> impl Iterator<Item = &'static Metric> {
    let is_reason = |name| DropReason::ALL.iter().any(|reason| reason.name() == name);
    METRICS.iter().filter(move |metric| !is_reason(metric.name))
}

/// Returns all metrics in the order of the output. The table of metrics in the documentation is compared with it.
#[must_use]
pub fn families() -> Vec<Family> {
    let core_rows = [DROPPED, PAUSES].into_iter().chain(CORE_HISTOGRAMS.map(|(row, _)| row));
    let pool_rows = POOL_ROWS.into_iter().chain(POOL_HISTOGRAMS.map(|(row, _)| row));
    let rows: Vec<_> = core_rows.chain(pool_rows).collect();
    let ports = PORT_ROWS.iter().chain([&XSTATS]);
    let more = WORKER_ROWS.iter().chain(&PEER_ROWS).chain(ports).chain(&BATCH_ROWS).map(family);
    let node = NODE_ROWS.iter().chain([&CONTROLLER]).map(family);
    let node = node.chain(core_metrics().map(Family::of_core));
    node.chain(rows.iter().map(family)).chain(more).collect()
}

/// Renders all metrics of a node.
#[must_use]
pub fn render(node: &NodeSnapshot, format: Format) -> String {
    let mut text = Text { out: String::new(), format };
    let NodeSnapshot { membership, acknowledged, snapshot, .. } = node;
    let info = [
        ("role", &snapshot.role.name() as &dyn Display),
        ("node", &snapshot.node),
        ("revision", &Program::current().revision),
    ];
    let values: [(&[_], u64); 4] =
        [(&info, 1), (&[], snapshot.started), (&[], membership.epoch), (&[], *acknowledged)];
    for (row, (labels, value)) in NODE_ROWS.iter().zip(values) {
        let family = family(row);
        text.head(&family);
        text.sample(&family, labels, &value);
    }
    let controller = family(&CONTROLLER);
    text.head(&controller);
    if let Some(link) = &node.controller {
        text.sample(&controller, &[], &u8::from(link.connected));
    }
    cores(&mut text, node);
    pools(&mut text, node);
    workers(&mut text, node);
    peers(&mut text, node);
    ports(&mut text, node);
    batches(&mut text, &wedjat_batch::jobs_of_agent(std::process::id().into()));
    if format == Format::OpenMetrics {
        text.out.push_str("# EOF\n");
    }
    text.out
}

/// Writes the samples of all cores.
fn cores(text: &mut Text, node: &NodeSnapshot) {
    let (cores, hz) = (&node.snapshot.cores, node.snapshot.ticks_hz.max(1) as f64);
    for metric in core_metrics() {
        let family = Family::of_core(metric);
        text.head(&family);
        for (core, index) in cores.iter().zip(0..) {
            let value = core.counters.get(metric.name).copied().unwrap_or_default();
            let label = [("core", &index as &dyn Display)];
            match metric.unit {
                "ticks" => text.sample(&family, &label, &(value as f64 / hz)),
                _ => text.sample(&family, &label, &value),
            }
        }
    }
    let dropped = family(&DROPPED);
    text.head(&dropped);
    for (core, index) in cores.iter().zip(0_usize..) {
        for reason in DropReason::ALL {
            let value = core.drops.get(reason.name()).copied().unwrap_or_default();
            text.sample(&dropped, &[("core", &index), ("reason", &reason.name())], &value);
        }
    }
    let pauses = family(&PAUSES);
    text.head(&pauses);
    for (core, index) in cores.iter().zip(0_usize..) {
        text.sample(&pauses, &[("core", &index)], &core.pauses);
    }
    for (row, histogram) in CORE_HISTOGRAMS {
        let family = family(&row);
        text.head(&family);
        for (core, index) in cores.iter().zip(0_usize..) {
            text.histogram(&family, ("core", &index), histogram(core));
        }
    }
}

/// Writes the samples of all pools. The number of the row selects the value.
fn pools(text: &mut Text, node: &NodeSnapshot) {
    for (row, row_index) in POOL_ROWS.iter().zip(0..) {
        let family = family(row);
        text.head(&family);
        for pool in &node.snapshot.pools {
            let members = node.membership.pool(pool.id);
            let members = members.into_iter().flat_map(|(_, pool)| pool.members.iter().flatten());
            let label = ("pool", &pool.id as &dyn Display);
            match row_index {
                0 => text.sample(&family, &[label, ("policy", &pool.policy)], &1),
                5 | 6 => {
                    let Some(auto) = &pool.auto else { continue };
                    let labels: [(_, &dyn Display); 3] =
                        [label, ("objective", &auto.objective), ("decision", &auto.kind())];
                    match row_index {
                        5 => text.sample(&family, &labels, &1),
                        _ => text.sample(&family, &[label], &auto.switches),
                    }
                }
                1 => text.sample(&family, &[label], &members.count()),
                2 => {
                    let active = members.filter(|worker| worker.is_active()).count();
                    text.sample(&family, &[label], &active);
                }
                3 => text.sample(&family, &[label], &pool.queued.iter().sum::<u64>()),
                _ => text.sample(&family, &[label], &node.tally.scheduled(pool.id)),
            }
        }
    }
    for (row, histogram) in POOL_HISTOGRAMS {
        let family = family(&row);
        text.head(&family);
        for pool in &node.snapshot.pools {
            text.histogram(&family, ("pool", &pool.id), histogram(pool));
        }
    }
}

/// Writes the samples of all workers. The number of the row selects the value.
fn workers(text: &mut Text, node: &NodeSnapshot) {
    let known = node.membership.workers().map(|(_, worker)| (worker.id, worker.is_active()));
    let active: std::collections::BTreeMap<_, _> = known.collect();
    for (row, row_index) in WORKER_ROWS.iter().zip(0..) {
        let family = family(row);
        text.head(&family);
        for pool in &node.snapshot.pools {
            for one in &pool.members {
                let labels = [
                    ("pool", &pool.id as &dyn Display),
                    ("worker", &one.worker),
                    ("server", &one.server),
                ];
                match row_index {
                    0 => {
                        let [pool, worker, server] = labels;
                        let presence = ("presence", &one.presence.name() as &dyn Display);
                        text.sample(&family, &[pool, worker, server, presence], &1);
                    }
                    1 => {
                        let is_active = active.get(&one.worker).copied().unwrap_or_default();
                        text.sample(&family, &labels, &u8::from(is_active));
                    }
                    2 => text.sample(&family, &labels, &one.load),
                    3 => text.sample(&family, &labels, &one.outstanding),
                    4 => {
                        text.sample(&family, &labels, &node.tally.worker(pool.id, one.worker).sent)
                    }
                    _ => {
                        let tasks = node.tally.worker(pool.id, one.worker);
                        text.sample(&family, &labels, &tasks.answered);
                    }
                }
            }
        }
    }
}

/// Writes the samples of an agent's peers. The number of the row selects the value.
fn peers(text: &mut Text, node: &NodeSnapshot) {
    let peers = node.snapshot.peers.as_ref();
    for (row, row_index) in PEER_ROWS.iter().zip(0..) {
        let family = family(row);
        text.head(&family);
        if row_index == 4 {
            let loss = peers.and_then(|peers| peers.value_loss);
            loss.iter().for_each(|loss| text.sample(&family, &[], loss));
            continue;
        }
        for node in peers.iter().flat_map(|peers| &peers.nodes) {
            let value = match row_index {
                0 => Some(f64::from(u8::from(node.live))),
                1 => Some(f64::from(node.load_us) / 1e6),
                2 => node.migration.map(f64::from),
                _ => node.stealing.map(f64::from),
            };
            let labels = [("peer", &node.node as &dyn Display), ("address", &node.address)];
            value.iter().for_each(|value| text.sample(&family, &labels, value));
        }
    }
}

/// Writes the samples of all ports. The number of the row selects the value.
fn ports(text: &mut Text, node: &NodeSnapshot) {
    for (row, row_index) in PORT_ROWS.iter().zip(0..) {
        let family = family(row);
        text.head(&family);
        for (port, index) in node.ports.iter().zip(0_usize..) {
            let value = match row_index {
                0 => port.rx_missed,
                1 => port.rx_no_mbuf,
                2 => port.rx_errors,
                3 => port.tx_errors,
                4 => port.peers_refused,
                5 => port.peers_left,
                6 => port.rx_partial,
                7 => port.rx_other_vlan,
                8 => port.interfaces_removed,
                _ => port.unplugged,
            };
            let labels = [
                ("port", &index as &dyn Display),
                ("device", &port.device),
                ("driver", &port.driver),
            ];
            text.sample(&family, &labels, &value);
        }
    }
    let family = family(&XSTATS);
    text.head(&family);
    for (port, index) in node.ports.iter().zip(0_usize..) {
        for (name, value) in &port.xstats {
            let labels = [
                ("port", &index as &dyn Display),
                ("device", &port.device),
                ("driver", &port.driver),
                ("name", name),
            ];
            text.sample(&family, &labels, value);
        }
    }
}

/// Writes the samples of batch jobs. The number of the row selects the value.
fn batches(text: &mut Text, jobs: &[Note]) {
    for (row, row_index) in BATCH_ROWS.iter().zip(0..) {
        let family = family(row);
        text.head(&family);
        for note in jobs {
            let figures = &note.figures;
            let value: &dyn Display = match row_index {
                0 => &figures.share,
                1 => &figures.allowed,
                2 => &figures.elapsed_seconds,
                3 => &figures.cpu_seconds,
                4 => &figures.windows,
                _ => &figures.violations,
            };
            text.sample(&family, &[("job", &note.id()), ("policy", &note.policy)], value);
        }
    }
}

/// Output under construction.
struct Text {
    out: String,
    format: Format,
}

impl Text {
    /// Writes the lines before a family's samples.
    fn head(&mut self, family: &Family) {
        let (kind, out) = (family.kind.name(), &mut self.out);
        let name = match self.format {
            Format::Text => family.sample(),
            Format::OpenMetrics => family.name.clone(),
        };
        let help = family.help.replace('\\', "\\\\").replace('\n', "\\n");
        let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}");
        if self.format == Format::OpenMetrics && !family.unit.is_empty() {
            let _ = writeln!(out, "# UNIT {name} {}", family.unit);
        }
    }

    /// Writes one sample.
    fn sample(&mut self, family: &Family, labels: &[(&str, &dyn Display)], value: &dyn Display) {
        self.line(&family.sample(), labels, value);
    }

    /// Writes the samples of a histogram. Nanoseconds become seconds.
    fn histogram(
        &mut self,
        family: &Family,
        label: (&str, &dyn Display),
        histogram: &HistogramSnapshot,
    ) {
        let seconds = |ns: u64| ns as f64 / 1e9;
        let bucket = format!("{}_bucket", family.name);
        for (bound_ns, count) in histogram.cumulative() {
            self.line(&bucket, &[label, ("le", &seconds(bound_ns))], &count);
        }
        self.line(&bucket, &[label, ("le", &"+Inf")], &histogram.count);
        self.line(&format!("{}_sum", family.name), &[label], &seconds(histogram.sum_ns));
        self.line(&format!("{}_count", family.name), &[label], &histogram.count);
    }

    /// Writes a line: a name, labels and a value. Label values are escaped as the formats require.
    fn line(&mut self, name: &str, labels: &[(&str, &dyn Display)], value: &dyn Display) {
        self.out.push_str(name);
        for (index, (name, value)) in labels.iter().enumerate() {
            let open = if index == 0 { '{' } else { ',' };
            let value = value.to_string().replace('\\', "\\\\").replace('"', "\\\"");
            let value = value.replace('\n', "\\n");
            let _ = write!(self.out, "{open}{name}=\"{value}\"");
        }
        let close = if labels.is_empty() { "" } else { "}" };
        let _ = writeln!(self.out, "{close} {value}");
    }
}
