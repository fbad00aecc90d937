//! `share/wedjat.lua`, the Wireshark dissector of task headers, run by tshark. The project's own code writes the
//! captures.
#![allow(clippy::unwrap_used, reason = "a test")]

use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;
use std::process::Command;

use serde_json::Value;
use wedjat::io::pcap::write_frames;
use wedjat::wire::auth::{self, Key};
use wedjat::wire::completion::{Completion, ENTRY_LEN};
use wedjat::wire::ether::Mac;
use wedjat::wire::peer::{ForwardingTrailer, VIA_LEN};
use wedjat::wire::task::{Code, EXTENSION_LEN, Extension, Header, LEN};
use wedjat::wire::udp::{Flow, PAYLOAD, PAYLOAD_V6};

/// The client's address, 10.0.1.2.
const CLIENT: u32 = 0x0A00_0102;
/// The leaf's address, 10.0.1.1.
const LEAF: u32 = 0x0A00_0101;
/// The address of the workers' host, 10.0.2.11.
const SERVER: u32 = 0x0A00_020B;
/// Length of the data after the task header.
const PAYLOAD_LEN: usize = 5;

/// Returns the addresses and ports of a packet with this header. Its code gives the direction: client to leaf, server
/// to client, or server to leaf. `port` is the scheduler's UDP port.
fn flow(header: &Header, port: u16) -> Flow {
    let (src, dst, src_port, dst_port) = match header.code {
        Code::NewTask | Code::TaskContinuation | Code::PassedTask => (CLIENT, LEAF, 40_000, port),
        _ if header.code.is_reply() => (SERVER, CLIENT, port, 40_000),
        _ => (SERVER, LEAF, port, port),
    };
    let mac = |last| Mac([2, 0, 0, 0, 0, last]);
    Flow { src_mac: mac(1), dst_mac: mac(2), src, dst, src_port, dst_port }
}

/// Builds an IPv4 frame for the scheduler's UDP port `port`, signed with a fixed key and sequence if the header is
/// authenticated.
fn frame_to(header: &Header, extension: Option<Extension>, port: u16) -> Vec<u8> {
    let (flow, len) = (flow(header, port), header.len() + PAYLOAD_LEN);
    let mut frame = vec![0; PAYLOAD + len];
    header.emit(&mut frame[PAYLOAD..]);
    if let Some(extension) = extension {
        extension.emit(&mut frame[PAYLOAD..]);
    }
    if header.authenticated {
        let key = Key::new(std::array::from_fn(|at| at as u8));
        key.sign(
            &auth::addresses(flow.src, flow.dst),
            &mut frame[PAYLOAD..],
            0x1122_3344_5566_7788,
        );
    }
    flow.emit(&mut frame, len);
    frame
}

/// Builds an unsigned IPv6 frame with an extension, for the default port. `client` holds the lower 112 bits of the
/// client's address.
fn frame_v6(header: &Header, extension: Extension, client: u128) -> Vec<u8> {
    const NETWORK: u128 = 0xFD00 << 112;
    let Flow { src_mac, dst_mac, src, dst, src_port, dst_port } = flow(header, 1234);
    let named = |address: u32| match address {
        LEAF => NETWORK | 1,
        CLIENT => NETWORK | client,
        _ => NETWORK | 0xB,
    };
    let (src, dst) = (named(src), named(dst));
    let len = header.len() + PAYLOAD_LEN;
    let mut frame = vec![0; PAYLOAD_V6 + len];
    header.emit(&mut frame[PAYLOAD_V6..]);
    extension.emit(&mut frame[PAYLOAD_V6..]);
    Flow { src_mac, dst_mac, src, dst, src_port, dst_port }.emit_v6(&mut frame, len);
    frame
}

/// Builds an IPv4 frame like [`frame_to`], for the default port.
fn frame(header: &Header, extension: Option<Extension>) -> Vec<u8> {
    frame_to(header, extension, 1234)
}

/// Returns true if tshark is installed. Prints a note otherwise; the calling test then does nothing.
fn has_tshark() -> bool {
    let has = Command::new("tshark").arg("--version").output().is_ok();
    if !has {
        // Written directly to standard error, because the output of passing tests is hidden.
        let _ = writeln!(std::io::stderr(), "SKIPPED: the dissector needs tshark (Debian: tshark)");
    }
    has
}

