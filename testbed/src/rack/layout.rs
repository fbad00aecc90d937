//! Which workers there are, and on which servers they live.

use std::fmt;
use std::net::Ipv4Addr;
use std::str::FromStr;

/// Workers that one rack emulates at most.
pub const WORKERS_MAX: usize = 4096;

/// Neighbouring addresses, written as the first of them and how many: `10.0.2.11+4`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Servers {
    /// The first server's address.
    pub first: Ipv4Addr,
    /// How many servers.
    pub count: u16,
}

impl FromStr for Servers {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (first, count) = text.split_once('+').unwrap_or((text, "1"));
        let refuse = |what: &str| {
            format!("`{text}` {what}; write the first address and the number, as in 10.0.2.11+4")
        };
        let first: Ipv4Addr =
            first.parse().map_err(|_| refuse("does not start with an address"))?;
        let count: u16 = count.parse().map_err(|_| refuse("does not end with a number"))?;
        if count == 0 || u32::from(first).checked_add(u32::from(count) - 1).is_none() {
            return Err(refuse("names no server, or more than there are addresses"));
        }
        Ok(Self { first, count })
    }
}

impl fmt::Display for Servers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}+{}", self.first, self.count)
    }
}

/// Servers with the same number of workers each. Worker ids are global and consecutive: the first server has
/// `first_worker` and those behind it, the next server goes on where it ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    servers: Servers,
    workers_per_server: u16,
    first_worker: u16,
}

impl Layout {
    /// The layout of `servers` with so many workers each.
    ///
    /// # Errors
    /// For no worker, more than [`WORKERS_MAX`], or ids beyond what the wire format holds.
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
                "worker {last} would be the last of {workers} from {first_worker} on; ids end at {}",
                wedjat::limits::WORKER_ID_MAX
            ));
        }
        Ok(Self { servers, workers_per_server, first_worker })
    }

    /// Number of workers.
    #[must_use]
    pub fn workers(&self) -> u16 {
        self.servers.count * self.workers_per_server
    }

    /// The servers' addresses with their first and last worker.
    pub fn servers(&self) -> impl Iterator<Item = (Ipv4Addr, u16, u16)> {
        (0..self.servers.count).map(|server| {
            let first = self.first_worker + server * self.workers_per_server;
            (self.address(server), first, first + (self.workers_per_server - 1))
        })
    }

    fn address(&self, server: u16) -> Ipv4Addr {
        Ipv4Addr::from(u32::from(self.servers.first) + u32::from(server))
    }

    /// One of the servers has this address.
    #[inline]
    #[must_use]
    pub fn has_server(&self, address: u32) -> bool {
        address.wrapping_sub(u32::from(self.servers.first)) < u32::from(self.servers.count)
    }

    /// The address of the server that worker `id` lives on.
    #[must_use]
    pub fn server_of(&self, id: u16) -> Option<Ipv4Addr> {
        let server = id.checked_sub(self.first_worker)? / self.workers_per_server;
        (server < self.servers.count).then(|| self.address(server))
    }

    /// The place of worker `id` among the rack's, if it lives on the server of this address.
    #[inline]
    #[must_use]
    pub fn place(&self, id: u16, address: u32) -> Option<u16> {
        let server = address.wrapping_sub(u32::from(self.servers.first));
        let place = id.checked_sub(self.first_worker)?;
        (u32::from(place / self.workers_per_server) == server
            && server < u32::from(self.servers.count))
        .then_some(place)
    }

    /// The place of worker `id`.
    #[must_use]
    pub fn place_of(&self, id: u16) -> Option<u16> {
        id.checked_sub(self.first_worker).filter(|place| *place < self.workers())
    }

    /// The id of the worker at a place.
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
    fn servers_are_read_and_refused() {
        let servers: Servers = "10.0.2.11+4".parse().unwrap();
        assert_eq!((servers.to_string().as_str(), servers.count), ("10.0.2.11+4", 4));
        assert_eq!("10.0.2.11".parse::<Servers>().unwrap().count, 1);
        for (text, part) in [
            ("10.0.2+4", "address"),
            ("10.0.2.11+", "number"),
            ("10.0.2.11+0", "no server"),
            ("255.255.255.255+2", "more than there are"),
        ] {
            let error = text.parse::<Servers>().unwrap_err();
            assert!(error.contains(part) && error.contains(text), "{error}");
        }
    }

    #[test]
    fn workers_live_on_their_own_server_only() {
        let servers: Servers = "10.0.2.11+2".parse().unwrap();
        let layout = Layout::new(servers, 3, 10).unwrap();
        let first = u32::from(Ipv4Addr::new(10, 0, 2, 11));
        let places: Vec<_> = (9..17).map(|id| layout.place(id, first)).collect();
        assert_eq!(places, [None, Some(0), Some(1), Some(2), None, None, None, None]);
        let places: Vec<_> = (9..17).map(|id| layout.place(id, first + 1)).collect();
        assert_eq!(places, [None, None, None, None, Some(3), Some(4), Some(5), None]);
        assert_eq!(layout.place(16, first + 2), None);
        assert_eq!(layout.place(12, first.wrapping_sub(1)), None);
        let ranges: Vec<_> = layout.servers().map(|(_, first, last)| (first, last)).collect();
        assert_eq!(ranges, [(10, 12), (13, 15)]);
        assert_eq!((layout.workers(), layout.id(5)), (6, 15));
    }

    #[test]
    fn impossible_layouts_are_refused() {
        let servers: Servers = "10.0.2.11+4".parse().unwrap();
        assert!(Layout::new(servers, 0, 0).unwrap_err().contains("0 workers"));
        assert!(Layout::new(servers, 1025, 0).unwrap_err().contains("4100 workers"));
        assert!(Layout::new(servers, 1024, 0).is_ok());
        assert!(Layout::new(servers, 1, 0x7FFC).unwrap_err().contains("ids end at"));
    }
}
