//! Faults of a file: collected with their places while its values are read, and told together.

use std::collections::HashSet;
use std::fmt;
use std::hash::Hash;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use toml::Spanned;

use super::address::UNSPECIFIED;
use super::ids;
use crate::limits::WORKER_ID_MAX;
use crate::policy::{CATALOGUE, PolicySpec, Runs};
use crate::state::files;
use crate::wire::ether::Mac;

/// What is allowed where a host's address is to be.
pub const HOST: &str = "a host's IPv4 or IPv6 address such as 10.0.2.11 or fd00:2::b";

/// Most faults, and most warnings, of a file that are printed. The rest is counted.
const SHOWN_MAX: usize = 100;

/// One fault of a configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Line of the file, from 1; 0 when it concerns the file as a whole.
    pub line: usize,
    /// The key, as in `server.ip`.
    pub key: String,
    /// What was found.
    pub found: String,
    /// What is allowed.
    pub allowed: String,
}

impl Fault {
    /// Of the file as a whole.
    pub(super) fn of_file(found: &str, allowed: &str) -> Self {
        let (found, allowed) = (found.to_owned(), allowed.to_owned());
        Self { line: 0, key: String::new(), found, allowed }
    }

    /// File, line and key, as far as there are any, and what was found there.
    pub(super) fn place_and_found(&self, path: &Path) -> String {
        let line = if self.line > 0 { format!(":{}", self.line) } else { String::new() };
        let key = if self.key.is_empty() { String::new() } else { format!(": `{}`", self.key) };
        format!("{}{line}{key}: found {}", path.display(), self.found)
    }
}

/// Why a configuration is refused: all its faults.
#[derive(Clone, Debug)]
pub struct ConfigError {
    /// The file.
    pub path: PathBuf,
    /// What is wrong with it, in order of lines.
    pub faults: Vec<Fault>,
}

impl std::error::Error for ConfigError {}

/// Warnings for people: a line each, with file, line and key, what was found and what would be better.
pub fn told(path: &Path, warnings: &[Fault]) -> Vec<String> {
    let told =
        |warning: &Fault| format!("{}; better: {}", warning.place_and_found(path), warning.allowed);
    let more = more(path, warnings.len(), "warnings");
    warnings.iter().take(SHOWN_MAX).map(told).chain(more).collect()
}

/// The line that counts what is not printed, if there is any.
fn more(path: &Path, count: usize, name: &str) -> Option<String> {
    let rest = count.checked_sub(SHOWN_MAX).filter(|rest| *rest > 0)?;
    Some(format!("{}: {rest} more {name} are not printed", path.display()))
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, fault) in self.faults.iter().take(SHOWN_MAX).enumerate() {
            if at > 0 {
                writeln!(f)?;
            }
            write!(f, "{}; allowed: {}", fault.place_and_found(&self.path), fault.allowed)?;
        }
        let more = more(&self.path, self.faults.len(), "faults");
        more.map_or(Ok(()), |more| write!(f, "\n{more}"))
    }
}

/// The file's text.
///
/// # Errors
/// When it can't be read.
pub fn read(path: &Path) -> Result<String, ConfigError> {
    files::read_text(path).map_err(|error| ConfigError {
        path: path.to_owned(),
        faults: vec![Fault::of_file(
            &format!("a file that can't be read ({error})"),
            "a readable TOML file of at most 16 MiB",
        )],
    })
}

/// The line, from 1, that holds the byte at `offset`.
pub fn line_of(text: &str, offset: usize) -> usize {
    1 + text.as_bytes()[..offset.min(text.len())].iter().filter(|&&byte| byte == b'\n').count()
}

/// Offsets of a text's line ends, so that finding a line costs a binary search instead of a scan.
struct Lines(Vec<usize>);

impl Lines {
    fn of(text: &str) -> Self {
        Self(
            text.bytes().enumerate().filter(|(_, byte)| *byte == b'\n').map(|(at, _)| at).collect(),
        )
    }

