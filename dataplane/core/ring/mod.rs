//! Rings between a dispatcher core and its workers: one producer, one consumer, one cache line per transfer.
//!
//! The *dispatcher* is the polling core of an agent, the process on a worker host that receives tasks from the network.
//! A *worker* is a thread or process that serves tasks.
//!
//! The dispatcher gives tasks to a worker through 16-byte slots. A slot holds the *notice* of a task: its number and
//! the position of its bytes. Both are in one cache line. The worker writes no slots. It answers with one line of its
//! own, which holds the number of tasks completed and the time worked since it attached: a *credit* per task,
//! without individual acknowledgements. A worker whose tasks share its core also lists the slots of completed
//! tasks. Both ends are in memory shared by threads or processes.
//!
//! A *channel* is the memory for one worker. A worker *claims* a channel by writing a number, and the dispatcher
//! *grants* it by repeating that number. The bytes of tasks and replies are in the channel's *area*.
//!
//! The ends do not trust each other. Each end checks its peer's indices, lengths and offsets on private copies. An
//! impossible count or list of completed tasks is a [`CreditError`], and excludes the worker until it attaches again.
//!
//! - [`protocol`]: contents of shared words, generic over the words, so that loom can check orderings;
//! - [`layout`]: offsets in a region;
//! - [`bytes`]: bytes of tasks and replies;
//! - [`region`]: the region's memory, and detection of live processes by locks (`lock`);
//! - [`attach`]: transfer of the region to a worker process;
//! - [`park`]: sleeping workers and their wake-up;
//! - [`channel`] and [`worker_end`]: the dispatcher's and the worker's end: protocol and bytes;
//! - [`handover`]: both ends between threads of one process, where tasks change owner without copying;
//! - [`watch`]: state that the agent publishes to observers of its workers.

pub mod attach;
pub mod bytes;
pub mod channel;
pub mod handover;
pub mod layout;
pub(crate) mod lock;
pub mod park;
pub mod protocol;
pub mod region;
mod task_slots;
pub mod watch;
pub mod worker_end;

pub use channel::{Channel, Outcome, TaskIds};
pub use handover::{Consumer, Producer};
pub use layout::{Layout, RegionShape};
pub use protocol::{CreditError, Holder, Notice, Receiver, Sender, WorkerIdentity};
pub use region::{RegionError, WorkerRegion, WorkerStatus};
pub use task_slots::TaskPosition;
pub use watch::AgentStatusWords;
pub use worker_end::{TakenTask, WorkerEnd};

#[cfg(test)]
mod tests;
