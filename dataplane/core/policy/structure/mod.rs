//! Data structures of policies:
//!
//! - [`Ranks`], [`SpeedRanks`]: members in the order of their queues or completion times;
//! - [`LengthSets`]: sets of members by queue length;
//! - [`Alias`]: draws by weight;
//! - [`Line`]: a list of members;
//! - [`MovingWindow`]: means over the last values;
//! - [`Losses`]: detection of lost tasks.

mod alias;
mod lengths;
mod line;
mod losses;
mod ranks;
mod recent;

pub use alias::Alias;
pub use lengths::{CLASSES, LONGEST, LengthSet, LengthSets};
pub use line::Line;
pub use losses::{LossWatch, Losses};
pub use ranks::{Front, Level, Rank, RankedMember, Ranking, Ranks, SpeedRanks, UNBOUNDED};
pub use recent::MovingWindow;
