//! Tasks of a capture that `wedjat ctl tap` or `wedjat advise` recorded at a leaf.
//!
//! The tap is the packet recorder of a node. It records each task and each reply twice: when it arrives and when the
//! leaf forwards it. A task's response time is the time from its arrival to the arrival of its reply. Replies also
//! carry the worker and the service time, which determine the delay to the workers and the workers' speeds. The
//! conditions of the advice use the result.

use std::collections::{BTreeMap, HashMap};
use std::io::{BufRead as _, BufReader};
use std::path::Path;

use wedjat_core::state::files;
use wedjat_core::wire::task::{Code, Extension, Header};
use wedjat_core::wire::{ether, udp};
use wedjat_workload::capture::{Format, Frame};
use wedjat_workload::results::{RunDescription, RunTasks, Status, Task};

use super::measure::only;

/// Kind of run of captured tasks, in [`RunDescription::model`].
const MODEL: &str = "capture";
/// Picoseconds per nanosecond.
const PS_PER_NS: u64 = 1000;
/// Smallest number of replies with which a worker can show that the speeds differ.
const REPLIES_MIN: usize = 30;
/// Number of standard errors by which a worker's mean service time must differ from that of all, to show a speed.
const STANDARD_ERRORS: f64 = 6.0;
/// Smallest relative difference of that mean that shows a speed.
const DIFFERENCE_MIN: f64 = 0.15;

/// Identity of a task: address and port of its client, the client's own id, application id and sequence number.
type TaskKey = (u128, u16, u16, u32, u32);

/// Speed of each worker by its id, relative to other workers.
pub type Speeds = BTreeMap<u32, f64>;

/// Tasks of one pool in a capture.
#[derive(Clone, Debug)]
pub struct CapturedTasks {
    /// The tasks. Service times are those at a worker of average speed.
    pub run: RunTasks,
    /// Delay to the workers, each way, in nanoseconds; `None` without service times.
    pub delay_ns: Option<f64>,
    /// Speeds of the workers that answered, if they differ.
    pub speeds: Option<Speeds>,
}

/// Task of a capture.
#[derive(Clone, Copy, Debug)]
struct CapturedTask {
    pool: u16,
    class: u16,
    /// Time of arrival at the leaf. All times are in nanoseconds since 1970.
    arrived_ns: u64,
    /// Time at which the leaf forwarded it; `None` if the capture lacks that frame.
    sent_ns: Option<u64>,
    reply: Option<Reply>,
}

/// First reply to a task.
#[derive(Clone, Copy, Debug)]
struct Reply {
    /// Time of arrival at the leaf.
    at_ns: u64,
    worker: u32,
    /// Service time in nanoseconds; 0 if unknown.
    service_ns: u32,
    is_refusal: bool,
}

impl CapturedTask {
    /// Returns worker and service time in nanoseconds. `None` if no worker answered, or the reply lacks the time.
    fn service(&self) -> Option<(u32, f64)> {
        let reply = self.reply.filter(|reply| !reply.is_refusal && reply.service_ns > 0)?;
        Some((reply.worker, f64::from(reply.service_ns)))
    }

    /// Returns worker and round trip time without service, in nanoseconds. The time includes the wait at the worker.
    fn trip(&self) -> Option<(u32, f64)> {
        let ((worker, service_ns), reply) = (self.service()?, self.reply?);
        // A task for a worker on the leaf's own host leaves through no port.
        let sent_ns = self.sent_ns.unwrap_or(self.arrived_ns);
        let elapsed_ns = reply.at_ns.saturating_sub(sent_ns) as f64;
        Some((worker, (elapsed_ns - service_ns).max(0.0)))
    }
}

impl CapturedTasks {
    /// Reads the tasks of one pool. A capture of several pools needs the pool's number. `speeds` are the configured
    /// speeds of the workers, if known.
    ///
    /// # Errors
    /// The file, the reason and the fix.
    pub fn read(path: &Path, pool: Option<u32>, speeds: Option<&Speeds>) -> Result<Self, String> {
        let fault = |reason: String| format!("{}: {reason}", path.display());
        let file = files::open_regular(path).map_err(|error| fault(error.to_string()))?;
        let mut file = BufReader::new(file);
        let first = file.fill_buf().map_err(|error| fault(error.to_string()))?;
        let format = Format::of(first).ok_or_else(|| {
            fault("it is no capture; give a pcap file of `wedjat ctl tap`".to_owned())
        })?;
        let mut builder = Builder::default();
        let frames = format.read(file, |frame| {
            builder.take(&frame);
            Ok(())
        });
        frames.map_err(|error| fault(error.to_string()))?;
        let Builder { tasks, end_ns, .. } = builder;
        if tasks.is_empty() {
            return Err(fault(
                "it has no task; capture a leaf that receives tasks, on all its ports".to_owned(),
            ));
        }
        let pools = tasks.iter().map(|task| u32::from(task.pool)).collect();
        let pool = only("pool", pool, pools).map_err(fault)?;
        let tasks = tasks.into_iter().filter(|task| u32::from(task.pool) == pool);
        Ok(Self::of(&tasks.collect::<Vec<_>>(), end_ns, speeds))
    }

