//! Tests of `files.rs`: existing files stay untouched, new files are private, and a path has one owner.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::sync::Barrier;

use super::*;
use crate::state::table::{Snapshot, Spec, Table};

/// Creates a folder. Returns it with the path of a missing file in it.
fn folder() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("name");
    (folder, path)
}

/// Returns the names of a folder's entries.
fn names(folder: &tempfile::TempDir) -> Vec<String> {
    let entries = fs::read_dir(folder.path()).unwrap();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

/// Creates entries that are no regular files, and the regular file `precious`, to which one of them leads. Returns the
/// irregular ones and two devices, each with its description.
pub fn specials(folder: &Path) -> Vec<(PathBuf, &'static str)> {
    let at = |name: &str| folder.join(name);
    let nodes = [("fifo", FileType::Fifo), ("socket", FileType::Socket)];
    for (name, kind) in nodes {
        rustix::fs::mknodat(rustix::fs::CWD, at(name), kind, OWNERS, 0).unwrap();
    }
    fs::create_dir(at("folder")).unwrap();
    fs::write(at("precious"), "the only copy of something").unwrap();
    symlink(at("precious"), at("link")).unwrap();
    symlink(at("nowhere"), at("dangling")).unwrap();
    vec![
        (at("fifo"), "a FIFO"),
        (at("socket"), "a socket"),
        (at("folder"), "a folder"),
        (at("link"), "a symbolic link"),
        (at("dangling"), "a symbolic link"),
        ("/dev/null".into(), "a character device"),
        ("/dev/full".into(), "a character device"),
    ]
}

// promise: input.3
#[test]
fn existing_file_is_inspected_without_opening() {
    let (folder, path) = folder();
    assert!(ExistingFile::at(&path).unwrap().is_none());
    for (path, kind) in specials(folder.path()) {
        let found = ExistingFile::at(&path).unwrap().unwrap();
        assert!(found.describe().starts_with(kind), "{}", found.describe());
        assert!(!found.is_file() && found.is_socket() == (kind == "a socket"));
    }
    let link = folder.path().join("link");
    assert!(ExistingFile::behind(&link).unwrap().unwrap().is_file(), "a reader may follow it");
    let mut text = String::new();
    let found = ExistingFile::behind(&link).unwrap().unwrap();
    fs::rename(folder.path().join("fifo"), folder.path().join("precious")).unwrap();
    found.open(false).unwrap().read_to_string(&mut text).unwrap();
    assert_eq!(text, "the only copy of something", "the inspected file is opened");
}

// promise: input.3
#[test]
fn new_file_is_private_from_the_start() {
    let (folder, path) = folder();
    let scratch = Scratch::file(&path, None).unwrap();
    let name = names(&folder).pop().unwrap();
    // The prefix has 8 characters, the random number 32.
    assert!(name.starts_with(".wedjat-") && name.len() == 40, "{name}");
    assert_ne!(scratch.entry.name, Scratch::file(&path, None).unwrap().entry.name);
    let mode = |path: &Path| fs::symlink_metadata(path).unwrap().permissions().mode() & 0o7777;
    assert_eq!(mode(&folder.path().join(&name)), 0o600);
    drop(scratch);
    assert!(names(&folder).is_empty(), "an incomplete file is removed");
    let (_file, known) = Scratch::file(&path, None).unwrap().put_at(&path, false).unwrap();
    assert_eq!((names(&folder), mode(&path)), (vec!["name".to_owned()], 0o600));
    let second = Scratch::file(&path, None).unwrap().put_at(&path, false).unwrap_err();
    assert_eq!(second.kind(), io::ErrorKind::AlreadyExists);
    let group = fs::metadata(&path).unwrap().gid();
    Scratch::file(&path, Some(group)).unwrap().put_at(&path, true).unwrap();
    assert_eq!((names(&folder).len(), mode(&path)), (1, 0o640));
    known.remove_at(&path);
    assert!(path.exists(), "another file than the one it knows");
    Scratch::socket(&path).unwrap().put_at(&path, true).unwrap();
    assert_eq!((names(&folder).len(), mode(&path)), (1, 0o600));
    assert!(ExistingFile::at(&path).unwrap().unwrap().is_socket());
}

/// Stands for file systems without RENAME_NOREPLACE: a second name takes the place of the rename.
// promise: input.3
#[test]
fn link_in_place_of_rename_replaces_nothing() {
    let (folder, path) = folder();
    fs::write(&path, "kept").unwrap();
    let scratch = Scratch::file(&path, None).unwrap();
    let name = path.file_name().unwrap();
    assert_eq!(scratch.entry.link_as(name).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
    assert_eq!(fs::read(&path).unwrap(), b"kept");
    fs::remove_file(&path).unwrap();
    scratch.entry.link_as(name).unwrap();
    drop(scratch);
    assert_eq!(names(&folder), ["name"]);
}

#[test]
fn path_may_exceed_a_socket_address() {
    let (folder, _) = folder();
    let deep = folder.path().join("f".repeat(100)).join("o".repeat(100));
    fs::create_dir_all(&deep).unwrap();
    let path = deep.join("name");
    Scratch::socket(&path).unwrap().put_at(&path, false).unwrap();
    assert!(ExistingFile::at(&path).unwrap().unwrap().is_socket());
}

// promise: input.3
#[test]
fn concurrent_claims_have_one_owner() {
    let (folder, path) = folder();
    for round in 0..50 {
        let start = Barrier::new(4);
        let take = || {
            start.wait();
            NameLock::take(&path)
        };
        let taken: Vec<_> = std::thread::scope(|scope| {
            let threads = [(); 4].map(|()| scope.spawn(take));
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        let this_process = Some(std::process::id());
        let (won, lost): (Vec<_>, Vec<_>) = taken.into_iter().partition(Result::is_ok);
        assert_eq!((won.len(), lost.len()), (1, 3), "round {round}");
        for error in lost {
            let Err(NameError::Held(pid)) = error else { panic!("{error:?}") };
            assert!(pid.is_none() || pid == this_process.map(u64::from)); // none while its owner writes it
        }
        assert_eq!(names(&folder), ["name.lock"]);
        drop(won);
        assert!(names(&folder).is_empty(), "an owner that ends in order leaves nothing");
    }
}

// promise: input.3
#[test]
fn name_is_claimed_while_others_release_it() {
    let (folder, path) = folder();
    let holders = std::sync::atomic::AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let mut taken = 0;
                while taken < 200 {
                    let Ok(lock) = NameLock::take(&path) else { continue };
                    assert_eq!(holders.fetch_add(1, std::sync::atomic::Ordering::SeqCst), 0);
                    holders.fetch_sub(1, std::sync::atomic::Ordering::SeqCst);
                    drop(lock);
                    taken += 1;
                }
            });
        }
    });
    assert!(names(&folder).is_empty());
}

