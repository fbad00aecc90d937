//! Sweeps: flags that take lists, and their values in each run.

use super::args::SimArgs;
use super::lists::list;

/// Flags that take lists, besides `--policy` and `--load`. Flags whose value is a list in itself are excluded: racks,
/// nodes, speeds, sharing, hops, failures and changes. Flags of the whole sweep, such as the model, have one value.
const LISTS: [&str; 31] = [
    "cores",
    "exchange",
    "replies",
    "service",
    "arrivals",
    "spine-policy",
    "signals",
    "hop",
    "hop-dist",
    "node-delay",
    "loss",
    "servers",
    "dispatchers",
    "dispatchers-as",
    "batch",
    "delay",
    "probes",
    "leaves",
    "servers-per-leaf",
    "workers-per-server",
    "pools",
    "pool-size",
    "piece",
    "leaves-per-spine",
    "beat",
    "queue",
    "seconds",
    "measure",
    "tasks",
    "slots",
    "warmup",
];

/// The flags of one run.
#[derive(Clone, Debug)]
pub struct Variant {
    /// All flags. The flags of `LISTS` have one value each; policy and load still have their lists.
    pub args: SimArgs,
    /// Flags that the sweep varies, with their values in this run.
    pub swept: Vec<(&'static str, String)>,
}

/// Returns the number of combinations of the lists' values, without building them, for a limit before [`variants`].
///
/// # Errors
/// If a list is empty.
pub fn count(args: &SimArgs) -> Result<u64, String> {
    let flags = toml::Table::try_from(args).map_err(|error| error.to_string())?;
    let texts = LISTS.iter().filter_map(|&flag| Some((flag, flags.get(flag)?.as_str()?)));
    texts
        .into_iter()
        .try_fold(1_u64, |all, (flag, text)| Ok(all.saturating_mul(list(flag, text)?.len() as u64)))
}

/// Returns every combination of the lists' values. The last flag of `LISTS` varies fastest.
///
/// # Errors
/// If a list is empty.
pub fn variants(args: &SimArgs) -> Result<Vec<Variant>, String> {
    // Combinations of the flags so far. The table has all flags by name; the list has the swept ones.
    let mut all = vec![(toml::Table::try_from(args).map_err(|e| e.to_string())?, Vec::new())];
    for flag in LISTS {
        // Replaces each combination by one for each value of this flag.
        let Some(toml::Value::String(text)) = all[0].0.get(flag).cloned() else { continue };
        let values = list(flag, &text)?;
        let is_swept = values.len() > 1;
        let mut combined = Vec::new();
        for (table, swept) in &all {
            for value in &values {
                let (mut table, mut swept) = (table.clone(), swept.clone());
                table.insert(flag.to_owned(), toml::Value::String((*value).to_owned()));
                if is_swept {
                    swept.push((flag, (*value).to_owned()));
                }
                combined.push((table, swept));
            }
        }
        all = combined;
    }
    let variant = |(table, swept): (toml::Table, _)| -> Result<Variant, String> {
        Ok(Variant { args: table.try_into().map_err(|error| format!("{error}"))?, swept })
    };
    all.into_iter().map(variant).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Three lists give all triples, and a comma in parentheses does not split a value.
    // promise: measurement.4
    #[test]
    fn variants_are_all_combinations_of_list_values() {
        let args = SimArgs {
            hop: Some("1us, 5us".to_owned()),
            service: Some("exp(9us),mix(0.5*fixed(1us), 0.5*fixed(3us))".to_owned()),
            node_delay: Some("0us,2us".to_owned()),
            tasks: Some("10".to_owned()),
            ..SimArgs::default()
        };
        let all = variants(&args).unwrap();
        let hops: Vec<_> = all.iter().map(|variant| variant.args.hop.as_deref()).collect();
        let [short, long] = [Some("1us"), Some("5us")];
        // In the order of `LISTS`: `service` varies slowest, then `hop`, then `node-delay`.
        assert_eq!(hops, [short, short, long, long, short, short, long, long]);
        let mix = "mix(0.5*fixed(1us), 0.5*fixed(3us))".to_owned();
        let [hop, node_delay] = ["5us", "2us"].map(str::to_owned);
        assert_eq!(all[7].swept, [("service", mix), ("hop", hop), ("node-delay", node_delay)]);
        assert_eq!(all[7].args.node_delay.as_deref(), Some("2us"));
        assert!(all.iter().all(|variant| variant.args.tasks == args.tasks));
    }
}
