//! Two DPDK processes joined by memif or vhost (network devices in shared memory): packets cross,
//! and a dead peer can return. Of a memif pair, the server opens a socket, and the client connects to it.
//!
//! EAL starts once per process, so the test starts itself again as its peer. It therefore has its own `main`.
#![allow(clippy::unwrap_used, reason = "a test")]

#[cfg(not(feature = "dpdk"))]
fn main() {
    println!("dpdk_peers: SKIPPED, built without the feature dpdk");
}

// promise: ports.1, ports.2, running.1
#[cfg(feature = "dpdk")]
fn main() {
    match std::env::args().nth(1).as_deref() {
        Some("peer") => peer::run(&std::env::args().nth(2).unwrap()),
        Some("pairs") => peer::open_and_close_pairs(),
        Some("--list") => println!("dpdk_peers: test"),
        _ => peers::run(),
    }
}

#[cfg(feature = "dpdk")]
mod timeouts;

#[cfg(feature = "dpdk")]
mod peers {
    use std::path::PathBuf;
    use std::process::{Child, Command, Stdio};
    use std::time::{Duration, Instant};

    use wedjat::io::dpdk::{
        Device, DeviceError, DeviceOptions, Eal, Mbuf, MbufPool, QueuePort, Sleeper,
    };
    use wedjat::io::{Buf, Burst, Pool, Port};

    use super::siege;
    use super::timeouts::{TIMEOUT, wait_until};

