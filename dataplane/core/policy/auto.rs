//! Policy of a pool as operators write it: one policy of the catalogue, or `auto(objective=p99)`, under which the node
//! chooses the policy itself. The node simulates its own traffic and takes the best policy for the objective.

use std::fmt;
use std::str::FromStr;

use super::spec::AUTO;
use super::{Entry, PolicyError, PolicySpec, Runs, eft};

/// Figure that a choice of policies minimises.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Objective {
    /// Lowest mean response time.
    Mean,
    /// Lowest 99th percentile.
    P99,
    /// Lowest 99.9th percentile.
    P999,
    /// Lowest 99.9th percentile of the slowdown.
    Slowdown,
    /// 99% of a class's tasks within a time; then the lowest mean.
    Slo {
        /// Class of the tasks.
        class: usize,
        /// Time in microseconds.
        us: f64,
    },
}

/// Allowed forms, for errors.
const FORMS: &str = "mean, p99, p99.9, slowdown-p99.9, slo(class=CLASS, us=MICROSECONDS)";

/// Objectives without parameters, with their names.
const NAMES: [(&str, Objective); 4] = [
    ("mean", Objective::Mean),
    ("p99", Objective::P99),
    ("p99.9", Objective::P999),
    ("slowdown-p99.9", Objective::Slowdown),
];

impl fmt::Display for Objective {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Self::Slo { class, us } = self {
            return write!(f, "slo(class={class}, us={us})");
        }
        let found = NAMES.iter().find(|(_, objective)| objective == self);
        f.write_str(found.map_or("", |(name, _)| name))
    }
}

impl FromStr for Objective {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let text = text.trim();
        if let Some((_, objective)) = NAMES.iter().find(|(name, _)| *name == text) {
            return Ok(*objective);
        }
        let parameters = text.strip_prefix("slo(").and_then(|rest| rest.strip_suffix(')'));
        let parameters =
            parameters.ok_or_else(|| format!("unknown objective `{text}`; allowed: {FORMS}"))?;
        parse_slo(parameters).ok_or_else(|| {
            format!("`{text}`: write slo(class=CLASS, us=MICROSECONDS), as in slo(class=1, us=200), with a time above 0")
        })
    }
}

/// Parses `class=1, us=200`, in any order. `None` if a part is missing, repeated or invalid.
fn parse_slo(parameters: &str) -> Option<Objective> {
    let (mut class, mut limit) = (None, None);
    for part in parameters.split(',') {
        match part.split_once('=').map(|(key, value)| (key.trim(), value.trim()))? {
            ("class", value) if class.is_none() => class = Some(value.parse().ok()?),
            ("us", value) if limit.is_none() => limit = Some(value.parse::<f64>().ok()?),
            _ => return None,
        }
    }
    let us = limit.filter(|us| us.is_finite() && *us > 0.0)?;
    Some(Objective::Slo { class: class?, us })
}

impl Objective {
    /// Returns the name of the minimised figure, for the reasons of decisions: as configured, without an SLO's limit.
    #[must_use]
    pub fn figure_name(&self) -> String {
        match self {
            Self::Slo { class, .. } => format!("p99 of class {class}"),
            _ => self.to_string(),
        }
    }

    /// Returns the unit of the figure, with a space before it; empty for a ratio.
    #[must_use]
    pub fn unit(&self) -> &'static str {
        if *self == Self::Slowdown { "" } else { " us" }
    }
}

/// Policy of a pool as its desired state has it.
#[derive(Clone, Debug, PartialEq)]
pub enum PolicyChoice {
    /// This policy.
    Fixed(PolicySpec),
    /// The best policy for this objective, which the node chooses while it runs.
    Auto(Objective),
}

impl PolicyChoice {
    /// Returns the policy with which a pool starts. A pool whose node chooses starts with [`fallback`].
    #[must_use]
    pub fn first(&self) -> PolicySpec {
        match self {
            Self::Fixed(policy) => policy.clone(),
            Self::Auto(_) => fallback(),
        }
    }

    /// Returns the objective; `None` for a fixed policy.
    #[must_use]
    pub fn objective(&self) -> Option<Objective> {
        match self {
            Self::Fixed(_) => None,
            Self::Auto(objective) => Some(*objective),
        }
    }
}

/// Returns the policy before a node's first choice, and after the simulator has mispredicted the running policy:
/// `eft`, which needs no configuration.
#[must_use]
pub fn fallback() -> PolicySpec {
    PolicySpec::usual(&eft::ENTRY)
}

impl From<PolicySpec> for PolicyChoice {
    fn from(policy: PolicySpec) -> Self {
        Self::Fixed(policy)
    }
}

impl fmt::Display for PolicyChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fixed(policy) => policy.fmt(f),
            Self::Auto(objective) => write!(f, "{AUTO}(objective={objective})"),
        }
    }
}

impl FromStr for PolicyChoice {
    type Err = PolicyError;

