//! Successive halving: short simulations of all policies, longer ones of those that remain.
//!
//! The advice uses it because long simulations of all policies would take too long. Each round simulates the remaining
//! policies once and keeps the best ones. The result of a policy is its standing. A policy is unstable if its queues
//! grow during the whole run.
//!
//! All policies of a round get the same arrivals and service times (common random numbers), so that chance favours
//! none. Each round has its own seed, so that a policy lucky in one round is not lucky in the next.

use wedjat_core::policy::Objective;

use super::objective::Prediction;

/// Size of one round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Round {
    /// Tasks of each simulation.
    pub tasks: u64,
    /// Number of places. Policies with equal scores share a place, and the running policy needs none.
    pub policies: usize,
}

/// Default number of tasks of each simulation in the last round.
pub const USUAL_TASKS: u64 = 100_000;
/// For each round: its tasks as a percentage of those of the last round, and its number of places.
const SCHEDULE: [(u64, usize); 4] = [(10, usize::MAX), (20, 16), (40, 8), (100, 4)];

/// Returns all rounds; the last one has `tasks` tasks.
#[must_use]
pub fn rounds(tasks: u64) -> Vec<Round> {
    let round = |(percent, policies): (u64, usize)| Round {
        tasks: (tasks * percent / 100).max(1),
        policies,
    };
    SCHEDULE.into_iter().map(round).collect()
}

/// Reason why a policy's part in the rounds ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The policy was in the last round, and stable in all rounds.
    Finished,
    /// Enough other policies had a better score.
    Slower,
    /// The policy's queues grew.
    Unstable,
}

/// Result of a policy.
#[derive(Clone, Debug, PartialEq)]
pub struct Standing {
    /// Index of the policy.
    pub policy: usize,
    /// Number of its last round, from 1.
    pub round: usize,
    /// Tasks of its last round.
    pub tasks: u64,
    /// Reason for its end.
    pub end: End,
    /// Prediction of its last round.
    pub prediction: Prediction,
}

impl Standing {
    /// Returns the fraction by which its score is below that of another standing of the same round. Scores of different
    /// rounds are not comparable.
    #[must_use]
    pub fn gain_over(&self, other: &Self, objective: &Objective) -> f64 {
        let score = |standing: &Self| standing.prediction.score(objective);
        score(self).gain_over(&score(other))
    }
}

/// Runs the rounds over `count` policies, which are numbered from 0. `running` is the policy in use: it stays in all
/// rounds while it is stable, so that the best one can be compared with it. Policies with equal scores share a place,
/// because some make the same decisions under simple conditions. `simulate` returns the predictions of the given
/// policies in a round, in the same order. The result has the best policy first, and unstable ones last.
///
/// # Errors
/// If a simulation fails.
pub fn halve(
    count: usize,
    running: Option<usize>,
    rounds: &[Round],
    objective: &Objective,
    mut simulate: impl FnMut(&[usize], usize) -> Result<Vec<Prediction>, String>,
) -> Result<Vec<Standing>, String> {
    let mut active: Vec<usize> = (0..count).collect();
    let mut ended = Vec::new();
    for (index, &Round { tasks, .. }) in rounds.iter().enumerate() {
        // Number of places in the next round.
        let kept = rounds.get(index + 1).map_or(usize::MAX, |next| next.policies);
        let standing = |(&policy, prediction): (&usize, Prediction)| {
            let end = if prediction.unstable { End::Unstable } else { End::Slower };
            Standing { policy, round: index + 1, tasks, end, prediction }
        };
        let mut standings: Vec<_> =
            active.iter().zip(simulate(&active, index)?).map(standing).collect();
        sort(&mut standings, objective);
        active.clear();
        let mut scores = Vec::new();
        for standing in standings {
            // Distinct scores so far. Standings are sorted, so that equal scores are neighbours.
            let score = standing.prediction.score(objective);
            scores.push(score);
            scores.dedup();
            let remains = scores.len() <= kept || Some(standing.policy) == running;
            match remains && standing.end != End::Unstable {
                true if index + 1 == rounds.len() => {
                    ended.push(Standing { end: End::Finished, ..standing });
                }
                true => active.push(standing.policy),
                false => ended.push(standing),
            }
        }
    }
    sort(&mut ended, objective);
    Ok(ended)
}

/// Sorts standings: stable ones first, then those with the later last round, then those with the lower (better) score.
fn sort(standings: &mut [Standing], objective: &Objective) {
    standings.sort_by(|a, b| {
        let group = |standing: &Standing| standing.end == End::Unstable;
        let score = |standing: &Standing| standing.prediction.score(objective);
        (group(a).cmp(&group(b)))
            .then(b.round.cmp(&a.round))
            .then_with(|| score(a).order(&score(b)))
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a stable prediction with this mean.
    fn stable(mean_us: f64) -> Prediction {
        Prediction { mean_us, ..Prediction::default() }
    }

    /// Runs the usual rounds. `predict` returns the prediction of a policy in a round.
    fn halved(
        count: usize,
        running: Option<usize>,
        predict: impl Fn(usize, usize) -> Prediction,
    ) -> Vec<Standing> {
        let simulate = |policies: &[usize], round: usize| {
            Ok(policies.iter().map(|&policy| predict(policy, round)).collect())
        };
        halve(count, running, &rounds(USUAL_TASKS), &Objective::Mean, simulate).unwrap()
    }

    /// Returns the number of policies that took part in each of the four rounds.
    fn sizes(standings: &[Standing]) -> Vec<usize> {
        (1..=4).map(|round| standings.iter().filter(|s| s.round >= round).count()).collect()
    }

    #[test]
    fn rounds_shrink_to_the_best() {
        let tasks: Vec<_> = rounds(USUAL_TASKS).iter().map(|round| round.tasks).collect();
        assert_eq!(tasks, [10_000, 20_000, 40_000, 100_000]);
        let standings = halved(36, None, |policy, _| stable((36 - policy) as f64));
        assert_eq!(sizes(&standings), [36, 16, 8, 4]);
        let order: Vec<_> = standings.iter().map(|standing| standing.policy).collect();
        assert_eq!(order, (0..36).rev().collect::<Vec<_>>());
        let finished = standings.iter().filter(|standing| standing.end == End::Finished);
        assert_eq!(finished.count(), 4);
    }

    #[test]
    fn equal_policies_share_a_place() {
        // Three policies for each of 12 means, which are fewer than the 16 places of the second round. The third and
        // the fourth round have 8 and 4 places.
        let standings = halved(36, None, |policy, _| stable((policy / 3) as f64));
        assert_eq!(sizes(&standings), [36, 36, 24, 12]);
    }

    #[test]
    fn policy_unstable_once_never_finishes() {
        for unstable_round in 0..4 {
            let standings = halved(20, Some(7), |policy, round| {
                let unstable = policy == 7 && round == unstable_round;
                // It has the best mean in each round.
                Prediction { unstable, ..stable(if policy == 7 { 1.0 } else { 10.0 }) }
            });
            assert_ne!(standings[0].policy, 7);
            let last = standings.last().unwrap();
            assert_eq!((last.policy, last.end, last.round), (7, End::Unstable, unstable_round + 1));
        }
    }

    #[test]
    fn running_policy_reaches_the_last_round() {
        // The running policy is the worst one, and takes part besides the 16, 8 and 4 best.
        let standings = halved(36, Some(35), |policy, _| stable(policy as f64));
        assert_eq!(sizes(&standings), [36, 17, 9, 5]);
        assert_eq!((standings[4].policy, standings[4].end), (35, End::Finished));
        assert_eq!(standings[0].policy, 0);
    }
}
