//! `wedjat-testbed demo`: a leaf process under several policies and loads, with emulated clients and workers
//! on both sides, and a report. A leaf is the scheduler process of a rack of workers. A row of the report is one policy
//! under one load.
//!
//! In emulated time, this process advances the leaf's clock (`emulated`); in real time, both run freely (`show`).

use std::path::PathBuf;

use clap::Args;
use wedjat::policy::PolicySpec;
use wedjat::state::files::ReportFile;
use wedjat_pktgen::results::ResultArgs;
use wedjat_pktgen::service::Service;
use wedjat_testbed::rack::{Layout, Servers};

use super::{Failure, Format, seconds};

/// Text below the help.
pub const EXAMPLE: &str = "Example, two policies near saturation:
  wedjat-testbed demo --policies horus,random --loads 0.9,0.95 --seconds 10 --out report
No root, hugepages or NIC is needed: the leaf is a separate DPDK process, connected by memif.
In emulated time every row is the same on every machine. --clock real needs two otherwise idle CPUs. It measures invalid rows again,
up to --retries times in all. The exit status is 1 if a row stays invalid.";

/// Heading of the page of results.
const HEADING: &str = "wedjat-testbed demo";

/// Command line of `demo`.
#[derive(Args, Debug)]
pub struct Arguments {
    /// Policies, separated by commas; `wedjat policies` lists them
    #[arg(long, default_value = "horus,racksched,random", value_parser = policies)]
    policies: std::sync::Arc<Vec<PolicySpec>>,
    /// Loads as fractions of the workers' capacity
    #[arg(long, value_delimiter = ',', default_value = "0.5,0.8,0.9", value_parser = load)]
    loads: Vec<f64>,
    /// Number of emulated workers
    #[arg(long, default_value_t = 32)]
    workers: u16,
    /// Service times; see `wedjat-pktgen run --help`
    #[arg(long, default_value = "exp(100us)")]
    service: Service,
    /// Clock of the leaf and all other parts: emulated time, or this machine's real time
    #[arg(long, value_enum, default_value_t = Clock::Emulated)]
    clock: Clock,
    /// Tasks per row in emulated time
    #[arg(long, default_value_t = 60_000, value_parser = clap::value_parser!(u64).range(100..))]
    tasks: u64,
    /// Measured seconds per row in real time
    #[arg(long, default_value_t = 3.0, value_parser = positive)]
    seconds: f64,
    /// Unmeasured warm-up in real time before each row
    #[arg(long, default_value = "500ms", value_parser = seconds)]
    warmup: f64,
    /// Folder for the report: demo.json, demo.csv, index.html
    #[arg(long, default_value = "demo-report")]
    out: PathBuf,
    /// Output format
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
    /// Seed of all random streams
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Total number of repeated measurements of invalid rows in real time; they come last, because a
    /// machine's pauses come in bursts
    #[arg(long, default_value_t = 9)]
    retries: u32,
    /// Command of the leaf [default: `wedjat` beside this one, or in PATH]
    #[arg(long)]
    leaf: Option<PathBuf>,
    /// CPU of the leaf [default: the first]
    #[arg(long)]
    leaf_core: Option<usize>,
    /// CPU of generator and rack [default: the last]
    #[arg(long)]
    core: Option<usize>,
    #[command(flatten)]
    results: ResultArgs,
}

impl Arguments {
    /// Writes the files of the report. Returns a list of them.
    fn write(
        &self,
        json: String,
        csv: impl Into<Vec<u8>>,
        page: String,
    ) -> Result<String, Failure> {
        let files: [(_, Vec<u8>); 3] =
            [("demo.json", json.into()), ("demo.csv", csv.into()), ("index.html", page.into())];
        let mut written = String::new();
        for (name, text) in files {
            let file = self.out.join(name);
            ReportFile::new("--out", &file)?.write(text)?;
            written.push_str(&format!("wrote {}\n", file.display()));
        }
        Ok(written)
    }
}

/// Clock of a demo.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Clock {
    /// Emulated time: the same rows on every machine.
    Emulated,
    /// Real time of this machine.
    Real,
}

impl Arguments {
    /// Returns the servers and their workers, whose ids count from 0.
    fn layout(&self) -> Result<Layout, String> {
        // Four servers if the workers divide evenly. The distribution over servers does not affect
        // scheduling.
        let count = if self.workers.is_multiple_of(4) { 4 } else { 1 };
        let servers = Servers { first: [10, 0, 2, 11].into(), count };
        Layout::new(servers, self.workers / count, 0)
    }
}

