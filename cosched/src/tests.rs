//! Tests of choosers with their logs and replays. "The paper" is ASA_X (arXiv 2401.09706), whose Algorithm 1
//! a chooser in mode paper follows.
//!
//! A chooser draws a share of core time for a batch job from the advice of experts. It learns from the loss which
//! experts to follow. An expert's advice is a distribution over the ten shares 0, 10 .. 90%. Modes are learning rules:
//! mode iw divides the risk by the probability of the drawn share, and mode balanced also counts the harm to the batch.

use std::io::BufReader;

use rand::{Rng, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;
use serde_json::Value;

use crate::{
    Chooser, Expert, HappinessFormula, LoggingChooser, Mode, Outcome, Overrides, Plan, Progress,
    ReplayResult, SHARES, Settings, Setup, Share, State, replay,
};

/// Returns a random number in [0, 1): the upper 53 bits, the precision of an `f64`, as a fraction.
fn uniform(random: &mut Xoshiro256PlusPlus) -> f64 {
    (random.next_u64() >> 11) as f64 / (1_u64 << 53) as f64
}

/// Returns an expert that always advises this share.
fn always(name: &str, percent: u8) -> Expert {
    Expert { name: name.to_owned(), plan: Plan::Always(Share::try_from(percent).unwrap()) }
}

/// Returns an expert with constant advice: a tree whose leaves are equal, as no other plan takes a distribution.
fn constant(name: &str, distribution: [f64; SHARES]) -> Expert {
    let plan = Plan::Tree {
        metric: crate::Metric::Cpu,
        bounds: [0.3, 0.6],
        happiness: [1.0, 1.1],
        leaves: Box::new([distribution; 9]),
    };
    Expert { name: name.to_owned(), plan }
}

/// Returns the progress of a job at a random time, with random speed and remaining work.
fn some_progress(random: &mut Xoshiro256PlusPlus) -> Progress {
    let wall = 100.0;
    let elapsed = 100.0 * uniform(random);
    Progress { wall, elapsed, rate: 1.0 + uniform(random), remaining: 100.0 * uniform(random) }
}

/// Returns a random valid state.
fn some_state(random: &mut Xoshiro256PlusPlus) -> State {
    let (cpu, memory, stage) = (uniform(random), uniform(random), uniform(random));
    let progress = some_progress(random);
    State { cpu, memory, stage, interval: progress.elapsed / progress.wall, progress }
}

/// Returns the log of a chooser with random states, limits and outcomes. Larger shares do more harm.
fn some_log(settings: Settings, experts: Vec<Expert>, decisions: u64) -> Vec<u8> {
    let mut random = Xoshiro256PlusPlus::seed_from_u64(settings.seed + 1000);
    let mut logged =
        LoggingChooser::new(Chooser::new(settings, experts).unwrap(), Vec::new()).unwrap();
    for at_ns in 0..decisions {
        let limit = Share::at_most(uniform(&mut random) * 2.0);
        let share = logged.decide(at_ns, &some_state(&mut random), limit).unwrap();
        assert!(share <= limit);
        let observed =
            60.0 + 100.0 * uniform(&mut random) + 300.0 * share.part() * uniform(&mut random);
        let batch = Some(some_progress(&mut random));
        logged.learn(at_ns, &Outcome { expected: 100.0, observed, batch }).unwrap().unwrap();
    }
    logged.into_log().unwrap()
}

/// Replays a log, in another mode if given.
fn replayed(log: &[u8], mode: Option<Mode>) -> ReplayResult {
    replay(BufReader::new(log), &Overrides { mode, ..Overrides::default() }).unwrap()
}

/// Returns the advice of an expert, computed from the JSON of the log's first line and the record of a decision. The
/// vector ends at the decision's limit. Independent of the chooser's code, as a reference.
fn advice(expert: &Value, decision: &Value) -> Vec<f64> {
    let number = |value: &Value| value.as_f64().unwrap();
    let plan = &expert["plan"];
    let mut advice = vec![0.0; 10];
    if let Some(percent) = plan["always"].as_u64() {
        advice[percent as usize / 10] = 1.0;
    } else {
        let (tree, state) = (&plan["tree"], &decision["state"]);
        let progress = &state["progress"];
        let left = number(&progress["wall"]) - number(&progress["elapsed"]);
        let happiness = left * number(&progress["rate"]) / number(&progress["remaining"]);
        let class = |value: f64, bounds: &Value| {
            if value < number(&bounds[0]) {
                0
            } else if value < number(&bounds[1]) {
                1
            } else {
                2
            }
        };
        let metric = number(&state[tree["metric"].as_str().unwrap()]);
        let leaf = 3 * class(metric, &tree["bounds"]) + class(happiness, &tree["happiness"]);
        advice = tree["leaves"][leaf].as_array().unwrap().iter().map(number).collect();
    }
    let limit = decision["limit"].as_u64().unwrap() as usize / 10;
    let above: f64 = advice.drain(limit + 1..).sum();
    advice[limit] += above;
    advice
}

// promise: batch.1
#[test]
fn mode_paper_equals_algorithm_1() {
    let mut experts = Setup::built_in().trees();
    experts.extend([always("nothing", 0), always("half", 50)]);
    for (falling, rate) in [(false, 0.1), (true, 1.0)] {
        let settings = Settings { mode: Mode::Paper, rate, falling, ..Settings::default() };
        let log = some_log(settings, experts.clone(), 10_000);
        let lines: Vec<Value> = std::str::from_utf8(&log)
            .unwrap()
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        let logged_experts = lines[0]["experts"].as_array().unwrap();
        // The test computes the algorithm again, with the paper's variables.
        let n = logged_experts.len();
        let (mut alpha, mut risk, mut round) = (vec![1.0 / n as f64; n], vec![0.0; n], 1.0);
        // Risks since the start, of the mixture and of each expert, and the sum of the squared gammas.
        let (mut mixture_total, mut totals, mut squares) = (0.0, vec![0.0; n], 0.0);
        let (mut decisions, mut worst) = (0, 0.0_f64);
        // Notes the largest difference between the computed and the logged values.
        let mut compare = |computed: f64, logged: &Value| {
            worst = worst.max((computed - logged.as_f64().unwrap()).abs());
        };
        for pair in lines[1..].chunks(2) {
            let [decision, outcome] = pair else { panic!("a decision without an outcome") };
            decisions += 1;
            let advice: Vec<_> =
                logged_experts.iter().map(|expert| advice(expert, decision)).collect();
            let share = decision["share"].as_u64().unwrap() as usize / 10;
            // The mixture: the advice of all experts, each times its weight. Advice may end at the limit.
            let probability_of = |share: usize| {
                advice.iter().zip(&alpha).filter_map(|(p, a)| Some(a * p.get(share)?)).sum::<f64>()
            };
            for index in 0..10 {
                compare(probability_of(index), &decision["mixture"][index]);
            }
            // Line 7 of the algorithm: the share is the one in whose part of the sum the random number falls.
            let draw = decision["draw"].as_u64().unwrap() as f64 / 2.0_f64.powi(53);
            let below: f64 = (0..share).map(probability_of).sum();
            assert!(below <= draw + 1e-12 && draw < below + probability_of(share) + 1e-12);
            let expected = outcome["outcome"]["expected"].as_f64().unwrap();
            let observed = outcome["outcome"]["observed"].as_f64().unwrap();
            let loss =
                if observed > expected { ((observed - expected) / expected).min(1.0) } else { 0.0 };
            compare(loss, &outcome["loss"]);
            for i in 0..n {
                risk[i] += advice[i][share] * loss;
                totals[i] += advice[i][share] * loss;
                mixture_total += alpha[i] * advice[i][share] * loss;
                compare(risk[i], &outcome["risk"][i]);
            }
            let ends = risk.iter().any(|risk| *risk > 1.0);
            assert_eq!(ends, outcome.get("ended").is_some());
            if !ends {
                continue;
            }
            // The round ends: weights fall exponentially with the risk, and are normalised.
            let gamma = if falling { rate / f64::sqrt(round) } else { rate };
            let sum: f64 = alpha.iter().zip(&risk).map(|(a, r)| a * (-gamma * r).exp()).sum();
            alpha = alpha.iter().zip(&risk).map(|(a, r)| a / sum * (-gamma * r).exp()).collect();
            risk.fill(0.0);
            squares += gamma * gamma;
            let ended = &outcome["ended"];
            assert_eq!(ended["round"].as_f64().unwrap(), round);
            for (i, alpha) in alpha.iter().enumerate() {
                compare(*alpha, &ended["alpha"][i]);
            }
            let best = totals.iter().copied().fold(f64::INFINITY, f64::min);
            let (excess, bound) = (mixture_total - best, ((n as f64).ln() + 0.5 * squares) / gamma);
            // The ratio, because both grow with the number of rounds, and so do their rounding errors.
            compare(
                excess / bound,
                &Value::from(
                    ended["excess_risk"].as_f64().unwrap() / ended["bound"].as_f64().unwrap(),
                ),
            );
            assert!(excess <= bound, "round {round}: {excess} above {bound}");
            round += 1.0;
        }
        assert_eq!(decisions, 10_000);
        assert!(round > 100.0, "{round} rounds");
        assert!(worst <= 1e-12, "{worst:e}");
    }
}

/// Returns the weight of the best expert after 400 rounds of learning. A share of 30% harms least, and the best expert
/// always advises it.
fn weight_of_best(mode: Mode, seed: u64) -> f64 {
    let mut experts = vec![constant("any", [0.1; SHARES])];
    experts.extend([0, 30, 50, 90].map(|percent| always(&percent.to_string(), percent)));
    let settings = Settings { mode, rate: 0.1, seed, ..Settings::default() };
    let mut random = Xoshiro256PlusPlus::seed_from_u64(seed);
    let mut chooser = Chooser::new(settings, experts).unwrap();
    for _ in 0..100_000 {
        let decision =
            chooser.decide(&some_state(&mut random), Share::MOST, random.next_u64() >> 11).unwrap();
        // The mean excess over the expected time is smallest for a share of 30%.
        let mean = 0.1 + (decision.share.part() - 0.3).abs();
        let observed = 100.0 * (1.0 + mean * 2.0 * uniform(&mut random));
        let update =
            chooser.learn(&decision, &Outcome { expected: 100.0, observed, batch: None }).unwrap();
        if update.ended.is_some_and(|round| round.round == 400) {
            break;
        }
    }
    // The expert that always advises 30% is the third one.
    chooser.alpha()[2]
}

// promise: batch.1
#[test]
fn iw_beats_mode_paper_within_400_rounds() {
    // Number of seeds with which the best expert gets most of the weight.
    let successes = |mode| (0..20).filter(|seed| weight_of_best(mode, *seed) > 0.5).count();
    let (iw, paper) = (successes(Mode::Iw), successes(Mode::Paper));
    assert!(iw >= 18, "iw found it with {iw} of 20 seeds");
    assert_eq!(paper, 0, "paper found it with {paper} of 20 seeds");
}

// promise: batch.1
#[test]
fn balanced_admits_harmless_batch_and_iw_stays_neutral() {
    // Weight of the expert that advises 50% after 1000 decisions in which no share does harm.
    let weight_of_half = |mode, happiness| {
        let experts = vec![always("nothing", 0), always("half", 50)];
        let settings = Settings { mode, happiness, ..Settings::default() };
        let mut random = Xoshiro256PlusPlus::seed_from_u64(1);
        let mut chooser = Chooser::new(settings, experts).unwrap();
        for _ in 0..1000 {
            let decision = chooser
                .decide(&some_state(&mut random), Share::MOST, random.next_u64() >> 11)
                .unwrap();
            // The batch finishes in 80 of its 100 s with half of the cores, and never without any.
            let rate = decision.share.part();
            let batch = Some(Progress { wall: 100.0, elapsed: 0.0, rate, remaining: 40.0 });
            chooser.learn(&decision, &Outcome { expected: 1.0, observed: 1.0, batch }).unwrap();
        }
        chooser.alpha()[1]
    };
    for happiness in [HappinessFormula::Ratio, HappinessFormula::Printed] {
        assert_eq!(weight_of_half(Mode::Iw, happiness), 0.5);
        assert!(weight_of_half(Mode::Balanced, happiness) > 0.9);
    }
}

/// Returns the number of decisions that a chooser needs to follow a change. The first of two experts is better for 4000
/// decisions, then the second one. Counts from the change until the second expert has most of the weight. `None` if
/// 2000 decisions do not suffice.
fn decisions_to_turn(settings: Settings) -> Option<usize> {
    let mut random = Xoshiro256PlusPlus::seed_from_u64(5);
    // Each expert advises both shares, so that both are observed with any weights. The second expert's
    // deficit then grows for 4000 decisions.
    let [mut little, mut much] = [[0.0; SHARES]; 2];
    (little[0], little[5], much[0], much[5]) = (0.9, 0.1, 0.1, 0.9);
    let experts = vec![constant("little", little), constant("much", much)];
    let mut chooser = Chooser::new(settings, experts).unwrap();
    let mut turn = None;
    for number in 0..6000 {
        // The share with the smaller loss.
        let right = if number < 4000 { 0 } else { 50 };
        let decision =
            chooser.decide(&some_state(&mut random), Share::MOST, random.next_u64() >> 11).unwrap();
        let observed = if decision.share.percent() == right { 1.05 } else { 1.9 };
        chooser.learn(&decision, &Outcome { expected: 1.0, observed, batch: None }).unwrap();
        if turn.is_none() && number >= 4000 && chooser.alpha()[1] > 0.5 {
            turn = Some(number - 4000);
        }
    }
    turn
}

// promise: batch.1
#[test]
fn fixed_share_and_restart_follow_a_change() {
    let plain = Settings { mode: Mode::Iw, rate: 0.5, ..Settings::default() };
    assert_eq!(
        decisions_to_turn(plain.clone()),
        None,
        "without them 2000 decisions do not suffice"
    );
    let shared = decisions_to_turn(Settings { fixed_share: 0.02, ..plain.clone() });
    assert!(shared.is_some_and(|turn| turn < 500), "{shared:?}");
    let restarted = decisions_to_turn(Settings { restart: 5.0, ..plain });
    assert!(restarted.is_some_and(|turn| turn < 500), "{restarted:?}");
}

// promise: batch.1
#[test]
fn replayed_log_matches_its_records() {
    for mode in Mode::ALL {
        let fixed_share = if mode == Mode::Paper { 0.0 } else { 0.01 };
        let restart = if mode == Mode::Paper { 0.0 } else { 3.0 };
        let settings = Settings { mode, fixed_share, restart, ..Settings::default() };
        let log = some_log(settings, Setup::built_in().experts, 2000);
        let again = replayed(&log, None);
        assert!(again.agrees() && again.difference.unwrap() < 1e-12, "{:?}", again.difference);
        assert_eq!((again.decisions, again.unanswered, again.torn), (2000, 0, false));
        let in_rounds: usize = again.rounds.iter().map(|round| round.steps.actions.len()).sum();
        assert_eq!(in_rounds + again.unfinished.losses.len(), 2000);
        assert!(again.rounds.len() > 20, "{}", again.rounds.len());
        let other = replayed(&log, Some(if mode == Mode::Paper { Mode::Iw } else { Mode::Paper }));
        assert!(other.difference.is_none() && other.agrees());
        assert_ne!(
            other.rounds.last().unwrap().round.alpha,
            again.rounds.last().unwrap().round.alpha
        );
        assert!(other.other_shares > 0);
    }
}

// promise: batch.1
#[test]
fn iw_on_another_modes_log_finds_its_best() {
    let experts = vec![constant("any", [0.1; SHARES]), always("30", 30), always("90", 90)];
    let settings = Settings { mode: Mode::Paper, ..Settings::default() };
    let mut logged =
        LoggingChooser::new(Chooser::new(settings, experts).unwrap(), Vec::new()).unwrap();
    let mut random = Xoshiro256PlusPlus::seed_from_u64(3);
    for at_ns in 0..5000 {
        let share = logged.decide(at_ns, &some_state(&mut random), Share::MOST).unwrap();
        // A share of 30% does the least harm.
        let observed = 1.1 + (share.part() - 0.3).abs();
        logged.learn(at_ns, &Outcome { expected: 1.0, observed, batch: None }).unwrap();
    }
    let alpha = logged.chooser().alpha();
    assert!(alpha[0] > 0.5, "mode paper follows the spreading expert: {alpha:?}");
    let again = replayed(&logged.into_log().unwrap(), Some(Mode::Iw));
    let alpha = &again.rounds.last().unwrap().round.alpha;
    assert!(alpha[1] > 0.9, "{alpha:?}");
}

// promise: batch.1
#[test]
fn altered_or_torn_log_is_detected() {
    let log = some_log(
        Settings { mode: Mode::Iw, ..Settings::default() },
        Setup::built_in().experts,
        300,
    );
    let text = String::from_utf8(log).unwrap();
    let lines: Vec<_> = text.lines().collect();
    // The log with another text in the line with this index.
    let with = |index: usize, line: &str| {
        let mut lines = lines.clone();
        lines[index] = line;
        lines.join("\n") + "\n"
    };
    let again = |text: &str| replay(text.as_bytes(), &Overrides::default());
    let refused = |text: &str, named: &str| {
        let error = again(text).unwrap_err().to_string();
        assert!(error.contains(named), "{named}: {error}");
    };

    // Another outcome changes every later weight.
    let altered_line = lines
        .iter()
        .position(|line| line.contains("\"outcome\"") && !line.contains("\"loss\":0.0"))
        .unwrap();
    let before = serde_json::from_str::<Value>(lines[altered_line]).unwrap()["outcome"]["observed"]
        .to_string();
    let altered =
        again(&with(altered_line, &lines[altered_line].replace(&before, "99999.0"))).unwrap();
    assert!(!altered.agrees(), "{:?}", altered.difference);
    // Crashes in the middle of a line, between a decision and its outcome, and before the first line.
    let torn = again(&text[..text.len() - 20]).unwrap();
    assert!(torn.torn && torn.unanswered == 1 && torn.agrees(), "{:?}", torn.difference);
    let unanswered = again(&(lines[..lines.len() - 1].join("\n") + "\n")).unwrap();
    assert!(!unanswered.torn && unanswered.unanswered == 1 && unanswered.agrees());
    refused("", "empty");
    // Invalid logs.
    refused(&with(1, "{"), "line 2");
    refused(&(lines[1..].join("\n") + "\n"), "line 1: the first line of a log");
    refused(&with(1, lines[0]), "line 2: second line");
    refused(&with(3, lines[4]), "line 4: outcome of decision");
    refused(&with(0, &lines[0].replace("\"version\":1", "\"version\":9")), "version 9");
    refused(&with(1, &lines[1].replace("\"cpu\":", "\"cpu\":-")), "cpu");
    refused(&with(0, &lines[0].replacen("[0.0,0.25,", "[0.0,0.75,", 1)), "adds up to");
}

// promise: batch.1
#[test]
fn unknown_and_missing_outcomes_teach_nothing() {
    let mut random = Xoshiro256PlusPlus::seed_from_u64(3);
    let chooser = Chooser::new(Settings::default(), Setup::built_in().experts).unwrap();
    let mut logged = LoggingChooser::new(chooser, Vec::new()).unwrap();
    let outcome = Outcome { expected: 1.0, observed: 5.0, batch: None };
    assert!(logged.learn(0, &outcome).unwrap().is_none(), "no decision yet");
    for at_ns in 0..3 {
        logged.decide(at_ns, &some_state(&mut random), Share::MOST).unwrap();
    }
    assert!(logged.learn(3, &outcome).unwrap().is_some());
    let wrong = State { cpu: f64::NAN, ..some_state(&mut random) };
    assert!(logged.decide(4, &wrong, Share::MOST).unwrap_err().to_string().contains("cpu"));
    let again = replayed(&logged.into_log().unwrap(), None);
    assert_eq!((again.decisions, again.unanswered), (3, 2));
    assert!(again.agrees());
}

// promise: batch.1
#[test]
fn late_outcomes_match_their_decisions() {
    let mut random = Xoshiro256PlusPlus::seed_from_u64(3);
    let settings = Settings { mode: Mode::Iw, ..Settings::default() };
    let experts = vec![always("nothing", 0), always("half", 50)];
    let mut logged =
        LoggingChooser::new(Chooser::new(settings, experts).unwrap(), Vec::new()).unwrap();
    for at_ns in 0..500 {
        // Three open decisions, whose outcomes come in the reverse order.
        let decided = [(); 3].map(|()| {
            logged.decide_concurrent(at_ns, &some_state(&mut random), Share::MOST).unwrap()
        });
        for (number, share) in decided.into_iter().rev() {
            // Only the share does harm.
            let observed = 1.0 + share.part();
            let outcome = Outcome { expected: 1.0, observed, batch: None };
            assert!(logged.learn_of(number, at_ns, &outcome).unwrap().is_some());
            assert!(logged.learn_of(number, at_ns, &outcome).unwrap().is_none());
        }
    }
    assert!(logged.chooser().alpha()[0] > 0.99, "{:?}", logged.chooser().alpha());
    let again = replayed(&logged.into_log().unwrap(), None);
    assert_eq!((again.decisions, again.unanswered), (1500, 0));
    assert!(again.agrees() && again.difference.unwrap() < 1e-12);
}