/// Returns the `wedjat.*` fields of each frame, as tshark shows them with the arguments `more`. Fields of expert notes,
/// such as `wedjat.short`, are among them. tshark reads the capture twice (`-2`): a task then names its later reply.
/// A `HOME` of its own keeps the user's settings away.
fn dissected(frames: &[Vec<u8>], more: &[&str]) -> Vec<BTreeMap<String, String>> {
    let folder = tempfile::tempdir().unwrap();
    let capture = folder.path().join("capture.pcap");
    write_frames(&capture, frames).unwrap();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("share/wedjat.lua");
    let output = Command::new("tshark")
        .env("HOME", folder.path())
        .arg("-X")
        .arg(format!("lua_script:{}", script.display()))
        .args(more)
        .args(["-n", "-2", "-T", "json", "-r"])
        .arg(&capture)
        .output()
        .unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && !stderr.contains("Lua"), "{stderr}");
    let packets: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap();
    packets.iter().map(|packet| fields(&packet["_source"]["layers"])).collect()
}

/// Collects all `wedjat.*` fields of tshark's nested JSON objects, at any depth.
fn fields(layers: &Value) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    let mut open = vec![layers];
    while let Some(value) = open.pop() {
        for (name, value) in value.as_object().into_iter().flatten() {
            if let (true, Some(text)) = (name.starts_with("wedjat."), value.as_str()) {
                found.insert(name.clone(), text.to_owned());
            }
            open.push(value);
        }
    }
    found
}

/// Converts a field's text to a number; a truth value to 0 or 1.
fn number(value: &str) -> u64 {
    match value {
        "True" | "true" => 1,
        "False" | "false" => 0,
        value => value.parse().unwrap_or_else(|_| panic!("{value} is no number")),
    }
}

// promise: control.3
#[test]
fn every_field_is_shown_as_it_was_written() {
    if !has_tshark() {
        return;
    }
    let extension =
        Extension { app: 0xDEAD_BEEF, seq32: 0x0001_0203, service_ns: 50_000, class: 9 };
    let mut sent = Vec::new();
    for code in (0..32).filter_map(Code::from_bits) {
        for bits in 0..8 {
            // A task is never authenticated.
            let [extended, authenticated, more] = [1, 2, 4].map(|bit| bits & bit != 0);
            if !(authenticated && code.carries_task()) {
                let seq = 1000 + sent.len() as u16;
                let header = Header {
                    code,
                    extended,
                    authenticated,
                    more,
                    pool: 7,
                    src: 12,
                    dst: 34,
                    qlen: 3,
                    seq,
                };
                sent.push(header);
            }
        }
    }
    assert!(sent.len() > 70, "{}", sent.len());
    let frames: Vec<_> =
        sent.iter().map(|header| frame(header, header.extended.then_some(extension))).collect();
    let seen = dissected(&frames, &[]);
    assert_eq!(seen.len(), sent.len());
    for (header, seen) in sent.iter().zip(&seen) {
        let value = |name: &str| seen.get(&format!("wedjat.{name}")).map(|value| number(value));
        let expected = [
            ("code", header.code as u64),
            ("extended", header.extended.into()),
            ("authenticated", header.authenticated.into()),
            ("more", header.more.into()),
            ("pool", 7),
            ("src", 12),
            ("dst", 34),
            ("qlen", 3),
            ("seq", header.seq.into()),
        ];
        for (name, expected) in expected {
            assert_eq!(value(name), Some(expected), "{name} of {header:?}: {seen:?}");
        }
        let extension = header.extended.then_some([0xDEAD_BEEF, 0x0001_0203, 50_000, 9]);
        let names = ["app", "seq32", "service_ns", "class"];
        assert_eq!(
            names.map(value),
            extension.map_or([None; 4], |values| values.map(Some)),
            "{seen:?}"
        );
        assert_eq!(
            value("auth.sequence"),
            header.authenticated.then_some(0x1122_3344_5566_7788),
            "{seen:?}"
        );
        assert_eq!(seen.contains_key("wedjat.auth.tag"), header.authenticated, "{seen:?}");
        assert_eq!(
            seen.keys().filter(|key| key.contains("expert") || key.contains("short")).count(),
            0,
            "{seen:?}"
        );
    }
}

