//! Messages of `wedjat` for wrong input, its help pages and manual pages, compared with files in `tests/golden`. Each
//! change of a text for users thus appears in a review.
#![cfg(all(feature = "auth", feature = "dpdk", target_os = "linux"))]
#![allow(clippy::unwrap_used, reason = "a test")]

mod golden;

use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::process::Command;

use golden::assert_golden;

const WEDJAT: &str = env!("CARGO_BIN_EXE_wedjat");

/// Section of a configuration for a port.
const PORT: &str = "[[port]]\ndevice = 'net_null0'\nside = 'both'\nip = '10.0.1.1/16'\n";
/// Section for a pool.
const POOL: &str = "[[pool]]\nid = 7\npolicy = 'horus'\n";
/// Section for a server, the host of four workers.
const SERVER: &str =
    "[[server]]\nip = '10.0.2.11'\nmac = '02:00:00:00:02:0b'\nworkers = '10-13'\npool = 7\n";

/// Commands whose help pages have no figures of the machine.
const HELP: [&str; 20] = [
    "",
    "leaf",
    "spine",
    "agent",
    "controller",
    "cosched",
    "cosched run",
    "cosched check",
    "check",
    "doctor",
    "state",
    "ctl",
    "ctl drain",
    "ctl add-server",
    "ctl pool create",
    "ctl tap start",
    "explain",
    "top",
    "policies",
    "completions",
];

/// Command lines that reach no node and no device. `FOLDER` has the files `text`, `leaf.toml` and `controller.toml`.
const COMMANDS: [&str; 30] = [
    "",
    "leave",
    "leaf",
    "leaf --config FOLDER/none.toml",
    "check --config FOLDER/none.toml",
    "check --config FOLDER",
    "check --keys peers",
    "check --keys peers --json",
    "check --keys pol",
    "policies",
    "policies --all",
    "state FOLDER/none",
    "state FOLDER",
    "state FOLDER/text",
    "top FOLDER/none --once",
    "top FOLDER/none --once --interval 1ms",
    "ctl --node FOLDER/none workers",
    "ctl --node FOLDER/text workers",
    "ctl --node FOLDER/none drain 5",
    "ctl --node FOLDER/none drain 5-",
    "ctl --node FOLDER/none log loud",
    "ctl --controller http://controller1:7070 topology",
    "ctl --controller FOLDER/none topology",
    "explain --node FOLDER/none",
    "explain --file FOLDER/none.pcap FOLDER/leaf.toml",
    "explain --file FOLDER/text FOLDER/leaf.toml",
    "controller --config FOLDER/controller.toml",
    "cosched check FOLDER/text",
    "cosched replay FOLDER/text",
    "cosched run --agent none --objective soon -- true",
];

/// Returns faulty configurations of leaves, agents and controllers, each with the name of its fault, and a right one.
fn configurations() -> Vec<(&'static str, String)> {
    let leaf = "[leaf]\nid = 1\ncores = [0]\n";
    // Returns the right configuration of a leaf, with the first occurrence of one text replaced.
    let with = |old: &str, new: &str| {
        let text = format!("{leaf}{PORT}{POOL}{SERVER}");
        assert!(text.contains(old), "{old}");
        text.replacen(old, new, 1)
    };
    let agent = "[agent]\nname = 'host1'\ncore = 0\n\
        [[port]]\ndevice = 'net_null0'\nip = '10.0.2.11/24'\n\
        [[pool]]\nid = 7\npolicy = 'jbsq(k=2)'\nworkers = '10-11'\n";
    // The same for an agent.
    let agent_with = |old: &str, new: &str| {
        assert!(agent.contains(old), "{old}");
        agent.replacen(old, new, 1)
    };
    vec![
        ("empty file", String::new()),
        ("no TOML", "leaf 1".into()),
        ("unknown key", with("cores", "core")),
        ("unknown section", with("[[server]]", "[[servers]]")),
        ("wrong type", with("id = 1", "id = 'one'")),
        ("number out of range", with("id = 1", "id = 70000")),
        ("no cores", with("[0]", "[]")),
        ("a core twice", with("[0]", "[0, 0]")),
        ("unknown policy", with("horus", "hours")),
        ("unknown parameter", with("horus", "jbsq(m=2)")),
        ("parameter out of range", with("horus", "jbsq(k=0)")),
        ("policy without a closing bracket", with("horus", "jbsq(k=2")),
        ("simulated policy", with("horus", "horus-spine")),
        ("reports of another policy", with("'horus'", "'horus'\nreports = 'messages'")),
        ("queue without central queue", with("'horus'", "'horus'\nqueue = 10")),
        ("bad side", with("'both'", "'left'")),
        ("no clients", with("'both'", "'workers'")),
        ("bad port address", with("10.0.1.1/16", "10.0.0.0/16")),
        ("bad server address", with("10.0.2.11", "224.0.0.1")),
        ("unreachable server", with("10.0.2.11", "192.0.2.1")),
        ("bad MAC address", with("02:00:00:00:02:0b", "02:00")),
        ("multicast MAC address", with("02:00:00:00:02:0b", "03:00:00:00:02:0b")),
        ("workers backwards", with("10-13", "13-10")),
        ("worker twice", with("10-13", "10-13,12")),
        ("unknown pool", with("pool = 7", "pool = 8")),
        ("bad time limit", with("cores", "worker_timeout_ms = 1\ncores")),
        ("key file missing", with("'horus'", "'horus'\nkey_file = 'FOLDER/none.key'")),
        ("metrics beyond the host", with("[leaf]", "[control]\nlisten = '10.0.0.1:70'\n[leaf]")),
        ("controller of no scheme", with("[leaf]", "[controller]\naddresses = ['x']\n[leaf]")),
        ("spine's section", with("[leaf]", "[spine]\nid = 1\n[leaf]")),
        ("agent without pool", agent_with("[[pool]]", "[[port]]")),
        ("agent's slots", agent_with("core = 0", "core = 0\nslots = 3")),
        ("agent's bound", agent_with("jbsq(k=2)", "jbsq(k=100000)")),
        ("agent's policy", agent_with("jbsq(k=2)", "horus-spine")),
        (
            "peers and a controller",
            format!("{agent}[peers]\npolicy = 'malcom'\nnodes = ['10.0.2.12']\n"),
        ),
        ("controller without store", "[controller]\nid = 1\n".into()),
        (
            "controller with two stores",
            "[controller]\nid = 1\nstore = 'FOLDER/a'\netcd = ['http://127.0.0.1:1']\n".into(),
        ),
        ("right leaf", with("cores", "cores")),
    ]
}

