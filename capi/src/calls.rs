//! What a context does: bursts, and what stands around them. Nothing here allocates, calls the system or waits.

use wedjat::embed;
use wedjat::limits::BURST;
use wedjat::state::counters::COUNT;

use crate::code::*;
use crate::handle::{Context, Core, Scheduler, with_context, with_scheduler};
use crate::types::{Packet, Rewrite, RewriteV6, Verdict, WEDJAT_HOLD, WorkerState};

/// Decides on `count` packets, at most WEDJAT_BURST, that `port` received at `now` ticks; rewrites those that go on and
/// puts a verdict for each into `verdicts`. Returns `count`, or a code, and then nothing has been touched.
/// Bytes that may not be in the cache are better prefetched before, as wedjat_process_mbufs() does.
///
/// # Called from
/// The thread that uses the context, lcore or not, of the process that made the scheduler, primary or secondary; after
/// fork() of parent or child, not both; not a signal handler.
///
/// # Safety
/// `packets` and `verdicts` are null or arrays of `count`; each packet's bytes are this call's alone, and those of a packet
/// to be held stay where they are until it is released.
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
        let others = unsafe { process(&mut core.context, port as usize, now, packets, verdicts) };
        if others.map_err(of_misuse)? > 0 {
            // SAFETY: as many verdicts have been written as there are packets.
            let verdicts = unsafe { std::slice::from_raw_parts(verdicts, packets.len()) };
            keep(core, packets, verdicts);
        }
        Ok(count as i32)
    })
}

/// Apart from the checks around it, which would share its registers. Returns how many packets may not be forwarded.
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
    context.process_each(port, now, packets, move |at, verdict| {
        // SAFETY: there is a place for each packet; a verdict has the layout of these words.
        unsafe { verdicts.add(at).cast::<[u32; 3]>().write(Verdict::from(verdict).words()) };
    })
}

/// Remembers where the packets lie that the caller now keeps.
#[cold]
fn keep(core: &mut Core, packets: &[Packet], verdicts: &[Verdict]) {
    let to_hold = packets.iter().zip(verdicts).filter(|(_, verdict)| verdict.action == WEDJAT_HOLD);
    for (packet, verdict) in to_hold {
        if let Some(place) = core.held.get_mut(verdict.place as usize) {
            *place = Some(*packet);
        }
    }
}

/// As wedjat_process(), but leaves the bytes of tasks and replies alone: `rewrites` gets what to write into those that go
/// on, or are held with a worker. ARP questions become answers all the same, and a task that waits for a worker is
/// rewritten by wedjat_release(). Packets of a port with an IPv6 address are for wedjat_decide_v6().
///
/// # Return value
/// `count`; or a code, and then nothing has been touched.
///
/// # Errors
/// WEDJAT_ERROR_FAMILY
///
/// # Called from
/// The thread that uses the context, lcore or not, of the process that made the scheduler, primary or secondary; after
/// fork() of parent or child, not both; not a signal handler.
///
/// # Safety
/// `packets`, `verdicts` and `rewrites` are null or arrays of `count`; each packet's bytes are this call's alone.
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

/// As wedjat_decide(), with room for IPv6 addresses: for packets of any port.
///
/// # Return value
/// `count`; or a code, and then nothing has been touched.
///
/// # Called from
/// The thread that uses the context, lcore or not, of the process that made the scheduler, primary or secondary; after
/// fork() of parent or child, not both; not a signal handler.
///
/// # Safety
/// `packets`, `verdicts` and `rewrites` are null or arrays of `count`; each packet's bytes are this call's alone.
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

/// # Safety
/// As [`wedjat_decide()`].
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
    for (at, (verdict, values)) in decided.iter().zip(&values).take(packets.len()).enumerate() {
        // SAFETY: the arrays are aligned and have a place for each packet.
        unsafe {
            verdicts.add(at).write((*verdict).into());
            rewrites.add(at).write((*values).into());
        }
    }
    // SAFETY: they have just been written.
    keep(core, packets, unsafe { std::slice::from_raw_parts(verdicts, packets.len()) });
    Ok(count as i32)
}

/// The caller's packets, none of them null.
#[inline(always)]
unsafe fn burst<'a>(packets: *mut Packet, count: u32) -> Result<&'a mut [Packet], i32> {
    check(packets)?;
    if count > WEDJAT_BURST {
        return Err(WEDJAT_ERROR_BURST);
    }
    // SAFETY: not null and aligned; the caller vouches for the length.
    let packets = unsafe { std::slice::from_raw_parts_mut(packets, count as usize) };
    // One less than null has its first bit set, and nothing that a program may write to has. Without stopping early,
    // so that the compiler takes several at once.
    let one_less = |packet: &Packet| (packet.data.addr() as u64).wrapping_sub(1);
    let seen = packets.iter().fold(0, |seen, packet| seen | one_less(packet));
    if seen >> 63 == 0 { Ok(packets) } else { Err(WEDJAT_ERROR_NULL) }
}

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

