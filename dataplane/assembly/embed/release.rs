//! Release of held packets, in the order in which a leaf would send them. The owner, the program that calls a context,
//! stores each held packet under a number that the context assigned, its *place*. A packet is held while the MAC
//! address of its next hop is unknown, or while its task waits for a worker.

use wedjat_core::io::Buf;
use wedjat_core::node::Egress;
use wedjat_core::reason::DropReason;
use wedjat_core::state::Counter;

use super::context::{Context, Verdict};
use super::held::PlaceStore;

/// A released packet.
#[derive(Debug)]
pub struct ReleasedPacket<B> {
    /// Its place.
    pub place: u32,
    /// The packet.
    pub packet: B,
    /// `Forward` or `Drop`; already counted.
    pub verdict: Verdict,
}

impl Context {
    /// Returns the next packet that is no longer held, from the places that its owner keeps: rewritten and
    /// ready to send, or dropped. Call it in every iteration of the owner's loop until it returns `None`, even if
    /// nothing is held. `now` is the time in ticks of the owner's clock. The call also does the periodic work that is
    /// due, and adopts changes of members and policies.
    ///
    /// A packet is dropped if its next hop does not answer, or if it must make room for a newer one. Tasks of each pool
    /// that wait for a worker leave in the order of their arrival at this core. A packet missing at its place counts as
    /// dropped.
    pub fn release<B: Buf>(
        &mut self,
        now: u64,
        held: &mut [Option<B>],
    ) -> Option<ReleasedPacket<B>> {
        if now >= self.node.next_tick() {
            self.node.tick(now);
            // Adds the policies' own counts to the counters.
            self.node.stages.collect_picks();
        }
        loop {
            let Some((place, verdict)) = self.next_released(now, held) else {
                // Nothing is left to do: exchanges due loads with the node's other cores.
                self.node.stages.exchange();
                return None;
            };
            self.places.release(place);
            self.note_held();
            if let Verdict::Forward { .. } = verdict {
                self.node.stages.counters().add(Counter::Forwarded, 1);
            }
            if let Some(packet) = held.get_mut(place as usize).and_then(Option::take) {
                return Some(ReleasedPacket { place, packet, verdict });
            }
        }
    }

    /// Makes the next calls of [`Context::release`] return all held packets as dropped, so that the owner can free them
    /// before it ends.
    pub fn abandon(&mut self) {
        self.is_abandoned = true;
    }

    /// Returns the place and the verdict of the next packet that is no longer held, or `None`. At the owner's end these
    /// are all packets. Otherwise packets that made room for others come first, then those that may proceed.
    fn next_released<B: Buf>(
        &mut self,
        now: u64,
        held: &mut [Option<B>],
    ) -> Option<(u32, Verdict)> {
        if self.is_abandoned {
            if let Some(place) = self.node.abandon() {
                return Some((place, Verdict::Drop(DropReason::Shutdown)));
            }
            self.is_abandoned = false;
        }
        if let Some((place, reason)) = self.places.pushed_out.pop() {
            return Some((place, self.drop(reason)));
        }
        let (place, outcome) = self.node.next_released(now, &mut PlaceStore(held))?;
        let verdict = match outcome {
            Ok(Egress { port, worker }) => Verdict::Forward { port, worker },
            Err(reason) => Verdict::Drop(reason),
        };
        Some((place, verdict))
    }
}
