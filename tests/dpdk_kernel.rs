//! Kernel interfaces as DPDK devices: AF_PACKET, and AF_XDP if the kernel has it, at both ends of veth pairs (virtual
//! Ethernet cables of the kernel).
#![cfg(all(feature = "dpdk", target_os = "linux"))]
#![allow(clippy::unwrap_used, reason = "a test")]

mod timeouts;

use std::os::unix::fs::MetadataExt;
use std::process::Command;
use std::time::{Duration, Instant};

use wedjat::io::dpdk::{Device, DeviceOptions, Eal, Mbuf, MbufPool, QueuePort, Sleeper};
use wedjat::io::{Buf, Burst, Pool, Port};

use timeouts::TIMEOUT;

/// EtherType for local experiments (IEEE 802). It distinguishes the test's frames from the kernel's own.
const OURS: [u8; 2] = [0x88, 0xB5];
/// Number of packets sent in each direction.
const PACKETS: u8 = 100;

/// Names of a pair of veth interfaces, deleted when dropped.
struct Veth(String, String);

impl Veth {
    /// Creates a pair, up at both ends. `number` makes its names unique.
    fn new(number: u32) -> Self {
        let name = |end| format!("wj{}{end}{number}", std::process::id());
        let pair = Self(name("a"), name("b"));
        ip(&["link", "add", &pair.0, "type", "veth", "peer", "name", &pair.1]);
        ip(&["link", "set", &pair.0, "up"]);
        ip(&["link", "set", &pair.1, "up"]);
        pair
    }
}

impl Drop for Veth {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["link", "del", &self.0]).status();
    }
}

/// Runs `ip`, which must succeed.
fn ip(arguments: &[&str]) {
    assert!(Command::new("ip").args(arguments).status().unwrap().success(), "ip {arguments:?}");
}

/// Returns true if the kernel has AF_XDP sockets.
fn has_xdp() -> bool {
    std::fs::read_to_string("/proc/net/protocols").unwrap().contains("XDP")
}

/// Returns true if this process runs as root.
fn is_root() -> bool {
    std::fs::metadata("/proc/self").unwrap().uid() == 0
}

// promise: ports.1
#[test]
fn packets_pass_through_interfaces_of_the_kernel() {
    if !is_root() {
        println!("SKIPPED: making interfaces and raw sockets needs root");
        return;
    }
    let (first, second, third) = (Veth::new(0), Veth::new(1), Veth::new(2));
    // AF_PACKET devices at both ends of the first and the third pair. AF_PACKET and AF_XDP at the ends of the second.
    let mut devices = vec![
        format!("net_af_packet0,iface={}", first.0),
        format!("net_af_packet1,iface={}", first.1),
        format!("net_af_packet3,iface={}", third.0),
        format!("net_af_packet4,iface={}", third.1),
    ];
    if has_xdp() {
        devices.push(format!("net_af_packet2,iface={}", second.0));
        devices.push(format!("net_af_xdp0,iface={}", second.1));
    } else {
        println!("AF_XDP SKIPPED: this kernel has none");
    }
    let names: Vec<&str> = devices.iter().map(String::as_str).collect();
    let eal = Eal::init(&[], &names).unwrap();
    let pool = MbufPool::new(&eal, "packets", 8191).unwrap();
    overflow(&pool, exchange(&eal, &pool, &names[..2]));
    assert_eq!(pool.in_use(), 0, "every mbuf is back");
    vlans(&eal, &pool, &names[2..4]);
    assert_eq!(pool.in_use(), 0, "every mbuf is back");
    if let [af_packet, af_xdp] = names[4..] {
        // The AF_XDP driver leaks the mbufs in its fill queue on close (seen with DPDK 22.11). It therefore
        // has its own pool, which is not checked for leaks.
        let pool = MbufPool::new(&eal, "xdp", 8191).unwrap();
        drop(exchange(&eal, &pool, &[af_packet, af_xdp]));
    }
}

/// Opens two devices and exchanges packets between them, in both directions. Returns the devices with their queues.
fn exchange(eal: &Eal, pool: &MbufPool, names: &[&str]) -> Vec<(Device, Vec<QueuePort>)> {
    let options = DeviceOptions { promiscuous: true, ..DeviceOptions::default() };
    let open = |name: &&str| Device::open(eal, name, pool, &options).unwrap();
    let mut opened: Vec<(Device, Vec<QueuePort>)> = names.iter().map(open).collect();
    assert!(opened.iter().all(|(device, _)| device.mac() != [0; 6]), "the interface's address");
    let [(_, left), (_, right)] = opened.as_mut_slice() else { unreachable!("two names") };
    cross(pool, &mut left[0], &mut right[0]);
    cross(pool, &mut right[0], &mut left[0]);
    wake(pool, &mut left[0], &mut right[0]);
    wake(pool, &mut right[0], &mut left[0]);
    opened
}

/// Fills the kernel's ring without polls. Checks that the device counts the kernel's drops as missed. Packets in the
/// ring still arrive. A read of the kernel's counter resets it, so the device must keep the sum.
fn overflow(pool: &MbufPool, mut opened: Vec<(Device, Vec<QueuePort>)>) {
    let [(_, left), (device, right)] = opened.as_mut_slice() else { unreachable!("two names") };
    assert_eq!(device.stats().rx_missed, 0);
    let start = Instant::now();
    let mut out: Burst<Mbuf> = Burst::new();
    while device.stats().rx_missed == 0 {
        assert!(start.elapsed() < TIMEOUT, "{:?}", device.stats());
        while !out.is_full() {
            out.push(packet(pool, 1));
        }
        left[0].tx_burst(&mut out);
    }
    let mut back = Burst::new();
    while right[0].rx_burst(&mut back) == 0 {
        assert!(start.elapsed() < TIMEOUT, "nothing is in the ring");
    }
    let missed = device.stats().rx_missed;
    assert!(missed > 0 && device.stats().rx_missed >= missed, "asking again forgets nothing");
}

