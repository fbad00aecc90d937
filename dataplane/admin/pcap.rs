//! Packet captures: files for a node's tap, a port that records its packets, and whole files of frames for tests and
//! traces.
//!
//! Files are pcap with nanosecond time stamps and link type Ethernet. Tcpdump, Wireshark and DPDK's pcap
//! driver read them.

use std::fmt;
use std::fs::File;
use std::io::{BufReader, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use pcap_file::pcap::{PcapHeader, PcapPacket, PcapReader, PcapWriter};
use pcap_file::{DataLink, TsResolution};

use wedjat_core::io::{Buf, Burst, Port};
use wedjat_core::state::files;

/// Maximum number of recorded bytes of a packet, as the file's header states it.
const SNAP_LEN: u32 = 65_535;

/// Reason why a capture cannot be written or read.
#[derive(Debug, thiserror::Error)]
pub enum CaptureError {
    /// The file cannot be created.
    #[error("cannot write the capture {path}: {reason}; choose a file in a folder that exists and is yours", path = path.display())]
    Create {
        /// Path of the file.
        path: PathBuf,
        /// The system's error.
        reason: std::io::Error,
    },
    /// The file cannot be opened.
    #[error("cannot read the capture {path}: {reason}", path = path.display())]
    Open {
        /// Path of the file.
        path: PathBuf,
        /// The system's error.
        reason: std::io::Error,
    },
    /// Writing failed half-way.
    #[error("the capture {path} is incomplete: {reason}; is the disk full?", path = path.display())]
    Write {
        /// Path of the file.
        path: PathBuf,
        /// Text of the error.
        reason: String,
    },
    /// The file is no capture of Ethernet frames, or is cut off.
    #[error("{path} is not a whole pcap file of Ethernet frames: {reason} (packet {packet}); convert others with editcap -F nsecpcap", path = path.display())]
    Format {
        /// Path of the file.
        path: PathBuf,
        /// Number of the invalid packet, from 1; 0 for the header.
        packet: usize,
        /// Text of the error.
        reason: String,
    },
}

/// A capture file open for writing.
pub struct Capture {
    path: PathBuf,
    writer: PcapWriter<BufWriter<File>>,
}

impl fmt::Debug for Capture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Capture").field("path", &self.path).finish_non_exhaustive()
    }
}

impl Capture {
    /// Creates the file, or empties an existing one, and starts a capture in it.
    fn create(path: &Path) -> Result<Self, CaptureError> {
        let refused = |reason| CaptureError::Create { path: path.to_owned(), reason };
        Self::in_file(File::create(path).map_err(refused)?, path)
    }

    /// Starts a capture in an empty file that the caller has created at `path`.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn in_file(file: File, path: &Path) -> Result<Self, CaptureError> {
        let file = BufWriter::new(file);
        let header = PcapHeader {
            snaplen: SNAP_LEN,
            datalink: DataLink::ETHERNET,
            ts_resolution: TsResolution::NanoSecond,
            ..PcapHeader::default()
        };
        let writer =
            PcapWriter::with_header(file, header).map_err(|error| incomplete(path, error))?;
        Ok(Self { path: path.to_owned(), writer })
    }

    /// Writes the first bytes of a packet of `len` bytes on the wire. `time` counts from the Unix epoch.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn write(&mut self, time: Duration, len: u32, bytes: &[u8]) -> Result<(), CaptureError> {
        let packet = PcapPacket::new(time, len, bytes);
        self.writer.write_packet(&packet).map(|_| ()).map_err(|error| incomplete(&self.path, error))
    }

    /// Flushes the file.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn finish(self) -> Result<(), CaptureError> {
        self.writer.into_writer().flush().map_err(|error| incomplete(&self.path, error))
    }
}

/// Converts an error of a write.
fn incomplete(path: &Path, error: impl std::error::Error) -> CaptureError {
    CaptureError::Write { path: path.to_owned(), reason: error_chain(&error) }
}

/// Returns the text of an error and its cause. `pcap-file` keeps the system's error in the source.
fn error_chain(error: &dyn std::error::Error) -> String {
    match error.source() {
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    }
}

/// A port with a record of all received and sent packets. A failed write ends the record. The file is written on the
/// packet path: for debugging, not for speed.
pub struct Tap<P: Port, C: FnMut() -> Duration> {
    port: P,
    clock: C,
    // `None` after a failed write: the port must go on.
    capture: Option<Capture>,
    failure: Option<CaptureError>,
    // Number of packets in the file.
    recorded: u64,
    // Copy of the packets to send, until the port returns the number of sent ones.
    pending: Vec<u8>,
    // Length of each of them.
    lengths: Vec<usize>,
}

