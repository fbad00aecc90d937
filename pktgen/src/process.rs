//! CPU of a thread, and signals to the process, for commands.

use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;

/// Pins the calling thread to a CPU, if one is given. Logs a warning if that fails.
pub fn pin(core: Option<usize>) {
    let Some(id) = core else { return };
    if !core_affinity::set_for_current(core_affinity::CoreId { id }) {
        log::warn!("cannot run on CPU {id}: it does not exist, or this process may not use it");
    }
}

/// Returns a flag that SIGINT and SIGTERM set. The second signal ends the process by its default action: the
/// first handler acts only if the flag is already set, so it is registered first.
///
/// # Errors
/// If the system refuses a handler.
pub fn stop_on_signals() -> io::Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        flag::register_conditional_default(signal, Arc::clone(&stop))?;
        flag::register(signal, Arc::clone(&stop))?;
    }
    Ok(stop)
}