/// Runs `wedjat` in `folder`. Returns the command line, the output and the exit status, with placeholders for the
/// folder and the user.
fn run(arguments: &[&str], folder: &Path) -> String {
    let user = fs::metadata(folder).unwrap().uid();
    let folder = folder.to_str().unwrap();
    let arguments: Vec<_> =
        arguments.iter().map(|argument| argument.replace("FOLDER", folder)).collect();
    let mut command = Command::new(WEDJAT);
    command.args(&arguments).current_dir(folder).env("COLUMNS", "120");
    for variable in ["WEDJAT_STATE", "WEDJAT_CONTROLLER", "WEDJAT_COSCHED_DIR", "RUST_LOG"] {
        command.env_remove(variable);
    }
    let output = command.output().unwrap();
    let mut text = format!("$ wedjat {}\n", arguments.join(" "));
    text.push_str(&String::from_utf8_lossy(&output.stdout));
    text.push_str(&String::from_utf8_lossy(&output.stderr));
    if !text.ends_with('\n') {
        text.push('\n');
    }
    let _ = writeln!(text, "exit status {}\n", output.status.code().unwrap());
    text.replace(folder, "FOLDER").replace(&format!("of user {user}"), "of user UID")
}

#[test]
fn messages_equal_the_golden_file() {
    let home = tempfile::tempdir().unwrap();
    let folder = home.path();
    fs::write(folder.join("text"), "a text\n").unwrap();
    let store = "[controller]\nid = 1\nstore = 'none/fabric'\n";
    fs::write(folder.join("controller.toml"), store).unwrap();
    let leaf = format!("[leaf]\nid = 1\ncores = [0]\n{PORT}{POOL}{SERVER}");
    fs::write(folder.join("leaf.toml"), leaf).unwrap();
    let mut found = String::new();
    for page in HELP {
        let arguments: Vec<_> = page.split_whitespace().chain(["--help"]).collect();
        found.push_str(&run(&arguments, folder));
    }
    for line in COMMANDS {
        let arguments: Vec<_> = line.split_whitespace().collect();
        found.push_str(&run(&arguments, folder));
    }
    for (name, text) in configurations() {
        let text = text.replace("FOLDER", folder.to_str().unwrap());
        fs::write(folder.join("faulty.toml"), text).unwrap();
        let _ = writeln!(found, "# {name}");
        found.push_str(&run(&["check", "--config", "faulty.toml"], folder));
    }
    assert_golden("messages.txt", &found);
}

#[test]
fn manual_pages_equal_the_golden_file() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new(WEDJAT);
    assert!(command.arg("man").arg(folder.path()).status().unwrap().success());
    let mut pages: Vec<_> = fs::read_dir(folder.path()).unwrap().flatten().collect();
    pages.sort_by_key(|page| page.file_name());
    assert!(pages.len() > 15, "{pages:?}");
    // Options and their texts are those of the help pages. One page of a command suffices for their form.
    let mut found = String::new();
    for page in pages.iter().filter(|page| page.file_name() == "wedjat-check.1") {
        let text = fs::read_to_string(page.path()).unwrap();
        found.push_str(&text.replace(wedjat::VERSION, "VERSION"));
    }
    for page in pages {
        let text = fs::read_to_string(page.path()).unwrap();
        let lines = text.lines().skip_while(|line| *line != ".SH NAME").take(2);
        let _ = writeln!(found, "{}: {}", page.file_name().display(), lines.last().unwrap());
    }
    assert_golden("manual.txt", &found);
}
