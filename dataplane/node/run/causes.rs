//! Causes of nearly total packet loss, and sources of spoofed replies. Logs each once, with advice. A cause is the drop
//! reason of nearly all packets of a port, or a core that receives nothing. The node's watching thread looks for them
//! every second, so that a wrong setup explains itself in the log.
//!
//! A refusal is a packet dropped by a core at its arrival. A spoofed reply has the id of a worker, but does not come
//! from that worker's server.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use wedjat_core::node::refusals::{Refusals, SpoofedReply};
use wedjat_core::reason::DropReason;
use wedjat_core::state::counters::idle_cores;
use wedjat_core::state::{Counter, Counters};
use wedjat_desired::control::Membership;
use wedjat_dpdk::Device;

/// Minimum number of packets dropped for one reason before it counts as a cause. Fewer may be chance.
const REFUSED_MIN: u64 = 20;

/// Interval between checks.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Maximum number of log lines about spoofed replies in a run, so that a forger cannot fill the log.
const SPOOFED_MAX: usize = 32;

/// Search for causes, with a record of those that the log has.
pub struct Causes {
    /// Time of the next check.
    next: Instant,
    /// Counts of packets dropped at their arrival, and recent spoofed replies, of each core.
    refusals: Vec<Refusals>,
    /// Counters of each core.
    counters: Vec<Counters>,
    /// Logged causes: port and drop reason.
    logged: BTreeSet<(usize, &'static str)>,
    /// Logged cores without packets.
    logged_idle: BTreeSet<usize>,
    /// Logged spoofed replies.
    logged_spoofed: BTreeSet<SpoofedReply>,
}

impl Causes {
    /// Creates a search in the counts of a node's cores.
    pub fn of(refusals: Vec<Refusals>, counters: Vec<Counters>) -> Self {
        let (logged, logged_idle) = (BTreeSet::new(), BTreeSet::new());
        let logged_spoofed = BTreeSet::new();
        Self { next: Instant::now(), refusals, counters, logged, logged_idle, logged_spoofed }
    }

    /// Checks all ports and cores, at most once per [`CHECK_INTERVAL`], and logs new causes. `membership` has the
    /// servers of the workers.
    pub fn update(&mut self, devices: &[Device], membership: &Membership) {
        if Instant::now() < self.next {
            return;
        }
        self.next = Instant::now() + CHECK_INTERVAL;
        for core in self.new_idle_cores() {
            let names: Vec<_> = devices.iter().map(Device::name).collect();
            log::warn!(
                "core {core} receives nothing: {} do not spread packets over their queues; use one core, or a device with RSS for UDP (with \
                 few clients, also check that they differ in what the device spreads by)",
                names.join(" and ")
            );
        }
        for (port, device) in devices.iter().enumerate() {
            let received = device.stats().rx_packets;
            if let Some(cause) = self.new_cause(port, device.name(), received) {
                log::warn!("{cause}");
            }
        }
        for line in self.new_spoofed(membership) {
            log::warn!("{line}");
        }
    }

    /// Returns messages about spoofed replies that the log does not have yet: one per source and worker, with the
    /// setting to correct. Skips workers that the membership lacks: they have no server to compare with.
    fn new_spoofed(&mut self, membership: &Membership) -> Vec<String> {
        let mut lines = Vec::new();
        for reply in
            self.refusals.iter().flat_map(|core| std::iter::from_fn(|| core.next_spoofed()))
        {
            let SpoofedReply { source, worker } = reply;
            let Some(server) = membership.server_of(worker) else { continue };
            if self.logged_spoofed.len() < SPOOFED_MAX && self.logged_spoofed.insert(reply) {
                // On a port for clients and workers, the node also checks the sender's MAC address, and that the port
                // leads to the server. A spoofed reply with the server's IP address failed this check.
                let advice = match source == server {
                    true => "its MAC address or port is not the server's. Correct `mac` of its [[server]]".to_owned(),
                    false => format!(
                        "the worker's server is {server}. Bind the worker to {server}, or correct `ip` or `workers` of its [[server]]"
                    ),
                };
                lines.push(format!(
                    "dropped a reply of worker {worker} from {source} as `spoofed_reply`: {advice}"
                ));
            }
        }
        lines
    }

    /// Returns idle cores that the log does not have yet, and marks them as logged. A core without packets is idle once
    /// the node has received 10,000.
    fn new_idle_cores(&mut self) -> Vec<usize> {
        let received = self.counters.iter().map(|core| core.read(Counter::RxPackets));
        let mut idle = idle_cores(received);
        idle.retain(|&core| self.logged_idle.insert(core));
        idle
    }

