//! Runs the commands of the pages in docs/tutorials and docs/howto, and compares the outputs that they show.
//! A test may run commands of its own first (`setup`), and replace parts of the page's commands (`replace`),
//! for example to shorten runs. `{page PATH N}` in `setup` stands for block N of another page.
#![cfg(all(feature = "dpdk", target_os = "linux"))]
#![allow(clippy::unwrap_used, reason = "a test")]

#[path = "../../tests/page/mod.rs"]
mod page;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;
use wedjat::state::Table;
use wedjat::state::table::Spec;

use page::{Page, root};

/// Greatest permitted number of blocks of commands that are not run, for want of a NIC, systemd or time.
const SKIPPED_MAX: usize = 16;
/// Programs whose commands are checked.
const PROGRAMS: [&str; 3] = ["wedjat", "wedjat-pktgen", "wedjat-testbed"];

/// Returns the folder of the built programs, which the pages' commands run.
fn bin() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_wedjat-testbed")).parent().unwrap()
}

/// Runs a page. Returns its folder, or `None` if the machine lacks a requirement of the page.
fn run(page: &Page) -> Option<tempfile::TempDir> {
    page::run(page, bin())
}

/// Commands that write leaf.toml and agent.toml from examples/. Their cores sleep while idle, so that tests share two
/// CPUs.
const FILES: &str = r#"
sed 's/^cores = .*/cores = [0]\npoll = "adaptive"\nworker_timeout_ms = 60000/' examples/agent-leaf.toml >leaf.toml
sed 's/^core = .*/core = 1\npoll = "adaptive"/' examples/agent.toml >agent.toml
"#;

/// Leaf, agent and two workers in the background, with sockets and state files other than those of examples/leaf.toml.
const RACK: &str = r#"
sed -i 's/socket=wedjat/socket=rack/; s/wedjat-leaf1/rack-leaf/; s/wedjat-agent1/rack-agent/' leaf.toml agent.toml
wedjat leaf --config leaf.toml &
until wedjat state /dev/shm/rack-leaf; do sleep 0.1; done
wedjat agent --config agent.toml &
until wedjat state /dev/shm/rack-agent; do sleep 0.1; done
wedjat-testbed worker --app spin --attach host1 --workers 2 &
until [ $(wedjat state /dev/shm/rack-leaf | grep -c ' registered') = 2 ]; do sleep 0.1; done
"#;

/// Leaf with workers 0 to 7, which do not register. Its file gets a further server while it runs.
const CHANGED_LEAF: &str = r#"
sed -i 's/"0-3"/"0-7"/; s/^registers = true.*//' leaf.toml
wedjat leaf --config leaf.toml &
until wedjat state /dev/shm/wedjat-leaf1; do sleep 0.1; done
printf '\n[[server]]\nip = "10.0.2.13"\nworkers = "8-11"\npool = 1\n' >>leaf.toml
"#;

/// Commands that write files of nodes that follow a controller: spine, leaf and agent.
const FABRIC: &str = r#"
mkdir -p /var/lib/wedjat
cat >spine.toml <<'END'
[spine]
id = 1
cores = [0]
poll = "adaptive"
[[port]]
device = "net_memif0,role=server,id=0,socket=service"
side = "clients"
ip = "10.0.9.1/24"
[[port]]
device = "net_memif1,role=server,id=1,socket=leaves"
side = "workers"
ip = "10.0.0.1/23"
END
cat >leaf.toml <<'END'
[leaf]
id = 1
cores = [1]
poll = "adaptive"
[[port]]
device = "net_memif0,role=client,id=1,socket=leaves"
side = "clients"
ip = "10.0.1.1/23"
[[port]]
device = "net_memif1,role=server,id=1,socket=wedjat-workers"
side = "workers"
ip = "10.0.2.1/24"
END
sed -i 's/"0-3"/"0-31"/' agent.toml
for file in spine leaf agent; do
    printf '[controller]\naddresses = ["unix:/var/lib/wedjat/fabric.ctl"]\n' >>$file.toml
done
"#;

/// Commands that cause the faults of the page on troubleshooting: a leaf on veth with drained workers, to which a
/// client has sent 60 tasks; a host that sends replies from a foreign address; and a leaf.toml with a core that does
/// not exist.
const FAULTS: &str = r#"
{page docs/tutorials/first-tasks.md 1}
{page docs/tutorials/first-tasks.md 2}
sed 's/cores = .*/cores = [999]/' examples/af_packet.toml >leaf.toml
wedjat ctl drain 0-3
ip -n wedjat-worker address add 10.0.2.99/24 dev eth0
cat >packets.py <<'END'
import socket, struct, sys, time
HEADER = struct.Struct("!BHHHHH")
source, destination, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
packet = HEADER.pack(0, 1, 1, 32767, 0, 0) if count else HEADER.pack(3, 1, 0, 1, 0, 0)
end = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
end.bind((source, 1234))
for _ in range(count or 10**9):
    end.sendto(packet, (destination, 1234))
    time.sleep(0.01)
