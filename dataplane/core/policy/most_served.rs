//! Join the shortest queue, with ties by the most served quanta (JSQ-MSQ; TQ, SOSP 2023).
//!
//! For members whose tasks share a core in round robin, each for a *quantum* (time slice) in turn. If several members
//! have the shortest queue, the one whose current tasks have received the most quanta is likely to finish one first.
//! Further ties are broken uniformly.
//!
//! An agent learns the quanta from its workers ([`View::set_quanta`]). A leaf does not know them. Without quanta all
//! decisions are those of `jsq`.
//!
//! Deviation: TQ compares all shortest queues. This policy compares at most [`SCANNED`] of them, from a random one on,
//! so that the time of a decision is bounded.

use super::sample::take_shared;
use super::shortest::{Shortest, least, pick_by};
use super::structure::Ranking;
use super::{
    AnyPolicy, Caller, Candidates, Entry, Pick, Picks, Policy, QueueAccess, Rng, Task, one_by_one,
};
use crate::state::{Member, PublishedState, Report, View};

/// `jsq-msq`.
pub const ENTRY: Entry = Entry {
    queue_access: |_| QueueAccess::Direct,
    // Each idle member belongs to one core, as for `jsq`.
    publishes: PublishedState::COUNTS.with_idle(),
    ..Entry::new(
        "jsq-msq",
        "the shortest queue; of equal ones, the member whose tasks have received the most quanta",
        "TQ, SOSP 2023",
        |_| AnyPolicy::from(MostServed::default()),
    )
};

/// Maximum number of shortest queues to compare.
const SCANNED: usize = 32;

/// Picks the shortest queue; among equal ones, the member with the most served quanta.
#[derive(Clone, Debug)]
pub struct MostServed {
    /// Order of the members, and detection of lost tasks.
    shortest: Shortest,
}

impl Default for MostServed {
    fn default() -> Self {
        Self { shortest: Shortest::new(None) }
    }
}

/// Picks the best member by true queues, which only a simulator knows. Looks at each member: the ranks contain only
/// this dispatcher's counts.
fn scan(view: &View, rng: &mut Rng) -> Option<Pick> {
    // Quanta are below 2^32, so one more task outweighs all of them.
    let key = |member: Member| {
        f64::from(view.probe(member)) * 32.0_f64.exp2() - f64::from(view.quanta(member))
    };
    least(view.active(), key, rng).map(|member| Pick { member, idle: view.probe(member) == 0 })
}

impl Policy for MostServed {
    /// Scans all members if the view has true queues. Otherwise takes the idle members that cores share, then for each
    /// task the most served of the shortest queues.
    fn pick_run(&mut self, tasks: &[Task], picks: Picks<'_>, view: &mut View, rng: &mut Rng) {
        if view.sees_queues() {
            return one_by_one(tasks, picks, view, rng, |_, view, rng| scan(view, rng));
        }
        let count = tasks.len().min(picks.len());
        let picks = &mut picks[..count];
        // First the idle members that belong to this core, as for `jsq`.
        let taken = if view.shares_idle() { take_shared(picks, view) } else { 0 };
        let Ranking::Queue(ranks) = &mut self.shortest.ranks else { return };
        let mut local = rng.clone();
        pick_by(ranks, &mut picks[taken..], view.states(), |ranks, front| {
            // Idle members have no quanta.
            let scanned = if ranks.least() == 0 { 1 } else { SCANNED };
            ranks.find_most_served(front, scanned, |member| view.quanta(member), &mut local)
        });
        *rng = local;
    }

    // All further hooks keep the order of the queues, as for `jsq`.

    fn candidates(&self, view: &View, rng: &mut Rng) -> Candidates {
        self.shortest.candidates(view, rng)
    }

    fn reply_run(&mut self, reports: &[Report], view: &mut View, rng: &mut Rng) -> usize {
        self.shortest.reply_run(reports, view, rng)
    }

    #[inline]
    fn on_follow(&mut self, member: Member, view: &mut View) {
        self.shortest.on_follow(member, view);
    }

