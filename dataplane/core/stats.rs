//! Account of a leaf or agent, the report at its end, and its status line and warnings during the run. The account is
//! readable for people and programs: sums over all cores, and the result of the ledger. The ledger is the packet
//! accounting: received = sent on + consumed + dropped + held. A *stall* is a time of a millisecond or longer in which
//! a core did not poll.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

use crate::quantity;
use crate::role::agent::AttachStats;
use crate::state::{Counter, Gauge, Totals};

/// Returns `part / whole`; 0 if `whole` is 0.
fn ratio(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

/// Counts of a device.
#[derive(Clone, Debug, Default, Serialize)]
pub struct PortStats {
    /// Name in EAL.
    pub device: String,
    /// Driver.
    pub driver: String,
    /// Packets lost in a full receive queue or the kernel's queue before it. They never reached the node.
    pub rx_missed: u64,
    /// Packets received with a checksum that the kernel had left to a device. The node completed it.
    pub rx_partial: u64,
    /// Packets untagged or of other VLANs than `vlan`. They never reached the node.
    pub rx_other_vlan: u64,
    /// Packets lost for lack of a buffer.
    pub rx_no_mbuf: u64,
    /// Packets that arrived damaged.
    pub rx_errors: u64,
    /// Packets that the device failed to send.
    pub tx_errors: u64,
    /// Peers refused by a memif socket: of other users, or with invalid messages.
    pub peers_refused: u64,
    /// Ended connections with memif peers.
    pub peers_left: u64,
    /// 1 if the kernel removed the device's interface.
    pub interfaces_removed: u64,
    /// Times that the device was unplugged.
    pub unplugged: u64,
    /// Further counts of the driver, by DPDK's names; empty in an account.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub xstats: BTreeMap<String, u64>,
}

/// Account of a leaf or spine at its end; the ledger of an agent's account, too.
#[derive(Clone, Debug, Serialize)]
pub struct LeafStats {
    /// One key for each counter and gauge (docs/reference/counters.md), and `drops`.
    #[serde(flatten)]
    pub totals: Totals,
    /// Packets received and sent on.
    pub tx_packets: u64,
    /// True if received = sent on + consumed + dropped + held.
    pub balanced: bool,
    /// Seconds from the first poll to the last.
    pub seconds: f64,
    /// Packets received per second.
    pub rx_pps: f64,
    /// Packets sent on per second.
    pub tx_pps: f64,
    /// Clock ticks per received packet, with receive and transmit, in polls that returned packets.
    pub cycles_per_packet: f64,
    /// The same in nanoseconds.
    pub ns_per_packet: f64,
    /// Fraction of polls that returned packets.
    pub busy_share: f64,
    /// Policies of all pools, joined by commas.
    pub policy: String,
    /// Policy of each pool.
    pub policies: BTreeMap<u16, String>,
    /// Number of workers of all pools.
    pub workers: usize,
    /// CPUs of the dispatcher cores.
    pub cores: Vec<usize>,
    /// Seeds of the leaf, and of the random streams of each core and pool.
    pub seeds: BTreeMap<String, u64>,
    /// Packet buffers not returned at the end, usually 0.
    pub mbufs_leaked: usize,
    /// Counts of each device.
    pub ports: Vec<PortStats>,
    /// Versions and configuration of this run.
    pub manifest: Manifest,
    /// Agent on the same core.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent: Option<Box<AgentStats>>,
}

/// Account of an agent at its end.
#[derive(Clone, Debug, Serialize)]
pub struct AgentStats {
    /// Packets, tasks and manifest.
    #[serde(flatten)]
    pub ledger: LeafStats,
    /// Name to which workers attach.
    pub name: String,
    /// Workers that attached and left, over all pools.
    pub attach: AttachStats,
    /// Workers that the leaf had acknowledged at the end.
    pub registered: usize,
    /// Workers that are threads and sent their replies themselves.
    pub senders: usize,
}

impl fmt::Display for AgentStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.ledger.fmt(f)?;
        let AttachStats { joined, left, died, silent, at_fault } = self.attach;
        writeln!(
            f,
            "workers: {joined} came, {left} left, {died} died, {silent} removed for silence, \
             {at_fault} at fault; {} registered with the leaf",
            self.registered
        )
    }
}