/// Parses policies separated by commas. Commas in parentheses belong to a policy's parameters. The `Arc` makes the list
/// a single value for clap, which parses each element of a `Vec` separately.
fn policies(text: &str) -> Result<std::sync::Arc<Vec<PolicySpec>>, String> {
    let mut depth = 0_i32;
    let separates = |c: char| {
        depth += i32::from(c == '(') - i32::from(c == ')');
        c == ',' && depth == 0
    };
    let specs: Result<Vec<PolicySpec>, _> =
        text.split(separates).map(|name| name.trim().parse()).collect();
    specs.map(std::sync::Arc::new).map_err(|error: wedjat::policy::PolicyError| error.to_string())
}

/// Parses a load: a fraction above 0 and up to 2.
fn load(text: &str) -> Result<f64, String> {
    match text.trim().parse::<f64>() {
        Ok(load) if load > 0.0 && load <= 2.0 => Ok(load),
        _ => {
            Err(format!("`{text}` is not a load; write a fraction above 0 and up to 2, as in 0.9"))
        }
    }
}

/// Parses a positive number of seconds.
fn positive(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(seconds) if seconds > 0.0 && seconds.is_finite() => Ok(seconds),
        _ => Err(format!("`{text}` is not a time; write seconds, as in 5 or 0.5")),
    }
}

pub use show::run;

/// The demo on DPDK: the choice of the clock, and the demo in real time.
mod show {
    use std::fs;
    use std::path::{Path, PathBuf};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Duration;

    use indicatif::{ProgressBar, ProgressStyle};
    use wedjat::policy::PolicySpec;
    use wedjat_pktgen::address::Addresses;
    use wedjat_pktgen::load::Load;
    use wedjat_pktgen::process;
    use wedjat_pktgen::results::{Results, RunDescription};
    use wedjat_testbed::demo::{LeafConfig, NodeProcess, Row, page, row};
    use wedjat_testbed::rack::Options;

    use super::{Arguments, Clock, Failure, Format, HEADING, emulated};
    use crate::command::rig::{Rig, RunSettings};
    use crate::command::{devices, leaves, ports};

    /// Name of the memif device to the clients, the same in both processes.
    const CLIENTS: &str = "net_memif0";
    /// Name of the memif device to the workers.
    const WORKERS: &str = "net_memif1";
    /// Ring options: 2^12 slots, room for 14 ms of 288,000 packets per second (the default workers at 90% load), so
    /// that pauses of the machine lose no packets. Buffers of 512 bytes fit a task, and all of them stay in the cache.
    const RINGS: &str = ",rsize=12,bsize=512";
    /// Longest wait for the leaf's start. It may be long, because an exited leaf is detected at once. The leaf's
    /// lifetime is longer than its run by this time.
    const LEAF_TIMEOUT: Duration = Duration::from_secs(300);
    /// Percentile that each row reports.
    const QUANTILE: f64 = 0.99;
    /// Longest wait for replies after the last task, in seconds.
    const DRAIN_S: f64 = 0.5;

    /// Runs the demo in emulated or in real time. Returns false if a row is invalid, which only real time can cause.
    pub fn run(arguments: &Arguments) -> Result<bool, Failure> {
        arguments.layout()?;
        ports::check()?;
        if arguments.clock == Clock::Emulated {
            return emulated::run(arguments).map(|()| true);
        }
        let stop = process::stop_on_signals()?;
        let mut demo = Demo::open(arguments, stop)?;
        // Detects an invalid folder before a minute of work.
        fs::create_dir_all(&arguments.out)
            .map_err(|error| format!("--out {}: {error}", arguments.out.display()))?;
        let mut results = Results::open(&arguments.results)?;
        let mut rows = demo.rows()?;
        // Moves each row's log of tasks to the result files, if the command line asks for them.
        for (index, row) in rows.iter_mut().enumerate() {
            let Some(results) = &mut results else { break };
            let (model, policy) = ("demo".to_owned(), row.policy.clone());
            let (load, offered_pps) = (Some(row.load), Some(row.report.offered_pps));
            let subject =
                RunDescription { model, policy, load, offered_pps, ..RunDescription::default() };
            let valid = row.report.valid;
            results.add(row.report.take_tasks(index + 1, subject, demo.settings.pool), valid)?;
        }
        results.map_or(Ok(()), |results| results.finish(HEADING))?;
        let written = write(arguments, &rows)?;
        match arguments.format {
            Format::Text => print!("{}{written}", row::table(&rows)),
            Format::Json => {
                wedjat_pktgen::report::print_line(serde_json::to_string_pretty(&rows)?)?
            }
        }
        Ok(rows.iter().all(|row| row.report.valid))
    }

