//! Ethernet II: addresses and EtherType of a frame.

use std::fmt;
use std::str::FromStr;

/// Number of bytes of the header.
pub const LEN: usize = 14;
/// EtherType of IPv4.
pub const IPV4: u16 = 0x0800;
/// EtherType of IPv6.
pub const IPV6: u16 = 0x86DD;
/// EtherType of ARP.
pub const ARP: u16 = 0x0806;

/// A MAC address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Mac(pub [u8; 6]);

impl Mac {
    /// Broadcast address.
    pub const BROADCAST: Self = Self([0xFF; 6]);

    /// Returns the address as the low 48 bits of a number, first byte lowest, to compare and write whole words.
    #[inline]
    #[must_use]
    pub const fn to_bits(self) -> u64 {
        let [a, b, c, d, e, f] = self.0;
        u64::from_le_bytes([a, b, c, d, e, f, 0, 0])
    }

    /// Creates the address from the low 48 bits of a number.
    #[inline]
    #[must_use]
    pub const fn from_bits(bits: u64) -> Self {
        let [a, b, c, d, e, f, _, _] = bits.to_le_bytes();
        Self([a, b, c, d, e, f])
    }

    /// Returns true for a group address (including broadcast).
    #[must_use]
    pub const fn is_group(self) -> bool {
        self.0[0] & 1 == 1
    }

    /// Returns true for a host's address: neither a group's nor all zeros.
    #[must_use]
    pub fn is_host(self) -> bool {
        !self.is_group() && self != Self::default()
    }
}

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl FromStr for Mac {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let refuse = || {
            format!(
                "`{text}` is not a MAC address; write six bytes in hex, as in 02:00:00:00:02:0b"
            )
        };
        let mut mac = [0; 6];
        let mut parts = text.split(':');
        for byte in &mut mac {
            let part = parts
                .next()
                .filter(|part| part.len() == 2 && part.bytes().all(|b| b.is_ascii_hexdigit()))
                .ok_or_else(refuse)?;
            *byte = u8::from_str_radix(part, 16).map_err(|_| refuse())?;
        }
        if parts.next().is_some() {
            return Err(refuse());
        }
        Ok(Self(mac))
    }
}

/// Returns the destination of a frame of at least [`LEN`] bytes.
#[inline]
#[must_use]
pub fn dst(frame: &[u8]) -> Mac {
    mac_at(frame, 0)
}

/// Returns true if the frame, of at least [`LEN`] bytes, is addressed to `mac`.
#[inline]
#[must_use]
pub fn is_to(frame: &[u8], mac: Mac) -> bool {
    let mut head = [0; 8];
    head.copy_from_slice(&frame[..8]);
    let head = u64::from_le_bytes(head);
    // The shift drops the two bytes after the address.
    (head ^ mac.to_bits()) << 16 == 0
}

/// Returns true if the frame, of at least [`LEN`] bytes, is from `mac`.
#[inline]
#[must_use]
pub fn is_from(frame: &[u8], mac: Mac) -> bool {
    // The last two bytes of the destination, then the source: one word.
    let mut tail = [0; 8];
    tail.copy_from_slice(&frame[4..12]);
    u64::from_le_bytes(tail) >> 16 == mac.to_bits()
}

/// Returns the source of a frame of at least [`LEN`] bytes.
#[inline]
#[must_use]
pub fn src(frame: &[u8]) -> Mac {
    mac_at(frame, 6)
}

/// Reads an address at `offset`, by one copy, because byte-wise indexing compiles to one load per byte.
#[inline]
fn mac_at(frame: &[u8], offset: usize) -> Mac {
    let mut mac = [0; 6];
    mac.copy_from_slice(&frame[offset..offset + 6]);
    Mac(mac)
}

/// Returns the EtherType of a frame of at least [`LEN`] bytes.
#[inline]
#[must_use]
pub fn ether_type(frame: &[u8]) -> u16 {
    super::u16_at(frame, 12)
}

/// Writes both addresses and keeps the EtherType.
#[inline]
pub fn emit_addresses(frame: &mut [u8], dst: Mac, src: Mac) {
    emit_bits(frame, dst.to_bits(), src.to_bits());
}

/// Same as [`emit_addresses`], for addresses as bits ([`Mac::to_bits`]). The upper 16 bits of `dst` must be zero.
#[inline(always)]
pub fn emit_bits(frame: &mut [u8], dst: u64, src: u64) {
    // Two whole words: the destination with the source's first two bytes, and the source's last four.
    frame[0..8].copy_from_slice(&(dst | src << 48).to_le_bytes());
    frame[8..12].copy_from_slice(&((src >> 16) as u32).to_le_bytes());
}

/// Writes a header of [`LEN`] bytes.
pub fn emit(frame: &mut [u8], dst: Mac, src: Mac, ether_type: u16) {
    emit_addresses(frame, dst, src);
    super::put_u16(frame, 12, ether_type);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mac_text_round_trips_and_refuses() {
        let mac: Mac = "02:00:0a:FF:02:0b".parse().unwrap();
        assert_eq!(mac.to_string(), "02:00:0a:ff:02:0b");
        assert_eq!(Mac::from_bits(mac.to_bits()), mac);
        for bad in [
            "",
            "02:00:00:00:02",
            "02:00:00:00:02:0b:01",
            "2:0:0:0:2:b",
            "02-00-00-00-02-0b",
            "02:00:00:00:02:0g",
            "+2:00:00:00:02:0b",
        ] {
            assert!(bad.parse::<Mac>().is_err(), "{bad}");
        }
    }
}
