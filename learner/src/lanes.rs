//! Loops over lanes of eight values, in one order for all machines.
//!
//! They are inlined into functions that [`pulp`] compiles for the machine's vectors, where each loop over eight values is one
//! instruction or two.

use pulp::Simd;

/// Values that are worked on together.
pub const LANES: usize = 8;
/// Eight values.
pub type Lane = [f32; LANES];

/// What has decayed to less than this is taken for nothing: below it numbers are denormal, and slow.
const NOTHING: f32 = 1e-30;

/// Zeros, room for so many values.
pub fn zeros(values: usize) -> Box<[Lane]> {
    vec![[0.0; LANES]; values.div_ceil(LANES)].into()
}

/// Each value by a rule.
#[inline(always)]
pub fn lane(value: impl FnMut(usize) -> f32) -> Lane {
    std::array::from_fn(value)
}

/// The sum of eight values.
#[inline(always)]
pub fn sum(lane: Lane) -> f32 {
    let [a, b, c, d, e, f, g, h] = lane;
    ((a + e) + (b + f)) + ((c + g) + (d + h))
}

/// The inner product of values that are as many, in one order whatever the vectors are.
#[inline(always)]
pub fn dot<S: Simd>(simd: S, a: &[Lane], b: &[Lane]) -> f32 {
    let (a, b) = (a.as_flattened(), b.as_flattened());
    if size_of::<S::f32s>() == size_of::<Lane>() {
        let mut total = simd.splat_f32s(0.0);
        for (a, b) in S::as_simd_f32s(a).0.iter().zip(S::as_simd_f32s(b).0) {
            total = simd.mul_add_e_f32s(*a, *b, total);
        }
        let mut lane = [0.0; LANES];
        simd.partial_store_f32s(&mut lane, total);
        return sum(lane);
    }
    let mut total = [0.0; LANES];
    for (a, b) in a.chunks_exact(LANES).zip(b.chunks_exact(LANES)) {
        for at in 0..LANES {
            total[at] += a[at] * b[at];
        }
    }
    sum(total)
}

/// The product of a matrix with what is seen: a row of the matrix for each of the things seen, and in it a column for each value of
/// the product.
#[inline(always)]
pub fn product<S: Simd>(simd: S, matrix: &[Lane], seen: &[f32], product: &mut [Lane]) {
    let (matrix, _) = S::as_simd_f32s(matrix.as_flattened());
    let (product, _) = S::as_mut_simd_f32s(product.as_flattened_mut());
    // What a row is worth stays in registers where it is of few vectors.
    match product.len() {
        1 => sums_of_rows::<S, 1>(simd, matrix, seen, product),
        2 => sums_of_rows::<S, 2>(simd, matrix, seen, product),
        3 => sums_of_rows::<S, 3>(simd, matrix, seen, product),
        4 => sums_of_rows::<S, 4>(simd, matrix, seen, product),
        5 => sums_of_rows::<S, 5>(simd, matrix, seen, product),
        6 => sums_of_rows::<S, 6>(simd, matrix, seen, product),
        7 => sums_of_rows::<S, 7>(simd, matrix, seen, product),
        8 => sums_of_rows::<S, 8>(simd, matrix, seen, product),
        _ => {
            product.fill(simd.splat_f32s(0.0));
            for (row, seen) in matrix.chunks_exact(product.len()).zip(seen) {
                let seen = simd.splat_f32s(*seen);
                for (sum, value) in product.iter_mut().zip(row) {
                    *sum = simd.mul_add_e_f32s(seen, *value, *sum);
                }
            }
        }
    }
}

#[inline(always)]
fn sums_of_rows<S: Simd, const WIDTH: usize>(
    simd: S,
    matrix: &[S::f32s],
    seen: &[f32],
    product: &mut [S::f32s],
) {
    let mut sums = [simd.splat_f32s(0.0); WIDTH];
    for (row, seen) in matrix.as_chunks::<WIDTH>().0.iter().zip(seen) {
        let seen = simd.splat_f32s(*seen);
        for at in 0..WIDTH {
            sums[at] = simd.mul_add_e_f32s(seen, row[at], sums[at]);
        }
    }
    product.copy_from_slice(&sums);
}

/// Traces of a matrix, and its gradient, a row for each of the things seen.
pub struct Rows<'a> {
    pub traces: &'a mut [Lane],
    pub gradient: &'a mut [Lane],
}

/// Decays traces, adds what is seen times the value of each column, and adds the traces times the error to the gradient.
#[inline(always)]
pub fn trace<S: Simd>(
    simd: S,
    rows: Rows<'_>,
    seen: &[f32],
    columns: &[Lane],
    (decay, error): (f32, f32),
) {
    let (traces, _) = S::as_mut_simd_f32s(rows.traces.as_flattened_mut());
    let (gradient, _) = S::as_mut_simd_f32s(rows.gradient.as_flattened_mut());
    let (columns, _) = S::as_simd_f32s(columns.as_flattened());
    let (rows, by) = ((traces, gradient), (simd.splat_f32s(decay), simd.splat_f32s(error)));
    match columns.len() {
        1 => trace_rows::<S, 1>(simd, rows, seen, columns, by),
        2 => trace_rows::<S, 2>(simd, rows, seen, columns, by),
        3 => trace_rows::<S, 3>(simd, rows, seen, columns, by),
        4 => trace_rows::<S, 4>(simd, rows, seen, columns, by),
        5 => trace_rows::<S, 5>(simd, rows, seen, columns, by),
        6 => trace_rows::<S, 6>(simd, rows, seen, columns, by),
        7 => trace_rows::<S, 7>(simd, rows, seen, columns, by),
        8 => trace_rows::<S, 8>(simd, rows, seen, columns, by),
        width => {
            let traces = rows.0.chunks_exact_mut(width).zip(rows.1.chunks_exact_mut(width));
            for ((traces, gradient), seen) in traces.zip(seen) {
                let seen = simd.splat_f32s(*seen);
                for ((trace, gradient), column) in traces.iter_mut().zip(gradient).zip(columns) {
                    (*trace, *gradient) = traced(simd, (*trace, *gradient), seen, *column, by);
                }
            }
        }
    }
}

