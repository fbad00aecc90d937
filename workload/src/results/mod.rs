//! Results of runs: plots, an HTML page, and a log of all tasks. Every command with runs uses this module, those of the
//! simulator included. One run may be repeated with several seeds, whose tasks have the same run number.

pub mod chart;
pub mod page;
pub mod plots;
pub mod run;
pub mod run_description;
pub mod task;

use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use clap::Args;
use wedjat_core::state::files::{OpenReport, ReportFile};

pub use run::Run;
pub use run_description::RunDescription;
pub use task::{RunTasks, Status, Task};

/// Maximum number of tasks of a run whose tasks are recorded. A task takes about 100 bytes of memory until
/// its run has ended.
pub const TASKS_MAX: u64 = 1 << 25;
/// Maximum number of runs of a command with plots or page. Each seed counts as a run.
pub const RUNS_MAX: usize = 2000;

/// Options for the results of runs.
#[derive(Args, Clone, Debug, Default)]
pub struct ResultArgs {
    /// Write plots to this folder: response time over load, distributions, and time series of each run
    #[arg(long, value_name = "FOLDER")]
    pub plot: Option<PathBuf>,
    /// Write plots and tables as one HTML page to this file, or as index.html to this folder
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Write a CSV file with one row per task (see docs/howto/analyse-results.md)
    #[arg(long, value_name = "FILE")]
    pub log_tasks: Option<PathBuf>,
}

impl ResultArgs {
    /// Returns true if a run must record its tasks.
    #[must_use]
    pub fn need_tasks(&self) -> bool {
        self.plot.is_some() || self.html.is_some() || self.log_tasks.is_some()
    }

    /// Returns the first option that needs the tasks, for messages. Only valid if [`ResultArgs::need_tasks`].
    #[must_use]
    pub fn option(&self) -> &'static str {
        match (&self.log_tasks, &self.plot) {
            (Some(_), _) => "--log-tasks",
            (None, Some(_)) => "--plot",
            (None, None) => "--html",
        }
    }

    /// Refuses runs that are too long to record or too many to draw, before the first of them starts. `runs` counts
    /// each seed. `tasks` is the number of tasks of the longest run.
    ///
    /// # Errors
    /// The limit and the fix.
    pub fn check(&self, runs: usize, tasks: u64) -> Result<(), String> {
        let option = self.option();
        if self.need_tasks() && tasks > TASKS_MAX {
            return Err(format!(
                "{option}: a run has {tasks} tasks, and at most {TASKS_MAX} are recorded; make the run shorter"
            ));
        }
        if (self.plot.is_some() || self.html.is_some()) && runs > RUNS_MAX {
            let option = if self.plot.is_some() { "--plot" } else { "--html" };
            return Err(format!(
                "{option}: {runs} runs; at most {RUNS_MAX} are drawn; shorten the lists, or split the sweep"
            ));
        }
        Ok(())
    }
}

/// Collector of runs. Writes the log of tasks run by run, and plots and page at the end.
pub struct Results {
    /// Folder of the plots.
    plot: Option<PathBuf>,
    /// File of the page.
    html: Option<PathBuf>,
    /// Log of all tasks.
    log: Option<BufWriter<OpenReport>>,
    /// Runs to draw, with their numbers.
    runs: Vec<(usize, Run)>,
    /// True if the runs are drawn.
    draws: bool,
}

