//! A node's state for others to read: copies of its memory, written into a file now and then.
//!
//! The node works on memory of its own, which nobody can take away, and never touches the file on its packet path. A
//! thread writes copies into the file and has only CPU time that nobody else wants. Whatever others do to the
//! file, a write fails at the worst; it is tried again.
//!
//! The file begins with [`HEAD`] bytes whose first words are those of [`word`]; two places for copies follow. Copy number n
//! is written to place n modulo 2, and then the head says so. So the copy that the head names stays as it is until
//! another one is complete, also when the node is killed in the middle of a write, and a mark over all of it tells
//! a reader whether he got it whole.

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

/// "WEDJAT" and the sign that the writer was little-endian.
pub const MAGIC: u64 = u64::from_le_bytes(*b"WEDJATle");
/// Version of the file's layout; any change of [`super::layout`] or of the head raises its upper half, and one of the counters
/// changes the lower.
pub const VERSION: u64 = 12 << 32 | super::counters::TABLE as u64;
/// Bytes before the first copy.
pub const HEAD: usize = 4096;
/// What a copy's place is a multiple of.
const PAGE: usize = 4096;
/// Most bytes of a copy; the largest configuration needs less.
const LEN_MAX: u64 = 256 << 20;
/// Between two copies of a mebibyte or less; a larger state is copied less often.
pub const PERIOD: Duration = Duration::from_millis(50);
/// A reader that was overtaken tries so often; a copy takes him a small part of [`PERIOD`].
const TRIES: usize = 100;

/// Numbers of the head's words, of 64 bits each.
pub mod word {
    /// [`super::MAGIC`].
    pub const MAGIC: usize = 0;
    /// [`super::VERSION`].
    pub const VERSION: usize = 1;
    /// Bytes of a copy.
    pub const LEN: usize = 2;
    /// Number of the newest copy.
    pub const NUMBER: usize = 3;
    /// Its mark.
    pub const MARK: usize = 4;
    /// How many words.
    pub const COUNT: usize = 5;
}

/// Why there is no copy to be read.
#[derive(Debug)]
pub enum Unreadable {
    /// The system refused.
    Io(io::Error),
    /// It is no state file.
    Foreign,
    /// It was written by this other version.
    Version(u64),
    /// What is wrong with it.
    Damaged(String),
}

/// A number that is another one, all but certainly, when anything of the copy is.
fn mark(number: u64, words: impl Iterator<Item = u64>) -> u64 {
    // FNV-1a by words; each step is one to one, so a change of one word always shows.
    let step = |hash: u64, word: u64| (hash ^ word).wrapping_mul(0x0100_0000_01b3).rotate_left(29);
    words.fold(step(0xcbf2_9ce4_8422_2325, number), step)
}

/// Changes words of the newest copy in a state file's bytes, and makes its mark right again.
#[cfg(test)]
pub fn change_words(file: &mut [u8], change: impl FnOnce(&mut [u64])) {
    let head = |at: usize| word_of(&file[8 * at..8 * at + 8]);
    let (len, number) = (head(word::LEN), head(word::NUMBER));
    let at = place(number, len) as usize;
    let copy = at..at + len as usize;
    let mut words: Vec<u64> = file[copy.clone()].chunks(8).map(word_of).collect();
    change(&mut words);
    for (bytes, word) in file[copy].chunks_exact_mut(8).zip(&words) {
        bytes.copy_from_slice(&word.to_le_bytes());
    }
    let mark = mark(number, words.into_iter());
    file[8 * word::MARK..][..8].copy_from_slice(&mark.to_le_bytes());
}

fn word_of(bytes: &[u8]) -> u64 {
    let mut word = [0; 8];
    word[..bytes.len()].copy_from_slice(bytes);
    u64::from_le_bytes(word)
}

/// Where copy `number` lies.
fn place(number: u64, len: u64) -> u64 {
    HEAD as u64 + (number & 1) * len.next_multiple_of(PAGE as u64)
}

/// Bytes of a file for copies of `len` bytes.
fn file_len(len: u64) -> u64 {
    place(1, len) + len.next_multiple_of(PAGE as u64)
}

