//! A leaf process (`wedjat leaf`, the scheduler of a rack) that replays the same packets endlessly: tasks, and one
//! packet to be dropped. Tests of commands and outputs of a running node use it. Its port is DPDK's pcap device.
#![allow(dead_code, reason = "no test uses all of it")]

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use wedjat::io::pcap::write_frames;
use wedjat::state::Snapshot;
use wedjat::wire::task::Header;

use crate::frames::*;
use crate::process::ChildProcess;
use crate::timeouts::*;

pub const WEDJAT: &str = env!("CARGO_BIN_EXE_wedjat");

/// A folder with the capture, the configuration and the state of a leaf of pool [`POOL`] with workers 10 to
/// 13.
pub struct Home(tempfile::TempDir);

impl Home {
    /// Creates the folder with 100 tasks and a frame of 0xFF bytes, which the leaf drops.
    pub fn new() -> Self {
        let tasks = (0..100).map(|seq| task(Header::new_task(POOL, seq)));
        Self::given(&tasks.chain([vec![0xFF; 60]]).collect::<Vec<_>>())
    }

    /// Creates the folder with these packets. [`Self::start`] needs a task among them.
    pub fn given(frames: &[Vec<u8>]) -> Self {
        let home = Self(tempfile::tempdir().unwrap());
        write_frames(&home.path("in.pcap"), frames).unwrap();
        let cpu = core_affinity::get_core_ids().unwrap()[0].id;
        let text = format!(
            "[leaf]\nid = 1\ncores = [{cpu}]\nseed = 7\nstate = '{}'\n\
             [[port]]\ndevice = 'net_pcap0,rx_pcap={},infinite_rx=1'\nside = 'both'\nip = '10.0.1.1/16'\nmac = '{}'\n\
             [[pool]]\nid = {POOL}\npolicy = 'random'\n\
             [[server]]\nip = '10.0.2.11'\nmac = '02:00:00:00:02:0b'\nworkers = '10-13'\npool = {POOL}\n",
            home.state().display(),
            home.path("in.pcap").display(),
            LEAF_MACS[0],
        );
        fs::write(home.path("leaf.toml"), text).unwrap();
        home
    }

    /// Returns the path of a file in the folder.
    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Returns the path of the leaf's state file.
    pub fn state(&self) -> PathBuf {
        self.path("state")
    }

    /// Returns the command `wedjat leaf` with the configuration and these arguments. `LIFETIME` exceeds every test
    /// and ends only a leaf that its test left behind.
    pub fn leaf(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(WEDJAT);
        command.args(["leaf", "--config"]).arg(self.path("leaf.toml"));
        command.args(["--duration", LIFETIME]).args(arguments).env_remove("RUST_LOG");
        // Output goes to files: a pipe without a reader would block the leaf.
        let file = |name: &str| fs::File::create(self.path(name)).unwrap();
        command.stdout(file("stdout")).stderr(file("stderr"));
        command
    }

    /// Returns the leaf's standard output and standard error so far.
    pub fn output(&self) -> [String; 2] {
        ["stdout", "stderr"].map(|name| fs::read_to_string(self.path(name)).unwrap())
    }

    /// Starts the leaf and waits until it has scheduled a task. Returns the process.
    pub fn start(&self, mut command: Command) -> ChildProcess {
        let running = ChildProcess::start(&mut command);
        let scheduled = |state: Snapshot| state.cores[0].counters["scheduled"] > 0;
        wait_until("the leaf schedules", || Snapshot::open(&self.state()).is_ok_and(scheduled));
        running
    }
}
