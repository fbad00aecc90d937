//! Objects behind the handles of C programs, and their exclusive use by one call at a time.
//!
//! A scheduler has a head, which is never freed, and a body with the contents. A core's part of it is a context
//! (for packets) or a picker (for tasks as values). A flag in each part refuses a second call at the same time.

use std::cell::UnsafeCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicPtr, AtomicU8, AtomicU64};

use wedjat::embed;

use crate::code::*;
use crate::types::Packet;

/// Magic number of the head of a scheduler in use.
const LIVE: u64 = u64::from_le_bytes(*b"wedjat-S");
/// Magic number of the head of a freed scheduler.
const FREED: u64 = u64::from_le_bytes(*b"wedjat-F");

/// State of a core's part before wedjat_context() or wedjat_picker() gives it out.
const NOT_ISSUED: u8 = 0;
/// State of a part between two calls.
const IDLE: u8 = 1;
/// State of a part in a call, or about to be freed.
const BUSY: u8 = 2;
/// State of a part after a call panicked: its contents may be inconsistent.
const BROKEN: u8 = 3;

/// Scheduler, created by wedjat_create() and freed by wedjat_free().
///
/// This head of a few bytes is never freed, so that calls detect a freed scheduler.
#[derive(Debug)]
pub struct Scheduler {
    /// [`LIVE`] or [`FREED`].
    magic: AtomicU64,
    /// Number of refused calls.
    bad_calls: AtomicU64,
    /// The contents; null once freed.
    body: AtomicPtr<Body>,
}

/// Contents of a scheduler, behind its head.
#[derive(Debug)]
pub struct Body {
    /// Scheduler of the Rust library.
    pub scheduler: embed::Scheduler,
    /// Contexts by core; none if the configuration has no ports.
    contexts: Box<[Context]>,
    /// Pickers by core; none if the configuration has ports.
    pickers: Box<[Picker]>,
    /// Maximum number of packets that a context holds, or of tasks that a picker holds. A program keeps a held packet
    /// at a place below this number.
    pub places: usize,
}

/// One core's part of a scheduler, from wedjat_context(). Used by one thread at a time.
#[derive(Debug)]
pub struct Context(CoreContext<Core>);

/// One core's part of a scheduler without ports, from wedjat_picker(). Used by one thread at a time.
#[derive(Debug)]
pub struct Picker(CoreContext<embed::Picker>);

/// State of a core, with a flag for its exclusive use by one call.
#[derive(Debug)]
#[repr(align(128))] // two lines: no flag shares a line that another core's prefetcher fetches
pub struct CoreContext<C> {
    /// [`NOT_ISSUED`], [`IDLE`], [`BUSY`] or [`BROKEN`].
    state: AtomicU8,
    /// Contents, for the call that set `state` to [`BUSY`].
    core: UnsafeCell<C>,
}

/// Handle of a core: a context or a picker. Lets `with_core` serve both kinds.
pub trait CorePointer: Sized {
    /// Object that calls use.
    type Core;

    /// Returns a scheduler's handles of this kind.
    fn all(body: &Body) -> &[Self];

    /// Returns the state behind the handle.
    fn part(&self) -> &CoreContext<Self::Core>;
}

impl CorePointer for Context {
    type Core = Core;

    #[inline(always)]
    fn all(body: &Body) -> &[Self] {
        &body.contexts
    }

    #[inline(always)]
    fn part(&self) -> &CoreContext<Core> {
        &self.0
    }
}

impl CorePointer for Picker {
    type Core = embed::Picker;

    fn all(body: &Body) -> &[Self] {
        &body.pickers
    }

    fn part(&self) -> &CoreContext<embed::Picker> {
        &self.0
    }
}

/// Object behind a context.
#[derive(Debug)]
pub struct Core {
    /// Context of the Rust library.
    pub context: embed::Context,
    /// Pointer, length and flags of each held packet, by place, for its release. The program keeps the bytes.
    pub held: Box<[Option<Packet>]>,
}

// SAFETY: only the call that changed `state` from IDLE to BUSY touches the cell.
unsafe impl<C: Send> Sync for CoreContext<C> {}

