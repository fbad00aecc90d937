//! Every bound of the dataplane in one place, and the relations between them.

/// Packets taken from or given to a port at once.
pub const BURST: usize = 32;

/// Dispatcher cores of one leaf.
pub const CORES_MAX: usize = 64;

/// Ports of one leaf.
pub const PORTS_MAX: usize = 8;

/// Spines of one leaf.
pub const SPINES_MAX: usize = 64;

/// Pools of one leaf.
pub const POOLS_MAX: usize = 1024;

/// Worker ids are 0 ..= `WORKER_ID_MAX`; the next one means no worker in packets.
pub const WORKER_ID_MAX: u16 = 0x7FFE;

/// Members of one pool: workers under a leaf, leaves under a spine.
pub const MEMBERS_MAX: usize = 0x7FFF;

/// Places for members in all pools of one leaf, those that are free included.
pub const PLACES_MAX: usize = 8 * MEMBERS_MAX;

/// Bytes of each packet that a live tap keeps at most; no device has longer packets.
pub const SNAPLEN_MAX: usize = 16_000;

/// Packets a core holds while it waits for a neighbour's MAC address.
pub const UNRESOLVED_HELD_MAX: usize = 256;

/// Tasks that may wait in one central queue unless configured.
pub const QUEUE: usize = 4096;

/// The most that may be configured.
pub const QUEUE_MAX: usize = 1 << 16;

/// Tasks that may wait in all pools together on each core of a leaf that a controller tells of its pools.
pub const QUEUES_TOLD: usize = 4 * QUEUE;

/// A task waits so long for members to answer what their queues are: many round trips in a rack.
pub const PROBE_PATIENCE_NS: u64 = 2_000_000;

/// Packet buffers unless configured: some MiB, enough for deep queues on a few ports.
pub const MBUFS: u32 = 16_383;

/// Leaves that one agent registers its workers with.
pub const AGENT_LEAVES_MAX: usize = 16;

/// Speeds of workers, relative to each other: the least and the most.
pub const SPEEDS: (f64, f64) = (0.001, 1000.0);

/// Multi-packet tasks a core tracks at once, a power of two.
pub const CONNECTIONS: usize = 1 << 16;

/// Multi-packet tasks that one source address may have under way on each core unless configured: many for one client,
/// few enough that 256 sources are needed to fill [`CONNECTIONS`].
pub const MULTI_PACKET_PER_SOURCE: usize = 256;

const _: () = assert!(CONNECTIONS.is_power_of_two());
const _: () = assert!(MEMBERS_MAX <= u16::MAX as usize);
