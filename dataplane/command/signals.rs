//! Effects of signals on a running leaf, spine, agent or controller.

use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use signal_hook::consts::{SIGINT, SIGTERM, SIGUSR1};

/// Returns a flag that SIGINT and SIGTERM set to request an orderly end. The second of these signals ends the process
/// at once with exit code 1. The caller may set the flag, too; this counts as no signal. SIGUSR1 has no effect.
pub fn stop_on_signals() -> io::Result<Arc<AtomicBool>> {
    let stop = Arc::default();
    // Set by the first signal.
    let has_signal = Arc::<AtomicBool>::default();
    for signal in [SIGINT, SIGTERM] {
        // Ends the process at the second signal. Registered before the setter of its flag, so that the first signal
        // does not end it.
        signal_hook::flag::register_conditional_shutdown(signal, 1, Arc::clone(&has_signal))?;
        signal_hook::flag::register(signal, Arc::clone(&has_signal))?;
        signal_hook::flag::register(signal, Arc::clone(&stop))?;
    }
    // A flag that nothing reads, since the default action would end the process.
    signal_hook::flag::register(SIGUSR1, Arc::default())?;
    Ok(stop)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering::{Acquire, Release};

    use super::*;

    #[test]
    fn signal_after_the_callers_end_is_the_first() {
        let stop = stop_on_signals().unwrap();
        stop.store(true, Release);
        signal_hook::low_level::raise(SIGTERM).unwrap();
        assert!(stop.load(Acquire), "the process still runs");
    }
}
