//! Data structures of policies:
//!
//! - [`Ranks`], [`SpeedRanks`]: members in the order of their queues or completion times; [`Ranking`]: either of them;
//! - [`LengthSets`]: sets of members by queue length;
//! - [`Alias`]: draws by weight;
//! - [`Line`]: a FIFO list of members;
//! - [`MovingWindow`]: sums over the last values, and so their means and rates;
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