END
ip netns exec wedjat-client python3 packets.py 10.0.1.2 10.0.1.1 60
ip netns exec wedjat-worker python3 packets.py 10.0.2.99 10.0.1.2 0 &
until wedjat state /dev/shm/wedjat-first | grep -q spoofed_reply; do sleep 0.1; done
"#;

/// Command that writes the leaf's file that the page on a secure rack describes and checks, but never writes.
const SECURED: &str = r#"
cat >/etc/wedjat/leaf1.toml <<'END'
[leaf]
id = 1
cores = [0]
[[port]]
device = "0000:01:00.0"
side = "clients"
ip = "10.0.1.1/24"
[[port]]
device = "0000:01:00.1"
side = "workers"
ip = "10.0.2.1/24"
[[pool]]
id = 1
policy = "horus"
key_file = "/etc/wedjat/pool1.key"
[[server]]
ip = "10.0.2.11"
mac = "02:00:00:00:00:01"
workers = "0-3"
pool = 1
registers = true
END
"#;

/// Page with a test of its own below.
const FIRST_TASKS: &str = "docs/tutorials/first-tasks.md";
/// Pages whose tests are elsewhere, in the root package: those that need the library in tests/library.rs, and one
/// without commands in tests/direct_replies.rs.
const ELSEWHERE: [&str; 3] = [
    "docs/tutorials/embed-c.md",
    "docs/tutorials/embed-rust.md",
    "docs/howto/return-replies-directly.md",
];

/// Declares a test that runs a page, for each name and page, and the list of these pages. Thus each page has a test of
/// its own, and `every_page_has_a_test` compares the list with docs/.
macro_rules! pages {
    ($($name:ident: $page:expr,)*) => {
        $(#[test]
        fn $name() {
            run(&$page);
        })*

        /// Pages that have a test here.
        fn tested() -> Vec<&'static str> {
            vec![$($page.path),*]
        }
    };
}

