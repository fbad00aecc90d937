//! The file that says how to choose: `[chooser]`, `[guard]`, and experts as trees and rules.

use std::path::Path;

use serde::Deserialize;

use crate::expert::{Expert, Metric, Plan};
use crate::guard::GuardSettings;
use crate::settings::Settings;
use crate::share::{Distribution, Share};

/// The four trees of the paper's kind and the rules that it is worth being no worse than.
const BUILT_IN: &str = include_str!("../experts.toml");

/// How shares are chosen.
#[derive(Clone, Debug, PartialEq)]
pub struct Setup {
    /// How the chooser learns.
    pub settings: Settings,
    /// When the guard lets the batch have anything.
    pub guard: GuardSettings,
    /// Whose advice is taken.
    pub experts: Vec<Expert>,
}

impl Setup {
    /// What is used where no file says otherwise.
    #[must_use]
    pub fn built_in() -> Self {
        Self::parse(BUILT_IN).unwrap_or_else(|error| unreachable!("the built-in file: {error}"))
    }

    /// Reads a file.
    pub fn load(path: &Path) -> Result<Self, FileError> {
        let name = path.display();
        let text =
            std::fs::read_to_string(path).map_err(|error| FileError(format!("{name}: {error}")))?;
        Self::parse(&text).map_err(|error| FileError(format!("{name}: {error}")))
    }

    /// Reads the text of a file.
    pub fn parse(text: &str) -> Result<Self, FileError> {
        let raw: RawFile = toml::from_str(text).map_err(|error| FileError(error.to_string()))?;
        raw.chooser.check().map_err(|error| FileError(format!("[chooser]: {error}")))?;
        raw.guard.check().map_err(|error| FileError(format!("[guard]: {error}")))?;
        let mut experts: Vec<Expert> = Vec::new();
        for raw in raw.expert {
            let name = raw.name.clone();
            let fault = |why: String| FileError(format!("[[expert]] {name:?}: {why}"));
            let expert = raw.expert().map_err(fault)?;
            if experts.iter().any(|other| other.name == expert.name) {
                return Err(fault("there is another one of this name".to_owned()));
            }
            experts.push(expert);
        }
        match experts.is_empty() {
            true => Err(FileError(
                "there is no [[expert]], and without one nobody can be followed".to_owned(),
            )),
            false => Ok(Self { settings: raw.chooser, guard: raw.guard, experts }),
        }
    }

