//! Plan of a run of several nodes: the number of nodes, policies, load and faults. A plan prints as command-line
//! flags, and generates the nodes' configurations.

use std::fmt;
use std::net::Ipv4Addr;
use std::path::Path;

use rand::RngExt as _;
use wedjat::config::{AgentConfig, Config};
use wedjat::policy::{CATALOGUE, Entry, LeafReports, PolicySpec, Runs};
use wedjat::wire::ether::Mac;
use wedjat_pktgen::arrival::{Arrivals, Schedule};
use wedjat_pktgen::seed::StreamSeed;
use wedjat_pktgen::service::Service;
use wedjat_pktgen::target::Target;

use super::faults::{FaultPlan, FaultTarget, Topology};
use crate::sim::sharing::SharingTimes;

/// Only pool of all nodes.
pub const POOL: u16 = 1;
/// Address to which clients send tasks in a fabric with spines.
pub const SERVICE: Ipv4Addr = Ipv4Addr::new(10, 0, 1, 200);
/// Offset of spine ids: id of a spine minus its number.
pub const SPINE_IDS: u16 = 200;
/// Offset of agent ids, so that all nodes have distinct ids.
pub const AGENT_IDS: u16 = 100;
/// Time before the first task and the first fault, in which the nodes find each other.
pub const START_NS: u64 = 50_000_000;
/// Milliseconds without a message after which a leaf removes a registered worker.
const LEAF_WORKER_TIMEOUT_MS: u64 = 100;
/// Milliseconds without an answer after which an agent removes a worker that has tasks.
const AGENT_WORKER_TIMEOUT_MS: u64 = 50;
/// Maximum number of bytes of a task's payload at an agent.
const PAYLOAD: usize = 128;

/// Plan of a run. The run's outcome depends on nothing else.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Numbers of nodes and workers.
    pub topology: Topology,
    /// The spines' policy, over racks.
    pub spine: PolicySpec,
    /// The leaves' policy.
    pub leaf: PolicySpec,
    /// The agents' policy.
    pub agent: PolicySpec,
    /// Maximum number of waiting tasks in each node, for policies with a queue.
    pub queue: usize,
    /// Overflow of the queue: true to refuse tasks to their clients, false to drop them.
    pub refuse: bool,
    /// Sharing of the workers' cores among their tasks; `None` for one task at a time.
    pub sharing: Option<SharingTimes>,
    /// Distribution of service times.
    pub service: Service,
    /// Text form of the distribution.
    pub service_text: String,
    /// Offered load as a fraction of the workers' capacity; above 1 for overload.
    pub load: f64,
    /// Number of tasks of all clients together.
    pub tasks: u64,
    /// Travel time of a packet from one node to the next.
    pub hop_ns: u64,
    /// Processing time of a node per packet.
    pub node_delay_ns: u64,
    /// Faults of the run.
    pub faults: FaultPlan,
    /// Times of the factory's acts (for example an operator's commands), in nanoseconds from [`START_NS`].
    pub acts: Vec<u64>,
    /// True if spines and leaves start without pools and receive their desired state from a controller.
    pub has_controller: bool,
    /// Seed of all random streams.
    pub seed: u64,
}

/// Parts of a plan that the user chose. Parts that are `None` are drawn, except the numbers of spines, leaves
/// and agents, which have defaults.
#[derive(Clone, Debug, Default)]
#[allow(missing_docs, reason = "as in `Plan`")]
pub struct PlanOptions {
    pub spines: Option<u16>,
    pub leaves: Option<u16>,
    pub agents: Option<u16>,
    pub workers: Option<u16>,
    pub spine: Option<PolicySpec>,
    pub leaf: Option<PolicySpec>,
    pub agent: Option<PolicySpec>,
    pub queue: Option<usize>,
    pub refuse: Option<bool>,
    /// Path of replies: `leaf` or `direct`.
    pub replies: Option<String>,
    /// A sharing as in `10us,500ns,8`, or `none`.
    pub sharing: Option<String>,
    pub service: Option<String>,
    pub load: Option<f64>,
    pub tasks: Option<u64>,
    pub hop_ns: Option<u64>,
    pub node_delay_ns: Option<u64>,
    /// A plan's text, or `all`, `random`, `none`.
    pub faults: Option<String>,
    /// True if spines and leaves follow a controller.
    pub has_controller: bool,
}

