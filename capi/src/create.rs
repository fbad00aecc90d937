//! Creation and end of a scheduler, and its contexts (one core's part each). Of these functions, only creation and
//! end use the allocator. Creation may read the system's clock and files.

use std::ffi::{CStr, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::ptr::null;

use wedjat::config::Config;
use wedjat::embed;
use wedjat::wire::ether::Mac;

use crate::code::*;
use crate::handle::{Context, Scheduler, with_scheduler};
use crate::types::Options;

/// Size of the options in bytes, in programs compiled before `memory_node` existed.
const OPTIONS_OF_0_1: usize = 32;
/// Maximum number of MAC addresses in the options, one for each port: a verdict names a port in a byte.
const MACS_MAX: usize = 1 << u8::BITS;

/// Creates a scheduler from a configuration of `length` bytes, the text that `wedjat leaf` reads. Allocates
/// all memory that contexts will ever use. Creates the state file if the configuration names one. A thread,
/// `wedjat-state`, then copies the state to it every 50 ms, or less often if the state has more than 1 MiB: the
/// interval has 50 ms for each started MiB. The thread takes no signals, runs only in otherwise idle CPU time,
/// and uses the CPUs of the calling thread. The calling thread should not be pinned to a polling core. Without a
/// state file the library has no threads.
///
/// Returns 0, and the scheduler in `*scheduler`. Returns a code on failure, and null in `*scheduler`. The errors
/// CONFIG, OPTIONS and NODE also have a text: the reason with its fix, in the `detail_size` bytes at `detail`, which
/// may be null. The text is cut to fit and zero-terminated. Without a text it is empty. After ALIGNMENT nothing is
/// written.
///
/// # Errors
/// WEDJAT_ERROR_CONFIG, WEDJAT_ERROR_OPTIONS, WEDJAT_ERROR_NODE, WEDJAT_ERROR_NULL, WEDJAT_ERROR_ALIGNMENT,
/// WEDJAT_ERROR_DEFECT
///
/// # Called from
/// Any thread (lcore or not) of a primary, secondary or other process, also after fork().
/// Not a signal handler. Concurrent calls create separate schedulers.
///
/// # Safety
/// Pointers that are not null must lead to memory of the given sizes, or of their type.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wedjat_create(
    config: *const c_char,
    length: usize,
    options: *const Options,
    scheduler: *mut *mut Scheduler,
    detail: *mut c_char,
    detail_size: usize,
) -> i32 {
    let make = || {
        if config.is_null() {
            return Err(plain(WEDJAT_ERROR_NULL));
        }
        // A failed `ftell` returns -1, which is a huge number as an unsigned length.
        if isize::try_from(length).is_err() {
            return Err(refuse(format!("length: found {length}; allowed: the bytes of a text")));
        }
        // SAFETY: the caller vouches for the length.
        let text = unsafe { std::slice::from_raw_parts(config.cast::<u8>(), length) };
        let text =
            str::from_utf8(text).map_err(|error| refuse(format!("configuration: {error}")))?;
        Config::parse_embedded(Path::new("configuration"), text)
            .map_err(|error| refuse(error.to_string()))
    };
    // SAFETY: the caller vouches for the memory.
    unsafe { begin(make, options, scheduler, detail, detail_size) }
}

