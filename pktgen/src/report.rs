//! Report of a run: figures, verdict and manifest, as text, JSON or CSV with stable keys.
//!
//! A run is INVALID if its figures would mislead, such as after a late generator. *Adherence* is the fraction of tasks
//! sent on time. The *floor* is the latency of the generator alone, with immediate answers. The manifest is the origin
//! of the figures: revision, machine, seeds and configuration.

use std::fmt::{self, Write as _};
use std::io::{self, Write as _};

use serde::Serialize;

use crate::grammar::Time;
use crate::latency::{Confidence, Latency, LatencySummary, Micros, ci95_half_width};
use crate::ledger::Ledger;
use crate::load::Load;
use crate::manifest::Manifest;
use crate::rate::Rate;
use crate::results::{RunDescription, RunTasks, Task};
use crate::slices::{
    GROUPS, Slices, SlicesReport, UndisturbedClass, UndisturbedReport, UndisturbedTasks,
};
use crate::stationary::{self, Verdict};
use crate::tally::{Strays, Tally};

/// Writes a line to standard output. A closed pipe is not an error.
///
/// # Errors
/// If the line cannot be written for another reason.
pub fn print_line(line: impl fmt::Display) -> io::Result<()> {
    print_text(format!("{line}\n").as_bytes())
}

/// Writes text to standard output. A closed pipe is not an error.
///
/// # Errors
/// If the text cannot be written for another reason.
pub fn print_text(text: &[u8]) -> io::Result<()> {
    let mut out = io::stdout().lock();
    match out.write_all(text).and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error),
        _ => Ok(()),
    }
}

/// Fraction of tasks on time below which the report warns.
pub const ADHERENCE_WARNING: f64 = 0.999;
/// Fraction of tasks on time below which the run is invalid, since it did not offer the requested load.
pub const ADHERENCE_MIN: f64 = 0.95;

/// Results of a task class.
#[derive(Clone, Debug, Serialize)]
pub struct ClassReport {
    /// Name in a named mix; else its service times, or `class` and its number for a trace.
    pub name: String,
    /// Class on the wire.
    pub class: u16,
    /// Service times in the syntax of the command line; the mean for a trace.
    pub service: String,
    /// Ledger of its tasks.
    #[serde(flatten)]
    pub ledger: Ledger,
    /// Latency from the due time.
    pub response_us: LatencySummary,
    /// Latency from the send time.
    pub service_us: LatencySummary,
    /// Results in undisturbed slices only.
    pub undisturbed: UndisturbedClass,
}

/// Results of a run. *Undisturbed* figures cover undisturbed slices only: parts of the measured time in which no
/// poll loop stalled ([`crate::slices`]).
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Requested rate in tasks per second.
    pub offered_pps: f64,
    /// Measured seconds.
    pub duration_s: f64,
    /// Tasks due in the measured time. The following counts are about these.
    pub scheduled: u64,
    /// Tasks handed to the device.
    pub sent: u64,
    /// Tasks sent more than `late_after_us` after their due time.
    pub late: u64,
    /// Tasks never handed to the device.
    pub unsent: u64,
    /// Polls in which the device did not accept all tasks, warm-up included. Usually its peer is slower.
    pub tx_full: u64,
    /// Fraction of the scheduled tasks that were sent on time.
    pub adherence: f64,
    /// Delay above which a task counts as late.
    pub late_after_us: f64,
    /// Tasks answered by a worker.
    pub answered: u64,
    /// True if the contents of answers were checked.
    pub verified: bool,
    /// Answered tasks with a wrong answer.
    pub wrong: u64,
    /// Tasks returned undone.
    pub refused: u64,
    /// Sent tasks without an answer at the end of the drain, or evicted from the full ring of tasks in flight.
    pub lost: u64,
    /// Answered tasks per second.
    pub answered_pps: f64,
    /// Latency from the due time. Unanswered tasks count as infinite (null) in the percentiles.
    pub response_us: LatencySummary,
    /// Latency from the send time.
    pub service_us: LatencySummary,
    /// Confidence intervals of the response latencies, from the windows of the measured time.
    pub response_ci95_us: Confidence,
    /// Slices of the measured time, and the number of excluded ones.
    pub slices: SlicesReport,
    /// Figures of the undisturbed slices only. The verdict requires enough tasks and enough adherence in them.
    pub undisturbed: UndisturbedReport,
    /// Latency without scheduler and work, if measured.
    pub floor_us: Option<LatencySummary>,
    /// Results by class; a service without a mix is one class.
    pub classes: Vec<ClassReport>,
    /// Trend of the latency over the measured time.
    pub stationary: Verdict,
    /// True if there is no reason against it: the generator kept up, enough time was undisturbed, the ledgers
    /// balance, at least one task was answered, and no answer was wrong, warm-up included.
    pub valid: bool,
    /// Reasons why the run is invalid.
    pub reasons: Vec<String>,
    /// Warnings.
    pub warnings: Vec<String>,
    /// Received packets that are no first answer to a task in flight, warm-up included.
    #[serde(flatten)]
    pub strays: Strays,
    /// Origin of the figures.
    pub manifest: Manifest,
    /// Recorded tasks in the order of their due times; empty if the load records none.
    #[serde(skip)]
    pub tasks: Vec<Task>,
}

