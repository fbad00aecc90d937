//! Synthetic batch jobs for measurements of co-scheduling, in which a batch job uses the idle time of the workers'
//! cores. Four loops use a core in different ways. Each counts its work, to show how much of a core it got.

use std::fs::File;
use std::hash::{DefaultHasher, Hasher};
use std::hint::black_box;
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::str::FromStr;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use clap::ValueEnum;
use serde::Serialize;

/// Bytes per counted unit of work, except for gzip, which counts writes of [`WRITE_BYTES`].
const UNIT_BYTES: usize = 1 << 20;
/// Bytes of each buffer for the memory copy, larger than any cache.
const STREAM: usize = 64 << 20;
/// Bytes per write to gzip, few enough that the pipe blocks only for a short time.
const WRITE_BYTES: usize = 1 << 16;
/// Units of a serial stage. A parallel stage divides the same number among its threads.
const STAGE: usize = 100;
/// Threads of a parallel stage.
const THREADS: usize = 4;

/// Kind of synthetic batch job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Batch {
    /// Hashes data in the caches: uses the core only; counts MiB
    Hash,
    /// Copies more data than the caches hold: uses the memory's bandwidth; counts MiB
    Memory,
    /// Writes to gzip, a process of its own behind a pipe; counts units of 64 KiB
    Compress,
    /// Hashes in one thread, then in four, in turn; counts MiB
    SerialThenParallel,
}

impl Batch {
    /// All batch jobs.
    pub const ALL: [Self; 4] = [Self::Hash, Self::Memory, Self::Compress, Self::SerialThenParallel];

    /// Returns the name used on command lines.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Hash => "hash",
            Self::Memory => "memory",
            Self::Compress => "compress",
            Self::SerialThenParallel => "serial-then-parallel",
        }
    }

    /// Works until `units` are done, or forever if `None`. Writes the number of completed units into the existing
    /// file `counter`, if there is one, as 8 bytes in little-endian order.
    ///
    /// # Errors
    /// If the counter file cannot be opened or written, or gzip cannot run.
    pub fn run(self, units: Option<u64>, counter: Option<&Path>) -> io::Result<()> {
        let progress = WorkDone::open(units.unwrap_or(u64::MAX), counter)?;
        match self {
            Self::Hash => hash(&progress, usize::MAX),
            Self::Memory => stream(&progress),
            Self::Compress => compress(&progress),
            Self::SerialThenParallel => in_stages(&progress),
        }
    }
}

impl FromStr for Batch {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        <Self as ValueEnum>::from_str(text, false)
            .map_err(|_| format!("unknown batch {text:?}; batches are {}", names()))
    }
}

/// Returns the names of all batch jobs.
fn names() -> String {
    Batch::ALL.map(Batch::name).join(", ")
}

/// Count of completed units, shared by the threads of a job.
struct WorkDone {
    units: AtomicU64,
    /// Number of units after which the job ends.
    limit: u64,
    /// Counter file, if there is one.
    file: Option<File>,
}

impl WorkDone {
    /// Starts counting at 0 up to `limit`. Opens the existing file `counter`, if there is one, for the count.
    fn open(limit: u64, counter: Option<&Path>) -> io::Result<Self> {
        let open = |path| File::options().write(true).open(path);
        Ok(Self { units: AtomicU64::new(0), limit, file: counter.map(open).transpose()? })
    }

    /// Counts one more unit, and writes the count into the file. Returns false once the limit is reached.
    ///
    /// The order of the threads does not matter (relaxed): the file may lag by their latest units.
    fn count(&self) -> io::Result<bool> {
        let units = self.units.fetch_add(1, Relaxed) + 1;
        if let Some(file) = &self.file {
            file.write_all_at(&units.to_le_bytes(), 0)?;
        }
        Ok(units < self.limit)
    }

    /// Returns true if all units are done.
    fn is_over(&self) -> bool {
        self.units.load(Relaxed) >= self.limit
    }
}

