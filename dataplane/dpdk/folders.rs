//! Folders of this process that other processes use, and removal of the leftovers of dead processes.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;

use rustix::fs::{FlockOperation, OFlags, fcntl_lock, flock};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

/// Prefix of the names of EAL's files, before the process id.
const PREFIX: &str = "wedjat-";
/// Prefix of the names of folders with drivers' sockets, before the process id.
const PRIVATE: &str = "memif-";

/// Returns EAL's file prefix for a process.
pub(super) fn eal_prefix(process: u32) -> String {
    format!("{PREFIX}{process}")
}

/// Returns the folder of this user's sockets, which no other user may enter; creates it if needed. It is
/// `/run/wedjat` for root, else `wedjat` in `$XDG_RUNTIME_DIR`, else `/tmp/wedjat-UID`.
///
/// # Errors
/// If it cannot be created, or another user may enter it. The text names it.
pub(super) fn runtime() -> io::Result<PathBuf> {
    let folder = path_of_runtime();
    create_own(&folder)?;
    Ok(folder)
}

/// Returns the path of the folder of [`runtime`] without creating it, for checks of a configuration.
///
/// # Errors
/// If it exists and is not a folder of this user alone.
pub(super) fn checked_path() -> io::Result<PathBuf> {
    let folder = path_of_runtime();
    match fs::symlink_metadata(&folder) {
        Ok(_) => check_own(&folder).map(|()| folder),
        Err(_) => Ok(folder),
    }
}

/// Returns the path of the folder of [`runtime`], existing or not.
fn path_of_runtime() -> PathBuf {
    let user = rustix::process::geteuid().as_raw();
    let xdg_folder = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    match xdg_folder.filter(|xdg_folder| xdg_folder.is_absolute() && xdg_folder.is_dir()) {
        _ if user == 0 => PathBuf::from("/run/wedjat"),
        Some(xdg_folder) => xdg_folder.join("wedjat"),
        None => PathBuf::from(format!("/tmp/wedjat-{user}")),
    }
}

/// A folder in [`runtime`] for the sockets of this process's drivers. Dropping the value removes it.
pub(super) struct PrivateFolder(PathBuf);

impl PrivateFolder {
    /// Creates an empty folder.
    ///
    /// # Errors
    /// If the folder of sockets cannot be created, or another user may enter it.
    pub(super) fn new() -> io::Result<Self> {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let (process, number) = (std::process::id(), COUNT.fetch_add(1, Relaxed));
        let folder = runtime()?.join(format!("{PRIVATE}{process}.{number}"));
        // An earlier process with the same id may have left it.
        let _ = fs::remove_dir_all(&folder);
        create_own(&folder)?;
        Ok(Self(folder))
    }

    /// Returns its path.
    pub(super) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for PrivateFolder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Creates a folder for this user alone, or checks the existing one.
fn create_own(folder: &Path) -> io::Result<()> {
    let with_folder = |error: io::Error| {
        io::Error::new(error.kind(), format!("folder {}: {error}", folder.display()))
    };
    match DirBuilder::new().mode(0o700).create(folder) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(with_folder(error)),
        _ => check_own(folder),
    }
}

/// Checks that only this user may enter the folder.
fn check_own(folder: &Path) -> io::Result<()> {
    let with_folder = |error: io::Error| {
        io::Error::new(error.kind(), format!("folder {}: {error}", folder.display()))
    };
    let metadata = fs::symlink_metadata(folder).map_err(with_folder)?;
    let user = rustix::process::geteuid().as_raw();
    if metadata.is_dir() && metadata.uid() == user && metadata.mode() & 0o077 == 0 {
        return Ok(());
    }
    let text = format!("it must be a folder of user {user} with mode 0700: remove it");
    Err(with_folder(io::Error::new(io::ErrorKind::PermissionDenied, text)))
}

/// Removes the leftovers of dead wedjat processes: EAL's folders and hugepage files with our prefix, and
/// folders of sockets. Keeps files of other users and files that may be in use.
pub(super) fn clean() {
    for (folder, prefix) in [(eal_folder(), PREFIX), (path_of_runtime(), PRIVATE)] {
        // In /tmp any user may have created it.
        if is_owned(&folder, fs::Metadata::is_dir) {
            clean_folders(&folder, prefix);
        }
    }
    page_folders().iter().for_each(|folder| clean_pages(folder));
}

