//! Sets of members with equal queue lengths, in several classes (`scd` has a class for each service rate). The n-th
//! member of a set, in the order of the members' numbers, is found without a sort. A set is a row of bits, one for each
//! member; each class has one set for each queue length.

use crate::state::Member;

/// Number of distinct lengths, a power of two. All longer queues count as equal.
const LENGTHS: usize = 64;
/// The last length, of all queues that are at least this long.
pub const LONGEST: u32 = LENGTHS as u32 - 1;
/// Maximum number of classes. With more service rates, `scd` sorts the members instead.
pub const CLASSES: usize = 4;
/// Set number of a member in no set.
const NOWHERE: u16 = u16::MAX;
/// Members in a word of a set.
const WORD: usize = u64::BITS as usize;

/// Members by class and queue length.
#[derive(Clone, Debug, Default)]
pub struct LengthSets {
    /// Number of each member's set, `class * LENGTHS + length`; [`NOWHERE`] if it is in none.
    set_of: Vec<u16>,
    /// Number of members in each set.
    counts: Vec<u16>,
    /// The sets, one after another. Each has a bit for every member.
    words: Vec<u64>,
    /// Number of members in each word.
    sizes: Vec<u8>,
    /// Number of words of a set.
    words_each: usize,
}

/// Members of one class with equal queue lengths.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LengthSet {
    /// Number of the set, as in [`LengthSets`].
    number: u16,
    /// Number of members, above 0.
    pub count: u16,
}

impl LengthSet {
    /// Returns the length.
    #[inline]
    pub fn length(self) -> u32 {
        u32::from(self.number) & LONGEST // the class is in the bits above
    }
}

impl LengthSets {
    /// Sets the number of members and empties all sets. Allocates nothing if it had as many members before.
    pub fn clear(&mut self, members: usize) {
        self.words_each = members.div_ceil(WORD);
        self.set_of.clear();
        self.set_of.resize(members, NOWHERE);
        self.counts.clear();
        self.counts.resize(CLASSES * LENGTHS, 0);
        self.words.clear();
        self.words.resize(CLASSES * LENGTHS * self.words_each, 0);
        self.sizes.clear();
        self.sizes.resize(self.words.len(), 0);
    }

    /// Adds a member to a class. It must be in none.
    pub fn insert(&mut self, member: Member, class: usize, queue: u32) {
        let set = class * LENGTHS + queue.min(LONGEST) as usize;
        self.set_of[member.index()] = set as u16;
        self.flip(set, member, 1);
    }

    /// Moves a member to the set of another length. Does nothing if the member is in no set.
    #[inline]
    pub fn change(&mut self, member: Member, queue: u32) {
        let from = self.set_of[member.index()];
        let to = from & !(LONGEST as u16) | queue.min(LONGEST) as u16;
        if from == to || from == NOWHERE {
            return;
        }
        self.set_of[member.index()] = to;
        self.flip(from.into(), member, -1);
        self.flip(to.into(), member, 1);
    }

    /// Inverts the member's bit in a set, which has one member more (1) or less (-1) then.
    #[inline]
    fn flip(&mut self, set: usize, member: Member, more: i8) {
        let index = set * self.words_each + member.index() / WORD;
        self.words[index] ^= 1 << (member.index() % WORD);
        self.sizes[index] = self.sizes[index].wrapping_add_signed(more);
        self.counts[set] = self.counts[set].wrapping_add_signed(more.into());
    }

    /// Returns the members of a class with the shortest queue of at least `length`; `None` if there are none.
    #[inline]
    pub fn next(&self, class: usize, length: u32) -> Option<LengthSet> {
        let counts = &self.counts[class * LENGTHS..][..LENGTHS];
        let length = (length as usize..LENGTHS).find(|length| counts[*length] > 0)?;
        Some(LengthSet { number: (class * LENGTHS + length) as u16, count: counts[length] })
    }

    /// Returns the member of a set at position `nth`, in the order of their numbers. `None` if the set has at most
    /// `nth` members.
    #[inline]
    pub fn get(&self, set: LengthSet, nth: usize) -> Option<Member> {
        let first = usize::from(set.number) * self.words_each;
        let mut left = nth; // members to skip
        for (index, &size) in self.sizes[first..][..self.words_each].iter().enumerate() {
            if left < size.into() {
                let bit = nth_one(self.words[first + index], left as u64);
                return Some(Member((index * WORD) as u16 + bit as u16));
            }
            left -= usize::from(size);
        }
        None
    }
}

