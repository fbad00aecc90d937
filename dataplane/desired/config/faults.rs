//! Faults of a file: collected with their places during the check, reported together.
//!
//! In the functions of this folder, `at` is a value of the file with its place.

use std::collections::HashSet;
use std::fmt;
use std::hash::Hash;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use toml::Spanned;
use wedjat_core::limits::WORKER_ID_MAX;
use wedjat_core::policy::{CATALOGUE, PolicySpec, Runs};
use wedjat_core::state::files;
use wedjat_core::wire::ether::Mac;

use super::address::UNSPECIFIED;
use super::ids;
use super::settings::{Reader, Settings, Value};

/// Description of an allowed host address.
pub const HOST: &str = "a host's IPv4 or IPv6 address such as 10.0.2.11 or fd00:2::b";

/// Maximum number of faults, and of warnings, that are printed for a file. The rest is counted.
const SHOWN_MAX: usize = 100;

/// Fault of a configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Line of the file, from 1; 0 if the fault concerns the whole file.
    pub line: usize,
    /// Key, for example `server.ip`.
    pub key: String,
    /// Value found.
    pub found: String,
    /// Allowed values.
    pub allowed: String,
}

impl Fault {
    /// Creates a fault of the whole file.
    pub(super) fn of_file(found: &str, allowed: &str) -> Self {
        let (found, allowed) = (found.to_owned(), allowed.to_owned());
        Self { line: 0, key: String::new(), found, allowed }
    }

    /// Returns the file, line and key if known, and the value found.
    pub(super) fn place_and_found(&self, path: &Path) -> String {
        let line = if self.line > 0 { format!(":{}", self.line) } else { String::new() };
        let key = if self.key.is_empty() { String::new() } else { format!(": `{}`", self.key) };
        format!("{}{line}{key}: found {}", path.display(), self.found)
    }
}

/// Error of a refused configuration, with all its faults.
#[derive(Clone, Debug)]
pub struct ConfigError {
    /// Path of the file.
    pub path: PathBuf,
    /// Faults in order of lines.
    pub faults: Vec<Fault>,
}

impl std::error::Error for ConfigError {}

/// Formats warnings: one line each, with the file, line, key, value found and a better value.
pub fn lines(path: &Path, warnings: &[Fault]) -> Vec<String> {
    let line_of =
        |warning: &Fault| format!("{}; better: {}", warning.place_and_found(path), warning.allowed);
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
        faults: vec![Fault::of_file(
            &format!("a file that can't be read ({error})"),
            "a readable TOML file of at most 16 MiB",
        )],
    })
}

/// Returns the line, from 1, that holds the byte at `offset`.
pub fn line_of(text: &str, offset: usize) -> usize {
    1 + text.as_bytes()[..offset.min(text.len())].iter().filter(|&&byte| byte == b'\n').count()
}

/// Offsets of a text's line ends. They make finding a line a binary search instead of a scan.
struct Lines(Vec<usize>);

impl Lines {
    /// Finds the line ends of a text.
    fn of(text: &str) -> Self {
        Self(
            text.bytes().enumerate().filter(|(_, byte)| *byte == b'\n').map(|(at, _)| at).collect(),
        )
    }

    /// Returns the line, from 1, that holds the byte at `offset`.
    fn at(&self, offset: usize) -> usize {
        1 + self.0.partition_point(|end| *end < offset)
    }
}

/// Set of keys that may occur once each in a file.
pub struct UniqueKeys<T>(HashSet<T>);

impl<T: Eq + Hash> UniqueKeys<T> {
    /// Creates an empty set.
    pub fn new() -> Self {
        Self(HashSet::new())
    }

