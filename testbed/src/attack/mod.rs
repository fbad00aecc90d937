//! Attacks on leaf, agent and library. Each sends the inputs of an attacker, and checks the promises that
//! must hold nevertheless. A result is *held* if the node kept every promise, otherwise *failed*.
//!
//! There are three kinds, by their environment. Attacks in memory run the node in this process over ports in
//! memory, on an emulated clock: they are deterministic, and part of the tests. Attacks by the clock measure
//! time. Attacks on processes start real leaves and agents on memif, and attack these from outside.

mod account;
mod changes;
mod control;
mod files;
mod forgeries;
mod kills;
mod library;
mod neighbours;
mod peers;
mod places;
mod replays;
mod report;
mod rigs;
mod stores;
mod storm;

use std::io::{self, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;

use clap::Args;

pub use account::{Account, Check};
pub use report::{Report, Row};

/// Reason why an attack, or the command itself, could not be carried out.
pub type Failure = Box<dyn std::error::Error>;

/// Text after the help of `attack`.
pub const EXAMPLE: &str = "Examples:
  wedjat-testbed attack --list
  wedjat-testbed attack --only unreachable-sources,arp-storm --seconds 10 --format json
Exit status: 1 if an attack succeeded. Attacks that need root are reported as skipped without it.";

/// Arguments of `attack`.
#[derive(Args, Clone, Debug)]
pub struct Arguments {
    /// List the attacks with their summaries, and run none
    #[arg(long)]
    pub list: bool,
    /// Only these attacks, separated by commas
    #[arg(long, value_delimiter = ',', value_name = "NAME")]
    pub only: Vec<String>,
    /// Length of each attack in seconds: of the emulated clock in memory, of the real one on processes
    #[arg(long, default_value_t = 4.0, value_parser = positive)]
    pub seconds: f64,
    /// Seed of all random streams
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
}

/// Parses the length of an attack in seconds.
fn positive(text: &str) -> Result<f64, String> {
    let seconds = text.parse().ok().filter(|seconds| (0.1..=3600.0).contains(seconds));
    seconds.ok_or_else(|| {
        format!("`{text}` is not a length of an attack; allowed: 0.1 to 3600 seconds")
    })
}

/// Environment of an attack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum RunsOn {
    /// Ports in memory and an emulated clock: the same result every time.
    Memory,
    /// Ports in memory; measures real time.
    Clock,
    /// Separate processes.
    Processes,
}

impl RunsOn {
    /// Returns the name for people.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Clock => "clock",
            Self::Processes => "processes",
        }
    }
}

/// Length of an attack, and seed of its random choices.
#[derive(Clone, Copy, Debug)]
pub struct Budget {
    /// Length in seconds; see [`Arguments::seconds`].
    pub seconds: f64,
    /// The seed.
    pub seed: u64,
}

/// An attack.
pub struct Attack {
    /// Name of the attack.
    pub name: &'static str,
    /// Description in one sentence.
    pub summary: &'static str,
    /// Environment of the attack.
    pub runs_on: RunsOn,
    /// Carries out the attack and fills the account.
    run: fn(&Budget, &mut Account) -> Result<(), Failure>,
}

/// Lists attacks: name, environment, function and summary of each.
macro_rules! attack_table {
    ($($name:literal $runs_on:ident => $run:expr, $summary:literal;)*) => {
        &[$($crate::attack::Attack {
            name: $name,
            summary: $summary,
            runs_on: $crate::attack::RunsOn::$runs_on,
            run: $run,
        }),*]
    };
}
use attack_table;

/// Returns every attack of this build, in the order of their runs.
#[must_use]
pub fn attacks() -> Vec<&'static Attack> {
    let all = [
        places::ATTACKS,
        forgeries::ATTACKS,
        neighbours::ATTACKS,
        storm::ATTACKS,
        library::ATTACKS,
        kills::ATTACKS,
        changes::ATTACKS,
        control::ATTACKS,
        files::ATTACKS,
        peers::ATTACKS,
        replays::ATTACKS,
        stores::ATTACKS,
    ];
    // Processes need the DPDK ports of a complete build.
    let fits = |attack: &&Attack| cfg!(feature = "dpdk") || attack.runs_on != RunsOn::Processes;
    all.into_iter().flatten().filter(fits).collect()
}

