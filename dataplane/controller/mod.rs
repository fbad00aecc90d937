//! What a whole fabric is to be, and how its nodes hear of it: one truth with versions, which one controller at a time writes, a
//! store keeps, and spines, leaves and agents follow. What runs goes on without it.

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
mod place;
mod server;
mod service;
mod store;
mod view;

pub use client::Operator;
pub use command::{Command, CommandError, FABRIC_WORKERS_MAX};
pub use convert::{MessageError, delta, hello};
pub use desk::Standing;
pub use event::{Event, Ids};
pub use fabric::{Fabric, Leaf, Pool, PoolSettings, Server, Spine, Worker};
pub use follow::{Following, wanted};
pub use place::{Placement, Rack, link, take};
pub use server::{Controller, ControllerError};
pub use store::{StoreError, keep};
pub use view::{Delta, NodeId, PoolView, RackView, ServerView, View, WorkerView};

#[cfg(test)]
mod tests;
