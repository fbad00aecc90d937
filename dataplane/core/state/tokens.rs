//! Tokens: credits to send a task to a member, in memory that several cores of a node share.
//!
//! Each token is one bit. A member has one token in each level, and each level has a row of words. Cores put a member's
//! tokens from the last row on, so those of an idle member fill the last rows. A search begins at the first of these
//! rows. A bit there means that all tokens of the member are free, and a bit in the last row that at least one is.
//! Surplus tokens of a member lie in the rows before. They are taken last, and out of this order, until a check removes
//! them. A core takes a token by clearing its bit in one atomic step, so two cores never have the same one. `Relaxed`
//! order suffices: a token guards no other memory.

use std::ops::Range;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use super::member::Member;
use super::region::Slice;

/// Maximum number of tokens of a member.
pub const LEVELS: usize = 64;

/// Free tokens of one pool: those that no core holds.
#[derive(Clone, Debug)]
pub struct Tokens {
    /// The rows, one after another. A set bit is a free token.
    words: Slice<AtomicU64>,
    /// Number of words in a row: one bit for each member.
    row: usize,
}

impl Tokens {
    /// Returns the number of words for `members` members.
    #[must_use]
    pub fn words(members: usize) -> usize {
        LEVELS * members.div_ceil(64)
    }

    /// Creates the tokens over memory for `members` members. Bits set there stay.
    ///
    /// # Panics
    /// If the memory does not have [`Tokens::words`] words.
    #[must_use]
    pub fn new(words: Slice<AtomicU64>, members: usize) -> Self {
        assert_eq!(words.len(), Self::words(members));
        Self { words, row: members.div_ceil(64) }
    }

    /// Returns the word that holds a member's token of this level, and the token's bit in it.
    fn bit(&self, level: usize, member: Member) -> (&AtomicU64, u64) {
        (&self.words[level * self.row + member.index() / 64], 1 << (member.index() % 64))
    }

    /// Frees one of up to `levels` tokens of a member for all cores. Returns false if all of them are free
    /// already.
    #[inline]
    pub fn put(&self, member: Member, levels: usize) -> bool {
        self.put_all(member.index() / 64, 1 << (member.index() % 64), levels) == 0
    }

    /// Frees a token of each of these members, as [`Tokens::put`] does. Frees those of one word in one atomic step.
    #[inline]
    pub fn put_run(&self, members: impl Iterator<Item = Member>, levels: usize) {
        let (mut index, mut bits) = (0, 0);
        for member in members {
            let bit = 1 << (member.index() % 64);
            if member.index() / 64 != index || bits & bit != 0 {
                self.put_all(index, bits, levels);
                (index, bits) = (member.index() / 64, 0);
            }
            bits |= bit;
        }
        if bits != 0 {
            self.put_all(index, bits, levels);
        }
    }

    /// Frees a token of each of `members`, the bits of word `index` of each row, as [`Tokens::put`] does. Returns the
    /// members whose tokens are all free already.
    #[inline]
    fn put_all(&self, index: usize, mut members: u64, levels: usize) -> u64 {
        for level in (0..levels.min(LEVELS)).rev() {
            let word = &self.words[level * self.row + index];
            // Sets the first bit of each member that is clear. Another core may set it first; then the search goes on.
            let clear = members & !word.load(Relaxed);
            if clear != 0 {
                members &= !clear | word.fetch_or(clear, Relaxed);
            }
            if members == 0 {
                break;
            }
        }
        members
    }

    /// Takes a token of a member with the most free ones. `levels` are those of an idle member's tokens; surplus tokens,
    /// of lower levels, are taken last. The search in each row starts at word `from` and wraps
    /// around; cores with different `from` rarely compete. Returns the member and the token's level, or `None` if no
    /// token is free.
    #[inline]
    #[must_use]
    pub fn take(&self, levels: Range<usize>, from: usize) -> Option<(Member, usize)> {
        let mut taken = None;
        self.take_run(levels, from, 1, |member, level| taken = Some((member, level)));
        taken
    }

    /// Takes up to `most` tokens, as this many calls of [`Tokens::take`] do, with one atomic step for each word. Passes
    /// the member and the level of each token to `take`.
    #[inline]
    pub fn take_run(
        &self,
        levels: Range<usize>,
        from: usize,
        most: usize,
        mut take: impl FnMut(Member, usize),
    ) {
        let mut missing = most;
        for level in (levels.start..levels.end.min(LEVELS)).chain(0..levels.start) {
            if missing == 0 {
                break;
            }
            missing -= self.search(level, from, missing, |_| !0, |member| take(member, level));
        }
    }