/// Creates a scheduler from the file at `path`, a zero-terminated text. Returns the same as wedjat_create().
///
/// # Errors
/// WEDJAT_ERROR_CONFIG, WEDJAT_ERROR_OPTIONS, WEDJAT_ERROR_NODE
///
/// # Called from
/// Any thread (lcore or not) of a primary, secondary or other process, also after fork().
/// Not a signal handler. Concurrent calls create separate schedulers.
///
/// # Safety
/// Pointers that are not null must lead to memory of the given sizes, or of their type; `path` must be
/// zero-terminated.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wedjat_load(
    path: *const c_char,
    options: *const Options,
    scheduler: *mut *mut Scheduler,
    detail: *mut c_char,
    detail_size: usize,
) -> i32 {
    let load = || {
        if path.is_null() {
            return Err(plain(WEDJAT_ERROR_NULL));
        }
        // SAFETY: the caller vouches for the zero.
        let path = unsafe { CStr::from_ptr(path) };
        let path = path.to_str().map_err(|error| refuse(format!("path: {error}")))?;
        Config::load_embedded(Path::new(path)).map_err(|error| refuse(error.to_string()))
    };
    // SAFETY: the caller vouches for the memory.
    unsafe { begin(load, options, scheduler, detail, detail_size) }
}

/// Error code, and text for the caller: the reason with its fix; empty for a code that explains itself.
type Refusal = (i32, String);

/// Returns the refusal with this code and without text.
fn plain(code: i32) -> Refusal {
    (code, String::new())
}

/// Returns the refusal of a configuration with this text.
fn refuse(text: String) -> Refusal {
    (WEDJAT_ERROR_CONFIG, text)
}

/// Common part of wedjat_create() and wedjat_load(): creates a scheduler from the configuration that `config` reads,
/// and writes it to `*scheduler`. Returns 0 or a code, whose text it writes to `detail`.
///
/// # Safety
/// Same as [`write_result()`].
unsafe fn begin(
    config: impl FnOnce() -> Result<Config, Refusal>,
    options: *const Options,
    scheduler: *mut *mut Scheduler,
    detail: *mut c_char,
    detail_size: usize,
) -> i32 {
    // SAFETY: the caller vouches for the memory.
    let make = || unsafe { create(config, options) };
    // SAFETY: the same.
    unsafe { write_result(scheduler, options, (detail, detail_size), make) }
}

/// Writes the scheduler or worker that `make` creates to `*target`. On failure writes null, and the reason to `detail`.
/// Writes nothing if `target` is null, or if `target` or `options` is misaligned. Returns the code. A panic of `make`
/// gives WEDJAT_ERROR_DEFECT, because it must not unwind into C.
///
/// # Safety
/// The pointers are null, or lead to memory of their type or of the given size.
pub(crate) unsafe fn write_result<T, O>(
    target: *mut *mut T,
    options: *const O,
    (detail, detail_size): (*mut c_char, usize),
    make: impl FnOnce() -> Result<*mut T, Refusal>,
) -> i32 {
    if target.is_null() {
        return WEDJAT_ERROR_NULL;
    }
    if !target.is_aligned() || (!options.is_null() && !options.is_aligned()) {
        return WEDJAT_ERROR_ALIGNMENT;
    }
    let make = || {
        log_panics();
        make()
    };
    let result = catch_unwind(AssertUnwindSafe(make)).unwrap_or_else(|panic| {
        std::mem::forget(panic); // its destructor may panic, too
        Err((WEDJAT_ERROR_DEFECT, String::new()))
    });
    let (code, result, text) = match result {
        Ok(result) => (0, result, String::new()),
        Err((code, text)) => (code, std::ptr::null_mut(), text),
    };
    // SAFETY: not null, aligned, and the caller vouches for the rest.
    unsafe {
        target.write(result);
        write_text(&text, detail, detail_size);
    }
    code
}

/// Reads a structure whose first field is its size. Refuses another size: the program was compiled with another
/// version of the header. `name` is the argument's, `structure` the type's in C.
///
/// # Safety
/// `from` is aligned, and leads to the number of bytes in its first field. `T` begins with that field.
pub(crate) unsafe fn read_sized<T: Copy>(
    from: *const T,
    name: &str,
    structure: &str,
) -> Result<T, Refusal> {
    // SAFETY: the size comes first in every version.
    let (size, own_size) = (unsafe { from.cast::<usize>().read() }, size_of::<T>());
    if size != own_size {
        let text = format!(
            "{name}.size: found {size}; allowed: {own_size}, sizeof(struct {structure}) in this library's header"
        );
        return Err((WEDJAT_ERROR_OPTIONS, text));
    }
    // SAFETY: aligned, and of the size of the type.
    Ok(unsafe { from.read() })
}