    /// Only the experts that are trees, as the paper has them.
    #[must_use]
    pub fn trees(&self) -> Vec<Expert> {
        let is_tree = |expert: &&Expert| matches!(expert.plan, Plan::Tree { .. });
        self.experts.iter().filter(is_tree).cloned().collect()
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawFile {
    #[serde(default)]
    chooser: Settings,
    #[serde(default)]
    guard: GuardSettings,
    #[serde(default)]
    expert: Vec<RawExpert>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawExpert {
    name: String,
    metric: Option<Metric>,
    bounds: Option<[f64; 2]>,
    happiness: Option<[f64; 2]>,
    leaves: Option<Vec<Distribution>>,
    rule: Option<Rule>,
    share: Option<Share>,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Rule {
    Always,
    Aimd,
    Guard,
}

impl RawExpert {
    fn expert(self) -> Result<Expert, String> {
        let Self { name, metric, bounds, happiness, leaves, rule, share } = self;
        let of_tree =
            metric.is_some() || bounds.is_some() || happiness.is_some() || leaves.is_some();
        let plan = match (rule, share) {
            (Some(_), _) if of_tree => {
                return Err("it is a rule or a tree: give `rule`, or `metric`, `bounds`, `happiness` and `leaves`".to_owned());
            }
            (Some(Rule::Always), Some(share)) => Plan::Always(share),
            (Some(Rule::Always), None) => {
                return Err("rule \"always\" needs its `share`".to_owned());
            }
            (_, Some(_)) => return Err("`share` is of rule \"always\" alone".to_owned()),
            (Some(Rule::Aimd), None) => Plan::Aimd,
            (Some(Rule::Guard), None) => Plan::Guard,
            (None, None) => {
                let needs = |key| format!("a tree needs its `{key}`, or give a `rule`");
                let leaves = leaves.ok_or_else(|| needs("leaves"))?.into_boxed_slice();
                let count = leaves.len();
                Plan::Tree {
                    metric: metric.ok_or_else(|| needs("metric"))?,
                    bounds: bounds.ok_or_else(|| needs("bounds"))?,
                    happiness: happiness.ok_or_else(|| needs("happiness"))?,
                    leaves: leaves
                        .try_into()
                        .map_err(|_| format!("a tree has 9 leaves, and these are {count}"))?,
                }
            }
        };
        let expert = Expert { name, plan };
        expert.check().map(|()| expert)
    }
}

/// Why a file says nothing.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{0}")]
pub struct FileError(String);

#[cfg(test)]
mod tests {
    use super::*;

    const LEAF: &str = "[0.5, 0.5, 0, 0, 0, 0, 0, 0, 0, 0]";

    fn tree(leaves: &[&str]) -> String {
        let leaves = leaves.join(", ");
        format!(
            "[[expert]]\nname = 'one'\nmetric = 'cpu'\nbounds = [0.2, 0.8]\nhappiness = [1, 1.1]\nleaves = [{leaves}]\n"
        )
    }

    #[test]
    fn the_built_in_file_has_a_tree_for_each_metric_and_the_rules_that_are_trusted() {
        let setup = Setup::built_in();
        let metrics: Vec<_> = setup
            .trees()
            .iter()
            .filter_map(|expert| match &expert.plan {
                Plan::Tree { metric, .. } => Some(*metric),
                _ => None,
            })
            .collect();
        assert_eq!(metrics, [Metric::Cpu, Metric::Memory, Metric::Stage, Metric::Interval]);
        for plan in
            [Plan::Always(Share::NONE), Plan::Always(Share::at_most(0.5)), Plan::Aimd, Plan::Guard]
        {
            assert!(setup.experts.iter().any(|expert| expert.plan == plan), "{plan:?}");
        }
    }

    #[test]
    fn a_file_is_read_as_it_is_written() {
        let text = format!(
            "[chooser]\nmode = 'iw'\nfixed-share = 0.01\n{}[[expert]]\nname = 'half'\nrule = 'always'\nshare = 50\n",
            tree(&[LEAF; 9])
        );
        let setup = Setup::parse(&text).unwrap();
        assert_eq!((setup.settings.mode, setup.settings.fixed_share), (crate::Mode::Iw, 0.01));
        assert_eq!(setup.experts[1].plan, Plan::Always(Share::at_most(0.5)));
        assert_eq!(setup.trees().len(), 1);
    }

    #[test]
    fn what_is_wrong_is_named_with_its_expert() {
        let rule = |text: &str| format!("[[expert]]\nname = 'one'\n{text}\n");
        let half = "[0.5, 0.4, 0, 0, 0, 0, 0, 0, 0, 0]";
        let wrong = [
            (String::new(), "no [[expert]]"),
            (tree(&[LEAF; 8]), "9 leaves, and these are 8"),
            (
                tree(&[LEAF, half, LEAF, LEAF, LEAF, LEAF, LEAF, LEAF, LEAF]),
                "leaf 2 adds up to 0.9",
            ),
            (tree(&[LEAF; 9]).replace("[0.2, 0.8]", "[0.8, 0.2]"), "rising order"),
            (tree(&[LEAF; 9]).replace("metric = 'cpu'\n", ""), "needs its `metric`"),
            (tree(&[LEAF; 9]).replace("'cpu'", "'disk'"), "disk"),
            (tree(&[LEAF; 9]) + "rule = 'aimd'\n", "a rule or a tree"),
            (tree(&[LEAF; 9]) + &tree(&[LEAF; 9]), "another one of this name"),
            (rule("rule = 'always'"), "needs its `share`"),
            (rule("rule = 'aimd'\nshare = 50"), "of rule \"always\" alone"),
            (rule("rule = 'always'\nshare = 55"), "55 is no share"),
            (rule("rule = 'never'"), "never"),
            ("[chooser]\nrate = 0\n".to_owned() + &rule("rule = 'aimd'"), "[chooser]: rate is 0"),
            ("[chooser]\nmode = 'asax'\n".to_owned() + &rule("rule = 'aimd'"), "asax"),
            ("[guard]\nreserve = 2\n".to_owned() + &rule("rule = 'aimd'"), "[guard]: reserve is 2"),
        ];
        for (text, named) in wrong {
            let error = Setup::parse(&text).unwrap_err().to_string();
            assert!(error.contains(named), "{named}: {error}");
        }
        let error = Setup::load(Path::new("/nowhere/cosched.toml")).unwrap_err().to_string();
        assert!(error.contains("/nowhere/cosched.toml"), "{error}");
    }
}
