//! Differences between two readings of a state file, as tables of text. The screen and `--once` show the same report.

use std::collections::BTreeMap;
use std::fmt;
use std::time::{Duration, SystemTime};

use wedjat::cosched::Note;
use wedjat::reason::DropReason;
use wedjat::state::table::{CoreSnapshot, MemberSnapshot, PoolSnapshot};
use wedjat::state::{Counter, Gauge, Snapshot};

use super::reading::{NodeReading, Reading};
use crate::command::node::has_exited;

/// Age from which a state is marked as old: its node stalls, or cannot write.
const STALE: Duration = Duration::from_secs(2);

/// Fraction of a core's time in stalls from which its line is marked.
const STALLED: f64 = 0.1;

/// Row of a table.
pub struct Row {
    /// One cell for each column.
    pub cells: Vec<String>,
    /// True if the row shows a problem.
    pub is_bad: bool,
}

/// Table. The first and the last column are aligned to the left, the columns between to the right.
pub struct Section {
    pub columns: &'static [&'static str],
    pub rows: Vec<Row>,
}

impl Section {
    /// Returns the width of each column.
    pub fn widths(&self) -> Vec<usize> {
        let cell = |index: usize| self.rows.iter().map(move |row| row.cells[index].chars().count());
        let width =
            |(index, name): (usize, &&str)| cell(index).chain([name.len()]).max().unwrap_or(0);
        self.columns.iter().enumerate().map(width).collect()
    }
}

/// Part of the report for one node.
pub struct NodeReport {
    /// Name and condition of the node.
    pub head: Row,
    /// Tables of cores, pools, drops and workers, and of batch jobs if there are any.
    pub sections: Vec<Section>,
}

/// Differences of a state file's nodes between two readings.
pub struct Report(pub Vec<NodeReport>);

impl Report {
    /// Compares two readings of one file, and lists at most `workers` workers of each node. A node started in between
    /// has no rates and no new drops yet.
    pub fn between(before: &Reading, now: &Reading, workers: usize) -> Self {
        let report_of = |now: &NodeReading| {
            let is_same_run = |before: &&NodeReading| {
                let run_of = |reading: &NodeReading| {
                    let Snapshot { role, pid, started, .. } = reading.snapshot;
                    (role as u64, pid, started)
                };
                run_of(before) == run_of(now)
            };
            let before = before.0.iter().find(is_same_run);
            Change { before, now }.report(workers, SystemTime::now())
        };
        Self(now.0.iter().map(report_of).collect())
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, node) in self.0.iter().enumerate() {
            let separator = if index > 0 { "\n" } else { "" };
            writeln!(f, "{separator}{}", node.head.cells.join("  "))?;
            for section in &node.sections {
                let names = section.columns.iter().map(|&name| name.to_owned()).collect::<Vec<_>>();
                let widths = section.widths();
                writeln!(f)?;
                for cells in
                    std::iter::once(&names).chain(section.rows.iter().map(|row| &row.cells))
                {
                    writeln!(f, "{}", aligned(cells, &widths).join("  ").trim_end())?;
                }
            }
        }
        Ok(())
    }
}

/// Aligns the first and last cell to the left, and the cells between to the right.
pub fn aligned(cells: &[String], widths: &[usize]) -> Vec<String> {
    let last = cells.len() - 1;
    let align = |(index, (cell, &width)): (usize, (&String, &usize))| match index {
        index if index == 0 || index == last => format!("{cell:width$}"),
        _ => format!("{cell:>width$}"),
    };
    cells.iter().zip(widths).enumerate().map(align).collect()
}

/// Node at two moments. The first is missing if the node was started in between.
struct Change<'a> {
    before: Option<&'a NodeReading>,
    now: &'a NodeReading,
}

