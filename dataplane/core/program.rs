//! Identity of the running program, for metrics and reports.

use std::sync::OnceLock;

/// Revision and compiler of a program.
#[derive(Clone, Copy, Debug)]
pub struct Program {
    /// Revision of its sources, as git describes it.
    pub revision: &'static str,
    /// Text of `--version`.
    pub version: &'static str,
    /// Version of its compiler.
    pub rustc: &'static str,
}

static PROGRAM: OnceLock<Program> = OnceLock::new();

impl Program {
    /// Makes this the identity of the running program. The first call counts.
    pub fn identify(self) {
        let _ = PROGRAM.set(self);
    }

    /// Returns the identity of the running program; `unknown` if it is not set.
    #[must_use]
    pub fn current() -> Self {
        PROGRAM.get().copied().unwrap_or(Self {
            revision: "unknown",
            version: "unknown",
            rustc: "unknown",
        })
    }
}
