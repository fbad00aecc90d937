//! Checks before a start whether the machine and the configuration allow it, and names the fix of each problem. The
//! command `wedjat doctor` prints the findings.
//!
//! A dispatcher is a core that polls ports. An agent gives tasks to the workers of its host, through a region, the
//! memory that it shares with them. A batch job is background work on the workers' CPUs, held in a cgroup.
//!
//! The checks of the machine read files below [`Request::root`] and start nothing. So tests can use made-up machines,
//! and users can run the checks beside a running leaf. Some checks do more for a moment: they write a file beside the
//! state file, listen at the TCP addresses, connect to sockets, or observe a running agent. [`probe`] opens the ports,
//! so their node must not run.

#[cfg_attr(not(feature = "dpdk"), path = "doctor/no_ports.rs")]
mod ports;

use std::collections::BTreeSet;
use std::fmt::{self, Write as _};
use std::fs;
use std::io::Write as _;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};

use wedjat_cosched::mechanism::{
    Class, Controller, FolderFunctions, Hierarchies, MountPoint, cpu_list,
};

use wedjat_batch::{AgentMonitor, CoschedError, Job, Policy};
use wedjat_core::cpus;
use wedjat_core::io::vdev::{self, BIFURCATED_DRIVERS, PASSING_DRIVERS};
use wedjat_core::ring::region;
use wedjat_core::state::files::{Scratch, within_limits};
use wedjat_core::state::table;
use wedjat_desired::config::{ControlConfig, NodeConfig};

pub use ports::probe;

/// Input of the checks: the planned start of a node.
#[derive(Clone, Debug)]
pub struct Request {
    /// `/`, or the folder of a made-up machine.
    pub root: PathBuf,
    /// CPUs of the dispatcher cores.
    pub cores: Vec<usize>,
    /// Devices of the ports: PCI addresses or virtual devices, with or without arguments.
    pub devices: Vec<String>,
    /// Arguments for EAL.
    pub eal: Vec<String>,
    /// Path of the state file, in which the node publishes its state to other processes.
    pub state: Option<PathBuf>,
    /// Warnings of the configuration: [`NodeConfig::warnings`].
    pub warnings: Vec<String>,
    /// Group that may read the state file.
    pub state_group: Option<u32>,
    /// Path of the region that an agent's workers attach to.
    pub region: Option<PathBuf>,
    /// TCP addresses of the control interface.
    pub control: ControlConfig,
    /// Batch jobs beside an agent's workers.
    pub jobs: Vec<Job>,
}

impl Request {
    /// Returns the planned start of a node with this configuration and these arguments for EAL.
    #[must_use]
    pub fn of(config: &NodeConfig<'_>, eal: &[String]) -> Self {
        Self {
            cores: config.cores.to_vec(),
            devices: config.ports.iter().map(|port| port.device.clone()).collect(),
            eal: eal.to_vec(),
            state: config.state.map(Path::to_owned),
            warnings: config.warnings(),
            state_group: config.state_group,
            region: config.host.map(|host| region::path_of(&host.name)),
            control: config.control.clone(),
            jobs: config.jobs.to_vec(),
            ..Self::default()
        }
    }
}

impl Default for Request {
    fn default() -> Self {
        let (cores, devices, eal, warnings) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let (root, state, state_group, region) = (PathBuf::from("/"), None, None, None);
        let (control, jobs) = (ControlConfig::default(), Vec::new());
        Self { root, cores, devices, eal, state, state_group, warnings, region, control, jobs }
    }
}

/// Severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// No problem.
    Ok,
    /// A start may work, but with a drawback, such as slower cores or a wait for a peer.
    Warn,
    /// A start would fail.
    Fail,
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Ok => "ok",
            Self::Warn => "warn",
            Self::Fail => "FAIL",
        })
    }
}

/// Result of one check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Name of the checked item.
    pub name: String,
    /// Severity.
    pub status: Status,
    /// Observed condition.
    pub found: String,
    /// Remedy; empty if there is no problem or no known remedy, or if `found` names it.
    pub fix: String,
}

impl Finding {
    /// Creates a finding.
    fn new(status: Status, name: &str, found: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { name: name.to_owned(), status, found: found.into(), fix: fix.into() }
    }

    /// Creates a finding without a problem.
    fn ok(name: &str, found: impl Into<String>) -> Self {
        Self::new(Status::Ok, name, found, "")
    }

    /// Creates a finding that does not prevent a start.
    fn warn(name: &str, found: impl Into<String>, fix: impl Into<String>) -> Self {
        Self::new(Status::Warn, name, found, fix)
    }

    /// Creates a finding that prevents a start.
    fn fail(name: &str, found: impl Into<String>, fix: impl Into<String>) -> Self {
        Self::new(Status::Fail, name, found, fix)
    }
}

/// Runs all checks of a planned start, except [`probe`]. Returns their findings in the order in which [`render`] prints
/// them.
pub fn run(request: &Request) -> Vec<Finding> {
    let machine = Machine { root: &request.root };
    let devices: Vec<Device> =
        request.devices.iter().map(|device| Device::new(device, &request.eal)).collect();
    let mut findings = ports::library(&machine, &devices);
    findings.push(hugepages(&machine, &devices));
    findings.extend(permissions(&machine, &devices));
    findings.extend(cores(&machine, &request.cores));
    findings.extend(shared_cpus(&machine, &request.cores));
    findings.push(governor(&machine, &request.cores));
    findings.push(tsc(&machine));
    findings.extend(devices.iter().map(|device| presence(&machine, device)));
    findings.extend(devices.iter().filter_map(|device| numa(&machine, device, &request.cores)));
    findings.extend(request.state.as_deref().map(|path| state(path, request.state_group)));
    findings.extend(request.region.as_deref().map(workers));
    findings.extend(request.jobs.first().map(|job| cgroups(&machine, job)));
    findings.extend(request.jobs.first().map(|job| batch_cores(job, &request.cores)));
    let ControlConfig { listen, metrics, .. } = &request.control;
    findings.extend(listen.map(|address| listening("control.listen", address)));
    findings.extend(metrics.map(|address| listening("control.metrics", address)));
    findings
        .extend(request.warnings.iter().map(|warning| Finding::warn("configuration", warning, "")));
    findings
}

/// Returns true if a start would fail.
pub fn would_fail(findings: &[Finding]) -> bool {
    findings.iter().any(|finding| finding.status == Status::Fail)
}

/// Formats the findings as a table, with each fix on the line below its finding.
pub fn render(findings: &[Finding]) -> String {
    let width = findings.iter().map(|finding| finding.name.len()).max().unwrap_or(0);
    let mut text = String::new();
    for Finding { name, status, found, fix } in findings {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{status:<4}  {name:<width$}  {found}");
        if !fix.is_empty() {
            let _ = writeln!(text, "      {:<width$}  fix: {fix}", "");
        }
    }
    text
}

