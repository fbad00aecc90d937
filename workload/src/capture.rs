//! Frames of a capture file, pcap or pcapng. Readers are the replay of captures and the advice on policies.

use std::fmt;
use std::io::BufRead;

use pcap_file::pcap::{PcapPacket, PcapReader};
use pcap_file::pcapng::blocks::interface_description::InterfaceDescriptionOption::{
    IfTsOffset, IfTsResol,
};
use pcap_file::pcapng::{Block, PcapNgReader};
use pcap_file::{DataLink, PcapError};

/// Magic numbers of pcap: microsecond and nanosecond files, in either byte order.
const PCAP: [u32; 4] = [0xA1B2_C3D4, 0xD4C3_B2A1, 0xA1B2_3C4D, 0x4D3C_B2A1];
/// Magic number of pcapng.
const PCAPNG: u32 = 0x0A0D_0D0A;

/// Format of a capture file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// The older format of tcpdump, which the tap of a node writes.
    Pcap,
    /// The format of Wireshark.
    PcapNg,
}

/// Frame of a capture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame<'a> {
    /// Captured bytes, which a snapshot length may have truncated.
    pub bytes: &'a [u8],
    /// Length of the frame on the link, in bytes.
    pub len: usize,
    /// Time of capture, in nanoseconds since 1970.
    pub at_ns: u64,
}

/// Reason why a capture cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FrameError {
    /// Number of the packet, from 1; 0 for the file's header. A faulty pcapng block that is no packet has the number of
    /// an adjacent packet.
    pub packet: u64,
    /// Reason.
    pub reason: String,
}

impl fmt::Display for FrameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.packet {
            0 => f.write_str(&self.reason),
            packet => write!(f, "packet {packet}: {}", self.reason),
        }
    }
}

impl Format {
    /// Returns the format of a file with these first bytes; `None` if it is no capture.
    #[must_use]
    pub fn of(first: &[u8]) -> Option<Self> {
        match u32::from_be_bytes(*first.first_chunk()?) {
            magic if PCAP.contains(&magic) => Some(Self::Pcap),
            PCAPNG => Some(Self::PcapNg),
            _ => None,
        }
    }

