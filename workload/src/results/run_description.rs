//! Description of a run: model, policy, load and swept flags.

/// Description of a run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RunDescription {
    /// Kind of the run: a model of the simulator, `lockstep`, `fabric`, `drive`, `demo`, `pktgen` or `capture`.
    pub model: String,
    /// Policy; empty if unknown.
    pub policy: String,
    /// Load as a fraction of the workers' capacity, if known.
    pub load: Option<f64>,
    /// Requested tasks per second, if known.
    pub offered_pps: Option<f64>,
    /// Flags that a sweep varies, with their values, as in `hop=5us;cores=2`.
    pub setting: String,
}

impl RunDescription {
    /// Returns the name of the run without its load. Runs with the same name form one curve of a plot.
    #[must_use]
    pub fn series(&self) -> String {
        let name = if self.policy.is_empty() { &self.model } else { &self.policy };
        match self.setting.is_empty() {
            true => name.clone(),
            false => format!("{name}, {}", self.setting),
        }
    }

    /// Returns the load as text; empty if unknown.
    #[must_use]
    pub fn load_text(&self) -> String {
        match (self.load, self.offered_pps) {
            (Some(load), _) => format!("{}%", (load * 1e4).round() / 1e2),
            (None, Some(pps)) => format!("{pps:.0}/s"),
            (None, None) => String::new(),
        }
    }

    /// Returns the name of the run.
    #[must_use]
    pub fn label(&self) -> String {
        match self.load_text() {
            load if load.is_empty() => self.series(),
            load => format!("{} at {load}", self.series()),
        }
    }

    /// Returns true if the run was measured in nanoseconds; simulated runs have times in picoseconds. The percentiles
    /// of a measured run count unanswered tasks as infinite, as [`crate::latency::Latency`] does.
    #[must_use]
    pub fn is_measured(&self) -> bool {
        matches!(self.model.as_str(), "pktgen" | "drive" | "demo" | "capture")
    }
}