    /// Adds a key. Returns true if an earlier entry has it.
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

/// Collector of faults with their places.
pub struct Faults {
    lines: Lines,
    /// Parser of the file's id lists.
    lists: ids::Lists,
    all: Vec<Fault>,
    /// Settings that are allowed and are probably mistakes. `allowed` names a better value.
    warnings: Vec<Fault>,
    /// Settings that a reload compares.
    pub settings: Reader,
}

impl Faults {
    /// Creates a collector for a file with this text, which belongs to `owner`: leaf, spine, agent or controller.
    pub fn new(owner: &str, text: &str) -> Self {
        Self {
            settings: Reader::new(owner, text),
            lines: Lines::of(text),
            lists: ids::Lists::default(),
            all: Vec::new(),
            warnings: Vec::new(),
        }
    }

    /// Returns all warnings in order of lines and the settings, or all faults if there are any.
    pub fn none_or_all(mut self) -> Result<(Vec<Fault>, Settings), Vec<Fault>> {
        let line = |fault: &Fault| (fault.line == 0, fault.line);
        self.all.sort_by_key(line);
        self.warnings.sort_by_key(line);
        let settings = self.settings.into_settings();
        if self.all.is_empty() { Ok((self.warnings, settings)) } else { Err(self.all) }
    }

    /// Adds a warning with a better value.
    pub fn warn<T>(&mut self, at: &Spanned<T>, key: &str, found: impl ToString, better: &str) {
        let line = self.lines.at(at.span().start);
        let (key, found, allowed) = (key.to_owned(), found.to_string(), better.to_owned());
        self.warnings.push(Fault { line, key, found, allowed });
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
        self.all.push(Fault { line, key: key.to_owned(), found, allowed: allowed.to_owned() });
    }

    /// Records the canonical form of a value. `None` is the value of a file without the key.
    pub fn record<T>(&mut self, at: &Spanned<T>, value: Option<impl ToString>) {
        self.settings.set_at(at, value.map(|value| Value::Text(value.to_string())));
    }

    /// Parses the address of a host. `fits` accepts or refuses it. Records a fault and returns 0.0.0.0 for an
    /// invalid address.
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

    /// Parses the MAC address of a host. Records a fault for an invalid one.
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

    /// Parses a policy whose members are leaves.
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

    /// Parses a policy whose members are workers.
    pub fn policy(&mut self, at: &Spanned<String>, key: &str) -> Option<PolicySpec> {
        let policy = at.get_ref().parse::<PolicySpec>();
        let allowed = "a policy that `wedjat policies` lists";
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

    /// Records a fault for each pool id that occurs again.
    pub fn pool_ids<'b>(&mut self, ids: impl Iterator<Item = &'b Spanned<u16>>, key: &str) {
        let mut seen = UniqueKeys::new();
        for id in ids {
            if seen.is_again(*id.get_ref()) {
                self.note(id, key, format!("{} again", id.get_ref()), "each id once");
            }
        }
    }

    /// Like [`Faults::within`], for whole numbers. Reads them with TOML's full width, so that a number beyond
    /// `T` is reported with the allowed range. Returns `default` for a number that is not allowed.
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

    /// Checks that a value lies between `least` and `most`. Records a fault and returns the value in any
    /// case; returns `default` if the file has none.
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

/// Returns the names of policies whose members are racks.
fn over_racks() -> Vec<&'static str> {
    CATALOGUE.iter().filter(|entry| entry.runs_on_spine()).map(|entry| entry.name).collect()
}

/// Quotes a value for a message.
pub fn quoted(at: &Spanned<String>) -> String {
    format!("`{}`", at.get_ref())
}

/// Returns the path of the state file. Without one, and with an empty text, the state is in process memory.
pub fn state(faults: &mut Faults, at: Option<&Spanned<String>>) -> Option<PathBuf> {
    let at = at?;
    let path = Some(at.get_ref()).filter(|path| !path.is_empty());
    faults.record(at, path);
    path.map(Into::into)
}

/// Returns the group that may read the state file, if the file names one.
pub fn state_group(
    faults: &mut Faults,
    key: &str,
    name: Option<&Spanned<String>>,
    has_state: bool,
) -> Option<u32> {
    let name = name?;
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
