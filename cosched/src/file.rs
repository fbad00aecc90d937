//! Configuration file of the chooser: `[chooser]`, `[guard]`, and experts as trees and rules.
//!
//! The chooser draws the share of core time for a batch job from the advice of experts. The guard limits the share by
//! fixed rules.

use std::path::Path;

use serde::Deserialize;

use crate::expert::{Expert, Metric, Plan};
use crate::guard::GuardSettings;
use crate::settings::Settings;
use crate::share::{Distribution, Share};

/// The four kinds of trees of the ASA_X paper (arXiv 2401.09706), and rules as a baseline.
const BUILT_IN: &str = include_str!("../experts.toml");

/// Complete configuration of chooser and guard.
#[derive(Clone, Debug, PartialEq)]
pub struct Setup {
    /// Settings of the chooser.
    pub settings: Settings,
    /// Settings of the guard.
    pub guard: GuardSettings,
    /// Experts.
    pub experts: Vec<Expert>,
}

impl Setup {
    /// Returns the built-in configuration. A test covers it, so parsing cannot fail.
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

    /// Parses and checks the text of a file. The error names the section or expert.
    pub fn parse(text: &str) -> Result<Self, FileError> {
        let raw: RawFile = toml::from_str(text).map_err(|error| FileError(error.to_string()))?;
        raw.chooser.check().map_err(|error| FileError(format!("[chooser]: {error}")))?;
        raw.guard.check().map_err(|error| FileError(format!("[guard]: {error}")))?;
        let mut experts: Vec<Expert> = Vec::new();
        for raw in raw.expert {
            let name = raw.name.clone();
            let fault = |reason: String| FileError(format!("[[expert]] {name:?}: {reason}"));
            let expert = raw.expert().map_err(fault)?;
            if experts.iter().any(|other| other.name == expert.name) {
                return Err(fault("the name is used twice".to_owned()));
            }
            experts.push(expert);
        }
        match experts.is_empty() {
            true => Err(FileError("no [[expert]]; add at least one".to_owned())),
            false => Ok(Self { settings: raw.chooser, guard: raw.guard, experts }),
        }
    }

    /// Returns only the experts that are trees: the experts of the paper, for its simulated evaluation.
    #[must_use]
    pub fn trees(&self) -> Vec<Expert> {
        let is_tree = |expert: &&Expert| matches!(expert.plan, Plan::Tree { .. });
        self.experts.iter().filter(is_tree).cloned().collect()
    }
}

/// The file before its checks.
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

/// An expert before its checks: the keys of a tree, or those of a rule.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawExpert {
    name: String,
    // Keys of a tree: the fields of `Plan::Tree`.
    metric: Option<Metric>,
    bounds: Option<[f64; 2]>,
    happiness: Option<[f64; 2]>,
    leaves: Option<Vec<Distribution>>,
    // Keys of a rule. Only `always` has a share.
    rule: Option<Rule>,
    share: Option<Share>,
}

/// Name of a rule in the file. Each is a variant of [`Plan`], which explains it.
#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Rule {
    Always,
    Aimd,
    Guard,
}

impl RawExpert {
    /// Checks the keys and converts them. The error is the reason.
    fn expert(self) -> Result<Expert, String> {
        let Self { name, metric, bounds, happiness, leaves, rule, share } = self;
        let has_tree_keys =
            metric.is_some() || bounds.is_some() || happiness.is_some() || leaves.is_some();
        let plan = match (rule, share) {
            (Some(_), _) if has_tree_keys => {
                return Err("an expert is a rule or a tree: give either `rule`, or `metric`, `bounds`, `happiness` and `leaves`".to_owned());
            }
            (Some(Rule::Always), Some(share)) => Plan::Always(share),
            (Some(Rule::Always), None) => {
                return Err("rule \"always\" needs its `share`".to_owned());
            }
            (_, Some(_)) => return Err("only rule \"always\" has a `share`".to_owned()),
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
                        .map_err(|_| format!("a tree needs 9 leaves, found {count}"))?,
                }
            }
        };
        let expert = Expert { name, plan };
        expert.check().map(|()| expert)
    }
}

/// Error in a configuration file.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{0}")]
pub struct FileError(String);

#[cfg(test)]
mod tests {
    use super::*;

    /// A valid leaf of a tree: the probabilities of the ten shares.
    const LEAF: &str = "[0.5, 0.5, 0, 0, 0, 0, 0, 0, 0, 0]";

    /// Returns the text of an expert that is a tree with these leaves.
    fn tree(leaves: &[&str]) -> String {
        let leaves = leaves.join(", ");
        format!(
            "[[expert]]\nname = 'one'\nmetric = 'cpu'\nbounds = [0.2, 0.8]\nhappiness = [1, 1.1]\nleaves = [{leaves}]\n"
        )
    }

    #[test]
    fn built_in_file_has_trees_and_rules() {
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
        // The rules.
        for plan in
            [Plan::Always(Share::NONE), Plan::Always(Share::at_most(0.5)), Plan::Aimd, Plan::Guard]
        {
            assert!(setup.experts.iter().any(|expert| expert.plan == plan), "{plan:?}");
        }
    }

    #[test]
    fn expert_file_is_parsed() {
        let text = format!(
            "[chooser]\nmode = 'iw'\nfixed-share = 0.01\n{}[[expert]]\nname = 'half'\nrule = 'always'\nshare = 50\n",
            tree(&[LEAF; 9])
        );
        let setup = Setup::parse(&text).unwrap();
        assert_eq!((setup.settings.mode, setup.settings.fixed_share), (crate::Mode::Iw, 0.01));
        assert_eq!(setup.experts[1].plan, Plan::Always(Share::at_most(0.5)));
        assert_eq!(setup.trees().len(), 1);
    }

    // promise: batch.2
    #[test]
    fn bad_expert_is_named() {
        let rule = |text: &str| format!("[[expert]]\nname = 'one'\n{text}\n");
        let half = "[0.5, 0.4, 0, 0, 0, 0, 0, 0, 0, 0]";
        let wrong = [
            (String::new(), "no [[expert]]"),
            (tree(&[LEAF; 8]), "9 leaves, found 8"),
            (
                tree(&[LEAF, half, LEAF, LEAF, LEAF, LEAF, LEAF, LEAF, LEAF]),
                "leaf 2 adds up to 0.9",
            ),
            (tree(&[LEAF; 9]).replace("[0.2, 0.8]", "[0.8, 0.2]"), "rising order"),
            (tree(&[LEAF; 9]).replace("metric = 'cpu'\n", ""), "needs its `metric`"),
            (tree(&[LEAF; 9]).replace("'cpu'", "'disk'"), "disk"),
            (tree(&[LEAF; 9]) + "rule = 'aimd'\n", "a rule or a tree"),
            (tree(&[LEAF; 9]) + &tree(&[LEAF; 9]), "used twice"),
            (rule("rule = 'always'"), "needs its `share`"),
            (rule("rule = 'aimd'\nshare = 50"), "only rule \"always\""),
            (rule("rule = 'always'\nshare = 55"), "55 is not a share"),
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
