//! Packets that were held go on, or are given up: in order, as a leaf does with those that it holds itself.

use super::context::{Context, Verdict};
use super::held::Kept;
use crate::io::Buf;
use crate::node::Egress;
use crate::reason::DropReason;
use crate::state::Counter;

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

impl Context {
    /// The next packet that need not be held any longer, out of those that its owner keeps at the places of their
    /// verdicts: rewritten, to be sent; or given up. To be called at every turn of the owner's loop until there is none,
    /// also while nothing is held: it looks after what time changes, too.
    ///
    /// A packet whose next hop has been asked for in vain is given up. Tasks that wait for a worker leave in the order in
    /// which they came to this core, each pool's by itself. One that its owner has no more counts as given up.
    pub fn release<B: Buf>(&mut self, now: u64, held: &mut [Option<B>]) -> Option<Released<B>> {
        if now >= self.node.next_tick() {
            self.node.tick(now);
            self.node.stages.collect_picks();
        }
        loop {
            let Some((place, verdict)) = self.next_released(now, held) else {
                self.node.stages.exchange();
                return None;
            };
            self.places.leave(place);
            self.note_held();
            if let Verdict::Forward { .. } = verdict {
                self.node.stages.counters().add(Counter::Forwarded, 1);
            }
            if let Some(packet) = held.get_mut(place as usize).and_then(Option::take) {
                return Some(Released { place, packet, verdict });
            }
        }
    }

    /// Gives up all packets that are held, because their owner stops: [`Context::release`] gives them back as dropped.
    pub fn abandon(&mut self) {
        self.is_abandoned = true;
    }

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
        let (place, outcome) = self.node.next_released(now, &mut Kept(held))?;
        let verdict = match outcome {
            Ok(Egress { port, worker }) => Verdict::Forward { port, worker },
            Err(reason) => Verdict::Drop(reason),
        };
        Some((place, verdict))
    }
}
