//! What a call costs from Rust, to be compared with the same from C: `cost ROUNDS`, see scripts/bench-library.py.

use std::error::Error;
use std::hint::black_box;
use std::time::Instant;

use wedjat::embed::{Options, Scheduler, Verdict};
use wedjat::limits::BURST;

/// Of frames in memory: far enough from a power of two that they do not share sets of the cache.
const STRIDE: usize = 192;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let (config, task, rounds) = match (arguments.next(), arguments.next(), arguments.next()) {
        (Some(config), Some(task), Some(rounds)) => (config, task, rounds.parse::<u64>()?),
        _ => return Err("usage: cost CONFIGURATION TASK ROUNDS".into()),
    };
    let options = Options { ticks_hz: 1_000_000_000, macs: &[] };
    let mut scheduler = Scheduler::from_toml(&std::fs::read_to_string(config)?, &options)?;
    let mut context = scheduler.context(0).ok_or("no core")?;
    let task = std::fs::read(task)?;
    let mut frames = vec![0; BURST * STRIDE];
    let frames = frames.chunks_exact_mut(STRIDE);
    let mut packets: Vec<&mut [u8]> = frames.map(|frame| &mut frame[..task.len()]).collect();
    let mut verdicts = [Verdict::Consumed; BURST];

    let start = Instant::now();
    for _ in 0..rounds {
        packets.iter_mut().for_each(|packet| packet.copy_from_slice(&task));
        black_box(&mut packets);
    }
    let alone = start.elapsed();
    let start = Instant::now();
    for now in 0..rounds {
        packets.iter_mut().for_each(|packet| packet.copy_from_slice(&task));
        black_box(&mut packets);
        context.process(0, now, &mut packets, &mut verdicts)?;
        black_box(&verdicts);
    }
    let all = start.elapsed();
    if !verdicts.iter().all(|verdict| matches!(verdict, Verdict::Forward { .. })) {
        return Err(format!("not all forwarded: {verdicts:?}").into());
    }
    let ns = all.saturating_sub(alone).as_nanos() as f64;
    println!("{:.3}", ns / (rounds.max(1) * BURST as u64) as f64);
    Ok(())
}
