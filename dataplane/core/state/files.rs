//! Files and sockets of a node in folders where other users may have put something first. The node inspects a
//! file before it opens it, creates files under random names, and never writes through a link.
//!
//! An existing file is first opened as a place only (`O_PATH`). This reads nothing, does not block, and
//! disturbs no device. After the inspection the node opens an acceptable file through that same place. It
//! therefore uses the inspected file, whatever happens to the path meanwhile.
//!
//! [`ExistingFile`] is a file to inspect, [`Scratch`] a new one until it is complete, [`ReportFile`] the output of a
//! command, and [`NameLock`] the right to own a path. Calls about signals, priorities and groups are here too, because
//! this file may use unsafe code.
#![allow(unsafe_code)]

use std::ffi::{CStr, CString, OsStr};
use std::fs::{File, TryLockError};
use std::io::{self, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags, RenameFlags, Stat};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

/// Returns the fix for a system error about a file, which callers append to the error's text; empty for other errors.
#[must_use]
pub fn advice(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::NotFound => "; make its folder first, or name another file",
        io::ErrorKind::PermissionDenied => {
            "; choose a folder and a group that are yours, or name another file"
        }
        io::ErrorKind::StorageFull => "; make room there, or name another file",
        io::ErrorKind::FileTooLarge => "; raise the limit on file sizes (`ulimit -f`)",
        _ if has_no_descriptor(error) => "; raise the limit on file descriptors (`ulimit -n`)",
        _ => "",
    }
}

/// Maximum size of a file that is read whole.
pub const FILE_MAX: u64 = 16 << 20;

/// Opens a regular file for reading, through symbolic links. Does not wait for the writer of a FIFO and opens
/// no device.
///
/// # Errors
/// If it is not a regular file, or if a system call fails.
pub fn open_regular(path: &Path) -> io::Result<File> {
    regular(path)?.open(false)
}

/// Reads a regular file of at most [`FILE_MAX`] bytes, through symbolic links.
///
/// # Errors
/// For a file that is not regular or is longer, or if a system call fails.
pub fn read(path: &Path) -> io::Result<Vec<u8>> {
    regular(path)?.read(FILE_MAX)
}

/// Reads a text in UTF-8, as [`read`] does.
///
/// # Errors
/// If [`read`] fails, or if the text is not UTF-8.
pub fn read_text(path: &Path) -> io::Result<String> {
    let text = String::from_utf8(read(path)?);
    text.map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "it is not text in UTF-8"))
}

/// Finds a regular file, through symbolic links.
fn regular(path: &Path) -> io::Result<ExistingFile> {
    let found = ExistingFile::behind(path)?.ok_or(Errno::NOENT)?;
    if found.is_file() {
        return Ok(found);
    }
    let text = format!("it is {}, not a regular file", found.describe());
    Err(io::Error::new(io::ErrorKind::InvalidInput, text))
}

/// Returns true for the errors of a process or system without a free file descriptor.
#[must_use]
pub fn has_no_descriptor(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::MFILE | Errno::NFILE))
}

/// An existing file, not yet opened for reading or writing.
#[derive(Debug)]
pub struct ExistingFile {
    /// The file, opened as a place only.
    place: OwnedFd,
    /// Its metadata at that moment.
    stat: Stat,
}

impl ExistingFile {
    /// Finds the file at `path` itself, without following a symbolic link. Returns `None` if there is none.
    ///
    /// # Errors
    /// If a system call fails.
    pub fn at(path: &Path) -> io::Result<Option<Self>> {
        Self::look(path, OFlags::NOFOLLOW)
    }

    /// Finds the file to which `path` leads, through symbolic links: for readers only. Returns `None` if
    /// there is none.
    ///
    /// # Errors
    /// If a system call fails.
    pub fn behind(path: &Path) -> io::Result<Option<Self>> {
        Self::look(path, OFlags::empty())
    }

