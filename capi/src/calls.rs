//! Calls on a context (one core's part of a scheduler): decisions on bursts, releases and questions. None of them
//! allocates, calls the system or waits. Also calls on a whole scheduler: its counters, and the state of its workers.
//!
//! A context holds a packet that waits for a free worker or for a neighbour's MAC address. The program keeps its
//! bytes until wedjat_release() returns it. A question asks for such a MAC address, by ARP or neighbour discovery.

use wedjat::embed;
use wedjat::limits::BURST;
use wedjat::state::counters::COUNT;

use crate::code::*;
use crate::handle::{Context, Core, Scheduler, with_context, with_scheduler};
use crate::types::{Packet, Rewrite, RewriteV6, Verdict, WEDJAT_HOLD, WorkerState};

/// Decides on `count` packets, at most WEDJAT_BURST, that `port` received at `now` ticks. Rewrites those that
/// proceed, and puts a verdict for each into `verdicts`. Prefetch bytes that may not be in the cache before
/// the call, like wedjat_process_mbufs(). Returns `count`; or a code, and then nothing has been touched, except
/// after WEDJAT_ERROR_DEFECT.
///
/// # Called from
/// The thread (lcore or not) that uses the context, in the process that created the scheduler, primary or
/// secondary. After fork(), parent or child, not both. Not a signal handler.
///
/// # Safety
/// `packets` and `verdicts` are null or arrays of `count`. Only this call uses the packets' bytes. Those of a
/// held packet stay at their address until it is released.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wedjat_process(
    scheduler: *const Scheduler,
    context: *mut Context,
    port: u32,
    now: u64,
    packets: *mut Packet,
    count: u32,
    verdicts: *mut Verdict,
) -> i32 {
    with_context(scheduler, context, |core| {
        // SAFETY: the caller vouches for arrays of `count`.
        let packets = unsafe { burst(packets, count)? };
        check(verdicts)?;
        // SAFETY: the caller vouches for the array, and it is aligned.
        let not_forwarded =
            unsafe { process(&mut core.context, port as usize, now, packets, verdicts) };
        // Only a packet with another verdict than to forward can be held, so the usual burst skips the search.
        if not_forwarded.map_err(of_misuse)? > 0 {
            // SAFETY: a verdict has been written for each packet.
            let verdicts = unsafe { std::slice::from_raw_parts(verdicts, packets.len()) };
            store_held(core, packets, verdicts);
        }
        Ok(count as i32)
    })
}

/// Decides on the packets and writes their verdicts. Returns the number of packets whose verdict may be another
/// than to forward. Not inlined: the checks around it would compete for its registers.
///
/// # Safety
/// `verdicts` is aligned and has a place for each packet.
#[inline(never)]
unsafe fn process(
    context: &mut embed::Context,
    port: usize,
    now: u64,
    packets: &mut [Packet],
    verdicts: *mut Verdict,
) -> Result<usize, embed::Misuse> {
    context.process_each(port, now, packets, move |index, verdict| {
        // SAFETY: there is a place for each packet; a verdict has the layout of these words.
        unsafe { verdicts.add(index).cast::<[u32; 3]>().write(Verdict::from(verdict).words()) };
    })
}

/// Stores pointer, length and flags of each held packet at its place, for [`wedjat_release()`]. The bytes
/// stay with the caller.
#[cold]
fn store_held(core: &mut Core, packets: &[Packet], verdicts: &[Verdict]) {
    let held = packets.iter().zip(verdicts).filter(|(_, verdict)| verdict.action == WEDJAT_HOLD);
    for (packet, verdict) in held {
        if let Some(place) = core.held.get_mut(verdict.place as usize) {
            *place = Some(*packet);
        }
    }
}