/// Returns the position of the `nth` bit that is one in a word, from 0. The word must have more than `nth` ones. Takes
/// no branches: positions are random, and a mispredicted branch costs more.
///
/// All eight bytes of the word are processed at once. Step 1 counts the ones of each byte. Step 2 finds the byte with
/// the wanted one by prefix sums. Step 3 spreads the bits of this byte to eight bytes, and finds the bit in the same
/// way.
#[inline]
fn nth_one(word: u64, nth: u64) -> u64 {
    /// One in each byte.
    const EACH: u64 = u64::MAX / 0xFF;
    /// Returns the number of bytes whose prefix sum, that of a byte and all below it, is at most `nth`, and the sums.
    fn bytes_before(ones: u64, nth: u64) -> (u64, u64) {
        // A product with a one in each byte has in each byte the sum of that byte and all below it.
        let sums = ones.wrapping_mul(EACH);
        // Each byte is 128 + nth - sum, whose highest bit tells the comparison: both are at most 64.
        let is_before = (((nth * EACH) | (0x80 * EACH)) - sums) >> 7 & EACH;
        (is_before.wrapping_mul(EACH) >> 56, sums)
    }
    // Step 1: ones of each two bits, of each four, and of each byte.
    let pairs = word - ((word >> 1) & (0x55 * EACH));
    let nibbles = (pairs & (0x33 * EACH)) + ((pairs >> 2) & (0x33 * EACH));
    let ones = (nibbles + (nibbles >> 4)) & (0x0F * EACH);
    // Step 2: the byte, and the number of ones to skip in it. The shift by 8 gives the sum of the bytes before it.
    let (byte, sums) = bytes_before(ones, nth);
    let left = nth - (sums << 8 >> (8 * byte) & 0xFF);
    // Step 3: copies the byte to all bytes and keeps bit i in byte i. Then makes each byte that is not 0 a 1.
    let spread = (((word >> (8 * byte)) & 0xFF) * EACH) & 0x8040_2010_0804_0201;
    let bits = (spread + 0x7F * EACH) >> 7 & EACH;
    8 * byte + bytes_before(bits, left).0
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MEMBERS: u16 = 130; // two words and a part of a third

    #[test]
    fn ones_are_found_by_position() {
        for word in [1, 1 << 63, u64::MAX, 0x8040_2010_0804_0201, 0xF0F0_0000_FFFF_0101] {
            let ones = (0..64).filter(|bit| word >> bit & 1 == 1);
            for (nth, bit) in ones.enumerate() {
                assert_eq!(nth_one(word, nth as u64), bit, "{nth} of {word:x}");
            }
        }
    }

    proptest! {
        /// Each set equals a scan of plain queues after any sequence of changes.
        // promise: scheduling.5
        #[test]
        fn sets_equal_a_scan(
            classes in proptest::collection::vec(0..=CLASSES, usize::from(MEMBERS)),
            changes in proptest::collection::vec((0..MEMBERS, 0..80_u32), 0..400),
        ) {
            let mut queues = [0; MEMBERS as usize];
            let mut sets = LengthSets::default();
            sets.clear(MEMBERS.into());
            // Members of the class beyond the last one are in no set.
            let all = (0..MEMBERS).map(Member).zip(classes);
            all.clone().filter(|(_, class)| *class < CLASSES).for_each(|(m, class)| sets.insert(m, class, 0));
            for (member, queue) in changes {
                queues[usize::from(member)] = queue;
                sets.change(Member(member), queue);
            }
            for class in 0..CLASSES {
                let mut set = sets.next(class, 0);
                for length in 0..=LONGEST {
                    let scan: Vec<Member> = all
                        .clone()
                        .filter(|(m, its_class)| *its_class == class && queues[m.index()].min(LONGEST) == length)
                        .map(|(member, _)| member)
                        .collect();
                    if scan.is_empty() {
                        continue;
                    }
                    let found = set.unwrap();
                    prop_assert_eq!((found.length(), usize::from(found.count)), (length, scan.len()));
                    for (nth, member) in scan.iter().enumerate() {
                        prop_assert_eq!(sets.get(found, nth), Some(*member));
                    }
                    prop_assert_eq!(sets.get(found, scan.len()), None);
                    set = sets.next(class, length + 1);
                }
                prop_assert_eq!(set, None);
            }
        }
    }
}
