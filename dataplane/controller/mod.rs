//! What a whole fabric is to be, and how its nodes hear of it: one truth with versions, which one controller at a time writes, a
//! store keeps, and spines, leaves and agents follow. What runs goes on without it.

mod command;
mod decide;
mod event;
mod fabric;
mod place;
mod view;

pub use command::{Command, CommandError, FABRIC_WORKERS_MAX};
pub use event::{Event, Ids};
pub use fabric::{Fabric, Leaf, Pool, PoolSettings, Server, Spine, Worker};
pub use place::{Placement, Rack, link, take};
pub use view::{Delta, NodeId, PoolView, RackView, ServerView, View, WorkerView};

#[cfg(test)]
mod tests;
