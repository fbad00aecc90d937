//! A leaf's or spine's configuration file: TOML, checked whole before anything starts.
//!
//! Every fault of the values is found in one reading and reported with file, line, key, what was found and
//! what is allowed. A text that is no TOML, or has a key that is unknown, missing or of the wrong type, is refused
//! for the first such fault before values are looked at.

mod address;
mod agent;
mod check;
mod control;
mod controller;
#[cfg(feature = "admin")]
mod cosched;
mod faults;
pub(crate) mod ids;
mod key;
mod leaf;
mod local;
#[cfg_attr(not(feature = "peers"), path = "no_peers.rs")]
mod peers;
mod port;
mod racks;
mod raw;
mod raw_agent;
mod raw_control;
mod raw_controller;

pub use address::{UNSPECIFIED, is_unicast, v4_bits};
pub use agent::{AgentConfig, AgentPool, HostConfig, LeafAddress, PAYLOAD_MAX};
pub use control::{ControlConfig, TlsConfig};
pub use controller::{ControllerAddress, ControllerConfig, FollowConfig, StoreConfig};
pub use faults::{ConfigError, Fault};
#[cfg(feature = "control")]
pub(crate) use key::private_bytes;
pub use key::{KEY_FILE, read_key};
pub use leaf::{Config, LeafConfig, PoolConfig, ServerConfig};
pub use peers::PeersConfig;
pub use port::PortConfig;
pub use raw_agent::{Polling, Sends};

use std::path::Path;

use crate::state::table::Role;

impl Config {
    /// Reads and checks the file at `path`.
    ///
    /// # Errors
    /// When it can't be read or has faults: all of them.
    pub fn load(path: &Path) -> Result<Self, ConfigError> {
        Self::parse(path, &faults::read(path)?)
    }

    /// The same for a program that has the scheduler within it: without a `[[port]]` its tasks and reports are told.
    ///
    /// # Errors
    /// When it can't be read or has faults: all of them.
    pub fn load_embedded(path: &Path) -> Result<Self, ConfigError> {
        Self::parse_embedded(path, &faults::read(path)?)
    }

    /// As [`Config::load_embedded`], of a text.
    ///
    /// # Errors
    /// All the faults it has.
    pub fn parse_embedded(path: &Path, text: &str) -> Result<Self, ConfigError> {
        Self::parse_for(path, text, true)
    }

    /// Checks `text`, naming `path` in errors.
    ///
    /// # Errors
    /// All the faults it has.
    pub fn parse(path: &Path, text: &str) -> Result<Self, ConfigError> {
        Self::parse_for(path, text, false)
    }

    fn parse_for(path: &Path, text: &str, is_embedded: bool) -> Result<Self, ConfigError> {
        let refuse = |faults| ConfigError { path: path.to_owned(), faults };
        if agent::is_agents(text) {
            let fault = Fault::of_file("an agent's file", "a leaf's; `wedjat agent` runs this one");
            return Err(refuse(vec![fault]));
        }
        let raw = match racks::is_spines(text) {
            true => toml::from_str::<raw::SpineFile>(text).map(raw::Config::from),
            false => toml::from_str(text),
        };
        let mut raw = raw.map_err(|error| refuse(vec![raw::fault_of(&error, text)]))?;
        raw.is_embedded = is_embedded;
        check::config(path, text, raw).map_err(refuse)
    }

    /// The same if it is that of a node of this role.
    ///
    /// # Errors
    /// When it is another's.
    pub fn of(self, role: Role) -> Result<Self, ConfigError> {
        if self.role == role {
            return Ok(self);
        }
        let (is, wanted) = (self.role.name(), role.name());
        let found = format!("a {is}'s file");
        let fault = Fault::of_file(&found, &format!("a {wanted}'s; `wedjat {is}` runs this one"));
        Err(ConfigError { path: self.path, faults: vec![fault] })
    }

    /// What the configuration allows and yet may not be meant: a line each, with file, line and key, what was found and
    /// what would be better, in order of lines. None of them keeps a leaf from running.
    #[must_use]
    pub fn warnings(&self) -> Vec<String> {
        faults::told(&self.path, &self.warnings)
    }
}

#[cfg(test)]
mod tests;
