//! A worker core in C: attaches to an agent by name, takes tasks, and answers them.
//!
//! An agent is the process that gives the tasks of a host to its worker processes. It grants each worker a channel in
//! shared memory. A task is in hand from its arrival at the program until its answer.

use std::ffi::{CStr, c_char};
use std::mem::forget;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicPtr, AtomicU8, AtomicU64};
use std::time::Duration;

use wedjat::worker::{self, Detached, WorkerRequest};

use crate::calls::check;
use crate::code::*;
use crate::create::{read_sized, write_result};
use crate::types::{Task, WorkerOptions};

/// Magic number of the head of an attached worker.
const LIVE: u64 = u64::from_le_bytes(*b"wedjat-W");
/// Magic number of the head of a detached worker.
const DETACHED: u64 = u64::from_le_bytes(*b"wedjat-D");

/// State of a worker between two calls.
const IDLE: u8 = 0;
/// State during a call or a detach, and after the detach.
const BUSY: u8 = 1;
/// State after a call panicked: the worker's contents are unknown.
const BROKEN: u8 = 2;

/// Worker core of an agent, from wedjat_worker_attach() until wedjat_worker_detach(). Used by one thread at a
/// time.
///
/// This head of a few bytes is never freed, so that calls detect a detached worker.
#[derive(Debug)]
pub struct Worker {
    /// [`LIVE`] or [`DETACHED`].
    magic: AtomicU64,
    /// Number of refused calls.
    bad_calls: AtomicU64,
    /// [`IDLE`], [`BUSY`] or [`BROKEN`].
    state: AtomicU8,
    /// The worker itself; null once detached.
    body: AtomicPtr<worker::Worker>,
}

/// Returns the attached worker at `pointer`. Returns an error code for null, and for any other value.
fn live<'a>(pointer: *const Worker) -> Result<&'a Worker, i32> {
    if pointer.is_null() {
        return Err(WEDJAT_ERROR_NULL);
    }
    if !pointer.is_aligned() {
        return Err(WEDJAT_ERROR_HANDLE);
    }
    // SAFETY: the caller vouches that wedjat_worker_attach() made it; heads are never freed, so the head of a
    // detached worker is readable.
    let worker = unsafe { &*pointer };
    if worker.magic.load(Acquire) == LIVE { Ok(worker) } else { Err(WEDJAT_ERROR_HANDLE) }
}

/// Runs `call` with exclusive use of a worker. Returns its result or error code. Counts errors, except an end of tasks.
///
/// Returns WEDJAT_ERROR_BUSY if another call uses the worker, and WEDJAT_ERROR_DEFECT if this or an earlier call
/// panicked.
pub(crate) fn with_worker(
    worker: *const Worker,
    call: impl FnOnce(&mut worker::Worker) -> Result<i32, i32>,
) -> i32 {
    let worker = match live(worker) {
        Ok(worker) => worker,
        Err(code) => return code,
    };
    // Acquire, so that this call sees the changes of the previous one, which another thread may have made.
    if let Err(state) = worker.state.compare_exchange(IDLE, BUSY, Acquire, Relaxed) {
        return worker.refuse(if state == BUSY { WEDJAT_ERROR_BUSY } else { WEDJAT_ERROR_DEFECT });
    }
    let body = worker.body.load(Relaxed);
    // SAFETY: the body of a live head is not null, and the state excludes all other users.
    let outcome = catch_unwind(AssertUnwindSafe(|| call(unsafe { &mut *body })));
    let (state, result) = match outcome {
        Ok(result) => (IDLE, result),
        Err(panic) => {
            forget(panic); // its destructor may panic, too
            (BROKEN, Err(WEDJAT_ERROR_DEFECT))
        }
    };
    worker.state.store(state, Release);
    result.unwrap_or_else(|code| worker.refuse(code))
}

impl Worker {
    /// Creates a head, which is never freed, with the worker behind it. Returns the handle for C.
    fn leak(worker: worker::Worker) -> *mut Self {
        Box::into_raw(Box::new(Self {
            magic: AtomicU64::new(LIVE),
            bad_calls: AtomicU64::new(0),
            state: AtomicU8::new(IDLE),
            body: AtomicPtr::new(Box::into_raw(Box::new(worker))),
        }))
    }

    /// Counts a refused call, and returns its code. The end of tasks does not count, except for a damaged region.
    fn refuse(&self, code: i32) -> i32 {
        let ends = [WEDJAT_ERROR_STOPPED, WEDJAT_ERROR_SHUT_OUT, WEDJAT_ERROR_AGENT_DIED];
        if !ends.contains(&code) {
            self.bad_calls.fetch_add(1, Relaxed);
        }
        code
    }
}

