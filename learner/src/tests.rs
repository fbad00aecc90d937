//! Tests of the learner, by which a node chooses other nodes for its tasks: valid probabilities, learning from rewards,
//! exchange of critics, and refused input.

use proptest::prelude::*;
use rand::SeedableRng;
use rand_xoshiro::Xoshiro256PlusPlus;

use crate::{AdamW, BeatError, Choice, Counts, Learner, NODES_MAX, Optimizer, Settings};

/// Creates a learner with the default settings.
fn learner(nodes: usize, seed: u64) -> Learner {
    Learner::new(Settings::new(nodes), &mut Xoshiro256PlusPlus::seed_from_u64(seed))
}

/// Returns the critic's parameters.
fn critic_of(learner: &Learner) -> Vec<f32> {
    learner.critic().copied().collect()
}

/// Learns from a beat (learning step) in which both policies drew each node once. Returns the critic's error.
fn beat(learner: &mut Learner, loads: &[f32], reward: f32) -> Result<f32, BeatError> {
    let ones = vec![1; learner.settings().nodes];
    let drawn = Counts { migrations: &ones, steals: &ones };
    learner.beat(loads, reward, drawn).map(|beat| beat.td_error)
}

/// Checks that the probabilities sum to 1, and are 0 for absent nodes.
fn assert_probabilities(probabilities: &[f32], live: &[bool]) {
    let sum: f32 = probabilities.iter().sum();
    assert!((sum - 1.0).abs() < 1e-5, "{sum}: {probabilities:?}");
    for (probability, is_live) in probabilities.iter().zip(live) {
        assert!(
            if *is_live { *probability >= 0.0 } else { *probability == 0.0 },
            "{probabilities:?}"
        );
    }
}

proptest! {
    // promise: agent.4
    #[test]
    fn probabilities_sum_to_one_over_live_nodes(
        nodes in 1..=NODES_MAX,
        seed: u64,
        absent in proptest::collection::vec(0..NODES_MAX, 0..8),
        loads in proptest::collection::vec(0.0_f32..10.0, NODES_MAX),
        rewards in proptest::collection::vec(-10.0_f32..10.0, 1..50),
    ) {
        let mut learner = learner(nodes, seed);
        let mut live = vec![true; nodes];
        // Node 0 stays, so that at least one node is live.
        for node in absent.into_iter().filter(|node| *node > 0 && *node < nodes) {
            learner.set_live(node, false);
            live[node] = false;
        }
        for (number, reward) in rewards.into_iter().enumerate() {
            let loads: Vec<_> = (0..nodes).map(|node| loads[(node + number) % NODES_MAX]).collect();
            let ones: Vec<_> = live.iter().map(|is_live| u32::from(*is_live)).collect();
            let drawn = Counts { migrations: &ones, steals: &ones };
            let beat = learner.beat(&loads, reward, drawn).unwrap();
            prop_assert!(beat.td_error.is_finite());
            assert_probabilities(learner.migration(), &live);
            assert_probabilities(learner.stealing(), &live);
            // Draws never return an absent node.
            let mut choice = Choice::new(nodes);
            choice.set(learner.migration());
            for step in 0..32 {
                prop_assert!(live[choice.draw(step as f32 / 32.0)]);
            }
        }
    }
}

#[test]
fn rewarded_action_becomes_more_likely() {
    let settings = Settings {
        migration_rate: 0.1,
        optimizer: Optimizer::AdamW(AdamW { batch: 1, ..AdamW::default() }),
        ..Settings::new(3)
    };
    let mut learner = Learner::new(settings, &mut Xoshiro256PlusPlus::seed_from_u64(1));
    let loads = [1e-3, 2e-3, 3e-3];
    let before = learner.migration()[2];
    for round in 0..200 {
        // Drawing the third node is rewarded.
        let third = u32::from(round % 2 == 0);
        let counts = [1 - third, 0, third];
        let drawn = Counts { migrations: &counts, steals: &[1, 0, 0] };
        learner.beat(&loads, third as f32, drawn).unwrap();
    }
    let after = learner.migration()[2];
    assert!(after > before + 0.1, "{before} {after}");
}

#[test]
fn nodes_agree_on_the_mean_of_their_critics() {
    let (mut one, other) = (learner(4, 1), learner(4, 2));
    let wanted: Vec<_> = one.critic().zip(other.critic()).map(|(a, b)| (a + b) * 0.5).collect();
    one.receive_critic(&critic_of(&other)).unwrap();
    assert_eq!(one.average_critics(), 1, "one received critic");
    assert_eq!(critic_of(&one), wanted);
    assert_eq!(one.average_critics(), 0);
    assert_eq!(critic_of(&one), wanted, "no critic was received since");
}

// promise: agent.4
#[test]
fn overflowing_sums_keep_the_own_critic() {
    let mut learner = learner(3, 1);
    let own = critic_of(&learner);
    let largest = vec![f32::MAX; own.len()];
    // The sum of two is infinite.
    for _ in 0..2 {
        learner.receive_critic(&largest).unwrap();
    }
    assert_eq!(learner.average_critics(), 2, "both are received");
    assert_eq!(critic_of(&learner), own);
}

// promise: agent.4
#[test]
fn invalid_numbers_are_refused() {
    let mut learner = learner(3, 1);
    beat(&mut learner, &[1e-3, 0.0, 2e-3], 1e-4).unwrap();
    let before = format!("{learner:?}");
    for (loads, reward, message) in [
        (&[1.0, f32::NAN, 1.0][..], 0.0, "loads 1 is NaN; allowed: finite numbers"),
        (&[1.0, 1.0, f32::INFINITY], 0.0, "loads 2 is inf"),
        (&[-1.0, 1.0, 1.0], 0.0, "load 0 is -1; allowed: 0 and more"),
        (&[1.0, 1.0], 0.0, "2 loads, expected 3"),
        (&[1.0, 1.0, 1.0], f32::NAN, "reward 0 is NaN"),
    ] {
        let error = beat(&mut learner, loads, reward).unwrap_err().to_string();
        assert!(error.contains(message), "{error}");
    }
    let few = Counts { migrations: &[1, 1], steals: &[1, 1, 1] };
    let error = learner.beat(&[1.0; 3], 0.0, few).unwrap_err().to_string();
    assert!(error.contains("2 migrations, expected 3"), "{error}");
    let mut received = critic_of(&learner);
    received[7] = f32::NAN;
    assert!(
        learner.receive_critic(&received).is_err()
            && learner.receive_critic(&received[1..]).is_err()
    );
    assert_eq!(format!("{learner:?}"), before);
}

#[test]
fn equal_seeds_match_and_returning_nodes_keep_parameters() {
    assert_eq!(learner(5, 3).migration(), learner(5, 3).migration());
    assert_ne!(critic_of(&learner(5, 3)), critic_of(&learner(5, 4)));
    let mut one = learner(5, 3);
    one.set_live(2, false);
    assert_eq!(one.migration()[2], 0.0);
    one.set_live(2, true);
    assert_eq!(one.migration(), learner(5, 3).migration());
}
