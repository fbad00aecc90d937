//! How a batch's first process starts: in its cgroup, on its cores and in its class before it does anything of its own.
#![allow(unsafe_code)]

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::str::FromStr;

use rustix::process::Signal;
use rustix::thread::CpuSet;

use super::group::{Group, Limits};

/// How the system ranks a batch's threads among others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Class {
    /// They get what CPU time nobody else wants.
    #[default]
    Idle,
    /// As those of any program.
    Normal,
}

impl Class {
    /// Its name on command lines.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::Normal => "normal",
        }
    }

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
        let found = [Self::Idle, Self::Normal].into_iter().find(|class| class.name() == text);
        found.ok_or_else(|| format!("there is no class {text:?}; classes are idle and normal"))
    }
}

/// Puts a thread, or the calling one for 0, into a class.
///
/// # Errors
/// When the system refuses.
pub fn set_class(thread: u32, class: Class) -> io::Result<()> {
    let priority = libc::sched_param { sched_priority: 0 };
    // SAFETY: the parameters live through the call, which only reads them.
    match unsafe { libc::sched_setscheduler(thread as i32, class.policy(), &raw const priority) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The capability by which a process asks for real time, or changes the class of others (capabilities(7)).
const CAP_SYS_NICE: libc::c_ulong = 23;

/// The command as one that starts in this group, on these cores and in this class, in a process group of its own; that may never
/// ask for real time; and whose first process ends when the calling thread does.
///
/// # Errors
/// When the cgroup's files can't be opened.
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
        // None of this allocates or takes a lock: the child has but one thread of its parent's. The class is first, since a
        // cgroup may take no thread that is of real time.
        set_class(0, class)?;
        for entrance in &entrances {
            // SAFETY: the descriptor is open, and the bytes live through the call.
            if unsafe { libc::write(entrance.as_raw_fd(), b"0".as_ptr().cast(), 1) } != 1 {
                return Err(io::Error::last_os_error());
            }
        }
        rustix::thread::sched_setaffinity(None, &cpus)?;
        let no_real_time = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: the first call reads what lives through it, the second reads numbers alone. Whoever may not do the second
        // has not got the capability either.
        unsafe {
            libc::setrlimit(libc::RLIMIT_RTPRIO, &raw const no_real_time);
            libc::prctl(libc::PR_CAPBSET_DROP, CAP_SYS_NICE, 0, 0, 0);
        }
        rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
        // Too late to be told of a parent that has ended already.
        match rustix::process::getppid() == Some(parent) {
            true => Ok(()),
            false => Err(io::ErrorKind::BrokenPipe.into()),
        }
    };
    command.process_group(0);
    // SAFETY: `prepare` does only what a child between fork and exec may do: calls of the system.
    Ok(unsafe { command.pre_exec(prepare) })
}
