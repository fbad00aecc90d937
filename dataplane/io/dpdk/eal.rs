//! DPDK's environment abstraction layer (EAL): started once, kept while anything of it is in use, cleaned up last.
#![allow(unsafe_code, reason = "calls into libdpdk")]

use std::ffi::{CStr, CString, c_char, c_int};
use std::fs::{self, File};
use std::io::{self, Read, Seek, Write};
use std::marker::PhantomData;
use std::os::fd::{AsRawFd, FromRawFd};
use std::sync::{Arc, Mutex, Once, PoisonError};

use wedjat_sys as sys;

use super::folders::{self, eal_prefix};
use super::log as dpdk_log;
use super::memif::{self, Interposed, Relays, SocketError};
use super::turns;
use crate::cpus;
use crate::io::vdev::is_pci_address;

/// Mebibytes that EAL maps at start when there are no hugepages; pages are taken as they are touched.
const MEMORY_MB: u32 = 512;

/// The running environment. Clones share it, pools and devices hold one, and the last to go cleans up.
#[derive(Clone)]
pub struct Eal {
    running: Arc<Running>,
    ticks_hz: u64,
}

struct Running {
    arguments: Vec<String>,
    /// Of memif devices.
    relays: Relays,
}

impl Drop for Running {
    fn drop(&mut self) {
        // SAFETY: EAL runs, and returns a static string.
        let folder = unsafe { CStr::from_ptr(sys::rte_eal_get_runtime_dir()) }
            .to_string_lossy()
            .into_owned();
        turns::end();
        // SAFETY: made only after a successful rte_eal_init; pools and devices hold an `Eal`, so none is left.
        unsafe { sys::rte_eal_cleanup() };
        Pages::remove();
        // EAL leaves its folder behind, and its telemetry socket until the process exits; ours has a name of our own.
        if folder.ends_with(&eal_prefix(std::process::id())) {
            let _ = fs::remove_dir_all(folder);
        }
    }
}

/// Why EAL did not start.
#[derive(Debug, thiserror::Error)]
pub enum EalError {
    /// The shared library is not there, or is another release's.
    #[error(
        "DPDK's shared library can't be loaded: {reason}; install the libdpdk that this program was built against ({}), name its \
         folder in LD_LIBRARY_PATH, or build anew",
        crate::VERSION
    )]
    Library {
        /// The system's words, which name what is missing.
        reason: String,
    },
    /// An argument contains a NUL byte.
    #[error("EAL argument {0:?} contains a NUL byte: remove it")]
    Argument(String),
    /// `rte_eal_init` failed.
    #[error("DPDK's EAL did not start: {reason}{said}\n  arguments: {arguments}\n  {hint}")]
    Init {
        /// The text of `rte_errno`.
        reason: String,
        /// What EAL logged, indented.
        said: String,
        /// The arguments it was given.
        arguments: String,
        /// What to try.
        hint: &'static str,
    },
    /// The socket of a memif device cannot be had.
    #[error(transparent)]
    Memif(#[from] SocketError),
    /// `rte_thread_register` failed.
    #[error(
        "DPDK cannot register this thread: {reason}; at most {} threads can be, and none after a secondary process joined",
        sys::RTE_MAX_LCORE
    )]
    Register {
        /// The text of `rte_errno`.
        reason: String,
    },
}

impl Eal {
    /// Starts EAL with the user's arguments and [`arguments`]' additions; `devices` are those that will be opened.
    ///
    /// # Errors
    /// When EAL refuses: the error carries what EAL logged and what to try. A second start is refused as well.
    pub fn init(user: &[String], devices: &[&str]) -> Result<Self, EalError> {
        Self::init_beside(user, devices, &[])
    }

    /// As [`Eal::init`], and keeps the calling thread and EAL's own threads off the CPUs `dispatchers`, unless the user
    /// places lcores himself or no other CPU is left. EAL's threads then never interrupt a poll loop.
    ///
    /// # Errors
    /// As [`Eal::init`].
    pub fn init_beside(
        user: &[String],
        devices: &[&str],
        dispatchers: &[usize],
    ) -> Result<Self, EalError> {
        let others = cpus::beside(dispatchers);
        let cpus = if others.is_empty() { cpus::usable() } else { others };
        if !places_lcores(user) {
            // EAL gives its control threads the caller's CPUs less the lcores', or the main lcore's when none is left.
            stay_on(&cpus);
        }
        load()?;
        // Before free pages are looked for.
        folders::clean();
        let arguments = arguments(user, devices, hugepages_usable(), &cpus, std::process::id());
        Self::start(&arguments)
    }

