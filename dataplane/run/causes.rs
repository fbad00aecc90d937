//! Causes of nearly total loss at a port: logs each once, with advice.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use crate::io::dpdk::Device;
use crate::node::refusals::Refusals;
use crate::reason::DropReason;
use crate::state::counters::idle_cores;
use crate::state::{Counter, Counters};

/// Minimum number of refused packets for a log line.
const ENOUGH: u64 = 20;

/// Interval between checks.
const LOOK: Duration = Duration::from_secs(1);

/// Causes that the log has already.
pub struct Causes {
    next: Instant,
    cores: Vec<Refusals>,
    counters: Vec<Counters>,
    told: BTreeSet<(usize, &'static str)>,
    idle_told: BTreeSet<usize>,
}

impl Causes {
    /// Creates the log of a node from its cores' counts.
    pub fn of(cores: Vec<Refusals>, counters: Vec<Counters>) -> Self {
        let (told, idle_told) = (BTreeSet::new(), BTreeSet::new());
        Self { next: Instant::now(), cores, counters, told, idle_told }
    }

    /// Checks all ports once a second, and logs new causes.
    pub fn look(&mut self, devices: &[Device]) {
        if Instant::now() < self.next {
            return;
        }
        self.next = Instant::now() + LOOK;
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
            if let Some(cause) = self.find(port, device.name(), received) {
                log::warn!("{cause}");
            }
        }
    }

    /// Returns idle cores that the log does not have yet.
    fn new_idle_cores(&mut self) -> Vec<usize> {
        let received = self.counters.iter().map(|core| core.read(Counter::RxPackets));
        let mut idle = idle_cores(received);
        idle.retain(|&core| self.idle_told.insert(core));
        idle
    }

    /// Returns a message about the drop reason of at least 90% of a port's packets, without packets meant for
    /// other hosts. A reason that shows an error in the setup counts from its first packet.
    fn find(&mut self, port: usize, device: &str, received: u64) -> Option<String> {
        let refused = |reason| self.cores.iter().map(|core| core.count(port, reason)).sum::<u64>();
        let (strays, meant): (Vec<_>, Vec<_>) =
            DropReason::ALL.into_iter().partition(|reason| reason.is_of_strays());
        let meant_for_us = received.saturating_sub(strays.into_iter().map(refused).sum());
        let (count, reason) = meant
            .into_iter()
            .map(|reason| (refused(reason), reason))
            .max_by_key(|(count, _)| *count)?;
        let is_nearly_all = count >= ENOUGH && count * 10 >= meant_for_us * 9;
        let is_told = |reason: DropReason| self.told.contains(&(port, reason.name()));
        let of_setup = DropReason::ALL
            .into_iter()
            .find(|&reason| reason.is_of_setup() && refused(reason) > 0 && !is_told(reason));
        let (count, reason, is_nearly_all) = match of_setup {
            Some(reason) => (refused(reason), reason, true),
            None => (count, reason, is_nearly_all),
        };
        if !is_nearly_all || !self.told.insert((port, reason.name())) {
            return None;
        }
        let (name, help, look_at) = (reason.name(), reason.help(), reason.look_at());
        Some(format!(
            "port {port}, {device}: {count} of {meant_for_us} packets were refused as `{name}`. {help} Look at: {look_at}"
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // promise: control.3
    #[test]
    fn dominant_drop_reason_is_logged_once_per_port() {
        let cores = vec![Refusals::default(), Refusals::default()];
        let mut causes = Causes::of(cores.clone(), Vec::new());
        let refuse = |core: usize, port, reason, count| {
            (0..count).for_each(|_| cores[core].note(port, reason));
        };
        assert_eq!(causes.find(0, "net_x0", 0), None);
        refuse(0, 0, DropReason::UdpChecksum, 10);
        assert_eq!(causes.find(0, "net_x0", 10), None, "too few to tell");
        refuse(1, 0, DropReason::UdpChecksum, 17);
        refuse(1, 0, DropReason::EtherType, 50);
        assert_eq!(causes.find(0, "net_x0", 100), None, "27 of 50");
        let told = causes.find(0, "net_x0", 80).unwrap();
        assert!(
            told.starts_with("port 0, net_x0: 27 of 30 packets were refused as `udp_checksum`. "),
            "{told}"
        );
        assert!(told.contains("Look at: "), "{told}");
        assert_eq!(causes.find(0, "net_x0", 80), None, "once");
        refuse(0, 1, DropReason::UnknownPool, 20);
        assert!(causes.find(1, "net_x1", 20).unwrap().contains("`unknown_pool`"));
        refuse(0, 2, DropReason::ArpOther, 1000);
        assert_eq!(causes.find(2, "net_x2", 1000), None, "what is for others is no cause");
    }

    #[test]
    fn one_packet_with_segmentation_offload_is_reported() {
        let cores = vec![Refusals::default()];
        let mut causes = Causes::of(cores.clone(), Vec::new());
        cores[0].note(0, DropReason::SegmentationOffload);
        let told = causes.find(0, "net_x0", 100_000).unwrap();
        assert!(told.contains("`segmentation_offload`") && told.contains("ethtool -K"), "{told}");
        assert_eq!(causes.find(0, "net_x0", 100_000), None, "once");
    }

    // promise: control.3
    #[test]
    fn a_core_without_packets_is_reported_once() {
        let counters: Vec<_> = (0..3).map(|_| Counters::heap()).collect();
        let mut causes = Causes::of(Vec::new(), counters.clone());
        assert_eq!(causes.new_idle_cores(), [0_usize; 0]);
        counters[0].add(Counter::RxPackets, 9_999);
        assert_eq!(causes.new_idle_cores(), [0_usize; 0], "too few to tell");
        counters[2].add(Counter::RxPackets, 1);
        assert_eq!(causes.new_idle_cores(), [1]);
        assert_eq!(causes.new_idle_cores(), [0_usize; 0], "once");
    }
}