impl Attack {
    /// Carries out the attack. An attack that panics, cannot be carried out, or neither checks nor skips anything
    /// counts as failed.
    #[must_use]
    pub fn run(&self, budget: &Budget) -> Row {
        let began = Instant::now();
        let mut account = Account::default();
        let result = catch_unwind(AssertUnwindSafe(|| (self.run)(budget, &mut account)));
        let error = match result {
            Ok(Ok(())) => None,
            Ok(Err(error)) => Some(error.to_string()),
            Err(panic) => Some(format!("a panic: {}", panic_text(&*panic))),
        };
        Row::new(self, account, error, began.elapsed())
    }
}

/// Returns the message of a panic.
fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(ToString::to_string);
    text.or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "no message".to_owned())
}

/// Returns the attacks with these names, or all if there are none.
///
/// # Errors
/// If a name is unknown.
fn selected(only: &[String]) -> Result<Vec<&'static Attack>, Failure> {
    let all = attacks();
    for name in only {
        if !all.iter().any(|attack| attack.name == name) {
            let names: Vec<_> = all.iter().map(|attack| attack.name).collect();
            return Err(
                format!("--only {name}: unknown attack; allowed: {}", names.join(", ")).into()
            );
        }
    }
    let is_selected =
        |attack: &&Attack| only.is_empty() || only.iter().any(|name| name == attack.name);
    Ok(all.into_iter().filter(is_selected).collect())
}

/// Lists the attacks, or carries them out and reports each one when it ends. Returns false if any result is
/// *failed*.
///
/// # Errors
/// If a name is unknown, or `out` cannot be written.
pub fn run(arguments: &Arguments, json: bool, out: &mut impl Write) -> Result<bool, Failure> {
    let chosen = selected(&arguments.only)?;
    if arguments.list {
        list(&chosen, out)?;
        return Ok(true);
    }
    let budget = Budget { seconds: arguments.seconds, seed: arguments.seed };
    let mut report = Report::default();
    for attack in chosen {
        let row = attack.run(&budget);
        if !json {
            write!(out, "{row}")?;
            out.flush()?;
        }
        report.rows.push(row);
    }
    match json {
        true => writeln!(out, "{}", serde_json::to_string_pretty(&report)?)?,
        false => writeln!(out, "{report}")?,
    }
    Ok(report.held())
}

/// Writes one line for each attack.
fn list(attacks: &[&Attack], out: &mut impl Write) -> io::Result<()> {
    for attack in attacks {
        writeln!(out, "{:<28} {:<10} {}", attack.name, attack.runs_on.name(), attack.summary)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_distinct_and_unknown_ones_refused() {
        let all = attacks();
        for (index, attack) in all.iter().enumerate() {
            assert!(
                all[index + 1..].iter().all(|other| other.name != attack.name),
                "{}",
                attack.name
            );
        }
        let error = selected(&["no-such".to_owned()]).err().map(|error| error.to_string());
        assert!(error.is_some_and(|error| error.contains(all[0].name)));
    }

    // promise: input.4
    #[test]
    fn panicked_failed_or_empty_attack_counts_as_failed() {
        let run = |run| {
            let attack = Attack { name: "a", summary: "b", runs_on: RunsOn::Memory, run };
            attack.run(&Budget { seconds: 1.0, seed: 1 }).held
        };
        assert!(run(|_, account| {
            account.check("one is one", true, "1");
            Ok(())
        }));
        assert!(!run(|_, _| Ok(())));
        assert!(!run(|_, _| Err("no".into())));
        assert!(!run(|_, account| {
            account.check("one is one", true, "1");
            account.check("one is two", false, "1");
            Ok(())
        }));
        assert!(!run(|_, _| panic!("made for the test")));
    }
}