// promise: control.3
#[test]
fn numbers_are_shown_with_their_meaning() {
    if !has_tshark() {
        return;
    }
    let task = Header::new_task(7, 1);
    let headers = [
        task,
        // A leaf sends the task to worker 5, which it knows to be idle.
        Header { dst: 5, qlen: 1, ..task },
        Header { code: Code::TaskDone, src: 5, dst: 0, qlen: 4, ..task },
        // The code decides, not the queue length.
        Header { code: Code::TaskDoneIdle, src: 5, dst: 0, qlen: 4, ..task },
        // Registration of worker 5 of pool 7 with two tasks, and its acknowledgement by leaf 9 (timeout 100 ms).
        Header::worker_id(7, 5, 2, 1),
        Header::worker_id(7, 5, 2, 1).acknowledged_by(9, 100),
    ];
    let mut frames: Vec<_> = headers.iter().map(|header| frame(header, None)).collect();
    // Node 3 asks node 4 for a task. Then node 3 forwards a task that the client sent to node 4, with a trailer.
    frames.push(frame(&Header::of_peers(Code::StealRequest, 7, (3, 4), 0), None));
    let passed = Header { code: Code::PassedTask, ..task };
    // The trailer follows the data. The frame's headers are written again, because the UDP length includes the trailer.
    let via =
        ForwardingTrailer { version: 1, hops: 2, by: 3, origin: 4, mac: Mac([2, 0, 0, 0, 0, 9]) };
    let mut forwarded = frame(&passed, None);
    let at = forwarded.len();
    forwarded.resize(at + VIA_LEN, 0);
    via.emit(&mut forwarded[at..]);
    flow(&passed, 1234).emit(&mut forwarded, at + VIA_LEN - PAYLOAD);
    frames.push(forwarded);
    // A server reports a completed task of class 2. Worker 5 has 3 tasks left.
    let report = Header::completions(7, 5, 1, 1);
    let done = Completion { worker: 5, class: 2, left: 3, service_ns: 50_000 };
    let mut reported = frame(&report, None);
    reported.resize(PAYLOAD + report.len() + ENTRY_LEN, 0);
    Completion::emit_all(&[done], &report, &mut reported[PAYLOAD..]);
    flow(&report, 1234).emit(&mut reported, report.len() + ENTRY_LEN);
    frames.push(reported);
    let seen = dissected(&frames, &[]);
    let value =
        |at: usize, name: &str| seen[at].get(&format!("wedjat.{name}")).map(|value| number(value));
    assert_eq!((value(6, "node"), value(6, "peer")), (Some(3), Some(4)));
    assert_eq!(
        (value(7, "via.hops"), value(7, "via.by"), value(7, "via.origin")),
        (Some(2), Some(3), Some(4))
    );
    assert_eq!(seen[7]["wedjat.via.mac"], "02:00:00:00:00:09");
    assert_eq!((value(0, "worker"), value(0, "idle")), (None, None), "no worker is chosen yet");
    assert_eq!((value(1, "worker"), value(1, "idle")), (Some(5), Some(1)));
    assert_eq!((value(2, "worker"), value(2, "report")), (Some(5), Some(4)));
    assert_eq!(value(3, "report"), Some(0));
    assert_eq!((value(4, "worker"), value(4, "report")), (Some(5), Some(2)));
    assert_eq!((value(5, "worker"), value(5, "timeout_ms")), (Some(5), Some(100)));
    assert_eq!((value(8, "entries"), value(8, "class")), (Some(1), None));
    let names = ["worker", "class", "left", "service_ns"].map(|name| format!("completion.{name}"));
    let completion = names.each_ref().map(|name| value(8, name));
    assert_eq!(completion, [5, 2, 3, 50_000].map(Some));
}

