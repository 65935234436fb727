//! The IPv4 identification and the ICRC, which covers it.
//!
//! A CRC is linear: packets that differ only in the identification have ICRCs that differ by that
//! difference, as a polynomial, times x^(32+8n) modulo the CRC's polynomial, where n is the number
//! of covered bytes behind it. An ICRC can therefore be converted from one identification to
//! another without reading the packet. Conversely, the difference between the computed and the
//! received ICRC, divided by the same power, is the identification, unless the packet is damaged:
//! then the quotient has more than 16 bits, except for one damaged packet in 65536, most of which
//! the UDP checksum detects.
//!
//! Polynomials have CRC-32's bit order: bit 31 is the coefficient of x^0, bit 0 that of x^31.

use crate::headers::PACKET_BYTES_MIN;

/// The CRC-32 polynomial.
const POLYNOMIAL: u32 = 0xedb8_8320;
/// x^0.
const ONE: u32 = 1 << 31;
/// x^1.
const X: u32 = 1 << 30;
/// Covered bytes behind the identification of an empty packet: 14 of IP, 8 of UDP, minus 4 of ICRC.
const BEHIND: u32 = 18;

/// `a` times `b`.
const fn product(mut a: u32, mut b: u32) -> u32 {
    let mut sum = 0;
    while a != 0 {
        if a & ONE != 0 {
            sum ^= b;
        }
        a <<= 1;
        // Times x; the coefficient of x^32 is reduced to the polynomial's other terms.
        b = (b >> 1) ^ (POLYNOMIAL & (b & 1).wrapping_neg());
    }
    sum
}

/// x to the power of `exponent`.
const fn power_of_x(mut exponent: u32) -> u32 {
    let mut power = ONE;
    let mut square = X;
    while exponent != 0 {
        if exponent & 1 != 0 {
            power = product(power, square);
        }
        square = product(square, square);
        exponent >>= 1;
    }
    power
}

/// x to the power of `-exponent`; the order of x is 2^32 - 1.
const fn power_of_inverse_x(exponent: u32) -> u32 {
    power_of_x(u32::MAX - exponent)
}

/// Contribution of an IPv4 identification to the ICRC, for packets (BTH to ICRC) up to a maximum
/// length.
///
/// The IP header must have no options, and be followed by UDP.
#[derive(Clone, Debug)]
pub struct Identification {
    /// x^(32+8n) and its inverse for packets of 0, 4, 8 … bytes.
    powers: Box<[(u32, u32)]>,
}

impl Identification {
    /// For packets of up to `packet_bytes_max` bytes. Takes 2 bytes of memory per packet byte.
    #[must_use]
    pub fn new(packet_bytes_max: usize) -> Self {
        let (step, step_back) = (power_of_x(32), power_of_inverse_x(32));
        let mut power = (power_of_x(32 + 8 * BEHIND), power_of_inverse_x(32 + 8 * BEHIND));
        let powers = (0..=packet_bytes_max / 4)
            .map(|_| {
                let this = power;
                power = (product(power.0, step), product(power.1, step_back));
                this
            })
            .collect();
        Self { powers }
    }

    /// The powers for a packet of this length; `None` if no RoCEv2 packet has it.
    #[inline]
    fn powers(&self, packet_bytes: usize) -> Option<(u32, u32)> {
        if !packet_bytes.is_multiple_of(4) || packet_bytes < PACKET_BYTES_MIN {
            return None;
        }
        self.powers.get(packet_bytes / 4).copied()
    }

    /// Difference of the ICRCs (exclusive or; read as little-endian) of two packets of
    /// `packet_bytes` bytes whose identifications differ by `difference` (exclusive or). 0 for
    /// lengths that no RoCEv2 packet has.
    #[inline]
    #[must_use]
    pub fn contribution(&self, packet_bytes: usize, difference: u16) -> u32 {
        // Network byte order; within a byte, the lowest bit is the highest power.
        let difference = u32::from(difference.swap_bytes()) << 16;
        self.powers(packet_bytes).map_or(0, |(power, _)| product(difference, power))
    }

    /// The inverse of [`Identification::contribution`]: the difference of the identifications of
    /// two packets whose ICRCs differ by `contribution`. `None` if no identification explains it.
    #[inline]
    #[must_use]
    pub fn explain(&self, packet_bytes: usize, contribution: u32) -> Option<u16> {
        let (_, inverse) = self.powers(packet_bytes)?;
        let difference = product(contribution, inverse);
        if difference & 0xffff != 0 {
            return None;
        }
        Some(((difference >> 16) as u16).swap_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn powers_and_inverse_powers_cancel() {
        for exponent in [0, 1, 31, 32, 33, 1000, 65535 * 8, u32::MAX - 1] {
            assert_eq!(
                product(power_of_x(exponent), power_of_inverse_x(exponent)),
                ONE,
                "{exponent}"
            );
        }
        assert_eq!(power_of_x(32), POLYNOMIAL);
    }

    #[test]
    fn contribution_is_the_difference_of_crcs() {
        let table = Identification::new(4200);
        for packet_bytes in [16_usize, 20, 1040, 4200] {
            let covered = 8 + 20 + 8 + packet_bytes - 4;
            let mut bytes: Vec<u8> = (0..covered).map(|at| (at * 31) as u8).collect();
            bytes[12..14].copy_from_slice(&[0, 0]);
            let with_zero = crc32fast::hash(&bytes);
            for id in [1_u16, 2, 0x0100, 0x8000, 0x1234, 0xffff] {
                bytes[12..14].copy_from_slice(&id.to_be_bytes());
                let difference = crc32fast::hash(&bytes) ^ with_zero;
                assert_eq!(
                    table.contribution(packet_bytes, id),
                    difference,
                    "{id:#x} in {packet_bytes}"
                );
                assert_eq!(table.explain(packet_bytes, difference), Some(id));
            }
        }
    }

    /// One damaged packet in 65536 passes by chance, and similar ones with it.
    #[test]
    fn hardly_a_damaged_byte_is_taken_for_an_identification() {
        let table = Identification::new(4200);
        let mut bytes = vec![7_u8; 8 + 20 + 8 + 1040 - 4];
        let right = crc32fast::hash(&bytes);
        let (mut damages, mut explained) = (0, 0);
        for at in 14..bytes.len() {
            for damage in (1..=255).step_by(16) {
                bytes[at] ^= damage;
                explained +=
                    u32::from(table.explain(1040, crc32fast::hash(&bytes) ^ right).is_some());
                bytes[at] ^= damage;
                damages += 1;
            }
        }
        assert!(explained < damages / 1000, "{explained} of {damages}");
    }

    #[test]
    fn impossible_lengths_change_and_explain_nothing() {
        let table = Identification::new(4200);
        for packet_bytes in [0, 4, 12, 15, 17, 4204, 1 << 20] {
            assert_eq!(table.contribution(packet_bytes, 1), 0);
            assert_eq!(table.explain(packet_bytes, 0), None);
        }
    }
}
