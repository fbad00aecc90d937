//! Scripted events of a run: failures, changes of speed and of load. The script is the list of all such events, from
//! the flags `--fail` and `--at`.

use std::ops::Range;

use rand::Rng;
use wedjat_workload::arrival::{Arrivals, Schedule};
use wedjat_workload::grammar::parse_time_ns;

/// An event of the script.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Sets the speed of these workers from their next task on.
    Speed {
        /// Worker range.
        workers: Range<usize>,
        /// Speed; 1 is normal.
        speed: f64,
    },
    /// Shuffles the workers' speeds.
    Shuffle,
    /// Sets the load.
    Load(f64),
    /// Sends this fraction of all tasks to these nodes; the rest goes to the remaining nodes.
    Traffic {
        /// Node range.
        nodes: Range<usize>,
        /// Fraction of all tasks.
        share: f64,
    },
    /// A burst of tasks arrives at these nodes.
    Shock {
        /// Node range, served in turn.
        nodes: Range<usize>,
        /// Number of tasks.
        tasks: u64,
    },
    /// Kills these nodes, with their tasks.
    Down(Range<usize>),
    /// Restarts these nodes.
    Up(Range<usize>),
    /// Fails a leaf: packets through it are lost.
    FailLeaf(usize),
    /// Removes a rack from the spine's tables. This is the controller's reaction to a failed leaf.
    LeaveOut(usize),
    /// Fails the spine.
    FailSpine,
    /// Starts another spine. This is the controller's reaction to a failed spine.
    ReplaceSpine,
}

/// A timed event.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// Time in nanoseconds since the start of the run.
    pub at_ns: f64,
    /// Event.
    pub action: Action,
}

/// Returns the arrivals of a load, and of each load change in the script, on a clock of `hz` ticks per unit of time;
/// `rate` converts a load to tasks per unit. The unit is a second; in model `ct`, a mean service time.
///
/// # Errors
/// If arrivals and a load contradict each other.
pub fn schedules(
    arrivals: &Arrivals,
    load: f64,
    script: &[Step],
    rate: impl Fn(f64) -> f64,
    hz: f64,
) -> Result<(Schedule, Vec<Option<Schedule>>), String> {
    let schedule = |load| {
        Schedule::new(arrivals, rate(load), hz)
            .map_err(|error| format!("--arrivals at load {load}: {error}"))
    };
    let change = |step: &Step| match step.action {
        Action::Load(load) => schedule(load).map(Some),
        _ => Ok(None),
    };
    let changes = script.iter().map(change).collect::<Result<_, _>>()?;
    Ok((schedule(load)?, changes))
}

/// Shuffles values (Fisher and Yates).
pub fn shuffle<R: Rng>(values: &mut [f64], rng: &mut R) {
    for last in (1..values.len()).rev() {
        // Scales 32 random bits to an index from 0 to `last`.
        let index = (u64::from(rng.next_u64() as u32) * (last as u64 + 1)) >> 32;
        values.swap(last, index as usize);
    }
}

/// Parses `20ms speed 0-7=0.5`, `20ms shuffle` (shuffles the speeds) or `20ms load 0.9`.
///
/// # Errors
/// The fault and the allowed values.
pub fn parse_at(text: &str, workers: usize) -> Result<Step, String> {
    let mut words = text.split_whitespace();
    let form = || {
        format!(
            "`{text}`: write a time and a change, as in `20ms speed 0-7=0.5`, `20ms shuffle` or `20ms load 0.9`"
        )
    };
    let (Some(time), Some(name), value, None) =
        (words.next(), words.next(), words.next(), words.next())
    else {
        return Err(form());
    };
    let at_ns = parse_time_ns(time).map_err(|error| format!("`{text}`: {error}"))?;
    let value = match (name, value) {
        ("shuffle", None) => return Ok(Step { at_ns, action: Action::Shuffle }),
        ("shuffle", Some(_)) | (_, None) => return Err(form()),
        (_, Some(value)) => value,
    };
    let number = |value: &str, max: f64| {
        value
            .parse::<f64>()
            .ok()
            .filter(|v| (1e-3..=max).contains(v))
            .ok_or_else(|| format!("`{text}`: `{value}` is not a number from 0.001 to {max}"))
    };
    let action = match name {
        "load" => Action::Load(number(value, 1.5)?),
        "speed" => {
            let (range, speed) = value.split_once('=').ok_or_else(form)?;
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            let parse = |value: &str| value.parse::<usize>().map_err(|_| form());
            let (first, last) = (parse(first)?, parse(last)?);
            if first > last || last >= workers {
                return Err(format!("`{text}`: the workers are 0 to {}", workers - 1));
            }
            Action::Speed { workers: first..last + 1, speed: number(speed, 1000.0)? }
        }
        _ => return Err(form()),
    };
    Ok(Step { at_ns, action })
}