    /// Like [`Tokens::take`], for a token of this level of one of these members.
    #[must_use]
    pub fn take_in(&self, level: usize, from: usize, members: Range<usize>) -> Option<Member> {
        // Bits of a word that belong to members below `end`.
        let below = |end: usize, index: usize| match end.saturating_sub(64 * index) {
            bits @ 0..64 => (1 << bits) - 1,
            _ => !0,
        };
        let allowed = |index| below(members.end, index) & !below(members.start, index);
        let mut taken = None;
        self.search(level, from, 1, allowed, |member| taken = Some(member));
        taken
    }

    /// Takes up to `most` tokens of this level, and passes their members to `take`. Returns their number. `allowed`
    /// returns the bits of a word that may be taken.
    #[inline(always)]
    fn search(
        &self,
        level: usize,
        from: usize,
        most: usize,
        allowed: impl Fn(usize) -> u64,
        mut take: impl FnMut(Member),
    ) -> usize {
        let row = &self.words[level * self.row..][..self.row];
        let mut count = 0;
        for step in 0..self.row {
            let index = (from + step) % self.row;
            while count < most {
                let wanted = lowest(row[index].load(Relaxed) & allowed(index), most - count);
                if wanted == 0 {
                    break;
                }
                // Another core may have taken some of the bits first. Then the search in this word repeats.
                let mut taken = row[index].fetch_and(!wanted, Relaxed) & wanted;
                count += taken.count_ones() as usize;
                while taken != 0 {
                    take(Member((64 * index + taken.trailing_zeros() as usize) as u16));
                    taken &= taken - 1;
                }
            }
        }
        count
    }

    /// Takes the free token of a member that was put last. Corrects a surplus, or in a loop revokes all tokens of a
    /// removed member. Returns false if the member has no free token.
    #[must_use]
    pub fn take_of(&self, member: Member) -> bool {
        (0..LEVELS).any(|level| {
            let (word, bit) = self.bit(level, member);
            word.load(Relaxed) & bit != 0 && word.fetch_and(!bit, Relaxed) & bit != 0
        })
    }

    /// Returns the number of a member's free tokens.
    #[must_use]
    pub fn count(&self, member: Member) -> usize {
        self.count_of(member, LEVELS)
    }

    /// Returns how many of a member's first `levels` tokens are free.
    #[must_use]
    pub fn count_of(&self, member: Member, levels: usize) -> usize {
        (0..levels).filter(|&level| self.is_set(level, member)).count()
    }

    /// Returns true if one of a member's first `levels` tokens is free.
    #[must_use]
    pub fn has(&self, member: Member, levels: usize) -> bool {
        (0..levels.min(LEVELS)).any(|level| self.is_set(level, member))
    }

    /// Returns true if a member's token of this level is free.
    fn is_set(&self, level: usize, member: Member) -> bool {
        let (word, bit) = self.bit(level, member);
        word.load(Relaxed) & bit != 0
    }

    /// Returns the number of members with a free token of this level. Their tokens of all higher levels are usually free,
    /// too.
    #[must_use]
    pub fn members_at(&self, level: usize) -> usize {
        let row = &self.words[level * self.row..][..self.row];
        row.iter().map(|word| word.load(Relaxed).count_ones() as usize).sum()
    }

    /// Removes all free tokens of each member beyond its first `levels` ones, which an earlier policy with more tokens
    /// per member left.
    pub fn clear_from(&self, levels: usize) {
        self.words[levels * self.row..].iter().for_each(|word| word.store(0, Relaxed));
    }

    /// Returns true if any token is free. Looks at lower levels than these last.
    #[must_use]
    pub fn has_some(&self, levels: Range<usize>) -> bool {
        let words = &self.words[..levels.end.min(LEVELS) * self.row];
        let (lower, words) = words.split_at(levels.start * self.row);
        words.iter().chain(lower).any(|word| word.load(Relaxed) != 0)
    }
}

/// Returns the lowest `most` bits that are set in a word.
#[inline]
fn lowest(word: u64, most: usize) -> u64 {
    if word.count_ones() as usize <= most {
        return word;
    }
    let higher = (0..most).fold(word, |rest, _| rest & rest.wrapping_sub(1));
    word & !higher
}

#[cfg(test)]
mod tests {
    use super::super::region::Region;
    use super::*;

