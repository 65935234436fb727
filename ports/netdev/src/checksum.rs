//! The checksums of IP, TCP, UDP and SCTP.

/// Ones'-complement sum of the big-endian 16-bit words in `bytes`, with an odd length padded by a
/// zero byte.
pub(crate) fn sum(bytes: &[u8]) -> u16 {
    // The byte order and width of additions do not matter, with end-around carry (RFC 1071).
    let mut total = 0u64;
    let (words, rest) = bytes.as_chunks::<4>();
    for word in words {
        total += u64::from(u32::from_ne_bytes(*word));
    }
    let mut last = [0; 4];
    last[..rest.len()].copy_from_slice(rest);
    total += u64::from(u32::from_ne_bytes(last));
    while total > 0xffff {
        total = (total & 0xffff) + (total >> 16);
    }
    u16::from_be(total as u16)
}

/// Ones'-complement addition.
pub(crate) fn add(a: u16, b: u16) -> u16 {
    let (total, carry) = a.overflowing_add(b);
    total + u16::from(carry)
}

/// The checksum for `sum`. Never 0, which means "none" in UDP; 0xffff is equivalent elsewhere.
pub(crate) fn of(sum: u16) -> u16 {
    match !sum {
        0 => 0xffff,
        checksum => checksum,
    }
}

/// CRC32c of `bytes`, as in SCTP.
pub(crate) fn crc32c(bytes: impl Iterator<Item = u8>) -> u32 {
    !bytes.fold(u32::MAX, |crc, byte| (crc >> 8) ^ CRC32C[usize::from(crc as u8 ^ byte)])
}

const CRC32C: [u32; 256] = {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut crc = byte as u32;
        let mut bit = 0;
        while bit < 8 {
            crc = (crc >> 1) ^ (if crc & 1 == 1 { 0x82f6_3b78 } else { 0 });
            bit += 1;
        }
        table[byte] = crc;
        byte += 1;
    }
    table
};

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn sums_the_example_of_rfc_1071() {
        assert_eq!(sum(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7]), 0xddf2);
    }

    #[test]
    fn has_the_check_value_of_crc32c() {
        assert_eq!(crc32c(b"123456789".iter().copied()), 0xe306_9283);
    }

    proptest! {
        #[test]
        fn sums_as_word_by_word(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let expected = bytes.chunks(2).fold(0, |total, pair| {
                add(total, u16::from_be_bytes([pair[0], pair.get(1).copied().unwrap_or(0)]))
            });
            prop_assert_eq!(sum(&bytes), expected);
        }

        #[test]
        fn what_has_its_checksum_sums_to_all_ones(
            mut bytes in proptest::collection::vec(any::<u8>(), 2..200),
        ) {
            bytes[..2].fill(0);
            let checksum = of(sum(&bytes));
            bytes[..2].copy_from_slice(&checksum.to_be_bytes());
            prop_assert_eq!(sum(&bytes), 0xffff);
        }
    }
}
