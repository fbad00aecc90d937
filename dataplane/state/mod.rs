//! What a node believes about its members, in memory of its own, of which others can read copies in a file ([`publish`]).
//!
//! One region holds it all (layout in [`layout`]): the members, and for every core what it believes of them, its idle lists and
//! its counters. Every word has one writing core but for the neighbours, the members' flags and the tokens that cores share
//! ([`tokens`]), whose words are self-contained; so no core ever waits. What a core learns it tells the others now and then
//! ([`broadcast`], [`peers`]): on the way of a packet a core writes and reads lines of its own.

pub mod broadcast;
pub mod counters;
pub mod exchange;
pub mod files;
pub mod idle;
pub mod layout;
pub mod member;
pub mod neighbour;
pub mod nodes;
pub mod peers;
pub mod publish;
pub mod region;
pub mod table;
pub mod tokens;
pub mod view;
pub mod words;

pub use broadcast::Topic;
pub use counters::{Counter, Counters, Gauge, Totals};
pub use exchange::{Exchange, Heard};
pub use idle::IdleList;
pub use member::{Belief, Decision, Load, Member, Presence, Report};
pub use neighbour::Neighbours;
pub use peers::{Peers, Sharing};
pub use region::on_numa_node;
pub use table::{Snapshot, StateError, Table};
pub use view::{Parts, Picks, View};
pub use words::{MemberWords, Words};
