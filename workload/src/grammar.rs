//! Scanner for the small languages of the command line: service times, arrivals, rates, and single times.
//!
//! Its errors show the text, a caret below the position of the error, and the allowed input.

use std::fmt;

/// Units of time from the smallest to the largest, with their length in nanoseconds.
const UNITS: [(&str, f64); 4] = [("ns", 1.0), ("us", 1e3), ("ms", 1e6), ("s", 1e9)];

/// Syntax error in a text of the command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GrammarError {
    /// Name of the text, as in "rate".
    subject: &'static str,
    /// The whole text.
    text: String,
    /// Offset of the error in bytes.
    offset: usize,
    /// Problem at this place, and the allowed input.
    problem: String,
}

impl fmt::Display for GrammarError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The offset counts bytes, the column characters.
        let column = self.text[..self.offset].chars().count();
        writeln!(f, "cannot read this {}: {}", self.subject, self.problem)?;
        writeln!(f, "  {}", self.text)?;
        write!(f, "  {:column$}^", "")
    }
}

impl std::error::Error for GrammarError {}

/// Position in a text of the command line.
pub struct Scanner<'a> {
    /// Name of the text for errors.
    subject: &'static str,
    /// The whole text.
    text: &'a str,
    /// Offset of the next token in bytes.
    offset: usize,
}

impl<'a> Scanner<'a> {
    /// Starts at the beginning of `text`; errors call it `subject`.
    pub fn new(subject: &'static str, text: &'a str) -> Self {
        Self { subject, text, offset: 0 }
    }

    /// Skips spaces. Returns the offset of the next token in bytes, for [`Scanner::error_at`].
    pub fn place(&mut self) -> usize {
        let rest = &self.text[self.offset..];
        self.offset += rest.len() - rest.trim_start().len();
        self.offset
    }

    /// Returns an error about the token at `offset`.
    pub fn error_at(&self, offset: usize, problem: impl Into<String>) -> GrammarError {
        let (subject, text) = (self.subject, self.text.to_owned());
        GrammarError { subject, text, offset, problem: problem.into() }
    }

    /// Consumes `symbol` if it comes next.
    pub fn accept(&mut self, symbol: char) -> bool {
        let offset = self.place();
        let found = self.text[offset..].starts_with(symbol);
        if found {
            self.offset = offset + symbol.len_utf8();
        }
        found
    }

    /// Consumes `symbol`, or fails.
    pub fn expect(&mut self, symbol: char) -> Result<(), GrammarError> {
        if self.accept(symbol) {
            return Ok(());
        }
        Err(self.error_at(self.offset, format!("expected `{symbol}` here")))
    }

    /// Fails unless the text ends here.
    pub fn end(&mut self) -> Result<(), GrammarError> {
        let offset = self.place();
        if offset == self.text.len() {
            return Ok(());
        }
        Err(self.error_at(offset, "unexpected text here"))
    }

    /// Consumes a word of letters, digits and dashes that starts with a letter. Returns an empty text if none
    /// comes next.
    pub fn word(&mut self) -> &'a str {
        let offset = self.place();
        let rest = &self.text[offset..];
        let is_part = |c: char| c.is_ascii_alphanumeric() || c == '-';
        let len = match rest.starts_with(|c: char| c.is_ascii_alphabetic()) {
            true => rest.find(|c: char| !is_part(c)).unwrap_or(rest.len()),
            false => 0,
        };
        self.offset = offset + len;
        &rest[..len]
    }

    /// Consumes a decimal number without sign and exponent.
    pub fn number(&mut self) -> Result<f64, GrammarError> {
        let offset = self.place();
        let rest = &self.text[offset..];
        let len = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        let value: f64 = rest[..len]
            .parse()
            .map_err(|_| self.error_at(offset, "expected a number here, as in 0.5 or 50"))?;
        self.offset = offset + len;
        Ok(value)
    }

    /// Consumes a time with its unit; returns nanoseconds.
    pub fn time_ns(&mut self) -> Result<f64, GrammarError> {
        let offset = self.place();
        let value = self
            .number()
            .map_err(|_| self.error_at(offset, "expected a time here, as in 50us or 1.5ms"))?;
        let unit_at = self.offset;
        let unit = self.word();
        match UNITS.iter().find(|(name, _)| *name == unit) {
            Some((_, scale)) => Ok(value * scale),
            None => Err(self.error_at(unit_at, "expected a unit of time here: ns, us, ms or s")),
        }
    }

    /// Consumes `N` times, separated by commas, in parentheses: the parameters of a distribution. Returns nanoseconds.
    pub fn times_ns<const N: usize>(&mut self) -> Result<[f64; N], GrammarError> {
        let mut times = [0.0; N];
        self.expect('(')?;
        for (i, time) in times.iter_mut().enumerate() {
            if i > 0 {
                self.expect(',')?;
            }
            *time = self.time_ns()?;
        }
        self.expect(')')?;
        Ok(times)
    }
}

/// A time in nanoseconds, printed in the largest unit in which it is at least 1 and exact.
pub struct Time(
    /// Nanoseconds.
    pub f64,
);

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, scale) in UNITS.iter().rev() {
            let value = self.0 / scale;
            // A unit qualifies only if the printed number reads back as the same time.
            if value >= 1.0 && (value * scale).to_bits() == self.0.to_bits() {
                return write!(f, "{value}{name}");
            }
        }
        write!(f, "{}ns", self.0)
    }
}

/// Parses a time such as `10s` or `500us`; returns nanoseconds.
///
/// # Errors
/// The fault, its place, and the allowed input.
pub fn parse_time_ns(text: &str) -> Result<f64, GrammarError> {
    let mut scanner = Scanner::new("time", text);
    let time_ns = scanner.time_ns()?;
    scanner.end()?;
    Ok(time_ns)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn times_are_read_in_every_unit() {
        assert_eq!(parse_time_ns("7ns"), Ok(7.0));
        assert_eq!(parse_time_ns("50us"), Ok(50_000.0));
        assert_eq!(parse_time_ns(" 1.5 ms "), Ok(1_500_000.0));
        assert_eq!(parse_time_ns("2s"), Ok(2e9));
    }

    #[test]
    fn errors_point_at_the_place() {
        let error = parse_time_ns("50uss").unwrap_err().to_string();
        assert_eq!(
            error,
            "cannot read this time: expected a unit of time here: ns, us, ms or s\n  50uss\n    ^"
        );
        for (text, offset) in
            [("", 0), ("x", 0), ("5", 1), ("1.2.3us", 0), ("5us 6", 4), ("-5us", 0)]
        {
            assert_eq!(parse_time_ns(text).unwrap_err().offset, offset, "{text}");
        }
    }

    proptest! {
        #[test]
        fn printed_times_read_back(ns in 0.0..1e12_f64) {
            let text = Time(ns).to_string();
            prop_assert_eq!(parse_time_ns(&text), Ok(ns), "{}", text);
        }

        #[test]
        fn any_text_is_read_or_refused(text in "\\PC{0,12}") {
            if let Err(error) = parse_time_ns(&text) {
                prop_assert!(error.to_string().contains('^'));
            }
        }
    }
}
