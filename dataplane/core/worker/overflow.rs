//! Detection of stack overflows of tasks that share a core. A fault in the guard page of a task's stack ends the
//! process with a message that names the task's class. Other faults go to the handler that was installed before.
#![allow(unsafe_code, reason = "signal handlers of the system")]

use std::cell::Cell;
use std::io;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::{Mutex, OnceLock, PoisonError};

use super::signals::{self, check};

/// Bytes of a signal stack.
const SIGNAL_STACK: usize = 64 << 10;

/// Inaccessible page below a stack, which grows downwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct GuardPage {
    /// Its first address; 0 for none.
    start: usize,
    /// Address after its last one.
    end: usize,
}

impl GuardPage {
    /// Creates the page at this address.
    pub(super) fn at(start: usize) -> Self {
        Self { start, end: start + rustix::param::page_size() }
    }
}

/// Stack of the task that runs on a thread, or ran last while the thread shares its core.
#[derive(Clone, Copy)]
struct CurrentStack {
    /// Page that the task touches when the stack overflows.
    guard: GuardPage,
    /// Class of the task.
    class: u16,
    /// Bytes of the stack.
    bytes: usize,
}

/// Value of `CURRENT` while no task runs. Its guard page is empty, so no fault is in it.
const NONE: CurrentStack =
    CurrentStack { guard: GuardPage { start: 0, end: 0 }, class: 0, bytes: 0 };

thread_local! {
    /// Stack of this thread's current task, for the signal handler.
    static CURRENT: Cell<CurrentStack> = const { Cell::new(NONE) };
}

/// Action for the signal before this module installed its own.
static FORMER: OnceLock<libc::sigaction> = OnceLock::new();

/// Records that a task of this class runs on a stack of `bytes` bytes above this guard page.
#[inline]
pub(super) fn enter(guard: GuardPage, class: u16, bytes: usize) {
    CURRENT.set(CurrentStack { guard, class, bytes });
}

/// Records that no task runs, when the thread stops sharing its core. Between tasks, the last task's stack stays.
pub(super) fn leave() {
    CURRENT.set(NONE);
}

/// Stack for signal handlers of a thread that has none. Handlers need it when the thread's own stack is full.
pub(super) struct SignalStack {
    /// Memory of the stack; `None` if the thread had one.
    _memory: Option<Box<[u8]>>,
}

impl SignalStack {
    /// Installs the signal handler once per process, and a stack for it in this thread unless the thread has one.
    pub(super) fn install() -> io::Result<Self> {
        install_handler()?;
        // SAFETY: all-zero bytes are a valid value, and the pointers are valid during the calls.
        let mut current: libc::stack_t = unsafe { MaybeUninit::zeroed().assume_init() };
        // SAFETY: the same.
        check(unsafe { libc::sigaltstack(ptr::null(), &raw mut current) })?;
        if current.ss_flags & libc::SS_DISABLE == 0 {
            return Ok(Self { _memory: None });
        }
        let mut memory = vec![0; SIGNAL_STACK].into_boxed_slice();
        let stack =
            libc::stack_t { ss_sp: memory.as_mut_ptr().cast(), ss_flags: 0, ss_size: SIGNAL_STACK };
        // SAFETY: the memory stays valid until `drop` removes the signal stack.
        check(unsafe { libc::sigaltstack(&raw const stack, ptr::null_mut()) })?;
        Ok(Self { _memory: Some(memory) })
    }
}

impl Drop for SignalStack {
    /// Removes the signal stack from the thread, if this value installed it, before its memory is freed.
    fn drop(&mut self) {
        if self._memory.is_some() {
            let none = libc::stack_t {
                ss_sp: ptr::null_mut(),
                ss_flags: libc::SS_DISABLE,
                ss_size: SIGNAL_STACK,
            };
            // SAFETY: the value is valid during the call.
            unsafe { libc::sigaltstack(&raw const none, ptr::null_mut()) };
        }
    }
}

/// Installs the handler, unless an earlier call has done so. Stores the former action first, because the handler reads
/// it.
fn install_handler() -> io::Result<()> {
    /// True once the handler is installed. Other threads wait for the one that installs it.
    static IS_INSTALLED: Mutex<bool> = Mutex::new(false);
    let mut is_installed = IS_INSTALLED.lock().unwrap_or_else(PoisonError::into_inner);
    if *is_installed {
        return Ok(());
    }
    let former = signals::action_of(libc::SIGSEGV)?;
    // An earlier call that failed to install the handler has stored the same action.
    FORMER.get_or_init(|| former);
    // SAFETY: the handler calls only `write`, `abort`, `signal` and the former handler.
    unsafe { signals::install(libc::SIGSEGV, on_fault, 0) }?;
    *is_installed = true;
    Ok(())
}

/// Handles a fault: ends the process if the address is in the current task's guard page; otherwise applies the former
/// action.
extern "C" fn on_fault(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the system passes a valid description.
    let address = unsafe { (*info).si_addr() } as usize;
    let CurrentStack { guard, class, bytes } = CURRENT.get();
    if (guard.start..guard.end).contains(&address) {
        let mut message = Message::default();
        message.text(b"wedjat worker: the handler of a task of class ");
        message.number(class.into());
        message.text(b" overflowed its stack of ");
        message.number(bytes);
        message.text(b" bytes; use less stack, or a larger `stack` of `Sharing`\n");
        let (start, len) = (message.bytes.as_ptr(), message.len);
        // SAFETY: the bytes are valid. Both functions may be called by signal handlers.
        unsafe {
            libc::write(2, start.cast(), len); // 2: standard error
            libc::abort();
        }
    }
    let former = FORMER.get();
    match former.map_or(libc::SIG_DFL, |former| former.sa_sigaction) {
        libc::SIG_DFL | libc::SIG_IGN => {
            // SAFETY: restores the system's default action. The instruction then faults again and ends the process.
            unsafe { libc::signal(signal, libc::SIG_DFL) };
        }
        handler if former.is_some_and(|former| former.sa_flags & libc::SA_SIGINFO != 0) => {
            // SAFETY: the former handler has this type, as its flags say.
            let handler: signals::Handler = unsafe { std::mem::transmute(handler) };
            handler(signal, info, context);
        }
        handler => {
            // SAFETY: without that flag, the former handler has this type.
            let handler: extern "C" fn(i32) = unsafe { std::mem::transmute(handler) };
            handler(signal);
        }
    }
}

/// Text buffer for a signal handler, which must not allocate.
struct Message {
    /// Buffer, long enough for the text of `on_fault`.
    bytes: [u8; 256],
    /// Number of bytes in use.
    len: usize,
}

impl Default for Message {
    fn default() -> Self {
        Self { bytes: [0; 256], len: 0 }
    }
}

impl Message {
    /// Adds a text, as far as it fits.
    fn text(&mut self, text: &[u8]) {
        for &byte in text {
            if let Some(free) = self.bytes.get_mut(self.len) {
                *free = byte;
                self.len += 1;
            }
        }
    }

    /// Adds a number in decimal.
    fn number(&mut self, number: usize) {
        if number >= 10 {
            self.number(number / 10);
        }
        self.text(&[b'0' + (number % 10) as u8]);
    }
}
