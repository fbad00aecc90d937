//! CPUs of threads that do not poll, such as the control's: they should not interrupt dispatcher cores.

use rustix::thread::CpuSet;

/// Sets the CPUs of the calling thread. Does nothing for an empty list, or if the system refuses.
pub fn stay_on(cpus: &[usize]) {
    let mut set = CpuSet::new();
    cpus.iter().filter(|&&cpu| cpu < CpuSet::MAX_CPU).for_each(|&cpu| set.set(cpu));
    if set.count() > 0 {
        let _ = rustix::thread::sched_setaffinity(None, &set);
    }
}