// promise: input.3
#[test]
fn stale_lock_is_taken_over_foreign_file_kept() {
    let (folder, path) = folder();
    let lock = folder.path().join("name.lock");
    for text in ["", "wedjat 999999999\n"] {
        fs::write(&lock, text).unwrap();
        drop(NameLock::take(&path).unwrap());
        assert!(!lock.exists());
    }
    fs::write(&lock, "another program's\n").unwrap();
    let error = NameLock::take(&path).unwrap_err();
    assert!(matches!(&error, NameError::Foreign(at, _) if *at == lock), "{error:?}");
    assert_eq!(fs::read_to_string(&lock).unwrap(), "another program's\n");
    fs::remove_file(&lock).unwrap();
    // The first five lie in the folder; devices cannot be renamed into it.
    for (special, kind) in specials(folder.path()).into_iter().take(5) {
        fs::rename(&special, &lock).unwrap();
        let error = NameLock::take(&path).unwrap_err();
        assert!(matches!(&error, NameError::Foreign(_, found) if found.starts_with(kind)));
        fs::rename(&lock, &special).unwrap();
    }
    assert!(!folder.path().join("nowhere").exists());
}

/// Inspects a socket at which a program listens.
#[test]
fn listening_socket_is_recognised_and_owned() {
    let (_folder, path) = folder();
    let listener = UnixListener::bind(&path).unwrap();
    let found = ExistingFile::at(&path).unwrap().unwrap();
    assert!(found.is_socket() && found.is_own());
    drop(listener);
}

// promise: input.3
#[test]
fn file_size_limit_is_an_error() {
    let limit = rustix::process::Resource::Fsize;
    let (folder, path) = folder();
    let child = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "state::files::tests::beyond_a_limit", "--nocapture"])
        .env("WEDJAT_BEYOND", &path)
        .output()
        .unwrap();
    let output = String::from_utf8_lossy(&child.stdout);
    assert!(child.status.success() && output.contains("refused with File too large"), "{output}");
    assert!(rustix::process::getrlimit(limit).current.is_none(), "here there is none");
    drop(folder);
}

