//! Ports: settings common to the files of a leaf, a spine and an agent. A port is a DPDK device with an address of the
//! node.

use std::net::IpAddr;

use toml::Spanned;
use wedjat_core::io::vdev;
use wedjat_core::limits::PORTS_MAX;
use wedjat_core::stage::{IpOptions, PortAddress, Side};
use wedjat_core::wire::address::Address;
use wedjat_core::wire::ether::Mac;

use super::address::{self, UNSPECIFIED, is_edge, is_routers, is_unicast, prefix_max, reaches};
use super::faults::{FaultCollector, UniqueKeys, quoted};
use super::raw_agent::Checksums;
use super::read::Table;

/// Port of a leaf, a spine or an agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortConfig {
    /// EAL name of the device, or its PCI address.
    pub device: String,
    /// Hosts on this port: clients, workers or both. At an agent always both.
    pub side: Side,
    /// Address of the node on this port.
    pub ip: IpAddr,
    /// Prefix length of the network in bits.
    pub prefix: u8,
    /// MAC address of the node; `None` for the device's.
    pub mac: Option<Mac>,
    /// Router to other networks.
    pub gateway: Option<IpAddr>,
    /// Number of slots of each receive and transmit queue.
    pub queue_slots: u16,
    /// VLAN of the packets on this port; `None` for untagged packets.
    pub vlan: Option<u16>,
    /// True to accept checksums that the device has not verified.
    pub trust_checksums: bool,
    /// IPv4 options allowed in tasks.
    pub ip_options: IpOptions,
}

impl PortConfig {
    /// Returns the node's addresses on this port. `device` is the device's MAC address.
    #[must_use]
    pub fn address(&self, device: Mac) -> PortAddress {
        let mac = self.mac.unwrap_or(device);
        let mut address = PortAddress::new(mac, self.ip, self.prefix, self.side);
        address.ip_options = self.ip_options;
        address.gateway = self.gateway.and_then(u32::from_ip);
        address.v6.iter_mut().for_each(|v6| v6.gateway = self.gateway.and_then(u128::from_ip));
        address
    }

    /// Returns true if `address` is on this port's network, and therefore needs no router.
    #[must_use]
    pub fn reaches(&self, address: IpAddr) -> bool {
        reaches(self.ip, self.prefix, address)
    }
}

/// Keys of a `[[port]]` as the file has them. The file of a leaf or spine and that of an agent have an entry type each,
/// which they convert to this one for the same checks. `Spanned` is a value with its place in the text.
pub struct Keys<'a> {
    /// Number of the entry in the file, to read its other keys by name.
    pub table: Table,
    pub device: &'a Spanned<String>,
    pub ip: &'a Spanned<String>,
    pub mac: Option<&'a Spanned<String>>,
    pub gateway: Option<&'a Spanned<String>>,
}

impl Keys<'_> {
    /// Returns the port for these keys, with both sides (clients and workers) and the default IPv4 options. The
    /// caller for a leaf or spine sets both fields. Records faults, and continues with 0.0.0.0 in place of an invalid
    /// address, so that one check reports all faults.
    pub fn check(&self, faults: &mut FaultCollector) -> PortConfig {
        if self.device.get_ref().is_empty() {
            let allowed = "EAL's name of a device (net_memif0) or a PCI address (0000:03:00.0)";
            faults.note(self.device, "port.device", "nothing", allowed);
        }
        if let Some(unknown) = vdev::unknown_argument(self.device.get_ref()) {
            // After an unknown argument, net_memif silently ignores all others. Other drivers refuse it at the
            // start, or a newer one knows it.
            match unknown.is_silent {
                true => faults.note(self.device, "port.device", unknown.found, &unknown.known),
                false => faults.warn(self.device, "port.device", unknown.found, &unknown.known),
            }
        }
        let (ip, prefix) = network(self.ip.get_ref()).unwrap_or_else(|| {
            let allowed = "a host's address with its prefix such as 10.0.1.1/24 or fd00:1::1/64";
            faults.note(self.ip, "port.ip", quoted(self.ip), allowed);
            (UNSPECIFIED, 0)
        });
        faults.record(self.ip, Some(format!("{ip}/{prefix}")));
        let gateway = self.gateway.map(|gateway| {
            let allowed = "a host's address, IPv4 or IPv6 as `port.ip` is";
            // If `ip` is invalid, which is a fault already, any gateway is accepted.
            let is_of_family = |address: IpAddr| {
                is_routers(address) && address.is_ipv4() == ip.is_ipv4() || !is_unicast(ip)
            };
            let address = faults.host(gateway, "port.gateway", is_of_family, allowed);
            let is_in_network =
                reaches(ip, prefix, address) && address != ip && !is_edge(address, prefix);
            // A link-local router is in no port's network. A refused address, 0.0.0.0, is a fault already.
            let fits = is_in_network || !is_unicast(address);
            if !fits && is_unicast(ip) {
                faults.note(
                    gateway,
                    "port.gateway",
                    quoted(gateway),
                    &address::allowed_hosts(ip, prefix),
                );
            }
            address
        });
        PortConfig {
            device: self.device.get_ref().clone(),
            side: Side::Both,
            ip,
            prefix,
            mac: faults.mac(self.mac, "port.mac"),
            gateway,
            vlan: faults.optional_number(self.table, "vlan"),
            trust_checksums: faults.word::<Checksums>(self.table, "checksums") == Checksums::Trust,
            ip_options: IpOptions::default(),
            queue_slots: faults.number(self.table, "queue_slots"),
        }
    }
}

/// Checks the number of ports, and that devices and addresses occur once.
pub fn check_together(faults: &mut FaultCollector, ports: &[Keys<'_>]) {
    if let Some(extra) = ports.get(PORTS_MAX) {
        let allowed = format!("at most {PORTS_MAX}");
        faults.note(extra.device, "port", format!("{} ports", ports.len()), &allowed);
    }
    let (mut names, mut addresses) = (UniqueKeys::new(), UniqueKeys::new());
    for port in ports {
        // A device's arguments follow its name. The name alone identifies the device.
        if names.is_again(vdev::name(port.device.get_ref())) {
            faults.note(port.device, "port.device", quoted(port.device), "each device once");
        }
        if network(port.ip.get_ref()).is_some_and(|(ip, _)| addresses.is_again(ip)) {
            let allowed = "an address of its own on each port";
            faults.note(port.ip, "port.ip", quoted(port.ip), allowed);
        }
    }
}

/// Parses an address with the prefix length of its network, as in 10.0.1.1/24. Returns `None` for another form, and for
/// an address that no host can have.
fn network(text: &str) -> Option<(IpAddr, u8)> {
    let (ip, prefix) = text.split_once('/')?;
    let ip: IpAddr = ip.parse().ok()?;
    let prefix: u8 = prefix.parse().ok().filter(|&prefix| prefix <= prefix_max(ip))?;
    (is_unicast(ip) && !is_edge(ip, prefix)).then_some((ip, prefix))
}