    /// Runs all checks in turn. Each has its own device of this process, and a peer process at its far end.
    pub fn run() {
        let socket = |end| format!("@wedjat-test-{}-{end}", std::process::id());
        // Names of a device of this process, and of a peer's device at its far end.
        let ours = |end, role| format!("net_memif{end},role={role},socket={}", socket(end));
        let theirs = |role, end| format!("net_memif0,role={role},socket={}", socket(end));
        let folder = tempfile::tempdir().unwrap();
        let vhost = folder.path().join("vhost").display().to_string();
        let devices = [
            ours(0, "server"),
            ours(1, "client"),
            ours(2, "client"),
            ours(3, "server"),
            ours(4, "client"),
            format!("net_vhost0,iface={vhost},queues=1"),
            ours(6, "client"),
            ours(7, "server"),
            ours(8, "client"),
        ];
        let names: Vec<&str> = devices.iter().map(String::as_str).collect();
        let eal = Eal::init(&[], &names).unwrap();
        let pool = MbufPool::new(&eal, "packets", 4095).unwrap();

        println!("a server: its client comes, dies, comes back and leaves");
        let (device, ports) = open(&eal, &devices[0], &pool, TIMEOUT).unwrap();
        let mut wire = Wire { ports, device, pool: pool.clone() };
        assert!(!wire.device.link().up, "no peer yet");
        assert_eq!(wire.send(1), 0, "no peer takes it");
        let peer = theirs("client", 0);
        let first = visit(&mut wire, &peer);
        assert_eq!(wire.device.disconnects(), 0);
        let folder_of_first = sockets_of(first.id());
        kill(&mut wire, first);
        assert!(folder_of_first.exists(), "a killed process leaves its driver's folder");
        let second = visit(&mut wire, &peer);
        assert!(!folder_of_first.exists(), "the next process removes it");
        say_goodbye(&mut wire, second);
        wire.wait_for_disconnects(2);
        drop(wire);
        assert_eq!(pool.in_use(), 0, "every mbuf is back");

        println!("a client: its server is late, dies, comes back and leaves");
        let alone = open(&eal, &devices[2], &pool, Duration::from_millis(50));
        assert!(matches!(alone, Err(DeviceError::NoPeer { .. })));
        let peer = theirs("server", 1);
        let late = std::thread::spawn({
            let peer = peer.clone();
            move || {
                std::thread::sleep(Duration::from_millis(200));
                spawn(&peer)
            }
        });
        let (device, ports) = open(&eal, &devices[1], &pool, TIMEOUT).unwrap();
        let mut wire = Wire { ports, device, pool: pool.clone() };
        wire.wait_for_link(true);
        wire.echo(1000);
        kill(&mut wire, late.join().unwrap());
        assert!(matches!(wire.device.restart(&mut [], TIMEOUT), Err(DeviceError::Ports { .. })));
        let again = wire.device.restart(&mut wire.ports, Duration::ZERO);
        assert!(matches!(again, Err(DeviceError::NoPeer { .. })));
        let second = spawn(&peer);
        wire.device.restart(&mut wire.ports, TIMEOUT).unwrap();
        wire.wait_for_link(true);
        wire.echo(1000);
        say_goodbye(&mut wire, second);
        drop(wire);
        assert_eq!(pool.in_use(), 0, "every mbuf is back");

        println!("memif, from both ends: a reader that sleeps is woken, and then sleeps on");
        let peer = theirs("client", 7);
        let (device, ports) = open(&eal, &devices[7], &pool, TIMEOUT).unwrap();
        let mut wire = Wire { ports, device, pool: pool.clone() };
        let mut sleeper = Sleeper::new(&wire.ports).unwrap();
        sleeper.arm();
        let client = spawn(&peer);
        assert!(sleeper.sleep(TIMEOUT).is_device(), "a new peer wakes a sleeper");
        drop(sleeper);
        wire.wait_for_link(true);
        wire.sleep_between_answers();
        say_goodbye(&mut wire, client);
        drop(wire);
        let mut server = spawn(&theirs("server", 8));
        let (device, ports) = open(&eal, &devices[8], &pool, TIMEOUT).unwrap();
        let mut wire = Wire { ports, device, pool: pool.clone() };
        wire.wait_for_link(true);
        wire.sleep_between_answers();
        // A new peer has new rings.
        kill(&mut wire, server);
        server = spawn(&theirs("server", 8));
        wire.device.restart(&mut wire.ports, TIMEOUT).unwrap();
        wire.wait_for_link(true);
        wire.sleep_between_answers();
        say_goodbye(&mut wire, server);
        drop(wire);
        assert_eq!(pool.in_use(), 0, "every mbuf is back");

        println!("vhost: clients die under load, one after the other");
        let (device, ports) = open(&eal, &devices[5], &pool, TIMEOUT).unwrap();
        let wire = Wire { ports, device, pool: pool.clone() };
        let peer = format!("net_virtio_user0,path={vhost},queues=1,queue_size=256");
        die_under_load(wire, &peer);
        assert_eq!(pool.in_use(), 0, "every mbuf is back");

        println!("memif: clients die under load, one after the other");
        let (device, ports) = open(&eal, &devices[3], &pool, TIMEOUT).unwrap();
        die_under_load(Wire { ports, device, pool: pool.clone() }, &theirs("client", 3));
        assert_eq!(pool.in_use(), 0, "every mbuf is back");

        println!("memif: servers die under load, one after the other");
        let peer = theirs("server", 4);
        let mut server = spawn(&peer);
        let (device, ports) = open(&eal, &devices[4], &pool, TIMEOUT).unwrap();
        let mut wire = Wire { ports, device, pool: pool.clone() };
        for _ in 0..8 {
            wire.wait_for_link(true);
            wire.echo(1000);
            kill_under_load(&mut wire, server);
            server = spawn(&peer);
            wire.device.restart(&mut wire.ports, TIMEOUT).unwrap();
        }
        wire.wait_for_link(true);
        say_goodbye(&mut wire, server);
        drop(wire);
        assert_eq!(pool.in_use(), 0, "every mbuf is back");

        println!("memif: a server of few descriptors, with an honest client and many hostile ones");
        let mut command = peer_command(&theirs("server", 6));
        let server = command.env("WEDJAT_TEST_DESCRIPTORS", "160").spawn().unwrap();
        let (device, ports) = open(&eal, &devices[6], &pool, TIMEOUT).unwrap();
        let mut wire = Wire { ports, device, pool: pool.clone() };
        let before = siege::counts(server.id());
        let attack = std::thread::spawn({
            let (socket, server) = (socket(6), server.id());
            move || siege::lay(&socket, server)
        });
        let mut visits = 0;
        while !attack.is_finished() || visits < 3 {
            wire.wait_for_link(true);
            wire.echo(1000);
            wire.wait_for_disconnects(visits);
            wire.device.restart(&mut wire.ports, TIMEOUT).unwrap();
            visits += 1;
        }
        let peak = attack.join().unwrap();
        // At most two more threads than before, however many clients connect.
        assert!(
            peak.0 <= 160 && peak.1 <= before.1 + 2,
            "descriptors and threads: {before:?}, {peak:?}"
        );
        wire.wait_for_link(true);
        wire.echo(1000);
        siege::wait_for(server.id(), before);
        say_goodbye(&mut wire, server);
        drop(wire);
        assert_eq!(pool.in_use(), 0, "every mbuf is back");

        println!("memif: both ends in one process, closed one right after the other");
        let own = std::env::current_exe().unwrap();
        let output = Command::new(own).arg("pairs").output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        let is_success = output.status.success() && !stderr.contains("Invalid memory");
        assert!(is_success, "{}: {stderr}", output.status);
        println!("dpdk_peers: ok");
    }

