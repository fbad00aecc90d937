//! Effects of signals on a running leaf, spine, agent or controller.

use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use signal_hook::consts::{SIGINT, SIGTERM, SIGUSR1};

/// Returns a flag that SIGINT and SIGTERM set to request an orderly end. While the flag is set, also by the caller,
/// either signal ends the process at once with exit code 1. SIGUSR1 has no effect.
pub fn stop_on_signals() -> io::Result<Arc<AtomicBool>> {
    let stop = Arc::default();
    for signal in [SIGINT, SIGTERM] {
        // Ends the process if the flag is set already. Registered before the setter of the flag, so that the first
        // signal does not end it.
        signal_hook::flag::register_conditional_shutdown(signal, 1, Arc::clone(&stop))?;
        signal_hook::flag::register(signal, Arc::clone(&stop))?;
    }
    // A flag that nothing reads, since the default action would end the process.
    signal_hook::flag::register(SIGUSR1, Arc::default())?;
    Ok(stop)
}
