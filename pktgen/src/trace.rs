//! Trace of tasks: send time, class, service time and size of each task.
//!
//! A text trace has one task per line. Empty lines and lines that begin with `#` are skipped:
//!
//! ```text
//! time_us,class,service_us,size
//! 0,1,40,0
//! 12.5,2,650,1000
//! ```
//!
//! | column | meaning | allowed |
//! |---|---|---|
//! | `time_us` | send time, in microseconds; only the time since the first task counts | a decimal number, never below that of the line before |
//! | `class` | class of the task | 1 to 64 |
//! | `service_us` | requested service time, in microseconds | 0 to 4294967.295 |
//! | `size` | minimum frame size, in bytes | 0 to 1514 |
//!
//! A trace can also be a capture, pcap or pcapng. Its single-packet tasks are replayed; all other packets are
//! counted by kind. The file is read whole. A task takes 16 bytes of memory.

use std::collections::BTreeMap;
use std::fmt;
use std::io::{BufRead, BufReader};
use std::ops::Range;
use std::path::{Path, PathBuf};

use wedjat::reason::DropReason;
use wedjat::state::files;
use wedjat::wire::task::{Code, Extension, Header};
use wedjat::wire::udp::{self, Datagram};
use wedjat::wire::{ether, vlan};
use wedjat_workload::capture::Format;

use crate::neighbour::Message;
use crate::payload::{self, Work};
use crate::service::CLASSES_MAX;
use crate::template::FRAME_MAX;

/// Columns of a text trace, in order.
const COLUMNS: [&str; 4] = ["time_us", "class", "service_us", "size"];
/// Maximum length of a trace. A time longer than a year is a mistake, such as a wrong unit. Below it, a
/// floating-point number holds a time to within 2 ns.
const SPAN_MAX_NS: u64 = 365 * 86_400 * 1_000_000_000;

/// Task of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Send time, in nanoseconds since the first task.
    pub at_ns: u64,
    /// Requested service time, in nanoseconds.
    pub service_ns: u32,
    /// Class of the task.
    pub class: u16,
    /// Minimum frame size, in bytes.
    pub size: u16,
}

/// Checked trace: it has at least one task, times never decrease, and all values are in range.
#[derive(Clone, Debug, PartialEq)]
pub struct Trace {
    path: PathBuf,
    /// Tasks in the order of their times, which count from the first task.
    tasks: Box<[Entry]>,
    /// Number of tasks and mean service time in nanoseconds, by class; index 0 is class 1.
    classes: Vec<(u64, f64)>,
    /// Number of skipped packets, by kind.
    skipped: BTreeMap<&'static str, u64>,
}

/// Error of a trace that cannot be replayed.
#[derive(Debug, thiserror::Error)]
#[error("cannot replay {}{location}: {problem}", path.display())]
pub struct TraceError {
    path: PathBuf,
    location: TraceLocation,
    problem: String,
}

/// Position of an error in a file.
#[derive(Clone, Copy, Debug)]
enum TraceLocation {
    /// The whole file.
    Whole,
    /// Line, from 1.
    Line(u64),
    /// Packet, from 1.
    Packet(u64),
}

impl fmt::Display for TraceLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Whole => Ok(()),
            Self::Line(number) => write!(f, ", line {number}"),
            Self::Packet(number) => write!(f, ", packet {number}"),
        }
    }
}

/// Position and text of a problem, without the file's name.
type Problem = (TraceLocation, String);

impl Trace {
    /// Reads a trace in any of its formats.
    ///
    /// # Errors
    /// If the file cannot be read, or if its content is invalid. The error names the position, the problem
    /// and the allowed values.
    pub fn read(path: &Path) -> Result<Self, TraceError> {
        let mut tasks = TraceBuilder::default();
        read(path, &mut tasks)
            .and_then(|()| tasks.finish(path))
            .map_err(|(location, problem)| TraceError { path: path.to_owned(), location, problem })
    }

    /// Returns the path of the file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the tasks in the order of their times. The first is at 0.
    #[must_use]
    pub fn tasks(&self) -> &[Entry] {
        &self.tasks
    }

    /// Returns the highest class of a task, as the number of classes to report.
    #[must_use]
    pub fn classes(&self) -> usize {
        self.classes.len()
    }

    /// Returns the mean service time of a class; 0 if it has no task.
    #[must_use]
    pub fn class_mean_ns(&self, class: u16) -> f64 {
        let index = usize::from(class).checked_sub(1);
        index.and_then(|index| self.classes.get(index)).map_or(0.0, |(_, mean_ns)| *mean_ns)
    }