/// Returns the scheduler at `pointer`, or the code for a pointer to no live scheduler.
#[inline(always)]
pub fn live<'a>(pointer: *const Scheduler) -> Result<&'a Scheduler, i32> {
    if pointer.is_null() {
        return Err(WEDJAT_ERROR_NULL);
    }
    if !pointer.is_aligned() {
        return Err(WEDJAT_ERROR_HANDLE);
    }
    // SAFETY: the caller vouches that wedjat_create() made it; heads are never freed, so the head of a freed
    // scheduler is readable.
    let scheduler = unsafe { &*pointer };
    if scheduler.magic.load(Acquire) == LIVE { Ok(scheduler) } else { Err(WEDJAT_ERROR_HANDLE) }
}

/// Frees the scheduler at `pointer`. Returns 0 or a code.
pub fn end(pointer: *const Scheduler) -> i32 {
    let scheduler = match live(pointer) {
        Ok(scheduler) => scheduler,
        Err(code) => return code,
    };
    contain(scheduler, || scheduler.free())
}

/// Runs a call on the scheduler as a whole. Contains a panic, and counts a refused call. Returns the call's result or a
/// code.
fn contain(scheduler: &Scheduler, call: impl FnOnce() -> Result<i32, i32>) -> i32 {
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(result) => result.unwrap_or_else(|code| scheduler.refuse(code)),
        Err(panic) => {
            std::mem::forget(panic); // its destructor may panic, too
            WEDJAT_ERROR_DEFECT
        }
    }
}

/// Runs a call on the scheduler as a whole. Several threads may run such calls at once. Contains a panic, and counts a
/// refused call. Returns the call's result or a code.
pub fn with_scheduler(
    scheduler: *const Scheduler,
    call: impl FnOnce(&Scheduler, &Body) -> Result<i32, i32>,
) -> i32 {
    let scheduler = match live(scheduler) {
        Ok(scheduler) => scheduler,
        Err(code) => return code,
    };
    contain(scheduler, || call(scheduler, scheduler.body()))
}

/// Runs a call on a context, which this thread uses exclusively during `call`. Returns its result or a code.
#[inline(always)]
pub fn with_context(
    scheduler: *const Scheduler,
    context: *const Context,
    call: impl FnOnce(&mut Core) -> Result<i32, i32>,
) -> i32 {
    with_core(scheduler, context, call)
}

/// Runs a call on a picker, which this thread uses exclusively during `call`. Returns its result or a code.
pub fn with_picker(
    scheduler: *const Scheduler,
    picker: *const Picker,
    call: impl FnOnce(&mut embed::Picker) -> Result<i32, i32>,
) -> i32 {
    with_core(scheduler, picker, call)
}

/// Runs a call on a core's part of the scheduler. Checks both handles, takes the exclusive use of the part,
/// and contains a panic. Returns the call's result or a code.
#[inline(always)]
fn with_core<P: CorePointer + 'static>(
    scheduler: *const Scheduler,
    pointer: *const P,
    call: impl FnOnce(&mut P::Core) -> Result<i32, i32>,
) -> i32 {
    let scheduler = match live(scheduler) {
        Ok(scheduler) => scheduler,
        Err(code) => return code,
    };
    let entered_part = scheduler.find(pointer).and_then(|part| part.enter().map(|()| part));
    let part = match entered_part {
        Ok(part) => part,
        Err(code) => return scheduler.refuse(code),
    };
    // SAFETY: `enter` has made this call the only user of the part.
    let outcome = catch_unwind(AssertUnwindSafe(|| call(unsafe { &mut *part.core.get() })));
    match outcome {
        Ok(result) => {
            part.state.store(IDLE, Release);
            result.unwrap_or_else(|code| scheduler.refuse(code))
        }
        Err(panic) => {
            std::mem::forget(panic); // its destructor may panic, too
            // The state may be inconsistent, so the part takes no more calls.
            part.state.store(BROKEN, Release);
            WEDJAT_ERROR_DEFECT
        }
    }
}

impl Context {
    /// Creates a context that is not issued yet, without held packets.
    fn new(context: embed::Context) -> Self {
        let held = vec![None; context.places()].into_boxed_slice();
        Self(CoreContext::new(Core { context, held }))
    }
}

impl<C> CoreContext<C> {
    /// Creates a part that is not issued yet.
    fn new(core: C) -> Self {
        Self { state: AtomicU8::new(NOT_ISSUED), core: UnsafeCell::new(core) }
    }

    /// Marks the part as issued. Returns WEDJAT_ERROR_CORE if it was issued before.
    fn issue(&self) -> Result<(), i32> {
        let issued = self.state.compare_exchange(NOT_ISSUED, IDLE, AcqRel, Acquire);
        issued.map(drop).map_err(|_| WEDJAT_ERROR_CORE)
    }

