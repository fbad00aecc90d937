//! Moving window over the last values of a stream, in constant memory: sums over *stretches* (runs of consecutive
//! values), of which old ones are dropped. The learner of service rates uses it for mean service times and for the
//! arrival rate.

/// Maximum number of stretches. A window uses about half of them; the rest is room for a shorter window's stretches.
const STRETCHES: usize = 32;
/// Number of stretches of a full window. A window exceeds its length by less than one stretch: a sixteenth, or more if
/// a single call adds more values.
const WINDOW_STRETCHES: u64 = 16;

/// Sum and number of consecutive values.
#[derive(Clone, Copy, Debug, Default)]
struct Stretch {
    /// Time of the value before the first one, or of the window's creation.
    start_ns: u64,
    /// Number of values.
    count: u64,
    /// Sum of the values.
    sum: u64,
}

impl Stretch {
    /// Adds the values of a later stretch.
    fn join(&mut self, later: Self) {
        self.count += later.count;
        self.sum += later.sum;
    }
}

/// Moving window; see the module's documentation.
#[derive(Clone, Debug)]
pub struct MovingWindow {
    stretches: [Stretch; STRETCHES],
    /// Index of the oldest stretch; newer ones follow cyclically.
    oldest: usize,
    /// Number of stretches in use.
    len: usize,
    /// Sums over all stretches in use; its start is unused.
    total: Stretch,
    /// Time of the last value; without values, of the creation.
    last_ns: u64,
}

impl MovingWindow {
    /// Creates an empty window that starts at `now_ns`.
    pub fn since(now_ns: u64) -> Self {
        let stretches = [Stretch::default(); STRETCHES];
        Self { stretches, oldest: 0, len: 0, total: Stretch::default(), last_ns: now_ns }
    }

    /// Adds `count` values of time `now_ns` with total `sum`, and drops the oldest stretches beyond the last `window`
    /// values. `window` may differ from call to call.
    pub fn add(&mut self, now_ns: u64, count: u64, sum: u64, window: u64) {
        let stretch_len = (window / WINDOW_STRETCHES).max(1); // values in a stretch
        if self.len == 0 || self.newest().count >= stretch_len {
            self.open();
        }
        let value = Stretch { start_ns: 0, count, sum };
        self.newest().join(value);
        self.total.join(value);
        self.last_ns = now_ns;
        // Drops the oldest stretch as long as the remaining ones have at least `window` values.
        while self.len > 1 && self.total.count - self.stretches[self.oldest].count >= window {
            let dropped = self.stretches[self.oldest];
            self.total.count -= dropped.count;
            self.total.sum -= dropped.sum;
            self.oldest = (self.oldest + 1) % STRETCHES;
            self.len -= 1;
        }
    }

    /// Returns the newest stretch.
    fn newest(&mut self) -> &mut Stretch {
        &mut self.stretches[(self.oldest + self.len.max(1) - 1) % STRETCHES]
    }

    /// Begins a new stretch, at the time of the last value.
    fn open(&mut self) {
        if self.len == STRETCHES {
            self.join_pairs();
        }
        self.len += 1;
        *self.newest() = Stretch { start_ns: self.last_ns, ..Stretch::default() };
    }

    /// Makes room after the window grew: merges pairs of stretches, which loses resolution but no values.
    fn join_pairs(&mut self) {
        self.stretches.rotate_left(self.oldest);
        for pair in 0..STRETCHES / 2 {
            let mut joined = self.stretches[2 * pair];
            joined.join(self.stretches[2 * pair + 1]);
            self.stretches[pair] = joined;
        }
        (self.oldest, self.len) = (0, STRETCHES / 2);
    }

    /// Returns the number of values in the window.
    pub fn count(&self) -> u64 {
        self.total.count
    }

    /// Returns their mean, or `None` without values.
    pub fn mean(&self) -> Option<f64> {
        (self.total.count > 0).then(|| self.total.sum as f64 / self.total.count as f64)
    }

    /// Returns the time of the value before the window's first one, or of the window's creation. The window's values
    /// arrived between it and [`Self::last_ns`], which gives their rate.
    pub fn start_ns(&self) -> u64 {
        if self.len == 0 { self.last_ns } else { self.stretches[self.oldest].start_ns }
    }

    /// Returns the time of the last value; without values, of the window's creation.
    pub fn last_ns(&self) -> u64 {
        self.last_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_values_leave() {
        let mut recent = MovingWindow::since(5);
        assert_eq!((recent.mean(), recent.start_ns()), (None, 5));
        for time in 1..=1000 {
            recent.add(10 * time, 1, if time <= 500 { 7 } else { 3 }, 160);
        }
        assert_eq!(recent.mean(), Some(3.0));
        // A window may exceed its length by one stretch, a sixteenth.
        assert!((160..=170).contains(&recent.count()), "{}", recent.count());
        // One value every 10 ns: the window starts at the time of the value before its first one.
        assert_eq!(recent.start_ns(), 10_000 - 10 * recent.count());
        assert_eq!(recent.last_ns(), 10_000);
    }

    #[test]
    fn windows_grow_and_shrink() {
        let mut recent = MovingWindow::since(0);
        for time in 1..=100_000 {
            recent.add(time, 1, time, if time < 100 { 10 } else { 50_000 });
        }
        let count = recent.count();
        assert!((50_000..=53_200).contains(&count), "{count}");
        let mean = recent.mean().unwrap(); // the last `count` numbers up to 100,000
        assert!((mean - (100_000.0 - count as f64 / 2.0)).abs() < 1.0, "{mean}");
        for time in 1..=40 {
            recent.add(100_000 + time, 1, 1, 20);
        }
        assert_eq!(recent.mean(), Some(1.0));
    }

    #[test]
    fn a_window_of_one_is_the_last_value() {
        let mut recent = MovingWindow::since(0);
        for value in [4, 9, 2] {
            recent.add(value, 1, value, 1);
            assert_eq!((recent.count(), recent.mean()), (1, Some(value as f64)));
        }
    }
}
