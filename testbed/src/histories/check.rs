//! Checker of histories: those of real controllers, and those of long random runs in emulated time.
//!
//! - Each key (a spine, leaf, server or pool) is linearizable: additions, removals, settings, refusals and reads
//!   have an order that agrees with time.
//! - Versions order all changes. No answer has a lower version than an answer that ended before its request.
//!   No two changes share a version.
//! - A command with `--if-version` takes effect at that version only.
//! - A version has one state. All clients and followers see the same one, and it contains its acknowledged
//!   change.
//! - A follower never goes back to a lower version.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::marker::PhantomData;
use std::rc::Rc;

use super::linear::{self, Interval, Model, Rejection};
use super::record::{Answer, Change, Entry, History, Key, Operation, Request, Update, value};

/// Maximum number of history lines that a violation prints.
const LINES_MAX: usize = 14;

/// Rule of correct histories.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rule {
    /// Linearizability of a key.
    Linearizable,
    /// Versions that grow with time.
    Monotonic,
    /// One change per version.
    Unique,
    /// Condition of a command.
    Condition,
    /// One state per version.
    OneState,
    /// Followers that never go back.
    Follower,
    /// Service after the faults. The run checks it, not [`check`].
    Served,
}

/// Violation of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Broken rule.
    pub rule: Rule,
    /// Time of the violation, in nanoseconds.
    pub at_ns: u64,
    /// Description in one sentence.
    pub description: String,
    /// Part of the history that proves the violation.
    pub lines: Vec<String>,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.description)?;
        self.lines.iter().try_for_each(|line| write!(f, "\n    {line}"))
    }
}

/// Returns the violations of a history. For each key that is not linearizable, it reports only the first violation.
#[must_use]
pub fn check(history: &History) -> Vec<Violation> {
    let mut violations = keys(history);
    violations.extend(versions(history));
    violations.extend(states(history));
    violations.extend(followers(history));
    violations
}

/// Sequential model of one key, for the check of linearizability.
struct KeyModel<'a>(PhantomData<&'a ()>);

