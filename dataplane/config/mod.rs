//! The leaf's configuration file: TOML, checked whole before anything starts.
//!
//! Every fault of the values is found in one reading and reported with file, line, key, what was found and
//! what is allowed. A text that is no TOML, or has a key that is unknown, missing or of the wrong type, is refused
//! for the first such fault before values are looked at.

mod agent;
mod check;
pub(crate) mod ids;
mod key;
mod local;
mod port;
mod raw;

pub use agent::{AgentConfig, AgentPool, AgentPort, HostConfig, LeafAddress, Sends};
pub use port::is_unicast;

use std::fmt;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};

use crate::policy::PolicySpec;
use crate::stage::{Overflow, Side};
use crate::wire::auth::Key;
use crate::wire::ether::Mac;

/// A checked configuration.
#[derive(Clone, Debug)]
pub struct Config {
    /// The file it comes from.
    pub path: PathBuf,
    /// Its text, for a run's manifest.
    pub text: String,
    /// `[leaf]`.
    pub leaf: LeafConfig,
    /// `[[port]]`.
    pub ports: Vec<PortConfig>,
    /// `[[pool]]`.
    pub pools: Vec<PoolConfig>,
    /// `[[server]]`.
    pub servers: Vec<ServerConfig>,
    /// `[agent]`: worker cores of the leaf's own host.
    pub agent: Option<HostConfig>,
    /// What is allowed and yet may not be meant, in order of lines; `allowed` says what would be better.
    warnings: Vec<Fault>,
}

/// The leaf itself.
#[derive(Clone, Debug)]
pub struct LeafConfig {
    /// Its id.
    pub id: u16,
    /// The UDP port of tasks.
    pub udp_port: u16,
    /// CPUs of the dispatcher cores.
    pub cores: Vec<usize>,
    /// The state file; memory of the process when none.
    pub state: Option<PathBuf>,
    /// The group that may read it besides its owner.
    pub state_group: Option<u32>,
    /// Seed of all random streams; chosen at start when none.
    pub seed: Option<u64>,
    /// Packet buffers in all.
    pub mbufs: u32,
    /// Multi-packet tasks tracked by each core.
    pub connections: usize,
    /// Of these, how many may come from one source address: 1 to `connections`.
    pub multi_packet_per_source: usize,
    /// After how long without a packet such a task is forgotten.
    pub connection_timeout_ms: u64,
    /// After how long without a word a registered worker is taken out; 0 for never.
    pub worker_timeout_ms: u64,
}

/// A port.
#[derive(Clone, Debug)]
pub struct PortConfig {
    /// EAL's name of the device, or a PCI address.
    pub device: String,
    /// Who is there.
    pub side: Side,
    /// The leaf's address there.
    pub ip: Ipv4Addr,
    /// Bits of the network's prefix.
    pub prefix: u8,
    /// The leaf's MAC address there, if not the device's.
    pub mac: Option<Mac>,
    /// The router to other networks.
    pub gateway: Option<Ipv4Addr>,
    /// Slots of each receive and transmit queue.
    pub queue_slots: u16,
}

/// A pool.
#[derive(Clone, Debug)]
pub struct PoolConfig {
    /// Its id.
    pub id: u16,
    /// Its policy.
    pub policy: PolicySpec,
    /// Tasks that may wait for a member on each core, under policies that let them wait.
    pub queue: usize,
    /// What becomes of those beyond.
    pub overflow: Overflow,
    /// Other schedulers send tasks to these workers too, so that a report may name more tasks than this leaf sent.
    pub shared_workers: bool,
    /// With it, what its workers say is believed with proof only.
    pub key: Option<Key>,
}

/// A worker server.
#[derive(Clone, Debug)]
pub struct ServerConfig {
    /// Its address.
    pub ip: Ipv4Addr,
    /// Its MAC address, if ARP need not find it.
    pub mac: Option<Mac>,
    /// Its workers' global ids.
    pub workers: Vec<u16>,
    /// The pool they serve.
    pub pool: u16,
    /// How fast each of them is, relative to other servers' workers.
    pub speed: f64,
    /// Its workers register themselves (WORKER_ID, KEEP_ALIVE).
    pub registers: bool,
}

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
    fn of_file(found: &str, allowed: &str) -> Self {
        let (found, allowed) = (found.to_owned(), allowed.to_owned());
        Self { line: 0, key: String::new(), found, allowed }
    }

    /// File, line and key, as far as there are any, and what was found there.
    fn place_and_found(&self, path: &Path) -> String {
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

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, fault) in self.faults.iter().enumerate() {
            if at > 0 {
                writeln!(f)?;
            }
            write!(f, "{}; allowed: {}", fault.place_and_found(&self.path), fault.allowed)?;
        }
        Ok(())
    }
}

impl Config {
    /// Reads and checks the file at `path`.
    ///
    /// # Errors
    /// When it can't be read or has faults: all of them.
    pub fn load(path: &Path) -> Result<Self, ConfigError> {
        Self::parse(path, &read(path)?)
    }

    /// Checks `text`, naming `path` in errors.
    ///
    /// # Errors
    /// All the faults it has.
    pub fn parse(path: &Path, text: &str) -> Result<Self, ConfigError> {
        let refuse = |faults| ConfigError { path: path.to_owned(), faults };
        if agent::is_agents(text) {
            let fault = Fault::of_file("an agent's file", "a leaf's; `wedjat agent` runs this one");
            return Err(refuse(vec![fault]));
        }
        let raw = toml::from_str::<raw::Config>(text)
            .map_err(|error| refuse(vec![raw::fault_of(&error, text)]))?;
        check::config(path, text, raw).map_err(refuse)
    }

    /// What the configuration allows and yet may not be meant: a line each, with file, line and key, what was found and
    /// what would be better, in order of lines. None of them keeps a leaf from running.
    #[must_use]
    pub fn warnings(&self) -> Vec<String> {
        let told = |warning: &Fault| {
            format!("{}; better: {}", warning.place_and_found(&self.path), warning.allowed)
        };
        self.warnings.iter().map(told).collect()
    }
}

fn read(path: &Path) -> Result<String, ConfigError> {
    std::fs::read_to_string(path).map_err(|error| ConfigError {
        path: path.to_owned(),
        faults: vec![Fault::of_file(
            &format!("a file that can't be read ({error})"),
            "a readable TOML file",
        )],
    })
}

#[cfg(test)]
mod tests;
