//! Error of a command.

use std::error::Error;

/// Reason why a command failed.
pub type Failure = Box<dyn Error>;
