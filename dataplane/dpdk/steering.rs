//! RSS keys that bring the reply of a task to the core of the task. For a leaf with a clients' and a workers' port, on
//! NICs that hash both ends of a packet.
//!
//! A NIC hashes source address, destination address, source port and destination port with the Toeplitz function. Each
//! set bit of this input adds (XOR) 32 bits of the key, from that bit's position on. A task goes from its client to the
//! leaf, its reply from the worker to the client. The keys of both ports make the two hashes differ by a constant:
//! - the workers' key is zero at the source address, so the server's address does not change the hash;
//! - the clients' key has at the source (the client's address and port) the bits that the workers' key has at the
//!   destination.
//!
//! The leaf's own address and the task port are constant, so their part of each hash is constant, too. Each port adds
//! (XOR) its constant to the index of its redirection table (RETA). The keys serve one IP version, that of the port.

use std::net::IpAddr;

use wedjat_core::policy::stream_seed;

/// Traffic that arrives on a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SteeredSide {
    /// Tasks arrive here.
    Clients,
    /// Replies arrive here.
    Workers,
}

/// Constants of one port for its key. Both ports of a leaf derive their keys from the same seed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Steering {
    /// Traffic that arrives on this port.
    pub side: SteeredSide,
    /// Address of the leaf on this port. Clients send tasks to it. On the workers' side only its IP version counts.
    pub leaf: IpAddr,
    /// UDP port of tasks and replies at leaf and workers.
    pub task_port: u16,
    /// Seed of the keys, the same for all ports of a leaf.
    pub seed: u64,
}

/// Bits of a window: the part of the key that one bit of the input adds to the hash. `n` bits of input select
/// `n + WINDOW - 1` bits of the key.
const WINDOW: usize = 32;
/// Bits of a UDP port.
const PORT_BITS: usize = 16;

/// Returns a bit of a key or an input, whose bits are numbered from the first byte's highest one.
fn bit(bytes: &[u8], index: usize) -> bool {
    bytes[index / 8] >> (7 - index % 8) & 1 == 1
}

/// Sets a bit of a key, numbered as in [`bit`], to `value`.
fn set_bit(key: &mut [u8], index: usize, value: bool) {
    let mask = 1 << (7 - index % 8);
    key[index / 8] = key[index / 8] & !mask | if value { mask } else { 0 };
}

/// Returns the part of a NIC's hash that `input` adds (Microsoft, "RSS hashing types"). `input` is a part of the
/// packet's whole input that begins at its bit `offset`.
fn toeplitz(key: &[u8], input: &[u8], offset: usize) -> u32 {
    // The 32 bits of the key from this bit on.
    let window = |start: usize| {
        (start..start + WINDOW).fold(0_u32, |word, index| word << 1 | u32::from(bit(key, index)))
    };
    let set_bits = (0..input.len() * 8).filter(|&index| bit(input, index));
    set_bits.fold(0, |hash, index| hash ^ window(offset + index))
}

/// Returns the octets of an address in network byte order.
fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}

impl Steering {
    /// Returns the number of bits of an address.
    fn address_bits(&self) -> usize {
        if self.leaf.is_ipv4() { 32 } else { 128 }
    }

    /// Returns the smallest length of a key in bytes.
    #[must_use]
    pub fn key_bytes_min(&self) -> usize {
        (2 * self.address_bits() + 2 * PORT_BITS + WINDOW) / 8
    }

    /// Returns the key of a workers' port, `bytes` long: random, but zero where the source address (the server's)
    /// selects bits. The server's port needs no zeros: it is the constant task port.
    fn workers_key(&self, bytes: usize) -> Vec<u8> {
        // `stream_seed` gives a random word for each number.
        let random = (0..).flat_map(|word| stream_seed(self.seed, word, 0).to_be_bytes());
        let mut key: Vec<u8> = random.take(bytes).collect();
        for index in 0..self.address_bits() + WINDOW - 1 {
            set_bit(&mut key, index, false);
        }
        key
    }

