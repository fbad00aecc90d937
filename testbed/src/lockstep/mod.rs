//! A real scheduler in emulated time. The conductor (the code in this module) emulates the clients, network and
//! workers around it, as in the simulator's model `rack`, and advances the time.
//!
//! The scheduler is a node (leaf, spine or agent) with its own ports, packets, stages and timers. A leaf is in another
//! process ([`Process`]) or in this one ([`LocalLeaf`]). The conductor gives it a turn for each packet and for each of
//! its timers, at the due time. In a turn the scheduler polls until it is quiet, and its clock does not advance. A run
//! is therefore a function of its seeds.
//! A task's start and response time equal those of the simulator under the same seeds, to the picosecond;
//! [`crate::sim::digest`] hashes them all into one number.
//!
//! Simulator and conductor run on the same engine ([`crate::sim::engine`]), and draw from its streams in the same
//! order. They also agree on the order of simultaneous events ([`crate::sim::events`]).
//!
//! Each kind of run has its own conductor. [`mod@run`], [`fabric`], [`leaves`] and [`nodes`] follow a model of the
//! simulator step by step and must equal it. [`system`] plays several nodes with faults. It checks invariants from
//! outside after every turn, so the checks hold for objects and processes, and name the turn of a defect.

pub mod clients;
pub mod fabric;
pub mod leaf_addresses;
pub mod leaves;
pub mod local;
pub mod nodes;
pub mod process;
pub mod run;
pub mod system;
pub mod workers;

use wedjat::clock::{Line, TurnError};
use wedjat::reason::DropReason;

pub use clients::Clients;
pub use leaf_addresses::LeafAddresses;
pub use local::{LocalAgent, LocalLeaf};
pub use process::Process;
pub use run::run;
pub use workers::Workers;

/// A node to which the conductor gives turns.
pub trait Scheduler {
    /// Lets the node poll at time `now_ns` until it is quiet: no packet moves any more. Returns its progress so far:
    /// its numbers of polls, received and sent packets, and the time of its next timer.
    ///
    /// # Errors
    /// If the node does not become quiet.
    fn turn(&mut self, now_ns: u64) -> Result<Line, TurnError>;
}

/// Reason why a run failed.
#[derive(Debug, thiserror::Error)]
pub enum LockstepError {
    /// A turn did not end.
    #[error(transparent)]
    Turn(#[from] TurnError),
    /// A port accepts no packet: no buffer, or no room in the device.
    #[error(
        "the device on the {side}' side accepts no packet at {now_ns} ns, although the scheduler is quiet: the scheduler does \
         not receive"
    )]
    Full {
        /// Side of the port: clients, workers, or nodes.
        side: &'static str,
        /// Time of the failure.
        now_ns: u64,
    },
    /// All buffers are in use.
    #[error("no packet buffer is left: more tasks than buffers are in flight")]
    Buffers,
    /// The packet counts of scheduler and conductor differ.
    #[error(
        "packet counts differ at {now_ns} ns: the scheduler received {received} of {delivered} packets, and {arrived} of its {sent} \
         sent packets arrived"
    )]
    PacketCounts {
        /// Time of the failure.
        now_ns: u64,
        /// Packets delivered to the scheduler.
        delivered: u64,
        /// Packets received by the scheduler.
        received: u64,
        /// Packets sent by the scheduler.
        sent: u64,
        /// Packets that arrived from the scheduler.
        arrived: u64,
    },
    /// The scheduler sent an invalid packet.
    #[error("at {now_ns} ns the scheduler sent the {side} an invalid packet: {reason:?}")]
    Packet {
        /// Side of the port: clients, workers, or nodes.
        side: &'static str,
        /// Time of the failure.
        now_ns: u64,
        /// Reason why the packet is invalid.
        reason: DropReason,
    },
    /// The scheduler sent a task or an answer that is not in flight.
    #[error("at {now_ns} ns the scheduler sent {packet} {number}, which is not in flight there")]
    Stray {
        /// Kind of the packet: a task or an answer.
        packet: &'static str,
        /// Number of the task.
        number: u32,
        /// Time of the failure.
        now_ns: u64,
    },
    /// The scheduler does not answer ARP.
    #[error(
        "the scheduler does not answer ARP on the clients' side; its address there must be {0}"
    )]
    Unresolved(std::net::IpAddr),
    /// The scheduler's timers never let time advance.
    #[error(
        "the scheduler's timer stays at {timer_ns} ns at time {now_ns} ns: time cannot advance"
    )]
    Timer {
        /// Time of the timer.
        timer_ns: u64,
        /// The current time.
        now_ns: u64,
    },
    /// The caller stopped the run.
    #[error("stopped")]
    Stopped,
    /// The arguments are invalid.
    #[error("{0}")]
    Arguments(String),
}
