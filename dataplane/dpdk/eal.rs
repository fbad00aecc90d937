//! DPDK's environment abstraction layer (EAL). It starts once and is cleaned up after its last user. An lcore is a
//! thread that EAL knows.
#![allow(unsafe_code, reason = "calls into libdpdk")]

use std::ffi::{CStr, CString, c_char, c_int};
use std::fs::{self, File};
use std::io::{self, Read, Seek, Write};
use std::marker::PhantomData;
use std::os::fd::{AsRawFd, FromRawFd};
use std::sync::{Arc, Mutex, Once, PoisonError};

use wedjat_core::cpus;
use wedjat_core::io::vdev::is_pci_address;
use wedjat_sys as sys;

use super::events;
use super::folders::{self, eal_prefix};
use super::log as dpdk_log;
use super::memif::{self, RelayedDevice, Relays, SocketError};
use super::turns;

/// Mebibytes that EAL maps at start without hugepages. The kernel allocates each page at its first use.
const MEMORY_MB: u32 = 512;

/// Running EAL. Clones share it; pools and devices hold one. Dropping the last one cleans up.
#[derive(Clone)]
pub struct Eal {
    /// Cleans up EAL after the last clone.
    running: Arc<EalProcess>,
    /// Ticks of [`Eal::now`] per second.
    ticks_hz: u64,
}

/// The running EAL of this process.
struct EalProcess {
    /// EAL's arguments, before the replacement of memif sockets.
    arguments: Vec<String>,
    /// Relays of memif devices (packet interfaces in shared memory), which stand between the driver and its peers.
    relays: Relays,
}

impl Drop for EalProcess {
    /// Cleans up EAL. Removes its hugepage files, and its folder if that has our own prefix.
    fn drop(&mut self) {
        // SAFETY: EAL runs, and returns a static string.
        let folder = unsafe { CStr::from_ptr(sys::rte_eal_get_runtime_dir()) }
            .to_string_lossy()
            .into_owned();
        // EAL's interrupt thread must not walk its list of sources while the cleanup frees it.
        turns::block_thread();
        // SAFETY: created only after a successful rte_eal_init. Pools and devices hold an `Eal`, so none is
        // left.
        unsafe { sys::rte_eal_cleanup() };
        Pages::remove();
        // EAL leaves its folder behind, and its telemetry socket until the process exits. Only a folder with
        // our own prefix is removed.
        if folder.ends_with(&eal_prefix(std::process::id())) {
            let _ = fs::remove_dir_all(folder);
        }
    }
}

/// Reason why EAL did not start.
#[derive(Debug, thiserror::Error)]
pub enum EalError {
    /// The shared library is missing or of another release.
    #[error(
        "DPDK's shared library can't be loaded: {reason}; install libdpdk {}, which it was built against, \
         set LD_LIBRARY_PATH, or rebuild",
        sys::VERSION
    )]
    Library {
        /// The system's error, which names the missing file or symbol.
        reason: String,
    },
    /// An argument contains a NUL byte.
    #[error("EAL argument {0:?} contains a NUL byte: remove it")]
    Argument(String),
    /// `rte_eal_init` failed.
    #[error("DPDK's EAL did not start: {reason}{said}\n  arguments: {arguments}\n  {hint}")]
    Init {
        /// Text of `rte_errno`.
        reason: String,
        /// EAL's log lines, indented.
        said: String,
        /// Arguments of EAL.
        arguments: String,
        /// Advice for a fix.
        hint: &'static str,
    },
    /// The socket of a memif device is not available.
    #[error(transparent)]
    Memif(#[from] SocketError),
    /// `rte_thread_register` failed.
    #[error(
        "DPDK cannot register this thread: {reason}; at most {} threads can be, and none after a secondary process joined",
        sys::RTE_MAX_LCORE
    )]
    Register {
        /// Text of `rte_errno`.
        reason: String,
    },
}