    fn start(arguments: &[String]) -> Result<Self, EalError> {
        let mut relays = Relays::default();
        let settle: memif::Settle = Arc::new(|| turns::take_turn(&|| {}));
        let given = relays.interpose(arguments, &settle)?;
        let mut argv = Vec::with_capacity(given.len() + 2);
        for argument in std::iter::once("wedjat").chain(given.iter().map(String::as_str)) {
            let text =
                CString::new(argument).map_err(|_| EalError::Argument(argument.to_owned()))?;
            // EAL and its drivers keep pointers into argv as long as the process lives.
            argv.push(text.into_raw());
        }
        let argc = argv.len() as c_int;
        argv.push(std::ptr::null_mut());
        let log = LogCapture::start();
        let watch = log.as_ref().and_then(|log| ExitWatch::start(log, arguments));
        Pages::remove_at_exit();
        // Another process may have the user's prefix; ours is unique.
        if Pages::prefix(arguments) == Some(eal_prefix(std::process::id())) {
            Pages::are_of(arguments);
        }
        // SAFETY: argv is NULL-terminated and its strings are never freed; the array itself is leaked below.
        let parsed =
            unsafe { sys::rte_eal_init(argc, argv.leak().as_mut_ptr().cast::<*mut c_char>()) };
        let errno = errno();
        drop(watch);
        let said = log.map(LogCapture::finish).unwrap_or_default();
        if parsed < 0 {
            Pages::remove();
            return Err(refusal(errno, &said, arguments));
        }
        Pages::are_of(arguments);
        dpdk_log::note(&said);
        // SAFETY: EAL is running, so the TSC has been calibrated.
        let ticks_hz = unsafe { sys::rte_get_tsc_hz() };
        let running = Running { arguments: arguments.to_vec(), relays };
        Ok(Self { running: Arc::new(running), ticks_hz })
    }

    /// What EAL was started with, ours included: a run's manifest states it.
    pub fn arguments(&self) -> &[String] {
        &self.running.arguments
    }

    /// What stands between a memif device and its peers.
    pub(super) fn relay(&self, device: &str) -> Option<Interposed> {
        self.running.relays.of(device).cloned()
    }

    /// Ticks of [`Eal::now`] in a second.
    pub fn ticks_hz(&self) -> u64 {
        self.ticks_hz
    }

    /// The time-stamp counter, in ticks.
    #[inline]
    pub fn now(&self) -> u64 {
        // SAFETY: rdtsc is part of the base instruction set and touches no memory.
        #[cfg(target_arch = "x86_64")]
        unsafe {
            std::arch::x86_64::_rdtsc()
        }
        // SAFETY: reads a counter; EAL is running.
        #[cfg(not(target_arch = "x86_64"))]
        unsafe {
            sys::rte_get_tsc_cycles()
        }
    }

    /// Makes the calling thread known to EAL, which gives it mempool caches of its own, until the guard is dropped.
    ///
    /// Pin the thread first. The thread that started EAL is known already; for it the guard does nothing.
    ///
    /// # Errors
    /// When EAL has no lcore id left for it.
    pub fn register_thread(&self) -> Result<Lcore, EalError> {
        // SAFETY: reads a thread-local variable.
        let known = unsafe { sys::rte_lcore_id() } < sys::RTE_MAX_LCORE;
        // SAFETY: EAL is running and this thread is not registered.
        if !known && unsafe { sys::rte_thread_register() } != 0 {
            return Err(EalError::Register { reason: error_text(errno()) });
        }
        Ok(Lcore { ours: !known, _eal: self.clone(), _this_thread: PhantomData })
    }
}

/// A thread's registration with EAL; stays on its thread.
#[must_use = "the thread is registered while this lives"]
pub struct Lcore {
    ours: bool,
    _eal: Eal,
    _this_thread: PhantomData<*const ()>,
}

impl Drop for Lcore {
    fn drop(&mut self) {
        if self.ours {
            // SAFETY: this thread was registered by us (the guard is not Send), and EAL still runs.
            unsafe { sys::rte_thread_unregister() };
        }
    }
}

/// Loads libdpdk, before anything of it is called.
fn load() -> Result<(), EalError> {
    sys::load().map_err(|reason| EalError::Library { reason })
}

/// DPDK's release, such as `DPDK 22.11.11`.
///
/// # Errors
/// When its shared library can't be loaded.
pub fn version() -> Result<String, EalError> {
    load()?;
    // SAFETY: returns a static string, with or without a running EAL.
    Ok(unsafe { CStr::from_ptr(sys::rte_version()) }.to_string_lossy().into_owned())
}