/// Versions and configuration of a run.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Manifest {
    /// Revision of the sources.
    pub revision: String,
    /// Version of the compiler.
    pub rustc: String,
    /// Release of DPDK.
    pub dpdk: String,
    /// Arguments of EAL.
    pub eal: Vec<String>,
    /// Clock ticks per second.
    pub ticks_hz: u64,
    /// Text of the configuration.
    pub config: String,
}

impl LeafStats {
    /// Derives an account from the counters of a run of `seconds`. The caller fills in the remaining fields.
    #[must_use]
    pub fn of(totals: Totals, seconds: f64, manifest: Manifest) -> Self {
        let (received, sent) = (totals.count(Counter::RxPackets), totals.sent());
        let busy = totals.count(Counter::BusyPolls);
        let cycles_per_packet = ratio(totals.count(Counter::BusyTicks), received);
        Self {
            tx_packets: sent,
            balanced: totals.balances(),
            seconds,
            rx_pps: received as f64 / seconds.max(1e-9),
            tx_pps: sent as f64 / seconds.max(1e-9),
            cycles_per_packet,
            ns_per_packet: cycles_per_packet * 1e9 / (manifest.ticks_hz.max(1) as f64),
            busy_share: ratio(busy, busy + totals.count(Counter::EmptyPolls)),
            totals,
            policy: String::new(),
            policies: BTreeMap::new(),
            workers: 0,
            cores: Vec::new(),
            seeds: BTreeMap::new(),
            mbufs_leaked: 0,
            ports: Vec::new(),
            manifest,
            agent: None,
        }
    }

    /// Returns true if every ledger balances: that of this node and that of an agent on its core.
    #[must_use]
    pub fn is_balanced(&self) -> bool {
        self.balanced && self.agent.as_ref().is_none_or(|agent| agent.ledger.is_balanced())
    }
}

impl fmt::Display for LeafStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = |counter: Counter| self.totals.count(counter);
        writeln!(
            f,
            // Nothing is held at the end.
            "ledger: received {} = sent {} + consumed {} + dropped {}{}",
            count(Counter::RxPackets),
            self.tx_packets,
            count(Counter::Consumed),
            self.totals.dropped(),
            if self.balanced { "" } else { "  DOES NOT BALANCE" }
        )?;
        for (reason, count) in self.totals.drops() {
            writeln!(f, "  dropped {reason}: {count}")?;
        }
        writeln!(
            f,
            "tasks: {} scheduled ({} idle, {} of two), {} refused, {}; {:.0} ns a packet",
            count(Counter::Scheduled),
            count(Counter::IdlePicks),
            count(Counter::Po2Picks),
            count(Counter::Refused),
            quantity(count(Counter::Replies) + count(Counter::Completions), "reply"),
            self.ns_per_packet
        )?;
        let (registrations, keep_alives) =
            (count(Counter::Registrations), count(Counter::KeepAlives));
        if registrations + keep_alives > 0 {
            writeln!(
                f,
                "workers: {}, {}, {} silent, {} back",
                quantity(registrations, "registration"),
                quantity(keep_alives, "keep-alive"),
                quantity(count(Counter::WorkersLost), "time"),
                quantity(count(Counter::WorkersBack), "time")
            )?;
        }
        if count(Counter::Stalls) > 0 {
            let ms =
                1e3 * count(Counter::StalledTicks) as f64 / self.manifest.ticks_hz.max(1) as f64;
            let times = count(Counter::Stalls);
            writeln!(
                f,
                "cores: {} not polled for a millisecond or longer, {ms:.0} ms in all",
                quantity(times, "time")
            )?;
        }
        // The gauge holds the length of a stall that lasts. At the end each core that polled has ended its stalls, so
        // only a core that never polled has one.
        let stalled_ticks = self.totals.count(Gauge::StallTicks) as f64;
        if stalled_ticks > 0.0 {
            let seconds = stalled_ticks / self.manifest.ticks_hz.max(1) as f64;
            writeln!(f, "cores: at least one never polled, {seconds:.1} s in all")?;
        }
        for port in self.ports.iter().filter(|port| port.rx_missed + port.rx_no_mbuf > 0) {
            writeln!(
                f,
                "before the leaf, {} lost {} (queue full) and {} (no buffer)",
                port.device,
                quantity(port.rx_missed, "packet"),
                port.rx_no_mbuf
            )?;
        }
        if self.mbufs_leaked > 0 {
            writeln!(f, "leaked: {}", quantity(self.mbufs_leaked, "packet buffer"))?;
        }
        if let Some(agent) = &self.agent {
            write!(f, "agent {}, {agent}", agent.name)?;
        }
        Ok(())
    }
}