    /// Lets eight clients connect and die under load, in turn. A last client leaves in order.
    fn die_under_load(mut wire: Wire, peer: &str) {
        for _ in 0..8 {
            let peer = visit(&mut wire, peer);
            kill_under_load(&mut wire, peer);
        }
        let last = visit(&mut wire, peer);
        say_goodbye(&mut wire, last);
    }

    /// Kills the peer while this process sends to it, and waits until the link is down.
    fn kill_under_load(wire: &mut Wire, mut peer: Child) {
        let killer = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(20));
            peer.kill().unwrap();
            peer.wait().unwrap();
        });
        let start = Instant::now();
        let mut burst = Burst::new();
        while wire.device.link().up {
            assert!(start.elapsed() < TIMEOUT, "the link stays up without a peer");
            wire.send(32);
            wire.ports[0].rx_burst(&mut burst);
            burst.clear();
        }
        killer.join().unwrap();
    }

    /// Opens a device, and waits this long for its peer.
    fn open(
        eal: &Eal,
        device: &str,
        pool: &MbufPool,
        wait_for_peer: Duration,
    ) -> Result<(Device, Vec<QueuePort>), DeviceError> {
        Device::open(eal, device, pool, &DeviceOptions { wait_for_peer, ..Default::default() })
    }

    /// Starts a peer and exchanges packets with it.
    fn visit(wire: &mut Wire, peer: &str) -> Child {
        let child = spawn(peer);
        wire.wait_for_link(true);
        wire.echo(1000);
        child
    }

    /// Kills the peer and waits until the link is down.
    fn kill(wire: &mut Wire, mut peer: Child) {
        peer.kill().unwrap();
        peer.wait().unwrap();
        wire.wait_for_link(false);
        assert_eq!(wire.send(1), 0, "no peer takes it");
    }

    /// Ends the peer in order, by the end of its standard input, and waits until the link is down.
    fn say_goodbye(wire: &mut Wire, mut peer: Child) {
        drop(peer.stdin.take());
        assert!(peer.wait().unwrap().success(), "the peer found something wrong");
        wire.wait_for_link(false);
    }

    /// Starts a peer process with this device.
    fn spawn(device: &str) -> Child {
        peer_command(device).spawn().unwrap()
    }

    /// Returns the command of this program as a peer with this device.
    fn peer_command(device: &str) -> Command {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["peer", device]).stdin(Stdio::piped());
        command
    }

    /// Returns the folder of a process's driver sockets. Repeats the library's choice of the folder above it.
    fn sockets_of(process: u32) -> PathBuf {
        let user = rustix::process::geteuid().as_raw();
        let home = match std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from) {
            _ if user == 0 => PathBuf::from("/run/wedjat"),
            Some(given) if given.is_dir() => given.join("wedjat"),
            _ => PathBuf::from(format!("/tmp/wedjat-{user}")),
        };
        home.join(format!("memif-{process}.0"))
    }

    /// This process's end of a wire to a peer.
    struct Wire {
        /// The device's only queue.
        ports: Vec<QueuePort>,
        /// The device at this end.
        device: Device,
        /// Buffers for sent packets.
        pool: MbufPool,
    }

    impl Wire {
        /// Waits until the link is up or down. Discards received packets.
        fn wait_for_link(&mut self, up: bool) {
            let start = Instant::now();
            let mut burst = Burst::new();
            while self.device.link().up != up {
                assert!(start.elapsed() < TIMEOUT, "the link never became up = {up}");
                self.ports[0].rx_burst(&mut burst);
                burst.clear();
                std::thread::sleep(Duration::from_millis(1));
            }
        }

        /// Waits until `count` connections have ended, and checks that no more have. The driver handles a
        /// peer's disconnect message in its own thread. The link may therefore be down before the connection
        /// is counted as ended.
        fn wait_for_disconnects(&self, count: u64) {
            let ended = || self.device.disconnects() >= count;
            wait_until(&format!("{count} connections have ended"), ended);
            assert_eq!(self.device.disconnects(), count, "an honest peer was cut off");
        }

        /// Sleeps until the peer's answer, several times. After the last answer, nothing may wake the
        /// sleeper.
        fn sleep_between_answers(&mut self) {
            let mut sleeper = Sleeper::new(&self.ports).unwrap();
            let start = Instant::now();
            let (mut wakes, mut quiet, mut burst) = (0, 0, Burst::new());
            while wakes < 20 || quiet < 5 {
                assert!(start.elapsed() < TIMEOUT, "{wakes} times woken, {quiet} times not");
                sleeper.arm();
                // The first 20 rounds send a packet; the last 5 expect that nothing wakes the sleeper.
                let mut unanswered = if wakes < 20 { self.send(1) } else { 0 };
                let longest = Duration::from_millis(if unanswered > 0 { 10_000 } else { 20 });
                unanswered -= self.ports[0].rx_burst(&mut burst);
                if sleeper.sleep(longest).is_device() {
                    (wakes, quiet) = (wakes + 1, 0);
                } else {
                    assert_eq!(unanswered, 0, "no answer woke the sleeper");
                    quiet += u32::from(wakes >= 20);
                }
                sleeper.disarm();
                // The event of an earlier answer may have ended the sleep.
                while unanswered > 0 {
                    assert!(start.elapsed() < TIMEOUT, "an answer is missing");
                    unanswered -= self.ports[0].rx_burst(&mut burst);
                    burst.clear();
                }
                burst.clear();
            }
        }

        /// Sends `count` packets at once. Returns the number accepted.
        fn send(&mut self, count: u32) -> usize {
            let mut burst: Burst<Mbuf> = (0..count).map(|number| self.packet(number)).collect();
            self.ports[0].tx_burst(&mut burst)
        }

        /// Returns a packet of 60 bytes with this number at its start.
        fn packet(&self, number: u32) -> Mbuf {
            let mut mbuf = self.pool.handle().take().unwrap();
            assert!(mbuf.resize(60));
            mbuf.bytes_mut().fill(0);
            mbuf.bytes_mut()[..4].copy_from_slice(&number.to_be_bytes());
            mbuf
        }

        /// Sends numbered packets, a few at a time. Checks that each comes back in order, inverted by the
        /// peer.
        fn echo(&mut self, count: u32) {
            let start = Instant::now();
            let (mut sent, mut received) = (0, 0);
            let mut out = Burst::new();
            let mut back: Burst<Mbuf> = Burst::new();
            while received < count {
                assert!(start.elapsed() < TIMEOUT, "{received} of {sent} came back");
                while sent < count && sent - received < 64 && !out.is_full() {
                    out.push(self.packet(sent));
                    sent += 1;
                }
                self.ports[0].tx_burst(&mut out);
                if self.ports[0].rx_burst(&mut back) == 0 {
                    std::thread::yield_now();
                }
                for mbuf in back.drain(..) {
                    assert_eq!(mbuf.bytes().len(), 60);
                    assert_eq!(mbuf.bytes()[..4], (!received).to_be_bytes());
                    received += 1;
                }
            }
        }
    }
}

