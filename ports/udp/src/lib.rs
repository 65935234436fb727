//! RoCEv2 over an ordinary UDP socket: two processes on two machines, IPv4 or IPv6, no privileges.
//!
//! A [`UdpPort`] looks like any other frame port. On the way out it takes Ethernet, IP and UDP
//! headers off the frame and has the kernel send the rest to the frame's destination address; on
//! the way in it puts headers in front of each datagram again. On the wire stands plain RoCEv2,
//! which kernel rxe and RNICs understand.
//!
//! Lifecycle: bound by [`UdpPort::bind`], up at once and for good. There is no peer to wait for:
//! any number of them are reached through one port, and who does not answer is the device's
//! business.
//!
//! The difficulty is the ICRC, which covers header fields that the kernel fills in:
//! * **UDP source port**: the kernel sends the bound one, so the device has to build its frames
//!   with source port
//!   4791. Others are dropped and counted.
//! * **IPv4 identification and flags**: an unconnected socket that probes the path's MTU sends DF
//!   and 0, as the device assumes. When one call sends several datagrams (`UDP_SEGMENT`), the
//!   kernel numbers them 0, 1, 2 …, and the port changes the ICRC of each accordingly, which takes
//!   no look at its payload. A receiver is not told the identification that came, and finds it from
//!   the ICRC; see [`Identification`].
//! * **Everything else** is either the same on both sides or left out of the ICRC.
//!
//! Trust: anybody can send datagrams to the port. It looks at their lengths and their last four
//! bytes and leaves the rest to the device.
//!
//! Deliberately absent: multicast groups, several source addresses, IPv4 options, VLAN tags on the
//! wire, and frames other than RoCEv2 (no ARP: the kernel resolves neighbours).
//!
//! System calls go through `libc`: quinn-udp sends no batches of unlike datagrams, carries ECN
//! without DSCP and wants each batch in one piece of memory; rustix has neither `sendmmsg` with
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
