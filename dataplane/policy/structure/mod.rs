//! What policies keep their members in: orders by queue, weights, lines, windows of values and of replies.

mod alias;
mod line;
mod losses;
mod ranks;
mod recent;

pub use alias::Alias;
pub use line::Line;
pub use losses::{Losses, Watch};
pub use ranks::{Found, Front, Rank, Ranking, Ranks, SpeedRanks};
pub use recent::Recent;
