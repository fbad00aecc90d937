//! Tests that the table of keys equals the fields that the files' readers accept, their ranges and their defaults.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde::de::DeserializeOwned;

use super::*;
use crate::config::{AgentConfig, Config, ControllerConfig, raw, raw_agent, raw_controller};

/// Owners of files.
const FILES: [&str; 4] = ["leaf", "spine", "agent", "controller"];

/// File, section, key and value of keys that a reader accepts because two files share it. The checks refuse them, or
/// warn that they change nothing.
const USELESS: [(&str, &str, &str, &str); 14] = [
    ("leaf", "[leaf]", "leaf_timeout_ms", "9"),
    ("leaf", "[leaf]", "leaves_max", "64"),
    ("spine", "[spine]", "worker_timeout_ms", "9"),
    ("spine", "[spine]", "servers_max", "64"),
    ("spine", "[spine]", "workers_max", "64"),
    ("spine", "[[pool]]", "queue", "9"),
    ("spine", "[[pool]]", "overflow", "'drop'"),
    ("spine", "[[pool]]", "reports", "'messages'"),
    ("spine", "[[pool]]", "key_file", "'pool.key'"),
    ("spine", "[[pool]]", "spine", "1"),
    ("spine", "[[pool]]", "signals", "'horus'"),
    ("leaf", "[[agent.pool]]", "key_file", "'pool.key'"),
    ("leaf", "[[agent.pool]]", "leaf_policy", "'jiq'"),
    ("controller", "[control]", "metrics", "'127.0.0.1:7071'"),
];

/// Returns true unless this build lacks the section's feature.
fn is_built(section: &Section) -> bool {
    let refused = |file: &&str| {
        let checked = check(file, &sample(file, &section.header()));
        checked.is_err_and(|error| error.contains("this build lacks"))
    };
    !section.files.iter().any(refused)
}

/// Returns the fields of a section, if a file may have it in the form of `header`. They come from the reader's own
/// message about an unknown key.
fn fields(file: &str, header: &str) -> Option<BTreeSet<String>> {
    fn message<T: DeserializeOwned>(text: &str) -> String {
        toml::from_str::<T>(text).err().map(|error| error.message().to_owned()).unwrap_or_default()
    }
    let text = format!("{header}\nno-such-key = 0\n");
    let message = match file {
        "leaf" => message::<raw::Config>(&text),
        "spine" => message::<raw::SpineFile>(&text),
        "agent" => message::<raw_agent::File>(&text),
        _ => message::<raw_controller::File>(&text),
    };
    let allowed = message.strip_prefix("unknown field `no-such-key`, expected ")?;
    Some(allowed.split('`').skip(1).step_by(2).map(str::to_owned).collect())
}

/// Collects the sections of a file below `path`, each with its keys, by their headers.
fn sections(file: &str, path: &str, found: &mut BTreeMap<String, BTreeSet<String>>) {
    let header = if path.is_empty() { String::new() } else { format!("[{path}]") };
    for header in [header.clone(), format!("[{header}]")] {
        let Some(mut keys) = fields(file, &header) else { continue };
        keys.retain(|key| {
            let before = found.len();
            sections(file, format!("{path}.{key}").trim_start_matches('.'), found);
            found.len() == before
        });
        found.insert(header, keys);
        return;
    }
}

// promise: control.2
#[test]
fn documented_keys_are_those_of_the_readers() {
    for file in FILES {
        let mut found = BTreeMap::new();
        sections(file, "", &mut found);
        assert_eq!(found.remove(""), Some(BTreeSet::new()), "{file}: each key is in a section");
        let mut expected = BTreeMap::<_, BTreeSet<_>>::new();
        for section in SECTIONS.iter().filter(|section| section.files.contains(&file)) {
            let keys = section.keys().map(|key| key.name.to_owned()).collect();
            let earlier = expected.insert(section.header(), keys);
            assert_eq!(earlier, None, "{file}: {} stands once", section.header());
        }
        for (_, header, key, _) in USELESS.iter().filter(|useless| useless.0 == file) {
            let is_new = expected.get_mut(*header).unwrap().insert((*key).to_owned());
            assert!(is_new, "{file}: {key} of {header} is documented");
        }
        assert_eq!(found, expected, "{file}");
    }
}

// promise: input.2
#[test]
fn undocumented_keys_are_refused_or_warned_of() {
    for (file, header, key, value) in USELESS {
        let text = with(&sample(file, header), header, key, Some(value));
        match check(file, &text) {
            Ok((_, warnings)) => assert!(warnings.contains(key), "{file}: {key}: {warnings}"),
            Err(error) => assert!(error.contains(key), "{file}: {key}: {error}"),
        }
    }
}

