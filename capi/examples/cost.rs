//! Cost of a call from Rust, for comparison with C: see scripts/bench-library.py.
//!
//! `cost CONFIGURATION TASK ROUNDS slices` measures bursts of packets that are Rust slices. `... packets` measures
//! bursts of the C library's packets: pointer, length and flags, which the library reads. `... copies` only copies the
//! tasks in, as a baseline for counts of instructions. Prints the mean nanoseconds of a packet.
//!
//! TASK is a file with a frame, or a name. `v4` and `v6` are a client's task with its checksum, made here for
//! the network of testbed/src/bench/leaf.toml or leaf_v6.toml. In `v4-half` and `v6-half` every second packet
//! is a reply, of each worker in turn.

use std::error::Error;
use std::hint::black_box;
use std::time::{Duration, Instant};

use wedjat::embed::{Context, Options, Scheduler, Verdict};
use wedjat::io::Buf;
use wedjat::limits::BURST;
use wedjat::wire::ether::Mac;
use wedjat::wire::task::{Code, Header};
use wedjat::wire::udp::{self, Flow};
use wedjat_capi::types::Packet;

/// Distance of frames in memory in bytes. At a distance of a power of two, frames would share cache sets.
const STRIDE: usize = 192;

const LEAF_MAC: Mac = Mac([2, 0, 0, 0, 0, 1]);
const CLIENT_MAC: Mac = Mac([2, 0, 0, 0, 1, 2]);
const SERVER_MAC: Mac = Mac([2, 0, 0, 0, 2, 11]);
/// Addresses of leaf, client and server.
const HOSTS: [u32; 3] = [0x0A00_0001, 0x0A00_0102, 0x0A00_020B];
/// IPv6 addresses of leaf, client and server.
const HOSTS_V6: [u128; 3] = [0xFD00 << 112 | 1, 0xFD00 << 112 | 0x1_0002, 0xFD00 << 112 | 0x2_000B];
/// Number of workers in the configuration.
const WORKERS: u16 = 32;

/// Returns the addresses of a packet between these hosts: a client's task, or a worker's reply.
fn flow<A: Copy>([leaf, client, server]: [A; 3], is_reply: bool) -> Flow<A> {
    let (src_mac, src, dst) =
        if is_reply { (SERVER_MAC, server, client) } else { (CLIENT_MAC, client, leaf) };
    let (src_port, dst_port) = if is_reply { (1234, 40_000) } else { (40_000, 1234) };
    Flow { src_mac, dst_mac: LEAF_MAC, src, dst, src_port, dst_port }
}

/// Returns the frame of a task or reply, with nine bytes after its header.
fn frame(header: &Header, is_v6: bool) -> Vec<u8> {
    let header_offset = if is_v6 { udp::PAYLOAD_V6 } else { udp::PAYLOAD };
    let (len, is_reply) = (header.len() + 9, header.code.is_reply());
    let mut frame = vec![0; header_offset + len];
    header.emit(&mut frame[header_offset..]);
    match is_v6 {
        true => flow(HOSTS_V6, is_reply).emit_v6(&mut frame, len),
        false => flow(HOSTS, is_reply).emit(&mut frame, len),
    }
    frame
}

/// Returns the frames of TASK to receive in turn. Their number is a multiple of the burst, so that each round is a full
/// burst. All have the same length.
fn frames(task: &str) -> Result<Vec<Vec<u8>>, Box<dyn Error>> {
    // Pool 7, sequence number 1. Replies report one task in the worker's queue.
    let new = Header::new_task(7, 1);
    let reply = |worker| Header { code: Code::TaskDone, src: worker, dst: 0, qlen: 1, ..new };
    let half = |is_v6| {
        (0..WORKERS).flat_map(move |worker| [frame(&new, is_v6), frame(&reply(worker), is_v6)])
    };
    Ok(match task {
        "v4" | "v6" => vec![frame(&new, task == "v6"); BURST],
        "v4-half" | "v6-half" => half(task == "v6-half").collect(),
        path => vec![std::fs::read(path)?; BURST],
    })
}

/// Copies the burst number `round` of the frames into all packets, like a port that receives. Each packet needs fresh
/// bytes, because the library rewrites them.
fn receive<B: Buf>(packets: &mut [B], frames: &[Vec<u8>], round: u64) {
    let first = round as usize * BURST % frames.len();
    let next = packets.iter_mut().zip(&frames[first..]);
    next.for_each(|(packet, frame)| packet.bytes_mut().copy_from_slice(frame));
    black_box(packets);
}

/// Measures `rounds` bursts. Returns the time of the calls without that of the copies; with `only_copies` returns the
/// time of the copies. Fails if a packet of the last burst was not forwarded, because other verdicts cost another time.
fn measure<B: Buf>(
    context: &mut Context,
    packets: &mut [B],
    frames: &[Vec<u8>],
    rounds: u64,
    only_copies: bool,
) -> Result<Duration, Box<dyn Error>> {
    let mut verdicts = [Verdict::Consumed; BURST];
    let start = Instant::now();
    (0..rounds).for_each(|round| receive(packets, frames, round));
    let copy_time = start.elapsed();
    if only_copies {
        return Ok(copy_time);
    }
    let start = Instant::now();
    for now in 0..rounds {
        receive(packets, frames, now);
        context.process(0, now, packets, &mut verdicts)?;
        black_box(&verdicts);
    }
    let total = start.elapsed();
    if !verdicts.iter().all(|verdict| matches!(verdict, Verdict::Forward { .. })) {
        return Err(format!("not all forwarded: {verdicts:?}").into());
    }
    Ok(total.saturating_sub(copy_time))
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let [config, task, rounds, kind] = &arguments[..] else {
        return Err("usage: cost CONFIGURATION TASK ROUNDS slices|packets|copies".into());
    };
    let options = Options { ticks_hz: 1_000_000_000, macs: &[] };
    let mut scheduler = Scheduler::from_toml(&std::fs::read_to_string(config)?, &options)?;
    let mut context = scheduler.context(0).ok_or("no core")?;
    let (frames, rounds) = (frames(task)?, rounds.parse::<u64>()?);
    let mut memory = vec![0; BURST * STRIDE];
    let mut slices: Vec<&mut [u8]> =
        memory.chunks_exact_mut(STRIDE).map(|frame| &mut frame[..frames[0].len()]).collect();
    let elapsed = match &kind[..] {
        "packets" => {
            let packet = |frame: &mut &mut [u8]| Packet {
                data: frame.as_mut_ptr(),
                length: frame.len() as u32,
                flags: 0,
            };
            let mut packets: Vec<_> = slices.iter_mut().map(packet).collect();
            measure(&mut context, &mut packets, &frames, rounds, false)?
        }
        kind => measure(&mut context, &mut slices, &frames, rounds, kind == "copies")?,
    };
    println!("{:.3}", elapsed.as_nanos() as f64 / (rounds.max(1) * BURST as u64) as f64);
    Ok(())
}
