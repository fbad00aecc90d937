//! Every reason for which a packet is dropped; each has a counter of its own.

/// Makes the enum, its list and its names of one table.
macro_rules! reasons {
    ($($(#[doc = $doc:literal])+ $name:ident => $key:literal,)+) => {
        /// Why a packet went no further. A reason's number is the index of its counter.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum DropReason {
            $($(#[doc = $doc])+ $name,)+
        }

        impl DropReason {
            /// All of them, in the order of their counters.
            pub const ALL: [Self; [$($key),+].len()] = [$(Self::$name),+];

            /// The key under which it is reported.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$name => $key,)+
                }
            }
        }
    };
}

reasons! {
    /// Shorter than the headers it must have.
    Runt => "runt",
    /// Sent to a MAC address that is neither the port's nor broadcast.
    OtherMac => "other_mac",
    /// Neither IPv4 nor ARP.
    EtherType => "ether_type",
    /// IPv4 header with a wrong version, header length or total length.
    Ipv4Header => "ipv4_header",
    /// IPv4 header checksum wrong.
    Ipv4Checksum => "ipv4_checksum",
    /// A fragment of an IPv4 packet.
    Ipv4Fragment => "ipv4_fragment",
    /// Spread over several buffers.
    Segmented => "segmented",
    /// IPv4, but not UDP.
    NotUdp => "not_udp",
    /// UDP length beyond the packet, or below its own header.
    UdpLength => "udp_length",
    /// UDP checksum present and wrong.
    UdpChecksum => "udp_checksum",
    /// Neither to this node's address nor a worker's reply.
    OtherAddress => "other_address",
    /// To this node, but not to its task port.
    UdpPort => "udp_port",
    /// Payload shorter than the task header, or than the extension it announces.
    TaskShort => "task_short",
    /// Bit 6 of `kind` set, on a task or where the pool has no key.
    TaskReservedBit => "task_reserved_bit",
    /// A code reserved or unassigned.
    TaskCode => "task_code",
    /// A code that this role does not take.
    TaskRole => "task_role",
    /// A task whose source no reply would reach.
    SourceUnreachable => "source_unreachable",
    /// A task from the workers' side, or a reply or registration from the clients'.
    WrongSide => "wrong_side",
    /// Time to live used up.
    TtlExpired => "ttl_expired",
    /// No pool of that id.
    UnknownPool => "unknown_pool",
    /// No worker of that id.
    UnknownWorker => "unknown_worker",
    /// A reply or registration, or a task at an agent, that names another pool than its worker's.
    PoolMismatch => "pool_mismatch",
    /// A reply or registration whose source is not that worker's server, or an acknowledgement whose is not the leaf.
    SpoofedReply => "spoofed_reply",
    /// A registration of a worker whose server is not configured to register.
    RegistrationOff => "registration_off",
    /// A reply or registration of a pool with a key that came without sequence and tag.
    AuthMissing => "auth_missing",
    /// The same with a wrong tag.
    AuthTag => "auth_tag",
    /// The same with a sequence that was seen, or is too old.
    AuthReplay => "auth_replay",
    /// The pool has no live member.
    NoMember => "no_member",
    /// A continuation of a task that is not known (any more).
    UnknownConnection => "unknown_connection",
    /// A multi-packet task for which the connection table has no room.
    ConnectionsFull => "connections_full",
    /// A multi-packet task whose source has too many that are not complete.
    MultiPacketBound => "multi_packet_bound",
    /// ARP with wrong types or lengths.
    ArpMalformed => "arp_malformed",
    /// ARP about other hosts.
    ArpOther => "arp_other",
    /// The next hop did not answer ARP in time.
    NeighbourUnresolved => "neighbour_unresolved",
    /// Too many packets wait for a neighbour already.
    NeighbourQueueFull => "neighbour_queue_full",
    /// ARP that contradicts what is known of a live host.
    ArpConflict => "arp_conflict",
    /// No port leads to the packet's destination.
    NoRoute => "no_route",
    /// The device took no more packets, twice.
    TxFull => "tx_full",
    /// The pool's central queue is full.
    QueueFull => "queue_full",
    /// Still held when the node stopped.
    Shutdown => "shutdown",
    /// A task with more bytes than a worker's ring takes.
    TaskTooLong => "task_too_long",
    /// Its worker completed it without an answer.
    Unanswered => "unanswered",
    /// Its worker's answer could not be: another task's, or too long.
    BadReply => "bad_reply",
    /// Its worker died, left, fell silent or was shut out.
    WorkerLost => "worker_lost",
    /// An acknowledgement of a registration that is not pending.
    NotAsked => "not_asked",
}

impl DropReason {
    /// How many there are.
    pub const COUNT: usize = Self::ALL.len();
}