/// Whether libdpdk and its drivers are in this binary; otherwise EAL loads drivers from [`driver_folder`].
pub fn linked_statically() -> bool {
    sys::LINKED_STATICALLY
}

/// The folder from which the shared library loads its drivers; empty when the build names none.
pub fn driver_folder() -> &'static str {
    CStr::from_bytes_until_nul(sys::WEDJAT_DRIVER_FOLDER)
        .ok()
        .and_then(|folder| folder.to_str().ok())
        .unwrap_or("")
}

/// The user's EAL arguments and what a machine as we found it needs besides; the user's own always win.
///
/// | not given | added | why |
/// |---|---|---|
/// | memory | `--no-huge --no-shconf -m 512` when no hugepage is free | starts on any machine, leaves no files |
/// | `--file-prefix` | `wedjat-PID` | two processes never share EAL's files by accident |
/// | lcores | lcore 0 on all of `cpus` | EAL neither pins the caller nor starts threads: dispatchers are ours |
/// | PCI devices | `-a ADDRESS` for each in `devices`, else `--no-pci` | touches no NIC but those named |
/// | `--vdev` | for each of `devices` that has arguments | a config can name a virtual device whole |
/// | `--log-level` | `warning` | EAL is chatty |
pub fn arguments(
    user: &[String],
    devices: &[&str],
    hugepages: bool,
    cpus: &[usize],
    process: u32,
) -> Vec<String> {
    let given = |options: &[&str]| is_given(user, options);
    let mut all = user.to_vec();
    let mut add = |words: &[&str]| all.extend(words.iter().map(|&word| word.to_owned()));

    let no_huge = given(&["--no-huge"]);
    let memory = ["-m", "--socket-mem", "--huge-dir", "--in-memory", "--single-file-segments"];
    if no_huge || (!hugepages && !given(&memory)) {
        if !no_huge {
            add(&["--no-huge"]);
        }
        // --in-memory would say more, but EAL refuses it together with --no-huge, which implies --legacy-mem.
        if !given(&["--no-shconf", "--in-memory", "--proc-type"]) {
            add(&["--no-shconf"]);
        }
        if !given(&["-m"]) {
            add(&["-m", &MEMORY_MB.to_string()]);
        }
    }
    if !given(&["--file-prefix"]) {
        add(&["--file-prefix", &eal_prefix(process)]);
    }
    if !places_lcores(user) && !cpus.is_empty() {
        let list: Vec<String> = cpus.iter().map(usize::to_string).collect();
        add(&["--lcores", &format!("0@({})", list.join(","))]);
    }
    if !given(&["-a", "--allow", "-b", "--block", "--no-pci"]) {
        let addresses: Vec<&&str> =
            devices.iter().filter(|device| is_pci_address(device)).collect();
        addresses.iter().for_each(|address| add(&["-a", address]));
        if addresses.is_empty() {
            add(&["--no-pci"]);
        }
    }
    devices.iter().filter(|device| device.contains(',') && !is_pci_address(device)).for_each(
        |device| {
            add(&["--vdev", device]);
        },
    );
    if !given(&["--log-level"]) {
        add(&["--log-level", "warning"]);
    }
    all
}

fn places_lcores(user: &[String]) -> bool {
    is_given(user, &["-l", "-c", "--lcores", "-s", "-S"])
}

fn is_given(user: &[String], options: &[&str]) -> bool {
    user.iter().any(|argument| options.iter().any(|option| is_option(argument, option)))
}

/// Restricts the calling thread to `cpus`; the scheduler keeps the old set when that fails.
fn stay_on(cpus: &[usize]) {
    // SAFETY: a CPU set is plain bits, zero is valid; CPU_SET ignores what is out of its range; size and pointer agree.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        for &cpu in cpus.iter().filter(|&&cpu| cpu < libc::CPU_SETSIZE as usize) {
            libc::CPU_SET(cpu, &mut set);
        }
        libc::sched_setaffinity(0, size_of_val(&set), &set);
    }
}

/// `-m512`, `-m` (its value follows), `--vdev=x` and `--vdev` (its value follows) all are the option.
fn is_option(argument: &str, option: &str) -> bool {
    match argument.strip_prefix(option) {
        Some(rest) if option.starts_with("--") => rest.is_empty() || rest.starts_with('='),
        Some(_) => !argument.starts_with("--"),
        None => false,
    }
}

