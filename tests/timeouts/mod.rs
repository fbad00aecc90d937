//! Time limits of tests. They are long because the machine may be busy; only failing tests reach them.
#![allow(dead_code, reason = "each test uses what it needs")]

use std::time::{Duration, Instant};

/// Longest wait for one condition.
pub const TIMEOUT: Duration = Duration::from_secs(300);
/// Lifetime of a node under test. Only nodes of failing tests reach it; all others are stopped.
pub const LIFETIME: &str = "3600s";

/// Waits until `condition` returns true, and calls it every 5 ms. Panics after [`TIMEOUT`], with the text `what`.
pub fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < TIMEOUT, "waited in vain until {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}
