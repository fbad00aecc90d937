//! Controller of a fabric, and the part of a node that follows a controller.
//!
//! A fabric consists of nodes: leaves (schedule the tasks of one rack), spines (schedule tasks over leaves) and agents
//! (give tasks to the workers of one host). The controller holds their desired state as numbered versions. `command`
//! has the operators' commands, `decide` computes their effects, and `event` applies them. `desk` executes commands in
//! turn while this controller is the leader, and `store` keeps each version. `service` sends each node its part over
//! gRPC, and `follow` receives it there. Nodes keep running without a controller.

mod client;
mod command;
mod convert;
mod decide;
mod desk;
#[rustfmt::skip]
#[expect(clippy::enum_variant_names, reason = "generated, by etcd's own names")]
mod etcd_api;
mod event;
mod fabric;
mod follow;
#[rustfmt::skip]
pub mod generated;
mod lease;
mod place;
mod server;
mod service;
mod store;
mod view;

pub use client::ControllerClient;
pub use command::{Command, CommandError, FABRIC_WORKERS_MAX};
pub use convert::{MessageError, delta, hello};
pub use desk::ControllerRole;
pub use event::{Event, Ids};
pub use fabric::{Fabric, Leaf, Links, PoolSettings, Server, Spine, Worker};
pub use follow::{FollowerThread, wanted};
pub use lease::{Clock, Lease};
pub use place::{Placement, Rack, assign_spines, choose_workers};
pub use server::{Controller, ControllerError};
pub use store::{StoreError, create_file};
pub use view::{NodeId, Position, View};

#[cfg(test)]
mod tests;

// Helpers that the tests of several crates share: an etcd with a proxy, free addresses, and the timeout of tests.
#[cfg(test)]
#[path = "../../tests/etcd/mod.rs"]
mod etcd;
#[cfg(test)]
#[path = "../../testbed/src/free_address.rs"]
mod free_address;
#[cfg(test)]
#[path = "../../tests/timeouts/mod.rs"]
mod timeouts;
#[cfg(test)]
use timeouts::TIMEOUT;
