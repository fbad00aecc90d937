//! The CPUs that this process may use.

/// All of them, as the system says: those of its affinity, which a cpuset narrows. None where it does not tell.
#[must_use]
pub fn usable() -> Vec<usize> {
    core_affinity::get_core_ids().unwrap_or_default().iter().map(|core| core.id).collect()
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
    }
}
