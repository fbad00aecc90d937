//! The fast lane: a burst's leading run of plain tasks of one pool, each checked, scheduled and rewritten in
//! one go.
//!
//! Plain is the common task: whole in one packet, no IP options, nothing to object to. [`plain_task`] asks
//! only that, at fixed offsets; whatever it does not recognise ends the lane, and that packet and those behind
//! it take the stages one by one, which know every reason. A test holds that what passes here passes there
//! alike.

use super::network::{Network, PortAddress, Target};
use super::parse::{Kind, PREFETCH_AHEAD, Packet};
use super::{Stages, Verdict, rewrite};
use crate::io::Buf;
use crate::policy::{Lane, Pick, Task};
use crate::reason::DropReason;
use crate::state::{Counter, Neighbours};
use crate::wire::checksum::Sum;
use crate::wire::task::{self, Code, Extension};
use crate::wire::{ether, ipv4, udp};

/// Bytes that a plain task has at least.
const HEAD: usize = udp::PAYLOAD + task::LEN;
/// Offset of the IPv4 header.
const IP: usize = ether::LEN;
/// Offset of the UDP header.
const UDP: usize = ether::LEN + ipv4::LEN;
/// The set bits of a plain task's `kind` lie in here: only the extension's.
const KIND: u8 = task::EXTENSION_BIT;
const _: () = assert!(Code::NewTask as u8 == 0);

/// What the packets of a lane have in common, as it stands in them.
#[derive(Clone, Copy)]
struct Common {
    mac: u64,
    ip: [u8; 4],
    udp_port: [u8; 2],
    pool: [u8; 2],
}

impl Common {
    fn new(network: &Network, address: &PortAddress, pool: [u8; 2]) -> Self {
        Self {
            mac: address.mac.to_bits(),
            ip: address.ip.to_be_bytes(),
            udp_port: network.udp_port.to_be_bytes(),
            pool,
        }
    }
}

#[inline(always)]
fn bytes<const N: usize>(head: &[u8; HEAD], at: usize) -> [u8; N] {
    let mut bytes = [0; N];
    bytes.copy_from_slice(&head[at..at + N]);
    bytes
}

/// The frame is a plain task for this node and pool; whether with an extension.
#[inline(always)]
fn plain_task(common: &Common, frame: &[u8], verified: bool) -> Option<bool> {
    let head = frame.first_chunk::<HEAD>()?;
    let number = |at: usize| usize::from(u16::from_be_bytes(bytes(head, at)));
    let (total_len, udp_len) = (number(IP + 2), number(UDP + 4));
    let kind = head[udp::PAYLOAD];
    // Bit by bit instead of branch by branch: nearly all packets pass, so nothing is gained by stopping early.
    let headers = (u64::from_le_bytes(bytes(head, 0)) ^ common.mac) << 16 == 0
        && bytes(head, 12) == [0x08, 0x00, ipv4::PLAIN]
        && !ipv4::is_fragment(&head[IP..])
        && head[IP + 9] == ipv4::UDP
        && head[IP + 8] >= 2
        && bytes(head, IP + 16) == common.ip
        && bytes(head, UDP + 2) == common.udp_port
        && kind & !KIND == 0
        && bytes(head, udp::PAYLOAD + 1) == common.pool;
    let extended = kind != 0;
    let least = if extended { task::LEN + task::EXTENSION_LEN } else { task::LEN };
    let lengths = total_len <= frame.len() - IP
        && total_len >= ipv4::LEN + udp_len
        && udp_len >= udp::LEN + least;
    if !headers || !lengths {
        return None;
    }
    let whole = verified || (ip_is_whole(head) && udp_is_whole(head, frame, udp_len));
    whole.then_some(extended)
}

#[inline(always)]
fn ip_is_whole(head: &[u8; HEAD]) -> bool {
    let sum = Sum::default().chunk(&bytes(head, IP)).chunk(&bytes(head, IP + 8));
    sum.half_chunk(&bytes(head, IP + 16)).is_whole()
}

