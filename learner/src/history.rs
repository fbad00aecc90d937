//! Beats (learning steps) of one batch, stored until their gradient is needed.
//!
//! Each beat decays an actor's eligibility traces E and adds the draws: E <- decay E + d s^T. Here s is the
//! actor's feature vector, and d holds the difference between actual and expected draws of each node. The
//! gradient accumulates the traces: G <- G + error E. After beats 1 to T this gives
//!
//! G = G_0 + decay c_1 E_0 + sum of c_t d_t s_t^T, with c_T = error_T and c_t = error_t + decay c_t+1, and
//! E = decay^T E_0 + sum of decay^(T-t) d_t s_t^T.
//!
//! Therefore a beat only stores d and s, and one pass updates both matrices for the whole batch. That takes two
//! multiply-adds per matrix element and beat, instead of five instructions, and reads each matrix once per batch.
//! The matrices are stored transposed: a row per feature, a column per node. Beats without draws cost nothing. A lane
//! is a vector of eight values.

use pulp::Simd;

use crate::lanes::{LANES, Lane, flushed, zeros};

/// Maximum number of stored beats.
pub const BEATS_MAX: usize = 32;
/// Vectors of a row that are processed together, for gradient and traces each. They fit in registers.
const BLOCK: usize = 4;

/// Stored beats of one actor.
#[derive(Clone, Debug)]
pub struct History {
    /// Feature vectors, beat by beat.
    features: Box<[f32]>,
    /// Number of features.
    rows: usize,
    /// Actual minus expected draws of each node, beat by beat.
    differences: Box<[Lane]>,
    /// Beat number of each stored entry.
    beat: [u8; BEATS_MAX],
    /// Number of stored entries: beats with draws.
    stored: usize,
    /// Errors of all beats.
    errors: [f32; BEATS_MAX],
    /// Number of beats.
    beats: usize,
    /// Differences times their weights in gradient and traces, for a block of columns.
    weighted_draws: Box<[Lane]>,
}

impl History {
    /// Creates a history for matrices with `rows` rows of `width` lanes.
    pub fn new(rows: usize, width: usize) -> Self {
        Self {
            features: vec![0.0; rows * BEATS_MAX].into(),
            rows,
            differences: zeros(BEATS_MAX * width * LANES),
            beat: [0; BEATS_MAX],
            stored: 0,
            errors: [0.0; BEATS_MAX],
            beats: 0,
            weighted_draws: zeros(2 * BEATS_MAX * width * LANES),
        }
    }

    /// Returns true when no more beats can be stored.
    pub fn is_full(&self) -> bool {
        self.beats == BEATS_MAX
    }

    /// Stores a beat with its error. If anything was drawn, also stores the features and returns the buffer
    /// for the draw differences; else returns `None`.
    #[inline(always)]
    pub fn store(&mut self, features: &[f32], error: f32, has_draws: bool) -> Option<&mut [Lane]> {
        self.errors[self.beats] = error;
        self.beats += 1;
        if !has_draws {
            return None;
        }
        let index = self.stored;
        self.beat[index] = self.beats as u8 - 1;
        self.stored += 1;
        self.features[index * self.rows..][..self.rows].copy_from_slice(features);
        let width = self.differences.len() / BEATS_MAX;
        Some(&mut self.differences[index * width..][..width])
    }