/// Number and clock rate of a node's cores: the ticks that all of them have per second.
#[derive(Clone, Copy, Debug)]
pub struct CoreTime {
    /// Number of cores.
    pub cores: usize,
    /// Ticks of each core per second.
    pub ticks_hz: u64,
}

/// Formats the status line at `seconds` of the run, for the last `interval` seconds. Its `busy` is the fraction of the
/// cores' time in polls that returned packets. Its `stalled` is the fraction without any poll, including stalls that
/// still last. The cores were idle for the rest. `held` is the current number of packets; `dropped` counts from the
/// start of the run.
#[must_use]
pub fn line(
    seconds: f64,
    before: &Totals,
    now: &Totals,
    interval: f64,
    CoreTime { cores, ticks_hz }: CoreTime,
) -> String {
    let rate =
        |after: u64, before: u64| after.saturating_sub(before) as f64 / interval.max(1e-9) / 1e3;
    let change = |counter| now.count(counter) - before.count(counter);
    let rate_of = |counter: Counter| rate(now.count(counter), before.count(counter));
    // Ticks of all cores in the interval.
    let all = interval * cores.max(1) as f64 * ticks_hz.max(1) as f64;
    let share = |ticks: u64| (100.0 * ticks as f64 / all.max(1.0)).min(100.0);
    format!(
        "{seconds:7.1} s  rx {:9.1} k/s  tx {:9.1} k/s  tasks {:9.1} k/s  replies {:9.1} k/s  held {}  dropped {}  \
         {:.0} cycles a packet  busy {:.1}%  stalled {:.1}%",
        rate_of(Counter::RxPackets),
        rate(now.sent(), before.sent()),
        rate_of(Counter::Scheduled),
        rate_of(Counter::Replies) + rate_of(Counter::Completions),
        now.count(Gauge::Held),
        now.dropped(),
        ratio(change(Counter::BusyTicks), change(Counter::RxPackets)),
        share(change(Counter::BusyTicks)),
        share(now.stalled_since(before)),
    )
}

