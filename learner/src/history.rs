//! Beats (learning steps) of one batch, stored until their gradient is needed. Each of a node's two actors (policies)
//! has a [`History`], which the actor fills at each beat. The actor applies it at the end of the optimizer's batch, and
//! earlier when it is full: each part of a longer batch is a batch here.
//!
//! The method is actor-critic with eligibility traces. In a beat the node draws nodes for tasks from an actor's
//! probabilities. Vector d holds, for each node, its fraction of the draws minus its probability, scaled by the caller.
//! Vector s holds the actor's features. The error is the critic's temporal-difference error. A beat decays the traces E
//! and adds the draws: E <- decay E + d s^T. The gradient accumulates the traces: G <- G + error E. After beats 1 to T,
//! which start with the traces E_0 and the gradient G_0, this gives
//!
//! - c_T = error_T, and c_t = error_t + decay c_(t+1).
//! - G = G_0 + decay c_1 E_0 + sum of c_t d_t s_t^T.
//! - E = decay^T E_0 + sum of decay^(T-t) d_t s_t^T.
//!
//! Therefore a beat only stores d and s, and one pass updates both matrices for the whole batch. That takes two
//! multiply-adds per matrix element and beat, instead of five instructions, and reads each matrix once per batch.
//! The matrices are stored transposed: a row per feature, a column per node. Beats without draws add nothing to this
//! pass. A row consists of [`Vec8`]s; the machine's vectors hold one to eight values.

use pulp::Simd;

use crate::vec8::{VEC8_LEN, Vec8, flush_tiny_vector, zeros};

/// Maximum number of stored beats. The optimizer's batch may be longer.
pub const BEATS_MAX: usize = 32;
/// Number of a row's machine vectors that one block holds. Their 2 * `BLOCK` accumulators, for traces and gradient, fit
/// in registers.
const BLOCK: usize = 4;

/// Beats of one actor's batch. Beats without draws have an error only.
#[derive(Clone, Debug)]
pub struct History {
    /// Feature vectors of the beats with draws, one after another.
    features: Box<[f32]>,
    /// Number of features, which is the number of the matrices' rows.
    rows: usize,
    /// Differences d of the beats with draws, one after another.
    differences: Box<[Vec8]>,
    /// Index in the batch of each beat with draws.
    drawn_beats: [u8; BEATS_MAX],
    /// Number of beats with draws.
    drawn_count: usize,
    /// Errors of all beats.
    errors: [f32; BEATS_MAX],
    /// Number of all beats.
    beat_count: usize,
    /// Scratch buffer of [`History::apply`]: differences times their weights in gradient and traces, for a block of
    /// columns. Has room for whole rows, because a block is no wider than a row.
    weighted_differences: Box<[Vec8]>,
}

impl History {
    /// Creates a history for matrices with `rows` rows of `row_vec8s` [`Vec8`]s.
    pub fn new(rows: usize, row_vec8s: usize) -> Self {
        Self {
            features: vec![0.0; rows * BEATS_MAX].into(),
            rows,
            differences: zeros(BEATS_MAX * row_vec8s * VEC8_LEN),
            drawn_beats: [0; BEATS_MAX],
            drawn_count: 0,
            errors: [0.0; BEATS_MAX],
            beat_count: 0,
            weighted_differences: zeros(2 * BEATS_MAX * row_vec8s * VEC8_LEN),
        }
    }

    /// Returns true when the batch has [`BEATS_MAX`] beats. The caller must then apply it before the next beat.
    pub fn is_full(&self) -> bool {
        self.beat_count == BEATS_MAX
    }

    /// Stores a beat with its error. With draws it also stores the features, and returns the buffer for the
    /// differences, to be filled by the caller. Returns `None` without draws. Panics if the history is full, or if
    /// `features` and a column of the matrices differ in length.
    #[inline(always)]
    pub fn store(&mut self, features: &[f32], error: f32, has_draws: bool) -> Option<&mut [Vec8]> {
        self.errors[self.beat_count] = error;
        self.beat_count += 1;
        if !has_draws {
            return None;
        }
        let index = self.drawn_count;
        self.drawn_beats[index] = self.beat_count as u8 - 1;
        self.drawn_count += 1;
        self.features[index * self.rows..][..self.rows].copy_from_slice(features);
        let row_vec8s = self.differences.len() / BEATS_MAX;
        Some(&mut self.differences[index * row_vec8s..][..row_vec8s])
    }

