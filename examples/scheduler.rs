//! A DPDK program that schedules tasks with wedjat as a library, with its own ports and loop.
//!
//! `cargo run --example scheduler -- leaf.toml [SECONDS]` ends after this time without packets, or never.
//!
//! The library rewrites each packet in place and returns a verdict. The program then sends, holds or frees the packet.
//! A held packet waits for a free worker or for a neighbour's MAC address, until `release` returns it.
use wedjat::config::Config;
use wedjat::embed::{BURST, Options, Scheduler, Verdict};
use wedjat::io::dpdk::{Device, DeviceOptions, Eal, MbufPool};
use wedjat::io::{Burst, Port};
use wedjat::wire::ether::Mac;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let file = arguments.next().ok_or("usage: scheduler CONFIGURATION [SECONDS]")?;
    let seconds: Option<u64> = arguments.next().map(|text| text.parse()).transpose()?;
    let config = Config::load(file.as_ref())?;
    let names: Vec<_> = config.ports.iter().map(|port| port.device.as_str()).collect();
    let eal = Eal::init(&[], &names)?;
    // Mempools of 2^n - 1 mbufs waste no memory.
    let packets = MbufPool::new(&eal, "packets", 8191)?;
    let (mut macs, mut ports) = (vec![], vec![]);
    for name in names {
        let promiscuous = DeviceOptions { promiscuous: true, ..DeviceOptions::default() };
        let (device, mut queues) = Device::open(&eal, name, &packets, &promiscuous)?;
        macs.push(Mac(device.mac()));
        ports.append(&mut queues); // the queues keep the device open
    }
    let options = Options { ticks_hz: eal.ticks_hz(), macs: &macs };
    let mut scheduler = Scheduler::new(&config, &options)?;
    let mut context = scheduler.context(0).ok_or("the configuration has no core")?;

    // `last` is the time of the last packet, in ticks.
    let (mut pool, mut last) = (packets.handle(), eal.now());
    // Packets that wait for a decision, by the place that the scheduler gave them.
    let mut held: Vec<_> = (0..context.places()).map(|_| None).collect();
    // Packets to send, by port.
    let mut passing: Vec<Vec<_>> = ports.iter().map(|_| vec![]).collect();
    // Ends at a poll without packets, this long after the last packet. A stall of the program itself does not
    // end it early: a poll follows before the next check.
    let mut now = last;
    while seconds.is_none_or(|seconds| now - last < seconds * eal.ticks_hz()) {
        now = eal.now();
        for index in 0..ports.len() {
            let (mut burst, mut verdicts) = (Burst::new(), [Verdict::Consumed; BURST]);
            if ports[index].rx_burst(&mut burst) > 0 {
                last = now;
            }
            context.process(index, now, &mut burst, &mut verdicts)?;
            for (packet, verdict) in burst.into_iter().zip(verdicts) {
                match verdict {
                    Verdict::Forward { port, .. } => passing[port as usize].push(packet),
                    Verdict::Hold { place, .. } => held[place as usize] = Some(packet),
                    Verdict::Answer { port } => context.send_own(&mut ports[port as usize], packet),
                    Verdict::Consumed | Verdict::Drop(_) => {} // freed on drop
                }
            }
        }
        while let Some(released) = context.release(now, &mut held) {
            if let Verdict::Forward { port, .. } = released.verdict {
                passing[port as usize].push(released.packet);
            }
        }
        // Questions are ARP requests and neighbour solicitations for the MAC addresses of workers and routers.
        while let Some((question, port)) = context.ask(now, &mut pool) {
            context.send_own(&mut ports[port], question);
        }
        for (port, packets) in ports.iter_mut().zip(&mut passing) {
            context.send(port, packets.drain(..));
        }
    }
    println!("{:?}", scheduler.totals());
    Ok(())
}