    /// Updates traces and gradient from the stored beats, then clears the beats. Goes over the matrices in
    /// blocks of columns that fit in registers.
    #[inline(always)]
    pub fn apply<S: Simd>(
        &mut self,
        simd: S,
        decay: f32,
        traces: &mut [Lane],
        gradient: &mut [Lane],
    ) {
        // Weight of each beat's draws in the gradient and in the traces: c_t and decay^(T-t), from the last
        // beat on.
        let mut weights = [(0.0, 0.0); BEATS_MAX];
        let (mut gradient_weight, mut trace_weight) = (0.0, 1.0);
        for (beat_weights, error) in weights[..self.beats].iter_mut().zip(&self.errors).rev() {
            gradient_weight = error + decay * gradient_weight;
            *beat_weights = (gradient_weight, trace_weight);
            trace_weight *= decay;
        }
        // Weights of the old traces E_0 in the gradient and in the new traces.
        let before = (simd.splat_f32s(decay * gradient_weight), simd.splat_f32s(trace_weight));
        let width = self.differences.len() / BEATS_MAX * (LANES / S::F32_LANES);
        let (differences, _) = S::as_simd_f32s(self.differences.as_flattened());
        let (weighted_draws, _) = S::as_mut_simd_f32s(self.weighted_draws.as_flattened_mut());
        let (traces, _) = S::as_mut_simd_f32s(traces.as_flattened_mut());
        let (gradient, _) = S::as_mut_simd_f32s(gradient.as_flattened_mut());
        let features = &self.features[..self.stored * self.rows];
        let mut first = 0;
        while first < width {
            let block = BLOCK.min(width - first);
            for (index, differences) in
                differences.chunks_exact(width).take(self.stored).enumerate()
            {
                let (gradient_weight, trace_weight) = weights[usize::from(self.beat[index])];
                let (gradient_weight, trace_weight) =
                    (simd.splat_f32s(gradient_weight), simd.splat_f32s(trace_weight));
                let weighted_draws = &mut weighted_draws[2 * block * index..][..2 * block];
                for (vector, difference) in differences[first..first + block].iter().enumerate() {
                    weighted_draws[vector] = simd.mul_f32s(gradient_weight, *difference);
                    weighted_draws[block + vector] = simd.mul_f32s(trace_weight, *difference);
                }
            }
            let beats = Beats {
                features,
                rows: self.rows,
                weighted_draws: &weighted_draws[..2 * block * self.stored],
            };
            let matrices = (&mut *traces, &mut *gradient);
            // Narrow blocks take several rows at a time, to keep as many registers in use.
            match block {
                1 => beats.update_columns::<1, 6>(simd, before, matrices, (first, width)),
                2 => beats.update_columns::<2, 3>(simd, before, matrices, (first, width)),
                3 => beats.update_columns::<3, 1>(simd, before, matrices, (first, width)),
                _ => beats.update_columns::<BLOCK, 1>(simd, before, matrices, (first, width)),
            }
            first += block;
        }
        (self.beats, self.stored) = (0, 0);
    }
}

/// Feature vectors of the stored beats, with the weighted draw differences of a few matrix columns.
struct Beats<'a, S: Simd> {
    /// Features, one value per row for each beat.
    features: &'a [f32],
    /// Number of features, which is that of the matrix's rows.
    rows: usize,
    /// For each beat, the columns' draw differences times their weight in the gradient, then in the traces.
    weighted_draws: &'a [S::f32s],
}

