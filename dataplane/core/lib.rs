//! Core of the wedjat scheduler: the code that each packet passes, and the state that it reads and writes.
//!
//! The packet path and the policies take time, randomness and packets as arguments. They need no device, no thread
//! and no network, so they run in a poll loop, in a simulator and in other programs. The main modules, in the order in
//! which they build on each other: [`wire`], [`state`], [`io`], [`ring`], [`clock`], [`policy`], [`stage`], [`node`],
//! [`role`].

pub mod clock;
pub mod cpus;
pub mod io;
pub mod limits;
pub mod nearest;
pub mod node;
pub mod outage;
#[cfg(feature = "peers")]
pub mod peers;
pub mod policy;
pub mod program;
mod quantity;
pub mod reason;
pub mod ring;
pub mod role;
pub mod stage;
pub mod state;
pub mod stats;
pub mod wire;
pub mod worker;

pub use quantity::quantity;

// Time limits of tests that wait for threads, shared with the integration tests.
#[cfg(test)]
#[path = "../../tests/timeouts/mod.rs"]
mod timeouts;
#[cfg(test)]
use timeouts::TIMEOUT;
