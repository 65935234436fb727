//! Repairs frames with open offloads that arrive without a description of them.
//!
//! A sender on this machine leaves the checksum of TCP and UDP open, with the sum of the pseudo
//! header in its place, and hands over TCP segments of up to 64 KiB for a device to split. If the
//! kernel describes neither (XDP), this module detects the former by that sum, which one in 65536
//! valid checksums equals, so a match is verified; and the latter by the length. The sender's
//! segment size is unknown, so segments become as long as the MTU allows.
//!
//! Only the outermost TCP or UDP header is examined: frames inside tunnels are not repaired.

use crate::checksum;
use crate::layers::{
    ETHERTYPE_IPV4, ETHERTYPE_IPV6, Layers, PROTOCOL_TCP, PROTOCOL_UDP, behind_ethernet, behind_ip,
};
use crate::segment::{
    NotUnderstood, Offload, Splitter, TCP_CHECKSUM, UDP_CHECKSUM, get, pseudo_sum, put,
};

/// The result of examining a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Found {
    /// The frame is complete.
    Whole,
    /// The checksum was open, and has been filled in.
    Completed,
    /// The frame exceeds the MTU; [`Repair::next_part`] returns its parts.
    ToSplit,
    /// The frame exceeds the MTU and cannot be split: it is not TCP, or its headers are not
    /// understood.
    NotSplittable,
}

/// Repairs one frame at a time.
pub struct Repair {
    splitter: Splitter,
}

impl Default for Repair {
    fn default() -> Self {
        Self::new()
    }
}

impl Repair {
    /// Creates an idle repairer.
    #[must_use]
    pub fn new() -> Self {
        Self { splitter: Splitter::IDLE }
    }

    /// True if no frame is being split.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.splitter.is_done()
    }

    /// Examines a frame of arbitrary bytes from an interface with this MTU in bytes, and fills in
    /// an open checksum. Abandons a frame that is being split.
    pub fn look(&mut self, frame: &mut [u8], mtu: usize) -> Found {
        let Ok((ethertype, ip)) = behind_ethernet(frame, 0) else { return Found::Whole };
        if !matches!(ethertype, ETHERTYPE_IPV4 | ETHERTYPE_IPV6) {
            return Found::Whole;
        }
        if frame.len() - ip.min(frame.len()) > mtu {
            let split = self.split(frame, ethertype == ETHERTYPE_IPV6, ip, mtu);
            return if split.is_ok() { Found::ToSplit } else { Found::NotSplittable };
        }
        if complete(frame, ethertype, ip).is_ok_and(|done| done) {
            Found::Completed
        } else {
            Found::Whole
        }
    }

    /// Builds the next part of the frame that is being split in `frame`, which must be that frame.
    /// There must be one: see [`Repair::is_done`].
    pub fn next_part<'a>(&mut self, frame: &'a mut [u8]) -> &'a mut [u8] {
        self.splitter.next(frame)
    }

    fn split(
        &mut self,
        frame: &[u8],
        is_ipv6: bool,
        ip: usize,
        mtu: usize,
    ) -> Result<(), NotUnderstood> {
        let layers = Layers::find(frame, PROTOCOL_TCP, None)?;
        let headers = layers.payload - ip;
        let segment_bytes = mtu.checked_sub(headers).ok_or(NotUnderstood)?;
        self.splitter.begin(frame, &Offload::tcp(is_ipv6, segment_bytes))
    }
}

/// Fills in the checksum if it is open, and returns whether it was.
fn complete(frame: &mut [u8], ethertype: u16, ip: usize) -> Result<bool, NotUnderstood> {
    let (protocol, transport) = behind_ip(frame, ethertype, ip)?;
    let place = match protocol {
        PROTOCOL_TCP => transport + TCP_CHECKSUM,
        PROTOCOL_UDP => transport + UDP_CHECKSUM,
        _ => return Ok(false),
    };
    // Padding may follow.
    let end = if ethertype == ETHERTYPE_IPV4 {
        frame.get(ip + 2..ip + 4).map(|field| ip + usize::from(get(field, 0)))
    } else {
        frame.get(ip + 4..ip + 6).map(|field| ip + 40 + usize::from(get(field, 0)))
    };
    let end = end.filter(|end| place + 2 <= *end && *end <= frame.len()).ok_or(NotUnderstood)?;
    let field = get(frame, place);
    if protocol == PROTOCOL_UDP && field == 0 {
        return Ok(false);
    }
    let length = u16::try_from(end - transport).map_err(|_| NotUnderstood)?;
    let pseudo = checksum::add(pseudo_sum(frame, ip, protocol), length);
    if !is_same_sum(field, pseudo) {
        return Ok(false);
    }
    let sum = checksum::sum(&frame[transport..end]);
    if is_same_sum(checksum::add(sum, pseudo), u16::MAX) {
        return Ok(false);
    }
    put(frame, place, checksum::of(sum));
    Ok(true)
}

