//! Failure of a spine switch of the fabric (Horus, Fig. 18): number of notified leaves, and lost tasks.
//!
//! Each spine scheduler of a pool runs on a random spine switch; there are as many switches as leaves. After
//! a failure the controller notifies each leaf linked to a scheduler on that switch, once, and the clients.
//! Until then tasks for the failed schedulers are lost. Each message crosses four hops, as between distant
//! nodes of the datacenter. As in the paper, the time to detect a dead switch does not count.

use std::collections::BTreeSet;

use rand::Rng as _;
use wedjat_workload::seed::StreamSeed;

use super::fabric::{Config, place};
use super::hop::TICKS_PER_US;

/// Hops from the failed switch to the controller and on to a leaf.
const NOTICE_HOPS: u32 = 8;

/// Impact of one failure.
#[derive(Clone, Copy, Debug)]
pub struct Failure {
    /// Number of leaves that the controller notifies, each by one message.
    pub messages: usize,
    /// Time from the failure until the last leaf is notified, in us.
    pub notice_us: f64,
    /// Expected number of tasks lost in that time.
    pub aborted: f64,
    /// Lost tasks as a fraction of all tasks submitted in that time.
    pub share: f64,
    /// Mean over the schedulers on the switch: the fraction of a scheduler's pool that it serves. A pool with several
    /// schedulers there counts once for each.
    pub pool_share: f64,
}

/// Simulates `failures` independent failures, each of a random spine switch. All of them hit the same placement of
/// pools and schedulers. Draws the delays of notices, and computes lost tasks from the load without simulating tasks.
///
/// # Errors
/// If the pools do not fit.
pub fn spine_failures(config: &Config, failures: usize) -> Result<Vec<Failure>, String> {
    let seed = config.pool.seed;
    let pools = place(config, seed)?;
    let mut rng = StreamSeed::derive(seed, "failures", 0).stream();
    // Scales 32 random bits to the index of a switch.
    let mut draw_switch =
        || ((u64::from(rng.next_u64() as u32) * config.leaves as u64) >> 32) as usize;
    // Schedulers on each switch: the pool, and the racks linked to the scheduler.
    let mut hosted = vec![Vec::new(); config.leaves];
    for (number, places) in pools.iter().enumerate() {
        for part in places.chunks(config.leaves_per_spine) {
            hosted[draw_switch()].push((number, part));
        }
    }
    let workers = |number: usize| pools[number].iter().map(|place| place.workers).sum::<usize>();
    let total: usize = (0..pools.len()).map(workers).sum();
    let tasks_per_us = config.pool.load * total as f64 / (config.pool.service.mean_ns() / 1e3);
    let mut all = Vec::new();
    for number in 0..failures {
        let schedulers = &hosted[draw_switch()];
        let leaves: BTreeSet<usize> =
            schedulers.iter().flat_map(|(_, part)| part.iter().map(|place| place.leaf)).collect();
        let mut hops = StreamSeed::derive(seed, "notices", number as u32).stream();
        let notices = leaves.iter().map(|_| config.pool.hop.sample(NOTICE_HOPS, &mut hops));
        let notice_us = notices.max().unwrap_or(0) as f64 / TICKS_PER_US;
        let (mut affected_workers, mut shares) = (0, 0.0);
        for (pool, part) in schedulers {
            let part_workers: usize = part.iter().map(|place| place.workers).sum();
            affected_workers += part_workers;
            shares += part_workers as f64 / workers(*pool) as f64;
        }
        let share = affected_workers as f64 / total as f64;
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
    use crate::model::Model;
    use crate::{SimArgs, fabric, plan};

    /// Returns a fabric with pools placed in pieces of this many workers, and this number of leaves per spine.
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

    /// Pools in single workers use many more racks than pools in whole servers.
    // promise: measurement.4
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

    /// A switch hosts on average 1/64 of all tasks. With fewer schedulers, each failure costs its pools more.
    // promise: measurement.4
    #[test]
    fn failure_impact_grows_with_fewer_schedulers() {
        // Returns the means of `share` and `pool_share` over 400 failures.
        let average = |ratio| {
            let all = spine_failures(&config("4", ratio), 400).unwrap();
            let mean = |field: fn(&Failure) -> f64| all.iter().map(field).sum::<f64>() / 400.0;
            assert!(all.iter().all(|failure| failure.messages <= 64));
            (mean(|failure| failure.share), mean(|failure| failure.pool_share))
        };
        // Many and few schedulers: one for 4 and one for 40 leaves of a pool.
        let (many, few) = (average("4"), average("40"));
        assert!((many.0 * 64.0 - 1.0).abs() < 0.25, "{many:?}");
        assert!(few.1 > 2.0 * many.1, "{few:?} {many:?}");
    }
}
