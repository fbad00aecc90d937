//! Arbitrary bytes as an agent's offer to a connecting worker: rejected, or a possible region.

use wedjat::ring::Layout;
use wedjat::ring::attach::Offer;
use wedjat::ring::layout::CHANNELS_MAX;

/// Runs one input. Returns true if it was accepted.
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