/// Returns the code for the end of tasks.
pub(crate) fn code_of_detached(reason: Detached) -> i32 {
    match reason {
        Detached::Stopped => WEDJAT_ERROR_STOPPED,
        Detached::Excluded => WEDJAT_ERROR_SHUT_OUT,
        Detached::AgentDied => WEDJAT_ERROR_AGENT_DIED,
        Detached::BadNotice => WEDJAT_ERROR_REGION,
    }
}

/// Attaches to the agent `name`, a zero-terminated text: the `name` of its configuration, or a path if it
/// contains a slash. `options` may be null for the defaults: any worker of any pool, not pinned, 5 s of
/// timeout, 50 us of spinning. Waits for the connection to a running agent, and then for its shared memory: each for at
/// most 5 s, or a longer timeout. Then waits for the agent's grant, for at most the timeout. Allocates all memory that
/// the worker uses, except that of wedjat_worker_serve().
///
/// Returns 0, and the worker in `*worker`. Returns a code on failure, null in `*worker`, and the reason with
/// its fix in the `detail_size` bytes at `detail`, which may be null.
///
/// # Errors
/// WEDJAT_ERROR_OPTIONS, WEDJAT_ERROR_ATTACH
///
/// # Called from
/// Any thread (lcore or not) of a primary, secondary or other process, also after fork().
/// Not a signal handler. With a `cpu` the calling thread is pinned.
///
/// # Safety
/// Pointers that are not null must point to memory of the given sizes, or of their type.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wedjat_worker_attach(
    name: *const c_char,
    options: *const WorkerOptions,
    worker: *mut *mut Worker,
    detail: *mut c_char,
    detail_size: usize,
) -> i32 {
    // SAFETY: the caller vouches for the memory.
    let make = || unsafe { attach(name, options) }.map(Worker::leak);
    // SAFETY: the same.
    unsafe { write_result(worker, options, (detail, detail_size), make) }
}

/// Attaches a worker with these options. Returns the code of an error with its text.
///
/// # Safety
/// `name` is null or zero-terminated; `options` is null, or aligned with as many bytes as its field `size`
/// says.
unsafe fn attach(
    name: *const c_char,
    options: *const WorkerOptions,
) -> Result<worker::Worker, (i32, String)> {
    if name.is_null() {
        return Err((WEDJAT_ERROR_NULL, String::new()));
    }
    let mut settings = worker::Options::default();
    if !options.is_null() {
        // SAFETY: the caller vouches for it.
        let options = unsafe { read_sized(options, "options", "wedjat_worker_options") }?;
        settings.worker = choice("worker", options.worker)?;
        settings.pool = choice("pool", options.pool)?;
        settings.cpu = choice("cpu", options.cpu)?;
        settings.attach_timeout = Duration::from_nanos(options.patience_ns);
        settings.spin = Duration::from_nanos(options.spin_ns);
    }
    // SAFETY: the caller vouches for the zero at its end.
    let name = unsafe { CStr::from_ptr(name) };
    let refuse = |text: String| (WEDJAT_ERROR_ATTACH, text);
    let name = name.to_str().map_err(|error| refuse(format!("the agent's name: {error}")))?;
    worker::Worker::attach(name, &settings).map_err(|error| refuse(error.to_string()))
}

/// Converts an option's number; -1 stands for `None`. Fails for a number that does not fit, with a text that names
/// the option.
fn choice<T: TryFrom<i32>>(name: &str, found: i32) -> Result<Option<T>, (i32, String)> {
    match (found, T::try_from(found)) {
        (-1, _) => Ok(None),
        (_, Ok(value)) => Ok(Some(value)),
        _ => {
            let text = format!("options.{name}: found {found}; allowed: its number, or -1 for any");
            Err((WEDJAT_ERROR_OPTIONS, text))
        }
    }
}

/// Leaves the agent. The agent drops the worker's unanswered tasks, in hand or not, as `worker_lost`. A second call for
/// the same worker returns WEDJAT_ERROR_HANDLE.
///
/// # Return value
/// 0; or a code.
///
/// # Called from
/// The thread (lcore or not) that uses the worker, in the process that attached it. After fork(), parent or
/// child, not both. Not a signal handler.
///
/// # Safety
/// `worker` is null or comes from wedjat_worker_attach().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wedjat_worker_detach(worker: *mut Worker) -> i32 {
    let worker = match live(worker) {
        Ok(worker) => worker,
        Err(code) => return code,
    };
    // `BUSY` makes all later calls fail. A broken worker can be detached, too.
    if worker.state.fetch_update(AcqRel, Acquire, |state| (state != BUSY).then_some(BUSY)).is_err()
    {
        return worker.refuse(WEDJAT_ERROR_BUSY);
    }
    if worker.magic.compare_exchange(LIVE, DETACHED, AcqRel, Acquire).is_err() {
        return WEDJAT_ERROR_HANDLE;
    }
    let body = worker.body.swap(ptr::null_mut(), AcqRel);
    // SAFETY: `leak` made it; the head is no longer live, so no other call can reach it.
    let leave = || drop(unsafe { Box::from_raw(body) });
    match catch_unwind(AssertUnwindSafe(leave)) {
        Ok(()) => 0,
        Err(panic) => {
            forget(panic); // its destructor may panic, too
            WEDJAT_ERROR_DEFECT
        }
    }
}

