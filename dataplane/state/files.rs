//! Files and sockets that a node puts into folders where others may have put something first: looked at before they
//! are opened, made anew under names that nobody can guess, and never through a link.
//!
//! What lies at a path is first opened as a place only (`O_PATH`), which reads nothing, waits for nobody and disturbs no
//! device; then it is looked at, and only what is wanted is opened in earnest, by way of that same place. So
//! what was looked at is what is used, whatever others do to the path meanwhile.
#![allow(unsafe_code)]

use std::ffi::CString;
use std::fs::{File, TryLockError};
use std::io::{self, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags, RenameFlags, Stat};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

/// What to do when the system refuses a file; to be put behind what it said.
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

/// Most bytes of a file that is read whole.
pub const FILE_MAX: u64 = 16 << 20;

/// Opens a regular file for reading, through symbolic links. Waits for no writer of a FIFO and opens no device.
///
/// # Errors
/// When there is something else, or those of the system.
pub fn open_regular(path: &Path) -> io::Result<File> {
    regular(path)?.open(false)
}

/// Reads a regular file of at most [`FILE_MAX`] bytes, through symbolic links.
///
/// # Errors
/// When there is something else, when it is longer, or those of the system.
pub fn read(path: &Path) -> io::Result<Vec<u8>> {
    regular(path)?.read(FILE_MAX)
}

/// The same, of a text in UTF-8.
///
/// # Errors
/// The same, and when it is no UTF-8.
pub fn read_text(path: &Path) -> io::Result<String> {
    let text = String::from_utf8(read(path)?);
    text.map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "it is not text in UTF-8"))
}

fn regular(path: &Path) -> io::Result<Found> {
    let found = Found::behind(path)?.ok_or(Errno::NOENT)?;
    if found.is_file() {
        return Ok(found);
    }
    let text = format!("it is {}, not a regular file", found.describe());
    Err(io::Error::new(io::ErrorKind::InvalidInput, text))
}

/// The process or the system has no file descriptor left.
#[must_use]
pub fn has_no_descriptor(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::MFILE | Errno::NFILE))
}

/// What lies at a path. It is not opened for reading or writing yet.
#[derive(Debug)]
pub struct Found {
    place: OwnedFd,
    stat: Stat,
}

impl Found {
    /// What lies at `path` itself: a symbolic link is found as one. None when nothing does.
    ///
    /// # Errors
    /// Those of the system.
    pub fn at(path: &Path) -> io::Result<Option<Self>> {
        Self::look(path, OFlags::NOFOLLOW)
    }

    /// What `path` leads to, through symbolic links if there are any: for those that only read. None when that is
    /// nothing.
    ///
    /// # Errors
    /// Those of the system.
    pub fn behind(path: &Path) -> io::Result<Option<Self>> {
        Self::look(path, OFlags::empty())
    }

    fn look(path: &Path, flags: OFlags) -> io::Result<Option<Self>> {
        match rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC | flags, Mode::empty()) {
            Ok(place) => Ok(Some(Self { stat: rustix::fs::fstat(&place)?, place })),
            Err(Errno::NOENT) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    fn kind(&self) -> FileType {
        FileType::from_raw_mode(self.stat.st_mode)
    }

    /// It is a regular file.
    #[must_use]
    pub fn is_file(&self) -> bool {
        self.kind() == FileType::RegularFile
    }

    /// It is a socket.
    #[must_use]
    pub fn is_socket(&self) -> bool {
        self.kind() == FileType::Socket
    }

    /// The number of the user that it belongs to.
    #[must_use]
    pub fn owner(&self) -> u32 {
        self.stat.st_uid
    }

    /// It belongs to this process's user.
    #[must_use]
    pub fn is_own(&self) -> bool {
        self.owner() == rustix::process::geteuid().as_raw()
    }

    /// It belongs to this process's user or to root.
    #[must_use]
    pub fn is_own_or_roots(&self) -> bool {
        self.is_own() || self.owner() == 0
    }

    /// What it is known by.
    #[must_use]
    pub fn identity(&self) -> Identity {
        Identity::of(&self.stat)
    }

    /// Checks that it is a regular file that only this process's user and root can have written or read.
    ///
    /// # Errors
    /// The reason, as in "is a symbolic link".
    pub fn check_private(&self) -> Result<(), String> {
        match self.kind() {
            FileType::RegularFile => {}
            FileType::Symlink => return Err("is a symbolic link".to_owned()),
            _ => return Err("is no regular file".to_owned()),
        }
        let user = rustix::process::geteuid().as_raw();
        is_private(self.owner(), user, self.stat.st_mode & 0o7777)
    }

    /// Its size in bytes.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.stat.st_size.unsigned_abs()
    }

