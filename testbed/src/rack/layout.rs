//! Servers of a rack, and the assignment of worker ids to them. A worker's place is its index in the rack, and a
//! server's index counts from 0 too.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use wedjat::config::is_unicast;

/// Maximum number of workers that one rack emulates.
pub const WORKERS_MAX: usize = 4096;

/// Servers with consecutive addresses, written as the first address and the number of addresses: `10.0.2.11+4` or
/// `fd00:2::b+4`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Servers {
    /// Address of the first server.
    pub first: IpAddr,
    /// Number of servers.
    pub count: u16,
}

impl FromStr for Servers {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (first, count) = text.split_once('+').unwrap_or((text, "1"));
        let refuse = |problem: &str| {
            format!(
                "`{text}` {problem}; write the first address and the number of servers, as in 10.0.2.11+4 or fd00:2::b+4"
            )
        };
        let first: IpAddr = first.parse().map_err(|_| refuse("does not start with an address"))?;
        let count: u16 = count.parse().map_err(|_| refuse("does not end with a number"))?;
        let last = count.checked_sub(1).and_then(|offset| address_after(first, offset));
        let last = last.ok_or_else(|| refuse("names no server, or exceeds the address range"))?;
        if ![first, last].into_iter().all(is_unicast) {
            return Err(refuse("names addresses that are not routable unicast addresses"));
        }
        Ok(Self { first, count })
    }
}

/// Returns the address `offset` after `first`, if it exists.
fn address_after(first: IpAddr, offset: u16) -> Option<IpAddr> {
    Some(match first {
        IpAddr::V4(first) => {
            Ipv4Addr::from_bits(first.to_bits().checked_add(u32::from(offset))?).into()
        }
        IpAddr::V6(first) => {
            Ipv6Addr::from_bits(first.to_bits().checked_add(u128::from(offset))?).into()
        }
    })
}

impl fmt::Display for Servers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}+{}", self.first, self.count)
    }
}

/// Servers with the same number of workers each. Worker ids are global and consecutive: the first server's
/// ids start at `first_worker`, and each next server continues the sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    servers: Servers,
    workers_per_server: u16,
    /// Id of the first worker.
    first_worker: u16,
}

impl Layout {
    /// Creates the layout of `servers` with `workers_per_server` workers each. Ids start at `first_worker`.
    ///
    /// # Errors
    /// If there is no worker, more than [`WORKERS_MAX`], or an id beyond the range of the wire format.
    pub fn new(
        servers: Servers,
        workers_per_server: u16,
        first_worker: u16,
    ) -> Result<Self, String> {
        let workers = usize::from(servers.count) * usize::from(workers_per_server);
        if workers == 0 || workers > WORKERS_MAX {
            return Err(format!(
                "{} servers with {workers_per_server} workers each are {workers} workers; a rack has 1 to {WORKERS_MAX}",
                servers.count
            ));
        }
        let last = usize::from(first_worker) + workers - 1;
        if last > usize::from(wedjat::limits::WORKER_ID_MAX) {
            return Err(format!(
                "{workers} workers from {first_worker} on end at {last}, beyond the last id {}",
                wedjat::limits::WORKER_ID_MAX
            ));
        }
        Ok(Self { servers, workers_per_server, first_worker })
    }

    /// Returns the number of workers.
    #[must_use]
    pub fn workers(&self) -> u16 {
        self.servers.count * self.workers_per_server
    }

    /// Iterates over the servers' addresses, each with the ids of its first and last worker.
    pub fn servers(&self) -> impl Iterator<Item = (IpAddr, u16, u16)> {
        (0..self.servers.count).map(|server| {
            let first = self.first_worker + server * self.workers_per_server;
            (self.address(server), first, first + (self.workers_per_server - 1))
        })
    }

    /// Returns the address of the server with this index. The fallback only avoids a panic: all addresses of parsed
    /// [`Servers`] exist.
    fn address(&self, server: u16) -> IpAddr {
        address_after(self.servers.first, server).unwrap_or(self.servers.first)
    }

    /// Returns true if the servers have IPv6 addresses.
    #[must_use]
    pub fn is_v6(&self) -> bool {
        self.servers.first.is_ipv6()
    }

    /// Returns the index of the server with this IPv4 address.
    #[inline]
    #[must_use]
    pub fn server_v4(&self, address: u32) -> Option<u16> {
        let IpAddr::V4(first) = self.servers.first else { return None };
        let server = address.wrapping_sub(first.to_bits());
        (server < u32::from(self.servers.count)).then_some(server as u16)
    }

    /// Returns the index of the server with this IPv6 address.
    #[inline]
    #[must_use]
    pub fn server_v6(&self, address: u128) -> Option<u16> {
        let IpAddr::V6(first) = self.servers.first else { return None };
        let server = address.wrapping_sub(first.to_bits());
        (server < u128::from(self.servers.count)).then_some(server as u16)
    }

