//! Random draws from a discrete distribution: the node that a policy chooses. The caller sets the probabilities once
//! per beat (learning step), and draws for each fresh task and each search for work.

use crate::vec8::{VEC8_LEN, Vec8, vec8, zeros};

/// Discrete distribution as cumulative sums.
#[derive(Clone, Debug)]
pub struct Choice {
    /// Sum of the probabilities up to each index. Padding is 1, which no draw reaches.
    sums: Box<[Vec8]>,
    /// Largest index with a probability above 0.
    last: usize,
}

impl Choice {
    /// Creates a distribution over `count` indices that always returns index 0 until [`Choice::set`] is
    /// called.
    #[must_use]
    pub fn new(count: usize) -> Self {
        let mut sums = zeros(count);
        sums.fill([1.0; VEC8_LEN]);
        Self { sums, last: 0 }
    }

    /// Sets the probabilities. Expects `count` values, at least one of them above 0.
    pub fn set(&mut self, probabilities: &[f32]) {
        let mut total = 0.0;
        for (index, (sum, probability)) in
            self.sums.as_flattened_mut().iter_mut().zip(probabilities).enumerate()
        {
            total += probability;
            *sum = total;
            if *probability > 0.0 {
                self.last = index;
            }
        }
    }

    /// Returns the index for `uniform`, a random number in [0, 1).
    #[inline]
    #[must_use]
    pub fn draw(&self, uniform: f32) -> usize {
        let mut count = [0_u32; VEC8_LEN];
        for sums in &self.sums {
            // Each comparison gives the integer 1 or 0, stored as the bits of a float, because `vec8` holds floats. The
            // compiler turns the loop into vector instructions.
            let is_below = vec8(|index| f32::from_bits(u32::from(sums[index] <= uniform)));
            for (count, bits) in count.iter_mut().zip(is_below) {
                *count += bits.to_bits();
            }
        }
        // The number of sums up to `uniform` is the index. Rounding may leave the last sum below 1.
        (count.iter().sum::<u32>() as usize).min(self.last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_match_their_probabilities() {
        let mut choice = Choice::new(11);
        assert_eq!(choice.draw(0.999), 0);
        let mut probabilities = [0.0; 11];
        (probabilities[2], probabilities[7], probabilities[9]) = (0.25, 0.5, 0.249_999);
        choice.set(&probabilities);
        // Evenly spaced numbers from 0 to below 1, so that the counts are exact.
        let mut counts = [0; 11];
        for step in 0..4000 {
            counts[choice.draw(step as f32 / 4000.0)] += 1;
        }
        assert_eq!((counts[2], counts[7], counts[9]), (1000, 2000, 1000));
        // The largest f32 below 1 exceeds the probabilities' sum of 0.999_999.
        assert_eq!(choice.draw(0.999_999_94), 9, "the last index gets the rest");
        assert_eq!(choice.draw(0.0), 2);
    }
}