    /// It is another user's, in a folder whose files only their owners may replace, as `/tmp` and `/dev/shm` are: `path` is where it lies.
    ///
    /// # Errors
    /// Those of the system.
    pub fn is_kept_from_us(&self, path: &Path) -> io::Result<bool> {
        let us = rustix::process::geteuid();
        if us.is_root() || self.is_own() {
            return Ok(false);
        }
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        let folder = rustix::fs::stat(parent.unwrap_or(Path::new(".")))?;
        let is_sticky = Mode::from_raw_mode(folder.st_mode).contains(Mode::SVTX);
        Ok(is_sticky && folder.st_uid != us.as_raw())
    }

    /// What it is and whose, as in "a FIFO of user 7".
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

    /// A path to it that nobody can change.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        own_path(&self.place)
    }

    /// Its access mode.
    #[must_use]
    pub fn mode(&self) -> u32 {
        self.stat.st_mode & 0o7777
    }

    /// Reads at most `most` bytes of it, which must be a regular file.
    ///
    /// # Errors
    /// When it has more, or those of the system.
    pub fn read(&self, most: u64) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        self.open(false)?.take(most + 1).read_to_end(&mut bytes)?;
        if bytes.len() as u64 <= most {
            return Ok(bytes);
        }
        let text = format!("it has more than {most} bytes");
        Err(io::Error::new(io::ErrorKind::FileTooLarge, text))
    }

    /// Opens it for reading, and for writing if wanted, without waiting for anybody.
    ///
    /// # Errors
    /// Those of the system.
    pub fn open(&self, write: bool) -> io::Result<File> {
        let access = if write { OFlags::RDWR } else { OFlags::RDONLY };
        let flags = access | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOCTTY;
        Ok(rustix::fs::open(self.path(), flags, Mode::empty())?.into())
    }
}

/// Bits of a mode that give access to a group or others.
const FOREIGN: u32 = 0o077;

/// Checks that only `user` and root have access to a file of this owner and mode.
///
/// # Errors
/// The reason.
pub(crate) fn is_private(owner: u32, user: u32, mode: u32) -> Result<(), String> {
    if owner != user && owner != 0 {
        Err(format!("belongs to user {owner}, and this is user {user}"))
    } else if mode & FOREIGN != 0 {
        Err(format!("is open to others than its owner (mode {mode:04o})"))
    } else {
        Ok(())
    }
}

fn own_path(file: &impl AsRawFd) -> PathBuf {
    format!("/proc/self/fd/{}", file.as_raw_fd()).into()
}

/// The same file, opened anew for reading and writing: an open file of its own, for locks of its own.
///
/// # Errors
/// Those of the system.
pub fn open_again(file: &File) -> io::Result<File> {
    File::options().read(true).write(true).open(own_path(file))
}

/// A name in an open folder, taken away again unless it is kept.
#[derive(Debug)]
struct Entry {
    folder: OwnedFd,
    name: String,
    is_kept: bool,
}