    /// Creates tokens for a pool, none of them free.
    fn tokens(members: usize) -> Tokens {
        let words = Tokens::words(members);
        Tokens::new(Region::heap(8 * words).slice(0, words), members)
    }

    #[test]
    fn members_with_most_tokens_come_first() {
        let tokens = tokens(70);
        for member in [69, 3, 69] {
            assert!(tokens.put(Member(member), 2));
        }
        assert!(!tokens.put(Member(69), 2), "both tokens are free already");
        assert_eq!((tokens.count(Member(69)), tokens.count(Member(3))), (2, 1));
        assert_eq!(tokens.take(0..2, 0), Some((Member(69), 0)));
        assert_eq!(
            tokens.take(0..2, 1),
            Some((Member(69), 1)),
            "word 1, with member 69, comes first"
        );
        assert_eq!(tokens.take(0..2, 1), Some((Member(3), 1)));
        assert_eq!((tokens.take(0..2, 0), tokens.has_some(0..2)), (None, false));
        assert!(
            tokens.put(Member(69), 3) && tokens.put(Member(69), 3) && tokens.put(Member(69), 3)
        );
        // Only the token of level 0 stays.
        tokens.clear_from(1);
        assert_eq!((tokens.count(Member(69)), tokens.has(Member(69), 1)), (1, true));
        assert!(tokens.take_of(Member(69)));
        assert!(
            tokens.put(Member(5), 1) && tokens.take_of(Member(5)) && !tokens.take_of(Member(5))
        );
    }

    #[test]
    fn search_stays_among_the_given_members() {
        let tokens = tokens(200);
        for member in [3, 63, 64, 130, 199] {
            assert!(tokens.put(Member(member), 1));
        }
        let take = |from, members| tokens.take_in(0, from, members).map(|member| member.0);
        assert_eq!((take(0, 0..3), take(1, 4..63), take(3, 131..199)), (None, None, None));
        assert_eq!((take(2, 64..usize::MAX), take(0, 64..usize::MAX)), (Some(130), Some(64)));
        assert_eq!((take(3, 0..64), take(0, 4..64), take(0, 0..64)), (Some(3), Some(63), None));
        assert_eq!((take(1, 0..200), tokens.has_some(0..1)), (Some(199), false));
    }

    #[test]
    fn runs_equal_single_steps() {
        let [run, single] = [tokens(130), tokens(130)];
        let members = [5, 64, 5, 7, 129, 7, 5, 66, 129].map(Member);
        run.put_run(members.into_iter(), 2);
        members.iter().for_each(|member| _ = single.put(*member, 2));
        for (from, most) in [(1, 3), (0, 4), (2, 9)] {
            let mut taken = Vec::new();
            run.take_run(0..2, from, most, |member, level| taken.push((member, level)));
            let expected: Vec<_> = (0..most).map_while(|_| single.take(0..2, from)).collect();
            assert_eq!(taken, expected);
        }
        assert!(!run.has_some(0..2));
        // A third token lies in the first of three rows.
        for _ in 0..3 {
            assert!(run.put(Member(129), 3));
        }
        assert_eq!(
            (run.take(1..3, 0), run.take(1..3, 2)),
            (Some((Member(129), 1)), Some((Member(129), 2)))
        );
        assert!(run.has_some(1..3), "a surplus token");
        assert_eq!((run.take(1..3, 1), run.has_some(1..3)), (Some((Member(129), 0)), false));
    }

    // promise: scheduling.2
    #[test]
    fn no_token_is_taken_twice_or_lost() {
        let (tokens, rounds) = (tokens(8), if cfg!(miri) { 100 } else { 50_000 });
        for member in 0..8 {
            assert!(tokens.put(Member(member), 2) && tokens.put(Member(member), 2));
        }
        // Number of each member's tokens that threads hold.
        let held: Vec<_> = (0..8).map(|_| AtomicU64::new(0)).collect();
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let (tokens, held) = (tokens.clone(), &held);
                scope.spawn(move || {
                    for round in 0..rounds {
                        let mut taken = Vec::new();
                        tokens.take_run(0..2, thread, 1 + round % 4, |member, _| {
                            assert!(held[member.index()].fetch_add(1, Relaxed) < 2);
                            taken.push(member);
                        });
                        for member in &taken {
                            held[member.index()].fetch_sub(1, Relaxed);
                        }
                        tokens.put_run(taken.into_iter(), 2);
                    }
                });
            }
        });
        assert!((0..8).all(|member| tokens.count(Member(member)) == 2));
    }
}