    /// Opens `path` as a place only, with these further flags.
    fn look(path: &Path, flags: OFlags) -> io::Result<Option<Self>> {
        match rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC | flags, Mode::empty()) {
            Ok(place) => Ok(Some(Self { stat: rustix::fs::fstat(&place)?, place })),
            Err(Errno::NOENT) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Returns its type.
    fn kind(&self) -> FileType {
        FileType::from_raw_mode(self.stat.st_mode)
    }

    /// Returns true for a regular file.
    #[must_use]
    pub fn is_file(&self) -> bool {
        self.kind() == FileType::RegularFile
    }

    /// Returns true for a socket.
    #[must_use]
    pub fn is_socket(&self) -> bool {
        self.kind() == FileType::Socket
    }

    /// Returns the number of the owning user.
    #[must_use]
    pub fn owner(&self) -> u32 {
        self.stat.st_uid
    }

    /// Returns true if this process's user owns it.
    #[must_use]
    pub fn is_own(&self) -> bool {
        self.owner() == rustix::process::geteuid().as_raw()
    }

    /// Returns true if this process's user or root owns it.
    #[must_use]
    pub fn is_own_or_roots(&self) -> bool {
        self.is_own() || self.owner() == 0
    }

    /// Returns its identity.
    #[must_use]
    pub fn identity(&self) -> FileIdentity {
        FileIdentity::of(&self.stat)
    }

    /// Checks that it is a regular file to which only this process's user and root have access.
    ///
    /// # Errors
    /// If it is not. The error is the reason, as in "is a symbolic link".
    pub fn check_private(&self) -> Result<(), String> {
        match self.kind() {
            FileType::RegularFile => {}
            FileType::Symlink => return Err("is a symbolic link".to_owned()),
            _ => return Err("is not a regular file".to_owned()),
        }
        let user = rustix::process::geteuid().as_raw();
        is_private(self.owner(), user, self.stat.st_mode & 0o7777)
    }

    /// Returns its size in bytes.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.stat.st_size.unsigned_abs()
    }

    /// Returns true if this process may not rename a new file over it: it belongs to another user and lies in a sticky
    /// folder like `/tmp`, where only the owners of the file and of the folder may replace it. `path` is its path.
    ///
    /// # Errors
    /// If a system call fails.
    pub fn is_protected_from_us(&self, path: &Path) -> io::Result<bool> {
        let user = rustix::process::geteuid();
        if user.is_root() || self.is_own() {
            return Ok(false);
        }
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        let folder = rustix::fs::stat(parent.unwrap_or(Path::new(".")))?;
        let is_sticky = Mode::from_raw_mode(folder.st_mode).contains(Mode::SVTX);
        Ok(is_sticky && folder.st_uid != user.as_raw())
    }

    /// Returns its kind and owner, as in "a FIFO of user 7".
    #[must_use]
    pub fn describe(&self) -> String {
        let kind = match self.kind() {
            FileType::RegularFile => "a regular file",
            FileType::Directory => "a folder",
            FileType::Symlink => "a symbolic link",
            FileType::Fifo => "a FIFO",
            FileType::Socket => "a socket",
            FileType::CharacterDevice => "a character device",
            FileType::BlockDevice => "a block device",
            FileType::Unknown => "something unknown",
        };
        format!("{kind} of user {}", self.owner())
    }

    /// Returns a path to it that is valid during the life of `self`, and independent of the file's name.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        descriptor_path(&self.place)
    }

    /// Returns its access mode.
    #[must_use]
    pub fn mode(&self) -> u32 {
        self.stat.st_mode & 0o7777
    }

    /// Reads at most `most` bytes of a regular file.
    ///
    /// # Errors
    /// If it has more bytes, or if a system call fails.
    pub fn read(&self, most: u64) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        self.open(false)?.take(most + 1).read_to_end(&mut bytes)?;
        if bytes.len() as u64 <= most {
            return Ok(bytes);
        }
        let text = format!("it has more than {most} bytes");
        Err(io::Error::new(io::ErrorKind::FileTooLarge, text))
    }

    /// Opens it for reading, and for writing if `write`. Does not block.
    ///
    /// # Errors
    /// If a system call fails.
    pub fn open(&self, write: bool) -> io::Result<File> {
        let access = if write { OFlags::RDWR } else { OFlags::RDONLY };
        let flags = access | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOCTTY;
        Ok(rustix::fs::open(self.path(), flags, Mode::empty())?.into())
    }
}

