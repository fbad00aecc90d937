//! Tests of the decisions, heartbeats and consensus of nodes without a leaf, with exact, lost, invalid and random
//! messages.

use proptest::prelude::*;

use super::*;

/// Settings of node `own` out of `nodes`. The beats of no two nodes coincide.
fn settings(policy: &str, nodes: usize, own: usize) -> Settings {
    Settings {
        nodes,
        own,
        policy: policy.parse().unwrap(),
        slots: 4,
        beat_ns: BEAT_NS,
        first_beat_ns: BEAT_NS + own as u64,
        born: 1,
        seed: 7,
    }
}

/// Nodes that do not know each other yet.
fn rack(policy: &str, nodes: usize) -> Vec<Peers> {
    (0..nodes).map(|own| Peers::new(settings(policy, nodes, own))).collect()
}

/// Ends a beat of one node without delivery.
fn alone(peers: &mut Peers) -> Heartbeat {
    peers.beat(peers.next_beat_ns())
}

/// Ends a beat of one node, with delivery to all others.
fn beat(rack: &mut [Peers], node: usize) -> Heartbeat {
    let now_ns = rack[node].next_beat_ns();
    let heartbeat = rack[node].beat(now_ns);
    let parts: Vec<_> =
        rack[node].parameters().map(|(head, values)| (head, values.to_vec())).collect();
    for (other, peers) in rack.iter_mut().enumerate().filter(|(other, _)| *other != node) {
        assert_eq!(peers.receive_heartbeat(&heartbeat), Ok(()), "{other} hears {node}");
        for (head, values) in &parts {
            assert_eq!(peers.receive_parameters(head, values.iter().copied()), Ok(()));
        }
    }
    heartbeat
}

/// Ends this many beats of each node, in turn.
fn beats(rack: &mut [Peers], count: u64) {
    for _ in 0..count {
        (0..rack.len()).for_each(|node| _ = beat(rack, node));
    }
}

/// Returns a node that knows these numbers of waiting tasks: its own first, then its peers'.
fn node_with_loads(policy: &str, waiting: &[u32]) -> Peers {
    let mut peers = Peers::new(settings(policy, waiting.len(), 0));
    for (id, waiting) in waiting.iter().enumerate().skip(1) {
        let heartbeat = Peers::new(settings(policy, 4, id)).beat(0); // 4: any number above `id`; replaced below
        let origin = Origin { nodes: peers.settings.nodes as u16, ..heartbeat.origin };
        peers.receive_heartbeat(&Heartbeat { origin, waiting: *waiting, ..heartbeat }).unwrap();
    }
    peers.set_waiting(waiting[0]);
    peers
}

/// Distributes `tasks` fresh tasks of this node. Returns the number that each node gets, this one included.
fn destinations(peers: &mut Peers, tasks: u32) -> Vec<u32> {
    let mut counts = vec![0; peers.settings.nodes];
    for _ in 0..tasks {
        counts[peers.destination().unwrap_or(peers.settings.own)] += 1;
    }
    counts
}

#[test]
fn isolated_node_keeps_its_tasks() {
    for policy in ["malcolm", "frozen", "rsteal", "jsq", "po2", "jbt", "random"] {
        let mut peers = Peers::new(settings(policy, 4, 2));
        peers.set_waiting(100);
        assert!((0..100).all(|_| peers.destination().is_none()), "{policy}");
        peers.set_waiting(0);
        assert!((0..100).all(|_| peers.done(1000).is_none()), "{policy}");
        assert_eq!(peers.totals(), &Totals::default());
        for time in 1..50 {
            peers.beat(time * BEAT_NS);
        }
        assert!(peers.live().is_empty());
    }
}

