//! Cost of authentication: forwarding a reply in a leaf, for a pool with a key and for one without.
//!
//! A leaf is the scheduler process of a rack. It forwards the replies of its workers to the clients. If a pool has a
//! key, each reply carries a sequence number and a tag under that key. The leaf checks both.
//!
//! Both sides use the library's burst call, which runs the leaf's stages: 32 workers reply in turn, in bursts
//! of 32, each reply with a fresh sequence number. The frames are in memory before the clock starts. Runs of
//! the two sides alternate. The reported cost is the median of the differences between neighbouring runs, so
//! that a slow phase of the machine affects both sides.

use std::error::Error;
use std::fmt;
use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

use clap::Args;
use serde::Serialize;
use wedjat::config::Config;
use wedjat::embed::{Context, Options, Scheduler, Verdict};
use wedjat::limits::BURST;
use wedjat::role::agent::Signer;
use wedjat::wire::arp;
use wedjat::wire::auth::{KEY_LEN, Key, sequence_at};
use wedjat::wire::ether::Mac;
use wedjat::wire::task::{Code, Extension, Header};
use wedjat::wire::udp::{Flow, PAYLOAD};

use super::median;

/// Maximum cost of authentication per reply, in nanoseconds.
pub const BAR_NS: f64 = 15.0;
/// Bytes from frame to frame. Not a power of two, so that frames do not compete for the same cache sets.
const STRIDE: usize = 192;
/// Bursts per run.
const BURSTS: usize = 32;
/// Bytes in the body of a reply.
const BODY: usize = 20;
// The set-up of `leaf.toml`, the leaf's configuration: its workers and pool, and the addresses of leaf, client and
// server.
const WORKERS: u16 = 32;
const POOL: u16 = 7;
const LEAF: u32 = 0x0A00_0001;
const LEAF_MAC: Mac = Mac([2, 0, 0, 0, 0, 1]);
const CLIENT: u32 = 0x0A00_0102;
const CLIENT_MAC: Mac = Mac([2, 0, 0, 0, 1, 2]);
const SERVER: u32 = 0x0A00_020B;
const SERVER_MAC: Mac = Mac([2, 0, 0, 0, 2, 11]);
const CONFIG: &str = include_str!("leaf.toml");

/// Arguments of `bench-auth`.
#[derive(Args, Clone, Debug)]
pub struct Arguments {
    /// Runs of each
    #[arg(long, default_value_t = 401, value_parser = clap::value_parser!(u32).range(1..))]
    pub runs: u32,
}

/// Measured costs, in nanoseconds per reply.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Costs {
    /// Time without a key.
    pub without_ns: f64,
    /// Time with a key.
    pub with_ns: f64,
    /// Additional time with a key.
    pub added_ns: f64,
    /// Ratio of the time with a key to that without.
    pub ratio: f64,
    /// Time to sign a reply on the worker's host.
    pub sign_ns: f64,
    /// Maximum additional time with a key.
    pub bar_ns: f64,
    /// True if the additional time is within the limit.
    pub met: bool,
}

impl fmt::Display for Costs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { without_ns, with_ns, added_ns, ratio, sign_ns, bar_ns, met } = self;
        let met = if *met { "met" } else { "NOT MET" };
        writeln!(f, "cost of a reply in a leaf, in bursts of {BURST}, {WORKERS} workers")?;
        writeln!(f, "  without a key   {without_ns:6.2} ns")?;
        writeln!(f, "  with a key      {with_ns:6.2} ns, ratio {ratio:.3}")?;
        writeln!(f, "  added by key    {added_ns:6.2} ns (at most {bar_ns}: {met})")?;
        write!(f, "signing a reply   {sign_ns:6.2} ns, on the worker's host")
    }
}

