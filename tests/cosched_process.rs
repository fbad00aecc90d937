//! `wedjat cosched run` beside a real agent and its worker: resources of a batch job, its limits, and its
//! cleanup.
//!
//! Co-scheduling lets a batch job use the idle time of an agent's worker cores. The command, the co-scheduler, starts
//! the job in a cgroup of its own, and a policy decides how much CPU time the job gets. A note (a file) describes
//! each job to other commands. An agent gives tasks to its worker, here from a capture.
//!
//! The test starts itself again as the worker. It needs two CPUs and the right to create cgroups.
#![allow(clippy::unwrap_used, reason = "a test")]

#[cfg(not(all(feature = "dpdk", target_os = "linux")))]
fn main() {
    println!("SKIPPED cosched_process: built without DPDK");
}

// promise: batch.2
#[cfg(all(feature = "dpdk", target_os = "linux"))]
fn main() {
    match std::env::var(batches::ATTACH) {
        Ok(name) => batches::work(&name),
        // A test runner asks for the names of the tests.
        Err(_) if std::env::args().nth(1).as_deref() == Some("--list") => {
            println!("cosched_process: test");
        }
        Err(_) => batches::all(),
    }
}

#[cfg(all(feature = "dpdk", target_os = "linux"))]
mod echo;
#[cfg(all(feature = "dpdk", target_os = "linux"))]
mod process;
#[cfg(all(feature = "dpdk", target_os = "linux"))]
mod timeouts;

#[cfg(all(feature = "dpdk", target_os = "linux"))]
mod batches {
    use std::collections::BTreeSet;
    use std::fs;
    use std::path::{Path, PathBuf};
    use std::process::{Command, Stdio};

    use serde_json::Value;
    use wedjat::cosched::{JobState, Note, NotesFolder};
    use wedjat::io::pcap::write_frames;
    use wedjat::ring::WorkerRegion;
    use wedjat::wire::ether::Mac;
    use wedjat::wire::task::Header;
    use wedjat::wire::udp::{self, Flow};
    use wedjat::worker::{Detached, Options, Worker};
    use wedjat_cosched::mechanism::{Group, Hierarchies, Limits, Process, Scheduling};

    use super::echo::echo;
    use super::process::ChildProcess;
    use super::timeouts::*;

    /// Environment variable with the agent's name; set only for the worker process.
    pub const ATTACH: &str = "WEDJAT_TEST_ATTACH";
    /// The agent's MAC address.
    const AGENT: Mac = Mac([2, 0, 0, 0, 2, 11]);

    /// Runs all checks in turn. The first needs an agent without a worker; the agent then gets one. The last check but
    /// one kills that agent; the last starts its own.
    pub fn all() {
        let cpus: Vec<usize> =
            core_affinity::get_core_ids().unwrap().iter().map(|core| core.id).collect();
        let [core, workers, ..] = cpus[..] else {
            println!("SKIPPED cosched_process: it needs two CPUs");
            return;
        };
        if let Err(reason) = may_make_cgroups() {
            println!("SKIPPED cosched_process: {reason}");
            return;
        }
        let home = Home::new(core, workers);
        {
            let agent = home.agent();
            home.unwatchable_batch_is_refused();
            let _worker = home.worker();
            home.a_batch_runs_where_the_worker_does_and_leaves_nothing();
            home.progress_is_reported_and_decisions_repeat();
            home.harmful_or_invalid_runs_are_refused();
            home.a_batch_that_will_not_end_is_ended();
            home.jobs_wait_for_each_other();
            home.remains_of_a_killed_co_scheduler_are_removed();
            home.a_batch_ends_with_its_agent(agent);
        }
        home.jobs_of_the_agents_file_run_one_after_the_other();
    }

