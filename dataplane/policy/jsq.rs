//! Join the shortest queue, by the tasks outstanding at each member: what a server, unlike a switch, can
//! count exactly. Ties are broken uniformly.

use rand::Rng as _;

use super::{Pick, Policy, Rng, Task, below};
use crate::state::{Report, View};

/// The member with the fewest tasks sent and not answered.
#[derive(Clone, Debug, Default)]
pub struct Jsq;

impl Policy for Jsq {
    fn pick(&mut self, _task: &Task, view: &mut View, rng: &mut Rng) -> Option<Pick> {
        let mut least = u32::MAX;
        let mut ties = 0;
        for &member in view.active() {
            let queue = view.outstanding(member);
            ties = if queue < least { 1 } else { ties + usize::from(queue == least) };
            least = least.min(queue);
        }
        let skip = below(ties, rng.next_u64() as u32);
        let mut tied = view.active().iter().filter(|&&member| view.outstanding(member) == least);
        let member = *tied.nth(skip)?;
        Some(Pick { member, idle: least == 0 })
    }

    fn on_reply(&mut self, report: &Report, view: &mut View, _rng: &mut Rng) {
        // Lost tasks leave the count only so.
        view.set_load_keeping_in_flight(report.member, report.load);
    }
}
