//! Service times: syntax of the distributions on the command line, and their samples.
//!
//! ```text
//! fixed(10us)                always 10 us
//! exp(50us)                  exponential, mean 50 us
//! normal(50us,5us)           mean and standard deviation, drawn again while not above 0
//! lognormal(50us,1.5)        mean, and standard deviation of the logarithm (no unit)
//! pareto(50us,2.5)           mean, and tail exponent (above 1, no unit)
//! uniform(10us,90us)         between two times
//! mix(0.9*exp(20us), 0.1*exp(400us))     one of these, by weight; weights sum to 1
//! rocksdb-90-10  rocksdb-50-50  rocksdb-995-5  tpcc  echo       named mixes, see [`crate::mix`]
//! ```
//!
//! Each component of a mix has a task class, 1 for the first. A single distribution has class 1. Measured times have
//! the classes of their tasks. The simulator draws from the same type, so a sample must take only a few nanoseconds:
//! distributions are an enum, without virtual calls.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use rand::Rng;
use rand_distr::{Distribution, Exp1, StandardNormal};

use crate::grammar::{GrammarError, Scanner, Time};
use crate::mix::{Mix, Workload};

/// Largest class; classes start at 1. On the wire, 0 means unknown.
pub const CLASSES_MAX: usize = 64;

/// Allowed forms, for errors.
const FORMS: &str = "fixed(T), exp(MEAN), normal(MEAN,SD), lognormal(MEAN,SIGMA), \
                     pareto(MEAN,ALPHA), uniform(LOW,HIGH), mix(W*..., W*...), \
                     rocksdb-90-10, rocksdb-50-50, rocksdb-995-5, tpcc, echo";

/// One distribution. Keeps the parameters of the command line, which it prints, and values precomputed for sampling.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Shape {
    Fixed { ns: f64 },
    Exp { mean_ns: f64 },
    Normal { mean_ns: f64, sd_ns: f64 },
    LogNormal { mean_ns: f64, sigma: f64, scale_ns: f64 },
    Pareto { mean_ns: f64, alpha: f64, low_ns: f64 },
    Uniform { low_ns: f64, high_ns: f64 },
}

impl Shape {
    /// Creates a log-normal distribution. The scale is the median, computed from the mean.
    fn log_normal(mean_ns: f64, sigma: f64) -> Self {
        // E[exp(mu + sigma N)] = exp(mu + sigma^2 / 2)
        Self::LogNormal { mean_ns, sigma, scale_ns: mean_ns * (-sigma * sigma / 2.0).exp() }
    }

    /// Creates a Pareto distribution. Its lowest value follows from the mean.
    fn pareto(mean_ns: f64, alpha: f64) -> Self {
        Self::Pareto { mean_ns, alpha, low_ns: mean_ns * (alpha - 1.0) / alpha }
    }

    /// Returns the mean of the samples.
    fn mean_ns(&self) -> f64 {
        match *self {
            Self::Fixed { ns } => ns,
            Self::Exp { mean_ns }
            | Self::LogNormal { mean_ns, .. }
            | Self::Pareto { mean_ns, .. } => mean_ns,
            Self::Normal { mean_ns, sd_ns } => truncated_normal_mean(mean_ns, sd_ns),
            Self::Uniform { low_ns, high_ns } => (low_ns + high_ns) / 2.0,
        }
    }

    /// Draws a service time in nanoseconds.
    #[inline]
    fn sample_ns<R: Rng + ?Sized>(&self, rng: &mut R) -> f64 {
        match *self {
            Self::Fixed { ns } => ns,
            Self::Exp { mean_ns } => mean_ns * exp1(rng),
            Self::Normal { mean_ns, sd_ns } => loop {
                let ns = mean_ns + sd_ns * normal(rng);
                if ns > 0.0 {
                    break ns;
                }
            },
            Self::LogNormal { sigma, scale_ns, .. } => scale_ns * (sigma * normal(rng)).exp(),
            // log(X / low) is exponential with mean 1 / alpha.
            Self::Pareto { alpha, low_ns, .. } => low_ns * (exp1(rng) / alpha).exp(),
            Self::Uniform { low_ns, high_ns } => {
                // Uniform in 0..1: all 53 bits of a floating-point number's mantissa are random.
                let share = (rng.next_u64() >> 11) as f64 * (-53.0_f64).exp2();
                low_ns + (high_ns - low_ns) * share
            }
        }
    }
}

