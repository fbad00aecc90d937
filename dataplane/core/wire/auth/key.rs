//! Key of a pool: AES-128 with the 16 bytes of the pool's key file, and the tags of packets under it. A tag is the
//! start of a CBC-MAC, see [`super`].

use aes::cipher::{BlockEncrypt, KeyInit};
use aes::{Aes128Enc, Block};
use arrayvec::ArrayVec;

use super::{KEY_LEN, SignedBlocks};
use crate::limits::BURST;
use crate::wire::u64_at;

/// Blocks that the CPU encrypts in parallel. A burst is rounded up to a multiple.
const PARALLEL_BLOCKS: usize = 8;
const _: () = assert!(BURST.is_multiple_of(PARALLEL_BLOCKS));

/// A pool's key. [`fmt::Debug`](std::fmt::Debug) hides it, and the cipher clears its memory on drop.
#[derive(Clone)]
pub struct Key(Aes128Enc);

/// Returns the key of these bytes. Always `Some` here; `no_key.rs`, which replaces this file in a build without the
/// feature `auth`, returns `None`.
#[must_use]
pub fn new_key(bytes: [u8; KEY_LEN]) -> Option<Key> {
    Some(Key::new(bytes))
}

/// Compares the ciphertexts of a block of zeros, because the cipher does not return its key.
impl PartialEq for Key {
    fn eq(&self, other: &Self) -> bool {
        let encrypted = |key: &Self| {
            let mut block = Block::default();
            key.0.encrypt_block(&mut block);
            block
        };
        encrypted(self) == encrypted(other)
    }
}

/// XORs one block into another.
#[inline]
fn xor(to: &mut Block, block: u128) {
    let result = u128::from_le_bytes((*to).into()) ^ block;
    *to = result.to_le_bytes().into();
}

impl Key {
    /// Creates the key from these bytes.
    #[must_use]
    pub fn new(bytes: [u8; KEY_LEN]) -> Self {
        Self(Aes128Enc::new(&bytes.into()))
    }

    /// Returns the tag of these blocks, and of the entries of a completion report that follow them (empty for other
    /// packets): the first 8 bytes of the CBC-MAC. Zeros fill up the last block of the entries.
    ///
    /// A CBC-MAC is forgeable if one message is the start of another. Here none is: the first block contains the IP
    /// version, the code, and the number of entries.
    #[inline]
    #[must_use]
    pub fn tag_with<const BLOCKS: usize>(
        &self,
        blocks: &SignedBlocks<BLOCKS>,
        entries: &[u8],
    ) -> u64 {
        let mut block = Block::default();
        let mut append = |part: u128| {
            xor(&mut block, part);
            self.0.encrypt_block(&mut block);
        };
        blocks.0.iter().copied().for_each(&mut append);
        for part in entries.chunks(size_of::<u128>()) {
            let mut bytes = [0; size_of::<u128>()];
            bytes[..part.len()].copy_from_slice(part);
            append(u128::from_le_bytes(bytes));
        }
        u64_at(&block, 0)
    }