    /// Makes and removes a cgroup, as a trial: without the right to do so the test is skipped. Returns the reason if
    /// that fails.
    fn may_make_cgroups() -> Result<(), String> {
        let hierarchies = Hierarchies::of_this_machine();
        if hierarchies.folders().is_empty() {
            return Err("this machine has no cgroups".to_owned());
        }
        let name = format!("try-{}", std::process::id());
        let planned = Group::planned(&hierarchies, Path::new("/"), &name);
        let cpus = Scheduling::of(std::process::id()).unwrap().cpus;
        let group = Group::make(&hierarchies, &planned, &Limits { cpus, processes: 1 });
        group.and_then(|group| group.remove(TIMEOUT)).map_err(|error| error.to_string())
    }

    /// Runs the worker process: pins itself to its CPU, and echoes until the agent ends.
    pub fn work(name: &str) {
        let cpu = std::env::var("WEDJAT_TEST_CPU").unwrap().parse().ok();
        let options = Options { cpu, attach_timeout: TIMEOUT, ..Options::default() };
        let mut worker = Worker::attach(name, &options).unwrap_or_else(|error| panic!("{error}"));
        loop {
            match echo(&mut worker) {
                None => {}
                Some(Detached::Stopped | Detached::AgentDied) => return,
                Some(reason) => panic!("{reason}"),
            }
        }
    }

    /// Returns the frame of a client's task, addressed to the agent without a leaf.
    fn task(seq: u16) -> Vec<u8> {
        let header = Header::new_task(1, seq);
        let mut frame = vec![0; udp::PAYLOAD + header.len() + 20];
        header.emit(&mut frame[udp::PAYLOAD..]);
        let flow = Flow {
            src_mac: Mac([2, 0, 0, 0, 0, 2]),
            dst_mac: AGENT,
            src: 0x0A00_0102,
            dst: 0x0A00_020B,
            src_port: 40_000,
            dst_port: 1234,
        };
        let len = frame.len() - udp::PAYLOAD;
        flow.emit(&mut frame, len);
        frame
    }

    /// Folder of the agent's files and of the notes of batch jobs.
    struct Home {
        /// The folder.
        folder: tempfile::TempDir,
        /// CPU of the worker.
        cpu: usize,
        /// CPU of the agent's dispatcher, the thread that gives the tasks.
        core: usize,
    }

    impl Home {
        /// Writes the configuration of an agent with one worker, and a capture of 50 tasks.
        fn new(core: usize, cpu: usize) -> Self {
            let home = Self { folder: tempfile::tempdir().unwrap(), cpu, core };
            write_frames(&home.path("in.pcap"), (0..50).map(task).collect::<Vec<_>>()).unwrap();
            let text = format!(
                "[agent]\nid = 6\nname = '{}'\ncore = {core}\nworker_timeout_ms = 0\nstate = '{}'\n\
                 [[port]]\ndevice = 'net_pcap0,rx_pcap={}'\nip = '10.0.2.11/24'\nmac = '{AGENT}'\n\
                 [[pool]]\nid = 1\npolicy = 'cfcfs'\nworkers = '20'\n",
                home.path("region").display(),
                home.path("state").display(),
                home.path("in.pcap").display(),
            );
            fs::write(home.path("agent.toml"), text).unwrap();
            home
        }

        /// Returns the path of a file in the folder.
        fn path(&self, name: &str) -> PathBuf {
            self.folder.path().join(name)
        }

        /// Returns a `wedjat` command that keeps its notes in this folder, apart from the machine's other jobs.
        fn wedjat(&self, arguments: &[&str]) -> Command {
            let mut command = Command::new(env!("CARGO_BIN_EXE_wedjat"));
            command.args(arguments).env("WEDJAT_COSCHED_DIR", self.path("notes"));
            command
        }

        /// Starts the agent and waits until its region exists, the memory that it shares with the worker.
        fn agent(&self) -> ChildProcess {
            self.agent_of("agent.toml")
        }

