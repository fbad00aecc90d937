//! Linearizability of one object's history: a just-in-time search after Wing and Gong, and Lowe.
//!
//! The search walks through the requests and answers in the order of time. It keeps every configuration that
//! explains them so far: a state of the object, and the set of open operations that have taken effect. An
//! operation takes effect no earlier than another operation's answer requires. An operation without an answer
//! may take effect at any later time, or never.

use std::collections::{BTreeSet, HashMap};
use std::hash::Hash;

/// Sequential specification of an object.
pub trait Model {
    /// State of the object.
    type State: Clone + Eq + Hash;
    /// Operation with its answer.
    type Call: PartialEq;

    /// Returns the state after a call; `None` if the call cannot have its answer in this state.
    fn step(state: &Self::State, call: &Self::Call) -> Option<Self::State>;

    /// Returns true if the call changes no state.
    fn is_pure(call: &Self::Call) -> bool;
}

/// Call and its interval. Without an end the answer is unknown.
#[derive(Clone, Debug)]
pub struct Interval<C> {
    /// Call.
    pub call: C,
    /// Time of the request.
    pub began: u64,
    /// Time of the answer.
    pub ended: Option<u64>,
}

/// Reason why a history is rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rejection {
    /// No order of the calls explains the answer of this call.
    Unexplained(usize),
    /// The search exceeds the limit of configurations.
    TooMany,
}

/// Maximum number of configurations that a search keeps.
const CONFIGURATIONS_MAX: usize = 100_000;

/// Explanation of a history up to some time.
#[derive(Clone)]
struct Configuration<S> {
    state: S,
    /// Open calls with a known answer that have taken effect.
    known: BTreeSet<usize>,
    /// Calls without an answer that have taken effect.
    unknown: BTreeSet<usize>,
}

/// Minimal configurations. With equal state and equal known calls, a configuration with fewer unanswered
/// calls explains more.
struct Frontier<S> {
    found: HashMap<(S, BTreeSet<usize>), Vec<BTreeSet<usize>>>,
    count: usize,
}

impl<S: Clone + Eq + Hash> Frontier<S> {
    fn new() -> Self {
        Self { found: HashMap::new(), count: 0 }
    }

    /// Adds a configuration. Returns false if another one explains as much.
    fn add(&mut self, of: &Configuration<S>) -> bool {
        let sets = self.found.entry((of.state.clone(), of.known.clone())).or_default();
        if sets.iter().any(|set| set.is_subset(&of.unknown)) {
            return false;
        }
        let before = sets.len();
        sets.retain(|set| !of.unknown.is_subset(set));
        self.count = self.count + 1 + sets.len() - before;
        sets.push(of.unknown.clone());
        true
    }

    fn into_configurations(self) -> Vec<Configuration<S>> {
        let all = self.found.into_iter().flat_map(|((state, known), sets)| {
            sets.into_iter().map(move |unknown| Configuration {
                state: state.clone(),
                known: known.clone(),
                unknown,
            })
        });
        all.collect()
    }
}

/// Open calls.
struct OpenCalls<'a, M: Model> {
    calls: &'a [Interval<M::Call>],
    known: BTreeSet<usize>,
    unknown: BTreeSet<usize>,
}

