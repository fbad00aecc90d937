//! Attacks on a leaf's control: the interfaces for operators and Prometheus, and the configuration, which a leaf reads
//! again after SIGHUP. The attacks are configurations that are no regular files, configurations with many faults, and
//! idle connections. A [`Site`] is a folder with the files of the attacked leaf.

use std::fmt::Write as _;
use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use rustix::process::Signal;

use super::rigs::processes::{
    Job, Site, TIMEOUT, check_alive, check_outcomes, describe_exit, send_signal,
};
use super::{Account, Attack, Budget, Failure, attack_table};
use crate::demo::leaf::NodeProcess;
use crate::free_address::free_address;

/// Number of idle connections to each listener in a round. A listener keeps at most 64 open, of which one source has at
/// most 16 before their first request.
const IDLE: usize = 200;
/// Number of invalid entries in the configuration.
const FAULTY: usize = 20_000;
/// Exit code of `wedjat check` for an invalid configuration.
const INVALID: Option<i32> = Some(1);
/// Exit code of a successful command.
const SUCCESS: Option<i32> = Some(0);
/// Seconds for which honest clients send tasks.
const DRIVE_SECONDS: f64 = 0.2;
/// Maximum number of rounds of idle connections. There is one for each second of the budget.
const ROUNDS_MAX: usize = 20;

/// The attacks of this file.
pub static ATTACKS: &[Attack] = attack_table! {
    "configuration-is-no-file" Processes => no_file,
        "a leaf reloads its configuration after a FIFO, an endless device, a folder or an endless file has replaced it";
    "configuration-of-faults" Processes => faults, "a leaf reloads a configuration that has 20,000 invalid entries";
    "idle-connections" Processes => idle, "200 idle connections to each listener of a leaf's control, repeatedly";
};

/// Object that takes the configuration's place: its name, and the function that creates it at a path.
type Substitute = (&'static str, fn(&Path) -> std::io::Result<()>);

/// All substitutes. The endless file has 1 TiB, all of it a hole without data.
const SUBSTITUTES: [Substitute; 4] = [
    ("a FIFO", |path| Command::new("mkfifo").arg(path).status().map(|_| ())),
    ("an endless device", |path| symlink("/dev/zero", path)),
    ("a folder", |path| fs::create_dir(path)),
    ("an endless file", |path| fs::File::create(path)?.set_len(1 << 40)),
];

/// Replaces the configuration by each object, and lets the leaf reload it. The leaf must refuse it and keep serving.
fn no_file(_: &Budget, account: &mut Account) -> Result<(), Failure> {
    for (name, make) in SUBSTITUTES {
        let site = Site::new()?;
        let mut leaf = site.leaf()?;
        let config = site.path("leaf.toml");
        fs::remove_file(&config)?;
        make(&config)?;
        let (code, output) = check_config(&site, &config)?;
        account.check(
            format!("{name}: `wedjat check` refuses it"),
            code == INVALID && output.contains("can't be read"),
            format!("{code:?}: {}", output.trim()),
        );
        reload(&leaf)?;
        account.tried("reloads", 1);
        site.until("a refused reload", || Ok(leaf.output().contains("reload refused")))?;
        check_control(account, name, &site)?;
        check_outcomes(
            account,
            &format!("{name}: all tasks are answered"),
            site.drive(DRIVE_SECONDS),
        );
        check_alive(account, &format!("{name}: the leaf lives"), &mut leaf);
        check_term(account, name, leaf)?;
    }
    Ok(())
}

/// Lets the leaf reload a configuration of invalid entries. The leaf must answer operators meanwhile, and refuse it.
/// `wedjat check` must bound its list of faults.
fn faults(_: &Budget, account: &mut Account) -> Result<(), Failure> {
    let site = Site::new()?;
    let mut leaf = site.leaf()?;
    let config = site.path("leaf.toml");
    let mut text = fs::read_to_string(&config)?;
    for index in 0..FAULTY {
        // Each server has an address of its own. Its pool is unknown, and the worker ids repeat.
        let [_, a, b, c] = (index as u32).to_be_bytes();
        write!(text, "[[server]]\nip = '11.{a}.{b}.{c}'\npool = 9\nworkers = '0-3000'\n")?;
    }
    fs::write(&config, text)?;
    account.tried("entries with faults", FAULTY as u64);
    reload(&leaf)?;
    // The leaf may still check the entries.
    check_control(account, "during the reload", &site)?;
    let (code, output) = check_config(&site, &config)?;
    account.check(
        "`wedjat check` prints some of the faults and counts the rest",
        code == INVALID && output.contains("more faults not printed"),
        format!("{code:?}, {} lines", output.lines().count()),
    );
    site.until("a refused reload", || Ok(leaf.output().contains("reload refused")))?;
    check_alive(account, "the leaf lives", &mut leaf);
    check_term(account, "after the reload", leaf)
}

/// Opens idle connections in rounds, and closes them at the end of each. While they are open, the leaf must still
/// answer operators and Prometheus.
fn idle(budget: &Budget, account: &mut Account) -> Result<(), Failure> {
    let site = Site::new()?;
    let (listen, metrics) = (free_address()?, free_address()?);
    let config = site.leaf_config(&site.state())?;
    let config = format!("{config}\n[control]\nlisten = '{listen}'\nmetrics = '{metrics}'\n");
    let mut leaf = site.start(Command::new(site.binary()), "leaf", &config)?;
    let socket = control_socket(&site);
    site.until("the leaf's control", || Ok(leaf.check().map(|()| socket.exists())?))?;
    let rounds = (budget.seconds as usize).clamp(1, ROUNDS_MAX);
    for round in 1..=rounds {
        let mut tcp = Vec::new();
        for address in [listen, metrics] {
            tcp.extend((0..IDLE).filter_map(|_| TcpStream::connect(address).ok()));
        }
        let unix: Vec<_> = (0..IDLE).filter_map(|_| UnixStream::connect(&socket).ok()).collect();
        account.tried("idle connections", (tcp.len() + unix.len()) as u64);
        let name = format!("round {round}");
        check_control(account, &name, &site)?;
        let url = format!("http://{listen}");
        let arguments = ["ctl", "--connect", &url, "show"].map(Path::new);
        let (code, output) = run_wedjat(&site, "ctl", &arguments)?;
        account.check(
            format!("{name}: an operator over TCP is answered"),
            code == SUCCESS,
            format!("{code:?}: {}", output.trim()),
        );
        let scraped = scrape(metrics);
        account.check(
            format!("{name}: Prometheus is answered"),
            scraped.as_ref().is_ok_and(|text| text.contains("wedjat_")),
            scraped.map_or_else(|error| error.to_string(), |text| format!("{} bytes", text.len())),
        );
    }
    check_alive(account, "the leaf lives", &mut leaf);
    check_term(account, "at the end", leaf)
}

/// Reads the metrics over HTTP like Prometheus.
fn scrape(metrics: SocketAddr) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(metrics)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: node\r\nConnection: close\r\n\r\n")?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    Ok(text)
}