impl Results {
    /// Opens the log, and checks that plots and page can be written, before the first run, so that an error costs no
    /// run. Returns `None` if the options name no output.
    ///
    /// # Errors
    /// If a file cannot be written, or a folder cannot be made.
    pub fn open(args: &ResultArgs) -> Result<Option<Self>, String> {
        if !args.need_tasks() {
            return Ok(None);
        }
        let log = match &args.log_tasks {
            Some(path) => {
                // A buffer of 256 KiB, because a log may have millions of rows.
                let mut log = BufWriter::with_capacity(
                    1 << 18,
                    ReportFile::new("--log-tasks", path)?.open()?,
                );
                task::write_header(&mut log).map_err(|error| explain(&log, &error))?;
                Some(log)
            }
            None => None,
        };
        if let Some(folder) = &args.plot {
            make_folder("--plot", folder)?;
            // Checks that a plot can be written.
            ReportFile::new("--plot", &folder.join("p99-over-load.svg"))?;
        }
        let html = args.html.as_deref().map(page_file).transpose()?;
        let draws = args.plot.is_some() || html.is_some();
        Ok(Some(Self { plot: args.plot.clone(), html, log, runs: Vec::new(), draws }))
    }

    /// Adds a run with one seed: writes its tasks to the log, and keeps its figures if runs are drawn. Runs of one
    /// number are seeds of the same run, and must follow each other.
    ///
    /// # Errors
    /// If the log of tasks cannot be written.
    pub fn add(&mut self, tasks: RunTasks, valid: bool) -> Result<(), String> {
        if let Some(log) = &mut self.log {
            task::write_rows(log, &tasks).map_err(|error| explain(log, &error))?;
        }
        if self.draws {
            let number = tasks.run;
            let mut run = Run::new(tasks);
            run.valid = valid;
            match self.runs.last_mut() {
                Some((last, seeds)) if *last == number => seeds.add_seed(run),
                _ => self.runs.push((number, run)),
            }
        }
        Ok(())
    }

    /// Writes everything. Logs the names of the task log and the page, and the folder of the plots. `heading` is
    /// that of the page.
    ///
    /// # Errors
    /// If a plot cannot be drawn, or a file cannot be written.
    pub fn finish(self, heading: &str) -> Result<(), String> {
        let Self { plot, html, log, mut runs, .. } = self;
        // The generator may offer the loads of a sweep in random order.
        runs.sort_by_key(|(number, _)| *number);
        if let Some(mut log) = log {
            log.flush().map_err(|error| explain(&log, &error))?;
            let report = log.into_inner().map_err(|error| error.to_string())?;
            let path = report.path().to_owned();
            report.finish()?;
            log_written(&path);
        }
        let runs: Vec<Run> = runs.into_iter().map(|(_, run)| run).collect();
        write_plots(&runs, plot.as_deref(), html.as_deref(), heading)
    }
}

/// Draws runs, and writes plots to a folder and the page to a file.
fn write_plots(
    runs: &[Run],
    plot: Option<&Path>,
    html: Option<&Path>,
    heading: &str,
) -> Result<(), String> {
    if plot.is_none() && html.is_none() {
        return Ok(());
    }
    let plots = plots::all(runs).map_err(|error| format!("cannot draw: {error}"))?;
    if let Some(folder) = plot {
        for plot in &plots {
            let path = folder.join(format!("{}.svg", plot.name));
            ReportFile::new("--plot", &path)?.write(&plot.svg)?;
        }
        log::info!("wrote {} plots to {}", plots.len(), folder.display());
    }
    if let Some(path) = html {
        ReportFile::new("--html", path)?.write(page_of(runs, &plots, heading))?;
        log_written(path);
    }
    Ok(())
}

/// Explanation of the table's figures on the page.
const EXPLANATION: &str = "<p>Times are response times in microseconds, from the due time of a task to its answer. \
    &plusmn; precedes half the width of a 95% confidence interval (Student's t) over the seeds, or over ten batches of a \
    single seed. In measured runs a lost task counts as infinite. Hollow points and red rows mark invalid runs.</p>\n";