/// Files of a machine. Paths of its methods are relative to its root.
struct Machine<'a> {
    /// `/`, or the folder of a made-up machine.
    root: &'a Path,
}

impl Machine<'_> {
    /// Returns the path of a file of the machine, with or without a leading slash.
    fn path(&self, path: &str) -> PathBuf {
        self.root.join(path.trim_start_matches('/'))
    }

    /// Returns true if the file exists.
    fn exists(&self, path: &str) -> bool {
        self.path(path).exists()
    }

    /// Returns the text of a file without surrounding white space; empty if the file cannot be read.
    fn text(&self, path: &str) -> String {
        fs::read_to_string(self.path(path)).map(|text| text.trim().to_owned()).unwrap_or_default()
    }

    /// Returns the number in a file; `None` if the file is missing or has no number.
    fn number(&self, path: &str) -> Option<i64> {
        self.text(path).parse().ok()
    }

    /// Returns the sorted names in a folder; none if it cannot be read.
    fn names(&self, folder: &str) -> Vec<String> {
        let entries = fs::read_dir(self.path(folder)).into_iter().flatten().flatten();
        let mut names: Vec<String> =
            entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
        names.sort_unstable();
        names
    }

    /// Returns the value of a `Name:  value` line of /proc/self/status; empty without such a line.
    fn own_status(&self, name: &str) -> String {
        let text = self.text("proc/self/status");
        let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        value.map(|value| value.trim().to_owned()).unwrap_or_default()
    }

    /// Returns true if this process has the effective user id 0, the second id of the line.
    fn is_root(&self) -> bool {
        self.own_status("Uid").split_whitespace().nth(1) == Some("0")
    }

    /// Returns true if this process has the capability with this number (capabilities(7)).
    fn has_capability(&self, number: u32) -> bool {
        u64::from_str_radix(&self.own_status("CapEff"), 16).is_ok_and(|set| set >> number & 1 == 1)
    }
}

/// Device as the configuration or EAL's arguments describe it.
struct Device {
    /// Name of a virtual device, or PCI address with its domain.
    name: String,
    /// Driver, for example `net_memif` of `net_memif0`; `None` for a PCI address.
    driver: Option<String>,
    /// Name with arguments, `net_memif0,role=server`. Without a comma if neither the configuration nor EAL's arguments
    /// create the device.
    text: String,
}

impl Device {
    /// Creates a device. Ignores EAL's arguments for it if the configuration has arguments.
    fn new(device: &str, eal: &[String]) -> Self {
        let name = vdev::name(device);
        // EAL accepts `--vdev=DEVICE`, and `--vdev DEVICE` as two words.
        let from_eal = eal.iter().find_map(|word| {
            let text = word.strip_prefix("--vdev=").unwrap_or(word);
            // EAL also creates a device without arguments. The comma then still marks the device as created.
            (vdev::name(text) == name).then(|| format!("{},{}", name, &text[name.len()..]))
        });
        let text = if device.contains(',') { None } else { from_eal };
        Self {
            name: full_address(name),
            driver: vdev::driver(name),
            text: text.unwrap_or_else(|| device.to_owned()),
        }
    }

    /// Returns true for a PCI address, the only name without a driver.
    fn is_pci(&self) -> bool {
        self.driver.is_none()
    }

    /// Returns true if the device has this driver.
    fn has_driver(&self, driver: &str) -> bool {
        self.driver.as_deref() == Some(driver)
    }

    /// Returns true if the configuration or EAL's arguments create the device.
    fn has_arguments(&self) -> bool {
        self.text.contains(',')
    }

    /// Returns the value of an argument; `None` if the device has no such argument.
    fn argument(&self, key: &str) -> Option<&str> {
        vdev::argument(&self.text, key)
    }
}

/// Adds the domain 0 to a PCI address without one, such as `03:00.0`, since sysfs names devices with it. Returns other
/// names unchanged.
fn full_address(name: &str) -> String {
    let lacks_domain = vdev::is_pci_address(name) && name.matches(':').count() == 1;
    if lacks_domain { format!("0000:{name}") } else { name.to_owned() }
}

/// Checks for free hugepages and their file system. A node without NICs also runs on ordinary memory.
fn hugepages(machine: &Machine, devices: &[Device]) -> Finding {
    const NAME: &str = "hugepages";
    let folder = "sys/kernel/mm/hugepages";
    let free = |size: &String| {
        let pages = machine
            .number(&format!("{folder}/{size}/free_hugepages"))
            .filter(|&pages| pages > 0)?;
        Some(format!("{pages} of {}", size.trim_start_matches("hugepages-")))
    };
    let free: Vec<String> = machine.names(folder).iter().filter_map(free).collect();
    let is_mounted = machine.text("proc/mounts").contains(" hugetlbfs ");
    match (free.is_empty(), is_mounted) {
        (false, true) => Finding::ok(NAME, format!("free: {}", free.join(", "))),
        (false, false) => Finding::warn(
            NAME,
            format!(
                "free: {}, but no hugetlbfs is mounted, so EAL cannot use them",
                free.join(", ")
            ),
            "mkdir -p /dev/hugepages && mount -t hugetlbfs nodev /dev/hugepages",
        ),
        (true, _) if devices.iter().any(Device::is_pci) => Finding::warn(
            NAME,
            "none free; ordinary memory (--no-huge) is used, which a NIC may refuse and which costs TLB misses",
            "dpdk-hugepages.py --setup 1G",
        ),
        (true, _) => {
            Finding::ok(NAME, "none free; ordinary memory (--no-huge) will do for virtual devices")
        }
    }
}

/// Reports the user, and checks the capabilities that the drivers need. With NICs, also checks locked memory, and VFIO
/// if one of them needs it.
fn permissions(machine: &Machine, devices: &[Device]) -> Vec<Finding> {
    // Numbers of capabilities (capabilities(7)).
    const NET_ADMIN: u32 = 12;
    const NET_RAW: u32 = 13;
    const SYS_ADMIN: u32 = 21;
    const BPF: u32 = 39;
    let user = if machine.is_root() { "root" } else { "an ordinary user" };
    let mut findings = vec![Finding::ok("user", user)];
    let mut need = |driver: &str, has_capabilities: bool, capabilities: &str| {
        if devices.iter().any(|device| device.has_driver(driver)) && !has_capabilities {
            let fix = format!(
                "start as root, or: sudo setcap {capabilities}+ep \"$(command -v wedjat)\""
            );
            findings.push(Finding::fail(
                "capabilities",
                format!("{driver} needs {capabilities}"),
                fix,
            ));
        }
    };
    let raw = machine.has_capability(NET_RAW);
    need("net_af_packet", raw, "cap_net_raw");
    // Kernels before CAP_BPF use CAP_SYS_ADMIN.
    let bpf = machine.has_capability(BPF) || machine.has_capability(SYS_ADMIN);
    let xdp = raw && bpf && machine.has_capability(NET_ADMIN);
    need("net_af_xdp", xdp, "cap_net_admin,cap_net_raw,cap_bpf");
    if devices.iter().any(Device::is_pci) {
        findings.push(memory_lock(machine));
    }
    if devices.iter().any(|device| needs_vfio(machine, device)) {
        findings.push(vfio(machine));
    }
    findings
}