/// Hashes `units` units, or fewer if the job's limit comes first.
fn hash(progress: &WorkDone, units: usize) -> io::Result<()> {
    let data = vec![0x5A_u8; UNIT_BYTES / 16];
    for _ in 0..units {
        if progress.is_over() {
            break;
        }
        let mut hasher = DefaultHasher::new();
        // Repeats one sixteenth of a unit, which stays in the caches.
        (0..16).for_each(|_| hasher.write(black_box(&data)));
        black_box(hasher.finish());
        progress.count()?;
    }
    Ok(())
}

/// Copies one large buffer into another, unit by unit, until all units are done.
fn stream(progress: &WorkDone) -> io::Result<()> {
    let (source, mut target) = (vec![1_u8; STREAM], vec![2_u8; STREAM]);
    loop {
        for (source, target) in source.chunks(UNIT_BYTES).zip(target.chunks_mut(UNIT_BYTES)) {
            target.copy_from_slice(black_box(source));
            if !progress.count()? {
                return Ok(());
            }
        }
        black_box(&mut target);
    }
}

/// Writes the same text to gzip repeatedly, a unit per write.
fn compress(progress: &WorkDone) -> io::Result<()> {
    let mut gzip = Command::new("gzip");
    gzip.arg("-c").stdin(Stdio::piped()).stdout(Stdio::null());
    let named = |error: io::Error| io::Error::new(error.kind(), format!("gzip: {error}"));
    let mut child = gzip.spawn().map_err(named)?;
    let Some(mut input) = child.stdin.take() else { return Err(io::ErrorKind::BrokenPipe.into()) };
    // Text of 4099 different words that recur in pseudo-random order, so that it compresses like a real text. The
    // numbers are from Knuth's linear congruential generator (MMIX).
    let (mut state, mut text) = (1_u64, Vec::with_capacity(WRITE_BYTES + 16));
    while text.len() < WRITE_BYTES {
        state = state.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(0x1405_7B7E_F767_814F);
        write!(text, "{:x} ", (state >> 32) % 4099)?;
    }
    loop {
        input.write_all(&text[..WRITE_BYTES]).map_err(named)?;
        if !progress.count()? {
            break;
        }
    }
    // The end of its input ends gzip.
    drop(input);
    child.wait().map(|_| ())
}

/// Runs serial and parallel stages in turn, all of them hashing.
fn in_stages(progress: &WorkDone) -> io::Result<()> {
    while !progress.is_over() {
        hash(progress, STAGE)?;
        std::thread::scope(|scope| {
            let threads: Vec<_> =
                (0..THREADS).map(|_| scope.spawn(|| hash(progress, STAGE / THREADS))).collect();
            let panicked = |_| io::Error::other("a thread of the batch panicked");
            threads.into_iter().try_for_each(|thread| thread.join().map_err(panicked)?)
        })?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batch_counts_its_work_in_the_file() {
        let folder = tempfile::tempdir().unwrap();
        for batch in Batch::ALL {
            let path = folder.path().join(batch.name());
            std::fs::write(&path, [0; 8]).unwrap();
            batch.run(Some(5), Some(&path)).unwrap();
            let count = u64::from_le_bytes(std::fs::read(&path).unwrap().try_into().unwrap());
            // Five units end in the first serial stage. In a parallel stage, threads that are still working when the
            // last unit is done would count theirs, too.
            assert!((5..5 + THREADS as u64).contains(&count), "{}: {count}", batch.name());
            assert_eq!(batch.name().parse(), Ok(batch));
        }
    }

    #[test]
    fn invalid_batch_and_missing_counter_are_reported() {
        assert!("sort".parse::<Batch>().unwrap_err().contains("hash, memory, compress"));
        let nowhere = Path::new("/nowhere/counter");
        assert!(Batch::Hash.run(Some(1), Some(nowhere)).is_err());
    }
}