#[cfg(feature = "dpdk")]
mod peer {
    use std::io::Read;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use wedjat::io::dpdk::{Device, DeviceOptions, Eal, MbufPool};
    use wedjat::io::{Buf, Burst, Pool, Port};

    use super::timeouts::TIMEOUT;

    /// Opens and closes several pairs of ends in this process. The driver frees the resources of one end
    /// while its peer closes.
    pub fn open_and_close_pairs() {
        let end = |at: usize| {
            let role = ["server", "client"][at % 2];
            let socket = format!("@wedjat-test-{}-pair{}", std::process::id(), at / 2);
            format!("net_memif{at},role={role},socket={socket}")
        };
        let devices: Vec<_> = (0..16).map(end).collect();
        let names: Vec<_> = devices.iter().map(String::as_str).collect();
        let eal = Eal::init(&[], &names).unwrap();
        let pool = MbufPool::new(&eal, "packets", 4095).unwrap();
        let options = DeviceOptions::with_peer_timeout(Some(TIMEOUT));
        let open = |name: &&str| {
            let (device, mut ports) = Device::open(&eal, name, &pool, &options).unwrap();
            if name.contains("role=client") {
                let mut burst: Burst<_> = pool.handle().take().into_iter().collect();
                assert_eq!(ports[0].tx_burst(&mut burst), 1, "an open client sends at once");
            }
            device
        };
        let opened: Vec<_> = names.iter().map(open).collect();
        assert!(opened.iter().skip(1).step_by(2).all(|client| client.link().up));
        drop(opened);
        assert_eq!(pool.in_use(), 0, "every mbuf is back");
    }

