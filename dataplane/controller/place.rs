//! Which racks a pool's workers are taken from, and which spine each of its racks is linked to. Values only.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use serde::{Deserialize, Serialize};

/// How a pool's workers are chosen among racks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Placement {
    /// As evenly over as many racks as there are.
    #[default]
    Spread,
    /// Into as few racks as possible.
    Pack,
    /// From each rack by its size.
    Size,
}

impl Placement {
    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Spread => "spread",
            Self::Pack => "pack",
            Self::Size => "size",
        }
    }

    /// The one of this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        [Self::Spread, Self::Pack, Self::Size].into_iter().find(|one| one.name() == name)
    }
}

/// A rack that workers may be taken from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rack {
    /// Its leaf.
    pub leaf: u16,
    /// Workers that may be taken.
    pub free: usize,
    /// Workers that the pool has there already.
    pub has: usize,
    /// All its workers.
    pub size: usize,
}

/// How many workers to take from each rack, by leaf: `wanted` in all, or as many as there are.
#[must_use]
pub fn take(racks: &[Rack], wanted: usize, placement: Placement) -> BTreeMap<u16, usize> {
    match placement {
        Placement::Spread => one_by_one(racks, wanted, |rack, taken| (rack.has + taken, 1)),
        // By how full of this pool the rack is then.
        Placement::Size => {
            one_by_one(racks, wanted, |rack, taken| (rack.has + taken + 1, rack.size.max(1)))
        }
        Placement::Pack => pack(racks, wanted),
    }
}

/// Part over whole, in order without rounding.
#[derive(PartialEq, Eq)]
struct Share(usize, usize);

impl Ord for Share {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.0 as u128 * other.1 as u128).cmp(&(other.0 as u128 * self.1 as u128))
    }
}

