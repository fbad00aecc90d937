//! The installed library: pkg-config, a DPDK application in C and in Rust compared with `wedjat leaf`, and a
//! secondary process.
//!
//! The applications (examples/scheduler.c and scheduler.rs) use the library in the place of a leaf, the scheduler of a
//! rack. They must send the same packets as a leaf with the same input. Input and output are captures, by DPDK's pcap
//! device.
#![cfg(all(feature = "dpdk", target_os = "linux"))]
#![allow(clippy::unwrap_used, reason = "a test")]

mod frames;
mod hugepages;
mod installing;
mod page;
mod timeouts;

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::process::Signal;
use wedjat::io::pcap::{read_frames, write_frames};
use wedjat::state::Snapshot;
use wedjat::wire::arp;
use wedjat::wire::ether::Mac;
use wedjat::wire::task::{Code, Header};

use frames::*;
use hugepages::Hugepages;
use installing::*;
use timeouts::*;

/// Number of attempts at a comparison in real time, which stalls may disturb.
const TRIES: usize = 5;
/// Names of the ports in file names.
const SIDES: [&str; 2] = ["clients", "workers"];

/// Returns the output of pkg-config, split into words.
fn pkg_config(arguments: &[&str]) -> Vec<String> {
    let mut command = Command::new("pkg-config");
    let mut path = installed().join("lib/pkgconfig").into_os_string();
    if let Some(others) = std::env::var_os("PKG_CONFIG_PATH") {
        path.push(":");
        path.push(others);
    }
    let output = run(command.env("PKG_CONFIG_PATH", path).args(arguments));
    String::from_utf8(output.stdout).unwrap().split_whitespace().map(str::to_owned).collect()
}

/// Compiles a C program with the flags that pkg-config returns for `packages`. `linking` is empty, or `-static` for a
/// static program.
fn cc(source: &str, program: &Path, packages: &[&str], linking: &[&str]) {
    let mut arguments = vec!["--cflags", "--libs"];
    arguments.extend(linking.iter().map(|_| "--static"));
    arguments.extend(packages);
    let mut cc = Command::new("cc");
    cc.args(["-O1", "-Wall", "-Wextra", "-o"]).arg(program).args(linking);
    run(cc.arg(Path::new(SOURCE).join(source)).args(pkg_config(&arguments)));
}

/// Returns the command of a program that loads the installed library.
fn with_library(program: &Path) -> Command {
    let mut command = Command::new(program);
    command.env("LD_LIBRARY_PATH", installed().join("lib"));
    command
}

// promise: library.3, packages.1
#[test]
fn installed_files_work_and_are_removed() {
    let prefix = installed();
    let library = prefix.join("lib/libwedjat.so");
    assert_eq!(fs::read_link(&library).unwrap(), Path::new("libwedjat.so.0"));
    assert!(fs::canonicalize(&library).unwrap().ends_with("libwedjat.so.0.1.0"));
    for command in ["wedjat", "wedjat-pktgen", "wedjat-testbed"] {
        run(Command::new(prefix.join("bin").join(command)).arg("--version"));
        let page = fs::read_to_string(prefix.join(format!("share/man/man1/{command}.1"))).unwrap();
        // The hidden subcommand `man`, which writes the pages, is in none of them.
        assert!(page.contains(".TH") && !page.contains("-man"), "{page}");
    }
    let page = fs::read_to_string(prefix.join("share/man/man1/wedjat-leaf.1")).unwrap();
    assert!(page.contains("duration"), "{page}");
    assert_eq!(pkg_config(&["--modversion", "wedjat"]), ["0.1.0"]);
    assert!(prefix.join("lib/wireshark/plugins/wedjat.lua").exists());
    functions_have_their_pages(prefix);
    pages_point_to_what_is_installed(prefix);
    shells_complete_the_commands(prefix);
    let proto = prefix.join("share/wedjat/proto/wedjat/v1/control.proto");
    assert!(fs::read_to_string(proto).unwrap().contains("service Control"));
    let proto = prefix.join("share/wedjat/proto/wedjat/fabric/v1/fabric.proto");
    assert!(fs::read_to_string(proto).unwrap().contains("service Fabric"));

    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("calls");
    cc("capi/tests/c/calls.c", &program, &["wedjat"], &[]);
    run(with_library(&program).arg("decides"));
    let needed = run(Command::new("ldd").arg(&library)).stdout;
    let needed = String::from_utf8(needed).unwrap();
    assert!(!needed.contains("librte_"), "the library needs no DPDK: {needed}");
    // Static linking uses another program: calls.c replaces malloc, which conflicts with a static C library.
    let program = folder.path().join("static");
    cc("tests/c/version.c", &program, &["wedjat"], &["-static"]);
    assert_eq!(String::from_utf8(run(&mut Command::new(&program)).stdout).unwrap(), "0.1.0\n");

    let elsewhere = folder.path().join("elsewhere");
    let copied = Command::new("cp").arg("-R").arg(prefix).arg(&elsewhere).status().unwrap();
    assert!(copied.success());
    make(&["uninstall"], &elsewhere);
    let left = files_below(&elsewhere);
    assert!(left.is_empty(), "{left:?}");
}