impl<P: Port, C: FnMut() -> Duration> Tap<P, C> {
    /// Records the packets of `port` in the file `path`, with time stamps from `clock` (time since the Unix
    /// epoch).
    ///
    /// # Errors
    /// If the file cannot be created.
    pub fn new(port: P, path: &Path, clock: C) -> Result<Self, CaptureError> {
        Ok(Self {
            port,
            clock,
            capture: Some(Capture::create(path)?),
            failure: None,
            recorded: 0,
            pending: Vec::new(),
            lengths: Vec::new(),
        })
    }

    /// Returns the number of packets in the file so far.
    pub fn recorded(&self) -> u64 {
        self.recorded
    }

    /// Returns the wrapped port.
    pub fn inner(&mut self) -> &mut P {
        &mut self.port
    }

    /// Ends the recording and returns the port.
    ///
    /// # Errors
    /// If this write or an earlier one failed.
    pub fn finish(self) -> Result<P, CaptureError> {
        match (self.failure, self.capture) {
            (Some(failure), _) => Err(failure),
            (None, Some(capture)) => capture.finish().map(|()| self.port),
            (None, None) => Ok(self.port),
        }
    }

    /// Writes a packet to the capture. A failure ends the recording.
    fn record(&mut self, time: Duration, bytes: &[u8]) {
        let Some(capture) = &mut self.capture else { return };
        match capture.write(time, bytes.len() as u32, bytes) {
            Ok(()) => self.recorded += 1,
            Err(failure) => {
                self.capture = None;
                self.failure = Some(failure);
            }
        }
    }
}

impl<P: Port, C: FnMut() -> Duration> Port for Tap<P, C> {
    type Buf = P::Buf;

    /// Receives packets and records them, all with the time of this call.
    fn rx_burst(&mut self, burst: &mut Burst<P::Buf>) -> usize {
        let received = self.port.rx_burst(burst);
        if received > 0 {
            let time = (self.clock)();
            let first = burst.len() - received;
            for packet in &burst[first..] {
                self.record(time, packet.bytes());
            }
        }
        received
    }

    /// Sends packets and records those that the port accepts. Copies the bytes first, because sent packets are gone.
    fn tx_burst(&mut self, burst: &mut Burst<P::Buf>) -> usize {
        self.pending.clear();
        self.lengths.clear();
        for packet in burst.iter() {
            self.pending.extend_from_slice(packet.bytes());
            self.lengths.push(packet.bytes().len());
        }
        let sent = self.port.tx_burst(burst);
        if sent > 0 {
            let time = (self.clock)();
            // Moved out for the loop, because `record` borrows the whole tap.
            let (pending, lengths) =
                (std::mem::take(&mut self.pending), std::mem::take(&mut self.lengths));
            let mut rest = pending.as_slice();
            for &length in &lengths[..sent] {
                let (bytes, after) = rest.split_at(length);
                self.record(time, bytes);
                rest = after;
            }
            (self.pending, self.lengths) = (pending, lengths);
        }
        sent
    }

    fn is_removed(&self) -> bool {
        self.port.is_removed()
    }
}

/// Writes a capture of `frames` at intervals of 1 µs.
///
/// # Errors
/// If the file cannot be written.
pub fn write_frames<F: AsRef<[u8]>>(
    path: &Path,
    frames: impl IntoIterator<Item = F>,
) -> Result<(), CaptureError> {
    let mut capture = Capture::create(path)?;
    for (micros, frame) in (0..).zip(frames) {
        let frame = frame.as_ref();
        capture.write(Duration::from_micros(micros), frame.len() as u32, frame)?;
    }
    capture.finish()
}

/// Reads the frames of a capture, in its order.
///
/// # Errors
/// If the file cannot be read, is cut off, or is no capture of Ethernet frames.
pub fn read_frames(path: &Path) -> Result<Vec<Vec<u8>>, CaptureError> {
    Ok(read_packets(path)?.into_iter().map(|packet| packet.bytes).collect())
}

/// A packet of a capture.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CapturedPacket {
    /// Time since the Unix epoch.
    pub time: Duration,
    /// Length on the wire in bytes.
    pub len: u32,
    /// First bytes of the packet; all of them unless it was cut off.
    pub bytes: Vec<u8>,
}

