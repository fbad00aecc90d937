//! Settings of a node by the full names of their keys. A reload of the file at run time compares the settings at the
//! start with the new ones, and refuses differences.
//!
//! [`super::keys::SECTIONS`] lists the allowed keys of a file, with their defaults. A running node can change
//! live keys, such as a pool's policy. They are not part of the settings.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use toml::Spanned;

use super::read::{File, Item, TableOfFile};

/// Values of the keys that a running node can't change, as text in canonical form. Defaults are included, unless they
/// depend on other keys.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Settings(BTreeMap<Entry, BTreeMap<String, String>>);

/// Table of a file, or one of a list of tables.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Entry {
    /// Name of the section, as in `cosched.job`.
    section: String,
    /// Number in the list from 1, or the id of an entry that may come and go at run time. `None` without a list.
    place: Option<i64>,
    /// True if entries of this list may come and go at run time.
    is_live: bool,
}

impl Settings {
    /// Returns the names of the settings that differ in `wanted`, and of the tables that only one of the files has,
    /// without their subsections. The names are texts for a message. A live table, such as a pool, may be added or
    /// removed while the node runs. Of an added one, the result names only keys that are not live.
    #[must_use]
    pub fn differences(&self, wanted: &Self) -> Vec<String> {
        let (empty, mut names) = (BTreeMap::new(), Vec::new());
        // Sections that only one of the files has. Their subsections are not named again.
        // A section sorts before its subsections.
        let mut unmatched = BTreeSet::new();
        for entry in self.0.keys().chain(wanted.0.keys()).collect::<BTreeSet<_>>() {
            let (old, new) = match (self.0.get(entry), wanted.0.get(entry)) {
                (Some(_), None) if entry.is_live => continue,
                (None, Some(new)) if entry.is_live => (&empty, new),
                (Some(old), Some(new)) => (old, new),
                _ => {
                    let parent = entry.section.split_once('.').map(|(parent, _)| parent);
                    unmatched.insert(&entry.section[..]);
                    if parent.is_none_or(|parent| !unmatched.contains(parent)) {
                        names.push(entry.name());
                    }
                    continue;
                }
            };
            let keys: BTreeSet<_> = old.keys().chain(new.keys()).collect();
            let differing = keys.into_iter().filter(|key| old.get(*key) != new.get(*key));
            names.extend(differing.map(|key| entry.name_of(key)));
        }
        names
    }
}

impl Entry {
    /// Returns the entry's name for a message, as in "port 2".
    fn name(&self) -> String {
        let kind = self.section.rsplit('.').next().unwrap_or_default();
        self.place.map_or_else(|| format!("`{}`", self.section), |place| format!("{kind} {place}"))
    }

    /// Returns the name of a key for a message, as in "`port.device` of port 2".
    fn name_of(&self, key: &str) -> String {
        let of_entry = self.place.map_or_else(String::new, |_| format!(" of {}", self.name()));
        format!("`{}.{key}`{of_entry}", self.section)
    }
}

/// Settings while a file is checked. Values are those of the file, until a check gives their canonical form.
#[derive(Default)]
pub struct Reader {
    settings: Settings,
    /// Entry and key of each value, by the offset of the value in the text.
    places: HashMap<usize, (Entry, String)>,
}

impl Reader {
    /// Collects the settings of a file.
    pub fn new(file: &File) -> Self {
        let mut reader = Self::default();
        file.tables().for_each(|(_, table)| reader.read(table));
        reader
    }

    /// Collects the settings of a table.
    fn read(&mut self, table: &TableOfFile) {
        let section = table.section;
        let is_live = section.is_list && section.keys().any(|key| key.live);
        // The place of an entry that may come and go changes, so its id identifies it. A server has no id, and no key
        // that is fixed. All other lists have a fixed order.
        let place = match (section.is_list, table.values.get("id").map(Spanned::get_ref)) {
            (false, _) => None,
            (_, Some(Item::Integer(id))) if is_live => Some(*id),
            _ => Some(table.index as i64 + 1),
        };
        let entry = Entry { section: section.name.to_owned(), place, is_live };
        let mut values = BTreeMap::new();
        for key in section.keys().filter(|key| !key.live) {
            let found = table.values.get(key.name);
            let value = found.map(|value| value.get_ref().to_string());
            if let Some(value) = value.or_else(|| key.default_value()) {
                values.insert(key.name.to_owned(), value);
            }
            let offset = found.map(|value| value.span().start);
            offset.map(|at| self.places.insert(at, (entry.clone(), key.name.to_owned())));
        }
        if is_live || !values.is_empty() {
            self.settings.0.entry(entry).or_default().extend(values);
        }
    }

    /// Sets the canonical form of the value at this place of the file. `None` is the value of a file without the key.
    /// Does nothing for a live key.
    pub fn set_at<T>(&mut self, at: &Spanned<T>, value: Option<String>) {
        let Some((entry, key)) = self.places.get(&at.span().start) else { return };
        let values = self.settings.0.entry(entry.clone()).or_default();
        match value {
            Some(value) => values.insert(key.clone(), value),
            None => values.remove(key),
        };
    }

    /// Sets a value that depends on other keys, or on nothing in the file. `name` is as in `leaf.mbufs`. Does nothing
    /// if the file lacks the section.
    pub fn set(&mut self, name: &str, value: impl ToString) {
        let (section, key) = name.rsplit_once('.').unwrap_or_default();
        let entry = Entry { section: section.to_owned(), place: None, is_live: false };
        if let Some(values) = self.settings.0.get_mut(&entry) {
            values.insert(key.to_owned(), value.to_string());
        }
    }

