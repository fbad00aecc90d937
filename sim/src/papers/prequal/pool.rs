//! Pool of probe answers of a Prequal client, and the rules that choose a server from it.

use std::collections::VecDeque;

use rand::Rng;

use crate::papers::unit;

/// Number of recent answers from which a client estimates the distribution of requests in flight. An assumption; the
/// paper's number is not known.
const RECENT: usize = 64;
/// Maximum mean number of uses of an answer, also if the formula has no solution.
const USES_MAX: f64 = 100.0;

/// Parameters of probing.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Probing {
    /// Maximum number of answers in the pool.
    pub size: usize,
    /// Probes per query.
    pub probes: f64,
    /// Removed answers per query, besides used, old and evicted ones.
    pub removals: f64,
    /// Excess of the answers' total uses over the need of all queries.
    pub delta: f64,
    /// Maximum age in ticks of a used answer.
    pub age_max: u64,
}

impl Probing {
    /// Returns the mean number of uses of an answer, for a pool over `servers` servers. Fewer probes mean more uses.
    #[must_use]
    pub fn mean_uses(&self, servers: usize) -> f64 {
        let replaced = (1.0 - self.size as f64 / servers as f64) * self.probes - self.removals;
        if replaced <= 0.0 {
            return USES_MAX;
        }
        ((1.0 + self.delta) / replaced).clamp(1.0, USES_MAX)
    }

    /// Draws the number of uses of an answer: the mean, rounded up or down.
    pub fn draw_uses<R: Rng>(&self, servers: usize, rng: &mut R) -> u32 {
        (self.mean_uses(servers) + unit(rng)) as u32
    }
}

/// Rule by which a client chooses an answer. Smaller keys are better.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Rule {
    /// Hot-cold rule (Prequal) with this quantile. An answer is hot if its requests in flight exceed that quantile of
    /// recent answers. The cold answer with the lowest latency is best, or the hot one with the fewest requests in
    /// flight. With quantile 0 all answers are hot, with 1 none.
    HotCold(f64),
    /// Weighted mean of both values: this weight for the requests in flight (times the usual latency), the rest for the
    /// latency.
    Linear(f64),
    /// Latency plus (requests in flight + 1)^3 times the usual latency (C3).
    Cubic,
}

/// Answer to a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Index of the server.
    pub server: usize,
    /// Requests in flight at the server, plus the client's queries that used this answer.
    pub in_flight: u32,
    /// Estimated latency in ticks.
    pub latency: u64,
    /// Time of receipt in ticks.
    pub received: u64,
    /// Remaining uses.
    pub uses: u32,
}

/// Pool of answers.
#[derive(Clone, Debug, Default)]
pub struct Pool {
    /// Answers in the order of receipt.
    answers: VecDeque<Answer>,
    /// Requests in flight of the last answers, oldest first.
    recent: VecDeque<u32>,
    /// True if the next removal takes the worst answer, and not the oldest.
    removes_worst: bool,
}

impl Pool {
    /// Returns the number of answers.
    #[must_use]
    pub fn len(&self) -> usize {
        self.answers.len()
    }

    /// Returns true if there is no answer.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.answers.is_empty()
    }

    /// Adds an answer. A full pool evicts its oldest one.
    pub fn add(&mut self, answer: Answer, probing: &Probing) {
        if self.answers.len() >= probing.size {
            self.answers.pop_front();
        }
        self.answers.push_back(answer);
        if self.recent.len() >= RECENT {
            self.recent.pop_front();
        }
        self.recent.push_back(answer.in_flight);
    }

    /// Removes answers that are too old at time `now`.
    pub fn expire(&mut self, now: u64, probing: &Probing) {
        while let Some(oldest) = self.answers.front()
            && now - oldest.received > probing.age_max
        {
            self.answers.pop_front();
        }
    }

    /// Removes one answer: the oldest and the worst in alternation.
    pub fn remove(&mut self, rule: Rule, unit: u64) {
        let worst = if self.removes_worst { self.extreme(rule, unit, true) } else { Some(0) };
        self.removes_worst = !self.removes_worst;
        if let Some(index) = worst {
            self.answers.remove(index);
        }
    }

    /// Uses the best answer and returns its server; `None` with fewer than two answers. `unit` is the usual latency of
    /// a server with one request in flight.
    pub fn choose(&mut self, rule: Rule, unit: u64) -> Option<usize> {
        if self.answers.len() < 2 {
            return None;
        }
        let index = self.extreme(rule, unit, false)?;
        let answer = &mut self.answers[index];
        answer.in_flight += 1;
        answer.uses = answer.uses.saturating_sub(1);
        let Answer { server, uses, .. } = *answer;
        if uses == 0 {
            self.answers.remove(index);
        }
        Some(server)
    }

    /// Returns the index of the best answer, or of the worst.
    fn extreme(&self, rule: Rule, unit: u64, worst: bool) -> Option<usize> {
        let threshold = self.threshold(rule);
        let keys = self.answers.iter().map(|answer| key(answer, rule, threshold, unit));
        let keys = keys.enumerate().map(|(index, key)| (key, index));
        let extreme = if worst { keys.max() } else { keys.min() };
        extreme.map(|(_, index)| index)
    }

    /// Returns the number of requests in flight above which an answer is hot; `None` if all are hot.
    fn threshold(&self, rule: Rule) -> Option<u32> {
        let Rule::HotCold(quantile) = rule else { return Some(u32::MAX) };
        if quantile <= 0.0 {
            return None;
        }
        if quantile >= 1.0 || self.recent.is_empty() {
            return Some(u32::MAX);
        }
        let mut sorted: Vec<_> = self.recent.iter().copied().collect();
        let rank = (quantile * (sorted.len() - 1) as f64).round() as usize;
        Some(*sorted.select_nth_unstable(rank).1)
    }
}

