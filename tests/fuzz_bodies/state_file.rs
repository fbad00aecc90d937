//! Fuzz body: arbitrary bytes as a state file, and a whole state file with arbitrary changed words. The reader returns
//! a snapshot within the limits, or rejects the file. A state file holds two copies of a node's state (loads of the
//! pools' members), written in turn.
//!
//! Random bytes have no valid checksum. An input is therefore also used as a list of changes to a file
//! written by a node. A second implementation, written after the format's description, computes its checksum
//! here.

use std::sync::OnceLock;

use wedjat::limits::{CORES_MAX, MEMBERS_MAX, POOLS_MAX};
use wedjat::state::table::{PoolSpec, Spec, WorkerSpec};
use wedjat::state::{Snapshot, Table};

/// Bytes before the two copies, and unit to which the length of a copy's place is rounded up.
const HEAD: usize = 4096;
// Indices of words of eight bytes in the head.
/// Word with the length of a copy in bytes.
const LEN: usize = 2;
/// Word with the number of the newest copy.
const NUMBER: usize = 3;
/// Word with the checksum of the newest copy.
const MARK: usize = 4;
/// Bytes of a change in the input: index of the word (2), and its value (8).
const CHANGE: usize = 10;

/// Returns the bytes of a valid state file: a node with two cores, two pools and eight workers. Written once.
fn valid_file() -> &'static [u8] {
    static WHOLE: OnceLock<Vec<u8>> = OnceLock::new();
    WHOLE.get_or_init(|| {
        let name = format!("wedjat-state-file-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let workers = |ids: std::ops::Range<u16>| {
            ids.map(|id| WorkerSpec { id, server: id / 2 }).collect::<Vec<_>>()
        };
        let pool = |id, ids| PoolSpec {
            id,
            policy: "horus".into(),
            objective: String::new(),
            workers: workers(ids),
        };
        let pools = vec![pool(7, 0..3), pool(9, 3..8)];
        let spec = Spec {
            cores: 2,
            servers: [1, 2, 3, 4].map(|last| [10, 0, 0, last].into()).to_vec(),
            pools,
            ..Spec::default()
        };
        drop(Table::create(&path, &spec).expect("a folder for scratch files"));
        let whole = std::fs::read(&path).expect("the file was just written");
        std::fs::remove_file(&path).expect("the file is ours");
        whole
    })
}

/// Returns word number `at`.
fn word(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[8 * at..][..8].try_into().expect("eight bytes"))
}

/// Sets word number `at`.
fn set(bytes: &mut [u8], at: usize, value: u64) {
    bytes[8 * at..][..8].copy_from_slice(&value.to_le_bytes());
}

/// Runs one input: reads it as a file, and then reads the valid file with the changes that the input lists. Returns
/// true if the changed file was accepted.
pub fn run(input: &[u8]) -> bool {
    check(Snapshot::of(input).ok());
    let mut file = valid_file().to_vec();
    let (len, number) = (word(&file, LEN) as usize, word(&file, NUMBER));
    // Copies alternate between two places: the parity of the number tells the place of the newest one.
    let start = HEAD + (number as usize & 1) * len.next_multiple_of(HEAD);
    let copy = &mut file[start..start + len];
    for change in input.chunks_exact(CHANGE) {
        let at = usize::from(u16::from_le_bytes([change[0], change[1]]));
        let value = u64::from_le_bytes(change[2..].try_into().expect("eight bytes"));
        set(copy, at % (len / 8), value);
    }
    // FNV-1a over words, with a rotation after each.
    let step = |hash: u64, word: u64| (hash ^ word).wrapping_mul(1_099_511_628_211).rotate_left(29);
    let begin = step(14_695_981_039_346_656_037, number);
    let mark = (0..len / 8).map(|at| word(copy, at)).fold(begin, step);
    set(&mut file, MARK, mark);
    let read = Snapshot::of(&file);
    if input.len() < CHANGE {
        assert!(read.is_ok(), "nothing was changed");
    }
    check(read.ok())
}

/// Checks the limits of a snapshot. Returns true if there is one.
fn check(snapshot: Option<Snapshot>) -> bool {
    let Some(snapshot) = snapshot else { return false };
    assert!(snapshot.cores.len() <= CORES_MAX && snapshot.pools.len() <= POOLS_MAX);
    let members = snapshot.pools.iter().map(|pool| pool.members.len());
    assert!(members.sum::<usize>() <= MEMBERS_MAX);
    for pool in &snapshot.pools {
        assert!(pool.idle.iter().all(|list| list.len() <= pool.members.len()));
    }
    true
}
