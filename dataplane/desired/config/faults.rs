//! Faults of a file: collected with their places during the check, reported together.
//!
//! In the functions of this folder, `at` is a value of the file with its place.

use std::collections::HashSet;
use std::fmt;
use std::hash::Hash;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use toml::Spanned;
use wedjat_core::limits::{PLACES_MAX, WORKER_ID_MAX};
use wedjat_core::policy::{CATALOGUE, PolicyChoice, PolicySpec, Runs};
use wedjat_core::state::files;
use wedjat_core::wire::ether::Mac;

use super::address::UNSPECIFIED;
use super::fault::{ConfigFault, Lines};
use super::ids;
use super::keys::{DefaultValue, Kind};
use super::read::{File, Table, word};
use super::settings::{Reader, Settings};
use crate::state::QueueLimit;

/// Description of an allowed host address.
pub const HOST: &str = "a host's IPv4 or IPv6 address such as 10.0.2.11 or fd00:2::b";

/// Description of an allowed policy.
const POLICY: &str = "a policy that `wedjat policies` lists";

/// Maximum number of faults, and of warnings, that are printed for a file. The rest is counted.
const SHOWN_MAX: usize = 100;

/// Error of a refused configuration, with all its faults.
#[derive(Clone, Debug)]
pub struct ConfigError {
    /// Path of the file.
    pub path: PathBuf,
    /// Faults in order of lines.
    pub faults: Vec<ConfigFault>,
}

impl std::error::Error for ConfigError {}

/// Formats warnings: one line each, with the file, line, key, value found and a better value.
pub fn lines(path: &Path, warnings: &[ConfigFault]) -> Vec<String> {
    let line_of = |warning: &ConfigFault| {
        format!("{}; better: {}", warning.place_and_found(path), warning.allowed)
    };
    let more = more(path, warnings.len(), "warnings");
    warnings.iter().take(SHOWN_MAX).map(line_of).chain(more).collect()
}

/// Returns a line with the number of unprinted faults or warnings, if there are any.
fn more(path: &Path, count: usize, name: &str) -> Option<String> {
    let rest = count.checked_sub(SHOWN_MAX).filter(|rest| *rest > 0)?;
    Some(format!("{}: {rest} more {name} not printed", path.display()))
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, fault) in self.faults.iter().take(SHOWN_MAX).enumerate() {
            if index > 0 {
                writeln!(f)?;
            }
            write!(f, "{}; allowed: {}", fault.place_and_found(&self.path), fault.allowed)?;
        }
        let more = more(&self.path, self.faults.len(), "faults");
        more.map_or(Ok(()), |more| write!(f, "\n{more}"))
    }
}

/// Reads the text of a file.
///
/// # Errors
/// If the file cannot be read.
pub fn read(path: &Path) -> Result<String, ConfigError> {
    files::read_text(path).map_err(|error| ConfigError {
        path: path.to_owned(),
        faults: vec![ConfigFault::of_file(
            &format!("a file that can't be read ({error})"),
            "a readable TOML file of at most 16 MiB",
        )],
    })
}

/// Set of values that a file may have once each, such as ids or addresses. It finds repetitions.
pub struct UniqueKeys<T>(HashSet<T>);

impl<T: Eq + Hash> UniqueKeys<T> {
    /// Creates an empty set.
    pub fn new() -> Self {
        Self(HashSet::new())
    }

    /// Adds a value. Returns true if the set has it already.
    pub fn is_again(&mut self, key: T) -> bool {
        !self.0.insert(key)
    }
}

/// Formats ids for a message. Long lists are cut.
pub fn some_ids(ids: impl Iterator<Item = u16>) -> String {
    let mut ids: Vec<_> = ids.take(IDS_SHOWN + 1).map(|id| id.to_string()).collect();
    if ids.len() > IDS_SHOWN {
        ids[IDS_SHOWN] = "...".to_owned();
    }
    ids.join(", ")
}

/// Maximum number of ids in a message.
const IDS_SHOWN: usize = 16;

/// State of a file's check: the tables to check, and the faults, warnings and settings so far. Its methods read a
/// value, record a fault for an invalid one, and return a substitute, so that one check finds all faults.
pub struct FaultCollector {
    /// Line ends of the text, to find a value's line.
    lines: Lines,
    /// Parser of the file's id lists.
    lists: ids::Lists,
    /// Faults so far.
    all: Vec<ConfigFault>,
    /// Settings that are allowed and are probably mistakes. `allowed` names a better value.
    warnings: Vec<ConfigFault>,
    /// Tables of the file.
    pub file: File,
    /// Settings that a reload compares.
    pub settings: Reader,
}

