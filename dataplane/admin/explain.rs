//! Explanations of packets, recorded by cores for a reader: the client that asked for them. A record has the outcome of
//! a packet and the core's estimates at that moment.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use wedjat_core::io::vdev;
use wedjat_core::node::explain::{Filter, Record, Records};

use super::stamps::Stamps;

/// Request for explanations.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExplainSpec {
    /// Filter of packets, except for the port.
    pub filter: Filter,
    /// Index of a port, or its device's name; `None` for all ports.
    pub port: Option<String>,
    /// Maximum number of packets: for each core's records, and for the client's stream; `None` for no limit.
    pub packets: Option<u64>,
}

/// An explained packet.
#[derive(Clone, Debug)]
pub struct ExplainRecord {
    /// Core, from 0.
    pub core: usize,
    /// Time since the Unix epoch.
    pub time: Duration,
    /// Outcome of the packet.
    pub record: Record,
}

/// Records of all cores, for one reader. Cores stop recording when it is dropped.
pub struct ExplainSession {
    /// Queue of each core.
    records: Vec<Arc<Records>>,
    /// Devices by port.
    ports: Vec<String>,
    /// Conversion of the records' ticks to time.
    stamps: Stamps,
    /// Callback for the drop: it makes the cores stop recording.
    end: Option<Box<dyn FnOnce() + Send + Sync>>,
}

impl fmt::Debug for ExplainSession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExplainSession").field("records", &self.records).finish_non_exhaustive()
    }
}

impl ExplainSession {
    /// Creates a session over the cores' records, with the ports' devices and the conversion of times. It calls
    /// `end` on drop.
    pub fn new(
        records: Vec<Arc<Records>>,
        ports: Vec<String>,
        stamps: Stamps,
        end: Box<dyn FnOnce() + Send + Sync>,
    ) -> Self {
        Self { records, ports, stamps, end: Some(end) }
    }

    /// Returns the records since the last call, in the order of time.
    pub fn take(&self) -> Vec<ExplainRecord> {
        let each = self.records.iter().enumerate().flat_map(|(core, records)| {
            std::iter::from_fn(|| records.next()).map(move |record| (core, record))
        });
        let entries = each.map(|(core, record)| {
            let time = self.stamps.time_of(record.ticks);
            ExplainRecord { core, time, record }
        });
        let mut entries: Vec<_> = entries.collect();
        entries.sort_by_key(|one| one.time); // a stable sort keeps the order of each core
        entries
    }

    /// Returns the number of records lost to full queues.
    pub fn lost(&self) -> u64 {
        self.records.iter().map(|records| records.lost()).sum()
    }

    /// Returns the device of a port, without its arguments. On a leaf, the index after the last device is the
    /// link to the agent on its core.
    pub fn port(&self, index: u8) -> &str {
        let device = self.ports.get(usize::from(index));
        device.map_or("the agent on this core", |device| vdev::name(device))
    }
}

impl Drop for ExplainSession {
    fn drop(&mut self) {
        if let Some(end) = self.end.take() {
            end();
        }
    }
}
