//! `wedjat-testbed demo`: a leaf process under several policies and loads, driven from both sides, and a report.

use std::path::PathBuf;

use clap::Args;
use wedjat::policy::PolicySpec;
use wedjat_pktgen::service::Service;
use wedjat_testbed::rack::{Layout, Servers};

use super::{Failure, Format, seconds};

/// Shown behind the help.
pub const EXAMPLE: &str = "Example, two policies near saturation:
  wedjat-testbed demo --policies horus,random --loads 0.9,0.95 --seconds 10 --out report
Neither root nor hugepages nor a NIC are needed: the leaf is a DPDK process of its own, joined to this one by memif.
On emulated time every row is the same on every machine. With --clock real two CPUs are needed that nothing else uses; a row whose
measurement is not to be believed is then measured again, up to --retries times in all, and one that remains makes the exit status 1.";

/// The command line of `demo`.
#[derive(Args, Debug)]
#[cfg_attr(not(feature = "dpdk"), allow(dead_code))]
pub struct Arguments {
    /// Policies, separated by commas; `wedjat policies` lists them
    #[arg(long, default_value = "horus,racksched,random", value_parser = policies)]
    policies: std::sync::Arc<Vec<PolicySpec>>,
    /// Loads, as shares of what the workers can do
    #[arg(long, value_delimiter = ',', default_value = "0.5,0.8,0.9", value_parser = load)]
    loads: Vec<f64>,
    /// Emulated workers
    #[arg(long, default_value_t = 32)]
    workers: u16,
    /// Service times; see `wedjat-pktgen run --help`
    #[arg(long, default_value = "exp(100us)")]
    service: Service,
    /// Whose time: the leaf's and all others' emulated, or this machine's
    #[arg(long, value_enum, default_value_t = Clock::Emulated)]
    clock: Clock,
    /// Tasks of each row on emulated time
    #[arg(long, default_value_t = 60_000, value_parser = clap::value_parser!(u64).range(100..))]
    tasks: u64,
    /// Seconds measured for each row in real time
    #[arg(long, default_value_t = 3.0, value_parser = positive)]
    seconds: f64,
    /// Real time before that, driven but not measured
    #[arg(long, default_value = "500ms", value_parser = seconds)]
    warmup: f64,
    /// Folder for the report: demo.json, demo.csv, index.html
    #[arg(long, default_value = "demo-report")]
    out: PathBuf,
    /// Form of what is printed
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
    /// All random streams follow from this
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Rows measured again in real time, in all, when they are not to be believed: after the others, for pauses of a machine come
    /// in bouts
    #[arg(long, default_value_t = 9)]
    retries: u32,
    /// The leaf's command [default: `wedjat` beside this one, or in PATH]
    #[arg(long)]
    leaf: Option<PathBuf>,
    /// CPU of the leaf [default: the first]
    #[arg(long)]
    leaf_core: Option<usize>,
    /// CPU of generator and rack [default: the last]
    #[arg(long)]
    core: Option<usize>,
}

/// Whose time a demo runs on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Clock {
    /// Emulated: the same rows everywhere.
    Emulated,
    /// This machine's.
    Real,
}

impl Arguments {
    fn layout(&self) -> Result<Layout, String> {
        // Four servers where that divides evenly; workers on one server are scheduled no differently.
        let count = if self.workers.is_multiple_of(4) { 4 } else { 1 };
        let servers = Servers { first: [10, 0, 2, 11].into(), count };
        Layout::new(servers, self.workers / count, 0)
    }
}

/// Names separated by commas; those between parentheses belong to a policy's parameters.
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

fn load(text: &str) -> Result<f64, String> {
    match text.trim().parse::<f64>() {
        Ok(load) if load > 0.0 && load <= 2.0 => Ok(load),
        _ => Err(format!("`{text}` is no load; write a share above 0 and up to 2, as in 0.9")),
    }
}

fn positive(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(seconds) if seconds > 0.0 && seconds.is_finite() => Ok(seconds),
        _ => Err(format!("`{text}` is no time; write seconds, as in 5 or 0.5")),
    }
}

/// Runs the demo; false when a row is not to be believed.
#[cfg(not(feature = "dpdk"))]
pub fn run(arguments: &Arguments) -> Result<bool, Failure> {
    arguments.layout()?;
    super::without_dpdk()
}

#[cfg(feature = "dpdk")]
pub use show::run;

/// The demo itself, on DPDK.
#[cfg(feature = "dpdk")]
mod show {
    use std::fs;
    use std::path::{Path, PathBuf};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Duration;