/// Checks the limit of locked memory. VFIO locks all memory of a process that a device may access.
fn memory_lock(machine: &Machine) -> Finding {
    // Number of the capability to lock memory beyond the limit.
    const CAP_IPC_LOCK: u32 = 14;
    let limits = machine.text("proc/self/limits");
    let line = limits.lines().find_map(|line| line.strip_prefix("Max locked memory"));
    let limit = line.and_then(|line| line.split_whitespace().next()).unwrap_or("unknown");
    let is_enough = limit == "unlimited" || machine.has_capability(CAP_IPC_LOCK);
    if is_enough {
        return Finding::ok("locked memory", limit);
    }
    let fix = "ulimit -l unlimited, or in /etc/security/limits.conf: '* - memlock unlimited'";
    Finding::warn("locked memory", format!("limited to {limit} bytes; VFIO may need more"), fix)
}

/// Checks VFIO, through which a process drives a NIC. VFIO needs an IOMMU, or its mode without one, which does not
/// protect the machine's memory from the NIC.
fn vfio(machine: &Machine) -> Finding {
    let unsafe_mode = machine.text("sys/module/vfio/parameters/enable_unsafe_noiommu_mode") == "Y";
    if !machine.exists("dev/vfio/vfio") {
        return Finding::fail(
            "vfio",
            "no /dev/vfio/vfio: only NICs that keep their kernel driver (mlx5) work",
            "modprobe vfio-pci",
        );
    }
    if !machine.names("sys/class/iommu").is_empty() {
        return Finding::ok("vfio", "with an IOMMU");
    }
    if unsafe_mode {
        return Finding::ok("vfio", "without an IOMMU");
    }
    let fix = "boot with intel_iommu=on iommu=pt (AMD: iommu=pt), or, on a machine you trust: \
               echo 1 > /sys/module/vfio/parameters/enable_unsafe_noiommu_mode";
    Finding::fail("vfio", "this machine has no IOMMU, which vfio requires", fix)
}

/// Checks that this process may use the CPUs of the dispatchers, and that they are free of other load. Warns if no CPU
/// remains for other processes.
fn cores(machine: &Machine, dispatchers: &[usize]) -> Vec<Finding> {
    let allowed = cpu_list(&machine.own_status("Cpus_allowed_list"));
    let listed = list(&allowed);
    let mut findings = vec![Finding::ok("cpus", format!("{listed} may be used"))];
    for &core in dispatchers {
        let folder = format!("sys/devices/system/cpu/cpu{core}");
        let offline = machine.text(&format!("{folder}/online")) == "0";
        let name = format!("core {core}");
        let choose = format!("choose dispatcher cores among {listed} in the config");
        findings.push(if !machine.exists(&folder) {
            Finding::fail(&name, "no such CPU", choose)
        } else if offline {
            Finding::fail(&name, "is offline", format!("echo 1 > /{folder}/online"))
        } else if !allowed.contains(&core) {
            Finding::fail(
                &name,
                "is outside this process's affinity or cgroup",
                format!("{choose}, or widen it (taskset, cpuset)"),
            )
        } else {
            disturbance(machine, &name, core, dispatchers)
        });
    }
    if !dispatchers.is_empty() && allowed.iter().all(|core| dispatchers.contains(core)) {
        let found = "the dispatchers take every CPU: other processes will interrupt them";
        findings.push(Finding::warn(
            "housekeeping",
            found,
            "leave one CPU out of the config's cores",
        ));
    }
    findings
}

/// Checks for other load on the CPU `core` of a dispatcher: another dispatcher on its physical core, or the kernel's
/// work. `name` is the finding's name.
fn disturbance(machine: &Machine, name: &str, core: usize, dispatchers: &[usize]) -> Finding {
    let siblings =
        machine.text(&format!("sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list"));
    let sibling = cpu_list(&siblings)
        .into_iter()
        .find(|sibling| *sibling != core && dispatchers.contains(sibling));
    let isolated = cpu_list(&machine.text("sys/devices/system/cpu/isolated")).contains(&core);
    if let Some(sibling) = sibling {
        let found = format!("shares a physical core with dispatcher core {sibling}");
        Finding::warn(name, found, "choose one of each pair in thread_siblings_list")
    } else if !isolated {
        let fix =
            format!("boot with isolcpus={core} nohz_full={core} rcu_nocbs={core} for a quiet core");
        Finding::warn(name, "is not isolated: the kernel may run other work there", fix)
    } else {
        Finding::ok(name, "isolated")
    }
}

/// Checks that the CPUs of the dispatchers, or CPU 0 without dispatchers, run at a constant frequency.
fn governor(machine: &Machine, dispatchers: &[usize]) -> Finding {
    let cores: &[usize] = if dispatchers.is_empty() { &[0] } else { dispatchers };
    let governor_of = |core: &usize| {
        machine.text(&format!("sys/devices/system/cpu/cpu{core}/cpufreq/scaling_governor"))
    };
    let found: BTreeSet<String> =
        cores.iter().map(governor_of).filter(|text| !text.is_empty()).collect();
    let names: Vec<&str> = found.iter().map(String::as_str).collect();
    match names.as_slice() {
        [] => Finding::ok("cpu frequency", "not visible (a virtual machine, or fixed)"),
        ["performance"] => Finding::ok("cpu frequency", "governor performance"),
        governors => {
            let found = format!("governor {}: the clock follows the load", governors.join(", "));
            Finding::warn("cpu frequency", found, "cpupower frequency-set -g performance")
        }
    }
}

/// Checks the TSC. Time stamps are its ticks, so it must run at one rate in every power state.
fn tsc(machine: &Machine) -> Finding {
    let cpuinfo = machine.text("proc/cpuinfo");
    let flags: Vec<&str> = cpuinfo
        .lines()
        .find(|line| line.starts_with("flags"))
        .map(|line| line.split_whitespace().collect())
        .unwrap_or_default();
    let source = machine.text("sys/devices/system/clocksource/clocksource0/current_clocksource");
    if flags.is_empty() {
        return Finding::ok("clock", format!("not x86; the kernel uses {source}"));
    }
    let is_invariant = ["constant_tsc", "nonstop_tsc"].iter().all(|flag| flags.contains(flag));
    if is_invariant {
        return Finding::ok("clock", format!("the TSC is invariant; the kernel uses {source}"));
    }
    let fix = "none on this machine (in a virtual machine, pass the host's CPU model through); latencies may be off";
    Finding::warn("clock", format!("the TSC is not invariant; the kernel uses {source}"), fix)
}

