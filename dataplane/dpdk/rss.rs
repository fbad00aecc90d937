//! Receive-side scaling (RSS): distribution of packets over a device's receive queues.
//!
//! A task comes from its client's address and port, and its reply goes there. A device that hashes only the
//! client's end delivers both to the same core, whichever worker answers: by the source on the clients' side,
//! by the destination on the workers' side. For equal queues both devices have the same key, which repeats
//! after 16 bits. Then the hash is the same whether an address is the source or the destination. Other devices get keys
//! with the same effect ([`super::steering`]).

use std::fmt;

use wedjat_sys as sys;

/// Fields of a datagram that select its queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RssFields {
    /// Both addresses and both ports, with the driver's own key.
    #[default]
    FourTuple,
    /// Address and port of the sender, if the device can; else as above.
    Source,
    /// Address and port of the receiver, if the device can; else as above.
    Destination,
}

/// Distribution of UDP packets over the queues of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spread {
    /// By a rule of the device: fanout of AF_PACKET, the peer's choice of queue, the flow tables of a virtio device.
    OwnRule,
    /// Not at all: the NIC hashes no UDP, so one queue gets all packets.
    None,
    /// By these fields.
    Fields(RssFields),
    /// By both ends, with a key that brings replies to the queue of their task.
    Steered,
}

/// RSS configuration of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rss {
    /// Hash functions, as bits of DPDK's `rss_hf`.
    pub fields: u64,
    /// Key; `None` keeps the driver's.
    pub key: Option<Vec<u8>>,
}

/// Two bytes that spread well when repeated (Woo and Park, "Scalable TCP Session Monitoring with Symmetric
/// Receive-side Scaling", 2012).
const KEY: [u8; 2] = [0x6d, 0x5a];

impl RssFields {
    /// Returns the fields of a device that hashes `fields` (`rss_hf`). `None` if it hashes no UDP. A device may offer
    /// both ends; for an offer only `is_some` has a meaning.
    pub fn of(fields: u64) -> Option<Self> {
        let one_end = [Self::Source, Self::Destination]
            .into_iter()
            .find(|one| fields & one.one_end_bits() != 0);
        (fields & sys::WEDJAT_RSS_UDP != 0).then(|| one_end.unwrap_or_default())
    }

    /// Returns the bits of `rss_hf` that restrict the hash to one end; 0 for both ends.
    fn one_end_bits(self) -> u64 {
        let shifted = match self {
            Self::FourTuple => 0,
            Self::Source => sys::WEDJAT_RSS_SRC_ONLY_SHIFTED,
            Self::Destination => sys::WEDJAT_RSS_DST_ONLY_SHIFTED,
        };
        shifted << sys::WEDJAT_RSS_ONLY_SHIFT
    }

    /// Returns true if a device with the fields `offered` hashes this one end alone.
    pub fn is_offered(self, offered: u64) -> bool {
        self.one_end_bits() != 0 && offered & self.one_end_bits() == self.one_end_bits()
    }

    /// Returns the configuration for a device with the fields `offered` (`flow_type_rss_offloads`) and keys of
    /// `key_bytes`. Covers those of IPv4 and IPv6 that the device hashes. `None` if it hashes no UDP at all.
    pub fn configuration(self, offered: u64, key_bytes: u8) -> Option<Rss> {
        let udp = offered & sys::WEDJAT_RSS_UDP;
        let one_end_bits = self.one_end_bits();
        let can_restrict = self.is_offered(offered);
        let repeated = || KEY.into_iter().cycle().take(usize::from(key_bytes)).collect();
        // mlx5 accepts one end of an address only together with a hash of addresses.
        let one_end = udp | one_end_bits | offered & sys::WEDJAT_RSS_IP;
        (udp != 0).then(|| Rss {
            fields: if can_restrict { one_end } else { udp },
            key: (can_restrict && key_bytes > 0).then(repeated),
        })
    }
}

impl fmt::Display for Spread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OwnRule => f.write_str("a rule of its own"),
            Self::None => f.write_str("nothing"),
            Self::Fields(fields) => fields.fmt(f),
            Self::Steered => f.write_str("a key that brings each reply to the core of its task"),
        }
    }
}

