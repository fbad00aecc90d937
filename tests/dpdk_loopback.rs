//! EAL, pool, mbufs and ports in one process, without a NIC: a ring device that receives its own packets, a
//! null device, captures.
#![cfg(feature = "dpdk")]
#![allow(clippy::unwrap_used, reason = "a test")]

use std::io::{self, Write};
use std::time::Duration;

use wedjat::io::dpdk::{
    Device, DeviceError, DeviceOptions, Distributor, Eal, EalError, EventDevice, EventDeviceError,
    MbufPool, RssFields,
};
use wedjat::io::pcap::{read_frames, write_frames};
use wedjat::io::{Buf, Burst, Pool, Port};
use wedjat::limits::BURST;

/// Number of mbufs (packet buffers) of the pool; 2^n - 1 wastes no memory.
const MBUFS: u32 = 4095;

// EAL starts once per process. One test therefore runs all checks in turn.
// promise: ports.1
#[test]
fn mbufs_pass_through_devices_and_all_come_back() {
    let folder = tempfile::tempdir().unwrap();
    let (source, sink) = (folder.path().join("source.pcap"), folder.path().join("sink.pcap"));
    write_frames(&source, captured()).unwrap();
    let (rx, tx) = (source.display(), sink.display());
    let devices = [
        "net_ring0,",
        "net_null0,size=64",
        "net_null1,size=64",
        &format!("net_pcap0,rx_pcap={rx},tx_pcap={tx}"),
        &format!("net_pcap1,rx_pcap={rx},infinite_rx=1"),
    ];
    let eal = Eal::init(&[], &devices).unwrap();
    assert!(eal.ticks_hz() > 1_000_000);
    assert!(eal.now() < eal.now());
    let again = Eal::init(&[], &[]);
    assert!(matches!(again, Err(EalError::Init { .. })), "a second start must be refused");

    let pool = MbufPool::new(&eal, "packets", MBUFS).unwrap();
    assert_eq!(pool.in_use(), 0);
    assert!(MbufPool::new(&eal, "packets", MBUFS).is_err(), "the name is taken");
    assert!(MbufPool::new(&eal, "huge", u32::MAX / 2).is_err(), "more than EAL has");

    spread(&pool);
    lengths(&pool);
    segments(&pool);
    absent(&eal, &pool);
    loopback(&eal, &pool);
    null(&eal, &pool);
    outlets(&eal, &pool);
    undersized_pool(&eal);
    event_devices(&eal);
    capture(&eal, &pool);
    assert_eq!(read_frames(&sink).unwrap(), captured().collect::<Vec<_>>());
    replay(&eal, &pool);
    another_thread(&eal, &pool);
    exhaustion(&pool);
    assert_eq!(pool.in_use(), 0, "every mbuf is back");
}

/// Checks that mbufs start at different offsets within a page. Without hugepages, DPDK would start each mbuf on a page
/// of its own, and their first lines would compete for one cache set. [`MbufPool`] packs them densely.
fn spread(pool: &MbufPool) {
    let mbufs: Vec<_> = std::iter::from_fn(|| pool.handle().take()).take(32).collect();
    let mut places: Vec<usize> =
        mbufs.iter().map(|mbuf| mbuf.bytes().as_ptr() as usize % 4096 / 64).collect();
    places.sort_unstable();
    places.dedup();
    assert!(places.len() >= 16, "{places:?}");
}

/// Checks that an mbuf has any length up to its buffer's 2048 bytes, and counts as in use.
fn lengths(pool: &MbufPool) {
    let mut mbuf = pool.handle().take().unwrap();
    assert!(mbuf.bytes().is_empty());
    assert!(mbuf.resize(60));
    mbuf.bytes_mut().fill(7);
    assert!(mbuf.resize(62), "grows in place");
    assert_eq!(mbuf.bytes()[..60], [7; 60]);
    assert!(mbuf.resize(2048));
    assert!(!mbuf.resize(2049), "longer than the buffer");
    assert_eq!(mbuf.bytes().len(), 2048, "a refused length changes nothing");
    assert!(mbuf.resize(0));
    assert!(!mbuf.checksums_verified());
    assert_eq!(pool.in_use(), 1);
}

/// Checks a chain of two mbufs.
fn segments(pool: &MbufPool) {
    let mut head = pool.handle().take().unwrap();
    let tail = pool.handle().take().unwrap();
    assert!(!head.is_segmented());
    assert!(head.chain(tail).is_ok());
    assert!(head.is_segmented());
    assert!(!head.resize(10), "a chain cannot be resized");
    drop(head);
    assert_eq!(pool.in_use(), 0, "a chain returns whole");
    // A chain becomes one segment if that has room.
    for (head_len, fits) in [(60, true), (2048, false)] {
        let (mut head, mut tail) = (pool.handle().take().unwrap(), pool.handle().take().unwrap());
        assert!(head.resize(head_len) && tail.resize(20));
        head.bytes_mut().fill(7);
        tail.bytes_mut().fill(8);
        assert!(head.chain(tail).is_ok());
        assert_eq!((head.linearise(), head.is_segmented()), (fits, !fits));
        assert!(!fits || head.bytes() == [[7; 60].as_slice(), &[8; 20]].concat());
    }
    assert_eq!(pool.in_use(), 0);
}