impl Report {
    /// Moves the recorded tasks out of the report, for the file of results: run number `run`, described by
    /// `description`. Sets the pool of each task to `pool`.
    pub fn take_tasks(&mut self, run: usize, description: RunDescription, pool: u16) -> RunTasks {
        let mut tasks = std::mem::take(&mut self.tasks);
        tasks.iter_mut().for_each(|task| task.pool = u32::from(pool));
        RunTasks { run, description, seed: self.manifest.seed, tasks }
    }

    /// Creates the report from the merged counts of all cores. `slices` is from [`Tally::slices`], `floor`
    /// from [`crate::floor::measure`].
    #[must_use]
    pub fn new(
        load: &Load,
        tally: &Tally,
        slices: &Slices,
        floor: Option<LatencySummary>,
        manifest: Manifest,
    ) -> Self {
        let ledger = tally.measured;
        // The trend uses medians, which single stalls hardly change.
        let medians: Vec<_> = tally.windows.iter().map(|window| window.quantile_ns(0.5)).collect();
        let stationary = stationary::verdict(&medians);
        let undisturbed_tasks = tally.undisturbed(slices);
        let undisturbed = undisturbed_tasks.report();
        let reasons = reasons(tally, slices, &undisturbed);
        let mut warnings = warnings(tally, stationary, &undisturbed);
        let (tasks, missing) = tally.tasks(load.warmup_s);
        if missing > 0 {
            warnings.push(format!(
                "{missing} of {} tasks have no row in the log of tasks, because its memory was full; give a shorter --duration",
                missing + tasks.len() as u64
            ));
        }
        Self {
            offered_pps: load.rate_pps,
            duration_s: tally.measured_s,
            scheduled: ledger.scheduled,
            sent: ledger.sent,
            late: ledger.late,
            unsent: ledger.unsent,
            tx_full: tally.tx_full,
            adherence: ledger.adherence(),
            late_after_us: load.late_after_s * 1e6,
            answered: ledger.answered,
            verified: load.verify,
            wrong: ledger.wrong,
            refused: ledger.refused,
            lost: ledger.lost,
            answered_pps: per_second(ledger.answered, tally.measured_s),
            response_us: tally.response().summary(),
            service_us: tally.service.summary(),
            response_ci95_us: confidence(tally),
            slices: slices.report(undisturbed_tasks.excluded),
            floor_us: floor,
            classes: classes(load, tally, &undisturbed_tasks),
            stationary,
            valid: reasons.is_empty(),
            reasons,
            warnings,
            undisturbed,
            strays: tally.strays,
            manifest,
            tasks,
        }
    }

    /// Returns the report as one JSON object.
    #[must_use]
    pub fn json(&self) -> String {
        serde_json::to_string_pretty(self).expect("a report has only plain values and string keys")
    }