// promise: agent.4
#[test]
fn baselines_use_waiting_and_sent_tasks() {
    let counts = destinations(&mut node_with_loads("jsq", &[5, 3, 1, 3]), 5);
    assert_eq!(
        counts,
        [0, 1, 3, 1],
        "one by one they become equal, and no node is longer than this one"
    );
    assert_eq!(
        destinations(&mut node_with_loads("jsq", &[1, 1, 1]), 4),
        [4, 0, 0],
        "this one when it is as short"
    );
    let mut ties = node_with_loads("jsq", &[9, 0, 0, 0]);
    assert_eq!(destinations(&mut ties, 27), [0, 9, 9, 9]);

    let decision = |_| node_with_loads("po2", &[2, 9, 0, 1]).destination();
    assert_eq!(decision(()), decision(()), "equal seeds decide alike");
    // The longest is never taken; the shortest is taken whenever it is drawn: in half of all six pairs of nodes, so
    // for about 450 tasks. Node 0 wins one pair (150 tasks), node 3 two pairs (300 tasks).
    let mut peers = node_with_loads("po2", &[2000, 9000, 0, 1000]);
    let counts = destinations(&mut peers, 900);
    assert_eq!(counts[1], 0);
    assert!((350..550).contains(&counts[2]) && counts[0] > 100 && counts[3] > 200, "{counts:?}");

    let counts = destinations(&mut node_with_loads("jbt(below=3)", &[9, 1, 5, 0]), 5);
    assert_eq!(counts, [0, 2, 0, 3], "as long as any is below 3");
    let counts = destinations(&mut node_with_loads("jbt(below=3)", &[9, 9, 9, 9]), 400);
    assert!(counts.iter().all(|count| (60..140).contains(count)), "else any: {counts:?}");
    assert_eq!(destinations(&mut node_with_loads("jbt", &[1, 0, 0]), 9), [9, 0, 0]);
    for policy in ["random", "rsteal", "malcolm(migrate=off)"] {
        assert_eq!(
            destinations(&mut node_with_loads(policy, &[99, 0, 0]), 9),
            [9, 0, 0],
            "{policy}"
        );
    }
}

// promise: agent.4
#[test]
fn only_idle_nodes_ask_for_tasks() {
    for (policy, asks) in [
        ("rsteal", true),
        ("malcolm", true),
        ("frozen", true),
        ("malcolm(steal=off)", false),
        ("jsq", false),
        ("random", false),
    ] {
        let mut peers = node_with_loads(policy, &[0, 1, 1, 1]);
        // `rsteal` draws one of the three peers, a learned policy one of the four nodes, among them this one.
        let mut counts = [0; 4];
        for _ in 0..1000 {
            if let Some(victim) = peers.done(50_000) {
                counts[victim] += 1;
            }
        }
        assert_eq!(counts.iter().sum::<u32>() > 500, asks, "{policy}: {counts:?}");
        assert_eq!(counts[0], 0, "{policy}");
        assert!(!asks || counts[1..].iter().all(|count| *count > 100), "{policy}: {counts:?}");
        assert_eq!(peers.totals().steals, u64::from(counts.iter().sum::<u32>()));
        peers.set_waiting(1);
        assert!((0..100).all(|_| peers.done(1000).is_none()), "{policy}");
        // Only the current queue counts.
        peers.set_waiting(0);
        assert_eq!((0..100).any(|_| peers.done(1000).is_some()), asks, "{policy}");
    }
}

// promise: agent.4
#[test]
fn heartbeat_reports_its_own_period() {
    let mut rack = rack("jsq", 2);
    beats(&mut rack, 1);
    let node = &mut rack[0];
    node.set_waiting(3);
    node.done(80_000);
    assert_eq!([node.destination(), node.destination()], [Some(1), Some(1)]);
    assert!(node.handle_steal_request(), "a task waits");
    node.set_waiting(0);
    assert!(!node.handle_steal_request() && !node.handle_steal_request());
    node.count_failed_task();
    node.set_waiting(3);
    let first = beat(&mut rack, 0);
    let done = BeatStatistics { migrations: 2, steals: 0, failed_tasks: 1, failed_steals: 2 };
    assert_eq!((first.done, first.number, first.waiting), (done, 2, 3));
    // 3 waiting tasks of 80 us each. The workers serve 4 tasks at once, and each of these counts as 64 slots.
    assert_eq!(first.load, 3.0 * 80.0 / (4.0 * 64.0));
    let second = beat(&mut rack, 0);
    assert_eq!((second.done, second.number), (BeatStatistics::default(), 3));
    let Totals { migrations, given, failed_steals, failed_tasks, .. } = *rack[0].totals();
    assert_eq!([migrations, given, failed_steals, failed_tasks], [2, 1, 2, 1]);
}