/// Checks that a port's device exists or can be created.
fn presence(machine: &Machine, device: &Device) -> Finding {
    let name = format!("device {}", device.name);
    if device.is_pci() {
        return nic(machine, device, &name);
    }
    if !device.has_arguments() {
        let fix = format!(
            "give EAL --vdev {},... after --, or write the arguments into the config's device",
            device.name
        );
        return Finding::warn(&name, "a virtual device without arguments for EAL", fix);
    }
    if let Some(unknown) = vdev::unknown_argument(&device.text) {
        // After an unknown argument, a silent driver ignores all arguments, and so creates a different device.
        let status = if unknown.is_silent { Status::Fail } else { Status::Warn };
        let fix = format!("one of {}", unknown.known);
        return Finding::new(status, &name, unknown.found, fix);
    }
    match device.driver.as_deref() {
        Some("net_af_packet" | "net_af_xdp") => interface(machine, device, &name),
        Some("net_memif") => ports::memif_socket(device, &name),
        Some("net_pcap") => capture(machine, device, &name),
        Some(driver) => Finding::ok(&name, format!("EAL makes it with {driver}")),
        None => Finding::ok(&name, "found"),
    }
}

/// Returns the kernel driver to which a NIC is bound; `None` if there is none.
fn bound_driver(machine: &Machine, device: &Device) -> Option<String> {
    let link = machine.path(&format!("sys/bus/pci/devices/{}/driver", device.name));
    let driver = fs::read_link(link).ok()?;
    driver.file_name().map(|name| name.to_string_lossy().into_owned())
}

/// Returns the kernel driver beside which DPDK's driver of a NIC works (bifurcated). DPDK does not find such a NIC
/// under vfio-pci. Returns `None` for other NICs, which DPDK drives alone.
fn bifurcated_driver(machine: &Machine, device: &Device) -> Option<&'static str> {
    let folder = format!("sys/bus/pci/devices/{}", device.name);
    match machine.text(&format!("{folder}/vendor")).as_str() {
        // NVIDIA Mellanox. The device ids of ConnectX-3 (0x1003, 0x1004, 0x1007) begin with 0x100.
        "0x15b3" if machine.text(&format!("{folder}/device")).starts_with("0x100") => {
            Some("mlx4_core")
        }
        "0x15b3" => Some("mlx5_core"),
        "0x1414" => Some("mana"), // Microsoft
        _ => None,
    }
}

/// Returns true if a process has to drive the device through VFIO. False for virtual devices, for a NIC whose kernel
/// driver stays (bifurcated), and for one that is bound to a UIO driver.
fn needs_vfio(machine: &Machine, device: &Device) -> bool {
    let without_vfio = |driver: &str| {
        BIFURCATED_DRIVERS.contains(&driver)
            || PASSING_DRIVERS.contains(&driver) && driver != "vfio-pci"
    };
    device.is_pci()
        && bifurcated_driver(machine, device).is_none()
        && !bound_driver(machine, device).is_some_and(|driver| without_vfio(&driver))
}

/// Checks that a NIC exists and has a usable driver. `name` is the finding's name.
fn nic(machine: &Machine, device: &Device, name: &str) -> Finding {
    if fs::symlink_metadata(machine.path(&format!("sys/bus/pci/devices/{}", device.name))).is_err()
    {
        return Finding::fail(
            name,
            "no such PCI device",
            "take an address from: dpdk-devbind.py --status",
        );
    }
    let driver = bound_driver(machine, device);
    let required_driver = bifurcated_driver(machine, device);
    let fix = match required_driver {
        Some(driver) => {
            format!("modprobe {driver} && dpdk-devbind.py --bind={driver} {}", device.name)
        }
        None => format!("modprobe vfio-pci && dpdk-devbind.py --bind=vfio-pci {}", device.name),
    };
    match driver.as_deref() {
        Some(driver) if PASSING_DRIVERS.contains(&driver) && required_driver.is_some() => {
            let needed = required_driver.unwrap_or_default();
            Finding::fail(name, format!("bound to {driver}; its DPDK driver needs {needed}"), fix)
        }
        Some(driver)
            if BIFURCATED_DRIVERS.contains(&driver) || PASSING_DRIVERS.contains(&driver) =>
        {
            Finding::ok(name, format!("bound to {driver}"))
        }
        Some(driver) => Finding::fail(name, format!("bound to the kernel's {driver}"), fix),
        None => Finding::fail(name, "bound to no driver", fix),
    }
}

/// Checks that the kernel interface of an AF_PACKET or AF_XDP device exists and is up. `name` is the finding's name.
fn interface(machine: &Machine, device: &Device, name: &str) -> Finding {
    // Bit of an interface that is up, in its flags (netdevice(7)).
    const IFF_UP: u32 = 1;
    let Some(interface) = device.argument("iface") else {
        return Finding::fail(
            name,
            "iface= is missing",
            format!("write {},iface=NAME (ip link lists them)", device.name),
        );
    };
    let folder = format!("sys/class/net/{interface}");
    if device.has_driver("net_af_xdp") && !machine.text("proc/net/protocols").contains("XDP") {
        return Finding::fail(
            name,
            "this kernel has no AF_XDP (CONFIG_XDP_SOCKETS)",
            "use net_af_packet instead",
        );
    }
    let flags = machine.text(&format!("{folder}/flags"));
    match u32::from_str_radix(flags.trim_start_matches("0x"), 16) {
        Err(_) => {
            let interfaces = machine.names("sys/class/net").join(", ");
            Finding::fail(
                name,
                format!("no interface {interface}"),
                format!("choose among {interfaces}"),
            )
        }
        Ok(flags) if flags & IFF_UP == 0 => Finding::warn(
            name,
            format!("{interface} is down"),
            format!("ip link set {interface} up"),
        ),
        Ok(_) => Finding::ok(name, format!("{interface} is up")),
    }
}

/// Checks that the capture file that a net_pcap device replays exists. `name` is the finding's name.
fn capture(machine: &Machine, device: &Device, name: &str) -> Finding {
    // A relative path starts at the folder of this process.
    let exists = |file: &str| match file.starts_with('/') {
        true => machine.exists(file),
        false => Path::new(file).exists(),
    };
    match device.argument("rx_pcap") {
        Some(file) if !exists(file) => {
            Finding::fail(name, format!("no file {file}"), "give rx_pcap= a capture that exists")
        }
        Some(file) => Finding::ok(name, format!("replays {file}")),
        None => Finding::ok(name, "EAL makes it with net_pcap"),
    }
}