/// Checks that bash completes the first letters of a subcommand. Checks that zsh and fish can parse their completion
/// files, where these shells are installed.
fn shells_complete_the_commands(prefix: &Path) {
    let share = prefix.join("share");
    for (command, typed, offered) in [
        ("wedjat", "to", "top"),
        ("wedjat", "comp", "completions"),
        ("wedjat-pktgen", "sear", "search"),
        ("wedjat-testbed", "lockst", "lockstep"),
    ] {
        let file = share.join("bash-completion/completions").join(command);
        let script = format!(
            "source {file}; COMP_WORDS=({command} {typed}); COMP_CWORD=1
             function=$(complete -p {command} | grep -o -- '-F [^ ]*' | cut -c4-)
             $function {command} {typed} {command}; echo \"${{COMPREPLY[@]}}\"",
            file = file.display()
        );
        let output = run(Command::new("bash").args(["-c", &script]));
        assert_eq!(String::from_utf8(output.stdout).unwrap().trim(), offered, "{script}");
        let others = [
            ("zsh", share.join("zsh/site-functions").join(format!("_{command}"))),
            ("fish", share.join("fish/vendor_completions.d").join(format!("{command}.fish"))),
        ];
        for (shell, file) in others {
            assert!(fs::read_to_string(&file).unwrap().contains(offered), "{file:?}");
            if let Ok(status) = Command::new(shell).arg("-n").arg(&file).status() {
                assert!(status.success(), "{shell} reads {file:?}");
            }
        }
    }
}

/// Checks that every function of the C header has a manual page: its declaration, permitted callers, return value and
/// errors. Checks that the header contains no terms of Rust.
fn functions_have_their_pages(prefix: &Path) {
    let header = fs::read_to_string(prefix.join("include/wedjat.h")).unwrap();
    let declared = |line: &&str| line.contains(" wedjat_") || line.contains("*wedjat_");
    let declarations = header.lines().filter(|line| !line.starts_with([' ', '#', '/', '*']));
    let declarations = declarations.filter(|line| !line.starts_with("typedef"));
    let declarations: Vec<_> =
        declarations.filter(declared).filter(|line| line.contains('(')).collect();
    assert!(declarations.len() > 25, "{declarations:?}");
    for declaration in declarations {
        let before = declaration.split('(').next().unwrap();
        let name = before.rsplit([' ', '*']).next().unwrap();
        let page = prefix.join(format!("share/man/man3/{name}.3"));
        let page = fs::read_to_string(&page).unwrap_or_else(|_| panic!("{page:?} is missing"));
        assert!(page.contains(declaration), "{page}");
        let from = page.split(".SH CALLED FROM\n").nth(1).unwrap_or_default();
        let from = from.split(".SH").next().unwrap();
        for word in ["thread", "lcore", "process", "fork()", "signal handler"] {
            assert!(from.contains(word), "{name}: where it may be called from, {word}: {page}");
        }
        for section in [".SH RETURN VALUE\n", ".SH ERRORS\n"] {
            let text = page.split(section).nth(1).unwrap_or_default();
            assert!(
                text.starts_with(|first: char| first != '.' || text.starts_with(".TP")),
                "{page}"
            );
        }
        if declaration.contains("wedjat_scheduler *") {
            assert!(page.contains(".B WEDJAT_ERROR_HANDLE\n") && page.contains("EBADF"), "{page}");
        }
    }
    for of_rust in ["# Safety", "`", "panic", "usize", "wedjat::"] {
        assert!(!header.contains(of_rust), "the header is C's, and has {of_rust}");
    }
}