impl Change<'_> {
    /// Returns the tables with at most `workers` workers.
    fn report(&self, workers: usize, moment: SystemTime) -> NodeReport {
        let mut sections = vec![self.cores(), self.pools(), self.drops(), self.workers(workers)];
        if !self.now.jobs.is_empty() {
            sections.push(self.jobs());
        }
        NodeReport { head: self.head(moment), sections }
    }

    /// Returns the seconds between the two copies. `None` if no copy was made or the node was started in between, or if
    /// the time of a copy is unknown.
    fn seconds(&self) -> Option<f64> {
        let before = self.before?.written?;
        let seconds = self.now.written?.duration_since(before).ok()?.as_secs_f64();
        (seconds > 0.0).then_some(seconds)
    }

    /// Formats a rate per second as a whole number; 0 if the time is unknown.
    fn rate(&self, before: u64, now: u64) -> String {
        let seconds = self.seconds();
        let count = now.saturating_sub(before) as f64;
        format!("{:.0}", seconds.map_or(0.0, |seconds| count / seconds))
    }

    /// Returns the name and condition of the node at this moment.
    fn head(&self, moment: SystemTime) -> Row {
        let Snapshot { role, node, pid, epoch, running, .. } = &self.now.snapshot;
        let age = self.now.written.and_then(|written| moment.duration_since(written).ok());
        let trouble = match (running, age.filter(|&age| age > STALE)) {
            (false, _) => "ended".to_owned(),
            (true, _) if has_exited(&self.now.path, *pid) => {
                "ended without an orderly stop".to_owned()
            }
            (true, Some(age)) => format!("state not written for {:.0} s", age.as_secs_f64()),
            (true, None) => String::new(),
        };
        let over = self.seconds().map(|seconds| format!("over {seconds:.2} s"));
        let name = format!("{} {node}", role.name());
        let mut cells = vec![name, format!("pid {pid}"), format!("epoch {epoch}")];
        cells.extend(over);
        let is_bad = !trouble.is_empty();
        cells.extend(is_bad.then_some(trouble));
        Row { cells, is_bad }
    }

    /// Returns the table of batch jobs.
    fn jobs(&self) -> Section {
        let row = |note: &Note| {
            let figures = &note.figures;
            let tail = figures.tail_us.map_or("-".to_owned(), |tail| format!("{tail:.0}"));
            let cells = vec![
                note.id().to_string(),
                format!("{:.0}%", figures.share * 100.0),
                format!("{:.0}%", figures.allowed * 100.0),
                format!("{:.1}", figures.cpu_seconds),
                tail,
                format!("{}/{}", figures.violations, figures.windows),
                format!("{} {}", note.policy, note.command),
            ];
            Row { cells, is_bad: false }
        };
        let columns =
            &["batch", "share", "allowed", "cpu s", "tail us", "missed", "policy, command"];
        Section { columns, rows: self.now.jobs.iter().map(row).collect() }
    }

    /// Returns each core at both moments.
    fn both_cores(&self) -> impl Iterator<Item = (Option<&CoreSnapshot>, &CoreSnapshot)> {
        let before = self.before.map(|before| &before.snapshot.cores[..]).unwrap_or_default();
        self.now.snapshot.cores.iter().enumerate().map(|(index, now)| (before.get(index), now))
    }

    /// Returns the table of cores, with their sum if there are several. Marks cores that never received a packet
    /// although their node received many: the devices do not spread packets over their queues.
    fn cores(&self) -> Section {
        let cores: Vec<_> = self.both_cores().map(|(before, now)| Core::of(before, now)).collect();
        let mut rows: Vec<_> = cores
            .iter()
            .enumerate()
            .map(|(index, core)| self.core(&index.to_string(), core, 1))
            .collect();
        for core in self.now.snapshot.idle_cores() {
            rows[core].cells[0] += " no packets";
            rows[core].is_bad = true;
        }
        if cores.len() > 1 {
            let all = cores.iter().fold(Core::default(), Core::and);
            rows.push(self.core("all", &all, cores.len()));
        }
        Section { columns: Core::COLUMNS, rows }
    }

    /// Returns a row for `core_count` cores together.
    fn core(&self, name: &str, core: &Core, core_count: usize) -> Row {
        let rate = |since: u64| self.rate(0, since);
        let share = |ticks: u64| {
            let seconds_per_core =
                ticks as f64 / self.now.snapshot.ticks_hz.max(1) as f64 / core_count as f64;
            self.seconds().map_or(0.0, |seconds| (seconds_per_core / seconds).min(1.0))
        };
        let shares = [core.busy_ticks, core.stalled_ticks].map(share);
        let mut cells = vec![name.to_owned()];
        cells.extend(shares.map(|share| format!("{:.1}%", 100.0 * share)));
        cells.extend(
            [core.received, core.sent, core.scheduled, core.replies, core.refused].map(rate),
        );
        cells.extend(
            [core.dropped, core.held, core.queued, core.pauses].map(|count| count.to_string()),
        );
        Row { cells, is_bad: core.dropped > 0 || shares[1] >= STALLED }
    }

    /// Returns the table of pools.
    fn pools(&self) -> Section {
        let row = |pool: &PoolSnapshot| {
            let away = pool.members.iter().filter(|member| member.presence.is_away()).count();
            let outstanding: i64 = pool.members.iter().map(|member| member.outstanding).sum();
            let waiting: u64 = pool.queued.iter().sum();
            let load: f64 = pool.members.iter().map(|member| member.load).sum();
            let replies: u64 = pool.members.iter().map(|member| self.reports(pool, member)).sum();
            let cells = vec![
                pool.id.to_string(),
                pool.members.len().to_string(),
                away.to_string(),
                format!("{load:.0}"),
                outstanding.to_string(),
                waiting.to_string(),
                self.rate(0, replies),
                pool.policy_text(),
            ];
            Row { cells, is_bad: away > 0 }
        };
        let columns =
            &["pool", "workers", "away", "load", "outstanding", "waiting", "reports/s", "policy"];
        Section { columns, rows: self.now.snapshot.pools.iter().map(row).collect() }
    }

    /// Returns the number of a worker's load reports since the first moment; 0 for a worker that was not there
    /// then.
    fn reports(&self, pool: &PoolSnapshot, now: &MemberSnapshot) -> u64 {
        let pools = self.before.map(|before| &before.snapshot.pools[..]).unwrap_or_default();
        let before = pools.iter().find(|before| before.id == pool.id);
        let before = before.and_then(|pool| {
            pool.members
                .iter()
                .find(|before| (before.member, before.worker) == (now.member, now.worker))
        });
        before.map_or(0, |before| u64::from(now.reports.wrapping_sub(before.reports)))
    }

    /// Returns the table of drop reasons: new and total packets, most new ones first.
    fn drops(&self) -> Section {
        let mut reasons: BTreeMap<&str, [u64; 2]> = BTreeMap::new();
        for (before, now) in self.both_cores() {
            for (reason, &count) in &now.drops {
                let earlier =
                    before.and_then(|before| before.drops.get(reason)).copied().unwrap_or(0);
                let [new, total] = reasons.entry(reason).or_default();
                // Without an earlier reading, no drop counts as new.
                *new += count.saturating_sub(if self.before.is_some() { earlier } else { count });
                *total += count;
            }
        }
        let mut reasons: Vec<_> = reasons.into_iter().collect();
        reasons.sort_by_key(|(_, counts)| std::cmp::Reverse(*counts));
        let row = |(name, [new, total]): (&str, [u64; 2])| {
            let reason = DropReason::ALL.iter().find(|reason| reason.name() == name);
            let help = reason.map_or("", |reason| reason.help());
            let cells = vec![name.to_owned(), new.to_string(), total.to_string(), help.to_owned()];
            Row { cells, is_bad: new > 0 }
        };
        let columns = &["dropped", "new", "total", "the packet"];
        Section { columns, rows: reasons.into_iter().map(row).collect() }
    }

    /// Lists the worst workers: first those that are away, then those with the most outstanding tasks.
    fn workers(&self, count: usize) -> Section {
        let pools = self.now.snapshot.pools.iter();
        let each = pools.flat_map(|pool| pool.members.iter().map(move |member| (pool, member)));
        let mut all: Vec<_> = each.collect();
        all.sort_by(|(_, one), (_, other)| {
            let by_load = || other.load.total_cmp(&one.load);
            let by_presence = other.presence.is_away().cmp(&one.presence.is_away());
            let by_tasks = by_presence.then(other.outstanding.cmp(&one.outstanding));
            by_tasks.then_with(by_load).then(one.worker.cmp(&other.worker))
        });
        let row = |(pool, member): (&PoolSnapshot, &MemberSnapshot)| {
            let cells = vec![
                member.worker.to_string(),
                pool.id.to_string(),
                member.server.to_string(),
                format!("{}", member.load),
                member.outstanding.to_string(),
                self.rate(0, self.reports(pool, member)),
                member.presence.name().to_owned(),
            ];
            Row { cells, is_bad: member.presence.is_away() }
        };
        let columns = &["worker", "pool", "server", "load", "outstanding", "reports/s", "presence"];
        Section { columns, rows: all.into_iter().take(count).map(row).collect() }
    }
}