/// Decides like wedjat_process(), but does not change the bytes of tasks and replies. For programs that rewrite
/// packets themselves. `rewrites` receives the changes for packets that proceed, or that are held with a worker.
/// Neighbour questions and refused tasks still become answers in place. wedjat_release() rewrites a task that waits
/// for a worker. Packets of a port with an IPv6 address need wedjat_decide_v6().
///
/// # Return value
/// `count`; or a code, and then nothing has been touched, except after WEDJAT_ERROR_DEFECT.
///
/// # Errors
/// WEDJAT_ERROR_FAMILY
///
/// # Called from
/// The thread (lcore or not) that uses the context, in the process that created the scheduler, primary or
/// secondary. After fork(), parent or child, not both. Not a signal handler.
///
/// # Safety
/// `packets`, `verdicts` and `rewrites` are null or arrays of `count`. Only this call uses the packets' bytes.
/// Those of a held packet stay at their address until it is released.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wedjat_decide(
    scheduler: *const Scheduler,
    context: *mut Context,
    port: u32,
    now: u64,
    packets: *mut Packet,
    count: u32,
    verdicts: *mut Verdict,
    rewrites: *mut Rewrite,
) -> i32 {
    with_context(scheduler, context, |core| {
        if core.context.is_v6(port as usize) {
            return Err(WEDJAT_ERROR_FAMILY);
        }
        // SAFETY: the caller vouches for arrays of `count`.
        unsafe { decide(core, port, now, packets, count, verdicts, rewrites) }
    })
}

/// Decides like wedjat_decide(), with room for IPv6 addresses. For packets of any port.
///
/// # Return value
/// `count`; or a code, and then nothing has been touched, except after WEDJAT_ERROR_DEFECT.
///
/// # Called from
/// The thread (lcore or not) that uses the context, in the process that created the scheduler, primary or
/// secondary. After fork(), parent or child, not both. Not a signal handler.
///
/// # Safety
/// `packets`, `verdicts` and `rewrites` are null or arrays of `count`. Only this call uses the packets' bytes.
/// Those of a held packet stay at their address until it is released.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wedjat_decide_v6(
    scheduler: *const Scheduler,
    context: *mut Context,
    port: u32,
    now: u64,
    packets: *mut Packet,
    count: u32,
    verdicts: *mut Verdict,
    rewrites: *mut RewriteV6,
) -> i32 {
    with_context(scheduler, context, |core| {
        // SAFETY: the caller vouches for arrays of `count`.
        unsafe { decide(core, port, now, packets, count, verdicts, rewrites) }
    })
}

/// Common part of wedjat_decide() and wedjat_decide_v6(), which differ in the type `R` of the rewrites. Returns the
/// number of packets or a code.
///
/// # Safety
/// Same as [`wedjat_decide()`].
unsafe fn decide<R: From<embed::Rewrite>>(
    core: &mut Core,
    port: u32,
    now: u64,
    packets: *mut Packet,
    count: u32,
    verdicts: *mut Verdict,
    rewrites: *mut R,
) -> Result<i32, i32> {
    // SAFETY: the caller vouches for arrays of `count`.
    let packets = unsafe { burst(packets, count)? };
    check(verdicts)?;
    check(rewrites)?;
    let mut decided = [embed::Verdict::Consumed; BURST];
    let mut values = [embed::Rewrite::default(); BURST];
    core.context
        .decide(port as usize, now, packets, &mut decided, &mut values)
        .map_err(of_misuse)?;
    for (index, (verdict, values)) in decided.iter().zip(&values).take(packets.len()).enumerate() {
        // SAFETY: the arrays are aligned and have a place for each packet.
        unsafe {
            verdicts.add(index).write((*verdict).into());
            rewrites.add(index).write((*values).into());
        }
    }
    // SAFETY: they have just been written.
    store_held(core, packets, unsafe { std::slice::from_raw_parts(verdicts, packets.len()) });
    Ok(count as i32)
}

/// Returns the caller's packets. Fails for too many of them, a null or misaligned array, or a packet with null bytes.
///
/// # Safety
/// `packets` is null or an array of `count` that no other call uses.
#[inline(always)]
unsafe fn burst<'a>(packets: *mut Packet, count: u32) -> Result<&'a mut [Packet], i32> {
    check(packets)?;
    if count > WEDJAT_BURST {
        return Err(WEDJAT_ERROR_BURST);
    }
    // SAFETY: not null and aligned; the caller vouches for the length.
    let packets = unsafe { std::slice::from_raw_parts_mut(packets, count as usize) };
    // Null minus one has its top bit set; user-space addresses do not. The loop does not stop early, so that
    // the compiler can vectorize it.
    let one_less = |packet: &Packet| (packet.data.addr() as u64).wrapping_sub(1);
    let combined = packets.iter().fold(0, |combined, packet| combined | one_less(packet));
    if combined >> 63 == 0 { Ok(packets) } else { Err(WEDJAT_ERROR_NULL) }
}

