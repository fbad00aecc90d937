//! Why a peer's word is not taken, and how often that was.

/// Makes the enum, its list and its texts of one table.
macro_rules! refusals {
    ($($(#[doc = $doc:literal])+ $name:ident => $key:literal;)+) => {
        /// Why a peer's word is not taken. Nothing is learned from it.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum Refusal {
            $($(#[doc = $doc])+ $name,)+
        }

        impl Refusal {
            /// All of them, in the order of their counts.
            pub const ALL: [Self; [$($key),+].len()] = [$(Self::$name),+];

            /// The key under which it is reported.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$name => $key,)+
                }
            }
        }
    };
}

refusals! {
    /// Of another version of the messages.
    Version => "peer_version";
    /// It takes another number of nodes for granted.
    Nodes => "peer_nodes";
    /// Its learner has other features.
    Features => "peer_features";
    /// No node has that number, or it is this one's own.
    Stranger => "peer_stranger";
    /// A value is not a number, or is infinite.
    NotFinite => "peer_not_finite";
    /// A value is beyond what can be: a load below 0, or waits and counts that no node has.
    OutOfRange => "peer_out_of_range";
    /// From before one that was heard, or for a consensus that is over or far ahead.
    Old => "peer_old";
    /// Heard before.
    Doubled => "peer_doubled";
    /// Parameters of another number than this node's.
    Length => "peer_length";
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
