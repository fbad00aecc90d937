//! Members of a pool, and what is said and believed of them.

use std::num::NonZeroU32;

/// A member's index within its pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Member(pub u16);

impl Member {
    /// As an array index.
    #[inline]
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// A queue length in 16.16 fixed point: tasks at a worker, average tasks per worker at a leaf.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Load(pub u32);

impl Load {
    /// One task.
    pub const ONE: Self = Self(1 << 16);

    /// A whole number of tasks.
    #[inline]
    #[must_use]
    pub const fn tasks(tasks: u16) -> Self {
        Self((tasks as u32) << 16)
    }

    /// How many whole tasks.
    #[inline]
    #[must_use]
    pub const fn whole_tasks(self) -> u32 {
        self.0 >> 16
    }

    /// So many tasks, and parts of one.
    #[must_use]
    pub fn of(tasks: f64) -> Self {
        Self((tasks * 65_536.0) as u32)
    }

    /// As a number, for people.
    #[must_use]
    pub fn as_f64(self) -> f64 {
        f64::from(self.0) / 65_536.0
    }
}

/// Whether a member speaks for itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
#[repr(u32)]
pub enum Presence {
    /// It never did: it is there because the configuration says so.
    Configured = 0,
    /// It does.
    Registered = 1,
    /// It did, and has fallen silent.
    Silent = 2,
    /// Its server, or the next hop to it, does not answer ARP.
    Unreachable = 3,
    /// Nobody has this place.
    Absent = 4,
    /// Its server registers its workers, and it never did: it gets no tasks.
    Unregistered = 5,
}

impl Presence {
    /// What a word of a region means; its upper bits tell of a rack.
    #[must_use]
    pub fn from_word(word: u32) -> Self {
        match word & RackWord::PRESENCE {
            0 => Self::Configured,
            1 => Self::Registered,
            3 => Self::Unreachable,
            4 => Self::Absent,
            5 => Self::Unregistered,
            _ => Self::Silent,
        }
    }

    /// For people.
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

/// What a leaf tells its spine besides idleness and load, in the word that also holds its [`Presence`]: live workers in bits 8 to 22,
/// in bit 23 that it told, and above them a number that each signal raises.
#[derive(Clone, Copy, Debug)]
pub(super) struct RackWord(pub u32);

impl RackWord {
    /// The bits that are a [`Presence`].
    pub const PRESENCE: u32 = 0xFF;

    const TOLD: u32 = 1 << 23;

    /// Live workers, if it has told.
    pub const fn workers(self) -> Option<u16> {
        if self.0 & Self::TOLD == 0 { None } else { Some((self.0 >> 8) as u16 & 0x7FFF) }
    }

    pub const fn signals(self) -> u32 {
        self.0 >> 24
    }

    /// After one more signal, which tells of so many workers.
    pub const fn heard(self, workers: u16) -> Self {
        let workers = if workers > 0x7FFF { 0x7FFF } else { workers as u32 };
        let signals = self.signals().wrapping_add(1) << 24;
        Self(self.0 & Self::PRESENCE | workers << 8 | Self::TOLD | signals)
    }

    /// With another presence.
    pub const fn with(self, presence: Presence) -> Self {
        Self(self.0 & !Self::PRESENCE | presence as u32)
    }
}

/// The number of a task that is to be decided on, by whoever schedules it; they repeat after 2^32.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision(NonZeroU32);

impl Decision {
    /// That of the task that comes so many after the first.
    #[inline]
    #[must_use]
    pub const fn of(task: u64) -> Self {
        match NonZeroU32::new((task as u32).wrapping_add(1)) {
            Some(number) => Self(number),
            None => Self(NonZeroU32::MIN),
        }
    }
}

/// What a member says of itself in a reply or signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Report {
    /// Who reports.
    pub member: Member,
    /// Its queue, running tasks included.
    pub load: Load,
    /// Processing time of the task just answered, 0 when not told.
    pub service_ns: u32,
    /// The decision that is answered, where that is known: in the simulator. Packets do not carry it.
    pub decision: Option<Decision>,
}

impl Report {
    /// What a packet tells.
    #[inline(always)]
    #[must_use]
    pub const fn new(member: Member, load: Load, service_ns: u32) -> Self {
        Self { member, load, service_ns, decision: None }
    }

    /// The member has nothing to do.
    #[inline]
    #[must_use]
    pub const fn is_idle(&self) -> bool {
        self.load.0 == 0
    }
}

/// What a core believes of a member: its last reported load, and what the core has sent it since.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Belief {
    /// Number of the report, and load.
    pub(super) reported: u64,
    pub(super) drift: u32,
}

impl Belief {
    /// The last reported load.
    #[inline]
    #[must_use]
    pub const fn load(self) -> Load {
        Load(self.reported as u32)
    }

    /// What this core has sent since.
    #[inline]
    #[must_use]
    pub const fn drift(self) -> Load {
        Load(self.drift)
    }

    /// Both together.
    #[inline]
    #[must_use]
    pub const fn total(self) -> u64 {
        (self.reported as u32 as u64) + self.drift as u64
    }
}
