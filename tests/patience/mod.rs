//! How long tests wait for what must come, whatever else the machine does. It ends only those that fail.
#![allow(dead_code, reason = "each test uses what it needs")]

use std::time::{Duration, Instant};

pub const PATIENCE: Duration = Duration::from_secs(300);
/// Nodes of tests that fail end by themselves after so long; all others are told to.
pub const LIFETIME: &str = "3600s";

pub fn wait_until(what: &str, mut met: impl FnMut() -> bool) {
    let start = Instant::now();
    while !met() {
        assert!(start.elapsed() < PATIENCE, "waited in vain until {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}
