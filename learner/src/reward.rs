//! Reward of a beat (learning step): imbalance of the nodes' loads, and costs of migrated and stolen tasks.
//!
//! A migrated task is sent to another node on arrival. A stolen task is handed to an idle node at its request. Each
//! node computes the reward with [`Reward`] and passes it to its learner. The paper is Malcolm's (POMACS 2022), and the
//! released program is the implementation by its authors.

/// Returns the mean squared difference of two nodes' loads, over all pairs; 0 for fewer than two nodes. `scale` is the
/// factor by which the caller multiplied the loads. The division by it gives the result the unit of the loads.
#[must_use]
pub fn imbalance(loads: &[f32], scale: f32) -> f32 {
    let count = loads.len() as f64;
    if count < 2.0 {
        return 0.0;
    }
    let (sum, squares) = loads.iter().fold((0.0, 0.0), |(sum, squares), load| {
        let load = f64::from(*load);
        (sum + load, squares + load * load)
    });
    // The sum of (a - b)^2 over all pairs is count * squares - sum^2. There are count * (count - 1) / 2 pairs. Rounding
    // may make a sum of 0 negative.
    let pairs = count * squares - sum * sum;
    (2.0 / (count * (count - 1.0)) * pairs.max(0.0) / f64::from(scale)) as f32
}

/// Events in one beat, of one node or of several together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Events {
    /// Migrated tasks.
    pub migrations: u32,
    /// Requests for a task to another node, with or without success.
    pub steals: u32,
    /// Tasks dropped because a queue was full.
    pub failed_tasks: u32,
    /// Requests to a node that had no task to give.
    pub failed_steals: u32,
}

/// Cost of each kind of event, in loads before the multiplication by `scale`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Costs {
    /// Cost of a migrated task.
    pub migration: f32,
    /// Cost of a request for a task.
    pub steal: f32,
    /// Cost of a dropped task.
    pub failed_task: f32,
    /// Cost of a request without success.
    pub failed_steal: f32,
}

impl Default for Costs {
    /// Returns the costs of the released program.
    fn default() -> Self {
        Self { migration: 1e-4, steal: 1e-4, failed_task: 10.0, failed_steal: 0.0 }
    }
}

/// Definition of the utility of a state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Utility {
    /// Decrease of the imbalance since the last beat, as in the released program. It sums to about 0 over a
    /// long time.
    #[default]
    Difference,
    /// Negative imbalance, as in the paper.
    Level,
}

/// Reward computation over successive beats.
#[derive(Clone, Debug)]
pub struct Reward {
    /// Factor by which the caller multiplied the loads.
    scale: f32,
    /// Cost of each kind of event.
    costs: Costs,
    /// Definition of the utility.
    utility: Utility,
    /// Imbalance at the last beat; 0 before the first one.
    before: f32,
}

impl Reward {
    /// Creates a reward for loads that the caller multiplied by `scale`. Rewards have the unit of these loads.
    #[must_use]
    pub fn new(scale: f32, costs: Costs, utility: Utility) -> Self {
        Self { scale, costs, utility, before: 0.0 }
    }

    /// Returns the reward of a beat, from the loads at its end and the events of all nodes in it: the utility,
    /// minus the mean cost per node in the unit of the loads.
    #[must_use]
    pub fn of(&mut self, loads: &[f32], events: &Events) -> f32 {
        let Events { migrations, steals, failed_tasks, failed_steals } = *events;
        let Costs { migration, steal, failed_task, failed_steal } = self.costs;
        let costs = [
            (migration, migrations),
            (steal, steals),
            (failed_task, failed_tasks),
            (failed_steal, failed_steals),
        ];
        let cost: f32 = costs.iter().map(|&(cost, events)| cost * events as f32).sum();
        let now = imbalance(loads, self.scale);
        let before = std::mem::replace(&mut self.before, now);
        let utility = match self.utility {
            Utility::Difference => before - now,
            Utility::Level => -now,
        };
        utility - self.scale / loads.len().max(1) as f32 * cost
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_loads_are_balanced_and_pairs_count_once() {
        assert_eq!((imbalance(&[], 1.0), imbalance(&[3.0], 1.0)), (0.0, 0.0));
        assert_eq!(imbalance(&[0.5; 7], 1e-3), 0.0);
        // Three pairs with squared differences of 1, 4 and 1, by the formula 2 / (3 * 2) * (1 + 4 + 1).
        assert_eq!(imbalance(&[0.0, 1.0, 2.0], 1.0), 2.0);
        assert_eq!(imbalance(&[0.0, 1.0, 2.0], 0.5), 4.0);
    }

    #[test]
    fn reward_is_imbalance_drop_minus_costs() {
        let mut reward = Reward::new(1e-3, Costs::default(), Utility::Difference);
        let nothing = Events::default();
        // The imbalance of loads of 0 and one unit is one unit: (1e-3)^2 / 1e-3.
        let change = reward.of(&[0.0, 1e-3], &nothing);
        assert!((change + 1e-3).abs() < 1e-9, "{change}");
        assert!((reward.of(&[0.0, 0.0], &nothing) - 1e-3).abs() < 1e-9);
        let events = Events { migrations: 3, steals: 1, failed_tasks: 2, failed_steals: 9 };
        // Three migrations and a steal cost 1e-4 each, two dropped tasks 10 each, and failed steals nothing. Two nodes
        // share the cost.
        let cost = reward.of(&[0.0, 0.0], &events);
        assert!((cost + 1e-3 / 2.0 * (4e-4 + 20.0)).abs() < 1e-9, "{cost}");
        // A lasting imbalance costs the same at each beat.
        let mut level = Reward::new(1e-3, Costs::default(), Utility::Level);
        let rewards = [level.of(&[0.0, 1e-3], &nothing), level.of(&[0.0, 1e-3], &nothing)];
        assert!(rewards.iter().all(|reward| (reward + 1e-3).abs() < 1e-9), "{rewards:?}");
    }
}