    /// Returns the tags of a burst of packets without entries, in a fraction of the time of single calls. Ignores
    /// packets beyond [`BURST`].
    #[inline]
    #[must_use]
    pub fn tags<'a, const BLOCKS: usize>(
        &self,
        packets: impl ExactSizeIterator<Item = &'a SignedBlocks<BLOCKS>> + Clone,
    ) -> ArrayVec<u64, BURST> {
        let len = packets.len().min(BURST);
        let mut blocks = [Block::default(); BURST];
        let blocks = &mut blocks[..len.next_multiple_of(PARALLEL_BLOCKS)];
        // Each round adds one block of every packet, so that the CPU encrypts the packets' blocks in parallel.
        for index in 0..BLOCKS {
            for (block, packet) in blocks.iter_mut().zip(packets.clone()) {
                xor(block, packet.0[index]);
            }
            self.0.encrypt_blocks(blocks);
        }
        blocks[..len].iter().map(|block| u64_at(block, 0)).collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::wire::auth::{Addresses, LEN, SERVICE, SignedPacket, addresses, addresses_v6};
    use crate::wire::task::{self, Code, Extension, Header};

    /// Number of different bits in a byte.
    const BYTE_BITS: usize = 8;

    /// Returns the key of bytes 0 to 15.
    fn key() -> Key {
        Key::new(std::array::from_fn(|at| at as u8))
    }

    /// Returns a payload with this header, an extension if the header announces one, and sequence and tag.
    fn payload<const BLOCKS: usize>(
        addresses: &impl Addresses<BLOCKS>,
        header: Header,
        service_ns: u32,
        sequence: u64,
    ) -> Vec<u8> {
        let mut payload = vec![0; header.len()];
        header.emit(&mut payload);
        if header.extended {
            Extension { app: 1, seq32: 0x1234, service_ns, class: 3 }.emit(&mut payload);
        }
        key().sign(addresses, &mut payload, sequence);
        payload
    }

    /// Returns true if the payload's tag is valid.
    fn has_valid_tag<const BLOCKS: usize>(
        addresses: &impl Addresses<BLOCKS>,
        payload: &[u8],
    ) -> bool {
        let signed = SignedPacket::read(addresses, payload);
        signed.is_some_and(|signed| key().tag(&signed.blocks) == signed.tag)
    }

    /// Signs a payload and checks three facts. The tags of a burst of `count` copies equal the single tag. Another key
    /// has another tag. The tag is invalid after a change of one covered bit, which `bit` selects. `addresses` are
    /// source and destination, together `LEN_OF_BOTH` bytes.
    fn check_tag<const BLOCKS: usize, const LEN_OF_BOTH: usize>(
        header: Header,
        (service_ns, sequence): (u32, u64),
        addresses: [u8; LEN_OF_BOTH],
        (bit, count): (prop::sample::Index, usize),
    ) -> Result<(), TestCaseError>
    where
        [u8; LEN_OF_BOTH]: Addresses<BLOCKS>,
    {
        let good = payload(&addresses, header, service_ns, sequence);
        prop_assert!(has_valid_tag(&addresses, &good));
        let signed = SignedPacket::read(&addresses, &good).unwrap();
        let burst: Vec<_> = std::iter::repeat_n(&signed.blocks, count).collect();
        prop_assert!(key().tags(burst.into_iter()).iter().all(|&tag| tag == signed.tag));
        prop_assert!(Key::new([7; KEY_LEN]).tag(&signed.blocks) != signed.tag);

        // Offsets in the payload: of the header, the service time, and sequence and tag. The tag does not cover itself,
        // but a changed tag is invalid, too. Bits beyond these bytes are bits of the addresses.
        let proof = header.len() - LEN..header.len();
        let service = if header.extended { SERVICE..SERVICE + 4 } else { 0..0 };
        let covered: Vec<_> = (0..task::LEN).chain(service).chain(proof).collect();
        let bit = bit.index((covered.len() + addresses.len()) * BYTE_BITS);
        let (mut payload, mut changed) = (good, addresses);
        match covered.get(bit / BYTE_BITS) {
            Some(&at) => payload[at] ^= 1 << (bit % BYTE_BITS),
            None => changed[bit / BYTE_BITS - covered.len()] ^= 1 << (bit % BYTE_BITS),
        }
        prop_assert!(!has_valid_tag(&changed, &payload));
        Ok(())
    }

    #[test]
    fn tag_uses_the_standard_cipher() {
        // FIPS 197, appendix C.1, encrypts this plaintext to this ciphertext, under the key of bytes 0 to 15. As the
        // second block, the ciphertext XORs the chain to zeros. So the tag is the start of a zero block's ciphertext.
        let plain = u128::to_be_bytes(0x0011_2233_4455_6677_8899_AABB_CCDD_EEFF);
        let cipher = u128::to_be_bytes(0x69C4_E0D8_6A7B_0430_D8CD_B780_70B4_C55A);
        let tag = key().tag(&SignedBlocks([plain, cipher].map(u128::from_le_bytes)));
        let mut block = Block::default();
        key().0.encrypt_block(&mut block);
        assert_eq!(tag, u64_at(&block, 0));
        assert_eq!(tag, 0xC6A1_3B37_878F_5B82);
    }

    /// Returns a signed reply: worker 5 answers task 0x1234 of client 9, has 3 tasks left, and took 50 us.
    fn reply<const BLOCKS: usize>(addresses: &impl Addresses<BLOCKS>) -> Vec<u8> {
        let header = Header {
            code: Code::TaskDone,
            extended: true,
            authenticated: true,
            src: 5,
            dst: 9,
            qlen: 3,
            ..Header::new_task(1, 0x1234)
        };
        payload(addresses, header, 50_000, 0x0065_4A8B_2CD0_1234)
    }

    // promise: trust.3
    #[test]
    fn golden_bytes_of_an_authenticated_reply() {
        // From 10.0.2.11 to 10.0.1.2.
        let bytes = reply(&addresses(0x0A00_020B, 0x0A00_0102));
        let expected = [
            // Header: flags and code, pool, source, destination, queue length, task number.
            [0x62, 0, 1, 0, 5, 0, 9, 0, 3, 0x12, 0x34].as_slice(),
            // Extension: application, long task number, 50,000 ns, class 3, unused.
            &[0, 0, 0, 1, 0, 0, 0x12, 0x34, 0, 0, 0xC3, 0x50, 0, 3, 0, 0],
            // Sequence and tag.
            &[0x00, 0x65, 0x4A, 0x8B, 0x2C, 0xD0, 0x12, 0x34],
            &[0x0F, 0x2A, 0xC0, 0x9A, 0x58, 0xBC, 0x0F, 0xE3],
        ];
        assert_eq!(bytes, expected.concat());
    }

    // promise: trust.3
    #[test]
    fn golden_bytes_of_an_authenticated_reply_over_ipv6() {
        let address = |text: &str| text.parse::<std::net::Ipv6Addr>().unwrap().to_bits();
        let over_ipv6 = reply(&addresses_v6(address("fd00:2::b"), address("fd00:1::5")));
        let over_ipv4 = reply(&addresses(0x0A00_020B, 0x0A00_0102));
        // The payloads do not contain the addresses, so that only the tags differ.
        let (payload, tag) = over_ipv6.split_at(over_ipv6.len() - size_of::<u64>());
        assert_eq!(tag, [0xC0, 0xA9, 0xC1, 0xF3, 0x83, 0x98, 0x64, 0xCB]);
        assert_eq!(payload, &over_ipv4[..payload.len()]);
    }

    proptest! {
        // promise: trust.3
        #[test]
        fn any_changed_bit_invalidates_the_tag(
            (extended, more, is_v6) in any::<(bool, bool, bool)>(), fields: [u16; 5], service_ns: u32, sequence: u64,
            addresses: [u8; 32], bit: prop::sample::Index, count in 1..=BURST,
        ) {
            let [pool, src, dst, qlen, seq] = fields;
            let code = Code::TaskDone;
            let header = Header { code, extended, authenticated: true, more, pool, src, dst, qlen, seq };
            let (values, choices) = ((service_ns, sequence), (bit, count));
            // Two IPv4 addresses have 8 bytes.
            match addresses.first_chunk::<8>() {
                Some(&short) if !is_v6 => check_tag(header, values, short, choices)?,
                _ => check_tag(header, values, addresses, choices)?,
            }
        }
    }

    // promise: trust.3
    #[test]
    fn debug_output_hides_the_key() {
        // In any notation, the key's bytes from 0 to 15 have a digit 1.
        let shown = format!("{:?} {:#?}", key(), key());
        assert!(!shown.contains('1'), "{shown}");
    }
}