#[inline(always)]
fn udp_is_whole(head: &[u8; HEAD], frame: &[u8], udp_len: usize) -> bool {
    if bytes(head, UDP + 6) == [0, 0] {
        return true;
    }
    let addresses = Sum::default().chunk(&bytes(head, IP + 12));
    let pseudo = addresses.number(u16::from(ipv4::UDP)).number(udp_len as u16);
    let start = pseudo.chunk(&bytes(head, UDP)).chunk(&bytes(head, UDP + 8));
    start.bytes(&frame[UDP + 16..UDP + udp_len]).is_whole()
}

struct PlainTasks<'a, B> {
    network: &'a Network,
    neighbours: &'a Neighbours,
    targets: &'a [Target],
    common: Common,
    packets: &'a mut [B],
    verdicts: &'a mut [Verdict],
    at: usize,
    refused: usize,
}

/// Decides on the plain tasks at the front of a burst; returns how many packets it has dealt with.
#[inline]
pub fn burst<B: Buf>(
    stages: &mut Stages,
    port: usize,
    packets: &mut [B],
    verdicts: &mut [Verdict],
) -> usize {
    let network = &*stages.network;
    let address = network.port(port);
    let Some(first) = packets.first().filter(|_| address.side.has_clients()) else {
        return 0;
    };
    let Some(id) = first.bytes().get(udp::PAYLOAD + 1..udp::PAYLOAD + 3) else {
        return 0;
    };
    let id = [id[0], id[1]];
    let Some(pool) = network.pool(u16::from_be_bytes(id)) else {
        return 0;
    };
    let mut lane = PlainTasks {
        network,
        neighbours: &stages.neighbours,
        targets: network.members(pool),
        common: Common::new(network, address, id),
        packets,
        verdicts,
        at: 0,
        refused: 0,
    };
    stages.dispatchers[pool].schedule_each(&mut lane);
    let (done, refused) = (lane.at, lane.refused);
    stages.counters.add(Counter::Scheduled, (done - refused) as u64);
    if refused > 0 {
        stages.counters.drop(DropReason::NoMember, refused as u64);
    }
    done
}

