//! Seeds: one number from the user, and an independent random stream for every purpose and core.
//!
//! If the streams of arrivals and service times had equal seeds, a task's service time would follow from the
//! gap before it, and measured tails would be wrong. Therefore each stream has a seed of its own, derived from the
//! user's. The generator also logs the seeds of its arrivals and service times, and tests these streams for
//! independence before a run.

use rand::{Rng, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

use crate::arrival::Schedule;
use crate::service::Service;

/// Generator of every stream. Its output never changes between releases, so a seed identifies a run.
pub type Stream = Xoshiro256PlusPlus;

/// Pairs of gap and service time in the self-test.
const PAIRS: usize = 1 << 14;
/// Largest distance in tasks between a service time and the gap it is compared with.
const LAG_MAX: usize = 8;
/// Number of first outputs of each stream that the self-test compares. All of them must differ.
const OUTPUTS: usize = 4096;
/// Limit of the absolute rank correlation, in standard deviations. Independent series of one core exceed it once in a
/// hundred thousand self-tests.
const DEVIATIONS_MAX: f64 = 5.0;

/// Seed of one stream, for logs and reports.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct StreamSeed {
    /// Purpose of the stream.
    pub purpose: String,
    /// Core that draws from it, or another index, such as a node's. Separates streams of one purpose.
    pub core: u32,
    /// Seed; a hex string in JSON, whose readers would round a large number.
    #[serde(serialize_with = "hex")]
    pub seed: u64,
}

/// Serializes a seed as a hex string.
fn hex<S: serde::Serializer>(seed: &u64, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&format_args!("{seed:#018x}"))
}

impl StreamSeed {
    /// Derives the seed for `purpose` on `core` from the user's `seed`.
    #[must_use]
    pub fn derive(seed: u64, purpose: &str, core: u32) -> Self {
        // Mixes in one byte of the purpose at a time, then the core. The shift moves the core away from the bits of a
        // byte. So no core acts as one more byte of the purpose. Core 0 equals a zero byte, but no purpose has one.
        let named = purpose.bytes().fold(mixed(seed), |state, byte| mixed(state ^ u64::from(byte)));
        let seed = mixed(named ^ (u64::from(core) << 32));
        Self { purpose: purpose.to_owned(), core, seed }
    }

    /// Returns the stream.
    #[must_use]
    pub fn stream(&self) -> Stream {
        Stream::seed_from_u64(self.seed)
    }
}

/// The two streams of one core of the generator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CoreSeeds {
    /// Seed of the arrivals.
    pub arrivals: StreamSeed,
    /// Seed of the service times.
    pub service: StreamSeed,
}

impl CoreSeeds {
    /// Derives the seeds of `core` from the user's `seed`.
    #[must_use]
    pub fn derive(seed: u64, core: u32) -> Self {
        Self {
            arrivals: StreamSeed::derive(seed, "arrivals", core),
            service: StreamSeed::derive(seed, "service", core),
        }
    }
}

/// Two streams depend on each other, so that a run would be meaningless.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum DependentStreams {
    /// One of the first outputs of a stream occurs in another stream, or twice in the same stream.
    #[error("the streams {0} and {1} share outputs; choose another --seed")]
    Overlap(String, String),
    /// Gaps and service times are correlated.
    #[error(
        "arrival gaps and service times correlate on core {core}: {correlation:+.4} at lag {lag}, above the limit of \
         {limit:.4}; choose another --seed"
    )]
    Correlated {
        /// The core.
        core: u32,
        /// Distance in tasks from gap to service time. Negative: the service time comes first.
        lag: i32,
        /// Rank correlation, with its sign.
        correlation: f64,
        /// Largest absolute correlation that chance explains.
        limit: f64,
    },
}

/// Result of the self-test.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Independence {
    /// Largest absolute rank correlation of gaps and service times over all cores and lags.
    pub correlation_max: f64,
    /// Largest absolute correlation that chance explains.
    pub limit: f64,
}

