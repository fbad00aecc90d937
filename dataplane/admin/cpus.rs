//! Where the control's threads run.

use rustix::thread::CpuSet;

/// Keeps the calling thread on these CPUs; it stays where it is when there are none, or the system refuses.
pub fn stay_on(cpus: &[usize]) {
    let mut set = CpuSet::new();
    cpus.iter().filter(|&&cpu| cpu < CpuSet::MAX_CPU).for_each(|&cpu| set.set(cpu));
    if set.count() > 0 {
        let _ = rustix::thread::sched_setaffinity(None, &set);
    }
}