/// Mode bits that give access to the group or to other users.
const FOREIGN: u32 = 0o077;

/// Checks that only `user` and root have access to a file with this owner and mode. Separate from
/// [`ExistingFile::check_private`] for tests with other users.
///
/// # Errors
/// If another user has access. The error is the reason.
pub fn is_private(owner: u32, user: u32, mode: u32) -> Result<(), String> {
    if owner != user && owner != 0 {
        Err(format!("belongs to user {owner}, and this is user {user}"))
    } else if mode & FOREIGN != 0 {
        Err(format!("is open to others than its owner (mode {mode:04o})"))
    } else {
        Ok(())
    }
}

/// Returns the path by which this process can open an open file again.
fn descriptor_path(file: &impl AsRawFd) -> PathBuf {
    format!("/proc/self/fd/{}", file.as_raw_fd()).into()
}

/// Opens the same file again for reading and writing. The new open file has its own locks: holders of `file`, such as
/// other processes, cannot release them.
///
/// # Errors
/// If a system call fails.
pub fn open_again(file: &File) -> io::Result<File> {
    File::options().read(true).write(true).open(descriptor_path(file))
}

/// A name in an open folder. Removes the file at the end unless it is kept.
#[derive(Debug)]
struct Entry {
    /// The folder, opened as a place only.
    folder: OwnedFd,
    name: String,
    /// True if the file stays, or does not exist yet.
    is_kept: bool,
}

impl Entry {
    /// Chooses a random name in the folder of `path`.
    fn random_sibling(path: &Path) -> io::Result<Self> {
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        let flags = OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::PATH;
        let folder = rustix::fs::open(parent.unwrap_or(Path::new(".")), flags, Mode::empty())?;
        let mut bytes = [0; 16];
        rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
        let name = format!(".wedjat-{:032x}", u128::from_ne_bytes(bytes));
        Ok(Self { folder, name, is_kept: true })
    }

    /// Gives the file a second name in the folder, which must be free.
    fn link_as(&self, name: &OsStr) -> io::Result<()> {
        let (folder, no_flags) = (&self.folder, AtFlags::empty());
        Ok(rustix::fs::linkat(folder, &self.name, folder, name, no_flags)?)
    }

    /// Returns the metadata of the file with this name, without following a link.
    fn stat(&self) -> io::Result<Stat> {
        Ok(rustix::fs::statat(&self.folder, &self.name, AtFlags::SYMLINK_NOFOLLOW)?)
    }
}

impl Drop for Entry {
    /// Removes an incomplete file.
    fn drop(&mut self) {
        if !self.is_kept {
            let _ = rustix::fs::unlinkat(&self.folder, &self.name, AtFlags::empty());
        }
    }
}

/// A file or socket without its final name. It has a random name in its final folder until it is complete. If
/// it never is, it is removed.
#[derive(Debug)]
pub struct Scratch<T> {
    /// The open file or socket.
    item: T,
    /// Its random name.
    entry: Entry,
}

/// Mode of new files: only the owner may read and write.
const OWNERS: Mode = Mode::RUSR.union(Mode::WUSR);
/// Number of peers that may wait for a socket to accept them.
const BACKLOG: i32 = 128;

