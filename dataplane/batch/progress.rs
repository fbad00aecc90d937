//! Progress of a batch: the work that it has completed, as CPU time, lines of output or a counter. The job's decisions
//! and the figures in its note use it.

use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::thread::JoinHandle;

/// Maximum number of bytes that are read before a part of a line is forwarded.
const PART_MAX: u64 = 64 * 1024;

/// Environment variable with the path of the counter file.
pub const COUNTER: &str = "WEDJAT_PROGRESS";

/// Measure of progress.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Measure {
    /// Seconds of CPU time.
    #[default]
    Cpu,
    /// Lines of output that contain this text.
    Lines(String),
    /// A counter in a file of 8 bytes, little-endian, which the batch may map. [`COUNTER`] holds its path.
    Counter,
}

impl FromStr for Measure {
    type Err = String;

    /// Parses `cpu`, `lines=TEXT` or `counter`. The error names these values.
    fn from_str(text: &str) -> Result<Self, String> {
        match (text, text.strip_prefix("lines=")) {
            ("cpu", _) => Ok(Self::Cpu),
            ("counter", _) => Ok(Self::Counter),
            (_, Some(line)) if !line.is_empty() => Ok(Self::Lines(line.to_owned())),
            _ => Err(format!(
                "{text:?}: not a measure of progress; allowed: cpu, lines=TEXT or counter"
            )),
        }
    }
}

/// Source of a running batch's progress.
#[derive(Debug)]
pub enum ProgressSource {
    /// CPU time of its cgroup.
    Cpu,
    /// Lines of its output.
    Lines {
        /// Number of matching lines.
        count: Arc<AtomicU64>,
        /// Thread that forwards the output.
        thread: JoinHandle<()>,
    },
    /// Counter file.
    Counter(PathBuf),
}

impl ProgressSource {
    /// Returns the completed work in the unit of its [`Measure`], given the CPU time of the cgroup.
    #[must_use]
    pub fn done(&self, cpu_ns: Option<u64>) -> f64 {
        match self {
            Self::Cpu => cpu_ns.unwrap_or(0) as f64 / 1e9,
            Self::Lines { count, .. } => count.load(Relaxed) as f64,
            Self::Counter(path) => counter(path) as f64,
        }
    }

    /// Waits until all output of an ended batch has been forwarded. Returns the completed work as
    /// [`ProgressSource::done`].
    #[must_use]
    pub fn end(self, cpu_ns: Option<u64>) -> f64 {
        match self {
            Self::Lines { count, thread } => {
                let _ = thread.join(); // the thread cannot panic
                count.load(Relaxed) as f64
            }
            other => other.done(cpu_ns),
        }
    }
}

/// Reads a counter file; 0 if it is invalid.
fn counter(path: &Path) -> u64 {
    let mut bytes = [0; 8];
    let read = fs::File::open(path).and_then(|mut file| file.read_exact(&mut bytes));
    read.map_or(0, |()| u64::from_le_bytes(bytes))
}

/// Forwards output and counts the lines that contain `text`. Lines that are not UTF-8 count, too. Forwards a long line
/// in parts, so that output without line ends needs little memory. `text` is not empty.
///
/// # Errors
/// If no thread can be started.
pub fn count_lines(
    input: impl Read + Send + 'static,
    mut output: impl Write + Send + 'static,
    text: String,
) -> io::Result<ProgressSource> {
    let count = Arc::new(AtomicU64::new(0));
    let thread_count = Arc::clone(&count);
    let forward = move || {
        let (mut input, mut line) = (BufReader::new(input), Vec::new());
        // `line` begins with this many bytes of the last part of the same line, which are already forwarded.
        let mut forwarded = 0;
        let (mut is_open, mut is_counted) = (true, false);
        while input.by_ref().take(PART_MAX).read_until(b'\n', &mut line).is_ok_and(|read| read > 0)
        {
            let matches = line.windows(text.len()).any(|part| part == text.as_bytes());
            thread_count.fetch_add(u64::from(matches && !is_counted), Relaxed);
            // The reader of the output may have exited. The thread still reads, so that the batch continues.
            let part = &line[forwarded..];
            is_open = is_open && output.write_all(part).and_then(|()| output.flush()).is_ok();
            let is_end = line.ends_with(b"\n");
            is_counted = !is_end && (is_counted || matches);
            // Keeps the end of an unfinished line, because the text may begin there.
            let kept = if is_end { 0 } else { line.len().min(text.len() - 1) };
            line.drain(..line.len() - kept);
            forwarded = kept;
        }
    };
    let thread = std::thread::Builder::new().name("wedjat-output".to_owned()).spawn(forward)?;
    Ok(ProgressSource::Lines { count, thread })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn measures_are_known_by_their_names() {
        assert_eq!("cpu".parse(), Ok(Measure::Cpu));
        assert_eq!("counter".parse(), Ok(Measure::Counter));
        assert_eq!("lines=done=1".parse(), Ok(Measure::Lines("done=1".to_owned())));
        for wrong in ["", "lines", "lines=", "time"] {
            assert!(wrong.parse::<Measure>().unwrap_err().contains("lines=TEXT"), "{wrong}");
        }
    }

    #[test]
    fn progress_lines_are_counted_and_forwarded() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out");
        let text = b"frame 1\nnothing\n\xFF frame 2\nframe 3 without an end";
        let reading =
            count_lines(&text[..], fs::File::create(&path).unwrap(), "frame".to_owned()).unwrap();
        assert_eq!(reading.end(None), 3.0);
        assert_eq!(fs::read(&path).unwrap(), text);
    }

    #[test]
    fn long_line_counts_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out");
        let part = PART_MAX as usize;
        // The first line has the text across two parts and once more. The second line is as long, without the text.
        let mut text = vec![b'.'; part - 3];
        text.extend(b"frame");
        text.resize(3 * part, b'.');
        text.extend(b"frame\n");
        text.resize(6 * part, b'.');
        text.extend(b"\nframe\n");
        let output = fs::File::create(&path).unwrap();
        let reading = count_lines(io::Cursor::new(text.clone()), output, "frame".to_owned());
        assert_eq!(reading.unwrap().end(None), 2.0);
        assert!(fs::read(&path).unwrap() == text);
    }

    #[test]
    fn output_without_line_ends_is_forwarded_in_parts() {
        /// Writer that sends the length of each write.
        struct Lengths(std::sync::mpsc::Sender<usize>);
        impl Write for Lengths {
            fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
                self.0.send(bytes.len()).map_err(io::Error::other)?;
                Ok(bytes.len())
            }

            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let (sender, lengths) = std::sync::mpsc::channel();
        let input = io::repeat(b'.').take(10 * PART_MAX);
        let reading = count_lines(input, Lengths(sender), "frame".to_owned()).unwrap();
        assert_eq!(reading.end(None), 0.0);
        let lengths: Vec<_> = lengths.into_iter().collect();
        assert_eq!(lengths.iter().sum::<usize>() as u64, 10 * PART_MAX);
        assert!(lengths.iter().all(|length| *length as u64 <= PART_MAX));
    }

    #[test]
    fn progress_counter_file_is_read_or_ignored() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("counter");
        let reading = ProgressSource::Counter(path.clone());
        assert_eq!(reading.done(None), 0.0);
        fs::write(&path, [1, 2, 3]).unwrap();
        assert_eq!(reading.done(None), 0.0);
        fs::write(&path, 77_u64.to_le_bytes()).unwrap();
        assert_eq!(reading.done(None), 77.0);
        assert_eq!(ProgressSource::Cpu.done(Some(1_500_000_000)), 1.5);
    }
}
