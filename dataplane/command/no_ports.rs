//! Replacement for `ports.rs` in a build without the feature `dpdk`, which cannot run a node. The functions have the
//! same arguments as there.

use std::path::PathBuf;

use wedjat::config::{AgentConfig, Config};

use super::Outcome;
use super::launch::Launch;

/// Error of commands that need ports.
const WITHOUT_PORTS: &str = "built without DPDK, so there are no ports to run on; build with the feature `dpdk` (the default)";

/// Returns an error: this build has no ports.
pub fn run_scheduler(_: &Config, _: &Launch, _: Option<PathBuf>, _: Option<PathBuf>) -> Outcome {
    Err(WITHOUT_PORTS.into())
}

/// Returns an error: this build has no ports.
pub fn run_agent(_: &AgentConfig, _: &Launch, _: Option<PathBuf>) -> Outcome {
    Err(WITHOUT_PORTS.into())
}
