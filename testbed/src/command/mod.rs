//! Subcommands of `wedjat-testbed`: one file each, with its arguments and its code.

mod agent;
mod batch;
mod cosched_sim;
mod demo;
mod devices;
mod drive;
mod fabric;
mod histories;
mod learner;
mod leaves;
mod lockstep;
mod papers;
#[cfg_attr(not(feature = "dpdk"), path = "no_ports.rs")]
mod ports;
mod rack;
mod rig;
mod worker;

use std::error::Error;
use std::io::StdoutLock;
use std::path::PathBuf;

use clap::{Args, CommandFactory, Parser, Subcommand, ValueEnum};
use wedjat_pktgen::grammar::{GrammarError, parse_time_ns};
use wedjat_pktgen::results::{self, PlotArgs};
use wedjat_testbed::sim::{self, SimArgs};
use wedjat_testbed::{advise, attack, bench, figures};

/// Emulated rack, simulator and comparisons for wedjat.
///
/// An invalid run prints INVALID and exits with 1. A run that fails exits with 2.
#[derive(Parser, Debug)]
#[command(version = wedjat::VERSION, about, max_term_width = 100)]
pub struct Cli {
    /// Subcommand.
    #[command(subcommand)]
    pub command: Command,
}

/// Subcommands of `wedjat-testbed`.
#[derive(Subcommand, Debug)]
pub enum Command {
    /// Show policies at work: a leaf process driven under several loads, and a report
    #[command(after_help = demo::EXAMPLE)]
    Demo(demo::Arguments),
    /// Drive a leaf from both sides: load generator and rack in one loop on one core
    #[command(after_help = drive::EXAMPLE)]
    Drive(drive::Arguments),
    /// Run a whole fabric in emulated time while parts of it are killed, cut off, added and drained; exits
    /// with 1 if a bound is violated
    #[command(after_help = fabric::EXAMPLE)]
    Fabric(fabric::Arguments),
    /// Inject faults into controllers and check that their answers are linearizable; exits with 1 on a
    /// violation
    #[command(after_help = histories::EXAMPLE)]
    Histories(histories::Arguments),
    /// Run leaf processes in emulated time, under the simulator's model of a rack
    #[command(after_help = lockstep::EXAMPLE)]
    Lockstep(Box<lockstep::Arguments>),
    /// Emulate a rack of workers on a port
    #[command(after_help = rack::EXAMPLE)]
    Rack(rack::Arguments),
    /// Run an agent with all its workers in this process, which send their replies themselves
    #[command(after_help = agent::EXAMPLE)]
    Agent(agent::Arguments),
    /// Run a workload as workers of an agent on this host
    #[command(after_help = worker::EXAMPLE)]
    Worker(worker::Arguments),
    /// Attack leaf, agent and library, and report which defences held and which failed
    #[command(after_help = attack::EXAMPLE)]
    Attack(Formatted<attack::Arguments>),
    /// Simulate a pool of workers under the dataplane's own policies
    // Lets a value such as `-1us` reach the range check, which names the allowed values.
    #[command(mut_args(|arg| arg.allow_hyphen_values(true)))]
    Sim(Box<SimArgs>),
    /// Simulate a pool under all policies, by conditions or from a log of its tasks, and recommend one
    #[command(after_help = advise::EXAMPLE, mut_args(|arg| {
        let takes_values = arg.get_action().takes_values();
        arg.allow_hyphen_values(takes_values)
    }))]
    Advise {
        /// Arguments of the advice
        #[command(flatten)]
        arguments: Box<advise::Arguments>,
        /// Emulate the pool under `auto`: its node measures it and chooses its policy, in emulated time. Needs the
        /// conditions as options
        #[arg(long)]
        auto: bool,
        /// Change of the workload under --auto: `60s load 0.95`, `60s speed 0-4=0.5`, `60s service exp(2ms)` or `60s
        /// leaves 8`; repeatable
        #[arg(long, requires = "auto", value_name = "CHANGE")]
        at: Vec<String>,
        /// Length of the emulated time under --auto
        #[arg(long, requires = "auto", value_name = "SECONDS", default_value_t = 120, value_parser = clap::value_parser!(u64).range(10..=86_400))]
        length: u64,
        /// Output format
        #[arg(long, value_enum, default_value = "text")]
        format: Format,
    },
    /// Measure the choices of pools under `auto` in emulated time, and compare them with their limits
    #[command(after_help = "Example:\n  wedjat-testbed bench-auto --length 90")]
    BenchAuto(bench::auto::Arguments),
    /// Measure the cost of a decision for each policy
    #[command(
        after_help = "Example:\n  wedjat-testbed bench-policy --members 32,1024 --format json"
    )]
    BenchPolicy(bench::policy::Arguments),
    /// Measure a leaf's cost of authenticated replies, and compare it with its limit
    #[command(after_help = "Example:\n  wedjat-testbed bench-auth --format json")]
    BenchAuth(Formatted<bench::auth::Arguments>),
    /// Count the cache lines that move between dispatcher cores of a leaf, with valgrind
    #[command(
        after_help = "Example:\n  wedjat-testbed bench-lines --cores 2,16 --workers 32 --policy horus --top 10"
    )]
    BenchLines(Formatted<bench::lines::Arguments>),
    /// Measure the effect of sharing a worker's core among tasks; two CPUs
    #[command(
        after_help = "Examples:\n  wedjat-testbed bench-preempt --format json\n  wedjat-testbed bench-preempt --service tpcc --quantum-us 5"
    )]
    BenchPreempt(Formatted<bench::preempt::Arguments>),
    /// Measure the time that a controller takes to configure all leaves of a large fabric and to distribute a
    /// change; exits with 1 if a limit is exceeded
    #[command(after_help = "Example:\n  wedjat-testbed bench-controller --format json")]
    BenchController(Formatted<bench::controller::Arguments>),
    /// Subcommands of a build with ports.
    #[command(flatten)]
    Ports(ports::PortsCommand),
    /// Measure the cost of a batch on a worker's core for the tasks, and the batch's progress, under several
    /// ways to limit it; needs two CPUs and cgroups
    #[command(after_help = bench::cosched::EXAMPLE)]
    BenchCosched(Box<Formatted<bench::cosched::Arguments>>),
    /// Run the worker of bench-cosched
    #[command(hide = true)]
    BenchCoschedWorker(bench::cosched::children::WorkerArguments),
    /// Run the batch of bench-cosched
    #[command(hide = true)]
    BenchCoschedJob(bench::cosched::children::JobArguments),
    /// Run a synthetic batch job of bench-cosched until its --units are done or it is killed, and count its work
    /// in the file named by WEDJAT_PROGRESS
    #[command(after_help = batch::EXAMPLE)]
    Batch(batch::Arguments),
    /// Compare the learner of nodes without a scheduler with a trace of another implementation
    #[command(after_help = learner::EXAMPLE)]
    Learner(learner::Arguments),
    /// Simulate the evaluation of ASA_X: workflows that share a cluster's cores in several ways
    #[command(after_help = cosched_sim::EXAMPLE)]
    CoschedSim(cosched_sim::Arguments),
    /// Draw the plots of a log of tasks, and print its percentiles
    #[command(
        after_help = "Example:\n  wedjat-testbed plot tasks.csv --out plots --html tasks.html"
    )]
    Plot(PlotArgs),
    /// Reproduce the papers' figures: plots, numbers and commands
    #[command(after_help = "Example:\n  wedjat-testbed figures --only horus-10")]
    Figures(figures::Arguments),
    /// Simulate systems of papers with their settings, and compare the ratios that the papers claim with ours
    #[command(after_help = papers::EXAMPLE)]
    Papers(papers::Arguments),
    /// Compare the simulator with results of independent programs and of theory; exits with 1 on a difference
    #[command(
        after_help = "Example:\n  wedjat-testbed reference --quick\n  wedjat-testbed reference --only classes=yes"
    )]
    Reference {
        /// Run a part of them, with shorter runs
        #[arg(long)]
        quick: bool,
        /// Only set-ups whose flags contain this text
        #[arg(long, default_value = "")]
        only: String,
    },
    /// Print shell completions for this command
    #[command(
        after_help = "Example:\n  wedjat-testbed completions fish > ~/.config/fish/completions/wedjat-testbed.fish"
    )]
    Completions {
        /// The shell.
        shell: clap_complete::Shell,
    },
    /// Write the manual pages into a folder; for the installation
    #[command(hide = true)]
    Man {
        /// The folder.
        folder: PathBuf,
    },
}

