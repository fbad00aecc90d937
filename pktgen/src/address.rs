//! Addresses of the generator, the scheduler and the next hop, all IPv4 or all IPv6.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use wedjat::wire::udp::{self, Flow};
use wedjat::wire::{ether, ipv6};

/// Addresses of one family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Endpoints<A> {
    /// Address of the generator.
    pub own: A,
    /// Address of the scheduler.
    pub dst: A,
    /// Next hop of all packets; the scheduler itself without a router in between.
    pub next_hop: A,
}

/// Addresses of either family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Addresses {
    /// IPv4 addresses as integers in host order.
    V4(Endpoints<u32>),
    /// IPv6 addresses.
    V6(Endpoints<u128>),
}

impl Addresses {
    /// Returns the addresses of a generator at `own`, or at its default address, that sends to `dst` through
    /// an optional `gateway`.
    ///
    /// # Errors
    /// If the families differ, `own` equals `dst` or `gateway`, or an address is not a host's.
    pub fn new(dst: IpAddr, own: Option<IpAddr>, gateway: Option<IpAddr>) -> Result<Self, String> {
        let own = own.unwrap_or_else(|| default_own(dst, gateway));
        for (name, address) in [("--src", Some(own)), ("--gateway", gateway)] {
            if let Some(address) = address.filter(|address| address.is_ipv6() != dst.is_ipv6()) {
                return Err(format!(
                    "{name} is {address} and --dst is {dst}; use only IPv4 addresses or only IPv6 addresses"
                ));
            }
        }
        if own == dst {
            return Err(format!("--src and --dst are both {own}; they must differ"));
        }
        if Some(own) == gateway {
            return Err(format!("--src and --gateway are both {own}; they must differ"));
        }
        for (name, address) in [("--dst", Some(dst)), ("--src", Some(own)), ("--gateway", gateway)]
        {
            address.map_or(Ok(()), |address| check(name, address))?;
        }
        match (own, dst, gateway.unwrap_or(dst)) {
            (IpAddr::V4(own), IpAddr::V4(dst), IpAddr::V4(next_hop)) => {
                let [own, dst, next_hop] = [own, dst, next_hop].map(Ipv4Addr::to_bits);
                Ok(Self::V4(Endpoints { own, dst, next_hop }))
            }
            (IpAddr::V6(own), IpAddr::V6(dst), IpAddr::V6(next_hop)) => {
                let [own, dst, next_hop] = [own, dst, next_hop].map(Ipv6Addr::to_bits);
                Ok(Self::V6(Endpoints { own, dst, next_hop }))
            }
            _ => Err("addresses of two families".to_owned()),
        }
    }

    /// Returns the generator's address.
    #[must_use]
    pub fn own(&self) -> IpAddr {
        self.pick(|ends| ends.own, |ends| ends.own)
    }

    /// Returns the scheduler's address.
    #[must_use]
    pub fn dst(&self) -> IpAddr {
        self.pick(|ends| ends.dst, |ends| ends.dst)
    }

    /// Returns the next hop of all packets.
    #[must_use]
    pub fn next_hop(&self) -> IpAddr {
        self.pick(|ends| ends.next_hop, |ends| ends.next_hop)
    }

    /// Returns the address that `v4` or `v6` picks, depending on the family.
    fn pick(&self, v4: fn(&Endpoints<u32>) -> u32, v6: fn(&Endpoints<u128>) -> u128) -> IpAddr {
        match self {
            Self::V4(ends) => Ipv4Addr::from_bits(v4(ends)).into(),
            Self::V6(ends) => Ipv6Addr::from_bits(v6(ends)).into(),
        }
    }

    /// Returns the name of the protocol that resolves next hops of this family.
    #[must_use]
    pub fn resolution_protocol(&self) -> &'static str {
        match self {
            Self::V4(_) => "ARP",
            Self::V6(_) => "neighbour discovery",
        }
    }
}

/// A flow of either family: MAC and IP addresses and UDP ports of the generator's packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnyFlow {
    /// Flow over IPv4.
    V4(Flow),
    /// Flow over IPv6.
    V6(Flow<u128>),
}

impl AnyFlow {
    /// Returns the offset of the payload in bytes.
    #[must_use]
    pub fn payload(&self) -> usize {
        match self {
            Self::V4(_) => udp::PAYLOAD,
            Self::V6(_) => udp::PAYLOAD_V6,
        }
    }

    /// Returns the source port; the first one if tasks use several.
    #[must_use]
    pub fn src_port(&self) -> u16 {
        match self {
            Self::V4(flow) => flow.src_port,
            Self::V6(flow) => flow.src_port,
        }
    }

    /// Writes the headers of a frame, with source port `src_port` in place of the flow's. The frame already holds its
    /// payload of `payload_len` bytes.
    pub fn emit(&self, src_port: u16, frame: &mut [u8], payload_len: usize) {
        match *self {
            Self::V4(flow) => Flow { src_port, ..flow }.emit(frame, payload_len),
            Self::V6(flow) => Flow { src_port, ..flow }.emit_v6(frame, payload_len),
        }
    }
}

