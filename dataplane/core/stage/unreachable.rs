//! Ranges of addresses that no reply of the node reaches.

/// Range of addresses that no reply of the node reaches, so no client has them. Its byte order is that of the
/// addresses to compare.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct UnreachableSource {
    pub network: u32,
    pub mask: u32,
}

impl UnreachableSource {
    /// Returns true if the address is in the range.
    pub fn is(self, address: u32) -> bool {
        (address ^ self.network) & self.mask == 0
    }

    /// Converts to packet byte order.
    pub fn to_be(self) -> Self {
        Self { network: self.network.to_be(), mask: self.mask.to_be() }
    }
}

/// List of such ranges.
pub(super) type UnreachableSources = Vec<UnreachableSource>;

/// Addresses without hosts: this network and loopback (RFC 1122, 3.2.1.3), multicast and reserved (RFC 1112).
pub(super) const NO_HOSTS: [UnreachableSource; 3] = [
    UnreachableSource { network: 0, mask: 0xFF00_0000 },
    UnreachableSource { network: 0x7F00_0000, mask: 0xFF00_0000 },
    UnreachableSource { network: 0xE000_0000, mask: 0xE000_0000 },
];

/// Range of addresses that no reply of the node reaches, in packet byte order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub(super) struct UnreachableV6 {
    pub network: u128,
    pub mask: u128,
}

impl UnreachableV6 {
    /// Creates the range of a network with this prefix length.
    pub fn new(network: u128, prefix: u32) -> Self {
        let mask = u128::MAX.checked_shl(128 - prefix).unwrap_or(0);
        Self { network: network & mask, mask }
    }

    /// Returns true if the address is in the range. Both must have the same byte order.
    #[inline(always)]
    pub fn is(&self, address: u128) -> bool {
        (address ^ self.network) & self.mask == 0
    }

    /// Converts to packet byte order.
    pub fn to_be(self) -> Self {
        Self { network: self.network.to_be(), mask: self.mask.to_be() }
    }
}

/// Returns the ranges refused by [`ipv6::is_unicast`](crate::wire::ipv6::is_unicast): addresses of 96 leading zeros (unspecified, loopback),
/// mapped IPv4 addresses, link-local addresses and groups.
pub(super) fn no_hosts_v6() -> [UnreachableV6; 4] {
    let v4 = (0xFFFF << 32, 96);
    let (link_local, groups) = ((0xFE80 << 112, 10), (0xFF << 120, 8));
    [(0, 96), v4, link_local, groups].map(|(network, prefix)| UnreachableV6::new(network, prefix))
}

/// Merges pairs of networks (address and mask) that form one network, so that a source needs fewer
/// comparisons.
pub(super) fn merge(networks: &mut Vec<(u128, u128)>) {
    // Two networks of one size that differ in one bit.
    let pair = |networks: &[(u128, u128)]| {
        networks.iter().enumerate().find_map(|(first, &(network, mask))| {
            let is_second = |&(second, second_mask): &(u128, u128)| {
                mask == second_mask && (network ^ second).is_power_of_two()
            };
            let second = networks[first + 1..].iter().position(is_second)?;
            Some((first, first + 1 + second))
        })
    };
    while let Some((first, second)) = pair(networks) {
        let (network, mask) = networks[first];
        let bit = network ^ networks[second].0;
        networks[first] = (network & !bit, mask & !bit);
        networks.remove(second);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_merge_where_they_make_up_one() {
        let mut networks = vec![(4, !0), (9, !0), (7, !0), (5, !0), (6, !0)];
        merge(&mut networks);
        assert_eq!(networks, [(4, !3), (9, !0)]);
    }
}
