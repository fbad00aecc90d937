//! Storms of packets of every kind from either side: well-formed, forged, damaged, truncated. The target is a [`Rig`],
//! a leaf in memory among emulated clients and workers. Attacks of other files send the packets of a [`Forger`], too.

use rand::{RngExt, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;
use wedjat::wire::arp::{Operation, Packet};
use wedjat::wire::checksum::PartialChecksum;
use wedjat::wire::ether::{self, Mac};
use wedjat::wire::task::{self, Code, Header, UDP_PORT};
use wedjat::wire::udp::{self, Flow};

use super::rigs::memory::{
    ATTACKER_MAC, CLIENTS, COUNT, HONEST, HONEST_MACS, INTRUDER_MAC, LEAF_IPS, LEAF_MACS, POOL,
    Pace, RACK_MACS, Rig, SECOND, SERVERS, Setup, WORKERS,
};
use super::rigs::packets::{self, CLIENT_PORT};
use super::{Account, Attack, Budget, Failure, attack_table};

/// Packets per second of emulated time on each side.
const RATE: f64 = 100_000.0;
/// Offset of the last byte that may be overwritten: the last one of the task header. The service time follows,
/// and its damage would keep the emulated workers busy for seconds.
const HEADERS: usize = udp::PAYLOAD + task::LEN - 1;
/// Time without forged packets after the storm, ns. The node must forget all unanswered tasks meanwhile.
const RECOVERY: u64 = 5 * SECOND;
/// Policies of the storms. They choose by idle list, load, reports or exact queues, or queue tasks at the node.
pub const POLICIES: [&str; 7] =
    ["horus", "horus-inflight", "racksched", "jsq", "jbsq(k=2)", "cfcfs", "pi"];

/// The attacks of this file.
pub static ATTACKS: &[Attack] = attack_table! {
    "storm-from-clients" Memory => |budget, account| storm(budget, account, &[CLIENTS]),
        "100,000 packets a second of all kinds, many of them damaged, from the clients' side";
    "storm-from-workers" Memory => |budget, account| storm(budget, account, &[WORKERS]),
        "the same from the workers' side, also with the servers' addresses";
    "storm-from-both" Memory => |budget, account| storm(budget, account, &[CLIENTS, WORKERS]),
        "the same from both sides";
};

/// Source of forged packets.
pub struct Forger(Xoshiro256PlusPlus);

impl Forger {
    /// Creates a forger. The same seed gives the same packets.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(Xoshiro256PlusPlus::seed_from_u64(seed))
    }

    /// Returns a random element.
    fn one_of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.0.random_range(0..choices.len())]
    }

    /// Returns the next packet for the node's port on this side. Damages half of the packets.
    pub fn packet(&mut self, side: usize) -> Vec<u8> {
        let mut frame = match self.0.random_range(0..16) {
            0 => self.raw(),
            1 | 2 => self.arp(side),
            3..8 => self.task(side),
            8..12 => self.reply(side),
            _ => self.any_header(side),
        };
        if self.0.random_bool(0.5) {
            self.damage(&mut frame);
        }
        frame
    }

    /// Returns random bytes.
    fn raw(&mut self) -> Vec<u8> {
        let mut frame = vec![0; self.0.random_range(0..1500)];
        frame.fill_with(|| self.0.random_range(0..=255));
        frame
    }

    /// Returns a random MAC address: known, broadcast, zero, the attacker's, or an invented one.
    fn mac(&mut self, side: usize) -> Mac {
        let any = Mac([2, 8, 0, 0, 0, self.0.random_range(0..=255)]);
        let known = [LEAF_MACS[side], Mac::BROADCAST, Mac::default(), HONEST_MACS[0], RACK_MACS[0]];
        let attacker = [ATTACKER_MAC, INTRUDER_MAC][side];
        self.one_of(&[known[0], known[1], known[2], known[3], known[4], attacker, any])
    }

    /// Returns a random IP address: known, special, a client's, or any.
    fn address(&mut self) -> u32 {
        let any = self.0.random_range(0..=u32::MAX);
        let client = 0x0A01_0100 + self.0.random_range(0..60_000);
        self.one_of(&[
            LEAF_IPS[0],
            LEAF_IPS[1],
            HONEST[0],
            HONEST[1],
            SERVERS[0],
            SERVERS[1],
            0,
            u32::MAX,
            0x7F00_0001, // 127.0.0.1
            0xE000_0001, // 224.0.0.1
            0x0A00_02C8, // 10.0.2.200, an absent worker host
            client,
            any,
        ])
    }

    /// Returns an ARP packet with random addresses, to the node or to all.
    fn arp(&mut self, side: usize) -> Vec<u8> {
        let operation = self.one_of(&[Operation::Request, Operation::Reply]);
        let packet = Packet {
            operation,
            sender_mac: self.mac(side),
            sender: self.address(),
            target_mac: self.mac(side),
            target: self.address(),
        };
        let dst = self.one_of(&[Mac::BROADCAST, LEAF_MACS[side]]);
        packets::arp(&packet, dst)
    }

    /// Returns the addresses of a datagram to the node, from a random MAC address.
    fn flow(&mut self, side: usize, src: u32, dst: u32, ports: (u16, u16)) -> Flow {
        let (src_mac, (src_port, dst_port)) = (self.mac(side), ports);
        Flow { src_mac, dst_mac: LEAF_MACS[side], src, dst, src_port, dst_port }
    }

    /// Returns a task, or a part of one, from a random source. Uses few sequence numbers, so that some parts
    /// have the number of a task.
    fn task(&mut self, side: usize) -> Vec<u8> {
        let code = self.one_of(&[Code::NewTask, Code::NewTask, Code::TaskContinuation]);
        let header = Header {
            code,
            extended: self.0.random_bool(0.5),
            more: self.0.random_bool(0.3),
            seq: self.0.random_range(0..=64),
            ..Header::new_task(POOL, 0)
        };
        let src = self.address();
        let flow = self.flow(side, src, LEAF_IPS[side], (CLIENT_PORT, UDP_PORT));
        // Each task is a microsecond of work, so that the workers have time left.
        packets::datagram(&flow, &header, 1, &1000_u32.to_be_bytes())
    }

    /// Returns a reply to a random address, in the name of an existing or unknown worker of an existing or unknown
    /// pool, from the right or the wrong server's address.
    fn reply(&mut self, side: usize) -> Vec<u8> {
        let worker = self.0.random_range(0..COUNT + 2);
        let header = Header {
            code: self.one_of(&[Code::TaskDone, Code::TaskDoneIdle, Code::TaskRefused]),
            extended: self.0.random_bool(0.3),
            src: worker,
            dst: 0,
            qlen: self.one_of(&[0, 1, 2, 100, u16::MAX]),
            ..Header::new_task(self.one_of(&[POOL, POOL, POOL, 9]), 0)
        };
        let src = self.one_of(&[SERVERS[0], SERVERS[1], SERVERS[usize::from(worker >= COUNT / 2)]]);
        let dst = self.address();
        let flow = self.flow(side, src, dst, (UDP_PORT, CLIENT_PORT));
        packets::datagram(&flow, &header, 1, &[0; 8])
    }

    /// Returns a packet with any header: registrations, codes of a spine, unknown pools.
    fn any_header(&mut self, side: usize) -> Vec<u8> {
        let code = (0..32).filter_map(Code::from_bits).collect::<Vec<_>>();
        let header = Header {
            code: self.one_of(&code),
            extended: self.0.random_bool(0.5),
            authenticated: self.0.random_bool(0.2),
            more: self.0.random_bool(0.5),
            pool: self.one_of(&[POOL, 0, 9, u16::MAX]),
            // Workers, an unknown id, the largest valid id, and an invalid one.
            src: self.one_of(&[0, 1, COUNT - 1, COUNT, 0x7FFE, u16::MAX]),
            dst: self.0.random_range(0..=u16::MAX),
            qlen: self.0.random_range(0..=u16::MAX),
            seq: self.0.random_range(0..=u16::MAX),
        };
        let (src, dst) = (self.address(), self.address());
        let ports =
            (self.one_of(&[UDP_PORT, CLIENT_PORT, 0]), self.one_of(&[UDP_PORT, CLIENT_PORT, 0]));
        let flow = self.flow(side, src, dst, ports);
        packets::datagram(&flow, &header, 1, &[0; 4])
    }

    /// Overwrites up to two bytes. In half of the cases truncates the frame or appends to it. In half of the cases
    /// then corrects the checksums.
    fn damage(&mut self, frame: &mut Vec<u8>) {
        for _ in 0..self.0.random_range(0..3) {
            if let Some(offset) =
                frame.len().checked_sub(1).map(|last| self.0.random_range(0..=last.min(HEADERS)))
            {
                frame[offset] = self.0.random_range(0..=255);
            }
        }
        match self.0.random_range(0..4) {
            0 => frame.truncate(self.0.random_range(0..=frame.len())),
            1 => frame.resize(frame.len() + self.0.random_range(0..400), 0),
            _ => {}
        }
        if self.0.random_bool(0.5) {
            fix_checksums(frame);
        }
    }
}

