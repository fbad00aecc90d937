//! Benchmarks: choices of policies, policy decisions, hand-over to worker cores, tasks that share a core, cache lines
//! between dispatcher cores, pool keys, batch work beside a worker, and a fabric's controller. Each is a subcommand
//! `bench-*` of `wedjat-testbed`, except [`setup`], which creates the agents of some of them.

pub mod auth;
pub mod auto;
pub mod controller;
pub mod cosched;
#[cfg(feature = "dpdk")]
pub mod host;
pub mod lines;
pub mod policy;
pub mod preempt;
pub mod setup;

/// Returns the median, the upper one of an even number; NaN without samples.
fn median(mut samples: Vec<f64>) -> f64 {
    samples.sort_by(f64::total_cmp);
    samples.get(samples.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Pins this thread to a CPU of [`two_cpus`].
fn pin(cpu: usize) {
    let _ = wedjat::cpus::pin(cpu); // the CPU was checked
}

/// Checks the values of `--cpus`: two different usable CPUs, those of `whose` and of the worker.
fn two_cpus(cpus: &[usize], whose: &str) -> Result<[usize; 2], String> {
    let usable = wedjat::cpus::usable();
    let &[first, second] = cpus else {
        return Err(format!("--cpus: give two CPUs, {whose}'s and the worker's, as in 0,1"));
    };
    match first != second && usable.contains(&first) && usable.contains(&second) {
        true => Ok([first, second]),
        false => {
            Err(format!("--cpus {first},{second}: two different CPUs of {usable:?} are needed"))
        }
    }
}
