//! Administration of a running node: requests by lines, by a signal and over gRPC, reloads of the
//! configuration, metrics and the status page.
//!
//! The thread that watches a node owns its [`Control`](crate::control::Control). Other threads send it their
//! requests through [`Requests`]. None of this runs on a dispatcher core, which receives only commands.

mod answer;
#[cfg(feature = "control")]
mod client;
#[cfg(feature = "control")]
mod convert;
mod cpus;
mod explain;
#[cfg(feature = "control")]
mod explanation;
#[cfg(feature = "control")]
mod follow;
#[cfg(feature = "control")]
mod http;
#[cfg(feature = "control")]
#[rustfmt::skip]
#[expect(missing_docs, reason = "generated; the .proto says it")]
pub mod generated;
mod lines;
#[cfg(feature = "control")]
pub(crate) mod listen;
pub mod metrics;
#[cfg(feature = "control")]
mod offline;
#[cfg(feature = "control")]
mod offline_workers;
#[cfg(feature = "control")]
mod page;
#[cfg(feature = "control")]
pub(crate) mod places;
pub mod reload;
mod requests;
#[cfg(feature = "control")]
mod server;
#[cfg(feature = "control")]
mod service;
#[cfg(feature = "control")]
mod socket;
mod stamps;
#[cfg(feature = "control")]
mod status;
mod tally;
mod tap;

pub use answer::Answer;
#[cfg(feature = "control")]
pub use client::{Access, ClientError, Connection};
#[cfg(feature = "control")]
pub(crate) use client::{channel_at, channel_to};
#[cfg(feature = "control")]
pub use convert::refusal;
#[cfg(feature = "control")]
pub(crate) use cpus::stay_on;
pub use explain::{ExplainSession, ExplainSpec};
#[cfg(feature = "control")]
pub use follow::{ControllerLink, FollowResult, FollowerKind, KnownState};
pub use lines::read_lines;
#[cfg(feature = "control")]
pub use listen::ServerError;
#[cfg(feature = "control")]
pub use offline::{Offline, OfflineError};
pub use requests::{Handle, NodeSnapshot, ReloadResult, RequestError, Requests};
#[cfg(feature = "control")]
pub use server::Server;
#[cfg(feature = "control")]
pub use socket::{OwnersSocket, SocketError, socket_path};
pub use tally::{Tally, Tasks};
pub use tap::{TapError, TapPoints, TapSpec, TapStats, packets};
