//! Fuzz body: arbitrary sequences of memif control messages. memif is DPDK's network device in shared memory. Its
//! client sends the sizes of its memory regions (with file descriptors) and the places of its rings over a socket.
//!
//! A parser of each end receives the messages: the server's (`ClientMessages`) and the client's (`ServerMessages`).
//! The regions and rings of an accepted client must be safe to map.

use wedjat::io::memif_control::{
    ClientMessages, Descriptor, MESSAGE_BYTES, MessageKind, REGIONS_MAX, Refusal, Rings,
    ServerMessages, Step,
};

/// Rings that the server's device needs from its client.
const RINGS: Rings = Rings { to_server: 2, to_client: 1 };
/// Id of the only device.
const ID: u32 = 1;

/// Regions and rings that a client announced, read from its messages by a second, simpler parser.
#[derive(Default)]
struct ClientMemory {
    /// Size in bytes of each region, and the memory that came with it.
    regions: Vec<(u64, Descriptor)>,
    /// Rings as (flags, index, region, offset in bytes, log2 of the number of descriptors). Flag 1: to the server.
    rings: Vec<(u16, u16, usize, u64, u8)>,
}

/// Runs one input. Returns true if the server's parser accepted the client.
///
/// An input is a script. For each message, the first byte selects its kind (bits 0 to 3) and its file descriptor
/// (bits 4 to 6); bit 7 makes an init message invalid. The second byte is the number of changes to the message, each of
/// two bytes: position and value. The last byte is the log2 of the size of the descriptor's memory.
pub fn run(input: &[u8]) -> bool {
    let mut bytes = input.iter().copied();
    let (mut client, mut server) = (ClientMessages::default(), ServerMessages::new(RINGS));
    let mut announced = ClientMemory::default();
    let (mut is_open, mut is_complete, mut greetings) = (true, false, 0);
    while let Some(selector) = bytes.next() {
        let mut message = [0; MESSAGE_BYTES];
        message[0] = selector & 0x0F;
        let changed = usize::from(bytes.next().unwrap_or(0) % 24);
        // An init message (kind 3) gets the right version and device, except with the bit 0x80.
        if message[0] == 3 && selector & 0x80 == 0 {
            (message[3], message[4]) = (2, ID as u8);
        }
        // Few changed bytes suffice: many valid sizes and offsets have a single byte that is not zero. All numbers of
        // a message lie within its first 48 bytes.
        for _ in 0..changed {
            let at = usize::from(bytes.next().unwrap_or(0)) % 48;
            message[at] = bytes.next().unwrap_or(0);
        }
        let memory = Descriptor {
            bytes: 1 << (bytes.next().unwrap_or(0) % 40),
            keeps_its_size: selector & 0x20 == 0,
            is_writable: selector & 0x40 == 0,
        };
        let kind = MessageKind::of(&message);
        let needs_descriptor = matches!(kind, Ok(MessageKind::AddRegion | MessageKind::AddRing));
        // A descriptor comes with the messages that need one. The bit 0x10 reverses that.
        let descriptors = vec![memory; usize::from(needs_descriptor != (selector & 0x10 != 0))];

        if is_open {
            let rings_of = |id| if id == ID { Ok(RINGS) } else { Err(Refusal::NoDevice(id)) };
            match client.take(&message, &descriptors, rings_of) {
                Ok(step) => {
                    assert!(!is_complete || step == Step::Leaves, "only a disconnect may follow");
                    announced.note(&message, &descriptors);
                    if step == Step::Complete {
                        assert_eq!(client.id(), Some(ID));
                        announced.assert_safe();
                        is_complete = true;
                    }
                    is_open = step != Step::Leaves;
                }
                Err(refusal) => {
                    assert!(!refusal.to_string().is_empty());
                    is_open = false;
                }
            }
        }
        // A driver must see only one greeting. After a second one it would create its regions twice.
        if let Ok(kind) = server.take(&message, descriptors.len()) {
            greetings += usize::from(kind == MessageKind::Hello);
            assert!(greetings <= 1 && kind != MessageKind::Connected, "no client has connected");
            assert!(descriptors.is_empty());
        }
        // A message that is too short is refused.
        let cut = usize::from(selector) % MESSAGE_BYTES;
        assert_eq!(MessageKind::of(&message[..cut]), Err(Refusal::Length(cut)));
    }
    is_complete
}

impl ClientMemory {
    /// Adds the region (kind 4) or ring (kind 5) of a message.
    fn note(&mut self, message: &[u8; MESSAGE_BYTES], descriptors: &[Descriptor]) {
        // Reads the little-endian number of `len` bytes at an offset.
        let number = |at: usize, len: usize| {
            let mut wide = [0; 8];
            wide[..len].copy_from_slice(&message[at..at + len]);
            u64::from_le_bytes(wide)
        };
        match message[0] {
            4 => self.regions.push((number(4, 8), descriptors[0])),
            5 => self.rings.push((
                number(2, 2) as u16,
                number(4, 2) as u16,
                number(6, 2) as usize,
                number(8, 4),
                message[12],
            )),
            _ => {}
        }
    }

    /// Checks that every region lies within its memory, which keeps its size, and every ring within its region. A
    /// ring has a header of at least 128 bytes and at most 2^14 descriptors of 16 bytes. Otherwise an access of the
    /// server could leave the mapped memory.
    fn assert_safe(&self) {
        assert!(self.regions.len() <= usize::from(REGIONS_MAX));
        for (bytes, memory) in &self.regions {
            assert!(
                memory.keeps_its_size && memory.is_writable && (1..=memory.bytes).contains(bytes)
            );
        }
        for flags in [0, 1] {
            let rings: Vec<_> = self.rings.iter().filter(|ring| ring.0 == flags).collect();
            let needed = if flags == 1 { RINGS.to_server } else { RINGS.to_client };
            assert_eq!(rings.len(), usize::from(needed), "each queue has its ring");
            assert!(rings.iter().enumerate().all(|(at, ring)| usize::from(ring.1) == at));
        }
        assert_eq!(self.rings.len(), usize::from(RINGS.to_server + RINGS.to_client));
        for &(_, _, region, offset, log2) in &self.rings {
            assert!(log2 <= 14 && offset % 4 == 0);
            assert!(offset + 128 + (16 << log2) <= self.regions[region].0);
        }
    }
}