/// Parses an event of model `nodes`: `20ms speed 0-3=0.5`, `20ms load 0.9`, `20ms traffic 0-3=0.9`, `20ms
/// shock 0-3=1000`, `20ms down 3` or `40ms up 3`.
///
/// # Errors
/// The fault and the allowed values.
pub fn parse_at_nodes(text: &str, nodes: usize) -> Result<Step, String> {
    let form = || {
        format!(
            "`{text}`: write a time and a change, as in `20ms speed 0-3=0.5`, `20ms load 0.9`, `20ms traffic 0-3=0.9`, \
             `20ms shock 0-3=1000`, `20ms down 3` or `40ms up 3`"
        )
    };
    let words: Vec<_> = text.split_whitespace().collect();
    let [time, name, value] = words[..] else { return Err(form()) };
    if name == "speed" || name == "load" {
        return parse_at(text, nodes);
    }
    let at_ns = parse_time_ns(time).map_err(|error| format!("`{text}`: {error}"))?;
    let (range, number) = match value.split_once('=') {
        Some((range, number)) => (range, Some(number)),
        None => (value, None),
    };
    let (first, last) = range.split_once('-').unwrap_or((range, range));
    let parse = |value: &str| value.parse::<usize>().map_err(|_| form());
    let (first, last) = (parse(first)?, parse(last)?);
    if first > last || last >= nodes {
        return Err(format!("`{text}`: the nodes are 0 to {}", nodes - 1));
    }
    let nodes = first..last + 1;
    let action = match (name, number) {
        ("down", None) => Action::Down(nodes),
        ("up", None) => Action::Up(nodes),
        ("traffic", Some(number)) => {
            let share = number.parse().ok().filter(|share| (0.0..=1.0).contains(share));
            let share = share.ok_or_else(|| format!("`{text}`: a share is from 0 to 1"))?;
            Action::Traffic { nodes, share }
        }
        ("shock", Some(number)) => {
            let tasks = number.parse().ok().filter(|tasks| (1..=1_000_000).contains(tasks));
            let tasks = tasks.ok_or_else(|| format!("`{text}`: a shock has 1 to 1000000 tasks"))?;
            Action::Shock { nodes, tasks }
        }
        _ => return Err(form()),
    };
    Ok(Step { at_ns, action })
}

/// Parses `leaf:2@5ms` or `spine@5ms`.
///
/// # Errors
/// The fault and the allowed values.
pub fn parse_fail(text: &str, racks: usize) -> Result<Step, String> {
    let form = || {
        format!("`{text}`: write the failing node and the time, as in `leaf:2@5ms` or `spine@5ms`")
    };
    let (name, time) = text.split_once('@').ok_or_else(form)?;
    let at_ns = parse_time_ns(time).map_err(|error| format!("`{text}`: {error}"))?;
    let action = match name.split_once(':') {
        None if name == "spine" => Action::FailSpine,
        Some(("leaf", rack)) => {
            let rack: usize = rack.parse().map_err(|_| form())?;
            if rack >= racks {
                return Err(format!("`{text}`: the leaves are 0 to {}", racks - 1));
            }
            Action::FailLeaf(rack)
        }
        _ => return Err(form()),
    };
    Ok(Step { at_ns, action })
}
