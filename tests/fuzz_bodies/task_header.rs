//! Fuzz body: arbitrary bytes as a task header, the header of tasks and replies behind UDP. The parser accepts them
//! exactly if the wire format allows them, and an accepted header is written back unchanged.

use wedjat::reason::DropReason;
use wedjat::wire::auth;
use wedjat::wire::task::{EXTENSION_LEN, Extension, Header, LEN};

/// Second copy of the wire format's codes. The first byte of a header is a code and the flags 0x20 (extended), 0x40
/// (authenticated) and 0x80 (more packets).
const CODES: [u8; 19] = [0, 2, 3, 6, 7, 10, 11, 12, 13, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25];

/// Returns the reason why these bytes are not a header, by the wire format's table.
fn fault(payload: &[u8]) -> Option<DropReason> {
    // Tells whether the bytes suffice for a header with these flags.
    let whole = |kind: u8| {
        let extension = if kind & 0x20 != 0 { EXTENSION_LEN } else { 0 };
        payload.len() >= LEN + extension + if kind & 0x40 != 0 { auth::LEN } else { 0 }
    };
    match payload.first() {
        Some(_) if !whole(0) => Some(DropReason::TaskShort),
        None => Some(DropReason::TaskShort),
        Some(kind) if !CODES.contains(&(kind & 0x1F)) => Some(DropReason::TaskCode),
        // Packets of a task are never authenticated. The masks leave out the flags extended and more; the first also
        // the bit 16, so that it covers the codes 0 and 16. The second covers the code 23 (0x17), a forwarded task.
        Some(kind) if kind & 0x4F == 0x40 || kind & 0x5F == 0x57 => {
            Some(DropReason::TaskReservedBit)
        }
        Some(&kind) if !whole(kind) => Some(DropReason::TaskShort),
        Some(_) => None,
    }
}

/// Runs one input: compares the parser with [`fault`], and writes an accepted header back.
pub fn run(payload: &[u8]) {
    let header = match Header::parse(payload) {
        Ok(header) => header,
        Err(reason) => return assert_eq!(Some(reason), fault(payload)),
    };
    assert_eq!(fault(payload), None);
    let mut written = payload.to_vec();
    written[..LEN].fill(0xFF);
    header.emit(&mut written);
    assert_eq!(written, payload, "the header is written as it was read");
    if header.extended {
        let extension = Extension::parse(payload);
        extension.emit(&mut written);
        assert_eq!(Extension::parse(&written), extension);
        // The last two bytes of the extension are reserved.
        assert_eq!(written[..LEN + 14], payload[..LEN + 14]);
        assert_eq!(written[header.len()..], payload[header.len()..]);
    }
}