impl Plan {
    /// Creates the plan of this seed. Parts without an option or a default are drawn from the seed.
    ///
    /// # Errors
    /// If an option is invalid; the error names it.
    pub fn draw(seed: u64, options: &PlanOptions) -> Result<Self, String> {
        let mut stream = StreamSeed::derive(seed, "plan", 0).stream();
        // Draws all parts, also those with an option, so that an option changes no other part.
        let leaf = draw_policy(&mut stream, &["cfcfs", "jbsq(k=1)", "jbsq(k=2)", "jbsq(k=4)"]);
        let agent = draw_policy(&mut stream, &["cfcfs", "jbsq(k=1)", "jbsq(k=2)", "jbsq(k=4)"]);
        let (leaf, agent) =
            (options.leaf.clone().unwrap_or(leaf), options.agent.clone().unwrap_or(agent));
        let workers = stream.random_range(1..=4);
        let queue = [4, 64, 4096][stream.random_range(0..3)];
        let refuse = stream.random_bool(0.5);
        let service = [
            "fixed(100us)",
            "exp(20us)",
            "exp(100us)",
            "exp(1ms)",
            "mix(0.9*exp(50us), 0.1*exp(1ms))",
        ];
        let service = service[stream.random_range(0..service.len())];
        let load = [0.3, 0.6, 0.9, 1.0, 1.2][stream.random_range(0..5)];
        let tasks = [100, 400, 1000][stream.random_range(0..3)];
        let hop_ns = [1_000, 5_000, 5_000, 50_000][stream.random_range(0..4)];
        let node_delay_ns = [0, 0, 200, 1_000][stream.random_range(0..4)];
        let spines = options.spines.unwrap_or(0);
        // Without spines one leaf and two agents; with spines two leaves for each spine, and two agents for each leaf.
        let (usual_leaves, usual_agents) =
            if spines > 0 { (spines.saturating_mul(2), 2_u16) } else { (1, 2) };
        let leaves = options.leaves.unwrap_or(usual_leaves);
        let usual_agents =
            if spines > 0 { usual_agents.saturating_mul(leaves) } else { usual_agents };
        let topology = Topology {
            spines,
            leaves,
            agents: options.agents.unwrap_or(usual_agents),
            workers: options.workers.unwrap_or(workers),
            is_direct: draw_direct(seed, options, (spines, leaves))?,
        };
        // With spines, each spine needs a leaf, and each leaf an agent.
        let min_count = |parents: u16| if spines > 0 { parents } else { 1 };
        let limits = [
            ("--spines", topology.spines, 0..=4),
            ("--leaves", topology.leaves, min_count(spines)..=8),
            ("--agents", topology.agents, min_count(leaves)..=16),
            ("--workers-each", topology.workers, 1..=64),
        ];
        for (flag, count, allowed) in limits {
            if !allowed.contains(&count) {
                return Err(format!(
                    "{flag} {count}: from {} to {} are allowed",
                    allowed.start(),
                    allowed.end()
                ));
            }
        }
        let service_text = options.service.clone().unwrap_or_else(|| service.to_owned());
        let service: Service =
            service_text.parse().map_err(|error| format!("--service {service_text}: {error}"))?;
        let mut plan = Self {
            topology,
            spine: draw_spine(seed, options)?,
            leaf,
            agent,
            queue: options.queue.unwrap_or(queue),
            refuse: options.refuse.unwrap_or(refuse),
            sharing: draw_sharing(seed, options)?,
            service,
            service_text,
            load: options.load.unwrap_or(load),
            tasks: options.tasks.unwrap_or(tasks),
            hop_ns: options.hop_ns.unwrap_or(hop_ns),
            node_delay_ns: options.node_delay_ns.unwrap_or(node_delay_ns),
            faults: FaultPlan::default(),
            acts: Vec::new(),
            has_controller: options.has_controller,
            seed,
        };
        if !(plan.load > 0.0 && plan.load <= 100.0) {
            return Err(format!("--load {}: a share above 0 and at most 100 is needed", plan.load));
        }
        if !(1..=1 << 24).contains(&plan.tasks) {
            return Err(format!(
                "--tasks {}: from 1 to {} are allowed with faults",
                plan.tasks,
                1 << 24
            ));
        }
        if plan.has_controller && spines == 0 {
            return Err(
                "--controller: it needs spines and leaves that follow it; give --spines".to_owned()
            );
        }
        // Times of faults are at most 1000 s.
        let span_ns = (plan.tasks as f64 / plan.rate()).min(1e12) as u64;
        if plan.has_controller {
            let mut stream = StreamSeed::derive(seed, "acts", 0).stream();
            plan.acts =
                (0..stream.random_range(0..8)).map(|_| stream.random_range(0..=span_ns)).collect();
            plan.acts.sort_unstable();
        }
        plan.faults = match options.faults.as_deref().map(str::trim) {
            None | Some("random") => FaultPlan::draw(seed, &topology, span_ns, false),
            Some("all") => FaultPlan::draw(seed, &topology, span_ns, true),
            Some(text) => FaultPlan::parse(text, &topology)?,
        };
        Ok(plan)
    }