/// Checks that every manual page and document that an installed manual page names is installed, too.
fn pages_point_to_what_is_installed(prefix: &Path) {
    let (man, documents) = (prefix.join("share/man"), prefix.join("share/doc/wedjat"));
    let (mut pages, mut named) = (0, 0);
    for file in files_below(&man) {
        let page = fs::read_to_string(man.join(&file)).unwrap().replace("\\-", "-");
        pages += 1;
        for line in page.lines().filter_map(|line| line.strip_prefix(".BR ")) {
            let Some((name, rest)) = line.split_once(" (") else { continue };
            let section = rest.split(')').next().unwrap();
            let other = man.join(format!("man{section}/{name}.{section}"));
            assert!(other.exists(), "{file:?} names {name}({section})");
            named += 1;
        }
        for word in page.split(|one: char| one.is_whitespace() || "(),;:".contains(one)) {
            let path = word.trim_end_matches('.');
            let is_document = path.starts_with("docs/") || path.starts_with("examples/");
            if is_document && !path.contains('*') {
                assert!(documents.join(path).exists(), "{file:?} names {path}");
                named += 1;
            }
        }
    }
    assert!(pages > 50 && named > 100, "{pages} pages, {named} names");
    let page = fs::read_to_string(man.join("man5/wedjat.toml.5")).unwrap();
    assert!(page.contains(".SH [[POOL]]") && page.contains("\n.B policy\n"), "{page}");
}

/// Frames of each port: [clients, workers].
type Trace = [Vec<Vec<u8>>; 2];

/// A folder with the input, and each program's configuration and output.
struct Home {
    /// The folder.
    folder: tempfile::TempDir,
    /// The pool's policy.
    policy: &'static str,
}

impl Home {
    /// Creates the folder, and writes the input's captures.
    fn new(input: &Trace, policy: &'static str) -> Self {
        let home = Self { folder: tempfile::tempdir().unwrap(), policy };
        for (side, frames) in SIDES.iter().zip(input) {
            write_frames(&home.path(&format!("{side}-in.pcap")), frames).unwrap();
        }
        home
    }

    /// Returns the path of a file in the folder.
    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Returns the pcap device of the side with index `at`: it reads the input and writes the output of `program`.
    fn device(&self, at: usize, program: &str) -> String {
        let (side, folder) = (SIDES[at], self.folder.path().display());
        format!(
            "net_pcap{at},rx_pcap={folder}/{side}-in.pcap,tx_pcap={folder}/{side}-{program}.pcap"
        )
    }

    /// Writes the configuration for `program`. Only the output and state files differ between programs. The connection
    /// timeout is long, so that no program forgets a multi-packet task during a stall.
    fn config(&self, program: &str) -> PathBuf {
        let (policy, cpu) = (self.policy, core_affinity::get_core_ids().unwrap()[0].id);
        let port = |at: usize, ip: &str| {
            format!(
                "[[port]]\ndevice = '{}'\nside = '{}'\nip = '{ip}/24'\nmac = '{}'\n",
                self.device(at, program),
                SIDES[at],
                LEAF_MACS[at]
            )
        };
        let text = format!(
            "[leaf]\nid = 1\ncores = [{cpu}]\nseed = 7\nstate = '{}'\nconnection_timeout_ms = 3600000\n{}{}\
             [[pool]]\nid = {POOL}\npolicy = '{policy}'\n\
             [[server]]\nip = '10.0.2.11'\nmac = '02:00:00:00:02:0b'\nworkers = '10-13'\npool = {POOL}\n\
             [[server]]\nip = '10.0.2.12'\nmac = '02:00:00:00:02:0c'\nworkers = '14-17'\npool = {POOL}\n",
            self.path(&format!("{program}-state")).display(),
            port(0, "10.0.1.1"),
            port(1, "10.0.2.1"),
        );
        let path = self.path(&format!("{program}.toml"));
        fs::write(&path, text).unwrap();
        path
    }

    /// Returns the packets that `program` sent.
    fn output(&self, program: &str) -> Trace {
        SIDES.map(|side| read_frames(&self.path(&format!("{side}-{program}.pcap"))).unwrap())
    }

    /// Runs a leaf until it has received the whole input. Returns the packets that it sent.
    fn leaf(&self, input: &Trace) -> Trace {
        let mut leaf = Command::new(env!("CARGO_BIN_EXE_wedjat"));
        leaf.args(["leaf", "--duration", LIFETIME, "--config"]).arg(self.config("leaf"));
        let leaf = leaf.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let all: usize = input.iter().map(Vec::len).sum();
        wait_until("the leaf has received all", || {
            let state = Snapshot::open(&self.path("leaf-state"));
            state.is_ok_and(|state| state.cores[0].counters["rx_packets"] == all as u64)
        });
        rustix::process::kill_process(rustix::process::Pid::from_child(&leaf), Signal::TERM)
            .unwrap();
        let output = leaf.wait_with_output().unwrap();
        assert!(
            output.status.success(),
            "{:?} {}",
            output.status,
            String::from_utf8_lossy(&output.stderr)
        );
        self.output("leaf")
    }