/// Returns the mount points of hugetlbfs.
fn page_folders() -> Vec<PathBuf> {
    let mounts = fs::read_to_string("/proc/mounts").unwrap_or_default();
    let folder = |mount: &str| {
        let mut words = mount.split(' ').skip(1);
        let folder = words.next()?;
        (words.next() == Some("hugetlbfs")).then(|| PathBuf::from(folder))
    };
    mounts.lines().filter_map(folder).collect()
}

/// Removes the hugepage files of this process's own EAL, which has this prefix, when it ends. EAL's cleanup leaves the
/// files, and they keep the pages allocated.
pub(super) fn remove_pages(prefix: &str) {
    for entry in page_folders().iter().flat_map(fs::read_dir).flatten().flatten() {
        let name = entry.file_name();
        let number = name.to_str().and_then(|name| name.strip_prefix(prefix)?.strip_prefix("map_"));
        let is_of_eal =
            number.is_some_and(|number| number.bytes().all(|byte| byte.is_ascii_digit()));
        if is_of_eal && is_owned(&entry.path(), fs::Metadata::is_file) {
            let _ = fs::remove_file(entry.path());
        }
    }
}

/// Returns the folder in which EAL creates a folder for each prefix (`eal_create_runtime_dir`).
fn eal_folder() -> PathBuf {
    let folder = match std::env::var_os("RUNTIME_DIRECTORY") {
        Some(folder) => PathBuf::from(folder),
        None if rustix::process::getuid().is_root() => PathBuf::from("/var/run"),
        None => std::env::var_os("XDG_RUNTIME_DIR").map_or("/tmp".into(), PathBuf::from),
    };
    folder.join("dpdk")
}