/// Checks the errors for a device that does not exist, and for zero queues.
fn absent(eal: &Eal, pool: &MbufPool) {
    let Err(error) = Device::open(eal, "net_none9", pool, &DeviceOptions::default()) else {
        panic!("a missing device was opened")
    };
    let text = error.to_string();
    assert!(text.contains("net_none9") && text.contains("net_ring0"), "{text}");
    let none = DeviceOptions { queues: 0, ..DeviceOptions::default() };
    let refused = Device::open(eal, "net_ring0", pool, &none);
    assert!(matches!(refused, Err(DeviceError::Queues { asked: 0, .. })));
}

/// Returns packets of 60 equal bytes, one for each byte.
fn packets(pool: &MbufPool, bytes: impl IntoIterator<Item = u8>) -> Burst<wedjat::io::dpdk::Mbuf> {
    let mut handle = pool.handle();
    let packet = |byte| {
        let mut mbuf = handle.take().unwrap();
        assert!(mbuf.resize(60));
        mbuf.bytes_mut().fill(byte);
        mbuf
    };
    bytes.into_iter().map(packet).collect()
}

/// Checks that a ring device returns all packets in order, and takes no more than its ring holds.
fn loopback(eal: &Eal, pool: &MbufPool) {
    let (device, mut ports) =
        Device::open(eal, "net_ring0", pool, &DeviceOptions::default()).unwrap();
    assert_eq!((device.name(), device.driver()), ("net_ring0", "net_ring"));
    let port = &mut ports[0];
    let mut burst = packets(pool, 0..20);
    assert_eq!(port.tx_burst(&mut burst), 20);
    assert!(burst.is_empty());
    assert_eq!(pool.in_use(), 20);
    burst = packets(pool, [99]);
    assert_eq!(port.rx_burst(&mut burst), 20, "received behind the packet in the burst");
    let firsts: Vec<u8> = burst.iter().map(|mbuf| mbuf.bytes()[0]).collect();
    assert_eq!(firsts[0], 99);
    assert_eq!(firsts[1..], (0..20).collect::<Vec<u8>>());
    assert_eq!(burst[20].bytes(), [19; 60]);

    // A full ring leaves the rest with the sender, in order.
    burst.clear();
    let mut sent = 0u32;
    loop {
        // Each packet has its number, modulo 256, in all bytes.
        let base = sent as u8;
        burst.extend(packets(pool, (0..BURST as u8).map(|i| base.wrapping_add(i))));
        let accepted = port.tx_burst(&mut burst);
        sent += accepted as u32;
        if accepted < BURST {
            assert_eq!(burst.len(), BURST - accepted);
            let left: Vec<u8> = burst.iter().map(|mbuf| mbuf.bytes()[0]).collect();
            let expected: Vec<u8> = (accepted..BURST).map(|i| base.wrapping_add(i as u8)).collect();
            assert_eq!(left, expected);
            break;
        }
        burst.clear();
    }
    burst.clear();
    let mut received = 0u32;
    while port.rx_burst(&mut burst) > 0 {
        for mbuf in burst.drain(..) {
            assert_eq!(mbuf.bytes()[0], received as u8);
            received += 1;
        }
    }
    assert_eq!(received, sent);
    assert_eq!(device.stats().tx_packets, u64::from(sent) + 20);
    drop((device, ports));
    assert_eq!(pool.in_use(), 0);
}

/// Checks two queues of the null device, which always has packets to receive, and drops sent packets.
fn null(eal: &Eal, pool: &MbufPool) {
    let rss = RssFields::Source;
    let two = DeviceOptions { queues: 2, promiscuous: true, rss, ..DeviceOptions::default() };
    let (device, mut ports) = Device::open(eal, "net_null0,size=64", pool, &two).unwrap();
    assert_eq!(ports.len(), 2);
    // The request for the source alone is not met: this device supports RSS over the four-tuple only.
    assert_eq!(device.rss(), Some(RssFields::FourTuple));
    let mut burst = Burst::new();
    for port in &mut ports {
        assert_eq!(port.rx_burst(&mut burst), BURST);
        assert_eq!(port.rx_burst(&mut burst), 0, "no room");
        assert!(burst.iter().all(|mbuf| mbuf.bytes().len() == 64));
        assert_eq!(port.tx_burst(&mut burst), BURST);
    }
    assert!(device.link().up);
    assert_eq!(device.stats().rx_packets, 2 * BURST as u64);
    drop((device, ports));
    assert_eq!(pool.in_use(), 0);
}