    /// Returns keys and values of a CSV row. Runs of one service have equal keys.
    #[must_use]
    pub fn csv_fields(&self) -> Vec<(String, String)> {
        let mut fields = vec![
            ("offered_pps".to_owned(), self.offered_pps.to_string()),
            ("duration_s".to_owned(), self.duration_s.to_string()),
            ("scheduled".to_owned(), self.scheduled.to_string()),
            ("sent".to_owned(), self.sent.to_string()),
            ("late".to_owned(), self.late.to_string()),
            ("unsent".to_owned(), self.unsent.to_string()),
            ("adherence".to_owned(), self.adherence.to_string()),
            ("answered".to_owned(), self.answered.to_string()),
            ("wrong".to_owned(), self.wrong.to_string()),
            ("refused".to_owned(), self.refused.to_string()),
            ("lost".to_owned(), self.lost.to_string()),
            ("duplicates".to_owned(), self.strays.duplicates.to_string()),
        ];
        for (name, summary) in [
            ("response_us", Some(self.response_us)),
            ("service_us", Some(self.service_us)),
            ("floor_us", self.floor_us),
            ("undisturbed.response_us", Some(self.undisturbed.response_us)),
        ] {
            push_latencies(&mut fields, name, summary);
        }
        for (key, value) in [
            ("undisturbed.scheduled", self.undisturbed.ledger.scheduled.to_string()),
            ("undisturbed.lost", self.undisturbed.ledger.lost.to_string()),
            ("undisturbed.adherence", self.undisturbed.adherence.to_string()),
            (
                "undisturbed.response_ci95_us.p99",
                self.undisturbed.response_ci95_us.p99.0.to_string(),
            ),
            ("slices.all", self.slices.all.to_string()),
            ("slices.undisturbed", self.slices.undisturbed.to_string()),
            ("slices.excluded_tasks", self.slices.excluded_tasks.to_string()),
            ("slices.longest_pause_us", self.slices.longest_pause_us.0.to_string()),
        ] {
            fields.push((key.to_owned(), value));
        }
        let stationary = format!("{:?}", self.stationary).to_lowercase();
        fields.push(("stationary".to_owned(), stationary));
        fields.push(("valid".to_owned(), self.valid.to_string()));
        fields.push(("seed".to_owned(), self.manifest.seed.to_string()));
        fields.push(("revision".to_owned(), self.manifest.revision.clone()));
        fields.push(("started".to_owned(), self.manifest.started.clone()));
        self.classes.iter().for_each(|class| class.push_csv_fields(&mut fields));
        fields
    }
}

/// Keys of the figures of a latency, in the order of CSV columns and table.
const FIGURES: [&str; 7] = ["p50", "p90", "p99", "p999", "p9999", "mean", "max"];

/// Appends the figures of a latency to the fields of a CSV row; empty fields without a latency.
fn push_latencies(fields: &mut Vec<(String, String)>, name: &str, summary: Option<LatencySummary>) {
    for key in FIGURES {
        let value = summary.map(|summary| summary.named(key).0.to_string());
        fields.push((format!("{name}.{key}"), value.unwrap_or_default()));
    }
}

impl ClassReport {
    /// Appends the class's figures to the fields of a CSV row.
    fn push_csv_fields(&self, fields: &mut Vec<(String, String)>) {
        let prefix = format!("classes.{}", self.class);
        fields.push((format!("{prefix}.name"), self.name.clone()));
        let ledger = &self.ledger;
        for (key, count) in [
            ("sent", ledger.sent),
            ("answered", ledger.answered),
            ("wrong", ledger.wrong),
            ("refused", ledger.refused),
            ("lost", ledger.lost),
        ] {
            fields.push((format!("{prefix}.{key}"), count.to_string()));
        }
        push_latencies(fields, &format!("{prefix}.response_us"), Some(self.response_us));
        push_latencies(fields, &format!("{prefix}.service_us"), Some(self.service_us));
        push_latencies(
            fields,
            &format!("{prefix}.undisturbed.response_us"),
            Some(self.undisturbed.response_us),
        );
    }
}

