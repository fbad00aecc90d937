//! State file: copies of a node's memory for other processes, written from time to time. A node's state
//! ([`super::Table`]) owns the [`Publisher`]; commands such as `wedjat top` read the newest copy ([`newest`]).
//!
//! The node works on private memory that no other process can take away. The packet path never touches the
//! file. A thread with idle priority writes copies into the file. Other processes can at worst make a write
//! fail; the thread then tries again.
//!
//! A mapped file could end the node by SIGBUS: another process may shorten it, and the disk may be full. The
//! alternative was a memfd that readers map. It needs no copies, but ends with the node; neither `cp` nor members of a
//! group can read it. A copy of 70 KiB takes 0.1 ms.
//!
//! The file begins with [`HEAD`] bytes, starting with the words of [`word`]. Two places for copies follow.
//! Copy number n is written to place n modulo 2; then the head names it. The named copy therefore stays
//! intact until the next one is complete, even if the node is killed during a write. The *mark*, a checksum of the
//! whole copy, shows a reader whether the copy is consistent.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::fs::FallocateFlags;
use rustix::io::Errno;

use super::files::{self, NameLock, Scratch};
use super::region::Region;
use crate::outage::Outage;

/// "WEDJAT", and a suffix for a little-endian writer.
pub const MAGIC: u64 = u64::from_le_bytes(*b"WEDJATle");
/// Version of the file's layout. Each change of [`super::layout`] or of the head raises its upper half; a
/// change of the counters changes its lower half.
pub const VERSION: u64 = 18 << 32 | super::counters::TABLE as u64;
/// Number of bytes before the first copy.
pub const HEAD: usize = 4096;
/// Alignment of the copies' places.
const PAGE: usize = 4096;
/// Maximum size in bytes of a copy that a reader accepts, so that a damaged head cannot exhaust its memory. A node with
/// a larger state does not start with a state file.
pub const LEN_MAX: u64 = 256 << 20;
/// Time between two copies of a state of up to 1 MiB. Each further MiB adds as much.
pub const PERIOD: Duration = Duration::from_millis(50);
/// Maximum number of attempts of a reader that the writer overtakes. Reading a copy takes a small part of [`PERIOD`].
const TRIES: usize = 100;

/// Numbers of the head's words, of 64 bits each.
pub mod word {
    /// [`super::MAGIC`].
    pub const MAGIC: usize = 0;
    /// [`super::VERSION`].
    pub const VERSION: usize = 1;
    /// Size of a copy in bytes.
    pub const LEN: usize = 2;
    /// Number of the newest copy.
    pub const NUMBER: usize = 3;
    /// Mark of the newest copy.
    pub const MARK: usize = 4;
    /// Number of words.
    pub const COUNT: usize = 5;
}

/// Reason why no copy can be read.
#[derive(Debug)]
pub enum CopyError {
    /// System error.
    Io(io::Error),
    /// Not a state file.
    Foreign,
    /// Written by this other version.
    Version(u64),
    /// Damaged file, with a description of the fault.
    Damaged(String),
}

/// Returns the checksum of copy `number`. It differs, almost certainly, if the number or any word differs.
fn mark(number: u64, words: impl Iterator<Item = u64>) -> u64 {
    // FNV-1a by words. Each step is one to one, so a change of one word always shows.
    let step = |hash: u64, word: u64| (hash ^ word).wrapping_mul(0x0100_0000_01b3).rotate_left(29);
    words.fold(step(0xcbf2_9ce4_8422_2325, number), step)
}

/// Changes words of the newest copy in a state file's bytes, and updates its mark; for tests.
#[doc(hidden)]
pub fn change_words(file: &mut [u8], change: impl FnOnce(&mut [u64])) {
    let head = |index: usize| word_of(&file[8 * index..8 * index + 8]);
    let (len, number) = (head(word::LEN), head(word::NUMBER));
    let start = place(number, len) as usize;
    let copy = start..start + len as usize;
    let mut words: Vec<u64> = file[copy.clone()].chunks(8).map(word_of).collect();
    change(&mut words);
    for (bytes, word) in file[copy].chunks_exact_mut(8).zip(&words) {
        bytes.copy_from_slice(&word.to_le_bytes());
    }
    let mark = mark(number, words.into_iter());
    file[8 * word::MARK..][..8].copy_from_slice(&mark.to_le_bytes());
}

