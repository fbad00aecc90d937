//! A leaf in memory: eight emulated workers on two servers, honest clients, and an attacker on either side, all
//! on an emulated clock.

use std::net::Ipv4Addr;
use std::path::Path;
use std::sync::Arc;

use wedjat::assembly;
use wedjat::config::Config;
use wedjat::control::Membership;
use wedjat::io::Buf;
use wedjat::io::memory::{FramePool, RingPort};
use wedjat::node::{Commands, Timing};
use wedjat::policy::{CATALOGUE, Runs};
use wedjat::role::Leaf;
use wedjat::state::{Counters, Gauge, Member, Table};
use wedjat::wire::ether::{self, Mac};
use wedjat::wire::task::{Code, Header};
use wedjat::wire::{task, udp};
use wedjat_pktgen::engine::Generator;
use wedjat_pktgen::load::Load;
use wedjat_pktgen::target::Target;

use super::segment::{HostKernel, Segment, Tap};
use crate::attack::Failure;
use crate::rack::{Layout, Options, Rack};

/// Index of the leaf's port to the clients.
pub const CLIENTS: usize = 0;
/// Index of the leaf's port to the workers.
pub const WORKERS: usize = 1;
/// The leaf's MAC addresses, by port.
pub const LEAF_MACS: [Mac; 2] = [Mac([2, 0, 0, 0, 0, 1]), Mac([2, 0, 0, 0, 0, 2])];
/// The leaf's addresses, by port: 10.1.0.1 in a /16 of clients, and 10.0.2.1 in a /24 of workers.
pub const LEAF_IPS: [u32; 2] = [0x0A01_0001, 0x0A00_0201];
/// The servers' addresses: 10.0.2.11 and 10.0.2.12.
pub const SERVERS: [u32; 2] = [0x0A00_020B, 0x0A00_020C];
/// MAC addresses with which the rack answers for all servers. The second one is that of the servers that come
/// later.
pub const RACK_MACS: [Mac; 2] = [Mac([2, 0, 0, 0, 2, 0x0B]), Mac([2, 0, 0, 0, 2, 0x1B])];
/// Addresses of honest clients: one present from the start (10.1.0.100), another (10.1.0.101), and the first one again
/// with another MAC address.
pub const HONEST: [u32; 3] = [0x0A01_0064, 0x0A01_0065, 0x0A01_0064];
/// Index of the returned client.
pub const RETURNED: usize = 2;
/// MAC addresses of the honest clients.
pub const HONEST_MACS: [Mac; 3] =
    [Mac([2, 0, 0, 0, 1, 0x64]), Mac([2, 0, 0, 0, 1, 0x65]), Mac([2, 0, 0, 0, 1, 0x74])];
/// The attacker's MAC address among the clients.
pub const ATTACKER_MAC: Mac = Mac([2, 0, 0, 0, 1, 0x66]);
/// The attacker's MAC address among the workers.
pub const INTRUDER_MAC: Mac = Mac([2, 0, 0, 0, 2, 0x66]);
/// The pool.
pub const POOL: u16 = 1;
/// Number of workers, with ids from 0.
pub const COUNT: u16 = 8;
/// Distribution of the workers' service times.
pub const SERVICE: &str = "exp(500us)";
/// Tasks per second of the honest client.
pub const HONEST_RATE: f64 = 200.0;
/// Interval of emulated time between two polls of leaf and rack, ns.
pub const STEP: u64 = 10_000;
/// A second, ns.
pub const SECOND: u64 = 1_000_000_000;

/// Ticks of the clock per second: ticks are nanoseconds.
const HZ: u64 = SECOND;
/// Number of buffers of each side, attackers and honest parties, and bytes of a buffer.
const FRAMES: usize = 1 << 14;
const FRAME_BYTES: usize = 2048;
/// Seconds of load before an honest client's measurement.
const WARMUP_S: f64 = 0.1;

/// Returns the index of a worker's server.
#[must_use]
pub fn server_of(worker: u16) -> usize {
    usize::from(worker / (COUNT / 2))
}

/// Iterates over every policy that a leaf runs.
pub fn policies() -> impl Iterator<Item = &'static str> {
    let on_leaf = |runs| matches!(runs, Runs::Leaf | Runs::LeafHolding);
    CATALOGUE.iter().filter(move |entry| on_leaf(entry.runs)).map(|entry| entry.name)
}

/// Parameters that differ between attacks.
#[derive(Clone, Copy, Debug, Default)]
pub struct Setup<'a> {
    /// Policy of the pool.
    pub policy: &'a str,
    /// The seed.
    pub seed: u64,
    /// Further lines of `[[pool]]`.
    pub pool: &'a str,
    /// True if worker [`LIAR`] always reports that it has no task.
    pub liar: bool,
    /// Number of servers present from the start; 0 for all.
    pub servers: u16,
}