    /// Returns the key of a clients' port. The bits that the client's address and port do not select are those of the
    /// workers' key, which are random, too.
    fn clients_key(&self, bytes: usize) -> Vec<u8> {
        let (workers, address) = (self.workers_key(bytes), self.address_bits());
        let mut key = workers.clone();
        // The client's address: the source of a task, the destination of a reply.
        for index in 0..address + WINDOW - 1 {
            set_bit(&mut key, index, bit(&workers, index + address));
        }
        // The client's port, likewise: bits of the source port, then those of the destination port.
        let (source, destination) = (2 * address, 2 * address + PORT_BITS);
        for index in 0..PORT_BITS + WINDOW - 1 {
            set_bit(&mut key, source + index, bit(&workers, destination + index));
        }
        key
    }

    /// Returns the key of this port with this number of bytes; `None` if these are fewer than
    /// [`Steering::key_bytes_min`].
    #[must_use]
    pub fn key(&self, bytes: usize) -> Option<Vec<u8>> {
        (bytes >= self.key_bytes_min()).then(|| match self.side {
            SteeredSide::Clients => self.clients_key(bytes),
            SteeredSide::Workers => self.workers_key(bytes),
        })
    }

    /// Returns the constant part of this port's hashes. [`Steering::table`] removes it from the RETA's index by XOR.
    #[must_use]
    pub fn offset(&self, key: &[u8]) -> u32 {
        let address = self.address_bits();
        let (source, destination) = (2 * address, 2 * address + PORT_BITS);
        let port = self.task_port.to_be_bytes();
        match self.side {
            SteeredSide::Clients => {
                toeplitz(key, &octets(self.leaf), address) ^ toeplitz(key, &port, destination)
            }
            SteeredSide::Workers => toeplitz(key, &port, source),
        }
    }

    /// Returns the queue of each entry of a RETA with `entries` entries, a power of two. Ports with tables of different
    /// sizes give a hash the same queue: the queues repeat after at least 8 entries each, if the table has as many.
    #[must_use]
    pub fn table(&self, key: &[u8], entries: u16, queues: u16) -> Vec<u16> {
        let offset = self.offset(key) as u16; // the index uses the hash's low bits
        let period = (8 * u32::from(queues)).next_power_of_two().min(entries.into()) as u16;
        let queue = |index: u16| ((index ^ offset) & (period - 1)) % queues;
        (0..entries).map(queue).collect()
    }
}

#[cfg(test)]
mod tests {
    #![allow(unsafe_code, reason = "calls DPDK's own hash")]

    use std::net::{Ipv4Addr, Ipv6Addr};

    use wedjat_sys as sys;

    use super::*;

    /// Bytes of the key of most NICs.
    const KEY: usize = 40;
    /// UDP port of tasks and replies.
    const PORT: u16 = 1234;

    /// Returns the input of the hash: addresses and UDP ports of a packet.
    fn input(from: (IpAddr, u16), to: (IpAddr, u16)) -> Vec<u8> {
        [octets(from.0), octets(to.0), from.1.to_be_bytes().into(), to.1.to_be_bytes().into()]
            .concat()
    }

    /// Returns the queue of a packet by DPDK's own hash and the table, which has 128 entries.
    fn queue(steering: &Steering, input: &[u8], queues: u16) -> usize {
        let key = steering.key(KEY).unwrap();
        let words: Vec<u32> =
            input.chunks(4).map(|word| u32::from_be_bytes(word.try_into().unwrap())).collect();
        // SAFETY: the input has the given number of words, and the key is longer by a word.
        let hash = unsafe {
            let (start, len) = (words.as_ptr().cast_mut(), words.len() as u32);
            sys::rte_softrss(start, len, key.as_ptr())
        };
        assert_eq!(hash, toeplitz(&key, input, 0));
        usize::from(steering.table(&key, 128, queues)[hash as usize % 128])
    }