/// Tells which packets need not be held any longer, at most `room` of them: a verdict for each goes into `verdicts`, with
/// the packet's `place`, where another may now be kept. WEDJAT_FORWARD: it is rewritten, send it. WEDJAT_DROP: it is
/// given up, free it. Returns how many they are, 0 when there is none now, or a code.
///
/// To be called at every turn of the loop until it returns 0, also while nothing is held: it looks after what time changes,
/// too. Tasks that wait for a worker leave in the order in which they came to this context, each pool's by itself.
///
/// # Called from
/// The thread that uses the context, lcore or not, of the process that made the scheduler, primary or secondary; after
/// fork() of parent or child, not both; not a signal handler.
///
/// # Safety
/// `verdicts` is null or an array of `room`; the bytes of packets that are held still lie where they lay when they got their
/// verdicts, and are this call's alone.
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

/// Gives up all packets that are held, because the program stops: wedjat_release() tells them as WEDJAT_DROP. Returns 0
/// or a code.
///
/// # Called from
/// The thread that uses the context, lcore or not, of the process that made the scheduler, primary or secondary; after
/// fork() of parent or child, not both; not a signal handler.
///
/// # Safety
/// As wedjat_unsent().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wedjat_abandon(scheduler: *const Scheduler, context: *mut Context) -> i32 {
    with_context(scheduler, context, |core| {
        core.context.abandon();
        Ok(0)
    })
}

/// Tells of `count` packets whose verdict was WEDJAT_FORWARD and which the port did not take: they count as dropped.
/// Returns 0 or a code.
///
/// # Called from
/// The thread that uses the context, lcore or not, of the process that made the scheduler, primary or secondary; after
/// fork() of parent or child, not both; not a signal handler.
///
/// # Safety
/// `scheduler` comes from wedjat_create(); `context` is never followed before it is found to be one of its own.
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

/// Writes the next question that is due, by ARP or neighbour discovery, into `frame`, of `size` bytes, and the port to send it out of
/// into `*port`. The bytes are at least WEDJAT_QUESTION_SIZE; where a port has an IPv6 address, WEDJAT_QUESTION_SIZE_V6. Returns its
/// length; 0 when none is due; or a code. To be called at every turn of the loop, after wedjat_release(), until it returns 0.
///
/// # Errors
/// WEDJAT_ERROR_ROOM
///
/// # Called from
/// The thread that uses the context, lcore or not, of the process that made the scheduler, primary or secondary; after
/// fork() of parent or child, not both; not a signal handler.
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

/// Lets a worker get tasks from this context, `active` not 0, or no longer. Each context has to be told. Returns 0 or a
/// code.
///
/// # Errors
/// WEDJAT_ERROR_WORKER
///
/// # Called from
/// The thread that uses the context, lcore or not, of the process that made the scheduler, primary or secondary; after
/// fork() of parent or child, not both; not a signal handler.
///
/// # Safety
/// As wedjat_unsent().
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

/// Puts what all contexts have counted so far into the `room` places at `values`, in the order of wedjat_counter_name(). No
/// value ever goes down but those of `held` and `queued`, which tell how many packets wait at the moment. Sent are those of
/// `forwarded` that are not in `tx_full`.
/// Returns how many there are, also when there is room for fewer; or a code.
///
/// # Called from
/// Any thread, lcore or not, of the process that made the scheduler, primary or secondary; after fork() of parent or
/// child, not both; not a signal handler.
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
        let all = totals.values().iter().copied().chain([scheduler.bad_calls()]);
        for (at, value) in all.take(room).enumerate() {
            // SAFETY: aligned, and `at` is below `room`.
            unsafe { values.add(at).write(value) };
        }
        Ok((COUNT + 1) as i32)
    })
}

/// Puts what is known of each worker into the `room` places at `workers`, pool by pool. Takes memory, and may wait for another
/// thread that makes changes.
///
/// # Return value
/// How many workers there are, also when there is room for fewer; or a code, see ERRORS.
///
/// # Called from
/// Any thread that polls no context, lcore or not, of the process that made the scheduler, primary or secondary; after fork()
/// of parent or child, not both; not a signal handler.
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
        for (at, state) in all.iter().enumerate().take(room) {
            // SAFETY: aligned, and `at` is below `room`.
            unsafe { workers.add(at).write((*state).into()) };
        }
        Ok(all.len() as i32)
    })
}