        /// Starts an agent with this configuration and waits until its region exists.
        fn agent_of(&self, config: &str) -> ChildProcess {
            let config = self.path(config);
            let mut command = self.wedjat(&["agent", "--config", config.to_str().unwrap()]);
            command.args(["--duration", LIFETIME, "--", "--no-pci"]);
            command.stdout(Stdio::null()).stderr(fs::File::create(self.path("agent.log")).unwrap());
            let agent = ChildProcess::start(&mut command);
            wait_until("the region exists", || self.path("region").exists());
            agent
        }

        /// Starts the worker. Waits until the agent has granted it a channel, and it is pinned: beside a worker on
        /// several CPUs, the co-scheduler refuses a job without `--cpus`.
        fn worker(&self) -> ChildProcess {
            let mut command = Command::new(std::env::current_exe().unwrap());
            command.env(ATTACH, self.path("region")).env("WEDJAT_TEST_CPU", self.cpu.to_string());
            let worker = ChildProcess::start(&mut command);
            let region = WorkerRegion::open_within(&self.path("region"), TIMEOUT).unwrap();
            wait_until("the worker is granted", || region.granted(0) != 0);
            let thread = region.worker(0).unwrap().thread;
            let cpus = || Scheduling::of(thread).map(|scheduling| scheduling.cpus);
            wait_until("the worker is pinned", || cpus() == Some(BTreeSet::from([self.cpu])));
            worker
        }

        /// Returns the command `wedjat cosched run` with these options and a shell script.
        fn run(&self, options: &[&str], script: &str) -> Command {
            let region = self.path("region");
            let mut command = self.wedjat(&["cosched", "run", "--agent", region.to_str().unwrap()]);
            command.args(options).args(["--", "sh", "-c", script]);
            command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
            command
        }

        /// Returns the notes of all jobs with a live co-scheduler.
        fn jobs(&self) -> Vec<Note> {
            NotesFolder::at(self.path("notes")).unwrap().jobs()
        }

        /// Waits until this job, named by its co-scheduler's process id, runs in its group. Returns its note.
        fn running(&self, id: u32) -> Note {
            let found = || {
                let mut notes = self.jobs().into_iter();
                // True for this job, once its cgroup exists.
                let is_it = |note: &Note| {
                    let is_made = note.made.paths().next().is_some_and(Path::exists);
                    note.id() == id && note.state == JobState::Running && is_made
                };
                notes.rfind(is_it)
            };
            wait_until("the job runs", || {
                found().is_some_and(|note| !self.members(&note).is_empty())
            });
            found().unwrap()
        }

        /// Returns the processes in a job's cgroup.
        fn members(&self, note: &Note) -> BTreeSet<u32> {
            let read =
                |path: &Path| fs::read_to_string(path.join("cgroup.procs")).unwrap_or_default();
            let texts: Vec<_> = note.made.paths().map(read).collect();
            texts.iter().flat_map(|text| text.lines()).filter_map(|pid| pid.parse().ok()).collect()
        }

        /// Checks that the job's cgroups and processes are gone, and that `jobs` does not list it.
        fn assert_removed(&self, note: &Note, members: &BTreeSet<u32>) {
            for path in note.made.paths() {
                assert!(!path.exists(), "{} is left", path.display());
            }
            let alive = |pid: &u32| Process::of(*pid).is_some_and(|process| process.is_alive());
            let left: Vec<_> = members.iter().filter(|pid| alive(pid)).collect();
            assert!(left.is_empty(), "{left:?} are left");
            assert!(self.jobs().iter().all(|job| job.id() != note.id()));
        }

