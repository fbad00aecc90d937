//! What a leaf did, as people and programs read it: summed over cores, with the ledger's verdict.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

use crate::reason::DropReason;
use crate::role::agent::Comings;
use crate::state::{Counter, Counters};

/// Counters of all cores at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Totals {
    counts: [u64; Counter::ALL.len()],
    drops: [u64; DropReason::COUNT],
}

impl Default for Totals {
    fn default() -> Self {
        Self { counts: [0; Counter::ALL.len()], drops: [0; DropReason::COUNT] }
    }
}

impl Totals {
    /// The sums over `cores`.
    #[must_use]
    pub fn read(cores: &[Counters]) -> Self {
        let mut totals = Self::default();
        for core in cores {
            for counter in Counter::ALL {
                totals.counts[counter as usize] += core.read(counter);
            }
            for reason in DropReason::ALL {
                totals.drops[reason as usize] += core.dropped(reason);
            }
        }
        totals
    }

    /// Events counted.
    #[must_use]
    pub fn count(&self, counter: Counter) -> u64 {
        self.counts[counter as usize]
    }

    /// Packets dropped for any reason.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.drops.iter().sum()
    }

    /// Packets dropped for `reason`.
    #[must_use]
    pub fn dropped_for(&self, reason: DropReason) -> u64 {
        self.drops[reason as usize]
    }

    /// Packets dropped, by reason; reasons that never occurred are left out.
    #[must_use]
    pub fn drops(&self) -> BTreeMap<&'static str, u64> {
        DropReason::ALL
            .iter()
            .map(|&reason| (reason.name(), self.drops[reason as usize]))
            .filter(|&(_, count)| count > 0)
            .collect()
    }

    /// Ticks spent per packet received, on polls that brought any.
    #[must_use]
    pub fn cycles_per_packet(&self) -> f64 {
        ratio(self.count(Counter::BusyTicks), self.count(Counter::RxPackets))
    }
}

