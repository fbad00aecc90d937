//! Wires to node processes: the far ends of their memif devices (DPDK's network device in shared memory). The node is
//! the memif server, and the test process the client.
#![allow(dead_code, reason = "no test uses all of it")]

use std::time::Instant;

use wedjat::io::dpdk::{Device, DeviceOptions, Eal, MbufPool, QueuePort};
use wedjat::io::{Buf, Burst, Pool, Port};

use crate::timeouts::TIMEOUT;

/// Ends of wires in this process.
pub struct Wires {
    /// This end of each wire.
    ports: Vec<QueuePort>,
    /// Buffers of this process.
    pool: MbufPool,
    /// Wires whose node has died, marked by the test. Frames to them are discarded.
    pub dead: Vec<usize>,
    /// Keeps the devices open.
    _devices: Vec<Device>,
}

impl Wires {
    /// Opens wires to the memif servers at these abstract sockets. Waits for each server, at most [`TIMEOUT`]. A wire
    /// does not connect again after its server has died.
    pub fn open(sockets: impl IntoIterator<Item = String>) -> Self {
        let name = |(at, socket)| format!("net_memif{at},role=client,id=0,socket=@{socket}");
        let names: Vec<_> = sockets.into_iter().enumerate().map(name).collect();
        let names: Vec<_> = names.iter().map(String::as_str).collect();
        let eal = Eal::init(&["--no-pci".to_owned()], &names).unwrap();
        let pool = MbufPool::new(&eal, "wires", 8191).unwrap();
        let options = DeviceOptions::with_peer_timeout(Some(TIMEOUT));
        let (mut devices, mut ports) = (Vec::new(), Vec::new());
        for name in &names {
            let (device, mut queues) = Device::open(&eal, name, &pool, &options).unwrap();
            devices.push(device);
            ports.push(queues.remove(0));
        }
        Self { ports, pool, dead: Vec::new(), _devices: devices }
    }

    /// Returns the number of wires.
    pub fn count(&self) -> usize {
        self.ports.len()
    }

    /// Sends a frame. Waits for room in the device's queue, and discards the frame after [`TIMEOUT`].
    pub fn send(&mut self, wire: usize, frame: &[u8]) {
        if self.dead.contains(&wire) {
            return;
        }
        let mut mbuf = self.pool.handle().take().unwrap();
        assert!(mbuf.resize(frame.len()));
        mbuf.bytes_mut().copy_from_slice(frame);
        let mut burst: Burst<_> = [mbuf].into_iter().collect();
        let start = Instant::now();
        while self.ports[wire].tx_burst(&mut burst) == 0 && start.elapsed() < TIMEOUT {
            std::thread::yield_now();
        }
    }

    /// Returns the frames received on a wire, at most a burst.
    pub fn receive(&mut self, wire: usize) -> Vec<Vec<u8>> {
        let mut burst = Burst::new();
        self.ports[wire].rx_burst(&mut burst);
        burst.iter().map(|mbuf| mbuf.bytes().to_vec()).collect()
    }
}