// promise: control.3
#[test]
fn a_reply_names_its_task() {
    if !has_tshark() {
        return;
    }
    let extended = Header { extended: true, ..Header::new_task(7, 1) };
    let ids = |seq32| Some(Extension { app: 1, seq32, ..Extension::default() });
    let done = Header { code: Code::TaskDone, src: 5, dst: 0, ..extended };
    let frames = [
        frame(&extended, ids(1)),
        frame(&extended, ids(65_537)), // equal lower 16 bits
        frame(&Header::new_task(7, 1), None),
        frame(&done, ids(65_537)),
        frame(&Header { extended: false, ..done }, None),
    ];
    let seen = dissected(&frames, &[]);
    let value =
        |at: usize, name: &str| seen[at].get(&format!("wedjat.{name}")).map(|value| number(value));
    // tshark numbers frames from 1. The reply 4 belongs to the task 2 (equal seq32), and 5 to 3 (equal seq).
    assert_eq!([0, 1, 2].map(|at| value(at, "response_in")), [None, Some(4), Some(5)]);
    assert_eq!([3, 4].map(|at| value(at, "response_to")), [Some(2), Some(3)]);
    assert!(seen[3].contains_key("wedjat.time"), "{seen:?}");
}

/// Checks fields, meanings of numbers, and matching of replies with tasks. Two clients with equal ports and numbers
/// differ only in their addresses.
// promise: control.3
#[test]
fn ipv6_tasks_are_shown_like_ipv4() {
    if !has_tshark() {
        return;
    }
    let task = Header { extended: true, ..Header::new_task(7, 1) };
    let done = Header { code: Code::TaskDone, src: 5, dst: 0, qlen: 4, ..task };
    let ids = Extension { app: 1, seq32: 9, service_ns: 50_000, class: 3 };
    let (one, other) = (0xA << 64 | 2, 0xB << 64 | 2);
    let frames = [
        frame_v6(&task, ids, one),
        frame_v6(&task, ids, other),
        frame_v6(&done, ids, other),
        frame_v6(&done, ids, one),
    ];
    let seen = dissected(&frames, &[]);
    let value =
        |at: usize, name: &str| seen[at].get(&format!("wedjat.{name}")).map(|value| number(value));
    for at in 0..4 {
        let fields = ["pool", "seq", "app", "seq32", "service_ns", "class"];
        assert_eq!(fields.map(|name| value(at, name)), [7, 1, 1, 9, 50_000, 3].map(Some));
        assert!(!seen[at].contains_key("wedjat.short"), "{seen:?}");
    }
    assert_eq!((value(2, "worker"), value(2, "report")), (Some(5), Some(4)));
    assert_eq!([0, 1].map(|at| value(at, "response_in")), [Some(4), Some(3)]);
    assert_eq!([2, 3].map(|at| value(at, "response_to")), [Some(2), Some(1)]);
}

// promise: control.3
#[test]
fn malformed_packets_are_shown_as_such() {
    if !has_tshark() {
        return;
    }
    let extended = Header { extended: true, ..Header::new_task(7, 1) };
    let good = frame(&extended, Some(Extension::default()));
    // Returns the frame with its UDP payload cut to this length.
    let cut = |payload: usize| {
        let mut frame = good.clone();
        frame.truncate(PAYLOAD + payload);
        flow(&extended, 1234).emit(&mut frame, payload);
        frame
    };
    // The first byte of the header is the code with three flags. 31 is no code, and a task is never authenticated
    // (0x40).
    let mut unknown = good.clone();
    unknown[PAYLOAD] = 31;
    let mut proof_of_a_task = good.clone();
    proof_of_a_task[PAYLOAD] |= 0x40;
    let mut frames: Vec<_> = (0..LEN + EXTENSION_LEN).map(cut).collect();
    frames.extend([unknown, proof_of_a_task, good]);
    let seen = dissected(&frames, &[]);
    let has = |at: usize, name: &str| seen[at].contains_key(name);
    // A datagram without payload is not shown as a task.
    assert!((1..LEN + EXTENSION_LEN).all(|at| has(at, "wedjat.short")), "{seen:?}");
    let last = frames.len() - 3;
    assert!(has(last, "wedjat.unknown") && has(last + 1, "wedjat.proof"), "{seen:?}");
    assert!(
        !["short", "unknown", "proof"].iter().any(|name| has(last + 2, &format!("wedjat.{name}")))
    );
}

// promise: control.3
#[test]
fn other_ports_are_a_preference() {
    if !has_tshark() {
        return;
    }
    let frames = [frame_to(&Header::new_task(7, 1), None, 4321)];
    assert!(dissected(&frames, &[])[0].is_empty());
    assert_eq!(dissected(&frames, &["-o", "wedjat.ports:4000-5000"])[0]["wedjat.pool"], "7");
}
