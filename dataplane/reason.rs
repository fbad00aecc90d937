//! Every reason for which a packet is dropped; each has a counter of its own.

/// Why a packet went no further.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum DropReason {
    /// Shorter than the headers it must have.
    Runt,
    /// Sent to a MAC address that is neither the port's nor broadcast.
    OtherMac,
    /// Neither IPv4 nor ARP.
    EtherType,
    /// IPv4 header with a wrong version, header length or total length.
    Ipv4Header,
    /// IPv4 header checksum wrong.
    Ipv4Checksum,
    /// A fragment of an IPv4 packet.
    Ipv4Fragment,
    /// Spread over several buffers.
    Segmented,
    /// IPv4, but not UDP.
    NotUdp,
    /// UDP length beyond the packet, or below its own header.
    UdpLength,
    /// UDP checksum present and wrong.
    UdpChecksum,
    /// Neither to this node's address nor a worker's reply.
    OtherAddress,
    /// To this node, but not to its task port.
    UdpPort,
    /// Payload shorter than the task header, or than the extension it announces.
    TaskShort,
    /// Bit 6 of `kind` set.
    TaskReservedBit,
    /// A code reserved or unassigned.
    TaskCode,
    /// A code that this role does not take.
    TaskRole,
    /// A task whose source no reply would reach.
    SourceUnreachable,
    /// A task from the workers' side, or a reply or registration from the clients'.
    WrongSide,
    /// Time to live used up.
    TtlExpired,
    /// No pool of that id.
    UnknownPool,
    /// No worker of that id.
    UnknownWorker,
    /// A reply or registration, or a task at an agent, that names another pool than its worker's.
    PoolMismatch,
    /// A reply or registration whose source is not that worker's server, or an acknowledgement whose is not the leaf.
    SpoofedReply,
    /// A registration of a worker whose server is not configured to register.
    RegistrationOff,
    /// The pool has no live member.
    NoMember,
    /// A continuation of a task that is not known (any more).
    UnknownConnection,
    /// A multi-packet task for which the connection table has no room.
    ConnectionsFull,
    /// A multi-packet task whose source has too many that are not complete.
    MultiPacketBound,
    /// ARP with wrong types or lengths.
    ArpMalformed,
    /// ARP about other hosts.
    ArpOther,
    /// The next hop did not answer ARP in time.
    NeighbourUnresolved,
    /// Too many packets wait for a neighbour already.
    NeighbourQueueFull,
    /// ARP that contradicts what is known of a live host.
    ArpConflict,
    /// No port leads to the packet's destination.
    NoRoute,
    /// The device took no more packets, twice.
    TxFull,
    /// The pool's central queue is full.
    QueueFull,
    /// Still held when the node stopped.
    Shutdown,
    /// A task with more bytes than a worker's ring takes.
    TaskTooLong,
    /// Its worker completed it without an answer.
    Unanswered,
    /// Its worker's answer could not be: another task's, or too long.
    BadReply,
    /// Its worker died, left, fell silent or was shut out.
    WorkerLost,
    /// An acknowledgement of a registration that is not pending.
    NotAsked,
}

impl DropReason {
    /// How many there are.
    pub const COUNT: usize = Self::ALL.len();

    /// All of them, in the order of their counters.
    pub const ALL: [Self; 42] = [
        Self::Runt,
        Self::OtherMac,
        Self::EtherType,
        Self::Ipv4Header,
        Self::Ipv4Checksum,
        Self::Ipv4Fragment,
        Self::Segmented,
        Self::NotUdp,
        Self::UdpLength,
        Self::UdpChecksum,
        Self::OtherAddress,
        Self::UdpPort,
        Self::TaskShort,
        Self::TaskReservedBit,
        Self::TaskCode,
        Self::TaskRole,
        Self::SourceUnreachable,
        Self::WrongSide,
        Self::TtlExpired,
        Self::UnknownPool,
        Self::UnknownWorker,
        Self::PoolMismatch,
        Self::SpoofedReply,
        Self::RegistrationOff,
        Self::NoMember,
        Self::UnknownConnection,
        Self::ConnectionsFull,
        Self::MultiPacketBound,
        Self::ArpMalformed,
        Self::ArpOther,
        Self::NeighbourUnresolved,
        Self::NeighbourQueueFull,
        Self::ArpConflict,
        Self::NoRoute,
        Self::TxFull,
        Self::QueueFull,
        Self::Shutdown,
        Self::TaskTooLong,
        Self::Unanswered,
        Self::BadReply,
        Self::WorkerLost,
        Self::NotAsked,
    ];

    /// The key under which it is reported.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Runt => "runt",
            Self::OtherMac => "other_mac",
            Self::EtherType => "ether_type",
            Self::Ipv4Header => "ipv4_header",
            Self::Ipv4Checksum => "ipv4_checksum",
            Self::Ipv4Fragment => "ipv4_fragment",
            Self::Segmented => "segmented",
            Self::NotUdp => "not_udp",
            Self::UdpLength => "udp_length",
            Self::UdpChecksum => "udp_checksum",
            Self::OtherAddress => "other_address",
            Self::UdpPort => "udp_port",
            Self::TaskShort => "task_short",
            Self::TaskReservedBit => "task_reserved_bit",
            Self::TaskCode => "task_code",
            Self::TaskRole => "task_role",
            Self::SourceUnreachable => "source_unreachable",
            Self::WrongSide => "wrong_side",
            Self::TtlExpired => "ttl_expired",
            Self::UnknownPool => "unknown_pool",
            Self::UnknownWorker => "unknown_worker",
            Self::PoolMismatch => "pool_mismatch",
            Self::SpoofedReply => "spoofed_reply",
            Self::RegistrationOff => "registration_off",
            Self::NoMember => "no_member",
            Self::UnknownConnection => "unknown_connection",
            Self::ConnectionsFull => "connections_full",
            Self::MultiPacketBound => "multi_packet_bound",
            Self::ArpMalformed => "arp_malformed",
            Self::ArpOther => "arp_other",
            Self::NeighbourUnresolved => "neighbour_unresolved",
            Self::NeighbourQueueFull => "neighbour_queue_full",
            Self::ArpConflict => "arp_conflict",
            Self::NoRoute => "no_route",
            Self::TxFull => "tx_full",
            Self::QueueFull => "queue_full",
            Self::Shutdown => "shutdown",
            Self::TaskTooLong => "task_too_long",
            Self::Unanswered => "unanswered",
            Self::BadReply => "bad_reply",
            Self::WorkerLost => "worker_lost",
            Self::NotAsked => "not_asked",
        }
    }
}

const _: () = {
    // A reason's number is the index of its counter.
    let mut i = 0;
    while i < DropReason::COUNT {
        assert!(DropReason::ALL[i] as usize == i);
        i += 1;
    }
};
