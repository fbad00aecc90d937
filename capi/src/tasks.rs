//! Calls for programs with their own packet format. They pass tasks and reports as values instead of packets. None
//! of the calls on a picker (one core's part of the scheduler) allocates, calls the system or waits.
//!
//! The picker chooses a worker for each task, and holds the task's id while no worker may take it. The program sends
//! the packets itself, and reports the workers' answers.

use wedjat::embed::{self, TaskDescription};
use wedjat::limits::BURST;

use crate::calls::check;
use crate::code::*;
use crate::handle::{Picker, Scheduler, with_picker, with_scheduler};
use crate::types::{Choice, Description, ReleasedTask, Report, WEDJAT_REPORT_ANSWER};

/// Gives out a core's picker, once, of a scheduler without configured ports. It lives as long as the
/// scheduler.
///
/// # Return value
/// 0; or a code, see ERRORS.
///
/// # Errors
/// WEDJAT_ERROR_CORE: The core does not exist, its picker has been given out, or the configuration has ports.
///
/// # Called from
/// Any thread (lcore or not) of the process that created the scheduler, primary or secondary. After fork(),
/// parent or child, not both. Not a signal handler. Another thread may use the picker then, one at a time.
///
/// # Safety
/// `scheduler` is null or comes from wedjat_create(); `picker` is null or leads to a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wedjat_picker(
    scheduler: *mut Scheduler,
    core: u32,
    picker: *mut *mut Picker,
) -> i32 {
    with_scheduler(scheduler, |_, body| {
        check(picker)?;
        let pointer = body.issue_picker(core as usize)?;
        // SAFETY: checked above; the caller vouches for the rest.
        unsafe { picker.write(pointer) };
        Ok(0)
    })
}

/// Chooses workers at `now` ticks for `count` tasks of a pool, at most WEDJAT_BURST, in order, and puts the
/// outcome of each into `choices`. WEDJAT_FORWARD: send the task to `worker`, whose count includes it from
/// now on. WEDJAT_HOLD: no worker may take it now; keep it until wedjat_release_tasks() returns its `id`.
/// WEDJAT_ANSWER: its pool's queue is full, under overflow = "refuse"; inform the client. WEDJAT_DROP: it is
/// dropped for `reason`, and counted; so is every task of an unknown pool.
///
/// # Return value
/// `count`; or a code, see ERRORS, and then nothing has been decided, except after WEDJAT_ERROR_DEFECT.
///
/// # Errors
/// WEDJAT_ERROR_BURST: More than WEDJAT_BURST tasks.
///
/// # Called from
/// The thread (lcore or not) that uses the picker, in the process that created the scheduler, primary or
/// secondary. After fork(), parent or child, not both. Not a signal handler.
///
/// # Safety
/// `tasks` and `choices` are null or arrays of `count`. `picker` is accessed only if it is one of the
/// scheduler's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wedjat_pick(
    scheduler: *const Scheduler,
    picker: *mut Picker,
    pool: u16,
    now: u64,
    tasks: *const Description,
    count: u32,
    choices: *mut Choice,
) -> i32 {
    with_picker(scheduler, picker, |picker| {
        check(tasks)?;
        check(choices)?;
        if count > WEDJAT_BURST {
            return Err(WEDJAT_ERROR_BURST);
        }
        // SAFETY: not null and aligned; the caller vouches for the length.
        let tasks = unsafe { std::slice::from_raw_parts(tasks, count as usize) };
        let mut described = [TaskDescription::default(); BURST];
        for (description, task) in described.iter_mut().zip(tasks) {
            *description = TaskDescription { id: task.id, class: task.task_class };
        }
        let mut chosen = [embed::Choice::Refused; BURST];
        picker.pick(pool, now, &described[..tasks.len()], &mut chosen).map_err(of_misuse)?;
        for (index, choice) in chosen.iter().enumerate().take(tasks.len()) {
            // SAFETY: the array is aligned and has a place for each task.
            unsafe { choices.add(index).write((*choice).into()) };
        }
        Ok(count as i32)
    })
}