/// Draws from the exponential distribution with mean 1.
#[inline]
pub(crate) fn exp1<R: Rng + ?Sized>(rng: &mut R) -> f64 {
    Exp1.sample(rng)
}

/// Draws from the standard normal distribution.
#[inline]
fn normal<R: Rng + ?Sized>(rng: &mut R) -> f64 {
    StandardNormal.sample(rng)
}

/// Returns the mean of a normal distribution truncated to positive values: m + s * pdf(a) / (1 - cdf(a)) at
/// a = -m / s.
fn truncated_normal_mean(mean: f64, sd: f64) -> f64 {
    let reach = (mean / sd).min(40.0); // beyond that the truncation has no effect
    let density = |x: f64| (-x * x / 2.0).exp() / (std::f64::consts::PI * 2.0_f64).sqrt();
    // 1 - cdf(-reach) = 1/2 + integral of the density from 0 to reach, by Simpson's rule.
    let steps = 2000;
    let h = reach / f64::from(steps);
    // 1, 4, 2, 4, ..., 2, 4, 1.
    let weight = |i: u32| if i == 0 || i == steps { 1.0 } else { f64::from(2 + 2 * (i % 2)) };
    let area: f64 = (0..=steps).map(|i| weight(i) * density(f64::from(i) * h)).sum();
    mean + sd * density(reach) / (0.5 + area * h / 3.0)
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Fixed { ns } => write!(f, "fixed({})", Time(ns)),
            Self::Exp { mean_ns } => write!(f, "exp({})", Time(mean_ns)),
            Self::Normal { mean_ns, sd_ns } => {
                write!(f, "normal({},{})", Time(mean_ns), Time(sd_ns))
            }
            Self::LogNormal { mean_ns, sigma, .. } => {
                write!(f, "lognormal({},{sigma})", Time(mean_ns))
            }
            Self::Pareto { mean_ns, alpha, .. } => write!(f, "pareto({},{alpha})", Time(mean_ns)),
            Self::Uniform { low_ns, high_ns } => {
                write!(f, "uniform({},{})", Time(low_ns), Time(high_ns))
            }
        }
    }
}

/// A component of a mix.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Component {
    /// A uniform 64-bit draw selects the first component with a threshold of at least that value.
    threshold: u64,
    /// Fraction of the tasks that have this component.
    weight: f64,
    /// Distribution of their service times.
    shape: Shape,
}

/// Measured service times, each equally likely.
#[derive(Clone, Debug, PartialEq)]
struct Samples {
    /// Service times in nanoseconds with their classes; at least one. Clones share them.
    values: Arc<[(f64, u16)]>,
    /// Mean of the values, in nanoseconds.
    mean_ns: f64,
}

impl Samples {
    /// Draws one of the values.
    #[inline]
    fn draw<R: Rng + ?Sized>(&self, rng: &mut R) -> (f64, u16) {
        // Scales 32 random bits to an index.
        let bits = u64::from(rng.next_u64() as u32);
        self.values[((bits * self.values.len() as u64) >> 32) as usize]
    }
}

/// A distribution of service times.
#[derive(Clone, Debug, PartialEq)]
pub struct Service {
    /// Components of a mix; one for a single distribution, none for measured times.
    components: Box<[Component]>,
    /// The named mix, if it is one.
    mix: Option<&'static Mix>,
    /// Measured times, if the distribution consists of these.
    samples: Option<Samples>,
}

impl Service {
    /// Returns a constant time.
    #[must_use]
    pub fn fixed(ns: f64) -> Self {
        Self::from_shapes(vec![(1.0, Shape::Fixed { ns })])
    }

    /// Returns an exponential distribution.
    #[must_use]
    pub fn exp(mean_ns: f64) -> Self {
        Self::from_shapes(vec![(1.0, Shape::Exp { mean_ns })])
    }

    /// Creates a mix of these shapes, by weight. The weights sum to 1; a single shape has weight 1.
    fn from_shapes(shapes: Vec<(f64, Shape)>) -> Self {
        let mut cumulative = 0.0;
        let mut components: Vec<_> = shapes
            .into_iter()
            .map(|(weight, shape)| {
                cumulative += weight;
                // 2^64 as a float; the cast saturates.
                Component { threshold: (cumulative * 64.0_f64.exp2()) as u64, weight, shape }
            })
            .collect();
        if let Some(last) = components.last_mut() {
            last.threshold = u64::MAX; // regardless of rounding
        }
        Self { components: components.into(), mix: None, samples: None }
    }