    /// Returns the mean service time of all tasks.
    #[must_use]
    pub fn mean_ns(&self) -> f64 {
        let sum: f64 = self.classes.iter().map(|(tasks, mean_ns)| *tasks as f64 * mean_ns).sum();
        sum / self.tasks.len() as f64
    }

    /// Returns the largest minimum frame size of a task, in bytes.
    #[must_use]
    pub fn size_max(&self) -> usize {
        self.tasks.iter().map(|task| usize::from(task.size)).max().unwrap_or_default()
    }

    /// Returns the number of skipped packets of a capture, by kind.
    #[must_use]
    pub fn skipped(&self) -> &BTreeMap<&'static str, u64> {
        &self.skipped
    }
}

/// Reads a file, whose first bytes select its format.
fn read(path: &Path, tasks: &mut TraceBuilder) -> Result<(), Problem> {
    let unreadable = |error: std::io::Error| (TraceLocation::Whole, error.to_string());
    let mut file = BufReader::new(files::open_regular(path).map_err(unreadable)?);
    let Some(format) = Format::of(file.fill_buf().map_err(unreadable)?) else {
        return read_lines(file, tasks);
    };
    let frames = format.read(file, |frame| take_frame(frame.bytes, frame.at_ns, tasks));
    frames.map_err(|error| match error.packet {
        0 => (TraceLocation::Whole, error.reason),
        packet => (TraceLocation::Packet(packet), error.reason),
    })
}

/// Trace under construction.
#[derive(Default)]
struct TraceBuilder {
    /// Tasks so far, with times from the first one.
    tasks: Vec<Entry>,
    /// Times of the first and of the last task, in nanoseconds of the file's clock.
    times: Option<(u64, u64)>,
    /// Number of tasks and sum of their service times in nanoseconds, by class; index 0 is class 1.
    classes: Vec<(u64, u64)>,
    /// Number of skipped packets, by kind.
    skipped: BTreeMap<&'static str, u64>,
}

impl TraceBuilder {
    /// Adds a task. Its time may have any origin; the trace starts at the first task.
    ///
    /// # Errors
    /// If the time decreases, or is more than a year after the first.
    fn push(&mut self, entry: Entry) -> Result<(), String> {
        let (first, last) = *self.times.get_or_insert((entry.at_ns, entry.at_ns));
        if entry.at_ns < last {
            let early = Micros(last - entry.at_ns);
            return Err(format!(
                "its time is {early} us before the previous task's; sort the tasks by time"
            ));
        }
        if entry.at_ns - first > SPAN_MAX_NS {
            return Err(
                "its time is more than a year after the first task's; check the unit of time_us"
                    .to_owned(),
            );
        }
        let class = usize::from(entry.class);
        if class > self.classes.len() {
            self.classes.resize(class, (0, 0));
        }
        let (tasks, sum_ns) = &mut self.classes[class - 1];
        (*tasks, *sum_ns) = (*tasks + 1, *sum_ns + u64::from(entry.service_ns));
        self.times = Some((first, entry.at_ns));
        self.tasks.push(Entry { at_ns: entry.at_ns - first, ..entry });
        Ok(())
    }

    /// Returns the trace, if it has a task.
    fn finish(self, path: &Path) -> Result<Trace, Problem> {
        if self.tasks.is_empty() {
            let problem = match self.skipped.is_empty() {
                true => "no task found".to_owned(),
                false => format!("no task found, but {}", SkippedPackets(&self.skipped)),
            };
            return Err((TraceLocation::Whole, problem));
        }
        let mean = |(tasks, sum_ns): (u64, u64)| (tasks, sum_ns as f64 / tasks.max(1) as f64);
        let classes = self.classes.into_iter().map(mean).collect();
        let (path, tasks) = (path.to_owned(), self.tasks.into_boxed_slice());
        Ok(Trace { path, tasks, classes, skipped: self.skipped })
    }

    /// Counts a skipped packet.
    fn skip(&mut self, kind: &'static str) {
        *self.skipped.entry(kind).or_default() += 1;
    }
}

/// Number of packets that are not tasks, by kind.
pub struct SkippedPackets<'a>(pub &'a BTreeMap<&'static str, u64>);

impl fmt::Display for SkippedPackets<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} other packets (", self.0.values().sum::<u64>())?;
        for (i, (kind, packets)) in self.0.iter().enumerate() {
            write!(f, "{}{kind} {packets}", if i == 0 { "" } else { ", " })?;
        }
        write!(f, ")")
    }
}