/// Formats reports as CSV: one header, and one row per report.
///
/// # Errors
/// If a row cannot be written. Writing to memory never fails, but reports of different services may have
/// different numbers of fields.
pub fn csv(reports: &[Report]) -> Result<String, csv::Error> {
    let mut writer = csv::Writer::from_writer(Vec::new());
    for (i, report) in reports.iter().enumerate() {
        let fields = report.csv_fields();
        if i == 0 {
            writer.write_record(fields.iter().map(|(key, _)| key))?;
        }
        writer.write_record(fields.iter().map(|(_, value)| value))?;
    }
    let bytes = writer.into_inner().map_err(|error| error.into_error())?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Returns the reasons why the run is invalid; none if it is valid.
fn reasons(tally: &Tally, slices: &Slices, undisturbed: &UndisturbedReport) -> Vec<String> {
    let (ledger, undisturbed) = (&tally.measured, &undisturbed.ledger);
    let mut reasons = Vec::new();
    if ledger.scheduled == 0 {
        reasons.push("no task was due in the measured time".to_owned());
    } else if let Some(reason) = too_few(tally, slices, undisturbed) {
        reasons.push(reason);
    }
    if undisturbed.scheduled > 0 && undisturbed.adherence() < ADHERENCE_MIN {
        reasons.push(format!(
            "only {:.2}% of the tasks in undisturbed slices were sent on time ({:.0}% are needed): {} late, {} unsent; lower \
             the rate, or give the generator its own core",
            undisturbed.adherence() * 100.0,
            ADHERENCE_MIN * 100.0,
            undisturbed.late,
            undisturbed.unsent
        ));
    }
    if ledger.sent > 0 && ledger.answered == 0 {
        reasons.push("no task was answered".to_owned());
    }
    let wrong = ledger.wrong + tally.warmup.wrong;
    if wrong > 0 {
        reasons.push(format!(
            "{wrong} answers are wrong; start the workers with the app that --service is for"
        ));
    }
    let classes = tally.classes.iter().map(|class| &class.ledger);
    if ![ledger, &tally.warmup].into_iter().chain(classes).all(Ledger::balances) {
        reasons.push(
            "the loss ledger does not balance; please report this bug of the generator".to_owned(),
        );
    }
    reasons
}

/// Returns the reason why the undisturbed slices are too few for the requested percentile, with the fix.
fn too_few(tally: &Tally, slices: &Slices, undisturbed: &Ledger) -> Option<String> {
    let (rule, all) = (slices.rule(), tally.measured.scheduled);
    let (percentile, needed) = (rule.percentile(), rule.tasks_min());
    let (undisturbed_slices, undisturbed_tasks) = (slices.undisturbed(), undisturbed.scheduled);
    if undisturbed_slices >= GROUPS && undisturbed_tasks >= needed {
        return None;
    }
    let shortage = format!(
        "{undisturbed_slices} of {} slices were undisturbed, with {undisturbed_tasks} tasks; {percentile} needs {GROUPS} slices with \
         {needed} tasks",
        slices.all()
    );
    // All slices are undisturbed, and still there are too few slices or tasks.
    let is_too_short =
        (slices.all() < GROUPS || all < needed) && undisturbed_slices == slices.all();
    // Fraction of the need that this run meets. A run longer by the factor 1 / `part` would meet all of it.
    let part =
        (undisturbed_tasks as f64 / needed as f64).min(undisturbed_slices as f64 / GROUPS as f64);
    let fix = match part {
        _ if is_too_short => "measure for longer".to_owned(),
        // A run up to a hundred times as long is practical advice.
        part if part > 0.01 => format!(
            "measure for {} or longer, and keep other work off the CPUs",
            Time((tally.measured_s / part).ceil() * 1e9)
        ),
        _ => format!(
            "this machine interrupts the measurement too often: keep other work off the CPUs, lower the rate, or use longer \
             tasks (slices of {}; a pause of more than {} also disturbs {:.1} times its length afterwards)",
            Time(rule.slice_s * 1e9),
            Time(rule.pause_s * 1e9),
            rule.recovery
        ),
    };
    Some(format!("{shortage}: {fix}; or ask for a lower --percentile"))
}

/// Returns the warnings about a run.
fn warnings(tally: &Tally, stationary: Verdict, undisturbed: &UndisturbedReport) -> Vec<String> {
    let mut warnings = Vec::new();
    let adherence = undisturbed.adherence;
    if (ADHERENCE_MIN..ADHERENCE_WARNING).contains(&adherence) {
        let text = format!(
            "{:.2}% of the tasks in undisturbed slices were sent on time",
            adherence * 100.0
        );
        warnings.push(text);
    }
    match stationary {
        Verdict::Rising => warnings.push(
            "latency rose during the measurement: the system is overloaded, and the percentiles depend on the duration; lower \
             the rate"
                .to_owned(),
        ),
        Verdict::Falling => {
            warnings.push("latency fell during the measurement: give a longer --warmup".to_owned())
        }
        Verdict::Stationary | Verdict::Unknown => {}
    }
    if tally.pool_empty > 0 {
        warnings.push(format!(
            "the buffer pool was empty in {} polls: give a larger --buffers",
            tally.pool_empty
        ));
    }
    if tally.tx_full > 0 {
        warnings.push(format!("the device's transmit queue was full in {} polls", tally.tx_full));
    }
    warnings
}

/// Returns a rate; 0 over no time, as after a stop in the warm-up.
fn per_second(count: u64, seconds: f64) -> f64 {
    if seconds > 0.0 { count as f64 / seconds } else { 0.0 }
}

/// Returns the confidence intervals of the response latencies, from the windows of the measured time.
fn confidence(tally: &Tally) -> Confidence {
    let ci95 = |figure: &dyn Fn(&Latency) -> f64| {
        let windows: Vec<_> =
            tally.windows.iter().map(figure).filter(|value| !value.is_nan()).collect();
        Micros(ci95_half_width(&windows) / 1e3)
    };
    Confidence {
        p50: ci95(&|window| window.quantile_ns(0.5)),
        p99: ci95(&|window| window.quantile_ns(0.99)),
        mean: ci95(&|window| window.mean_ns()),
    }
}

/// Returns the results by class. A service without a mix is one class.
fn classes(load: &Load, tally: &Tally, undisturbed_tasks: &UndisturbedTasks) -> Vec<ClassReport> {
    let report = |class, ledger, response: &Latency, service: &Latency, undisturbed| {
        let (name, times) = load.class_texts(class);
        ClassReport {
            name,
            class,
            service: times,
            ledger,
            response_us: response.summary(),
            service_us: service.summary(),
            undisturbed,
        }
    };
    if tally.classes.is_empty() {
        let undisturbed = UndisturbedClass {
            ledger: undisturbed_tasks.ledger,
            response_us: undisturbed_tasks.report().response_us,
        };
        return vec![report(1, tally.measured, &tally.response(), &tally.service, undisturbed)];
    }
    let undisturbed = undisturbed_tasks.classes.iter().map(|(ledger, latency)| UndisturbedClass {
        ledger: *ledger,
        response_us: latency.summary(),
    });
    let all = (1..).zip(&tally.classes).zip(undisturbed);
    all.map(|((class, counts), undisturbed)| {
        report(class, counts.ledger, &counts.response, &counts.service, undisturbed)
    })
    .collect()
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let config = &self.manifest.config;
        writeln!(
            f,
            "{} tasks/s offered, {}, {} arrivals, {} measured after {} of warm-up",
            Rate::Pps((self.offered_pps * 100.0).round() / 100.0),
            config.service,
            config.arrivals,
            Time(self.duration_s * 1e9),
            Time(config.warmup_s * 1e9)
        )?;
        writeln!(
            f,
            "  scheduled {}  sent {}  late {} (by more than {})  unsent {}  adherence {:.3}%",
            self.scheduled,
            self.sent,
            self.late,
            Time(self.late_after_us * 1e3),
            self.unsent,
            self.adherence * 100.0
        )?;
        writeln!(
            f,
            "  sent {} = answered {} + refused {} + lost {}   duplicates {}",
            self.sent, self.answered, self.refused, self.lost, self.strays.duplicates
        )?;
        writeln!(f, "  {}", self.slices)?;
        if self.verified {
            writeln!(f, "  answers checked: {} wrong of {}", self.wrong, self.answered)?;
        }
        let mut table = String::new();
        self.write_latencies(&mut table)?;
        write!(f, "{table}")?;
        for warning in &self.warnings {
            writeln!(f, "  warning: {warning}")?;
        }
        if let Some(timestamps) = &self.manifest.timestamps {
            writeln!(f, "  receive timestamps: {timestamps}")?;
        }
        writeln!(f, "  seed {}, revision {}", self.manifest.seed, self.manifest.revision)?;
        match self.valid {
            true => write!(f, "  VALID"),
            false => write!(f, "  INVALID: {}", self.reasons.join("; ")),
        }
    }
}