    /// Runs examples/scheduler.c until no packet has come for a second (its last argument). Returns the packets that it
    /// sent.
    fn application_in_c(&self) -> Trace {
        let program = self.path("scheduler");
        cc("examples/scheduler.c", &program, &["wedjat", "libdpdk"], &[]);
        let mut command = with_library(&program);
        let cpu = core_affinity::get_core_ids().unwrap()[0].id.to_string();
        command.args(["-l", &cpu, "-m", "256", "--no-huge", "--no-pci", "--no-telemetry"]);
        command.arg(format!("--file-prefix=wedjat-library-{}", std::process::id()));
        for at in 0..2 {
            command.arg(format!("--vdev={}", self.device(at, "c")));
        }
        run(command.arg("--").arg(self.config("c")).arg("1"));
        self.output("c")
    }

    /// Like [`Home::application_in_c`], for examples/scheduler.rs.
    fn application_in_rust(&self) -> Trace {
        run(Command::new(scheduler_in_rust()).arg(self.config("rust")).arg("1"));
        self.output("rust")
    }
}

/// Builds examples/scheduler.rs and returns the program.
fn scheduler_in_rust() -> PathBuf {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.current_dir(SOURCE).args(["build", "--locked", "--workspace"]);
    cargo.args(["--example", "scheduler"]);
    run(as_from_a_shell(cargo.arg("--target-dir").arg(target())));
    target().join("debug/examples/scheduler")
}

#[test]
fn embed_in_rust_page_works() {
    let program = scheduler_in_rust();
    let page = page::Page {
        path: "docs/tutorials/embed-rust.md",
        replace: &[("leaf.toml 30", "leaf.toml 10"), ("--duration 10s", "--duration 1s")],
        ..page::Page::default()
    };
    page::run(&page, program.ancestors().nth(2).unwrap());
}

#[test]
fn embed_in_c_page_works() {
    let library = installed().join("lib");
    let packages = library.join("pkgconfig").display().to_string()
        + ":"
        + &std::env::var("PKG_CONFIG_PATH").unwrap_or_default();
    let page = page::Page {
        path: "docs/tutorials/embed-c.md",
        needs: &["cc", "pkg-config", "python3"],
        env: &[("PKG_CONFIG_PATH", &packages), ("LD_LIBRARY_PATH", library.to_str().unwrap())],
        ..page::Page::default()
    };
    page::run(&page, &installed().join("bin"));
}

/// Builds an input with the task numbers 0 to `tasks` - 1.
///
/// The clients' side has an ARP request that reveals the client's MAC address. Tasks of one or two packets follow, with
/// some packets that a leaf drops (of an unknown pool, or no task at all). The workers' side has replies, three for
/// every four task numbers.
fn trace(tasks: u16) -> Trace {
    let mut question = vec![0; arp::FRAME_LEN];
    let ask = arp::Packet::request(CLIENT_MAC, CLIENT, LEAF_CLIENTS);
    ask.emit(&mut question, Mac::BROADCAST);
    let (mut clients, mut workers) = (vec![question], vec![]);
    for seq in 0..tasks {
        let header = Header { extended: seq % 3 == 0, ..Header::new_task(POOL, seq) };
        clients.push(task(header));
        match seq % 16 {
            4 => {
                let several = Header { more: true, ..header };
                let last = Header { code: Code::TaskContinuation, more: false, ..several };
                clients.extend([task(several), task(last)]);
            }
            8 => clients.push(task(Header::new_task(POOL + 1, seq))),
            12 => clients.push(vec![0xEE; 60]),
            _ => {}
        }
        if seq % 4 != 3 {
            workers.push(reply(FIRST_WORKER + seq * 5 % 8, seq / 5 % 3, LEAF_MACS[1]));
        }
    }
    [clients, workers]
}