/// Takes the next task if there is one, and describes it in `*task`. Never waits and makes no system call.
/// Call wedjat_worker_check() now and then to learn of the end of tasks. Completes an unanswered task in hand
/// without an answer.
///
/// # Return value
/// 1, and the task in `*task`; 0 if there is none, also after the end of tasks; or a code.
///
/// # Called from
/// The thread (lcore or not) that uses the worker, in the process that attached it. After fork(), parent or
/// child, not both. Not a signal handler.
///
/// # Safety
/// `worker` is null or comes from wedjat_worker_attach(); `task` is null or points to one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wedjat_worker_poll(worker: *mut Worker, task: *mut Task) -> i32 {
    with_worker(worker, |worker| {
        check(task)?;
        // SAFETY: not null and aligned; the caller vouches for the rest.
        Ok(unsafe { write_task(worker.poll(), task) })
    })
}

/// Takes the next task like wedjat_worker_poll(), but waits for it for at most `timeout_ns`: first spinning,
/// then asleep.
///
/// # Return value
/// 1, and the task in `*task`; 0 on timeout, or if the agent sent an invalid task: the next call then returns
/// WEDJAT_ERROR_REGION; or a code if no more tasks will come.
///
/// # Errors
/// WEDJAT_ERROR_STOPPED, WEDJAT_ERROR_SHUT_OUT, WEDJAT_ERROR_AGENT_DIED, WEDJAT_ERROR_REGION
///
/// # Called from
/// The thread (lcore or not) that uses the worker, in the process that attached it. After fork(), parent or
/// child, not both. Not a signal handler.
///
/// # Safety
/// `worker` is null or comes from wedjat_worker_attach(); `task` is null or points to one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wedjat_worker_recv(
    worker: *mut Worker,
    timeout_ns: u64,
    task: *mut Task,
) -> i32 {
    with_worker(worker, |worker| {
        check(task)?;
        let received = worker.recv(Duration::from_nanos(timeout_ns)).map_err(code_of_detached)?;
        // SAFETY: not null and aligned; the caller vouches for the rest.
        Ok(unsafe { write_task(received, task) })
    })
}

/// Returns the task's description for C.
pub(crate) fn view(task: &worker::Task<'_>) -> Task {
    let ids = task.ids();
    Task {
        payload: task.payload().as_ptr(),
        length: task.payload().len() as u32,
        reply_max: task.reply_max() as u32,
        app: ids.app,
        seq: ids.seq,
        task_class: ids.class,
        reserved: 0,
    }
}

/// Writes the task's description for C. Returns 1, or 0 without a task. The worker keeps the task for the
/// next call.
///
/// # Safety
/// `to` is valid and aligned.
unsafe fn write_task(received: Option<worker::Task<'_>>, to: *mut Task) -> i32 {
    let Some(task) = received else {
        return 0;
    };
    // SAFETY: the caller has checked the pointer.
    unsafe { to.write(view(&task)) };
    // A drop would complete the task without an answer.
    forget(task);
    1
}

/// Answers the task in hand with `length` bytes. An answer longer than its `reply_max` leaves the task in hand.
/// Returns 0 or a code.
///
/// # Errors
/// WEDJAT_ERROR_NO_TASK, WEDJAT_ERROR_TOO_LONG
///
/// # Called from
/// The thread (lcore or not) that uses the worker, in the process that attached it. After fork(), parent or
/// child, not both. Not a signal handler.
///
/// # Safety
/// `worker` is null or comes from wedjat_worker_attach(); `answer` has `length` bytes, and is null only if
/// that is 0. It may be the task's own payload.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wedjat_worker_reply(
    worker: *mut Worker,
    answer: *const u8,
    length: usize,
) -> i32 {
    with_worker(worker, |worker| {
        if answer.is_null() && length > 0 {
            return Err(WEDJAT_ERROR_NULL);
        }
        let task = worker.resume().ok_or(WEDJAT_ERROR_NO_TASK)?;
        if length > task.reply_max() {
            forget(task); // it stays in hand
            return Err(WEDJAT_ERROR_TOO_LONG);
        }
        task.reply_with(|_, reply| {
            if length > 0 {
                // SAFETY: the caller vouches for the answer, and it fits; it may lie in the same memory.
                unsafe { ptr::copy(answer, reply.as_mut_ptr(), length) };
            }
            length
        });
        Ok(0)
    })
}