/// The newest copy in a file, read with `read_at`, which fills a buffer from a place on.
///
/// # Errors
/// Why there is none.
pub fn newest(
    found: u64,
    read_at: impl Fn(&mut [u8], u64) -> io::Result<()>,
) -> Result<Arc<Region>, Unreadable> {
    let head = || {
        let mut bytes = [0; 8 * word::COUNT];
        let len = bytes.len().min(usize::try_from(found).unwrap_or(usize::MAX)) & !7;
        read_at(&mut bytes[..len], 0).map_err(unreadable)?;
        let mut words = [0; word::COUNT];
        words.iter_mut().zip(bytes.chunks(8)).for_each(|(word, bytes)| *word = word_of(bytes));
        match words {
            [magic, ..] if magic != MAGIC => Err(Unreadable::Foreign),
            [_, version, ..] if version != VERSION && len >= 16 => {
                Err(Unreadable::Version(version))
            }
            words => Ok(words),
        }
    };
    let mut words = head()?;
    for _ in 0..TRIES {
        let [_, _, len, number, expected] = words;
        if len > LEN_MAX || found < file_len(len) {
            let text = format!("{found} bytes long, with copies of {len}");
            return Err(Unreadable::Damaged(text));
        }
        let mut bytes = vec![0; len as usize];
        read_at(&mut bytes, place(number, len)).map_err(unreadable)?;
        if mark(number, bytes.chunks(8).map(word_of)) == expected {
            let region = Region::heap(len as usize);
            let to = region.slice::<AtomicU64>(0, len as usize / 8);
            for (word, bytes) in to.iter().zip(bytes.chunks(8)) {
                word.store(word_of(bytes), Relaxed);
            }
            return Ok(region);
        }
        let now = head()?;
        if now == words {
            return Err(Unreadable::Damaged("its check sum is wrong".to_owned()));
        }
        words = now; // the owner has written another one meanwhile
    }
    Err(Unreadable::Damaged("it changed whenever it was read".to_owned()))
}

fn unreadable(error: io::Error) -> Unreadable {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => Unreadable::Damaged("it ends too early".to_owned()),
        _ => Unreadable::Io(error),
    }
}

/// Writes a region into a file for as long as it lives, and once more at its end.
#[derive(Debug)]
pub struct Publisher {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    lock: NameLock,
}

#[derive(Debug)]
struct Shared {
    region: Arc<Region>,
    path: PathBuf,
    copies: Mutex<Copies>,
    is_over: AtomicBool,
}

#[derive(Debug)]
struct Copies {
    file: File,
    number: u64,
    /// What the last copy became in the file.
    written: Vec<u8>,
    outage: Outage,
}

impl Publisher {
    /// Makes the file at `path`, in the place of what lies there, writes the first copy into it and goes on doing so.
    /// All the space that it needs is taken at once. `group` may read it.
    ///
    /// # Errors
    /// Those of the system.
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
                // Some file systems only give space to what is written.
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
            move || shared.go_on()
        })?;
        Ok(Self { shared, thread: Some(thread), lock })
    }

    /// Runs `change` while no copy is made: a copy has all that it changes, or nothing of it.
    pub fn between_copies(&self, change: impl FnOnce()) {
        let _copies = self.shared.copies.lock().unwrap_or_else(PoisonError::into_inner);
        change();
    }

    /// Writes a copy now. In a child that was forked since it was made, nothing is written: the file shows what its parent
    /// does.
    pub fn publish(&self) {
        if self.lock.is_own() {
            self.shared.publish();
        }
    }
}

impl Shared {
    fn go_on(&self) {
        files::block_signals();
        files::yield_to_all();
        let mebibytes = self.region.len().div_ceil(1 << 20) as u32;
        while !self.is_over.load(Acquire) {
            std::thread::park_timeout(PERIOD * mebibytes);
            self.publish();
        }
    }

    fn publish(&self) {
        let mut copies = self.copies.lock().unwrap_or_else(PoisonError::into_inner);
        let written = files::within_limits(|| copies.write(&self.region));
        let path = self.path.display();
        match written {
            Err(error) if copies.outage.fails(Instant::now()) => {
                log::warn!("state file {path}: {error}; it shows what was, and is tried again");
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
    fn write(&mut self, region: &Region) -> io::Result<()> {
        let (number, len) = (self.number.wrapping_add(1), region.len() as u64);
        let at = place(number, len);
        region.write_to(&self.file, at)?;
        // The words may have changed while they were written, so the mark is made of what the file has.
        self.file.read_exact_at(&mut self.written, at)?;
        let mark = mark(number, self.written.chunks(8).map(word_of));
        let head = [MAGIC, VERSION, len, number, mark].map(u64::to_le_bytes);
        self.file.write_all_at(head.as_flattened(), 0)?;
        if self.file.metadata()?.len() < file_len(len) {
            self.file.set_len(file_len(len))?; // others have shortened it
        }
        self.number = number;
        Ok(())
    }
}

impl Drop for Publisher {
    fn drop(&mut self) {
        let thread = self.thread.take();
        if !self.lock.is_own() {
            // In a child of fork() there is no such thread, and nobody to wait for.
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
