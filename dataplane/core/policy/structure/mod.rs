//! Data structures of policies: orders and sets by queue, weights, lists, windows of values and of replies.

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
