//! `wedjat ctl` for fabrics: requests to the controller, which keeps the desired state of spines, leaves and agents.

use std::fmt::Write as _;
use std::path::PathBuf;

use clap::Args;
use serde_json::json;
use wedjat::config::ControllerAddress;
use wedjat::controller::generated::{Node, TopologyReply};
use wedjat::controller::{Command as FabricCommand, ControllerClient};
use wedjat::quantity;

use super::{Arguments, Command, NO_VERSION, PoolCommand, print_result, with};
use crate::command::Outcome;

/// Arguments of a fabric's pool.
#[derive(Debug, Args)]
pub struct PoolArguments {
    /// In a fabric: desired number of workers
    #[arg(long)]
    pub workers: Option<usize>,
    /// In a fabric: spread workers over as many racks as possible [default]
    #[arg(long, requires = "workers", conflicts_with_all = ["pack", "by_size"])]
    pub spread: bool,
    /// In a fabric: put workers into as few racks as possible
    #[arg(long, requires = "workers", conflicts_with = "by_size")]
    pub pack: bool,
    /// In a fabric: take workers from each rack in proportion to its size
    #[arg(long, requires = "workers")]
    pub by_size: bool,
    /// In a fabric: number of spines that its racks are linked to [default: none]
    #[arg(long, requires = "workers")]
    pub spines: Option<usize>,
    /// In a fabric: address for the pool's tasks
    #[arg(long, requires = "workers")]
    pub address: Option<String>,
    /// In a fabric: number of workers up to which registering workers join [default: 0]
    #[arg(long, requires = "workers")]
    pub admits: Option<usize>,
    /// In a fabric: policy of the spines [default: the one that matches the leaves' policy]
    #[arg(long, requires = "workers")]
    pub spine_policy: Option<String>,
    /// In a fabric: policy of the agents [default: cfcfs]
    #[arg(long, requires = "workers")]
    pub agent_policy: Option<String>,
}

/// Request to a controller.
#[derive(Debug)]
pub enum FabricRequest {
    /// Show the topology.
    Topology,
    /// Execute a command.
    Command(FabricCommand),
}

/// Any error.
type Error = Box<dyn std::error::Error>;

/// Returns the request of a command to a controller; `None` for a command to a node. A command that both accept goes to
/// the controller if `is_named`: the user gave --controller. Without --controller, `add-server` goes there with --leaf,
/// and `pool create` with --workers. Pool commands with --agent are for nodes.
pub fn request_of(command: &Command, is_named: bool) -> Option<Result<FabricRequest, Error>> {
    let text = match command {
        Command::Topology => return Some(Ok(FabricRequest::Topology)),
        Command::AddSpine { id, ip } => format!("add-spine id={id} ip={ip}"),
        Command::RemoveSpine { id } => format!("remove-spine id={id}"),
        Command::FailSpine { id } => format!("fail-spine id={id}"),
        Command::RestoreSpine { id } => format!("restore-spine id={id}"),
        Command::AddLeaf { id, ip } => format!("add-leaf id={id} ip={ip}"),
        Command::RemoveLeaf { id } => format!("remove-leaf id={id}"),
        Command::FailLeaf { id, to } => format!("fail-leaf id={id}{}", with("to", *to)),
        Command::RestoreLeaf { id } => format!("restore-leaf id={id}"),
        Command::DrainServer { ip } => format!("drain-server ip={ip}"),
        Command::UndrainServer { ip } => format!("undrain-server ip={ip}"),
        Command::AddServer { ip, leaf: Some(leaf), workers, speed, mac, registers } => {
            let workers = with("workers", workers.as_ref());
            let (mac, speed) = (with("mac", mac.as_ref()), with("speed", speed.as_ref()));
            let registers = with("registers", registers.then_some(true));
            format!("add-server ip={ip} leaf={leaf}{workers}{mac}{registers}{speed}")
        }
        Command::Pool { command: PoolCommand::Resize { .. }, agent: true } => {
            return Some(Err("--agent: only a fabric's pool can be resized; leave it out".into()));
        }
        Command::Pool { command: PoolCommand::Resize { id, workers }, agent: false } => {
            format!("resize-pool id={id} workers={workers}")
        }
        Command::Pool { command: PoolCommand::Create { fabric, .. }, agent: true }
            if fabric.workers.is_some() =>
        {
            let error = "--workers: an agent's pool is created without workers; leave it out";
            return Some(Err(error.into()));
        }
        Command::Pool { command: create @ PoolCommand::Create { fabric, .. }, agent: false }
            if is_named || fabric.workers.is_some() =>
        {
            match creation_text(create) {
                Ok(text) => text,
                Err(error) => return Some(Err(error)),
            }
        }
        _ if !is_named => return None,
        Command::RemoveServer { ip } => format!("remove-server ip={ip}"),
        Command::Pool { command: PoolCommand::Delete { id }, agent: false } => {
            format!("remove-pool id={id}")
        }
        Command::Pool { command: PoolCommand::Policy { id, policy }, agent: false } => {
            format!("set-policy pool={id} policy={policy}")
        }
        Command::Pool { command: PoolCommand::Queue { id, queue, overflow }, agent: false } => {
            let overflow = with("overflow", overflow.as_ref());
            format!("set-queue pool={id} queue={queue}{overflow}")
        }
        Command::Show => return Some(Ok(FabricRequest::Topology)),
        Command::AddServer { leaf: None, .. } => {
            return Some(Err("a fabric's server needs --leaf and --workers".into()));
        }
        _ => {
            let error =
                "a controller has no such command; leave --controller out to send it to a node";
            return Some(Err(error.into()));
        }
    };
    Some(text.parse().map(FabricRequest::Command).map_err(Into::into))
}

