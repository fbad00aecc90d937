//! Arbitrary sequences of memif control messages, received by a server and by a client. The regions and rings
//! of an accepted client are safe to map.

use wedjat::io::memif_control::{
    ClientMessages, Descriptor, MESSAGE_BYTES, MessageKind, REGIONS_MAX, Refusal, Rings,
    ServerMessages, Step,
};

/// Rings that the server's device needs from its client.
const RINGS: Rings = Rings { to_server: 2, to_client: 1 };
/// Id of the only device.
const ID: u32 = 1;

/// Regions and rings of a client, from a second, literal parser of its messages: sizes of regions, and rings as
/// (flags, index, region, offset, log2 of the number of descriptors).
#[derive(Default)]
struct ParsedMessage {
    regions: Vec<(u64, Descriptor)>,
    rings: Vec<(u16, u16, usize, u64, u8)>,
}

/// Runs one input. Returns true if a client was accepted.
///
/// An input is a script. For each message, one octet selects its type and what comes with it; the following
/// octets change its bytes.
pub fn run(input: &[u8]) -> bool {
    let mut bytes = input.iter().copied();
    let (mut client, mut server) = (ClientMessages::default(), ServerMessages::new(RINGS));
    let mut said = ParsedMessage::default();
    let (mut is_open, mut is_complete, mut greetings) = (true, false, 0);
    while let Some(how) = bytes.next() {
        let mut message = [0; MESSAGE_BYTES];
        message[0] = how & 0x0F;
        let changed = usize::from(bytes.next().unwrap_or(0) % 24);
        // An init message (kind 3) gets the right version and device, except with the bit 0x80.
        if message[0] == 3 && how & 0x80 == 0 {
            (message[3], message[4]) = (2, ID as u8);
        }
        // Many sizes and offsets have a single octet that is not zero.
        for _ in 0..changed {
            let at = usize::from(bytes.next().unwrap_or(0)) % 48;
            message[at] = bytes.next().unwrap_or(0);
        }
        let memory = Descriptor {
            bytes: 1 << (bytes.next().unwrap_or(0) % 40),
            keeps_its_size: how & 0x20 == 0,
            is_writable: how & 0x40 == 0,
        };
        let kind = MessageKind::of(&message);
        let wants = matches!(kind, Ok(MessageKind::AddRegion | MessageKind::AddRing));
        // A descriptor comes with the messages that need one, or with those that do not.
        let descriptors = vec![memory; usize::from(wants != (how & 0x10 != 0))];

        if is_open {
            let rings_of = |id| if id == ID { Ok(RINGS) } else { Err(Refusal::NoDevice(id)) };
            match client.take(&message, &descriptors, rings_of) {
                Ok(step) => {
                    assert!(!is_complete || step == Step::Leaves, "only a disconnect may follow");
                    said.note(&message, &descriptors);
                    if step == Step::Complete {
                        assert_eq!(client.id(), Some(ID));
                        said.assert_safe();
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
        let cut = usize::from(how) % MESSAGE_BYTES;
        assert_eq!(MessageKind::of(&message[..cut]), Err(Refusal::Length(cut)));
    }
    is_complete
}

impl ParsedMessage {
    /// Adds the region (kind 4) or ring (kind 5) of a message.
    fn note(&mut self, message: &[u8; MESSAGE_BYTES], descriptors: &[Descriptor]) {
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
    /// ring has 128 bytes and 16 per descriptor.
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
