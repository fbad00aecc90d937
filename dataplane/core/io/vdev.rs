//! Device texts of the configuration: a PCI address or a virtual device's name, with arguments of its driver. An
//! unknown argument is found here, because a driver may ignore it silently.

use crate::nearest::did_you_mean;

/// Kernel drivers that pass a NIC to a process.
pub const PASSING_DRIVERS: [&str; 3] = ["vfio-pci", "uio_pci_generic", "igb_uio"];

/// Kernel drivers that work beside DPDK's drivers (mlx4, mlx5 and MANA guides: bifurcated).
pub const BIFURCATED_DRIVERS: [&str; 3] = ["mlx4_core", "mlx5_core", "mana"];

/// Drivers without hardware that may carry packets of kernel sockets. Such packets may have checksums that were left to
/// a device.
pub const SOFTWARE_DRIVERS: [&str; 5] =
    ["net_af_packet", "net_af_xdp", "net_tap", "net_vhost", "net_virtio_user"];

/// Known arguments of drivers (DPDK 21.11 to 26.07), including those of memif that wedjat itself reads.
/// Drivers missing from the list are not checked.
const KNOWN: [(&str, &[&str]); 5] = [
    ("net_memif", &MEMIF),
    ("net_af_packet", &AF_PACKET),
    ("net_af_xdp", &AF_XDP),
    ("net_pcap", &PCAP),
    ("net_null", &["size", "copy", "no-rx"]),
];
const MEMIF: [&str; 12] = [
    "role",
    "id",
    "socket",
    "socket-abstract",
    "users",
    "bsize",
    "rsize",
    "secret",
    "mac",
    "zero-copy",
    "owner-uid",
    "owner-gid",
];
const AF_PACKET: [&str; 7] =
    ["iface", "qpairs", "blocksz", "framesz", "framecnt", "qdisc_bypass", "fanout_mode"];
const AF_XDP: [&str; 10] = [
    "iface",
    "start_queue",
    "queue_count",
    "shared_umem",
    "xdp_prog",
    "busy_budget",
    "force_copy",
    "use_cni",
    "use_pinned_map",
    "dp_path",
];
const PCAP: [&str; 8] = [
    "rx_pcap",
    "tx_pcap",
    "rx_iface",
    "rx_iface_in",
    "tx_iface",
    "iface",
    "phy_mac",
    "infinite_rx",
];

/// Returns a device's name without its arguments.
#[must_use]
pub fn name(device: &str) -> &str {
    device.split(',').next().unwrap_or_default()
}

/// Returns the driver of a virtual device: `net_memif` of `net_memif0`. `None` for a PCI address. DPDK also accepts the
/// old prefix `eth_`.
#[must_use]
pub fn driver(device: &str) -> Option<String> {
    let name = name(device);
    let is_virtual = !is_pci_address(name);
    is_virtual.then(|| name.trim_end_matches(|c: char| c.is_ascii_digit()).replace("eth_", "net_"))
}

/// Iterates over the arguments after a device's name, as keys and values.
pub fn arguments(device: &str) -> impl Iterator<Item = (&str, &str)> {
    let words = device.split(',').skip(1).filter(|word| !word.is_empty());
    words.map(|word| word.split_once('=').unwrap_or((word, "")))
}

/// Returns the value of the last argument with this name.
#[must_use]
pub fn argument<'a>(device: &'a str, key: &str) -> Option<&'a str> {
    arguments(device).filter(|(name, _)| *name == key).last().map(|(_, value)| value)
}

/// Returns true for `[domain:]bus:device.function`, possibly with driver arguments after a comma.
#[must_use]
pub fn is_pci_address(device: &str) -> bool {
    let Some((rest, function)) = name(device).rsplit_once('.') else {
        return false;
    };
    let parts: Vec<&str> = rest.split(':').collect();
    (2..=3).contains(&parts.len())
        && function.len() == 1
        && std::iter::once(&function)
            .chain(&parts)
            .all(|part| u32::from_str_radix(part, 16).is_ok())
}

/// An argument unknown to its driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownArgument {
    /// The argument, and the nearest known one.
    pub found: String,
    /// Known arguments.
    pub known: String,
    /// True if the driver silently ignores all arguments of the device because of an unknown one.
    pub is_silent: bool,
}

/// Returns the first argument of a device that its driver does not know.
#[must_use]
pub fn unknown_argument(device: &str) -> Option<UnknownArgument> {
    let driver = driver(device)?;
    let (_, known) = KNOWN.iter().find(|(name, _)| *name == driver)?;
    let (key, _) = arguments(device).find(|(key, _)| !known.contains(key))?;
    let suggestion = did_you_mean(key, known.iter().copied());
    Some(UnknownArgument {
        found: format!("`{key}` among the arguments of {}{suggestion}", name(device)),
        known: known.join(", "),
        is_silent: driver == "net_memif",
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    // promise: input.2
    #[test]
    fn arguments_that_no_driver_knows_are_found() {
        for right in [
            "net_memif0,role=server,id=0,socket=wedjat,users=alice",
            "eth_af_packet0,iface=veth0,qpairs=2",
            "net_null0",
            "net_ring0,anything=1",
            "0000:03:00.0,txq_inline=64",
        ] {
            assert_eq!(unknown_argument(right), None, "{right}");
        }
        let wrong = unknown_argument("net_memif0,id=0,rolle=server").unwrap();
        assert_eq!(wrong.found, "`rolle` among the arguments of net_memif0 (did you mean `role`?)");
        assert!(wrong.is_silent && wrong.known.starts_with("role, id, socket,"));
        assert!(!unknown_argument("net_af_packet0,ifacee=veth0").unwrap().is_silent);
    }

    #[test]
    fn device_names_and_arguments_are_separated() {
        let device = "net_memif0,role=server,id=3,role=client,users";
        assert_eq!((name(device), driver(device).as_deref()), ("net_memif0", Some("net_memif")));
        assert_eq!((argument(device, "role"), argument(device, "id")), (Some("client"), Some("3")));
        assert_eq!((argument(device, "users"), argument(device, "none")), (Some(""), None));
        assert_eq!(driver("03:00.0"), None);
    }

    #[test]
    fn pci_addresses_are_distinguished_from_names() {
        for address in ["0000:03:00.0", "03:00.1", "0002:af:1f.7", "03:00.0,txq_inline=64"] {
            assert!(is_pci_address(address), "{address}");
        }
        for name in ["net_memif0", "net_pcap0,rx_pcap=a:b.c", "eth_af_packet0", "0.0", "", "x:y.z"]
        {
            assert!(!is_pci_address(name), "{name}");
        }
    }
}