impl<M: Model> OpenCalls<'_, M> {
    /// Lets all calls take effect that change nothing and fit this state: no later order explains more.
    fn settle(&self, of: &mut Configuration<M::State>) {
        let open = self.known.iter().filter(|at| M::is_pure(&self.calls[**at].call));
        let open = open.filter(|at| M::step(&of.state, &self.calls[**at].call).is_some());
        let open: Vec<usize> = open.copied().collect();
        of.known.extend(open);
    }

    /// Returns all configurations after one more call.
    fn next(&self, of: &Configuration<M::State>) -> Vec<Configuration<M::State>> {
        let mut found = Vec::new();
        for &at in self.known.difference(&of.known) {
            if let Some(state) = M::step(&of.state, &self.calls[at].call) {
                let mut next = of.clone();
                next.state = state;
                next.known.insert(at);
                self.settle(&mut next);
                found.push(next);
            }
        }
        let mut tried: Vec<usize> = Vec::new();
        for &at in self.unknown.difference(&of.unknown) {
            let call = &self.calls[at].call;
            // The oldest of several equal calls represents all of them.
            if tried.iter().any(|&before| self.calls[before].call == *call) {
                continue;
            }
            tried.push(at);
            let Some(state) = M::step(&of.state, call).filter(|state| *state != of.state) else {
                continue;
            };
            let mut next = of.clone();
            next.state = state;
            next.unknown.insert(at);
            self.settle(&mut next);
            found.push(next);
        }
        found
    }

    /// Collects all configurations after `from` in which the call has taken effect.
    fn reach(
        &self,
        from: Configuration<M::State>,
        call: usize,
        out: &mut Frontier<M::State>,
    ) -> Result<(), Rejection> {
        let mut visited = Frontier::new();
        visited.add(&from);
        let mut open = vec![from];
        while let Some(one) = open.pop() {
            if one.known.contains(&call) {
                let mut one = one;
                one.known.remove(&call);
                out.add(&one);
                continue;
            }
            for next in self.next(&one) {
                if visited.add(&next) {
                    open.push(next);
                }
            }
            if visited.count.max(out.count) > CONFIGURATIONS_MAX {
                return Err(Rejection::TooMany);
            }
        }
        Ok(())
    }
}

