//! Queues of tasks, linked through one array: no allocation for a task, however many queues there are.

/// No task.
pub const NONE: u32 = u32::MAX;

/// Tasks in order of arrival. A task is in one queue at a time.
#[derive(Clone, Copy, Debug)]
pub struct Fifo {
    head: u32,
    tail: u32,
    len: u32,
}

impl Fifo {
    /// No tasks.
    pub const EMPTY: Self = Self { head: NONE, tail: NONE, len: 0 };

    /// How many there are.
    #[inline]
    #[must_use]
    pub fn len(&self) -> u32 {
        self.len
    }

    /// There are none.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The first; [`NONE`] or anything when there is none.
    #[inline]
    #[must_use]
    pub fn head(&self) -> u32 {
        self.head
    }

    /// Puts a task last.
    #[inline]
    pub fn push(&mut self, task: u32, links: &mut [u32]) {
        links[task as usize] = NONE;
        match self.len {
            0 => self.head = task,
            _ => links[self.tail as usize] = task,
        }
        self.tail = task;
        self.len += 1;
    }

    /// Takes the first.
    #[inline]
    pub fn pop(&mut self, links: &[u32]) -> Option<u32> {
        self.len = self.len.checked_sub(1)?;
        let task = self.head;
        self.head = links[task as usize];
        Some(task)
    }
}

/// Tasks under way, each with a number that is used again when it is over.
#[derive(Clone, Debug)]
pub struct Slab<T> {
    tasks: Vec<T>,
    /// The task behind each one in its queue.
    pub links: Vec<u32>,
    free: Vec<u32>,
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Self { tasks: Vec::new(), links: Vec::new(), free: Vec::new() }
    }
}

impl<T> Slab<T> {
    /// Adds a task.
    #[inline]
    pub fn insert(&mut self, task: T) -> u32 {
        match self.free.pop() {
            Some(number) => {
                self.tasks[number as usize] = task;
                number
            }
            None => {
                self.tasks.push(task);
                self.links.push(NONE);
                self.tasks.len() as u32 - 1
            }
        }
    }

    /// A task is over.
    #[inline]
    pub fn remove(&mut self, number: u32) {
        self.free.push(number);
    }
}

impl<T> std::ops::Index<u32> for Slab<T> {
    type Output = T;

    #[inline]
    fn index(&self, number: u32) -> &T {
        &self.tasks[number as usize]
    }
}

impl<T> std::ops::IndexMut<u32> for Slab<T> {
    #[inline]
    fn index_mut(&mut self, number: u32) -> &mut T {
        &mut self.tasks[number as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queues_keep_order_and_numbers_are_used_again() {
        let mut slab = Slab::default();
        let (mut a, mut b) = (Fifo::EMPTY, Fifo::EMPTY);
        let numbers: Vec<_> = (0..4).map(|task| slab.insert(task)).collect();
        for &number in &numbers {
            let queue = if slab[number] % 2 == 0 { &mut a } else { &mut b };
            queue.push(number, &mut slab.links);
        }
        assert_eq!((a.len(), a.pop(&slab.links), a.head()), (2, Some(0), 2));
        slab.remove(0);
        assert_eq!(slab.insert(9), 0);
        b.push(0, &mut slab.links);
        let popped: Vec<_> = std::iter::from_fn(|| b.pop(&slab.links)).collect();
        assert_eq!(popped, [1, 3, 0]);
        assert!(b.is_empty());
    }
}