/// Processes `count` reports of workers in order: answers to tasks, and signs of life. A report of an unknown
/// worker counts as dropped.
///
/// # Return value
/// Number of accepted reports; or a code, see ERRORS, and then none was accepted, except after WEDJAT_ERROR_DEFECT.
///
/// # Errors
/// WEDJAT_ERROR_ROOM: More reports than INT32_MAX.
///
/// # Called from
/// The thread (lcore or not) that uses the picker, in the process that created the scheduler, primary or
/// secondary. After fork(), parent or child, not both. Not a signal handler.
///
/// # Safety
/// `reports` is null or an array of `count`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wedjat_report(
    scheduler: *const Scheduler,
    picker: *mut Picker,
    reports: *const Report,
    count: u32,
) -> i32 {
    with_picker(scheduler, picker, |picker| {
        check(reports)?;
        if i32::try_from(count).is_err() {
            return Err(WEDJAT_ERROR_ROOM);
        }
        // SAFETY: not null and aligned; the caller vouches for the length.
        let reports = unsafe { std::slice::from_raw_parts(reports, count as usize) };
        let mut accepted = 0;
        for &Report { worker, queue, service_ns, flags, task_class: class, .. } in reports {
            let answers = flags & WEDJAT_REPORT_ANSWER != 0;
            let report = embed::WorkerReport { worker, queue, service_ns, class, answers };
            accepted += picker.report(&[report]);
        }
        Ok(accepted as i32)
    })
}

/// Counts a task that the program sent to a worker by its own choice: a further packet of a task that the
/// worker has, or a retry.
///
/// # Return value
/// 0; or a code, see ERRORS.
///
/// # Errors
/// WEDJAT_ERROR_WORKER: No server has that worker.
///
/// # Called from
/// The thread (lcore or not) that uses the picker, in the process that created the scheduler, primary or
/// secondary. After fork(), parent or child, not both. Not a signal handler.
///
/// # Safety
/// Same as wedjat_pick().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wedjat_sent(
    scheduler: *const Scheduler,
    picker: *mut Picker,
    worker: u16,
) -> i32 {
    with_picker(scheduler, picker, |picker| picker.sent(worker).map(|()| 0).map_err(of_misuse))
}

/// Writes off `tasks` tasks that a worker received and will not answer, at most those outstanding there. They no longer
/// count as outstanding. Losses that the program does not report are detected later by missing reports.
///
/// # Return value
/// 0; or a code, see ERRORS.
///
/// # Errors
/// WEDJAT_ERROR_WORKER: No server has that worker.
///
/// # Called from
/// The thread (lcore or not) that uses the picker, in the process that created the scheduler, primary or
/// secondary. After fork(), parent or child, not both. Not a signal handler.
///
/// # Safety
/// Same as wedjat_pick().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wedjat_lost(
    scheduler: *const Scheduler,
    picker: *mut Picker,
    worker: u16,
    tasks: u32,
) -> i32 {
    with_picker(scheduler, picker, |picker| {
        picker.lost(worker, tasks).map(|()| 0).map_err(of_misuse)
    })
}

/// Releases held tasks, at most `room` of them: each with its `id`, and WEDJAT_FORWARD and its worker, or
/// WEDJAT_DROP and the reason. Call it in every iteration of the loop, after wedjat_pick() and
/// wedjat_report(), until it returns 0, even if nothing is held: it also updates time-dependent state, and
/// takes changes of workers and policies. Tasks of each pool leave in the order of their arrival at this
/// picker.
///
/// # Return value
/// Number of released tasks, 0 if there is none now; or a code, see ERRORS.
///
/// # Called from
/// The thread (lcore or not) that uses the picker, in the process that created the scheduler, primary or
/// secondary. After fork(), parent or child, not both. Not a signal handler.
///
/// # Safety
/// `released` is null or an array of `room`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wedjat_release_tasks(
    scheduler: *const Scheduler,
    picker: *mut Picker,
    now: u64,
    released: *mut ReleasedTask,
    room: u32,
) -> i32 {
    with_picker(scheduler, picker, |picker| {
        check(released)?;
        let mut count = 0;
        while count < room
            && let Some(task) = picker.release(now)
        {
            let choice = match task.outcome {
                Ok(worker) => embed::Choice::Worker { worker, idle: false },
                Err(reason) => embed::Choice::Dropped(reason),
            };
            // SAFETY: aligned, and `count` is below `room`.
            unsafe {
                released
                    .add(count as usize)
                    .write(ReleasedTask { id: task.id, choice: choice.into() })
            };
            count += 1;
        }
        Ok(count as i32)
    })
}

/// Drops all held tasks, because the program stops. wedjat_release_tasks() returns them as WEDJAT_DROP.
///
/// # Return value
/// 0; or a code, see ERRORS.
///
/// # Called from
/// The thread (lcore or not) that uses the picker, in the process that created the scheduler, primary or
/// secondary. After fork(), parent or child, not both. Not a signal handler.
///
/// # Safety
/// Same as wedjat_pick().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wedjat_abandon_tasks(
    scheduler: *const Scheduler,
    picker: *mut Picker,
) -> i32 {
    with_picker(scheduler, picker, |picker| {
        picker.abandon();
        Ok(0)
    })
}