    /// Measures simulated tasks as a capture at their dispatchers would. Their log has picoseconds, and service times
    /// at speed 1. `speeds` are the workers' current ones. The capture ended at `end_ns`.
    #[must_use]
    pub fn simulated(tasks: &[Task], speeds: &[f64], delay_ns: f64, end_ns: u64) -> Self {
        let task = |task: &Task| {
            let arrived_ns = task.scheduled_ps / PS_PER_NS;
            let reply = task.worker.zip(task.service_ps).zip(task.response_ps);
            // A simulated response ends at the worker. The reply then needs the delay back to the dispatcher.
            let reply = reply.map(|((worker, service_ps), response_ps)| Reply {
                at_ns: arrived_ns + response_ps / PS_PER_NS + delay_ns as u64,
                worker,
                service_ns: (service_ps as f64 / PS_PER_NS as f64 / speeds[worker as usize]) as u32,
                is_refusal: false,
            });
            CapturedTask { pool: 1, class: task.class, arrived_ns, sent_ns: None, reply }
        };
        Self::of(&tasks.iter().map(task).collect::<Vec<_>>(), end_ns, None)
    }

    /// Measures the tasks of a pool in a capture that ended at `end_ns`. `speeds` are the configured ones; without them
    /// the replies decide.
    fn of(tasks: &[CapturedTask], end_ns: u64, speeds: Option<&Speeds>) -> Self {
        let speeds = match speeds {
            Some(speeds) => Some(speeds.clone()),
            None => measured_speeds(tasks),
        };
        // Equal speeds count as none.
        let speeds = speeds.filter(|speeds| {
            speeds.values().zip(speeds.values().skip(1)).any(|(one, next)| one != next)
        });
        let mean_speed = speeds
            .as_ref()
            .map_or(1.0, |speeds| speeds.values().sum::<f64>() / speeds.len() as f64);
        let relative_speed = |worker: u32| {
            let speed = speeds.as_ref().and_then(|speeds| speeds.get(&worker));
            speed.map_or(1.0, |speed| speed / mean_speed)
        };
        // Frames of several cores may be a little out of order in the file.
        let first_ns = tasks.iter().map(|task| task.arrived_ns).min().unwrap_or(0);
        let responses =
            tasks.iter().filter_map(|task| Some(task.reply?.at_ns.saturating_sub(task.arrived_ns)));
        // A task that arrives less than twice the longest response time before the end may still be in service then. It
        // counts only with a reply.
        let last_ns = end_ns.saturating_sub(2 * responses.max().unwrap_or(0));
        let task = |(number, task): (usize, &CapturedTask)| {
            // Picoseconds since the first arrival.
            let ps = |ns: u64| ns.saturating_sub(first_ns) * PS_PER_NS;
            let reply = task.reply.filter(|reply| !reply.is_refusal);
            // Service time that a worker of average speed would need.
            let work = task.service().map(|(worker, ns)| ns * relative_speed(worker));
            Task {
                number: number as u64,
                pool: task.pool.into(),
                class: task.class,
                worker: reply.map(|reply| reply.worker),
                scheduled_ps: ps(task.arrived_ns),
                sent_ps: task.sent_ns.map(ps),
                service_ps: work.map(|ns| (ns * PS_PER_NS as f64) as u64),
                response_ps: reply
                    .map(|reply| reply.at_ns.saturating_sub(task.arrived_ns) * PS_PER_NS),
                status: match task.reply {
                    None => Status::Lost,
                    Some(reply) if reply.is_refusal => Status::Refused,
                    Some(_) => Status::Answered,
                },
                measured: task.reply.is_some() || task.arrived_ns < last_ns,
                late: false,
            }
        };
        let description = RunDescription { model: MODEL.to_owned(), ..RunDescription::default() };
        let run = RunTasks {
            run: 1,
            description,
            seed: 0,
            tasks: tasks.iter().enumerate().map(task).collect(),
        };
        Self { run, delay_ns: round_trip_ns(tasks).map(|ns| ns / 2.0), speeds }
    }
}