// promise: agent.4
#[test]
fn silent_node_is_excluded_until_it_returns() {
    for policy in ["malcolm", "rsteal", "jsq"] {
        let mut rack = rack(policy, 4);
        beats(&mut rack, 3);
        assert_eq!(rack[0].live(), [1, 2, 3]);
        let last = beat(&mut rack, 2);
        // Node 2 is present before each of these beats, and absent after the last one.
        for passed in 1..=SILENT_BEATS + 1 {
            assert_eq!(
                rack[0].live().contains(&2),
                passed <= SILENT_BEATS + 1,
                "{policy}: {passed}"
            );
            for node in [0, 1, 3] {
                beat(&mut rack, node);
            }
        }
        assert_eq!(rack[0].live(), [1, 3], "{policy}");
        rack[0].set_waiting(1 << 20);
        assert_eq!(destinations(&mut rack[0], 1000)[2], 0, "{policy}");
        if let Some((migration, stealing)) = rack[0].probabilities() {
            assert_eq!((migration[2], stealing[2]), (0.0, 0.0));
        }
        // After its restart, messages from before it are refused.
        rack[2] = Peers::new(Settings { born: 9, ..settings(policy, 4, 2) });
        let number = rack[0].number;
        beat(&mut rack, 0);
        let back = beat(&mut rack, 2);
        assert_eq!(rack[0].live(), [1, 2, 3], "{policy}");
        assert_eq!(back.number, number + 2, "it adopts the number of the present nodes");
        assert_eq!(rack[0].receive_heartbeat(&last), Err(Refusal::Old));
    }
}

// promise: agent.4
#[test]
fn invalid_message_is_counted_and_ignored() {
    let mut rack = rack("malcolm", 3);
    beats(&mut rack, 5);
    let good = alone(&mut rack[1]);
    let with = |change: fn(&mut Heartbeat)| {
        let mut bad = good;
        change(&mut bad);
        bad
    };
    let peers = &mut rack[0];
    let before = peers.clone();
    // The last accepted heartbeat has the number before that of `good`.
    for (bad, reason) in [
        (with(|beat| beat.origin.version = 9), Refusal::Version),
        (with(|beat| beat.origin.nodes = 4), Refusal::Nodes),
        (with(|beat| beat.origin.features = 0), Refusal::Features),
        (with(|beat| beat.origin.id = 3), Refusal::Stranger),
        (with(|beat| beat.origin.id = 0), Refusal::Stranger),
        (with(|beat| beat.load = f32::NAN), Refusal::NotFinite),
        (with(|beat| beat.load = f32::INFINITY), Refusal::NotFinite),
        (with(|beat| beat.load = -1e-9), Refusal::OutOfRange),
        (with(|beat| (beat.load, beat.waiting) = (1.1e6, 9)), Refusal::OutOfRange),
        (with(|beat| (beat.load, beat.waiting) = (1e-9, 0)), Refusal::OutOfRange),
        (with(|beat| beat.waiting = u32::MAX), Refusal::OutOfRange),
        (with(|beat| beat.number = u64::MAX), Refusal::OutOfRange),
        (with(|beat| beat.done.failed_tasks = u32::MAX), Refusal::OutOfRange),
        (with(|beat| beat.number -= 1), Refusal::Doubled),
        (with(|beat| beat.number = 0), Refusal::Old),
        (with(|beat| (beat.origin.born, beat.number) = (0, 99)), Refusal::Old),
    ] {
        let counted = peers.refusals().of(reason);
        assert_eq!(peers.receive_heartbeat(&bad), Err(reason), "{bad:?}");
        assert_eq!(peers.refusals().of(reason), counted + 1);
    }
    assert_eq!(peers.refusals().total(), 16);
    let mut other = before;
    for peers in [&mut *peers, &mut other] {
        peers.receive_heartbeat(&good).unwrap();
        alone(peers);
    }
    assert_eq!(peers.probabilities(), other.probabilities());
    assert_eq!((peers.live(), peers.value_loss()), (other.live(), other.value_loss()));
}

