//! File as TOML has it: keys and types are right, values are unchecked. [`super::keys`] has the meaning of each
//! key.

use serde::Deserialize;
use toml::Spanned;
use wedjat_core::nearest::did_you_mean;
use wedjat_core::policy::{Overflow, Reports};
use wedjat_core::stage::{IpOptions, Side};
use wedjat_core::state::table::Role;

use super::faults::{Fault, line_of};
use super::{raw_agent, raw_control, raw_controller};

/// Leaf's file, or a spine's file in its form.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    #[serde(skip)]
    pub(super) role: Role,
    /// True if a program with an embedded scheduler reads the file.
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
    /// Leaves of a spine.
    #[serde(skip)]
    pub(super) rack: Vec<Rack>,
    pub agent: Option<raw_agent::LocalAgentSection>,
    pub control: Option<raw_control::Control>,
    pub controller: Option<raw_controller::Follow>,
}

/// Spine's file.
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

/// Settings of the leaf or spine itself.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Node {
    pub id: Spanned<i64>,
    pub udp_port: Option<Spanned<i64>>,
    pub cores: Spanned<Vec<usize>>,
    pub state: Option<Spanned<String>>,
    pub state_group: Option<Spanned<String>>,
    pub seed: Option<u64>,
    pub mbufs: Option<Spanned<i64>>,
    pub poll: Option<raw_agent::PollMode>,
    pub connections: Option<Spanned<i64>>,
    pub multi_packet_per_source: Option<Spanned<i64>>,
    pub connection_timeout_ms: Option<Spanned<i64>>,
    /// Leaf only.
    pub worker_timeout_ms: Option<Spanned<i64>>,
    /// Spine only.
    pub leaf_timeout_ms: Option<Spanned<i64>>,
    pub pools_max: Option<Spanned<i64>>,
    /// Leaf only.
    pub servers_max: Option<Spanned<i64>>,
    /// Leaf only.
    pub workers_max: Option<Spanned<i64>>,
    /// Spine only: maximum number of entries in all, and of leaves in a pool.
    pub leaves_max: Option<Spanned<i64>>,
}

/// A `[[port]]`.
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

/// A `[[pool]]`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pool {
    pub id: Spanned<u16>,
    pub policy: Spanned<String>,
    pub queue: Option<Spanned<i64>>,
    pub overflow: Option<Spanned<Overflow>>,
    #[serde(default)]
    pub shared_workers: bool,
    /// Leaf only.
    pub reports: Option<Spanned<Reports>>,
    pub key_file: Option<Spanned<String>>,
    pub service: Option<Spanned<String>>,
    /// Leaf only.
    pub spine: Option<Spanned<u16>>,
    /// Leaf only.
    pub signals: Option<Spanned<String>>,
}

/// Spine above a leaf.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Spine {
    pub id: Spanned<i64>,
    pub ip: Spanned<String>,
}

/// Leaf below a spine, in one pool.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rack {
    pub id: Spanned<i64>,
    pub ip: Spanned<String>,
    pub mac: Option<Spanned<String>>,
    pub pool: Spanned<u16>,
    pub workers: Spanned<i64>,
}

/// A `[[server]]`.
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

/// Returns the fault of a text that is not TOML, or has an unknown key, a missing key or a wrong type.
/// Translates the TOML reader's message into the terms of all faults.
pub fn fault_of(error: &toml::de::Error, text: &str) -> Fault {
    let offset = error.span().map_or(0, |span| span.start);
    let line = line_of(text, offset);
    let message = error.message();
    let (found, expected) = message.split_once(", expected ").unwrap_or((message, ""));
    let key = key_at(text, line);
    let (found, allowed) = if let Some(value) = found.strip_prefix("invalid type: ") {
        (value_of(value), type_for_users(expected))
    } else if let Some(value) = found.strip_prefix("invalid value: ") {
        (value_of(value), type_for_users(expected))
    } else if let Some(name) = found.strip_prefix("unknown field ") {
        let found = format!("the unknown key {name}{}", suggestion(message));
        (found, expected.replacen("one of ", "", 1))
    } else if let Some(name) = found.strip_prefix("unknown variant ") {
        (format!("{name}{}", suggestion(message)), expected.replacen("one of ", "", 1))
    } else if let Some(name) = found.strip_prefix("missing field ") {
        (format!("no key {name}"), format!("the key {name}, which is needed"))
    } else {
        let expected = message
            .split_once("expected ")
            .map_or("text in TOML's form", |(_, description)| description);
        (found.split("\nexpected").next().unwrap_or_default().to_owned(), type_for_users(expected))
    };
    let in_one_line = |text: &str| text.trim_end().replace('\n', ", ");
    Fault { line, key, found: in_one_line(&found), allowed: in_one_line(&allowed) }
}

/// Suggests the key or value nearest to an unknown one, among those that the message lists in backquotes.
fn suggestion(message: &str) -> String {
    let mut quoted = message.split('`').skip(1).step_by(2);
    quoted.next().map_or_else(String::new, |unknown| did_you_mean(unknown, quoted))
}

/// Formats a value of the wrong type for users: as the file has it, or "a list" or "a table".
fn value_of(found: &str) -> String {
    let (kind, value) = found.split_once(' ').unwrap_or((found, ""));
    match kind {
        "sequence" => "a list".to_owned(),
        "map" => "a table or a date".to_owned(),
        "floating" => value.trim_start_matches("point ").trim_matches('`').to_owned(),
        "integer" | "boolean" => value.trim_matches('`').to_owned(),
        "string" => value.to_owned(),
        _ => found.to_owned(),
    }
}

/// Names a type for users.
fn type_for_users(expected: &str) -> String {
    let name = match expected.trim_end() {
        "i64" | "usize" | "u64" => "a whole number",
        "u16" => "a whole number from 0 to 65535",
        "f64" => "a number",
        "a string" | "string or table" => "text in quotes",
        "a boolean" => "true or false",
        "a sequence" => "a list",
        "a map" => "a table",
        name if name.starts_with("struct ") => "a table",
        name => name,
    };
    name.to_owned()
}

/// Returns the key that a line sets or continues, with the name of its table.
fn key_at(text: &str, line: usize) -> String {
    let mut table = "";
    let mut key = "";
    // Number of open brackets of a list that spans several lines.
    let mut open = 0_i32;
    for content in text.lines().take(line).map(str::trim) {
        let is_continued = open > 0;
        open += content.matches('[').count() as i32 - content.matches(']').count() as i32;
        if is_continued || content.starts_with('#') {
            continue;
        }
        if content.starts_with('[') {
            table = content.split(']').next().unwrap_or_default().trim_matches('[').trim();
            (key, open) = ("", 0);
        } else {
            key = content.split_once('=').map_or("", |(key, _)| key.trim());
            open = open.max(0);
        }
    }
    match (table, key) {
        (table, "") => table.to_owned(),
        ("", key) => key.to_owned(),
        (table, key) => format!("{table}.{key}"),
    }
}