/// Returns the little-endian word of up to 8 bytes. Missing bytes are 0.
fn word_of(bytes: &[u8]) -> u64 {
    let mut word = [0; 8];
    word[..bytes.len()].copy_from_slice(bytes);
    u64::from_le_bytes(word)
}

/// Returns the offset in the file of copy `number`, of `len` bytes.
fn place(number: u64, len: u64) -> u64 {
    HEAD as u64 + (number & 1) * len.next_multiple_of(PAGE as u64)
}

/// Returns the size in bytes of a file for copies of `len` bytes.
fn file_len(len: u64) -> u64 {
    place(1, len) + len.next_multiple_of(PAGE as u64)
}

/// Returns the newest copy in a file of `file_bytes` bytes. `read_at` fills a buffer from an offset on. Tries again if
/// the writer overwrites the copy meanwhile.
///
/// # Errors
/// If there is no readable copy.
pub fn newest(
    file_bytes: u64,
    read_at: impl Fn(&mut [u8], u64) -> io::Result<()>,
) -> Result<Arc<Region>, CopyError> {
    // Reads the head's words.
    let head = || {
        let mut bytes = [0; 8 * word::COUNT];
        // Whole words of the file, if it is shorter than a head.
        let len = bytes.len().min(usize::try_from(file_bytes).unwrap_or(usize::MAX)) & !7;
        read_at(&mut bytes[..len], 0).map_err(unreadable)?;
        let mut words = [0; word::COUNT];
        words.iter_mut().zip(bytes.chunks(8)).for_each(|(word, bytes)| *word = word_of(bytes));
        // Missing words of a short file are 0. Without a whole version word the file counts as damaged.
        match words {
            [magic, ..] if magic != MAGIC => Err(CopyError::Foreign),
            [_, version, ..] if version != VERSION && len >= 16 => Err(CopyError::Version(version)),
            words => Ok(words),
        }
    };
    let mut words = head()?;
    for _ in 0..TRIES {
        let [_, _, len, number, expected] = words;
        if len > LEN_MAX || file_bytes < file_len(len) {
            let text = format!("{file_bytes} bytes long, with copies of {len}");
            return Err(CopyError::Damaged(text));
        }
        let mut bytes = vec![0; len as usize];
        read_at(&mut bytes, place(number, len)).map_err(unreadable)?;
        if mark(number, bytes.chunks(8).map(word_of)) == expected {
            let region = Region::heap(len as usize);
            let copy = region.slice::<AtomicU64>(0, len as usize / 8);
            for (word, bytes) in copy.iter().zip(bytes.chunks(8)) {
                word.store(word_of(bytes), Relaxed);
            }
            return Ok(region);
        }
        // A wrong mark under an unchanged head is a fault. Otherwise the writer has overtaken this reader.
        let now = head()?;
        if now == words {
            return Err(CopyError::Damaged("its check sum is wrong".to_owned()));
        }
        words = now; // the owner has written a new copy meanwhile
    }
    Err(CopyError::Damaged("it changed whenever it was read".to_owned()))
}

/// Converts a read error. An early end of the file counts as damage: another process has shortened it.
fn unreadable(error: io::Error) -> CopyError {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => CopyError::Damaged("it ends too early".to_owned()),
        _ => CopyError::Io(error),
    }
}

/// Writer of a region's copies into a file, until it is dropped. Writes a last copy then.
#[derive(Debug)]
pub struct Publisher {
    shared: Arc<Shared>,
    /// Thread that writes the copies; taken at the end.
    thread: Option<JoinHandle<()>>,
    /// Lock of the path.
    lock: NameLock,
}

/// State shared with the writing thread.
#[derive(Debug)]
struct Shared {
    region: Arc<Region>,
    path: PathBuf,
    /// Locked during a copy, and during changes that a copy must have all of or none.
    copies: Mutex<Copies>,
    /// True once the publisher is dropped.
    is_over: AtomicBool,
}

/// The file and its last copy.
#[derive(Debug)]
struct Copies {
    file: File,
    /// Number of the last copy.
    number: u64,
    /// Content of the last copy, read back from the file for its mark.
    written: Vec<u8>,
    /// Limits the log to the first failure and the end of an outage.
    outage: Outage,
}