/// Checks that a pointer is neither null nor misaligned. Returns the code of the fault.
#[inline(always)]
pub(crate) fn check<T>(pointer: *const T) -> Result<(), i32> {
    if pointer.is_null() {
        return Err(WEDJAT_ERROR_NULL);
    }
    if !pointer.is_aligned() {
        return Err(WEDJAT_ERROR_ALIGNMENT);
    }
    Ok(())
}

/// Releases held packets, at most `room` of them. Puts a verdict for each into `verdicts`, with the packet's
/// `place`, which is free again. WEDJAT_FORWARD: the packet is rewritten; send it. WEDJAT_DROP: the packet is
/// dropped; free it. Returns the number of released packets, 0 if there is none now, or a code.
///
/// Call it in every iteration of the loop until it returns 0, even if nothing is held: it also updates
/// time-dependent state, and takes changes of workers and policies. Tasks of each pool that wait for a worker leave
/// in the order of their arrival at this context.
///
/// # Called from
/// The thread (lcore or not) that uses the context, in the process that created the scheduler, primary or
/// secondary. After fork(), parent or child, not both. Not a signal handler.
///
/// # Safety
/// `verdicts` is null or an array of `room`. The bytes of held packets are at the same address as at their
/// verdict, and only this call uses them.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wedjat_release(
    scheduler: *const Scheduler,
    context: *mut Context,
    now: u64,
    verdicts: *mut Verdict,
    room: u32,
) -> i32 {
    with_context(scheduler, context, |core| {
        check(verdicts)?;
        let mut count = 0;
        while count < room
            && let Some(released) = core.context.release(now, &mut core.held)
        {
            let verdict = Verdict { place: released.place, ..released.verdict.into() };
            // SAFETY: aligned, and `count` is below `room`.
            unsafe { verdicts.add(count as usize).write(verdict) };
            count += 1;
        }
        Ok(count as i32)
    })
}

/// Drops all held packets, because the program stops. wedjat_release() returns them as WEDJAT_DROP. Returns 0
/// or a code.
///
/// # Called from
/// The thread (lcore or not) that uses the context, in the process that created the scheduler, primary or
/// secondary. After fork(), parent or child, not both. Not a signal handler.
///
/// # Safety
/// Same as wedjat_unsent().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wedjat_abandon(scheduler: *const Scheduler, context: *mut Context) -> i32 {
    with_context(scheduler, context, |core| {
        core.context.abandon();
        Ok(0)
    })
}

/// Reports `count` packets with verdict WEDJAT_FORWARD that the port rejected. They count as dropped, but no more
/// packets than were forwarded. Returns 0 or a code.
///
/// # Called from
/// The thread (lcore or not) that uses the context, in the process that created the scheduler, primary or
/// secondary. After fork(), parent or child, not both. Not a signal handler.
///
/// # Safety
/// `scheduler` comes from wedjat_create(). `context` is accessed only if it is one of the scheduler's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wedjat_unsent(
    scheduler: *const Scheduler,
    context: *mut Context,
    count: u32,
) -> i32 {
    with_context(scheduler, context, |core| {
        core.context.unsent(u64::from(count));
        Ok(0)
    })
}

/// Reports `count` answers (WEDJAT_ANSWER) and questions that the port rejected, or that had no buffer. They count
/// as `originated_unsent`, but no more than were made. Returns 0 or a code.
///
/// # Called from
/// The thread (lcore or not) that uses the context, in the process that created the scheduler, primary or
/// secondary. After fork(), parent or child, not both. Not a signal handler.
///
/// # Safety
/// Same as wedjat_unsent().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wedjat_unsent_own(
    scheduler: *const Scheduler,
    context: *mut Context,
    count: u32,
) -> i32 {
    with_context(scheduler, context, |core| {
        core.context.unsent_own(u64::from(count));
        Ok(0)
    })
}

