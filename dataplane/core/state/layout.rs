//! Offsets of all sections of a state region. Writer and readers compute the same layout from the region's
//! shape, which the header and the pools' entries hold. A *place* is room for one member, free or
//! taken: "per member" below means per place.
//!
//! The *control thread* changes a node's configuration; the *cores* poll packets. A core publishes its values for each
//! member to the node's other cores.
//!
//! | section | words | written by |
//! |---|---|---|
//! | header | u64 x [`HEADER_WORDS`] | creator; the epoch, control thread |
//! | pools | per pool: id, or all ones for none; places for members; texts about its policy, see [`pool_word`] | control thread |
//! | servers | two u64 per server: its IPv6 address, or its IPv4 address as one (RFC 4291, 2.5.5.2) | control thread |
//! | workers | u64 per place for a member: worker id, server | control thread |
//! | neighbours | see [`super::neighbour`] | any core; link watcher |
//! | presence | per pool, u32 per member, see [`super::member::MemberPresence`] | any core; control thread for a new or freed place |
//! | tokens | per pool, bits, see [`super::tokens`]; none on a node with one core | any core |
//! | oldest | per pool, u64 per core: least key of its waiting tasks, 0 without one; each core reads all | that core |
//! | waiting | per pool, u64 per core: number of its waiting tasks, 0 if the policy does not need it; each core reads all | that core |
//! | lost | per pool, u32 per member: tasks written off | any core |
//! | quanta | per pool, u32 per member: quanta served to its current tasks, if its workers share their core | core of an agent |
//! | per core: reported | per member: u64: number of reports received, and estimated load | that core |
//! | per core: own | per member: u64 report, u32 drift since, u32 outstanding | that core |
//! | per core: elsewhere | as own: outstanding tasks of remote cores; drift: those that only reports show; none on a node with one core | that core |
//! | per core: published | per member, u16: last published value; none on a node with one core | that core |
//! | per core: ring | see [`super::broadcast`]; none on a node with one core | that core |
//! | per core: idle lists | per pool: u16 count; u16 per listed member; u16 per member: its place in the list | that core |
//! | per core: queued | u64 per pool: waiting tasks | that core |
//! | per core: bounds | u64 per pool: bound on a member's tasks that its policy found, 0 for none | that core |
//! | per core: histograms | per pool, see [`super::histogram`]: ages of load reports at decisions, then times in the queue | that core |
//! | per core: counters | u64 each; the number of pauses, and a ring of u64 with one per pause; the histogram of decision times | that core |
//! | nodes | of a rack without a leaf, see [`super::nodes`]; none elsewhere | the only core |

use std::ops::Range;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use super::broadcast;
use super::counters;
use super::histogram;
use super::neighbour::Neighbours;
use super::nodes;
use super::region::ALIGN;
use super::tokens::Tokens;
use super::words::LocalState;

/// Number of u64 words of the header.
pub const HEADER_WORDS: usize = 32;
/// Words of a pool's entry, besides its id and its number of places for members. Texts have 8 bytes a word.
pub mod pool_word {
    use std::ops::Range;

    /// Name of the policy that runs.
    pub const POLICY: Range<usize> = 2..6;
    /// Number of switches of the policy by the node.
    pub const SWITCHES: usize = 6;
    /// Objective by which the node chooses the policy; empty for a fixed policy.
    pub const OBJECTIVE: Range<usize> = 7..11;
    /// Last decision of the node on the policy.
    pub const DECISION: Range<usize> = 11..31;
}

/// Number of u64 words of a pool's entry.
pub const POOL_WORDS: usize = pool_word::DECISION.end;

/// Number of a core's histograms per pool: ages of load reports, and times in the queue.
pub const HISTOGRAMS: usize = 2;

/// Shape of a region: the number of each item.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableShape {
    /// Number of dispatcher cores.
    pub cores: usize,
    /// Number of places for members of each pool, including pools that may come later.
    pub pools: Vec<usize>,
    /// Number of places for worker servers.
    pub servers: usize,
    /// Number of ports, each with a cache of neighbours.
    pub ports: usize,
    /// Number of neighbours that the configuration names: next hops to servers and spines, and gateways.
    pub pinned: usize,
    /// Number of nodes of a rack without a leaf.
    pub nodes: usize,
}

