//! Placement: the racks that a pool's workers come from, and the spine of each of its racks.
//!
//! A rack is a leaf with its workers. A link assigns a rack of a pool to the spine that sends it the pool's tasks. The
//! controller calls [`choose_workers`] for a pool that lacks workers, and [`assign_spines`] after its racks or the
//! spines have changed. Both are pure functions of values.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use serde::{Deserialize, Serialize};

/// Rule that chooses a pool's workers among racks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Placement {
    /// Evenly over as many racks as possible.
    #[default]
    Spread,
    /// From as few racks as possible.
    Pack,
    /// From each rack in proportion to its size.
    Size,
}

impl Placement {
    /// Returns the name in commands and messages, which is also the serialized form.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Spread => "spread",
            Self::Pack => "pack",
            Self::Size => "size",
        }
    }

    /// Returns the rule with this name; `None` for an unknown name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        [Self::Spread, Self::Pack, Self::Size].into_iter().find(|one| one.name() == name)
    }
}

/// Rack that workers may be taken from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rack {
    /// Its leaf.
    pub leaf: u16,
    /// Number of workers that may be taken: in no pool, on a server that is not drained.
    pub free: usize,
    /// Number of workers that the pool has there already.
    pub has: usize,
    /// Number of all its workers.
    pub size: usize,
}

/// Returns the number of workers to take from each rack, by leaf. The sum is `wanted`, or the number of free workers if
/// that is less. Racks without a worker to take are absent.
#[must_use]
pub fn choose_workers(racks: &[Rack], wanted: usize, placement: Placement) -> BTreeMap<u16, usize> {
    match placement {
        // The share is the number of workers that the pool has in the rack.
        Placement::Spread => one_by_one(racks, wanted, |rack, taken| (rack.has + taken, 1)),
        // The share is the fraction of the rack's workers that the pool would have with one more.
        Placement::Size => {
            one_by_one(racks, wanted, |rack, taken| (rack.has + taken + 1, rack.size.max(1)))
        }
        Placement::Pack => pack(racks, wanted),
    }
}

/// Fraction: numerator, and denominator above 0. Its order is exact, without rounding.
#[derive(PartialEq, Eq)]
struct Share(usize, usize);

impl Ord for Share {
    /// Compares by multiplication with each other's denominator. 128 bits hold the products.
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.0 as u128 * other.1 as u128).cmp(&(other.0 as u128 * self.1 as u128))
    }
}

