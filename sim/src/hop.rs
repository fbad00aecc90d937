//! Network delays: number of hops between two nodes, and delay of a hop. A hop is the way of a packet through one link
//! and switch. Models draw the delay of each packet from these distributions. Times are in ticks of one picosecond.

use std::str::FromStr;

use rand::Rng;
use rand_distr::{Distribution, Exp1};

/// Ticks (picoseconds) of simulated time per microsecond.
pub const TICKS_PER_US: f64 = 1e6;
/// Picoseconds per tick.
pub const TICK_PS: f64 = 1e6 / TICKS_PER_US;
/// Ticks per nanosecond.
const TICKS_PER_NS: u64 = TICKS_PER_US as u64 / 1000;

/// Converts a time to whole nanoseconds, the resolution of the dataplane's clock.
#[inline]
#[must_use]
pub fn to_ns(ticks: u64) -> u64 {
    ticks / TICKS_PER_NS
}

/// Returns the first tick at which the dataplane's clock shows this time.
#[inline]
#[must_use]
pub fn from_ns(ns: u64) -> u64 {
    ns.saturating_mul(TICKS_PER_NS)
}

/// The ten equally likely delays of Horus's simulation. Their mean is 362.5; only their ratios are used.
const HORUS: [f64; 10] = [170., 180., 190., 200., 215., 240., 270., 360., 600., 1200.];
const HORUS_MEAN: f64 = 362.5;

/// Distribution of a hop's delay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HopDist {
    /// Ten values measured in datacenters, from Horus's simulation.
    Horus,
    /// Constant.
    Const,
    /// Exponential.
    Exp,
}

impl FromStr for HopDist {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "horus" => Ok(Self::Horus),
            "const" => Ok(Self::Const),
            "exp" => Ok(Self::Exp),
            _ => Err(format!("`{text}` is not a distribution of hops; allowed: horus, const, exp")),
        }
    }
}

/// Delay of one hop.
#[derive(Clone, Debug)]
pub enum Hop {
    /// No delay.
    Zero,
    /// One of ten equally likely delays.
    Ten([u64; 10]),
    /// Constant delay in ticks.
    Const(u64),
    /// Exponential delay with this mean.
    Exp(f64),
}

impl Hop {
    /// Creates hops with a mean of `mean_ns`.
    #[must_use]
    pub fn new(dist: HopDist, mean_ns: f64) -> Self {
        let mean = mean_ns / 1e3 * TICKS_PER_US;
        match dist {
            _ if mean <= 0.0 => Self::Zero,
            HopDist::Horus => Self::Ten(HORUS.map(|value| (value * mean / HORUS_MEAN) as u64)),
            HopDist::Const => Self::Const(mean as u64),
            HopDist::Exp => Self::Exp(mean),
        }
    }

    /// Draws the total delay of `count` independent hops, in ticks.
    #[inline]
    pub fn sample<R: Rng>(&self, count: u32, rng: &mut R) -> u64 {
        match self {
            Self::Zero => 0,
            Self::Const(ticks) => u64::from(count) * ticks,
            Self::Ten(values) => (0..count)
                // Scales 32 random bits to an index below 10.
                .map(|_| values[((u64::from(rng.next_u64() as u32) * 10) >> 32) as usize])
                .sum(),
            Self::Exp(mean) => (0..count)
                .map(|_| {
                    let unit: f64 = Exp1.sample(rng);
                    (mean * unit) as u64
                })
                .sum(),
        }
    }
}

/// Hops between the levels of the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hops {
    /// From spine to leaf.
    pub spine_leaf: u32,
    /// From leaf to worker.
    pub leaf_worker: u32,
    /// From worker to leaf.
    pub worker_leaf: u32,
    /// From leaf to spine.
    pub leaf_spine: u32,
}

impl Hops {
    /// Returns the defaults of Horus's simulation. With a single leaf, one hop between spine and leaf each way. With
    /// several, four hops from spine to leaf and three back. One hop between leaf and worker each way.
    #[must_use]
    pub fn usual(racks: usize) -> Self {
        let (spine_leaf, leaf_spine) = if racks == 1 { (1, 1) } else { (4, 3) };
        Self { spine_leaf, leaf_worker: 1, worker_leaf: 1, leaf_spine }
    }

    /// Changes the hops named in `text`, as in `spine-leaf=4,leaf-worker=1`.
    ///
    /// # Errors
    /// The fault and the allowed values.
    pub fn change(mut self, text: &str) -> Result<Self, String> {
        for part in text.split(',').map(str::trim) {
            let (name, count) = part.split_once('=').unwrap_or((part, ""));
            let field = match name {
                "spine-leaf" => &mut self.spine_leaf,
                "leaf-worker" => &mut self.leaf_worker,
                "worker-leaf" => &mut self.worker_leaf,
                "leaf-spine" => &mut self.leaf_spine,
                _ => {
                    return Err(format!(
                        "`{name}` is not a hop; allowed: spine-leaf, leaf-worker, worker-leaf, leaf-spine"
                    ));
                }
            };
            *field = count
                .parse()
                .ok()
                .filter(|count| *count <= 100)
                .ok_or_else(|| format!("`{part}`: a number of hops is 0 to 100"))?;
        }
        Ok(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nanoseconds_stay_exact_in_long_runs() {
        // A conversion with floats loses a nanosecond beyond 577 s.
        for ns in [0, 1, 577_000_000_001, 1_000_000_000_007, 86_400_000_000_003] {
            assert_eq!(to_ns(from_ns(ns)), ns);
            assert_eq!(to_ns(from_ns(ns) + 999), ns);
        }
    }
}