impl fmt::Display for RssFields {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::FourTuple => "both addresses and ports",
            Self::Source => "the sender's address and port",
            Self::Destination => "the receiver's address and port",
        })
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr};

    use super::*;

    /// Hash of RSS devices (Microsoft, "RSS hashing types"): for each set bit, the 32 bits of the key there.
    fn toeplitz(key: &[u8], input: &[u8]) -> u32 {
        let window = |bit: usize| {
            (0..32).fold(0u32, |word, more| {
                let index = bit + more;
                let set = key[index / 8] >> (7 - index % 8) & 1;
                word << 1 | u32::from(set)
            })
        };
        let bits = (0..input.len() * 8).filter(|bit| input[bit / 8] >> (7 - bit % 8) & 1 == 1);
        bits.fold(0, |hash, bit| hash ^ window(bit))
    }

    /// Offer of a device that supports all fields individually.
    const ALL: u64 = u64::MAX;
    /// Offer of a device that cannot restrict a hash to one end, which takes bits 60 to 63.
    const LOW: u64 = (1 << 60) - 1;

    #[test]
    fn test_hash_equals_device_hash() {
        // Microsoft's first vector for IPv4 with ports: 66.9.149.187:2794 to 161.142.100.80:1766.
        let key = [
            0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3,
            0x8f, 0xb0, 0xd0, 0xca, 0x2b, 0xcb, 0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3,
            0x80, 0x30, 0xf2, 0x0c, 0x6a, 0x42, 0xb7, 0x3b, 0xbe, 0xac, 0x01, 0xfa,
        ];
        let input = [66, 9, 149, 187, 161, 142, 100, 80, 0x0a, 0xea, 0x06, 0xe6];
        assert_eq!(toeplitz(&key, &input), 0x51cc_c178);
        // And for IPv6: [3ffe:2501:200:1fff::7]:2794 to [3ffe:2501:200:3::1]:1766.
        let [from, to] = ["3ffe:2501:200:1fff::7", "3ffe:2501:200:3::1"]
            .map(|ip| ip.parse::<Ipv6Addr>().unwrap().octets());
        let input = [from.as_slice(), &to, &[0x0a, 0xea, 0x06, 0xe6]].concat();
        assert_eq!(toeplitz(&key, &input), 0x4020_7d3d);
    }

    /// A task and its reply reach the same queue, and clients are spread evenly over all queues. Some devices leave the
    /// ignored fields out of the hash, others set them to zero.
    // promise: scheduling.2
    #[test]
    fn reply_reaches_the_core_of_its_task() {
        let key = RssFields::Source.configuration(ALL, 40).unwrap().key.unwrap();
        assert_eq!(Some(&key), RssFields::Destination.configuration(ALL, 40).unwrap().key.as_ref());
        assert_eq!(key.len(), 40);
        let v4 = |host: u32| Ipv4Addr::from(0x0a00_0001 + host).octets().to_vec();
        let v6 = |host: u32| Ipv6Addr::from((0xfd00 << 112) + u128::from(host)).octets().to_vec();
        spreads_by_the_clients_end(&key, v4);
        spreads_by_the_clients_end(&key, v6);
    }

    /// Checks that both directions of a client's packets have one hash, and that 4,096 clients use all queues evenly.
    fn spreads_by_the_clients_end(key: &[u8], address: impl Fn(u32) -> Vec<u8>) {
        let queues = 4;
        let mut counts = vec![0u32; queues];
        for client in 0..4096u32 {
            let ip = address(client / 64);
            let zero_ip = vec![0; ip.len()];
            let port = (32_768 + client % 64 * 7).to_be_bytes();
            let port = [port[2], port[3]];
            // Ignored fields left out; then the client as the source and as the destination, with zeros.
            let compact = toeplitz(key, &[ip.as_slice(), &port].concat());
            let from = toeplitz(key, &[ip.as_slice(), &zero_ip, &port, &[0; 2]].concat());
            let to = toeplitz(key, &[zero_ip.as_slice(), &ip, &[0; 2], &port].concat());
            assert_eq!((from, to), (compact, compact), "client {client}");
            counts[from as usize % queues] += 1;
        }
        // On average 1024 clients use a queue; the bounds allow about a third more or less.
        assert!(counts.iter().all(|&count| (700..1400).contains(&count)), "{counts:?}");
    }

    // promise: scheduling.2
    #[test]
    fn device_gets_only_offered_hash_functions() {
        let udp = sys::WEDJAT_RSS_UDP;
        assert_eq!(RssFields::Source.configuration(0, 40), None);
        let four = Some(Rss { fields: udp, key: None });
        // RTE_ETH_RSS_NONFRAG_IPV4_UDP and RTE_ETH_RSS_NONFRAG_IPV6_UDP: a device may offer only one of them.
        for one in [1 << 5, 1 << 11] {
            assert_eq!(udp & one, one);
            assert_eq!(
                RssFields::Source.configuration(one, 40),
                Some(Rss { fields: one, key: None })
            );
        }
        for fields in [RssFields::FourTuple, RssFields::Source, RssFields::Destination] {
            assert_eq!(fields.configuration(LOW, 40), four, "{fields:?}");
        }
        assert_eq!(RssFields::FourTuple.configuration(ALL, 40), four);
        // RTE_ETH_RSS_L3_SRC_ONLY, L3_DST_ONLY, L4_SRC_ONLY, L4_DST_ONLY are bits 63 to 60.
        let hash_functions = |fields: RssFields| fields.configuration(ALL, 40).unwrap().fields;
        let ip = sys::WEDJAT_RSS_IP;
        assert_eq!(hash_functions(RssFields::Source), udp | ip | 1 << 63 | 1 << 61);
        assert_eq!(hash_functions(RssFields::Destination), udp | ip | 1 << 62 | 1 << 60);
        for fields in [RssFields::FourTuple, RssFields::Source, RssFields::Destination] {
            assert_eq!(RssFields::of(hash_functions(fields)), Some(fields));
        }
        assert_eq!(RssFields::of(0), None, "a rule of its own");
        assert_eq!(RssFields::Source.configuration(ALL, 0).unwrap().key, None);
        assert_eq!(
            RssFields::Source.configuration(udp | ip | 1 << 63, 40),
            four,
            "an address, no port"
        );
    }
}
