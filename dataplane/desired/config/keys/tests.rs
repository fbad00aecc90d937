//! Tests of the table of keys: its names, its refused keys and its defaults. Other tests of the configuration take
//! valid files from [`sample`] and change single keys by [`with`].

use std::collections::BTreeSet;
use std::path::Path;

use super::*;
use crate::config::{AgentConfig, Config, ControllerConfig};

/// Owners of files: the kinds of processes with a configuration.
const FILES: [&str; 4] = ["leaf", "spine", "agent", "controller"];

/// File, section, key and value of each key in [`REFUSED`]. The reader accepts them, and the checks then refuse them or
/// warn that they change nothing.
const USELESS: [(&str, &str, &str, &str); 15] = [
    ("leaf", "[leaf]", "leaf_timeout_ms", "9"),
    ("leaf", "[leaf]", "leaves_max", "64"),
    ("spine", "[spine]", "worker_timeout_ms", "9"),
    ("spine", "[spine]", "servers_max", "64"),
    ("spine", "[spine]", "workers_max", "64"),
    ("spine", "[[pool]]", "queue", "9"),
    ("spine", "[[pool]]", "overflow", "'drop'"),
    ("spine", "[[pool]]", "reports", "'messages'"),
    ("spine", "[[pool]]", "replies", "'direct'"),
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

// promise: control.2
#[test]
fn documented_keys_are_those_of_the_readers() {
    for file in FILES {
        let mut headers = BTreeSet::new();
        for section in SECTIONS.iter().filter(|section| section.files.contains(&file)) {
            let header = section.header();
            assert!(headers.insert(header.clone()), "{file}: {header} stands once");
            let error =
                check(file, &with(&sample(file, &header), &header, "no-such-key", Some("0")));
            let error = error.unwrap_err();
            // The message lists all keys that the reader knows, in backquotes.
            let (found, allowed) = error.split_once("; allowed: ").unwrap();
            assert!(found.contains("unknown key `no-such-key`"), "{file}: {header}: {error}");
            let names: BTreeSet<_> = allowed.split('`').skip(1).step_by(2).collect();
            let keys = section.keys().map(|key| key.name);
            let subsections = SECTIONS.iter().filter(|one| one.files.contains(&file));
            let subsections = subsections.filter_map(|one| one.name.split_once('.'));
            let subsections = subsections.filter(|(parent, _)| *parent == section.name);
            let expected: BTreeSet<_> = keys.chain(subsections.map(|(_, name)| name)).collect();
            assert_eq!(names, expected, "{file}: {header}");
        }
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

/// Returns a valid file with this section: an example of the project, extended where necessary.
pub fn sample(file: &str, header: &str) -> String {
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples");
    let example = match (file, header) {
        ("leaf", "[agent]" | "[[agent.pool]]") => "host",
        _ => file,
    };
    let text = std::fs::read_to_string(examples.join(example).with_extension("toml")).unwrap();
    // `leaf` excludes `[[leaf]]` and `[peers]`.
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

/// Returns the text with one key of the first such section set to `value`, or removed. A pool's id also changes where
/// servers and leaves name it.
pub fn with(text: &str, header: &str, key: &str, value: Option<&str>) -> String {
    // `is_here` is true within the section. The new line goes below the section's header, and the old one is left out.
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

/// Returns the checked configuration without its text, in debug format, and its warnings; or the text of the faults.
pub fn check(file: &str, text: &str) -> Result<(String, String), String> {
    let path = Path::new("file.toml");
    match file {
        "agent" => AgentConfig::parse(path, text).map(|mut config| {
            config.text.clear();
            (format!("{config:?}"), config.node().warnings().join("\n"))
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

/// Returns the owner of the file, the section's header and the key, for each key of the sections that this build has.
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
        let default = match key.default {
            Says(word @ ("true" | "false")) => word.to_owned(),
            Says(word) => format!("'{word}'"),
            Is(number) => number.to_string(),
            _ => continue,
        };
        let text = sample(file, &header);
        let [absent, present] = [None, Some(&default[..])]
            .map(|value| check(file, &with(&text, &header, key.name, value)).unwrap());
        // A key that changes nothing in the sample has a warning, and is not compared.
        if present.1.is_empty() {
            assert_eq!(absent.0, present.0, "{file}: {} of {header}: {default}", key.name);
            compared += 1;
        }
    }
    // Most defaults must have been compared.
    assert!(compared > 40, "{compared} defaults are compared");
}