pages! {
    first_rack_page_works: Page {
        path: "docs/tutorials/first-rack.md",
        // Short silences of a busy machine take no worker out.
        setup: &[r#"
            cp -rL examples own && rm examples && mv own examples
            sed -i 's/^seed = 7/&\nworker_timeout_ms = 3000\npoll = "adaptive"/' examples/agent-leaf.toml
            sed -i 's/^core = 1/poll = "adaptive"\n&/' examples/agent.toml
        "#],
        replace: &[("--duration 5s", "--duration 1s --drain 60s --no-floor")],
        ..Page::default()
    },
    client_and_worker_page_works: Page {
        path: "docs/tutorials/client-and-worker.md",
        needs: &["python3"],
        ..Page::default()
    },
    analyse_results_page_works: Page {
        path: "docs/howto/analyse-results.md",
        ..Page::default()
    },
    benchmark_page_works: Page {
        path: "docs/howto/benchmark.md",
        setup: &[FILES, RACK],
        replace: &[
            ("--duration 10s --core 1", "--duration 1s --core 1"),
            ("--dst 10.0.1.1 --duration 10s", "--dst 10.0.1.1 --duration 1s"),
            ("wedjat-pktgen run --rate 200k", "wedjat-pktgen run --rate 1k"),
            ("role=client,socket=leaf", "role=client,socket=rack-clients"),
        ],
        ..Page::default()
    },
    change_a_running_node_page_works: Page {
        path: "docs/howto/change-a-running-node.md",
        setup: &[FILES, CHANGED_LEAF],
        ..Page::default()
    },
    choose_a_policy_page_works: Page {
        path: "docs/howto/choose-a-policy.md",
        replace: &[("--policy cfcfs,jsq,horus", "--policy cfcfs,jsq,horus --tasks 20000")],
        ..Page::default()
    },
    long_and_short_tasks_page_works: Page {
        path: "docs/howto/long-and-short-tasks.md",
        setup: &[FILES, RACK],
        replace: &[
            ("--duration 10s", "--duration 1s"),
            ("--tasks 400000 --seeds 3", "--tasks 5000"),
        ],
        ..Page::default()
    },
    monitor_page_works: Page {
        path: "docs/howto/monitor.md",
        setup: &["
            { cat examples/leaf.toml; printf '[control]\\nmetrics = \"127.0.0.1:7071\"\\n'; } >leaf.toml
            wedjat leaf --config leaf.toml &
            until curl -s http://127.0.0.1:7071/metrics; do sleep 0.1; done
        "],
        needs: &["curl", "python3", "promtool"],
        ..Page::default()
    },
    operate_a_fabric_page_works: Page {
        path: "docs/howto/operate-a-fabric.md",
        setup: &[FILES, FABRIC],
        ..Page::default()
    },
    replay_a_trace_page_works: Page {
        path: "docs/howto/replay-a-trace.md",
        setup: &[FILES, RACK],
        replace: &[("role=client,socket=leaf", "role=client,socket=rack-clients")],
        ..Page::default()
    },
    reproduce_a_paper_page_works: Page {
        path: "docs/howto/reproduce-a-paper.md",
        replace: &[("--only horus-10", "--only horus-18")],
        ..Page::default()
    },
    run_batch_jobs_page_works: Page {
        path: "docs/howto/run-batch-jobs.md",
        // The worker starts when the agent of the page runs. Status 77 skips the page.
        setup: &[FILES, "
            grep -q ' cgroup2\\? ' /proc/mounts || { echo 'it needs cgroups'; exit 77; }
            sed -i 's/^leaf = .*//' agent.toml
            wedjat leaf --config leaf.toml &
            { until wedjat state /dev/shm/wedjat-agent1; do sleep 0.1; done
            exec wedjat-testbed worker --app spin --attach host1 --workers 1 --core 0; } &
        "],
        ..Page::default()
    },
    run_on_a_nic_page_works: Page { path: "docs/howto/run-on-a-nic.md", ..Page::default() },
    run_on_kernel_ports_page_works: Page {
        path: "docs/howto/run-on-kernel-ports.md",
        setup: &["
            ip link add clients type veth peer name client
            ip link add workers type veth peer name worker
            ip link set workers up
        "],
        ..Page::default()
    },
    secure_a_rack_page_works: Page {
        path: "docs/howto/secure-a-rack.md",
        setup: &[SECURED],
        needs: &["openssl"],
        ..Page::default()
    },
    troubleshoot_page_works: Page {
        path: "docs/howto/troubleshoot.md",
        setup: &[FAULTS],
        replace: &[(" STATE", " /dev/shm/wedjat-first")],
        needs: &["python3"],
        ..Page::default()
    },
    upgrade_page_works: Page {
        path: "docs/howto/upgrade.md",
        setup: &["
            mkdir -p new/bin
            ln -s $(command -v wedjat) new/bin/wedjat
            cp examples/leaf.toml /etc/wedjat/leaf1.toml
        "],
        ..Page::default()
    },
    when_parts_fail_page_works: Page { path: "docs/howto/when-parts-fail.md", ..Page::default() },
}

// promise: ports.1, sources.1
#[test]
fn first_tasks_page_works() {
    let old = tempfile::tempdir().unwrap();
    // A state file left by an earlier run. The page's wait condition must reject it: `$leaf`, the process id in that
    // condition, is not the one in the file.
    let spec = Spec { node: 1, cores: 1, ports: 2, ..Spec::default() };
    drop(Table::create(&old.path().join("state"), &spec).unwrap());
    let text = fs::read_to_string(root().join(FIRST_TASKS)).unwrap();
    let waits = text.lines().find_map(|line| line.strip_prefix("until wedjat state")).unwrap();
    let condition = format!("wedjat state{}", waits.split("; do").next().unwrap());
    let setup = format!(
        "cp {}/state /dev/shm/wedjat-first\nleaf=1\nif {condition}; then exit 1; fi",
        old.path().display()
    );
    let page =
        Page { path: FIRST_TASKS, setup: &[&setup], needs: &["ss", "python3"], ..Page::default() };
    let Some(folder) = run(&page) else { return };
    let account = fs::read_to_string(folder.path().join("tree/leaf.json")).unwrap();
    let account: Value = serde_json::from_str(&account).unwrap();
    assert_eq!((&account["scheduled"], &account["replies"]), (&100.into(), &100.into()));
    assert_eq!(account["balanced"], true, "{account}");
    for port in account["ports"].as_array().unwrap() {
        // Packets over veth have partial checksums, which are finished and counted.
        assert!(port["rx_partial"].as_u64() >= Some(100), "{port}");
        assert_eq!(port["rx_missed"], 0, "{port}");
    }
    for reason in ["udp_checksum", "ipv4_checksum", "neighbour_queue_full"] {
        assert!(account["drops"].get(reason).is_none(), "{account}");
    }
}

/// Returns the pages of a folder of docs/.
fn pages_of(folder: &str) -> BTreeSet<String> {
    let entries = fs::read_dir(root().join("docs").join(folder)).unwrap().flatten();
    let names = entries.map(|entry| entry.file_name().into_string().unwrap());
    names.filter(|name| name.ends_with(".md")).map(|name| format!("docs/{folder}/{name}")).collect()
}

// promise: sources.1
#[test]
fn every_page_has_a_test() {
    let pages: BTreeSet<_> = ["tutorials", "howto"].into_iter().flat_map(pages_of).collect();
    let mut tested: BTreeSet<_> = tested().into_iter().map(str::to_owned).collect();
    tested.extend([FIRST_TASKS].iter().chain(&ELSEWHERE).map(|page| (*page).to_owned()));
    assert_eq!(pages, tested, "the pages of docs, and those with a test");
}

/// Pages mark the blocks that no test runs.
#[test]
fn few_blocks_are_not_run() {
    let (mut blocks, mut skipped) = (0, Vec::new());
    for page in ["tutorials", "howto"].into_iter().flat_map(pages_of) {
        let marked = page::marked(&page);
        blocks += marked.blocks;
        skipped.extend(marked.skipped);
    }
    println!("{} of {blocks} blocks are not run:\n{}", skipped.len(), skipped.join("\n"));
    assert!(
        blocks > 50 && skipped.len() <= SKIPPED_MAX,
        "{} of {blocks}: {skipped:#?}",
        skipped.len()
    );
}

/// Help of a command, and the names of its subcommands.
struct Help {
    text: String,
    subcommands: BTreeSet<String>,
}

/// Runs a command with `--help` and parses its list of subcommands.
fn help(command: &[&str]) -> Help {
    let output = Command::new(bin().join(command[0])).args(&command[1..]).arg("--help").output();
    let text = String::from_utf8(output.unwrap().stdout).unwrap();
    let list = text.split("\nCommands:\n").nth(1).unwrap_or_default();
    let list = list.lines().take_while(|line| !line.is_empty());
    let names = list.filter_map(|line| line.strip_prefix("  ")?.split([' ', ',']).next());
    let subcommands = names.filter(|name| !name.is_empty()).map(str::to_owned).collect();
    Help { text, subcommands }
}

/// Returns the first word of a command that its program does not know: a subcommand or an option. `known`
/// caches the help of each subcommand.
fn unknown_word<'a>(command: &'a str, known: &mut BTreeMap<Vec<&'a str>, Help>) -> Option<&'a str> {
    let mut words = command.split_whitespace();
    let mut path = vec![words.next()?];
    for word in words.take_while(|&word| word != "--") {
        let help = known.entry(path.clone()).or_insert_with_key(|path| help(path));
        let is_name = word.starts_with(|letter: char| letter.is_ascii_lowercase());
        if let Some(option) = word.strip_prefix("--") {
            let name = format!("--{}", option.split('=').next()?.trim_end_matches(['`', ',']));
            // Text may name an option with the program only: such an option belongs to `run`.
            let of_run =
                if path.len() == 1 { self::help(&[path[0], "run"]).text } else { String::new() };
            let is_there = |end: char| {
                [&help.text, &of_run].iter().any(|text| text.contains(&format!("{name}{end}")))
            };
            if ![' ', '\n', ']'].into_iter().any(is_there) {
                return Some(word);
            }
        } else if help.subcommands.contains(word) {
            path.push(word);
        } else if is_name && !help.subcommands.is_empty() {
            return Some(word);
        }
    }
    None
}

// promise: sources.1
#[test]
fn shown_commands_and_options_exist() {
    let folders = ["tutorials", "howto", "reference", "explanation"].into_iter();
    let pages = folders.flat_map(pages_of).chain(["README.md".to_owned()]);
    let texts: Vec<_> = pages
        .map(|page| (fs::read_to_string(root().join(&page)).unwrap().replace("\\\n", ""), page))
        .collect();
    let (mut known, mut count, mut unknown) = (BTreeMap::new(), 0, Vec::new());
    for (text, page) in &texts {
        // Commands are in lines of blocks of shell commands, and in inline code. Every second part of the
        // text between ``` is a block.
        let mut parts = text.split("```").enumerate();
        let snippets = parts.by_ref().flat_map(|(index, part)| {
            let is_block = index % 2 == 1;
            let inline = part.split('`').skip(1).step_by(2).filter(move |_| !is_block);
            let lines = part.lines().filter(move |_| is_block && part.starts_with("sh\n"));
            inline.chain(lines).collect::<Vec<_>>()
        });
        let commands = snippets.flat_map(|text| text.split(['|', ';', '>', '&', '(', ')']));
        for command in commands.map(str::trim).filter(|text| text.starts_with("wedjat")) {
            let program = command.split_whitespace().next();
            if !program.is_some_and(|program| PROGRAMS.contains(&program)) {
                continue;
            }
            count += 1;
            let word = unknown_word(command, &mut known);
            unknown.extend(word.map(|word| format!("{page}: {word:?} of {command:?}")));
        }
    }
    assert!(count > 200, "{count} commands are found");
    assert!(unknown.is_empty(), "{}", unknown.join("\n"));
}