    /// Returns the task rate of all clients together, in tasks per nanosecond.
    #[must_use]
    pub fn rate(&self) -> f64 {
        let workers = f64::from(self.topology.agents * self.topology.workers);
        self.load * workers / self.service.mean_ns()
    }

    /// Returns the Poisson arrivals at each node with clients, in nanoseconds. All such nodes get the same part of the
    /// load.
    ///
    /// # Errors
    /// If the load is impossible.
    pub fn schedule(&self) -> Result<Schedule, String> {
        let rate = self.rate() * 1e9 / f64::from(self.topology.clients());
        Schedule::new(&Arrivals::Poisson, rate, 1e9).map_err(|error| error.to_string())
    }

    /// Returns the MAC address of a participant's port.
    #[must_use]
    pub fn mac(&self, target: FaultTarget, port: usize) -> Mac {
        let (role, number) = match target {
            FaultTarget::Clients(number) => (1, number),
            FaultTarget::Leaf(number) => (2, number),
            FaultTarget::Agent(number) => (3, number),
            FaultTarget::Worker(id) => (4, id),
            FaultTarget::Spine(number) => (5, number),
        };
        Mac([2, 0, role, 0, number as u8, port as u8])
    }

    /// Returns a leaf's address towards its agents.
    fn leaf_rack_ip(number: u16) -> Ipv4Addr {
        Ipv4Addr::new(10, 1, 0, number as u8)
    }

    /// Returns the address of an agent.
    #[must_use]
    pub fn server(number: u16) -> Ipv4Addr {
        Ipv4Addr::new(10, 1, 0, 100 + number as u8)
    }

    /// Returns a spine's address towards leaves.
    #[must_use]
    pub fn spine_ip(number: u16) -> Ipv4Addr {
        Ipv4Addr::new(10, 0, 3, number as u8)
    }

    /// Returns a leaf's address towards spines.
    #[must_use]
    pub fn leaf_uplink_ip(number: u16) -> Ipv4Addr {
        Ipv4Addr::new(10, 0, 3, 100 + number as u8)
    }

    /// Iterates over the agents that a leaf schedules for: all agents without spines, those of its rack with spines.
    pub fn agents_of(&self, leaf: u16) -> impl Iterator<Item = u16> {
        let topology = self.topology;
        (1..=topology.agents)
            .filter(move |agent| topology.spines == 0 || topology.leaf_of(*agent) == leaf)
    }

    /// Returns the ids of a leaf's workers, in the order of their indices in the leaf's pool.
    #[must_use]
    pub fn workers_of(&self, leaf: u16) -> Vec<u16> {
        let each = self.topology.workers;
        self.agents_of(leaf).flat_map(|agent| (agent - 1) * each..agent * each).collect()
    }

    /// Returns the leaves of a spine, in the order of their indices in the spine's pool.
    #[must_use]
    pub fn leaves_of(&self, spine: u16) -> Vec<u16> {
        let topology = self.topology;
        (1..=topology.leaves).filter(|leaf| topology.spine_of(*leaf) == spine).collect()
    }