    /// Address of the leaf on the clients' side.
    const LEAF: [u8; 4] = [10, 0, 1, 1];

    /// Devices and settings of a demo in real time.
    struct Demo<'a> {
        arguments: &'a Arguments,
        /// Set by a stop signal.
        stop: Arc<AtomicBool>,
        /// Command of the leaf.
        binary: PathBuf,
        /// Settings of generator and workers.
        settings: RunSettings,
        /// CPU of the leaf.
        leaf_core: usize,
        /// Open devices of this process. Dropped before the folder, which contains their sockets.
        rig: Rig,
        folder: tempfile::TempDir,
    }

    impl<'a> Demo<'a> {
        /// Opens the devices and finds the leaf's command.
        fn open(arguments: &'a Arguments, stop: Arc<AtomicBool>) -> Result<Self, Failure> {
            let binary = leaves::command(arguments.leaf.as_deref())?;
            let layout = arguments.layout()?;
            let (leaf_core, core) = cores(arguments);
            let options = Options { seed: arguments.seed, ..Options::default() };
            let folder = devices::scratch("demo")?;
            let settings = RunSettings {
                addresses: Addresses::new(LEAF.into(), None, None)?,
                udp_port: options.udp_port,
                pool: 1,
                layout,
                options,
                outages: Vec::new(),
                agent: None,
                state: Some(folder.path().join("state")),
                core: Some(core),
            };
            let (clients, workers) = both_devices(folder.path(), "server");
            let eal = ["--no-huge", "--no-pci"].map(str::to_owned);
            let outstanding_max = settings.options.outstanding_max;
            let rig = Rig::open(&eal, &clients, Some(&workers), outstanding_max, settings.core)?;
            Ok(Self { arguments, stop, binary, settings, leaf_core, rig, folder })
        }

        /// Measures all rows, and then invalid ones again, at most `--retries` times in all.
        fn rows(&mut self) -> Result<Vec<Row>, Failure> {
            let policies = Arc::clone(&self.arguments.policies);
            let runs = self.arguments.loads.iter();
            let runs: Vec<_> =
                runs.flat_map(|load| policies.iter().map(move |policy| (policy, *load))).collect();
            let progress = Progress::new(runs.len());
            let mut rows = Vec::new();
            for (policy, load) in &runs {
                progress.show(&format!("{policy} at {:.0}%", load * 100.0));
                rows.push(self.row(policy, *load)?);
                progress.step();
            }
            for _ in 0..self.arguments.retries {
                // Selects the invalid row with the fewest attempts.
                let invalid = rows.iter().enumerate().filter(|(_, row)| !row.report.valid);
                let Some((index, row)) = invalid.min_by_key(|(_, row)| row.attempts) else { break };
                let ((policy, load), attempts) = (runs[index], row.attempts + 1);
                let reasons = row.report.reasons.join("; ");
                progress.show(&format!("{policy} at {:.0}%, repeated: {reasons}", load * 100.0));
                rows[index] = Row { attempts, ..self.row(policy, load)? };
            }
            Ok(rows)
        }

        /// Measures one policy under one load with a new leaf process. The row includes the account (counters and
        /// packet ledger) that the leaf writes at its end.
        fn row(&mut self, policy: &PolicySpec, load: f64) -> Result<Row, Failure> {
            let offered = self.load(load);
            offered.self_test()?;
            if offered.records_tasks {
                let option = self.arguments.results.option();
                offered.check_recordable().map_err(|error| format!("{option}: {error}"))?;
            }
            let mut leaf = self.start(policy, &offered)?;
            self.rig.wait_for_peer(LEAF_TIMEOUT, &self.stop, || Ok(leaf.check()?))?;
            let result = self.rig.offer(&offered, &self.settings, &self.stop);
            // The error of a dead leaf explains more than that of this side.
            leaf.check()?;
            let (report, rack) = result?;
            if self.stop.load(Ordering::Relaxed) {
                return Err("stopped".into());
            }
            let account = leaf.stop()?;
            Ok(Row::new(policy.to_string(), load, report, rack, account))
        }

        /// Returns the generator's load for a fraction of the workers' capacity. The percentile and the number of
        /// workers set the rule for undisturbed slices.
        fn load(&self, share: f64) -> Load {
            let service = self.arguments.service.clone();
            let rate_pps = share * f64::from(self.arguments.workers) * 1e9 / service.mean_ns();
            Load {
                warmup_s: self.arguments.warmup,
                duration_s: self.arguments.seconds,
                drain_s: DRAIN_S,
                seed: self.arguments.seed,
                records_tasks: self.arguments.results.need_tasks(),
                ..Load::new(rate_pps, service)
            }
            .with_percentile(QUANTILE, Some(self.arguments.workers.into()))
        }

        /// Starts a leaf process in real time. It ends after its lifetime even if this process dies.
        fn start(&self, policy: &PolicySpec, load: &Load) -> Result<NodeProcess, Failure> {
            let folder = self.folder.path();
            let config = LeafConfig {
                policy,
                layout: self.settings.layout,
                clients_ip: LEAF.into(),
                workers_ip: [10, 0, 2, 1].into(),
                clients_device: CLIENTS,
                workers_device: WORKERS,
                pool: self.settings.pool,
                udp_port: self.settings.udp_port,
                core: self.leaf_core,
                cores: 1,
                state: &folder.join("state"),
                seed: self.arguments.seed,
                queue: None,
                shared_workers: false,
                speeds: &[],
            };
            let run_s = load.warmup_s + load.duration_s + load.drain_s;
            let lifetime = LEAF_TIMEOUT + Duration::from_secs_f64(run_s);
            let (clients, workers) = both_devices(folder, "client");
            let eal = ["--no-huge", "--no-pci", "--vdev", &clients, "--vdev", &workers];
            let eal = eal.map(str::to_owned);
            // `None`: the leaf uses real time.
            Ok(NodeProcess::start(&self.binary, folder, &config.toml(), lifetime, None, &eal)?)
        }
    }

    /// Returns the arguments of both devices, for the memif role `server` or `client`. This process is the server, so
    /// that leaves, the clients, can come and go.
    fn both_devices(folder: &Path, role: &str) -> (String, String) {
        let device = |name: &str, id: u32| devices::memif(folder, name, id, role, RINGS);
        (device(CLIENTS, 0), device(WORKERS, 1))
    }

    /// Returns the CPU of the leaf, and that of generator and rack. Warns if they are the same.
    fn cores(arguments: &Arguments) -> (usize, usize) {
        let (leaf, core) = devices::two_cpus(arguments.leaf_core, arguments.core);
        if leaf == core {
            log::warn!(
                "leaf and load share CPU {core}, which makes latencies useless; two CPUs are needed"
            );
        }
        (leaf, core)
    }

    /// Writes the report. Returns a list of the written files.
    fn write(arguments: &Arguments, rows: &[Row]) -> Result<String, Failure> {
        let summary = format!(
            "{} emulated workers with {} service times behind one leaf process on one core, connected by memif; \
             Poisson arrivals, {} s measured per row, seed {}.",
            arguments.workers, arguments.service, arguments.seconds, arguments.seed
        );
        let manifests: Vec<_> = rows
            .iter()
            .map(|row| {
                serde_json::json!({
                    "policy": row.policy,
                    "load": row.load,
                    "attempts": row.attempts,
                    "load_manifest": row.report.manifest,
                    "leaf_manifest": row.leaf["manifest"],
                })
            })
            .collect();
        let manifest = serde_json::to_string_pretty(&manifests)?;
        let json = serde_json::to_string_pretty(rows)? + "\n";
        arguments.write(json, row::csv(rows)?, page::page(rows, &summary, &manifest)?)
    }

    /// Progress on standard error: a bar on a terminal, lines otherwise.
    struct Progress(ProgressBar);

    impl Progress {
        /// Creates the bar for `rows` rows. It hides itself without a terminal.
        fn new(rows: usize) -> Self {
            let bar = ProgressBar::new(rows as u64);
            if let Ok(style) =
                ProgressStyle::with_template("[{bar:24}] {pos}/{len} {elapsed} {wide_msg}")
            {
                bar.set_style(style.progress_chars("=> "));
            }
            if !bar.is_hidden() {
                bar.enable_steady_tick(Duration::from_millis(250));
            }
            Self(bar)
        }

        /// Shows the current step beside the bar, or logs it without a terminal.
        fn show(&self, step: &str) {
            match self.0.is_hidden() {
                true => log::info!("{step}"),
                false => self.0.set_message(step.to_owned()),
            }
        }

        /// Counts a finished row.
        fn step(&self) {
            self.0.inc(1);
        }
    }

    impl Drop for Progress {
        fn drop(&mut self) {
            self.0.finish_and_clear();
        }
    }
}