impl PartialOrd for Share {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

/// Takes workers one by one, each from the rack with the smallest share. `share` returns a fraction for a rack and the
/// number of workers taken from it so far. Ties go to the rack with the most free workers, then to the smallest id.
fn one_by_one(
    racks: &[Rack],
    wanted: usize,
    share: impl Fn(&Rack, usize) -> (usize, usize),
) -> BTreeMap<u16, usize> {
    // Entry of the heap. Its top is the maximum, and `Reverse` turns the smallest rank into the maximum. The last two
    // elements give the popped rack and its number of workers taken so far.
    let rank = |index: usize, taken: usize| {
        let rack = &racks[index];
        let (part, whole) = share(rack, taken);
        Reverse((Share(part, whole), Reverse(rack.free - taken), rack.leaf, index, taken))
    };
    let available = (0..racks.len()).filter(|&index| racks[index].free > 0);
    let mut heap: BinaryHeap<_> = available.map(|index| rank(index, 0)).collect();
    let mut taken = BTreeMap::new();
    for _ in 0..wanted {
        let Some(Reverse((.., index, before))) = heap.pop() else { break };
        taken.insert(racks[index].leaf, before + 1);
        if before + 1 < racks[index].free {
            heap.push(rank(index, before + 1));
        }
    }
    taken
}

/// Takes from racks that have workers of the pool first, then from those with the most free workers. The last
/// rack is the smallest that suffices.
fn pack(racks: &[Rack], wanted: usize) -> BTreeMap<u16, usize> {
    let mut remaining: Vec<_> = racks.iter().filter(|rack| rack.free > 0).collect();
    // `has.min(1)` is 1 for a rack with workers of the pool, and 0 for others.
    remaining.sort_by_key(|rack| (Reverse(rack.has.min(1)), Reverse(rack.free), rack.leaf));
    let (mut taken, mut wanted) = (BTreeMap::new(), wanted);
    while wanted > 0 && !remaining.is_empty() {
        // Only racks of the same group as the first one compete: racks with workers of the pool come first.
        let suffices =
            |rack: &&&Rack| rack.free >= wanted && rack.has.min(1) == remaining[0].has.min(1);
        let smallest = remaining.iter().filter(suffices).min_by_key(|rack| (rack.free, rack.leaf));
        let leaf = smallest.unwrap_or(&remaining[0]).leaf;
        let index = remaining.iter().position(|rack| rack.leaf == leaf).unwrap_or(0);
        let rack = remaining.remove(index);
        let count = rack.free.min(wanted);
        taken.insert(rack.leaf, count);
        wanted -= count;
    }
    taken
}

/// Returns the spine of each of a pool's racks, by leaf. `racks` holds the leaves, and `wanted` is the number of spines
/// to use. Keeps as many of `links`, the pool's current ones, as an even distribution allows. Each change would move
/// traffic. `spines` holds the spines that are up, with their numbers of links of all pools. Without a usable spine the
/// result is empty.
#[must_use]
pub fn assign_spines(
    racks: &[u16],
    links: &BTreeMap<u16, u16>,
    wanted: usize,
    spines: &BTreeMap<u16, usize>,
) -> BTreeMap<u16, u16> {
    let count = wanted.min(racks.len()).min(spines.len());
    let kept_links = racks.iter().filter_map(|leaf| Some((*leaf, *links.get(leaf)?)));
    let mut kept_links: Vec<_> =
        kept_links.filter(|(_, spine)| spines.contains_key(spine)).collect();
    // Chooses the spines that have most of this pool's links, then those with the fewest links of all pools.
    let mut counts = BTreeMap::<u16, usize>::new();
    kept_links.iter().for_each(|(_, spine)| *counts.entry(*spine).or_default() += 1);
    let mut chosen: Vec<u16> = counts.keys().copied().collect();
    chosen.sort_by_key(|spine| (Reverse(counts[spine]), *spine));
    chosen.truncate(count);
    let mut other_spines: Vec<_> =
        spines.iter().filter(|(spine, _)| !chosen.contains(spine)).collect();
    other_spines.sort_by_key(|(spine, links)| (**links, **spine));
    chosen.extend(other_spines.into_iter().map(|(spine, _)| *spine).take(count - chosen.len()));
    // Each spine has room for an equal share of the racks. If the division leaves a remainder, the first spines,
    // which have most of the pool's links, get one more.
    let (share, rest) = (racks.len() / count.max(1), racks.len() % count.max(1));
    let room = |index: usize| share + usize::from(index < rest);
    let mut room_left: BTreeMap<u16, usize> =
        chosen.iter().enumerate().map(|(index, &spine)| (spine, room(index))).collect();
    // Drops the links to spines that are not chosen, and those beyond a spine's room.
    kept_links.retain(|(_, spine)| match room_left.get_mut(spine) {
        Some(room) if *room > 0 => {
            *room -= 1;
            true
        }
        _ => false,
    });
    let mut result: BTreeMap<u16, u16> = kept_links.into_iter().collect();
    // The remaining racks fill the rooms in order. So adjacent racks go to one spine, like the racks of a pod.
    let mut free_rooms =
        chosen.into_iter().flat_map(|spine| std::iter::repeat_n(spine, room_left[&spine]));
    for leaf in racks {
        if !result.contains_key(leaf)
            && let Some(spine) = free_rooms.next()
        {
            result.insert(*leaf, spine);
        }
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a rack whose workers are all free.
    fn rack(leaf: u16, free: usize) -> Rack {
        Rack { leaf, free, has: 0, size: free }
    }

    // promise: controller.1
    #[test]
    fn pool_placement_follows_its_strategy() {
        let racks = [rack(1, 4), rack(2, 4), rack(3, 8), rack(4, 32)];
        let taken = |wanted, placement| {
            choose_workers(&racks, wanted, placement).into_iter().collect::<Vec<_>>()
        };
        assert_eq!(taken(16, Placement::Spread), [(1, 4), (2, 4), (3, 4), (4, 4)]);
        // Racks 1 and 2 have only 4 each. Racks 3 and 4 share the remaining 12.
        assert_eq!(taken(20, Placement::Spread), [(1, 4), (2, 4), (3, 6), (4, 6)]);
        // 12 workers of 48, so a quarter of each rack.
        assert_eq!(taken(12, Placement::Size), [(1, 1), (2, 1), (3, 2), (4, 8)]);
        // No rack has 40. The largest one comes first, then the smallest one with room for the rest.
        assert_eq!(taken(40, Placement::Pack), [(3, 8), (4, 32)]);
        assert_eq!(taken(4, Placement::Pack), [(1, 4)]);
        assert_eq!(taken(6, Placement::Pack), [(3, 6)]);
        for placement in [Placement::Spread, Placement::Pack, Placement::Size] {
            assert_eq!(taken(99, placement), [(1, 4), (2, 4), (3, 8), (4, 32)]);
            assert!(taken(0, placement).is_empty());
        }
    }

    #[test]
    fn packed_pool_grows_in_place_spread_pool_elsewhere() {
        // The pool has two workers in rack 1 and none in rack 2.
        let racks = [Rack { has: 2, ..rack(1, 6) }, rack(2, 8)];
        assert_eq!(choose_workers(&racks, 2, Placement::Pack), [(1, 2)].into());
        assert_eq!(choose_workers(&racks, 2, Placement::Spread), [(2, 2)].into());
        assert_eq!(choose_workers(&racks, 8, Placement::Pack), [(1, 6), (2, 2)].into());
    }

    // promise: controller.1
    #[test]
    fn links_are_even_and_stay_where_they_can() {
        // Spine 3 has 5 links of other pools, so the pool's two spines are 1 and 2.
        let spines = BTreeMap::from([(1, 0), (2, 0), (3, 5)]);
        let racks: Vec<u16> = (10..18).collect();
        let first = assign_spines(&racks, &BTreeMap::new(), 2, &spines);
        let wanted = racks.iter().map(|&leaf| (leaf, if leaf < 14 { 1 } else { 2 })).collect();
        assert_eq!(first, wanted);
        // Spine 1 is down: spine 3 replaces it, and no other rack moves.
        let up = BTreeMap::from([(2, 4), (3, 5)]);
        let next = assign_spines(&racks, &first, 2, &up);
        assert!(racks.iter().all(|leaf| next[leaf] == if *leaf < 14 { 3 } else { 2 }), "{next:?}");
        // Only one spine is left, then none.
        assert!(
            assign_spines(&racks, &next, 2, &[(2, 4)].into()).values().all(|spine| *spine == 2)
        );
        assert!(assign_spines(&racks, &next, 2, &BTreeMap::new()).is_empty());
        assert!(assign_spines(&racks, &next, 0, &spines).is_empty());
        // Adding a rack moves no other, nor does removing racks.
        let racks: Vec<u16> = (10..19).collect();
        let more = assign_spines(&racks, &first, 2, &spines);
        assert!(first.iter().all(|(leaf, spine)| more[leaf] == *spine));
        let fewer = assign_spines(&racks[..7], &more, 2, &spines);
        assert_eq!(fewer.len(), 7);
        assert!(fewer.iter().all(|(leaf, spine)| more[leaf] == *spine), "{fewer:?}");
    }
}
