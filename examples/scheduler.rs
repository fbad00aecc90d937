//! A DPDK program that schedules tasks with wedjat as a library: ports and loop of its own.
//!
//! `cargo run --example scheduler -- leaf.toml [SECONDS]`: ends when nothing came for so long, or never.
use std::error::Error;
use std::path::Path;

use wedjat::config::Config;
use wedjat::embed::{Options, Scheduler, Verdict};
use wedjat::io::dpdk::{Device, DeviceOptions, Eal, MbufPool};
use wedjat::io::{Buf, Burst, Pool, Port};
use wedjat::limits::BURST;
use wedjat::wire::arp;
use wedjat::wire::ether::Mac;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let file = arguments.next().ok_or("usage: scheduler CONFIGURATION [SECONDS]")?;
    let seconds: Option<u64> = arguments.next().map(|text| text.parse()).transpose()?;
    let config = Config::load(Path::new(&file))?;
    let names: Vec<_> = config.ports.iter().map(|port| port.device.as_str()).collect();
    let eal = Eal::init(&[], &names)?;
    let packets = MbufPool::new(&eal, "packets", 8191)?;
    let (mut devices, mut ports) = (vec![], vec![]);
    for name in names {
        let promiscuous = DeviceOptions { promiscuous: true, ..DeviceOptions::default() };
        let (device, mut queues) = Device::open(&eal, name, &packets, &promiscuous)?;
        devices.push(device);
        ports.append(&mut queues);
    }
    let macs: Vec<_> = devices.iter().map(|device| Mac(device.mac())).collect();
    let options = Options { ticks_hz: eal.ticks_hz(), macs: &macs };
    let mut scheduler = Scheduler::new(&config, &options)?;
    let mut context = scheduler.context(0).ok_or("the configuration has no core")?;

    let (mut pool, mut held, mut last) = (packets.handle(), Vec::new(), eal.now());
    let mut passing: Vec<Vec<_>> = ports.iter().map(|_| vec![]).collect();
    let mut own: Vec<Vec<_>> = ports.iter().map(|_| vec![]).collect();
    while seconds.is_none_or(|seconds| eal.now() - last < seconds * eal.ticks_hz()) {
        let now = eal.now();
        for at in 0..ports.len() {
            let (mut burst, mut verdicts) = (Burst::new(), [Verdict::Consumed; BURST]);
            if ports[at].rx_burst(&mut burst) > 0 {
                last = now;
            }
            context.process(at, now, &mut burst, &mut verdicts)?;
            for (packet, verdict) in burst.into_iter().zip(verdicts) {
                match verdict {
                    Verdict::Forward { port, .. } => passing[usize::from(port)].push(packet),
                    Verdict::Hold { port, next_hop, .. } => held.push((packet, port, next_hop)),
                    Verdict::Answer => own[at].push(packet),
                    Verdict::Consumed | Verdict::Drop(_) => {} // freed
                }
            }
        }
        for (mut packet, port, next_hop) in std::mem::take(&mut held) {
            match context.resume(port, next_hop, &mut packet) {
                Verdict::Forward { port, .. } => passing[usize::from(port)].push(packet),
                Verdict::Hold { .. } => held.push((packet, port, next_hop)),
                _ => {}
            }
        }
        context.tick(now);
        let mut frame = [0; arp::FRAME_LEN];
        while let Some(question) = context.question(now, &mut frame) {
            if let Some(mut packet) = pool.take()
                && packet.resize(question.len)
            {
                packet.bytes_mut().copy_from_slice(&frame);
                own[usize::from(question.port)].push(packet);
            }
        }
        for (at, port) in ports.iter_mut().enumerate() {
            let unsent = send(port, &mut passing[at]);
            context.unsent(unsent);
            send(port, &mut own[at]);
        }
    }
    println!("{:?}", scheduler.totals());
    Ok(())
}

/// Sends what the device takes, frees the rest and says how many that were.
fn send<P: Port>(port: &mut P, packets: &mut Vec<P::Buf>) -> u64 {
    let mut unsent = 0;
    while !packets.is_empty() {
        let mut burst: Burst<P::Buf> = packets.drain(..packets.len().min(BURST)).collect();
        port.tx_burst(&mut burst);
        unsent += burst.len() as u64;
    }
    unsent
}
