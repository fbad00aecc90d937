//! Regions of agents: obtained by name over a socket, refused if wrong, replaced if left behind, and
//! impossible to remove.

use std::fs;
use std::io::{IoSlice, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::Barrier;
use std::sync::atomic::Ordering::Relaxed;

use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix,
    SocketFlags, SocketType,
};

use super::*;
use crate::ring::attach::{InvalidOffer, Offer, VERSION, request_offer};
use crate::state::files::Scratch;

/// Returns workers of pool 3 with ids from 10 on.
fn identities(count: u16) -> Vec<WorkerIdentity> {
    (0..count).map(|id| WorkerIdentity { id: 10 + id, pool: 3 }).collect()
}

/// Creates a region of two workers in a new folder.
fn created() -> (tempfile::TempDir, PathBuf, WorkerRegion) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("region");
    let region = WorkerRegion::create(&path, &identities(2), 4, 32).unwrap();
    (folder, path, region)
}

/// Waits for a condition that other tests of this process may delay. A lock ends with its last descriptor,
/// and a process that another test is just starting may still hold one. `what` names the condition in the panic
/// message.
fn wait_until(what: &str, mut is_true: impl FnMut() -> bool) {
    let began = std::time::Instant::now();
    while !is_true() {
        assert!(began.elapsed() < crate::TIMEOUT, "waited in vain until {what}");
        std::thread::yield_now();
    }
}

#[test]
fn task_passes_between_two_mappings() {
    let (folder, path, region) = created();
    let mode = |path: &Path| fs::symlink_metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&path), 0o600);
    let mut channel = region.channel(1);
    let other = Arc::new(WorkerRegion::open(&path).unwrap());
    assert_eq!(
        (other.identity(1), other.shape()),
        (Some(WorkerIdentity { id: 11, pool: 3 }), region.shape())
    );
    assert_eq!(other.pid(), u64::from(std::process::id()));
    assert!(other.has_agent() && !region.has_worker(1));
    let worker_end = other.claim(1).unwrap().unwrap();
    assert!(region.has_worker(1) && !region.has_worker(0));
    assert!(other.claim(1).unwrap().is_none(), "taken, for threads of one process, too");
    let sender = channel.sender_mut();
    sender.grant(sender.claim());
    worker_end.start();
    assert!(channel.send(ids(1), b"over there"));
    assert_eq!(echo(&worker_end), b"over there");
    assert_eq!(channel.collect(), Ok(0..1));
    drop(worker_end);
    wait_until("the worker's lock is free", || !region.has_worker(1));
    drop(region);
    wait_until("the agent's lock is free", || !other.has_agent());
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 0, "an agent that ends leaves nothing");
    assert!(matches!(WorkerRegion::open(&path), Err(RegionError::Missing { .. })));
}

// promise: agent.2
#[test]
fn live_region_is_refused_dead_one_replaced() {
    let (folder, path, region) = created();
    let own = Some(u64::from(std::process::id()));
    let error = WorkerRegion::create(&path, &identities(1), 4, 32).unwrap_err();
    assert!(matches!(error, RegionError::InUse { pid, .. } if pid == own), "{error}");
    fs::remove_file(folder.path().join("region.lock")).unwrap();
    let error = WorkerRegion::create(&path, &identities(1), 4, 32).unwrap_err();
    assert!(matches!(error, RegionError::InUse { pid, .. } if pid == own), "no lock: {error}");
    assert!(WorkerRegion::open(&path).is_ok());
    let old = WorkerRegion::open(&path).unwrap();
    drop(region);
    // Leftover of a killed process.
    drop(Scratch::socket(&path).unwrap().put_at(&path, false).unwrap());
    fs::write(folder.path().join("region.lock"), "wedjat 999999999\n").unwrap();
    let error = WorkerRegion::open(&path).unwrap_err();
    assert!(error.to_string().contains("has stopped; start it"), "{error}");
    let region = WorkerRegion::create(&path, &identities(1), 8, 64).unwrap();
    assert_eq!(WorkerRegion::open(&path).unwrap().shape(), region.shape());
    wait_until("its lock is free", || !old.has_agent()); // the new region is different memory
    drop(region);
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 0);
}

// promise: input.3
#[test]
fn one_of_several_starting_agents_wins() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("region");
    for round in 0..30 {
        let start = Barrier::new(4);
        let create = || {
            start.wait();
            WorkerRegion::create(&path, &identities(2), 4, 32)
        };
        let made: Vec<_> = std::thread::scope(|scope| {
            let threads = [(); 4].map(|()| scope.spawn(create));
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        let (won, lost): (Vec<_>, Vec<_>) = made.into_iter().partition(Result::is_ok);
        assert_eq!(won.len(), 1, "round {round}");
        for error in lost {
            assert!(matches!(error, Err(RegionError::InUse { .. })), "{error:?}");
        }
        assert!(WorkerRegion::open(&path).unwrap().has_agent(), "round {round}");
        drop(won);
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 0, "round {round}");
    }
}

