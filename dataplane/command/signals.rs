//! Effects of signals on a running leaf, spine, agent or controller.

use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use signal_hook::consts::{SIGINT, SIGTERM, SIGUSR1};

/// Returns a flag that SIGINT and SIGTERM set. The first signal ends the process in order, the second at
/// once. SIGUSR1 has no effect.
pub fn stop_on_signals() -> io::Result<Arc<AtomicBool>> {
    let stop = Arc::default();
    for signal in [SIGINT, SIGTERM] {
        // Ends the process if the flag is set already. Registered first, so that it acts on the second signal.
        signal_hook::flag::register_conditional_shutdown(signal, 1, Arc::clone(&stop))?;
        signal_hook::flag::register(signal, Arc::clone(&stop))?;
    }
    // A flag that nothing reads, since the default action would end the process.
    signal_hook::flag::register(SIGUSR1, Arc::default())?;
    Ok(stop)
}