impl Eal {
    /// Starts EAL with the user's arguments and those that [`arguments`] adds for `devices`.
    ///
    /// # Errors
    /// If the library or a memif socket is not available, or EAL refuses. EAL's refusal carries its log and advice. A
    /// second start fails as well.
    pub fn init(user: &[String], devices: &[&str]) -> Result<Self, EalError> {
        Self::init_excluding(user, devices, &[])
    }

    /// Starts EAL like [`Eal::init`], but keeps the calling thread and EAL's own threads off the CPUs `dispatchers`.
    /// EAL's threads then never interrupt a poll loop. Has no effect if the user places lcores or no other
    /// CPU is left.
    ///
    /// # Errors
    /// Same as for [`Eal::init`].
    pub fn init_excluding(
        user: &[String],
        devices: &[&str],
        dispatchers: &[usize],
    ) -> Result<Self, EalError> {
        let other_cpus = cpus::except(dispatchers);
        let cpus = if other_cpus.is_empty() { cpus::usable() } else { other_cpus };
        if !places_lcores(user) {
            // EAL gives its control threads the caller's CPUs minus those of the lcores. If none is left,
            // they get the main lcore's CPUs.
            restrict_to(&cpus);
        }
        load()?;
        // Cleans up first, because the next step looks for free pages.
        folders::clean();
        let arguments = arguments(user, devices, hugepages_usable(), &cpus, std::process::id());
        Self::start(&arguments)
    }

    /// Starts EAL with exactly these arguments, except that memif devices get private sockets.
    fn start(arguments: &[String]) -> Result<Self, EalError> {
        let mut relays = Relays::default();
        // Waits for EAL's interrupt thread: it handles earlier events, such as messages for the driver, before this
        // empty work.
        let settle: memif::MapSettler = Arc::new(|| turns::take_turn(&|| {}));
        let relayed_arguments = relays.interpose(arguments, &settle)?;
        let mut argv = Vec::with_capacity(relayed_arguments.len() + 2);
        for argument in
            std::iter::once("wedjat").chain(relayed_arguments.iter().map(String::as_str))
        {
            let text =
                CString::new(argument).map_err(|_| EalError::Argument(argument.to_owned()))?;
            // EAL and its drivers keep pointers into argv until the process exits.
            argv.push(text.into_raw());
        }
        let argc = argv.len() as c_int;
        argv.push(std::ptr::null_mut());
        let log = LogCapture::start(); // EAL's messages, for an error
        let watch = log.as_ref().and_then(|log| ExitWatch::start(log, arguments));
        Pages::remove_at_exit();
        // A failed start removes the hugepage files of a recorded prefix. Another process may use a prefix that the
        // user chose, so before the start only our own, which is unique, is recorded.
        if Pages::prefix(arguments) == Some(eal_prefix(std::process::id())) {
            Pages::set_prefix(arguments);
        }
        // SAFETY: argv is NULL-terminated and its strings are never freed; the array is leaked in the same
        // call.
        let parsed =
            unsafe { sys::rte_eal_init(argc, argv.leak().as_mut_ptr().cast::<*mut c_char>()) };
        let errno = errno();
        drop(watch);
        let log_text = log.map(LogCapture::finish).unwrap_or_default();
        if parsed < 0 {
            Pages::remove();
            return Err(refusal(errno, &log_text, arguments));
        }
        Pages::set_prefix(arguments);
        events::watch();
        dpdk_log::log_captured(&log_text);
        // SAFETY: EAL is running, so the TSC has been calibrated.
        let ticks_hz = unsafe { sys::rte_get_tsc_hz() };
        let running = EalProcess { arguments: arguments.to_vec(), relays };
        Ok(Self { running: Arc::new(running), ticks_hz })
    }

    /// Returns EAL's arguments, with the added ones. A run's manifest states them.
    pub fn arguments(&self) -> &[String] {
        &self.running.arguments
    }

    /// Returns the relay between a memif device and its peers; `None` for other devices.
    pub(super) fn relay(&self, device: &str) -> Option<RelayedDevice> {
        self.running.relays.of(device).cloned()
    }

    /// Returns the ticks of [`Eal::now`] per second.
    pub fn ticks_hz(&self) -> u64 {
        self.ticks_hz
    }

