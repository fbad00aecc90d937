//! Rows of a task log: one row for each task, written and read as CSV. `--log-tasks` of each command with runs writes
//! it, and the commands `plot` and `advise` read it.

use std::collections::BTreeMap;
use std::fmt;
use std::io::{self, Write};
use std::path::Path;
use std::str::FromStr;

use csv::StringRecord;
use wedjat_core::state::files;

use super::run_description::RunDescription;

/// Columns of the file, in order.
pub const COLUMNS: [&str; 19] = [
    "run",
    "model",
    "policy",
    "load",
    "offered_pps",
    "setting",
    "seed",
    "task",
    "pool",
    "class",
    "worker",
    "scheduled_ns",
    "sent_ns",
    "answered_ns",
    "service_ns",
    "response_ns",
    "status",
    "measured",
    "late",
];

/// End of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// A worker answered it.
    Answered,
    /// A worker answered it, and the check of its contents failed.
    Wrong,
    /// A scheduler returned it undone.
    Refused,
    /// It was sent and not answered.
    Lost,
    /// It was due and never sent.
    Unsent,
}

impl Status {
    /// Every status with its name in the file.
    pub const ALL: [(Self, &str); 5] = [
        (Self::Answered, "answered"),
        (Self::Wrong, "wrong"),
        (Self::Refused, "refused"),
        (Self::Lost, "lost"),
        (Self::Unsent, "unsent"),
    ];

    /// Returns true if the task has a response time.
    #[must_use]
    pub fn has_response(self) -> bool {
        matches!(self, Self::Answered | Self::Wrong)
    }

    /// Returns the index in [`Status::ALL`], which has the order of the variants.
    #[must_use]
    pub fn index(self) -> usize {
        self as usize
    }
}

/// A task of a run. Times count in picoseconds from the start of the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Task {
    /// Number in the order of the due times, within its pool.
    pub number: u64,
    /// Pool; in a simulated fabric the number of the spine scheduler.
    pub pool: u32,
    /// Class; 0 if unknown.
    pub class: u16,
    /// Worker that answered, if known.
    pub worker: Option<u32>,
    /// Due time.
    pub scheduled_ps: u64,
    /// Send time; `None` if the task was not sent.
    pub sent_ps: Option<u64>,
    /// Requested service time, at a worker of speed 1; in a capture the measured one, at average speed. `None` if
    /// unknown.
    pub service_ps: Option<u64>,
    /// Time from the due time to the answer; `None` without an answer.
    pub response_ps: Option<u64>,
    /// End of the task.
    pub status: Status,
    /// False for tasks of the warm-up.
    pub measured: bool,
    /// True if the task was sent after its due time by more than the tolerance.
    pub late: bool,
}

/// All tasks of one run with one seed.
#[derive(Clone, Debug, PartialEq)]
pub struct RunTasks {
    /// Number of the run in its report, from 1. Runs that differ only in their seed share it.
    pub run: usize,
    /// Description of the run.
    pub description: RunDescription,
    /// Seed.
    pub seed: u64,
    /// The tasks.
    pub tasks: Vec<Task>,
}

/// Picoseconds, printed as nanoseconds with up to three decimals.
struct Ns(u64);

impl fmt::Display for Ns {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.0 / 1000, self.0 % 1000) {
            (ns, 0) => write!(f, "{ns}"),
            (ns, ps) if ps.is_multiple_of(100) => write!(f, "{ns}.{}", ps / 100),
            (ns, ps) if ps.is_multiple_of(10) => write!(f, "{ns}.{:02}", ps / 10),
            (ns, ps) => write!(f, "{ns}.{ps:03}"),
        }
    }
}

/// A value, or an empty field.
struct Field<T>(Option<T>);

impl<T: fmt::Display> fmt::Display for Field<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.as_ref().map_or(Ok(()), |value| value.fmt(f))
    }
}

/// Writes the header of the file.
///
/// # Errors
/// If the output cannot be written.
pub fn write_header(out: &mut impl Write) -> io::Result<()> {
    writeln!(out, "{}", COLUMNS.join(","))
}