/// Returns a valid file with this section.
pub fn sample(file: &str, header: &str) -> String {
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples");
    let example = match (file, header) {
        ("leaf", "[agent]" | "[[agent.pool]]") => "host",
        _ => file,
    };
    let text = std::fs::read_to_string(examples.join(example).with_extension("toml")).unwrap();
    let without_leaf: String = text
        .lines()
        .filter(|line| !line.starts_with("leaf = "))
        .map(|line| format!("{line}\n"))
        .collect();
    let addition = match (file, header) {
        ("leaf", "[[pool]]") => {
            // Keys of signals need a spine.
            let linked = without_leaf.replacen("[[pool]]\n", "[[pool]]\nspine = 9\n", 1);
            return linked + "[[spine]]\nid = 9\nip = '10.0.1.9'\n";
        }
        ("leaf", "[[spine]]") => "[[spine]]\nid = 9\nip = '10.0.1.9'\n",
        ("agent", "[[leaf]]") => "[[leaf]]\nip = '10.0.2.1'\n",
        ("agent", "[peers]") => "[peers]\nnodes = ['10.0.2.11', '10.0.2.12']\n",
        ("agent", "[cosched]" | "[[cosched.job]]") => {
            "[cosched]\n[[cosched.job]]\ncommand = ['make']\n"
        }
        (_, "[control]") => "[control]\nlisten = '127.0.0.1:7070'\n",
        ("controller", _) => "",
        (_, "[controller]") => "[controller]\naddresses = ['unix:/run/fabric.ctl']\n",
        _ => "",
    };
    format!("{without_leaf}{addition}")
}

/// Returns the text with one key of the first such section set or absent. A pool's id also changes where servers and leaves
/// name it.
pub fn with(text: &str, header: &str, key: &str, value: Option<&str>) -> String {
    let (mut changed, mut is_here, mut is_done) = (String::new(), false, false);
    for line in text.lines() {
        if line.starts_with('[') {
            is_here = line.trim() == header && !is_done;
        }
        if !(is_here && line.split('=').next().is_some_and(|name| name.trim() == key)) {
            changed += &format!("{line}\n");
        }
        if is_here && !is_done {
            is_done = true;
            value.iter().for_each(|value| changed += &format!("{key} = {value}\n"));
        }
    }
    assert!(is_done, "{header} in\n{text}");
    let Some(id) = value.filter(|_| key == "id" && header.ends_with("pool]]")) else {
        return changed;
    };
    changed
        .replace("pool]]\nid = 1\n", &format!("pool]]\nid = {id}\n"))
        .replace("pool = 1\n", &format!("pool = {id}\n"))
}

/// Returns the checked configuration without its text, and its warnings.
pub fn check(file: &str, text: &str) -> Result<(String, String), String> {
    let path = Path::new("file.toml");
    match file {
        "agent" => AgentConfig::parse(path, text).map(|mut config| {
            config.text.clear();
            (format!("{config:?}"), config.warnings().join("\n"))
        }),
        "controller" => {
            ControllerConfig::parse(path, text).map(|config| (format!("{config:?}"), String::new()))
        }
        _ => Config::parse(path, text).map(|mut config| {
            config.text.clear();
            (format!("{config:?}"), config.warnings().join("\n"))
        }),
    }
    .map_err(|error| error.to_string())
}

/// Returns each key of each file with the header of its section and the file's owner.
pub fn all() -> impl Iterator<Item = (&'static str, String, &'static Key)> {
    let built = SECTIONS.iter().filter(|section| is_built(section));
    built.flat_map(|section| {
        section
            .files
            .iter()
            .flat_map(move |file| section.keys().map(move |key| (*file, section.header(), key)))
    })
}

// promise: control.2
#[test]
fn documented_defaults_are_those_of_the_checks() {
    let mut compared = 0;
    for (file, header, key) in all() {
        let default = match key.default.strip_prefix('`').and_then(|rest| rest.strip_suffix('`')) {
            Some(word @ ("true" | "false")) => word.to_owned(),
            Some(word) if !word.contains('`') => format!("'{word}'"),
            _ if key.default.parse::<f64>().is_ok() => key.default.to_owned(),
            _ => continue,
        };
        let text = sample(file, &header);
        let [absent, present] = [None, Some(&default[..])]
            .map(|value| check(file, &with(&text, &header, key.name, value)).unwrap());
        if present.1.is_empty() {
            assert_eq!(absent.0, present.0, "{file}: {} of {header}: {default}", key.name);
            compared += 1;
        }
    }
    assert!(compared > 40, "{compared} defaults are compared");
}
