//! A symmetric hash of the two hosts of a frame.

/// Maximum VLAN tags in front of the IP header.
const TAGS_MAX: usize = 2;

/// Source and destination of IPv4 behind the Ethernet header, and of IPv6.
const IPV4_ADDRESSES: [usize; 2] = [12, 16];
const IPV6_ADDRESSES: [usize; 2] = [8, 24];

/// Returns a hash of the two hosts of a frame: the same for both directions and for all their
/// frames, including fragments. Frames of many pairs spread evenly; take the hash modulo the number
/// of buckets.
///
/// The hash uses the IPv4 or IPv6 addresses behind up to two VLAN tags, and the MAC addresses of
/// all other frames and of those that end before the IP addresses do. It ignores the VLAN. A frame
/// without complete MAC addresses has hash 0. A sender can choose colliding addresses; a bound per
/// hash value then applies to all of them together.
///
/// The two addresses are mixed before they are added. Their exclusive or alone, on which the
/// symmetric hashes of NICs depend, is equal for 10.0.0.1 with 10.1.0.1 and for 10.0.0.2 with
/// 10.1.0.2, and so for all pairs between two sites with the same numbering. The hash uses only
/// 32-bit operations of classic BPF, so that a kernel filter can compute it.
#[inline]
#[must_use]
pub fn pair_hash(frame: &[u8]) -> u32 {
    let mut at = 12;
    for _ in 0..TAGS_MAX {
        if matches!(frame.get(at..at + 2), Some([0x81, 0x00] | [0x88, 0xa8])) {
            at += 4;
        }
    }
    let by_ip = match frame.get(at..at + 2) {
        Some([0x08, 0x00]) => pair::<4>(frame, at + 2, IPV4_ADDRESSES),
        Some([0x86, 0xdd]) => pair::<16>(frame, at + 2, IPV6_ADDRESSES),
        _ => None,
    };
    by_ip.or_else(|| pair::<6>(frame, 0, [0, 6])).map_or(0, scattered)
}

/// Returns the sum of both addresses' hashes, if the frame has them.
#[inline]
fn pair<const LEN: usize>(frame: &[u8], from: usize, places: [usize; 2]) -> Option<u32> {
    let [one, other] = places.map(|place| frame.get(from + place..)?.first_chunk::<LEN>());
    Some(mixed(one?).wrapping_add(mixed(other?)))
}

/// Hashes an address, four bytes at a time, then the remainder.
#[inline]
fn mixed(address: &[u8]) -> u32 {
    let (words, rest) = address.as_chunks::<4>();
    let words = words.iter().map(|word| u32::from_be_bytes(*word));
    let rest = rest.first_chunk::<2>().map(|rest| u16::from_be_bytes(*rest).into());
    words.chain(rest).fold(0, |hash, word| scattered(hash ^ word))
}

/// Makes every bit depend on all lower bits, and the low bits on the high ones. The factor derives
/// from the golden ratio.
#[inline]
fn scattered(word: u32) -> u32 {
    let word = word.wrapping_mul(FACTOR);
    word ^ (word >> SHIFT)
}

/// Multiplier and right shift of `scattered`.
const FACTOR: u32 = 0x9e37_79b1;
const SHIFT: u32 = 15;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A frame with these tags and addresses, and its counterpart in the other direction.
    fn both_ways(tags: usize, source: &[u8], destination: &[u8], payload: &[u8]) -> [Vec<u8>; 2] {
        let is_ipv4 = source.len() == 4;
        [(source, destination), (destination, source)].map(|(source, destination)| {
            let mut frame = [[source[0] | 2; 6], [destination[0] | 2; 6]].concat();
            for tag in [&[0x81, 0x00, 0x60, 0x05], &[0x88, 0xa8, 0x00, 0x64]].iter().take(tags) {
                frame.extend_from_slice(*tag);
            }
            frame.extend(if is_ipv4 { [0x08, 0x00] } else { [0x86, 0xdd] });
            frame.extend(vec![0x45; if is_ipv4 { 12 } else { 8 }]);
            frame.extend([source, destination, payload].concat());
            frame
        })
    }

    proptest! {
        #[test]
        fn both_directions_are_one(
            tags in 0..=2_usize,
            ipv4 in any::<Option<[[u8; 4]; 2]>>(),
            ipv6 in any::<[[u8; 16]; 2]>(),
            payloads in any::<[Vec<u8>; 2]>(),
        ) {
            let [source, destination]: [&[u8]; 2] = match &ipv4 {
                Some([source, destination]) => [source, destination],
                None => [&ipv6[0], &ipv6[1]],
            };
            let [there, _] = both_ways(tags, source, destination, &payloads[0]);
            let [_, back] = both_ways(tags, source, destination, &payloads[1]);
            prop_assert_eq!(pair_hash(&there), pair_hash(&back));
            let [untagged, _] = both_ways(0, source, destination, &[]);
            prop_assert_eq!(pair_hash(&there), pair_hash(&untagged), "the VLAN plays no part");
        }

        #[test]
        fn other_frames_go_by_their_macs(macs in any::<[[u8; 6]; 2]>(), rest in any::<Vec<u8>>()) {
            let frame = |macs: [[u8; 6]; 2]| [&macs.concat(), &[0x88, 0xb5][..], &rest].concat();
            let [one, other] = macs;
            prop_assert_eq!(pair_hash(&frame([one, other])), pair_hash(&frame([other, one])));
        }

        #[test]
        fn any_bytes_have_a_number(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
            let number = pair_hash(&bytes);
            prop_assert!(bytes.len() >= 12 || number == 0);
        }
    }

    #[test]
    fn a_frame_cut_short_goes_by_its_macs() {
        let [whole, _] = both_ways(1, &[10, 0, 0, 1], &[10, 0, 0, 2], &[]);
        let by_macs = pair_hash(&[&whole[..12], &[0x88, 0xb5]].concat());
        assert_ne!(pair_hash(&whole), by_macs);
        for len in 12..whole.len() {
            assert_eq!(pair_hash(&whole[..len]), by_macs, "{len}");
        }
        assert_eq!(pair_hash(&whole[..11]), 0);
    }

    /// Equal numbers of hosts at both sites, each with its partner and with all.
    #[test]
    fn pairs_of_hosts_spread_evenly() {
        let number = |one: [u8; 4], other: [u8; 4]| pair_hash(&both_ways(0, &one, &other, &[])[0]);
        for cores in [2, 3, 4, 8, 16] {
            for (pairs, what) in [
                (
                    (1..=240)
                        .map(|host| number([10, 0, 0, host], [10, 1, 0, host]))
                        .collect::<Vec<u32>>(),
                    "partners",
                ),
                (
                    (1..=240).map(|host| number([10, 0, 0, 7], [10, 1, 0, host])).collect(),
                    "one to all",
                ),
                (
                    (0..240)
                        .map(|at| number([10, 0, 0, 1 + at / 16], [10, 0, 0, 101 + at % 16]))
                        .collect(),
                    "all to all",
                ),
            ] {
                let mut loads = vec![0_usize; cores];
                for pair in pairs {
                    loads[pair as usize % cores] += 1;
                }
                // Five standard deviations of a uniform choice.
                let mean = 240.0 / cores as f64;
                let most = mean + 5.0 * mean.sqrt();
                assert!(
                    loads.iter().all(|load| (*load as f64) < most && *load > 0),
                    "{what}, {cores}: {loads:?}"
                );
            }
        }
    }
}