    /// Takes the exclusive use for a call, or returns the code of the refusal. The acquire ordering makes the changes
    /// of the previous call visible, which another thread may have made.
    #[inline(always)]
    fn enter(&self) -> Result<(), i32> {
        match self.state.compare_exchange(IDLE, BUSY, Acquire, Relaxed) {
            Ok(_) => Ok(()),
            Err(state) => Err(busy(state)),
        }
    }
}

/// Returns the code for a state in which no call may begin.
#[cold]
fn busy(state: u8) -> i32 {
    match state {
        BUSY => WEDJAT_ERROR_BUSY,
        BROKEN => WEDJAT_ERROR_DEFECT,
        _ => WEDJAT_ERROR_CONTEXT,
    }
}

impl Scheduler {
    /// Creates a head that is never freed, with the scheduler's contents behind it. A scheduler has either
    /// contexts or pickers.
    pub fn leak(mut scheduler: embed::Scheduler) -> *mut Self {
        let contexts = (0..scheduler.cores()).filter_map(|core| scheduler.context(core));
        let contexts: Box<[_]> = contexts.map(Context::new).collect();
        let pickers = (0..scheduler.cores()).filter_map(|core| scheduler.picker(core));
        let pickers: Box<[_]> = pickers.map(|picker| Picker(CoreContext::new(picker))).collect();
        let places = scheduler.places();
        let body = Box::into_raw(Box::new(Body { scheduler, contexts, pickers, places }));
        Box::into_raw(Box::new(Self {
            magic: AtomicU64::new(LIVE),
            bad_calls: AtomicU64::new(0),
            body: AtomicPtr::new(body),
        }))
    }

    /// Returns the contents.
    #[inline(always)]
    fn body(&self) -> &Body {
        // SAFETY: a live head has its body. Only `free` takes it. `free` refuses while a context or picker is in a
        // call. The program ensures that no other call runs or begins meanwhile.
        unsafe { &*self.body.load(Relaxed) }
    }

    /// Returns the part at `pointer`, or a code for a pointer that is null or not one of this scheduler's parts.
    /// Compares addresses before any access through the pointer. The distance in bytes from the first part gives
    /// the index of the only candidate.
    #[inline(always)]
    fn find<P: CorePointer + 'static>(
        &self,
        pointer: *const P,
    ) -> Result<&CoreContext<P::Core>, i32> {
        if pointer.is_null() {
            return Err(WEDJAT_ERROR_NULL);
        }
        let all = P::all(self.body());
        let offset = pointer.addr().wrapping_sub(all.as_ptr().addr());
        let candidate = all.get(offset / size_of::<P>());
        let part = candidate.filter(|part| ptr::eq(*part, pointer));
        part.map(P::part).ok_or(WEDJAT_ERROR_CONTEXT)
    }

    /// Counts a refused call. Returns its code.
    #[cold]
    fn refuse(&self, code: i32) -> i32 {
        self.bad_calls.fetch_add(1, Relaxed);
        code
    }

    /// Returns the number of refused calls.
    pub fn bad_calls(&self) -> u64 {
        self.bad_calls.load(Relaxed)
    }

    /// Frees the contents. Returns WEDJAT_ERROR_BUSY and changes nothing if a context or picker is in use, and
    /// WEDJAT_ERROR_HANDLE if another call has freed the scheduler.
    pub fn free(&self) -> Result<i32, i32> {
        let body = self.body();
        let of_contexts = body.contexts.iter().map(|context| &context.0.state);
        let states = of_contexts.chain(body.pickers.iter().map(|picker| &picker.0.state));
        // Checked before any state is taken, so that calls for other contexts are not refused meanwhile.
        if states.clone().any(|state| state.load(Acquire) == BUSY) {
            return Err(WEDJAT_ERROR_BUSY);
        }
        // Marks all parts as busy, so that no call can begin. Keeps their states, for a refusal half-way.
        let mut previous_states = Vec::with_capacity(body.contexts.len() + body.pickers.len());
        for state in states.clone() {
            let take = |state| (state != BUSY).then_some(BUSY);
            match state.fetch_update(AcqRel, Acquire, take) {
                Ok(previous) => previous_states.push(previous),
                // A call has begun since the check. Restores the states changed so far, and refuses.
                Err(_) => {
                    states
                        .zip(previous_states)
                        .for_each(|(state, previous)| state.store(previous, Release));
                    return Err(WEDJAT_ERROR_BUSY);
                }
            }
        }
        if self.magic.compare_exchange(LIVE, FREED, AcqRel, Acquire).is_err() {
            return Err(WEDJAT_ERROR_HANDLE);
        }
        let body = self.body.swap(ptr::null_mut(), AcqRel);
        // SAFETY: `leak` made it. The head is no longer live, so no later call can reach it. All parts are busy. The
        // program ensures that no call on the scheduler as a whole runs.
        drop(unsafe { Box::from_raw(body) });
        Ok(0)
    }
}