/// Warns about dispatcher cores on which another node already polls.
fn shared_cpus(machine: &Machine, dispatchers: &[usize]) -> Vec<Finding> {
    let pollers = cpus::pollers(&machine.path("proc"), dispatchers);
    let finding = |poller: &cpus::Poller| {
        Finding::warn("shared CPU", poller.to_string(), cpus::SHARED_CPU_FIX)
    };
    pollers.iter().map(finding).collect()
}

/// Checks that the dispatcher cores are on the NUMA node of the NIC, where a core polls it fastest. Returns `None` if
/// the device has no known node.
fn numa(machine: &Machine, device: &Device, dispatchers: &[usize]) -> Option<Finding> {
    let node = machine
        .number(&format!("sys/bus/pci/devices/{}/numa_node", device.name))
        .filter(|&node| node >= 0)?;
    let local = cpu_list(&machine.text(&format!("sys/devices/system/node/node{node}/cpulist")));
    let remote: BTreeSet<usize> =
        dispatchers.iter().copied().filter(|core| !local.contains(core)).collect();
    let name = format!("numa of {}", device.name);
    Some(if remote.is_empty() {
        Finding::ok(&name, format!("node {node}, as its dispatchers"))
    } else {
        let found = format!("it is on node {node}, but core {} is not", list(&remote));
        Finding::warn(&name, found, format!("choose dispatcher cores among {}", list(&local)))
    })
}

/// Checks that a node can create its state file: no running node and no foreign file has the path. Writes a file of
/// 1 MiB beside it to test rights and space.
fn state(path: &Path, group: Option<u32>) -> Finding {
    if let Err(error) = table::check_free(path) {
        return Finding::fail("state file", error.to_string(), "");
    }
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let folder = parent.unwrap_or(Path::new("."));
    // A limit of file sizes then gives an error. Otherwise its signal would end this process.
    let written = within_limits(|| {
        // A file that is removed when it goes out of scope.
        let mut trial = Scratch::file(path, group)?;
        trial.item_mut().write_all(&vec![0; 1 << 20])
    });
    match written {
        Ok(()) => Finding::ok("state file", format!("{} can be written", path.display())),
        Err(error) => Finding::fail(
            "state file",
            format!("cannot write in {}: {error}", folder.display()),
            "choose a state file in a folder that is yours and has space, best in /dev/shm",
        ),
    }
}

/// Checks that no running agent and no foreign file has the path of the workers' region. Creates nothing.
fn workers(path: &Path) -> Finding {
    match region::check_free(path) {
        Ok(()) => Finding::ok("worker region", format!("{} is free", path.display())),
        Err(error) => Finding::fail("worker region", error.to_string(), ""),
    }
}

/// Checks that batch jobs like this one have cores: those of the agent's workers. Before the agent runs, checks only
/// that a CPU remains beside the dispatchers.
fn batch_cores(job: &Job, dispatchers: &[usize]) -> Finding {
    const NAME: &str = "cores of batch jobs";
    if cpus::except(dispatchers).is_empty() {
        let found = "the only CPU is the dispatcher's, which is never idle";
        return Finding::fail(NAME, found, "take [cosched] out, or give this process another CPU");
    }
    // Fails before the agent runs.
    let Ok(monitor) = AgentMonitor::open(&job.agent, job.objective) else {
        return Finding::ok(NAME, "those that the agent's workers will be pinned to");
    };
    match monitor.cpus(job.cpus.as_ref()) {
        Ok(cpus) => {
            let list: Vec<_> = cpus.iter().map(usize::to_string).collect();
            Finding::ok(NAME, format!("{}, where the agent's workers are", list.join(", ")))
        }
        // Workers may still be starting.
        Err(error @ CoschedError::NoWorkers(_)) => Finding::warn(NAME, error.to_string(), ""),
        Err(error) => Finding::fail(NAME, error.to_string(), ""),
    }
}

/// Checks that the cgroups can hold batch jobs like this one: mounted, writable, and with the controllers that its
/// policy needs. A policy decides the share of CPU time of the job. Policy `idle` needs no controller. Warns about the
/// normal scheduling class, and about other missing controllers.
fn cgroups(machine: &Machine, job: &Job) -> Finding {
    const NAME: &str = "cgroups";
    let hierarchies = Hierarchies::below(machine.root, FolderFunctions::REAL);
    let relative = job.cgroup.strip_prefix("/").unwrap_or(&job.cgroup);
    let is_unwritable = |mount_point: &&MountPoint| {
        rustix::fs::access(mount_point.folder.join(relative), rustix::fs::Access::WRITE_OK).is_err()
    };
    let folders = hierarchies.folders();
    if folders.is_empty() {
        let fix = "mount -t cgroup2 none /sys/fs/cgroup";
        return Finding::fail(NAME, "none is mounted, so no batch job can be limited", fix);
    }
    if let Some(mount_point) = folders.into_iter().find(is_unwritable) {
        let found =
            format!("{} is not this user's to write", mount_point.folder.join(relative).display());
        let fix =
            "start as root, or name a cgroup that is delegated to this user in cosched.cgroup";
        return Finding::fail(NAME, found, fix);
    }
    if job.policy != Policy::Idle && hierarchies.mount_point(Controller::Cpu).is_none() {
        let found = format!("no controller cpu, which policy {} needs", job.policy);
        return Finding::fail(NAME, found, "mount or enable it, or set cosched.policy = \"idle\"");
    }
    if job.class == Class::Normal {
        return Finding::warn(
            NAME,
            "batch jobs of the normal class are refused beside workers that are not of real time, which they delay",
            "leave out cosched.class, or have the workers ask for real time",
        );
    }
    // A batch job also runs without further controllers. Without cpuacct, which version 2 does not need, only its CPU
    // time is unknown.
    let missing: Vec<_> = hierarchies.missing().map(Controller::name).collect();
    match missing[..] {
        [] => Finding::ok(NAME, "all controllers that limit batch jobs"),
        _ => Finding::warn(
            NAME,
            format!("no controller {}", missing.join(", ")),
            "without pids and freezer a batch that forks is harder to end; without cpuset it is put back onto its cores each second",
        ),
    }
}

/// Checks that the address belongs to this machine and is free. `key` is its key in the configuration.
fn listening(key: &str, address: SocketAddr) -> Finding {
    match TcpListener::bind(address) {
        Ok(_) => Finding::ok(key, format!("{address} is free")),
        Err(error) => {
            let fix = "choose an address of this machine with a free port (ss -tlnp)";
            Finding::fail(key, format!("cannot listen at {address}: {error}"), fix)
        }
    }
}