#[inline(always)]
fn trace_rows<S: Simd, const WIDTH: usize>(
    simd: S,
    (traces, gradient): (&mut [S::f32s], &mut [S::f32s]),
    seen: &[f32],
    columns: &[S::f32s],
    by: (S::f32s, S::f32s),
) {
    let Some(&columns) = columns.first_chunk::<WIDTH>() else { return };
    let gradient = gradient.as_chunks_mut::<WIDTH>().0.iter_mut();
    let rows = traces.as_chunks_mut::<WIDTH>().0.iter_mut().zip(gradient);
    for ((traces, gradient), seen) in rows.zip(seen) {
        let seen = simd.splat_f32s(*seen);
        for at in 0..WIDTH {
            let before = (traces[at], gradient[at]);
            (traces[at], gradient[at]) = traced(simd, before, seen, columns[at], by);
        }
    }
}

#[inline(always)]
fn traced<S: Simd>(
    simd: S,
    (trace, gradient): (S::f32s, S::f32s),
    seen: S::f32s,
    column: S::f32s,
    (decay, error): (S::f32s, S::f32s),
) -> (S::f32s, S::f32s) {
    let trace = simd.mul_add_e_f32s(column, seen, simd.mul_f32s(decay, trace));
    (trace, simd.mul_add_e_f32s(error, trace, gradient))
}

/// Values times a factor, whole lanes as far as there are any.
#[inline(always)]
pub fn scale<S: Simd>(simd: S, to: &mut [f32], by: f32, from: &[f32]) {
    let by = simd.splat_f32s(by);
    for (to, from) in to.as_chunks_mut::<LANES>().0.iter_mut().zip(from.as_chunks::<LANES>().0) {
        let (to, from) = (S::as_mut_simd_f32s(to).0, S::as_simd_f32s(from).0);
        for (to, from) in to.iter_mut().zip(from) {
            *to = simd.mul_f32s(by, *from);
        }
    }
}

/// Values of which almost nothing is left become 0.
#[inline(always)]
pub fn flush(values: &mut [Lane]) {
    for value in values.as_flattened_mut() {
        *value = if value.abs() < NOTHING { 0.0 } else { *value };
    }
}

/// The exponential of values from -87 to 0, to two units in the last place.
#[inline(always)]
pub fn exp(of: Lane) -> Lane {
    /// Adding and taking off this rounds to a whole number, which is in the low bits meanwhile.
    const ROUND: f32 = 12_582_912.0;
    /// ln 2, as what few bits hold and the rest: products with whole numbers are exact.
    const LN_2: (f32, f32) = (0.693_359_4, -2.121_944_4e-4);
    let mut result = of;
    for value in &mut result {
        let of = if *value > -87.0 { *value } else { -87.0 };
        let rounded = of * std::f32::consts::LOG2_E + ROUND;
        let power = rounded - ROUND;
        let rest = (of - power * LN_2.0) - power * LN_2.1;
        // The Taylor series' terms, adjusted for the least error over half a power of two each way (Cephes, expf).
        let mut series = 1.987_569_1e-4;
        for term in [1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_6e-1, 0.5] {
            series = series * rest + term;
        }
        let mantissa = series * rest * rest + rest + 1.0;
        let exponent = rounded.to_bits().wrapping_sub(ROUND.to_bits()) << 23;
        *value = f32::from_bits(mantissa.to_bits().wrapping_add(exponent));
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exponentials_are_right_to_a_ten_millionth() {
        for step in 0..=8700 {
            let of = -(step as f32) / 100.0;
            let (found, wanted) = (exp([of; LANES])[3], f64::from(of).exp());
            assert!((f64::from(found) / wanted - 1.0).abs() < 3e-7, "{of}: {found} {wanted}");
        }
        assert_eq!(exp([0.0; LANES]), [1.0; LANES]);
        assert!(exp([f32::NEG_INFINITY; LANES])[0] < 1e-37);
    }

    #[test]
    fn sums_and_products_take_all_values() {
        let a: Vec<Lane> = (0..3).map(|row| lane(|at| (row * LANES + at) as f32)).collect();
        let ones = vec![[1.0; LANES]; 3];
        assert_eq!(dot(pulp::Scalar::new(), &a, &ones), (0..24).sum::<usize>() as f32);
        let mut to = a.clone();
        to[1][2] = 1e-31;
        flush(&mut to);
        assert_eq!((to[1][2], to[1][3]), (0.0, 11.0));
    }
}
