//! RoCEv2 on the wire: views over borrowed bytes, builders into borrowed buffers, the ICRC.
//!
//! The crate does not allocate, and no byte sequence makes it panic: invalid input is a typed
//! [`Malformed`]. It handles layouts only; `rc`, `cm` and `accel` interpret packets.
#![forbid(unsafe_code)]

mod bth;
mod ecn;
mod extended;
mod head;
pub mod icrc;
mod layout;
pub mod mad;
mod opcode;
mod packet;
mod pair_hash;
mod path;
mod pause;
pub mod pcap;
mod prefix;
mod udp;

pub use bth::Bth;
pub use ecn::Ecn;
pub use extended::{
    Aeth, AtomicAckEth, AtomicEth, Deth, NakCode, RETH_LEN, Reth, Syndrome, credit_code, credits,
    rnr_backoff, rnr_timer, rnr_timer_code,
};
pub use head::{CNP_PAYLOAD, HEAD_MAX, Head};
pub use layout::{Layout, Malformed, Split, split};
pub use opcode::{Opcode, Position, Transport, Verb};
pub use packet::Packet;
pub use pair_hash::{flow_hash, pair_hash};
pub use path::{Ipv4Fragmentation, MacAddr, Path, PathTemplate};
pub use pause::{PRIORITIES, Pause, priority_of};
pub use prefix::{Prefix, PrefixError};
pub use udp::{Udp, address_bits, ipv4_checksum_is_right};

/// UDP destination port of RoCEv2.
pub const ROCEV2_PORT: u16 = 4791;
/// Length of the ICRC that ends every packet, in bytes.
pub const ICRC_LEN: usize = 4;
/// The default partition key, full membership.
pub const PKEY_DEFAULT: u16 = 0xffff;