/// Whether EAL would find a free hugepage and a hugetlbfs mount.
fn hugepages_usable() -> bool {
    let mounted =
        fs::read_to_string("/proc/mounts").is_ok_and(|mounts| mounts.contains(" hugetlbfs "));
    let free = |folder: fs::DirEntry| {
        fs::read_to_string(folder.path().join("free_hugepages"))
            .is_ok_and(|count| count.trim().parse::<u64>().is_ok_and(|count| count > 0))
    };
    mounted
        && fs::read_dir("/sys/kernel/mm/hugepages").is_ok_and(|folders| folders.flatten().any(free))
}

pub(super) fn errno() -> c_int {
    // SAFETY: reads a thread-local variable.
    unsafe { sys::wedjat_errno() }
}

/// DPDK's text for an error number, of either sign.
pub(super) fn error_text(number: c_int) -> String {
    // SAFETY: returns a pointer to a static or thread-local string that is copied at once.
    unsafe { CStr::from_ptr(sys::rte_strerror(number.abs())) }.to_string_lossy().into_owned()
}

fn refusal(errno: c_int, said: &str, arguments: &[String]) -> EalError {
    EalError::Init {
        reason: error_text(errno),
        said: indented_end(said),
        arguments: arguments.join(" "),
        hint: hint(errno, said),
    }
}

/// The last lines of a log, each on a line of its own after a message.
pub(super) fn indented_end(said: &str) -> String {
    let lines: Vec<&str> = said.lines().collect();
    lines[lines.len().saturating_sub(8)..].iter().map(|line| format!("\n    {line}")).collect()
}

fn hint(errno: c_int, said: &str) -> &'static str {
    let said = said.to_lowercase();
    if errno == libc::EALREADY {
        "EAL starts once in a process; use the one that runs"
    } else if said.contains("command line") {
        "correct the EAL arguments (those after --)"
    } else if said.contains("hugepage") || said.contains("memory") || errno == libc::ENOMEM {
        "reserve hugepages (dpdk-hugepages.py --setup 1G) or start with --no-huge -m 512"
    } else if said.contains("lock") && said.contains("config") {
        "another DPDK process uses this --file-prefix: give each its own"
    } else if said.contains("permission") || errno == libc::EACCES || errno == libc::EPERM {
        "start as root, or with --no-huge --no-pci, which need no rights"
    } else if said.contains("vdev") || said.contains("probe") || errno == libc::ENODEV {
        "check the device's name and arguments, and that its driver is installed (librte-net-*); wedjat doctor lists them"
    } else {
        "check the EAL arguments (those after --); wedjat doctor checks the machine"
    }
}

/// Collects what DPDK logs during a step of start-up, so that a failure can say why.
pub(super) struct LogCapture {
    file: File,
}

impl LogCapture {
    pub(super) fn start() -> Option<Self> {
        // SAFETY: a plain system call with a static name; the descriptor is owned by `file` from here on.
        let descriptor = unsafe { libc::memfd_create(c"eal-log".as_ptr(), libc::MFD_CLOEXEC) };
        if descriptor < 0 {
            return None;
        }
        // SAFETY: the descriptor is open and nobody else's.
        let file = unsafe { File::from_raw_fd(descriptor) };
        // SAFETY: `dup` gives the stream a descriptor of its own. The stream is never closed, because a thread of EAL
        // may still be writing to it when `finish` has put another in its place.
        let opened = unsafe {
            let stream = libc::fdopen(libc::dup(file.as_raw_fd()), c"w".as_ptr());
            if !stream.is_null() {
                libc::setvbuf(stream, std::ptr::null_mut(), libc::_IONBF, 0);
                sys::rte_openlog_stream(stream.cast());
            }
            !stream.is_null()
        };
        opened.then_some(Self { file })
    }

    pub(super) fn finish(mut self) -> String {
        dpdk_log::redirect();
        let mut text = String::new();
        let read = self.file.rewind().and_then(|()| self.file.read_to_string(&mut text));
        read.map(|_| text).unwrap_or_default()
    }
}

/// Files on huge pages of this process, which EAL does not remove.
struct Pages;

/// Their prefix, and the process that has made them.
static PAGES: Mutex<Option<(String, u32)>> = Mutex::new(None);

impl Pages {
    /// EAL's file prefix; none where the files may be another process's.
    fn prefix(arguments: &[String]) -> Option<String> {
        let mut arguments = arguments.iter();
        let is_secondary = |text: &String| is_option(text, "--proc-type");
        if arguments.clone().any(is_secondary) {
            return None;
        }
        let given = arguments.find(|text| is_option(text, "--file-prefix"))?;
        given
            .strip_prefix("--file-prefix=")
            .or(arguments.next().map(String::as_str))
            .map(str::to_owned)
    }