/// The demo in emulated time, on DPDK: a conductor in this process emulates clients and workers, and advances the
/// leaf's clock. A short measurement in real time comes first.
mod emulated {
    use std::fs;
    use std::path::Path;
    use std::process::{Command, Stdio};
    use std::time::Duration;

    use serde_json::{Value, json};
    use wedjat_pktgen::results::Results;
    use wedjat_testbed::demo::emulated::{RealTimeRows, headline, page, table};
    use wedjat_testbed::demo::machine::Pauses;
    use wedjat_testbed::sim::model::{Cell, Model};
    use wedjat_testbed::sim::{Row, SimArgs, plan, print};

    use super::{Arguments, Failure, Format, HEADING};
    use crate::command::leaves::{self, Leaves, Placement};

    /// Time in which the machine's pauses are measured.
    const WATCH_TIME: Duration = Duration::from_secs(2);
    /// Number of one-second rows measured in real time, for the first policy at load [`REAL_LOAD`].
    const ROWS: usize = 4;
    /// Load of these rows.
    const REAL_LOAD: &str = "0.5";

    /// Runs the demo. A failed measurement in real time becomes a remark, because the rows do not depend on
    /// it.
    pub fn run(arguments: &Arguments) -> Result<(), Failure> {
        // Detects an invalid folder before a minute of work.
        fs::create_dir_all(&arguments.out)
            .map_err(|error| format!("--out {}: {error}", arguments.out.display()))?;
        leaves::command(arguments.leaf.as_deref())?;
        let mut results = Results::open(&arguments.results)?;
        // Real time comes first, while this process and its children may use every CPU.
        log::info!("measuring pauses of this machine");
        let pauses = Pauses::watch(WATCH_TIME);
        let real = measure_real_time(arguments);
        let place = Placement { leaf: arguments.leaf_core, conductor: arguments.core };
        let mut leaves = Leaves::open(arguments.leaf.as_deref(), place)?;
        let (mut rows, mut manifest) = (Vec::new(), Value::Null);
        for Cell { subject, model } in cells(arguments)? {
            let Model::Rack(config) = model else { continue };
            log::info!("{} at {:.0}%, emulated", subject.policy, subject.load * 100.0);
            let mut result = leaves.run(&config)?;
            manifest = result.account["manifest"].clone();
            if let Some(results) = &mut results {
                let outcome = &mut result.outcome;
                let (ended, run) = (std::mem::take(&mut outcome.ended), rows.len() + 1);
                let tasks = subject.run_tasks(run, arguments.seed, ended);
                results.add(tasks, !outcome.is_unstable())?;
            }
            rows.push(Row::new(subject, vec![result.outcome], None));
        }
        results.map_or(Ok(()), |results| results.finish(HEADING))?;
        let mut remarks = vec![pauses.to_string()];
        match &real {
            Ok(real) => remarks.extend(real.remarks()),
            Err(reason) => remarks.push(format!("no measurement in real time: {reason}")),
        }
        let real = real.as_ref().map_or(Value::Null, |real| real.row().clone());
        let json = json!({ "rows": rows, "real": real, "pauses": pauses });
        let written = write(arguments, &rows, &pauses, &remarks, &manifest, &json)?;
        match arguments.format {
            Format::Text => {
                let remarks = remarks.join("\n");
                print!("{}{}\n{remarks}\n{written}", table(&rows), headline(&rows));
            }
            Format::Json => {
                wedjat_pktgen::report::print_line(serde_json::to_string_pretty(&json)?)?
            }
        }
        Ok(())
    }