/// Measures and writes the report. A cost above [`BAR_NS`] appears in the report and is no error.
///
/// # Errors
/// If a reply was not forwarded, or the report cannot be written.
pub fn report(
    arguments: &Arguments,
    json: bool,
    out: &mut impl Write,
) -> Result<(), Box<dyn Error>> {
    let costs = measure(arguments.runs)?;
    if json {
        writeln!(out, "{}", serde_json::to_string(&costs)?)?;
    } else {
        writeln!(out, "{costs}")?;
    }
    Ok(())
}

/// Measures `runs` runs of each side.
///
/// # Errors
/// If a reply was not forwarded.
pub fn measure(runs: u32) -> Result<Costs, Box<dyn Error>> {
    let key = Key::new(std::array::from_fn::<_, KEY_LEN, _>(|index| index as u8));
    let keys = (0..WORKERS).map(|id| (id, key.clone()));
    let signer = Signer::new(keys, || sequence_at(std::time::SystemTime::now()));
    let signer = signer.ok_or("no worker to sign for")?;
    let mut without = Side::new(None)?;
    let mut with = Side::new(Some(key))?;
    let (mut samples, mut signing) = (Vec::new(), Vec::new());
    for run in 0..runs + 1 {
        without.fill(None);
        // Time to sign the replies of this run.
        let sign = with.fill(Some(&signer));
        // The order of the two sides alternates.
        let times = match run % 2 {
            0 => [without.run()?, with.run()?],
            _ => {
                let second = with.run()?;
                [without.run()?, second]
            }
        };
        // The first pair of runs only warms up caches.
        if run > 0 {
            samples.push(times.map(per_reply));
            signing.push(per_reply(sign));
        }
    }
    let median_of = |value: &dyn Fn(&[f64; 2]) -> f64| median(samples.iter().map(value).collect());
    let added_ns = median_of(&|[without, with]| with - without);
    Ok(Costs {
        without_ns: median_of(&|times| times[0]),
        with_ns: median_of(&|times| times[1]),
        added_ns,
        ratio: median_of(&|[without, with]| with / without),
        sign_ns: median(signing),
        bar_ns: BAR_NS,
        met: added_ns <= BAR_NS,
    })
}

/// Returns the time per reply of one run, in nanoseconds.
fn per_reply(time: Duration) -> f64 {
    time.as_nanos() as f64 / (BURSTS * BURST) as f64
}

/// One side of the comparison: a leaf without ports, and its replies of one run.
struct Side {
    /// State of the leaf's only core.
    context: Context,
    /// Frames of the replies, [`STRIDE`] bytes apart.
    frames: Vec<u8>,
    /// Bytes per frame.
    len: usize,
}

impl Side {
    /// Creates a leaf whose pool has this key, if any. Resolves the client's MAC address, which the leaf needs to
    /// forward replies.
    fn new(key: Option<Key>) -> Result<Self, Box<dyn Error>> {
        let authenticated = key.is_some();
        let mut config = Config::parse(Path::new("bench-auth"), CONFIG)?;
        config.pools[0].1.fixed.key = key;
        let mut scheduler =
            Scheduler::new(&config, &Options { ticks_hz: 1_000_000_000, macs: &[] })?;
        let context = scheduler.context(0).ok_or("the configuration has a core")?;
        let len = PAYLOAD + header(0, authenticated).len() + BODY;
        let mut side = Self { context, frames: vec![0; BURSTS * BURST * STRIDE], len };
        side.resolve_client()?;
        Ok(side)
    }

    /// Registers the client as the leaf's neighbour. The client's task creates its entry in the neighbour table. An ARP
    /// reply then confirms the MAC address. A leaf learns nothing from the ARP packets of a host without an entry.
    fn resolve_client(&mut self) -> Result<(), Box<dyn Error>> {
        // A header and some bytes of payload.
        let mut task = [0; PAYLOAD + 31];
        Header::new_task(POOL, 1).emit(&mut task[PAYLOAD..]);
        let flow = Flow {
            src_mac: CLIENT_MAC,
            dst_mac: LEAF_MAC,
            src: CLIENT,
            dst: LEAF,
            src_port: 40_000,
            dst_port: 1234,
        };
        flow.emit(&mut task, 31);
        let mut answer = [0; arp::FRAME_LEN];
        let question = arp::Packet::request(LEAF_MAC, LEAF, CLIENT);
        question.answer(CLIENT_MAC).emit(&mut answer, LEAF_MAC);
        let mut verdicts = [Verdict::Consumed; 1];
        // Both arrive at the first port, at tick 1.
        self.context.process(0, 1, &mut [&mut task[..]], &mut verdicts)?;
        self.context.process(0, 1, &mut [&mut answer[..]], &mut verdicts)?;
        Ok(())
    }