    /// Reads the time-stamp counter, in ticks.
    #[inline]
    pub fn now(&self) -> u64 {
        tsc()
    }

    /// Registers the calling thread with EAL until the guard is dropped. EAL gives the thread mempool caches
    /// of its own.
    ///
    /// Pin the thread first. The thread that started EAL is already registered; for it the guard does
    /// nothing.
    ///
    /// # Errors
    /// If EAL has no lcore id left.
    pub fn register_thread(&self) -> Result<Lcore, EalError> {
        // SAFETY: reads a thread-local variable.
        let is_registered = unsafe { sys::rte_lcore_id() } < sys::RTE_MAX_LCORE;
        // SAFETY: EAL is running and this thread is not registered.
        if !is_registered && unsafe { sys::rte_thread_register() } != 0 {
            return Err(EalError::Register { reason: error_text(errno()) });
        }
        Ok(Lcore { has_registered: !is_registered, _eal: self.clone(), _this_thread: PhantomData })
    }
}

/// Reads the time-stamp counter, in ticks.
#[inline]
pub fn tsc() -> u64 {
    // SAFETY: rdtsc is part of the base instruction set and touches no memory.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        std::arch::x86_64::_rdtsc()
    }
    // SAFETY: reads a register of the processor.
    #[cfg(not(target_arch = "x86_64"))]
    unsafe {
        sys::rte_get_tsc_cycles()
    }
}

/// Registration of a thread with EAL; stays on its thread.
#[must_use = "the thread is registered while this lives"]
pub struct Lcore {
    /// True if this guard has registered the thread.
    has_registered: bool,
    /// Keeps EAL running.
    _eal: Eal,
    /// A pointer type, so that the guard cannot move to another thread.
    _this_thread: PhantomData<*const ()>,
}

impl Drop for Lcore {
    /// Unregisters the thread, if this guard registered it.
    fn drop(&mut self) {
        if self.has_registered {
            // SAFETY: this guard registered its own thread (it is not Send), and EAL still runs.
            unsafe { sys::rte_thread_unregister() };
        }
    }
}

/// Loads libdpdk, before any call into it.
fn load() -> Result<(), EalError> {
    sys::load().map_err(|reason| EalError::Library { reason })
}

/// Returns DPDK's release, such as `DPDK 22.11.11`.
///
/// # Errors
/// If the shared library cannot be loaded.
pub fn version() -> Result<String, EalError> {
    load()?;
    // SAFETY: returns a static string, with or without a running EAL.
    Ok(unsafe { CStr::from_ptr(sys::rte_version()) }.to_string_lossy().into_owned())
}

/// Returns true if this binary contains libdpdk and its drivers. Otherwise EAL loads drivers from
/// [`driver_folder`].
pub fn linked_statically() -> bool {
    sys::LINKED_STATICALLY
}

/// Returns the folder from which the shared library loads its drivers; empty if the build names none.
pub fn driver_folder() -> &'static str {
    CStr::from_bytes_until_nul(sys::WEDJAT_DRIVER_FOLDER)
        .ok()
        .and_then(|folder| folder.to_str().ok())
        .unwrap_or("")
}