    /// Updates traces and gradient from the batch, then clears it. Goes over the matrices in blocks of columns that fit
    /// in registers.
    #[inline(always)]
    pub fn apply<S: Simd>(
        &mut self,
        simd: S,
        decay: f32,
        traces: &mut [Vec8],
        gradient: &mut [Vec8],
    ) {
        // Weight of each beat's draws in the gradient and in the traces: c_t and decay^(T-t), from the last
        // beat on. `rev` first cuts `errors` to the beats of the batch.
        let mut weights = [(0.0, 0.0); BEATS_MAX];
        let (mut gradient_weight, mut trace_weight) = (0.0, 1.0);
        for (beat_weights, error) in weights[..self.beat_count].iter_mut().zip(&self.errors).rev() {
            gradient_weight = error + decay * gradient_weight;
            *beat_weights = (gradient_weight, trace_weight);
            trace_weight *= decay;
        }
        // Weights of the old traces E_0 in the gradient and in the new traces: decay c_1 and decay^T.
        let old_weights = (simd.splat_f32s(decay * gradient_weight), simd.splat_f32s(trace_weight));
        // A machine vector has at most eight values: pulp's feature x86-v3 excludes vectors of 512 bits.
        let row_vectors = self.differences.len() / BEATS_MAX * (VEC8_LEN / S::F32_LANES);
        let (differences, _) = S::as_simd_f32s(self.differences.as_flattened());
        let (weighted_differences, _) =
            S::as_mut_simd_f32s(self.weighted_differences.as_flattened_mut());
        let (traces, _) = S::as_mut_simd_f32s(traces.as_flattened_mut());
        let (gradient, _) = S::as_mut_simd_f32s(gradient.as_flattened_mut());
        let features = &self.features[..self.drawn_count * self.rows];
        // First column of the block, counted in machine vectors.
        let mut first = 0;
        while first < row_vectors {
            let block = BLOCK.min(row_vectors - first);
            for (index, differences) in
                differences.chunks_exact(row_vectors).take(self.drawn_count).enumerate()
            {
                let (gradient_weight, trace_weight) = weights[usize::from(self.drawn_beats[index])];
                let (gradient_weight, trace_weight) =
                    (simd.splat_f32s(gradient_weight), simd.splat_f32s(trace_weight));
                // For each beat: the block's differences for the gradient, then those for the traces.
                let weighted_differences =
                    &mut weighted_differences[2 * block * index..][..2 * block];
                for (vector, difference) in differences[first..first + block].iter().enumerate() {
                    weighted_differences[vector] = simd.mul_f32s(gradient_weight, *difference);
                    weighted_differences[block + vector] = simd.mul_f32s(trace_weight, *difference);
                }
            }
            let beats = WeightedBeats {
                features,
                rows: self.rows,
                weighted_differences: &weighted_differences[..2 * block * self.drawn_count],
            };
            let matrices = (&mut *traces, &mut *gradient);
            let columns = (first, row_vectors);
            // A narrow block takes several rows at a time, to use more registers. The numbers of accumulators
            // (2 * vectors * rows) are 12, 12, 6 and 8.
            match block {
                1 => beats.update_columns::<1, 6>(simd, old_weights, matrices, columns),
                2 => beats.update_columns::<2, 3>(simd, old_weights, matrices, columns),
                3 => beats.update_columns::<3, 1>(simd, old_weights, matrices, columns),
                _ => beats.update_columns::<BLOCK, 1>(simd, old_weights, matrices, columns),
            }
            first += block;
        }
        (self.beat_count, self.drawn_count) = (0, 0);
    }
}

/// Input of the update of one block of matrix columns: feature vectors of the beats with draws, with their weighted
/// differences in these columns.
struct WeightedBeats<'a, S: Simd> {
    /// Feature vectors of `rows` values, one per beat with draws.
    features: &'a [f32],
    /// Number of features and of the matrix's rows.
    rows: usize,
    /// For each beat with draws, the columns' differences times their weight in the gradient, then in the traces.
    weighted_differences: &'a [S::f32s],
}

