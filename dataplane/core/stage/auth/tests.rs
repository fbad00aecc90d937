//! Window of sequences: in order, out of order, from several threads, and in every order that the memory
//! model allows.

use std::collections::BTreeSet;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Barrier};
use std::time::SystemTime;

use proptest::prelude::*;

use super::*;
use crate::wire::auth::{SEQUENCES_A_MICROSECOND, sequence_at};

/// First sequence of the lap after the window's start.
const START: u64 = 40 * WINDOW;

/// Creates a window that accepts sequences from `START` on.
fn window() -> Window {
    Window::starting(START - 1)
}

// promise: trust.3
#[test]
fn sequence_before_the_start_is_refused() {
    let window = window();
    assert!(!window.note(START - 1) && !window.note(START - WINDOW) && !window.note(0));
    assert!(window.note(START) && window.note(START + 5 * WINDOW));
}

// promise: trust.3
#[test]
fn replays_are_refused_in_any_order() {
    let window = window();
    assert!((START..START + 2000).all(|sequence| window.note(sequence)));
    assert!((START..START + 2000).all(|sequence| !window.note(sequence)));
    assert!((START..START + 2000).rev().all(|sequence| !window.note(sequence)));
}

// promise: trust.3
#[test]
fn packets_overtake_each_other_within_the_window() {
    let window = window();
    assert!(window.note(START + WINDOW - 1));
    assert!((START..START + WINDOW - 1).rev().all(|sequence| window.note(sequence)));
    // One lap later, new sequences replace the first words. The old sequences of these words are too old.
    assert!(window.note(START + WINDOW + SPAN - 1));
    assert!(!window.note(START) && !window.note(START + SPAN - 1));
    assert!(window.note(START + WINDOW));
}

// promise: trust.3
#[test]
fn jump_by_whole_windows_keeps_packets_in_flight() {
    let window = window();
    assert!(window.note(START + 100));
    // Begins with the word behind that of sequence 100, in a much later lap.
    let after = START + 1000 * WINDOW + 101_u64.next_multiple_of(SPAN);
    assert!((0..WINDOW / 2).all(|further| window.note(after + further)));
    assert!((0..100).all(|late| window.note(START + late)), "nothing has taken their places");
    assert!(!window.note(START + 100));
}

// promise: trust.3
#[test]
fn packet_delayed_for_seconds_is_refused() {
    let window = window();
    // No later sequence has replaced the words of these sequences, so only the clock can refuse them.
    let (delayed, now) = (START + 40, START + OLD_MAX + 2 * BEHIND_MAX);
    assert!(window.note(START) && window.note(now));
    assert!(!window.note(delayed));
    assert!(window.note(delayed + 3 * BEHIND_MAX), "seconds are allowed");
    assert!(!window.note(now - OLD_MAX - 1));
}

// promise: trust.3
#[test]
fn sequences_beyond_all_laps_are_refused() {
    let window = window();
    let last = LAP_MAX * WINDOW + WINDOW - 1;
    assert!(!window.note(last + 1) && !window.note(u64::MAX));
    assert!(window.note(START) && window.note(last) && !window.note(last));
    assert!(!Window::starting(u64::MAX).note(u64::MAX));
}

// promise: trust.3
#[test]
fn sender_clocks_may_lag_the_leafs() {
    let now = sequence_at(SystemTime::now());
    let minutes =
        (now - first_accepted(SystemTime::now())) / (60 * 1_000_000 * SEQUENCES_A_MICROSECOND);
    assert!((4..=5).contains(&minutes), "{minutes}");
    assert!(now / WINDOW < LAP_MAX / 2, "sequences last for centuries");
}