impl Scratch<File> {
    /// Creates an empty file for `path`. Its owner may read and write it; `group`, if given, may read it.
    ///
    /// # Errors
    /// If a system call fails.
    pub fn file(path: &Path, group: Option<u32>) -> io::Result<Self> {
        let scratch = Self::create(path, OWNERS)?;
        let mut mode = OWNERS;
        if let Some(group) = group {
            rustix::fs::fchown(&scratch.item, None, Some(Gid::from_raw(group)))?;
            mode |= Mode::RGRP;
        }
        rustix::fs::fchmod(&scratch.item, mode)?; // the umask may have removed bits
        check(&rustix::fs::fstat(&scratch.item)?, FileType::RegularFile, mode)?;
        Ok(scratch)
    }

    /// Creates an empty file under a random name in the folder of `path`.
    fn create(path: &Path, mode: Mode) -> io::Result<Self> {
        let mut entry = Entry::random_sibling(path)?;
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL;
        let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let item = rustix::fs::openat(&entry.folder, &entry.name, flags, mode)?;
        entry.is_kept = false;
        Ok(Self { item: item.into(), entry })
    }
}

impl Scratch<OwnedFd> {
    /// Creates a listening socket of messages for `path`. Only its owner may connect.
    ///
    /// # Errors
    /// If a system call fails.
    pub fn socket(path: &Path) -> io::Result<Self> {
        Self::socket_of(path, SocketType::SEQPACKET)
    }

    /// Creates a listening socket of bytes for `path`. Only its owner may connect.
    ///
    /// # Errors
    /// If a system call fails.
    pub fn stream_socket(path: &Path) -> io::Result<Self> {
        Self::socket_of(path, SocketType::STREAM)
    }

    /// Creates a listening socket under a random name in the folder of `path`.
    fn socket_of(path: &Path, kind: SocketType) -> io::Result<Self> {
        let mut entry = Entry::random_sibling(path)?;
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let item = rustix::net::socket_with(AddressFamily::UNIX, kind, flags, None)?;
        // On `bind`, Linux gives the name the mode of the socket: no other user can connect even for a moment.
        rustix::fs::fchmod(&item, OWNERS)?;
        // Through the open folder, because an address has room for only 107 bytes.
        let address = SocketAddrUnix::new(descriptor_path(&entry.folder).join(&entry.name))?;
        rustix::net::bind(&item, &address)?;
        entry.is_kept = false;
        rustix::net::listen(&item, BACKLOG)?;
        check(&entry.stat()?, FileType::Socket, OWNERS)?;
        Ok(Self { item, entry })
    }
}

/// Checks that the new file is ours and no more open than intended, however the file system treats owners and
/// modes.
fn check(stat: &Stat, kind: FileType, mode: Mode) -> io::Result<()> {
    let is_right = FileType::from_raw_mode(stat.st_mode) == kind
        && stat.st_uid == rustix::process::geteuid().as_raw()
        && mode.contains(Mode::from_raw_mode(stat.st_mode));
    if is_right {
        return Ok(());
    }
    let text = "what was made there belongs to another user or is open to others";
    Err(io::Error::new(io::ErrorKind::PermissionDenied, text))
}

impl<T> Scratch<T> {
    /// Returns the file or socket.
    pub fn item(&self) -> &T {
        &self.item
    }

    /// Returns the file or socket for writing.
    pub fn item_mut(&mut self) -> &mut T {
        &mut self.item
    }

    /// Moves it to `path`, for which it was made. With `replace` it replaces an existing file. Otherwise there must be
    /// none. Returns the item and its identity.
    ///
    /// # Errors
    /// If `path` names no file, or a system call fails.
    pub fn put_at(mut self, path: &Path, replace: bool) -> io::Result<(T, FileIdentity)> {
        let Some(name) = path.file_name() else {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "it names no file"));
        };
        let (folder, scratch) = (&self.entry.folder, self.entry.name.as_str());
        let identity = FileIdentity::of(&self.entry.stat()?);
        let flags = RenameFlags::NOREPLACE;
        let result = match replace {
            true => rustix::fs::renameat(folder, scratch, folder, name),
            false => rustix::fs::renameat_with(folder, scratch, folder, name, flags),
        };
        match result {
            // Not every file system can check and rename in one step. A link also fails if the name is taken. The
            // drop of the entry then removes the random name.
            Err(Errno::INVAL | Errno::NOSYS) if !replace => self.entry.link_as(name)?,
            result => {
                result?;
                self.entry.is_kept = true;
            }
        }
        Ok((self.item, identity))
    }
}

