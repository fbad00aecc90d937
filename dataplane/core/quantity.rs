//! Numbers with nouns for messages.

use std::fmt::Display;

/// Formats a number and its noun, given in the singular: `1 task`, `2 tasks`, `0 entries`. Irregular plurals, and nouns
/// in `ch` and `sh`, come out wrong.
pub fn quantity<N: Display + PartialEq + From<u8>>(count: N, noun: &str) -> String {
    if count == N::from(1) {
        return format!("{count} {noun}");
    }
    const VOWELS: [char; 5] = ['a', 'e', 'i', 'o', 'u'];
    match noun.strip_suffix('y') {
        Some(stem) if !stem.ends_with(VOWELS) => format!("{count} {stem}ies"),
        _ if noun.ends_with(['s', 'x']) => format!("{count} {noun}es"),
        _ => format!("{count} {noun}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nouns_follow_their_numbers() {
        assert_eq!(quantity(1_u64, "task"), "1 task");
        assert_eq!(quantity(0_usize, "task"), "0 tasks");
        assert_eq!(quantity(2_u32, "policy"), "2 policies");
        assert_eq!(quantity(2_u32, "reply"), "2 replies");
        assert_eq!(quantity(3_i64, "key"), "3 keys");
        assert_eq!(quantity(5_u16, "MAC address"), "5 MAC addresses");
    }
}
