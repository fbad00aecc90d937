//! Tasks in C that share a worker's core: each has a stack of its own and runs for a quantum (a slice of time) in
//! turn. A task yields the core only at yield points, which are calls in its handler.

use std::ffi::{c_char, c_void};
use std::time::Duration;

use wedjat::worker::{self, Cpu, QuantumClock};

use crate::code::*;
use crate::create::{read_sized, write_text};
use crate::types::{SharedCpu, Sharing, Task};
use crate::worker::{Worker, code_of_detached, view, with_worker};

/// Handler of a task for wedjat_worker_serve(): writes at most `task->reply_max` bytes to `answer`, and returns their
/// number. A negative or larger number means no answer. Long work calls wedjat_yield_point(`cpu`). `argument` is that
/// of wedjat_worker_serve(). The handler must return: longjmp() out of it is not allowed.
pub type Handler = Option<
    unsafe extern "C" fn(
        task: *const Task,
        answer: *mut u8,
        cpu: *const SharedCpu,
        argument: *mut c_void,
    ) -> i64,
>;

/// Serves tasks until no more will come. Several tasks share the core: each runs for a quantum in turn, and yields at
/// calls of wedjat_yield_point(). Calls `handler` for each task, on a stack of the task's own. `sharing` may be null
/// for the defaults: a quantum of 10 us, 64 tasks, stacks of 256 KiB. A stack that overflows ends the process, with a
/// message that names the task's class. Completes a task in hand of an earlier call without an answer.
///
/// Returns the code of the end of tasks. Returns WEDJAT_ERROR_OPTIONS also if the system refuses the first stack, the
/// signal handlers or the timer. Writes the reason of a failure with its fix to the `detail_size` bytes at `detail`,
/// which may be null; an empty text without a failure.
///
/// # Errors
/// WEDJAT_ERROR_STOPPED, WEDJAT_ERROR_SHUT_OUT, WEDJAT_ERROR_AGENT_DIED, WEDJAT_ERROR_REGION, WEDJAT_ERROR_OPTIONS
///
/// # Called from
/// The thread (lcore or not) that uses the worker, in the process that attached it. After fork(), parent or
/// child, not both. Not a signal handler, and not a handler of a task.
///
/// # Safety
/// `worker` is null or comes from wedjat_worker_attach(); other pointers that are not null must point to memory of
/// the given size, or of their type.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wedjat_worker_serve(
    worker: *mut Worker,
    sharing: *const Sharing,
    handler: Handler,
    argument: *mut c_void,
    detail: *mut c_char,
    detail_size: usize,
) -> i32 {
    let refuse = |text: &str| {
        // SAFETY: the caller vouches for the memory.
        unsafe { write_text(text, detail, detail_size) };
        WEDJAT_ERROR_OPTIONS
    };
    refuse(""); // clears the text of an earlier failure
    // `with_worker` counts refused calls. Its own refusals leave the text empty.
    with_worker(worker, |worker| {
        let handler = handler.ok_or(WEDJAT_ERROR_NULL)?;
        // SAFETY: the caller vouches for the memory.
        let sharing = unsafe { parameters(sharing) }.map_err(|(code, text)| {
            refuse(&text);
            code
        })?;
        let handle = |task: worker::Task<'_>, cpu: Cpu<'_>| {
            let shared = SharedCpu { calls_left: cpu.calls_left(), state: (&raw const cpu).cast() };
            let c_task = view(&task);
            task.answer_with(|_, answer| {
                // SAFETY: the task, the buffer and the core are valid during the call.
                let len = unsafe {
                    handler(&raw const c_task, answer.as_mut_ptr(), &raw const shared, argument)
                };
                // A length beyond the buffer is a defect of the handler. Its task is completed without an answer.
                usize::try_from(len).ok().filter(|&len| len <= answer.len())
            });
        };
        let ended = worker.serve(&sharing, handle).map_err(|error| refuse(&error.to_string()))?;
        Err(code_of_detached(ended))
    })
}

/// Converts the parameters to those of the Rust library; null stands for the defaults. Refuses parameters of another
/// size, from another version of the header. Returns the code of an error with its text.
///
/// # Safety
/// `sharing` is null, or points to as many bytes as its field `size` says.
unsafe fn parameters(sharing: *const Sharing) -> Result<worker::Sharing, (i32, String)> {
    if sharing.is_null() {
        return Ok(worker::Sharing::default());
    }
    if !sharing.is_aligned() {
        return Err((WEDJAT_ERROR_ALIGNMENT, String::new()));
    }
    // SAFETY: aligned; the caller vouches for the rest.
    let Sharing { quantum_ns, slots, timer, stack, .. } =
        unsafe { read_sized(sharing, "sharing", "wedjat_sharing") }?;
    let clock = match timer {
        0 => QuantumClock::Readings,
        1 => QuantumClock::Timer,
        _ => {
            let text = format!("sharing.timer: found {timer}; allowed: 0 or 1");
            return Err((WEDJAT_ERROR_OPTIONS, text));
        }
    };
    let quantum = Duration::from_nanos(quantum_ns);
    Ok(worker::Sharing { quantum, slots: slots as usize, stack, clock })
}

/// Returns a copy of the Rust handle of the core, which wedjat_worker_serve() put into the handler's argument `cpu`.
///
/// # Safety
/// `cpu` comes from the present call of a handler.
unsafe fn core_of<'a>(cpu: *const SharedCpu) -> Cpu<'a> {
    // SAFETY: wedjat_worker_serve() has set `state` to a `Cpu`. The `Cpu` lives until the handler returns.
    unsafe { (*cpu).state.cast::<Cpu<'a>>().read() }
}

/// Lets other tasks run if this task's quantum has ended and others wait. Call wedjat_yield_point() instead: it counts
/// `calls_left` of `cpu` down, and calls this function at 0.
///
/// # Return value
/// None.
///
/// # Called from
/// A handler of wedjat_worker_serve(), with its own `cpu`, on the thread (lcore or not) of that call, in any process,
/// also after fork(). Not a signal handler.
///
/// # Safety
/// `cpu` is that of the present call of a handler.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wedjat_check_quantum(cpu: *const SharedCpu) {
    // SAFETY: the caller vouches for it.
    unsafe { core_of(cpu) }.yield_point();
}

/// Starts a section in which wedjat_yield_point() does nothing, for example around a lock of this worker's tasks.
/// Sections may be nested.
///
/// # Return value
/// None.
///
/// # Called from
/// A handler of wedjat_worker_serve(), with its own `cpu`, on the thread (lcore or not) of that call, in any process,
/// also after fork(). Not a signal handler.
///
/// # Safety
/// `cpu` is that of the present call of a handler.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wedjat_critical_begin(cpu: *const SharedCpu) {
    // A drop of the guard would end the section.
    // SAFETY: the caller vouches for it.
    std::mem::forget(unsafe { core_of(cpu) }.critical());
}

/// Ends a section of wedjat_critical_begin(). The end of the handler ends all of them. Does nothing outside a section.
///
/// # Return value
/// None.
///
/// # Called from
/// A handler of wedjat_worker_serve(), with its own `cpu`, on the thread (lcore or not) of that call, in any process,
/// also after fork(). Not a signal handler.
///
/// # Safety
/// `cpu` is that of the present call of a handler.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wedjat_critical_end(cpu: *const SharedCpu) {
    // SAFETY: the caller vouches for it.
    unsafe { core_of(cpu) }.end_critical();
}
