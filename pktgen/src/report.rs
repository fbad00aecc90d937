//! What a run says of itself: figures, verdict and manifest, as text, JSON or CSV with stable keys.

use std::fmt::{self, Write as _};
use std::io::{self, Write as _};

use serde::Serialize;

use crate::grammar::Time;
use crate::latency::{Latency, LatencySummary, Micros, ci95_half_width};
use crate::load::Load;
use crate::manifest::Manifest;
use crate::rate::Rate;
use crate::slices::{Calm, CalmClass, CalmReport, GROUPS, Slices, SlicesReport};
use crate::stationary::{self, Verdict};
use crate::tally::{Ledger, Strays, Tally};

/// Writes a line to standard output; a reader that has gone is no fault of ours.
///
/// # Errors
/// When it cannot be written for another reason.
pub fn say(line: impl fmt::Display) -> io::Result<()> {
    match writeln!(io::stdout().lock(), "{line}") {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error),
        _ => Ok(()),
    }
}

/// Below this share of tasks sent on time the report warns.
pub const ADHERENCE_WARNING: f64 = 0.999;
/// Below this share the run is invalid: it did not offer the load that it was asked for.
pub const ADHERENCE_MIN: f64 = 0.95;

/// Half widths of 95% confidence intervals, from the windows of the measured time.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Confidence {
    /// Of the median.
    pub p50: Micros,
    /// Of the 99th percentile.
    pub p99: Micros,
    /// Of the mean.
    pub mean: Micros,
}

/// One task class.
#[derive(Clone, Debug, Serialize)]
pub struct ClassReport {
    /// Its name in a mix that has one; its service times otherwise.
    pub name: String,
    /// The class on the wire.
    pub class: u16,
    /// Its service times, as a user would write them.
    pub service: String,
    /// What became of its tasks.
    #[serde(flatten)]
    pub ledger: Ledger,
    /// From the due time.
    pub response_us: LatencySummary,
    /// From the send time.
    pub service_us: LatencySummary,
    /// The same of calm slices alone.
    pub calm: CalmClass,
}

/// A finished run.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Tasks a second asked for.
    pub offered_pps: f64,
    /// Measured seconds.
    pub duration_s: f64,
    /// Tasks due in the measured time; they are those that the following counts are of.
    pub scheduled: u64,
    /// Handed to the device.
    pub sent: u64,
    /// Sent more than `late_after_us` after they were due.
    pub late: u64,
    /// Never handed to the device.
    pub unsent: u64,
    /// Polls in which the device did not take all tasks, warm-up included: its other end was slower.
    pub tx_full: u64,
    /// Share of the scheduled tasks that were sent on time.
    pub adherence: f64,
    /// What counts as late.
    pub late_after_us: f64,
    /// Answered by a worker.
    pub answered: u64,
    /// What the answers say was checked.
    pub verified: bool,
    /// Of those answered, how many wrongly.
    pub wrong: u64,
    /// Given back undone.
    pub refused: u64,
    /// Not answered by the end of the drain.
    pub lost: u64,
    /// Answered tasks a second.
    pub answered_pps: f64,
    /// Latency from the due time; unanswered tasks count as infinite (null) in the percentiles.
    pub response_us: LatencySummary,
    /// Latency from the send time.
    pub service_us: LatencySummary,
    /// Confidence of the response latencies.
    pub response_ci95_us: Confidence,
    /// How the measured time was cut into slices, and what was thrown away.
    pub slices: SlicesReport,
    /// The figures of the calm slices alone; the verdict is over these.
    pub calm: CalmReport,
    /// Latency with no scheduler and no work in between, when measured.
    pub floor_us: Option<LatencySummary>,
    /// Each class of the mix; a service that is no mix is one class.
    pub classes: Vec<ClassReport>,
    /// Whether latency had a trend over the measured time.
    pub stationary: Verdict,
    /// The generator kept up, its books balance, and something was answered.
    pub valid: bool,
    /// Why not.
    pub reasons: Vec<String>,
    /// What else a reader must know.
    pub warnings: Vec<String>,
    /// Packets that belong to no task, warm-up included.
    #[serde(flatten)]
    pub strays: Strays,
    /// Where the figures come from.
    pub manifest: Manifest,
}

