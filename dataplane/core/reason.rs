//! Drop reasons. Each reason has a counter. The table in docs/reference/drop-reasons.md is generated from the one here:
//! tests/tidy.rs compares them, and with `WRITE_TABLES` set writes it.

/// Generates the enum, its list and its texts from one table. Each line has the description of the packet (which is
/// also the help text), the key in reports, and the things to check.
macro_rules! reasons {
    ($($(#[doc = $doc:literal])+ $name:ident => $key:literal, $look_at:literal;)+) => {
        /// Reason why a packet was dropped. The number of a reason is the index of its counter.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum DropReason {
            $($(#[doc = $doc])+ $name,)+
        }

        impl DropReason {
            /// All reasons, in the order of their counters.
            pub const ALL: [Self; [$($key),+].len()] = [$(Self::$name),+];

            /// Returns the key used in reports.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$name => $key,)+
                }
            }

            /// Returns the description of the packet, in one sentence.
            #[must_use]
            pub const fn help(self) -> &'static str {
                match self {
                    $(Self::$name => concat!($($doc),+).trim_ascii(),)+
                }
            }

            /// Returns what to check if such packets occur.
            #[must_use]
            pub const fn look_at(self) -> &'static str {
                match self {
                    $(Self::$name => $look_at,)+
                }
            }
        }
    };
}