    /// Writes the replies of a run. Returns the time that signing took.
    fn fill(&mut self, signer: Option<&Signer>) -> Duration {
        let flow = Flow {
            src_mac: SERVER_MAC,
            dst_mac: LEAF_MAC,
            src: SERVER,
            dst: CLIENT,
            src_port: 1234,
            dst_port: 40_000,
        };
        let mut signing = Duration::ZERO;
        let frames = self.frames.chunks_exact_mut(STRIDE).map(|frame| &mut frame[..self.len]);
        let mut frames: Vec<_> = frames.collect();
        for (index, frame) in frames.iter_mut().enumerate() {
            let payload = &mut frame[PAYLOAD..];
            payload.fill(0xAB);
            header(index as u16 % WORKERS, signer.is_some()).emit(payload);
            Extension { app: 1, seq32: index as u32, service_ns: 10_000, class: 0 }.emit(payload);
        }
        if let Some(signer) = signer {
            let began = Instant::now();
            for (index, frame) in frames.iter_mut().enumerate() {
                if let Some(credential) = signer.of(index as u16 % WORKERS) {
                    credential.sign(SERVER, CLIENT, &mut frame[PAYLOAD..]);
                }
            }
            signing = began.elapsed();
        }
        for frame in frames {
            flow.emit(frame, self.len - PAYLOAD);
        }
        signing
    }

    /// Forwards the replies through the leaf. Returns the time that it took.
    fn run(&mut self) -> Result<Duration, Box<dyn Error>> {
        let frames = self.frames.chunks_exact_mut(STRIDE).map(|frame| &mut frame[..self.len]);
        let mut frames: Vec<_> = frames.collect();
        let mut verdicts = vec![Verdict::Consumed; frames.len()];
        let began = Instant::now();
        for (burst, verdicts) in frames.chunks_mut(BURST).zip(verdicts.chunks_mut(BURST)) {
            // At the first port, at tick 2.
            self.context.process(0, 2, burst, verdicts)?;
        }
        let elapsed = began.elapsed();
        match verdicts.iter().find(|verdict| !matches!(verdict, Verdict::Forward { .. })) {
            Some(other) => Err(format!("a reply was not forwarded: {other:?}").into()),
            None => Ok(elapsed),
        }
    }
}

/// Builds the header of a worker's reply.
fn header(worker: u16, authenticated: bool) -> Header {
    let (code, src) = (Code::TaskDoneIdle, worker);
    Header { code, src, extended: true, authenticated, ..Header::new_task(POOL, 1) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Forwarded replies give figures with and without a key.
    #[test]
    fn forwarded_replies_report_their_cost() {
        let costs = measure(3).unwrap();
        assert!(costs.without_ns > 0.0 && costs.with_ns > 0.0 && costs.sign_ns > 0.0, "{costs}");
        assert_eq!(costs.met, costs.added_ns <= BAR_NS);
        let text = costs.to_string();
        assert!(text.contains("at most 15") && text.contains("with a key"), "{text}");
    }

    /// A leaf with a key drops unsigned replies.
    #[test]
    fn unforwarded_reply_yields_no_figure() {
        let mut side = Side::new(Some(Key::new([1; KEY_LEN]))).unwrap();
        side.fill(None);
        assert!(side.run().unwrap_err().to_string().contains("not forwarded"));
    }
}