/// Writes the rows of a run.
///
/// # Errors
/// If the output cannot be written.
pub fn write_rows(out: &mut impl Write, run: &RunTasks) -> io::Result<()> {
    let RunTasks { run, description, seed, tasks } = run;
    // The columns of the run are equal in all rows, so they are quoted as CSV needs only once. No other column needs
    // quotes.
    let mut columns = csv::Writer::from_writer(Vec::new());
    columns.write_record([
        run.to_string(),
        description.model.clone(),
        description.policy.clone(),
        Field(description.load).to_string(),
        Field(description.offered_pps).to_string(),
        description.setting.clone(),
        seed.to_string(),
    ])?;
    let columns = columns.into_inner().map_err(|error| io::Error::other(error.to_string()))?;
    let columns = String::from_utf8_lossy(&columns);
    let columns = columns.trim_end();
    for task in tasks {
        let answered = task.response_ps.map(|response| Ns(task.scheduled_ps + response));
        writeln!(
            out,
            "{columns},{},{},{},{},{},{},{},{},{},{},{},{}",
            task.number,
            task.pool,
            task.class,
            Field(task.worker),
            Ns(task.scheduled_ps),
            Field(task.sent_ps.map(Ns)),
            Field(answered),
            Field(task.service_ps.map(Ns)),
            Field(task.response_ps.map(Ns)),
            Status::ALL[task.status.index()].1,
            u8::from(task.measured),
            u8::from(task.late),
        )?;
    }
    Ok(())
}

/// Reads a file as [`write_rows`] writes it. Only `scheduled_ns`, `response_ns` and `status` are required.
/// Further columns are ignored.
///
/// # Errors
/// The file, the line, and the reason.
pub fn read(path: &Path) -> Result<Vec<RunTasks>, String> {
    let name = path.display();
    let file = files::open_regular(path).map_err(|error| format!("{name}: {error}"))?;
    read_rows(file).map_err(|(line, reason)| match line {
        Some(line) => format!("{name}, line {line}: {reason}"),
        None => format!("{name}: {reason}"),
    })
}

/// Line and reason of a fault in the file.
type RowError = (Option<u64>, String);

/// Reads all rows, grouped by run and seed, in ascending order: callers merge successive seeds of a run.
fn read_rows(file: impl io::Read) -> Result<Vec<RunTasks>, RowError> {
    let mut reader = csv::Reader::from_reader(io::BufReader::with_capacity(1 << 16, file));
    let fault = |error: csv::Error| {
        let reason = match error.kind() {
            csv::ErrorKind::UnequalLengths { expected_len, len, .. } => {
                format!("{len} fields, but the header has {expected_len}")
            }
            csv::ErrorKind::Utf8 { .. } => "it is not text in UTF-8".to_owned(),
            _ => error.to_string(),
        };
        (error.position().map(csv::Position::line), reason)
    };
    let header = Header::new(reader.headers().map_err(fault)?).map_err(|text| (Some(1), text))?;
    let mut runs: BTreeMap<(usize, u64), RunTasks> = BTreeMap::new();
    let mut record = StringRecord::new();
    let mut count = 0;
    while reader.read_record(&mut record).map_err(fault)? {
        let line = record.position().map(csv::Position::line);
        let row = Row { header: &header, record: &record };
        let (run, seed, description, task) = row.parse(count).map_err(|text| (line, text))?;
        let entry = runs.entry((run, seed)).or_insert_with(|| RunTasks {
            run,
            description: description.clone(),
            seed,
            tasks: Vec::new(),
        });
        if entry.description != description {
            let reason = format!(
                "run {run} is {} here and {} before; give each run its own number",
                description.label(),
                entry.description.label()
            );
            return Err((line, reason));
        }
        entry.tasks.push(task);
        count += 1;
    }
    if runs.is_empty() {
        return Err((None, "it has no row; --log-tasks writes one row per task".to_owned()));
    }
    Ok(runs.into_values().collect())
}

/// Position of each column.
struct Header([Option<usize>; COLUMNS.len()]);

/// Columns without which no figure can be computed.
const REQUIRED: [&str; 3] = ["scheduled_ns", "response_ns", "status"];

impl Header {
    /// Finds the columns in the first line. Columns may be in any order.
    ///
    /// # Errors
    /// If a required column is missing.
    fn new(record: &StringRecord) -> Result<Self, String> {
        let place = |column: &str| record.iter().position(|name| name.trim() == column);
        match REQUIRED.into_iter().find(|column| place(column).is_none()) {
            Some(missing) => Err(format!(
                "the header has no column {missing}; the first line must name the columns that --log-tasks writes"
            )),
            None => Ok(Self(COLUMNS.map(place))),
        }
    }
}

/// A line of the file.
struct Row<'a> {
    /// Position of each column.
    header: &'a Header,
    /// Fields of the line.
    record: &'a StringRecord,
}