    /// Returns a node's seed. It has 63 bits, because configuration files have signed integers.
    fn seed_of(&self, purpose: &str, number: u16) -> u64 {
        StreamSeed::derive(self.seed, purpose, u32::from(number)).seed >> 1
    }

    /// Returns the addresses and the pool of the tasks of clients `number`. The destination is their leaf, or the
    /// service address in a fabric with spines.
    #[must_use]
    pub fn target(&self, number: u16) -> Target {
        let mac = self.mac(FaultTarget::Clients(number), 0);
        let (client_ip, destination, next_hop) = match self.topology.spines {
            0 => {
                let ip = |host| Ipv4Addr::new(10, 0, number as u8, host);
                (ip(100), ip(1), FaultTarget::Leaf(number))
            }
            _ => (Ipv4Addr::new(10, 0, 1, 100 + number as u8), SERVICE, FaultTarget::Spine(number)),
        };
        // Under a controller, the clients find the spine of the service address by ARP.
        let next_hop_mac = (!self.has_controller).then(|| self.mac(next_hop, 0));
        Target {
            pool: POOL,
            next_hop_mac,
            ..Target::new(mac, client_ip.to_bits(), destination.to_bits())
        }
    }

    /// Returns the configuration of one port of a spine or leaf.
    fn port_lines(&self, target: FaultTarget, port: usize, side: &str, ip: &str) -> String {
        format!(
            "[[port]]\ndevice = \"net_memif{port}\"\nside = \"{side}\"\nip = \"{ip}\"\nmac = \"{}\"\n",
            self.mac(target, port)
        )
    }

    /// Returns a spine's configuration on CPU `core`, with a state file if given.
    #[must_use]
    pub fn spine_text(&self, number: u16, core: usize, state: Option<&Path>) -> String {
        let (id, seed) = (SPINE_IDS + number, self.seed_of("spine", number));
        let mut text = format!("[spine]\nid = {id}\ncores = [{core}]\nseed = {seed}\n");
        text += &state_line(state);
        let target = FaultTarget::Spine(number);
        text += &self.port_lines(target, 0, "clients", &format!("10.0.1.{number}/24"));
        text += &self.port_lines(target, 1, "workers", &format!("{}/24", Self::spine_ip(number)));
        let policy = &self.spine;
        text += &format!("[[pool]]\nid = {POOL}\npolicy = \"{policy}\"\nservice = \"{SERVICE}\"\n");
        for leaf in self.leaves_of(number) {
            let (ip, workers) = (Self::leaf_uplink_ip(leaf), self.workers_of(leaf).len());
            text += &format!(
                "[[leaf]]\nid = {leaf}\nip = \"{ip}\"\npool = {POOL}\nworkers = {workers}\n"
            );
        }
        text
    }

