//! Runs the learner through a trace of another implementation, and finds the largest differences. The learner
//! chooses the nodes to which a node passes tasks (migration) and from which it takes them (stealing). Its
//! critic predicts future rewards from the nodes' loads.
//!
//! A trace is a JSON object. It begins with the number of nodes `n` and the optimizer's constants. The
//! initial parameters follow (`critic_w0`, and with one row per node `m_w0` of the migration policy and `s_w0` of
//! the stealing policy), and the initial loads (`x0`). A beat is one step of learning. Each of the `beats` holds
//! the next loads, the reward, and how often each node was drawn, with the resulting probabilities and
//! temporal-difference error (`td_error`). The final parameters follow. A trace may end with a consensus: the
//! node averages its critic's parameters with those of other nodes.

use std::error::Error;
use std::fmt::Write as _;

use rand::SeedableRng;
use serde::{Deserialize, Serialize};
use wedjat::policy::Rng;
use wedjat_learner::{AdamW, Counts, Learner, NODES_MAX, Optimizer, Schedule, Settings};

/// A trace in the form of its file.
#[derive(Debug, Deserialize)]
struct Trace {
    /// Number of nodes.
    n: usize,
    /// Beats per step of AdamW.
    batch: u32,
    /// 1 for the optimizer AdamW, 0 for stochastic gradient ascent.
    adamw: u8,
    /// 1 if the learning rates follow a cosine schedule with the `cosine_` parameters, 0 if they are
    /// constant.
    #[serde(default)]
    cosine: u8,
    /// Learning rates of the critic, the migration policy, the stealing policy and the average reward.
    critic_lr: f32,
    m_lr: f32,
    s_lr: f32,
    avg_reward_step: f32,
    /// Decay of the eligibility traces.
    lambda: f32,
    /// Constants of AdamW.
    beta1: f32,
    beta2: f32,
    eps: f32,
    weight_decay: f32,
    /// Factor of the policies' parameters before the softmax.
    #[serde(default = "one")]
    exp_beta: f32,
    /// Schedule: bounds of the factor of the learning rates, steps to the first restart, and growth of each
    /// further period.
    #[serde(default)]
    cosine_min: f32,
    #[serde(default = "one")]
    cosine_max: f32,
    #[serde(default, rename = "cosine_T0")]
    cosine_period: u32,
    #[serde(default, rename = "cosine_mult")]
    cosine_factor: u32,
    /// Initial parameters and loads.
    critic_w0: Vec<f32>,
    m_w0: Vec<Vec<f32>>,
    s_w0: Vec<Vec<f32>>,
    x0: Vec<f32>,
    /// Initial probabilities of both policies.
    m_p0: Option<Vec<f32>>,
    s_p0: Option<Vec<f32>>,
    beats: Vec<Beat>,
    /// Final parameters.
    critic_w: Option<Vec<f32>>,
    m_w: Option<Vec<Vec<f32>>>,
    s_w: Option<Vec<Vec<f32>>>,
    /// Critics of further nodes in the consensus, in the form that [`slopes`] parses.
    consensus_others: Option<String>,
    critic_w_after_consensus: Option<Vec<f32>>,
}

/// One step of learning: its inputs, and the results of the traced implementation.
#[derive(Debug, Deserialize)]
struct Beat {
    /// Number of draws of each node by the migration policy, and by the stealing policy.
    m_counts: Vec<u32>,
    s_counts: Vec<u32>,
    reward: f32,
    /// Loads of the nodes after the beat.
    x_next: Vec<f32>,
    td_error: Option<f32>,
    /// Probabilities of both policies after the beat.
    m_p_next: Option<Vec<f32>>,
    s_p_next: Option<Vec<f32>>,
}

/// Default of a factor that a trace may omit.
fn one() -> f32 {
    1.0
}

/// Largest differences from a trace; `None` if the trace lacks the values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Differences {
    /// Number of nodes.
    pub nodes: usize,
    /// Number of beats.
    pub beats: usize,
    /// Difference of a probability of either policy, before or after any beat.
    pub probabilities: Option<f64>,
    /// Difference of a beat's temporal-difference error.
    pub td_error: Option<f64>,
    /// Difference of the critic's parameters after the last beat.
    pub critic: Option<f64>,
    /// Difference of the migration policy's parameters.
    pub migration: Option<f64>,
    /// Difference of the stealing policy's parameters.
    pub stealing: Option<f64>,
    /// Difference of the critic's parameters after a consensus with other nodes.
    pub consensus: Option<f64>,
}

impl Differences {
    /// Returns each difference with its name.
    #[must_use]
    pub fn named(&self) -> [(&'static str, Option<f64>); 6] {
        [
            ("probabilities", self.probabilities),
            ("td_error", self.td_error),
            ("critic", self.critic),
            ("migration", self.migration),
            ("stealing", self.stealing),
            ("consensus", self.consensus),
        ]
    }

    /// Returns the differences as lines of text.
    #[must_use]
    pub fn lines(&self) -> String {
        let mut lines =
            format!("{} nodes, {} beats; largest differences:\n", self.nodes, self.beats);
        for (name, value) in self.named() {
            let _ = match value {
                Some(value) => writeln!(lines, "  {name:<14}{value:.3e}"),
                None => writeln!(lines, "  {name:<14}not in the trace"),
            };
        }
        lines
    }
}

/// Records a difference if it is larger than all before. A value that is not a number counts as an infinite difference.
fn record_difference(largest: &mut Option<f64>, actual: f32, expected: f32) {
    let difference = (f64::from(actual) - f64::from(expected)).abs();
    let difference = if difference.is_nan() { f64::INFINITY } else { difference };
    *largest = Some(largest.map_or(difference, |largest| largest.max(difference)));
}

/// Records the differences of several values, named `name` in the trace. Does nothing if the trace lacks
/// them. Fails if the trace has another number of values.
fn record_differences<'a>(
    largest: &mut Option<f64>,
    actual: impl IntoIterator<Item = &'a f32>,
    expected: Option<&'a Vec<f32>>,
    name: &str,
) -> Result<(), String> {
    let Some(expected) = expected else { return Ok(()) };
    let actual: Vec<_> = actual.into_iter().collect();
    if actual.len() != expected.len() {
        return Err(format!("{name}: {} values, expected {}", expected.len(), actual.len()));
    }
    let pairs = actual.into_iter().zip(expected);
    pairs.for_each(|(actual, expected)| record_difference(largest, *actual, *expected));
    Ok(())
}