/// Adds to the user's EAL arguments those that this machine needs, and the virtual devices of `devices`.
///
/// | not given | added | why |
/// |---|---|---|
/// | memory | `--no-huge` when no hugepage is free; with `--no-huge`, `--no-shconf -m 512` | starts on any machine, leaves no files |
/// | `--single-file-segments` | for `net_virtio_user`, with hugepages | its peer maps each file of memory, and at most 8 |
/// | `--file-prefix` | `wedjat-PID` | two processes never share EAL's files by accident |
/// | lcores | lcore 0 on all of `cpus` | EAL neither pins the caller nor starts polling threads: wedjat does |
/// | PCI devices | `-a ADDRESS` for each in `devices`, else `--no-pci` | touches only the named NICs |
/// | (always) | `--vdev` for each of `devices` that has arguments and is no PCI address | a config can name a virtual device |
/// | `--log-level` | `warning` | EAL logs too much |
pub fn arguments(
    user: &[String],
    devices: &[&str],
    hugepages: bool,
    cpus: &[usize],
    process: u32,
) -> Vec<String> {
    let has = |options: &[&str]| is_given(user, options);
    let mut all = user.to_vec();
    let mut add = |words: &[&str]| all.extend(words.iter().map(|&word| word.to_owned()));

    let no_huge = has(&["--no-huge"]);
    let memory = ["-m", "--socket-mem", "--huge-dir", "--in-memory", "--single-file-segments"];
    if no_huge || (!hugepages && !has(&memory)) {
        if !no_huge {
            add(&["--no-huge"]);
        }
        // `--in-memory` would do more. EAL refuses it with `--no-huge`, which implies `--legacy-mem`.
        if !has(&["--no-shconf", "--in-memory", "--proc-type"]) {
            add(&["--no-shconf"]);
        }
        if !has(&["-m"]) {
            add(&["-m", &MEMORY_MB.to_string()]);
        }
    } else if !has(&["--single-file-segments", "--legacy-mem"])
        && devices.iter().copied().chain(user.iter().map(String::as_str)).any(is_virtio_user)
    {
        add(&["--single-file-segments"]);
    }
    if !has(&["--file-prefix"]) {
        add(&["--file-prefix", &eal_prefix(process)]);
    }
    if !places_lcores(user) && !cpus.is_empty() {
        let list: Vec<String> = cpus.iter().map(usize::to_string).collect();
        add(&["--lcores", &format!("0@({})", list.join(","))]);
    }
    if !has(&["-a", "--allow", "-b", "--block", "--no-pci"]) {
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
    if !has(&["--log-level"]) {
        add(&["--log-level", "warning"]);
    }
    all
}

/// Returns true if a device, or an EAL argument, is of the virtio-user driver.
fn is_virtio_user(device: &str) -> bool {
    device.contains("net_virtio_user")
}

/// Returns true if the user's arguments name the CPUs of lcores.
fn places_lcores(user: &[String]) -> bool {
    is_given(user, &["-l", "-c", "--lcores", "-s", "-S"])
}

/// Returns true if `user` contains one of the options.
fn is_given(user: &[String], options: &[&str]) -> bool {
    user.iter().any(|argument| options.iter().any(|option| is_option(argument, option)))
}

/// Restricts the calling thread to `cpus`. On failure the scheduler keeps the old set.
fn restrict_to(cpus: &[usize]) {
    // SAFETY: a CPU set is plain bits, and zero is valid. CPUs beyond its range are filtered out. Size and
    // pointer agree.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        for &cpu in cpus.iter().filter(|&&cpu| cpu < libc::CPU_SETSIZE as usize) {
            libc::CPU_SET(cpu, &mut set);
        }
        libc::sched_setaffinity(0, size_of_val(&set), &set);
    }
}

/// Returns true if `argument` is the option, in one of these forms: `-m512`, `-m` or `--vdev` (the value
/// follows), `--vdev=x`.
fn is_option(argument: &str, option: &str) -> bool {
    match argument.strip_prefix(option) {
        Some(rest) if option.starts_with("--") => rest.is_empty() || rest.starts_with('='),
        Some(_) => !argument.starts_with("--"),
        None => false,
    }
}

/// Returns true if EAL would find a free hugepage and a hugetlbfs mount.
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

/// Returns `rte_errno`.
pub(super) fn errno() -> c_int {
    // SAFETY: reads a thread-local variable.
    unsafe { sys::wedjat_errno() }
}

/// Returns DPDK's text for an error number of either sign.
pub(super) fn error_text(number: c_int) -> String {
    // SAFETY: returns a pointer to a static or thread-local string, which is copied at once.
    unsafe { CStr::from_ptr(sys::rte_strerror(number.abs())) }.to_string_lossy().into_owned()
}

/// Returns the error of a failed start, with the end of EAL's log.
fn refusal(errno: c_int, log: &str, arguments: &[String]) -> EalError {
    EalError::Init {
        reason: error_text(errno),
        said: indented_end(log),
        arguments: arguments.join(" "),
        hint: hint(errno, log),
    }
}

