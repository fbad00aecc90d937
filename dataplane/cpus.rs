//! The CPUs that this process may use.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// All of them, as the system says: those of its affinity, which a cpuset narrows. None where it does not tell.
#[must_use]
pub fn usable() -> Vec<usize> {
    let Ok(usable) = sched_getaffinity(None) else { return Vec::new() };
    (0..CpuSet::MAX_CPU).filter(|&cpu| usable.is_set(cpu)).collect()
}

/// Has the calling thread run on this CPU alone; false when the system refuses.
#[must_use]
pub fn pin(cpu: usize) -> bool {
    if cpu >= CpuSet::MAX_CPU {
        return false;
    }
    let mut only = CpuSet::new();
    only.set(cpu);
    sched_setaffinity(None, &only).is_ok()
}

/// Those that are not among `cores`.
#[must_use]
pub fn beside(cores: &[usize]) -> Vec<usize> {
    usable().into_iter().filter(|cpu| !cores.contains(cpu)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_beside_are_the_others() {
        let all = usable();
        assert!(!all.is_empty() && beside(&all).is_empty() && beside(&[]) == all);
        assert_eq!(beside(&all[..1]), all[1..]);
        let last = all[all.len() - 1];
        let alone = std::thread::spawn(move || (pin(last), usable(), pin(usize::MAX)));
        assert_eq!(alone.join().unwrap(), (true, vec![last], false));
    }
}