    /// Returns the settings.
    pub fn into_settings(self) -> Settings {
        self.settings
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::keys::Kind;
    use super::super::keys::tests::{all, sample, with};
    use super::super::{AgentConfig, Config, ControllerConfig};
    use super::*;

    /// Returns the settings of a file. `file` names its owner: leaf, spine, agent or controller.
    fn settings(file: &str, text: &str) -> Settings {
        let path = Path::new("file.toml");
        let settings = match file {
            "agent" => AgentConfig::parse(path, text).map(|config| config.settings),
            "controller" => ControllerConfig::parse(path, text).map(|config| config.settings),
            _ => Config::parse(path, text).map(|config| config.settings),
        };
        settings.unwrap_or_else(|error| panic!("{error}"))
    }

    /// Returns the names of the settings that differ.
    fn differences(file: &str, texts: [&str; 2]) -> Vec<String> {
        settings(file, texts[0]).differences(&settings(file, texts[1]))
    }

    #[test]
    fn tables_and_keys_are_named() {
        // A node with a controller needs more packet buffers by default, so this fixes `mbufs`.
        let leaf = with(&sample("leaf", "[leaf]"), "[leaf]", "mbufs", Some("99999"));
        // `[controller]` may neither come nor go, and its keys are fixed.
        let follows = leaf.clone() + "[controller]\naddresses = ['unix:/run/fabric.ctl']\n";
        assert_eq!(differences("leaf", [&leaf, &follows]), ["`controller`"]);
        assert_eq!(differences("leaf", [&follows, &leaf]), ["`controller`"]);
        let other = follows.replace("fabric", "other");
        assert_eq!(differences("leaf", [&follows, &other]), ["`controller.addresses`"]);
        let port = "[[port]]\ndevice = 'net_memif9'\nside = 'both'\nip = '10.9.0.1/24'\n";
        let more = leaf.clone() + port;
        // The added port is the last of the list.
        let count = settings("leaf", &leaf).0.keys().filter(|one| one.section == "port").count();
        assert_eq!(differences("leaf", [&leaf, &more]), [format!("port {}", count + 1)]);
        let jobs = sample("agent", "[cosched]");
        if AgentConfig::parse(Path::new("agent.toml"), &jobs).is_err() {
            return; // this build has no batch jobs
        }
        let without_jobs = sample("agent", "[agent]");
        assert_eq!(differences("agent", [&without_jobs, &jobs]), ["`cosched`"]);
        let other = jobs.replace("make", "cc");
        assert_eq!(differences("agent", [&jobs, &other]), ["`cosched.job.command` of job 1"]);
    }

    #[test]
    fn spelling_of_a_value_changes_nothing() {
        let text = sample("leaf", "[leaf]");
        // A spelling of the default, and the absent key.
        for (key, first, second) in [
            ("udp_port", Some("0x4D2"), None),
            ("connections", Some("65_536"), None),
            ("state", Some("''"), None),
            ("multi_packet_per_source", Some("256"), None),
        ] {
            let texts = [first, second].map(|value| with(&text, "[leaf]", key, value));
            assert_eq!(differences("leaf", [&texts[0], &texts[1]]), [""; 0], "{key}");
        }
        let ports = ["'02:00:00:00:00:AB'", "'02:00:00:00:00:ab'"];
        let ports = ports.map(|mac| with(&text, "[[port]]", "mac", Some(mac)));
        assert_eq!(differences("leaf", [&ports[0], &ports[1]]), [""; 0]);
    }

    #[test]
    fn key_with_a_default_is_compared_unless_live() {
        let mut compared = 0;
        for (file, header, key) in all() {
            let text = sample(file, &header);
            let Some(value) = key.default_value() else { continue };
            // Form of a value in TOML: numbers and flags have no quotes.
            let written = |value: &str| match value.parse::<f64>() {
                Ok(_) => value.to_owned(),
                Err(_) if ["true", "false"].contains(&value) => value.to_owned(),
                Err(_) => format!("'{value}'"),
            };
            // Another value of the documented range or list.
            let others = match key.kind {
                Kind::Integer(least, most) => [least, most].map(|other| other.to_string()).to_vec(),
                Kind::Flag => vec!["true".to_owned(), "false".to_owned()],
                Kind::Word(words) => words.iter().map(|&word| word.to_owned()).collect(),
                Kind::Text(words) => {
                    words.split('`').skip(1).step_by(2).map(str::to_owned).collect()
                }
                _ => continue,
            };
            let Some(other) = others.into_iter().find(|other| *other != value) else { continue };
            let texts =
                [value, other].map(|value| with(&text, &header, key.name, Some(&written(&value))));
            let path = Path::new("file.toml");
            let is_right = match file {
                "agent" => AgentConfig::parse(path, &texts[1]).is_ok(),
                "controller" => ControllerConfig::parse(path, &texts[1]).is_ok(),
                _ => Config::parse(path, &texts[1]).is_ok(),
            };
            if !is_right {
                continue; // this value needs others beside it
            }
            let found = differences(file, [&texts[0], &texts[1]]);
            let name = format!("{}.{}", header.trim_matches(['[', ']']), key.name);
            let is_named = found.iter().any(|one| one.starts_with(&format!("`{name}`")));
            assert_eq!(is_named, !key.live, "{file}: {name}: {found:?}");
            compared += 1;
        }
        // The loop must not have skipped most keys.
        assert!(compared > 30, "{compared} keys are compared");
    }
}