impl<S: Simd> WeightedBeats<'_, S> {
    /// Updates `VECTORS` columns of machine vectors in all rows, `ROWS` rows at a time. `old_weights` has the weights
    /// of the old traces in gradient and traces. `columns` has the first column and the number of machine vectors of a
    /// row.
    #[inline(always)]
    fn update_columns<const VECTORS: usize, const ROWS: usize>(
        &self,
        simd: S,
        old_weights: (S::f32s, S::f32s),
        (traces, gradient): (&mut [S::f32s], &mut [S::f32s]),
        columns: (usize, usize),
    ) {
        let mut row = 0;
        while row + ROWS <= self.rows {
            let matrices = (&mut *traces, &mut *gradient);
            self.update_rows::<VECTORS, ROWS>(simd, row, old_weights, matrices, columns);
            row += ROWS;
        }
        while row < self.rows {
            let matrices = (&mut *traces, &mut *gradient);
            self.update_rows::<VECTORS, 1>(simd, row, old_weights, matrices, columns);
            row += 1;
        }
    }

    /// Same as `update_columns`, for `ROWS` rows from `top` on. Uses no closures, nor adapters that take one: they
    /// would be compiled without the machine's vectors.
    #[inline(always)]
    fn update_rows<const VECTORS: usize, const ROWS: usize>(
        &self,
        simd: S,
        top: usize,
        old_weights: (S::f32s, S::f32s),
        (traces, gradient): (&mut [S::f32s], &mut [S::f32s]),
        (first, row_vectors): (usize, usize),
    ) {
        let zero = simd.splat_f32s(0.0);
        let mut new_traces = [[zero; VECTORS]; ROWS];
        let mut new_gradient = [[zero; VECTORS]; ROWS];
        for row in 0..ROWS {
            let start = (top + row) * row_vectors + first;
            let (traces, gradient) = (&traces[start..][..VECTORS], &gradient[start..][..VECTORS]);
            for vector in 0..VECTORS {
                new_gradient[row][vector] =
                    simd.mul_add_e_f32s(old_weights.0, traces[vector], gradient[vector]);
                new_traces[row][vector] = simd.mul_f32s(old_weights.1, traces[vector]);
            }
        }
        let weighted_differences =
            self.weighted_differences.as_chunks::<VECTORS>().0.as_chunks::<2>().0;
        for ([for_gradient, for_traces], features) in
            weighted_differences.iter().zip(self.features.chunks_exact(self.rows))
        {
            let features = &features[top..top + ROWS];
            for row in 0..ROWS {
                let feature = simd.splat_f32s(features[row]);
                for vector in 0..VECTORS {
                    new_gradient[row][vector] = simd.mul_add_e_f32s(
                        feature,
                        for_gradient[vector],
                        new_gradient[row][vector],
                    );
                    new_traces[row][vector] =
                        simd.mul_add_e_f32s(feature, for_traces[vector], new_traces[row][vector]);
                }
            }
        }
        for row in 0..ROWS {
            let start = (top + row) * row_vectors + first;
            let (traces, gradient) =
                (&mut traces[start..][..VECTORS], &mut gradient[start..][..VECTORS]);
            for vector in 0..VECTORS {
                // Traces decay towards 0, where denormal numbers are slow. The gradient does not decay.
                traces[vector] = flush_tiny_vector(simd, new_traces[row][vector]);
                gradient[vector] = new_gradient[row][vector];
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use pulp::{Arch, Scalar, WithSimd};

    use super::*;

    /// [`History::apply`] with its arguments (decay, traces, gradient), compiled for the machine's vectors.
    struct ApplyHistory<'a>(&'a mut History, f32, &'a mut [Vec8], &'a mut [Vec8]);

    impl WithSimd for ApplyHistory<'_> {
        type Output = ();

        #[inline(always)]
        fn with_simd<S: Simd>(self, simd: S) {
            self.0.apply(simd, self.1, self.2, self.3);
        }
    }

    /// Computes traces and gradient beat by beat in `f64`, by the module's formulas. Starts with traces of 0.25
    /// and a gradient of 0.5, and has a decay factor of 0.6, like the test. A beat has features, differences and error.
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
            for ((trace, gradient), (feature, difference)) in
                traces.iter_mut().zip(&mut gradient).zip(products)
            {
                *trace = 0.6 * *trace + f64::from(feature) * f64::from(difference);
                *gradient += f64::from(*error) * *trace;
            }
        }
        (traces, gradient)
    }

    #[test]
    fn batched_beats_equal_single_beats() {
        // Arbitrary values from -0.5 to 0.5.
        let value = |index: usize| ((index * 7919 + 13) % 997) as f32 / 997.0 - 0.5;
        for row_vec8s in 1..=9 {
            for count in [1, 2, 20, BEATS_MAX] {
                let (rows, columns) = (5, row_vec8s * VEC8_LEN);
                let beats: Vec<_> = (0..count)
                    .map(|beat| {
                        // Every third beat has no draws.
                        let draw_factor = if beat % 3 == 1 { 0.0 } else { 1.0 };
                        let features = (0..rows).map(|row| value(beat * 31 + row)).collect();
                        let differences = (0..columns)
                            .map(|index| draw_factor * value(beat * 57 + index))
                            .collect();
                        (features, differences, value(beat))
                    })
                    .collect();
                let (expected_traces, expected_gradient) = by_beats(rows, columns, &beats);
                // With the machine's vectors, and value by value.
                for vectors in [true, false] {
                    let mut history = History::new(rows, row_vec8s);
                    let mut traces = vec![[0.25; VEC8_LEN]; rows * row_vec8s];
                    let mut gradient = vec![[0.5; VEC8_LEN]; rows * row_vec8s];
                    for (beat, (features, differences, error)) in beats.iter().enumerate() {
                        if let Some(stored) = history.store(features, *error, beat % 3 != 1) {
                            stored.as_flattened_mut().copy_from_slice(differences);
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
                    let near = |values: &[Vec8], expected: &[f64]| {
                        values
                            .as_flattened()
                            .iter()
                            .zip(expected)
                            .all(|(a, b)| (f64::from(*a) - b).abs() < 2e-6)
                    };
                    assert!(near(&traces, &expected_traces), "{row_vec8s} Vec8s, {count} beats");
                    assert!(
                        near(&gradient, &expected_gradient),
                        "{row_vec8s} Vec8s, {count} beats"
                    );
                    assert!(!history.is_full());
                }
            }
        }
    }
}
