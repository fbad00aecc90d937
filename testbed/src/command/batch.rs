//! `wedjat-testbed batch`: batch work to hold beside workers.

use std::path::Path;

use clap::Args;
use wedjat::cosched::progress::COUNTER;
use wedjat_testbed::batch::Batch;

use super::Failure;

/// What `--help` ends with.
pub const EXAMPLE: &str = "Example:
  wedjat cosched run --agent host1 --progress counter -- wedjat-testbed batch memory";

/// Arguments of `batch`.
#[derive(Args, Debug)]
pub struct Arguments {
    /// What to do
    #[arg(value_enum)]
    batch: Batch,
    /// End after so much, by its own count
    #[arg(long)]
    units: Option<u64>,
}

/// Works until it is ended.
pub fn run(arguments: &Arguments) -> Result<bool, Failure> {
    let counter = std::env::var_os(COUNTER);
    arguments.batch.run(arguments.units, counter.as_deref().map(Path::new))?;
    Ok(true)
}
