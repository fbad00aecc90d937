//! Settings that leaf, spine and agent have in common, for code that starts any of them.

use std::path::Path;
use std::slice;

use wedjat_core::state::table::Role;

use super::agent::{AgentConfig, HostConfig};
use super::control::ControlConfig;
use super::controller::FollowConfig;
use super::cosched::Job;
use super::fault::ConfigFault;
use super::faults;
use super::leaf::Config;
use super::port::PortConfig;
use super::raw_agent::PollMode;

/// Settings of a node, whatever its role.
#[derive(Clone, Copy, Debug)]
pub struct NodeConfig<'a> {
    /// Path of the file.
    pub path: &'a Path,
    /// Text of the file.
    pub text: &'a str,
    /// Role.
    pub role: Role,
    /// Id in the state file.
    pub id: u16,
    /// CPUs of the dispatcher cores.
    pub cores: &'a [usize],
    /// Behaviour of the cores without packets.
    pub poll: PollMode,
    /// Total number of packet buffers.
    pub mbufs: u32,
    /// `[[port]]`.
    pub ports: &'a [PortConfig],
    /// State file; `None` for process memory.
    pub state: Option<&'a Path>,
    /// Group that may read the state file besides its owner.
    pub state_group: Option<u32>,
    /// `[control]`.
    pub control: &'a ControlConfig,
    /// `[controller]`: the controller that the node follows.
    pub controller: Option<&'a FollowConfig>,
    /// Workers of an agent, also of one on a leaf's core.
    pub host: Option<&'a HostConfig>,
    /// `[cosched]`: batch jobs beside an agent's workers.
    pub jobs: &'a [Job],
    /// Settings that are allowed and are probably mistakes.
    pub(super) warnings: &'a [ConfigFault],
}

impl NodeConfig<'_> {
    /// Returns warnings: settings that are allowed and are probably mistakes. Each is one line with the file,
    /// line, key, value found and a better value, in order of lines. A warning does not stop a node.
    #[must_use]
    pub fn warnings(&self) -> Vec<String> {
        faults::lines(self.path, self.warnings)
    }
}

impl Config {
    /// Returns the settings that every node has.
    #[must_use]
    pub fn node(&self) -> NodeConfig<'_> {
        NodeConfig {
            path: &self.path,
            text: &self.text,
            role: self.role,
            id: self.leaf.id,
            cores: &self.leaf.cores,
            poll: self.leaf.poll,
            mbufs: self.leaf.mbufs,
            ports: &self.ports,
            state: self.leaf.state.as_deref(),
            state_group: self.leaf.state_group,
            control: &self.control,
            controller: self.controller.as_ref(),
            host: self.agent.as_ref(),
            jobs: &[],
            warnings: &self.warnings,
        }
    }
}

impl AgentConfig {
    /// Returns the settings that every node has.
    #[must_use]
    pub fn node(&self) -> NodeConfig<'_> {
        NodeConfig {
            path: &self.path,
            text: &self.text,
            role: Role::Agent,
            id: self.id,
            cores: slice::from_ref(&self.core),
            poll: self.poll,
            mbufs: self.mbufs,
            ports: &self.ports,
            state: self.state.as_deref(),
            state_group: self.state_group,
            control: &self.control,
            controller: self.controller.as_ref(),
            host: Some(&self.host),
            jobs: &self.jobs,
            warnings: &self.warnings,
        }
    }
}
