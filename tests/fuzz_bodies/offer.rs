//! Fuzz body: arbitrary bytes as an agent's offer. The agent (the process that gives tasks to worker processes) sends
//! it to a connecting worker. It describes the shape of their shared memory: channels, each with slots for tasks.

use wedjat::ring::Layout;
use wedjat::ring::attach::Offer;
use wedjat::ring::layout::CHANNELS_MAX;

/// Runs one input. Returns true if the offer was accepted. Then its last channel lies within the memory, and its
/// bytes are read as the same offer again.
pub fn run(input: &[u8]) -> bool {
    let Ok(offer) = Offer::parse(input) else { return false };
    assert!(offer.shape.is_possible() && offer.shape.channels <= CHANNELS_MAX);
    assert_eq!(offer.identities.len(), offer.shape.channels);
    let layout = Layout::new(&offer.shape);
    let last = layout.channel(offer.shape.channels - 1);
    assert!(last.area + offer.shape.slots * offer.shape.stride() <= layout.len);
    assert_eq!(Offer::parse(&offer.to_bytes()), Ok(offer));
    true
}
