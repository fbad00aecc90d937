//! `wedjat check`: checks a configuration file without running it, or prints the keys that such files may have.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use clap::Args;
use serde::Serialize;
use wedjat::config::keys::{Key, SECTIONS, Section};
use wedjat::config::{AgentConfig, Config, ControllerConfig, StoreConfig};
use wedjat::nearest::did_you_mean;
use wedjat::quantity;
use wedjat::state::table::Role;

use super::{Outcome, print};

/// Help text below the options.
pub const EXAMPLE: &str = "Example:
  wedjat check --config leaf.toml
  wedjat check --keys pool
Exit status: 0 when it is right, also with warnings, 1 otherwise, with every fault's file, line and key.";

/// Arguments of `wedjat check`.
#[derive(Debug, Args)]
pub struct Arguments {
    /// Configuration file.
    #[arg(long, value_name = "FILE", required_unless_present = "keys", conflicts_with = "keys")]
    config: Option<PathBuf>,
    /// Print the keys of all configuration files, or of one section such as `pool`: type, default, meaning.
    #[arg(long, value_name = "SECTION", num_args = 0..=1, default_missing_value = "")]
    keys: Option<String>,
    /// Print the keys as JSON.
    #[arg(long, requires = "keys")]
    json: bool,
}

/// Checks the file and prints its warnings and a summary. Without a file, prints keys.
pub fn run(arguments: &Arguments) -> Outcome {
    let Some(path) = &arguments.config else {
        return print_keys(arguments.keys.as_deref().unwrap_or_default(), arguments.json);
    };
    if AgentConfig::is_agents(path) {
        return check_agent(path);
    }
    if ControllerConfig::is_controllers(path) {
        return check_controller(path);
    }
    let config = Config::load(path)?;
    for warning in config.warnings() {
        print(&format!("warning: {warning}\n"))?;
    }
    if config.role == Role::Spine {
        return check_spine(&config);
    }
    let workers: usize = config.servers.iter().map(|server| server.workers.len()).sum();
    let local_agent = config.agent.as_ref().map_or_else(String::new, |agent| {
        let workers = quantity(agent.workers.len(), "worker");
        format!(", and agent {} with {workers}", agent.name)
    });
    print(&format!(
        "{}: right: leaf {} with {}, {}, {}, {} on {}{local_agent}\n",
        path.display(),
        config.leaf.id,
        quantity(config.ports.len(), "port"),
        quantity(config.pools.len(), "pool"),
        quantity(config.servers.len(), "server"),
        quantity(workers, "worker"),
        quantity(config.leaf.cores.len(), "core"),
    ))
}

/// Key of a configuration section, as `--keys --json` prints it. `list` is true for a list of tables. `files` holds the
/// roles whose files may have the section.
#[derive(Serialize)]
struct SectionKey {
    section: &'static str,
    list: bool,
    files: &'static [&'static str],
    #[serde(flatten)]
    key: &'static Key,
}

/// Prints the keys of the sections with this name, or of all if it is empty.
fn print_keys(name: &str, is_json: bool) -> Outcome {
    let is_requested = |section: &&Section| name.is_empty() || section.name == name;
    let sections: Vec<_> = SECTIONS.iter().filter(is_requested).collect();
    if sections.is_empty() {
        let names: BTreeSet<_> = SECTIONS.iter().map(|section| section.name).collect();
        let suggestion = did_you_mean(name, names.iter().copied());
        let names = names.into_iter().collect::<Vec<_>>().join(", ");
        return Err(format!("--keys: no section `{name}`{suggestion}; sections: {names}").into());
    }
    if is_json {
        let keys = sections.iter().flat_map(|section| {
            let Section { name, is_list, files, .. } = **section;
            section.keys().map(move |key| SectionKey { section: name, list: is_list, files, key })
        });
        return print(&(serde_json::to_string_pretty(&keys.collect::<Vec<_>>())? + "\n"));
    }
    let texts: Vec<_> = sections.into_iter().map(text_of).collect();
    print(&texts.join("\n"))
}

/// Returns a section as text. Each key has one line with its type and default, and one with its meaning.
fn text_of(section: &Section) -> String {
    let mut text = format!("{} in the file of: {}\n", section.header(), section.files.join(", "));
    for key in section.keys() {
        let (Key { name, meaning, .. }, values, default) = (key, key.values(), key.default());
        text += &format!("  {name}: {values}; default: {default}\n      {meaning}\n");
    }
    text.replace("; default: required\n", "; required\n").replace('`', "")
}

/// Prints a summary of a spine's file.
fn check_spine(config: &Config) -> Outcome {
    // A spine's members are leaves. A leaf has an entry for each of its pools. The entry's speed is the number of the
    // leaf's workers in that pool.
    let leaves: BTreeSet<_> = config.servers.iter().map(|leaf| leaf.ip).collect();
    let workers: f64 = config.servers.iter().map(|leaf| leaf.speed).sum();
    print(&format!(
        "{}: right: spine {} with {}, {}, {}, {} on {}\n",
        config.path.display(),
        config.leaf.id,
        quantity(config.ports.len(), "port"),
        quantity(config.pools.len(), "pool"),
        if leaves.len() == 1 { "1 leaf".to_owned() } else { format!("{} leaves", leaves.len()) },
        quantity(workers, "worker"),
        quantity(config.leaf.cores.len(), "core"),
    ))
}

/// Prints a summary of a controller's file.
fn check_controller(path: &Path) -> Outcome {
    let config = ControllerConfig::load(path)?;
    let store = match &config.store {
        StoreConfig::File(file) => format!("file {}", file.display()),
        StoreConfig::Etcd { members, .. } => format!("etcd at {}", members.join(", ")),
    };
    print(&format!("{}: right: controller {}, whose store is {store}\n", path.display(), config.id))
}

/// Prints the warnings and a summary of an agent's file.
fn check_agent(path: &Path) -> Outcome {
    let config = AgentConfig::load(path)?;
    for warning in config.node().warnings() {
        print(&format!("warning: {warning}\n"))?;
    }
    let workers = config.host.workers.len();
    let peers = config.peers.as_ref().map_or_else(String::new, |peers| {
        format!(
            ", node {} of {} without a leaf under {}",
            peers.own,
            peers.nodes.len(),
            peers.policy
        )
    });
    print(&format!(
        "{}: right: agent {} with {}, {}, {} on CPU {}{peers}\n",
        path.display(),
        config.host.name,
        quantity(config.ports.len(), "port"),
        quantity(config.host.pools.len(), "pool"),
        quantity(workers, "worker"),
        config.core,
    ))
}