impl FaultCollector {
    /// Creates a collector for a file with this text.
    pub fn new(file: File, text: &str) -> Self {
        Self {
            settings: Reader::new(&file),
            file,
            lines: Lines::of(text),
            lists: ids::Lists::default(),
            all: Vec::new(),
            warnings: Vec::new(),
        }
    }

    /// Returns all warnings in order of lines and the settings, or all faults if there are any.
    pub fn none_or_all(mut self) -> Result<(Vec<ConfigFault>, Settings), Vec<ConfigFault>> {
        // Faults without a line come last.
        let line = |fault: &ConfigFault| (fault.line == 0, fault.line);
        self.all.sort_by_key(line);
        self.warnings.sort_by_key(line);
        let settings = self.settings.into_settings();
        if self.all.is_empty() { Ok((self.warnings, settings)) } else { Err(self.all) }
    }

    /// Adds a warning with a better value.
    pub fn warn<T>(&mut self, at: &Spanned<T>, key: &str, found: impl ToString, better: &str) {
        let line = self.lines.at(at.span().start);
        let (key, found, allowed) = (key.to_owned(), found.to_string(), better.to_owned());
        self.warnings.push(ConfigFault { line, key, found, allowed });
    }

    /// Adds a warning of a key without effect, with the reason.
    pub fn unused<T>(&mut self, at: Option<&Spanned<T>>, key: &str, reason: &str, better: &str) {
        if let Some(at) = at {
            self.warn(at, key, format!("a key that changes nothing: {reason}"), better);
        }
    }

    /// Adds a fault at a place.
    pub fn note<T>(&mut self, at: &Spanned<T>, key: &str, found: impl ToString, allowed: &str) {
        let line = self.lines.at(at.span().start);
        self.push(line, key, found.to_string(), allowed);
    }

    /// Adds a fault without a place in the file.
    pub fn note_in_file(&mut self, key: &str, found: &str, allowed: &str) {
        self.push(0, key, found.to_owned(), allowed);
    }

    /// Adds a fault on a line.
    fn push(&mut self, line: usize, key: &str, found: String, allowed: &str) {
        self.all.push(ConfigFault {
            line,
            key: key.to_owned(),
            found,
            allowed: allowed.to_owned(),
        });
    }

    /// Records the canonical form of a value, so that a reload ignores a change of spelling. After `None`, a reload
    /// treats the key as absent. Does nothing for a live key, which a reload compares elsewhere.
    pub fn record<T>(&mut self, at: &Spanned<T>, value: Option<impl ToString>) {
        self.settings.set_at(at, value.map(|value| value.to_string()));
    }

    /// Parses the address of a host. `fits` accepts or refuses it. Records a fault and returns 0.0.0.0 for an invalid
    /// address; later checks skip that address.
    pub fn host(
        &mut self,
        at: &Spanned<String>,
        key: &str,
        fits: impl Fn(IpAddr) -> bool,
        allowed: &str,
    ) -> IpAddr {
        let address = at.get_ref().parse().ok().filter(|&address| fits(address));
        self.record(at, address);
        address.unwrap_or_else(|| {
            self.note(at, key, quoted(at), allowed);
            UNSPECIFIED
        })
    }

    /// Parses the MAC address of a host. Records a fault and returns `None` for an invalid one.
    pub fn mac(&mut self, at: Option<&Spanned<String>>, key: &str) -> Option<Mac> {
        let at = at?;
        let mac = at.get_ref().parse::<Mac>().ok().filter(|mac| mac.is_host());
        self.record(at, mac);
        if mac.is_none() {
            let allowed = "a unicast MAC address such as 02:00:00:00:02:0b";
            self.note(at, key, quoted(at), allowed);
        }
        mac
    }

    /// Parses a list of worker ids. Records a fault and returns an empty list for an invalid one.
    pub fn workers(&mut self, at: &Spanned<String>, key: &str) -> Vec<u16> {
        self.lists.parse(at.get_ref(), 0..=WORKER_ID_MAX).unwrap_or_else(|found| {
            let allowed = format!("ids from 0 to {WORKER_ID_MAX} and ranges, as in \"0-31,40\"");
            self.note(at, key, found, &allowed);
            Vec::new()
        })
    }

