//! Every reason for which a packet is dropped; each has a counter of its own. The table in docs/failures.md is made of this one.

/// Makes the enum, its list and its texts of one table: what is so of the packet, the reason's key, and what to look at.
macro_rules! reasons {
    ($($(#[doc = $doc:literal])+ $name:ident => $key:literal, $look_at:literal;)+) => {
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

            /// What is so of the packet, in a sentence.
            #[must_use]
            pub const fn help(self) -> &'static str {
                match self {
                    $(Self::$name => concat!($($doc),+).trim_ascii(),)+
                }
            }

            /// What to look at when there are such packets.
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
    /// Shorter than the headers it must have.
    Runt => "runt", "the sender";
    /// Sent to a MAC address that is neither the port's nor broadcast.
    OtherMac => "other_mac", "a switch that floods; `port.mac`";
    /// Neither IPv4, IPv6 nor ARP, or of another family than the port's address.
    EtherType => "ether_type", "hosts there that speak the other of IPv4 and IPv6; `port.ip`";
    /// A VLAN tag on a port without `vlan`, or behind the port's own.
    VlanTag => "vlan_tag", "`port.vlan`; two tags (QinQ) are not taken";
    /// IPv4 header with a wrong version, header length or total length.
    Ipv4Header => "ipv4_header", "the sender, the link";
    /// IPv4 header checksum wrong.
    Ipv4Checksum => "ipv4_checksum", "the sender, the link";
    /// A fragment of an IPv4 packet.
    Ipv4Fragment => "ipv4_fragment", "payloads beyond the MTU";
    /// Spread over several buffers.
    Segmented => "segmented", "jumbo frames";
    /// IPv4 or IPv6, but not UDP: ICMP, TCP, ...
    NotUdp => "not_udp", "usually harmless";
    /// UDP length beyond the packet, or below its own header.
    UdpLength => "udp_length", "the sender, the link";
    /// UDP checksum present and wrong.
    UdpChecksum => "udp_checksum", "the sender, the link; `port.checksums`";
    /// Neither to this node's address nor a worker's reply.
    OtherAddress => "other_address", "routes; workers must answer to the client's address";
    /// To this node, but not to its task port.
    UdpPort => "udp_port", "`leaf.udp_port`";
    /// Payload shorter than the task header, or than the extension it announces.
    TaskShort => "task_short", "the sender's version of the header";
    /// Bit 6 of the header's first byte set: on a task, or on a worker's word with proof in a pool without a key.
    TaskReservedBit => "task_reserved_bit", "`key_file` of the leaf's `[[pool]]`: the server has a key and the leaf has none";
    /// A code reserved or unassigned.
    TaskCode => "task_code", "the sender's version of the header";
    /// A code that this role does not take.
    TaskRole => "task_role", "see docs/limits.md";
    /// A task whose source no reply would reach: not a client's address, or one that servers answer without the leaf.
    SourceUnreachable => "source_unreachable", "`port.ip`, `port.gateway`; an intruder";
    /// A task from the workers' side, or a reply or registration from the clients'.
    WrongSide => "wrong_side", "`port.side`";
    /// Time to live used up, or too short for a task whose server is behind routers or other leaves.
    TtlExpired => "ttl_expired", "a routing loop";
    /// No pool of that id.
    UnknownPool => "unknown_pool", "`[[pool]]`, `[[server]]`";
    /// No worker of that id.
    UnknownWorker => "unknown_worker", "`[[pool]]`, `[[server]]`";
    /// A reply or registration, or a task at an agent, that names another pool than its worker's.
    PoolMismatch => "pool_mismatch", "the worker, the leaf's `[[server]]`";
    /// A reply or registration from an address that is not that worker's server; at an agent, an acknowledgement that is not
    /// from the leaf's address and MAC address.
    SpoofedReply => "spoofed_reply", "`server.ip`, `server.workers`; `agent.leaf`, `agent.leaf_mac`; an intruder";
    /// At a spine, a signal of a leaf that it does not have; at a leaf, a KEEP_ALIVE from the clients' side of a spine that it does not
    /// have; at an agent, a probe of a leaf that it does not have.
    UnknownPeer => "unknown_peer", "the spine's `[[leaf]]`, the leaf's `[[spine]]`, the agent's `leaf`";
    /// A signal of a leaf about a pool that it is not in.
    SignalPool => "signal_pool", "`leaf.pool` of the spine's `[[leaf]]`";
    /// A signal from an address that is not that leaf's, or a KEEP_ALIVE that names another spine than has the address.
    SpoofedSignal => "spoofed_signal", "`leaf.ip`, `spine.ip`; an intruder";
    /// A signal without the extension, which holds what it tells.
    SignalShort => "signal_short", "the sender's version of the header";
    /// A registration of a worker whose server is not configured to register.
    RegistrationOff => "registration_off", "`server.registers`; an intruder";
    /// A queue report in a pool that learns of queues from replies, or a probe's answer in one that does not ask.
    QueueReportOff => "queue_report_off", "`pool.reports` of the leaf, `pool.leaf_policy` of the agent; an intruder";
    /// A reply or registration of a pool with a key that came without sequence and tag; at an agent, an acknowledgement.
    AuthMissing => "auth_missing", "`key_file` of the server's `[[pool]]`; an intruder";
    /// A reply, registration or acknowledgement with a wrong tag.
    AuthTag => "auth_tag", "that both sides have the same key; an intruder";
    /// A reply, registration or acknowledgement with a sequence that was seen, or is too old.
    AuthReplay => "auth_replay", "the clocks of leaf and server (docs/protocol.md); an intruder";
    /// A task for a pool in which no worker may have it now.
    NoMember => "no_member", "whether all its workers were taken out, or have not registered yet";
    /// A continuation of a task that is not known (any more).
    UnknownConnection => "unknown_connection", "`leaf.connection_timeout_ms`; the first packet's loss";
    /// A multi-packet task for which the connection table has no room.
    ConnectionsFull => "connections_full", "`leaf.connections`";
    /// A multi-packet task whose source has too many that are not complete.
    MultiPacketBound => "multi_packet_bound", "`leaf.multi_packet_per_source`; the loss of packets";
    /// ARP with wrong types or lengths.
    ArpMalformed => "arp_malformed", "usually harmless";
    /// ARP about other hosts.
    ArpOther => "arp_other", "usually harmless";
    /// Waited for a next hop that did not answer ARP or neighbour discovery in time.
    NeighbourUnresolved => "neighbour_unresolved", "is that host up, is its address right";
    /// Came while too many packets waited for next hops.
    NeighbourQueueFull => "neighbour_queue_full", "is that host up, is its address right; `server.mac` spares the wait at start";
    /// ARP or neighbour discovery in the name of a live host, from another MAC address.
    ArpConflict => "arp_conflict", "a host that was replaced is asked for and found; two hosts with one address; an intruder";
    /// No port leads to the packet's destination.
    NoRoute => "no_route", "`port.gateway`";
    /// Found the transmit queue full, twice.
    TxFull => "tx_full", "the receiver does not keep up; `queue_slots`";
    /// Found the pool's central queue full.
    QueueFull => "queue_full", "more workers or a larger `queue`; `overflow = \"refuse\"` tells the clients";
    /// Still held when the leaf or agent ended.
    Shutdown => "shutdown", "nothing";
    /// A task with more bytes than the agent's rings take.
    TaskTooLong => "task_too_long", "`agent.payload`";
    /// A task that its worker ended without an answer.
    Unanswered => "unanswered", "the worker's program";
    /// A task whose worker's answer was another task's, or too long.
    BadReply => "bad_reply", "the worker's program";
    /// A task whose worker died, left, was silent for too long or was shut out.
    WorkerLost => "worker_lost", "docs/agent.md";
    /// An acknowledgement of a registration that is not pending: it came twice or too late, or was forged.
    NotAsked => "not_asked", "usually harmless; an intruder if there are many";
    /// At an agent with peers, a peer's word or task of another version of the messages.
    PeerVersion => "peer_version", "that all nodes run the same release";
    /// A word of a peer that takes another number of nodes for granted.
    PeerNodes => "peer_nodes", "that `peers.nodes` is the same in all nodes' files";
    /// A word of a peer whose learner has other features, or parameters of a critic where none learns.
    PeerFeatures => "peer_features", "that `peers.policy` is the same in all nodes' files, and their release";
    /// A peer's word or task from an address or a MAC address that is not that node's.
    PeerStranger => "peer_stranger", "that `peers.nodes` is in the same order in all nodes' files; an intruder";
    /// A word of a peer with a value that is not a number, or infinite.
    PeerNotFinite => "peer_not_finite", "the peer; an intruder";
    /// A word of a peer with a value beyond what can be, such as a load below 0.
    PeerOutOfRange => "peer_out_of_range", "the peer; an intruder";
    /// A word of a peer from before one that was heard, or parameters for a consensus that is over or far ahead.
    PeerOld => "peer_old", "usually harmless; whether a node's clock was set back before it was started";
    /// A word of a peer that was heard before.
    PeerDoubled => "peer_doubled", "the network";
    /// Parameters of a critic of another size.
    PeerLength => "peer_length", "that all nodes run the same release";
    /// IPv6 header with a wrong version, or a length of 0 or beyond the packet.
    Ipv6Header => "ipv6_header", "the sender, the link; jumbograms are not taken";
    /// An IPv6 packet with an extension header, such as a fragment.
    Ipv6Extension => "ipv6_extension", "payloads beyond the MTU; senders' options";
    /// UDP over IPv6 without a checksum.
    UdpNoChecksum => "udp_no_checksum", "the sender: over IPv6 the checksum must be there";
    /// A task or a worker's word over the other of IPv4 and IPv6 than its pool's servers have.
    AddressFamily => "address_family", "that clients and servers of a pool are both IPv4 or both IPv6";
    /// Neighbour discovery from beyond the link (a hop limit below 255), or with a wrong checksum, length or option.
    NdMalformed => "nd_malformed", "the sender; an intruder beyond a router";
    /// Neighbour discovery about other hosts.
    NdOther => "nd_other", "usually harmless";
    /// Waited for a next hop behind a port that has no link, until it was given up or too many waited.
    PortDown => "port_down", "the port's cable; of a memif device, whether the process at its other end runs";
    /// A task with source port 0, which no socket can answer.
    UdpSourcePort => "udp_source_port", "the client; an intruder";
    /// A task with IPv4 options that `port.ip_options` does not allow: servers may drop it or send it elsewhere.
    Ipv4Options => "ipv4_options", "the client, `port.ip_options`; an intruder";
    /// Several datagrams in one packet: the sender's kernel left the segmentation to its device (UDP_SEGMENT, GSO), which passed it on.
    SegmentationOffload => "segmentation_offload", "the sender's interface: `ethtool -K IFACE tx-udp-segmentation off gso off`; docs/limits.md";
}

impl DropReason {
    /// Such packets are seen on most networks and are meant for others: they tell nothing of what is wrong with those for us.
    #[must_use]
    pub const fn is_of_strays(self) -> bool {
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

    /// One such packet is a fault of the configuration, whatever else the port receives.
    #[must_use]
    pub const fn is_of_setup(self) -> bool {
        matches!(self, Self::SegmentationOffload)
    }

    /// How many there are.
    pub const COUNT: usize = Self::ALL.len();
}