impl PartialOrd for Share {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

/// Each from the rack with the least share; of equal ones from that with most free workers, then by id.
fn one_by_one(
    racks: &[Rack],
    wanted: usize,
    share: impl Fn(&Rack, usize) -> (usize, usize),
) -> BTreeMap<u16, usize> {
    let rank = |at: usize, taken: usize| {
        let rack = &racks[at];
        let (part, whole) = share(rack, taken);
        Reverse((Share(part, whole), Reverse(rack.free - taken), rack.leaf, at, taken))
    };
    let some = (0..racks.len()).filter(|&at| racks[at].free > 0);
    let mut heap: BinaryHeap<_> = some.map(|at| rank(at, 0)).collect();
    let mut taken = BTreeMap::new();
    for _ in 0..wanted {
        let Some(Reverse((.., at, before))) = heap.pop() else { break };
        taken.insert(racks[at].leaf, before + 1);
        if before + 1 < racks[at].free {
            heap.push(rank(at, before + 1));
        }
    }
    taken
}

/// Racks where the pool is first, then those with most free workers; the last is the smallest that suffices.
fn pack(racks: &[Rack], wanted: usize) -> BTreeMap<u16, usize> {
    let mut left: Vec<_> = racks.iter().filter(|rack| rack.free > 0).collect();
    left.sort_by_key(|rack| (Reverse(rack.has.min(1)), Reverse(rack.free), rack.leaf));
    let (mut taken, mut wanted) = (BTreeMap::new(), wanted);
    while wanted > 0 && !left.is_empty() {
        let suffices = |rack: &&&Rack| rack.free >= wanted && rack.has.min(1) == left[0].has.min(1);
        let smallest = left.iter().filter(suffices).min_by_key(|rack| (rack.free, rack.leaf));
        let leaf = smallest.unwrap_or(&left[0]).leaf;
        let at = left.iter().position(|rack| rack.leaf == leaf).unwrap_or(0);
        let rack = left.remove(at);
        let some = rack.free.min(wanted);
        taken.insert(rack.leaf, some);
        wanted -= some;
    }
    taken
}

/// The spine of each of a pool's racks, with as few links changed as evenness allows. `links` are those that there are; `spines` are
/// those that are up, with all their links.
#[must_use]
pub fn link(
    racks: &[u16],
    links: &BTreeMap<u16, u16>,
    wanted: usize,
    spines: &BTreeMap<u16, usize>,
) -> BTreeMap<u16, u16> {
    let count = wanted.min(racks.len()).min(spines.len());
    let kept = racks.iter().filter_map(|leaf| Some((*leaf, *links.get(leaf)?)));
    let mut kept: Vec<_> = kept.filter(|(_, spine)| spines.contains_key(spine)).collect();
    let mut each = BTreeMap::<u16, usize>::new();
    kept.iter().for_each(|(_, spine)| *each.entry(*spine).or_default() += 1);
    let mut chosen: Vec<u16> = each.keys().copied().collect();
    chosen.sort_by_key(|spine| (Reverse(each[spine]), *spine));
    chosen.truncate(count);
    let mut others: Vec<_> = spines.iter().filter(|(spine, _)| !chosen.contains(spine)).collect();
    others.sort_by_key(|(spine, links)| (**links, **spine));
    chosen.extend(others.into_iter().map(|(spine, _)| *spine).take(count - chosen.len()));
    // Those with most links keep one more where it does not come out even.
    let (share, more) = (racks.len() / count.max(1), racks.len() % count.max(1));
    let room = |at: usize| share + usize::from(at < more);
    let mut left: BTreeMap<u16, usize> =
        chosen.iter().enumerate().map(|(at, &spine)| (spine, room(at))).collect();
    kept.retain(|(_, spine)| match left.get_mut(spine) {
        Some(room) if *room > 0 => {
            *room -= 1;
            true
        }
        _ => false,
    });
    let mut linked: BTreeMap<u16, u16> = kept.into_iter().collect();
    // Racks beside each other to one spine, as pods are.
    let mut open = chosen.into_iter().flat_map(|spine| std::iter::repeat_n(spine, left[&spine]));
    for leaf in racks {
        if !linked.contains_key(leaf)
            && let Some(spine) = open.next()
        {
            linked.insert(*leaf, spine);
        }
    }
    linked
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rack(leaf: u16, free: usize) -> Rack {
        Rack { leaf, free, has: 0, size: free }
    }

    #[test]
    fn a_pool_is_spread_packed_or_placed_by_size() {
        let racks = [rack(1, 4), rack(2, 4), rack(3, 8), rack(4, 32)];
        let taken =
            |wanted, placement| take(&racks, wanted, placement).into_iter().collect::<Vec<_>>();
        assert_eq!(taken(16, Placement::Spread), [(1, 4), (2, 4), (3, 4), (4, 4)]);
        assert_eq!(taken(20, Placement::Spread), [(1, 4), (2, 4), (3, 6), (4, 6)]);
        assert_eq!(taken(12, Placement::Size), [(1, 1), (2, 1), (3, 2), (4, 8)]);
        assert_eq!(taken(40, Placement::Pack), [(3, 8), (4, 32)]);
        assert_eq!(taken(4, Placement::Pack), [(1, 4)]);
        assert_eq!(taken(6, Placement::Pack), [(3, 6)]);
        for placement in [Placement::Spread, Placement::Pack, Placement::Size] {
            assert_eq!(taken(99, placement), [(1, 4), (2, 4), (3, 8), (4, 32)]);
            assert!(taken(0, placement).is_empty());
        }
    }

    #[test]
    fn a_pool_grows_where_it_is_when_it_is_packed_and_elsewhere_when_it_is_spread() {
        let racks = [Rack { has: 2, ..rack(1, 6) }, rack(2, 8)];
        assert_eq!(take(&racks, 2, Placement::Pack), [(1, 2)].into());
        assert_eq!(take(&racks, 2, Placement::Spread), [(2, 2)].into());
        assert_eq!(take(&racks, 8, Placement::Pack), [(1, 6), (2, 2)].into());
    }

    #[test]
    fn links_are_even_and_stay_where_they_can() {
        let spines = BTreeMap::from([(1, 0), (2, 0), (3, 5)]);
        let racks: Vec<u16> = (10..18).collect();
        let first = link(&racks, &BTreeMap::new(), 2, &spines);
        let wanted = racks.iter().map(|&leaf| (leaf, if leaf < 14 { 1 } else { 2 })).collect();
        assert_eq!(first, wanted);
        // Spine 1 is down: spine 3 takes its place, and nobody else moves.
        let left = BTreeMap::from([(2, 4), (3, 5)]);
        let next = link(&racks, &first, 2, &left);
        assert!(racks.iter().all(|leaf| next[leaf] == if *leaf < 14 { 3 } else { 2 }), "{next:?}");
        // Only one is left, and none.
        assert!(link(&racks, &next, 2, &[(2, 4)].into()).values().all(|spine| *spine == 2));
        assert!(link(&racks, &next, 2, &BTreeMap::new()).is_empty());
        assert!(link(&racks, &next, 0, &spines).is_empty());
        // A rack more goes to the one with fewer, and a rack less moves nobody.
        let racks: Vec<u16> = (10..19).collect();
        let more = link(&racks, &first, 2, &spines);
        assert!(first.iter().all(|(leaf, spine)| more[leaf] == *spine));
        assert_eq!(link(&racks[..7], &more, 2, &spines).len(), 7);
    }
}