        /// Checks a job's CPU, which is the worker's, its idle scheduling class, and that it gets no real-time
        /// scheduling. Checks the exit codes of `cosched run`, and that all processes of a job end with it.
        pub fn a_batch_runs_where_the_worker_does_and_leaves_nothing(&self) {
            // Prints the job's CPUs, whether it may use real-time scheduling, and its scheduling class (5: idle).
            // In between, it tries to use all CPUs; no check looks at the result.
            let script = "grep Cpus_allowed_list /proc/self/status; \
                          command -v chrt >/dev/null && { chrt -f 1 true 2>/dev/null || echo refused; }; \
                          taskset -c 0-63 true 2>/dev/null; cut -d' ' -f41 /proc/self/stat; exit 7";
            let output = self.run(&["--policy", "idle"], script).output().unwrap();
            let stdout = String::from_utf8(output.stdout).unwrap();
            let error = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(7), "{stdout}{error}");
            assert!(stdout.contains(&format!("Cpus_allowed_list:\t{}\n", self.cpu)), "{stdout}");
            // Real-time scheduling is refused.
            assert!(stdout.contains("refused\n") && stdout.ends_with("5\n"), "{stdout}");
            assert!(self.jobs().is_empty());
            // An end by a signal gives the exit code of a shell.
            let output = self.run(&[], "kill -9 $$").output().unwrap();
            assert_eq!(output.status.code(), Some(128 + 9), "{output:?}");
            // The time limit ends a job.
            let output = self.run(&["--wall", "300ms"], "while :; do :; done").output().unwrap();
            assert_eq!(output.status.code(), Some(124), "{output:?}");
            // A background process of the job ends with it.
            let output = self.run(&[], "sleep 1000 & echo $!").output().unwrap();
            let left = String::from_utf8(output.stdout).unwrap().trim().parse().unwrap();
            assert!(Process::of(left).is_none_or(|process| !process.is_alive()));
        }

        /// Runs a job that prints its progress. Checks that its note counts the progress, and that `wedjat cosched
        /// status` shows the job. A replay of the log must succeed, so it makes the same decisions.
        pub fn progress_is_reported_and_decisions_repeat(&self) {
            let log = self.path("decisions");
            let options = [
                "--policy",
                "asax",
                "--mode",
                "iw",
                "--log",
                log.to_str().unwrap(),
                "--progress",
                "lines=step",
                "--work",
                "1000",
                "--wall",
                "1h",
            ];
            let script = "for i in 1 2 3; do echo step $i; done; echo other; while [ ! -e \"$HOLD\" ]; do sleep 0.05; done";
            let hold = self.path("release");
            let mut command = self.run(&options, script);
            let running = ChildProcess::start(command.env("HOLD", &hold));
            let id = running.id();
            self.running(id);
            let figures = || self.jobs().iter().find(|job| job.id() == id).map(|job| job.figures);
            wait_until("the policy has decided", || {
                // Three lines of output contain `step`.
                figures().is_some_and(|figures| figures.decisions >= 2 && figures.done == 3.0)
            });
            let shown = self.wedjat(&["cosched", "status", "--json"]).output().unwrap().stdout;
            let shown: Value = serde_json::from_slice(&shown).unwrap();
            assert_eq!(
                (&shown[0]["process"]["pid"], &shown[0]["state"]),
                (&id.into(), &"running".into())
            );
            let text = self.wedjat(&["cosched", "status"]).output().unwrap().stdout;
            let text = String::from_utf8(text).unwrap();
            assert!(
                text.contains(&format!("job {id}  running")) && text.contains("policy asax"),
                "{text}"
            );
            fs::write(hold, "").unwrap();
            let output = running.output();
            assert!(output.status.success(), "{output:?}");
            assert!(String::from_utf8(output.stdout).unwrap().ends_with("step 3\nother\n"));
            let replayed = self
                .wedjat(&["cosched", "replay", log.to_str().unwrap(), "--format", "json"])
                .output()
                .unwrap();
            assert!(replayed.status.success(), "{replayed:?}");
            let replayed: Value = serde_json::from_slice(&replayed.stdout).unwrap();
            assert!(replayed["decisions"].as_u64().unwrap() >= 2);
            assert_eq!(replayed["settings"]["mode"], "iw");
        }

