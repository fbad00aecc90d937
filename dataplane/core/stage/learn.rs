//! Learns neighbours from passing tasks: a host on one of the node's own networks has the MAC address that
//! its packets come from. Resolved entries keep their MAC address, see [`crate::state::neighbour`]. Replies to these
//! clients then need no ARP request.
//!
//! Examining every task would cost time for each. So only one burst with datagrams per port is examined
//! between two ticks. If a reply has to wait for a client's MAC address, every burst of that client's port is examined
//! for a second.

use super::Stages;
use super::liveness::NeighbourProbe;
use super::network::Family;
use super::parse::PREFETCH_AHEAD;
use crate::io::Buf;
use crate::limits::PORTS_MAX;
use crate::state::neighbour::{LearnOutcome, Slot};
use crate::wire::ether::{self, Mac};
use crate::wire::udp;

/// Time for which all bursts of a port are examined, after a reply there had to wait.
const URGENT_MS: u32 = 1_000;

/// Schedule of the bursts to examine.
#[derive(Clone, Copy, Debug)]
pub struct LearnSchedule {
    /// Ports whose next burst must be examined, one bit each.
    due_ports: u8,
    /// Ports whose bursts must all be examined, one bit each.
    urgent_ports: u8,
    /// Time until which each port is urgent.
    urgent_until_ms: [u32; PORTS_MAX],
}

const _: () = assert!(PORTS_MAX <= u8::BITS as usize);

impl Default for LearnSchedule {
    fn default() -> Self {
        Self { due_ports: u8::MAX, urgent_ports: 0, urgent_until_ms: [0; PORTS_MAX] }
    }
}

impl LearnSchedule {
    /// Returns true if the next burst of this port must be examined.
    #[inline(always)]
    pub fn is_due(&self, port: usize) -> bool {
        (self.due_ports >> port) & 1 != 0
    }

    /// Requests examination of a port: a reply waits for a client behind it.
    pub fn want(&mut self, port: usize, now_ms: u32) {
        self.due_ports |= 1 << port;
        self.urgent_ports |= 1 << port;
        self.urgent_until_ms[port] = now_ms.wrapping_add(URGENT_MS);
    }

    /// Makes every port due, and ends expired requests.
    pub fn tick(&mut self, now_ms: u32) {
        for (port, until_ms) in self.urgent_until_ms.iter().enumerate() {
            // True if the time has passed. Milliseconds wrap around.
            if now_ms.wrapping_sub(*until_ms) <= u32::MAX / 2 {
                self.urgent_ports &= !(1 << port);
            }
        }
        self.due_ports = u8::MAX;
    }

    /// Records that a burst of a port was examined: only an urgent port stays due.
    fn done(&mut self, port: usize) {
        self.due_ports &= !(1 << port) | self.urgent_ports;
    }
}

/// Learns clients' MAC addresses from a burst's datagrams to the node. If sources contradict resolved entries, queues a
/// probe of the last of these hosts.
#[cold]
#[inline(never)]
pub fn burst<B: Buf>(stages: &mut Stages, port: usize, packets: &[B]) {
    // Packets that arrive through a spine have the spine's MAC address.
    let has_spines = stages.network.spines().next().is_some();
    if has_spines || !stages.network.port(port).side.has_clients() {
        return stages.learning.done(port);
    }
    packets.iter().take(PREFETCH_AHEAD).for_each(Buf::prefetch);
    let (port_mac, mut contradicted, mut has_packets) =
        (stages.network.port(port).mac, None, false);
    let whole = packets.iter().filter(|packet| !packet.is_segmented()).map(Buf::bytes);
    for frame in
        whole.filter(|frame| frame.len() >= ether::LEN).filter(|frame| is_udp_to(port_mac, frame))
    {
        has_packets = true;
        let Some((slot, address, outcome)) = learn_client(stages, port, frame) else { continue };
        // The entry has another MAC address, and keeps it.
        if outcome == LearnOutcome::Conflict {
            contradicted = Some((slot, address));
        }
    }
    if let Some((slot, address)) = contradicted {
        // Replies go to the known host until it has answered the probe or failed to.
        stages.liveness.probe(NeighbourProbe { port: port as u8, slot, address });
    }
    // Also if no client was found: with all clients behind a router, no burst ever shows one.
    if has_packets {
        stages.learning.done(port);
    }
}

/// Returns true for an IP frame to the node itself that is long enough for a datagram. The protocol may be any: each
/// such frame shows its sender's MAC address.
fn is_udp_to(port_mac: Mac, frame: &[u8]) -> bool {
    let least = match ether::ether_type(frame) {
        ether::IPV4 => udp::PAYLOAD,
        ether::IPV6 => udp::PAYLOAD_V6,
        _ => return false,
    };
    frame.len() >= least && ether::is_to(frame, port_mac)
}

/// Learns a client from a frame. Returns its slot, its address and the outcome, or `None` if the source is no client on
/// the port's own network. A later stage decides if its task is accepted.
fn learn_client(stages: &Stages, port: usize, frame: &[u8]) -> Option<(Slot, u32, LearnOutcome)> {
    match ether::ether_type(frame) {
        ether::IPV6 => learn_source::<u128>(stages, port, frame),
        _ => learn_source::<u32>(stages, port, frame),
    }
}

/// Does the work of [`learn_client`]. The address is in the form of [`crate::state::Neighbours::address`].
fn learn_source<A: Family>(
    stages: &Stages,
    port: usize,
    frame: &[u8],
) -> Option<(Slot, u32, LearnOutcome)> {
    let network = &stages.network;
    let tables = network.family::<A>();
    let (source, mac) = (A::src(&frame[ether::LEN..]), ether::src(frame));
    let is_client = tables.port(port)?.reaches(source) && tables.is_client(source);
    if !is_client || !network.may_be_host_mac(mac) {
        return None;
    }
    let (neighbours, now_ms) = (&stages.neighbours, stages.now_ms());
    let slot = neighbours.find(port, source);
    let slot = slot.unwrap_or_else(|| neighbours.insert(port, source, now_ms));
    Some((slot, neighbours.address(slot), neighbours.learn(slot, mac, now_ms)))
}

#[cfg(test)]
mod tests {
    use crate::io::memory::FramePool;
    use crate::stage::fast::tests::{frame, stages_of, task};
    use crate::stage::{Side, Verdict};
    use crate::wire::ether;

    #[test]
    fn one_burst_a_tick_is_examined() {
        let pool = FramePool::new(4, 256);
        let mut stages = stages_of(Side::Both);
        // From a client on the port's network, from one behind a router, and no datagram. Only ARP leaves the port
        // due.
        let direct = frame(task(1, false), &[]);
        let mut routed = direct.clone();
        // Another source address, in no network of the port.
        routed[ether::LEN + 12..ether::LEN + 16].copy_from_slice(&[10, 9, 0, 7]);
        let mut arp = direct.clone();
        arp[12..14].copy_from_slice(&ether::ARP.to_be_bytes());
        for (frame, ends_turn) in [(&direct, true), (&routed, true), (&arp, false)] {
            stages.tick(0, 0);
            assert!(stages.learning.is_due(0));
            let mut burst = [pool.frame(frame).unwrap()];
            stages.process(0, 0, &mut burst, &mut [Verdict::Consumed; 1][..]);
            assert_eq!(!stages.learning.is_due(0), ends_turn);
        }
    }
}