/// Reason why a command failed.
pub type Failure = Box<dyn Error>;

/// Executes a command. Returns false for an invalid result, and for a violated limit of a command such as `fabric`.
pub fn execute(command: Command) -> Result<bool, Failure> {
    match command {
        Command::Demo(arguments) => demo::run(&arguments),
        Command::Drive(arguments) => drive::run(&arguments),
        Command::Fabric(arguments) => fabric::run(&arguments),
        Command::Histories(arguments) => histories::run(&arguments),
        Command::Lockstep(arguments) => lockstep::run(&arguments),
        Command::Rack(arguments) => rack::run(&arguments),
        Command::Agent(arguments) => agent::run(&arguments),
        Command::Worker(arguments) => worker::run(&arguments),
        Command::Attack(command) => command.run(attack::run),
        Command::Sim(arguments) => Ok(sim::run(*arguments, &mut std::io::stdout().lock())?),
        Command::Advise { arguments, auto: true, at, length, format } => {
            let emulation = bench::auto::emulation(*arguments, &at, length)?;
            let json = format == Format::Json;
            Ok(advise::emulation::run(&emulation, json, &mut std::io::stdout().lock())?)
        }
        Command::Advise { arguments, format, .. } => {
            let json = format == Format::Json;
            Ok(advise::run(&arguments, json, &mut std::io::stdout().lock())?)
        }
        Command::BenchAuto(arguments) => {
            bench::auto::report(&arguments, &mut std::io::stdout().lock())
        }
        Command::BenchPolicy(arguments) => {
            bench::policy::report(&arguments, &mut std::io::stdout().lock())?;
            Ok(true)
        }
        Command::BenchAuth(command) => command.print(bench::auth::report),
        Command::BenchLines(command) => command.print(bench::lines::report),
        Command::BenchPreempt(command) => command.print(bench::preempt::report),
        Command::BenchController(command) => command.run(bench::controller::report),
        Command::Ports(command) => ports::execute(command),
        Command::BenchCosched(command) => command.print(bench::cosched::report),
        Command::BenchCoschedWorker(arguments) => bench::cosched::children::work(&arguments),
        Command::BenchCoschedJob(arguments) => bench::cosched::children::run_job(&arguments),
        Command::Batch(arguments) => batch::run(&arguments),
        Command::Learner(arguments) => learner::run(&arguments),
        Command::CoschedSim(arguments) => cosched_sim::run(&arguments),
        Command::Plot(arguments) => {
            let table = results::plot(&arguments)?;
            wedjat_pktgen::report::print_line(table.trim_end())?;
            Ok(true)
        }
        Command::Figures(arguments) => {
            figures::make(&arguments)?;
            Ok(true)
        }
        Command::Papers(arguments) => papers::run(&arguments),
        Command::Reference { quick, only } => {
            Ok(sim::reference::report(quick, &only, &mut std::io::stdout().lock())?)
        }
        Command::Completions { shell } => {
            // Writes to memory first, because `generate` panics if it cannot write.
            let mut text = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "wedjat-testbed", &mut text);
            wedjat_pktgen::report::print_text(&text)?;
            Ok(true)
        }
        Command::Man { folder } => {
            clap_mangen::generate_to(Cli::command(), folder)?;
            Ok(true)
        }
    }
}

