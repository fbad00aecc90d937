//! Offered rates on the command line: tasks per second, or per cent of a capacity.

use std::fmt;
use std::str::FromStr;

use crate::grammar::{GrammarError, Scanner};

/// Highest rate: one task per nanosecond.
pub(crate) const RATE_MAX_PPS: f64 = 1e9;

/// Offered rate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Rate {
    /// Tasks per second.
    Pps(f64),
    /// Fraction of the capacity, which is the number of workers over the mean service time.
    Share(f64),
}

impl Rate {
    /// Returns tasks per second for `workers` workers with this mean service time.
    ///
    /// # Errors
    /// If the rate is a fraction and the number of workers or their service time is unknown.
    pub fn pps(self, workers: Option<u32>, mean_service_ns: f64) -> Result<f64, UnknownCapacity> {
        let share = match self {
            Self::Pps(pps) => return Ok(pps),
            Self::Share(share) => share,
        };
        match workers {
            Some(workers) if mean_service_ns > 0.0 => {
                Ok(share * f64::from(workers) * 1e9 / mean_service_ns)
            }
            _ => Err(UnknownCapacity),
        }
    }
}

/// A rate in per cent without a known capacity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "a rate in per cent needs the capacity: give --workers N, and a service time above 0 \
     (capacity = workers / mean service time)"
)]
pub struct UnknownCapacity;

impl FromStr for Rate {
    type Err = GrammarError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut scanner = Scanner::new("rate", text);
        let value_at = scanner.place();
        let value = scanner.number()?;
        let unit_at = scanner.place();
        let rate = if scanner.accept('%') {
            Self::Share(value / 100.0)
        } else {
            let scale = match scanner.word() {
                "" => 1.0,
                "k" => 1e3,
                "M" => 1e6,
                _ => {
                    let problem = "expected the end, k (thousand), M (million) or % here";
                    return Err(scanner.error_at(unit_at, problem));
                }
            };
            Self::Pps(value * scale)
        };
        scanner.end()?;
        match rate {
            Self::Pps(value) | Self::Share(value) if value <= 0.0 => {
                Err(scanner.error_at(value_at, "a rate must be above 0"))
            }
            Self::Pps(pps) if pps > RATE_MAX_PPS => {
                Err(scanner.error_at(value_at, "a rate is at most 1000M, one task a nanosecond"))
            }
            Self::Share(share) if share > 100.0 => {
                Err(scanner.error_at(value_at, "a rate is at most 10000% of the capacity"))
            }
            _ => Ok(rate),
        }
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Share(share) => write!(f, "{}%", share * 100.0),
            Self::Pps(pps) if *pps >= 1e6 => write!(f, "{}M", pps / 1e6),
            Self::Pps(pps) if *pps >= 1e3 => write!(f, "{}k", pps / 1e3),
            Self::Pps(pps) => write!(f, "{pps}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_read_and_printed() {
        for (text, rate) in [
            ("200k", Rate::Pps(200e3)),
            ("1.5M", Rate::Pps(1.5e6)),
            ("800", Rate::Pps(800.0)),
            ("80%", Rate::Share(0.8)),
        ] {
            assert_eq!(text.parse(), Ok(rate));
            assert_eq!(rate.to_string(), text);
        }
    }

    #[test]
    fn a_share_needs_a_capacity() {
        assert_eq!(Rate::Share(0.8).pps(Some(32), 50e3), Ok(512e3));
        assert_eq!(Rate::Share(0.8).pps(None, 50e3), Err(UnknownCapacity));
        assert_eq!(Rate::Share(0.8).pps(Some(32), 0.0), Err(UnknownCapacity));
        assert_eq!(Rate::Pps(7.0).pps(None, 50e3), Ok(7.0));
    }

    #[test]
    fn invalid_rates_are_refused_with_the_reason() {
        for (text, part) in [
            ("", "number"),
            ("k", "number"),
            ("5x", "expected the end, k"),
            ("0", "above 0"),
            ("0%", "above 0"),
            ("2000M", "1000M"),
            ("20000%", "10000%"),
            ("5k 3", "unexpected text"),
        ] {
            let error = text.parse::<Rate>().unwrap_err().to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
    }
}
