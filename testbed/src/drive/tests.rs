//! Tests of generator and rack (emulated workers) in one loop, with a forwarder in memory and simulated time.

use super::*;
use std::net::IpAddr;
use std::time::SystemTime;
use wedjat::io::memory::{self, Frame, FramePool, RingPort};
use wedjat::io::{Buf, Burst};
use wedjat::wire::ether::Mac;
use wedjat::wire::task;
use wedjat::wire::udp::{self, Datagram, Flow};
use wedjat_pktgen::address::Addresses;
use wedjat_pktgen::load::Load;
use wedjat_pktgen::manifest::Manifest;
use wedjat_pktgen::neighbour::{self, Message};
use wedjat_pktgen::target::Target;

use crate::rack::{Layout, Options, Rack};

/// MAC addresses of the client, the leaf and the rack.
const CLIENT: Mac = Mac([2, 0, 0, 0, 1, 0x63]);
const LEAF: Mac = Mac([2, 0, 0, 0, 0, 1]);
const RACK: Mac = Mac([2, 0, 0, 0, 2, 0x0B]);
/// Addresses of the leaf and of its first server.
const IPV4: [&str; 2] = ["10.0.1.1", "10.0.2.11"];
const IPV6: [&str; 2] = ["fd00:1::1", "fd00:2::b"];
/// Ticks per second: one tick is one nanosecond.
const HZ: f64 = 1e9;
/// Duration of a reading of the clock. Nothing else takes time.
const TICKS_PER_READING: u64 = 70;

/// Minimal scheduler: round-robin over the workers.
struct Forwarder {
    clients: RingPort,
    workers: RingPort,
    layout: Layout,
    /// Worker of the next task.
    next: u16,
}

impl Forwarder {
    /// Answers the clients' ARP or neighbour discovery, and forwards all tasks and replies.
    fn poll(&mut self) {
        let mut burst = Burst::new();
        self.clients.rx_burst(&mut burst);
        for mut frame in burst.drain(..) {
            if Message::is_neighbour_discovery(frame.bytes()) {
                assert_eq!(neighbour::answer(&mut frame, LEAF, |_| true), Ok(()));
                assert_eq!(self.clients.tx_burst(&mut [frame].into_iter().collect()), 1);
            } else {
                self.forward(frame);
            }
        }
        self.workers.rx_burst(&mut burst);
        let replies = burst.len();
        assert_eq!(self.clients.tx_burst(&mut burst), replies);
    }

    /// Forwards a task to the next worker.
    fn forward(&mut self, frame: Frame) {
        let worker = self.next;
        self.next = (self.next + 1) % self.layout.workers();
        match self.layout.server_of(worker).unwrap() {
            IpAddr::V4(server) => {
                let datagram = udp::parse(frame.bytes(), false).unwrap();
                self.send(frame, worker, datagram, server.to_bits(), Flow::emit);
            }
            IpAddr::V6(server) => {
                let datagram = udp::parse_v6(frame.bytes(), false).unwrap();
                self.send(frame, worker, datagram, server.to_bits(), Flow::emit_v6);
            }
        }
    }

    /// Writes the worker into a task's header and sends it to the worker's server `dst`. `emit` writes the
    /// headers of the address family.
    fn send<A>(
        &mut self,
        mut frame: Frame,
        worker: u16,
        datagram: Datagram<A>,
        dst: A,
        emit: fn(&Flow<A>, &mut [u8], usize),
    ) {
        let payload = datagram.payload()..usize::from(datagram.end);
        let len = payload.len();
        // The idle flag stays clear. The replaced bytes are not needed, because `emit` computes the checksum.
        let _ = task::choose(&mut frame.bytes_mut()[payload], task::choice_of(worker), 0);
        let Datagram { src, src_port, dst_port, .. } = datagram;
        let flow = Flow { src_mac: LEAF, dst_mac: RACK, src, dst, src_port, dst_port };
        emit(&flow, frame.bytes_mut(), len);
        assert_eq!(self.workers.tx_burst(&mut [frame].into_iter().collect()), 1);
    }
}

/// Clients' end of the wire. It polls the forwarder before each receive and after each send.
struct ForwardingWire {
    port: RingPort,
    forwarder: Forwarder,
}

impl Port for ForwardingWire {
    type Buf = Frame;

    fn rx_burst(&mut self, burst: &mut Burst<Frame>) -> usize {
        self.forwarder.poll();
        self.port.rx_burst(burst)
    }

    fn tx_burst(&mut self, burst: &mut Burst<Frame>) -> usize {
        let sent = self.port.tx_burst(burst);
        self.forwarder.poll();
        sent
    }
}

/// Runs the generator and a rack of this many workers over IPv4. Returns both reports, and the number of
/// buffers that are still in use.
fn driven(workers: u16, load: &Load, options: Options) -> (Report, rack::Report, usize) {
    driven_over(IPV4, workers, load, options)
}