    /// Parses the policy of a spine's pool, whose members are leaves (racks). Records a fault and returns `None` for
    /// any other text.
    pub fn policy_over_racks(&mut self, at: &Spanned<String>, key: &str) -> Option<PolicySpec> {
        let policy = at.get_ref().parse::<PolicySpec>();
        let found = match policy {
            Ok(policy) if policy.entry().runs_on_spine() => return Some(policy),
            Ok(_) => format!("{}, whose members are workers", quoted(at)),
            Err(error) => error.to_string(),
        };
        self.note(at, key, found, &format!("a policy over racks: {}", over_racks().join(", ")));
        None
    }

    /// Parses the policy of a leaf's or agent's pool, whose members are workers. Records a fault and returns `None` for
    /// any other text.
    pub fn policy(&mut self, at: &Spanned<String>, key: &str) -> Option<PolicySpec> {
        let policy = at.get_ref().parse::<PolicySpec>();
        let policy = policy.map_err(|error| self.note(at, key, error, POLICY)).ok()?;
        let runs = policy.entry().runs;
        if runs == Runs::Spine {
            let found = format!("{}, which runs on a {runs}", quoted(at));
            let allowed = "a policy that `wedjat policies` lists for a leaf or an agent";
            self.note(at, key, found, allowed);
            return None;
        }
        Some(policy)
    }

    /// Parses the policy of a leaf's pool: one whose members are workers, or the choice by the node. Records a fault
    /// and returns `None` for any other text.
    pub fn policy_choice(&mut self, at: &Spanned<String>, key: &str) -> Option<PolicyChoice> {
        match at.get_ref().parse::<PolicyChoice>() {
            Ok(PolicyChoice::Fixed(_)) => self.policy(at, key).map(PolicyChoice::Fixed),
            Ok(choice) => Some(choice),
            Err(error) => {
                self.note(at, key, error, POLICY);
                None
            }
        }
    }

