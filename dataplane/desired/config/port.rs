//! Ports: settings common to the files of a leaf, a spine and an agent. A port is a DPDK device with an address of the
//! node.

use std::net::IpAddr;

use wedjat_core::io::vdev;
use wedjat_core::limits::PORTS_MAX;
use wedjat_core::stage::{IpOptions, PortAddress, Side};
use wedjat_core::wire::address::Address;
use wedjat_core::wire::ether::Mac;

use super::address::{self, UNSPECIFIED, is_edge, is_routers, is_unicast, prefix_max, reaches};
use super::faults::{FaultCollector, UniqueKeys, quoted};
use super::raw;
use super::raw_agent::Checksums;

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
    /// Reads a `[[port]]`. Records faults, and continues with 0.0.0.0 in place of an invalid address, so that one check
    /// reports all faults.
    pub(super) fn read(faults: &mut FaultCollector, raw: &raw::Port) -> Self {
        if raw.device.get_ref().is_empty() {
            let allowed = "EAL's name of a device (net_memif0) or a PCI address (0000:03:00.0)";
            faults.note(&raw.device, "port.device", "nothing", allowed);
        }
        if let Some(unknown) = vdev::unknown_argument(raw.device.get_ref()) {
            // After an unknown argument, net_memif silently ignores all others. Other drivers refuse it at the
            // start, or a newer one knows it.
            match unknown.is_silent {
                true => faults.note(&raw.device, "port.device", unknown.found, &unknown.known),
                false => faults.warn(&raw.device, "port.device", unknown.found, &unknown.known),
            }
        }
        let (ip, prefix) = network(raw.ip.get_ref()).unwrap_or_else(|| {
            let allowed = "a host's address with its prefix such as 10.0.1.1/24 or fd00:1::1/64";
            faults.note(&raw.ip, "port.ip", quoted(&raw.ip), allowed);
            (UNSPECIFIED, 0)
        });
        faults.record(&raw.ip, Some(format!("{ip}/{prefix}")));
        let gateway = raw.gateway.as_ref().map(|gateway| {
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
        if let Some(at) = raw.ip_options.as_ref().filter(|_| ip.is_ipv6()) {
            let allowed = "no such key: `port.ip` is an IPv6 address";
            faults.note(at, "port.ip_options", "IPv4 options on an IPv6 port", allowed);
        }
        Self {
            device: raw.device.get_ref().clone(),
            side: raw.side.as_ref().map_or(Side::Both, |at| *at.get_ref()),
            ip,
            prefix,
            mac: faults.mac(raw.mac.as_ref(), "port.mac"),
            gateway,
            vlan: faults.optional_number(raw.table, "vlan"),
            trust_checksums: faults.word::<Checksums>(raw.table, "checksums") == Checksums::Trust,
            ip_options: raw.ip_options.as_ref().map(|at| *at.get_ref()).unwrap_or_default(),
            queue_slots: faults.number(raw.table, "queue_slots"),
        }
    }

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

/// Checks the number of ports, and that devices and addresses occur once.
pub fn check_together(faults: &mut FaultCollector, ports: &[raw::Port]) {
    if let Some(extra) = ports.get(PORTS_MAX) {
        let allowed = format!("at most {PORTS_MAX}");
        faults.note(&extra.device, "port", format!("{} ports", ports.len()), &allowed);
    }
    let (mut names, mut addresses) = (UniqueKeys::new(), UniqueKeys::new());
    for port in ports {
        // A device's arguments follow its name. The name alone identifies the device.
        if names.is_again(vdev::name(port.device.get_ref())) {
            faults.note(&port.device, "port.device", quoted(&port.device), "each device once");
        }
        if network(port.ip.get_ref()).is_some_and(|(ip, _)| addresses.is_again(ip)) {
            let allowed = "an address of its own on each port";
            faults.note(&port.ip, "port.ip", quoted(&port.ip), allowed);
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