/// Returns a warning if stalls took at least a tenth of the time of all cores in the last `interval` seconds, and at
/// least one of them has ended. The warning has the number of ended stalls, and the duration of all, including those
/// that still last. The node's watching thread logs a stall that lasts.
#[must_use]
pub fn starvation(
    before: &Totals,
    now: &Totals,
    interval: f64,
    CoreTime { cores, ticks_hz }: CoreTime,
) -> Option<String> {
    let change = |counter| now.count(counter) - before.count(counter);
    let (times, stalled) = (change(Counter::Stalls), now.stalled_since(before) as f64);
    let hz = ticks_hz.max(1) as f64;
    (stalled >= 0.1 * interval * hz * cores.max(1) as f64 && times > 0).then(|| {
        format!(
            "the dispatcher cores did not poll {} for a millisecond or longer, {:.0} ms in all \
             of the last {interval:.1} s: another process runs on their CPUs, or the machine \
             was suspended",
            quantity(times, "time"),
            1e3 * stalled / hz
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reason::DropReason;
    use crate::state::Counters;

    #[test]
    fn account_sums_cores_and_checks_the_ledger() {
        let cores = [Counters::heap(), Counters::heap()];
        let account = || LeafStats::of(Totals::read(&cores), 2.0, Manifest::default());
        cores[0].add(Counter::RxPackets, 10);
        cores[1].add(Counter::RxPackets, 5);
        cores[0].add(Counter::Forwarded, 11);
        cores[0].drop(DropReason::TxFull, 2);
        cores[1].add(Counter::Consumed, 2);
        cores[1].drop(DropReason::Runt, 2);
        let stats = account();
        // Sent on are 11 - 2 that the port rejected = 9; 9 + 2 consumed + 4 dropped = 15 received in two seconds.
        assert!(stats.balanced);
        assert_eq!((stats.tx_packets, stats.rx_pps), (9, 7.5));
        let json = serde_json::to_value(&stats).unwrap();
        assert_eq!(
            (&json["rx_packets"], &json["forwarded"], &json["tx_packets"]),
            (&15.into(), &11.into(), &9.into())
        );
        assert_eq!(json["drops"], serde_json::json!({ "runt": 2, "tx_full": 2 }));
        cores[0].add(Counter::RxPackets, 3);
        cores[1].set(Gauge::Held, 3);
        assert!(account().balanced);
        cores[0].add(Counter::RxPackets, 1);
        assert!(!account().balanced && account().to_string().contains("DOES NOT BALANCE"));
    }

    // promise: control.3
    #[test]
    fn line_distinguishes_starvation_from_idleness() {
        let cores = [Counters::heap(), Counters::heap()];
        // Each line is for one second: 2,000,000 ticks of the two cores are 100%.
        let time = CoreTime { cores: 2, ticks_hz: 1_000_000 };
        let before = Totals::read(&cores);
        cores[0].add(Counter::BusyTicks, 300_000);
        cores[1].add(Counter::Stalls, 2);
        cores[1].add(Counter::StalledTicks, 100_000);
        let now = Totals::read(&cores);
        let text = line(1.0, &before, &now, 1.0, time);
        // 300,000 busy and 100,000 stalled ticks.
        assert!(text.ends_with("busy 15.0%  stalled 5.0%"), "{text}");
        assert_eq!(starvation(&before, &now, 1.0, time), None, "less than a tenth");
        cores[1].add(Counter::StalledTicks, 150_000);
        let warning = starvation(&before, &Totals::read(&cores), 1.0, time).unwrap();
        assert!(
            warning.contains("did not poll 2 times") && warning.contains("250 ms in all"),
            "{warning}"
        );
        cores[0].set(Gauge::StallTicks, 1_500_000);
        let lasting = Totals::read(&cores);
        let text = line(1.0, &now, &lasting, 1.0, time);
        // 150,000 ticks of ended stalls since `now`, and 1,500,000 of one that lasts.
        assert!(text.ends_with("stalled 82.5%"), "one that is over and one that lasts: {text}");
        cores[0].set(Gauge::StallTicks, 2_500_000);
        let text = line(1.0, &lasting, &Totals::read(&cores), 1.0, time);
        // The stall is 1,000,000 ticks longer than at `lasting`.
        assert!(text.ends_with("stalled 50.0%"), "of this second only: {text}");
        cores[0].set(Gauge::StallTicks, 0);
        let idle = line(1.0, &now, &now, 1.0, time);
        assert!(idle.ends_with("busy 0.0%  stalled 0.0%"), "{idle}");
        let manifest = || Manifest { ticks_hz: 1_000_000, ..Manifest::default() };
        let account = LeafStats::of(lasting, 1.0, manifest());
        assert!(account.to_string().contains("cores: at least one never polled, 1.5 s in all"));
        let account = LeafStats::of(now, 1.0, manifest());
        assert!(
            account
                .to_string()
                .contains("cores: 2 times not polled for a millisecond or longer, 100 ms in all")
        );
    }
}