    fn are_of(arguments: &[String]) {
        let prefix = Self::prefix(arguments).map(|prefix| (prefix, std::process::id()));
        *PAGES.lock().unwrap_or_else(PoisonError::into_inner) = prefix;
    }

    /// Removes them. A forked child leaves its parent's files alone.
    fn remove() {
        let pages = PAGES.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some((prefix, _)) = pages.filter(|(_, process)| *process == std::process::id()) {
            folders::remove_pages(&prefix);
        }
    }

    /// A process may end while EAL runs, as after an error on one of several threads.
    fn remove_at_exit() {
        static REGISTERED: Once = Once::new();
        REGISTERED.call_once(|| {
            // SAFETY: the handler takes nothing and stays as long as the process. Without it the next start removes the files.
            unsafe { libc::atexit(remove_pages) };
        });
    }
}

extern "C" fn remove_pages() {
    Pages::remove();
}

/// While EAL starts: that of newer releases (seen with DPDK 26.07) ends the process when it does not know an option, with what it says in
/// the log that is collected. Whoever started the process is told then as of any other start that fails.
struct ExitWatch;

/// What EAL says in its log, and the arguments that it was given, while it starts.
static STARTING: Mutex<Option<(File, Vec<String>)>> = Mutex::new(None);

impl ExitWatch {
    fn start(log: &LogCapture, arguments: &[String]) -> Option<Self> {
        let file = log.file.try_clone().ok()?;
        // SAFETY: the handler takes nothing and stays as long as the process.
        if unsafe { libc::atexit(tell_of_exit) } != 0 {
            return None;
        }
        *STARTING.lock().ok()? = Some((file, arguments.to_vec()));
        Some(Self)
    }

    fn end() -> Option<(File, Vec<String>)> {
        STARTING.lock().ok()?.take()
    }
}

impl Drop for ExitWatch {
    fn drop(&mut self) {
        Self::end();
    }
}

/// The process ends. Where EAL does that and has said nothing it was asked for its usage, and nothing is wrong.
extern "C" fn tell_of_exit() {
    let Some((mut file, arguments)) = ExitWatch::end() else { return };
    let mut said = String::new();
    if file.rewind().and_then(|()| file.read_to_string(&mut said)).is_ok() && !said.is_empty() {
        let error = refusal(libc::EINVAL, &said, &arguments);
        let _ = writeln!(io::stderr(), "wedjat: {error}");
        // SAFETY: ends the process, as it is about to. No other handler is to run, since EAL is neither started nor not.
        unsafe { libc::_exit(1) };
    }
}

/// The driver of a device of which this is known.
pub(super) fn driver_name(info: &sys::rte_eth_dev_info) -> String {
    if info.driver_name.is_null() {
        return "unknown".to_owned();
    }
    // SAFETY: drivers set this to a static string.
    unsafe { CStr::from_ptr(info.driver_name) }.to_string_lossy().into_owned()
}

/// The drivers of all devices that EAL has found.
pub(super) fn drivers() -> Vec<String> {
    let driver = |id: u16| {
        let mut info = sys::rte_eth_dev_info::default();
        // SAFETY: EAL runs; the device exists where it is asked for its values, and `info` takes them.
        let known = unsafe {
            sys::rte_eth_dev_is_valid_port(id) == 1 && sys::rte_eth_dev_info_get(id, &mut info) == 0
        };
        known.then(|| driver_name(&info))
    };
    (0..sys::RTE_MAX_ETHPORTS as u16).filter_map(driver).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<String> {
        line.split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn a_bare_machine_gets_what_it_needs() {
        assert_eq!(
            arguments(&[], &["net_memif0"], false, &[0, 1], 7).join(" "),
            "--no-huge --no-shconf -m 512 --file-prefix wedjat-7 --lcores 0@(0,1) --no-pci --log-level warning"
        );
    }

    #[test]
    fn hugepages_and_named_devices_are_used() {
        assert_eq!(
            arguments(&[], &["0000:03:00.0", "net_null0,size=64"], true, &[2], 7).join(" "),
            "--file-prefix wedjat-7 --lcores 0@(2) -a 0000:03:00.0 --vdev net_null0,size=64 --log-level warning"
        );
    }

    #[test]
    fn the_users_arguments_win() {
        let user =
            words("--no-huge --no-shconf -m64 --file-prefix=a -l 0-1 --no-pci --log-level=debug");
        assert_eq!(arguments(&user, &["03:00.0"], true, &[0], 7), user);
        let user = words("--socket-mem=64 -a 04:00.0 --lcores=3@1 --file-prefix b --log-level 8");
        assert_eq!(arguments(&user, &["03:00.0"], false, &[0], 7), user);
    }
}