/// Builds the page: the table of figures, all plots, and the command of this process.
fn page_of(runs: &[Run], plots: &[plots::Plot], heading: &str) -> String {
    let table = page::table(&run::COLUMNS, runs.iter().map(|run| (run.cells(), run.valid)));
    let figure = |plot: &plots::Plot| {
        format!("<h2>{}</h2>\n<figure>{}</figure>\n", page::escape(&plot.title), plot.svg)
    };
    let figures: String = plots.iter().map(figure).collect();
    let command: Vec<_> = std::env::args().collect();
    let contents = format!(
        "{table}{EXPLANATION}{figures}<h2>Command</h2>\n<pre>{}\nversion {}</pre>\n",
        page::escape(&command.join(" ")),
        wedjat_core::program::Program::current().version
    );
    page::html(heading, heading, &contents)
}

/// Logs that a file was written.
fn log_written(path: &Path) {
    log::info!("wrote {}", path.display());
}

/// Makes a folder.
fn make_folder(option: &str, folder: &Path) -> Result<(), String> {
    let name = folder.display();
    std::fs::create_dir_all(folder).map_err(|error| format!("{option} {name}: {error}"))
}

/// Returns the file of the page: `path`, or `index.html` in the folder `path`. Checks that it can be written.
///
/// # Errors
/// If it cannot.
pub fn page_file(path: &Path) -> Result<PathBuf, String> {
    let is_folder = path.is_dir() || path.as_os_str().to_string_lossy().ends_with('/');
    let file = if is_folder {
        make_folder("--html", path)?;
        path.join("index.html")
    } else {
        path.to_owned()
    };
    ReportFile::new("--html", &file)?;
    Ok(file)
}

/// Returns the message for an error of the log, with the name of its file.
fn explain(log: &BufWriter<OpenReport>, error: &std::io::Error) -> String {
    log.get_ref().explain(error)
}

/// Arguments of `plot`.
#[derive(Args, Clone, Debug)]
pub struct PlotArgs {
    /// CSV file that --log-tasks wrote
    pub file: PathBuf,
    /// Folder for the plots
    #[arg(long, value_name = "FOLDER")]
    pub out: Option<PathBuf>,
    /// File for an HTML page with plots and tables, or folder for index.html
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
}

/// Draws the runs of a log of tasks. Returns the figures of the runs as a table.
///
/// # Errors
/// The file, line and reason of a fault, or a failure to draw or write.
pub fn plot(args: &PlotArgs) -> Result<String, String> {
    if let Some(folder) = &args.out {
        make_folder("--out", folder)?;
    }
    let html = args.html.as_deref().map(page_file).transpose()?;
    let mut runs: Vec<(usize, Run)> = Vec::new();
    for tasks in task::read(&args.file)? {
        let (number, run) = (tasks.run, Run::new(tasks));
        match runs.last_mut() {
            Some((last, seeds)) if *last == number => seeds.add_seed(run),
            _ => runs.push((number, run)),
        }
    }
    let runs: Vec<Run> = runs.into_iter().map(|(_, run)| run).collect();
    let heading = format!("Tasks of {}", args.file.display());
    write_plots(&runs, args.out.as_deref(), html.as_deref(), &heading)?;
    let head = run::COLUMNS.map(str::to_owned).to_vec();
    let rows = runs.iter().map(|run| run.cells().to_vec());
    Ok(aligned(&std::iter::once(head).chain(rows).collect::<Vec<_>>()))
}

/// Aligns lines of cells in columns: the first column to the left, all others to the right. All lines have equally
/// many cells.
#[must_use]
pub fn aligned(lines: &[Vec<String>]) -> String {
    let columns = lines.first().map_or(0, Vec::len);
    let width = |column: usize| {
        lines.iter().map(|line| line[column].chars().count()).max().unwrap_or_default()
    };
    let widths: Vec<_> = (0..columns).map(width).collect();
    let mut out = String::new();
    for line in lines {
        let cells = line.iter().zip(&widths).enumerate();
        let cells = cells.map(|(column, (cell, width))| match column {
            0 => format!("{cell:<width$}"),
            _ => format!("{cell:>width$}"),
        });
        out += cells.collect::<Vec<_>>().join("  ").trim_end();
        out.push('\n');
    }
    out
}
