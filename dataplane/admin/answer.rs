//! Answers of the thread that watches a node, to requests of other threads.

use std::time::Duration;

/// Time limit for all cores to take a change, a tap or an explanation. After it the client gets an error.
pub const TAKEN_MAX: Duration = Duration::from_secs(5);

/// Callback for an answer, on the thread that watches the node; must not block. Dropped without a call if the
/// node ends first.
pub type Answer<T> = Box<dyn FnOnce(T) + Send>;