proptest! {
    /// Compares the window with a set of all sequences: none is accepted twice, and each is accepted once
    /// unless a later sequence replaced its word.
    // promise: trust.3
    #[test]
    fn window_accepts_each_sequence_once(steps in proptest::collection::vec((0..4 * WINDOW, 0..3_u8), 1..600)) {
        let (window, mut recorded, mut newest) = (window(), BTreeSet::new(), 0);
        let mut base = START;
        for (ahead, kind) in steps {
            // Most sequences arrive in order, some late, some from far ahead.
            let sequence = match kind {
                0 => base + ahead,
                1 => (base + 1).saturating_sub(ahead % WINDOW),
                _ => base + 1,
            };
            base = base.max(sequence);
            let accepted = window.note(sequence);
            if !recorded.insert(sequence) {
                prop_assert!(!accepted, "{sequence} twice");
            // Behind the newest by less than a window minus one word: no later sequence can have replaced the word.
            } else if sequence >= START && sequence + WINDOW - SPAN > newest {
                prop_assert!(accepted, "{sequence}, with {newest} the newest");
            }
            newest = newest.max(sequence);
        }
    }
}

/// Several threads get the same packets; one of them accepts each packet.
// promise: trust.3
#[test]
fn one_of_several_threads_accepts_a_packet() {
    const THREADS: usize = 4;
    const PACKETS: usize = 4 * WINDOW as usize;
    let window = Arc::new(window());
    let accepted: Arc<Vec<_>> = Arc::new((0..PACKETS).map(|_| AtomicUsize::new(0)).collect());
    let barrier = Arc::new(Barrier::new(THREADS));
    let threads = (0..THREADS).map(|thread| {
        let (window, accepted, barrier) = (window.clone(), accepted.clone(), barrier.clone());
        std::thread::spawn(move || {
            // The threads go through the parts together. Each part fits into the window, and each thread has
            // its own order.
            for part in (0..PACKETS).step_by(WINDOW as usize) {
                barrier.wait();
                for step in 0..WINDOW as usize {
                    let index = part + (step * (2 * thread + 1)) % WINDOW as usize;
                    if window.note(START + index as u64) {
                        accepted[index].fetch_add(1, Relaxed);
                    }
                }
            }
        })
    });
    threads.collect::<Vec<_>>().into_iter().for_each(|thread| thread.join().unwrap());
    assert!(accepted.iter().all(|times| times.load(Relaxed) == 1));
}

mod orderings {
    //! loom records equal and different sequences on two threads, in every order.

    use loom::sync::Arc;
    use loom::sync::atomic::AtomicU64;
    use loom::thread;
    use std::sync::atomic::Ordering::Relaxed;

    use super::super::{SPAN, SharedWord, note};

    impl SharedWord for AtomicU64 {
        fn load(&self) -> u64 {
            self.load(Relaxed)
        }

        fn exchange(&self, old: u64, new: u64) -> Result<u64, u64> {
            self.compare_exchange(old, new, Relaxed, Relaxed)
        }
    }

    /// Returns the results of two (lap, place) steps on each of two threads, and the final word. The word starts in
    /// lap 5 without a recorded sequence.
    fn race(steps: [[(u64, u64); 2]; 2]) -> ([[bool; 2]; 2], u64) {
        let word = Arc::new(AtomicU64::new(5 << SPAN));
        let threads = steps.map(|steps| {
            let word = word.clone();
            thread::spawn(move || steps.map(|(lap, place)| note(&*word, lap, place)))
        });
        (threads.map(|thread| thread.join().expect("the thread")), word.load(Relaxed))
    }

    // promise: trust.3
    #[test]
    fn packet_is_accepted_once() {
        loom::model(|| {
            let ([first, second], word) = race([[(5, 0), (5, 1)], [(5, 1), (5, 2)]]);
            assert!(first[0] && second[1] && (first[1] ^ second[0]), "{first:?} {second:?}");
            assert_eq!(word, 5 << SPAN | 0b111);
        });
    }

    // promise: trust.3
    #[test]
    fn later_lap_replaces_the_word_in_any_order() {
        loom::model(|| {
            let ([first, second], word) = race([[(5, 0), (6, 1)], [(5, 0), (6, 1)]]);
            assert!(!(first[0] && second[0]) && (first[1] ^ second[1]), "{first:?} {second:?}");
            assert_eq!(word, 6 << SPAN | 0b10);
        });
    }
}