/// In ones' complement, all ones also represent zero.
fn is_same_sum(one: u16, other: u16) -> bool {
    let normal = |sum: u16| if sum == u16::MAX { 0 } else { sum };
    normal(one) == normal(other)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::segment::tests::Header::{Ethernet, Ipv4, Ipv6, Tcp, Udp};
    use crate::segment::tests::{Header, build, check};
    use proptest::prelude::*;

    const MTU: usize = 9000;

    fn headers() -> impl Strategy<Value = Vec<Header>> {
        let ip = prop_oneof![
            (0..3_usize).prop_map(|options| Ipv4 { options }),
            (0..2_usize).prop_map(|extensions| Ipv6 { extensions })
        ];
        let transport = prop_oneof![(0..4_usize).prop_map(|options| Tcp { options }), Just(Udp)];
        ((0..3_usize).prop_map(|tags| Ethernet { tags }), ip, transport)
            .prop_map(|(ethernet, ip, transport)| vec![ethernet, ip, transport])
    }

    proptest! {
        #[test]
        fn an_open_checksum_is_filled_in_and_a_right_one_left(
            headers in headers(),
            payload in proptest::collection::vec(any::<u8>(), 1..1400),
            padding in 0..20_usize,
        ) {
            // A single segment, whose lengths are already right.
            let (mut frame, _) = build(&headers, &payload, payload.len(), true);
            let whole = frame.len();
            frame.resize(whole + padding, 0);
            prop_assert_eq!(Repair::new().look(&mut frame, MTU), Found::Completed);
            check(&frame[..whole], &headers, 0);
            let right = frame.clone();
            prop_assert_eq!(Repair::new().look(&mut frame, MTU), Found::Whole);
            prop_assert_eq!(frame, right);
        }

        #[test]
        fn long_tcp_is_split_to_the_mtu_and_nothing_is_lost(
            headers in headers().prop_filter("TCP", |headers| headers[2] != Udp),
            bytes in 1500..60_000_usize,
        ) {
            let payload: Vec<u8> = (0..bytes).map(|at| at as u8).collect();
            let (mut frame, _) = build(&headers, &payload, 1000, true);
            let mut repair = Repair::new();
            let mtu = 1500;
            prop_assert_eq!(repair.look(&mut frame, mtu), Found::ToSplit);
            let (mut number, mut came) = (0, Vec::new());
            while !repair.is_done() {
                let part = repair.next_part(&mut frame).to_vec();
                check(&part, &headers, number);
                let layers = Layers::find(&part, PROTOCOL_TCP, None).unwrap();
                prop_assert!(part.len() - layers.ips()[0] <= mtu);
                came.extend_from_slice(&part[layers.payload..]);
                number += 1;
            }
            prop_assert!(came == payload);
        }

        #[test]
        fn any_bytes_are_looked_at(
            mut frame in proptest::collection::vec(any::<u8>(), 0..3000),
            mtu in 0..3000_usize,
        ) {
            let mut repair = Repair::new();
            let _ = repair.look(&mut frame, mtu);
            while !repair.is_done() {
                repair.next_part(&mut frame);
            }
        }

        #[test]
        fn headers_with_any_byte_wrong_are_looked_at(
            headers in headers(),
            payload in proptest::collection::vec(any::<u8>(), 1..3000),
            at in any::<proptest::sample::Index>(),
            byte in any::<u8>(),
            cut in any::<proptest::sample::Index>(),
            mtu in 60..2000_usize,
        ) {
            let (mut frame, _) = build(&headers, &payload, 500, true);
            let place = at.index(frame.len().min(120));
            frame[place] = byte;
            frame.truncate(cut.index(frame.len()) + 1);
            let mut repair = Repair::new();
            let _ = repair.look(&mut frame, mtu);
            while !repair.is_done() {
                repair.next_part(&mut frame);
            }
        }
    }

    #[test]
    fn long_datagrams_are_not_split() {
        let (mut frame, _) =
            build(&[Ethernet { tags: 0 }, Ipv4 { options: 0 }, Udp], &[7; 3000], 1000, true);
        assert_eq!(Repair::new().look(&mut frame, 1500), Found::NotSplittable);
    }

    #[test]
    fn a_datagram_without_checksum_stays_without() {
        let (mut frame, _) =
            build(&[Ethernet { tags: 0 }, Ipv4 { options: 0 }, Udp], &[7; 300], 300, true);
        frame[14 + 20 + 6..14 + 20 + 8].fill(0);
        let before = frame.clone();
        assert_eq!(Repair::new().look(&mut frame, 1500), Found::Whole);
        assert_eq!(frame, before);
    }
}
