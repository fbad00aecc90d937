//! Module `network` of a build without DPDK, with the same interface. Every command that needs a network fails with an
//! explanation.

use wedjat_pktgen::load::Load;
use wedjat_pktgen::report::Report;
use wedjat_pktgen::tally::Tally;

use crate::args::{NetworkArgs, ReflectArgs};
use crate::failure::Failure;

/// Error of every command that needs a network.
const NONE: &str = "this build has no DPDK, so it cannot open a port; build with the default features, which need libdpdk \
    (Debian and Ubuntu: apt-get install libdpdk-dev)";

/// Network; has no values in this build.
pub enum Network {}

impl Network {
    /// Always fails: with the error of invalid addresses, else with [`NONE`].
    pub fn open(args: &NetworkArgs) -> Result<Self, Failure> {
        args.addresses()?;
        Err(NONE.into())
    }

    /// Cannot be called.
    pub fn offer(&mut self, _: &Load) -> Result<Report, Failure> {
        match *self {}
    }

    /// Cannot be called.
    pub fn stopped(&self) -> bool {
        match *self {}
    }
}

/// Always fails.
pub fn floor(_: &Load, _: &[String]) -> Result<Tally, Failure> {
    Err(NONE.into())
}

/// Always fails.
pub fn reflect(_: &ReflectArgs) -> Result<(), Failure> {
    Err(NONE.into())
}
