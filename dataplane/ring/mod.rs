//! Rings between a dispatcher core and its worker cores: one producer, one consumer, a cache line a transfer.
//!
//! A dispatcher gives tasks to a worker through 16-byte slots in which the notice (the task's number) and the
//! place of its bytes lie side by side, so that the line that says "here is one" also says where. The worker
//! writes nothing into slots. It answers with one line of its own that holds how many tasks it has
//! completed since it came, and for how long it has worked: a credit for each task, and no
//! acknowledgement of any single one. Both ends are in shared memory, of threads or of processes.
//!
//! Neither end believes the other. An index is masked on the reader's own count, lengths and offsets are
//! checked on private copies, counts that run backwards or ahead are a [`Fault`], and a worker that
//! is at fault is shut out until it attaches anew.
//!
//! - [`protocol`]: what is in shared words, over any words, so that loom can try its orderings;
//! - [`layout`]: where everything lies in a region;
//! - [`bytes`]: tasks' and replies' bytes;
//! - [`region`]: the region and its memory, and who is alive, which locks on it tell (`lock`);
//! - [`attach`]: how a worker's process gets it;
//! - [`park`]: a worker that sleeps, and its awakening;
//! - [`channel`] and [`worker_end`]: the dispatcher's and the worker's end, the protocol with its bytes;
//! - [`handover`]: both ends between threads of one process, where tasks change hands whole;
//! - [`watch`]: what the agent tells those who watch its workers.

pub mod attach;
pub mod bytes;
pub mod channel;
pub mod handover;
pub mod layout;
pub(crate) mod lock;
pub mod park;
pub mod protocol;
pub mod region;
pub mod watch;
pub mod worker_end;

pub use channel::{Channel, Outcome, TaskIds};
pub use handover::{Consumer, Producer};
pub use layout::{Layout, RegionShape};
pub use protocol::{Fault, Holder, Notice, Receiver, Sender};
pub use region::{Place, RegionError, WorkerRegion, WorkerSeen};
pub use watch::Watch;
pub use worker_end::WorkerEnd;

#[cfg(test)]
mod tests;