        /// Checks the reasons for refused jobs: options that would harm the worker or the dispatcher, invalid options,
        /// and no agent. A dry run makes nothing.
        pub fn harmful_or_invalid_runs_are_refused(&self) {
            // Checks that a job with these options does not run, and that the error names the given words.
            let refused = |options: &[&str], named: &[&str]| {
                let output = self.run(options, "echo ran").output().unwrap();
                let error = String::from_utf8(output.stderr).unwrap();
                assert!(!output.status.success() && output.stdout.is_empty(), "{options:?}");
                for name in named {
                    assert!(error.contains(name), "{options:?}: {error}");
                }
            };
            refused(
                &["--class", "normal", "--policy", "static(50%)"],
                &["worker 20", "real time", "--force"],
            );
            refused(&["--class", "normal", "--policy", "shares"], &["weight", "worker 20"]);
            refused(&["--class", "normal", "--policy", "idle"], &["none", "worker 20"]);
            refused(&["--cpus", &self.core.to_string()], &["dispatcher", "--cpus"]);
            refused(&["--cpus", "4095"], &["CPU 4095"]);
            refused(&["--cgroup", "/no/such"], &["no/such", "--cgroup"]);
            refused(&["--policy", "always"], &["static(50%)"]);
            refused(&["--objective", "fast"], &["p99.9=500us"]);
            refused(&["--work", "0"], &["--work"]);
            let output = self.run(&["--dry-run"], "echo ran").output().unwrap();
            let stdout = String::from_utf8(output.stdout).unwrap();
            assert!(
                output.status.success() && stdout.contains("would run sh -c echo ran"),
                "{stdout}"
            );
            let made = stdout.lines().find_map(|line| line.strip_prefix("would make ")).unwrap();
            assert!(!Path::new(made).exists() && self.jobs().is_empty());
            let output = self.wedjat(&["cosched", "cancel", "1"]).output().unwrap();
            assert!(String::from_utf8(output.stderr).unwrap().contains("no job 1"));
            // There is no agent of this name.
            let nobody = self
                .wedjat(&["cosched", "run", "--agent", "/no/agent", "--", "true"])
                .output()
                .unwrap();
            let error = String::from_utf8(nobody.stderr).unwrap();
            assert!(
                error.contains("/no/agent") && error.contains("are threads of its own"),
                "{error}"
            );
        }

        /// Checks that a job beside an agent without a worker is refused: it has no CPU. With a given CPU, the policy
        /// still has no input.
        pub fn unwatchable_batch_is_refused(&self) {
            let cpu = self.cpu.to_string();
            for (options, says) in [(&[][..], "no worker"), (&["--cpus", &cpu][..], "no input")] {
                let output = self.run(options, "echo ran").output().unwrap();
                let error = String::from_utf8(output.stderr).unwrap();
                assert!(error.contains(says) && output.stdout.is_empty(), "{says}: {error}");
            }
        }

        /// Cancels a job that forks without end and ignores signals. Checks its limit on processes, and that the
        /// co-scheduler kills all of them.
        pub fn a_batch_that_will_not_end_is_ended(&self) {
            // Forks up to the limit and ignores termination signals. The first shell forks only once, before all
            // others: a shell that cannot fork exits.
            let script = "trap '' TERM HUP INT; f() { f | f & }; (f) & while :; do :; done";
            let options = ["--policy", "idle", "--processes", "100", "--grace", "100ms"];
            let running = ChildProcess::start(
                self.run(&options, script).stdout(Stdio::null()).stderr(Stdio::null()),
            );
            let note = self.running(running.id());
            wait_until("the job has forked", || self.members(&note).len() > 20);
            let members = self.members(&note);
            assert!(members.len() <= 100, "{}", members.len());
            let cancelled =
                self.wedjat(&["cosched", "cancel", &running.id().to_string()]).output().unwrap();
            assert!(cancelled.status.success(), "{cancelled:?}");
            let output = running.output();
            assert_eq!(output.status.code(), Some(128 + 9), "{output:?}");
            self.assert_removed(&note, &members);
        }

