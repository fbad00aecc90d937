//! Optimizers: stochastic gradient ascent at each beat (learning step), or AdamW once per batch of beats.
//!
//! The learner has three sets of [`Parameters`]: those of the critic, which estimates values, and of two actors
//! (policies). Their gradients come from eligibility traces, decaying sums over past beats. [`Steps`] tells when a
//! batch ends and gives the factors of its [`Step`].

use pulp::Simd;

use crate::vec8::{Vec8, flush_tiny, zeros};

/// Factor on learning rates, by step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Schedule {
    /// Always 1.
    Constant,
    /// Cosine annealing with warm restarts (Loshchilov and Hutter, ICLR 2017). Critic and actors each take a
    /// step of the schedule, as in Malcolm's released program, so it advances twice per batch.
    Cosine {
        /// Factor to which the schedule falls before each restart.
        least: f32,
        /// Factor at the start and after each restart.
        most: f32,
        /// Steps to the first restart.
        period: u32,
        /// Factor by which each period is longer than the one before. 0 counts as 1.
        factor: u32,
    },
}

/// Position in a schedule.
#[derive(Clone, Copy, Debug)]
struct Annealing {
    /// The schedule.
    schedule: Schedule,
    /// Length of the current period in steps.
    period: u32,
    /// Step in the period.
    step: u32,
}

impl Annealing {
    /// Returns the factor of this step, and goes to the next one.
    fn next(&mut self) -> f32 {
        let Schedule::Cosine { least, most, factor, .. } = self.schedule else { return 1.0 };
        let angle = std::f32::consts::PI * self.step as f32 / self.period as f32;
        self.step += 1;
        if self.step >= self.period {
            (self.period, self.step) = (self.period.saturating_mul(factor.max(1)), 0);
        }
        least + 0.5 * (most - least) * (1.0 + angle.cos())
    }
}

/// Constants of AdamW (Loshchilov and Hutter, ICLR 2019).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdamW {
    /// Decay of the mean gradient per step.
    pub beta1: f32,
    /// Decay of the mean squared gradient per step.
    pub beta2: f32,
    /// Term added to the root of the mean squared gradient.
    pub epsilon: f32,
    /// Share of each parameter that a step removes, as a multiple of the learning rate.
    pub weight_decay: f32,
    /// Schedule of the learning rates.
    pub schedule: Schedule,
    /// Beats per step.
    pub batch: u32,
}

impl Default for AdamW {
    /// Returns the constants of Malcolm's released program.
    fn default() -> Self {
        Self {
            beta1: 0.9,
            beta2: 0.999,
            epsilon: 1e-6,
            weight_decay: 1e-4,
            schedule: Schedule::Constant,
            batch: 20,
        }
    }
}

/// Rule by which parameters follow their gradients.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Optimizer {
    /// Gradient ascent at each beat.
    Sgd,
    /// AdamW over the mean gradient of a batch.
    AdamW(AdamW),
}

/// Factors of one AdamW step.
#[derive(Clone, Copy)]
pub struct Step {
    /// Constants of the optimizer.
    constants: AdamW,
    /// Learning rate, with the schedule's factor.
    rate: f32,
    /// Factor on the parameters, for weight decay.
    decay: f32,
    /// Bias corrections of the means of gradient and squared gradient. The means start at 0, and are too small at
    /// first.
    corrections: (f32, f32),
}

/// Counter of beats and AdamW steps, shared by all parameters.
#[derive(Clone, Debug)]
pub struct Steps {
    /// Constants of the optimizer.
    constants: AdamW,
    /// Position in the schedule of learning rates.
    annealing: Annealing,
    /// Number of beats in the current batch.
    beats: u32,
    /// beta1 and beta2 to the power of the number of steps, for bias corrections. They are close to 1 at first, hence
    /// `f64`.
    powers: (f64, f64),
}