impl Report {
    /// Writes the table of latencies.
    fn write_latencies(&self, out: &mut String) -> fmt::Result {
        write!(out, "  {:<22}", "us")?;
        for name in ["p50", "p90", "p99", "p99.9", "p99.99", "mean", "max"] {
            write!(out, "{name:>10}")?;
        }
        writeln!(out)?;
        write_row(out, "response (from due)", &self.response_us)?;
        write_confidence(out, &self.response_ci95_us)?;
        write_row(out, "  undisturbed slices", &self.undisturbed.response_us)?;
        write_confidence(out, &self.undisturbed.response_ci95_us)?;
        write_row(out, "service (from sent)", &self.service_us)?;
        if self.classes.len() > 1 {
            self.write_classes(out)?;
        }
        if let Some(floor) = &self.floor_us {
            write_row(out, "floor (no scheduler)", floor)?;
        }
        Ok(())
    }

    /// Writes the latencies and counts by class.
    fn write_classes(&self, out: &mut String) -> fmt::Result {
        writeln!(out, "  by class, response:")?;
        for class in &self.classes {
            write_row(out, &format!("  {}: {}", class.class, class.name), &class.response_us)?;
        }
        for class in &self.classes {
            let Ledger { sent, answered, refused, lost, .. } = class.ledger;
            let name = format!("{}: {}", class.class, class.name);
            let counts =
                format!("sent {sent} = answered {answered} + refused {refused} + lost {lost}");
            writeln!(out, "    {name:<20}  {counts}")?;
        }
        Ok(())
    }
}