impl Scratch<File> {
    /// Moves the complete file to `path`, as [`Scratch::put_at`] does. A crash at any moment leaves either
    /// the previous file or the whole new one.
    ///
    /// # Errors
    /// If `path` names no file, or a system call fails.
    pub fn keep_at(self, path: &Path, replace: bool) -> io::Result<()> {
        self.item.sync_all()?;
        // The entry's folder is open as a place only, which cannot be synced.
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let folder = rustix::fs::openat(&self.entry.folder, ".", flags, Mode::empty())?;
        self.put_at(path, replace)?;
        Ok(rustix::fs::fsync(&folder)?)
    }
}

/// Mode of a new report, minus the umask.
const REPORT: Mode = OWNERS.union(Mode::RGRP).union(Mode::WGRP).union(Mode::ROTH).union(Mode::WOTH);

/// A file that a command writes once for its user and completes at its end: an account, a report, a figure. Checked at
/// the command's start, so that a long run does not end without its result.
///
/// The path shows the previous file until the new one is complete. A full disk therefore leaves the previous
/// file whole.
#[derive(Clone, Copy, Debug)]
pub struct ReportFile<'a> {
    /// Option of the command that names the file; errors begin with it.
    option: &'a str,
    path: &'a Path,
}

impl<'a> ReportFile<'a> {
    /// Checks that the file can be written, and leaves it unchanged. Errors begin with `option`, the command's
    /// option that names the file.
    ///
    /// # Errors
    /// If the path holds anything except a regular file, or its folder takes no new file.
    pub fn new(option: &'a str, path: &'a Path) -> Result<Self, String> {
        let file = Self { option, path };
        file.try_new().map_err(|error| file.explain(&error))?;
        Ok(file)
    }

    /// Checks that the file can be written: creates and removes another file in its folder.
    fn try_new(self) -> io::Result<()> {
        self.previous()?;
        Scratch::create(self.path, REPORT).map(drop)
    }

    /// Returns the previous file. Refuses a link instead of following it: its target may be another user's
    /// choice.
    fn previous(self) -> io::Result<Option<ExistingFile>> {
        match ExistingFile::at(self.path)? {
            Some(found) if !found.is_file() => {
                let text = format!("{} exists there", found.describe());
                Err(io::Error::new(io::ErrorKind::AlreadyExists, text))
            }
            previous => Ok(previous),
        }
    }

    /// Writes the file under another name and renames it. The file gets the mode of the previous one.
    ///
    /// # Errors
    /// If the path holds anything except a regular file by now, or a system call fails. The previous file is then
    /// unchanged.
    pub fn write(self, bytes: impl AsRef<[u8]>) -> Result<(), String> {
        within_limits(|| self.try_write(bytes.as_ref())).map_err(|error| self.explain(&error))
    }

    /// Opens the file for a report that is written piece by piece.
    ///
    /// # Errors
    /// If the path holds anything except a regular file by now, or a system call fails.
    pub fn open(self) -> Result<OpenReport, String> {
        let scratch = self.scratch().map_err(|error| self.explain(&error))?;
        Ok(OpenReport { option: self.option.to_owned(), path: self.path.to_owned(), scratch })
    }

    /// Creates the file under another name, with the mode of the previous one.
    fn scratch(self) -> io::Result<Scratch<File>> {
        let previous = self.previous()?;
        let scratch = Scratch::create(self.path, REPORT)?;
        if let Some(previous) = previous {
            rustix::fs::fchmod(scratch.item(), Mode::from_raw_mode(previous.stat.st_mode))?;
        }
        Ok(scratch)
    }

