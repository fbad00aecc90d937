//! Arithmetic over vectors of eight values ([`Vec8`]), with the same order of operations on all machines. The learner
//! uses it at each beat (learning step).
//!
//! The functions are inlined into functions that [`pulp`] compiles for the machine's vectors. There a loop
//! over eight values becomes one or two instructions.

use pulp::Simd;

/// Values per [`Vec8`].
pub const VEC8_LEN: usize = 8;
/// Eight values. The machine's vectors may be shorter, but not longer: `pulp` is built with AVX2 as its widest set.
pub type Vec8 = [f32; VEC8_LEN];

/// Smallest magnitude that is kept. Smaller values become 0, because denormal numbers are slow.
const TINY: f32 = 1e-30;

/// Allocates as many zeroed vectors as `values` single values need.
pub fn zeros(values: usize) -> Box<[Vec8]> {
    vec![[0.0; VEC8_LEN]; values.div_ceil(VEC8_LEN)].into()
}

/// Builds a vector from a function of the index.
#[inline(always)]
pub fn vec8(value: impl FnMut(usize) -> f32) -> Vec8 {
    std::array::from_fn(value)
}

/// Sums eight values: adds the halves of the vector, then neighbours, in the same order on all machines.
#[inline(always)]
pub fn sum(values: Vec8) -> f32 {
    let [a, b, c, d, e, f, g, h] = values;
    ((a + e) + (b + f)) + ((c + g) + (d + h))
}

/// Computes the inner products of `a` with `b` and with `c`, of equal length. Machine vectors of eight values load `a`
/// only once. The order of additions does not depend on the vector width.
#[inline(always)]
pub fn dots<S: Simd>(simd: S, a: &[Vec8], [b, c]: [&[Vec8]; 2]) -> [f32; 2] {
    let (a, b, c) = (a.as_flattened(), b.as_flattened(), c.as_flattened());
    // Eight running sums per product: in one machine vector of eight values, or else in an array. Both add in the same
    // order. A fused multiply-add does not round the product, so the last bits may differ.
    if size_of::<S::f32s>() == size_of::<Vec8>() {
        let mut totals = [simd.splat_f32s(0.0); 2];
        let (b, c) = (S::as_simd_f32s(b).0, S::as_simd_f32s(c).0);
        for (a, (b, c)) in S::as_simd_f32s(a).0.iter().zip(b.iter().zip(c)) {
            totals[0] = simd.mul_add_e_f32s(*a, *b, totals[0]);
            totals[1] = simd.mul_add_e_f32s(*a, *c, totals[1]);
        }
        let mut stored = [[0.0; VEC8_LEN]; 2];
        simd.partial_store_f32s(&mut stored[0], totals[0]);
        simd.partial_store_f32s(&mut stored[1], totals[1]);
        return [sum(stored[0]), sum(stored[1])];
    }
    let mut totals = [[0.0; VEC8_LEN]; 2];
    for (total, b) in totals.iter_mut().zip([b, c]) {
        for (a, b) in a.chunks_exact(VEC8_LEN).zip(b.chunks_exact(VEC8_LEN)) {
            for index in 0..VEC8_LEN {
                total[index] += a[index] * b[index];
            }
        }
    }
    [sum(totals[0]), sum(totals[1])]
}