/// Returns the text of a command that creates a pool, in the form that the controller parses.
///
/// # Errors
/// If an option is for nodes only.
fn creation_text(command: &PoolCommand) -> Result<String, Error> {
    let PoolCommand::Create { id, fabric, policy, queue, overflow, shared_workers, key_file } =
        command
    else {
        return Ok(String::new()); // never: the caller matched a creation
    };
    if *shared_workers || key_file.is_some() {
        let option = if *shared_workers { "--shared-workers" } else { "--key-file" };
        return Err(format!("{option}: only a pool of a node has it; leave it out").into());
    }
    let placement = match (fabric.pack, fabric.by_size) {
        (true, _) => "pack",
        (_, true) => "size",
        _ => "spread",
    };
    let mut text = format!("add-pool{}", with("id", id.as_ref()));
    text.push_str(&with("workers", fabric.workers));
    let _ = write!(text, " policy={policy} placement={placement}");
    text.push_str(&with("queue", queue.as_ref()));
    text.push_str(&with("overflow", overflow.as_ref()));
    text.push_str(&with("spines", fabric.spines));
    text.push_str(&with("address", fabric.address.as_ref()));
    text.push_str(&with("admits", fabric.admits));
    text.push_str(&with("spine-policy", fabric.spine_policy.as_ref()));
    Ok(text + &with("agent-policy", fabric.agent_policy.as_ref()))
}

/// Returns the controller's address, from --controller or the environment: a URL or a socket. For the path of a store,
/// returns the socket beside it.
fn address(arguments: &Arguments) -> Result<ControllerAddress, Error> {
    let text = arguments.controller.clone().or_else(|| std::env::var("WEDJAT_CONTROLLER").ok());
    let none = "no controller: give --controller, or set WEDJAT_CONTROLLER";
    let text = text.filter(|text| !text.is_empty()).ok_or(none)?;
    if let Some(address) = ControllerAddress::parse(&text) {
        return Ok(address);
    }
    if text.contains("://") {
        let allowed = "https://HOST:PORT, http://127.0.0.1:PORT on this host, or a path";
        return Err(format!("--controller {text}: allowed: {allowed}").into());
    }
    let path = PathBuf::from(text);
    let is_socket = path.extension().is_some_and(|ending| ending == "ctl");
    Ok(ControllerAddress::Socket(if is_socket { path } else { wedjat::admin::socket_path(&path) }))
}