    use indicatif::{ProgressBar, ProgressStyle};
    use wedjat::policy::PolicySpec;
    use wedjat::state::files::ReportFile;
    use wedjat_pktgen::address::Addresses;
    use wedjat_pktgen::load::Load;
    use wedjat_testbed::demo::{LeafConfig, LeafProcess, Row, page, row};
    use wedjat_testbed::rack::Options;

    use super::{Arguments, Clock, Failure, Format, emulated};
    use crate::command::rig::{Ends, Rig};
    use crate::command::{devices, leaves, signals};

    /// The memif devices, by the same names in both processes.
    const CLIENTS: &str = "net_memif0";
    const WORKERS: &str = "net_memif1";
    /// Rings that hold 14 ms of 288,000 packets a second, so that a machine that pauses loses none, of buffers that fit
    /// a task, so that all of them stay in the cache.
    const RINGS: &str = ",rsize=12,bsize=512";
    /// What a leaf may take for start and end, beyond its run: much, since one that has ended is told of at once.
    const LEAF_PATIENCE: Duration = Duration::from_secs(300);
    /// The percentile that a row is to tell.
    const QUANTILE: f64 = 0.99;
    /// Answers are awaited so long after the last task.
    const DRAIN_S: f64 = 0.5;

    /// Runs the demo; false when a row is not to be believed.
    pub fn run(arguments: &Arguments) -> Result<bool, Failure> {
        arguments.layout()?;
        if arguments.clock == Clock::Emulated {
            return emulated::run(arguments).map(|()| true);
        }
        let stop = signals::stop_on_signals()?;
        let mut demo = Demo::open(arguments, stop)?;
        // Found out before a minute's work, not after.
        fs::create_dir_all(&arguments.out)
            .map_err(|error| format!("--out {}: {error}", arguments.out.display()))?;
        let rows = demo.rows()?;
        let written = write(arguments, &rows)?;
        match arguments.format {
            Format::Text => print!("{}{written}", row::table(&rows)),
            Format::Json => wedjat_pktgen::report::say(serde_json::to_string_pretty(&rows)?)?,
        }
        Ok(rows.iter().all(|row| row.report.valid))
    }

    /// The leaf's address on the clients' side.
    const LEAF: [u8; 4] = [10, 0, 1, 1];

