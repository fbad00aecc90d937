//! Addresses and configuration of a leaf in lockstep, derived from the simulator's configuration. The layout of a rack
//! says which worker is on which server; all servers of a layout have the same number of workers.

use std::net::Ipv4Addr;
use std::path::Path;

use wedjat::wire::ether::Mac;
use wedjat_pktgen::target::Target;

use crate::demo::LeafConfig;
use crate::rack::{Layout, RackPort, Servers};
use crate::sim::rack::Config;

/// Name of the leaf's device on the clients' side.
pub const CLIENTS_DEVICE: &str = "net_memif0";
/// Name of the leaf's device on the workers' side.
pub const WORKERS_DEVICE: &str = "net_memif1";
/// The leaf's address on the clients' side.
const LEAF: Ipv4Addr = Ipv4Addr::new(10, 0, 1, 1);
/// The leaf's address on the workers' side.
const LEAF_WORKER_SIDE: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 1);
/// The clients' address.
const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 0, 1, 100);
/// Address of the first server.
const SERVER: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 11);
/// Maximum number of servers. Their addresses follow each other from [`SERVER`] on, within its network.
const SERVERS_MAX: usize = 200;
/// Number of servers, if all workers have one speed and divide evenly.
const SERVERS: usize = 4;
/// Worker pool.
const POOL: u16 = 1;
/// Number of tasks that may wait at the leaf. It exceeds the backlog of any stable system, so that it does not
/// affect a run.
pub const QUEUE: usize = 1 << 15;

/// Addresses of a leaf and its servers.
#[derive(Clone, Copy, Debug)]
pub struct LeafAddresses {
    layout: Layout,
}

impl LeafAddresses {
    /// Spreads the workers of the model's one rack over servers. The workers of a server have one speed.
    ///
    /// # Errors
    /// If a leaf's configuration cannot express them.
    pub fn new(config: &Config) -> Result<Self, String> {
        let workers = config.speeds.len();
        // The number of workers of a server divides the length of every run of workers with one speed.
        let group = config.speeds.chunk_by(|a, b| a == b).map(<[f64]>::len).reduce(gcd);
        // Workers of each server.
        let each = match group.unwrap_or(1) {
            all if all == workers && workers.is_multiple_of(SERVERS) => workers / SERVERS,
            size => size,
        };
        if workers / each > SERVERS_MAX {
            return Err(format!(
                "--speeds: workers of one speed need {} servers; at most {SERVERS_MAX} are allowed; place workers of one \
                 speed next to each other",
                workers / each
            ));
        }
        let servers = Servers { first: SERVER.into(), count: (workers / each) as u16 };
        let each = u16::try_from(each).map_err(|_| format!("{workers} workers"))?;
        Ok(Self { layout: Layout::new(servers, each, 0)? })
    }

    /// Returns the addresses and the pool that the clients, with this MAC address, send tasks with.
    #[must_use]
    pub fn target(&self, mac: Mac) -> Target {
        Target { pool: POOL, ..Target::new(mac, CLIENT.to_bits(), LEAF.to_bits()) }
    }

    /// Returns the addresses of the workers, with this MAC address.
    #[must_use]
    pub fn address(&self, mac: Mac) -> RackPort {
        RackPort { mac, layout: self.layout, udp_port: wedjat::wire::task::UDP_PORT }
    }

    /// Returns the leaf's configuration, with its first dispatcher on CPU `core`.
    #[must_use]
    pub fn leaf<'a>(&self, config: &'a Config, core: usize, state: &'a Path) -> LeafConfig<'a> {
        let have_one_speed = config.speeds.windows(2).all(|pair| pair[0] == pair[1]);
        LeafConfig {
            policy: &config.leaf,
            layout: self.layout,
            clients_ip: LEAF,
            workers_ip: LEAF_WORKER_SIDE,
            clients_device: CLIENTS_DEVICE,
            workers_device: WORKERS_DEVICE,
            pool: POOL,
            udp_port: wedjat::wire::task::UDP_PORT,
            core,
            cores: config.cores.count,
            state,
            seed: config.seed,
            queue: Some(QUEUE),
            // The simulator's leaf does not compare the workers' reports with its own counts of sent tasks.
            shared_workers: true,
            speeds: if have_one_speed { &[] } else { &config.speeds },
        }
    }
}

/// Returns the greatest common divisor.
fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::{SimArgs, model::Model, plan};

    /// Returns the simulator's configuration of one rack with these workers and speeds.
    fn config(workers: &str, speeds: &str) -> Config {
        let args = SimArgs {
            racks: Some(workers.to_owned()),
            speeds: Some(speeds.to_owned()),
            digest: Some("yes".to_owned()),
            ..SimArgs::default()
        };
        match plan::cells(&args).unwrap().remove(0).model {
            Model::Rack(config) => config,
            _ => panic!("another model"),
        }
    }

    /// Each case: workers, their speeds, and the expected servers with the workers of each.
    #[test]
    fn workers_of_one_speed_share_servers() {
        for (workers, speeds, servers, each) in [
            ("32", "32x1", 4, 8),
            ("7", "7x2", 1, 7),
            ("12", "4x1,8x4", 3, 4),
            ("5", "2x1,3x2", 5, 1),
        ] {
            let config = config(workers, speeds);
            let addresses = LeafAddresses::new(&config).unwrap();
            let text = addresses.leaf(&config, 0, Path::new("state")).toml();
            let read = wedjat::config::Config::parse(Path::new("leaf.toml"), &text).unwrap();
            assert_eq!(read.servers.len(), servers, "{speeds}");
            assert!(read.servers.iter().all(|server| server.workers.len() == each), "{speeds}");
            let speeds: Vec<_> = read
                .servers
                .iter()
                .flat_map(|server| vec![server.speed; server.workers.len()])
                .collect();
            // Without different speeds the configuration states none. The last two cases have different ones.
            let have_one_speed = servers * each != 12 && servers != 5;
            assert!(have_one_speed || speeds == config.speeds, "{speeds:?}");
        }
        let error = LeafAddresses::new(&config("401", "400x1,1x2")).unwrap_err();
        assert!(error.contains("next to each other"), "{error}");
    }
}