/// Layout of a pool.
#[derive(Clone, Debug)]
pub struct PoolLayout {
    /// Index of its first place among the places of all pools.
    pub first_member: usize,
    /// Number of its places for members.
    pub members: usize,
    /// Offset of its tokens.
    pub tokens: usize,
    /// Offset of the least keys of waiting tasks, one word per core.
    pub oldest: usize,
    /// Offset of the numbers of waiting tasks, one word per core.
    pub waiting: usize,
    /// Offset of its members' presence.
    pub presence: usize,
    /// Offset of its members' numbers of tasks written off.
    pub lost: usize,
    /// Offset of the quanta served to its members' current tasks.
    pub quanta: usize,
}

/// Layout of one core's list of a pool's idle members.
#[derive(Clone, Debug)]
pub struct IdleLayout {
    /// Offset of its count.
    pub count: usize,
    /// Offset of the listed members, in order.
    pub members: usize,
    /// Offset of each member's index in that list.
    pub places: usize,
}

/// Layout of a core.
#[derive(Clone, Debug)]
pub struct CoreLayout {
    /// Offset of its last report of each member, over all pools.
    pub reported: usize,
    /// Offset of its own state of each member, over all pools.
    pub own: usize,
    /// Offset of the sums of remote cores' published counts of each member, over all pools.
    pub elsewhere: usize,
    /// Offset of the value that it last published for each member, over all pools (section `published`).
    pub last_published: usize,
    /// Offset of its ring's head; the lines follow.
    pub ring: usize,
    /// Its idle list of each pool.
    pub idle: Vec<IdleLayout>,
    /// Offset of its numbers of waiting tasks, one word per pool.
    pub queued: usize,
    /// Offset of the bounds on a member's tasks that it has found, one word per pool.
    pub bounds: usize,
    /// Offset of its histograms, [`HISTOGRAMS`] per pool.
    pub histograms: usize,
    /// Offset of its counters.
    pub counters: usize,
}

/// Offsets in bytes from the region's start.
#[derive(Clone, Debug)]
pub struct Layout {
    /// Size of the region in bytes.
    pub len: usize,
    /// Offset of the pools' entries.
    pub pool_entries: usize,
    /// Offset of the servers.
    pub servers: usize,
    /// Offset of the workers, one per place of every pool.
    pub workers: usize,
    /// Number of places for members of all pools.
    pub members: usize,
    /// Offset of the neighbour table.
    pub neighbours: usize,
    /// Layout of each pool.
    pub pools: Vec<PoolLayout>,
    /// Layout of each core.
    pub cores: Vec<CoreLayout>,
    /// Offset of the nodes of a rack without a leaf.
    pub nodes: usize,
}

/// Allocator of aligned parts of a region.
struct Cursor(usize);

impl Cursor {
    /// Returns the offset of the next part, of this size.
    fn take(&mut self, bytes: usize) -> usize {
        let offset = self.0;
        self.0 = (offset + bytes).next_multiple_of(ALIGN);
        offset
    }
}

impl Layout {
    /// Offset of the pools' entries in every layout: behind the header.
    pub const POOL_ENTRIES: usize = (8 * HEADER_WORDS).next_multiple_of(ALIGN);

    /// Computes the layout of a region of this shape.
    #[must_use]
    pub fn new(shape: &TableShape) -> Self {
        let mut cursor = Cursor(Self::POOL_ENTRIES);
        let members = shape.pools.iter().sum::<usize>();
        let pool_entries = cursor.take(8 * POOL_WORDS * shape.pools.len());
        let servers = cursor.take(16 * shape.servers);
        let workers = cursor.take(8 * members);
        let neighbours = cursor.take(8 * Neighbours::words(shape.ports, shape.pinned));
        let has_several = shape.cores > 1;
        let mut first_member = 0;
        let mut pools = Vec::with_capacity(shape.pools.len());
        for &members in &shape.pools {
            let presence = cursor.take(4 * members);
            let tokens = cursor.take(if has_several { 8 * Tokens::words(members) } else { 0 });
            let oldest = cursor.take(8 * shape.cores);
            let waiting = cursor.take(8 * shape.cores);
            let lost = cursor.take(4 * members);
            let quanta = cursor.take(4 * members);
            pools.push(PoolLayout {
                first_member,
                members,
                tokens,
                oldest,
                waiting,
                presence,
                lost,
                quanta,
            });
            first_member += members;
        }
        let cores = (0..shape.cores).map(|_| core(&mut cursor, &shape.pools, members, has_several));
        let cores = cores.collect();
        let nodes = cursor.take(8 * nodes::words(shape.nodes));
        let len = cursor.0;
        Self { len, pool_entries, servers, workers, members, neighbours, pools, cores, nodes }
    }