/// Nanoseconds, displayed as microseconds.
struct Micros(u64);

impl fmt::Display for Micros {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = format!("{}.{:03}", self.0 / 1000, self.0 % 1000);
        f.write_str(text.trim_end_matches('0').trim_end_matches('.'))
    }
}

/// Reads a text trace.
fn read_lines(file: impl BufRead, tasks: &mut TraceBuilder) -> Result<(), Problem> {
    let mut has_header = false;
    for (number, line) in (1..).zip(file.lines()) {
        let problem = |problem| (TraceLocation::Line(number), problem);
        let line =
            line.map_err(|error| problem(format!("{error}; a trace is text or a capture")))?;
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let fields: Vec<_> = line.split(',').map(str::trim).collect();
        if !has_header {
            if fields != COLUMNS {
                let columns = COLUMNS.join(",");
                let shown: String = line.chars().take(80).collect();
                return Err(problem(format!("`{shown}` is not the header `{columns}`")));
            }
            has_header = true;
            continue;
        }
        entry(&fields).and_then(|entry| tasks.push(entry)).map_err(problem)?;
    }
    Ok(())
}

/// Parses the fields of a line.
fn entry(fields: &[&str]) -> Result<Entry, String> {
    let [time, class, service, size] = fields else {
        let columns = COLUMNS.join(",");
        return Err(format!("{} values found; give the four of `{columns}`", fields.len()));
    };
    let decimal = "a decimal number of microseconds of at least 0, as in 12.5";
    let refusal = |column: usize, text: &str, allowed: &str| {
        format!("{} is `{text}`, but must be {allowed}", COLUMNS[column])
    };
    let integer = |column: usize, text: &str, low: usize, high: usize| {
        let number =
            text.parse().ok().filter(|number| (low..=high).contains(&usize::from(*number)));
        let allowed = || format!("a whole number, {low} to {high}");
        number.ok_or_else(|| refusal(column, text, &allowed()))
    };
    let service_ns = nanoseconds(service).ok_or_else(|| refusal(2, service, decimal))?;
    Ok(Entry {
        at_ns: nanoseconds(time).ok_or_else(|| refusal(0, time, decimal))?,
        class: integer(1, class, 1, CLASSES_MAX)?,
        service_ns: u32::try_from(service_ns).map_err(|_| {
            refusal(2, service, &format!("at most {} us", Micros(u64::from(u32::MAX))))
        })?,
        size: integer(3, size, 0, FRAME_MAX)?,
    })
}

/// Parses microseconds to nanoseconds, and truncates. Uses integers, because a floating-point number cannot
/// hold all digits of a time since 1970.
fn nanoseconds(text: &str) -> Option<u64> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, "0"));
    let are_digits =
        |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if !are_digits(whole) || !are_digits(fraction) {
        return None;
    }
    // Pads the fraction with zeros to three digits, or cuts it.
    let fraction: u64 = format!("{fraction:0<3}")[..3].parse().ok()?;
    whole.parse::<u64>().ok()?.checked_mul(1000)?.checked_add(fraction)
}

/// Adds the frame's task, or counts the frame as skipped.
///
/// # Errors
/// If the task's frame is too long, its class is invalid, or its time is (see [`TraceBuilder::push`]).
fn take_frame(frame: &[u8], at_ns: u64, tasks: &mut TraceBuilder) -> Result<(), String> {
    match task(frame, at_ns) {
        Ok(_) if frame.len() > FRAME_MAX => {
            Err(format!("{} bytes; at most {FRAME_MAX} are allowed", frame.len()))
        }
        Ok(entry) if !(1..=CLASSES_MAX).contains(&usize::from(entry.class)) => {
            Err(format!("its class is {}, but must be 1 to {CLASSES_MAX}", entry.class))
        }
        Ok(entry) => tasks.push(entry),
        Err(kind) => {
            tasks.skip(kind);
            Ok(())
        }
    }
}