    /// Passes all frames of a file to `take`, in the order of the file.
    ///
    /// # Errors
    /// A damaged file, a link type other than Ethernet, or an error of `take`.
    pub fn read(
        self,
        file: impl BufRead,
        take: impl FnMut(Frame<'_>) -> Result<(), String>,
    ) -> Result<(), FrameError> {
        match self {
            Self::Pcap => read_pcap(file, take),
            Self::PcapNg => read_pcapng(file, take),
        }
    }
}

/// Reads a pcap file.
fn read_pcap(
    file: impl BufRead,
    mut take: impl FnMut(Frame<'_>) -> Result<(), String>,
) -> Result<(), FrameError> {
    let mut reader = PcapReader::new(file).map_err(|error| damaged(0, &error))?;
    // Reads raw packets and parses them here, because the reader's own parser uses the snapshot length of the header.
    let header = reader.header();
    check_link(header.datalink, 0)?;
    let mut number = 0;
    while let Some(packet) = reader.next_raw_packet() {
        number += 1;
        let packet = packet
            // The parser would reject truncated packets by the snapshot length, which their lengths on the link exceed.
            .and_then(|raw| PcapPacket::try_from_raw_packet(raw, header.ts_resolution, u32::MAX))
            .map_err(|error| damaged(number, &error))?;
        let at_ns = packet.timestamp.as_nanos() as u64;
        let frame = Frame { bytes: &packet.data, len: packet.orig_len as usize, at_ns };
        take(frame).map_err(|reason| FrameError { packet: number, reason })?;
    }
    Ok(())
}

/// Reads a pcapng file.
fn read_pcapng(
    file: impl BufRead,
    mut take: impl FnMut(Frame<'_>) -> Result<(), String>,
) -> Result<(), FrameError> {
    let mut reader = PcapNgReader::new(file).map_err(|error| damaged(0, &error))?;
    // Time resolution and offset (in seconds) of each interface.
    let mut clocks: Vec<(u8, i64)> = Vec::new();
    let mut number = 0;
    while let Some(block) = reader.next_block() {
        match block.map_err(|error| damaged(number + 1, &error))? {
            // Each section numbers its interfaces from 0.
            Block::SectionHeader(_) => clocks.clear(),
            Block::InterfaceDescription(interface) => {
                check_link(interface.linktype, number)?;
                let mut clock = (6, 0); // default: microseconds
                for option in &interface.options {
                    match option {
                        IfTsResol(resolution) => clock.0 = *resolution,
                        // The format has a signed number here, which the reader takes for an unsigned one.
                        IfTsOffset(seconds) => clock.1 = seconds.cast_signed(),
                        _ => {}
                    }
                }
                clocks.push(clock);
            }
            Block::EnhancedPacket(packet) => {
                number += 1;
                let problem = |text: &str| FrameError { packet: number, reason: text.to_owned() };
                let clock = clocks.get(packet.interface_id as usize);
                let clock =
                    clock.ok_or_else(|| problem("its interface has no description block"))?;
                // The reader takes the raw count of units for nanoseconds, whatever their resolution.
                let at_ns = since_epoch(packet.timestamp.as_nanos() as u64, *clock);
                let at_ns = at_ns.ok_or_else(|| problem("its time is out of range"))?;
                let len = packet.original_len as usize;
                let frame = Frame { bytes: &packet.data, len, at_ns };
                take(frame).map_err(|text| problem(&text))?;
            }
            Block::SimplePacket(_) | Block::Packet(_) => {
                number += 1;
                let text = "simple and obsolete packet blocks are not supported; convert with editcap -F pcapng";
                return Err(FrameError { packet: number, reason: text.to_owned() });
            }
            _ => {}
        }
    }
    Ok(())
}

/// Converts a pcapng time, in units of its resolution, to nanoseconds since 1970. The resolution is the negative
/// exponent of ten, or of two if its highest bit is set. `None` if a number overflows or the time is before 1970.
fn since_epoch(units: u64, (resolution, offset_s): (u8, i64)) -> Option<u64> {
    let exponent = u32::from(resolution & 0x7F);
    let base: u128 = if resolution & 0x80 == 0 { 10 } else { 2 };
    let per_second = base.checked_pow(exponent)?;
    // A product of 64 and 30 bits fits into 127 bits.
    let ns = (u128::from(units) * 1_000_000_000 / per_second).cast_signed();
    u64::try_from(ns + i128::from(offset_s) * 1_000_000_000).ok()
}

/// Refuses a link type other than Ethernet. `packets` is the number of packets read so far, which locates the error.
fn check_link(link: DataLink, packets: u64) -> Result<(), FrameError> {
    if link == DataLink::ETHERNET {
        return Ok(());
    }
    let reason = format!("its link type is {link:?}; only Ethernet is supported");
    Err(FrameError { packet: packets, reason })
}

/// Returns the error of a damaged capture at this packet, or at its start for 0.
fn damaged(packet: u64, error: &PcapError) -> FrameError {
    FrameError { packet, reason: format!("the capture is damaged or truncated: {error}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn impossible_resolution_has_no_time() {
        // 5 s in microseconds, plus an offset of 2 s. The unit of 10^-100 s overflows.
        assert_eq!(since_epoch(5_000_000, (6, 2)), Some(7_000_000_000));
        assert_eq!(since_epoch(1, (100, 0)), None);
    }

    #[test]
    fn negative_offsets_are_subtracted() {
        assert_eq!(since_epoch(5_000_000, (6, -2)), Some(3_000_000_000));
        assert_eq!(since_epoch(5_000_000, (6, -6)), None);
    }

    #[test]
    fn truncated_packets_are_read() {
        // A file in microseconds with a snapshot length of 20 bytes, and a packet of 60 bytes at 3 s.
        let numbers = [0xA1B2_C3D4_u32, 0x0002_0004, 0, 0, 20, 1, 3, 0, 20, 60];
        let mut file: Vec<u8> = numbers.iter().flat_map(|number| number.to_be_bytes()).collect();
        file.extend([7; 20]);
        let mut frames = Vec::new();
        let read = Format::Pcap.read(&file[..], |frame| {
            frames.push((frame.bytes.len(), frame.len, frame.at_ns));
            Ok(())
        });
        assert_eq!((read, frames), (Ok(()), vec![(20, 60, 3_000_000_000)]));
    }
}