/// Sends packets from one port and checks that each arrives once at its peer, in order.
fn cross(pool: &MbufPool, from: &mut QueuePort, to: &mut QueuePort) {
    let start = Instant::now();
    let mut out: Burst<Mbuf> = Burst::new();
    let mut back = Burst::new();
    let (mut made, mut received) = (0, 0);
    while received < PACKETS {
        assert!(start.elapsed() < TIMEOUT, "{received} of {made} arrived");
        // At most 16 packets are on their way, so that no ring overflows.
        while made < PACKETS && made - received < 16 && !out.is_full() {
            out.push(packet(pool, made));
            made += 1;
        }
        from.tx_burst(&mut out);
        if to.rx_burst(&mut back) == 0 {
            std::thread::yield_now();
        }
        for mbuf in back.drain(..).filter(|mbuf: &Mbuf| mbuf.bytes()[12..14] == OURS) {
            assert_eq!(mbuf.bytes(), packet(pool, received).bytes());
            received += 1;
        }
    }
}

/// Checks that packets sent on a VLAN port carry its tag (0x8100, then the VLAN, 12) on the wire, and lose it on
/// receipt. The port frees all other packets and counts them in `rx_other_vlan`.
fn vlans(eal: &Eal, pool: &MbufPool, names: &[&str]) {
    let options = |vlan| DeviceOptions { promiscuous: true, vlan, ..DeviceOptions::default() };
    let open = |name, vlan| Device::open(eal, name, pool, &options(vlan)).unwrap();
    let ((device, mut inside), (_raw, mut outside)) =
        (open(names[0], Some(12)), open(names[1], None));
    let (inside, outside) = (&mut inside[0], &mut outside[0]);
    // Returns a packet with these bytes between its addresses and its EtherType.
    let tagged = |number: u8, tags: &[u8]| {
        let plain = packet(pool, number);
        let bytes = [&plain.bytes()[..12], tags, &plain.bytes()[12..]].concat();
        let mut mbuf = pool.handle().take().unwrap();
        assert!(mbuf.resize(bytes.len()));
        mbuf.bytes_mut().copy_from_slice(&bytes);
        mbuf
    };
    let start = Instant::now();
    let mut burst: Burst<Mbuf> = Burst::new();
    burst.push(packet(pool, 1));
    assert_eq!(inside.tx_burst(&mut burst), 1);
    let expected = tagged(1, &[0x81, 0, 0, 12]);
    while !burst.iter().any(|mbuf: &Mbuf| mbuf.bytes() == expected.bytes()) {
        assert!(start.elapsed() < TIMEOUT, "no packet with the tag");
        burst.clear();
        outside.rx_burst(&mut burst);
    }
    burst.clear();
    // Untagged, tag of another VLAN, tag of no VLAN (priority only), two tags, and the own tag with a
    // priority.
    let others = [packet(pool, 2), tagged(2, &[0x81, 0, 0, 13]), tagged(2, &[0x81, 0, 0xE0, 0])];
    burst.extend(others);
    burst.push(tagged(3, &[0x81, 0, 0, 12, 0x81, 0, 0, 12]));
    burst.push(tagged(4, &[0x81, 0, 0xE0, 12]));
    assert_eq!(outside.tx_burst(&mut burst), 5);
    let mut received: Vec<Vec<u8>> = Vec::new();
    while received.len() < 2 {
        assert!(start.elapsed() < TIMEOUT, "{received:02x?}");
        let before = burst.len();
        assert_eq!(inside.rx_burst(&mut burst), burst.len() - before);
        received.extend(burst.drain(..).map(|mbuf| mbuf.bytes().to_vec()));
    }
    let inner = tagged(3, &[0x81, 0, 0, 12]);
    assert_eq!(received, [inner.bytes(), packet(pool, 4).bytes()], "one tag was taken off each");
    assert!(device.stats().rx_other_vlan >= 3, "{:?}", device.stats());
}

/// Checks that each of 20 packets wakes a sleeper at the far end, and that it sleeps again without packets. A sleeper
/// is armed before the last empty poll, so that a packet between this poll and the sleep also wakes it.
fn wake(pool: &MbufPool, from: &mut QueuePort, to: &mut QueuePort) {
    let mut sleeper = Sleeper::new([&*to]).unwrap();
    let start = Instant::now();
    let mut burst: Burst<Mbuf> = Burst::new();
    let mut wakes = 0;
    // The kernel's own packets wake the sleeper too; there are few.
    while wakes < 20 || sleeper.sleep(Duration::from_millis(20)).is_device() {
        assert!(start.elapsed() < TIMEOUT, "{wakes} times woken");
        sleeper.arm();
        while to.rx_burst(&mut burst) > 0 {
            burst.clear();
        }
        if wakes < 20 {
            burst.push(packet(pool, 1));
            assert_eq!(from.tx_burst(&mut burst), 1);
            wakes += u32::from(sleeper.sleep(TIMEOUT).is_device());
        }
        sleeper.disarm();
    }
}

/// Returns a frame whose length and contents depend on `number`.
fn packet(pool: &MbufPool, number: u8) -> Mbuf {
    let mut mbuf = pool.handle().take().unwrap();
    assert!(mbuf.resize(64 + usize::from(number)));
    let bytes = mbuf.bytes_mut();
    bytes.fill(number);
    bytes[..6].fill(0xFF);
    bytes[6..12].copy_from_slice(&[2, 0, 0, 0, 0, 1]);
    bytes[12..14].copy_from_slice(&OURS);
    mbuf
}