/// Multiplies a matrix by a feature vector: one row per feature, one column per value of the product.
#[inline(always)]
pub fn product<S: Simd>(simd: S, matrix: &[Vec8], features: &[f32], product: &mut [Vec8]) {
    let (matrix, _) = S::as_simd_f32s(matrix.as_flattened());
    let (product, _) = S::as_mut_simd_f32s(product.as_flattened_mut());
    // The accumulators of narrow rows stay in registers. Eight machine vectors hold 64 nodes where a vector has eight
    // values. Machines with shorter vectors may have wider rows, and add them up in memory.
    match product.len() {
        1 => sums_of_rows::<S, 1>(simd, matrix, features, product),
        2 => sums_of_rows::<S, 2>(simd, matrix, features, product),
        3 => sums_of_rows::<S, 3>(simd, matrix, features, product),
        4 => sums_of_rows::<S, 4>(simd, matrix, features, product),
        5 => sums_of_rows::<S, 5>(simd, matrix, features, product),
        6 => sums_of_rows::<S, 6>(simd, matrix, features, product),
        7 => sums_of_rows::<S, 7>(simd, matrix, features, product),
        8 => sums_of_rows::<S, 8>(simd, matrix, features, product),
        _ => {
            product.fill(simd.splat_f32s(0.0));
            for (row, feature) in matrix.chunks_exact(product.len()).zip(features) {
                let feature = simd.splat_f32s(*feature);
                for (sum, value) in product.iter_mut().zip(row) {
                    *sum = simd.mul_add_e_f32s(feature, *value, *sum);
                }
            }
        }
    }
}

/// Same as `product`, for rows of `WIDTH` vectors, so that the sums stay in registers. Processes four rows at a time,
/// to spare branches.
#[inline(always)]
fn sums_of_rows<S: Simd, const WIDTH: usize>(
    simd: S,
    matrix: &[S::f32s],
    features: &[f32],
    product: &mut [S::f32s],
) {
    let mut sums = [simd.splat_f32s(0.0); WIDTH];
    let (rows, last_rows) = matrix.as_chunks::<WIDTH>().0.as_chunks::<4>();
    let (features, last_features) = features.as_chunks::<4>();
    for (rows, features) in rows.iter().zip(features) {
        for row in 0..4 {
            let feature = simd.splat_f32s(features[row]);
            for vector in 0..WIDTH {
                sums[vector] = simd.mul_add_e_f32s(feature, rows[row][vector], sums[vector]);
            }
        }
    }
    for (row, feature) in last_rows.iter().zip(last_features) {
        let feature = simd.splat_f32s(*feature);
        for vector in 0..WIDTH {
            sums[vector] = simd.mul_add_e_f32s(feature, row[vector], sums[vector]);
        }
    }
    product.copy_from_slice(&sums);
}

/// Writes the products of `a` and `b`, element by element, for as many vectors as `product` has. `b` may begin inside a
/// vector, so that a caller can multiply shifted values.
#[inline(always)]
pub fn multiply<S: Simd>(simd: S, product: &mut [Vec8], a: &[Vec8], b: &[f32]) {
    let (product, a) = (product.as_flattened_mut(), a.as_flattened());
    let len = product.len();
    let (product, a, b) = (
        S::as_mut_simd_f32s(product).0,
        S::as_simd_f32s(&a[..len]).0,
        S::as_simd_f32s(&b[..len]).0,
    );
    for ((product, a), b) in product.iter_mut().zip(a).zip(b) {
        *product = simd.mul_f32s(*a, *b);
    }
}

/// Replaces values of tiny magnitude by 0.
#[inline(always)]
pub fn flush_tiny_vector<S: Simd>(simd: S, values: S::f32s) -> S::f32s {
    let is_tiny = simd.less_than_f32s(simd.abs_f32s(values), simd.splat_f32s(TINY));
    simd.select_f32s_m32s(is_tiny, simd.splat_f32s(0.0), values)
}

/// Returns the value, or 0 if its magnitude is tiny.
#[inline(always)]
pub fn flush_tiny(value: f32) -> f32 {
    if value.abs() < TINY { 0.0 } else { value }
}