impl<S: Simd> Beats<'_, S> {
    /// Updates `VECTORS` columns of vectors from `first` on in all rows, `ROWS` rows at a time. A row has
    /// `width` vectors; `before` holds the weights of the old traces.
    #[inline(always)]
    fn update_columns<const VECTORS: usize, const ROWS: usize>(
        &self,
        simd: S,
        before: (S::f32s, S::f32s),
        (traces, gradient): (&mut [S::f32s], &mut [S::f32s]),
        (first, width): (usize, usize),
    ) {
        let mut row = 0;
        while row + ROWS <= self.rows {
            let matrices = (&mut *traces, &mut *gradient);
            self.group::<VECTORS, ROWS>(simd, row, before, matrices, (first, width));
            row += ROWS;
        }
        while row < self.rows {
            let matrices = (&mut *traces, &mut *gradient);
            self.group::<VECTORS, 1>(simd, row, before, matrices, (first, width));
            row += 1;
        }
    }

    /// Updates some columns of `ROWS` rows from `top` on. Loops use indices, because closures (also those of
    /// iterators) would be compiled without the machine's vectors.
    #[inline(always)]
    fn group<const VECTORS: usize, const ROWS: usize>(
        &self,
        simd: S,
        top: usize,
        before: (S::f32s, S::f32s),
        (traces, gradient): (&mut [S::f32s], &mut [S::f32s]),
        (first, width): (usize, usize),
    ) {
        let zero = simd.splat_f32s(0.0);
        let (mut trace, mut slope) = ([[zero; VECTORS]; ROWS], [[zero; VECTORS]; ROWS]);
        for row in 0..ROWS {
            let at = (top + row) * width + first;
            let (traces, gradient) = (&traces[at..][..VECTORS], &gradient[at..][..VECTORS]);
            for at in 0..VECTORS {
                slope[row][at] = simd.mul_add_e_f32s(before.0, traces[at], gradient[at]);
                trace[row][at] = simd.mul_f32s(before.1, traces[at]);
            }
        }
        let weighted_draws = self.weighted_draws.as_chunks::<VECTORS>().0.as_chunks::<2>().0;
        for ([for_gradient, for_traces], features) in
            weighted_draws.iter().zip(self.features.chunks_exact(self.rows))
        {
            let features = &features[top..top + ROWS];
            for row in 0..ROWS {
                let feature = simd.splat_f32s(features[row]);
                for at in 0..VECTORS {
                    slope[row][at] = simd.mul_add_e_f32s(feature, for_gradient[at], slope[row][at]);
                    trace[row][at] = simd.mul_add_e_f32s(feature, for_traces[at], trace[row][at]);
                }
            }
        }
        for row in 0..ROWS {
            let at = (top + row) * width + first;
            let (traces, gradient) = (&mut traces[at..][..VECTORS], &mut gradient[at..][..VECTORS]);
            for at in 0..VECTORS {
                traces[at] = flushed(simd, trace[row][at]);
                gradient[at] = slope[row][at];
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use pulp::{Arch, Scalar, WithSimd};

    use super::*;

    /// [`History::apply`] with its arguments (decay, traces, gradient), compiled for the machine's vectors.
    struct ApplyHistory<'a>(&'a mut History, f32, &'a mut [Lane], &'a mut [Lane]);

    impl WithSimd for ApplyHistory<'_> {
        type Output = ();

        #[inline(always)]
        fn with_simd<S: Simd>(self, simd: S) {
            self.0.apply(simd, self.1, self.2, self.3);
        }
    }

    /// Computes traces and gradient beat by beat in `f64`, by the module's formulas. Begins with traces of 0.25
    /// and a gradient of 0.5, and decays by 0.6, as the test does. A beat has features, differences and error.
    fn by_beats(
        rows: usize,
        columns: usize,
        beats: &[(Vec<f32>, Vec<f32>, f32)],
    ) -> (Vec<f64>, Vec<f64>) {
        let (mut traces, mut gradient) = (vec![0.25; rows * columns], vec![0.5; rows * columns]);
        for (features, differences, error) in beats {
            let products = features.iter().flat_map(|feature| {
                differences.iter().map(move |difference| (*feature, *difference))
            });
            for ((trace, slope), (feature, difference)) in
                traces.iter_mut().zip(&mut gradient).zip(products)
            {
                *trace = 0.6 * *trace + f64::from(feature) * f64::from(difference);
                *slope += f64::from(*error) * *trace;
            }
        }
        (traces, gradient)
    }

    #[test]
    fn batched_beats_equal_single_beats() {
        // Arbitrary values from -0.5 to 0.5.
        let value = |at: usize| ((at * 7919 + 13) % 997) as f32 / 997.0 - 0.5;
        for width in 1..=9 {
            for count in [1, 2, 20, BEATS_MAX] {
                let (rows, columns) = (5, width * LANES);
                let beats: Vec<_> = (0..count)
                    .map(|beat| {
                        // Every third beat has no draws.
                        let draw_factor = if beat % 3 == 1 { 0.0 } else { 1.0 };
                        let features = (0..rows).map(|row| value(beat * 31 + row)).collect();
                        let differences =
                            (0..columns).map(|at| draw_factor * value(beat * 57 + at)).collect();
                        (features, differences, value(beat))
                    })
                    .collect();
                let (expected_traces, expected_gradient) = by_beats(rows, columns, &beats);
                for vectors in [true, false] {
                    let mut history = History::new(rows, width);
                    let mut traces = vec![[0.25; LANES]; rows * width];
                    let mut gradient = vec![[0.5; LANES]; rows * width];
                    for (beat, (features, differences, error)) in beats.iter().enumerate() {
                        if let Some(to) = history.store(features, *error, beat % 3 != 1) {
                            to.as_flattened_mut().copy_from_slice(differences);
                        }
                    }
                    assert_eq!(history.is_full(), count == BEATS_MAX);
                    match vectors {
                        true => Arch::new().dispatch(ApplyHistory(
                            &mut history,
                            0.6,
                            &mut traces,
                            &mut gradient,
                        )),
                        false => {
                            history.apply(Scalar::new(), 0.6, &mut traces, &mut gradient);
                        }
                    }
                    let near = |values: &[Lane], expected: &[f64]| {
                        values
                            .as_flattened()
                            .iter()
                            .zip(expected)
                            .all(|(a, b)| (f64::from(*a) - b).abs() < 2e-6)
                    };
                    assert!(near(&traces, &expected_traces), "{width} lanes, {count} beats");
                    assert!(near(&gradient, &expected_gradient), "{width} lanes, {count} beats");
                    assert!(!history.is_full());
                }
            }
        }
    }
}