// promise: input.3
#[test]
fn foreign_file_is_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    for (path, kind) in crate::state::files::tests::specials(folder.path()) {
        if kind == "a socket" {
            continue; // may be left by an agent
        }
        let before = fs::symlink_metadata(&path).unwrap().ino();
        let created = WorkerRegion::create(&path, &identities(1), 4, 32).unwrap_err().to_string();
        assert!(created.contains(kind) && created.contains("use another name"), "{created}");
        let opened = WorkerRegion::open(&path).unwrap_err();
        // `open` follows a link: its error describes the target.
        if kind != "a symbolic link" {
            assert!(opened.to_string().contains(kind), "{opened}");
        }
        assert_eq!(fs::symlink_metadata(&path).unwrap().ino(), before);
    }
    let path = folder.path().join("precious");
    // Locked files, as an agent's memory is. The second one begins like an offer.
    for text in [&b"the only copy of something"[..], b"WEDJATwk"] {
        fs::write(&path, text).unwrap();
        let locked = fs::File::options().write(true).open(&path).unwrap();
        rustix::fs::fcntl_lock(&locked, rustix::fs::FlockOperation::LockExclusive).unwrap();
        let created = WorkerRegion::create(&path, &identities(1), 4, 32);
        assert!(matches!(created, Err(RegionError::Foreign { .. })));
        assert!(matches!(WorkerRegion::open(&path), Err(RegionError::Foreign { .. })));
        assert_eq!(fs::read(&path).unwrap(), text);
    }
    // A stream socket is another program's: agents listen at sockets of messages.
    let path = folder.path().join("stream");
    let _listener = UnixListener::bind(&path).unwrap();
    let error = WorkerRegion::create(&path, &identities(1), 4, 32).unwrap_err().to_string();
    assert!(error.contains("of another program"), "{error}");
    let error = WorkerRegion::open(&path).unwrap_err().to_string();
    assert!(error.contains("of another program"), "{error}");
}

/// Tries the actions by which another process of the same user could take the memory away. Agent and workers run on.
// promise: agent.2
#[test]
fn peers_cannot_remove_the_memory() {
    let (_folder, path, region) = created();
    let memory = request_offer(&path, crate::TIMEOUT).unwrap().memory;
    let len = memory.metadata().unwrap().len();
    for changed in [0, 100, len - 1, len + 1] {
        assert!(memory.set_len(changed).is_err(), "{changed} bytes");
    }
    let more = SealFlags::WRITE | SealFlags::FUTURE_WRITE;
    assert!(rustix::fs::fcntl_add_seals(&memory, more).is_err(), "no peer can forbid writing");
    // A hole reads as zeros, and can be filled again.
    let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(&memory, hole, 0, len).unwrap();
    memory.set_permissions(fs::Permissions::from_mode(0o0)).unwrap();
    let other = Arc::new(WorkerRegion::open(&path).unwrap());
    let worker_end = other.claim(0).unwrap().unwrap();
    let mut channel = region.channel(0);
    let sender = channel.sender_mut();
    sender.grant(sender.claim());
    worker_end.start();
    assert!(channel.send(ids(1), b"still"));
    let taken = take(&worker_end);
    assert_eq!(worker_end.payload(&taken), b"still");
}

// promise: membership.1
#[test]
fn offered_channels_match_current_owners() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("region");
    let shape = RegionShape { channels: 3, slots: 4, payload: 32 };
    let region = WorkerRegion::create_for(&path, &identities(2), shape).unwrap();
    let before = Arc::new(WorkerRegion::open(&path).unwrap());
    assert!(before.identity(2).is_none() && before.claim(2).unwrap().is_none(), "nobody's");
    let [newcomer, other] = [30, 40].map(|id| WorkerIdentity { id, pool: 5 });
    region.offer(2, Some(newcomer));
    region.offer(0, None);
    let after = Arc::new(WorkerRegion::open(&path).unwrap());
    assert_eq!([0, 2].map(|channel| after.identity(channel)), [None, Some(newcomer)]);
    assert!(after.claim(0).unwrap().is_none(), "no longer anybody's");
    let worker_end = after.claim(2).unwrap().unwrap();
    assert_eq!(region.channel(2).sender().claimed_name(), newcomer.word());
    drop(worker_end);
    // A worker with an older offer of the channel is recognised by its name.
    region.offer(0, Some(other));
    let late = before.claim(0).unwrap().unwrap();
    assert_eq!(late.identity(), identities(1)[0]);
    assert_ne!(region.channel(0).sender().claimed_name(), other.word());
    let few = RegionShape { channels: 1, ..shape };
    assert!(matches!(
        WorkerRegion::heap_for(&identities(2), few),
        Err(RegionError::RegionShape(_))
    ));
}

