//! Tests of the file store, a database of redb: damage, crashes, and files of other users. Each damaged copy of a store
//! must be reported as damaged, or give the stored fabric.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use rand::{RngExt, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

use super::*;

/// Number of the file's bit that selects the newer of redb's two commit slots: bit 0 of byte 9. No digest covers it, so
/// the test of header bits leaves it out (docs/reference/limits.md).
const NEWER_SLOT: usize = 8 * 9;

/// Runs a future to its end.
fn run<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}

/// Opens a store, leads with it, and returns its term and fabric.
fn load(path: &Path) -> Result<(u64, Fabric), StoreError> {
    let mut store = FileStore::open(path)?;
    run(async { Ok((store.lead(|_| {}).await?, store.load().await?)) })
}

/// Appends `leaves` versions, each with one more leaf. Compacts the store after half of them, so that it has both parts
/// and a log. Returns the last version's fabric.
fn grow(store: &mut FileStore, leaves: u16) -> Fabric {
    let mut fabric = Fabric::default();
    run(async {
        store.lead(|_| {}).await.unwrap();
        for id in 1..=leaves {
            let leaf = Event::Leaf { id, ip: [10, 0, 1, id as u8].into(), is_failed: false };
            fabric.apply(&leaf);
            fabric.version += 1;
            store.append(fabric.version, &[leaf]).await.unwrap();
            if id == leaves / 2 {
                store.compact(&fabric).await.unwrap();
            }
        }
    });
    fabric
}

/// Returns the bytes of a closed store, and of one whose process was killed, with their fabric. redb recovers the
/// second one when it opens it. The bytes before the close stand for the killed process.
fn stores(folder: &Path) -> ([Vec<u8>; 2], Fabric) {
    let path = folder.join("fabric");
    let mut store = FileStore::open(&path).unwrap();
    let fabric = grow(&mut store, 12);
    let killed = fs::read(&path).unwrap();
    drop(store);
    ([fs::read(&path).unwrap(), killed], fabric)
}

/// Writes a file that only its owner may read, since the store refuses others.
fn write(path: &Path, bytes: &[u8]) {
    fs::write(path, bytes).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap();
}

/// Loads a damaged copy. Either the damage is reported, or the fabric is the stored one. Returns true for a
/// report.
fn check_damaged(path: &Path, bytes: &[u8], stored: &Fabric, damage: &str) -> bool {
    write(path, bytes);
    match load(path) {
        Ok((_, fabric)) => {
            assert_eq!(fabric, *stored, "{damage}");
            false
        }
        Err(StoreError::DamagedFile { reason, .. }) => {
            assert!(!reason.is_empty(), "{damage}");
            true
        }
        Err(other) => panic!("{damage}: {other}"),
    }
}

// promise: controller.2
#[test]
fn damaged_file_is_reported_or_harmless() {
    let folder = tempfile::tempdir().unwrap();
    let (stores, stored) = stores(folder.path());
    let path = folder.path().join("damaged");
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(33);
    let mut reported = 0;
    for (store, state) in stores.iter().zip(["closed", "killed"]) {
        // Most of the file is zeros, where damage hits nothing.
        let used: Vec<usize> = (0..store.len()).filter(|&offset| store[offset] != 0).collect();
        for round in 0..100 {
            let mut bytes = store.clone();
            // Kinds of damage, in turn: a flipped bit (two of five rounds), some random bytes, a cut end, and a page of
            // 4096 bytes that gets the content of one of the first 8 pages.
            let offset = used[rng.random_range(0..used.len())];
            match round % 5 {
                0 | 1 => bytes[offset] ^= 1 << rng.random_range(0..8),
                2 => {
                    let end = (offset + rng.random_range(1..64)).min(bytes.len());
                    rng.fill(&mut bytes[offset..end]);
                }
                3 => bytes.truncate(rng.random_range(1..store.len())),
                _ => {
                    let (page, other) = (offset / 4096 * 4096, rng.random_range(0..8) * 4096);
                    bytes.copy_within(other..other + 4096, page);
                }
            }
            let damage = format!("{state} store, round {round}, byte {offset}");
            reported += u32::from(check_damaged(&path, &bytes, &stored, &damage));
        }
    }
    // Some rounds hit bytes of no live page, and load the stored fabric. More than a fifth must be reported.
    assert!(reported > 40, "{reported} of 200");
}

#[test]
fn flipped_header_bit_is_reported_or_harmless() {
    let folder = tempfile::tempdir().unwrap();
    let ([_, killed], stored) = stores(folder.path());
    let path = folder.path().join("damaged");
    // All bits of the header (64 bytes), and each 23rd bit of the two commit slots (128 bytes each) behind it.
    let bits = (0..8 * 64).chain((8 * 64..8 * 320).step_by(23));
    for bit in bits.filter(|bit| *bit != NEWER_SLOT) {
        let mut bytes = killed.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        check_damaged(&path, &bytes, &stored, &format!("bit {bit}"));
    }
}

#[test]
fn refused_creation_leaves_the_file_unchanged() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("fabric");
    let leaf = Event::Leaf { id: 1, ip: [10, 0, 1, 1].into(), is_failed: false };
    let mut fabric = Fabric { version: 1, ..Fabric::default() };
    fabric.apply(&leaf);
    create_file(&path, &fabric).unwrap();
    let refused = create_file(&path, &Fabric::default()).unwrap_err().to_string();
    assert!(refused.contains("it has a fabric already"), "{refused}");
    // The creation took term 1.
    assert_eq!(load(&path).unwrap(), (2, fabric));
}

#[test]
fn file_that_others_could_write_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("fabric");
    drop(FileStore::open(&path).unwrap());
    let refusal = |path: &Path| FileStore::open(path).unwrap_err().to_string();
    for mode in [0o666, 0o620, 0o604] {
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        assert!(
            refusal(&path).contains(&format!("is open to others than its owner (mode {mode:04o})"))
        );
    }
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    let link = folder.path().join("link");
    symlink(&path, &link).unwrap();
    assert!(refusal(&link).contains("the file is a symbolic link; name one of this user"));
    assert!(refusal(folder.path()).contains("is not a regular file"));
    if rustix::process::geteuid().is_root() {
        std::os::unix::fs::chown(&path, Some(65_534), None).unwrap();
        assert!(refusal(&path).contains("belongs to user 65534, and this is user 0"));
    }
}
