//! Extended transport headers.

use longhaul_units::{Duration, Msn, Qpn, RKey};

/// Length of a [`Reth`] in bytes.
pub const RETH_LEN: usize = 16;

/// RDMA extended transport header: a range of the responder's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reth {
    /// Virtual address at the responder.
    pub virtual_address: u64,
    /// Key of the memory region.
    pub rkey: RKey,
    /// DMA length in bytes: the whole message, not this packet.
    pub len: u32,
}

impl Reth {
    /// Length on the wire, in bytes.
    pub const LEN: usize = 16;

    /// Reads the 16 bytes.
    #[inline]
    pub fn read(b: &[u8; 16]) -> Self {
        let [a @ .., _, _, _, _, _, _, _, _] = *b;
        let [.., k0, k1, k2, k3, l0, l1, l2, l3] = *b;
        Reth {
            virtual_address: u64::from_be_bytes(a),
            rkey: RKey(u32::from_be_bytes([k0, k1, k2, k3])),
            len: u32::from_be_bytes([l0, l1, l2, l3]),
        }
    }

    /// The 16 bytes.
    #[inline]
    pub fn write(&self) -> [u8; 16] {
        let mut b = [0; 16];
        b[..8].copy_from_slice(&self.virtual_address.to_be_bytes());
        b[8..12].copy_from_slice(&self.rkey.0.to_be_bytes());
        b[12..].copy_from_slice(&self.len.to_be_bytes());
        b
    }
}

/// ACK extended transport header: syndrome and MSN.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Aeth {
    /// ACK with credits, RNR NAK with timer, or NAK with reason.
    pub syndrome: Syndrome,
    /// Messages that the responder has completed.
    pub msn: Msn,
}

/// The first byte of an AETH.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Syndrome {
    /// Acknowledged; the code (0 to 31) encodes end-to-end credits, see [`credits`].
    Ack {
        /// Five bits.
        credit_code: u8,
    },
    /// The responder had no receive WQE; the code (0 to 31) encodes a wait, see [`rnr_timer`].
    RnrNak {
        /// Five bits.
        timer_code: u8,
    },
    /// Negative acknowledgement.
    Nak(NakCode),
    /// A reserved pattern, kept so that it can be printed and written back.
    Reserved(u8),
}

/// Reason of a NAK.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NakCode {
    /// A PSN was skipped; the NAK's PSN is the expected one. Syndrome 0x60.
    PsnSequence,
    /// Request out of order, malformed or not supported. Syndrome 0x61.
    InvalidRequest,
    /// rkey, range or permission wrong. Syndrome 0x62.
    RemoteAccess,
    /// The responder failed. Syndrome 0x63.
    RemoteOperational,
    /// Invalid reliable-datagram request. Syndrome 0x64.
    InvalidRd,
}

impl Syndrome {
    /// An ACK that sets no credit limit (code 31).
    pub const ACK_UNLIMITED: Syndrome = Syndrome::Ack { credit_code: 31 };

    /// Reads the byte.
    #[inline]
    pub const fn read(b: u8) -> Self {
        match b {
            0x00..=0x1f => Syndrome::Ack { credit_code: b },
            0x20..=0x3f => Syndrome::RnrNak { timer_code: b & 0x1f },
            0x60 => Syndrome::Nak(NakCode::PsnSequence),
            0x61 => Syndrome::Nak(NakCode::InvalidRequest),
            0x62 => Syndrome::Nak(NakCode::RemoteAccess),
            0x63 => Syndrome::Nak(NakCode::RemoteOperational),
            0x64 => Syndrome::Nak(NakCode::InvalidRd),
            _ => Syndrome::Reserved(b),
        }
    }

    /// The byte.
    #[inline]
    pub const fn write(self) -> u8 {
        match self {
            Syndrome::Ack { credit_code } => credit_code & 0x1f,
            Syndrome::RnrNak { timer_code } => 0x20 | (timer_code & 0x1f),
            Syndrome::Nak(NakCode::PsnSequence) => 0x60,
            Syndrome::Nak(NakCode::InvalidRequest) => 0x61,
            Syndrome::Nak(NakCode::RemoteAccess) => 0x62,
            Syndrome::Nak(NakCode::RemoteOperational) => 0x63,
            Syndrome::Nak(NakCode::InvalidRd) => 0x64,
            Syndrome::Reserved(b) => b,
        }
    }
}

impl Aeth {
    /// Length in bytes.
    pub const LEN: usize = 4;

    /// Reads the four bytes.
    #[inline]
    pub fn read(b: &[u8; 4]) -> Self {
        Aeth {
            syndrome: Syndrome::read(b[0]),
            msn: Msn::new(u32::from_be_bytes([0, b[1], b[2], b[3]])),
        }
    }

    /// The four bytes.
    #[inline]
    pub fn write(&self) -> [u8; 4] {
        let [_, m0, m1, m2] = self.msn.get().to_be_bytes();
        [self.syndrome.write(), m0, m1, m2]
    }
}

/// End-to-end credits, in messages, for codes 0 to 30. Source: IBTA, volume 1, table 59.
const CREDITS: [u32; 31] = [
    0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536,
    2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768,
];