    /// Checks with random clients and servers that each reply reaches the queue of its task. Also checks that each
    /// queue gets its share of the tasks, within 20%.
    ///
    /// `leaf` has the leaf's addresses on the clients' and the workers' side. `address` makes a client's address from 1
    /// and a random number, and a server's from 2.
    fn replies_follow_tasks(leaf: [IpAddr; 2], address: impl Fn(u8, u32) -> IpAddr) {
        sys::load().unwrap();
        let mut count = 0;
        let mut random = || {
            count += 1;
            stream_seed(9, count, 1) as u32
        };
        for queues in [2, 3, 4] {
            let seed = u64::from(random());
            let steering = |side| Steering {
                side,
                leaf: leaf[usize::from(side == SteeredSide::Workers)],
                task_port: PORT,
                seed,
            };
            let clients = steering(SteeredSide::Clients);
            let workers = steering(SteeredSide::Workers);
            let mut counts = vec![0_u32; usize::from(queues)];
            for _ in 0..3000 {
                let client = (address(1, random()), random() as u16 | 1024);
                let server = (address(2, random()), PORT);
                let task = queue(&clients, &input(client, (leaf[0], PORT)), queues);
                assert_eq!(
                    queue(&workers, &input(server, client), queues),
                    task,
                    "{client:?} {server:?}"
                );
                counts[task] += 1;
            }
            let mean = 3000 / u32::from(queues);
            let is_even = |&count: &u32| count > mean * 8 / 10 && count < mean * 12 / 10;
            assert!(counts.iter().all(is_even), "{counts:?}");
        }
    }

    // promise: scheduling.2
    #[test]
    fn ipv4_replies_follow_their_tasks() {
        let ip = |net: u8, host: u32| {
            IpAddr::from(Ipv4Addr::from(0x0a00_0000 | u32::from(net) << 16 | host & 0xFFFF))
        };
        replies_follow_tasks([ip(1, 1), ip(2, 1)], ip);
        // Clients from anywhere.
        replies_follow_tasks([ip(1, 1), ip(2, 1)], |_, random| Ipv4Addr::from(random).into());
    }

    // promise: scheduling.2
    #[test]
    fn ipv6_replies_follow_their_tasks() {
        let ip = |net: u8, host: u32| {
            IpAddr::from(Ipv6Addr::from(0xfd00 << 112 | u128::from(net) << 64 | u128::from(host)))
        };
        replies_follow_tasks([ip(1, 1), ip(2, 1)], ip);
    }

    // promise: scheduling.2
    #[test]
    fn queue_depends_on_no_table_size() {
        let steering = Steering {
            side: SteeredSide::Workers,
            leaf: Ipv4Addr::new(10, 0, 2, 1).into(),
            task_port: PORT,
            seed: 7,
        };
        let key = steering.key(KEY).unwrap();
        for queues in [2, 3, 5, 7, 8] {
            let table_of = |entries| steering.table(&key, entries, queues);
            let (small, large) = (table_of(64), table_of(512));
            let mut repeated = small.iter().cycle().take(512);
            assert!(large.iter().all(|queue| repeated.next() == Some(queue)), "{queues} queues");
            assert!((0..queues).all(|queue| small.contains(&queue)), "{queues} queues");
        }
    }

    // promise: scheduling.2
    #[test]
    fn short_keys_are_refused() {
        let steering = |leaf: &str| Steering {
            side: SteeredSide::Workers,
            leaf: leaf.parse().unwrap(),
            task_port: PORT,
            seed: 1,
        };
        // The bits of two addresses and two ports, and a window of 32: 128 for IPv4, 320 for IPv6.
        let smallest = ["10.0.0.1", "fd00::1"].map(|leaf| steering(leaf).key_bytes_min());
        assert_eq!(smallest, [16, 40]);
        assert_eq!(steering("fd00::1").key(39), None);
        assert_eq!(steering("10.0.0.1").key(52).map(|key| key.len()), Some(52));
    }
}