/// Arguments of a command that reports in one of two formats.
#[derive(Args, Debug)]
pub struct Formatted<A: Args> {
    /// Arguments without the format.
    #[command(flatten)]
    arguments: A,
    /// Output format
    #[arg(long, value_enum, default_value = "text")]
    format: Format,
}

impl<A: Args> Formatted<A> {
    /// Writes a report to standard output. Returns its verdict. The second argument of `report` is true for JSON.
    fn run(
        &self,
        report: impl FnOnce(&A, bool, &mut StdoutLock<'static>) -> Result<bool, Failure>,
    ) -> Result<bool, Failure> {
        report(&self.arguments, self.format == Format::Json, &mut std::io::stdout().lock())
    }

    /// Same as [`Self::run`], for a report without a verdict.
    fn print(
        &self,
        report: impl FnOnce(&A, bool, &mut StdoutLock<'static>) -> Result<(), Failure>,
    ) -> Result<bool, Failure> {
        self.run(|arguments, json, out| report(arguments, json, out).map(|()| true))
    }
}

/// Format of a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// Text for people.
    Text,
    /// JSON for programs.
    Json,
}

/// Parses a time such as `10s` and returns seconds.
fn seconds(text: &str) -> Result<f64, GrammarError> {
    parse_time_ns(text).map(|ns| ns / 1e9)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn negative_values_reach_the_range_check() {
        let line = ["wedjat-testbed", "sim", "--load", "-0.5", "--delay", "-1us", "--seed", "-1"];
        let Command::Sim(flags) = Cli::try_parse_from(line).unwrap().command else { panic!() };
        assert_eq!(flags.load.as_deref(), Some("-0.5"));
        assert_eq!(flags.delay.as_deref(), Some("-1us"));
    }

    #[test]
    fn every_subcommand_shows_an_example() {
        for command in Cli::command().get_subcommands().filter(|command| !command.is_hide_set()) {
            let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            assert!(help.contains("Example"), "{}", command.get_name());
        }
    }
}