impl Body {
    /// Gives out a core's context, once. Returns WEDJAT_ERROR_CORE the second time, and for an unknown core.
    pub fn issue(&self, core: usize) -> Result<*mut Context, i32> {
        let context = self.contexts.get(core).ok_or(WEDJAT_ERROR_CORE)?;
        context.0.issue().map(|()| ptr::from_ref(context).cast_mut())
    }

    /// Gives out a core's picker, once. Returns WEDJAT_ERROR_CORE the second time, and for an unknown core.
    pub fn issue_picker(&self, core: usize) -> Result<*mut Picker, i32> {
        let picker = self.pickers.get(core).ok_or(WEDJAT_ERROR_CORE)?;
        picker.0.issue().map(|()| ptr::from_ref(picker).cast_mut())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a scheduler with three cores, and the context of the first.
    fn scheduler() -> (*mut Scheduler, *mut Context) {
        let text = "[leaf]\nid = 1\ncores = [0, 1, 2]\nconnections = 8\n\
            [[port]]\ndevice = 'any'\nside = 'both'\nip = '10.0.0.1/24'\nmac = '02:00:00:00:00:01'\n\
            [[pool]]\nid = 1\npolicy = 'random'\n\
            [[server]]\nip = '10.0.0.2'\nworkers = '0'\npool = 1\n";
        let options = embed::Options { ticks_hz: 1, macs: &[] };
        let scheduler = Scheduler::leak(embed::Scheduler::from_toml(text, &options).unwrap());
        let context = live(scheduler).unwrap().body().issue(0).unwrap();
        (scheduler, context)
    }

    // promise: library.2
    #[test]
    fn a_context_serves_one_call_at_a_time() {
        let (scheduler, context) = scheduler();
        let inner = with_context(scheduler, context, |_| {
            assert_eq!(with_context(scheduler, context, |_| Ok(1)), WEDJAT_ERROR_BUSY);
            assert_eq!(end(scheduler), WEDJAT_ERROR_BUSY);
            Ok(2)
        });
        assert_eq!(inner, 2);
        assert_eq!(with_context(scheduler, context, |_| Ok(3)), 3);
        // The second call on the context, and the end.
        assert_eq!(live(scheduler).unwrap().bad_calls(), 2);
        assert_eq!((end(scheduler), end(scheduler)), (0, WEDJAT_ERROR_HANDLE));
    }

    // promise: library.2
    #[test]
    fn an_end_that_is_refused_changes_nothing() {
        let (scheduler, broken) = scheduler();
        let issue = |core| live(scheduler).unwrap().body().issue(core);
        assert_eq!(with_context(scheduler, broken, |_| panic!("a defect")), WEDJAT_ERROR_DEFECT);
        let busy = issue(2).unwrap();
        let end_code = with_context(scheduler, busy, |_| Ok(end(scheduler)));
        assert_eq!(end_code, WEDJAT_ERROR_BUSY);
        assert_eq!(with_context(scheduler, broken, |_| Ok(1)), WEDJAT_ERROR_DEFECT);
        let unissued = issue(1).expect("it was not given out before");
        assert_eq!(with_context(scheduler, unissued, |_| Ok(1)), 1);
        assert_eq!(with_context(scheduler, busy, |_| Ok(1)), 1);
        assert_eq!(end(scheduler), 0);
    }

    // promise: library.2
    #[test]
    fn panic_disables_its_context() {
        let (scheduler, context) = scheduler();
        assert_eq!(with_scheduler(scheduler, |_, _| panic!("a defect")), WEDJAT_ERROR_DEFECT);
        assert_eq!(with_context(scheduler, context, |_| Ok(1)), 1);
        assert_eq!(with_context(scheduler, context, |_| panic!("a defect")), WEDJAT_ERROR_DEFECT);
        assert_eq!(with_context(scheduler, context, |_| Ok(1)), WEDJAT_ERROR_DEFECT);
        assert_eq!(end(scheduler), 0);
    }
}