// promise: agent.4
#[test]
fn critics_agree_once_per_round() {
    let nodes = 16; // 185 parameters: one part; see below for more
    let mut rack = rack("malcolm", nodes);
    let critic = |peers: &Peers| match &peers.rule {
        DecisionRule::Learning(learning) => learning.learner.critic().copied().collect::<Vec<_>>(),
        _ => unreachable!(),
    };
    beats(&mut rack, CONSENSUS_BEATS - 1);
    assert!(rack.iter().all(|peers| peers.parameters().next().is_none()));
    let critics: Vec<_> = (0..nodes)
        .map(|node| {
            beat(&mut rack, node);
            critic(&rack[node])
        })
        .collect();
    let (head, values) =
        rack[1].parameters().next().map(|(head, values)| (head, values.to_vec())).unwrap();
    assert_eq!((head.round, head.parts), (1, 1));
    let receive = |peers: &mut Peers, head| peers.receive_parameters(&head, values.iter().copied());
    let peers = &mut rack[0];
    assert_eq!(receive(peers, head), Err(Refusal::Doubled));
    assert_eq!(receive(peers, Parameters { round: 0, ..head }), Err(Refusal::Old));
    assert_eq!(receive(peers, Parameters { round: 3, ..head }), Err(Refusal::Old));
    assert_eq!(receive(peers, Parameters { part: 1, ..head }), Err(Refusal::Length));
    assert_eq!(receive(peers, Parameters { parts: 2, ..head }), Err(Refusal::Length));
    let origin = Origin { born: 3, ..head.origin };
    assert_eq!(receive(peers, Parameters { origin, ..head }), Err(Refusal::Old));
    assert_eq!(peers.receive_parameters(&head, values[1..].iter().copied()), Err(Refusal::Length));
    for (value, refusal) in [(f32::NAN, Refusal::NotFinite), (-1e7, Refusal::OutOfRange)] {
        let mut bad = values.clone();
        bad[7] = value;
        assert_eq!(peers.receive_parameters(&head, bad.iter().copied()), Err(refusal));
    }

    beat(&mut rack, 0);
    assert_eq!((rack[0].totals().agreed, rack[0].totals().lost_parts), (1, 0));
    // A small step of the learner lies between the published and the resulting values.
    for (place, value) in critic(&rack[0]).into_iter().enumerate() {
        let mean = critics.iter().map(|critic| critic[place]).sum::<f32>() / nodes as f32;
        assert!((value - mean).abs() < 2e-3, "{place}: {value} for {mean}");
    }
    assert_eq!(receive(&mut rack[0], head), Err(Refusal::Old), "it is over");
}

// promise: agent.4
#[test]
fn lost_parts_of_parameters_are_counted() {
    let nodes = 24; // 373 parameters: two parts
    let mut rack = rack("malcolm", nodes);
    beats(&mut rack, CONSENSUS_BEATS - 1);
    for node in 0..nodes {
        let heartbeat = alone(&mut rack[node]);
        let parts: Vec<_> =
            rack[node].parameters().map(|(head, values)| (head, values.to_vec())).collect();
        assert_eq!(parts.iter().map(|(_, values)| values.len()).collect::<Vec<_>>(), [256, 117]);
        if node != 0 {
            rack[0].receive_heartbeat(&heartbeat).unwrap();
            // Nodes 1 and 2 lose their first part.
            for (head, values) in parts.iter().rev().take(if node < 3 { 1 } else { 2 }) {
                rack[0].receive_parameters(head, values.iter().copied()).unwrap();
            }
        }
    }
    alone(&mut rack[0]);
    assert_eq!((rack[0].totals().agreed, rack[0].totals().lost_parts), (1, 2));
}

#[test]
fn frozen_policies_use_loads_and_never_learn() {
    for (policy, learns) in [("frozen", false), ("malcolm", true)] {
        let mut rack = rack(policy, 3);
        beats(&mut rack, 2);
        let first = rack[0].probabilities().unwrap().0.to_vec();
        for time in 0..100 {
            rack[1].set_waiting((time % 5) as u32 * 10);
            rack[1].done(90_000);
            rack[0].destination();
            beats(&mut rack, 1);
        }
        assert_ne!(rack[0].probabilities().unwrap().0, first, "it sees loads");
        rack[1].set_waiting(0);
        beats(&mut rack, 2);
        assert_eq!(rack[0].probabilities().unwrap().0 != first, learns, "{policy}");
        assert_eq!(rack[0].value_loss().unwrap() > 0.0, learns);
    }
}