    /// Returns a message about a new cause at a port, and marks the cause as logged. Returns `None` without a new one.
    ///
    /// A cause is the drop reason of at least 90% of the port's packets, and of at least [`REFUSED_MIN`]. Packets to
    /// other hosts (strays) do not count. A reason with [`DropReason::is_setup_error`] is a cause from its first
    /// packet. `received` is the number of packets received by the port since its start.
    fn new_cause(&mut self, port: usize, device: &str, received: u64) -> Option<String> {
        let refused =
            |reason| self.refusals.iter().map(|core| core.count(port, reason)).sum::<u64>();
        let (strays, own_reasons): (Vec<_>, Vec<_>) =
            DropReason::ALL.into_iter().partition(|reason| reason.is_stray());
        // `received` and the refusals are read at different times, so the difference may be negative.
        let to_this_node = received.saturating_sub(strays.into_iter().map(refused).sum());
        let (count, reason) = own_reasons
            .into_iter()
            .map(|reason| (refused(reason), reason))
            .max_by_key(|(count, _)| *count)?;
        let is_cause = count >= REFUSED_MIN && count * 10 >= to_this_node * 9;
        let is_logged = |reason: DropReason| self.logged.contains(&(port, reason.name()));
        let of_setup = DropReason::ALL
            .into_iter()
            .find(|&reason| reason.is_setup_error() && refused(reason) > 0 && !is_logged(reason));
        // A reason of the setup comes first, even if another reason has more packets.
        let (count, reason, is_cause) = match of_setup {
            Some(reason) => (refused(reason), reason, true),
            None => (count, reason, is_cause),
        };
        if !is_cause || !self.logged.insert((port, reason.name())) {
            return None;
        }
        // The device's counter may be older than the refusals, or missing.
        let to_this_node = to_this_node.max(count);
        let (name, help, look_at) = (reason.name(), reason.help(), reason.look_at());
        Some(format!(
            "port {port}, {device}: {count} of {to_this_node} packets were refused as `{name}`. {help} Look at: {look_at}"
        ))
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;
    use std::path::Path;

    use super::*;

    // promise: control.3
    #[test]
    fn dominant_drop_reason_is_logged_once_per_port() {
        let refusals = vec![Refusals::default(), Refusals::default()];
        let mut causes = Causes::of(refusals.clone(), Vec::new());
        let refuse = |core: usize, port, reason, count| {
            (0..count).for_each(|_| refusals[core].note(port, reason));
        };
        assert_eq!(causes.new_cause(0, "net_x0", 0), None);
        refuse(0, 0, DropReason::UdpChecksum, 10);
        assert_eq!(causes.new_cause(0, "net_x0", 10), None, "fewer than 20 packets");
        refuse(1, 0, DropReason::UdpChecksum, 17);
        // Packets of other Ethernet protocols are strays and do not count: 100 - 50, and 80 - 50.
        refuse(1, 0, DropReason::EtherType, 50);
        assert_eq!(causes.new_cause(0, "net_x0", 100), None, "27 of 50 are below 90%");
        let message = causes.new_cause(0, "net_x0", 80).unwrap();
        assert!(
            message
                .starts_with("port 0, net_x0: 27 of 30 packets were refused as `udp_checksum`. "),
            "{message}"
        );
        assert!(message.contains("Look at: "), "{message}");
        assert_eq!(causes.new_cause(0, "net_x0", 80), None, "logged before");
        refuse(0, 1, DropReason::UnknownPool, 20);
        assert!(causes.new_cause(1, "net_x1", 20).unwrap().contains("`unknown_pool`"));
        // A device without counters.
        refuse(0, 3, DropReason::UnknownPool, 20);
        assert!(causes.new_cause(3, "net_x3", 0).unwrap().contains(": 20 of 20 packets "));
        refuse(0, 2, DropReason::ArpOther, 1000);
        assert_eq!(causes.new_cause(2, "net_x2", 1000), None, "strays are no cause");
    }

    #[test]
    fn one_packet_with_segmentation_offload_is_reported() {
        let refusals = vec![Refusals::default()];
        let mut causes = Causes::of(refusals.clone(), Vec::new());
        refusals[0].note(0, DropReason::SegmentationOffload);
        let message = causes.new_cause(0, "net_x0", 100_000).unwrap();
        let expected = ["`segmentation_offload`", "ethtool -K"];
        assert!(expected.iter().all(|text| message.contains(text)), "{message}");
        assert_eq!(causes.new_cause(0, "net_x0", 100_000), None, "logged before");
    }

    // promise: control.3
    #[test]
    fn spoofed_reply_is_logged_with_its_server() {
        let config = include_str!("../../../examples/leaf.toml");
        let membership = Membership::of(
            &wedjat_desired::config::Config::parse(Path::new("leaf.toml"), config).unwrap(),
        );
        let server = membership.server_of(3).unwrap();
        let core = Refusals::default();
        let mut causes = Causes::of(vec![core.clone()], Vec::new());
        let reply = |worker, source| SpoofedReply { worker, source };
        let other = IpAddr::from([10, 0, 2, 99]);
        // A repeated reply, and one of an unknown worker, give no line.
        for reply in [reply(3, other), reply(3, other), reply(9999, other)] {
            core.keep(reply);
        }
        let lines = causes.new_spoofed(&membership);
        let [line] = &lines[..] else { panic!("{lines:?}") };
        assert!(line.starts_with("dropped a reply of worker 3 from 10.0.2.99 "), "{line}");
        assert!(line.contains(&format!("the worker's server is {server}. ")), "{line}");
        core.keep(reply(3, other));
        assert!(causes.new_spoofed(&membership).is_empty(), "logged before");
        core.keep(reply(3, server));
        assert!(causes.new_spoofed(&membership)[0].contains("its MAC address"), "same address");
    }

    // promise: control.3
    #[test]
    fn a_core_without_packets_is_reported_once() {
        let counters: Vec<_> = (0..3).map(|_| Counters::heap()).collect();
        let mut causes = Causes::of(Vec::new(), counters.clone());
        assert_eq!(causes.new_idle_cores(), [0_usize; 0]);
        counters[0].add(Counter::RxPackets, 9_999);
        assert_eq!(causes.new_idle_cores(), [0_usize; 0], "fewer than 10,000 packets");
        counters[2].add(Counter::RxPackets, 1);
        assert_eq!(causes.new_idle_cores(), [1]);
        assert_eq!(causes.new_idle_cores(), [0_usize; 0], "logged before");
    }
}