/// Checks that the streams of a run are independent, on the numbers that the run would start with. No stream may share
/// outputs with another, and on no core may gaps and service times correlate.
///
/// # Errors
/// The streams that depend on each other.
pub fn self_test(
    cores: &[CoreSeeds],
    schedule: &Schedule,
    service: &Service,
) -> Result<Independence, DependentStreams> {
    check_overlap(cores)?;
    // The rank correlation of n independent pairs has a standard deviation of 1 / sqrt(n).
    let limit = DEVIATIONS_MAX / (PAIRS as f64).sqrt();
    let mut correlation_max = 0.0_f64;
    for core in cores {
        let gap_ranks = ranks(&gaps(&mut core.arrivals.stream(), schedule.clone()));
        let mut stream = core.service.stream();
        let services: Vec<_> = (0..PAIRS).map(|_| service.sample_ns(&mut stream).0).collect();
        let service_ranks = ranks(&services);
        for lag in -(LAG_MAX as i32)..=LAG_MAX as i32 {
            let correlation = correlation(&gap_ranks, &service_ranks, lag);
            correlation_max = correlation_max.max(correlation.abs());
            if correlation.abs() > limit {
                let core = core.arrivals.core;
                return Err(DependentStreams::Correlated { core, lag, correlation, limit });
            }
        }
    }
    Ok(Independence { correlation_max, limit })
}

/// Checks that the first [`OUTPUTS`] 64-bit outputs of all streams differ, within a stream and between streams. Streams
/// with equal seeds, or copies shifted by less, share outputs. The two independent streams of one core fail with a
/// probability of 2e-12.
fn check_overlap(cores: &[CoreSeeds]) -> Result<(), DependentStreams> {
    let mut outputs = Vec::new();
    for seed in cores.iter().flat_map(|core| [&core.arrivals, &core.service]) {
        let mut stream = seed.stream();
        outputs.extend((0..OUTPUTS).map(|_| (stream.next_u64(), seed)));
    }
    outputs.sort_unstable_by_key(|(output, _)| *output);
    let name = |seed: &StreamSeed| format!("{}/{}", seed.purpose, seed.core);
    match outputs.windows(2).find(|pair| pair[0].0 == pair[1].0) {
        Some(pair) => Err(DependentStreams::Overlap(name(pair[0].1), name(pair[1].1))),
        None => Ok(()),
    }
}

/// Returns the gaps before the first [`PAIRS`] tasks, in ticks of the schedule.
fn gaps(stream: &mut Stream, mut schedule: Schedule) -> Vec<f64> {
    let mut previous = 0;
    (0..PAIRS)
        .map(|_| {
            let due = schedule.advance(stream);
            let gap = due - previous;
            previous = due;
            gap as f64
        })
        .collect()
}

/// Returns the rank of each value; equal values share their mean rank. The test uses ranks, because heavy tails would
/// dominate a correlation of values.
fn ranks(values: &[f64]) -> Vec<f64> {
    let mut order: Vec<_> = (0..values.len()).collect();
    order.sort_unstable_by(|a, b| values[*a].total_cmp(&values[*b]));
    let mut ranks = vec![0.0; values.len()];
    let mut start = 0;
    for tie in order.chunk_by(|a, b| values[*a] == values[*b]) {
        let rank = start as f64 + (tie.len() - 1) as f64 / 2.0;
        tie.iter().for_each(|i| ranks[*i] = rank);
        start += tie.len();
    }
    ranks
}