        /// Starts three jobs of one agent. Checks that two wait for the first, and that a signal ends a waiting one.
        /// The second runs after the first.
        pub fn jobs_wait_for_each_other(&self) {
            let start = |script| ChildProcess::start(&mut self.run(&["--grace", "60s"], script));
            let first = start("sleep 1000");
            self.running(first.id());
            let (second, state) = (start("echo second"), |id: u32| {
                self.jobs().iter().find(|job| job.id() == id).map(|job| job.state)
            });
            wait_until("the second waits", || state(second.id()) == Some(JobState::Waiting));
            let third = start("echo third");
            wait_until("the third waits", || state(third.id()) == Some(JobState::Waiting));
            third.signal("-TERM");
            assert!(third.output().stdout.is_empty(), "the third never ran");
            assert_eq!(state(second.id()), Some(JobState::Waiting));
            first.signal("-TERM");
            assert_eq!(first.output().status.code(), Some(128 + 15));
            assert_eq!(second.output().stdout, b"second\n");
            assert!(self.jobs().is_empty());
        }

        /// Kills a co-scheduler. Checks that the next `wedjat cosched status` reports it, and removes the processes and
        /// cgroups of its job.
        pub fn remains_of_a_killed_co_scheduler_are_removed(&self) {
            let running = ChildProcess::start(
                &mut self.run(&["--policy", "static(10%)"], "sleep 1000 & (while :; do :; done)"),
            );
            let note = self.running(running.id());
            wait_until("both processes run", || self.members(&note).len() >= 2);
            let members = self.members(&note);
            running.signal("-KILL");
            drop(running);
            let status = self.wedjat(&["cosched", "status"]).output().unwrap();
            assert!(status.status.success() && status.stdout.is_empty(), "{status:?}");
            assert!(String::from_utf8(status.stderr).unwrap().contains("was killed"));
            self.assert_removed(&note, &members);
        }

        /// Starts an agent whose configuration lists two jobs. Checks that the second starts after the failure of the
        /// first, and ends with the agent.
        pub fn jobs_of_the_agents_file_run_one_after_the_other(&self) {
            let (done, job) = (self.path("done"), |script: &str| {
                format!("[[cosched.job]]\ncommand = ['sh', '-c', '{script}']\nwall = '1h'\n")
            });
            let text = fs::read_to_string(self.path("agent.toml")).unwrap();
            let first = job(&format!("echo first >> {}; exit 3", done.display()));
            let second = job(&format!("echo second >> {}; sleep 1000", done.display()));
            let text = format!("{text}[cosched]\npolicy = 'idle'\nprocesses = 50\n{first}{second}");
            fs::write(self.path("jobs.toml"), text).unwrap();
            let _ = fs::remove_file(self.path("region"));
            let agent = self.agent_of("jobs.toml");
            let _worker = self.worker();
            let has_done = |text: &str| fs::read_to_string(&done).is_ok_and(|found| found == text);
            wait_until("both have begun", || has_done("first\nsecond\n"));
            let running = || self.jobs().into_iter().find(|job| !self.members(job).is_empty());
            wait_until("the second one runs", || running().is_some());
            let note = running().unwrap();
            let members = self.members(&note);
            agent.signal("-TERM");
            assert!(agent.output().status.success());
            self.assert_removed(&note, &members);
        }

        /// Kills the agent. Checks that the job then ends, and that nothing of it is left.
        pub fn a_batch_ends_with_its_agent(&self, agent: ChildProcess) {
            let running = ChildProcess::start(&mut self.run(&["--grace", "0s"], "sleep 1000"));
            let note = self.running(running.id());
            let members = self.members(&note);
            agent.signal("-KILL");
            drop(agent);
            let output = running.output();
            assert_eq!(output.status.code(), Some(1));
            let error = String::from_utf8(output.stderr).unwrap();
            assert!(error.contains("has stopped"), "{error}");
            self.assert_removed(&note, &members);
        }
    }
}