/// Removes the folders in `parent` that are named after `prefix` and the id of a dead process.
fn clean_folders(parent: &Path, prefix: &str) {
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let process = name.to_str().and_then(|name| name.strip_prefix(prefix));
        let process = process.and_then(|rest| rest.split('.').next()?.parse().ok());
        let is_dead = process.is_some_and(has_exited);
        if is_dead && is_owned(&entry.path(), fs::Metadata::is_dir) && is_unused(&entry.path()) {
            log::info!("{} was left by a process that died: removed", entry.path().display());
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

/// Removes the hugepage files of dead processes, such as `wedjat-123map_0`. EAL holds a lock on each file in
/// use.
fn clean_pages(parent: &Path) {
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let parts = name.to_str().and_then(|name| name.strip_prefix(PREFIX)?.split_once("map_"));
        let Some((process, _)) =
            parts.filter(|(_, rest)| rest.bytes().all(|byte| byte.is_ascii_digit()))
        else {
            continue;
        };
        let is_dead =
            process.parse().is_ok_and(has_exited) && is_owned(&entry.path(), fs::Metadata::is_file);
        let is_free = |file: File| flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok();
        if is_dead && open(&entry.path()).is_ok_and(is_free) {
            log::info!("{} was left by a process that died: removed", entry.path().display());
            let _ = fs::remove_file(entry.path());
        }
    }
}

/// Returns true if no process has this id in our PID namespace. It may run in another (a container's); then
/// it holds a lock or serves a socket.
fn has_exited(process: u32) -> bool {
    process != std::process::id() && !Path::new("/proc").join(process.to_string()).exists()
}

/// Returns true if this user owns the file, and `is_kind` accepts its metadata.
fn is_owned(path: &Path, is_kind: fn(&fs::Metadata) -> bool) -> bool {
    fs::symlink_metadata(path).is_ok_and(|metadata| {
        is_kind(&metadata) && metadata.uid() == rustix::process::geteuid().as_raw()
    })
}

/// Returns true if no process uses the folder. EAL locks `config` while it runs, and each socket in use has a
/// server.
fn is_unused(folder: &Path) -> bool {
    fs::read_dir(folder).is_ok_and(|mut entries| {
        entries.all(|entry| {
            entry.is_ok_and(|entry| {
                let is_socket = entry.file_type().is_ok_and(|kind| kind.is_socket());
                match entry.file_name() == "config" {
                    true => open(&entry.path()).is_ok_and(|file| {
                        fcntl_lock(&file, FlockOperation::NonBlockingLockExclusive).is_ok()
                    }),
                    false => !is_socket || is_unserved(&entry.path()),
                }
            })
        })
    })
}

/// Returns true if no process serves a socket, for leftovers and for memif sockets. A served socket of another type
/// gives another error.
pub(super) fn is_unserved(path: &Path) -> bool {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let result = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
        .and_then(|socket| rustix::net::connect(&socket, &SocketAddrUnix::new(path)?));
    result == Err(Errno::CONNREFUSED)
}

/// Opens a file for a lock. Does not follow a link, or wait for the writer of a FIFO.
fn open(path: &Path) -> io::Result<File> {
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits() as i32;
    OpenOptions::new().read(true).write(true).custom_flags(flags).open(path)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::net::{UnixDatagram, UnixListener};
    use std::process::Command;

    use super::*;

    /// Returns the id of an exited process, which no other process has yet.
    fn dead_process() -> u32 {
        let mut child = Command::new("true").spawn().unwrap();
        let number = child.id();
        child.wait().unwrap();
        number
    }

    // promise: running.1
    #[test]
    fn only_leftovers_of_dead_processes_are_removed() {
        let home = tempfile::tempdir().unwrap();
        let (dead, alive) = (dead_process(), std::process::id());
        // Creates a folder with this name.
        let folder = |name: String| {
            let folder = home.path().join(name);
            fs::create_dir(&folder).unwrap();
            folder
        };
        let leftover = folder(eal_prefix(dead));
        File::create(leftover.join("config")).unwrap();
        drop(UnixDatagram::bind(leftover.join("mp_socket")).unwrap());
        let own_folder = folder(eal_prefix(alive));
        let of_others = [folder(format!("rte-{dead}")), folder("wedjat-x".to_owned())];
        // Stands for a process outside this PID namespace: no such process is visible, but it serves a socket.
        let served = folder(format!("{}.2", eal_prefix(dead)));
        let listener = UnixListener::bind(served.join("telemetry")).unwrap();
        let link = home.path().join(format!("{}.3", eal_prefix(dead)));
        std::os::unix::fs::symlink(&of_others[0], &link).unwrap();
        // Another process holds a lock on its configuration, as EAL does.
        let locked = folder(format!("{}.4", eal_prefix(dead)));
        let config = locked.join("config");
        File::create(&config).unwrap();
        let mut holder = Command::new("python3")
            .arg("-c")
            .arg("import fcntl,sys; f=open(sys.argv[1],'r+'); fcntl.lockf(f,fcntl.LOCK_EX); print('x',flush=True); sys.stdin.read()")
            .arg(&config)
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        io::Read::read_exact(holder.stdout.as_mut().unwrap(), &mut [0]).unwrap();

        clean_folders(home.path(), PREFIX);
        assert!(!leftover.exists());
        assert!(own_folder.exists() && of_others.iter().all(|other| other.exists()));
        assert!(served.exists() && link.is_symlink() && locked.exists());
        drop((listener, holder.stdin.take()));
        holder.wait().unwrap();
        clean_folders(home.path(), PREFIX);
        assert!(!served.exists() && !locked.exists());
    }

    // promise: running.1
    #[test]
    fn hugepages_of_dead_processes_are_removed_unless_locked() {
        let home = tempfile::tempdir().unwrap();
        let prefix = eal_prefix(dead_process());
        // Creates a file with this name.
        let file = |name: &str| {
            let path = home.path().join(name);
            (File::create(&path).unwrap(), path)
        };
        let (_, leftover) = file(&format!("{prefix}map_0"));
        let (mapped, mapped_path) = file(&format!("{prefix}map_1"));
        flock(&mapped, FlockOperation::LockShared).unwrap();
        let foreign = [
            file(&format!("{}map_0", eal_prefix(std::process::id()))),
            file("rtemap_0"),
            file(&format!("{prefix}map_x")),
            file(&format!("{prefix}0")),
        ];
        clean_pages(home.path());
        assert!(!leftover.exists() && mapped_path.exists());
        assert!(foreign.iter().all(|(_, path)| path.exists()));
    }

    // promise: ports.2
    #[test]
    fn unsafe_folder_is_refused() {
        let home = tempfile::tempdir().unwrap();
        let folder = home.path().join("wedjat");
        create_own(&folder).unwrap();
        create_own(&folder).unwrap();
        assert_eq!(fs::metadata(&folder).unwrap().mode() & 0o777, 0o700);
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o750)).unwrap();
        let refused = create_own(&folder).unwrap_err().to_string();
        assert!(refused.contains("wedjat") && refused.contains("0700"), "{refused}");
        let link = home.path().join("link");
        std::os::unix::fs::symlink(home.path(), &link).unwrap();
        assert!(create_own(&link).is_err(), "a link is not a folder");
        assert!(create_own(&home.path().join("a/b")).is_err());
    }
}
