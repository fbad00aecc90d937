//! Administration of a running node: requests by lines, by a signal and over gRPC, reloads of the
//! configuration, metrics and the status page.
//!
//! A node is a leaf, spine or agent. The thread that watches it owns its [`Control`](wedjat_desired::control::Control),
//! which changes the node's pools, servers and workers. Other threads send it their requests through [`Requests`]. None
//! of this runs on a dispatcher core, which receives only commands.

mod answer;
mod client;
pub mod connection_slots;
mod convert;
mod cpus;
mod explain;
mod explanation;
mod follow;
mod http;
#[rustfmt::skip]
#[expect(missing_docs, reason = "generated; the .proto says it")]
pub mod generated;
mod lines;
pub mod listen;
pub mod metrics;
mod offline;
mod offline_workers;
mod page;
pub mod pcap;
pub mod reload;
mod requests;
mod runtime;
mod server;
mod service;
mod socket;
mod stamps;
mod status;
mod tally;
mod tap;

pub use answer::Answer;
pub use client::{Access, CaptureCall, ClientError, Connection};
pub use client::{channel_at, channel_to};
pub use convert::{refusal, show_reply};
pub use cpus::stay_on;
pub use explain::{ExplainSession, ExplainSpec};
pub use follow::{ControllerLink, FollowResult, FollowerKind, KnownState};
pub use lines::start_line_reader;
pub use listen::ServerError;
pub use offline::{Offline, OfflineError};
pub use requests::{Handle, NodeSnapshot, ReloadResult, RequestError, Requests};
pub use runtime::RuntimeThread;
pub use server::Server;
pub use socket::{OwnersSocket, SocketError, socket_path};
pub use tally::{Tally, Tasks};
pub use tap::{CaptureSession, TapError, TapOwner, TapPoints, TapSpec, TapStats, packets};
