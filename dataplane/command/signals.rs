//! Effects of signals on a running leaf, agent or controller.

use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

#[cfg(feature = "dpdk")]
use signal_hook::consts::SIGHUP;
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

/// Returns a flag that SIGHUP sets. It stays unset if the process was started with SIGHUP ignored, as under
/// nohup.
#[cfg(feature = "dpdk")]
pub fn reload_on_signal() -> io::Result<Arc<AtomicBool>> {
    let reload = Arc::default();
    if !is_ignored(SIGHUP) {
        signal_hook::flag::register(SIGHUP, Arc::clone(&reload))?;
    }
    Ok(reload)
}

/// Returns true if the process was started with this signal ignored.
#[cfg(feature = "dpdk")]
fn is_ignored(signal: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .is_some_and(|mask| mask & (1 << (signal - 1)) != 0)
}