fn ratio(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

/// What a device counted.
#[derive(Clone, Debug, Default, Serialize)]
pub struct PortStats {
    /// EAL's name.
    pub device: String,
    /// Its driver.
    pub driver: String,
    /// Packets the device lost because a receive queue was full: they never reached the leaf.
    pub rx_missed: u64,
    /// Packets the device lost for want of a buffer.
    pub rx_no_mbuf: u64,
    /// Packets that arrived damaged.
    pub rx_errors: u64,
    /// Packets the device failed to send.
    pub tx_errors: u64,
    /// Peers that a memif device's socket has refused: those of other users, and those that said what no peer may.
    pub peers_refused: u64,
    /// Connections with memif peers that have ended.
    pub peers_left: u64,
}

/// A leaf's account at its end.
#[derive(Clone, Debug, Serialize)]
pub struct LeafStats {
    /// Packets received.
    pub rx_packets: u64,
    /// Packets received and sent on.
    pub tx_packets: u64,
    /// Packets received and used up: ARP, signals.
    pub consumed: u64,
    /// Packets dropped, by reason.
    pub drops: BTreeMap<&'static str, u64>,
    /// Packets received that wait here: 0 at the end, when they are dropped.
    pub held: u64,
    /// Received equals sent on, used up, dropped and held.
    pub balanced: bool,
    /// Tasks given back to their clients for want of room in a central queue; among those consumed.
    pub refused: u64,
    /// Packets made here and sent: ARP.
    pub originated: u64,
    /// Packets made here that could not be sent.
    pub originated_unsent: u64,
    /// Tasks given to a worker.
    pub scheduled: u64,
    /// Further packets of multi-packet tasks.
    pub continuations: u64,
    /// Tasks given to a worker of the idle list.
    pub idle_picks: u64,
    /// Tasks given to the better of two random workers.
    pub po2_picks: u64,
    /// Picks for which a switch would have used its pipeline twice.
    pub resubmits: u64,
    /// Replies of workers.
    pub replies: u64,
    /// Replies of workers that had no task outstanding.
    pub surplus_replies: u64,
    /// Registrations of workers.
    pub registrations: u64,
    /// Their keep-alives.
    pub keep_alives: u64,
    /// Times a registered worker fell silent and was taken out.
    pub workers_lost: u64,
    /// Times a silent worker came back.
    pub workers_back: u64,
    /// Seconds from the first poll to the last.
    pub seconds: f64,
    /// Packets received a second.
    pub rx_pps: f64,
    /// Packets sent on a second.
    pub tx_pps: f64,
    /// Clock ticks spent per packet received, receive and transmit included, on polls that brought any.
    pub cycles_per_packet: f64,
    /// The same in nanoseconds.
    pub ns_per_packet: f64,
    /// Share of polls that brought packets.
    pub busy_polls: f64,
    /// The policy, for several pools those of all, joined by commas.
    pub policy: String,
    /// Each pool's policy.
    pub policies: BTreeMap<u16, String>,
    /// Workers of all pools.
    pub workers: usize,
    /// Dispatcher cores.
    pub cores: Vec<usize>,
    /// Seeds: the leaf's, and those of each core's and pool's random stream.
    pub seeds: BTreeMap<String, u64>,
    /// Packet buffers not returned at the end; 0 unless something leaks.
    pub mbufs_leaked: usize,
    /// What each device counted.
    pub ports: Vec<PortStats>,
    /// What ran.
    pub manifest: Manifest,
    /// The account of an agent on the same core.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent: Option<Box<AgentStats>>,
}

/// An agent's account at its end.
#[derive(Clone, Debug, Serialize)]
pub struct AgentStats {
    /// Packets, tasks and what ran.
    #[serde(flatten)]
    pub ledger: LeafStats,
    /// The name that workers attached to.
    pub name: String,
    /// Workers that came and went, over all pools.
    pub comings: Comings,
    /// Workers that the leaf had acknowledged at the end.
    pub registered: usize,
    /// Workers that are threads and sent their replies themselves.
    pub senders: usize,
}

impl fmt::Display for AgentStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.ledger.fmt(f)?;
        let Comings { joined, left, died, silent, at_fault } = self.comings;
        writeln!(
            f,
            "workers: {joined} came, {left} left, {died} died, {silent} were shut out for silence, \
             {at_fault} at fault; {} registered with the leaf",
            self.registered
        )
    }
}

/// What ran, where.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Manifest {
    /// Revision of the sources.
    pub revision: String,
    /// The compiler.
    pub rustc: String,
    /// DPDK's release.
    pub dpdk: String,
    /// EAL's arguments.
    pub eal: Vec<String>,
    /// Ticks a second.
    pub ticks_hz: u64,
    /// The configuration's text.
    pub config: String,
}