/// Corrects the IPv4 checksum, if the frame has one, and removes the UDP checksum. Without this, a node drops
/// a damaged packet before it parses the rest.
fn fix_checksums(frame: &mut [u8]) {
    if frame.len() < udp::PAYLOAD || ether::ether_type(frame) != ether::IPV4 {
        return;
    }
    // End of the IPv4 header, whose first byte has the length in units of 4 bytes. The header's checksum is at its
    // offset 10, and the UDP checksum at offset 6 of the next header.
    let end = ether::LEN + 4 * usize::from(frame[ether::LEN] & 0xF);
    if end < ether::LEN + 20 || end + udp::LEN > frame.len() {
        return;
    }
    let checksum_offset = ether::LEN + 10;
    frame[checksum_offset..checksum_offset + 2].fill(0);
    let checksum = PartialChecksum::default().bytes(&frame[ether::LEN..end]).checksum();
    frame[checksum_offset..checksum_offset + 2].copy_from_slice(&checksum.to_be_bytes());
    frame[end + 6..end + 8].fill(0);
}

/// Sends forged packets from the given sides. The ledger must balance after every poll, and an honest client
/// must be served afterwards.
fn storm(budget: &Budget, account: &mut Account, sides: &[usize]) -> Result<(), Failure> {
    for policy in POLICIES {
        let mut rig = Rig::new(&Setup { policy, seed: budget.seed, ..Setup::default() })?;
        let mut forger = Forger::new(budget.seed);
        let (mut pace, mut unbalanced) = (Pace::new(RATE), 0);
        let length = (budget.seconds * SECOND as f64) as u64;
        rig.advance(length, |rig| {
            for _ in 0..pace.due() {
                for &side in sides {
                    let frame = forger.packet(side);
                    let wire =
                        if side == CLIENTS { &mut rig.client_side } else { &mut rig.worker_side };
                    account.tried("packets", u64::from(wire.send(&frame)));
                }
            }
            unbalanced += u64::from(!rig.counters().balances());
        });
        account.check(
            format!("{policy}: received = sent on + consumed + dropped + held after every poll"),
            unbalanced == 0,
            format!("unbalanced after {unbalanced} polls"),
        );
        rig.advance(RECOVERY, |_| {});
        let remaining = (rig.outstanding(), rig.held());
        account.check(
            format!("{policy}: no task stays outstanding or held"),
            remaining == (0, 0),
            format!("{} outstanding, {} held", remaining.0, remaining.1),
        );
        // A forged ARP packet may have claimed the client's address. The client's own packets contradict the
        // claim. The host that the leaf assumes to be the client then has 120 ms to answer.
        rig.serve(0.1, |_| {})?;
        let served = rig.serve(1.0, |_| {})?;
        account.check_answered(
            format!("{policy}: every honest task is answered afterwards"),
            served.answered,
            served.sent,
        );
        account.check_buffers(policy, rig.leaked());
    }
    Ok(())
}