/// Like [`driven`], with these addresses of the leaf and of its first server.
fn driven_over(
    [leaf, servers]: [&str; 2],
    workers: u16,
    load: &Load,
    options: Options,
) -> (Report, rack::Report, usize) {
    let pool = FramePool::new(8192, 160);
    let (client, leaf_clients) = memory::pair(4096, &pool);
    let (leaf_workers, worker) = memory::pair(4096, &pool);
    let layout = Layout::new(servers.parse().unwrap(), workers, 0).unwrap();
    let forwarder = Forwarder { clients: leaf_clients, workers: leaf_workers, layout, next: 0 };
    let addresses = Addresses::new(leaf.parse().unwrap(), None, None).unwrap();
    let target = Target::to(CLIENT, addresses);
    let wire = ForwardingWire { port: client, forwarder };
    // Core 0 of the load, its only one.
    let mut generator = Generator::new(load, &target, 0, HZ, wire, pool.clone()).unwrap();
    let mut rack = Rack::new(worker, RACK, layout, options, HZ);
    rack.log_replies(load.tasks_max());
    let mut ticks = 0;
    let clock = || {
        ticks += TICKS_PER_READING;
        ticks
    };
    run(&mut generator, |now| rack.poll(now), clock, &AtomicBool::new(false));
    let manifest = Manifest::new(load, SystemTime::UNIX_EPOCH);
    let slices = generator.tally().slices(&load.rule, &[]);
    let mut report = Report::new(load, generator.tally(), &slices, None, manifest);
    let rack_report = rack.report_judged_by(Some(&slices));
    judge(&mut report, &rack_report);
    drop((generator, rack));
    (report, rack_report, pool.in_use())
}

/// Returns a load of 0.2 s at this rate.
fn load(rate_pps: f64, service: &str) -> Load {
    Load {
        warmup_s: 0.01,
        duration_s: 0.2,
        drain_s: 0.05,
        seed: 5,
        ..Load::new(rate_pps, service.parse().unwrap())
    }
}

// promise: measurement.3
#[test]
fn one_worker_is_an_mm1_queue() {
    let (report, rack, in_use) = driven(1, &load(100e3, "exp(5us)"), Options::default());
    assert!(report.valid, "{report}");
    assert_eq!((report.lost, report.sent, in_use), (0, report.answered, 0));
    assert_eq!((rack.tasks, rack.outstanding), (rack.replies, 0));
    assert_eq!(rack.dropped.len(), 0);
    // M/M/1 at load 0.5: response times are exponential with mean S / (1 - 0.5) = 10 us, plus a polling delay
    // or two.
    assert!((report.response_us.mean.0 / 10.0 - 1.0).abs() < 0.1, "{report}");
    let p99 = 10.0 * 100_f64.ln();
    assert!((report.response_us.p99.0 / p99 - 1.0).abs() < 0.15, "{report}");
    assert!((rack.service_mean_us / 5.0 - 1.0).abs() < 0.03, "{rack}");
}

// promise: measurement.1
#[test]
fn over_ipv6_it_is_the_same_run() {
    let load = load(100e3, "exp(5us)");
    let (over_ipv6, rack, in_use) = driven_over(IPV6, 2, &load, Options::default());
    assert!(over_ipv6.valid && rack.balances(), "{over_ipv6}\n{rack}");
    assert_eq!(
        (over_ipv6.lost, over_ipv6.refused, over_ipv6.sent, in_use),
        (0, 0, over_ipv6.answered, 0)
    );
    assert_eq!((rack.tasks, rack.dropped.len()), (rack.replies, 0));
    let (over_ipv4, rack_over_ipv4, _) = driven(2, &load, Options::default());
    assert_eq!(
        (over_ipv6.sent, rack.tasks, rack.service_mean_us),
        (over_ipv4.sent, rack_over_ipv4.tasks, rack_over_ipv4.service_mean_us)
    );
    assert_eq!(over_ipv6.response_us.p99.0, over_ipv4.response_us.p99.0);
}

#[test]
fn evenly_dealt_fixed_tasks_never_wait() {
    let load = Load { arrivals: "constant".parse().unwrap(), ..load(400e3, "fixed(9us)") };
    let (report, _, in_use) = driven(4, &load, Options::default());
    assert_eq!((report.lost, in_use), (0, 0));
    // A worker gets a task each 10 us, and is free again after 9 us. The rest is the polling of both ends.
    assert!(report.response_us.p50.0 >= 9.0 && report.response_us.max.0 < 9.8, "{report}");
}

#[test]
fn rack_losses_are_generator_losses() {
    let options = Options { lose_share: 0.1, ..Options::default() };
    let (report, rack, in_use) = driven(4, &load(200e3, "exp(5us)"), options);
    assert_eq!(report.sent, report.answered + report.refused + report.lost);
    // The rack discards a tenth of its replies. Only the rack counts losses of the warm-up.
    assert!(report.lost > 0 && report.lost <= rack.lost_replies, "{report}\n{rack}");
    assert!(rack.balances());
    assert_eq!(in_use, 0);
}

// promise: measurement.2
#[test]
fn a_late_rack_makes_the_run_invalid() {
    // Replies may be late by 5% of the service time: 25 ns for tasks of 500 ns. One turn of the loop has three readings
    // of the clock and takes 210 ns.
    let (report, rack, _) = driven(4, &load(200e3, "fixed(500ns)"), Options::default());
    assert!(!rack.valid && !report.valid);
    assert!(
        report
            .to_string()
            .contains("INVALID: 1% of the rack's replies in undisturbed slices were late"),
        "{report}"
    );
}
