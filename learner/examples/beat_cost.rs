//! Cost of a beat, a step of learning, in instructions. Valgrind counts only those inside `beat`, callees included. Run
//! it with two numbers of beats, and divide the difference of the counts by that of the beats: one-time work inside
//! `beat` then does not count. Both numbers are multiples of the optimizer's batch, 20 beats, whose update costs more.
//!
//! ```sh
//! cargo build --release -p wedjat-learner --example beat_cost
//! for beats in 400 2400; do
//!     valgrind --tool=callgrind --callgrind-out-file=/dev/null --toggle-collect='beat_cost::beat' \
//!         target/release/examples/beat_cost 32 $beats
//! done
//! ```
//!
//! Instructions per beat, by the number of nodes:
//!
//! | nodes | instructions (AVX2) | of these for the probabilities | Malcolm's released program (gcc -O3) |
//! |---|---|---|---|
//! | 16 | 3.9k | 1.4k | 7.0k |
//! | 32 | 9.3k | 3.1k | 20.6k |
//! | 64 | 28.9k | 8.6k | 69.4k |

use std::process::ExitCode;

use rand::{Rng as _, SeedableRng as _};
use rand_xoshiro::Xoshiro256PlusPlus;
use wedjat_learner::{Counts, Learner, NODES_MAX, Settings};

/// Learns from one beat. Never inlined, so that Valgrind can tell its instructions apart.
#[inline(never)]
fn beat(learner: &mut Learner, loads: &[f32], drawn: Counts<'_>) -> f32 {
    let reward = 1e-4; // constant: only the cost of learning matters here
    learner.beat(loads, reward, drawn).map_or(f32::NAN, |beat| beat.td_error)
}

/// Runs beats of one learner. Prints the mean error, so that the compiler does not remove the work.
fn main() -> ExitCode {
    let mut numbers = std::env::args().skip(1).map(|text| text.parse::<usize>());
    let (Some(Ok(nodes @ 1..=NODES_MAX)), Some(Ok(beats))) = (numbers.next(), numbers.next())
    else {
        eprintln!("usage: cost NODES BEATS, with 1 to {NODES_MAX} nodes");
        return ExitCode::from(2);
    };
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(7);
    let mut learner = Learner::new(Settings::new(nodes), &mut rng);
    // Loads vary at random, and each node is drawn now and then by both policies, as under high load.
    let mut loads: Vec<_> = (0..nodes).map(|_| (rng.next_u32() % 1000) as f32 * 1e-5).collect();
    let mut error_sum = 0.0;
    for _ in 0..beats {
        // A random walk without drift: steps of -5e-5 to 5e-5, never below a load of 0.
        for load in &mut loads {
            *load = (*load + (rng.next_u32() % 1000) as f32 * 1e-7 - 5e-5).max(0.0);
        }
        // Draws of each node: 0 to 2 for fresh tasks, 0 or 1 for stealing.
        let mut drawn = |bound| (0..nodes).map(|_| rng.next_u32() % bound).collect::<Vec<_>>();
        let (migrations, steals) = (drawn(3), drawn(2));
        error_sum +=
            beat(&mut learner, &loads, Counts { migrations: &migrations, steals: &steals });
    }
    println!("{beats} beats of {nodes} nodes; mean TD error {}", error_sum / beats as f32);
    ExitCode::SUCCESS
}