/// Returns the Pearson correlation of `a[i]` with `b[i + lag]`; 0 if one of them is constant. Of ranks, this is
/// Spearman's rank correlation.
fn correlation(a: &[f64], b: &[f64], lag: i32) -> f64 {
    let shift = lag.unsigned_abs() as usize;
    let (a, b) = if lag >= 0 { (a, &b[shift..]) } else { (&a[shift..], b) };
    let n = a.len().min(b.len()) as f64;
    let pairs = || a.iter().zip(b);
    let (mean_a, mean_b) =
        (pairs().map(|(a, _)| a).sum::<f64>() / n, pairs().map(|(_, b)| b).sum::<f64>() / n);
    let (mut aa, mut bb, mut ab) = (0.0, 0.0, 0.0);
    for (a, b) in pairs() {
        let (a, b) = (a - mean_a, b - mean_b);
        aa += a * a;
        bb += b * b;
        ab += a * b;
    }
    if aa == 0.0 || bb == 0.0 { 0.0 } else { ab / (aa * bb).sqrt() }
}

/// Scatters the bits of a number: step and finalizer of SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom
/// number generators, OOPSLA 2014). A bijection: different numbers give different results.
#[inline]
#[must_use]
pub fn mixed(number: u64) -> u64 {
    let mut z = number.wrapping_add(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arrival::Arrivals;

    /// Runs the self-test on streams of these seeds with this load, at 200,000 tasks per second.
    fn self_test_of(
        cores: &[CoreSeeds],
        arrivals: &str,
        service: &str,
    ) -> Result<Independence, String> {
        let arrivals: Arrivals = arrivals.parse().unwrap();
        let schedule = Schedule::new(&arrivals, 200e3, 1e9).unwrap();
        self_test(cores, &schedule, &service.parse().unwrap()).map_err(|e| e.to_string())
    }

    // promise: measurement.1
    #[test]
    fn derived_streams_are_independent() {
        for seed in 0..20 {
            let cores: Vec<_> = (0..4).map(|core| CoreSeeds::derive(seed, core)).collect();
            for service in ["exp(50us)", "fixed(1us)", "mix(0.5*exp(5us), 0.5*exp(50us))"] {
                let independence = self_test_of(&cores, "poisson", service).unwrap();
                assert!(independence.correlation_max < independence.limit);
            }
        }
    }

    // promise: measurement.1
    #[test]
    fn shared_seed_is_detected() {
        let mut core = CoreSeeds::derive(7, 0);
        core.service.seed = core.arrivals.seed;
        let error = self_test_of(&[core], "poisson", "exp(50us)").unwrap_err();
        assert!(error.contains("arrivals/0") && error.contains("service/0"), "{error}");
    }

    #[test]
    fn seed_shared_between_cores_is_detected() {
        let cores = [CoreSeeds::derive(7, 0), CoreSeeds::derive(7, 1), CoreSeeds::derive(7, 0)];
        assert!(self_test_of(&cores[..2], "constant", "fixed(1us)").is_ok());
        assert!(self_test_of(&cores, "constant", "fixed(1us)").is_err());
    }

    #[test]
    fn correlated_numbers_are_found_at_their_lag() {
        // A hidden overlap: the service time three tasks later equals the gap.
        let gaps = gaps(
            &mut CoreSeeds::derive(7, 0).arrivals.stream(),
            Schedule::new(&Arrivals::Poisson, 200e3, 1e9).unwrap(),
        );
        let mut services = gaps.clone();
        services.rotate_right(3);
        let (gaps, services) = (ranks(&gaps), ranks(&services));
        assert!(correlation(&gaps, &services, 3) > 0.99);
        for lag in [-8, -3, 0, 2, 8] {
            assert!(correlation(&gaps, &services, lag).abs() < 0.05, "{lag}");
        }
    }

    #[test]
    fn derivation_depends_on_seed_purpose_and_core() {
        let seed = StreamSeed::derive(7, "arrivals", 0);
        assert_eq!(seed, StreamSeed::derive(7, "arrivals", 0));
        let others = [
            StreamSeed::derive(8, "arrivals", 0),
            StreamSeed::derive(7, "service", 0),
            StreamSeed::derive(7, "arrivals", 1),
        ];
        assert!(others.iter().all(|other| other.seed != seed.seed));
        // Published first output of SplitMix64 for state 0.
        assert_eq!(mixed(0), 0xE220_A839_7B1D_CDAF);
    }
}
