//! Suggestions for misspelt names in configurations and on command lines.

/// Returns the known word with the smallest distance to `word`: letters added, left out, changed or swapped
/// with the next one. Ignores case. The distance is at most one, or one for each three letters. Returns `None` if all
/// words are further away, or if `word` is empty.
#[must_use]
pub fn nearest<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let word = word.to_lowercase();
    let max = (word.chars().count() / 3).max(1);
    let steps = |other: &'a str| (distance(&word, &other.to_lowercase()), other);
    let best = known.into_iter().map(steps).min_by_key(|(steps, _)| *steps);
    best.filter(|(steps, _)| *steps <= max && !word.is_empty()).map(|(_, word)| word)
}

/// Returns the number of letters to add, leave out, change or swap with the next one to turn `one` into
/// `other`. Each letter changes once: the optimal string alignment.
fn distance(one: &str, other: &str) -> usize {
    let (one, other): (Vec<_>, Vec<_>) = (one.chars().collect(), other.chars().collect());
    // Distances from prefixes of `one` to all prefixes of `other`. The rows are for the last two prefixes and
    // the current one.
    let (mut before_last, mut last) = (Vec::new(), (0..=other.len()).collect::<Vec<_>>());
    for (row, letter) in one.iter().enumerate() {
        let mut current = vec![row + 1];
        for (column, target) in other.iter().enumerate() {
            let changed = last[column] + usize::from(letter != target);
            let mut shortest = changed.min(last[column + 1] + 1).min(current[column] + 1);
            let is_swapped =
                row > 0 && column > 0 && one[row - 1] == *target && *letter == other[column - 1];
            if is_swapped {
                shortest = shortest.min(before_last[column - 1] + 1);
            }
            current.push(shortest);
        }
        before_last = std::mem::replace(&mut last, current);
    }
    last[other.len()]
}

/// Returns a suggestion for the end of an error message about an unknown word; empty without one.
#[must_use]
pub fn did_you_mean<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    nearest(word, known)
        .map_or_else(String::new, |suggestion| format!(" (did you mean `{suggestion}`?)"))
}

#[cfg(test)]
mod tests {
    use super::*;

    // promise: input.2
    #[test]
    fn only_similar_names_are_suggested() {
        let keys = ["cores", "state", "state_group", "mbufs", "udp_port", "worker_timeout_ms"];
        for (word, expected) in [
            ("core", Some("cores")),
            ("Cores", Some("cores")),
            ("udpport", Some("udp_port")),
            ("worker_timeout", Some("worker_timeout_ms")),
            ("statte", Some("state")),
            ("satte", Some("state")),
            ("policy", None),
            ("", None),
        ] {
            assert_eq!(nearest(word, keys), expected, "{word}");
        }
        assert_eq!(did_you_mean("mbuf", keys), " (did you mean `mbufs`?)");
        assert_eq!(did_you_mean("policy", keys), "");
        assert_eq!(nearest("word", []), None);
        let distances =
            [("", "abc"), ("kitten", "sitting"), ("ab", "ba"), ("a", "a"), ("straße", "strase")];
        assert_eq!(distances.map(|(one, other)| distance(one, other)), [3, 3, 1, 0, 1]);
    }
}