    /// Runs a peer process: inverts the first four bytes of received packets, and sends the packets back, until
    /// standard input is closed.
    pub fn run(device: &str) {
        if let Some(most) =
            std::env::var("WEDJAT_TEST_DESCRIPTORS").ok().and_then(|text| text.parse().ok())
        {
            let limit = rustix::process::Rlimit { current: Some(most), maximum: Some(most) };
            rustix::process::setrlimit(rustix::process::Resource::Nofile, limit).unwrap();
        }
        let eal = Eal::init(&[], &[device]).unwrap();
        let pool = MbufPool::new(&eal, "packets", 4095).unwrap();
        let options = DeviceOptions::with_peer_timeout(Some(TIMEOUT));
        let (opened, mut ports) = Device::open(&eal, device, &pool, &options).unwrap();
        let over = Arc::new(AtomicBool::new(false));
        let signal = Arc::clone(&over);
        std::thread::spawn(move || {
            let _ = std::io::stdin().read(&mut [0]);
            signal.store(true, Ordering::Release);
        });
        let mut burst = Burst::new();
        while !over.load(Ordering::Acquire) {
            if ports[0].rx_burst(&mut burst) == 0 {
                std::thread::yield_now();
            }
            for mbuf in &mut burst {
                mbuf.bytes_mut()[..4].iter_mut().for_each(|byte| *byte = !*byte);
            }
            // A ring has no room before its reader has polled for the first time. An answer is dropped only if its
            // reader has left.
            while ports[0].tx_burst(&mut burst) > 0
                || (!burst.is_empty() && opened.link().up && !over.load(Ordering::Acquire))
            {
                std::thread::yield_now();
            }
            burst.clear();
        }
        drop((opened, ports));
        assert_eq!(pool.in_use(), 0, "every mbuf is back");
    }
}

/// Hostile clients of a memif server.
#[cfg(feature = "dpdk")]
mod siege {
    use std::mem::MaybeUninit;
    use std::os::fd::{AsFd, OwnedFd};
    use std::time::{Duration, Instant};

    use super::timeouts::TIMEOUT;
    use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
    use rustix::net::{
        AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix,
        SocketType,
    };

    /// Bytes of a client's memory region.
    const REGION: u64 = 1 << 16;
    /// Number of hostile clients.
    const CONNECTIONS: u64 = 3000;
    /// Maximum number of hostile clients connected at a time.
    const AT_ONCE: usize = 64;

    /// Returns the number of descriptors and of threads of a process.
    pub fn counts(process: u32) -> (usize, usize) {
        let count = |what: &str| {
            std::fs::read_dir(format!("/proc/{process}/{what}"))
                .map_or(0, |entries| entries.count())
        };
        (count("fd"), count("task"))
    }