    struct Demo<'a> {
        arguments: &'a Arguments,
        stop: Arc<AtomicBool>,
        binary: PathBuf,
        ends: Ends,
        leaf_core: usize,
        // The rig's sockets lie in the folder: the rig goes first.
        rig: Rig,
        folder: tempfile::TempDir,
    }

    impl<'a> Demo<'a> {
        fn open(arguments: &'a Arguments, stop: Arc<AtomicBool>) -> Result<Self, Failure> {
            let binary = leaves::command(arguments.leaf.as_deref())?;
            let layout = arguments.layout()?;
            let (leaf_core, core) = cores(arguments);
            let options = Options { seed: arguments.seed, ..Options::default() };
            let folder = devices::scratch("demo")?;
            let ends = Ends {
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
            let outstanding_max = ends.options.outstanding_max;
            let rig = Rig::open(&eal, &clients, Some(&workers), outstanding_max, ends.core)?;
            Ok(Self { arguments, stop, binary, ends, leaf_core, rig, folder })
        }

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
                // The one that was tried least often.
                let doubtful = rows.iter().enumerate().filter(|(_, row)| !row.report.valid);
                let Some((i, row)) = doubtful.min_by_key(|(_, row)| row.attempts) else { break };
                let ((policy, load), attempts) = (runs[i], row.attempts + 1);
                let reasons = row.report.reasons.join("; ");
                progress.show(&format!("{policy} at {:.0}%, again: {reasons}", load * 100.0));
                rows[i] = Row { attempts, ..self.row(policy, load)? };
            }
            Ok(rows)
        }

        fn row(&mut self, policy: &PolicySpec, load: f64) -> Result<Row, Failure> {
            let offered = self.load(load);
            offered.self_test()?;
            let mut leaf = self.start(policy, &offered)?;
            self.rig.wait_for_peer(LEAF_PATIENCE, &self.stop, || Ok(leaf.check()?))?;
            let measured = self.rig.offer(&offered, &self.ends, &self.stop);
            // A leaf that has died explains more than what the other side saw of it.
            leaf.check()?;
            let (report, rack) = measured?;
            if self.stop.load(Ordering::Relaxed) {
                return Err("stopped".into());
            }
            let account = leaf.stop()?;
            Ok(Row::new(policy.to_string(), load, report, rack, account))
        }

        fn load(&self, share: f64) -> Load {
            let service = self.arguments.service.clone();
            let rate_pps = share * f64::from(self.arguments.workers) * 1e9 / service.mean_ns();
            Load {
                warmup_s: self.arguments.warmup,
                duration_s: self.arguments.seconds,
                drain_s: DRAIN_S,
                seed: self.arguments.seed,
                ..Load::new(rate_pps, service)
            }
            .telling(QUANTILE, Some(self.arguments.workers.into()))
        }

        fn start(&self, policy: &PolicySpec, load: &Load) -> Result<LeafProcess, Failure> {
            let folder = self.folder.path();
            let config = LeafConfig {
                policy,
                layout: self.ends.layout,
                clients_ip: LEAF.into(),
                workers_ip: [10, 0, 2, 1].into(),
                clients_device: CLIENTS,
                workers_device: WORKERS,
                pool: self.ends.pool,
                udp_port: self.ends.udp_port,
                core: self.leaf_core,
                cores: 1,
                state: &folder.join("state"),
                seed: self.arguments.seed,
                queue: None,
                shared_workers: false,
                speeds: &[],
            };
            let run_s = load.warmup_s + load.duration_s + load.drain_s;
            let lifetime = LEAF_PATIENCE + Duration::from_secs_f64(run_s);
            let (clients, workers) = both_devices(folder, "client");
            let eal = ["--no-huge", "--no-pci", "--vdev", &clients, "--vdev", &workers];
            let eal = eal.map(str::to_owned);
            Ok(LeafProcess::start(&self.binary, folder, &config.toml(), lifetime, None, &eal)?)
        }
    }

    /// Both devices with their arguments. We are memif's server, so that leaves can come and go.
    fn both_devices(folder: &Path, role: &str) -> (String, String) {
        let device = |name: &str, id: u32| devices::memif(folder, name, id, role, RINGS);
        (device(CLIENTS, 0), device(WORKERS, 1))
    }

    /// CPUs of the leaf, and of generator and rack.
    fn cores(arguments: &Arguments) -> (usize, usize) {
        let (leaf, core) = devices::two_cpus(arguments.leaf_core, arguments.core);
        if leaf == core {
            log::warn!(
                "leaf and load share CPU {core}: latencies are those of their turns on it; two CPUs are needed"
            );
        }
        (leaf, core)
    }

    /// Writes the report; says what was written.
    fn write(arguments: &Arguments, rows: &[Row]) -> Result<String, Failure> {
        let summary = format!(
            "{} emulated workers with {} service times behind one leaf process on one core, joined by memif; \
             Poisson arrivals, {} s measured a row, seed {}.",
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
        let mut written = String::new();
        for (name, text) in [
            ("demo.json", serde_json::to_string_pretty(rows)? + "\n"),
            ("demo.csv", row::csv(rows)?),
            ("index.html", page::page(rows, &summary, &manifest)?),
        ] {
            let file = arguments.out.join(name);
            ReportFile::new("--out", &file)?.write(text)?;
            written.push_str(&format!("wrote {}\n", file.display()));
        }
        Ok(written)
    }

    /// Rows done, on a terminal as a bar and elsewhere as lines; always on standard error.
    struct Progress(ProgressBar);

    impl Progress {
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

        fn show(&self, what: &str) {
            match self.0.is_hidden() {
                true => log::info!("{what}"),
                false => self.0.set_message(what.to_owned()),
            }
        }

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

/// The demo on emulated time, on DPDK.
#[cfg(feature = "dpdk")]
mod emulated {
    use std::fs;
    use std::path::Path;
    use std::process::{Command, Stdio};
    use std::time::Duration;

    use serde_json::{Value, json};
    use wedjat::state::files::ReportFile;
    use wedjat_testbed::demo::emulated::{Real, headline, page, table};
    use wedjat_testbed::demo::machine::Pauses;
    use wedjat_testbed::sim::model::{Cell, Model};
    use wedjat_testbed::sim::{Row, SimArgs, plan, print};

    use super::{Arguments, Failure, Format};
    use crate::command::leaves::{self, Leaves, Placement};

    /// The machine is watched for so long.
    const WATCHED: Duration = Duration::from_secs(2);
    /// What is measured in real time: so many slices of a second, of the first policy at this load.
    const SLICES: usize = 4;
    const REAL_LOAD: &str = "0.5";

    /// Runs the demo.
    pub fn run(arguments: &Arguments) -> Result<(), Failure> {
        // Found out before a minute's work, not after.
        fs::create_dir_all(&arguments.out)
            .map_err(|error| format!("--out {}: {error}", arguments.out.display()))?;
        leaves::command(arguments.leaf.as_deref())?;
        // In real time first, while this process and those that it starts may use every CPU.
        log::info!("what this machine does");
        let pauses = Pauses::watch(WATCHED);
        let real = real(arguments);
        let place = Placement { leaf: arguments.leaf_core, conductor: arguments.core };
        let mut leaves = Leaves::open(arguments.leaf.as_deref(), place)?;
        let (mut rows, mut manifest) = (Vec::new(), Value::Null);
        for Cell { subject, model } in cells(arguments)? {
            let Model::Rack(config) = model else { continue };
            log::info!("{} at {:.0}%, emulated", subject.policy, subject.load * 100.0);
            let ran = leaves.run(&config)?;
            manifest = ran.account["manifest"].clone();
            rows.push(Row::new(subject, vec![ran.outcome], None));
        }
        let mut remarks = vec![pauses.to_string()];
        match &real {
            Ok(real) => remarks.extend(real.remarks()),
            Err(reason) => remarks.push(format!("nothing was measured in real time: {reason}")),
        }
        let real = real.as_ref().map_or(Value::Null, |real| real.row().clone());
        let json = json!({ "rows": rows, "real": real, "pauses": pauses });
        let written = write(arguments, &rows, &pauses, &remarks, &manifest, &json)?;
        match arguments.format {
            Format::Text => {
                let remarks = remarks.join("\n");
                print!("{}{}\n{remarks}\n{written}", table(&rows), headline(&rows));
            }
            Format::Json => wedjat_pktgen::report::say(serde_json::to_string_pretty(&json)?)?,
        }
        Ok(())
    }

    /// The runs, by load and then by policy.
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
                digest: Some("yes".to_owned()),
                ..SimArgs::default()
            };
            cells.extend(plan::cells(&args)?);
        }
        for Cell { model, .. } in &mut cells {
            if let Model::Rack(config) = model {
                config.seed = arguments.seed;
            }
        }
        Ok(cells)
    }

    /// The demo in real time, in a process of its own: a DPDK process has one set of devices.
    fn real(arguments: &Arguments) -> Result<Real, String> {
        let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
        let program = std::env::current_exe().map_err(|error| error.to_string())?;
        let mut command = Command::new(program);
        let loads = [REAL_LOAD; SLICES].join(",");
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
        let mut place = |flag: &str, cpu: Option<usize>| {
            cpu.map(|cpu| command.args([flag, &cpu.to_string()]));
        };
        place("--leaf-core", arguments.leaf_core);
        place("--core", arguments.core);
        arguments.leaf.as_deref().map(|leaf: &Path| command.arg("--leaf").arg(leaf));
        log::info!("{policy} in real time");
        let output = command.output().map_err(|error| error.to_string())?;
        let rows = serde_json::from_slice(&output.stdout).ok().and_then(Real::new);
        rows.ok_or_else(|| {
            let said = String::from_utf8_lossy(&output.stderr);
            said.lines().last().unwrap_or("it said nothing").to_owned()
        })
    }

    /// Writes the report; says what was written.
    fn write(
        arguments: &Arguments,
        rows: &[Row],
        pauses: &Pauses,
        remarks: &[String],
        manifest: &Value,
        json: &Value,
    ) -> Result<String, Failure> {
        let summary = format!(
            "{} emulated workers with {} service times behind one leaf process; Poisson arrivals, {} tasks a row, seed {}.",
            arguments.workers, arguments.service, arguments.tasks, arguments.seed
        );
        let mut csv = Vec::new();
        print::print(rows, "csv", &mut csv)?;
        let manifest = serde_json::to_string_pretty(manifest)?;
        let page = page(rows, pauses, remarks, &summary, &manifest)?;
        let mut written = String::new();
        for (name, text) in [
            ("demo.json", (serde_json::to_string_pretty(json)? + "\n").into_bytes()),
            ("demo.csv", csv),
            ("index.html", page.into_bytes()),
        ] {
            let file = arguments.out.join(name);
            ReportFile::new("--out", &file)?.write(text)?;
            written.push_str(&format!("wrote {}\n", file.display()));
        }
        Ok(written)
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