/// Id of the lying worker.
pub const LIAR: u16 = COUNT - 1;

/// The leaf among its networks.
pub struct Rig {
    /// The leaf.
    pub leaf: Leaf<Segment, FramePool>,
    /// The emulated workers.
    pub rack: Rack<RingPort>,
    /// The attacker's wire among the clients.
    pub client_side: RingPort,
    /// The attacker's wire among the workers.
    pub worker_side: RingPort,
    /// The time, ns.
    pub now: u64,
    /// Time after which the leaf forgets a multi-packet task, ns.
    pub affinity_ns: u64,
    /// Tasks sent to workers, by worker.
    pub sent_tasks: Tap,
    /// Packets for honest clients and servers that reached attackers.
    pub stolen: u64,
    /// Wires of the honest clients; `None` while the client runs and has its wire.
    honest: [Option<RingPort>; 3],
    /// Wire of the servers that come later.
    returning_wire: Option<RingPort>,
    counters: Counters,
    /// Buffers of the attackers and of the honest parties.
    pools: [FramePool; 2],
    seed: u64,
    /// Number of runs of honest clients so far. Each run draws other random numbers.
    runs: u32,
    /// Memory of the leaf's state, which the leaf and `counters` use.
    _table: Arc<Table>,
}

/// Results of the honest client's tasks.
#[derive(Clone, Copy, Debug)]
pub struct TaskOutcomes {
    /// Tasks sent, warm-up included.
    pub sent: u64,
    /// Tasks answered, warm-up included.
    pub answered: u64,
    /// 99th percentile of the response time after the warm-up, us.
    pub p99_us: f64,
}

/// Returns the text of the configuration, with these devices and further lines of `[leaf]`.
#[must_use]
pub fn text(setup: &Setup<'_>, devices: [&str; 2], leaf: &str) -> String {
    let Setup { policy, seed, pool, .. } = setup;
    let mut text = format!("[leaf]\nid = 9\ncores = [0]\nseed = {seed}\n{leaf}\n");
    for (index, (side, prefix)) in [("clients", 16), ("workers", 24)].into_iter().enumerate() {
        let (device, mac, ip) =
            (devices[index], LEAF_MACS[index], Ipv4Addr::from_bits(LEAF_IPS[index]));
        text += &format!(
            "[[port]]\ndevice = \"{device}\"\nside = \"{side}\"\nip = \"{ip}/{prefix}\"\nmac = \"{mac}\"\n"
        );
    }
    text += &format!("[[pool]]\nid = {POOL}\npolicy = \"{policy}\"\n{pool}\n");
    for (index, ip) in SERVERS.map(Ipv4Addr::from_bits).into_iter().enumerate() {
        let first = index as u16 * COUNT / 2;
        let last = first + COUNT / 2 - 1;
        text +=
            &format!("[[server]]\nip = \"{ip}\"\nworkers = \"{first}-{last}\"\npool = {POOL}\n");
    }
    text
}

/// Returns the checked configuration of a leaf in memory.
///
/// # Errors
/// If the configuration is refused.
pub fn config(setup: &Setup<'_>) -> Result<Config, Failure> {
    let text = text(setup, ["net_ring0", "net_ring1"], "");
    Ok(Config::parse(Path::new("attacked.toml"), &text)?)
}

/// Returns true if a server's kernel sends the reply to the leaf. Takes the place of a kernel, because the rack also
/// answers tasks with a forged source. Replies to its own network and to addresses that are no host's do not leave for
/// the leaf. The kernel answers no task with source port 0 or IPv4 options. A frame without a UDP datagram always
/// leaves.
fn server_kernel_sends(frame: &mut [u8]) -> bool {
    let Ok(datagram) = udp::parse(frame, true) else { return true };
    if datagram.dst_port == 0 || datagram.payload() != udp::PAYLOAD {
        return false;
    }
    let dst = Ipv4Addr::from_bits(datagram.dst);
    let own_network = datagram.dst >> 8 == LEAF_IPS[WORKERS] >> 8;
    // Addresses that begin with 0, or with 224 and more (multicast, reserved, broadcast), are no host's.
    let first_octet = dst.octets()[0];
    !own_network && first_octet != 0 && !dst.is_loopback() && first_octet < 224
}

/// Like [`server_kernel_sends`], but first makes the replies of [`LIAR`] report no task.
fn liar_kernel_sends(frame: &mut [u8]) -> bool {
    if let Some(header) =
        header(frame).filter(|header| header.src == LIAR && header.code.is_reply())
    {
        let udp_header = udp::PAYLOAD - udp::LEN;
        let idle = Header { code: Code::TaskDoneIdle, qlen: 0, ..header };
        let delta = task::replace(&mut frame[udp::PAYLOAD..], &idle);
        udp::update_checksum(&mut frame[udp_header..], delta);
    }
    server_kernel_sends(frame)
}

