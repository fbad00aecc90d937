//! Reasons for refusing a peer's message, with counts.

use crate::reason::DropReason;

/// Defines the enum, its list and its drop reasons from one table.
macro_rules! refusals {
    ($($(#[doc = $doc:literal])+ $name:ident => $reason:ident;)+) => {
        /// Reason for refusing a peer's message. A refused message changes nothing except its count.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum Refusal {
            $($(#[doc = $doc])+ $name,)+
        }

        impl Refusal {
            /// All reasons, in the order of their counts.
            pub const ALL: [Self; [$(DropReason::$reason),+].len()] = [$(Self::$name),+];

            /// Returns the drop reason of the packet.
            #[must_use]
            pub const fn reason(self) -> DropReason {
                match self {
                    $(Self::$name => DropReason::$reason,)+
                }
            }
        }
    };
}

refusals! {
    /// The message has another version.
    Version => PeerVersion;
    /// The sender assumes another number of nodes.
    Nodes => PeerNodes;
    /// The sender's learner has other features, or this node has no learner for the sent parameters.
    Features => PeerFeatures;
    /// No peer has the sender's number.
    Stranger => PeerStranger;
    /// A value is not a number or infinite.
    NotFinite => PeerNotFinite;
    /// A value is out of range: a negative or too large load, a load without waiting tasks, an impossible count, or
    /// a too large parameter.
    OutOfRange => PeerOutOfRange;
    /// The message is older than an accepted one. Or it has parameters of an absent node, of another start of the
    /// sender, or for a consensus round that is over or far ahead.
    Old => PeerOld;
    /// The message was received before.
    Doubled => PeerDoubled;
    /// The number of parameters or of their parts differs from this node's.
    Length => PeerLength;
}

/// Counts of refused messages by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Refusals([u64; Refusal::ALL.len()]);

impl Refusals {
    /// Counts a refused message.
    pub(super) fn count(&mut self, refusal: Refusal) {
        self.0[refusal as usize] += 1;
    }

    /// Returns the count of a reason.
    #[must_use]
    pub fn of(&self, refusal: Refusal) -> u64 {
        self.0[refusal as usize]
    }

    /// Returns the total.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }
}