impl Row<'_> {
    /// Returns the field of a column; `None` if it is empty or missing.
    fn field(&self, column: &str) -> Option<&str> {
        let index = COLUMNS.iter().position(|name| *name == column)?;
        self.record.get(self.header.0[index]?).map(str::trim).filter(|text| !text.is_empty())
    }

    /// Parses the field of a column; `None` if it is empty or missing. `allowed` describes the values for errors.
    fn value<T: FromStr>(&self, column: &str, allowed: &str) -> Result<Option<T>, String> {
        let Some(text) = self.field(column) else { return Ok(None) };
        let value = text.parse().map_err(|_| field_error(column, text, allowed))?;
        Ok(Some(value))
    }

    /// Parses a time in nanoseconds; returns picoseconds.
    fn ps(&self, column: &str) -> Result<Option<u64>, String> {
        let Some(text) = self.field(column) else { return Ok(None) };
        let ps = ps_of(text)
            .ok_or_else(|| field_error(column, text, "nanoseconds with up to three decimals"))?;
        if ps > PS_MAX {
            return Err(field_error(column, text, "a time of at most 53 days"));
        }
        Ok(Some(ps))
    }

    /// Parses a flag, as this program or Python writes it.
    fn flag(&self, column: &str, default: bool) -> Result<bool, String> {
        match self.field(column) {
            None => Ok(default),
            Some("1" | "true" | "True") => Ok(true),
            Some("0" | "false" | "False") => Ok(false),
            Some(text) => Err(field_error(column, text, "0 or 1")),
        }
    }

    /// Parses the line into run number, seed, description and task. Without these fields, the task's number is `count`
    /// (the number of rows before it), the run is 1, the seed is 0, and the task is measured.
    fn parse(&self, count: u64) -> Result<(usize, u64, RunDescription, Task), String> {
        const WHOLE: &str = "a whole number";
        let text = |column| self.field(column).unwrap_or_default().to_owned();
        let number = |column| match self.value::<f64>(column, "a number")? {
            Some(value) if !value.is_finite() => {
                Err(field_error(column, &value.to_string(), "a finite number"))
            }
            value => Ok(value),
        };
        let description = RunDescription {
            model: text("model"),
            policy: text("policy"),
            load: number("load")?,
            offered_pps: number("offered_pps")?,
            setting: text("setting"),
        };
        let name = self.field("status").unwrap_or_default();
        let status = Status::ALL.iter().find(|(_, known)| *known == name);
        let names = || Status::ALL.map(|(_, name)| name).join(", ");
        let &(status, _) = status.ok_or_else(|| field_error("status", name, &names()))?;
        let response_ps = self.ps("response_ns")?;
        if status.has_response() != response_ps.is_some() {
            let fill = if status.has_response() { "empty" } else { "given" };
            return Err(format!("status is {name}, but response_ns is {fill}"));
        }
        let scheduled_ps = self.ps("scheduled_ns")?;
        let task = Task {
            number: self.value("task", WHOLE)?.unwrap_or(count),
            pool: self.value("pool", WHOLE)?.unwrap_or_default(),
            class: self.value("class", WHOLE)?.unwrap_or_default(),
            worker: self.value("worker", WHOLE)?,
            scheduled_ps: scheduled_ps.ok_or("scheduled_ns is empty")?,
            sent_ps: self.ps("sent_ns")?,
            service_ps: self.ps("service_ns")?,
            response_ps,
            status,
            measured: self.flag("measured", true)?,
            late: self.flag("late", false)?,
        };
        let run = self.value("run", WHOLE)?.unwrap_or(1);
        Ok((run, self.value("seed", WHOLE)?.unwrap_or_default(), description, task))
    }
}

/// Longest time of a log in picoseconds, 53 days. Sums of a due time and a response time fit into 64 bits.
const PS_MAX: u64 = u64::MAX / 4;

/// Returns the error message for a field.
fn field_error(column: &str, text: &str, allowed: &str) -> String {
    format!("{column} is `{text}`, but must be {allowed}")
}

