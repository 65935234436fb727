//! Symmetric hashes: of the two hosts of a frame, and of its flow.

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
    let at = type_at(frame);
    let by_ip = match frame.get(at..at + 2) {
        Some([0x08, 0x00]) => pair::<4>(frame, at + 2, IPV4_ADDRESSES),
        Some([0x86, 0xdd]) => pair::<16>(frame, at + 2, IPV6_ADDRESSES),
        _ => None,
    };
    by_ip.or_else(|| pair::<6>(frame, 0, [0, 6])).map_or(0, scattered)
}

/// Returns a hash of the flow of a frame: of its hosts as in [`pair_hash`], and of its ports if it
/// is an unfragmented TCP or UDP packet without IP options or extension headers.
#[must_use]
pub fn flow_hash(frame: &[u8]) -> u32 {
    let ip = type_at(frame) + 2;
    let ports = match (frame.get(ip - 2..ip), frame.get(ip..ip + 10)) {
        (Some([0x08, 0x00]), Some([0x45, _, _, _, _, _, flags, offset, _, protocol]))
            if is_of_ports(*protocol) && (flags & 0x3f, *offset) == (0, 0) =>
        {
            frame.get(ip + 20..ip + 24)
        }
        (Some([0x86, 0xdd]), Some([_, _, _, _, _, _, next_header, ..]))
            if is_of_ports(*next_header) =>
        {
            frame.get(ip + 40..ip + 44)
        }
        _ => None,
    };
    let ports = ports.and_then(|ports| pair::<2>(ports, 0, [0, 2]));
    scattered(pair_hash(frame).wrapping_add(ports.unwrap_or(0)))
}

/// `true` for the IP protocols TCP and UDP.
fn is_of_ports(protocol: u8) -> bool {
    matches!(protocol, 6 | 17)
}

/// Offset of the EtherType behind the VLAN tags.
#[inline]
fn type_at(frame: &[u8]) -> usize {
    let mut at = 12;
    for _ in 0..TAGS_MAX {
        if matches!(frame.get(at..at + 2), Some([0x81, 0x00] | [0x88, 0xa8])) {
            at += 4;
        }
    }
    at
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

    /// A packet of `protocol` from port 1000 to `port`, cut behind its ports; and its answer.
    fn packets(version: u8, protocol: u8, port: u16) -> [Vec<u8>; 2] {
        let hosts: [&[u8]; 2] = [&[7; 4], &[9; 4]];
        let of = |[source, destination]: [&[u8]; 2], ports: [u16; 2]| {
            let mut frame = vec![2; 12];
            if version == 4 {
                frame.extend([0x08, 0x00, 0x45, 0, 0, 40, 0, 1, 0x40, 0, 64, protocol, 0, 0]);
                frame.extend([source, destination].concat());
            } else {
                frame.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, 20, protocol, 64]);
                frame.extend([source, destination].map(|address| address.repeat(4)).concat());
            }
            frame.extend(ports.map(u16::to_be_bytes).concat());
            frame
        };
        [of(hosts, [1000, port]), of([hosts[1], hosts[0]], [port, 1000])]
    }

    #[test]
    fn flows_of_one_pair_differ_by_their_ports_and_answers_belong_to_them() {
        for version in [4, 6] {
            for protocol in [6, 17] {
                let [one, answer] = packets(version, protocol, 80);
                let [other, _] = packets(version, protocol, 81);
                assert_eq!(flow_hash(&one), flow_hash(&answer));
                assert_ne!(flow_hash(&one), flow_hash(&other));
                let cut = &one[..one.len() - 1];
                assert_eq!(flow_hash(cut), flow_hash(&other[..cut.len()]), "without ports");
            }
            let [one, other] = [80, 81].map(|port| flow_hash(&packets(version, 1, port)[0]));
            assert_eq!(one, other, "ICMP has no ports");
        }
        let fragments = [80, 81].map(|port| {
            let [mut fragment, _] = packets(4, 6, port);
            fragment[14 + 6] = 0x20;
            flow_hash(&fragment)
        });
        assert_eq!(fragments[0], fragments[1], "fragments have no ports");
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