/// Parses the task in a frame. For any other frame, returns the kind under which it counts as skipped. Checksums are
/// ignored: most machines capture packets before the device fills them in.
fn task(frame: &[u8], at_ns: u64) -> Result<Entry, &'static str> {
    if frame.len() < ether::LEN {
        return Err("runt");
    }
    let payload = match ether::ether_type(frame) {
        ether::ARP => return Err("arp"),
        ether::IPV6 if Message::is_neighbour_discovery(frame) => return Err("neighbour_discovery"),
        ether::IPV4 => udp::parse(frame, true).map(|datagram| payload_range(&datagram)),
        ether::IPV6 => udp::parse_v6(frame, true).map(|datagram| payload_range(&datagram)),
        _ => Err(vlan::reason(frame)),
    };
    // A coalesced packet can end beyond 64 KiB. The 16-bit end of its datagram then wraps around, and its range is
    // invalid.
    let payload = payload.and_then(|range| frame.get(range).ok_or(DropReason::UdpLength));
    let payload = payload.map_err(DropReason::name)?;
    let header = Header::parse(payload).map_err(|reason| reason.name())?;
    match header.code {
        Code::NewTask if header.more => return Err("task_of_several_packets"),
        Code::NewTask => {}
        Code::TaskContinuation => return Err("task_of_several_packets"),
        _ => return Err("no_task"),
    }
    let extension = if header.extended { Extension::parse(payload) } else { Extension::default() };
    let work = Work::parse(&payload[header.len()..]).unwrap_or_default();
    let service_ns = payload::service_ns(payload, &header);
    Ok(Entry {
        at_ns,
        // The payload holds the requested time. A task without that payload has it in the extension, if at
        // all.
        service_ns: service_ns.unwrap_or(extension.service_ns),
        // The extension and the payload's operation both name the class; 0 means that it is unknown.
        class: [extension.class, work.operation].into_iter().find(|class| *class > 0).unwrap_or(1),
        size: frame.len() as u16,
    })
}