/// Makes panics write a log record instead of a message: a library must not print to standard error. Tests keep
/// the messages.
fn log_panics() {
    #[cfg(not(test))]
    std::panic::set_hook(Box::new(|panic| log::error!("a defect, please report it: {panic}")));
}

/// Creates a scheduler from the configuration that `config` reads, with these options. Accepts the shorter options
/// of older programs.
///
/// # Safety
/// `options` is null or has the number of bytes in its `size`.
unsafe fn create(
    config: impl FnOnce() -> Result<Config, Refusal>,
    options: *const Options,
) -> Result<*mut Scheduler, Refusal> {
    if options.is_null() {
        return Err(plain(WEDJAT_ERROR_NULL));
    }
    // SAFETY: `size` comes first in every version of the options.
    let (size, own_size) = (unsafe { (&raw const (*options).size).read() }, size_of::<Options>());
    if size != own_size && size != OPTIONS_OF_0_1 {
        let text = format!(
            "options.size: found {size}; allowed: {own_size}, sizeof(struct wedjat_options) in this library's header"
        );
        return Err((WEDJAT_ERROR_OPTIONS, text));
    }
    // Options of an older program are shorter. The rest keeps the defaults.
    let mut full_options =
        Options { size, ticks_hz: 0, macs: null(), macs_count: 0, memory_node: 0, reserved: 0 };
    // SAFETY: the caller vouches for `size` bytes, and the type has no fewer.
    unsafe {
        std::ptr::copy_nonoverlapping(options.cast::<u8>(), (&raw mut full_options).cast(), size)
    };
    let options = full_options;
    // A later version may use it.
    if options.reserved != 0 {
        let text = format!("options.reserved: found {}; allowed: 0", options.reserved);
        return Err((WEDJAT_ERROR_OPTIONS, text));
    }
    if options.macs.is_null() && options.macs_count > 0 {
        return Err(plain(WEDJAT_ERROR_NULL));
    }
    if options.macs_count > MACS_MAX {
        let (count, most) = (options.macs_count, MACS_MAX);
        let text = format!("options.macs_count: found {count}; allowed: at most {most}");
        return Err((WEDJAT_ERROR_OPTIONS, text));
    }
    let macs = if options.macs_count == 0 {
        &[]
    } else {
        // SAFETY: the caller vouches for six bytes per address; arrays of bytes need no alignment.
        unsafe { std::slice::from_raw_parts(options.macs.cast::<[u8; 6]>(), options.macs_count) }
    };
    let macs: Vec<_> = macs.iter().copied().map(Mac).collect();
    let config = config()?;
    // 0 names no node.
    let node = options.memory_node.checked_sub(1);
    let options = embed::Options { ticks_hz: options.ticks_hz, macs: &macs };
    let make = || {
        let scheduler = embed::Scheduler::new(&config, &options);
        scheduler.map(Scheduler::leak).map_err(|error| refuse(error.to_string()))
    };
    let Some(node) = node else { return make() };
    embed::on_numa_node(node, make).unwrap_or_else(|error| {
        let text = format!(
            "options.memory_node: found {}, NUMA node {node}; the system says: {error}",
            node + 1
        );
        Err((WEDJAT_ERROR_NODE, text))
    })
}

/// Writes a zero-terminated text for C, cut to fit at the boundary of a character.
///
/// # Safety
/// `target` is null or has `size` bytes.
pub(crate) unsafe fn write_text(text: &str, target: *mut c_char, size: usize) {
    if target.is_null() || size == 0 {
        return;
    }
    let mut len = text.len().min(size - 1);
    while !text.is_char_boundary(len) {
        len -= 1;
    }
    // SAFETY: the caller vouches for `size` bytes; the text is shorter.
    unsafe {
        std::ptr::copy_nonoverlapping(text.as_ptr().cast(), target, len);
        target.add(len).write(0);
    }
}

