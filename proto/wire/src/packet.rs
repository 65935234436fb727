//! Read-only view of the headers of a RoCEv2 frame.

use crate::{
    Aeth, AtomicAckEth, AtomicEth, Bth, Deth, Ipv4Fragmentation, Layout, Malformed, Opcode, Path,
    Reth, Udp,
};
use longhaul_units::{Psn, Qpn, RKey};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// View over the headers of one RoCEv2 frame, from the destination MAC to the last extended header.
#[derive(Clone, Copy, Debug)]
pub struct Packet<'a> {
    head: &'a [u8],
    offsets: Offsets,
}

/// A [`Layout`] in one register: packets are passed by value, and a copy in pieces would stall the
/// following loads. All headers are within the first 255 bytes.
#[derive(Clone, Copy, Debug)]
struct Offsets {
    ip: u8,
    udp: u8,
    bth: u8,
    payload: u8,
    is_ipv6: bool,
}

impl<'a> Packet<'a> {
    /// `Ok(None)` when the frame is not RoCEv2.
    #[inline]
    pub fn parse(head: &'a [u8]) -> Result<Option<Self>, Malformed> {
        Ok(Layout::find(head)?.map(|Layout { ip, is_ipv6, udp, bth, payload }| Packet {
            head,
            offsets: Offsets {
                ip: ip as u8,
                udp: udp as u8,
                bth: bth as u8,
                payload: payload as u8,
                is_ipv6,
            },
        }))
    }

    /// Header offsets.
    #[inline]
    pub fn layout(&self) -> Layout {
        let Offsets { ip, udp, bth, payload, is_ipv6 } = self.offsets;
        Layout {
            ip: usize::from(ip),
            is_ipv6,
            udp: usize::from(udp),
            bth: usize::from(bth),
            payload: usize::from(payload),
        }
    }

    /// All header bytes, up to the payload.
    pub fn head(&self) -> &'a [u8] {
        &self.head[..self.layout().payload]
    }

    // `Layout::find` checked every offset used below against the length, so this is `None` only for
    // an opcode without the requested header.
    #[inline]
    fn array<const N: usize>(&self, at: usize) -> Option<&'a [u8; N]> {
        self.head.get(at..at + N)?.try_into().ok()
    }

    /// The opcode alone.
    #[inline]
    pub fn opcode(&self) -> Opcode {
        Opcode(self.head[self.layout().bth])
    }

    /// The version of the base transport header alone.
    #[inline]
    pub fn version(&self) -> u8 {
        self.head[self.layout().bth + 1] & 0xf
    }

    /// The PSN alone.
    #[inline]
    pub fn psn(&self) -> Psn {
        self.bth().psn
    }

    /// The destination QP alone.
    #[inline]
    pub fn dest_qp(&self) -> Qpn {
        self.bth().dest_qp
    }

    /// The base transport header.
    #[inline]
    pub fn bth(&self) -> Bth {
        match self.array(self.layout().bth) {
            Some(b) => Bth::read(b),
            None => unreachable!("Layout::find checked the BTH"),
        }
    }

    fn extended(&self) -> usize {
        self.layout().bth + Bth::LEN
    }

    /// RETH, when the opcode has one.
    #[inline]
    pub fn reth(&self) -> Option<Reth> {
        if !self.opcode().has_reth() {
            return None;
        }
        self.array(self.extended()).map(Reth::read)
    }

    /// AETH, when the opcode has one.
    #[inline]
    pub fn aeth(&self) -> Option<Aeth> {
        if !self.opcode().has_aeth() {
            return None;
        }
        self.array(self.extended()).map(Aeth::read)
    }

    /// DETH, when the opcode has one.
    pub fn deth(&self) -> Option<Deth> {
        if !self.opcode().has_deth() {
            return None;
        }
        self.array(self.extended()).map(Deth::read)
    }

    /// AtomicETH, when the opcode has one.
    pub fn atomic_eth(&self) -> Option<AtomicEth> {
        if !self.opcode().has_atomic() {
            return None;
        }
        self.array(self.extended()).map(AtomicEth::read)
    }

    /// The original value of an atomic ACK.
    pub fn atomic_ack_eth(&self) -> Option<AtomicAckEth> {
        if self.opcode() != Opcode::RC_ATOMIC_ACK {
            return None;
        }
        self.array(self.extended() + Aeth::LEN)
            .map(|b| AtomicAckEth { original: u64::from_be_bytes(*b) })
    }

    /// Immediate data in network byte order, when the opcode has it.
    #[inline]
    pub fn immediate(&self) -> Option<[u8; 4]> {
        if !self.opcode().has_immediate() {
            return None;
        }
        self.array(self.layout().payload - 4).copied()
    }

    /// The rkey to invalidate, when the opcode has it.
    pub fn invalidate(&self) -> Option<RKey> {
        if !self.opcode().has_invalidate() {
            return None;
        }
        self.array(self.layout().payload - 4).map(|b| RKey(u32::from_be_bytes(*b)))
    }

    /// IPv4 ToS or IPv6 traffic class: DSCP and ECN.
    #[inline]
    pub fn traffic_class(&self) -> u8 {
        let ip = self.layout().ip;
        if self.layout().is_ipv6 {
            self.head[ip] << 4 | self.head[ip + 1] >> 4
        } else {
            self.head[ip + 1]
        }
    }

    /// IPv4 TTL or IPv6 hop limit.
    pub fn hop_limit(&self) -> u8 {
        self.head[self.layout().ip + if self.layout().is_ipv6 { 7 } else { 8 }]
    }

    /// IPv4 identification and DF; `None` for IPv6.
    pub fn ipv4_fragmentation(&self) -> Option<Ipv4Fragmentation> {
        let [i0, i1, flags, _] = *self.array(self.layout().ip + 4)?;
        (!self.layout().is_ipv6).then_some(Ipv4Fragmentation {
            identification: u16::from_be_bytes([i0, i1]),
            dont_fragment: flags & 0x40 != 0,
        })
    }

    #[inline]
    fn address(&self, v4_at: usize, v6_at: usize) -> IpAddr {
        let ip = self.layout().ip;
        if self.layout().is_ipv6 {
            match self.array::<16>(ip + v6_at) {
                Some(b) => IpAddr::V6(Ipv6Addr::from(*b)),
                None => unreachable!("Layout::find checked the IPv6 header"),
            }
        } else {
            match self.array::<4>(ip + v4_at) {
                Some(b) => IpAddr::V4(Ipv4Addr::from(*b)),
                None => unreachable!("Layout::find checked the IPv4 header"),
            }
        }
    }

    /// IP source.
    #[inline]
    pub fn source_ip(&self) -> IpAddr {
        self.address(12, 8)
    }

    /// IP destination.
    #[inline]
    pub fn destination_ip(&self) -> IpAddr {
        self.address(16, 24)
    }

    /// [`crate::address_bits`] of the IP source.
    #[inline]
    pub fn source_bits(&self) -> u128 {
        Udp::from(self.layout()).source_bits(self.head)
    }

    /// [`crate::address_bits`] of the IP destination.
    #[inline]
    pub fn destination_bits(&self) -> u128 {
        Udp::from(self.layout()).destination_bits(self.head)
    }

    /// UDP source port.
    #[inline]
    pub fn udp_source_port(&self) -> u16 {
        u16::from_be_bytes([self.head[self.layout().udp], self.head[self.layout().udp + 1]])
    }

    /// Addresses and markings as a [`Path`], from which a [`crate::PathTemplate`] builds frames
    /// like this one.
    pub fn path(&self) -> Path {
        Udp::from(self.layout()).path(self.head)
    }
}
