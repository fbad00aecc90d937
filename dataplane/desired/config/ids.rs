//! Lists of worker ids as users write them: `0-31`, `0-7,16,20-23`.

use std::collections::HashSet;
use std::ops::RangeInclusive;

/// Parser of id lists that together may name each id once, such as the lists of all servers. Once they name more than
/// `NAMED_MAX` ids, it returns empty lists: this bounds the time for a file with many long lists. Such a file already
/// has a fault, because ids repeat or lists are invalid.
#[derive(Default)]
pub struct Lists {
    /// Number of ids so far. A refused list counts as one.
    named: usize,
}

/// Maximum number of ids that the lists of one parser, or one request, name: about twice the number of possible ids.
pub const NAMED_MAX: usize = 1 << 16;

impl Lists {
    /// Like [`parse`].
    ///
    /// # Errors
    /// If the text is not a list of allowed ids. The error describes the bad part.
    pub fn parse(&mut self, text: &str, allowed: RangeInclusive<u16>) -> Result<Vec<u16>, String> {
        if self.named > NAMED_MAX {
            return Ok(Vec::new());
        }
        let ids = parse(text, allowed);
        self.named += ids.as_ref().map_or(1, Vec::len);
        ids
    }
}

/// Parses a list. Returns the ids in the written order.
///
/// # Errors
/// If the text is empty, names an id twice, or has a part that is not an allowed id or range. The error
/// describes the bad part.
pub fn parse(text: &str, allowed: RangeInclusive<u16>) -> Result<Vec<u16>, String> {
    if text.trim().is_empty() {
        return Err("no ids".to_owned());
    }
    let (mut ids, mut seen) = (Vec::new(), HashSet::new());
    for part in text.split(',').map(str::trim) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let number = |id: &str| {
            let id = id.trim().parse::<u16>().ok().filter(|id| allowed.contains(id));
            id.ok_or_else(|| format!("`{part}` in `{text}`"))
        };
        let (first, last) = (number(first)?, number(last)?);
        if first > last {
            return Err(format!("`{part}`, a range that runs backwards"));
        }
        for id in first..=last {
            if !seen.insert(id) {
                return Err(format!("{id} twice in `{text}`"));
            }
            ids.push(id);
        }
    }
    Ok(ids)
}

/// Returns a sorted list in the form that [`parse`] reads.
#[must_use]
pub fn text(ids: &[u16]) -> String {
    let mut ids = ids.to_vec();
    ids.sort_unstable();
    let runs = ids.chunk_by(|one, next| one.checked_add(1) == Some(*next));
    let run = |run: &[u16]| match *run {
        [first, .., last] => format!("{first}-{last}"),
        [one] => one.to_string(),
        [] => String::new(),
    };
    runs.map(run).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::{parse, text};

    #[test]
    fn lists_are_read_written_and_refused() {
        assert_eq!(parse("0-2, 7,9-9", 0..=9), Ok(vec![0, 1, 2, 7, 9]));
        assert_eq!(text(&[9, 0, 1, 2, 7]), "0-2,7,9");
        assert_eq!(parse("3,0-99999", 0..=9).unwrap_err(), "`0-99999` in `3,0-99999`");
        for bad in ["", "a", "1-", "-1", "3-1", "1,1", "0-3,2", "10", "9-10", "1;2", "70000"] {
            assert!(parse(bad, 0..=9).is_err(), "{bad}");
        }
    }
}