    /// The line, from 1, that holds the byte at `offset`.
    fn at(&self, offset: usize) -> usize {
        1 + self.0.partition_point(|end| *end < offset)
    }
}

/// Keys that a file may have once each.
pub struct UniqueKeys<T>(HashSet<T>);

impl<T: Eq + Hash> UniqueKeys<T> {
    pub fn new() -> Self {
        Self(HashSet::new())
    }

    /// An earlier entry has the key.
    pub fn is_again(&mut self, key: T) -> bool {
        !self.0.insert(key)
    }
}

/// Ids for a message; the first ones where there are many.
pub fn some_ids(ids: impl Iterator<Item = u16>) -> String {
    let mut ids: Vec<_> = ids.take(IDS_SHOWN + 1).map(|id| id.to_string()).collect();
    if ids.len() > IDS_SHOWN {
        ids[IDS_SHOWN] = "...".to_owned();
    }
    ids.join(", ")
}

/// Most ids that a message lists.
const IDS_SHOWN: usize = 16;

/// Collects faults with their places.
pub struct Faults {
    lines: Lines,
    lists: ids::Lists,
    all: Vec<Fault>,
    /// What is allowed and yet may not be meant; `allowed` says what would be better.
    warnings: Vec<Fault>,
}

impl Faults {
    pub fn new(text: &str) -> Self {
        Self {
            lines: Lines::of(text),
            lists: ids::Lists::default(),
            all: Vec::new(),
            warnings: Vec::new(),
        }
    }

    /// All warnings in order of lines, or all faults if there are any.
    pub fn none_or_all(mut self) -> Result<Vec<Fault>, Vec<Fault>> {
        let line = |fault: &Fault| (fault.line == 0, fault.line);
        self.all.sort_by_key(line);
        self.warnings.sort_by_key(line);
        if self.all.is_empty() { Ok(self.warnings) } else { Err(self.all) }
    }

    /// What is allowed and yet may not be meant, and what would be better.
    pub fn warn<T>(&mut self, at: &Spanned<T>, key: &str, found: impl ToString, better: &str) {
        let line = self.lines.at(at.span().start);
        let (key, found, allowed) = (key.to_owned(), found.to_string(), better.to_owned());
        self.warnings.push(Fault { line, key, found, allowed });
    }

    /// A key that changes nothing, for this reason.
    pub fn unused<T>(&mut self, at: Option<&Spanned<T>>, key: &str, reason: &str, better: &str) {
        if let Some(at) = at {
            self.warn(at, key, format!("a key that changes nothing: {reason}"), better);
        }
    }

    pub fn note<T>(&mut self, at: &Spanned<T>, key: &str, found: impl ToString, allowed: &str) {
        let line = self.lines.at(at.span().start);
        self.push(line, key, found.to_string(), allowed);
    }

    pub fn whole(&mut self, key: &str, found: &str, allowed: &str) {
        self.push(0, key, found.to_owned(), allowed);
    }

    fn push(&mut self, line: usize, key: &str, found: String, allowed: &str) {
        self.all.push(Fault { line, key: key.to_owned(), found, allowed: allowed.to_owned() });
    }

    /// A host's address, of either family if it `fits`; 0.0.0.0 when it is none, which is noted then.
    pub fn host(
        &mut self,
        at: &Spanned<String>,
        key: &str,
        fits: impl Fn(IpAddr) -> bool,
        allowed: &str,
    ) -> IpAddr {
        let address = at.get_ref().parse().ok().filter(|&address| fits(address));
        address.unwrap_or_else(|| {
            self.note(at, key, quoted(at), allowed);
            UNSPECIFIED
        })
    }