/// Returns the last 8 lines of a log, indented, each on its own line after a message.
pub(super) fn indented_end(log: &str) -> String {
    let lines: Vec<&str> = log.lines().collect();
    lines[lines.len().saturating_sub(8)..].iter().map(|line| format!("\n    {line}")).collect()
}

/// Returns advice for a failed start, from the error number and the words of the log.
fn hint(errno: c_int, log: &str) -> &'static str {
    let log = log.to_lowercase();
    if errno == libc::EALREADY {
        "EAL starts once in a process; use the running one"
    } else if log.contains("command line") {
        "correct the EAL arguments (those after --)"
    } else if log.contains("hugepage") || log.contains("memory") || errno == libc::ENOMEM {
        "reserve hugepages (dpdk-hugepages.py --setup 1G) or start with --no-huge -m 512"
    } else if log.contains("lock") && log.contains("config") {
        "another DPDK process uses this --file-prefix: give each its own"
    } else if log.contains("permission") || errno == libc::EACCES || errno == libc::EPERM {
        "start as root, or with --no-huge --no-pci, which need no rights"
    } else if log.contains("vdev") || log.contains("probe") || errno == libc::ENODEV {
        "check the device's name and arguments, and that its driver is installed (librte-net-*); wedjat doctor lists them"
    } else {
        "check the EAL arguments (those after --); wedjat doctor checks the machine"
    }
}

/// Captures DPDK's log during a step of start-up, so that an error can quote it.
pub(super) struct LogCapture {
    /// File in memory that receives the log.
    file: File,
}

impl LogCapture {
    /// Redirects the log to a file in memory. `None` if the system refuses.
    pub(super) fn start() -> Option<Self> {
        // SAFETY: a plain system call with a static name. `file` owns the descriptor from here on.
        let descriptor = unsafe { libc::memfd_create(c"eal-log".as_ptr(), libc::MFD_CLOEXEC) };
        if descriptor < 0 {
            return None;
        }
        // SAFETY: the descriptor is open and has no other owner.
        let file = unsafe { File::from_raw_fd(descriptor) };
        // SAFETY: `dup` gives the stream a descriptor of its own. The stream is never closed: a thread of EAL
        // may still write to it after `finish` has replaced it.
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

    /// Redirects the log to wedjat's and returns the captured text.
    pub(super) fn finish(mut self) -> String {
        dpdk_log::redirect();
        let mut text = String::new();
        let read = self.file.rewind().and_then(|()| self.file.read_to_string(&mut text));
        read.map(|_| text).unwrap_or_default()
    }
}

/// Removal of this process's hugepage files, which EAL leaves behind.
struct Pages;

/// Prefix of the hugepage files, and the process that created them; `None` if there is nothing to remove.
static PAGES: Mutex<Option<(String, u32)>> = Mutex::new(None);

impl Pages {
    /// Returns EAL's file prefix; `None` without `--file-prefix`, and with `--proc-type`, because the files may then
    /// belong to another process.
    fn prefix(arguments: &[String]) -> Option<String> {
        let mut arguments = arguments.iter();
        let sets_process_type = |text: &String| is_option(text, "--proc-type");
        if arguments.clone().any(sets_process_type) {
            return None;
        }
        let option = arguments.find(|text| is_option(text, "--file-prefix"))?;
        // The value follows after `=`, or as the next argument.
        option
            .strip_prefix("--file-prefix=")
            .or(arguments.next().map(String::as_str))
            .map(str::to_owned)
    }

    /// Records the prefix of these arguments for [`Pages::remove`].
    fn set_prefix(arguments: &[String]) {
        let prefix = Self::prefix(arguments).map(|prefix| (prefix, std::process::id()));
        *PAGES.lock().unwrap_or_else(PoisonError::into_inner) = prefix;
    }

    /// Removes the files. A forked child leaves its parent's files alone.
    fn remove() {
        let pages = PAGES.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some((prefix, _)) = pages.filter(|(_, process)| *process == std::process::id()) {
            folders::remove_pages(&prefix);
        }
    }