/// Returns the largest differences between the learner and the trace in `text`.
///
/// # Errors
/// If the text is no valid trace.
pub fn compare(text: &str) -> Result<Differences, Box<dyn Error>> {
    let trace: Trace = serde_json::from_str(text)?;
    let mut learner = learner(&trace)?;
    let mut differences =
        Differences { nodes: trace.n, beats: trace.beats.len(), ..Default::default() };
    record_differences(
        &mut differences.probabilities,
        learner.migration(),
        trace.m_p0.as_ref(),
        "m_p0",
    )?;
    record_differences(
        &mut differences.probabilities,
        learner.stealing(),
        trace.s_p0.as_ref(),
        "s_p0",
    )?;
    for (number, beat) in trace.beats.iter().enumerate() {
        let drawn = Counts { migrations: &beat.m_counts, steals: &beat.s_counts };
        let outcome = learner.beat(&beat.x_next, beat.reward, drawn);
        let outcome = outcome.map_err(|error| format!("beat {number}: {error}"))?;
        if let Some(expected) = beat.td_error {
            record_difference(&mut differences.td_error, outcome.td_error, expected);
        }
        let probabilities = &mut differences.probabilities;
        record_differences(probabilities, learner.migration(), beat.m_p_next.as_ref(), "m_p_next")?;
        record_differences(probabilities, learner.stealing(), beat.s_p_next.as_ref(), "s_p_next")?;
    }
    record_differences(
        &mut differences.critic,
        learner.critic(),
        trace.critic_w.as_ref(),
        "critic_w",
    )?;
    let flat = |rows: &Option<Vec<Vec<f32>>>| rows.as_ref().map(|rows| rows.concat());
    let (migration, stealing) = (flat(&trace.m_w), flat(&trace.s_w));
    let rows = learner.migration_parameters();
    record_differences(&mut differences.migration, rows, migration.as_ref(), "m_w")?;
    let rows = learner.stealing_parameters();
    record_differences(&mut differences.stealing, rows, stealing.as_ref(), "s_w")?;
    if let (Some(other_nodes), expected @ Some(_)) =
        (&trace.consensus_others, trace.critic_w_after_consensus.as_ref())
    {
        for slope in slopes(other_nodes)? {
            // Parameters of a further node's critic.
            let critic: Vec<_> =
                (0..learner.critic().len()).map(|index| slope * index as f32).collect();
            learner.receive_critic(&critic)?;
        }
        learner.average_critics();
        record_differences(
            &mut differences.consensus,
            learner.critic(),
            expected,
            "critic_w_after_consensus",
        )?;
    }
    Ok(differences)
}

/// Creates a learner with the settings and the initial state of a trace.
fn learner(trace: &Trace) -> Result<Learner, Box<dyn Error>> {
    if !(1..=NODES_MAX).contains(&trace.n) {
        return Err(format!("n: {}; allowed: 1 to {NODES_MAX}", trace.n).into());
    }
    let schedule = match trace.cosine {
        0 => Schedule::Constant,
        _ => Schedule::Cosine {
            least: trace.cosine_min,
            most: trace.cosine_max,
            period: trace.cosine_period,
            factor: trace.cosine_factor,
        },
    };
    let adamw = AdamW {
        beta1: trace.beta1,
        beta2: trace.beta2,
        epsilon: trace.eps,
        weight_decay: trace.weight_decay,
        schedule,
        batch: trace.batch,
    };
    let settings = Settings {
        nodes: trace.n,
        lambda: trace.lambda,
        critic_rate: trace.critic_lr,
        migration_rate: trace.m_lr,
        stealing_rate: trace.s_lr,
        average_rate: trace.avg_reward_step,
        sharpness: trace.exp_beta,
        optimizer: if trace.adamw == 0 { Optimizer::Sgd } else { Optimizer::AdamW(adamw) },
    };
    // The random parameters are replaced at once by those of the trace.
    let mut learner = Learner::new(settings, &mut Rng::seed_from_u64(1));
    learner.set_parameters(&trace.critic_w0, &trace.m_w0.concat(), &trace.s_w0.concat())?;
    learner.start(&trace.x0)?;
    Ok(learner)
}

/// Parses the critics of the nodes that take part in a consensus. A trace describes each by its slope:
/// `w_i=0.01*i` means that parameter i is 0.01 times i.
fn slopes(text: &str) -> Result<Vec<f32>, String> {
    let refusal = || format!("consensus_others: {text:?}; allowed: multiples as in `w_i=0.01*i`");
    let described = text.split("w_i=").skip(1);
    let slopes: Vec<f32> = described
        .map(|rest| rest.split_once("*i").and_then(|(slope, _)| slope.trim().parse().ok()))
        .collect::<Option<_>>()
        .ok_or_else(refusal)?;
    if slopes.is_empty() { Err(refusal()) } else { Ok(slopes) }
}
