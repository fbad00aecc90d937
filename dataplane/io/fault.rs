//! A port whose incoming wire loses, reorders, duplicates and corrupts packets, reproducibly, and counts each.
//!
//! Faults strike what is received. To strike what a node sends, wrap the other end of its wire.

use std::collections::VecDeque;

use rand::{Rng, RngExt, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

use super::{Buf, Burst, Pool, Port};

/// A reordered packet is overtaken by at most so many others.
const OVERTAKEN_MAX: u64 = 8;

/// How often each fault strikes a packet: probabilities from 0 to 1, drawn independently.
#[derive(Clone, Copy, Debug, Default)]
pub struct Faults {
    /// The packet vanishes.
    pub loss: f64,
    /// The packet is held back and overtaken by one to eight others, or by as many polls on a quiet wire.
    pub reorder: f64,
    /// A second copy follows, when the pool has a buffer for it.
    pub duplicate: f64,
    /// One bit is flipped, after the copy of a duplicate was made.
    pub corrupt: f64,
}

/// What has happened so far: `received + duplicated = delivered + lost + held`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FaultCounts {
    /// Packets that came from the wrapped port.
    pub received: u64,
    /// Packets handed on.
    pub delivered: u64,
    /// Packets that vanished.
    pub lost: u64,
    /// Packets held back.
    pub reordered: u64,
    /// Copies made.
    pub duplicated: u64,
    /// Packets with a flipped bit.
    pub corrupted: u64,
    /// Packets inside at this moment: held back, or waiting for room in a burst.
    pub held: u64,
}

/// A port with [`Faults`].
pub struct Faulty<P: Port, S: Pool<Buf = P::Buf>> {
    port: P,
    pool: S,
    faults: Faults,
    random: Xoshiro256PlusPlus,
    // Counts packets and polls: the clock that releases what was held back.
    beat: u64,
    late: Vec<(u64, P::Buf)>,
    ready: VecDeque<P::Buf>,
    counts: FaultCounts,
}

impl<P: Port, S: Pool<Buf = P::Buf>> Faulty<P, S> {
    /// Wraps `port`; copies of duplicates come from `pool`. The same seed and packets give the same faults.
    ///
    /// # Panics
    /// When a probability is not between 0 and 1.
    pub fn new(port: P, pool: S, faults: Faults, seed: u64) -> Self {
        for probability in [faults.loss, faults.reorder, faults.duplicate, faults.corrupt] {
            assert!((0.0..=1.0).contains(&probability), "{probability} is not a probability");
        }
        Self {
            port,
            pool,
            faults,
            random: Xoshiro256PlusPlus::seed_from_u64(seed),
            beat: 0,
            late: Vec::new(),
            ready: VecDeque::new(),
            counts: FaultCounts::default(),
        }
    }

    /// What has happened so far.
    pub fn counts(&self) -> FaultCounts {
        FaultCounts { held: (self.late.len() + self.ready.len()) as u64, ..self.counts }
    }

    /// The wrapped port.
    pub fn inner(&mut self) -> &mut P {
        &mut self.port
    }

    fn strike(&mut self, mut packet: P::Buf) {
        self.counts.received += 1;
        if self.random.random_bool(self.faults.loss) {
            self.counts.lost += 1;
            return;
        }
        let copy =
            if self.random.random_bool(self.faults.duplicate) { self.copy(&packet) } else { None };
        if self.random.random_bool(self.faults.corrupt)
            && flip_bit(packet.bytes_mut(), &mut self.random)
        {
            self.counts.corrupted += 1;
        }
        if self.random.random_bool(self.faults.reorder) {
            self.counts.reordered += 1;
            // The beat that follows this packet releases nothing yet: one packet at least overtakes it.
            let due = self.beat + 2 + self.random.random_range(0..OVERTAKEN_MAX);
            self.late.push((due, packet));
        } else {
            self.ready.push_back(packet);
        }
        self.ready.extend(copy);
    }

    fn copy(&mut self, packet: &P::Buf) -> Option<P::Buf> {
        let mut copy = self.pool.take()?;
        if !copy.resize(packet.bytes().len()) {
            return None;
        }
        copy.bytes_mut().copy_from_slice(packet.bytes());
        self.counts.duplicated += 1;
        Some(copy)
    }

    fn release(&mut self) {
        self.beat += 1;
        let beat = self.beat;
        self.ready
            .extend(self.late.extract_if(.., |(due, _)| *due <= beat).map(|(_, packet)| packet));
    }
}

/// False when there is no bit to flip.
fn flip_bit(bytes: &mut [u8], random: &mut impl Rng) -> bool {
    if bytes.is_empty() {
        return false;
    }
    let bit = random.random_range(0..bytes.len() * 8);
    bytes[bit / 8] ^= 1 << (bit % 8);
    true
}

impl<P: Port, S: Pool<Buf = P::Buf>> Port for Faulty<P, S> {
    type Buf = P::Buf;