impl Entry {
    /// One that nobody can guess, in the folder of `path`.
    fn beside(path: &Path) -> io::Result<Self> {
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        let flags = OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::PATH;
        let folder = rustix::fs::open(parent.unwrap_or(Path::new(".")), flags, Mode::empty())?;
        let mut bytes = [0; 16];
        rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
        let name = format!(".wedjat-{:032x}", u128::from_ne_bytes(bytes));
        Ok(Self { folder, name, is_kept: true })
    }

    fn stat(&self) -> io::Result<Stat> {
        Ok(rustix::fs::statat(&self.folder, &self.name, AtFlags::SYMLINK_NOFOLLOW)?)
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        if !self.is_kept {
            let _ = rustix::fs::unlinkat(&self.folder, &self.name, AtFlags::empty());
        }
    }
}

/// A file or socket that has no name of its own yet: it lies under one that nobody can guess, in the folder in which it
/// is to be put once it is complete. Removed when it never is.
#[derive(Debug)]
pub struct Scratch<T> {
    item: T,
    entry: Entry,
}

/// Who may read and write what is made: its owner.
const OWNERS: Mode = Mode::RUSR.union(Mode::WUSR);
/// Peers that may wait until a socket accepts them.
const BACKLOG: i32 = 128;

impl Scratch<File> {
    /// A new, empty file for `path`, which its owner may read and write, and `group`, if given, may read.
    ///
    /// # Errors
    /// Those of the system.
    pub fn file(path: &Path, group: Option<u32>) -> io::Result<Self> {
        let scratch = Self::create(path, OWNERS)?;
        let mut mode = OWNERS;
        if let Some(group) = group {
            rustix::fs::fchown(&scratch.item, None, Some(Gid::from_raw(group)))?;
            mode |= Mode::RGRP;
        }
        rustix::fs::fchmod(&scratch.item, mode)?; // the umask may have taken something
        check(&rustix::fs::fstat(&scratch.item)?, FileType::RegularFile, mode)?;
        Ok(scratch)
    }

    fn create(path: &Path, mode: Mode) -> io::Result<Self> {
        let mut entry = Entry::beside(path)?;
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL;
        let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let item = rustix::fs::openat(&entry.folder, &entry.name, flags, mode)?;
        entry.is_kept = false;
        Ok(Self { item: item.into(), entry })
    }
}

impl Scratch<OwnedFd> {
    /// A socket of messages for `path`, listening, to which nobody but its owner may connect.
    ///
    /// # Errors
    /// Those of the system.
    pub fn socket(path: &Path) -> io::Result<Self> {
        Self::socket_of(path, SocketType::SEQPACKET)
    }

    /// The same of bytes.
    ///
    /// # Errors
    /// Those of the system.
    pub fn stream_socket(path: &Path) -> io::Result<Self> {
        Self::socket_of(path, SocketType::STREAM)
    }

    fn socket_of(path: &Path, kind: SocketType) -> io::Result<Self> {
        let mut entry = Entry::beside(path)?;
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let item = rustix::net::socket_with(AddressFamily::UNIX, kind, flags, None)?;
        // Linux gives the name the mode that the socket has, so there is no moment with another one.
        rustix::fs::fchmod(&item, OWNERS)?;
        // By way of the open folder, since an address has room for 107 bytes only.
        let address = SocketAddrUnix::new(own_path(&entry.folder).join(&entry.name))?;
        rustix::net::bind(&item, &address)?;
        entry.is_kept = false;
        rustix::net::listen(&item, BACKLOG)?;
        check(&entry.stat()?, FileType::Socket, OWNERS)?;
        Ok(Self { item, entry })
    }
}