/// Parses nanoseconds with up to three decimals; returns picoseconds. Further decimals must be zeros. Uses no float,
/// which would round long times.
fn ps_of(text: &str) -> Option<u64> {
    let (whole, decimals) = text.split_once('.').unwrap_or((text, ""));
    let decimals = decimals.trim_end_matches('0');
    let is_number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if decimals.len() > 3 || !is_number(decimals) || !is_number(whole) {
        return None;
    }
    let ps: u64 = format!("{decimals:0<3}").parse().ok()?;
    whole.parse::<u64>().ok()?.checked_mul(1000)?.checked_add(ps)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Returns a run of two tasks. Its policy has characters that CSV must quote.
    fn log() -> RunTasks {
        let description = RunDescription {
            model: "rack".to_owned(),
            policy: "jbsq(k=2),\"x\"".to_owned(),
            load: Some(0.9),
            offered_pps: None,
            setting: "hop=5us".to_owned(),
        };
        let answered = Task {
            number: 0,
            pool: 1,
            class: 2,
            worker: Some(7),
            scheduled_ps: 1_000_500,
            sent_ps: Some(1_000_500),
            service_ps: Some(50_000),
            response_ps: Some(123_456),
            status: Status::Answered,
            measured: true,
            late: false,
        };
        let lost = Task {
            number: 1,
            worker: None,
            response_ps: None,
            status: Status::Lost,
            measured: false,
            late: true,
            ..answered
        };
        RunTasks { run: 3, description, seed: 9, tasks: vec![answered, lost] }
    }

    /// Returns the log of a run as text.
    fn text_of(run: &RunTasks) -> String {
        let mut out = Vec::new();
        write_header(&mut out).unwrap();
        write_rows(&mut out, run).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn written_rows_are_read_back() {
        let text = text_of(&log());
        let expected = "0,1,2,7,1000.5,1000.5,1123.956,50,123.456,answered,1,0";
        assert!(text.lines().nth(1).unwrap().ends_with(expected), "{text}");
        assert_eq!(read_rows(text.as_bytes()).unwrap(), [log()]);
    }

    #[test]
    fn three_columns_suffice() {
        let text = "status,note,response_ns,scheduled_ns\nanswered,x,5,0\nlost,,,7.25\n";
        let runs = read_rows(text.as_bytes()).unwrap();
        let [first, second] = runs[0].tasks[..] else { panic!("{runs:?}") };
        assert_eq!((first.response_ps, first.measured), (Some(5000), true));
        assert_eq!((second.number, second.scheduled_ps), (1, 7250));
    }

    #[test]
    fn faults_name_line_and_reason() {
        let header = "scheduled_ns,response_ns,status,run,policy,measured\n";
        for (rows, line, part) in [
            ("", None, "it has no row"),
            (
                "1,2,answered,1,a,1\nx,2,answered,1,a,1\n",
                Some(3),
                "scheduled_ns is `x`, but must be",
            ),
            ("1,2.1234,answered,1,a,1\n", Some(2), "three decimals"),
            ("18446744073709551,1,answered,1,a,1\n", Some(2), "at most 53 days"),
            ("1,-2,answered,1,a,1\n", Some(2), "response_ns is `-2`"),
            ("1,,answered,1,a,1\n", Some(2), "response_ns is empty"),
            ("1,2,lost,1,a,1\n", Some(2), "response_ns is given"),
            ("1,2,done,1,a,1\n", Some(2), "answered, wrong, refused, lost, unsent"),
            (",2,answered,1,a,1\n", Some(2), "scheduled_ns is empty"),
            ("1,2,answered,1,a,yes\n", Some(2), "measured is `yes`, but must be 0 or 1"),
            ("1,2,answered,1\n", Some(2), "4 fields, but the header has 6"),
            ("1,2,answered,1,a,1\n1,2,answered,1,b,1\n", Some(3), "run 1 is b here and a before"),
        ] {
            let (at, reason) = read_rows(format!("{header}{rows}").as_bytes()).unwrap_err();
            assert!(at == line && reason.contains(part), "{at:?} {reason}: {rows}");
        }
        let not_finite = &b"scheduled_ns,response_ns,status,load\n1,2,answered,NaN\n"[..];
        let (_, reason) = read_rows(not_finite).unwrap_err();
        assert!(reason.contains("load is `NaN`, but must be a finite number"), "{reason}");
        let (at, reason) = read_rows(&b"scheduled_ns,status\n1,lost\n"[..]).unwrap_err();
        assert!(at == Some(1) && reason.contains("no column response_ns"), "{reason}");
        let (_, reason) =
            read_rows(&b"scheduled_ns,response_ns,status\n\xFF,1,x\n"[..]).unwrap_err();
        assert!(reason.contains("UTF-8"), "{reason}");
        let error = read(Path::new("/no/tasks.csv")).unwrap_err();
        assert!(error.starts_with("/no/tasks.csv: No such file"), "{error}");
    }

    proptest! {
        #[test]
        fn times_round_trip(ps in 0..u64::MAX / 1000) {
            prop_assert_eq!(ps_of(&Ns(ps).to_string()), Some(ps));
        }

        #[test]
        fn random_text_never_panics(text in ".{0,80}") {
            let rows = format!("scheduled_ns,response_ns,status\n{text}\n");
            let _ = read_rows(rows.as_bytes());
            let _ = read_rows(text.as_bytes());
        }
    }
}
