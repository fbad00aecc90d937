//! Regions in files: attached to by name, refused when wrong, replaced when left behind.

use std::fs;
use std::path::PathBuf;

use super::super::layout::HEADER_WORDS;
use super::super::region;
use super::*;

fn places(count: u16) -> Vec<Place> {
    (0..count).map(|id| Place { id: 10 + id, pool: 3 }).collect()
}

fn created() -> (tempfile::TempDir, PathBuf, WorkerRegion) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("region");
    let region = WorkerRegion::create(&path, &places(2), 4, 32).unwrap();
    (folder, path, region)
}

#[test]
fn a_task_passes_between_two_mappings_of_a_file() {
    let (_folder, path, region) = created();
    let mut channel = region.channel(1);
    let other = Arc::new(WorkerRegion::open(&path).unwrap());
    assert_eq!((other.place(1), other.shape()), (Place { id: 11, pool: 3 }, region.shape()));
    assert!(other.has_agent() && !region.has_worker(1));
    let mut guest = other.claim(1).unwrap().unwrap();
    assert!(region.has_worker(1) && !region.has_worker(0));
    assert!(other.claim(1).unwrap().is_none(), "taken, for threads of one process, too");
    let sender = channel.sender_mut();
    sender.grant(sender.claim());
    guest.start();
    assert!(channel.give(ids(1), b"over there"));
    assert_eq!(guest.take(), Ok(true));
    assert_eq!(guest.payload(), b"over there");
    echo(&mut guest);
    assert_eq!(channel.collect(), Ok(0..1));
    drop(guest);
    assert!(!region.has_worker(1));
    drop(region);
    assert!(!other.has_agent());
    assert!(!path.exists(), "an agent that ends in order takes its region away");
    assert!(matches!(WorkerRegion::open(&path), Err(RegionError::Missing { .. })));
}

#[test]
fn a_running_agents_region_is_not_taken_and_a_dead_ones_replaced() {
    let (_folder, path, region) = created();
    let error = WorkerRegion::create(&path, &places(1), 4, 32).unwrap_err();
    let own = u64::from(std::process::id());
    assert!(matches!(error, RegionError::InUse { pid, .. } if pid == own), "{error}");
    let left = fs::read(&path).unwrap();
    drop(region);
    fs::write(&path, left).unwrap(); // as SIGKILL leaves it
    let old = WorkerRegion::open(&path).unwrap();
    assert!(!old.has_agent());
    let region = WorkerRegion::create(&path, &places(1), 8, 64).unwrap();
    assert_eq!(WorkerRegion::open(&path).unwrap().shape(), region.shape());
    assert!(!old.has_agent(), "another file");
    assert_eq!(fs::read_dir(_folder.path()).unwrap().count(), 1, "no scratch file stays");
}

#[test]
fn what_is_no_region_is_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("precious");
    for text in ["short", &"long ".repeat(100)] {
        fs::write(&path, text).unwrap();
        let created = WorkerRegion::create(&path, &places(1), 4, 32);
        assert!(matches!(created, Err(RegionError::Foreign { .. })));
        assert!(matches!(WorkerRegion::open(&path), Err(RegionError::Foreign { .. })));
        assert_eq!(fs::read_to_string(&path).unwrap(), text);
    }
}

#[test]
fn other_versions_and_damaged_or_truncated_regions_are_refused() {
    let (folder, path, region) = created();
    let whole = fs::read(&path).unwrap();
    let with = |at: usize, byte: u8| {
        let copy = folder.path().join("copy");
        let mut bytes = whole.clone();
        bytes[at] ^= byte;
        fs::write(&copy, &bytes).unwrap();
        WorkerRegion::open(&copy)
    };
    let other = region::VERSION ^ 128;
    assert!(matches!(with(8, 128), Err(RegionError::Version { found, .. }) if found == other));
    for at in 2..6 {
        for byte in 0..8 {
            assert!(with(8 * at + byte, 0x41).is_err(), "header word {at}, byte {byte}");
        }
    }
    for len in (0..whole.len()).step_by(61) {
        let copy = folder.path().join("copy");
        fs::write(&copy, &whole[..len]).unwrap();
        assert!(WorkerRegion::open(&copy).is_err(), "{len} bytes");
    }
    assert!(whole.len() > 8 * HEADER_WORDS && with(whole.len() - 1, 0).is_ok());
    drop(region);
}

#[test]
fn shapes_that_can_not_be_are_refused() {
    for (workers, slots, payload) in [(0, 4, 32), (1, 3, 32), (1, 4, 0), (1, 1 << 20, 32)] {
        let error = WorkerRegion::heap(&places(workers), slots, payload).unwrap_err();
        assert!(matches!(error, RegionError::Shape(_)), "{error}");
    }
}