/// A worker that overwrites the whole region spoils channels, but prevents no one from attaching.
// promise: agent.2
#[test]
fn workers_can_attach_to_overwritten_memory() {
    let (_folder, path, region) = created();
    for value in [u64::MAX, 1, 0xDEAD_BEEF] {
        region.memory().iter().for_each(|word| word.store(value, Relaxed));
        let other = Arc::new(WorkerRegion::open(&path).unwrap());
        assert_eq!(
            (other.identity(1), other.shape()),
            (Some(WorkerIdentity { id: 11, pool: 3 }), region.shape())
        );
        let mut channel = region.channel(1);
        let worker_end = other.claim(1).unwrap().unwrap();
        let sender = channel.sender_mut();
        sender.grant(sender.claim());
        worker_end.start();
        assert!(channel.send(ids(1), b"as ever"));
        assert_eq!(echo(&worker_end), b"as ever");
        assert_eq!(channel.collect(), Ok(0..1));
    }
}

// promise: agent.2
#[test]
fn silent_peers_occupy_no_descriptor() {
    let (_folder, path, region) = created();
    let open_descriptors = || fs::read_dir("/proc/self/fd").unwrap().count();
    let connect = || {
        let flags = SocketFlags::CLOEXEC;
        let (unix, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
        let socket = rustix::net::socket_with(unix, kind, flags, None).unwrap();
        rustix::net::connect(&socket, &SocketAddrUnix::new(&path).unwrap()).unwrap();
        socket
    };
    let peers: Vec<OwnedFd> = (0..100).map(|_| connect()).collect();
    // The last client is served, so the earlier ones have been.
    let other = WorkerRegion::open(&path).unwrap();
    assert!(other.has_agent());
    // The peers' own ends are open in this process. Other tests of the process open far fewer than 100 files. The
    // agent's ends would be 100 more.
    wait_until("few descriptors are open", || open_descriptors() <= 100 + peers.len());
    drop(region);
}

// promise: agent.2
#[test]
fn agent_serves_waiting_workers_after_descriptor_shortage() {
    let child = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "ring::tests::files::runs_out_of_descriptors", "--nocapture"])
        .env("WEDJAT_NO_DESCRIPTORS", "")
        .output()
        .unwrap();
    let output = String::from_utf8_lossy(&child.stdout);
    assert!(child.status.success() && output.contains("served at last"), "{output}");
}