/// What was made is ours and no more open than was meant, whatever the file system makes of owners and modes.
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
    /// What is being made.
    pub fn item(&self) -> &T {
        &self.item
    }

    /// What is being made, to be written.
    pub fn item_mut(&mut self) -> &mut T {
        &mut self.item
    }

    /// Puts it at `path`, for which it was made: in the place of what lies there if `replace`, else only if nothing does.
    /// Returns it, and what it is known by.
    ///
    /// # Errors
    /// Those of the system.
    pub fn put_at(mut self, path: &Path, replace: bool) -> io::Result<(T, Identity)> {
        let Some(name) = path.file_name() else {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "it names no file"));
        };
        let flags = if replace { RenameFlags::empty() } else { RenameFlags::NOREPLACE };
        let (folder, scratch) = (&self.entry.folder, self.entry.name.as_str());
        let identity = Identity::of(&self.entry.stat()?);
        match rustix::fs::renameat_with(folder, scratch, folder, name, flags) {
            // Not every file system can look and rename in one.
            Err(Errno::INVAL | Errno::NOSYS) => {
                rustix::fs::renameat(folder, scratch, folder, name)?
            }
            result => result?,
        }
        self.entry.is_kept = true;
        Ok((self.item, identity))
    }
}

impl Scratch<File> {
    /// Puts the complete file at `path`, as [`Scratch::put_at`] does, so that a crash at any moment leaves what lay there
    /// before or the whole file.
    ///
    /// # Errors
    /// Those of the system.
    pub fn keep_at(self, path: &Path, replace: bool) -> io::Result<()> {
        self.item.sync_all()?;
        // The entry's folder is open as a place only, which can't be synced.
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let folder = rustix::fs::openat(&self.entry.folder, ".", flags, Mode::empty())?;
        self.put_at(path, replace)?;
        Ok(rustix::fs::fsync(&folder)?)
    }
}

/// Mode of a new report, less the umask.
const REPORT: Mode = OWNERS.union(Mode::RGRP).union(Mode::WGRP).union(Mode::ROTH).union(Mode::WOTH);

/// A file that a command writes once, at its end, for its user: an account, a report, a figure.
///
/// The path shows the previous file until the new one is complete. A full disk therefore leaves the previous file whole.
#[derive(Clone, Copy, Debug)]
pub struct ReportFile<'a> {
    option: &'a str,
    path: &'a Path,
}

impl<'a> ReportFile<'a> {
    /// Checks that the file can be written, and changes nothing. `option` is the command's option that names it; errors begin with it.
    ///
    /// # Errors
    /// When the path holds anything but a regular file, or its folder takes no new file.
    pub fn new(option: &'a str, path: &'a Path) -> Result<Self, String> {
        let file = Self { option, path };
        file.try_new().map_err(|error| file.explain(&error))?;
        Ok(file)
    }

    fn try_new(self) -> io::Result<()> {
        self.former()?;
        Scratch::create(self.path, REPORT).map(drop)
    }

    /// The file that lies there. A link is refused, not followed: its target may be another user's choice.
    fn former(self) -> io::Result<Option<Found>> {
        match Found::at(self.path)? {
            Some(found) if !found.is_file() => {
                let text = format!("{} lies there", found.describe());
                Err(io::Error::new(io::ErrorKind::AlreadyExists, text))
            }
            former => Ok(former),
        }
    }

    /// Writes the file under another name and renames it. It has the mode of the file that it replaces.
    ///
    /// # Errors
    /// Those of the system. The previous file is then unchanged.
    pub fn write(self, bytes: impl AsRef<[u8]>) -> Result<(), String> {
        within_limits(|| self.try_write(bytes.as_ref())).map_err(|error| self.explain(&error))
    }

    fn try_write(self, bytes: &[u8]) -> io::Result<()> {
        let former = self.former()?;
        let mut scratch = Scratch::create(self.path, REPORT)?;
        if let Some(former) = former {
            rustix::fs::fchmod(scratch.item(), Mode::from_raw_mode(former.stat.st_mode))?;
        }
        scratch.item_mut().write_all(bytes)?;
        scratch.item().sync_all()?; // some file systems report a full disk only now
        scratch.put_at(self.path, true).map(drop)
    }

    fn explain(self, error: &io::Error) -> String {
        let Self { option, path } = self;
        let advice = match advice(error) {
            "" => "; name a regular file in a folder that you can write to",
            advice => advice,
        };
        format!("{option} {}: {error}{advice}", path.display())
    }
}

