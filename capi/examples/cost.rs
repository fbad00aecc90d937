//! What a call costs from Rust, to be compared with the same from C: see scripts/bench-library.py.
//!
//! `cost CONFIGURATION TASK ROUNDS slices` has the bursts that Rust knows by itself, `... packets` those of the C library:
//! pointer, length and flags, which are looked at. `... copies` only copies the tasks in, for those who count instructions.

use std::error::Error;
use std::hint::black_box;
use std::time::{Duration, Instant};

use wedjat::embed::{Context, Options, Scheduler, Verdict};
use wedjat::io::Buf;
use wedjat::limits::BURST;
use wedjat_capi::types::Packet;

/// Of frames in memory: far enough from a power of two that they do not share sets of the cache.
const STRIDE: usize = 192;

/// Copies the task into all packets, as a port would.
fn receive<B: Buf>(packets: &mut [B], task: &[u8]) {
    packets.iter_mut().for_each(|packet| packet.bytes_mut().copy_from_slice(task));
    black_box(packets);
}

fn measure<B: Buf>(
    context: &mut Context,
    packets: &mut [B],
    task: &[u8],
    rounds: u64,
    only_copies: bool,
) -> Result<Duration, Box<dyn Error>> {
    let mut verdicts = [Verdict::Consumed; BURST];
    let start = Instant::now();
    (0..rounds).for_each(|_| receive(packets, task));
    let alone = start.elapsed();
    if only_copies {
        return Ok(alone);
    }
    let start = Instant::now();
    for now in 0..rounds {
        receive(packets, task);
        context.process(0, now, packets, &mut verdicts)?;
        black_box(&verdicts);
    }
    let all = start.elapsed();
    if !verdicts.iter().all(|verdict| matches!(verdict, Verdict::Forward { .. })) {
        return Err(format!("not all forwarded: {verdicts:?}").into());
    }
    Ok(all.saturating_sub(alone))
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let [config, task, rounds, kind] = &arguments[..] else {
        return Err("usage: cost CONFIGURATION TASK ROUNDS slices|packets|copies".into());
    };
    let options = Options { ticks_hz: 1_000_000_000, macs: &[] };
    let mut scheduler = Scheduler::from_toml(&std::fs::read_to_string(config)?, &options)?;
    let mut context = scheduler.context(0).ok_or("no core")?;
    let (task, rounds) = (std::fs::read(task)?, rounds.parse::<u64>()?);
    let mut frames = vec![0; BURST * STRIDE];
    let mut slices: Vec<&mut [u8]> =
        frames.chunks_exact_mut(STRIDE).map(|frame| &mut frame[..task.len()]).collect();
    let took = match &kind[..] {
        "packets" => {
            let packet = |frame: &mut &mut [u8]| Packet {
                data: frame.as_mut_ptr(),
                length: frame.len() as u32,
                flags: 0,
            };
            let mut packets: Vec<_> = slices.iter_mut().map(packet).collect();
            measure(&mut context, &mut packets, &task, rounds, false)?
        }
        kind => measure(&mut context, &mut slices, &task, rounds, kind == "copies")?,
    };
    println!("{:.3}", took.as_nanos() as f64 / (rounds.max(1) * BURST as u64) as f64);
    Ok(())
}