/// Checks outlets: additional transmit queues, for the replies of an agent's worker threads. A restart needs them, too.
fn outlets(eal: &Eal, pool: &MbufPool) {
    let options = DeviceOptions { outlets: 2, ..DeviceOptions::default() };
    let (device, mut ports, mut outlets) =
        Device::open_with_outlets(eal, "net_null1,size=64", pool, &options).unwrap();
    assert_eq!((ports.len(), outlets.len()), (1, 2));
    let without = device.restart(&mut ports, Duration::ZERO);
    assert!(matches!(without, Err(DeviceError::Ports { queues: 3, given: 1, .. })), "{without:?}");
    device.restart_with_outlets(&mut ports, &mut outlets, Duration::ZERO).unwrap();
    let mut burst = Burst::new();
    assert_eq!(ports[0].rx_burst(&mut burst), BURST);
    assert_eq!(outlets[1].tx_burst(&mut burst), BURST);
    drop((device, ports, outlets));
    assert_eq!(pool.in_use(), 0);
}

/// Checks that a distributor refuses a pool of fewer than eight mbufs, and keeps none. The distributor is DPDK's
/// library for spreading packets over lcores. A benchmark measures its round trips with eight tasks in flight.
fn undersized_pool(eal: &Eal) {
    let small = MbufPool::new(eal, "small", 4).unwrap();
    let error = Distributor::new(eal, &small).err().unwrap().to_string();
    assert!(error.contains("needs 8 mbufs, and its pool has 4"), "{error}");
    assert_eq!(small.in_use(), 0);
}

/// Checks that the worker of an event device returns all tasks, and that an error names the package of an absent
/// driver. A benchmark measures the round trips of eight tasks in flight.
fn event_devices(eal: &Eal) {
    for (name, needs_scheduler) in [("event_dsw0", false), ("event_sw0", true)] {
        match EventDevice::new(eal, name) {
            Ok(mut device) => {
                assert_eq!(device.needs_scheduler(), needs_scheduler);
                // A second measurement starts without tasks of the first. 1001 is no multiple of the depth.
                for tasks in [1001, 1] {
                    assert!(device.measure(tasks, || ()).unwrap() > Duration::ZERO);
                }
            }
            Err(
                error @ (EventDeviceError::Missing { .. } | EventDeviceError::Unsupported { .. }),
            ) => {
                let _ = writeln!(io::stderr(), "event_devices: SKIPPED, {error}");
            }
            Err(error) => panic!("{error}"),
        }
    }
    let error = EventDevice::new(eal, "event_none3").err().unwrap().to_string();
    assert!(error.starts_with("event_none3 is not available: "), "{error}");
    let is_unsupported = error.contains("without event devices");
    assert!(is_unsupported || error.ends_with("'librte-event-none*')"), "{error}");
}

/// Returns frames of different lengths and contents.
fn captured() -> impl Iterator<Item = Vec<u8>> {
    (0..100u8).map(|byte| vec![byte; 60 + usize::from(byte) * 10])
}

/// Passes the packets of one capture into another, which the caller reads once the device is closed.
fn capture(eal: &Eal, pool: &MbufPool) {
    let (device, mut ports) =
        Device::open(eal, "net_pcap0", pool, &DeviceOptions::default()).unwrap();
    let mut burst = Burst::new();
    while ports[0].rx_burst(&mut burst) > 0 {
        while ports[0].tx_burst(&mut burst) > 0 {}
        assert!(burst.is_empty());
    }
    drop((device, ports));
    assert_eq!(pool.in_use(), 0);
}

/// Checks a capture in an endless loop, as benchmarks use it.
fn replay(eal: &Eal, pool: &MbufPool) {
    let (device, mut ports) =
        Device::open(eal, "net_pcap1", pool, &DeviceOptions::default()).unwrap();
    let expected: Vec<Vec<u8>> = captured().collect();
    let mut burst = Burst::new();
    let mut received = 0;
    while received < 3 * expected.len() {
        assert!(ports[0].rx_burst(&mut burst) > 0);
        for mbuf in burst.drain(..) {
            assert_eq!(mbuf.bytes(), expected[received % expected.len()]);
            received += 1;
        }
    }
    drop((device, ports));
    assert_eq!(pool.in_use(), 0);
}

/// Checks that a second thread may take mbufs, and that the first may free them after the second has ended.
fn another_thread(eal: &Eal, pool: &MbufPool) {
    let _already_known = eal.register_thread().unwrap();
    let (eal, ours) = (eal.clone(), pool.clone());
    let thread = std::thread::spawn(move || {
        let lcore = eal.register_thread().unwrap();
        let held = packets(&ours, 0..BURST as u8);
        assert_eq!(ours.in_use(), BURST);
        drop(lcore);
        held
    });
    let held = thread.join().unwrap();
    assert_eq!(pool.in_use(), BURST);
    drop(held);
    assert_eq!(pool.in_use(), 0);
}

/// Takes mbufs until the pool is empty. Checks that another request then fails.
fn exhaustion(pool: &MbufPool) {
    let mut handle = pool.handle();
    let all: Vec<_> = std::iter::from_fn(|| handle.take()).collect();
    assert!(all.len() > MBUFS as usize * 3 / 4, "caches of other threads hold at most a quarter");
    assert!(handle.take().is_none());
    assert_eq!(pool.in_use(), all.len());
}