/// Returns the task header of an IPv4 datagram without options, whose first byte is 0x45.
fn header(frame: &[u8]) -> Option<Header> {
    let is_plain = frame.get(ether::LEN) == Some(&0x45) && ether::ether_type(frame) == ether::IPV4;
    is_plain.then(|| Header::parse(frame.get(udp::PAYLOAD..)?).ok())?
}

/// Returns the destination worker of a task.
fn worker_of(frame: &[u8]) -> Option<usize> {
    header(frame).filter(|header| header.code.is_task()).map(|header| usize::from(header.dst))
}

/// Creates a rack of the first `servers` servers, whose workers have ids from 0.
fn rack_of(port: RingPort, mac: Mac, servers: u16, seed: u64) -> Result<Rack<RingPort>, Failure> {
    let first = Ipv4Addr::from_bits(SERVERS[0]);
    let layout = Layout::new(format!("{first}+{servers}").parse()?, COUNT / 2, 0)?;
    Ok(Rack::new(port, mac, layout, Options { seed, ..Options::default() }, HZ as f64))
}

impl Rig {
    /// Creates a leaf that has received no packet yet.
    ///
    /// # Errors
    /// If the configuration is refused.
    pub fn new(setup: &Setup<'_>) -> Result<Self, Failure> {
        let config = config(setup)?;
        let table = assembly::table(&config, HZ)?;
        let mut stages = assembly::stages(&config, &Membership::of(&config), LEAF_MACS, &table)?;
        // Attackers and honest parties have separate buffers, so that neither side can exhaust those of its
        // opponent.
        let [attacker_pool, honest_pool] =
            [FRAMES, FRAMES].map(|count| FramePool::new(count, FRAME_BYTES));
        // The tap counts the workers' tasks by worker, and counts nothing among the clients.
        let (mut clients, _) = Segment::new(|_| None);
        let (mut workers, sent_tasks) = Segment::new(worker_of);
        let pass_all: HostKernel = |_| true;
        let honest = HONEST_MACS.map(|mac| Some(clients.join(mac, &honest_pool, pass_all)));
        let client_side = clients.join(ATTACKER_MAC, &attacker_pool, pass_all);
        let kernel = if setup.liar { liar_kernel_sends } else { server_kernel_sends };
        let [rack_wire, returning_wire] =
            RACK_MACS.map(|mac| workers.join(mac, &honest_pool, kernel));
        let worker_side = workers.join(INTRUDER_MAC, &attacker_pool, pass_all);
        let servers = if setup.servers == 0 { SERVERS.len() as u16 } else { setup.servers };
        let rack = rack_of(rack_wire, RACK_MACS[0], servers, setup.seed)?;
        // No command ever changes this leaf.
        let commands = Commands::default();
        let timing = Timing { ticks_hz: HZ };
        let counters = table.counters(0);
        let (stages, ports) = (stages.remove(0), vec![clients, workers]);
        let leaf = Leaf::new(stages, ports, honest_pool.clone(), commands, timing);
        Ok(Self {
            leaf,
            rack,
            client_side,
            worker_side,
            now: STEP,
            affinity_ns: config.leaf.connection_timeout_ms.saturating_mul(1_000_000),
            sent_tasks,
            stolen: 0,
            honest,
            returning_wire: Some(returning_wire),
            counters,
            pools: [attacker_pool, honest_pool],
            seed: setup.seed,
            runs: 0,
            _table: table,
        })
    }

    /// Advances the time by a step in which leaf and rack poll once. The attackers receive their packets.
    pub fn step(&mut self) {
        self.now += STEP;
        self.leaf.poll(self.now);
        self.rack.poll(self.now);
        for wire in [&mut self.client_side, &mut self.worker_side] {
            while let Some(frame) = wire.receive() {
                let dst = udp::parse(frame.bytes(), true).map(|datagram| datagram.dst);
                let honest = |dst| HONEST.contains(&dst) || SERVERS.contains(&dst);
                self.stolen += u64::from(dst.is_ok_and(honest));
            }
        }
    }

    /// Advances the time by `ns` and calls `before_step` before each step.
    pub fn advance(&mut self, ns: u64, mut before_step: impl FnMut(&mut Self)) {
        let end = self.now + ns;
        while self.now < end {
            before_step(self);
            self.step();
        }
    }

    /// Replaces the present servers, whose tasks are lost, by all servers with another MAC address. Servers that were
    /// absent so far also appear.
    ///
    /// # Errors
    /// If the servers were replaced before.
    pub fn replace_servers(&mut self) -> Result<(), Failure> {
        let mut wire = self.returning_wire.take().ok_or("the servers were already replaced")?;
        // Frames sent before the servers' return have not reached them.
        while wire.receive().is_some() {}
        self.rack = rack_of(wire, RACK_MACS[1], SERVERS.len() as u16, self.seed)?;
        Ok(())
    }

