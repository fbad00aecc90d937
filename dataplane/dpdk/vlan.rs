//! A port in a VLAN: removes the tag from received packets and adds it to sent ones, like a NIC with that
//! offload. Code that polls the port does not see tags.
//! Each way moves twelve bytes of a packet. Ports without a VLAN pay nothing.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use wedjat_core::io::{Buf, Burst};
use wedjat_core::wire::vlan;

use super::mbuf::Mbuf;

/// Removes the tag of this VLAN from the packets from index `before` on; earlier ones have lost it already. Frees and
/// counts untagged packets and packets of other VLANs.
pub(super) fn untag(id: u16, before: usize, burst: &mut Burst<Mbuf>, foreign_count: &AtomicU64) {
    let received = burst.len();
    let mut index = 0; // number of packets visited by `retain`, the current one included
    burst.retain(|packet| {
        index += 1;
        index <= before || untag_one(id, packet)
    });
    let foreign = received - burst.len();
    if foreign > 0 {
        foreign_count.fetch_add(foreign as u64, Relaxed);
    }
}

/// Removes the tag of this VLAN from a packet, unless the device has removed it. Returns false for an untagged packet
/// and one of another VLAN.
fn untag_one(id: u16, packet: &mut Mbuf) -> bool {
    // A physical function may remove the tags of its virtual ones, although their drivers do not request it.
    if let Some(removed) = packet.take_removed_vlan() {
        return removed == id;
    }
    let is_ours = vlan::id(packet.bytes()) == Some(id);
    if is_ours {
        // Moves both MAC addresses four bytes on, over the tag. The packet then starts four bytes later.
        vlan::cover(packet.bytes_mut());
        packet.shorten_front(vlan::LEN as u16);
    }
    is_ours
}

/// Sends a burst with the tag of this VLAN by `send`. Returns the number of sent packets. Packets that are not sent
/// stay unchanged. If a packet has no room for the tag in front, sends none.
pub(super) fn send_tagged(
    id: u16,
    burst: &mut Burst<Mbuf>,
    send: impl FnOnce(&mut Burst<Mbuf>) -> usize,
) -> usize {
    // Packets of this node's own buffer pools always have room in front.
    let tagged = burst.iter_mut().all(|packet| match packet.extend_front(vlan::LEN as u16) {
        true => {
            vlan::uncover(packet.bytes_mut(), id);
            true
        }
        false => false,
    });
    let sent = if tagged { send(burst) } else { 0 };
    // Sent packets have left the burst. Unsent packets with a tag lose it again; those from the first packet without
    // room on never got one.
    for packet in burst.iter_mut().filter(|packet| vlan::id(packet.bytes()) == Some(id)) {
        untag_one(id, packet);
    }
    sent
}
