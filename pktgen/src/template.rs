//! Template of task frames, built once per run. For each task, the generator copies it into a packet buffer, writes the
//! fields that differ, and updates the checksum instead of summing over the frame again.

use wedjat::wire::checksum::ChecksumDelta;
use wedjat::wire::ether::{self, Mac};
use wedjat::wire::task::{self, Extension, Header};
use wedjat::wire::{ipv4, ipv6, udp};

use crate::address::AnyFlow;
use crate::payload::{self, Work};

/// Shortest Ethernet frame without its FCS (IEEE 802.3, 3.2.7). Devices pad shorter ones.
const FRAME_MIN: usize = 60;
/// Longest frame, for an MTU of 1500 bytes.
pub const FRAME_MAX: usize = 1514;

/// Offset of the sequence number in the UDP payload, which begins with the task header.
const SEQ: usize = 9;
/// Offset of the extension's full sequence number.
const SEQ32: usize = 15;
/// Offset of the extension's class.
const CLASS: usize = 23;
// A field at an odd payload offset straddles two words of the checksum.
const _: () = assert!(SEQ % 2 == 1 && SEQ32 % 2 == 1 && CLASS % 2 == 1);
const _: () = assert!(task::LEN % 2 == 1 && task::EXTENSION_LEN.is_multiple_of(2));

/// Returns the offset of the UDP header after an IP header of `ip` bytes.
const fn segment(ip: usize) -> usize {
    ether::LEN + ip
}

/// Returns the frame length up to the padding, without the header extension.
const fn short(ip: usize) -> usize {
    segment(ip) + udp::LEN + task::LEN + payload::LEN
}

/// Returns the same length with the extension.
const fn extended(ip: usize) -> usize {
    short(ip) + task::EXTENSION_LEN
}

/// Fields that all tasks of one core share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskFrame {
    /// Addresses and ports. The source port is the first of [`TaskFrame::flows`].
    pub flow: AnyFlow,
    /// Number of consecutive source ports, so that receive-side scaling spreads the tasks.
    pub flows: u16,
    /// Pool of the tasks.
    pub pool: u16,
    /// Application id, from which the seeds of tasks derive.
    pub app: u32,
    /// True to send the header extension with the application id.
    pub extended: bool,
    /// Minimum length of the longest frame in bytes, up to [`FRAME_MAX`]. Frames are shorter than the longest one only
    /// in a replayed trace.
    pub frame_bytes: usize,
    /// True to send UDP checksums. Otherwise the field is 0, which RFC 768 allows over IPv4. IPv6 packets
    /// always have them (RFC 8200, 8.1).
    pub checksums: bool,
}

/// Fields that differ between tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Task {
    /// Sequence number.
    pub seq: u32,
    /// Requested service time.
    pub service_ns: u32,
    /// Class.
    pub class: u16,
}

impl Task {
    /// Returns the payload after the header of this application's task. Its seed follows from the task's id, so that
    /// the generator can check the answer without storing the task.
    #[inline]
    #[must_use]
    pub fn work(&self, app: u32) -> Work {
        let seed = payload::seed_of(app, self.seq);
        Work { service_ns: self.service_ns, operation: self.class, seed }
    }
}

/// A frame without source port and task fields, and the source port of the next task.
#[derive(Clone, Debug)]
pub struct Template {
    /// The longest frame.
    bytes: Vec<u8>,
    /// Length of the shortest frame.
    len_min: usize,
    /// True if frames have the header extension.
    extended: bool,
    is_v6: bool,
    /// True for IPv4 with the extension, so that one test selects the common case.
    is_common: bool,
    /// Application id of the tasks.
    app: u32,
    /// Offset of the bytes after the task header and its extension.
    work: usize,
    /// First source port.
    first_port: u16,
    /// Number of source ports.
    flows: u16,
    /// Index of the next flow.
    flow: u16,
}

impl Template {
    /// Builds the frame. [`Template::set_next_hop`] may set the next hop's MAC address later.
    #[must_use]
    pub fn new(frame: &TaskFrame) -> Self {
        let (app, extended) = (frame.app, frame.extended);
        let header = Header { extended, ..Header::new_task(frame.pool, 0) };
        let payload = frame.flow.payload();
        let work = payload + header.len();
        let len_min = (work + payload::LEN).max(FRAME_MIN);
        let len = len_min.max(frame.frame_bytes).min(FRAME_MAX);
        let mut bytes = vec![0; len];
        header.emit(&mut bytes[payload..]);
        if extended {
            Extension { app, ..Extension::default() }.emit(&mut bytes[payload..]);
        }
        // The source port stays 0, like all fields that `Template::write` fills in.
        frame.flow.emit(0, &mut bytes, len - payload);
        let is_v6 = matches!(frame.flow, AnyFlow::V6(_));
        // The checksum is the last field of the UDP header. Later updates do not change a 0.
        if !frame.checksums && !is_v6 {
            bytes[payload - 2..payload].fill(0);
        }
        let (first_port, flows) = (frame.flow.src_port(), frame.flows.max(1));
        let is_common = extended && !is_v6;
        Self { bytes, len_min, extended, is_v6, is_common, app, work, first_port, flows, flow: 0 }
    }