impl<B: Buf> Lane for PlainTasks<'_, B> {
    #[inline(always)]
    fn next(&mut self) -> Option<Task> {
        if let Some(ahead) = self.packets.get(self.at + PREFETCH_AHEAD) {
            ahead.prefetch();
        }
        let packet = self.packets.get(self.at)?;
        if packet.is_segmented() {
            return None;
        }
        let extended = plain_task(&self.common, packet.bytes(), packet.checksums_verified())?;
        let class =
            if extended { Extension::parse(&packet.bytes()[udp::PAYLOAD..]).class } else { 0 };
        Some(Task { class })
    }

    #[inline(always)]
    fn put(&mut self, pick: Option<Pick>) {
        let at = self.at;
        self.at += 1;
        let (Some(packet), Some(verdict)) = (self.packets.get_mut(at), self.verdicts.get_mut(at))
        else {
            return;
        };
        let Some(pick) = pick else {
            self.refused += 1;
            *verdict = Verdict::Drop(DropReason::NoMember);
            return;
        };
        let target = self.targets[pick.member.index()];
        let scheduled = Packet {
            kind: Kind::Task,
            at: UDP as u16,
            worker: target.id,
            idle: pick.idle,
            server: target.server,
            ..Packet::REFUSED
        };
        *verdict =
            rewrite::towards_worker(self.network, self.neighbours, packet.bytes_mut(), &scheduled);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;

    use super::*;
    use crate::io::ring::FramePool;
    use crate::policy::{Core, Dispatcher};
    use crate::stage::network::{ServerSpec, Side};
    use crate::stage::{Connections, Stages};
    use crate::state::table::{PoolSpec, Spec, Table, WorkerSpec};
    use crate::wire::ether::Mac;
    use crate::wire::task::Header;
    use crate::wire::udp::Flow;

    const LEAF: u32 = 0x0A00_0101;
    const LEAF_MAC: Mac = Mac([2, 0, 0, 0, 0, 1]);
    const SERVER: u32 = 0x0A00_010B;

    fn stages() -> Stages {
        let workers = (0..8).map(|id| WorkerSpec { id, server: 0 }).collect();
        let pools = vec![PoolSpec { id: 0x0107, policy: "horus".to_owned(), workers }];
        let spec = Spec { cores: 1, servers: vec![SERVER], pools, ..Spec::default() };
        let table = Table::heap(&spec);
        let neighbours = table.neighbours();
        let mac = LEAF_MAC;
        let port = PortAddress { mac, ip: LEAF, prefix: 24, side: Side::Both, gateway: None };
        let mac = Some(Mac([2, 0, 0, 0, 1, 11]));
        let server = ServerSpec { ip: SERVER, mac, workers: (0..8).collect(), pool: 0x0107 };
        let network = Network::new(1234, vec![port], vec![0x0107], &[server], &neighbours).unwrap();
        let dispatcher =
            Dispatcher::new(&"horus".parse().unwrap(), table.view(0, 0), Core::ONLY, 7);
        let connections = Connections::new(64, 1000);
        let counters = table.counters(0);
        Stages::new(Arc::new(network), neighbours, vec![dispatcher], connections, counters)
    }

    fn task(seq: u16, extended: bool, more: bool, payload: &[u8]) -> Vec<u8> {
        let header = Header { extended, more, ..Header::new_task(0x0107, seq) };
        let mut bytes = vec![0; header.len()];
        header.emit(&mut bytes);
        bytes.extend_from_slice(payload);
        let mut frame = vec![0; udp::PAYLOAD + bytes.len()];
        frame[udp::PAYLOAD..].copy_from_slice(&bytes);
        let src_mac = Mac([2, 0, 0, 0, 1, 2]);
        let flow = Flow {
            src_mac,
            dst_mac: LEAF_MAC,
            src: 0x0A00_0102,
            dst: LEAF,
            src_port: 40_000,
            dst_port: 1234,
        };
        flow.emit(&mut frame, bytes.len());
        frame
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(512))]

        /// Packet for packet, the lane and the stages decide alike and write the same bytes.
        #[test]
        fn the_lane_does_what_the_stages_do(
            packets in proptest::collection::vec((
                any::<(u16, bool)>(), 0..8_u8,
                proptest::collection::vec(any::<u8>(), 0..40),
                proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..3),
                proptest::option::weighted(0.2, any::<prop::sample::Index>()),
            ), 1..40),
            unsummed: bool,
        ) {
            let pool = FramePool::new(4, 256);
            let (mut with, mut without) = (stages(), stages());
            for ((seq, extended), kind, payload, edits, cut) in packets {
                let mut frame = task(seq, extended, kind == 0, &payload);
                if unsummed {
                    frame[UDP + 6..UDP + 8].fill(0);
                }
                for (at, byte) in edits {
                    let at = at.index(frame.len());
                    frame[at] = byte;
                }
                if let Some(cut) = cut {
                    frame.truncate(cut.index(frame.len()));
                }
                let mut one = [pool.frame(&frame).unwrap()];
                let mut other = [pool.frame(&frame).unwrap()];
                let (mut first, mut second) = ([Verdict::Consumed], [Verdict::Consumed]);
                with.process(0, 1, &mut one, &mut first);
                without.process_in_stages(0, 1, &mut other, &mut second);
                prop_assert_eq!(first, second);
                prop_assert_eq!(one[0].bytes(), other[0].bytes());
            }
            for counter in Counter::ALL {
                prop_assert_eq!(with.counters.read(counter), without.counters.read(counter));
            }
            for reason in DropReason::ALL {
                prop_assert_eq!(with.counters.dropped(reason), without.counters.dropped(reason));
            }
        }
    }

    #[test]
    fn plain_tasks_take_the_lane() {
        let pool = FramePool::new(4, 256);
        for extended in [false, true] {
            let mut burst = [pool.frame(&task(1, extended, false, &[1; 8])).unwrap()];
            assert_eq!(super::burst(&mut stages(), 0, &mut burst, &mut [Verdict::Consumed]), 1);
        }
    }
}