/// Returns the range of a datagram's payload in its frame.
fn payload_range<A>(datagram: &Datagram<A>) -> Range<usize> {
    datagram.payload()..usize::from(datagram.end)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::address::Addresses;
    use crate::neighbour;
    use crate::target::Target;
    use crate::template::{Task, Template};
    use pcap_file::pcap::{PcapHeader, PcapWriter, RawPcapPacket};
    use pcap_file::{DataLink, TsResolution};
    use std::borrow::Cow;
    use std::time::Duration;
    use wedjat::wire::ether::Mac;

    /// First line of a text trace.
    const HEADER: &str = "time_us,class,service_us,size\n";

    /// Reads a trace from `bytes`. Errors name `FILE` instead of the path.
    fn read(bytes: &[u8]) -> Result<Trace, String> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), bytes).unwrap();
        let path = file.path().display().to_string();
        Trace::read(file.path()).map_err(|error| error.to_string().replace(&path, "FILE"))
    }

    /// Creates the expected task.
    fn entry(at_ns: u64, class: u16, service_ns: u32, size: u16) -> Entry {
        Entry { at_ns, service_ns, class, size }
    }

    #[test]
    fn lines_are_tasks() {
        let lines = "# from 1 May\n\n time_us, class,service_us,size\n1700000000000000.001,1,40,0\r\n\
                     # later\n1700000000000012.5,3,0.5,1514\n1700000000000012.5,1,60.0009,85";
        let trace = read(lines.as_bytes()).unwrap();
        // Times count from the first task's. A fourth decimal is truncated.
        let expected =
            [entry(0, 1, 40_000, 0), entry(12_499, 3, 500, 1514), entry(12_499, 1, 60_000, 85)];
        assert_eq!(trace.tasks(), expected);
        assert_eq!((trace.classes(), trace.size_max()), (3, 1514));
        assert_eq!([1, 2, 3, 4].map(|class| trace.class_mean_ns(class)), [50e3, 0.0, 500.0, 0.0]);
        assert_eq!(trace.mean_ns().round(), 33_500.0);
    }

    // promise: measurement.1
    #[test]
    fn invalid_trace_is_refused_with_its_line() {
        let line = |line: &str| format!("{HEADER}5,1,40,0\n{line}\n");
        for (text, expected) in [
            (String::new(), "FILE: no task found"),
            (HEADER.to_owned(), "FILE: no task found"),
            (
                "5,1,40,0\n".to_owned(),
                "line 1: `5,1,40,0` is not the header `time_us,class,service_us,size`",
            ),
            ("time,class\n".to_owned(), "line 1: `time,class` is not the header"),
            (line("6,1,40"), "line 3: 3 values found; give the four of `time_us,"),
            (line("4.999,1,40,0"), "line 3: its time is 0.001 us before the previous task's; sort"),
            (line("NaN,1,40,0"), "line 3: time_us is `NaN`, but must be a decimal number"),
            (line("-1,1,40,0"), "line 3: time_us is `-1`, but must be"),
            (line("1e3,1,40,0"), "line 3: time_us is `1e3`, but must be"),
            (line(",1,40,0"), "line 3: time_us is ``, but must be"),
            (line("99999999999999999999,1,40,0"), "line 3: time_us is `99999999999999999999`"),
            (line("99999999999999,1,40,0"), "line 3: its time is more than a year after"),
            (line("6,0,40,0"), "line 3: class is `0`, but must be a whole number, 1 to 64"),
            (line("6,65,40,0"), "line 3: class is `65`"),
            (line("6,a,40,0"), "line 3: class is `a`"),
            (line("6,1,-2,0"), "line 3: service_us is `-2`, but must be a decimal number"),
            (
                line("6,1,4294968,0"),
                "line 3: service_us is `4294968`, but must be at most 4294967.295 us",
            ),
            (line("6,1,40,1515"), "line 3: size is `1515`, but must be a whole number, 0 to 1514"),
            (line("6,1,40,-1"), "line 3: size is `-1`"),
        ] {
            let error = read(text.as_bytes()).unwrap_err();
            assert!(error.starts_with("cannot replay FILE"), "{error}");
            assert!(error.contains(expected), "{text}: {error}");
        }
        let error = read(b"time_us,class\xFF").unwrap_err();
        assert!(error.contains("line 1") && error.contains("text or a capture"), "{error}");
        let error = Trace::read(Path::new("/no/trace.csv")).unwrap_err().to_string();
        assert!(error.contains("/no/trace.csv") && error.contains("No such file"), "{error}");
    }

    /// Returns the frame of a task as the generator sends it.
    fn frame(class: u16, service_ns: u32, extended: bool) -> Vec<u8> {
        let target = Target { extended, ..Target::new(Mac([2, 0, 0, 0, 0, 1]), 1, 2) };
        let mut template = Template::new(&target.frame(7));
        let mut bytes = vec![0; template.frame_len()];
        template.write(&mut bytes, Task { seq: 9, service_ns, class });
        bytes
    }

    /// Returns six frames: a task, an answer, a runt, a tagged task, a task cut off, and a task without extension.
    fn frames() -> Vec<Vec<u8>> {
        let mut answer = frame(1, 5, true);
        answer[udp::PAYLOAD] = Code::TaskDone as u8;
        let mut tagged = frame(1, 5, true);
        tagged[12..14].copy_from_slice(&vlan::TAG.to_be_bytes());
        let cut = frame(1, 5, true)[..60].to_vec();
        vec![frame(2, 9_000, true), answer, vec![0; 9], tagged, cut, frame(3, 7_000, false)]
    }

    /// Returns the expected counts of [`frames`] that are not tasks.
    fn skipped() -> BTreeMap<&'static str, u64> {
        let cut = udp::parse(&frame(1, 5, true)[..60], true).unwrap_err().name();
        BTreeMap::from([("no_task", 1), ("runt", 1), ("vlan_tag", 1), (cut, 1)])
    }

    /// Creates a capture of these frames, 1.5 us apart.
    fn pcap(frames: &[Vec<u8>]) -> Vec<u8> {
        let ts_resolution = TsResolution::NanoSecond;
        let header = PcapHeader { snaplen: 0, ts_resolution, ..PcapHeader::default() };
        let mut writer = PcapWriter::with_header(Vec::new(), header).unwrap();
        for (i, frame) in (0..).zip(frames) {
            let time = Duration::new(1_700_000_000, 1 + i * 1500);
            let raw = RawPcapPacket {
                ts_sec: time.as_secs() as u32,
                ts_frac: time.subsec_nanos(),
                incl_len: frame.len() as u32,
                orig_len: frame.len() as u32,
                data: Cow::Borrowed(frame),
            };
            writer.write_raw_packet(&raw).unwrap();
        }
        writer.into_writer()
    }

    // promise: measurement.1
    #[test]
    fn capture_tasks_are_read_and_others_counted() {
        let bytes = pcap(&frames());
        let trace = read(&bytes).unwrap();
        // Frames have 85 bytes with the header extension, and 69 without.
        assert_eq!(trace.tasks(), [entry(0, 2, 9_000, 85), entry(7_500, 3, 7_000, 69)]);
        assert_eq!(trace.skipped(), &skipped());
        // A capture cut off anywhere is rejected, or ends with a whole packet.
        for len in 4..bytes.len() {
            if let Err(error) = read(&bytes[..len]) {
                assert!(error.contains("truncated") || error.contains("no task"), "{len}: {error}");
            }
        }
        let error = read(&pcap(&frames()[1..2])).unwrap_err();
        assert!(error.contains("no task found, but 1 other packets (no_task 1)"), "{error}");
        let mut large = frame(1, 1, true);
        large.resize(1515, 0);
        let error = read(&pcap(&[large])).unwrap_err();
        assert!(error.contains("packet 1: 1515 bytes; at most 1514 are allowed"), "{error}");
        let error = read(&pcap(&[frame(65, 1, true)])).unwrap_err();
        assert!(error.contains("packet 1: its class is 65, but must be 1 to 64"), "{error}");
    }

    #[test]
    fn tasks_over_ipv6_are_taken_as_well() {
        let addresses = Addresses::new("fd00::1".parse().unwrap(), None, None).unwrap();
        let target = Target::to(Mac([2, 0, 0, 0, 0, 1]), addresses);
        let mut template = Template::new(&target.frame(7));
        let mut task = vec![0; template.frame_len()];
        template.write(&mut task, Task { seq: 9, service_ns: 9_000, class: 2 });
        let mut request = vec![0; neighbour::request_len(&addresses)];
        neighbour::write_request(&addresses, target.mac, &mut request);
        let mut fragment = task.clone();
        fragment[20] = 44; // next header: fragment
        // The UDP checksum is at offset 60.
        let no_checksum = [&task[..60], &[0, 0], &task[62..]].concat();
        let trace = read(&pcap(&[task, request, fragment, no_checksum])).unwrap();
        // 20 bytes more than over IPv4.
        assert_eq!(trace.tasks(), [entry(0, 2, 9_000, 105)]);
        let skipped = ["ipv6_extension", "neighbour_discovery", "udp_no_checksum"];
        assert_eq!(trace.skipped(), &skipped.map(|kind| (kind, 1)).into());
    }

    #[test]
    fn a_datagram_of_64_kib_is_no_task() {
        // Its UDP datagram ends 14 bytes, the Ethernet header, beyond what 16 bits hold.
        let mut large = frame(1, 5, true);
        large.resize(ether::LEN + 65_535, 0);
        // Sets the lengths of the IPv4 packet and of the UDP datagram.
        large[ether::LEN + 2..ether::LEN + 4].copy_from_slice(&65_535_u16.to_be_bytes());
        large[ether::LEN + 24..ether::LEN + 26].copy_from_slice(&65_515_u16.to_be_bytes());
        assert_eq!(task(&large, 0), Err("udp_length"));
    }

    // promise: measurement.1
    #[test]
    fn pcapng_times_use_their_interfaces_resolution() {
        use pcap_file::pcapng::PcapNgWriter;
        use pcap_file::pcapng::blocks::enhanced_packet::EnhancedPacketBlock;
        use pcap_file::pcapng::blocks::interface_description::InterfaceDescriptionBlock;
        use pcap_file::pcapng::blocks::interface_description::InterfaceDescriptionOption::{
            IfTsOffset, IfTsResol,
        };
        // 8 us in microseconds (the default), 7.5 us in nanoseconds, and 2^-10 s in units of 2^-30 s.
        for (options, units, ns) in [
            (vec![], [1_000_000, 1_000_008], 8_000),
            (vec![IfTsResol(9)], [5, 7_505], 7_500),
            (vec![IfTsResol(0x80 | 30), IfTsOffset(3)], [0, 1 << 20], 976_562),
        ] {
            let mut writer = PcapNgWriter::new(Vec::new()).unwrap();
            let linktype = DataLink::ETHERNET;
            let interface = InterfaceDescriptionBlock { linktype, snaplen: 0, options };
            writer.write_pcapng_block(interface).unwrap();
            for (units, frame) in
                units.into_iter().zip([frame(2, 9_000, true), frame(3, 7_000, false)])
            {
                let packet = EnhancedPacketBlock {
                    interface_id: 0,
                    timestamp: Duration::from_nanos(units),
                    original_len: frame.len() as u32,
                    data: Cow::Owned(frame),
                    options: vec![],
                };
                writer.write_pcapng_block(packet).unwrap();
            }
            let trace = read(&writer.into_inner()).unwrap();
            assert_eq!(trace.tasks(), [entry(0, 2, 9_000, 85), entry(ns, 3, 7_000, 69)]);
            assert!(trace.skipped().is_empty());
        }
    }
}
