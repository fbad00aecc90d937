//! Report of a run: the inputs of each attack and the results of its checks, for people and for programs.

use std::fmt;
use std::time::Duration;

use serde::Serialize;

use super::{Account, Attack, RunsOn};

/// Maximum number of an attack's broken promises that are printed for people.
const SHOWN: usize = 8;

/// Result of an attack.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// Name of the attack.
    pub name: &'static str,
    /// Description of the attack.
    pub summary: &'static str,
    /// Environment of the attack.
    pub runs_on: RunsOn,
    /// True if the attack ran to its end, checked or skipped something, and every checked promise held.
    pub held: bool,
    /// Reason why the attack ended early; `None` if it ran to its end.
    pub error: Option<String>,
    /// Inputs and findings.
    #[serde(flatten)]
    pub account: Account,
    /// Duration in seconds.
    pub seconds: f64,
}

impl Row {
    /// Creates the row of an attack. An attack with an error is not held.
    pub(super) fn new(
        attack: &Attack,
        account: Account,
        error: Option<String>,
        elapsed: Duration,
    ) -> Self {
        let Attack { name, summary, runs_on, .. } = *attack;
        let held = error.is_none() && account.held();
        Self { name, summary, runs_on, held, error, account, seconds: elapsed.as_secs_f64() }
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Account { tried, checks, figures, skipped } = &self.account;
        let held = checks.iter().filter(|check| check.held).count();
        let result = if self.held { "held" } else { "FAILED" };
        writeln!(
            f,
            "{result}  {}: {} of {} ({:.1} s)",
            self.name,
            held,
            checks.len(),
            self.seconds
        )?;
        let tried: Vec<_> = tried.iter().map(|(kind, count)| format!("{count} {kind}")).collect();
        if !tried.is_empty() {
            writeln!(f, "      tried: {}", tried.join(", "))?;
        }
        if let Some(error) = &self.error {
            writeln!(f, "      FAILED: the attack did not finish: {error}")?;
        }
        let broken = checks.iter().filter(|check| !check.held);
        for check in broken.clone().take(SHOWN) {
            writeln!(f, "      FAILED: {}; found: {}", check.promise, check.found)?;
        }
        let more = broken.skip(SHOWN).count();
        if more > 0 {
            writeln!(f, "      FAILED: {more} more; --format json lists them")?;
        }
        for reason in skipped {
            writeln!(f, "      SKIPPED: {reason}")?;
        }
        let figures: Vec<_> = figures
            .iter()
            .map(|(name, value)| format!("{name} {}", format_figure(*value)))
            .collect();
        if !figures.is_empty() {
            writeln!(f, "      figures: {}", figures.join(", "))?;
        }
        Ok(())
    }
}

/// Formats a figure: without decimals if it is whole or at least 100, otherwise with two.
fn format_figure(value: f64) -> String {
    match value {
        whole if whole.fract() == 0.0 => format!("{whole:.0}"),
        great if great >= 100.0 => format!("{great:.0}"),
        small => format!("{small:.2}"),
    }
}

/// Results of all attacks of a run.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Report {
    /// One entry per attack.
    pub rows: Vec<Row>,
}

impl Report {
    /// Returns true if all attacks are held, see [`Row::held`].
    #[must_use]
    pub fn held(&self) -> bool {
        self.rows.iter().all(|row| row.held)
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let failed: Vec<_> = self.rows.iter().filter(|row| !row.held).map(|row| row.name).collect();
        let (all, held) = (self.rows.len(), self.rows.len() - failed.len());
        write!(f, "{all} attacks: {held} held, {} failed", failed.len())?;
        if !failed.is_empty() {
            write!(f, ": {}", failed.join(", "))?;
        }
        Ok(())
    }
}
