//! Format of the records in a store: a form byte, a digest, and one event per line, in JSON. A record holds the events
//! of one version, or a part of the events that create a whole fabric.
//!
//! The first form had only the lines. Such a record begins with `{`. It is read without a digest, and the
//! next compaction rewrites it.

use ring::digest::{SHA256, digest};

use super::StoreError;
use crate::event::Event;
use crate::fabric::Fabric;

/// Maximum size of one part of a whole fabric in bytes, unless one event is larger. It stays below etcd's limit for
/// requests.
const PART: usize = 256 << 10;
/// First byte of a record with a digest.
const FORM: u8 = 1;
/// Size of a digest in bytes: a prefix of a SHA-256.
const DIGEST: usize = 8;

/// Encodes events as one record.
pub fn write(events: &[Event]) -> Vec<u8> {
    seal(&lines(events))
}

/// Encodes events, one per line.
fn lines(events: &[Event]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for event in events {
        // Writing to memory fails only for maps whose keys are not text. Events have none.
        let _ = serde_json::to_writer(&mut bytes, event);
        bytes.push(b'\n');
    }
    bytes
}

/// Puts the form and the digest before lines.
fn seal(lines: &[u8]) -> Vec<u8> {
    [&[FORM], &digest(&SHA256, lines).as_ref()[..DIGEST], lines].concat()
}

/// Returns the lines of a record, after a check of its digest. The error is the damage found.
fn unseal(record: &[u8]) -> Result<&[u8], String> {
    match record {
        // The first form, which may have no lines.
        [] | [b'{', ..] => Ok(record),
        [FORM, sealed @ ..] => match sealed.split_at_checked(DIGEST) {
            Some((sum, lines)) if digest(&SHA256, lines).as_ref().starts_with(sum) => Ok(lines),
            _ => Err("its digest is another".to_owned()),
        },
        [form, ..] => Err(format!("it has form {form}")),
    }
}

/// Applies the events of a record to the fabric, and sets its version to `version`.
///
/// # Errors
/// If the record is damaged. The fabric may then hold some of its events.
pub fn read(fabric: &mut Fabric, version: u64, record: &[u8]) -> Result<(), StoreError> {
    let lines = unseal(record).map_err(|reason| StoreError::Damaged { version, reason })?;
    for line in lines.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
        let damaged =
            |error: serde_json::Error| StoreError::Damaged { version, reason: error.to_string() };
        let event: Event = serde_json::from_slice(line).map_err(damaged)?;
        fabric.apply(&event);
    }
    fabric.version = version;
    Ok(())
}

/// Encodes a whole fabric as records of limited size, the parts. Together they lead from an empty fabric to this one.
pub fn parts(fabric: &Fabric) -> Vec<Vec<u8>> {
    let mut parts = vec![Vec::new()];
    for event in fabric.events() {
        let bytes = lines(std::slice::from_ref(&event));
        match parts.last_mut() {
            Some(part) if part.len() + bytes.len() <= PART => part.extend(bytes),
            _ => parts.push(bytes),
        }
    }
    parts.iter().map(|part| seal(part)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns two events, which add a spine and a leaf.
    fn events() -> Vec<Event> {
        let spine = Event::Spine { id: 1, ip: [10, 0, 0, 1].into(), is_failed: false };
        vec![spine, Event::Leaf { id: 1, ip: [10, 0, 1, 1].into(), is_failed: false }]
    }

    // promise: controller.2
    #[test]
    fn flipped_bit_of_a_record_is_damage() {
        let mut record = write(&events());
        let mut fabric = Fabric::default();
        read(&mut fabric, 1, &record).unwrap();
        assert_eq!((fabric.spines.len(), fabric.leaves.len(), fabric.version), (1, 1, 1));
        for bit in 0..8 * record.len() {
            record[bit / 8] ^= 1 << (bit % 8);
            let refused = read(&mut Fabric::default(), 1, &record).unwrap_err();
            assert!(matches!(refused, StoreError::Damaged { version: 1, .. }), "bit {bit}");
            record[bit / 8] ^= 1 << (bit % 8);
        }
        // The empty record is a valid one of the first form.
        for len in 1..record.len() {
            assert!(read(&mut Fabric::default(), 1, &record[..len]).is_err(), "{len} bytes");
        }
    }

    #[test]
    fn record_of_the_older_form_is_read() {
        let old = lines(&events());
        let (mut one, mut other) = (Fabric::default(), Fabric::default());
        read(&mut one, 1, &old).unwrap();
        read(&mut other, 1, &write(&events())).unwrap();
        assert_eq!(one, other);
        assert!(parts(&one).iter().all(|part| part[0] == FORM), "compaction writes the new form");
    }
}
