//! Candidates of the advice and the figures: the catalogue with its default parameters, and variants.

use wedjat_core::policy::{CATALOGUE, Entry, Runs};

/// Policies with other parameters than the default ones.
pub const VARIANTS: [&str; 3] = ["jsq(2)", "sed(half=1)", "scd(unseen=measured)"];

/// Returns the policies whose members are workers, with their default parameters, and variants.
pub fn worker_policies() -> impl Iterator<Item = &'static str> {
    let entries = CATALOGUE.iter().filter(|entry| entry.runs != Runs::Spine);
    entries.map(|entry| entry.name).chain(VARIANTS)
}

/// Returns those of [`worker_policies`] that a node may choose itself for a pool with the policy `auto`.
pub fn eligible_policies() -> impl Iterator<Item = &'static str> {
    worker_policies().filter(|name| Entry::named(name).is_some_and(Entry::is_eligible))
}

/// Returns variants that treat long tasks differently, for a pool of `workers` workers whose tasks have `classes`
/// classes; none with a single class. The reserves are 1 to 3 workers, and 1/16 and 1/8 of all.
#[must_use]
pub fn class_policies(classes: usize, workers: usize) -> Vec<String> {
    if classes < 2 {
        return Vec::new();
    }
    let mut reserves = vec![1, 2, 3, workers / 16, workers / 8];
    reserves.retain(|reserve| (1..workers).contains(reserve));
    reserves.sort_unstable();
    reserves.dedup();
    let variants = |policy: &'static str| {
        let reserved = reserves.iter().map(move |n| format!("{policy}(boost=1, reserve={n})"));
        std::iter::once(format!("{policy}(boost=1)")).chain(reserved)
    };
    ["cfcfs", "eft"].into_iter().flat_map(variants).collect()
}

#[cfg(test)]
mod tests {
    use wedjat_core::policy::PolicySpec;

    use super::*;

    #[test]
    fn class_policies_need_classes_and_leave_workers() {
        assert!(class_policies(1, 32).is_empty());
        assert_eq!(class_policies(2, 2).len(), 4);
        let policies = class_policies(3, 32);
        assert_eq!(policies.last().unwrap(), "eft(boost=1, reserve=4)");
        assert_eq!(policies.len(), 10);
        assert!(policies.iter().all(|policy| policy.parse::<PolicySpec>().is_ok()));
    }
}
