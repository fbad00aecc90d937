//! Shares of core time for a batch job, and probability distributions over them.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Number of shares.
pub const SHARES: usize = 10;

/// Share of core time for a batch job: 0, 10, ... 90 per cent. These are the actions of the ASA_X paper (arXiv
/// 2401.09706).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "u8", into = "u8")]
pub struct Share(u8);

impl Share {
    /// The smallest share, 0%.
    pub const NONE: Self = Self(0);
    /// The largest share, 90%.
    pub const MOST: Self = Self(SHARES as u8 - 1);

    /// Iterates over all shares in ascending order.
    pub fn all() -> impl DoubleEndedIterator<Item = Self> {
        (0..SHARES as u8).map(Self)
    }

    /// Returns the largest share of at most `part`, a fraction; 0 for negative values and NaN, 90% above 0.9.
    #[must_use]
    pub fn at_most(part: f64) -> Self {
        // A computed tenth, such as 1.0 - 0.9, may be slightly too small, and must not become the share below it.
        Self((part * 10.0 + 1e-9).clamp(0.0, f64::from(Self::MOST.0)) as u8)
    }

    /// Returns the index in a [`Distribution`].
    #[must_use]
    pub fn index(self) -> usize {
        usize::from(self.0)
    }

    /// Returns the share in per cent.
    #[must_use]
    pub fn percent(self) -> u8 {
        self.0 * 10
    }

    /// Returns the share as a fraction, from 0 to 0.9.
    #[must_use]
    pub fn part(self) -> f64 {
        f64::from(self.0) / 10.0
    }
}

impl TryFrom<u8> for Share {
    type Error = String;

    fn try_from(percent: u8) -> Result<Self, String> {
        match percent.is_multiple_of(10) && percent <= Self::MOST.percent() {
            true => Ok(Self(percent / 10)),
            false => Err(format!("{percent} is not a share; give 0, 10, 20 .. 90 per cent")),
        }
    }
}

impl From<Share> for u8 {
    fn from(share: Share) -> Self {
        share.percent()
    }
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}%", self.percent())
    }
}

/// Probabilities of the shares in ascending order. They sum to 1.
pub type Distribution = [f64; SHARES];

/// Returns the distribution with all probability on one share.
#[must_use]
pub(crate) fn certain(share: Share) -> Distribution {
    let mut distribution = [0.0; SHARES];
    distribution[share.index()] = 1.0;
    distribution
}

/// Moves the probability of shares above `limit` to `limit`, so that the chooser cannot draw a larger share. The sum
/// stays 1, as the chooser's learning rule requires.
#[must_use]
pub(crate) fn limited(mut distribution: Distribution, limit: Share) -> Distribution {
    let above: f64 = distribution[limit.index() + 1..].iter().sum();
    distribution[limit.index() + 1..].fill(0.0);
    distribution[limit.index()] += above;
    distribution
}

/// Number of bits of a random draw: the precision of an `f64`.
pub(crate) const DRAW_BITS: u32 = 53;

/// Returns the share that a random number of [`DRAW_BITS`] bits selects: the first one at which the sum of the
/// probabilities exceeds the number as a fraction of 1.
pub(crate) fn drawn(distribution: &Distribution, draw: u64) -> Share {
    let uniform = draw as f64 / (1_u64 << DRAW_BITS) as f64;
    let mut sum = 0.0;
    // Rounding may leave the sum below 1. A draw beyond it gives the last share with a probability.
    let mut last = Share::NONE;
    for share in Share::all().filter(|share| distribution[share.index()] > 0.0) {
        sum += distribution[share.index()];
        last = share;
        if uniform < sum {
            break;
        }
    }
    last
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_tenths_and_nothing_else() {
        let percents: Vec<_> = Share::all().map(Share::percent).collect();
        assert_eq!(percents, [0, 10, 20, 30, 40, 50, 60, 70, 80, 90]);
        assert_eq!(Share::at_most(0.3).percent(), 30);
        assert_eq!(Share::at_most(0.299).percent(), 20);
        assert_eq!(Share::at_most(7.0), Share::MOST);
        for none in [0.0, -1.0, f64::NAN] {
            assert_eq!(Share::at_most(none), Share::NONE);
        }
        for wrong in [5, 95, 100, 255] {
            assert!(Share::try_from(wrong).unwrap_err().contains("not a share"));
        }
    }

    // promise: batch.2
    #[test]
    fn share_above_the_limit_is_capped() {
        let limit = Share::at_most(0.2);
        let distribution = limited([0.1; SHARES], limit);
        assert_eq!(distribution[..2], [0.1, 0.1]);
        assert!((distribution[2] - 0.8).abs() < 1e-12);
        assert_eq!(distribution[3..], [0.0; 7]);
        assert_eq!(limited([0.1; SHARES], Share::MOST), [0.1; SHARES]);
    }

    #[test]
    fn draws_follow_probabilities_and_skip_zeros() {
        let distribution = [0.0, 0.25, 0.0, 0.75, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0];
        let whole = 1_u64 << DRAW_BITS;
        assert_eq!(drawn(&distribution, 0).percent(), 10);
        assert_eq!(drawn(&distribution, whole / 4 - 1).percent(), 10);
        assert_eq!(drawn(&distribution, whole / 4).percent(), 30);
        assert_eq!(drawn(&distribution, whole - 1).percent(), 30);
        // Probabilities that sum to slightly less than 1.
        assert_eq!(drawn(&limited([0.1; SHARES], Share::MOST), whole - 1), Share::MOST);
    }
}
