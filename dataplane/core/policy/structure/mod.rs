//! Data structures of policies: orders by queue, weights, lists, windows of values and of replies.

mod alias;
mod line;
mod losses;
mod ranks;
mod recent;

pub use alias::Alias;
pub use line::Line;
pub use losses::{LossWatch, Losses};
pub use ranks::{Front, Level, Rank, RankedMember, Ranking, Ranks, SpeedRanks, UNBOUNDED};
pub use recent::MovingWindow;
