//! Construction of all headers of a frame.

use crate::{Aeth, AtomicAckEth, AtomicEth, Bth, Deth, ICRC_LEN, Opcode, PathTemplate, Reth};
use longhaul_units::{Psn, Qpn, RKey};

/// Maximum header bytes that this crate builds or reads: Ethernet, two VLAN tags, IPv6, UDP, BTH
/// and the longest extended headers take 110 bytes, and the WAN transport adds 24 in front of the
/// BTH.
pub const HEAD_MAX: usize = 160;

/// Payload of a CNP: 16 reserved bytes.
pub const CNP_PAYLOAD: [u8; 16] = [0; 16];

/// The headers of one frame under construction, or a private copy of received ones.
#[derive(Clone, Debug)]
pub struct Head {
    bytes: [u8; HEAD_MAX],
    len: u8,
}

impl Head {
    /// No bytes yet.
    pub const EMPTY: Head = Head { bytes: [0; HEAD_MAX], len: 0 };

    /// A copy of `bytes`, of which only the first [`HEAD_MAX`] are kept.
    #[inline]
    pub fn copy_of(bytes: &[u8]) -> Head {
        // A copy of constant length, for all frames but the shortest, is a few vector moves.
        if let Some(first) = bytes.first_chunk::<HEAD_MAX>() {
            return Head { bytes: *first, len: HEAD_MAX as u8 };
        }
        let mut head = Head::EMPTY;
        head.bytes[..bytes.len()].copy_from_slice(bytes);
        head.len = bytes.len() as u8;
        head
    }

    /// Headers from Ethernet to BTH; extended headers follow by the `push_` methods in the order of
    /// the wire, then [`Head::finish`].
    #[inline]
    pub fn begin(template: &PathTemplate, bth: &Bth) -> Head {
        let mut head = Head::EMPTY;
        // Copy the whole template buffer: excess bytes are overwritten or beyond the length.
        head.bytes[..PathTemplate::LEN_MAX].copy_from_slice(template.buffer());
        head.len = template.bytes().len() as u8;
        head.push(&bth.write());
        head
    }

    /// A complete congestion notification for the sender's QP `dest_qp`; its payload is
    /// [`CNP_PAYLOAD`]. FECN 0, BECN 1, PSN 0. Source: IBTA, RoCEv2 annex (A17), section 17.9.3.
    ///
    /// The traffic class is the template's. ConnectX sends CNPs in a separate class (DSCP 48).
    pub fn cnp(template: &PathTemplate, dest_qp: Qpn) -> Head {
        let bth = Bth { becn: true, ..Bth::new(Opcode::CNP, dest_qp, Psn::new(0)) };
        let mut head = Head::begin(template, &bth);
        head.finish(template, CNP_PAYLOAD.len());
        head
    }

    #[inline]
    fn push(&mut self, bytes: &[u8]) {
        let at = usize::from(self.len);
        self.bytes[at..at + bytes.len()].copy_from_slice(bytes);
        self.len += bytes.len() as u8;
    }

    /// Appends a RETH.
    #[inline]
    pub fn push_reth(&mut self, reth: &Reth) {
        self.push(&reth.write());
    }

    /// Appends an AETH.
    #[inline]
    pub fn push_aeth(&mut self, aeth: &Aeth) {
        self.push(&aeth.write());
    }

    /// Appends a DETH.
    pub fn push_deth(&mut self, deth: &Deth) {
        self.push(&deth.write());
    }

    /// Appends an AtomicETH.
    pub fn push_atomic(&mut self, atomic: &AtomicEth) {
        self.push(&atomic.write());
    }

    /// Appends the original value of an atomic.
    pub fn push_atomic_ack(&mut self, ack: &AtomicAckEth) {
        self.push(&ack.original.to_be_bytes());
    }

    /// Appends immediate data, given in network byte order.
    #[inline]
    pub fn push_immediate(&mut self, immediate: [u8; 4]) {
        self.push(&immediate);
    }

    /// Appends an IETH.
    pub fn push_invalidate(&mut self, rkey: RKey) {
        self.push(&rkey.0.to_be_bytes());
    }

    /// Fills in the lengths and the IPv4 checksum for a payload of `payload_len` bytes and writes
    /// the pad count into the BTH. Call it once, after all headers. Returns the pad count.
    ///
    /// The caller keeps payloads within the path MTU (at most 4096); above 65,000 bytes they do not
    /// fit an IP packet.
    #[inline]
    pub fn finish(&mut self, template: &PathTemplate, payload_len: usize) -> u8 {
        let pad = (payload_len.wrapping_neg() & 3) as u8;
        let ip = template.ip();
        let udp = template.bytes().len() - 8;
        self.bytes[udp + 9] = self.bytes[udp + 9] & 0xcf | pad << 4;
        let end = usize::from(self.len) + payload_len + usize::from(pad) + ICRC_LEN;
        let udp_length = (end - udp) as u16;
        self.bytes[udp + 4..udp + 6].copy_from_slice(&udp_length.to_be_bytes());
        if template.is_ipv6() {
            self.bytes[ip + 4..ip + 6].copy_from_slice(&udp_length.to_be_bytes());
        } else {
            let total = (end - ip) as u16;
            self.bytes[ip + 2..ip + 4].copy_from_slice(&total.to_be_bytes());
            self.bytes[ip + 10..ip + 12]
                .copy_from_slice(&template.ipv4_checksum(total).to_be_bytes());
        }
        pad
    }

    /// Turns finished headers of an acknowledge packet (BTH and AETH only) into those of another on
    /// the same path. Lengths and checksums do not change.
    #[inline]
    pub fn acknowledge_again(&mut self, dest_qp: Qpn, psn: Psn, aeth: &Aeth) {
        let end = usize::from(self.len);
        let Some(tail) = self.bytes[..end].last_chunk_mut::<{ Bth::LEN + Aeth::LEN }>() else {
            return;
        };
        tail[5..8].copy_from_slice(&dest_qp.get().to_be_bytes()[1..]);
        tail[9..12].copy_from_slice(&psn.get().to_be_bytes()[1..]);
        tail[12..].copy_from_slice(&aeth.write());
    }

    /// The bytes so far.
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}