    fn rx_burst(&mut self, burst: &mut Burst<P::Buf>) -> usize {
        let mut arrived = Burst::new();
        if self.ready.len() < arrived.capacity() {
            self.port.rx_burst(&mut arrived);
        }
        if arrived.is_empty() {
            self.release();
        }
        for packet in arrived {
            self.strike(packet);
            self.release();
        }
        let delivered = burst.remaining_capacity().min(self.ready.len());
        burst.extend(self.ready.drain(..delivered));
        self.counts.delivered += delivered as u64;
        delivered
    }

    fn tx_burst(&mut self, burst: &mut Burst<P::Buf>) -> usize {
        self.port.tx_burst(burst)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::io::memory::{Frame, FramePool, RingPort, pair};

    const SENT: u32 = 2_000;

    /// The numbers that arrive, and the counts, when 0..SENT pass.
    fn pass(faults: Faults, seed: u64) -> (Vec<u32>, FaultCounts) {
        let pool = FramePool::new(512, 64);
        let (mut left, right) = pair(64, &pool);
        let mut right = Faulty::new(right, pool.clone(), faults, seed);
        let mut arrived = Vec::new();
        for number in 0..SENT {
            assert!(left.send(&number.to_be_bytes()));
            if number % 16 == 15 {
                drain(&mut right, &mut arrived);
            }
        }
        for _ in 0..20 {
            drain(&mut right, &mut arrived);
        }
        let counts = right.counts();
        drop((left, right));
        assert_eq!(pool.in_use(), 0);
        (arrived, counts)
    }

    fn drain(port: &mut Faulty<RingPort, FramePool>, arrived: &mut Vec<u32>) {
        let mut burst: Burst<Frame> = Burst::new();
        port.rx_burst(&mut burst);
        let number = |frame: Frame| u32::from_be_bytes(frame.bytes().try_into().unwrap());
        arrived.extend(burst.drain(..).map(number));
    }

    fn assert_balanced(counts: FaultCounts) {
        assert_eq!(
            counts.received + counts.duplicated,
            counts.delivered + counts.lost + counts.held
        );
        assert_eq!(counts.received, u64::from(SENT));
        assert_eq!(counts.held, 0);
    }

    #[test]
    fn without_faults_it_is_a_plain_port() {
        let (arrived, counts) = pass(Faults::default(), 1);
        assert_eq!(arrived, (0..SENT).collect::<Vec<_>>());
        assert_balanced(counts);
    }

    #[test]
    fn lost_packets_are_counted_and_the_others_keep_their_order() {
        let (arrived, counts) = pass(Faults { loss: 0.1, ..Faults::default() }, 2);
        assert!(arrived.is_sorted());
        assert_eq!(arrived.len() as u64, u64::from(SENT) - counts.lost);
        // Ten standard deviations of the binomial around its mean of 200.
        assert!((66..334).contains(&counts.lost), "{counts:?}");
        assert_balanced(counts);
    }

    #[test]
    fn reordered_packets_all_arrive_but_later() {
        let (mut arrived, counts) = pass(Faults { reorder: 0.2, ..Faults::default() }, 3);
        assert!(!arrived.is_sorted());
        for (place, &number) in arrived.iter().enumerate() {
            assert!(
                place.abs_diff(number as usize) <= 2 * OVERTAKEN_MAX as usize,
                "{number} at {place}"
            );
        }
        arrived.sort_unstable();
        assert_eq!(arrived, (0..SENT).collect::<Vec<_>>());
        assert!(counts.reordered > 0);
        assert_balanced(counts);
    }

    #[test]
    fn duplicates_follow_their_originals() {
        let (arrived, counts) = pass(Faults { duplicate: 0.3, ..Faults::default() }, 4);
        assert!(arrived.is_sorted());
        let twins = arrived.windows(2).filter(|pair| pair[0] == pair[1]).count() as u64;
        assert!(twins > 0);
        assert_eq!(twins, counts.duplicated);
        assert_balanced(counts);
    }

    #[test]
    fn corruption_flips_one_bit() {
        let (arrived, counts) = pass(Faults { corrupt: 0.5, ..Faults::default() }, 5);
        let wrong: Vec<u32> = (0..).zip(&arrived).map(|(sent, got): (u32, _)| sent ^ got).collect();
        assert!(wrong.iter().all(|bits| bits.count_ones() <= 1));
        assert_eq!(wrong.iter().filter(|bits| **bits != 0).count() as u64, counts.corrupted);
        assert!(counts.corrupted > 0);
        assert_balanced(counts);
    }

    #[test]
    fn the_seed_decides() {
        let all = Faults { loss: 0.1, reorder: 0.1, duplicate: 0.1, corrupt: 0.1 };
        assert_eq!(pass(all, 6), pass(all, 6));
        assert_ne!(pass(all, 6), pass(all, 7));
        assert_balanced(pass(all, 6).1);
    }

    #[test]
    #[should_panic(expected = "1.5 is not a probability")]
    fn impossible_probabilities_are_refused() {
        let pool = FramePool::new(1, 1);
        let (left, _right) = pair(1, &pool);
        Faulty::new(left, pool, Faults { loss: 1.5, ..Faults::default() }, 0);
    }
}
