//! Workers of an agent that explains a capture without devices: all are attached to the agent's region (the memory
//! through which it hands over tasks), and one completes a task when the capture has its reply.
//!
//! The worker may differ from the original one, since random choices are drawn again. So a reply completes
//! the task that it answers at any worker.

use std::collections::BTreeMap;
use std::sync::Arc;

use wedjat_core::node::explain::PacketSummary;
use wedjat_core::ring::{RegionError, TakenTask, WorkerEnd, WorkerRegion};
use wedjat_core::wire::task::{Code, Extension, Header, NO_MEMBER};
use wedjat_desired::config::HostConfig;

/// Key of a completed task: the values that both its worker and its reply in the capture have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct EndedTask {
    pool: u16,
    /// Application id from the extended header; 0 without one.
    app: u32,
    /// Sequence number of the task in its application.
    seq: u32,
}

impl EndedTask {
    /// Returns the task whose reply this frame is; `None` for other frames, and for a reply that names no worker.
    pub(super) fn in_frame(frame: &[u8]) -> Option<Self> {
        let PacketSummary::Task(datagram, header, _) = PacketSummary::in_frame(frame) else {
            return None;
        };
        let payload = frame.get(datagram.payload()..usize::from(datagram.end))?;
        let is_reply = matches!(header.code, Code::TaskDone | Code::TaskDoneIdle);
        if !is_reply || header.src == NO_MEMBER {
            return None;
        }
        let Header { pool, seq, .. } = header;
        let extension = header.extended.then(|| Extension::parse(payload));
        let (app, seq) = extension.map_or((0, u32::from(seq)), |one| (one.app, one.seq32));
        Some(Self { pool, app, seq })
    }
}

/// All workers of an agent.
#[derive(Debug)]
pub(super) struct OfflineWorkers {
    workers: Vec<OfflineWorker>,
    /// Number of completions by task that no worker here has carried out yet.
    completions: BTreeMap<EndedTask, u32>,
}

/// Worker of an agent without devices.
#[derive(Debug)]
struct OfflineWorker {
    /// The worker's end of its channel in the region.
    end: WorkerEnd,
    /// Task taken and not completed.
    current: Option<TakenTask>,
    /// True once the agent has granted its claim.
    is_granted: bool,
}

impl OfflineWorkers {
    /// Creates the workers of this host, and their region.
    ///
    /// # Errors
    /// If there is no memory for it.
    pub(super) fn new(host: &HostConfig) -> Result<(Self, Arc<WorkerRegion>), RegionError> {
        let identities = host.identities();
        let region = Arc::new(WorkerRegion::heap_for(&identities, host.shape())?);
        let ends = (0..identities.len()).filter_map(|index| region.claim(index).ok().flatten());
        let workers =
            ends.map(|end| OfflineWorker { end, current: None, is_granted: false }).collect();
        Ok((Self { workers, completions: BTreeMap::new() }, region))
    }

    /// Notes that a task has ended. `work` completes it at the worker that has it or gets it.
    pub(super) fn end(&mut self, task: EndedTask) {
        *self.completions.entry(task).or_default() += 1;
    }

    /// Makes each worker take its tasks and complete those that the capture completes.
    pub(super) fn work(&mut self) {
        for worker in &mut self.workers {
            worker.work(&mut self.completions);
        }
    }
}

impl OfflineWorker {
    /// Takes and completes tasks until one has no completion yet. A worker gets tasks once the agent has granted its
    /// claim.
    fn work(&mut self, completions: &mut BTreeMap<EndedTask, u32>) {
        if !self.is_granted && self.end.receiver().is_granted() {
            self.end.start(); // reads the number of the first task
            self.is_granted = true;
        }
        while self.is_granted
            && let Some(taken) = self.current.take().or_else(|| self.end.take().ok().flatten())
        {
            let (ids, pool) = (self.end.ids(&taken), self.end.identity().pool);
            let task = EndedTask { pool, app: ids.app, seq: ids.seq };
            let Some(count) = completions.get_mut(&task) else {
                self.current = Some(taken);
                return;
            };
            *count -= 1;
            if *count == 0 {
                completions.remove(&task);
            }
            // The answer is empty, and its service time is 0.
            let _ = self.end.answer(taken, |_, _| 0, || 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use wedjat_core::wire::ether::Mac;
    use wedjat_core::wire::udp::{Flow, PAYLOAD, PAYLOAD_V6};

    use super::*;

    #[test]
    fn replies_of_both_families_end_their_tasks() {
        let reply = Header { code: Code::TaskDone, src: 5, ..Header::new_task(7, 3) };
        let (src_mac, dst_mac) = (Mac([2, 0, 0, 0, 0, 1]), Mac([2, 0, 0, 0, 0, 2]));
        let (src_port, dst_port) = (1234, 40_000);
        let expected = Some(EndedTask { pool: 7, app: 0, seq: 3 });
        let mut frame = vec![0; PAYLOAD + reply.len()];
        reply.emit(&mut frame[PAYLOAD..]);
        let (src, dst) = (0x0a00_0201_u32, 0x0a00_0101_u32);
        let flow = Flow { src_mac, dst_mac, src, dst, src_port, dst_port };
        flow.emit(&mut frame, reply.len());
        assert_eq!(EndedTask::in_frame(&frame), expected);
        let mut frame = vec![0; PAYLOAD_V6 + reply.len()];
        reply.emit(&mut frame[PAYLOAD_V6..]);
        let (src, dst) = (0xfd00_u128 << 112 | 1, 0xfd00_u128 << 112 | 2);
        let flow = Flow { src_mac, dst_mac, src, dst, src_port, dst_port };
        flow.emit_v6(&mut frame, reply.len());
        assert_eq!(EndedTask::in_frame(&frame), expected);
    }
}