    /// Waits until a process has no more descriptors than before.
    pub fn wait_for(process: u32, before: (usize, usize)) {
        let began = Instant::now();
        while counts(process).0 > before.0 {
            let now = counts(process);
            assert!(began.elapsed() < TIMEOUT, "the server keeps {now:?}, of {before:?} before");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Connects `CONNECTIONS` hostile clients of all kinds, a few at a time. Returns the maximum of the server's
    /// descriptors and threads meanwhile.
    pub fn lay(socket: &str, server: u32) -> (usize, usize) {
        let address = SocketAddrUnix::new_abstract_name(socket.as_bytes()).unwrap();
        let mut peak = (0, 0);
        let mut open = std::collections::VecDeque::new();
        for number in 0..CONNECTIONS {
            let peer =
                rustix::net::socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).unwrap();
            rustix::net::connect(&peer, &address).unwrap();
            misbehave(&peer, number);
            let now = counts(server);
            peak = (now.0.max(peak.0), now.1.max(peak.1));
            open.push_back(peer);
            // Each client replaces the oldest one, which disconnects. Every 256th replaces none, so the number of
            // connected clients grows from 1 to 12.
            if number % 256 != 0 || open.len() > AT_ONCE {
                open.pop_front();
            }
        }
        peak
    }

    /// Violates the protocol in one of eight ways, by `number`. Kinds of messages are 3 (init), 4 (region), 5 (ring)
    /// and 6 (connect).
    fn misbehave(peer: &OwnedFd, number: u64) {
        // Version 2.0 of memif.
        let init = message(3, &[(2, &0x200_u16.to_ne_bytes())]);
        let region = |bytes: u64, index: u16| {
            message(4, &[(2, &index.to_ne_bytes()), (4, &bytes.to_ne_bytes())])
        };
        let ring = |flags: u16, offset: u32, log2: u8| {
            message(5, &[(2, &flags.to_ne_bytes()), (8, &offset.to_ne_bytes()), (12, &[log2])])
        };
        let memory = memory();
        let connect = message(6, &[]);
        match number % 8 {
            // Silence.
            0 => {}
            // A region without an init.
            1 => send_message(peer, &message(4, &[]), Some(&memory)),
            // The region is longer than its file: the driver would look for its rings beyond the end.
            2 => {
                send_message(peer, &init, None);
                send_message(peer, &region(1 << 30, 0), Some(&memory));
                send_message(peer, &ring(1, (1 << 29) as u32, 10), Some(&memory));
                send_message(peer, &ring(0, (1 << 29) as u32, 10), Some(&memory));
                send_message(peer, &connect, None);
            }
            // Rings outside the region.
            3 => {
                send_message(peer, &init, None);
                send_message(peer, &region(REGION, 0), Some(&memory));
                send_message(peer, &ring(1, u32::MAX - 3, 14), Some(&memory));
                send_message(peer, &ring(0, 0, 14), Some(&memory));
                send_message(peer, &connect, None);
            }
            // More descriptors than a client may pass.
            4 => {
                send_message(peer, &init, None);
                (0..64).for_each(|index| send_message(peer, &region(REGION, index), Some(&memory)));
            }
            // The client disconnects halfway.
            5 => {
                send_message(peer, &init, None);
                send_message(peer, &region(REGION, 0), Some(&memory));
                send_message(peer, &ring(1, 0, 4), Some(&memory));
            }
            // A first message of kind 6 or 14, 22 and so on, which do not exist.
            6 => send_message(
                peer,
                &message(number as u16, &[(2, &number.to_ne_bytes())]),
                Some(&memory),
            ),
            // Arbitrary bytes, fewer than 300.
            _ => {
                let bytes: Vec<u8> = (0..number % 300).map(|at| (at * number) as u8).collect();
                send(peer, &bytes, None);
            }
        }
    }

    /// Creates the memory of a region, sealed against shrinking. The server refuses unsealed memory.
    fn memory() -> OwnedFd {
        let file = memfd_create("region", MemfdFlags::ALLOW_SEALING | MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&file, REGION).unwrap();
        fcntl_add_seals(&file, SealFlags::SHRINK).unwrap();
        file
    }

    /// Builds a message of memif with these fields at their offsets.
    fn message(kind: u16, fields: &[(usize, &[u8])]) -> [u8; 128] {
        let mut bytes = [0; 128];
        bytes[..2].copy_from_slice(&kind.to_ne_bytes());
        for (at, field) in fields {
            bytes[*at..at + field.len()].copy_from_slice(field);
        }
        bytes
    }

    /// Sends a complete message, with a descriptor if one is given.
    fn send_message(peer: &OwnedFd, bytes: &[u8; 128], descriptor: Option<&OwnedFd>) {
        send(peer, bytes, descriptor);
    }

    /// Sends bytes. Ignores errors, because the server may have closed its end.
    fn send(peer: &OwnedFd, bytes: &[u8], descriptor: Option<&OwnedFd>) {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let rights = descriptor.map(|descriptor| [descriptor.as_fd()]);
        if let Some(rights) = &rights {
            control.push(SendAncillaryMessage::ScmRights(rights));
        }
        let parts = [std::io::IoSlice::new(bytes)];
        let _ = rustix::net::sendmsg(peer, &parts, &mut control, SendFlags::NOSIGNAL);
    }
}
