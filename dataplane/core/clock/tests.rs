//! Conductor and nodes over a file, in threads of one process. A node's words in the file are its *line*.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::Relaxed;

use super::*;
use crate::state::files::NameLock;
use crate::state::table::Role;

const LEAF: Node = Node { role: Role::Leaf, id: 3, core: 0 };
const AGENT: Node = Node { role: Role::Agent, id: 9, core: 0 };

/// Creates a folder. Returns it with the path of a missing file in it.
fn folder() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("clock");
    (folder, path)
}

/// Runs a node that receives `packets` packets in the first poll of each turn, and then one per poll up to the next
/// multiple of 100. Returns the times of its turns and how it ended.
fn node(path: &Path, node: Node, packets: u64) -> (Vec<u64>, Result<(), ClockError>) {
    let (mut clock, stop) =
        (ClockFile::open(path).unwrap().join(node).unwrap(), AtomicBool::default());
    let (mut times, mut received) = (Vec::new(), 0);
    while let Some(now) = clock.next(&stop) {
        let first = times.last() != Some(&now);
        if first {
            times.push(now);
            received += packets;
        }
        let beyond = received % 100;
        received += u64::from(beyond > 0 && !first);
        clock.polled(|| Progress { received, timer: now + 7, ..Progress::default() });
    }
    (times, clock.ended())
}

/// Waits until the node, which another thread runs, has joined. Returns its number for the conductor.
fn accept(conductor: &mut Conductor, node: Node) -> usize {
    loop {
        match conductor.take(node) {
            Some(number) => return number,
            None => std::thread::yield_now(),
        }
    }
}

// promise: emulated-time.1
#[test]
fn nodes_poll_in_turn_until_quiet() {
    let (_folder, path) = folder();
    let mut conductor = Conductor::create(&path, 2).unwrap();
    std::thread::scope(|scope| {
        let leaf = scope.spawn(|| node(&path, LEAF, 0));
        let agent = scope.spawn(|| node(&path, AGENT, 90));
        let (first, second) = (accept(&mut conductor, LEAF), accept(&mut conductor, AGENT));
        assert!(conductor.take(LEAF).is_none(), "the only one of that name has joined");
        for now_ns in [5, 6, 20] {
            conductor.set_now_ns(now_ns);
            let before = conductor.line(first).polls;
            let line = conductor.turn(first).unwrap();
            assert_eq!((line.polls - before, line.timer_ns), (2, now_ns + 7));
            let before = conductor.line(second).polls;
            let line = conductor.turn(second).unwrap();
            // 11 polls moved packets, and two were quiet.
            assert_eq!((line.polls - before, line.received % 100), (13, 0));
        }
        conductor.set_now_ns(30);
        conductor.turn(first).unwrap();
        conductor.end();
        let (times, ended) = leaf.join().unwrap();
        assert!(times == [5, 6, 20, 30] && ended.is_ok(), "{times:?} {ended:?}");
        let (times, ended) = agent.join().unwrap();
        assert!(times == [5, 6, 20] && ended.is_ok(), "{times:?} {ended:?}");
    });
    drop(conductor);
    assert!(!path.exists(), "the file goes with its conductor");
}

// promise: emulated-time.1
#[test]
fn dead_conductor_ends_its_node() {
    let (_folder, path) = folder();
    let mut conductor = Conductor::create(&path, 1).unwrap();
    std::thread::scope(|scope| {
        let leaf = scope.spawn(|| node(&path, LEAF, 0));
        accept(&mut conductor, LEAF);
        drop(conductor);
        let (_, ended) = leaf.join().unwrap();
        let error = ended.unwrap_err().to_string();
        let pid = std::process::id().to_string();
        assert!(error.contains("ended without ending the run") && error.contains(&pid), "{error}");
    });
}

/// The conductor must not write to the line of a forgotten node: another node may have claimed it, as here.
#[test]
#[should_panic(expected = "has left for good")]
fn forgotten_node_gets_no_turn() {
    let (_folder, path) = folder();
    let mut conductor = Conductor::create(&path, 1).unwrap().with_timeout(Duration::ZERO);
    let first = ClockFile::open(&path).unwrap().join(LEAF).unwrap();
    let number = accept(&mut conductor, LEAF);
    drop(first);
    conductor.forget(number);
    let _second = ClockFile::open(&path).unwrap().join(LEAF).unwrap();
    assert_eq!(accept(&mut conductor, LEAF), 1, "it gets its own number");
    let _ = conductor.turn(number);
}

// promise: emulated-time.1
#[test]
fn node_stops_while_time_is_paused() {
    let (_folder, path) = folder();
    let _conductor = Conductor::create(&path, 1).unwrap();
    let mut clock = ClockFile::open(&path).unwrap().join(LEAF).unwrap();
    let stop = AtomicBool::default();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| clock.next(&stop));
        stop.store(true, Relaxed);
        assert_eq!(waiting.join().unwrap(), None);
    });
    assert!(clock.ended().is_ok(), "that is an orderly end");
    // Emulated time uses neither limit. Polls until two polls in a row are quiet: the fifth and the sixth.
    let (quiet, longest) = (Duration::ZERO, Duration::ZERO);
    let mut polls = 0;
    clock.drain(quiet, longest, |_| {
        polls += 1;
        polls < 5
    });
    assert_eq!(polls, 6);
    clock.drain(quiet, longest, |_| true); // gives up on a node that never becomes quiet
}

