//! Model `fabric`: a datacenter of many pools (Horus, 5.1).
//!
//! Pools share leaves, but no workers. The models of leaves and spines have no capacity limit, so pools do
//! not affect each other. A fabric is therefore one run of [`super::rack`] per spine scheduler of each pool,
//! over the same simulated time.
//!
//! A pool has one spine scheduler per fixed number of its racks, as in the paper (its ratio r). Each
//! schedules over the racks linked to it, and receives tasks in proportion to their workers. A pool's workers
//! either fill whole servers at random leaves, or are scattered in smaller pieces. The paper says only that
//! they are distributed at random.

use rand::Rng as _;
use rand_distr::{Distribution, Exp1};
use wedjat_workload::seed::StreamSeed;

use super::outcome::Outcome;
use super::rack;
use super::stats::Observer;

/// Parameters of a run.
#[derive(Clone, Debug)]
pub struct Config {
    /// Number of leaves.
    pub leaves: usize,
    /// Servers per leaf.
    pub servers_per_leaf: usize,
    /// Workers per server.
    pub workers_per_server: usize,
    /// Number of pools.
    pub pools: usize,
    /// Distribution of the workers per pool.
    pub pool_size: BoundedExponential,
    /// Workers of a pool that are placed together, at most one server's.
    pub piece: usize,
    /// Racks of a pool per spine.
    pub leaves_per_spine: usize,
    /// Parameters of all pools. Racks, speeds and tasks are set per pool.
    pub pool: rack::Config,
}

impl Config {
    /// Returns the approximate total number of workers of all pools, before their sizes are drawn. The plan derives the
    /// number of tasks from it.
    #[must_use]
    pub fn workers(&self) -> f64 {
        self.pools as f64 * self.pool_size.mean
    }
}

/// Exponential number of workers within bounds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BoundedExponential {
    /// Minimum.
    pub min: usize,
    /// Maximum.
    pub max: usize,
    /// Mean, before numbers above the maximum are drawn again.
    pub mean: f64,
}

impl BoundedExponential {
    /// Parses `exp(min=50,max=20000,mean=685)`. These are also the defaults of omitted keys.
    ///
    /// # Errors
    /// The fault and the allowed values.
    pub fn parse(text: &str) -> Result<Self, String> {
        let form = || format!("--pool-size {text}: write exp(min=50,max=20000,mean=685)");
        let inner = text.strip_prefix("exp(").and_then(|rest| rest.strip_suffix(')'));
        let mut size = Self { min: 50, max: 20_000, mean: 685.0 };
        for part in inner.ok_or_else(form)?.split(',') {
            let (key, value) = part.split_once('=').ok_or_else(form)?;
            let value: f64 = value.trim().parse().map_err(|_| form())?;
            match key.trim() {
                "min" => size.min = value as usize,
                "max" => size.max = value as usize,
                "mean" => size.mean = value,
                _ => return Err(form()),
            }
        }
        let is_ordered = 1.0 <= size.min as f64 && size.min as f64 <= size.mean;
        if !is_ordered || size.mean > size.max as f64 || size.max > 1_000_000 {
            return Err(format!("{}, with 1 <= min <= mean <= max <= 1000000", form()));
        }
        Ok(size)
    }

    /// Draws the number of workers of a pool: the minimum plus an exponential number. Draws again above the
    /// maximum.
    fn draw(&self, rng: &mut wedjat_workload::seed::Stream) -> usize {
        loop {
            let unit: f64 = Exp1.sample(rng);
            let size = self.min + (unit * (self.mean - self.min as f64)) as usize;
            if size <= self.max {
                return size;
            }
        }
    }
}

/// A rack with workers of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolRack {
    /// Leaf of the rack.
    pub leaf: usize,
    /// Number of workers.
    pub workers: usize,
}