    /// Writes the file under another name and renames it.
    fn try_write(self, bytes: &[u8]) -> io::Result<()> {
        let mut scratch = self.scratch()?;
        scratch.item_mut().write_all(bytes)?;
        self.complete(scratch)
    }

    /// Gives the complete file its name.
    fn complete(self, scratch: Scratch<File>) -> io::Result<()> {
        scratch.item().sync_all()?; // some file systems report a full disk only now
        scratch.put_at(self.path, true).map(drop)
    }

    /// Returns the message for an error.
    fn explain(self, error: &io::Error) -> String {
        let Self { option, path } = self;
        let advice = match advice(error) {
            "" => "; name a regular file in a folder that you can write to",
            advice => advice,
        };
        format!("{option} {}: {error}{advice}", path.display())
    }
}

/// A report that is written piece by piece. Its path shows the previous file until [`OpenReport::finish`].
#[derive(Debug)]
pub struct OpenReport {
    /// Option of the command that names the file.
    option: String,
    path: PathBuf,
    /// The file under its random name.
    scratch: Scratch<File>,
}

impl OpenReport {
    /// Returns the option and path of the report, for messages.
    fn file(&self) -> ReportFile<'_> {
        ReportFile { option: &self.option, path: &self.path }
    }

    /// Returns the path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Gives the complete file its name.
    ///
    /// # Errors
    /// If a system call fails. The previous file is then unchanged.
    pub fn finish(self) -> Result<(), String> {
        let Self { option, path, scratch } = self;
        let file = ReportFile { option: &option, path: &path };
        file.complete(scratch).map_err(|error| file.explain(&error))
    }

    /// Returns the message for an error of a write.
    #[must_use]
    pub fn explain(&self, error: &io::Error) -> String {
        self.file().explain(error)
    }
}

impl Write for OpenReport {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        within_limits(|| self.scratch.item_mut().write(bytes))
    }

    /// Does nothing: writes are not buffered.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Identity of a file, independent of its name: device and inode number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileIdentity(u64, u64);

impl FileIdentity {
    /// Returns the identity in a file's metadata.
    fn of(stat: &Stat) -> Self {
        Self(stat.st_dev, stat.st_ino)
    }

