//! Why a peer's word is not taken, and how often that was.

use crate::reason::DropReason;

/// Makes the enum, its list and its texts of one table.
macro_rules! refusals {
    ($($(#[doc = $doc:literal])+ $name:ident => $reason:ident;)+) => {
        /// Why a peer's word is not taken. Nothing is learned from it.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum Refusal {
            $($(#[doc = $doc])+ $name,)+
        }

        impl Refusal {
            /// All of them, in the order of their counts.
            pub const ALL: [Self; [$(DropReason::$reason),+].len()] = [$(Self::$name),+];

            /// The reason for which a packet with such a word is dropped.
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
    /// Of another version of the messages.
    Version => PeerVersion;
    /// It takes another number of nodes for granted.
    Nodes => PeerNodes;
    /// Its learner has other features.
    Features => PeerFeatures;
    /// No node has that number, or it is this one's own.
    Stranger => PeerStranger;
    /// A value is not a number, or is infinite.
    NotFinite => PeerNotFinite;
    /// A value is beyond what can be: a load below 0, or where no task waits, or waits and counts that no node has.
    OutOfRange => PeerOutOfRange;
    /// From before one that was heard, or for a consensus that is over or far ahead.
    Old => PeerOld;
    /// Heard before.
    Doubled => PeerDoubled;
    /// Parameters of another number than this node's.
    Length => PeerLength;
}

/// How often each was.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Refusals([u64; Refusal::ALL.len()]);

impl Refusals {
    pub(super) fn count(&mut self, refusal: Refusal) {
        self.0[refusal as usize] += 1;
    }

    /// How often this one was.
    #[must_use]
    pub fn of(&self, refusal: Refusal) -> u64 {
        self.0[refusal as usize]
    }

    /// How often any was.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }
}
