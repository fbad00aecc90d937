//! Why nearly nothing of what a port receives is taken: told once in the log, with what to look at.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use crate::io::dpdk::Device;
use crate::node::refusals::Refusals;
use crate::reason::DropReason;

/// So many packets must have been refused for a reason before it is told.
const ENOUGH: u64 = 20;

/// Between two looks.
const LOOK: Duration = Duration::from_secs(1);

/// What has been told.
pub struct Causes {
    next: Instant,
    cores: Vec<Refusals>,
    told: BTreeSet<(usize, &'static str)>,
}

impl Causes {
    /// Of the node whose cores have these counts.
    pub fn of(cores: Vec<Refusals>) -> Self {
        Self { next: Instant::now(), cores, told: BTreeSet::new() }
    }

    /// Looks at all ports once a second, and logs what has not been told.
    pub fn look(&mut self, devices: &[Device]) {
        if Instant::now() < self.next {
            return;
        }
        self.next = Instant::now() + LOOK;
        for (port, device) in devices.iter().enumerate() {
            let received = device.stats().rx_packets;
            if let Some(cause) = self.find(port, device.name(), received) {
                log::warn!("{cause}");
            }
        }
    }

    /// The reason for which nine in ten of the packets of a port were refused, of those that are meant for somebody like us.
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

    #[test]
    fn nearly_all_for_one_reason_is_told_once_for_each_port() {
        let cores = vec![Refusals::default(), Refusals::default()];
        let mut causes = Causes::of(cores.clone());
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
}
