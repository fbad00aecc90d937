//! SIGINT and SIGTERM as a flag.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use super::Failure;

/// Returns a flag that SIGINT and SIGTERM set. The second signal ends the process by its default action: the
/// first handler acts only if the flag is already set, so it is registered first.
pub fn stop_on_signals() -> Result<Arc<AtomicBool>, Failure> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register_conditional_default(signal, Arc::clone(&stop))?;
        signal_hook::flag::register(signal, Arc::clone(&stop))?;
    }
    Ok(stop)
}