    /// Returns a leaf's `signals` key: the kind of messages to its spine that the spine's policy needs.
    fn signals(&self) -> &'static str {
        match self.spine.entry().over_racks.map(|over| over.reports) {
            Some(LeafReports::Signals) => "horus",
            Some(LeafReports::EveryReply) => "every-reply",
            _ => "none",
        }
    }

    /// Returns the part of a pool's configuration that leaves and agents share.
    fn pool_lines(&self, policy: &PolicySpec) -> String {
        let overflow = if self.refuse { "refuse" } else { "drop" };
        format!(
            "id = {POOL}\npolicy = \"{policy}\"\nqueue = {}\noverflow = \"{overflow}\"\n",
            self.queue
        )
    }

    /// Returns a leaf's configuration on CPU `core`, with a state file if given.
    #[must_use]
    pub fn leaf_text(&self, number: u16, core: usize, state: Option<&Path>) -> String {
        let mut text = format!(
            "[leaf]\nid = {number}\ncores = [{core}]\nseed = {}\nworker_timeout_ms = {LEAF_WORKER_TIMEOUT_MS}\n",
            self.seed_of("leaf", number)
        );
        text += &state_line(state);
        let (target, spine) = (FaultTarget::Leaf(number), self.topology.spine_of(number));
        let uplink = match self.topology.spines {
            0 => format!("10.0.{number}.1/24"),
            _ => {
                let (id, ip) = (SPINE_IDS + spine, Self::spine_ip(spine));
                text += &format!("[[spine]]\nid = {id}\nip = \"{ip}\"\n");
                format!("{}/16", Self::leaf_uplink_ip(number))
            }
        };
        text += &self.port_lines(target, 0, "clients", &uplink);
        text +=
            &self.port_lines(target, 1, "workers", &format!("{}/24", Self::leaf_rack_ip(number)));
        text += &format!("[[pool]]\n{}", self.pool_lines(&self.leaf));
        text += if self.topology.is_direct { "replies = \"direct\"\n" } else { "" };
        if self.topology.spines > 0 {
            let (id, signals) = (SPINE_IDS + spine, self.signals());
            text += &format!("spine = {id}\nsignals = \"{signals}\"\nservice = \"{SERVICE}\"\n");
        } else if self.topology.leaves > 1 {
            text += "shared_workers = true\n";
        }
        for agent in self.agents_of(number) {
            let first = (agent - 1) * self.topology.workers;
            text += &format!(
                "[[server]]\nip = \"{}\"\nworkers = \"{first}-{}\"\npool = {POOL}\nregisters = {}\n",
                Self::server(agent),
                first + self.topology.workers - 1,
                self.topology.leaf_of(agent) == number
            );
        }
        text
    }

    /// Returns an agent's configuration on CPU `core`. `name` names the region to which its workers attach.
    #[must_use]
    pub fn agent_text(&self, number: u16, core: usize, name: &str) -> String {
        let first = (number - 1) * self.topology.workers;
        let mut text = format!(
            "[agent]\nname = \"{name}\"\ncore = {core}\nid = {}\nseed = {}\nleaf = \"{}\"\nslots = 64\npayload = {PAYLOAD}\n\
             worker_timeout_ms = {AGENT_WORKER_TIMEOUT_MS}\n",
            AGENT_IDS + number,
            self.seed_of("agent", number),
            Self::leaf_rack_ip(self.topology.leaf_of(number))
        );
        // With direct return the clients are hosts of the agent's network, too.
        let prefix = if self.topology.is_direct { 8 } else { 24 };
        text += &format!(
            "[[port]]\ndevice = \"net_memif0\"\nip = \"{}/{prefix}\"\nmac = \"{}\"\n",
            Self::server(number),
            self.mac(FaultTarget::Agent(number), 0)
        );
        text += &format!("[[pool]]\n{}", self.pool_lines(&self.agent));
        text + &format!("workers = \"{first}-{}\"\n", first + self.topology.workers - 1)
    }

    /// Returns a spine's parsed configuration.
    ///
    /// # Errors
    /// If the configuration is invalid.
    pub fn spine_config(&self, number: u16) -> Result<Config, String> {
        Config::parse(Path::new("spine.toml"), &self.spine_text(number, 0, None))
            .map_err(|error| error.to_string())
    }

    /// Returns a leaf's parsed configuration.
    ///
    /// # Errors
    /// If the configuration is invalid.
    pub fn leaf_config(&self, number: u16) -> Result<Config, String> {
        Config::parse(Path::new("leaf.toml"), &self.leaf_text(number, 0, None))
            .map_err(|error| error.to_string())
    }

    /// Returns an agent's parsed configuration.
    ///
    /// # Errors
    /// If the configuration is invalid.
    pub fn agent_config(&self, number: u16) -> Result<AgentConfig, String> {
        let text = self.agent_text(number, 0, "in-memory");
        AgentConfig::parse(Path::new("agent.toml"), &text).map_err(|error| error.to_string())
    }
}

/// Returns the configuration line of a state file, if there is one.
fn state_line(state: Option<&Path>) -> String {
    state.map_or_else(String::new, |state| format!("state = \"{}\"\n", state.display()))
}