/// Activity of a core between the two moments, and its contents at the second.
#[derive(Default)]
struct Core {
    /// Ticks in polls that brought packets.
    busy_ticks: u64,
    /// Ticks in stalls, including a current one.
    stalled_ticks: u64,
    received: u64,
    sent: u64,
    scheduled: u64,
    replies: u64,
    refused: u64,
    dropped: u64,
    /// Packets that wait in a central queue or for the MAC address of their next hop, and packets at worker cores.
    held: u64,
    /// Tasks that wait for a worker; included in `held`.
    queued: u64,
    /// Number of times that the machine stopped the core.
    pauses: u64,
}

impl Core {
    const COLUMNS: &'static [&'static str] = &[
        "core",
        "busy",
        "stalled",
        "rx/s",
        "tx/s",
        "tasks/s",
        "replies/s",
        "refused/s",
        "dropped",
        "held",
        "waiting",
        "pauses",
    ];

    /// Returns the differences of the counters, and the current gauges. Without an earlier reading, the differences
    /// are 0.
    fn of(before: Option<&CoreSnapshot>, now: &CoreSnapshot) -> Self {
        let before = before.unwrap_or(now);
        let change =
            |value: &dyn Fn(&CoreSnapshot) -> u64| value(now).saturating_sub(value(before));
        let change_of = |counter: Counter| change(&|core| count(core, counter.name()));
        let tx_full =
            change(&|core| core.drops.get(DropReason::TxFull.name()).copied().unwrap_or(0));
        Self {
            busy_ticks: change_of(Counter::BusyTicks),
            stalled_ticks: change(&|core| {
                count(core, Counter::StalledTicks.name()) + count(core, Gauge::StallTicks.name())
            }),
            received: change_of(Counter::RxPackets),
            // `Forwarded` includes packets that a full transmit queue then dropped.
            sent: change_of(Counter::Forwarded).saturating_sub(tx_full),
            scheduled: change_of(Counter::Scheduled),
            replies: change_of(Counter::Replies) + change_of(Counter::Completions),
            refused: change_of(Counter::Refused),
            dropped: change(&|core| core.drops.values().sum()),
            held: count(now, Gauge::Held.name()),
            queued: count(now, Gauge::Queued.name()),
            pauses: change(&|core| core.pauses),
        }
    }

    /// Adds two cores.
    fn and(self, other: &Self) -> Self {
        Self {
            busy_ticks: self.busy_ticks + other.busy_ticks,
            stalled_ticks: self.stalled_ticks + other.stalled_ticks,
            received: self.received + other.received,
            sent: self.sent + other.sent,
            scheduled: self.scheduled + other.scheduled,
            replies: self.replies + other.replies,
            refused: self.refused + other.refused,
            dropped: self.dropped + other.dropped,
            held: self.held + other.held,
            queued: self.queued + other.queued,
            pauses: self.pauses + other.pauses,
        }
    }
}