reasons! {
    /// Packet shorter than its required headers.
    Runt => "runt", "the sender";
    /// Packet to a MAC address that is neither the port's nor broadcast.
    OtherMac => "other_mac", "switches that flood; `port.mac`";
    /// Neither IPv4, IPv6 nor ARP, or not the port's IP version.
    EtherType => "ether_type", "hosts on that link with the other IP version; `port.ip`";
    /// VLAN tag on a port without `vlan`, or second tag behind the port's own.
    VlanTag => "vlan_tag", "`port.vlan`; two tags (QinQ) are not supported";
    /// IPv4 header with a wrong version, header length or total length.
    Ipv4Header => "ipv4_header", "the sender, the link";
    /// Wrong IPv4 header checksum.
    Ipv4Checksum => "ipv4_checksum", "the sender, the link";
    /// Fragment of an IPv4 packet.
    Ipv4Fragment => "ipv4_fragment", "payloads beyond the MTU";
    /// Packet spread over several buffers.
    Segmented => "segmented", "jumbo frames";
    /// IPv4 or IPv6 packet without UDP: ICMP, TCP, ...
    NotUdp => "not_udp", "usually harmless";
    /// UDP length beyond the packet, or below the length of the UDP header.
    UdpLength => "udp_length", "the sender, the link";
    /// UDP checksum present and wrong.
    UdpChecksum => "udp_checksum", "the sender, the link; `port.checksums`";
    /// Packet that is neither to this node's address nor a worker's reply.
    OtherAddress => "other_address", "routes; workers must answer to the client's address";
    /// Packet to this node's address, but not to its task port.
    UdpPort => "udp_port", "`leaf.udp_port`";
    /// Payload shorter than the task header with its extension.
    TaskShort => "task_short", "the sender's version of the header";
    /// Bit 6 of the header's first byte: on a task, or on an authenticated message in a pool without a key.
    TaskReservedBit => "task_reserved_bit", "`key_file` of the leaf's `[[pool]]`: only the server has a key";
    /// Reserved or unassigned code.
    TaskCode => "task_code", "the sender's version of the header";
    /// Code that this role does not accept.
    TaskRole => "task_role", "see docs/reference/limits.md";
    /// Task from a source that no reply reaches: no client's address, or one to which servers reply without
    /// the leaf.
    SourceUnreachable => "source_unreachable", "`port.ip`, `port.gateway`; an intruder";
    /// Task from the workers' side, or reply or registration from the clients' side.
    WrongSide => "wrong_side", "`port.side`";
    /// Time to live too short, also for a server behind routers or other leaves.
    TtlExpired => "ttl_expired", "a routing loop";
    /// Unknown pool id.
    UnknownPool => "unknown_pool", "`[[pool]]`, `[[server]]`";
    /// Unknown worker id.
    UnknownWorker => "unknown_worker", "`[[pool]]`, `[[server]]`";
    /// Reply or registration, or task at an agent, that names another pool than its worker's.
    PoolMismatch => "pool_mismatch", "the worker, the leaf's `[[server]]`";
    /// Reply or registration from another address than that of the worker's server. At an agent:
    /// acknowledgement not from the leaf's IP and MAC address.
    SpoofedReply => "spoofed_reply", "`server.ip`, `server.workers`; `agent.leaf`, `agent.leaf_mac`; an intruder";
    /// Signal of an unconfigured leaf at a spine, KEEP_ALIVE of an unconfigured spine at a leaf, or probe of
    /// an unconfigured leaf at an agent.
    UnknownPeer => "unknown_peer", "the spine's `[[leaf]]`, the leaf's `[[spine]]`, the agent's `leaf`";
    /// Signal of a leaf for a pool to which the leaf does not belong.
    SignalPool => "signal_pool", "`leaf.pool` of the spine's `[[leaf]]`";
    /// Signal from another address than the leaf's, or KEEP_ALIVE whose spine id does not match its address.
    SpoofedSignal => "spoofed_signal", "`leaf.ip`, `spine.ip`; an intruder";
    /// Signal without the extension that carries its values.
    SignalShort => "signal_short", "the sender's version of the header";
    /// Registration of a worker without `registers`.
    RegistrationOff => "registration_off", "`server.registers`; an intruder";
    /// Queue report in a pool with `reports = "replies"`, or probe answer in a pool without probes.
    QueueReportOff => "queue_report_off", "`pool.reports` of the leaf, `pool.leaf_policy` of the agent; an intruder";
    /// Completion report whose number of entries is 0, above 30, or differs from its length.
    CompletionsMalformed => "completions_malformed", "the sender's version of the protocol; an intruder";
    /// Reply or registration without sequence and tag, in a pool with a key. At an agent: such an
    /// acknowledgement.
    AuthMissing => "auth_missing", "`key_file` of the server's `[[pool]]`; an intruder";
    /// Reply, registration or acknowledgement with a wrong tag.
    AuthTag => "auth_tag", "that both sides have the same key; an intruder";
    /// Reply, registration or acknowledgement with a repeated or outdated sequence.
    AuthReplay => "auth_replay", "the clocks of leaf and server (docs/reference/protocol.md); an intruder";
    /// Task for a pool in which no worker may receive it now.
    NoMember => "no_member", "whether its workers are registered, live and not drained";
    /// Continuation of a task that is not in the connection table.
    UnknownConnection => "unknown_connection", "`leaf.connection_timeout_ms`; the first packet's loss";
    /// Multi-packet task without room in the connection table.
    ConnectionsFull => "connections_full", "`leaf.connections`";
    /// Multi-packet task from a source with too many incomplete tasks.
    MultiPacketBound => "multi_packet_bound", "`leaf.multi_packet_per_source`; the loss of packets";
    /// ARP packet with wrong types or lengths.
    ArpMalformed => "arp_malformed", "usually harmless";
    /// ARP packet about other hosts.
    ArpOther => "arp_other", "usually harmless";
    /// Packet whose next hop did not answer ARP or neighbour discovery in time.
    NeighbourUnresolved => "neighbour_unresolved", "that the host is up and its address right";
    /// Packet that arrived while too many packets waited for next hops.
    NeighbourQueueFull => "neighbour_queue_full", "that the host is up; `server.mac` spares the wait at start";
    /// ARP or neighbour discovery in the name of a live host, from another MAC address.
    ArpConflict => "arp_conflict", "two hosts with one address; an intruder";
    /// No port leads to the packet's destination.
    NoRoute => "no_route", "`port.gateway`";
    /// Packet that found the transmit queue full, twice.
    TxFull => "tx_full", "an overloaded receiver; `queue_slots`";
    /// Packet to a port whose device is unplugged, or in a reset.
    PortRemoved => "port_removed", "the NIC of the port";
    /// Task that found its pool's central queue full.
    QueueFull => "queue_full", "more workers or a larger `queue`; `overflow = \"refuse\"`";
    /// Packet still held at the end of the leaf or agent.
    Shutdown => "shutdown", "nothing";
    /// Task with more bytes than the agent's rings accept.
    TaskTooLong => "task_too_long", "`agent.payload`";
    /// Task that its worker ended without an answer.
    Unanswered => "unanswered", "the worker's program";
    /// Task whose worker's answer belonged to another task, or was too long.
    BadReply => "bad_reply", "the worker's program";
    /// Task of a worker that died, left, was silent for too long or was shut out.
    WorkerLost => "worker_lost", "docs/reference/agent.md";
    /// Acknowledgement without a pending registration: a duplicate, too late, or forged.
    NotAsked => "not_asked", "usually harmless; an intruder if there are many";
    /// Message or task of a peer in another version.
    PeerVersion => "peer_version", "that all nodes run the same release";
    /// Message of a peer with another number of nodes.
    PeerNodes => "peer_nodes", "that `peers.nodes` is the same in all nodes' files";
    /// Message of a peer with other learner features, or critic parameters at a node that does not learn.
    PeerFeatures => "peer_features", "`peers.policy` and the release of all nodes";
    /// Message or task of a peer not from its IP and MAC address.
    PeerStranger => "peer_stranger", "the order of `peers.nodes` in all nodes' files; an intruder";
    /// Message of a peer with an infinite value or NaN.
    PeerNotFinite => "peer_not_finite", "the peer; an intruder";
    /// Message of a peer with an impossible value, for example a load below 0.
    PeerOutOfRange => "peer_out_of_range", "the peer; an intruder";
    /// Message of a peer older than an accepted one, or parameters for a consensus now over or far ahead.
    PeerOld => "peer_old", "usually harmless; a node's clock, set back before its start";
    /// Message of a peer that was received before.
    PeerDoubled => "peer_doubled", "the network";
    /// Critic parameters of another size.
    PeerLength => "peer_length", "that all nodes run the same release";
    /// IPv6 header with a wrong version, or a length of 0 or beyond the packet.
    Ipv6Header => "ipv6_header", "the sender, the link; jumbograms are not supported";
    /// IPv6 packet with an extension header, as a fragment.
    Ipv6Extension => "ipv6_extension", "payloads beyond the MTU; senders' options";
    /// UDP over IPv6 without a checksum.
    UdpNoChecksum => "udp_no_checksum", "the sender: IPv6 requires it";
    /// Task or worker's message over another IP version than the pool's servers have.
    AddressFamily => "address_family", "the IP version of the pool's clients and servers";
    /// Neighbour discovery with a hop limit below 255, or a wrong checksum, length or option.
    NdMalformed => "nd_malformed", "the sender; an intruder beyond a router";
    /// Neighbour discovery about other hosts.
    NdOther => "nd_other", "usually harmless";
    /// Packet for a next hop behind a port without a link, after a timeout or with too many packets waiting.
    PortDown => "port_down", "the port's cable; the process at a memif device's other end";
    /// Task with source port 0, to which no socket can reply.
    UdpSourcePort => "udp_source_port", "the client; an intruder";
    /// Task with IPv4 options that `port.ip_options` does not allow.
    Ipv4Options => "ipv4_options", "the client, `port.ip_options`; an intruder";
    /// Several datagrams in one packet: the sender's kernel left the segmentation to its device
    /// (UDP_SEGMENT, GSO).
    SegmentationOffload => "segmentation_offload", "the sender's device: `ethtool -K IF tx-udp-segmentation off gso off`; docs/reference/limits.md";
}

impl DropReason {
    /// Returns true for packets that occur on most networks and are meant for other hosts. They do not indicate a fault
    /// of this node's traffic, so the search for the cause of a port's drops leaves them out.
    #[must_use]
    pub const fn is_stray(self) -> bool {
        matches!(
            self,
            Self::OtherMac
                | Self::EtherType
                | Self::NotUdp
                | Self::ArpMalformed
                | Self::ArpOther
                | Self::NdOther
        )
    }

    /// Returns true if one such packet proves a wrong setting. The node logs it from the first packet on; other reasons
    /// only if most of a port's packets have them.
    #[must_use]
    pub const fn is_setup_error(self) -> bool {
        matches!(self, Self::SegmentationOffload)
    }

    /// Number of reasons.
    pub const COUNT: usize = Self::ALL.len();
}
