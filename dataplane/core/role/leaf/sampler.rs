//! Samples of a leaf's decisions, for two histograms: the time that a decision takes, and the age of the load report
//! that it uses.
//!
//! One burst in 1024 is sampled. Each other burst costs a decrement and a comparison. The duration of a sampled burst
//! gives the time of a decision.
//!
//! The age of a report needs the report's time, which would cost a store at each reply. Instead, the leaf *watches* one
//! worker that it chose in the sampled burst, from the worker's next report to the one after it. It records the age of
//! the report at each decision for that worker. Each task causes one choice and one report of its worker. So watches
//! are in proportion to reports, and the recorded ages have the distribution of all ages.

use crate::io::Buf;
use crate::node::Node;
use crate::node::explain::PacketSummary;
use crate::stage::{Stages, Verdict};
use crate::state::{Counter, Counters, Member};
use crate::wire::task::Code;

/// Bursts from one sampled burst to the next.
const INTERVAL: u32 = 1024;
/// Bursts from a sampled burst without tasks to the next sampled one. A prime: ports with and without tasks may
/// alternate, and the samples must not always fall on the same port.
const RETRY: u32 = 17;
/// Minimum number of bursts after a watch for each burst of the watch. Bounds the mean cost.
const REST: u32 = 8;
/// Seconds after which a watch ends without two reports: the worker may be dead. The rest after it takes up to [`REST`]
/// times as long, without ages of other workers.
const WATCH_MAX_S: u64 = 1;

/// Chooses the bursts whose decisions are measured.
#[derive(Debug)]
pub struct Sampler {
    /// Number of bursts until the next sampled or watched one, which counts, too.
    bursts_left: u32,
    /// Reads the real time in ticks; `None` in emulated time.
    stopwatch: Option<fn() -> u64>,
    /// Current watch; every burst is recorded during it.
    watch: Option<Watch>,
}

/// Start of a sampled or watched burst.
#[derive(Debug)]
pub struct Sample {
    /// Real time in ticks, if known.
    start: Option<u64>,
    /// Number of tasks scheduled before.
    scheduled: u64,
}

/// Observation of one worker's load reports.
#[derive(Debug)]
struct Watch {
    /// Id of the worker; at a spine, id of the leaf.
    worker: u16,
    /// Index of its pool.
    pool: usize,
    member: Member,
    /// Number of its reports at the last burst.
    reports: u32,
    /// Time of the first report during the watch, in ticks; `None` before it.
    reported: Option<u64>,
    /// Start of the watch in ticks.
    began: u64,
    /// Number of bursts of the watch.
    bursts: u32,
}

impl Default for Sampler {
    fn default() -> Self {
        Self::new(None)
    }
}

impl Sampler {
    /// Creates a sampler. `stopwatch` reads the real time in ticks.
    pub fn new(stopwatch: Option<fn() -> u64>) -> Self {
        Self { bursts_left: INTERVAL, stopwatch, watch: None }
    }

    /// Counts a burst. Returns its start if it is sampled or watched; [`Sampler::record`] must follow.
    #[inline(always)]
    pub fn next(&mut self, counters: &Counters) -> Option<Sample> {
        self.bursts_left -= 1;
        if self.bursts_left > 0 { None } else { Some(self.start(counters)) }
    }

    /// Returns the start of a burst: the time, and the count of scheduled tasks.
    #[cold]
    fn start(&self, counters: &Counters) -> Sample {
        let scheduled = counters.read(Counter::Scheduled);
        Sample { scheduled, start: self.stopwatch.map(|read| read()) }
    }