    /// Returns the distribution of measured service times in nanoseconds with their classes. `None` without a time.
    #[must_use]
    pub fn measured(values: Vec<(f64, u16)>) -> Option<Self> {
        let sum: f64 = values.iter().map(|(ns, _)| ns).sum();
        let mean_ns = sum / values.len() as f64;
        let samples = (!values.is_empty()).then(|| Samples { values: values.into(), mean_ns })?;
        Some(Self { components: Box::default(), mix: None, samples: Some(samples) })
    }

    /// Returns the distribution of a named mix.
    #[must_use]
    pub fn named(mix: &'static Mix) -> Self {
        let fixed =
            mix.types.iter().map(|kind| (kind.weight, Shape::Fixed { ns: kind.service_ns }));
        Self { mix: Some(mix), ..Self::from_shapes(fixed.collect()) }
    }

    /// Returns the workload that the workers must run.
    #[must_use]
    pub fn workload(&self) -> Workload {
        self.mix.map_or(Workload::Spin, |mix| mix.workload)
    }

    /// Draws service time and class of each task, like repeated calls of [`Service::sample_ns`], and passes
    /// them to `set`.
    pub fn fill<T, R: Rng>(
        &self,
        rng: &mut R,
        tasks: &mut [T],
        mut set: impl FnMut(&mut T, f64, u16),
    ) {
        let tasks = tasks.iter_mut();
        match self.components[..] {
            // Separate loops for common shapes, so that the match stays outside the loop.
            [Component { shape: Shape::Fixed { ns }, .. }] => {
                tasks.for_each(|task| set(task, ns, 1))
            }
            [Component { shape: Shape::Exp { mean_ns }, .. }] => {
                tasks.for_each(|task| set(task, mean_ns * exp1(rng), 1));
            }
            _ => tasks.for_each(|task| {
                let (ns, class) = self.sample_ns(rng);
                set(task, ns, class);
            }),
        }
    }

    /// Returns a service time in nanoseconds, not rounded, and its class.
    #[inline]
    pub fn sample_ns<R: Rng + ?Sized>(&self, rng: &mut R) -> (f64, u16) {
        if let Some(samples) = &self.samples {
            return samples.draw(rng);
        }
        let mut chosen = 0;
        if self.components.len() > 1 {
            let draw = rng.next_u64();
            while draw > self.components[chosen].threshold {
                chosen += 1;
            }
        }
        (self.components[chosen].shape.sample_ns(rng), chosen as u16 + 1)
    }

    /// Returns the mean service time.
    #[must_use]
    pub fn mean_ns(&self) -> f64 {
        match &self.samples {
            Some(samples) => samples.mean_ns,
            None => self.components.iter().map(|c| c.weight * c.shape.mean_ns()).sum(),
        }
    }

    /// Returns the number of components, each of which is a task class; 0 for measured times, which have classes of
    /// their own.
    #[must_use]
    pub fn classes(&self) -> usize {
        self.components.len()
    }

    /// Returns the name of a class in a named mix, else its service times.
    #[must_use]
    pub fn class_name(&self, class: u16) -> String {
        let named = self.mix.and_then(|mix| mix.types.get(usize::from(class).checked_sub(1)?));
        named.map_or_else(|| self.class_service(class), |kind| kind.name.to_owned())
    }

    /// Returns the service times of a class in the syntax of the command line; `unknown` unless `class` is
    /// 1 ..= [`Service::classes`].
    #[must_use]
    pub fn class_service(&self, class: u16) -> String {
        usize::from(class)
            .checked_sub(1)
            .and_then(|i| self.components.get(i))
            .map_or_else(|| "unknown".to_owned(), |component| component.shape.to_string())
    }
}

impl fmt::Display for Service {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(mix) = self.mix {
            return write!(f, "{}", mix.name);
        }
        if let Some(Samples { values, mean_ns }) = &self.samples {
            return write!(f, "{} measured times, mean {}", values.len(), Time(mean_ns.round()));
        }
        if let [only] = &self.components[..] {
            return only.shape.fmt(f);
        }
        for (i, component) in self.components.iter().enumerate() {
            let separator = if i == 0 { "mix(" } else { ", " };
            write!(f, "{separator}{}*{}", component.weight, component.shape)?;
        }
        write!(f, ")")
    }
}

