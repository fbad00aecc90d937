//! The task header.

/// The `dst` of a task for which no member is chosen.
pub const NO_MEMBER: u16 = 0x7FFF;