/// Distributes the workers of each pool over racks, in pieces at random free places.
///
/// # Errors
/// If the pools need more pieces than there are.
pub fn place(config: &Config, seed: u64) -> Result<Vec<Vec<PoolRack>>, String> {
    let mut rng = StreamSeed::derive(seed, "placement", 0).stream();
    let pieces_per_leaf = config.servers_per_leaf * (config.workers_per_server / config.piece);
    let mut pieces: Vec<usize> = (0..config.leaves * pieces_per_leaf).collect();
    let mut pools = Vec::new();
    for pool in 0..config.pools {
        let mut workers = config.pool_size.draw(&mut rng);
        let mut racks = vec![0; config.leaves];
        while workers > 0 {
            if pieces.is_empty() {
                return Err(format!(
                    "the fabric has no server left for pool {pool} of {}; give fewer pools, smaller ones (--pool-size) or \
                     more leaves",
                    config.pools
                ));
            }
            // Scales 32 random bits to an index.
            let chosen = (u64::from(rng.next_u64() as u32) * pieces.len() as u64) >> 32;
            let piece = pieces.swap_remove(chosen as usize);
            let placed = workers.min(config.piece);
            racks[piece / pieces_per_leaf] += placed;
            workers -= placed;
        }
        let racks = racks.into_iter().enumerate().filter(|(_, workers)| *workers > 0);
        pools.push(racks.map(|(leaf, workers)| PoolRack { leaf, workers }).collect());
    }
    Ok(pools)
}

/// Runs the model.
///
/// # Errors
/// If there is no pool, the pools do not fit, or arrivals and rate contradict each other.
pub fn run(config: &Config) -> Result<Outcome, String> {
    let mut all: Option<Outcome> = None;
    for_each_pool(config, |_, outcome| match &mut all {
        None => all = Some(outcome),
        Some(all) => all.add(outcome),
    })?;
    all.ok_or_else(|| "--pools: at least one is needed".to_owned())
}

/// Runs the model, and passes each pool's outcome with its racks to a function.
///
/// # Errors
/// If the pools do not fit, or arrivals and rate contradict each other.
pub fn for_each_pool(
    config: &Config,
    mut each: impl FnMut(&[PoolRack], Outcome),
) -> Result<(), String> {
    let seed = config.pool.seed;
    let pools = place(config, seed)?;
    let total: usize = pools.iter().flatten().map(|rack| rack.workers).sum();
    let mut spine = 0;
    for pool_racks in &pools {
        let mut pool: Option<Outcome> = None;
        for part in pool_racks.chunks(config.leaves_per_spine) {
            let racks: Vec<_> = part.iter().map(|rack| rack.workers).collect();
            let workers: usize = racks.iter().sum();
            let share = workers as f64 / total as f64;
            // Each spine scheduler numbers its tasks from 0, so its number takes the place of the pool's in the
            // recorded tasks. It begins with 1, the pool that one-pool models record.
            let observer = Observer { pool: spine + 1, ..config.pool.observer.clone() };
            let outcome = rack::run(&rack::Config {
                observer,
                racks,
                speeds: vec![1.0; workers],
                tasks: ((config.pool.tasks as f64 * share) as u64).max(1),
                seed: StreamSeed::derive(seed, "spine", spine).seed,
                ..config.pool.clone()
            })?;
            spine += 1;
            match &mut pool {
                None => pool = Some(outcome),
                Some(pool) => pool.add(outcome),
            }
        }
        pool.into_iter().for_each(|outcome| each(pool_racks, outcome));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pool_sizes_have_their_mean_and_bounds() {
        let size = BoundedExponential::parse("exp(min=50,max=20000,mean=685)").unwrap();
        let mut rng = StreamSeed::derive(1, "placement", 0).stream();
        let sizes: Vec<_> = (0..20_000).map(|_| size.draw(&mut rng)).collect();
        let mean = sizes.iter().sum::<usize>() as f64 / sizes.len() as f64;
        assert!((mean / 685.0 - 1.0).abs() < 0.03, "{mean}");
        assert!(sizes.iter().all(|size| (50..=20_000).contains(size)));
        assert!(
            BoundedExponential::parse("exp(min=5,mean=2)").unwrap_err().contains("min <= mean")
        );
    }
}