    /// Parses a policy, or `auto`, `auto()`, `auto(p99)` or `auto(objective=p99)`. The default objective is `p99`.
    fn from_str(text: &str) -> Result<Self, PolicyError> {
        if text.split('(').next().is_none_or(|name| name.trim() != AUTO) {
            return text.parse().map(Self::Fixed);
        }
        let error = |reason: String| PolicyError::Auto { text: text.trim().to_owned(), reason };
        let inside = match text.trim().split_once('(') {
            None => "",
            Some((_, rest)) => rest.strip_suffix(')').ok_or_else(|| {
                error("a parenthesis is open; write auto(objective=p99)".to_owned())
            })?,
        };
        if inside.matches('(').count() != inside.matches(')').count() {
            let reason = "its parentheses do not match; write auto(objective=p99) or \
                          auto(objective=slo(class=1, us=200))";
            return Err(error(reason.to_owned()));
        }
        // The key precedes the first parenthesis. `slo(class=1, us=200)` has keys of its own behind it.
        let head = inside.split('(').next().unwrap_or_default();
        let value = match head.split_once('=') {
            Some((key, _)) if key.trim() == "objective" => &inside[key.len() + 1..],
            Some((key, _)) => {
                let reason =
                    format!("it has no parameter `{}`; its only one is `objective`", key.trim());
                return Err(error(reason));
            }
            None => inside,
        };
        if inside.trim().is_empty() {
            return Ok(Self::Auto(Objective::P99));
        }
        value.parse().map(Self::Auto).map_err(error)
    }
}

impl Entry {
    /// Returns true if a node may choose the policy for a pool under [`PolicyChoice::Auto`]. Excludes spine policies,
    /// policies whose members choose their reports, and policies that learn. The simulator gives the last two other
    /// input than a leaf, which has a load report in each reply and no benchmark tasks.
    #[must_use]
    pub fn is_eligible(&self) -> bool {
        self.runs != Runs::Spine && !self.members_choose_reports() && !self.learns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objectives_are_read_and_printed() {
        for text in ["mean", "p99", "p99.9", "slowdown-p99.9", "slo(class=2, us=150.5)"] {
            assert_eq!(text.parse::<Objective>().unwrap().to_string(), text);
        }
        assert_eq!("slo(us=5,class=0)".parse(), Ok(Objective::Slo { class: 0, us: 5.0 }));
        let unknown = "p98".parse::<Objective>().unwrap_err();
        assert!(
            unknown.contains("unknown objective `p98`") && unknown.contains("p99.9"),
            "{unknown}"
        );
        for text in
            ["slo()", "slo(class=1)", "slo(class=1, us=0)", "slo(class=x, us=1)", "slo(us=1, us=2)"]
        {
            let error = text.parse::<Objective>().unwrap_err();
            assert!(error.contains("as in slo(class=1, us=200)"), "{text}: {error}");
        }
    }

    #[test]
    fn choices_are_read_and_printed() {
        let slo = Objective::Slo { class: 1, us: 400.0 };
        for (text, objective, printed) in [
            ("auto", Objective::P99, "auto(objective=p99)"),
            ("auto()", Objective::P99, "auto(objective=p99)"),
            (" auto( mean )", Objective::Mean, "auto(objective=mean)"),
            ("auto(objective = p99.9)", Objective::P999, "auto(objective=p99.9)"),
            ("auto(objective=slo(class=1,us=400))", slo, "auto(objective=slo(class=1, us=400))"),
            ("auto(slo(us=400, class=1))", slo, "auto(objective=slo(class=1, us=400))"),
        ] {
            let choice: PolicyChoice = text.parse().unwrap();
            assert_eq!(choice, PolicyChoice::Auto(objective), "{text}");
            assert_eq!(choice.to_string(), printed);
            assert_eq!(printed.parse(), Ok(choice));
        }
        let fixed: PolicyChoice = "jsq(2)".parse().unwrap();
        assert_eq!((fixed.to_string(), fixed.objective()), ("jsq(d=2)".to_owned(), None));
    }

    // promise: input.2
    #[test]
    fn wrong_choices_name_the_fix() {
        for (text, says) in [
            (
                "auto(objective=foo)",
                "`auto(objective=foo)`: unknown objective `foo`; allowed: mean",
            ),
            ("auto(objective=)", "unknown objective ``; allowed: mean"),
            ("auto(p99", "a parenthesis is open; write auto(objective=p99)"),
            ("auto(objective=slo(class=1, us=400)", "its parentheses do not match; write"),
            ("auto(objective=slo((class=1, us=400)))", "write slo(class=CLASS, us=MICROSECONDS)"),
            ("auto(objective=slo(class=1))", "as in slo(class=1, us=200)"),
            ("auto(goal=p99)", "it has no parameter `goal`; its only one is `objective`"),
            ("auto(objective=auto(p99))", "unknown objective `auto(p99)`; allowed: mean"),
        ] {
            let error = text.parse::<PolicyChoice>().unwrap_err().to_string();
            assert!(error.contains(says), "{text}: {error}");
        }
        // Places for one policy refuse the choice.
        let error = "auto(p99)".parse::<PolicySpec>().unwrap_err().to_string();
        assert!(error.contains("only a pool of a leaf may have it; write one policy"), "{error}");
    }
}
