//! Check for a steady state during the measurement. A latency that still grows depends on the run's length
//! and has no meaning.
//!
//! The Mann-Kendall test finds a trend over the windows. At high load, windows are correlated, so that the
//! test finds trends too easily. Therefore the change from the first to the last third must also be large.

use serde::{Deserialize, Serialize};

/// Minimum number of windows. With fewer, the test's normal approximation is poor.
const WINDOWS_MIN: usize = 6;
/// Largest |Z| without a trend: two-sided 1% of the normal distribution.
const Z_MAX: f64 = 2.576;
/// Minimum factor between the means of the first and the last third. A smaller change is no trend, however
/// clear.
const CHANGE_MIN: f64 = 1.25;

/// Result of the check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// No trend.
    Stationary,
    /// The figure rises, as when the offered load exceeds the capacity.
    Rising,
    /// The figure falls, as after a warm-up that is too short.
    Falling,
    /// Too few windows.
    Unknown,
}

/// Returns the trend of a figure over equal, consecutive windows. The report gives the median latency of each window.
/// Infinite values rank highest; the test ignores NaN.
#[must_use]
pub fn verdict(windows: &[f64]) -> Verdict {
    let windows: Vec<_> = windows.iter().copied().filter(|value| !value.is_nan()).collect();
    if windows.len() < WINDOWS_MIN {
        return Verdict::Unknown;
    }
    let z = mann_kendall_z(&windows);
    let third = windows.len() / 3;
    let (first, last) = (mean(&windows[..third]), mean(&windows[windows.len() - third..]));
    // With infinite values in both thirds the ratio says nothing, and the trend alone decides.
    let is_unlimited = first.is_infinite() && last.is_infinite();
    if z > Z_MAX && (is_unlimited || last / first > CHANGE_MIN) {
        Verdict::Rising
    } else if z < -Z_MAX && (is_unlimited || last / first < 1.0 / CHANGE_MIN) {
        Verdict::Falling
    } else {
        Verdict::Stationary
    }
}

/// Returns the mean; infinite if a value is.
fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// Returns the Mann-Kendall statistic Z: the number of rising minus falling pairs of values, over the standard
/// deviation that this number has without a trend. The continuity correction moves the number by 1 towards 0. The
/// variance ignores ties and is then too large, so ties hide a trend rather than fake one.
fn mann_kendall_z(values: &[f64]) -> f64 {
    let mut s = 0_i64;
    for (i, earlier) in values.iter().enumerate() {
        for later in &values[i + 1..] {
            s += i64::from(later > earlier) - i64::from(later < earlier);
        }
    }
    let n = values.len() as f64;
    let deviation = (n * (n - 1.0) * (2.0 * n + 5.0) / 18.0).sqrt();
    (s - s.signum()) as f64 / deviation
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn growth_and_warm_up_are_distinguished_from_noise() {
        let rising: Vec<_> = (0..20).map(|i| 100.0 + 10.0 * f64::from(i)).collect();
        assert_eq!(verdict(&rising), Verdict::Rising);
        let falling: Vec<_> = rising.iter().rev().copied().collect();
        assert_eq!(verdict(&falling), Verdict::Falling);
        let noise: Vec<_> = (0..20).map(|i| 100.0 + f64::from(i * 7919 % 13)).collect();
        assert_eq!(verdict(&noise), Verdict::Stationary);
        // A clear trend without importance.
        let slight: Vec<_> = (0..20).map(|i| 100.0 + 0.1 * f64::from(i)).collect();
        assert_eq!(verdict(&slight), Verdict::Stationary);
    }

    #[test]
    fn losses_that_begin_are_a_rise() {
        let mut windows = vec![100.0; 10];
        windows.extend([f64::INFINITY; 10]);
        assert_eq!(verdict(&windows), Verdict::Rising);
        // An early one does not hide them.
        windows[2] = f64::INFINITY;
        assert_eq!(verdict(&windows), Verdict::Rising);
        windows.reverse();
        assert_eq!(verdict(&windows), Verdict::Falling);
        assert_eq!(verdict(&[f64::INFINITY; 20]), Verdict::Stationary);
    }

    #[test]
    fn too_few_windows_have_no_verdict() {
        assert_eq!(verdict(&[1.0, 2.0, 3.0]), Verdict::Unknown);
        assert_eq!(verdict(&[f64::NAN; 20]), Verdict::Unknown);
    }

    #[test]
    fn statistic_of_known_series_is_right() {
        // n = 4, all pairs rising: S = 6, variance 4*3*13/18 = 8.667, Z = 5 / 2.944 = 1.698.
        assert!((mann_kendall_z(&[1.0, 2.0, 3.0, 4.0]) - 1.698).abs() < 1e-3);
    }
}