    /// Returns the runs, by load and then by policy, as the simulator plans them. Fails if the result files cannot hold
    /// their tasks.
    fn cells(arguments: &Arguments) -> Result<Vec<Cell>, String> {
        let policies: Vec<_> = arguments.policies.iter().map(ToString::to_string).collect();
        let mut cells = Vec::new();
        for load in &arguments.loads {
            let args = SimArgs {
                policy: Some(policies.join(",")),
                load: Some(load.to_string()),
                racks: Some(arguments.workers.to_string()),
                service: Some(arguments.service.to_string()),
                tasks: Some(arguments.tasks.to_string()),
                // Makes the model act like a leaf process.
                digest: Some("yes".to_owned()),
                ..SimArgs::default()
            };
            cells.extend(plan::cells(&args)?);
        }
        for Cell { model, .. } in &mut cells {
            if let Model::Rack(config) = model {
                config.seed = arguments.seed;
                config.observer.records_tasks = arguments.results.need_tasks();
            }
        }
        let longest = cells.iter().map(|cell| cell.model.tasks()).max().unwrap_or(0);
        arguments.results.check(cells.len(), longest)?;
        Ok(cells)
    }

    /// Runs the demo in real time in a separate process, because a DPDK process has only one set of devices. Reads the
    /// rows from its output, even invalid ones. Without rows, the error is the last line of its messages.
    fn measure_real_time(arguments: &Arguments) -> Result<RealTimeRows, String> {
        let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
        let program = std::env::current_exe().map_err(|error| error.to_string())?;
        let mut command = Command::new(program);
        let loads = [REAL_LOAD; ROWS].join(",");
        let policy = arguments.policies.first().map(ToString::to_string).unwrap_or_default();
        command
            .args(["demo", "--clock", "real", "--retries", "0", "--format", "json"])
            .args(["--seconds", "1", "--warmup", "200ms", "--loads", &loads])
            .args(["--policies", &policy, "--service", &arguments.service.to_string()])
            .args(["--workers", &arguments.workers.to_string()])
            .args(["--seed", &arguments.seed.to_string()])
            .arg("--out")
            .arg(folder.path())
            .stdin(Stdio::null())
            .stderr(Stdio::piped());
        let mut add_cpu = |flag: &str, cpu: Option<usize>| {
            cpu.map(|cpu| command.args([flag, &cpu.to_string()]));
        };
        add_cpu("--leaf-core", arguments.leaf_core);
        add_cpu("--core", arguments.core);
        arguments.leaf.as_deref().map(|leaf: &Path| command.arg("--leaf").arg(leaf));
        log::info!("{policy} in real time");
        let output = command.output().map_err(|error| error.to_string())?;
        let rows = serde_json::from_slice(&output.stdout).ok().and_then(RealTimeRows::new);
        rows.ok_or_else(|| {
            let errors = String::from_utf8_lossy(&output.stderr);
            errors.lines().last().unwrap_or("no error message").to_owned()
        })
    }