    /// Removes the file at `path` if it has this identity.
    pub fn remove_at(self, path: &Path) {
        if ExistingFile::at(path)
            .is_ok_and(|found| found.is_some_and(|found| found.identity() == self))
        {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Reason why a process cannot get the lock of a path.
#[derive(Debug)]
pub enum NameError {
    /// Held already, with the number of the holder's process if readable.
    Held(Option<u64>),
    /// The file at this path is not our lock; the text describes it.
    Foreign(PathBuf, String),
    /// System error.
    Io(io::Error),
}

impl From<io::Error> for NameError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// Exclusive right of one process to create or replace the file at a path. It holds the lock of the file
/// PATH`.lock` for its lifetime. Only that file's owner can open it, so no other user can hold
/// the lock.
///
/// A look at the path is not enough. Two processes may both find it free, or find the same dead file, and replace each
/// other's. A lock on the state file itself would let its readers block the owner.
#[derive(Debug)]
pub struct NameLock {
    /// Open file that carries the lock.
    file: File,
    /// Path of the lock's file.
    path: PathBuf,
    /// Process that took the lock.
    process: u32,
}

/// First bytes of a lock's file. The number of its process follows.
const LOCK: &str = "wedjat ";
/// Number of attempts to take a lock. Other processes cannot create and remove the file that often.
const ATTEMPTS: usize = 1000;

impl NameLock {
    /// Takes the lock of `path`. A process that ended, in whatever way, has lost it.
    ///
    /// # Errors
    /// For a lock that another process holds, a path with another file, or a failed system call.
    pub fn take(path: &Path) -> Result<Self, NameError> {
        within_limits(|| Self::take_at(Self::file_of(path)))
    }

    /// Checks, without creating a file, that no other process holds the lock of `path` now.
    ///
    /// # Errors
    /// For a lock that another process holds, a path with another file, or a failed system call.
    pub fn look(path: &Path) -> Result<(), NameError> {
        let path = Self::file_of(path);
        let Some(found) = ExistingFile::at(&path)? else { return Ok(()) };
        let (file, text) = Self::open(&path, &found)?;
        // A lock cannot be queried, so this takes a shared one. It is released with the file.
        match file.try_lock_shared() {
            Ok(()) => Ok(()),
            Err(TryLockError::WouldBlock) => Err(Self::held(&text)),
            Err(TryLockError::Error(error)) => Err(error.into()),
        }
    }

    /// Returns the path of the lock's file.
    fn file_of(path: &Path) -> PathBuf {
        let mut name = path.as_os_str().to_owned();
        name.push(".lock");
        PathBuf::from(name)
    }

    /// Opens a lock's file, after a check that it is ours and a lock. Returns it with its text.
    fn open(path: &Path, found: &ExistingFile) -> Result<(File, String), NameError> {
        let foreign = |found| NameError::Foreign(path.to_owned(), found);
        if !found.is_file() || !found.is_own() {
            return Err(foreign(found.describe()));
        }
        let file = found.open(true)?;
        let mut text = String::new();
        let read = (&file).take(64).read_to_string(&mut text);
        if read.is_err() || !(text.is_empty() || text.starts_with(LOCK)) {
            return Err(foreign(format!("{} that is not a lock", found.describe())));
        }
        Ok((file, text))
    }

    /// Returns the error for a lock file with this text.
    fn held(text: &str) -> NameError {
        NameError::Held(text.strip_prefix(LOCK).and_then(|pid| pid.trim().parse().ok()))
    }

    /// Takes the lock whose file is at `path`, and creates the file if necessary.
    fn take_at(path: PathBuf) -> Result<Self, NameError> {
        for _ in 0..ATTEMPTS {
            let Some(found) = ExistingFile::at(&path)? else {
                let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL;
                let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                match rustix::fs::open(&path, flags, OWNERS) {
                    Ok(created) => rustix::fs::fchmod(&created, OWNERS).map_err(io::Error::from)?,
                    Err(Errno::EXIST) => {}
                    Err(error) => return Err(NameError::Io(error.into())),
                }
                continue; // it exists now, no matter who created it
            };
            let (file, text) = Self::open(&path, &found)?;
            match file.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => return Err(Self::held(&text)),
                Err(TryLockError::Error(error)) => return Err(error.into()),
            }
            // The previous holder may have removed the file before it released the lock.
            if !ExistingFile::at(&path)?
                .is_some_and(|current| current.identity() == found.identity())
            {
                continue;
            }
            let process = std::process::id();
            file.set_len(0)?;
            file.write_all_at(format!("{LOCK}{process}\n").as_bytes(), 0)?;
            return Ok(Self { file, path, process });
        }
        Err(NameError::Held(None))
    }

    /// Returns true if the calling process took the lock; false in a child that was forked since.
    #[must_use]
    pub fn is_own(&self) -> bool {
        self.process == std::process::id()
    }
}

impl Drop for NameLock {
    /// Removes the lock's file, unless this is a forked child.
    fn drop(&mut self) {
        // The file is still locked, so a process that opens it now detects its removal.
        if self.is_own()
            && let Ok(stat) = rustix::fs::fstat(&self.file)
        {
            FileIdentity::of(&stat).remove_at(&self.path);
        }
    }
}

/// Runs `write` with SIGXFSZ blocked. A write above the process's limit on file sizes then fails with an
/// error, like a write to a full disk. Otherwise the signal would end the process.
pub fn within_limits<T>(write: impl FnOnce() -> T) -> T {
    let mut before = MaybeUninit::uninit();
    // SAFETY: the set is initialised before it is read, and all pointers are to live memory. The mask that
    // `pthread_sigmask` writes is read only after its success.
    let set = unsafe {
        let mut set = MaybeUninit::uninit();
        libc::sigemptyset(set.as_mut_ptr());
        libc::sigaddset(set.as_mut_ptr(), libc::SIGXFSZ);
        let done = libc::pthread_sigmask(libc::SIG_BLOCK, set.as_ptr(), before.as_mut_ptr());
        (done == 0).then_some(set)
    };
    let result = write();
    if let Some(set) = set {
        // `sigtimedwait` consumes a pending SIGXFSZ, which the system directs at the writing thread. If the caller
        // itself had blocked the signal, it stays pending.
        // SAFETY: as above.
        unsafe {
            let no_wait = libc::timespec { tv_sec: 0, tv_nsec: 0 };
            if libc::sigismember(before.as_ptr(), libc::SIGXFSZ) == 0 {
                libc::sigtimedwait(set.as_ptr(), std::ptr::null_mut(), &raw const no_wait);
            }
            libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), std::ptr::null_mut());
        }
    }
    result
}