/// Writes the next neighbour question that is due (ARP or neighbour discovery) into `frame`, of `size` bytes,
/// and its port into `*port`. `size` is at least WEDJAT_QUESTION_SIZE, or WEDJAT_QUESTION_SIZE_V6 if a port
/// has an IPv6 address. Call it in every iteration of the loop, after wedjat_release(), until it returns 0.
/// Returns the length of the question; 0 if none is due; or a code.
///
/// # Errors
/// WEDJAT_ERROR_ROOM
///
/// # Called from
/// The thread (lcore or not) that uses the context, in the process that created the scheduler, primary or
/// secondary. After fork(), parent or child, not both. Not a signal handler.
///
/// # Safety
/// `frame` is null or has `size` bytes; `port` is null or leads to a byte.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wedjat_question(
    scheduler: *const Scheduler,
    context: *mut Context,
    now: u64,
    frame: *mut u8,
    size: usize,
    port: *mut u8,
) -> i32 {
    with_context(scheduler, context, |core| {
        check(frame)?;
        check(port)?;
        if size < core.context.question_len() {
            return Err(WEDJAT_ERROR_ROOM);
        }
        let mut written = [0; embed::QUESTION_LEN];
        let Some(question) = core.context.question(now, &mut written) else {
            return Ok(0);
        };
        // SAFETY: not null; the frame has room for any question, and the caller vouches for the rest.
        unsafe {
            frame.copy_from_nonoverlapping(written.as_ptr(), question.len);
            port.write(question.port);
        }
        Ok(question.len as i32)
    })
}

/// Allows this context to send tasks to a worker if `active` is not 0, or forbids it. The worker's reports do not
/// change that. Each context needs its own call. Returns 0 or a code.
///
/// # Errors
/// WEDJAT_ERROR_WORKER
///
/// # Called from
/// The thread (lcore or not) that uses the context, in the process that created the scheduler, primary or
/// secondary. After fork(), parent or child, not both. Not a signal handler.
///
/// # Safety
/// Same as wedjat_unsent().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wedjat_set_active(
    scheduler: *const Scheduler,
    context: *mut Context,
    worker: u16,
    active: i32,
) -> i32 {
    with_context(scheduler, context, |core| {
        core.context.set_active(worker, active != 0).map_err(of_misuse)?;
        Ok(0)
    })
}

/// Reads the sums of all contexts' or pickers' counters into the `room` places at `values`, in the order of
/// wedjat_counter_name(). No value decreases except `held` and `queued`, the current numbers of waiting
/// packets. The number of sent packets is `forwarded` minus `tx_full`. Returns the number of counters, even
/// if `room` is smaller; or a code.
///
/// # Called from
/// Any thread (lcore or not) of the process that created the scheduler, primary or secondary. After fork(),
/// parent or child, not both. Not a signal handler.
///
/// # Safety
/// `values` is null or an array of `room`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wedjat_counters(
    scheduler: *const Scheduler,
    values: *mut u64,
    room: usize,
) -> i32 {
    with_scheduler(scheduler, |scheduler, body| {
        check(values)?;
        let totals = body.scheduler.totals();
        // Refused calls come last, like their name in wedjat_counter_name().
        let all = totals.values().iter().copied().chain([scheduler.bad_calls()]);
        for (index, value) in all.take(room).enumerate() {
            // SAFETY: aligned, and `index` is below `room`.
            unsafe { values.add(index).write(value) };
        }
        // The core's counters, and that of refused calls.
        Ok((COUNT + 1) as i32)
    })
}

/// Reads the state of each worker into the `room` places at `workers`, pool by pool. Allocates memory, and
/// may wait for another thread that makes changes.
///
/// # Return value
/// Number of workers, even if `room` is smaller; or a code, see ERRORS.
///
/// # Called from
/// Any thread (lcore or not) that polls no context, in the process that created the scheduler, primary or
/// secondary. After fork(), parent or child, not both. Not a signal handler.
///
/// # Safety
/// `workers` is null or an array of `room`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wedjat_workers(
    scheduler: *const Scheduler,
    workers: *mut WorkerState,
    room: usize,
) -> i32 {
    with_scheduler(scheduler, |_, body| {
        check(workers)?;
        let all = body.scheduler.workers();
        for (index, state) in all.iter().enumerate().take(room) {
            // SAFETY: aligned, and `index` is below `room`.
            unsafe { workers.add(index).write((*state).into()) };
        }
        Ok(all.len() as i32)
    })
}