/// Formats a set of CPUs, each by its number: `0,1,2`.
fn list(cpus: &BTreeSet<usize>) -> String {
    cpus.iter().map(usize::to_string).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
#[path = "../../tests/golden/mod.rs"]
mod golden;

#[cfg(test)]
mod tests {
    use wedjat_batch::{BatchSettings, Objective};
    use wedjat_cosched::Setup;

    use super::*;
    use tempfile::TempDir;

    /// Machine without problems: four CPUs, 1 and 2 isolated, one NIC bound to vfio-pci, and an interface
    /// that is up.
    struct Fake(TempDir);

    impl Fake {
        /// Creates the machine's files.
        fn new() -> Self {
            let fake = Self(tempfile::tempdir().unwrap());
            for (path, text) in [
                (
                    "proc/self/status",
                    "Uid:\t0\t0\t0\t0\nCapEff:\t000001ffffffffff\nCpus_allowed_list:\t0-3\n",
                ),
                (
                    "proc/self/limits",
                    "Max locked memory         unlimited            unlimited            bytes\n",
                ),
                ("proc/mounts", "hugetlbfs /dev/hugepages hugetlbfs rw 0 0\n"),
                ("proc/cpuinfo", "flags\t\t: fpu constant_tsc nonstop_tsc\n"),
                ("proc/net/protocols", "XDP  1 2\n"),
                ("sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages", "512\n"),
                ("sys/devices/system/clocksource/clocksource0/current_clocksource", "tsc\n"),
                ("sys/devices/system/cpu/isolated", "1-2\n"),
                ("sys/devices/system/node/node0/cpulist", "0-1\n"),
                ("sys/class/iommu/dmar0/name", ""),
                ("dev/vfio/vfio", ""),
                ("sys/bus/pci/devices/0000:03:00.0/numa_node", "0\n"),
                ("sys/class/net/veth0/flags", "0x1003\n"),
            ] {
                fake.write(path, text);
            }
            for cpu in 0..4 {
                let folder = format!("sys/devices/system/cpu/cpu{cpu}");
                fake.write(&format!("{folder}/topology/thread_siblings_list"), &format!("{cpu}"));
                fake.write(&format!("{folder}/cpufreq/scaling_governor"), "performance");
            }
            fake.bind("0000:03:00.0", "vfio-pci");
            fake
        }

        /// Writes a file below the root.
        fn write(&self, path: &str, text: &str) {
            let path = self.0.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }

        /// Removes a file or folder below the root.
        fn remove(&self, path: &str) {
            let path = self.0.path().join(path);
            if path.is_dir() {
                fs::remove_dir_all(path).unwrap()
            } else {
                fs::remove_file(path).unwrap()
            }
        }

        /// Binds a NIC to a kernel driver: its folder in sysfs has a link to the driver.
        fn bind(&self, address: &str, driver: &str) {
            let link = self.0.path().join(format!("sys/bus/pci/devices/{address}/driver"));
            let _ = fs::remove_file(&link);
            std::os::unix::fs::symlink(format!("../../drivers/{driver}"), link).unwrap();
        }

        /// Returns the machine as the checks take it.
        fn machine(&self) -> Machine<'_> {
            Machine { root: self.0.path() }
        }

        /// Checks that a device, as in the configuration, exists or can be created.
        fn presence(&self, device: &str) -> Finding {
            presence(&self.machine(), &Device::new(device, &[]))
        }
    }

    /// Returns devices without arguments of EAL.
    fn devices(names: &[&str]) -> Vec<Device> {
        names.iter().map(|name| Device::new(name, &[])).collect()
    }

    /// Returns the worst severity.
    fn worst(findings: &[Finding]) -> Status {
        let has = |status| findings.iter().any(|finding| finding.status == status);
        if has(Status::Fail) {
            Status::Fail
        } else if has(Status::Warn) {
            Status::Warn
        } else {
            Status::Ok
        }
    }

    #[test]
    fn findings_equal_the_golden_file() {
        let mut text = String::new();
        // The machine has the first two devices. The third one lacks arguments, and the fourth one does not exist.
        let names = ["03:00.0", "net_af_xdp0,iface=veth0", "net_memif0", "0000:09:00.0"];
        // Appends the findings about a machine to the text.
        let mut show = |title: &str, fake: &Fake| {
            let machine = fake.machine();
            let all = devices(&names);
            let mut findings = permissions(&machine, &all);
            findings.push(hugepages(&machine, &all));
            findings.extend(cores(&machine, &[1, 3, 9]));
            findings.extend([governor(&machine, &[1]), tsc(&machine)]);
            findings.extend(all.iter().map(|device| presence(&machine, device)));
            findings.extend(all.iter().filter_map(|device| numa(&machine, device, &[1, 3])));
            let root = fake.0.path().display().to_string();
            text += &format!("# {title}\n{}\n", render(&findings).replace(&root, "ROOT"));
        };
        let fake = Fake::new();
        show("a prepared machine", &fake);
        // An ordinary user without capabilities, on CPUs 0 and 1 only.
        fake.write(
            "proc/self/status",
            "Uid:\t1000\t1000\t1000\t1000\nCapEff:\t0000000000000000\nCpus_allowed_list:\t0-1\n",
        );
        fake.write("proc/self/limits", "Max locked memory 65536 65536 bytes\n");
        fake.write("sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages", "0\n");
        fake.write("sys/devices/system/cpu/cpu1/cpufreq/scaling_governor", "powersave");
        fake.write("sys/devices/system/clocksource/clocksource0/current_clocksource", "hpet\n");
        fake.write("sys/class/net/veth0/flags", "0x1002\n");
        fake.remove("sys/devices/system/cpu/isolated");
        fake.remove("dev/vfio/vfio");
        fake.bind("0000:03:00.0", "ixgbe");
        show("an unprepared machine", &fake);
        golden::assert_golden("doctor.txt", &text);
    }

    #[test]
    fn a_good_machine_has_nothing_to_fix() {
        let fake = Fake::new();
        let machine = fake.machine();
        let all = devices(&["03:00.0", "net_af_xdp0,iface=veth0"]);
        let mut findings = permissions(&machine, &all);
        findings.push(hugepages(&machine, &all));
        findings.extend(cores(&machine, &[1]));
        findings.extend([governor(&machine, &[1]), tsc(&machine)]);
        findings.extend(all.iter().map(|device| presence(&machine, device)));
        findings.extend(all.iter().filter_map(|device| numa(&machine, device, &[1])));
        assert_eq!(worst(&findings), Status::Ok, "{}", render(&findings));
        assert!(!would_fail(&findings));
        assert!(findings.iter().all(|finding| finding.fix.is_empty() && !finding.found.is_empty()));
    }

    #[test]
    fn core_that_another_node_polls_is_found() {
        let fake = Fake::new();
        // The name of a polling thread ends with its CPU. The id, 2^30, is larger than that of any real process.
        fake.write("proc/1073741824/task/1073741825/comm", "dispatch-2\n");
        assert_eq!(shared_cpus(&fake.machine(), &[0, 1]), []);
        let findings = shared_cpus(&fake.machine(), &[1, 2]);
        assert_eq!(findings.len(), 1);
        let expected = "CPU 2: the node with pid 1073741824 polls it, too";
        assert_eq!((findings[0].status, &findings[0].found[..]), (Status::Warn, expected));
    }

    // promise: batch.2
    #[test]
    fn batch_job_requirements_are_checked() {
        let fake = Fake::new();
        let settings = |policy| BatchSettings {
            agent: "host1".to_owned(),
            policy,
            objective: Objective::default(),
            setup: Setup::built_in(),
            processes: 10,
        };
        let job = Job::new(settings(Policy::Guard));
        let found = |job: &Job| cgroups(&fake.machine(), job);
        assert!(
            found(&job).status == Status::Fail && found(&job).found.contains("none is mounted")
        );
        fake.write("proc/mounts", "cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n");
        fake.write("sys/fs/cgroup/cgroup.controllers", "pids\n");
        assert!(found(&job).found.contains("no controller cpu"), "{:?}", found(&job));
        let idle = Job::new(settings(Policy::Idle));
        assert!(found(&idle).status == Status::Warn && found(&idle).found.contains("cpu, cpuset"));
        fake.write("sys/fs/cgroup/cgroup.controllers", "cpu cpuset pids\n");
        assert_eq!(found(&job).status, Status::Ok);
        let harmful = Job { class: Class::Normal, ..job.clone() };
        assert!(
            found(&harmful).status == Status::Warn && found(&harmful).found.contains("real time")
        );
        let elsewhere = Job { cgroup: "/no/such".into(), ..job };
        assert!(found(&elsewhere).status == Status::Fail && !found(&elsewhere).fix.is_empty());
    }

    // promise: batch.2
    #[test]
    fn batch_jobs_need_a_core_beside_the_dispatchers() {
        let settings = BatchSettings {
            agent: "no-such-agent-of-this-test".to_owned(),
            policy: Policy::Guard,
            objective: Objective::default(),
            setup: Setup::built_in(),
            processes: 10,
        };
        let found = |cores: &[usize]| batch_cores(&Job::new(settings.clone()), cores);
        assert_eq!(found(&cpus::usable()).status, Status::Fail);
        // No worker of the agent exists before the agent runs.
        assert!(found(&[]).status == Status::Ok && found(&[]).found.contains("will be"));
    }

    #[test]
    fn cores_that_cannot_be_used_fail() {
        let fake = Fake::new();
        fake.write("sys/devices/system/cpu/cpu2/online", "0");
        fake.write("proc/self/status", "Cpus_allowed_list:\t0-1\n");
        for (core, reason) in [(9, "no such CPU"), (2, "offline"), (3, "outside")] {
            let findings = cores(&fake.machine(), &[core]);
            let finding =
                findings.iter().find(|finding| finding.name == format!("core {core}")).unwrap();
            assert_eq!(finding.status, Status::Fail);
            assert!(finding.found.contains(reason) && !finding.fix.is_empty(), "{finding:?}");
        }
    }

    #[test]
    fn disturbed_dispatcher_cores_get_a_warning() {
        let fake = Fake::new();
        let assert_warned = |dispatchers: &[usize], text: &str| {
            let findings = cores(&fake.machine(), dispatchers);
            assert_eq!(worst(&findings), Status::Warn);
            assert!(render(&findings).contains(text), "{}", render(&findings));
        };
        assert_warned(&[3], "not isolated");
        fake.write("sys/devices/system/cpu/cpu1/topology/thread_siblings_list", "1-2");
        assert_warned(&[1, 2], "shares a physical core with dispatcher core 2");
        fake.write("sys/devices/system/cpu/isolated", "0-3");
        assert_warned(&[0, 1, 2, 3], "take every CPU");
    }

    #[test]
    fn hugepages_matter_to_nics_only() {
        let fake = Fake::new();
        let status = |names: &[&str]| hugepages(&fake.machine(), &devices(names)).status;
        fake.write("proc/mounts", "");
        assert_eq!(status(&[]), Status::Warn, "free but not mounted");
        fake.write("sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages", "0");
        assert_eq!(status(&["net_memif0"]), Status::Ok);
        assert_eq!(status(&["03:00.0"]), Status::Warn);
    }

    #[test]
    fn missing_rights_fail_for_affected_devices() {
        let fake = Fake::new();
        fake.write("proc/self/status", "Uid:\t1000\t1000\t1000\t1000\nCapEff:\t0000000000000000\n");
        fake.write("proc/self/limits", "Max locked memory    8388608   8388608   bytes\n");
        let findings = |names: &[&str]| permissions(&fake.machine(), &devices(names));
        assert_eq!(worst(&findings(&["net_memif0"])), Status::Ok);
        // DPDK also accepts the old prefix `eth_` of a driver.
        assert!(render(&findings(&["eth_af_packet0"])).contains("setcap cap_net_raw+ep"));
        assert!(would_fail(&findings(&["net_af_xdp0"])));
        assert_eq!(worst(&findings(&["03:00.0"])), Status::Warn, "locked memory");
    }

    #[test]
    fn only_vfio_needs_an_iommu() {
        let fake = Fake::new();
        fake.remove("sys/class/iommu");
        let check = |names: &[&str]| permissions(&fake.machine(), &devices(names));
        let is_refused = |names: &[&str]| {
            let findings = check(names);
            would_fail(&findings) && render(&findings).contains("iommu=pt")
        };
        assert!(is_refused(&["03:00.0"]));
        for driver in ["mlx4_core", "mlx5_core", "mana", "uio_pci_generic", "igb_uio"] {
            fake.bind("0000:03:00.0", driver);
            assert!(!would_fail(&check(&["03:00.0"])), "{driver}");
            // The machine lacks the second NIC. A NIC with an unknown driver counts as one for VFIO.
            assert!(is_refused(&["03:00.0", "04:00.0"]), "{driver}");
        }
        fake.bind("0000:03:00.0", "ixgbe");
        assert!(is_refused(&["03:00.0"]), "it is to be bound to vfio-pci");
        // NVIDIA Mellanox. The finding of the device itself reports the wrong driver.
        fake.write("sys/bus/pci/devices/0000:03:00.0/vendor", "0x15b3\n");
        assert!(!would_fail(&check(&["03:00.0"])));
    }

    #[test]
    fn each_kind_of_device_is_checked() {
        let fake = Fake::new();
        for (device, status, text) in [
            ("0000:09:00.0", Status::Fail, "no such PCI device"),
            ("03:00.0", Status::Ok, "vfio-pci"),
            ("net_af_packet0,iface=veth0", Status::Ok, "veth0 is up"),
            ("net_af_packet0,iface=veth9", Status::Fail, "no interface veth9"),
            ("net_af_packet0,qpairs=2", Status::Fail, "iface= is missing"),
            ("net_vhost0,iface=/run/v", Status::Ok, "net_vhost"),
            ("net_memif0", Status::Warn, "without arguments"),
            ("net_pcap0,rx_pcap=/no/file.pcap", Status::Fail, "/no/file.pcap"),
            ("net_pcap0,rx_pcap=Cargo.toml", Status::Ok, "replays Cargo.toml"),
        ] {
            let finding = fake.presence(device);
            assert_eq!(finding.status, status, "{finding:?}");
            assert!(finding.found.contains(text), "{finding:?}");
        }
        fake.write("sys/class/net/veth0/flags", "0x1002\n");
        assert_eq!(fake.presence("net_af_packet0,iface=veth0").fix, "ip link set veth0 up");
        fake.bind("0000:03:00.0", "ixgbe");
        assert!(
            fake.presence("03:00.0").fix.ends_with("dpdk-devbind.py --bind=vfio-pci 0000:03:00.0")
        );
        fake.write("proc/net/protocols", "UDP 1 2\n");
        assert_eq!(fake.presence("net_af_xdp0,iface=veth0").status, Status::Fail);
    }

    #[test]
    fn unbound_nic_gets_the_driver_that_it_needs() {
        let fake = Fake::new();
        let link = fake.0.path().join("sys/bus/pci/devices/0000:03:00.0/driver");
        fs::remove_file(&link).unwrap();
        for (vendor, driver) in
            [("0x8086", "vfio-pci"), ("0x15b3", "mlx5_core"), ("0x1414", "mana")]
        {
            fake.write("sys/bus/pci/devices/0000:03:00.0/vendor", &format!("{vendor}\n"));
            let unbound = fake.presence("03:00.0");
            assert_eq!((unbound.status, &*unbound.found), (Status::Fail, "bound to no driver"));
            let fix = format!("modprobe {driver} && dpdk-devbind.py --bind={driver} 0000:03:00.0");
            assert_eq!(unbound.fix, fix);
        }
        fake.bind("0000:03:00.0", "vfio-pci");
        let passed_on = fake.presence("03:00.0");
        assert!(passed_on.found.contains("its DPDK driver needs mana"), "{passed_on:?}");
    }

    #[test]
    fn eal_arguments_also_describe_devices() {
        let eal = [
            "--vdev".to_owned(),
            "net_memif0,role=server".to_owned(),
            "--vdev=net_null1".to_owned(),
        ];
        assert_eq!(Device::new("net_memif0", &eal).argument("role"), Some("server"));
        assert!(Device::new("net_null1", &eal).has_arguments());
        assert!(!Device::new("net_memif1", &eal).has_arguments());
        let in_both = Device::new("net_memif0,role=client", &eal);
        assert_eq!(
            in_both.argument("role"),
            Some("client"),
            "the configuration's arguments precede those of EAL"
        );
    }

    #[test]
    fn remote_nic_clock_and_governor_get_warnings() {
        let fake = Fake::new();
        // The NIC is on NUMA node 0, which has the CPUs 0 and 1.
        let remote = numa(&fake.machine(), &devices(&["03:00.0"])[0], &[1, 3]).unwrap();
        assert_eq!(
            (remote.status, remote.fix.as_str()),
            (Status::Warn, "choose dispatcher cores among 0,1")
        );
        fake.write("proc/cpuinfo", "flags\t\t: fpu constant_tsc\n");
        assert_eq!(tsc(&fake.machine()).status, Status::Warn);
        fake.write("sys/devices/system/cpu/cpu1/cpufreq/scaling_governor", "powersave");
        assert!(governor(&fake.machine(), &[1]).found.contains("powersave"));
    }

    #[test]
    fn state_file_needs_a_writable_folder() {
        let folder = tempfile::tempdir().unwrap();
        let own_group = Some(rustix::process::getegid().as_raw());
        assert_eq!(state(&folder.path().join("leaf1"), own_group).status, Status::Ok);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "nothing is left behind");
        assert_eq!(state(&folder.path().join("none/leaf1"), None).status, Status::Fail);
        let precious = folder.path().join("precious");
        fs::write(&precious, "the only copy of something").unwrap();
        for (path, found) in
            [(precious.as_path(), "a file of another kind"), (Path::new("/dev/null"), "device")]
        {
            let finding = state(path, None);
            assert_eq!(finding.status, Status::Fail);
            assert!(
                finding.found.contains(found) && !finding.fix.contains("remove"),
                "{finding:?}"
            );
        }
    }

    // promise: running.1
    #[test]
    fn resources_of_another_node_fail() {
        use wedjat_core::ring::{WorkerIdentity, WorkerRegion};
        use wedjat_core::state::table::{Spec, Table};
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("leaf1");
        let spec = Spec { cores: 1, ports: 1, ticks_hz: 1, ..Spec::default() };
        let table = Table::create(&path, &spec).unwrap();
        let held = state(&path, None);
        assert_eq!(held.status, Status::Fail);
        assert!(held.found.contains("in use by another running leaf"), "{held:?}");
        assert!(held.found.contains(&format!("pid {}", std::process::id())), "{held:?}");
        drop(table);
        assert_eq!(
            state(&path, None).status,
            Status::Ok,
            "a start replaces the file of an ended leaf"
        );
        fs::write(folder.path().join("leaf1.lock"), "a list of mine").unwrap();
        let foreign = state(&path, None);
        assert_eq!(foreign.status, Status::Fail, "{foreign:?}");
        assert!(foreign.found.contains("leaf1.lock"), "{foreign:?}");

        let name = folder.path().join("host1");
        assert_eq!(workers(&name).status, Status::Ok);
        let region =
            WorkerRegion::create(&name, &[WorkerIdentity { id: 1, pool: 1 }], 4, 64).unwrap();
        assert!(workers(&name).found.contains("in use by a running agent"));
        drop(region);
        assert_eq!(workers(&name).status, Status::Ok);

        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        assert_eq!(listening("control.listen", address).status, Status::Fail);
        drop(listener);
        assert_eq!(listening("control.listen", address).status, Status::Ok);
    }

    #[test]
    fn kernel_cpu_list_is_parsed() {
        assert_eq!(list(&cpu_list("0-2,5,7-8")), "0,1,2,5,7,8");
        assert!(cpu_list("").is_empty());
    }

    #[test]
    fn fix_is_below_its_finding() {
        let findings = [Finding::ok("a", "fine"), Finding::fail("long", "broken", "mend it")];
        assert_eq!(
            render(&findings),
            "ok    a     fine\nFAIL  long  broken\n            fix: mend it\n"
        );
        assert!(would_fail(&findings));
    }

    #[test]
    fn unknown_driver_fails_on_this_machine() {
        let request = Request { devices: vec!["net_none0,x=y".to_owned()], ..Request::default() };
        let findings = run(&request);
        assert!(findings.iter().any(|finding| finding.name == "libdpdk"));
        assert!(would_fail(&findings), "there is no such driver: {}", render(&findings));
    }
}