/// Completes the task in hand without an answer to its client. Returns 0 or a code.
///
/// # Errors
/// WEDJAT_ERROR_NO_TASK
///
/// # Called from
/// The thread (lcore or not) that uses the worker, in the process that attached it. After fork(), parent or
/// child, not both. Not a signal handler.
///
/// # Safety
/// `worker` is null or comes from wedjat_worker_attach().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wedjat_worker_give_up(worker: *mut Worker) -> i32 {
    with_worker(worker, |worker| worker.resume().map(drop).ok_or(WEDJAT_ERROR_NO_TASK).map(|()| 0))
}

/// Reads the current request to the worker, in the middle of a long task. The program may then end the task early.
/// Never waits and makes no system call.
///
/// # Return value
/// WEDJAT_REQUEST_NOTHING, WEDJAT_REQUEST_TASK_WAITS or WEDJAT_REQUEST_STOP; or a code.
///
/// # Errors
/// WEDJAT_ERROR_NO_TASK
///
/// # Called from
/// The thread (lcore or not) that uses the worker, in the process that attached it. After fork(), parent or
/// child, not both. Not a signal handler.
///
/// # Safety
/// `worker` is null or comes from wedjat_worker_attach().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wedjat_worker_request(worker: *mut Worker) -> i32 {
    with_worker(worker, |worker| {
        let task = worker.resume().ok_or(WEDJAT_ERROR_NO_TASK)?;
        let request = match task.request() {
            WorkerRequest::Nothing => WEDJAT_REQUEST_NOTHING,
            WorkerRequest::TaskWaits => WEDJAT_REQUEST_TASK_WAITS,
            WorkerRequest::Stop => WEDJAT_REQUEST_STOP,
        };
        forget(task); // it stays in hand
        Ok(request)
    })
}

/// Former name of wedjat_worker_request(), kept for one release. Does not yield the core, unlike wedjat_yield_point().
///
/// # Return value
/// WEDJAT_REQUEST_NOTHING, WEDJAT_REQUEST_TASK_WAITS or WEDJAT_REQUEST_STOP; or a code.
///
/// # Errors
/// WEDJAT_ERROR_NO_TASK
///
/// # Called from
/// The thread (lcore or not) that uses the worker, in the process that attached it. After fork(), parent or
/// child, not both. Not a signal handler.
///
/// # Safety
/// `worker` is null or comes from wedjat_worker_attach().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wedjat_worker_yield_point(worker: *mut Worker) -> i32 {
    // SAFETY: the caller vouches for the same.
    unsafe { wedjat_worker_request(worker) }
}

/// Checks for the end of tasks. Returns 0 while tasks may come, or the code of the reason why not.
///
/// # Errors
/// WEDJAT_ERROR_STOPPED, WEDJAT_ERROR_SHUT_OUT, WEDJAT_ERROR_AGENT_DIED, WEDJAT_ERROR_REGION
///
/// # Called from
/// The thread (lcore or not) that uses the worker, in the process that attached it. After fork(), parent or
/// child, not both. Not a signal handler.
///
/// # Safety
/// `worker` is null or comes from wedjat_worker_attach().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wedjat_worker_check(worker: *mut Worker) -> i32 {
    with_worker(worker, |worker| worker.check().map_err(code_of_detached).map(|()| 0))
}

/// Global id of the worker, or a code.
///
/// # Called from
/// The thread (lcore or not) that uses the worker, in the process that attached it. After fork(), parent or
/// child, not both. Not a signal handler.
///
/// # Safety
/// `worker` is null or comes from wedjat_worker_attach().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wedjat_worker_id(worker: *mut Worker) -> i32 {
    with_worker(worker, |worker| Ok(i32::from(worker.id())))
}

/// Number of refused calls for this worker; 0 for null or a detached worker.
///
/// # Called from
/// Any thread (lcore or not) of the process that attached the worker. After fork(), parent or child, not
/// both. Not a signal handler.
///
/// # Safety
/// `worker` is null or comes from wedjat_worker_attach().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wedjat_worker_bad_calls(worker: *const Worker) -> u64 {
    live(worker).map_or(0, |worker| worker.bad_calls.load(Relaxed))
}