/// Returns a counter or gauge of a core by name; 0 if it is missing.
fn count(core: &CoreSnapshot, name: &str) -> u64 {
    core.counters.get(name).copied().unwrap_or(0)
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use wedjat::state::MemberPresence;
    use wedjat::state::table::{PoolSpec, Spec, WorkerSpec};
    use wedjat::state::{Member, Table};

    const SECOND: Duration = Duration::from_secs(1);

    /// Creates the state of a leaf with two cores and four workers.
    fn table(path: &std::path::Path) -> Table {
        let workers = (0..4).map(|id| WorkerSpec { id: 10 + id, server: id / 2 }).collect();
        let spec = Spec {
            node: 3,
            cores: 2,
            ports: 1,
            servers: [11, 12].map(|last| std::net::Ipv4Addr::new(10, 0, 2, last).into()).to_vec(),
            pools: vec![PoolSpec {
                id: 7,
                policy: "horus".into(),
                objective: String::new(),
                workers,
            }],
            ticks_hz: 1000,
            ..Spec::default()
        };
        Table::create(path, &spec).unwrap()
    }

    /// Returns two readings of a node that works for two seconds. One of its workers falls silent.
    fn readings() -> [Reading; 2] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state");
        let table = table(&path);
        table.counters(1).add(Counter::RxPackets, 1_000_000);
        table.counters(0).drop(DropReason::NotUdp, 4);
        let read = |second: u32| {
            table.publish();
            let mut reading = Reading::of(&path).unwrap();
            reading.0[0].written = Some(SystemTime::UNIX_EPOCH + SECOND * second);
            reading
        };
        let before = read(1);
        table.counters(1).add(Counter::RxPackets, 4000);
        table.counters(1).add(Counter::Forwarded, 3000);
        table.counters(1).drop(DropReason::TxFull, 1000);
        table.counters(1).add(Counter::BusyTicks, 500);
        table.counters(1).add(Counter::StalledTicks, 100);
        table.counters(0).set(Gauge::StallTicks, 1600);
        table.counters(0).drop(DropReason::Runt, 2);
        let mut view = table.view(1, 0);
        (0..3).for_each(|_| view.sent(Member(1)));
        view.sent(Member(2));
        view.set_presence(Member(3), MemberPresence::Silent);
        view.note_queued(6);
        [before, read(3)]
    }

    /// Returns the report between the two readings, also for the tests of the screen.
    pub fn report() -> Report {
        let [before, now] = readings();
        Report::between(&before, &now, 3)
    }

    /// Returns the rows of a table as text.
    fn cells(section: &Section) -> Vec<String> {
        section.rows.iter().map(|row| row.cells.join(" ")).collect()
    }

    // promise: control.3
    #[test]
    fn rates_are_over_the_time_between_two_copies() {
        let report = report();
        let [node] = &report.0[..] else { panic!() };
        let [cores, pools, drops, workers] = &node.sections[..] else { panic!() };
        // 2 seconds of 1000 ticks lie between the copies: 500 busy ticks are 25%, and 4000 packets are 2000 per second.
        let expected = [
            "0 no packets 0.0% 80.0% 0 0 0 0 0 2 0 0 0",
            "1 25.0% 5.0% 2000 1000 0 0 0 1000 0 0 0",
            "all 12.5% 42.5% 2000 1000 0 0 0 1002 0 0 0",
        ];
        assert_eq!(cells(cores), expected);
        assert_eq!(cells(pools), ["7 4 1 0 4 6 0 horus"]);
        let drops: Vec<_> =
            drops.rows.iter().map(|row| (row.cells[..3].join(" "), row.is_bad)).collect();
        let expected = [("tx_full 1000 1000", true), ("runt 2 2", true), ("not_udp 0 4", false)];
        assert_eq!(drops, expected.map(|(cells, is_bad)| (cells.to_owned(), is_bad)));
        let expected = [
            "13 7 10.0.2.12 0 0 0 silent",
            "11 7 10.0.2.11 0 3 0 configured",
            "12 7 10.0.2.12 0 1 0 configured",
        ];
        assert_eq!(cells(workers), expected, "the worst three, away first");
    }

    #[test]
    fn restarted_node_has_no_rates_yet() {
        let [mut before, mut now] = readings();
        before.0[0].snapshot.pid += 1;
        now.0[0].snapshot.cores[1].counters.insert(Gauge::Held.name(), 5);
        let report = Report::between(&before, &now, 3);
        // A gauge, unlike a rate, needs no earlier reading.
        assert_eq!(cells(&report.0[0].sections[0])[1], "1 0.0% 0.0% 0 0 0 0 0 0 5 0 0");
        let drops = &report.0[0].sections[2];
        assert!(drops.rows.iter().all(|row| row.cells[1] == "0"), "none is new");
    }

    // promise: control.3
    #[test]
    fn head_shows_the_condition_of_the_node() {
        let [before, mut now] = readings();
        let head = |now: &Reading, age| {
            let change = Change { before: before.0.first(), now: &now.0[0] };
            change.head(SystemTime::UNIX_EPOCH + 3 * SECOND + age)
        };
        let own = std::process::id();
        now.0[0].snapshot.pid = u64::from(own);
        let row = head(&now, SECOND / 2);
        assert_eq!(
            (row.cells.join("  "), row.is_bad),
            (format!("leaf 3  pid {own}  epoch 1  over 2.00 s"), false)
        );
        assert!(head(&now, 5 * SECOND).cells.join(" ").ends_with("state not written for 5 s"));
        // No process has such a number.
        now.0[0].snapshot.pid = 1 << 40;
        assert!(head(&now, SECOND).cells.join(" ").ends_with("ended without an orderly stop"));
        now.0[0].snapshot.running = false;
        assert!(head(&now, SECOND).is_bad && head(&now, SECOND).cells.join(" ").ends_with("ended"));
    }

    #[test]
    fn printed_columns_are_aligned() {
        let text = report().to_string();
        // Column in which a word of a line ends.
        let end_of = |line: &str, word: &str| line.find(word).map(|start| start + word.len());
        let lines: Vec<_> = text.lines().collect();
        let head = lines.iter().position(|line| line.starts_with("core")).unwrap();
        assert_eq!(end_of(lines[head], "busy"), end_of(lines[head + 2], "25.0%"), "{text}");
        assert_eq!(end_of(lines[head], "rx/s"), end_of(lines[head + 2], "2000"), "{text}");
        assert!(lines.iter().all(|line| line.trim_end() == *line), "{text}");
    }
}
