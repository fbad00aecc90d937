//! Shortest queue over racks, for a spine (a process that schedules tasks over racks; each rack's leaf schedules them
//! over its workers). The queue is the number of tasks per worker of a rack, from its last average load and the tasks
//! sent since, each of which adds 1/workers. Racks of different sizes are compared by the waiting time of a task.
//! Ties are broken at random.
//!
//! Signals are rounded to one task per worker (racks signal a change of one) and some microseconds old.
//! Dispatchers with equal knowledge choose the same rack, which is why `horus-spine` uses the power of two
//! choices. This policy reads all racks for each task, so it suits pools of some tens of racks.

use rand::Rng as _;

use super::horus_spine::{Shares, offer_unreported};
use super::sample::below;
use super::{
    AnyPolicy, Caller, Entry, LeafReports, Pick, Picks, Policy, RackPolicy, Rng, Runs, Task,
};
use crate::state::{Member, Parts, PublishedState, Report, View};

/// `jsq-spine`.
pub const ENTRY: Entry = Entry {
    runs: Runs::Spine,
    publishes: PublishedState::LOADS,
    over_racks: Some(RackPolicy { policy: "jsq-spine", reports: LeafReports::Signals }),
    ..Entry::new(
        "jsq-spine",
        "the rack with the fewest tasks a worker, by the racks' reports plus the tasks sent since",
        "folklore",
        |_| AnyPolicy::from(JsqSpine::default()),
    )
};

/// Policy of the rack with the fewest tasks per worker.
#[derive(Clone, Debug, Default)]
pub struct JsqSpine {
    /// Increase of each rack's average load per task: 1/workers.
    shares: Shares,
}

/// Returns the rack with the least average load plus drift, at random among ties; `None` without racks.
fn shortest(parts: &Parts<'_>, rng: &mut Rng) -> Option<Member> {
    let (mut least, mut best, mut ties) = (u64::MAX, None, 0);
    for &rack in parts.active {
        let load = parts.states.of(rack).estimate().total();
        if load < least {
            (least, best, ties) = (load, Some(rack), 1);
        } else if load == least {
            ties += 1;
            // Replaces the choice with probability 1 / ties, so that all ties are equally likely.
            if below(ties, rng.next_u64() as u32) == 0 {
                best = Some(rack);
            }
        }
    }
    best
}

impl Policy for JsqSpine {
    /// Picks the least loaded rack for each task, and adds the task's share to its load.
    fn pick_run(&mut self, tasks: &[Task], picks: Picks<'_>, view: &mut View, rng: &mut Rng) {
        let parts = view.parts();
        for pick in picks.iter_mut().take(tasks.len()) {
            *pick = shortest(&parts, rng).map(|member| {
                parts.states.of(member).sent_share(self.shares.of(member));
                // The header carries this flag to the leaf. A flag that contradicts the leaf's last idleness signal
                // shows that the signal may be lost. The leaf then repeats it.
                let idle = parts.idle.contains(member);
                parts.picks.idle += u64::from(idle);
                Pick { member, idle }
            });
        }
    }

    /// Stores a rack's average load. Idleness has its own signals.
    fn on_reply(&mut self, report: &Report, view: &mut View, _rng: &mut Rng) {
        view.set_load(report.member, report.load);
    }

    /// Recomputes the load that a task adds to each rack. Racks without a report so far count as idle.
    fn on_members(&mut self, _caller: Caller, view: &mut View) {
        self.shares.renew(view);
        offer_unreported(view);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::{Core, Dispatcher};
    use crate::state::Load;

    #[test]
    fn least_loaded_rack_wins_regardless_of_size() {
        let view = View::heap(3, 1).remove(0);
        let mut spine = Dispatcher::new(&"jsq-spine".parse().unwrap(), view, Core::ONLY, 1);
        spine.set_rates(&[4.0, 8.0, 2.0]);
        let half = Load(Load::ONE.0 / 2);
        for (rack, load) in [(0, Load::ONE), (1, half), (2, Load::ONE)] {
            spine.refresh(&Report::new(Member(rack), load, 0));
        }
        let mut picks = [None; 7];
        spine.schedule(&[Task::default(); 7], &mut picks);
        let racks: Vec<_> = picks.iter().flatten().map(|pick| pick.member.0).collect();
        // Each task adds an eighth, until all racks are equal.
        assert_eq!(racks[..4], [1; 4]);
        assert_eq!(picks.map(|pick| pick.is_some()), [true; 7]);
        assert_eq!(spine.view().picks.po2, 0);
        // Each of the last three tasks goes to another rack: 5, 9 and 3 tasks for 4, 8 and 2 workers. The loads then
        // are between 1 and 1.5 tasks a worker (`1 << 16` is one task).
        let loads = [0, 1, 2].map(|rack| spine.view().estimated_load(Member(rack)));
        assert!(loads.iter().all(|load| (1 << 16..=3 << 15).contains(load)), "{loads:?}");
    }
}