/// Returns the spines' policy: that of `options`, or one drawn from a separate stream, so that the draw changes no
/// other part of the plan. Only policies that work over racks are allowed.
fn draw_spine(seed: u64, options: &PlanOptions) -> Result<PolicySpec, String> {
    // An entry that does not work over racks names another policy as its counterpart there, or none.
    let is_over_racks =
        |entry: &&Entry| entry.over_racks.is_some_and(|over| over.policy == entry.name);
    let all: Vec<_> = CATALOGUE.iter().filter(is_over_racks).map(|entry| entry.name).collect();
    let mut stream = StreamSeed::derive(seed, "plan of a spine", 0).stream();
    let drawn = all[stream.random_range(0..all.len())];
    let spine = options
        .spine
        .clone()
        .unwrap_or_else(|| drawn.parse().expect("names of the catalogue are policies"));
    match all.contains(&spine.entry().name) {
        true => Ok(spine),
        false => Err(format!(
            "--spine-policy {spine}: not a policy for racks; the policies are {}",
            all.join(", ")
        )),
    }
}

/// Returns true for direct return by `options`, or by a draw from a separate stream, as in `draw_spine`: for a third of
/// the seeds. Only a single leaf without spines has it.
fn draw_direct(
    seed: u64,
    options: &PlanOptions,
    (spines, leaves): (u16, u16),
) -> Result<bool, String> {
    let mut stream = StreamSeed::derive(seed, "plan of replies", 0).stream();
    let drawn = stream.random_range(0..3_i32) == 0;
    let is_possible = spines == 0 && leaves == 1;
    match options.replies.as_deref() {
        None => Ok(drawn && is_possible),
        Some("leaf") => Ok(false),
        Some("direct") if is_possible => Ok(true),
        Some("direct") => {
            Err("--replies direct: it needs one leaf; omit --spines and --leaves".to_owned())
        }
        Some(text) => Err(format!("--replies {text}: give leaf or direct")),
    }
}

/// Returns the sharing of `options`, or one drawn from a separate stream, as in `draw_spine`: none in half of the
/// draws.
fn draw_sharing(seed: u64, options: &PlanOptions) -> Result<Option<SharingTimes>, String> {
    let mut stream = StreamSeed::derive(seed, "plan of sharing", 0).stream();
    let drawn = ["none", "none", "none", "1us,200ns,2", "10us,500ns,4", "10us,500ns,8"];
    let drawn = drawn[stream.random_range(0..drawn.len())];
    match options.sharing.as_deref().unwrap_or(drawn) {
        "none" => Ok(None),
        text => text.parse().map(Some).map_err(|error| format!("--sharing {error}, or none")),
    }
}

/// Draws a policy: half of the draws from `often`, the rest from all policies that run on leaves. `often` lists
/// policies that queue tasks at the node.
fn draw_policy(stream: &mut wedjat_pktgen::seed::Stream, often: &[&str]) -> PolicySpec {
    let all: Vec<_> = CATALOGUE
        .iter()
        .filter(|entry| entry.runs != Runs::Spine)
        .map(|entry| entry.name)
        .collect();
    // Always draws three numbers, so that later draws do not depend on this one.
    let (from_all, often_index) = (stream.random_bool(0.5), stream.random_range(0..often.len()));
    let all_index = stream.random_range(0..all.len());
    let name = if from_all { all[all_index] } else { often[often_index] };
    name.parse().expect("names of the catalogue are policies")
}

/// Prints the plan as flags of `wedjat-testbed lockstep`.
impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Topology { spines, leaves, agents, workers, is_direct } = self.topology;
        if spines > 0 {
            write!(f, "--spines {spines} --spine-policy '{}' ", self.spine)?;
            f.write_str(if self.has_controller { "--controller " } else { "" })?;
        }
        write!(
            f,
            "--leaves {leaves} --agents {agents} --workers-each {workers} --policy '{}' --agent-policy '{}' --queue {} \
             --overflow {} --replies {} --sharing {} --service '{}' --load {} --tasks {} --hop {}ns --node-delay {}ns --faults '{}' --seed {}",
            self.leaf,
            self.agent,
            self.queue,
            if self.refuse { "refuse" } else { "drop" },
            if is_direct { "direct" } else { "leaf" },
            self.sharing.map_or_else(|| "none".to_owned(), |sharing| sharing.to_string()),
            self.service_text,
            self.load,
            self.tasks,
            self.hop_ns,
            self.node_delay_ns,
            self.faults,
            self.seed
        )
    }
}
