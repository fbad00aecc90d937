//! Identity of the running program, for metrics and reports. Each program sets it at its start: only the crates above
//! this one know the revision and the compiler of the build.

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

/// Identity of the running program, once it is set.
static PROGRAM: OnceLock<Program> = OnceLock::new();

impl Program {
    /// Makes this the identity of the running program. Later calls have no effect.
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
