//! The network of a build without DPDK: there is none, and every command that needs one says so.

use wedjat_pktgen::load::Load;
use wedjat_pktgen::report::Report;
use wedjat_pktgen::tally::Tally;

use crate::args::{NetworkArgs, ReflectArgs};
use crate::command::Failure;

const NONE: &str = "this build has no DPDK, so there is no port to send through; build with the default \
                    features, which need libdpdk (Debian and Ubuntu: apt-get install libdpdk-dev)";

/// Never there.
pub enum Network {}

impl Network {
    /// Refuses.
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

/// Refuses.
pub fn floor(_: &Load, _: &[String]) -> Result<Tally, Failure> {
    Err(NONE.into())
}

/// Refuses.
pub fn reflect(_: &ReflectArgs) -> Result<(), Failure> {
    Err(NONE.into())
}