    /// Returns the sections' names and byte ranges, from the first byte to the last. A name occurs several
    /// times if each pool or core has such a section. Memory tracers attribute accesses
    /// to sections by these ranges.
    #[must_use]
    pub fn sections(&self) -> Vec<(&'static str, Range<usize>)> {
        let mut starts = vec![
            ("header", 0),
            ("pools", self.pool_entries),
            ("servers", self.servers),
            ("workers", self.workers),
            ("neighbours", self.neighbours),
        ];
        for pool in &self.pools {
            starts.extend([("presence", pool.presence), ("tokens", pool.tokens)]);
            starts.extend([("oldest", pool.oldest), ("waiting", pool.waiting)]);
            starts.extend([("lost", pool.lost), ("quanta", pool.quanta)]);
        }
        for core in &self.cores {
            starts.extend([("reported", core.reported), ("own", core.own)]);
            starts.extend([
                ("elsewhere", core.elsewhere),
                ("published", core.last_published),
                ("ring", core.ring),
            ]);
            starts.extend(core.idle.iter().map(|idle| ("idle lists", idle.count)));
            starts.extend([("queued", core.queued), ("bounds", core.bounds)]);
            starts.extend([("histograms", core.histograms), ("counters", core.counters)]);
        }
        starts.push(("nodes", self.nodes));
        let ends = starts.iter().skip(1).map(|&(_, start)| start).chain([self.len]);
        let sections = starts.iter().zip(ends).map(|(&(name, start), end)| (name, start..end));
        sections.collect()
    }

    /// Returns the offset of a pool's entry.
    #[must_use]
    pub fn pool_entry(&self, pool: usize) -> usize {
        self.pool_entries + 8 * POOL_WORDS * pool
    }
}

/// Writes a text into words: cuts it to their size, or fills the rest with zeros.
pub fn write_text(words: &[AtomicU64], text: &str) {
    let mut bytes = text.bytes().chain(std::iter::repeat(0));
    for word in words {
        let word_bytes = std::array::from_fn(|_| bytes.next().unwrap_or_default());
        word.store(u64::from_le_bytes(word_bytes), Relaxed);
    }
}

/// Reads the text in these words, up to the first zero byte. Replaces invalid UTF-8, which a cut may leave.
pub fn read_text(words: &[AtomicU64]) -> String {
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.load(Relaxed).to_le_bytes()).collect();
    let text = bytes.split(|&byte| byte == 0).next().unwrap_or_default();
    String::from_utf8_lossy(text).into_owned()
}

