//! Limits that several parts of the dataplane share, with the relations between them.

/// Maximum number of packets received or sent by one call.
pub const BURST: usize = 32;

/// Maximum number of dispatcher cores of a leaf.
pub const CORES_MAX: usize = 64;

/// Maximum number of ports of a leaf.
pub const PORTS_MAX: usize = 8;

/// Maximum number of spines of a leaf.
pub const SPINES_MAX: usize = 64;

/// Maximum number of pools of a leaf.
pub const POOLS_MAX: usize = 1024;

/// Largest worker id; the smallest is 0. The id above it means "no worker" in packets.
pub const WORKER_ID_MAX: u16 = 0x7FFE;

/// Maximum number of members of a pool: workers at a leaf, leaves at a spine.
pub const MEMBERS_MAX: usize = 0x7FFF;

/// Maximum number of places for members in all pools of a leaf, including free places.
pub const PLACES_MAX: usize = 8 * MEMBERS_MAX;

/// Maximum number of bytes that a live tap keeps of a packet. No device has longer packets.
pub const SNAPLEN_MAX: usize = 16_000;

/// Maximum number of packets that a core holds while it waits for neighbours' MAC addresses.
pub const UNRESOLVED_HELD_MAX: usize = 256;

/// Default bound of a central queue, in tasks.
pub const QUEUE: usize = 4096;

/// Largest configurable bound of a central queue.
pub const QUEUE_MAX: usize = 1 << 16;

/// Minimum room for waiting tasks on each core, in all pools together, at a leaf that receives its pools from a
/// controller. The controller may add pools that queue tasks.
pub const QUEUED_TASKS_MIN: usize = 4 * QUEUE;

/// Maximum time that a task waits for probe answers: many round trips in a rack.
pub const PROBE_TIMEOUT_NS: u64 = 2_000_000;

/// Default number of packet buffers: about 38 MiB, enough for deep queues on a few ports.
pub const MBUFS: u32 = 16_383;

/// Maximum number of leaves with which one agent registers its workers.
pub const AGENT_LEAVES_MAX: usize = 16;

/// Smallest and largest speed of a worker, relative to other workers.
pub const SPEEDS: (f64, f64) = (0.001, 1000.0);

/// Default number of multi-packet tasks that a core tracks at once; a power of two.
pub const CONNECTIONS: usize = 1 << 16;

/// Default number of incomplete multi-packet tasks of one source address on each core. Many for one client,
/// and few enough that 256 sources are needed to fill [`CONNECTIONS`].
pub const MULTI_PACKET_PER_SOURCE: usize = 256;

const _: () = assert!(CONNECTIONS.is_power_of_two());
const _: () = assert!(MEMBERS_MAX <= u16::MAX as usize);