// promise: emulated-time.2
#[test]
fn restless_node_is_named_with_its_activity() {
    let (_folder, path) = folder();
    let conductor = Conductor::create(&path, 1).unwrap();
    let mut conductor = conductor.with_timeout(Duration::from_millis(1));
    let stop = AtomicBool::default();
    std::thread::scope(|scope| {
        let leaf = scope.spawn(|| {
            let mut clock = ClockFile::open(&path).unwrap().join(LEAF).unwrap();
            let mut sent = 0;
            while clock.next(&stop).is_some() {
                sent += 1;
                clock.polled(|| Progress { sent, ..Progress::default() });
            }
        });
        let number = accept(&mut conductor, LEAF);
        // The thread may not reach a poll within the limit of one turn. It does in a later turn.
        let error = loop {
            match conductor.turn(number).unwrap_err() {
                TurnError::Restless { sent: 0, .. } => {}
                error => break error,
            }
        };
        stop.store(true, Relaxed);
        assert!(matches!(error, TurnError::Restless { sent, .. } if sent > 0), "{error}");
        let text = error.to_string();
        assert!(text.contains("leaf 3 core 0") && text.contains("does not become quiet"), "{text}");
        leaf.join().unwrap();
        let error = conductor.turn(number).unwrap_err().to_string();
        assert!(error.contains("leaf 3 core 0") && error.contains("ended"), "{error}");
    });
}

// promise: emulated-time.1
#[test]
fn invalid_clock_is_refused_with_the_fix() {
    let (folder, path) = folder();
    let open_error = |path: &Path| ClockFile::open(path).unwrap_err().to_string();
    assert!(
        open_error(&path).contains("no such file; start its conductor first"),
        "{}",
        open_error(&path)
    );
    assert!(open_error(folder.path()).contains("clock "), "{}", open_error(folder.path()));

    fs::write(&path, vec![7; 4096]).unwrap();
    assert!(
        open_error(&path).contains("not a wedjat clock; name the file"),
        "{}",
        open_error(&path)
    );
    assert!(Conductor::create(&path, 1).unwrap_err().to_string().contains("not a wedjat clock"));
    fs::write(&path, b"short").unwrap();
    assert!(open_error(&path).contains("not a wedjat clock"), "{}", open_error(&path));
    fs::remove_file(&path).unwrap();

    let conductor = Conductor::create(&path, 1).unwrap();
    let error = Conductor::create(&path, 1).unwrap_err().to_string();
    assert!(error.contains("in use by a running conductor"), "{error}");
    assert!(error.contains("; stop it, or name another file"), "{error}");
    let clock = ClockFile::open(&path).unwrap();
    let _node = clock.join(LEAF).unwrap();
    let error = clock.join(AGENT).unwrap_err().to_string();
    assert!(error.contains("all of its 1 lines"), "{error}");

    let bytes = fs::read(&path).unwrap();
    drop(conductor);
    // A copy has no lock, like the file of a dead conductor.
    fs::write(&path, &bytes).unwrap();
    assert!(open_error(&path).contains("ended"), "{}", open_error(&path));
    // Opens the file after a change of one byte of the header: the version is at 8, the number of nodes at 24.
    let change = |at: usize, byte: u8| {
        let mut bytes = bytes.clone();
        bytes[at] = byte;
        fs::File::create(&path).unwrap().write_all(&bytes).unwrap();
        open_error(&path)
    };
    let other_version = change(8, 99);
    assert!(other_version.contains("layout version 99"), "{other_version}");
    assert!(other_version.contains("; build node and conductor from the same release"));
    let damaged = change(24, 2);
    assert!(damaged.contains("damaged") && damaged.contains("2 nodes"), "{damaged}");
    assert!(damaged.contains("; remove it, and restart its conductor"), "{damaged}");
    fs::write(&path, &bytes).unwrap();
    drop(Conductor::create(&path, 1).expect("what a dead conductor left is replaced"));
}

// promise: emulated-time.1
#[test]
fn second_conductor_at_creation_is_refused() {
    let (_folder, path) = folder();
    let creating = NameLock::take(&path).unwrap();
    let error = Conductor::create(&path, 1).unwrap_err().to_string();
    assert!(error.contains("in use by a running conductor"), "{error}");
    drop(creating);
    let _conductor = Conductor::create(&path, 1).unwrap();
    assert!(NameLock::look(&path).is_ok(), "only the creation needs this lock");
}

// promise: emulated-time.1
#[test]
fn claimed_line_is_not_the_former_node() {
    let (_folder, path) = folder();
    let mut conductor = Conductor::create(&path, 1).unwrap();
    let clock = ClockFile::open(&path).unwrap();
    let first = clock.join(LEAF).unwrap();
    let number = accept(&mut conductor, LEAF);
    drop(first);
    conductor.forget(number);
    // Another node has claimed the line, and has not stored its name yet.
    let _claimed = clock.claim().unwrap();
    assert_eq!(conductor.take(LEAF), None);
}