/// Reads the packets of a capture, in its order.
///
/// # Errors
/// If the file cannot be read, is cut off, or is no capture of Ethernet frames.
pub fn read_packets(path: &Path) -> Result<Vec<CapturedPacket>, CaptureError> {
    let file = files::open_regular(path)
        .map_err(|reason| CaptureError::Open { path: path.to_owned(), reason })?;
    let malformed = |packet, reason| CaptureError::Format { path: path.to_owned(), packet, reason };
    let mut reader =
        PcapReader::new(BufReader::new(file)).map_err(|error| malformed(0, error_chain(&error)))?;
    if reader.header().datalink != DataLink::ETHERNET {
        return Err(malformed(0, format!("its link type is {:?}", reader.header().datalink)));
    }
    let PcapHeader { snaplen, ts_resolution, .. } = reader.header();
    // 0 means no limit: DPDK 26.07 writes it, and libpcap accepts it.
    let snaplen = if snaplen == 0 { u32::MAX } else { snaplen };
    let mut packets = Vec::new();
    while let Some(packet) = reader.next_raw_packet() {
        let packet = packet
            .and_then(|packet| PcapPacket::try_from_raw_packet(packet, ts_resolution, snaplen))
            .map_err(|error| malformed(packets.len() + 1, error_chain(&error)))?;
        let (time, len) = (packet.timestamp, packet.orig_len);
        packets.push(CapturedPacket { time, len, bytes: packet.data.into_owned() });
    }
    Ok(packets)
}

#[cfg(test)]
mod tests {
    use wedjat_core::io::memory::{Frame, FramePool, pair};

    use super::*;

    #[test]
    fn files_come_back_as_they_were_written() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.pcap");
        let frames: Vec<Vec<u8>> =
            (0..100u8).map(|byte| vec![byte; 14 + usize::from(byte) * 15]).collect();
        write_frames(&path, &frames).unwrap();
        assert_eq!(read_frames(&path).unwrap(), frames);
        write_frames(&path, Vec::<Vec<u8>>::new()).unwrap();
        assert!(read_frames(&path).unwrap().is_empty());
    }

    // promise: control.3
    #[test]
    fn capture_without_snap_length_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("unlimited.pcap");
        let frames = [vec![1; 60], vec![2; 1514]];
        write_frames(&path, &frames).unwrap();
        let mut file = std::fs::read(&path).unwrap();
        // Reads the file with this snap length in its header, at bytes 16 to 19. The writer's byte order is big-endian.
        let limited = |file: &mut Vec<u8>, snaplen: u32| {
            file[16..20].copy_from_slice(&snaplen.to_be_bytes());
            std::fs::write(&path, &*file).unwrap();
            read_frames(&path)
        };
        assert_eq!(limited(&mut file, 0).unwrap(), frames);
        assert!(matches!(limited(&mut file, 100), Err(CaptureError::Format { packet: 2, .. })));
    }

    #[test]
    fn tap_records_forwarded_packets_only() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tap.pcap");
        let pool = FramePool::new(16, 64);
        // Each direction has room for two packets.
        let (mut left, right) = pair(2, &pool);
        let mut tap = Tap::new(right, &path, || Duration::new(1, 5)).unwrap();
        assert!(left.send(&[1; 20]));
        // A packet that is already in the burst is not recorded as received.
        let mut burst: Burst<Frame> = Burst::new();
        burst.push(pool.frame(&[9; 9]).unwrap());
        assert_eq!(tap.rx_burst(&mut burst), 1);
        burst.clear();
        burst.extend([2u8, 3, 4].map(|byte| pool.frame(&[byte; 30]).unwrap()));
        assert_eq!(tap.tx_burst(&mut burst), 2);
        assert_eq!(tap.tx_burst(&mut burst), 0);
        assert_eq!(tap.recorded(), 3);
        tap.finish().unwrap();
        assert_eq!(read_frames(&path).unwrap(), [vec![1; 20], vec![2; 30], vec![3; 30]]);
    }

    #[test]
    fn unreadable_capture_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let absent = folder.path().join("no/such/file.pcap");
        let text = write_frames(&absent, [[0u8; 14]]).unwrap_err().to_string();
        assert!(text.contains("no/such/file.pcap") && text.contains("No such file"), "{text}");
        assert!(matches!(read_frames(&absent), Err(CaptureError::Open { .. })));

        let full = write_frames(Path::new("/dev/full"), [[0u8; 14]]);
        assert!(matches!(full, Err(CaptureError::Write { .. })));

        let cut = folder.path().join("cut.pcap");
        write_frames(&cut, [[1u8; 60], [2; 60]]).unwrap();
        let whole = std::fs::read(&cut).unwrap();
        std::fs::write(&cut, &whole[..whole.len() - 7]).unwrap();
        assert!(matches!(read_frames(&cut), Err(CaptureError::Format { packet: 2, .. })));
        std::fs::write(&cut, b"not a capture at all, by its first bytes").unwrap();
        assert!(matches!(read_frames(&cut), Err(CaptureError::Format { packet: 0, .. })));
    }
}