/// Returns true if the frame has an IPv6 EtherType. The frame holds at least an Ethernet header.
#[inline]
#[must_use]
pub fn is_v6(frame: &[u8]) -> bool {
    ether::ether_type(frame) == ether::IPV6
}

/// Returns the generator's default address: .100 of the scheduler's /24 or ::100 of its /64, or the next one that
/// neither the scheduler nor the gateway has.
fn default_own(dst: IpAddr, gateway: Option<IpAddr>) -> IpAddr {
    let candidate = |index: u8| -> IpAddr {
        match dst {
            IpAddr::V4(dst) => {
                let [a, b, c, _] = dst.octets();
                Ipv4Addr::new(a, b, c, 100 + index).into()
            }
            IpAddr::V6(dst) => {
                let first = dst.to_bits() >> 64 << 64 | 0x100;
                Ipv6Addr::from_bits(first + u128::from(index)).into()
            }
        }
    };
    let is_free = |own: &IpAddr| *own != dst && Some(*own) != gateway;
    // Two addresses are taken at most.
    (0..2).map(candidate).find(is_free).unwrap_or_else(|| candidate(2))
}

/// Refuses addresses that no host has, such as multicast. Only an IPv6 gateway may have a link-local address, because
/// it is on the same wire.
fn check(name: &str, address: IpAddr) -> Result<(), String> {
    let address = match address {
        IpAddr::V4(v4) => {
            return match v4.is_unspecified() || v4.is_broadcast() || v4.is_multicast() {
                true => Err(format!("{name} is {v4}; a unicast address is needed, as in 10.0.1.1")),
                false => Ok(()),
            };
        }
        IpAddr::V6(v6) => v6,
    };
    let bits = address.to_bits();
    if ipv6::is_unicast(bits) || name == "--gateway" && ipv6::is_link_local(bits) {
        return Ok(());
    }
    Err(format!("{name} is {address}; a routable unicast address is needed, as in fd00:1::1"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Parses an address.
    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    /// Creates the addresses from texts.
    fn new(dst: &str, own: Option<&str>, gateway: Option<&str>) -> Result<Addresses, String> {
        Addresses::new(ip(dst), own.map(ip), gateway.map(ip))
    }

    #[test]
    fn default_address_differs_from_the_schedulers() {
        for (dst, own) in [
            ("10.0.1.1", "10.0.1.100"),
            ("10.0.1.100", "10.0.1.101"),
            ("fd00:1:2:3::1", "fd00:1:2:3::100"),
            ("fd00:1:2:3:4:5:6:7", "fd00:1:2:3::100"),
            ("fd00::100", "fd00::101"),
        ] {
            let addresses = new(dst, None, None).unwrap();
            let found = (addresses.own(), addresses.dst(), addresses.next_hop());
            assert_eq!(found, (ip(own), ip(dst), ip(dst)));
        }
    }

    #[test]
    fn gateway_is_the_next_hop() {
        for (dst, gateway) in [("10.9.1.1", "10.0.1.1"), ("fd00:9::1", "fe80::1")] {
            assert_eq!(new(dst, None, Some(gateway)).unwrap().next_hop(), ip(gateway));
        }
        let addresses = new("10.0.1.100", None, Some("10.0.1.101")).unwrap();
        assert_eq!(addresses.own(), ip("10.0.1.102"));
    }

    // promise: measurement.1
    #[test]
    fn mixed_families_and_invalid_hosts_are_refused() {
        for (dst, own, gateway, parts) in [
            ("fd00::1", Some("10.0.1.2"), None, ["--src is 10.0.1.2", "--dst is fd00::1"]),
            ("10.0.1.1", Some("fd00::2"), None, ["--src is fd00::2", "only IPv4 addresses"]),
            ("10.0.1.1", None, Some("fd00::2"), ["--gateway is fd00::2", "--dst is 10.0.1.1"]),
            ("fd00::1", Some("fd00::1"), None, ["--src and --dst", "both fd00::1"]),
            (
                "10.0.1.1",
                Some("10.0.2.1"),
                Some("10.0.2.1"),
                ["--src and --gateway", "both 10.0.2.1"],
            ),
            ("224.0.0.1", None, None, ["--dst is 224.0.0.1", "a unicast address"]),
            ("10.0.1.1", Some("0.0.0.0"), None, ["--src is 0.0.0.0", "a unicast address"]),
            (
                "10.0.1.1",
                None,
                Some("255.255.255.255"),
                ["--gateway is 255.255.255.255", "a unicast address"],
            ),
            ("ff02::1", None, None, ["--dst is ff02::1", "a routable unicast address"]),
            ("::", None, None, ["--dst is ::", "a routable unicast address"]),
            ("::1", None, None, ["--dst is ::1", "a routable unicast address"]),
            ("fe80::1", None, None, ["--dst is fe80::1", "a routable unicast address"]),
            (
                "::ffff:10.0.1.1",
                None,
                None,
                ["--dst is ::ffff:10.0.1.1", "a routable unicast address"],
            ),
            (
                "fd00::1",
                None,
                Some("ff02::2"),
                ["--gateway is ff02::2", "a routable unicast address"],
            ),
        ] {
            let error = new(dst, own, gateway).unwrap_err();
            assert!(parts.iter().all(|part| error.contains(part)), "{error}");
        }
    }
}