/// Returns the key of an answer. Smaller is better; hot answers come after cold ones.
fn key(answer: &Answer, rule: Rule, threshold: Option<u32>, unit: u64) -> (bool, u64) {
    let Answer { in_flight, latency, .. } = *answer;
    let count = u64::from(in_flight);
    match rule {
        Rule::HotCold(_) if threshold.is_none_or(|threshold| in_flight > threshold) => {
            (true, count)
        }
        Rule::HotCold(_) => (false, latency),
        Rule::Linear(weight) => {
            let score = weight * (unit * count) as f64 + (1.0 - weight) * latency as f64;
            (false, score as u64)
        }
        // The cube saturates far above any queue of a stable run.
        Rule::Cubic => (false, latency.saturating_add((1 + count).pow(3).saturating_mul(unit))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wedjat_workload::seed::StreamSeed;

    const PROBING: Probing =
        Probing { size: 4, probes: 3.0, removals: 1.0, delta: 1.0, age_max: 100 };

    /// Returns a pool with an answer for each pair of requests in flight and latency, from server 0 on. Each has two
    /// uses and was received at a time of its index.
    fn pool(answers: &[(u32, u64)]) -> Pool {
        let mut pool = Pool::default();
        for (server, &(in_flight, latency)) in answers.iter().enumerate() {
            let answer = Answer { server, in_flight, latency, received: server as u64, uses: 2 };
            pool.add(answer, &PROBING);
        }
        pool
    }

    /// Returns the servers of the pool, oldest first.
    fn servers(pool: &Pool) -> Vec<usize> {
        pool.answers.iter().map(|answer| answer.server).collect()
    }

    #[test]
    fn cold_answer_with_lowest_latency_wins() {
        // The quantile 0.5 of 1, 2, 3 and 9 is 3 after rounding the rank up.
        let answers = [(1, 50), (9, 10), (3, 40), (2, 60)];
        assert_eq!(pool(&answers).choose(Rule::HotCold(0.5), 1), Some(2));
        // Latency only, then requests in flight only.
        assert_eq!(pool(&answers).choose(Rule::HotCold(1.0), 1), Some(1));
        assert_eq!(pool(&answers).choose(Rule::HotCold(0.0), 1), Some(0));
        assert_eq!(pool(&answers).choose(Rule::Linear(1.0), 1), Some(0));
        assert_eq!(pool(&answers).choose(Rule::Linear(0.0), 1), Some(1));
        assert_eq!(pool(&answers).choose(Rule::Cubic, 1), Some(0));
    }

    #[test]
    fn used_answer_counts_own_request_and_ends() {
        let mut pool = pool(&[(1, 50), (1, 60), (5, 10)]);
        assert_eq!(pool.choose(Rule::HotCold(0.0), 1), Some(0));
        // The first answer now has two requests in flight, the second is better.
        assert_eq!(pool.choose(Rule::HotCold(0.0), 1), Some(1));
        assert_eq!(pool.choose(Rule::HotCold(0.0), 1), Some(0));
        assert_eq!(servers(&pool), [1, 2]);
        assert_eq!(pool.choose(Rule::HotCold(0.0), 1), Some(1));
        // One answer is not enough.
        assert_eq!((pool.len(), pool.choose(Rule::HotCold(0.0), 1)), (1, None));
    }

    #[test]
    fn full_pool_evicts_oldest_and_expires() {
        let mut pool = pool(&[(1, 1); 6]);
        assert_eq!(servers(&pool), [2, 3, 4, 5]);
        pool.expire(103, &PROBING);
        assert_eq!(servers(&pool), [3, 4, 5]);
    }

    #[test]
    fn removal_alternates_oldest_and_worst() {
        let rule = Rule::HotCold(0.5);
        let mut hot = pool(&[(1, 50), (1, 90), (9, 10), (8, 20)]);
        hot.remove(rule, 1);
        assert_eq!(servers(&hot), [1, 2, 3]);
        // The threshold is 8, so only server 2 is hot.
        hot.remove(rule, 1);
        assert_eq!(servers(&hot), [1, 3]);
        hot.remove(rule, 1);
        hot.remove(rule, 1);
        hot.remove(rule, 1);
        assert!(hot.is_empty());
        // Without hot answers the highest latency is worst.
        let mut cold = pool(&[(1, 50), (1, 90), (1, 10)]);
        cold.removes_worst = true;
        cold.remove(rule, 1);
        assert_eq!(servers(&cold), [0, 2]);
    }

    #[test]
    fn uses_have_the_mean_of_the_formula() {
        let probing = |probes, removals| Probing { size: 16, probes, removals, ..PROBING };
        let mut stream = StreamSeed::derive(1, "uses", 0).stream();
        for (probes, removals, mean) in
            [(3.0, 1.0, 1.3158), (1.0, 0.25, 3.3898), (0.5, 0.25, 11.76)]
        {
            let probing = probing(probes, removals);
            assert!((probing.mean_uses(100) - mean).abs() < 0.01);
            let sum: u32 = (0..10_000).map(|_| probing.draw_uses(100, &mut stream)).sum();
            assert!((f64::from(sum) / 1e4 - mean).abs() < 0.05, "{probes}: {sum}");
        }
        // Rarely probed pools have no bound by the formula, and well probed ones use each answer once.
        assert_eq!(probing(0.2, 0.25).draw_uses(100, &mut stream), 100);
        assert_eq!(probing(9.0, 1.0).draw_uses(100, &mut stream), 1);
    }
}
