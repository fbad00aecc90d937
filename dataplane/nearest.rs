//! Of words that are known, the one that somebody probably meant who wrote another.

/// The known word that `word` becomes with the fewest letters added, left out, changed or swapped with the next one: one, or one for each
/// three letters. None when all are further away.
#[must_use]
pub fn nearest<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let word = word.to_lowercase();
    let most = (word.chars().count() / 3).max(1);
    let steps = |other: &'a str| (strsim::damerau_levenshtein(&word, &other.to_lowercase()), other);
    let best = known.into_iter().map(steps).min_by_key(|(steps, _)| *steps);
    best.filter(|(steps, _)| *steps <= most && !word.is_empty()).map(|(_, word)| word)
}

/// The same as the end of a sentence that says that the word is not known; empty when there is none.
#[must_use]
pub fn did_you_mean<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    nearest(word, known).map_or_else(String::new, |meant| format!(" (did you mean `{meant}`?)"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_alike_is_suggested_and_nothing_else() {
        let keys = ["cores", "state", "state_group", "mbufs", "udp_port", "worker_timeout_ms"];
        for (word, meant) in [
            ("core", Some("cores")),
            ("Cores", Some("cores")),
            ("udpport", Some("udp_port")),
            ("worker_timeout", Some("worker_timeout_ms")),
            ("statte", Some("state")),
            ("satte", Some("state")),
            ("policy", None),
            ("", None),
        ] {
            assert_eq!(nearest(word, keys), meant, "{word}");
        }
        assert_eq!(did_you_mean("mbuf", keys), " (did you mean `mbufs`?)");
        assert_eq!(did_you_mean("policy", keys), "");
        assert_eq!(nearest("word", []), None);
    }
}