/// Searches an order of the calls that explains all answers, starting in this state.
///
/// # Errors
/// If no such order exists, or the search is too large.
pub fn check<M: Model>(initial: M::State, calls: &[Interval<M::Call>]) -> Result<(), Rejection> {
    // Requests precede answers at equal times: such calls are concurrent.
    let mut events: Vec<(u64, bool, usize)> = Vec::new();
    for (at, call) in calls.iter().enumerate() {
        events.push((call.began, false, at));
        events.extend(call.ended.map(|ended| (ended, true, at)));
    }
    events.sort_unstable();
    let empty = (BTreeSet::new(), BTreeSet::new());
    let mut pending = OpenCalls::<M> { calls, known: empty.0, unknown: empty.1 };
    let first = Configuration { state: initial, known: BTreeSet::new(), unknown: BTreeSet::new() };
    let mut configurations = vec![first];
    for (_, is_answer, at) in events {
        if is_answer {
            if configurations.iter().all(|one| one.known.contains(&at)) {
                configurations.iter_mut().for_each(|one| _ = one.known.remove(&at));
                pending.known.remove(&at);
                continue;
            }
            let mut next = Frontier::new();
            for configuration in std::mem::take(&mut configurations) {
                pending.reach(configuration, at, &mut next)?;
            }
            pending.known.remove(&at);
            configurations = next.into_configurations();
            if configurations.is_empty() {
                return Err(Rejection::Unexplained(at));
            }
            continue;
        }
        match calls[at].ended {
            Some(_) => pending.known.insert(at),
            None => pending.unknown.insert(at),
        };
        configurations.iter_mut().for_each(|one| pending.settle(one));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A register: `(is_write, value)`.
    struct Register;

    impl Model for Register {
        type State = u32;
        type Call = (bool, u32);

        fn step(state: &u32, &(is_write, value): &(bool, u32)) -> Option<u32> {
            (is_write || *state == value).then_some(value)
        }

        fn is_pure(&(is_write, _): &(bool, u32)) -> bool {
            !is_write
        }
    }

    fn write(value: u32, began: u64, ended: impl Into<Option<u64>>) -> Interval<(bool, u32)> {
        Interval { call: (true, value), began, ended: ended.into() }
    }

    fn read(value: u32, began: u64, ended: u64) -> Interval<(bool, u32)> {
        Interval { call: (false, value), began, ended: Some(ended) }
    }

    fn is_linearizable(calls: &[Interval<(bool, u32)>]) -> bool {
        check::<Register>(0, calls).is_ok()
    }

    /// Tries all sequential orders that agree with time.
    fn by_brute_force(state: u32, left: &[Interval<(bool, u32)>]) -> bool {
        let earliest = left.iter().filter_map(|call| call.ended).min();
        let Some(earliest) = earliest else { return true };
        (0..left.len()).filter(|&at| left[at].began <= earliest).any(|at| {
            let mut rest = left.to_vec();
            let call = rest.remove(at).call;
            Register::step(&state, &call).is_some_and(|state| by_brute_force(state, &rest))
        })
    }

    #[test]
    fn calls_one_after_the_other_must_agree() {
        assert!(is_linearizable(&[write(1, 0, 1), read(1, 2, 3), write(2, 4, 5), read(2, 6, 7)]));
        let stale = [write(1, 0, 1), write(2, 2, 3), read(1, 4, 5)];
        assert_eq!(check::<Register>(0, &stale), Err(Rejection::Unexplained(2)));
    }

    #[test]
    fn concurrent_calls_may_take_either_order() {
        let both = |first, second| {
            [write(1, 0, 10), write(2, 0, 10), read(first, 11, 12), read(second, 13, 14)]
        };
        assert!(is_linearizable(&both(1, 1)) && is_linearizable(&both(2, 2)));
        assert!(!is_linearizable(&both(1, 2)));
        // A read during a write may see the old or the new value, but no later read may go back.
        assert!(is_linearizable(&[write(1, 0, 10), read(0, 1, 2), read(1, 3, 4)]));
        assert!(!is_linearizable(&[write(1, 0, 10), read(1, 1, 2), read(0, 3, 4)]));
    }

    #[test]
    fn unanswered_call_may_take_effect_late_or_never() {
        assert!(is_linearizable(&[write(1, 0, None), read(0, 5, 6), read(1, 7, 8)]));
        assert!(is_linearizable(&[write(1, 0, None), read(0, 5, 6)]));
        assert!(!is_linearizable(&[
            write(1, 0, None),
            read(1, 5, 6),
            write(2, 7, 8),
            read(1, 9, 10)
        ]));
        assert!(!is_linearizable(&[read(1, 0, 1), write(1, 2, None)]));
    }

    #[test]
    fn many_calls_without_answer_stay_cheap() {
        let mut calls: Vec<_> = (0..300).map(|at| write(at + 10, u64::from(at), None)).collect();
        calls.extend((0..200).map(|at| read(0, 3000 + 2 * at, 3001 + 2 * at)));
        assert!(is_linearizable(&calls));
        calls.push(read(309, 9000, 9001));
        calls.push(read(5, 9002, 9003));
        assert_eq!(check::<Register>(0, &calls), Err(Rejection::Unexplained(501)));
    }

    #[test]
    fn random_histories_are_judged_as_by_brute_force() {
        use rand::{RngExt, SeedableRng};
        let mut random = rand_xoshiro::Xoshiro256PlusPlus::seed_from_u64(7);
        let mut accepted = 0;
        for _ in 0..3000 {
            let mut call = |_| {
                let began = random.random_range(0..12);
                let ended = began + random.random_range(0..6);
                let value = random.random_range(0..3);
                match random.random_range(0..5) {
                    0..2 => read(value, began, ended),
                    2 => write(value, began, None),
                    _ => write(value, began, ended),
                }
            };
            let calls: Vec<_> = (0..7).map(&mut call).collect();
            let expected = by_brute_force(0, &calls);
            assert_eq!(is_linearizable(&calls), expected, "{calls:?}");
            accepted += u32::from(expected);
        }
        assert!((300..2700).contains(&accepted), "{accepted}");
    }
}