    /// Writes the report. Returns a list of the written files.
    fn write(
        arguments: &Arguments,
        rows: &[Row],
        pauses: &Pauses,
        remarks: &[String],
        manifest: &Value,
        json: &Value,
    ) -> Result<String, Failure> {
        let summary = format!(
            "{} emulated workers with {} service times behind one leaf process; Poisson arrivals, {} tasks per row, seed {}.",
            arguments.workers, arguments.service, arguments.tasks, arguments.seed
        );
        let mut csv = Vec::new();
        print::print(rows, "csv", &mut csv)?;
        let manifest = serde_json::to_string_pretty(manifest)?;
        let page = page(rows, pauses, remarks, &summary, &manifest)?;
        arguments.write(serde_json::to_string_pretty(json)? + "\n", csv, page)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_are_split_outside_their_parameters() {
        let names = |text| {
            policies(text).map(|specs| specs.iter().map(PolicySpec::to_string).collect::<Vec<_>>())
        };
        assert_eq!(names("horus, random").unwrap(), ["horus", "random"]);
        let error = names("horus,best").unwrap_err();
        assert!(error.contains("`best`") && error.contains("racksched"), "{error}");
        let error = names("horus(a=1,b=2),random").unwrap_err();
        assert!(!error.contains("unknown policy"), "the comma belongs to horus: {error}");
    }

    #[test]
    fn loads_and_times_are_checked() {
        assert_eq!(load("0.9"), Ok(0.9));
        for bad in ["0", "-1", "x", "90", "NaN"] {
            assert!(load(bad).unwrap_err().contains(bad));
        }
        assert!(positive("0").is_err() && positive("inf").is_err() && positive("0.5").is_ok());
    }
}
