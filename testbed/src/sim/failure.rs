//! A spine switch of the fabric fails (Horus, Fig. 18): whom the controller tells, and what is lost meanwhile.
//!
//! Each spine scheduler of a pool runs on a random spine switch, of which there are as many as leaves. When one
//! fails, the controller hears of it and tells each leaf whose racks were linked to a scheduler there, once,
//! and whoever submits tasks. Until then what goes to the failed schedulers is lost. Both messages cross
//! four hops, as between nodes elsewhere in the datacenter; how long it takes to see that a switch is dead
//! is not counted, as in the paper.

use std::collections::BTreeSet;

use rand::Rng as _;
use wedjat_pktgen::seed::StreamSeed;

use super::fabric::{Config, place};
use super::hop::TICKS_PER_US;

/// Hops from the failed switch to the controller, and from there to a leaf.
const NOTICE_HOPS: u32 = 8;

/// What one failure did.
#[derive(Clone, Copy, Debug)]
pub struct Failure {
    /// Leaves that the controller told.
    pub messages: usize,
    /// From the failure until the last of them knew, in us.
    pub notice_us: f64,
    /// Tasks lost meanwhile.
    pub aborted: f64,
    /// Of all tasks submitted meanwhile.
    pub share: f64,
    /// Of the tasks of a pool that had a scheduler there, in the mean.
    pub pool_share: f64,
}

/// Fails a random spine switch so many times, each on its own.
///
/// # Errors
/// When the pools do not fit.
pub fn spine_failures(config: &Config, failures: usize) -> Result<Vec<Failure>, String> {
    let seed = config.pool.seed;
    let pools = place(config, seed)?;
    let mut rng = StreamSeed::derive(seed, "failures", 0).stream();
    let mut switch = || ((u64::from(rng.next_u64() as u32) * config.leaves as u64) >> 32) as usize;
    // What runs on each switch: pool, and the racks linked to its scheduler there.
    let mut hosted = vec![Vec::new(); config.leaves];
    for (number, places) in pools.iter().enumerate() {
        for part in places.chunks(config.leaves_per_spine) {
            hosted[switch()].push((number, part));
        }
    }
    let workers = |number: usize| pools[number].iter().map(|place| place.workers).sum::<usize>();
    let total: usize = (0..pools.len()).map(workers).sum();
    let tasks_per_us = config.pool.load * total as f64 / (config.pool.service.mean_ns() / 1e3);
    let mut all = Vec::new();
    for number in 0..failures {
        let schedulers = &hosted[switch()];
        let leaves: BTreeSet<usize> =
            schedulers.iter().flat_map(|(_, part)| part.iter().map(|place| place.leaf)).collect();
        let mut hops = StreamSeed::derive(seed, "notices", number as u32).stream();
        let notices = leaves.iter().map(|_| config.pool.hop.sample(NOTICE_HOPS, &mut hops));
        let notice_us = notices.max().unwrap_or(0) as f64 / TICKS_PER_US;
        let (mut served, mut shares) = (0, 0.0);
        for (pool, part) in schedulers {
            let part: usize = part.iter().map(|place| place.workers).sum();
            served += part;
            shares += part as f64 / workers(*pool) as f64;
        }
        let share = served as f64 / total as f64;
        all.push(Failure {
            messages: leaves.len(),
            notice_us,
            aborted: share * tasks_per_us * notice_us,
            share,
            pool_share: shares / schedulers.len().max(1) as f64,
        });
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::model::Model;
    use crate::sim::{SimArgs, fabric, plan};

    fn config(piece: &str, ratio: &str) -> Config {
        let args = SimArgs {
            model: Some("fabric".to_owned()),
            load: Some("0.8".to_owned()),
            piece: Some(piece.to_owned()),
            leaves_per_spine: Some(ratio.to_owned()),
            leaves: Some("64".to_owned()),
            pools: Some("30".to_owned()),
            ..SimArgs::default()
        };
        match plan::cells(&args).unwrap().remove(0).model {
            Model::Fabric(config) => config,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn pieces_scatter_pools() {
        let racks = |piece| {
            let pools = fabric::place(&config(piece, "10"), 1).unwrap();
            for places in &pools {
                assert!(places.iter().map(|place| place.workers).sum::<usize>() >= 50);
                assert!(places.windows(2).all(|pair| pair[0].leaf < pair[1].leaf));
            }
            pools.iter().map(Vec::len).sum::<usize>()
        };
        assert!(racks("1") > 2 * racks("32"));
    }

    #[test]
    fn a_failure_costs_a_switchs_share_and_few_schedulers_more_of_their_pools() {
        let average = |ratio| {
            let all = spine_failures(&config("4", ratio), 400).unwrap();
            let mean = |of: fn(&Failure) -> f64| all.iter().map(of).sum::<f64>() / 400.0;
            assert!(all.iter().all(|failure| failure.messages <= 64));
            (mean(|failure| failure.share), mean(|failure| failure.pool_share))
        };
        let (many, few) = (average("4"), average("40"));
        assert!((many.0 * 64.0 - 1.0).abs() < 0.25, "{many:?}");
        assert!(few.1 > 2.0 * many.1, "{few:?} {many:?}");
    }
}