fn hex(frame: &[u8]) -> String {
    frame.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Vec<u8> {
    text.as_bytes()
        .chunks(2)
        .map(|digits| u8::from_str_radix(str::from_utf8(digits).unwrap(), 16).unwrap())
        .collect()
}

/// Parses the frames of `kind` ("in" or "out") from a text with lines of kind, side and hexadecimal bytes.
fn golden(text: &str, kind: &str) -> Trace {
    SIDES.map(|side| {
        let lines = text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
        lines
            .filter(|words| words.len() == 3 && words[0] == kind && words[1] == side)
            .map(|words| unhex(words[2]))
            .collect()
    })
}

/// Moves ARP frames behind all others, because a program may send ARP at any time.
fn arp_last(trace: &Trace) -> Trace {
    let mut trace = trace.clone();
    trace.iter_mut().for_each(|frames| frames.sort_by_key(|frame| frame[12..14] == [8, 6]));
    trace
}

/// Checks that the program `who` sent the expected packets.
fn assert_same(ours: &Trace, expected: &Trace, who: &str) {
    assert_eq!(difference(ours, expected, who), None);
}

/// Describes the first unexpected packet, or an unexpected number of packets, of the program `who`. Returns `None` if
/// all packets are as expected. Ignores the position of ARP frames.
fn difference(ours: &Trace, expected: &Trace, who: &str) -> Option<String> {
    let (ours, expected) = (arp_last(ours), arp_last(expected));
    SIDES.iter().enumerate().find_map(|(at, side)| {
        let (ours, expected) = (&ours[at], &expected[at]);
        let differ = ours.iter().zip(expected).position(|(ours, expected)| ours != expected);
        match differ {
            Some(at) => {
                let [ours, expected] = [hex(&ours[at]), hex(&expected[at])];
                Some(format!("{who}: packet {at} to {side}: {ours} and not {expected}"))
            }
            None if ours.len() == expected.len() => None,
            None => {
                Some(format!("{who}: {} packets to {side} and not {}", ours.len(), expected.len()))
            }
        }
    })
}

// promise: library.1
#[test]
fn applications_send_the_golden_packets() {
    let text = fs::read_to_string(Path::new(SOURCE).join("tests/golden/library.txt")).unwrap();
    let (input, expected) = (golden(&text, "in"), golden(&text, "out"));
    assert!(input.iter().chain(&expected).all(|frames| frames.len() > 8));
    let home = Home::new(&input, "horus");
    assert_same(&home.application_in_c(), &expected, "C");
    assert_same(&home.application_in_rust(), &expected, "Rust");
}

// promise: library.1
#[test]
fn applications_decide_as_the_leaf_does() {
    // With the second policy, tasks wait in the program's queue until replies make room. Its silence limit of 1000 s
    // (the maximum) exceeds any stall.
    for policy in ["horus", "jbsq(k=2, silence-ms=1000000)"] {
        let input = trace(3_000);
        let home = Home::new(&input, policy);
        let differ = || {
            let expected = home.leaf(&input);
            assert!(expected[0].len() > 2_000 && expected[1].len() > 1_000, "{policy}");
            difference(&home.application_in_c(), &expected, "C")
                .or_else(|| difference(&home.application_in_rust(), &expected, "Rust"))
        };
        // All three programs run in real time. A program that stalls may write off tasks before their replies arrive,
        // but stalls do not hit every attempt. Programs that decide differently differ in every attempt.
        let differ: Vec<_> = (0..TRIES).map_while(|_| differ()).collect();
        assert!(differ.len() < TRIES, "{policy}: {differ:?}");
    }
}

/// Number of hugepages, of 2 MiB each, for the memory of the primary process.
const PAGES: u64 = 24;

// promise: library.1
#[test]
fn a_secondary_process_schedules_with_the_library() {
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("secondary");
    cc("tests/c/secondary.c", &program, &["wedjat", "libdpdk"], &[]);
    let Some(pages) = Hugepages::reserve(PAGES) else {
        // Written directly to standard error, because the output of passing tests is hidden.
        let _ = writeln!(
            io::stderr(),
            "SKIPPED: a DPDK secondary process needs hugepages, and this system gives none"
        );
        return;
    };
    // Returns the command of the primary or secondary process. Both share the hugepages of the folder.
    let process = |kind: &str| {
        let mut command = with_library(&program);
        command.args(["-l", "0", "--no-pci", "--no-telemetry", "--huge-dir"]).arg(pages.folder());
        command.arg(format!("--file-prefix=wedjat-secondary-{}", std::process::id()));
        command.arg(format!("--proc-type={kind}"));
        command
    };
    let ready = folder.path().join("ready");
    let mut primary = process("primary");
    // -m is in MiB.
    primary.arg("-m").arg((PAGES * 2).to_string()).stdout(fs::File::create(&ready).unwrap());
    let mut primary = primary.stderr(Stdio::piped()).spawn().unwrap();
    wait_until("the primary is ready", || {
        assert!(primary.try_wait().unwrap().is_none(), "the primary has ended");
        fs::read_to_string(&ready).unwrap().contains("ready")
    });
    let secondary = process("secondary").output().unwrap();
    let primary = primary.wait_with_output().unwrap();
    assert!(secondary.status.success(), "{}", String::from_utf8_lossy(&secondary.stderr));
    assert!(primary.status.success(), "{}", String::from_utf8_lossy(&primary.stderr));
}