/// Sends the request to the controller and prints the answer.
pub fn run(arguments: &Arguments, request: FabricRequest) -> Outcome {
    if matches!(request, FabricRequest::Topology) && arguments.if_version.is_some() {
        return Err(NO_VERSION.into());
    }
    let tls = match (&arguments.ca, &arguments.certificate, &arguments.key) {
        (Some(ca), Some(certificate), Some(key)) => {
            Some([ca.clone(), certificate.clone(), key.clone()])
        }
        _ => None,
    };
    let address = address(arguments)?;
    if matches!(&address, ControllerAddress::Url(url) if url.starts_with("https:")) && tls.is_none()
    {
        return Err("https needs --ca, --certificate and --key".into());
    }
    let mut operator = ControllerClient::open(&address, tls.as_ref())?;
    match request {
        FabricRequest::Topology => {
            let reply = operator.topology()?;
            print_result(arguments, &topology(&reply), &serde_json::to_value(&reply)?)
        }
        FabricRequest::Command(command) => {
            let reply = operator.command(&command, arguments.if_version)?;
            let new_pool = reply.pool.filter(|_| matches!(command, FabricCommand::AddPool { .. }));
            let mut text = format!("version {}: {command}", reply.version);
            new_pool.iter().for_each(|pool| _ = write!(text, "\npool {pool}"));
            reply.notes.iter().for_each(|note| _ = write!(text, "\nnote: {note}"));
            let mut result = json!({ "version": reply.version, "notes": reply.notes });
            if let Some(pool) = new_pool {
                result["pool"] = pool.into();
            }
            print_result(arguments, &text, &result)
        }
    }
}

/// Describes whether a node has applied the controller's `version` of the desired state: its older version, or its
/// reason for refusing. Appends the number of silent workers.
fn node(node: Option<&Node>, version: u64) -> String {
    let Some(node) = node.filter(|node| node.connected) else { return "not connected".to_owned() };
    let mut text = if node.refuses.is_empty() {
        match node.version {
            current if current < version => format!("version {current}"),
            _ => "follows".to_owned(),
        }
    } else {
        format!("refuses: {}", node.refuses.replace('\n', "; "))
    };
    if !node.silent.is_empty() {
        let _ = write!(text, ", {} silent", quantity(node.silent.len(), "worker"));
    }
    text
}

/// Formats the topology.
fn topology(reply: &TopologyReply) -> String {
    let failed = |is_failed| if is_failed { "  down" } else { "" };
    let mut out =
        format!("controller {}  term {}  version {}", reply.controller, reply.term, reply.version);
    for spine in &reply.spines {
        let state = node(spine.node.as_ref(), reply.version);
        let _ =
            write!(out, "\nspine {}  {}{}  {state}", spine.id, spine.address, failed(spine.failed));
    }
    for leaf in &reply.leaves {
        let state = node(leaf.node.as_ref(), reply.version);
        let _ = write!(out, "\nleaf {}  {}{}  {state}", leaf.id, leaf.address, failed(leaf.failed));
        for server in &leaf.servers {
            let drained = if server.drained { "  drained" } else { "" };
            let registers = if server.registers { "  registers" } else { "" };
            let _ = write!(
                out,
                "\n  server {}  workers {}{registers}{drained}",
                server.ip, server.workers
            );
        }
    }
    for pool in &reply.pools {
        let Some(definition) = &pool.pool else { continue };
        let _ = write!(
            out,
            "\npool {}  policy {}  {} of {}  {}  {}",
            definition.id,
            definition.policy,
            pool.members,
            quantity(definition.workers, "worker"),
            definition.placement,
            quantity(pool.racks.len(), "rack")
        );
        for rack in &pool.racks {
            let spine = rack.spine.map_or_else(String::new, |spine| format!("  spine {spine}"));
            let _ =
                write!(out, "\n  leaf {}  {}{spine}", rack.leaf, quantity(rack.workers, "worker"));
        }
    }
    reply.notes.iter().for_each(|note| _ = write!(out, "\nnote: {note}"));
    out
}
