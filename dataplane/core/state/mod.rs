//! A node's view of its members (workers; at a spine, leaves), in private memory. Copies go to a file for other
//! processes ([`publish`]).
//!
//! A *pool* is a set of members that serve one kind of task. A member's *load report* is its queue length. Its *drift*
//! is the load that a core sent to it since its last report.
//!
//! One region holds the members and, per core, the core's estimates, idle lists and counters ([`layout`]).
//! Each word has one writing core. Exceptions are the neighbours, the members' presence and lost tasks, and the tokens
//! that cores share ([`tokens`]): each of these words is complete in itself, so no core ever waits. Cores exchange
//! their updates from time to time ([`broadcast`], [`pool_exchange`]). On the packet path a core touches only its own
//! cache lines and, where it needs them, the neighbours and tokens.

pub mod broadcast;
pub mod counters;
pub mod exchange;
pub mod files;
pub mod histogram;
pub mod idle;
pub mod layout;
pub mod member;
pub mod neighbour;
pub mod nodes;
pub mod pool_exchange;
pub mod publish;
pub mod region;
pub mod table;
pub mod tokens;
pub mod view;
pub mod words;

pub use broadcast::Topic;
pub use counters::{Counter, Counters, Gauge, Totals};
pub use exchange::{Exchange, RemoteUpdate};
pub use idle::IdleList;
pub use member::{DecisionNumber, Load, LoadEstimate, Member, MemberPresence, Report};
pub use neighbour::Neighbours;
pub use pool_exchange::{PoolExchange, PublishedState, RemoteBacklog};
pub use region::on_numa_node;
pub use table::{Snapshot, StateError, Table};
pub use view::{Parts, Picks, View};
pub use words::{MemberState, MemberStates};