/// Operation on one key, with its answer.
#[derive(Clone, Copy, PartialEq)]
enum Call<'a> {
    /// A read of this value; `None` if the key did not exist.
    Read(Option<&'a Entry>),
    /// An acknowledged change.
    Done(&'a Change),
    /// A change refused because the key did not exist.
    Absent,
    /// A change refused because the key existed.
    Present,
    /// A change without an answer.
    Unknown(&'a Change),
}

impl<'a> Model for KeyModel<'a> {
    type State = Option<Rc<Entry>>;
    type Call = Call<'a>;

    /// Returns the key's value after a call; `None` if the call contradicts the value before it.
    fn step(state: &Self::State, call: &Call<'a>) -> Option<Self::State> {
        match *call {
            Call::Read(entry) => (state.as_deref() == entry).then(|| state.clone()),
            Call::Absent => state.is_none().then(|| state.clone()),
            Call::Present => state.is_some().then(|| state.clone()),
            Call::Done(change) | Call::Unknown(change) => apply(state, change),
        }
    }

    /// Returns true for reads and refusals, which never change the key.
    fn is_pure(call: &Call<'a>) -> bool {
        matches!(call, Call::Read(_) | Call::Absent | Call::Present)
    }
}

/// Returns the state of a key after a change; `None` if the change is impossible.
fn apply(state: &Option<Rc<Entry>>, change: &Change) -> Option<Option<Rc<Entry>>> {
    match (state, change) {
        (None, Change::Add(entry)) => Some(Some(Rc::new(entry.clone()))),
        (Some(entry), &Change::Set(field, value)) => {
            let index = entry.set.iter().position(|(name, _)| *name == field)?;
            if entry.set[index].1 == value {
                return Some(state.clone());
            }
            let mut entry = Entry::clone(entry);
            entry.set[index].1 = value;
            Some(Some(Rc::new(entry)))
        }
        (Some(_), Change::Remove) => Some(None),
        (Some(_), Change::Add(_)) | (None, _) => None,
    }
}

/// Source of a call on a key: a client's operation, or a follower's first message.
#[derive(Clone, Copy)]
enum CallSource<'a> {
    Operation(&'a Operation),
    Update(&'a Update),
}

impl CallSource<'_> {
    fn ended_ns(self) -> u64 {
        match self {
            Self::Operation(operation) => operation.ended_ns,
            Self::Update(update) => update.at_ns,
        }
    }
}

/// Calls on one key with their intervals and sources.
type Calls<'a> = Vec<(Interval<Call<'a>>, CallSource<'a>)>;

/// Returns the calls on one key, by request time: the operations on it, and the first messages to followers that
/// contain it. A message without the key proves nothing, because it holds a part of the state. Leaves out failed
/// operations and refusals of a version, which prove nothing about the key.
fn calls_on(history: &History, key: Key) -> Calls<'_> {
    let mut calls = Vec::new();
    for operation in &history.operations {
        let call = match (&operation.request, &operation.answer) {
            (Request::Read, &Answer::State { state, .. }) => {
                Call::Read(value(&history.states[state], key))
            }
            (Request::Command { key: changed, change, .. }, answer) if *changed == key => {
                match answer {
                    Answer::Done { .. } => Call::Done(change),
                    Answer::Absent => Call::Absent,
                    Answer::Present => Call::Present,
                    Answer::Unknown { .. } => Call::Unknown(change),
                    _ => continue,
                }
            }
            _ => continue,
        };
        let ended = (!matches!(call, Call::Unknown(_))).then_some(operation.ended_ns);
        let interval = Interval { call, began: operation.began_ns, ended };
        calls.push((interval, CallSource::Operation(operation)));
    }
    for update in &history.updates {
        let (Some(began), Some(entry)) = (update.asked_ns, value(&update.part, key)) else {
            continue;
        };
        let interval = Interval { call: Call::Read(Some(entry)), began, ended: Some(update.at_ns) };
        calls.push((interval, CallSource::Update(update)));
    }
    calls.sort_by_key(|(interval, _)| interval.began);
    calls
}

/// Checks the linearizability of these calls, starting without the key.
fn check_calls(calls: &[(Interval<Call<'_>>, CallSource<'_>)]) -> Result<(), Rejection> {
    let intervals: Vec<_> = calls.iter().map(|(interval, _)| interval.clone()).collect();
    linear::check::<KeyModel<'_>>(None, &intervals)
}

/// Removes reads and refusals in ever smaller groups, as long as the rest is still rejected. A correct
/// history stays correct without them, so the rest still proves the violation.
fn shrink(mut calls: Calls<'_>) -> Calls<'_> {
    let mut size = calls.len();
    while size > 0 {
        let mut from = 0;
        while from < calls.len() {
            let group = from..(from + size).min(calls.len());
            let is_removed =
                |index: usize| group.contains(&index) && KeyModel::is_pure(&calls[index].0.call);
            let rest: Calls<'_> = (0..calls.len())
                .filter(|&index| !is_removed(index))
                .map(|index| calls[index].clone())
                .collect();
            // A history with too many configurations proves nothing.
            let is_rejected = || matches!(check_calls(&rest), Err(Rejection::Unexplained(_)));
            if rest.len() < calls.len() && is_rejected() {
                calls = rest;
            } else {
                from += size;
            }
        }
        size /= 2;
    }
    calls
}

/// Returns the line of a call on a key, with the value that it read.
fn line((interval, source): &(Interval<Call<'_>>, CallSource<'_>), key: Key) -> String {
    let line = match source {
        CallSource::Operation(operation) => operation.to_string(),
        CallSource::Update(update) => update.to_string(),
    };
    match interval.call {
        Call::Read(None) => format!("{line}, without {key}"),
        Call::Read(Some(entry)) => format!("{line}, with {key} = {entry}"),
        _ => line,
    }
}

/// Returns violations of linearizability, by key.
fn keys(history: &History) -> Vec<Violation> {
    let read = history.states.iter().flatten().map(|(key, _)| *key);
    let commands = history.operations.iter().filter_map(|operation| match operation.request {
        Request::Command { key, .. } => Some(key),
        Request::Read => None,
    });
    let parts = history.updates.iter().flat_map(|update| &update.part).map(|(key, _)| *key);
    let keys: BTreeSet<Key> = read.chain(commands).chain(parts).collect();
    let violations = keys.into_iter().filter_map(|key| {
        let calls = calls_on(history, key);
        let (index, description) = match check_calls(&calls) {
            Ok(()) => return None,
            Err(Rejection::TooMany) => {
                let description = format!(
                    "{key}: too many operations without an answer to judge its history; run fewer clients or shorter faults"
                );
                return Some(Violation {
                    rule: Rule::Linearizable,
                    at_ns: 0,
                    description,
                    lines: Vec::new(),
                });
            }
            Err(Rejection::Unexplained(index)) => {
                (index, format!("{key} is not linearizable: no order of these operations explains the last answer"))
            }
        };
        let at_ns = calls[index].1.ended_ns();
        // The history up to the unexplained answer. Later answers become open, and open reads prove nothing.
        let prefix: Calls<'_> = calls
            .into_iter()
            .filter(|(interval, _)| interval.began <= at_ns)
            .map(|(interval, source)| {
                let ended = interval.ended.filter(|ended| *ended <= at_ns);
                (Interval { ended, ..interval }, source)
            })
            .filter(|(interval, _)| interval.ended.is_some() || !KeyModel::is_pure(&interval.call))
            .collect();
        let mut shown = shrink(prefix);
        shown.sort_by_key(|(interval, source)| (interval.ended.unwrap_or(interval.began), source.ended_ns()));
        let omitted = shown.len().saturating_sub(LINES_MAX);
        let mut lines: Vec<_> = shown[omitted..].iter().map(|call| line(call, key)).collect();
        if omitted > 0 {
            lines.insert(0, format!("({omitted} earlier operations on {key})"));
        }
        Some(Violation { rule: Rule::Linearizable, at_ns, description, lines })
    });
    violations.collect()
}

/// Version in an answer or a first message, with its interval.
struct Stamp<'a> {
    /// Time of the request.
    began_ns: u64,
    /// Time of the answer.
    ended_ns: u64,
    version: u64,
    source: CallSource<'a>,
    /// True if this operation's change made the version.
    is_change: bool,
}

impl fmt::Display for Stamp<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.source {
            CallSource::Operation(operation) => operation.fmt(f),
            CallSource::Update(update) => update.fmt(f),
        }
    }
}

