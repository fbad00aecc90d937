//! Configuration files of a leaf, spine, agent and controller: TOML, checked completely before anything starts. The
//! functions of [`Config`], for leaf and spine, are here; [`AgentConfig`] and [`ControllerConfig`] have their own.
//!
//! One reading finds all faults of the values. Each fault names the file, the line and key if it has them, the
//! value found and the allowed values. The reader (`read`) refuses a text that is not TOML, and a text with unknown
//! keys, missing keys or wrong types. It reports all such faults and does not look at values. [`keys`] has the name,
//! type, range and default of each key.

mod address;
mod agent;
mod check;
mod control;
mod controller;
#[cfg_attr(not(feature = "batch"), path = "no_cosched.rs")]
mod cosched;
mod fault;
mod faults;
pub mod ids;
mod key;
pub mod keys;
mod leaf;
mod local;
mod node;
#[cfg_attr(not(feature = "peers"), path = "no_peers.rs")]
mod peers;
mod port;
mod racks;
mod raw;
mod raw_agent;
mod raw_control;
mod read;
mod settings;

pub use address::{UNSPECIFIED, is_unicast, v4_bits};
pub use agent::{AgentConfig, HostConfig, LeafAddress, PAYLOAD_MAX};
pub use control::{ControlConfig, TlsConfig};
pub use controller::{ControllerAddress, ControllerConfig, FollowConfig, StoreConfig};
pub use fault::ConfigFault;
pub use faults::{ConfigError, HOST};
pub use key::private_bytes;
pub use key::{KEY_FILE, read_key};
pub use leaf::{Config, LeafConfig, ServerConfig};
pub use node::NodeConfig;
pub use peers::PeersConfig;
pub use port::PortConfig;
pub use raw_agent::{PollMode, ReplyPath};
pub use settings::Settings;

use std::path::Path;

use wedjat_core::state::table::Role;

use read::File;

impl Config {
    /// Reads and checks the file at `path`.
    ///
    /// # Errors
    /// If the file cannot be read, or has faults. The error holds all of them; it holds faults of values only if all
    /// keys and types are right.
    pub fn load(path: &Path) -> Result<Self, ConfigError> {
        Self::parse(path, &faults::read(path)?)
    }

    /// Like [`Config::load`], for a program that embeds the scheduler. Without a `[[port]]`, the program
    /// passes in tasks and load reports itself.
    ///
    /// # Errors
    /// If the file cannot be read, or has faults. The error holds all of them; it holds faults of values only if all
    /// keys and types are right.
    pub fn load_embedded(path: &Path) -> Result<Self, ConfigError> {
        Self::parse_embedded(path, &faults::read(path)?)
    }

    /// Like [`Config::load_embedded`], for a text.
    ///
    /// # Errors
    /// If the text has faults. The error holds all of them; it holds faults of values only if all keys and types are
    /// right.
    pub fn parse_embedded(path: &Path, text: &str) -> Result<Self, ConfigError> {
        Self::parse_for(path, text, true)
    }

    /// Checks `text`. `path` is the file's name in errors and warnings, and the file that a reload of the node reads.
    ///
    /// # Errors
    /// If the text has faults. The error holds all of them; it holds faults of values only if all keys and types are
    /// right.
    pub fn parse(path: &Path, text: &str) -> Result<Self, ConfigError> {
        Self::parse_for(path, text, false)
    }

    /// Checks `text`. If `is_embedded`, the file may lack ports.
    fn parse_for(path: &Path, text: &str, is_embedded: bool) -> Result<Self, ConfigError> {
        let refuse = |faults| ConfigError { path: path.to_owned(), faults };
        if agent::is_agents(text) {
            let fault = ConfigFault::of_file(
                "an agent's file",
                "a leaf's or spine's; `wedjat agent` runs this one",
            );
            return Err(refuse(vec![fault]));
        }
        let role = if racks::is_spines(text) { Role::Spine } else { Role::Leaf };
        let file = File::read(role.name(), text).map_err(refuse)?;
        // `raw` has right types, and `check::config` checks the values.
        let raw = raw::Config::of(&file, role, is_embedded);
        check::config(path, text, raw, file).map_err(refuse)
    }

    /// Returns the configuration if it belongs to a node of this role.
    ///
    /// # Errors
    /// If it belongs to a node of another role.
    pub fn of(self, role: Role) -> Result<Self, ConfigError> {
        if self.role == role {
            return Ok(self);
        }
        let (actual, requested) = (self.role.name(), role.name());
        let found = format!("a {actual}'s file");
        let fault = ConfigFault::of_file(
            &found,
            &format!("a {requested}'s; `wedjat {actual}` runs this one"),
        );
        Err(ConfigError { path: self.path, faults: vec![fault] })
    }

    /// Returns its warnings: see [`NodeConfig::warnings`].
    #[must_use]
    pub fn warnings(&self) -> Vec<String> {
        self.node().warnings()
    }
}

#[cfg(test)]
mod tests;
