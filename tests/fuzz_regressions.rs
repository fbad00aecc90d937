//! Runs the bodies of the fuzz targets without a fuzzer: with the targets' seeds (fuzz/seeds), and with all inputs
//! that once caused a failure (tests/fuzz_regressions). A body panics if a check fails. Most tests also count
//! accepted inputs, so that the seeds keep reaching the code behind the first checks.
#![allow(clippy::unwrap_used, reason = "a test")]

mod fuzz_bodies;

use std::fs;
use std::path::Path;

/// Feeds the stored inputs of a target to `run`. Returns their number.
fn feed(target: &str, mut run: impl FnMut(&[u8])) -> usize {
    let mut fed = 0;
    for home in ["fuzz/seeds", "tests/fuzz_regressions"] {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(home).join(target);
        let Ok(entries) = fs::read_dir(&folder) else { continue };
        for entry in entries {
            let path = entry.unwrap().path();
            println!("{}", path.display()); // names the failing input
            run(&fs::read(&path).unwrap());
            fed += 1;
        }
    }
    fed
}

#[test]
fn task_header() {
    assert!(feed("task_header", fuzz_bodies::task_header::run) > 0);
}

// promise: input.4
#[test]
fn stages() {
    // Packets sent to workers and to clients, over IPv4 and IPv6.
    let mut sums = [(0, 0); 2];
    let count = |input: &[u8]| {
        for (sum, (to_workers, to_clients)) in sums.iter_mut().zip(fuzz_bodies::stages::run(input))
        {
            *sum = (sum.0 + to_workers, sum.1 + to_clients);
        }
    };
    assert!(feed("stages", count) > 0);
    // The seeds must contain packets that pass all stages, not only damaged ones.
    let enough = |(to_workers, to_clients)| to_workers > 10 && to_clients > 5;
    assert!(sums.into_iter().all(enough), "{sums:?} packets passed over IPv4 and IPv6");
}

#[test]
fn config() {
    assert!(feed("config", fuzz_bodies::config::run) > 0);
}

/// Inputs as control messages of memif clients and servers.
// promise: input.4
#[test]
fn memif_control() {
    let mut accepted = 0;
    let fed = feed("memif_control", |input| {
        accepted += usize::from(fuzz_bodies::memif_control::run(input));
    });
    assert!(accepted > 0 && fed > accepted, "{accepted} of {fed} clients let through");
}

// promise: input.4
#[test]
fn state_file() {
    let mut read = 0;
    let count = |input: &[u8]| read += usize::from(fuzz_bodies::state_file::run(input));
    assert!(feed("state_file", count) > read, "some are refused");
    assert!(read > 0);
}

/// Inputs as an agent's offer of a region to a connecting worker.
// promise: input.4
#[test]
fn offer() {
    let mut accepted = 0;
    assert!(
        feed("offer", |input| accepted += usize::from(fuzz_bodies::offer::run(input))) > accepted
    );
    assert!(accepted >= 2, "with and without a free channel");
}

/// Inputs as steps of a dispatcher and two workers, whose region changes under them.
// promise: input.4
#[test]
fn rings() {
    let mut answered = 0;
    assert!(feed("rings", |input| answered += fuzz_bodies::rings::run(input)) > 0);
    assert!(answered > 2, "{answered} tasks were answered");
}

/// Cheap substitute for the fuzzer: pseudo-random inputs of every length below 2000 bytes, the same every time.
#[test]
fn fuzz_bodies_take_random_bytes() {
    let mut state = 7_u64;
    for length in 0..2_000 {
        let input: Vec<u8> = std::iter::repeat_with(|| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 56) as u8
        })
        .take(length)
        .collect();
        fuzz_bodies::stages::run(&input);
        fuzz_bodies::task_header::run(&input);
        fuzz_bodies::memif_control::run(&input);
        fuzz_bodies::offer::run(&input);
        fuzz_bodies::rings::run(&input);
        if length % 100 == 0 {
            fuzz_bodies::state_file::run(&input); // slow: computes a checksum over a whole file
        }
    }
}
