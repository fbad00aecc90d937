//! Time limits of tests. They are long because the machine may be busy; only failing tests reach them.
#![allow(dead_code, reason = "each test uses what it needs")]

use std::time::{Duration, Instant};

/// Longest wait for one condition.
pub const TIMEOUT: Duration = Duration::from_secs(300);
/// Lifetime of a node under test. Only nodes of failing tests reach it; all others are stopped.
pub const LIFETIME: &str = "3600s";

/// Waits until `condition` returns true. Panics after [`TIMEOUT`], with the text `what`. The pause after each call is
/// as long as the call, and at least 5 ms. A slow condition thus leaves CPU time to the processes under test.
pub fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    loop {
        let called = Instant::now();
        if condition() {
            return;
        }
        assert!(start.elapsed() < TIMEOUT, "waited in vain: {what}");
        std::thread::sleep(called.elapsed().max(Duration::from_millis(5)));
    }
}
