//! Objects of the RocksDB workload's database. Keys and values derive from an object's number, so a generator
//! knows the contents of a database without reading it.
//!
//! The sizes are those of Horus (section 4.1): 5,000 objects with values of 1,000 bytes. A GET reads 60 of
//! them, a SCAN all.

use crate::seed::mixed;

/// Number of objects in the database.
pub const OBJECTS: u32 = 5_000;
/// Bytes of a value.
pub const VALUE_LEN: usize = 1_000;
/// Number of objects that a GET reads.
pub const GETS: u32 = 60;
/// Operation that reads [`GETS`] objects.
pub const GET: u16 = 1;
/// Operation that reads all objects.
pub const SCAN: u16 = 2;

/// Returns the key of an object: its number in eight decimal digits, so that keys sort by number.
#[must_use]
pub fn key(number: u32) -> [u8; 8] {
    let mut rest = number;
    let mut key = [b'0'; 8];
    for digit in key.iter_mut().rev() {
        *digit += (rest % 10) as u8;
        rest /= 10;
    }
    key
}

/// Returns the value of an object: pseudo-random words, each from the object's number and the word's index.
#[must_use]
pub fn value(number: u32) -> [u8; VALUE_LEN] {
    let mut value = [0; VALUE_LEN];
    for (index, word) in value.chunks_exact_mut(8).enumerate() {
        word.copy_from_slice(&mixed(u64::from(number) << 32 | index as u64).to_be_bytes());
    }
    value
}

/// Returns the numbers of the objects that a GET with this seed reads. A number may occur twice.
pub fn read_by(seed: u64) -> impl Iterator<Item = u32> {
    (0..u64::from(GETS)).map(move |i| (mixed(seed.wrapping_add(i)) % u64::from(OBJECTS)) as u32)
}

/// Returns the digest of an object over all its bytes. A worker answers with the wrapping sum over the objects that it
/// read, in any order. The generator computes the same sum without the database.
#[inline]
#[must_use]
pub fn digest(key: &[u8], value: &[u8]) -> u64 {
    mixed(folded(value) ^ mixed(folded(key) ^ value.len() as u64))
}

/// Folds all bytes into one word. The rotations make the result depend on the order. Uses four lanes, which
/// the compiler turns into vector instructions: a SCAN folds 5 MB.
#[inline]
fn folded(bytes: &[u8]) -> u64 {
    let mut lanes = [0_u64; 4];
    let (blocks, rest) = bytes.as_chunks::<32>();
    for block in blocks {
        for (lane, word) in lanes.iter_mut().zip(block.as_chunks::<8>().0) {
            *lane = lane.rotate_left(5) ^ u64::from_le_bytes(*word);
        }
    }
    let rest = rest.iter().fold(1_u64, |sum, byte| sum.rotate_left(8) ^ u64::from(*byte));
    lanes.iter().fold(rest, |sum, lane| mixed(sum ^ lane))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn keys_sort_as_numbers_do() {
        assert_eq!(&key(42), b"00000042");
        let keys: Vec<_> = (0..OBJECTS).map(key).collect();
        assert!(keys.is_sorted());
    }

    // promise: measurement.3
    #[test]
    fn a_digest_covers_every_byte() {
        let (key, mut bytes) = (key(7), value(7));
        let whole = digest(&key, &bytes);
        for at in 0..VALUE_LEN {
            bytes[at] ^= 1;
            assert_ne!(digest(&key, &bytes), whole, "byte {at}");
            bytes[at] ^= 1;
        }
        assert_ne!(digest(&key, &bytes[..VALUE_LEN - 1]), whole);
        assert_ne!(digest(&super::key(8), &bytes), whole);
        assert_eq!(digest(&key, &value(7)), whole);
    }

    #[test]
    fn objects_differ() {
        let digests: HashSet<_> = (0..OBJECTS).map(|n| digest(&key(n), &value(n))).collect();
        assert_eq!(digests.len(), OBJECTS as usize);
    }

    #[test]
    fn a_get_reads_objects_that_are_there() {
        let read: Vec<_> = read_by(9).collect();
        assert_eq!(read.len(), GETS as usize);
        assert!(read.iter().all(|number| *number < OBJECTS));
        assert_ne!(read, read_by(10).collect::<Vec<_>>());
    }
}
