//! What a node believes about its members, in memory of its own, of which others can read copies in a file ([`publish`]).
//!
//! One region holds it all (layout in [`layout`]): the members, their last reported loads (shared by all
//! cores), and for every core its drift, its idle lists and its counters. Every word has one writing
//! core but for the reported loads, the neighbours and the members' flags, whose words are
//! self-contained; so all access is relaxed atomic access and no core ever waits.

pub mod counters;
pub mod files;
pub mod idle;
pub mod layout;
pub mod neighbour;
pub mod publish;
pub mod region;
pub mod table;
pub mod view;
pub mod words;

pub use counters::{Counter, Counters, Gauge, Totals};
pub use idle::IdleList;
pub use neighbour::Neighbours;
pub use table::{Snapshot, StateError, Table};
pub use view::{Belief, Decision, Load, Member, Parts, Picks, Report, View};
pub use words::{MemberWords, Words};
