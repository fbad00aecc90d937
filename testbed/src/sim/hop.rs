//! Network delays: how many hops lie between two nodes, and what one takes.

use std::str::FromStr;

use rand::Rng;
use rand_distr::{Distribution, Exp1};

/// Ticks of simulated time in a microsecond: picoseconds.
pub const TICKS_PER_US: f64 = 1e6;

/// A time as the dataplane's clock tells it, in whole nanoseconds.
#[inline]
#[must_use]
pub fn to_ns(ticks: u64) -> u64 {
    (ticks as f64 * 1e3 / TICKS_PER_US) as u64
}

/// The first tick at which the dataplane's clock tells this.
#[inline]
#[must_use]
pub fn from_ns(ns: u64) -> u64 {
    ns.saturating_mul(TICKS_PER_US as u64 / 1000)
}

/// The ten delays of Horus's simulation, in units of which 362.5 are their mean.
const HORUS: [f64; 10] = [170., 180., 190., 200., 215., 240., 270., 360., 600., 1200.];
const HORUS_MEAN: f64 = 362.5;

/// The shape of a hop's delay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HopDist {
    /// Ten values measured in datacenters, as Horus's simulation has them.
    Horus,
    /// Always the mean.
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
            _ => Err(format!("`{text}` is no distribution of hops; allowed: horus, const, exp")),
        }
    }
}

/// The delay of one hop.
#[derive(Clone, Debug)]
pub enum Hop {
    /// None.
    Zero,
    /// One of ten, each as likely.
    Ten([u64; 10]),
    /// Always so many ticks.
    Const(u64),
    /// Exponential with that mean.
    Exp(f64),
}

impl Hop {
    /// Hops with a mean of `mean_ns`.
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

    /// The delay of `count` hops, each drawn for itself, in ticks.
    #[inline]
    pub fn sample<R: Rng>(&self, count: u32, rng: &mut R) -> u64 {
        match self {
            Self::Zero => 0,
            Self::Const(ticks) => u64::from(count) * ticks,
            Self::Ten(values) => (0..count)
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
    /// One hop between spine and the only leaf; four and three between a spine and leaves elsewhere in
    /// its datacenter, as Horus's simulation has it.
    #[must_use]
    pub fn usual(racks: usize) -> Self {
        let (spine_leaf, leaf_spine) = if racks == 1 { (1, 1) } else { (4, 3) };
        Self { spine_leaf, leaf_worker: 1, worker_leaf: 1, leaf_spine }
    }

    /// Changes what `text` names, as in `spine-leaf=4,leaf-worker=1`.
    ///
    /// # Errors
    /// What is wrong and what is allowed.
    pub fn change(mut self, text: &str) -> Result<Self, String> {
        for part in text.split(',').map(str::trim) {
            let (name, count) = part.split_once('=').unwrap_or((part, ""));
            let place = match name {
                "spine-leaf" => &mut self.spine_leaf,
                "leaf-worker" => &mut self.leaf_worker,
                "worker-leaf" => &mut self.worker_leaf,
                "leaf-spine" => &mut self.leaf_spine,
                _ => {
                    return Err(format!(
                        "`{name}` is no part of the way; allowed: spine-leaf, leaf-worker, worker-leaf, leaf-spine"
                    ));
                }
            };
            *place = count
                .parse()
                .ok()
                .filter(|count| *count <= 100)
                .ok_or_else(|| format!("`{part}`: a number of hops is 0 to 100"))?;
        }
        Ok(self)
    }
}
