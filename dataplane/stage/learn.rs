//! What tasks that pass tell of their senders: a host on one of the node's own networks is at the MAC address that its
//! packets come from. An entry that is alive is not changed by it, see [`crate::state::neighbour`].
//!
//! Looking at every task would cost each of them; so only one burst with datagrams of each port between two ticks is looked
//! at, and every burst of a port for a second after a reply had to wait for a client there.

use super::Stages;
use super::liveness::NeighbourProbe;
use super::parse::PREFETCH_AHEAD;
use crate::io::Buf;
use crate::limits::PORTS_MAX;
use crate::state::neighbour::{LearnOutcome, Slot};
use crate::wire::ether::{self, Mac};
use crate::wire::{ipv4, ipv6, udp};

/// A port's bursts are looked at for so long after a reply there had to wait.
const WANTED_MS: u32 = 1_000;

/// Which bursts are to be looked at.
#[derive(Clone, Copy, Debug)]
pub struct Learning {
    /// A bit for each port.
    due: u8,
    wanted: u8,
    wanted_until_ms: [u32; PORTS_MAX],
}

const _: () = assert!(PORTS_MAX <= u8::BITS as usize);

impl Default for Learning {
    fn default() -> Self {
        Self { due: u8::MAX, wanted: 0, wanted_until_ms: [0; PORTS_MAX] }
    }
}

impl Learning {
    /// The next burst of this port is to be looked at.
    #[inline(always)]
    pub fn is_due(&self, port: usize) -> bool {
        (self.due >> port) & 1 != 0
    }

    /// A reply waits for a client behind this port.
    pub fn want(&mut self, port: usize, now_ms: u32) {
        self.due |= 1 << port;
        self.wanted |= 1 << port;
        self.wanted_until_ms[port] = now_ms.wrapping_add(WANTED_MS);
    }

    /// Time has passed.
    pub fn tick(&mut self, now_ms: u32) {
        for (port, until_ms) in self.wanted_until_ms.iter().enumerate() {
            if now_ms.wrapping_sub(*until_ms) <= u32::MAX / 2 {
                self.wanted &= !(1 << port);
            }
        }
        self.due = u8::MAX;
    }

    fn done(&mut self, port: usize) {
        self.due &= !(1 << port) | self.wanted;
    }
}

/// Looks at the sources of a burst's tasks.
#[cold]
#[inline(never)]
pub fn burst<B: Buf>(stages: &mut Stages, port: usize, packets: &[B]) {
    // What comes by way of a spine has the spine's MAC address.
    let by_spine = stages.network.spines().next().is_some();
    if by_spine || !stages.network.port(port).side.has_clients() {
        return stages.learning.done(port);
    }
    packets.iter().take(PREFETCH_AHEAD).for_each(Buf::prefetch);
    let (own, mut contradicted, mut has_packets) = (stages.network.port(port).mac, None, false);
    let whole = packets.iter().filter(|packet| !packet.is_segmented()).map(Buf::bytes);
    for frame in
        whole.filter(|frame| frame.len() >= ether::LEN).filter(|frame| is_udp_to(own, frame))
    {
        has_packets = true;
        let Some((slot, address, outcome)) = one(stages, port, frame) else { continue };
        if outcome == LearnOutcome::Conflict {
            contradicted = Some((slot, address));
        }
    }
    if let Some((slot, address)) = contradicted {
        // Its replies go elsewhere until the host that is known has answered or failed to.
        stages.liveness.probe(NeighbourProbe { port: port as u8, slot, address });
    }
    // Also when it showed nobody: where all clients are behind a router no burst ever does.
    if has_packets {
        stages.learning.done(port);
    }
}

/// A frame that is to the node itself, and long enough for a datagram.
fn is_udp_to(own: Mac, frame: &[u8]) -> bool {
    let least = match ether::ether_type(frame) {
        ether::IPV4 => udp::PAYLOAD,
        ether::IPV6 => udp::PAYLOAD_V6,
        _ => return false,
    };
    frame.len() >= least && ether::is_to(frame, own)
}

/// Takes what a frame shows of a client: its place, its address and what that changed. None when it shows nothing. Whether its
/// task will be taken is decided later.
fn one(stages: &Stages, port: usize, frame: &[u8]) -> Option<(Slot, u32, LearnOutcome)> {
    if ether::ether_type(frame) == ether::IPV6 {
        return one_v6(stages, port, frame);
    }
    let (network, address) = (&stages.network, stages.network.port(port));
    let (source, mac) = (ipv4::src(&frame[ether::LEN..]), ether::src(frame));
    if !address.reaches(source) || !network.is_client(source) || !network.may_be_hosts(mac) {
        return None;
    }
    let (neighbours, now_ms) = (&stages.neighbours, stages.now_ms());
    let slot = neighbours.find(port, source);
    let slot = slot.unwrap_or_else(|| neighbours.insert(port, source, now_ms));
    Some((slot, source, neighbours.learn(slot, mac, now_ms)))
}

/// As [`one`], of a frame with an IPv6 header; the host is named as [`crate::state::Neighbours::address`] has it.
fn one_v6(stages: &Stages, port: usize, frame: &[u8]) -> Option<(Slot, u32, LearnOutcome)> {
    let (network, own) = (&stages.network, stages.network.port(port).v6?);
    let (source, mac) = (ipv6::src(&frame[ether::LEN..]), ether::src(frame));
    let is_client = network.v6().is_some_and(|v6| v6.is_client(source));
    if !own.reaches(source) || !is_client || !network.may_be_hosts(mac) {
        return None;
    }
    let (neighbours, now_ms) = (&stages.neighbours, stages.now_ms());
    let slot = neighbours.find_v6(port, source);
    let slot = slot.unwrap_or_else(|| neighbours.insert_v6(port, source, now_ms));
    Some((slot, neighbours.address(slot), neighbours.learn(slot, mac, now_ms)))
}

#[cfg(test)]
mod tests {
    use crate::io::memory::FramePool;
    use crate::stage::fast::tests::{frame, stages_of, task};
    use crate::stage::{Side, Verdict};
    use crate::wire::ether;

    #[test]
    fn one_burst_between_two_ticks_is_looked_at_whomever_it_shows() {
        let pool = FramePool::new(4, 256);
        let mut stages = stages_of(Side::Both);
        let own = frame(task(1, false), &[]);
        let mut routed = own.clone();
        routed[ether::LEN + 12..ether::LEN + 16].copy_from_slice(&[10, 9, 0, 7]);
        let mut arp = own.clone();
        arp[12..14].copy_from_slice(&ether::ARP.to_be_bytes());
        for (frame, spends) in [(&own, true), (&routed, true), (&arp, false)] {
            stages.tick(0, 0);
            assert!(stages.learning.is_due(0));
            let mut burst = [pool.frame(frame).unwrap()];
            stages.process(0, 0, &mut burst, &mut [Verdict::Consumed; 1][..]);
            assert_eq!(!stages.learning.is_due(0), spends);
        }
    }
}
