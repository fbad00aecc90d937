//! Checks of DPDK: its library, its drivers, the sockets of its memif devices, and the properties of open devices.
//!
//! `wedjat doctor` runs them before a start. A memif device exchanges packets with another process through shared
//! memory. One process is the server of the device's socket, its peer the client.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use wedjat_core::nearest::did_you_mean;
use wedjat_desired::config::NodeConfig;
use wedjat_dpdk::{DeviceProperties, ServerAddress, SocketError, Spread};
use wedjat_dpdk::{driver_folder, linked_statically, server_address, version};

use super::{Device, Finding, Machine, Status};
use crate::run;

/// Drivers with which wedjat runs without a NIC, by their names in EAL's arguments.
const VIRTUAL_DRIVERS: [&str; 6] =
    ["net_memif", "net_af_packet", "net_af_xdp", "net_pcap", "net_null", "net_ring"];

/// Checks the shared library and its drivers. A library that is linked statically contains all its drivers.
pub fn library(machine: &Machine, devices: &[Device]) -> Vec<Finding> {
    let version = match version() {
        Ok(version) => version,
        Err(error) => {
            let status = if devices.is_empty() { Status::Warn } else { Status::Fail };
            return vec![Finding::new(status, "libdpdk", error.to_string(), "")];
        }
    };
    if linked_statically() {
        return vec![Finding::ok(
            "libdpdk",
            format!("{version}, linked statically with every driver"),
        )];
    }
    let folder = driver_folder();
    let files = machine.names(folder);
    let mut findings = vec![Finding::ok("libdpdk", format!("{version}, drivers in {folder}"))];
    // The driver `net_memif` is the file `librte_net_memif.so`, with or without a version after `.so`.
    let installed = files.iter().filter_map(|file| file.strip_prefix("librte_")?.split_once(".so"));
    let installed: BTreeSet<&str> = installed.map(|(driver, _)| driver).collect();
    findings.extend(drivers(&installed, devices, folder));
    findings
}

/// Returns a failure for each driver that a device needs and `folder` lacks, then the list of virtual drivers.
/// `installed` holds the names of the drivers in `folder`.
fn drivers(installed: &BTreeSet<&str>, devices: &[Device], folder: &str) -> Vec<Finding> {
    // The file of most drivers has the driver's name.
    let file = |driver: &str| match driver {
        "net_virtio_user" => "net_virtio".to_owned(),
        "net_bonding" => "net_bond".to_owned(),
        _ => driver.to_owned(),
    };
    let has = |driver: &&str| installed.contains(file(driver).as_str());
    let needed: BTreeSet<&str> =
        devices.iter().filter_map(|device| device.driver.as_deref()).collect();
    let missing = needed.iter().filter(|driver| !has(driver)).map(|driver| {
        let package = file(driver).replace('_', "-");
        let fix = format!(
            "correct the device's name, or install the driver (Debian, Ubuntu: apt-get install 'librte-{package}*')"
        );
        let known = VIRTUAL_DRIVERS.into_iter().chain(installed.iter().copied());
        let suggestion = did_you_mean(driver, known);
        Finding::fail("driver", format!("no {driver} in {folder}{suggestion}"), fix)
    });
    let mut findings: Vec<Finding> = missing.collect();
    let (present, absent): (Vec<&str>, Vec<&str>) = VIRTUAL_DRIVERS.into_iter().partition(has);
    let mut found = if present.is_empty() { "none".to_owned() } else { present.join(" ") };
    if !absent.is_empty() {
        let _ = write!(found, " (not installed: {})", absent.join(" "));
    }
    findings.push(Finding::ok("virtual drivers", found));
    findings
}

/// Checks that the socket of a memif server is free, or that a client finds its server. `name` is the finding's name.
pub fn memif_socket(device: &Device, name: &str) -> Finding {
    match server_address(&device.text) {
        Err(error) => Finding::fail(name, error.to_string(), ""),
        Ok(ServerAddress { socket, is_server: true, is_served: true }) => Finding::fail(
            name,
            SocketError::Served(socket).to_string(),
            "stop the process that serves it, or give this device a socket= of its own",
        ),
        Ok(ServerAddress { socket, is_server: false, is_served: false }) => Finding::warn(
            name,
            format!(
                "a memif client, and no process serves {socket} yet: a start waits for it, 10 s or --peer-timeout"
            ),
            "start the side with role=server first, as the same user, with the same socket= and id=",
        ),
        Ok(ServerAddress { socket, is_server, .. }) => {
            let action = if is_server { "serves" } else { "connects to" };
            Finding::ok(name, format!("EAL makes it with net_memif; it {action} {socket}"))
        }
    }
}

/// Opens the ports of a node as its start would, but without waiting for memif servers. Returns their properties, which
/// only an open device shows. `task_port` is the UDP port of tasks at a leaf or spine, whose devices steer each reply
/// to the core of its task; `None` for an agent.
pub fn probe(config: NodeConfig<'_>, eal: &[String], task_port: Option<u16>) -> Vec<Finding> {
    match run::probe(config, eal, task_port) {
        Err(error) => vec![Finding::fail("ports", error.to_string(), "")],
        Ok(devices) => {
            let ports = devices.iter().enumerate();
            ports.flat_map(|(port, device)| port_findings(port, device)).collect()
        }
    }
}