impl Steps {
    /// Creates a counter before the first step.
    pub fn new(constants: AdamW) -> Self {
        let schedule = constants.schedule;
        // At least 1, because the phase is divided by it.
        let period = if let Schedule::Cosine { period, .. } = schedule { period.max(1) } else { 1 };
        let annealing = Annealing { schedule, period, step: 0 };
        Self { constants, annealing, beats: 0, powers: (1.0, 1.0) }
    }

    /// Returns the weight of one beat's gradient in the mean of its batch.
    pub fn share(&self) -> f32 {
        1.0 / self.constants.batch.max(1) as f32
    }

    /// Counts a beat. Returns true for the last of a batch, which counts as a step for the bias corrections.
    pub fn is_due(&mut self) -> bool {
        self.beats += 1;
        let is_due = self.beats >= self.constants.batch;
        if is_due {
            self.beats = 0;
            let AdamW { beta1, beta2, .. } = self.constants;
            self.powers.0 *= f64::from(beta1);
            self.powers.1 *= f64::from(beta2);
        }
        is_due
    }

    /// Returns the schedule's factor for this step, and advances the schedule. In each batch the critic takes one
    /// factor, and both actors share one.
    pub fn multiplier(&mut self) -> f32 {
        self.annealing.next()
    }

    /// Returns the factors of a step for parameters with this learning rate. `multiplier` is the schedule's factor.
    pub fn step(&self, rate: f32, multiplier: f32) -> Step {
        let correction = |power: f64| (1.0 / (1.0 - power)) as f32;
        Step {
            constants: self.constants,
            rate: rate * multiplier,
            decay: 1.0 - rate * self.constants.weight_decay * multiplier,
            corrections: (correction(self.powers.0), correction(self.powers.1)),
        }
    }
}

/// Parameters with their traces, gradient and moments.
#[derive(Clone, Debug)]
pub struct Parameters {
    /// Current values.
    pub values: Box<[Vec8]>,
    /// Eligibility traces: decaying sums of the features of past beats, for the actors times their draws.
    pub traces: Box<[Vec8]>,
    /// Gradient of the beats since the last step.
    gradient: Box<[Vec8]>,
    /// Moving mean of the gradient; only for AdamW.
    mean: Box<[Vec8]>,
    /// Moving mean of the squared gradient; only for AdamW.
    square: Box<[Vec8]>,
}

impl Parameters {
    /// Creates `count` parameters, all 0.
    pub fn new(count: usize) -> Self {
        let zeros = || zeros(count);
        Self { values: zeros(), traces: zeros(), gradient: zeros(), mean: zeros(), square: zeros() }
    }

    /// Decays the traces, adds the features, and adds the traces to the gradient, weighted by `error`.
    #[inline(always)]
    pub fn trace<S: Simd>(&mut self, simd: S, decay: f32, features: &[Vec8], error: f32) {
        let (traces, _) = S::as_mut_simd_f32s(self.traces.as_flattened_mut());
        let (gradient, _) = S::as_mut_simd_f32s(self.gradient.as_flattened_mut());
        let (features, _) = S::as_simd_f32s(features.as_flattened());
        let (decay, error) = (simd.splat_f32s(decay), simd.splat_f32s(error));
        for ((trace, gradient), features) in traces.iter_mut().zip(gradient).zip(features) {
            *trace = simd.mul_add_e_f32s(decay, *trace, *features);
            *gradient = simd.mul_add_e_f32s(error, *trace, *gradient);
        }
    }

    /// Returns traces and gradient, to which the actors' `History` adds a batch of beats.
    #[inline(always)]
    pub fn sums(&mut self) -> (&mut [Vec8], &mut [Vec8]) {
        (&mut self.traces, &mut self.gradient)
    }

