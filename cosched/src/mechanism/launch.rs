//! Start of a batch, a background job on the workers' cores. Its first process enters cgroup, cores and scheduling
//! class before it runs the command, so that no part of the batch ever runs without limits.
#![allow(unsafe_code)]

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::str::FromStr;

use rustix::process::Signal;
use rustix::thread::{CapabilitySet, CpuSet, capabilities, set_capabilities};

use super::group::{Group, Limits};

/// Scheduling class of a batch's threads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Class {
    /// Idle class: only CPU time that no other thread wants.
    #[default]
    Idle,
    /// Normal class, like any program.
    Normal,
}

impl Class {
    /// Returns the name on command lines.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::Normal => "normal",
        }
    }

    /// Returns the kernel's number of the class.
    fn policy(self) -> libc::c_int {
        match self {
            Self::Idle => libc::SCHED_IDLE,
            Self::Normal => libc::SCHED_OTHER,
        }
    }
}

impl FromStr for Class {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let class = [Self::Idle, Self::Normal].into_iter().find(|class| class.name() == text);
        class.ok_or_else(|| format!("unknown class {text:?}; classes are idle and normal"))
    }
}

/// Sets the scheduling class of a thread; 0 is the calling thread. A supervisor also restores the class of threads of a
/// batch that changed it.
///
/// # Errors
/// If the system refuses.
pub fn set_class(thread: u32, class: Class) -> io::Result<()> {
    let priority = libc::sched_param { sched_priority: 0 };
    // SAFETY: the parameters outlive the call, which only reads them.
    match unsafe { libc::sched_setscheduler(thread as i32, class.policy(), &raw const priority) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Capability to use real-time classes and to change the class of others (capabilities(7)).
const CAP_SYS_NICE: libc::c_ulong = 23;

/// Prepares the command to start in this cgroup, on these cores and in this class, in a new process group. A Ctrl-C at
/// the terminal thus reaches only the caller. The process loses the right to real-time classes, in which it could
/// delay the workers, if the caller may remove it. The kernel kills the process, but not its children, when the thread
/// that spawns it exits.
///
/// # Errors
/// If the cgroup's files cannot be opened.
pub fn in_group<'a>(
    command: &'a mut Command,
    group: &Group,
    limits: &Limits,
    class: Class,
) -> io::Result<&'a mut Command> {
    let open = |path| OpenOptions::new().write(true).open(path);
    let entrances: Vec<File> = group.entrances().into_iter().map(open).collect::<Result<_, _>>()?;
    let mut cpus = CpuSet::new();
    limits.cpus.iter().for_each(|cpu| cpus.set(*cpu));
    let parent = rustix::process::getpid();
    let prepare = move || {
        // These calls neither allocate nor lock: another thread of the parent may have held a lock at the
        // fork. The class comes first, since a cgroup may refuse real-time threads.
        set_class(0, class)?;
        // A process that writes 0 to the file enters the cgroup itself.
        for entrance in &entrances {
            // SAFETY: the descriptor is open, and the bytes outlive the call.
            if unsafe { libc::write(entrance.as_raw_fd(), b"0".as_ptr().cast(), 1) } != 1 {
                return Err(io::Error::last_os_error());
            }
        }
        rustix::thread::sched_setaffinity(None, &cpus)?;
        // A capability that is ambient, or inheritable in a process of root, would survive the drop below. The kernel
        // removes an ambient capability that is not inheritable.
        if let Ok(mut sets) = capabilities(None) {
            sets.inheritable.remove(CapabilitySet::SYS_NICE);
            let _ = set_capabilities(None, sets); // always allowed
        }
        let no_real_time = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: the first call reads memory that outlives it, the second only numbers. The code ignores both
        // results: a process without the right to the second call (CAP_SETPCAP) usually lacks CAP_SYS_NICE, too.
        unsafe {
            libc::setrlimit(libc::RLIMIT_RTPRIO, &raw const no_real_time);
            libc::prctl(libc::PR_CAPBSET_DROP, CAP_SYS_NICE, 0, 0, 0);
        }
        rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
        // If the parent exited before the death signal was set, the signal never comes.
        match rustix::process::getppid() == Some(parent) {
            true => Ok(()),
            false => Err(io::ErrorKind::BrokenPipe.into()),
        }
    };
    command.process_group(0);
    // SAFETY: `prepare` makes only system calls that are allowed between fork and exec.
    Ok(unsafe { command.pre_exec(prepare) })
}
