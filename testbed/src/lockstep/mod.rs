//! A real scheduler in emulated time: the conductor plays clients, network and workers around it, as the simulator's model
//! `rack` has them, and moves the time itself.
//!
//! The scheduler is a leaf with its own ports, packets, stages and timers, in another process ([`Process`]) or in this one
//! ([`Local`]). Its time stands while it works: it gets a turn for each packet and for each of its timers, at the time at which
//! that is due, and polls until it is quiet. So a run is a function of its seeds, and a task's start and response are to
//! the picosecond those of the simulator under the same seeds; [`crate::sim::digest`] makes one number of them all.
//!
//! Both draw from the same streams (`rack::Streams`) in the same order, and agree on the order of what happens at equal times
//! ([`crate::sim::events`]).

pub mod clients;
pub mod fabric;
pub mod leaves;
pub mod local;
pub mod nodes;
pub mod process;
pub mod run;
pub mod setting;
pub mod system;
pub mod workers;

use wedjat::clock::{Line, TurnError};
use wedjat::reason::DropReason;

pub use clients::Clients;
pub use local::{Local, LocalAgent};
pub use process::Process;
pub use run::run;
pub use setting::Setting;
pub use workers::Workers;

/// What the conductor gives turns to.
pub trait Scheduler {
    /// Has it poll at this time until it is quiet; what it has done so far.
    ///
    /// # Errors
    /// Why it has not become quiet.
    fn turn(&mut self, now_ns: u64) -> Result<Line, TurnError>;
}

/// Why a run came to no end.
#[derive(Debug, thiserror::Error)]
pub enum LockstepError {
    /// A turn did not end.
    #[error(transparent)]
    Turn(#[from] TurnError),
    /// No buffer, or no room in the device.
    #[error(
        "the device on the {side}' side takes no packet at {now_ns} ns, though the scheduler is quiet: it does not take them in"
    )]
    Full {
        /// Clients or workers.
        side: &'static str,
        /// The time.
        now_ns: u64,
    },
    /// All buffers are in use.
    #[error("no packet buffer is left: more tasks are under way than there are buffers")]
    Buffers,
    /// Packets are missing.
    #[error(
        "the books do not agree at {now_ns} ns: the scheduler received {received} of the {given} packets that were sent to it, \
         and of the {sent} that it sent {taken} came"
    )]
    Books {
        /// The time.
        now_ns: u64,
        /// Packets sent to the scheduler.
        given: u64,
        /// Packets that it received.
        received: u64,
        /// Packets that it sent.
        sent: u64,
        /// Packets that came from it.
        taken: u64,
    },
    /// It sent something that means nothing to those around it.
    #[error(
        "at {now_ns} ns the scheduler sent the {side} a packet that they can't take: {reason:?}"
    )]
    Packet {
        /// Clients or workers.
        side: &'static str,
        /// The time.
        now_ns: u64,
        /// Why.
        reason: DropReason,
    },
    /// A task or an answer that is not under way.
    #[error("at {now_ns} ns the scheduler sent {what} {number}, which is not under way there")]
    Stray {
        /// A task or an answer.
        what: &'static str,
        /// The task's number.
        number: u32,
        /// The time.
        now_ns: u64,
    },
    /// It does not answer ARP.
    #[error("the scheduler does not answer ARP on the clients' side: is {0} its address there?")]
    Unresolved(std::net::IpAddr),
    /// Its timers never let time pass.
    #[error(
        "the scheduler's timer stays at {timer_ns} ns while it is {now_ns} ns: time can't pass"
    )]
    Timer {
        /// The timer.
        timer_ns: u64,
        /// The time.
        now_ns: u64,
    },
    /// It was told to.
    #[error("stopped")]
    Stopped,
    /// What was asked for can't be.
    #[error("{0}")]
    Arguments(String),
}