/// Computes the layout of one core. `has_several` is true on a node with several cores: only there does a core need
/// the sections of the exchange.
fn core(cursor: &mut Cursor, pools: &[usize], members: usize, has_several: bool) -> CoreLayout {
    let if_several = |bytes| if has_several { bytes } else { 0 };
    CoreLayout {
        reported: cursor.take(8 * members),
        own: cursor.take(size_of::<LocalState>() * members),
        elsewhere: cursor.take(if_several(size_of::<LocalState>() * members)),
        last_published: cursor.take(if_several(2 * members)),
        ring: cursor.take(if_several(broadcast::BYTES)),
        idle: pools
            .iter()
            .map(|&members| IdleLayout {
                count: cursor.take(2),
                members: cursor.take(2 * members),
                places: cursor.take(2 * members),
            })
            .collect(),
        queued: cursor.take(8 * pools.len()),
        bounds: cursor.take(8 * pools.len()),
        histograms: cursor.take(8 * histogram::WORDS * HISTOGRAMS * pools.len()),
        counters: cursor.take(8 * counters::WORDS),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sections_are_disjoint_and_aligned() {
        let shape = TableShape {
            cores: 2,
            pools: vec![3, 0, 700],
            servers: 5,
            ports: 1,
            pinned: 9,
            nodes: 3,
        };
        let layout = Layout::new(&shape);
        // Start and size of each section. 703 is the number of members; a server has 16 bytes.
        let mut sections = vec![
            (0, 8 * HEADER_WORDS),
            (layout.pool_entries, 8 * POOL_WORDS * 3),
            (layout.servers, 80),
            (layout.workers, 8 * 703),
            (layout.neighbours, 8 * Neighbours::words(1, 9)),
        ];
        for pool in layout.pools.iter().filter(|pool| pool.members > 0) {
            sections.push((pool.tokens, 8 * Tokens::words(pool.members)));
            sections.push((pool.presence, 4 * pool.members));
            sections.push((pool.lost, 4 * pool.members));
            sections.push((pool.quanta, 4 * pool.members));
        }
        sections.extend(layout.pools.iter().map(|pool| (pool.oldest, 8 * 2)));
        sections.extend(layout.pools.iter().map(|pool| (pool.waiting, 8 * 2)));
        for core in &layout.cores {
            sections.push((core.reported, 8 * 703));
            sections.push((core.own, 16 * 703));
            sections.push((core.elsewhere, 16 * 703));
            sections.push((core.last_published, 2 * 703));
            sections.push((core.ring, broadcast::BYTES));
            sections.push((core.queued, 8 * 3));
            sections.push((core.bounds, 8 * 3));
            sections.push((core.histograms, 8 * histogram::WORDS * HISTOGRAMS * 3));
            sections.push((core.counters, 8 * counters::WORDS));
            for (idle, pool) in core.idle.iter().zip(&layout.pools) {
                sections.push((idle.count, 2));
                if pool.members > 0 {
                    sections.push((idle.members, 2 * pool.members));
                    sections.push((idle.places, 2 * pool.members));
                }
            }
        }
        sections.push((layout.nodes, 8 * nodes::words(3)));
        sections.sort_unstable();
        for pair in sections.windows(2) {
            assert!(pair[0].0 + pair[0].1 <= pair[1].0, "{pair:?}");
            assert!(pair[1].0.is_multiple_of(ALIGN));
        }
        let last = sections.last().unwrap();
        assert!(last.0 + last.1 <= layout.len);
    }

    #[test]
    fn section_names_cover_the_region() {
        let shape =
            TableShape { cores: 2, pools: vec![3, 700], servers: 5, ports: 1, pinned: 9, nodes: 3 };
        let layout = Layout::new(&shape);
        let sections = layout.sections();
        let ends: Vec<_> = sections.iter().map(|(_, bytes)| bytes.end).collect();
        let starts: Vec<_> = sections.iter().map(|(_, bytes)| bytes.start).collect();
        assert_eq!((starts[0], *ends.last().unwrap()), (0, layout.len));
        assert_eq!(starts[1..], ends[..ends.len() - 1]);
        let name = |at: usize| {
            let holds = |(_, bytes): &&(_, Range<usize>)| bytes.contains(&at);
            sections.iter().find(holds).map(|(name, _)| *name)
        };
        let core = &layout.cores[1];
        // First or last byte of a section. The pools have 703 members in all.
        for (at, expected) in [
            (layout.neighbours + 8 * Neighbours::words(1, 9) - 1, "neighbours"),
            (core.reported + 8 * 703 - 1, "reported"),
            (layout.pools[1].tokens, "tokens"),
            (core.last_published + 2 * 703 - 1, "published"),
            (core.ring, "ring"),
            (layout.pools[1].presence, "presence"),
            (layout.pools[1].waiting + 8 * 2 - 1, "waiting"),
            (layout.pools[1].lost, "lost"),
            (layout.pools[1].quanta, "quanta"),
            (core.own + 16 * 703 - 1, "own"),
            (core.idle[1].places + 2 * 700 - 1, "idle lists"),
            (core.queued, "queued"),
            (core.histograms, "histograms"),
            (core.counters, "counters"),
            (layout.nodes + 8 * nodes::words(3) - 1, "nodes"),
        ] {
            assert_eq!(name(at), Some(expected), "byte {at}");
        }
    }
}
