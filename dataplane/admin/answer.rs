//! Answers of the thread that watches a node, to requests of other threads.

use std::time::Duration;

/// Time for cores to apply a change before the client gets a timeout.
pub const TAKEN_MAX: Duration = Duration::from_secs(5);

/// Callback for an answer, on the thread that watches the node; must not block. Dropped without a call if the
/// node ends first.
pub type Answer<T> = Box<dyn FnOnce(T) + Send>;