    /// Records a fault for each pool id that occurs again.
    pub fn pool_ids<'b>(&mut self, ids: impl Iterator<Item = &'b Spanned<u16>>, key: &str) {
        let mut seen = UniqueKeys::new();
        for id in ids {
            if seen.is_again(*id.get_ref()) {
                self.note(id, key, format!("{} again", id.get_ref()), "each id once");
            }
        }
    }

    /// Returns the place of a key's value, if the file has the key.
    pub fn at(&self, table: Table, name: &str) -> Option<Spanned<()>> {
        self.file.key(table, name).2.map(|at| Spanned::new(at.span(), ()))
    }

    /// Reads a whole number: the file's, or the default of the key's row in [`super::keys`]. Records a fault for a
    /// number outside the row's range, and returns the default, or the minimum if there is none.
    pub fn number<T: TryFrom<i64> + Default>(&mut self, table: Table, name: &str) -> T {
        self.optional_number(table, name).unwrap_or_default()
    }

    /// Like [`FaultCollector::number`], for a key that may have neither a value nor a default. Checks the range only of
    /// [`Kind::Integer`].
    pub fn optional_number<T: TryFrom<i64>>(&mut self, table: Table, name: &str) -> Option<T> {
        let row = self.file.key(table, name).0;
        let default = match row.default {
            DefaultValue::Is(number) => Some(number),
            _ => None,
        };
        let value = match (row.kind, self.integer(table, name)) {
            (_, None) => default,
            (Kind::Integer(least, most), Some(_)) => {
                Some(self.number_in(table, name, default.unwrap_or(least), (least, most)))
            }
            (_, Some(at)) => Some(*at.get_ref()),
        };
        value.and_then(|value| T::try_from(value).ok())
    }

    /// Like [`FaultCollector::number`], for a key whose default or range depends on other keys. Returns `default` after
    /// a fault.
    pub fn number_in<T: TryFrom<i64> + PartialOrd + Copy + ToString>(
        &mut self,
        table: Table,
        name: &str,
        default: T,
        (least, most): (T, T),
    ) -> T {
        let Some(at) = self.integer(table, name) else { return default };
        let value = T::try_from(*at.get_ref()).ok();
        value.filter(|value| least <= *value && *value <= most).unwrap_or_else(|| {
            let key = self.file.key(table, name).1;
            let allowed = format!("{} to {}", least.to_string(), most.to_string());
            self.note(&at, &key, at.get_ref(), &allowed);
            default
        })
    }

    /// Records a fault if the node's state has no room for `pools` pools with `places` places each. `fix` names what
    /// lowers `places`.
    pub fn check_places(&mut self, table: Table, pools: usize, places: usize, fix: &str) {
        let all = pools.saturating_mul(places);
        if all <= PLACES_MAX {
            return;
        }
        let key = self.file.key(table, "pools_max").1;
        let found = format!("{pools} pools with {places} places for workers each, {all} in all");
        let allowed = format!("at most {PLACES_MAX} in all: a smaller `pools_max`, or {fix}");
        match self.at(table, "pools_max") {
            Some(at) => self.note(&at, &key, found, &allowed),
            None => self.note_in_file(&key, &found, &allowed),
        }
    }

    /// Returns the whole number that the file has, with its place; `None` without the key.
    pub fn integer(&self, table: Table, name: &str) -> Option<Spanned<i64>> {
        self.file.value(table, name)
    }

    /// Returns `true` or `false` as the file has it; `None` without the key.
    pub fn flag(&self, table: Table, name: &str) -> Option<bool> {
        self.file.value::<Option<Spanned<_>>>(table, name).map(Spanned::into_inner)
    }

    /// Reads a whole number from 0 without a documented maximum. Returns `None` without the key, and after recording a
    /// fault for a number that `T` cannot hold.
    pub fn count<T: TryFrom<i64>>(&mut self, table: Table, name: &str) -> Option<T> {
        let at = self.integer(table, name)?;
        let value = T::try_from(*at.get_ref()).ok();
        if value.is_none() {
            let key = self.file.key(table, name).1;
            self.note(&at, &key, at.get_ref(), "a whole number from 0");
        }
        value
    }

    /// Returns the text that the file has, with its place; `None` without the key.
    pub fn text(&self, table: Table, name: &str) -> Option<Spanned<String>> {
        self.file.value(table, name)
    }

    /// Returns the value that the file's word stands for, or the default of `T`. The reader has refused unknown words.
    pub fn word<T: DeserializeOwned + Default>(&self, table: Table, name: &str) -> T {
        let text = self.text(table, name);
        text.and_then(|text| word(text.get_ref())).unwrap_or_default()
    }

    /// Reads the limit of a pool's queue.
    pub fn queue(&mut self, table: Table) -> QueueLimit {
        QueueLimit { tasks: self.number(table, "queue"), overflow: self.word(table, "overflow") }
    }

    /// Like [`FaultCollector::number`], for a number with a fraction. Returns the file's number even after a fault.
    pub fn decimal(&mut self, table: Table, name: &str) -> f64 {
        let (row, key, _) = self.file.key(table, name);
        let default = match row.default {
            DefaultValue::Is(number) => number as f64,
            _ => 0.0,
        };
        let at: Option<Spanned<f64>> = self.file.value(table, name);
        let (Some(at), Kind::Number(least, most)) = (at, row.kind) else { return default };
        let value = *at.get_ref();
        if !(least <= value && value <= most) {
            self.note(&at, &key, value, &row.values());
        }
        value
    }
}

/// Returns the names of the policies of a spine's pools, for a message.
fn over_racks() -> Vec<&'static str> {
    CATALOGUE.iter().filter(|entry| entry.runs_on_spine()).map(|entry| entry.name).collect()
}

/// Quotes a value for a message.
pub fn quoted(at: &Spanned<String>) -> String {
    format!("`{}`", at.get_ref())
}

/// Returns the path of the state file. Without one, and with an empty text, the state is in process memory.
pub fn state(faults: &mut FaultCollector, table: Table) -> Option<PathBuf> {
    let at = &faults.text(table, "state")?;
    let path = Some(at.get_ref()).filter(|path| !path.is_empty());
    faults.record(at, path);
    path.map(Into::into)
}

/// Returns the group that may read the state file, if the configuration names one. Records a warning if there is no
/// state file, and a fault for an unknown group.
pub fn state_group(faults: &mut FaultCollector, table: Table, has_state: bool) -> Option<u32> {
    let (key, name) =
        (&faults.file.key(table, "state_group").1, &faults.text(table, "state_group")?);
    if !has_state {
        faults.unused(Some(name), key, "there is no state file", "`state` beside it");
    }
    let group = files::group(name.get_ref());
    faults.record(name, group);
    if group.is_none() {
        let found = quoted(name);
        faults.note(name, key, found, "the name or number of a group of this machine");
    }
    group
}
