//! Leaf's and spine's files as TOML has them: keys and types are right, values are unchecked. [`super::keys`] has the
//! meaning of each key.
//!
//! Only keys with rules of their own are here. The checked configuration reads all others from [`File`]. An agent's
//! file shares the entries of ports and pools. `entry!` defines a type with one field for each key, and its `of`,
//! which reads a table of the file. `Spanned` is a value with its place in the text.

use std::collections::BTreeMap;

use toml::Spanned;
use wedjat_core::policy::Reports;
use wedjat_core::stage::{IpOptions, Side};
use wedjat_core::state::table::Role;

use super::raw_control::Follow;
use super::read::{File, Table, entry};
use crate::state::ReplyPath;

/// Leaf's file, or a spine's.
pub struct Config {
    pub role: Role,
    /// True if a program with an embedded scheduler reads the file.
    pub is_embedded: bool,
    pub leaf: Node,
    pub port: Vec<Port>,
    pub pool: Vec<Pool>,
    pub server: Vec<Server>,
    /// Spines of a leaf.
    pub spine: Vec<Spine>,
    /// Leaves of a spine, from `[[leaf]]`.
    pub rack: Vec<Rack>,
    pub agent: Option<LocalAgentSection>,
    pub controller: Option<Follow>,
}

impl Config {
    /// Returns the contents of a file.
    pub fn of(file: &File, role: Role, is_embedded: bool) -> Self {
        let is_spine = role == Role::Spine;
        // No section has an empty name: that list stays empty.
        let (spine, rack) = if is_spine { ("", "leaf") } else { ("spine", "") };
        Self {
            role,
            is_embedded,
            leaf: Node::of(file, file.only(role.name())),
            port: file.entries("port", Port::of),
            pool: file.entries("pool", Pool::of),
            server: file.entries("server", Server::of),
            spine: file.entries(spine, Spine::of),
            rack: file.entries(rack, Rack::of),
            // A file has each of these sections at most once.
            agent: file.entries("agent", LocalAgentSection::of).pop(),
            controller: file.entries("controller", Follow::of).pop(),
        }
    }
}

entry! {
    /// Settings of the leaf or spine itself.
    Node {
        cores: Spanned<Vec<usize>>,
    }
}

entry! {
    /// A `[[port]]` of a leaf, spine or agent.
    Port {
        device: Spanned<String>,
        ip: Spanned<String>,
        mac: Option<Spanned<String>>,
        gateway: Option<Spanned<String>>,
        /// Required at a leaf or spine.
        side: Option<Spanned<Side>>,
        /// Leaf or spine.
        ip_options: Option<Spanned<IpOptions>>,
    }
}

entry! {
    /// A `[[pool]]` of a leaf, spine or agent, or an `[[agent.pool]]` of a leaf. Each of these has only some of the
    /// keys.
    Pool {
        id: Spanned<u16>,
        policy: Spanned<String>,
        key_file: Option<Spanned<String>>,
        /// Leaf only.
        reports: Option<Spanned<Reports>>,
        /// Leaf only.
        replies: Option<Spanned<ReplyPath>>,
        /// Leaf or spine.
        service: Option<Spanned<String>>,
        /// Leaf only.
        spine: Option<Spanned<u16>>,
        /// Leaf only.
        signals: Option<Spanned<String>>,
        /// Agent only. Required there.
        workers: Option<Spanned<String>>,
        /// Agent only.
        speeds: Option<Spanned<BTreeMap<String, f64>>>,
        /// Agent only, but not on a leaf's own core.
        leaf_policy: Option<Spanned<String>>,
    }
}

/// `[agent]` in a leaf's file: the agent's keys without those of ports, which the leaf has.
pub struct LocalAgentSection {
    /// Place of the section in the file, to read its other keys by name.
    pub table: Table,
    pub name: Spanned<String>,
    pub pool: Vec<Pool>,
}

impl LocalAgentSection {
    /// Returns the contents of the section, and the file's `[[agent.pool]]` entries.
    pub fn of(file: &File, table: Table) -> Self {
        Self { table, name: file.value(table, "name"), pool: file.entries("agent.pool", Pool::of) }
    }
}

entry! {
    /// Spine above a leaf.
    Spine {
        id: Spanned<i64>,
        ip: Spanned<String>,
    }
}

entry! {
    /// Leaf below a spine, in one pool.
    Rack {
        id: Spanned<i64>,
        ip: Spanned<String>,
        mac: Option<Spanned<String>>,
        pool: Spanned<u16>,
    }
}

entry! {
    /// A `[[server]]`: workers of one server in one pool.
    Server {
        ip: Spanned<String>,
        mac: Option<Spanned<String>>,
        workers: Spanned<String>,
        pool: Spanned<u16>,
        registers: Option<Spanned<bool>>,
    }
}