    #[inline]
    fn on_reply(&mut self, report: &Report, view: &mut View, rng: &mut Rng) {
        self.shortest.on_reply(report, view, rng);
    }

    fn on_remote_update(&mut self, member: Member, view: &mut View) {
        self.shortest.on_remote_update(member, view);
    }

    fn on_written_off(&mut self, member: Member, view: &mut View) {
        self.shortest.on_written_off(member, view);
    }

    fn on_members(&mut self, caller: Caller, view: &mut View) {
        self.shortest.on_members(caller, view);
    }

    fn on_tick(&mut self, view: &mut View, rng: &mut Rng) {
        self.shortest.on_tick(view, rng);
    }

    fn round_trip_ns(&self) -> Option<u64> {
        self.shortest.round_trip_ns()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::{Core, Dispatcher};

    /// Creates a dispatcher of the named policy on the only core, with idle members.
    fn dispatcher(policy: &str, members: usize) -> Dispatcher {
        let view = View::heap(members, 1).remove(0);
        Dispatcher::new(&policy.parse().unwrap(), view, Core::ONLY, 7)
    }

    /// Sends tasks one at a time. Returns the chosen members.
    fn send(dispatcher: &mut Dispatcher, tasks: usize) -> Vec<Member> {
        let pick = |_| {
            let mut picks = [None];
            dispatcher.schedule(&[Task::default()], &mut picks);
            picks[0].unwrap().member
        };
        (0..tasks).map(pick).collect()
    }

    // promise: scheduling.5
    #[test]
    fn ties_go_to_the_most_served_member() {
        for members in [4, 20] {
            let mut dispatcher = dispatcher("jsq-msq", members);
            send(&mut dispatcher, members);
            for member in (0..members as u16).map(Member) {
                dispatcher.view().set_quanta(member, u32::from(member.0));
            }
            let order: Vec<_> = (0..members as u16).rev().map(Member).collect();
            assert_eq!(send(&mut dispatcher, members), order);
        }
    }

    // promise: scheduling.5
    #[test]
    fn shorter_queue_wins_over_quanta() {
        let mut dispatcher = dispatcher("jsq-msq", 3);
        send(&mut dispatcher, 3);
        dispatcher.view().set_quanta(Member(1), 1000);
        assert_eq!(send(&mut dispatcher, 1), [Member(1)]);
        assert!(!send(&mut dispatcher, 2).contains(&Member(1)));
    }

    // promise: scheduling.5
    #[test]
    fn without_quanta_decisions_are_those_of_jsq() {
        for members in [1, 5, 100, 1024] {
            let [mut shortest, mut served] =
                ["jsq", "jsq-msq"].map(|policy| dispatcher(policy, members));
            for round in 0..20 {
                let (expected, found) = (send(&mut shortest, 37), send(&mut served, 37));
                assert_eq!(expected, found, "{members} members, round {round}");
                for member in expected.into_iter().step_by(2) {
                    for dispatcher in [&mut shortest, &mut served] {
                        let tasks = dispatcher.view().outstanding(member) - 1;
                        let load = crate::state::Load::tasks(tasks as u16);
                        dispatcher.reply(&Report::new(member, load, 0));
                    }
                }
            }
        }
    }

    #[test]
    fn equally_served_members_are_chosen_uniformly() {
        let mut counts = [0_u32; 4];
        for seed in 0..4000 {
            let view = View::heap(4, 1).remove(0);
            let policy = "jsq-msq".parse().unwrap();
            let mut dispatcher = Dispatcher::new(&policy, view, Core::ONLY, seed);
            send(&mut dispatcher, 4);
            // Members 0, 1 and 3 are tied.
            for (member, quanta) in [(0, 9), (1, 9), (2, 8), (3, 9)] {
                dispatcher.view().set_quanta(Member(member), quanta);
            }
            counts[send(&mut dispatcher, 1)[0].index()] += 1;
        }
        assert_eq!(counts[2], 0);
        // 1333 each with a standard deviation of 30; six deviations are allowed.
        assert!([0, 1, 3].iter().all(|&member| counts[member].abs_diff(1333) < 180), "{counts:?}");
    }
}
