//! What becomes of packets, as cores write it down for somebody who reads it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::stamps::Stamps;
use crate::io::vdev;
use crate::node::explain::{Filter, Record, Records};

/// What is to be explained.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExplainSpec {
    /// Which packets, but for their port.
    pub filter: Filter,
    /// The index of a port, or its device's name; all ports when none.
    pub port: Option<String>,
    /// It ends by itself after so many packets of each core.
    pub packets: Option<u64>,
}

/// One packet, as a core has told of it.
#[derive(Clone, Debug)]
pub struct Told {
    /// The core, from 0.
    pub core: usize,
    /// When, since the Unix epoch.
    pub time: Duration,
    /// What became of the packet.
    pub record: Record,
}

/// What cores write down, for whoever reads it. Cores end when it is dropped.
pub struct Explaining {
    records: Vec<Arc<Records>>,
    ports: Vec<String>,
    stamps: Stamps,
    end: Option<Box<dyn FnOnce() + Send + Sync>>,
}

impl fmt::Debug for Explaining {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Explaining").field("records", &self.records).finish_non_exhaustive()
    }
}

impl Explaining {
    /// What each core writes down, at ports of these devices and with times by these stamps.
    pub fn new(
        records: Vec<Arc<Records>>,
        ports: Vec<String>,
        stamps: Stamps,
        end: Box<dyn FnOnce() + Send + Sync>,
    ) -> Self {
        Self { records, ports, stamps, end: Some(end) }
    }

    /// What has been written down since, in the order of time.
    pub fn take(&self) -> Vec<Told> {
        let each = self.records.iter().enumerate().flat_map(|(core, records)| {
            std::iter::from_fn(|| records.next()).map(move |record| (core, record))
        });
        let told = each.map(|(core, record)| {
            let time = self.stamps.at(record.ticks);
            Told { core, time, record }
        });
        let mut told: Vec<_> = told.collect();
        told.sort_by_key(|one| one.time); // which keeps the order of each core
        told
    }

    /// Packets that found no room.
    pub fn lost(&self) -> u64 {
        self.records.iter().map(|records| records.lost()).sum()
    }

    /// The device of a port, without what it is made with; the wire to the agent on a leaf's core comes behind the devices.
    pub fn port(&self, index: u8) -> &str {
        let device = self.ports.get(usize::from(index));
        device.map_or("the agent on this core", |device| vdev::name(device))
    }
}

impl Drop for Explaining {
    fn drop(&mut self) {
        if let Some(end) = self.end.take() {
            end();
        }
    }
}