/// Messages that credit `code` allows beyond the MSN; `None` for 31, which sets no limit.
pub fn credits(code: u8) -> Option<u32> {
    CREDITS.get(usize::from(code & 0x1f)).copied()
}

/// Returns the largest code that grants at most `messages`.
pub fn credit_code(messages: u32) -> u8 {
    (CREDITS.partition_point(|&c| c <= messages) - 1) as u8
}

/// RNR waits in microseconds for codes 0 to 31. Source: IBTA, volume 1, table 45.
const RNR_US: [u64; 32] = [
    655_360, 10, 20, 30, 40, 60, 80, 120, 160, 240, 320, 480, 640, 960, 1280, 1920, 2560, 3840,
    5120, 7680, 10_240, 15_360, 20_480, 30_720, 40_960, 61_440, 81_920, 122_880, 163_840, 245_760,
    327_680, 491_520,
];

/// The wait that RNR timer `code` (five bits) encodes.
pub fn rnr_timer(code: u8) -> Duration {
    Duration::from_us(RNR_US[usize::from(code & 0x1f)])
}

/// Returns the code of the shortest RNR timer of at least `wait`, or of the longest timer.
pub fn rnr_timer_code(wait: Duration) -> u8 {
    (0..RNR_US.len() as u8)
        .filter(|&code| rnr_timer(code) >= wait)
        .min_by_key(|&code| rnr_timer(code))
        .unwrap_or_default()
}

/// [`rnr_backoff`] waits for 1/8 of the time for which a responder has not been ready.
const RNR_BACKOFF_PART: u64 = 8;
/// Maximum wait of [`rnr_backoff`] beyond the RNR timer.
const RNR_BACKOFF_MAX: Duration = Duration::from_ms(100);

/// Returns the back-off for a responder that has not been ready for `not_ready_for` and requests
/// `timer`, so that many such responders do not take their neighbours' share of a link.
pub fn rnr_backoff(timer: Duration, not_ready_for: Duration) -> Duration {
    timer.max(not_ready_for.divided_by(RNR_BACKOFF_PART).min(RNR_BACKOFF_MAX))
}

/// Datagram extended transport header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Deth {
    /// Queue key.
    pub qkey: u32,
    /// The byte between them, as received.
    pub reserved_8: u8,
    /// Source QP.
    pub source_qp: Qpn,
}

impl Deth {
    /// Reads the eight bytes.
    #[inline]
    pub fn read(b: &[u8; 8]) -> Self {
        Deth {
            qkey: u32::from_be_bytes([b[0], b[1], b[2], b[3]]),
            reserved_8: b[4],
            source_qp: Qpn::new(u32::from_be_bytes([0, b[5], b[6], b[7]])),
        }
    }

    /// The eight bytes.
    #[inline]
    pub fn write(&self) -> [u8; 8] {
        let [k0, k1, k2, k3] = self.qkey.to_be_bytes();
        let [_, q0, q1, q2] = self.source_qp.get().to_be_bytes();
        [k0, k1, k2, k3, self.reserved_8, q0, q1, q2]
    }
}

/// Atomic extended transport header, 28 bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AtomicEth {
    /// Virtual address at the responder, 8-byte aligned in a valid request.
    pub virtual_address: u64,
    /// Key of the memory region.
    pub rkey: RKey,
    /// Swap value of CMP_SWAP, addend of FETCH_ADD.
    pub swap_or_add: u64,
    /// Compare value of CMP_SWAP.
    pub compare: u64,
}

impl AtomicEth {
    /// Reads the 28 bytes.
    #[inline]
    pub fn read(b: &[u8; 28]) -> Self {
        let word = |at: usize| {
            let mut w = [0; 8];
            w.copy_from_slice(&b[at..at + 8]);
            u64::from_be_bytes(w)
        };
        AtomicEth {
            virtual_address: word(0),
            rkey: RKey(u32::from_be_bytes([b[8], b[9], b[10], b[11]])),
            swap_or_add: word(12),
            compare: word(20),
        }
    }

    /// The 28 bytes.
    #[inline]
    pub fn write(&self) -> [u8; 28] {
        let mut b = [0; 28];
        b[..8].copy_from_slice(&self.virtual_address.to_be_bytes());
        b[8..12].copy_from_slice(&self.rkey.0.to_be_bytes());
        b[12..20].copy_from_slice(&self.swap_or_add.to_be_bytes());
        b[20..].copy_from_slice(&self.compare.to_be_bytes());
        b
    }
}

/// Original value of an atomic, 8 bytes after the AETH.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AtomicAckEth {
    /// Original value at the address.
    pub original: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credit_codes_round_down() {
        assert_eq!(credit_code(0), 0);
        assert_eq!(credit_code(5), 4);
        assert_eq!(credit_code(32768), 30);
        assert_eq!(credit_code(u32::MAX), 30);
        assert_eq!(credits(31), None);
        for code in 0..31 {
            assert_eq!(credit_code(credits(code).unwrap()), code);
        }
    }

    #[test]
    fn every_syndrome_byte_survives() {
        for b in 0..=255 {
            assert_eq!(Syndrome::read(b).write(), b);
        }
    }
}
