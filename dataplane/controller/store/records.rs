//! The form in which a store keeps events.

use super::StoreError;
use crate::controller::event::Event;
use crate::controller::fabric::Fabric;

/// Bytes of one part of a whole fabric, more or less.
const PART: usize = 256 << 10;

/// Events as they are kept.
pub fn write(events: &[Event]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for event in events {
        // Writing to memory fails for maps with keys that are no text, of which there are none.
        let _ = serde_json::to_writer(&mut bytes, event);
        bytes.push(b'\n');
    }
    bytes
}

/// Takes events as they were kept; they are what led to `version`.
///
/// # Errors
/// When they are none.
pub fn read(fabric: &mut Fabric, version: u64, bytes: &[u8]) -> Result<(), StoreError> {
    for line in bytes.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
        let damaged =
            |error: serde_json::Error| StoreError::Damaged { version, reason: error.to_string() };
        let event: Event = serde_json::from_slice(line).map_err(damaged)?;
        fabric.take(&event);
    }
    fabric.version = version;
    Ok(())
}

/// A whole fabric in parts.
pub fn parts(fabric: &Fabric) -> Vec<Vec<u8>> {
    let mut parts = vec![Vec::new()];
    for event in fabric.events() {
        let bytes = write(std::slice::from_ref(&event));
        match parts.last_mut() {
            Some(part) if part.len() + bytes.len() <= PART => part.extend(bytes),
            _ => parts.push(bytes),
        }
    }
    parts
}