impl LeafStats {
    /// The numbers that follow from the counters; the caller fills in the rest.
    #[must_use]
    pub fn of(totals: &Totals, seconds: f64, manifest: Manifest) -> Self {
        let count = |counter| totals.count(counter);
        let rx_packets = count(Counter::RxPackets);
        let tx_packets = count(Counter::TxPackets);
        let consumed = count(Counter::Consumed);
        let held = count(Counter::Held);
        let polls = count(Counter::BusyPolls) + count(Counter::EmptyPolls);
        let cycles_per_packet = totals.cycles_per_packet();
        Self {
            rx_packets,
            tx_packets,
            consumed,
            drops: totals.drops(),
            held,
            balanced: rx_packets == tx_packets + consumed + totals.dropped() + held,
            refused: count(Counter::Refused),
            originated: count(Counter::Originated),
            originated_unsent: count(Counter::OriginatedUnsent),
            scheduled: count(Counter::Scheduled),
            continuations: count(Counter::Continuations),
            idle_picks: count(Counter::IdlePicks),
            po2_picks: count(Counter::Po2Picks),
            resubmits: count(Counter::Resubmits),
            replies: count(Counter::Replies),
            surplus_replies: count(Counter::SurplusReplies),
            registrations: count(Counter::Registrations),
            keep_alives: count(Counter::KeepAlives),
            workers_lost: count(Counter::WorkersLost),
            workers_back: count(Counter::WorkersBack),
            seconds,
            rx_pps: rx_packets as f64 / seconds.max(1e-9),
            tx_pps: tx_packets as f64 / seconds.max(1e-9),
            cycles_per_packet,
            ns_per_packet: cycles_per_packet * 1e9 / (manifest.ticks_hz.max(1) as f64),
            busy_polls: ratio(count(Counter::BusyPolls), polls),
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

    /// Every ledger balances.
    #[must_use]
    pub fn is_balanced(&self) -> bool {
        self.balanced && self.agent.as_ref().is_none_or(|agent| agent.ledger.is_balanced())
    }
}

impl fmt::Display for LeafStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "ledger: received {} = sent {} + consumed {} + dropped {}{}",
            self.rx_packets,
            self.tx_packets,
            self.consumed,
            self.drops.values().sum::<u64>(),
            if self.balanced { "" } else { "  DOES NOT BALANCE" }
        )?;
        for (reason, count) in &self.drops {
            writeln!(f, "  dropped {reason}: {count}")?;
        }
        writeln!(
            f,
            "tasks: {} scheduled ({} idle, {} of two), {} refused, {} replies; {:.0} ns a packet",
            self.scheduled,
            self.idle_picks,
            self.po2_picks,
            self.refused,
            self.replies,
            self.ns_per_packet
        )?;
        if self.registrations + self.keep_alives > 0 {
            writeln!(
                f,
                "workers: {} registrations, {} keep-alives, {} times silent, {} times back",
                self.registrations, self.keep_alives, self.workers_lost, self.workers_back
            )?;
        }
        for port in self.ports.iter().filter(|port| port.rx_missed + port.rx_no_mbuf > 0) {
            writeln!(
                f,
                "before the leaf, {} lost {} packets (queue full) and {} (no buffer)",
                port.device, port.rx_missed, port.rx_no_mbuf
            )?;
        }
        if self.mbufs_leaked > 0 {
            writeln!(f, "{} packet buffers were not returned", self.mbufs_leaked)?;
        }
        if let Some(agent) = &self.agent {
            write!(f, "agent {}, {agent}", agent.name)?;
        }
        Ok(())
    }
}

/// One line about the time since the last one.
#[must_use]
pub fn line(seconds: f64, before: &Totals, now: &Totals, interval: f64) -> String {
    let rate =
        |counter| (now.count(counter) - before.count(counter)) as f64 / interval.max(1e-9) / 1e3;
    let busy = now.count(Counter::BusyTicks) - before.count(Counter::BusyTicks);
    let packets = now.count(Counter::RxPackets) - before.count(Counter::RxPackets);
    format!(
        "{seconds:7.1} s  rx {:9.1} k/s  tx {:9.1} k/s  tasks {:9.1} k/s  replies {:9.1} k/s  held {}  dropped {}  {:.0} cycles a packet",
        rate(Counter::RxPackets),
        rate(Counter::TxPackets),
        rate(Counter::Scheduled),
        rate(Counter::Replies),
        now.count(Counter::Held),
        now.dropped(),
        ratio(busy, packets),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_and_ledger() {
        let cores = [Counters::heap(), Counters::heap()];
        cores[0].add(Counter::RxPackets, 10);
        cores[1].add(Counter::RxPackets, 5);
        cores[0].add(Counter::TxPackets, 9);
        cores[1].add(Counter::Consumed, 2);
        cores[1].drop(DropReason::Runt, 4);
        let stats = LeafStats::of(&Totals::read(&cores), 2.0, Manifest::default());
        assert!(stats.balanced);
        assert_eq!((stats.rx_packets, stats.rx_pps), (15, 7.5));
        assert_eq!(stats.drops, BTreeMap::from([("runt", 4)]));
        cores[0].add(Counter::RxPackets, 3);
        cores[1].set(Counter::Held, 3);
        let stats = LeafStats::of(&Totals::read(&cores), 2.0, Manifest::default());
        assert!(stats.balanced && stats.held == 3);
        cores[0].add(Counter::RxPackets, 1);
        let stats = LeafStats::of(&Totals::read(&cores), 2.0, Manifest::default());
        assert!(!stats.balanced && stats.to_string().contains("DOES NOT BALANCE"));
    }
}
