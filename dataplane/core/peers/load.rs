//! Load of a node, as published in its heartbeats: its waiting work, divided by its *slots*. Each task that the workers
//! may have at once counts as several slots. Their number is a parameter of the peer policy; 64 is that of Malcolm's
//! released program.

/// Weight of a service time in the moving mean: it follows about the last 64 tasks.
const SERVICE_SHARE: f64 = 1.0 / 64.0;
/// Largest load in microseconds that a node accepts from a peer, and largest one that it publishes: a second of
/// waiting work per slot.
pub const LOAD_MAX: f32 = 1e6;

/// Load of this node, from the moving mean of service times and the number of waiting tasks.
#[derive(Clone, Debug)]
pub struct OwnLoad {
    /// Slots of all workers, over which the waiting work is divided.
    slots: f64,
    /// Slots per task that the workers may have at once.
    slots_per_task: u32,
    /// Moving mean of service times in microseconds; 0 before the first task.
    service_us: f64,
    /// Number of waiting tasks.
    waiting: u32,
}

impl OwnLoad {
    /// Creates the load of workers that may have `tasks` tasks at once, with `slots_per_task` slots each.
    pub fn new(tasks: u32, slots_per_task: u32) -> Self {
        let mut load = Self { slots: 1.0, slots_per_task, service_us: 0.0, waiting: 0 };
        load.set_tasks(tasks);
        load
    }

    /// Sets the number of waiting tasks.
    #[inline]
    pub fn set_waiting(&mut self, waiting: u32) {
        self.waiting = waiting;
    }

    /// Adds a completed task's service time.
    #[inline]
    pub fn add_service_time(&mut self, service_ns: u64) {
        let us = service_ns as f64 / 1e3;
        self.service_us = match self.service_us {
            0.0 => us,
            mean => mean + SERVICE_SHARE * (us - mean),
        };
    }

    /// Sets the number of tasks that the workers may have at once. 0 counts as 1, so that the load stays finite.
    pub fn set_tasks(&mut self, tasks: u32) {
        self.slots = f64::from(tasks.max(1)) * f64::from(self.slots_per_task);
    }

    /// Returns the number of waiting tasks.
    #[inline]
    pub fn waiting(&self) -> u32 {
        self.waiting
    }

    /// Returns the waiting work in microseconds per slot.
    pub fn load(&self) -> f32 {
        ((f64::from(self.waiting) * self.service_us / self.slots) as f32).min(LOAD_MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn load_is_queued_work_per_slot() {
        let mut load = OwnLoad::new(4, 2);
        load.set_waiting(8);
        assert_eq!(load.load(), 0.0, "nothing was done yet");
        // 8 tasks of 100 us on 4 x 2 slots. The second time moves the mean by a 64th of 64 us, to 101 us.
        load.add_service_time(100_000);
        assert_eq!(load.load(), 8.0 * 100.0 / 8.0);
        load.add_service_time(164_000);
        assert_eq!(load.load(), 8.0 * 101.0 / 8.0);
        load.set_tasks(8);
        assert_eq!(load.load(), 8.0 * 101.0 / 16.0);
        load.set_waiting(0);
        assert_eq!(load.load(), 0.0, "only the current queue counts");
        // 16 tasks of 101 us on the two slots of one task at once.
        load.set_waiting(16);
        load.set_tasks(0);
        assert_eq!(load.load(), 808.0, "counts as one task at once");
    }

    #[test]
    fn load_never_exceeds_the_accepted_maximum() {
        let mut load = OwnLoad::new(1, 1);
        load.set_waiting(u32::MAX);
        load.add_service_time(u64::from(u32::MAX));
        assert_eq!(load.load(), LOAD_MAX);
    }
}
