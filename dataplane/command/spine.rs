//! `wedjat spine`: runs a scheduler over leaves. It has the arguments and the code of `wedjat leaf`.

use wedjat::state::table::Role;

use super::Outcome;
use super::leaf::Arguments;

/// Help text below the options.
pub const EXAMPLE: &str = "Example, with two virtual devices and no hugepages:
  wedjat spine --config spine.toml --duration 5s --stats - -- \\
      --no-huge --no-pci --vdev=net_memif0,role=server,id=0,socket=wedjat-service \\
      --vdev=net_memif1,role=server,id=1,socket=wedjat-leaves
Exit status: 0 after an orderly end with a balanced ledger, 1 otherwise.";

/// Runs the spine until a signal or the end of its duration.
pub fn run(arguments: &Arguments) -> Outcome {
    super::leaf::start(arguments, Role::Spine)
}
