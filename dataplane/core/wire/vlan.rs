//! VLAN tags (IEEE 802.1Q), located between a frame's addresses and its EtherType. A port with a VLAN removes the tag
//! of received frames and adds it to sent ones. Ports without one refuse tagged frames.

use super::{ether, put_u16, u16_at};
use crate::reason::DropReason;

/// EtherType of a tag.
pub const TAG: u16 = 0x8100;
/// EtherType of a provider's tag (IEEE 802.1ad), outside of another tag.
pub const PROVIDER_TAG: u16 = 0x88A8;
/// Bytes of a tag.
pub const LEN: usize = 4;
/// Largest VLAN number; 0 and 4095 are reserved.
pub const ID_MAX: u16 = 4094;
/// Bytes of both addresses.
const ADDRESSES: usize = 12;
/// Bits of the VLAN number in a tag. The remaining bits are the priority and "may be dropped".
const ID_BITS: u16 = 0x0FFF;

/// Returns the VLAN number of a frame's tag; `None` if the frame has no tag, or is too short for an EtherType
/// after it.
#[inline]
#[must_use]
pub fn id(frame: &[u8]) -> Option<u16> {
    let is_tagged = frame.len() >= ether::LEN + LEN && ether::ether_type(frame) == TAG;
    is_tagged.then(|| number(u16_at(frame, ether::LEN)))
}

/// Returns the VLAN number of a tag, given its last two bytes.
#[inline]
#[must_use]
pub const fn number(tag: u16) -> u16 {
    tag & ID_BITS
}

/// Returns the drop reason for a frame of at least [`ether::LEN`] bytes with an EtherType that the port does not
/// accept.
#[cold]
#[must_use]
pub fn reason(frame: &[u8]) -> DropReason {
    match ether::ether_type(frame) {
        TAG | PROVIDER_TAG => DropReason::VlanTag,
        _ => DropReason::EtherType,
    }
}

/// Moves a tagged frame's addresses over its tag, so that the untagged frame begins at [`LEN`].
#[inline]
pub fn cover(frame: &mut [u8]) {
    frame.copy_within(..ADDRESSES, LEN);
}

/// Reverses [`cover`] with a tag of this VLAN and priority 0. Before, the untagged frame begins at [`LEN`];
/// afterwards the tagged one begins at 0.
#[inline]
pub fn uncover(frame: &mut [u8], id: u16) {
    frame.copy_within(LEN..LEN + ADDRESSES, 0);
    put_u16(frame, ADDRESSES, TAG);
    put_u16(frame, ADDRESSES + 2, id);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn vlan_id_is_read_from_tagged_frames() {
        let mut frame = [0; 64];
        assert_eq!((id(&frame), reason(&frame)), (None, DropReason::EtherType));
        // A tag of priority 7 and VLAN 0xFA1.
        frame[12..16].copy_from_slice(&[0x81, 0, 0xE0 | 0x0F, 0xA1]);
        assert_eq!((id(&frame), reason(&frame)), (Some(0xFA1), DropReason::VlanTag));
        assert_eq!(id(&frame[..17]), None, "no room for an EtherType behind it");
        frame[12..14].copy_from_slice(&[0x88, 0xA8]);
        assert_eq!((id(&frame), reason(&frame)), (None, DropReason::VlanTag));
    }

    proptest! {
        // promise: ports.1
        #[test]
        fn tags_round_trip(bytes in proptest::collection::vec(any::<u8>(), ether::LEN..100), vlan in 0..=ID_MAX) {
            let mut tagged = [&[0; LEN], &bytes[..]].concat();
            uncover(&mut tagged, vlan);
            prop_assert_eq!(id(&tagged), Some(vlan));
            prop_assert_eq!(&tagged[..ADDRESSES], &bytes[..ADDRESSES]);
            prop_assert_eq!(&tagged[ADDRESSES + LEN..], &bytes[ADDRESSES..]);
            cover(&mut tagged);
            prop_assert_eq!(&tagged[LEN..], &bytes[..]);
        }
    }
}
