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
