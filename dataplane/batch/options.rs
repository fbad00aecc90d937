//! Policies and objectives of batch jobs, as written on command lines and in files.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use wedjat_cosched::Share;

/// Policy that sets the batch's *share*: the fraction of the CPU time of its cores that it may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// The learning chooser of ASA_X (see [`wedjat_cosched`]), within the limit of the guard. The *guard* limits the
    /// share by the observed load and latency of the workers' tasks.
    Asax,
    /// A constant share without guard.
    Static(Share),
    /// Additive increase of 10% after each harmless round, multiplicative decrease by half after a harmful
    /// one, within the guard's limit.
    Aimd,
    /// All that the guard allows.
    Guard,
    /// No limit. The batch yields to the workers only by its scheduling class, which is the idle one by default.
    Idle,
    /// The smallest CPU weight, without quota and guard: the batch gets little of a core that a worker wants.
    Shares,
}

impl Policy {
    /// Returns true if a chooser decides, so that decisions can be logged.
    #[must_use]
    pub fn is_logged(self) -> bool {
        matches!(self, Self::Asax | Self::Aimd)
    }

    /// Returns true if the guard limits the share.
    #[must_use]
    pub fn is_guarded(self) -> bool {
        matches!(self, Self::Asax | Self::Aimd | Self::Guard)
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Asax => f.write_str("asax"),
            Self::Static(share) => write!(f, "static({share})"),
            Self::Aimd => f.write_str("aimd"),
            Self::Guard => f.write_str("guard"),
            Self::Idle => f.write_str("idle"),
            Self::Shares => f.write_str("shares"),
        }
    }
}

impl FromStr for Policy {
    type Err = String;

    /// Parses the form that `Display` writes, also without the per cent sign. The error names the allowed values.
    fn from_str(text: &str) -> Result<Self, String> {
        let share = text.strip_prefix("static(").and_then(|rest| rest.strip_suffix(')'));
        Ok(match (text, share) {
            ("asax", _) => Self::Asax,
            ("aimd", _) => Self::Aimd,
            ("guard", _) => Self::Guard,
            ("idle", _) => Self::Idle,
            ("shares", _) => Self::Shares,
            (_, Some(share)) => {
                let percent = share.strip_suffix('%').unwrap_or(share).parse::<u8>();
                let share =
                    percent.map_err(|_| ()).and_then(|part| Share::try_from(part).map_err(|_| ()));
                Self::Static(share.map_err(|()| {
                    format!(
                        "{text:?}: no such share; allowed: static(0%), static(10%) .. static(90%)"
                    )
                })?)
            }
            _ => {
                return Err(format!(
                    "{text:?}: no such policy; allowed: asax, static(50%), aimd, guard, idle and shares"
                ));
            }
        })
    }
}

/// Latency objective of tasks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Objective {
    /// Percentile as a fraction.
    pub part: f64,
    /// Limit in microseconds.
    pub us: f64,
}

impl Default for Objective {
    fn default() -> Self {
        Self { part: 0.999, us: 500.0 }
    }
}

impl fmt::Display for Objective {
    /// Writes the percentile and the limit, as in `p99.9=500us`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Removes the rounding error of converting 99.9 to a fraction and back.
        let percentile = (self.part * 1e8).round() / 1e6;
        write!(f, "p{percentile}={}us", self.us)
    }
}

impl FromStr for Objective {
    type Err = String;

    /// Parses a percentile and a time, as in `p99.9=500us`.
    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!("{text:?}: not an objective; give a percentile and a time, as in p99.9=500us")
        };
        let (percentile, time) = text.split_once('=').ok_or_else(wrong)?;
        let number = percentile.strip_prefix('p').ok_or_else(wrong)?;
        // Parsed as a fraction: a division by 100 would add a rounding error, and so select another rank.
        let part: f64 = format!("{number}e-2").parse().map_err(|_| wrong())?;
        let time: Duration = humantime::parse_duration(time).map_err(|_| wrong())?;
        match part > 0.0 && part < 1.0 && !time.is_zero() {
            true => Ok(Self { part, us: time.as_nanos() as f64 / 1e3 }),
            false => Err(wrong()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_and_objectives_round_trip_as_text() {
        for text in ["asax", "static(50%)", "static(0%)", "aimd", "guard", "idle", "shares"] {
            assert_eq!(text.parse::<Policy>().unwrap().to_string(), text);
        }
        for text in ["p99.9=500us", "p99=2000us", "p99.99=40us", "p50=1us"] {
            assert_eq!(text.parse::<Objective>().unwrap().to_string(), text);
        }
        assert_eq!("p99=2ms".parse(), Ok(Objective { part: 0.99, us: 2000.0 }));
        assert_eq!("p99.9=123us".parse(), Ok(Objective { part: 0.999, us: 123.0 }));
        assert_eq!("p99.9=123us".parse::<Objective>().unwrap().to_string(), "p99.9=123us");
    }

    // promise: batch.2
    #[test]
    fn invalid_option_lists_valid_values() {
        for text in
            ["", "always", "static", "static(55%)", "static(100%)", "static(x)", "static(50%%)"]
        {
            assert!(text.parse::<Policy>().unwrap_err().contains("static("), "{text}");
        }
        for text in ["", "99=1ms", "p0=1ms", "p100=1ms", "p99", "p99=fast", "p99=0s", "pNaN=1ms"] {
            assert!(text.parse::<Objective>().unwrap_err().contains("p99.9=500us"), "{text}");
        }
    }
}
