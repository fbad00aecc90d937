//! The file as TOML has it: right keys and types, values not yet looked at.

use serde::Deserialize;
use toml::Spanned;

use super::faults::{Fault, line_of};
use super::{raw_agent, raw_control, raw_controller};
use crate::nearest::did_you_mean;
use crate::policy::{Overflow, Reports};
use crate::stage::{IpOptions, Side};
use crate::state::table::Role;

/// A leaf's file, or what a spine's is as one.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    #[serde(skip)]
    pub(super) role: Role,
    /// It is read for a program that has the scheduler within it.
    #[serde(skip)]
    pub(super) is_embedded: bool,
    pub leaf: Node,
    #[serde(default)]
    pub port: Vec<Port>,
    #[serde(default)]
    pub pool: Vec<Pool>,
    #[serde(default)]
    pub server: Vec<Server>,
    #[serde(default)]
    pub spine: Vec<Spine>,
    /// A spine's leaves.
    #[serde(skip)]
    pub(super) rack: Vec<Rack>,
    pub agent: Option<raw_agent::Local>,
    pub control: Option<raw_control::Control>,
    pub controller: Option<raw_controller::Follow>,
}

/// A spine's file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SpineFile {
    spine: Node,
    #[serde(default)]
    port: Vec<Port>,
    #[serde(default)]
    pool: Vec<Pool>,
    #[serde(default)]
    leaf: Vec<Rack>,
    control: Option<raw_control::Control>,
    controller: Option<raw_controller::Follow>,
}

impl From<SpineFile> for Config {
    fn from(file: SpineFile) -> Self {
        let SpineFile { spine, port, pool, leaf, control, controller } = file;
        Self {
            role: Role::Spine,
            is_embedded: false,
            leaf: spine,
            port,
            pool,
            server: Vec::new(),
            spine: Vec::new(),
            rack: leaf,
            agent: None,
            control,
            controller,
        }
    }
}

/// A leaf or spine itself.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Node {
    pub id: Spanned<i64>,
    pub udp_port: Option<Spanned<i64>>,
    pub cores: Spanned<Vec<usize>>,
    pub state: Option<String>,
    pub state_group: Option<Spanned<String>>,
    pub seed: Option<u64>,
    pub mbufs: Option<Spanned<i64>>,
    pub poll: Option<raw_agent::Polling>,
    pub connections: Option<Spanned<i64>>,
    pub multi_packet_per_source: Option<Spanned<i64>>,
    pub connection_timeout_ms: Option<Spanned<i64>>,
    /// A leaf's.
    pub worker_timeout_ms: Option<Spanned<i64>>,
    /// A spine's.
    pub leaf_timeout_ms: Option<Spanned<i64>>,
    pub pools_max: Option<Spanned<i64>>,
    /// A leaf's.
    pub servers_max: Option<Spanned<i64>>,
    /// A leaf's.
    pub workers_max: Option<Spanned<i64>>,
    /// A spine's: entries in all, and leaves of a pool.
    pub leaves_max: Option<Spanned<i64>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Port {
    pub checksums: Option<raw_agent::Checksums>,
    pub ip_options: Option<Spanned<IpOptions>>,
    pub device: Spanned<String>,
    pub side: Spanned<Side>,
    pub ip: Spanned<String>,
    pub mac: Option<Spanned<String>>,
    pub gateway: Option<Spanned<String>>,
    pub queue_slots: Option<Spanned<i64>>,
    pub vlan: Option<Spanned<i64>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pool {
    pub id: Spanned<u16>,
    pub policy: Spanned<String>,
    pub queue: Option<Spanned<i64>>,
    pub overflow: Option<Spanned<Overflow>>,
    #[serde(default)]
    pub shared_workers: bool,
    /// A leaf's.
    pub reports: Option<Spanned<Reports>>,
    pub key_file: Option<Spanned<String>>,
    pub service: Option<Spanned<String>>,
    /// A leaf's.
    pub spine: Option<Spanned<u16>>,
    /// A leaf's.
    pub signals: Option<Spanned<String>>,
}

/// A spine over a leaf.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Spine {
    pub id: Spanned<i64>,
    pub ip: Spanned<String>,
}

/// A leaf below a spine, in one pool.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rack {
    pub id: Spanned<i64>,
    pub ip: Spanned<String>,
    pub mac: Option<Spanned<String>>,
    pub pool: Spanned<u16>,
    pub workers: Spanned<i64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Server {
    pub ip: Spanned<String>,
    pub mac: Option<Spanned<String>>,
    pub workers: Spanned<String>,
    pub pool: Spanned<u16>,
    pub speed: Option<Spanned<f64>>,
    pub registers: Option<bool>,
}

/// What the TOML reader has to say, in our form.
pub fn fault_of(error: &toml::de::Error, text: &str) -> Fault {
    let offset = error.span().map_or(0, |span| span.start);
    let line = line_of(text, offset);
    let message = error.message();
    let (found, allowed) = message
        .split_once(", expected ")
        .unwrap_or((message, "the keys and values of the configuration reference"));
    let mut found = found.trim_end().replace('\n', ", ");
    found.push_str(&meant(message));
    let allowed = plainly(allowed.trim_end()).replace('\n', ", ");
    Fault { line, key: key_at(text, line), found, allowed }
}

/// The key or value that a file of an unknown one probably meant, of those that the message lists between backquotes.
fn meant(message: &str) -> String {
    let mut quoted = message.split('`').skip(1).step_by(2);
    match quoted.next() {
        Some(unknown) if message.starts_with("unknown ") => did_you_mean(unknown, quoted),
        _ => String::new(),
    }
}

/// A type as people call it.
fn plainly(name: &str) -> &str {
    match name {
        "i64" | "usize" | "u64" => "a whole number",
        "u16" => "a whole number from 0 to 65535",
        "a string" => "text in quotes",
        "a boolean" => "true or false",
        _ => name,
    }
}

/// The key that a line sets, with its table's name.
fn key_at(text: &str, line: usize) -> String {
    let mut table = "";
    let mut key = "";
    for content in text.lines().take(line) {
        let content = content.trim();
        if content.starts_with('[') {
            table = content.split(']').next().unwrap_or_default().trim_matches('[').trim();
            key = "";
        } else {
            key = content.split_once('=').map_or("", |(key, _)| key.trim());
        }
    }
    match (table, key) {
        (table, "") => table.to_owned(),
        ("", key) => key.to_owned(),
        (table, key) => format!("{table}.{key}"),
    }
}
