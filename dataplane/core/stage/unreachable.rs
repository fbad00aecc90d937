//! Ranges of addresses that no reply of the node reaches. A task from such a source is refused: its worker would
//! serve it in vain.

use crate::wire::address::Address;

/// Range of addresses that no reply of the node reaches, so no client has them. Its byte order is that of the
/// addresses to compare.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub(super) struct UnreachableSource<A> {
    /// First address of the range.
    pub network: A,
    /// Bits in which an address of the range equals `network`.
    pub mask: A,
}

impl<A: Address> UnreachableSource<A> {
    /// Creates the range of one address, such as that of a port or server.
    pub fn host(address: A) -> Self {
        Self { network: address, mask: !A::default() }
    }

    /// Returns true if the address is in the range.
    #[inline(always)]
    pub fn contains(self, address: A) -> bool {
        (address ^ self.network) & self.mask == A::default()
    }

    /// Converts to network byte order, so that the fast path compares packet fields without swapping them.
    pub fn to_be(self) -> Self {
        Self { network: self.network.to_be(), mask: self.mask.to_be() }
    }
}

/// Values by which the fast path checks the sources of tasks at a port.
#[derive(Clone, Debug)]
pub(super) struct Sources<A> {
    /// Network of all clients and its mask, in host byte order; `None` if a router leads to other clients.
    pub clients: Option<(A, A)>,
    /// Unreachable sources within `clients` (all if that is `None`), in network byte order.
    pub unreachable: Vec<UnreachableSource<A>>,
}

/// Merges pairs of ranges that form one range, so that a source needs fewer comparisons.
pub(super) fn merge<A: Address>(ranges: &mut Vec<UnreachableSource<A>>) {
    // Two ranges of one size that differ in one bit.
    let pair = |ranges: &[UnreachableSource<A>]| {
        ranges.iter().enumerate().find_map(|(first, one)| {
            let is_second = |other: &UnreachableSource<A>| {
                one.mask == other.mask && (one.network ^ other.network).is_one_bit()
            };
            let second = ranges[first + 1..].iter().position(is_second)?;
            Some((first, first + 1 + second))
        })
    };
    while let Some((first, second)) = pair(ranges) {
        // The merged range ignores the bit in which the two differ.
        let bit = ranges[first].network ^ ranges.remove(second).network;
        let UnreachableSource { network, mask } = &mut ranges[first];
        (*network, *mask) = (*network & !bit, *mask & !bit);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_merge_that_form_one_range() {
        let range = |(network, mask): (u32, u32)| UnreachableSource { network, mask };
        let mut ranges = [4, 9, 7, 5, 6].map(UnreachableSource::host).to_vec();
        merge(&mut ranges);
        // 4 to 7 make up a network; 9 stays alone.
        assert_eq!(ranges, [(4, !3), (9, !0)].map(range));
    }
}