/// Child part of the previous test; does nothing without it.
#[test]
fn runs_out_of_descriptors() {
    use rustix::net::sockopt::{Timeout, set_socket_timeout};
    use rustix::process::{Resource, getrlimit, setrlimit};
    use std::os::fd::AsRawFd;
    use std::time::Duration;

    if std::env::var_os("WEDJAT_NO_DESCRIPTORS").is_none() {
        return;
    }
    let (_folder, path, _region) = created();
    let (unix, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
    let peer = rustix::net::socket_with(unix, kind, SocketFlags::CLOEXEC, None).unwrap();
    let before = getrlimit(Resource::Nofile);
    // Lowest free descriptor. As the limit, it leaves the process no free descriptor.
    let free = fs::File::open("/dev/null").unwrap().as_raw_fd() as u64;
    let mut none = before;
    none.current = Some(free);
    setrlimit(Resource::Nofile, none).unwrap();
    rustix::net::connect(&peer, &SocketAddrUnix::new(&path).unwrap()).unwrap();
    let mut bytes = [0; 1000];
    let mut receive = |timeout| {
        set_socket_timeout(&peer, Timeout::Recv, Some(timeout)).unwrap();
        rustix::net::recv(&peer, &mut bytes[..], rustix::net::RecvFlags::empty())
    };
    assert!(receive(Duration::from_millis(200)).is_err(), "it can't be accepted");
    setrlimit(Resource::Nofile, before).unwrap();
    assert!(receive(crate::TIMEOUT).unwrap().0 > 0);
    println!("served at last");
}

/// Imitates an agent: sends these bytes and this descriptor to the first client. Returns the client's error.
fn impostor(path: &Path, bytes: Vec<u8>, descriptor: Option<&OwnedFd>) -> RegionError {
    let (socket, _) = Scratch::socket(path).unwrap().put_at(path, true).unwrap();
    std::thread::scope(|scope| {
        let server = scope.spawn(|| {
            let mut events = [rustix::event::PollFd::new(&socket, rustix::event::PollFlags::IN)];
            rustix::event::poll(&mut events, None).unwrap();
            let peer = rustix::net::accept(&socket).unwrap();
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            let rights: Vec<BorrowedFd<'_>> = descriptor.iter().map(|fd| fd.as_fd()).collect();
            if !rights.is_empty() {
                control.push(SendAncillaryMessage::ScmRights(&rights));
            }
            if !bytes.is_empty() {
                let parts = [IoSlice::new(&bytes)];
                rustix::net::sendmsg(&peer, &parts, &mut control, SendFlags::empty()).unwrap();
            }
        });
        let error = WorkerRegion::open(path).unwrap_err();
        server.join().unwrap();
        error
    })
}

// promise: agent.2
#[test]
fn impossible_offers_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("region");
    let identities = identities(1).into_iter().map(Some).chain([None]).collect();
    let offer = Offer { shape: RegionShape { channels: 2, slots: 4, payload: 32 }, identities };
    let good = offer.to_bytes();
    assert_eq!(Offer::parse(&good), Ok(offer.clone()));
    // Parses the offer after a change of these bits of one byte.
    let parse_flipped = |offset: usize, bits: u8| {
        let mut bytes = good.clone();
        bytes[offset] ^= bits;
        Offer::parse(&bytes)
    };
    // Offsets: 0 the magic, 8 the version, 16 the number of channels, 24 the number of slots.
    assert_eq!(parse_flipped(0, 1), Err(InvalidOffer::Foreign));
    assert_eq!(parse_flipped(8, 1), Err(InvalidOffer::Version(VERSION ^ 1)));
    for offset in 16..32 {
        let parsed = parse_flipped(offset, 0x45);
        assert!(matches!(parsed, Err(InvalidOffer::Damaged(_))), "byte {offset}");
    }
    // Bytes of the first identity that are in neither of its two numbers.
    for offset in [42, 43, 46, 47] {
        let parsed = parse_flipped(offset, 1);
        assert!(matches!(parsed, Err(InvalidOffer::Damaged(_))), "byte {offset}");
    }
    for len in 0..good.len() {
        assert!(Offer::parse(&good[..len]).is_err(), "{len} bytes");
    }
    // The magic and the version alone are an agent's refusal.
    assert_eq!(Offer::parse(&good[..16]), Err(InvalidOffer::Refused));

    // Creates anonymous memory of this length with these seals.
    let memory = |len, seals| {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let memory = rustix::fs::memfd_create("test", flags).unwrap();
        rustix::fs::ftruncate(&memory, len).unwrap();
        rustix::fs::fcntl_add_seals(&memory, seals).unwrap();
        memory
    };
    let len = Layout::new(&offer.shape).len as u64;
    let fixed = SealFlags::SHRINK | SealFlags::GROW;
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(&vec![0; len as usize]).unwrap();
    let null = fs::File::open("/dev/null").unwrap();
    let cases = [
        (Some(memory(len, SealFlags::GROW)), "could be taken away"),
        (Some(memory(len - 1, fixed)), "shorter than it should be"),
        (Some(memory(0, fixed)), "shorter than it should be"),
        (Some(file.into()), "could be taken away"),
        (Some(null.into()), "could be taken away"),
        (None, "an offer without memory"),
    ];
    for (descriptor, text) in cases {
        let error = impostor(&path, good.clone(), descriptor.as_ref());
        assert!(matches!(error, RegionError::Damaged { .. }), "{error}");
        assert!(error.to_string().contains(text), "{error}");
    }
    let silent = impostor(&path, Vec::new(), None);
    assert!(matches!(silent, RegionError::Silent { .. }), "{silent}");
    let refused = impostor(&path, good[..16].to_vec(), None);
    assert!(matches!(refused, RegionError::Owner { .. }), "{refused}");
    let foreign = impostor(&path, vec![b'x'; 200], Some(&memory(len, fixed)));
    assert!(matches!(foreign, RegionError::Foreign { .. }), "{foreign}");
    let mut other = good.clone();
    other[8] = 99;
    let version = impostor(&path, other, Some(&memory(len, fixed)));
    assert!(matches!(version, RegionError::Version { found: 99, .. }), "{version}");
}

// promise: agent.2
#[test]
fn unresponsive_agent_times_out() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("region");
    // Listens, but its thread does not run.
    let _socket = Scratch::socket(&path).unwrap().put_at(&path, false).unwrap();
    let error = WorkerRegion::open(&path).unwrap_err();
    assert!(error.to_string().contains("does not answer"), "{error}");
}

#[test]
fn impossible_shapes_are_refused() {
    for (workers, slots, payload) in [(0, 4, 32), (1, 3, 32), (1, 4, 0), (1, 1 << 20, 32)] {
        let error = WorkerRegion::heap(&identities(workers), slots, payload).unwrap_err();
        assert!(matches!(error, RegionError::RegionShape(_)), "{error}");
    }
}
