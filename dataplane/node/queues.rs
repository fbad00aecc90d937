//! The tasks that wait for workers, of all pools: a queue for each over memory that they share, so that pools may come and go and
//! bounds may change while no memory is taken.

/// Behind the last of a list.
const END: u32 = u32::MAX;

#[derive(Debug)]
struct Entry<T> {
    item: Option<T>,
    next: u32,
}

#[derive(Clone, Copy, Debug)]
struct List {
    first: u32,
    last: u32,
    len: usize,
}

const EMPTY: List = List { first: END, last: END, len: 0 };

/// First in, first out, by pool. All memory is taken when it is made.
#[derive(Debug)]
pub struct Queues<T> {
    entries: Vec<Entry<T>>,
    /// Entries that hold nothing.
    free: u32,
    pools: Vec<List>,
}

impl<T> Queues<T> {
    /// Empty queues of so many pools, for so many items in all of them together.
    pub fn new(pools: usize, room: usize) -> Self {
        let next = |at: usize| if at + 1 < room { at as u32 + 1 } else { END };
        let entries = (0..room).map(|at| Entry { item: None, next: next(at) }).collect();
        Self { entries, free: if room > 0 { 0 } else { END }, pools: vec![EMPTY; pools] }
    }

    /// How many items there is room for.
    pub fn room(&self) -> usize {
        self.entries.len()
    }

    /// How many of a pool wait.
    pub fn len(&self, pool: usize) -> usize {
        self.pools.get(pool).map_or(0, |list| list.len)
    }

    /// Puts an item last.
    ///
    /// # Errors
    /// The item, when there is no room.
    #[inline]
    pub fn push(&mut self, pool: usize, item: T) -> Result<(), T> {
        let at = self.free;
        let (Some(entry), Some(list)) =
            (self.entries.get_mut(at as usize), self.pools.get_mut(pool))
        else {
            return Err(item);
        };
        self.free = entry.next;
        (entry.item, entry.next) = (Some(item), END);
        let last = std::mem::replace(&mut list.last, at);
        list.len += 1;
        match self.entries.get_mut(last as usize) {
            Some(last) => last.next = at,
            None => list.first = at,
        }
        Ok(())
    }

    /// The item of a pool that has waited longest.
    #[inline]
    pub fn first_mut(&mut self, pool: usize) -> Option<&mut T> {
        let first = self.pools.get(pool)?.first;
        self.entries.get_mut(first as usize)?.item.as_mut()
    }

    /// Takes the item of a pool that has waited longest.
    #[inline]
    pub fn pop(&mut self, pool: usize) -> Option<T> {
        let list = self.pools.get_mut(pool)?;
        let at = list.first;
        let entry = self.entries.get_mut(at as usize)?;
        let next = std::mem::replace(&mut entry.next, self.free);
        self.free = at;
        list.first = next;
        list.len -= 1;
        if next == END {
            list.last = END;
        }
        entry.item.take()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn each_pools_items_leave_in_their_order_and_all_share_the_room(
            steps in proptest::collection::vec((0..3_usize, any::<bool>()), 0..200),
        ) {
            let mut queues = Queues::new(3, 8);
            let mut models = [const { VecDeque::new() }; 3];
            for (item, (pool, pushes)) in steps.into_iter().enumerate() {
                if pushes {
                    let is_full = models.iter().map(VecDeque::len).sum::<usize>() == queues.room();
                    prop_assert_eq!(queues.push(pool, item), if is_full { Err(item) } else { Ok(()) });
                    models[pool].extend((!is_full).then_some(item));
                } else {
                    prop_assert_eq!(queues.first_mut(pool).copied(), models[pool].front().copied());
                    prop_assert_eq!(queues.pop(pool), models[pool].pop_front());
                }
                prop_assert_eq!(queues.len(pool), models[pool].len());
            }
        }
    }

    #[test]
    fn without_room_nothing_waits() {
        let mut queues = Queues::new(1, 0);
        assert_eq!(
            (queues.push(0, 'a'), queues.pop(0), queues.first_mut(0)),
            (Err('a'), None, None)
        );
        assert_eq!(Queues::new(0, 1).push(0, 'a'), Err('a'));
    }
}