/// Writes a row of half widths of confidence intervals.
fn write_confidence(out: &mut String, ci: &Confidence) -> fmt::Result {
    let text = |value: Micros| match value.0.is_nan() {
        true => "-".to_owned(),
        false => format!("+-{value}"),
    };
    let (p50, p99, mean) = (text(ci.p50), text(ci.p99), text(ci.mean));
    // Leaves the columns of p90, p99.9 and p99.99 empty.
    writeln!(out, "  {:<22}{p50:>10}{:>10}{p99:>10}{:>20}{mean:>10}", "  95% confidence", "", "")
}

/// Width of the column of row names, in characters; longer names shift their row.
const NAME_COLUMNS: usize = 22;

/// Writes a row of latencies.
fn write_row(out: &mut String, name: &str, summary: &LatencySummary) -> fmt::Result {
    write!(out, "  {name:<NAME_COLUMNS$}")?;
    for key in FIGURES {
        write!(out, "{:>10}", summary.named(key))?;
    }
    writeln!(out)
}

/// Formats several runs as a table with one line each.
#[must_use]
pub fn table(reports: &[Report]) -> String {
    let mut out = String::new();
    let names = [
        "offered",
        "scheduled",
        "sent",
        "answered",
        "refused",
        "lost",
        "p50",
        "p90",
        "p99",
        "p99.9",
        "adherence",
        "verdict",
    ];
    let mut row = |cells: [String; 12]| {
        let line: Vec<_> = cells.iter().map(|cell| format!("{cell:>10}")).collect();
        out.push_str(line.join(" ").trim_end());
        out.push('\n');
    };
    row(names.map(str::to_owned));
    for report in reports {
        let us = &report.response_us;
        row([
            Rate::Pps(report.offered_pps).to_string(),
            report.scheduled.to_string(),
            report.sent.to_string(),
            report.answered.to_string(),
            report.refused.to_string(),
            report.lost.to_string(),
            us.p50.to_string(),
            us.p90.to_string(),
            us.p99.to_string(),
            us.p999.to_string(),
            format!("{:.3}%", report.adherence * 100.0),
            if report.valid { "valid" } else { "INVALID" }.to_owned(),
        ]);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outstanding::InFlightTask;
    use crate::slices::{Log, Pauses, Rule};
    use crate::tally::Clock;

    /// Returns a load with two classes and short slices.
    fn load() -> Load {
        sliced(Load::new(1e5, "mix(0.5*fixed(5us), 0.5*fixed(9us))".parse().unwrap()))
    }

    /// Sets slices of 10 us, and stalls from 1 us. A stall also disturbs the 10 us before it and its own length after
    /// it.
    fn sliced(load: Load) -> Load {
        let rule = Rule { slice_s: 1e-5, pause_s: 1e-6, recovery: 1.0, cover_s: 1e-5, ..load.rule };
        Load { rule, ..load }
    }

    /// Returns a tally of 1 ms, in ten windows, on a clock of nanoseconds.
    fn tally(classes: usize) -> Tally {
        let mut tally = Tally::new(10, classes, Log::new(1e4, 1_000_000, 1e9), Pauses::new(1000));
        let (window_ticks, late_ticks) = (100_000, 10);
        tally.begin(Clock { start: 0, window_ticks, tick_ns: 1.0, late_ticks });
        tally
    }

    #[test]
    fn run_stopped_in_its_warm_up_has_rates() {
        let (load, mut tally) = (load(), tally(2));
        tally.end(0);
        let slices = tally.slices(&load.rule, &[]);
        let report = Report::new(&load, &tally, &slices, None, Manifest::for_tests(&load));
        assert_eq!((report.answered_pps, report.valid), (0.0, false));
    }

    /// Returns a report of ten thousand tasks of 20 us, with these percentages of late, unsent and lost tasks.
    fn report(late: u64, unsent: u64, lost: u64) -> Report {
        report_of(&load(), late, unsent, lost, 0)
    }

    /// Like [`report`], with this load and number of wrong answers.
    fn report_of(load: &Load, late: u64, unsent: u64, lost: u64, wrong: u64) -> Report {
        report_between(load, &[], [late, unsent, lost, wrong])
    }

    /// Like [`report_of`], with a loop that read the clock at these times.
    fn report_between(load: &Load, readings: &[u64], counts: [u64; 4]) -> Report {
        let [late, unsent, lost, wrong] = counts;
        let (late, unsent, lost) = (100 * late, 100 * unsent, 100 * lost);
        let mut tally = tally(2);
        readings.iter().for_each(|now| tally.record_reading(*now));
        for i in 0..10_000_u64 {
            let due = i * 100;
            let class = 1 + (i % 2) as u16;
            tally.schedule(due, class);
            if i < unsent {
                tally.count_unsent(due, 0, class);
                continue;
            }
            // A task is late if it is sent more than 10 ticks after its due time.
            let sent = if i < unsent + late { due + 11 } else { due };
            let flight = InFlightTask { due, sent, service_ns: 0, class };
            tally.send(&flight);
            if i >= 10_000 - lost {
                tally.lose(&flight);
            } else {
                tally.answer(&flight, due + 20_000, i < wrong, 0);
            }
        }
        tally.end(1_000_000);
        let slices = tally.slices(&load.rule, &[]);
        Report::new(load, &tally, &slices, None, Manifest::for_tests(load))
    }

    // promise: measurement.2
    #[test]
    fn verdict_depends_on_adherence_and_answers() {
        let good = report(0, 0, 0);
        assert!(good.valid && good.warnings.is_empty() && good.reasons.is_empty(), "{good}");
        assert!(good.to_string().ends_with("VALID"));
        // 97% on time is a warning, 94% is invalid: 3% late and 3% unsent.
        let late = report(3, 0, 0);
        assert!(late.valid && late.warnings[0].contains("97.00%"), "{late}");
        let bad = report(3, 3, 0);
        assert!(!bad.valid && bad.reasons[0].contains("94.00%"), "{bad}");
        assert!(bad.to_string().contains("INVALID: only 94.00%"));
        let silent = report(0, 0, 100);
        assert!(!silent.valid && silent.reasons[0].contains("no task was answered"));
    }

    // promise: measurement.2
    #[test]
    fn percentile_needs_enough_undisturbed_slices() {
        // A stall from 500 to 504 us: its slice is disturbed, and the one before, whose tasks may still be in flight.
        let readings: Vec<_> =
            (0..=1000).map(|i| i * 1000).filter(|at| !(501..504).contains(&(at / 1000))).collect();
        let load = load();
        let short = report_between(&load, &readings, [0; 4]);
        assert_eq!(
            (short.slices.all, short.slices.undisturbed, short.slices.pauses),
            (100, 98, 1),
            "{short}"
        );
        assert_eq!((short.slices.excluded_tasks, short.undisturbed.ledger.scheduled), (200, 9_800));
        assert_eq!((short.scheduled, short.slices.longest_pause_us.0), (10_000, 4.0));
        let reason = &short.reasons[0];
        assert!(
            reason.contains("98 of 100 slices were undisturbed, with 9800 tasks; p99 needs 20 slices with 10000 tasks"),
            "{reason}"
        );
        assert!(reason.contains("measure for") && reason.contains("--percentile"), "{reason}");
        // p98 needs 5000 tasks.
        let rule = Rule { quantile: 0.98, ..load.rule };
        let enough = report_between(&Load { rule, ..load.clone() }, &readings, [0; 4]);
        assert!(enough.valid, "{enough}");
        assert!(
            enough.to_string().contains(
                "98 of 100 slices undisturbed (98.0%); excluded: 2 slices with 200 tasks"
            )
        );
        // Unsent tasks in undisturbed slices count: 600 of 9800.
        let bad = report_between(&Load { rule, ..load }, &readings, [0, 6, 0, 0]);
        assert!(!bad.valid && bad.reasons[0].contains("93.88%"), "{bad}");
    }

    // promise: measurement.2
    #[test]
    fn disturbed_run_is_invalid_with_the_fix() {
        // Each gap of 2 us between two readings is a stall, because it exceeds the limit of 1 us.
        let readings: Vec<_> = (0..=500).map(|i| i * 2_000).collect();
        let report = report_between(&load(), &readings, [0; 4]);
        assert_eq!(
            (report.slices.undisturbed, report.slices.excluded_tasks, report.valid),
            (0, 10_000, false)
        );
        let reason = &report.reasons[0];
        assert!(
            reason.contains("interrupts the measurement too often")
                && reason.contains("keep other work off"),
            "{reason}"
        );
        assert!(
            report.undisturbed.response_us.p99.0.is_nan() && report.response_us.p99.0.is_finite()
        );
        assert!(
            report.to_string().contains("INVALID: 0 of 100 slices were undisturbed"),
            "{report}"
        );
    }

    #[test]
    fn json_keys_are_stable() {
        let json: serde_json::Value = serde_json::from_str(&report(1, 1, 2).json()).unwrap();
        for key in [
            "offered_pps",
            "scheduled",
            "sent",
            "late",
            "unsent",
            "adherence",
            "answered",
            "verified",
            "wrong",
            "refused",
            "lost",
            "duplicates",
            "late_answers",
            "unknown",
            "foreign",
            "response_us",
            "service_us",
            "response_ci95_us",
            "floor_us",
            "slices",
            "undisturbed",
            "classes",
            "stationary",
            "valid",
            "reasons",
            "warnings",
            "manifest",
        ] {
            assert!(json.get(key).is_some(), "{key}");
        }
        for key in ["p50", "p90", "p99", "p999", "p9999", "mean", "max"] {
            assert!(
                json["response_us"].get(key).is_some() && json["service_us"].get(key).is_some()
            );
        }
        let p50 = json["response_us"]["p50"].as_f64().unwrap();
        assert!((p50 - 20.0).abs() < 0.05, "{p50}");
        assert!(json["response_us"]["p99"].is_null(), "two of 99 lost");
        assert_eq!(json["sent"], 9900);
        assert_eq!(json["classes"][1]["service"], "fixed(9us)");
    }

    // promise: measurement.1
    #[test]
    fn classes_have_names_ledgers_and_latencies() {
        let mix = sliced(Load::new(1e5, "rocksdb-90-10".parse().unwrap()));
        let report = report_of(&mix, 0, 4, 3, 0);
        let json = serde_json::to_value(&report).unwrap();
        let classes = json["classes"].as_array().unwrap();
        assert_eq!(classes.len(), 2);
        let count = |class: &serde_json::Value, key: &str| class[key].as_u64().unwrap();
        for (class, name) in classes.iter().zip(["GET", "SCAN"]) {
            assert_eq!(class["name"], name);
            assert_eq!(count(class, "scheduled"), count(class, "sent") + count(class, "unsent"));
            let accounted = ["answered", "refused", "lost"].map(|key| count(class, key));
            assert_eq!(count(class, "sent"), accounted.iter().sum::<u64>());
            assert!(class["response_us"]["p50"].is_number() && class["service_us"].is_object());
        }
        for key in ["sent", "answered", "lost", "unsent"] {
            let sum: u64 = classes.iter().map(|class| count(class, key)).sum();
            assert_eq!(json[key], sum, "{key}");
        }
        let text = report.to_string();
        assert!(text.contains("1: GET") && text.contains("2: SCAN"), "{text}");
        assert!(csv(&[report]).unwrap().contains("classes.2.response_us.p99"));
    }

    #[test]
    fn single_class_equals_the_whole_run() {
        let load = Load::new(1e5, "exp(5us)".parse().unwrap());
        let mut tally = tally(1);
        tally.schedule(5, 1);
        let flight = InFlightTask { due: 5, sent: 5, service_ns: 0, class: 1 };
        tally.send(&flight);
        tally.answer(&flight, 2_005, false, 0);
        tally.end(1_000_000);
        let slices = tally.slices(&load.rule, &[]);
        let report = Report::new(&load, &tally, &slices, None, Manifest::for_tests(&load));
        let [class] = &report.classes[..] else { panic!("{:?}", report.classes) };
        assert_eq!((class.class, class.name.as_str(), class.ledger.answered), (1, "exp(5us)", 1));
        assert_eq!(class.response_us, report.response_us);
        assert_eq!(class.undisturbed.response_us, report.undisturbed.response_us);
    }

    // promise: measurement.3
    #[test]
    fn wrong_answers_make_a_run_invalid() {
        let report = report_of(&Load { verify: true, ..load() }, 0, 0, 0, 2);
        assert!(!report.valid && report.reasons[0].contains("2 answers are wrong"), "{report}");
        assert!(report.to_string().contains("answers checked: 2 wrong of 10000"), "{report}");
        assert_eq!((report.verified, report.wrong), (true, 2));
    }

    #[test]
    fn csv_has_one_header_and_a_row_each() {
        let text = csv(&[report(0, 0, 0), report(0, 0, 50)]).unwrap();
        let mut reader = csv::Reader::from_reader(text.as_bytes());
        let column = reader.headers().unwrap().iter().position(|key| key == "response_us.p99");
        let values: Vec<_> =
            reader.records().map(|record| record.unwrap()[column.unwrap()].to_owned()).collect();
        assert_eq!(values[1], "inf");
        assert!((values[0].parse::<f64>().unwrap() - 20.0).abs() < 0.05);
    }

    #[test]
    fn table_has_a_line_per_run() {
        let text = table(&[report(0, 0, 0), report(0, 20, 0)]);
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines.len(), 3);
        assert!(lines[1].ends_with("valid") && lines[2].ends_with("INVALID"), "{text}");
    }
}