    /// Takes an AdamW step along the gradient, and clears the gradient.
    #[inline(always)]
    pub fn step(&mut self, step: &Step) {
        let AdamW { beta1, beta2, epsilon, .. } = step.constants;
        let (mean_correction, square_correction) = step.corrections;
        let mean = self.mean.as_flattened_mut();
        let square = &mut self.square.as_flattened_mut()[..mean.len()];
        let gradient = &mut self.gradient.as_flattened_mut()[..mean.len()];
        let values = &mut self.values.as_flattened_mut()[..mean.len()];
        // Equal lengths spare the loop its bounds checks. Means of tiny magnitude become 0: subnormal numbers are slow.
        for index in 0..mean.len() {
            let slope = gradient[index];
            mean[index] = flush_tiny(beta1 * mean[index] + (1.0 - beta1) * slope);
            square[index] = flush_tiny(beta2 * square[index] + (1.0 - beta2) * (slope * slope));
            let direction = mean_correction * mean[index]
                / ((square_correction * square[index]).sqrt() + epsilon);
            values[index] = step.decay * values[index] + step.rate * direction;
            gradient[index] = 0.0;
        }
    }

    /// Replaces traces of tiny magnitude by 0, because arithmetic with subnormal numbers is slow.
    #[inline(always)]
    pub fn flush_traces(&mut self) {
        self.traces.as_flattened_mut().iter_mut().for_each(|trace| *trace = flush_tiny(*trace));
    }

    /// Takes a step of stochastic gradient ascent, for [`Optimizer::Sgd`], and clears the gradient.
    #[inline(always)]
    pub fn follow(&mut self, rate: f32) {
        let values = self.values.as_flattened_mut().iter_mut();
        for (value, gradient) in values.zip(self.gradient.as_flattened_mut()) {
            *value += rate * std::mem::take(gradient);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cosines_fall_and_restart_in_longer_periods() {
        let schedule = Schedule::Cosine { least: 0.0, most: 2.0, period: 2, factor: 2 };
        let mut annealing = Annealing { schedule, period: 2, step: 0 };
        // Periods of 2 and 4 steps, and the start of the third, in thousandths: 1 + cos(angle) at 0 and 90 degrees,
        // and at 0, 45, 90 and 135 degrees.
        let found: Vec<_> = (0..7).map(|_| (annealing.next() * 1000.0).round()).collect();
        assert_eq!(found, [2000.0, 1000.0, 2000.0, 1707.0, 1000.0, 293.0, 2000.0]);
        // All periods of factor 0 have the first length.
        let schedule = Schedule::Cosine { least: 0.0, most: 2.0, period: 2, factor: 0 };
        let mut annealing = Annealing { schedule, period: 2, step: 0 };
        let found: Vec<_> = (0..5).map(|_| (annealing.next() * 1000.0).round()).collect();
        assert_eq!(found, [2000.0, 1000.0, 2000.0, 1000.0, 2000.0]);
        let mut constant = Annealing { schedule: Schedule::Constant, period: 1, step: 0 };
        assert_eq!([constant.next(), constant.next()], [1.0; 2]);
    }

    #[test]
    fn first_adamw_step_follows_the_gradient() {
        let constants = AdamW { batch: 2, weight_decay: 0.0, ..AdamW::default() };
        let mut steps = Steps::new(constants);
        let mut parameters = Parameters::new(9);
        let mut features = zeros(9);
        (features[0][0], features[0][1], features[1][0]) = (1.0, -4.0, 1e-3);
        parameters.trace(pulp::Scalar::new(), 0.6, &features, 0.5 * steps.share());
        // The second of two beats ends the batch.
        assert!(!steps.is_due() && steps.is_due());
        let multiplier = steps.multiplier();
        parameters.step(&steps.step(0.01, multiplier));
        let values = parameters.values.as_flattened();
        // The bias corrections make the first step about as large as the rate, 0.01, for any gradient except 0. Values
        // 0, 1 and 8 have a gradient.
        for (at, expected) in [(0, 0.01), (1, -0.01), (2, 0.0), (8, 0.01)] {
            assert!((values[at] - expected).abs() < 1e-4, "{at}: {}", values[at]);
        }
    }
}
