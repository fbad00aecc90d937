//! Controller: desired state of a whole fabric. One controller at a time changes it, a store keeps its
//! versions, and spines, leaves and agents follow it. Nodes keep running without a controller.
#![deny(unsafe_code)]

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
#[expect(missing_docs, reason = "generated; the .proto says it")]
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
pub use fabric::{Fabric, Leaf, Pool, PoolSettings, Server, Spine, Worker};
pub use follow::{FollowerThread, wanted};
pub use lease::{Clock, Lease};
pub use place::{Placement, Rack, link, take};
pub use server::{Controller, ControllerError};
pub use store::{StoreError, keep};
pub use view::{NodeId, PoolView, Position, View};

#[cfg(test)]
mod tests;

#[cfg(test)]
#[path = "../../tests/etcd/mod.rs"]
mod etcd;
#[cfg(test)]
#[path = "../../tests/timeouts/mod.rs"]
mod timeouts;
#[cfg(test)]
use timeouts::TIMEOUT;