/// Child process of the previous test; passes at once without it.
#[test]
fn beyond_a_limit() {
    let Some(path) = std::env::var_os("WEDJAT_BEYOND") else { return };
    let file = Scratch::file(Path::new(&path), None).unwrap();
    let limit = rustix::process::Rlimit { current: Some(100), maximum: Some(100) };
    rustix::process::setrlimit(rustix::process::Resource::Fsize, limit).unwrap();
    let report = Path::new(&path).with_extension("report");
    fs::write(&report, "the previous report").unwrap();
    let refused = ReportFile::new("--stats", &report).unwrap().write([1; 200]).unwrap_err();
    assert!(refused.contains("File too large") && refused.contains("ulimit"), "{refused}");
    assert_eq!(fs::read(&report).unwrap(), b"the previous report");
    let written = within_limits(|| file.item().write_all_at(&[1; 200], 0));
    let again = within_limits(|| file.item().set_len(200));
    assert!(again.is_err());
    println!("refused with {}", written.unwrap_err());
}

// promise: input.3
#[test]
fn a_report_replaces_a_regular_file_only() {
    let (folder, path) = folder();
    fs::write(&path, "old").unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
    let report = ReportFile::new("--stats", &path).unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"old", "the start changes nothing");
    report.write("new").unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"new");
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o640);
    assert_eq!(names(&folder).len(), 1, "{:?}", names(&folder));

    let link = folder.path().join("link");
    symlink(&path, &link).unwrap();
    let fault = ReportFile::new("--stats", &link).unwrap_err();
    assert!(fault.starts_with("--stats ") && fault.contains("a symbolic link of user"), "{fault}");
    assert!(fault.contains("name a regular file"), "{fault}");
    // A link that appears during the run is not followed either.
    fs::remove_file(&link).unwrap();
    let report = ReportFile::new("--stats", &link).unwrap();
    symlink(&path, &link).unwrap();
    assert!(report.write("other").is_err());
    assert_eq!(fs::read(&path).unwrap(), b"new");
    for place in [Path::new("/dev/null"), Path::new("/"), folder.path(), Path::new("/nowhere/x")] {
        assert!(ReportFile::new("--stats", place).is_err(), "{}", place.display());
    }
    assert_eq!(names(&folder).len(), 2, "{:?}", names(&folder));
}

#[test]
fn groups_are_known_by_name_and_number() {
    assert_eq!((group("root"), group("1234")), (Some(0), Some(1234)));
    assert_eq!((group("nobody has such a group"), group("a\0b"), group("")), (None, None, None));
    // The largest number stands for "no group" in system calls.
    assert_eq!((group("4294967294"), group("4294967295")), (Some(u32::MAX - 1), None));
}

#[test]
fn groups_with_many_members_are_found() {
    // One byte is too little for any entry, as a fixed size is for a group with many members.
    assert_eq!(group_named(c"root", 1), Some(0));
    assert_eq!(group_named(c"nobody has such a group", 1), None);
}

/// A program that uses the library may fork. The child has the owner's descriptors, and none of its threads.
// promise: input.3
#[test]
fn a_forked_child_leaves_its_parents_files_alone() {
    use rustix::process::{Pid, WaitOptions, waitpid};

    let (folder, path) = folder();
    let table = Table::create(&path, &Spec { cores: 1, ..Spec::default() }).unwrap();
    // SAFETY: the child only drops its values, which takes no lock of another thread, and exits.
    let child = unsafe { libc::fork() };
    if child == 0 {
        table.publish();
        drop(table);
        // SAFETY: it ends the process without the exit handlers of the test program.
        unsafe { libc::_exit(7) };
    }
    let began = std::time::Instant::now();
    let status = loop {
        if let Some((_, status)) = waitpid(Pid::from_raw(child), WaitOptions::NOHANG).unwrap() {
            break status;
        }
        assert!(began.elapsed() < crate::TIMEOUT, "the child hangs");
        std::thread::sleep(std::time::Duration::from_millis(1));
    };
    assert_eq!(status.exit_status(), Some(7));
    assert!(Snapshot::open(&path).unwrap().running);
    assert!(matches!(NameLock::take(&path), Err(NameError::Held(_))), "the lock is the parent's");
    drop(table);
    assert_eq!(names(&folder), ["name"]);
    assert!(!Snapshot::open(&path).unwrap().running);
}
