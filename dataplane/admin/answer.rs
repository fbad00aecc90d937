//! How the thread that watches a node answers.

use std::time::Duration;

/// Cores have so long to take what they are told before whoever asked for it is told that they have not.
pub const TAKEN_MAX: Duration = Duration::from_secs(5);

/// Called with an answer, on the thread that watches the node: it must not wait for anybody. Dropped when the node ends first.
pub type Answer<T> = Box<dyn FnOnce(T) + Send>;