    /// Registers the removal at exit. A process may end with a running EAL, for example after an error on one
    /// of several threads.
    fn remove_at_exit() {
        static REGISTERED: Once = Once::new();
        REGISTERED.call_once(|| {
            // SAFETY: the handler takes no arguments and lives for the whole process. Without it the next
            // start removes the files.
            unsafe { libc::atexit(remove_pages) };
        });
    }
}

/// Exit handler that removes the hugepage files.
extern "C" fn remove_pages() {
    Pages::remove();
}

/// Reports an exit of the process inside `rte_eal_init`. EAL of newer releases (seen with DPDK 26.07) exits
/// on an unknown option, with its message only in the captured log. The user then sees the same error as for
/// any other failed start.
struct ExitWatch;

/// EAL's captured log and its arguments during the start.
static STARTING: Mutex<Option<(File, Vec<String>)>> = Mutex::new(None);

impl ExitWatch {
    /// Watches the start from now on. Returns `None` if the system refuses a copy of the log or the exit handler.
    fn start(log: &LogCapture, arguments: &[String]) -> Option<Self> {
        let file = log.file.try_clone().ok()?;
        // SAFETY: the handler takes no arguments and lives for the whole process.
        if unsafe { libc::atexit(report_exit) } != 0 {
            return None;
        }
        *STARTING.lock().ok()? = Some((file, arguments.to_vec()));
        Some(Self)
    }

    /// Ends the watch. Returns the log and arguments if it was running.
    fn end() -> Option<(File, Vec<String>)> {
        STARTING.lock().ok()?.take()
    }
}

impl Drop for ExitWatch {
    /// Ends the watch: the start has returned, so a later exit is no failure of it.
    fn drop(&mut self) {
        Self::end();
    }
}

/// Exit handler during the start of EAL. An empty log means that EAL printed its usage on request: no error.
extern "C" fn report_exit() {
    let Some((mut file, arguments)) = ExitWatch::end() else { return };
    let mut log = String::new();
    if file.rewind().and_then(|()| file.read_to_string(&mut log)).is_ok() && !log.is_empty() {
        let error = refusal(libc::EINVAL, &log, &arguments);
        let _ = writeln!(io::stderr(), "wedjat: {error}");
        // SAFETY: ends the process, which is exiting already. No other handler may run, because EAL is only
        // half started.
        unsafe { libc::_exit(1) };
    }
}

/// Returns the name of a device's driver.
pub(super) fn driver_name(info: &sys::rte_eth_dev_info) -> String {
    if info.driver_name.is_null() {
        return "unknown".to_owned();
    }
    // SAFETY: drivers set this to a static string.
    unsafe { CStr::from_ptr(info.driver_name) }.to_string_lossy().into_owned()
}

/// Returns the drivers of all devices of EAL. They decide whether packet buffers need memory for DMA.
pub(super) fn drivers() -> Vec<String> {
    let driver = |id: u16| {
        let mut info = sys::rte_eth_dev_info::default();
        // SAFETY: EAL runs. Only valid devices are queried, and `info` has room for the answer.
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

    /// Splits a command line into its words.
    fn words(line: &str) -> Vec<String> {
        line.split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn machine_without_hugepages_gets_arguments() {
        // Without hugepages, on CPUs 0 and 1, as process 7.
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
        let virtio = ["net_virtio_user0,path=/run/vhost"];
        assert!(
            arguments(&[], &virtio, true, &[], 7).contains(&words("--single-file-segments")[0])
        );
        let without = words("--no-huge");
        assert!(!arguments(&without, &virtio, true, &[], 7).concat().contains("single-file"));
    }

    #[test]
    fn user_arguments_have_precedence() {
        let user =
            words("--no-huge --no-shconf -m64 --file-prefix=a -l 0-1 --no-pci --log-level=debug");
        assert_eq!(arguments(&user, &["03:00.0"], true, &[0], 7), user);
        let user = words("--socket-mem=64 -a 04:00.0 --lcores=3@1 --file-prefix b --log-level 8");
        assert_eq!(arguments(&user, &["03:00.0"], false, &[0], 7), user);
    }
}