    /// Sets the next hop's MAC address.
    pub fn set_next_hop(&mut self, mac: Mac) {
        let src = ether::src(&self.bytes);
        ether::emit_addresses(&mut self.bytes, mac, src);
    }

    /// Returns the length of the longest frame.
    #[must_use]
    pub fn frame_len(&self) -> usize {
        self.bytes.len()
    }

    /// Returns the length of a frame with the minimum length `size`, limited to that of the longest frame. Tasks of a
    /// replayed trace have their own minimum; all others have the maximum `u16::MAX`.
    #[inline]
    #[must_use]
    pub fn len_for(&self, size: u16) -> usize {
        usize::from(size).max(self.len_min).min(self.bytes.len())
    }

    /// Returns the number of bytes after the task header and its extension in the longest frame, padding included. A
    /// correct echo has as many.
    #[must_use]
    pub fn work_len(&self) -> usize {
        self.bytes.len() - self.work
    }

    /// Writes the next task into `frame`, whose length is given by [`Template::len_for`]. Flows take turns.
    #[inline]
    pub fn write(&mut self, frame: &mut [u8], task: Task) {
        let port = self.first_port.wrapping_add(self.flow);
        self.flow = if self.flow + 1 == self.flows { 0 } else { self.flow + 1 };
        const IP: usize = ipv4::LEN;
        match self.is_common {
            true => self.fill::<IP, { extended(IP) }>(frame, port, task),
            false if self.is_v6 => return self.write_v6(frame, port, task),
            false => self.fill::<IP, { short(IP) }>(frame, port, task),
        }
        if frame.len() < self.bytes.len() {
            shorten(frame, (self.bytes.len() - frame.len()) as u16);
        }
    }

    /// Writes a task over IPv6. It is never inlined, so that IPv4 frames cost no additional instructions.
    #[inline(never)]
    fn write_v6(&self, frame: &mut [u8], port: u16, task: Task) {
        const IP: usize = ipv6::LEN;
        match self.extended {
            true => self.fill::<IP, { extended(IP) }>(frame, port, task),
            false => self.fill::<IP, { short(IP) }>(frame, port, task),
        }
        if frame.len() < self.bytes.len() {
            shorten_v6(frame, (self.bytes.len() - frame.len()) as u16);
        }
    }

    /// Copies the first `LEN` bytes of the template, which precede the padding, writes all fields, and zeroes the
    /// padding. `IP` is the length of the IP header. Both are constants, so that no bounds are checked.
    #[inline(always)]
    fn fill<const IP: usize, const LEN: usize>(&self, frame: &mut [u8], port: u16, task: Task) {
        let (Some(bytes), Some((frame, padding))) =
            (self.bytes.first_chunk::<LEN>(), frame.split_first_chunk_mut::<LEN>())
        else {
            return; // not a frame of this template
        };
        *frame = *bytes;
        let work = task.work(self.app);
        let payload = segment(IP) + udp::LEN;
        put(frame, segment(IP), port.to_be_bytes());
        put(frame, payload + SEQ, (task.seq as u16).to_be_bytes());
        put(frame, LEN - payload::LEN, work.bytes());
        // All fields except the port are at odd offsets.
        let mut delta = ChecksumDelta::default()
            .word(0, port)
            .straddling_word(0, task.seq as u16)
            .straddling_double_word(0, work.service_ns)
            .straddling_word(0, work.operation)
            .straddling_double_word(0, (work.seed >> 32) as u32)
            .straddling_double_word(0, work.seed as u32);
        // The constant lengths differ only by the extension.
        if LEN == extended(IP) {
            put(frame, payload + SEQ32, task.seq.to_be_bytes());
            put(frame, payload + CLASS, task.class.to_be_bytes());
            delta = delta.straddling_double_word(0, task.seq).straddling_word(0, task.class);
        }
        udp::update_checksum(&mut frame[segment(IP)..], delta);
        // The buffer may hold the padding of an earlier frame. The test avoids a call of memset for none.
        if !padding.is_empty() {
            padding.fill(0);
        }
    }
}

/// Shortens the lengths in a frame's headers by this many bytes of padding.
fn shorten(frame: &mut [u8], bytes: u16) {
    let packet = &mut frame[ether::LEN..];
    let ip_len = word(packet, 2);
    let checksum = ChecksumDelta::default().word(ip_len, ip_len - bytes).apply(word(packet, 10));
    put(packet, 2, (ip_len - bytes).to_be_bytes());
    put(packet, 10, checksum.to_be_bytes());
    shorten_segment(&mut frame[segment(ipv4::LEN)..], bytes);
}

/// Shortens the lengths over IPv6, which has no header checksum.
fn shorten_v6(frame: &mut [u8], bytes: u16) {
    let packet = &mut frame[ether::LEN..];
    let payload_len = word(packet, 4);
    put(packet, 4, (payload_len - bytes).to_be_bytes());
    shorten_segment(&mut frame[segment(ipv6::LEN)..], bytes);
}