/// Computes the exponential of values up to 0, with a relative error below 3e-7. Smaller values than -87 count as -87:
/// a little further down the exponentials are subnormal. The softmax needs no values above 0.
#[inline(always)]
pub fn exp<S: Simd>(simd: S, values: S::f32s) -> S::f32s {
    /// 1.5 * 2^23. Adding and subtracting it rounds to an integer, which the low bits hold in between.
    const ROUND: f32 = 12_582_912.0;
    /// ln 2, split so that products of the first part with integers are exact.
    const LN_2: (f32, f32) = (0.693_359_4, -2.121_944_4e-4);
    let splat = |value| simd.splat_f32s(value);
    // exp(x) = 2^power * exp(rest), with an integer power and a rest of at most half of ln 2.
    let values = simd.max_f32s(values, splat(-87.0));
    let rounded = simd.mul_add_e_f32s(values, splat(std::f32::consts::LOG2_E), splat(ROUND));
    let power = simd.sub_f32s(rounded, splat(ROUND));
    let rest = simd.mul_add_e_f32s(power, splat(-LN_2.0), values);
    let rest = simd.mul_add_e_f32s(power, splat(-LN_2.1), rest);
    // Polynomial with the least error over half a power of two each way (Cephes, expf).
    let mut series = splat(1.987_569_1e-4);
    for term in [1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_6e-1, 0.5] {
        series = simd.mul_add_e_f32s(series, rest, splat(term));
    }
    let mantissa =
        simd.mul_add_e_f32s(simd.mul_f32s(series, rest), rest, simd.add_f32s(rest, splat(1.0)));
    // Adds the power to the exponent bits of the float, which begin at bit 23.
    let whole = simd.sub_u32s(simd.transmute_u32s_f32s(rounded), simd.splat_u32s(ROUND.to_bits()));
    let exponent = simd.wrapping_dyn_shl_u32s(whole, simd.splat_u32s(23));
    simd.transmute_f32s_u32s(simd.add_u32s(simd.transmute_u32s_f32s(mantissa), exponent))
}

/// Converts small integers to floating point, because [`Simd`] has no conversion. Only the low 23 bits count. Puts them
/// into the mantissa of 2^23, and subtracts 2^23.
#[inline(always)]
pub fn floats<S: Simd>(simd: S, values: S::u32s) -> S::f32s {
    /// From 2^23 on, the last bit of a float counts 1.
    const BASE: f32 = 8_388_608.0;
    let values = simd.and_u32s(values, simd.splat_u32s(0x007F_FFFF));
    let bits = simd.or_u32s(values, simd.splat_u32s(BASE.to_bits()));
    simd.sub_f32s(simd.transmute_f32s_u32s(bits), simd.splat_f32s(BASE))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exponentials_are_right_to_three_ten_millionths() {
        let exp = |value| exp(pulp::Scalar::new(), value);
        for step in 0..=8700 {
            let value = -(step as f32) / 100.0;
            let (found, wanted) = (exp(value), f64::from(value).exp());
            assert!((f64::from(found) / wanted - 1.0).abs() < 3e-7, "{value}: {found} {wanted}");
        }
        assert_eq!(exp(0.0), 1.0);
        assert!(exp(f32::NEG_INFINITY) < 1e-37);
        // 8_388_607 is the largest integer that `floats` converts, 2^23 - 1.
        let whole = [0, 1, 2, 77, 8_388_607].map(|integer| floats(pulp::Scalar::new(), integer));
        assert_eq!(whole, [0.0, 1.0, 2.0, 77.0, 8_388_607.0]);
    }

    #[test]
    fn sums_and_products_take_all_values() {
        // The values 0 to 23.
        let a: Vec<Vec8> =
            (0..3).map(|row| vec8(|index| (row * VEC8_LEN + index) as f32)).collect();
        let ones = vec![[1.0; VEC8_LEN]; 3];
        let sums = dots(pulp::Scalar::new(), &a, [&ones, &[[2.0; VEC8_LEN]; 3]]);
        assert_eq!(sums, [1.0, 2.0].map(|factor| factor * (0..24).sum::<usize>() as f32));
        // Writes two of three vectors: a[1] and a[2], times 1.
        let mut product = a.clone();
        multiply(pulp::Scalar::new(), &mut product[..2], &a[1..], ones.as_flattened());
        assert_eq!((product[0], product[2]), (a[1], a[2]));
        assert_eq!([1e-31, -1e-31, 11.0].map(flush_tiny), [0.0, 0.0, 11.0]);
        assert_eq!(flush_tiny_vector(pulp::Scalar::new(), -1e-31), 0.0);
    }
}
