//! RoCEv2 over an ordinary UDP socket: two processes on two machines, IPv4 or IPv6, no privileges.
//!
//! A [`UdpPort`] behaves like any other frame port. To send, it strips Ethernet, IP and UDP headers
//! and makes the kernel send the rest to the frame's destination address; on reception it prepends
//! headers to each datagram. The wire carries plain RoCEv2, which kernel rxe and RNICs understand.
//!
//! Lifecycle: bound by [`UdpPort::bind`], immediately up, and always up. There is no peer to wait
//! for: one port reaches any number of them, and the device handles those that do not respond.
//!
//! The ICRC covers header fields that the kernel fills in:
//! * **UDP source port**: the kernel sends the bound one, so the device must build its frames with
//!   source port 4791. Others are dropped and counted.
//! * **IPv4 identification and flags**: an unconnected socket that probes the path's MTU sends DF
//!   and 0, as the device assumes. If one call sends several datagrams (`UDP_SEGMENT`), the kernel
//!   numbers them 0, 1, 2 …, and the port adjusts the ICRC of each, without reading its payload. A
//!   receiver does not learn the identification, and derives it from the ICRC; see
//!   [`Identification`].
//! * **All other fields** are either the same on both sides or excluded from the ICRC.
//!
//! Trust: anybody can send datagrams to the port. It reads their lengths and their last four bytes,
//! and leaves the rest to the device.
//!
//! Deliberately absent: multicast groups, several source addresses, IPv4 options, VLAN tags on the
//! wire, and frames other than RoCEv2 (no ARP: the kernel resolves neighbours).
//!
//! System calls go through `libc`: quinn-udp sends no batches of dissimilar datagrams, carries ECN
//! without DSCP and needs each batch in contiguous memory; rustix has neither `sendmmsg` with
//! ancillary data nor `recvmmsg`.

mod batch;
mod buffer;
mod config;
mod control;
mod counters;
mod headers;
mod identification;
mod port;
mod receiver;
mod sender;
mod socket;

#[cfg(test)]
mod tests;

pub use buffer::{obtainable_receive_buffer, window_packets};
pub use config::{UdpConfig, UdpError};
pub use counters::UdpCounters;
pub use identification::Identification;
pub use port::UdpPort;
