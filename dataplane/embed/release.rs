//! Packets that were held go on, or are given up: in order, as a leaf does with those that it holds itself.

use super::context::{Context, Verdict};
use super::held::Complete;
use crate::io::Buf;
use crate::reason::DropReason;
use crate::stage;
use crate::state::Counter;
use crate::wire::ether;

/// What a look at the held packets may find something in.
#[derive(Clone, Copy, Debug, Default)]
pub struct Due {
    /// Next hops may be known, or have been asked for in vain.
    pub neighbours: bool,
    /// Workers may have room.
    workers: bool,
    /// The first pool whose queue is still to be looked at.
    pool: usize,
    /// The owner stops: all are given up.
    all: bool,
}

/// A packet that is held no longer.
#[derive(Debug)]
pub struct Released<B> {
    /// Where it was kept.
    pub place: u32,
    /// The packet.
    pub packet: B,
    /// To be forwarded, or to be freed: already counted.
    pub verdict: Verdict,
}

impl Due {
    /// All there is to look at, from the first pool on.
    pub fn look_again(&mut self) {
        *self = Self { neighbours: true, workers: true, pool: 0, ..*self };
    }
}

impl Context {
    /// The next packet that need not be held any longer, out of those that its owner keeps at the places of their
    /// verdicts: rewritten, to be sent; or given up. To be called at every turn of the owner's loop until there is none,
    /// also while nothing is held: it looks after what time changes, too.
    ///
    /// A packet whose next hop has been asked for in vain is given up. Tasks that wait for a worker leave in the order in
    /// which they came to this core, each pool's by itself. One that its owner has no more counts as given up.
    pub fn release<B: Buf>(&mut self, now: u64, held: &mut [Option<B>]) -> Option<Released<B>> {
        if now >= self.next_tick {
            self.tick(now);
        }
        if self.stages.take_freed() {
            self.due.look_again();
        }
        loop {
            let (place, verdict) = self.next_released(now, held)?;
            self.held.leave(place);
            self.note_held();
            if let Verdict::Forward { .. } = verdict {
                self.stages.counters().add(Counter::TxPackets, 1);
            }
            if let Some(packet) = held.get_mut(place as usize).and_then(Option::take) {
                return Some(Released { place, packet, verdict });
            }
        }
    }

    /// Gives up all packets that are held, because their owner stops: [`Context::release`] gives them back as dropped.
    pub fn abandon(&mut self) {
        self.due.all = true;
    }

    fn next_released<B: Buf>(
        &mut self,
        now: u64,
        held: &mut [Option<B>],
    ) -> Option<(u32, Verdict)> {
        if self.due.all {
            return self.next_abandoned();
        }
        if let Some(place) = self.held.pushed_out.pop() {
            return Some((place, self.drop(DropReason::NeighbourQueueFull)));
        }
        if self.due.neighbours {
            if let Some(met) = self.next_met(now, held) {
                return Some(met);
            }
            self.due.neighbours = false;
        }
        if self.due.workers {
            if let Some(scheduled) = self.next_scheduled(now, held) {
                return Some(scheduled);
            }
            self.due.workers = false;
            self.due.pool = 0;
        }
        None
    }

    /// A packet whose next hop has become known, or is not to be had.
    fn next_met<B: Buf>(&mut self, now: u64, held: &mut [Option<B>]) -> Option<(u32, Verdict)> {
        let resolver = &mut self.held.resolver;
        let Some((packet, port, mac)) = resolver.resolved(self.stages.neighbours()) else {
            let Complete { place, .. } = resolver.given_up(self.timing.to_ms(now))?;
            return Some((place, self.drop(DropReason::NeighbourUnresolved)));
        };
        let Complete { place, worker, .. } = packet;
        let own = self.stages.network().port(usize::from(port)).mac;
        let Some(frame) = kept(held, place) else {
            return Some((place, self.drop(DropReason::Shutdown)));
        };
        if frame.bytes().len() >= ether::LEN {
            ether::emit_addresses(frame.bytes_mut(), mac, own);
        }
        Some((place, Verdict::Forward { port, worker }))
    }

    /// The task that is first in a pool's queue, if some worker may have it.
    fn next_scheduled<B: Buf>(
        &mut self,
        now: u64,
        held: &mut [Option<B>],
    ) -> Option<(u32, Verdict)> {
        while let Some(queue) = self.held.central.get_mut(self.due.pool) {
            let pool = self.due.pool;
            let Some(&mut first) = queue.first_mut() else {
                self.due.pool += 1;
                continue;
            };
            let Some(task) = kept(held, first.place) else {
                queue.pop();
                self.stages.leave(pool);
                return Some((first.place, self.drop(DropReason::Shutdown)));
            };
            let from = usize::from(first.port);
            let Some(verdict) = self.stages.offer(pool, from, now, task.bytes_mut()) else {
                self.due.pool += 1;
                continue;
            };
            queue.pop();
            if let Some(verdict) = self.go_on(first.place, verdict, now) {
                return Some((first.place, verdict));
            }
        }
        None
    }

    /// What becomes of a task that waits no longer; none when it waits on for its next hop, at the same place.
    fn go_on(&mut self, place: u32, verdict: stage::Verdict, now: u64) -> Option<Verdict> {
        match verdict {
            stage::Verdict::Forward { port, worker } => Some(Verdict::Forward { port, worker }),
            stage::Verdict::Hold { port, worker, slot } => {
                let next_hop = self.stages.neighbours().address(slot);
                let packet = Complete { place, port, worker };
                self.stages.want_neighbour(usize::from(port));
                if self.held.hold_at(packet, slot, next_hop, self.timing.to_ms(now)) {
                    self.next_tick = now; // its question is due at once
                    return None;
                }
                Some(self.drop(DropReason::NeighbourQueueFull))
            }
            stage::Verdict::Drop(reason) => Some(Verdict::Drop(reason)),
            // A task that waited becomes nothing else; were it so, it would not be lost uncounted.
            _ => Some(self.drop(DropReason::QueueFull)),
        }
    }

    fn next_abandoned(&mut self) -> Option<(u32, Verdict)> {
        if let Some(packet) = self.held.resolver.abandon() {
            return Some((packet.place, self.drop(DropReason::Shutdown)));
        }
        let tasks = self.held.central.iter_mut().enumerate();
        let first = tasks.filter_map(|(pool, queue)| Some((pool, queue.pop()?))).next();
        let Some((pool, task)) = first else {
            self.due.all = false;
            return None;
        };
        self.stages.leave(pool);
        Some((task.place, self.drop(DropReason::Shutdown)))
    }

    /// Tells how many packets wait at the owner's.
    pub(super) fn note_held(&self) {
        let (counters, queued) = (self.stages.counters(), self.stages.waiting());
        counters.set(Counter::Queued, queued as u64);
        counters.set(
            Counter::Held,
            (queued + self.held.resolver.held() + self.held.pushed_out.len()) as u64,
        );
    }
}

fn kept<B>(held: &mut [Option<B>], place: u32) -> Option<&mut B> {
    held.get_mut(place as usize)?.as_mut()
}