impl Publisher {
    /// Creates the file at `path`, replaces any previous one, writes the first copy and starts the thread
    /// that writes the next ones. Reserves all the space of the file at once. `group` may read it. The file appears at
    /// `path` only once its first copy is complete.
    ///
    /// # Errors
    /// If a system call fails.
    pub fn new(
        path: &Path,
        group: Option<u32>,
        region: &Arc<Region>,
        lock: NameLock,
    ) -> io::Result<Self> {
        let scratch = Scratch::file(path, group)?;
        let file = scratch.item().try_clone()?;
        let written = vec![0; region.len()];
        let mut copies = Copies { file, number: 0, written, outage: Outage::default() };
        files::within_limits(|| {
            let len = file_len(region.len() as u64);
            match rustix::fs::fallocate(scratch.item(), FallocateFlags::empty(), 0, len) {
                // Some file systems reserve space only by writing.
                Err(Errno::OPNOTSUPP) => scratch.item().write_all_at(&vec![0; len as usize], 0)?,
                reserved => reserved?,
            }
            copies.write(region)
        })?;
        scratch.put_at(path, true)?;
        let shared = Arc::new(Shared {
            region: Arc::clone(region),
            path: path.to_owned(),
            copies: Mutex::new(copies),
            is_over: AtomicBool::new(false),
        });
        let thread = std::thread::Builder::new().name("wedjat-state".to_owned()).spawn({
            let shared = Arc::clone(&shared);
            move || shared.run()
        })?;
        Ok(Self { shared, thread: Some(thread), lock })
    }

    /// Runs `change` between two copies: a copy has all of its changes, or none.
    pub fn between_copies(&self, change: impl FnOnce()) {
        let _copies = self.shared.copies.lock().unwrap_or_else(PoisonError::into_inner);
        change();
    }

    /// Writes a copy now. Does nothing in a child that was forked since the start: the file shows the
    /// parent's state.
    pub fn publish(&self) {
        if self.lock.is_own() {
            self.shared.publish();
        }
    }
}

impl Shared {
    /// Writes copies until the publisher is dropped; runs on its own thread.
    fn run(&self) {
        files::block_signals();
        files::set_idle_priority();
        let mebibytes = self.region.len().div_ceil(1 << 20) as u32;
        while !self.is_over.load(Acquire) {
            std::thread::park_timeout(PERIOD * mebibytes);
            self.publish();
        }
    }

    /// Writes a copy. Logs the first failure of an outage and its end.
    fn publish(&self) {
        let mut copies = self.copies.lock().unwrap_or_else(PoisonError::into_inner);
        let written = files::within_limits(|| copies.write(&self.region));
        let path = self.path.display();
        match written {
            Err(error) if copies.outage.fails(Instant::now()) => {
                log::warn!("state file {path}: {error}; it is out of date until a retry succeeds");
            }
            Err(_) => {}
            Ok(()) => {
                if let Some(count) = copies.outage.works(Instant::now()) {
                    log::info!("state file {path}: written again, after {count} failures");
                }
            }
        }
    }
}

impl Copies {
    /// Writes the next copy over the older one, and then the head that names it.
    fn write(&mut self, region: &Region) -> io::Result<()> {
        let (number, len) = (self.number.wrapping_add(1), region.len() as u64);
        let offset = place(number, len);
        region.write_to(&self.file, offset)?;
        // The words may have changed during the write, so the mark covers the content of the file.
        self.file.read_exact_at(&mut self.written, offset)?;
        if self.file.metadata()?.len() < file_len(len) {
            self.file.set_len(file_len(len))?; // another process has shortened it
        }
        let mark = mark(number, self.written.chunks(8).map(word_of));
        let head = [MAGIC, VERSION, len, number, mark].map(u64::to_le_bytes);
        // Comes last: after a failure, the next attempt overwrites this copy, which the head must not name.
        self.file.write_all_at(head.as_flattened(), 0)?;
        self.number = number;
        Ok(())
    }
}

impl Drop for Publisher {
    /// Ends the thread and writes a last copy, unless this is a forked child.
    fn drop(&mut self) {
        let thread = self.thread.take();
        if !self.lock.is_own() {
            // A child of fork() has no such thread to wait for.
            std::mem::forget(thread);
            return;
        }
        self.shared.is_over.store(true, Release);
        if let Some(thread) = thread {
            thread.thread().unpark();
            let _ = thread.join();
        }
        self.shared.publish();
    }
}