/// What a file is known by, whatever its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity(u64, u64);

impl Identity {
    fn of(stat: &Stat) -> Self {
        Self(stat.st_dev, stat.st_ino)
    }

    /// Removes what lies at `path` if it is this.
    pub fn remove_at(self, path: &Path) {
        if Found::at(path).is_ok_and(|found| found.is_some_and(|found| found.identity() == self)) {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Why a name can't be had.
#[derive(Debug)]
pub enum NameError {
    /// Another process has it: this one, if that can be read.
    Held(Option<u64>),
    /// What lies at this path is no lock of ours: this.
    Foreign(PathBuf, String),
    /// The system refused.
    Io(io::Error),
}

impl From<io::Error> for NameError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// A path that one process has at a time: it holds the lock of the file PATH`.lock` for as long as this lives. Nobody
/// but the file's owner can open it, so nobody else can keep the owner from the path.
#[derive(Debug)]
pub struct NameLock {
    file: File,
    path: PathBuf,
    process: u32,
}

/// What a lock's file begins with; the number of its process follows.
const LOCK: &str = "wedjat ";
/// Others can't come and go so often between two looks.
const LOOKS: usize = 1000;

impl NameLock {
    /// Takes the lock of `path`. A process that ended, however it did, no longer has it.
    ///
    /// # Errors
    /// When another process has it, when something else lies where its file should, or when the system refuses.
    pub fn take(path: &Path) -> Result<Self, NameError> {
        within_limits(|| Self::take_at(Self::file_of(path)))
    }

    /// Looks whether [`NameLock::take`] would do so now, and makes nothing.
    ///
    /// # Errors
    /// Those that it would have.
    pub fn look(path: &Path) -> Result<(), NameError> {
        let path = Self::file_of(path);
        let Some(found) = Found::at(&path)? else { return Ok(()) };
        let (file, text) = Self::open(&path, &found)?;
        // There is no way to ask; it is let go again with the file.
        match file.try_lock_shared() {
            Ok(()) => Ok(()),
            Err(TryLockError::WouldBlock) => Err(Self::held(&text)),
            Err(TryLockError::Error(error)) => Err(error.into()),
        }
    }

    fn file_of(path: &Path) -> PathBuf {
        let mut name = path.as_os_str().to_owned();
        name.push(".lock");
        PathBuf::from(name)
    }

    /// The file of a lock of ours, and what stands in it.
    fn open(path: &Path, found: &Found) -> Result<(File, String), NameError> {
        let foreign = |found| NameError::Foreign(path.to_owned(), found);
        if !found.is_file() || !found.is_own() {
            return Err(foreign(found.describe()));
        }
        let file = found.open(true)?;
        let mut text = String::new();
        let read = (&file).take(64).read_to_string(&mut text);
        if read.is_err() || !(text.is_empty() || text.starts_with(LOCK)) {
            return Err(foreign(format!("{} that is no lock", found.describe())));
        }
        Ok((file, text))
    }

    fn held(text: &str) -> NameError {
        NameError::Held(text.strip_prefix(LOCK).and_then(|pid| pid.trim().parse().ok()))
    }

    fn take_at(path: PathBuf) -> Result<Self, NameError> {
        for _ in 0..LOOKS {
            let Some(found) = Found::at(&path)? else {
                let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL;
                let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                match rustix::fs::open(&path, flags, OWNERS) {
                    Ok(made) => rustix::fs::fchmod(&made, OWNERS).map_err(io::Error::from)?,
                    Err(Errno::EXIST) => {}
                    Err(error) => return Err(NameError::Io(error.into())),
                }
                continue; // whoever made it, it is there
            };
            let (file, text) = Self::open(&path, &found)?;
            match file.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => return Err(Self::held(&text)),
                Err(TryLockError::Error(error)) => return Err(error.into()),
            }
            // Its former holder may have removed it before it let go.
            if !Found::at(&path)?.is_some_and(|now| now.identity() == found.identity()) {
                continue;
            }
            let process = std::process::id();
            file.set_len(0)?;
            file.write_all_at(format!("{LOCK}{process}\n").as_bytes(), 0)?;
            return Ok(Self { file, path, process });
        }
        Err(NameError::Held(None))
    }

    /// The calling process took it; false in a child that was forked since.
    #[must_use]
    pub fn is_own(&self) -> bool {
        self.process == std::process::id()
    }
}

impl Drop for NameLock {
    fn drop(&mut self) {
        // It is still locked, so whoever opens it now finds out that it is gone.
        if self.is_own()
            && let Ok(stat) = rustix::fs::fstat(&self.file)
        {
            Identity::of(&stat).remove_at(&self.path);
        }
    }
}

/// Does what may meet this process's limit on file sizes, so that it is told by an error as a full disk is, and not by
/// SIGXFSZ, which would end the process.
pub fn within_limits<T>(write: impl FnOnce() -> T) -> T {
    let mut before = MaybeUninit::uninit();
    // SAFETY: the set is initialised before it is read, and all pointers are to live memory; the mask that the
    // second call writes is read only when it did.
    let set = unsafe {
        let mut set = MaybeUninit::uninit();
        libc::sigemptyset(set.as_mut_ptr());
        libc::sigaddset(set.as_mut_ptr(), libc::SIGXFSZ);
        let done = libc::pthread_sigmask(libc::SIG_BLOCK, set.as_ptr(), before.as_mut_ptr());
        (done == 0).then_some(set)
    };
    let result = write();
    if let Some(set) = set {
        // SAFETY: as above; the signal is this thread's own, so no other waits for it.
        unsafe {
            let at_once = libc::timespec { tv_sec: 0, tv_nsec: 0 };
            if libc::sigismember(before.as_ptr(), libc::SIGXFSZ) == 0 {
                libc::sigtimedwait(set.as_ptr(), std::ptr::null_mut(), &raw const at_once);
            }
            libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), std::ptr::null_mut());
        }
    }
    result
}