/// Returns the round trip without service in nanoseconds. Each worker's least round trip has no wait, because its task
/// found the worker idle. The result is the median of these. `None` if no reply has a service time.
fn round_trip_ns(tasks: &[CapturedTask]) -> Option<f64> {
    let mut least = BTreeMap::<u32, f64>::new();
    for (worker, trip_ns) in tasks.iter().filter_map(CapturedTask::trip) {
        least.entry(worker).and_modify(|least| *least = least.min(trip_ns)).or_insert(trip_ns);
    }
    let mut least: Vec<_> = least.into_values().collect();
    least.sort_by(f64::total_cmp);
    least.get(least.len() / 2).copied()
}

/// Returns the speeds of all workers with answers, with the mean 1. `None` without a difference of more than
/// [`DIFFERENCE_MIN`] and chance between a worker's mean service time and that of all workers. Divides each service
/// time by the mean of its class: workers may get different mixes of classes.
fn measured_speeds(tasks: &[CapturedTask]) -> Option<Speeds> {
    let timed = || tasks.iter().filter_map(|task| Some((task.class, task.service()?)));
    // Number and sum of the service times of each class.
    let mut classes = BTreeMap::<u16, (f64, f64)>::new();
    for (class, (_, ns)) in timed() {
        let (count, sum) = classes.entry(class).or_default();
        (*count, *sum) = (*count + 1.0, *sum + ns);
    }
    // Number, sum and sum of squares of the relative service times of each worker. Their mean over all workers is 1.
    let mut workers = BTreeMap::<u32, (f64, f64, f64)>::new();
    for (class, (worker, ns)) in timed() {
        let (count, sum) = classes[&class];
        let relative = ns * count / sum;
        let (count, sum, squares) = workers.entry(worker).or_default();
        (*count, *sum, *squares) = (*count + 1.0, *sum + relative, *squares + relative * relative);
    }
    let differs = |&(count, sum, squares): &(f64, f64, f64)| {
        let mean = sum / count;
        // Standard error of the mean.
        let error = ((squares / count - mean * mean).max(0.0) / count).sqrt();
        let difference = (mean - 1.0).abs();
        count >= REPLIES_MIN as f64
            && difference > DIFFERENCE_MIN
            && difference > STANDARD_ERRORS * error
    };
    if !workers.values().any(differs) {
        return None;
    }
    // A speed is the inverse of the mean relative service time.
    let inverse = |(worker, (count, sum, _)): (&u32, &(f64, f64, f64))| (*worker, count / sum);
    let speeds: Speeds = workers.iter().map(inverse).collect();
    let mean = speeds.values().sum::<f64>() / speeds.len() as f64;
    // Two decimals keep equal workers equal in most cases.
    let rounded = |speed: f64| (speed / mean * 100.0).round().max(1.0) / 100.0;
    Some(speeds.into_iter().map(|(worker, speed)| (worker, rounded(speed))).collect())
}

/// Tasks under construction, while the frames of a capture are read.
#[derive(Default)]
struct Builder {
    tasks: Vec<CapturedTask>,
    /// Index in `tasks` of the latest task with each identity.
    indices: HashMap<TaskKey, usize>,
    /// Time of the last frame.
    end_ns: u64,
    /// Buffer for one frame, padded with zeros to its whole length if only its start was captured.
    whole: Vec<u8>,
}

impl Builder {
    /// Adds the task or the reply in a frame. Ignores other frames.
    fn take(&mut self, frame: &Frame<'_>) {
        self.end_ns = self.end_ns.max(frame.at_ns);
        self.whole.clear();
        self.whole.extend_from_slice(frame.bytes);
        // Lengths in headers count the missing bytes. The headers themselves are complete.
        self.whole.resize(frame.len.max(frame.bytes.len()), 0);
        let Some((datagram, header, extension)) = parse(&self.whole) else { return };
        let number = if header.extended { extension.seq32 } else { header.seq.into() };
        // A request has the client as its source, a reply as its destination.
        match header.code {
            Code::NewTask => {
                let key = (datagram.src, datagram.src_port, header.src, extension.app, number);
                self.take_task(key, &header, extension.class, frame.at_ns);
            }
            code if code.is_reply() => {
                let key = (datagram.dst, datagram.dst_port, header.dst, extension.app, number);
                let reply = Reply {
                    at_ns: frame.at_ns,
                    worker: header.src.into(),
                    service_ns: extension.service_ns,
                    is_refusal: code == Code::TaskRefused,
                };
                self.take_reply(key, reply);
            }
            _ => {}
        }
    }