/// Shortens the length in a UDP header.
fn shorten_segment(segment: &mut [u8], bytes: u16) {
    let udp_len = word(segment, 4);
    put(segment, 4, (udp_len - bytes).to_be_bytes());
    // The checksum covers the length twice: in the header and in the pseudo header.
    let delta = ChecksumDelta::default().word(udp_len, udp_len - bytes);
    udp::update_checksum(segment, delta.word(udp_len, udp_len - bytes));
}

/// Returns the big-endian word at an offset.
fn word(bytes: &[u8], offset: usize) -> u16 {
    u16::from_be_bytes([bytes[offset], bytes[offset + 1]])
}

/// Writes bytes at an offset.
#[inline(always)]
fn put<const N: usize>(frame: &mut [u8], offset: usize, bytes: [u8; N]) {
    frame[offset..offset + N].copy_from_slice(&bytes);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use wedjat::reason::DropReason;
    use wedjat::wire::udp::{Datagram, Flow};

    /// Creates a flow without the next hop's MAC address.
    fn flow<A>(src: A, dst: A) -> Flow<A> {
        let (src_mac, dst_mac) = (Mac([2, 0, 0, 0, 0, 1]), Mac::default());
        Flow { src_mac, dst_mac, src, dst, src_port: 65_530, dst_port: 1234 }
    }

    /// Creates the common fields of tasks over IPv4.
    fn frame(app: u32, extended: bool, frame_bytes: usize, checksums: bool) -> TaskFrame {
        let flow = AnyFlow::V4(flow(0x0A00_0102, 0x0A00_0101));
        TaskFrame { flow, flows: 64, pool: 3, app, extended, frame_bytes, checksums }
    }

    /// Changes the fields to IPv6.
    fn over_v6(frame: TaskFrame) -> TaskFrame {
        TaskFrame { flow: AnyFlow::V6(flow(0xFD00 << 112 | 2, 0xFD00 << 112 | 1)), ..frame }
    }

    /// Parses a datagram of either family, without its addresses. Checks the checksums too.
    fn parse(bytes: &[u8], is_v6: bool) -> Result<Datagram<()>, DropReason> {
        // Replaces the addresses by units, so that both families have one type.
        fn without_addresses<A>(
            Datagram { src_port, dst_port, udp_offset, end, .. }: Datagram<A>,
        ) -> Datagram<()> {
            Datagram { src: (), dst: (), src_port, dst_port, udp_offset, end }
        }
        match is_v6 {
            true => udp::parse_v6(bytes, false).map(without_addresses),
            false => udp::parse(bytes, false).map(without_addresses),
        }
    }

    proptest! {
        #[test]
        fn frames_say_what_the_task_is(
            seq in any::<u32>(), service_ns in any::<u32>(), class in any::<u16>(),
            app in any::<u32>(), extended in any::<bool>(), frame_bytes in 0..2000_usize,
            checksums in any::<bool>(), size in prop_oneof![0..2000_u16, Just(u16::MAX)], v6: bool,
        ) {
            let frame = frame(app, extended, frame_bytes, checksums);
            let mut template = Template::new(&if v6 { over_v6(frame) } else { frame });
            template.set_next_hop(Mac([2, 0, 0, 0, 0, 9]));
            let mut bytes = vec![0xAA; template.len_for(size)];
            let task = Task { seq, service_ns, class };
            template.write(&mut bytes, task);
            prop_assert!((FRAME_MIN..=FRAME_MAX).contains(&bytes.len()));
            prop_assert_eq!(ether::dst(&bytes), Mac([2, 0, 0, 0, 0, 9]));
            let datagram = parse(&bytes, v6).unwrap();
            let checksum = datagram.payload() - 2;
            prop_assert_eq!(bytes[checksum..checksum + 2] != [0, 0], checksums || v6);
            prop_assert_eq!(datagram.src_port, 65_530);
            let payload = &bytes[datagram.payload()..usize::from(datagram.end)];
            let header = Header::parse(payload).unwrap();
            prop_assert_eq!((header.pool, header.seq), (3, seq as u16));
            prop_assert_eq!(Work::parse(&payload[header.len()..]), Some(task.work(app)));
            let shorter = template.frame_len() - bytes.len();
            prop_assert_eq!(usize::from(datagram.end), bytes.len());
            prop_assert_eq!(template.work_len() - shorter, payload.len() - header.len());
            prop_assert_eq!(task.work(app).seed, payload::seed_of(app, seq));
            if extended {
                let expected = Extension { app, seq32: seq, service_ns: 0, class };
                prop_assert_eq!(Extension::parse(payload), expected);
            }
        }
    }

    #[test]
    fn flows_take_turns() {
        let mut template = Template::new(&TaskFrame { flows: 3, ..frame(1, true, 0, true) });
        let mut bytes = vec![0; template.frame_len()];
        let ports: Vec<_> = (0..7)
            .map(|seq| {
                template.write(&mut bytes, Task { seq, service_ns: 1, class: 1 });
                udp::parse(&bytes, false).unwrap().src_port
            })
            .collect();
        assert_eq!(ports, [65_530, 65_531, 65_532, 65_530, 65_531, 65_532, 65_530]);
    }
}