/// Keeps signals from the calling thread: they are for the program's own.
pub fn block_signals() {
    let mut all = MaybeUninit::uninit();
    // SAFETY: the set is initialised before it is read.
    unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), std::ptr::null_mut());
    }
}

/// Lets the calling thread have only what CPU time nobody else wants.
pub fn yield_to_all() {
    let priority = libc::sched_param { sched_priority: 0 };
    // SAFETY: the parameters live through the call, which only reads them. A refusal leaves things as they are.
    let _ = unsafe { libc::sched_setscheduler(0, libc::SCHED_IDLE, &raw const priority) };
}

/// Has the calling thread come before all that are not of real time, as the last among those that are.
///
/// # Errors
/// When the system refuses.
pub fn come_before_others() -> io::Result<()> {
    let priority = libc::sched_param { sched_priority: 1 };
    // SAFETY: the parameters live through the call, which only reads them.
    match unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const priority) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The number of a group of this machine, by its name or number.
#[must_use]
pub fn group(name: &str) -> Option<u32> {
    if let Ok(number) = name.parse() {
        return Some(number);
    }
    let name = CString::new(name).ok()?;
    let mut memory = vec![0; 1 << 16];
    let (mut entry, mut found) = (MaybeUninit::<libc::group>::uninit(), std::ptr::null_mut());
    // SAFETY: all pointers are to live memory of the sizes given; the entry is read only when it was found.
    unsafe {
        let (entry, memory, len) = (entry.as_mut_ptr(), memory.as_mut_ptr(), memory.len());
        libc::getgrnam_r(name.as_ptr(), entry, memory, len, &raw mut found);
        found.as_ref().map(|group| group.gr_gid)
    }
}

#[cfg(test)]
pub(crate) mod tests;