    /// Lets the first honest client send [`HONEST_RATE`] tasks per second, in a warm-up of 0.1 s and then for
    /// `seconds` seconds, and waits for the answers. Calls `before_step` before each step.
    ///
    /// # Errors
    /// If the client is already running, or the leaf does not answer its ARP.
    pub fn serve(
        &mut self,
        seconds: f64,
        before_step: impl FnMut(&mut Self),
    ) -> Result<TaskOutcomes, Failure> {
        self.serve_at(0, HONEST_RATE, seconds, before_step)
    }

    /// Like [`Rig::serve`], with the client at index `client` of [`HONEST`] and `rate` tasks per second.
    ///
    /// # Errors
    /// If the client is already running, or the leaf does not answer its ARP.
    pub fn serve_at(
        &mut self,
        client: usize,
        rate: f64,
        seconds: f64,
        mut before_step: impl FnMut(&mut Self),
    ) -> Result<TaskOutcomes, Failure> {
        self.runs += 1;
        let load = Load {
            warmup_s: WARMUP_S,
            duration_s: seconds,
            seed: self.seed,
            run: self.runs,
            ..Load::new(rate, SERVICE.parse()?)
        };
        // The returned client already has the leaf's MAC address, so it sends no ARP request.
        let next_hop_mac = (client == RETURNED).then_some(LEAF_MACS[CLIENTS]);
        let default = Target::new(HONEST_MACS[client], HONEST[client], LEAF_IPS[CLIENTS]);
        let target = Target { next_hop_mac, ..default };
        let wire = self.honest[client].take().ok_or("the honest client is already running")?;
        let pool = self.pools[1].clone();
        // Core 0 of the load, its only one.
        let mut generator = Generator::new(&load, &target, 0, HZ as f64, wire, pool)?;
        while !generator.phase().is_over() {
            generator.transmit(self.now);
            before_step(self);
            self.step();
            generator.receive(self.now);
        }
        let (wire, _, tally) = generator.into_parts();
        self.honest[client] = Some(wire);
        if tally.warmup.scheduled + tally.measured.scheduled == 0 {
            return Err("the leaf does not answer the honest client's ARP".into());
        }
        Ok(TaskOutcomes {
            sent: tally.warmup.sent + tally.measured.sent,
            answered: tally.warmup.answered + tally.measured.answered,
            p99_us: tally.response().quantile_ns(0.99) / 1e3,
        })
    }

    /// Returns the leaf's counters.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Returns the number of packets that the leaf dropped for the reason of this name; 0 for an unknown
    /// name.
    #[must_use]
    pub fn dropped(&self, reason: &str) -> u64 {
        self.counters.totals().drops().get(reason).copied().unwrap_or(0)
    }

    /// Returns the leaf's count of outstanding tasks at all workers.
    #[must_use]
    pub fn outstanding(&self) -> u64 {
        (0..COUNT).map(|worker| self.outstanding_at(worker)).sum()
    }

    /// Returns the leaf's count of outstanding tasks at this worker.
    #[must_use]
    pub fn outstanding_at(&self, worker: u16) -> u64 {
        let dispatcher = self.leaf.stages().dispatcher(0);
        dispatcher.map_or(0, |dispatcher| u64::from(dispatcher.view().outstanding(Member(worker))))
    }

    /// Returns the number of packets that the leaf holds, including tasks in central queues.
    #[must_use]
    pub fn held(&self) -> u64 {
        self.counters.read(Gauge::Held)
    }

    /// Ends the leaf and everything around it. Returns the number of buffers still in use, which are leaked.
    #[must_use]
    pub fn leaked(self) -> usize {
        let Self { leaf, rack, returning_wire, client_side, worker_side, honest, pools, .. } = self;
        drop((leaf.close(), rack, returning_wire, client_side, worker_side, honest));
        pools.iter().map(FramePool::in_use).sum()
    }
}

/// An even pace on the emulated clock: converts a rate per second to a number of events in each step.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// Number of events per step.
    per_step: f64,
    /// Fraction of the next event that is due already.
    due: f64,
}

impl Pace {
    /// Creates a pace of `per_second` events per second.
    #[must_use]
    pub fn new(per_second: f64) -> Self {
        Self { per_step: per_second * STEP as f64 / SECOND as f64, due: 0.0 }
    }

    /// Returns the number of events due in this step.
    pub fn due(&mut self) -> usize {
        self.due += self.per_step;
        let whole = self.due.floor();
        self.due -= whole;
        whole as usize
    }
}
