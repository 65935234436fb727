//! Network interfaces of the host as ports: a TAP device that the port makes, or any Ethernet
//! interface there is.
//!
//! * [`TapPort`] is the other end of a TAP device: what the host sends there is received.
//! * [`PacketPort`] sits on an interface that exists, with an `AF_PACKET` socket: a physical one, a
//!   veth device, the host's side of a TAP device that a virtual machine has. It receives what
//!   comes in from outside, to whomever, and sends to the outside. What the host itself sends there
//!   is not received, and the host goes on receiving what it did: an interface that is one side of
//!   a box in the middle should have no address.
//!
//! Lifecycle: opened in the network namespace of the calling thread, up when the interface is up
//! and has a carrier. No state of the interface ends a port: set down, without carrier, or deleted,
//! it is down, counts what it drops and says why ([`longhaul_port::Port::last_disconnect`]); it is
//! up again when the interface is, also when that is another one of the same name. A port stays
//! with an interface that is renamed, whatever gets the old name, until it is gone. A TAP device
//! that was deleted is not made again by the port, only attached to when somebody does. The kernel
//! tells of changes; a port that is kept awake asks once in a millisecond.
//!
//! Privileges: opening takes CAP_NET_RAW for a [`PacketPort`] (and CAP_NET_ADMIN to turn receive
//! merging off, and for buffers beyond the system's limits), CAP_NET_ADMIN for a [`TapPort`] (none
//! for a device made for this user, with its MTU and state as wanted). Nothing after that takes
//! one, but for what is then lost with them:
//! * a [`TapPort`] does not attach to a device that was made anew, unless it was made for this
//!   user;
//! * a [`PacketPort`] leaves receive merging off when it is dropped (`ethtool -K IF gro on` turns
//!   it on), and as it is on an interface that was made anew; what is merged is split all the same.
//!
//! What a cable carries: senders on the same host, and virtual machines, leave checksums open and
//! hand over frames of up to 64 KiB for a device to split; receiving interfaces merge frames. A TAP
//! device that was offered nothing has the kernel do that work. An `AF_PACKET` socket is given such
//! frames with a description (`PACKET_VNET_HDR`), and the port completes and splits them: TCP over
//! IPv4 and IPv6, UDP (`UDP_SEGMENT`), in VLANs and in VXLAN, Geneve, GRE and IP tunnels; the
//! checksums of these and of SCTP. What it does not understand is dropped and counted
//! ([`NetdevCounters::rx_not_splittable`]), and so is what is longer than 64 KiB ("BIG TCP"). VLAN
//! tags, which the kernel takes off, are put back.
//!
//! Limits: `AF_PACKET` sends nothing longer than the interface's MTU with an Ethernet header and
//! one 802.1Q tag, so that a wire for frames with two tags, or with an 802.1ad tag, needs an MTU
//! that is 4 bytes larger. Frames have no checksum of their own here (FCS), and pause frames do not
//! pass. A full send buffer makes the port wait; a full queue behind it loses frames
//! ([`NetdevCounters::tx_queue_full`]).
//!
//! Trust: lengths and offsets that come with frames are checked, as a virtual machine may have made
//! them up.
//!
//! `recvmmsg` and `sendmmsg` rather than rings in shared memory: on a veth pair a ring of 8 KiB
//! slots took 10 % less time for each frame, and one with slots for 64 KiB, which frames to be
//! split need, nearly twice as much. System calls go through `libc`: rustix knows neither packet
//! sockets nor interface requests.
//!
//! Several cores: [`PacketPort::open_queues`] opens as many ports on one interface, each with
//! sockets of its own, and the kernel gives each frame to the one whose part it is
//! ([`FrameSubset`]). Each socket has a filter for that instead of a place in a fanout group,
//! because a socket in such a group cannot go over to an interface that was made anew, nor join
//! while the interface is down before Linux 6.13, and its place in the group goes by who joined
//! when. The kernel runs one filter of thirty instructions for each socket and frame.
//!
//! Floods: a port that serves by class ([`PacketConfig::by_class`]) has a socket and a receive
//! buffer for each of three classes, sorted by filters of the same kind, so that frames of unknown
//! traffic do not push out those of known flows.
//!
//! Deliberately absent: addresses, routes and neighbours, and setting an existing interface up.

mod batch;
mod bpf;
mod checksum;
mod class;
mod config;
mod counters;
mod error;
mod filter;
#[cfg(feature = "hostile")]
pub mod hostile;
pub mod interface;
mod layers;
pub mod offloads;
mod packet;
mod part;
mod receiver;
pub mod repair;
mod request;
mod segment;
mod sender;
mod socket;
mod tap;
pub mod watch;

pub use class::PreferredQps;
pub use config::{PacketConfig, TapConfig};
pub use counters::NetdevCounters;
pub use error::NetdevError;
pub use filter::Wanted;
pub use packet::PacketPort;
pub use part::FrameSubset;
pub use tap::TapPort;

#[cfg(test)]
mod tests;
