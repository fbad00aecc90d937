//! Members of a pool, their load reports, and estimates of their load. A member is a worker; at a spine it is a leaf,
//! and so a rack.

use std::num::NonZeroU32;

/// Index of a member in its pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Member(pub u16);

impl Member {
    /// Returns the array index.
    #[inline]
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// Queue length in 16.16 fixed point: tasks at a worker, average tasks per worker at a leaf.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Load(pub u32);

impl Load {
    /// One task.
    pub const ONE: Self = Self(1 << 16);

    /// Returns the load of a whole number of tasks.
    #[inline]
    #[must_use]
    pub const fn tasks(tasks: u16) -> Self {
        Self((tasks as u32) << 16)
    }

    /// Returns the number of whole tasks, rounded down.
    #[inline]
    #[must_use]
    pub const fn whole_tasks(self) -> u32 {
        self.0 >> 16
    }

    /// Returns the load of a fractional number of tasks.
    #[must_use]
    pub fn of(tasks: f64) -> Self {
        Self((tasks * 65_536.0) as u32)
    }

    /// Returns the load as a number for output.
    #[must_use]
    pub fn as_f64(self) -> f64 {
        f64::from(self.0) / 65_536.0
    }
}

/// Presence of a member, which all cores share: only a configured or registered one gets tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
#[repr(u32)]
pub enum MemberPresence {
    /// Configured, and never registered. Gets tasks.
    Configured = 0,
    /// Registered and live.
    Registered = 1,
    /// Registered once, and silent since. Also after a return from `Unreachable`, until its next report.
    Silent = 2,
    /// Its server, or the next hop to it, does not answer ARP or neighbour discovery.
    Unreachable = 3,
    /// Unused place.
    Absent = 4,
    /// Not registered yet, although its server registers its workers. At a spine: a leaf without
    /// reports in a pool with signals from other leaves.
    Unregistered = 5,
}

impl MemberPresence {
    /// Decodes a word of a region. Its upper bits hold data of a rack.
    #[must_use]
    pub fn from_word(word: u32) -> Self {
        match word & RackWord::PRESENCE {
            0 => Self::Configured,
            1 => Self::Registered,
            3 => Self::Unreachable,
            4 => Self::Absent,
            5 => Self::Unregistered,
            // 2, or an unknown value in a damaged file.
            _ => Self::Silent,
        }
    }

    /// Returns true if the member gets no tasks because it is absent, unregistered, silent or unreachable.
    #[must_use]
    pub fn is_away(self) -> bool {
        !matches!(self, Self::Configured | Self::Registered)
    }

    /// Returns the name for output.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Configured => "configured",
            Self::Registered => "registered",
            Self::Silent => "silent",
            Self::Unreachable => "unreachable",
            Self::Absent => "absent",
            Self::Unregistered => "unregistered",
        }
    }
}

/// Word with a member's [`MemberPresence`]. At a leaf, bit 8 is set while the worker's reports are doubted. At a spine,
/// whose members are leaves, the word also holds data of a leaf's signals (load messages to spines). Bits 8 to 22 hold
/// the number of live workers; bit 23 is set once the leaf has sent it; the bits above count the signals.
#[derive(Clone, Copy, Debug)]
pub(super) struct RackWord(pub u32);

impl RackWord {
    /// Bits of the [`MemberPresence`].
    pub const PRESENCE: u32 = 0xFF;

    /// Set while a worker's reports are doubted: they have repeatedly contradicted the tasks sent to it.
    const DOUBTED: u32 = 1 << 8;

    /// Set once the leaf has sent its number of workers.
    const HAS_WORKERS: u32 = 1 << 23;

    /// Returns the number of live workers, if the leaf has sent it.
    pub const fn workers(self) -> Option<u16> {
        if self.0 & Self::HAS_WORKERS == 0 { None } else { Some((self.0 >> 8) as u16 & 0x7FFF) }
    }

    /// Returns the number of signals so far, modulo 2^8. A changed number shows that the leaf is alive.
    pub const fn signals(self) -> u32 {
        self.0 >> 24
    }

    /// Returns the word after one more signal, with its number of live workers, capped at 15 bits.
    pub const fn after_signal(self, workers: u16) -> Self {
        let workers = if workers > 0x7FFF { 0x7FFF } else { workers as u32 };
        let signals = self.signals().wrapping_add(1) << 24;
        Self(self.0 & Self::PRESENCE | workers << 8 | Self::HAS_WORKERS | signals)
    }

    /// Returns true while a worker's reports are doubted.
    pub const fn is_doubted(self) -> bool {
        self.0 & Self::DOUBTED != 0
    }

    /// Returns the word of a worker whose reports are doubted, or believed again.
    pub const fn with_doubt(self, doubted: bool) -> Self {
        Self(if doubted { self.0 | Self::DOUBTED } else { self.0 & !Self::DOUBTED })
    }

    /// Returns the word with another presence and the same other bits.
    pub const fn with(self, presence: MemberPresence) -> Self {
        Self(self.0 & !Self::PRESENCE | presence as u32)
    }
}

/// Number of a scheduling decision. A simulator assigns it, and finds the task by the number in its reply. Packets do
/// not carry it. Numbers repeat after about 2^32.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DecisionNumber(NonZeroU32);

impl DecisionNumber {
    /// Returns the number of the decision on task `task`, counted from 0. Adds one, because the number is never 0.
    #[inline]
    #[must_use]
    pub const fn of(task: u64) -> Self {
        match NonZeroU32::new((task as u32).wrapping_add(1)) {
            Some(number) => Self(number),
            None => Self(NonZeroU32::MIN),
        }
    }
}

/// Load report of a member, from a reply or a signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Report {
    /// The member.
    pub member: Member,
    /// Queue of the member, including running tasks.
    pub load: Load,
    /// Processing time of the task just answered; 0 if unknown.
    pub service_ns: u32,
    /// Class of the task just answered; 0 if unknown.
    pub class: u16,
    /// The answered decision, if known. Set in the simulator; packets do not carry it.
    pub decision: Option<DecisionNumber>,
}

impl Report {
    /// Creates a report from the fields of a packet.
    #[inline(always)]
    #[must_use]
    pub const fn new(member: Member, load: Load, service_ns: u32) -> Self {
        Self { member, load, service_ns, class: 0, decision: None }
    }

    /// Returns the report for an answered task of this class.
    #[inline(always)]
    #[must_use]
    pub const fn with_class(self, class: u16) -> Self {
        Self { class, ..self }
    }

    /// Returns true if the member has no tasks.
    #[inline]
    #[must_use]
    pub const fn is_idle(&self) -> bool {
        self.load.0 == 0
    }
}

/// A core's estimate of a member: its last reported load, and the load that the core sent since.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoadEstimate {
    /// Report number (upper half) and load (lower half).
    pub(super) reported: u64,
    /// Load sent by the core after that report.
    pub(super) drift: u32,
}

impl LoadEstimate {
    /// Returns the last reported load.
    #[inline]
    #[must_use]
    pub const fn load(self) -> Load {
        Load(self.reported as u32)
    }

    /// Returns the load sent by this core since that report.
    #[inline]
    #[must_use]
    pub const fn drift(self) -> Load {
        Load(self.drift)
    }

    /// Returns the sum of both, which may exceed 32 bits.
    #[inline]
    #[must_use]
    pub const fn total(self) -> u64 {
        (self.reported as u32 as u64) + self.drift as u64
    }
}
