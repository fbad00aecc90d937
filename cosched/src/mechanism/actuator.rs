//! Ways to give a batch a share of CPU time. A batch is a background job on the workers' cores, confined in a cgroup.

use super::group::{Group, GroupError};
use crate::share::Share;

/// Gives a batch a share of its cores.
pub trait Actuator {
    /// Returns the name of the method.
    fn name(&self) -> &'static str;

    /// Sets the share of the batch in this cgroup.
    ///
    /// # Errors
    /// If the system refuses.
    fn give(&mut self, group: &Group, share: Share) -> Result<(), GroupError>;
}

/// CPU quota: the batch gets at most its share of the cores' time. A share of 0 freezes it where possible.
#[derive(Clone, Debug)]
pub struct Quota {
    /// Number of CPUs that a full share would use.
    cpus: f64,
    /// Share that is set; `None` if unknown: at first, and after a failure.
    current: Option<Share>,
}

impl Quota {
    /// Creates a quota over `cpus` CPUs.
    #[must_use]
    pub fn of(cpus: usize) -> Self {
        Self { cpus: cpus as f64, current: None }
    }
}

impl Actuator for Quota {
    fn name(&self) -> &'static str {
        "quota"
    }

    fn give(&mut self, group: &Group, share: Share) -> Result<(), GroupError> {
        if self.current == Some(share) {
            return Ok(());
        }
        // If a call below fails, the share stays unknown, and the next call sets it again.
        let previous = self.current.take();
        // Without a freezer, a share of 0 becomes the smallest quota. The quota is set before the thaw, so
        // that the batch never runs with the old one.
        match share {
            Share::NONE if group.set_frozen(true)? => {}
            _ => {
                group.set_quota(share.part() * self.cpus)?;
                if previous.is_none_or(|previous| previous == Share::NONE) {
                    group.set_frozen(false)?;
                }
            }
        }
        self.current = Some(share);
        Ok(())
    }
}

/// Smallest CPU weight, the same for each share: the batch gets little of a core that other threads want. A share of 0
/// also freezes it where possible.
#[derive(Clone, Debug, Default)]
pub struct Weight {
    /// True while the batch is frozen.
    is_frozen: bool,
    /// True once the weight is set.
    is_set: bool,
}

impl Actuator for Weight {
    fn name(&self) -> &'static str {
        "weight"
    }

    fn give(&mut self, group: &Group, share: Share) -> Result<(), GroupError> {
        if !self.is_set {
            group.set_least_weight()?;
            self.is_set = true;
        }
        let is_frozen = share == Share::NONE;
        if is_frozen != self.is_frozen {
            // Stays false if the system cannot freeze.
            self.is_frozen = group.set_frozen(is_frozen)? && is_frozen;
        }
        Ok(())
    }
}

/// No limit; the batch yields only by its scheduling class, which the job sets.
#[derive(Clone, Copy, Debug, Default)]
pub struct Unlimited;

impl Actuator for Unlimited {
    fn name(&self) -> &'static str {
        "none"
    }

    fn give(&mut self, _: &Group, _: Share) -> Result<(), GroupError> {
        Ok(())
    }
}
