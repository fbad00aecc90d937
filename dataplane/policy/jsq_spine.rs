//! The shortest queue over racks: a rack's tasks for each of its workers, by the average load that it told last and by the tasks that
//! were sent since, each of which adds 1/workers. Racks of unlike size are compared by how long a task would wait there. Among racks
//! that tie the choice is random.
//!
//! What racks tell is rounded to one task a worker (they tell of a change of one) and some microseconds old; the power of two
//! choices in `horus-spine` is there since all that know the same take the same. It looks at all racks for each task: for pools of some
//! tens.

use rand::Rng as _;

use super::horus_spine::{Shares, offer_unheard};
use super::sample::below;
use super::{
    AnyPolicy, Caller, Entry, LeafReports, OverRacks, Pick, Picks, Policy, Rng, Runs, Task,
};
use crate::state::{Member, Parts, Report, Sharing, View};

/// `jsq-spine`.
pub const ENTRY: Entry = Entry {
    runs: Runs::Spine,
    sharing: Sharing::LOADS,
    over_racks: Some(OverRacks { policy: "jsq-spine", reports: LeafReports::Signals }),
    ..Entry::new(
        "jsq-spine",
        "the rack with the fewest tasks a worker, by what racks told and were sent since",
        "folklore",
        |_| AnyPolicy::from(JsqSpine::default()),
    )
};

/// The rack with the shortest queues.
#[derive(Clone, Debug, Default)]
pub struct JsqSpine {
    shares: Shares,
}

/// The one with the least load; none where there is none.
fn shortest(parts: &Parts<'_>, rng: &mut Rng) -> Option<Member> {
    let (mut least, mut found, mut ties) = (u64::MAX, None, 0);
    for &rack in parts.active {
        let load = parts.words.of(rack).belief().total();
        if load < least {
            (least, found, ties) = (load, Some(rack), 1);
        } else if load == least {
            ties += 1;
            if below(ties, rng.next_u64() as u32) == 0 {
                found = Some(rack);
            }
        }
    }
    found
}

impl Policy for JsqSpine {
    fn pick_run(&mut self, tasks: &[Task], picks: Picks<'_>, view: &mut View, rng: &mut Rng) {
        let parts = view.parts();
        for pick in picks.iter_mut().take(tasks.len()) {
            *pick = shortest(&parts, rng).map(|member| {
                parts.words.of(member).sent_share(self.shares.of(member));
                // Its leaf is told whether it is known to have idle workers.
                let idle = parts.idle.contains(member);
                parts.picks.idle += u64::from(idle);
                Pick { member, idle }
            });
        }
    }

    /// A rack's average load. Idleness has signals of its own.
    fn on_reply(&mut self, report: &Report, view: &mut View, _rng: &mut Rng) {
        view.set_load(report.member, report.load);
    }

    fn on_members(&mut self, _caller: Caller, view: &mut View) {
        self.shares.renew(view);
        offer_unheard(view);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::{Core, Dispatcher};
    use crate::state::Load;

    #[test]
    fn the_least_loaded_rack_has_the_task_however_large_the_racks_are() {
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
        // Each adds an eighth, until all are alike.
        assert_eq!(racks[..4], [1; 4]);
        assert_eq!(picks.map(|pick| pick.is_some()), [true; 7]);
        assert_eq!(spine.view().picks.po2, 0);
        // Six, eight and three tasks would be 1.5 for each; nothing else that was sent would leave them so even.
        let loads = [0, 1, 2].map(|rack| spine.view().estimate(Member(rack)));
        assert!(loads.iter().all(|load| (1 << 16..=3 << 15).contains(load)), "{loads:?}");
    }
}
