//! What policies keep their members in: orders by queue, weights, lines, and windows of values.

mod alias;
mod line;
mod ranks;
mod recent;

pub use alias::Alias;
pub use line::Line;
pub use ranks::{Found, Front, Rank, Ranking, Ranks, SpeedRanks};
pub use recent::Recent;