    /// Returns true if one of the servers has this address.
    #[must_use]
    pub fn has_server(&self, address: IpAddr) -> bool {
        match address {
            IpAddr::V4(address) => self.server_v4(address.to_bits()).is_some(),
            IpAddr::V6(address) => self.server_v6(address.to_bits()).is_some(),
        }
    }

    /// Returns the address of worker `id`'s server.
    #[must_use]
    pub fn server_of(&self, id: u16) -> Option<IpAddr> {
        let server = id.checked_sub(self.first_worker)? / self.workers_per_server;
        (server < self.servers.count).then(|| self.address(server))
    }

    /// Returns the place of worker `id` among the rack's workers, if the worker is on the server with index
    /// `server`.
    #[inline]
    #[must_use]
    pub fn place(&self, id: u16, server: u16) -> Option<u16> {
        let place = id.checked_sub(self.first_worker)?;
        (place / self.workers_per_server == server && server < self.servers.count).then_some(place)
    }

    /// Returns the place of worker `id`.
    #[must_use]
    pub fn place_of(&self, id: u16) -> Option<u16> {
        id.checked_sub(self.first_worker).filter(|place| *place < self.workers())
    }

    /// Returns the id of the worker at a place.
    #[inline]
    #[must_use]
    pub fn id(&self, place: u16) -> u16 {
        self.first_worker + place
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_parse_or_are_refused_with_a_reason() {
        let servers: Servers = "10.0.2.11+4".parse().unwrap();
        assert_eq!((servers.to_string().as_str(), servers.count), ("10.0.2.11+4", 4));
        assert_eq!("10.0.2.11".parse::<Servers>().unwrap().count, 1);
        let servers: Servers = "fd00:2::b+4".parse().unwrap();
        assert_eq!((servers.to_string().as_str(), servers.count), ("fd00:2::b+4", 4));
        for (text, part) in [
            ("10.0.2+4", "address"),
            ("10.0.2.11+", "number"),
            ("10.0.2.11+0", "no server"),
            ("255.255.255.255+2", "exceeds the address range"),
            ("fd00:2::b+0", "no server"),
            ("fd00:2::b+70000", "number"),
            ("fd00:2:b+4", "address"),
            ("ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff+2", "exceeds the address range"),
            ("fe80::1+4", "not routable"),
            ("ff02::1", "not routable"),
            ("::+4", "not routable"),
            ("::ffff:10.0.2.11+4", "not routable"),
        ] {
            let error = text.parse::<Servers>().unwrap_err();
            assert!(error.contains(part) && error.contains(text), "{error}");
        }
    }

    #[test]
    fn worker_ids_map_to_servers_and_places() {
        for text in ["10.0.2.11+2", "fd00:2::ffff+2"] {
            let servers: Servers = text.parse().unwrap();
            let layout = Layout::new(servers, 3, 10).unwrap();
            // Server 0 has the workers 10 to 12 at places 0 to 2, server 1 the workers 13 to 15 at places 3 to 5.
            let places: Vec<_> = (9..17).map(|id| layout.place(id, 0)).collect();
            assert_eq!(places, [None, Some(0), Some(1), Some(2), None, None, None, None]);
            let places: Vec<_> = (9..17).map(|id| layout.place(id, 1)).collect();
            assert_eq!(places, [None, None, None, None, Some(3), Some(4), Some(5), None]);
            assert_eq!((layout.place(16, 2), layout.place(12, u16::MAX)), (None, None));
            let ranges: Vec<_> = layout.servers().map(|(_, first, last)| (first, last)).collect();
            assert_eq!(ranges, [(10, 12), (13, 15)]);
            assert_eq!((layout.workers(), layout.id(5)), (6, 15));
            for (number, (address, first, _)) in layout.servers().enumerate() {
                let (v4, v6) = match address {
                    IpAddr::V4(address) => (address.to_bits(), 0),
                    IpAddr::V6(address) => (0, address.to_bits()),
                };
                let found = (layout.server_v4(v4), layout.server_v6(v6));
                let number = Some(number as u16);
                assert_eq!(found, if v6 == 0 { (number, None) } else { (None, number) });
                assert!(layout.has_server(address) && layout.server_of(first) == Some(address));
            }
            for address in ["10.0.2.10", "10.0.2.13", "fd00:2::fffe", "fd00:2::1:1", "::"] {
                assert!(!layout.has_server(address.parse().unwrap()), "{address}");
            }
        }
    }

    #[test]
    fn impossible_layouts_are_refused() {
        let servers: Servers = "10.0.2.11+4".parse().unwrap();
        assert!(Layout::new(servers, 0, 0).unwrap_err().contains("0 workers"));
        assert!(Layout::new(servers, 1025, 0).unwrap_err().contains("4100 workers"));
        assert!(Layout::new(servers, 1024, 0).is_ok());
        // The four ids 0x7FFC to 0x7FFF end one beyond the last id.
        assert!(Layout::new(servers, 1, 0x7FFC).unwrap_err().contains("beyond the last id"));
    }
}