#[test]
fn missed_beats_are_skipped() {
    let mut peers = Peers::new(settings("rsteal", 2, 0));
    assert_eq!(peers.next_beat_ns(), BEAT_NS);
    peers.beat(BEAT_NS + 10);
    assert_eq!(peers.next_beat_ns(), 2 * BEAT_NS);
    let heartbeat = peers.beat(7 * BEAT_NS + 10);
    assert_eq!((peers.next_beat_ns(), peers.totals().beats), (8 * BEAT_NS, 2));
    assert_eq!(heartbeat.number, 7, "the number of a node that missed no beat");
    let mut late = Peers::new(settings("rsteal", 2, 0));
    assert_eq!(late.beat(1000 * BEAT_NS).number, 1, "its first");
}

#[test]
fn round_ends_despite_missed_beats() {
    let mut rack = rack("malcolm", 2);
    beats(&mut rack, CONSENSUS_BEATS);
    let now_ns = rack[0].next_beat_ns() + 3 * BEAT_NS;
    assert_eq!(rack[0].beat(now_ns).number, CONSENSUS_BEATS + 4);
    assert_eq!(rack[0].totals().agreed, 1);
}

#[test]
fn node_joining_at_a_round_averages_nothing() {
    let mut rack = rack("malcolm", 2);
    let heartbeat = Heartbeat { number: CONSENSUS_BEATS, ..alone(&mut rack[1]) };
    rack[0].receive_heartbeat(&heartbeat).unwrap();
    assert_eq!(alone(&mut rack[0]).number, CONSENSUS_BEATS + 1);
    assert_eq!((rack[0].totals().agreed, rack[0].totals().lost_parts), (0, 0));
}

proptest! {
    // promise: agent.4
    #[test]
    fn any_heartbeats_leave_probabilities_valid(
        beats in proptest::collection::vec(
            (any::<[u8; 48]>(), 0..4_u16, any::<bool>(), any::<u32>(), 0..40_u64),
            1..200,
        ),
        policy in prop::sample::select(vec!["malcolm", "malcolm(utility=level,optimizer=sgd)", "frozen", "jsq"]),
    ) {
        let mut peers = Peers::new(settings(policy, 4, 0));
        for (bytes, id, is_sane, load, number) in beats {
            let mut beat = Heartbeat::parse(&bytes).unwrap();
            // A heartbeat with the id of a node, maybe our own; its id, number or counts may still be refused.
            if is_sane {
                beat.origin = Origin { id, ..peers.origin() };
                (beat.load, beat.number) = (load as f32 / 4000.0, number);
                (beat.waiting, beat.done) = (load >> 12, BeatStatistics { steals: load >> 13, ..BeatStatistics::default() });
            }
            _ = peers.receive_heartbeat(&beat);
            peers.set_waiting(load >> 20);
            _ = (peers.destination(), peers.done(u64::from(load)), peers.handle_steal_request());
            let own = peers.beat(number * BEAT_NS);
            prop_assert!(own.load.is_finite());
            if let Some((migration, stealing)) = peers.probabilities() {
                for probabilities in [migration, stealing] {
                    let sum: f32 = probabilities.iter().sum();
                    prop_assert!((sum - 1.0).abs() < 1e-4, "{probabilities:?}");
                }
            }
            if let Some(destination) = peers.destination() {
                prop_assert!(peers.live().contains(&(destination as u16)));
            }
        }
    }
}

#[test]
fn gain_scales_rewards_only() {
    // Probabilities after the first loads, and the critic's error after more beats.
    let learn = |policy| {
        let mut rack = rack(policy, 3);
        beats(&mut rack, 2);
        rack[1].set_waiting(40);
        rack[1].done(90_000);
        beats(&mut rack, 1);
        let first = rack[2].probabilities().unwrap().0.to_vec();
        for time in 0..50_u32 {
            rack[1].set_waiting(time % 5 * 10);
            beats(&mut rack, 1);
        }
        (first, rack[2].value_loss().unwrap())
    };
    let ((plain, loss), (with_gain, more)) = (learn("malcolm"), learn("malcolm(gain=8)"));
    assert_eq!(plain, with_gain, "equal loads give equal first probabilities");
    // Rewards are quadratic in the loads, and the loss is quadratic in the rewards: a factor of about 8^4.
    assert!(more > 100.0 * loss, "{more} for {loss}");
}
