//! Error of a command. `main` prints it and exits with status 2.

use std::error::Error;

/// Reason why a command failed.
pub type Failure = Box<dyn Error>;