/// Blocks all signals in the calling thread. Helper threads of this library call it, so that the signals reach the
/// threads of the program that uses it.
pub fn block_signals() {
    let mut all = MaybeUninit::uninit();
    // SAFETY: the set is initialised before it is read.
    unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), std::ptr::null_mut());
    }
}

/// Gives the calling thread idle priority, below all normal threads. For the writer of the state file, which must not
/// delay a polling core.
pub fn set_idle_priority() {
    let priority = libc::sched_param { sched_priority: 0 };
    // SAFETY: the parameters live through the call, which only reads them. A refusal changes nothing.
    let _ = unsafe { libc::sched_setscheduler(0, libc::SCHED_IDLE, &raw const priority) };
}

/// Gives the calling thread the lowest real-time priority, above all normal threads. For workers that request it.
///
/// # Errors
/// If the system refuses.
pub fn raise_priority() -> io::Result<()> {
    let priority = libc::sched_param { sched_priority: 1 };
    // SAFETY: the parameters live through the call, which only reads them.
    match unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const priority) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Returns the number of a group, given by its number or its name on this machine. Does not look up a number. Returns
/// `None` if no group has the name, or its lookup fails. Returns `None` for 4294967295, too: it stands for "no group"
/// in system calls.
#[must_use]
pub fn group(name: &str) -> Option<u32> {
    if let Ok(number) = name.parse::<u32>() {
        return Some(number).filter(|number| *number != u32::MAX);
    }
    group_named(&CString::new(name).ok()?, 1 << 12)
}

/// Maximum size in bytes of a group's entry, most of which are the names of its members.
const GROUP_MAX: usize = 1 << 26;

/// Looks up the number of a group with this name. `room` is the first size in bytes of the memory for its entry; it
/// doubles until the entry fits, up to [`GROUP_MAX`].
fn group_named(name: &CStr, room: usize) -> Option<u32> {
    let mut memory = vec![0; room];
    loop {
        let (mut entry, mut found) = (MaybeUninit::<libc::group>::uninit(), std::ptr::null_mut());
        // SAFETY: all pointers are to live memory of the sizes given. The entry is read only if it was found.
        let (error, number) = unsafe {
            let (entry, memory, len) = (entry.as_mut_ptr(), memory.as_mut_ptr(), memory.len());
            let error = libc::getgrnam_r(name.as_ptr(), entry, memory, len, &raw mut found);
            (error, found.as_ref().map(|group| group.gr_gid))
        };
        if error != libc::ERANGE || memory.len() >= GROUP_MAX {
            return number;
        }
        memory.resize(2 * memory.len(), 0);
    }
}

#[cfg(test)]
pub(crate) mod tests;
