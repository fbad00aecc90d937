//! Order between the cores of a node with waiting tasks: the core whose task has the least key goes first, so that the
//! pool's tasks leave nearly in the order of their keys. Without rules for classes, a key is the time of arrival. A
//! core yields to another one (*courtesy*) only for the time that a core needs to notice a member with room.

use crate::state::{PoolExchange, View};

/// Maximum duration of the courtesy to a task with a lower key on another core.
const COURTESY_NS: u64 = 5_000;

/// Current courtesy of one core to a remote one.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Courtesy {
    /// Key of the first task on another core.
    key: u64,
    /// Start of the courtesy to this task, in nanoseconds.
    start_ns: u64,
}

impl Courtesy {
    /// Returns true if this core may send a task now: its least key exceeds the least `key` of all other cores by at
    /// most `tolerance`, or the courtesy has ended.
    #[inline]
    pub(super) fn is_first(
        &mut self,
        pool_exchange: &PoolExchange,
        (key, tolerance): (u64, u64),
        view: &View,
    ) -> bool {
        let now_ns = view.now_ns();
        // Key of the task to schedule, if it has just arrived. A task that waits here may have a lower one.
        let new_key = now_ns.saturating_add(view.key_delay_ns());
        let own_oldest = match pool_exchange.oldest() {
            0 => new_key,
            key => key.min(new_key),
        };
        if key.saturating_add(tolerance) >= own_oldest {
            return true;
        }
        // A task not seen before: the courtesy to it starts now.
        if self.key != key {
            *self = Self { key, start_ns: now_ns };
        }
        now_ns.saturating_sub(self.start_ns) > COURTESY_NS
    }
}