/// Returns the key and index of each operation that sets a setting to the same value as another operation on the key.
/// Such a command may change nothing, and then returns the version of another change.
fn repeated(history: &History) -> BTreeSet<(Key, usize)> {
    let mut first_index = HashMap::<_, usize>::new();
    let mut repeats = BTreeSet::new();
    let commands = history.operations.iter().enumerate();
    for (index, operation) in commands {
        let Request::Command { key, change, .. } = &operation.request else { continue };
        let settings = match change {
            Change::Add(entry) => entry.set.clone(),
            &Change::Set(field, value) => vec![(field, value)],
            Change::Remove => continue,
        };
        for setting in settings {
            match first_index.get(&(*key, setting)) {
                Some(&earlier) => repeats.extend([(*key, earlier), (*key, index)]),
                None => _ = first_index.insert((*key, setting), index),
            }
        }
    }
    repeats
}

/// Returns violations of the rules about versions: [`Rule::Monotonic`], [`Rule::Unique`] and [`Rule::Condition`]. A
/// change needs a version above all that were returned before its request.
fn versions(history: &History) -> Vec<Violation> {
    let repeated = repeated(history);
    let mut stamps = Vec::new();
    let mut violations = Vec::new();
    for (index, operation) in history.operations.iter().enumerate() {
        let (version, is_change) = match (&operation.answer, &operation.request) {
            (&Answer::State { version, .. }, _) => (version, false),
            (&Answer::OtherVersion { found }, _) => (found, false),
            (&Answer::Done { version }, Request::Command { key, change, .. }) => {
                let may_repeat =
                    matches!(change, Change::Set(..)) && repeated.contains(&(*key, index));
                (version, !may_repeat)
            }
            _ => continue,
        };
        let (began_ns, ended_ns) = (operation.began_ns, operation.ended_ns);
        let source = CallSource::Operation(operation);
        violations.extend(condition(operation, is_change));
        stamps.push(Stamp { began_ns, ended_ns, version, source, is_change });
    }
    let firsts = history.updates.iter().filter_map(|update| {
        let (began_ns, ended_ns, version) = (update.asked_ns?, update.at_ns, update.version);
        let source = CallSource::Update(update);
        Some(Stamp { began_ns, ended_ns, version, source, is_change: false })
    });
    stamps.extend(firsts);
    let mut changes = HashMap::<u64, &Stamp<'_>>::new();
    for stamp in stamps.iter().filter(|stamp| stamp.is_change) {
        if let Some(earlier) = changes.insert(stamp.version, stamp) {
            violations.push(Violation {
                rule: Rule::Unique,
                at_ns: stamp.ended_ns,
                description: format!("two changes are acknowledged as version {}", stamp.version),
                lines: vec![earlier.to_string(), stamp.to_string()],
            });
        }
    }
    // Compares each answer with the newest version that was returned before its request.
    let (mut by_begin, mut by_end): (Vec<_>, Vec<_>) =
        (stamps.iter().collect(), stamps.iter().collect());
    by_begin.sort_by_key(|stamp| stamp.began_ns);
    by_end.sort_by_key(|stamp| stamp.ended_ns);
    let (mut ended_stamps, mut newest) = (by_end.into_iter().peekable(), None::<&Stamp<'_>>);
    for stamp in by_begin {
        while let Some(earlier) = ended_stamps.next_if(|earlier| earlier.ended_ns < stamp.began_ns)
        {
            if newest.is_none_or(|newest| newest.version < earlier.version) {
                newest = Some(earlier);
            }
        }
        let Some(newest) = newest else { continue };
        if stamp.version < newest.version || stamp.is_change && stamp.version == newest.version {
            violations.push(Violation {
                rule: Rule::Monotonic,
                at_ns: stamp.ended_ns,
                description: format!(
                    "version {} answers a request that began after version {} was returned",
                    stamp.version, newest.version
                ),
                lines: vec![newest.to_string(), stamp.to_string()],
            });
        }
    }
    violations
}

/// Returns the violation of a command's condition, if any. A change makes the version after the required one. A
/// command that may have changed nothing (`is_change` is false) may also return the required version itself.
fn condition(operation: &Operation, is_change: bool) -> Option<Violation> {
    let Request::Command { if_version: Some(wanted), .. } = operation.request else { return None };
    let is_met = match operation.answer {
        Answer::Done { version } => version == wanted + 1 || !is_change && version == wanted,
        Answer::OtherVersion { found } => found != wanted,
        _ => true,
    };
    (!is_met).then(|| Violation {
        rule: Rule::Condition,
        at_ns: operation.ended_ns,
        description: format!("a command for only version {wanted} is answered by another version"),
        lines: vec![operation.to_string()],
    })
}

/// Describes the value of a key.
fn describe(entry: Option<&Entry>) -> String {
    entry.map_or("absent".to_owned(), ToString::to_string)
}

/// Returns violations of the rule that a version has one state. Compares the reads of a version with each other, with
/// the change acknowledged as that version, and with the followers' parts and views.
fn states(history: &History) -> Vec<Violation> {
    // First state read at each version.
    let mut first_reads = BTreeMap::<u64, (usize, &Operation)>::new();
    let mut violations = Vec::new();
    for operation in &history.operations {
        let Answer::State { version, state, .. } = operation.answer else { continue };
        let &mut (first_state, first_operation) =
            first_reads.entry(version).or_insert((state, operation));
        if first_state != state {
            let (left, right) = (&history.states[first_state], &history.states[state]);
            let keys: BTreeSet<Key> = left.iter().chain(right).map(|(key, _)| *key).collect();
            let differ = keys.into_iter().filter(|&key| value(left, key) != value(right, key));
            let differ: Vec<String> = differ
                .map(|key| {
                    let (left, right) = (describe(value(left, key)), describe(value(right, key)));
                    format!("{key}: first {left}, then {right}")
                })
                .collect();
            let mut lines = vec![first_operation.to_string(), operation.to_string()];
            lines.extend(differ);
            violations.push(Violation {
                rule: Rule::OneState,
                at_ns: operation.ended_ns,
                description: format!("version {version} has two states"),
                lines,
            });
        }
    }
    let state_of = |version: u64| {
        first_reads.get(&version).map(|(state, reader)| (&history.states[*state], reader))
    };
    for operation in &history.operations {
        let Request::Command { key, change, .. } = &operation.request else { continue };
        let Answer::Done { version } = operation.answer else { continue };
        let Some((state, reader)) = state_of(version) else { continue };
        let current = value(state, *key);
        let has_change = match change {
            Change::Add(entry) => current == Some(entry),
            Change::Set(field, value) => {
                current.is_some_and(|entry| entry.set.contains(&(*field, *value)))
            }
            Change::Remove => current.is_none(),
        };
        if !has_change {
            violations.push(Violation {
                rule: Rule::OneState,
                at_ns: operation.ended_ns.max(reader.ended_ns),
                description: format!(
                    "version {version} lacks the change that was acknowledged with it: {key} is {}",
                    describe(current)
                ),
                lines: vec![operation.to_string(), reader.to_string()],
            });
        }
    }
    let mut views = HashMap::<_, &Update>::new();
    for update in &history.updates {
        let first_update = *views.entry((&update.node, update.version)).or_insert(update);
        if first_update.view != update.view {
            violations.push(Violation {
                rule: Rule::OneState,
                at_ns: update.at_ns,
                description: format!("{} has two views of version {}", update.node, update.version),
                lines: vec![first_update.to_string(), update.to_string()],
            });
        }
        let Some((state, reader)) = state_of(update.version) else { continue };
        let differs = update.part.iter().find(|(key, entry)| value(state, *key) != Some(entry));
        if let Some((key, entry)) = differs {
            violations.push(Violation {
                rule: Rule::OneState,
                at_ns: update.at_ns.max(reader.ended_ns),
                description: format!(
                    "{} and a client see two states of version {}: {key} is {entry} at the node and {} at the client",
                    update.node,
                    update.version,
                    describe(value(state, *key))
                ),
                lines: vec![update.to_string(), reader.to_string()],
            });
        }
    }
    violations
}

/// Returns violations of the rule that followers never go back. A new process of a follower may start lower.
fn followers(history: &History) -> Vec<Violation> {
    let mut newest = HashMap::<_, &Update>::new();
    let mut violations = Vec::new();
    for update in &history.updates {
        let newest_update = *newest.entry((&update.node, update.process)).or_insert(update);
        if update.version < newest_update.version {
            violations.push(Violation {
                rule: Rule::Follower,
                at_ns: update.at_ns,
                description: format!(
                    "{} goes back from version {} to {}",
                    update.node, newest_update.version, update.version
                ),
                lines: vec![newest_update.to_string(), update.to_string()],
            });
        } else {
            newest.insert((&update.node, update.process), update);
        }
    }
    violations
}

#[cfg(test)]
mod tests {
    use super::super::record::{Field, Kind, State};
    use super::*;

    const LEAF: Key = Key(Kind::Leaf, 7);
    const POOL: Key = Key(Kind::Pool, 1);

    /// Returns the value of a leaf with this address.
    fn leaf(ip: u8) -> Entry {
        Entry { made: format!("10.0.0.{ip}"), set: vec![(Field::Failed, 0)] }
    }

    /// Returns the value of a pool with this queue limit.
    fn pool(queue: u64) -> Entry {
        Entry { made: "horus".to_owned(), set: vec![(Field::Queue, queue)] }
    }

    /// Returns a client's operation that changes a key.
    fn command(
        key: Key,
        change: Change,
        (began_ns, ended_ns): (u64, u64),
        answer: Answer,
    ) -> Operation {
        let text = format!("{change:?}");
        let request = Request::Command { text, key, change, if_version: None };
        Operation { client: 1, controller: 1, began_ns, ended_ns, request, answer }
    }

    /// Returns a change that is acknowledged with this version.
    fn done(key: Key, change: Change, at_ns: u64, version: u64) -> Operation {
        command(key, change, (at_ns, at_ns + 5), Answer::Done { version })
    }

    /// Returns a change without an answer.
    fn unknown(key: Key, change: Change, at_ns: u64) -> Operation {
        let answer = Answer::Unknown { reason: "timeout".to_owned() };
        command(key, change, (at_ns, at_ns + 5), answer)
    }

    /// Returns a message to a follower, whose view is a pool with this queue limit.
    fn update(process: u64, at_ns: u64, version: u64, queue: u64) -> Update {
        Update {
            node: "leaf 1".to_owned(),
            process,
            controller: 1,
            asked_ns: None,
            at_ns,
            term: 1,
            version,
            view: queue,
            part: vec![(POOL, pool(queue))],
        }
    }

    impl History {
        /// Creates a history of these operations.
        fn from_operations(operations: impl IntoIterator<Item = Operation>) -> Self {
            let mut history = Self::default();
            history.operations.extend(operations);
            history
        }

        /// Adds a read of this state.
        fn with_read(mut self, at_ns: u64, version: u64, state: State) -> Self {
            let state = self.intern(state);
            let answer = Answer::State { term: 1, version, state };
            let request = Request::Read;
            let (began_ns, ended_ns) = (at_ns, at_ns + 5);
            let operation =
                Operation { client: 2, controller: 2, began_ns, ended_ns, request, answer };
            self.operations.push(operation);
            self
        }

        /// Adds messages to followers.
        fn updates(mut self, updates: impl IntoIterator<Item = Update>) -> Self {
            self.updates.extend(updates);
            self
        }
    }

    /// Returns the rules that a history breaks.
    fn rules(history: &History) -> BTreeSet<Rule> {
        check(history).into_iter().map(|violation| violation.rule).collect()
    }

    /// Returns a correct history: changes of a leaf and a pool, and the reads of clients and a follower. The change
    /// without an answer took effect, as version 3.
    fn right() -> History {
        let entities = |queue| vec![(LEAF, leaf(1)), (POOL, pool(queue))];
        History::from_operations([
            done(POOL, Change::Add(pool(5)), 10, 1),
            done(LEAF, Change::Add(leaf(1)), 20, 2),
            command(LEAF, Change::Add(leaf(2)), (30, 35), Answer::Present),
            unknown(POOL, Change::Set(Field::Queue, 6), 40),
            done(POOL, Change::Set(Field::Queue, 7), 70, 4),
        ])
        .with_read(50, 2, entities(5))
        .with_read(60, 3, entities(6))
        .with_read(80, 4, entities(7))
        .updates([update(1, 15, 1, 5), update(1, 65, 3, 6), update(1, 76, 4, 7)])
    }

    #[test]
    fn right_history_passes() {
        assert_eq!(check(&right()), []);
    }

    /// A removal is acknowledged, but a later read still has the leaf.
    #[test]
    fn lost_acknowledged_change_is_found() {
        let mut history = right();
        history.operations.push(done(LEAF, Change::Remove, 90, 5));
        let history = history.with_read(100, 6, vec![(LEAF, leaf(1)), (POOL, pool(7))]);
        let found = check(&history);
        let [violation] = &found[..] else { panic!("{found:?}") };
        assert_eq!(violation.rule, Rule::Linearizable);
        assert!(violation.description.contains("leaf 7 is not linearizable"), "{violation}");
        // Addition, removal and the last read: without operations on other keys, and without irrelevant reads.
        assert_eq!(violation.lines.len(), 3, "{violation}");
        assert!(violation.lines[2].ends_with("with leaf 7 = 10.0.0.1 failed=0"), "{violation}");
    }

    /// A read of version 3 begins after version 4 was returned.
    #[test]
    fn stale_read_is_found() {
        let history = right().with_read(90, 3, vec![(LEAF, leaf(1)), (POOL, pool(6))]);
        assert_eq!(rules(&history), [Rule::Linearizable, Rule::Monotonic].into());
    }

    /// The first message of a connection counts as a read. It must not be older than earlier answers.
    #[test]
    fn stale_snapshot_for_new_follower_is_found() {
        let first = Update { asked_ns: Some(90), ..update(2, 95, 3, 6) };
        let history = right().updates([first]);
        assert_eq!(rules(&history), [Rule::Linearizable, Rule::Monotonic].into());
        // An update sent earlier may arrive late.
        assert_eq!(check(&right().updates([update(2, 95, 3, 6)])), []);
    }

    /// A removal is refused as absent although the leaf exists.
    #[test]
    fn refusal_against_the_state_is_found() {
        let mut history = right();
        history.operations.push(command(LEAF, Change::Remove, (90, 95), Answer::Absent));
        assert_eq!(rules(&history), [Rule::Linearizable].into());
    }

    #[test]
    fn two_changes_of_one_version_are_found() {
        let mut history = right();
        let concurrent = command(LEAF, Change::Remove, (70, 75), Answer::Done { version: 4 });
        history.operations.push(concurrent);
        let found = rules(&history);
        assert!(found.contains(&Rule::Unique), "{found:?}");
        // A command that changes nothing returns the version of another command.
        let mut history = right();
        history.operations.push(done(POOL, Change::Set(Field::Queue, 7), 90, 4));
        assert_eq!(check(&history), []);
    }

    #[test]
    fn acknowledged_version_with_another_state_is_found() {
        // The store kept the change of an unknown request in place of the acknowledged one.
        let mut history = right();
        history.operations.push(unknown(LEAF, Change::Remove, 85));
        history.operations.push(done(POOL, Change::Set(Field::Queue, 8), 90, 5));
        let history = history.with_read(100, 5, vec![(POOL, pool(7))]);
        assert_eq!(rules(&history), [Rule::Linearizable, Rule::OneState].into());
    }

    /// Two reads differ at one version, or two processes of a follower have different views of it.
    #[test]
    fn two_states_of_one_version_are_found() {
        let history = right().with_read(79, 4, vec![(POOL, pool(7))]);
        assert!(rules(&history).contains(&Rule::OneState));
        let history = right().updates([update(2, 90, 4, 9)]);
        assert_eq!(rules(&history), [Rule::OneState].into());
    }

    /// A process goes back from version 4 to 3. Another process may begin with version 3.
    #[test]
    fn follower_that_goes_back_is_found() {
        let history = right().updates([update(1, 90, 3, 6)]);
        assert_eq!(rules(&history), [Rule::Follower].into());
        assert_eq!(check(&right().updates([update(2, 90, 3, 6)])), []);
    }

    /// A command that requires version 3 makes version 5.
    #[test]
    fn command_at_another_version_is_found() {
        let mut history = right();
        let mut operation = done(LEAF, Change::Remove, 90, 5);
        let Request::Command { if_version, .. } = &mut operation.request else { panic!() };
        *if_version = Some(3);
        history.operations.push(operation);
        assert_eq!(rules(&history), [Rule::Condition].into());
    }

    #[test]
    fn written_history_is_read_back() {
        let mut file = Vec::new();
        right().write(&mut file).unwrap();
        let read = History::read(&file[..]).unwrap();
        assert_eq!((&read.states, &read.operations), (&right().states, &right().operations));
        assert_eq!((read.updates.len(), check(&read)), (3, Vec::new()));
        assert!(History::read(&b"{\"operation\": 1}\n"[..]).is_err());
    }
}