impl FromStr for Service {
    type Err = GrammarError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut scanner = Scanner::new("service time", text);
        let at = scanner.place();
        let name = scanner.word();
        let service = match Mix::named(name) {
            Some(mix) => Self::named(mix),
            None if name == "mix" => Self::from_shapes(parse_mix(&mut scanner, at)?),
            None => Self::from_shapes(vec![(1.0, parse_shape(&mut scanner, at, name)?)]),
        };
        scanner.end()?;
        Ok(service)
    }
}

/// Parses the components of a mix; `at` is the offset of the mix, for errors.
fn parse_mix(scanner: &mut Scanner<'_>, at: usize) -> Result<Vec<(f64, Shape)>, GrammarError> {
    let mut shapes = Vec::new();
    scanner.expect('(')?;
    loop {
        let weight_at = scanner.place();
        let weight = scanner.number()?;
        if !(weight > 0.0 && weight <= 1.0) {
            return Err(scanner.error_at(weight_at, "a weight must be above 0 and at most 1"));
        }
        scanner.expect('*')?;
        let shape_at = scanner.place();
        let name = scanner.word();
        if name == "mix" {
            return Err(scanner.error_at(
                shape_at,
                "a mix inside a mix is not allowed; multiply its weights out",
            ));
        }
        shapes.push((weight, parse_shape(scanner, shape_at, name)?));
        if !scanner.accept(',') {
            break;
        }
    }
    scanner.expect(')')?;
    let sum: f64 = shapes.iter().map(|(weight, _)| weight).sum();
    if (sum - 1.0).abs() > 1e-9 {
        return Err(scanner.error_at(at, format!("the weights must sum to 1, not {sum}")));
    }
    if shapes.len() > CLASSES_MAX {
        let problem = format!("at most {CLASSES_MAX} components are allowed in a mix");
        return Err(scanner.error_at(at, problem));
    }
    Ok(shapes)
}

/// Parses the parameters of the shape `name`; `at` is the offset of the name, for errors.
fn parse_shape(scanner: &mut Scanner<'_>, at: usize, name: &str) -> Result<Shape, GrammarError> {
    let shape = match name {
        "fixed" => scanner.times_ns().map(|[ns]| Shape::Fixed { ns })?,
        "exp" => scanner.times_ns().map(|[mean_ns]| Shape::Exp { mean_ns })?,
        "normal" => scanner.times_ns().map(|[mean_ns, sd_ns]| Shape::Normal { mean_ns, sd_ns })?,
        "uniform" => {
            scanner.times_ns().map(|[low_ns, high_ns]| Shape::Uniform { low_ns, high_ns })?
        }
        "lognormal" => {
            parse_mean_and(scanner).map(|(mean, sigma)| Shape::log_normal(mean, sigma))?
        }
        "pareto" => parse_mean_and(scanner).map(|(mean, alpha)| Shape::pareto(mean, alpha))?,
        _ => return Err(scanner.error_at(at, format!("expected one of {FORMS}"))),
    };
    match refusal(&shape) {
        Some(problem) => Err(scanner.error_at(at, problem)),
        None => Ok(shape),
    }
}

/// Parses a mean time and a parameter without a unit.
fn parse_mean_and(scanner: &mut Scanner<'_>) -> Result<(f64, f64), GrammarError> {
    scanner.expect('(')?;
    let mean_ns = scanner.time_ns()?;
    scanner.expect(',')?;
    let parameter = scanner.number()?;
    scanner.expect(')')?;
    Ok((mean_ns, parameter))
}

