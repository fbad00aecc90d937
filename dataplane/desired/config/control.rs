//! `[control]`: TCP addresses for changing and monitoring a node, in addition to the socket at its state
//! file.
//!
//! `FaultCollector` collects faults, so that one check finds all. `at` is a value of the file with its place in the
//! text.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use toml::Spanned;

use super::faults::{FaultCollector, quoted};
use super::raw_control;

/// TCP addresses of a node, for changes and metrics, or of a controller, for changes and its nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ControlConfig {
    /// Address that accepts changes.
    pub listen: Option<SocketAddr>,
    /// Files of mutual TLS; `None` only on a loopback address.
    pub tls: Option<TlsConfig>,
    /// Address that serves /metrics; `None` at a controller.
    pub metrics: Option<SocketAddr>,
}

/// Files of mutual TLS, in PEM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsConfig {
    /// Certificate of the node, with its chain.
    pub certificate: PathBuf,
    /// Private key of the node.
    pub key: PathBuf,
    /// Authority that signs the certificates of clients that may connect to `listen`.
    pub clients_ca: PathBuf,
}

/// Returns the checked table; no addresses for a file without it.
pub fn control(faults: &mut FaultCollector) -> ControlConfig {
    let raw = faults.file.entries("control", raw_control::Control::of).pop();
    let Some(raw) = raw else { return ControlConfig::default() };
    let listen = address(faults, raw.listen.as_ref(), "control.listen");
    let files = [&raw.certificate, &raw.key, &raw.clients_ca];
    let tls = match files {
        [Some(certificate), Some(key), Some(clients_ca)] => {
            let path = |file: &Spanned<String>| PathBuf::from(file.get_ref());
            let [certificate, key, clients_ca] = [certificate, key, clients_ca].map(path);
            Some(TlsConfig { certificate, key, clients_ca })
        }
        files => {
            if let Some(at) = files.into_iter().flatten().next() {
                let allowed = "all of `certificate`, `key` and `clients_ca`, or none";
                faults.note(at, "control", "not all files of TLS", allowed);
            }
            None
        }
    };
    if let (Some(at), Some(address), None) = (&raw.listen, listen, &tls)
        && !address.ip().is_loopback()
    {
        let found = format!("{} without TLS", quoted(at));
        let allowed = "a loopback address such as 127.0.0.1:7070, or `certificate`, `key` and `clients_ca` beside it";
        faults.note(at, "control.listen", found, allowed);
    }
    if let (Some(at), None) = (&raw.certificate, &raw.listen) {
        faults.note(at, "control.certificate", quoted(at), "`listen` beside it");
    }
    let metrics = address(faults, raw.metrics.as_ref(), "control.metrics");
    if let (Some(at), Some(metrics), Some(listen)) = (&raw.metrics, metrics, listen)
        && overlap(metrics, listen)
    {
        let found = format!("{}, and {listen} for `listen`", quoted(at));
        let allowed = "another port than that of `listen`";
        faults.note(at, "control.metrics", found, allowed);
    }
    ControlConfig { listen, tls, metrics }
}

/// Returns true if two listeners cannot bind these addresses at the same time: the ports are equal, and the IP
/// addresses are equal or one is unspecified. Port 0 never overlaps, because the system picks a free port.
fn overlap(one: SocketAddr, other: SocketAddr) -> bool {
    let ips = [one.ip().to_canonical(), other.ip().to_canonical()];
    // `::` covers all addresses, including IPv4; 0.0.0.0 covers IPv4.
    let covers =
        |ip: IpAddr, other: IpAddr| ip.is_unspecified() && (ip.is_ipv6() || other.is_ipv4());
    one.port() == other.port()
        && one.port() != 0
        && (ips[0] == ips[1] || covers(ips[0], ips[1]) || covers(ips[1], ips[0]))
}

/// Parses an address with a port, and records its canonical form for reloads. Records a fault and returns `None` for an
/// invalid one.
fn address(
    faults: &mut FaultCollector,
    at: Option<&Spanned<String>>,
    key: &str,
) -> Option<SocketAddr> {
    let at = at?;
    let address: Option<SocketAddr> = at.get_ref().parse().ok();
    faults.record(at, address);
    if address.is_none() {
        let allowed = "an address and a port such as 127.0.0.1:7070 or [::1]:7070";
        faults.note(at, key, quoted(at), allowed);
    }
    address
}