    /// Adds a task that arrives. The second frame of an open task is the forwarded one and adds its time of sending.
    fn take_task(&mut self, key: TaskKey, header: &Header, class: u16, at_ns: u64) {
        let known = self.indices.get(&key).map(|&index| &mut self.tasks[index]);
        match known {
            // After a reply the same number belongs to a new task: without the extension, numbers have 16 bits and
            // wrap.
            Some(task) if task.reply.is_none() => {
                task.sent_ns.get_or_insert(at_ns);
            }
            _ => {
                self.indices.insert(key, self.tasks.len());
                self.tasks.push(CapturedTask {
                    pool: header.pool,
                    class,
                    arrived_ns: at_ns,
                    sent_ns: None,
                    reply: None,
                });
            }
        }
    }

    /// Adds a reply, unless an earlier frame had it or the capture lacks its task.
    fn take_reply(&mut self, key: TaskKey, reply: Reply) {
        if let Some(&index) = self.indices.get(&key) {
            self.tasks[index].reply.get_or_insert(reply);
        }
    }
}

/// Parses the datagram, task header and extension of a frame. Ignores checksums. `None` for other frames.
fn parse(frame: &[u8]) -> Option<(udp::Datagram<u128>, Header, Extension)> {
    if frame.len() < ether::LEN {
        return None;
    }
    let datagram = match ether::ether_type(frame) {
        ether::IPV4 => udp::parse(frame, true).ok()?.map_addresses(u128::from),
        ether::IPV6 => udp::parse_v6(frame, true).ok()?,
        _ => return None,
    };
    let payload = frame.get(datagram.payload()..datagram.end.into())?;
    let header = Header::parse(payload).ok()?;
    let extension = if header.extended { Extension::parse(payload) } else { Extension::default() };
    Some((datagram, header, extension))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::RngExt as _;
    use wedjat_core::wire::ether::Mac;
    use wedjat_core::wire::ipv4;
    use wedjat_workload::seed::StreamSeed;

    const CLIENT: u32 = 0x0A00_0101;
    const LEAF: u32 = 0x0A00_0001;

    /// Returns the frame of a UDP datagram with this task header and extension, between these addresses and ports.
    fn frame(from: (u32, u16), to: (u32, u16), header: Header, extension: Extension) -> Vec<u8> {
        let mut frame = vec![0; udp::PAYLOAD + header.len()];
        let payload_len = header.len();
        ether::emit(&mut frame, Mac([2; 6]), Mac([2; 6]), ether::IPV4);
        ipv4::emit(&mut frame[ether::LEN..], from.0, to.0, ipv4::UDP, udp::LEN + payload_len);
        // Start of the UDP header.
        let at = ether::LEN + ipv4::LEN;
        frame[at..at + 2].copy_from_slice(&from.1.to_be_bytes());
        frame[at + 2..at + 4].copy_from_slice(&to.1.to_be_bytes());
        frame[at + 4..at + 6].copy_from_slice(&((udp::LEN + payload_len) as u16).to_be_bytes());
        header.emit(&mut frame[udp::PAYLOAD..]);
        extension.emit(&mut frame[udp::PAYLOAD..]);
        frame
    }

    /// Passes the frames of one task to the builder: arrival, forwarding after 100 ns, reply and its forwarding. The
    /// round trip without service takes 10 us. `cut` is the number of captured bytes.
    fn record(
        builder: &mut Builder,
        seq32: u32,
        at_ns: u64,
        (worker, service_ns): (u16, u32),
        cut: usize,
    ) {
        let task = Header { extended: true, ..Header::new_task(3, seq32 as u16) };
        let sent = Header { dst: worker, ..task };
        let reply = Header { code: Code::TaskDone, src: worker, dst: 0, ..task };
        let id =
            Extension { app: 7, seq32, class: 1 + (seq32 / 4 % 2) as u16, ..Extension::default() };
        let done = Extension { service_ns, ..id };
        let replied_ns = at_ns + 100 + u64::from(service_ns) + 10_000;
        let server = 0x0A00_0200 + u32::from(worker);
        for (time_ns, bytes) in [
            (at_ns, frame((CLIENT, 9000), (LEAF, 1234), task, id)),
            (at_ns + 100, frame((CLIENT, 9000), (server, 1234), sent, id)),
            (replied_ns, frame((server, 1234), (CLIENT, 9000), reply, done)),
            (replied_ns + 100, frame((LEAF, 1234), (CLIENT, 9000), reply, done)),
        ] {
            let len = bytes.len();
            builder.take(&Frame { bytes: &bytes[..cut.min(len)], len, at_ns: time_ns });
        }
    }

    /// Returns 4,000 tasks of 50 to 150 us at four workers, one each microsecond. Worker 3 takes `factor` times as
    /// long.
    fn tasks(factor: u32) -> Vec<CapturedTask> {
        let mut builder = Builder::default();
        let mut stream = StreamSeed::derive(5, "test", 0).stream();
        for number in 0..4000_u32 {
            let worker = (number % 4) as u16;
            let service_ns = stream.random_range(50_000..150_000);
            let service_ns = if worker == 3 { service_ns * factor } else { service_ns };
            record(
                &mut builder,
                number,
                u64::from(number) * 1000,
                (worker, service_ns),
                usize::MAX,
            );
        }
        builder.tasks
    }

    #[test]
    fn capture_shows_delay_and_equal_speeds() {
        // The capture ends 10 s later, so that all tasks count. The delay is half of the round trip of 10 us.
        let captured = CapturedTasks::of(&tasks(1), 10_000_000_000, None);
        assert_eq!((captured.delay_ns, captured.speeds), (Some(5000.0), None));
        let task = captured.run.tasks[9];
        assert_eq!((task.pool, task.class, task.worker), (3, 1, Some(1)));
        assert_eq!((task.scheduled_ps, task.sent_ps), (9_000_000, Some(9_100_000)));
        // Response: 100 ns until forwarding, the service, and 10 us.
        assert_eq!(task.response_ps, task.service_ps.map(|service| service + 10_100_000));
        assert!(task.measured && task.status == Status::Answered);
    }

    #[test]
    fn slow_worker_gets_its_speed() {
        let captured = CapturedTasks::of(&tasks(2), 10_000_000_000, None);
        let speeds = captured.speeds.unwrap();
        assert!((speeds[&3] / speeds[&0] - 0.5).abs() < 0.05, "{speeds:?}");
        // The sum of the service times is the same at all workers, once they are converted to average speed.
        let work = |worker| {
            let of_worker = captured.run.tasks.iter().filter(|task| task.worker == Some(worker));
            of_worker.map(|task| task.service_ps.unwrap_or(0) as f64).sum::<f64>()
        };
        assert!((work(3) / work(0) - 1.0).abs() < 0.05);
        let given = Speeds::from([(0, 1.0), (1, 1.0), (2, 1.0), (3, 0.25)]);
        let captured = CapturedTasks::of(&tasks(2), 10_000_000_000, Some(&given));
        assert_eq!(captured.speeds, Some(given), "configured speeds count");
    }

    #[test]
    fn late_tasks_without_reply_are_left_out() {
        let mut builder = Builder::default();
        // Captured bytes: all headers, and the task header with its extension (27 bytes).
        let headers = udp::PAYLOAD + 27;
        (0..100).for_each(|number| {
            record(&mut builder, number, u64::from(number) * 1000, (1, 500), headers)
        });
        assert_eq!(builder.tasks.iter().filter(|task| task.reply.is_some()).count(), 100);
        builder.take(&Frame { bytes: &[0; 20], len: 60, at_ns: 0 });
        // The longest response time is 10.6 us. Unanswered tasks count up to twice that before the end at 901 us.
        let unanswered = CapturedTask { reply: None, arrived_ns: 101_000, ..builder.tasks[0] };
        builder.tasks.push(unanswered);
        builder.tasks.push(CapturedTask { arrived_ns: 900_000, ..unanswered });
        let captured = CapturedTasks::of(&builder.tasks, 901_000, None);
        let [.., lost, open] = &captured.run.tasks[..] else { panic!() };
        assert!(lost.measured && lost.status == Status::Lost && !open.measured);
    }

    #[test]
    fn returning_numbers_are_new_tasks() {
        let mut builder = Builder::default();
        record(&mut builder, 5, 0, (1, 500), usize::MAX);
        record(&mut builder, 5, 1_000_000, (2, 500), usize::MAX);
        assert_eq!(builder.tasks.len(), 2);
    }
}