/// Returns the reason why parameters of a shape are invalid, if they are.
fn refusal(shape: &Shape) -> Option<&'static str> {
    match *shape {
        Shape::Normal { mean_ns, sd_ns } if mean_ns <= 0.0 || sd_ns <= 0.0 => {
            Some("mean and standard deviation must be above 0; use fixed(T) for a constant")
        }
        Shape::LogNormal { sigma, .. } if sigma > 10.0 => Some("sigma must be at most 10"),
        Shape::Pareto { alpha, .. } if alpha <= 1.0 => {
            Some("alpha must be above 1; otherwise the mean is infinite")
        }
        Shape::Uniform { low_ns, high_ns } if low_ns > high_ns => {
            Some("the first time must be at most the second")
        }
        Shape::Exp { mean_ns: 0.0 }
        | Shape::LogNormal { mean_ns: 0.0, .. }
        | Shape::Pareto { mean_ns: 0.0, .. } => Some("the mean must be above 0"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rand::SeedableRng;
    use rand_xoshiro::Xoshiro256PlusPlus;

    /// Draws service times and classes with a fixed seed.
    fn samples_of(text: &str, count: u32) -> Vec<(f64, u16)> {
        let service: Service = text.parse().unwrap();
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(7);
        (0..count).map(|_| service.sample_ns(&mut rng)).collect()
    }

    #[test]
    fn batched_samples_equal_single_samples() {
        for text in
            ["fixed(9us)", "exp(5us)", "normal(9us,2us)", "mix(0.5*exp(5us), 0.5*fixed(9us))"]
        {
            let service: Service = text.parse().unwrap();
            let mut rng = Xoshiro256PlusPlus::seed_from_u64(7);
            let mut filled = [(0.0, 0); 100];
            filled.chunks_mut(30).for_each(|part| {
                service.fill(&mut rng, part, |task, ns, class| *task = (ns, class))
            });
            assert_eq!(filled[..], samples_of(text, 100), "{text}");
        }
    }

    #[test]
    fn measured_times_keep_mean_and_classes() {
        assert_eq!(Service::measured(Vec::new()), None);
        let service = Service::measured(vec![(1e3, 1), (1e3, 1), (1e3, 1), (9e3, 4)]).unwrap();
        assert_eq!(service.mean_ns(), 3e3);
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(7);
        let drawn: Vec<_> = (0..40_000).map(|_| service.sample_ns(&mut rng)).collect();
        assert!(drawn.iter().all(|sample| [(1e3, 1), (9e3, 4)].contains(sample)));
        assert!((moments(&drawn).0 / 3e3 - 1.0).abs() < 0.02);
    }

    /// Returns mean and standard deviation.
    fn moments(samples: &[(f64, u16)]) -> (f64, f64) {
        let n = samples.len() as f64;
        let mean = samples.iter().map(|(ns, _)| ns).sum::<f64>() / n;
        let variance = samples.iter().map(|(ns, _)| (ns - mean).powi(2)).sum::<f64>() / n;
        (mean, variance.sqrt())
    }

    #[test]
    fn samples_have_the_stated_moments() {
        // (text, standard deviation). Seeds are fixed, so the tolerance never fails by chance. Variances: uniform
        // width^2 / 12, log-normal mean^2 (exp(sigma^2) - 1), Pareto mean^2 / (alpha (alpha - 2)).
        for (text, sd) in [
            ("fixed(10us)", 0.0),
            ("exp(50us)", 50e3),
            ("normal(50us,5us)", 5e3),
            ("uniform(10us,90us)", 80e3 / 12_f64.sqrt()),
            ("lognormal(50us,0.5)", 50e3 * (0.25_f64.exp() - 1.0).sqrt()),
            ("pareto(50us,4)", 50e3 / 8_f64.sqrt()),
        ] {
            let (mean, deviation) = moments(&samples_of(text, 400_000));
            let expected = text.parse::<Service>().unwrap().mean_ns();
            assert!((mean / expected - 1.0).abs() < 0.01, "{text}: mean {mean}, not {expected}");
            assert!((deviation - sd).abs() <= 0.03 * sd, "{text}: deviation {deviation}, not {sd}");
        }
    }

    #[test]
    fn a_truncated_normal_states_its_true_mean() {
        // sd = mean: 16% of the normal distribution lies below 0. Closed form: m (1 + pdf(1) / cdf(1)) =
        // 1.28760 m.
        let service: Service = "normal(10us,10us)".parse().unwrap();
        assert!((service.mean_ns() - 12_876.0).abs() < 0.5, "{}", service.mean_ns());
        let samples = samples_of("normal(10us,10us)", 400_000);
        assert!(samples.iter().all(|(ns, _)| *ns > 0.0));
        assert!((moments(&samples).0 / service.mean_ns() - 1.0).abs() < 0.01);
    }

    #[test]
    fn classes_follow_the_weights() {
        let text = "mix(0.44*fixed(6us), 0.04*fixed(20us), 0.52*fixed(90us))";
        let samples = samples_of(text, 100_000);
        for (class, ns, weight) in [(1, 6e3, 0.44), (2, 20e3, 0.04), (3, 90e3, 0.52)] {
            let of_class: Vec<_> = samples.iter().filter(|(_, c)| *c == class).collect();
            assert!(of_class.iter().all(|(sample, _)| *sample == ns));
            assert!((of_class.len() as f64 / 1e5 - weight).abs() < 0.01);
        }
        let service: Service = text.parse().unwrap();
        assert_eq!(service.classes(), 3);
        assert_eq!(service.class_name(2), "fixed(20us)");
        assert_eq!(service.class_name(0), "unknown");
        assert!((service.mean_ns() - 50_240.0).abs() < 1e-6);
    }

    // promise: measurement.1
    #[test]
    fn mixes_are_known_by_name() {
        for (text, classes, last, mean_us) in [
            ("rocksdb-90-10", 2, "SCAN", 101.0),
            ("rocksdb-50-50", 2, "SCAN", 345.0),
            ("tpcc", 5, "stock-level", 70.2),
            ("echo", 1, "echo", 0.0),
        ] {
            let service: Service = text.parse().unwrap();
            assert_eq!((service.to_string().as_str(), service.classes()), (text, classes));
            assert_eq!(service.class_name(classes as u16), last);
            assert!((service.mean_ns() / 1e3 - mean_us).abs() < 1e-9, "{}", service.mean_ns());
        }
        let tpcc: Service = "tpcc".parse().unwrap();
        assert_eq!(tpcc.class_service(4), "fixed(332.64us)");
        let samples = samples_of("tpcc", 100_000);
        let payments = samples.iter().filter(|sample| **sample == (21_600.0, 1)).count();
        assert!((payments as f64 / 1e5 - 0.44).abs() < 0.01, "{payments}");
    }

    #[test]
    fn refusals_say_what_is_allowed() {
        for (text, part) in [
            ("", "expected one of fixed(T)"),
            ("expo(5us)", "expected one of fixed(T)"),
            ("exp(5)", "unit of time"),
            ("exp(5us", "expected `)`"),
            ("exp(0us)", "above 0"),
            ("exp(5us) x", "unexpected text"),
            ("normal(5us)", "expected `,`"),
            ("normal(5us,0us)", "fixed(T)"),
            ("uniform(5us,4us)", "the second"),
            ("pareto(5us,1)", "above 1"),
            ("lognormal(5us,2us)", "expected `)`"),
            ("mix(0.5*exp(5us), 0.4*exp(6us))", "sum to 1, not 0.9"),
            ("mix(0*exp(5us), 1*exp(6us))", "above 0"),
            ("mix(0.5*mix(1*exp(5us)), 0.5*exp(6us))", "mix inside a mix"),
            ("mix()", "expected a number"),
            ("tpch", "tpcc, echo"),
            ("tpcc(5us)", "unexpected text"),
            ("mix(0.5*tpcc, 0.5*exp(6us))", "expected one of fixed(T)"),
        ] {
            let error = text.parse::<Service>().unwrap_err().to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
    }

    /// Generates texts of valid shapes.
    fn shape_text() -> impl Strategy<Value = String> {
        let time = || (1..100_000_u32).prop_map(|tenths| format!("{}us", f64::from(tenths) / 10.0));
        prop_oneof![
            time().prop_map(|a| format!("fixed({a})")),
            time().prop_map(|a| format!("exp({a})")),
            (time(), time()).prop_map(|(a, b)| format!("normal({a}, {b})")),
            (time(), 1..90_u32).prop_map(|(a, b)| format!("lognormal({a},0.{b})")),
            (time(), 1..90_u32).prop_map(|(a, b)| format!("pareto({a},2.{b})")),
        ]
    }

    proptest! {
        #[test]
        fn display_round_trips(a in shape_text(), b in shape_text(), percent in 1..100_u32) {
            let share = f64::from(percent) / 100.0;
            for text in [a.clone(), format!("mix( {share}*{a},{}*{b} )", 1.0 - share)] {
                let service: Service = text.parse().unwrap();
                prop_assert_eq!(service.to_string().parse::<Service>().unwrap(), service);
            }
        }

        #[test]
        fn any_text_is_read_or_refused(text in "[a-z0-9.,*() ]{0,24}") {
            let _ = text.parse::<Service>();
        }
    }
}
