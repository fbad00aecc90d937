//! `[cosched]` of an agent's file, refused by a build without the feature `batch`.

use super::faults::FaultCollector;
use super::raw_agent;

/// Batch job beside an agent's workers. This build cannot have one: the type has no values, and keeps the callers free
/// of conditional compilation.
#[derive(Clone, Debug)]
pub enum Job {}

/// Records a fault if the file has the table, so that the agent does not start without its jobs. Returns no jobs.
pub(super) fn jobs(
    faults: &mut FaultCollector,
    raw: Option<&raw_agent::Cosched>,
    _: &str,
) -> Vec<Job> {
    if let Some(entry) = raw {
        let found = "[cosched], and this build lacks the feature `batch`";
        faults.note(
            &faults.file.place(entry.table),
            "cosched",
            found,
            "a build with it (the default)",
        );
    }
    Vec::new()
}