impl Report {
    /// The report of what all cores have counted together; `slices` as [`Tally::slices`] cut them, `floor` as
    /// [`crate::floor::measure`] found it.
    #[must_use]
    pub fn new(
        load: &Load,
        tally: &Tally,
        slices: &Slices,
        floor: Option<LatencySummary>,
        manifest: Manifest,
    ) -> Self {
        let ledger = tally.measured;
        let medians: Vec<_> = tally.windows.iter().map(|window| window.quantile_ns(0.5)).collect();
        let stationary = stationary::verdict(&medians);
        let counted = tally.calm(slices);
        let calm = counted.report();
        let reasons = reasons(tally, slices, &calm);
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
            answered_pps: ledger.answered as f64 / tally.measured_s,
            response_us: tally.response().summary(),
            service_us: tally.service.summary(),
            response_ci95_us: confidence(tally),
            slices: slices.report(counted.thrown),
            floor_us: floor,
            classes: classes(load, tally, &counted),
            stationary,
            valid: reasons.is_empty(),
            reasons,
            warnings: warnings(tally, stationary, &calm),
            calm,
            strays: tally.strays,
            manifest,
        }
    }

    /// One JSON object.
    #[must_use]
    pub fn json(&self) -> String {
        serde_json::to_string_pretty(self).expect("a report has only plain values and string keys")
    }

    /// Keys and values of one CSV row; the keys are the same for runs of one service.
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
            ("calm.response_us", Some(self.calm.response_us)),
        ] {
            push_latencies(&mut fields, name, summary);
        }
        for (key, value) in [
            ("calm.scheduled", self.calm.ledger.scheduled.to_string()),
            ("calm.lost", self.calm.ledger.lost.to_string()),
            ("calm.adherence", self.calm.adherence.to_string()),
            ("calm.response_ci95_us.p99", self.calm.response_ci95_us.p99.0.to_string()),
            ("slices.all", self.slices.all.to_string()),
            ("slices.calm", self.slices.calm.to_string()),
            ("slices.thrown_tasks", self.slices.thrown_tasks.to_string()),
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

const FIGURES: [&str; 7] = ["p50", "p90", "p99", "p999", "p9999", "mean", "max"];

fn push_latencies(fields: &mut Vec<(String, String)>, name: &str, summary: Option<LatencySummary>) {
    for key in FIGURES {
        let value = summary.map(|summary| summary.named(key).0.to_string());
        fields.push((format!("{name}.{key}"), value.unwrap_or_default()));
    }
}

impl ClassReport {
    fn push_csv_fields(&self, fields: &mut Vec<(String, String)>) {
        let of = format!("classes.{}", self.class);
        fields.push((format!("{of}.name"), self.name.clone()));
        let ledger = &self.ledger;
        for (key, count) in [
            ("sent", ledger.sent),
            ("answered", ledger.answered),
            ("wrong", ledger.wrong),
            ("refused", ledger.refused),
            ("lost", ledger.lost),
        ] {
            fields.push((format!("{of}.{key}"), count.to_string()));
        }
        push_latencies(fields, &format!("{of}.response_us"), Some(self.response_us));
        push_latencies(fields, &format!("{of}.service_us"), Some(self.service_us));
        push_latencies(fields, &format!("{of}.calm.response_us"), Some(self.calm.response_us));
    }
}

/// Reports as CSV, one row each under one header.
///
/// # Errors
/// When the text cannot be written, which memory allows always.
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

fn reasons(tally: &Tally, slices: &Slices, calm: &CalmReport) -> Vec<String> {
    let (ledger, calm) = (&tally.measured, &calm.ledger);
    let mut reasons = Vec::new();
    if ledger.scheduled == 0 {
        reasons.push("no task was due in the measured time".to_owned());
    } else if let Some(reason) = too_few(tally, slices, calm) {
        reasons.push(reason);
    }
    if calm.scheduled > 0 && calm.adherence() < ADHERENCE_MIN {
        reasons.push(format!(
            "only {:.2}% of the calm slices' tasks were sent on time ({:.0}% are needed): {} late, {} unsent; \
             lower the rate, or give the generator a core of its own",
            calm.adherence() * 100.0,
            ADHERENCE_MIN * 100.0,
            calm.late,
            calm.unsent
        ));
    }
    if ledger.sent > 0 && ledger.answered == 0 {
        reasons.push("no task was answered".to_owned());
    }
    let wrong = ledger.wrong + tally.warmup.wrong;
    if wrong > 0 {
        reasons.push(format!(
            "{wrong} answers are wrong: do the workers run what --service is meant for?"
        ));
    }
    let classes = tally.classes.iter().map(|class| &class.ledger);
    if ![ledger, &tally.warmup].into_iter().chain(classes).all(Ledger::balances) {
        reasons.push("the loss ledger does not balance: this is a bug of the generator".to_owned());
    }
    reasons
}

/// Why the calm slices don't tell the percentile that was asked for, if they don't, and what to do.
fn too_few(tally: &Tally, slices: &Slices, calm: &Ledger) -> Option<String> {
    let (rule, all) = (slices.rule(), tally.measured.scheduled);
    let (percentile, needed) = (rule.percentile(), rule.tasks_min());
    let (calm_slices, calm_tasks) = (slices.calm(), calm.scheduled);
    if calm_slices >= GROUPS && calm_tasks >= needed {
        return None;
    }
    let found = format!(
        "{calm_slices} of {} slices are calm, with {calm_tasks} tasks; {percentile} needs {GROUPS}, with {needed}",
        slices.all()
    );
    let whole = (slices.all() < GROUPS || all < needed) && calm_slices == slices.all();
    let part = (calm_tasks as f64 / needed as f64).min(calm_slices as f64 / GROUPS as f64);
    let fix = match part {
        // Even all of them would not do.
        _ if whole => "measure for longer".to_owned(),
        part if part > 0.01 => format!(
            "measure for {} or longer, keep other work off the CPUs",
            Time((tally.measured_s / part).ceil() * 1e9)
        ),
        _ => format!(
            "this machine stops its CPUs too often for tasks of this length and this load: keep other work off the CPUs, \
             or give tasks that take longer, or a lower rate; slices have {}, and a pause of more than {} also spoils \
             {:.1} times its length afterwards",
            Time(rule.slice_s * 1e9),
            Time(rule.pause_s * 1e9),
            rule.recovery
        ),
    };
    Some(format!("{found}: {fix}, or ask for less with --percentile"))
}

fn warnings(tally: &Tally, stationary: Verdict, calm: &CalmReport) -> Vec<String> {
    let mut warnings = Vec::new();
    let adherence = calm.adherence;
    if (ADHERENCE_MIN..ADHERENCE_WARNING).contains(&adherence) {
        let text = format!("{:.2}% of the calm slices' tasks were sent on time", adherence * 100.0);
        warnings.push(text);
    }
    match stationary {
        Verdict::Rising => warnings.push(
            "latency rose while it was measured: the load is more than the system takes, and the \
             percentiles depend on the duration"
                .to_owned(),
        ),
        Verdict::Falling => {
            warnings.push("latency fell while it was measured: give a longer --warmup".to_owned())
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

fn confidence(tally: &Tally) -> Confidence {
    let of = |figure: &dyn Fn(&Latency) -> f64| {
        let windows: Vec<_> =
            tally.windows.iter().map(figure).filter(|value| !value.is_nan()).collect();
        Micros(ci95_half_width(&windows) / 1e3)
    };
    Confidence {
        p50: of(&|window| window.quantile_ns(0.5)),
        p99: of(&|window| window.quantile_ns(0.99)),
        mean: of(&|window| window.mean_ns()),
    }
}

fn classes(load: &Load, tally: &Tally, counted: &Calm) -> Vec<ClassReport> {
    let report = |class, ledger, response: &Latency, service: &Latency, calm| {
        let (name, times) = load.class_texts(class);
        ClassReport {
            name,
            class,
            service: times,
            ledger,
            response_us: response.summary(),
            service_us: service.summary(),
            calm,
        }
    };
    if tally.classes.is_empty() {
        let calm = CalmClass { ledger: counted.ledger, response_us: counted.report().response_us };
        return vec![report(1, tally.measured, &tally.response(), &tally.service, calm)];
    }
    let calm = counted
        .classes
        .iter()
        .map(|(ledger, latency)| CalmClass { ledger: *ledger, response_us: latency.summary() });
    let all = (1..).zip(&tally.classes).zip(calm);
    all.map(|((class, of), calm)| report(class, of.ledger, &of.response, &of.service, calm))
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
    fn write_latencies(&self, out: &mut String) -> fmt::Result {
        write!(out, "  {:<22}", "us")?;
        for name in ["p50", "p90", "p99", "p99.9", "p99.99", "mean", "max"] {
            write!(out, "{name:>10}")?;
        }
        writeln!(out)?;
        write_row(out, "response (from due)", &self.response_us)?;
        write_confidence(out, &self.response_ci95_us)?;
        write_row(out, "  in calm slices", &self.calm.response_us)?;
        write_confidence(out, &self.calm.response_ci95_us)?;
        write_row(out, "service (from sent)", &self.service_us)?;
        if self.classes.len() > 1 {
            self.write_classes(out)?;
        }
        if let Some(floor) = &self.floor_us {
            write_row(out, "floor (no scheduler)", floor)?;
        }
        Ok(())
    }

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

fn write_confidence(out: &mut String, ci: &Confidence) -> fmt::Result {
    let of = |value: Micros| match value.0.is_nan() {
        true => "-".to_owned(),
        false => format!("+-{value}"),
    };
    let (p50, p99, mean) = (of(ci.p50), of(ci.p99), of(ci.mean));
    writeln!(out, "  {:<22}{p50:>10}{:>10}{p99:>10}{:>20}{mean:>10}", "  95% confidence", "", "")
}

/// Columns of a row's name; longer names shift their row.
const NAME_COLUMNS: usize = 22;

fn write_row(out: &mut String, name: &str, summary: &LatencySummary) -> fmt::Result {
    write!(out, "  {name:<NAME_COLUMNS$}")?;
    for key in FIGURES {
        write!(out, "{:>10}", summary.named(key))?;
    }
    writeln!(out)
}

/// A table with one line for each of several runs.
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
    use crate::outstanding::Flight;
    use crate::slices::{Log, Pauses, Rule};
    use crate::tally::Clock;

    fn load() -> Load {
        sliced(Load::new(1e5, "mix(0.5*fixed(5us), 0.5*fixed(9us))".parse().unwrap()))
    }

    /// With slices of 10 us.
    fn sliced(load: Load) -> Load {
        let rule = Rule { slice_s: 1e-5, pause_s: 1e-6, recovery: 1.0, cover_s: 1e-5, ..load.rule };
        Load { rule, ..load }
    }

    fn tally(classes: usize) -> Tally {
        let mut tally = Tally::new(10, classes, Log::new(1e4, 1_000_000, 1e9), Pauses::new(1000));
        let (window_ticks, late_ticks) = (100_000, 10);
        tally.begin(Clock { start: 0, window_ticks, tick_ns: 1.0, late_ticks });
        tally
    }

    /// Ten thousand tasks of 20 us; so many in a hundred late, unsent, lost.
    fn report(late: u64, unsent: u64, lost: u64) -> Report {
        report_of(&load(), late, unsent, lost, 0)
    }

    fn report_of(load: &Load, late: u64, unsent: u64, lost: u64, wrong: u64) -> Report {
        report_between(load, &[], [late, unsent, lost, wrong])
    }

    /// As [`report_of`], by a loop that looked at the clock at these times.
    fn report_between(load: &Load, looks: &[u64], found: [u64; 4]) -> Report {
        let [late, unsent, lost, wrong] = found;
        let (late, unsent, lost) = (100 * late, 100 * unsent, 100 * lost);
        let mut tally = tally(2);
        looks.iter().for_each(|now| tally.look(*now));
        for i in 0..10_000_u64 {
            let due = i * 100;
            let class = 1 + (i % 2) as u16;
            tally.schedule(due, class);
            if i < unsent {
                tally.leave(due, class);
                continue;
            }
            let sent = if i < unsent + late { due + 11 } else { due };
            let flight = Flight { due, sent, class };
            tally.send(&flight);
            if i >= 10_000 - lost {
                tally.lose(&flight);
            } else {
                tally.answer(&flight, due + 20_000, i < wrong);
            }
        }
        tally.end(1_000_000);
        let slices = tally.slices(&load.rule, &[]);
        Report::new(load, &tally, &slices, None, Manifest::for_tests(load))
    }

    #[test]
    fn verdicts() {
        let good = report(0, 0, 0);
        assert!(good.valid && good.warnings.is_empty() && good.reasons.is_empty(), "{good}");
        assert!(good.to_string().ends_with("VALID"));
        let late = report(3, 0, 0);
        assert!(late.valid && late.warnings[0].contains("97.00%"), "{late}");
        let bad = report(3, 3, 0);
        assert!(!bad.valid && bad.reasons[0].contains("94.00%"), "{bad}");
        assert!(bad.to_string().contains("INVALID: only 94.00%"));
        let silent = report(0, 0, 100);
        assert!(!silent.valid && silent.reasons[0].contains("no task was answered"));
    }

    #[test]
    fn a_run_needs_enough_calm_slices_for_the_percentile_asked_for() {
        // It stood still for 4 us: the slice with it and the ones before and after are disturbed.
        let looks: Vec<_> =
            (0..=1000).map(|i| i * 1000).filter(|at| !(501..504).contains(&(at / 1000))).collect();
        let load = load();
        let short = report_between(&load, &looks, [0; 4]);
        assert_eq!(
            (short.slices.all, short.slices.calm, short.slices.pauses),
            (100, 98, 1),
            "{short}"
        );
        assert_eq!((short.slices.thrown_tasks, short.calm.ledger.scheduled), (200, 9_800));
        assert_eq!((short.scheduled, short.slices.longest_pause_us.0), (10_000, 4.0));
        let reason = &short.reasons[0];
        assert!(
            reason.contains("98 of 100 slices are calm, with 9800 tasks; p99 needs 20, with 10000"),
            "{reason}"
        );
        assert!(reason.contains("measure for") && reason.contains("--percentile"), "{reason}");
        let rule = Rule { quantile: 0.98, ..load.rule };
        let enough = report_between(&Load { rule, ..load.clone() }, &looks, [0; 4]);
        assert!(enough.valid, "{enough}");
        assert!(
            enough
                .to_string()
                .contains("98 of 100 slices calm (98.0%); thrown away: 2 slices with 200 tasks")
        );
        // What was late or lost while it stood still is not held against it, and what was so elsewhere is.
        let bad = report_between(&Load { rule, ..load }, &looks, [0, 6, 0, 0]);
        assert!(!bad.valid && bad.reasons[0].contains("93.88%"), "{bad}");
    }

    #[test]
    fn a_run_that_is_disturbed_everywhere_is_invalid_and_says_what_to_do() {
        let looks: Vec<_> = (0..=500).map(|i| i * 2_000).collect();
        let report = report_between(&load(), &looks, [0; 4]);
        assert_eq!(
            (report.slices.calm, report.slices.thrown_tasks, report.valid),
            (0, 10_000, false)
        );
        let reason = &report.reasons[0];
        assert!(
            reason.contains("stops its CPUs too often") && reason.contains("keep other work off"),
            "{reason}"
        );
        assert!(report.calm.response_us.p99.0.is_nan() && report.response_us.p99.0.is_finite());
        assert!(report.to_string().contains("INVALID: 0 of 100 slices are calm"), "{report}");
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
            "calm",
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
    fn one_class_is_the_whole() {
        let load = Load::new(1e5, "exp(5us)".parse().unwrap());
        let mut tally = tally(1);
        tally.schedule(5, 1);
        let flight = Flight { due: 5, sent: 5, class: 1 };
        tally.send(&flight);
        tally.answer(&flight, 2_005, false);
        tally.end(1_000_000);
        let slices = tally.slices(&load.rule, &[]);
        let report = Report::new(&load, &tally, &slices, None, Manifest::for_tests(&load));
        let [class] = &report.classes[..] else { panic!("{:?}", report.classes) };
        assert_eq!((class.class, class.name.as_str(), class.ledger.answered), (1, "exp(5us)", 1));
        assert_eq!(class.response_us, report.response_us);
        assert_eq!(class.calm.response_us, report.calm.response_us);
    }

    #[test]
    fn wrong_answers_make_a_run_invalid() {
        let report = report_of(&Load { verify: true, ..load() }, 0, 0, 0, 2);
        assert!(!report.valid && report.reasons[0].contains("2 answers are wrong"), "{report}");
        assert!(report.to_string().contains("answers checked: 2 wrong of 10000"), "{report}");
        assert_eq!((report.verified, report.wrong), (true, 2));
    }

    #[test]
    fn csv_has_a_row_for_each_report_under_one_header() {
        let text = csv(&[report(0, 0, 0), report(0, 0, 50)]).unwrap();
        let mut reader = csv::Reader::from_reader(text.as_bytes());
        let column = reader.headers().unwrap().iter().position(|key| key == "response_us.p99");
        let values: Vec<_> =
            reader.records().map(|record| record.unwrap()[column.unwrap()].to_owned()).collect();
        assert_eq!(values[1], "inf");
        assert!((values[0].parse::<f64>().unwrap() - 20.0).abs() < 0.05);
    }

    #[test]
    fn a_sweep_is_a_table() {
        let text = table(&[report(0, 0, 0), report(0, 20, 0)]);
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines.len(), 3);
        assert!(lines[1].ends_with("valid") && lines[2].ends_with("INVALID"), "{text}");
    }
}