/// Ends a scheduler with its contexts or pickers, and frees their memory. Refused while one of these is in a call; no
/// thread may begin a call meanwhile. Waits for the thread of the state file, if there is one. A second call
/// for the same scheduler returns WEDJAT_ERROR_HANDLE.
///
/// # Return value
/// 0; or a code, and then nothing has changed, except after WEDJAT_ERROR_DEFECT.
///
/// # Errors
/// WEDJAT_ERROR_BUSY
///
/// # Called from
/// Any thread (lcore or not) of the process that created the scheduler, primary or secondary, while no other
/// thread is in a call for it. After fork(), parent or child, not both. Not a signal handler.
///
/// # Safety
/// `scheduler` is null or comes from wedjat_create().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wedjat_free(scheduler: *mut Scheduler) -> i32 {
    crate::handle::end(scheduler)
}

/// Number of contexts or pickers, which is the number of configured cores.
///
/// # Return value
/// Number of contexts or pickers; or a code.
///
/// # Called from
/// Any thread (lcore or not) of the process that created the scheduler, primary or secondary. After fork(),
/// parent or child, not both. Not a signal handler.
///
/// # Safety
/// `scheduler` is null or comes from wedjat_create().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wedjat_cores(scheduler: *const Scheduler) -> i32 {
    with_scheduler(scheduler, |_, body| Ok(body.scheduler.cores() as i32))
}

/// Number of configured ports.
///
/// # Return value
/// Number of ports; or a code.
///
/// # Called from
/// Any thread (lcore or not) of the process that created the scheduler, primary or secondary. After fork(),
/// parent or child, not both. Not a signal handler.
///
/// # Safety
/// `scheduler` is null or comes from wedjat_create().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wedjat_ports(scheduler: *const Scheduler) -> i32 {
    with_scheduler(scheduler, |_, body| Ok(body.scheduler.ports() as i32))
}

/// Maximum number of packets that the user of a context keeps at once, or of tasks that the user of a picker keeps.
/// The place in a WEDJAT_HOLD verdict is below it, and can index the user's array of kept packets.
///
/// # Return value
/// Number of places; or a code.
///
/// # Called from
/// Any thread (lcore or not) of the process that created the scheduler, primary or secondary. After fork(),
/// parent or child, not both. Not a signal handler.
///
/// # Safety
/// `scheduler` is null or comes from wedjat_create().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wedjat_places(scheduler: *const Scheduler) -> i32 {
    with_scheduler(scheduler, |_, body| Ok(body.places as i32))
}

/// Gives out a core's context, once, of a scheduler with configured ports. It lives as long as the scheduler. Returns
/// 0 or a code.
///
/// # Errors
/// WEDJAT_ERROR_CORE: The core does not exist, its context has been given out, or the configuration has no ports.
///
/// # Called from
/// Any thread (lcore or not) of the process that created the scheduler, primary or secondary. After fork(),
/// parent or child, not both. Not a signal handler. Another thread may use the context then, one at a time.
///
/// # Safety
/// `scheduler` is null or comes from wedjat_create(); `context` is null or leads to a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wedjat_context(
    scheduler: *mut Scheduler,
    core: u32,
    context: *mut *mut Context,
) -> i32 {
    with_scheduler(scheduler, |_, body| {
        if context.is_null() {
            return Err(WEDJAT_ERROR_NULL);
        }
        if !context.is_aligned() {
            return Err(WEDJAT_ERROR_ALIGNMENT);
        }
        let pointer = body.issue(core as usize)?;
        // SAFETY: checked above; the caller vouches for the rest.
        unsafe { context.write(pointer) };
        Ok(0)
    })
}