    pub fn mac(&mut self, at: Option<&Spanned<String>>, key: &str) -> Option<Mac> {
        let at = at?;
        let mac = at.get_ref().parse::<Mac>().ok().filter(|mac| mac.is_host());
        if mac.is_none() {
            let allowed = "a unicast MAC address such as 02:00:00:00:02:0b";
            self.note(at, key, quoted(at), allowed);
        }
        mac
    }

    pub fn workers(&mut self, at: &Spanned<String>, key: &str) -> Vec<u16> {
        self.lists.parse(at.get_ref(), 0..=WORKER_ID_MAX).unwrap_or_else(|found| {
            let allowed = format!("ids from 0 to {WORKER_ID_MAX} and ranges, as in \"0-31,40\"");
            self.note(at, key, found, &allowed);
            Vec::new()
        })
    }

    /// A policy whose members are leaves.
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

    /// A policy whose members are workers.
    pub fn policy(&mut self, at: &Spanned<String>, key: &str) -> Option<PolicySpec> {
        let policy = at.get_ref().parse::<PolicySpec>();
        let allowed = "a policy as `wedjat policies` lists them";
        let policy = policy.map_err(|error| self.note(at, key, error, allowed)).ok()?;
        let runs = policy.entry().runs;
        if runs == Runs::Spine {
            let found = format!("{}, which runs on a {runs}", quoted(at));
            let allowed = "a policy that `wedjat policies` lists for a leaf or an agent";
            self.note(at, key, found, allowed);
            return None;
        }
        Some(policy)
    }

    /// Ids of pools, each of which may be there once.
    pub fn pool_ids<'b>(&mut self, ids: impl Iterator<Item = &'b Spanned<u16>>, key: &str) {
        let mut seen = UniqueKeys::new();
        for id in ids {
            if seen.is_again(*id.get_ref()) {
                self.note(id, key, format!("{} again", id.get_ref()), "each id once");
            }
        }
    }

    /// As [`Faults::within`], of a whole number: it is read as wide as TOML has them, so that what its type could not hold is told
    /// with the range that is allowed. One that is not allowed gives way to what is there unless configured.
    pub fn number<T: TryFrom<i64> + PartialOrd + Copy + ToString>(
        &mut self,
        at: Option<&Spanned<i64>>,
        key: &str,
        default: T,
        (least, most): (T, T),
    ) -> T {
        let Some(at) = at else { return default };
        let value = T::try_from(*at.get_ref()).ok();
        value.filter(|value| least <= *value && *value <= most).unwrap_or_else(|| {
            let allowed = format!("{} to {}", least.to_string(), most.to_string());
            self.note(at, key, at.get_ref(), &allowed);
            default
        })
    }

    pub fn within<T: PartialOrd + Copy + ToString>(
        &mut self,
        at: Option<&Spanned<T>>,
        key: &str,
        default: T,
        (least, most): (T, T),
    ) -> T {
        let Some(at) = at else {
            return default;
        };
        let value = *at.get_ref();
        if !(least <= value && value <= most) {
            let allowed = format!("{} to {}", least.to_string(), most.to_string());
            self.note(at, key, value.to_string(), &allowed);
        }
        value
    }
}

/// The policies whose members are racks.
fn over_racks() -> Vec<&'static str> {
    CATALOGUE.iter().filter(|entry| entry.runs_on_spine()).map(|entry| entry.name).collect()
}

/// As messages have it.
pub fn quoted(at: &Spanned<String>) -> String {
    format!("`{}`", at.get_ref())
}

/// The group that may read a state file, if there is one.
pub fn state_group(
    faults: &mut Faults,
    key: &str,
    name: Option<&Spanned<String>>,
    has_state: bool,
) -> Option<u32> {
    let name = name?;
    if !has_state {
        faults.unused(Some(name), key, "there is no state file", "a `state` beside it");
    }
    let group = files::group(name.get_ref());
    if group.is_none() {
        let found = quoted(name);
        faults.note(name, key, found, "the name or number of a group of this machine");
    }
    group
}