/// Returns the properties of a port's device as findings. Warns if one of several cores would receive all packets, and
/// about a cloud's NIC.
fn port_findings(port: usize, device: &DeviceProperties) -> Vec<Finding> {
    let name = format!("port {port}");
    let known = |value: Option<String>| value.unwrap_or_else(|| "unknown".to_owned());
    let node = known(device.node.map(|node| node.to_string()));
    let mtu = known(device.mtu.map(|mtu| mtu.to_string()));
    let firmware = known(device.firmware.clone());
    let ((rx, rx_max), (tx, tx_max)) = (device.rx_queues, device.tx_queues);
    let offloads = match device.offloads.as_slice() {
        [] => "none".to_owned(),
        names => names.join(" "),
    };
    // The RSS key selects the receive queue of a packet. The key of some devices is fixed.
    let key = match device.key_bytes {
        0 => "fixed key".to_owned(),
        bytes => format!("key of {bytes} bytes"),
    };
    let rss = match (device.hashes_udp, device.hashes_one_end) {
        (false, _) => "hashes no UDP".to_owned(),
        (true, false) => {
            format!("hashes both ends of UDP; {key}, table of {} entries", device.table_entries)
        }
        (true, true) => "hashes one end of UDP alone, if asked to".to_owned(),
    };
    let interrupts = if device.has_interrupts { "set up" } else { "not used" };
    let mut findings = vec![
        Finding::ok(&name, format!("{} ({})", device.name, device.driver)),
        Finding::ok(&name, format!("firmware {firmware}, MTU {mtu}, NUMA node {node}")),
        Finding::ok(
            &name,
            format!("receive queues: {rx} of {rx_max}, transmit queues: {tx} of {tx_max}"),
        ),
        Finding::ok(
            &name,
            format!("receive offloads: {offloads}; receive interrupts: {interrupts}"),
        ),
        Finding::ok(&name, format!("RSS: {rss}")),
    ];
    if rx > 1 {
        let spread = format!("packets are spread over the cores by {}", device.spread);
        findings.push(match device.spread {
            Spread::None => Finding::warn(&name, spread, "use one core, or another NIC"),
            _ => Finding::ok(&name, spread),
        });
    }
    findings.extend(recipe(&device.driver).map(|text| Finding::warn(&name, text, "")));
    findings
}

/// Returns advice for the NICs of clouds, from DPDK's guides. It was not tried with wedjat.
fn recipe(driver: &str) -> Option<&'static str> {
    match driver {
        "net_ena" => Some(
            "AWS, not tried: low-latency queues need write combining: igb_uio with wc_activate=1, or a vfio-pci that has it",
        ),
        "net_gve" => {
            Some("Google Cloud, not tried: DPDK 24.03 or later sets keys and tables of RSS")
        }
        "net_netvsc" | "net_mana" | "net_failsafe" => Some(
            "Azure, not tried: net_netvsc with uio_hv_generic moves to its virtual function and back; prefer it to failsafe",
        ),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::super::presence;
    use super::*;

    #[test]
    fn driver_with_another_file_name_is_found() {
        let installed = BTreeSet::from(["net_virtio", "net_bond"]);
        let device = |text| Device::new(text, &[]);
        let found = |text| drivers(&installed, &[device(text)], "/drivers");
        for text in ["net_virtio_user0,path=/run/socket", "net_bonding0"] {
            let findings = found(text);
            assert!(findings.iter().all(|one| one.status != Status::Fail), "{findings:?}");
        }
        assert!(found("net_tap0").iter().any(|one| one.status == Status::Fail));
    }

    // promise: running.1
    #[test]
    fn served_memif_socket_fails_servers_and_suits_clients() {
        use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let device = |role: &str| format!("net_memif0,role={role},socket={}", path.display());
        let check_device =
            |device: &str| presence(&Machine { root: folder.path() }, &Device::new(device, &[]));
        let check = |role: &str| check_device(&device(role));
        assert_eq!((check("server").status, check("client").status), (Status::Ok, Status::Warn));
        // The test serves the socket in place of a memif server.
        let socket = rustix::net::socket_with(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )
        .unwrap();
        rustix::net::bind(&socket, &SocketAddrUnix::new(&path).unwrap()).unwrap();
        rustix::net::listen(&socket, 1).unwrap();
        let served = check("server");
        assert_eq!((served.status, check("client").status), (Status::Fail, Status::Ok));
        assert!(served.found.contains("another process serves it"), "{served:?}");
        drop(socket);
        assert_eq!(check("server").status, Status::Ok, "a start replaces a dead server's socket");
        fs::remove_file(&path).unwrap();
        fs::write(&path, "a file").unwrap();
        let occupied = check("server");
        assert_eq!(occupied.status, Status::Fail);
        assert!(occupied.found.contains("another file exists there"), "{occupied:?}");
        let misspelt = check_device("net_memif0,rolle=server");
        assert_eq!(misspelt.status, Status::Fail);
        assert!(misspelt.found.contains("did you mean `role`"), "{misspelt:?}");
    }

    #[test]
    fn misspelt_driver_gets_the_nearest_name() {
        // The first finding is that of the missing driver.
        let misspelt = |device: &str| {
            let devices = [Device::new(device, &[])];
            let installed = ["net_af_packet", "net_memif", "net_ixgbe"].into();
            drivers(&installed, &devices, "/drivers").remove(0)
        };
        for (device, suggestion) in [
            ("net_afpacket0,iface=eth0", " (did you mean `net_af_packet`?)"),
            ("net_memfi0", " (did you mean `net_memif`?)"),
            ("net_af_xpd0", " (did you mean `net_af_xdp`?)"), // although the driver is not installed
            ("net_unlike_any0", ""),
        ] {
            let finding = misspelt(device);
            assert_eq!(finding.status, Status::Fail);
            assert!(finding.found.ends_with(&format!(" in /drivers{suggestion}")), "{finding:?}");
        }
    }
}
