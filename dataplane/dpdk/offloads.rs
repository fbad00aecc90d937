//! Socket filter of AF_PACKET devices, which cuts packets with several datagrams.
//!
//! A client that sends with UDP_SEGMENT over a veth pair leaves the segmentation to the device. A veth pair
//! never segments, so the leaf receives one packet with all datagrams. Neither the packet nor net_af_packet
//! (DPDK 22.11) states the boundaries. The kernel knows them (`gso_size`), so a filter on the socket cuts
//! such packets to [`OFFLOADED_LEN`] bytes, which is less than any complete UDP packet. The leaf then drops them with a
//! reason of their own, and does not take several tasks for one. The filter also cuts TCP packets, which the leaf does
//! not accept.
#![allow(unsafe_code, reason = "the system call bpf, which no crate of ours has")]

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

use wedjat_core::wire::udp::OFFLOADED_LEN;

/// Offset of `gso_size` in the kernel's `struct __sk_buff`.
const GSO_SIZE: i16 = 176;
/// Command of the system call bpf that loads a program.
const BPF_PROG_LOAD: libc::c_int = 5;
/// Type of programs that filter a socket's packets.
const BPF_PROG_TYPE_SOCKET_FILTER: u32 = 1;

/// Instruction of an eBPF program, the kernel's `struct bpf_insn`.
#[repr(C)]
struct Instruction {
    /// Operation.
    code: u8,
    /// Destination in the low four bits, source in the high ones.
    registers: u8,
    /// Offset of a load in bytes, or distance of a jump in instructions.
    offset: i16,
    /// Constant operand.
    value: i32,
}

/// Creates an instruction; arguments as the fields of [`Instruction`].
const fn instruction(code: u8, registers: u8, offset: i16, value: i32) -> Instruction {
    Instruction { code, registers, offset, value }
}

/// eBPF program that returns the length to deliver: [`OFFLOADED_LEN`] if the packet holds several datagrams, else all.
static FILTER: [Instruction; 6] = [
    instruction(0x61, 0x10, GSO_SIZE, 0), // r0 = skb->gso_size
    instruction(0x15, 0x00, 2, 0),        // if r0 == 0 skip 2
    instruction(0xB4, 0x00, 0, OFFLOADED_LEN as i32), // r0 = OFFLOADED_LEN
    instruction(0x95, 0x00, 0, 0),        // return r0
    instruction(0xB4, 0x00, 0, -1),       // r0 = all
    instruction(0x95, 0x00, 0, 0),        // return r0
];

/// Start of `union bpf_attr` for `BPF_PROG_LOAD`. The kernel takes the rest as zeros.
#[repr(C)]
struct LoadArguments {
    /// Type of the program.
    kind: u32,
    /// Number of instructions.
    count: u32,
    /// Address of the instructions.
    instructions: u64,
    /// Address of the license's name.
    license: u64,
    /// Level of the verifier's log; 0 for no log.
    log_level: u32,
    /// Size of the log's buffer in bytes.
    log_size: u32,
    /// Address of the log's buffer.
    log: u64,
}

/// Attaches a filter to these sockets of an AF_PACKET device. It cuts packets with several datagrams to
/// [`OFFLOADED_LEN`] bytes.
///
/// # Errors
/// If the kernel refuses the filter, for example without CAP_BPF.
pub(super) fn cut_segmented_packets(sockets: &[RawFd]) -> io::Result<()> {
    if sockets.is_empty() {
        return Ok(());
    }
    let program = load_filter()?;
    sockets.iter().try_for_each(|&socket| attach(socket, &program))
}

/// Loads the filter into the kernel.
fn load_filter() -> io::Result<OwnedFd> {
    let arguments = LoadArguments {
        kind: BPF_PROG_TYPE_SOCKET_FILTER,
        count: FILTER.len() as u32,
        instructions: FILTER.as_ptr().expose_provenance() as u64,
        license: c"Apache-2.0".as_ptr().expose_provenance() as u64,
        log_level: 0,
        log_size: 0,
        log: 0,
    };
    // SAFETY: the structure and the memory behind its pointers live through the call, which only reads them.
    let program = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            BPF_PROG_LOAD,
            &raw const arguments,
            size_of::<LoadArguments>(),
        )
    };
    match RawFd::try_from(program) {
        // SAFETY: the descriptor is new and has no other owner.
        Ok(program) if program >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(program) }),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Attaches the filter to a socket.
fn attach(socket: RawFd, program: &OwnedFd) -> io::Result<()> {
    let program = program.as_raw_fd();
    // SAFETY: the value lives through the call, which reads the given number of bytes.
    let attached = unsafe {
        let (value, len) = ((&raw const program).cast(), size_of::<RawFd>() as libc::socklen_t);
        libc::setsockopt(socket, libc::SOL_SOCKET, libc::SO_ATTACH_BPF, value, len)
    };
    if attached == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