/// Returns the path of the node's control socket.
fn control_socket(site: &Site) -> PathBuf {
    wedjat::admin::socket_path(&site.state())
}

/// Makes a leaf read its configuration again, by SIGHUP.
fn reload(leaf: &NodeProcess) -> Result<(), Failure> {
    send_signal(leaf, Signal::HUP)
}

/// Runs `wedjat check` on a configuration. Returns its exit code and its output.
fn check_config(site: &Site, config: &Path) -> Result<(Option<i32>, String), Failure> {
    run_wedjat(site, "check", &[Path::new("check"), Path::new("--config"), config])
}

/// Runs `wedjat` with these arguments, and fails after [`TIMEOUT`]. Its output goes to files of the site named `name`.
/// Returns its exit code (`None` if a signal ended it) and its standard and error output.
fn run_wedjat(
    site: &Site,
    name: &str,
    arguments: &[&Path],
) -> Result<(Option<i32>, String), Failure> {
    let mut command = Command::new(site.binary());
    let job = Job::start(command.args(arguments), &site.path(name))?;
    let (status, output, errors) = job.finish()?;
    Ok((status.code(), output + &errors))
}

/// Checks that the leaf answers an operator at its local socket.
fn check_control(account: &mut Account, name: &str, site: &Site) -> Result<(), Failure> {
    let state = site.state();
    let arguments = [Path::new("ctl"), Path::new("--node"), &state, Path::new("show")];
    let (code, output) = run_wedjat(site, "ctl", &arguments)?;
    account.check(
        format!("{name}: the local socket answers"),
        code == SUCCESS,
        format!("{code:?}: {}", output.trim()),
    );
    Ok(())
}

/// Checks that the leaf ends within 20 s after one SIGTERM, with exit code 0.
fn check_term(account: &mut Account, name: &str, mut leaf: NodeProcess) -> Result<(), Failure> {
    send_signal(&leaf, Signal::TERM)?;
    let status = leaf.wait_for_exit(Duration::from_secs(20));
    account.check(
        format!("{name}: one SIGTERM ends the leaf in order"),
        status.is_some_and(|status| status.success()),
        status.map_or_else(|| "still running".to_owned(), describe_exit),
    );
    Ok(())
}