    /// Records a burst after its decisions at `now` ticks: a watched burst for the ages of reports, any other for the
    /// time of decisions. Sets the number of bursts until the next one to record.
    #[cold]
    #[inline(never)]
    pub fn record<B: Buf>(
        &mut self,
        sample: &Sample,
        node: &Node<B>,
        now: u64,
        burst: &[B],
        verdicts: &[Verdict],
    ) {
        let end = self.stopwatch.map(|read| read());
        self.bursts_left = match &mut self.watch {
            Some(watch) => match watch.observe(node, now, burst, verdicts) {
                true => 1,
                false => {
                    let rest = watch.bursts.saturating_mul(REST).max(INTERVAL);
                    self.watch = None;
                    rest
                }
            },
            None => {
                let queued = |verdict: &&Verdict| matches!(verdict, Verdict::Queue { .. });
                let queued = verdicts.iter().filter(queued).count() as u64;
                let counters = node.stages.counters();
                let tasks = counters.read(Counter::Scheduled) - sample.scheduled + queued;
                if let Some((start, end)) = sample.start.zip(end).filter(|_| tasks > 0) {
                    // Replies take about as long as tasks, so the time is divided by all packets.
                    let ticks = end.saturating_sub(start);
                    counters.note_decisions(node.timing().to_ns(ticks) / burst.len() as u64, tasks);
                }
                self.watch = Watch::start(&node.stages, now, burst, verdicts);
                match (&self.watch, tasks) {
                    (Some(_), _) => 1,
                    (None, 0) => RETRY,
                    (None, _) => INTERVAL,
                }
            }
        };
    }
}

/// Iterates over the ids of pool and worker of the tasks that this burst has sent to workers for which `is_wanted`
/// returns true. Parses no other packets.
fn sent_tasks<B: Buf>(
    burst: &[B],
    verdicts: &[Verdict],
    is_wanted: impl Fn(u16) -> bool,
) -> impl Iterator<Item = (u16, u16)> {
    burst.iter().zip(verdicts).filter_map(move |(packet, verdict)| {
        let Verdict::Forward { worker, .. } = *verdict else { return None };
        if !is_wanted(worker) {
            return None;
        }
        let summary = PacketSummary::in_frame(packet.bytes());
        let task = summary.header().filter(|header| header.code == Code::NewTask)?;
        Some((task.pool, worker))
    })
}

impl Watch {
    /// Starts to watch the worker to which the burst has sent its first task, if there is one.
    fn start<B: Buf>(stages: &Stages, now: u64, burst: &[B], verdicts: &[Verdict]) -> Option<Self> {
        let (pool_id, worker) = sent_tasks(burst, verdicts, |_| true).next()?;
        let pool = stages.network().pool(pool_id)?;
        let leaf = || stages.network().leaf(worker, Some(pool)).ok();
        let place = stages.network().worker(worker).or_else(leaf)?;
        let (member, view) = (place.member, stages.dispatcher(pool)?.view());
        let is_of_pool = usize::from(place.pool) == pool;
        let reports = view.report_count(member);
        let (reported, began, bursts) = (None, now, 0);
        is_of_pool.then_some(Self { worker, pool, member, reports, reported, began, bursts })
    }

    /// Records the age of the worker's report at the burst's decisions for it. Returns false if the watch is over.
    fn observe<B: Buf>(
        &mut self,
        node: &Node<B>,
        now: u64,
        burst: &[B],
        verdicts: &[Verdict],
    ) -> bool {
        let timing = node.timing();
        let Some(dispatcher) = node.stages.dispatcher(self.pool) else { return false };
        let reports = dispatcher.view().report_count(self.member);
        let has_reported = std::mem::replace(&mut self.reports, reports) != reports;
        let is_late = now.saturating_sub(self.began) > timing.ticks_hz.saturating_mul(WATCH_MAX_S);
        if is_late || has_reported && self.reported.is_some() {
            return false;
        }
        self.bursts = self.bursts.saturating_add(1);
        if has_reported {
            self.reported = Some(now);
        }
        if let Some(reported) = self.reported {
            let age_ns = timing.to_ns(now.saturating_sub(reported));
            // A leaf has one id in all pools of its spine.
            let network = node.stages.network();
            let tasks = sent_tasks(burst, verdicts, |worker| worker == self.worker);
            tasks
                .filter(|&(pool, _)| network.pool(pool) == Some(self.pool))
                .for_each(|_| dispatcher.view().note_report_age(age_ns));
        }
        true
    }
}
